//! The interconnect: what passes between the bridge and the SPUs, by value, and in which order it comes (Willow, section 3: a ring).
//!
//! Invariants: what was scheduled comes out once, in order of time and then of cause; messages between the same two ends arrive in the
//! order in which they were sent.

mod agenda;
pub(crate) mod event;
pub(crate) mod fair;
mod message;
mod wheel;

pub use agenda::Agenda;
pub(crate) use message::Key;
pub use message::{DmaKind, Endpoint, HEADER_BYTES, Message, Transfer};
