//! LightNVM, table 1: host time of a 4 kB request on a null NVMe device, natively and with a host page-mapped target.
//!
//! The target is modelled by the steps that its paper names (locks around the tracking of what is in flight, look-up of the mapping,
//! allocation of a page), each at the price of what it touches: an uncontended lock and a cache line from memory.

use super::{Experiment, ExperimentError, Findings, Laboratory, Work};
use crate::host::Path;
use crate::simulation::Simulation;
use crate::workload::BlockWorkload;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "lightnvm-table1",
    title: "host time of a 4 kB request, natively and with a page-mapped target",
    source: "LightNVM table 1, figure 2",
    preset: "null-nvme",
    run,
};

/// An uncontended lock taken and given back: two atomic operations of 10 ns each (ours).
pub(super) const LOCK_NS: u64 = 20;
/// A line that no cache holds (ours: a DDR3 server).
pub(super) const MEMORY_LINE_NS: u64 = 80;
/// In flight: a lock, and a line of the table that is written in both.
const IN_FLIGHT_NS: u64 = LOCK_NS + 30;
/// Allocation of a page: the block's lock, and its write pointer, which the last write left in a cache.
const ALLOCATE_NS: u64 = LOCK_NS + 20;

/// What the target does for a request, nanoseconds.
pub(super) const fn target_ns(write: bool) -> u64 {
    IN_FLIGHT_NS + MEMORY_LINE_NS + if write { ALLOCATE_NS + LOCK_NS } else { 0 }
}

const REQUESTS: u64 = 200;

/// Mean latency, microseconds.
fn latency(laboratory: &Laboratory, path: Path, write: bool, target_ns: u64) -> Result<f64, ExperimentError> {
    let mut simulation = Simulation::new(&laboratory.options())?;
    let output = simulation.host_thread("fio", move |thread| async move {
        let began_ns = thread.now_ns();
        for number in 0..REQUESTS {
            if target_ns > 0 {
                thread.compute(target_ns, "page-mapped target").await;
            }
            let offset = number * 37 % 1000 * 4096;
            match write {
                true => thread.write(path, offset, vec![1; 4096]).await.map(drop)?,
                false => thread.read(path, offset, 4096).await.map(drop)?,
            }
        }
        Ok::<u64, willow_host::HreError>(thread.now_ns() - began_ns)
    })?;
    simulation.run()?;
    match output.take() {
        Some(Ok(ns)) => Ok(ns as f64 / REQUESTS as f64 / 1000.0),
        Some(Err(error)) => Err(ExperimentError::Other(format!("a request failed: {error}"))),
        None => Err(ExperimentError::Other("fio did not end".to_owned())),
    }
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    for write in [false, true] {
        let bare = latency(laboratory, Path::Bare, write, 0)?;
        let native = latency(laboratory, Path::File, write, 0)?;
        let target = latency(laboratory, Path::File, write, target_ns(write))?;
        findings.find("lightnvm-table1", if write { "native_write_us" } else { "native_read_us" }, native - bare);
        findings.find("lightnvm-table1", if write { "write_overhead_us" } else { "read_overhead_us" }, target - native);
        if !write {
            findings.find("lightnvm-table1", "null_nvme_us", bare);
        }
    }
    let many = BlockWorkload {
        path: Path::Raw,
        bytes: 131_072,
        threads: 4,
        queue_depth: 4,
        read_percent: 0,
        range_bytes: 64 << 20,
        operations: Some(400),
        ..BlockWorkload::default()
    };
    let report = laboratory.measure(&laboratory.options(), &Work::Block(&many))?;
    let rate = report.only().map_or(0.0, |row| row.bytes_per_second / 1e6);
    findings.find("lightnvm-table1", "null_nvme_mb_per_s", rate);
    findings.notes.push(
        "The target's overhead is the sum of the steps that the paper names: a lock and a line for what is in flight, a line of the mapping, \
         for writes the block's lock and pointer and the mapping's lock. Contention on them is not modelled: one thread submits."
            .to_owned(),
    );
    Ok(findings)
}
