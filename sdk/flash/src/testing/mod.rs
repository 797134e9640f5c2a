//! What tests of FTLs run on: a strict medium that loses power and fails on request, an executor that interleaves by seed, and choices that are
//! drawn or enumerated. Same seeds, same calls: same results.

mod executor;
mod medium;
mod null;
#[cfg(feature = "planted")]
pub mod power_cut;
mod random;
#[cfg(feature = "planted")]
pub mod world;

pub use executor::{Executor, Stop};
pub use medium::{Faults, Medium};
pub use null::{NullFlash, drive};
pub use random::{Choices, Random};
