//! A SATA port between the host's block layer and the drive: table `[sata]` of a preset (OpenSSD, section 2.1).
//!
//! ```text
//! block layer's queue  ->  tags  ->  FIFO of reads   ->  ring of read frames   ->  FTL
//!   (merges)                         FIFO of writes  ->  ring of write frames  ->  FTL
//!                                    all else: alone, once both have drained
//! ```
//!
//! What always holds:
//! - requests are merged only while they wait in the block layer's queue, only with neighbours of their own kind, and never beyond the cap;
//! - commands leave the queue in its order; at most `commands_max` have a tag;
//! - a write is told as done when its data is in the ring; its frames are free again once the FTL has programmed them, and frames are given back
//!   in the order in which they were taken, since the ring is circular;
//! - a command that is neither read nor write begins when nothing else is under way, and nothing begins until it has ended.
//!
//! Who may call it: the driver ([`crate::simulation`]). It knows neither time nor device.

use crate::operation::Operation;
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use willow_device::HreId;

/// Most commands with a tag: native command queueing has 32.
const COMMANDS_MAX: u32 = 32;
/// Most bytes of a ring.
const RING_BYTES_MAX: u64 = 1 << 32;

/// Table `[sata]` of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SataParameters {
    /// Commands that the host has given to the drive and that have not ended.
    pub commands_max: u32,
    /// Bytes of a frame of the SATA buffer. A command takes each frame that it touches.
    pub frame_bytes: u32,
    /// Frames for reads.
    pub read_frames: u32,
    /// Frames for writes.
    pub write_frames: u32,
}

impl SataParameters {
    /// Checks the values; the error names field, value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=COMMANDS_MAX).contains(&self.commands_max) {
            return Err(format!("sata.commands_max is {}, expected 1 to {COMMANDS_MAX} commands", self.commands_max));
        }
        if !self.frame_bytes.is_power_of_two() || !(512..=1 << 20).contains(&self.frame_bytes) {
            let frame = self.frame_bytes;
            return Err(format!("sata.frame_bytes is {frame}, expected a power of two from 512 to 1048576 bytes"));
        }
        for (field, frames) in [("read_frames", self.read_frames), ("write_frames", self.write_frames)] {
            let most = RING_BYTES_MAX / u64::from(self.frame_bytes);
            if frames == 0 || u64::from(frames) > most {
                return Err(format!("sata.{field} is {frames}, expected 1 to {most} frames"));
            }
        }
        Ok(())
    }
}

/// What the port tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    Write,
    /// It waits until reads and writes have drained.
    Other,
}

impl Kind {
    fn of(operation: &Operation) -> Kind {
        match operation {
            Operation::Read { .. } => Kind::Read,
            Operation::Write { .. } => Kind::Write,
            _ => Kind::Other,
        }
    }
}

/// A generator's slot: (generator, slot).
pub(crate) type Member = (u32, u32);

/// A command: one operation of the drive, which stands for all requests that were merged into it.
#[derive(Debug)]
pub(crate) struct Command {
    pub operation: Operation,
    pub hre: HreId,
    /// Who waits for it; empty once they have been told.
    pub members: Vec<Member>,
    has_tag: bool,
    /// Tells it from others of the same number, before and after.
    pub serial: u32,
}

/// A circular buffer of frames.
#[derive(Debug, Default)]
struct Ring {
    frames: u32,
    taken: u32,
    /// Command, its frames, whether it is done with them; oldest first.
    order: VecDeque<(u32, u32, bool)>,
}

impl Ring {
    /// Whether there is room. What is larger than the ring goes through it alone.
    fn has_room(&self, frames: u32) -> bool {
        self.taken == 0 || self.taken.saturating_add(frames) <= self.frames
    }

    fn take(&mut self, command: u32, frames: u32) {
        self.taken = self.taken.saturating_add(frames);
        self.order.push_back((command, frames, false));
    }

    /// A command is done with its frames: they are free when those before them are.
    fn give_back(&mut self, command: u32) {
        if let Some(entry) = self.order.iter_mut().find(|(of, _, done)| *of == command && !done) {
            entry.2 = true;
        }
        while let Some(&(_, frames, true)) = self.order.front() {
            self.order.pop_front();
            self.taken -= frames;
        }
    }
}

/// The port and the block layer's queue before it.
#[derive(Debug)]
pub(crate) struct SataPort {
    parameters: SataParameters,
    /// Most bytes of a merged request; 0: none is merged.
    merge_bytes_max: u32,
    commands: Vec<Option<Command>>,
    free: Vec<u32>,
    /// The block layer's queue.
    queue: VecDeque<u32>,
    /// Those of it that may grow, by kind and first byte, and by kind and end.
    begins: BTreeMap<(Kind, u64), u32>,
    ends: BTreeMap<(Kind, u64), u32>,
    tags: u32,
    /// Commands that wait for frames: of reads, of writes.
    fifos: [VecDeque<u32>; 2],
    rings: [Ring; 2],
    /// Commands that the drive works on.
    under_way: u32,
    /// A command that is neither read nor write is under way.
    alone: bool,
    /// The drive took no more; until something has ended.
    blocked: bool,
    /// Requests that came, and commands that they became.
    pub requests: u64,
    /// See `requests`.
    pub sent: u64,
}

impl SataPort {
    pub fn new(parameters: SataParameters, merge_bytes_max: u32) -> SataPort {
        let ring = |frames| Ring { frames, ..Ring::default() };
        SataPort {
            parameters,
            merge_bytes_max,
            commands: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            begins: BTreeMap::new(),
            ends: BTreeMap::new(),
            tags: 0,
            fifos: Default::default(),
            rings: [ring(parameters.read_frames), ring(parameters.write_frames)],
            under_way: 0,
            alone: false,
            blocked: false,
            requests: 0,
            sent: 0,
        }
    }

    /// A request comes out of the host's software. With `merges` it went through the block layer.
    pub fn take(&mut self, operation: Operation, hre: HreId, member: Member, merges: bool) {
        self.requests += 1;
        let (kind, range) = (Kind::of(&operation), range_of(&operation));
        let mergeable = merges && kind != Kind::Other && self.merge_bytes_max > 0;
        if mergeable && let Some(merged) = self.merge(kind, range) {
            self.command_mut(merged).members.push(member);
            return;
        }
        let command = Command { operation, hre, members: vec![member], has_tag: false, serial: self.requests as u32 };
        let number = match self.free.pop() {
            Some(number) => {
                self.commands[number as usize] = Some(command);
                number
            }
            None => {
                self.commands.push(Some(command));
                self.commands.len() as u32 - 1
            }
        };
        self.queue.push_back(number);
        if mergeable {
            self.begins.insert((kind, range.0), number);
            self.ends.insert((kind, range.1), number);
        }
    }

    /// Makes a waiting neighbour of the same kind longer by a range; which.
    fn merge(&mut self, kind: Kind, (begin, end): (u64, u64)) -> Option<u32> {
        let behind = self.ends.get(&(kind, begin)).copied();
        let number = behind.or_else(|| self.begins.get(&(kind, end)).copied())?;
        let (first, last) = range_of(&self.command_mut(number).operation);
        let (first, last) = (first.min(begin), last.max(end));
        if last - first > u64::from(self.merge_bytes_max) {
            return None;
        }
        self.forget(number);
        let bytes = (last - first) as u32;
        self.command_mut(number).operation = match kind {
            Kind::Read => Operation::Read { offset: first, bytes },
            _ => Operation::Write { offset: first, bytes },
        };
        self.begins.insert((kind, first), number);
        self.ends.insert((kind, last), number);
        Some(number)
    }

    /// A command does not grow any more.
    fn forget(&mut self, number: u32) {
        let operation = self.command_mut(number).operation;
        let (kind, (begin, end)) = (Kind::of(&operation), range_of(&operation));
        // Two requests of one range: only the newer one is listed.
        for (listed, key) in [(&mut self.begins, begin), (&mut self.ends, end)] {
            if listed.get(&(kind, key)) == Some(&number) {
                listed.remove(&(kind, key));
            }
        }
    }

    fn command_mut(&mut self, number: u32) -> &mut Command {
        self.commands[number as usize].as_mut().expect("a command that has not ended")
    }

    /// A command that has not ended.
    pub fn command(&self, number: u32) -> &Command {
        self.commands[number as usize].as_ref().expect("a command that has not ended")
    }

    fn frames(&self, operation: &Operation) -> u32 {
        let (begin, end) = range_of(operation);
        let frame = u64::from(self.parameters.frame_bytes);
        (end.div_ceil(frame) - begin / frame) as u32
    }

    /// The next command for the drive, where one may begin.
    pub fn next(&mut self) -> Option<u32> {
        if self.blocked || self.alone {
            return None;
        }
        while let Some(&number) = self.queue.front() {
            let kind = Kind::of(&self.command(number).operation);
            if kind == Kind::Other {
                let drained = self.under_way == 0 && self.fifos.iter().all(VecDeque::is_empty);
                if drained {
                    self.queue.pop_front();
                    self.alone = true;
                    self.begin(number);
                    return Some(number);
                }
                break;
            }
            if self.tags == self.parameters.commands_max {
                break;
            }
            self.queue.pop_front();
            self.forget(number);
            self.tags += 1;
            self.command_mut(number).has_tag = true;
            self.fifos[kind as usize].push_back(number);
        }
        for kind in [Kind::Read, Kind::Write] {
            let Some(&number) = self.fifos[kind as usize].front() else { continue };
            let frames = self.frames(&self.command(number).operation);
            if self.rings[kind as usize].has_room(frames) {
                self.fifos[kind as usize].pop_front();
                self.rings[kind as usize].take(number, frames);
                self.begin(number);
                return Some(number);
            }
        }
        None
    }

    fn begin(&mut self, number: u32) {
        self.under_way += 1;
        self.sent += 1;
        debug_assert!(!self.command(number).members.is_empty());
    }

    /// The drive did not take a command that [`SataPort::next`] gave out: it is given out again when something has ended. False where nothing
    /// is under way that could end.
    pub fn refused(&mut self, number: u32) -> bool {
        self.under_way -= 1;
        self.sent -= 1;
        match Kind::of(&self.command(number).operation) {
            Kind::Other => {
                self.alone = false;
                self.queue.push_front(number);
            }
            kind => {
                self.rings[kind as usize].give_back(number);
                self.fifos[kind as usize].push_front(number);
            }
        }
        self.blocked = true;
        self.under_way > 0
    }

    /// The data of a write is in the ring: whoever waits for it is told, and its tag is free.
    /// One that ended before has nobody to tell.
    pub fn acknowledge(&mut self, number: u32, serial: u32) -> Vec<Member> {
        let there = self.commands[number as usize].as_ref();
        match there.is_some_and(|command| command.serial == serial) {
            true => self.told(number),
            false => Vec::new(),
        }
    }

    fn told(&mut self, number: u32) -> Vec<Member> {
        let command = self.command_mut(number);
        let members = std::mem::take(&mut command.members);
        if std::mem::take(&mut command.has_tag) {
            self.tags -= 1;
        }
        members
    }

    /// The drive is done with a command: who has not been told yet.
    pub fn ended(&mut self, number: u32) -> Vec<Member> {
        let members = self.told(number);
        match Kind::of(&self.command(number).operation) {
            Kind::Other => self.alone = false,
            kind => self.rings[kind as usize].give_back(number),
        }
        self.commands[number as usize] = None;
        self.free.push(number);
        self.under_way -= 1;
        self.blocked = false;
        members
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0 && self.queue.is_empty() && self.fifos.iter().all(VecDeque::is_empty)
    }
}

fn range_of(operation: &Operation) -> (u64, u64) {
    match *operation {
        Operation::Read { offset, bytes }
        | Operation::Write { offset, bytes }
        | Operation::Deallocate { offset, bytes } => (offset, offset + u64::from(bytes)),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests;
