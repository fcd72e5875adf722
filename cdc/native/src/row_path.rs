//! The row path of one connection: its settings, the plans of the spaces, and which plan a row has.
//!
//! What it does with rows is in stream_events.rs and snapshot.rs.

use std::collections::{HashMap, HashSet};

use crate::avro_events::AvroShared;
use crate::avro_values::push_long;
use crate::codec::{is_change, space_id_of, Row};
use crate::constants::{INDEX_ID, KEY, NOP, SPACE_ID};
use crate::envelope::Shared;
use crate::image_events::Work;
use crate::json_values::{push_unsigned, Refused};
use crate::layout::{Reader, Value};
use crate::lean::LeanShared;
use crate::overlay::FETCH_ROWS;
use crate::row_encoder::Plan;
use crate::snapshot_progress::SnapshotProgress;

/// Settings that stay the same for a connection.
pub struct Settings {
    /// The beginning of each event's source.
    pub source: Vec<u8>,
    /// Whether events are in Avro, not in JSON.
    pub is_avro: bool,
    /// Whether the source has only a few fields.
    pub is_lean: bool,
    /// Whether a DELETE is followed by a tombstone.
    pub tombstones: bool,
    /// Maximum number of events of a transaction without BEGIN and END records; None: no transaction has them.
    pub unrecorded_events_max: Option<u64>,
    /// Index of the topic for these records.
    pub transaction_topic: usize,
    /// Size of the values, in bytes, above which a batch is full.
    pub bytes_max: usize,
}

impl Settings {
    /// Append a number that stands between two pieces of an event.
    pub fn push_number(&self, out: &mut Vec<u8>, number: u64) {
        if self.is_avro {
            push_long(out, number as i64);
        } else {
            push_unsigned(out, number);
        }
    }
}

/// Reason why a transaction isn't handled.
pub enum Obstacle {
    /// Only the Python path can handle it.
    Uncommon,
    /// The batch is full before the transaction's end.
    Full,
}

impl From<Refused> for Obstacle {
    fn from(_: Refused) -> Self {
        Obstacle::Uncommon
    }
}

/// The row path of one connection.
pub struct RowPath {
    pub settings: Settings,
    /// Plans by space; None if the space's rows have no events.
    pub plans: HashMap<u64, Option<Plan>>,
    /// Of these spaces: the synchronous ones, whose rows are handled only where they are certain.
    pub synchronous: HashSet<u64>,
    /// Progress of a snapshot.
    pub snapshot: SnapshotProgress,
    /// Pieces of the transaction that is being handled.
    pub shared: Shared,
    /// The same, if events are in Avro.
    pub avro: AvroShared,
    /// The same, if the source has only a few fields.
    pub lean: LeanShared,
    /// Where the fields of the primary key begin in the row that is being handled.
    pub places: Vec<usize>,
    /// Number of the transaction's events so far, by space.
    pub orders: Vec<(u64, u64)>,
    /// Buffers for rows with images.
    pub work: Work,
    /// Number of rows for which the store is read next; smaller if their tuples are large.
    pub fetch_rows: usize,
}

impl RowPath {
    pub fn new(settings: Settings) -> Self {
        RowPath {
            settings,
            plans: HashMap::new(),
            synchronous: HashSet::new(),
            snapshot: SnapshotProgress::default(),
            shared: Shared::default(),
            avro: AvroShared::default(),
            lean: LeanShared::default(),
            places: Vec::new(),
            orders: Vec::new(),
            work: Work::default(),
            fetch_rows: FETCH_ROWS,
        }
    }

    /// Set a space's plan; None if its rows have no events.
    pub fn set_plan(&mut self, space_id: u64, plan: Option<Plan>, is_synchronous: bool) {
        self.remove_plan(space_id);
        self.plans.insert(space_id, plan);
        if is_synchronous {
            self.synchronous.insert(space_id);
        }
    }

    pub fn remove_plan(&mut self, space_id: u64) {
        self.plans.remove(&space_id);
        self.synchronous.remove(&space_id);
    }

    pub fn remove_all_plans(&mut self) {
        self.plans.clear();
        self.synchronous.clear();
    }
}

/// Return a row's space and its plan; None if the row has no event.
#[inline]
pub fn plan_of<'a>(
    plans: &'a HashMap<u64, Option<Plan>>,
    frame: &[u8],
    row: &Row,
) -> Result<Option<(u64, &'a Plan)>, Obstacle> {
    if row.kind == NOP && (row.body == row.end || frame[row.body..] == [0x80]) {
        return Ok(None);
    }
    if !is_change(row.kind) {
        return Err(Obstacle::Uncommon);
    }
    let space_id = space_id_of(frame, row.body).ok_or(Obstacle::Uncommon)?;
    let Some(plan) = plans.get(&space_id).ok_or(Obstacle::Uncommon)? else {
        return if names_one_space(frame, row.body) {
            Ok(None)
        } else {
            Err(Obstacle::Uncommon)
        };
    };
    Ok(Some((space_id, plan)))
}

/// Return whether a body has the space's id only once; otherwise its last value would count.
pub fn names_one_space(frame: &[u8], body: usize) -> bool {
    let mut reader = Reader::new(frame, body);
    let Some(Value::Map(count)) = reader.value() else {
        return false;
    };
    let mut found = 0;
    for _ in 0..count {
        found += u32::from(reader.peek() == Some(SPACE_ID));
        if reader.skip().is_none() || reader.skip().is_none() {
            return false;
        }
    }
    found == 1
}

/// Return where the tuple or key begins in a body that has nothing else but the space, and index 0 before a key.
#[inline]
pub fn content(frame: &[u8], body: usize, wanted: u8) -> Option<usize> {
    let mut left = frame.get(body)? & 0x0f;
    let mut reader = Reader::new(frame, body + 2);
    reader.unsigned()?;
    left = left.checked_sub(1)?;
    if left == 2 && wanted == KEY && reader.peek()? == INDEX_ID {
        reader.at += 1;
        match reader.value()? {
            Value::Unsigned(0) => {}
            _ => return None,
        }
        left -= 1;
    }
    (left == 1 && reader.peek()? == wanted).then_some(reader.at + 1)
}
