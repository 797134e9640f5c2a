//! Devices that are saved in a file, and that start from one ([`crate::snapshot`]).
//!
//! What always holds: a device is saved at rest, after all that was written has been made durable, so that its FTL recovers at once and
//! nothing is lost. A device that starts from a snapshot has a time of its own: the snapshot says nothing of what it took to come about.

use super::*;
use crate::operation::Operation;
use crate::snapshot::{Snapshot, SnapshotHead, write};
use crate::{GeneratorOptions, Next};
use willow_device::media::flash::CutOutcome;

/// Makes durable what was written.
struct OneFlush(bool);

impl Source for OneFlush {
    fn next(&mut self, _now_ns: u64, _thread: usize) -> Next {
        if std::mem::replace(&mut self.0, true) { Next::End } else { Next::Now(Operation::Flush) }
    }
}

impl Simulation {
    /// Saves the device, whose flash takes modelled time, when it has come to rest; the first `range_bytes` of its block namespace were written.
    pub fn save(mut self, path: &std::path::Path, range_bytes: u64) -> Result<(), SimulationError> {
        let failed = |error: &dyn std::fmt::Display| SimulationError::Device(error.to_string());
        let plan = Plan::of(&self.options)?;
        let Some(flash) = plan.flash.filter(|_| self.timed && self.block.is_some()) else {
            return Err(failed(&"snapshots are of block namespaces on flash: choose a preset with flash"));
        };
        let options = GeneratorOptions {
            name: "flush".to_owned(),
            path: Path::Bare,
            threads: 1,
            queue_depth: 1,
            warm_up_ns: 0,
            duration_ns: None,
            file_a_thread: false,
        };
        self.generator(options, Box::new(OneFlush(false)))?;
        self.run()?;
        self.settle()?;
        let head = SnapshotHead {
            preset: self.options.preset.name.clone(),
            ftl: flash.ftl.clone(),
            seed: self.options.seed,
            namespace_bytes: self.options.namespace_bytes,
            block_bytes: self.options.block_bytes,
            range_bytes,
            contents: self.options.contents,
            banks: flash.banks,
            bank_bytes: flash.bank_bytes,
            unit_bytes: flash.unit_bytes,
            geometry: flash.parameters.geometry,
        };
        // Nothing is under way that it could meet.
        let now_ns = self.now_ns();
        let (mut store, _) =
            self.device.cut_power(now_ns, &mut || CutOutcome::Complete).map_err(|error| failed(&error))?;
        write(path, &head, &mut *store).map_err(|error| failed(&error))
    }

    /// Device and host as [`Simulation::new`] makes them, with the device's flash and metadata as they were saved. Sizes, contents and the device's
    /// seed are the snapshot's; preset, FTL and whether apps run natively are the options'.
    pub fn restore(options: &SimulationOptions, snapshot: Snapshot) -> Result<Simulation, SimulationError> {
        let failed = |error: &dyn std::fmt::Display| SimulationError::Device(error.to_string());
        let options = SimulationOptions {
            namespace_bytes: snapshot.head.namespace_bytes,
            block_bytes: snapshot.head.block_bytes,
            kv_namespace_bytes: 0,
            contents: snapshot.head.contents,
            seed: snapshot.head.seed,
            ..options.clone()
        };
        let flash = FlashChoice::of_preset(&options.preset, options.ftl.as_deref()).map_err(|error| failed(&error))?;
        snapshot.check(flash.as_ref(), &options.preset.name).map_err(|error| failed(&error))?;
        let plan = Plan::of(&options)?;
        let Some(flash) = &plan.flash else { return Err(failed(&"the preset has no flash")) };
        let metadata =
            RamStore::new(usize::from(flash.banks), REGION_ALIGNMENT_BYTES).map_err(|error| failed(&error))?;
        let contents = if options.contents { Contents::Memory } else { Contents::Nowhere };
        let store = snapshot.store(flash, Box::new(metadata), contents).map_err(|error| failed(&error))?;
        Simulation::start(&options, plan, store)
    }
}
