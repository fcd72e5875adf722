//! The part of an event in Avro that follows its rows; as cdc.formats.avro_events.

use crate::avro_values::{push_binary, push_long, NULL, PRESENT};
use crate::envelope::{Origins, Place};
use crate::json_values::push_unsigned;
use crate::row_encoder::Plan;

/// Pieces that all events of one transaction share.
#[derive(Default)]
pub struct AvroShared {
    /// From the source to the opening of `sequence`.
    time: Vec<u8>,
    /// The beginning of `sequence`, up to the lsn.
    sequence: Vec<u8>,
    origin: Vec<u8>,
    tsn: Vec<u8>,
    /// From the vclock to the orders.
    tail: Vec<u8>,
    /// Buffer for a text.
    text: Vec<u8>,
}

impl AvroShared {
    /// Build the pieces for a transaction, given its first lsn (`tsn`), its last lsn, and its time in seconds.
    pub fn begin(
        &mut self,
        source: &[u8],
        origins: &Origins,
        origin: u64,
        tsn: u64,
        lsn: u64,
        timestamp: f64,
    ) {
        let micro = (timestamp * 1e6).round_ties_even() as i64;
        let time = &mut self.time;
        time.clear();
        time.extend_from_slice(source);
        push_long(time, micro.div_euclid(1000));
        time.push(PRESENT);
        push_long(time, micro);
        time.push(PRESENT);
        push_long(time, micro.wrapping_mul(1000));
        time.extend_from_slice(b"\x00\x0afalse\x00\x02");

        self.sequence.clear();
        self.sequence.extend_from_slice(b"[\"");
        push_unsigned(&mut self.sequence, origins.lsn(origin));
        self.sequence.extend_from_slice(b"\",\"");

        for (piece, number) in [(&mut self.origin, origin), (&mut self.tsn, tsn)] {
            piece.clear();
            piece.push(PRESENT);
            push_long(piece, number as i64);
            piece.push(PRESENT);
        }
        self.push_tail(origins, origin, tsn, lsn);
    }

    fn push_tail(&mut self, origins: &Origins, origin: u64, tsn: u64, lsn: u64) {
        let (tail, text) = (&mut self.tail, &mut self.text);
        tail.clear();
        let known = origins.components();
        let is_new = known.iter().all(|(other, _)| *other != origin);
        push_long(tail, (known.len() + usize::from(is_new)) as i64);
        let mut push = |other: u64, lsn: u64| {
            text.clear();
            push_unsigned(text, other);
            push_binary(tail, text);
            push_long(tail, lsn as i64);
        };
        let mut is_due = true;
        for &(other, its_lsn) in known {
            if is_due && other >= origin {
                push(origin, lsn);
                is_due = false;
            }
            if other != origin {
                push(other, its_lsn);
            }
        }
        if is_due {
            push(origin, lsn);
        }
        tail.extend_from_slice(&[0, NULL, PRESENT]);
        text.clear();
        push_unsigned(text, origin);
        text.push(b':');
        push_unsigned(text, tsn);
        push_binary(tail, text);
    }

    /// Append the part of an event after the row's content, up to the event's end.
    #[inline]
    pub fn push_rest(&self, out: &mut Vec<u8>, plan: &Plan, place: &Place, suffix: &[u8]) {
        let mut buffer = itoa::Buffer::new();
        let lsn = buffer.format(place.lsn).as_bytes();
        out.extend_from_slice(&self.time);
        push_long(out, (self.sequence.len() + lsn.len() + 2) as i64);
        out.extend_from_slice(&self.sequence);
        out.extend_from_slice(lsn);
        out.extend_from_slice(b"\"]");
        out.extend_from_slice(&plan.table);
        out.extend_from_slice(&self.origin);
        push_long(out, place.lsn as i64);
        out.extend_from_slice(&self.tsn);
        push_long(out, place.row as i64);
        push_long(out, place.seq as i64);
        out.extend_from_slice(&plan.schema);
        out.extend_from_slice(&self.tail);
        push_long(out, place.total_order as i64);
        push_long(out, place.order as i64);
        out.extend_from_slice(suffix);
    }
}
