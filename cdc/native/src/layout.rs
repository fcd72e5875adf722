//! MessagePack: values read one by one and without copying, and the places where they begin and end; as cdc.protocol.layout.
//!
//! Nothing here trusts its input: functions return None if a value is incomplete, of another type than expected, or begins with a
//! byte with which none begins.

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

/// One value. For an array or a map, it has the number of elements or pairs, which follow.
pub enum Value<'a> {
    Nil,
    Boolean(bool),
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Array(usize),
    Map(usize),
    Extension(i8, &'a [u8]),
}

/// Bytes, and the offset up to which they have been read.
#[derive(Clone)]
pub struct Reader<'a> {
    pub data: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    #[inline]
    fn size(&mut self, width: usize) -> Option<usize> {
        Some(match width {
            1 => usize::from(self.fixed::<1>()?[0]),
            2 => usize::from(u16::from_be_bytes(self.fixed()?)),
            _ => usize::try_from(u32::from_be_bytes(self.fixed()?)).ok()?,
        })
    }

    fn extension(&mut self, size: usize) -> Option<Value<'a>> {
        let code = self.fixed::<1>()?[0] as i8;
        Some(Value::Extension(code, self.take(size)?))
    }

    /// Read the next value.
    #[inline]
    pub fn value(&mut self) -> Option<Value<'a>> {
        let first = self.peek()?;
        self.at += 1;
        Some(match first {
            0x00..=0x7f => Value::Unsigned(u64::from(first)),
            0x80..=0x8f => Value::Map(usize::from(first & 0x0f)),
            0x90..=0x9f => Value::Array(usize::from(first & 0x0f)),
            0xa0..=0xbf => Value::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return None,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xc4..=0xc6 => {
                let size = self.size(1 << (first - 0xc4))?;
                Value::Binary(self.take(size)?)
            }
            0xc7..=0xc9 => {
                let size = self.size(1 << (first - 0xc7))?;
                self.extension(size)?
            }
            0xca => Value::Double(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Value::Double(f64::from_be_bytes(self.fixed()?)),
            0xcc => Value::Unsigned(u64::from(self.fixed::<1>()?[0])),
            0xcd => Value::Unsigned(u64::from(u16::from_be_bytes(self.fixed()?))),
            0xce => Value::Unsigned(u64::from(u32::from_be_bytes(self.fixed()?))),
            0xcf => Value::Unsigned(u64::from_be_bytes(self.fixed()?)),
            0xd0 => Value::Signed(i64::from(self.fixed::<1>()?[0] as i8)),
            0xd1 => Value::Signed(i64::from(i16::from_be_bytes(self.fixed()?))),
            0xd2 => Value::Signed(i64::from(i32::from_be_bytes(self.fixed()?))),
            0xd3 => Value::Signed(i64::from_be_bytes(self.fixed()?)),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xd9..=0xdb => {
                let size = self.size(1 << (first - 0xd9))?;
                Value::Text(self.take(size)?)
            }
            0xdc | 0xdd => Value::Array(self.size(2 << (first - 0xdc))?),
            0xde | 0xdf => Value::Map(self.size(2 << (first - 0xde))?),
            0xe0..=0xff => Value::Signed(i64::from(first as i8)),
        })
    }

    /// Read the next value, which must be an unsigned integer.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        match self.value()? {
            Value::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Skip the next value, including its contents.
    #[inline]
    pub fn skip(&mut self) -> Option<()> {
        let mut left: usize = 1;
        while left > 0 {
            left -= 1;
            let size = usize::from(SIZES[usize::from(self.peek()?)]);
            if size > 0 {
                self.at += size;
                continue;
            }
            match self.value()? {
                // Each element has at least one byte, so a hostile count can't make the loop continue past the data.
                Value::Array(count) => left = left.checked_add(count)?,
                Value::Map(count) => left = left.checked_add(count.checked_mul(2)?)?,
                _ => {}
            }
        }
        (self.at <= self.data.len()).then_some(())
    }
}

/// Return the number of elements of the array (or of pairs of the map), and where the first one begins.
#[inline]
pub fn header(data: &[u8], position: usize) -> Option<(u64, usize)> {
    if let first @ 0x80..=0x9f = *data.get(position)? {
        return Some((u64::from(first & 0x0f), position + 1));
    }
    let mut reader = Reader::new(data, position);
    match reader.value()? {
        Value::Array(count) | Value::Map(count) => Some((count as u64, reader.at)),
        _ => None,
    }
}

pub fn is_array(first: u8) -> bool {
    matches!(first, 0x90..=0x9f | 0xdc | 0xdd)
}

pub fn is_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

/// Return the end of the value.
#[inline]
pub fn end_of(data: &[u8], position: usize) -> Option<usize> {
    let mut reader = Reader::new(data, position);
    reader.skip()?;
    Some(reader.at)
}

/// Return the integer at `position`, in any of its encodings.
#[inline]
pub fn integer(data: &[u8], position: usize) -> Option<i128> {
    if let first @ 0x00..=0x7f = *data.get(position)? {
        return Some(i128::from(first));
    }
    match Reader::new(data, position).value()? {
        Value::Unsigned(number) => Some(i128::from(number)),
        Value::Signed(number) => Some(i128::from(number)),
        _ => None,
    }
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
#[inline]
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
    match Reader::new(data, position).value()? {
        Value::Text(text) => Some(text),
        _ => None,
    }
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

    #[test]
    fn what_is_not_whole_is_nothing() {
        let whole = b"\x94\x01\xa3abc\x81\xa1k\xcb\x3f\xf0\0\0\0\0\0\0\xc7\x02\x01ab";
        let mut reader = Reader::new(whole, 0);
        assert!(reader.skip().is_some());
        assert_eq!(reader.at, whole.len());
        for length in 0..whole.len() {
            assert!(Reader::new(&whole[..length], 0).skip().is_none());
        }
    }

    #[test]
    fn what_a_length_promises_is_not_believed() {
        for hostile in [
            &b"\xdf\xff\xff\xff\xff"[..],
            b"\xdd\xff\xff\xff\xff\x01",
            b"\xc6\xff\xff\xff\xff",
            b"\xc1",
        ] {
            assert!(Reader::new(hostile, 0).skip().is_none());
        }
    }
}
