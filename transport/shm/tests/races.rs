//! Both ends on threads of their own, over memory that both have: honest ones, and one that writes anything at any time. Miri
//! runs these too (`scripts/miri`), with strict provenance, and finds copies that no word of the rings keeps apart.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use willow_shm::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_SUBMISSION_HEAD, Call, Command, Layout, Operation,
    Outcome, depth_max,
};
use willow_shm::memory::Mapping;
use willow_shm::rings::device::{DeviceRings, Taken};
use willow_shm::rings::host::HostRings;

/// What the device's replies go through, as the device has it.
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../../device/src/shared.rs"]
mod shared;

const ENTRIES: u32 = 16;
const DATA_BYTES: u64 = 4096;
const PLACE_BYTES: usize = 64;
/// Miri runs some thousand times slower.
const COMMANDS: u32 = if cfg!(miri) { 40 } else { 2_000 };
const WRITES: u32 = if cfg!(miri) { 400 } else { 20_000 };
const TURNS: u32 = if cfg!(miri) { 200 } else { 5_000 };
const SEEDS_MAX: u64 = 1000;

fn memory() -> (Layout, Mapping, Mapping) {
    let layout = Layout::new(ENTRIES, DATA_BYTES).unwrap();
    let (one, other) = Mapping::pair(layout.bytes()).unwrap();
    (layout, one, other)
}

/// The same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 16
    }
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn command(tag: u32, place: usize) -> Command {
    Command {
        tag,
        operation: Operation::Rpc,
        more: 0,
        payload_offset: (place * PLACE_BYTES) as u32,
        payload_bytes: PLACE_BYTES as u32,
        reply_offset: (place * PLACE_BYTES) as u32,
        reply_bytes: PLACE_BYTES as u32,
        call: Call::new(1, 2, 3, &[tag as u8; 40][..if tag.is_multiple_of(3) { 40 } else { 8 }]).unwrap(),
    }
}

/// Payload and replies are plain copies: the words of the rings alone keep them apart.
#[test]
fn honest_ends_never_race() {
    let (layout, host, device) = memory();
    let depth = depth_max(ENTRIES);
    let serve = std::thread::spawn(move || {
        let mut rings = DeviceRings::new(device, layout, depth, DATA_BYTES as u32);
        let mut answered = 0;
        let mut payload = Vec::new();
        let mut flights = VecDeque::new();
        while answered < COMMANDS {
            match rings.take(|_, _| Some(()), |_, _| Some(())).unwrap() {
                Some(Taken::Command(flight, command, ())) => {
                    payload.clear();
                    let at = layout.data() + command.payload_offset as usize;
                    assert!(rings.words().append_to(at, PLACE_BYTES, &mut payload));
                    assert_eq!(payload, [command.tag as u8; PLACE_BYTES]);
                    flights.push_back((flight, command.tag, at));
                }
                Some(Taken::Refused) => panic!("an honest command is refused"),
                None => {
                    rings.show_position();
                    if let Some((flight, tag, at)) = flights.pop_front() {
                        assert!(rings.words().write(at, &[!tag as u8; PLACE_BYTES]));
                        rings.end(flight, Outcome::Answered, 0, tag, PLACE_BYTES as u32);
                        answered += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
        }
    });
    let mut rings = HostRings::new(host, layout, depth);
    let mut free: Vec<usize> = (0..depth as usize).collect();
    let (mut submitted, mut completed) = (0, 0);
    let mut places = vec![0; COMMANDS as usize];
    while completed < COMMANDS {
        if submitted < COMMANDS && rings.has_room(2) {
            let place = free.pop().unwrap();
            assert!(rings.words().write(layout.data() + place * PLACE_BYTES, &[submitted as u8; PLACE_BYTES]));
            assert!(rings.submit(&command(submitted, place), &[]));
            places[submitted as usize] = place;
            submitted += 1;
        } else if let Some(completion) = rings.completion().unwrap() {
            let place = places[completion.tag as usize];
            let mut reply = [0; PLACE_BYTES];
            assert!(rings.words().read(layout.data() + place * PLACE_BYTES, &mut reply));
            assert_eq!(reply, [!completion.tag as u8; PLACE_BYTES]);
            free.push(place);
            completed += 1;
        } else {
            std::thread::yield_now();
        }
    }
    serve.join().unwrap();
}

/// Writes words of the rings, positions and flags, of the size that both ends use: Rust knows no order for atomics of different
/// sizes at one place.
/// `known` is how far the other end is: its position on the ring that it reads, and the completions that it has written.
fn scribble(memory: &Mapping, layout: &Layout, seed: u64, known: &[AtomicU64; 2], stop: &AtomicBool) {
    let mut random = Random(seed);
    let halves = [AT_SUBMISSION_HEAD, AT_DEVICE_ASLEEP, AT_COMPLETION_HEAD, AT_HOST_ASLEEP];
    while !stop.load(Ordering::Relaxed) {
        let position = known[0].load(Ordering::Relaxed) + random.next() % 3;
        let first = u64::from(layout.turn(position)) | random.next() << 32;
        match random.below(6) {
            0 if random.below(2000) == 0 => {
                memory.half(halves[random.below(4)]).store(random.next() as u32, Ordering::Release);
            }
            0 => memory.half(AT_COMPLETION_HEAD).store(known[1].load(Ordering::Relaxed) as u32, Ordering::Release),
            1 | 2 => memory.word(layout.slot(position)).store(first, Ordering::Release),
            3 => {
                memory.word(layout.completion(position) + 8).store(random.next() % 11, Ordering::Relaxed);
                memory.word(layout.completion(position)).store(first, Ordering::Release);
            }
            4 => {
                let more = if random.below(4) == 0 { random.next() } else { 0 };
                let word = 1 | (random.next() % 66) << 8 | more << 24;
                memory.word(layout.slot(position) + 8).store(word, Ordering::Relaxed);
            }
            _ => {
                let at = layout.slot(0) + random.below((layout.data() - layout.slot(0)) / 8) * 8;
                memory.word(at).store(random.next() & 0x0fff_0000_0fff, Ordering::Relaxed);
            }
        }
    }
}

/// Lets the other thread run where there is one processor for both.
fn give_way(turn: u32) {
    if turn.is_multiple_of(32) {
        std::thread::yield_now();
    }
}

/// Ends the other thread, also where an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_host_that_writes_at_any_time_gets_no_more_than_was_reserved() {
    let mut taken = 0;
    // However the threads are scheduled, until there was one.
    for seed in 0..SEEDS_MAX {
        if seed >= 4 && (taken > 0 || cfg!(miri)) {
            break;
        }
        let (layout, host, device) = memory();
        let depth = depth_max(ENTRIES);
        let (known, stop) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&host, &layout, seed, &known, &stop));
            let _stop = Stop(&stop);
            let mut rings = DeviceRings::new(device, layout, depth, DATA_BYTES as u32);
            let mut flights = VecDeque::new();
            for turn in 0..TURNS {
                give_way(turn);
                match rings.take(|_, _| Some(()), |_, _| Some(())) {
                    // As a host that lies about what it took.
                    Err(_) => break,
                    Ok(Some(Taken::Command(flight, command, ()))) => {
                        assert!(u64::from(command.payload_offset) + u64::from(command.payload_bytes) <= DATA_BYTES);
                        assert!(u64::from(command.reply_offset) + u64::from(command.reply_bytes) <= DATA_BYTES);
                        flights.push_back(flight);
                        taken += 1;
                    }
                    Ok(Some(Taken::Refused)) => {}
                    Ok(None) => {
                        rings.show_position();
                        if let Some(flight) = flights.pop_front() {
                            rings.end(flight, Outcome::Answered, 0, 0, 0);
                        }
                        rings.wants_doorbell();
                        rings.fall_asleep();
                        rings.wake();
                    }
                }
                let (answered, seen_head, _) = rings.accounts();
                known[0].store(rings.position(), Ordering::Relaxed);
                known[1].store(answered, Ordering::Relaxed);
                assert!(flights.len() <= depth as usize && rings.under_way() == flights.len());
                assert!(answered - seen_head + flights.len() as u64 <= u64::from(ENTRIES));
            }
        });
    }
    assert!(cfg!(miri) || taken > 0, "no command was taken");
}

#[test]
fn a_device_that_writes_at_any_time_makes_no_host_miscount() {
    let mut completed = 0;
    // However the threads are scheduled, until there was one.
    for seed in 0..SEEDS_MAX {
        if seed >= 4 && (completed > 0 || cfg!(miri)) {
            break;
        }
        let (layout, host, device) = memory();
        let depth = depth_max(ENTRIES);
        let (known, stop) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&device, &layout, seed, &known, &stop));
            let _stop = Stop(&stop);
            let mut rings = HostRings::new(host, layout, depth);
            let mut under_way = 0;
            for tag in 0..TURNS {
                give_way(tag);
                under_way += u32::from(rings.submit(&command(tag, 0), &[]));
                rings.must_ring();
                rings.ask_for_doorbell();
                match rings.completion() {
                    // A process would give the endpoint up here.
                    Err(_) => {}
                    Ok(Some(_)) => {
                        under_way -= 1;
                        completed += 1;
                    }
                    Ok(None) => rings.show_head(),
                }
                known[0].store(rings.position(), Ordering::Relaxed);
                assert!(rings.under_way() == under_way && under_way <= depth);
            }
        });
    }
    assert!(cfg!(miri) || completed > 0, "no completion was taken");
}

/// The other side writes what is being copied. That is a race by Rust's rules, which know no other processes: Miri runs this
/// one without looking for races (`scripts/miri`), to check that every copy stays inside.
#[test]
fn copies_race_with_the_other_side_and_stay_inside() {
    let (layout, host, device) = memory();
    std::thread::scope(|scope| {
        let scribbling = scope.spawn(|| {
            let mut random = Random(1);
            for _ in 0..WRITES {
                let bytes = [random.next() as u8; 200];
                let at = layout.data() + random.below(DATA_BYTES as usize + 200);
                let inside = at + 200 <= layout.bytes();
                assert_eq!(host.write(at, &bytes), inside);
            }
        });
        let mut random = Random(2);
        while !scribbling.is_finished() {
            let (at, bytes) = (layout.data() + random.below(DATA_BYTES as usize + 300), random.below(300));
            let inside = at + bytes <= layout.bytes();
            let mut into = vec![7];
            assert_eq!(device.append_to(at, bytes, &mut into), inside);
            assert_eq!(into.len(), if inside { bytes + 1 } else { 1 });
            assert_eq!(device.read(at, &mut vec![0; bytes]), inside);
        }
    });
}

struct Memory(Mapping);

// SAFETY: the mapping stays as it is until the value is dropped, and nobody makes Rust references to plain bytes of it.
unsafe impl shared::SharedMemory for Memory {
    fn span(&self) -> (std::ptr::NonNull<u8>, usize) {
        self.0.span()
    }
}

#[test]
fn a_window_keeps_its_memory_and_crosses_threads() {
    let (layout, host, device) = memory();
    let memory: std::sync::Arc<dyn shared::SharedMemory> = std::sync::Arc::new(Memory(device));
    let mut window = shared::SharedWindow::new(memory.clone(), layout.data(), 100).unwrap();
    let mut other = shared::SharedWindow::new(memory, layout.data() + 100, 100).unwrap();
    // The windows are all that is left of the device's end.
    let writing = std::thread::spawn(move || {
        assert!(window.write(0, &[1; 100]) && !window.write(1, &[1; 100]) && !window.write(usize::MAX, &[1; 2]));
        window
    });
    assert!(other.write(50, &[2; 50]));
    drop(other);
    let mut window = writing.join().unwrap();
    let mut bytes = [9; 200];
    assert!(host.read(layout.data(), &mut bytes));
    assert!(bytes[..100] == [1; 100] && bytes[100..150] == [0; 50] && bytes[150..] == [2; 50]);
    drop(host);
    assert!(window.write(0, &[3; 100]));
}
