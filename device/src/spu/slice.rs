//! Runs that make way for others: of apps that ask for long ones (`long=1`). Such a run goes on when its account's turn comes again, of the device's
//! thread or, under a model of time, of the SPU's processor, which each slice takes for as long as the model says. Until it has ended nothing else
//! enters its instance.
//!
//! What always holds:
//! - requests for the instance wait as those that find no thread; ends of waits, with the bytes that they bring, wait in their order, and keep
//!   the places that they have;
//! - an instance that goes takes its suspended run along; what waited for it is told as it would have been;
//! - no instance has more than one [`Event::Resume`] under way that finds it.

use super::activity::State;
use super::handlers::Drive;
use super::os::{Caller, Machine, planted};
use super::{Offered, Resumed, Told};
use crate::interconnect::Key;
use crate::interconnect::event::{Completion, Event, Wait};
use crate::request::AppNumber;
use std::collections::VecDeque;

/// A run that made way.
pub(super) struct Suspended {
    /// Whose work it is.
    account: u16,
    /// The activity that it began with, if it began with one.
    token: Option<Key>,
    /// Ends of waits that came meanwhile; as many at most as the app has waits, and pieces of these.
    late: VecDeque<Completion>,
    late_bytes: u64,
}

/// Bytes that are kept for a run which its debugger has stopped.
const LATE_BYTES_MAX: u64 = 64 << 20;

impl Suspended {
    /// Whose work it is.
    pub(super) fn account(&self) -> u16 {
        self.account
    }

    /// Keeps the end of a wait of the instance's until the run has ended. True where more is kept than a stopped run may have.
    #[cold]
    pub(super) fn keep(&mut self, of: &Wait, memory: Option<Box<(u64, Vec<u8>)>>) -> bool {
        self.late_bytes += memory.as_ref().map_or(0, |memory| memory.1.len() as u64);
        self.late.push_back(Completion { of: *of, memory });
        self.late_bytes > LATE_BYTES_MAX
    }
}

impl Machine {
    /// What a run executes, or has SPU-OS do, before it makes way: half of what other users' runs may at most.
    pub(super) fn slice(&self) -> u64 {
        if planted!(self, KeepsProcessor) { u64::MAX / 2 } else { self.config.user_instruction_budget / 2 }
    }

    /// A run of an app makes way.
    #[cold]
    pub(super) fn suspend(&mut self, (number, spu, account): (AppNumber, u16, u16), token: Option<Key>) {
        let resident = &mut self.spus[spu as usize].residents[number as usize];
        resident.suspended = Some(Box::new(Suspended { account, token, late: VecDeque::new(), late_bytes: 0 }));
        let incarnation = resident.incarnation;
        self.charge_looks(number, spu);
        // Its debugger has it go on.
        if !self.is_stopped(number, spu) {
            let account = self.resumes_as(account, number, spu);
            self.make_due(account, number, Event::Resume { spu, app: number, incarnation });
        }
    }

    /// In whose turn a suspended run goes on, if it is still there.
    pub fn account_of_suspended(&self, number: AppNumber, spu: u16, incarnation: u32) -> Option<u16> {
        let resident = &self.spus[usize::from(spu)].residents[usize::from(number)];
        let suspended = resident.suspended.as_ref().filter(|_| resident.incarnation == incarnation)?;
        Some(self.resumes_as(suspended.account, number, spu))
    }

    /// The instance of an app goes, or is another: its suspended run does not go on.
    pub(super) fn unsuspend(&mut self, number: AppNumber, spu: u16) {
        let suspended = self.spus[spu as usize].residents[number as usize].suspended.take();
        self.tell_late(suspended.map(|suspended| suspended.late).unwrap_or_default());
    }

    /// What came while a run was suspended is told in its order.
    fn tell_late(&mut self, late: VecDeque<Completion>) {
        for completion in late {
            self.make_due(completion.of.account, completion.of.app, Event::Complete(completion));
        }
    }

    /// A run that made way goes on.
    pub fn resume(&mut self, drive: &mut impl Drive, (number, spu): (AppNumber, u16), incarnation: u32) {
        let at = &mut self.spus[spu as usize];
        let resident = &mut at.residents[number as usize];
        if resident.incarnation != incarnation {
            return;
        }
        let (Some(suspended), Some(mut instance)) = (resident.suspended.take(), resident.instance.take()) else {
            return;
        };
        let Suspended { account, token, .. } = *suspended;
        at.running = account;
        let went = instance.resume(self);
        let (instructions, metered) = (instance.instructions(), instance.is_metered());
        self.spus[spu as usize].put_back(number, instance);
        self.charge_looks(number, spu);
        let caller = Caller { app: number, spu, incarnation };
        if let (Ok(Resumed::Started(Offered::Answered { status, result })), Some(token)) = (&went, token) {
            // It may have ended meanwhile.
            self.answered(caller, token.key, *status, *result);
        }
        let waits = self.ran(drive, (number, spu, account), (instructions, metered), None);
        match went {
            Ok(Resumed::Started(Offered::Suspended) | Resumed::Completed(Told::Suspended)) => {
                self.spus[spu as usize].residents[number as usize].suspended = Some(suspended);
                if self.is_stopped(number, spu) {
                    return;
                }
                let account = self.resumes_as(account, number, spu);
                self.make_due(account, number, Event::Resume { spu, app: number, incarnation });
            }
            Ok(went) => {
                let has_late = !suspended.late.is_empty();
                self.tell_late(suspended.late);
                if let (Resumed::Started(Offered::NoThread), Some(token)) = (went, token) {
                    self.found_no_thread(number, token);
                } else if waits && !has_late {
                    self.offer_waiting(drive, number, spu);
                }
            }
            Err(why) => {
                self.tell_late(suspended.late);
                self.trapped(number, spu, &why);
            }
        }
    }

    /// The app has no free thread for a request that it was offered: it is offered again when something of the app has ended.
    #[cold]
    pub(super) fn found_no_thread(&mut self, number: AppNumber, token: Key) {
        let at = &mut self.spus[token.spu as usize];
        if let Some(activity) = at.activities.get_mut(token.key)
            && activity.state == State::Begun
        {
            activity.state = State::Placed;
            at.counters.thread_waits += 1;
            at.residents[number as usize].waiting.push_front(token.key);
        }
    }
}
