//! Events to apps whose answers are waited for.
//!
//! What always holds: who waits is told once, when all instances that were told have answered, with a status other than 0 where one did.

use super::core::Core;
use crate::request::AppNumber;
use std::collections::BTreeMap;
use std::ops::Range;

/// Those that are waited for: how many answers are left, and a status other than 0 that one was answered with.
#[derive(Default)]
pub(super) struct Watches(BTreeMap<u32, (u32, Option<u32>)>);

impl Watches {
    /// So many more answers are waited for.
    fn begin(&mut self, watch: u32, answers: usize) {
        self.0.entry(watch).or_default().0 += answers as u32;
    }

    /// One has come: true, with a status other than 0, where it was the last.
    fn answered(&mut self, watch: u32, status: u32) -> Option<(u32, Option<u32>)> {
        let (left, refusal) = self.0.get_mut(&watch)?;
        *left -= 1;
        if status != 0 {
            refusal.get_or_insert(status);
        }
        if *left > 0 {
            return None;
        }
        self.0.remove(&watch).map(|(_, refusal)| (watch, refusal))
    }
}

impl Core {
    /// Sends an event to an app on all SPUs; `watch`: its answers are waited for under that number.
    pub(super) fn send_event(&mut self, app: AppNumber, words: &[u32], watch: Option<u32>) {
        self.send_event_to(app, 0..self.spus(), words, watch);
    }

    /// The same on some SPUs.
    pub(super) fn send_event_to(&mut self, app: AppNumber, spus: Range<u16>, words: &[u32], watch: Option<u32>) {
        if let Some(watch) = watch {
            self.service.watches.begin(watch, spus.len());
        }
        self.machine.send_event_to(app, spus, words, watch);
    }

    /// The next event that all have answered, and a status other than 0 where one did with that.
    pub(super) fn answered_event(&mut self) -> Option<(u32, Option<u32>)> {
        while let Some((watch, status)) = self.machine.news.answer() {
            let answered = self.service.watches.answered(watch, status);
            if answered.is_some() {
                return answered;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_once_when_all_have_answered() {
        let mut watches = Watches::default();
        watches.begin(7, 2);
        watches.begin(8, 1);
        watches.begin(7, 1);
        assert_eq!(watches.answered(7, 0), None);
        assert_eq!(watches.answered(8, 0), Some((8, None)));
        assert_eq!(watches.answered(7, 3), None);
        assert_eq!(watches.answered(7, 4), Some((7, Some(3))));
        assert_eq!(watches.answered(7, 0), None);
        assert!(watches.0.is_empty());
    }
}
