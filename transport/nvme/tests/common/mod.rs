//! A host that hands commands to a subsystem by itself, without a transport, and lets the device work until they are answered.

#![allow(dead_code)]

use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::config::NQN_DEFAULT;
use willow_nvme::{ConnectionId, Next, Subsystem, SubsystemConfig};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::opcode::nvm;
use willow_wire::spec::property::{self};
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry};

/// Turns that any command has ended in.
const TURNS_MAX: usize = 1000;

pub struct Host {
    pub subsystem: Subsystem<Device>,
    pub now_ns: u64,
}

impl Host {
    /// Of a device in memory with two SPUs, block namespace 1 of 2 MiB and key-value namespace 2.
    pub fn new() -> Host {
        let sizes = DeviceConfig { namespace_bytes: 2 << 20, kv_namespace_bytes: 1 << 20, ..DeviceConfig::default() };
        let store = RamStore::new(2, 16 << 20).unwrap();
        let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
        let device = Device::open(DeviceConfig { spus: 2, ..sizes }, Box::new(store), None, apps).unwrap();
        Host::of(Subsystem::new(SubsystemConfig::default(), device, 0).unwrap())
    }

    pub fn of(subsystem: Subsystem<Device>) -> Host {
        Host { subsystem, now_ns: 0 }
    }

    /// A turn of the device, with the jobs that it hands out.
    pub fn run(&mut self) {
        if let Some(wake_ns) = self.subsystem.run(self.now_ns) {
            self.now_ns = self.now_ns.max(wake_ns);
        }
        while let Some(job) = self.subsystem.backend_mut().job() {
            let done = job.run();
            self.subsystem.backend_mut().job_done(done);
        }
    }

    /// Hands a command in; `data` are in its capsule, or fetched from the host.
    pub fn send(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) {
        let in_capsule = if entry.sgl().identifier == Sgl::DATA_BLOCK_OFFSET { data } else { &[] };
        match self.subsystem.command(at, entry, in_capsule) {
            Next::Taken => {}
            Next::Fetch(mut fetch) => {
                fetch.buffer[fetch.start..][..data.len()].copy_from_slice(data);
                self.subsystem.data(at, fetch.slot, fetch.buffer);
            }
            other => panic!("{entry:?}: {other:?}"),
        }
    }

    /// The answer to a command on a connection with its data; `None` where that was ended.
    pub fn ask_data(
        &mut self,
        at: ConnectionId,
        entry: &SubmissionEntry,
        data: &[u8],
    ) -> Option<(CompletionEntry, Vec<u8>)> {
        self.send(at, entry, data);
        for _ in 0..TURNS_MAX {
            self.run();
            while let Some(completion) = self.subsystem.completion() {
                let mut came = Vec::new();
                if let Some(payload) = completion.payload {
                    came.extend_from_slice(&payload.buffer[payload.start..payload.start + payload.bytes]);
                    self.subsystem.give_buffer(completion.connection, payload.buffer);
                }
                if completion.connection == at && completion.entry.cid == entry.cid() {
                    return Some((completion.entry, came));
                }
            }
            if self.subsystem.closing().is_some_and(|closed| closed == at) {
                return None;
            }
        }
        panic!("neither an answer nor an end");
    }

    pub fn ask(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) -> Option<CompletionEntry> {
        self.ask_data(at, entry, data).map(|(completion, _)| completion)
    }

    /// The result of a command that succeeds.
    pub fn good(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) -> u64 {
        let answer = self.ask(at, entry, data).expect("the connection stays");
        assert!(answer.status.is_success(), "{answer:?}");
        answer.result
    }

    /// A reservation command on namespace 1 that succeeds: the current key and the new one, or the one to preempt.
    pub fn reserve(&mut self, at: ConnectionId, opcode: u8, cdw10: u32, keys: [u64; 2]) {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let entry = SubmissionEntry::new(opcode).with_nsid(1).with_cid(24).with_cdw(10, cdw10);
        self.good(at, &entry.with_sgl(Sgl::in_capsule(0, 16)), &data);
    }

    /// A queue of the host with this number.
    pub fn connect(&mut self, host: u8, queue_id: u16, controller_id: u16) -> Result<(ConnectionId, u16), Status> {
        let at = self.subsystem.open_connection(None).unwrap();
        let command = ConnectCommand { record_format: 0, queue_id, queue_size: 31, attributes: 0, keep_alive_ms: 0 };
        let host_nqn = format!("nqn.2025-01.org.example:{host}");
        let data = ConnectData { host_id: [host; 16], controller_id, subsystem_nqn: NQN_DEFAULT.to_owned(), host_nqn };
        let entry = command.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
        let answer = self.ask(at, &entry, &data.to_bytes()[..]).expect("an answer");
        if answer.status.is_success() { Ok((at, answer.result as u16)) } else { Err(answer.status) }
    }

    /// Enables a controller.
    pub fn enable(&mut self, admin: ConnectionId) {
        for value in [0x46_0060, 0x46_0061] {
            self.good(admin, &fabrics::property_set(property::CC, value, false).with_cid(2), &[]);
        }
    }

    /// The queues of an enabled controller of a host.
    pub fn queues(&mut self, host: u8) -> (ConnectionId, ConnectionId) {
        let (admin, controller) = self.connect(host, 0, CONTROLLER_DYNAMIC).unwrap();
        self.enable(admin);
        (admin, self.connect(host, 1, controller).unwrap().0)
    }

    /// CSTS.
    pub fn status(&mut self, admin: ConnectionId) -> u32 {
        self.good(admin, &fabrics::property_get(property::CSTS, false).with_cid(3), &[]) as u32
    }

    /// Write Zeroes of the first block of namespace 1.
    pub fn zero(&mut self, io: ConnectionId, cid: u16) -> Option<Status> {
        let entry = SubmissionEntry::new(nvm::WRITE_ZEROES).with_nsid(1).with_cid(cid);
        self.ask(io, &entry, &[]).map(|answer| answer.status)
    }
}
