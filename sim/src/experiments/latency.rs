//! Willow, figure 5: where the time of a 4 kB read goes, for Base-IO, Direct-IO, and Direct-IO with SPUs of 1 GHz.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot};
use crate::generator::Source;
use crate::host::Path;
use crate::preset::Preset;
use crate::simulation::{Simulation, SimulationError, SimulationOptions};
use crate::trace::Trace;
use crate::workload::BlockWorkload;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "willow-figure5",
    title: "where the time of a 4 kB read goes",
    source: "Willow 4.2, figure 5",
    preset: "bee3",
    run,
};

const PARTS: [&str; 7] = [
    "OS (file system, system call)",
    "host software",
    "host copy",
    "SPU software",
    "DMA and NVM",
    "ring",
    "link and bridge",
];
const BYTES: u32 = 4096;

/// Microseconds of each of [`PARTS`], and of all. What overlaps is counted where the later part ends: the parts' sum is the latency.
fn breakdown(preset: &Preset, seed: u64, path: Path) -> Result<(Vec<f64>, f64), ExperimentError> {
    let trace = Trace::new();
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: 1 << 20,
        trace: Some(trace.clone()),
        seed,
        ..SimulationOptions::new(preset.clone())
    })?;
    let began_ns = simulation.now_ns();
    let workload =
        BlockWorkload { path, bytes: BYTES, range_bytes: 1 << 20, operations: Some(1), ..BlockWorkload::default() };
    let (generator, source): (_, Box<dyn Source>) =
        workload.generator().map_err(|what| SimulationError::Workload { workload: "read".to_owned(), what })?;
    simulation.generator(generator, source)?;
    let report = simulation.run()?;
    let total_us = report.elapsed_ns as f64 / 1000.0;
    let host = preset.host.as_ref().ok_or_else(|| ExperimentError::Other("the preset has no host".to_owned()))?;
    let mut parts = vec![0.0; PARTS.len()];
    if path == Path::File {
        parts[0] = (host.system_call_ns + host.file_system_read_ns) as f64 / 1000.0;
        parts[1] = (host.block_layer_ns + host.driver_submit_ns + host.driver_complete_ns) as f64 / 1000.0;
    } else {
        parts[1] = (host.user_submit_ns + host.user_complete_ns) as f64 / 1000.0;
    }
    let copied = host.complete_ns(path, false, BYTES.into()) - host.complete_ns(path, false, 0);
    parts[2] = copied as f64 / 1000.0;
    // The device's spans in order of time: each moment belongs to the last resource that works in it, from SPU to link.
    let mut spans = trace.spans(began_ns);
    spans.sort_by_key(|span| (span.begin_ns, span.end_ns));
    let class = |lane: &str| match lane {
        lane if lane.contains("processor") && lane.starts_with("SPU") => Some(3),
        lane if lane.contains("DMA") || lane.contains("media") => Some(4),
        "ring" => Some(5),
        lane if lane.starts_with("link") || lane.starts_with("bridge") => Some(6),
        _ => None,
    };
    let mut done_ns = began_ns;
    for span in &spans {
        if let Some(part) = class(&span.lane) {
            parts[part] += span.end_ns.saturating_sub(span.begin_ns.max(done_ns)) as f64 / 1000.0;
            done_ns = done_ns.max(span.end_ns);
        }
    }
    // What no resource's work covers is the latencies of link and ring.
    let known: f64 = parts.iter().sum();
    parts[6] += (total_us - known).max(0.0);
    Ok((parts, total_us))
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut fast = laboratory.preset.clone();
    fast.set_parameter("spu.clock_hz", 1e9)?;
    let (base, base_us) = breakdown(&laboratory.preset, laboratory.seed, Path::File)?;
    let (direct, direct_us) = breakdown(&laboratory.preset, laboratory.seed, Path::User)?;
    let (faster, faster_us) = breakdown(&fast, laboratory.seed, Path::User)?;
    let mut findings = Findings::default();
    findings.find("willow-directio-latency", "value", 1.0 - direct_us / base_us);
    findings.notes.push(format!(
        "A 4 kB read takes {base_us:.2} us by Base-IO, {direct_us:.2} us by Direct-IO, {faster_us:.2} us with SPUs of 1 GHz."
    ));
    findings.plots.push(Plot {
        file: "willow-figure5",
        title: "Willow figure 5: a 4 kB read".to_owned(),
        x: String::new(),
        y: "us".to_owned(),
        drawing: Drawing::Bars {
            parts: PARTS.map(str::to_owned).to_vec(),
            bars: vec![
                ("Base-IO".to_owned(), base),
                ("Direct-IO".to_owned(), direct),
                ("Direct-IO, 1 GHz".to_owned(), faster),
            ],
        },
    });
    Ok(findings)
}
