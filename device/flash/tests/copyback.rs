//! Copyback on the medium: pages of several planes move at once, and what needs the controller's ladder of read retries does not move.

mod common;

use common::{Random, small};
use willow_flash_media::{Array, Cell, CopybackPage, FaultParameters, Misuse, PageAddress, ProgramPage, Read, Status};

fn sound() -> FaultParameters {
    FaultParameters {
        endurance_cycles: 1000,
        factory_bad_per_million: 0,
        program_fail_per_billion: 0,
        erase_fail_per_billion: 0,
        fresh: 0.0,
        worn: 0.0,
        wear_exponent: 1,
        retention: 0.0,
        retention_hours: 8760,
        disturb: 0.0,
        unworn_share: 1.0,
        codeword_bytes: 512,
        correctable_bits: 24,
        retry_steps: 5,
        retry_gain: 1.5,
        paired_page_loss: false,
        word_line_buffer: false,
    }
}

fn at(block: u32, page: u32) -> PageAddress {
    PageAddress { block, page }
}

/// Fills blocks 0 and 1, one of each plane, with bytes of their own, and erases blocks 2 to 5.
fn filled(faults: &FaultParameters) -> (Array, Vec<[Vec<u8>; 2]>) {
    let mut array = Array::in_memory(&small(Cell::Slc), faults, 5);
    let mut random = Random(9);
    for blocks in [[0, 1], [2, 3], [4, 5]] {
        assert_eq!(array.erase(0, &blocks).unwrap(), Status::DONE);
    }
    let pages: Vec<[Vec<u8>; 2]> =
        (0..8).map(|_| [(); 2].map(|()| (0..1024).map(|_| random.next() as u8).collect())).collect();
    for (page, data) in (0..).zip(&pages) {
        let data = [[data[0].as_slice()], [data[1].as_slice()]];
        let spare = [0xA0, page as u8];
        let of = |block: u32| ProgramPage {
            at: at(block, page),
            data: &data[block as usize],
            spare: &spare,
            metadata: false,
        };
        assert_eq!(array.program(0, &[of(0), of(1)]).unwrap(), Status::DONE);
    }
    (array, pages)
}

fn read(array: &mut Array, block: u32, page: u32) -> (Status, Vec<u8>, [u8; 2]) {
    let (mut data, mut spare) = (vec![0; 1024], [0; 2]);
    let read = Read { at: at(block, page), offset_bytes: 0, length_bytes: 1024, spare: true };
    let status = array.read(0, &read, &mut data, &mut spare).unwrap();
    (status, data, spare)
}

#[test]
fn pages_of_several_planes_move_at_once_within_them() {
    let (mut array, pages) = filled(&sound());
    // Both planes at once: one keeps its spare area, the other has a new one.
    let both = [
        CopybackPage { from: at(0, 5), to: at(4, 0), spare: None },
        CopybackPage { from: at(1, 5), to: at(3, 0), spare: Some(&[7, 8]) },
    ];
    assert_eq!(array.copyback(0, &both).unwrap(), Status::DONE);
    assert_eq!(read(&mut array, 4, 0), (Status::DONE, pages[5][0].clone(), [0xA0, 5]));
    assert_eq!(read(&mut array, 3, 0), (Status::DONE, pages[5][1].clone(), [7, 8]));
    assert_eq!((array.statistics().copybacks, array.statistics().programs), (2, 18));
    // What breaks a rule changes nothing.
    let one = |from, to| CopybackPage { from, to, spare: None };
    let refused = [
        (vec![one(at(0, 0), at(3, 1))], Misuse::OtherPlane),
        (vec![one(at(0, 0), at(4, 1)), one(at(1, 1), at(3, 1))], Misuse::DifferentPages),
        (vec![one(at(0, 0), at(4, 0))], Misuse::NotErased(0)),
        (vec![one(at(0, 0), at(4, 2))], Misuse::OutOfOrder { page: 2, next: 1 }),
        (vec![one(at(0, 8), at(4, 1))], Misuse::NoSuchPage(8)),
        (vec![one(at(0, 0), at(4, 1)), one(at(0, 0), at(2, 1))], Misuse::OutOfOrder { page: 1, next: 0 }),
        (vec![], Misuse::Count(0)),
    ];
    for (pages, misuse) in refused {
        assert_eq!(array.copyback(0, &pages).unwrap(), Status::Misuse(misuse), "{pages:?}");
    }
    assert_eq!(array.copyback(0, &[one(at(2, 0), at(4, 1))]).unwrap(), Status::Erased);
    assert_eq!((array.statistics().copybacks, array.statistics().programs), (2, 18));
}

#[test]
fn what_needs_the_ladder_is_not_moved_by_the_chip_and_is_read_by_the_controller() {
    let (mut array, pages) = filled(&FaultParameters { retention: 8e-3, ..sound() });
    let moved = [CopybackPage { from: at(0, 3), to: at(2, 0), spare: None }];
    let mut hours = 1;
    let retries = loop {
        array.set_time_s(hours * 3600);
        match read(&mut array, 0, 3).0 {
            Status::Done { retries: 0, .. } => hours *= 2,
            Status::Done { retries, .. } => break retries,
            status => panic!("{status:?} after {hours} hours"),
        }
    };
    assert!(retries > 0);
    assert_eq!(array.copyback(0, &moved).unwrap(), Status::Uncorrectable { retries: 0 });
    let counted = array.statistics();
    assert_eq!((counted.copybacks, counted.uncorrectable_copybacks, counted.programs), (0, 1, 16));
    assert_eq!(read(&mut array, 2, 0).0, Status::Erased, "nothing has changed");
    let (status, data, _) = read(&mut array, 0, 3);
    assert!(matches!(status, Status::Done { .. }) && data == pages[3][0], "the controller corrects it");
}
