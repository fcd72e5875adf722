//! Python's interface to codec.rs: a stream's frames, and the rows in them.

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::batch::KEPT_BYTES;
use crate::codec::{
    continues_open, end_of_open, scan, scan_log, walk, whole_until, Row, LENGTH_BYTES,
};
use crate::limbo;
use crate::python_limbo::Arrivals;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FrameReader>()?;
    module.add_class::<Rows>()
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

/// Complete frames, and their headers; without headers if one of the frames is odd (see codec.rs).
#[pyclass(frozen, module = "cdc._native")]
pub struct Rows {
    pub data: Py<PyBytes>,
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

    pub fn known(&self) -> &[Row] {
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

    /// Return the index after complete transactions from row `at` on, once they have `count_max` rows; see codec.rs.
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
