//! The row changes that the store doesn't have yet, by key and in order; the specification is cdc.images.pending.
//!
//! ```text
//! put, delete, clear ─▶ open changes ──take──▶ a batch's changes, frozen ──written──▶ forgotten
//!                           ▲                         ▲
//!                 table: key ──────▶ place of its last change
//! ```
//!
//! Keys and tuples are stored one after the other in their batch's bytes; the table contains places, not bytes. Each change
//! refers to its key's previous change. Thus, if a partly processed transaction is handed back, its changes can be undone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use hashbrown::HashTable;

const PREFIX_BYTES: usize = 4;
const GONE: u32 = u32::MAX;

static LAST_ID: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, Debug)]
struct Entry {
    begin: usize,
    key: u32,
    /// Length of the tuple that follows the key. 0: all rows of a space were deleted; GONE: the key's row was deleted.
    tuple: u32,
}

/// The changes of one batch, in order.
#[derive(Debug, Default)]
pub struct Changes {
    /// Id of the `Pending` that the changes belong to; 0 for none.
    owner: u64,
    number: u64,
    data: Vec<u8>,
    entries: Vec<Entry>,
}

impl Changes {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Return the total size of keys and tuples, in bytes.
    pub fn byte_count(&self) -> usize {
        self.data.len()
    }

    /// Return a change's key and its tuple: None if the row was deleted, an empty tuple if all rows of the space were deleted.
    pub fn get(&self, index: usize) -> (&[u8], Option<&[u8]>) {
        let Entry { begin, key, tuple } = self.entries[index];
        let middle = begin + key as usize;
        let after = (tuple != GONE).then(|| &self.data[middle..middle + tuple as usize]);
        (&self.data[begin..middle], after)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        (0..self.len()).map(|index| self.get(index))
    }

    pub fn push(&mut self, key: &[u8], tuple: Option<&[u8]>) {
        let begin = self.data.len();
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(tuple.unwrap_or_default());
        let size = tuple.map_or(GONE, |tuple| tuple.len() as u32);
        self.entries.push(Entry {
            begin,
            key: key.len() as u32,
            tuple: size,
        });
    }

    /// Append the lengths of each key and tuple, as cdc.images.pending packs them.
    pub fn push_lengths(&self, bytes: &mut Vec<u8>) {
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.key.to_le_bytes());
            bytes.extend_from_slice(&entry.tuple.to_le_bytes());
        }
    }

    /// Return all keys and tuples, one after another.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    fn truncate(&mut self, count: usize) {
        if let Some(entry) = self.entries.get(count) {
            self.data.truncate(entry.begin);
            self.entries.truncate(count);
        }
    }
}

/// Place of a change: its batch's number, and its index in the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    number: u64,
    index: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    place: Place,
}

/// Result of looking up a key's current tuple.
#[derive(Debug, PartialEq)]
pub enum Found<'a> {
    Tuple(&'a [u8]),
    Nothing,
    /// The store must be read.
    Unknown,
}

/// Return the changes of a batch, None if they were written. A free function, so that callers can change the table meanwhile.
fn batch_of<'a>(
    open: &'a Changes,
    frozen: &'a VecDeque<Option<Arc<Changes>>>,
    first_number: u64,
    number: u64,
) -> Option<&'a Changes> {
    if number == open.number {
        return Some(open);
    }
    frozen
        .get(number.checked_sub(first_number)? as usize)?
        .as_deref()
}

pub struct Pending {
    id: u64,
    hasher: RandomState,
    table: HashTable<Slot>,
    /// Batches that were taken, None once written; the first has the number `first_number`.
    frozen: VecDeque<Option<Arc<Changes>>>,
    first_number: u64,
    open: Changes,
    /// For each open change, the place of its key's previous change.
    priors: Vec<Option<Place>>,
    /// Number of pending clearings by space. While there are any, the store's rows of the space are outdated.
    clearings: HashMap<Vec<u8>, usize>,
    /// Tuples read from the store, valid until the next write to it.
    fetched: HashMap<Box<[u8]>, Option<Box<[u8]>>>,
    fetched_bytes: usize,
    /// Keys whose tuple is unknown.
    pub doubtful: HashSet<Vec<u8>>,
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

impl Pending {
    pub fn new() -> Pending {
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed);
        Pending {
            id,
            hasher: RandomState::new(),
            table: HashTable::new(),
            frozen: VecDeque::new(),
            first_number: 0,
            open: Changes {
                owner: id,
                ..Changes::default()
            },
            priors: Vec::new(),
            clearings: HashMap::new(),
            fetched: HashMap::new(),
            fetched_bytes: 0,
            doubtful: HashSet::new(),
        }
    }

    fn batch(&self, number: u64) -> Option<&Changes> {
        batch_of(&self.open, &self.frozen, self.first_number, number)
    }

    fn place(&self, hash: u64, key: &[u8]) -> Option<Place> {
        self.table
            .find(hash, |slot| {
                slot.hash == hash && self.is_key(slot.place, key)
            })
            .map(|slot| slot.place)
    }

    fn is_key(&self, place: Place, key: &[u8]) -> bool {
        self.batch(place.number)
            .is_some_and(|batch| batch.get(place.index as usize).0 == key)
    }

    /// Return the tuple after a key's last pending change (None inside if it was deleted); None if no change is pending.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let place = self.place(self.hasher.hash_one(key), key)?;
        Some(self.batch(place.number)?.get(place.index as usize).1)
    }

    /// Return a key's current tuple, from the pending changes or from tuples read earlier.
    pub fn current(&self, key: &[u8]) -> Found<'_> {
        let found = match self.get(key) {
            Some(found) => found,
            None if self.is_cleared(key) => None,
            None => match self.fetched.get(key) {
                Some(found) => found.as_deref(),
                None => return Found::Unknown,
            },
        };
        found.map_or(Found::Nothing, Found::Tuple)
    }

    /// Return whether the store's rows of a key's space are outdated, because the space was cleared.
    pub fn is_cleared(&self, key: &[u8]) -> bool {
        !self.clearings.is_empty()
            && self
                .clearings
                .contains_key(&key[..PREFIX_BYTES.min(key.len())])
    }

    /// Remember a key's tuple as just read from the store.
    pub fn fetched(&mut self, key: &[u8], tuple: Option<&[u8]>) {
        self.fetched_bytes += key.len() + tuple.map_or(0, <[u8]>::len);
        self.fetched.insert(key.into(), tuple.map(Into::into));
    }

    /// Return the total size of the remembered keys and tuples, in bytes.
    pub fn fetched_bytes(&self) -> usize {
        self.fetched_bytes
    }

    pub fn fetched_count(&self) -> usize {
        self.fetched.len()
    }

    pub fn forget_fetched(&mut self) {
        self.fetched.clear();
        self.fetched_bytes = 0;
    }

    /// Add a change: the key's new tuple, None to delete it.
    pub fn put(&mut self, key: &[u8], tuple: Option<&[u8]>) {
        let place = Place {
            number: self.open.number,
            index: self.open.len() as u32,
        };
        let hash = self.hasher.hash_one(key);
        let Pending {
            table,
            open,
            frozen,
            first_number,
            ..
        } = self;
        let found = table.find_mut(hash, |slot| {
            slot.hash == hash && {
                let Place { number, index } = slot.place;
                batch_of(open, frozen, *first_number, number)
                    .is_some_and(|batch| batch.get(index as usize).0 == key)
            }
        });
        match found {
            Some(slot) => {
                self.priors.push(Some(slot.place));
                slot.place = place;
            }
            None => {
                self.priors.push(None);
                self.table
                    .insert_unique(hash, Slot { hash, place }, |slot| slot.hash);
            }
        }
        self.open.push(key, tuple);
    }

    /// Add a change that deletes all rows of a space.
    pub fn clear(&mut self, prefix: &[u8]) {
        let Pending {
            table,
            open,
            frozen,
            first_number,
            ..
        } = self;
        table.retain(|slot| {
            let Place { number, index } = slot.place;
            batch_of(open, frozen, *first_number, number)
                .is_some_and(|batch| !batch.get(index as usize).0.starts_with(prefix))
        });
        *self.clearings.entry(prefix.to_vec()).or_default() += 1;
        self.priors.push(None);
        self.open.push(prefix, Some(&[]));
    }

    /// Return the changed keys of a space that are greater than `after`, in order, with their tuples.
    pub fn changed(&self, prefix: &[u8], after: &[u8]) -> Vec<(&[u8], Option<&[u8]>)> {
        let slots = self.table.iter().filter_map(|slot| {
            Some(
                self.batch(slot.place.number)?
                    .get(slot.place.index as usize),
            )
        });
        let mut found: Vec<_> = slots
            .filter(|(key, _)| key.starts_with(prefix) && *key > after)
            .collect();
        found.sort_unstable_by_key(|(key, _)| *key);
        found
    }

    /// Return the number of changes since `take`; it serves as a mark for `back_to`.
    pub fn change_count(&self) -> usize {
        self.open.len()
    }

    /// Undo the changes after a mark. None of them may have cleared a space.
    pub fn back_to(&mut self, mark: usize) {
        for index in (mark..self.open.len()).rev() {
            let (key, tuple) = self.open.get(index);
            let prior = self.priors[index].filter(|prior| self.batch(prior.number).is_some());
            debug_assert!(
                tuple != Some(&[]),
                "a space that was cleared can't be filled again"
            );
            let hash = self.hasher.hash_one(key);
            let here = Place {
                number: self.open.number,
                index: index as u32,
            };
            if let Ok(mut slot) = self
                .table
                .find_entry(hash, |slot| slot.hash == hash && slot.place == here)
            {
                match prior {
                    Some(prior) => slot.get_mut().place = prior,
                    None => {
                        slot.remove();
                    }
                }
            }
        }
        self.forget_after(mark);
    }

    /// Drop the changes after a mark, which won't be published. The pending state is wrong afterwards and must not be read.
    pub fn forget_after(&mut self, mark: usize) {
        self.open.truncate(mark);
        self.priors.truncate(mark);
    }

    /// Return the changes since the last call, in order.
    pub fn take(&mut self) -> Arc<Changes> {
        self.take_before(self.open.len())
    }

    /// Return those changes since the last call that precede the mark; keep the others open.
    pub fn take_before(&mut self, mark: usize) -> Arc<Changes> {
        if mark == 0 {
            return Arc::default();
        }
        let number = self.open.number;
        let next = Changes {
            owner: self.id,
            number: number + 1,
            ..Changes::default()
        };
        let mut taken = std::mem::replace(&mut self.open, next);
        let priors = self.priors.split_off(mark.min(self.priors.len()));
        self.priors.clear();
        for (index, prior) in (mark..taken.len()).zip(priors) {
            let (key, tuple) = taken.get(index);
            let moved = Place {
                number: number + 1,
                index: (index - mark) as u32,
            };
            let here = Place {
                number,
                index: index as u32,
            };
            let hash = self.hasher.hash_one(key);
            if let Some(slot) = self
                .table
                .find_mut(hash, |slot| slot.hash == hash && slot.place == here)
            {
                slot.place = moved;
            }
            self.open.push(key, tuple);
            self.priors.push(
                prior.map(|prior| match prior.index.checked_sub(mark as u32) {
                    Some(index) if prior.number == number => Place {
                        number: number + 1,
                        index,
                    },
                    _ => prior,
                }),
            );
        }
        taken.truncate(mark);
        let taken = Arc::new(taken);
        self.frozen.push_back(Some(Arc::clone(&taken)));
        taken
    }

    /// Forget these changes, because the store has them now.
    pub fn written(&mut self, changes: &Changes) {
        self.forget_fetched();
        if changes.owner != self.id || changes.is_empty() {
            return;
        }
        for (index, (key, tuple)) in changes.iter().enumerate() {
            if tuple == Some(&[]) {
                let left = self.clearings.get_mut(key).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 {
                    self.clearings.remove(key);
                }
                continue;
            }
            let place = Place {
                number: changes.number,
                index: index as u32,
            };
            let hash = self.hasher.hash_one(key);
            if let Ok(slot) = self
                .table
                .find_entry(hash, |slot| slot.hash == hash && slot.place == place)
            {
                slot.remove();
            }
        }
        if let Some(batch) = changes
            .number
            .checked_sub(self.first_number)
            .and_then(|at| self.frozen.get_mut(at as usize))
        {
            *batch = None;
        }
        while matches!(self.frozen.front(), Some(None)) {
            self.frozen.pop_front();
            self.first_number += 1;
        }
    }
}

/// Changes that are written to the store together: either rows, or the clearing of one space.
#[derive(Debug, PartialEq)]
pub struct Slice<'a> {
    pub changes: Vec<(&'a [u8], Option<&'a [u8]>)>,
}

/// Split changes into slices, as specified by cdc.store.store. A clearing is a separate slice. Between two clearings, changes are
/// sorted, and only the last change of each key is kept.
pub fn slices<'a>(parts: &[&'a Changes], changes_max: usize, bytes_max: usize) -> Vec<Slice<'a>> {
    let mut slices = Vec::new();
    let mut run: Vec<(&[u8], Option<&[u8]>)> =
        Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for change in parts.iter().flat_map(|part| part.iter()) {
        if change.1 == Some(&[]) {
            cut(&mut run, changes_max, bytes_max, &mut slices);
            slices.push(Slice {
                changes: vec![change],
            });
        } else {
            run.push(change);
        }
    }
    cut(&mut run, changes_max, bytes_max, &mut slices);
    slices
}

fn cut<'a>(
    run: &mut Vec<(&'a [u8], Option<&'a [u8]>)>,
    changes_max: usize,
    bytes_max: usize,
    slices: &mut Vec<Slice<'a>>,
) {
    // The sort is stable, so the last of several equal keys is the latest change.
    run.sort_by_key(|(key, _)| *key);
    let mut slice: Vec<(&[u8], Option<&[u8]>)> = Vec::new();
    let mut size = 0;
    for (index, change) in run.iter().enumerate() {
        if run.get(index + 1).is_some_and(|next| next.0 == change.0) {
            continue;
        }
        let bytes = change.1.map_or(0, <[u8]>::len);
        size += bytes;
        if slice.len() == changes_max || (size > bytes_max && !slice.is_empty()) {
            slices.push(Slice {
                changes: std::mem::take(&mut slice),
            });
            size = bytes;
        }
        slice.push(*change);
    }
    if !slice.is_empty() {
        slices.push(Slice { changes: slice });
    }
    run.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(space: u32, rest: &str) -> Vec<u8> {
        let mut key = space.to_be_bytes().to_vec();
        key.extend(rest.bytes());
        key
    }

    #[test]
    fn what_is_pending_is_read_until_it_is_written() {
        let mut pending = Pending::new();
        let (a, b) = (key(1, "a"), key(1, "b"));
        assert_eq!(pending.current(&a), Found::Unknown);
        pending.fetched(&a, Some(b"old"));
        assert_eq!(pending.current(&a), Found::Tuple(b"old"));
        pending.put(&a, Some(b"1"));
        pending.put(&b, None);
        let first = pending.take();
        pending.put(&a, Some(b"2"));
        let second = pending.take();
        assert_eq!(pending.get(&a), Some(Some(&b"2"[..])));
        assert_eq!(pending.current(&b), Found::Nothing);
        pending.written(&first);
        assert_eq!(pending.get(&a), Some(Some(&b"2"[..])));
        assert_eq!(pending.current(&b), Found::Unknown);
        pending.written(&second);
        assert_eq!(
            pending.current(&a),
            Found::Unknown,
            "what was fetched before is past"
        );
        assert!(pending.frozen.is_empty() && pending.table.is_empty());
    }

    #[test]
    fn a_transaction_that_is_handed_back_leaves_nothing() {
        let mut pending = Pending::new();
        let (a, b) = (key(1, "a"), key(1, "b"));
        pending.put(&a, Some(b"1"));
        let mark = pending.change_count();
        pending.put(&a, Some(b"2"));
        pending.put(&b, Some(b"3"));
        pending.put(&a, None);
        pending.back_to(mark);
        assert_eq!(pending.get(&a), Some(Some(&b"1"[..])));
        assert_eq!(pending.get(&b), None);
        assert_eq!(
            pending.take().iter().collect::<Vec<_>>(),
            [(&a[..], Some(&b"1"[..]))]
        );
    }

    #[test]
    fn what_comes_after_a_mark_stays() {
        let mut pending = Pending::new();
        let a = key(1, "a");
        pending.put(&a, Some(b"1"));
        pending.put(&a, Some(b"2"));
        pending.put(&a, Some(b"3"));
        let first = pending.take_before(1);
        assert_eq!((first.len(), pending.change_count()), (1, 2));
        pending.written(&first);
        assert_eq!(pending.get(&a), Some(Some(&b"3"[..])));
        pending.back_to(1);
        assert_eq!(pending.get(&a), Some(Some(&b"2"[..])));
        pending.back_to(0);
        assert_eq!(pending.get(&a), None);
    }

    #[test]
    fn a_cleared_space_has_no_rows() {
        let mut pending = Pending::new();
        let (a, other) = (key(1, "a"), key(2, "a"));
        pending.fetched(&a, Some(b"old"));
        pending.put(&a, Some(b"1"));
        pending.put(&other, Some(b"1"));
        pending.clear(&key(1, ""));
        assert_eq!(pending.current(&a), Found::Nothing);
        assert_eq!(pending.changed(&key(2, ""), b"").len(), 1);
        pending.put(&a, Some(b"2"));
        assert_eq!(pending.current(&a), Found::Tuple(b"2"));
        let changes = pending.take();
        let found = slices(&[&changes], 10, 100);
        let (first, second) = (key(1, ""), key(2, "a"));
        assert_eq!(
            found[0].changes,
            [(&a[..], Some(&b"1"[..])), (&second[..], Some(&b"1"[..]))]
        );
        assert_eq!(found[1].changes, [(&first[..], Some(&b""[..]))]);
        pending.written(&changes);
        assert_eq!(pending.current(&a), Found::Unknown);
    }

    #[test]
    fn slices_keep_their_bounds() {
        let mut pending = Pending::new();
        for rest in ["c", "b", "a", "d"] {
            pending.put(&key(1, rest), Some(b"12345"));
        }
        pending.put(&key(1, "b"), None);
        let changes = pending.take();
        let sizes = |count, bytes| {
            slices(&[&changes], count, bytes)
                .iter()
                .map(|slice| slice.changes.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(3, 100), [3, 1]);
        assert_eq!(sizes(10, 10), [3, 1]);
        assert_eq!(sizes(10, 1), [1, 1, 1, 1]);
    }
}
