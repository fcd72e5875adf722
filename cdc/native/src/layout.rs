//! The boundaries of MessagePack values, found without decoding them; as cdc.protocol.layout.
//!
//! Functions return None if a value is incomplete, of another type than expected, or begins with a byte with which none begins.

/// Size of a value in bytes, by its first byte; 0 if the first byte doesn't determine it.
const SIZES: [u8; 256] = sizes();

const fn sizes() -> [u8; 256] {
    let mut sizes = [0u8; 256];
    let mut first = 0;
    while first < 256 {
        sizes[first] = match first {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => 1,
            0xa0..=0xbf => 1 + (first as u8 - 0xa0),
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 | 0xd4 => 3,
            0xd5 => 4,
            0xca | 0xce | 0xd2 => 5,
            0xd6 => 6,
            0xcb | 0xcf | 0xd3 => 9,
            0xd7 => 10,
            0xd8 => 18,
            _ => 0,
        };
        first += 1;
    }
    sizes
}

fn unsigned_at(data: &[u8], begin: usize, width: usize) -> Option<u64> {
    let bytes = data.get(begin..begin.checked_add(width)?)?;
    Some(
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}

/// Return the number of elements of the array (or of pairs of the map), and where the first one begins.
pub fn header(data: &[u8], position: usize) -> Option<(u64, usize)> {
    let first = *data.get(position)?;
    match first {
        0x80..=0x9f => Some((u64::from(first & 0x0f), position + 1)),
        0xdc | 0xde => Some((unsigned_at(data, position + 1, 2)?, position + 3)),
        0xdd | 0xdf => Some((unsigned_at(data, position + 1, 4)?, position + 5)),
        _ => None,
    }
}

pub fn is_array(first: u8) -> bool {
    matches!(first, 0x90..=0x9f | 0xdc | 0xdd)
}

pub fn is_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

/// Return where the content of the string, binary or extension begins, and its length. The content may be incomplete.
pub fn content(data: &[u8], position: usize) -> Option<(usize, usize)> {
    let first = *data.get(position)?;
    let (width, more) = match first {
        0xa0..=0xbf => return Some((position + 1, usize::from(first & 0x1f))),
        0xd4..=0xd8 => return Some((position + 2, 1 << (first - 0xd4))),
        0xc4 | 0xd9 => (1, 0),
        0xc5 | 0xda => (2, 0),
        0xc6 | 0xdb => (4, 0),
        0xc7 => (1, 1),
        0xc8 => (2, 1),
        0xc9 => (4, 1),
        _ => return None,
    };
    let length = usize::try_from(unsigned_at(data, position + 1, width)?).ok()?;
    Some((position + 1 + width + more, length))
}

/// Return the end of the value.
pub fn end_of(data: &[u8], mut position: usize) -> Option<usize> {
    let mut left: u64 = 1;
    while left > 0 {
        let first = *data.get(position)?;
        let size = usize::from(SIZES[usize::from(first)]);
        left -= 1;
        if size > 0 {
            position += size;
        } else if is_array(first) || is_map(first) {
            let (count, begin) = header(data, position)?;
            // Each element has at least one byte, so a hostile count can't make the loop continue past the data.
            left = left.checked_add(if is_map(first) { count * 2 } else { count })?;
            position = begin;
        } else {
            let (begin, length) = content(data, position)?;
            position = begin.checked_add(length)?;
        }
    }
    (position <= data.len()).then_some(position)
}

/// Return the integer at `position`, in any of its encodings.
pub fn integer(data: &[u8], position: usize) -> Option<i128> {
    let first = *data.get(position)?;
    Some(match first {
        0x00..=0x7f => i128::from(first),
        0xe0..=0xff => i128::from(first as i8),
        0xcc..=0xcf => i128::from(unsigned_at(data, position + 1, 1 << (first - 0xcc))?),
        0xd0 => i128::from(unsigned_at(data, position + 1, 1)? as u8 as i8),
        0xd1 => i128::from(unsigned_at(data, position + 1, 2)? as u16 as i16),
        0xd2 => i128::from(unsigned_at(data, position + 1, 4)? as u32 as i32),
        0xd3 => i128::from(unsigned_at(data, position + 1, 8)? as i64),
        _ => return None,
    })
}

/// Return where field `place` of an array begins.
pub fn element(data: &[u8], place: usize) -> Option<usize> {
    let (count, mut position) = header(data, 0).filter(|_| is_array(data[0]))?;
    if place as u64 >= count {
        return None;
    }
    for _ in 0..place {
        position = end_of(data, position)?;
    }
    Some(position)
}

/// A step of a JSON path: a place in an array (from 0), or a key of a map.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Place(u64),
    Name(Vec<u8>),
}

/// Return where the value at a path in the value at `position` begins. None if there is none, or if a map on the way has the key
/// twice, or a key that only the Python path compares.
pub fn descend(data: &[u8], mut position: usize, path: &[Step]) -> Option<usize> {
    for step in path {
        let first = *data.get(position)?;
        let (count, begin) = header(data, position)?;
        position = match step {
            Step::Place(place) if is_array(first) && *place < count => {
                (0..*place).try_fold(begin, |position, _| end_of(data, position))?
            }
            Step::Name(name) if is_map(first) => value_of(data, begin, count, name)?,
            _ => return None,
        };
    }
    Some(position)
}

/// Return where the value of a key begins among `count` pairs.
fn value_of(data: &[u8], mut position: usize, count: u64, name: &[u8]) -> Option<usize> {
    let mut found = None;
    for _ in 0..count {
        let key = position;
        if is_array(*data.get(key)?) || is_map(data[key]) {
            return None;
        }
        position = end_of(data, key)?;
        if string(data, key) == Some(name) && found.replace(position).is_some() {
            return None;
        }
        position = end_of(data, position)?;
    }
    found
}

/// Return the content of the string at `position`; None if there is none.
pub fn string(data: &[u8], position: usize) -> Option<&[u8]> {
    if !matches!(*data.get(position)?, 0xa0..=0xbf | 0xd9..=0xdb) {
        return None;
    }
    let (begin, length) = content(data, position)?;
    data.get(begin..begin.checked_add(length)?)
}

/// Append an integer in its shortest form. None if it doesn't fit into 64 bits.
pub fn push_integer(out: &mut Vec<u8>, value: i128) -> Option<()> {
    if value >= 0 {
        let value = u64::try_from(value).ok()?;
        match value {
            0..=0x7f => out.push(value as u8),
            0x80..=0xff => out.extend([0xcc, value as u8]),
            0x100..=0xffff => {
                out.push(0xcd);
                out.extend((value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                out.push(0xce);
                out.extend((value as u32).to_be_bytes());
            }
            _ => {
                out.push(0xcf);
                out.extend(value.to_be_bytes());
            }
        }
    } else {
        let value = i64::try_from(value).ok()?;
        match value {
            -0x20..=-1 => out.push(value as u8),
            -0x80..=-0x21 => out.extend([0xd0, value as u8]),
            -0x8000..=-0x81 => {
                out.push(0xd1);
                out.extend((value as i16).to_be_bytes());
            }
            -0x8000_0000..=-0x8001 => {
                out.push(0xd2);
                out.extend((value as i32).to_be_bytes());
            }
            _ => {
                out.push(0xd3);
                out.extend(value.to_be_bytes());
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_their_bytes_say() {
        for (bytes, end) in [
            (&b"\x01"[..], Some(1)),
            (b"\xa3abc", Some(4)),
            (b"\xa3ab", None),
            (b"\x92\x01\x81\xa1k\xc0", Some(6)),
            (b"\x92\x01\x81\xa1k", None),
            (b"\xdd\xff\xff\xff\xff", None),
            (b"\xc1", None),
            (b"\xc7\x02\x01xy", Some(5)),
            (b"\xd8\x02", None),
            (b"", None),
        ] {
            assert_eq!(end_of(bytes, 0), end, "{bytes:?}");
        }
    }

    #[test]
    fn paths_lead_to_one_value() {
        let name = |text: &str| Step::Name(text.into());
        let data = b"\x92\x01\x84\xa1a\x92\x05\x06\x07\xa1x\xc0\xa1y\xd9\x01b\x08";
        for (path, position) in [
            (&[Step::Place(0)][..], Some(1)),
            (&[Step::Place(1), name("a"), Step::Place(1)], Some(7)),
            (&[Step::Place(1), name("b")], Some(17)),
            (&[Step::Place(1), name("c")], None),
            (&[Step::Place(1), Step::Place(7)], None),
            (&[Step::Place(2)], None),
            (&[Step::Place(0), name("a")], None),
        ] {
            assert_eq!(descend(data, 0, path), position, "{path:?}");
        }
        assert_eq!(
            descend(b"\x82\xa1a\x01\xd9\x01a\x02", 0, &[name("a")]),
            None
        );
        assert_eq!(descend(b"\x82\xa1a\x01\x90\x02", 0, &[name("a")]), None);
    }

    #[test]
    fn integers_are_read_and_written() {
        for number in [
            0,
            127,
            128,
            255,
            256,
            65_535,
            65_536,
            u32::MAX as i128,
            u64::MAX as i128,
            -1,
            -32,
            -33,
            -128,
            -129,
            -32_768,
            -32_769,
            i32::MIN as i128,
            i32::MIN as i128 - 1,
            i64::MIN as i128,
        ] {
            let mut out = Vec::new();
            push_integer(&mut out, number).unwrap();
            assert_eq!(integer(&out, 0), Some(number));
            assert_eq!(end_of(&out, 0), Some(out.len()));
        }
        assert_eq!(push_integer(&mut Vec::new(), u64::MAX as i128 + 1), None);
        assert_eq!(integer(b"\xcd\x01", 0), None);
    }
}
