//! Format NVM, and what is refused of its kind.

mod common;

use common::Host;
use willow_device::reservation::ReservationType;
use willow_nvme::{ConnectionId, Next};
use willow_wire::bytes::u64_at;
use willow_wire::spec::identify::cns;
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry};

fn format(host: &mut Host, admin: ConnectionId, nsid: u32, cdw10: u32) -> Status {
    let entry = SubmissionEntry::new(admin::FORMAT_NVM).with_nsid(nsid).with_cid(20).with_cdw(10, cdw10);
    host.ask(admin, &entry, &[]).expect("it is answered").status
}

fn identify(host: &mut Host, admin: ConnectionId, structure: u8) -> Vec<u8> {
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_nsid(1).with_cid(21).with_cdw(10, structure.into());
    host.ask_data(admin, &entry.with_sgl(Sgl::transport(4096)), &[]).expect("it is answered").1
}

fn transfer(opcode: u8, lba: u64, blocks: u32, bytes: u32) -> SubmissionEntry {
    let entry = SubmissionEntry::new(opcode).with_nsid(1).with_cid(22).with_lba(lba).with_cdw(12, blocks - 1);
    entry.with_sgl(Sgl::transport(bytes))
}

#[test]
fn a_formatted_namespace_is_empty_has_the_blocks_asked_for_and_is_the_same_otherwise() {
    let mut host = Host::new();
    let ((admin, io), (_, other)) = (host.queues(1), host.queues(2));
    let before = identify(&mut host, admin, cns::NAMESPACE);
    assert!(host.ask(io, &transfer(nvm::WRITE, 0, 512, 2 << 20), &vec![7; 2 << 20]).unwrap().status.is_success());
    // A write that was asked for its data comes too late.
    let Next::Fetch(mut late) = host.subsystem.command(other, &transfer(nvm::WRITE, 0, 1, 4096), &[]) else {
        panic!("it is asked for its data")
    };
    assert!(format(&mut host, admin, 1, 1 | 1 << 9).is_success());
    late.buffer[late.start..][..4096].fill(9);
    host.subsystem.data(other, late.slot, late.buffer);
    host.run();
    assert!(!host.subsystem.completion().expect("it has ended").entry.status.is_success());
    let (answer, data) = host.ask_data(io, &transfer(nvm::READ, 0, 512, 2 << 20), &[]).unwrap();
    assert!(answer.status.is_success() && data.iter().all(|byte| *byte == 0));
    assert_eq!(identify(&mut host, admin, cns::NAMESPACE), before, "the same blocks, size and name");

    assert!(format(&mut host, admin, 1, 0).is_success());
    let small = identify(&mut host, admin, cns::NAMESPACE);
    assert_eq!((u64_at(&small, 0), small[26], &small[104..120]), (4096, 0, &before[104..120]));
    for (byte, lba) in [(3, 0), (5, 4095)] {
        let written = host.ask(io, &transfer(nvm::WRITE, lba, 1, 512), &[byte; 512]).unwrap();
        assert!(written.status.is_success());
        let (_, data) = host.ask_data(io, &transfer(nvm::READ, lba, 1, 512), &[]).unwrap();
        assert_eq!(data, [byte; 512]);
    }
    assert!(format(&mut host, admin, 1, 1).is_success());
    assert_eq!(identify(&mut host, admin, cns::NAMESPACE), before);
    let regions = host.subsystem.backend().statistics().regions;
    assert_eq!(regions.iter().filter(|region| region.id == 1).count(), 1, "nothing is left of those before");
}

#[test]
fn what_cannot_be_formatted_or_sanitized_is_refused_and_stays() {
    let mut host = Host::new();
    let ((admin, io), (other_admin, other)) = (host.queues(1), host.queues(2));
    assert!(host.ask(io, &transfer(nvm::WRITE, 0, 1, 4096), &[7; 4096]).unwrap().status.is_success());
    for (nsid, cdw10, status) in [
        (1, 2, Status::INVALID_FORMAT),
        (1, 1 | 1 << 12, Status::INVALID_FORMAT),
        (1, 1 | 1 << 4, Status::INVALID_FORMAT),
        (1, 1 | 1 << 5, Status::INVALID_FORMAT),
        (1, 1 | 2 << 9, Status::INVALID_FIELD),
        (2, 1, Status::INVALID_FORMAT),
        (3, 1, Status::INVALID_FIELD),
        (0, 1, Status::INVALID_NAMESPACE),
        (u32::MAX, 1, Status::INVALID_NAMESPACE),
    ] {
        let refused = format(&mut host, admin, nsid, cdw10);
        assert!(refused.is(status), "{nsid} {cdw10:x}: {refused:?}");
    }
    let controller = identify(&mut host, admin, cns::CONTROLLER);
    assert_eq!((controller[256] & 2, controller[524], &controller[328..332]), (2, 8, &[0; 4][..]));
    let sanitize = SubmissionEntry::new(admin::SANITIZE).with_cid(23).with_cdw(10, 2);
    assert!(host.ask(admin, &sanitize, &[]).unwrap().status.is(Status::INVALID_OPCODE), "as SANICAP says");
    host.reserve(other, nvm::RESERVATION_REGISTER, 0, [0, 5]);
    host.reserve(other, nvm::RESERVATION_ACQUIRE, (ReservationType::WriteExclusive as u32) << 8, [5, 0]);
    assert!(format(&mut host, admin, 1, 1).is(Status::RESERVATION_CONFLICT));
    let (_, data) = host.ask_data(io, &transfer(nvm::READ, 0, 1, 4096), &[]).unwrap();
    assert_eq!(data, [7; 4096]);
    assert!(format(&mut host, other_admin, 1, 1).is_success(), "its holder may");
}
