//! Accelerators as apps use them: the literals accelerator finds what there is at every port, reads only what a DMA could read, and keeps within
//! its bounds; what accelerators did is counted.

mod common;
use common::shared::Shared;
use common::users::*;
use common::*;
use willow_device::clock::{Accelerator, Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::statistics::AppStatistics;
use willow_device::{DeviceConfig, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const LOCAL: u32 = 0;
const NETWORK: u32 = 2;
const ARGUMENT: u32 = -2i32 as u32;
const RANGE: u32 = -3i32 as u32;
const FULL: u32 = -6i32 as u32;
/// Inline arguments of a search.
const ARGUMENT_BYTES: u64 = 28;
/// Where the app's local text is.
const TEXT: u64 = 0x8000;
const LINES: u32 = 2 | 0x0a00;

/// Handler 1 searches: inline arguments u64 address, u32 bytes, port, state, most, set; what is found goes to the reply. 2 loads the set in the
/// payload with the flags in its argument: the handle. 3 frees a set. 4 takes the payload for its local text.
const SEARCHER: &str = r#"(global $token (mut i32) (i32.const 0)) (global $most (mut i32) (i32.const 0))
    (func $start (param i32 i32) (result i32) (local $code i32) (local $bytes i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 28)))
            (global.set $token (local.get 0)) (global.set $most (i32.load (i32.const 20)))
            (memory.fill (i32.const 64) (i32.const 0xee) (i32.const 16384))
            (local.set $code (call $literals_find (local.get 0) (i32.load (i32.const 24)) (i32.load (i32.const 12)) (i64.load (i32.const 0))
                (i32.load (i32.const 8)) (i32.load (i32.const 16)) (i32.const 64) (global.get $most) (i32.const 5)))
            (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (i32.const 5) (i64.extend_i32_s (local.get $code)))))
            (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (local.set $bytes (call $receive_bytes (local.get 0) (i32.const 0x8000) (i32.const 0x8000)))
            (local.set $code (call $literals_load (i32.const 0x8000) (local.get $bytes) (i32.load (i32.const 0))))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (local.set $code (call $literals_free (i32.load (i32.const 0))))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0x8000) (i32.const 0x8000)))))
        (call $respond (local.get 0) (i32.const 0) (local.get $code)) (i32.const 0))
    (func $complete (param i32 i64)
        (if (i32.ne (local.get 0) (i32.const 5)) (then (return)))
        (drop (call $dma (global.get $token) (i32.const 0) (i64.const 64) (i32.const 2) (i64.const 0)
            (i32.add (i32.const 12) (i32.mul (global.get $most) (i32.const 12))) (i32.const 6)))
        (call $respond (global.get $token) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

fn written(literals: &[&[u8]]) -> Vec<u8> {
    literals.iter().flat_map(|literal| [&(literal.len() as u32).to_le_bytes(), *literal].concat()).collect()
}

/// What a search came to: its code; found, looked at, state; and the matches.
type Found = (u32, [u32; 3], Vec<(u32, u32, u32)>);

#[derive(Clone, Copy)]
struct Search {
    port: u32,
    address: u64,
    bytes: u32,
    state: u32,
    most: u32,
    set: u32,
}

struct World {
    users: Users,
    alice: User,
    searcher: u16,
}

impl World {
    fn under(timing: Option<Box<dyn Timing>>) -> World {
        let config = DeviceConfig { user_instruction_budget: 2_000_000, ..config(2) };
        let mut users = Users::under(timing, config, 4 << 20);
        let alice = users.user(1000);
        let searcher = users.install_for(alice.hre, &app("searcher", SEARCHER, "")).expect("an app");
        World { users, alice, searcher }
    }

    fn load(&mut self, literals: &[&[u8]], flags: u32) -> u32 {
        let hre = self.alice.hre;
        let done = self.users.rig.call_on(hre, (self.searcher, 2, 0), &flags.to_le_bytes(), &written(literals), 0);
        assert_eq!(done.outcome, ANSWERED);
        done.result
    }

    fn begin(&mut self, search: Search, payload: &[u8]) {
        let Search { port, address, bytes, state, most, set } = search;
        let mut arguments = address.to_le_bytes().to_vec();
        [bytes, port, state, most, set].iter().for_each(|word| arguments.extend(word.to_le_bytes()));
        let (hre, searcher) = (self.alice.hre, self.searcher);
        self.users.rig.begin(hre, (searcher, 1, 0), &arguments, payload, 12 + 12 * most.min(1000));
    }

    fn ended(&mut self, most: u32) -> Found {
        let done = self.users.completion().expect("it has ended");
        assert_eq!(done.outcome, ANSWERED);
        let words: Vec<u32> = done.buffer[..done.reply_bytes as usize]
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four")))
            .collect();
        // One whose result finds no room in the reply brings none.
        let Some((head, _)) = words.split_first_chunk::<3>() else { return (done.result, [0xeeee_eeee; 3], vec![]) };
        let head = *head;
        let count = if done.result == 0 { head[0].min(most) as usize } else { 0 };
        let matches = words[3..].chunks(3).take(count).map(|word| (word[0], word[1], word[2])).collect();
        (done.result, head, matches)
    }

    fn search(&mut self, search: Search, payload: &[u8]) -> Found {
        self.begin(search, payload);
        self.users.rig.settle();
        self.ended(search.most)
    }

    fn app(&self) -> AppStatistics {
        let apps = self.users.rig.device.statistics().apps;
        apps.into_iter().find(|app| app.name == "u1000-searcher").expect("the app")
    }
}

fn world() -> World {
    World::under(None)
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| if at % 61 == 60 { b'\n' } else { b'a' + (at * at / 7 % 13) as u8 }).collect()
}

#[test]
fn literals_are_found_at_every_port_and_a_search_goes_on_where_it_stopped() {
    let mut world = world();
    let mut long = text(200_000);
    // Across the borders of the pieces in which a bank is read, and at both ends.
    let needle = b"needle in it";
    let places = [0usize, 5000, 32_768 - 5, 65_536 - 12, 98_304 - 1, 131_072, 199_988];
    places.iter().for_each(|at| long[*at..at + needle.len()].copy_from_slice(needle));
    let alice = world.alice.hre;
    world.users.grant(&User { process: world.alice.process, hre: alice }, READ | WRITE, 0, 262_144);
    let mover = world.users.mover;
    assert_eq!(world.users.write(world.users.rig.hre, mover, 0, &long), (ANSWERED, 0));
    let set = world.load(&[b"NEEDLE IN", b"in it", b"needle in it"], 1);
    assert_eq!(set, 1);
    let expected: Vec<(u32, u32, u32)> = places.iter().map(|at| (*at as u32, *at as u32 + 12, 2)).collect();
    let base = world.users.base;
    for (port, address, bytes) in
        [(NV, base, 200_000), (PARKED_NV, base, 200_000), (NETWORK, ARGUMENT_BYTES, 200_000), (LOCAL, TEXT, 8192)]
    {
        if port == LOCAL {
            world.users.rig.call_on(alice, (world.searcher, 4, 0), &[], &long[..8192], 0);
        }
        let wanted: Vec<_> = expected.iter().copied().filter(|(_, end, _)| *end <= bytes).collect();
        for most in [1, 2, 1000] {
            let (mut at, mut found, mut searches) = (0, Vec::new(), 0);
            while at < bytes {
                let payload = if port == NETWORK { &long[..] } else { &[] };
                let search = Search { port, address: address + u64::from(at), bytes: bytes - at, state: 0, most, set };
                let (code, [count, looked_at, state], matches) = world.search(search, payload);
                assert_eq!((code, state, matches.len()), (0, 0, count as usize), "port {port}");
                assert!(looked_at > 0 && count <= most);
                found.extend(matches.iter().map(|(begin, end, literal)| (begin + at, end + at, *literal)));
                (at, searches) = (at + looked_at, searches + 1);
            }
            assert_eq!(found, wanted, "port {port}, {most} at once");
            assert!(searches <= wanted.len() / most as usize + 2, "{searches}");
        }
        // Counted, and not brought.
        let payload = if port == NETWORK { &long[..] } else { &[] };
        let search = Search { port, address, bytes, state: 0, most: 0, set };
        assert_eq!(world.search(search, payload), (0, [wanted.len() as u32, bytes, 0], vec![]));
    }
    let used = world.users.rig.device.statistics().spus[0].accelerators.literals;
    assert!(used.operations > 20 && used.bytes > 4 * 200_000, "{used:?}");
    assert_eq!(world.users.rig.device.statistics().spus[1].accelerators.literals.operations, 0);
}

#[test]
fn a_line_is_told_once_also_across_ranges() {
    let mut world = world();
    let text = b"no\nfoo and foo\nfoo\n\nthe last foo, which goes on";
    let set = world.load(&[b"foo"], LINES);
    let find = |world: &mut World, from: usize, to: usize, state: u32| {
        let search = Search { port: NETWORK, address: ARGUMENT_BYTES, bytes: (to - from) as u32, state, most: 10, set };
        world.search(search, &text[from..to])
    };
    let all = text.len();
    assert_eq!(find(&mut world, 0, all, 0), (0, [3, all as u32, 1], vec![(3, 6, 0), (15, 18, 0), (29, 32, 0)]));
    // Cut in the line that has had its match.
    assert_eq!(find(&mut world, 0, 8, 0), (0, [1, 8, 1], vec![(3, 6, 0)]));
    assert_eq!(find(&mut world, 8, all, 1), (0, [2, all as u32 - 8, 1], vec![(7, 10, 0), (21, 24, 0)]));
    // All of a range may be what is left of the line.
    assert_eq!(find(&mut world, 8, 12, 1), (0, [0, 4, 1], vec![]));
}

#[test]
fn a_search_reads_what_a_dma_could_read_and_nothing_else() {
    let mut world = world();
    let mover = world.users.mover;
    let kernel = world.users.rig.hre;
    assert_eq!(world.users.write(kernel, mover, 0, &[b'x'; 8192]), (ANSWERED, 0));
    let alice = User { process: world.alice.process, hre: world.alice.hre };
    world.users.grant(&alice, READ, 0, 4096);
    world.users.grant(&alice, WRITE, 4096, 4096);
    let set = world.load(&[b"xx"], 0);
    let base = world.users.base;
    let search =
        |start: u64, bytes: u32, port: u32| Search { port, address: base + start, bytes, state: 0, most: 8, set };
    assert_eq!(world.search(search(0, 4096, NV), &[]).0, 0);
    for (start, bytes) in [(1, 4096), (4096, 64), (8192, 64), (0, 262_144), (0u64.wrapping_sub(64), 128)] {
        for port in [NV, PARKED_NV] {
            let (code, head, _) = world.search(search(start, bytes, port), &[]);
            assert_eq!((code, head), (PERMISSION, [0xeeee_eeee; 3]), "{start} {bytes}");
        }
    }
    for (port, code) in [(3, ARGUMENT), (4, ARGUMENT), (NETWORK, RANGE)] {
        assert_eq!(world.search(Search { address: 100_000, ..search(0, 64, port) }, &[]).0, code);
    }
    for (state, most, set) in [(2, 8, set), (0, 8, 0), (0, 8, 2), (0, 8, u32::MAX), (0, 4097, set)] {
        assert_eq!(world.search(Search { state, most, set, ..search(0, 64, NV) }, &[]).0, ARGUMENT);
    }
}

#[test]
fn what_waits_for_the_store_is_searched_when_it_comes_also_with_a_set_that_was_given_up() {
    let mut world = world();
    let alice = User { process: world.alice.process, hre: world.alice.hre };
    world.users.grant(&alice, READ | WRITE, 0, 65_536);
    let mover = world.users.mover;
    let kernel = world.users.rig.hre;
    let mut bytes = text(40_000);
    bytes[39_000..39_006].copy_from_slice(b"needle");
    assert_eq!(world.users.write(kernel, mover, 0, &bytes), (ANSWERED, 0));
    let set = world.load(&[b"needle"], 0);
    world.users.valve.closed.set(true);
    let address = world.users.base;
    world.begin(Search { port: NV, address, bytes: 40_000, state: 0, most: 4, set }, &[]);
    world.users.rig.settle();
    assert_eq!((world.users.valve.waiting(), world.users.rig.device.completion().is_none()), (1, true));
    let freed = world.users.rig.call_on(alice.hre, (world.searcher, 3, 0), &set.to_le_bytes(), &[], 0);
    assert_eq!(freed.result, 0);
    let again = world.users.rig.call_on(alice.hre, (world.searcher, 3, 0), &set.to_le_bytes(), &[], 0);
    assert_eq!(again.result, ARGUMENT);
    world.users.valve.closed.set(false);
    world.users.rig.settle();
    assert_eq!(world.ended(4), (0, [1, 40_000, 0], vec![(39_000, 39_006, 0)]));
}

#[test]
fn sets_are_bounded_and_end_with_the_version_that_loaded_them() {
    let mut world = world();
    for (literals, flags) in [(&[][..], 0), (&[&b""[..]][..], 0), (&[&[b'x'; 1025][..]][..], 0), (&[&b"a"[..]][..], 4)]
    {
        assert_eq!(world.load(literals, flags), ARGUMENT);
    }
    for handle in 1..=16 {
        assert_eq!(world.load(&[b"abc"], 0), handle);
    }
    assert_eq!(world.load(&[b"abc"], 0), FULL);
    let held = world.app().memory_bytes;
    let search = Search { port: NETWORK, address: 0, bytes: 3, state: 0, most: 1, set: 9 };
    assert_eq!(world.search(search, &[]).0, 0);
    // Another app's handles are its own, and another SPU's.
    let on_other = world.users.rig.call_on(world.alice.hre, (world.searcher, 3, 1), &9u32.to_le_bytes(), &[], 0);
    assert_eq!(on_other.result, ARGUMENT);
    let other = world.users.install_for(world.alice.hre, &app("other", SEARCHER, "")).expect("an app");
    let freed = world.users.rig.call_on(world.alice.hre, (other, 3, 0), &9u32.to_le_bytes(), &[], 0);
    assert_eq!(freed.result, ARGUMENT);
    let again = world.users.install_for(world.alice.hre, &app("searcher", SEARCHER, "")).expect("an app");
    assert_eq!(again, world.searcher);
    assert_eq!(world.search(search, &[]).0, ARGUMENT);
    assert!(world.app().memory_bytes < held, "{} {held}", world.app().memory_bytes);
    assert_eq!(world.load(&[b"abc"], 0), 1);
}

/// A search's text and literals are chosen so that each place is a candidate which the whole literal is read for.
#[test]
fn the_worst_text_costs_a_bounded_search_and_is_charged() {
    let mut world = world();
    let alice = User { process: world.alice.process, hre: world.alice.hre };
    world.users.grant(&alice, READ | WRITE, 0, 262_144);
    let mover = world.users.mover;
    let kernel = world.users.rig.hre;
    assert_eq!(world.users.write(kernel, mover, 0, &[b'a'; 262_144]), (ANSWERED, 0));
    let long = [vec![b'a'; 300], vec![b'b']].concat();
    let set = world.load(&[&long], 0);
    let (base, mut at, mut searches) = (world.users.base, 0, 0);
    while at < 262_144 {
        let before = world.app().counters.host_work;
        let search = Search { port: NV, address: base + at, bytes: 262_144 - at as u32, state: 0, most: 4, set };
        let (code, [found, looked_at, _], _) = world.search(search, &[]);
        assert!(code == 0 && found == 0 && looked_at > 2048, "{code} {found} {looked_at}");
        let work = world.app().counters.host_work - before;
        // What is searched when the store has brought it is charged to its account alone, in the order of requests.
        let charged = is_on_flash() || looked_at < 8192 || work > 50_000;
        assert!(work <= 110_000 && charged, "{work} for {looked_at}");
        at += u64::from(looked_at);
        searches += 1;
    }
    assert!(searches > 10, "{searches}");
}

/// Handler 1 looks for a key: inline arguments u64 address, u32 port, key bytes, stride, count, order, zero, the key. The answer is what came of it.
const FINDER: &str = r#"(global $token (mut i32) (i32.const 0))
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 64)))
        (global.set $token (local.get 0))
        (i32.store (i32.const 1024) (i32.const 0x64636261))
        (local.set $code (call $keys_find (local.get 0) (i32.load (i32.const 8)) (i64.load (i32.const 0)) (i32.load (i32.const 12))
            (i32.load (i32.const 16)) (i32.load (i32.const 20)) (i32.load (i32.const 24)) (i32.const 32) (i32.const 5)))
        (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (i32.const 5) (i64.extend_i32_s (local.get $code)))))
        (i32.const 0))
    (func $complete (param i32 i64) (call $respond (global.get $token) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

/// Has an app look for a key; `None` where the store makes it wait.
fn find_key(
    users: &mut Users,
    (hre, finder): (willow_device::HreId, u16),
    at: (u32, u64),
    words: [u32; 4],
    key: &[u8],
) -> Option<u32> {
    let mut arguments = at.1.to_le_bytes().to_vec();
    arguments.extend(at.0.to_le_bytes());
    words.iter().chain(&[0]).for_each(|word| arguments.extend(word.to_le_bytes()));
    arguments.extend(key);
    arguments.resize(64, 0);
    users.rig.begin(hre, (finder, 1, 0), &arguments, &[], 0);
    users.rig.settle();
    let done = users.completion()?;
    assert_eq!(done.outcome, ANSWERED);
    Some(done.result)
}

#[test]
fn keys_are_found_in_nodes_that_the_process_may_read() {
    for waits in [false, true] {
        let mut users = Users::with_namespace(config(2), 4 << 20);
        let alice = users.user(1000);
        let finder = users.install_for(alice.hre, &app("finder", FINDER, "")).expect("an app");
        // A node of 200 keys of 16 bytes, each with 4 bytes behind it.
        let node: Vec<u8> =
            (0..200u32).flat_map(|key| [&[0; 12][..], &(key * 3).to_be_bytes(), &[0xff; 4]].concat()).collect();
        let (kernel, mover, base) = (users.rig.hre, users.mover, users.base);
        assert_eq!(users.write(kernel, mover, 0, &node), (ANSWERED, 0));
        users.grant(&alice, READ, 0, 4096);
        users.valve.closed.set(waits);
        let app = (alice.hre, finder);
        let mut find = |at: (u32, u64), words: [u32; 4], key: &[u8]| {
            let at_once = find_key(&mut users, app, at, words, key);
            at_once.unwrap_or_else(|| {
                assert!(waits && users.valve.waiting() == 1);
                users.valve.closed.set(false);
                users.rig.settle();
                users.valve.closed.set(true);
                users.completion().expect("it has ended").result
            })
        };
        let key = |number: u32| [&[0; 12][..], &number.to_be_bytes()].concat();
        for (number, place, equal) in [(0, 0, 1), (1, 1, 0), (300, 100, 1), (301, 101, 0), (597, 199, 1), (598, 200, 0)]
        {
            assert_eq!(find((NV, base), [16, 20, 200, 0], &key(number)), 2 + 2 * place + equal);
            let place = if equal == 1 { place } else { 200 };
            assert_eq!(find((NV, base), [16, 20, 200, 1], &key(number)), 2 + 2 * place + equal);
        }
        assert_eq!(find((NV, base), [16, 20, 0, 0], &key(5)), 2);
        assert_eq!(find((LOCAL, 1024), [1, 1, 4, 0], b"c"), 2 + 2 * 2 + 1);
        // The request's body begins with the arguments: the key itself is there.
        assert_eq!(find((NETWORK, 32), [16, 16, 1, 1], &key(77)), 3);
        for (at, words, code) in [
            ((NV, base), [16, 20, 206, 0], PERMISSION),
            ((NV, base + 1), [16, 4080, 2, 0], PERMISSION),
            ((NV, base + 4096), [1, 1, 1, 0], PERMISSION),
            ((NETWORK, 64), [1, 1, 1, 0], RANGE),
            ((NV, base), [0, 20, 200, 0], ARGUMENT),
            ((NV, base), [257, 300, 1, 0], ARGUMENT),
            ((NV, base), [16, 15, 200, 0], ARGUMENT),
            ((NV, base), [16, 16, 4097, 0], ARGUMENT),
            ((NV, base), [16, 20, 200, 2], ARGUMENT),
            ((3, 0), [16, 20, 2, 0], ARGUMENT),
        ] {
            assert_eq!(find(at, words, &key(0)), code, "{at:?} {words:?}");
        }
        let used = users.rig.device.statistics().spus[0].accelerators.keys;
        // In order at most 8 comparisons, in no order 200.
        assert!(used.operations == 15 && used.bytes > 3 * 200 * 16 && used.bytes < 16 * (7 * 200 + 7 * 8), "{used:?}");
    }
}

/// Each step takes 100 ns, and accelerators 1 ns a byte; tells what they were asked for.
#[derive(Clone, Default)]
struct Even {
    accelerated_bytes: Shared<u64>,
}

impl Timing for Even {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100, message.id);
    }
    fn dma(&mut self, at_ns: u64, _: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 100)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        let bytes = Accelerator::ALL.iter().map(|accelerator| work.accelerated.of(*accelerator)).sum::<u64>();
        self.accelerated_bytes.set(self.accelerated_bytes.get() + bytes);
        at_ns + 100 + bytes
    }
}

#[test]
fn under_a_model_of_time_a_search_takes_the_accelerator() {
    let even = Even::default();
    let mut world = World::under(Some(Box::new(even.clone())));
    let extents = Users::extents(world.alice.process, &[(0, READ, world.users.base, 65_536)]);
    let granted = world.users.rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &extents, 0);
    assert_eq!((granted.outcome, granted.result), (ANSWERED, 1));
    let set = world.load(&[b"needle"], 0);
    assert_eq!((set, even.accelerated_bytes.get()), (1, 10));
    let address = world.users.base;
    for (port, address, payload) in
        [(NV, address, vec![]), (NETWORK, ARGUMENT_BYTES, vec![0; 20_000]), (LOCAL, TEXT + 64, vec![])]
    {
        let before = even.accelerated_bytes.get();
        let search = Search { port, address, bytes: 20_000, state: 0, most: 4, set };
        assert_eq!(world.search(search, &payload), (0, [0, 20_000, 0], vec![]));
        assert_eq!(even.accelerated_bytes.get() - before, 20_000);
    }
}

/// Handler 1 compares 512 bytes of NV memory, from the address in its inline arguments on, with the payload; 2 sums them; 3 looks among them for
/// the last of 32 keys in no order; 4 counts those of a literal. The answer is what came of it.
const USER_OF_ALL: &str = r#"(global $token (mut i32) (i32.const 0)) (global $kind (mut i32) (i32.const 0))
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 24)))
        (global.set $token (local.get 0)) (global.set $kind (local.get 1))
        (if (i32.eq (local.get 1) (i32.const 1)) (then (local.set $code
            (call $compare (local.get 0) (i64.load (i32.const 0)) (i64.const 24) (i32.const 512) (i32.const 5)))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then (local.set $code
            (call $checksum (local.get 0) (i32.const 1) (i64.load (i32.const 0)) (i32.const 512) (i32.const 0) (i32.const 5)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then (local.set $code
            (call $keys_find (local.get 0) (i32.const 1) (i64.load (i32.const 0)) (i32.const 16) (i32.const 16) (i32.const 32) (i32.const 1)
                (i32.const 8) (i32.const 5)))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (i32.store (i32.const 64) (i32.const 2)) (i32.store16 (i32.const 68) (i32.const 0x1f1f))
            (local.set $code (call $literals_find (local.get 0) (call $literals_load (i32.const 64) (i32.const 6) (i32.const 0)) (i32.const 1)
                (i64.load (i32.const 0)) (i32.const 512) (i32.const 0) (i32.const 128) (i32.const 0) (i32.const 5)))))
        (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (i32.const 5) (i64.extend_i32_s (local.get $code)))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (global.get $token) (i32.const 0)
            (select (i32.load (i32.const 128)) (i32.wrap_i64 (local.get 1)) (i32.eq (global.get $kind) (i32.const 4)))))"#;

#[test]
fn under_a_model_of_time_what_waits_for_the_store_comes_to_the_same_and_takes_as_long() {
    let even = Even::default();
    let mut users = Users::under(Some(Box::new(even.clone())), config(1), 4 << 20);
    let kernel = users.rig.hre;
    let user_of_all = users.rig.install(&app("all", USER_OF_ALL, "")).expect("an app");
    let keys: Vec<u8> = (0..512u32).map(|at| (at / 16) as u8).collect();
    let mover = users.mover;
    assert_eq!(users.write(kernel, mover, 0, &keys), (ANSWERED, 0));
    let mut arguments = users.base.to_le_bytes().to_vec();
    arguments.extend([31; 16]);
    // Sixteen bytes of the last key: eight times two.
    for (handler, result, bytes) in
        [(1, 0, 512), (2, crc32c::crc32c(&keys), 0), (3, 2 + 2 * 31 + 1, 512), (4, 8, 6 + 512)]
    {
        let mut seen = Vec::new();
        for waits in [false, true] {
            users.valve.closed.set(waits);
            let (begin_ns, before) = (users.rig.now_ns, even.accelerated_bytes.get());
            users.rig.device.set_time(begin_ns);
            users.rig.begin(kernel, (user_of_all, handler, 0), &arguments, &keys, 0);
            users.rig.settle();
            assert_eq!((users.valve.waiting(), users.valve.closed.get()), (usize::from(waits), waits));
            users.valve.closed.set(false);
            users.rig.settle();
            let done = users.completion().expect("it has ended");
            assert_eq!((done.outcome, done.result), (ANSWERED, result), "handler {handler}");
            seen.push((done.at_ns - begin_ns, even.accelerated_bytes.get() - before));
        }
        assert_eq!(seen[0], seen[1], "handler {handler}: beside the same that waits");
        assert_eq!(seen[0].1, bytes, "handler {handler}");
    }
}
