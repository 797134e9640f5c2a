//! Start-gap wear leveling (Qureshi and others, MICRO 2009; XSSD, 6.3): N logical lines on N + 1 physical ones, one of which is the gap.
//! After each interval of writes the line before the gap moves into it, so that after N + 1 moves every line has moved by one.
//!
//! This is a model of time and wear: it says which physical line an access meets and when a line is copied. The contents stay where
//! they are in the store, since the mapping is a permutation at every moment and so nothing that a host can read depends on it.
//!
//! Invariants: with LA the logical and PA the physical line, PA = (LA + start) mod N, plus 1 where that is at or past gap; start < N,
//! gap <= N; no line maps to the gap.

/// The two registers and the counter of writes.
#[derive(Clone, Debug)]
pub struct StartGap {
    lines: u64,
    start: u64,
    gap: u64,
    interval: u32,
    writes: u32,
    moves: u64,
}

/// A line was copied: what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapMove {
    /// Physical line that was read.
    pub from: u64,
    /// Physical line that was written: the gap until now.
    pub to: u64,
}

impl StartGap {
    /// Over so many logical lines, moving the gap after each `interval` writes; 0: never.
    pub fn new(lines: u64, interval: u32) -> Self {
        assert!(lines > 0);
        StartGap { lines, start: 0, gap: lines, interval, writes: 0, moves: 0 }
    }

    /// Logical lines.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Moves of the gap so far.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Physical line of a logical one.
    #[inline]
    pub fn physical(&self, logical: u64) -> u64 {
        debug_assert!(logical < self.lines);
        let turned = logical + self.start;
        let turned = if turned >= self.lines { turned - self.lines } else { turned };
        turned + u64::from(turned >= self.gap)
    }

    /// How many logical lines from this one on, itself included, lie one after the other physically.
    #[inline]
    pub fn contiguous(&self, logical: u64) -> u64 {
        let turned = logical + self.start;
        let turned = if turned >= self.lines { turned - self.lines } else { turned };
        let end = if turned < self.gap { self.gap.min(self.lines) } else { self.lines };
        end - turned
    }

    /// A line has been written: the move that this causes, if it does.
    #[inline]
    pub fn written(&mut self) -> Option<GapMove> {
        if self.interval == 0 {
            return None;
        }
        self.writes += 1;
        if self.writes < self.interval {
            return None;
        }
        self.writes = 0;
        Some(self.move_gap())
    }

    fn move_gap(&mut self) -> GapMove {
        self.moves += 1;
        if self.gap == 0 {
            // The gap has been everywhere: the last line goes to the first place, and all begin one further.
            self.gap = self.lines;
            self.start = if self.start + 1 == self.lines { 0 } else { self.start + 1 };
            return GapMove { from: self.lines, to: 0 };
        }
        let to = self.gap;
        self.gap -= 1;
        GapMove { from: self.gap, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula as it is printed.
    fn formula(logical: u64, start: u64, gap: u64, lines: u64) -> u64 {
        let turned = (logical + start) % lines;
        if turned >= gap { turned + 1 } else { turned }
    }

    /// All sizes to 12 lines, all intervals to 3, through more than one whole turn of start: after every write the mapping is
    /// the formula's and a permutation that spares the gap; and the copies that it asks for keep the contents, which are
    /// kept here line by line, where the mapping says.
    #[test]
    fn exhaustively_for_small_sizes() {
        for lines in 1..=12u64 {
            for interval in 1..=3u32 {
                let mut mapping = StartGap::new(lines, interval);
                let mut contents: Vec<Option<u64>> = (0..=lines).map(|line| (line < lines).then_some(line)).collect();
                let turns = (lines + 1) * lines * 2 + 3;
                let mut moves = 0;
                for write in 1..=turns * u64::from(interval) {
                    let moved = mapping.written();
                    assert_eq!(moved.is_some(), write % u64::from(interval) == 0);
                    if let Some(GapMove { from, to }) = moved {
                        moves += 1;
                        assert_eq!(contents[to as usize], None, "a copy goes to the gap");
                        contents[to as usize] = contents[from as usize].take();
                    }
                    let mut taken = vec![false; lines as usize + 1];
                    for logical in 0..lines {
                        let physical = mapping.physical(logical);
                        assert_eq!(physical, formula(logical, mapping.start, mapping.gap, lines));
                        assert_eq!(contents[physical as usize], Some(logical));
                        assert!(!std::mem::replace(&mut taken[physical as usize], true));
                        let run = mapping.contiguous(logical);
                        assert!(run >= 1);
                        for step in 1..run.min(lines - logical) {
                            assert_eq!(mapping.physical(logical + step), physical + step);
                        }
                        if run < lines - logical {
                            assert_ne!(mapping.physical(logical + run), physical + run, "a run ends where it must");
                        }
                    }
                    assert!(!taken[mapping.gap as usize], "no line maps to the gap");
                }
                assert_eq!((mapping.moves(), moves), (turns, turns));
            }
        }
    }

    #[test]
    fn start_advances_once_the_gap_has_been_everywhere() {
        let mut mapping = StartGap::new(4, 1);
        for expected in 0..10 {
            assert_eq!(mapping.start, expected % 4);
            for _ in 0..5 {
                mapping.written();
            }
            assert_eq!(mapping.gap, 4);
        }
    }

    #[test]
    fn without_an_interval_nothing_moves() {
        let mut mapping = StartGap::new(4, 0);
        assert!((0..1000).all(|_| mapping.written().is_none()));
        assert!((0..4).all(|line| mapping.physical(line) == line));
    }

    /// One logical line takes all writes: without leveling one cell takes them; with it, each of the N + 1 places takes its
    /// share, one interval of writes at a time.
    #[test]
    fn writes_to_one_line_are_spread_over_all() {
        let (lines, interval) = (64u64, 10u32);
        let mut mapping = StartGap::new(lines, interval);
        let mut wear = vec![0u64; lines as usize + 1];
        let writes = (lines + 1) * lines * u64::from(interval) * 4;
        for _ in 0..writes {
            wear[mapping.physical(17) as usize] += 1;
            if let Some(GapMove { to, .. }) = mapping.written() {
                wear[to as usize] += 1;
            }
        }
        let total: u64 = wear.iter().sum();
        assert_eq!(total, writes + mapping.moves(), "every copy is one more write");
        let (least, most) = (wear.iter().min().unwrap(), wear.iter().max().unwrap());
        let mean = total as f64 / wear.len() as f64;
        assert!(*least as f64 > 0.9 * mean && (*most as f64) < 1.1 * mean, "{least} to {most}, mean {mean}");
    }
}
