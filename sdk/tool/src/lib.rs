//! Makes new SSD Apps and builds them: what `willow app new` and `willow app build` do.
//!
//! What always holds:
//! - a new project is complete: it has the SDK inside, in the version of the tool that made it, and builds without network;
//! - nothing that exists is overwritten;
//! - a module that [`build`] hands out has been looked at: it is one that SPU-OS will not refuse for its form.
//!
//! Who may call it: the command. It runs cargo, clang, wasm-ld and wasm-opt, and says what to install where one is missing.

mod check;
mod compile;
mod create;

pub use check::check_module;
pub use compile::{build, test};
pub use create::create;

use std::path::PathBuf;

/// What an app is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `async` handlers, willow-sdk.
    Rust,
    /// Handlers in blocking style, willow.h.
    C,
}

/// Why an app was not made or built; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The name cannot be an app's.
    #[error("{name:?} cannot be an app's name: {reason}")]
    Name {
        /// What was given.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// There is something of that name already.
    #[error("{0} exists already: choose another name or remove it")]
    Exists(PathBuf),
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The folder holds no app.
    #[error(
        "{0} holds no app (neither Cargo.toml nor willow.toml): go to an app's folder, or make one with willow app new NAME"
    )]
    NoApp(PathBuf),
    /// willow.toml is wrong.
    #[error("{path}: {reason}")]
    Project {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A program is not installed.
    #[error("{program} is needed but not installed: {install}")]
    Missing {
        /// The program.
        program: &'static str,
        /// What to do.
        install: &'static str,
    },
    /// A program ended with an error; what it said was printed by it.
    #[error("{0} failed: see above")]
    Failed(String),
    /// What was built is no module that SPU-OS takes.
    #[error("{path} is no SSD App: {reason}")]
    Module {
        /// The module.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

pub(crate) fn file_error(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> ToolError {
    let path = path.to_path_buf();
    move |error| ToolError::File { action, path, error }
}
