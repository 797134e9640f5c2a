//! A host that writes anything anywhere in its shared memory, at any moment, against the device's end of it: the oracle that
//! tests run for a moment and `fuzz/` without bounds.
//!
//! What it holds the endpoint to: commands that come out name ranges inside the data area; payload is what lay there when the
//! command was taken, and stays so; no completion is written over one that the host has not taken; what is held never exceeds
//! the endpoint's own memory; a host that claims too much is found out.

use crate::endpoint::{Endpoint, Taken};
use std::sync::atomic::Ordering;
use willow_device::{HostRequest, HreId};
use willow_shm::layout::{
    AT_COMPLETION_HEAD, Call, Command, Completion, HEADER_BYTES, Layout, Operation, SLOT_BYTES, SLOT_WORDS,
};
use willow_shm::memory::Mapping;
pub use willow_shm::rings::device::Plant;

const ENTRIES: u32 = 16;
const DATA_BYTES: u64 = 16384;

/// How often the oracle reached what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Commands for the device.
    pub requests: u64,
    /// Payloads compared.
    pub payloads: u64,
    /// Completions that the host took.
    pub completions: u64,
    /// Endpoints ended for breaking the rules.
    pub violations: u64,
    /// Slots changed between check and use.
    pub changed: u64,
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
    fn number(&mut self) -> u64 {
        let mut number = 0;
        for _ in 0..4 {
            number = number << 8 | u64::from(self.next().unwrap_or(0));
        }
        number
    }
}

/// Plays the host that `bytes` describe; the error says what the endpoint let pass.
pub fn check_host(bytes: &[u8], plant: Option<Plant>) -> Result<Summary, String> {
    let layout = Layout::new(ENTRIES, DATA_BYTES).ok_or("sizes")?;
    let (mapping, descriptor) = Mapping::create(layout.bytes()).map_err(|error| error.to_string())?;
    let host = Mapping::open(&descriptor, layout.bytes()).map_err(|error| error.to_string())?;
    let mut endpoint = Endpoint::new(HreId(1), layout, mapping, ENTRIES / 2);
    endpoint.plant = plant;
    let mut bytes = Bytes(bytes);
    let mut sum = Summary::default();
    let (mut submitted, mut taken) = (0u64, 0u64);
    let mut under_way: Vec<(u16, HostRequest, Vec<u8>)> = Vec::new();
    while let Some(step) = bytes.next() {
        match step % 16 {
            // A command, more or less well formed, at the place where the next one belongs.
            0..=4 => {
                // Where the device looks: what was changed since may have led it elsewhere.
                submitted = submitted.max(endpoint.position());
                if submitted - endpoint.position() > u64::from(ENTRIES) / 2 {
                    continue;
                }
                let argument_bytes = (bytes.number() % 65) as usize;
                let arguments = [step; 64];
                let call = Call::new(1, step, 0, &arguments[..argument_bytes]).ok_or("a call")?;
                let more = if step & 64 != 0 { vec![call; usize::from(step & 3)] } else { Vec::new() };
                let length = |number: u64| (number % 5000) as u32;
                let place = |number: u64| (number % 13_000) as u32;
                let command = Command {
                    tag: submitted as u32,
                    operation: if step & 128 != 0 { Operation::Nothing } else { Operation::Rpc },
                    more: more.len() as u8,
                    payload_offset: place(bytes.number()),
                    payload_bytes: length(bytes.number()),
                    reply_offset: place(bytes.number()),
                    reply_bytes: length(bytes.number()),
                    call,
                };
                command.encode(layout.turn(submitted), &more, |number, slot| {
                    let at = layout.slot(submitted + u64::from(number));
                    slot.iter().enumerate().for_each(|(index, word)| {
                        host.word(at + index * 8).store(*word, Ordering::Relaxed);
                    });
                });
                submitted += u64::from(command.slots(&more));
            }
            // Anything, anywhere: header, rings, data.
            5 if step & 0x30 == 0 => {
                let at = bytes.number() as usize % (layout.bytes() / 8);
                host.word(at * 8).store(bytes.number() << 32 | bytes.number(), Ordering::Relaxed);
            }
            6 if step & 0x30 == 0 => {
                let at = HEADER_BYTES + bytes.number() as usize % (SLOT_BYTES * ENTRIES as usize / 8) * 8;
                host.word(at).fetch_xor(1 << (bytes.number() % 64), Ordering::Relaxed);
            }
            // Takes completions, and says so, or says anything.
            7..=8 => {
                while let Some(completion) = next(&host, &layout, taken) {
                    completion.map_err(|()| "a completion that is none".to_owned())?;
                    taken += 1;
                    sum.completions += 1;
                    if taken > endpoint.accounts().0 {
                        // The host has forged its own completions.
                        taken = endpoint.accounts().0;
                        break;
                    }
                }
                let lie = step & 0xf0 == 0xf0;
                let head = if lie { bytes.number() as u32 } else { taken as u32 };
                host.half(AT_COMPLETION_HEAD).store(head, Ordering::Release);
            }
            // The device takes a command; the host changes its slots at the worst moment.
            9..=12 => {
                let before = under_way.len();
                let changes = bytes.number();
                let result = endpoint.take(|| {
                    if changes.is_multiple_of(2) {
                        for slot in 0..u64::from(ENTRIES) {
                            host.word(layout.slot(slot) + 16).store(u64::MAX, Ordering::Relaxed);
                        }
                        sum.changed += 1;
                    }
                    Vec::new()
                });
                match result {
                    Err(_) => {
                        sum.violations += 1;
                        break;
                    }
                    Ok(None) => {}
                    Ok(Some(Taken::Request(flight, request, window))) => {
                        sum.requests += 1;
                        let reply = request.reply_bytes as usize;
                        if window.as_ref().map_or(0, |window| window.bytes()) != reply || reply as u64 > DATA_BYTES {
                            return Err(format!("a reply of {reply} bytes outside of the data area"));
                        }
                        if request.buffer.len() != request.payload_bytes as usize
                            || request.buffer.len() as u64 > DATA_BYTES
                        {
                            return Err(format!("a payload of {} bytes", request.payload_bytes));
                        }
                        sum.payloads += u64::from(!request.buffer.is_empty());
                        let seen = request.buffer.clone();
                        under_way.push((flight, request, seen));
                    }
                    Ok(Some(
                        Taken::Receive(flight, ..)
                        | Taken::Answer(flight, ..)
                        | Taken::View(flight, _)
                        | Taken::Abort(flight, _),
                    )) => endpoint.end(flight, willow_shm::layout::Outcome::Nothing, 0, 0, 0),
                    Ok(Some(Taken::Done)) => {}
                }
                if under_way.len() > before + 1 || under_way.len() > ENTRIES as usize / 2 {
                    return Err("more commands under way than were granted".to_owned());
                }
            }
            // The device ends one.
            _ if !under_way.is_empty() => {
                let at = usize::from(step) % under_way.len();
                let (flight, request, seen) = under_way.swap_remove(at);
                if request.buffer != seen {
                    return Err("a payload changed after it was taken".to_owned());
                }
                endpoint.end(flight, willow_shm::layout::Outcome::Answered, 0, 0, request.reply_bytes);
            }
            _ => {}
        }
        let (answered, seen_head, payload) = endpoint.accounts();
        if seen_head > answered {
            return Err(format!("{seen_head} completions are believed to be taken, {answered} were written"));
        }
        if answered - seen_head + endpoint.under_way() as u64 > u64::from(ENTRIES) {
            return Err("completions are written over ones that were not taken".to_owned());
        }
        if payload > DATA_BYTES {
            return Err(format!("{payload} bytes of payload are held for an endpoint of {DATA_BYTES}"));
        }
    }
    Ok(sum)
}

/// The next completion as an honest host reads it; `Err` where it is none.
fn next(host: &Mapping, layout: &Layout, taken: u64) -> Option<Result<Completion, ()>> {
    let at = layout.completion(taken);
    let words: [u64; 4] = std::array::from_fn(|index| host.word(at + index * 8).load(Ordering::Acquire));
    if words[0] as u32 != layout.turn(taken) {
        return None;
    }
    // Hosts that write into their own completions may find them senseless.
    Some(Ok(Completion::decode(&words)?))
}

const _: () = assert!(SLOT_WORDS * 8 == SLOT_BYTES);
