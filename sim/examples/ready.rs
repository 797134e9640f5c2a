//! How long an eighth of a terabyte takes to be ready again after a cut of the power, in simulated time: an SPU of preset `tlc` with its channel, sixteen dies and
//! the FTL in the sandbox, filled and then written over at random, so that it collects when the power goes. The drive's other SPUs do the same beside it and share
//! nothing with it.
//!
//! `cargo run --release -p willow-sim --example ready [GIGABYTES [PERCENT]]`: the flash is cut down to about so many (0, the default: it is not), and so many in a hundred
//! of its units are written over (20).

use willow_device::model::parameters::MediaParameters;
use willow_sim::flash::FlashChoice;
use willow_sim::{BlockWorkload, Cut, Path, Preset, Simulation, SimulationOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gigabytes: u32 = std::env::args().nth(1).map_or(Ok(0), |word| word.parse())?;
    let percent: u64 = std::env::args().nth(2).map_or(Ok(20), |word| word.parse())?;
    let mut preset = Preset::load("tlc")?;
    preset.device.spus = 1;
    let Some(MediaParameters::Flash(flash)) = preset.model.as_mut().map(|model| &mut model.media) else {
        return Err("tlc has no flash".into());
    };
    flash.geometry.channels = 1;
    if gigabytes > 0 {
        let row = u64::from(flash.geometry.dies() * flash.geometry.planes_per_die)
            * u64::from(flash.geometry.pages_per_block)
            * u64::from(flash.geometry.page_bytes);
        flash.geometry.blocks_per_plane = (u64::from(gigabytes) * 1_000_000_000).div_ceil(row) as u32;
    }
    let choice = FlashChoice::of_preset(&preset, None)?.ok_or("no flash")?;
    let bytes = choice.namespace_bytes();
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: bytes,
        block_bytes: 4096,
        contents: false,
        ..SimulationOptions::new(preset)
    })?;
    simulation.fill(bytes)?;
    let unit = choice.unit_bytes;
    let workload = BlockWorkload {
        path: Path::Bare,
        queue_depth: 64,
        bytes: unit as u32,
        read_percent: 0,
        range_bytes: bytes,
        operations: Some(bytes / unit * percent / 100),
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator()?;
    simulation.generator(generator, source)?;
    simulation.run()?;
    // In the midst of more of the same.
    let more = BlockWorkload { operations: None, duration_ns: Some(3_600_000_000_000), seed: 2, ..workload };
    let (generator, source) = more.generator()?;
    simulation.generator(generator, source)?;
    simulation.run_for(50_000_000)?;
    let (mut simulation, cut) = simulation.cut_power(Cut::Random(1))?;
    println!(
        "{:.1} GB of a drive of eight times as many, units of {unit} bytes: {} pages were being programmed and {} blocks erased; ready again after {:.3} s of simulated \
         time; {:.0} MB held for contents",
        bytes as f64 / 1e9,
        cut.programming_pages,
        cut.erasing_blocks,
        cut.ready_ns as f64 / 1e9,
        simulation.flash_held_bytes().unwrap_or(0) as f64 / 1e6
    );
    Ok(())
}
