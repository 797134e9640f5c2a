//! Reservations where several actions become durable between two looks of the subsystem at the device.

mod common;

use common::Host;
use willow_device::CommandSet;
use willow_nvme::ConnectionId;
use willow_wire::bytes::u32_at;
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, feature};

fn command(opcode: u8, cid: u16, cdw10: u32, keys: &[u64]) -> (SubmissionEntry, Vec<u8>) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let entry = SubmissionEntry::new(opcode).with_cid(cid).with_nsid(1).with_cdw(10, cdw10);
    (entry.with_sgl(Sgl::in_capsule(0, data.len() as u32)), data)
}

fn register(cid: u16, key: u64) -> (SubmissionEntry, Vec<u8>) {
    command(nvm::RESERVATION_REGISTER, cid, 0, &[0, key])
}

/// Type and namespace of the oldest notice, which is taken.
fn notice(host: &mut Host, admin: ConnectionId) -> (u8, u32) {
    let page = GetLogPage { page: log::RESERVATION, specific: 0, retain_event: false, bytes: 64, offset: 0, csi: 0 };
    let entry = page.to_entry(u32::MAX).with_cid(9).with_sgl(Sgl::transport(64));
    let data = host.ask_data(admin, &entry, &[]).expect("it is answered").1;
    (data[8], u32_at(&data, 12))
}

#[test]
fn a_host_is_told_of_each_action_also_of_those_that_become_durable_at_once() {
    let mut host = Host::new();
    let ((_, one), (second, other)) = (host.queues(1), host.queues(2));
    for (at, key) in [(one, 11), (other, 22)] {
        let (entry, data) = register(3, key);
        host.good(at, &entry, &data);
    }
    assert_eq!(notice(&mut host, second), (0, 0));
    // In one turn: the first clears, and the second is back before anybody has looked.
    let (entry, data) = command(nvm::RESERVATION_RELEASE, 4, 1, &[11]);
    host.send(one, &entry, &data);
    let (entry, data) = register(5, 23);
    host.good(other, &entry, &data);
    assert_eq!(notice(&mut host, second), (3, 1), "its registration was cleared");
    assert_eq!(notice(&mut host, second), (0, 0));
}

#[test]
fn persistence_is_set_for_all_namespaces_of_a_host_at_once() {
    let mut host = Host::new();
    let (admin, io) = host.queues(1);
    let persistence = |host: &mut Host, nsid: u32, set: Option<u32>| {
        let opcode = if set.is_some() { admin::SET_FEATURES } else { admin::GET_FEATURES };
        let entry = SubmissionEntry::new(opcode).with_cid(7).with_nsid(nsid).with_cdw(11, set.unwrap_or(0));
        let answer = host.ask(admin, &entry.with_cdw(10, feature::RESERVATION_PERSISTENCE.into()), &[]);
        answer.expect("it is answered")
    };
    let numbers: Vec<u32> = host.subsystem.backend().namespaces().iter().map(|one| one.nsid).collect();
    assert_eq!(numbers.len(), [CommandSet::Nvm, CommandSet::Kv].len());
    for set in [1, 0, 1] {
        assert!(persistence(&mut host, u32::MAX, Some(set)).status.is_success());
        for nsid in &numbers {
            assert_eq!(persistence(&mut host, *nsid, None).result, u64::from(set), "namespace {nsid}");
        }
    }
    assert!(persistence(&mut host, 77, Some(1)).status.is(Status::INVALID_NAMESPACE));
    // An action on keys is for one namespace.
    let (entry, data) = register(8, 1);
    assert!(!host.ask(io, &entry.with_nsid(u32::MAX), &data).expect("it is answered").status.is_success());
}
