//! The row path in compiled form: what happens to every row, without Python's lock. The Python modules are the specification;
//! `cdc.native` decides which of the two runs.
//!
//! What crosses the border is a batch, never a row. Only `python` knows of Python; all other modules are tested by themselves.

pub mod keys;
pub mod layout;
pub mod overlay;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_overlay;
pub mod update;
