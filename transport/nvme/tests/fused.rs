//! Fused Compare and Write: hosts that count by it, beside each other and beside plain writes, against a model.

mod common;
#[allow(dead_code)]
#[path = "../../../device/tests/common/shared.rs"]
mod shared;
#[allow(dead_code)]
#[path = "../../../device/tests/common/slow.rs"]
mod slow;

use std::collections::BTreeMap;

use common::Host;
use slow::{SlowStore, Valve};
use willow_device::media::ram::RamStore;
use willow_device::reservation::ReservationType;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::config::{DEVICE_PLACES_BESIDE_OTHERS, Hole};
use willow_nvme::{ConnectionId, Next, Subsystem, SubsystemConfig};
use willow_wire::bytes::u16_at;
use willow_wire::spec::fabrics::CONTROLLER_DYNAMIC;
use willow_wire::spec::identify::{cns, controller, namespace};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry};

const BLOCK: usize = 4096;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

fn entry(opcode: u8, fuse: u8, cid: u16, lba: u64, blocks: u16, inline: bool) -> SubmissionEntry {
    let bytes = u32::from(blocks) * BLOCK as u32;
    let sgl = if inline { Sgl::in_capsule(0, bytes) } else { Sgl::transport(bytes) };
    let mut entry = SubmissionEntry::new(opcode).with_nsid(1).with_cid(cid).with_lba(lba);
    entry = entry.with_cdw(12, u32::from(blocks) - 1).with_sgl(sgl);
    entry.0[1] |= fuse;
    entry
}

/// Hosts whose commands are under way at the same time.
struct Hosts {
    host: Host,
    /// Data that a command has not been asked for yet.
    data: BTreeMap<(ConnectionIdOrd, u16), Vec<u8>>,
    /// What was answered: connection, identifier, status, data.
    answers: Vec<(ConnectionId, u16, Status, Vec<u8>)>,
    /// What the media wait for.
    valve: Valve,
}

type ConnectionIdOrd = usize;

impl Hosts {
    fn new(hole: Option<Hole>) -> Hosts {
        let sizes = DeviceConfig { namespace_bytes: 2 << 20, kv_namespace_bytes: 0, ..DeviceConfig::default() };
        let valve = Valve::default();
        let store = SlowStore::new(Box::new(RamStore::new(2, 16 << 20).unwrap()), valve.clone());
        let apps = vec![BuiltInApp::Native(base_io_spu::native())];
        let device = Device::open(DeviceConfig { spus: 2, ..sizes }, Box::new(store), None, apps).unwrap();
        let host = Host::of(Subsystem::new(SubsystemConfig { hole, ..SubsystemConfig::default() }, device, 0).unwrap());
        Hosts { host, data: BTreeMap::new(), answers: Vec::new(), valve }
    }

    fn send(&mut self, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) {
        let is_inline = entry.sgl().identifier == Sgl::DATA_BLOCK_OFFSET;
        if !is_inline && !data.is_empty() {
            self.data.insert((at.index(), entry.cid()), data.to_vec());
        }
        match self.host.subsystem.command(at, entry, if is_inline { data } else { &[] }) {
            Next::Taken => {}
            Next::Fetch(fetch) => self.bring(at, fetch),
            other => panic!("{entry:?}: {other:?}"),
        }
    }

    fn bring(&mut self, at: ConnectionId, mut fetch: willow_nvme::Fetch) {
        let data = self.data.remove(&(at.index(), fetch.cid)).expect("each is asked for once");
        fetch.buffer[fetch.start..][..data.len()].copy_from_slice(&data);
        self.host.subsystem.data(at, fetch.slot, fetch.buffer);
    }

    /// A turn: data that are asked for come, the device works, answers are taken.
    fn turn(&mut self) {
        self.host.subsystem.grant();
        while let Some((at, fetch)) = self.host.subsystem.fetch() {
            self.bring(at, fetch);
        }
        self.host.run();
        while let Some(completion) = self.host.subsystem.completion() {
            let mut came = Vec::new();
            if let Some(payload) = completion.payload {
                came.extend_from_slice(&payload.buffer[payload.start..payload.start + payload.bytes]);
                self.host.subsystem.give_buffer(completion.connection, payload.buffer);
            }
            self.answers.push((completion.connection, completion.entry.cid, completion.entry.status, came));
        }
    }

    fn take(&mut self, at: ConnectionId, cid: u16) -> Option<(Status, Vec<u8>)> {
        let found = self.answers.iter().position(|(of, number, ..)| (*of, *number) == (at, cid))?;
        let (_, _, status, data) = self.answers.remove(found);
        Some((status, data))
    }

    fn wait(&mut self, at: ConnectionId, cid: u16) -> (Status, Vec<u8>) {
        for _ in 0..1000 {
            if let Some(answer) = self.take(at, cid) {
                return answer;
            }
            self.turn();
        }
        panic!("command {cid} is not answered");
    }

    /// Both halves of an operation; what they end with.
    fn fused(&mut self, at: ConnectionId, lba: u64, old: &[u8], new: &[u8], inline: bool) -> [Status; 2] {
        let blocks = (old.len() / BLOCK) as u16;
        self.send(at, &entry(nvm::COMPARE, FIRST, 40, lba, blocks, inline), old);
        self.send(at, &entry(nvm::WRITE, SECOND, 41, lba, blocks, inline), new);
        let second = self.wait(at, 41).0;
        [self.take(at, 40).expect("the first is answered before the second").0, second]
    }

    fn read(&mut self, at: ConnectionId, lba: u64, blocks: u16) -> Vec<u8> {
        self.send(at, &entry(nvm::READ, 0, 42, lba, blocks, false), &[]);
        let (status, data) = self.wait(at, 42);
        assert!(status.is_success(), "{status}");
        data
    }

    fn is_at_rest(&self) -> bool {
        self.host.subsystem.statistics().buffer_bytes == 0 && self.host.subsystem.in_device() == 0
    }
}

fn counter(value: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(&value.to_le_bytes());
    block[BLOCK - 8..].copy_from_slice(&value.to_le_bytes());
    block
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// Hosts count in block 5, each by what it believes the count to be, while others write and zero blocks around it, and one is cut off now and
/// then. True where every step that was told to be done was done, and no other.
fn counts(seed: u64, hole: Option<Hole>) -> bool {
    let mut random = Random(seed);
    let mut hosts = Hosts::new(hole);
    // The last are in use; whoever is cut off goes on by the one before.
    let mut queues: Vec<Vec<(ConnectionId, ConnectionId)>> =
        (1..=4).map(|host| (0..6).map(|_| hosts.host.queues(host)).collect()).collect();
    // For each host: what it believes; whether its operation is under way.
    let mut believed = [0u64; 4];
    let mut asked = [false; 4];
    let (mut done, mut maybe) = (0u64, 0u64);
    let mut busy: BTreeMap<(usize, u16), u64> = BTreeMap::new();
    for _ in 0..400 {
        let one = random.below(4) as usize;
        let &(admin, io) = queues[one].last().unwrap();
        match random.below(10) {
            0..4 if !asked[one] => {
                let inline = random.below(2) == 0;
                let (old, new) = (counter(believed[one]), counter(believed[one] + 1));
                hosts.send(io, &entry(nvm::COMPARE, FIRST, 40, 5, 1, inline), &old);
                hosts.send(io, &entry(nvm::WRITE, SECOND, 41, 5, 1, random.below(2) == 0), &new);
                asked[one] = true;
            }
            4 => {
                // Beside it, of the same stripe and of others.
                let (cid, lba) = (50 + random.below(20) as u16, random.below(4) + 6);
                if busy.insert((one, cid), lba).is_none() {
                    let opcode = if random.below(3) == 0 { nvm::WRITE_ZEROES } else { nvm::WRITE };
                    let data = if opcode == nvm::WRITE { vec![7; BLOCK] } else { Vec::new() };
                    hosts.send(io, &entry(opcode, 0, cid, lba, 1, random.below(2) == 0 && opcode == nvm::WRITE), &data);
                }
            }
            5 if random.below(6) == 0 && asked[one] && queues[one].len() > 1 => {
                // Whether its step was done nobody tells.
                hosts.data.retain(|(at, _), _| *at != io.index());
                hosts.host.subsystem.close_connection(io);
                hosts.host.subsystem.close_connection(admin);
                while hosts.host.subsystem.closing().is_some() {}
                hosts.answers.retain(|(at, ..)| *at != io);
                busy.retain(|(of, _), _| *of != one);
                queues[one].pop();
                asked[one] = false;
                maybe += 1;
            }
            6 => hosts.valve.closed.set(random.below(3) > 0),
            _ => hosts.turn(),
        }
        for one in 0..4 {
            let io = queues[one].last().unwrap().1;
            busy.retain(|(of, cid), _| {
                *of != one
                    || hosts.take(io, *cid).inspect(|(status, _)| assert!(status.is_success(), "{status}")).is_none()
            });
            if asked[one]
                && let Some((second, _)) = hosts.take(io, 41)
            {
                let (first, _) = hosts.take(io, 40).expect("the first comes first");
                asked[one] = false;
                if second.is_success() {
                    assert!(first.is_success());
                    (done, believed[one]) = (done + 1, believed[one] + 1);
                } else {
                    assert!(
                        first.is(Status::COMPARE_FAILURE) && second.is(Status::ABORTED_FAILED_FUSED),
                        "{first} {second}"
                    );
                    hosts.valve.closed.set(false);
                    let block = hosts.read(io, 5, 1);
                    believed[one] = u64::from_le_bytes(block[..8].try_into().unwrap());
                }
            }
        }
    }
    hosts.valve.closed.set(false);
    for one in 0..4 {
        if asked[one] {
            done += u64::from(hosts.wait(queues[one].last().unwrap().1, 41).0.is_success());
        }
    }
    (0..20).for_each(|_| hosts.turn());
    let block = hosts.read(queues[0].last().unwrap().1, 5, 1);
    let count = u64::from_le_bytes(block[..8].try_into().unwrap());
    assert!(hosts.is_at_rest(), "no buffer is left");
    assert!(done > 5, "seed {seed}: {done} steps are few");
    block == counter(count) && (done..=done + maybe).contains(&count)
}

#[test]
fn hosts_that_count_by_it_lose_no_step() {
    for seed in 1..=60 {
        assert!(counts(seed, None), "seed {seed}");
    }
}

#[test]
fn a_subsystem_that_lets_others_in_between_is_found_out() {
    assert!((1..=60).any(|seed| !counts(seed, Some(Hole::FusedTakesNothing))));
}

/// Plain writes that were under way when a fused operation came are over when it compares.
fn waits_for_what_was_there(hole: Option<Hole>) -> bool {
    let mut hosts = Hosts::new(hole);
    let (_, one) = hosts.host.queues(1);
    let (_, other) = hosts.host.queues(2);
    let mut lost = false;
    for round in 0..50u64 {
        // Handed in one behind the other, before the device works on any of them.
        hosts.send(one, &entry(nvm::WRITE, 0, 60, 9, 1, true), &counter(round * 2 + 1));
        hosts.send(other, &entry(nvm::COMPARE, FIRST, 40, 9, 1, true), &counter(round * 2 + 1));
        hosts.send(other, &entry(nvm::WRITE, SECOND, 41, 9, 1, true), &counter(round * 2 + 2));
        // And one that comes later, to the same block.
        hosts.send(one, &entry(nvm::WRITE, 0, 61, 9, 1, true), &counter(round * 2 + 3));
        let (status, _) = hosts.wait(other, 41);
        assert!(hosts.wait(one, 60).0.is_success() && hosts.wait(one, 61).0.is_success());
        let first = hosts.wait(other, 40).0;
        // What was written last stays, and the comparison saw what was written first.
        lost |= hosts.read(one, 9, 1) != counter(round * 2 + 3) || !status.is_success() || !first.is_success();
    }
    assert!(hosts.is_at_rest());
    !lost
}

#[test]
fn what_was_under_way_is_over_and_what_comes_later_waits() {
    assert!(waits_for_what_was_there(None));
    assert!(!waits_for_what_was_there(Some(Hole::FusedTakesNothing)), "a planted weakness is found out");
}

#[test]
fn a_host_with_many_of_them_waits_for_itself_alone() {
    let mut hosts = Hosts::new(None);
    let (_, one) = hosts.host.queues(1);
    let (_, other) = hosts.host.queues(2);
    let (zero, new) = (vec![0; BLOCK], counter(1));
    hosts.valve.closed.set(true);
    // In other stripes each, more than a host may have, and all of them once more; then another host's.
    for at in 0..15u16 {
        let lba = u64::from(at % 12) * 2;
        let old = if at < 12 { &zero } else { &new };
        hosts.send(one, &entry(nvm::COMPARE, FIRST, 100 + at, lba, 1, true), old);
        hosts.send(one, &entry(nvm::WRITE, SECOND, 200 + at, lba, 1, true), &new);
    }
    hosts.send(other, &entry(nvm::COMPARE, FIRST, 40, 100, 1, true), &zero);
    hosts.send(other, &entry(nvm::WRITE, SECOND, 41, 100, 1, true), &new);
    hosts.send(other, &entry(nvm::WRITE, 0, 42, 30, 1, true), &new);
    (0..5).for_each(|_| hosts.turn());
    hosts.valve.closed.set(false);
    assert!(hosts.wait(other, 41).0.is_success() && hosts.wait(other, 42).0.is_success());
    for at in 0..15u16 {
        assert!(hosts.wait(one, 200 + at).0.is_success(), "{at}");
        assert!(hosts.take(one, 100 + at).expect("the first comes first").0.is_success());
    }
    assert!(hosts.is_at_rest());
}

#[test]
fn halves_that_do_not_belong_together_end_both() {
    let mut hosts = Hosts::new(None);
    let (admin, io) = hosts.host.queues(1);
    let (old, new) = (counter(0), counter(1));
    let zero = vec![0; BLOCK];
    assert!(hosts.fused(io, 3, &zero, &new, true).iter().all(Status::is_success_of));
    assert_eq!(hosts.read(io, 3, 1), new);
    for inline in [true, false] {
        let [first, second] = hosts.fused(io, 3, &old, &zero, inline);
        assert!(first.is(Status::COMPARE_FAILURE) && second.is(Status::ABORTED_FAILED_FUSED), "{first} {second}");
        assert!(first.do_not_retry());
    }
    // A second without a first, a first without a second.
    hosts.send(io, &entry(nvm::WRITE, SECOND, 41, 3, 1, true), &zero);
    assert!(hosts.wait(io, 41).0.is(Status::ABORTED_MISSING_FUSED));
    hosts.send(io, &entry(nvm::COMPARE, FIRST, 40, 3, 1, true), &new);
    hosts.send(io, &entry(nvm::READ, 0, 42, 3, 1, false), &[]);
    assert!(hosts.wait(io, 40).0.is(Status::ABORTED_MISSING_FUSED));
    assert_eq!(hosts.wait(io, 42), (Status::SUCCESS, new.clone()));
    hosts.send(io, &entry(nvm::COMPARE, FIRST, 40, 3, 1, true), &new);
    hosts.send(io, &entry(nvm::COMPARE, FIRST, 43, 3, 1, true), &new);
    hosts.send(io, &entry(nvm::WRITE, SECOND, 41, 3, 1, true), &new);
    assert!(hosts.wait(io, 40).0.is(Status::ABORTED_MISSING_FUSED));
    assert!(hosts.wait(io, 41).0.is_success() && hosts.wait(io, 43).0.is_success());
    // Other blocks, other commands, other sizes, behind the end, over the border of a stripe, too long, a reserved value, one identifier.
    let refused = |hosts: &mut Hosts, first: SubmissionEntry, second: SubmissionEntry, data: usize| {
        hosts.send(io, &first, &vec![1; data]);
        hosts.send(io, &second, &vec![2; data]);
        (hosts.wait(io, first.cid()).0, hosts.wait(io, second.cid()).0)
    };
    let compare = |lba, blocks| entry(nvm::COMPARE, FIRST, 40, lba, blocks, true);
    let write = |lba, blocks| entry(nvm::WRITE, SECOND, 41, lba, blocks, true);
    let both = refused(&mut hosts, compare(3, 1), write(4, 1), BLOCK);
    assert!(both.0.is(Status::INVALID_FIELD) && both.1.is(Status::ABORTED_FAILED_FUSED), "{both:?}");
    let both = refused(&mut hosts, entry(nvm::WRITE, FIRST, 40, 3, 1, true), write(3, 1), BLOCK);
    assert!(both.0.is(Status::INVALID_FIELD) && both.1.is(Status::ABORTED_FAILED_FUSED), "{both:?}");
    let both = refused(&mut hosts, compare(1 << 40, 1), write(3, 1), BLOCK);
    assert!(both.0.is(Status::LBA_OUT_OF_RANGE) && both.1.is(Status::ABORTED_FAILED_FUSED), "{both:?}");
    let both = refused(&mut hosts, compare(3, 1), write(1 << 40, 1), BLOCK);
    assert!(both.0.is(Status::ABORTED_FAILED_FUSED) && both.1.is(Status::LBA_OUT_OF_RANGE), "{both:?}");
    let both = refused(&mut hosts, compare(1, 2), write(1, 2), 2 * BLOCK);
    assert!(both.0.is(Status::ATOMIC_WRITE_UNIT_EXCEEDED) && both.1.is(Status::ABORTED_FAILED_FUSED), "{both:?}");
    hosts.send(io, &entry(nvm::WRITE, FIRST | SECOND, 44, 3, 1, true), &zero);
    assert!(hosts.wait(io, 44).0.is(Status::INVALID_FIELD));
    hosts.send(io, &compare(3, 1), &new);
    hosts.send(io, &entry(nvm::WRITE, SECOND, 40, 3, 1, true), &zero);
    let ends = [hosts.wait(io, 40).0, hosts.wait(io, 40).0];
    assert!(ends.iter().any(|end| end.is(Status::COMMAND_ID_CONFLICT)), "{ends:?}");
    assert_eq!(hosts.read(io, 3, 1), new, "nothing of all that was written");
    // What hosts are told of it.
    let ask = SubmissionEntry::new(admin::IDENTIFY).with_nsid(1).with_sgl(Sgl::transport(4096));
    let told = |hosts: &mut Hosts, structure: u8| {
        hosts.send(admin, &ask.with_cid(70).with_cdw(10, structure.into()), &[]);
        hosts.wait(admin, 70).1
    };
    assert_eq!(told(&mut hosts, cns::CONTROLLER)[controller::FUSES] & 1, 1);
    let limits = told(&mut hosts, cns::NAMESPACE);
    assert_eq!((u16_at(&limits, 38), limits[namespace::NSFEAT] >> 1 & 1), (1, 1));
    // A stripe as a whole.
    assert!(hosts.fused(io, 10, &[0; 2 * BLOCK], &[9; 2 * BLOCK], false).iter().all(Status::is_success_of));
    assert_eq!(hosts.read(io, 10, 2), [9; 2 * BLOCK]);
    // Who may not write may not.
    let (_, other) = hosts.host.queues(2);
    hosts.host.reserve(other, nvm::RESERVATION_REGISTER, 0, [0, 5]);
    hosts.host.reserve(other, nvm::RESERVATION_ACQUIRE, (ReservationType::WriteExclusive as u32) << 8, [5, 0]);
    assert!(hosts.fused(io, 3, &new, &zero, true).iter().all(|end| end.is(Status::RESERVATION_CONFLICT)));
    assert_eq!(hosts.read(io, 3, 1), new);
    assert!(hosts.is_at_rest(), "no buffer is left");
}

/// [`Status::is_success`] by reference.
trait IsSuccess {
    fn is_success_of(&self) -> bool;
}

impl IsSuccess for Status {
    fn is_success_of(&self) -> bool {
        self.is_success()
    }
}

#[test]
fn data_that_come_damaged_end_both() {
    let mut hosts = Hosts::new(None);
    let (_, io) = hosts.host.queues(1);
    for damaged in [40, 41] {
        hosts.send(io, &entry(nvm::COMPARE, FIRST, 40, 3, 1, false), &[0; BLOCK]);
        hosts.send(io, &entry(nvm::WRITE, SECOND, 41, 3, 1, false), &[1; BLOCK]);
        while let Some((at, fetch)) = hosts.host.subsystem.fetch() {
            if fetch.cid == damaged {
                hosts.data.remove(&(at.index(), fetch.cid));
                hosts.host.subsystem.data_failed(at, fetch.slot, fetch.buffer);
            } else {
                hosts.bring(at, fetch);
            }
        }
        (0..20).for_each(|_| hosts.turn());
        let order: Vec<u16> = hosts.answers.iter().map(|(_, number, ..)| *number).collect();
        assert_eq!(order, [40, 41], "the first command is answered first, whichever is damaged");
        let other = if damaged == 40 { 41 } else { 40 };
        assert!(hosts.wait(io, damaged).0.is(Status::TRANSIENT_TRANSPORT_ERROR));
        let status = hosts.wait(io, other).0;
        assert!(status.is(Status::ABORTED_FAILED_FUSED));
        assert!(!status.do_not_retry(), "both may be sent again, since the damaged one may");
        assert_eq!(hosts.read(io, 3, 1), [0; BLOCK]);
    }
    assert!(hosts.is_at_rest(), "no buffer is left");
}

/// A plain write that has no place in the device yet, since its host has as much there as it may, does not keep another host's operation: it
/// goes on waiting, and comes after it.
#[test]
fn a_write_without_a_place_keeps_nobody() {
    let mut hosts = Hosts::new(None);
    let (_, other) = hosts.host.queues(2);
    let (admin, controller) = hosts.host.connect(1, 0, CONTROLLER_DYNAMIC).expect("a controller");
    hosts.host.enable(admin);
    let places = DEVICE_PLACES_BESIDE_OTHERS as usize;
    let queues =
        (1..=places as u16 / 31 + 1).map(|number| hosts.host.connect(1, number, controller).expect("a queue").0);
    let queues: Vec<ConnectionId> = queues.collect();
    hosts.valve.closed.set(true);
    for at in 0..places {
        hosts.send(queues[at / 31], &entry(nvm::READ, 0, 100 + (at % 31) as u16, at as u64 % 500, 1, false), &[]);
    }
    let last = queues[queues.len() - 1];
    hosts.send(last, &entry(nvm::WRITE, 0, 60, 9, 1, true), &counter(7));
    (0..5).for_each(|_| hosts.turn());
    hosts.send(other, &entry(nvm::COMPARE, FIRST, 40, 9, 1, true), &counter(0));
    hosts.send(other, &entry(nvm::WRITE, SECOND, 41, 9, 1, true), &counter(8));
    (0..5).for_each(|_| hosts.turn());
    hosts.valve.closed.set(false);
    let status = hosts.wait(other, 41).0;
    assert!(status.is_success(), "the write came before: {status}");
    assert!(hosts.wait(other, 40).0.is_success() && hosts.wait(last, 60).0.is_success());
    assert_eq!(hosts.read(other, 9, 1), counter(7), "what came last stays");
    (0..places).for_each(|at| assert!(hosts.wait(queues[at / 31], 100 + (at % 31) as u16).0.is_success()));
    assert!(hosts.is_at_rest());
}

/// A plain write that had its place in the device and waits for a range is given up where its host wants that, and where its host loses the namespace:
/// nothing of it lands after that.
#[test]
fn a_write_that_waits_for_a_range_ends_with_an_abort_and_with_its_namespace() {
    for deletes in [false, true] {
        let mut hosts = Hosts::new(None);
        let (_, other) = hosts.host.queues(2);
        let (admin, controller) = hosts.host.connect(1, 0, CONTROLLER_DYNAMIC).expect("a controller");
        hosts.host.enable(admin);
        let places = DEVICE_PLACES_BESIDE_OTHERS as usize;
        let queues: Vec<ConnectionId> = (1..=places as u16 / 31 + 1)
            .map(|number| hosts.host.connect(1, number, controller).expect("a queue").0)
            .collect();
        hosts.valve.closed.set(true);
        for at in 0..places {
            hosts.send(queues[at / 31], &entry(nvm::READ, 0, 100 + (at % 31) as u16, at as u64 % 500, 1, false), &[]);
        }
        let last = queues.len() - 1;
        hosts.send(queues[last], &entry(nvm::WRITE, 0, 60, 9, 1, true), &counter(7));
        (0..5).for_each(|_| hosts.turn());
        hosts.send(other, &entry(nvm::COMPARE, FIRST, 40, 9, 1, true), &counter(0));
        hosts.send(other, &entry(nvm::WRITE, SECOND, 41, 9, 1, true), &counter(8));
        (0..5).for_each(|_| hosts.turn());
        let abort = |queue: usize, cid: u16| {
            let place = (queue as u32 + 1) | u32::from(cid) << 16;
            SubmissionEntry::new(admin::ABORT).with_cid(9).with_cdw(10, place)
        };
        // A read gives its place up, which the write has then: it waits for the range of the fused operation.
        let aborted = (0..places).find(|at| {
            hosts.send(admin, &abort(at / 31, 100 + (at % 31) as u16), &[]);
            hosts.wait(admin, 9);
            (0..3).for_each(|_| hosts.turn());
            hosts.take(queues[at / 31], 100 + (at % 31) as u16).is_some()
        });
        assert!(aborted.is_some(), "no read can be aborted");
        if deletes {
            let mut detach = SubmissionEntry::new(admin::NAMESPACE_ATTACHMENT).with_nsid(1).with_cid(9);
            detach = detach.with_cdw(10, 1).with_sgl(Sgl::transport(4096));
            let mut list = vec![0; 4096];
            list[0] = 1;
            list[2..4].copy_from_slice(&controller.to_le_bytes());
            hosts.send(admin, &detach, &list);
            assert!(hosts.wait(admin, 9).0.is_success());
        } else {
            hosts.send(admin, &abort(last, 60), &[]);
            hosts.wait(admin, 9);
        }
        let status = hosts.wait(queues[last], 60).0;
        assert!(!status.is_success(), "{status}");
        hosts.valve.closed.set(false);
        let status = hosts.wait(other, 41).0;
        assert!(status.is_success() && hosts.wait(other, 40).0.is_success(), "{status}");
        (0..20).for_each(|_| hosts.turn());
        assert_eq!(hosts.read(other, 9, 1), counter(8));
    }
}

/// More commands under way than are looked at in one turn: what a range has to wait for is found all the same, and is waited for.
#[test]
fn what_is_under_way_is_looked_through_by_pieces_and_all_of_it_is_found() {
    let mut hosts = Hosts::new(None);
    let (_, other) = hosts.host.queues(2);
    let (admin, controller) = hosts.host.connect(1, 0, CONTROLLER_DYNAMIC).expect("a controller");
    hosts.host.enable(admin);
    // The last connections that are looked at have what is waited for.
    let spare: Vec<ConnectionId> =
        (0..3000).map(|_| hosts.host.subsystem.open_connection(None).expect("a connection")).collect();
    let queues: Vec<ConnectionId> =
        (1..=8).map(|number| hosts.host.connect(1, number, controller).expect("a queue").0).collect();
    hosts.valve.closed.set(true);
    for (number, queue) in queues.iter().enumerate() {
        hosts.send(*queue, &entry(nvm::WRITE, 0, 60, 9, 1, true), &counter(number as u64));
    }
    hosts.send(other, &entry(nvm::COMPARE, FIRST, 40, 9, 1, true), &counter(7));
    hosts.send(other, &entry(nvm::WRITE, SECOND, 41, 9, 1, true), &counter(8));
    (0..20).for_each(|_| hosts.turn());
    hosts.valve.closed.set(false);
    let status = hosts.wait(other, 41).0;
    assert!(status.is_success() && hosts.wait(other, 40).0.is_success(), "it compares with what came before: {status}");
    queues.iter().for_each(|queue| assert!(hosts.wait(*queue, 60).0.is_success()));
    assert_eq!(hosts.read(other, 9, 1), counter(8));
    spare.into_iter().for_each(|spare| hosts.host.subsystem.close_connection(spare));
}
