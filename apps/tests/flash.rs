//! A device whose banks are flash behind the FTL `page`, in the sandbox and natively: the same bytes as any other device's, also after
//! collection has had to work, and after a kill.

mod support;

use std::path::Path;
use support::{BLOCK, Drive, FLASH, Ftl, SPUS};
use willow_device::media::fault::{FaultMedia, FaultOptions, Random};
use willow_device::media::flash::{Array, FaultParameters, Head};

const UUID: [u8; 16] = [7; 16];

/// Writes, reads and zeroes at random, compared with an array all along; more is written than the flash has bytes.
fn workload(drive: &mut Drive, model: &mut [u8], random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let block = random.below(drive.blocks as u64) as usize;
        let count = 1 + random.below((drive.blocks - block).min(24) as u64) as usize;
        let range = block * BLOCK..(block + count) * BLOCK;
        match random.below(10) {
            0..6 => {
                let data = random.bytes(count * BLOCK);
                model[range].copy_from_slice(&data);
                drive.write(block, &data);
            }
            6..8 => {
                let found = drive.read(block, count);
                assert!(found == model[range], "blocks {block} to {}: {}", block + count, drive.log(drive.ftl_name()));
            }
            8 => {
                model[range].fill(0);
                drive.zero(block, count);
            }
            _ => drive.flush(),
        }
    }
    compare(drive, model);
}

fn compare(drive: &mut Drive, model: &[u8]) {
    for block in (0..drive.blocks).step_by(16) {
        let count = (drive.blocks - block).min(16);
        let found = drive.read(block, count);
        assert!(
            found == model[block * BLOCK..][..count * BLOCK],
            "from block {block} on: {}",
            drive.log(drive.ftl_name())
        );
    }
}

fn same_as_an_array(ftl: Ftl) {
    let mut drive = Drive::new(ftl);
    let mut model = vec![0; drive.blocks * BLOCK];
    let mut random = Random::new(11);
    workload(&mut drive, &mut model, &mut random, 1500);
}

#[test]
fn the_same_bytes_in_the_sandbox() {
    same_as_an_array(Ftl::Page);
}

#[test]
fn the_same_bytes_natively() {
    same_as_an_array(Ftl::NativePage);
}

fn flash_files(folder: &Path, fresh: bool) -> Vec<Array> {
    (0..u64::from(SPUS))
        .map(|bank| {
            let path = folder.join(format!("flash-{bank:03}"));
            let head = Head { uuid: UUID, bank, geometry: FLASH, seed: bank };
            match fresh {
                true => Array::create(&path, &head, &FaultParameters::NONE).expect("a flash file"),
                false => Array::open(&path, &UUID, bank, &FLASH, &FaultParameters::NONE).expect("the same file"),
            }
        })
        .collect()
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let folder = std::env::temp_dir().join(format!("willow-flash-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut model = Vec::new();
    let mut random = Random::new(5);
    let metadata = FaultMedia::new(FaultOptions::new(SPUS.into(), 65536));
    for round in 0..4 {
        let mut drive = Drive::open(flash_files(&folder, round == 0), Box::new(metadata.store()), Ftl::Page);
        model.resize(drive.blocks * BLOCK, 0);
        if round > 0 {
            compare(&mut drive, &model);
        }
        workload(&mut drive, &mut model, &mut random, 150);
        drive.flush();
        // No regular end: the FTL finds what it programmed, and its log.
        drop(drive);
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
}
