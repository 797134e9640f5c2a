//! Namespaces: what the device's regions look like from outside. The table is part of the device's metadata and changes
//! only through the control service.

use serde::{Deserialize, Serialize};

/// Command set of a namespace (NVMe CSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandSet {
    /// NVM, CSI 0: served by Base-IO.
    Nvm,
    /// Key value, CSI 1: served by Key-Value.
    Kv,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// NSID, from 1.
    pub nsid: u32,
    /// Command set.
    pub csi: CommandSet,
    /// Size of the namespace as the host sees it.
    pub size_bytes: u64,
    /// Logical block (512 or 4096); 1 for KV.
    pub block_bytes: u32,
    /// Start of its region in every bank.
    pub base: u64,
    /// Bytes of its region in every bank.
    pub bank_bytes: u64,
    /// Globally unique id (NGUID).
    pub nguid: [u8; 16],
}
