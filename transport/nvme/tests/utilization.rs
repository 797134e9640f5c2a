//! What hosts are told that the pairs of a key-value namespace take (NUSE).

mod common;

use common::Host;
use willow_nvme::ConnectionId;
use willow_wire::bytes::u64_at;
use willow_wire::spec::identify::{cns, kv_namespace};
use willow_wire::spec::kv::Key;
use willow_wire::spec::opcode::kv;
use willow_wire::spec::{Sgl, SubmissionEntry};

const NSID: u32 = 2;

/// (NSZE, NUSE)
fn told(host: &mut Host, at: ConnectionId, structure: u8) -> (u64, u64) {
    let entry = SubmissionEntry::new(willow_wire::spec::opcode::admin::IDENTIFY)
        .with_nsid(NSID)
        .with_cid(23)
        .with_cdw(10, structure.into());
    let entry = entry.with_cdw(11, 1 << 24).with_sgl(Sgl::transport(4096));
    let (answer, data) = host.ask_data(at, &entry, &[]).expect("it is answered");
    assert!(answer.status.is_success(), "{:?}", answer.status);
    assert_eq!(data.len(), 4096);
    (u64_at(&data, kv_namespace::NSZE), u64_at(&data, kv_namespace::NUSE))
}

fn command(host: &mut Host, at: ConnectionId, opcode: u8, key: u8, value: &[u8]) -> bool {
    let mut entry = SubmissionEntry::new(opcode).with_nsid(NSID).with_cid(24);
    if !value.is_empty() {
        entry = entry.with_cdw(10, value.len() as u32).with_sgl(Sgl::in_capsule(0, value.len() as u32));
    }
    Key::new(&[key; 16]).expect("a key").put(&mut entry);
    host.ask(at, &entry, value).expect("it is answered").status.is_success()
}

#[test]
fn what_pairs_take_is_told_by_identify() {
    let mut host = Host::new();
    let (admin, io) = host.queues(1);
    let (size, used) = told(&mut host, admin, cns::CSI_NAMESPACE);
    assert_eq!((size, used), (1 << 20, 0));
    for key in 1..=100 {
        assert!(command(&mut host, io, kv::STORE, key, &[key; 1000]));
    }
    // Each takes a slot of the smallest size that holds it and its header.
    let (_, used) = told(&mut host, admin, cns::CSI_NAMESPACE);
    assert!((106_400..=100 * 1280).contains(&used), "{used}");
    assert_eq!(told(&mut host, admin, cns::CSI_ALLOCATED_NAMESPACE), (size, used));
    for key in 1..=100 {
        assert!(command(&mut host, io, kv::DELETE, key, &[]));
    }
    // Space comes back some flushes later, and with what is stored next.
    for _ in 0..6 {
        assert!(command(&mut host, io, kv::STORE, 1, &[1; 1000]));
        host.good(io, &SubmissionEntry::new(willow_wire::spec::opcode::nvm::FLUSH).with_nsid(NSID).with_cid(25), &[]);
    }
    let (_, left) = told(&mut host, admin, cns::CSI_NAMESPACE);
    assert!((1064..used / 10).contains(&left), "{left}");
    // Of nothing else.
    let entry = SubmissionEntry::new(willow_wire::spec::opcode::admin::IDENTIFY)
        .with_nsid(9)
        .with_cid(26)
        .with_cdw(10, cns::CSI_NAMESPACE.into());
    let entry = entry.with_cdw(11, 1 << 24).with_sgl(Sgl::transport(4096));
    let (_, data) = host.ask_data(admin, &entry, &[]).expect("it is answered");
    assert!(data.iter().all(|byte| *byte == 0));
}
