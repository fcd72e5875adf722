//! Python's interface to the row path: the conversion of rows to events.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::avro_values::{Column, KeyColumn, Kind};
use crate::batch::BatchBuilder;
use crate::columns::{ColumnPlan, Treatment};
use crate::envelope::Origins;
use crate::fitting::Fitting;
use crate::key_text::KeyText;
use crate::keys::{KeyCodec, KeyPart};
use crate::overlay::{Images, FETCH_BYTES};
use crate::pending::Pending;
use crate::python_frames::{without_lock, Rows};
use crate::python_images::{format_of, key_part, PendingChanges, PyKeyPart};
use crate::python_limbo::Arrivals;
use crate::python_messages::{Messages, Topic};
use crate::row_encoder::{AvroKey, AvroRows, Field, ImagePlan, Openings, Part, Plan};
use crate::row_path::{RowPath as Path, Settings};
use crate::snapshot_progress::{Pieces, SnapshotProgress};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RowPath>()?;
    module.add_class::<Run>()?;
    module.add_class::<SnapshotRun>()?;
    Ok(())
}

/// A field's treatment: its kind, the number of characters, and the constant as JSON.
type PyTreatment = (String, usize, Vec<u8>);

/// The treatments of a form's fields, and the salt.
type PyColumns = (Vec<PyTreatment>, Vec<u8>);

fn treatment((kind, count, constant): PyTreatment) -> Treatment {
    match kind.as_str() {
        "" => Treatment::Shown,
        "hash" => Treatment::Hashed,
        "truncate" => Treatment::Truncated(count),
        "mask" => Treatment::Masked(constant),
        _ => Treatment::Excluded,
    }
}

fn column_plan((treatments, salt): PyColumns) -> ColumnPlan {
    ColumnPlan::new(treatments.into_iter().map(treatment).collect(), &salt)
}

/// Result of a run.
#[pyclass(frozen, get_all, module = "cdc._native")]
struct Run {
    at: usize,
    messages: Py<Messages>,
    byte_count: usize,
    seq: u64,
    row_count: u64,
    timestamp: f64,
    vclock: Py<PyDict>,
    has_records: bool,
    is_full: bool,
}

/// Converter of one connection's rows to events.
#[pyclass(name = "CompiledRowPath", module = "cdc._native")]
struct RowPath {
    path: Path,
    topics: Arc<Vec<Arc<Topic>>>,
    batch: BatchBuilder,
    upsert_count: u64,
}

impl RowPath {
    fn topic(&mut self, topic: &Bound<'_, PyString>) -> PyResult<usize> {
        let is_it = |known: &Arc<Topic>| known.name.bind(topic.py()).as_any().eq(topic);
        for (place, known) in self.topics.iter().enumerate() {
            if is_it(known)? {
                return Ok(place);
            }
        }
        Arc::make_mut(&mut self.topics).push(Topic::new(topic));
        Ok(self.topics.len() - 1)
    }

    fn messages(&mut self) -> Messages {
        Messages::take(&mut self.batch, &self.topics)
    }
}

/// A format's rules for the results of UPSERTs: see `Fitting::new`.
type PyFitting = (u64, u64, Vec<(String, bool, i64)>);

/// What belongs to a space's images: the number with which its keys in the store begin, the names and types of the format's
/// fields, whether the space is in vinyl, and the rules for the results of UPSERTs, if the server has such rules.
type PyImages = (u32, Vec<(Vec<u8>, String)>, bool, Option<PyFitting>);

/// Return how to maintain a space's images; None if only Python can.
fn image_plan(images: PyImages, parts: &[KeyPart]) -> Option<ImagePlan> {
    let (number, fields, is_vinyl, fitting) = images;
    let fitting = match fitting {
        None => None,
        Some((exact_count, count_min, fields)) => {
            Some(Fitting::new(exact_count, count_min, &fields)?)
        }
    };
    Some(ImagePlan {
        keys: KeyCodec::new(number, parts)?,
        format: format_of(fields),
        is_vinyl,
        fitting,
    })
}

/// How rows are written in Avro: for each column its kind, and whether it is optional; and whether a row of which only the key is
/// known can be written. How keys are written: what precedes each, and the kinds of the parts. None: in JSON.
type PyAvro = (Option<PyAvroRows>, Option<(Vec<u8>, Vec<String>)>);

type PyAvroRows = (Vec<(String, bool)>, bool);

fn avro_rows((columns, has_rows_of_keys): PyAvroRows) -> AvroRows {
    let columns = columns.iter().map(|(kind, is_optional)| Column {
        kind: Kind::new(kind),
        is_optional: *is_optional,
    });
    AvroRows {
        columns: columns.collect(),
        has_rows_of_keys,
    }
}

fn avro_key(header: Vec<u8>, kinds: &[String], parts: &[KeyPart]) -> AvroKey {
    let parts = kinds
        .iter()
        .zip(parts)
        .map(|(kind, part)| KeyColumn {
            kind: Kind::new(kind),
            text: KeyText::new(&part.type_name, part.is_as_written),
            is_as_written: part.is_as_written,
        })
        .collect();
    AvroKey { header, parts }
}

/// The pending changes, and a Python function that returns the stored tuple of a key, or None.
type PendingAndGet<'py> = Option<(PyRefMut<'py, PendingChanges>, Py<PyAny>)>;

/// Run `work` without Python's lock, except while it reads the store.
fn with_images<T: Send>(
    py: Python<'_>,
    images: PendingAndGet<'_>,
    work: impl FnOnce(&mut Option<Images>) -> T + Send,
) -> PyResult<T> {
    let (mut pending, get) = images.unzip();
    let pending = pending.as_mut().map(|pending| &mut pending.pending);
    let mut failure = None;
    let found = without_lock(py, || {
        let mut fetch = |pending: &mut Pending, keys: &[Vec<u8>]| {
            let Some(get) = &get else {
                return false;
            };
            Python::attach(|py| fetch(py, get, pending, keys))
                .map_err(|error| failure = Some(error))
                .is_ok()
        };
        work(&mut pending.map(|pending| Images {
            pending,
            fetch: &mut fetch,
        }))
    })?;
    failure.map_or(Ok(found), Err)
}

/// Read the tuples of these keys from the store; stop after about FETCH_BYTES bytes.
fn fetch(py: Python<'_>, get: &Py<PyAny>, pending: &mut Pending, keys: &[Vec<u8>]) -> PyResult<()> {
    let get = get.bind(py);
    let bytes_max = pending.fetched_bytes() + FETCH_BYTES;
    for key in keys {
        if pending.fetched_bytes() > bytes_max {
            break;
        }
        let found = get.call1((PyBytes::new(py, key),))?;
        let tuple = if found.is_none() {
            None
        } else {
            Some(found.cast::<PyBytes>()?.as_bytes())
        };
        pending.fetched(key, tuple);
    }
    Ok(())
}

#[pymethods]
impl RowPath {
    /// `records_from` is the number of events from which a transaction has BEGIN and END records, in `transaction_topic`; None
    /// if no transaction has them.
    #[new]
    #[allow(clippy::too_many_arguments)] // a connection's settings
    fn new(
        source: Vec<u8>,
        is_avro: bool,
        is_lean: bool,
        tombstones: bool,
        records_from: Option<u64>,
        transaction_topic: Bound<'_, PyString>,
        bytes_max: usize,
    ) -> PyResult<Self> {
        let settings = Settings {
            source,
            is_avro,
            is_lean,
            tombstones,
            unrecorded_events_max: records_from.map(|count| count.saturating_sub(1)),
            transaction_topic: 0,
            bytes_max,
        };
        Ok(RowPath {
            path: Path::new(settings),
            topics: Arc::new(vec![Topic::new(&transaction_topic)]),
            batch: BatchBuilder::default(),
            upsert_count: 0,
        })
    }

    /// Handle a space's rows from here on.
    ///
    /// - `name`: the space's name as JSON; `table` and `schema`: the envelope's pieces for the space.
    /// - `openings`: the parts of events around their rows; `avro`: how rows and keys are written, if they are in Avro.
    /// - `fields`: for each field of the format, its name as JSON, and whether its type has only simple values.
    /// - `parts`: for each part of the primary key, its name as JSON, and the part.
    /// - `fields_max`: tuples with more fields are handed back.
    /// - `images`: what belongs to the images, if the space has images.
    /// - `counts_upserts`: whether UPSERTs are counted.
    /// - `is_synchronous`: whether the space's rows are handled only in runs that are certain.
    #[allow(clippy::too_many_arguments)] // a space's form, passed in a single call
    fn set_plan(
        &mut self,
        space_id: u64,
        topic: &Bound<'_, PyString>,
        name: Vec<u8>,
        table: Vec<u8>,
        schema: Vec<u8>,
        openings: Vec<Vec<u8>>,
        avro: PyAvro,
        fields: Vec<(Vec<u8>, bool)>,
        parts: Vec<(Vec<u8>, PyKeyPart)>,
        fields_max: usize,
        images: Option<PyImages>,
        columns: Option<PyColumns>,
        counts_upserts: bool,
        is_synchronous: bool,
    ) -> PyResult<()> {
        let (part_names, parts): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .map(|(name, part)| (name, key_part(part)))
            .unzip();
        let images = match images {
            None => None,
            Some(images) => match image_plan(images, &parts) {
                None => return Ok(()), // Python must encode its keys
                found => found,
            },
        };
        let (Some(openings), topic) = (Openings::new(openings), self.topic(topic)?) else {
            return Ok(());
        };
        let avro_key = avro
            .1
            .map(|(header, kinds)| avro_key(header, &kinds, &parts));
        let fields = fields
            .into_iter()
            .map(|(name, is_simple)| Field { name, is_simple })
            .collect();
        let parts = part_names
            .into_iter()
            .zip(parts)
            .map(|(name, part)| Part {
                name,
                field: part.field,
                text: KeyText::new(&part.type_name, part.is_as_written),
                path: part.path,
            })
            .collect();
        let mut plan = Plan::new(
            fields, parts, fields_max, table, schema, name, topic, openings,
        );
        plan.avro_rows = avro.0.map(avro_rows);
        plan.avro_key = avro_key;
        plan.images = images;
        plan.columns = columns.map(column_plan);
        plan.counts_upserts = counts_upserts;
        self.path.set_plan(space_id, Some(plan), is_synchronous);
        Ok(())
    }

    /// Number of UPSERTs handled in the spaces where they are counted.
    #[getter]
    fn upsert_count(&self) -> u64 {
        self.upsert_count
    }

    /// Skip a space's rows from here on, because they have no events.
    fn skip_space(&mut self, space_id: u64, is_synchronous: bool) {
        self.path.set_plan(space_id, None, is_synchronous);
    }

    /// Hand a space's rows back from here on.
    fn remove_plan(&mut self, space_id: u64) {
        self.path.remove_plan(space_id);
    }

    fn remove_all_plans(&mut self) {
        self.path.remove_all_plans();
    }

    /// Handle complete transactions from row `at` (inclusive) to `stop` (exclusive); for `certain` see stream_events.rs.
    /// `vclock`, `seq` and `byte_count` are the current values; the result contains the new ones.
    #[allow(clippy::too_many_arguments)]
    fn run(
        &mut self,
        py: Python<'_>,
        rows: &Bound<'_, Rows>,
        at: usize,
        stop: usize,
        certain: Option<&Bound<'_, Arrivals>>,
        suffix: &[u8],
        vclock: Vec<(u64, u64)>,
        seq: u64,
        byte_count: usize,
        images: PendingAndGet<'_>,
    ) -> PyResult<Run> {
        let rows = rows.get();
        let data = rows.data.bind(py).as_bytes();
        let known = rows.known();
        let known = &known[..stop.min(known.len())];
        let certain = certain.map(|arrivals| &arrivals.get().0);
        let batch = &mut self.batch;
        batch.begin(byte_count, seq);
        let path = &mut self.path;
        let (at, origins) = with_images(py, images, |images| {
            let mut origins = Origins::new(vclock);
            let at = path.run(
                data,
                known,
                at,
                suffix,
                &mut origins,
                batch,
                images,
                certain,
            );
            (at, origins)
        })?;
        self.upsert_count += self.batch.upsert_count;
        let moved = PyDict::new(py);
        for (origin, lsn) in origins.components() {
            moved.set_item(origin, lsn)?;
        }
        Ok(Run {
            at,
            messages: Py::new(py, self.messages())?,
            byte_count: self.batch.byte_count,
            seq: self.batch.seq,
            row_count: self.batch.row_count,
            timestamp: self.batch.timestamp,
            vclock: moved.unbind(),
            has_records: self.batch.has_records,
            is_full: self.batch.is_full,
        })
    }

    /// Forget the rows of a previous snapshot, because a snapshot begins.
    fn begin_snapshot(&mut self) {
        self.path.snapshot = SnapshotProgress::default();
    }

    /// Set the pieces for rows of a snapshot from here on: by space, the piece between a row and its seq, and the piece after the
    /// seq. Rows of other spaces are handed back.
    fn set_snapshot_spaces(&mut self, pieces: Vec<(u64, Vec<u8>, Vec<u8>)>) {
        self.path.snapshot.pieces = pieces
            .into_iter()
            .map(|(space_id, before, after)| {
                let pieces = Pieces {
                    before,
                    after,
                    count: 0,
                };
                (space_id, pieces)
            })
            .collect();
    }

    /// Handle rows of a snapshot from row `at` on.
    fn run_snapshot(
        &mut self,
        py: Python<'_>,
        rows: &Bound<'_, Rows>,
        at: usize,
        seq: u64,
        byte_count: usize,
        images: PendingAndGet<'_>,
    ) -> PyResult<SnapshotRun> {
        let rows = rows.get();
        let data = rows.data.bind(py).as_bytes();
        let known = rows.known();
        let batch = &mut self.batch;
        batch.begin(byte_count, seq);
        let path = &mut self.path;
        let at = with_images(py, images, |images| {
            path.run_snapshot(data, known, at, batch, images)
        })?;
        let counts = PyDict::new(py);
        for (space_id, pieces) in &mut self.path.snapshot.pieces {
            if pieces.count > 0 {
                counts.set_item(space_id, std::mem::take(&mut pieces.count))?;
            }
        }
        Ok(SnapshotRun {
            at,
            messages: Py::new(py, self.messages())?,
            byte_count: self.batch.byte_count,
            seq: self.batch.seq,
            counts: counts.unbind(),
        })
    }

    /// Skip rows of a snapshot from row `at` on that are equal to the store's. The result has the indices of the next row and of the
    /// store's next row, the number of rows that were skipped, the last one's key, and the key of the last row that the snapshot
    /// lacks, if it lacks the store's next rows.
    #[allow(clippy::type_complexity)]
    fn skip_stored<'py>(
        &mut self,
        py: Python<'py>,
        rows: &Bound<'py, Rows>,
        at: usize,
        last: &[u8],
        stored: &Bound<'py, PyList>,
        index: usize,
    ) -> PyResult<(
        usize,
        usize,
        u64,
        Bound<'py, PyBytes>,
        Option<Bound<'py, PyBytes>>,
    )> {
        let rows = rows.get();
        let data = rows.data.bind(py).as_bytes();
        let pairs: Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> = stored
            .iter()
            .skip(index)
            .map(|pair| pair.extract())
            .collect::<PyResult<_>>()?;
        let found = self
            .path
            .skip_stored(data, rows.known(), at, last, 0, |place| {
                pairs
                    .get(place)
                    .map(|(key, tuple)| (key.as_bytes(), tuple.as_bytes()))
            });
        Ok((
            found.at,
            index + found.index,
            found.count,
            PyBytes::new(py, &found.last),
            found.lacking.map(|key| PyBytes::new(py, &key)),
        ))
    }

    /// Record that a space's rows up to the key `last`, and the store's rows before `bound`, have been handled in a snapshot that is
    /// compared with the store.
    fn continue_snapshot_after(&mut self, space_id: u64, last: Vec<u8>, bound: Option<Vec<u8>>) {
        self.path.snapshot.continue_after(space_id, last, bound);
    }

    /// Return the greatest key of a space in a snapshot so far.
    fn last_snapshot_key<'py>(
        &self,
        py: Python<'py>,
        space_id: u64,
    ) -> Option<Bound<'py, PyBytes>> {
        let last = self.path.snapshot.last_keys.get(&space_id)?.as_ref()?;
        Some(PyBytes::new(py, last))
    }

    /// Record that the Python path has handled rows of a snapshot that weren't read here.
    fn mark_unread(&mut self) {
        self.path.snapshot.mark_unread();
    }

    /// Record that the Python path has handled the rows of a snapshot from `start` (inclusive) to `stop` (exclusive).
    fn mark_handled(&mut self, py: Python<'_>, rows: &Bound<'_, Rows>, start: usize, stop: usize) {
        let rows = rows.get();
        let data = rows.data.bind(py).as_bytes();
        self.path
            .mark_handled(data, rows.known().get(start..stop).unwrap_or(&[]));
    }
}

/// Result of `run_snapshot`.
#[pyclass(frozen, get_all, module = "cdc._native")]
struct SnapshotRun {
    at: usize,
    messages: Py<Messages>,
    byte_count: usize,
    seq: u64,
    /// Number of rows by space.
    counts: Py<PyDict>,
}
