//! Reader of MessagePack values, one by one and without copying. It decodes only requested values and trusts no input: it returns
//! None for incomplete or invalid data.

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
            match self.value()? {
                // Each element has at least one byte, so a hostile count can't make the loop continue past the data.
                Value::Array(count) => left = left.checked_add(count)?,
                Value::Map(count) => left = left.checked_add(count.checked_mul(2)?)?,
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
