//! Phase-change memory behind one SPU's controller (XSSD, 6.3): banks with a row buffer each, a slow activation that brings a row
//! in, a slower precharge that writes a changed row back, and start-gap wear leveling with its copies.
//!
//! Invariants: the controller carries out one access at a time; a bank holds one row; a row is written back when another takes its
//! place, and only if it was changed. Rows of one access that lie in different banks are activated at the same time.

use super::parameters::PcmParameters;
use super::start_gap::StartGap;
use super::statistics::MediaStatistics;
use super::trace::{Lane, Tracer};
use super::wear::Wear;

/// No row.
const NONE: u64 = u64::MAX;
/// Femtoseconds of a nanosecond: rates are kept as whole femtoseconds a byte.
const NANOSECOND_FS: u64 = 1_000_000;

/// Femtoseconds that a byte takes at a rate.
pub fn byte_fs(bytes_per_s: u64) -> u64 {
    (1_000_000_000_000_000 / bytes_per_s).max(1)
}

#[derive(Clone, Copy, Debug)]
struct Bank {
    row: u64,
    changed: bool,
    free_ns: u64,
}

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes leave it.
    Read,
    /// Bytes come to it.
    Write,
}

/// The memory behind one controller.
#[derive(Debug)]
pub struct Pcm {
    parameters: PcmParameters,
    spu: u16,
    banks: Vec<Bank>,
    start_gap: StartGap,
    wear: Wear,
    byte_fs: u64,
    row_shift: u32,
    line_shift: u32,
    /// Until when the controller is taken.
    pub free_ns: u64,
    busy_ns: u64,
    counters: MediaStatistics,
    copied_bytes: u64,
}

impl Pcm {
    /// Memory of `bytes`, never written, all banks closed.
    pub fn new(parameters: &PcmParameters, spu: u16, bytes: u64) -> Self {
        let closed = Bank { row: NONE, changed: false, free_ns: 0 };
        let lines = (bytes / u64::from(parameters.line_bytes)).max(1);
        Pcm {
            spu,
            banks: vec![closed; parameters.banks as usize],
            start_gap: StartGap::new(lines, parameters.gap_write_interval),
            wear: Wear::default(),
            byte_fs: byte_fs(parameters.clock_hz.saturating_mul(parameters.bytes_per_cycle.into())),
            row_shift: parameters.row_bytes.trailing_zeros(),
            line_shift: parameters.line_bytes.trailing_zeros(),
            free_ns: 0,
            busy_ns: 0,
            counters: MediaStatistics::default(),
            copied_bytes: 0,
            parameters: parameters.clone(),
        }
    }

    /// Reads or writes a range from `at_ns` on, no faster than `byte_fs_min` a byte: when its last byte has moved.
    #[inline]
    pub fn access(
        &mut self,
        at_ns: u64,
        access: Access,
        (address, bytes): (u64, u64),
        byte_fs_min: u64,
        trace: &mut Tracer,
        id: u32,
    ) -> u64 {
        let begin_ns = at_ns.max(self.free_ns);
        let mut moved_ns = begin_ns + self.parameters.access_ns;
        let (mut address, mut left) = (address, bytes);
        let line_mask = (1u64 << self.line_shift) - 1;
        while left > 0 {
            let line = (address >> self.line_shift).min(self.start_gap.lines() - 1);
            let physical = (self.start_gap.physical(line) << self.line_shift) + (address & line_mask);
            let run = (self.start_gap.contiguous(line) << self.line_shift) - (address & line_mask);
            let count = left.min(run);
            moved_ns =
                self.rows(begin_ns, moved_ns, access, (physical, count), byte_fs_min.max(self.byte_fs), trace, id);
            address += count;
            left -= count;
        }
        match access {
            Access::Read => self.counters.read_bytes += bytes,
            Access::Write => self.counters.written_bytes += bytes,
        }
        let mut free_ns = moved_ns;
        if access == Access::Write && bytes > 0 {
            free_ns = self.wear_of_write(moved_ns, (address - bytes, bytes), trace);
        }
        self.busy_ns += free_ns - begin_ns;
        self.free_ns = free_ns;
        moved_ns
    }

    /// Moves bytes that lie one after the other in the array: row by row.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn rows(
        &mut self,
        begin_ns: u64,
        mut moved_ns: u64,
        access: Access,
        (mut physical, mut left): (u64, u64),
        byte_fs: u64,
        trace: &mut Tracer,
        id: u32,
    ) -> u64 {
        while left > 0 {
            let row = physical >> self.row_shift;
            let place = (row % self.banks.len() as u64) as usize;
            let count = left.min((1 << self.row_shift) - (physical & ((1 << self.row_shift) - 1)));
            let bank = &mut self.banks[place];
            let mut open_ns = begin_ns.max(bank.free_ns);
            let opening_ns = open_ns;
            if bank.row == row {
                self.counters.row_hits += 1;
            } else {
                self.counters.row_misses += 1;
                if bank.changed {
                    self.counters.row_write_backs += 1;
                    open_ns += self.parameters.precharge_write_ns;
                }
                open_ns += self.parameters.activate_read_ns;
                (bank.row, bank.changed) = (row, false);
            }
            bank.changed |= access == Access::Write;
            moved_ns = moved_ns.max(open_ns) + (count * byte_fs).div_ceil(NANOSECOND_FS);
            bank.free_ns = moved_ns;
            let lane = Lane::Media { spu: self.spu, bank: place as u16 };
            let name = if access == Access::Read { "read" } else { "write" };
            trace.span(lane, name, (opening_ns, moved_ns), id.into(), count);
            physical += count;
            left -= count;
        }
        moved_ns
    }

    /// Counts the lines of a write, and moves the gap where that is due: when the controller is free again.
    fn wear_of_write(&mut self, at_ns: u64, (address, bytes): (u64, u64), trace: &mut Tracer) -> u64 {
        let last = self.start_gap.lines() - 1;
        let lines = address >> self.line_shift..=(address + bytes - 1) >> self.line_shift;
        let mut free_ns = at_ns;
        for line in lines {
            self.wear.written(self.start_gap.physical(line.min(last)));
            if let Some(moved) = self.start_gap.written() {
                self.wear.written(moved.to);
                let bytes = u64::from(self.parameters.line_bytes);
                self.copied_bytes += bytes;
                let read = (moved.from << self.line_shift, bytes);
                free_ns = self.rows(free_ns, free_ns, Access::Read, read, self.byte_fs, trace, 0);
                let write = (moved.to << self.line_shift, bytes);
                free_ns = self.rows(free_ns, free_ns, Access::Write, write, self.byte_fs, trace, 0);
            }
        }
        free_ns
    }

    /// Time that the controller has worked until `now_ns`.
    pub fn busy_ns(&self, now_ns: u64) -> u64 {
        self.busy_ns.saturating_sub(self.free_ns.saturating_sub(now_ns)).min(now_ns)
    }

    /// What it has done.
    pub fn statistics(&self) -> MediaStatistics {
        MediaStatistics {
            gap_moves: self.start_gap.moves(),
            wear: self.wear.statistics(self.start_gap.lines() + 1, self.parameters.endurance_writes),
            ..self.counters.clone()
        }
    }

    /// Bytes that the copies of wear leveling read, and as many that they wrote.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> PcmParameters {
        PcmParameters {
            activate_read_ns: 48,
            precharge_write_ns: 150,
            access_ns: 20,
            row_bytes: 8192,
            banks: 8,
            bytes_per_cycle: 16,
            clock_hz: 250_000_000,
            line_bytes: 256,
            gap_write_interval: 100,
            endurance_writes: 1_000_000,
            dies: 32,
        }
    }

    struct Rig(Pcm, u64);

    impl Rig {
        fn new(interval: u32) -> Rig {
            Rig(Pcm::new(&PcmParameters { gap_write_interval: interval, ..parameters() }, 0, 1 << 30), 0)
        }

        /// Time that an access takes on a controller at rest.
        fn takes(&mut self, access: Access, address: u64, bytes: u64) -> u64 {
            self.1 = self.1.max(self.0.free_ns) + 10_000;
            self.0.access(self.1, access, (address, bytes), 0, &mut Tracer::default(), 0) - self.1
        }
    }

    #[test]
    fn a_row_that_is_open_spares_its_activation() {
        let mut rig = Rig::new(0);
        // 48 ns to activate (the controller's own 20 ns pass meanwhile), 16 bytes in 4 ns.
        assert_eq!(rig.takes(Access::Read, 0, 4096), 48 + 1024);
        assert_eq!(rig.takes(Access::Read, 4096, 4096), 20 + 1024);
        // Another row of the same bank, after a read: nothing to write back.
        assert_eq!(rig.takes(Access::Read, 8 * 8192, 64), 48 + 16);
        // A row that was changed is written back when another takes its place.
        assert_eq!(rig.takes(Access::Write, 8 * 8192, 64), 20 + 16);
        assert_eq!(rig.takes(Access::Read, 0, 64), 150 + 48 + 16);
        let statistics = rig.0.statistics();
        assert_eq!((statistics.row_hits, statistics.row_misses, statistics.row_write_backs), (2, 3, 1));
        assert_eq!((statistics.read_bytes, statistics.written_bytes), (8192 + 128, 64));
    }

    #[test]
    fn rows_of_other_banks_are_activated_meanwhile() {
        let mut rig = Rig::new(0);
        assert_eq!(rig.takes(Access::Read, 0, 4 * 8192), 48 + 4 * 2048);
        // The DMA controller's rate bounds it where that is lower.
        let at_ns = rig.0.free_ns;
        let slow = rig.0.access(at_ns, Access::Read, (0, 4096), byte_fs(1_000_000_000), &mut Tracer::default(), 0);
        assert_eq!(slow - at_ns, 20 + 4096);
    }

    #[test]
    fn the_controller_does_one_access_at_a_time() {
        let mut rig = Rig::new(0);
        let mut trace = Tracer::default();
        let first = rig.0.access(0, Access::Read, (0, 4096), 0, &mut trace, 0);
        assert_eq!(rig.0.access(0, Access::Read, (4096, 4096), 0, &mut trace, 0), first + 20 + 1024);
        assert_eq!(rig.0.busy_ns(first), first);
    }

    #[test]
    fn the_gap_moves_after_every_hundred_lines_and_takes_the_controller() {
        let mut rig = Rig::new(100);
        for write in 0..25u64 {
            rig.takes(Access::Write, write * 4096, 4096);
        }
        let statistics = rig.0.statistics();
        assert_eq!((statistics.gap_moves, rig.0.copied_bytes()), (4, 4 * 256));
        assert_eq!(statistics.wear.writes, 25 * 16 + 4);
        assert_eq!(statistics.wear.lines_written, 25 * 16 + 4);
        assert_eq!(statistics.wear.lines, (1 << 30) / 256 + 1);
        // The hundredth line of writes: the write itself ends as ever, the controller is free only after the copy.
        let mut rig = Rig::new(16);
        let took = rig.takes(Access::Write, 0, 4096);
        assert_eq!(took, 48 + 1024);
        assert!(rig.0.free_ns >= rig.1 + took + 48 + 2 * 64);
    }

    #[test]
    fn an_access_across_the_gap_and_the_turn_moves_all_its_bytes() {
        // Sixteen lines of 256 bytes: the gap goes round many times, every access meets it somewhere.
        let mut pcm = Pcm::new(&PcmParameters { gap_write_interval: 1, ..parameters() }, 0, 4096);
        let mut at_ns = 0;
        for round in 0..200u64 {
            let end_ns = pcm.access(at_ns, Access::Write, (0, 4096), 0, &mut Tracer::default(), 0);
            assert!(end_ns >= at_ns + 1024);
            at_ns = pcm.free_ns;
            let statistics = pcm.statistics();
            assert_eq!((statistics.written_bytes, statistics.gap_moves), ((round + 1) * 4096, (round + 1) * 16));
            assert_eq!(statistics.wear.writes, (round + 1) * 32);
        }
        let wear = pcm.statistics().wear;
        assert_eq!((wear.lines, wear.lines_written), (17, 17));
    }
}
