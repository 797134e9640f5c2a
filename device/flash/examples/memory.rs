//! How much memory a terabyte of flash without contents takes, written over with headers as the SDK's flash library writes them:
//! `cargo run --release -p willow-flash-media --example memory`.

use willow_flash_media::{Array, FlashParameters, PageAddress, ProgramPage, presets};

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
    let planes = geometry.planes_per_die;
    let (mut state, mut sequence) = (1u64, 0u64);
    // Units of 32 KiB: two planes of a die share a logical page, and blocks of all dies fill at the same time.
    for row in 0..geometry.blocks_per_plane {
        for page in 0..geometry.pages_per_block {
            for die in 0..geometry.dies() {
                for pair in 0..planes / 2 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let logical = (state >> 33) as u32 % 32_000_000;
                    sequence += 1;
                    let headers = [0, 1].map(|part: u32| {
                        let mut header = [0; 32];
                        (header[0], header[1]) = (1, 1);
                        header[4..8].copy_from_slice(&logical.to_le_bytes());
                        header[8..16].copy_from_slice(&sequence.to_le_bytes());
                        header[16..20].copy_from_slice(&row.to_le_bytes());
                        header[20..24].copy_from_slice(&part.to_le_bytes());
                        let sum = crc32fast::hash(&header[..28]);
                        header[28..].copy_from_slice(&sum.to_le_bytes());
                        header
                    });
                    let pages = [0, 1].map(|part| ProgramPage {
                        at: PageAddress { block: row * planes + pair * 2 + part, page },
                        data: &[],
                        spare: &headers[part as usize],
                        metadata: false,
                    });
                    array.program(die, &pages).expect("in memory");
                }
            }
        }
    }
    println!(
        "{:.2} TB of flash, {} million pages of {} bytes: {:.0} MB for the medium, {:.0} MB resident",
        geometry.bytes() as f64 / 1e12,
        array.statistics().programs / 1_000_000,
        geometry.page_bytes,
        array.held_bytes() as f64 / 1e6,
        resident_bytes() as f64 / 1e6
    );
}
