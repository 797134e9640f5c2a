//! The power goes in the midst of simulated time, and comes back.
//!
//! What always holds:
//! - what the flash's arrays were changing at that moment ends in the middle, as the cut says, page by page; what the model says was done is there, and
//!   what had not begun is not. Nothing but the flash and the device's metadata outlives the cut, neither of the device nor of the host;
//! - the simulation after it is one of its own, whose time begins when the power comes back. Same preset, workload, seed and moment: the same.
//!
//! Not modelled: what a device does before its processors run their apps, and capacitors that have it finish what it has begun.

use super::*;
use crate::random::Random;
use willow_device::media::flash::CutOutcome;

/// How a power cut ends what the arrays were changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Each page and each block by a random number: not begun, in the middle, in the middle and looking erased, or just done.
    Random(u64),
    /// All of them like this.
    All(CutOutcome),
}

/// What a power cut did, and how long the device took to be ready again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CutReport {
    /// When it was, nanoseconds since the run that it ended began.
    pub at_ns: u64,
    /// Pages that were being programmed.
    pub programming_pages: u64,
    /// Blocks that were being erased.
    pub erasing_blocks: u64,
    /// Simulated time from when the power is back until the FTL answers on all SPUs, nanoseconds.
    pub ready_ns: u64,
}

impl Simulation {
    /// Runs for so many nanoseconds, or until all threads and generators have ended where that is sooner. What is under way then stays so, to be cut; the
    /// report tells nothing of write amplification.
    pub fn run_for(&mut self, duration_ns: u64) -> Result<Report, SimulationError> {
        self.run_at_most(Some(duration_ns))
    }

    /// The power goes now, and comes back: the device is opened anew on what its flash holds, beside a host that has just started.
    pub fn cut_power(self, cut: Cut) -> Result<(Simulation, CutReport), SimulationError> {
        let plan = Plan::of(&self.options)?;
        if plan.flash.is_none() || !self.timed {
            let what = "only flash in modelled time has a power to cut: choose a preset with flash".to_owned();
            return Err(SimulationError::Device(what));
        }
        let now_ns = self.now_ns();
        let at_ns = now_ns - self.run_began_ns;
        let Simulation { device, mut options, .. } = self;
        let mut random = match cut {
            Cut::Random(seed) => Random(seed),
            Cut::All(_) => Random(0),
        };
        let mut outcome = || match cut {
            Cut::All(outcome) => outcome,
            Cut::Random(_) => CutOutcome::ALL[random.below(CutOutcome::ALL.len() as u64) as usize],
        };
        let (store, found) =
            device.cut_power(now_ns, &mut outcome).map_err(|error| SimulationError::Device(error.to_string()))?;
        // Its times begin anew.
        options.trace = options.trace.map(|_| Trace::new());
        let mut simulation = Simulation::open(&options, plan, store)?;
        simulation.find_ftl()?;
        simulation.flash_counts()?;
        let ready_ns = simulation.now_ns();
        simulation.settle()?;
        simulation.find_targets();
        simulation.open_process();
        let report = CutReport { at_ns, programming_pages: found.pages, erasing_blocks: found.blocks, ready_ns };
        Ok((simulation, report))
    }
}
