//! The control service: app number 0 on SPU 0, part of SPU-OS, for kernel endpoints only. It installs and removes apps,
//! creates and deletes namespaces, and reports. Reached like any RPC (NVMe opcodes 81h and 82h), so that any transport
//! carries it.
//!
//! Handlers with a reply take an optional u32 byte offset as inline argument, write the reply's bytes from there on as
//! far as the reply buffer goes, and return the whole reply's length as their result, so that a caller with a small
//! buffer reads on. A failure's status is one of [`ControlStatus`]; [`ERROR_TEXT`] then has the sentence.

use serde::{Deserialize, Serialize};

/// The control service's app number.
pub const CONTROL_APP: u16 = 0;
/// Payload: a module. Result: the app's number. Replaces an app of the same name once its requests have drained.
pub const INSTALL: u8 = 1;
/// Payload: the app's name.
pub const REMOVE: u8 = 2;
/// Reply: JSON array of [`AppInfo`].
pub const LIST_APPS: u8 = 3;
/// Inline arguments: u32 offset, then the app's name (at most 20 bytes). Reply: its virtual serial port's text, a line
/// each `SPU: text`, the latest 64 KiB.
pub const LOG: u8 = 4;
/// Payload: JSON [`NamespaceRequest`]. Result: the NSID.
pub const CREATE_NAMESPACE: u8 = 5;
/// Payload: u32 NSID.
pub const DELETE_NAMESPACE: u8 = 6;
/// Reply: JSON array of [`crate::Namespace`].
pub const LIST_NAMESPACES: u8 = 7;
/// Reply: JSON object, see docs/statistics.md.
pub const STATISTICS: u8 = 8;
/// Payload: u64 upcall id, u32 status, u32 result.
pub const ANSWER_UPCALL: u8 = 9;
/// Reply: the sentence of the last failure of this endpoint's control requests.
pub const ERROR_TEXT: u8 = 10;
/// Payload: the app's name. Result: its number.
pub const FIND_APP: u8 = 11;

/// Status of a control request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlStatus {
    /// Done.
    Success = 0,
    /// The request's bytes make no sense.
    Malformed = 1,
    /// The module is refused; the text says why.
    ModuleRefused = 2,
    /// No such app or namespace.
    NotFound = 3,
    /// No room for it.
    NoRoom = 4,
    /// The media failed.
    MediaFailed = 5,
    /// Not while it is in use, or not for this one.
    Busy = 6,
}

/// An installed app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppInfo {
    /// Number, stable while it is installed and over restarts.
    pub number: u16,
    /// Name.
    pub name: String,
    /// Version from its manifest.
    pub version: String,
    /// Bytes of its module.
    pub module_bytes: u64,
    /// Memory of an instance now.
    pub memory_bytes: u64,
    /// (number, name) of its handlers.
    pub handlers: Vec<(u8, String)>,
    /// `running`, or why it ended.
    pub state: String,
}

/// A namespace to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceRequest {
    /// Command set.
    pub csi: crate::CommandSet,
    /// Size as the host shall see it; rounded up to whole stripes over all banks.
    pub size_bytes: u64,
    /// 512 or 4096 for NVM, left out for KV.
    #[serde(default)]
    pub block_bytes: Option<u32>,
}
