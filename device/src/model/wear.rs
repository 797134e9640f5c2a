//! Counts the writes of every line of a medium. Memory grows with the lines that were written, not with those that there are.
//!
//! Invariant: the totals are those of the lines; counts stop at [`u32::MAX`], far beyond any endurance.

use super::statistics::WearStatistics;

/// Lines of one block of counts.
const BLOCK: u64 = 256;
/// Blocks of one branch.
const BRANCH: u64 = 1024;

type Block = [u32; BLOCK as usize];
type Branch = [Option<Box<Block>>; BRANCH as usize];

/// The counts: two levels of tables, made as they are needed.
#[derive(Debug, Default)]
pub struct Wear {
    branches: Vec<Option<Box<Branch>>>,
    lines_written: u64,
    writes: u64,
    line_writes_max: u32,
}

impl Wear {
    /// A line has been written.
    #[inline]
    pub fn written(&mut self, line: u64) {
        let (branch, block, place) = (line / (BLOCK * BRANCH), line / BLOCK % BRANCH, line % BLOCK);
        if branch as usize >= self.branches.len() {
            self.branches.resize_with(branch as usize + 1, || None);
        }
        let branch = self.branches[branch as usize].get_or_insert_with(|| Box::new([const { None }; BRANCH as usize]));
        let block = branch[block as usize].get_or_insert_with(|| Box::new([0; BLOCK as usize]));
        let count = &mut block[place as usize];
        self.lines_written += u64::from(*count == 0);
        self.writes += 1;
        *count = count.saturating_add(1);
        self.line_writes_max = self.line_writes_max.max(*count);
    }

    /// Writes of a line.
    #[cfg(test)]
    fn of(&self, line: u64) -> u32 {
        let branch = self.branches.get((line / (BLOCK * BRANCH)) as usize).and_then(Option::as_ref);
        let block = branch.and_then(|branch| branch[(line / BLOCK % BRANCH) as usize].as_ref());
        block.map_or(0, |block| block[(line % BLOCK) as usize])
    }

    /// Its part of the statistics, for a medium of so many lines that endure so much.
    pub fn statistics(&self, lines: u64, endurance_writes: u64) -> WearStatistics {
        WearStatistics {
            lines,
            lines_written: self.lines_written,
            writes: self.writes,
            line_writes_max: self.line_writes_max.into(),
            worn: f64::from(self.line_writes_max) / endurance_writes as f64,
        }
    }

    /// Blocks of counts that take memory.
    #[cfg(test)]
    fn blocks(&self) -> usize {
        self.branches.iter().flatten().map(|branch| branch.iter().flatten().count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_line_by_line_and_memory_only_for_what_is_written() {
        let mut wear = Wear::default();
        // A bank of 8 TiB in lines of 256 bytes.
        let lines = (8u64 << 40) / 256;
        for (line, times) in [(0, 3), (255, 1), (256, 2), (lines - 1, 7), (lines / 2, 1)] {
            (0..times).for_each(|_| wear.written(line));
            assert_eq!(wear.of(line), times);
        }
        assert_eq!((wear.of(1), wear.of(lines / 3)), (0, 0));
        assert_eq!(wear.blocks(), 4);
        let statistics = wear.statistics(lines + 1, 1_000_000);
        assert_eq!((statistics.lines_written, statistics.writes, statistics.line_writes_max), (5, 14, 7));
        assert!((statistics.worn - 7e-6).abs() < 1e-12);
    }
}
