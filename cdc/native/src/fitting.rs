//! Whether a tuple fits its space's format, on which the result of an UPSERT in vinyl depends; as cdc.schema.fitting.

use crate::extensions::{
    extension, extension_of, Decimal, EXT_DATETIME, EXT_DECIMAL, EXT_INTERVAL, EXT_UUID,
};
use crate::layout;

/// Check of a value that isn't nil.
#[derive(Clone, Debug)]
enum Check {
    Any,
    /// An integer between these, encoded as one without a sign.
    Unsigned(i128),
    Integer(i128, i128),
    String,
    Binary,
    Boolean,
    Float,
    Double,
    /// An integer or a floating-point number.
    IntegerOrDouble,
    Number,
    Scalar,
    /// A scalar of the versions before a UUID and a point in time were scalars.
    OldScalar,
    Extension(i8),
    /// A decimal with at most so many digits, counted down to so many after the point.
    Digits(u32, i64),
    Array,
    Map,
}

const INTEGER: Check = Check::Integer(i64::MIN as i128, u64::MAX as i128);

impl Check {
    /// Return the check by its name in cdc.schema.fitting.
    fn of(name: &str, scale: i64) -> Option<Check> {
        let bits = |prefix: &str| name.strip_prefix(prefix)?.parse::<u32>().ok();
        Some(match name {
            "any" => Check::Any,
            "unsigned" => Check::Unsigned(u64::MAX.into()),
            "integer" => INTEGER,
            "string" => Check::String,
            "varbinary" => Check::Binary,
            "boolean" => Check::Boolean,
            "float32" => Check::Float,
            "float64" => Check::Double,
            "double" => Check::IntegerOrDouble,
            "number" => Check::Number,
            "scalar" => Check::Scalar,
            "scalar before 2.10" => Check::OldScalar,
            "decimal" => Check::Extension(EXT_DECIMAL),
            "uuid" => Check::Extension(EXT_UUID),
            "datetime" => Check::Extension(EXT_DATETIME),
            "interval" => Check::Extension(EXT_INTERVAL),
            "array" => Check::Array,
            "map" => Check::Map,
            _ => match (bits("uint"), bits("int"), bits("decimal")) {
                (Some(bits @ (8 | 16 | 32 | 64)), ..) => Check::Unsigned((1 << bits) - 1),
                (_, Some(bits @ (8 | 16 | 32 | 64)), _) => {
                    Check::Integer(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
                }
                (.., Some(32)) => Check::Digits(9, scale),
                (.., Some(64)) => Check::Digits(18, scale),
                (.., Some(128)) => Check::Digits(38, scale),
                (.., Some(256)) => Check::Digits(76, scale),
                _ => return None,
            },
        })
    }

    /// Return whether the value at `position` fits; None if only the Python path can tell.
    fn fits(&self, data: &[u8], position: usize) -> Option<bool> {
        let first = *data.get(position)?;
        let is_integer = matches!(first, 0x00..=0x7f | 0xe0..=0xff | 0xcc..=0xd3);
        let is_extension =
            |codes: &[i8]| extension(data, position).is_some_and(|(code, _)| codes.contains(&code));
        Some(match self {
            Check::Any => true,
            Check::Unsigned(last) => {
                matches!(first, 0x00..=0x7f | 0xcc..=0xcf)
                    && layout::integer(data, position)? <= *last
            }
            Check::Integer(least, last) => {
                is_integer && (*least..=*last).contains(&layout::integer(data, position)?)
            }
            Check::String => matches!(first, 0xa0..=0xbf | 0xd9..=0xdb),
            Check::Binary => matches!(first, 0xc4..=0xc6),
            Check::Boolean => matches!(first, 0xc2 | 0xc3),
            Check::Float => first == 0xca,
            Check::Double => first == 0xcb,
            Check::IntegerOrDouble => is_integer || matches!(first, 0xca | 0xcb),
            Check::Number => {
                is_integer || matches!(first, 0xca | 0xcb) || is_extension(&[EXT_DECIMAL])
            }
            Check::Scalar | Check::OldScalar => {
                is_integer
                    || matches!(first, 0xca | 0xcb | 0xa0..=0xbf | 0xd9..=0xdb | 0xc4..=0xc6)
                    || matches!(first, 0xc2 | 0xc3)
                    || is_extension(&[EXT_DECIMAL])
                    || matches!(self, Check::Scalar) && is_extension(&[EXT_UUID, EXT_DATETIME])
            }
            Check::Extension(code) => is_extension(&[*code]),
            Check::Digits(digits_max, scale) => {
                let Some(content) = extension_of(data, position, EXT_DECIMAL) else {
                    return Some(false);
                };
                has_digits(Decimal::read(content)?, *digits_max, *scale)
            }
            Check::Array => layout::is_array(first),
            Check::Map => layout::is_map(first),
        })
    }
}

/// Return whether a decimal has at most so many digits, counted down to `scale` digits after the point.
fn has_digits(number: Decimal, digits_max: u32, scale: i64) -> bool {
    let (mut digits, mut exponent) = (number.digits, -i64::from(number.scale));
    if digits == 0 {
        return true;
    }
    while digits % 10 == 0 {
        digits /= 10;
        exponent += 1;
    }
    let zeroes = exponent + scale;
    zeroes >= 0 && i64::from(digits.ilog10()) + 1 + zeroes <= i64::from(digits_max)
}

/// Check of one format.
#[derive(Clone, Debug)]
pub struct Fitting {
    /// Number of fields that a tuple must have, 0 for any.
    exact_count: u64,
    count_min: u64,
    /// By field: its check, and whether it may be nil.
    fields: Vec<(Check, bool)>,
}

impl Fitting {
    /// Compile a check from the numbers of fields, and by field, the check's name, whether it may be nil, and the scale of its
    /// decimals. None if a name is unknown here.
    pub fn new(
        exact_count: u64,
        count_min: u64,
        fields: &[(String, bool, i64)],
    ) -> Option<Fitting> {
        let fields: Option<Vec<_>> = fields
            .iter()
            .map(|(name, may_be_nil, scale)| Some((Check::of(name, *scale)?, *may_be_nil)))
            .collect();
        Some(Fitting {
            exact_count,
            count_min,
            fields: fields?,
        })
    }

    /// Return whether a tuple fits; None if only the Python path can tell.
    pub fn fits(&self, tuple: &[u8]) -> Option<bool> {
        let (count, mut position) = layout::header(tuple, 0)?;
        if count < self.count_min || (self.exact_count != 0 && count != self.exact_count) {
            return Some(false);
        }
        let present = usize::try_from(count).ok()?.min(self.fields.len());
        for (check, may_be_nil) in &self.fields[..present] {
            let is_fit = if *tuple.get(position)? == 0xc0 {
                *may_be_nil
            } else {
                check.fits(tuple, position)?
            };
            if !is_fit {
                return Some(false);
            }
            position = layout::end_of(tuple, position)?;
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(name: &str, data: &[u8]) -> Option<bool> {
        let fields = [(name.to_owned(), false, 2)];
        let tuple = [b"\x91", data].concat();
        Fitting::new(0, 1, &fields).unwrap().fits(&tuple)
    }

    #[test]
    fn values_fit_the_types_of_their_fields() {
        for (name, data, expected) in [
            ("unsigned", &b"\x07"[..], true),
            ("unsigned", b"\xd0\x07", false),
            ("uint8", b"\xcc\xff", true),
            ("uint8", b"\xcd\x01\x00", false),
            ("int8", b"\x80\x00", false),
            ("int8", b"\xd0\x80", true),
            ("int8", b"\xcc\x80", false),
            ("scalar", b"\xd7\x04\0\0\0\0\0\0\0\0", true),
            ("scalar before 2.10", b"\xd7\x04\0\0\0\0\0\0\0\0", false),
            ("decimal32", b"\xc7\x06\x01\x02\x12\x34\x56\x78\x9c", true),
            ("decimal32", b"\xc7\x06\x01\x00\x12\x34\x56\x78\x9c", false),
            ("decimal32", b"\xd6\x01\x03\x12\x34\x5c", false),
            ("string", b"\xc0", false),
        ] {
            assert_eq!(fits(name, data), Some(expected), "{name} {data:?}");
        }
        assert_eq!(fits("decimal32", b"\xc7\x03\x01\xff\x12\x3c"), None);
        assert!(Fitting::new(0, 0, &[("point".to_owned(), false, 0)]).is_none());
    }

    #[test]
    fn tuples_have_the_number_of_fields_that_they_must_have() {
        let fields = [("any".to_owned(), true, 0)];
        let counts = |exact, least, data: &[u8]| Fitting::new(exact, least, &fields)?.fits(data);
        assert_eq!(counts(0, 1, b"\x90"), Some(false));
        assert_eq!(counts(2, 0, b"\x91\x01"), Some(false));
        assert_eq!(counts(2, 0, b"\x92\x01\x02"), Some(true));
    }
}
