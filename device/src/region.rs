//! Regions: the parts of NV memory that belong to somebody. A region has the same base and length in every bank, since apps run
//! the same code on every SPU (Willow, section 2.2). The table is the device's metadata; see docs/media-format.md.
//!
//! Invariants: regions never overlap; every byte outside of regions reads as zeroes, so that a new region is a zeroed one; a
//! region that is being deleted stays in the table, unusable, until its zeroes are durable.

use serde::{Deserialize, Serialize};

/// Regions begin and end at multiples of this.
pub const REGION_ALIGNMENT_BYTES: u64 = 65536;
/// Most regions of a device.
pub const REGIONS_MAX: usize = 4096;

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// App that owns it, by name: it outlives the app's instances.
    pub app: String,
    /// The owner's number for it (for namespaces the NSID).
    pub id: u32,
    /// First byte in every bank.
    pub base: u64,
    /// Bytes in every bank.
    pub bank_bytes: u64,
    /// True for a block namespace: access rests on the originating HRE's rights, not on the app's.
    pub shared: bool,
    /// Being zeroed; gone when that is durable.
    #[serde(default)]
    pub deleting: bool,
}

impl Region {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.base + self.bank_bytes
    }
}

/// Why a region cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionError {
    /// No gap is long enough.
    Full,
    /// Zero or absurd size.
    Size,
}

/// All regions, in order of their base.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    regions: Vec<Region>,
    bank_bytes: u64,
}

impl RegionTable {
    /// A table over banks of `bank_bytes` with what the metadata lists; the error says which entry is wrong.
    pub fn new(bank_bytes: u64, mut regions: Vec<Region>) -> Result<Self, String> {
        regions.sort_by_key(|region| region.base);
        let mut end = 0;
        for region in &regions {
            let whole = region.base.is_multiple_of(REGION_ALIGNMENT_BYTES)
                && region.bank_bytes.is_multiple_of(REGION_ALIGNMENT_BYTES);
            let bounded = region.base.checked_add(region.bank_bytes).is_some_and(|region_end| region_end <= bank_bytes);
            if !whole || !bounded || region.base < end || region.bank_bytes == 0 {
                return Err(format!(
                    "region {} of app {} at {:#x}, {:#x} bytes, overlaps another or does not fit banks of {bank_bytes:#x} bytes",
                    region.id, region.app, region.base, region.bank_bytes
                ));
            }
            end = region.end();
        }
        if regions.len() > REGIONS_MAX {
            return Err(format!("{} regions, at most {REGIONS_MAX} are possible", regions.len()));
        }
        Ok(RegionTable { regions, bank_bytes })
    }

    /// All of them.
    pub fn all(&self) -> &[Region] {
        &self.regions
    }

    /// The region of an app by number, unless it is being deleted.
    pub fn find(&self, app: &str, id: u32) -> Option<&Region> {
        self.regions.iter().find(|region| region.id == id && region.app == app && !region.deleting)
    }

    /// Makes a region in the first gap that fits.
    pub fn create(&mut self, app: &str, id: u32, bank_bytes: u64, shared: bool) -> Result<&Region, RegionError> {
        let bytes = bank_bytes.checked_next_multiple_of(REGION_ALIGNMENT_BYTES).ok_or(RegionError::Size)?;
        if bytes == 0 {
            return Err(RegionError::Size);
        }
        if self.regions.len() >= REGIONS_MAX {
            return Err(RegionError::Full);
        }
        let mut base = 0;
        let mut at = self.regions.len();
        for (index, region) in self.regions.iter().enumerate() {
            if region.base - base >= bytes {
                at = index;
                break;
            }
            base = region.end();
        }
        if base.checked_add(bytes).is_none_or(|end| end > self.bank_bytes) {
            return Err(RegionError::Full);
        }
        self.regions.insert(at, Region { app: app.to_owned(), id, base, bank_bytes: bytes, shared, deleting: false });
        Ok(&self.regions[at])
    }

    /// Marks a region as being deleted; its range, to be zeroed.
    pub fn begin_delete(&mut self, app: &str, id: u32) -> Option<(u64, u64)> {
        let found = self.regions.iter_mut().find(|region| region.id == id && region.app == app && !region.deleting);
        found.map(|region| {
            region.deleting = true;
            (region.base, region.bank_bytes)
        })
    }

    /// Gives a region another length. What it loses is a region of its own that is being deleted: its range, to be zeroed. What it gains is free
    /// range behind it, all zeroes.
    pub fn resize(&mut self, app: &str, id: u32, bank_bytes: u64) -> Result<Option<(u64, u64)>, RegionError> {
        let is_it = |region: &Region| region.id == id && region.app == app && !region.deleting;
        let (true, Some(at)) =
            (bank_bytes > 0 && bank_bytes.is_multiple_of(REGION_ALIGNMENT_BYTES), self.regions.iter().position(is_it))
        else {
            return Err(RegionError::Size);
        };
        let (limit, old_end) = (self.limit(at), self.regions[at].end());
        let new_end = self.regions[at].base.checked_add(bank_bytes).ok_or(RegionError::Size)?;
        if new_end > limit || new_end < old_end && self.regions.len() >= REGIONS_MAX {
            return Err(RegionError::Full);
        }
        self.regions[at].bank_bytes = bank_bytes;
        if new_end >= old_end {
            return Ok(None);
        }
        let lost = Region { base: new_end, bank_bytes: old_end - new_end, deleting: true, ..self.regions[at].clone() };
        self.regions.insert(at + 1, lost);
        Ok(Some((new_end, old_end - new_end)))
    }

    /// Where the region at a place of the table ends at most: where the next one begins.
    fn limit(&self, at: usize) -> u64 {
        self.regions.get(at + 1).map_or(self.bank_bytes, |next| next.base)
    }

    /// Most bytes that an app's region can have in every bank.
    pub fn longest(&self, app: &str, id: u32) -> Option<u64> {
        let at = self.regions.iter().position(|region| region.id == id && region.app == app && !region.deleting)?;
        Some(self.limit(at) - self.regions[at].base)
    }

    /// Takes a region that was being deleted out of the table.
    pub fn end_delete(&mut self, base: u64) {
        self.regions.retain(|region| !(region.deleting && region.base == base));
    }

    /// The region that holds all of the range.
    #[inline]
    pub fn holding(&self, address: u64, bytes: u64) -> Option<(usize, &Region)> {
        let end = address.checked_add(bytes)?;
        let index = self.regions.partition_point(|region| region.base <= address).checked_sub(1)?;
        let region = &self.regions[index];
        (end <= region.end()).then_some((index, region))
    }

    /// Bytes of all regions in one bank.
    pub fn used_bank_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bank_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn regions_never_overlap_and_gaps_are_reused(steps in prop::collection::vec((0u32..12, 1u64..400_000, 0..3), 1..80)) {
            let mut table = RegionTable::new(4 << 20, vec![]).unwrap();
            for (id, bytes, action) in steps {
                if action == 2 && let Some(Region { base, bank_bytes, .. }) = table.find("a", id).cloned() {
                    let (wanted, longest) = (bytes.next_multiple_of(REGION_ALIGNMENT_BYTES), table.longest("a", id));
                    let used = table.used_bank_bytes();
                    let lost = table.resize("a", id, wanted);
                    prop_assert_eq!(lost.is_ok(), Some(wanted) <= longest);
                    let now = table.find("a", id).unwrap().bank_bytes;
                    prop_assert_eq!(now, if lost.is_ok() { wanted } else { bank_bytes });
                    if let Ok(Some((from, length))) = lost {
                        prop_assert_eq!((from, length), (base + wanted, bank_bytes - wanted));
                        prop_assert_eq!(table.used_bank_bytes(), used, "not free before it is zeroed");
                        table.end_delete(from);
                    }
                } else if action == 1 && table.find("a", id).is_none() {
                    let _ = table.create("a", id, bytes, false);
                } else if let Some((base, _)) = table.begin_delete("a", id) {
                    prop_assert!(table.find("a", id).is_none());
                    table.end_delete(base);
                }
                let again = RegionTable::new(4 << 20, table.all().to_vec());
                prop_assert!(again.is_ok(), "{:?}", again.err());
            }
            for id in 0..12 {
                if let Some((base, _)) = table.begin_delete("a", id) { table.end_delete(base); }
            }
            prop_assert_eq!(table.used_bank_bytes(), 0);
            prop_assert!(table.create("a", 1, 4 << 20, false).is_ok());
            prop_assert_eq!(table.create("a", 2, 1, false).err(), Some(RegionError::Full));
        }
    }

    #[test]
    fn holding_is_exact() {
        let mut table = RegionTable::new(1 << 20, vec![]).unwrap();
        table.create("a", 1, 65536, false).unwrap();
        table.create("b", 1, 65536, true).unwrap();
        assert_eq!(table.holding(65535, 1).unwrap().1.app, "a");
        assert!(table.holding(65535, 2).is_none());
        assert_eq!(table.holding(65536, 65536).unwrap().1.app, "b");
        assert!(table.holding(131072, 1).is_none());
        assert!(table.holding(u64::MAX, 2).is_none());
        assert!(table.create("a", 3, 0, false).is_err());
        assert!(table.create("a", 3, u64::MAX, false).is_err());
    }
}
