//! Sums of the server's kinds of numbers, with their result types; as cdc.tuples.arithmetic, except for sums that need rounding.

use crate::extensions::{extension_of, Decimal, DECODED_DIGITS_MAX, EXT_DECIMAL};
use crate::layout;

/// Width of a field's floating-point numbers, by its type in the format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Width {
    /// The narrowest that loses nothing.
    Any,
    Float,
    Double,
}

impl Width {
    pub fn of(field_type: &str) -> Width {
        match field_type {
            "float32" => Width::Float,
            "double" | "float64" => Width::Double,
            _ => Width::Any,
        }
    }
}

/// At most one digit less may follow the point. (Decimals from 3.5 on can be larger.)
const DIGITS_MAX: u32 = DECODED_DIGITS_MAX;
const DECIMAL_END: i128 = 10i128.pow(DIGITS_MAX);

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Integer(i128),
    Float(f64),
    /// The digits as a signed integer, and the number of digits after the point.
    Decimal(i128, u32),
}

impl Number {
    /// Decode a number. None if the value isn't a number, or is a rare one.
    pub fn read(data: &[u8], position: usize) -> Option<Number> {
        let bytes = data.get(position + 1..)?;
        match *data.get(position)? {
            0xca => Some(Number::Float(f64::from(f32::from_be_bytes(
                bytes.get(..4)?.try_into().ok()?,
            )))),
            0xcb => Some(Number::Float(f64::from_be_bytes(
                bytes.get(..8)?.try_into().ok()?,
            ))),
            0xc7 | 0xd4..=0xd8 => decimal(data, position),
            _ => layout::integer(data, position).map(Number::Integer),
        }
    }
}

fn decimal(data: &[u8], position: usize) -> Option<Number> {
    let decimal = Decimal::read(extension_of(data, position, EXT_DECIMAL)?)?;
    if decimal.scale >= DIGITS_MAX || (decimal.is_negative && decimal.digits == 0) {
        return None; // a negative zero, for instance
    }
    let digits = decimal.digits as i128;
    Some(Number::Decimal(
        if decimal.is_negative { -digits } else { digits },
        decimal.scale,
    ))
}

/// Append the sum, or the difference if `minus`. None if the result doesn't fit, or must be rounded.
pub fn push_sum(
    out: &mut Vec<u8>,
    left: Number,
    right: Number,
    minus: bool,
    width: Width,
) -> Option<()> {
    match (left, right) {
        (Number::Integer(left), Number::Integer(right)) => {
            layout::push_integer(out, if minus { left - right } else { left + right })
        }
        (Number::Decimal(..), _) | (_, Number::Decimal(..)) => {
            let ((left, left_scale), (right, right_scale)) = (exact(left)?, exact(right)?);
            let scale = left_scale.max(right_scale);
            let left = aligned(left, scale - left_scale)?;
            let right = aligned(right, scale - right_scale)?;
            push_decimal(out, if minus { left - right } else { left + right }, scale)
        }
        _ => {
            let (left, right) = (float(left)?, float(right)?);
            push_float(out, if minus { left - right } else { left + right }, width)
        }
    }
}

fn exact(number: Number) -> Option<(i128, u32)> {
    match number {
        Number::Integer(number) => Some((number, 0)),
        Number::Decimal(digits, scale) => Some((digits, scale)),
        Number::Float(_) => None,
    }
}

fn aligned(digits: i128, places: u32) -> Option<i128> {
    digits
        .checked_mul(10i128.checked_pow(places)?)
        .filter(|digits| digits.abs() < DECIMAL_END)
}

fn push_decimal(out: &mut Vec<u8>, digits: i128, scale: u32) -> Option<()> {
    if digits.abs() >= DECIMAL_END {
        return None;
    }
    let mut nibbles = digits.unsigned_abs().to_string().into_bytes();
    nibbles.iter_mut().for_each(|digit| *digit -= b'0');
    nibbles.push(if digits < 0 { 0x0d } else { 0x0c });
    if nibbles.len() % 2 == 1 {
        nibbles.insert(0, 0);
    }
    let size = 1 + nibbles.len() / 2;
    match size {
        2 => out.push(0xd5),
        4 => out.push(0xd6),
        8 => out.push(0xd7),
        16 => out.push(0xd8),
        _ => out.extend([0xc7, size as u8]),
    }
    out.extend([EXT_DECIMAL as u8, scale as u8]);
    out.extend(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    Some(())
}

fn float(number: Number) -> Option<f64> {
    match number {
        Number::Integer(number) => Some(number as f64),
        Number::Float(number) => Some(number),
        Number::Decimal(..) => None,
    }
}

fn push_float(out: &mut Vec<u8>, sum: f64, width: Width) -> Option<()> {
    if sum.is_nan() {
        return None; // the bits of the NaN depend on the processor
    }
    let narrow = sum as f32;
    let fits = sum.abs() <= f64::from(f32::MAX) && f64::from(narrow) == sum;
    if width == Width::Float || (fits && width == Width::Any) {
        out.push(0xca);
        out.extend(narrow.to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend(sum.to_be_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(left: &[u8], right: &[u8], minus: bool) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        push_sum(
            &mut out,
            Number::read(left, 0)?,
            Number::read(right, 0)?,
            minus,
            Width::Any,
        )?;
        Some(out)
    }

    #[test]
    fn decimals_are_added_exactly() {
        let (one_and_a_half, twelve) = (b"\xc7\x03\x01\x01\x01\x5c", b"\xd6\x01\x00\x00\x01\x2c");
        assert_eq!(
            sum(one_and_a_half, b"\x02", false).unwrap(),
            b"\xc7\x03\x01\x01\x03\x5c"
        );
        assert_eq!(
            sum(one_and_a_half, twelve, true).unwrap(),
            b"\xc7\x03\x01\x01\x10\x5d"
        );
        assert_eq!(
            sum(one_and_a_half, one_and_a_half, true).unwrap(),
            b"\xd5\x01\x01\x0c"
        );
        assert_eq!(sum(one_and_a_half, b"\xca\x3f\x80\0\0", false), None);
    }

    #[test]
    fn floats_are_as_narrow_as_they_can_be() {
        let half = b"\xcb\x3f\xe0\0\0\0\0\0\0";
        assert_eq!(sum(half, b"\x01", false).unwrap(), b"\xca\x3f\xc0\0\0");
        assert_eq!(
            sum(b"\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a", b"\x00", false).unwrap()[0],
            0xcb
        );
        assert_eq!(sum(b"\xa1x", b"\x01", false), None);
    }
}
