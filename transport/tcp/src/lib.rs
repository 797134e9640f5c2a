//! The NVMe/TCP target: sockets in front of the NVMe subsystem.
//!
//! What always holds:
//! - one thread does everything but the device's jobs and the computing of proofs; it never blocks but to sleep;
//! - all that a host can make grow has a bound named in [`config`], and every wait a limit;
//! - the way of a command: [`Server`] receives (by `channel`, plain or TLS), `connection` decodes, the subsystem serves, `output` sends.
//!
//! Who may call it: programs that serve a device to hosts on a network. The device must live on the thread that calls
//! [`Server::run`].

mod channel;
pub mod config;
mod connection;
mod handle;
mod output;
mod pace;
mod peer;
mod server;
mod unsent;
mod wake;

pub use config::ServerConfig;
pub use handle::{Reload, ServeError, ServerHandle};
pub use server::{Listeners, Server};
pub use willow_nvme::config::ListenAddress;
