//! What the flash translation layers (FTLs) of Willow share.
//!
//! An FTL is a trusted SSD App that holds the flash port of its SPU. It sees the flash as **lanes**: the dies that one virtual page is spread
//! over. A [`Lane`] keeps the map of its logical pages, writes them in order into erase blocks, keeps a log of what changed, writes checkpoints, collects garbage,
//! levels wear, replaces bad blocks, and recovers all of it after a power cut. What an FTL adds is its policy: how logical pages go to lanes, what is
//! merged, what is buffered.
//!
//! What always holds: nothing here knows of the device, of time or of threads; what waits, waits in a future of the [`FlashPort`] or of [`wait`].
//! Formats are in FORMAT.md.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod buckets;
pub mod geometry;
pub mod header;
mod lane;
mod planted;
pub mod port;
pub mod prediction;
pub mod replacements;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wait;

pub use geometry::{Cell, DIES_PER_UNIT_MAX, GEOMETRY_WORDS, Geometry, Layout, PLANES_MAX};
pub use header::{HEADER_BYTES, Header, Kind};
pub use lane::{Counters, Failure, Health, Lane, LaneConfig, LaneMap, MountError, Update};
pub use planted::Planted;
pub use port::{FlashPort, Peer, ProgramPage, Read, Segment, Sink, Source, Status};
