//! What a simulation found: latencies and rates of its workloads, use of each resource, energy, wear.
//!
//! What always holds: all of it is a function of preset, workload and seed alone.

use crate::generator::{Generator, Measured};
use crate::host::HostParameters;
use crate::operation::KINDS;
use crate::simulation::{CutReport, FlashCounts};
use serde::Serialize;
use willow_device::model::ModelStatistics;

/// Latencies, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_ns: f64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 of 100 were at most this.
    pub p90_ns: u64,
    /// 99 of 100 were at most this.
    pub p99_ns: u64,
    /// 999 of 1000 were at most this.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// One kind of operation of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    /// Name of the workload.
    pub name: String,
    /// `read`, `write`, `get` or `put`.
    pub kind: &'static str,
    /// Host threads.
    pub threads: usize,
    /// Operations under way for each thread.
    pub queue_depth: usize,
    /// Operations counted.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Simulated time that was counted, seconds.
    pub seconds: f64,
    /// Operations a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Latencies, from when the operation was due until the program has its result.
    pub latency: Latency,
}

/// A resource's use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResourceReport {
    /// Name, as in the trace.
    pub name: String,
    /// Share of the run's time that it worked, 0 to 1.
    pub utilization: f64,
    /// Pieces of work.
    pub operations: u64,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Time that work waited for it, all pieces together, nanoseconds.
    pub waited_ns: u64,
}

/// Energy of one kind of component.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnergyReport {
    /// Which.
    pub name: String,
    /// Joules in the run.
    pub joules: f64,
}

/// Wear of the media, all banks together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WearReport {
    /// Lines that were ever written.
    pub lines_written: u64,
    /// Writes of lines, copies of wear leveling included.
    pub line_writes: u64,
    /// Writes of the line that has most.
    pub line_writes_max: u64,
    /// Share of its endurance that that line has used.
    pub worn: f64,
    /// Moves of start-gap's gap.
    pub gap_moves: u64,
}

/// What flash and its FTL did in a run. Bytes are those of pages that were programmed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlashReport {
    /// Bytes that hosts, and apps on their behalf, wrote.
    pub host_bytes: u64,
    /// Bytes programmed for each byte written, all causes together.
    pub write_amplification: f64,
    /// Of it because of parts of mapping units: the rest of the unit is programmed, too.
    pub by_merging: f64,
    /// Because of collection.
    pub by_collection: f64,
    /// Because of wear leveling and the rescue of failing blocks.
    pub by_leveling: f64,
    /// Because of logs, checkpoints and summaries.
    pub by_metadata: f64,
    /// Because of pages that settle others.
    pub by_fillers: f64,
    /// Pages read.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages that were moved within their plane by copyback, which count among those read and programmed.
    pub copybacks: u64,
    /// Copybacks that went by the controller after all, since the chip could not correct a page by itself.
    pub uncorrectable_copybacks: u64,
    /// Times that a read suspended a program, a copyback or an erase.
    pub suspensions: u64,
    /// Reads that the ECC corrected bits of.
    pub corrected_reads: u64,
    /// Steps of the ladder of read retries.
    pub retries: u64,
    /// Reads that could not be corrected.
    pub uncorrectable_reads: u64,
    /// Pages and blocks that could not be programmed or erased.
    pub failures: u64,
    /// Fewest erases of a block since the device was made.
    pub erases_min: u32,
    /// Most erases of a block.
    pub erases_max: u32,
    /// Erases of a block on average.
    pub erases_mean: f64,
    /// Standard deviation of that.
    pub erases_deviation: f64,
}

/// A simulation's report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Preset.
    pub preset: String,
    /// Seed.
    pub seed: u64,
    /// Simulated time of the run, nanoseconds.
    pub elapsed_ns: u64,
    /// The workloads that were generated.
    pub workloads: Vec<WorkloadReport>,
    /// Host processors and the device's resources.
    pub resources: Vec<ResourceReport>,
    /// Energy, of the host's components and of the device's.
    pub energy: Vec<EnergyReport>,
    /// Wear, where the media count it.
    pub wear: WearReport,
    /// Flash, where there is some.
    pub flash: Option<FlashReport>,
    /// The cut of the power that ended the run, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cut: Option<CutReport>,
}

impl Report {
    /// Joules of everything.
    pub fn joules(&self) -> f64 {
        self.energy.iter().map(|part| part.joules).sum()
    }

    /// The workload's figures of one kind.
    pub fn workload(&self, name: &str, kind: &str) -> Option<&WorkloadReport> {
        self.workloads.iter().find(|workload| workload.name == name && workload.kind == kind)
    }

    /// The only workload's figures, where there is one.
    pub fn only(&self) -> Option<&WorkloadReport> {
        match self.workloads.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// A resource by its name.
    pub fn resource(&self, name: &str) -> Option<&ResourceReport> {
        self.resources.iter().find(|resource| resource.name == name)
    }
}

pub(crate) fn workloads_of(generator: &Generator) -> Vec<WorkloadReport> {
    let rows = generator.measured.iter().enumerate().filter_map(|(kind, measured)| Some((kind, measured.as_ref()?)));
    // Kinds of one workload share its time, so that their rates add up.
    let last_ns = generator.measured.iter().flatten().map(|measured| measured.last_ns).max().unwrap_or(0);
    let until_ns = if generator.duration_ns == u64::MAX { last_ns } else { generator.duration_ns };
    let seconds = until_ns.saturating_sub(generator.warm_up_ns).max(1) as f64 / 1e9;
    rows.map(|(kind, measured)| {
        let Measured { operations, bytes, latency, .. } = &**measured;
        WorkloadReport {
            name: generator.name.clone(),
            kind: KINDS[kind],
            threads: generator.threads,
            queue_depth: generator.queue_depth,
            operations: *operations,
            bytes: *bytes,
            seconds,
            iops: *operations as f64 / seconds,
            bytes_per_second: *bytes as f64 / seconds,
            latency: Latency {
                mean_ns: latency.mean(),
                min_ns: latency.min(),
                p50_ns: latency.value_at_quantile(0.5),
                p90_ns: latency.value_at_quantile(0.9),
                p99_ns: latency.value_at_quantile(0.99),
                p999_ns: latency.value_at_quantile(0.999),
                max_ns: latency.max(),
            },
        }
    })
    .collect()
}

/// What flash did between two moments.
pub(crate) fn flash_of(before: &FlashCounts, after: &FlashCounts) -> FlashReport {
    let (old, new, unit) = (&before.ftl, &after.ftl, after.unit_bytes as f64);
    let host_bytes = new.host_bytes - old.host_bytes;
    let share = |bytes: f64| if host_bytes == 0 { 0.0 } else { bytes / host_bytes as f64 };
    let pages = |new: u64, old: u64| share((new - old) as f64 * unit);
    let (then, now) = (&before.media, &after.media);
    FlashReport {
        host_bytes,
        write_amplification: pages(new.programmed_pages(), old.programmed_pages()),
        by_merging: pages(new.host_pages, old.host_pages) - share(host_bytes as f64),
        by_collection: pages(new.collected_pages, old.collected_pages),
        by_leveling: pages(new.leveled_pages, old.leveled_pages),
        by_metadata: pages(new.metadata_pages, old.metadata_pages),
        by_fillers: pages(new.filler_pages, old.filler_pages),
        reads: now.reads - then.reads,
        programs: now.programs - then.programs,
        erases: now.erases - then.erases,
        copybacks: now.copybacks - then.copybacks,
        uncorrectable_copybacks: now.uncorrectable_copybacks - then.uncorrectable_copybacks,
        suspensions: after.suspensions - before.suspensions,
        corrected_reads: now.corrected_reads - then.corrected_reads,
        retries: now.retries - then.retries,
        uncorrectable_reads: now.uncorrectable_reads - then.uncorrectable_reads,
        failures: now.program_failures + now.erase_failures - then.program_failures - then.erase_failures,
        erases_min: now.erases_min,
        erases_max: now.erases_max,
        erases_mean: now.erases_mean,
        erases_deviation: now.erases_deviation,
    }
}

/// The host's use and energy: (processors, their busy time, polling time).
pub(crate) fn host_of(
    host: &HostParameters,
    elapsed_ns: u64,
    processors: u32,
    busy_ns: u64,
    polled_ns: u64,
) -> (ResourceReport, Vec<EnergyReport>) {
    let all_ns = elapsed_ns.max(1) as f64 * f64::from(processors);
    // A polling thread spins on a processor that nobody else wants: it works as far as energy goes.
    let utilization = ((busy_ns + polled_ns) as f64 / all_ns).min(1.0);
    let seconds = elapsed_ns as f64 / 1e9;
    let joules = |idle: f64, active: f64| (idle * (1.0 - utilization) + active * utilization) * seconds;
    let resource =
        ResourceReport { name: "host processors".to_owned(), utilization, operations: 0, bytes: 0, waited_ns: 0 };
    let energy = vec![
        EnergyReport {
            name: "host processors".to_owned(),
            joules: joules(host.processor_idle_w, host.processor_active_w),
        },
        EnergyReport { name: "host memory".to_owned(), joules: joules(host.memory_idle_w, host.memory_active_w) },
    ];
    (resource, energy)
}

/// The device's use and energy between two moments.
pub(crate) fn device_of(
    before: &ModelStatistics,
    after: &ModelStatistics,
) -> (Vec<ResourceReport>, Vec<EnergyReport>, WearReport) {
    let elapsed_ns = (after.now_ns - before.now_ns).max(1) as f64;
    let resources = after.resources.iter().map(|resource| {
        let old = before.resource(&resource.name).cloned().unwrap_or_default();
        ResourceReport {
            name: resource.name.clone(),
            utilization: resource.busy_ns.saturating_sub(old.busy_ns) as f64 / elapsed_ns,
            operations: resource.operations - old.operations,
            bytes: resource.bytes - old.bytes,
            waited_ns: resource.waited_ns - old.waited_ns,
        }
    });
    let energy = after.energy.iter().map(|part| {
        let old = before.energy.iter().find(|other| other.name == part.name).map_or(0.0, |other| other.joules);
        EnergyReport { name: part.name.clone(), joules: part.joules - old }
    });
    let mut wear = WearReport::default();
    for media in &after.media {
        wear.lines_written += media.wear.lines_written;
        wear.line_writes += media.wear.writes;
        wear.line_writes_max = wear.line_writes_max.max(media.wear.line_writes_max);
        wear.worn = wear.worn.max(media.wear.worn);
        wear.gap_moves += media.gap_moves;
    }
    (resources.collect(), energy.collect(), wear)
}
