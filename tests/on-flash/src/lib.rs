//! Banks of flash for tests that are written for any medium: preset `jasmine`'s flash behind FTL `page`, as much of it as a test asks for.
//!
//! What always holds: geometry of a die, rules, faults and cells are the preset's; there are fewer channels, ways and blocks.
#![forbid(unsafe_code)]

use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, FlashParameters, Geometry, presets};
use willow_device::media::ram::RamStore;
use willow_device::region::REGION_ALIGNMENT_BYTES;
use willow_device::{BuiltInApp, Store};

/// What banks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// NV memory.
    NvMemory,
    /// Flash of preset `jasmine` behind FTL `page`.
    Flash,
}

impl Medium {
    /// Fresh banks in memory, of that many bytes each, and the apps that they need.
    ///
    /// # Panics
    /// Where this machine's memory is not enough.
    pub fn banks(self, count: u16, bank_bytes: u64) -> (Box<dyn Store>, Vec<BuiltInApp>) {
        let memory = |bytes| Box::new(RamStore::new(count.into(), bytes).expect("a store in memory"));
        match self {
            Medium::NvMemory => (memory(bank_bytes), vec![]),
            Medium::Flash => {
                let (store, ftl) = jasmine(memory(REGION_ALIGNMENT_BYTES), bank_bytes);
                (store, vec![ftl])
            }
        }
    }
}

/// Makes a test on each [`Medium`] of functions that take one.
#[macro_export]
macro_rules! on_each_medium {
    ($($test:ident),+ $(,)?) => {
        mod nv_memory {
            $(#[test] fn $test() { super::$test($crate::Medium::NvMemory) })+
        }
        mod flash {
            $(#[test] fn $test() { super::$test($crate::Medium::Flash) })+
        }
    };
}

/// Over-provisioning, in percent of what hosts get.
const OVER_PROVISIONING_PERCENT: u32 = 10;

/// Flash whose banks have that many bytes at least.
fn parameters(bank_bytes: u64) -> FlashParameters {
    let (_, text) = presets::TEXTS.iter().find(|(name, _)| *name == "jasmine").expect("a preset");
    let mut flash: FlashParameters = toml::from_str(text).expect("a preset can be read");
    flash.geometry = Geometry { channels: 2, packages_per_channel: 1, dies_per_package: 1, ..flash.geometry };
    while offered_bytes(&flash.geometry).is_none_or(|offered| offered < bank_bytes) {
        let more = flash.geometry.blocks_per_plane / 8;
        flash.geometry.blocks_per_plane += more;
    }
    let fewer = |blocks: u32| Geometry { blocks_per_plane: blocks, ..flash.geometry };
    let enough = |blocks: u32| offered_bytes(&fewer(blocks)).is_some_and(|offered| offered >= bank_bytes);
    let (mut few, mut many) = (1, flash.geometry.blocks_per_plane);
    while many - few > 1 {
        let middle = (few + many) / 2;
        (few, many) = if enough(middle) { (few, middle) } else { (middle, many) };
    }
    flash.geometry.blocks_per_plane = many;
    flash
}

/// What the FTL offers on a bank of that shape; `None`: it is too small.
fn offered_bytes(geometry: &Geometry) -> Option<u64> {
    let library = willow_flash::Geometry::of_words(&geometry.words(true));
    let config = page_ftl::FtlConfig::new(&library, 1, OVER_PROVISIONING_PERCENT).ok()?;
    Some(u64::from(config.lane.units) * u64::from(config.lanes(&library)) * unit_bytes(geometry))
}

fn unit_bytes(geometry: &Geometry) -> u64 {
    u64::from(geometry.planes_per_die) * u64::from(geometry.page_bytes)
}

/// A store whose banks, of that many bytes, are fresh flash in memory; metadata and modules go to `metadata`, which has as many banks. The app that
/// serves them goes first among those that are built in.
fn jasmine(metadata: Box<dyn Store>, bank_bytes: u64) -> (Box<dyn Store>, BuiltInApp) {
    let flash = parameters(bank_bytes);
    let arrays = (0..metadata.banks() as u64).map(|bank| Array::in_memory(&flash.geometry, &flash.faults, bank + 1));
    let banks = Banks {
        ftl: "page",
        bank_bytes,
        unit_bytes: unit_bytes(&flash.geometry),
        // Its FTL keeps parts of its log in memory.
        is_volatile: true,
        ftl_forgets: true,
    };
    let store = DelegatingStore::new(metadata, arrays.collect(), &banks);
    (Box::new(store), BuiltInApp::Native(page_spu::native()))
}
