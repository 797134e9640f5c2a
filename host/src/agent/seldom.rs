//! What is said seldom: users can make a thing happen as often as they like, and the log is everybody's.

use super::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shortest time between two lines about the same thing.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// When something was said last.
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub const fn new() -> Seldom {
        Seldom(Mutex::new(None))
    }

    /// True where it may be said now, which it is then.
    pub fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let mut said = lock(&self.0);
        let is_due = said.is_none_or(|said| now.saturating_duration_since(said) >= SAID_EVERY);
        if is_due {
            *said = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_said_at_once_and_then_seldom() {
        let (seldom, begun) = (Seldom::new(), Instant::now());
        let said: Vec<u64> = (0..100).filter(|second| seldom.is_due_at(begun + Duration::from_secs(*second))).collect();
        assert_eq!(said, [0, 30, 60, 90]);
    }
}
