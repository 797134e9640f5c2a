//! How long an eighth of a terabyte takes to be ready again, in simulated time: an SPU of preset `tlc` with its channel, sixteen dies and the FTL in the
//! sandbox, filled and partly written over at random. The drive's other SPUs do the same beside it and share nothing with it.
//!
//! `cargo run --release -p willow-sim --example ready [GIGABYTES]`: the flash is cut down to about so many; 0, the default: it is not.

use willow_device::model::parameters::MediaParameters;
use willow_sim::flash::FlashChoice;
use willow_sim::{BlockWorkload, Path, Preset, Simulation, SimulationOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gigabytes: u32 = std::env::args().nth(1).map_or(Ok(0), |word| word.parse())?;
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
        // Some way into what follows a checkpoint.
        operations: Some(bytes / unit / 5),
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator()?;
    simulation.generator(generator, source)?;
    simulation.run()?;
    // A replacement waits until the old FTL has collected as much as it wants to; a cut does not.
    simulation.host_thread("idle", |thread| async move { thread.sleep(600_000_000_000).await })?;
    simulation.run()?;
    let ready_ns = simulation.restart_ftl(&choice.ftl)?;
    println!(
        "{:.1} GB of a drive of eight times as many, units of {unit} bytes: ready again after {:.3} s of simulated time; {:.0} MB held for contents",
        bytes as f64 / 1e9,
        ready_ns as f64 / 1e9,
        simulation.flash_held_bytes().unwrap_or(0) as f64 / 1e6
    );
    Ok(())
}
