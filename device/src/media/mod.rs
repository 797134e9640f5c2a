//! The media: stores (where bytes live) and the media controller over them.

pub mod controller;
pub mod delegate;
pub mod fault;
pub mod file;
pub mod marks;
pub use willow_flash_media as flash;
mod ordering;
pub mod ram;
pub mod store;

#[cfg(test)]
mod model;

/// Most banks that a store can have, one an SPU.
pub const BANKS_MAX: usize = 64;
/// Most bytes of device metadata that a store keeps.
pub const METADATA_BYTES_MAX: usize = 64 << 20;
/// Most bytes of one blob.
pub const BLOB_BYTES_MAX: usize = 64 << 20;
/// Most blobs.
pub const BLOBS_MAX: usize = 1024;
/// Longest name of a blob.
pub const BLOB_NAME_BYTES_MAX: usize = 64;

/// True for `[a-z0-9-]`, 1 to [`BLOB_NAME_BYTES_MAX`] long.
pub(crate) fn blob_name_is_valid(name: &str) -> bool {
    (1..=BLOB_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}
