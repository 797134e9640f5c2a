//! The target with the host library as its peer: what a host does in everyday use.

mod common;

use common::*;
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_host::nvme_tcp::polled::{PolledController, PolledQueue};
use willow_host::nvme_tcp::{Completed, Transfer};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, opcode::nvm};

fn one(queue: &mut PolledQueue, entry: SubmissionEntry, transfer: Transfer) -> Completed {
    queue.submit(1, entry, transfer).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done, PATIENCE).unwrap();
    }
    done.pop().unwrap()
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn writes_are_read_back(header_digest: bool, data_digest: bool, block_bytes: u32) {
    let server = serve_with(|_| {}, block_bytes);
    let mut options = server.options();
    (options.header_digest, options.data_digest) = (header_digest, data_digest);
    let mut controller = PolledController::connect(&options).unwrap();
    let namespaces = controller.namespaces().unwrap();
    assert_eq!(namespaces.iter().map(|one| one.nsid).collect::<Vec<_>>(), [1, 2]);
    let mut queue = controller.open_queue().unwrap();
    // In the capsule, by R2T in one piece and in several, over one stripe and over many, not aligned to stripes.
    for (round, bytes) in [block_bytes, 4096, 8192, 16384, 69632, 1 << 20, 4 << 20].into_iter().enumerate() {
        let blocks = bytes / block_bytes;
        let lba = 3 + round as u64;
        let data = pattern(round as u64, bytes as usize);
        let wrote = one(&mut queue, write(0, lba, blocks, Sgl::transport(0)), Transfer::ToController(data.clone()));
        assert!(wrote.entry.status.is_success(), "{bytes}: {:?}", wrote.entry);
        let back = one(&mut queue, read(0, lba, blocks, bytes), Transfer::FromController(vec![0; bytes as usize]));
        assert!(back.entry.status.is_success() && back.buffer == data, "{bytes}");
        let compare = SubmissionEntry::new(nvm::COMPARE).with_nsid(1).with_lba(lba).with_cdw(12, blocks - 1);
        let same = one(&mut queue, compare, Transfer::ToController(data.clone()));
        assert!(same.entry.status.is_success());
        let mut other = data;
        *other.last_mut().unwrap() ^= 1;
        let differs = one(&mut queue, compare, Transfer::ToController(other));
        assert!(differs.entry.status.is(Status::COMPARE_FAILURE));
    }
    drop(queue);
    controller.shut_down().unwrap();
    server.stop();
}

#[test]
fn writes_are_read_back_plain() {
    writes_are_read_back(false, false, 4096);
}

#[test]
fn writes_are_read_back_with_digests() {
    writes_are_read_back(true, true, 4096);
}

#[test]
fn writes_are_read_back_with_data_digests_and_small_blocks() {
    writes_are_read_back(false, true, 512);
}

#[test]
fn zeroes_ranges_flush_and_verify() {
    let server = serve();
    let mut controller = PolledController::connect(&server.options()).unwrap();
    let mut queue = controller.open_queue().unwrap();
    let command = |opcode| SubmissionEntry::new(opcode).with_nsid(1);
    let data = pattern(5, 40 * 4096);
    assert!(
        one(&mut queue, write(0, 0, 40, Sgl::transport(0)), Transfer::ToController(data.clone()))
            .entry
            .status
            .is_success()
    );
    let zeroes = command(nvm::WRITE_ZEROES).with_lba(3).with_cdw(12, 9 | nvm::CDW12_DEALLOCATE);
    assert!(one(&mut queue, zeroes, Transfer::None).entry.status.is_success());
    // Ranges of which one is empty; the last block of the namespace too.
    let mut ranges = vec![0; 48];
    for (place, (blocks, lba)) in [(2u32, 20u64), (0, 0), (1, 16383)].into_iter().enumerate() {
        ranges[place * 16 + 4..place * 16 + 8].copy_from_slice(&blocks.to_le_bytes());
        ranges[place * 16 + 8..place * 16 + 16].copy_from_slice(&lba.to_le_bytes());
    }
    let dsm = command(nvm::DATASET_MANAGEMENT).with_cdw(10, 2).with_cdw(11, nvm::DSM_DEALLOCATE);
    assert!(one(&mut queue, dsm, Transfer::ToController(ranges.clone())).entry.status.is_success());
    ranges[40..48].copy_from_slice(&16384u64.to_le_bytes());
    assert!(one(&mut queue, dsm, Transfer::ToController(ranges)).entry.status.is(Status::LBA_OUT_OF_RANGE));
    assert!(one(&mut queue, command(nvm::FLUSH), Transfer::None).entry.status.is_success());
    let flush_all = SubmissionEntry::new(nvm::FLUSH).with_nsid(u32::MAX);
    assert!(one(&mut queue, flush_all, Transfer::None).entry.status.is_success());
    assert!(one(&mut queue, command(nvm::VERIFY).with_cdw(12, 99), Transfer::None).entry.status.is_success());
    let back = one(&mut queue, read(0, 0, 40, 40 * 4096), Transfer::FromController(vec![1; 40 * 4096]));
    let mut wanted = data;
    wanted[3 * 4096..13 * 4096].fill(0);
    wanted[20 * 4096..22 * 4096].fill(0);
    assert!(back.buffer == wanted);
}

/// A device of so many SPUs with 6 GiB of blocks of 4 KiB.
fn large_device(spus: u16) -> Device {
    let config = DeviceConfig { spus, namespace_bytes: 6 << 30, kv_namespace_bytes: 0, ..DeviceConfig::default() };
    let store = RamStore::new(spus.into(), (9 << 30) / u64::from(spus) / 65536 * 65536).unwrap();
    Device::open(config, Box::new(store), None, vec![BuiltInApp::Native(base_io_spu::native())]).unwrap()
}

/// Ranges as long as the namespace, as `blkdiscard` sends them, and the other commands at the limits that the controller tells.
#[test]
fn any_valid_range_works() {
    for spus in [1, 3, 8] {
        let server = serve_device(|_| {}, move || large_device(spus));
        let mut controller = PolledController::connect(&server.options()).unwrap();
        let mut queue = controller.open_queue().unwrap();
        let command = |opcode| SubmissionEntry::new(opcode).with_nsid(1);
        let blocks: u64 = (6 << 30) / 4096;
        let places = [0, 1, 262_143, 262_144, blocks / 2 + 1, blocks - 1];
        for lba in places {
            let data = pattern(lba, 4096);
            assert!(
                one(&mut queue, write(0, lba, 1, Sgl::transport(0)), Transfer::ToController(data))
                    .entry
                    .status
                    .is_success()
            );
        }
        let mut deallocate = |list: &[(u64, u64)]| {
            let mut ranges = vec![0; 16 * list.len()];
            for (range, (lba, count)) in ranges.chunks_mut(16).zip(list) {
                range[4..8].copy_from_slice(&(*count as u32).to_le_bytes());
                range[8..16].copy_from_slice(&lba.to_le_bytes());
            }
            let entry =
                command(nvm::DATASET_MANAGEMENT).with_cdw(10, list.len() as u32 - 1).with_cdw(11, nvm::DSM_DEALLOCATE);
            let status = one(&mut queue, entry, Transfer::ToController(ranges)).entry.status;
            assert!(status.is_success(), "{spus} SPUs, {} ranges: {status}", list.len());
            let mut is_zero = |lba| {
                let back = one(&mut queue, read(0, lba, 1, 4096), Transfer::FromController(vec![1; 4096]));
                assert!(back.entry.status.is_success());
                let zero = back.buffer.iter().all(|byte| *byte == 0);
                assert!(zero || back.buffer == pattern(lba, 4096), "block {lba} is neither");
                zero
            };
            places.map(&mut is_zero)
        };
        // All but the first and the last block, then all of it, in as many ranges as a command can have.
        assert_eq!(deallocate(&[(1, blocks - 2)]), [false, true, true, true, true, false]);
        let share = blocks / 256;
        let all: Vec<_> =
            (0..256).map(|it| (it * share, if it == 255 { blocks - it * share } else { share })).collect();
        assert_eq!(deallocate(&all), [true; 6]);

        let data = pattern(9, 4 << 20);
        let wrote = one(&mut queue, write(0, 5, 1024, Sgl::transport(0)), Transfer::ToController(data.clone()));
        assert!(wrote.entry.status.is_success());
        let at_limit = [
            (command(nvm::COMPARE).with_lba(5).with_cdw(12, 1023), Transfer::ToController(data)),
            (command(nvm::VERIFY).with_lba(7).with_cdw(12, 1023), Transfer::None),
            (command(nvm::WRITE_ZEROES).with_lba(3).with_cdw(12, 8191), Transfer::None),
            (command(nvm::WRITE_ZEROES).with_lba(3).with_cdw(12, 8191 | nvm::CDW12_DEALLOCATE), Transfer::None),
        ];
        for (entry, transfer) in at_limit {
            let done = one(&mut queue, entry, transfer);
            assert!(done.entry.status.is_success(), "{spus} SPUs, {entry:?}: {}", done.entry.status);
        }
        drop(queue);
        controller.shut_down().unwrap();
        server.stop();
    }
}

/// A range of terabytes is done in pieces: others' reads go on meanwhile, and a namespace that is deleted ends it.
#[test]
fn a_long_deallocation_holds_up_nobody() {
    const BYTES: u64 = 17 << 40;
    let device = || {
        let config = DeviceConfig { spus: 4, namespace_bytes: BYTES, kv_namespace_bytes: 0, ..DeviceConfig::default() };
        let store = RamStore::new(4, BYTES / 2).unwrap();
        Device::open(config, Box::new(store), None, vec![BuiltInApp::Native(base_io_spu::native())]).unwrap()
    };
    let server = serve_device(|_| {}, device);
    let mut options = server.options();
    options.queues = 2;
    let mut controller = PolledController::connect(&options).unwrap();
    let (mut long, mut short) = (controller.open_queue().unwrap(), controller.open_queue().unwrap());
    // As many ranges of 16 TiB as a command can have: millions of pieces.
    let mut ranges = vec![0; 16 * 256];
    ranges.chunks_mut(16).for_each(|range| range[4..8].copy_from_slice(&u32::MAX.to_le_bytes()));
    let entry = SubmissionEntry::new(nvm::DATASET_MANAGEMENT).with_nsid(1);
    let entry = entry.with_cdw(10, 255).with_cdw(11, nvm::DSM_DEALLOCATE);
    long.submit(1, entry, Transfer::ToController(ranges)).unwrap();
    let mut done = Vec::new();
    for lba in 0..200 {
        let data = pattern(lba, 4096);
        let place = BYTES / 4096 - 1 - lba;
        assert!(
            one(&mut short, write(0, place, 1, Sgl::transport(0)), Transfer::ToController(data.clone()))
                .entry
                .status
                .is_success()
        );
        let back = one(&mut short, read(0, place, 1, 4096), Transfer::FromController(vec![1; 4096]));
        assert!(back.buffer == data);
    }
    long.poll(&mut done).unwrap();
    assert!(done.is_empty(), "it is over already, and nothing was beside it");
}

#[test]
fn many_commands_at_once_on_many_queues() {
    let server = serve();
    let mut options = server.options();
    (options.queues, options.depth) = (4, 128);
    let mut controller = PolledController::connect(&options).unwrap();
    let mut queues: Vec<PolledQueue> = (0..4).map(|_| controller.open_queue().unwrap()).collect();
    let mut done = Vec::new();
    for round in 0..6u64 {
        for (place, queue) in queues.iter_mut().enumerate() {
            for tag in 0..queue.depth() as u64 {
                let lba = place as u64 * 2000 + tag * 2;
                if round % 2 == 0 {
                    let data = pattern(lba + round, 8192);
                    queue.submit(tag, write(0, lba, 2, Sgl::transport(0)), Transfer::ToController(data)).unwrap();
                } else {
                    queue.submit(tag, read(0, lba, 2, 8192), Transfer::FromController(vec![0; 8192])).unwrap();
                }
            }
        }
        for (place, queue) in queues.iter_mut().enumerate() {
            while queue.in_flight() > 0 {
                queue.wait(&mut done, PATIENCE).unwrap();
            }
            for completed in done.drain(..) {
                assert!(completed.entry.status.is_success());
                if round % 2 == 1 {
                    let lba = place as u64 * 2000 + completed.tag * 2;
                    assert!(completed.buffer == pattern(lba + round - 1, 8192));
                }
            }
        }
    }
    let statistics = server.handle.statistics(PATIENCE).unwrap();
    let block = statistics.namespaces.iter().find(|one| one.nsid == 1).unwrap();
    assert_eq!((block.write_commands, block.read_commands), (3 * 4 * 128, 3 * 4 * 128));
    assert_eq!(block.read_bytes, 3 * 4 * 128 * 8192);
    assert_eq!(block.read_latency.count, block.read_commands);
    assert_eq!(statistics.buffer_bytes, 0, "every buffer came back");
}
