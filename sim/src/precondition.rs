//! What is written to flash before a measurement, so that this begins with a drive in use.
//!
//! What always holds: same preset, range and seed: same state. It takes simulated time, which no measurement counts.

use crate::host::Path;
use crate::report::{FlashReport, Report};
use crate::simulation::{Simulation, SimulationError};
use crate::workload::BlockWorkload;

/// Bytes of an operation that fills.
pub(crate) const FILL_BYTES: u32 = 256 << 10;
/// Operations under way meanwhile.
const FILL_DEPTH: usize = 64;
/// Rounds of random writes after which the state is taken as it is.
const ROUNDS_MAX: usize = 64;
/// The write amplification of two rounds that differs by no more stays.
const STEADY: f64 = 0.02;

impl Simulation {
    fn write(&mut self, workload: &BlockWorkload) -> Result<Report, SimulationError> {
        let broken = |what: String| SimulationError::Workload { workload: workload.name.clone(), what };
        let (generator, source) = workload.generator().map_err(broken)?;
        self.generator(generator, source)?;
        self.run()
    }

    /// Writes the first `range_bytes` of the block namespace, in order, but for a piece at the end that is shorter than [`FILL_BYTES`].
    pub fn fill(&mut self, range_bytes: u64) -> Result<(), SimulationError> {
        let whole = range_bytes / u64::from(FILL_BYTES) * u64::from(FILL_BYTES);
        let workload = BlockWorkload {
            name: "fill".to_owned(),
            path: Path::Bare,
            queue_depth: FILL_DEPTH,
            bytes: FILL_BYTES,
            read_percent: 0,
            range_bytes: whole,
            sequential: true,
            operations: Some(whole / u64::from(FILL_BYTES)),
            ..BlockWorkload::default()
        };
        if whole > 0 {
            self.write(&workload)?;
        }
        Ok(())
    }

    /// Writes at random over the range until the flash is collected as it will be from then on: the write amplification of a round is that of
    /// the round before.
    pub fn settle_flash(&mut self, range_bytes: u64, bytes: u32, seed: u64) -> Result<(), SimulationError> {
        let mut before: Option<FlashReport> = None;
        for round in 0..ROUNDS_MAX {
            let workload = BlockWorkload {
                name: "settle".to_owned(),
                path: Path::Bare,
                queue_depth: FILL_DEPTH,
                bytes,
                read_percent: 0,
                range_bytes,
                operations: Some((range_bytes / u64::from(bytes) / 4).max(1)),
                seed: seed.wrapping_add(1 + round as u64),
                ..BlockWorkload::default()
            };
            let Some(flash) = self.write(&workload)?.flash else { return Ok(()) };
            let collected = before.as_ref().is_some_and(|before| before.erases > 0) && flash.erases > 0;
            let (old, new) = (before.map_or(0.0, |before| before.write_amplification), flash.write_amplification);
            if collected && (new / old - 1.0).abs() < STEADY {
                return Ok(());
            }
            before = Some(flash);
        }
        Ok(())
    }
}
