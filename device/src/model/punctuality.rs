//! How late completions are under the real clock: a driver that waits until the model says that the hardware would have finished hands
//! them out at that time or later, never earlier; how much later is counted here and told.
//!
//! Invariant: nothing is smoothed or left out; a machine that cannot keep up is said to be one.

use crate::model::histogram::{Histogram, LatencySummary};
use serde::{Deserialize, Serialize};

/// A completion that is later than this is late, nanoseconds.
pub const LATE_NS: u64 = 20_000;
/// Of a hundred completions of a window, more late ones than this: the machine does not keep up.
const LATE_PERCENT_MAX: u64 = 1;
/// Length of a window, nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Default)]
struct Window {
    begin_ns: u64,
    count: u64,
    late: u64,
    /// Modelled time has waited for the machine.
    waited: bool,
}

/// Counts.
#[derive(Default)]
pub(crate) struct Punctuality {
    lateness: Histogram,
    current: Window,
    /// The last whole one in which something completed.
    last: Window,
    windows: u64,
    windows_behind: u64,
    /// What modelled time has waited for the machine.
    waited_ns: u64,
}

/// What is shown of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockStatistics {
    /// How late completions were handed out.
    pub lateness: LatencySummary,
    /// Later than this is late, nanoseconds.
    pub late_ns: u64,
    /// Completions of this second and of the last one before it in which there were some, and how many of them were late.
    pub recent: u64,
    /// See `recent`.
    pub recent_late: u64,
    /// Seconds with completions so far, and in how many of them more than one in a hundred were late.
    pub seconds: u64,
    /// See `seconds`.
    pub seconds_behind: u64,
    /// For how long modelled time has waited for the machine, nanoseconds: what was under way then was late by it, beside `lateness`.
    pub waited_ns: u64,
    /// True where the machine kept up lately: at most one in a hundred of `recent` was late, and modelled time did not wait.
    pub keeps_up: bool,
    /// The same as a sentence.
    pub statement: String,
}

impl Window {
    fn is_behind(&self) -> bool {
        self.waited || self.late * 100 > self.count * LATE_PERCENT_MAX
    }
}

impl Punctuality {
    /// A completion that was due at `due_ns` is handed out.
    #[inline]
    pub fn record(&mut self, now_ns: u64, due_ns: u64) {
        let late_ns = now_ns.saturating_sub(due_ns);
        self.lateness.record(late_ns);
        self.comes_to(now_ns);
        self.current.count += 1;
        self.current.late += u64::from(late_ns > LATE_NS);
    }

    /// Modelled time has waited that long for the machine: what was due meanwhile is late by it.
    pub fn waited(&mut self, now_ns: u64, waited_ns: u64) {
        self.comes_to(now_ns);
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        self.current.waited = true;
    }

    #[inline]
    fn comes_to(&mut self, now_ns: u64) {
        if now_ns >= self.current.begin_ns + WINDOW_NS {
            self.turn(now_ns);
        }
    }

    #[cold]
    fn turn(&mut self, now_ns: u64) {
        if self.current.count > 0 || self.current.waited {
            self.windows += 1;
            self.windows_behind += u64::from(self.current.is_behind());
            self.last = self.current;
        }
        self.current = Window { begin_ns: now_ns / WINDOW_NS * WINDOW_NS, ..Window::default() };
    }

    /// What is shown of it; `None` where nothing was handed out.
    pub fn statistics(&self) -> Option<ClockStatistics> {
        if self.lateness.count() == 0 && self.waited_ns == 0 {
            return None;
        }
        let (last, current) = (self.last, self.current);
        let (count, late) = (last.count + current.count, last.late + current.late);
        let recent = Window { begin_ns: 0, count, late, waited: last.waited || current.waited };
        let keeps_up = !recent.is_behind();
        let lateness = self.lateness.summary();
        let percent = recent.late as f64 * 100.0 / recent.count.max(1) as f64;
        let limit_us = LATE_NS / 1000;
        let statement = match keeps_up {
            true => format!(
                "on time: {percent:.2} % of the last completions were more than {limit_us} us late; 99 % of all were at most \
                 {:.1} us late",
                lateness.p99_ns as f64 / 1000.0
            ),
            false if recent.waited => format!(
                "this machine does not keep up with the modelled hardware: modelled time has waited {:.0} ms for it since the start; what hosts measure \
                 now is this machine, not the model",
                self.waited_ns as f64 / 1e6
            ),
            false => format!(
                "this machine does not keep up with the modelled hardware: {percent:.1} % of the last completions were more than {limit_us} \
                 us late; what hosts measure now is this machine, not the model"
            ),
        };
        Some(ClockStatistics {
            lateness,
            late_ns: LATE_NS,
            recent: recent.count,
            recent_late: recent.late,
            seconds: self.windows,
            seconds_behind: self.windows_behind,
            waited_ns: self.waited_ns,
            keeps_up,
            statement,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_falls_behind_is_said_to() {
        let mut punctuality = Punctuality::default();
        assert_eq!(punctuality.statistics(), None);
        let mut now_ns = 0;
        for _ in 0..1000 {
            now_ns += 1_000_000;
            punctuality.record(now_ns, now_ns - 2_000);
        }
        let statistics = punctuality.statistics().unwrap();
        assert!(statistics.keeps_up && statistics.statement.starts_with("on time"), "{statistics:?}");
        assert!(statistics.lateness.p99_ns >= 2_000 && statistics.lateness.p99_ns < 2_600);
        // A second in which one of ten is late.
        for completion in 0..1000u64 {
            now_ns += 1_000_000;
            punctuality.record(now_ns, now_ns - if completion % 10 == 0 { 50_000 } else { 1_000 });
        }
        let statistics = punctuality.statistics().unwrap();
        assert!(!statistics.keeps_up && statistics.statement.contains("does not keep up"), "{statistics:?}");
        // And it recovers; the second stays counted.
        for _ in 0..3000 {
            now_ns += 1_000_000;
            punctuality.record(now_ns, now_ns);
        }
        let statistics = punctuality.statistics().unwrap();
        assert!(statistics.keeps_up);
        assert!(statistics.seconds >= 4 && statistics.seconds_behind >= 1, "{statistics:?}");
    }

    #[test]
    fn an_early_hand_out_is_not_late() {
        let mut punctuality = Punctuality::default();
        punctuality.record(5, 10);
        assert_eq!(punctuality.statistics().unwrap().lateness.max_ns, 0);
    }
}
