//! Key-Value's handlers.
#![no_std]
pub mod wire;
