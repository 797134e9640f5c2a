//! An NVMe/TCP initiator in user space (NVMe Base 2.x, NVMe/TCP Transport 1.x). Limits come from what the controller says
//! (MDTS, IOCCSZ, MQES, MAXH2CDATA), so that it talks to any target.
//!
//! [`Controller`] is the asynchronous way, on tokio; [`polled`] the one for programs that have a core to spend on a queue.
//! Both move the bytes of the same [`queue::Queue`].

mod authenticate;
pub mod bringup;
pub mod connection;
mod controller;
mod error;
mod hre;
pub mod identity;
mod options;
pub mod polled;
pub mod queue;
mod socket;
mod ticket;
mod unflushed;
mod wire;

pub use bringup::Ready;
pub use controller::{Controller, Via, discover};
pub use error::NvmeError;
pub(crate) use hre::rpc_error;
pub use hre::{NvmeHre, kv_entry};
pub use identity::{ControllerIdentity, NamespaceIdentity, NamespaceKind};
pub use options::{Options, QUEUES_MAX, RETRIES_MAX, Retry};
pub use queue::{Completed, Transfer};
