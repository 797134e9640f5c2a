//! What is said on the socket: one JSON object a message, or the single byte of a doorbell.
//!
//! What always holds: a message is bounded ([`crate::socket::MESSAGE_BYTES_MAX`]); unknown fields and kinds are refused; nothing
//! in a message says who the sender is.

use serde::{Deserialize, Serialize};

/// The doorbell: "look at the ring".
pub const DOORBELL: &[u8] = b"!";

/// What a process asks for, once, after it has connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// An endpoint.
    Open {
        /// [`crate::layout::VERSION`].
        version: u32,
        /// Whose endpoint.
        kind: Kind,
        /// Entries of each ring, a power of two.
        entries: u32,
        /// Bytes of the data area, a multiple of 4096.
        data_bytes: u64,
    },
}

/// Whose endpoint is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The host kernel's, which is trusted: for root and for the user who runs the device. Refused to others.
    Kernel,
    /// The process' own.
    User,
    /// The host kernel's where it is allowed, else the process' own.
    Any,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The endpoint; the memory's descriptor comes with the message.
    Opened(Opened),
    /// None, and why. The connection ends.
    Refused {
        /// One sentence.
        reason: String,
    },
}

/// An endpoint that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Its id: the high-order 20 bits name the process, a zero in the highest bit means the host kernel.
    pub hre: u32,
    /// Entries of each ring.
    pub entries: u32,
    /// Bytes of the data area.
    pub data_bytes: u64,
    /// Most commands that may be under way, completions that were not taken counted.
    pub depth: u32,
    /// Most bytes of payload or reply of one command.
    pub transfer_bytes_max: u32,
    /// How long the device goes on looking at the ring after the last command, in nanoseconds.
    pub spin_ns: u64,
    /// Which start of a device it is that loses with its process what it answered and did not flush, as flash does; 0: it loses nothing by that.
    #[serde(default)]
    pub start: u64,
}

/// What an endpoint may know of the device, read with [`crate::layout::Operation::View`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// SPUs.
    pub spus: u16,
    /// The namespaces, in order of NSID.
    pub namespaces: Vec<NamespaceView>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceView {
    /// NSID.
    pub nsid: u32,
    /// True: key-value; else blocks.
    pub key_value: bool,
    /// Size.
    pub size_bytes: u64,
    /// Logical block.
    pub block_bytes: u32,
    /// Start of its region in every bank.
    pub base: u64,
    /// Globally unique id.
    pub nguid: [u8; 16],
    /// Bytes of a stripe over the SPUs, of a block namespace.
    pub stripe_bytes: u32,
    /// The app that serves it.
    pub app: String,
    /// Its number, where it is installed.
    pub app_number: Option<u16>,
}

impl NamespaceView {
    /// Number of the app that serves it; the error says that there is none.
    pub fn serving_app(&self) -> Result<u16, String> {
        self.app_number.ok_or_else(|| format!("app {} is not installed", self.app))
    }
}

/// A message's bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Plain structures of numbers and strings: nothing in them can fail.
    serde_json::to_vec(message).unwrap_or_default()
}

/// A message from bytes; the error says what is wrong with them.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_forgeries_do_not() {
        let open = Request::Open { version: 1, kind: Kind::Any, entries: 256, data_bytes: 4096 };
        assert_eq!(decode::<Request>(&encode(&open)), Ok(open));
        let refused = Response::Refused { reason: "no".to_owned() };
        assert_eq!(decode::<Response>(&encode(&refused)), Ok(refused));
        for forged in [
            &b""[..],
            b"!",
            b"{}",
            br#"{"open":{"version":1,"kind":"root","entries":256,"data_bytes":4096}}"#,
            br#"{"open":{"version":1,"kind":"any","entries":-1,"data_bytes":4096}}"#,
            br#"{"open":{"version":1,"kind":"any","entries":256,"data_bytes":4096,"uid":0}}"#,
            br#"{"open":{"version":1,"kind":"any","entries":256,"data_bytes":4096}} and more"#,
            b"\xff\xfe",
        ] {
            assert!(decode::<Request>(forged).is_err(), "{}", String::from_utf8_lossy(forged));
        }
    }
}
