//! Willow in simulated time: the same device, the same SSD Apps and the same endpoints as everywhere, with a modelled host, driven by
//! a discrete-event loop. Workloads and replayed traces, the papers' experiments, calibration.
//!
//! ```text
//! experiments  calibrate  replay  workload         what is run
//!         \        |        |      /
//!                Simulation                         the driver: one thread, one virtual clock
//!            /        |        \
//!     HostThread   generators   trace, report
//!         |           |
//!       world (processors, threads, locks of the host)
//!         |
//!     willow-device with its model of hardware
//! ```
//!
//! What always holds: same preset, workload and seed: same trace and same report, byte for byte, on any machine. Nothing here reads the
//! machine's clock but [`speed`], which measures how fast simulating is.

#![forbid(unsafe_code)]

pub mod calibrate;
mod deadlock;
mod direct;
mod executor;
pub mod experiments;
pub mod flash;
pub mod generator;
mod hardware;
pub mod host;
mod mail;
pub mod operation;
pub mod plot;
mod precondition;
pub mod preset;
pub mod published;
pub mod random;
pub mod replay;
pub mod report;
pub mod reproduce;
mod sata;
pub mod simulation;
pub mod size;
mod slots;
pub mod snapshot;
pub mod speed;
pub mod thread;
pub mod trace;
pub mod workload;
mod world;

pub use generator::{GeneratorOptions, Next, Source};
pub use host::{HostParameters, Path};
pub use operation::Operation;
pub use preset::{Preset, PresetError};
pub use report::Report;
pub use sata::SataParameters;
pub use simulation::{Cut, CutReport, Output, Simulation, SimulationError, SimulationOptions};
pub use thread::{Held, HostLock, HostThread, SimulatedHre};
pub use trace::{Trace, TracedSpan};
pub use workload::{BlockWorkload, KvWorkload};
