//! `willow memcached`: memcached's protocols in front of a key-value namespace.
//!
//! Invariants: the line `ready …` is printed once clients are accepted; a signal ends it when what is under way has ended.

use crate::client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::size::Size;
use crate::target::{Target, TargetOption};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;
use willow_memcached::port::memory::Memory;
use willow_memcached::port::network::Network;
use willow_memcached::port::{Port, PortError};
use willow_memcached::{Server, ServerConfig};

/// Where it listens unless told otherwise: memcached's port, for this machine alone.
const LISTEN_DEFAULT: &str = "127.0.0.1:11211";
/// Commands under way over NVMe/TCP.
const DEPTH: u16 = 128;

/// Flags of `willow memcached`.
#[derive(Debug, clap::Args)]
pub struct MemcachedOptions {
    /// Address for TCP; may be given several times [default: 127.0.0.1:11211, where there is no --unix]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Path of a Unix socket, for its owner alone
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// Key-value namespace, where there are several
    #[arg(long)]
    pub nsid: Option<u32>,
    /// Answer before the device has flushed: what was stored survives its process then, not a power cut
    #[arg(long)]
    pub no_flush: bool,
    /// Connections at a time; more wait
    #[arg(long, default_value_t = ServerConfig::default().connections_max)]
    pub connections: usize,
    /// Longest item, at most what one command of the device moves
    #[arg(long, default_value = "1M")]
    pub item_size: Size,
    /// Memory for items of more than 80K that are on their way, all together
    #[arg(long, default_value = "256M")]
    pub memory: Size,
    /// Seconds that clients wait for a device that is gone, before the server ends
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub reconnect: f64,
    #[command(flatten)]
    pub target: TargetOption,
}

fn addresses(options: &MemcachedOptions) -> Outcome<Vec<SocketAddr>> {
    let default = vec![LISTEN_DEFAULT.to_owned()];
    let wanted = match (options.listen.is_empty(), &options.unix) {
        (true, None) => &default,
        _ => &options.listen,
    };
    let mut all = Vec::new();
    for text in wanted {
        match text.to_socket_addrs() {
            Ok(mut found) => all.extend(found.next()),
            Err(error) => fail!("--listen {text} is no address ({error}): use ADDRESS:PORT"),
        }
    }
    Ok(all)
}

/// Runs it.
pub fn run(options: &MemcachedOptions) -> Outcome<()> {
    if !(0.0..=86_400.0).contains(&options.reconnect) {
        fail!("--reconnect is {}, must be 0 to 86400", options.reconnect);
    }
    if options.connections == 0 || options.connections > 100_000 {
        fail!("--connections is {}, must be 1 to 100000", options.connections);
    }
    if options.item_size.0 < 1024 || options.item_size.0 > 16 << 20 {
        fail!("--item-size is {}, must be 1K to 16M", options.item_size);
    }
    let config = ServerConfig {
        listen: addresses(options)?,
        unix: options.unix.clone(),
        connections_max: options.connections,
        durable: !options.no_flush,
        item_bytes_max: options.item_size.0 as usize,
        memory_bytes: usize::try_from(options.memory.0).context(|| "--memory is too much".to_owned())?,
        reconnect: Duration::from_secs_f64(options.reconnect),
        ..ServerConfig::default()
    };
    let nsid = options.nsid;
    match options.target.resolve()? {
        Target::Socket(path) => serve(config, move || Memory::open(&path, nsid), Memory::nsid),
        Target::Address(address) => {
            let mut reached = client::options(&client::runtime()?, &options.target, address)?;
            reached.depth = DEPTH;
            serve(config, move || Network::open(&reached, nsid), Network::nsid)
        }
    }
}

fn serve<P: Port>(
    config: ServerConfig,
    open: impl FnMut() -> Result<P, PortError>,
    nsid: impl Fn(&P) -> u32,
) -> Outcome<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot wait for signals".to_owned())?;
    let mut server = Server::bind(config, open).map_err(Failure::new)?;
    let (stopper, handle) = (server.stopper(), signals.handle());
    let waiter = std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            stopper.stop();
        }
    });
    output::line(&format!("ready listen={} nsid={}", server.addresses().join(","), nsid(server.port())))?;
    let ended = server.run().map_err(Failure::new);
    handle.close();
    // It does nothing that could panic.
    let _ = waiter.join();
    ended
}
