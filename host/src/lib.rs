//! What runs on hosts: endpoints ([`Hre`]), the NVMe/TCP initiator that carries them, and typed clients for block and
//! key-value namespaces, apps and the control service.
//!
//! ```text
//! BlockClient  KvClient  AppClient  ControlClient        typed clients
//!         \        |        |        /
//!                    dyn Hre                              an endpoint
//!              /             |            \
//!          NvmeHre        ShmHre       InProcessHre (feature `in-process`)
//!             |              |              |
//!   nvme_tcp::Controller  willow-shm   willow-device
//! ```
//!
//! What always holds: nothing here knows the device but `device_queue` and `in_process`; every wait has a bound; what a peer says is
//! checked before it is used.

pub mod agent;
pub mod append;
pub mod atomic_write;
pub mod block;
pub mod btree;
pub mod cache;
pub mod caching;
pub mod columns;
pub mod compute;
pub mod control;
#[cfg(feature = "in-process")]
pub mod device_queue;
pub(crate) mod direct;
pub mod direct_io;
pub mod hre;
#[cfg(feature = "in-process")]
pub mod in_process;
pub mod kv;
pub mod nvme_tcp;
pub mod rpc;
pub mod search;
pub mod shm;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;

pub use append::{AppendClient, AppendError};
pub use atomic_write::{AtomicTransaction, AtomicWriteClient, AtomicWriteError};
pub use block::BlockClient;
pub use btree::{BtreeClient, BtreeError, BtreeTree};
pub use caching::{CachingClient, CachingError};
pub use control::ControlClient;
pub use hre::{Hre, HreError, RpcCall, RpcReply, Upcall};
#[cfg(feature = "in-process")]
pub use in_process::{InProcess, InProcessHre};
pub use kv::{KvClient, StoreCondition};
pub use nvme_tcp::{Controller, NvmeError, NvmeHre, Options, Retry};
pub use rpc::AppClient;
pub use shm::{ShmHre, ShmOptions};
