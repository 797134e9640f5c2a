//! `willow bench sandbox`: Base-IO in the sandbox against the same handlers built natively. Machines drift, so both are
//! measured by turns, A B A B, in one run, and the figure is the median of the turns' ratios.

use super::CommonOptions;
use super::engine::Driver;
use super::io::{self, IoOptions};
use super::report::{Report, Row};
use super::tcp::Tcp;
use crate::child::DeviceProcess;
use crate::failure::{Outcome, fail};
use crate::size::Size;

/// Most turns.
const TURNS_MAX: u32 = 100;

/// Flags of `willow bench sandbox`.
#[derive(Clone, Debug, clap::Args)]
pub struct SandboxOptions {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Turns of each side
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Bytes of an operation
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Bytes that the operations are spread over
    #[arg(long, default_value = "256M")]
    pub range: Size,
}

/// Runs it. The devices are its own: `--target` is not used.
pub fn run(options: &SandboxOptions) -> Outcome<Report> {
    if options.turns == 0 || options.turns > TURNS_MAX {
        fail!("--turns is {}, must be 1 to {TURNS_MAX}", options.turns);
    }
    let io = IoOptions {
        common: options.common.clone(),
        bs: options.bs,
        mix: vec![100, 0],
        range: options.range,
        nsid: None,
        sequential: false,
        native: false,
    };
    io.common.check()?;
    let (rows, ratios) = if options.common.in_process {
        let mut sandboxed = io::in_process(&io, false)?;
        let mut native = io::in_process(&io, true)?;
        by_turns(options, &io, (&mut sandboxed, None), (&mut native, None), "in-process")?
    } else {
        let common = ["--ram", "--listen", "127.0.0.1:0", "--log", "error"];
        let sandboxed = DeviceProcess::start(&common)?;
        let native = DeviceProcess::start(&[&common[..], &["--native", base_io_host::APP_NAME]].concat())?;
        let connect = |process: &DeviceProcess| {
            let mut common = options.common.clone();
            common.target.target.clone_from(&process.ready.listen);
            Tcp::block(
                &common,
                None,
                options.range.0,
                common.depth_max().max(8),
                (options.bs.0, (options.bs.0 as usize).max(128 << 10)),
            )
        };
        let (mut a, mut b) = (connect(&sandboxed)?, connect(&native)?);
        let found = by_turns(options, &io, (&mut a, Some(sandboxed.pid())), (&mut b, Some(native.pid())), "tcp")?;
        a.finish()?;
        b.finish()?;
        sandboxed.end()?;
        native.end()?;
        found
    };
    let mut figures = serde_json::Map::new();
    for (name, mut of) in ratios {
        of.sort_by(f64::total_cmp);
        let median = of[of.len() / 2];
        figures.insert(format!("sandbox_to_native_iops_{name}"), ((median * 1000.0).round() / 1000.0).into());
    }
    Ok(Report {
        bench: "sandbox",
        settings: serde_json::json!({
            "turns": options.turns, "bs": options.bs.0, "range": options.range.0, "seed": options.common.seed,
        }),
        rows,
        figures,
    })
}

type Ratios = Vec<(String, Vec<f64>)>;

fn by_turns<D: Driver>(
    options: &SandboxOptions,
    io: &IoOptions,
    sandboxed: (&mut D, Option<u32>),
    native: (&mut D, Option<u32>),
    transport: &'static str,
) -> Outcome<(Vec<Row>, Ratios)> {
    io::fill(io, sandboxed.0)?;
    io::fill(io, native.0)?;
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for (read_percent, kind) in [(100, "read"), (0, "write")] {
        for depth in &options.common.depths {
            let mut of = Vec::new();
            let mut best: [Option<Row>; 2] = [None, None];
            for _ in 0..options.turns {
                let mut a = io::measure_one(io, sandboxed.0, transport, sandboxed.1, read_percent, *depth)?;
                let mut b = io::measure_one(io, native.0, transport, native.1, read_percent, *depth)?;
                of.push(a.iops / b.iops.max(1e-9));
                a.name.push_str(", sandbox");
                b.name.push_str(", native");
                for (row, best) in [a, b].into_iter().zip(&mut best) {
                    if best.as_ref().is_none_or(|best| row.iops > best.iops) {
                        *best = Some(row);
                    }
                }
            }
            rows.extend(best.into_iter().flatten());
            ratios.push((format!("{kind}_depth_{depth}"), of));
        }
    }
    Ok((rows, ratios))
}
