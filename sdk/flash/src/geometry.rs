//! The shape of flash, as presets give it, and how a lane's virtual pages lie on it.
//!
//! What always holds: a die has one number, `0..dies`, channel-major (`die % channels` is its channel); a block has one number within
//! its die, and `block % planes_per_die` is its plane; a page has one number within its block.

/// How many bits a flash cell keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One bit.
    Slc,
    /// Two bits: a lower and an upper page.
    Mlc,
    /// Three bits, programmed in one shot.
    Tlc,
}

/// The shape of the flash that an SPU reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Buses.
    pub channels: u32,
    /// Packages on each.
    pub packages_per_channel: u32,
    /// Dies in each.
    pub dies_per_package: u32,
    /// Planes of a die: they work at the same time on pages of the same number.
    pub planes_per_die: u32,
    /// Erase blocks of a plane.
    pub blocks_per_plane: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Payload of a page.
    pub page_bytes: u32,
    /// Bytes of a page's spare area that are not the ECC's.
    pub spare_bytes: u32,
    /// What a cell keeps.
    pub cell: Cell,
    /// Whether firmware reaches the spare area. The OpenSSD board's firmware does not.
    pub spare_accessible: bool,
    /// Where a power cut during the program of an upper page destroys its lower page: the distance from the one to the other. Pages
    /// `0..d` are lower pages, `d..2d` their upper pages, and so on. 0: pages do not endanger one another.
    pub paired_distance: u32,
}

/// Words in which the flash port tells a geometry.
pub const GEOMETRY_WORDS: usize = 12;

impl Geometry {
    /// From the words of the flash port (docs/abi.md, `flash_geometry`); of the unit, word 10, it knows nothing.
    pub const fn of_words(words: &[u32; GEOMETRY_WORDS]) -> Geometry {
        Geometry {
            channels: words[0],
            packages_per_channel: words[1],
            dies_per_package: words[2],
            planes_per_die: words[3],
            blocks_per_plane: words[4],
            pages_per_block: words[5],
            page_bytes: words[6],
            spare_bytes: words[7],
            cell: match words[8] {
                1 => Cell::Slc,
                2 => Cell::Mlc,
                _ => Cell::Tlc,
            },
            spare_accessible: words[9] != 0,
            paired_distance: words[11],
        }
    }

    /// Whether a page that was programmed is there after a power cut, with a header that tells what it is.
    pub const fn is_durable_at_once(&self) -> bool {
        self.spare_accessible && self.paired_distance == 0
    }

    /// Number of dies.
    pub const fn dies(&self) -> u32 {
        self.channels.saturating_mul(self.packages_per_channel).saturating_mul(self.dies_per_package)
    }

    /// Blocks of a die.
    pub const fn blocks_per_die(&self) -> u32 {
        self.blocks_per_plane.saturating_mul(self.planes_per_die)
    }

    /// The lower page that a cut during the program of this page destroys too.
    pub const fn lower_page(&self, page: u32) -> Option<u32> {
        let distance = self.paired_distance;
        if distance > 0 && page / distance % 2 == 1 { Some(page - distance) } else { None }
    }

    /// Pages of which a later one endangers an earlier one; 1 where none does.
    pub const fn group_pages(&self) -> u32 {
        let pages = self.paired_distance.saturating_mul(2);
        if pages == 0 { 1 } else { pages }
    }

    /// The number of the group that a page lies in, counted from any start of a block.
    pub const fn group_of(&self, address: u32) -> u32 {
        address / self.group_pages()
    }

    /// The first page at or after `next` such that no page before it has an upper page at or after it: once all pages before it are
    /// programmed, no later program endangers them.
    pub const fn settled_from(&self, next: u32) -> u32 {
        let group = self.paired_distance.saturating_mul(2);
        if group == 0 {
            return next;
        }
        let settled = next.div_ceil(group) * group;
        if settled < self.pages_per_block { settled } else { self.pages_per_block }
    }
}

/// Planes of a die that a virtual page can lie on, at most.
pub const PLANES_MAX: usize = 8;
/// Dies that a virtual page can lie on, at most.
pub const DIES_PER_UNIT_MAX: u32 = 4;

/// A lane: the dies that a virtual page is spread over, and all virtual pages on them. Lanes share nothing.
///
/// A virtual page has a part on each plane of each die of its lane; part `p` is on die `p / planes` of the lane and plane
/// `p % planes`. An erase block of the lane consists of a block of each plane; which one is the affair of [`crate::Replacements`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The flash.
    pub geometry: Geometry,
    /// Dies that a virtual page lies on.
    pub dies_per_unit: u32,
    /// Number of this lane.
    pub lane: u32,
}

impl Layout {
    /// Number of lanes of the flash.
    pub const fn lanes(&self) -> u32 {
        self.geometry.dies() / self.dies_per_unit
    }

    /// Parts of a virtual page.
    pub const fn parts(&self) -> u32 {
        self.dies_per_unit * self.geometry.planes_per_die
    }

    /// Bytes of a virtual page: the mapping unit.
    pub const fn unit_bytes(&self) -> u32 {
        self.parts() * self.geometry.page_bytes
    }

    /// The die of the lane's die number `index`: they are as far apart as possible, on one channel where there are more lanes than
    /// channels.
    pub const fn die(&self, index: u32) -> u32 {
        self.lane + index * self.lanes()
    }

    /// The die of a part.
    pub const fn part_die(&self, part: u32) -> u32 {
        self.die(part / self.geometry.planes_per_die)
    }

    /// The plane of a part.
    pub const fn part_plane(&self, part: u32) -> u32 {
        part % self.geometry.planes_per_die
    }

    /// The number within its die of the block in row `row` of the part's plane.
    pub const fn physical_block(&self, part: u32, row: u32) -> u32 {
        row * self.geometry.planes_per_die + self.part_plane(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const GEOMETRY: Geometry = Geometry {
        channels: 2,
        packages_per_channel: 2,
        dies_per_package: 2,
        planes_per_die: 2,
        blocks_per_plane: 16,
        pages_per_block: 16,
        page_bytes: 512,
        spare_bytes: 64,
        cell: Cell::Mlc,
        spare_accessible: true,
        paired_distance: 2,
    };

    #[test]
    fn upper_pages_follow_their_lower_pages() {
        let lower: Vec<_> = (0..8).map(|page| GEOMETRY.lower_page(page)).collect();
        assert_eq!(lower, [None, None, Some(0), Some(1), None, None, Some(4), Some(5)]);
        // Settled means: nothing before has an upper page at or after.
        for next in 0..=16 {
            let settled = GEOMETRY.settled_from(next);
            assert!(settled >= next && settled - next < 4);
            for upper in settled..16 {
                assert!(GEOMETRY.lower_page(upper).is_none_or(|lower| lower >= settled));
            }
        }
        assert_eq!(Geometry { paired_distance: 0, ..GEOMETRY }.settled_from(5), 5);
    }

    #[test]
    fn each_die_belongs_to_one_lane() {
        let mut seen = [0; 8];
        for lane in 0..4 {
            let layout = Layout { geometry: GEOMETRY, dies_per_unit: 2, lane };
            assert_eq!((layout.lanes(), layout.parts(), layout.unit_bytes()), (4, 4, 2048));
            seen[layout.part_die(0) as usize] += 1;
            seen[layout.part_die(3) as usize] += 1;
            assert_eq!(layout.part_die(0) % 2, layout.part_die(2) % 2, "one channel");
            assert_eq!(layout.physical_block(3, 5), 11);
        }
        assert_eq!(seen, [1; 8]);
    }
}
