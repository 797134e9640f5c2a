//! Willow, figure 4: bandwidth of Base-IO under XFS and of Direct-IO, by request size.
//!
//! Both are the real apps. Direct-IO is called by a user process through its own queue, without the kernel and its file system, an RPC for
//! each stripe that a request touches, as its library does; SPU-OS looks the process' permission up at every DMA.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series, Work};
use crate::host::Path;
use crate::workload::BlockWorkload;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "willow-figure4",
    title: "bandwidth of Base-IO and Direct-IO by request size",
    source: "Willow 4.1, 4.2, figure 4",
    preset: "bee3",
    run,
};

const SIZES: [u32; 9] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072];
const LINK_BYTES_PER_S: f64 = 2e9;
/// Reads of the smallest size a second, as published.
const READS_PER_S: f64 = 388_000.0;

fn xdd_threads(laboratory: &Laboratory) -> Result<usize, ExperimentError> {
    Ok(laboratory.workload("xdd_threads")?.round().max(1.0) as usize)
}

/// Bytes a second and operations a second.
fn measure(
    laboratory: &Laboratory,
    threads: usize,
    path: Path,
    write: bool,
    bytes: u32,
) -> Result<(f64, f64), ExperimentError> {
    let workload = BlockWorkload {
        name: "XDD".to_owned(),
        path,
        threads,
        bytes,
        read_percent: if write { 0 } else { 100 },
        range_bytes: 64 << 20,
        operations: Some(if bytes > 16384 { 600 } else { 2500 }),
        ..BlockWorkload::default()
    };
    let report = laboratory.measure(&laboratory.options(), &Work::Block(&workload))?;
    let row = report.only().ok_or_else(|| ExperimentError::Other("nothing was measured".to_owned()))?;
    Ok((row.bytes_per_second, row.iops))
}

/// Where only one figure is wanted, reads or writes may not be.
fn wanted(laboratory: &Laboratory, write: bool) -> bool {
    let share = laboratory.wants("willow-baseio-link", if write { "write" } else { "read" });
    share || (!write && laboratory.wants("willow-baseio-iops", "value"))
}

/// The same for sizes: rates of requests are those of the smallest, shares of the link those of the largest.
fn of_use(laboratory: &Laboratory, bytes: u32) -> bool {
    match &laboratory.only {
        None => true,
        Some((id, _)) if id == "willow-baseio-iops" => bytes == SIZES[0],
        Some(_) => bytes == SIZES[SIZES.len() - 1],
    }
}

/// What it means that threads come whole: reads of the smallest size a second and the ratio of writes, and both with the number beside.
fn note_of_threads(
    laboratory: &Laboratory,
    threads: usize,
    (reads, ratio): (f64, f64),
) -> Result<String, ExperimentError> {
    let other = if reads < READS_PER_S || threads == 1 { threads + 1 } else { threads - 1 };
    let smallest = |path, write| measure(laboratory, other, path, write, SIZES[0]);
    let (_, other_reads) = smallest(Path::File, false)?;
    let other_ratio = smallest(Path::User, true)?.0 / smallest(Path::File, true)?.0;
    Ok(format!(
        "The number of XDD's threads was not printed; it is fitted to the {READS_PER_S:.0} reads a second (use: calibrate), and comes \
         whole: {threads} threads do {reads:.0}, {other} would do {other_reads:.0}. The ratio of writes goes with that number, since \
         Direct-IO's threads write beside one another: {ratio:.1} with {threads} threads, {other_ratio:.1} with {other}."
    ))
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let threads = xdd_threads(laboratory)?;
    // Of the smallest size: reads by Base-IO a second, and how many times as fast Direct-IO writes.
    let (mut smallest_reads, mut smallest_ratio) = (0.0, 0.0);
    for write in [false, true] {
        if !wanted(laboratory, write) {
            continue;
        }
        let kind = if write { "write" } else { "read" };
        let mut base = Vec::new();
        let mut direct = Vec::new();
        let mut best: f64 = 0.0;
        for bytes in SIZES.into_iter().filter(|bytes| of_use(laboratory, *bytes)) {
            let kb = f64::from(bytes) / 1024.0;
            let (base_rate, iops) = measure(laboratory, threads, Path::File, write, bytes)?;
            if laboratory.only.is_some() {
                base.push((kb, base_rate / 1e9));
                if bytes == SIZES[0] && !write {
                    findings.find("willow-baseio-iops", "value", iops);
                }
                continue;
            }
            let (direct_rate, _) = measure(laboratory, threads, Path::User, write, bytes)?;
            best = best.max(direct_rate / base_rate);
            base.push((kb, base_rate / 1e9));
            direct.push((kb, direct_rate / 1e9));
            match (bytes == SIZES[0], write) {
                (true, false) => {
                    smallest_reads = iops;
                    findings.find("willow-baseio-iops", "value", iops);
                }
                (true, true) => smallest_ratio = direct_rate / base_rate,
                _ => {}
            }
        }
        let largest = base.last().map_or(0.0, |(_, rate)| rate * 1e9 / LINK_BYTES_PER_S);
        findings.find("willow-baseio-link", if write { "write" } else { "read" }, largest);
        findings.find("willow-directio", if write { "write_ratio" } else { "read_ratio" }, best);
        let share = if write { 0.73 } else { 0.78 };
        let line = |name: &str, points| Series { name: name.to_owned(), points, published: false };
        let mut series = vec![line("Direct-IO", direct), line("Base-IO", base)];
        let mut published = vec![(128.0, share * 2.0)];
        if !write {
            published.insert(0, (0.5, READS_PER_S * 512.0 / 1e9));
        }
        series.push(Series { name: "Base-IO, published".to_owned(), points: published, published: true });
        findings.plots.push(Plot {
            file: if write { "willow-figure4-write" } else { "willow-figure4-read" },
            title: format!("Willow figure 4: {kind}s"),
            x: "request size, kB".to_owned(),
            y: "GB/s".to_owned(),
            drawing: Drawing::Lines { series, log_x: true, log_y: false },
        });
    }
    findings.notes.push(
        "Both are the real apps: Direct-IO by a user process' own queue, no file system, a look-up of the process' permission at every DMA."
            .to_owned(),
    );
    findings.notes.push(
        "Small writes through the file system are slow for one reason: a direct write of a part of a file system's block holds the \
         file's lock for itself alone until it has ended, so that the threads' writes follow one another. Nothing was fitted to that. \
         The file system's time for a write is taken to be that of a read, which is fitted, and all of it is spent under the lock."
            .to_owned(),
    );
    if laboratory.only.is_none() {
        findings.notes.push(note_of_threads(laboratory, threads, (smallest_reads, smallest_ratio))?);
    }
    Ok(findings)
}
