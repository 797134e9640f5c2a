//! A real device on a real server, and those who mind their own business on it: what the tests with processes drive.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_host::control::ControlClient;
use willow_host::{BlockClient, ShmHre, ShmOptions};
use willow_shm_front::{Front, FrontConfig, Fronted};
use willow_tcp::{ServeError, Server, ServerConfig, ServerHandle};

pub const PATIENCE: Duration = Duration::from_secs(120);
pub const BLOCK: u64 = 4096;
/// Says to this program, run as a child, where the device is.
pub const CHILD: &str = "WILLOW_TEST_SOCKET";

pub struct Running {
    pub path: PathBuf,
    pub handle: ServerHandle,
    pub thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server does not panic").expect("the server ends cleanly");
            }
        }
    }
}

pub fn serve_with(configure: impl FnOnce(&mut FrontConfig) + Send + 'static) -> Running {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("willow-shm-{}-{number}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let (sender, receiver) = mpsc::channel();
    let socket = path.clone();
    let thread = std::thread::spawn(move || {
        let config = DeviceConfig {
            spus: 4,
            namespace_bytes: 64 << 20,
            kv_namespace_bytes: 32 << 20,
            ..DeviceConfig::default()
        };
        let store = RamStore::new(4, 256 << 20).unwrap();
        let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
        let device = Device::open(config, Box::new(store), None, apps).unwrap();
        let mut front = FrontConfig::new(socket);
        configure(&mut front);
        let config =
            ServerConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()], ..ServerConfig::default() };
        let mut server = Server::bind(config, Fronted::new(device, Some(Front::bind(front).unwrap())))?;
        sender.send(server.handle()).unwrap();
        server.run()
    });
    let handle = receiver.recv_timeout(PATIENCE).expect("the server starts");
    Running { path, handle, thread: Some(thread) }
}

pub fn serve() -> Running {
    serve_with(|_| {})
}

pub fn endpoint(path: &Path) -> Arc<ShmHre> {
    Arc::new(ShmHre::open(path, ShmOptions::default()).unwrap())
}

pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("an answer in time") })
}

/// What the front counts, as the device's statistics show it.
pub fn counter(hre: &Arc<ShmHre>, name: &str) -> u64 {
    let statistics = wait(ControlClient::new(hre.clone()).statistics()).unwrap();
    statistics["transport"]["shared_memory"][name].as_u64().unwrap()
}

pub fn settles(hre: &Arc<ShmHre>, name: &str, value: u64) {
    let begun = Instant::now();
    while counter(hre, name) != value {
        assert!(begun.elapsed() < PATIENCE, "{name} is {}, not {value}", counter(hre, name));
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Random(pub u64);
impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// Blocks of a process that minds its own business, written, and read again while others misbehave.
pub struct Honest {
    pub blocks: BlockClient,
    pub seed: u64,
}

impl Honest {
    pub fn new(hre: &Arc<ShmHre>, seed: u64) -> Self {
        let honest = Honest { blocks: wait(BlockClient::open(hre.clone(), 1)).unwrap(), seed };
        for block in 0..64 {
            wait(honest.blocks.write(block * BLOCK, honest.pattern(block), false)).unwrap();
        }
        honest
    }
    pub fn pattern(&self, block: u64) -> Vec<u8> {
        let mut random = Random(self.seed ^ block);
        (0..BLOCK).map(|_| random.below(256) as u8).collect()
    }
    /// Blocks that are not as they were written.
    pub fn damaged(&self) -> usize {
        let differs =
            |block: &u64| wait(self.blocks.read(block * BLOCK, BLOCK as usize)).unwrap() != self.pattern(*block);
        (0..64).filter(differs).count()
    }
}

/// This program again, running one test as another process.
pub fn child(test: &str, socket: &Path) -> Process {
    let mut command = Process::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, socket);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}
