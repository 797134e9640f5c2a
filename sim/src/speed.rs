//! How fast simulating is: simulated requests a second of machine time. The one place here that reads the machine's clock.

use crate::preset::Preset;
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::workload::BlockWorkload;
use crate::{Path, Report};
use std::time::{Duration, Instant};

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
