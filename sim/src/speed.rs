//! How fast simulating is: simulated requests a second of machine time. The one place here that reads the machine's clock.

use crate::preset::{Preset, PresetError};
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::workload::BlockWorkload;
use crate::{Path, Report};
use std::time::{Duration, Instant};
use willow_device::model::parameters::MediaParameters;

/// One measurement.
pub struct Speed {
    /// Requests that were simulated.
    pub requests: u64,
    /// Machine time that simulating them took, without making the device.
    pub elapsed: Duration,
    /// What the simulation found.
    pub report: Report,
}

impl Speed {
    /// Simulated requests a second of machine time.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Simulates `requests` random 4 KiB reads at queue depth 16 on a preset, after a tenth of them to warm up.
pub fn measure(preset: &Preset, native: bool, path: Path, requests: u64, seed: u64) -> Result<Speed, SimulationError> {
    const RANGE_BYTES: u64 = 256 << 20;
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: RANGE_BYTES,
        native,
        seed,
        ..SimulationOptions::new(preset.clone())
    })?;
    let mut run = |name: &str, requests| {
        let workload = BlockWorkload {
            name: name.to_owned(),
            path,
            queue_depth: 16,
            range_bytes: RANGE_BYTES,
            operations: Some(requests),
            seed,
            ..BlockWorkload::default()
        };
        let broken = |what| SimulationError::Workload { workload: name.to_owned(), what };
        let (generator, source) = workload.generator().map_err(broken)?;
        simulation.generator(generator, source)?;
        let began = Instant::now();
        let report = simulation.run()?;
        Ok::<_, SimulationError>((began.elapsed(), report))
    };
    run("warm-up", requests / 10 + 1)?;
    let (elapsed, report) = run("random 4 KiB reads, QD16", requests)?;
    Ok(Speed { requests, elapsed, report })
}

/// Bytes of the requests to flash, and of what its FTL maps as one.
const UNIT_BYTES: u32 = 4096;
/// Requests under way at the same time.
const FLASH_DEPTH: usize = 64;
/// Blocks of a plane of the drive that is measured: as few as let it be written over soon.
const BLOCKS_PER_PLANE: u32 = 128;

/// What is measured of a small drive in its steady state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// With flash behind an FTL, else with memory.
    pub flash: bool,
    /// Under the free clock, else in simulated time.
    pub free: bool,
    /// Its apps, the FTL among them, as native code.
    pub native: bool,
}

/// Preset `slc` with a map of 4 KiB and few blocks; without flash `fast`.
fn small(drive: Drive) -> Result<Preset, PresetError> {
    if !drive.flash {
        return Preset::load("fast");
    }
    let mut preset = Preset::load("slc")?;
    if let Some(MediaParameters::Flash(flash)) = preset.model.as_mut().map(|model| &mut model.media) {
        flash.geometry.planes_per_die = 1;
        flash.geometry.page_bytes = UNIT_BYTES;
        flash.geometry.blocks_per_plane = BLOCKS_PER_PLANE;
    }
    if drive.free {
        preset.host = None;
    }
    Ok(preset)
}

/// Time that this thread has had a processor, whatever else the machine does; the machine's time where the system does not tell.
fn processor_time(since: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let told = text.split(' ').next().and_then(|word| word.parse().ok()).map(Duration::from_nanos);
    told.unwrap_or_else(|| since.elapsed())
}

/// Random requests of 4 KiB, so many in a hundred of them reads, to a small drive all of which is in use: filled, and, where it is written to,
/// written over at random until it is collected as it will be from then on. `elapsed` is processor time.
pub fn measure_drive(drive: Drive, read_percent: u8, requests: u64, seed: u64) -> Result<Speed, SimulationError> {
    let failed = |error: PresetError| SimulationError::Device(error.to_string());
    let preset = small(drive).map_err(failed)?;
    let flash = crate::flash::FlashChoice::of_preset(&preset, None).map_err(failed)?;
    let range_bytes = match &flash {
        Some(flash) => {
            flash.namespace_bytes() / u64::from(crate::precondition::FILL_BYTES)
                * u64::from(crate::precondition::FILL_BYTES)
        }
        None => 256 << 20,
    };
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: range_bytes,
        block_bytes: UNIT_BYTES,
        native: drive.native,
        free: drive.free,
        // Under the free clock payload is moved, as it is for users.
        contents: drive.free,
        seed,
        ..SimulationOptions::new(preset)
    })?;
    simulation.fill(range_bytes)?;
    if read_percent < 100 && flash.is_some() {
        simulation.settle_flash(range_bytes, UNIT_BYTES, seed)?;
    }
    let workload = BlockWorkload {
        name: "measured".to_owned(),
        path: Path::Bare,
        queue_depth: FLASH_DEPTH,
        bytes: UNIT_BYTES,
        read_percent,
        range_bytes,
        operations: Some(requests),
        seed,
        ..BlockWorkload::default()
    };
    let broken = |what| SimulationError::Workload { workload: workload.name.clone(), what };
    let (generator, source) = workload.generator().map_err(broken)?;
    simulation.generator(generator, source)?;
    let since = Instant::now();
    let before = processor_time(since);
    let report = simulation.run()?;
    Ok(Speed { requests, elapsed: processor_time(since) - before, report })
}
