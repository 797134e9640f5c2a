//! Write amplification of the FTL `page` under uniform random writes, beside the closed form for greedy cleaning: P. Desnoyers, "Analytic Modeling of
//! SSD Write Performance", SYSTOR 2012, equation 12.
//!
//! # What is compared with what
//! The closed form knows blocks of data alone. So over-provisioning is what the data blocks hold beyond what the host writes, in percent of that: blocks
//! that the FTL has for its log, checkpoints and anchors, blocks that it keeps free, and those that replace bad ones do not count. The
//! modelled figure is pages of data programmed for each page that the host wrote: its own and those that collection moved.
//!
//! # What is changed of the preset
//! One die of one plane, so that a mapping unit is a page and a single lane has all blocks; collection begins as late as the FTL allows. The closed form
//! is for many blocks: there are 2,048.

use super::{Experiment, ExperimentError, Findings, Laboratory};
use crate::flash::FlashChoice;
use crate::host::Path;
use crate::preset::Preset;
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::workload::BlockWorkload;
use willow_device::model::parameters::MediaParameters;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "greedy-amplification",
    title: "write amplification of greedy collection under uniform random writes",
    source: "Desnoyers, SYSTOR 2012, equation 12",
    preset: "slc",
    run,
};

const ID: &str = "greedy-amplification";
/// Over-provisioning in percent, and the metrics' names.
const PERCENTS: [(u32, &str); 3] = [(7, "7_percent"), (15, "15_percent"), (28, "28_percent")];
const BLOCKS: u32 = 2048;
const PAGES: u32 = 64;
const PAGE_BYTES: u32 = 4096;
/// Host writes for each page until the steady state, and those that are measured.
const TURNS: [u64; 2] = [4, 2];
/// Free blocks below which collection begins: the least that the FTL allows.
const COLLECT_BELOW: u32 = 3;
/// Of ten thousand blocks of data, those that the FTL may offer: more than are written.
const OFFERED_PER_TEN_THOUSAND: u32 = 9_800;

/// The preset's flash with that many blocks, and the bytes that the host writes to at an over-provisioning.
fn drive(preset: &Preset, blocks: u32, percent: u32) -> Result<(Preset, u64), ExperimentError> {
    let mut preset = preset.clone();
    preset.device.spus = 1;
    let Some(MediaParameters::Flash(flash)) = preset.model.as_mut().map(|model| &mut model.media) else {
        return Err(ExperimentError::Other(format!("preset {} has no flash", preset.name)));
    };
    let geometry = &mut flash.geometry;
    (geometry.channels, geometry.packages_per_channel, geometry.dies_per_package) = (1, 1, 1);
    (geometry.planes_per_die, geometry.blocks_per_plane) = (1, blocks);
    (geometry.pages_per_block, geometry.page_bytes) = (PAGES, PAGE_BYTES);
    flash.faults.factory_bad_per_million = 0;
    flash.controller.collect_below_blocks = COLLECT_BELOW;
    flash.controller.user_blocks_per_ten_thousand = OFFERED_PER_TEN_THOUSAND;
    let choice = FlashChoice::of_preset(&preset, None)?;
    let choice = choice.ok_or_else(|| ExperimentError::Other("there is no flash".to_owned()))?;
    let library = willow_flash::Geometry::of_words(&choice.parameters.geometry.words(false));
    let mut config = page_ftl::FtlConfig::collecting(&library, 1, 0, COLLECT_BELOW)
        .map_err(|why| ExperimentError::Other(why.to_owned()))?;
    config.lane.units = (choice.bank_bytes / u64::from(PAGE_BYTES)) as u32;
    let own = config.lane.replacement_blocks
        + config.lane.anchors
        + config.lane.metadata_blocks(&config.layout(&library, 0))
        + COLLECT_BELOW;
    let pages = u64::from(blocks - own) * u64::from(PAGES) * 100 / u64::from(100 + percent);
    Ok((preset, pages * u64::from(PAGE_BYTES)))
}

/// Pages of data programmed for each that the host wrote.
fn measure(laboratory: &Laboratory, blocks: u32, percent: u32, turns: [u64; 2]) -> Result<f64, ExperimentError> {
    let (preset, range_bytes) = drive(&laboratory.preset, blocks, percent)?;
    let pages = range_bytes / u64::from(PAGE_BYTES);
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: range_bytes,
        block_bytes: PAGE_BYTES,
        contents: false,
        seed: laboratory.seed,
        ..SimulationOptions::new(preset)
    })?;
    simulation.fill(range_bytes)?;
    let mut amplification = 0.0;
    for (turns, place) in turns.into_iter().zip(1..) {
        let workload = BlockWorkload {
            name: "random".to_owned(),
            path: Path::Bare,
            queue_depth: 16,
            bytes: PAGE_BYTES,
            read_percent: 0,
            range_bytes,
            operations: Some(turns * pages),
            seed: laboratory.seed.wrapping_add(place),
            ..BlockWorkload::default()
        };
        let broken = |what: String| SimulationError::Workload { workload: workload.name.clone(), what };
        let (generator, source) = workload.generator().map_err(broken)?;
        simulation.generator(generator, source)?;
        amplification = simulation.run()?.flash.map_or(0.0, |flash| 1.0 + flash.by_collection);
    }
    Ok(amplification)
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    for (percent, metric) in PERCENTS {
        if laboratory.wants(ID, metric) {
            findings.find(ID, metric, measure(laboratory, BLOCKS, percent, TURNS)?);
        }
    }
    findings.notes.push(format!(
        "One lane of {BLOCKS} blocks of {PAGES} pages; {} host writes for each page before the {} that are counted.",
        TURNS[0], TURNS[1]
    ));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use willow_flash::prediction;

    /// What stands in published.toml is what the closed form gives.
    #[test]
    fn published_is_what_the_closed_form_gives() {
        for (percent, metric) in PERCENTS {
            let figure = published::figure(ID, metric).expect("it is in the file");
            let predicted = prediction::greedy(1.0 + f64::from(percent) / 100.0, PAGES.into());
            assert!((figure.value - predicted).abs() < 0.0005, "{metric}: {predicted}");
        }
    }

    /// With fewer blocks and fewer writes than the experiment has, further off than it, and still close.
    #[test]
    fn a_small_drive_is_near_the_closed_form() {
        let laboratory = Laboratory::new(Preset::load(EXPERIMENT.preset).expect("a preset"), 1);
        let modelled = measure(&laboratory, 128, 28, [3, 1]).expect("it runs");
        let predicted = prediction::greedy(1.28, PAGES.into());
        assert!((modelled / predicted - 1.0).abs() < 0.15, "{modelled} for {predicted}");
    }
}
