//! What is said on the agent's socket: one JSON object a message. A file's descriptor comes with the message that opens it.

use serde::{Deserialize, Serialize};

/// Version of these messages.
pub const VERSION: u32 = 1;
/// Extents in one message.
pub const EXTENTS_A_MESSAGE: usize = 48;

/// What a process asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Direct access to the file whose descriptor comes with the message, as far as the descriptor's access mode goes.
    Open {
        /// [`VERSION`].
        version: u32,
    },
    /// The end of it.
    Close {
        /// As in [`Response::Opened`].
        file: u32,
        /// Nothing was written to it: its modification time stays.
        #[serde(default)]
        unchanged: bool,
    },
    /// The file whose descriptor comes with the message (any, O_PATH too) is to be changed through the file system: all direct
    /// access to it is taken back, whoever has it, and refused until [`Request::Resume`]. For its owner.
    Release,
    /// What was released may be opened directly again.
    Resume,
    /// The process has seen that files were taken back ([`Response::Stale`]) and uses what it knew of any file no more: the agent
    /// closes all that it has open.
    Acknowledge,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The file is open; [`Response::Extents`] follow.
    Opened {
        /// To close it.
        file: u32,
        /// Its length. It does not change while it is open.
        bytes: u64,
        /// It may be read, written.
        rights: u32,
        /// Number of app Direct-IO.
        app: u16,
        /// SPUs of the device.
        spus: u16,
        /// Stripe of its block namespaces.
        stripe_bytes: u32,
        /// Start of the namespace's region in every bank.
        base: u64,
    },
    /// Some of its extents: (offset in the file, offset in the namespace, bytes).
    Extents {
        /// In order.
        list: Vec<(u64, u64, u64)>,
        /// More follow.
        more: bool,
    },
    /// The file is closed, or released, and the file system's own again; or it may be opened again.
    Closed,
    /// Files of this process were taken back since it asked last: nothing is opened for it until it has acknowledged that, so that what
    /// it remembers of them never meets a permission for blocks that are another file's by now.
    Stale,
    /// Not so, and why.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// Not an answer: an app has ended.
    AppEnded {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}
