//! Base-IO's handlers (being written).
#![no_std]
pub mod wire;
