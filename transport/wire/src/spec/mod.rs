//! NVMe 2.x as typed constants and structures: base specification, NVM and key-value command sets, fabrics.

pub mod authentication;
pub mod command;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod kv;
pub mod log;
pub mod opcode;
pub mod property;
pub mod status;
pub mod ticket;
pub mod tunnel;

pub use command::{CompletionEntry, Sgl, SubmissionEntry};
pub use status::Status;
