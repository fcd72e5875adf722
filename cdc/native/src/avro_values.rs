//! Values, rows and keys in Avro's binary encoding; as cdc.formats.avro_values and cdc.formats.rows, for common values.
//!
//! A value that its column can't hold, or that is rare, is `Refused`: the Python path writes it, or reports why it can't.

use crate::extensions::{Datetime, Decimal, EXT_DATETIME, EXT_DECIMAL, EXT_UUID};
use crate::json_values::{
    is_utf8, push_any, push_datetime, push_unsigned, push_uuid, Refused, Written,
};
use crate::key_text::KeyText;
use crate::layout::{Reader, Value};

/// The first type of an optional field's union.
pub const NULL: u8 = 0x00;
/// The second one.
pub const PRESENT: u8 = 0x02;

/// Number of bytes whose length has one byte.
const SHORT_END: usize = 64;

/// Append an integer: zigzag, then seven bits in each byte, the lowest first.
#[inline]
pub fn push_long(out: &mut Vec<u8>, number: i64) {
    push_varint(out, (number << 1 ^ number >> 63) as u64);
}

#[inline]
fn push_varint(out: &mut Vec<u8>, mut left: u64) {
    while left > 0x7f {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[inline]
pub fn push_binary(out: &mut Vec<u8>, data: &[u8]) {
    push_varint(out, (data.len() as u64) << 1);
    out.extend_from_slice(data);
}

/// Append what `write` appends, preceded by its number of bytes.
#[inline]
pub fn push_prefixed(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Written) -> Written {
    let begin = out.len();
    out.push(0);
    write(out)?;
    let count = out.len() - begin - 1;
    if count < SHORT_END {
        out[begin] = (count << 1) as u8;
    } else {
        let mut length = Vec::with_capacity(5);
        push_varint(&mut length, (count as u64) << 1);
        out.splice(begin..=begin, length);
    }
    Ok(())
}

/// Append a text that `write` appends as a JSON string without escapes, preceded by its number of bytes.
fn push_unquoted(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Written) -> Written {
    push_prefixed(out, |out| {
        let begin = out.len();
        write(out)?;
        if out.len() < begin + 2 || out[begin] != b'"' || out[out.len() - 1] != b'"' {
            return Err(Refused);
        }
        out.pop();
        out.remove(begin);
        Ok(())
    })
}

/// Append an integer in as few bytes as it needs, the sign included, the highest byte first, preceded by their number.
fn push_twos_complement(out: &mut Vec<u8>, number: i128) {
    let bytes = number.to_be_bytes();
    let filler = if number < 0 { 0xff } else { 0x00 };
    let mut begin = 0;
    while begin < bytes.len() - 1 && bytes[begin] == filler && bytes[begin + 1] >> 7 == filler >> 7
    {
        begin += 1;
    }
    push_binary(out, &bytes[begin..]);
}

fn push_scaled(out: &mut Vec<u8>, number: Decimal) -> Written {
    let digits = i128::try_from(number.digits).map_err(|_| Refused)?;
    push_long(out, i64::from(number.scale));
    push_twos_complement(out, if number.is_negative { -digits } else { digits });
    Ok(())
}

/// How the values of a column are written: the kinds of cdc.formats.types.ValueType.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// An integer with so many bits, the sign included.
    Integer(u32),
    UnsignedDecimal,
    UnsignedText,
    Double,
    Boolean,
    Text,
    Binary,
    Uuid,
    Scaled,
    DecimalText,
    Datetime,
    Json,
    /// Only Python writes these.
    Other,
}

impl Kind {
    pub fn new(name: &str) -> Self {
        match name {
            "int8" => Kind::Integer(8),
            "int16" => Kind::Integer(16),
            "int32" => Kind::Integer(32),
            "int64" => Kind::Integer(64),
            "unsigned decimal" => Kind::UnsignedDecimal,
            "unsigned text" => Kind::UnsignedText,
            "double" => Kind::Double,
            "boolean" => Kind::Boolean,
            "string" => Kind::Text,
            "bytes" => Kind::Binary,
            "uuid" => Kind::Uuid,
            "scaled" => Kind::Scaled,
            "decimal text" => Kind::DecimalText,
            "datetime" => Kind::Datetime,
            "json" => Kind::Json,
            _ => Kind::Other,
        }
    }

    /// Append the next value, which isn't nil.
    #[inline]
    fn push(self, out: &mut Vec<u8>, reader: &mut Reader) -> Written {
        if self == Kind::Json {
            return push_prefixed(out, |out| push_any(out, reader, 0));
        }
        match (self, reader.value().ok_or(Refused)?) {
            (Kind::Integer(bits), value) => push_integer(out, bits, &value),
            (Kind::Text, Value::Text(text)) if is_utf8(text) => {
                push_binary(out, text);
                Ok(())
            }
            (Kind::Double, Value::Double(number)) => {
                out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }
            (Kind::Boolean, Value::Boolean(value)) => {
                out.push(u8::from(value));
                Ok(())
            }
            (Kind::Binary, Value::Binary(data)) => {
                push_binary(out, data);
                Ok(())
            }
            (Kind::Uuid, Value::Extension(EXT_UUID, data)) => {
                push_unquoted(out, |out| push_uuid(out, data))
            }
            (Kind::Datetime, Value::Extension(EXT_DATETIME, data)) => {
                let moment = Datetime::read(data).ok_or(Refused)?;
                push_unquoted(out, |out| push_datetime(out, &moment))
            }
            (Kind::Scaled, Value::Extension(EXT_DECIMAL, data)) => {
                push_scaled(out, Decimal::read(data).ok_or(Refused)?)
            }
            (Kind::DecimalText, Value::Extension(EXT_DECIMAL, data)) => {
                let number = Decimal::read(data).ok_or(Refused)?;
                push_prefixed(out, |out| {
                    number.push(out);
                    Ok(())
                })
            }
            (Kind::UnsignedDecimal, Value::Unsigned(number)) => {
                push_twos_complement(out, i128::from(number));
                Ok(())
            }
            (Kind::UnsignedText, Value::Unsigned(number)) => push_prefixed(out, |out| {
                push_unsigned(out, number);
                Ok(())
            }),
            _ => Err(Refused),
        }
    }
}

#[inline]
fn push_integer(out: &mut Vec<u8>, bits: u32, value: &Value) -> Written {
    let number = match *value {
        Value::Unsigned(number) => i64::try_from(number).map_err(|_| Refused)?,
        Value::Signed(number) => number,
        _ => return Err(Refused),
    };
    let shift = 64 - bits;
    if number << shift >> shift != number {
        return Err(Refused);
    }
    push_long(out, number);
    Ok(())
}

/// A field of a space's rows.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub kind: Kind,
    pub is_optional: bool,
}

impl Column {
    /// Append the next value.
    #[inline]
    pub fn push(self, out: &mut Vec<u8>, reader: &mut Reader) -> Written {
        if reader.peek() == Some(0xc0) {
            reader.at += 1;
            return self.push_null(out);
        }
        if self.is_optional {
            out.push(PRESENT);
        }
        self.kind.push(out, reader)
    }

    /// Append null, for a value that is nil or missing.
    #[inline]
    pub fn push_null(self, out: &mut Vec<u8>) -> Written {
        if !self.is_optional {
            return Err(Refused);
        }
        out.push(NULL);
        Ok(())
    }
}

/// How the values of a key part are written: the same for equal keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyColumn {
    pub kind: Kind,
    /// Its notation in JSON.
    pub text: KeyText,
    /// Whether equal values in different notations are different keys.
    pub is_as_written: bool,
}

impl KeyColumn {
    /// Append the next value. Nil is refused: no part of a key is optional in a schema.
    #[inline]
    pub fn push(self, out: &mut Vec<u8>, reader: &mut Reader) -> Written {
        if reader.peek() == Some(0xc0) {
            return Err(Refused);
        }
        match self.kind {
            Kind::Json => push_prefixed(out, |out| self.text.push(out, reader)),
            Kind::Datetime | Kind::DecimalText => {
                push_unquoted(out, |out| self.text.push(out, reader))
            }
            Kind::Scaled => {
                let Value::Extension(EXT_DECIMAL, data) = reader.value().ok_or(Refused)? else {
                    return Err(Refused);
                };
                let number = Decimal::read(data).ok_or(Refused)?;
                if !self.is_as_written {
                    push_scaled(out, number.stripped())
                } else if number.digits == 0 && number.is_negative {
                    Err(Refused) // it would be the key of 0
                } else {
                    push_scaled(out, number)
                }
            }
            Kind::Double => match reader.value().ok_or(Refused)? {
                Value::Double(number) if !number.is_nan() => {
                    out.extend_from_slice(&(number + 0.0).to_le_bytes());
                    Ok(())
                }
                _ => Err(Refused),
            },
            kind => kind.push(out, reader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: &str, data: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut out = Vec::new();
        let column = Column {
            kind: Kind::new(kind),
            is_optional: false,
        };
        let mut reader = Reader::new(data, 0);
        column.push(&mut out, &mut reader)?;
        assert_eq!(reader.at, data.len());
        Ok(out)
    }

    #[test]
    fn values_have_avros_encoding() {
        for (kind, data, expected) in [
            ("int64", &b"\x07"[..], &b"\x0e"[..]),
            ("int64", b"\xff", b"\x01"),
            ("int64", b"\xcd\x01\x00", b"\x80\x04"),
            ("int8", b"\xd0\x80", b"\xff\x01"),
            ("string", b"\xa2ab", b"\x04ab"),
            ("boolean", b"\xc3", b"\x01"),
            ("bytes", b"\xc4\x01\xff", b"\x02\xff"),
            (
                "double",
                b"\xcb\x3f\xf0\0\0\0\0\0\0",
                b"\0\0\0\0\0\0\xf0\x3f",
            ),
            ("scaled", b"\xc7\x03\x01\x02\x15\x0d", b"\x04\x04\xff\x6a"),
            ("decimal text", b"\xc7\x03\x01\x02\x15\x0d", b"\x0a-1.50"),
            ("json", b"\x92\x01\xc0", b"\x10[1,null]"),
            ("unsigned text", b"\x0a", b"\x0410"),
            ("unsigned decimal", b"\xcc\x80", b"\x04\x00\x80"),
            ("unsigned decimal", b"\x7f", b"\x02\x7f"),
        ] {
            assert_eq!(
                written(kind, data).as_deref(),
                Ok(expected),
                "{kind} {data:?}"
            );
        }
        let long = [&b"\xd9\x64"[..], &[b'x'; 100]].concat();
        assert_eq!(
            written("json", &long).unwrap(),
            [&b"\xcc\x01\""[..], &[b'x'; 100], b"\""].concat()
        );
    }

    #[test]
    fn a_key_has_no_nil() {
        let mut out = Vec::new();
        for kind in ["json", "int64", "string"] {
            let column = KeyColumn {
                kind: Kind::new(kind),
                text: KeyText::new("any", false),
                is_as_written: false,
            };
            assert!(column.push(&mut out, &mut Reader::new(b"\xc0", 0)).is_err());
        }
        assert!(out.is_empty());
    }

    #[test]
    fn a_negative_zero_is_no_key_as_written() {
        for (is_as_written, is_key) in [(true, false), (false, true)] {
            let column = KeyColumn {
                kind: Kind::Scaled,
                text: KeyText::new("decimal", is_as_written),
                is_as_written,
            };
            let mut out = Vec::new();
            let written = column.push(&mut out, &mut Reader::new(b"\xd5\x01\x00\x0d", 0));
            assert_eq!(written.is_ok(), is_key);
        }
    }

    #[test]
    fn what_a_column_cannot_hold_is_refused() {
        for (kind, data) in [
            ("int64", &b"\xcf\x80\0\0\0\0\0\0\0"[..]),
            ("int8", b"\xcc\x80"),
            ("string", b"\x07"),
            ("string", b"\xa1\xff"),
            ("int64", b"\xc0"),
            ("interval", b"\xd4\x06\x00"),
            ("double", b"\x01"),
        ] {
            assert_eq!(written(kind, data), Err(Refused), "{kind} {data:?}");
        }
    }
}
