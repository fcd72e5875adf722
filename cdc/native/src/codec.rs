//! Splitting a stream's bytes into frames, and reading each frame's header; as cdc.protocol.codec and the assembler's columns.
//!
//! This module reads only frames that consist of a header map with plain keys and at most one body map. If a feed contains any
//! other (odd) frame, Python decodes the entire feed and reports what is wrong with it.

use crate::constants::{
    COMMIT, DELETE, FLAGS, GROUP_ID, INSERT, LSN, NOP, RAFT_CONFIRM, RAFT_DEMOTE, RAFT_PROMOTE,
    RAFT_ROLLBACK, REPLACE, REPLICA_ID, REQUEST_TYPE, SPACE_ID, TIMESTAMP, TSN, UPDATE, UPSERT,
};
use crate::layout::{Reader, Value};

pub const LENGTH_BYTES: usize = 5;
const LENGTH_MARKER: u8 = 0xce;
const ORIGIN_END: u64 = 32;
/// Upper bound of a time, in seconds: after the year 5000, so no clock shows it; in microseconds it must fit into 64 bits.
const TIMESTAMP_MAX: f64 = 1e11;

/// One frame: its place in the data, and its header.
#[derive(Clone, Debug)]
pub struct Row {
    pub begin: usize,
    pub body: usize,
    pub end: usize,
    pub kind: u64,
    pub origin: u64,
    pub lsn: u64,
    /// TSN as in the header: the lsn minus that of the transaction's first row. None if the row is a transaction of its own.
    pub tsn: Option<u64>,
    pub flags: u64,
    pub timestamp: f64,
    /// Whether the header names a group; the row may then be a local one.
    pub has_group: bool,
    /// Whether the header has all fields of a stream's row, with values of the right types and in the allowed ranges.
    pub is_sound: bool,
}

impl Row {
    fn new(begin: usize, end: usize) -> Self {
        Row {
            begin,
            body: 0,
            end,
            kind: u64::MAX,
            origin: 0,
            lsn: 0,
            tsn: None,
            flags: 0,
            timestamp: 0.0,
            has_group: false,
            is_sound: true,
        }
    }

    fn look_at_ranges(&mut self) {
        self.is_sound = self.is_sound
            && (1..ORIGIN_END).contains(&self.origin)
            && self.lsn > 0
            && self.lsn < 1 << 63
            && self.tsn.unwrap_or(0) < self.lsn
            && (1.0..TIMESTAMP_MAX).contains(&self.timestamp);
    }

    /// Return the transaction's identity: its origin, and the lsn of its first row.
    pub fn transaction(&self) -> (u64, u64) {
        (self.origin, self.lsn.wrapping_sub(self.tsn.unwrap_or(0)))
    }

    /// Return whether a transaction ends with this row. If not, only a row of another one tells that no more of it follow.
    pub fn is_last(&self) -> bool {
        self.tsn.is_none() || self.flags & COMMIT != 0
    }

    pub fn is_row(&self) -> bool {
        let is_control = matches!(
            self.kind,
            RAFT_PROMOTE | RAFT_DEMOTE | RAFT_CONFIRM | RAFT_ROLLBACK
        );
        is_change(self.kind) || is_control || self.kind == NOP
    }
}

/// Return the ends of the complete frames, and how many bytes one more needs in all. None if a length is malformed or too large.
pub fn walk(data: &[u8], frame_bytes_max: usize) -> Option<(Vec<usize>, usize)> {
    let mut ends = Vec::new();
    let mut at = 0;
    while at + LENGTH_BYTES <= data.len() {
        if data[at] != LENGTH_MARKER {
            return None;
        }
        let length =
            u32::from_be_bytes([data[at + 1], data[at + 2], data[at + 3], data[at + 4]]) as usize;
        if length > frame_bytes_max {
            return None;
        }
        let end = at + LENGTH_BYTES + length;
        if end > data.len() {
            return Some((ends, end));
        }
        ends.push(end);
        at = end;
    }
    Some((ends, at + LENGTH_BYTES))
}

/// Read the headers of consecutive frames. None if a frame isn't a header map with plain keys and at most one body map.
pub fn scan(data: &[u8], ends: &[usize]) -> Option<Vec<Row>> {
    let mut rows = Vec::with_capacity(ends.len());
    let mut begin = 0;
    for &end in ends {
        rows.push(frame(data.get(..end)?, begin)?);
        begin = end;
    }
    Some(rows)
}

/// Read rows of a log file, which have no lengths, and append them to `wire` as frames of a stream. Return the rows, and the end
/// of the last complete one; the bytes after it may be incomplete or malformed.
pub fn scan_log(data: &[u8], wire: &mut Vec<u8>) -> (Vec<Row>, usize) {
    let mut rows = Vec::new();
    let mut at = 0;
    while let Some((mut row, end)) = log_row(data, at) {
        let begin = wire.len();
        let Ok(size) = u32::try_from(end - at) else {
            break;
        };
        wire.push(LENGTH_MARKER);
        wire.extend_from_slice(&size.to_be_bytes());
        wire.extend_from_slice(&data[at..end]);
        row.begin = begin;
        row.body = begin + LENGTH_BYTES + (row.body - at);
        row.end = wire.len();
        rows.push(row);
        at = end;
    }
    (rows, at)
}

/// Read one row of a log file; return it and its end. In a log file, only a NOP has no body.
fn log_row(data: &[u8], begin: usize) -> Option<(Row, usize)> {
    let mut reader = Reader::new(data, begin);
    let mut row = Row::new(begin, 0);
    header(&mut reader, &mut row)?;
    row.body = reader.at;
    if row.kind == u64::MAX {
        return None;
    }
    if row.kind != NOP {
        body(&mut reader)?;
    }
    row.look_at_ranges();
    Some((row, reader.at))
}

/// Skip a body: a map with one-byte keys.
#[inline]
fn body(reader: &mut Reader) -> Option<()> {
    let count = short_map(reader)?;
    for _ in 0..count {
        short_key(reader)?;
        reader.skip()?;
    }
    Some(())
}

#[inline]
fn frame(data: &[u8], begin: usize) -> Option<Row> {
    let mut reader = Reader::new(data, begin + LENGTH_BYTES);
    let mut row = Row::new(begin, data.len());
    header(&mut reader, &mut row)?;
    row.body = reader.at;
    if reader.at < data.len() {
        body(&mut reader)?;
        if reader.at != data.len() {
            return None;
        }
    }
    row.look_at_ranges();
    Some(row)
}

#[inline]
fn header(reader: &mut Reader, row: &mut Row) -> Option<()> {
    let count = short_map(reader)?;
    for _ in 0..count {
        let key = short_key(reader)?;
        let at = reader.at;
        match (key, reader.value()?) {
            (REQUEST_TYPE, Value::Unsigned(number)) => row.kind = number,
            (REPLICA_ID, Value::Unsigned(number)) => row.origin = number,
            (LSN, Value::Unsigned(number)) => row.lsn = number,
            (TIMESTAMP, Value::Double(seconds)) => row.timestamp = seconds,
            (TSN, Value::Unsigned(number)) => row.tsn = Some(number),
            (FLAGS, Value::Unsigned(number)) => row.flags = number,
            (REQUEST_TYPE, _) => return None,
            (GROUP_ID, _) => {
                row.has_group = true;
                reader.at = at;
                reader.skip()?;
            }
            (REPLICA_ID | LSN | TIMESTAMP | TSN | FLAGS, _) => {
                row.is_sound = false;
                reader.at = at;
                reader.skip()?;
            }
            _ => {
                reader.at = at;
                reader.skip()?;
            }
        }
    }
    Some(())
}

#[inline]
fn short_map(reader: &mut Reader) -> Option<usize> {
    let first = reader.peek()?;
    reader.at += 1;
    (first & 0xf0 == 0x80).then_some(usize::from(first & 0x0f))
}

#[inline]
fn short_key(reader: &mut Reader) -> Option<u8> {
    let key = reader.peek()?;
    reader.at += 1;
    (key < 0x80).then_some(key)
}

/// Return whether a request of this type changes a row.
#[inline]
pub fn is_change(kind: u64) -> bool {
    matches!(kind, INSERT | REPLACE | UPDATE | DELETE | UPSERT)
}

/// Return the space's id, which must be the first value of a body, as in all bodies that servers write.
#[inline]
pub fn space_id_of(frame: &[u8], body: usize) -> Option<u64> {
    if *frame.get(body + 1)? != SPACE_ID {
        return None;
    }
    Reader::new(frame, body + 2).unsigned()
}

/// End of a transaction that begins with a given row.
pub enum Extent {
    /// Complete; the index after its last row. It ends with the row that has the COMMIT flag, or before a row of another
    /// transaction, as a relay never interleaves two (the row with the flag may be one that isn't relayed).
    Whole(usize),
    /// Its last row hasn't arrived.
    Open,
    /// Interrupted; the index of the interrupting row, which is unsound, or of a transaction that can't be the next.
    Broken(usize),
}

pub fn extent(rows: &[Row], at: usize) -> Extent {
    if rows[at].tsn.is_none() {
        return Extent::Whole(at + 1);
    }
    let transaction = rows[at].transaction();
    for (index, row) in rows.iter().enumerate().skip(at) {
        // An unsound row can't be trusted: leave it to the Python path.
        if !row.is_sound {
            return Extent::Broken(index);
        }
        if row.tsn.is_none() || row.transaction() != transaction {
            let (origin, tsn) = row.transaction();
            let is_next = origin != transaction.0 || tsn > rows[index - 1].lsn;
            return if is_next {
                Extent::Whole(index)
            } else {
                Extent::Broken(index)
            };
        }
        if row.flags & COMMIT != 0 {
            return Extent::Whole(index + 1);
        }
    }
    Extent::Open
}

/// Return the end of a run of complete transactions from row `at` on. The run ends once it has `count_max` rows, and has at least
/// one transaction if that is complete. A broken transaction ends the run and is included, with the interrupting row.
pub fn whole_until(rows: &[Row], at: usize, count_max: usize) -> usize {
    let mut until = at;
    while until < rows.len() && (until == at || until - at < count_max) {
        match extent(rows, until) {
            Extent::Whole(end) => until = end,
            Extent::Broken(index) => return index + 1,
            Extent::Open => break,
        }
    }
    until
}

/// Return the index after the row that ends the transaction open at row `at`; the number of rows if no row ends it.
pub fn end_of_open(rows: &[Row], at: usize) -> usize {
    for (index, row) in rows.iter().enumerate().skip(at) {
        if row.is_last() {
            return index + 1;
        }
    }
    rows.len()
}

/// Return whether all these rows belong to the open transaction of `before`, and none of them ends it.
pub fn continues_open(rows: &[Row], before: &Row) -> bool {
    let transaction = before.transaction();
    rows.iter()
        .all(|row| row.is_sound && row.transaction() == transaction && !row.is_last())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn framed(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![LENGTH_MARKER];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn header(lsn: u8, more: &[u8]) -> Vec<u8> {
        let mut bytes = vec![
            0x84 + (more.len() / 2) as u8,
            REQUEST_TYPE,
            2,
            REPLICA_ID,
            1,
            LSN,
            lsn,
            TIMESTAMP,
            0xcb,
        ];
        bytes.extend(2.5f64.to_be_bytes());
        bytes.extend(more);
        bytes.extend(b"\x82\x10\xcd\x02\x00\x21\x91\x01");
        framed(&bytes)
    }

    fn scanned(frames: &[Vec<u8>]) -> Vec<Row> {
        let data = frames.concat();
        let (ends, _) = walk(&data, 1 << 20).unwrap();
        assert_eq!(ends.len(), frames.len());
        scan(&data, &ends).unwrap()
    }

    #[test]
    fn frames_are_cut_where_they_end() {
        let data = [header(5, &[]), header(6, &[])].concat();
        let one = data.len() / 2;
        assert_eq!(
            walk(&data, 1 << 20).unwrap(),
            (vec![one, 2 * one], 2 * one + LENGTH_BYTES)
        );
        assert_eq!(
            walk(&data[..one + 7], 1 << 20).unwrap(),
            (vec![one], 2 * one)
        );
        assert!(walk(&data, 3).is_none());
        assert!(walk(b"\xcd\x01\x01\x01\x01", 1 << 20).is_none());
    }

    #[test]
    fn headers_are_read() {
        let rows = scanned(&[
            header(5, &[]),
            header(6, &[TSN, 0]),
            header(7, &[TSN, 1, FLAGS, 1]),
        ]);
        assert_eq!(
            (rows[0].kind, rows[0].origin, rows[0].lsn, rows[0].timestamp),
            (2, 1, 5, 2.5)
        );
        assert!(rows.iter().all(|row| row.is_sound && row.is_row()));
        assert_eq!(rows[2].transaction(), (1, 6));
        assert_eq!((rows[2].flags, rows[2].tsn), (1, Some(1)));
    }

    #[test]
    fn transactions_are_found() {
        let rows = scanned(&[
            header(5, &[]),
            header(6, &[TSN, 0]),
            header(7, &[TSN, 1, FLAGS, 1]),
            header(8, &[TSN, 0]),
        ]);
        assert!(matches!(extent(&rows, 0), Extent::Whole(1)));
        assert!(matches!(extent(&rows, 1), Extent::Whole(3)));
        assert!(matches!(extent(&rows, 3), Extent::Open));
        assert_eq!(
            (
                whole_until(&rows, 0, 1),
                whole_until(&rows, 0, 9),
                whole_until(&rows, 3, 9)
            ),
            (1, 3, 3)
        );
        assert_eq!((end_of_open(&rows, 1), end_of_open(&rows, 3)), (3, 4));
    }

    #[test]
    fn a_transaction_goes_on_until_its_end() {
        let rows = scanned(&[
            header(6, &[TSN, 0]),
            header(7, &[TSN, 1]),
            header(8, &[TSN, 2, FLAGS, 1]),
            header(9, &[]),
            header(10, &[TSN, 0]),
        ]);
        assert!(continues_open(&rows[1..2], &rows[0]) && continues_open(&[], &rows[0]));
        assert!(!continues_open(&rows[1..3], &rows[0]));
        assert!(!continues_open(&rows[3..4], &rows[0]));
        assert!(!continues_open(&rows[4..], &rows[0]));
    }

    #[test]
    fn what_interrupts_a_transaction_is_handed_back_with_it() {
        let rows = scanned(&[
            header(6, &[TSN, 0]),
            header(7, &[TSN, 1]),
            header(7, &[TSN, 0, FLAGS, 1]),
            header(10, &[]),
        ]);
        assert!(matches!(extent(&rows, 0), Extent::Broken(2)));
        assert_eq!(whole_until(&rows, 0, 9), 3);
    }

    #[test]
    fn the_next_transaction_ends_one_without_its_last_row() {
        let rows = scanned(&[
            header(6, &[TSN, 0]),
            header(7, &[TSN, 1]),
            header(8, &[TSN, 0]),
            header(9, &[]),
        ]);
        assert!(matches!(extent(&rows, 0), Extent::Whole(2)));
        assert!(matches!(extent(&rows, 2), Extent::Whole(3)));
        assert!(matches!(extent(&rows[..3], 2), Extent::Open));
        assert_eq!(whole_until(&rows, 0, 9), 4);
        assert_eq!(
            whole_until(&rows[..3], 0, 9),
            2,
            "what follows is kept until its end"
        );
    }

    #[test]
    fn rows_of_a_file_become_frames() {
        let frames = [
            header(5, &[]),
            header(6, &[GROUP_ID, 1]),
            framed(b"\x82\x00\x0c\x03\x07"),
        ];
        let file: Vec<u8> = frames
            .iter()
            .flat_map(|frame| &frame[LENGTH_BYTES..])
            .copied()
            .collect();
        let mut wire = Vec::new();
        let (rows, end) = scan_log(&file, &mut wire);
        assert_eq!((wire, end), (frames.concat(), file.len()));
        assert_eq!(
            rows.iter()
                .map(|row| (row.lsn, row.has_group))
                .collect::<Vec<_>>(),
            [(5, false), (6, true), (7, false)]
        );
        for cut in 0..frames[0].len() - LENGTH_BYTES {
            assert_eq!(scan_log(&file[..cut], &mut Vec::new()).1, 0);
        }
    }

    #[test]
    fn odd_frames_are_left_to_python() {
        for payload in [
            &b"\x93\x01\x02\x03"[..],
            b"\x81\x00\x02\x91\x01",
            b"\x81\x00\x02\x80\x80",
            b"\x81\xa1a\x02\x80",
            b"\x81\x00\xa1a",
            b"",
        ] {
            let data = framed(payload);
            assert!(scan(&data, &[data.len()]).is_none(), "{payload:?}");
        }
        let bare = framed(b"\x81\x00\x02");
        assert!(!scan(&bare, &[bare.len()]).unwrap()[0].is_sound);
    }
}
