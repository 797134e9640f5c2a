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
