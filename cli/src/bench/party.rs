//! Processes beside each other on one device: endpoints that belong to processes of their own, all driven by one thread, so that
//! who waits for whom is the device's doing and not the operating system's.
//!
//! Invariants: each party has a process for as long as the value lives (a child that connects, hands its connection over and sleeps);
//! a command that does not end well ends the benchmark.

use super::CommonOptions;
use super::engine::Random;
use super::fairness::CHASERS;
use super::io::{self, IoOptions};
use super::shm::{self, Shm};
use crate::child::DeviceProcess;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::size::Size;
use base_io_host::Geometry;
use base_io_host::wire::handler;
use direct_io_host::bank_ranges;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::control::PermissionInfo;
use willow_host::{ControlClient, ShmHre, ShmOptions};
use willow_shm::layout::{Call, Command, Completion, Operation, Outcome as End};
use willow_shm::message::{Kind, View};
use willow_shm::ring::Endpoint;
use willow_shm::socket::{Channel, ReceiveError};

/// Bytes of a small read.
pub const READ_BYTES: u32 = 4096;
/// Entries of a party's rings.
const ENTRIES: u32 = 4096;
/// Most bytes of a party's data area.
const DATA_BYTES_MAX: u64 = 64 << 20;
/// Longest wait for a completion.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a child may take to connect.
const CHILD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Commands that a party hands in, or takes the completion of, before the next one has its turn.
const STEP: u32 = 4;

/// A device, and all that measuring with several processes needs.
pub struct Stage {
    device: DeviceProcess,
    folder: PathBuf,
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    control: ControlClient,
    geometry: Geometry,
    namespace_bytes: u64,
    app: u16,
    direct_io: u16,
}

/// What a party asks for.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Random reads of [`READ_BYTES`].
    Reads,
    /// Calls of a handler with this argument.
    Calls {
        /// App.
        app: u16,
        /// Handler.
        handler: u8,
        /// Argument.
        argument: u32,
    },
    /// The same of any of these apps, on any SPU.
    Spread {
        /// Apps.
        apps: [u16; CHASERS],
        /// Handler.
        handler: u8,
        /// Argument.
        argument: u32,
    },
    /// One DMA of so many bytes out of one bank each.
    Transfers {
        /// Bytes.
        bytes: u32,
    },
}

/// A process with an endpoint.
pub struct Party {
    endpoint: Endpoint,
    /// Its number at the device.
    pub process: u32,
    geometry: Geometry,
    namespace_bytes: u64,
    apps: (u16, u16),
    work: Work,
    random: Random,
    free: Vec<u16>,
    stride: u32,
    /// Commands ended.
    pub ended: u64,
    child: Child,
    /// The other end of its standard input.
    _lifeline: Channel,
}

impl Stage {
    /// Starts a device whose block namespace of `range` bytes is written once.
    pub fn new(range: Size, serve: &[&str]) -> Outcome<Self> {
        let folder = std::env::temp_dir().join(format!("willow-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
        let socket = folder.join("device.sock");
        let (size, path) = (range.0.to_string(), socket.display().to_string());
        let fixed = [
            "--ram",
            "--size",
            &size,
            "--kv-size",
            "64M",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            &path,
            "--log",
            "error",
        ];
        let device = DeviceProcess::start(&[&fixed[..], serve].concat())?;
        fill(&socket, range)?;
        let runtime = crate::client::runtime()?;
        let hre = ShmHre::open(&socket, ShmOptions::default()).map_err(Failure::new)?;
        let control = ControlClient::new(Arc::new(hre));
        let direct_io = runtime.block_on(control.find_app(direct_io_host::APP_NAME)).map_err(Failure::new)?;
        let mut probe = Endpoint::open(&socket, Kind::Any, 256, 1 << 20).map_err(Failure::new)?;
        let view: View = shm::view_of(&mut probe)?;
        let Some(namespace) = view.namespaces.iter().find(|namespace| !namespace.key_value) else {
            fail!("the device has no block namespace")
        };
        let app = namespace.serving_app().map_err(Failure::new)?;
        let geometry = Geometry { spus: view.spus.max(1), stripe_bytes: namespace.stripe_bytes, base: namespace.base };
        let namespace_bytes = namespace.size_bytes;
        Ok(Stage { device, folder, socket, runtime, control, geometry, namespace_bytes, app, direct_io })
    }

    /// The device's process.
    pub fn pid(&self) -> u32 {
        self.device.pid()
    }

    /// Its control service.
    pub fn control<T, E: std::fmt::Display>(
        &self,
        request: impl AsyncFnOnce(&ControlClient) -> Result<T, E>,
    ) -> Outcome<T> {
        self.runtime.block_on(request(&self.control)).map_err(Failure::new)
    }

    /// Where the namespace's bytes are.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Installs an app for this process' user, whose processes all parties are.
    pub fn install(&self, module: Vec<u8>) -> Outcome<u16> {
        let options = ShmOptions { kind: Kind::User, ..ShmOptions::default() };
        let hre = ShmHre::open(&self.socket, options).map_err(Failure::new)?;
        self.runtime.block_on(ControlClient::new(Arc::new(hre)).install(module)).map_err(Failure::new)
    }

    /// A process that may read the whole namespace; `depth`: the most that it has under way.
    pub fn party(&self, work: Work, depth: u16, seed: u64) -> Outcome<Party> {
        let party = self.party_without_rights(work, depth, seed)?;
        let mut permissions = Vec::new();
        bank_ranges(&self.geometry, 0, self.namespace_bytes, |spu, start, bytes| {
            permissions.push(PermissionInfo { spu, start, bytes, rights: 1 });
        });
        self.control(async |control| control.grant(party.process, &permissions).await)?;
        Ok(party)
    }

    /// The same before anything is granted.
    pub fn party_without_rights(&self, work: Work, depth: u16, seed: u64) -> Outcome<Party> {
        let stride = match work {
            Work::Transfers { bytes } => bytes.next_multiple_of(4096),
            _ => READ_BYTES,
        };
        let data_bytes = (u64::from(stride) * u64::from(depth)).clamp(1 << 20, DATA_BYTES_MAX);
        let (child, lifeline, channel) = child(&self.socket)?;
        let endpoint = Endpoint::open_on(channel, Kind::User, ENTRIES, data_bytes).map_err(Failure::new)?;
        if u64::from(stride) * u64::from(depth) > data_bytes || endpoint.opened.depth < u32::from(depth) {
            fail!("{depth} operations of {stride} bytes at once are more than an endpoint takes: use fewer");
        }
        Ok(Party {
            process: endpoint.opened.hre >> 12 & 0x7_ffff,
            endpoint,
            geometry: self.geometry,
            namespace_bytes: self.namespace_bytes,
            apps: (self.app, self.direct_io),
            work,
            random: Random(seed),
            free: (0..depth).rev().collect(),
            stride,
            ended: 0,
            child,
            _lifeline: lifeline,
        })
    }

    /// Ends it cleanly.
    pub fn finish(self) -> Outcome<()> {
        drop(self.control);
        let ended = self.device.end();
        let _ = std::fs::remove_dir_all(&self.folder);
        ended
    }
}

fn fill(socket: &Path, range: Size) -> Outcome<()> {
    let target = crate::target::TargetOption { target: socket.display().to_string(), key: None };
    let common = CommonOptions {
        target,
        in_process: false,
        depths: vec![8],
        seconds: 1.0,
        warm_up: 0.0,
        seed: 1,
        json: true,
        record: None,
    };
    let options =
        IoOptions { common, bs: Size(128 << 10), mix: vec![0], range, nsid: None, sequential: true, native: false };
    let mut driver = Shm::block(&options.common, socket, Some(1), range.0, 8, (128 << 10, 128 << 10))?;
    io::fill(&options, &mut driver)?;
    driver.finish()
}

/// A process that connects to the device's socket; what it lives as long as; the connection.
fn child(socket: &Path) -> Outcome<(Child, Channel, Channel)> {
    let program = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
    let (ours, theirs) = Channel::pair().context(|| "cannot make a socket".to_owned())?;
    let child = Process::new(program)
        .args(["bench", "process"])
        .arg(socket)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .context(|| "cannot start a process".to_owned())?;
    let mut message = ours.receive_within(CHILD_WAIT_MAX).context(|| "a process that was started".to_owned())?;
    let Some(connection) = message.descriptors.pop() else { fail!("a process that was started could not connect") };
    Ok((child, ours, Channel::from(connection)))
}

/// What such a process does.
pub fn be_a_child(socket: &Path) -> Outcome<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context(|| "no standard input".to_owned())?;
    let parent = Channel::from(stdin);
    let connection = Channel::connect(socket).context(|| format!("cannot connect to {}", socket.display()))?;
    parent.send(b"connected", &[connection.as_fd()]).context(|| "the parent is gone".to_owned())?;
    loop {
        match parent.receive_within(Duration::from_secs(3600)) {
            Ok(_) | Err(ReceiveError::Nothing) => {}
            Err(_) => return Ok(()),
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // Ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Party {
    /// Commands under way.
    pub fn under_way(&self) -> u32 {
        self.endpoint.under_way()
    }

    /// Has its calls take another argument from now on.
    pub fn set_argument(&mut self, to: u32) {
        if let Work::Calls { argument, .. } = &mut self.work {
            *argument = to;
        }
    }

    fn call(&mut self) -> Outcome<(Call, u32)> {
        let made = match self.work {
            Work::Reads => {
                let place = self.random.below(self.namespace_bytes / u64::from(READ_BYTES));
                let (mut call, app) = (None, self.apps.0);
                let offset = place * u64::from(READ_BYTES);
                self.geometry.range(handler::READ, offset, READ_BYTES.into(), 0, 0, |request| {
                    call = Call::new(app, request.handler, request.spu, &request.arguments.encode());
                });
                (call, READ_BYTES)
            }
            Work::Calls { app, handler, argument } => (Call::new(app, handler, 0, &argument.to_le_bytes()), 0),
            Work::Spread { apps, handler, argument } => {
                let app = apps[self.random.below(apps.len() as u64) as usize];
                let spu = self.random.below(u64::from(self.geometry.spus)) as u16;
                (Call::new(app, handler, spu, &argument.to_le_bytes()), 0)
            }
            Work::Transfers { bytes } => {
                let spus = u64::from(self.geometry.spus);
                let places = self.namespace_bytes / spus / u64::from(bytes);
                let nv_address = self.geometry.base + self.random.below(places.max(1)) * u64::from(bytes);
                let arguments = direct_io_host::wire::Arguments { nv_address, bytes, flags: 0 };
                let spu = self.random.below(spus) as u16;
                (Call::new(self.apps.1, direct_io_host::wire::handler::READ, spu, &arguments.encode()), bytes)
            }
        };
        match made {
            (Some(call), reply_bytes) => Ok((call, reply_bytes)),
            _ => fail!("a command that cannot be: please report this"),
        }
    }

    /// Hands one command in; false where as many as may be are under way.
    #[inline]
    pub fn submit(&mut self) -> Outcome<bool> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let (call, reply_bytes) = self.call()?;
        let reply_offset = u32::from(slot) * self.stride;
        let command = Command {
            tag: slot.into(),
            operation: Operation::Rpc,
            more: 0,
            payload_offset: 0,
            payload_bytes: 0,
            reply_offset,
            reply_bytes,
            call,
        };
        if !self.endpoint.submit(&command, &[]) {
            self.free.push(slot);
            return Ok(false);
        }
        self.endpoint.ring();
        Ok(true)
    }

    /// Takes one completion.
    #[inline]
    pub fn complete(&mut self) -> Outcome<bool> {
        let Some(completion) = self.endpoint.completion().map_err(Failure::new)? else { return Ok(false) };
        let Completion { tag, outcome, status, .. } = completion;
        if (outcome, status) != (End::Answered, 0) {
            fail!("a command of a benchmark failed: {:?}, {outcome:?}, status {status}", self.work);
        }
        self.free.push(tag as u16);
        self.ended += 1;
        Ok(true)
    }

    /// A little of what is to be done, so that `depth` commands stay under way.
    #[inline]
    pub fn step(&mut self) -> Outcome<()> {
        for _ in 0..STEP {
            if !self.complete()? && !self.submit()? {
                break;
            }
            self.submit()?;
        }
        self.endpoint.show_head();
        Ok(())
    }

    /// Waits for all that is under way.
    pub fn drain(&mut self) -> Outcome<()> {
        let begun = Instant::now();
        while self.under_way() > 0 {
            if !self.complete()? {
                self.endpoint.show_head();
                std::hint::spin_loop();
            }
            if begun.elapsed() > WAIT_MAX {
                fail!("the device does not answer");
            }
        }
        Ok(())
    }

    /// One command from its beginning to its end, `beside` having its turns meanwhile: how long it took.
    #[inline]
    pub fn one(&mut self, mut beside: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
        let begun = Instant::now();
        if !self.submit()? {
            fail!("the device takes no command");
        }
        loop {
            if self.complete()? {
                return Ok(begun.elapsed());
            }
            beside()?;
            if begun.elapsed() > WAIT_MAX {
                fail!("the device does not answer");
            }
        }
    }
}
