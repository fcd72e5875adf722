//! Values as JSON by the type table of docs/events.md, as cdc.events.json_values and msgspec write them.
//!
//! Rare values (lengths of time, errors, maps with keys that aren't texts, deep nesting, unknown extensions) are `Refused`: the
//! Python path writes them, or reports why they can't be written.

use std::collections::HashSet;

use base64::engine::general_purpose::STANDARD;
use base64::Engine;

use crate::extensions::{
    Datetime, Decimal, DIGITS_MAX, EXT_DATETIME, EXT_DECIMAL, EXT_UUID, SCALE_MAX,
};
use crate::layout::{Reader, Value};

/// Error for input that only the Python path handles.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

pub type Written = Result<(), Refused>;

const LEVELS_MAX: usize = 24;
const DAY_SECONDS: i64 = 86_400;
/// The Gregorian calendar repeats every 400 years.
const CYCLE_DAYS: i64 = 146_097;

/// Escape of each byte of a text: 0 for none, `u` for \u00xx, otherwise the letter after the backslash.
const ESCAPES: [u8; 256] = escapes();

const fn escapes() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[b'\t' as usize] = b't';
    table[b'\n' as usize] = b'n';
    table[0x0c] = b'f';
    table[b'\r' as usize] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
}

#[inline]
pub fn push_unsigned(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[inline]
pub fn push_signed(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Append a text, which must be UTF-8, as a JSON string.
#[inline]
pub fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut from = 0;
    for (at, &byte) in text.iter().enumerate() {
        let escape = ESCAPES[usize::from(byte)];
        if escape != 0 {
            out.extend_from_slice(&text[from..at]);
            out.extend_from_slice(&[b'\\', escape]);
            if escape == b'u' {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(&[
                    b'0',
                    b'0',
                    HEX[usize::from(byte >> 4)],
                    HEX[usize::from(byte & 0x0f)],
                ]);
            }
            from = at + 1;
        }
    }
    out.extend_from_slice(&text[from..]);
    out.push(b'"');
}

pub fn push_base64(out: &mut Vec<u8>, data: &[u8]) {
    out.push(b'"');
    let begin = out.len();
    out.resize(begin + data.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(data, &mut out[begin..]).unwrap_or(0);
    out.truncate(begin + written);
    out.push(b'"');
}

pub fn is_utf8(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok()
}

pub fn push_double(out: &mut Vec<u8>, number: f64) {
    if number.is_finite() {
        out.extend_from_slice(ryu::Buffer::new().format_finite(number).as_bytes());
    } else if number.is_nan() {
        out.extend_from_slice(b"\"NaN\"");
    } else if number > 0.0 {
        out.extend_from_slice(b"\"Infinity\"");
    } else {
        out.extend_from_slice(b"\"-Infinity\"");
    }
}

pub fn push_uuid(out: &mut Vec<u8>, data: &[u8]) -> Written {
    if data.len() != 16 {
        return Err(Refused);
    }
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for (place, &byte) in data.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0x0f)]]);
    }
    out.push(b'"');
    Ok(())
}

/// Append a value of a type with one notation in all places: nil, boolean, integer, text, binary or UUID.
///
/// Fields of such types rarely contain other values; the Python path's JSON encoder writes those by rules of its own.
#[inline]
pub fn push_simple(out: &mut Vec<u8>, reader: &mut Reader) -> Written {
    match reader.value().ok_or(Refused)? {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Value::Unsigned(number) => push_unsigned(out, number),
        Value::Signed(number) => push_signed(out, number),
        Value::Text(text) if is_utf8(text) => push_text(out, text),
        Value::Text(data) | Value::Binary(data) => push_base64(out, data),
        Value::Extension(EXT_UUID, data) => push_uuid(out, data)?,
        _ => return Err(Refused),
    }
    Ok(())
}

const FEW_NAMES: usize = 8;

/// Names of a map's keys, to find one that occurs twice. Most maps have few, which need no hashes.
#[derive(Default)]
struct Names<'a> {
    few: [&'a [u8]; FEW_NAMES],
    few_count: usize,
    others: HashSet<&'a [u8]>,
}

impl<'a> Names<'a> {
    /// Add a name; return false if it has been added before.
    fn insert(&mut self, name: &'a [u8]) -> bool {
        if self.few[..self.few_count].contains(&name) {
            return false;
        }
        match self.few.get_mut(self.few_count) {
            Some(free) => {
                *free = name;
                self.few_count += 1;
                true
            }
            None => self.others.insert(name),
        }
    }
}

/// Append any value of the type table, except the rare ones.
pub fn push_any(out: &mut Vec<u8>, reader: &mut Reader, level: usize) -> Written {
    if level > LEVELS_MAX {
        return Err(Refused);
    }
    let at = reader.at;
    match reader.value().ok_or(Refused)? {
        Value::Double(number) => push_double(out, number),
        Value::Extension(EXT_DECIMAL, data) => push_decimal(out, data)?,
        Value::Extension(EXT_DATETIME, data) => {
            push_datetime(out, &Datetime::read(data).ok_or(Refused)?)?
        }
        Value::Array(count) => {
            out.push(b'[');
            for place in 0..count {
                if place > 0 {
                    out.push(b',');
                }
                push_any(out, reader, level + 1)?;
            }
            out.push(b']');
        }
        Value::Map(count) => {
            out.push(b'{');
            // Of equal keys, Python keeps only one value.
            let mut seen = Names::default();
            for place in 0..count {
                if place > 0 {
                    out.push(b',');
                }
                match reader.value().ok_or(Refused)? {
                    Value::Text(key) if is_utf8(key) && seen.insert(key) => push_text(out, key),
                    _ => return Err(Refused),
                }
                out.push(b':');
                push_any(out, reader, level + 1)?;
            }
            out.push(b'}');
        }
        _ => {
            reader.at = at;
            push_simple(out, reader)?;
        }
    }
    Ok(())
}

/// Append a decimal in plain notation.
fn push_decimal(out: &mut Vec<u8>, data: &[u8]) -> Written {
    let Some(number) = Decimal::read(data) else {
        return push_long_decimal(out, data);
    };
    out.push(b'"');
    number.push(out);
    out.push(b'"');
    Ok(())
}

/// Append a decimal of any length. Its data: the scale as an integer, then packed digits, whose last nibble is the sign.
fn push_long_decimal(out: &mut Vec<u8>, data: &[u8]) -> Written {
    let mut reader = Reader::new(data, 0);
    let scale = reader
        .unsigned()
        .filter(|scale| *scale <= SCALE_MAX)
        .ok_or(Refused)? as usize;
    let packed = &data[reader.at..];
    let mut nibbles: Vec<u8> = packed
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0x0f])
        .collect();
    let sign = nibbles.pop().filter(|sign| *sign >= 10).ok_or(Refused)?;
    if nibbles.len() > DIGITS_MAX + 1 || nibbles.iter().any(|digit| *digit > 9) {
        return Err(Refused);
    }
    let first = nibbles
        .iter()
        .position(|digit| *digit != 0)
        .unwrap_or(nibbles.len());
    let digits = &nibbles[first..];
    out.push(b'"');
    if matches!(sign, 0x0b | 0x0d) {
        out.push(b'-');
    }
    let whole = digits.len().saturating_sub(scale);
    if whole == 0 {
        out.push(b'0');
    }
    out.extend(digits[..whole].iter().map(|digit| b'0' + digit));
    if scale > 0 {
        out.push(b'.');
        out.resize(out.len() + scale.saturating_sub(digits.len()), b'0');
        out.extend(digits[whole..].iter().map(|digit| b'0' + digit));
    }
    out.push(b'"');
    Ok(())
}

fn push_padded(out: &mut Vec<u8>, number: i64, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(number);
    out.resize(out.len() + width.saturating_sub(text.len()), b'0');
    out.extend_from_slice(text.as_bytes());
}

/// Append a datetime in its zone.
pub fn push_datetime(out: &mut Vec<u8>, moment: &Datetime) -> Written {
    let nanosecond = moment.nanosecond;
    let offset = i64::from(moment.offset_minutes);
    if !(0..1_000_000_000).contains(&nanosecond) {
        return Err(Refused);
    }
    let local = moment.seconds.checked_add(offset * 60).ok_or(Refused)?;
    let days = local.div_euclid(DAY_SECONDS);
    let second = local.rem_euclid(DAY_SECONDS);
    // Days since 0000-03-01, in cycles of 400 years; in a year that begins in March, the months have regular lengths.
    let shifted = days + 719_468;
    let cycle = shifted.div_euclid(CYCLE_DAYS);
    let day_of_cycle = shifted.rem_euclid(CYCLE_DAYS);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    out.push(b'"');
    if (0..=9999).contains(&year) {
        push_padded(out, year, 4);
    } else {
        out.push(if year < 0 { b'-' } else { b'+' });
        push_padded(out, year.abs(), 6);
    }
    for (separator, number) in [
        (b'-', month),
        (b'-', day),
        (b'T', second / 3600),
        (b':', second / 60 % 60),
        (b':', second % 60),
    ] {
        out.push(separator);
        push_padded(out, number, 2);
    }
    if nanosecond != 0 {
        out.push(b'.');
        push_padded(out, i64::from(nanosecond), 9);
    }
    if offset == 0 {
        out.push(b'Z');
    } else {
        out.push(if offset < 0 { b'-' } else { b'+' });
        push_padded(out, offset.abs() / 60, 2);
        out.push(b':');
        push_padded(out, offset.abs() % 60, 2);
    }
    out.push(b'"');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(data: &[u8]) -> Result<String, Refused> {
        let mut out = Vec::new();
        let mut reader = Reader::new(data, 0);
        push_any(&mut out, &mut reader, 0)?;
        assert_eq!(reader.at, data.len());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn values_have_their_texts() {
        for (data, text) in [
            (&b"\xc0"[..], "null"),
            (b"\xc3", "true"),
            (
                b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
                "18446744073709551615",
            ),
            (b"\xd3\x80\0\0\0\0\0\0\0", "-9223372036854775808"),
            (b"\xa6a\"\\\n\x01\x7f", "\"a\\\"\\\\\\n\\u0001\x7f\""),
            (b"\xa1\xff", "\"/w==\""),
            (b"\xc4\x02ab", "\"YWI=\""),
            (b"\xcb\x7f\xf8\0\0\0\0\0\0", "\"NaN\""),
            (b"\xcb\x3f\xf0\0\0\0\0\0\0", "1.0"),
            (b"\x92\x01\x81\xa1k\x90", "[1,{\"k\":[]}]"),
            (b"\xc7\x03\x01\x02\x12\x3c", "\"1.23\""),
            (b"\xc7\x03\x01\x02\x00\x5d", "\"-0.05\""),
            (b"\xd5\x01\x00\x0c", "\"0\""),
            (b"\xd7\x04\0\0\0\0\0\0\0\0", "\"1970-01-01T00:00:00Z\""),
        ] {
            assert_eq!(any(data).as_deref(), Ok(text), "{data:?}");
        }
    }

    #[test]
    fn what_is_rare_is_left_to_python() {
        for data in [
            &b"\x81\x01\x02"[..],      // a key that isn't a text
            b"\x82\xa1k\x01\xa1k\x02", // a duplicate key
            b"\xd4\x05\x01",           // an unknown extension
            b"\xd4\x01\xff",           // a decimal with a negative scale, and no digits
            b"\xc7\x02\x02ab",         // half a UUID
            b"\xc7\x03\x04abc",        // half a datetime
            b"\xa5ab",                 // half a text
        ] {
            assert_eq!(any(data), Err(Refused), "{data:?}");
        }
        let wide = |last: u8| {
            let names = (0..10).chain([last]);
            let pairs: Vec<u8> = names.flat_map(|name| [0xa1, b'a' + name, 0x01]).collect();
            [&b"\x8b"[..], &pairs].concat()
        };
        assert!(any(&wide(10)).is_ok());
        for twice in [0, 7, 8, 9] {
            assert_eq!(any(&wide(twice)), Err(Refused), "{twice}");
        }
        let mut deep = vec![0x91; 100];
        deep.push(0x01);
        assert_eq!(any(&deep), Err(Refused));
    }

    #[test]
    fn fields_with_one_writing_take_nothing_else() {
        for data in [
            &b"\xcb\x3f\xf0\0\0\0\0\0\0"[..],
            b"\x90",
            b"\x80",
            b"\xd5\x01\x00\x0c",
        ] {
            assert_eq!(
                push_simple(&mut Vec::new(), &mut Reader::new(data, 0)),
                Err(Refused)
            );
        }
    }
}
