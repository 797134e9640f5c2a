//! The device's end of endpoints in shared memory: a Unix socket where processes of this machine ask for one, and the rings of
//! those that have one. It stands beside the NVMe subsystem in front of the same device, on the same thread: [`Fronted`] is
//! the device with it, as the subsystem and the server's loop see it.
//!
//! ```text
//! config      bounds
//! connection  who has connected, the handshake
//! processes   which process an endpoint belongs to, and when it ends
//! endpoint    the rings of one endpoint: everything in them is hostile
//! front       all of them: what is polled and what sleeps
//! admission   who is let in, what ends
//! service     commands that need no app: upcalls, the view, taking back
//! backend     the seam to the device and to the loop
//! ```
//!
//! What always holds:
//! - who a process is comes from the kernel; which endpoint a command came in on decides its originating HRE;
//! - an entry of a ring is copied out once, and judged by the copy; positions are counted here and never read back;
//! - nothing here waits; a process that stops, lies or dies costs itself its endpoints and others nothing.

mod admission;
mod backend;
pub mod config;
mod connection;
mod endpoint;
mod front;
mod processes;
mod service;
#[cfg(feature = "testing")]
pub mod testing;

pub use backend::Fronted;
pub use config::{FrontConfig, OPEN_LIMIT};
pub use front::{Counters, Front, FrontError};
