//! The compiled row path: the processing of each row, without holding Python's lock. The Python modules are its specification;
//! `cdc.native` decides which of the two runs.
//!
//! Only batches cross the border to Python, never single rows. Only the modules named `python…` depend on Python; the others have
//! their own tests.

pub mod envelope;
pub mod extensions;
pub mod fitting;
pub mod frames;
pub mod images;
pub mod json;
pub mod key_text;
pub mod keys;
pub mod layout;
pub mod limbo;
pub mod murmur2;
pub mod numbers;
pub mod outbox;
pub mod overlay;
pub mod patch;
pub mod plan;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_limbo;
#[cfg(feature = "python")]
mod python_messages;
#[cfg(feature = "python")]
mod python_overlay;
#[cfg(feature = "python")]
mod python_producer;
#[cfg(feature = "python")]
mod python_rows;
pub mod row_path;
pub mod snapshot;
pub mod snapshot_progress;
pub mod stream_events;
pub mod update;
pub mod wire;
