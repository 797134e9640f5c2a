//! What the FTL is made for, and how much of the flash hosts get.

use willow_flash::{Geometry, LaneConfig, Layout};

/// Pages of a lane that are written between two checkpoints, about: recovery reads the headers of as many again, which bounds its time. That is
/// as many blocks as the library thinks best, or fewer.
const PAGES_BETWEEN_CHECKPOINTS: u32 = 8192;
/// Fewest blocks between two checkpoints: each takes a few pages.
const BLOCKS_BETWEEN_CHECKPOINTS_MIN: u32 = 4;

/// Bytes of memory for the headers of pages, of all lanes together: enough for a million pages. Drives with more have collection read them.
const REMEMBERED_BYTES_MAX: u32 = 16 << 20;

/// The FTL's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlConfig {
    /// Dies that a virtual page lies on.
    pub dies_per_unit: u32,
    /// What each lane is made for.
    pub lane: LaneConfig,
}

impl FtlConfig {
    /// For that flash. Over-provisioning is what the data blocks hold beyond what hosts get, in percent of that; where the lanes need more
    /// for themselves (metadata, collection), hosts get less.
    pub fn new(
        geometry: &Geometry,
        dies_per_unit: u32,
        over_provisioning_percent: u32,
    ) -> Result<FtlConfig, &'static str> {
        FtlConfig::collecting(geometry, dies_per_unit, over_provisioning_percent, 0)
    }

    /// The same, and collection begins when fewer blocks than `collect_below` are free; 0: as the library thinks best.
    pub fn collecting(
        geometry: &Geometry,
        dies_per_unit: u32,
        over_provisioning_percent: u32,
        collect_below: u32,
    ) -> Result<FtlConfig, &'static str> {
        let mut lane = LaneConfig::new(1);
        if collect_below > 0 {
            lane.collect_below = collect_below;
        }
        let blocks = (PAGES_BETWEEN_CHECKPOINTS / geometry.pages_per_block.max(1)).max(BLOCKS_BETWEEN_CHECKPOINTS_MIN);
        lane.blocks_between_checkpoints = lane.blocks_between_checkpoints.min(blocks);
        // Replacements: about two in a hundred.
        lane.replacement_blocks = (geometry.blocks_per_plane / 50).max(2);
        let mut config = FtlConfig { dies_per_unit, lane };
        config.lane.remembered_bytes_max = REMEMBERED_BYTES_MAX / config.lanes(geometry).max(1);
        config.check(geometry)?;
        let layout = config.layout(geometry, 0);
        let data_pages = geometry.pages_per_block - u32::from(!geometry.spare_accessible);
        let blocks = geometry.blocks_per_plane - lane.replacement_blocks;
        let pages = u64::from(blocks) * u64::from(data_pages);
        let mut units = (pages * 100 / (100 + u64::from(over_provisioning_percent))) as u32;
        loop {
            config.lane.units = units;
            let needed = config.lane.blocks_needed(&layout) + config.lane.collect_below;
            if needed <= blocks {
                break;
            }
            units = units
                .checked_sub((needed - blocks) * data_pages)
                .filter(|units| *units > 0)
                .ok_or("the flash has too few blocks for metadata and collection")?;
        }
        config.check(geometry)?;
        Ok(config)
    }

    /// Number of lanes.
    pub fn lanes(&self, geometry: &Geometry) -> u32 {
        geometry.dies() / self.dies_per_unit.max(1)
    }

    /// How a lane lies on the flash.
    pub fn layout(&self, geometry: &Geometry, lane: u32) -> Layout {
        Layout { geometry: *geometry, dies_per_unit: self.dies_per_unit, lane }
    }

    /// What is wrong with it.
    pub fn check(&self, geometry: &Geometry) -> Result<(), &'static str> {
        if self.dies_per_unit == 0 || geometry.dies() == 0 {
            return Err("the flash has no die, or a virtual page lies on none");
        }
        self.lane.check(&self.layout(geometry, 0))
    }

    /// Bytes of DRAM that the tables of all lanes take: the map, for each block its state, counts and lists, and
    /// the headers of pages that are remembered.
    pub fn dram_bytes(&self, geometry: &Geometry) -> u64 {
        // Per block: state, valid count, erase count, sequence, readers, links, and its entries in the ordered sets.
        const BLOCK_BYTES: u64 = 1 + 4 * 4 + 12 + 48;
        let blocks = u64::from(geometry.blocks_per_plane - self.lane.replacement_blocks);
        let bits = blocks * u64::from(geometry.pages_per_block) / 8;
        let remembered = self.lane.remembered_bytes(&self.layout(geometry, 0));
        let lane = 4 * u64::from(self.lane.units) + blocks * BLOCK_BYTES + bits + remembered;
        lane * u64::from(self.lanes(geometry))
    }
}
