//! A server on a thread of its own, in front of a real device in memory, and a scripted host that speaks PDUs.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_host::Options;
use willow_nvme::config::NQN_DEFAULT;
use willow_tcp::{ServeError, Server, ServerConfig, ServerHandle};
use willow_wire::pdu::{Data, Decoded, Decoder, Encoder, InitializeRequest, Pdu, Role};
use willow_wire::spec::fabrics::{ConnectCommand, ConnectData};
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, fabrics, opcode, property};

/// Every wait of a test: long enough for a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub handle: ServerHandle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    pub fn options(&self) -> Options {
        let mut options = Options::new(self.address, NQN_DEFAULT);
        options.connect_timeout = PATIENCE;
        options
    }

    /// Waits until no buffer is in use and, where `alone`, no controller is left: the server sees the end of a connection
    /// a little later than its host.
    pub fn settles(&self, alone: bool) {
        let mut last = None;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let statistics = self.handle.statistics(PATIENCE).expect("the server answers");
            if statistics.buffer_bytes == 0 && (!alone || statistics.controllers == 0) {
                return;
            }
            last = Some(statistics);
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("something is left behind: {last:?}");
    }

    pub fn stop(mut self) {
        self.handle.stop();
        self.thread.take().unwrap().join().expect("the server does not panic").unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A panic of the server is a failure of its own, whatever the test looked at.
            assert!(ended.is_ok() || std::thread::panicking(), "the server's thread panicked");
        }
    }
}

/// A small device: 4 SPUs, 64 MiB of blocks of 4 KiB, 32 MiB of pairs, the apps built natively.
pub fn device(block_bytes: u32) -> Device {
    device_with(DeviceConfig { block_bytes, ..DeviceConfig::default() })
}

/// The same with other settings beside its size.
pub fn device_with(config: DeviceConfig) -> Device {
    let config = DeviceConfig { spus: 4, namespace_bytes: 64 << 20, kv_namespace_bytes: 32 << 20, ..config };
    let store = RamStore::new(4, 256 << 20).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    Device::open(config, Box::new(store), None, apps).unwrap()
}

pub fn serve_with(configure: impl FnOnce(&mut ServerConfig) + Send + 'static, block_bytes: u32) -> Running {
    serve_device(configure, move || device(block_bytes))
}

/// Serves a device that the server's thread makes.
pub fn serve_device(
    configure: impl FnOnce(&mut ServerConfig) + Send + 'static,
    device: impl FnOnce() -> Device + Send + 'static,
) -> Running {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut config =
            ServerConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()], ..ServerConfig::default() };
        configure(&mut config);
        let mut server = Server::bind(config, device())?;
        sender.send((server.local_addr().unwrap(), server.handle())).unwrap();
        server.run()
    });
    let (address, handle) = receiver.recv_timeout(PATIENCE).expect("the server starts");
    Running { address, handle, thread: Some(thread) }
}

pub fn serve() -> Running {
    serve_with(|_| {}, 4096)
}

/// A host that sends what it is told and shows what comes.
pub struct Peer {
    pub stream: TcpStream,
    pub encoder: Encoder,
    decoder: Decoder,
    received: Vec<u8>,
}

/// A PDU from the server, with its data.
#[derive(Debug)]
pub struct Came {
    pub pdu: Pdu,
    pub data: Vec<u8>,
}

impl Peer {
    /// Connects, nothing more.
    pub fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Peer { stream, encoder: Encoder::default(), decoder: Decoder::new(Role::Host), received: Vec::new() }
    }

    /// Connects and exchanges the initialization.
    pub fn initialized(address: SocketAddr, digests: bool) -> Self {
        let mut peer = Self::raw(address);
        let request = InitializeRequest { header_digest: digests, data_digest: digests, ..Default::default() };
        let mut bytes = Vec::new();
        Encoder::initialize_request(&mut bytes, &request);
        peer.send(&bytes);
        assert!(matches!(peer.next().unwrap().pdu, Pdu::InitializeResponse(_)));
        peer.decoder.initialize(digests, digests, 0);
        peer.encoder = Encoder::new(digests, digests, 0);
        peer
    }

    /// A controller that is ready, on its admin queue; its number.
    pub fn admin(address: SocketAddr, digests: bool) -> (Self, u16) {
        let mut peer = Self::initialized(address, digests);
        let connected = peer.connect(0, 0xffff, NQN_DEFAULT);
        assert!(connected.status.is_success(), "{connected:?}");
        peer.ask(&fabrics::property_set(property::CC, 0x46_0060, false).with_cid(1), &[]);
        peer.ask(&fabrics::property_set(property::CC, 0x46_0061, false).with_cid(1), &[]);
        (peer, connected.result as u16)
    }

    /// Admin and one I/O queue.
    pub fn with_queue(address: SocketAddr, digests: bool) -> (Self, Self, u16) {
        let (admin, cntlid) = Self::admin(address, digests);
        let mut io = Self::initialized(address, digests);
        let connected = io.connect(1, cntlid, NQN_DEFAULT);
        assert!(connected.status.is_success(), "{connected:?}");
        (admin, io, cntlid)
    }

    pub fn connect(&mut self, queue_id: u16, controller_id: u16, nqn: &str) -> CompletionEntry {
        let (entry, data) = connect_command(queue_id, controller_id, nqn);
        self.ask(&entry, &data[..])
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a command; `data` go in the capsule.
    pub fn command(&mut self, entry: &SubmissionEntry, data: &[u8]) {
        let mut bytes = Vec::new();
        self.encoder.command_with_data(&mut bytes, entry, data);
        self.send(&bytes);
    }

    /// Sends H2CData.
    pub fn host_data(&mut self, data: &Data, payload: &[u8]) {
        let mut bytes = Vec::new();
        self.encoder.host_data(&mut bytes, data);
        self.encoder.payload(&mut bytes, payload);
        self.send(&bytes);
    }

    /// Sends a command and takes its completion, which must be the next; data before it are dropped.
    pub fn ask(&mut self, entry: &SubmissionEntry, data: &[u8]) -> CompletionEntry {
        self.ask_data(entry, data).0
    }

    /// The same with the data that came.
    pub fn ask_data(&mut self, entry: &SubmissionEntry, data: &[u8]) -> (CompletionEntry, Vec<u8>) {
        self.command(entry, data);
        let mut all = Vec::new();
        loop {
            let came = self.next().expect("the connection stays");
            match came.pdu {
                Pdu::ControllerData(_) => all.extend(came.data),
                Pdu::Response(completion) => {
                    assert_eq!(completion.cid, entry.cid());
                    return (completion, all);
                }
                other => panic!("{other:?} in answer to {entry:?}"),
            }
        }
    }

    /// The next PDU; `None` where the server closed.
    pub fn next(&mut self) -> Option<Came> {
        loop {
            if let Ok(Decoded::Head(head)) = self.decoder.decode(&self.received)
                && self.received.len() >= head.pdu_bytes
            {
                let data = self.received[head.data_start..head.data_start + head.data_bytes].to_vec();
                self.received.drain(..head.pdu_bytes);
                return Some(Came { pdu: head.pdu, data });
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// The termination request that must come next, then the end of the connection.
    pub fn terminated(&mut self) -> willow_wire::pdu::Termination {
        let came = self.next().expect("a termination request before the end");
        let Pdu::ControllerTermination(termination) = came.pdu else { panic!("{:?}", came.pdu) };
        assert!(self.next().is_none(), "the server closes");
        termination
    }
}

pub fn connect_command(queue_id: u16, controller_id: u16, nqn: &str) -> (SubmissionEntry, Box<[u8; 1024]>) {
    Host::default().connect_command(queue_id, controller_id, nqn)
}

/// A host as it introduces itself.
#[derive(Clone)]
pub struct Host {
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
    /// Entries of each of its queues.
    pub entries: u16,
    pub keep_alive_ms: u32,
}

impl Default for Host {
    fn default() -> Self {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".to_owned();
        Host { nqn, id: [7; 16], entries: 32, keep_alive_ms: 0 }
    }
}

impl Host {
    /// A host of that name, with queues of so many entries.
    pub fn named(name: &str, entries: u16) -> Self {
        Host { nqn: format!("nqn.2025-01.org.example:{name}"), entries, ..Host::default() }
    }

    fn connect_command(&self, queue_id: u16, controller_id: u16, nqn: &str) -> (SubmissionEntry, Box<[u8; 1024]>) {
        let (queue_size, keep_alive_ms) = (self.entries - 1, self.keep_alive_ms);
        let entry = ConnectCommand { record_format: 0, queue_id, queue_size, attributes: 0, keep_alive_ms }
            .to_entry()
            .with_cid(7)
            .with_sgl(Sgl::in_capsule(0, 1024));
        let data =
            ConnectData { host_id: self.id, controller_id, subsystem_nqn: nqn.to_owned(), host_nqn: self.nqn.clone() };
        (entry, data.to_bytes())
    }

    /// Connects a queue, as far as that goes.
    pub fn connect(&self, peer: &mut Peer, queue_id: u16, controller_id: u16, nqn: &str) -> CompletionEntry {
        let (entry, data) = self.connect_command(queue_id, controller_id, nqn);
        peer.ask(&entry, &data[..])
    }

    /// A controller of `nqn` that is ready, on its admin queue; its number.
    pub fn admin_of(&self, address: SocketAddr, nqn: &str) -> (Peer, u16) {
        let mut peer = Peer::initialized(address, false);
        let connected = self.connect(&mut peer, 0, 0xffff, nqn);
        assert!(connected.status.is_success(), "{connected:?}");
        let sets = if nqn == NQN_DEFAULT { 0x46_0060 } else { 0x46_0000 };
        peer.ask(&fabrics::property_set(property::CC, sets, false).with_cid(1), &[]);
        peer.ask(&fabrics::property_set(property::CC, sets | 1, false).with_cid(1), &[]);
        (peer, connected.result as u16)
    }

    /// The same of the subsystem that is served.
    pub fn admin(&self, address: SocketAddr) -> (Peer, u16) {
        self.admin_of(address, NQN_DEFAULT)
    }

    /// An I/O queue of a controller.
    pub fn queue(&self, address: SocketAddr, queue_id: u16, controller_id: u16) -> Peer {
        let mut peer = Peer::initialized(address, false);
        let connected = self.connect(&mut peer, queue_id, controller_id, NQN_DEFAULT);
        assert!(connected.status.is_success(), "{connected:?}");
        peer
    }
}

pub fn read(cid: u16, lba: u64, blocks: u32, bytes: u32) -> SubmissionEntry {
    SubmissionEntry::new(opcode::nvm::READ)
        .with_cid(cid)
        .with_nsid(1)
        .with_lba(lba)
        .with_cdw(12, blocks - 1)
        .with_sgl(Sgl::transport(bytes))
}

pub fn write(cid: u16, lba: u64, blocks: u32, sgl: Sgl) -> SubmissionEntry {
    SubmissionEntry::new(opcode::nvm::WRITE)
        .with_cid(cid)
        .with_nsid(1)
        .with_lba(lba)
        .with_cdw(12, blocks - 1)
        .with_sgl(sgl)
}

/// True where a fresh host is served from connect to data: what every test of misbehaviour ends with.
pub fn serves(address: SocketAddr) {
    let (_admin, mut io, _) = Peer::with_queue(address, false);
    serves_on(&mut io);
}

/// The target serves a connection that is there.
pub fn serves_on(io: &mut Peer) {
    let (mut completion, mut data) = io.ask_data(&read(9, 0, 1, 4096), &[]);
    if completion.status.is(Status::DATA_SGL_LENGTH_INVALID) {
        // Whoever was there before has formatted the namespace, to blocks of 512 bytes.
        (completion, data) = io.ask_data(&read(9, 0, 8, 4096), &[]);
    }
    assert!(completion.status.is_success(), "{completion:?}");
    assert_eq!(data.len(), 4096);
}
