//! `willow demo`: the whole story with real parts, in under two minutes. Serves a device on files, attaches over NVMe/TCP,
//! writes and verifies blocks, installs Key-Value into the running device, loads pairs, kills the device in the middle of
//! writing, starts it again and compares every block and every pair with what had been acknowledged.
//!
//! Invariant: anything missing or wrong ends it with status 1; the data folder is kept then.

mod model;
mod protection;

use crate::bench::engine::{Driver, Ended, LATENCY_NS_MAX, Operation};
use crate::bench::report::Latency;
use crate::bench::tcp::Tcp;
use crate::child::DeviceProcess;
use crate::client::Client;
use crate::failure::{Context, Outcome, fail};
use crate::output;
use crate::size::Size;
use crate::stat::spu_table;
use crate::statistics::Statistics;
use crate::table::{Table, grouped, microseconds};
use crate::target::TargetOption;
use hdrhistogram::Histogram;
use model::{BLOCK_BYTES, Blocks, Pairs, VALUE_BYTES_MAX};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations under way.
const DEPTH: usize = 32;
/// Most bytes of the block namespace that the demo writes; the namespace is twice as large.
const RANGE_BYTES_MAX: u64 = 512 << 20;
/// How long the device is written to before it is killed.
const CRASH_AFTER: Duration = Duration::from_millis(1500);

/// Another story than the first.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum Story {
    /// Two users on a real file system: what each reaches directly, and what the device refuses (root)
    Protection,
}

/// Flags of `willow demo`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoOptions {
    #[command(subcommand)]
    story: Option<Story>,
    /// Folder for the device's files, which must not exist yet [default: one of its own, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep the data folder
    #[arg(long)]
    keep: bool,
    /// Block writes of the first workload
    #[arg(long, default_value_t = 100_000)]
    writes: u64,
    /// Bytes of the block namespace that they are spread over
    #[arg(long, default_value = "128M")]
    range: Size,
    /// Key-value pairs to load
    #[arg(long, default_value_t = 200_000)]
    pairs: u64,
}

/// Operations of one kind, for the table at the end.
struct Phase {
    name: &'static str,
    operations: u64,
    bytes: u64,
    elapsed: Duration,
    histogram: Histogram<u64>,
}

impl Phase {
    fn new(name: &'static str) -> Outcome<Self> {
        let histogram = Histogram::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())?;
        Ok(Phase { name, operations: 0, bytes: 0, elapsed: Duration::ZERO, histogram })
    }
}

/// Runs operations at [`DEPTH`]: `next` begins them (`None`: no more), `ended` is told of each end with the slot's data.
/// Returns the error that stopped it, if any; `phase` holds what was done until then.
fn work(
    driver: &mut Tcp,
    phase: &mut Phase,
    mut next: impl FnMut(&mut [u8]) -> Option<(u64, Operation)>,
    mut ended: impl FnMut(u64, Ended, &[u8]) -> Outcome<()>,
) -> Outcome<()> {
    let start = Instant::now();
    let result = (|| {
        let mut begun: Vec<Option<(u64, Operation, Instant)>> = vec![None; DEPTH];
        let mut begin = |driver: &mut Tcp, slot: usize| -> Outcome<Option<(u64, Operation, Instant)>> {
            let Some((place, operation)) = next(driver.buffer(slot)) else { return Ok(None) };
            driver.begin(slot, operation)?;
            Ok(Some((place, operation, Instant::now())))
        };
        let mut active = 0;
        for (slot, begun) in begun.iter_mut().enumerate() {
            *begun = begin(driver, slot)?;
            active += usize::from(begun.is_some());
        }
        let mut list = Vec::with_capacity(DEPTH);
        while active > 0 {
            let polled = driver.poll(&mut list);
            // What had ended before an error counts: it was acknowledged.
            for end in list.drain(..) {
                let Some((place, operation, at)) = begun[end.slot].take() else {
                    fail!("slot {} ended twice", end.slot)
                };
                phase.histogram.saturating_record(at.elapsed().as_nanos() as u64);
                phase.operations += 1;
                let bytes = if matches!(operation, Operation::Get { .. }) {
                    end.result.unwrap_or(0)
                } else {
                    operation.bytes()
                };
                phase.bytes += u64::from(bytes);
                ended(place, end, driver.buffer(end.slot))?;
                if polled.is_ok() {
                    begun[end.slot] = begin(driver, end.slot)?;
                }
                active -= usize::from(begun[end.slot].is_none());
            }
            polled?;
        }
        Ok(())
    })();
    phase.elapsed += start.elapsed();
    result
}

/// The demo on its way.
struct Demo {
    media: PathBuf,
    module: PathBuf,
    blocks: Blocks,
    pairs: Pairs,
    phases: Vec<Phase>,
    step: u32,
}

impl Demo {
    fn say(&mut self, text: &str) -> Outcome<()> {
        self.step += 1;
        output::line(&format!("{}. {text}", self.step))
    }

    fn serve(&self) -> Outcome<DeviceProcess> {
        let media = self.media.display().to_string();
        DeviceProcess::start(&[
            "--media",
            &media,
            "--listen",
            "127.0.0.1:0",
            "--size",
            "1G",
            "--kv-size",
            "1G",
            "--log",
            "warn",
        ])
    }

    fn write_blocks(&mut self, device: &DeviceProcess, count: u64) -> Outcome<()> {
        let mut driver = block_driver(device)?;
        let bar = crate::progress::bar(count, "writing blocks", false);
        let mut phase = Phase::new("block write 4 KiB")?;
        let mut left = count;
        let blocks = std::cell::RefCell::new(&mut self.blocks);
        work(
            &mut driver,
            &mut phase,
            |buffer| {
                left = left.checked_sub(1)?;
                Some(blocks.borrow_mut().next_write(buffer))
            },
            |block, _, _| {
                blocks.borrow_mut().acknowledge(block);
                bar.inc(1);
                Ok(())
            },
        )?;
        bar.finish_and_clear();
        self.phases.push(phase);
        Ok(())
    }

    fn verify_blocks(&mut self, device: &DeviceProcess, name: &'static str) -> Outcome<()> {
        let mut driver = block_driver(device)?;
        let bar = crate::progress::bar(self.blocks.count(), "verifying blocks", false);
        let mut phase = Phase::new(name)?;
        let mut order = 0..self.blocks.count();
        work(
            &mut driver,
            &mut phase,
            |_| {
                let block = order.next()?;
                let offset = block * BLOCK_BYTES as u64;
                Some((block, Operation::Read { offset, bytes: BLOCK_BYTES as u32 }))
            },
            |block, _, found| {
                bar.inc(1);
                self.blocks.verify(block, &found[..BLOCK_BYTES])
            },
        )?;
        bar.finish_and_clear();
        self.phases.push(phase);
        Ok(())
    }

    fn install(&mut self, device: &DeviceProcess) -> Outcome<()> {
        std::fs::write(&self.module, willow_apps::KEY_VALUE_WASM)
            .context(|| format!("cannot write {}", self.module.display()))?;
        let module = crate::app::read_module(&self.module)?;
        let mut client = client_of(device)?;
        let start = Instant::now();
        let number = client.install(&module)?;
        let took = start.elapsed();
        let apps = client.apps()?;
        match apps.iter().find(|app| app.number == number && app.state == "running") {
            Some(app) => self.say(&format!(
                "installed {} {} ({}) into the running device in {:.0} ms",
                app.name,
                app.version,
                Size(app.module_bytes),
                took.as_secs_f64() * 1e3
            )),
            None => fail!("the app that was installed does not run: see willow app list"),
        }
    }

    fn load_pairs(&mut self, device: &DeviceProcess) -> Outcome<()> {
        let mut driver = pair_driver(device)?;
        let bar = crate::progress::bar(self.pairs.count(), "loading pairs", false);
        let mut phase = Phase::new("put up to 1 KiB")?;
        let mut keys = 0..self.pairs.count();
        let pairs = std::cell::RefCell::new(&mut self.pairs);
        work(
            &mut driver,
            &mut phase,
            |buffer| {
                let key = keys.next()?;
                Some((key, pairs.borrow_mut().put(key, buffer)))
            },
            |key, _, _| {
                pairs.borrow_mut().acknowledge(key);
                bar.inc(1);
                Ok(())
            },
        )?;
        bar.finish_and_clear();
        self.phases.push(phase);
        Ok(())
    }

    fn verify_pairs(&mut self, device: &DeviceProcess, name: &'static str) -> Outcome<()> {
        let mut driver = pair_driver(device)?;
        let bar = crate::progress::bar(self.pairs.count(), "verifying pairs", false);
        let mut phase = Phase::new(name)?;
        let mut keys = 0..self.pairs.count();
        work(
            &mut driver,
            &mut phase,
            |_| {
                let key = keys.next()?;
                Some((key, Operation::Get { key, bytes: VALUE_BYTES_MAX as u32 }))
            },
            |key, end, found| {
                bar.inc(1);
                let value = match end.result {
                    None => None,
                    Some(bytes) if bytes as usize <= VALUE_BYTES_MAX => Some(&found[..bytes as usize]),
                    Some(bytes) => fail!("key {key} has a value of {bytes} bytes, none that long was stored"),
                };
                self.pairs.verify(key, value)
            },
        )?;
        bar.finish_and_clear();
        self.phases.push(phase);
        Ok(())
    }

    /// Writes blocks and pairs at once until the device is killed under it; returns the last statistics before that.
    fn crash(&mut self, device: DeviceProcess) -> Outcome<Statistics> {
        let mut block_driver = block_driver(&device)?;
        let mut pair_driver = pair_driver(&device)?;
        let mut client = client_of(&device)?;
        let (blocks, pairs) = (&mut self.blocks, &mut self.pairs);
        let mut phases =
            [Phase::new("until the crash: block write 4 KiB")?, Phase::new("until the crash: put, delete")?];
        let [block_phase, pair_phase] = &mut phases;
        let statistics = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let blocks = std::cell::RefCell::new(blocks);
                work(
                    &mut block_driver,
                    block_phase,
                    |buffer| Some(blocks.borrow_mut().next_write(buffer)),
                    |block, _, _| {
                        blocks.borrow_mut().acknowledge(block);
                        Ok(())
                    },
                )
            });
            let putter = scope.spawn(move || {
                let pairs = std::cell::RefCell::new(pairs);
                work(
                    &mut pair_driver,
                    pair_phase,
                    |buffer| Some(pairs.borrow_mut().next(buffer)),
                    |key, end, _| {
                        if end.result.is_none() {
                            fail!("key {key} was stored and could not be deleted: it is not there");
                        }
                        pairs.borrow_mut().acknowledge(key);
                        Ok(())
                    },
                )
            });
            std::thread::sleep(CRASH_AFTER);
            let early = writer.is_finished() || putter.is_finished();
            let statistics = client.statistics();
            let killed = device.kill();
            // Both end with an error, for the device is gone.
            let ends =
                [writer.join(), putter.join()].map(|end| end.unwrap_or_else(|_| fail!("a writing thread panicked")));
            if early {
                for end in ends {
                    end.context(|| "writing failed before the device was killed".to_owned())?;
                }
                fail!("writing ended before the device was killed");
            }
            for end in ends {
                if end.is_ok() {
                    fail!("writing went on after the device was killed");
                }
            }
            killed?;
            statistics
        })?;
        self.phases.extend(phases);
        Ok(statistics)
    }

    fn run(&mut self, options: &DemoOptions) -> Outcome<()> {
        let device = self.serve()?;
        self.say(&format!("serving a device on files in {}", self.media.display()))?;
        let mut client = client_of(&device)?;
        let namespaces = client.namespaces()?;
        let listed: Vec<String> = namespaces
            .iter()
            .map(|n| format!("{} ({}, {})", n.nsid, crate::ns::name_of(n.csi), Size(n.size_bytes)))
            .collect();
        self.say(&format!(
            "attached to {} at {} over NVMe/TCP: namespaces {}",
            device.ready.nqn,
            device.ready.listen,
            listed.join(", ")
        ))?;
        self.write_blocks(&device, options.writes)?;
        self.verify_blocks(&device, "block read 4 KiB")?;
        self.say(&format!(
            "wrote {} blocks at random over {} and verified all of it",
            grouped(options.writes),
            options.range
        ))?;
        self.install(&device)?;
        self.load_pairs(&device)?;
        self.verify_pairs(&device, "get up to 1 KiB")?;
        self.say(&format!("loaded {} pairs and verified all of them", grouped(options.pairs)))?;
        drop(client);
        let before = self.crash(device)?;
        let crashed: u64 = self.phases.iter().rev().take(2).map(|phase| phase.operations).sum();
        self.say(&format!(
            "killed the device (SIGKILL) in the middle of writing: {} more operations acknowledged, {} under way",
            grouped(crashed),
            self.blocks.under_way() + self.pairs.under_way()
        ))?;
        let start = Instant::now();
        let device = self.serve()?;
        self.say(&format!("started it again: ready after {:.0} ms", start.elapsed().as_secs_f64() * 1e3))?;
        self.verify_blocks(&device, "after the crash: block read 4 KiB")?;
        self.verify_pairs(&device, "after the crash: get up to 1 KiB")?;
        let mut client = client_of(&device)?;
        let listed = self.count_pairs(&mut client)?;
        self.say(&format!(
            "everything acknowledged is there: {} blocks and {} pairs compared, {} pairs listed",
            grouped(self.blocks.count()),
            grouped(self.pairs.count()),
            grouped(listed)
        ))?;
        let after = client.statistics()?;
        drop(client);
        device.end()?;
        self.say("ended it cleanly (SIGTERM)")?;
        output::text(&self.summary(&before, &after))
    }

    /// Lists all pairs and compares their number.
    fn count_pairs(&self, client: &mut Client) -> Outcome<u64> {
        let nsid = pair_namespace(client)?;
        let (mut listed, mut last) = (0, None);
        loop {
            let keys = client.list(nsid, last.as_ref())?;
            let Some(key) = keys.last() else { break };
            listed += keys.len() as u64;
            last = Some(*key);
        }
        let (fewest, most) = self.pairs.stored();
        if listed < fewest || listed > most {
            fail!("{listed} pairs are listed, there must be {fewest} to {most}");
        }
        Ok(listed)
    }

    fn summary(&self, before: &Statistics, after: &Statistics) -> String {
        let mut table =
            Table::new(&["work", "operations", "a second", "MB/s", "mean us", "p50", "p99", "p99.9", "max"]);
        for phase in &self.phases {
            let seconds = phase.elapsed.as_secs_f64().max(1e-9);
            let latency = Latency::of(&phase.histogram);
            table.row([
                phase.name.to_owned(),
                grouped(phase.operations),
                grouped((phase.operations as f64 / seconds) as u64),
                format!("{:.1}", phase.bytes as f64 / seconds / 1e6),
                microseconds(latency.mean_ns),
                microseconds(latency.p50_ns),
                microseconds(latency.p99_ns),
                microseconds(latency.p999_ns),
                microseconds(latency.max_ns),
            ]);
        }
        let moved: u64 = self.phases.iter().map(|phase| phase.bytes).sum();
        format!(
            "\n{}\nuntil the crash:\n{}\nafter the restart:\n{}\n{} of data moved over NVMe/TCP\n",
            table.render(),
            spu_table(before),
            spu_table(after),
            Size(moved)
        )
    }
}

fn target_of(device: &DeviceProcess) -> TargetOption {
    TargetOption { target: device.ready.listen.clone(), key: None }
}

fn client_of(device: &DeviceProcess) -> Outcome<Client> {
    Client::connect(&target_of(device))
}

fn block_driver(device: &DeviceProcess) -> Outcome<Tcp> {
    Tcp::existing(&target_of(device), 1, DEPTH, BLOCK_BYTES)
}

fn pair_namespace(client: &mut Client) -> Outcome<u32> {
    let namespaces = client.namespaces()?;
    match namespaces.iter().find(|n| n.csi == willow_wire::control::CommandSet::Kv) {
        Some(namespace) => Ok(namespace.nsid),
        None => fail!("the device has no key-value namespace"),
    }
}

fn pair_driver(device: &DeviceProcess) -> Outcome<Tcp> {
    let target = target_of(device);
    let nsid = pair_namespace(&mut Client::connect(&target)?)?;
    Tcp::existing(&target, nsid, DEPTH, VALUE_BYTES_MAX)
}

/// Runs it.
pub fn run(options: DemoOptions) -> Outcome<()> {
    if let Some(Story::Protection) = options.story {
        return protection::run();
    }
    if options.writes == 0 || options.pairs < 1000 || options.pairs > 10_000_000 || options.writes > 100_000_000 {
        fail!("--writes must be 1 to 100,000,000 and --pairs 1,000 to 10,000,000");
    }
    if options.range.0 < 1 << 20 || options.range.0 > RANGE_BYTES_MAX {
        fail!("--range is {}, must be 1M to {}", options.range, Size(RANGE_BYTES_MAX));
    }
    let folder = match &options.data {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("willow-demo-{}", std::process::id())),
    };
    if folder.exists() {
        fail!("{} exists already: remove it or choose another folder with --data", folder.display());
    }
    std::fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
    let start = Instant::now();
    let mut demo = Demo {
        media: folder.join("media"),
        module: folder.join("key-value.wasm"),
        blocks: Blocks::new(options.range.0 / BLOCK_BYTES as u64, 1),
        pairs: Pairs::new(options.pairs, 2),
        phases: Vec::new(),
        step: 0,
    };
    let result = demo.run(&options);
    finish(result, &folder, options.keep)?;
    output::line(&format!("\nall of it held, in {:.0} s", start.elapsed().as_secs_f64()))
}

fn finish(result: Outcome<()>, folder: &Path, keep: bool) -> Outcome<()> {
    match result {
        Err(failure) => Err(failure).context(|| format!("the demo failed (its files are in {})", folder.display())),
        Ok(()) if keep => Ok(()),
        Ok(()) => std::fs::remove_dir_all(folder).context(|| format!("cannot remove {}", folder.display())),
    }
}
