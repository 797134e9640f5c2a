//! Atomic-Write's library for hosts.

pub use atomic_write_spu::wire;
