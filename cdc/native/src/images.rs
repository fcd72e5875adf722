//! Rows of spaces with images: the event's content, and the change of the images; as cdc.images.image_events, for common rows.
//! Rare or wrong rows are refused, and their transaction is returned to the Python path.

use crate::envelope::{OPEN_CREATE, OPEN_DELETE_IMAGE, OPEN_UPDATE_IMAGE};
use crate::frames::Row;
use crate::json::Refused;
use crate::layout;
use crate::overlay::{Found, Overlay};
use crate::plan::{ImagePlan, Plan};
use crate::update::update;

const INSERT: u64 = 2;
const REPLACE: u64 = 3;
const UPDATE: u64 = 4;
const DELETE: u64 = 5;
const UPSERT: u64 = 9;

const SPACE_ID: u8 = 0x10;
const INDEX_ID: u8 = 0x11;
const INDEX_BASE: u8 = 0x15;
const KEY: u8 = 0x20;
const TUPLE: u8 = 0x21;
const OPS: u8 = 0x28;

const AFTER: &[u8] = b",\"after\":";
const NO_AFTER: &[u8] = b",\"after\":null";

/// The relevant contents of a request's body: begin and end of its values.
#[derive(Default)]
pub struct Body {
    pub base: u64,
    pub key: Option<(usize, usize)>,
    pub tuple: Option<(usize, usize)>,
    pub operations: Option<(usize, usize)>,
}

impl Body {
    /// Read a body with unique one-byte keys and nothing after the last value: all server versions read such a body alike.
    pub fn read(frame: &[u8], row: &Row) -> Option<Body> {
        let first = *frame.get(row.body)?;
        if first & 0xf0 != 0x80 {
            return None;
        }
        let (mut body, mut seen, mut position) = (Body::default(), 0u64, row.body + 1);
        for _ in 0..first & 0x0f {
            let key = *frame.get(position)?;
            let begin = position + 1;
            position = layout::end_of(frame, begin)?;
            if key > OPS || seen & 1 << key != 0 {
                return None;
            }
            seen |= 1 << key;
            // A server refuses a request in which one of these isn't an array, and Python reports it.
            if matches!(key, KEY | TUPLE | OPS) && !layout::is_array(*frame.get(begin)?) {
                return None;
            }
            match key {
                SPACE_ID => {}
                INDEX_ID => (layout::integer(frame, begin)? == 0).then_some(())?,
                INDEX_BASE => body.base = u64::try_from(layout::integer(frame, begin)?).ok()?,
                KEY => body.key = Some((begin, position)),
                TUPLE => body.tuple = Some((begin, position)),
                OPS => body.operations = Some((begin, position)),
                _ => return None,
            }
        }
        (position == row.end).then_some(body)
    }
}

fn slice(frame: &[u8], span: Option<(usize, usize)>) -> Result<&[u8], Refused> {
    let (begin, end) = span.ok_or(Refused)?;
    frame.get(begin..end).ok_or(Refused)
}

/// Buffers for one row, reused for the next.
#[derive(Default)]
pub struct Work {
    store_key: Vec<u8>,
    after: Vec<u8>,
    places: Vec<usize>,
    /// The key of the event, as JSON.
    pub key: Vec<u8>,
}

impl Work {
    /// Return a row's key if its event needs the stored tuple, and that tuple is still unknown.
    pub fn unknown_key<'a>(
        &'a mut self,
        images: &ImagePlan,
        frame: &[u8],
        row: &Row,
        overlay: &Overlay,
    ) -> Option<&'a [u8]> {
        if row.kind == INSERT {
            return None;
        }
        let body = Body::read(frame, row)?;
        self.store_key.clear();
        match row.kind {
            REPLACE | UPSERT => images
                .keys
                .of_tuple(slice(frame, body.tuple).ok()?, &mut self.store_key)?,
            UPDATE | DELETE => images
                .keys
                .of_key(slice(frame, body.key).ok()?, &mut self.store_key)?,
            _ => return None,
        }
        (overlay.current(&self.store_key) == Found::Unknown).then_some(&self.store_key)
    }

    /// Append a row's opening and content, and change the images; return whether the row has an event.
    pub fn apply(
        &mut self,
        plan: &Plan,
        images: &ImagePlan,
        frame: &[u8],
        row: &Row,
        overlay: &mut Overlay,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refused> {
        let body = Body::read(frame, row).ok_or(Refused)?;
        self.store_key.clear();
        match row.kind {
            INSERT | REPLACE | UPSERT => images
                .keys
                .of_tuple(slice(frame, body.tuple)?, &mut self.store_key),
            UPDATE | DELETE => images
                .keys
                .of_key(slice(frame, body.key)?, &mut self.store_key),
            _ => None,
        }
        .ok_or(Refused)?;
        if !overlay.doubtful.is_empty() && overlay.doubtful.contains(&self.store_key) {
            return Err(Refused);
        }
        let before = match row.kind {
            // The server refuses an INSERT of an existing key, so the store needn't be read, which would be a read for each row.
            INSERT => match overlay.pending(&self.store_key) {
                Some(Some(_)) => return Err(Refused),
                _ => None,
            },
            _ => match overlay.current(&self.store_key) {
                Found::Tuple(tuple) => Some(tuple),
                Found::Nothing => None,
                Found::Unknown => return Err(Refused),
            },
        };
        if let (true, Some(before)) = (images.is_vinyl, before) {
            let is_alike = match row.kind {
                UPDATE | DELETE => images
                    .keys
                    .is_written_alike(slice(frame, body.key)?, before),
                UPSERT => images
                    .keys
                    .are_written_alike(slice(frame, body.tuple)?, before),
                _ => Some(true),
            };
            is_alike.filter(|is_alike| *is_alike).ok_or(Refused)?;
        }
        self.key.clear();
        if row.kind == DELETE {
            let Some(before) = before else {
                return Ok(false);
            };
            out.extend_from_slice(OPEN_DELETE_IMAGE);
            push_row(plan, out, before, &mut self.places)?;
            out.extend_from_slice(NO_AFTER);
            plan.push_key_of_row(&mut self.key, before, &self.places)?;
            overlay.put(&self.store_key, None);
            return Ok(true);
        }
        let after = match (row.kind, before) {
            (INSERT | REPLACE, _) | (UPSERT, None) => slice(frame, body.tuple)?,
            (UPDATE, None) => {
                slice(frame, body.tuple)?;
                return Ok(false);
            }
            (kind, Some(before)) => {
                let operations = if kind == UPDATE {
                    body.tuple
                } else {
                    body.operations
                };
                self.after.clear();
                update(
                    before,
                    slice(frame, operations)?,
                    body.base,
                    &images.format,
                    &mut self.after,
                )
                .ok_or(Refused)?;
                // The server refuses an UPDATE that would change its key, and ignores such an UPSERT.
                images
                    .keys
                    .of_tuple(&self.after, &mut self.key)
                    .ok_or(Refused)?;
                if self.key != self.store_key {
                    return Err(Refused);
                }
                self.key.clear();
                if let (UPSERT, Some(fitting)) = (kind, &images.fitting) {
                    if !fitting.fits(&self.after).ok_or(Refused)? {
                        return Ok(false);
                    }
                }
                &self.after
            }
            _ => return Err(Refused),
        };
        match before {
            None => out.extend_from_slice(OPEN_CREATE),
            Some(before) => {
                out.extend_from_slice(OPEN_UPDATE_IMAGE);
                push_row(plan, out, before, &mut self.places)?;
                out.extend_from_slice(AFTER);
            }
        }
        push_row(plan, out, after, &mut self.places)?;
        plan.push_key_of_row(&mut self.key, after, &self.places)?;
        overlay.put(&self.store_key, Some(after));
        Ok(true)
    }
}

fn push_row(
    plan: &Plan,
    out: &mut Vec<u8>,
    tuple: &[u8],
    places: &mut Vec<usize>,
) -> Result<(), Refused> {
    if plan.push_row(out, tuple, 0, places)? != tuple.len() {
        return Err(Refused);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{scan, tests::framed, walk};
    use crate::keys::{tests::parts, KeyPlan};
    use crate::plan::tests::users;
    use crate::update::Format;

    fn images() -> ImagePlan {
        ImagePlan {
            keys: KeyPlan::new(512, &parts(&["unsigned"])).unwrap(),
            format: Format {
                names: vec![b"id".to_vec(), b"name".to_vec()],
                widths: Vec::new(),
            },
            is_vinyl: false,
            fitting: None,
        }
    }

    fn apply(
        overlay: &mut Overlay,
        kind: u8,
        body: &[u8],
    ) -> Result<Option<(String, String)>, Refused> {
        let mut frame = vec![0x84, 0x00, kind, 0x02, 1, 0x03, 5, 0x04, 0xcb];
        frame.extend(2.5f64.to_be_bytes());
        frame.extend(body);
        let frame = framed(&frame);
        let rows = scan(&frame, &walk(&frame, 1 << 20).unwrap().0).unwrap();
        let (mut work, mut out) = (Work::default(), Vec::new());
        if let Some(key) = work
            .unknown_key(&images(), &frame, &rows[0], overlay)
            .map(<[u8]>::to_vec)
        {
            overlay.fetched(&key, None);
        }
        let is_event = work.apply(&users(), &images(), &frame, &rows[0], overlay, &mut out)?;
        Ok(is_event.then(|| {
            (
                String::from_utf8(work.key).unwrap(),
                String::from_utf8(out).unwrap(),
            )
        }))
    }

    fn event(key: &str, content: &str) -> Result<Option<(String, String)>, Refused> {
        Ok(Some((key.to_owned(), content.to_owned())))
    }

    #[test]
    fn a_rows_life() {
        let mut overlay = Overlay::new();
        let seven = r#"{"id":7}"#;
        assert_eq!(
            apply(&mut overlay, 2, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1a"),
            event(
                seven,
                r#"{"op":"c","before":null,"after":{"id":7,"name":"a"}"#
            )
        );
        assert_eq!(
            apply(&mut overlay, 3, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1b"),
            event(
                seven,
                r#"{"op":"u","before":{"id":7,"name":"a"},"after":{"id":7,"name":"b"}"#
            )
        );
        assert_eq!(
            apply(
                &mut overlay,
                4,
                b"\x84\x10\xcd\x02\x00\x15\x01\x20\x91\x07\x21\x91\x93\xa1=\x02\xa1c"
            ),
            event(
                seven,
                r#"{"op":"u","before":{"id":7,"name":"b"},"after":{"id":7,"name":"c"}"#
            )
        );
        assert_eq!(
            apply(
                &mut overlay,
                9,
                b"\x84\x10\xcd\x02\x00\x15\x01\x21\x92\x07\xa1x\x28\x91\x93\xa1=\x02\xa1d"
            ),
            event(
                seven,
                r#"{"op":"u","before":{"id":7,"name":"c"},"after":{"id":7,"name":"d"}"#
            )
        );
        assert_eq!(
            apply(&mut overlay, 5, b"\x83\x10\xcd\x02\x00\x11\x00\x20\x91\x07"),
            event(
                seven,
                r#"{"op":"d","before":{"id":7,"name":"d"},"after":null"#
            )
        );
        assert_eq!(
            apply(&mut overlay, 5, b"\x82\x10\xcd\x02\x00\x20\x91\x07"),
            Ok(None)
        );
        assert_eq!(overlay.change_count(), 5);
    }

    #[test]
    fn what_is_rare_or_wrong_is_refused() {
        let mut overlay = Overlay::new();
        apply(&mut overlay, 2, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1a").unwrap();
        for (kind, body) in [
            (2, &b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1a"[..]), // an existing key
            (3, b"\x82\x10\xcd\x02\x00\x21\x91\xa1a"),          // a key of another type
            (3, b"\x83\x10\xcd\x02\x00\x21\x91\x08\x21\x91\x08"), // two tuples
            (
                4,
                b"\x83\x10\xcd\x02\x00\x20\x91\x07\x21\x91\x93\xa1!\x02\xa1c",
            ), // a rare operation
            (
                9,
                b"\x83\x10\xcd\x02\x00\x21\x92\x07\xa1x\x28\x91\x93\xa1+\x00\x01",
            ), // an UPSERT that would change the key
            (5, b"\x83\x10\xcd\x02\x00\x11\x01\x20\x91\x07"),   // by another index
            (14, b"\x82\x10\xcd\x02\x00\x20\x91\x07"),
            (3, b"\x83\x10\xcd\x02\x00\x20\x07\x21\x91\x08"), // a key that isn't an array
            (4, b"\x82\x10\xcd\x02\x00\x20\x91\x08"),         // no operations
        ] {
            assert_eq!(
                apply(&mut overlay, kind, body),
                Err(Refused),
                "{kind} {body:?}"
            );
        }
        overlay
            .doubtful
            .insert(b"\0\0\x02\0\0\0\0\0\0\0\0\x07".to_vec());
        assert_eq!(
            apply(&mut overlay, 5, b"\x82\x10\xcd\x02\x00\x20\x91\x07"),
            Err(Refused)
        );
        assert_eq!(overlay.change_count(), 1);
    }
}
