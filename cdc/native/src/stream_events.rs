//! Conversion of the stream's complete transactions to events, in order; as cdc.stream.stream_events, for common rows. This is
//! the hot path.
//!
//! A transaction is handled completely or not at all. If it contains anything uncommon (rows of the schema, the cluster's
//! internal rows, rows of a space without a plan, values that json.rs refuses), it is handed back unchanged to the Python path. The
//! same holds for anything that must be reported. The Python path handles the transaction, or reports why it can't.

use crate::envelope::{
    transaction_records, Origins, Place, OPEN_CREATE, OPEN_DELETE, OPEN_PATCH, OPEN_UPDATE,
    THEN_UPSERT,
};
use crate::frames::{
    extent, space_id_of, whole_until, Extent, Row, COMMIT, CONFIRM, DELETE, INSERT, REPLACE,
    UPDATE, UPSERT, WAIT_ACK, WAIT_SYNC,
};
use crate::images::{Body, Work};
use crate::limbo::Arrivals;
use crate::outbox::Outbox;
use crate::overlay::Overlay;
use crate::patch::push_patch;
use crate::plan::Plan;
use crate::row_path::{
    content, plan_of, Images, Obstacle, RowPath, FETCH_BYTES, FETCH_ROWS, KEY, TUPLE,
};

impl RowPath {
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
            let begin = outbox.bytes.len();
            let overlay = overlay.as_deref_mut();
            outbox.upsert_count += u64::from(plan.counts_upserts && row.kind == UPSERT);
            let Some(key) = push_content(
                &mut self.work,
                &mut self.places,
                plan,
                frame,
                row,
                overlay,
                &mut outbox.bytes,
            )?
            else {
                continue;
            };
            outbox.seq += 1;
            total_order += 1;
            let place = Place {
                lsn: row.lsn,
                row: number as u64,
                seq: outbox.seq,
                total_order,
                order: next_order(&mut self.orders, space_id),
            };
            self.shared
                .push_rest(&mut outbox.bytes, plan, &place, suffix);
            let key = match key {
                EventKey::Before(end) => {
                    outbox.add(plan.topic, (begin, end), end);
                    (begin, end)
                }
                after => {
                    outbox.add(plan.topic, (0, 0), begin);
                    let begin = outbox.bytes.len();
                    match after {
                        EventKey::OfImage => outbox.bytes.extend_from_slice(&self.work.key),
                        _ => plan.push_key_of_row(&mut outbox.bytes, frame, &self.places)?,
                    }
                    let key = (begin, outbox.bytes.len());
                    if let Some(message) = outbox.messages.last_mut() {
                        message.key = key;
                    }
                    key
                }
            };
            if row.kind == DELETE && self.settings.tombstones {
                outbox.add_tombstone(plan.topic, key);
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
    overlay: Option<&mut Overlay>,
    out: &mut Vec<u8>,
) -> Result<Option<EventKey>, Obstacle> {
    if let Some(images) = &plan.images {
        let overlay = overlay.ok_or(Obstacle::Uncommon)?;
        let has_event = work.apply(plan, images, frame, row, overlay, out)?;
        return Ok(has_event.then_some(EventKey::OfImage));
    }
    match row.kind {
        INSERT | REPLACE => {
            let body = content(frame, row.body, TUPLE).ok_or(Obstacle::Uncommon)?;
            out.extend_from_slice(if row.kind == INSERT {
                OPEN_CREATE
            } else {
                OPEN_UPDATE
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
            out.extend_from_slice(OPEN_DELETE);
            Ok(Some(EventKey::Before(key_end)))
        }
        UPDATE => {
            let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
            let (Some(key), Some(operations)) = (body.key, body.tuple) else {
                return Err(Obstacle::Uncommon);
            };
            plan.push_key(out, frame, key.0)?;
            let key_end = out.len();
            out.extend_from_slice(OPEN_PATCH);
            push_patch(out, plan, frame, operations.0, body.base)?;
            Ok(Some(EventKey::Before(key_end)))
        }
        UPSERT => {
            let body = Body::read(frame, row).ok_or(Obstacle::Uncommon)?;
            let (Some(tuple), Some(operations)) = (body.tuple, body.operations) else {
                return Err(Obstacle::Uncommon);
            };
            out.extend_from_slice(OPEN_PATCH);
            push_patch(out, plan, frame, operations.0, body.base)?;
            out.extend_from_slice(THEN_UPSERT);
            plan.push_row(out, frame, tuple.0, places)?;
            Ok(Some(EventKey::OfRow))
        }
        _ => Err(Obstacle::Uncommon),
    }
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
    use crate::frames::{scan, tests::framed, walk};
    use crate::plan::tests::users;
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
