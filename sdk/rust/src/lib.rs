//! To write SSD Apps in Rust: `async` handlers that run on the processors inside a Willow device.
//!
//! An app is a set of handlers, [`app!`] makes a module of them. A handler gets a [`Request`]; it receives the arguments, has
//! data moved by DMA between NV memory, the requester's buffers and local memory, and ends with a [`Response`]. Whatever
//! takes time is awaited; meanwhile other handlers of the same app run on that SPU and share its state. What an import
//! finishes at once does not suspend the handler.
//!
//! The same source also builds natively ([`native`]) and is tested there on a mock device ([`testing`]).
//!
//! The contract with SPU-OS is docs/abi.md.
#![cfg_attr(target_arch = "wasm32", no_std)]

mod batch;
mod decompress;
mod error;
mod event;
#[doc(hidden)]
pub mod executor;
pub mod flash;
#[allow(dead_code, reason = "it has all imports, and not all are used here")]
#[rustfmt::skip]
mod imports;
mod join;
mod keys;
mod literals;
mod macros;
#[doc(hidden)]
pub mod manifest;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
mod numbers;
mod nv;
mod print;
#[cfg(target_arch = "wasm32")]
mod record;
mod remote;
mod request;
mod rpc;
pub mod sync;
mod sys;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod time;

pub use batch::{Batch, RpcBatch};
pub use decompress::{
    Decompression, INPUT_BYTES_MAX as DECOMPRESS_INPUT_BYTES_MAX, ROOM_BYTES_MAX as DECOMPRESS_ROOM_BYTES_MAX,
};
pub use error::{Error, Response};
pub use event::DeviceEvent;
pub use executor::{THREADS_MAX, WAITS_MAX};
pub use join::{join, join_all};
pub use keys::{KEY_BYTES_MAX, KeyPlace, Keys};
pub use literals::{
    Found, LITERAL_BYTES_MAX, LITERAL_SET_BYTES_MAX, LITERALS_MAX, LiteralOptions, Literals, MATCHES_MAX, Match,
    SEARCH_BYTES_MAX, write_literal,
};
pub use numbers::{Number, ROW_BYTES_MAX};
pub use nv::{
    COUNTERS_MAX, Namespace, REGION_ALIGNMENT_BYTES, count, flush, namespace, region, region_bytes, region_free,
    spu_count, spu_id, time_ns,
};
pub use print::SerialPort;
#[doc(hidden)]
pub use print::print_arguments;
pub use remote::SpuNv;
pub use request::{Body, Local, Nv, ParkedNv, Reply, Request, RequestInfo, SOURCE_HOST, Sink, Source, Strides, Zeroes};
pub use rpc::{App, Destination, RPC_BODY_BYTES_MAX, RPC_SEGMENTS_MAX, RpcBuilder, app_number, subscribers};
pub use time::{background, cancel_after, sleep_ns, yield_now};
