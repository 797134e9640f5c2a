//! Whether a bank's operations are handed out to an FTL.
//!
//! Always one of these for each bank; [`super::DelegatingStore`] changes it, as the run loop tells it of the FTL.

/// How a bank is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Its FTL starts, or is about to: operations wait.
    Waiting,
    /// Operations are handed out.
    Serving,
    /// No FTL comes up: operations fail.
    Failed,
}
