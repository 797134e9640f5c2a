//! How far modelled time is behind the real clock: it waits where the machine cannot do what the modelled hardware would.
//!
//! What always holds:
//! - modelled time never goes back, and is never ahead of the real clock, so that nothing is answered early;
//! - a machine that was held up for a while catches up; one that always has more to do than it can is behind by [`BEHIND_NS_MAX`], and by
//!   [`STILL_BEHIND_NS_MAX`] while that goes on. What hosts ask for waits for that, and not for all that the machine has left undone since it began.

/// How far modelled time may be behind before it waits.
const BEHIND_NS_MAX: u64 = 100_000_000;
/// The same within [`RECENT_NS`] after it has waited.
const STILL_BEHIND_NS_MAX: u64 = 1_000_000;
/// See [`STILL_BEHIND_NS_MAX`].
const RECENT_NS: u64 = 1_000_000_000;

/// What modelled time has waited.
#[derive(Debug, Default)]
pub(super) struct Slip {
    waited_ns: u64,
    /// When it waited last, by the driver's clock.
    last_ns: Option<u64>,
}

impl Slip {
    /// What time it is for the model.
    #[inline]
    pub fn modelled_ns(&self, driver_ns: u64) -> u64 {
        driver_ns.saturating_sub(self.waited_ns)
    }

    /// When it is that time of the model, for the driver.
    #[inline]
    pub fn driver_ns(&self, modelled_ns: u64) -> u64 {
        modelled_ns.saturating_add(self.waited_ns)
    }

    /// The machine has done what it may in one go, and is so far behind: for how long modelled time waits, if it does.
    #[cold]
    pub fn falls_behind(&mut self, now_ns: u64, behind_ns: u64) -> Option<u64> {
        let is_recent = self.last_ns.is_some_and(|last_ns| now_ns < last_ns.saturating_add(RECENT_NS));
        if behind_ns <= if is_recent { STILL_BEHIND_NS_MAX } else { BEHIND_NS_MAX } {
            return None;
        }
        self.waited_ns = self.waited_ns.saturating_add(behind_ns);
        self.last_ns = Some(now_ns);
        Some(behind_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_held_up_catches_up_and_who_cannot_is_behind_by_little() {
        let mut slip = Slip::default();
        assert_eq!(slip.falls_behind(1_000, BEHIND_NS_MAX), None);
        let now_ns = 10 * RECENT_NS;
        assert_eq!(slip.falls_behind(now_ns, BEHIND_NS_MAX + 1), Some(BEHIND_NS_MAX + 1));
        let modelled_ns = slip.modelled_ns(now_ns);
        assert_eq!((modelled_ns, slip.driver_ns(modelled_ns)), (now_ns - BEHIND_NS_MAX - 1, now_ns));
        assert_eq!(slip.falls_behind(now_ns + 1, STILL_BEHIND_NS_MAX), None);
        assert_eq!(slip.falls_behind(now_ns + 2, STILL_BEHIND_NS_MAX + 1), Some(STILL_BEHIND_NS_MAX + 1));
        // It has kept up for a while.
        assert_eq!(slip.falls_behind(now_ns + 2 + RECENT_NS, BEHIND_NS_MAX), None);
    }
}
