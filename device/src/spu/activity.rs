//! Activities: requests at an SPU, from where they come in until they are answered, and who calls imports on their behalf.

use crate::hre::HreId;
use crate::interconnect::Key;
use crate::request::{AppNumber, Arguments};
pub(crate) use willow_gate::Ending;

/// Who calls an import: an app on an SPU, in one incarnation. Made by the runtime, never by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub app: AppNumber,
    pub spu: u16,
    pub incarnation: u32,
}

impl Caller {
    /// The key of an entry of the SPU's tables.
    #[inline(always)]
    pub fn at(&self, key: u32) -> Key {
        Key { spu: self.spu, key }
    }
}

/// The app number of an instance that is made ready and has no place yet: its imports find nothing.
pub(crate) const UNPLACED: AppNumber = AppNumber::MAX;

/// Which requests reach an app; the others wait in [`AppState::held`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// All.
    Open,
    /// Messages of SPUs, which belong to requests that have begun; no new ones of hosts.
    Begun,
    /// What the app asks itself: it starts, or leaves its state clean.
    Own,
}

/// Where a request came from and its answer goes.
pub(crate) enum Origin {
    Host {
        transfer: u32,
    },
    Spu(Box<SpuOrigin>),
    Event {
        watch: u32,
    },
    /// SPU-OS: an operation on the bank, for the FTL; its peer.
    Bank {
        peer: u32,
    },
    /// The app itself, for nobody: it has one of its app's places.
    Background,
}

/// The sender of an RPC that came from an SPU, and what goes with it.
pub(crate) struct SpuOrigin {
    pub group: Key,
    /// The request on whose behalf it was sent.
    pub asked_by: Key,
    /// Who asked, and whether that is a user's app.
    pub sender: Caller,
    pub users: bool,
    pub body: Vec<u8>,
    pub reply: Vec<u8>,
    pub reply_pointer: u64,
}

/// How far a request at an SPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has come, or waits until it reaches its app or has one of its process' places on the SPU.
    Arrived,
    /// It has that place, where it needs one, and waits for a thread of its app.
    Placed,
    /// A handler is at work for it.
    Begun,
    /// The control service is at work for it.
    Served,
}

impl State {
    /// True from when its handler, or the control service, has it.
    #[inline(always)]
    pub fn is_begun(self) -> bool {
        matches!(self, State::Begun | State::Served)
    }

    /// True for a host's request that has one of its process' places.
    #[inline(always)]
    pub fn is_placed(self) -> bool {
        matches!(self, State::Placed | State::Begun)
    }
}

/// A request at an SPU.
pub(crate) struct Activity {
    pub app: AppNumber,
    pub spu: u16,
    pub handler: u8,
    pub state: State,
    pub originating: HreId,
    /// Whose work it is.
    pub account: u16,
    pub arguments: Arguments,
    /// Bytes of the body received so far.
    pub cursor: u32,
    /// Its answer, which is told when its pending operations have ended.
    pub ending: Ending,
    /// Bytes of the reply that were written, for the model of time.
    pub replied_bytes: u64,
    pub origin: Origin,
}

impl Activity {
    /// A request that has come to a handler of an app on an SPU, for nobody but the device.
    pub fn of_device(
        (app, spu, handler): (AppNumber, u16, u8),
        account: u16,
        arguments: Arguments,
        origin: Origin,
    ) -> Self {
        Activity {
            app,
            spu,
            handler,
            state: State::Arrived,
            originating: HreId::DEVICE,
            account,
            arguments,
            cursor: 0,
            ending: Ending::default(),
            replied_bytes: 0,
            origin,
        }
    }

    /// True for a request that does not reach its app under this admission.
    #[inline]
    pub fn is_held(&self, admission: Admission) -> bool {
        match (&self.origin, admission) {
            (_, Admission::Open) | (Origin::Event { .. } | Origin::Background, _) => false,
            (Origin::Host { .. } | Origin::Bank { .. }, _) => !self.state.is_begun(),
            (Origin::Spu(_), Admission::Begun) => false,
            (Origin::Spu(origin), Admission::Own) => !self.state.is_begun() && origin.sender.app != self.app,
        }
    }
}
