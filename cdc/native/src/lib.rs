//! The row path in compiled form: what happens to every row, without Python's lock. The Python modules are the specification;
//! `cdc.native` decides which of the two runs.
//!
//! What crosses the border is a batch, never a row. Only `python` knows of Python; all other modules are tested by themselves.

pub mod envelope;
pub mod frames;
pub mod images;
pub mod json;
pub mod keys;
pub mod layout;
pub mod murmur2;
pub mod numbers;
pub mod overlay;
pub mod patch;
pub mod plan;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_messages;
#[cfg(feature = "python")]
mod python_overlay;
#[cfg(feature = "python")]
mod python_producer;
#[cfg(feature = "python")]
mod python_rows;
pub mod run;
pub mod snapshot;
pub mod update;
pub mod wire;
