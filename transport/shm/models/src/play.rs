//! A host and a device on the two ends, which submit, answer and sleep as `willow_shm::ring`, `willow-host` and
//! `willow-shm-front` do.

use crate::memory::{End, Memory};
use crate::plant::{Mistake, Plant, Side};
use loom::sync::atomic::AtomicBool;
use loom::thread::{self, Thread};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use willow_shm::layout::{AT_COMPLETION_HEAD, AT_SUBMISSION_HEAD, Call, Command, Layout, Operation, Outcome};
use willow_shm::rings::device::{self, DeviceRings, Taken};
use willow_shm::rings::{HostRings, Words};

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Entries of each ring.
    pub entries: u32,
    /// Commands that may be under way.
    pub depth: u32,
    /// Commands altogether.
    pub commands: u32,
    /// Bytes of arguments of each: with more than 32 it takes two slots.
    pub argument_bytes: usize,
    /// RPCs of each behind its first, with as many bytes of arguments.
    pub more: u8,
    /// Where the device ends commands: in the batch that took them, or after it, the last one first.
    pub at_once: bool,
    /// Most times that a thread is stopped while it could go on; `None` tries all.
    pub preemptions: Option<usize>,
}

impl Shape {
    /// Rings of two entries, one command of one slot under way, two altogether, answered after the batch.
    pub const SMALL: Shape =
        Shape { entries: 2, depth: 1, commands: 2, argument_bytes: 0, more: 0, at_once: false, preemptions: Some(2) };
}

/// One end's doorbell: rings are kept until they are waited for. It orders nothing between the threads, which is less than the
/// socket does.
struct Doorbell {
    rung: AtomicBool,
    /// Who waits. Loom runs one thread at a time and stops it at loom's own operations alone.
    waits: RefCell<Option<Thread>>,
}

impl Doorbell {
    fn new() -> Rc<Self> {
        Rc::new(Doorbell { rung: AtomicBool::new(false), waits: RefCell::new(None) })
    }

    fn ring(&self) {
        self.rung.swap(true, Ordering::Relaxed);
        let waits = self.waits.take();
        if let Some(waits) = waits {
            waits.unpark();
        }
    }

    fn wait(&self) {
        while !self.rung.swap(false, Ordering::Relaxed) {
            self.waits.replace(Some(thread::current()));
            thread::park();
        }
    }
}

/// What the host writes as a command's data, and what the device answers there.
fn data(tag: u32, answer: bool) -> u64 {
    u64::from(tag) << 1 | u64::from(answer)
}

fn arguments(tag: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|byte| (byte as u8).wrapping_mul(7) ^ tag as u8).collect()
}

/// A command with the RPCs behind its first.
fn command(tag: u32, place: usize, shape: Shape) -> (Command, Vec<Call>) {
    let call = Call::new(tag as u16, 1, 2, &arguments(tag, shape.argument_bytes)).expect("arguments fit");
    let command = Command {
        tag,
        operation: Operation::Rpc,
        more: shape.more,
        payload_offset: place as u32,
        payload_bytes: 0,
        reply_offset: place as u32,
        reply_bytes: 0,
        call,
    };
    (command, vec![call; usize::from(shape.more)])
}

fn host(end: End, layout: Layout, shape: Shape, memory: &Memory, [mine, others]: [&Doorbell; 2]) {
    let early = end.makes(Mistake::HeadBeforeEntry);
    let late = end.makes(Mistake::FlagAfterLook);
    let mut host = HostRings::new(end, layout, shape.depth);
    let mut free: Vec<usize> = (0..shape.depth as usize).rev().collect();
    let mut places = vec![None; shape.commands as usize];
    let (mut submitted, mut completed) = (0, 0);
    while completed < shape.commands {
        let before = (submitted, completed);
        while submitted < shape.commands {
            let (slots, calls) = command(submitted, 0, shape);
            if !host.has_room(slots.slots(&calls)) {
                break;
            }
            let place = free.pop().expect("a place for each command under way");
            memory.write_data(place, data(submitted, false));
            let (command, calls) = command(submitted, place, shape);
            assert!(host.submit(&command, &calls), "room was seen");
            places[submitted as usize] = Some(place);
            submitted += 1;
        }
        if submitted > before.0 && host.must_ring() {
            others.ring();
        }
        loop {
            if early && host.is_ready() {
                host.words().store_half(AT_COMPLETION_HEAD, host.position() as u32 + 1, Ordering::Release);
            }
            let Some(completion) = host.completion().expect("the device writes no nonsense") else { break };
            assert_eq!((completion.outcome, completion.result), (Outcome::Answered, completion.tag + 1));
            let place = places[completion.tag as usize].take().expect("one completion for each command");
            assert_eq!(memory.read_data(place), data(completion.tag, true));
            free.push(place);
            completed += 1;
        }
        if before.1 == completed {
            host.show_head();
            host.ask_for_doorbell();
            let ready = host.is_ready();
            if late {
                host.words().raise_flag();
            }
            if !ready {
                mine.wait();
            }
        }
    }
    assert_eq!(host.under_way(), 0);
}

fn device(end: End, layout: Layout, shape: Shape, memory: &Memory, [mine, others]: [&Doorbell; 2]) {
    let early = end.makes(Mistake::HeadBeforeEntry);
    let late = end.makes(Mistake::FlagAfterLook);
    let late_head = end.makes(Mistake::LateHead);
    let mut device = DeviceRings::new(end, layout, shape.depth, 0);
    device.plant = late_head.then_some(device::Plant::LateHead);
    let (first, calls) = command(0, 0, shape);
    let slots = first.slots(&calls);
    let (mut taken, mut answered) = (0, 0);
    let mut flights = Vec::new();
    while answered < shape.commands {
        let before = answered;
        loop {
            if early && device.is_ready() {
                let next = device.position() as u32 + slots;
                device.words().store_half(AT_SUBMISSION_HEAD, next, Ordering::Release);
            }
            let list = |first: &Call, _| Some(vec![*first]);
            match device.take(list, |calls: &mut Vec<Call>, call| {
                calls.push(*call);
                Some(())
            }) {
                Err(violation) => panic!("an honest host is ended: {violation:?}"),
                Ok(None) => break,
                Ok(Some(Taken::Refused)) => panic!("an honest command is refused"),
                Ok(Some(Taken::Command(flight, command, calls))) => {
                    assert_eq!(command.tag, taken, "commands come in order");
                    let whole = |call: &Call| call.arguments() == arguments(taken, shape.argument_bytes);
                    assert!(calls.len() == usize::from(shape.more) + 1 && calls.iter().all(whole), "{calls:?}");
                    taken += 1;
                    let place = command.payload_offset as usize;
                    assert_eq!(memory.read_data(place), data(command.tag, false));
                    flights.push((flight, command.tag, place));
                }
            }
            if shape.at_once {
                answered += end_all(&mut device, &mut flights, memory);
            }
        }
        device.show_position();
        answered += end_all(&mut device, &mut flights, memory);
        if answered > before {
            if device.wants_doorbell() {
                others.ring();
            }
        } else {
            let asleep = device.fall_asleep();
            if late {
                device.words().raise_flag();
            }
            if asleep {
                mine.wait();
            }
            device.wake();
        }
    }
}

fn end_all(device: &mut DeviceRings<End>, flights: &mut Vec<(u16, u32, usize)>, memory: &Memory) -> u32 {
    let mut ended = 0;
    while let Some((flight, tag, place)) = flights.pop() {
        memory.write_data(place, data(tag, true));
        device.end(flight, Outcome::Answered, 0, tag + 1, 0);
        ended += 1;
    }
    ended
}

/// Runs both ends through every order of events; panics at the first that is not as it must be. Returns how many there were.
pub fn explore(shape: Shape, plant: Option<Plant>) -> u64 {
    let layout = Layout { entries: shape.entries, data_bytes: 4096 };
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = shape.preemptions;
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let memory = Memory::new(&layout, shape.depth as usize);
        let bells = [Doorbell::new(), Doorbell::new()];
        let ends = [Side::Host, Side::Device].map(|side| End::new(&memory, side, plant));
        let [host_end, device_end] = ends;
        let (shared, ringing) = (memory.clone(), bells.clone());
        let other = thread::spawn(move || {
            device(device_end, layout, shape, &shared, [&ringing[1], &ringing[0]]);
        });
        host(host_end, layout, shape, &memory, [&bells[0], &bells[1]]);
        other.join().expect("the device ends well");
    });
    runs.load(Ordering::Relaxed)
}
