//! The read map: an FTL says in its own memory where units lie, and SPU-OS reads them without asking it (docs/abi.md, "The read map").
//!
//! Invariants:
//! - A map is of one instance of the app that serves the banks, in the sandbox, and of the bank of its SPU. It ends with that instance; its memory is looked at
//!   between the instance's runs alone, and every pointer and entry is checked when it is used. A map that is wrong has its own bank's reads
//!   wrong, as `nv_read` could.
//! - A read that a map answers is over before anything else happens, so that no page is programmed, moved or erased meanwhile. One that overlaps a write which has
//!   begun goes to the FTL, and so does one that flash does not answer well, or with more corrected bits than the FTL lets pass.
//! - Under a model of time there is no map: reads take the time of the FTL's processor.

use super::abi;
use super::activity::Caller;
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use crate::media::delegate::Located;
use willow_flash_media::{PageAddress, Read};

/// Bytes that describe a lane: u64 pointer to entries, u64 pointer to a byte a row, u32 units, u32 rows, u64 zero.
const LANE_BYTES: usize = 32;
/// Most lanes: a die each.
const LANES_MAX: u32 = willow_flash_media::DIES_MAX;

/// Where a lane's entries are in the memory of its FTL.
struct Lane {
    entries: u64,
    rows_asked: u64,
    units: u32,
    rows: u32,
}

/// What the FTL of a bank has published.
pub(super) struct ReadMap {
    /// Of which of its instances it is.
    incarnation: u32,
    lanes: Vec<Lane>,
    corrected_bits_max: u16,
    unit_shift: u32,
    page_bytes: u32,
    pages_per_block: u32,
    planes: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl ReadMap {
    /// Where a range of the bank lies; `None`: the FTL is to be asked.
    #[inline]
    fn locate(&self, memory: &[u8], address: u64, bytes: u64) -> Option<Located> {
        let look = |at: u64, bytes: usize| {
            let at = usize::try_from(at).ok()?;
            memory.get(at..at.checked_add(bytes)?)
        };
        let mut located = Located::new(self.corrected_bits_max);
        let lanes = self.lanes.len() as u64;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let unit = at >> self.unit_shift;
            let within = (at - (unit << self.unit_shift)) as u32;
            let (number, index) = ((unit % lanes) as u32, unit / lanes);
            let lane = &self.lanes[number as usize];
            if index >= u64::from(lane.units) {
                return None;
            }
            let entry = u32_at(look(lane.entries + 4 * index, 4)?, 0);
            let (row, page) = (entry / self.pages_per_block, entry % self.pages_per_block);
            if row >= lane.rows || look(lane.rows_asked + u64::from(row), 1)?[0] != 0 {
                return None;
            }
            let (part, offset_bytes) = (within / self.page_bytes, within % self.page_bytes);
            let length_bytes = u64::from(self.page_bytes - offset_bytes).min(end - at) as u32;
            let at_page = PageAddress { block: row * self.planes + part % self.planes, page };
            let read = Read { at: at_page, offset_bytes, length_bytes, spare: false };
            if !located.push(number + part / self.planes * lanes as u32, read) {
                return None;
            }
            at += u64::from(length_bytes);
        }
        Some(located)
    }
}

impl Machine {
    /// `flash_read_map`.
    pub(super) fn take_read_map<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (lanes, count, corrected_bits_max): (u64, u32, u32),
    ) -> Result<i32, Fault> {
        let bank = usize::from(caller.spu);
        let Some((shape, unit_bytes)) = self.port(caller).and_then(|store| {
            let (_, unit_bytes) = store.shape();
            Some((*store.bank_port(bank)?.flash.geometry(), unit_bytes))
        }) else {
            return Ok(abi::ERROR_PERMISSION);
        };
        let stripe = u64::from(shape.planes_per_die) * u64::from(shape.page_bytes);
        let dies = u64::from(count) * (unit_bytes / stripe);
        if count > LANES_MAX || (count > 0 && (unit_bytes % stripe != 0 || dies != u64::from(shape.dies()))) {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let mut map = ReadMap {
            incarnation: caller.incarnation,
            lanes: Vec::with_capacity(count as usize),
            corrected_bits_max: corrected_bits_max.min(u16::MAX.into()) as u16,
            unit_shift: unit_bytes.trailing_zeros(),
            page_bytes: shape.page_bytes,
            pages_per_block: shape.pages_per_block,
            planes: shape.planes_per_die,
        };
        for lane in memory.slice(lanes, count as usize * LANE_BYTES)?.chunks_exact(LANE_BYTES) {
            let lane = Lane {
                entries: u64_at(lane, 0),
                rows_asked: u64_at(lane, 8),
                units: u32_at(lane, 16),
                rows: u32_at(lane, 20),
            };
            memory.slice(lane.entries, lane.units as usize * 4)?;
            memory.slice(lane.rows_asked, lane.rows as usize)?;
            if lane.rows > shape.blocks_per_plane {
                return Ok(abi::ERROR_ARGUMENT);
            }
            map.lanes.push(lane);
        }
        if !self.flash_takes_time() {
            self.ftl.maps[bank] = (count > 0).then(|| Box::new(map));
            self.ftl.has_maps = self.ftl.maps.iter().any(Option::is_some);
        }
        Ok(0)
    }

    /// Whether some bank's FTL has published where units lie.
    #[inline(always)]
    pub(super) fn has_read_maps(&self) -> bool {
        self.ftl.has_maps
    }

    /// Where a range of a bank lies, as far as its FTL has published that.
    pub(super) fn located(&self, bank: usize, address: u64, bytes: usize) -> Option<Located> {
        let map = self.ftl.maps.get(bank)?.as_ref()?;
        let resident = self.spus[bank].residents.get(usize::from(self.ftl.number?))?;
        if resident.incarnation != map.incarnation {
            return None;
        }
        map.locate(resident.instance.as_ref()?.memory()?, address, bytes as u64)
    }
}
