//! The NVMe subsystem in front of the device: controllers, queues, namespaces and commands, without any transport's bytes.
//!
//! What always holds:
//! - sans-io: submission queue entries and time in, completions and data out; no sockets, threads or clocks;
//! - a command is parsed once, in [`command`], into a typed one; behind it no byte of an entry is looked at again;
//! - every bound is named in [`config`].
//!
//! Who may call it: transports ([`Subsystem`] from one thread). It calls the device through [`Backend`].

pub mod access;
mod account;
mod admin;
mod admission;
mod association;
pub mod authentication;
pub mod backend;
pub mod buffer;
mod bytes;
pub mod command;
mod concatenation;
pub mod config;
mod controller;
mod fabrics;
pub mod features;
mod fused;
pub mod identify;
mod io;
pub mod log_page;
mod pairs;
mod queue;
mod ranges;
mod receive;
mod reload;
mod report;
mod reservation;
pub mod statistics;
pub mod status;
mod subsystem;
#[cfg(feature = "testing")]
pub mod testing;
mod ticket;
mod work;

pub use authentication::{AuthenticationJob, HostAuthentication};
pub use backend::Backend;
pub use buffer::{HEADROOM_BYTES, TAILROOM_BYTES};
pub use concatenation::Secured;
pub use config::SubsystemConfig;
pub use statistics::Statistics;
pub use subsystem::{Completion, ConnectionId, Fetch, Next, Payload, Subsystem};
