//! Conversion of a snapshot's rows to events, in spaces that had no rows before; as cdc.stream.snapshots.snapshot, for common rows.
//!
//! Each row is handled separately, because a snapshot's rows don't depend on each other. A server sends keys in order, so a key
//! greater than all previous ones is new. If keys aren't in order (a HASH index), the pending changes and the store are checked.

use std::collections::HashMap;

use crate::batch::BatchBuilder;
use crate::codec::{space_id_of, Row};
use crate::constants::{INSERT, TUPLE};
use crate::layout::Reader;
use crate::overlay::{Images, FETCH_ROWS};
use crate::pending::{Found, Pending};
use crate::row_encoder::Plan;
use crate::row_path::{content, names_one_space, plan_of, RowPath};

const PREFIX_BYTES: usize = 4;

/// Result of `skip_stored`: the next row, the store's next row, the number of rows that were skipped, and the last one's key. If
/// the snapshot lacks the store's next rows, `lacking` is the key of the last one of these.
pub struct Skipped {
    pub at: usize,
    pub index: usize,
    pub count: u64,
    pub last: Vec<u8>,
    pub lacking: Option<Vec<u8>>,
}

fn key_of(plan: &Plan, frame: &[u8], row: &Row, key: &mut Vec<u8>) -> bool {
    key.clear();
    let Some(images) = &plan.images else {
        return false;
    };
    content(frame, row.body, TUPLE)
        .is_some_and(|body| images.keys.of_tuple(&frame[body..], key).is_some())
}

impl RowPath {
    /// Handle rows from `at` on, until one must be handed back or the batch is full; return the index of the next row.
    pub fn run_snapshot(
        &mut self,
        data: &[u8],
        rows: &[Row],
        mut at: usize,
        batch: &mut BatchBuilder,
        images: &mut Option<Images>,
    ) -> usize {
        let mut fetched_until = at;
        while at < rows.len() && batch.byte_count <= self.settings.bytes_max {
            if let Some(images) = images.as_mut().filter(|_| at == fetched_until) {
                fetched_until = rows.len().min(at + FETCH_ROWS);
                if !self.prefetch(data, &rows[at..fetched_until], images) {
                    break;
                }
            }
            let mark = batch.mark();
            if self
                .push_snapshot_row(data, &rows[at], batch, images)
                .is_none()
            {
                batch.back_to(mark);
                break;
            }
            at += 1;
        }
        at
    }

    /// Make the key of a row with images, and return where its tuple begins; None if the row has no event. An error: the row is
    /// uncommon.
    fn key_and_body(&self, data: &[u8], row: &Row, key: &mut Vec<u8>) -> Result<Option<usize>, ()> {
        let frame = &data[..row.end];
        let Some((_, plan)) = plan_of(&self.plans, frame, row).map_err(|_| ())? else {
            return Ok(None);
        };
        if row.kind != INSERT || !key_of(plan, frame, row, key) {
            return Err(());
        }
        content(frame, row.body, TUPLE).map(Some).ok_or(())
    }

    /// Skip rows from `at` on that the store has, and return how far that went.
    ///
    /// The rows must come in the order of their keys, after the key `last`, and be of the same space. `stored` returns the store's
    /// rows in that order.
    pub fn skip_stored<'a>(
        &mut self,
        data: &[u8],
        rows: &[Row],
        mut at: usize,
        last: &[u8],
        mut index: usize,
        stored: impl Fn(usize) -> Option<(&'a [u8], &'a [u8])>,
    ) -> Skipped {
        let mut key = std::mem::take(&mut self.snapshot.key);
        let mut last = last.to_vec();
        let (mut count, mut lacking) = (0, None);
        while stored(index).is_some_and(|(found, _)| found <= &last[..]) {
            index += 1;
        }
        while let Some(row) = rows.get(at) {
            let body = match self.key_and_body(data, row, &mut key) {
                Ok(Some(body)) => body,
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Err(()) => break,
            };
            if key[..PREFIX_BYTES] != last[..PREFIX_BYTES] || key <= last {
                break;
            }
            let begin = index;
            while stored(index).is_some_and(|(found, _)| found < &key[..]) {
                index += 1;
            }
            if index > begin {
                lacking = stored(index - 1).map(|(found, _)| found.to_vec());
                break;
            }
            // The frame may have more behind the tuple: then the row is uncommon.
            if stored(index) != Some((&key[..], &data[body..row.end])) {
                break;
            }
            index += 1;
            at += 1;
            count += 1;
            last.clone_from(&key);
        }
        self.snapshot.key = key;
        Skipped {
            at,
            index,
            count,
            last,
            lacking,
        }
    }

    /// Record that the Python path has handled these rows.
    pub fn mark_handled(&mut self, data: &[u8], rows: &[Row]) {
        for row in rows {
            let frame = &data[..row.end];
            let plan = match plan_of(&self.plans, frame, row) {
                Ok(Some((_, plan))) => Some(plan),
                Ok(None) => continue,
                Err(_) => None,
            };
            let mut key = std::mem::take(&mut self.snapshot.key);
            let is_known = plan.is_some_and(|plan| key_of(plan, frame, row, &mut key));
            self.snapshot.key = key;
            let space_id = space_id_of(frame, row.body);
            match space_id.filter(|_| names_one_space(frame, row.body)) {
                Some(space_id) if is_known => self.snapshot.remember(space_id),
                Some(space_id) => {
                    self.snapshot.last_keys.insert(space_id, None);
                }
                None => self.snapshot.mark_unread(),
            }
        }
    }

    /// Read the store for rows whose keys aren't greater than the previous ones; return false if the store can't be read.
    fn prefetch(&mut self, data: &[u8], rows: &[Row], images: &mut Images) -> bool {
        images.make_room();
        let mut wanted = Vec::new();
        let mut last: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut key = Vec::new();
        for row in rows {
            let frame = &data[..row.end];
            let Ok(Some((space_id, plan))) = plan_of(&self.plans, frame, row) else {
                continue;
            };
            if !key_of(plan, frame, row, &mut key) {
                continue;
            }
            let is_next = last.get(&space_id).map_or(true, |before| key > *before);
            if is_next && self.snapshot.is_after(space_id, &key) {
                last.entry(space_id).or_default().clone_from(&key);
            } else if images.pending.current(&key) == Found::Unknown {
                wanted.push(key.clone());
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted.is_empty() || (images.fetch)(images.pending, &wanted)
    }

    /// Return whether there was no row under the current key before.
    fn is_new(&self, space_id: u64, pending: &Pending) -> bool {
        let is_new = self.snapshot.is_next(space_id)
            || (!self.snapshot.is_comparing
                && pending.current(&self.snapshot.key) == Found::Nothing);
        is_new && self.snapshot.is_before_bound() && !pending.doubtful.contains(&self.snapshot.key)
    }

    fn push_snapshot_row(
        &mut self,
        data: &[u8],
        row: &Row,
        batch: &mut BatchBuilder,
        images: &mut Option<Images>,
    ) -> Option<()> {
        let frame = &data[..row.end];
        if row.kind != INSERT {
            return None;
        }
        let Some((space_id, plan)) = plan_of(&self.plans, frame, row).ok()? else {
            return Some(());
        };
        let body = content(frame, row.body, TUPLE)?;
        let mut key = std::mem::take(&mut self.snapshot.key);
        let has_key = key_of(plan, frame, row, &mut key);
        self.snapshot.key = key;
        if plan.images.is_some() && !(has_key && self.is_new(space_id, images.as_ref()?.pending)) {
            return None;
        }
        let pieces = self.snapshot.pieces.get_mut(&space_id)?;
        if pieces.before.is_empty() && pieces.after.is_empty() {
            // Nothing is published of this space's rows, which only become images.
            let mut reader = Reader::new(frame, body);
            reader.skip()?;
            if !has_key || reader.at != row.end {
                return None;
            }
            pieces.count += 1;
            let pending = &mut images.as_mut()?.pending;
            pending.put(&self.snapshot.key, Some(&frame[body..]));
            self.snapshot.remember(space_id);
            return Some(());
        }
        let begin = batch.bytes.len();
        batch.bytes.extend_from_slice(&plan.openings.snapshot);
        if plan
            .push_row(&mut batch.bytes, frame, body, &mut self.places)
            .ok()?
            != row.end
        {
            return None;
        }
        batch.bytes.extend_from_slice(&pieces.before);
        batch.seq += 1;
        self.settings.push_number(&mut batch.bytes, batch.seq);
        batch.bytes.extend_from_slice(&pieces.after);
        batch.add(plan.topic, (0, 0), begin);
        let key_begin = batch.bytes.len();
        plan.push_key_of_row(&mut batch.bytes, frame, &self.places)
            .ok()?;
        batch.set_last_key(key_begin);
        pieces.count += 1;
        if let (Some(images), true) = (images, has_key) {
            images.pending.put(&self.snapshot.key, Some(&frame[body..]));
            self.snapshot.remember(space_id);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{scan, tests::framed, walk};
    use crate::keys::{tests::parts, KeyCodec};
    use crate::row_encoder::{tests::users, ImagePlan};
    use crate::row_path::Settings;
    use crate::snapshot_progress::Pieces;

    fn path() -> RowPath {
        let mut path = RowPath::new(Settings {
            source: Vec::new(),
            is_avro: false,
            is_lean: false,
            tombstones: true,
            unrecorded_events_max: None,
            transaction_topic: 1,
            bytes_max: 1 << 20,
        });
        let mut plan = users();
        plan.images = Some(ImagePlan {
            keys: KeyCodec::new(512, &parts(&["unsigned"])).unwrap(),
            format: Default::default(),
            is_vinyl: false,
            fitting: None,
        });
        path.plans.insert(512, Some(plan));
        path.snapshot.pieces.insert(
            512,
            Pieces {
                before: b"<".to_vec(),
                after: b">".to_vec(),
                count: 0,
            },
        );
        path
    }

    fn run_rows(
        path: &mut RowPath,
        pending: &mut Pending,
        ids: &[u8],
        stored: &[u8],
    ) -> (usize, String) {
        let data: Vec<u8> = ids
            .iter()
            .flat_map(|id| {
                framed(
                    &[
                        &b"\x82\x00\x02\x03\x00\x82\x10\xcd\x02\x00\x21\x91"[..],
                        &[*id],
                    ]
                    .concat(),
                )
            })
            .collect();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        let mut batch = BatchBuilder::default();
        let mut fetch = |pending: &mut Pending, keys: &[Vec<u8>]| {
            for key in keys {
                pending.fetched(key, stored.contains(&key[11]).then_some(&b"\x91\x00"[..]));
            }
            true
        };
        let at = path.run_snapshot(
            &data,
            &rows,
            0,
            &mut batch,
            &mut Some(Images {
                pending,
                fetch: &mut fetch,
            }),
        );
        let texts: Vec<&[u8]> = batch
            .messages
            .iter()
            .map(|message| &batch.bytes[message.value.unwrap().0..message.value.unwrap().1])
            .collect();
        (at, String::from_utf8(texts.concat()).unwrap())
    }

    #[test]
    fn rows_in_any_order_are_published_once() {
        let (mut path, mut pending) = (path(), Pending::new());
        let (at, text) = run_rows(&mut path, &mut pending, &[1, 2], &[]);
        assert_eq!(at, 2);
        assert_eq!(
            text,
            concat!(
                r#"{"op":"r","before":null,"after":{"id":1}<1>"#,
                r#"{"op":"r","before":null,"after":{"id":2}<2>"#
            )
        );
        assert_eq!(
            run_rows(&mut path, &mut pending, &[5, 3, 9, 3], &[]).0,
            3,
            "it is pending"
        );
        assert_eq!(
            run_rows(&mut path, &mut pending, &[4, 7], &[7]).0,
            1,
            "it is in the store"
        );
        assert_eq!(path.snapshot.pieces[&512].count, 6);
        assert_eq!(pending.change_count(), 6);
    }
}
