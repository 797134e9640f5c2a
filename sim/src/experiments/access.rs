//! XSSD, table 4.2: what an access of 8 kB costs from the host and inside an SPU.
//!
//! Inside: the span of a DMA in the trace, and the rate at which it moves data.

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
    // While it moves data, without what it takes to set it up.
    let mut moving: Vec<u64> = (trace.spans(0).into_iter())
        .filter(|span| span.lane.contains("media") && span.bytes == 8192)
        .map(|span| span.end_ns - span.begin_ns)
        .collect();
    moving.sort_unstable();
    let rate = 8192.0 / *moving.get(moving.len() / 2).ok_or_else(nothing)? as f64;
    findings.find("xssd-8k", "spu_dma_gb_per_s", rate);
    findings.find("xssd-8k", "aggregate_internal_gb_per_s", rate * f64::from(laboratory.preset.device.spus));
    findings.notes.push(
        "Bandwidth inside an SPU is that of a DMA while it moves data; that of all SPUs is as many times as much, since they share nothing."
            .to_owned(),
    );
    findings.notes.push(
        "The host's 1.67 GB/s here and the 78 % of 2 GB/s that Willow's Base-IO reaches on the same link (1.56 GB/s) were both printed; the link's overhead is fitted to the latter."
            .to_owned(),
    );
    Ok(findings)
}
