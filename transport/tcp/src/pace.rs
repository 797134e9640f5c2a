//! How much moves within a time limit: what is owed has to move at a rate that is worth the buffers which it keeps.

use crate::config::PACE_BYTES_MIN;

/// Bytes that moved in a window that is as long as the time limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// When the window began; `None` where nothing is owed.
    since_ns: Option<u64>,
    moved: u64,
}

impl Pace {
    /// Something is owed from now on, if it was not before.
    pub fn begin(&mut self, now_ns: u64) {
        if self.since_ns.is_none() {
            *self = Pace { since_ns: Some(now_ns), moved: 0 };
        }
    }

    /// Nothing is owed any more.
    pub fn end(&mut self) {
        self.since_ns = None;
    }

    /// So many bytes moved.
    #[inline]
    pub fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// Begins another window where enough moved in this one.
    pub fn keep(&mut self, now_ns: u64) {
        if self.since_ns.is_some() && self.moved >= PACE_BYTES_MIN {
            *self = Pace { since_ns: Some(now_ns), moved: 0 };
        }
    }

    /// When the window ends without enough having moved.
    pub fn due_ns(&self, limit_ns: u64) -> Option<u64> {
        self.since_ns.map(|since_ns| since_ns + limit_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_no_pace() {
        let mut pace = Pace::default();
        assert_eq!(pace.due_ns(30), None);
        pace.begin(5);
        for now_ns in 6..30 {
            pace.begin(now_ns);
            pace.moved(16);
            pace.keep(now_ns);
        }
        assert_eq!(pace.due_ns(30), Some(35));
        pace.moved(PACE_BYTES_MIN as usize);
        pace.keep(31);
        assert_eq!(pace.due_ns(30), Some(61), "what is worth it begins another window");
        pace.end();
        assert_eq!(pace.due_ns(30), None);
    }
}
