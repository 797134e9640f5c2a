//! Syncs of flash files: what they cover, and what follows from one that failed.

use super::*;
use crate::{Array, Cell, FaultParameters, PageAddress, ProgramPage, Read, Status};

fn fail_syncs(array: &mut Array, fail: bool) {
    let fails = move || if fail { Err(io::Error::other("on purpose")) } else { Ok(()) };
    array.set_sync_hook(SyncHook::new(Arc::new(fails)));
}

/// A sync on another thread covers what was programmed before it was begun, and no more.
#[test]
fn a_sync_beside_covers_what_was_before_it() {
    let path = std::env::temp_dir().join(format!("willow-flash-beside-{}", std::process::id()));
    let geometry = geometry();
    let head = Head { uuid: [1; 16], bank: 0, geometry, seed: 1 };
    let mut array = Array::create(&path, &head, &FaultParameters::NONE).unwrap();
    assert!(array.begin_sync().unwrap().is_none() && !array.must_sync(), "nothing to sync");
    program(&mut array, 0, 5);
    let sync = array.begin_sync().unwrap().expect("something to sync");
    assert!(array.must_sync(), "it has not ended");
    program(&mut array, 1, 6);
    array.end_sync(sync.run()).unwrap();
    assert!(array.must_sync(), "page 1 came later");
    // What an erase may destroy was on the disk: it does not wait for page 1. Nor does one that destroys nothing.
    let syncs = array.syncs();
    assert!(array.must_sync_before_erase(0, &[1]) && !array.must_sync_before_erase(0, &[2]));
    assert_eq!(array.erase(0, &[2]).unwrap(), Status::DONE);
    assert_eq!(array.erase_covered(0, &[1]).unwrap(), Status::DONE);
    assert_eq!(array.syncs(), syncs);
    program(&mut array, 0, 7);
    assert_eq!(array.erase(0, &[1]).unwrap(), Status::DONE);
    assert_eq!(array.syncs(), syncs + 1);
    assert!(!array.must_sync());
    program(&mut array, 0, 7);
    fail_syncs(&mut array, true);
    let sync = array.begin_sync().unwrap().expect("page 2");
    assert!(array.end_sync(sync.run()).is_err());
    fail_syncs(&mut array, false);
    assert!(matches!(array.begin_sync(), Err(FileError::SyncFailed)));
    assert!(matches!(array.erase_covered(0, &[2]), Err(FileError::SyncFailed)));
    std::fs::remove_file(&path).unwrap();
}

fn geometry() -> Geometry {
    Geometry {
        channels: 1,
        packages_per_channel: 1,
        dies_per_package: 1,
        planes_per_die: 1,
        blocks_per_plane: 4,
        pages_per_block: 4,
        page_bytes: 512,
        spare_bytes: 16,
        cell: Cell::Slc,
        paired_distance: 0,
        spare_accessible: true,
    }
}

fn program(array: &mut Array, page: u32, byte: u8) -> Status {
    let at = PageAddress { block: 1, page };
    array.program(0, &[ProgramPage { at, data: &[&[byte; 512]], spare: &[], metadata: false }]).unwrap()
}

#[test]
fn a_failed_sync_is_never_passed_off_as_a_good_one() {
    let path = std::env::temp_dir().join(format!("willow-flash-sync-{}", std::process::id()));
    let geometry = geometry();
    let head = Head { uuid: [1; 16], bank: 0, geometry, seed: 1 };
    let mut array = Array::create(&path, &head, &FaultParameters::NONE).unwrap();
    let read = |array: &mut Array, page| {
        let read = Read { at: PageAddress { block: 1, page }, offset_bytes: 0, length_bytes: 512, spare: false };
        let mut data = [0; 512];
        (array.read(0, &read, &mut data, &mut []).unwrap(), data)
    };
    assert_eq!(program(&mut array, 0, 5), Status::DONE);
    array.sync().unwrap();
    assert_eq!(program(&mut array, 1, 6), Status::DONE);
    fail_syncs(&mut array, true);
    // The sync before an erase counts as well as one that was asked for.
    assert!(matches!(array.erase(0, &[1]), Err(FileError::System { .. })));
    assert_eq!(read(&mut array, 1), (Status::DONE, [6; 512]), "the erase has changed nothing");
    assert_eq!(array.erase_count(0, 1), Some(0));
    // The disk is well again, but what it dropped is not.
    fail_syncs(&mut array, false);
    assert!(matches!(array.sync(), Err(FileError::SyncFailed)));
    assert!(matches!(array.erase(0, &[1]), Err(FileError::SyncFailed)));
    assert!(matches!(array.erase(0, &[2]), Err(FileError::SyncFailed)), "nothing was programmed since, and still");
    assert_eq!(program(&mut array, 2, 7), Status::DONE);
    drop(array);
    let mut array = Array::open(&path, &[1; 16], 0, &geometry, &FaultParameters::NONE).unwrap();
    array.sync().unwrap();
    assert_eq!(read(&mut array, 2), (Status::DONE, [7; 512]));
    assert_eq!(array.erase(0, &[1]).unwrap(), Status::DONE);
    std::fs::remove_file(&path).unwrap();
}
