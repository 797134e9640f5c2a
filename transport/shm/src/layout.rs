//! Where everything lies in an endpoint's memory, and what an entry of its rings is. docs/shared-memory.md has the bytes.
//!
//! What always holds: every offset is computed from the sizes that the device chose, never read from the memory; a command
//! decoded from slots is bounded in every field before anybody sees it.

/// Version of this layout and of the messages.
pub const VERSION: u32 = 1;
/// First word of the memory: "WILLOWSM" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WILLOWSM");
/// Bytes of the page of positions and flags at the start.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a slot of the submission ring.
pub const SLOT_BYTES: usize = 64;
/// Words of it.
pub const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// Bytes of an entry of the completion ring.
pub const COMPLETION_BYTES: usize = 32;
/// Words of it.
pub const COMPLETION_WORDS: usize = COMPLETION_BYTES / 8;
/// Fewest slots of a ring.
pub const ENTRIES_MIN: u32 = 16;
/// Most slots of a ring.
pub const ENTRIES_MAX: u32 = 8192;
/// Most bytes of data that an endpoint can have.
pub const DATA_BYTES_MAX: u64 = 1 << 30;
/// Unit of the data area.
pub const DATA_ALIGNMENT_BYTES: u64 = 4096;
/// Most bytes of arguments in the slot that names their RPC; more lie in the slot behind it.
pub const ARGUMENTS_IN_SLOT: usize = 32;
/// Most bytes of arguments of an RPC.
pub const ARGUMENT_BYTES_MAX: usize = 64;
/// Most RPCs of one command.
pub const RPCS_MAX: usize = 128;

/// Magic and version.
pub const AT_MAGIC: usize = 0;
/// The version (u32).
pub const AT_VERSION: usize = 8;
/// How many slots the device has taken, modulo 2^32 (u32, the device writes).
pub const AT_SUBMISSION_HEAD: usize = 0x40;
/// 1 where the device does not look at the ring until its doorbell rings (u32, the device writes).
pub const AT_DEVICE_ASLEEP: usize = 0x80;
/// Grows when namespaces or apps may have changed (u32, the device writes).
pub const AT_VIEW_VERSION: usize = 0x84;
/// How many completions the host has taken, modulo 2^32 (u32, the host writes).
pub const AT_COMPLETION_HEAD: usize = 0xc0;
/// 1 where the host waits for a doorbell (u32; the host sets it, the device clears it).
pub const AT_HOST_ASLEEP: usize = 0x100;

/// Sizes of an endpoint's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Slots of the submission ring, and entries of the completion ring: a power of two.
    pub entries: u32,
    /// Bytes of the data area.
    pub data_bytes: u64,
}

/// Most commands that may be under way on rings of so many entries: half. The host shows what it took after a quarter of the
/// ring at the latest, so that each command that waits finds a place for its completion; were the depth the whole ring, a
/// device without such a place could sleep with commands waiting, and nobody would wake it.
#[inline]
pub const fn depth_max(entries: u32) -> u32 {
    entries / 2
}

impl Layout {
    /// The layout, where the sizes are possible ones.
    pub fn new(entries: u32, data_bytes: u64) -> Option<Self> {
        let possible = entries.is_power_of_two()
            && (ENTRIES_MIN..=ENTRIES_MAX).contains(&entries)
            && data_bytes.is_multiple_of(DATA_ALIGNMENT_BYTES)
            && (DATA_ALIGNMENT_BYTES..=DATA_BYTES_MAX).contains(&data_bytes);
        possible.then_some(Layout { entries, data_bytes })
    }

    /// First byte of a slot.
    #[inline]
    pub fn slot(&self, position: u64) -> usize {
        HEADER_BYTES + (position & u64::from(self.entries - 1)) as usize * SLOT_BYTES
    }

    /// First byte of a completion.
    #[inline]
    pub fn completion(&self, position: u64) -> usize {
        let index = (position & u64::from(self.entries - 1)) as usize;
        HEADER_BYTES + self.entries as usize * SLOT_BYTES + index * COMPLETION_BYTES
    }

    /// First byte of the data area.
    #[inline]
    pub fn data(&self) -> usize {
        (HEADER_BYTES + self.entries as usize * (SLOT_BYTES + COMPLETION_BYTES))
            .next_multiple_of(DATA_ALIGNMENT_BYTES as usize)
    }

    /// Bytes of the whole memory.
    pub fn bytes(&self) -> usize {
        self.data() + self.data_bytes as usize
    }

    /// What the low half of an entry's first word is when the entry at this position has been published: the number of the
    /// pass over the ring, never 0.
    #[inline]
    pub fn turn(&self, position: u64) -> u32 {
        let pass = position >> self.entries.trailing_zeros();
        if pass < u64::from(u32::MAX) { pass as u32 + 1 } else { (pass % u64::from(u32::MAX)) as u32 + 1 }
    }
}

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// One or more RPCs.
    Rpc = 1,
    /// Waits for an upcall, at most as many milliseconds as its arguments say (u32).
    Receive = 2,
    /// Answers an upcall: id (u64), status (u32), result (u32) in the arguments.
    Answer = 3,
    /// The device's view for hosts (JSON, [`crate::message::View`]) into the reply; the result is its whole length.
    View = 4,
    /// Tries to take the command back whose tag is in the arguments (u32); result 1 where it did.
    Abort = 5,
    /// Nothing: is answered.
    Nothing = 6,
}

impl Operation {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Operation::Rpc,
            2 => Operation::Receive,
            3 => Operation::Answer,
            4 => Operation::View,
            5 => Operation::Abort,
            6 => Operation::Nothing,
            _ => return None,
        })
    }
}

/// One RPC of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Receiving app.
    pub app: u16,
    /// Handler in it.
    pub handler: u8,
    /// Receiving SPU.
    pub spu: u16,
    argument_bytes: u8,
    arguments: [u8; ARGUMENT_BYTES_MAX],
}

impl Call {
    /// A call; `None` where there are more than [`ARGUMENT_BYTES_MAX`] bytes of arguments.
    #[inline]
    pub fn new(app: u16, handler: u8, spu: u16, arguments: &[u8]) -> Option<Self> {
        let mut bytes = [0; ARGUMENT_BYTES_MAX];
        bytes.get_mut(..arguments.len())?.copy_from_slice(arguments);
        Some(Call { app, handler, spu, argument_bytes: arguments.len() as u8, arguments: bytes })
    }

    /// Its arguments.
    #[inline]
    pub fn arguments(&self) -> &[u8] {
        &self.arguments[..usize::from(self.argument_bytes)]
    }

    /// Slots that it takes.
    #[inline]
    pub fn slots(&self) -> u32 {
        if usize::from(self.argument_bytes) > ARGUMENTS_IN_SLOT { 2 } else { 1 }
    }
}

/// A command but for the RPCs behind the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The host's number for it.
    pub tag: u32,
    /// What it asks for.
    pub operation: Operation,
    /// RPCs behind the first.
    pub more: u8,
    /// Payload: first byte in the data area.
    pub payload_offset: u32,
    /// Its bytes.
    pub payload_bytes: u32,
    /// Reply: first byte in the data area.
    pub reply_offset: u32,
    /// Bytes of it that may be written.
    pub reply_bytes: u32,
    /// The first RPC; arguments of other operations.
    pub call: Call,
}

/// A slot's words.
pub type Slot = [u64; SLOT_WORDS];

/// Words 1 and 4 to 7 of an RPC, and the slot behind with the rest of its arguments where there are more than 32 bytes.
fn put_call(call: &Call, operation: u8, more: u8, slot: &mut Slot) -> Option<Slot> {
    slot[1] = u64::from(operation)
        | u64::from(call.argument_bytes) << 8
        | u64::from(call.handler) << 16
        | u64::from(more) << 24
        | u64::from(call.app) << 32
        | u64::from(call.spu) << 48;
    let word = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&call.arguments[index * 8..index * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    for index in 0..4 {
        slot[4 + index] = word(index);
    }
    (call.slots() == 2).then(|| {
        let mut rest = [0; SLOT_WORDS];
        for index in 0..4 {
            rest[4 + index] = word(4 + index);
        }
        rest
    })
}

impl Command {
    /// Calls `put` with each slot of the command and its number from 0 on, the first one last: its first word publishes the
    /// whole. `calls` are the RPCs behind the first, as many as `more` says.
    #[inline]
    pub fn encode(&self, turn: u32, calls: &[Call], mut put: impl FnMut(u32, &Slot)) {
        let mut first = [0; SLOT_WORDS];
        first[0] = u64::from(turn) | u64::from(self.tag) << 32;
        first[2] = u64::from(self.payload_offset) | u64::from(self.payload_bytes) << 32;
        first[3] = u64::from(self.reply_offset) | u64::from(self.reply_bytes) << 32;
        let mut number = 1;
        if let Some(rest) = put_call(&self.call, self.operation as u8, self.more, &mut first) {
            put(number, &rest);
            number += 1;
        }
        for call in calls {
            let mut slot = [0; SLOT_WORDS];
            let rest = put_call(call, 0, 0, &mut slot);
            put(number, &slot);
            number += 1;
            if let Some(rest) = rest {
                put(number, &rest);
                number += 1;
            }
        }
        put(0, &first);
    }

    /// Slots that the command takes with these RPCs behind the first.
    #[inline]
    pub fn slots(&self, calls: &[Call]) -> u32 {
        self.call.slots() + calls.iter().map(Call::slots).sum::<u32>()
    }

    /// Decodes a first slot, already copied out of the memory; `None` where it is no command. The arguments' second half is
    /// the next slot's, where [`Call::slots`] says so: see [`Call::complete`].
    #[inline]
    pub fn decode(slot: &Slot) -> Option<Command> {
        let command = Command {
            tag: (slot[0] >> 32) as u32,
            operation: Operation::of(slot[1] as u8)?,
            more: (slot[1] >> 24) as u8,
            payload_offset: slot[2] as u32,
            payload_bytes: (slot[2] >> 32) as u32,
            reply_offset: slot[3] as u32,
            reply_bytes: (slot[3] >> 32) as u32,
            call: Call::decode(slot)?,
        };
        (usize::from(command.more) < RPCS_MAX).then_some(command)
    }
}

impl Call {
    /// Decodes an RPC's slot, already copied out; `None` where its arguments are too long.
    #[inline]
    pub fn decode(slot: &Slot) -> Option<Call> {
        let argument_bytes = (slot[1] >> 8) as u8;
        if usize::from(argument_bytes) > ARGUMENT_BYTES_MAX {
            return None;
        }
        let mut call = Call {
            app: (slot[1] >> 32) as u16,
            handler: (slot[1] >> 16) as u8,
            spu: (slot[1] >> 48) as u16,
            argument_bytes,
            arguments: [0; ARGUMENT_BYTES_MAX],
        };
        call.place(slot, 0);
        Some(call)
    }

    /// Adds what the slot behind holds.
    #[inline]
    pub fn complete(&mut self, slot: &Slot) {
        self.place(slot, ARGUMENTS_IN_SLOT);
    }

    #[inline]
    fn place(&mut self, slot: &Slot, at: usize) {
        for (index, word) in slot[4..].iter().enumerate() {
            self.arguments[at + index * 8..at + index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done; for RPCs: the handler answered, and the status is its own.
    Answered = 0,
    /// No app of that number.
    NoApp = 1,
    /// The app has no such handler.
    NoHandler = 2,
    /// No such SPU.
    NoSpu = 3,
    /// The receiver had no room: try again.
    Refused = 4,
    /// The app ended before it answered.
    AppEnded = 5,
    /// For kernel endpoints only.
    NotPermitted = 6,
    /// Taken back.
    Aborted = 7,
    /// The command itself makes no sense: an operation, length or address that cannot be.
    Invalid = 8,
    /// No upcall came in time; none waits for this answer.
    Nothing = 9,
}

impl Outcome {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Outcome::Answered,
            1 => Outcome::NoApp,
            2 => Outcome::NoHandler,
            3 => Outcome::NoSpu,
            4 => Outcome::Refused,
            5 => Outcome::AppEnded,
            6 => Outcome::NotPermitted,
            7 => Outcome::Aborted,
            8 => Outcome::Invalid,
            9 => Outcome::Nothing,
            _ => return None,
        })
    }
}

/// An entry of the completion ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The command's number.
    pub tag: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// The handler's status, 0 is success.
    pub status: u32,
    /// The handler's result.
    pub result: u32,
    /// One past the last byte of the reply that was written.
    pub reply_bytes: u32,
}

impl Completion {
    /// Its words; the first publishes it.
    #[inline]
    pub fn encode(&self, turn: u32) -> [u64; COMPLETION_WORDS] {
        [
            u64::from(turn) | u64::from(self.tag) << 32,
            u64::from(self.outcome as u8) | u64::from(self.status) << 32,
            u64::from(self.result) | u64::from(self.reply_bytes) << 32,
            0,
        ]
    }

    /// From words already copied out; `None` where it is none.
    #[inline]
    pub fn decode(words: &[u64; COMPLETION_WORDS]) -> Option<Self> {
        Some(Completion {
            tag: (words[0] >> 32) as u32,
            outcome: Outcome::of(words[1] as u8)?,
            status: (words[1] >> 32) as u32,
            result: words[2] as u32,
            reply_bytes: (words[2] >> 32) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for entries in [16, 256, ENTRIES_MAX] {
            let layout = Layout::new(entries, 4096 * 3).unwrap();
            let last = u64::from(entries) - 1;
            assert!(layout.slot(0) >= AT_HOST_ASLEEP + 64 && layout.slot(0).is_multiple_of(64));
            assert_eq!(layout.slot(last) + SLOT_BYTES, layout.completion(0));
            assert!(layout.completion(last) + COMPLETION_BYTES <= layout.data());
            assert_eq!(layout.bytes(), layout.data() + 4096 * 3);
            assert_eq!(layout.slot(last + 1), layout.slot(0));
        }
        for (entries, bytes) in [(0, 4096), (8, 4096), (17, 4096), (ENTRIES_MAX * 2, 4096), (16, 0), (16, 4095)] {
            assert_eq!(Layout::new(entries, bytes), None);
        }
        assert_eq!(Layout::new(16, DATA_BYTES_MAX + 4096), None);
    }

    #[test]
    fn turns_differ_from_pass_to_pass_and_are_never_zero() {
        let layout = Layout::new(16, 4096).unwrap();
        assert_eq!((layout.turn(0), layout.turn(15), layout.turn(16)), (1, 1, 2));
        for pass in [u64::from(u32::MAX) - 2, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
            let (one, next) = (layout.turn(pass * 16), layout.turn((pass + 1) * 16));
            assert!(one != 0 && next != 0 && one != next);
        }
    }

    fn round_trip(argument_bytes: usize, more: &[usize]) {
        let arguments: Vec<u8> = (0..64).map(|byte| byte as u8 ^ 0x5a).collect();
        let call = |app, count: usize| Call::new(app, 7, 3, &arguments[..count]).unwrap();
        let calls: Vec<Call> = more.iter().enumerate().map(|(index, count)| call(index as u16 + 9, *count)).collect();
        let command = Command {
            tag: 0xfeed,
            operation: Operation::Rpc,
            more: calls.len() as u8,
            payload_offset: 1,
            payload_bytes: 2,
            reply_offset: 3,
            reply_bytes: u32::MAX,
            call: call(2, argument_bytes),
        };
        let mut slots = vec![None; command.slots(&calls) as usize];
        let mut order = Vec::new();
        command.encode(5, &calls, |number, slot| {
            slots[number as usize] = Some(*slot);
            order.push(number);
        });
        assert_eq!(order.last(), Some(&0), "the first slot is written last");
        let mut slots = slots.into_iter().map(Option::unwrap);
        let first = slots.next().unwrap();
        assert_eq!(first[0] as u32, 5);
        let mut decoded = Command::decode(&first).unwrap();
        if decoded.call.slots() == 2 {
            decoded.call.complete(&slots.next().unwrap());
        }
        assert_eq!(decoded, command);
        for call in calls {
            let mut decoded = Call::decode(&slots.next().unwrap()).unwrap();
            if decoded.slots() == 2 {
                decoded.complete(&slots.next().unwrap());
            }
            assert_eq!(decoded, call);
        }
        assert!(slots.next().is_none());
    }

    #[test]
    fn commands_survive_encoding() {
        round_trip(0, &[]);
        round_trip(32, &[]);
        round_trip(33, &[]);
        round_trip(64, &[0, 64, 32, 40]);
    }

    #[test]
    fn senseless_slots_are_none() {
        let mut slot = [0; SLOT_WORDS];
        assert_eq!(Command::decode(&slot), None);
        slot[1] = 1 | 65 << 8;
        assert_eq!(Command::decode(&slot), None);
        slot[1] = 1 | 64 << 8 | (RPCS_MAX as u64) << 24;
        assert_eq!(Command::decode(&slot), None);
        slot[1] = 1 | 64 << 8 | (RPCS_MAX as u64 - 1) << 24;
        assert!(Command::decode(&slot).is_some());
    }

    #[test]
    fn completions_survive_encoding() {
        let completion =
            Completion { tag: 9, outcome: Outcome::Invalid, status: 0xffff_fffe, result: 5, reply_bytes: 4096 };
        let words = completion.encode(77);
        assert_eq!(words[0] as u32, 77);
        assert_eq!(Completion::decode(&words), Some(completion));
        assert_eq!(Completion::decode(&[0, 200, 0, 0]), None);
    }
}
