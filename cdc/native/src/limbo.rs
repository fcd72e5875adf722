//! The limbo's decision about many transactions together: which of those that have arrived are certain.
//! cdc.stream.transactions.limbo does the same for single transactions, and is the specification.

use crate::codec::{extent, is_change, space_id_of, Extent, Row};
use crate::constants::{LSN, NOP, RAFT_CONFIRM, REPLICA_ID, WAIT_ACK, WAIT_SYNC};
use crate::layout::{Reader, Value};
use crate::row_path::names_one_space;

/// Highest id of a system space. Rows of these may change the schema.
const SYSTEM_SPACE_MAX: u64 = 511;

/// Consecutive transactions of one origin that have just arrived: asynchronous ones, synchronous ones, and CONFIRMs of earlier
/// ones.
#[derive(Debug, Default, PartialEq)]
pub struct Arrivals {
    /// Lsns of the synchronous transactions, and the indices of their first rows.
    pub lsns: Vec<u64>,
    pub starts: Vec<usize>,
    /// Index after the last transaction's last row.
    pub end: usize,
    /// The highest lsn that a RAFT_CONFIRM among them names; 0 if there is none.
    pub confirmed: u64,
    /// Indices of the CONFIRMs that leave something waiting, so that the position doesn't move past them.
    pub deferred: Vec<usize>,
}

impl Arrivals {
    /// Return the index before which all are certain if the lsns up to `confirmed` are confirmed, and the lsn of the last
    /// synchronous transaction before it, 0 if there is none. A RAFT_CONFIRM releases everything before the first synchronous
    /// transaction past its lsn. As CONFIRMs name only earlier transactions, it is enough to know the highest lsn.
    pub fn certain_until(&self, confirmed: u64) -> (usize, u64) {
        let count = self.lsns.partition_point(|lsn| *lsn <= confirmed);
        let last = count.checked_sub(1).map_or(0, |index| self.lsns[index]);
        (self.starts.get(count).copied().unwrap_or(self.end), last)
    }

    /// Return the arrivals from row `start` on, as if this were the first row.
    pub fn after(&self, start: usize) -> Self {
        let count = self.starts.partition_point(|index| *index < start);
        let deferred = self.deferred.iter().filter(|index| **index >= start);
        Arrivals {
            lsns: self.lsns[count..].to_vec(),
            starts: self.starts[count..].iter().map(|at| at - start).collect(),
            end: self.end.saturating_sub(start),
            confirmed: self.confirmed,
            deferred: deferred.map(|at| at - start).collect(),
        }
    }

    /// Return the index of the first deferred RAFT_CONFIRM from row `at` on, or the end.
    pub fn plain_until(&self, at: usize) -> usize {
        let count = self.deferred.partition_point(|index| *index < at);
        self.deferred.get(count).copied().unwrap_or(self.end)
    }

    pub fn defers(&self, index: usize) -> bool {
        self.deferred.binary_search(&index).is_ok()
    }
}

enum Arrival {
    Asynchronous,
    Synchronous,
    Confirm(u64),
}

/// Return the complete transactions from row `at` on, up to the first one that is uncommon to the limbo:
///
/// - a malformed one, one of another origin, or one that isn't past lsn `after`
/// - one with a system row
/// - one without its last row: what waits is cut into parts, and there it would have no end
/// - a control row, unless it is a RAFT_CONFIRM of earlier transactions of its own origin
///
/// `waiting` is the lsn of the last synchronous transaction that waits before them, 0 if none waits. If none waits and the first
/// transaction doesn't concern the limbo, there are no arrivals.
pub fn arrivals(
    data: &[u8],
    rows: &[Row],
    at: usize,
    synchronous: &[u64],
    has_flags: bool,
    after: u64,
    waiting: u64,
) -> Arrivals {
    let mut found = Arrivals {
        end: at,
        ..Arrivals::default()
    };
    let (mut last_lsn, mut waiting) = (after, waiting);
    let is_behind = waiting > 0;
    while let Some(first) = rows.get(found.end) {
        let Extent::Whole(end) = extent(rows, found.end) else {
            break;
        };
        let transaction = &rows[found.end..end];
        let last = &rows[end - 1];
        let is_next = first.origin == rows[at].origin && first.lsn > last_lsn;
        if !is_next || !last.is_last() || transaction.iter().any(|row| !row.is_sound) {
            break;
        }
        match arrival(data, transaction, synchronous, has_flags) {
            Some(Arrival::Asynchronous) => {
                if found.end == at && !is_behind && last.flags & (WAIT_SYNC | WAIT_ACK) == 0 {
                    break;
                }
            }
            Some(Arrival::Synchronous) => {
                waiting = last.lsn;
                found.lsns.push(last.lsn);
                found.starts.push(found.end);
            }
            Some(Arrival::Confirm(lsn)) => {
                found.confirmed = found.confirmed.max(lsn);
                if found.confirmed < waiting {
                    found.deferred.push(found.end);
                }
            }
            None => break,
        }
        last_lsn = last.lsn;
        found.end = end;
    }
    found
}

/// Return how many transactions there are from row `at` on, up to one without its last row, and how many rows they have, without
/// the CONFIRMs among them.
pub fn waiting_counts(rows: &[Row], at: usize) -> (usize, usize) {
    let (mut count, mut row_count, mut at) = (0, 0, at);
    while at < rows.len() {
        let Extent::Whole(end) = extent(rows, at) else {
            break;
        };
        if !rows[end - 1].is_last() {
            break;
        }
        if rows[at].kind != RAFT_CONFIRM {
            count += 1;
            row_count += end - at;
        }
        at = end;
    }
    (count, row_count)
}

/// Return what a transaction is to the limbo; None if it is uncommon.
fn arrival(data: &[u8], rows: &[Row], synchronous: &[u64], has_flags: bool) -> Option<Arrival> {
    let last = rows.last()?;
    if rows.len() == 1 && last.kind == RAFT_CONFIRM {
        return Some(Arrival::Confirm(confirmed_lsn(data, last)?));
    }
    let (mut touches, mut has_changes) = (false, false);
    for row in rows {
        let frame = &data[..row.end];
        if row.kind == NOP {
            // Before there were flags, a row that a trigger had turned into a NOP counted like any other row of its space.
            if !has_flags && row.body < row.end && frame[row.body..] != [0x80] {
                return None;
            }
            continue;
        }
        if !is_change(row.kind) {
            return None;
        }
        has_changes = true;
        let space_id = space_id_of(frame, row.body)?;
        if space_id <= SYSTEM_SPACE_MAX || !names_one_space(frame, row.body) {
            return None;
        }
        touches = touches || synchronous.contains(&space_id);
    }
    // A transaction of NOPs alone has nothing to confirm (see cdc.stream.transactions.limbo).
    let is_flagged = last.flags & WAIT_ACK != 0 && (has_changes || last.flags & WAIT_SYNC != 0);
    Some(if touches || is_flagged {
        Arrival::Synchronous
    } else {
        Arrival::Asynchronous
    })
}

/// Return the lsn that a RAFT_CONFIRM names; None if it names another origin's or later transactions, or is malformed.
fn confirmed_lsn(data: &[u8], row: &Row) -> Option<u64> {
    let mut reader = Reader::new(&data[..row.end], row.body);
    let Some(Value::Map(count)) = reader.value() else {
        return None;
    };
    let (mut owner, mut lsn) = (None, None);
    for _ in 0..count {
        match u8::try_from(reader.unsigned()?) {
            Ok(REPLICA_ID) => owner = Some(reader.unsigned()?),
            Ok(LSN) => lsn = Some(reader.unsigned()?),
            _ => reader.skip()?,
        }
    }
    (owner == Some(row.origin)).then_some(())?;
    lsn.filter(|lsn| *lsn < row.lsn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{scan, tests::framed, walk};

    const SYNC: u8 = 200;
    const PLAIN: u8 = 201;

    /// A frame of origin `origin` with flags, and a body of these pairs of small numbers.
    fn frame(kind: u8, origin: u8, lsn: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![
            0x85, 0x00, kind, 0x02, origin, 0x03, lsn, 0x09, flags, 0x04, 0xcb,
        ];
        bytes.extend(2.5f64.to_be_bytes());
        bytes.push(0x80 + (body.len() / 2) as u8);
        bytes.extend(body);
        framed(&bytes)
    }

    fn change(lsn: u8, flags: u8, space_id: u8) -> Vec<u8> {
        // Ids of these spaces are 768 and more.
        let mut bytes = vec![0x85, 0x00, 2, 0x02, 1, 0x03, lsn, 0x09, flags, 0x04, 0xcb];
        bytes.extend(2.5f64.to_be_bytes());
        bytes.extend([0x82, 0x10, 0xcd, 0x03, space_id, 0x21, 0x91, 0x01]);
        framed(&bytes)
    }

    fn confirm(lsn: u8, confirmed: u8) -> Vec<u8> {
        frame(40, 1, lsn, 0, &[2, 1, 3, confirmed])
    }

    /// A row of the transaction that begins at lsn `first`.
    fn part(lsn: u8, first: u8, flags: u8) -> Vec<u8> {
        let mut bytes = vec![
            0x86,
            0x00,
            12,
            0x02,
            1,
            0x03,
            lsn,
            0x08,
            lsn - first,
            0x09,
            flags,
            0x04,
            0xcb,
        ];
        bytes.extend(2.5f64.to_be_bytes());
        bytes.push(0x80);
        framed(&bytes)
    }

    fn found(frames: &[Vec<u8>], has_flags: bool, after: u64, waiting: u64) -> Arrivals {
        let data = frames.concat();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        let synchronous = [0x300 + u64::from(SYNC)];
        arrivals(&data, &rows, 0, &synchronous, has_flags, after, waiting)
    }

    #[test]
    fn the_highest_confirmed_lsn_decides_about_all() {
        let frames = [
            change(5, 0, SYNC),
            change(6, 0, PLAIN),
            change(7, 0, SYNC),
            confirm(8, 5),
            confirm(9, 7),
            change(10, 0, SYNC),
            confirm(11, 7),
        ];
        let all = found(&frames, false, 4, 0);
        let expected = Arrivals {
            lsns: vec![5, 7, 10],
            starts: vec![0, 2, 5],
            end: 7,
            confirmed: 7,
            deferred: vec![3, 6],
        };
        assert_eq!(all, expected);
        let until = [0, 4, 5, 6, 7, 9, 10, 11].map(|lsn| all.certain_until(lsn));
        let (none, one, two, three) = ((0, 0), (2, 5), (5, 7), (7, 10));
        assert_eq!(until, [none, none, one, one, two, two, three, three]);
        let rest = Arrivals {
            lsns: vec![7, 10],
            starts: vec![0, 3],
            end: 5,
            confirmed: 7,
            deferred: vec![1, 4],
        };
        assert_eq!(all.after(2), rest);
        assert!(rest.defers(1) && !rest.defers(2));
        assert_eq!([0, 1, 2, 5].map(|at| rest.plain_until(at)), [1, 1, 4, 5]);
        assert_eq!(found(&frames, false, 5, 0), Arrivals::default());
    }

    #[test]
    fn flags_count_besides_the_spaces() {
        let nop = |lsn, flags| frame(12, 1, lsn, flags, &[]);
        for (flags, is_synchronous) in [(0, false), (2, false), (4, true), (7, true)] {
            let all = found(&[change(5, flags, PLAIN)], true, 4, 3);
            assert_eq!((all.end, all.lsns.len() == 1), (1, is_synchronous));
        }
        // What a trigger has emptied waits only if local rows were a part of it.
        let all = found(&[nop(5, 4), nop(6, 6)], true, 4, 3);
        assert_eq!((all.end, all.lsns), (2, vec![6]));
        // Without anything before it, an ordinary transaction doesn't concern the limbo, and one that could have waited does.
        assert_eq!(found(&[change(5, 0, PLAIN)], true, 4, 0).end, 0);
        let all = found(&[change(5, 2, PLAIN), change(6, 0, PLAIN)], true, 4, 0);
        assert_eq!((all.end, all.certain_until(0)), (2, (2, 0)));
    }

    #[test]
    fn what_is_uncommon_ends_them() {
        let system = framed(&{
            let mut bytes = vec![0x84, 0x00, 3, 0x02, 1, 0x03, 6, 0x04, 0xcb];
            bytes.extend(2.5f64.to_be_bytes());
            bytes.extend([0x82, 0x10, 0xcd, 0x01, 0x18, 0x21, 0x91, 0x01]);
            bytes
        });
        let twice = framed(&{
            let mut bytes = vec![0x84, 0x00, 3, 0x02, 1, 0x03, 6, 0x04, 0xcb];
            bytes.extend(2.5f64.to_be_bytes());
            bytes.extend([0x83, 0x10, 0xcd, 0x03, PLAIN, 0x21, 0x91, 0x01]);
            bytes.extend([0x10, 0xcd, 0x03, SYNC]);
            bytes
        });
        for uncommon in [
            system,
            frame(41, 1, 6, 0, &[2, 1, 3, 5]),
            frame(31, 1, 6, 0, &[2, 1, 3, 5]),
            frame(40, 1, 6, 0, &[2, 2, 3, 5]), // another owner
            frame(40, 1, 6, 0, &[2, 1, 3, 6]), // not an earlier one
            frame(40, 1, 6, 0, &[2, 1]),
            frame(40, 2, 6, 0, &[2, 2, 3, 5]), // another origin
            frame(12, 1, 6, 0, &[0x10, 3]),    // a NOP of a space, which counts without flags
            confirm(5, 3),                     // received before
            frame(0, 1, 6, 0, &[]),
            part(6, 6, 0), // without its last row
            twice,         // one space, then another
        ] {
            let all = found(&[change(5, 0, SYNC), uncommon, confirm(7, 5)], false, 4, 0);
            assert_eq!((all.end, all.confirmed), (1, 0));
        }
    }

    #[test]
    fn waiting_rows_are_counted_without_confirms() {
        let data = [change(5, 0, SYNC), confirm(6, 4), change(7, 0, PLAIN)].concat();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        let counts = [0, 1, 3].map(|at| waiting_counts(&rows, at));
        assert_eq!(counts, [(2, 2), (1, 1), (0, 0)]);
        let data = [
            part(5, 5, 0),
            part(6, 5, 1),
            part(7, 7, 0),
            change(8, 0, SYNC),
        ]
        .concat();
        let rows = scan(&data, &walk(&data, 1 << 20).unwrap().0).unwrap();
        assert_eq!(waiting_counts(&rows, 0), (1, 2));
    }
}
