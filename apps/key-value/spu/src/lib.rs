//! Key-Value: an SSD App that keeps pairs in NV memory (Willow 4.5, XSSD 4.4.2). docs/format.md has its format.
//!
//! The way of a request: handler -> [`table`] (which namespace) -> [`store`] (which bucket, which record) -> [`heap`] and
//! [`limbo`] (which slot, and when it is free again) -> [`bank`] (DMA).
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod bank;
pub mod format;
mod heap;
mod limbo;
pub mod lock;
mod recovery;
pub mod store;
pub mod table;
pub mod wire;
