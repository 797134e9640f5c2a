//! What is left of a DMA that had to stop on its way: for want of a permission ([`super::miss`]), or of a place among the operations of the
//! store. The latter wait in line, each behind the others of its account, and go on as operations end.
//!
//! What always holds:
//! - a rest belongs to a group, which has one operation more to wait for until the rest has ended; it ends once;
//! - what is left is checked anew when it goes on, as if it were asked for then; nothing of it has moved before;
//! - however many rests may go on at once (operations have ended, an agent has answered), they do so piece by piece, account by account, and
//!   others have their say in between;
//! - a process has at most [`OPERATIONS_PER_PROCESS_MAX`] operations of the store under way, users share the places of all
//!   ([`crate::places`]), the kernel's endpoints have some of their own, and a few are kept for what cannot wait in line;
//! - what rests keep of apps' memories is bounded in the same way.

use super::abi;
use super::continuation::Pending;
use super::dma::{Dma, Moved, Port};
use super::gate::Behalf;
use super::meter::{BYTES_A_WORK, Fault, SEGMENT_WORK};
use super::os::{Caller, LocalMemory, Machine, WildPointer};
use crate::bridge::accounts::{KERNEL, PARTIES};
use crate::interconnect::Key;
use crate::media::controller::PENDING_MAX;
use crate::places::Places;
use std::collections::{BTreeMap, VecDeque};
use willow_gate::SpuOs;

/// Most operations of the store that are under way for one process' DMAs.
pub const OPERATIONS_PER_PROCESS_MAX: u64 = 1024;
/// Most for all users' processes.
pub const USERS_OPERATIONS_MAX: u64 = PENDING_MAX as u64 / 2;
/// Most for DMAs of the kernel's endpoints: the rest is for flushes, comparisons and the control service.
pub const KERNEL_OPERATIONS_MAX: u64 = PENDING_MAX as u64 / 8 * 3;
/// Most bytes of the app's memory that one rest keeps a copy of.
pub const COPY_BYTES_MAX: u64 = 1 << 20;
/// Most bytes that all rests of users' processes keep.
pub const COPIES_BYTES_MAX: u64 = 256 << 20;
/// Most rests that go on in one go, before others have their say.
const RESTS_A_TURN_MAX: usize = 64;
/// What these may cost, as apps are charged for it: no more begins then.
const WORK_A_TURN_MAX: u64 = 20_000;
/// Segments of a rest that go on in one go.
const SEGMENTS_A_TURN_MAX: u32 = 64;

/// The app's memory as a rest knows it: copies of what it reads, and what it wrote.
#[derive(Default)]
pub(super) struct Detached {
    /// In the order in which segments take them: that of the next one is the first.
    read: VecDeque<(u64, Vec<u8>)>,
    written: Vec<(u64, Vec<u8>)>,
}

impl LocalMemory for Detached {
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer> {
        let found = self.read.iter().find(|(at, copy)| *at == pointer && copy.len() == bytes);
        found.map(|(_, copy)| copy.as_slice()).ok_or(WildPointer { pointer, bytes: bytes as u64 })
    }

    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer> {
        self.written.push((pointer, vec![0; bytes]));
        self.written.last_mut().map(|(_, into)| into.as_mut_slice()).ok_or(WildPointer { pointer, bytes: bytes as u64 })
    }
}

/// What is left of a DMA.
pub(crate) struct Rest {
    pub caller: Caller,
    pub dma: Dma,
    /// The next segment's addresses, and how many are left.
    pub from: u64,
    pub to: u64,
    pub left: u32,
    pub group: Key,
    /// How often it went on after an answer about a range that it missed itself.
    pub retries: u8,
    account: u16,
    copied_bytes: u64,
    /// Who has the place of these bytes.
    party: u16,
    memory: Detached,
}

impl Rest {
    /// Whose work it is.
    pub fn account(&self) -> u16 {
        self.account
    }
}

/// Why a DMA stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A permission is missing.
    Missed,
    /// There is no place among the operations of the store.
    Full,
    /// Others have their say.
    Turn,
}

/// Rests that wait for a place, by account.
pub(crate) struct Line {
    waiting: BTreeMap<u16, VecDeque<Rest>>,
    /// The accounts that have some, the one whose turn it is first.
    turns: VecDeque<u16>,
    /// More may go on at once.
    pub ready: bool,
    /// Operations under way: of users, and of the kernel's endpoints.
    users: Places,
    /// By account: how many it has, and who has their places, which stays while it has some.
    processes: Vec<(u64, u16)>,
    kernel: u64,
    /// Bytes of copies, by user.
    copies: Places,
}

impl Default for Line {
    fn default() -> Self {
        Line {
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
            ready: false,
            users: Places::new(USERS_OPERATIONS_MAX, PARTIES),
            processes: Vec::new(),
            kernel: 0,
            copies: Places::new(COPIES_BYTES_MAX, PARTIES),
        }
    }
}

impl Line {
    fn push(&mut self, rest: Rest, first: bool) {
        let of = self.waiting.entry(rest.account).or_default();
        if of.is_empty() {
            self.turns.push_back(rest.account);
        }
        match first {
            true => of.push_front(rest),
            false => of.push_back(rest),
        }
    }

    fn pop(&mut self, account: u16) -> Option<Rest> {
        let of = self.waiting.get_mut(&account)?;
        let rest = of.pop_front();
        if of.is_empty() {
            self.waiting.remove(&account);
            self.turns.retain(|turn| *turn != account);
        }
        rest
    }

    /// How many of an account wait.
    pub fn of(&self, account: u16) -> usize {
        self.waiting.get(&account).map_or(0, VecDeque::len)
    }

    /// Rests that wait.
    #[cfg(feature = "testing")]
    pub fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Takes a place for an operation of a DMA.
    fn take(&mut self, account: u16, party: u16) -> bool {
        if account == KERNEL {
            let takes = self.kernel < KERNEL_OPERATIONS_MAX;
            self.kernel += u64::from(takes);
            return takes;
        }
        let (count, party) = self.process(account, party);
        *count < OPERATIONS_PER_PROCESS_MAX && self.users.admits(party, 1) && {
            self.put(account, party);
            true
        }
    }

    /// What a process has, and who has the places of that.
    fn process(&mut self, account: u16, party: u16) -> (&mut u64, u16) {
        if self.processes.len() <= usize::from(account) {
            self.processes.resize(usize::from(account) + 1, (0, 0));
        }
        let (count, of) = &mut self.processes[usize::from(account)];
        if *count == 0 {
            *of = party;
        }
        (count, *of)
    }

    /// Takes a place for an operation of a user's without asking whether there is one.
    fn put(&mut self, account: u16, party: u16) {
        let (count, party) = self.process(account, party);
        *count += 1;
        self.users.put(party, 1);
    }

    /// Gives the place of an operation of a user's back.
    fn release(&mut self, account: u16) {
        let (count, party) = &mut self.processes[usize::from(account)];
        *count -= 1;
        self.users.release(*party, 1);
    }
}

impl Machine {
    /// The account whose work an operation is.
    pub fn account_of(&self, group: Key) -> u16 {
        self.group_at(group).map_or(self.spus[group.spu as usize].running, |group| group.account)
    }

    /// Takes a place for an operation of a DMA; false where it is to wait in line.
    pub fn place_for_operation(&mut self, group: Key) -> bool {
        let account = self.account_of(group);
        self.line.take(account, self.bridge.accounts.party(account))
    }

    /// Takes a place for an operation that is no DMA's and cannot wait in line. A user's app is refused where a DMA of its would wait; apps
    /// that no user installed have one such operation a handler.
    pub fn place_for_single(&mut self, caller: Caller, account: u16) -> bool {
        if self.is_users_app(caller.app) {
            return self.line.take(account, self.bridge.accounts.party(account));
        }
        self.put_operation(account);
        true
    }

    /// Takes a place without asking whether there is one: for an operation that goes on as another.
    pub fn put_operation(&mut self, account: u16) {
        match account {
            KERNEL => self.line.kernel += 1,
            account => self.line.put(account, self.bridge.accounts.party(account)),
        }
    }

    /// Whose place an operation has; `None`: the control service's, which needs none.
    pub fn account_of_operation(&self, pending: &Pending) -> Option<u16> {
        match pending {
            Pending::ToReply { group, .. }
            | Pending::ToLocal { group, .. }
            | Pending::ToNv { group, .. }
            | Pending::Compare { group, .. }
            | Pending::Checksum { group, .. }
            | Pending::Literals { group, .. }
            | Pending::Keys { group, .. }
            | Pending::Group { group } => Some(self.account_of(*group)),
            Pending::ToMessage { account, .. } => Some(*account),
            Pending::Control(_) => None,
        }
    }

    /// True where nothing is to be done now: nothing has arrived, and what waits in line has no place.
    pub fn is_at_rest(&self) -> bool {
        !self.events.has_ready() && !self.line.ready && !self.media.store.has_news() && !self.media.has_mended()
    }

    /// An operation has ended, or was not begun after all.
    #[inline]
    pub fn operation_ended(&mut self, account: u16) {
        match account {
            KERNEL => self.line.kernel -= 1,
            account => self.line.release(account),
        }
        self.line.ready |= !self.line.waiting.is_empty();
    }

    /// What is left of a DMA that stops: its group, and copies of what it reads from the app's memory. An error where there is no room for it.
    pub fn rest_of<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        dma: &Dma,
        (from, to, left): (u64, u64, u32),
        group: &mut Option<Key>,
    ) -> Result<Option<Rest>, Fault> {
        let account = group.map_or(self.spus[caller.spu as usize].running, |key| self.account_of(key));
        let mut copies = Detached::default();
        let mut copied_bytes = 0;
        if dma.source.port == Port::Local {
            let bytes = u64::from(dma.segment_bytes) * u64::from(left);
            if bytes > COPY_BYTES_MAX {
                return Ok(None);
            }
            self.meter(caller).charge_copy(bytes)?;
            let mut at = from;
            for _ in 0..left {
                copies.read.push_back((at, memory.slice(at, dma.segment_bytes as usize)?.to_vec()));
                at = at.wrapping_add_signed(dma.source.stride);
            }
            if account != KERNEL {
                copied_bytes = bytes;
            }
        }
        let Some(key) = self.group_for(caller, dma, group) else { return Ok(None) };
        let party = self.bridge.accounts.party(account);
        if !self.line.copies.take(party, copied_bytes) {
            return Ok(None);
        }
        let dma = *dma;
        Ok(Some(Rest {
            caller,
            dma,
            from,
            to,
            left,
            group: key,
            retries: 0,
            account,
            copied_bytes,
            party,
            memory: copies,
        }))
    }

    /// A segment found no place among the store's operations: the DMA waits in line. 0, or the error where it cannot.
    #[cold]
    pub fn wait_in_line<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        dma: &Dma,
        left: (u64, u64, u32),
        group: &mut Option<Key>,
    ) -> Result<i32, Fault> {
        let Some(rest) = self.rest_of(caller, memory, dma, left, group)? else { return Ok(abi::ERROR_REFUSED) };
        if let Some(group) = self.group_at_mut(rest.group) {
            group.remaining += 1;
        }
        self.line.push(rest, false);
        Ok(0)
    }

    /// A DMA waits in line that waited for something else, and may go on now.
    pub fn line_up(&mut self, rest: Rest) {
        self.line.push(rest, false);
        self.line.ready = true;
    }

    /// A rest that its group does not know of yet is not wanted after all.
    pub fn drop_rest(&mut self, rest: Rest) {
        self.line.copies.release(rest.party, rest.copied_bytes);
    }

    /// A rest ends here.
    pub fn end_rest(&mut self, rest: Rest, error: i32) {
        self.line.copies.release(rest.party, rest.copied_bytes);
        self.end_one(rest.group, error.into(), None);
    }

    /// Goes on with a DMA; what is left of it where it has to stop again.
    fn go_on(&mut self, mut rest: Rest) -> Option<(Rest, Stop)> {
        let (caller, dma, key) = (rest.caller, rest.dma, rest.group);
        let mut group = Some(key);
        let mut error = 0;
        let mut stop = None;
        let behalf = self.activity_at(caller.at(dma.token)).map(|activity| Behalf::Of(activity.originating));
        let ends_at = rest.left.saturating_sub(SEGMENTS_A_TURN_MAX);
        while rest.left > 0 {
            if rest.left == ends_at {
                stop = Some(Stop::Turn);
                break;
            }
            let written = rest.memory.written.len();
            let moved = match behalf {
                Some(behalf) => {
                    self.segment(caller, &mut rest.memory, (&dma, behalf), (rest.from, rest.to), &mut group)
                }
                None => Ok(Moved::Error(abi::ERROR_ARGUMENT)),
            };
            if !matches!(moved, Ok(Moved::Done)) {
                // The bytes come with the store's completion, or not at all.
                rest.memory.written.truncate(written);
            }
            match moved {
                Ok(Moved::Done) => {}
                Ok(Moved::Pending) => {
                    if let Some(group) = self.group_at_mut(key) {
                        group.remaining += 1;
                    }
                }
                Ok(Moved::Error(abi::ERROR_PERMISSION)) if rest.dma.parks => stop = Some(Stop::Missed),
                Ok(Moved::Full) => stop = Some(Stop::Full),
                Ok(Moved::Error(number)) => error = number,
                Err(_) => error = abi::ERROR_ARGUMENT,
            }
            if stop.is_some() || error != 0 {
                break;
            }
            rest.memory.read.pop_front();
            rest.from = rest.from.wrapping_add_signed(dma.source.stride);
            rest.to = rest.to.wrapping_add_signed(dma.destination.stride);
            rest.left -= 1;
        }
        // What it wrote to the app's memory goes on its way.
        for (pointer, bytes) in rest.memory.written.drain(..) {
            if let Some(group) = self.group_at_mut(key) {
                group.remaining += 1;
            }
            self.end_one(key, 0, Some(Box::new((pointer, bytes))));
        }
        match stop {
            Some(stop) => Some((rest, stop)),
            None => {
                self.end_rest(rest, error);
                None
            }
        }
    }

    /// Cancels a DMA that waits in line.
    pub fn cancel_in_line(&mut self, account: u16, caller: Caller, wait: u32) -> bool {
        let Some(of) = self.line.waiting.get_mut(&account) else { return false };
        let found = of.iter().position(|rest| rest.caller == caller && rest.dma.wait == wait);
        let Some(rest) = found.and_then(|at| of.remove(at)) else { return false };
        if of.is_empty() {
            self.line.waiting.remove(&account);
            self.line.turns.retain(|turn| *turn != account);
        }
        self.end_rest(rest, abi::ERROR_CANCELLED);
        true
    }

    /// Operations have ended: what waits in line goes on, one account after the other, as far as there are places.
    pub fn serve_line(&mut self) {
        self.line.ready = false;
        let (mut stuck, mut cost) = (0, 0);
        for _ in 0..RESTS_A_TURN_MAX {
            let Some(account) = self.line.turns.front().copied() else { return };
            if stuck >= self.line.turns.len() {
                return;
            }
            if cost > WORK_A_TURN_MAX {
                break;
            }
            let Some(rest) = self.line.pop(account) else { return };
            let (left, segment_bytes) = (rest.left, u64::from(rest.dma.segment_bytes));
            let stopped = self.go_on(rest);
            let done = u64::from(left - stopped.as_ref().map_or(0, |(rest, _)| rest.left));
            let work = done * (SEGMENT_WORK + segment_bytes / BYTES_A_WORK);
            self.charge_account(account, work);
            cost += SEGMENT_WORK + work;
            self.costs_beside(SEGMENT_WORK + work);
            match stopped {
                None => {}
                Some((rest, Stop::Turn)) => self.line.push(rest, true),
                Some((rest, Stop::Missed)) => self.miss_again(rest),
                Some((rest, Stop::Full)) => {
                    self.line.push(rest, true);
                    stuck += 1;
                }
            }
            // The next account's turn.
            if self.line.turns.front() == Some(&account) {
                self.line.turns.rotate_left(1);
            }
        }
        self.line.ready = !self.line.turns.is_empty();
    }
}
