//! An end of the rings that keeps to no rule, as a sequence of steps, against an honest other end; and what that end is held to
//! after each step.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::Ordering;
use willow_shm::layout::{
    AT_COMPLETION_HEAD, AT_HOST_ASLEEP, AT_SUBMISSION_HEAD, COMPLETION_WORDS, Call, Command, Completion, HEADER_BYTES,
    Layout, Operation, Outcome, depth_max,
};
use willow_shm::memory::Mapping;
use willow_shm::rings::device::{DeviceRings, Plant, Taken};
use willow_shm::rings::host::HostRings;

pub const ENTRIES: u32 = 16;
pub const DATA_BYTES: u64 = 16384;
/// Shorter than the data area, so that both bounds are met.
const TRANSFER_BYTES_MAX: u32 = 8192;

fn memory() -> (Layout, Mapping, Mapping) {
    let layout = Layout::new(ENTRIES, DATA_BYTES).unwrap();
    let (one, other) = Mapping::pair(layout.bytes()).unwrap();
    (layout, one, other)
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// What a host does, or has the device do.
#[derive(Clone, Debug)]
pub enum HostStep {
    /// A command in the right form at the place where the device looks: operation, bytes of arguments, RPCs behind the first,
    /// payload and reply.
    Command(u8, u8, u8, (u32, u32), (u32, u32)),
    /// The right turn in a slot of anything.
    Publish(u8, [u64; 8]),
    /// A word of the rings or of the data area.
    Word(u16, u64),
    /// A bit of a slot.
    Flip(u8, u8, u8),
    /// Takes all completions, and says so.
    TakeAll,
    /// Says that it took as many as there are, and so many more.
    ShowHead(i8),
    /// Says that it took any number.
    Lie(u32),
    /// Writes the flag of a host that sleeps.
    Flag(u32),
    /// The device takes a command.
    Take,
    /// The device ends one of those under way.
    End(u8),
    /// The device ends one that may not be there.
    EndAny(u16),
    /// The device sleeps and is woken.
    Sleep,
}

fn range() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![
        8 => (0u32..12_000, 0u32..4_000),
        1 => (any::<u32>(), any::<u32>()),
        1 => (Just(DATA_BYTES as u32 - 8), 0u32..16),
    ]
}

pub fn host_step() -> impl Strategy<Value = HostStep> {
    use HostStep::*;
    prop_oneof![
        16 => (prop_oneof![4 => Just(1u8), 1 => 0u8..8], 0u8..66, prop_oneof![4 => Just(0u8), 1 => 0u8..8, 1 => any::<u8>()], range(), range())
            .prop_map(|(operation, arguments, more, payload, reply)| Command(operation, arguments, more, payload, reply)),
        1 => (any::<u8>(), any::<[u64; 8]>()).prop_map(|(slot, words)| Publish(slot, words)),
        1 => (any::<u16>(), any::<u64>()).prop_map(|(at, word)| Word(at, word)),
        1 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(slot, word, bit)| Flip(slot, word, bit)),
        2 => Just(TakeAll),
        1 => (-3i8..1).prop_map(ShowHead),
        1 => any::<u32>().prop_map(Lie),
        1 => any::<u32>().prop_map(Flag),
        16 => Just(Take),
        12 => any::<u8>().prop_map(End),
        1 => any::<u16>().prop_map(EndAny),
        1 => Just(Sleep),
    ]
}

/// How often a sequence reached what it is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSummary {
    pub taken: u64,
    pub refused: u64,
    pub violations: u64,
    /// Commands that waited for a place of their own or of their completion.
    pub full: u64,
}

impl AddAssign for HostSummary {
    fn add_assign(&mut self, more: Self) {
        self.taken += more.taken;
        self.refused += more.refused;
        self.violations += more.violations;
        self.full += more.full;
    }
}

/// The words of a command's slots, as a host may write them: in the right form, whatever they say.
fn put(host: &Mapping, layout: &Layout, position: u64, step: &HostStep) {
    let HostStep::Command(operation, arguments, more, payload, reply) = step else { return };
    let call = Call::new(1, 2, 3, &[*operation; 64][..usize::from(*arguments).min(64)]).unwrap();
    let command = Command {
        tag: position as u32,
        operation: Operation::Nothing,
        more: *more,
        payload_offset: payload.0,
        payload_bytes: payload.1,
        reply_offset: reply.0,
        reply_bytes: reply.1,
        call,
    };
    let calls = vec![call; usize::from(*more).min(4)];
    command.encode(layout.turn(position), &calls, |number, slot| {
        let at = layout.slot(position + u64::from(number));
        for (index, word) in slot.iter().enumerate().rev() {
            // The first slot's second word says operation and bytes of arguments: here those that the step names.
            let named = u64::from(*operation) | u64::from(*arguments) << 8;
            let word = if number == 0 && index == 1 { word & !0xffff | named } else { *word };
            host.word(at + index * 8).store(word, Ordering::Release);
        }
    });
}

/// Plays a host against the device's end; the error says what that end let pass.
pub fn play_host(steps: &[HostStep], plant: Option<Plant>) -> Result<HostSummary, String> {
    let (layout, host, memory) = memory();
    let depth = depth_max(ENTRIES);
    let mut device = DeviceRings::new(memory, layout, depth, TRANSFER_BYTES_MAX);
    device.plant = plant;
    let mut sum = HostSummary::default();
    // Flights under way with tag and payload; completions published.
    let mut flights: BTreeMap<u16, (u32, u32)> = BTreeMap::new();
    let mut published = 0u64;
    for step in steps {
        let mut ended = None;
        match step {
            HostStep::Command(..) => put(&host, &layout, device.position(), step),
            HostStep::Publish(ahead, words) => {
                let position = device.position() + u64::from(*ahead) % 4;
                for (index, word) in words.iter().enumerate().skip(1) {
                    host.word(layout.slot(position) + index * 8).store(*word, Ordering::Relaxed);
                }
                let first = words[0] << 32 | u64::from(layout.turn(position));
                host.word(layout.slot(position)).store(first, Ordering::Release);
            }
            HostStep::Word(at, word) => {
                let words = (layout.bytes() - HEADER_BYTES) / 8;
                host.word(HEADER_BYTES + usize::from(*at) % words * 8).store(*word, Ordering::Relaxed);
            }
            HostStep::Flip(slot, word, bit) => {
                let at = layout.slot(u64::from(*slot)) + usize::from(*word) % 8 * 8;
                host.word(at).fetch_xor(1 << (bit % 64), Ordering::Relaxed);
            }
            HostStep::TakeAll => host.half(AT_COMPLETION_HEAD).store(published as u32, Ordering::Release),
            HostStep::ShowHead(more) => {
                let head = (published as u32).wrapping_add_signed(i32::from(*more));
                host.half(AT_COMPLETION_HEAD).store(head, Ordering::Release);
            }
            HostStep::Lie(head) => host.half(AT_COMPLETION_HEAD).store(*head, Ordering::Release),
            HostStep::Flag(value) => {
                host.half(AT_HOST_ASLEEP).store(*value, Ordering::Relaxed);
                check(device.wants_doorbell() == (*value != 0), || "a doorbell is not sent as asked".to_owned())?;
                check(!device.wants_doorbell(), || "a doorbell is sent twice".to_owned())?;
            }
            HostStep::Take => {
                let (position, seen) = (device.position(), device.accounts().1);
                let waits = device.is_ready();
                let mut calls = 0u64;
                let taken = device.take(
                    |_, more| {
                        calls += 1;
                        Some(u64::from(more))
                    },
                    |more, _| {
                        *more = more.checked_sub(1)?;
                        Some(())
                    },
                );
                match taken {
                    Err(_) => {
                        let passed = host.half(AT_COMPLETION_HEAD).load(Ordering::Acquire).wrapping_sub(seen as u32);
                        check(u64::from(passed) > published - seen, || "an honest host is ended".to_owned())?;
                        sum.violations += 1;
                        break;
                    }
                    Ok(None) => sum.full += u64::from(waits),
                    Ok(Some(Taken::Refused)) => {
                        sum.refused += 1;
                        ended = Some(None);
                    }
                    Ok(Some(Taken::Command(flight, command, rest))) => {
                        sum.taken += 1;
                        check(waits && calls == 1 && rest == 0, || format!("{calls} lists, {rest} calls missing"))?;
                        for (offset, bytes) in [
                            (command.payload_offset, command.payload_bytes),
                            (command.reply_offset, command.reply_bytes),
                        ] {
                            let inside = u64::from(offset) + u64::from(bytes) <= DATA_BYTES;
                            check(inside && bytes <= TRANSFER_BYTES_MAX, || format!("{bytes} bytes at {offset}"))?;
                        }
                        let held = if command.operation == Operation::Rpc { command.payload_bytes } else { 0 };
                        let before = flights.insert(flight, (command.tag, held));
                        check(before.is_none(), || format!("flight {flight} is given twice"))?;
                    }
                }
                let passed = device.position() - position;
                check(passed <= u64::from(ENTRIES), || format!("{passed} slots of one command"))?;
            }
            HostStep::End(which) => {
                if let Some(flight) = flights.keys().nth(usize::from(*which) % flights.len().max(1)).copied() {
                    let (tag, _) = flights.remove(&flight).unwrap();
                    device.end(flight, Outcome::Answered, 1, 2, 3);
                    ended = Some(Some((tag, Outcome::Answered)));
                }
            }
            HostStep::EndAny(flight) => {
                device.end(*flight, Outcome::AppEnded, 1, 2, 3);
                ended = flights.remove(flight).map(|(tag, _)| Some((tag, Outcome::AppEnded)));
            }
            HostStep::Sleep => {
                let asleep = device.fall_asleep();
                check(asleep || device.is_ready(), || "sleep is cancelled for nothing".to_owned())?;
                device.wake();
            }
        }
        if let Some(of) = ended {
            let at = layout.completion(published);
            let words: [u64; COMPLETION_WORDS] =
                std::array::from_fn(|index| host.word(at + index * 8).load(Ordering::Acquire));
            let seen = Completion::decode(&words).map(|completion| (completion.tag, completion.outcome));
            let right = words[0] as u32 == layout.turn(published)
                && of.map_or(seen.is_some_and(|(_, outcome)| outcome == Outcome::Invalid), |of| seen == Some(of));
            check(right, || format!("the completion at {published} is {seen:?}, not of {of:?}"))?;
            let shown = host.half(AT_SUBMISSION_HEAD).load(Ordering::Acquire);
            check(shown == device.position() as u32, || "a completion before its slots are shown as taken".to_owned())?;
            published += 1;
        }
        let (answered, seen_head, payload) = device.accounts();
        check(answered == published, || format!("{answered} answered are counted, {published} were"))?;
        check(device.under_way() == flights.len(), || format!("{} under way are counted", device.under_way()))?;
        check(flights.len() <= depth as usize, || "more commands under way than were granted".to_owned())?;
        check(seen_head <= answered, || format!("{seen_head} are believed to be taken, {answered} were written"))?;
        let reserved = answered - seen_head + flights.len() as u64;
        check(reserved <= u64::from(ENTRIES), || format!("{reserved} completions in a ring of {ENTRIES}"))?;
        let held: u64 = flights.values().map(|(_, bytes)| u64::from(*bytes)).sum();
        check(payload == held && held <= DATA_BYTES, || {
            format!("{payload} bytes of payload are counted, {held} held")
        })?;
    }
    Ok(sum)
}

/// What a device does, or has the host do.
#[derive(Clone, Debug)]
pub enum DeviceStep {
    /// The host submits a command: bytes of arguments, RPCs behind the first.
    Submit(u8, u8),
    /// The next completion, of any tag.
    Complete(u32),
    /// The right turn in an entry of anything, so far ahead.
    Publish(u8, [u64; 4]),
    /// A word of the rings or of the data area.
    Word(u16, u64),
    /// Says that it took so many slots fewer than there are.
    ShowHead(u8),
    /// Says that it took any number of slots.
    Lie(u32),
    /// The host takes a completion.
    Take,
    /// The host shows what it took, asks for a doorbell, and looks.
    Sleep,
}

pub fn device_step() -> impl Strategy<Value = DeviceStep> {
    use DeviceStep::*;
    prop_oneof![
        10 => (0u8..65, prop_oneof![4 => Just(0u8), 1 => 0u8..12]).prop_map(|(arguments, more)| Submit(arguments, more)),
        8 => any::<u32>().prop_map(Complete),
        1 => (any::<u8>(), any::<[u64; 4]>()).prop_map(|(ahead, words)| Publish(ahead, words)),
        1 => (any::<u16>(), any::<u64>()).prop_map(|(at, word)| Word(at, word)),
        4 => (0u8..20).prop_map(ShowHead),
        1 => prop_oneof![9 => Just(ShowHead(0)), 1 => any::<u32>().prop_map(Lie)],
        8 => Just(Take),
        2 => Just(Sleep),
    ]
}

/// How often a sequence reached what it is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceSummary {
    pub submitted: u64,
    pub completions: u64,
    /// Completions that were none.
    pub broken: u64,
    /// Commands that there was no room for.
    pub full: u64,
}

impl AddAssign for DeviceSummary {
    fn add_assign(&mut self, more: Self) {
        self.submitted += more.submitted;
        self.completions += more.completions;
        self.broken += more.broken;
        self.full += more.full;
    }
}

/// Plays a device against the host's end; the error says what that end let pass.
pub fn play_device(steps: &[DeviceStep]) -> Result<DeviceSummary, String> {
    let (layout, device, memory) = memory();
    let depth = depth_max(ENTRIES);
    let mut host = HostRings::new(memory, layout, depth);
    let mut sum = DeviceSummary::default();
    let (mut commands, mut slots, mut completed) = (0u64, 0u64, 0u64);
    // Where the device has said that it is, and whether that was ever impossible.
    let (mut told, mut lied) = (0u64, false);
    for step in steps {
        match step {
            DeviceStep::Submit(arguments, more) => {
                let call = Call::new(1, 2, 3, &[7; 64][..usize::from(*arguments)]).unwrap();
                let calls = vec![call; usize::from(*more)];
                let command = Command {
                    tag: commands as u32,
                    operation: Operation::Rpc,
                    more: *more,
                    payload_offset: 0,
                    payload_bytes: 0,
                    reply_offset: 0,
                    reply_bytes: 0,
                    call,
                };
                let wanted = u64::from(command.slots(&calls));
                let room = commands - completed < u64::from(depth) && slots + wanted - told <= u64::from(ENTRIES);
                let submitted = host.submit(&command, &calls);
                check(lied || submitted == room, || format!("room: {submitted}, should be {room}"))?;
                check(!submitted || wanted <= u64::from(ENTRIES), || "a command longer than the ring".to_owned())?;
                if submitted {
                    let first = device.word(layout.slot(slots)).load(Ordering::Acquire);
                    let right = u64::from(layout.turn(slots)) | commands << 32;
                    check(first == right, || "a command is not where it belongs".to_owned())?;
                    commands += 1;
                    slots += wanted;
                    sum.submitted += 1;
                } else {
                    sum.full += 1;
                }
            }
            DeviceStep::Complete(tag) => {
                let completion =
                    Completion { tag: *tag, outcome: Outcome::Answered, status: 1, result: 2, reply_bytes: 3 };
                let words = completion.encode(layout.turn(host.position()));
                for (index, word) in words.iter().enumerate().rev() {
                    device.word(layout.completion(host.position()) + index * 8).store(*word, Ordering::Release);
                }
            }
            DeviceStep::Publish(ahead, words) => {
                let position = host.position() + u64::from(*ahead) % 3;
                for (index, word) in words.iter().enumerate().skip(1) {
                    device.word(layout.completion(position) + index * 8).store(*word, Ordering::Relaxed);
                }
                let first = words[0] << 32 | u64::from(layout.turn(position));
                device.word(layout.completion(position)).store(first, Ordering::Release);
            }
            DeviceStep::Word(at, word) => {
                let words = (layout.bytes() - HEADER_BYTES) / 8;
                device.word(HEADER_BYTES + usize::from(*at) % words * 8).store(*word, Ordering::Relaxed);
            }
            DeviceStep::ShowHead(behind) => {
                told = told.max(slots.saturating_sub(u64::from(*behind)));
                device.half(AT_SUBMISSION_HEAD).store(told as u32, Ordering::Release);
            }
            DeviceStep::Lie(head) => {
                lied = true;
                device.half(AT_SUBMISSION_HEAD).store(*head, Ordering::Release);
            }
            DeviceStep::Take => {
                let ready = host.is_ready();
                match host.completion() {
                    Ok(None) => check(!ready, || "what is ready is not taken".to_owned())?,
                    Ok(Some(_)) => {
                        check(commands > completed, || "a completion of no command".to_owned())?;
                        completed += 1;
                        sum.completions += 1;
                    }
                    Err(_) => {
                        let at = layout.completion(host.position());
                        let words = std::array::from_fn(|index| device.word(at + index * 8).load(Ordering::Acquire));
                        let is_one = Completion::decode(&words).is_some();
                        check(!is_one || commands == completed, || "a good completion is refused".to_owned())?;
                        sum.broken += 1;
                        break;
                    }
                }
            }
            DeviceStep::Sleep => {
                host.show_head();
                host.ask_for_doorbell();
                let shown = device.half(AT_COMPLETION_HEAD).load(Ordering::Acquire);
                check(shown == completed as u32, || format!("{shown} are shown as taken, {completed} were"))?;
                check(device.half(AT_HOST_ASLEEP).load(Ordering::Relaxed) == 1, || {
                    "no doorbell is asked for".to_owned()
                })?;
            }
        }
        check(host.position() == completed, || "completions are miscounted".to_owned())?;
        check(u64::from(host.under_way()) == commands - completed, || "commands under way are miscounted".to_owned())?;
        check(host.under_way() <= depth, || "more under way than the device grants".to_owned())?;
    }
    Ok(sum)
}
