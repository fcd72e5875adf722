//! Python's interface to the pending changes, their keys, and UPDATE.

use std::collections::HashSet;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::arithmetic::Width;
use crate::keys::{KeyCodec, KeyPart};
use crate::layout::Step;
use crate::pending::{slices, Changes, Pending};
use crate::update::{update, Format};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyChanges>()?;
    module.add_class::<PendingChanges>()?;
    module.add_class::<StoreKeys>()?;
    module.add_function(wrap_pyfunction!(updated, module)?)
}

fn pair<'py>(
    py: Python<'py>,
    (key, tuple): (&[u8], Option<&[u8]>),
) -> PyResult<Bound<'py, PyTuple>> {
    (
        PyBytes::new(py, key),
        tuple.map(|tuple| PyBytes::new(py, tuple)),
    )
        .into_pyobject(py)
}

/// Changes to be written to the store, in order.
#[pyclass(name = "Changes", module = "cdc._native")]
#[derive(Default)]
pub struct PyChanges {
    parts: Vec<Arc<Changes>>,
}

impl PyChanges {
    fn of(part: Arc<Changes>) -> PyChanges {
        PyChanges {
            parts: if part.is_empty() { vec![] } else { vec![part] },
        }
    }

    fn lengths(&self) -> Vec<u8> {
        let count = self.parts.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(4 + 8 * count);
        bytes.extend_from_slice(&(count as u32).to_le_bytes());
        for part in &self.parts {
            part.push_lengths(&mut bytes);
        }
        bytes
    }

    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found: PyResult<Vec<_>> = self
            .parts
            .iter()
            .flat_map(|part| part.iter())
            .map(|change| pair(py, change))
            .collect();
        PyList::new(py, found?)
    }
}

#[pymethods]
impl PyChanges {
    #[new]
    fn new() -> PyChanges {
        PyChanges::default()
    }

    fn __len__(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.list(py)?.try_iter()?.into_any())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let ours = self.list(py)?;
        match other.cast::<PyChanges>() {
            Ok(other) => ours.eq(other.borrow().list(py)?),
            Err(_) => ours.eq(other),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Changes({})", self.list(py)?.repr()?))
    }

    fn extend(&mut self, more: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(more) = more.cast::<PyChanges>() {
            let more = more.try_borrow()?;
            self.parts.extend(more.parts.iter().cloned());
            return Ok(());
        }
        let mut changes = Changes::default();
        for change in more.try_iter()? {
            let (key, tuple): (Vec<u8>, Option<Vec<u8>>) = change?.extract()?;
            changes.push(&key, tuple.as_deref());
        }
        self.parts.push(Arc::new(changes));
        Ok(())
    }

    #[getter]
    fn byte_count(&self) -> usize {
        self.parts.iter().map(|part| part.byte_count()).sum()
    }

    /// Return the changes as bytes: their number, the lengths of each key and tuple, and all keys and tuples.
    fn pack<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut bytes = self.lengths();
        for part in &self.parts {
            bytes.extend_from_slice(part.data());
        }
        PyBytes::new(py, &bytes)
    }

    /// Write the same bytes into a file, from `offset` on, without a copy of them all. Raises OSError.
    fn write_packed(&self, py: Python<'_>, descriptor: i32, offset: u64) -> PyResult<()> {
        // SAFETY: the descriptor is the caller's, who keeps it open; the file isn't closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        py.detach(|| {
            let lengths = self.lengths();
            file.write_all_at(&lengths, offset)?;
            let mut offset = offset + lengths.len() as u64;
            for part in &self.parts {
                file.write_all_at(part.data(), offset)?;
                offset += part.data().len() as u64;
            }
            Ok(())
        })
    }

    /// Return lists of changes that are written together: sorted, with only the last change of each key; a clearing is separate.
    fn slices<'py>(
        &self,
        py: Python<'py>,
        changes_max: usize,
        bytes_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let parts: Vec<&Changes> = self.parts.iter().map(Arc::as_ref).collect();
        let found = py.detach(|| slices(&parts, changes_max, bytes_max));
        let lists: PyResult<Vec<_>> = found
            .iter()
            .map(|slice| {
                let pairs: PyResult<Vec<_>> = slice
                    .changes
                    .iter()
                    .map(|change| pair(py, *change))
                    .collect();
                PyList::new(py, pairs?)
            })
            .collect();
        PyList::new(py, lists?)
    }
}

/// The pending changes (cdc.images.pending).
#[pyclass(module = "cdc._native")]
#[derive(Default)]
pub struct PendingChanges {
    pub pending: Pending,
    /// The pending's doubtful keys, as the Python object that was set.
    doubtful: Option<Py<PyAny>>,
}

#[pymethods]
impl PendingChanges {
    #[new]
    fn new() -> PendingChanges {
        PendingChanges::default()
    }

    #[getter]
    fn doubtful(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.doubtful.as_ref().map(|keys| keys.clone_ref(py))
    }

    #[setter]
    fn set_doubtful(&mut self, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let found: PyResult<HashSet<Vec<u8>>> =
            keys.try_iter()?.map(|key| key?.extract()).collect();
        self.pending.doubtful = found?;
        self.doubtful = Some(keys.clone().unbind());
        Ok(())
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        unchanged: Bound<'py, PyAny>,
    ) -> Bound<'py, PyAny> {
        match self.pending.get(key) {
            None => unchanged,
            Some(None) => py.None().into_bound(py),
            Some(Some(tuple)) => PyBytes::new(py, tuple).into_any(),
        }
    }

    fn is_cleared(&self, key: &[u8]) -> bool {
        self.pending.is_cleared(key)
    }

    fn changed<'py>(
        &self,
        py: Python<'py>,
        prefix: &[u8],
        after: &[u8],
    ) -> PyResult<Bound<'py, PyList>> {
        let found: PyResult<Vec<_>> = self
            .pending
            .changed(prefix, after)
            .into_iter()
            .map(|change| pair(py, change))
            .collect();
        PyList::new(py, found?)
    }

    fn put(&mut self, key: &[u8], tuple_: Option<&[u8]>) -> PyResult<()> {
        if tuple_.is_some_and(<[u8]>::is_empty) {
            return Err(PyTypeError::new_err("no tuple is empty"));
        }
        self.pending.put(key, tuple_);
        Ok(())
    }

    fn clear(&mut self, prefix: &[u8]) {
        self.pending.clear(prefix);
    }

    #[getter]
    fn change_count(&self) -> usize {
        self.pending.change_count()
    }

    fn forget_after(&mut self, mark: usize) {
        self.pending.forget_after(mark);
    }

    fn take(&mut self) -> PyChanges {
        PyChanges::of(self.pending.take())
    }

    fn take_before(&mut self, mark: usize) -> PyChanges {
        PyChanges::of(self.pending.take_before(mark))
    }

    fn written(&mut self, py: Python<'_>, changes: &PyChanges) {
        let pending = &mut self.pending;
        py.detach(|| changes.parts.iter().for_each(|part| pending.written(part)));
    }
}

/// A step of a path in Python: a place in an array (from 0), or a key of a map.
#[derive(FromPyObject)]
pub enum PyStep {
    Place(u64),
    Name(String),
}

/// A part of a primary key in Python: its field (from 0), the path inside the field, its type, and whether different notations
/// of a value are different keys.
pub type PyKeyPart = (usize, Vec<PyStep>, String, bool);

pub fn key_part((field, path, type_name, is_as_written): PyKeyPart) -> KeyPart {
    let step = |step| match step {
        PyStep::Place(place) => Step::Place(place),
        PyStep::Name(name) => Step::Name(name.into_bytes()),
    };
    KeyPart {
        field,
        path: path.into_iter().map(step).collect(),
        type_name,
        is_as_written,
    }
}

/// Encoder of one space's keys (cdc.schema.keys). Functions return None for keys that only the Python path encodes.
#[pyclass(module = "cdc._native")]
struct StoreKeys {
    plan: KeyCodec,
}

#[pymethods]
impl StoreKeys {
    /// Compile the primary key's parts.
    #[staticmethod]
    fn compile(number: u32, parts: Vec<PyKeyPart>) -> Option<StoreKeys> {
        let parts: Vec<KeyPart> = parts.into_iter().map(key_part).collect();
        KeyCodec::new(number, &parts).map(|plan| StoreKeys { plan })
    }

    fn of_tuple<'py>(&self, py: Python<'py>, tuple_: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let mut out = Vec::new();
        self.plan
            .of_tuple(tuple_, &mut out)
            .map(|()| PyBytes::new(py, &out))
    }

    fn of_key<'py>(&self, py: Python<'py>, key: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let mut out = Vec::new();
        self.plan
            .of_key(key, &mut out)
            .map(|()| PyBytes::new(py, &out))
    }
}

/// Return a format, given the names and types of its fields.
pub fn format_of(fields: Vec<(Vec<u8>, String)>) -> Format {
    let (names, types): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    Format {
        names,
        widths: types.iter().map(|kind| Width::of(kind)).collect(),
    }
}

/// Return a tuple after an UPDATE; None if only the Python path can compute it.
#[pyfunction]
fn updated<'py>(
    py: Python<'py>,
    tuple_: &[u8],
    operations: &[u8],
    base: u64,
    fields: Vec<(Vec<u8>, String)>,
) -> Option<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    update(tuple_, operations, base, &format_of(fields), &mut out).map(|()| PyBytes::new(py, &out))
}
