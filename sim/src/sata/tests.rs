//! The port by itself: what it merges, bounds, gives back and does alone.

use super::*;

const KIB: u64 = 1024;
const PARAMETERS: SataParameters =
    SataParameters { commands_max: 2, frame_bytes: 32 << 10, read_frames: 2, write_frames: 2 };

fn read(at_kib: u64, kib: u64) -> Operation {
    Operation::Read { offset: at_kib * KIB, bytes: (kib * KIB) as u32 }
}

fn write(at_kib: u64, kib: u64) -> Operation {
    Operation::Write { offset: at_kib * KIB, bytes: (kib * KIB) as u32 }
}

/// A port whose queue holds these, each of the slot of its number.
fn port(merge_kib: u64, operations: &[Operation]) -> SataPort {
    let mut port = SataPort::new(PARAMETERS, (merge_kib * KIB) as u32);
    for (slot, operation) in operations.iter().enumerate() {
        port.take(*operation, HreId(0), (0, slot as u32), true);
    }
    port
}

/// All that the port gives out, each ended at once: what it is, and whom it is for.
fn all(port: &mut SataPort) -> Vec<(Operation, Vec<u32>)> {
    let mut given = Vec::new();
    while let Some(number) = port.next() {
        let operation = port.command(number).operation;
        given.push((operation, port.ended(number).into_iter().map(|(_, slot)| slot).collect()));
    }
    assert!(port.is_idle());
    given
}

fn acknowledge(port: &mut SataPort, number: u32) -> Vec<Member> {
    let serial = port.command(number).serial;
    port.acknowledge(number, serial)
}

#[test]
fn neighbours_of_one_kind_are_merged_up_to_the_cap_and_others_never() {
    let mut forward = port(64, &[write(0, 4), write(4, 4), read(8, 4), write(8, 4), Operation::Flush, write(12, 4)]);
    assert_eq!(
        all(&mut forward),
        [(read(8, 4), vec![2]), (write(0, 16), vec![0, 1, 3, 5]), (Operation::Flush, vec![4]),]
    );
    let mut backward = port(64, &[read(8, 4), read(4, 4), Operation::Deallocate { offset: 0, bytes: 4096 }]);
    assert_eq!(
        all(&mut backward),
        [(read(4, 8), vec![0, 1]), (Operation::Deallocate { offset: 0, bytes: 4096 }, vec![2]),]
    );
    // 40 KiB, 32 at most; and without a cap nothing.
    let ten: Vec<Operation> = (0..10).map(|block| write(4 * block, 4)).collect();
    assert_eq!(all(&mut port(32, &ten)), [(write(0, 32), (0..8).collect()), (write(32, 8), vec![8, 9])]);
    assert_eq!(all(&mut port(0, &ten)).len(), 10);
    // What came past the block layer is left alone.
    let mut bare = SataPort::new(PARAMETERS, 1 << 20);
    ten.iter().for_each(|operation| bare.take(*operation, HreId(0), (0, 0), false));
    assert_eq!(all(&mut bare).len(), 10);
}

#[test]
fn a_command_with_a_tag_does_not_grow_and_tags_are_bounded() {
    let mut port = port(64, &[write(0, 4)]);
    let first = port.next().expect("room");
    port.take(write(4, 4), HreId(0), (0, 1), true);
    let second = port.next().expect("a command of its own");
    assert_ne!(first, second);
    port.take(read(64, 4), HreId(0), (0, 2), true);
    assert_eq!(port.next(), None, "both tags are taken");
    assert_eq!(acknowledge(&mut port, first), [(0, 0)]);
    let third = port.next().expect("a tag is free, though the write is under way");
    assert_eq!(port.command(third).operation, read(64, 4));
    assert_eq!((port.requests, port.sent), (3, 3));
}

#[test]
fn frames_are_free_in_the_order_in_which_they_were_taken() {
    let mut port = port(0, &[write(0, 4), write(64, 4), write(128, 4), read(0, 4)]);
    let (first, second) = (port.next().expect("room"), port.next().expect("room"));
    for number in [first, second] {
        assert_eq!(acknowledge(&mut port, number).len(), 1);
    }
    let read = port.next().expect("a read passes the writes that wait for frames");
    assert!(matches!(port.command(read).operation, Operation::Read { .. }));
    assert_eq!(port.next(), None, "the ring of writes is full");
    assert!(port.ended(second).is_empty(), "who waited has been told");
    assert_eq!(port.next(), None, "the oldest frame is still taken");
    assert!(port.ended(first).is_empty());
    assert!(port.next().is_some());
}

#[test]
fn a_command_larger_than_the_ring_goes_through_it_alone() {
    let mut port = port(0, &[write(0, 512), write(1024, 4)]);
    let first = port.next().expect("an empty ring");
    assert_eq!(port.next(), None);
    port.ended(first);
    assert!(port.next().is_some());
}

#[test]
fn other_commands_wait_until_both_fifos_have_drained_and_nothing_passes_them() {
    let mut port = port(0, &[write(0, 4), read(32, 4), Operation::Flush, read(64, 4)]);
    let (read, write) = (port.next().expect("room"), port.next().expect("room"));
    acknowledge(&mut port, write);
    assert_eq!(port.next(), None, "the write was acknowledged, but is under way");
    port.ended(read);
    assert_eq!(port.next(), None);
    port.ended(write);
    let flush = port.next().expect("it is alone");
    assert_eq!(port.command(flush).operation, Operation::Flush);
    assert_eq!(port.next(), None, "nothing passes it");
    port.ended(flush);
    assert!(port.next().is_some());
}

#[test]
fn what_the_drive_refuses_comes_again_when_something_has_ended() {
    let mut port = port(0, &[write(0, 4), write(32, 4)]);
    let (first, second) = (port.next().expect("room"), port.next().expect("room"));
    assert!(port.refused(second), "the first may end");
    assert_eq!(port.next(), None);
    let serial = port.command(first).serial;
    port.ended(first);
    assert!(port.acknowledge(first, serial).is_empty(), "it has ended");
    assert_eq!(port.next(), Some(second));
    assert!(!port.refused(second), "nothing is under way");
}

#[test]
fn absurd_values_are_refused_with_the_field() {
    for (parameters, expected) in [
        (SataParameters { commands_max: 33, ..PARAMETERS }, "sata.commands_max is 33, expected 1 to 32"),
        (SataParameters { frame_bytes: 100, ..PARAMETERS }, "sata.frame_bytes is 100, expected a power of two"),
        (SataParameters { write_frames: 0, ..PARAMETERS }, "sata.write_frames is 0"),
        (
            SataParameters { read_frames: u32::MAX, ..PARAMETERS },
            "sata.read_frames is 4294967295, expected 1 to 131072",
        ),
    ] {
        let error = parameters.validate().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    PARAMETERS.validate().unwrap();
}
