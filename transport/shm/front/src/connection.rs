//! One who has connected: the peer as the kernel names it, and, once asked for, the endpoint.
//!
//! What always holds: the request for an endpoint is the first message and the only one but doorbells; a message with
//! descriptors ends the connection, and they are closed with it, by a thread that nobody waits for.

use crate::config::*;
use crate::endpoint::Endpoint;
use willow_shm::message::{DOORBELL, Kind, Request, decode};
use willow_shm::socket::{Channel, ReceiveError};

/// A connection.
pub(crate) struct Connection {
    pub channel: Channel,
    /// Key of its process in the table of processes.
    pub process: (u64, u64),
    pub uid: u32,
    pub since_ns: u64,
    pub endpoint: Option<Box<Endpoint>>,
    /// In the list of rings that are polled.
    pub is_hot: bool,
    /// Polls without anything coming.
    pub idle_polls: u32,
    /// In the list of rings with completions that their host was not told of.
    pub is_dirty: bool,
}

/// What came on a connection.
pub(crate) enum Came {
    /// Its doorbell rang.
    Doorbell,
    /// It asks for an endpoint: whose, entries, bytes of data.
    Open(Kind, u32, u64),
    /// It is over: this is why.
    End(String),
}

impl Connection {
    /// Takes all that has come.
    pub fn receive(&self) -> Option<Came> {
        let mut rang = false;
        // A flood of doorbells is one.
        for _ in 0..PENDING_MAX {
            match self.channel.receive() {
                Ok(message) if message.bytes == DOORBELL && self.endpoint.is_some() => rang = true,
                Ok(_) if self.endpoint.is_some() => {
                    return Some(Came::End("a message where only doorbells are expected".to_owned()));
                }
                Ok(message) => {
                    return Some(match decode(&message.bytes) {
                        Ok(Request::Open { version: willow_shm::layout::VERSION, kind, entries, data_bytes }) => {
                            Came::Open(kind, entries, data_bytes)
                        }
                        Ok(Request::Open { version, .. }) => Came::End(format!(
                            "version {version} of the shared memory is asked for, this device has {}",
                            willow_shm::layout::VERSION
                        )),
                        Err(why) => Came::End(format!("the request for an endpoint cannot be read: {why}")),
                    });
                }
                Err(ReceiveError::Nothing) => break,
                Err(ReceiveError::Closed) => return Some(Came::End(String::new())),
                Err(error) => return Some(Came::End(error.to_string())),
            }
        }
        rang.then_some(Came::Doorbell)
    }
}
