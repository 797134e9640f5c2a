//! Snapshots that were damaged, cut short or are of other flash.

use super::*;
use crate::{Cell, FaultParameters, Geometry, PageAddress, ProgramPage};

const GEOMETRY: Geometry = Geometry {
    channels: 1,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 1,
    blocks_per_plane: 3,
    pages_per_block: 4,
    page_bytes: 512,
    spare_bytes: 16,
    cell: Cell::Slc,
    paired_distance: 0,
    spare_accessible: true,
};

fn fresh(keeps: bool) -> Array {
    match keeps {
        true => Array::in_memory(&GEOMETRY, &FaultParameters::NONE, 5),
        false => Array::headers_only(&GEOMETRY, &FaultParameters::NONE, 5),
    }
}

/// Some pages, some of them the FTL's own.
fn saved(keeps: bool) -> Vec<u8> {
    let mut array = fresh(keeps);
    array.erase(0, &[1]).unwrap();
    for page in 0..3 {
        let at = PageAddress { block: 1, page };
        let (data, spare) = ([page as u8 + 1; 512], [page as u8; 9]);
        array.program(0, &[ProgramPage { at, data: &[&data], spare: &spare, metadata: page == 1 }]).unwrap();
    }
    let mut frames = FrameWriter::new(Vec::new());
    array.save(&mut frames).unwrap();
    frames.finish().unwrap()
}

fn load(keeps: bool, bytes: &[u8]) -> Result<(), SnapshotError> {
    let mut frames = FrameReader::new(bytes);
    fresh(keeps).load(&mut frames)?;
    Ok(frames.finish()?)
}

#[test]
fn what_is_damaged_or_cut_short_is_refused() {
    for keeps in [true, false] {
        let whole = saved(keeps);
        load(keeps, &whole).unwrap();
        for length in 0..whole.len() {
            assert!(load(keeps, &whole[..length]).is_err(), "cut at {length}");
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(load(keeps, &damaged).is_err(), "bit {bit}");
        }
        let longer = [&whole[..], &[0]].concat();
        let why = load(keeps, &longer).unwrap_err().to_string();
        assert!(why.contains("something follows"), "{why}");
    }
}

#[test]
fn bytes_with_good_checksums_are_not_believed_either() {
    for keeps in [true, false] {
        let whole = saved(keeps);
        let mut bytes = Vec::new();
        FrameReader::new(&whole[..]).read_to_end(&mut bytes).unwrap();
        let mut refused = 0;
        for at in 0..bytes.len() {
            for value in [0, 0xFF, bytes[at].wrapping_add(1)] {
                let mut forged = bytes.clone();
                forged[at] = value;
                // Refused, or other flash: never a panic.
                refused += u32::from(fresh(keeps).load(&mut &forged[..]).is_err());
            }
        }
        assert!(refused > 20, "{refused} of them make no sense");
    }
}

#[test]
fn contents_that_are_not_kept_are_refused_and_missing_ones_are_zeroes() {
    let why = load(false, &saved(true)).unwrap_err().to_string();
    assert!(why.contains("with contents"), "{why}");
    let mut array = fresh(true);
    array.load(&mut FrameReader::new(&saved(false)[..])).unwrap();
    for (page, expected) in [(0, 0), (1, 2), (2, 0)] {
        let at = PageAddress { block: 1, page };
        let read = crate::Read { at, offset_bytes: 0, length_bytes: 512, spare: true };
        let (mut data, mut spare) = ([7; 512], [7; 9]);
        array.read(0, &read, &mut data, &mut spare).unwrap();
        assert_eq!((data, spare), ([expected; 512], [page as u8; 9]));
    }
    assert_eq!(array.erase_count(0, 1), Some(1));
}

/// What is known of blocks beside their pages is there again: failures, reads and ages, and the medium's time.
#[test]
fn failures_reads_and_ages_of_blocks_are_there_again() {
    // A block's second life fails with its first page.
    let faults =
        FaultParameters { endurance_cycles: 1, program_fail_per_billion: 1_000_000_000, ..FaultParameters::NONE };
    for make in [Array::in_memory, Array::headers_only] {
        let mut array = make(&GEOMETRY, &faults, 5);
        let program = |array: &mut Array, block: u32| {
            let at = PageAddress { block, page: array.blocks[block as usize].next_page.into() };
            array.program(0, &[ProgramPage { at, data: &[&[1; 512]], spare: &[], metadata: false }]).unwrap()
        };
        array.set_time_s(1000);
        assert_eq!(program(&mut array, 0), crate::Status::DONE);
        for _ in 0..3 {
            let read =
                crate::Read { at: PageAddress { block: 0, page: 0 }, offset_bytes: 0, length_bytes: 512, spare: false };
            array.read(0, &read, &mut [0; 512], &mut []).unwrap();
        }
        array.set_time_s(5000);
        array.erase(0, &[1]).unwrap();
        assert!(matches!(program(&mut array, 1), crate::Status::ProgramFailed(_)));
        let mut saved = Vec::new();
        array.save(&mut saved).unwrap();
        let mut other = make(&GEOMETRY, &faults, 5);
        other.load(&mut &saved[..]).unwrap();
        assert_eq!((other.time_s(), &other.blocks), (5000, &array.blocks));
        assert_eq!((other.blocks[0].reads, other.blocks[0].programmed_s), (3, 1000));
        assert!(matches!(other.erase(0, &[1]).unwrap(), crate::Status::EraseFailed(_)), "it stays bad");
    }
}

/// A block with more pages than it can have, or with a state that there is not, is refused before any page is looked at.
#[test]
fn blocks_that_cannot_be_are_refused() {
    let mut whole = Vec::new();
    fresh(true).save(&mut whole).unwrap();
    // Behind the time: erases, reads and age of the first block, then its pages and its flags.
    for (at, value) in [(16, GEOMETRY.pages_per_block as u8 + 1), (17, 1), (18, 0x80)] {
        let mut forged = whole.clone();
        forged[at] = value;
        let why = fresh(true).load(&mut &forged[..]).unwrap_err().to_string();
        assert!(why.contains("block 0 cannot be like this"), "byte {at}: {why}");
    }
}
