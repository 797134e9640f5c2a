//! `willow bench columns`: a filter and sum, and a filter with its rows, over a Parquet file at 1 % selectivity: in the drive by `willow sum` and `willow filter`, as a
//! user runs them, against pyarrow reading the same file through the mounted file system. By turns in one run.
//!
//! Invariants: both come to the same result, or the benchmark ends; the file's pages are dropped from the page cache before each of pyarrow's turns, so that both read
//! the drive; pyarrow's turns are counted without its start, those of the command with it.

use super::TURNS_MAX;
use super::report::{Latency, Report, Row, median};
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use crate::stage::{Stage, Way};
use hdrhistogram::Histogram;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Rows of the file, at most.
const ROWS_MAX: u64 = 1 << 28;
/// One row in a hundred.
const CONDITION: &str = "price >= 99";
/// What is done, by the names of the rows.
const KINDS: [&str; 2] = ["filter and sum", "filter"];

/// Writes the file, and does each of what it is told on a line of its own.
const PYTHON: &str = r#"
import json
import os
import sys
import time
import pyarrow
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet
path, rows, compression, plain, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "plain", sys.argv[5]
price = pyarrow.array([(row * 7919) % 10_000 / 100 for row in range(rows)], pyarrow.float64())
amount = pyarrow.array([(row * 104_729) % 1_000_003 for row in range(rows)], pyarrow.int64())
table = pyarrow.table({"price": price, "amount": amount})
pyarrow.parquet.write_table(table, path, use_dictionary=not plain, compression=compression)
del price, amount, table
os.sync()
print(json.dumps({"seconds": 0, "result": 0}), flush=True)
for line in sys.stdin:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.monotonic()
    read = pyarrow.parquet.read_table(path, columns=["price", "amount"])
    chosen = read.filter(pyarrow.compute.greater_equal(read["price"], 99.0))
    if line.strip() == "filter":
        with pyarrow.ipc.new_file(out, chosen.schema) as writer:
            writer.write_table(chosen)
        result = chosen.num_rows
    else:
        result = pyarrow.compute.sum(chosen["amount"]).as_py()
    print(json.dumps({"seconds": time.monotonic() - begin, "result": result}), flush=True)
"#;

/// How the file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// By Snappy: in the drive.
    Snappy,
    /// Not: in the drive.
    None,
    /// By Zstandard: by the host.
    Zstd,
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Compression::Snappy => "snappy",
            Compression::None => "none",
            Compression::Zstd => "zstd",
        }
    }
}

/// Flags of `willow bench columns`.
#[derive(Clone, Debug, clap::Args)]
pub struct ColumnsBenchOptions {
    /// Rows of the file, of two columns
    #[arg(long, default_value_t = 4_000_000)]
    pub rows: u64,
    /// How the file is compressed
    #[arg(long, default_value = "snappy")]
    pub compression: Compression,
    /// Values without dictionaries, where the writer would make some
    #[arg(long)]
    pub plain: bool,
    /// Device, mount and commands over NVMe/TCP, instead of shared memory
    #[arg(long)]
    pub tcp: bool,
    /// Python with pyarrow
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub python: PathBuf,
    /// Turns of each way
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

impl ColumnsBenchOptions {
    fn check(&self) -> Outcome<()> {
        if !(100..=ROWS_MAX).contains(&self.rows) {
            fail!("--rows is {}, must be 100 to {ROWS_MAX}", self.rows);
        }
        if self.turns == 0 || self.turns > TURNS_MAX {
            fail!("--turns is {}, must be 1 to {TURNS_MAX}", self.turns);
        }
        if !rustix::process::geteuid().is_root() {
            fail!("this makes a file system on a loop device: run it as root");
        }
        Ok(())
    }
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Turn {
    seconds: f64,
    result: i64,
}

/// pyarrow, in a process that stays.
struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Python {
    /// Starts it, and has it write the file.
    fn new(options: &ColumnsBenchOptions, path: &Path, out: &Path) -> Outcome<Python> {
        let cannot = || format!("cannot run {}", options.python.display());
        let layout = if options.plain { "plain" } else { "dictionaries" };
        let mut child = Command::new(&options.python)
            .args(["-c", PYTHON])
            .arg(path)
            .arg(options.rows.to_string())
            .args([options.compression.name(), layout])
            .arg(out)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(cannot)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { fail!("{}", cannot()) };
        let mut python = Python { child, to, from: BufReader::new(from) };
        python.said()?;
        Ok(python)
    }

    fn said(&mut self) -> Outcome<Turn> {
        let mut line = String::new();
        self.from.read_line(&mut line).context(|| "cannot read what Python says".to_owned())?;
        match serde_json::from_str(&line) {
            Ok(turn) => Ok(turn),
            Err(_) => fail!("Python with pyarrow has ended (what it said is above): name one that has it by --python"),
        }
    }

    fn turn(&mut self, kind: &str) -> Outcome<Turn> {
        let said = writeln!(self.to, "{kind}");
        said.context(|| "cannot tell Python what to do".to_owned())?;
        self.said()
    }
}

/// What `willow sum --json` says, as far as it is needed.
#[derive(Deserialize)]
struct Summed {
    by: String,
    columns: Vec<Column>,
}

#[derive(Deserialize)]
struct Column {
    sum: i64,
}

/// One turn of the command; who did it.
fn by_command(stage: &Stage, kind: &str, path: &Path, out: &Path) -> Outcome<(Turn, String)> {
    let agent = stage.path("agent");
    let _ = std::fs::remove_file(out);
    let begin = Instant::now();
    let mut command = Command::new(&stage.program);
    command
        .arg(if kind == "filter" { "filter" } else { "sum" })
        .arg(path)
        .args(["--agent", &agent, "--where", CONDITION]);
    match kind {
        "filter" => command.args(["--report", "--output"]).arg(out),
        _ => command.args(["--column", "amount", "--json"]),
    };
    let output = command.output().context(|| "cannot run willow".to_owned())?;
    let seconds = begin.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        fail!("willow {kind} failed: {}", said.trim());
    }
    if kind == "filter" {
        let number = |name: &str| -> Option<i64> {
            said.split_whitespace().find_map(|word| word.strip_prefix(name))?.parse().ok()
        };
        let (Some(result), Some(host_parts)) = (number("selected="), number("host_parts=")) else {
            fail!("willow filter says {:?}", said.trim());
        };
        let by = if host_parts == 0 { "drive" } else { "host" };
        return Ok((Turn { seconds, result }, by.to_owned()));
    }
    let summed: Summed =
        serde_json::from_slice(&output.stdout).context(|| "willow sum says what is no JSON".to_owned())?;
    match &summed.columns[..] {
        [Column { sum }] => Ok((Turn { seconds, result: *sum }, summed.by)),
        _ => fail!("willow sum has {} columns", summed.columns.len()),
    }
}

fn row(options: &ColumnsBenchOptions, (kind, way): (&str, &'static str), file_bytes: u64, turn: Turn) -> Outcome<Row> {
    let histogram = Histogram::new(1).context(|| "a histogram".to_owned())?;
    let seconds = turn.seconds.max(1e-9);
    Ok(Row {
        name: kind.to_owned(),
        transport: way,
        queue_depth: 1,
        seconds,
        operations: options.rows,
        iops: options.rows as f64 / seconds,
        bytes_per_second: file_bytes as f64 / seconds,
        latency: Latency::of(&histogram),
        client_cpu_seconds_per_million: 0.0,
        target_cpu_seconds_per_million: None,
    })
}

/// Runs it.
pub fn run(options: &ColumnsBenchOptions) -> Outcome<Report> {
    options.check()?;
    let way = if options.tcp { Way::Network } else { Way::Memory };
    // What the rows take uncompressed, and the same for whatever is written beside them.
    let size = (options.rows * 16 * 2 + (256 << 20)).to_string();
    let mut stage = Stage::by(way, "columns", &["--size", &size])?;
    stage.start_agent()?;
    let (path, out) = (stage.folder.join("files/bench.parquet"), stage.folder.join("rows.arrow"));
    let mut python = Python::new(options, &path, &out)?;
    let file_bytes = std::fs::metadata(&path).context(|| format!("cannot look at {}", path.display()))?.len();
    let (mut rows, mut by) = (Vec::new(), String::new());
    for kind in KINDS {
        for _ in 0..options.turns {
            let theirs = python.turn(kind)?;
            let (ours, who) = by_command(&stage, kind, &path, &out)?;
            if ours.result != theirs.result {
                fail!("{kind}: willow gives {}, pyarrow {}", ours.result, theirs.result);
            }
            by = who;
            rows.push(row(options, (kind, "pyarrow"), file_bytes, theirs)?);
            rows.push(row(options, (kind, "willow"), file_bytes, ours)?);
        }
    }
    let mut figures = serde_json::Map::new();
    for kind in KINDS {
        let of = |way| median(&rows, kind, way, |row| row.iops);
        let ratio = (of("willow") / of("pyarrow").max(1e-9) * 100.0).round() / 100.0;
        figures.insert(format!("{kind}: times pyarrow"), serde_json::json!(ratio));
    }
    figures.insert("done_by".to_owned(), serde_json::json!(by));
    Ok(Report {
        bench: "columns",
        settings: serde_json::json!({
            "rows": options.rows, "file": Size(file_bytes).to_string(), "compression": options.compression.name(), "plain": options.plain,
            "tcp": options.tcp, "turns": options.turns,
        }),
        rows,
        figures,
    })
}
