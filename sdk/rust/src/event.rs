//! What SPU-OS itself tells an app (docs/abi.md, Events).

use crate::Request;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// There is a new namespace, of this NSID.
    NamespaceCreated(u32),
    /// A namespace is gone.
    NamespaceDeleted(u32),
    /// The device goes down when the handler has ended, or after 5 s.
    Shutdown,
    /// This instance is up: after it was installed, and after each start of the device.
    Started,
    /// Rights of a process were taken back: of the one whose endpoints' ids have this number in their upper 20 bits, or of all (0). For apps with
    /// `settles: true`; it is answered when the app writes nothing any more that they allowed.
    Revoked {
        /// The process.
        process: u32,
        /// It has ended.
        has_ended: bool,
    },
    /// A namespace has another size.
    NamespaceResized(u32),
    /// One of a later ABI.
    Other(u32),
}

impl DeviceEvent {
    /// Reads it from the body of a request to handler 0.
    pub fn receive(request: &Request) -> DeviceEvent {
        let mut bytes = [0; 12];
        request.receive(&mut bytes);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        match word(0) {
            1 => DeviceEvent::NamespaceCreated(word(4)),
            2 => DeviceEvent::NamespaceDeleted(word(4)),
            5 => DeviceEvent::Revoked { process: word(4), has_ended: word(8) != 0 },
            3 => DeviceEvent::Shutdown,
            4 => DeviceEvent::Started,
            6 => DeviceEvent::NamespaceResized(word(4)),
            other => DeviceEvent::Other(other),
        }
    }
}
