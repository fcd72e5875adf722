//! Primary keys in the store's encoding, made from raw tuples; the specification is cdc.schema.keys.
//!
//! Functions return None for values that this module doesn't encode: decimals, NaN, infinity, values that don't fit the part's
//! type, keys that become hashes. The transaction is then returned to the Python path, which encodes it or reports the error.

use crate::layout;

/// Keys of at least this many bytes are stored as hashes.
const KEY_BYTES_MAX: usize = 511;
const SIGN_BIT: u64 = 1 << 63;
const SAME: u8 = 0x80;
const NO_DECIMAL: u8 = 0x81;
const UINT64_END: f64 = 18_446_744_073_709_551_616.0;

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

/// Encoder of one space's keys.
#[derive(Clone, Debug)]
pub struct KeyPlan {
    prefix: [u8; 4],
    parts: Vec<(usize, Kind)>,
    is_text: bool,
}

impl KeyPlan {
    /// Compile the fields (from 0) and types of a primary key. None if Python must encode keys of these types.
    pub fn new(number: u32, parts: &[(usize, &str)]) -> Option<KeyPlan> {
        let parts: Option<Vec<(usize, Kind)>> = parts
            .iter()
            .map(|(field, name)| Some((*field, kind(name)?)))
            .collect();
        let parts = parts.filter(|parts| !parts.is_empty())?;
        let is_text = parts.len() == 1 && matches!(parts[0].1, Kind::String | Kind::Binary);
        Some(KeyPlan {
            prefix: number.to_be_bytes(),
            parts,
            is_text,
        })
    }

    /// Append the key of a tuple.
    pub fn of_tuple(&self, tuple: &[u8], out: &mut Vec<u8>) -> Option<()> {
        self.write(tuple, out, |place| self.parts[place].0)
    }

    /// Append a key, given an array of its values.
    pub fn of_key(&self, key: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let (count, _) = layout::header(key, 0).filter(|_| layout::is_array(key[0]))?;
        if count != self.parts.len() as u64 {
            return None;
        }
        self.write(key, out, |place| place)
    }

    /// Return whether an array of a key's values has the same bytes as the key of a tuple.
    pub fn is_written_alike(&self, key: &[u8], tuple: &[u8]) -> Option<bool> {
        for (place, (field, _)) in self.parts.iter().enumerate() {
            let (one, other) = (
                layout::element(key, place)?,
                layout::element(tuple, *field)?,
            );
            let one = key.get(one..layout::end_of(key, one)?)?;
            let other = tuple.get(other..layout::end_of(tuple, other)?)?;
            if one != other {
                return Some(false);
            }
        }
        Some(true)
    }

    fn write(
        &self,
        values: &[u8],
        out: &mut Vec<u8>,
        field: impl Fn(usize) -> usize,
    ) -> Option<()> {
        let begin = out.len();
        out.extend(self.prefix);
        for (place, (_, kind)) in self.parts.iter().enumerate() {
            let position = layout::element(values, field(place))?;
            push(out, *kind, values, position, place + 1 == self.parts.len())?;
        }
        if self.is_text && out[begin + 4..].iter().all(|byte| *byte == 0) {
            out.push(0);
        }
        (out.len() - begin < KEY_BYTES_MAX).then_some(())
    }
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

fn push(out: &mut Vec<u8>, kind: Kind, data: &[u8], position: usize, is_last: bool) -> Option<()> {
    let first = *data.get(position)?;
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
        Kind::Number => push_number(out, data, position)?,
        Kind::String | Kind::Binary => {
            let expected = match first {
                0xa0..=0xbf | 0xd9..=0xdb => Kind::String,
                0xc4..=0xc6 => Kind::Binary,
                _ => return None,
            };
            if kind != expected {
                return None;
            }
            let (begin, length) = layout::content(data, position)?;
            let text = data.get(begin..begin.checked_add(length)?)?;
            if is_last {
                out.extend(text);
            } else {
                for byte in text {
                    out.push(*byte);
                    if *byte == 0 {
                        out.push(0xff);
                    }
                }
                out.extend([0, 0]);
            }
        }
        Kind::Boolean => match first {
            0xc2 => out.push(0),
            0xc3 => out.push(1),
            _ => return None,
        },
        Kind::Uuid => out.extend(extension(data, position, 2).filter(|data| data.len() == 16)?),
        Kind::Datetime => {
            let data = extension(data, position, 4).filter(|data| matches!(data.len(), 8 | 16))?;
            let seconds = u64::from_le_bytes(data[..8].try_into().ok()?);
            let nanoseconds = if data.len() == 16 {
                u32::from_le_bytes(data[8..12].try_into().ok()?)
            } else {
                0
            };
            out.extend((seconds ^ SIGN_BIT).to_be_bytes());
            out.extend((nanoseconds ^ 1 << 31).to_be_bytes());
        }
        Kind::Scalar => {
            let (class, kind) = match first {
                0xc2 | 0xc3 => (1, Kind::Boolean),
                0x00..=0x7f | 0xe0..=0xff | 0xca..=0xd3 => (2, Kind::Number),
                0xa0..=0xbf | 0xd9..=0xdb => (3, Kind::String),
                0xc4..=0xc6 => (4, Kind::Binary),
                _ if extension(data, position, 2).is_some() => (5, Kind::Uuid),
                _ if extension(data, position, 4).is_some() => (6, Kind::Datetime),
                _ => return None,
            };
            out.push(class);
            push(out, kind, data, position, is_last)?;
        }
    }
    Some(())
}

fn extension(data: &[u8], position: usize, code: u8) -> Option<&[u8]> {
    if !matches!(data[position], 0xc7..=0xc9 | 0xd4..=0xd8) {
        return None;
    }
    let (begin, length) = layout::content(data, position)?;
    let found = data.get(begin..begin.checked_add(length)?)?;
    (data[begin - 1] == code).then_some(found)
}

fn push_number(out: &mut Vec<u8>, data: &[u8], position: usize) -> Option<()> {
    let bytes = data.get(position + 1..)?;
    let (double, mark) = match data[position] {
        0xca => of_double(f64::from(f32::from_be_bytes(
            bytes.get(..4)?.try_into().ok()?,
        )))?,
        0xcb => of_double(f64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))?,
        _ => {
            let value = layout::integer(data, position)?;
            let double = value as f64;
            if double as i128 != value {
                return None; // not equal to its nearest double
            }
            (double, SAME)
        }
    };
    let bits = (double + 0.0).to_bits();
    out.extend(
        if bits & SIGN_BIT != 0 {
            !bits
        } else {
            bits | SIGN_BIT
        }
        .to_be_bytes(),
    );
    out.push(mark);
    Some(())
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
mod tests {
    use super::*;

    fn key(kinds: &[&str], values: &[u8]) -> Option<Vec<u8>> {
        let parts: Vec<(usize, &str)> = kinds
            .iter()
            .enumerate()
            .map(|(place, kind)| (place, *kind))
            .collect();
        let mut out = Vec::new();
        let plan = KeyPlan::new(513, &parts).unwrap();
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
        let plan = KeyPlan::new(513, &[(2, "number"), (0, "string")]).unwrap();
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
    }

    #[test]
    fn what_is_not_written_here_is_handed_back() {
        assert_eq!(key(&["unsigned"], b"\x91\xff"), None);
        assert_eq!(key(&["unsigned"], b"\x91\xc0"), None);
        assert_eq!(key(&["unsigned"], b"\x92\x01\x01"), None);
        assert_eq!(key(&["number"], b"\x91\xc7\x02\x01\x01\x0c"), None);
        assert_eq!(key(&["string"], b"\x91\xc4\x01x"), None);
        assert!(KeyPlan::new(1, &[(0, "interval")]).is_none());
    }
}
