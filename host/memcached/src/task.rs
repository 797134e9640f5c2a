//! One request for one key, step by step: each step is one operation of the device.
//!
//! ```text
//! get      read [long: wait for its turn, read again]
//! gat      touch, read
//! set      write            add, replace, cas: on condition
//! append   read, write on condition of the version that was read; again where another was quicker
//! incr     the same; where there is none: write on condition that there is none
//! delete   delete           touch   touch
//! flush_all  clear each group
//! ```
//! What changed something waits, as the last step, for a flush that began when it was done.

use crate::command::{Mode, Style, Verb};
use crate::item::Name;
use crate::outcome::{Found, Outcome};
use crate::port::{Completion, End, Operation};
use willow_host::hre::ItemCondition;

/// How often a request begins anew since another one was quicker.
const TRIES_MAX: u32 = 1000;
/// How often a value that grows while it is read is read anew.
const READS_MAX: u32 = 16;
/// Longest number in decimal digits.
const DIGITS_MAX: usize = 20;
/// Values up to this are read again at once where they were longer than thought; longer ones when it is their turn, one a connection.
pub const LONG_BYTES: u32 = 64 << 10;

const LOST: &str = "SERVER_ERROR the device failed\r\n";
const RACE: &str = "SERVER_ERROR too many others change this item\r\n";

/// What a task does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads, with that much room.
    Read(u32),
    /// Stores.
    Write(ItemCondition),
    /// Removes.
    Delete,
    /// Gives another expiry.
    Touch,
    /// Clears a group.
    Clear(u16),
    /// Counts the pairs of an SPU.
    Count(u16),
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A step is to be taken, as soon as the port has room.
    Ready(Step),
    /// A step is under way.
    Running(Step),
    /// A long value is read when it is the connection's turn.
    Turn(u32),
    /// It waits for a flush.
    Flush(Outcome),
    /// It has ended.
    Ended(Outcome),
}

/// A request for one key.
pub struct Task {
    /// The connection that waits for it; `None`: it has gone.
    pub owner: Option<u32>,
    /// Key.
    pub name: Name,
    /// What is done.
    pub verb: Verb,
    /// How its answer looks.
    pub style: Style,
    /// Where it is.
    pub state: State,
    /// The value that was read, until its data are copied.
    pub value: Option<u32>,
    /// What is stored by the next write: all of the value.
    pub image: Vec<u8>,
    /// Data that came with it, for a write that follows a read.
    pub data: Vec<u8>,
    /// Expiry of what is stored.
    expiry: u32,
    /// What a count ends with.
    number: u64,
    tries: u32,
    reads: u32,
    counted: (u64, u64),
}

/// Appends a part of a value that was read (its number, first byte and bytes); false: it is not there.
pub type AppendValue<'a> = dyn Fn(u32, usize, usize, &mut Vec<u8>) -> bool + 'a;

/// What a task may look at while it decides.
pub struct View<'a> {
    /// Appends bytes of the value that was read: from there on, so many.
    pub value: &'a AppendValue<'a>,
    /// Longest data of an item.
    pub data_bytes_max: usize,
    /// Groups, and processors.
    pub groups: u16,
    /// Processors.
    pub spus: u16,
}

impl Task {
    /// A new one; `room` is a first guess at the length of a value.
    pub fn new(owner: u32, name: Name, verb: Verb, style: Style, room: u32) -> Self {
        let step = match verb {
            Verb::Get { touch: None } => Step::Read(room),
            Verb::Get { touch: Some(_) } | Verb::Touch { .. } => Step::Touch,
            Verb::Store { mode: Mode::Append | Mode::Prepend, .. } => Step::Read(room),
            Verb::Store { mode, version, .. } => Step::Write(match (mode, version) {
                (Mode::Add, _) => ItemCondition::IfAbsent,
                (Mode::Replace, 0) => ItemCondition::IfExists,
                (_, 0) => ItemCondition::Always,
                (_, version) => ItemCondition::IfVersion(version),
            }),
            Verb::Count { .. } => Step::Read((name.overhead_bytes() + DIGITS_MAX + 1) as u32),
            Verb::Delete { .. } => Step::Delete,
            Verb::Clear => Step::Clear(0),
            Verb::Census => Step::Count(0),
        };
        let expiry = match verb {
            Verb::Store { expiry, .. } => expiry,
            _ => 0,
        };
        Task {
            owner: Some(owner),
            name,
            verb,
            style,
            state: State::Ready(step),
            value: None,
            image: Vec::new(),
            data: Vec::new(),
            expiry,
            number: 0,
            tries: 0,
            reads: 0,
            counted: (0, 0),
        }
    }

    /// The device's operation of a step.
    pub fn operation(&self, step: Step) -> Operation {
        let key = self.name.pair();
        match step {
            Step::Read(room) => Operation::Get { key, room },
            Step::Write(condition) => Operation::Put { key, condition, expiry: self.expiry },
            Step::Delete => match self.verb {
                Verb::Delete { version } => Operation::Delete { key, version },
                _ => Operation::Delete { key, version: 0 },
            },
            Step::Touch => match self.verb {
                Verb::Touch { expiry } | Verb::Get { touch: Some(expiry) } => Operation::Touch { key, expiry },
                _ => Operation::Touch { key, expiry: 0 },
            },
            Step::Clear(group) => Operation::Clear { group },
            Step::Count(spu) => Operation::Count { spu },
        }
    }

    /// Takes the end of the step that was under way.
    pub fn ended(&mut self, done: &Completion, view: &View<'_>) {
        let State::Running(step) = self.state else {
            debug_assert!(false, "nothing was under way");
            return;
        };
        debug_assert!(self.value.is_none(), "a value that was read before is given back before another is");
        self.value = done.value;
        if done.end == End::Busy {
            self.state = State::Ready(step);
            return;
        }
        self.state = match step {
            Step::Read(room) => self.after_read(done, room, view),
            Step::Write(condition) => self.after_write(done, condition),
            Step::Delete => match done.end {
                End::Done => State::Flush(Outcome::Deleted),
                end => State::Ended(failed(end)),
            },
            Step::Touch => match (done.end, self.verb) {
                (End::Done, Verb::Touch { .. }) => State::Flush(Outcome::Touched),
                (End::Done, _) => State::Ready(Step::Read(crate::engine::ROOM_BYTES_MIN)),
                (end, _) => State::Ended(failed(end)),
            },
            Step::Clear(group) => match done.end {
                End::Done if group + 1 < view.groups => State::Ready(Step::Clear(group + 1)),
                // Each is durable already.
                End::Done => State::Ended(Outcome::Cleared),
                end => State::Ended(failed(end)),
            },
            Step::Count(spu) => {
                self.counted.0 += done.version;
                self.counted.1 += done.expiry;
                match done.end {
                    End::Done if spu + 1 < view.spus => State::Ready(Step::Count(spu + 1)),
                    End::Done => State::Ended(Outcome::Counted(Some(self.counted))),
                    _ => State::Ended(Outcome::Counted(None)),
                }
            }
        };
    }

    fn after_read(&mut self, done: &Completion, room: u32, view: &View<'_>) -> State {
        match done.end {
            End::Done => {}
            End::NotFound => return self.without(),
            end => return State::Ended(failed(end)),
        }
        let Some(value) = self.value else { return State::Ended(Outcome::Failed(LOST)) };
        let overhead = self.name.overhead_bytes();
        let mut head = Vec::new();
        let whole = done.result as usize;
        let has_head = (view.value)(value, 0, overhead.min(whole).min(room as usize), &mut head);
        // Another key's item, or something that is none: there is none under this key.
        let Some(flags) = self.name.flags_of(&head).filter(|_| has_head) else { return self.without() };
        let bytes = whole - overhead;
        let found = Found { flags, version: done.version, expiry: done.expiry as u32, bytes };
        if let Verb::Count { .. } = self.verb {
            return self.count_on(&found, value, view);
        }
        if done.result > room {
            self.reads += 1;
            return match done.result {
                _ if self.reads > READS_MAX => State::Ended(Outcome::Failed(RACE)),
                longer @ ..=LONG_BYTES => State::Ready(Step::Read(longer)),
                longer => State::Turn(longer),
            };
        }
        match self.verb {
            Verb::Store { mode, version, .. } => self.join(&found, value, mode, version, view),
            Verb::Get { touch: Some(_) } => State::Flush(Outcome::Found(found)),
            _ => State::Ended(Outcome::Found(found)),
        }
    }

    /// There is none.
    fn without(&mut self) -> State {
        match self.verb {
            Verb::Count { initial: Some((number, expiry)), .. } => {
                self.expiry = expiry;
                self.number = number;
                self.image_of(0, number.to_string().as_bytes());
                State::Ready(Step::Write(ItemCondition::IfAbsent))
            }
            _ => State::Ended(Outcome::NotFound),
        }
    }

    /// Makes what is stored.
    pub fn image_of(&mut self, flags: u32, data: &[u8]) {
        self.image.reserve_exact(self.name.overhead_bytes() + data.len());
        self.image.clear();
        self.image.extend_from_slice(&self.name.head(flags));
        self.image.extend_from_slice(self.name.as_bytes());
        self.image.extend_from_slice(data);
    }

    /// Append and prepend.
    fn join(&mut self, found: &Found, value: u32, mode: Mode, version: u64, view: &View<'_>) -> State {
        if version != 0 && version != found.version {
            return State::Ended(Outcome::Changed);
        }
        if found.bytes + self.data.len() > view.data_bytes_max {
            return State::Ended(Outcome::TooLarge);
        }
        let data = std::mem::take(&mut self.data);
        self.image_of(found.flags, if mode == Mode::Prepend { &data } else { &[] });
        let copied = (view.value)(value, self.name.overhead_bytes(), found.bytes, &mut self.image);
        if mode == Mode::Append {
            self.image.extend_from_slice(&data);
        }
        self.data = data;
        if !copied {
            return State::Ended(Outcome::Failed(LOST));
        }
        self.expiry = found.expiry;
        State::Ready(Step::Write(ItemCondition::IfVersion(found.version)))
    }

    /// Incr and decr.
    fn count_on(&mut self, found: &Found, value: u32, view: &View<'_>) -> State {
        let Verb::Count { delta, down, touch, version, .. } = self.verb else {
            return State::Ended(Outcome::Failed(LOST));
        };
        if version != 0 && version != found.version {
            return State::Ended(Outcome::Changed);
        }
        let mut digits = Vec::new();
        let fits = found.bytes <= DIGITS_MAX;
        let read = fits && (view.value)(value, self.name.overhead_bytes(), found.bytes, &mut digits);
        let number = crate::text::number::<u64>(&digits).filter(|_| read && digits.iter().all(u8::is_ascii_digit));
        let Some(number) = number else { return State::Ended(Outcome::NonNumeric) };
        self.number = if down { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
        self.expiry = touch.unwrap_or(found.expiry);
        self.image_of(found.flags, self.number.to_string().as_bytes());
        State::Ready(Step::Write(ItemCondition::IfVersion(found.version)))
    }

    fn after_write(&mut self, done: &Completion, condition: ItemCondition) -> State {
        let reads_first =
            matches!(self.verb, Verb::Count { .. } | Verb::Store { mode: Mode::Append | Mode::Prepend, .. });
        match (done.end, reads_first) {
            (End::Done, _) => State::Flush(match self.verb {
                Verb::Count { .. } => Outcome::Number(self.number, done.version, self.expiry),
                _ => Outcome::Stored(done.version),
            }),
            // Another one was quicker: from the beginning.
            (End::Changed | End::NotFound | End::Exists, true) => {
                self.tries += 1;
                if self.tries > TRIES_MAX {
                    return State::Ended(Outcome::Failed(RACE));
                }
                State::Ready(Step::Read(crate::engine::ROOM_BYTES_MIN))
            }
            (End::Exists, _) => State::Ended(Outcome::NotStored),
            (End::NotFound, _) => State::Ended(match condition {
                ItemCondition::IfVersion(_) => Outcome::NotFound,
                _ => Outcome::NotStored,
            }),
            (end, _) => State::Ended(failed(end)),
        }
    }
}

fn failed(end: End) -> Outcome {
    match end {
        End::NotFound => Outcome::NotFound,
        End::Changed => Outcome::Changed,
        End::Exists => Outcome::NotStored,
        End::Full => Outcome::Full,
        _ => Outcome::Failed(LOST),
    }
}
