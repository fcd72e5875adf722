//! The compiled row path: the processing of each row, without holding Python's lock. The Python modules are its
//! specification; `cdc.native` decides which of the two runs.
//!
//! A module has the name of the Python module that it is the twin of; docs/architecture.md lists them, and those without a twin.
//!
//! Only batches cross the border to Python, never single rows. Only the modules named `python…` depend on Python; the others have
//! their own tests.

pub mod arithmetic;
pub mod avro_events;
pub mod avro_values;
pub mod batch;
pub mod codec;
pub mod columns;
pub mod constants;
pub mod envelope;
pub mod extensions;
pub mod fitting;
pub mod image_events;
pub mod json_values;
pub mod key_text;
pub mod keys;
pub mod layout;
pub mod lean;
pub mod limbo;
pub mod murmur2;
pub mod overlay;
pub mod patch;
pub mod pending;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_frames;
#[cfg(feature = "python")]
mod python_images;
#[cfg(feature = "python")]
mod python_limbo;
#[cfg(feature = "python")]
mod python_messages;
#[cfg(feature = "python")]
mod python_producer;
#[cfg(feature = "python")]
mod python_rows;
pub mod row_encoder;
pub mod row_path;
pub mod snapshot;
pub mod snapshot_progress;
pub mod stream_events;
pub mod update;
