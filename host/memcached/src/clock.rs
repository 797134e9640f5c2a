//! The time that the server goes by: the machine's, or ahead of it where a test puts it forward in place of waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock; those that were cloned from it go with it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead_s: Arc<AtomicU64>,
}

impl Clock {
    /// Puts it forward.
    pub fn advance(&self, by_s: u64) {
        self.ahead_s.fetch_add(by_s, Ordering::SeqCst);
    }

    fn ahead_s(&self) -> u64 {
        self.ahead_s.load(Ordering::SeqCst)
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.ahead_s())
    }

    /// Seconds since 1970, never 0.
    pub fn now_s(&self) -> u32 {
        let ahead_s = u32::try_from(self.ahead_s()).unwrap_or(u32::MAX);
        willow_host::kv::system_time_s().saturating_add(ahead_s).max(1)
    }
}
