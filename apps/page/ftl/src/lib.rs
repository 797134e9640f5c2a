//! The FTL `page`: the greedy reference of the OpenSSD paper (section 2.1). Its mapping unit is the virtual page, which is striped over the planes of
//! the dies of a lane; the map is in DRAM, four bytes a virtual page; collection takes the block with the fewest valid pages; parts of a virtual page
//! are written by reading the rest of it.
//!
//! Virtual page `u` is page `u / lanes` of lane `u % lanes`, so that a sequential stream keeps all dies busy. Lanes share nothing: each has its own
//! map, log, checkpoints and collection.
//!
//! What always holds:
//! - host operations on one virtual page do not overlap: the caller sees to that (the gate of SPU-OS, by [`PageFtl::nv_unit`]). Atomic through a power
//!   cut is one virtual page;
//! - what was flushed, or written or zeroed with FUA, survives a power cut, and nothing that was zeroed comes back;
//! - one task a lane runs [`PageFtl::maintain`].
//!
//! Who may call it: the handlers `nv_read`, `nv_write`, `nv_zero` and `nv_flush`, and tests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;

use alloc::vec::Vec;
use core::cell::Cell;

pub use config::FtlConfig;
use willow_flash::wait::join_all;
use willow_flash::{Counters, Failure, FlashPort, Health, Lane, LaneConfig, LaneMap, MountError, Peer, Update};

/// Handler of an app with this FTL that tells what it has done, by cause, on its SPU: [`REPORT_WORDS`] numbers of 64 bits, in the order of
/// [`willow_flash::Counters`], and at last the bytes of its mapping unit.
pub const REPORT: u8 = 1;
/// Numbers of its reply.
pub const REPORT_WORDS: usize = 13;

/// Steps of [`PageFtl::health_steps`] for one erase of each block.
const HEALTH_STEPS_AN_ERASE: u64 = 32;
/// Virtual pages of one operation that are under way at the same time.
const UNITS_AT_ONCE: usize = 32;

/// The FTL of an SPU's flash.
pub struct PageFtl<P> {
    lanes: Vec<Lane<P>>,
    unit_bytes: u32,
    /// A lane takes nothing any more: then none does, so that hosts do not find a drive of which they can write some pages.
    read_only: Cell<bool>,
}

/// Part of a virtual page.
#[derive(Clone, Copy)]
struct Piece {
    unit: u64,
    start: u32,
    end: u32,
    /// Of its first byte in the operation.
    offset: u32,
}

impl<P: FlashPort + Clone> PageFtl<P> {
    /// Makes an empty drive; what the flash held is gone.
    pub async fn format(port: P, config: FtlConfig) -> Result<PageFtl<P>, MountError> {
        let geometry = port.geometry();
        config.check(&geometry).map_err(MountError::Config)?;
        let lanes = (0..config.lanes(&geometry)).map(|lane| {
            let port = port.clone();
            async move { Lane::format(port, config.layout(&geometry, lane), config.lane).await }
        });
        PageFtl::of(join_all(lanes).await)
    }

    /// Recovers what the flash holds. All lanes recover at the same time.
    pub async fn mount(port: P, config: FtlConfig) -> Result<PageFtl<P>, MountError> {
        let geometry = port.geometry();
        config.check(&geometry).map_err(MountError::Config)?;
        let lanes = (0..config.lanes(&geometry)).map(|lane| {
            let port = port.clone();
            async move { Lane::mount(port, config.layout(&geometry, lane), config.lane).await }
        });
        PageFtl::of(join_all(lanes).await)
    }
}

impl<P: FlashPort> PageFtl<P> {
    fn of(lanes: Vec<Result<Lane<P>, MountError>>) -> Result<PageFtl<P>, MountError> {
        let lanes = lanes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let unit_bytes = lanes.first().ok_or(MountError::Config("the flash has no lane"))?.layout().unit_bytes();
        let read_only = Cell::new(lanes.iter().any(Lane::is_read_only));
        Ok(PageFtl { lanes, unit_bytes, read_only })
    }

    /// Bytes of the mapping unit.
    pub fn nv_unit(&self) -> u32 {
        self.unit_bytes
    }

    /// Bytes of the logical bank.
    pub fn capacity_bytes(&self) -> u64 {
        let LaneConfig { units, .. } = self.lanes[0].config();
        u64::from(units) * self.lanes.len() as u64 * u64::from(self.unit_bytes)
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Collects, levels wear and writes the checkpoints of a lane, for as long as it works. Called once a lane.
    pub async fn maintain(&self, lane: usize) -> Result<(), Failure> {
        self.lanes[lane].maintain().await
    }

    /// Shows where the units of all lanes lie, lane by lane ([`Lane::with_map`]): unit `u` is unit `u / lanes` of lane `u % lanes`.
    pub fn each_map(&self, mut look: impl FnMut(LaneMap<'_>)) {
        self.lanes.iter().for_each(|lane| lane.with_map(&mut look));
    }

    /// Ends [`PageFtl::maintain`] of all lanes.
    pub fn stop(&self) {
        self.lanes.iter().for_each(Lane::stop);
    }

    fn lane(&self, unit: u64) -> (&Lane<P>, u32) {
        let lanes = self.lanes.len() as u64;
        (&self.lanes[(unit % lanes) as usize], (unit / lanes) as u32)
    }

    fn check_range(&self, address: u64, bytes: u32) -> Result<(), Failure> {
        let end = address.checked_add(bytes.into()).ok_or(Failure::Range)?;
        if end > self.capacity_bytes() { Err(Failure::Range) } else { Ok(()) }
    }

    /// An operation that changes something is let in.
    fn check_writable(&self) -> Result<(), Failure> {
        if self.read_only.get() { Err(Failure::ReadOnly) } else { Ok(()) }
    }

    /// An operation that changes something has ended.
    fn changed(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        if result == Err(Failure::ReadOnly) {
            self.read_only.set(true);
        }
        result
    }

    fn pieces(&self, address: u64, bytes: u32) -> impl Iterator<Item = Piece> {
        let unit_bytes = u64::from(self.unit_bytes);
        let end = address + u64::from(bytes);
        let units = address / unit_bytes..end.div_ceil(unit_bytes);
        units.map(move |unit| {
            let (first, last) = (unit * unit_bytes, (unit + 1) * unit_bytes);
            let (from, to) = (address.max(first), end.min(last));
            Piece { unit, start: (from - first) as u32, end: (to - first) as u32, offset: (from - address) as u32 }
        })
    }

    /// Does one piece after another where there is one, else several at a time.
    async fn each<F: Future<Output = Result<(), Failure>>>(
        &self,
        mut pieces: impl Iterator<Item = Piece>,
        operation: impl Fn(Piece) -> F,
    ) -> Result<(), Failure> {
        let Some(first) = pieces.next() else { return Ok(()) };
        let Some(second) = pieces.next() else { return operation(first).await };
        let mut rest = [first, second].into_iter().chain(pieces).peekable();
        while rest.peek().is_some() {
            let some = join_all(rest.by_ref().take(UNITS_AT_ONCE).map(&operation)).await;
            some.into_iter().collect::<Result<(), Failure>>()?;
        }
        Ok(())
    }

    /// `nv_read`: bytes of the logical bank to a peer.
    pub async fn read(&self, address: u64, bytes: u32, peer: Peer, offset: u32) -> Result<(), Failure> {
        self.check_range(address, bytes)?;
        self.each(self.pieces(address, bytes), |piece| async move {
            let (lane, unit) = self.lane(piece.unit);
            lane.read(unit, piece.start, piece.end, peer, offset + piece.offset).await
        })
        .await
    }

    /// `nv_write`: bytes of a peer to the logical bank; with FUA durable when it ends. One that fails may have written some virtual pages.
    pub async fn write(&self, address: u64, bytes: u32, peer: Peer, offset: u32, fua: bool) -> Result<(), Failure> {
        self.check_range(address, bytes)?;
        self.check_writable()?;
        let written = self.each(self.pieces(address, bytes), |piece| async move {
            let (lane, unit) = self.lane(piece.unit);
            let peer = Some((peer, offset + piece.offset));
            lane.write(Update { unit, start: piece.start, end: piece.end, peer }).await?;
            if fua && !lane.is_durable_at_once() { lane.flush().await } else { Ok(()) }
        });
        self.changed(written.await)
    }

    /// `nv_zero`: bytes of the logical bank read as zeroes; whole virtual pages are trimmed.
    pub async fn zero(&self, address: u64, bytes: u64, fua: bool) -> Result<(), Failure> {
        self.check_range(address, 0)?;
        self.check_writable()?;
        self.changed(self.zero_range(address, bytes, fua).await)
    }

    async fn zero_range(&self, address: u64, bytes: u64, fua: bool) -> Result<(), Failure> {
        let end = address.checked_add(bytes).filter(|end| *end <= self.capacity_bytes()).ok_or(Failure::Range)?;
        let unit_bytes = u64::from(self.unit_bytes);
        let (first, last) = (address.div_ceil(unit_bytes), end / unit_bytes);
        if first > last {
            // Within one virtual page.
            self.zero_part(address / unit_bytes, address % unit_bytes, end - address / unit_bytes * unit_bytes).await?;
        } else {
            if address < first * unit_bytes {
                self.zero_part(first - 1, address % unit_bytes, unit_bytes).await?;
            }
            if end > last * unit_bytes {
                self.zero_part(last, 0, end - last * unit_bytes).await?;
            }
            let lanes = self.lanes.len() as u64;
            let trims = self.lanes.iter().zip(0u64..).map(|(lane, number)| {
                // The lane's pages among `first..last`.
                let before = |unit: u64| unit.saturating_sub(number).div_ceil(lanes) as u32;
                let (from, to) = (before(first), before(last));
                async move { if from < to { lane.trim(from, to - from).await } else { Ok(()) } }
            });
            join_all(trims).await.into_iter().collect::<Result<(), Failure>>()?;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn zero_part(&self, unit: u64, start: u64, end: u64) -> Result<(), Failure> {
        let (lane, unit) = self.lane(unit);
        if start == end || !lane.is_mapped(unit) {
            return Ok(());
        }
        lane.write(Update { unit, start: start as u32, end: end as u32, peer: None }).await
    }

    /// `nv_flush`: all that has ended is durable.
    pub async fn flush(&self) -> Result<(), Failure> {
        let flushes = join_all(self.lanes.iter().map(Lane::flush)).await;
        flushes.into_iter().collect()
    }

    /// What has been done, by cause.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.lanes.iter().for_each(|lane| sum.add(&lane.counters()));
        sum
    }

    /// A number that grows with each failure of the flash, and slowly with wear: where it has, [`PageFtl::health`] may be another.
    pub fn health_steps(&self) -> u64 {
        let step = |lane: &Lane<P>| {
            let counters = lane.counters();
            let failures = counters.program_failures + counters.erase_failures + counters.media_errors;
            let blocks = u64::from(lane.layout().geometry.blocks_per_plane);
            failures + counters.erases * HEALTH_STEPS_AN_ERASE / blocks + u64::from(lane.is_read_only())
        };
        self.lanes.iter().map(step).sum()
    }

    /// What SMART tells: of spare blocks the worst lane, of wear the average.
    pub fn health(&self) -> Health {
        let all: Vec<Health> = self.lanes.iter().map(Lane::health).collect();
        let worst_percent = all.iter().map(|health| health.spare_percent).min().unwrap_or(0);
        let read_only = self.read_only.get() || all.iter().any(|health| health.read_only);
        Health {
            spare_percent: if read_only { 0 } else { worst_percent },
            used_percent: (all.iter().map(|health| u64::from(health.used_percent)).sum::<u64>() / all.len() as u64)
                as u32,
            erases_max: all.iter().map(|health| health.erases_max).max().unwrap_or(0),
            erases_min: all.iter().map(|health| health.erases_min).min().unwrap_or(0),
            media_errors: all.iter().map(|health| health.media_errors).sum(),
            read_only,
        }
    }
}
