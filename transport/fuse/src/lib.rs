//! A block namespace as a file: `DIR/disk`, by FUSE, for loop devices and everything else that works on files. Over any
//! endpoint; without libfuse.
//!
//! ```text
//! disk     bytes of the file as blocks of the namespace
//! mounted  the file system with the one file, mounting and unmounting
//! ```
//!
//! What always holds:
//! - nothing is cached here or in the kernel: what a read brings was in the device at that time, and what was written is there;
//! - a write to a part of a block leaves the rest of the block as it was, also beside other writes;
//! - fsync is the device's flush; a write on a descriptor with O_DSYNC or O_SYNC is durable when it returns;
//! - when the device is gone, requests wait for it to come back where that was asked for, for a bounded time, and fail with EIO then;
//!   none waits for ever.

pub mod disk;
pub mod mounted;

pub use disk::{Disk, Reach};
pub use mounted::{MountError, MountOptions, Mounted};
