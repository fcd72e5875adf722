//! Rows of spaces with images: the event's content, and the change of the images; as cdc.images.image_events, for common rows.
//! Rare or wrong rows are refused, and their transaction is returned to the Python path.

use crate::codec::Row;
use crate::constants::{
    DELETE, INDEX_BASE, INDEX_ID, INSERT, KEY, OPS, REPLACE, SPACE_ID, TUPLE, UPDATE, UPSERT,
};
use crate::json_values::Refused;
use crate::layout;
use crate::pending::{Found, Pending};
use crate::row_encoder::{ImagePlan, Plan};
use crate::update::update;

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
        pending: &Pending,
    ) -> Option<&'a [u8]> {
        if row.kind == INSERT {
            return None;
        }
        let body = Body::read(frame, row)?;
        self.store_key.clear();
        push_store_key(images, frame, row.kind, &body, &mut self.store_key)?;
        (pending.current(&self.store_key) == Found::Unknown).then_some(&self.store_key)
    }

    /// Append a row's opening and content, and change the images; return whether the row has an event.
    pub fn apply(
        &mut self,
        plan: &Plan,
        images: &ImagePlan,
        frame: &[u8],
        row: &Row,
        pending: &mut Pending,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refused> {
        let body = Body::read(frame, row).ok_or(Refused)?;
        self.store_key.clear();
        push_store_key(images, frame, row.kind, &body, &mut self.store_key).ok_or(Refused)?;
        if !pending.doubtful.is_empty() && pending.doubtful.contains(&self.store_key) {
            return Err(Refused);
        }
        let before = before(row.kind, pending, &self.store_key)?;
        if let (true, Some(before)) = (images.is_vinyl, before) {
            check_notation(images, frame, row.kind, &body, before)?;
        }
        self.key.clear();
        let after = match (row.kind, before) {
            (DELETE, None) => return Ok(false),
            (UPDATE, None) => {
                slice(frame, body.tuple)?;
                return Ok(false);
            }
            (DELETE, _) => None,
            (INSERT | REPLACE, _) | (UPSERT, None) => Some(slice(frame, body.tuple)?),
            (kind, Some(before)) => {
                if !self.update(images, frame, kind, &body, before)? {
                    return Ok(false);
                }
                Some(&self.after[..])
            }
            _ => return Err(Refused),
        };
        let openings = &plan.openings;
        match before {
            None => out.extend_from_slice(&openings.create),
            Some(before) => {
                let (opening, then) = match after {
                    Some(_) => (&openings.update_image, &openings.after),
                    None => (&openings.delete_image, &openings.no_after),
                };
                out.extend_from_slice(opening);
                push_row(plan, out, before, &mut self.places)?;
                out.extend_from_slice(then);
            }
        }
        if let Some(after) = after {
            push_row(plan, out, after, &mut self.places)?;
        }
        // The places are those of the row that was written last.
        let shown = after.or(before).ok_or(Refused)?;
        plan.push_key_of_row(&mut self.key, shown, &self.places)?;
        pending.put(&self.store_key, after);
        Ok(true)
    }

    /// Compute the tuple after an UPDATE or UPSERT of an existing row; return false if the server ignores the request.
    #[inline]
    fn update(
        &mut self,
        images: &ImagePlan,
        frame: &[u8],
        kind: u64,
        body: &Body,
        before: &[u8],
    ) -> Result<bool, Refused> {
        let operations = if kind == UPDATE {
            body.tuple
        } else {
            body.operations
        };
        let operations = slice(frame, operations)?;
        let (after, format) = (&mut self.after, &images.format);
        after.clear();
        update(before, operations, body.base, format, after).ok_or(Refused)?;
        // The server refuses an UPDATE that would change its key, and ignores such an UPSERT.
        self.key.clear();
        images.keys.of_tuple(after, &mut self.key).ok_or(Refused)?;
        if self.key != self.store_key {
            return Err(Refused);
        }
        self.key.clear();
        match &images.fitting {
            Some(fitting) if kind == UPSERT => fitting.fits(after).ok_or(Refused),
            _ => Ok(true),
        }
    }
}

/// Append the key under which a request's row is stored.
#[inline]
fn push_store_key(
    images: &ImagePlan,
    frame: &[u8],
    kind: u64,
    body: &Body,
    out: &mut Vec<u8>,
) -> Option<()> {
    match kind {
        INSERT | REPLACE | UPSERT => images.keys.of_tuple(slice(frame, body.tuple).ok()?, out),
        UPDATE | DELETE => images.keys.of_key(slice(frame, body.key).ok()?, out),
        _ => None,
    }
}

/// Return a key's tuple before a request; None if it has none.
#[inline]
fn before<'a>(kind: u64, pending: &'a Pending, key: &[u8]) -> Result<Option<&'a [u8]>, Refused> {
    if kind == INSERT {
        // The server refuses an INSERT of an existing key, so the store needn't be read, which would be a read for each row.
        return match pending.get(key) {
            Some(Some(_)) => Err(Refused),
            _ => Ok(None),
        };
    }
    match pending.current(key) {
        Found::Tuple(tuple) => Ok(Some(tuple)),
        Found::Nothing => Ok(None),
        Found::Unknown => Err(Refused),
    }
}

/// Refuse a request of vinyl that writes its key differently than the row does: it may have missed the row.
fn check_notation(
    images: &ImagePlan,
    frame: &[u8],
    kind: u64,
    body: &Body,
    before: &[u8],
) -> Result<(), Refused> {
    let keys = &images.keys;
    let is_alike = match kind {
        UPDATE | DELETE => keys.is_written_alike(slice(frame, body.key)?, before),
        UPSERT => keys.are_written_alike(slice(frame, body.tuple)?, before),
        _ => Some(true),
    };
    is_alike
        .filter(|is_alike| *is_alike)
        .map(|_| ())
        .ok_or(Refused)
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
    use crate::codec::{scan, tests::framed, walk};
    use crate::keys::{tests::parts, KeyCodec};
    use crate::row_encoder::tests::users;
    use crate::update::Format;

    fn images() -> ImagePlan {
        ImagePlan {
            keys: KeyCodec::new(512, &parts(&["unsigned"])).unwrap(),
            format: Format {
                names: vec![b"id".to_vec(), b"name".to_vec()],
                widths: Vec::new(),
            },
            is_vinyl: false,
            fitting: None,
        }
    }

    fn apply(
        pending: &mut Pending,
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
            .unknown_key(&images(), &frame, &rows[0], pending)
            .map(<[u8]>::to_vec)
        {
            pending.fetched(&key, None);
        }
        let is_event = work.apply(&users(), &images(), &frame, &rows[0], pending, &mut out)?;
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
        let mut pending = Pending::new();
        let seven = r#"{"id":7}"#;
        assert_eq!(
            apply(&mut pending, 2, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1a"),
            event(
                seven,
                r#"{"op":"c","before":null,"after":{"id":7,"name":"a"}"#
            )
        );
        assert_eq!(
            apply(&mut pending, 3, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1b"),
            event(
                seven,
                r#"{"op":"u","before":{"id":7,"name":"a"},"after":{"id":7,"name":"b"}"#
            )
        );
        assert_eq!(
            apply(
                &mut pending,
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
                &mut pending,
                9,
                b"\x84\x10\xcd\x02\x00\x15\x01\x21\x92\x07\xa1x\x28\x91\x93\xa1=\x02\xa1d"
            ),
            event(
                seven,
                r#"{"op":"u","before":{"id":7,"name":"c"},"after":{"id":7,"name":"d"}"#
            )
        );
        assert_eq!(
            apply(&mut pending, 5, b"\x83\x10\xcd\x02\x00\x11\x00\x20\x91\x07"),
            event(
                seven,
                r#"{"op":"d","before":{"id":7,"name":"d"},"after":null"#
            )
        );
        assert_eq!(
            apply(&mut pending, 5, b"\x82\x10\xcd\x02\x00\x20\x91\x07"),
            Ok(None)
        );
        assert_eq!(pending.change_count(), 5);
    }

    #[test]
    fn what_is_rare_or_wrong_is_refused() {
        let mut pending = Pending::new();
        apply(&mut pending, 2, b"\x82\x10\xcd\x02\x00\x21\x92\x07\xa1a").unwrap();
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
                apply(&mut pending, kind, body),
                Err(Refused),
                "{kind} {body:?}"
            );
        }
        pending
            .doubtful
            .insert(b"\0\0\x02\0\0\0\0\0\0\0\0\x07".to_vec());
        assert_eq!(
            apply(&mut pending, 5, b"\x82\x10\xcd\x02\x00\x20\x91\x07"),
            Err(Refused)
        );
        assert_eq!(pending.change_count(), 1);
    }
}
