//! What the app does where nothing fails: files that are full, who may do what, nonsense, and more than there is room for.

mod world;

use append_spu::wire::{
    AppendArguments, Delegation, Extent, RECORD_BYTES_MAX, STATUS_APPENDING, STATUS_BUSY, STATUS_EXISTS, STATUS_FULL,
    STATUS_INSUFFICIENT, STATUS_MALFORMED, STATUS_NOT_FOUND, STATUS_PERMISSION, handler,
};
use std::collections::BTreeMap;
use willow_device::media::fault::{Choices, FaultMedia};
use willow_device::{HreId, RpcOutcome, control};
use willow_on_flash::{Medium, on_each_medium};
use world::{FIRST, Model, Rig, SPUS, TAIL_BYTES, extents, options, record, status};

on_each_medium!(
    only_processes_that_are_admitted_append_and_only_where_they_may_write,
    what_makes_no_sense_is_refused_and_changes_nothing,
    coordinators_that_ask_each_other_do_not_wait_for_ever,
);

/// A file that is full is extended, and goes on.
#[test]
fn insufficient_space_is_told_and_more_extents_are_appended_to() {
    let media = FaultMedia::new(options(1));
    let mut rig = Rig::open(&media).unwrap();
    let hre = rig.drive.hre;
    let body = rig.delegation_body(4, FIRST, 1);
    assert_eq!(rig.ask(4, handler::DELEGATE, &body), 0);
    let mut model = Model { records: vec![(4, 10_000, None), (4, 8, None), (4, 9, None)], ..Model::default() };
    assert_eq!(rig.append(hre, 4, &record(0, 10_000)), (0, FIRST as u32));
    // Seven bytes are left: nothing of a record is there.
    assert_eq!(rig.append(hre, 4, &record(1, 8)).0, STATUS_INSUFFICIENT);
    assert_eq!(rig.entry(4, handler::LENGTH).unwrap().capacity, FIRST + 10_007);
    let mut more = rig.delegation(4, 0, 1).encode().to_vec();
    more.extend(extents(4)[1].encode());
    assert_eq!(rig.ask(4, handler::EXTEND, &more), 0);
    assert_eq!(rig.append(hre, 4, &record(2, 9)), (0, FIRST as u32 + 10_000));
    (model.records[0].2, model.records[2].2) = (Some(FIRST as u32), Some(FIRST as u32 + 10_000));
    let mut rig = Rig::open(&media.power_cut(&mut Choices::seeded(1))).unwrap();
    let entry = rig.entry(4, handler::LENGTH).unwrap();
    assert_eq!((entry.length, entry.capacity), (FIRST + 10_009, FIRST + 10_007 + 29_999));
    let found = rig.read(4, entry.length);
    model.check(4, entry.length, &found).unwrap();
}

/// Users append to what they were admitted to and may write, and reach nothing else.
fn only_processes_that_are_admitted_append_and_only_where_they_may_write(medium: Medium) {
    let mut rig = Rig::on(medium);
    let hre = rig.drive.hre;
    let process = rig.drive.device.open_process(1000, 0).unwrap();
    let user = rig.drive.device.open_hre(Some(process)).unwrap();
    let rights = |rig: &mut Rig, number: u8| {
        let mut body = [process.to_le_bytes(), [0; 4]].concat();
        // To write all of the banks' parts of the file, and not to read: what is beyond its length is somebody else's.
        let (first, last) = (3 * TAIL_BYTES / 3, 4 * TAIL_BYTES / 3);
        for spu in 0..u32::from(SPUS) {
            body.extend([spu.to_le_bytes(), 2u32.to_le_bytes()].concat());
            body.extend([(rig.base + first).to_le_bytes(), (last - first).to_le_bytes()].concat());
        }
        assert_eq!(status(&rig.drive.call((control::CONTROL_APP, 0, number), &[], &body, 0)), 0);
    };
    let admit = |rig: &mut Rig, admits: u32| {
        let body = [&3u64.to_le_bytes()[..], &user_process(user).to_le_bytes(), &admits.to_le_bytes()].concat();
        assert_eq!(rig.ask(3, handler::ADMIT, &body), 0);
    };
    // With the right to write, but not admitted; admitted, but without the right; with both; with none again.
    rights(&mut rig, control::GRANT);
    assert_eq!(rig.append(user, 3, &record(0, 2000)).0, STATUS_PERMISSION);
    rights(&mut rig, control::REVOKE);
    admit(&mut rig, 1);
    assert_eq!(rig.append(user, 3, &record(0, 2000)).0, STATUS_PERMISSION);
    assert_eq!(rig.entry(3, handler::LENGTH).unwrap().length, FIRST);
    rights(&mut rig, control::GRANT);
    assert_eq!(rig.append(user, 3, &record(0, 2000)), (0, FIRST as u32));
    assert_eq!(rig.append(hre, 3, &record(1, 10)), (0, FIRST as u32 + 2000));
    // Another file it does not reach, nor what is the kernel's.
    assert_eq!(rig.append(user, 6, &record(2, 10)).0, STATUS_PERMISSION);
    for number in [handler::DELEGATE, handler::EXTEND, handler::ADMIT, handler::LENGTH, handler::SUSPEND, handler::END]
    {
        let to = rig.to(3, number);
        let tag = rig.drive.submit_on(user, to, &3u64.to_le_bytes(), &[0; 64], 0);
        assert_eq!(rig.drive.wait(tag).outcome, RpcOutcome::NotPermitted, "handler {number}");
    }
    admit(&mut rig, 0);
    assert_eq!(rig.append(user, 3, &record(3, 10)).0, STATUS_PERMISSION);
    // A process that has ended is admitted no more: its place, the last, is another's.
    admit(&mut rig, 1);
    let one_more = |rig: &mut Rig, process: u32| {
        rig.ask(3, handler::ADMIT, &[&3u64.to_le_bytes()[..], &process.to_le_bytes(), &1u32.to_le_bytes()].concat())
    };
    assert_eq!((1..16).map(|process| one_more(&mut rig, process)).sum::<u32>(), 0);
    assert_eq!((one_more(&mut rig, 15), one_more(&mut rig, 16)), (0, STATUS_FULL));
    rig.drive.device.close_process(process);
    rig.drive.settle();
    assert_eq!(one_more(&mut rig, 16), 0);
    let found = rig.read(3, FIRST + 2010);
    assert_eq!(found, [record(0, 2000), record(1, 10)].concat());
}

/// The upper 20 bits of an endpoint's id.
fn user_process(hre: HreId) -> u32 {
    hre.0 >> 12
}

fn what_makes_no_sense_is_refused_and_changes_nothing(medium: Medium) {
    let mut rig = Rig::on(medium);
    let hre = rig.drive.hre;
    let sound = rig.delegation(9, FIRST, 1);
    let one = [Extent { start: 0, bytes: 4096 }];
    for (delegation, extents) in [
        (Delegation { file: 0, ..sound }, &one[..]),
        (Delegation { length: FIRST - 1, ..sound }, &one),
        (Delegation { length: FIRST + 4097, ..sound }, &one),
        (Delegation { stripe_bytes: 0, ..sound }, &one),
        (Delegation { first: u64::MAX, length: u64::MAX, ..sound }, &one),
        (Delegation { base: u64::MAX, ..sound }, &one),
        (Delegation { extents: 0, ..sound }, &[]),
        (Delegation { extents: u32::MAX, ..sound }, &one),
        (Delegation { extents: 28, ..sound }, &[one[0]; 28]),
        (Delegation { extents: 2, ..sound }, &one),
        (sound, &[Extent { start: u64::MAX, bytes: 4096 }]),
        (sound, &[Extent { start: 0, bytes: u64::MAX }]),
        (sound, &[Extent { start: 0, bytes: 0 }]),
    ] {
        let mut body = delegation.encode().to_vec();
        extents.iter().for_each(|extent| body.extend(extent.encode()));
        assert_eq!(rig.ask(9, handler::DELEGATE, &body), STATUS_MALFORMED, "{delegation:?} {extents:?}");
    }
    // Another SPU's file.
    let body = rig.delegation_body(9, FIRST, 2);
    assert_eq!(rig.ask(10, handler::DELEGATE, &body), STATUS_MALFORMED);
    let body = rig.delegation_body(3, FIRST, 2);
    assert_eq!(rig.ask(3, handler::DELEGATE, &body), STATUS_EXISTS);
    assert_eq!(rig.ask(3, handler::DELEGATE, &[1, 2, 3]), STATUS_MALFORMED);
    assert_eq!(rig.ask(3, handler::SYNC, &[]), STATUS_MALFORMED);
    assert_eq!(rig.ask(3, handler::END, &3u64.to_le_bytes()), STATUS_APPENDING);
    assert_eq!(rig.ask(9, handler::END, &9u64.to_le_bytes()), STATUS_NOT_FOUND);
    assert_eq!(
        (rig.append(hre, 9, &record(0, 9)).0, rig.append(hre, 0, &record(0, 9)).0),
        (STATUS_NOT_FOUND, STATUS_NOT_FOUND)
    );
    assert_eq!(rig.append(hre, 3, &[]).0, STATUS_MALFORMED);
    let too_long = vec![1; RECORD_BYTES_MAX as usize + 1];
    assert_eq!(rig.append(hre, 3, &too_long).0, STATUS_MALFORMED);
    let arguments = AppendArguments { file: 3, bytes: 100 }.encode();
    let to = rig.to(3, handler::APPEND);
    assert_eq!(status(&rig.drive.call(to, &arguments, &[1; 99], 0)), STATUS_MALFORMED);
    assert_eq!(rig.list().unwrap().values().map(|entry| entry.length).collect::<Vec<_>>(), [FIRST; 3]);
}

/// All SPUs coordinate as many appends as they can, which ask each other, while the kernel asks for more than it has places: all of it ends.
fn coordinators_that_ask_each_other_do_not_wait_for_ever(medium: Medium) {
    let mut rig = Rig::on(medium);
    rig.delegate(11);
    let hre = rig.drive.hre;
    let files = [3, 10, 11];
    let mut waiting = Vec::new();
    for round in 0..60 {
        for file in files {
            if round < 30 {
                waiting.push((true, rig.begin_append(hre, file, &record(round, 300 + 100 * round))));
            }
            waiting.push((false, rig.begin_entry(file, handler::LENGTH)));
        }
    }
    let mut ended = BTreeMap::new();
    for (is_append, tag) in waiting {
        let done = rig.drive.wait(tag);
        *ended.entry((is_append, status(&done))).or_insert(0) += 1;
    }
    assert!(ended.keys().all(|(_, status)| [0, STATUS_BUSY].contains(status)), "{ended:?}");
    assert!(ended[&(true, 0)] > 30 && ended[&(false, 0)] > 20, "{ended:?}");
    for file in files {
        let hre = rig.drive.hre;
        assert_eq!(rig.append(hre, file, &record(99, 3000)).0, 0, "it goes on");
    }
}
