//! Whose module is compiled next.
//!
//! What always holds:
//! - the driver has one job at a time, however many wait: a module may keep a compiler busy for seconds;
//! - users, and the kernel as one of them, have their turns one after the other: whoever asks for many waits for his own;
//! - as many wait as there are transactions (`TRANSACTIONS_MAX`).

use super::core::Job;
use std::collections::VecDeque;

/// Jobs that wait, and whether the driver has one.
#[derive(Default)]
pub(super) struct Jobs {
    /// Whoever has jobs that wait, in the order of their turns; the kernel is `None`.
    parties: VecDeque<(Option<u32>, VecDeque<Job>)>,
    is_out: bool,
}

impl Jobs {
    /// One more, of a user or the kernel.
    pub fn push(&mut self, user: Option<u32>, job: Job) {
        match self.parties.iter_mut().find(|(party, _)| *party == user) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.parties.push_back((user, VecDeque::from([job]))),
        }
    }

    /// The next one for the driver, where it has none. Those that nobody waits for are left out.
    pub fn next(&mut self, is_waited_for: impl Fn(&Job) -> bool) -> Option<Job> {
        while !self.is_out {
            let (user, mut jobs) = self.parties.pop_front()?;
            let next = jobs.pop_front();
            if !jobs.is_empty() {
                self.parties.push_back((user, jobs));
            }
            if let Some(job) = next.filter(&is_waited_for) {
                self.is_out = true;
                return Some(job);
            }
        }
        None
    }

    /// The driver has done the one that it had.
    pub fn done(&mut self) {
        debug_assert!(self.is_out, "it had one");
        self.is_out = false;
    }
}
