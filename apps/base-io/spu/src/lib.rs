//! Base-IO's handlers: the block namespace's reads and writes (Willow, section 4.1). Payload moves between the requester's
//! buffer and NV memory by DMA alone and never passes through the app's memory.
//!
//! What always holds: a range is contiguous in this SPU's bank; whether the originating HRE may touch it is for SPU-OS to say,
//! which checks every DMA. See [`wire`] for the arguments.
//!
//! Who may call it: SPU-OS, through the exports that `app!` makes.
#![no_std]

pub use base_io_ranges::wire;

use base_io_ranges::{compare, flush, read, verify, write, zero};

willow_sdk::app! {
    name: "base-io",
    version: "0.1.0",
    state: () = (),
    threads: 64,
    handlers: {
        wire::handler::READ => read,
        wire::handler::WRITE => write,
        wire::handler::FLUSH => flush,
        wire::handler::ZERO => zero,
        wire::handler::COMPARE => compare,
        wire::handler::VERIFY => verify,
    },
    public: "*",
}
