//! How long runs of users' apps take the machine. A run is bounded by its budget, and a unit of that takes about as long whatever a run does, but for loads
//! that miss the processor's caches: they take up to a hundred times as long, and no charge tells one from the other. So the time of long runs is looked at,
//! and an app whose runs take too long for what they did has its runs cut into slices that do not.
//!
//! What always holds:
//! - Nothing is looked at but under the free clock, where whoever drives the device has handed it a clock ([`Machine::set_clock`]). Under a model of
//!   time nothing depends on the machine's.
//! - What an app's runs come to does not depend on its pace: neither its results nor its budget, only who has his turn in between.
//! - Short runs are not looked at: they cannot take long. So an app that makes no others costs nothing.
//! - The time of a slice counts as work, for its account and for the device's turn: several slices one after the other are as long a wait as a long one.
//! - A machine that was held up once (another program had the processor) is not taken for an app that is slow.

use super::os::{Caller, Machine};
use crate::request::AppNumber;

/// How long a slice should take at most.
const SLICE_NS: u64 = 40_000;
/// What a slice is at least: some hundred loads.
const SLICE_UNITS_MIN: u64 = 2_000;
/// Runs of so many units are looked at. A load is 20 units and may take some 140 ns.
const LOOKED_AT_UNITS: u64 = 8_000;
/// What a run may take without anything to be said about it. Those of a whole budget that find their bytes in the caches take up to 130 us.
const RUN_NS_MAX: u64 = 150_000;
/// What counts of that which a run took on top.
const COUNTED_NS_MAX: u64 = 1_000_000;
/// An app is slow whose runs have taken so much on top.
const EXCESS_NS_MAX: u64 = 2_500_000;
/// The part of the time of other runs by which that is forgotten.
const FORGOTTEN_PART: u64 = 16;
/// The time of runs after which two thirds of the difference between a unit's longest time and its present one are forgotten: 17 ms.
const MEMORY_NS: u64 = 1 << 24;
/// Units of a slice that says something about what a unit takes.
const TELLING_UNITS: u64 = 256;
/// Units that a run does in a nanosecond which finds its bytes in the caches.
const UNITS_A_NS: u64 = 3;
/// Parts of a nanosecond in which a unit's time is kept.
const PARTS_A_NS: u64 = 1 << 20;

/// What the runs of an app were seen to take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// What runs have taken on top of [`RUN_NS_MAX`], and is not forgotten.
    excess_ns: u64,
    /// What a unit took at most, slowly forgotten.
    unit_parts: u64,
    is_slow: bool,
}

impl Pace {
    /// Whether its runs are cut into slices.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// A run has ended that was not cut. True where the app turns out to be slow by it.
    fn ran(&mut self, units: u64, took_ns: u64) -> bool {
        self.note(units, took_ns);
        match took_ns.checked_sub(RUN_NS_MAX) {
            Some(on_top_ns) => self.excess_ns += on_top_ns.min(COUNTED_NS_MAX),
            None => self.excess_ns = self.excess_ns.saturating_sub(took_ns / FORGOTTEN_PART),
        }
        let turns_out = !self.is_slow && self.excess_ns >= EXCESS_NS_MAX;
        self.is_slow |= turns_out;
        turns_out
    }

    /// So many units took so long.
    fn note(&mut self, units: u64, took_ns: u64) {
        if units < TELLING_UNITS {
            return;
        }
        // More than this changes no slice, and would be remembered for longer.
        let most = SLICE_NS * PARTS_A_NS / SLICE_UNITS_MIN;
        let parts = (took_ns.saturating_mul(PARTS_A_NS) / units).min(most);
        let forgets = self.unit_parts.saturating_sub(parts);
        let forgets = u128::from(forgets) * u128::from(took_ns.min(MEMORY_NS)) / u128::from(MEMORY_NS);
        self.unit_parts = parts.max(self.unit_parts - forgets as u64);
    }

    /// Units of its next slice, `most` at most.
    pub fn slice(&self, most: u64) -> u64 {
        let fit = (SLICE_NS * PARTS_A_NS).checked_div(self.unit_parts).unwrap_or(most);
        fit.max(SLICE_UNITS_MIN).min(most)
    }
}

/// The clock of whoever drives the device.
#[derive(Default)]
pub(crate) struct Watch {
    clock: Option<Box<dyn Fn() -> u64 + Send>>,
    /// What it said last.
    seen_ns: u64,
}

impl Machine {
    /// How the time is asked for while the device runs. Under a model of time it is not.
    pub fn set_clock(&mut self, clock: Box<dyn Fn() -> u64 + Send>) {
        if self.answers_now() {
            self.watch.clock = Some(clock);
        }
    }

    /// What time it is, and what time it was when that was last known; `None` where there is no clock.
    fn look(&mut self) -> Option<(u64, u64)> {
        let now_ns = self.watch.clock.as_ref()?();
        let before_ns = std::mem::replace(&mut self.watch.seen_ns, now_ns).max(self.now_ns);
        Some((now_ns, before_ns))
    }

    /// What the runs of an app were seen to take; that of no app where it has no place.
    #[inline]
    pub fn pace(&self, number: AppNumber) -> Pace {
        self.apps.get(usize::from(number)).and_then(Option::as_ref).map_or(Pace::default(), |app| app.pace)
    }

    /// A run of an app's has ended that was not cut, after so many instructions.
    #[inline]
    pub fn ran_whole(&mut self, caller: Caller, instructions: u64) {
        let units = instructions + self.charged(caller);
        if units >= LOOKED_AT_UNITS {
            self.look_at_run(caller, units);
        }
    }

    /// Since when it runs is not known, only since when at most: it began after the time was known last.
    #[inline(never)]
    fn look_at_run(&mut self, caller: Caller, units: u64) {
        let Some((now_ns, before_ns)) = self.look() else { return };
        let Some(app) = self.app(caller.app) else { return };
        if app.pace.ran(units, now_ns.saturating_sub(before_ns)) {
            tracing::info!("runs of app {} make way for others: they take the machine long", app.name);
            app.push_line(format!(
                "{}: [SPU-OS] runs take longer than their instructions, as where loads miss the caches: from now on they make way for others in between",
                caller.spu
            ));
        }
    }

    /// A slice begins: when.
    pub fn slice_begins(&mut self) -> Option<u64> {
        self.look().map(|(now_ns, _)| now_ns)
    }

    /// A slice that began at `began_ns` has ended, after so many instructions.
    pub fn slice_ended(&mut self, caller: Caller, instructions: u64, began_ns: Option<u64>) {
        let units = instructions + self.charged(caller);
        let (Some(began_ns), Some((now_ns, _))) = (began_ns, self.look()) else { return };
        let took_ns = now_ns.saturating_sub(began_ns);
        if let Some(app) = self.app(caller.app) {
            app.pace.note(units, took_ns);
        }
        // Where it was held up as well, that is nobody's.
        let on_top = (took_ns.min(COUNTED_NS_MAX) * UNITS_A_NS).saturating_sub(units);
        if on_top > 0 {
            self.charge_account(self.spus[usize::from(caller.spu)].running, on_top);
            self.costs_beside(on_top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 400_000;

    #[test]
    fn who_is_quick_or_was_held_up_is_not_slow() {
        let mut pace = Pace::default();
        for run in 0..100_000_u64 {
            // Another program has the processor now and then.
            let held_up_ns = if run % 200 == 0 { 4_000_000 } else { 0 };
            assert!(!pace.ran(BUDGET, 130_000 + held_up_ns));
        }
        assert!(!pace.is_slow());
    }

    #[test]
    fn who_is_slow_for_a_part_of_the_time_is_slow() {
        for (slow_ns, quick_runs) in [(2_800_000, 0), (600_000, 0), (600_000, 20), (2_800_000, 50)] {
            let mut pace = Pace::default();
            let found = (0..20).find(|_| {
                let turns_out = pace.ran(BUDGET, slow_ns);
                (0..quick_runs).for_each(|_| assert!(!pace.ran(BUDGET, 130_000)));
                turns_out
            });
            assert!(found.is_some() && pace.is_slow(), "{slow_ns} ns, and {quick_runs} quick runs");
        }
    }

    #[test]
    fn slices_take_as_long_as_they_should_and_what_was_slow_is_forgotten_slowly() {
        let most = BUDGET / 2;
        let mut pace = Pace::default();
        assert_eq!(pace.slice(most), most, "nothing is known");
        // 7 ns a unit.
        pace.note(10_000, 70_000);
        assert_eq!(pace.slice(most), 5_714);
        // Quick slices, of 0.3 ns a unit: 10 ms later they are not twice as long, and a second later as long as may be.
        let (mut past_ns, mut slices) = (0, Vec::new());
        while past_ns < 1_000_000_000 {
            let slice = pace.slice(most);
            let took_ns = slice * 3 / 10;
            pace.note(slice, took_ns);
            past_ns += took_ns;
            slices.push((past_ns, slice));
        }
        assert!(slices.iter().filter(|(past_ns, _)| *past_ns < 10_000_000).all(|(_, slice)| *slice < 2 * 5_714));
        assert!(slices.is_sorted_by_key(|(_, slice)| *slice));
        assert!(slices.last().is_some_and(|(_, slice)| *slice > 100_000));
        // What is slow again is so at once; and nothing is slower than the shortest slices.
        pace.note(100_000, 700_000);
        assert_eq!(pace.slice(most), 5_714);
        pace.note(2_000, 10_000_000_000);
        assert_eq!(pace.slice(most), SLICE_UNITS_MIN);
        // Too few to tell.
        let mut pace = Pace::default();
        pace.note(TELLING_UNITS - 1, 1_000_000);
        assert_eq!(pace.slice(most), most);
    }
}
