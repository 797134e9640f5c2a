//! Profiles of apps: requests of the control service that begin one, read it and end it, and what is counted meanwhile.
//!
//! What always holds:
//! - A device profiles one app at a time, for [`PROFILE_MS_MAX`] at most; the profile ends with its endpoint, its time, and its app's version.
//!   However it ends, nothing of it is left: no wrapper, no timer.
//! - Where other users wait for one, it ends after [`TURN_NS_MAX`], and the next is theirs, in the order in which they asked ([`Line`]).
//! - What it takes to look and to tell is charged to whose profile it is.
//! - It is for the app's owner and the host's kernel alone.
//! - Samples of the processor come from whoever runs the device ([`Sampler`]); without one, waits and runs are counted all the same.

use super::core::Core;
use super::protection::word;
use super::versions::Program;
use super::{Answer, Service, refuse};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::request::AppNumber;
use crate::service::control::{
    ControlStatus, ProfileReport, ProfiledFunction, ProfiledRuns, ProfiledStack, ProfiledWaits,
};
use crate::spu::autopsy::readable;
use crate::spu::profile::{CONTINUED, For, Sampler};
use std::collections::BTreeMap;

/// Longest profile.
pub const PROFILE_MS_MAX: u32 = 600_000;
/// Processor time between two samples.
pub const SAMPLE_NS: u64 = 1_000_000;
/// Time between two looks at what is waited for.
pub const LOOK_NS: u64 = 5_000_000;
/// How long a profile lasts for which another user waits.
pub const TURN_NS_MAX: u64 = 10_000_000_000;
/// Who waits for a profile asks again within this time.
const ASKED_NS: u64 = 5_000_000_000;
/// Users who wait.
const LINE_MAX: usize = 32;
/// What a look costs, and each place of a wait that it goes through, in instructions.
const LOOK_COST: u64 = 2_000;
const WAIT_COST: u64 = 80;
/// What a report costs for each function of a sample: it is found by its address, and told.
const SAMPLED_COST: u64 = 500;
/// Different stacks that one report tells apart; what is more is counted as lost.
const STACKS_MAX: usize = 16_384;
/// Different waits that one report tells apart.
const WAITS_MAX: usize = 16_384;

/// What may lie between two compiled functions.
const GAP_BYTES_MAX: usize = 64;

/// A compiled function.
struct Place {
    begin: usize,
    end: usize,
    index: u32,
    name: Option<String>,
}

/// Users who wait for a profile, each with when it asked last; who comes first is next. Who does not ask again is forgotten.
#[derive(Default)]
pub(super) struct Line(Vec<(Option<u32>, u64)>);

impl Line {
    /// Those who still wait.
    fn forget_gone(&mut self, now_ns: u64) {
        self.0.retain(|(_, asked_ns)| now_ns.saturating_sub(*asked_ns) <= ASKED_NS);
    }

    /// A user asks, who cannot have a profile now. False where the line is full.
    fn joins(&mut self, user: Option<u32>, now_ns: u64) -> bool {
        if let Some(waiting) = self.0.iter_mut().find(|(waiting, _)| *waiting == user) {
            waiting.1 = now_ns;
            return true;
        }
        let has_room = self.0.len() < LINE_MAX;
        if has_room {
            self.0.push((user, now_ns));
        }
        has_room
    }

    /// True where it is this user's turn; it does not wait any more then.
    fn takes(&mut self, user: Option<u32>) -> bool {
        let is_next = self.0.first().is_none_or(|(waiting, _)| *waiting == user);
        if is_next {
            self.0.retain(|(waiting, _)| *waiting != user);
        }
        is_next
    }
}

/// A profile under way.
pub(super) struct Session {
    app: AppNumber,
    name: String,
    hre: HreId,
    user: Option<u32>,
    /// Who pays for it.
    account: u16,
    begun_ns: u64,
    until_ns: u64,
    look_ns: u64,
    looks: u64,
    is_sampled: bool,
    /// By address.
    places: Vec<Place>,
    waits: BTreeMap<(u16, u8, For), u64>,
    lost: u64,
    /// What is being read.
    report: Vec<u8>,
}

impl Session {
    /// When it wants to be looked at.
    pub fn deadline_ns(&self) -> u64 {
        self.look_ns.min(self.until_ns)
    }

    /// Another user waits.
    fn ends_for_others(&mut self, now_ns: u64) {
        self.until_ns = self.until_ns.min(now_ns.max(self.begun_ns + TURN_NS_MAX));
    }

    /// Which function an address is in.
    fn place(&self, address: usize) -> Option<&Place> {
        let at = self.places.partition_point(|place| place.end <= address);
        self.places.get(at).filter(|place| place.begin <= address)
    }
}

/// Compiled functions of a program, by address; the error says why it has none.
fn places_of(program: &Program) -> Result<Vec<Place>, String> {
    let module = match program {
        Program::Wasm(pre) | Program::Users(pre) | Program::Long(pre) | Program::Debug(pre) => pre.module(),
        Program::Native(_) => return Err("it is built natively: profile the device's process instead".to_owned()),
    };
    let text = module.text().as_ptr() as usize;
    let place = |function: wasmtime::ModuleFunction| Place {
        begin: text + function.offset,
        end: text + function.offset + function.len,
        index: function.index.as_u32(),
        name: function.name.as_deref().map(readable),
    };
    let mut places: Vec<Place> = module.functions().map(place).collect();
    places.sort_by_key(|place| place.begin);
    // Between them lies nothing but what fills them up: what is sampled there keeps frame pointers.
    match places.windows(2).all(|pair| pair[1].begin.wrapping_sub(pair[0].end) <= GAP_BYTES_MAX) {
        true => Ok(places),
        false => Err("its compiled functions do not lie side by side".to_owned()),
    }
}

impl Core {
    /// Samples the processor for profiles from now on.
    pub fn set_sampler(&mut self, sampler: Box<dyn Sampler>) {
        self.sampler = Some(sampler);
    }

    /// Payload: u32 app, u32 milliseconds.
    pub(super) fn begin_profile(&mut self, hre: HreId, body: &[u8]) -> Answer {
        let user = self.machine.protection.user(hre);
        let (Some(number), Some(milliseconds)) = (word(body, 0), word(body, 4)) else {
            return refuse(ControlStatus::Malformed, "a profile has 8 bytes: u32 app, u32 milliseconds");
        };
        if !(1..=PROFILE_MS_MAX).contains(&milliseconds) {
            let text = format!("a profile takes 1 to {PROFILE_MS_MAX} milliseconds, not {milliseconds}");
            return refuse(ControlStatus::Malformed, text);
        }
        let app = self.own_app(user, number)?;
        let name = self.machine.app_at(app).map(|app| app.name.clone()).unwrap_or_default();
        let now_ns = self.machine.now_ns;
        let Service { profile, profile_line, .. } = &mut self.service;
        profile_line.forget_gone(now_ns);
        if let Some(session) = profile {
            // Whose it is, is nobody else's affair.
            let which = if session.hre == hre { session.name.as_str() } else { "an app" };
            let busy = format!("{which} is being profiled, and a device profiles one at a time");
            if session.user == user {
                return refuse(ControlStatus::Busy, busy);
            }
            session.ends_for_others(now_ns);
            let left_ms = session.until_ns.saturating_sub(now_ns).div_ceil(1_000_000);
            let when = match profile_line.joins(user, now_ns) {
                true => format!("it ends within {left_ms} ms for those who wait; ask again every few seconds"),
                false => format!("{LINE_MAX} users wait already"),
            };
            return refuse(ControlStatus::Busy, format!("{busy}: {when}"));
        }
        if !profile_line.takes(user) {
            let _ = profile_line.joins(user, now_ns);
            let text = "others have waited longer for a profile: ask again every few seconds";
            return refuse(ControlStatus::Busy, text);
        }
        if !self.machine.is_running(app) || self.is_changing(&name) {
            return refuse(ControlStatus::Busy, format!("app {name} does not run at this moment"));
        }
        if self.machine.is_debugged(app) {
            let text = format!("app {name} was started for a debugger: reset it first, and then profile it as it is");
            return refuse(ControlStatus::Busy, text);
        }
        let Some(program) = &self.programs[usize::from(app)] else {
            return refuse(ControlStatus::NotFound, format!("app {name} never came up"));
        };
        let places = match places_of(program) {
            Ok(places) => places,
            Err(why) => return refuse(ControlStatus::NotFound, format!("app {name} cannot be profiled: {why}")),
        };
        let is_sampled = match (&mut self.sampler, places.first(), places.last()) {
            (Some(sampler), Some(first), Some(last)) => match sampler.start(first.begin..last.end, SAMPLE_NS) {
                Ok(()) => true,
                Err(why) => return refuse(ControlStatus::Busy, format!("the processor cannot be sampled: {why}")),
            },
            _ => false,
        };
        self.machine.watch(app);
        let account = self.machine.bridge.account_of(hre);
        let mut session = Session {
            app,
            name,
            hre,
            user,
            account,
            begun_ns: now_ns,
            until_ns: now_ns + u64::from(milliseconds) * 1_000_000,
            look_ns: now_ns + LOOK_NS,
            looks: 0,
            is_sampled,
            places,
            waits: BTreeMap::new(),
            lost: 0,
            report: Vec::new(),
        };
        if !self.service.profile_line.0.is_empty() {
            session.ends_for_others(now_ns);
        }
        self.service.profile = Some(session);
        Ok(0)
    }

    /// Reply: what was counted since the last reply from offset 0 on.
    pub(super) fn read_profile(&mut self, token: Key, hre: HreId, arguments: &[u8]) -> Answer {
        if self.service.profile.as_ref().is_none_or(|session| session.hre != hre) {
            return refuse(
                ControlStatus::NotFound,
                "no profile of this endpoint is under way: it has ended with its time, or its app, or since other users wait for theirs",
            );
        }
        if word(arguments, 0) == Some(0) {
            self.make_report();
        }
        let report =
            self.service.profile.as_mut().map(|session| std::mem::take(&mut session.report)).unwrap_or_default();
        let answer = self.reply(token, arguments, &report);
        if let Some(session) = &mut self.service.profile {
            session.report = report;
        }
        answer
    }

    /// Ends the endpoint's profile.
    pub(super) fn stop_profile(&mut self, hre: HreId) -> Answer {
        match &self.service.profile {
            Some(session) if session.hre == hre => {
                self.end_profile();
                Ok(0)
            }
            _ => refuse(ControlStatus::NotFound, "no profile of this endpoint is under way"),
        }
    }

    /// The endpoint is gone, and its profile with it.
    pub(super) fn forget_profile(&mut self, hre: HreId) {
        if self.service.profile.as_ref().is_some_and(|session| session.hre == hre) {
            self.end_profile();
        }
    }

    #[cold]
    fn end_profile(&mut self) {
        let Some(session) = self.service.profile.take() else { return };
        if let (true, Some(sampler)) = (session.is_sampled, &mut self.sampler) {
            sampler.stop();
        }
        self.machine.unwatch(session.app);
    }

    /// Goes on with the profile, where there is one.
    #[inline]
    pub(super) fn serve_profile(&mut self, now_ns: u64) {
        if self.service.profile.as_ref().is_some_and(|session| now_ns >= session.deadline_ns()) {
            self.look_at_profile(now_ns);
        }
    }

    #[cold]
    fn look_at_profile(&mut self, now_ns: u64) {
        let Some(session) = &mut self.service.profile else { return };
        let is_over = now_ns >= session.until_ns || !self.machine.is_watched(session.app);
        if is_over {
            return self.end_profile();
        }
        session.look_ns = now_ns + LOOK_NS;
        session.looks += 1;
        let Session { waits, lost, app, account, looks, .. } = session;
        let account = *account;
        let look = self.machine.look_at_waits(*app, *looks, |spu, handler, reason| {
            if waits.len() < WAITS_MAX || waits.contains_key(&(spu, handler, reason)) {
                *waits.entry((spu, handler, reason)).or_default() += 1;
            } else {
                *lost += 1;
            }
        });
        *lost += look.left_out;
        self.machine.did_for(account, LOOK_COST + WAIT_COST * look.places);
    }

    fn make_report(&mut self) {
        let Some(session) = &mut self.service.profile else { return };
        let mut stacks = BTreeMap::<(u16, Vec<u32>), u64>::new();
        let mut named = BTreeMap::<u32, Option<String>>::new();
        let mut lost = std::mem::take(&mut session.lost);
        let mut sampled = 0;
        if let (true, Some(sampler)) = (session.is_sampled, &mut self.sampler) {
            sampler.take(&mut |spu, addresses| {
                sampled += 1 + addresses.len() as u64;
                let mut functions = Vec::with_capacity(addresses.len());
                // The outermost first.
                for address in addresses.iter().rev() {
                    let Some(place) = session.place(*address) else { continue };
                    functions.push(place.index);
                    named.entry(place.index).or_insert_with(|| place.name.clone());
                }
                let key = (spu, functions);
                if stacks.len() < STACKS_MAX || stacks.contains_key(&key) {
                    *stacks.entry(key).or_default() += 1;
                } else {
                    lost += 1;
                }
            });
            lost += sampler.lost();
        }
        let runs = self.machine.take_runs(session.app).into_iter().map(|(spu, kind, runs)| ProfiledRuns {
            spu,
            handler: (kind != CONTINUED).then_some(kind as u8),
            count: runs.count,
            instructions: runs.instructions,
        });
        let waits = std::mem::take(&mut session.waits).into_iter().map(|((spu, handler, reason), count)| {
            ProfiledWaits { spu, handler, reason: reason.text().to_owned(), count }
        });
        let report = ProfileReport {
            app: session.name.clone(),
            elapsed_ns: self.machine.now_ns - session.begun_ns,
            is_sampled: session.is_sampled,
            sample_ns: SAMPLE_NS,
            look_ns: LOOK_NS,
            lost,
            functions: named.into_iter().map(|(index, name)| ProfiledFunction { index, name }).collect(),
            stacks: stacks
                .into_iter()
                .map(|((spu, functions), count)| ProfiledStack { spu, functions, count })
                .collect(),
            runs: runs.collect(),
            waits: waits.collect(),
        };
        session.report = serde_json::to_vec(&report).unwrap_or_default();
        let account = session.account;
        self.machine.did_for(account, SAMPLED_COST * sampled);
    }
}
