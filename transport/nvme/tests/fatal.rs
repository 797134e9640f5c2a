//! An FTL that fails, as hosts see it: controllers have a fatal status, say so, and come back by a reset where the flash does.

#[allow(dead_code)]
#[path = "../../../apps/tests/support/tiny.rs"]
mod tiny;

use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, FaultParameters};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::config::NQN_DEFAULT;
use willow_nvme::{ConnectionId, Next, Subsystem, SubsystemConfig};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::feature::event;
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::property::{self, csts};
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, log};

fn subsystem(ftl: Vec<u8>, ftl_forgets: bool) -> Subsystem<Device> {
    let config = DeviceConfig { spus: 1, namespace_bytes: 1 << 20, kv_namespace_bytes: 0, ..DeviceConfig::default() };
    let flash = vec![Array::in_memory(&tiny::FLASH, &FaultParameters::NONE, 1)];
    let (bank_bytes, unit_bytes) = (2 * tiny::BANK_BYTES, tiny::UNIT_BYTES);
    let banks = Banks { ftl: tiny::NAME, bank_bytes, unit_bytes, is_volatile: false, ftl_forgets };
    let store = DelegatingStore::new(Box::new(RamStore::new(1, 65536).unwrap()), flash, &banks);
    let apps = vec![BuiltInApp::Wasm(ftl.leak()), BuiltInApp::Native(base_io_spu::native())];
    let device = Device::open(config, Box::new(store), None, apps).unwrap();
    Subsystem::new(SubsystemConfig::default(), device, 0).unwrap()
}

struct Host {
    subsystem: Subsystem<Device>,
    now_ns: u64,
}

impl Host {
    fn run(&mut self) {
        if let Some(wake_ns) = self.subsystem.run(self.now_ns) {
            self.now_ns = self.now_ns.max(wake_ns);
        }
    }

    /// The answer to a command on a connection; `None` where that was ended.
    fn ask(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) -> Option<CompletionEntry> {
        assert!(matches!(self.subsystem.command(at, entry, data), Next::Taken));
        for _ in 0..1000 {
            self.run();
            while let Some(completion) = self.subsystem.completion() {
                if let Some(payload) = completion.payload {
                    self.subsystem.give_buffer(at, payload.buffer);
                }
                if completion.connection == at && completion.entry.cid == entry.cid() {
                    return Some(completion.entry);
                }
            }
            if self.subsystem.closing().is_some_and(|closed| closed == at) {
                return None;
            }
        }
        panic!("neither an answer nor an end");
    }

    fn good(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) -> u64 {
        let answer = self.ask(at, entry, data).expect("the connection stays");
        assert!(answer.status.is_success(), "{answer:?}");
        answer.result
    }

    fn connect(&mut self, queue_id: u16, controller_id: u16) -> Result<(ConnectionId, u16), Status> {
        let at = self.subsystem.open_connection(None).unwrap();
        let command = ConnectCommand { record_format: 0, queue_id, queue_size: 31, attributes: 0, keep_alive_ms: 0 };
        let host_nqn = "nqn.2025-01.org.example:one".to_owned();
        let data = ConnectData { host_id: [1; 16], controller_id, subsystem_nqn: NQN_DEFAULT.to_owned(), host_nqn };
        let entry = command.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
        let answer = self.ask(at, &entry, &data.to_bytes()[..]).expect("an answer");
        if answer.status.is_success() { Ok((at, answer.result as u16)) } else { Err(answer.status) }
    }

    fn enable(&mut self, admin: ConnectionId) {
        for value in [0x46_0060, 0x46_0061] {
            self.good(admin, &fabrics::property_set(property::CC, value, false).with_cid(2), &[]);
        }
    }

    fn status(&mut self, admin: ConnectionId) -> u32 {
        self.good(admin, &fabrics::property_get(property::CSTS, false).with_cid(3), &[]) as u32
    }

    fn zero(&mut self, io: ConnectionId, cid: u16) -> Option<Status> {
        let entry = SubmissionEntry::new(nvm::WRITE_ZEROES).with_nsid(1).with_cid(cid);
        self.ask(io, &entry, &[]).map(|answer| answer.status)
    }
}

/// Its third operation traps, in each of its lives.
fn trapping() -> Vec<u8> {
    tiny::that("(if (i32.eq (global.get $operations) (i32.const 3)) (then (unreachable)))")
}

#[test]
fn what_may_have_been_lost_with_the_ftl_is_told_by_a_fatal_status() {
    let mut host = Host { subsystem: subsystem(trapping(), true), now_ns: 0 };
    let (admin, controller) = host.connect(0, CONTROLLER_DYNAMIC).unwrap();
    host.enable(admin);
    let (io, _) = host.connect(1, controller).unwrap();
    let waiting = SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(77);
    assert!(matches!(host.subsystem.command(admin, &waiting, &[]), Next::Taken));
    assert_eq!(host.zero(io, 1), Some(Status::SUCCESS));
    assert_eq!(host.status(admin), csts::RDY);
    assert_eq!(host.zero(io, 2), Some(Status::SUCCESS));
    // The FTL ends, and with it the I/O queue: whether its last command was done, nobody is told.
    let mut told = None;
    let last = SubmissionEntry::new(nvm::WRITE_ZEROES).with_nsid(1).with_cid(3);
    assert!(matches!(host.subsystem.command(io, &last, &[]), Next::Taken));
    let mut ended = false;
    for _ in 0..100 {
        host.run();
        while let Some(completion) = host.subsystem.completion() {
            assert_ne!((completion.connection, completion.entry.status), (io, Status::SUCCESS));
            if completion.connection == admin {
                told = Some((completion.entry.cid, completion.entry.result));
            }
        }
        ended |= host.subsystem.closing().is_some_and(|closed| closed == io);
    }
    assert!(ended);
    let fatal = event::result(event::TYPE_ERROR, event::ERROR_PERSISTENT_INTERNAL, log::ERROR);
    assert_eq!(told, Some((77, u64::from(fatal))));
    assert_eq!(host.status(admin), csts::RDY | csts::CFS);
    assert!(host.connect(1, controller).is_err(), "no I/O queue until it is reset");
    // A reset, and all is well.
    host.enable(admin);
    assert_eq!(host.status(admin), csts::RDY);
    let (io, _) = host.connect(1, controller).unwrap();
    assert_eq!(host.zero(io, 4), Some(Status::SUCCESS));
}

#[test]
fn where_nothing_is_lost_with_the_ftl_hosts_see_one_failed_command() {
    let mut host = Host { subsystem: subsystem(trapping(), false), now_ns: 0 };
    let (admin, controller) = host.connect(0, CONTROLLER_DYNAMIC).unwrap();
    host.enable(admin);
    let (io, _) = host.connect(1, controller).unwrap();
    let answers: Vec<bool> = (1..9).map(|cid| host.zero(io, cid).expect("the queue stays").is_success()).collect();
    assert_eq!(answers, [true, true, false, true, true, false, true, true]);
    assert_eq!(host.status(admin), csts::RDY);
}

#[test]
fn a_controller_whose_flash_has_no_ftl_does_not_become_ready() {
    let broken = tiny::module(&tiny::Hook(""), &tiny::AtStart("(unreachable)"));
    let mut host = Host { subsystem: subsystem(broken, false), now_ns: 0 };
    (0..10).for_each(|_| host.run());
    let (admin, _) = host.connect(0, CONTROLLER_DYNAMIC).unwrap();
    host.enable(admin);
    assert_eq!(host.status(admin), csts::CFS);
}
