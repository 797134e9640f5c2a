//! The runtime of apps: how their handlers run (in the sandbox, or natively), and what they may import.
//!
//! What always holds: [`table`] is the only list of imports. The check of a module, the sandbox's linking, the native shims, the bindings
//! of the SDKs and the reference in docs/abi.md all come from it, so that they cannot differ.

pub mod abi;
mod calls;
mod costs;
mod limits;
pub(crate) mod module;
pub(crate) mod native;
pub mod table;
pub(crate) mod wasm;
