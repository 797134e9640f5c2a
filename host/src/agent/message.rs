//! What is said on the agent's socket: one JSON object a message. A file's descriptors come with the message that opens it.
//!
//! ```text
//! process                                   agent
//! Open, with its descriptors         ->     judges them, closes them
//!                                    <-     Prepared
//! replaces its writable descriptors
//! by read-only ones; Confirm         ->     the lease: nobody has the file open for writing; the file becomes immutable;
//!                                           permissions
//!                                    <-     Opened, Extents
//! ```

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

/// Version of these messages.
pub const VERSION: u32 = 2;
/// How long a process may take to replace its descriptors.
pub const PREPARED_MAX: Duration = Duration::from_secs(10);
/// Extents in one message.
pub const EXTENTS_A_MESSAGE: usize = 48;

/// What a process asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Where the device is, and for one that is reached by a network: endpoints of this process' own there. May be asked again for more.
    Attach {
        /// [`VERSION`].
        version: u32,
        /// How many endpoints; fewer may be given.
        endpoints: u16,
        /// What was given before has failed: the agent ends it all, with the files that are open, before it gives anew. When it has
        /// answered, nothing of it is under way.
        #[serde(default)]
        lost: bool,
    },
    /// Direct access to the file whose descriptors come with the message (one or two), as far as their access modes go together.
    Open {
        /// [`VERSION`].
        version: u32,
        /// And as far as the descriptors went that this connection has opened the file with before.
        #[serde(default)]
        again: bool,
        /// The process keeps no descriptor by which the file could be written: it is opened without [`Request::Confirm`].
        #[serde(default)]
        ready: bool,
    },
    /// The process has no descriptor any more by which the file that was prepared could be written.
    Confirm {
        /// As in [`Response::Prepared`].
        file: u32,
    },
    /// A descriptor like one that this connection has opened the file with before, of the file whose descriptor comes with the
    /// message: where the file's mode does not let the process open it so any more.
    Reopen {
        /// Access mode and flags, as of `open`; what is neither is left out.
        flags: u32,
    },
    /// The end of it.
    Close {
        /// As in [`Response::Opened`].
        file: u32,
        /// Nothing was written to it: its modification time stays.
        #[serde(default)]
        unchanged: bool,
        /// The process will not ask for the file by [`Request::Reopen`] or with `again`.
        #[serde(default)]
        forget: bool,
    },
    /// The process has no descriptor any more of the file whose last one comes with the message: nothing is asked for by what it showed
    /// of it before.
    Forget,
    /// The file whose descriptor comes with the message (any, O_PATH too) is to be changed through the file system: all direct
    /// access to it is taken back, whoever has it, and refused until [`Request::Resume`]. For its owner.
    Release,
    /// What was released may be opened directly again.
    Resume,
    /// For an app's part of the agent ([`super::append::message`]).
    Module {
        /// The app.
        name: String,
        /// What is asked, as that part defines it.
        ask: serde_json::Value,
    },
    /// The process has seen that files were taken back ([`Response::Stale`]) and uses what it knew of any file no more: the agent
    /// closes all that it has open.
    Acknowledge,
}

/// How a process reaches the device.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attachment {
    /// By shared memory, at the device's socket on this machine.
    Memory {
        /// The socket.
        device: PathBuf,
    },
    /// By NVMe/TCP, once, with a secret that is this process' alone.
    Network {
        /// The device's listener.
        address: SocketAddr,
        /// NQN of the subsystem there.
        subsystem_nqn: String,
        /// NQN to connect by.
        host_nqn: String,
        /// What to prove itself with (DHHC-1).
        secret: Zeroizing<String>,
        /// Key for TLS (NVMeTLSkey-1), where the connection has to be that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        psk: Option<Zeroizing<String>>,
        /// Most endpoints (I/O queues).
        endpoints: u16,
        /// The process' number in the device: the high-order bits of the endpoints' ids.
        process: u32,
    },
}

impl std::fmt::Debug for Attachment {
    /// Without secret and key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Attachment::Memory { device } => formatter.debug_struct("Memory").field("device", device).finish(),
            Attachment::Network { address, endpoints, process, .. } => {
                let mut network = formatter.debug_struct("Network");
                network.field("address", address).field("endpoints", endpoints).field("process", process).finish()
            }
        }
    }
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Where the device is.
    Attached(Attachment),
    /// The file can be opened, and the agent has closed the descriptors: [`Request::Confirm`] or [`Request::Close`] follows, within
    /// [`PREPARED_MAX`].
    Prepared {
        /// Its number.
        file: u32,
    },
    /// The descriptor that comes with the message.
    Reopened,
    /// The file system is being frozen, or is: not now.
    Frozen,
    /// Others are opening or closing the file, and that takes long: to be asked again.
    Busy,
    /// The file is open for writing somewhere, so that its blocks could be moved.
    Contended {
        /// Another process has asked for it directly as well.
        shared: bool,
    },
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
    /// An app's part of the agent answers.
    Module {
        /// As that part defines it.
        told: serde_json::Value,
    },
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

#[cfg(test)]
mod tests {
    use super::*;
    use willow_shm::message::{decode, encode};

    #[test]
    fn a_secret_is_told_and_never_shown() {
        let attached = Response::Attached(Attachment::Network {
            address: "127.0.0.1:4420".parse().unwrap(),
            subsystem_nqn: "nqn.2025-01.org.example:device".to_owned(),
            host_nqn: "nqn.2025-01.org.example:ticket".to_owned(),
            secret: "DHHC-1:01:hidden:".to_owned().into(),
            psk: Some("NVMeTLSkey-1:01:hidden:".to_owned().into()),
            endpoints: 4,
            process: 7,
        });
        assert_eq!(decode::<Response>(&encode(&attached)).unwrap(), attached);
        assert!(!format!("{attached:?}").contains("hidden"));
    }

    #[test]
    fn requests_are_as_documented() {
        let attach: Request = decode(br#"{"attach":{"version":2,"endpoints":4}}"#).unwrap();
        assert_eq!(attach, Request::Attach { version: 2, endpoints: 4, lost: false });
        assert!(decode::<Request>(br#"{"attach":{"version":2,"endpoints":4,"user":0}}"#).is_err());
    }
}
