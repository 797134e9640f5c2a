//! The papers' experiments, one file each: what was run, on which preset, and what it gave. `willow reproduce` runs them.
//!
//! What always holds: an experiment changes no parameter of its preset but the one that it varies and names; its figures carry the ids
//! of the published ones (sim/published.toml); its notes say what is modelled otherwise than it was measured.
//!
//! A new experiment is a new file here with a constant `EXPERIMENT`, which stands in the list `EXPERIMENTS`.

mod access;
mod atomic_write;
mod base_io;
mod btree;
mod fft;
mod fgrep;
mod greedy;
mod key_value;
mod latency;
mod lightnvm;
mod lightnvm_null_block;
mod openssd_writes;
mod saxpy;
mod technology;
mod xssd_kvs;

use crate::preset::{Preset, PresetError};
use crate::report::Report;
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::workload::{BlockWorkload, KvWorkload};
use std::path::PathBuf;
use willow_device::clock::Accelerator;

/// All of them.
pub static EXPERIMENTS: &[&Experiment] = &[
    &access::EXPERIMENT,
    &atomic_write::EXPERIMENT,
    &base_io::EXPERIMENT,
    &btree::EXPERIMENT,
    &fft::EXPERIMENT,
    &fgrep::EXPERIMENT,
    &greedy::EXPERIMENT,
    &key_value::EXPERIMENT,
    &latency::EXPERIMENT,
    &lightnvm::EXPERIMENT,
    &lightnvm_null_block::EXPERIMENT,
    &openssd_writes::EXPERIMENT,
    &saxpy::EXPERIMENT,
    &technology::EXPERIMENT,
    &xssd_kvs::EXPERIMENT,
];

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The simulation.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A preset.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// An experiment.
pub struct Experiment {
    /// Name on the command line.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Paper and place.
    pub source: &'static str,
    /// Preset that it runs on, unless another is asked for.
    pub preset: &'static str,
    /// Runs it.
    pub run: fn(&Laboratory) -> Result<Findings, ExperimentError>,
}

/// One modelled figure beside a published one.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Id of the published result.
    pub id: &'static str,
    /// Metric of it.
    pub metric: &'static str,
    /// What the model gives.
    pub modelled: f64,
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Points, in order of x.
    pub points: Vec<(f64, f64)>,
    /// Published points are drawn as marks alone, modelled ones as a line with marks.
    pub published: bool,
}

/// What a plot shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Drawing {
    /// Lines over a number.
    Lines {
        /// Lines.
        series: Vec<Series>,
        /// Powers of two are equally far apart on the x axis.
        log_x: bool,
        /// Powers of ten are equally far apart on the y axis.
        log_y: bool,
    },
    /// Bars, each made of parts that are stacked in the order of `parts`.
    Bars {
        /// Names of the parts.
        parts: Vec<String>,
        /// Bars: name, then a value for each part.
        bars: Vec<(String, Vec<f64>)>,
    },
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name of its file, without ending.
    pub file: &'static str,
    /// Title.
    pub title: String,
    /// What x is.
    pub x: String,
    /// What y is.
    pub y: String,
    /// What is drawn.
    pub drawing: Drawing,
}

/// What an experiment gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Figures.
    pub findings: Vec<Finding>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// What is to be known about them, a sentence each.
    pub notes: Vec<String>,
}

impl Findings {
    pub(crate) fn find(&mut self, id: &'static str, metric: &'static str, modelled: f64) {
        self.findings.push(Finding { id, metric, modelled });
    }
}

/// Where experiments are run.
pub struct Laboratory {
    /// The preset.
    pub preset: Preset,
    /// Seed of all workloads.
    pub seed: u64,
    /// The only figure that is wanted (id, metric): an experiment may leave out what does not lead to it.
    pub only: Option<(String, String)>,
    /// As [`SimulationOptions::kept_modules`].
    pub kept_modules: Option<PathBuf>,
    /// Apps run as native code: where state machines stand for processors ([`Laboratory::in_hardware`]).
    native: bool,
}

/// A workload for [`Laboratory::measure`].
pub enum Work<'a> {
    /// Reads and writes.
    Block(&'a BlockWorkload),
    /// Gets and puts; the pairs are loaded first.
    Pairs(&'a KvWorkload),
}

impl Laboratory {
    /// On a preset.
    pub fn new(preset: Preset, seed: u64) -> Self {
        Laboratory { preset, seed, only: None, kept_modules: None, native: false }
    }

    /// True where a figure is wanted.
    pub fn wants(&self, id: &str, metric: &str) -> bool {
        self.only.as_ref().is_none_or(|(only_id, only_metric)| only_id == id && only_metric == metric)
    }

    /// A parameter of the workloads that the papers did not print, from the preset's table `[workload]`.
    pub fn workload(&self, name: &str) -> Result<f64, ExperimentError> {
        let path = format!("workload.{name}");
        let missing = || ExperimentError::Other(format!("preset {} has no parameter {path}", self.preset.name));
        self.preset.parameter(&path).ok_or_else(missing)
    }

    /// Options of a simulation on the preset, apps in the sandbox (but for [`Laboratory::in_hardware`]), a block namespace of 64 MiB.
    pub fn options(&self) -> SimulationOptions {
        SimulationOptions {
            namespace_bytes: 64 << 20,
            seed: self.seed,
            native: self.native,
            kept_modules: self.kept_modules.clone(),
            ..SimulationOptions::new(self.preset.clone())
        }
    }

    /// Runs one workload in a simulation of its own.
    pub fn measure(&self, options: &SimulationOptions, work: &Work<'_>) -> Result<Report, ExperimentError> {
        let broken = |what: String| SimulationError::Workload { workload: "experiment".to_owned(), what };
        match work {
            Work::Block(workload) => {
                let mut simulation = Simulation::new(options)?;
                let workload = BlockWorkload { seed: self.seed, ..(*workload).clone() };
                let (generator, source) = workload.generator().map_err(broken)?;
                simulation.generator(generator, source)?;
                Ok(simulation.run()?)
            }
            Work::Pairs(workload) => {
                let mut simulation = Simulation::new(options)?;
                let load = KvWorkload {
                    name: "load".to_owned(),
                    load: true,
                    threads: 1,
                    queue_depth: 16,
                    seed: self.seed,
                    ..(*workload).clone()
                };
                let (generator, source) = load.generator().map_err(broken)?;
                simulation.generator(generator, source)?;
                simulation.run()?;
                let workload = KvWorkload { seed: self.seed, ..(*workload).clone() };
                let (generator, source) = workload.generator().map_err(broken)?;
                simulation.generator(generator, source)?;
                Ok(simulation.run()?)
            }
        }
    }
}

/// What is said of versions in hardware.
pub(crate) const HARDWARE_NOTE: &str = "HW is modelled by the same app's steps, taken by a state machine in the place of the SPU's processor: 4 \
    states at 250 MHz for each command, end of a wait, message, DMA and permission, no instructions, and the power of an accelerator, while \
    the processor rests. The number of states is ours. What accelerators compare takes the time that it takes in the RPC version.";

/// States that a state machine goes through for each step; ours.
const STATES: f64 = 4.0;

impl Laboratory {
    /// The same with the SPUs' processors replaced, for what apps do, by state machines in hardware: an accelerator that takes the command, drives
    /// its own DMA and replies. Apps run natively on it, since nothing of them is instructions then.
    pub fn in_hardware(&self) -> Result<Laboratory, ExperimentError> {
        self.in_hardware_of(Accelerator::Literals)
    }

    /// The same, as part of an accelerator: the state machine has its clock and its power.
    pub fn in_hardware_of(&self, accelerator: Accelerator) -> Result<Laboratory, ExperimentError> {
        let name = accelerator.name();
        let mut preset = self.preset.clone();
        let parameter = |preset: &Preset, path: &str| {
            let missing = || ExperimentError::Other(format!("preset {} has no parameter {path}", preset.name));
            preset.parameter(path).ok_or_else(missing)
        };
        // As fast as the accelerators.
        preset.set_parameter("spu.clock_hz", parameter(&preset, &format!("accelerator.{name}.clock_hz"))?)?;
        preset.set_parameter("spu.native_run_instructions", 0.0)?;
        for step in ["dispatch", "resume", "send", "dma_set_up", "permission_check"] {
            preset.set_parameter(&format!("spu.{step}_cycles"), STATES)?;
        }
        // The processor rests, and the state machine works.
        let rest_w = parameter(&preset, "power.spu_processor.idle_w")?;
        for state in ["idle_w", "active_w"] {
            let own_w = preset.parameter(&format!("accelerator.{name}.power.{state}"));
            let machine_w = own_w.map_or_else(|| parameter(&preset, &format!("power.accelerator.{state}")), Ok)?;
            preset.set_parameter(&format!("power.spu_processor.{state}"), rest_w + machine_w)?;
        }
        let (only, kept_modules) = (self.only.clone(), self.kept_modules.clone());
        Ok(Laboratory { preset, seed: self.seed, only, kept_modules, native: true })
    }
}

/// The experiment of that id.
pub fn find(id: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.id == id).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_differs_from_the_preset_in_the_processors_alone() {
        let laboratory = Laboratory::new(Preset::load("bee3").unwrap(), 1);
        let hardware = laboratory.in_hardware().unwrap();
        assert!(hardware.options().native && !laboratory.options().native);
        let value = |of: &Laboratory| serde_json::to_value(of.preset.model.as_ref().unwrap()).unwrap();
        let (mut before, mut after) = (value(&laboratory), value(&hardware));
        assert_ne!(before, after);
        let watts = |of: &serde_json::Value, part: &str, state: &str| of["power"][part][state].as_f64().unwrap();
        for state in ["idle_w", "active_w"] {
            let expected = watts(&before, "spu_processor", "idle_w") + watts(&before, "accelerator", state);
            assert!((watts(&after, "spu_processor", state) - expected).abs() < 1e-12);
        }
        for of in [&mut before, &mut after] {
            of["spu"] = serde_json::Value::Null;
            of["power"]["spu_processor"] = serde_json::Value::Null;
        }
        assert_eq!(before, after);
        assert_eq!(
            (&laboratory.preset.host, &laboratory.preset.workload),
            (&hardware.preset.host, &hardware.preset.workload)
        );
    }

    #[test]
    fn ids_are_of_one_experiment_each_and_presets_exist() {
        let mut ids: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.id).collect();
        assert!(ids.len() >= 6);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), EXPERIMENTS.len());
        assert!(EXPERIMENTS.iter().all(|experiment| Preset::text(experiment.preset).is_some()));
        assert!(find("nothing").is_none() && ids.iter().all(|id| find(id).is_some()));
    }
}
