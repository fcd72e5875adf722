//! Values that MessagePack has no type for; as cdc.protocol.extensions, for values that servers write.
//!
//! A decimal of more than 38 digits (from 3.5 on), or with an exponent above zero, is left to the Python path.

use std::cmp::Ordering;

use crate::layout::{Reader, Value};

pub const EXT_DECIMAL: i8 = 1;
pub const EXT_UUID: i8 = 2;
pub const EXT_DATETIME: i8 = 4;
pub const EXT_INTERVAL: i8 = 6;

pub const DIGITS_MAX: usize = 76;
pub const SCALE_MAX: u64 = 10_000;
/// Maximum number of digits that are decoded here, and of those after the point.
pub const DECODED_DIGITS_MAX: u32 = 38;
const DECODED_SCALE_MAX: u8 = 38;
/// Decimals of at most this many digits are converted to doubles and back without a loss.
const DOUBLE_DIGITS: u32 = 15;
/// Integers below it, and powers of ten up to the next constant, are doubles.
const DOUBLE_EXACT_END: u128 = 1 << 53;
const EXACT_POWER_MAX: u32 = 22;
pub const UINT64_END: f64 = 18_446_744_073_709_551_616.0;
/// A double of a decimal has at most this many significant digits.
const EXACT_DIGITS: usize = 160;

/// Return the code and the content of the extension at `position`.
pub fn extension(data: &[u8], position: usize) -> Option<(i8, &[u8])> {
    match Reader::new(data, position).value()? {
        Value::Extension(code, content) => Some((code, content)),
        _ => None,
    }
}

/// Return the content of the extension at `position` if it has this code.
pub fn extension_of(data: &[u8], position: usize, code: i8) -> Option<&[u8]> {
    extension(data, position)
        .filter(|(other, _)| *other == code)
        .map(|(_, content)| content)
}

/// A decimal: its digits as an integer, of which `scale` come after the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decimal {
    pub is_negative: bool,
    pub digits: u128,
    pub scale: u32,
}

impl Decimal {
    /// Decode an extension's content: the scale, then packed digits, whose last nibble is the sign.
    pub fn read(content: &[u8]) -> Option<Decimal> {
        let (scale, packed) = content.split_first()?;
        let (last, others) = packed.split_last()?;
        if *scale > DECODED_SCALE_MAX || packed.len() > DECODED_DIGITS_MAX as usize / 2 + 1 {
            return None;
        }
        let mut digits: u128 = 0;
        for byte in others {
            let (high, low) = (byte >> 4, byte & 0x0f);
            if high > 9 || low > 9 {
                return None;
            }
            digits = digits * 100 + u128::from(high * 10 + low);
        }
        if last >> 4 > 9 || last & 0x0f < 10 {
            return None;
        }
        digits = digits.checked_mul(10)? + u128::from(last >> 4);
        (digits < 10u128.pow(DECODED_DIGITS_MAX)).then_some(Decimal {
            is_negative: matches!(last & 0x0f, 0x0b | 0x0d),
            digits,
            scale: u32::from(*scale),
        })
    }

    pub fn of_integer(number: i128) -> Decimal {
        Decimal {
            is_negative: number < 0,
            digits: number.unsigned_abs(),
            scale: 0,
        }
    }

    /// Return the same number without zeroes at its end.
    pub fn stripped(self) -> Decimal {
        let mut found = self;
        while found.scale > 0 && found.digits % 10 == 0 {
            found.digits /= 10;
            found.scale -= 1;
        }
        found
    }

    /// Return the number as an integer, without its sign; None if it has a fraction.
    pub fn whole(self) -> Option<u128> {
        let unit = 10u128.pow(self.scale);
        (self.digits % unit == 0).then_some(self.digits / unit)
    }

    /// Return the nearest double.
    pub fn double(self) -> f64 {
        let found = if self.digits < DOUBLE_EXACT_END && self.scale <= EXACT_POWER_MAX {
            self.digits as f64 / 10f64.powi(self.scale as i32)
        } else {
            let text = format!("{}e-{}", self.digits, self.scale);
            text.parse().unwrap_or(f64::NAN)
        };
        if self.is_negative {
            -found
        } else {
            found
        }
    }

    /// Return whether the server considers the number equal to its nearest double; see cdc.schema.keys.
    pub fn equals(self, double: f64) -> bool {
        match self.whole() {
            Some(whole) if double.abs() < UINT64_END => double.abs() as u128 == whole,
            _ => {
                let mut digits = self.digits;
                while digits != 0 && digits % 10 == 0 {
                    digits /= 10;
                }
                digits < 10u128.pow(DOUBLE_DIGITS)
            }
        }
    }

    /// Return whether the number is less than its nearest double, to which it isn't equal.
    pub fn is_less_than(self, double: f64) -> bool {
        let double = double.abs();
        let order = if double.fract() == 0.0 && double < UINT64_END {
            let whole = (double as u128).checked_mul(10u128.pow(self.scale));
            whole.map_or(Ordering::Less, |whole| self.digits.cmp(&whole))
        } else {
            let short = format!("{double:.14e}");
            if short.parse() == Ok(double) {
                self.cmp_text(&short)
            } else {
                self.cmp_text(&format!("{double:.EXACT_DIGITS$e}"))
            }
        };
        order
            == if self.is_negative {
                Ordering::Greater
            } else {
                Ordering::Less
            }
    }

    /// Compare the number without its sign with a text in scientific notation.
    fn cmp_text(self, text: &str) -> Ordering {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let ours = self.digits.to_string();
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let ours_exponent = ours.len() as i64 - 1 - i64::from(self.scale);
        let theirs = mantissa.replace('.', "");
        ours_exponent
            .cmp(&exponent)
            .then_with(|| ours.trim_end_matches('0').cmp(theirs.trim_end_matches('0')))
    }

    /// Append the number in plain notation, with all its digits.
    pub fn push(self, out: &mut Vec<u8>) {
        if self.is_negative {
            out.push(b'-');
        }
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(self.digits).as_bytes();
        let scale = self.scale as usize;
        let whole = digits.len().saturating_sub(scale);
        out.extend_from_slice(if whole == 0 { b"0" } else { &digits[..whole] });
        if scale > 0 {
            out.push(b'.');
            out.resize(out.len() + scale.saturating_sub(digits.len()), b'0');
            out.extend_from_slice(&digits[whole..]);
        }
    }
}

/// A point in time.
pub struct Datetime {
    pub seconds: i64,
    pub nanosecond: i32,
    pub offset_minutes: i16,
    pub timezone_index: i16,
}

impl Datetime {
    /// Decode an extension's content (little-endian): seconds int64; unless all are zero, nanoseconds int32, offset int16, zone
    /// int16.
    pub fn read(content: &[u8]) -> Option<Datetime> {
        let seconds = i64::from_le_bytes(content.get(..8)?.try_into().ok()?);
        let (nanosecond, offset_minutes, timezone_index) = match content[8..] {
            [] => (0, 0, 0),
            [a, b, c, d, e, f, g, h] => (
                i32::from_le_bytes([a, b, c, d]),
                i16::from_le_bytes([e, f]),
                i16::from_le_bytes([g, h]),
            ),
            _ => return None,
        };
        Some(Datetime {
            seconds,
            nanosecond,
            offset_minutes,
            timezone_index,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{fraction}");
        Decimal {
            is_negative: text.starts_with('-'),
            digits: digits.trim_start_matches('-').parse().unwrap(),
            scale: fraction.len() as u32,
        }
    }

    #[test]
    fn decimals_are_decoded_and_written() {
        for (content, text) in [
            (&b"\x02\x12\x3c"[..], "1.23"),
            (b"\x02\x00\x5d", "-0.05"),
            (b"\x00\x0c", "0"),
            (b"\x01\x10\x0b", "-10.0"),
        ] {
            let mut out = Vec::new();
            Decimal::read(content).unwrap().push(&mut out);
            assert_eq!(out, text.as_bytes());
        }
        for content in [
            &b""[..],
            b"\x02",
            b"\x02\x1a\x3c",
            b"\x02\x12\x35",
            b"\xff\x1c",
            b"\x27\x1c",
            // Of 39 digits; the second one doesn't fit into 128 bits.
            b"\x00\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0c",
            b"\x00\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0c",
        ] {
            assert_eq!(Decimal::read(content), None, "{content:?}");
        }
        assert_eq!(decimal("1.200").stripped(), decimal("1.2"));
    }

    #[test]
    fn numbers_are_equal_to_doubles_of_their_first_digits() {
        for (text, is_equal) in [
            ("0.1", true),
            ("0.1000000000000000001", false),
            ("9007199254740993", false),
            ("9007199254740992", true),
            ("9007199254740993.5", false),
            ("123000000000000000000000", true),
            ("123456789012345678901234", false),
            ("18446744073709551615", false),
        ] {
            let number = decimal(text);
            assert_eq!(number.equals(number.double()), is_equal, "{text}");
        }
        for (text, is_less) in [
            ("0.1000000000000000001", false), // the double counts as 0.1 here, not as 0.1000000000000000055
            ("-0.1000000000000000001", true),
            ("9007199254740993", false),
            ("18446744073709551615", true),
            ("0.30000000000000004", true), // the double is 0.3000000000000000444
            ("0.300000000000000045", false),
        ] {
            let number = decimal(text);
            assert_eq!(number.is_less_than(number.double()), is_less, "{text}");
        }
    }
}
