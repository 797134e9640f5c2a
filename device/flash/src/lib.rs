//! Flash: contents and rules of NAND, what goes wrong in it, and how long it takes. Of the device's rooms it knows none: time, seeds and
//! files are handed in.
//!
//! How a bank uses it:
//! - **Free clock**: call [`Array::read`], [`Array::program`], [`Array::erase`], [`Array::copyback`]; each takes effect at once.
//! - **Modelled clocks**: submit each operation to [`timing::Timing`], ask [`timing::Timing::next_event_ns`] when to come back, and call
//!   [`timing::Timing::advance`] then. An operation that it reports as done is carried out on the [`Array`] at that moment: operations
//!   of one block are reported in the order in which they were submitted.
//! - **Flush and FUA** of a host end with [`Array::sync`] where contents are in a file: what was programmed is then safe from a power cut of the
//!   machine, as it is from death of the process from the start. An erase syncs by itself. Who must not wait for the disk has another thread do it:
//!   [`Array::begin_sync`], [`Sync::run`] there, [`Array::end_sync`]; and erases after that ([`Array::erase_covered`]).
//! - **Order**: the dies' operations are not reported in the order of their submission: reads go before writes where the parameters say so. Writes of
//!   one die keep their order, and so do all operations that share a block.
//! - **A power cut**: [`timing::Timing::cut`] tells which operations were in an array: [`Array::cut_program`] and [`Array::cut_erase`] for
//!   those, nothing for all others, then [`Array::power_up`].
//! - **Restart**: [`Array::close`] at a regular end. Without it nothing that was answered is lost but counts of reads.
#![forbid(unsafe_code)]

mod array;
mod check;
mod contents;
mod copyback;
pub mod faults;
mod geometry;
mod operation;
mod parameters;
mod power;
pub mod presets;
mod rules;
pub mod snapshot;
mod statistics;
pub mod timing;
mod view;

pub use array::Array;
pub use check::Absurd;
#[cfg(feature = "testing")]
pub use contents::file::SyncHook;
pub use contents::file::{FileError, RECORD_BYTES, Sync};
pub use contents::head::{Head, Uuid};
pub use faults::FaultParameters;
pub use geometry::{BLOCKS_MAX, Cell, DIES_MAX, GEOMETRY_WORDS, Geometry, PLANES_MAX, PageAddress, PageKind, PlaneSet};
pub use operation::{CopybackPage, CutOutcome, Misuse, ProgramPage, Read, Status};
pub use parameters::{ControllerParameters, FlashParameters};
pub use statistics::ArrayStatistics;
pub use view::{BlockState, BlockView, Wear};
