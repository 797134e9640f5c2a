//! OpenSSD, table 2: random and sequential writes on the board's reference FTL, by request size.
//!
//! # What is fitted
//! Nothing of this experiment. The only figure of the table that may be fitted to is that of 32 kB; what bounds it, the rate of a channel's bus, is
//! fitted to another source: the board's developers' own measurement of reads (presets/flash/jasmine.toml). So 32 kB is a prediction like the others.
//!
//! # What the paper does not print, and what stands here for it
//! These are what the programs of the time do by themselves. They were chosen by somebody who knew the published figures and had compared some
//! alternatives with them (how much of the file fio covers, alignment, depth), so that the checks are no blind predictions:
//! - fio goes to each block of the file once, in random order (its default), with the file on an empty device;
//! - the writes go through the page cache: its writeback has 1,024 pages under way at a time (Linux 2.6.33, `MAX_WRITEBACK_PAGES`);
//! - the partition begins at a boundary of virtual pages.
//!
//! Instead of the paper's 8 GB the file has 512 MiB: how often a write finds its virtual page mapped depends on the share of the file that is written,
//! not on its size. A rate counts all time until the last page is programmed, not until it is in the drive's buffer.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series};
use crate::host::Path;
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::workload::BlockWorkload;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "openssd-table2",
    title: "writes a second of the OpenSSD board's reference FTL, by request size",
    source: "OpenSSD 3.1, table 2",
    preset: "jasmine",
    run,
};

const ID: &str = "openssd-table2";
const RANDOM: [(u32, &str); 8] = [
    (4 << 10, "4k"),
    (8 << 10, "8k"),
    (16 << 10, "16k"),
    (32 << 10, "32k"),
    (64 << 10, "64k"),
    (128 << 10, "128k"),
    (256 << 10, "256k"),
    (512 << 10, "512k"),
];
const SEQUENTIAL_BYTES: u32 = 4 << 10;
const SEQUENTIAL: (&str, &str) = ("sequential_4k", "sequential_4k_merge_capped_32k");
const MERGE_CAP_BYTES: f64 = 32768.0;
const FILE_BYTES: u64 = 512 << 20;
/// Bytes that the page cache's writeback has under way.
const WRITEBACK_BYTES: u64 = 1024 * 4096;

/// What one run gave.
struct Measured {
    per_second: f64,
    /// Sectors of a command of the drive, on average.
    sectors: f64,
    /// Virtual pages programmed for each that hosts wrote.
    write_amplification: f64,
}

fn measure(laboratory: &Laboratory, bytes: u32, sequential: bool) -> Result<Measured, ExperimentError> {
    let options = SimulationOptions { namespace_bytes: FILE_BYTES, contents: false, ..laboratory.options() };
    let mut simulation = Simulation::new(&options)?;
    let operations = FILE_BYTES / u64::from(bytes);
    let workload = BlockWorkload {
        name: "fio".to_owned(),
        path: Path::File,
        queue_depth: (WRITEBACK_BYTES / u64::from(bytes)) as usize,
        bytes,
        read_percent: 0,
        range_bytes: FILE_BYTES,
        sequential,
        once: !sequential,
        operations: Some(operations),
        seed: laboratory.seed,
        ..BlockWorkload::default()
    };
    let broken = |what: String| SimulationError::Workload { workload: workload.name.clone(), what };
    let (generator, source) = workload.generator().map_err(broken)?;
    simulation.generator(generator, source)?;
    let report = simulation.run()?;
    let (requests, commands) = simulation.port_counts().unwrap_or((operations, operations));
    Ok(Measured {
        per_second: operations as f64 / (report.elapsed_ns as f64 * 1e-9),
        sectors: f64::from(bytes / 512) * requests as f64 / commands.max(1) as f64,
        write_amplification: report.flash.map_or(0.0, |flash| flash.write_amplification),
    })
}

fn published(metric: &str) -> f64 {
    crate::published::figure(ID, metric).map_or(0.0, |figure| figure.value)
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let (mut modelled, mut printed) = (Vec::new(), Vec::new());
    let mut amplifications = Vec::new();
    for (bytes, metric) in RANDOM {
        if !laboratory.wants(ID, metric) {
            continue;
        }
        let measured = measure(laboratory, bytes, false)?;
        let megabytes = |per_second: f64| per_second * f64::from(bytes) / 1e6;
        findings.find(ID, metric, measured.per_second);
        modelled.push((f64::from(bytes >> 10), megabytes(measured.per_second)));
        printed.push((f64::from(bytes >> 10), megabytes(published(metric))));
        amplifications.push(format!("{metric} {:.2}", measured.write_amplification));
    }
    if laboratory.wants(ID, SEQUENTIAL.0) {
        let merged = measure(laboratory, SEQUENTIAL_BYTES, true)?;
        findings.find(ID, SEQUENTIAL.0, merged.per_second);
        findings.notes.push(format!(
            "The block layer makes commands of {:.0} sectors on average of the sequential writes; the paper has 336.",
            merged.sectors
        ));
    }
    if laboratory.wants(ID, SEQUENTIAL.1) {
        let mut preset = laboratory.preset.clone();
        preset.set_parameter("host.merge_bytes_max", MERGE_CAP_BYTES)?;
        let mut capped = Laboratory::new(preset, laboratory.seed);
        capped.kept_modules = laboratory.kept_modules.clone();
        findings.find(ID, SEQUENTIAL.1, measure(&capped, SEQUENTIAL_BYTES, true)?.per_second);
    }
    findings.notes.push(
        "Nothing is fitted: the bus, which bounds all of it, is as fast as the board's developers measured it with reads. fio writes each block \
         of the file once, in random order; 1,024 pages of writeback are under way; the partition begins at a virtual page."
            .to_owned(),
    );
    if laboratory.only.is_none() {
        findings.notes.push(format!("Bytes programmed for each byte written: {}.", amplifications.join(", ")));
        let line = |name: &str, points, published| Series { name: name.to_owned(), points, published };
        findings.plots.push(Plot {
            file: "openssd-table2",
            title: "OpenSSD table 2: random writes".to_owned(),
            x: "request size, kB".to_owned(),
            y: "MB/s".to_owned(),
            drawing: Drawing::Lines {
                series: vec![line("model", modelled, false), line("published", printed, true)],
                log_x: true,
                log_y: false,
            },
        });
    }
    Ok(findings)
}
