//! `willow mount`: a block namespace as the file DIR/disk, until it is unmounted or a signal comes.
//!
//! Invariants: the line `mounted …` is printed once the file is there; the first signal unmounts cleanly or says what is in the
//! way, one after that leaves at once where it is still in use.

use crate::client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::target::{Target, TargetOption};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use willow_fuse::{Disk, MountOptions, Mounted, mounted};
use willow_host::nvme_tcp::NamespaceKind;
use willow_host::{BlockClient, ControlClient, Hre, HreError, ShmHre, ShmOptions};

/// Flags of `willow mount`.
#[derive(Debug, clap::Args)]
pub struct MountArguments {
    /// Empty folder to mount at; the namespace is the file `disk` in it
    pub folder: PathBuf,
    /// Block namespace [default: the first]
    #[arg(long)]
    pub nsid: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Let other users see the mount (FUSE has to allow it)
    #[arg(long)]
    pub allow_other: bool,
    /// Requests served at the same time, 1 to 64
    #[arg(long, default_value_t = MountOptions::default().threads)]
    pub threads: usize,
    /// Seconds that a request waits for a device that has gone to come back; 0: it fails at once
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub reconnect: f64,
    #[command(flatten)]
    pub target: TargetOption,
}

/// Runs it.
pub fn run(arguments: &MountArguments) -> Outcome<()> {
    let signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot wait for signals".to_owned())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context(|| "cannot start the I/O runtime".to_owned())?;
    if !(0.0..=86_400.0).contains(&arguments.reconnect) {
        fail!("--reconnect is {}, must be 0 to 86400", arguments.reconnect);
    }
    let reconnect = Duration::from_secs_f64(arguments.reconnect);
    // A disk whose device has forgotten what it answered is not gone on with.
    let forgets = |hre: &Arc<dyn Hre>| -> Outcome<bool> {
        let statistics = runtime.block_on(ControlClient::new(hre.clone()).statistics());
        Ok(statistics.context(|| "cannot ask the device what it is made of".to_owned())?["flash"].is_object())
    };
    let (controller, hre, socket) = match arguments.target.resolve()? {
        Target::Socket(path) => {
            let hre = Arc::new(ShmHre::open(&path, ShmOptions::default()).map_err(Failure::new)?);
            (None, hre.clone() as Arc<dyn Hre>, Some((path, hre)))
        }
        Target::Address(address) => {
            let attach = |reconnect| client::attach_over_tcp(&runtime, &arguments.target, address, reconnect);
            let (controller, hre) = match attach(Duration::ZERO)? {
                attached if reconnect.is_zero() || forgets(&attached.1)? => attached,
                _ => attach(reconnect)?,
            };
            (Some(controller), hre, None)
        }
    };
    let blocks = runtime.block_on(open(hre, arguments.nsid))?;
    let (bytes, nsid) = (blocks.bytes(), blocks.nsid());
    let options =
        MountOptions { threads: arguments.threads, read_only: arguments.read_only, allow_other: arguments.allow_other };
    let mut disk = Disk::new(blocks);
    if let Some((path, hre)) = socket.filter(|_| !reconnect.is_zero()) {
        let identity = runtime.block_on(hre.identity(nsid)).map_err(Failure::new)?;
        let hre: Arc<dyn Hre> = hre;
        disk = disk.forgotten_with_the_device(forgets(&hre)?);
        disk = disk.reaching_again(Box::new(move || Box::pin(reach(path.clone(), nsid, identity))), reconnect);
    }
    let disk = Arc::new(disk);
    let mounted = Mounted::new(disk, &arguments.folder, &options, runtime.handle().clone()).map_err(Failure::new)?;
    unmount_on(signals, mounted.path())?;
    output::line(&format!("mounted {} bytes={bytes}", mounted.path().join(mounted::FILE_NAME).display()))?;
    mounted.run().map_err(Failure::new)?;
    if let Some(controller) = controller {
        // The device notices a connection that ends without it, too.
        let _ = runtime.block_on(async { tokio::time::timeout(client::GOODBYE_TIMEOUT, controller.shut_down()).await });
    }
    Ok(())
}

async fn open(hre: Arc<dyn Hre>, nsid: Option<u32>) -> Outcome<BlockClient> {
    let nsid = match nsid {
        Some(nsid) => nsid,
        None => {
            let all = hre.namespaces().await.context(|| "cannot list the namespaces".to_owned())?;
            let block = all.iter().find(|one| matches!(one.kind, NamespaceKind::Block { .. }));
            match block {
                Some(namespace) => namespace.nsid,
                None => fail!("the device has no block namespace: willow ns create --csi nvm --size 1G"),
            }
        }
    };
    BlockClient::open(hre, nsid).await.context(|| format!("cannot use namespace {nsid}"))
}

/// The same namespace over another endpoint.
async fn reach(path: PathBuf, nsid: u32, identity: [u8; 16]) -> Result<BlockClient, HreError> {
    // A socket that nobody serves, or not yet.
    let opened = ShmHre::open(&path, ShmOptions::default()).map_err(|error| HreError::Gone(error.to_string()))?;
    if opened.identity(nsid).await? != identity {
        return Err(HreError::Namespace {
            nsid,
            problem: "another one than it was: the device has lost its media, or is another",
        });
    }
    BlockClient::open(Arc::new(opened), nsid).await
}

/// A thread that unmounts: cleanly at the first signal, at once at the second.
pub fn unmount_on(mut signals: Signals, path: &Path) -> Outcome<()> {
    let path = path.to_owned();
    let wait = move || {
        for (count, _) in signals.forever().enumerate() {
            match mounted::unmount(&path, false) {
                Ok(()) => {}
                // It goes from the tree now, and what still uses it gets errors.
                Err(_) if count > 0 => {
                    let _ = mounted::unmount(&path, true);
                    std::process::exit(1);
                }
                Err(error) => eprintln!(
                    "willow: {} is not unmounted: {error}; end what uses it (losetup -d, umount), or signal once more to \
                     leave at once",
                    path.display()
                ),
            }
        }
    };
    match std::thread::Builder::new().name("willow-signals".to_owned()).spawn(wait) {
        Ok(_) => Ok(()),
        Err(error) => fail!("cannot start a thread for signals: {error}"),
    }
}
