//! What the rules for columns publish of a row's fields, as cdc.events.columns says.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::json_values::{is_utf8, push_any, push_text, Refused, Written};
use crate::layout::{Reader, Value};

/// What is published of a field.
pub enum Treatment {
    Shown,
    Excluded,
    Hashed,
    /// The first characters, at most so many.
    Truncated(usize),
    /// A constant, as JSON.
    Masked(Vec<u8>),
}

/// Treatments of one form's fields.
pub struct ColumnPlan {
    treatments: Vec<Treatment>,
    /// State of the hash after the salt.
    salted: Option<Hmac<Sha256>>,
}

impl ColumnPlan {
    pub fn new(treatments: Vec<Treatment>, salt: &[u8]) -> Self {
        ColumnPlan {
            treatments,
            salted: Hmac::new_from_slice(salt).ok(), // a key of any length will do
        }
    }

    /// Return the treatment of the field at a place.
    pub fn treatment(&self, place: usize) -> &Treatment {
        self.treatments.get(place).unwrap_or(&Treatment::Shown)
    }

    /// Append what is published of the value at `reader`, which is masked. `text` is room for its text.
    pub fn push_masked(
        &self,
        out: &mut Vec<u8>,
        treatment: &Treatment,
        reader: &mut Reader,
        text: &mut Vec<u8>,
    ) -> Written {
        if let Treatment::Masked(constant) = treatment {
            reader.skip().ok_or(Refused)?;
            out.extend_from_slice(constant);
            return Ok(());
        }
        let begin = reader.at;
        let mut values = reader.clone();
        let raw = match values.value().ok_or(Refused)? {
            Value::Nil => {
                reader.at = values.at;
                out.extend_from_slice(b"null");
                return Ok(());
            }
            Value::Text(data) if is_utf8(data) || matches!(treatment, Treatment::Hashed) => {
                Some(data)
            }
            Value::Binary(data) if matches!(treatment, Treatment::Hashed) => Some(data),
            _ => None,
        };
        let data = match raw {
            Some(data) => {
                reader.at = values.at;
                data
            }
            None => {
                text.clear();
                reader.at = begin;
                push_any(text, reader, 0)?;
                without_quotes(text)
            }
        };
        match treatment {
            Treatment::Truncated(count) => {
                let shown = std::str::from_utf8(data).map_err(|_| Refused)?;
                let end = shown
                    .char_indices()
                    .nth(*count)
                    .map_or(shown.len(), |(at, _)| at);
                push_text(out, &shown.as_bytes()[..end]);
            }
            _ => {
                let mut hash = self.salted.clone().ok_or(Refused)?;
                hash.update(data);
                push_hexadecimal(out, &hash.finalize().into_bytes());
            }
        }
        Ok(())
    }
}

/// Return a value's JSON without the quotes of a string, which has no escapes: it isn't a value of the type string.
fn without_quotes(json: &[u8]) -> &[u8] {
    match json {
        [b'"', text @ .., b'"'] => text,
        _ => json,
    }
}

fn push_hexadecimal(out: &mut Vec<u8>, data: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for &byte in data {
        out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0x0f)]]);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(treatment: &Treatment, value: &[u8]) -> Result<String, Refused> {
        let (mut out, mut reader) = (Vec::new(), Reader::new(value, 0));
        let plan = ColumnPlan::new(Vec::new(), b"0123456789abcdef");
        plan.push_masked(&mut out, treatment, &mut reader, &mut Vec::new())?;
        assert_eq!(reader.at, value.len());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn characters_are_cut() {
        let cut = |value: &[u8]| masked(&Treatment::Truncated(2), value).unwrap();
        assert_eq!(cut(b"\xa6\xc3\xa4\xc3\xb6\xc3\xbc"), "\"äö\"");
        assert_eq!(cut(b"\xa3a\"b"), "\"a\\\"\"");
        assert_eq!(cut(b"\xa1a"), "\"a\"");
        assert_eq!(cut(b"\xcd\x30\x39"), "\"12\"");
        assert_eq!(cut(b"\x81\xa1a\x01"), "\"{\\\"\"");
        assert_eq!(cut(b"\xc0"), "null");
        assert_eq!(cut(b"\xa1\xff"), "\"/w\"");
    }

    #[test]
    fn a_constant_hides_everything() {
        let constant = Treatment::Masked(b"\"***\"".to_vec());
        for value in [&b"\xc0"[..], b"\xa3abc", b"\x92\x01\xc7\x01\x63\x00"] {
            assert_eq!(masked(&constant, value).unwrap(), "\"***\"");
        }
    }

    #[test]
    fn hashes_are_of_the_text() {
        // printf Ann | openssl dgst -sha256 -hmac 0123456789abcdef
        let ann = "\"993bf55a4da782513aed2f25784cb2b7d9191c100b6e24a3f61ad1619f0372d3\"";
        let hash = |value: &[u8]| masked(&Treatment::Hashed, value).unwrap();
        assert_eq!(hash(b"\xa3Ann"), ann);
        assert_eq!(hash(b"\xa3Ann"), hash(b"\xc4\x03Ann"));
        assert_eq!(hash(b"\x07"), hash(b"\xa17"));
        assert_eq!(hash(b"\xc0"), "null");
        assert_eq!(masked(&Treatment::Hashed, b"\xd4\x63\x00"), Err(Refused));
    }
}
