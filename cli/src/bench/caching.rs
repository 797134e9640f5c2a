//! `willow bench cache`: a file that is cached in NV memory (Willow, 4.4), by cache size: hits and misses, beside Direct-IO's reads of the same device by
//! the same endpoint, and beside what FlashCache's and other policies would have missed.
//!
//! Invariants: all sizes see the same accesses; what a policy would have missed is counted over exactly those; each cache is filled by the same
//! accesses once before anything counts. The device is a process of its own, in memory; the backing file is one of this machine's.

use super::TURNS_MAX;
use super::engine::Plan;
use super::report::{Report, Row, median, p50_us};
use crate::child::DeviceProcess;
use crate::client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::size::Size;
use direct_io_host::wire::{Arguments, handler};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::cache::{Backing, CacheOptions, Manager, Mode};
use willow_host::{CachingClient, ControlClient, Hre, RpcCall, ShmHre, ShmOptions};

/// Bytes of an access, and of a chunk.
const BLOCK_BYTES: u32 = 4096;
/// The cache is the file's length over each of these.
const FRACTIONS: [u64; 5] = [128, 32, 8, 2, 1];
/// Blocks of a set of FlashCache's, where nothing else is said there.
const SET_BLOCKS: usize = 512;
/// Of the blocks a tenth gets this part of the accesses.
const HOT_SHARE: f64 = 0.9;
/// Longest latency that is told apart.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Flags of `willow bench cache`.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheBenchOptions {
    /// Bytes of the backing file
    #[arg(long, default_value = "64M")]
    pub range: Size,
    /// Accesses of each turn
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    pub accesses: usize,
    /// Of 100 accesses so many are writes, written back
    #[arg(long, default_value_t = 10, value_name = "PERCENT")]
    pub writes: u64,
    /// Turns of each size
    #[arg(long, default_value_t = 3)]
    pub turns: u32,
    /// Folder of the backing file: on the storage that is cached
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

/// SplitMix64: the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to 1, without that.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Sums of 1 / rank^s up to each rank, as parts of the whole.
fn zipf(blocks: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=blocks).map(|rank| (sum += (rank as f64).powf(-exponent), sum).1).collect();
    sums.into_iter().map(|part| part / sum).collect()
}

/// Zipf's law of which a tenth of the blocks gets [`HOT_SHARE`]; with its exponent.
fn ninety_ten(blocks: usize) -> (f64, Vec<f64>) {
    let (mut low, mut high) = (0.0, 4.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if zipf(blocks, middle)[(blocks / 10).max(1) - 1] < HOT_SHARE { low = middle } else { high = middle }
    }
    (high, zipf(blocks, high))
}

/// Blocks in the order in which they are asked for; true where they are written.
fn trace(blocks: usize, options: &CacheBenchOptions) -> (f64, Vec<(u64, bool)>) {
    let (exponent, parts) = ninety_ten(blocks);
    let mut random = Random(options.seed);
    // Which block is how popular.
    let mut order: Vec<u64> = (0..blocks as u64).collect();
    for last in (1..blocks).rev() {
        order.swap(last, random.next() as usize % (last + 1));
    }
    let mut one = || {
        let at = random.unit();
        let rank = parts.partition_point(|part| *part <= at).min(blocks - 1);
        (order[rank], random.next() % 100 < options.writes)
    };
    (exponent, (0..options.accesses).map(|_| one()).collect())
}

/// What a set has: its blocks in the order in which they came, and when each was used last, by block and by time.
type Set = (VecDeque<u64>, BTreeMap<u64, u64>, BTreeMap<u64, u64>);

/// Misses of so many blocks in sets, of which the first that came goes (FIFO), or the one that was not used longest (LRU): counted in the second round
/// of the same accesses.
fn missed_by_sets(trace: &[(u64, bool)], blocks: usize, set_blocks: usize, is_lru: bool) -> u64 {
    let set_blocks = set_blocks.min(blocks).max(1);
    let mut sets: Vec<Set> = vec![Default::default(); (blocks / set_blocks).max(1)];
    let (count, mut missed, mut time) = (sets.len() as u64, 0, 0u64);
    for round in 0..2 {
        for (block, _) in trace {
            time += 1;
            // Blocks behind each other share a set, as in FlashCache.
            let (queue, by_block, by_time) = &mut sets[(block / set_blocks as u64 % count) as usize];
            if let Some(used) = by_block.get_mut(block) {
                if is_lru {
                    by_time.remove(used);
                    *used = time;
                    by_time.insert(time, *block);
                }
                continue;
            }
            missed += round;
            if by_block.len() >= set_blocks {
                let gone = if is_lru { by_time.pop_first().map(|(_, block)| block) } else { queue.pop_front() };
                gone.and_then(|gone| by_block.remove(&gone));
            }
            by_block.insert(*block, time);
            if is_lru {
                by_time.insert(time, *block);
            } else {
                queue.push_back(*block);
            }
        }
    }
    missed
}

fn histogram() -> Outcome<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).map_err(Failure::new)
}

/// What one turn of a cache came to.
struct Turn {
    rows: Vec<Row>,
    missed: u64,
}

async fn one_turn(manager: &Manager, trace: &[(u64, bool)], name: &str, device: u32) -> Outcome<Turn> {
    let client = manager.client();
    let (mut hits, mut misses) = (histogram()?, histogram()?);
    let data = vec![7; BLOCK_BYTES as usize];
    let (begun, cpu, of_device) = (Instant::now(), crate::cpu::of_self(), crate::cpu::of_process(device));
    for (block, writes) in trace {
        let at = Instant::now();
        let mut is_missed = false;
        loop {
            let done = match writes {
                true => client.write(*block, 0, &data).await,
                false => client.read(*block, 0, BLOCK_BYTES).await.map(drop),
            };
            match done {
                Ok(()) => break,
                Err(error) if error.is(caching_host::Refusal::Miss) => {
                    is_missed = true;
                    manager.fetch(*block, 0, 0).await.map_err(Failure::new)?;
                }
                Err(error) => return Err(Failure::new(error)),
            }
        }
        let took = at.elapsed().as_nanos() as u64;
        match (is_missed, writes) {
            (true, _) => misses.saturating_record(took),
            (false, false) => hits.saturating_record(took),
            // Counted, and not among the hits that are held against reads.
            (false, true) => {}
        }
    }
    let elapsed = begun.elapsed();
    let plan = |what: &str| Plan {
        name: format!("{name} {what}"),
        transport: "cache",
        queue_depth: 1,
        warm_up: Duration::ZERO,
        duration: elapsed,
        target_pid: Some(device),
    };
    let (cpu, of_device) = (crate::cpu::of_self() - cpu, crate::cpu::of_process(device).zip(of_device));
    let of_device = of_device.map(|(after, before)| after - before);
    let bytes = trace.len() as u64 * u64::from(BLOCK_BYTES);
    let all = Row::new(&plan("read hits"), elapsed, trace.len() as u64, bytes, &hits, cpu, of_device);
    let missed =
        Row::new(&plan("misses"), elapsed, misses.len(), misses.len() * u64::from(BLOCK_BYTES), &misses, cpu, None);
    Ok(Turn { rows: vec![all, missed], missed: misses.len() })
}

/// Reads by Direct-IO, of blocks of the device's namespace, by the same endpoint.
async fn directly(hre: &Arc<dyn Hre>, blocks: &[(u64, bool)]) -> Outcome<Row> {
    let control = ControlClient::new(hre.clone());
    let app = control.find_app(direct_io_host::APP_NAME).await.map_err(Failure::new)?;
    let (spus, _) = control.stripes().await.map_err(Failure::new)?;
    let namespaces = control.namespaces().await.map_err(Failure::new)?;
    let base = namespaces.first().ok_or_else(|| Failure::new("the device has no namespace"))?.base;
    let mut reads = histogram()?;
    let (begun, cpu) = (Instant::now(), crate::cpu::of_self());
    for (block, _) in blocks {
        let nv_address = base + block / u64::from(spus) * u64::from(BLOCK_BYTES);
        let arguments = Arguments { nv_address, bytes: BLOCK_BYTES, flags: 0 }.encode().to_vec();
        let spu = Some((block % u64::from(spus)) as u16);
        let call =
            RpcCall { app, handler: handler::READ, spu, arguments, reply_bytes_max: BLOCK_BYTES, ..RpcCall::default() };
        let at = Instant::now();
        let reply = hre.rpc(call).await.map_err(Failure::new)?;
        reads.saturating_record(at.elapsed().as_nanos() as u64);
        if reply.status != 0 {
            fail!("a read by Direct-IO ended with status {}", reply.status);
        }
    }
    let elapsed = begun.elapsed();
    let plan = Plan {
        name: "read".to_owned(),
        transport: "direct-io",
        queue_depth: 1,
        warm_up: Duration::ZERO,
        duration: elapsed,
        target_pid: None,
    };
    let bytes = blocks.len() as u64 * u64::from(BLOCK_BYTES);
    Ok(Row::new(&plan, elapsed, blocks.len() as u64, bytes, &reads, crate::cpu::of_self() - cpu, None))
}

/// Runs it.
pub fn run(options: &CacheBenchOptions) -> Outcome<Report> {
    let blocks = options.range.0 / u64::from(BLOCK_BYTES);
    if !options.range.0.is_multiple_of(FRACTIONS[0] * u64::from(BLOCK_BYTES)) || !(1024..=1 << 16).contains(&blocks) {
        fail!("--range is {}, must be 4M to 256M, a multiple of 512K", options.range);
    }
    if options.accesses == 0 || options.accesses > 10_000_000 || options.writes > 100 {
        fail!("--accesses must be 1 to 10000000, --writes 0 to 100");
    }
    if options.turns == 0 || options.turns > TURNS_MAX {
        fail!("--turns is {}, must be 1 to {TURNS_MAX}", options.turns);
    }
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let own = folder.join(format!("willow-bench-cache-{}", std::process::id()));
    std::fs::create_dir_all(&own).context(|| format!("cannot make {}", own.display()))?;
    let report = measure(options, &own, blocks as usize);
    let _ = std::fs::remove_dir_all(&own);
    report
}

fn measure(options: &CacheBenchOptions, own: &std::path::Path, blocks: usize) -> Outcome<Report> {
    let (path, socket) = (own.join("backing"), own.join("device.sock"));
    std::fs::write(&path, vec![1; options.range.0 as usize]).context(|| "cannot write the backing file".to_owned())?;
    let size = options.range.0.to_string();
    let arguments =
        ["--ram", "--listen", "none", "--size", &size, "--kv-size", "1M", "--socket", &socket.display().to_string()];
    let device = DeviceProcess::start(&arguments)?;
    let runtime = client::runtime()?;
    let hre: Arc<dyn Hre> = Arc::new(ShmHre::open(&socket, ShmOptions::default()).map_err(Failure::new)?);
    let app = runtime.block_on(CachingClient::find(hre.clone())).map_err(Failure::new)?;
    let (exponent, trace) = trace(blocks, options);
    let (mut rows, mut figures) = (Vec::new(), serde_json::Map::new());
    for fraction in FRACTIONS {
        let name = format!("1/{fraction}");
        let bytes = options.range.0 / fraction;
        let cache = CacheOptions { mode: Some(Mode::WriteBack), bytes: Some(bytes), chunk_bytes: Some(BLOCK_BYTES) };
        let file = std::fs::File::options().read(true).write(true).open(&path);
        let file = file.context(|| "cannot open the backing file".to_owned())?;
        let backing = Backing::of(file).map_err(Failure::new)?;
        let manager = runtime.block_on(Manager::open(&app, backing, &cache)).map_err(Failure::new)?;
        runtime.block_on(one_turn(&manager, &trace, &name, device.pid()))?;
        let mut missed = 0;
        for _ in 0..options.turns {
            rows.push(runtime.block_on(directly(&hre, &trace[..trace.len().min(20_000)]))?);
            let turn = runtime.block_on(one_turn(&manager, &trace, &name, device.pid()))?;
            missed += turn.missed;
            rows.extend(turn.rows);
            // It is known to be there.
            runtime.block_on(manager.hold()).map_err(Failure::new)?;
        }
        runtime.block_on(manager.close()).map_err(Failure::new)?;
        let part = |missed: u64, turns: u32| {
            let all = trace.len() as f64 * f64::from(turns);
            serde_json::json!((missed as f64 / all * 10_000.0).round() / 10_000.0)
        };
        let slots = (bytes / u64::from(BLOCK_BYTES)) as usize;
        figures.insert(format!("cache {name}: miss rate"), part(missed, options.turns));
        for (policy, set, is_lru) in [
            ("LRU", slots, true),
            ("FlashCache, sets of 512, FIFO", SET_BLOCKS, false),
            ("FlashCache, sets of 512, LRU", SET_BLOCKS, true),
        ] {
            let simulated = missed_by_sets(&trace, slots, set, is_lru);
            figures.insert(format!("cache {name}: miss rate of {policy}, simulated"), part(simulated, 1));
        }
        let hit = median(&rows, &format!("{name} read hits"), "cache", p50_us);
        let direct = median(&rows, "read", "direct-io", p50_us);
        let ratio = (hit / direct.max(1e-9) * 100.0).round() / 100.0;
        figures
            .insert(format!("cache {name}: p50 of a read hit over that of a Direct-IO read"), serde_json::json!(ratio));
    }
    let settings = serde_json::json!({
        "range": options.range.0, "accesses": options.accesses, "writes_percent": options.writes, "turns": options.turns,
        "zipf_exponent": exponent, "chunk_bytes": BLOCK_BYTES,
    });
    device.end()?;
    Ok(Report { bench: "cache", settings, rows, figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_blocks_gets_nine_tenths_of_the_accesses() {
        let (_, parts) = ninety_ten(4096);
        assert!((parts[408] - HOT_SHARE).abs() < 0.01, "{}", parts[408]);
        assert!((parts[4095] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn policies_miss_what_they_should() {
        let of = |blocks: &[u64]| blocks.iter().map(|block| (*block, false)).collect::<Vec<_>>();
        // Two places: in the second round 1 is a hit each time for the last used, and not for the first that came.
        let trace = of(&[1, 2, 1, 3]);
        assert_eq!(missed_by_sets(&trace, 2, 2, true), 2);
        assert_eq!(missed_by_sets(&trace, 2, 2, false), 3);
        // All fit.
        assert_eq!(missed_by_sets(&of(&[1, 2, 3, 4]), 4, 4, true), 0);
        // In sets of one, 0 and 2 push each other out, and 1 is alone.
        assert_eq!(missed_by_sets(&of(&[0, 1, 2]), 2, 1, true), 2);
    }
}
