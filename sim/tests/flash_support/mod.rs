//! What tests of flash in simulated time share: a small drive, and threads that write, read back and compare.

#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_device::media::flash::{FlashParameters, Geometry};
use willow_device::model::parameters::MediaParameters;
use willow_sim::{HostThread, Path, Preset, SimulationOptions};

pub const MIB: u64 = 1 << 20;

/// Preset `slc` with as little flash as the FTL can do with, so that collection begins soon.
pub fn small(change: impl FnOnce(&mut FlashParameters)) -> Preset {
    let mut preset = Preset::load("slc").expect("a preset");
    preset.device.spus = 2;
    let Some(MediaParameters::Flash(flash)) = preset.model.as_mut().map(|model| &mut model.media) else {
        panic!("slc has flash");
    };
    flash.geometry = Geometry {
        channels: 2,
        packages_per_channel: 1,
        dies_per_package: 2,
        planes_per_die: 2,
        blocks_per_plane: 80,
        pages_per_block: 16,
        ..flash.geometry
    };
    flash.controller.user_blocks_per_ten_thousand = 8_000;
    change(flash);
    preset
}

pub fn options(preset: Preset, namespace_bytes: u64) -> SimulationOptions {
    SimulationOptions { namespace_bytes, block_bytes: 4096, ..SimulationOptions::new(preset) }
}

/// A number that stands for what was written to a block at a time.
pub fn pattern(block: u64, version: u64) -> Vec<u8> {
    let mut state = (block << 32 | version) ^ 0x9e37_79b9_7f4a_7c15;
    let word = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 32) as u32
    };
    (0..1024).flat_map(|_| word(&mut state).to_le_bytes()).collect()
}

/// A thread's share of the blocks, written over and over in parts of mapping units and read back.
pub async fn check(thread: HostThread, number: u64, reads: Arc<AtomicU64>) -> Result<(), String> {
    const BLOCKS: u64 = 900;
    let first = number * BLOCKS;
    let mut versions = vec![0; BLOCKS as usize];
    let mut state = number + 1;
    for step in 1..=2000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (state >> 33) % BLOCKS;
        let (at, version) = ((first + block) * 4096, &mut versions[block as usize]);
        if (state >> 20) % 10 < 7 {
            thread.write(Path::Raw, at, pattern(first + block, step)).await.map_err(|error| error.to_string())?;
            *version = step;
            continue;
        }
        let found = thread.read(Path::Raw, at, 4096).await.map_err(|error| error.to_string())?;
        let expected = if *version == 0 { vec![0; 4096] } else { pattern(first + block, *version) };
        if found != expected {
            return Err(format!("block {} at step {step}", first + block));
        }
        reads.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
