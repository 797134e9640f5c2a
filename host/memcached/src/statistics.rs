//! What the server counts, and how `stats` tells it.

use crate::command::{Mode, Verb};
use crate::outcome::Outcome;
use std::time::Instant;

/// Counters, under memcached's names.
#[allow(missing_docs)]
pub struct Statistics {
    started: Instant,
    pub curr_connections: u64,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flushes: u64,
    cmd_get: u64,
    cmd_set: u64,
    cmd_flush: u64,
    cmd_touch: u64,
    get_hits: u64,
    get_misses: u64,
    delete_hits: u64,
    delete_misses: u64,
    incr_hits: u64,
    incr_misses: u64,
    decr_hits: u64,
    decr_misses: u64,
    cas_hits: u64,
    cas_misses: u64,
    cas_badval: u64,
    touch_hits: u64,
    touch_misses: u64,
    total_items: u64,
    failed: u64,
}

impl Statistics {
    /// Nothing yet.
    pub fn new() -> Self {
        Statistics {
            started: Instant::now(),
            curr_connections: 0,
            total_connections: 0,
            rejected_connections: 0,
            bytes_read: 0,
            bytes_written: 0,
            flushes: 0,
            cmd_get: 0,
            cmd_set: 0,
            cmd_flush: 0,
            cmd_touch: 0,
            get_hits: 0,
            get_misses: 0,
            delete_hits: 0,
            delete_misses: 0,
            incr_hits: 0,
            incr_misses: 0,
            decr_hits: 0,
            decr_misses: 0,
            cas_hits: 0,
            cas_misses: 0,
            cas_badval: 0,
            touch_hits: 0,
            touch_misses: 0,
            total_items: 0,
            failed: 0,
        }
    }

    /// What `stats reset` does: counters begin anew; connections are as they are.
    pub fn reset(&mut self) {
        let (started, curr_connections) = (self.started, self.curr_connections);
        *self = Statistics { started, curr_connections, ..Statistics::new() };
    }

    /// A request was begun.
    #[inline]
    pub fn begun(&mut self, verb: &Verb) {
        match verb {
            Verb::Get { touch } => {
                self.cmd_get += 1;
                self.cmd_touch += u64::from(touch.is_some());
            }
            Verb::Store { .. } => self.cmd_set += 1,
            Verb::Touch { .. } => self.cmd_touch += 1,
            Verb::Clear => self.cmd_flush += 1,
            _ => {}
        }
    }

    /// It has ended.
    #[inline]
    pub fn ended(&mut self, verb: &Verb, outcome: &Outcome) {
        let count = |hits: &mut u64, misses: &mut u64| match outcome {
            Outcome::NotFound => *misses += 1,
            Outcome::Failed(_) | Outcome::Full | Outcome::NonNumeric | Outcome::Changed => {}
            _ => *hits += 1,
        };
        match verb {
            Verb::Get { touch } => {
                count(&mut self.get_hits, &mut self.get_misses);
                if touch.is_some() {
                    count(&mut self.touch_hits, &mut self.touch_misses);
                }
            }
            Verb::Delete { .. } => count(&mut self.delete_hits, &mut self.delete_misses),
            Verb::Touch { .. } => count(&mut self.touch_hits, &mut self.touch_misses),
            Verb::Count { down: false, .. } => count(&mut self.incr_hits, &mut self.incr_misses),
            Verb::Count { down: true, .. } => count(&mut self.decr_hits, &mut self.decr_misses),
            Verb::Store { mode, version, .. } => {
                self.total_items += u64::from(matches!(outcome, Outcome::Stored(_)));
                if *version != 0 && *mode == Mode::Set {
                    count(&mut self.cas_hits, &mut self.cas_misses);
                    self.cas_badval += u64::from(*outcome == Outcome::Changed);
                }
            }
            _ => {}
        }
        self.failed += u64::from(matches!(outcome, Outcome::Failed(_) | Outcome::Full));
    }

    /// Calls `each` with what there is of that kind; false where there is no such kind.
    pub fn tell(
        &self,
        what: &[u8],
        now_s: u32,
        counted: Option<(u64, u64)>,
        settings: &[(&str, String)],
        mut each: impl FnMut(&str, &str),
    ) -> bool {
        match what {
            b"" => {}
            b"settings" => {
                settings.iter().for_each(|(name, value)| each(name, value));
                return true;
            }
            // Memcached's own memory: there is none.
            b"items" | b"slabs" | b"sizes" | b"conns" | b"extstore" | b"cachedump" => return true,
            _ => return false,
        }
        each("pid", &std::process::id().to_string());
        each("uptime", &self.started.elapsed().as_secs().to_string());
        each("time", &now_s.to_string());
        each("version", crate::text::VERSION);
        each("pointer_size", &usize::BITS.to_string());
        for (name, value) in [
            ("curr_connections", self.curr_connections),
            ("total_connections", self.total_connections),
            ("rejected_connections", self.rejected_connections),
            ("cmd_get", self.cmd_get),
            ("cmd_set", self.cmd_set),
            ("cmd_flush", self.cmd_flush),
            ("cmd_touch", self.cmd_touch),
            ("get_hits", self.get_hits),
            ("get_misses", self.get_misses),
            ("delete_misses", self.delete_misses),
            ("delete_hits", self.delete_hits),
            ("incr_misses", self.incr_misses),
            ("incr_hits", self.incr_hits),
            ("decr_misses", self.decr_misses),
            ("decr_hits", self.decr_hits),
            ("cas_misses", self.cas_misses),
            ("cas_hits", self.cas_hits),
            ("cas_badval", self.cas_badval),
            ("touch_hits", self.touch_hits),
            ("touch_misses", self.touch_misses),
            ("bytes_read", self.bytes_read),
            ("bytes_written", self.bytes_written),
            ("total_items", self.total_items),
            ("evictions", 0),
            ("willow_flushes", self.flushes),
            ("willow_failed", self.failed),
        ] {
            each(name, &value.to_string());
        }
        each("threads", "1");
        if let Some((pairs, bytes)) = counted {
            each("curr_items", &pairs.to_string());
            each("bytes", &bytes.to_string());
        }
        true
    }
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new()
    }
}
