//! Tests that cross crates or need something real around the device: a kernel guest, a daemon, a capture.
//!
//! Who may call it: the files in `tests/tests`, and `willow-guest`.
#![deny(unsafe_code)]

pub mod appended;
pub mod attacker;
pub mod calls;
pub mod daemon;
pub mod guest;
pub mod guest_agent;
pub mod host_cut;
#[allow(unsafe_code)]
pub mod idmapped;
pub mod judge;
pub mod link;
#[allow(unsafe_code)]
pub mod mapped;
pub mod midst;
pub mod planted;
pub mod scratch;
#[allow(unsafe_code)]
pub mod signals;
#[allow(unsafe_code)]
pub mod space;
pub mod stage;
pub mod ways;
