//! The device: what is inside the SSD. Bridge, interconnect, SPUs with SPU-OS and the app runtime, media controller.
//!
//! What always holds:
//! - It is handed messages and time and hands back messages and wake-up times: no sockets, threads or clocks of its own.
//!   Work that takes machine time (compiling a module) is handed out as a [`Job`].
//! - It knows nothing of transports, hosts or experiments.
//! - Same requests in the same order at the same times: same completions, same order.
//!
//! Who may call it: transports and drivers of a clock, from one thread.

pub(crate) mod bridge;
pub mod config;
mod drive;
pub mod hre;
pub mod interconnect;
pub mod media;
pub mod model;
pub mod namespace;
pub(crate) mod places;
pub mod region;
pub mod request;
mod service;
pub mod shared;
pub(crate) mod slab;
pub mod spu;
#[cfg(feature = "testing")]
pub mod testing;

pub use bridge::accounts;
pub use config::{DeviceConfig, STRIPE_BYTES};
pub use drive::Device;
pub use hre::HreId;
pub use media::store::{BlobReader, Progress, Store, StoreCompletion, StoreError, Ticket};
pub use model::{histogram, punctuality};
pub use namespace::{CommandSet, Namespace};
pub use request::{
    AppNumber, Arguments, HostCompletion, HostRequest, INLINE_ARGUMENT_BYTES_MAX, Rpc, RpcList, RpcOutcome, Upcall,
};
pub use service::OpenError;
pub use service::core::{Job, JobDone};
pub use service::ftl::FlashState;
pub use service::statistics::Statistics;
pub use service::uncorrectable::{MARKED_BLOCKS_MAX, MARKED_BLOCKS_OF_ALL_MAX};
pub use service::versions::BuiltInApp;
pub use service::{control, metadata, reservation, statistics};
pub use spu::flash_cut::PowerCut;
pub use spu::profile;
pub use spu::protection::{Intercall, ProcessInfo, USER_NOBODY};
pub use spu::runtime::kept::{KeptModules, KeptModulesError};
pub use spu::runtime::module::name_of as module_name;

/// The seam for models of time: what they implement, and what they are handed.
pub mod clock {
    pub use crate::interconnect::{Agenda, DmaKind, Endpoint, Message, Transfer};
    pub use crate::model::accelerator::{Accelerated, Accelerator};
    pub use crate::model::flash::FlashStep;
    pub use crate::model::timing::{DmaStep, Timing, Work};
}
