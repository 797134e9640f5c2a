//! A file's writes through the device that nobody has synced, and which start of the device has answered them. A device on flash that ends without
//! having been asked to flush may forget them; its next start has another number, and a sync there covers nothing of what the one before answered.
//!
//! What always holds: whoever is told that a write is done has it counted before; a loss is told by one sync, and by no more. Of devices that lose nothing
//! with their process (their start is 0) nothing is counted.

use super::agent_client::DirectError;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Counts {
    start: u64,
    /// Writes that this start has answered, and how many of them are synced.
    answered: u64,
    synced: u64,
    /// An earlier start may have forgotten some, and nobody has been told.
    is_lost: bool,
}

impl Counts {
    fn meet(&mut self, start: u64) {
        if self.start != start {
            self.is_lost |= self.answered > self.synced;
            (self.start, self.answered, self.synced) = (start, 0, 0);
        }
    }
}

/// Of one file.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<Counts>);

/// The writes that a sync covers: those that had been answered before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    start: u64,
    answered: u64,
}

impl Unsynced {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write has been answered by that start of the device.
    #[inline]
    pub fn wrote(&self, start: u64) {
        if start != 0 {
            let mut counts = self.counts();
            counts.meet(start);
            counts.answered += 1;
        }
    }

    /// What a sync that begins now covers; `None`: there is nothing that could be lost.
    pub fn begin(&self) -> Option<Covered> {
        let counts = self.counts();
        let has_any = counts.is_lost || counts.answered > counts.synced;
        has_any.then_some(Covered { start: counts.start, answered: counts.answered })
    }

    /// A sync has succeeded at that start of the device; an error where what it was to cover may be lost.
    pub fn synced(&self, start: u64, covered: Option<Covered>) -> Result<(), DirectError> {
        let Some(covered) = covered else { return Ok(()) };
        let mut counts = self.counts();
        counts.meet(start);
        if covered.start == start {
            counts.synced = counts.synced.max(covered.answered);
        }
        match std::mem::take(&mut counts.is_lost) {
            true => Err(DirectError::Forgotten),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_told(result: Result<(), DirectError>) -> bool {
        matches!(result, Err(error) if error.errno() == libc::EIO)
    }

    #[test]
    fn what_an_earlier_start_may_have_forgotten_is_told_by_one_sync() {
        let file = Unsynced::default();
        // Nothing, and what is synced, is not lost.
        assert_eq!(file.begin(), None);
        file.wrote(7);
        let covered = file.begin();
        assert!(covered.is_some() && file.synced(7, covered).is_ok());
        assert_eq!(file.begin(), None);
        file.wrote(8);
        // A write that ends while a sync is under way is not covered by it.
        let covered = file.begin();
        file.wrote(8);
        assert!(file.synced(8, covered).is_ok());
        assert!(file.begin().is_some());
        let covered = file.begin();
        assert!(is_told(file.synced(9, covered)), "start 8 has ended");
        assert!(file.synced(9, covered).is_ok() && file.begin().is_none(), "it is told once");
        // It is told also where the next start has written, and where nothing is lost with the process any more.
        file.wrote(9);
        file.wrote(10);
        let covered = file.begin();
        assert!(is_told(file.synced(10, covered)));
        assert_eq!(file.begin(), None, "what start 10 has answered is synced");
        file.wrote(10);
        assert!(is_told(file.synced(0, file.begin())));
        file.wrote(0);
        assert_eq!(file.begin(), None, "such a device loses nothing");
    }
}
