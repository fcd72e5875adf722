//! UPDATE and UPSERT on raw tuples, for the operations of nearly all requests; the specification is cdc.tuples.update.
//!
//! This module handles a few operations on different top-level fields, by number or name: `=` (also after the last field), `+`
//! and `-` of all kinds of numbers, bitwise operations, and splices. It returns None for all other operations (fields that move,
//! paths, two operations on one field, for which server versions differ), and for those that the server would have refused. The
//! Python path then applies them, or reports the error.

use crate::arithmetic::{self, Number, Width};
use crate::layout;

const OPERATIONS_MAX: usize = 15;

/// Names of the format's fields, and the widths of their numbers.
#[derive(Debug, Default)]
pub struct Format {
    pub names: Vec<Vec<u8>>,
    pub widths: Vec<Width>,
}

/// One operation: its field, its code, and the begin and end of its operands.
#[derive(Clone, Copy, Default)]
struct Operation {
    field: usize,
    code: u8,
    first: usize,
    end: usize,
}

fn field_of(
    data: &[u8],
    position: usize,
    base: u64,
    fields: u64,
    format: &Format,
) -> Option<(usize, usize)> {
    let number = *data.get(position)?;
    let behind = position + 1;
    match number {
        0x00..=0x7f => Some((
            usize::try_from(u64::from(number).checked_sub(base)?).ok()?,
            behind,
        )),
        0xe0..=0xff => Some((
            usize::try_from(i128::from(fields) + i128::from(number as i8)).ok()?,
            behind,
        )),
        0xa0..=0xbf => {
            let end = behind + usize::from(number - 0xa0);
            let name = data.get(behind..end)?;
            Some((format.names.iter().position(|known| known == name)?, end))
        }
        _ => None,
    }
}

/// Append the tuple after the operations; `base` is the request's INDEX_BASE.
pub fn update(
    tuple: &[u8],
    operations: &[u8],
    base: u64,
    format: &Format,
    out: &mut Vec<u8>,
) -> Option<()> {
    let (fields, mut position) = layout::header(tuple, 0)?;
    // The server replaces a header that isn't the shortest; leave that to the Python path.
    if !(matches!(tuple[0], 0x90..=0x9f) || (tuple[0] == 0xdc && fields > 15)) {
        return None;
    }
    let mut changes = [Operation::default(); OPERATIONS_MAX];
    let (count, has_negative) = read_operations(operations, base, fields, format, &mut changes)?;
    let changes = &mut changes[..count];
    changes.sort_unstable_by_key(|change| change.field);
    let last = changes[count - 1];
    // A new field changes the meaning of field numbers that count from the end.
    let appends = last.field as u64 == fields && last.code == b'=' && !has_negative;
    if last.field as u64 >= fields && !appends {
        return None;
    }
    let mut done = 0;
    if appends {
        push_array_header(out, fields + 1);
        done = position;
    }
    let mut field = 0;
    for change in changes.iter() {
        if appends && change.field as u64 == fields {
            break;
        }
        while field < change.field {
            position = layout::end_of(tuple, position)?;
            field += 1;
        }
        let begin = position;
        position = layout::end_of(tuple, position)?;
        field += 1;
        out.extend_from_slice(&tuple[done..begin]);
        push_result(out, tuple, begin, operations, change, base, format)?;
        done = position;
    }
    out.extend_from_slice(&tuple[done..]);
    if appends {
        out.extend_from_slice(&operations[last.first..last.end]);
    }
    Some(())
}

/// Read the operations; return their number, and whether the field number of one counts from the end.
#[inline]
fn read_operations(
    operations: &[u8],
    base: u64,
    fields: u64,
    format: &Format,
    changes: &mut [Operation; OPERATIONS_MAX],
) -> Option<(usize, bool)> {
    let count = usize::from(operations.first()?.checked_sub(0x90)?);
    if count == 0 || count > OPERATIONS_MAX {
        return None;
    }
    let mut at = 1;
    let mut has_negative = false;
    for place in 0..count {
        let code = *operations.get(at + 2)?;
        let opening: &[u8] = if code == b':' {
            b"\x95\xa1"
        } else {
            b"\x93\xa1"
        };
        if operations.get(at..at + 2)? != opening {
            return None;
        }
        has_negative |= *operations.get(at + 3)? >= 0xe0;
        let (field, first) = field_of(operations, at + 3, base, fields, format)?;
        if changes[..place].iter().any(|change| change.field == field) {
            return None;
        }
        at = layout::end_of(operations, first)?;
        if code == b':' {
            at = layout::end_of(operations, layout::end_of(operations, at)?)?;
        }
        changes[place] = Operation {
            field,
            code,
            first,
            end: at,
        };
    }
    (at == operations.len()).then_some((count, has_negative))
}

fn push_array_header(out: &mut Vec<u8>, count: u64) {
    match count {
        0..=15 => out.push(0x90 | count as u8),
        16..=0xffff => {
            out.push(0xdc);
            out.extend((count as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend((count as u32).to_be_bytes());
        }
    }
}

fn is_unsigned(first: u8) -> bool {
    matches!(first, 0x00..=0x7f | 0xcc..=0xcf)
}

/// Append the result of an operation on the value at `begin`.
fn push_result(
    out: &mut Vec<u8>,
    tuple: &[u8],
    begin: usize,
    operations: &[u8],
    change: &Operation,
    base: u64,
    format: &Format,
) -> Option<()> {
    match change.code {
        b'=' => out.extend_from_slice(&operations[change.first..change.end]),
        b'+' | b'-' => {
            let (left, right) = (
                Number::read(tuple, begin)?,
                Number::read(operations, change.first)?,
            );
            let width = format
                .widths
                .get(change.field)
                .copied()
                .unwrap_or(Width::Any);
            arithmetic::push_sum(out, left, right, change.code == b'-', width)?;
        }
        b'&' | b'|' | b'^' => {
            if !is_unsigned(tuple[begin]) || !is_unsigned(operations[change.first]) {
                return None;
            }
            let (left, right) = (
                layout::integer(tuple, begin)?,
                layout::integer(operations, change.first)?,
            );
            let bits = match change.code {
                b'&' => left & right,
                b'|' => left | right,
                _ => left ^ right,
            };
            layout::push_integer(out, bits)?;
        }
        b':' => {
            let second = layout::end_of(operations, change.first)?;
            let third = layout::end_of(operations, second)?;
            let (offset, cut) = (int32(operations, change.first)?, int32(operations, second)?);
            push_splice(
                out,
                layout::string(tuple, begin)?,
                offset,
                cut,
                layout::string(operations, third)?,
                base,
            )?;
        }
        _ => return None,
    }
    Some(())
}

fn int32(data: &[u8], position: usize) -> Option<i64> {
    let number = layout::integer(data, position)?;
    // The least number can't be negated.
    i32::try_from(number)
        .ok()
        .filter(|number| *number != i32::MIN)
        .map(i64::from)
}

fn push_splice(
    out: &mut Vec<u8>,
    old: &[u8],
    offset: i64,
    cut: i64,
    paste: &[u8],
    base: u64,
) -> Option<()> {
    let length = i64::try_from(old.len()).ok()?;
    let offset = if offset < 0 {
        offset + length + 1
    } else {
        offset - i64::try_from(base).ok()?
    };
    if offset < 0 {
        return None;
    }
    let offset = offset.min(length);
    let behind = length - offset;
    let cut = if cut >= 0 {
        cut.min(behind)
    } else {
        (cut + behind).max(0)
    };
    let (offset, end) = (offset as usize, (offset + cut) as usize);
    let size = offset + paste.len() + old.len() - end;
    match size {
        0..=31 => out.push(0xa0 | size as u8),
        32..=0xff => out.extend([0xd9, size as u8]),
        0x100..=0xffff => {
            out.push(0xda);
            out.extend((size as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdb);
            out.extend(u32::try_from(size).ok()?.to_be_bytes());
        }
    }
    out.extend_from_slice(&old[..offset]);
    out.extend_from_slice(paste);
    out.extend_from_slice(&old[end..]);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(tuple: &[u8], operations: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let format = Format {
            names: vec![b"id".to_vec(), b"name".to_vec()],
            widths: vec![Width::Any, Width::Any],
        };
        update(tuple, operations, 1, &format, &mut out).map(|()| out)
    }

    #[test]
    fn common_operations() {
        for (tuple, operations, result) in [
            (
                &b"\x92\x01\x05"[..],
                &b"\x91\x93\xa1+\x02\x7f"[..],
                &b"\x92\x01\xcc\x84"[..],
            ),
            (b"\x92\x01\x05", b"\x91\x93\xa1-\x02\x06", b"\x92\x01\xff"),
            (
                b"\x92\x01\x05",
                b"\x92\x93\xa1=\xa4name\xa1x\x93\xa1+\x01\x01",
                b"\x92\x02\xa1x",
            ),
            (b"\x92\x01\x05", b"\x91\x93\xa1=\xff\xc0", b"\x92\x01\xc0"),
            (
                b"\x92\x01\x05",
                b"\x91\x93\xa1=\x03\xa1x",
                b"\x93\x01\x05\xa1x",
            ),
            (b"\x92\x01\x05", b"\x91\x93\xa1|\x02\x0a", b"\x92\x01\x0f"),
            (
                b"\x92\x01\xa5hello",
                b"\x91\x95\xa1:\x02\x02\x03\xa2ip",
                b"\x92\x01\xa4hipo",
            ),
            (
                b"\x92\x01\xa5hello",
                b"\x91\x95\xa1:\x02\xff\x00\xa1!",
                b"\x92\x01\xa6hello!",
            ),
            (
                b"\x92\x01\xca\x3f\x80\0\0",
                b"\x91\x93\xa1+\x02\x01",
                b"\x92\x01\xca\x40\0\0\0",
            ),
        ] {
            assert_eq!(
                updated(tuple, operations).as_deref(),
                Some(result),
                "{operations:?}"
            );
        }
    }

    #[test]
    fn what_is_rare_is_handed_back() {
        for operations in [
            &b"\x91\x93\xa1+\x03\x01"[..],
            b"\x91\x93\xa1!\x02\x01",
            b"\x91\x93\xa1=\x04\x01",
            b"\x92\x93\xa1=\x03\x01\x93\xa1=\xff\x01",
            b"\x91\x93\xa1+\x00\x01",
            b"\x91\x93\xa1+\xfd\x01",
            b"\x91\x93\xa1+\xa1x\x01",
            b"\x92\x93\xa1+\x01\x01\x93\xa1+\x01\x01",
            b"\x91\x93\xa1+\x02\xa1x",
            b"\x91\x93\xa1&\x02\xff",
            b"\x91\x95\xa1:\x02\x01\x01\xa1x",
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
