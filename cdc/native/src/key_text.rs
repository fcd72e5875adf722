//! The values of primary keys as JSON: equal keys have the same text; as cdc.events.key_text.
//!
//! NaN, infinity and values that don't fit the part's type are `Refused`.

use crate::extensions::{Datetime, Decimal, EXT_DATETIME, EXT_DECIMAL, EXT_UUID, UINT64_END};
use crate::json_values::{
    is_utf8, push_base64, push_datetime, push_double, push_signed, push_text, push_unsigned,
    push_uuid, Refused, Written,
};
use crate::layout::{Reader, Value};

const INT64_MIN: f64 = -9_223_372_036_854_775_808.0;

/// Notation of a key part's values, by the part's type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Values with one notation each.
    Plain,
    Number,
    Double,
    Decimal,
    Datetime,
    Scalar,
}

/// How the values of a part of a primary key are written.
#[derive(Clone, Copy, Debug)]
pub struct KeyText {
    kind: Kind,
    /// Whether equal values in different notations are different keys.
    is_as_written: bool,
}

impl KeyText {
    pub fn new(type_name: &str, is_as_written: bool) -> Self {
        let kind = match type_name {
            "number" => Kind::Number,
            "double" | "float32" | "float64" => Kind::Double,
            "decimal" | "decimal32" | "decimal64" | "decimal128" | "decimal256" => Kind::Decimal,
            "datetime" => Kind::Datetime,
            "scalar" => Kind::Scalar,
            _ => Kind::Plain,
        };
        KeyText {
            kind,
            is_as_written,
        }
    }

    /// Append the next value.
    pub fn push(self, out: &mut Vec<u8>, reader: &mut Reader) -> Written {
        let value = reader.value().ok_or(Refused)?;
        match (self.kind, value) {
            (Kind::Plain, value) => push_plain(out, &value),
            (Kind::Decimal, Value::Extension(EXT_DECIMAL, content)) => {
                let number = Decimal::read(content).ok_or(Refused)?;
                if self.is_as_written {
                    push_as_written(out, number);
                } else {
                    push_digits(out, number);
                }
                Ok(())
            }
            (Kind::Datetime, Value::Extension(EXT_DATETIME, content)) => {
                push_moment(out, content, self.is_as_written)
            }
            (Kind::Scalar, value) => self.push_scalar(out, &value),
            (Kind::Number | Kind::Double, value) => self.push_number(out, &value),
            _ => Err(Refused),
        }
    }

    fn push_number(self, out: &mut Vec<u8>, value: &Value) -> Written {
        let has_point = self.kind == Kind::Double;
        match *value {
            Value::Unsigned(number) => push_integer(out, i128::from(number), has_point),
            Value::Signed(number) => push_integer(out, i128::from(number), has_point),
            Value::Double(number) if number.is_finite() => push_whole(out, number, has_point),
            Value::Extension(EXT_DECIMAL, content) => {
                let number = Decimal::read(content).ok_or(Refused)?;
                let double = number.double();
                if self.is_as_written {
                    push_as_written(out, number);
                } else if number.equals(double) {
                    push_whole(out, double, has_point);
                } else if let Some(whole) = integer(number) {
                    push_integer(out, whole, has_point);
                } else {
                    push_digits(out, number);
                }
            }
            _ => return Err(Refused),
        }
        Ok(())
    }

    fn push_scalar(self, out: &mut Vec<u8>, value: &Value) -> Written {
        let name: &[u8] = match *value {
            Value::Nil | Value::Array(_) | Value::Map(_) => return Err(Refused),
            Value::Boolean(_) | Value::Text(_) => return push_plain(out, value),
            Value::Binary(_) => b"{\"varbinary\":",
            Value::Extension(EXT_UUID, _) => b"{\"uuid\":",
            Value::Extension(EXT_DATETIME, _) => b"{\"datetime\":",
            Value::Extension(EXT_DECIMAL, _) => b"{\"decimal\":",
            _ => return self.push_number(out, value),
        };
        let begin = out.len();
        out.extend_from_slice(name);
        match *value {
            Value::Extension(EXT_DATETIME, content) => {
                push_moment(out, content, self.is_as_written)?
            }
            Value::Extension(EXT_DECIMAL, _) => {
                self.push_number(out, value)?;
                if out[begin + name.len()] != b'"' {
                    out.drain(begin..begin + name.len()); // equal to a number that needs no name
                    return Ok(());
                }
            }
            _ => push_plain(out, value)?,
        }
        out.push(b'}');
        Ok(())
    }
}

/// Append a value with one notation.
fn push_plain(out: &mut Vec<u8>, value: &Value) -> Written {
    match *value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Value::Unsigned(number) => push_unsigned(out, number),
        Value::Signed(number) => push_signed(out, number),
        Value::Text(text) if is_utf8(text) => push_text(out, text),
        Value::Binary(data) => push_base64(out, data),
        Value::Extension(EXT_UUID, data) => push_uuid(out, data)?,
        _ => return Err(Refused),
    }
    Ok(())
}

/// Append an integer; `has_point` if a double that is equal to it is written as a double.
fn push_integer(out: &mut Vec<u8>, number: i128, has_point: bool) {
    if has_point && number as f64 as i128 == number {
        push_double(out, number as f64);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

/// Append a double, as an integer if it is one of 64 bits.
fn push_whole(out: &mut Vec<u8>, number: f64, has_point: bool) {
    if number.fract() == 0.0 && (INT64_MIN..UINT64_END).contains(&number) {
        push_integer(out, number as i128, has_point);
    } else {
        push_double(out, number);
    }
}

/// Return a decimal as an integer of 64 bits, if it is one.
fn integer(number: Decimal) -> Option<i128> {
    let whole = i128::try_from(number.whole()?).ok()?;
    let whole = if number.is_negative { -whole } else { whole };
    (i128::from(i64::MIN)..=i128::from(u64::MAX))
        .contains(&whole)
        .then_some(whole)
}

/// Append a decimal's digits, without zeroes at the end of its fraction, and without a sign before zero.
fn push_digits(out: &mut Vec<u8>, number: Decimal) {
    let mut number = number.stripped();
    number.is_negative &= number.digits != 0;
    push_as_written(out, number);
}

fn push_as_written(out: &mut Vec<u8>, number: Decimal) {
    out.push(b'"');
    number.push(out);
    out.push(b'"');
}

/// Append a point in time: in UTC; or `as_written`, in its zone and with the zone's number.
fn push_moment(out: &mut Vec<u8>, content: &[u8], as_written: bool) -> Written {
    let mut moment = Datetime::read(content).ok_or(Refused)?;
    if !as_written {
        moment.offset_minutes = 0;
        return push_datetime(out, &moment);
    }
    push_datetime(out, &moment)?;
    if moment.timezone_index != 0 {
        out.pop();
        out.push(b'[');
        push_signed(out, i64::from(moment.timezone_index));
        out.extend_from_slice(b"]\"");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(type_name: &str, is_as_written: bool, data: &[u8]) -> Result<String, Refused> {
        let mut out = Vec::new();
        let mut reader = Reader::new(data, 0);
        KeyText::new(type_name, is_as_written).push(&mut out, &mut reader)?;
        assert_eq!(reader.at, data.len());
        Ok(String::from_utf8(out).unwrap())
    }

    const TEN: &[u8] = b"\xd6\x01\x02\x01\x00\x0c"; // 10.00
    const TENTH: &[u8] = b"\xd5\x01\x01\x1c"; // 0.1

    #[test]
    fn equal_keys_have_one_text() {
        for (type_name, data, expected) in [
            ("decimal", TEN, "\"10\""),
            ("decimal", TENTH, "\"0.1\""),
            ("decimal", b"\xd5\x01\x01\x0d", "\"0\""),
            ("number", TEN, "10"),
            ("number", TENTH, "0.1"),
            ("number", b"\xcb\x80\0\0\0\0\0\0\0", "0"),
            ("number", b"\xca\x3f\0\0\0", "0.5"),
            ("double", b"\x0a", "10.0"),
            ("double", b"\xcb\x80\0\0\0\0\0\0\0", "0.0"),
            (
                "double",
                b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
                "18446744073709551615",
            ),
            ("scalar", TEN, "10"),
            ("scalar", b"\xa1a", "\"a\""),
            ("scalar", b"\xc4\x01\xff", "{\"varbinary\":\"/w==\"}"),
            ("unsigned", b"\x07", "7"),
            (
                "datetime",
                b"\xd7\x04\0\0\0\0\0\0\0\0",
                "\"1970-01-01T00:00:00Z\"",
            ),
        ] {
            assert_eq!(
                text(type_name, false, data).as_deref(),
                Ok(expected),
                "{type_name} {data:?}"
            );
        }
        // 0.30000000000000001, to which no double is equal
        let long = b"\xc7\x0a\x01\x11\x30\x00\x00\x00\x00\x00\x00\x00\x1c";
        assert_eq!(
            text("number", false, long).as_deref(),
            Ok("\"0.30000000000000001\"")
        );
        let named = "{\"decimal\":\"0.30000000000000001\"}";
        assert_eq!(text("scalar", false, long).as_deref(), Ok(named));
    }

    #[test]
    fn keys_as_written_keep_their_notation() {
        assert_eq!(text("decimal", true, TEN).as_deref(), Ok("\"10.00\""));
        assert_eq!(text("number", true, TEN).as_deref(), Ok("\"10.00\""));
        assert_eq!(
            text("scalar", true, TEN).as_deref(),
            Ok("{\"decimal\":\"10.00\"}")
        );
        let moment = b"\xd8\x04\0\0\0\0\0\0\0\0\0\0\0\0\x3c\0\x05\0";
        let expected = "\"1970-01-01T01:00:00+01:00[5]\"";
        assert_eq!(text("datetime", true, moment).as_deref(), Ok(expected));
    }

    #[test]
    fn what_does_not_fit_is_left_to_python() {
        for (type_name, data) in [
            ("decimal", &b"\x01"[..]),
            ("datetime", b"\x01"),
            ("number", b"\xc0"),
            ("number", b"\xcb\x7f\xf8\0\0\0\0\0\0"),
            ("scalar", b"\xc0"),
            ("unsigned", b"\xcb\x3f\xf8\0\0\0\0\0\0"),
            ("string", b"\xa1\xff"),
        ] {
            assert_eq!(
                text(type_name, false, data),
                Err(Refused),
                "{type_name} {data:?}"
            );
        }
    }
}
