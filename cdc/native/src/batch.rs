//! The messages of a run, and the counters that they move; as `BatchBuilder` of cdc.stream.batches.batch.

/// Size in bytes to which buffers shrink again after a larger batch.
pub const KEPT_BYTES: usize = 8 * 1024 * 1024;

/// One message: its topic, and the spans of its key and its value. A message without a value is a tombstone.
pub struct Message {
    pub topic: usize,
    pub key: (usize, usize),
    pub value: Option<(usize, usize)>,
}

/// Messages and counters of a run.
#[derive(Default)]
pub struct BatchBuilder {
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
    /// Total size of the batch's values in bytes, including those that it had before.
    pub byte_count: usize,
    /// The last seq that was assigned.
    pub seq: u64,
    pub row_count: u64,
    /// Number of UPSERTs that the server merges.
    pub upsert_count: u64,
    /// The master's time of the last row.
    pub timestamp: f64,
    /// Whether BEGIN and END records are among the messages.
    pub has_records: bool,
    /// Whether the run stopped because the next transaction doesn't fit into the batch.
    pub is_full: bool,
}

impl BatchBuilder {
    /// Empty the batch, and set the counters to the current values.
    pub fn begin(&mut self, byte_count: usize, seq: u64) {
        self.bytes.clear();
        self.messages.clear();
        (self.byte_count, self.seq, self.row_count) = (byte_count, seq, 0);
        self.upsert_count = 0;
        (self.has_records, self.is_full) = (false, false);
    }

    /// Take the bytes and the messages; reserve as much space again, within bounds.
    pub fn take(&mut self) -> (Vec<u8>, Vec<Message>) {
        let bytes = Vec::with_capacity(self.bytes.len().min(KEPT_BYTES));
        let messages = Vec::with_capacity(self.messages.len().min(KEPT_BYTES / 1024));
        (
            std::mem::replace(&mut self.bytes, bytes),
            std::mem::replace(&mut self.messages, messages),
        )
    }

    /// Add the message of an event whose value begins at `value_begin` and ends here.
    pub fn add(&mut self, topic: usize, key: (usize, usize), value_begin: usize) {
        let value = (value_begin, self.bytes.len());
        self.byte_count += value.1 - value.0;
        self.messages.push(Message {
            topic,
            key,
            value: Some(value),
        });
    }

    /// Set the key of the last message: it begins at `begin` and ends here.
    pub fn set_last_key(&mut self, begin: usize) {
        let key = (begin, self.bytes.len());
        if let Some(message) = self.messages.last_mut() {
            message.key = key;
        }
    }

    /// Add the tombstone that follows a DELETE's event, with the event's key.
    pub fn add_tombstone(&mut self, topic: usize) {
        let key = self.messages.last().map_or((0, 0), |message| message.key);
        self.messages.push(Message {
            topic,
            key,
            value: None,
        });
    }
}

/// State of a batch to return to: number of bytes, number of messages, size of values, last seq, and number of UPSERTs.
#[derive(Clone, Copy)]
pub struct Mark(usize, usize, usize, u64, u64);

impl BatchBuilder {
    pub fn mark(&self) -> Mark {
        Mark(
            self.bytes.len(),
            self.messages.len(),
            self.byte_count,
            self.seq,
            self.upsert_count,
        )
    }

    pub fn back_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.0);
        self.messages.truncate(mark.1);
        (self.byte_count, self.seq, self.upsert_count) = (mark.2, mark.3, mark.4);
    }
}
