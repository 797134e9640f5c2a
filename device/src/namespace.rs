//! Namespaces: what the device's regions look like from outside. The table is part of the device's metadata and changes
//! only through the control service.

use crate::config::STRIPE_BYTES;
use serde::{Deserialize, Serialize};

/// Command set of a namespace (NVMe CSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandSet {
    /// NVM, CSI 0: served by Base-IO, or by another app that takes its RPCs.
    Nvm,
    /// Key value, CSI 1: served by Key-Value, or by another app that takes its RPCs.
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
    /// The app that serves it, and has its region. Metadata of older programs lack it: it is that of the command set then.
    #[serde(default)]
    pub app: String,
    /// Bytes of a stripe over the SPUs, of a block namespace. Metadata of older programs lack it: it is [`STRIPE_BYTES`] then.
    #[serde(default)]
    pub stripe_bytes: u32,
}

impl CommandSet {
    /// The app that serves such namespaces, where they are bound to no other.
    pub const fn app(self) -> &'static str {
        match self {
            CommandSet::Nvm => "base-io",
            CommandSet::Kv => "key-value",
        }
    }
}

impl Namespace {
    /// What metadata leave out is there from now on.
    pub(crate) fn complete(&mut self) {
        if self.app.is_empty() {
            self.app = self.csi.app().to_owned();
        }
        if self.stripe_bytes == 0 {
            self.stripe_bytes = STRIPE_BYTES;
        }
    }

    /// True where a program that knows of neither would read it wrongly.
    pub(crate) fn is_bound(&self) -> bool {
        self.app != self.csi.app() || self.stripe_bytes != STRIPE_BYTES
    }
}
