//! The device: what is inside the SSD. Bridge, interconnect, SPUs with SPU-OS and the app runtime, media controller.
//!
//! What always holds:
//! - It is handed messages and time and hands back messages and wake-up times: no sockets, threads or clocks of its own.
//!   Work that takes machine time (compiling a module) is handed out as a [`Job`].
//! - It knows nothing of transports, hosts or experiments.
//! - Same requests in the same order at the same times: same completions, same order.
//!
//! Who may call it: transports and drivers of a clock, from one thread.

pub mod accounts;
pub(crate) mod bridge;
pub mod clock;
pub mod config;
pub mod control;
mod device;
pub(crate) mod event;
pub(crate) mod fair;
pub mod histogram;
pub mod hre;
pub mod interconnect;
pub mod media;
pub mod metadata;
pub mod model;
pub mod namespace;
pub(crate) mod places;
pub mod protection;
pub mod punctuality;
pub mod region;
pub mod request;
mod service;
pub mod shared;
pub(crate) mod slab;
pub mod spu;
pub mod statistics;
#[cfg(feature = "testing")]
pub mod testing;
pub(crate) mod wheel;

pub use config::{DeviceConfig, STRIPE_BYTES};
pub use device::{BuiltInApp, Device, Job, JobDone, OpenError};
pub use hre::HreId;
pub use media::store::{Progress, Store, StoreCompletion, StoreError, Ticket};
pub use namespace::{CommandSet, Namespace};
pub use protection::{Intercall, ProcessInfo, USER_NOBODY};
pub use request::{
    AppNumber, Arguments, HostCompletion, HostRequest, INLINE_ARGUMENT_BYTES_MAX, Rpc, RpcList, RpcOutcome, Upcall,
};
pub use statistics::Statistics;
