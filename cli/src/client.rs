//! A connection to a device for the commands: NVMe/TCP or shared memory by the host library, one request at a time, errors as
//! sentences.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::statistics::Statistics;
use crate::target::{Target, TargetOption};
use atomic_write_host::wire::Statistics as LogStatistics;
use base_io_host::Geometry;
use key_value_host::Key;
use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use willow_host::control::{AppInfo, AttachRequest, Attachment, CommandSet, CoreInfo, NamespaceInfo, NamespaceRequest};
use willow_host::{
    AtomicWriteClient, BlockClient, ControlClient, Controller, Hre, HreError, KvClient, NvmeHre, Options, RpcCall,
    ShmHre, ShmOptions, StoreCondition,
};
use willow_wire::control::{ControlStatus, DebugState, DieWear, FrameValues, ProfileReport, StoppedFrame};
use willow_wire::spec::fabrics::DISCOVERY_NQN;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request: compiling a large module on a busy machine takes seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a clean goodbye.
pub const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Options for connecting to the subsystem at an address; its name is asked for at the discovery service there.
pub fn options(runtime: &Runtime, target: &TargetOption, address: SocketAddr) -> Outcome<Options> {
    let mut options = Options::new(address, DISCOVERY_NQN);
    let mut hint = "start one with willow serve, use --target, or --key where it demands TLS";
    if let Some(key) = target.host_key()? {
        options = options.with_host_key(key);
        hint = "start one with willow serve, or use --target";
    }
    options.connect_timeout = CONNECT_TIMEOUT;
    options.command_timeout = REQUEST_TIMEOUT;
    options.reconnect_for = Duration::ZERO;
    // Nothing runs between two requests of a command that could feed the timer.
    options.keep_alive = Duration::ZERO;
    let found = runtime.block_on(willow_host::nvme_tcp::discover(&options));
    let found = found.context(|| format!("no device answers at {address} ({hint})"))?;
    match found.into_iter().find(|entry| entry.subsystem_nqn != DISCOVERY_NQN) {
        Some(entry) => options.subsystem_nqn = entry.subsystem_nqn,
        None => fail!("the discovery service at {address} knows no subsystem: is it a Willow device?"),
    }
    Ok(options)
}

/// A runtime of this thread.
pub fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(|| "cannot start the I/O runtime".to_owned())
}

/// An endpoint of a device, wherever it is; over NVMe/TCP with the controller that carries it.
pub fn attach(runtime: &Runtime, target: &TargetOption) -> Outcome<(Option<Controller>, Arc<dyn Hre>)> {
    let address = match target.resolve()? {
        Target::Socket(path) => {
            let hre = ShmHre::open(&path, ShmOptions::default()).map_err(Failure::new)?;
            return Ok((None, Arc::new(hre)));
        }
        Target::Address(address) => address,
    };
    let (controller, hre) = attach_over_tcp(runtime, target, address, Duration::ZERO)?;
    Ok((Some(controller), hre))
}

/// The same at an address; requests wait for a device that has gone for as long as `reconnect` says.
pub fn attach_over_tcp(
    runtime: &Runtime,
    target: &TargetOption,
    address: SocketAddr,
    reconnect: Duration,
) -> Outcome<(Controller, Arc<dyn Hre>)> {
    let mut options = options(runtime, target, address)?;
    let anonymous = options.credentials.is_none() && options.psk.is_none();
    options.reconnect_for = reconnect;
    let (controller, hre) = runtime
        .block_on(async {
            let controller = Controller::connect(options).await?;
            let hre = NvmeHre::new(controller.clone(), 0).await?;
            Ok::<_, willow_host::HreError>((controller, hre))
        })
        .context(|| {
            let advice = if anonymous {
                " (if it knows hosts by their keys: --key FILE; if not, users of its machine other than root and the one who runs it are \
                 refused)"
            } else {
                ""
            };
            format!("cannot attach to the device at {address}{advice}")
        })?;
    Ok((controller, Arc::new(hre)))
}

/// What a handler answered.
pub struct Answer {
    /// Status, 0 is success.
    pub status: u32,
    /// Result.
    pub result: u32,
    /// Reply.
    pub reply: Vec<u8>,
}

/// A block namespace, and where it lies in the banks.
#[derive(Clone, Copy, Debug)]
pub struct BlockNamespace {
    /// Its number.
    pub nsid: u32,
    /// Its size.
    pub bytes: u64,
    /// Where its bytes lie.
    pub geometry: Geometry,
}

/// The connection.
pub struct Client {
    runtime: Runtime,
    /// Over NVMe/TCP, to say goodbye.
    controller: Option<Controller>,
    hre: Arc<dyn Hre>,
    control: ControlClient,
    /// The key-value namespace that was used last.
    kv: Option<KvClient>,
}

impl Client {
    /// Connects.
    pub fn connect(target: &TargetOption) -> Outcome<Self> {
        let runtime = runtime()?;
        let (controller, hre) = attach(&runtime, target)?;
        Ok(Client { runtime, controller, control: ControlClient::new(hre.clone()), hre, kv: None })
    }

    fn wait<T, E: Display>(&self, what: &str, request: impl Future<Output = Result<T, E>>) -> Outcome<T> {
        self.runtime.block_on(request).context(|| what.to_owned())
    }

    /// Installs a module; returns its number.
    pub fn install(&mut self, module: &[u8]) -> Outcome<u16> {
        self.wait("the app was not installed", self.control.install(module.to_vec()))
    }

    /// The installed apps.
    pub fn apps(&mut self) -> Outcome<Vec<AppInfo>> {
        self.wait("cannot list the apps", self.control.apps())
    }

    /// Removes an app.
    pub fn remove(&mut self, name: &str) -> Outcome<()> {
        self.wait(&format!("app {name} was not removed"), self.control.remove(name))
    }

    /// How worn the blocks of a die of an SPU's flash are.
    pub fn die_wear(&mut self, spu: u16, die: u32) -> Outcome<DieWear> {
        self.wait("cannot read the map of the flash", self.control.die_wear(spu, die))
    }

    /// Number of an installed app.
    pub fn find_app(&mut self, name: &str) -> Outcome<u16> {
        self.wait(&format!("there is no app {name} for this user"), self.control.find_app(name))
    }

    /// What an app printed, from a place in its log on: where that begins, and some of the text.
    pub fn log_from(&mut self, name: &str, app: u16, position: u64) -> Outcome<(u64, Vec<u8>)> {
        self.wait(&format!("cannot read the log of app {name}"), self.control.log_from(app, position))
    }

    /// Has an app be profiled; the inner error is that the device is busy with another profile, or the app with a change of its own.
    pub fn begin_profile(&mut self, name: &str, milliseconds: u32) -> Outcome<Outcome<()>> {
        let app = self.find_app(name)?;
        let busy = ControlStatus::Busy as u32;
        let mut is_busy = false;
        let begun = async {
            let begun = self.control.begin_profile(app, milliseconds).await;
            is_busy = matches!(&begun, Err(HreError::Control { status, .. }) if *status == busy);
            begun
        };
        let begun = self.wait(&format!("app {name} is not profiled"), begun);
        if is_busy { Ok(begun) } else { begun.map(Ok) }
    }

    /// What came to the profile since it was read last.
    pub fn read_profile(&mut self) -> Outcome<ProfileReport> {
        self.wait("the profile cannot be read", self.control.read_profile())
    }

    /// The profile ends.
    pub fn end_profile(&mut self) -> Outcome<()> {
        self.wait("the profile did not end", self.control.end_profile())
    }

    /// Has an app be started anew for this connection to debug.
    pub fn begin_debug(&mut self, name: &str, app: u16, stop_ms_max: u32) -> Outcome<()> {
        self.wait(&format!("app {name} is not debugged"), self.control.begin_debug(app, stop_ms_max))
    }

    /// It is debugged no longer.
    pub fn end_debug(&mut self, app: u16) -> Outcome<()> {
        self.wait("the debugger did not end", self.control.end_debug(app))
    }

    /// Where its instances have stopped.
    pub fn debug_state(&mut self, app: u16) -> Outcome<Vec<DebugState>> {
        self.wait("the app is debugged no longer", self.control.debug_state(app))
    }

    /// The stack of a stopped instance.
    pub fn debug_stack(&mut self, app: u16, spu: u16) -> Outcome<Vec<StoppedFrame>> {
        self.wait("the stack cannot be read", self.control.debug_stack(app, spu))
    }

    /// The values of one of its frames.
    pub fn debug_values(&mut self, app: u16, spu: u16, frame: u32) -> Outcome<FrameValues> {
        self.wait("the values cannot be read", self.control.debug_values(app, spu, frame))
    }

    /// Some of its memory.
    pub fn debug_memory(&mut self, app: u16, spu: u16, range: (u32, u32)) -> Outcome<Vec<u8>> {
        self.wait("the memory cannot be read", self.control.debug_memory(app, spu, range))
    }

    /// The module of an app that is debugged.
    pub fn debug_module(&mut self, app: u16) -> Outcome<Vec<u8>> {
        self.wait("the module cannot be read", self.control.debug_module(app))
    }

    /// Tells an instance, or all, what the debugger says.
    pub fn debug_tell(&mut self, app: u16, spu: Option<u16>, words: &[u32]) -> Outcome<()> {
        self.wait("the app was not told", self.control.debug_tell(app, spu, words))
    }

    /// Starts an app anew.
    pub fn reset(&mut self, name: &str) -> Outcome<()> {
        self.wait(&format!("app {name} was not reset"), self.control.reset(name))
    }

    /// The instance of an app that trapped last, and its memory.
    pub fn core(&mut self, name: &str) -> Outcome<(CoreInfo, Vec<u8>)> {
        let app = self.find_app(name)?;
        self.wait(&format!("there is no core of app {name}"), self.control.core(app))
    }

    /// The namespaces.
    pub fn namespaces(&mut self) -> Outcome<Vec<NamespaceInfo>> {
        self.wait("cannot list the namespaces", self.control.namespaces())
    }

    /// Makes a namespace; returns its number.
    pub fn create_namespace(&mut self, csi: CommandSet, size_bytes: u64, block_bytes: Option<u32>) -> Outcome<u32> {
        self.make_namespace(&NamespaceRequest { block_bytes, ..NamespaceRequest::new(csi, size_bytes) })
    }

    /// The same with the hosts that it is attached to.
    pub fn make_namespace(&mut self, request: &NamespaceRequest) -> Outcome<u32> {
        self.wait("the namespace was not made", self.control.create_namespace(request))
    }

    /// Which hosts namespaces are attached to; one that is not listed is open to every host.
    pub fn attachments(&mut self) -> Outcome<Vec<Attachment>> {
        self.wait("cannot list who has the namespaces", self.control.attachments())
    }

    /// Changes which hosts a namespace is attached to.
    pub fn change_attachment(&mut self, request: &AttachRequest) -> Outcome<()> {
        let what = format!("namespace {} stays attached as it was", request.nsid);
        self.wait(&what, self.control.change_attachment(request))
    }

    /// Deletes a namespace.
    pub fn delete_namespace(&mut self, nsid: u32) -> Outcome<()> {
        self.wait(&format!("namespace {nsid} was not deleted"), self.control.delete_namespace(nsid))
    }

    /// Gives a block namespace another size; the size that it has then.
    pub fn resize_namespace(&mut self, nsid: u32, size_bytes: u64) -> Outcome<u64> {
        self.wait(&format!("namespace {nsid} was not resized"), self.control.resize_namespace(nsid, size_bytes))?;
        let found = self.namespaces()?.into_iter().find(|namespace| namespace.nsid == nsid);
        Ok(found.map_or(size_bytes, |namespace| namespace.size_bytes))
    }

    /// Calls a handler. Data and a reply exclude each other, up to the 24 bytes that a call carries in its command.
    pub fn rpc(&mut self, app: u16, handler: u8, spu: Option<u16>, data: &[u8], reply_bytes: u32) -> Outcome<Answer> {
        let mut call = RpcCall { app, handler, spu, reply_bytes_max: reply_bytes, ..RpcCall::default() };
        if reply_bytes > 0 {
            call.arguments = data.to_vec();
        } else {
            call.payload = data.to_vec();
        }
        let reply = self.wait("the call failed", self.hre.rpc(call))?;
        Ok(Answer { status: reply.status, result: reply.result, reply: reply.data })
    }

    /// Users' weights.
    pub fn weights(&mut self) -> Outcome<Vec<(u32, u16)>> {
        self.wait("cannot list the weights", self.control.weights())
    }

    /// Gives a user a weight; 0 takes it away.
    pub fn set_weight(&mut self, user: u32, weight: u16) -> Outcome<()> {
        self.wait("the weight was not set", self.control.set_weight(user, None, weight))
    }

    /// The device's statistics as it sends them.
    pub fn statistics_document(&mut self) -> Outcome<serde_json::Value> {
        self.wait("cannot read the statistics", self.control.statistics())
    }

    /// The device's statistics.
    pub fn statistics(&mut self) -> Outcome<Statistics> {
        serde_json::from_value(self.statistics_document()?)
            .context(|| "the device's statistics are not what this version understands".to_owned())
    }

    fn kv(&mut self, nsid: u32) -> Outcome<KvClient> {
        match &self.kv {
            Some(kv) if kv.nsid() == nsid => Ok(kv.clone()),
            _ => {
                let kv = self.wait("cannot use the key-value namespace", KvClient::open(self.hre.clone(), nsid))?;
                self.kv = Some(kv.clone());
                Ok(kv)
            }
        }
    }

    /// Where a block namespace lies.
    pub fn block_namespace(&mut self, nsid: u32) -> Outcome<BlockNamespace> {
        let (spus, _) = self.wait("cannot ask how blocks lie on the processors", self.control.stripes())?;
        let found = self.namespaces()?.into_iter().find(|namespace| namespace.nsid == nsid);
        let Some(found) = found else { fail!("there is no namespace {nsid}") };
        let geometry = Geometry { spus, stripe_bytes: found.stripe_bytes, base: found.base };
        Ok(BlockNamespace { nsid, bytes: found.size_bytes, geometry })
    }

    fn atomic_write(&self) -> Outcome<AtomicWriteClient> {
        self.wait("the device has no app atomic-write", AtomicWriteClient::find(self.hre.clone()))
    }

    /// Writes ranges (first byte, data) of a block namespace as a whole or not at all; or gives them up before that.
    pub fn write_atomically(&mut self, to: &BlockNamespace, ranges: &[(u64, &[u8])], gives_up: bool) -> Outcome<()> {
        let namespace = self.namespaces()?.into_iter().find(|namespace| namespace.nsid == to.nsid);
        if let Some(app) = namespace.map(|namespace| namespace.app).filter(|app| app != base_io_host::APP_NAME) {
            // What is written past an app with a log of its own, that log could undo.
            fail!(
                "namespace {} is served by the app {app}: only those of {} can be written so",
                to.nsid,
                base_io_host::APP_NAME
            );
        }
        let client = self.atomic_write()?;
        let written = self.runtime.block_on(async {
            let mut transaction = client.begin();
            for (start, data) in ranges {
                if let Err(error) = transaction.write_range(&to.geometry, *start, data).await {
                    let _ = transaction.abort().await;
                    return Err(error);
                }
            }
            if gives_up { transaction.abort().await } else { transaction.commit().await }
        });
        written.map_err(|error| match error.is_unknown() {
            true => Failure::new(format_args!("whether all was written, or nothing, is not known: {error}")),
            false => Failure::new(format_args!("nothing was written: {error}")),
        })
    }

    /// Bytes of a block namespace that lie within it.
    pub fn read_range(&mut self, from: &BlockNamespace, start: u64, bytes: u64) -> Outcome<Vec<u8>> {
        let hre = self.hre.clone();
        self.wait("the namespace cannot be read", async {
            let client = BlockClient::open(hre, from.nsid).await?;
            let block = u64::from(client.block_bytes());
            let (first, end) = (start / block * block, (start + bytes).next_multiple_of(block));
            let mut data = client.read(first, (end - first) as usize).await?;
            data.drain(..(start - first) as usize);
            data.truncate(bytes as usize);
            Ok::<_, willow_host::HreError>(data)
        })
    }

    /// How full Atomic-Write's log is, by processor.
    pub fn log_statistics(&mut self) -> Outcome<Vec<LogStatistics>> {
        let client = self.atomic_write()?;
        let (spus, _) = self.wait("cannot ask for the processors", self.control.stripes())?;
        (0..spus).map(|spu| self.wait("cannot ask for the log", client.statistics(spu))).collect()
    }

    /// Stores a pair.
    pub fn put(&mut self, nsid: u32, key: &Key, value: &[u8]) -> Outcome<()> {
        let kv = self.kv(nsid)?;
        self.wait("the pair was not stored", kv.store(key.as_bytes(), value.to_vec(), StoreCondition::Always))
    }

    /// The value of a key.
    pub fn get(&mut self, nsid: u32, key: &Key) -> Outcome<Option<Vec<u8>>> {
        let kv = self.kv(nsid)?;
        self.wait("the value cannot be read", kv.retrieve(key.as_bytes()))
    }

    /// Deletes a pair; false where there was none.
    pub fn delete(&mut self, nsid: u32, key: &Key) -> Outcome<bool> {
        let kv = self.kv(nsid)?;
        self.wait("the pair was not deleted", kv.delete(key.as_bytes()))
    }

    /// True where there is such a pair.
    pub fn exists(&mut self, nsid: u32, key: &Key) -> Outcome<bool> {
        let kv = self.kv(nsid)?;
        self.wait("the key cannot be looked for", kv.exists(key.as_bytes()))
    }

    /// Some of the keys behind `after`, in order; none: that was the end.
    pub fn list(&mut self, nsid: u32, after: Option<&Key>) -> Outcome<Vec<Key>> {
        let kv = self.kv(nsid)?;
        let keys = self.wait("the keys cannot be listed", kv.list_page(after.map(Key::as_bytes)))?;
        keys.iter().map(|key| Key::new(key).context(|| "the device listed an impossible key".to_owned())).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(controller) = self.controller.clone() else { return };
        // The device notices a connection that ends without it, too.
        let _ = self.runtime.block_on(async { tokio::time::timeout(GOODBYE_TIMEOUT, controller.shut_down()).await });
    }
}
