//! Flash files: what survives cuts of the machine's power, and what opening refuses.

mod common;

use common::{Random, Scratch, UUID, create, head, open, page_bytes, program, read, small};
use std::fs;
use std::os::unix::fs::FileExt;
use willow_flash_media::{Array, Cell, FaultParameters, FileError, Geometry, RECORD_BYTES, Status};

const HEAD_BYTES: u64 = 4096;

/// Any subset of the units of 512 bytes that were written since the last sync may be on the disk.
#[test]
fn what_was_synced_survives_a_cut_and_an_erase_waits_for_what_was_copied() {
    let geometry = small(Cell::Slc);
    let mut lost_something = false;
    for seed in 0..60 {
        let scratch = Scratch::new();
        let mut array = create(&scratch.file(), &geometry);
        let mut random = Random(seed);
        // What is on the disk for sure: the file as it was when it was last synced.
        let mut synced = fs::read(scratch.file()).unwrap();
        let mut durable: Vec<(u32, u32, u32, u32)> = Vec::new();
        let mut written: Vec<(u32, u32, u32, u32)> = Vec::new();
        let mut next = [[0u32; 6]; 2];
        for _ in 0..20 + random.below(60) {
            let (die, block) = (random.below(2), random.below(6));
            let page = &mut next[die as usize][block as usize];
            let erases = array.erase_count(die, block).unwrap();
            if *page == 8 {
                // Everything programmed before an erase has to be durable once the erase can be.
                let (before, syncs) = (fs::read(scratch.file()).unwrap(), array.syncs());
                assert_eq!(array.erase(die, &[block]).unwrap(), Status::DONE);
                if array.syncs() > syncs {
                    synced = before;
                }
                durable.append(&mut written);
                durable.retain(|(of, held, ..)| (*of, *held) != (die, block));
                *page = 0;
            } else if random.below(20) == 0 {
                array.sync().unwrap();
                synced = fs::read(scratch.file()).unwrap();
                durable.append(&mut written);
            } else {
                assert_eq!(program(&mut array, die, block, *page), Status::DONE);
                written.push((die, block, *page, erases));
                *page += 1;
            }
        }
        drop(array);
        let last = fs::read(scratch.file()).unwrap();
        let mut mixed = synced.clone();
        for (unit, bytes) in last.chunks(512).enumerate() {
            if random.below(2) == 0 {
                mixed[unit * 512..unit * 512 + bytes.len()].copy_from_slice(bytes);
            }
        }
        fs::write(scratch.file(), &mixed).unwrap();
        let mut array = open(&scratch.file(), &geometry).unwrap();
        for (die, block, page, erases) in durable {
            let (status, bytes) = read(&mut array, die, block, page);
            assert_eq!(status, Status::DONE, "seed {seed}: die {die}, block {block}, page {page}");
            assert_eq!(bytes, page_bytes(die, block, page, erases));
        }
        for (die, block, page, erases) in written {
            match read(&mut array, die, block, page) {
                (Status::DONE, bytes) => {
                    let now = array.erase_count(die, block).unwrap();
                    assert!(now == erases && bytes == page_bytes(die, block, page, erases), "a torn page is noticed");
                }
                (Status::Erased | Status::Uncorrectable { .. }, _) => lost_something = true,
                (status, _) => panic!("{status:?}"),
            }
        }
        // Nothing of before an erase comes back, whatever the cut left of it.
        for (die, block) in (0..2).flat_map(|die| (0..6).map(move |block| (die, block))) {
            assert_eq!(array.erase(die, &[block]).unwrap(), Status::DONE);
        }
        drop(array);
        let mut array = open(&scratch.file(), &geometry).unwrap();
        for (die, block, page) in (0..96).map(|at| (at / 48, at / 8 % 6, at % 8)) {
            assert_eq!(read(&mut array, die, block, page).0, Status::Erased, "seed {seed}");
        }
    }
    assert!(lost_something, "the cuts have cut");
}

/// A file with pages in all states, and its bytes.
fn written_file(geometry: &Geometry) -> (Scratch, Vec<u8>) {
    let scratch = Scratch::new();
    let mut array = create(&scratch.file(), geometry);
    for block in 0..4 {
        for page in 0..8 {
            program(&mut array, 1, block, page);
        }
    }
    array.erase(1, &[2, 3]).unwrap();
    for page in 0..3 {
        program(&mut array, 1, 2, page);
    }
    array.close().unwrap();
    let bytes = fs::read(scratch.file()).unwrap();
    (scratch, bytes)
}

#[test]
fn no_flipped_bit_is_read_as_data() {
    let geometry = small(Cell::Slc);
    let (scratch, bytes) = written_file(&geometry);
    let file = fs::OpenOptions::new().write(true).open(scratch.file()).unwrap();
    let mut random = Random(5);
    let tables = HEAD_BYTES + 12 * RECORD_BYTES;
    // Every byte of the head's fields and the blocks' records, and bytes anywhere in page records, spare areas and pages.
    let places = (0..120).chain(HEAD_BYTES..tables).map(|at| (at, true));
    let anywhere = (0..1500).map(|_| u64::from(random.below(bytes.len() as u32)));
    let places: Vec<(u64, bool)> = places.chain(anywhere.map(|at| (at, at < tables))).collect();
    let (mut refused, mut unreadable) = (0, 0);
    for (at, has_to_be_refused) in places {
        let flipped = bytes[at as usize] ^ (1 << random.below(8));
        file.write_all_at(&[flipped], at).unwrap();
        match open(&scratch.file(), &geometry) {
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("flash-003"), "{message}");
                assert!(has_to_be_refused, "byte {at}: {message}");
                refused += 1;
            }
            Ok(mut array) => {
                assert!(!has_to_be_refused, "byte {at} of the head or the blocks' records");
                for block in 0..4 {
                    let erases = u32::from(block >= 2);
                    for page in 0..8 {
                        let there = if block < 2 {
                            8
                        } else if block == 2 {
                            3
                        } else {
                            0
                        };
                        match read(&mut array, 1, block, page) {
                            (Status::DONE, read) => {
                                assert!(page < there, "byte {at}");
                                assert_eq!(read, page_bytes(1, block, page, erases), "byte {at}");
                            }
                            // A record that became zeroes but for a bit is torn; one of another erase is of another erase.
                            (Status::Uncorrectable { .. }, _) => unreadable += 1,
                            (Status::Erased, _) => assert!(page >= there, "byte {at}: page {page} of block {block}"),
                            (status, _) => panic!("{status:?}"),
                        }
                    }
                }
            }
        }
        file.write_all_at(&[bytes[at as usize]], at).unwrap();
    }
    assert!(refused > 500 && unreadable > 20, "{refused} refused, {unreadable} unreadable");
    assert_eq!(fs::read(scratch.file()).unwrap(), bytes, "opening and reading change nothing");
}

#[test]
fn foreign_truncated_and_newer_files_are_refused_with_what_is_wrong() {
    let geometry = small(Cell::Slc);
    let (scratch, bytes) = written_file(&geometry);
    let path = scratch.file();
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = bytes.clone();
        change(&mut changed);
        fs::write(&path, &changed).unwrap();
        let message = open(&path, &geometry).expect_err("it is not the file that it was").to_string();
        assert_eq!(fs::read(&path).unwrap(), changed, "left alone");
        message
    };
    for length in [0, 5, 8, 4095, 4096, bytes.len() / 2, bytes.len() - 1] {
        let message = refusal(&|bytes| bytes.truncate(length));
        let what = if length < 8 { "not a flash file" } else { "truncated" };
        assert!(message.contains(what) && message.contains("flash-003"), "{length}: {message}");
    }
    assert!(refusal(&|bytes| bytes.push(0)).contains("longer"));
    assert!(refusal(&|bytes| bytes[..8].copy_from_slice(b"WILLOWbk")).contains("not a flash file"));
    assert!(refusal(&|bytes| bytes[8] = 2).contains("version 2"));
    assert!(refusal(&|bytes| bytes[70] ^= 1).contains("checksum"));
    assert!(refusal(&|bytes| bytes[200] = 1).contains("zero"));
    assert!(refusal(&|bytes| bytes[4096 + 33] ^= 1).contains("record of block 1"));
    fs::write(&path, &bytes).unwrap();
    let none = FaultParameters::NONE;
    let message = |result: Result<Array, FileError>| result.expect_err("refused").to_string();
    assert!(message(Array::open(&path, &[8; 16], 3, &geometry, &none)).contains("another data folder"));
    assert!(message(Array::open(&path, &UUID, 4, &geometry, &none)).contains("swapped"));
    assert!(message(open(&path, &small(Cell::Mlc))).contains("otherwise"));
    assert!(message(Array::create(&path, &head(&geometry, 1), &none).map(|_| unreachable!())).contains("exists"));
    let opened = open(&path, &geometry).unwrap();
    assert!(message(open(&path, &geometry)).contains("in use"));
    drop(opened);
    open(&path, &geometry).unwrap();
    // An interrupted creation leaves the place free.
    fs::rename(&path, scratch.path().join("flash-003.new")).unwrap();
    assert!(message(open(&path, &geometry)).contains("opened"));
    drop(create(&path, &geometry));
}
