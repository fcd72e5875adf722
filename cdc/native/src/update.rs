//! UPDATE and UPSERT on raw tuples, as far as nearly all requests need it; the specification is cdc.tuples.update.
//!
//! A few operations `=`, `+` and `-` of integers, on different fields that exist, by number or name. None for all others, and for
//! what the server would have refused: the transaction is handed back, and the Python way carries it out.

use crate::layout;

const OPERATIONS_MAX: usize = 15;

/// Appends the tuple after the operations.
pub fn update(
    tuple: &[u8],
    operations: &[u8],
    base: u64,
    names: &[Vec<u8>],
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut changes: [(usize, u8, usize, usize); OPERATIONS_MAX] = [(0, 0, 0, 0); OPERATIONS_MAX];
    let count = usize::from(operations.first()?.checked_sub(0x90)?);
    if count == 0 || count > OPERATIONS_MAX {
        return None;
    }
    let mut position = 1;
    for place in 0..count {
        if operations.get(position..position + 2)? != b"\x93\xa1" {
            return None;
        }
        let code = *operations.get(position + 2)?;
        let number = *operations.get(position + 3)?;
        let mut begin = position + 4;
        let field = match number {
            0..=0x7f => usize::try_from(u64::from(number).checked_sub(base)?).ok()?,
            0xa0..=0xbf => {
                begin += usize::from(number - 0xa0);
                let name = operations.get(position + 4..begin)?;
                names.iter().position(|known| known == name)?
            }
            _ => return None,
        };
        if changes[..place].iter().any(|change| change.0 == field) {
            return None;
        }
        position = layout::end_of(operations, begin)?;
        changes[place] = (field, code, begin, position);
    }
    if position != operations.len() {
        return None;
    }
    let changes = &mut changes[..count];
    changes.sort_unstable_by_key(|change| change.0);
    let (fields, mut position) = layout::header(tuple, 0)?;
    // A header that isn't the shortest would become it.
    let is_shortest = matches!(tuple[0], 0x90..=0x9f) || (tuple[0] == 0xdc && fields > 15);
    if changes[count - 1].0 as u64 >= fields || !is_shortest {
        return None;
    }
    let (mut done, mut field) = (0, 0);
    for (changed, code, first, behind) in changes.iter() {
        while field < *changed {
            position = layout::end_of(tuple, position)?;
            field += 1;
        }
        let begin = position;
        position = layout::end_of(tuple, position)?;
        field += 1;
        out.extend_from_slice(&tuple[done..begin]);
        match code {
            b'=' => out.extend_from_slice(&operations[*first..*behind]),
            b'+' => layout::push_integer(
                out,
                layout::integer(tuple, begin)? + layout::integer(operations, *first)?,
            )?,
            b'-' => layout::push_integer(
                out,
                layout::integer(tuple, begin)? - layout::integer(operations, *first)?,
            )?,
            _ => return None,
        }
        done = position;
    }
    out.extend_from_slice(&tuple[done..]);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(tuple: &[u8], operations: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        update(
            tuple,
            operations,
            1,
            &[b"id".to_vec(), b"name".to_vec()],
            &mut out,
        )
        .map(|()| out)
    }

    #[test]
    fn common_operations() {
        assert_eq!(
            updated(b"\x92\x01\x05", b"\x91\x93\xa1+\x02\x7f").unwrap(),
            b"\x92\x01\xcc\x84"
        );
        assert_eq!(
            updated(b"\x92\x01\x05", b"\x91\x93\xa1-\x02\x06").unwrap(),
            b"\x92\x01\xff"
        );
        assert_eq!(
            updated(
                b"\x92\x01\x05",
                b"\x92\x93\xa1=\xa4name\xa1x\x93\xa1+\x01\x01"
            )
            .unwrap(),
            b"\x92\x02\xa1x"
        );
    }

    #[test]
    fn what_is_rare_is_handed_back() {
        for operations in [
            &b"\x91\x93\xa1+\x03\x01"[..],
            b"\x91\x93\xa1!\x02\x01",
            b"\x91\x93\xa1+\x00\x01",
            b"\x91\x93\xa1+\xff\x01",
            b"\x91\x93\xa1+\xa1x\x01",
            b"\x92\x93\xa1+\x01\x01\x93\xa1+\x01\x01",
            b"\x91\x93\xa1+\x02\xcb\0\0\0\0\0\0\0\0",
            b"\x91\x93\xa1+\x02\x01\x00",
            b"\x90",
            b"",
        ] {
            assert_eq!(updated(b"\x92\x01\x05", operations), None, "{operations:?}");
        }
        assert_eq!(
            updated(
                b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
                b"\x91\x93\xa1+\x01\x01"
            ),
            None
        );
        assert_eq!(updated(b"\xdc\x00\x01\x05", b"\x91\x93\xa1+\x01\x01"), None);
    }
}
