//! Python's interface to the row path: frames of a stream (`FrameReader`, `Rows`), and the conversion to events (`RowPath`).

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::envelope::Origins;
use crate::fitting::Fitting;
use crate::frames::{
    continues_open, end_of_open, scan, scan_log, walk, whole_until, Row, LENGTH_BYTES,
};
use crate::key_text::KeyText;
use crate::keys::{KeyPart, KeyPlan};
use crate::limbo;
use crate::outbox::{Outbox, KEPT_BYTES};
use crate::overlay::Overlay;
use crate::plan::{Field, ImagePlan, Part, Plan};
use crate::python_limbo::Arrivals;
use crate::python_messages::{Messages, Topic};
use crate::python_overlay::{format_of, key_part, PendingChanges, PyKeyPart};
use crate::row_path::{Images, RowPath as Path, Settings, FETCH_BYTES};
use crate::snapshot_progress::{Pieces, SnapshotProgress};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FrameReader>()?;
    module.add_class::<Rows>()?;
    module.add_class::<RowPath>()?;
    module.add_class::<Run>()?;
    module.add_class::<SnapshotRun>()?;
    Ok(())
}

/// Run `work` without Python's lock. A panic becomes a CdcError, so that it can't end the daemon without a message.
pub fn without_lock<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|fault| {
        let reason = fault
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| fault.downcast_ref::<&str>().copied())
            .unwrap_or("it says nothing of itself");
        let error = py
            .import("cdc.errors")
            .and_then(|errors| errors.getattr("CdcError"))
            .and_then(|class| {
                class.call1((
                    format!("a fault of the compiled row path: {reason}"),
                    "Start the daemon with TARANTOOL_CDC_PURE=1, which does the same without it, and report this.",
                ))
            });
        error.map_or_else(|error| error, PyErr::from_value)
    })
}

/// Splits a byte stream into frames and reads their headers.
#[pyclass(module = "cdc._native")]
struct FrameReader {
    frame_bytes_max: usize,
    buffer: Vec<u8>,
    needed: usize,
}

#[pymethods]
impl FrameReader {
    #[new]
    fn new(frame_bytes_max: usize) -> Self {
        FrameReader {
            frame_bytes_max,
            buffer: Vec::new(),
            needed: LENGTH_BYTES,
        }
    }

    /// Add received bytes; return the frames that are now complete. None if a length is malformed: see `rest`.
    fn feed(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<Option<Rows>> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() < self.needed {
            return Rows::none(py).map(Some);
        }
        let (buffer, frame_bytes_max) = (&self.buffer, self.frame_bytes_max);
        let found = without_lock(py, || {
            let (ends, needed) = walk(buffer, frame_bytes_max)?;
            let rows = scan(buffer, &ends);
            Some((ends, rows, needed))
        })?;
        let Some((ends, rows, needed)) = found else {
            return Ok(None);
        };
        let whole = ends.last().copied().unwrap_or(0);
        let data = PyBytes::new(py, &self.buffer[..whole]).unbind();
        self.buffer.drain(..whole);
        self.buffer.shrink_to(KEPT_BYTES);
        self.needed = needed - whole;
        Ok(Some(Rows { data, ends, rows }))
    }

    #[getter]
    fn rest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.buffer)
    }

    #[getter]
    fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }
}

/// Complete frames, and their headers; without headers if one of the frames is odd (see frames.rs).
#[pyclass(frozen, module = "cdc._native")]
struct Rows {
    data: Py<PyBytes>,
    ends: Vec<usize>,
    rows: Option<Vec<Row>>,
}

impl Rows {
    fn none(py: Python<'_>) -> PyResult<Self> {
        Ok(Rows {
            data: PyBytes::new(py, b"").unbind(),
            ends: Vec::new(),
            rows: Some(Vec::new()),
        })
    }

    fn known(&self) -> &[Row] {
        self.rows.as_deref().unwrap_or(&[])
    }
}

#[pymethods]
impl Rows {
    /// Read these bytes, which must be complete frames.
    #[staticmethod]
    fn of(py: Python<'_>, data: Bound<'_, PyBytes>) -> PyResult<Option<Self>> {
        let bytes = data.as_bytes();
        let found = without_lock(py, || {
            let (ends, _) = walk(bytes, usize::MAX >> 1)?;
            let rows = scan(bytes, &ends);
            (ends.last().copied().unwrap_or(0) == bytes.len()).then_some((ends, rows))
        })?;
        Ok(found.map(|(ends, rows)| Rows {
            data: data.unbind(),
            ends,
            rows,
        }))
    }

    /// Read bytes of a log file; return the complete rows, and how many of the bytes they occupy. None if one of the blocks,
    /// whose ends are given, doesn't end with a row.
    #[staticmethod]
    fn of_log(
        py: Python<'_>,
        data: &[u8],
        block_ends: Vec<usize>,
    ) -> PyResult<Option<(Self, usize)>> {
        let mut wire = Vec::with_capacity(data.len() + data.len() / 8);
        let (rows, end) = without_lock(py, || scan_log(data, &mut wire))?;
        let ends: Vec<usize> = rows.iter().map(|row| row.end).collect();
        // Each frame is LENGTH_BYTES longer than its row in the file.
        let in_file: Vec<usize> = (1..)
            .zip(&ends)
            .map(|(count, end)| end - count * LENGTH_BYTES)
            .collect();
        if !block_ends
            .iter()
            .all(|end| *end == 0 || in_file.binary_search(end).is_ok())
        {
            return Ok(None);
        }
        let rows = Rows {
            data: PyBytes::new(py, &wire).unbind(),
            ends,
            rows: Some(rows),
        };
        Ok(Some((rows, end)))
    }

    /// Return the lsn of each origin's last row; None if a header is unsound or wasn't read.
    fn lsns(&self) -> Option<Vec<(u64, u64)>> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for row in self.rows.as_ref()? {
            if !row.is_sound {
                return None;
            }
            match found.iter_mut().find(|(origin, _)| *origin == row.origin) {
                Some(component) => component.1 = row.lsn,
                None => found.push((row.origin, row.lsn)),
            }
        }
        Some(found)
    }

    /// Whether a header names a group, as those of local spaces' rows do.
    #[getter]
    fn has_group(&self) -> bool {
        self.known().iter().any(|row| row.has_group)
    }

    fn __len__(&self) -> usize {
        self.ends.len()
    }

    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    #[getter]
    fn ends<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.ends)
    }

    #[getter]
    fn is_odd(&self) -> bool {
        self.rows.is_none()
    }

    #[getter]
    fn has_only_rows(&self) -> bool {
        self.rows
            .as_ref()
            .is_some_and(|rows| rows.iter().all(Row::is_row))
    }

    /// Return the frames from `start` (inclusive) to `stop` (exclusive).
    fn part(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<Self> {
        let stop = stop.min(self.ends.len());
        if start >= stop {
            return Rows::none(py);
        }
        let base = if start == 0 { 0 } else { self.ends[start - 1] };
        let rows = self.rows.as_ref().map(|rows| {
            rows[start..stop]
                .iter()
                .map(|row| Row {
                    begin: row.begin - base,
                    body: row.body - base,
                    end: row.end - base,
                    ..row.clone()
                })
                .collect()
        });
        Ok(Rows {
            data: PyBytes::new(
                py,
                &self.data.bind(py).as_bytes()[base..self.ends[stop - 1]],
            )
            .unbind(),
            ends: self.ends[start..stop]
                .iter()
                .map(|end| end - base)
                .collect(),
            rows,
        })
    }

    /// Return the index after complete transactions from row `at` on, once they have `count_max` rows; see frames.rs.
    fn whole_until(&self, at: usize, count_max: usize) -> usize {
        whole_until(self.known(), at, count_max)
    }

    /// Return whether all these rows belong to the transaction that is open at the end of `open`, and none of them ends it.
    fn continues_open(&self, open: &Bound<'_, Rows>) -> bool {
        let before = open.get().known().last();
        before.is_some_and(|before| continues_open(self.known(), before))
    }

    /// Return what limbo.rs finds out about the transactions from row `at` on.
    fn arrivals(
        &self,
        py: Python<'_>,
        at: usize,
        synchronous: Vec<u64>,
        has_flags: bool,
        after: u64,
        waiting: u64,
    ) -> PyResult<Arrivals> {
        let (data, rows) = (self.data.bind(py).as_bytes(), self.known());
        without_lock(py, || {
            limbo::arrivals(data, rows, at, &synchronous, has_flags, after, waiting)
        })
        .map(Arrivals)
    }

    /// Return the origin of row `at`; 0 if its header wasn't read.
    fn origin(&self, at: usize) -> u64 {
        self.known().get(at).map_or(0, |row| row.origin)
    }

    /// Return the lsn of row `at`; 0 if its header wasn't read.
    fn lsn(&self, at: usize) -> u64 {
        self.known().get(at).map_or(0, |row| row.lsn)
    }

    /// Return how many transactions there are from row `at` on, and their number of rows; see limbo.rs.
    fn waiting_counts(&self, at: usize) -> (usize, usize) {
        limbo::waiting_counts(self.known(), at)
    }

    /// Return the index after the row that ends the transaction open at row `at`, or after the last row.
    fn end_of_open(&self, at: usize) -> usize {
        end_of_open(self.known(), at)
    }
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
    outbox: Outbox,
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
        Messages::take(&mut self.outbox, &self.topics)
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
        keys: KeyPlan::new(number, parts)?,
        format: format_of(fields),
        is_vinyl,
        fitting,
    })
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
    let overlay = pending.as_mut().map(|pending| &mut pending.overlay);
    let mut failure = None;
    let found = without_lock(py, || {
        let mut fetch = |overlay: &mut Overlay, keys: &[Vec<u8>]| {
            let Some(get) = &get else {
                return false;
            };
            Python::attach(|py| fetch(py, get, overlay, keys))
                .map_err(|error| failure = Some(error))
                .is_ok()
        };
        work(&mut overlay.map(|overlay| Images {
            overlay,
            fetch: &mut fetch,
        }))
    })?;
    failure.map_or(Ok(found), Err)
}

/// Read the tuples of these keys from the store; stop after about FETCH_BYTES bytes.
fn fetch(py: Python<'_>, get: &Py<PyAny>, overlay: &mut Overlay, keys: &[Vec<u8>]) -> PyResult<()> {
    let get = get.bind(py);
    let bytes_max = overlay.fetched_bytes() + FETCH_BYTES;
    for key in keys {
        if overlay.fetched_bytes() > bytes_max {
            break;
        }
        let found = get.call1((PyBytes::new(py, key),))?;
        let tuple = if found.is_none() {
            None
        } else {
            Some(found.cast::<PyBytes>()?.as_bytes())
        };
        overlay.fetched(key, tuple);
    }
    Ok(())
}

#[pymethods]
impl RowPath {
    /// `records_from` is the number of events from which a transaction has BEGIN and END records, in `transaction_topic`; None
    /// if no transaction has them.
    #[new]
    fn new(
        source: Vec<u8>,
        tombstones: bool,
        records_from: Option<u64>,
        transaction_topic: Bound<'_, PyString>,
        bytes_max: usize,
    ) -> PyResult<Self> {
        let settings = Settings {
            source,
            tombstones,
            unrecorded_events_max: records_from.map(|count| count.saturating_sub(1)),
            transaction_topic: 0,
            bytes_max,
        };
        Ok(RowPath {
            path: Path::new(settings),
            topics: Arc::new(vec![Topic::new(&transaction_topic)]),
            outbox: Outbox::default(),
            upsert_count: 0,
        })
    }

    /// Handle a space's rows from here on.
    ///
    /// - `name`: the space's name as JSON; `table` and `schema`: the envelope's pieces for the space.
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
        fields: Vec<(Vec<u8>, bool)>,
        parts: Vec<(Vec<u8>, PyKeyPart)>,
        fields_max: usize,
        images: Option<PyImages>,
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
        let topic = self.topic(topic)?;
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
        let mut plan = Plan::new(fields, parts, fields_max, table, schema, name, topic);
        plan.images = images;
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

    /// Handle complete transactions from row `at` (inclusive) to `stop` (exclusive); for `certain` see stream_events.rs. `vclock`, `seq` and
    /// `byte_count` are the current values; the result contains the new ones.
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
        let outbox = &mut self.outbox;
        outbox.begin(byte_count, seq);
        let path = &mut self.path;
        let (at, origins) = with_images(py, images, |images| {
            let mut origins = Origins::new(vclock);
            let at = path.run(
                data,
                known,
                at,
                suffix,
                &mut origins,
                outbox,
                images,
                certain,
            );
            (at, origins)
        })?;
        self.upsert_count += self.outbox.upsert_count;
        let moved = PyDict::new(py);
        for (origin, lsn) in origins.components() {
            moved.set_item(origin, lsn)?;
        }
        Ok(Run {
            at,
            messages: Py::new(py, self.messages())?,
            byte_count: self.outbox.byte_count,
            seq: self.outbox.seq,
            row_count: self.outbox.row_count,
            timestamp: self.outbox.timestamp,
            vclock: moved.unbind(),
            has_records: self.outbox.has_records,
            is_full: self.outbox.is_full,
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
        let outbox = &mut self.outbox;
        outbox.begin(byte_count, seq);
        let path = &mut self.path;
        let at = with_images(py, images, |images| {
            path.run_snapshot(data, known, at, outbox, images)
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
            byte_count: self.outbox.byte_count,
            seq: self.outbox.seq,
            counts: counts.unbind(),
        })
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
