//! The current tuples of the keys: the pending changes, and below them the store, which Python reads; as cdc.images.overlay.

use crate::pending::Pending;

/// Maximum number of rows for which the store is read at a time.
pub const FETCH_ROWS: usize = 1024;
/// A read of the store stops once it has returned more bytes than this, because tuples have no maximum size.
pub const FETCH_BYTES: usize = 4 * 1024 * 1024;

/// The images of one connection: the pending changes, and a function that reads keys from the store into `Pending::fetched`.
pub struct Images<'a> {
    pub pending: &'a mut Pending,
    /// Stops after FETCH_BYTES. Returns false if the store can't be read.
    pub fetch: &'a mut dyn FnMut(&mut Pending, &[Vec<u8>]) -> bool,
}

impl Images<'_> {
    /// Forget the tuples read from the store if they are many or large.
    pub fn make_room(&mut self) {
        let pending = &mut self.pending;
        if pending.fetched_count() > FETCH_ROWS || pending.fetched_bytes() > FETCH_BYTES {
            pending.forget_fetched();
        }
    }
}
