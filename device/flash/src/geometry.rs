//! How flash is arranged, and what follows from it: which plane a block is in, which pages share their cells.
//!
//! What always holds of a geometry that passed [`Geometry::validate`]: no count is zero, every address fits into 32 bits, and
//! bytes and pages of the whole fit into 64.

use crate::check::{Absurd, within};
use serde::{Deserialize, Serialize};

/// Most dies behind one medium: what is kept for each die is bounded by it.
pub const DIES_MAX: u32 = 4096;
/// Most planes of a die: a set of planes is a [`PlaneSet`].
pub const PLANES_MAX: u32 = 16;
/// Most blocks of a medium: some 100 bytes are kept for each.
pub const BLOCKS_MAX: u64 = 1 << 22;

/// A set of planes, or of the pages of a multi-plane operation, by their place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneSet(pub u16);

impl PlaneSet {
    /// Adds one; false where it was there.
    pub fn insert(&mut self, place: u32) -> bool {
        let bit = 1 << place;
        let new = self.0 & bit == 0;
        self.0 |= bit;
        new
    }

    /// Whether one is in the set.
    pub fn contains(self, place: u32) -> bool {
        self.0 & (1 << place) != 0
    }

    /// Whether none is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a cell holds, and how its pages are programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// One bit.
    Slc,
    /// Two bits: a lower and an upper page ([`Geometry::paired_distance`]).
    Mlc,
    /// Three bits, programmed at once: pages 3k, 3k + 1 and 3k + 2 are one word line, of which the first two wait for the third one, in the
    /// die's latches or in a buffer of the controller.
    Tlc,
}

/// Which bit of its cells a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// The only one, or the first.
    Lower,
    /// The second of three.
    Middle,
    /// The last.
    Upper,
}

/// A page of a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageAddress {
    /// Block of the die.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
}

/// Words of [`Geometry::words`].
pub const GEOMETRY_WORDS: usize = 12;

/// How the flash of one medium is arranged. A die is addressed by one number, channel-major: `die % channels` is its channel. A block of a die
/// by one number, whose plane is `block % planes_per_die`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Channels, each with a bus of its own.
    pub channels: u32,
    /// Packages (chips) at a channel.
    pub packages_per_channel: u32,
    /// Dies of a package.
    pub dies_per_package: u32,
    /// Planes of a die, which work on the same page number at the same time.
    pub planes_per_die: u32,
    /// Blocks of a plane, the bad ones included.
    pub blocks_per_plane: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Bytes of a page, without its spare area.
    pub page_bytes: u32,
    /// Bytes of a page's spare area that are left beside the ECC's.
    pub spare_bytes: u32,
    /// What a cell holds.
    pub cell: Cell,
    /// Of MLC, the distance from a lower page to the upper page in the same cells: pages `0..d` are lower pages, `d..2d` their upper
    /// pages, and so on. 0 for others.
    pub paired_distance: u32,
    /// Whether firmware reaches the spare area.
    pub spare_accessible: bool,
}

impl Geometry {
    /// Its shape as the flash port tells an FTL (docs/abi.md, `flash_geometry`), less what is not the medium's: the unit that the FTL is to map
    /// as one, word 10, is 0. Pages are paired only where the one can take the other along.
    pub fn words(&self, paired_page_loss: bool) -> [u32; GEOMETRY_WORDS] {
        let cell = match self.cell {
            Cell::Slc => 1,
            Cell::Mlc => 2,
            Cell::Tlc => 3,
        };
        [
            self.channels,
            self.packages_per_channel,
            self.dies_per_package,
            self.planes_per_die,
            self.blocks_per_plane,
            self.pages_per_block,
            self.page_bytes,
            self.spare_bytes,
            cell,
            u32::from(self.spare_accessible),
            0,
            if paired_page_loss { self.paired_distance } else { 0 },
        ]
    }

    /// Dies of the medium.
    pub fn dies(&self) -> u32 {
        self.channels * self.packages_per_channel * self.dies_per_package
    }

    /// Blocks of a die, in all its planes.
    pub fn blocks_per_die(&self) -> u32 {
        self.planes_per_die * self.blocks_per_plane
    }

    /// Blocks of the medium.
    pub fn blocks(&self) -> u64 {
        u64::from(self.dies()) * u64::from(self.blocks_per_die())
    }

    /// Pages of the medium.
    pub fn pages(&self) -> u64 {
        self.blocks() * u64::from(self.pages_per_block)
    }

    /// Bytes of all pages, without their spare areas.
    pub fn bytes(&self) -> u64 {
        self.pages() * u64::from(self.page_bytes)
    }

    /// Channel of a die.
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Plane of a block.
    pub fn plane_of(&self, block: u32) -> u32 {
        block % self.planes_per_die
    }

    /// Which bit of its cells a page is.
    pub fn page_kind(&self, page: u32) -> PageKind {
        match self.cell {
            Cell::Slc => PageKind::Lower,
            Cell::Mlc if self.paired_lower(page).is_none() => PageKind::Lower,
            Cell::Mlc => PageKind::Upper,
            Cell::Tlc => [PageKind::Lower, PageKind::Middle, PageKind::Upper][page as usize % 3],
        }
    }

    /// The page that was programmed into the same cells before; only pairs of MLC, since a word line of TLC is programmed at once.
    pub fn paired_lower(&self, page: u32) -> Option<u32> {
        let distance = self.paired_distance;
        (distance > 0 && page / distance % 2 == 1).then(|| page - distance)
    }

    /// Pages that are programmed at once: those before the last of them wait.
    pub fn pages_per_program(&self) -> u32 {
        if self.cell == Cell::Tlc { 3 } else { 1 }
    }

    /// The part of this flash behind one of `spus` storage processor units: as many whole channels for each.
    pub fn share(&self, spus: u32) -> Result<Geometry, Absurd> {
        if spus == 0 || !self.channels.is_multiple_of(spus) {
            let expected = "a multiple of the number of SPUs, so that each has whole channels";
            return Err(Absurd {
                field: "channels",
                value: format!("{} for {spus} SPUs", self.channels),
                expected: expected.into(),
            });
        }
        Ok(Geometry { channels: self.channels / spus, ..*self })
    }

    /// Checks all values; the error names the field, its value and what was expected.
    pub fn validate(&self) -> Result<(), Absurd> {
        within("channels", self.channels, 1..=256, "channels")?;
        within("packages_per_channel", self.packages_per_channel, 1..=64, "packages")?;
        within("dies_per_package", self.dies_per_package, 1..=32, "dies")?;
        within("planes_per_die", self.planes_per_die, 1..=PLANES_MAX, "planes")?;
        within("blocks_per_plane", self.blocks_per_plane, 2..=1 << 20, "blocks")?;
        within("pages_per_block", self.pages_per_block, 2..=65_535, "pages")?;
        within("page_bytes", self.page_bytes, 512..=1 << 20, "bytes")?;
        within("spare_bytes", self.spare_bytes, 0..=self.page_bytes.min(65_535), "bytes")?;
        if !self.page_bytes.is_multiple_of(512) {
            return Err(Absurd::new("page_bytes", self.page_bytes, "a multiple of 512 bytes"));
        }
        let distances = if self.cell == Cell::Mlc { 1..=self.pages_per_block / 2 } else { 0..=0 };
        within("paired_distance", self.paired_distance, distances, "pages, of MLC alone")?;
        let whole_cells = if self.cell == Cell::Mlc { 2 * self.paired_distance } else { self.pages_per_program() };
        if !self.pages_per_block.is_multiple_of(whole_cells) {
            let expected = format!("a multiple of {whole_cells}, so that every cell is used whole");
            return Err(Absurd::new("pages_per_block", self.pages_per_block, &expected));
        }
        within("channels x packages x dies", self.dies(), 1..=DIES_MAX, "dies")?;
        within("blocks of all dies", self.blocks(), 2..=BLOCKS_MAX, "blocks")?;
        within("bytes of all pages", self.bytes(), 1..=1 << 52, "bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(cell: Cell, pages_per_block: u32, paired_distance: u32) -> Geometry {
        Geometry {
            channels: 2,
            packages_per_channel: 2,
            dies_per_package: 2,
            planes_per_die: 2,
            blocks_per_plane: 16,
            pages_per_block,
            page_bytes: 4096,
            spare_bytes: 64,
            cell,
            paired_distance,
            spare_accessible: true,
        }
    }

    #[test]
    fn lower_pages_have_one_upper_page_each_at_the_distance() {
        for (pages, distance) in [(128, 1), (128, 4), (8, 2), (126, 3), (10, 5)] {
            let geometry = geometry(Cell::Mlc, pages, distance);
            geometry.validate().unwrap();
            let uppers: Vec<u32> = (0..pages).filter(|page| geometry.page_kind(*page) == PageKind::Upper).collect();
            let lowers: Vec<u32> = uppers.iter().map(|page| geometry.paired_lower(*page).unwrap()).collect();
            assert!(uppers.iter().zip(&lowers).all(|(upper, lower)| lower + distance == *upper));
            assert!(lowers.iter().all(|page| geometry.page_kind(*page) == PageKind::Lower));
            assert_eq!(lowers.len() as u32, pages / 2);
        }
        let tlc = geometry(Cell::Tlc, 96, 0);
        assert_eq!([3, 4, 5].map(|page| tlc.page_kind(page)), [PageKind::Lower, PageKind::Middle, PageKind::Upper]);
    }

    #[test]
    fn absurd_geometries_are_refused_by_field() {
        let good = geometry(Cell::Tlc, 96, 0);
        good.validate().unwrap();
        let refused = |change: fn(&mut Geometry)| {
            let mut bad = good;
            change(&mut bad);
            bad.validate().unwrap_err().to_string()
        };
        assert!(refused(|g| g.channels = 0).contains("channels is 0"));
        assert!(refused(|g| g.pages_per_block = 97).contains("multiple of 3"));
        assert!(refused(|g| (g.cell, g.paired_distance) = (Cell::Mlc, 5)).contains("multiple of 10"));
        assert!(refused(|g| g.page_bytes = 4097).contains("multiple of 512"));
        assert!(refused(|g| g.spare_bytes = 4097).contains("spare_bytes is 4097"));
        assert!(refused(|g| g.planes_per_die = 17).contains("planes_per_die"));
        assert!(refused(|g| (g.channels, g.packages_per_channel) = (256, 64)).contains("dies"));
        assert!(refused(|g| (g.cell, g.paired_distance) = (Cell::Mlc, 0)).contains("paired_distance is 0"));
        let unknown = "channels = 1\nbogus = 2";
        assert!(toml::from_str::<Geometry>(unknown).is_err());
    }

    #[test]
    fn whole_channels_are_shared_out() {
        let geometry = geometry(Cell::Slc, 64, 0);
        assert_eq!(geometry.share(2).unwrap().dies(), 4);
        assert!(geometry.share(3).unwrap_err().to_string().contains("2 for 3 SPUs"));
        assert_eq!((geometry.channel_of(5), geometry.plane_of(7)), (1, 1));
    }
}
