//! What a benchmark found: rows for people, one JSON object for programs, and a line for the kept history.

use crate::bench::engine::Plan;
use crate::failure::{Context, Outcome};
use crate::table::{Table, grouped, microseconds};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Latencies of a row, nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_ns: u64,
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

impl Latency {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Latency {
            mean_ns: histogram.mean() as u64,
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was run.
    pub name: String,
    /// `tcp` or `in-process`.
    pub transport: &'static str,
    /// Operations under way.
    pub queue_depth: usize,
    /// Time counted.
    pub seconds: f64,
    /// Operations counted.
    pub operations: u64,
    /// Operations a second.
    pub iops: f64,
    /// Bytes of data a second.
    pub bytes_per_second: f64,
    /// Latencies.
    pub latency: Latency,
    /// Processor time of this process for a million operations (in-process: with the device in it).
    pub client_cpu_seconds_per_million: f64,
    /// Processor time of the device's process, where it is another one on this machine.
    pub target_cpu_seconds_per_million: Option<f64>,
}

impl Row {
    pub(crate) fn new(
        plan: &Plan,
        elapsed: Duration,
        operations: u64,
        bytes: u64,
        histogram: &Histogram<u64>,
        client: Duration,
        target: Option<Duration>,
    ) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let per_million = |time: Duration| time.as_secs_f64() * 1e6 / operations.max(1) as f64;
        Row {
            name: plan.name.clone(),
            transport: plan.transport,
            queue_depth: plan.queue_depth,
            seconds,
            operations,
            iops: operations as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency: Latency::of(histogram),
            client_cpu_seconds_per_million: per_million(client),
            target_cpu_seconds_per_million: target.map(per_million),
        }
    }
}

/// All that one `willow bench` found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// What it was told, for the record.
    pub settings: serde_json::Value,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Ratios and other single figures.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub figures: serde_json::Map<String, serde_json::Value>,
}

/// The table for people.
pub fn rows_table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "workload",
        "way",
        "QD",
        "IOPS",
        "MB/s",
        "mean us",
        "p50",
        "p99",
        "p99.9",
        "max",
        "client CPU s/M",
        "target CPU s/M",
    ]);
    for row in rows {
        table.row([
            row.name.clone(),
            row.transport.to_owned(),
            row.queue_depth.to_string(),
            grouped(row.iops as u64),
            format!("{:.1}", row.bytes_per_second / 1e6),
            latency(row, row.latency.mean_ns),
            latency(row, row.latency.p50_ns),
            latency(row, row.latency.p99_ns),
            latency(row, row.latency.p999_ns),
            latency(row, row.latency.max_ns),
            format!("{:.2}", row.client_cpu_seconds_per_million),
            row.target_cpu_seconds_per_million.map_or("-".to_owned(), |seconds| format!("{seconds:.2}")),
        ]);
    }
    table.render()
}

/// A latency's cell: none where latencies were not taken.
fn latency(row: &Row, nanoseconds: u64) -> String {
    if row.latency.max_ns == 0 { "-".to_owned() } else { microseconds(nanoseconds) }
}

impl Report {
    /// Appends a line to the kept history: the report, when, and on what machine.
    pub fn record(&self, path: &Path) -> Outcome<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = serde_json::json!({
            "unix_seconds": now.as_secs(),
            "version": env!("CARGO_PKG_VERSION"),
            "commit": commit(),
            "processor": processor(),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
            "report": self,
        });
        let circumstance = || format!("cannot append to {}", path.display());
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).context(circumstance)?;
        file.write_all(format!("{line}\n").as_bytes()).context(circumstance)
    }
}

/// The commit of the working folder, where there is one.
fn commit() -> Option<String> {
    let output = std::process::Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The processor's name as the kernel tells it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The median over turns: what `of` says of the rows with this name and way.
pub fn median(rows: &[Row], name: &str, transport: &str, of: impl Fn(&Row) -> f64) -> f64 {
    let of_it = rows.iter().filter(|row| row.name == name && row.transport == transport);
    let mut all: Vec<f64> = of_it.map(of).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// Half of the operations took so long or less, in microseconds.
pub fn p50_us(row: &Row) -> f64 {
    row.latency.p50_ns as f64 / 1000.0
}
