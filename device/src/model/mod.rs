//! The model of hardware: what each step inside the device costs in time and energy. [`HardwareModel`] is the [`Timing`]
//! of the virtual and of the real clock; without it (free clock) no step costs anything and nothing here runs.
//!
//! What always holds:
//! - Time comes from parameters and from queues: a step waits because the resource that it needs works for another, and for no
//!   other reason. No factor stands for contention.
//! - Integers and a fixed order decide everything: same parameters, same requests at the same times, same nanoseconds, on any
//!   machine. Nothing reads a clock, a hash seed or an address.
//! - A resource's busy time never exceeds the time that has passed; energy is the sum over its parts.
//! - Memory grows with what is touched: lines that were never written have no entry.
//!
//! One file a resource: `link` (host link and bridge), `ring`, `spu` (processors, DMA controllers, accelerators), `media` (phase-change
//! memory, media of fixed latency, or the buffers before flash), `flash` (dies and buses), `start_gap` and `wear` for what phase-change memory needs.
//! `accelerator` is the registry of accelerators. `timing` is the seam; `punctuality` says how late a driver of the real clock hands completions out.

pub mod accelerator;
pub(crate) mod chosen;
mod energy;
pub mod flash;
mod hardware;
pub mod histogram;
mod link;
mod media;
pub mod parameters;
mod pcm;
pub mod punctuality;
mod resource;
mod ring;
mod spu;
mod start_gap;
pub mod statistics;
pub mod timing;
pub mod trace;
mod validate;
mod wear;

pub use hardware::HardwareModel;
pub use parameters::ModelParameters;
pub use statistics::ModelStatistics;
pub use timing::Timing;
pub use trace::{Lane, Span, TraceSink};
