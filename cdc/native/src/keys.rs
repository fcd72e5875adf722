//! Primary keys in the store's encoding, made from raw tuples; the specification is cdc.schema.keys.
//!
//! Functions return None for values that this module doesn't encode: NaN, infinity, decimals of more than 38 digits, values that
//! don't fit the part's type, keys that become hashes. The transaction is then returned to the Python path, which encodes it or
//! reports the error.

use crate::extensions::{
    extension, extension_of, Datetime, Decimal, EXT_DATETIME, EXT_DECIMAL, EXT_UUID, UINT64_END,
};
use crate::layout::{self, Reader, Step, Value};

/// Keys of at least this many bytes are stored as hashes.
const KEY_BYTES_MAX: usize = 511;
const SIGN_BIT: u64 = 1 << 63;
const EXPONENT_BIAS: u32 = 1 << 31;
/// Position of a number relative to its nearest double.
const LESS: u8 = 0x40;
const SAME: u8 = 0x80;
const GREATER: u8 = 0xc0;
/// The number is the double itself, and no decimal equals it.
const NO_DECIMAL: u8 = 0x81;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Unsigned,
    Integer,
    Number,
    String,
    Binary,
    Boolean,
    Uuid,
    Datetime,
    Scalar,
}

/// A part of a primary key, as Python describes it.
#[derive(Clone, Debug)]
pub struct KeyPart {
    pub field: usize,
    pub path: Vec<Step>,
    pub type_name: String,
    /// Whether equal values in different notations are different keys.
    pub is_as_written: bool,
}

#[derive(Clone, Debug)]
struct Part {
    field: usize,
    path: Vec<Step>,
    kind: Kind,
    is_as_written: bool,
}

/// Encoder of one space's keys.
#[derive(Clone, Debug)]
pub struct KeyCodec {
    prefix: [u8; 4],
    parts: Vec<Part>,
    is_text: bool,
}

impl KeyCodec {
    /// Compile the parts of a primary key. None if Python must encode keys of these types.
    pub fn new(number: u32, parts: &[KeyPart]) -> Option<KeyCodec> {
        let parts: Option<Vec<Part>> = parts
            .iter()
            .map(|part| {
                Some(Part {
                    field: part.field,
                    path: part.path.clone(),
                    kind: kind(&part.type_name)?,
                    is_as_written: part.is_as_written,
                })
            })
            .collect();
        let parts = parts.filter(|parts| !parts.is_empty())?;
        let is_text = parts.len() == 1 && matches!(parts[0].kind, Kind::String | Kind::Binary);
        Some(KeyCodec {
            prefix: number.to_be_bytes(),
            parts,
            is_text,
        })
    }

    /// Append the key of a tuple.
    pub fn of_tuple(&self, tuple: &[u8], out: &mut Vec<u8>) -> Option<()> {
        self.write(tuple, out, Part::in_tuple)
    }

    /// Append a key, given an array of its values.
    pub fn of_key(&self, key: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let (count, _) = layout::header(key, 0).filter(|_| layout::is_array(key[0]))?;
        if count != self.parts.len() as u64 {
            return None;
        }
        self.write(key, out, |_, key, place| layout::element(key, place))
    }

    /// Return whether an array of a key's values has the same bytes as the key of a tuple.
    pub fn is_written_alike(&self, key: &[u8], tuple: &[u8]) -> Option<bool> {
        self.is_alike(tuple, |_, place| value(key, layout::element(key, place)?))
    }

    /// Return whether the keys of two tuples have the same bytes.
    pub fn are_written_alike(&self, one: &[u8], other: &[u8]) -> Option<bool> {
        self.is_alike(other, |part, place| value(one, part.in_tuple(one, place)?))
    }

    fn is_alike<'a>(
        &self,
        tuple: &[u8],
        wanted: impl Fn(&Part, usize) -> Option<&'a [u8]>,
    ) -> Option<bool> {
        for (place, part) in self.parts.iter().enumerate() {
            if wanted(part, place)? != value(tuple, part.in_tuple(tuple, place)?)? {
                return Some(false);
            }
        }
        Some(true)
    }

    fn write(
        &self,
        values: &[u8],
        out: &mut Vec<u8>,
        position: impl Fn(&Part, &[u8], usize) -> Option<usize>,
    ) -> Option<()> {
        let begin = out.len();
        out.extend(self.prefix);
        for (place, part) in self.parts.iter().enumerate() {
            let position = position(part, values, place)?;
            let is_last = place + 1 == self.parts.len();
            part.push(out, part.kind, values, position, is_last)?;
        }
        if self.is_text && out[begin + 4..].iter().all(|byte| *byte == 0) {
            out.push(0);
        }
        (out.len() - begin < KEY_BYTES_MAX).then_some(())
    }
}

/// Return the bytes of the value at `position`.
fn value(data: &[u8], position: usize) -> Option<&[u8]> {
    data.get(position..layout::end_of(data, position)?)
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "unsigned" | "uint8" | "uint16" | "uint32" | "uint64" => Kind::Unsigned,
        "integer" | "int8" | "int16" | "int32" | "int64" => Kind::Integer,
        "number" | "double" | "decimal" | "float32" | "float64" | "decimal32" | "decimal64"
        | "decimal128" | "decimal256" => Kind::Number,
        "string" => Kind::String,
        "varbinary" => Kind::Binary,
        "boolean" => Kind::Boolean,
        "uuid" => Kind::Uuid,
        "datetime" => Kind::Datetime,
        "scalar" => Kind::Scalar,
        _ => return None,
    })
}

impl Part {
    /// Return where the part's value is in a tuple.
    fn in_tuple(&self, tuple: &[u8], _: usize) -> Option<usize> {
        layout::descend(tuple, layout::element(tuple, self.field)?, &self.path)
    }

    fn push(
        &self,
        out: &mut Vec<u8>,
        kind: Kind,
        data: &[u8],
        position: usize,
        is_last: bool,
    ) -> Option<()> {
        match kind {
            Kind::Unsigned => {
                let value = u64::try_from(layout::integer(data, position)?).ok()?;
                out.extend(value.to_be_bytes());
            }
            Kind::Integer => {
                let value = layout::integer(data, position)?;
                if value >= 0 {
                    out.push(1);
                    out.extend(u64::try_from(value).ok()?.to_be_bytes());
                } else {
                    out.push(0);
                    out.extend((i64::try_from(value).ok()? as u64 ^ SIGN_BIT).to_be_bytes());
                }
            }
            Kind::Number => self.push_number(out, data, position)?,
            Kind::String => push_text(out, layout::string(data, position)?, is_last),
            Kind::Binary => match Reader::new(data, position).value()? {
                Value::Binary(text) => push_text(out, text, is_last),
                _ => return None,
            },
            Kind::Boolean => match *data.get(position)? {
                0xc2 => out.push(0),
                0xc3 => out.push(1),
                _ => return None,
            },
            Kind::Uuid => out.extend(
                extension_of(data, position, EXT_UUID).filter(|content| content.len() == 16)?,
            ),
            Kind::Datetime => {
                self.push_datetime(out, extension_of(data, position, EXT_DATETIME)?)?
            }
            Kind::Scalar => {
                let (class, kind) = class(data, position)?;
                out.push(class);
                self.push(out, kind, data, position, is_last)?;
            }
        }
        Some(())
    }

    fn push_number(&self, out: &mut Vec<u8>, data: &[u8], position: usize) -> Option<()> {
        let bytes = data.get(position + 1..)?;
        if let Some((code, content)) = extension(data, position) {
            let number = Decimal::read(content).filter(|_| code == EXT_DECIMAL)?;
            if self.is_as_written {
                push_as_written(out, number);
            } else {
                let double = number.double();
                push_decimal(out, number, double, number.equals(double));
            }
            return Some(());
        }
        if self.is_as_written {
            out.push(0);
        }
        let (double, mark) = match data[position] {
            0xca => of_double(f64::from(f32::from_be_bytes(
                bytes.get(..4)?.try_into().ok()?,
            )))?,
            0xcb => of_double(f64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))?,
            _ => {
                let value = layout::integer(data, position)?;
                let double = value as f64;
                push_decimal(
                    out,
                    Decimal::of_integer(value),
                    double,
                    double as i128 == value,
                );
                return Some(());
            }
        };
        push_ordered(out, double);
        out.push(mark);
        Some(())
    }

    fn push_datetime(&self, out: &mut Vec<u8>, content: &[u8]) -> Option<()> {
        let moment = Datetime::read(content)?;
        out.extend((moment.seconds as u64 ^ SIGN_BIT).to_be_bytes());
        out.extend((moment.nanosecond as u32 ^ EXPONENT_BIAS).to_be_bytes());
        if self.is_as_written {
            out.extend(moment.offset_minutes.to_be_bytes());
            out.extend(moment.timezone_index.to_be_bytes());
        }
        Some(())
    }
}

/// Return the class of a scalar, by which the server orders values of different types, and how it is encoded.
fn class(data: &[u8], position: usize) -> Option<(u8, Kind)> {
    Some(match *data.get(position)? {
        0xc2 | 0xc3 => (1, Kind::Boolean),
        0x00..=0x7f | 0xe0..=0xff | 0xca..=0xd3 => (2, Kind::Number),
        0xa0..=0xbf | 0xd9..=0xdb => (3, Kind::String),
        0xc4..=0xc6 => (4, Kind::Binary),
        _ => match extension(data, position)?.0 {
            EXT_DECIMAL => (2, Kind::Number),
            EXT_UUID => (5, Kind::Uuid),
            EXT_DATETIME => (6, Kind::Datetime),
            _ => return None,
        },
    })
}

/// Append a text; unless it `is_last`, with an unambiguous end.
fn push_text(out: &mut Vec<u8>, text: &[u8], is_last: bool) {
    if is_last {
        out.extend(text);
        return;
    }
    for byte in text {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out.extend([0, 0]);
}

fn push_ordered(out: &mut Vec<u8>, double: f64) {
    let bits = (double + 0.0).to_bits();
    let ordered = if bits & SIGN_BIT != 0 {
        !bits
    } else {
        bits | SIGN_BIT
    };
    out.extend(ordered.to_be_bytes());
}

/// Append a number by its nearest double; unless it `is_same`, with its digits too.
fn push_decimal(out: &mut Vec<u8>, number: Decimal, double: f64, is_same: bool) {
    push_ordered(out, double);
    if is_same {
        out.push(SAME);
        return;
    }
    out.push(if number.is_less_than(double) {
        LESS
    } else {
        GREATER
    });
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number.digits);
    let begin = out.len();
    let exponent = (digits.len() as u32).wrapping_sub(number.scale);
    out.extend(exponent.wrapping_add(EXPONENT_BIAS).to_be_bytes());
    let significant = digits.trim_end_matches('0').bytes();
    out.extend(significant.map(|digit| digit - b'0' + 1));
    out.push(0);
    if number.is_negative {
        out[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Append a decimal with its sign, its exponent and all its digits.
fn push_as_written(out: &mut Vec<u8>, number: Decimal) {
    out.extend([2, u8::from(number.is_negative)]);
    out.extend(
        0u32.wrapping_sub(number.scale)
            .wrapping_add(EXPONENT_BIAS)
            .to_be_bytes(),
    );
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number.digits).bytes();
    out.extend(digits.map(|digit| digit - b'0' + 1));
    out.push(0);
}

/// Return the double, and a mark that says whether a decimal equals it: that of its first 15 digits, or its integer value.
fn of_double(double: f64) -> Option<(f64, u8)> {
    if !double.is_finite() {
        return None;
    }
    let is_whole = double.fract() == 0.0 && -UINT64_END < double && double < UINT64_END;
    let is_same = is_whole || format!("{double:.14e}").parse() == Ok(double);
    Some((double, if is_same { SAME } else { NO_DECIMAL }))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn parts(kinds: &[&str]) -> Vec<KeyPart> {
        let part = |(field, kind): (usize, &&str)| KeyPart {
            field,
            path: Vec::new(),
            type_name: (*kind).to_owned(),
            is_as_written: false,
        };
        kinds.iter().enumerate().map(part).collect()
    }

    fn key(kinds: &[&str], values: &[u8]) -> Option<Vec<u8>> {
        let parts = parts(kinds);
        let mut out = Vec::new();
        let plan = KeyCodec::new(513, &parts).unwrap();
        plan.of_key(values, &mut out)?;
        let mut again = Vec::new();
        plan.of_tuple(values, &mut again).unwrap();
        assert_eq!(out, again);
        Some(out)
    }

    #[test]
    fn the_example_of_the_specification() {
        let found = key(
            &["unsigned", "string", "number"],
            b"\x93\x07\xa3abc\xcb\x3f\xf8\0\0\0\0\0\0",
        )
        .unwrap();
        assert_eq!(
            found,
            b"\0\0\x02\x01\0\0\0\0\0\0\0\x07abc\0\0\xbf\xf8\0\0\0\0\0\0\x80"
        );
    }

    #[test]
    fn equal_numbers_are_one_key() {
        let ten = key(&["number"], b"\x91\x0a").unwrap();
        assert_eq!(
            key(&["decimal"], b"\x91\xd6\x01\x02\x01\x00\x0c").unwrap(),
            ten
        );
        assert_eq!(key(&["double"], b"\x91\xca\x41\x20\0\0").unwrap(), ten);
        // 2^53 + 1 as an integer and as a decimal
        let long = key(&["number"], b"\x91\xcf\x00\x20\0\0\0\0\0\x01").unwrap();
        let decimal = b"\x91\xc7\x0a\x01\x00\x09\x00\x71\x99\x25\x47\x40\x99\x3c";
        assert_eq!(key(&["decimal"], decimal).unwrap(), long);
        assert_eq!(long[4..13], *b"\xc3\x40\0\0\0\0\0\0\xc0");
    }

    #[test]
    fn texts_of_zeroes_have_one_more() {
        assert_eq!(key(&["string"], b"\x91\xa0").unwrap(), b"\0\0\x02\x01\0");
        assert_eq!(
            key(&["string"], b"\x91\xa1\0").unwrap(),
            b"\0\0\x02\x01\0\0"
        );
        assert_eq!(
            key(&["string", "boolean"], b"\x92\xa1\0\xc3").unwrap(),
            b"\0\0\x02\x01\0\xff\0\0\x01"
        );
    }

    #[test]
    fn a_key_is_compared_with_a_tuples_by_its_bytes() {
        let mut parts = parts(&["number", "string"]);
        (parts[0].field, parts[1].field) = (2, 0);
        let plan = KeyCodec::new(513, &parts).unwrap();
        let tuple = b"\x93\xa1a\x00\x02";
        assert_eq!(plan.is_written_alike(b"\x92\x02\xa1a", tuple), Some(true));
        assert_eq!(
            plan.is_written_alike(b"\x92\xca\x40\0\0\0\xa1a", tuple),
            Some(false)
        );
        assert_eq!(
            plan.is_written_alike(b"\x92\x02\xd9\x01a", tuple),
            Some(false)
        );
        assert_eq!(plan.is_written_alike(b"\x91\x02", tuple), None);
        let alike = |other| plan.are_written_alike(other, tuple);
        assert_eq!(alike(b"\x94\xa1a\x07\x02\x08"), Some(true));
        assert_eq!(alike(b"\x93\xa1a\x00\x03"), Some(false));
    }

    #[test]
    fn what_is_not_written_here_is_handed_back() {
        assert_eq!(key(&["unsigned"], b"\x91\xff"), None);
        assert_eq!(key(&["unsigned"], b"\x91\xc0"), None);
        assert_eq!(key(&["unsigned"], b"\x92\x01\x01"), None);
        assert_eq!(key(&["number"], b"\x91\xcb\x7f\xf8\0\0\0\0\0\0"), None);
        assert_eq!(key(&["string"], b"\x91\xc4\x01x"), None);
        assert!(KeyCodec::new(1, &parts(&["interval"])).is_none());
    }
}
