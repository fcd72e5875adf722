//! The part of an event with a lean source that follows its rows, in JSON and in Avro; as cdc.formats.lean.

use crate::avro_values::{push_long, NULL, PRESENT};
use crate::envelope::Place;
use crate::json_values::{push_signed, push_unsigned};
use crate::row_encoder::Plan;

/// What all events of one transaction share: the source up to the time.
#[derive(Default)]
pub struct LeanShared {
    time: Vec<u8>,
    is_avro: bool,
}

impl LeanShared {
    /// Build it for a transaction, given its time in seconds.
    pub fn begin(&mut self, source: &[u8], is_avro: bool, timestamp: f64) {
        let milli = ((timestamp * 1e6).round_ties_even() as i64).div_euclid(1000);
        self.is_avro = is_avro;
        self.time.clear();
        self.time.extend_from_slice(source);
        if is_avro {
            push_long(&mut self.time, milli);
        } else {
            push_signed(&mut self.time, milli);
        }
    }

    /// Append the part of an event after the row's content, up to the event's end.
    #[inline]
    pub fn push_rest(&self, out: &mut Vec<u8>, plan: &Plan, place: &Place, suffix: &[u8]) {
        out.extend_from_slice(&self.time);
        out.extend_from_slice(&plan.table);
        if self.is_avro {
            out.push(PRESENT);
            push_long(out, place.lsn as i64);
            push_long(out, place.seq as i64);
            out.extend_from_slice(&plan.schema);
            out.push(NULL);
        } else {
            push_unsigned(out, place.lsn);
            out.extend_from_slice(b",\"seq\":");
            push_unsigned(out, place.seq);
            out.extend_from_slice(&plan.schema);
            out.push(b'}');
        }
        out.extend_from_slice(suffix);
    }
}
