//! What SPU-OS does for debuggers of apps ([`super::debug`] has their instances): it knows which are stopped, asks them, and has them go on.
//!
//! What always holds: a stopped run is a suspended one of which no event is under way; what has it go on makes one.

use super::debug::{Answer, Debugger, Mode, Query, Stop};
use super::os::Machine;
use crate::interconnect::event::Event;
use crate::request::AppNumber;
use std::collections::BTreeSet;

/// What a stopped run is asked for (the kinds of [`crate::control::DEBUG_QUERY`]).
pub(crate) const STACK: u32 = 1;
pub(crate) const VALUES: u32 = 2;
pub(crate) const MEMORY: u32 = 3;
pub(crate) const MODULE: u32 = 4;
/// What a debugger says ([`crate::control::DEBUG_TELL`]).
pub(crate) const SET_BREAKPOINTS: u32 = 1;
pub(crate) const GO_ON: u32 = 2;
pub(crate) const STEP: u32 = 3;
pub(crate) const PAUSE: u32 = 4;

/// What a debugger says.
pub(crate) enum Told {
    Breakpoints(BTreeSet<u32>),
    GoOn(Mode),
    Pause,
    /// It is gone.
    Leave,
}

impl Machine {
    fn debugger(&self, number: AppNumber, spu: u16) -> Option<Debugger<'_>> {
        let resident = self.spus.get(usize::from(spu))?.residents.get(usize::from(number))?;
        resident.instance.as_ref()?.debugging().map(Debugger)
    }

    /// True where an app's instances are there and can be debugged.
    pub fn is_debugged(&self, number: AppNumber) -> bool {
        (0..self.config.spus).all(|spu| self.debugger(number, spu).is_some())
    }

    /// True where a suspended run has stopped, so that it does not go on by itself.
    pub(super) fn is_stopped(&self, number: AppNumber, spu: u16) -> bool {
        self.debugger(number, spu).is_some_and(|debugger| debugger.stop().is_some())
    }

    /// Where an app's instances have stopped, if they have, by SPU.
    pub fn stops(&self, number: AppNumber) -> impl Iterator<Item = (u16, Option<Stop>)> {
        (0..self.config.spus).map(move |spu| (spu, self.debugger(number, spu).and_then(|debugger| debugger.stop())))
    }

    /// Asks a stopped run; `None` where it has not stopped.
    pub fn ask_stopped(&mut self, number: AppNumber, spu: u16, query: Query) -> Option<Answer> {
        if !self.is_stopped(number, spu) {
            return None;
        }
        self.spus[usize::from(spu)].residents[usize::from(number)].instance.as_mut()?.examine(query)
    }

    /// What an instance's debugger looks at is this account's to pay from now on.
    pub fn debugger_is_of(&mut self, number: AppNumber, spu: u16, payer: u16) {
        self.charge_looks(number, spu);
        if let Some(debugger) = self.debugger(number, spu) {
            debugger.is_of(payer);
        }
    }

    /// Charges whose debugger it is for what it has looked at.
    pub(super) fn charge_looks(&mut self, number: AppNumber, spu: u16) {
        if let Some((payer, cost)) = self.debugger(number, spu).map(|debugger| debugger.take_cost()) {
            self.did_for(payer, cost);
        }
    }

    /// In whose turn a suspended run of `account` goes on.
    pub(super) fn resumes_as(&self, account: u16, number: AppNumber, spu: u16) -> u16 {
        self.debugger(number, spu).and_then(|debugger| debugger.steps_for()).unwrap_or(account)
    }

    /// Tells an instance what its debugger says.
    pub fn tell_debugged(&mut self, number: AppNumber, spu: u16, told: &Told) {
        if matches!(told, Told::Leave) {
            self.charge_looks(number, spu);
        }
        let Some(debugger) = self.debugger(number, spu) else { return };
        let goes_on = match told {
            Told::Breakpoints(breakpoints) => {
                debugger.set_breakpoints(breakpoints.clone());
                false
            }
            Told::Pause => {
                debugger.pause();
                false
            }
            Told::GoOn(mode) => debugger.go_on(*mode),
            Told::Leave => debugger.leave(),
        };
        let resident = &self.spus[usize::from(spu)].residents[usize::from(number)];
        if let (true, Some(suspended)) = (goes_on, &resident.suspended) {
            let (account, incarnation) = (suspended.account(), resident.incarnation);
            let account = self.resumes_as(account, number, spu);
            self.make_due(account, number, Event::Resume { spu, app: number, incarnation });
        }
    }
}
