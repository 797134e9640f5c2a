//! `willow serve`: runs a device until it is told to end.
//!
//! Invariants: the line `ready …` is the only thing on standard output; the first SIGTERM or SIGINT ends the device cleanly,
//! the second at once. SIGHUP has keys and addresses read again where there is something to read them from; else it is as SIGTERM.

mod assembly;
mod disk;
mod observed;
mod sampler;
mod temperature;

pub use assembly::{native_app, ram_store};

use crate::config::{ServeConfig, ServeOptions};
use crate::failure::{Context, Failure, Outcome, fail};
use crate::{logging, metrics, output};
use observed::Observed;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::time::Duration;
use temperature::Temperature;
use willow_shm_front::{Front, FrontConfig, Fronted};
use willow_tcp::{ListenAddress, Listeners, Reload, Server, ServerConfig, ServerHandle};

/// Bytes of a serial number (NVMe Base, Identify Controller, SN).
const SERIAL_BYTES: usize = 20;

/// Time that the server has to take over what was read again.
const RELOAD_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `willow serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    #[command(flatten)]
    options: ServeOptions,
    /// TOML file with the same settings as these flags; flags go before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs it.
pub fn run(arguments: ServeArguments) -> Outcome<()> {
    let options = arguments.read()?;
    let asked = options.log.clone();
    let config = options.resolve()?;
    logging::start(&asked.unwrap_or_else(|| logging::filter_or(&config.log)))?;
    serve(&config, arguments)
}

impl ServeArguments {
    /// The flags, and what the file says beside them.
    fn read(&self) -> Outcome<ServeOptions> {
        let options = self.options.clone();
        match &self.config {
            Some(path) => Ok(options.or(ServeOptions::load(path)?)),
            None => Ok(options),
        }
    }
}

fn serve(config: &ServeConfig, arguments: ServeArguments) -> Outcome<()> {
    // Before anything is there that would have to end cleanly.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context(|| "cannot wait for signals".to_owned())?;
    if config.media.is_none() {
        tracing::warn!("contents are in memory and end with this process: use --media DIR to keep them");
    }
    // What cannot be listened on is told before anything else is begun.
    let mut server_config = ServerConfig {
        listen: config.listen.clone(),
        local_users: config.local_users.clone(),
        ..ServerConfig::default()
    };
    let listeners = Listeners::bind(&server_config).map_err(Failure::new)?;
    let front = match &config.socket {
        Some(front) => {
            Some(Front::bind(FrontConfig { spin: server_config.spin, ..front.clone() }).map_err(Failure::new)?)
        }
        None => None,
    };
    let metrics = config.metrics.map(metrics::bind).transpose()?;
    let device = assembly::open(config)?;
    let uuid = device.uuid();
    let nqn = config.nqn.clone().unwrap_or_else(|| nqn_of(&uuid));
    server_config.subsystem.nqn.clone_from(&nqn);
    server_config.subsystem.start = if device.forgets() { assembly::unique_seed()?.max(1) } else { 0 };
    let front = front.map(|front| front.with_start(server_config.subsystem.start));
    server_config.subsystem.serial = hex(&uuid)[..SERIAL_BYTES].to_owned();
    server_config.subsystem.referrals.clone_from(&config.referrals);
    server_config.subsystem.authentication.clone_from(&config.authentication);
    match &config.authentication {
        Some(authentication) => tracing::info!(hosts = authentication.hosts(), "hosts have to prove themselves"),
        None => {
            for ListenAddress { address, .. } in config.listen.iter().filter(|at| !at.address.ip().is_loopback()) {
                tracing::warn!("whoever reaches {address} may do anything: use --host-key FILE");
            }
        }
    }
    let (observed, published) = Observed::new(device, config.media.as_deref(), Temperature::watch()?);
    let mut server = Server::new(server_config, listeners, Fronted::new(observed, front)).map_err(Failure::new)?;
    let handle = server.handle();
    obey(signals, handle.clone(), arguments)?;
    if let Some(metrics) = metrics {
        let address = metrics.start(move || published.ask(&handle))?;
        tracing::info!("metrics at http://{address}/metrics");
    }
    let media = config.media.as_ref().map_or("memory".to_owned(), |folder| folder.display().to_string());
    let listen: Vec<String> = server.local_addrs().iter().map(|at| at.address.to_string()).collect();
    let listen = if listen.is_empty() { "-".to_owned() } else { listen.join(",") };
    tracing::info!(media, version = env!("CARGO_PKG_VERSION"), "serving at {listen}");
    let socket = config.socket.as_ref().map_or("-".to_owned(), |front| front.path.display().to_string());
    output::line(&format!("ready nqn={nqn} listen={listen} socket={socket}"))?;
    server.run().map_err(Failure::new)?;
    tracing::info!("ended cleanly");
    Ok(())
}

/// A thread that hands signals on: to the server what is to be read again, and the first that ends it; the second to the process.
fn obey(mut signals: Signals, handle: ServerHandle, arguments: ServeArguments) -> Outcome<()> {
    let is_reloadable = arguments.config.is_some() || !arguments.options.host_key.is_empty();
    let wait = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            match (signal, is_ending) {
                (SIGHUP, false) if is_reloadable => {
                    if let Err(error) = reload(&handle, &arguments) {
                        tracing::error!("all is as before, since what was read again cannot be: {error}");
                    }
                }
                (SIGHUP, true) => {}
                (_, false) => {
                    tracing::info!(signal, "ending: one more signal ends it at once");
                    handle.stop();
                    is_ending = true;
                }
                (_, true) => {
                    tracing::warn!("ended at once, as a second signal asked for");
                    logging::finish();
                    std::process::exit(1);
                }
            }
        }
    };
    match std::thread::Builder::new().name("willow-signals".to_owned()).spawn(wait) {
        Ok(_) => Ok(()),
        Err(error) => fail!("cannot start a thread for signals: {error}"),
    }
}

/// Reads flags, file and keys again, and has the server work by the hosts and addresses that they say. All else waits for a restart.
fn reload(handle: &ServerHandle, arguments: &ServeArguments) -> Outcome<()> {
    let ServeConfig { listen, referrals, authentication, .. } = arguments.read()?.resolve()?;
    match handle.reload(Reload { listen, referrals, authentication }, RELOAD_LIMIT) {
        Some(result) => result.map(drop).map_err(Failure::new),
        None => fail!("the device has not answered within {} s", RELOAD_LIMIT.as_secs()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of the subsystem of a device: two devices never have the same, whoever starts them (NVMe Base, 4.7, the form
/// with a UUID).
fn nqn_of(uuid: &[u8; 16]) -> String {
    let hex = hex(uuid);
    format!(
        "nqn.2014-08.org.nvmexpress:uuid:{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_the_uuid() {
        let uuid = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(nqn_of(&uuid), "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff");
        assert!(willow_nvme::config::is_nqn(nqn_of(&uuid).as_bytes()));
    }
}
