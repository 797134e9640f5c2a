//! Faults that tests plant in an agent, to see that they are found. Nothing but [`crate::testing`] can plant one.

use std::sync::atomic::{AtomicU32, Ordering};

/// What an agent forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// To prove that nobody has a file open for writing.
    NoLease = 1,
    /// To make it immutable.
    NoFlag = 2,
    /// To install permissions only after the proof.
    GrantFirst = 4,
    /// To let a frozen file system wait until permissions are revoked.
    HolderFirst = 8,
}

/// Those that were planted.
#[derive(Default)]
pub struct Faults(AtomicU32);

impl Faults {
    /// True where this one was.
    pub fn has(&self, fault: Fault) -> bool {
        self.0.load(Ordering::Relaxed) & fault as u32 != 0
    }

    /// Plants one.
    #[cfg(feature = "testing")]
    pub(crate) fn plant(&self, fault: Fault) {
        self.0.fetch_or(fault as u32, Ordering::Relaxed);
    }
}
