//! A device whose banks are flash behind an FTL, with Base-IO on it: what the tests of flash drive.
#![allow(dead_code)]

pub mod dies;
pub mod tiny;

use base_io_host::{Geometry as Stripes, SpuRequest, wire};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use willow_apps::{BUNDLED_APPS, BundledApp, FTLS};
use willow_device::clock::Timing;
use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, Cell, FaultParameters, Geometry};
use willow_device::media::ram::RamStore;
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, Store,
    control,
};

pub const SPUS: u16 = 2;
/// Bytes of a block.
pub const BLOCK: usize = 4096;
pub const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
/// Steps of the device after which a request that has not ended hangs.
const STEPS_MAX: usize = 200_000;
/// The same where it waits for the disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(120);

/// Who serves the banks.
pub enum Ftl {
    /// `page` in the sandbox.
    Page,
    /// `page` as native code.
    NativePage,
    /// A module of the test's, for [`tiny::FLASH`].
    Tiny(Vec<u8>),
}

/// Flash for `page`.
pub const FLASH: Geometry = Geometry {
    channels: 2,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 2,
    blocks_per_plane: 48,
    pages_per_block: 16,
    page_bytes: 4096,
    spare_bytes: 64,
    cell: Cell::Slc,
    spare_accessible: true,
    paired_distance: 0,
};

impl Ftl {
    pub fn flash(&self) -> &'static Geometry {
        match self {
            Ftl::Tiny(_) => &tiny::FLASH,
            _ => &FLASH,
        }
    }

    /// What it offers: whole regions.
    pub fn banks(&self) -> Banks<'static> {
        if let Ftl::Tiny(_) = self {
            let (bank_bytes, unit_bytes) = (tiny::BANK_BYTES, tiny::UNIT_BYTES);
            return Banks { ftl: tiny::NAME, bank_bytes, unit_bytes, is_volatile: false, ftl_forgets: true };
        }
        let geometry = willow_flash::Geometry::of_words(&FLASH.words(false));
        let config = page_ftl::FtlConfig::new(&geometry, 1, 25).expect("this flash is enough");
        let unit_bytes = u64::from(FLASH.planes_per_die * FLASH.page_bytes);
        let units = u64::from(config.lane.units) * u64::from(config.lanes(&geometry));
        let bank_bytes = units * unit_bytes / 65536 * 65536;
        Banks { ftl: "page", bank_bytes, unit_bytes, is_volatile: false, ftl_forgets: false }
    }

    fn built_in(self) -> BuiltInApp {
        match self {
            Ftl::Page => BuiltInApp::Wasm(FTLS[0].wasm),
            Ftl::NativePage => BuiltInApp::Native((FTLS[0].native)()),
            Ftl::Tiny(module) => BuiltInApp::Wasm(module.leak()),
        }
    }

    /// Fresh flash for it, in memory.
    pub fn in_memory(&self) -> Vec<Array> {
        (0..SPUS).map(|bank| Array::in_memory(self.flash(), &FaultParameters::NONE, bank.into())).collect()
    }
}

/// A store for metadata and modules, in memory.
pub fn metadata() -> Box<dyn Store> {
    Box::new(RamStore::new(SPUS.into(), 65536).expect("a store"))
}

/// A configuration whose block namespace takes all but a region.
pub fn config(banks: &Banks<'_>) -> DeviceConfig {
    DeviceConfig {
        spus: SPUS,
        namespace_bytes: (banks.bank_bytes - 65536) * u64::from(SPUS),
        block_bytes: BLOCK as u32,
        kv_namespace_bytes: 0,
        app_data_bytes_max: 16 << 20,
        app_code_bytes_max: 1 << 20,
        ..DeviceConfig::default()
    }
}

/// The device, and a host that waits for one request at a time, or for several.
pub struct Drive {
    pub device: Device,
    pub hre: HreId,
    pub base_io: u16,
    pub stripes: Stripes,
    pub blocks: usize,
    pub now_ns: u64,
    /// Steps in which nothing was left to do but to let time pass, and how often there was not even that.
    pub idle_steps: usize,
    /// The flash is in files: time stands while other threads wait for the disk, unless there is a model that needs it.
    pub on_disk: bool,
    is_timed: bool,
    tag: u64,
    done: VecDeque<HostCompletion>,
}

impl Drive {
    /// A fresh device in memory.
    pub fn new(ftl: Ftl) -> Drive {
        let flash = ftl.in_memory();
        Drive::open(flash, metadata(), ftl)
    }

    pub fn open(flash: Vec<Array>, metadata: Box<dyn Store>, ftl: Ftl) -> Drive {
        let config = config(&ftl.banks());
        Drive::with(config, flash, metadata, ftl)
    }

    pub fn with(config: DeviceConfig, flash: Vec<Array>, metadata: Box<dyn Store>, ftl: Ftl) -> Drive {
        Drive::timed(config, flash, metadata, ftl, None)
    }

    /// The same under a model of time.
    pub fn timed(
        config: DeviceConfig,
        flash: Vec<Array>,
        metadata: Box<dyn Store>,
        ftl: Ftl,
        timing: Option<Box<dyn Timing>>,
    ) -> Drive {
        let native = matches!(ftl, Ftl::NativePage);
        let is_timed = timing.is_some();
        let store = DelegatingStore::new(metadata, flash, &ftl.banks());
        let apps = BUNDLED_APPS.iter().filter(|app| app.name == "base-io" || app.name == "key-value");
        let app = |app: &BundledApp| match native {
            true => BuiltInApp::Native((app.native)()),
            false => BuiltInApp::Wasm(app.wasm),
        };
        let built_in = std::iter::once(ftl.built_in()).chain(apps.map(app)).collect();
        let mut device = Device::open(config, Box::new(store), timing, built_in).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let namespace = device.namespaces().first().cloned().expect("a namespace");
        let base_io = device.app_number("base-io").expect("Base-IO");
        let stripes = Stripes { spus: SPUS, stripe_bytes: device.stripe_bytes(), base: namespace.base };
        let blocks = namespace.size_bytes as usize / BLOCK;
        let (now_ns, idle_steps, on_disk, tag, done) = (0, 0, false, 0, VecDeque::new());
        Drive { device, hre, base_io, stripes, blocks, now_ns, idle_steps, on_disk, is_timed, tag, done }
    }

    /// Hands a request in; its tag.
    pub fn begin_on(&mut self, hre: HreId, rpcs: Vec<Rpc>, payload: &[u8], reply_bytes: usize) -> u64 {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        // What a read does not deliver is seen.
        buffer.resize(payload.len().max(reply_bytes), 0xEE);
        let (payload_bytes, reply_bytes) = (payload.len() as u32, reply_bytes as u32);
        let rpcs = if rpcs.len() == 1 { RpcList::One(rpcs[0]) } else { RpcList::Many(rpcs) };
        let request = HostRequest { tag: self.tag, rpcs, buffer, payload_bytes, reply_bytes };
        self.device.submit(hre, request).expect("room");
        self.tag
    }

    /// One step of the device: it does what it can, and where it is at rest time goes on to when it wants to be called.
    pub fn step(&mut self) {
        let wake = self.device.run(self.now_ns);
        while let Some(done) = self.device.completion() {
            self.done.push_back(done);
        }
        let mut worked = false;
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
            worked = true;
        }
        match wake {
            _ if self.on_disk && !self.is_timed => std::thread::yield_now(),
            Some(at_ns) if at_ns > self.now_ns && !worked => {
                self.idle_steps += 1;
                self.now_ns = at_ns;
            }
            _ => {}
        }
    }

    /// Whether a request has ended by now.
    pub fn ended(&mut self, tag: u64) -> Option<HostCompletion> {
        let place = self.done.iter().position(|done| done.tag == tag)?;
        self.done.remove(place)
    }

    /// Waits for a request's end.
    pub fn wait(&mut self, tag: u64) -> HostCompletion {
        let (mut steps, begun) = (0, Instant::now());
        loop {
            if let Some(done) = self.ended(tag) {
                return done;
            }
            assert!(
                if self.on_disk { begun.elapsed() < DISK_WAIT_MAX } else { steps < STEPS_MAX },
                "request {tag} hangs"
            );
            self.step();
            steps += 1;
        }
    }

    pub fn call_on(&mut self, hre: HreId, rpc: Rpc, payload: &[u8], reply_bytes: usize) -> HostCompletion {
        let tag = self.begin_on(hre, vec![rpc], payload, reply_bytes);
        self.wait(tag)
    }

    pub fn call(&mut self, rpc: Rpc, payload: &[u8], reply_bytes: usize) -> HostCompletion {
        self.call_on(self.hre, rpc, payload, reply_bytes)
    }

    fn rpc_of(&self, request: &SpuRequest) -> Rpc {
        rpc((self.base_io, request.handler, request.spu), &request.arguments.encode())
    }

    /// Begins a request to Base-IO for a range of blocks; its tag.
    pub fn begin(&mut self, handler: u8, block: usize, count: usize, payload: &[u8]) -> u64 {
        let (mut requests, bytes) = (Vec::new(), count * BLOCK);
        self.stripes.range(handler, (block * BLOCK) as u64, bytes as u64, 0, 0, |request| requests.push(request));
        let rpcs = requests.iter().map(|request| self.rpc_of(request)).collect();
        let reply_bytes = if handler == wire::handler::READ { bytes } else { 0 };
        self.begin_on(self.hre, rpcs, payload, reply_bytes)
    }

    pub fn range(&mut self, handler: u8, block: usize, count: usize, payload: &[u8]) -> HostCompletion {
        let tag = self.begin(handler, block, count, payload);
        self.wait(tag)
    }

    fn good(&mut self, done: HostCompletion) -> Vec<u8> {
        assert_eq!(done.outcome, ANSWERED, "{}", self.log(self.ftl_name()));
        done.buffer
    }

    pub fn ftl_name(&self) -> &'static str {
        if self.device.app_number(tiny::NAME).is_some() { tiny::NAME } else { "page" }
    }

    pub fn read(&mut self, block: usize, count: usize) -> Vec<u8> {
        let done = self.range(wire::handler::READ, block, count, &[]);
        self.good(done)
    }

    pub fn write(&mut self, block: usize, data: &[u8]) {
        let done = self.range(wire::handler::WRITE, block, data.len() / BLOCK, data);
        self.good(done);
    }

    pub fn zero(&mut self, block: usize, count: usize) {
        let done = self.range(wire::handler::ZERO, block, count, &[]);
        self.good(done);
    }

    pub fn begin_flush(&mut self) -> u64 {
        let mut requests = Vec::new();
        self.stripes.flush(|request| requests.push(request));
        let rpcs = requests.iter().map(|request| self.rpc_of(request)).collect();
        self.begin_on(self.hre, rpcs, &[], 0)
    }

    pub fn flush(&mut self) {
        let tag = self.begin_flush();
        let done = self.wait(tag);
        self.good(done);
    }

    /// A request to the control service.
    pub fn control(&mut self, handler: u8, arguments: &[u8], payload: &[u8], reply_bytes: usize) -> HostCompletion {
        self.call(rpc((control::CONTROL_APP, handler, 0), arguments), payload, reply_bytes)
    }

    /// Installs a module; its number, or the sentence of the refusal.
    pub fn install(&mut self, module: &[u8]) -> Result<u16, String> {
        let done = self.control(control::INSTALL, &[], module, 0);
        if done.outcome == ANSWERED { Ok(done.result as u16) } else { Err(self.error_text()) }
    }

    pub fn error_text(&mut self) -> String {
        let done = self.control(control::ERROR_TEXT, &[], &[], 4096);
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }

    /// What an app printed.
    pub fn log(&mut self, name: &str) -> String {
        let arguments = [&[0; 4], name.as_bytes()].concat();
        let done = self.control(control::LOG, &arguments, &[], 65536);
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }
}

/// An RPC to an app's handler on an SPU.
pub fn rpc((app, handler, spu): (u16, u8, u16), arguments: &[u8]) -> Rpc {
    Rpc { app, handler, spu, arguments: Arguments::new(arguments).expect("at most 64 bytes") }
}
