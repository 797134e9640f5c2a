//! How much memory a terabyte of flash without contents takes, written over with headers as the SDK's flash library writes them:
//! `cargo run --release -p willow-flash-media --example memory`.

use willow_flash::header::{COPIED, Header, Kind, Previous};
use willow_flash_media::{Array, FlashParameters, PageAddress, ProgramPage, presets};

/// Logical pages of a lane.
const UNITS: u32 = 120_000;

/// Memory that the process has, from the system.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

fn main() {
    let (_, text) = presets::TEXTS.into_iter().find(|(name, _)| *name == "tlc").expect("it is one");
    let parameters: FlashParameters = toml::from_str(text).expect("a good preset");
    let geometry = parameters.geometry;
    let mut array = Array::headers_only(&geometry, &parameters.faults, 1);
    let lanes = geometry.planes_per_die / 2;
    let mut state = 1u64;
    let mut previous = vec![Previous::NOTHING; (geometry.dies() * lanes) as usize];
    let mut units = 0u64;
    // Units of 32 KiB: two planes of a die share a logical page, and blocks of all dies fill at the same time. Every second row is what collection
    // moved: of any age.
    for row in 0..geometry.blocks_per_plane {
        for page in 0..geometry.pages_per_block {
            for (place, before) in (0..geometry.dies() * lanes).zip(&mut previous) {
                let (die, lane) = (place / lanes, place % lanes);
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let address = row * geometry.pages_per_block + page;
                let sequence = if row % 2 == 0 { address.into() } else { COPIED | (state % u64::from(address)) };
                let logical = (state >> 33) as u32 % UNITS;
                let header =
                    Header { kind: Kind::Data, logical, sequence, block_sequence: row, part: 0, previous: *before };
                *before = Previous { logical, sequence, address, block_sequence: row };
                let headers = [0, 1].map(|part| Header { part, ..header }.encode());
                let pages = [0, 1].map(|part| ProgramPage {
                    at: PageAddress { block: row * geometry.planes_per_die + lane * 2 + part, page },
                    data: &[],
                    spare: &headers[part as usize],
                    metadata: false,
                });
                array.program(die, &pages).expect("in memory");
                units += 1;
            }
        }
    }
    println!(
        "{:.2} TB of flash, {:.1} million units of 32 KiB: {:.0} MB for the medium ({:.1} bytes a unit), {:.0} MB resident",
        geometry.bytes() as f64 / 1e12,
        units as f64 / 1e6,
        array.held_bytes() as f64 / 1e6,
        array.held_bytes() as f64 / units as f64,
        resident_bytes() as f64 / 1e6
    );
}
