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
    /// One of a later ABI.
    Other(u32),
}

impl DeviceEvent {
    /// Reads it from the body of a request to handler 0.
    pub fn receive(request: &Request) -> DeviceEvent {
        let mut bytes = [0; 8];
        request.receive(&mut bytes);
        let [a, b, c, d, e, f, g, h] = bytes;
        let nsid = u32::from_le_bytes([e, f, g, h]);
        match u32::from_le_bytes([a, b, c, d]) {
            1 => DeviceEvent::NamespaceCreated(nsid),
            2 => DeviceEvent::NamespaceDeleted(nsid),
            3 => DeviceEvent::Shutdown,
            4 => DeviceEvent::Started,
            other => DeviceEvent::Other(other),
        }
    }
}
