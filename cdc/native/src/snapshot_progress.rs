//! How far a snapshot has come: which keys were seen, so that a greater one is known to be new.

use std::collections::HashMap;

/// Pieces of a space's snapshot events: the piece between a row and its `seq`, and the piece after that; and the rows of a run.
/// Both are empty if the space's rows aren't published.
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
    /// If the snapshot is compared with the store: the first key from which on the store's rows aren't known yet.
    pub bound: Option<Vec<u8>>,
    /// Whether it is: then a row out of order may be one of the store's.
    pub is_comparing: bool,
    pub key: Vec<u8>,
}

impl SnapshotProgress {
    /// Record that a space's rows up to `last`, and the store's rows before `bound`, have been handled.
    pub fn continue_after(&mut self, space_id: u64, last: Vec<u8>, bound: Option<Vec<u8>>) {
        self.last_keys.insert(space_id, Some(last));
        self.bound = bound;
        self.is_comparing = true;
    }

    /// Return whether the current key is before the store's next row.
    pub fn is_before_bound(&self) -> bool {
        self.bound.as_ref().map_or(true, |bound| self.key < *bound)
    }

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
