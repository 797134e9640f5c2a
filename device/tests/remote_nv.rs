//! NV memory of another SPU, by its port: what is permitted there, what it costs, and whom it costs nothing.

mod common;
use common::users::*;
use common::*;
use std::sync::{Arc, Mutex};
use willow_device::clock::{Agenda, DmaKind, DmaStep, Endpoint, Message, Timing, Transfer, Work};
use willow_device::{DeviceConfig, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const ARGUMENT: u32 = -2i32 as u32;

/// The port of an SPU's NV memory.
fn port(spu: u32) -> u32 {
    NV + ((spu + 1) << 16)
}

/// Two users, each with a range of SPU 1 alone, and one with a range of SPU 0.
struct World {
    users: Users,
    alice: User,
    bob: User,
}

impl World {
    fn under(timing: Option<Box<dyn Timing>>) -> World {
        let mut users = Users::under(timing, DeviceConfig { ..config(3) }, 3 << 20);
        let (alice, bob) = (users.user(1000), users.user(1001));
        for (user, spu, start) in [(&alice, 1, 0), (&bob, 1, 65536), (&bob, 0, 0)] {
            let body = Users::extents(user.process, &[(spu, READ | WRITE, users.base + start, 65536)]);
            assert_eq!(users.rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &body, 0).outcome, ANSWERED);
        }
        World { users, alice, bob }
    }

    /// What the mover's handler on an SPU answers when its NV memory is at that port.
    fn moves(&mut self, hre: willow_device::HreId, (handler, spu): (u8, u16), at: (u64, u32, u32), data: &[u8]) -> u32 {
        let (start, bytes, port) = at;
        let arguments = self.users.arguments(start, bytes, port);
        let reply = if handler == 1 { bytes } else { 0 };
        let done = self.users.rig.call_on(hre, (self.users.mover, handler, spu), &arguments, data, reply);
        assert_eq!(done.outcome, ANSWERED);
        if handler == 1 && done.result == 0 {
            assert!(done.buffer[..bytes as usize] == data[..bytes as usize], "the bytes that are there");
        }
        done.result
    }

    fn spu(&self, spu: usize) -> (u64, u64, u64, u64) {
        let of = &self.users.rig.device.statistics().spus[spu];
        (of.requests, of.instructions, of.nv_read_bytes, of.nv_write_bytes)
    }
}

#[test]
fn another_spus_bytes_are_moved_without_its_processor() {
    let mut world = World::under(None);
    let hre = world.alice.hre;
    let page: Vec<u8> = (0..4096u32).map(|at| (at * 7) as u8).collect();
    let before = world.spu(1);
    // Written from the body, read to the reply, and to local memory.
    assert_eq!(world.moves(hre, (2, 0), (8192, 4096, port(1)), &page), 0);
    assert_eq!(world.moves(hre, (1, 0), (8192, 4096, port(1)), &page), 0);
    let word = u32::from_le_bytes(page[..4].try_into().unwrap());
    assert_eq!(world.moves(hre, (3, 2), (8192, 4096, port(1)), &[]), word);
    let after = world.spu(1);
    // Where an FTL serves that bank, it runs there.
    assert_eq!((after.0, after.1) == (before.0, before.1), !is_on_flash(), "that SPU has run no app");
    assert_eq!((after.2 - before.2, after.3 - before.3), (8192, 4096), "its bank has");
    // From local memory; and what was written is what that SPU itself reads.
    assert_eq!(world.moves(hre, (4, 0), (8192, 4, port(1)), &[1, 2, 3, 4]), 0);
    let changed = [&[1, 2, 3, 4], &page[4..]].concat();
    assert_eq!(world.moves(hre, (1, 1), (8192, 4096, NV), &changed), 0);
    // The own SPU by its number is the own bank.
    assert_eq!(world.moves(hre, (1, 1), (8192, 4096, port(1)), &changed), 0);
}

#[test]
fn the_permission_is_that_spus() {
    let mut world = World::under(None);
    let (alice, bob) = (world.alice.hre, world.bob.hre);
    let zeroes = [0; 4096];
    for handler in [1, 2, 3] {
        let data = if handler == 2 { &zeroes[..512] } else { &zeroes };
        // Another's range, one that begins in the own, none at all, and past the bank.
        for start in [65536, 65536 - 8, 1 << 19, u64::MAX - 600, 1 << 40] {
            assert_eq!(world.moves(alice, (handler, 0), (start, 512, port(1)), data), PERMISSION, "{handler} {start}");
        }
        // What is permitted on the caller's SPU is not on the other, and the other way round.
        assert_eq!(world.moves(bob, (handler, 0), (0, 512, NV), data), 0);
        assert_eq!(world.moves(bob, (handler, 0), (0, 512, port(1)), data), PERMISSION);
        assert_eq!(world.moves(bob, (handler, 1), (0, 512, port(0)), data), 0);
        assert_eq!(world.moves(alice, (handler, 0), (0, 512, NV), data), PERMISSION);
        assert_eq!(world.moves(alice, (handler, 0), (0, 512, port(1)), data), 0);
        // Ports that there are not.
        for port in
            [port(3), port(64), port(65534), 1 << 16, NV | 1 << 31, port(1) | 0x100, port(1) | 0x200, port(1) + 1]
        {
            assert_eq!(world.moves(alice, (handler, 0), (0, 512, port), data), ARGUMENT, "{handler} {port:#x}");
        }
    }
    // A region of another app's, on whichever SPU.
    let region = "(func $start (param i32 i32) (result i32)
        (if (i32.eqz (local.get 1)) (then (drop (call $region (i32.const 1) (i64.const 65536) (i32.const 1)))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))";
    world.users.rig.install(&app("keeps", region, "")).expect("an app");
    let end = world.users.bank_bytes;
    let kernel = world.users.rig.hre;
    for hre in [alice, bob, kernel] {
        for spu in [0, 1] {
            assert_eq!(world.moves(hre, (1, 0), (end, 512, port(spu)), &zeroes), PERMISSION);
        }
    }
    assert_eq!(world.moves(kernel, (1, 0), (end - 512, 512, port(1)), &zeroes), 0, "its own namespace it reaches");
}

#[test]
fn a_revocation_waits_for_what_is_under_way_from_another_spu() {
    let mut world = World::under(None);
    let hre = world.alice.hre;
    let write = world.users.arguments(0, 512, port(1));
    world.users.valve.closed.set(true);
    world.users.rig.begin(hre, (world.users.mover, 2, 0), &write, &[9; 512], 0);
    world.users.run();
    let body = Users::extents(world.alice.process, &[(1, READ | WRITE, world.users.base, 65536)]);
    let kernel = world.users.rig.hre;
    world.users.rig.begin(kernel, (control::CONTROL_APP, control::REVOKE, 0), &[], &body, 0);
    for _ in 0..50 {
        world.users.run();
    }
    assert!(world.users.completion().is_none(), "neither is answered while the store has the write");
    world.users.valve.closed.set(false);
    world.users.rig.settle();
    let ends: Vec<_> = std::iter::from_fn(|| world.users.completion()).map(|done| (done.hre, done.outcome)).collect();
    assert_eq!(ends.len(), 2);
    assert!(ends.contains(&(hre, ANSWERED)) && ends.contains(&(kernel, ANSWERED)), "{ends:?}");
    assert_eq!(world.moves(hre, (1, 0), (0, 512, port(1)), &[0; 512]), PERMISSION);
    // A write that came after the answer would be seen: it is there, whole, since before it.
    assert_eq!(world.moves(kernel, (1, 1), (0, 512, NV), &[9; 512]), 0);
}

/// What a model of time was asked for, in its order.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

const SEND_NS: u64 = 100;
const MOVE_NS: u64 = 1000;

impl Noted {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Timing for Noted {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        if let (Endpoint::Spu(from), Endpoint::Spu(to)) = (message.from, message.to) {
            self.note(format!("{at_ns}: {} bytes from {from} to {to}", message.payload_bytes));
        }
        agenda.arrive(at_ns + SEND_NS, message.id);
    }
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        let kind = if transfer.kind == DmaKind::NvRead { "read" } else { "written" };
        self.note(format!("{at_ns}: {} bytes {kind} at {}", transfer.segment_bytes, transfer.spu));
        DmaStep::Ends(at_ns + MOVE_NS)
    }
    fn processor(&mut self, at_ns: u64, spu: u16, _: &Work) -> u64 {
        self.note(format!("{at_ns}: run on {spu}"));
        at_ns + 10
    }
}

#[test]
fn under_a_model_it_goes_over_the_ring_and_that_spus_controller() {
    let traces: Vec<Vec<String>> = (0..2)
        .map(|_| {
            let noted = Noted::default();
            let mut world = World::under(Some(Box::new(noted.clone())));
            let (hre, mut trace) = (world.alice.hre, Vec::new());
            for handler in [2, 1] {
                noted.0.lock().unwrap().clear();
                let begin_ns = world.users.rig.now_ns;
                world.users.rig.device.set_time(begin_ns);
                assert_eq!(world.moves(hre, (handler, 0), (0, 4096, port(1)), &[3; 4096]), 0);
                let of = noted.0.lock().unwrap();
                let told = of.iter().filter_map(|line| {
                    let (at_ns, what) = line.split_once(": ").unwrap();
                    // An FTL runs where its bank is.
                    let is_ftls = is_on_flash() && what == "run on 1";
                    (!is_ftls).then(|| format!("{} {what}", at_ns.parse::<u64>().unwrap() - begin_ns))
                });
                trace.extend(told);
            }
            trace
        })
        .collect();
    let (there, back) = (110 + SEND_NS, 110 + SEND_NS + MOVE_NS);
    let end = back + SEND_NS;
    let expected = |sent: u64, kind: &str, brought: u64| {
        vec![
            "100 run on 0".to_owned(),
            format!("110 {sent} bytes from 0 to 1"),
            format!("{there} 4096 bytes {kind} at 1"),
            format!("{back} {brought} bytes from 1 to 0"),
            format!("{end} run on 0"),
        ]
    };
    assert_eq!(traces[0], [expected(4096, "written", 0), expected(0, "read", 4096)].concat());
    assert_eq!(traces[0], traces[1]);
}
