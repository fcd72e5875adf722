//! Conversion of the stream's complete transactions to events, in order; as cdc.stream.stream_events, for common rows. This is
//! the hot path.
//!
//! A transaction is handled completely or not at all. If it contains anything uncommon (rows of the schema, the cluster's
//! internal rows, rows of a space without a plan, values that json.rs refuses), it is handed back unchanged to the Python path. The
//! same holds for anything that must be reported. The Python path handles the transaction, or reports why it can't.

use std::collections::{HashMap, HashSet};

use crate::envelope::{
    transaction_records, Origins, Place, Shared, OPEN_CREATE, OPEN_DELETE, OPEN_PATCH, OPEN_UPDATE,
    THEN_UPSERT,
};
use crate::frames::{
    extent, is_change, space_id_of, whole_until, Extent, Row, COMMIT, CONFIRM, DELETE, INSERT, NOP,
    REPLACE, SPACE_ID, UPDATE, UPSERT, WAIT_ACK, WAIT_SYNC,
};
use crate::images::{Body, Work};
use crate::json::Refused;
use crate::limbo::Arrivals;
use crate::overlay::Overlay;
use crate::patch::push_patch;
use crate::plan::Plan;
use crate::snapshot::SnapshotProgress;
use crate::wire::{Reader, Value};

const INDEX_ID: u8 = 0x11;
const KEY: u8 = 0x20;
pub const TUPLE: u8 = 0x21;

/// Maximum number of rows for which the store is read at a time.
pub const FETCH_ROWS: usize = 1024;
/// A read of the store stops once it has returned more bytes than this, because tuples have no maximum size.
pub const FETCH_BYTES: usize = 4 * 1024 * 1024;
/// Size in bytes to which buffers shrink again after a larger batch.
pub const KEPT_BYTES: usize = 8 * 1024 * 1024;

/// Settings that stay the same for a connection.
pub struct Settings {
    /// The beginning of each event's source.
    pub source: Vec<u8>,
    /// Whether a DELETE is followed by a tombstone.
    pub tombstones: bool,
    /// Maximum number of events of a transaction without BEGIN and END records; None: no transaction has them.
    pub unrecorded_events_max: Option<u64>,
    /// Index of the topic for these records.
    pub transaction_topic: usize,
    /// Size of the values, in bytes, above which a batch is full.
    pub bytes_max: usize,
}

/// One message: its topic, and the spans of its key and its value. A message without a value is a tombstone.
pub struct Message {
    pub topic: usize,
    pub key: (usize, usize),
    pub value: Option<(usize, usize)>,
}

/// Messages and counters of a run.
#[derive(Default)]
pub struct Outbox {
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
    /// Total size of the batch's values in bytes, including those that it had before.
    pub byte_count: usize,
    pub seq: u64,
    pub row_count: u64,
    pub timestamp: f64,
    pub has_records: bool,
    /// Whether the run stopped because the next transaction doesn't fit into the batch.
    pub is_full: bool,
}

impl Outbox {
    /// Empty the outbox, and set the counters to the current values.
    pub fn begin(&mut self, byte_count: usize, seq: u64) {
        self.bytes.clear();
        self.messages.clear();
        (self.byte_count, self.seq, self.row_count) = (byte_count, seq, 0);
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

    pub fn add(&mut self, topic: usize, key: (usize, usize), value_begin: usize) {
        let value = (value_begin, self.bytes.len());
        self.byte_count += value.1 - value.0;
        self.messages.push(Message {
            topic,
            key,
            value: Some(value),
        });
    }
}

/// State of an outbox to return to: number of bytes, number of messages, size of values, and last seq.
#[derive(Clone, Copy)]
pub struct Mark(usize, usize, usize, u64);

impl Outbox {
    pub fn mark(&self) -> Mark {
        Mark(
            self.bytes.len(),
            self.messages.len(),
            self.byte_count,
            self.seq,
        )
    }

    pub fn back_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.0);
        self.messages.truncate(mark.1);
        (self.byte_count, self.seq) = (mark.2, mark.3);
    }
}

/// Reason why a transaction isn't handled.
pub enum Obstacle {
    /// Only the Python path can handle it.
    Uncommon,
    /// The batch is full before the transaction's end.
    Full,
}

impl From<Refused> for Obstacle {
    fn from(_: Refused) -> Self {
        Obstacle::Uncommon
    }
}

/// The row path of one connection.
pub struct RowPath {
    pub settings: Settings,
    /// Plans by space; None if the space's rows have no events.
    pub plans: HashMap<u64, Option<Plan>>,
    /// Of these spaces: the synchronous ones, whose rows are handled only where they are certain.
    synchronous: HashSet<u64>,
    /// Progress of a snapshot.
    pub snapshot: SnapshotProgress,
    shared: Shared,
    pub places: Vec<usize>,
    orders: Vec<(u64, u64)>,
    work: Work,
    /// Number of rows for which the store is read next; smaller if their tuples are large.
    fetch_rows: usize,
}

/// The images of one connection: the pending changes, and a function that reads keys from the store into `Overlay::fetched`.
pub struct Images<'a> {
    pub overlay: &'a mut Overlay,
    /// Stops after FETCH_BYTES. Returns false if the store can't be read.
    pub fetch: &'a mut dyn FnMut(&mut Overlay, &[Vec<u8>]) -> bool,
}

impl Images<'_> {
    /// Forget the tuples read from the store if they are many or large.
    pub fn make_room(&mut self) {
        let overlay = &mut self.overlay;
        if overlay.fetched_count() > FETCH_ROWS || overlay.fetched_bytes() > FETCH_BYTES {
            overlay.forget_fetched();
        }
    }
}

impl RowPath {
    pub fn new(settings: Settings) -> Self {
        RowPath {
            settings,
            plans: HashMap::new(),
            synchronous: HashSet::new(),
            snapshot: SnapshotProgress::default(),
            shared: Shared::default(),
            places: Vec::new(),
            orders: Vec::new(),
            work: Work::default(),
            fetch_rows: FETCH_ROWS,
        }
    }

    /// Set a space's plan; None if its rows have no events.
    pub fn set_plan(&mut self, space_id: u64, plan: Option<Plan>, is_synchronous: bool) {
        self.remove_plan(space_id);
        self.plans.insert(space_id, plan);
        if is_synchronous {
            self.synchronous.insert(space_id);
        }
    }

    pub fn remove_plan(&mut self, space_id: u64) {
        self.plans.remove(&space_id);
        self.synchronous.remove(&space_id);
    }

    pub fn remove_all_plans(&mut self) {
        self.plans.clear();
        self.synchronous.clear();
    }

    /// Handle all complete transactions from row `at` on, until one must be handed back or the batch is full; return the index of
    /// the next row. If they are `certain` arrivals, the limbo has released all of them; otherwise those that may have to wait are
    /// handed back.
    #[allow(clippy::too_many_arguments)] // each value has another owner in Python
    pub fn run(
        &mut self,
        data: &[u8],
        rows: &[Row],
        mut at: usize,
        suffix: &[u8],
        origins: &mut Origins,
        outbox: &mut Outbox,
        images: &mut Option<Images>,
        certain: Option<&Arrivals>,
    ) -> usize {
        // Index up to which the store has been read for the rows.
        let mut fetched_until = at;
        // Whether all keys of those rows were read.
        let mut has_all = true;
        while at < rows.len() && outbox.byte_count <= self.settings.bytes_max {
            if let (Some(arrivals), CONFIRM) = (certain, rows[at].kind) {
                if !arrivals.defers(at) {
                    outbox.timestamp = rows[at].timestamp;
                    outbox.row_count += 1;
                    origins.advance(rows[at].origin, rows[at].lsn);
                }
                at += 1;
                continue;
            }
            let Extent::Whole(end) = extent(rows, at) else {
                break;
            };
            let mut change_count = 0;
            if let Some(images) = images {
                if end > fetched_until {
                    let fetch_rows = if has_all { self.fetch_rows } else { 1 };
                    fetched_until = whole_until(rows, at, fetch_rows);
                    let Some(found) = self.fetch(data, &rows[at..fetched_until], images) else {
                        break;
                    };
                    has_all = found;
                }
                change_count = images.overlay.change_count();
            }
            let mark = outbox.mark();
            let overlay = images.as_mut().map(|images| &mut *images.overlay);
            if let Err(obstacle) = self.transaction(
                data,
                &rows[at..end],
                suffix,
                origins,
                outbox,
                overlay,
                certain.is_some(),
            ) {
                if let Some(images) = images {
                    images.overlay.back_to(change_count);
                }
                outbox.back_to(mark);
                if !has_all && end < fetched_until && matches!(obstacle, Obstacle::Uncommon) {
                    // The transaction may need a key that wasn't read: try again with a read for it alone.
                    fetched_until = at;
                    continue;
                }
                outbox.is_full = matches!(obstacle, Obstacle::Full);
                break;
            }
            outbox.row_count += (end - at) as u64;
            at = end;
        }
        at
    }

    /// Read all keys that these rows need from the store; return whether all of them were read, None if the store can't be read.
    fn fetch(&mut self, data: &[u8], rows: &[Row], images: &mut Images) -> Option<bool> {
        images.make_room();
        let mut wanted = Vec::new();
        for row in rows {
            let frame = &data[..row.end];
            let plan = space_id_of(frame, row.body)
                .and_then(|space_id| self.plans.get(&space_id)?.as_ref());
            if let Some(image_plan) = plan.and_then(|plan| plan.images.as_ref()) {
                wanted.extend(
                    self.work
                        .unknown_key(image_plan, frame, row, images.overlay)
                        .map(<[u8]>::to_vec),
                );
            }
        }
        // Read in the order of the store's pages, because neighbouring keys share pages.
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return Some(true);
        }
        let (count, bytes) = (
            images.overlay.fetched_count(),
            images.overlay.fetched_bytes(),
        );
        if !(images.fetch)(images.overlay, &wanted) {
            return None;
        }
        let found_count = images.overlay.fetched_count() - count;
        let has_all = found_count == wanted.len();
        if !has_all {
            self.fetch_rows = (found_count / 2).max(1);
        } else if (images.overlay.fetched_bytes() - bytes) * 4 < FETCH_BYTES {
            self.fetch_rows = (self.fetch_rows * 2).min(FETCH_ROWS);
        }
        Some(has_all)
    }

    #[allow(clippy::too_many_arguments)] // each value has another owner in Python
    fn transaction(
        &mut self,
        data: &[u8],
        rows: &[Row],
        suffix: &[u8],
        origins: &mut Origins,
        outbox: &mut Outbox,
        mut overlay: Option<&mut Overlay>,
        are_certain: bool,
    ) -> Result<(), Obstacle> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Err(Obstacle::Uncommon);
        };
        let (origin, tsn) = first.transaction();
        let known = origins.lsn(origin);
        let flags_max = if are_certain {
            COMMIT | WAIT_SYNC | WAIT_ACK
        } else {
            COMMIT
        };
        if rows
            .iter()
            .any(|row| !row.is_sound || row.lsn <= known || row.flags > flags_max)
            || !are_certain && self.may_wait(data, rows)
        {
            return Err(Obstacle::Uncommon);
        }
        self.shared.begin(
            &self.settings.source,
            origins,
            origin,
            tsn,
            last.lsn,
            last.timestamp,
        );
        self.orders.clear();
        let mut total_order = 0;
        for (number, row) in rows.iter().enumerate() {
            let frame = &data[..row.end];
            let Some((space_id, plan)) = plan_of(&self.plans, frame, row)? else {
                continue;
            };
            let key_begin = outbox.bytes.len();
            let key;
            let value_begin;
            let has_image = plan.images.is_some();
            match (row.kind, &plan.images) {
                (_, Some(images)) => {
                    let overlay = overlay.as_deref_mut().ok_or(Obstacle::Uncommon)?;
                    value_begin = key_begin;
                    if !self
                        .work
                        .apply(plan, images, frame, row, overlay, &mut outbox.bytes)?
                    {
                        continue;
                    }
                    key = None;
                }
                (INSERT | REPLACE, None) => {
                    let body = content(frame, row.body, TUPLE).ok_or(Obstacle::Uncommon)?;
                    // Write the row first, which finds the positions of the key's fields; the key is written after the event.
                    value_begin = key_begin;
                    outbox.bytes.extend_from_slice(if row.kind == INSERT {
                        OPEN_CREATE
                    } else {
                        OPEN_UPDATE
                    });
                    if plan.push_row(&mut outbox.bytes, frame, body, &mut self.places)? != row.end {
                        return Err(Obstacle::Uncommon);
                    }
                    key = None;
                }
                (DELETE, None) => {
                    let body = content(frame, row.body, KEY).ok_or(Obstacle::Uncommon)?;
                    if plan.push_key(&mut outbox.bytes, frame, body)? != row.end {
                        return Err(Obstacle::Uncommon);
                    }
                    value_begin = outbox.bytes.len();
                    key = Some((key_begin, value_begin));
                    outbox.bytes.extend_from_slice(OPEN_DELETE);
                }
                (UPDATE, None) => {
                    let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
                    let (Some(of), Some(operations)) = (body.key, body.tuple) else {
                        return Err(Obstacle::Uncommon);
                    };
                    plan.push_key(&mut outbox.bytes, frame, of.0)?;
                    value_begin = outbox.bytes.len();
                    key = Some((key_begin, value_begin));
                    outbox.bytes.extend_from_slice(OPEN_PATCH);
                    push_patch(&mut outbox.bytes, plan, frame, operations.0, body.base)?;
                }
                (UPSERT, None) if plan.handles_upserts => {
                    let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
                    let (Some(tuple), Some(operations)) = (body.tuple, body.operations) else {
                        return Err(Obstacle::Uncommon);
                    };
                    value_begin = key_begin;
                    outbox.bytes.extend_from_slice(OPEN_PATCH);
                    push_patch(&mut outbox.bytes, plan, frame, operations.0, body.base)?;
                    outbox.bytes.extend_from_slice(THEN_UPSERT);
                    plan.push_row(&mut outbox.bytes, frame, tuple.0, &mut self.places)?;
                    key = None;
                }
                _ => return Err(Obstacle::Uncommon),
            }
            outbox.seq += 1;
            total_order += 1;
            let order = match self.orders.iter_mut().find(|(other, _)| *other == space_id) {
                Some(found) => {
                    found.1 += 1;
                    found.1
                }
                None => {
                    self.orders.push((space_id, 1));
                    1
                }
            };
            let place = Place {
                lsn: row.lsn,
                row: number as u64,
                seq: outbox.seq,
                total_order,
                order,
            };
            self.shared
                .push_rest(&mut outbox.bytes, plan, &place, suffix);
            match key {
                Some(key) => {
                    outbox.add(plan.topic, key, value_begin);
                    if row.kind == DELETE && self.settings.tombstones {
                        outbox.messages.push(Message {
                            topic: plan.topic,
                            key,
                            value: None,
                        });
                    }
                }
                None => {
                    outbox.add(plan.topic, (0, 0), value_begin);
                    let begin = outbox.bytes.len();
                    if has_image {
                        outbox.bytes.extend_from_slice(&self.work.key);
                    } else {
                        plan.push_key_of_row(&mut outbox.bytes, frame, &self.places)?;
                    }
                    let end = outbox.bytes.len();
                    if let Some(message) = outbox.messages.last_mut() {
                        message.key = (begin, end);
                    }
                    if row.kind == DELETE && self.settings.tombstones {
                        outbox.messages.push(Message {
                            topic: plan.topic,
                            key: (begin, end),
                            value: None,
                        });
                    }
                }
            }
            if outbox.byte_count > self.settings.bytes_max && number + 1 < rows.len() {
                return Err(Obstacle::Full);
            }
        }
        if self
            .settings
            .unrecorded_events_max
            .is_some_and(|most| total_order > most)
        {
            self.record(origin, tsn, last.timestamp, outbox);
        }
        outbox.timestamp = last.timestamp;
        origins.advance(origin, last.lsn);
        Ok(())
    }

    /// Return whether rows may belong to a synchronous space.
    fn may_wait(&self, data: &[u8], rows: &[Row]) -> bool {
        !self.synchronous.is_empty()
            && rows.iter().any(|row| {
                space_id_of(&data[..row.end], row.body)
                    .map_or(true, |space_id| self.synchronous.contains(&space_id))
            })
    }

    fn record(&self, origin: u64, tsn: u64, timestamp: f64, outbox: &mut Outbox) {
        let counts: Vec<(&[u8], u64)> = self
            .orders
            .iter()
            .filter_map(|(space_id, count)| {
                Some((&self.plans.get(space_id)?.as_ref()?.name[..], *count))
            })
            .collect();
        let (key, begin, end) = transaction_records(origin, tsn, &counts, timestamp);
        let key_begin = outbox.bytes.len();
        outbox.bytes.extend_from_slice(&key);
        let key = (key_begin, outbox.bytes.len());
        for value in [begin, end] {
            let value_begin = outbox.bytes.len();
            outbox.bytes.extend_from_slice(&value);
            outbox.add(self.settings.transaction_topic, key, value_begin);
        }
        outbox.has_records = true;
    }
}

/// Return a row's space and its plan; None if the row has no event.
#[inline]
pub fn plan_of<'a>(
    plans: &'a HashMap<u64, Option<Plan>>,
    frame: &[u8],
    row: &Row,
) -> Result<Option<(u64, &'a Plan)>, Obstacle> {
    if row.kind == NOP && (row.body == row.end || frame[row.body..] == [0x80]) {
        return Ok(None);
    }
    if !is_change(row.kind) {
        return Err(Obstacle::Uncommon);
    }
    let space_id = space_id_of(frame, row.body).ok_or(Obstacle::Uncommon)?;
    let Some(plan) = plans.get(&space_id).ok_or(Obstacle::Uncommon)? else {
        return if names_one_space(frame, row.body) {
            Ok(None)
        } else {
            Err(Obstacle::Uncommon)
        };
    };
    Ok(Some((space_id, plan)))
}

/// Return whether a body has the space's id only once; otherwise its last value would count.
pub fn names_one_space(frame: &[u8], body: usize) -> bool {
    let mut reader = Reader::new(frame, body);
    let Some(Value::Map(count)) = reader.value() else {
        return false;
    };
    let mut found = 0;
    for _ in 0..count {
        found += u32::from(reader.peek() == Some(SPACE_ID));
        if reader.skip().is_none() || reader.skip().is_none() {
            return false;
        }
    }
    found == 1
}

/// Return where the tuple or key begins in a body that has nothing else but the space, and index 0 before a key.
#[inline]
pub fn content(frame: &[u8], body: usize, wanted: u8) -> Option<usize> {
    let mut left = frame.get(body)? & 0x0f;
    let mut reader = Reader::new(frame, body + 2);
    reader.unsigned()?;
    left = left.checked_sub(1)?;
    if left == 2 && wanted == KEY && reader.peek()? == INDEX_ID {
        reader.at += 1;
        match reader.value()? {
            Value::Unsigned(0) => {}
            _ => return None,
        }
        left -= 1;
    }
    (left == 1 && reader.peek()? == wanted).then_some(reader.at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{scan, tests::framed, walk};
    use crate::plan::tests::users;

    fn frame(kind: u8, lsn: u8, more: &[u8], body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![
            0x84 + (more.len() / 2) as u8,
            0x00,
            kind,
            0x02,
            1,
            0x03,
            lsn,
            0x04,
            0xcb,
        ];
        bytes.extend(2.5f64.to_be_bytes());
        bytes.extend(more);
        bytes.extend(body);
        framed(&bytes)
    }

    fn path(bytes_max: usize) -> RowPath {
        let mut path = RowPath::new(Settings {
            source: b"<source>".to_vec(),
            tombstones: true,
            unrecorded_events_max: Some(1),
            transaction_topic: 1,
            bytes_max,
        });
        path.plans.insert(512, Some(users()));
        path.plans.insert(513, None);
        path
    }

    fn run(path: &mut RowPath, frames: &[Vec<u8>], at: usize) -> (usize, Outbox, Origins) {
        let data = frames.concat();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        let (mut origins, mut outbox) = (Origins::new(vec![(2, 9), (1, 3)]), Outbox::default());
        let at = path.run(
            &data,
            &rows,
            at,
            b"<suffix>",
            &mut origins,
            &mut outbox,
            &mut None,
            None,
        );
        (at, outbox, origins)
    }

    fn text(outbox: &Outbox, (begin, end): (usize, usize)) -> &str {
        std::str::from_utf8(&outbox.bytes[begin..end]).unwrap()
    }

    const ROW: &[u8] = b"\x82\x10\xcd\x02\x00\x21\x91\x07";
    const GONE: &[u8] = b"\x82\x10\xcd\x02\x00\x20\x91\x07";
    const UNWANTED: &[u8] = b"\x82\x10\xcd\x02\x01\x21\x91\x07";
    const UNKNOWN: &[u8] = b"\x82\x10\xcd\x02\x02\x21\x91\x07";

    #[test]
    fn single_rows_are_transactions() {
        let frames = [
            frame(2, 5, &[], ROW),
            frame(5, 6, &[], GONE),
            frame(3, 7, &[], UNWANTED),
            frame(12, 8, &[], b"\x80"),
        ];
        let (at, outbox, origins) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!(
            (at, outbox.row_count, outbox.seq, origins.lsn(1)),
            (4, 4, 2, 8)
        );
        assert_eq!(outbox.messages.len(), 3);
        assert_eq!(text(&outbox, outbox.messages[0].key), "{\"id\":7}");
        assert_eq!(
            text(&outbox, outbox.messages[0].value.unwrap()),
            concat!(
                r#"{"op":"c","before":null,"after":{"id":7}<source>"ts_ms":2500,"ts_us":2500000,"ts_ns":2500000000,"#,
                r#""snapshot":"false","db":"","sequence":"[\"3\",\"5<table>1,"lsn":5,"tsn":5,"row":0,"seq":1<schema>"#,
                r#"{"1":5,"2":9}},"transaction":{"id":"1:5","total_order":1,"data_collection_order":1<suffix>"#
            )
        );
        assert!(outbox.messages[2].value.is_none());
    }

    #[test]
    fn a_transaction_is_handled_whole_or_not_at_all() {
        let frames = [
            frame(2, 5, &[], ROW),
            frame(2, 6, &[8, 0], ROW),
            frame(2, 7, &[8, 1, 9, 1], UNKNOWN),
            frame(2, 8, &[], ROW),
        ];
        let (at, outbox, origins) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!(
            (
                at,
                outbox.messages.len(),
                outbox.seq,
                outbox.row_count,
                origins.lsn(1)
            ),
            (1, 1, 1, 1, 5)
        );
        let (at, outbox, _) = run(&mut path(1 << 20), &frames, 3);
        assert_eq!((at, outbox.messages.len()), (4, 1));
    }

    #[test]
    fn longer_transactions_have_records() {
        let frames = [frame(2, 6, &[8, 0], ROW), frame(3, 7, &[8, 1, 9, 1], ROW)];
        let (at, outbox, _) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!(
            (at, outbox.messages.len(), outbox.has_records),
            (2, 4, true)
        );
        assert_eq!(text(&outbox, outbox.messages[3].key), "{\"id\":\"1:6\"}");
        assert_eq!(
            text(&outbox, outbox.messages[3].value.unwrap()),
            r#"{"status":"END","id":"1:6","event_count":2,"data_collections":[{"data_collection":"users","event_count":2}],"ts_ms":2500}"#
        );
    }

    #[test]
    fn a_full_batch_ends_before_a_transaction() {
        let frames = [
            frame(2, 5, &[], ROW),
            frame(2, 6, &[8, 0], ROW),
            frame(2, 7, &[8, 1, 9, 1], ROW),
        ];
        let (at, outbox, _) = run(&mut path(400), &frames, 0);
        assert_eq!((at, outbox.messages.len(), outbox.is_full), (1, 1, true));
        let (at, outbox, _) = run(&mut path(10), &frames, 0);
        assert_eq!((at, outbox.messages.len()), (1, 1));
        let (at, outbox, _) = run(&mut path(10), &frames, 1);
        assert_eq!((at, outbox.messages.len(), outbox.bytes.len()), (1, 0, 0));
    }

    #[test]
    fn what_is_uncommon_is_handed_back() {
        for uncommon in [
            frame(4, 5, &[], ROW),                                         // an UPDATE
            frame(40, 5, &[], b"\x80"),                                    // a confirmation
            frame(2, 5, &[9, 3], ROW),                                     // a synchronous one
            frame(2, 3, &[], ROW), // one that was received before
            frame(2, 5, &[], b"\x82\x21\x91\x07\x10\xcd\x02\x00"), // a body in another order
            frame(2, 5, &[], b"\x83\x10\xcd\x02\x00\x21\x91\x07\x10\x00"), // a space twice
            frame(2, 5, &[], b"\x82\x10\xcd\x02\x00\x21\xa1a"), // no tuple
            frame(2, 5, &[], b"\x82\x10\xcd\x02\x01\x10\xcd\x02\x00"), // one space, then another
            frame(5, 5, &[], b"\x83\x10\xcd\x02\x00\x11\x01\x20\x91\x07"), // by another index
        ] {
            let (at, outbox, _) = run(&mut path(1 << 20), &[uncommon], 0);
            assert_eq!((at, outbox.messages.len(), outbox.bytes.len()), (0, 0, 0));
        }
    }
}
