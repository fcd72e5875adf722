//! The module for Python. Its functions process batches; a panic in one becomes an exception (cdc.errors.CdcError).

use pyo3::prelude::*;

use crate::python_frames;
use crate::python_images;
use crate::python_limbo;
use crate::python_messages;
use crate::python_producer;
use crate::python_rows;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES_CRC32", env!("SOURCES_CRC32"))?;
    python_frames::register(module)?;
    python_limbo::register(module)?;
    python_messages::register(module)?;
    python_images::register(module)?;
    python_producer::register(module)?;
    python_rows::register(module)?;
    Ok(())
}
