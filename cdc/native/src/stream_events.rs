//! Conversion of the stream's complete transactions to events, in order; as cdc.stream.stream_events, for common rows. This is
//! the hot path.
//!
//! A transaction is handled completely or not at all. If it contains anything uncommon (rows of the schema, the cluster's
//! internal rows, rows of a space without a plan, values that json_values.rs refuses), or anything that must be reported, it is
//! handed back unchanged to the Python path, which handles the transaction, or reports why it can't.

use crate::avro_values::push_prefixed;
use crate::batch::BatchBuilder;
use crate::codec::{extent, space_id_of, whole_until, Extent, Row};
use crate::constants::{
    COMMIT, DELETE, INSERT, KEY, RAFT_CONFIRM, REPLACE, TUPLE, UPDATE, UPSERT, WAIT_ACK, WAIT_SYNC,
};
use crate::envelope::{transaction_records, Origins, Place};
use crate::image_events::{Body, Work};
use crate::limbo::Arrivals;
use crate::overlay::{Images, FETCH_BYTES, FETCH_ROWS};
use crate::patch::push_patch;
use crate::pending::Pending;
use crate::row_encoder::Plan;
use crate::row_path::{content, plan_of, Obstacle, RowPath};

/// One complete transaction.
struct Transaction<'a> {
    data: &'a [u8],
    rows: &'a [Row],
    /// The end of its events.
    suffix: &'a [u8],
    /// Whether the limbo has released it.
    is_certain: bool,
}

/// How far the store has been read for the next rows.
struct Ahead {
    /// Index after the last of those rows.
    until: usize,
    /// Whether all of their keys were read.
    has_all: bool,
}

impl Ahead {
    fn new(at: usize) -> Self {
        Ahead {
            until: at,
            has_all: true,
        }
    }

    /// Return whether a transaction that ends at this index may need a key that wasn't read.
    fn may_lack(&self, end: usize) -> bool {
        !self.has_all && end < self.until
    }
}

impl RowPath {
    /// Handle all complete transactions from row `at` on, until one must be handed back or the batch is full; return the index
    /// of the next row. If they are `certain` arrivals, the limbo has released all of them; otherwise those that may have to
    /// wait are handed back.
    #[allow(clippy::too_many_arguments)] // each value has another owner in Python
    pub fn run(
        &mut self,
        data: &[u8],
        rows: &[Row],
        mut at: usize,
        suffix: &[u8],
        origins: &mut Origins,
        batch: &mut BatchBuilder,
        images: &mut Option<Images>,
        certain: Option<&Arrivals>,
    ) -> usize {
        let mut ahead = Ahead::new(at);
        while at < rows.len() && batch.byte_count <= self.settings.bytes_max {
            if let (Some(arrivals), RAFT_CONFIRM) = (certain, rows[at].kind) {
                if !arrivals.defers(at) {
                    pass_over(&rows[at], origins, batch);
                }
                at += 1;
                continue;
            }
            let Extent::Whole(end) = extent(rows, at) else {
                break;
            };
            if let Some(images) = images.as_mut().filter(|_| end > ahead.until) {
                if self
                    .fetch_ahead(data, rows, at, &mut ahead, images)
                    .is_none()
                {
                    break;
                }
            }
            let mark = batch.mark();
            let change_count = images
                .as_ref()
                .map_or(0, |images| images.pending.change_count());
            let pending = images.as_mut().map(|images| &mut *images.pending);
            let transaction = Transaction {
                data,
                rows: &rows[at..end],
                suffix,
                is_certain: certain.is_some(),
            };
            if let Err(obstacle) = self.transaction(&transaction, origins, batch, pending) {
                if let Some(images) = images {
                    images.pending.back_to(change_count);
                }
                batch.back_to(mark);
                if ahead.may_lack(end) && matches!(obstacle, Obstacle::Uncommon) {
                    ahead.until = at; // try again with a read for this transaction alone
                    continue;
                }
                batch.is_full = matches!(obstacle, Obstacle::Full);
                break;
            }
            batch.row_count += (end - at) as u64;
            at = end;
        }
        at
    }

    /// Read the store for transactions from row `at` on; None if it can't be read.
    fn fetch_ahead(
        &mut self,
        data: &[u8],
        rows: &[Row],
        at: usize,
        ahead: &mut Ahead,
        images: &mut Images,
    ) -> Option<()> {
        let fetch_rows = if ahead.has_all { self.fetch_rows } else { 1 };
        ahead.until = whole_until(rows, at, fetch_rows);
        ahead.has_all = self.fetch(data, &rows[at..ahead.until], images)?;
        Some(())
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
                        .unknown_key(image_plan, frame, row, images.pending)
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
            images.pending.fetched_count(),
            images.pending.fetched_bytes(),
        );
        if !(images.fetch)(images.pending, &wanted) {
            return None;
        }
        let found_count = images.pending.fetched_count() - count;
        let has_all = found_count == wanted.len();
        if !has_all {
            self.fetch_rows = (found_count / 2).max(1);
        } else if (images.pending.fetched_bytes() - bytes) * 4 < FETCH_BYTES {
            self.fetch_rows = (self.fetch_rows * 2).min(FETCH_ROWS);
        }
        Some(has_all)
    }

    fn transaction(
        &mut self,
        transaction: &Transaction,
        origins: &mut Origins,
        batch: &mut BatchBuilder,
        mut pending: Option<&mut Pending>,
    ) -> Result<(), Obstacle> {
        let rows = transaction.rows;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Err(Obstacle::Uncommon);
        };
        let (origin, tsn) = first.transaction();
        if !self.is_next(transaction, origins.lsn(origin)) {
            return Err(Obstacle::Uncommon);
        }
        let (source, time) = (&self.settings.source, last.timestamp);
        if self.settings.is_lean {
            self.lean.begin(source, self.settings.is_avro, time);
        } else if self.settings.is_avro {
            self.avro
                .begin(source, origins, origin, tsn, last.lsn, time);
        } else {
            self.shared
                .begin(source, origins, origin, tsn, last.lsn, time);
        }
        self.orders.clear();
        let mut total_order = 0;
        for number in 0..rows.len() {
            let pending = pending.as_deref_mut();
            if self.push_event(transaction, number, total_order + 1, batch, pending)? {
                total_order += 1;
            }
            if batch.byte_count > self.settings.bytes_max && number + 1 < rows.len() {
                return Err(Obstacle::Full);
            }
        }
        if self
            .settings
            .unrecorded_events_max
            .is_some_and(|most| total_order > most)
        {
            self.record(origin, tsn, last.timestamp, batch);
        }
        batch.timestamp = last.timestamp;
        origins.advance(origin, last.lsn);
        Ok(())
    }

    /// Return whether a transaction's rows are sound, come after lsn `known`, and needn't wait.
    fn is_next(&self, transaction: &Transaction, known: u64) -> bool {
        let flags_max = if transaction.is_certain {
            COMMIT | WAIT_SYNC | WAIT_ACK
        } else {
            COMMIT
        };
        let is_sound = |row: &Row| row.is_sound && row.lsn > known && row.flags <= flags_max;
        transaction.rows.iter().all(is_sound)
            && (transaction.is_certain || !self.may_wait(transaction.data, transaction.rows))
    }

    /// Add the event of a transaction's row `number`, and its tombstone; return whether the row has an event.
    #[inline]
    fn push_event(
        &mut self,
        transaction: &Transaction,
        number: usize,
        total_order: u64,
        batch: &mut BatchBuilder,
        pending: Option<&mut Pending>,
    ) -> Result<bool, Obstacle> {
        let row = &transaction.rows[number];
        let frame = &transaction.data[..row.end];
        let Some((space_id, plan)) = plan_of(&self.plans, frame, row)? else {
            return Ok(false);
        };
        let begin = batch.bytes.len();
        batch.upsert_count += u64::from(plan.counts_upserts && row.kind == UPSERT);
        let (work, places) = (&mut self.work, &mut self.places);
        let Some(key) = push_content(work, places, plan, frame, row, pending, &mut batch.bytes)?
        else {
            return Ok(false);
        };
        batch.seq += 1;
        let place = Place {
            lsn: row.lsn,
            row: number as u64,
            seq: batch.seq,
            total_order,
            order: next_order(&mut self.orders, space_id),
        };
        let (out, suffix) = (&mut batch.bytes, transaction.suffix);
        if self.settings.is_lean {
            self.lean.push_rest(out, plan, &place, suffix);
        } else if self.settings.is_avro {
            self.avro.push_rest(out, plan, &place, suffix);
        } else {
            self.shared.push_rest(out, plan, &place, suffix);
        }
        let value_begin = match key {
            EventKey::Before(end) => end,
            _ => begin,
        };
        batch.add(plan.topic, (begin, value_begin), value_begin);
        if !matches!(key, EventKey::Before(_)) {
            let begin = batch.bytes.len();
            match key {
                EventKey::OfImage => batch.bytes.extend_from_slice(&self.work.key),
                _ => plan.push_key_of_row(&mut batch.bytes, frame, &self.places)?,
            }
            batch.set_last_key(begin);
        }
        if row.kind == DELETE && self.settings.tombstones {
            batch.add_tombstone(plan.topic);
        }
        Ok(true)
    }

    /// Return whether rows may belong to a synchronous space.
    fn may_wait(&self, data: &[u8], rows: &[Row]) -> bool {
        !self.synchronous.is_empty()
            && rows.iter().any(|row| {
                space_id_of(&data[..row.end], row.body)
                    .map_or(true, |space_id| self.synchronous.contains(&space_id))
            })
    }

    fn record(&self, origin: u64, tsn: u64, timestamp: f64, batch: &mut BatchBuilder) {
        let counts: Vec<(&[u8], u64)> = self
            .orders
            .iter()
            .filter_map(|(space_id, count)| {
                Some((&self.plans.get(space_id)?.as_ref()?.name[..], *count))
            })
            .collect();
        let (key, begin, end) = transaction_records(origin, tsn, &counts, timestamp);
        let key_begin = batch.bytes.len();
        batch.bytes.extend_from_slice(&key);
        let key = (key_begin, batch.bytes.len());
        for value in [begin, end] {
            let value_begin = batch.bytes.len();
            batch.bytes.extend_from_slice(&value);
            batch.add(self.settings.transaction_topic, key, value_begin);
        }
        batch.has_records = true;
    }
}

/// Move the position past a CONFIRM.
fn pass_over(confirm: &Row, origins: &mut Origins, batch: &mut BatchBuilder) {
    batch.timestamp = confirm.timestamp;
    batch.row_count += 1;
    origins.advance(confirm.origin, confirm.lsn);
}

/// Where the key of an event is, which is written before the event or after it.
enum EventKey {
    /// It has been written, and ends here, where the event begins.
    Before(usize),
    /// `Work` has it.
    OfImage,
    /// The positions of its fields in the row have been found.
    OfRow,
}

/// Write the opening and the content of a row's event; None if the row has no event.
#[inline]
fn push_content(
    work: &mut Work,
    places: &mut Vec<usize>,
    plan: &Plan,
    frame: &[u8],
    row: &Row,
    pending: Option<&mut Pending>,
    out: &mut Vec<u8>,
) -> Result<Option<EventKey>, Obstacle> {
    if let Some(images) = &plan.images {
        let pending = pending.ok_or(Obstacle::Uncommon)?;
        let has_event = work.apply(plan, images, frame, row, pending, out)?;
        return Ok(has_event.then_some(EventKey::OfImage));
    }
    match row.kind {
        INSERT | REPLACE => {
            let body = content(frame, row.body, TUPLE).ok_or(Obstacle::Uncommon)?;
            out.extend_from_slice(if row.kind == INSERT {
                &plan.openings.create
            } else {
                &plan.openings.update
            });
            if plan.push_row(out, frame, body, places)? != row.end {
                return Err(Obstacle::Uncommon);
            }
            Ok(Some(EventKey::OfRow))
        }
        DELETE => {
            let body = content(frame, row.body, KEY).ok_or(Obstacle::Uncommon)?;
            if plan.push_key(out, frame, body)? != row.end {
                return Err(Obstacle::Uncommon);
            }
            let key_end = out.len();
            match &plan.avro_rows {
                Some(rows) if rows.has_rows_of_keys => {
                    out.extend_from_slice(&plan.openings.delete_image);
                    plan.push_row_of_key(out, rows, frame, body)?;
                    out.extend_from_slice(&plan.openings.no_after);
                }
                _ => out.extend_from_slice(&plan.openings.delete),
            }
            Ok(Some(EventKey::Before(key_end)))
        }
        UPDATE => push_update(plan, frame, row, out).map(Some),
        UPSERT => push_upsert(places, plan, frame, row, out).map(Some),
        _ => Err(Obstacle::Uncommon),
    }
}

fn push_update(
    plan: &Plan,
    frame: &[u8],
    row: &Row,
    out: &mut Vec<u8>,
) -> Result<EventKey, Obstacle> {
    let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
    let (Some(key), Some(operations)) = (body.key, body.tuple) else {
        return Err(Obstacle::Uncommon);
    };
    plan.push_key(out, frame, key.0)?;
    let key_end = out.len();
    push_operations(plan, frame, operations.0, body.base, out)?;
    out.extend_from_slice(&plan.openings.after_patch);
    Ok(EventKey::Before(key_end))
}

fn push_upsert(
    places: &mut Vec<usize>,
    plan: &Plan,
    frame: &[u8],
    row: &Row,
    out: &mut Vec<u8>,
) -> Result<EventKey, Obstacle> {
    let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
    let (Some(tuple), Some(operations)) = (body.tuple, body.operations) else {
        return Err(Obstacle::Uncommon);
    };
    push_operations(plan, frame, operations.0, body.base, out)?;
    out.extend_from_slice(&plan.openings.upsert);
    plan.push_row(out, frame, tuple.0, places)?;
    out.extend_from_slice(&plan.openings.after_upsert);
    Ok(EventKey::OfRow)
}

/// Append the opening of an event with a patch, and the operations at `at`.
fn push_operations(
    plan: &Plan,
    frame: &[u8],
    at: usize,
    base: u64,
    out: &mut Vec<u8>,
) -> Result<(), Obstacle> {
    out.extend_from_slice(&plan.openings.patch);
    if plan.avro_rows.is_some() {
        push_prefixed(out, |out| {
            push_patch(out, plan, frame, at, base).map(|_| ())
        })?;
    } else {
        push_patch(out, plan, frame, at, base)?;
    }
    Ok(())
}

/// Return the number of a transaction's next event among those of its space.
#[inline]
fn next_order(orders: &mut Vec<(u64, u64)>, space_id: u64) -> u64 {
    match orders.iter_mut().find(|(other, _)| *other == space_id) {
        Some(found) => {
            found.1 += 1;
            found.1
        }
        None => {
            orders.push((space_id, 1));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{scan, tests::framed, walk};
    use crate::row_encoder::tests::users;
    use crate::row_path::Settings;

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
            is_avro: false,
            is_lean: false,
            tombstones: true,
            unrecorded_events_max: Some(1),
            transaction_topic: 1,
            bytes_max,
        });
        path.plans.insert(512, Some(users()));
        path.plans.insert(513, None);
        path
    }

    fn run(path: &mut RowPath, frames: &[Vec<u8>], at: usize) -> (usize, BatchBuilder, Origins) {
        let data = frames.concat();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        let (mut origins, mut batch) =
            (Origins::new(vec![(2, 9), (1, 3)]), BatchBuilder::default());
        let at = path.run(
            &data,
            &rows,
            at,
            b"<suffix>",
            &mut origins,
            &mut batch,
            &mut None,
            None,
        );
        (at, batch, origins)
    }

    fn text(batch: &BatchBuilder, (begin, end): (usize, usize)) -> &str {
        std::str::from_utf8(&batch.bytes[begin..end]).unwrap()
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
        let (at, batch, origins) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!(
            (at, batch.row_count, batch.seq, origins.lsn(1)),
            (4, 4, 2, 8)
        );
        assert_eq!(batch.messages.len(), 3);
        assert_eq!(text(&batch, batch.messages[0].key), "{\"id\":7}");
        assert_eq!(
            text(&batch, batch.messages[0].value.unwrap()),
            concat!(
                r#"{"op":"c","before":null,"after":{"id":7}<source>"ts_ms":2500,"ts_us":2500000,"ts_ns":2500000000,"#,
                r#""snapshot":"false","db":"","sequence":"[\"3\",\"5<table>1,"lsn":5,"tsn":5,"row":0,"seq":1<schema>"#,
                r#"{"1":5,"2":9}},"transaction":{"id":"1:5","total_order":1,"data_collection_order":1<suffix>"#
            )
        );
        assert!(batch.messages[2].value.is_none());
    }

    #[test]
    fn a_transaction_is_handled_whole_or_not_at_all() {
        let frames = [
            frame(2, 5, &[], ROW),
            frame(2, 6, &[8, 0], ROW),
            frame(2, 7, &[8, 1, 9, 1], UNKNOWN),
            frame(2, 8, &[], ROW),
        ];
        let (at, batch, origins) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!(
            (
                at,
                batch.messages.len(),
                batch.seq,
                batch.row_count,
                origins.lsn(1)
            ),
            (1, 1, 1, 1, 5)
        );
        let (at, batch, _) = run(&mut path(1 << 20), &frames, 3);
        assert_eq!((at, batch.messages.len()), (4, 1));
    }

    #[test]
    fn longer_transactions_have_records() {
        let frames = [frame(2, 6, &[8, 0], ROW), frame(3, 7, &[8, 1, 9, 1], ROW)];
        let (at, batch, _) = run(&mut path(1 << 20), &frames, 0);
        assert_eq!((at, batch.messages.len(), batch.has_records), (2, 4, true));
        assert_eq!(text(&batch, batch.messages[3].key), "{\"id\":\"1:6\"}");
        assert_eq!(
            text(&batch, batch.messages[3].value.unwrap()),
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
        let (at, batch, _) = run(&mut path(400), &frames, 0);
        assert_eq!((at, batch.messages.len(), batch.is_full), (1, 1, true));
        let (at, batch, _) = run(&mut path(10), &frames, 0);
        assert_eq!((at, batch.messages.len()), (1, 1));
        let (at, batch, _) = run(&mut path(10), &frames, 1);
        assert_eq!((at, batch.messages.len(), batch.bytes.len()), (1, 0, 0));
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
            let (at, batch, _) = run(&mut path(1 << 20), &[uncommon], 0);
            assert_eq!((at, batch.messages.len(), batch.bytes.len()), (0, 0, 0));
        }
    }
}
