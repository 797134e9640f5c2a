//! Faults that tests plant in an agent, to see that they are found. Nothing but [`crate::testing`] can plant one.

use std::sync::atomic::{AtomicU32, Ordering};

/// What an agent forgets, or what fails under it.
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
    /// The device refuses to revoke, and goes on permitting.
    RevokeFails = 16,
    /// The device revokes, and its answer is lost.
    RevokeUnheard = 32,
    /// To write a file into the journal before it is made immutable.
    FlagFirst = 64,
    /// To revoke permissions before a file thaws.
    ThawFirst = 128,
    /// To look at the file system: whether it is xfs, and whether it can share blocks.
    NoJudge = 256,
    /// To revoke what readers have when a file system is frozen.
    ReadersLeft = 512,
    /// To have a freeze wait for files that are being opened.
    NotUnderWay = 1024,
    /// To look whether something is under way before it takes what is on the list.
    SettledLate = 2048,
    /// To see to the pages that the kernel does not drop.
    KeepsPages = 4096,
    /// The file system makes a file immutable, and says that it has not.
    FreezeFails = 8192,
    /// The file system refuses to make a file writable again.
    ThawFails = 16384,
    /// To give a lease up when the file has thawed.
    LeaseKept = 32768,
    /// The thread of a connection panics at the next message.
    Panics = 65536,
    /// To put the last page of a file into the journal before the file is append-only.
    LastForgotten = 131_072,
    /// To take a file's length from the device only after that has stopped appending for good.
    LengthFirst = 262_144,
    /// To look whose a file is when it has been frozen.
    OwnerForgotten = 524_288,
    /// To look at the lease when it knows where a file lies, before it permits anything of it.
    LookedLate = 1_048_576,
}

/// What a file system says that refuses by a fault.
pub fn refused() -> std::io::Error {
    std::io::Error::other("the file system refuses, as was planted")
}

/// Steps of the next agent of this process until it ends, from its start on; 0: it does not.
#[cfg(feature = "testing")]
static CRASH_NEXT_IN: AtomicU32 = AtomicU32::new(0);

/// Ends this process when the next agent that is started in it has come to this many steps of thawing and freezing files.
#[cfg(feature = "testing")]
pub fn crash_next_at(step: u32) {
    CRASH_NEXT_IN.store(step, Ordering::SeqCst);
}

/// Status with which a process ends at the step that a test chose.
#[cfg(feature = "testing")]
pub const CRASHED: i32 = 77;

/// How late what was put off by a fault is.
pub const LATE: std::time::Duration = std::time::Duration::from_millis(500);

/// Those that were planted.
pub struct Faults {
    planted: AtomicU32,
    /// Steps until the process ends; 0: it does not.
    #[cfg(feature = "testing")]
    crash_in: AtomicU32,
}

impl Faults {
    /// None.
    pub fn new() -> Faults {
        Faults {
            planted: AtomicU32::new(0),
            #[cfg(feature = "testing")]
            crash_in: AtomicU32::new(CRASH_NEXT_IN.swap(0, Ordering::SeqCst)),
        }
    }

    /// True where this one was.
    pub fn has(&self, fault: Fault) -> bool {
        self.planted.load(Ordering::Relaxed) & fault as u32 != 0
    }

    /// Plants one.
    #[cfg(feature = "testing")]
    pub(crate) fn plant(&self, fault: Fault) {
        self.planted.fetch_or(fault as u32, Ordering::Relaxed);
    }

    /// Takes one away.
    #[cfg(feature = "testing")]
    pub(crate) fn heal(&self, fault: Fault) {
        self.planted.fetch_and(!(fault as u32), Ordering::Relaxed);
    }

    /// Ends the process, as SIGKILL would, when it has come to this many steps ([`Faults::step`]).
    #[cfg(feature = "testing")]
    pub(crate) fn crash_at(&self, step: u32) {
        self.crash_in.store(step, Ordering::SeqCst);
    }

    /// A step of what has to be right wherever an agent ends: freezing and thawing a file.
    pub fn step(&self) {
        #[cfg(feature = "testing")]
        if self.crash_in.load(Ordering::SeqCst) > 0 && self.crash_in.fetch_sub(1, Ordering::SeqCst) == 1 {
            // SAFETY: the process ends at once: nothing is dropped or flushed.
            unsafe { libc::_exit(CRASHED) }
        }
    }
}
