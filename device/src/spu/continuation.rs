//! What shall happen when an operation of the store has ended, and what the control service goes on with.

use super::accelerator::literals::set::LiteralSet;
use super::gate::MayWrite;
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::media::store::Ticket;
use std::sync::Arc;
use willow_gate::keys::Layout;

/// What goes on when an operation of the store has ended, or a fence is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// The save of the metadata that is under way.
    Metadata,
    /// A step of a transaction.
    Transaction(u32),
    /// A control request that has waited for this alone: it is answered.
    Answer { token: Key, hre: HreId },
    /// A module that nobody names was removed.
    Garbage,
    /// The flush at the device's end.
    Shutdown,
    /// What an operation wrote over marks is durable: they go, and then it has ended.
    Mend(Ticket),
}

/// What shall happen when an operation of the store has ended.
pub(crate) enum Pending {
    /// A read for the reply buffer of an activity.
    ToReply { group: Key, token: u32, offset: u64 },
    /// A read for an app's memory.
    ToLocal { group: Key, pointer: u64 },
    /// A read for the body of a message.
    ToMessage { handle: Key, offset: usize, account: u16 },
    /// A read that goes on as a write.
    ToNv { group: Key, onto: MayWrite },
    /// A read to be compared with an activity's body.
    Compare { group: Key, token: u32, body_offset: u64 },
    /// A read to be summed.
    Checksum { group: Key, seed: u32 },
    /// A read to be searched for a set of literals; what is found goes to the app's memory.
    Literals { group: Key, set: Arc<LiteralSet>, state: u32, to: u64, most: u32 },
    /// A read of keys, among which one is looked for.
    Keys { group: Key, layout: Layout, key: Box<[u8]> },
    /// A write, a zeroing or a flush.
    Group { group: Key },
    /// Work of the control service.
    Control(Continuation),
}
