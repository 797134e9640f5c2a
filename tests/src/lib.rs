//! Tests that cross crates or need something real around the device: a kernel guest, a daemon, a capture.
//!
//! Who may call it: the files in `tests/tests`, and `willow-guest`.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod guest;
pub mod planted;
pub mod scratch;
pub mod stage;
