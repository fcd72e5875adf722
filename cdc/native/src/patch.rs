//! UPDATE and UPSERT in a space without images: common operations as JSON, as cdc.events.row_encoder's `patch` writes them.
//!
//! Paths and malformed operations are refused, and all operations on spaces with rules for columns.

use crate::json_values::{push_any, push_signed, Refused, Written};
use crate::layout::{Reader, Value};
use crate::row_encoder::Plan;

/// Append the operations at `at` as a JSON array; return their end. `base` is the request's INDEX_BASE.
pub fn push_patch(
    out: &mut Vec<u8>,
    plan: &Plan,
    data: &[u8],
    at: usize,
    base: u64,
) -> Result<usize, Refused> {
    if plan.columns.is_some() {
        return Err(Refused);
    }
    let mut reader = Reader::new(data, at);
    let Some(Value::Array(count)) = reader.value() else {
        return Err(Refused);
    };
    out.push(b'[');
    for place in 0..count {
        if place > 0 {
            out.push(b',');
        }
        push_operation(out, plan, &mut reader, base)?;
    }
    out.push(b']');
    Ok(reader.at)
}

fn push_operation(out: &mut Vec<u8>, plan: &Plan, reader: &mut Reader, base: u64) -> Written {
    let (Some(Value::Array(length)), Some(Value::Text(&[code]))) = (reader.value(), reader.value())
    else {
        return Err(Refused);
    };
    let argument: &[u8] = match (code, length) {
        (b'=' | b'+' | b'-' | b'&' | b'|' | b'^' | b'!', 3) => b",\"value\":",
        (b'#', 3) => b",\"count\":",
        (b':', 5) => b",\"position\":",
        _ => return Err(Refused),
    };
    out.extend_from_slice(b"{\"op\":\"");
    out.push(code);
    out.extend_from_slice(b"\",\"field\":");
    match reader.value() {
        Some(Value::Unsigned(number)) => {
            plan.push_field_name(out, number.checked_sub(base).ok_or(Refused)?)
        }
        Some(Value::Signed(number)) if number < 0 => push_signed(out, number),
        Some(Value::Text(name)) => {
            plan.push_field_name(out, plan.place_of(name).ok_or(Refused)?);
        }
        _ => return Err(Refused),
    }
    out.extend_from_slice(argument);
    if code == b':' {
        let position = integer(reader)?;
        // A position counts like a field's number, from the base or negative from the end.
        let position = if position < 0 {
            position
        } else {
            position - i128::from(base) + 1
        };
        push_integer(out, position);
        out.extend_from_slice(b",\"length\":");
        push_integer(out, integer(reader)?);
        out.extend_from_slice(b",\"value\":");
    }
    push_any(out, reader, 0)?;
    out.push(b'}');
    Ok(())
}

fn integer(reader: &mut Reader) -> Result<i128, Refused> {
    match reader.value() {
        Some(Value::Unsigned(number)) => Ok(i128::from(number)),
        Some(Value::Signed(number)) => Ok(i128::from(number)),
        _ => Err(Refused),
    }
}

fn push_integer(out: &mut Vec<u8>, number: i128) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row_encoder::tests::users;

    fn patch(operations: &[u8], base: u64) -> Result<String, Refused> {
        let mut out = Vec::new();
        let end = push_patch(&mut out, &users(), operations, 0, base)?;
        assert_eq!(end, operations.len());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn operations_say_what_they_do() {
        assert_eq!(
            patch(b"\x92\x93\xa1=\xa4name\xa1x\x93\xa1+\x04\x01", 1).unwrap(),
            r#"[{"op":"=","field":"name","value":"x"},{"op":"+","field":"field_4","value":1}]"#
        );
        assert_eq!(
            patch(b"\x92\x93\xa1=\x01\xc0\x93\xa1#\xff\x01", 0).unwrap(),
            r##"[{"op":"=","field":"name","value":null},{"op":"#","field":-1,"count":1}]"##
        );
        assert_eq!(patch(b"\x90", 0).unwrap(), "[]");
        assert_eq!(
            patch(b"\x91\x95\xa1:\x02\x01\x02\xa1x", 1).unwrap(),
            r#"[{"op":":","field":"name","position":1,"length":2,"value":"x"}]"#
        );
        assert_eq!(
            patch(b"\x91\x95\xa1:\x02\xff\xe0\xa1x", 0).unwrap(),
            r#"[{"op":":","field":"more","position":-1,"length":-32,"value":"x"}]"#
        );
    }

    #[test]
    fn what_is_rare_is_left_to_python() {
        for operations in [
            &b"\x91\x93\xa1=\x00\x01"[..],
            b"\x91\x93\xa1=\xa3n.a\x01",
            b"\x91\x93\xa1?\x01\x01",
            b"\x91\x93\xa2==\x01\x01",
            b"\x91\x92\xa1=\x01",
            b"\x91\x95\xa1:\x02\xa0\x01\xa0",
            b"\x91\x93\xa1:\x02\x01",
            b"\x91\x93\xa1=\xd0\x01\x01",
            b"\x91\x93\xa1=\xc3\x01",
            b"\x91\x93\xa1=\x01",
            b"\xa0",
        ] {
            assert_eq!(patch(operations, 1), Err(Refused), "{operations:?}");
        }
    }
}
