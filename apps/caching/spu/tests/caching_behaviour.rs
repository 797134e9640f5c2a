//! What the app does where nothing fails: who may do what, what makes way, managers that follow each other, nonsense, and more than there is room for.

mod world;

use caching_spu::planted::{Planted, plant};
use caching_spu::wire::{
    CLAIM_NS, ChunkArguments, Counts, Descriptor, RIGHT_READ, RIGHT_WRITE, STATUS_ABSENT, STATUS_CHANGED,
    STATUS_CLAIMED, STATUS_DIRTY, STATUS_EXISTS, STATUS_FULL, STATUS_MALFORMED, STATUS_MISS, STATUS_PERMISSION,
    STATUS_PROCESSES, STATUS_RANGE, STATUS_STALE, STATUS_THROUGH, handler,
};
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{HreId, RpcOutcome};
use willow_on_flash::{Medium, on_each_medium};
use world::{CHUNK_BYTES, EPOCH, Rig, SPUS, config, descriptor, fresh_chunk, options, sector, status};

on_each_medium!(
    only_processes_that_were_permitted_a_chunk_use_it,
    what_makes_no_sense_is_refused_and_changes_nothing,
    what_is_used_stays_and_what_is_dirty_never_goes,
);

fn of(chunk: u64, first: u32, second: u32) -> ChunkArguments {
    ChunkArguments { chunk, epoch: EPOCH, first, second, ..ChunkArguments::default() }
}

fn read(rig: &mut Rig, hre: HreId, chunk: u64) -> Result<Vec<u8>, u32> {
    let done = rig.ask(hre, handler::READ, &of(chunk, 0, CHUNK_BYTES), &[], CHUNK_BYTES as usize);
    match status(&done) {
        0 => Ok(done.buffer),
        status => Err(status),
    }
}

fn write(rig: &mut Rig, hre: HreId, chunk: u64, number: u32) -> u32 {
    status(&rig.ask(hre, handler::WRITE, &of(chunk, 512, 512), &sector(chunk, 1, number), 0))
}

/// A user's process and one of its endpoints; with the number that the app knows it by.
fn user(rig: &mut Rig, id: u32) -> (u32, HreId, u32) {
    let process = rig.drive.device.open_process(id, 0).unwrap();
    let hre = rig.drive.device.open_hre(Some(process)).unwrap();
    (process, hre, hre.0 >> 12)
}

/// Users read and write chunks that they were permitted, as far as that goes, and reach nothing else.
fn only_processes_that_were_permitted_a_chunk_use_it(medium: Medium) {
    let mut rig = Rig::on(medium, 4);
    let kernel = rig.drive.hre;
    let (alice, alices, as_alice) = user(&mut rig, 1000);
    let (_, bobs, as_bob) = user(&mut rig, 1001);
    assert_eq!(read(&mut rig, alices, 3), Err(STATUS_MISS));
    assert_eq!(rig.install(3, &fresh_chunk(3), (as_alice, RIGHT_READ)), 0);
    assert_eq!(read(&mut rig, alices, 3), Ok(fresh_chunk(3)));
    assert_eq!(write(&mut rig, alices, 3, 5), STATUS_PERMISSION, "it was permitted to read");
    assert_eq!((read(&mut rig, bobs, 3), write(&mut rig, bobs, 3, 6)), (Err(STATUS_PERMISSION), STATUS_PERMISSION));
    // A chunk is permitted by itself.
    assert_eq!(rig.install(6, &fresh_chunk(6), (as_bob, RIGHT_READ | RIGHT_WRITE)), 0);
    assert_eq!((read(&mut rig, alices, 6), write(&mut rig, bobs, 6, 7)), (Err(STATUS_PERMISSION), 0));
    let permit = status(&rig.ask(kernel, handler::PERMIT, &of(3, as_alice, RIGHT_WRITE), &[], 0));
    assert_eq!((permit, write(&mut rig, alices, 3, 8)), (0, 0));
    assert_eq!(read(&mut rig, alices, 3).unwrap()[512..1024], sector(3, 1, 8));
    // What is the manager's alone.
    for number in (handler::CREATE..=handler::COPY).filter(|number| *number != handler::READ) {
        let done = rig.ask(alices, number, &of(3, as_alice, 3), &[0; 8192], 0);
        assert_eq!(done.outcome, RpcOutcome::NotPermitted, "handler {number}");
    }
    // With the chunk its permissions go, and come back with it by name alone.
    let version = rig.ask(kernel, handler::COPY, &of(3, 0, CHUNK_BYTES), &[], CHUNK_BYTES as usize).result;
    assert_eq!(status(&rig.ask(kernel, handler::CLEAN, &of(3, version, 0), &[], 0)), 0);
    assert_eq!(status(&rig.ask(kernel, handler::DROP, &of(3, 0, 0), &[], 0)), 0);
    assert_eq!(rig.install(3, &fresh_chunk(3), (as_bob, RIGHT_READ)), 0);
    assert_eq!((read(&mut rig, alices, 3), read(&mut rig, bobs, 3)), (Err(STATUS_PERMISSION), Ok(fresh_chunk(3))));
    // Revoked, all of it.
    assert_eq!(rig.everywhere(handler::REVOKE, as_bob), [0; SPUS as usize]);
    assert_eq!((read(&mut rig, bobs, 3), read(&mut rig, bobs, 6)), (Err(STATUS_PERMISSION), Err(STATUS_PERMISSION)));
    // A process that has ended leaves its place: there are as many as there can be again.
    assert_eq!(rig.install(9, &fresh_chunk(9), (as_alice, RIGHT_READ)), 0);
    let one_more =
        |rig: &mut Rig, process: u32| status(&rig.ask(kernel, handler::PERMIT, &of(9, process, RIGHT_READ), &[], 0));
    assert_eq!((1..32).map(|process| one_more(&mut rig, process)).sum::<u32>(), 0);
    assert_eq!((one_more(&mut rig, 31), one_more(&mut rig, 32)), (0, STATUS_PROCESSES));
    rig.drive.device.close_process(alice);
    rig.drive.settle();
    assert_eq!(one_more(&mut rig, 32), 0);
}

fn what_makes_no_sense_is_refused_and_changes_nothing(medium: Medium) {
    let mut rig = Rig::on(medium, 2);
    let hre = rig.drive.hre;
    let sound = descriptor(2);
    for (cache, descriptor) in [
        (16, sound),
        (u32::MAX, sound),
        (1, Descriptor { chunk_bytes: 2048, ..sound }),
        (1, Descriptor { chunk_bytes: 5000, ..sound }),
        (1, Descriptor { chunk_bytes: 1 << 20, ..sound }),
        (1, Descriptor { slots: 0, ..sound }),
        (1, Descriptor { slots: u32::MAX, ..sound }),
        (1, Descriptor { bytes: 0, ..sound }),
        (1, Descriptor { bytes: u64::MAX, ..sound }),
        (1, Descriptor { generation: 0, ..sound }),
        (1, Descriptor { path_bytes: 385, ..sound }),
    ] {
        let asked = ChunkArguments { cache, ..ChunkArguments::default() };
        let done = rig.ask(hre, handler::CREATE, &asked, &descriptor.encode(), 0);
        assert_eq!(status(&done), STATUS_MALFORMED, "cache {cache}, {descriptor:?}");
    }
    let again = rig.ask(hre, handler::CREATE, &ChunkArguments::default(), &sound.encode(), 0);
    assert_eq!(status(&again), STATUS_EXISTS);
    let large = ChunkArguments { cache: 1, ..ChunkArguments::default() };
    let most = Descriptor { slots: 8192, ..sound };
    assert_eq!(status(&rig.ask(hre, handler::CREATE, &large, &most.encode(), 0)), STATUS_FULL);
    // Chunks that the file does not have, or that are another SPU's; fewer bytes than a chunk has.
    assert_eq!(rig.install(world::CHUNKS, &fresh_chunk(0), (0, 0)), STATUS_MALFORMED);
    assert_eq!(rig.install(3, &[0; 100], (0, 0)), STATUS_MALFORMED);
    let to = (rig.app, 1, handler::INSTALL);
    assert_eq!(status(&rig.drive.call(to, &of(3, 0, 0).encode(), &fresh_chunk(3), 0)), STATUS_MALFORMED);
    assert_eq!(rig.install(3, &fresh_chunk(3), (0, 0)), 0);
    for (first, second) in [(0, 0), (0, CHUNK_BYTES + 1), (CHUNK_BYTES, 1), (u32::MAX, 2), (1, u32::MAX)] {
        for number in [handler::READ, handler::WRITE, handler::UPDATE] {
            let done = rig.ask(hre, number, &of(3, first, second), &[0; 8192], 0);
            assert_eq!(status(&done), STATUS_RANGE, "handler {number}: {second} bytes at {first}");
        }
    }
    assert_eq!(status(&rig.ask(hre, handler::WRITE, &of(3, 0, 512), &[0; 100], 0)), STATUS_MALFORMED);
    for number in 1..=handler::COPY {
        let done = rig.drive.call((rig.app, 0, number), &[1, 2, 3], &[], 0);
        let known = !matches!(done.outcome, RpcOutcome::Answered { status: 0 });
        assert!(known, "handler {number}: {:?}", done.outcome);
    }
    assert_eq!(read(&mut rig, hre, 3), Ok(fresh_chunk(3)));
    // One that writes through is written by its manager alone.
    let (_, through) = (rig.everywhere(handler::REMOVE, 0), Descriptor { writes_through: true, ..sound });
    assert_eq!(status(&rig.ask(hre, handler::FREE, &ChunkArguments::default(), &[], 0)), 0);
    rig.create(&through);
    assert_eq!(rig.install(3, &fresh_chunk(3), (0, 0)), 0);
    assert_eq!(write(&mut rig, hre, 3, 1), STATUS_THROUGH);
    let update = status(&rig.ask(hre, handler::UPDATE, &of(3, 512, 512), &sector(3, 1, 1), 0));
    assert_eq!((update, rig.counts(0).1.dirty), (0, 0));
    assert_eq!(read(&mut rig, hre, 3).unwrap()[512..1024], sector(3, 1, 1));
}

fn what_is_used_stays_and_what_is_dirty_never_goes(medium: Medium) {
    let mut rig = Rig::on(medium, 3);
    let hre = rig.drive.hre;
    // One chunk is used all the time, the others once.
    assert_eq!(rig.install(0, &fresh_chunk(0), (0, 0)), 0);
    for chunk in [3, 6, 9, 12, 3, 6, 9, 12] {
        assert_eq!(read(&mut rig, hre, 0), Ok(fresh_chunk(0)), "what is used stays");
        if read(&mut rig, hre, chunk).is_err() {
            assert_eq!(rig.install(chunk, &fresh_chunk(chunk), (0, 0)), 0);
        }
    }
    let (_, before) = rig.counts(0);
    assert!(before.evictions >= 2 && before.used == 3, "{before:?}");
    // All dirty: nothing makes way.
    assert_eq!(rig.everywhere(handler::DROP_CLEAN, 0), [0; SPUS as usize]);
    for chunk in [0, 3, 6] {
        assert_eq!((rig.install(chunk, &fresh_chunk(chunk), (0, 0)), write(&mut rig, hre, chunk, 9)), (0, 0));
    }
    assert_eq!(rig.install(9, &fresh_chunk(9), (0, 0)), STATUS_DIRTY);
    assert_eq!(status(&rig.ask(hre, handler::DROP, &of(3, 0, 0), &[], 0)), STATUS_DIRTY);
    assert_eq!(rig.everywhere(handler::DROP_CLEAN, 0), [0; SPUS as usize]);
    assert_eq!(rig.everywhere(handler::REMOVE, 0)[0], STATUS_DIRTY);
    assert_eq!(read(&mut rig, hre, 3).unwrap()[512..1024], sector(3, 1, 9));
    // Of an older version it is not clean.
    let version = rig.ask(hre, handler::COPY, &of(3, 0, CHUNK_BYTES), &[], CHUNK_BYTES as usize).result;
    assert_eq!(write(&mut rig, hre, 3, 10), 0);
    assert_eq!(status(&rig.ask(hre, handler::CLEAN, &of(3, version, 0), &[], 0)), STATUS_CHANGED);
    let version = rig.ask(hre, handler::COPY, &of(3, 0, CHUNK_BYTES), &[], CHUNK_BYTES as usize).result;
    assert_eq!(status(&rig.ask(hre, handler::CLEAN, &of(3, version, 0), &[], 0)), 0);
    assert_eq!(rig.install(9, &fresh_chunk(9), (0, 0)), 0);
    assert_eq!(read(&mut rig, hre, 3), Err(STATUS_MISS), "the clean one went");
    let (_, Counts { used, dirty, .. }) = rig.counts(0);
    assert_eq!((used, dirty), (3, 2));
}

/// A cache has one manager: what the one before says is refused, and so is who learnt of the cache by it.
#[test]
fn a_manager_that_was_replaced_is_refused() {
    let mut rig = Rig::on(Medium::NvMemory, 2);
    let hre = rig.drive.hre;
    let (_, alices, as_alice) = user(&mut rig, 1000);
    assert_eq!(rig.install(3, &fresh_chunk(3), (as_alice, RIGHT_READ)), 0);
    let claim = |rig: &mut Rig, epoch: u32| {
        let asked = ChunkArguments { epoch, ..ChunkArguments::default() };
        status(&rig.ask(hre, handler::CLAIM, &asked, &[], 0))
    };
    assert_eq!((claim(&mut rig, 8), claim(&mut rig, EPOCH)), (STATUS_CLAIMED, 0));
    // It was not heard of for long.
    rig.drive.now_ns += CLAIM_NS + 1;
    assert_eq!((claim(&mut rig, 8), claim(&mut rig, EPOCH)), (0, STATUS_CLAIMED));
    assert_eq!(rig.install(6, &fresh_chunk(6), (0, 0)), STATUS_STALE);
    assert_eq!(read(&mut rig, alices, 3), Err(STATUS_STALE));
    assert_eq!(status(&rig.ask(hre, handler::DROP_CLEAN, &of(0, 0, 0), &[], 0)), STATUS_STALE);
    // Nobody keeps permissions of the one before.
    let new = ChunkArguments { epoch: 8, ..of(3, 0, CHUNK_BYTES) };
    let done = rig.ask(alices, handler::READ, &new, &[], CHUNK_BYTES as usize);
    assert_eq!(status(&done), STATUS_PERMISSION);
    assert_eq!(status(&rig.ask(hre, handler::READ, &new, &[], CHUNK_BYTES as usize)), 0, "the chunk is still there");
    // One that gives it up may be followed at once.
    assert_eq!(status(&rig.ask(hre, handler::RELEASE, &new, &[], 0)), 0);
    assert_eq!(claim(&mut rig, EPOCH), 0);
    let gone = ChunkArguments { cache: 3, epoch: EPOCH, ..ChunkArguments::default() };
    assert_eq!(status(&rig.ask(hre, handler::CLAIM, &gone, &[], 0)), STATUS_ABSENT);
}

/// A write is under way while it is revoked: the answer comes after it. The error says otherwise.
fn revoked_while_it_writes(seed: u64) -> Result<(), String> {
    let media = FaultMedia::new(FaultOptions { delayed_percent: 75, ..options(seed) });
    let mut rig = Rig::open(&media)?;
    rig.create(&descriptor(2));
    let (_, alices, as_alice) = user(&mut rig, 1000);
    assert_eq!(rig.install(3, &fresh_chunk(3), (as_alice, RIGHT_READ | RIGHT_WRITE)), 0);
    assert_eq!(write(&mut rig, alices, 3, 1), 0);
    let written = rig.begin(alices, handler::WRITE, &of(3, 512, 512), &sector(3, 1, 2), 0);
    for _ in 0..seed % 3 {
        rig.drive.step();
    }
    let hre = rig.drive.hre;
    let revoked = rig.begin(hre, handler::REVOKE, &of(0, as_alice, 0), &[], 0);
    while !rig.drive.done.contains_key(&revoked) {
        rig.drive.step();
    }
    let is_over = rig.drive.done.contains_key(&written);
    rig.drive.settle();
    let done = rig.drive.wait(written);
    if !is_over && status(&done) == 0 {
        return Err(format!("seed {seed}: it was written after it was revoked"));
    }
    let now = read(&mut rig, hre, 3).map_err(|status| format!("status {status}"))?;
    let expected = if status(&done) == 0 { 2 } else { 1 };
    if now[512..1024] != sector(3, 1, expected) {
        return Err(format!("seed {seed}: a write that was answered with {} is otherwise", status(&done)));
    }
    Ok(())
}

#[test]
fn nothing_is_written_after_a_revocation_was_answered() {
    (0..60).try_for_each(revoked_while_it_writes).unwrap();
    plant(Some(Planted::RevokesAtOnce));
    let caught = (0..60).try_for_each(revoked_while_it_writes);
    plant(None);
    assert!(caught.is_err_and(|why| why.contains("after it was revoked")));
}

/// The preset with the least memory has room for it.
#[test]
fn a_device_takes_several_caches_and_gives_their_room_back() {
    let mut rig = Rig::on(Medium::NvMemory, 2);
    let hre = rig.drive.hre;
    assert_eq!(config().spus, SPUS);
    for round in 1..4u64 {
        for cache in 1..16 {
            let asked = ChunkArguments { cache, epoch: EPOCH, ..ChunkArguments::default() };
            let new = Descriptor { generation: round, slots: 1 + cache, ..descriptor(2) };
            for spu in 0..SPUS {
                let body = [&asked.encode()[..], &new.encode()].concat();
                assert_eq!(status(&rig.drive.call((rig.app, spu, handler::CREATE), &[], &body, 0)), 0);
                let to = (rig.app, spu, handler::CLAIM);
                assert_eq!(status(&rig.drive.call(to, &asked.encode(), &[], 0)), 0);
            }
            let chunk = ChunkArguments { chunk: 3, ..asked };
            assert_eq!(status(&rig.ask(hre, handler::INSTALL, &chunk, &fresh_chunk(3), 0)), 0);
            // Of the same number, and another's.
            let other = ChunkArguments { chunk: 6, ..asked };
            assert_eq!(status(&rig.ask(hre, handler::PERMIT, &other, &[], 0)), STATUS_MISS);
        }
        for cache in 1..16 {
            let asked = ChunkArguments { cache, epoch: EPOCH, ..ChunkArguments::default() };
            for spu in (0..SPUS).rev() {
                assert_eq!(status(&rig.drive.call((rig.app, spu, handler::REMOVE), &asked.encode(), &[], 0)), 0);
            }
            assert_eq!(status(&rig.ask(hre, handler::FREE, &asked, &[], 0)), 0);
        }
    }
}
