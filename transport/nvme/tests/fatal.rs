//! An FTL that fails, as hosts see it: controllers have a fatal status, say so, and come back by a reset where the flash does.

mod common;
#[allow(dead_code)]
#[path = "../../../apps/tests/support/tiny.rs"]
mod tiny;

use common::Host;

use willow_device::control::{CONTROL_APP, INSTALL};
use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, FaultParameters};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::{Next, Subsystem, SubsystemConfig};
use willow_wire::spec::fabrics::CONTROLLER_DYNAMIC;
use willow_wire::spec::feature::event;
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::property::csts;
use willow_wire::spec::{Sgl, Status, SubmissionEntry, log, tunnel};

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

/// Its third operation traps, in each of its lives.
fn trapping() -> Vec<u8> {
    tiny::that("(if (i32.eq (global.get $operations) (i32.const 3)) (then (unreachable)))")
}

#[test]
fn what_may_have_been_lost_with_the_ftl_is_told_by_a_fatal_status() {
    let mut host = Host::of(subsystem(trapping(), true));
    let (admin, controller) = host.connect(1, 0, CONTROLLER_DYNAMIC).unwrap();
    host.enable(admin);
    let (io, _) = host.connect(1, 1, controller).unwrap();
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
    assert!(host.connect(1, 1, controller).is_err(), "no I/O queue until it is reset");
    // A reset, and all is well.
    host.enable(admin);
    assert_eq!(host.status(admin), csts::RDY);
    let (io, _) = host.connect(1, 1, controller).unwrap();
    assert_eq!(host.zero(io, 4), Some(Status::SUCCESS));
}

#[test]
fn where_nothing_is_lost_with_the_ftl_hosts_see_one_failed_command() {
    let mut host = Host::of(subsystem(trapping(), false));
    let (admin, controller) = host.connect(1, 0, CONTROLLER_DYNAMIC).unwrap();
    host.enable(admin);
    let (io, _) = host.connect(1, 1, controller).unwrap();
    let answers: Vec<bool> = (1..9).map(|cid| host.zero(io, cid).expect("the queue stays").is_success()).collect();
    assert_eq!(answers, [true, true, false, true, true, false, true, true]);
    assert_eq!(host.status(admin), csts::RDY);
}

#[test]
fn where_the_flash_has_no_ftl_another_is_installed_over_nvme() {
    let broken = tiny::module(&tiny::Hook(""), &tiny::AtStart("(unreachable)"));
    let mut host = Host::of(subsystem(broken, false));
    (0..10).for_each(|_| host.run());
    let (admin, io) = host.queues(1);
    assert_eq!(host.status(admin), csts::RDY, "commands that need no flash are done");
    let smart = |host: &mut Host| {
        let page = log::GetLogPage { page: log::SMART, specific: 0, retain_event: true, bytes: 512, offset: 0, csi: 0 };
        let entry = page.to_entry(u32::MAX).with_cid(6).with_sgl(Sgl::transport(512));
        host.ask_data(admin, &entry, &[]).expect("it is answered").1[0]
    };
    assert_eq!(smart(&mut host), log::SMART_WARNING_RELIABILITY);
    assert!(host.zero(io, 3).is_some_and(|status| status.is(Status::WRITE_FAULT)), "what needs it fails");
    let module = tiny::honest();
    let entry = SubmissionEntry::new(tunnel::SEND)
        .with_nsid(1)
        .with_cid(4)
        .with_cdw(10, u32::from(CONTROL_APP) << 16 | u32::from(INSTALL))
        .with_sgl(Sgl::transport(module.len() as u32));
    let result = host.good(io, &entry, &module);
    assert_eq!(tunnel::split_result(result).0, 0, "installed: {result:x}");
    assert_eq!(host.zero(io, 5), Some(Status::SUCCESS));
    assert_eq!((host.status(admin), smart(&mut host)), (csts::RDY, 0));
}
