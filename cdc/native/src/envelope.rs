//! Events as bytes: the pieces of the envelope in docs/events.md, built as in cdc.events.envelope and cdc.stream.fragments.

use crate::json_values::{push_signed, push_unsigned};
use crate::row_encoder::Plan;

/// The vclock, and its JSON before and after one origin's lsn, cached while that origin's transactions follow each other.
#[derive(Default)]
pub struct Origins {
    vclock: Vec<(u64, u64)>,
    origin: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Origins {
    pub fn new(mut vclock: Vec<(u64, u64)>) -> Self {
        vclock.sort_unstable();
        Origins {
            vclock,
            ..Origins::default()
        }
    }

    pub fn lsn(&self, origin: u64) -> u64 {
        self.vclock
            .iter()
            .find(|(other, _)| *other == origin)
            .map_or(0, |(_, lsn)| *lsn)
    }

    pub fn components(&self) -> &[(u64, u64)] {
        &self.vclock
    }

    /// Set the lsn up to which this origin's transactions were processed.
    pub fn advance(&mut self, origin: u64, lsn: u64) {
        match self.vclock.iter_mut().find(|(other, _)| *other == origin) {
            Some(component) => component.1 = lsn,
            None => {
                self.vclock.push((origin, lsn));
                self.vclock.sort_unstable();
            }
        }
    }

    fn turn_to(&mut self, origin: u64) {
        if self.origin == origin {
            return;
        }
        self.origin = origin;
        self.before.clear();
        self.after.clear();
        self.before.push(b'{');
        for &(other, lsn) in &self.vclock {
            if other < origin {
                push_component(&mut self.before, other, lsn);
                self.before.push(b',');
            } else if other > origin {
                self.after.push(b',');
                push_component(&mut self.after, other, lsn);
            }
        }
        self.before.push(b'"');
        push_unsigned(&mut self.before, origin);
        self.before.extend_from_slice(b"\":");
        self.after.push(b'}');
    }
}

fn push_component(out: &mut Vec<u8>, origin: u64, lsn: u64) {
    out.push(b'"');
    push_unsigned(out, origin);
    out.extend_from_slice(b"\":");
    push_unsigned(out, lsn);
}

/// Pieces that all events of one transaction share.
#[derive(Default)]
pub struct Shared {
    /// From the source to the opening quote of the lsn in `sequence`.
    time: Vec<u8>,
    origin: Vec<u8>,
    tsn: Vec<u8>,
    /// From the vclock to the order within the transaction.
    tail: Vec<u8>,
}

impl Shared {
    /// Build the pieces for a transaction, given its first lsn (`tsn`), its last lsn, and its time in seconds.
    pub fn begin(
        &mut self,
        source: &[u8],
        origins: &mut Origins,
        origin: u64,
        tsn: u64,
        lsn: u64,
        timestamp: f64,
    ) {
        origins.turn_to(origin);
        let micro = (timestamp * 1e6).round_ties_even() as i64;
        let time = &mut self.time;
        time.clear();
        time.extend_from_slice(source);
        time.extend_from_slice(b"\"ts_ms\":");
        push_signed(time, micro.div_euclid(1000));
        time.extend_from_slice(b",\"ts_us\":");
        push_signed(time, micro);
        time.extend_from_slice(b",\"ts_ns\":");
        push_signed(time, micro);
        time.extend_from_slice(br#"000,"snapshot":"false","db":"","sequence":"[\""#);
        push_unsigned(time, origins.lsn(origin));
        time.extend_from_slice(br#"\",\""#);

        self.origin.clear();
        push_unsigned(&mut self.origin, origin);
        self.origin.extend_from_slice(b",\"lsn\":");

        self.tsn.clear();
        self.tsn.extend_from_slice(b",\"tsn\":");
        push_unsigned(&mut self.tsn, tsn);
        self.tsn.extend_from_slice(b",\"row\":");

        let tail = &mut self.tail;
        tail.clear();
        tail.extend_from_slice(&origins.before);
        push_unsigned(tail, lsn);
        tail.extend_from_slice(&origins.after);
        tail.extend_from_slice(br#"},"transaction":{"id":""#);
        push_unsigned(tail, origin);
        tail.push(b':');
        push_unsigned(tail, tsn);
        tail.extend_from_slice(br#"","total_order":"#);
    }

    /// Append the part of an event after the row's content, up to the event's end.
    #[inline]
    pub fn push_rest(&self, out: &mut Vec<u8>, plan: &Plan, place: &Place, suffix: &[u8]) {
        let mut buffer = itoa::Buffer::new();
        let lsn = buffer.format(place.lsn).as_bytes();
        out.extend_from_slice(&self.time);
        out.extend_from_slice(lsn);
        out.extend_from_slice(&plan.table);
        out.extend_from_slice(&self.origin);
        out.extend_from_slice(lsn);
        out.extend_from_slice(&self.tsn);
        push_unsigned(out, place.row);
        out.extend_from_slice(b",\"seq\":");
        push_unsigned(out, place.seq);
        out.extend_from_slice(&plan.schema);
        out.extend_from_slice(&self.tail);
        push_unsigned(out, place.total_order);
        out.extend_from_slice(b",\"data_collection_order\":");
        push_unsigned(out, place.order);
        out.extend_from_slice(suffix);
    }
}

/// Position of a row in its log, in its transaction, and among the events.
pub struct Place {
    pub lsn: u64,
    pub row: u64,
    pub seq: u64,
    pub total_order: u64,
    pub order: u64,
}

/// A transaction's numbers of events by space; the spaces' names are JSON.
pub type Counts<'a> = [(&'a [u8], u64)];

/// Return the key of a transaction's records, and the values of BEGIN and END.
pub fn transaction_records(
    origin: u64,
    tsn: u64,
    counts: &Counts,
    timestamp: f64,
) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut id = Vec::from(&b"\"id\":\""[..]);
    push_unsigned(&mut id, origin);
    id.push(b':');
    push_unsigned(&mut id, tsn);
    id.push(b'"');
    let mut end_of_both = Vec::from(&b",\"ts_ms\":"[..]);
    push_signed(
        &mut end_of_both,
        (timestamp * 1000.0).round_ties_even() as i64,
    );
    end_of_both.push(b'}');

    let key = [b"{", &id[..], b"}"].concat();
    let begin = [
        br#"{"status":"BEGIN","#,
        &id[..],
        br#","event_count":null,"data_collections":null"#,
        &end_of_both,
    ]
    .concat();
    let mut end = [br#"{"status":"END","#, &id[..], br#","event_count":"#].concat();
    push_unsigned(&mut end, counts.iter().map(|(_, count)| count).sum());
    end.extend_from_slice(br#","data_collections":["#);
    for (place, (name, count)) in counts.iter().enumerate() {
        if place > 0 {
            end.push(b',');
        }
        end.extend_from_slice(br#"{"data_collection":"#);
        end.extend_from_slice(name);
        end.extend_from_slice(br#","event_count":"#);
        push_unsigned(&mut end, *count);
        end.push(b'}');
    }
    end.push(b']');
    end.extend_from_slice(&end_of_both);
    (key, begin, end)
}
