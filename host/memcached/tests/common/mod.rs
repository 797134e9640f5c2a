//! A device, a server in front of it, and a client that speaks bytes.
#![allow(dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig, Store};
use willow_host::Options;
use willow_memcached::port::memory::Memory;
use willow_memcached::port::network::Network;
use willow_memcached::server::Stopper;
use willow_memcached::{Server, ServerConfig, ServerError};
use willow_shm_front::{Front, FrontConfig, Fronted};
use willow_tcp::{ServeError, ServerHandle};

pub const PATIENCE: Duration = Duration::from_secs(120);
pub const SPUS: u16 = 3;

/// A fresh path for a socket.
pub fn path(what: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("willow-mc-{}-{number}-{what}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// A device on a thread.
pub struct Running {
    pub socket: PathBuf,
    pub address: SocketAddr,
    handle: ServerHandle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the device does not panic").expect("the device ends cleanly");
            }
        }
    }
}

pub fn device() -> Running {
    device_on(path("device"), || Box::new(RamStore::new(usize::from(SPUS), 256 << 20).expect("memory")))
}

/// A device on that store, at that socket.
pub fn device_on(socket: PathBuf, store: impl FnOnce() -> Box<dyn Store> + Send + 'static) -> Running {
    let (sender, receiver) = mpsc::channel();
    let path = socket.clone();
    let thread = std::thread::spawn(move || {
        let config =
            DeviceConfig { spus: SPUS, namespace_bytes: 0, kv_namespace_bytes: 32 << 20, ..DeviceConfig::default() };
        let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
        let device = Device::open(config, store(), None, apps).expect("the device opens");
        let listen: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let config = willow_tcp::ServerConfig { listen: vec![listen.into()], ..willow_tcp::ServerConfig::default() };
        let front = Front::bind(FrontConfig::new(path)).expect("a socket");
        let mut server = willow_tcp::Server::bind(config, Fronted::new(device, Some(front)))?;
        sender.send((server.handle(), server.local_addr().expect("it listens"))).expect("somebody waits");
        server.run()
    });
    let (handle, address) = receiver.recv_timeout(PATIENCE).expect("the device starts");
    Running { socket, address, handle, thread: Some(thread) }
}

/// A server on a thread.
pub struct Serving {
    pub address: SocketAddr,
    pub unix: PathBuf,
    pub stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server does not panic").expect("the server ends cleanly");
            }
        }
    }
}

impl Serving {
    /// Waits for its end.
    pub fn end(mut self) -> Result<(), ServerError> {
        self.thread.take().expect("it runs").join().expect("the server does not panic")
    }
}

/// How the server reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Memory,
    Network,
}

pub fn config() -> ServerConfig {
    ServerConfig {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        unix: Some(path("clients")),
        reconnect: PATIENCE,
        ..ServerConfig::default()
    }
}

pub fn serve(device: &Running, way: Way, config: ServerConfig) -> Serving {
    let unix = config.unix.clone().unwrap_or_default();
    let (sender, receiver) = mpsc::channel();
    let (socket, address) = (device.socket.clone(), device.address);
    let thread = std::thread::spawn(move || match way {
        Way::Memory => {
            let mut server = Server::bind(config, move || Memory::open(&socket, None))?;
            sender.send((server.addresses(), server.stopper())).expect("somebody waits");
            server.run()
        }
        Way::Network => {
            let options = Options::new(address, willow_nvme::config::NQN_DEFAULT);
            let mut server = Server::bind(config, move || Network::open(&options, None))?;
            sender.send((server.addresses(), server.stopper())).expect("somebody waits");
            server.run()
        }
    });
    let (addresses, stopper) = receiver.recv_timeout(PATIENCE).expect("the server starts");
    Serving { address: addresses[0].parse().expect("an address"), unix, stopper, thread: Some(thread) }
}

/// A client.
pub struct Client<S>(pub S, Vec<u8>);

pub fn connect(serving: &Serving) -> Client<TcpStream> {
    let stream = TcpStream::connect(serving.address).expect("connects");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    Client(stream, Vec::new())
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Client(stream, Vec::new())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sends");
    }

    /// The next bytes, as many as that.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        while self.1.len() < bytes {
            let mut more = [0; 65536];
            let count = self.0.read(&mut more).expect("an answer in time");
            assert!(count > 0, "the connection ends after {:?}", self.1.escape_ascii().to_string());
            self.1.extend_from_slice(&more[..count]);
        }
        self.1.drain(..bytes).collect()
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> String {
        let mut at = 0;
        loop {
            if let Some(end) = self.1[at..].windows(2).position(|end| end == b"\r\n") {
                let line = self.take(at + end + 2);
                return String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            }
            at = self.1.len().saturating_sub(1);
            let have = self.1.len();
            let more = self.take(have + 1);
            self.1.splice(..0, more);
        }
    }

    /// Sends a line, and takes one.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line.as_bytes());
        self.send(b"\r\n");
        self.line()
    }

    /// Sends `set` and the like with data.
    pub fn store(&mut self, command: &str, key: &str, rest: &str, data: &[u8]) -> String {
        let head = format!("{command} {key} {rest} {}\r\n", data.len());
        self.send(&[head.as_bytes(), data, b"\r\n"].concat());
        self.line()
    }

    pub fn set(&mut self, key: &str, data: &[u8]) -> String {
        self.store("set", key, "0 0", data)
    }

    /// The value of a key.
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.value().map(|(_, data)| {
            assert_eq!(self.line(), "END");
            data
        })
    }

    /// The next value: its line and data; `None` for END.
    pub fn value(&mut self) -> Option<(String, Vec<u8>)> {
        let line = self.line();
        if line == "END" {
            return None;
        }
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], "VALUE", "{line}");
        let bytes: usize = words[3].parse().expect("a length");
        let mut data = self.take(bytes + 2);
        assert_eq!(&data[bytes..], b"\r\n");
        data.truncate(bytes);
        Some((line, data))
    }

    /// Whether the other side has ended it.
    pub fn is_ended(&mut self) -> bool {
        let mut more = [0; 16];
        match self.0.read(&mut more) {
            Ok(bytes) => bytes == 0,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }
}
