//! Key-Value: an SSD App that keeps pairs in NV memory (Willow 4.5, XSSD 4.4.2). FORMAT.md has its format.
//!
//! The way of a request: [`handlers`] -> [`table`] (which namespace) -> [`store`] (which bucket, which record) -> `heap` and
//! `limbo` (which slot, and when it is free again) -> [`bank`] (DMA).
#![cfg_attr(target_arch = "wasm32", no_std)]
#![deny(unsafe_code)]

pub mod bank;
pub mod format;
// `app!` makes the module's exports.
#[allow(unsafe_code)]
pub mod handlers;
mod heap;
mod limbo;
pub mod lock;
mod recovery;
pub mod store;
pub mod table;
pub mod wire;

#[cfg(not(target_arch = "wasm32"))]
pub use handlers::native;
