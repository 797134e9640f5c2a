//! XSSD, table 4.2: what an access of 8 kB costs from the host and inside an SPU.
//!
//! Inside: the same reads with link, bridge and ring a hundred times as fast, so that nothing but the SPU is felt; the latency of a DMA
//! is its span in the trace.

use super::{Experiment, ExperimentError, Findings, Laboratory, Work};
use crate::host::Path;
use crate::simulation::SimulationOptions;
use crate::trace::Trace;
use crate::workload::BlockWorkload;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-table4.2",
    title: "8 kB accesses from the host and inside an SPU",
    source: "XSSD table 4.2",
    preset: "bee3",
    run,
};

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let nothing = || ExperimentError::Other("nothing was measured".to_owned());
    let read = BlockWorkload {
        path: Path::Rpc,
        bytes: 8192,
        range_bytes: 64 << 20,
        operations: Some(300),
        ..BlockWorkload::default()
    };
    let trace = Trace::new();
    let options = SimulationOptions { trace: Some(trace.clone()), ..laboratory.options() };
    let one = laboratory.measure(&options, &Work::Block(&read))?;
    findings.find("xssd-8k", "host_us", one.only().ok_or_else(nothing)?.latency.p50_ns as f64 / 1000.0);
    let mut dmas: Vec<u64> = (trace.spans(0).into_iter())
        .filter(|span| span.lane.ends_with("DMA") && span.bytes == 8192)
        .map(|span| span.end_ns - span.begin_ns)
        .collect();
    dmas.sort_unstable();
    findings.find("xssd-8k", "spu_dma_us", *dmas.get(dmas.len() / 2).ok_or_else(nothing)? as f64 / 1000.0);
    if laboratory.only.is_some() {
        return Ok(findings);
    }
    let many = BlockWorkload { threads: 8, queue_depth: 4, operations: Some(4000), ..read };
    let all = laboratory.measure(&laboratory.options(), &Work::Block(&many))?;
    findings.find("xssd-8k", "host_gb_per_s", all.only().ok_or_else(nothing)?.bytes_per_second / 1e9);
    let mut wide = laboratory.preset.clone();
    for field in ["link.in_bytes_per_s", "link.out_bytes_per_s", "ring.clock_hz"] {
        let value = wide.parameter(field).unwrap_or_default();
        wide.set_parameter(field, value * 100.0)?;
    }
    for field in ["bridge.in_message_ns", "bridge.out_message_ns", "ring.round_trip_ns"] {
        wide.set_parameter(field, 0.0)?;
    }
    let inside = BlockWorkload { path: Path::Bare, threads: 16, queue_depth: 16, operations: Some(8000), ..many };
    let report =
        laboratory.measure(&SimulationOptions { preset: wide, ..laboratory.options() }, &Work::Block(&inside))?;
    let rate = report.only().ok_or_else(nothing)?.bytes_per_second / 1e9;
    findings.find("xssd-8k", "aggregate_internal_gb_per_s", rate);
    findings.find("xssd-8k", "spu_dma_gb_per_s", rate / f64::from(laboratory.preset.device.spus));
    findings.notes.push(
        "Bandwidth inside is that of many reads at once, with link, bridge and ring a hundred times as fast: the SPUs' processors and DMA \
         controllers are what is left."
            .to_owned(),
    );
    Ok(findings)
}
