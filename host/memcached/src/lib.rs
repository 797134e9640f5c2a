//! memcached's protocols in front of a key-value namespace of a Willow device: clients keep what they know, and what they store survives.
//!
//! The way of a request: `server` (sockets) -> `connection` (bytes, order) -> `text`, `meta`, `binary` (what is asked for) -> `engine` and
//! `task` (steps) -> `port` (operations of the device) and back: `task` -> `outcome` (what is said) -> `connection` -> `server`.
//!
//! What always holds: one thread; whatever a client can make long has a bound with a name; an answer is given when what it says is
//! durable, unless the server was told otherwise.

pub mod binary;
pub mod clock;
pub mod command;
pub mod connection;
pub mod engine;
pub mod item;
pub mod meta;
pub mod outcome;
pub mod port;
pub mod server;
pub mod statistics;
pub mod task;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;

pub use clock::Clock;
pub use server::{Server, ServerConfig, ServerError};

/// The namespace that is meant, out of all key-value namespaces.
fn choose(all: &[u32], wanted: Option<u32>) -> Result<u32, String> {
    match (wanted, all) {
        (Some(nsid), _) if all.contains(&nsid) => Ok(nsid),
        (Some(nsid), _) => Err(format!("namespace {nsid} is no key-value namespace; those are {all:?}")),
        (None, [only]) => Ok(*only),
        (None, []) => {
            Err("there is no key-value namespace: make one with willow ns create --csi kv --size 1G".to_owned())
        }
        (None, _) => Err(format!("there are several key-value namespaces: choose one of {all:?} with --nsid")),
    }
}
