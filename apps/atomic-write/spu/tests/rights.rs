//! Who may write what: rights are looked up when a write is logged and when it is committed; what is taken back in between aborts, what
//! is taken back later is waited for. Users do not reach each other's transactions.

mod world;

use atomic_write_spu::planted::{Planted, plant};
use atomic_write_spu::wire::{self, CommitArguments, RecordArguments, Statistics, WriteArguments, handler};
use willow_device::control;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{HreId, RpcOutcome};
use willow_on_flash::{Medium, on_each_medium};
use world::{BLOCK, Rig, SPUS, content, status, value_of};

const READ_WRITE: u32 = 3;

struct User {
    process: u32,
    hre: HreId,
}

impl Rig {
    fn user(&mut self, uid: u32) -> User {
        let process = self.device.open_process(uid, 0).expect("room for a process");
        User { process, hre: self.device.open_hre(Some(process)).expect("room for an endpoint") }
    }

    /// A grant or revocation of whole blocks, begun.
    fn begin_rights(&mut self, number: u8, user: &User, blocks: &[usize]) -> u64 {
        let mut body = [user.process.to_le_bytes(), [0; 4]].concat();
        for block in blocks {
            let (spu, start) = self.address(*block);
            body.extend(u32::from(spu).to_le_bytes());
            body.extend(READ_WRITE.to_le_bytes());
            body.extend(start.to_le_bytes());
            body.extend((BLOCK as u64).to_le_bytes());
        }
        self.submit((control::CONTROL_APP, 0, number), &[], &body, 0)
    }

    fn grant(&mut self, user: &User, blocks: &[usize]) {
        let tag = self.begin_rights(control::GRANT, user, blocks);
        assert_eq!(status(&self.wait(tag)), 0);
    }

    fn revoke(&mut self, user: &User, blocks: &[usize]) {
        let tag = self.begin_rights(control::REVOKE, user, blocks);
        assert_eq!(status(&self.wait(tag)), 0);
    }

    fn begin_log_of(&mut self, user: &User, transaction: u64, block: usize, value: u32) -> u64 {
        let (spu, nv_address) = self.address(block);
        let arguments = WriteArguments { transaction, nv_address, bytes: BLOCK as u32, flags: wire::FLAG_FIRST };
        let to = (self.atomic_write, spu, handler::LOG_WRITE);
        self.submit_on(user.hre, to, &arguments.encode(), &content(value), 0)
    }

    fn log_of(&mut self, user: &User, transaction: u64, block: usize, value: u32) -> u32 {
        let tag = self.begin_log_of(user, transaction, block, value);
        let done = self.wait(tag);
        // An app that has ended answers nothing.
        if done.outcome == RpcOutcome::AppEnded { u32::MAX } else { status(&done) }
    }

    /// Commits one write on each SPU.
    fn begin_commit_of(&mut self, user: &User, transaction: u64) -> u64 {
        self.begin_commit_on(user, transaction, (1 << SPUS) - 1)
    }

    /// Commits one write on each of those SPUs, of which 1 is one.
    fn begin_commit_on(&mut self, user: &User, transaction: u64, participants: u64) -> u64 {
        let mut arguments = CommitArguments { transaction, participants }.encode().to_vec();
        arguments.extend([1, 0].repeat(participants.count_ones() as usize));
        let to = (self.atomic_write, 1, handler::COMMIT);
        self.submit_on(user.hre, to, &arguments, &[], 0)
    }

    fn commit_of(&mut self, user: &User, transaction: u64) -> u32 {
        let tag = self.begin_commit_of(user, transaction);
        status(&self.wait(tag))
    }

    fn values(&mut self) -> Vec<Option<u32>> {
        (0..SPUS.into()).map(|block| value_of(&self.read_block(block))).collect()
    }
}

on_each_medium!(
    a_write_needs_the_right_when_it_is_logged_and_when_it_is_committed,
    users_do_not_reach_each_others_transactions,
    one_user_cannot_take_all_places_and_what_ended_processes_had_is_free
);

fn start(delayed_percent: u8, seed: u64) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(FaultOptions { seed, delayed_percent, ..FaultOptions::new(SPUS.into(), 1 << 30) });
    let rig = Rig::open(Box::new(media.store())).expect("a fresh device opens");
    (media, rig)
}

const BLOCKS: [usize; 3] = [0, 1, 2];

/// A device on which Alice commits 1 to one block of each SPU, as transaction 1, this many steps after it began; and the commit's tag.
fn start_commit(delayed_percent: u8, seed: u64, steps: u64) -> (FaultMedia, Rig, User, u64) {
    let (media, mut rig) = start(delayed_percent, seed);
    let alice = rig.user(1000);
    rig.grant(&alice, &BLOCKS);
    for block in BLOCKS {
        assert_eq!(rig.log_of(&alice, 1, block, 1), 0);
    }
    let commit = rig.begin_commit_of(&alice, 1);
    for _ in 0..steps {
        rig.step();
    }
    (media, rig, alice, commit)
}

fn a_write_needs_the_right_when_it_is_logged_and_when_it_is_committed(medium: Medium) {
    let mut rig = Rig::on(medium);
    let alice = rig.user(1000);
    assert_eq!(rig.log_of(&alice, 1, 0, 1), wire::STATUS_PERMISSION);
    rig.grant(&alice, &BLOCKS);
    for block in BLOCKS {
        assert_eq!(rig.log_of(&alice, 2, block, 2), 0);
    }
    assert_eq!(rig.commit_of(&alice, 2), 0);
    assert_eq!(rig.values(), [Some(2); 3]);
    // Taken back in between, on one of them: all is as before, and nothing is left of the transaction.
    for block in BLOCKS {
        assert_eq!(rig.log_of(&alice, 3, block, 3), 0);
    }
    rig.revoke(&alice, &[2]);
    assert_eq!(rig.commit_of(&alice, 3), wire::STATUS_PERMISSION);
    assert_eq!(rig.values(), [Some(2); 3]);
    rig.settle();
    for spu in 0..SPUS {
        let Statistics { open, committed, .. } = rig.statistics(spu);
        assert_eq!((open, committed), (0, 0));
    }
    // A byte more than was granted, and the log itself, are nobody's to write.
    rig.grant(&alice, &[2]);
    let (spu, nv_address) = rig.address(2);
    let arguments =
        WriteArguments { transaction: 4, nv_address: nv_address + 1, bytes: BLOCK as u32, flags: wire::FLAG_FIRST };
    let to = (rig.atomic_write, spu, handler::LOG_WRITE);
    let tag = rig.submit_on(alice.hre, to, &arguments.encode(), &content(4), 0);
    assert_eq!(status(&rig.wait(tag)), wire::STATUS_PERMISSION);
}

fn users_do_not_reach_each_others_transactions(medium: Medium) {
    let mut rig = Rig::on(medium);
    let (alice, bob) = (rig.user(1000), rig.user(1001));
    rig.grant(&alice, &BLOCKS);
    rig.grant(&bob, &[3, 4, 5]);
    for block in BLOCKS {
        assert_eq!(rig.log_of(&alice, 7, block, 1), 0);
    }
    // Neither by its number, nor by the log's numbers, nor as the kernel, which is another owner.
    let read = RecordArguments { transaction: 7, record: 0, offset: 0, bytes: 512 }.encode();
    let write = WriteArguments { transaction: 7, nv_address: rig.address(3).1, bytes: 512, flags: 0 }.encode();
    for hre in [bob.hre, rig.hre] {
        for (number, arguments, payload) in [
            (handler::LOG_READ, &read[..], &[][..]),
            (handler::LOG_EDIT, &read[..], &[9; 512][..]),
            (handler::LOG_WRITE, &write[..], &[9; 512][..]),
            (handler::ABORT, &7u64.to_le_bytes()[..], &[][..]),
        ] {
            let to = (rig.atomic_write, 0, number);
            let tag = rig.submit_on(hre, to, arguments, payload, 512);
            assert_eq!(status(&rig.wait(tag)), wire::STATUS_NOT_FOUND, "handler {number}");
        }
    }
    assert_eq!(rig.commit_of(&bob, 7), wire::STATUS_NOT_FOUND);
    // Bob's own of the same number is another.
    for block in [3, 4, 5] {
        assert_eq!(rig.log_of(&bob, 7, block, 2), 0);
    }
    assert_eq!((rig.commit_of(&alice, 7), rig.commit_of(&bob, 7)), (0, 0));
    assert_eq!(rig.values(), [Some(1); 3]);
    assert_eq!(value_of(&rig.read_block(4)), Some(2));
    // What instances tell each other no user may send.
    for number in
        [handler::PREPARE, handler::APPLY, handler::CANCEL, handler::FORGET, handler::RESOLVE, handler::CARETAKER]
    {
        let to = (rig.atomic_write, 0, number);
        let tag = rig.submit_on(bob.hre, to, &[0; 40], &[], 0);
        assert_eq!(rig.wait(tag).outcome, RpcOutcome::NotPermitted, "{number}");
    }
}

fn one_user_cannot_take_all_places_and_what_ended_processes_had_is_free(medium: Medium) {
    let mut rig = Rig::on(medium);
    let (alice, bob) = (rig.user(1000), rig.user(1001));
    rig.grant(&alice, &BLOCKS);
    rig.grant(&bob, &BLOCKS);
    let mut opened = 0;
    while rig.log_of(&alice, opened, 0, 1) == 0 {
        opened += 1;
    }
    assert_eq!(opened, 128);
    let has_room = |rig: &mut Rig| (0..32).all(|number| rig.log_of(&bob, number, 0, 1) == 0);
    assert!(has_room(&mut rig), "others have room");
    // Alice's process ends: nobody waits for what it left.
    rig.device.close_process(alice.process);
    rig.settle();
    assert_eq!(rig.statistics(0).open, 32);
}

/// Rights that go at any moment of a commit: all is written or nothing, and nothing after the revocation was answered.
fn revoke_at_any_moment(delayed_percent: u8, seed: u64) -> Result<(u32, u32), String> {
    let (mut done, mut refused) = (0, 0);
    for moment in 0.. {
        let (_, mut rig, alice, commit) = start_commit(delayed_percent, seed + moment, moment);
        let was_over = rig.done.contains_key(&commit);
        let revocation = rig.begin_rights(control::REVOKE, &alice, &BLOCKS);
        assert_eq!(status(&rig.wait(revocation)), 0);
        let then = rig.values();
        let answered = status(&rig.wait(commit));
        rig.settle();
        let at_last = rig.values();
        let expected = match answered {
            0 => {
                done += 1;
                vec![Some(1); 3]
            }
            wire::STATUS_PERMISSION => {
                refused += 1;
                vec![Some(0); 3]
            }
            other => return Err(format!("moment {moment}: the commit is answered with {other}")),
        };
        if at_last != expected {
            return Err(format!("moment {moment}: answered {answered}, found {at_last:?}"));
        }
        if then != at_last {
            return Err(format!("moment {moment}: {then:?} when the rights were gone, {at_last:?} at last"));
        }
        if was_over {
            break;
        }
    }
    Ok((done, refused))
}

/// Many of them: operations are delayed by different times.
fn revoke_often() -> Result<(u32, u32), String> {
    let mut sum = (0, 0);
    for seed in 0..12 {
        let (done, refused) = revoke_at_any_moment(60 + (seed % 3 * 20) as u8, seed * 1000)?;
        sum = (sum.0 + done, sum.1 + refused);
    }
    Ok(sum)
}

#[test]
fn rights_that_go_in_the_midst_of_a_commit_abort_it_or_are_waited_for() {
    let (done, refused) = revoke_often().unwrap();
    assert!(done > 100 && refused > 4, "{done} were done, {refused} refused");
}

/// How often the app has trapped.
fn traps(rig: &Rig) -> u64 {
    let apps = rig.device.statistics().apps;
    apps.iter().find(|app| app.name == "atomic-write").expect("it is there").counters.traps
}

#[test]
fn an_app_that_traps_is_started_anew_and_a_revocation_waits_for_what_it_owes() {
    let (mut trapped, mut done, mut undone) = (0, 0, 0);
    for seed in 0..6 {
        for moment in 0.. {
            let (_, mut rig, alice, commit) = start_commit(40 + (seed % 3 * 20) as u8, seed * 1000 + moment, moment);
            if rig.done.contains_key(&commit) {
                break;
            }
            plant(Some(Planted::Traps));
            let revocation = rig.begin_rights(control::REVOKE, &alice, &BLOCKS);
            while traps(&rig) == 0 && !rig.done.contains_key(&commit) {
                rig.step();
            }
            plant(None);
            assert_eq!(status(&rig.wait(revocation)), 0, "seed {seed}, moment {moment}");
            let then = rig.values();
            let answered = rig.wait(commit).outcome;
            rig.settle();
            let at_last = rig.values();
            assert_eq!(then, at_last, "seed {seed}, moment {moment}: written after the revocation was answered");
            let expected: &[Option<u32>] = match answered {
                RpcOutcome::Answered { status: 0 } => &[Some(1)],
                RpcOutcome::Answered { status: wire::STATUS_PERMISSION } => &[Some(0)],
                RpcOutcome::AppEnded => &[Some(0), Some(1)],
                other => panic!("seed {seed}, moment {moment}: {other:?}"),
            };
            assert!(expected.iter().any(|value| at_last == [*value; 3]), "seed {seed}, moment {moment}: {at_last:?}");
            if answered == RpcOutcome::AppEnded {
                trapped += 1;
                *(if at_last[0] == Some(1) { &mut done } else { &mut undone }) += 1;
            }
            // It works as before.
            rig.grant(&alice, &BLOCKS);
            for block in BLOCKS {
                assert_eq!(rig.log_of(&alice, 2, block, 2), 0, "seed {seed}, moment {moment}");
            }
            assert_eq!(rig.commit_of(&alice, 2), 0);
            assert_eq!(rig.values(), [Some(2); 3]);
        }
    }
    assert!(done > 10 && undone > 2, "{trapped} trapped, {done} of these were done");
}

#[test]
fn a_revocation_is_answered_where_the_app_does_not_come_back() {
    let (media, mut rig, alice, commit) = start_commit(50, 1, 0);
    let bob = rig.user(1001);
    plant(Some(Planted::Traps));
    while traps(&rig) == 0 {
        rig.step();
    }
    plant(Some(Planted::TrapsRecovering));
    assert_eq!(rig.wait(commit).outcome, RpcOutcome::AppEnded);
    rig.revoke(&alice, &BLOCKS);
    let then = rig.values();
    rig.settle();
    assert!(traps(&rig) > 2, "it was tried several times");
    assert_eq!(rig.log_of(&bob, 1, 3, 1), u32::MAX, "the app has ended");
    // What it had begun is never carried out: not when the device starts again, with an app that works.
    plant(None);
    drop(rig);
    let mut rig = Rig::open(Box::new(media.store())).expect("the device opens");
    assert_eq!(rig.values(), then);
    let alice = rig.user(1000);
    rig.grant(&alice, &BLOCKS);
    for block in BLOCKS {
        assert_eq!(rig.log_of(&alice, 1, block, 3), 0);
    }
    assert_eq!(rig.commit_of(&alice, 1), 0);
    assert_eq!(rig.values(), [Some(3); 3]);
}

/// Calls of the device after a commit was answered at which rights go as well: the caretaker tries again.
const MOMENTS_AFTER: u32 = 30;

/// The same, and the media of an SPU take nothing meanwhile: its part is given up with the rights. A commit that is answered with success
/// is there all the same, what was not written by the time the rights were gone never is, and the log goes on.
#[test]
fn rights_that_go_while_the_media_fail_leave_neither_a_false_answer_nor_a_broken_log() {
    let (mut unfinished, mut done) = (0, 0);
    // Only the coordinator takes part, or all; the media of the coordinator fail, or another's.
    for (participants, failing) in [(0b010, 1), (0b111, 1), (0b111, 2)] {
        for seed in 0..2 {
            let blocks: Vec<usize> = BLOCKS.into_iter().filter(|block| participants >> block & 1 != 0).collect();
            let mut moments_after = 0;
            for moment in 0.. {
                let what = format!("SPUs {participants:b}, {failing} fails, seed {seed}, moment {moment}");
                let (media, mut rig) = start((seed % 3 * 40) as u8, seed * 1000 + moment);
                let alice = rig.user(1000);
                rig.grant(&alice, &BLOCKS);
                for block in &blocks {
                    assert_eq!(rig.log_of(&alice, 1, *block, 1), 0);
                }
                let (spu, address) = rig.address(failing);
                media.fail_writes(spu.into(), address..address + BLOCK as u64);
                let commit = rig.begin_commit_on(&alice, 1, participants);
                for _ in 0..moment {
                    rig.step();
                    // The caretaker's next try goes well, unless the rights go in its midst.
                    if rig.done.contains_key(&commit) {
                        media.heal();
                    }
                }
                moments_after += u32::from(rig.done.contains_key(&commit));
                let revocation = rig.begin_rights(control::REVOKE, &alice, &BLOCKS);
                assert_eq!(status(&rig.wait(revocation)), 0, "{what}");
                media.heal();
                let then = rig.values();
                let answered = status(&rig.wait(commit));
                rig.settle();
                assert_eq!(rig.values(), then, "{what}: written after the rights were gone");
                let is_there = blocks.iter().all(|block| then[*block] == Some(1));
                match answered {
                    0 => {
                        done += 1;
                        assert!(is_there, "{what}: answered with success, found {then:?}");
                    }
                    wire::STATUS_UNFINISHED => unfinished += 1,
                    wire::STATUS_PERMISSION => assert_eq!(then, [Some(0); 3], "{what}"),
                    other => panic!("{what}: answered with {other}"),
                }
                for spu in 0..SPUS {
                    let left = rig.statistics(spu);
                    assert_eq!((left.open, left.committed, left.free_chunks), (0, 0, left.chunks), "{what}, SPU {spu}");
                }
                // Places are one transaction's each.
                rig.grant(&alice, &BLOCKS);
                for number in 10..14 {
                    for block in BLOCKS {
                        assert_eq!(rig.log_of(&alice, number, block, number as u32), 0, "{what}");
                    }
                }
                for number in 10..14 {
                    assert_eq!(rig.commit_of(&alice, number), 0, "{what}");
                    assert_eq!(rig.values(), [Some(number as u32); 3], "{what}");
                }
                if moments_after == MOMENTS_AFTER {
                    break;
                }
            }
        }
    }
    assert!(unfinished > 20, "only {unfinished} were given up, {done} done");
}

fn is_caught(bug: Planted, run: fn() -> Result<(u32, u32), String>) -> bool {
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(run);
    plant(None);
    outcome.map_or(true, |outcome| outcome.is_err())
}

#[test]
fn planted_part_that_is_left_out_is_caught() {
    assert!(is_caught(Planted::LeavesOut, revoke_often));
}

#[test]
fn planted_revocation_that_waits_for_nothing_is_caught() {
    assert!(is_caught(Planted::SettlesNothing, revoke_often));
}

#[test]
fn planted_trust_in_old_rights_is_caught() {
    assert!(is_caught(Planted::TrustsOldRights, || {
        a_write_needs_the_right_when_it_is_logged_and_when_it_is_committed(Medium::NvMemory);
        Ok((0, 0))
    }));
}
