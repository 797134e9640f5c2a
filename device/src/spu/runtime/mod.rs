//! The runtime of apps: how their handlers run (in the sandbox, or natively), and what they may import.
//!
//! What always holds: both runtimes make their imports of the one table ([`willow_gate::table`]), and hand each to the gate.

pub(crate) mod autopsy;
mod costs;
pub(crate) mod debug;
mod effort;
pub(crate) mod kept;
pub(crate) mod limits;
pub(crate) mod long;
pub(crate) mod module;
pub(crate) mod native;
pub(crate) mod paced;
pub(crate) mod wasm;
