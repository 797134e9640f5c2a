//! Atomic-Write: an SSD App that makes several writes, on any SPUs, one that is done as a whole or not at all (Willow, section 4.3:
//! editable atomic writes). FORMAT.md has its format and the argument why a cut at any moment leaves all or nothing.
//!
//! The way of a transaction: [`handlers`] -> `log` (writes are added to a redo log) -> `coordinator` (two phases) -> `participant`
//! (prepare, apply) -> `caretaker` (forget). `recovery` does the rest of it at the start. `state` and `table` are what an SPU keeps in
//! local memory, [`format`] what it has in NV memory, [`wire`] what hosts and instances send.
#![cfg_attr(target_arch = "wasm32", no_std)]
#![deny(unsafe_code)]

mod caretaker;
mod coordinator;
pub mod format;
// `app!` makes the module's exports.
#[allow(unsafe_code)]
pub mod handlers;
mod log;
mod participant;
pub mod planted;
mod recovery;
mod state;
mod table;
pub mod wire;

#[cfg(not(target_arch = "wasm32"))]
pub use handlers::native;
