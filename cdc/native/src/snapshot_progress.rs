//! How far a snapshot has come: which keys were seen, so that a greater one is known to be new.

use std::collections::HashMap;

/// Pieces of a space's snapshot events: the piece between a row and its `seq`, and the piece after that; and the rows of a run.
pub struct Pieces {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    pub count: u64,
}

/// Progress of a snapshot.
#[derive(Default)]
pub struct SnapshotProgress {
    /// Pieces by space, valid for the current batch.
    pub pieces: HashMap<u64, Pieces>,
    /// The greatest key so far by space; None if a row's key is unknown.
    pub last_keys: HashMap<u64, Option<Vec<u8>>>,
    /// Whether there were rows whose space is unknown.
    pub has_unread: bool,
    pub key: Vec<u8>,
}

impl SnapshotProgress {
    /// Return whether the current key is greater than all previous keys of the space.
    pub fn is_next(&self, space_id: u64) -> bool {
        self.is_after(space_id, &self.key)
    }

    pub fn is_after(&self, space_id: u64, key: &[u8]) -> bool {
        match self.last_keys.get(&space_id) {
            _ if self.has_unread => false,
            Some(Some(last)) => key > &last[..],
            Some(None) => false,
            None => true,
        }
    }

    /// Record that the Python path has handled rows of unknown spaces.
    pub fn mark_unread(&mut self) {
        self.has_unread = true;
    }

    /// Record the current key as received.
    pub fn remember(&mut self, space_id: u64) {
        if self.is_next(space_id) {
            match self.last_keys.entry(space_id).or_default() {
                Some(last) => last.clone_from(&self.key),
                none => *none = Some(self.key.clone()),
            }
        }
    }
}
