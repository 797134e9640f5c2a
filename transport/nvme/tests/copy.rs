//! Copy (NVM Command Set 3.2.2): ranges of a namespace to another place of it, against a model.

mod common;

use common::Host;
use willow_device::reservation::ReservationType;
use willow_nvme::ConnectionId;
use willow_nvme::config::{COPY_BYTES_MAX, COPY_RANGES_MAX};
use willow_wire::bytes::{u16_at, u32_at};
use willow_wire::spec::identify::cns;
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry};

/// A source range: first block, blocks.
type Range = (u64, u16);

const BLOCK: usize = 4096;
const BLOCKS: u64 = (2 << 20) / BLOCK as u64;

fn transfer(host: &mut Host, io: ConnectionId, opcode: u8, data: &[u8]) -> Vec<u8> {
    let entry = SubmissionEntry::new(opcode).with_nsid(1).with_cid(21).with_cdw(12, BLOCKS as u32 - 1);
    let (answer, came) = host.ask_data(io, &entry.with_sgl(Sgl::transport(2 << 20)), data).expect("it is answered");
    assert!(answer.status.is_success(), "{answer:?}");
    came
}

/// Copies ranges of (first block, blocks) to a block; `inline`: they come with the command.
fn copy(host: &mut Host, io: ConnectionId, ranges: &[Range], to: u64, inline: bool) -> Status {
    let mut data = vec![0; ranges.len() * nvm::COPY_RANGE_BYTES];
    for (range, (lba, blocks)) in data.chunks_exact_mut(nvm::COPY_RANGE_BYTES).zip(ranges) {
        range[8..16].copy_from_slice(&lba.to_le_bytes());
        range[16..18].copy_from_slice(&(blocks - 1).to_le_bytes());
    }
    let bytes = data.len() as u32;
    let sgl = if inline { Sgl::in_capsule(0, bytes) } else { Sgl::transport(bytes) };
    let cdw12 = (ranges.len() as u32 - 1) | nvm::CDW12_FUA;
    let entry = SubmissionEntry::new(nvm::COPY).with_nsid(1).with_cid(22).with_lba(to).with_cdw(12, cdw12);
    host.ask(io, &entry.with_sgl(sgl), &data).expect("it is answered").status
}

#[test]
fn ranges_land_one_behind_the_other_whatever_they_overlap() {
    let mut host = Host::new();
    let (_, io) = host.queues(1);
    let mut model: Vec<u8> = (0..2 << 20).map(|at: usize| (at / 512 * 31 + at % 251) as u8).collect();
    transfer(&mut host, io, nvm::WRITE, &model);
    let most = (COPY_BYTES_MAX / BLOCK as u32) as u16;
    let many: Vec<Range> = (0..u64::from(COPY_RANGES_MAX)).map(|at| (at * 29 % 500, 1 + at as u16 % 5)).collect();
    let cases: [(&[Range], u64); 7] = [
        (&[(0, 1)], 511),
        (&[(3, 5), (100, 3), (1, 1)], 200),
        (&[(10, 20)], 15),
        (&[(10, 20)], 5),
        (&[(0, most)], 256),
        (&[(0, 3), (0, 3), (400, 7)], 1),
        (&many, 300),
    ];
    for (at, (ranges, to)) in cases.into_iter().enumerate() {
        assert!(copy(&mut host, io, ranges, to, at % 2 == 0).is_success(), "{ranges:?}");
        let bytes = |lba: u64, blocks: u16| lba as usize * BLOCK..(lba as usize + usize::from(blocks)) * BLOCK;
        let data: Vec<u8> = ranges.iter().flat_map(|(lba, blocks)| model[bytes(*lba, *blocks)].to_vec()).collect();
        model[to as usize * BLOCK..][..data.len()].copy_from_slice(&data);
        assert!(transfer(&mut host, io, nvm::READ, &[]) == model, "{ranges:?} to {to}");
    }
    assert_eq!(host.subsystem.statistics().buffer_bytes, 0, "no buffer is left");
}

#[test]
fn what_is_too_much_or_outside_is_refused_and_copies_nothing() {
    let mut host = Host::new();
    let (admin, io) = host.queues(1);
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_nsid(1).with_cid(23);
    let told = |host: &mut Host, structure: u8| {
        let entry = entry.with_cdw(10, structure.into()).with_sgl(Sgl::transport(4096));
        host.ask_data(admin, &entry, &[]).expect("it is answered").1
    };
    let limits = told(&mut host, cns::NAMESPACE);
    let most = u16_at(&limits, 74);
    assert_eq!((u32_at(&limits, 76), limits[80]), (u32::from(most), COPY_RANGES_MAX as u8 - 1));
    let controller = told(&mut host, cns::CONTROLLER);
    assert_eq!((u16_at(&controller, 520) >> 8 & 1, u16_at(&controller, 534)), (1, 1));

    let before: Vec<u8> = (0..2 << 20).map(|at: usize| (at / 4096) as u8 ^ 0x55).collect();
    transfer(&mut host, io, nvm::WRITE, &before);
    let too_many = vec![(0, 1); usize::from(COPY_RANGES_MAX) + 1];
    let cases: [(&[Range], u64, Status); 7] = [
        (&too_many, 0, Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        (&[(0, most + 1)], 0, Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        (&[(0, most), (0, 1)], 0, Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        (&[(BLOCKS, 1)], 0, Status::LBA_OUT_OF_RANGE),
        (&[(u64::MAX, 1)], 0, Status::LBA_OUT_OF_RANGE),
        (&[(0, 2)], BLOCKS - 1, Status::LBA_OUT_OF_RANGE),
        (&[(0, 1)], u64::MAX, Status::LBA_OUT_OF_RANGE),
    ];
    for (ranges, to, status) in cases {
        for inline in [true, false] {
            let refused = copy(&mut host, io, ranges, to, inline);
            assert!(refused.is(status) && refused.do_not_retry(), "{ranges:?} to {to}: {refused:?}");
        }
    }
    let other_format = SubmissionEntry::new(nvm::COPY).with_nsid(1).with_cid(22).with_cdw(12, 1 << 8);
    let refused = host.ask(io, &other_format.with_sgl(Sgl::in_capsule(0, 32)), &[0; 32]).unwrap().status;
    assert!(refused.is(Status::INVALID_FIELD));
    // Who may not write may not copy either.
    let (_, other) = host.queues(2);
    host.reserve(other, nvm::RESERVATION_REGISTER, 0, [0, 5]);
    host.reserve(other, nvm::RESERVATION_ACQUIRE, (ReservationType::WriteExclusive as u32) << 8, [5, 0]);
    assert!(copy(&mut host, io, &[(0, 1)], 1, true).is(Status::RESERVATION_CONFLICT));
    assert!(transfer(&mut host, io, nvm::READ, &[]) == before);
}
