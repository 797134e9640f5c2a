//! XSSD, section 4.5: searches of a B+tree with 4 kB nodes, 16-byte keys and 1024-byte values.
//!
//! - **IO**: the host goes from the root to the leaf by a read of each node, and reads the value, by Direct-IO's way. The tree is laid out in the block
//!   namespace as the app lays one out, striped over the banks as the namespace is.
//! - **RPC**: the real SSD App `btree`, one request for a search: striped over all banks, and with a tree on each SPU, chosen by the key's hash.
//! - **HW**: the same app's steps by a state machine ([`Laboratory::in_hardware`]).
//!
//! What always holds: each search must bring the value of its key, else the experiment fails. Nothing is fitted: the thesis prints no figure of it that is
//! at hand. What it does not print is a constant below, marked "ours".

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series};
use crate::host::Path;
use crate::random::Random;
use crate::simulation::{Simulation, SimulationOptions};
use crate::thread::{HostThread, SimulatedHre};
use btree_host::wire::{self, KEY_BYTES, Key, VALUE_BYTES_MAX};
use btree_host::{Call, Layout, Tree};
use std::sync::Arc;
use willow_host::hre::{Hre, RpcCall};
use willow_host::{AppClient, HreError};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-btree",
    title: "searches of a B+tree by the host and in the drive, striped and partitioned",
    source: "XSSD 4.5",
    preset: "bee3",
    run,
};

/// Pairs: a tree of all has three levels, one of an SPU's share two. Ours.
const PAIRS: u64 = 30_000;
const VALUE_BYTES: u32 = 1024;
const NODE_BYTES: u32 = 4096;
/// Keys and pointers of a node, as the app has them.
const FANOUT: u64 = 169;
/// Searches of each thread.
const SEARCHES: u64 = 60;
/// Threads of the host.
const THREADS: [u64; 5] = [1, 2, 4, 8, 16];
/// Processor time of the host for the place of a key in a node: eight comparisons of 16 bytes, with the misses of a cache. Ours.
const NODE_NS: u64 = 300;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Io,
    Rpc(Layout),
    Hardware(Layout),
}

fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> Vec<u8> {
    let words = (0..u64::from(VALUE_BYTES) / 8).flat_map(|at| (number ^ at << 32).to_le_bytes());
    words.collect()
}

/// The host's own tree: levels above each other, the leaves' values behind them; entry `n` of a level leads to node `n` of the one below.
struct Shape {
    /// First byte and nodes of each level, the leaves first.
    levels: Vec<(u64, u64)>,
    values: u64,
}

impl Shape {
    fn new() -> Shape {
        let (mut levels, mut nodes, mut at) = (Vec::new(), PAIRS, 0);
        loop {
            nodes = nodes.div_ceil(FANOUT);
            levels.push((at, nodes));
            at += nodes * u64::from(NODE_BYTES);
            if nodes == 1 {
                return Shape { levels, values: at };
            }
        }
    }

    /// Bytes of all.
    fn bytes(&self) -> u64 {
        self.values + PAIRS * u64::from(VALUE_BYTES)
    }

    /// Whichever node: number of its entries.
    fn entries(&self, level: usize, node: u64) -> u64 {
        let below = if level == 0 { PAIRS } else { self.levels[level - 1].1 };
        (below - node * FANOUT).min(FANOUT)
    }

    /// A node: the least key below each of its entries.
    fn node(&self, level: usize, node: u64) -> Vec<u8> {
        let step = FANOUT.pow(level as u32);
        let mut bytes = vec![0xff; NODE_BYTES as usize];
        for entry in 0..self.entries(level, node) {
            bytes[entry as usize * KEY_BYTES..][..KEY_BYTES].copy_from_slice(&key((node * FANOUT + entry) * step));
        }
        bytes
    }
}

async fn lay_out(thread: HostThread) -> Result<(), HreError> {
    let shape = Shape::new();
    for (level, (at, nodes)) in shape.levels.iter().enumerate() {
        for node in 0..*nodes {
            thread.write(Path::Bare, at + node * u64::from(NODE_BYTES), shape.node(level, node)).await?;
        }
    }
    for number in 0..PAIRS {
        thread.write(Path::Bare, shape.values + number * u64::from(VALUE_BYTES), value(number)).await?;
    }
    Ok(())
}

/// The host's search: a read for each level, and one for the value.
async fn by_host(thread: HostThread, mut random: Random) -> Result<(), HreError> {
    let shape = Shape::new();
    for _ in 0..SEARCHES {
        let number = random.below(PAIRS);
        let wanted = key(number);
        let mut node = 0;
        for (level, (at, _)) in shape.levels.iter().enumerate().rev() {
            let bytes = thread.read(Path::User, at + node * u64::from(NODE_BYTES), NODE_BYTES).await?;
            thread.compute(NODE_NS, "search a node").await;
            let keys = bytes.chunks_exact(KEY_BYTES).take(shape.entries(level, node) as usize);
            node = node * FANOUT + keys.take_while(|key| **key <= wanted[..]).count() as u64 - 1;
        }
        let at = shape.values + node * u64::from(VALUE_BYTES);
        if thread.read(Path::User, at, VALUE_BYTES).await? != value(number) {
            return Err(HreError::Answer("a search brought another key's value".to_owned()));
        }
    }
    Ok(())
}

async fn send(hre: &Arc<SimulatedHre>, app: u16, call: Call, reply_bytes_max: u32) -> Result<Vec<u8>, HreError> {
    let Call { spu, handler, body } = call;
    let (arguments, payload) = if reply_bytes_max > 0 { (body, Vec::new()) } else { (Vec::new(), body) };
    let reply = hre.rpc(RpcCall { app, handler, spu: Some(spu), arguments, payload, reply_bytes_max }).await?;
    match reply.status {
        0 if reply_bytes_max > 0 => Ok(reply.data.get(..reply.result as usize).unwrap_or_default().to_vec()),
        0 => Ok(Vec::new()),
        status => Err(HreError::Answer(format!("btree answered with status {status}"))),
    }
}

async fn app(thread: &HostThread) -> Result<u16, HreError> {
    let hre: Arc<dyn Hre> = thread.endpoint().clone();
    Ok(AppClient::find(hre, btree_host::APP_NAME).await?.number())
}

/// Loads the app's tree, in the order of the keys.
async fn load(thread: HostThread, tree: Tree, name: &'static str) -> Result<(), HreError> {
    let (app, hre) = (app(&thread).await?, thread.endpoint().clone());
    for spu in tree.parts() {
        let bank_bytes = 2 * Shape::new().bytes().div_ceil(u64::from(tree.spus));
        send(&hre, app, tree.create(spu, name, bank_bytes), 0).await?;
    }
    for spu in 0..tree.spus {
        let own: Vec<u64> = (0..PAIRS).filter(|number| tree.spu_of(&key(*number)) == spu).collect();
        for some in own.chunks((wire::PUT_BYTES_MAX / VALUE_BYTES).min(wire::PAIRS_MAX) as usize) {
            let pairs: Vec<(Key, Vec<u8>)> = some.iter().map(|number| (key(*number), value(*number))).collect();
            let pairs: Vec<(Key, &[u8])> = pairs.iter().map(|(key, value)| (*key, value.as_slice())).collect();
            send(&hre, app, tree.put(spu, &pairs), 0).await?;
        }
    }
    Ok(())
}

async fn by_app(thread: HostThread, tree: Tree, mut random: Random) -> Result<(), HreError> {
    let (app, hre) = (app(&thread).await?, thread.endpoint().clone());
    for _ in 0..SEARCHES {
        let number = random.below(PAIRS);
        let get = send(&hre, app, tree.get(&key(number)), VALUE_BYTES_MAX);
        if thread.rpc(0, VALUE_BYTES.into(), get).await? != value(number) {
            return Err(HreError::Answer("a search brought another key's value".to_owned()));
        }
    }
    Ok(())
}

/// A device with a tree; searches of so many threads a second, and joules for a million.
fn measure(laboratory: &Laboratory, version: Version) -> Result<Vec<(u64, f64, f64)>, ExperimentError> {
    let hardware = match version {
        Version::Hardware(_) => Some(laboratory.in_hardware()?),
        _ => None,
    };
    let laboratory = hardware.as_ref().unwrap_or(laboratory);
    let name = "experiment";
    let layout = match version {
        Version::Io => Layout::Striped,
        Version::Rpc(layout) | Version::Hardware(layout) => layout,
    };
    let tree = Tree { number: btree_host::number(name), layout, spus: laboratory.preset.device.spus };
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: if version == Version::Io { Shape::new().bytes().next_multiple_of(1 << 20) } else { 0 },
        apps: vec![&willow_apps::INSTALLED_BY_COMMANDS[0]],
        ..laboratory.options()
    })?;
    let ended = |done: Option<Result<(), HreError>>| {
        let done = done.ok_or_else(|| ExperimentError::Other("a thread did not end".to_owned()))?;
        done.map_err(|error| ExperimentError::Other(format!("a thread failed: {error}")))
    };
    let loaded = match version {
        Version::Io => simulation.host_thread("load", lay_out)?,
        _ => simulation.host_thread("load", move |thread| load(thread, tree, name))?,
    };
    simulation.run()?;
    ended(loaded.take())?;
    let mut found = Vec::new();
    for threads in THREADS {
        let random = Random(laboratory.seed ^ threads);
        let mut outputs = Vec::new();
        for number in 0..threads {
            let random = random.part(number);
            let name = format!("search {number} of {threads}");
            outputs.push(match version {
                Version::Io => simulation.host_thread(&name, move |thread| by_host(thread, random))?,
                _ => simulation.host_thread(&name, move |thread| by_app(thread, tree, random))?,
            });
        }
        let report = simulation.run()?;
        outputs.into_iter().try_for_each(|output| ended(output.take()))?;
        let searches = (threads * SEARCHES) as f64;
        found.push((threads, searches / report.elapsed_ns as f64 * 1e9, report.joules() / searches * 1e6));
    }
    Ok(found)
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let versions = [
        ("B+tree-IO", Version::Io),
        ("B+tree-RPC, striped", Version::Rpc(Layout::Striped)),
        ("B+tree-RPC, a tree on each SPU", Version::Rpc(Layout::Partitioned)),
        ("B+tree-HW, striped", Version::Hardware(Layout::Striped)),
        ("B+tree-HW, a tree on each SPU", Version::Hardware(Layout::Partitioned)),
    ];
    let mut findings = Findings::default();
    let (mut series, mut host_rate) = (Vec::new(), 0.0);
    for (name, version) in versions {
        let found = measure(laboratory, version)?;
        if let Some((threads, rate, joules)) = found.last() {
            if version == Version::Io {
                host_rate = *rate;
            }
            findings.notes.push(format!(
                "{name}, {threads} threads: {:.0} thousand searches a second, {:.2} times the host version; {joules:.0} J for a million, {:.0} Js \
                 (energy times delay of a million).",
                rate / 1000.0,
                rate / host_rate,
                joules * 1e6 / rate
            ));
        }
        let points = found.iter().map(|(threads, rate, _)| (*threads as f64, rate / 1000.0)).collect();
        series.push(Series { name: name.to_owned(), points, published: false });
    }
    findings.plots.push(Plot {
        file: "xssd-btree",
        title: format!("searches of a B+tree of {PAIRS} pairs by threads"),
        x: "threads".to_owned(),
        y: "thousand a second".to_owned(),
        drawing: Drawing::Lines { series, log_x: true, log_y: false },
    });
    findings.notes.push(format!(
        "The tree has {PAIRS} pairs of 16-byte keys and {VALUE_BYTES}-byte values in leaves' pointers: {} levels where it is one, two where each SPU has its \
         share. The thesis does not print the number of pairs; more levels cost the host version a read each, and the app a DMA.",
        Shape::new().levels.len()
    ));
    findings.notes.push(
        "The app is the real one, in the sandbox: it makes changes safe over power cuts, and looks at the root again after each search, which in a striped \
         tree is two reads over the ring."
            .to_owned(),
    );
    findings.notes.push(super::HARDWARE_NOTE.to_owned());
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_tree_leads_to_each_key() {
        let shape = Shape::new();
        assert_eq!(shape.levels.len(), 3);
        for number in [0, 1, FANOUT - 1, FANOUT, 12_345, FANOUT * FANOUT, PAIRS - 1] {
            let mut node = 0;
            for level in (0..shape.levels.len()).rev() {
                let bytes = shape.node(level, node);
                let entries = shape.entries(level, node) as usize;
                let keys = bytes.chunks_exact(KEY_BYTES).take(entries);
                node = node * FANOUT + keys.take_while(|it| **it <= key(number)[..]).count() as u64 - 1;
            }
            assert_eq!(node, number);
        }
    }
}
