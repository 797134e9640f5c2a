//! XSSD, figure 2.1: latency of a 4 kB random read by technology of the media, through driver and link.
//!
//! The same device with other media behind the same controllers: phase-change memory as the preset has it; flash and a disk as media of
//! a fixed latency, whose values stand below with their reasons.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Work};
use crate::host::Path;
use crate::simulation::SimulationOptions;
use crate::workload::BlockWorkload;
use willow_device::model::parameters::{FixedLatencyParameters, MediaParameters};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-figure2.1",
    title: "latency of a 4 kB read by technology",
    source: "XSSD figure 2.1",
    preset: "bee3",
    run,
};

/// Read of an MLC page, nanoseconds: 60 us to sense it, as data sheets of the papers' time have it (ours), and 8 kB at 40 MB/s over an
/// asynchronous bus are left to the channel below.
const FLASH_READ_NS: u64 = 60_000;
/// Rate of such a bus, bytes a second.
const FLASH_CHANNEL_BYTES_PER_S: u64 = 40_000_000;
/// Half a turn at 7200 a minute and an average seek of 8.5 ms, nanoseconds (ours: a desktop disk's data sheet).
const DISK_READ_NS: u64 = 4_170_000 + 8_500_000;
/// Rate of its surface, bytes a second.
const DISK_BYTES_PER_S: u64 = 120_000_000;

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let fixed = |read_ns, channel_bytes_per_s| {
        Some(MediaParameters::FixedLatency(FixedLatencyParameters {
            read_ns,
            write_ns: read_ns,
            units: 1,
            interleave_bytes: 4096,
            channel_bytes_per_s,
        }))
    };
    let media = [
        ("disk", fixed(DISK_READ_NS, DISK_BYTES_PER_S)),
        ("flash", fixed(FLASH_READ_NS, FLASH_CHANNEL_BYTES_PER_S)),
        ("PCM", None),
    ];
    let mut bars = Vec::new();
    for (name, media) in media {
        let mut preset = laboratory.preset.clone();
        if let (Some(model), Some(media)) = (&mut preset.model, &media) {
            model.media = media.clone();
        }
        // The driver and the link, without a file system.
        let read =
            BlockWorkload { path: Path::Raw, range_bytes: 64 << 20, operations: Some(200), ..BlockWorkload::default() };
        let options = SimulationOptions { preset, ..laboratory.options() };
        let report = laboratory.measure(&options, &Work::Block(&read))?;
        let row = report.only().ok_or_else(|| ExperimentError::Other("nothing was measured".to_owned()))?;
        let total_us = row.latency.mean_ns / 1000.0;
        // A DMA is as long as the slower of media and controller: what the media add to it is theirs.
        let media_ns: f64 = (report.resources.iter())
            .filter(|resource| resource.name.ends_with("media"))
            .map(|resource| resource.utilization * report.elapsed_ns as f64)
            .sum();
        let media_us = media_ns / row.operations as f64 / 1000.0;
        if name == "PCM" {
            findings.find("xssd-4k-latency", "value_us", total_us);
            findings.notes.push(format!(
                "Of the {total_us:.2} us on PCM the media work {media_us:.2} us, {:.0} %; the paper says less than 20 %.",
                media_us / total_us * 100.0
            ));
        }
        bars.push((name.to_owned(), vec![(total_us - media_us).max(0.0), media_us]));
    }
    for (name, parts) in &bars {
        findings.notes.push(format!("{name}: {:.2} us, of which the media {:.2} us.", parts[0] + parts[1], parts[1]));
    }
    findings.notes.push("Latencies of disk and flash are ours, as the experiment's file says.".to_owned());
    findings.plots.push(Plot {
        file: "xssd-figure2.1",
        title: "XSSD figure 2.1: 4 kB random read".to_owned(),
        x: String::new(),
        y: "us".to_owned(),
        drawing: Drawing::Bars { parts: vec!["software, link, device".to_owned(), "media".to_owned()], bars },
    });
    Ok(findings)
}
