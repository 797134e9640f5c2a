//! SPU-OS: the state that imports work on. Activities (requests being handled), groups (what a handler's wait waits for), app
//! table, media controller, bridge, events. Handlers' calls come in through [`super::wasm`] or [`super::native`]; the run loop is
//! `drive`.
//!
//! Invariants:
//! - A token names an activity of one app on one SPU; from any other caller it finds nothing (protection, Willow 2.6).
//! - Every activity ends exactly once: by the app's response, or because the app ended. Pending DMAs are drained first.
//! - A group's completion goes to the incarnation of the app that began it, or nowhere.

use super::abi;
pub(crate) use super::activity::{Activity, Admission, Caller, Origin, SpuOrigin, UNPLACED};
pub(crate) use super::app::AppState;
use super::clock::Clock;
use super::continuation::{Continuation, Pending};
use super::flash_job::FlashJobs;
use super::ftl::Ftl;
use super::gate::Charged;
use super::group::Group;
use super::news::News;
use super::pace::Watch;
use super::protection::Protection;
use super::published::Published;
use super::rest::Line;
use super::rpc::Message;
use super::unit::Spu;
use crate::bridge::Bridge;
use crate::bridge::accounts::{AccountLimits, Accounts};
use crate::config::DeviceConfig;
use crate::interconnect::event::{Event, EventQueue};
use crate::interconnect::{Endpoint, Key};
use crate::media::controller::MediaController;
use crate::media::store::{Store, StoreError};
use crate::model::Timing;
use crate::request::{AppNumber, RpcOutcome};
use crate::shared::{ReplySpan, ReplyTo};
use std::sync::Arc;
pub(crate) use willow_gate::{LocalMemory, WildPointer};

/// True where a test has planted that weakness: never but in builds for tests.
#[cfg(feature = "testing")]
macro_rules! planted {
    ($machine:expr, $hole:ident) => {
        $machine.hole == Some(crate::spu::hole::Hole::$hole)
    };
}
#[cfg(not(feature = "testing"))]
macro_rules! planted {
    ($machine:expr, $hole:ident) => {
        false
    };
}
pub(crate) use planted;

/// SPU-OS of all SPUs.
pub(crate) struct Machine {
    /// Now: under a model, when the event that is being handled was due.
    pub now_ns: u64,
    /// The clock of whoever drives the device: when what hosts hand in comes.
    pub(super) host_now_ns: u64,
    pub config: DeviceConfig,
    pub(super) clock: Clock,
    pub events: EventQueue,
    pub bridge: Bridge,
    /// By number.
    pub(super) spus: Vec<Spu>,
    /// DMAs that wait for a place among the store's operations, and who has which places there.
    pub(super) line: Line,
    pub media: MediaController<Pending, Continuation>,
    /// Operations of flash that take time.
    pub(super) flash: FlashJobs,
    pub(super) published: Arc<Published>,
    pub protection: Protection,
    /// The version of an app that is being made ready.
    pub(super) staging: Option<Box<AppState>>,
    /// Who serves the banks, where an app does.
    pub(super) ftl: Ftl,
    pub(super) apps: Vec<Option<AppState>>,
    /// What it has for the control service.
    pub news: News,
    /// Answers and ends that nobody waited for any more, since the device started.
    pub(super) strays: u64,
    /// The clock of whoever drives the device.
    pub(super) watch: Watch,
    /// What was done beside runs of handlers and is not counted by the drive yet.
    beside_cost: u64,
    /// A weakness that a test has planted.
    #[cfg(feature = "testing")]
    pub hole: Option<crate::spu::hole::Hole>,
    /// Walks through all activities, for tests.
    #[cfg(feature = "testing")]
    pub walks: u64,
}

/// The error number of a store's failure.
pub(crate) fn error_of(error: StoreError) -> i32 {
    match error {
        StoreError::Full => abi::ERROR_FULL,
        StoreError::Failed(_) => abi::ERROR_MEDIA,
        StoreError::Range => abi::ERROR_RANGE,
        StoreError::Busy => abi::ERROR_REFUSED,
    }
}

impl Machine {
    /// SPU-OS over a store, with what is published at first, and users' weights.
    pub fn new(
        config: DeviceConfig,
        store: Box<dyn Store>,
        timing: Option<Box<dyn Timing>>,
        published: Published,
        weights: &[(u32, u16)],
    ) -> Self {
        let limits = AccountLimits {
            requests_max: config.requests_per_process_max,
            begun_max: config.handlers_per_process_max,
            spus: config.spus,
        };
        let accounts = Accounts::new(limits, config.kernel_weight, weights, &config.user_weights);
        Machine {
            now_ns: 0,
            host_now_ns: 0,
            clock: Clock::new(timing),
            events: EventQueue::default(),
            bridge: Bridge::new(config.requests_per_hre_max, accounts),
            spus: (0..config.spus).map(|_| Spu::new(&config)).collect(),
            line: Line::default(),
            flash: FlashJobs::new(store.served_by().is_some(), config.spus),
            media: MediaController::new(store),
            published: Arc::new(published),
            protection: Protection::new(),
            staging: None,
            ftl: Ftl::new(config.spus),
            apps: (0..config.apps_max).map(|_| None).collect(),
            news: News::new(config.apps_max),
            strays: 0,
            watch: Watch::default(),
            beside_cost: 0,
            #[cfg(feature = "testing")]
            hole: None,
            #[cfg(feature = "testing")]
            walks: 0,
            config,
        }
    }

    /// Something has ended that nobody waits for: an obligation was met twice, or dropped before. It is a defect of SPU-OS: counted, told, and
    /// where there are debug assertions the end.
    #[cold]
    pub fn stray(&mut self, what: &str) {
        self.strays += 1;
        tracing::error!("a defect of SPU-OS: {what}");
        debug_assert!(false, "{what}");
    }

    /// Something was done beside runs of handlers that whoever waits for the device waits for: as many instructions would take as long.
    pub fn costs_beside(&mut self, cost: u64) {
        self.beside_cost += cost;
    }

    /// What was done so since this was asked last, for the drive.
    #[inline]
    pub fn take_beside_cost(&mut self) -> u64 {
        std::mem::take(&mut self.beside_cost)
    }

    /// The clock of whoever drives the device: when what hosts hand in comes.
    pub fn host_now_ns(&self) -> u64 {
        self.host_now_ns
    }

    /// That clock goes on.
    #[inline]
    pub fn host_time_is(&mut self, now_ns: u64) {
        self.host_now_ns = self.host_now_ns.max(now_ns);
    }

    /// Under the free clock: it is this time, for hosts as well.
    #[inline]
    pub fn time_is(&mut self, now_ns: u64) {
        (self.now_ns, self.host_now_ns, self.bridge.now_ns) = (now_ns, now_ns, now_ns);
    }

    /// Answers and ends of operations that nobody waited for any more.
    pub fn strays(&self) -> u64 {
        self.strays + self.bridge.strays
    }

    /// The app's entry, if there is one.
    #[inline]
    pub fn app(&mut self, number: AppNumber) -> Option<&mut AppState> {
        self.apps.get_mut(number as usize)?.as_mut()
    }

    /// The activity of a key.
    #[inline(always)]
    pub fn activity_at(&self, token: Key) -> Option<&Activity> {
        self.spus[token.spu as usize].activities.get(token.key)
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn activity_at_mut(&mut self, token: Key) -> Option<&mut Activity> {
        self.spus[token.spu as usize].activities.get_mut(token.key)
    }

    /// Requests at all SPUs.
    pub fn activities(&self) -> usize {
        self.spus.iter().map(|spu| spu.activities.len()).sum()
    }

    /// All activities, in order of SPU and then of place. That is a walk through what all hosts and apps have: who has it done is charged for it,
    /// or waits with it, and nothing does it again and again.
    pub fn all_activities(&self) -> impl Iterator<Item = (Key, &Activity)> {
        self.spus
            .iter()
            .zip(0..)
            .flat_map(|(at, spu)| at.activities.iter().map(move |(key, activity)| (Key { spu, key }, activity)))
    }

    /// For tests: somebody looks at all of them.
    #[inline]
    pub fn note_walk(&mut self) {
        #[cfg(feature = "testing")]
        {
            self.walks += 1;
        }
    }

    /// Keys of all activities.
    pub fn activity_keys(&self) -> Vec<Key> {
        self.all_activities().map(|(key, _)| key).collect()
    }

    /// The group of a key.
    #[inline(always)]
    pub fn group_at(&self, group: Key) -> Option<&Group> {
        self.spus[group.spu as usize].groups.get(group.key)
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn group_at_mut(&mut self, group: Key) -> Option<&mut Group> {
        self.spus[group.spu as usize].groups.get_mut(group.key)
    }

    /// The message of a key, to be changed.
    #[inline]
    pub fn message_at_mut(&mut self, handle: Key) -> Option<&mut Message> {
        self.spus[handle.spu as usize].messages.get_mut(handle.key)
    }

    /// The caller's activity of a token.
    #[inline(always)]
    pub fn activity(&mut self, caller: Caller, token: u32) -> Option<&mut Activity> {
        let activity = self.spus[caller.spu as usize].activities.get_mut(token)?;
        let is_own = activity.app == caller.app || planted!(self, TakesOthersTokens);
        (is_own && !activity.ending.is_answered()).then_some(activity)
    }

    /// Bytes of an activity's payload (its body after the arguments).
    fn payload<'a>(bridge: &'a Bridge, activity: &'a Activity) -> &'a [u8] {
        match &activity.origin {
            Origin::Host { transfer } => match bridge.transfers.get(*transfer) {
                Some(transfer) => &transfer.buffer[..transfer.payload_bytes as usize],
                None => &[],
            },
            Origin::Spu(origin) => &origin.body,
            Origin::Event { .. } | Origin::Bank { .. } | Origin::Background => &[],
        }
    }

    /// Bytes of an activity's body.
    pub fn body_bytes(&self, activity: &Activity) -> u64 {
        (activity.arguments.as_slice().len() + Self::payload(&self.bridge, activity).len()) as u64
    }

    /// Copies a range of a body out; `None` where it is past the end.
    pub fn copy_body(&self, token: Key, offset: u64, into: &mut [u8]) -> Option<()> {
        let activity = self.activity_at(token)?;
        let arguments = activity.arguments.as_slice();
        let payload = Self::payload(&self.bridge, activity);
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(into.len())?;
        if end > arguments.len() + payload.len() {
            return None;
        }
        let from_arguments = arguments.len().saturating_sub(offset).min(into.len());
        if from_arguments > 0 {
            into[..from_arguments].copy_from_slice(&arguments[offset..offset + from_arguments]);
        }
        let begin = (offset + from_arguments) - arguments.len().min(offset + from_arguments);
        let count = into.len() - from_arguments;
        into[from_arguments..].copy_from_slice(&payload[begin..begin + count]);
        Some(())
    }

    /// Looks at a range of a body: in place where it lies within the payload, else at a copy. `None` where it is past the end.
    pub fn with_body<R>(&self, token: Key, offset: u64, bytes: usize, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let activity = self.activity_at(token)?;
        if let Some(range) = Self::payload_range(&self.bridge, activity, offset, bytes) {
            return Some(look(range));
        }
        let mut copy = vec![0; bytes];
        self.copy_body(token, offset, &mut copy)?;
        Some(look(&copy))
    }

    /// A range of a body in place, where it lies within the payload.
    #[inline]
    pub fn payload_range<'a>(
        bridge: &'a Bridge,
        activity: &'a Activity,
        offset: u64,
        bytes: usize,
    ) -> Option<&'a [u8]> {
        let begin = usize::try_from(offset).ok()?.checked_sub(activity.arguments.as_slice().len())?;
        Self::payload(bridge, activity).get(begin..begin.checked_add(bytes)?)
    }

    /// A range of an activity's reply buffer, counted as written.
    #[inline(always)]
    pub fn reply_range<'a>(
        bridge: &'a mut Bridge,
        activity: &'a mut Activity,
        offset: u64,
        bytes: usize,
    ) -> Option<ReplySpan<'a>> {
        let begin = usize::try_from(offset).ok()?;
        let end = begin.checked_add(bytes)?;
        activity.replied_bytes += bytes as u64;
        match &mut activity.origin {
            Origin::Host { transfer } => {
                let transfer = bridge.transfers.get_mut(*transfer)?;
                if end > transfer.reply_bytes as usize {
                    return None;
                }
                transfer.reply_high = transfer.reply_high.max(end as u32);
                match &mut transfer.reply_to {
                    ReplyTo::Buffer => transfer.buffer.get_mut(begin..end).map(ReplySpan::Private),
                    ReplyTo::Window(window) => window.span(begin, end).map(ReplySpan::Shared),
                    ReplyTo::Nowhere => Some(ReplySpan::Nowhere(bytes)),
                }
            }
            Origin::Spu(origin) => origin.reply.get_mut(begin..end).map(ReplySpan::Private),
            Origin::Event { .. } | Origin::Bank { .. } | Origin::Background => None,
        }
    }

    /// Writes the begin of an activity's reply, as far as there is room.
    pub fn write_reply(&mut self, token: Key, reply: &[u8]) {
        let Some(activity) = self.spus[token.spu as usize].activities.get_mut(token.key) else { return };
        let room = match &activity.origin {
            Origin::Host { transfer } => {
                self.bridge.transfers.get(*transfer).map_or(0, |transfer| transfer.reply_bytes as usize)
            }
            Origin::Spu(origin) => origin.reply.len(),
            Origin::Event { .. } | Origin::Bank { .. } | Origin::Background => 0,
        };
        let count = reply.len().min(room);
        if let Some(mut into) = Self::reply_range(&mut self.bridge, activity, 0, count) {
            into.copy_from(&reply[..count]);
        }
    }

    /// Ends a request that is its app's for sure, once its pending DMAs have drained.
    #[inline(always)]
    pub fn respond_to(&mut self, token: Key, status: u32, result: u32) {
        let Some(activity) = self.activity_at_mut(token) else { return };
        if let Some((status, result)) = activity.ending.answer(status, result) {
            self.end_activity(token, RpcOutcome::Answered { status }, result);
        }
    }

    /// A pending DMA of an activity has drained.
    #[inline(always)]
    pub fn drained(&mut self, token: Key) {
        let Some(activity) = self.activity_at_mut(token) else { return };
        if let Some((status, result)) = activity.ending.ended() {
            self.end_activity(token, RpcOutcome::Answered { status }, result);
        }
    }

    /// Ends an activity and tells whoever asked.
    #[inline(always)]
    pub fn end_activity(&mut self, token: Key, outcome: RpcOutcome, result: u32) {
        // The usual one goes without being moved.
        if let Some(&Activity { origin: Origin::Host { transfer }, account, spu, state, replied_bytes, .. }) =
            self.activity_at(token)
        {
            self.spus[spu as usize].activities.discard(token.key);
            self.host_request_ended(account, spu, state.is_placed());
            if planted!(self, AnswersTwice) {
                self.bridge.answer_twice(transfer);
            }
            // With what of the reply has not gone ahead.
            let ends = (Endpoint::Spu(spu), Endpoint::Host);
            return self.transmit(|| Event::Response { transfer, outcome, result }, ends, |_| (0, replied_bytes));
        }
        self.end_message(token, outcome, result);
    }

    /// Ends an activity that no host asked for.
    #[cold]
    fn end_message(&mut self, token: Key, outcome: RpcOutcome, result: u32) {
        let Some(activity) = self.spus[token.spu as usize].activities.remove(token.key) else {
            return self.stray("the end of a request that has ended");
        };
        match activity.origin {
            Origin::Host { .. } => {}
            Origin::Spu(origin) => {
                let SpuOrigin { group, sender, users, reply, reply_pointer, .. } = *origin;
                self.spus[activity.spu as usize].release_inbox((sender.app, users));
                self.message_gone(sender);
                let result = match outcome {
                    RpcOutcome::Answered { status } => (u64::from(status) << 32 | u64::from(result)) as i64,
                    RpcOutcome::AppEnded | RpcOutcome::Aborted => i64::from(abi::ERROR_ENDED),
                    RpcOutcome::NotPermitted => i64::from(abi::ERROR_PERMISSION),
                    _ => i64::from(abi::ERROR_REFUSED),
                };
                let memory = (!reply.is_empty() && result >= 0).then(|| Box::new((reply_pointer, reply)));
                let bytes = memory.as_ref().map_or(0, |memory| memory.1.len() as u64);
                let ends = (Endpoint::Spu(activity.spu), Endpoint::Spu(sender.spu));
                self.transmit(|| Event::End { group, result, memory }, ends, |_| (0, bytes));
            }
            Origin::Event { watch } => {
                self.bridge.accounts.end_own(activity.account);
                let status = if let RpcOutcome::Answered { status } = outcome { status } else { 0 };
                self.news.answered(watch, status);
            }
            Origin::Bank { peer } => {
                let of = (activity.spu, activity.handler, activity.state.is_begun());
                self.bank_answered(peer, outcome, of);
            }
            Origin::Background => {
                self.bridge.accounts.end_own(activity.account);
                self.spus[activity.spu as usize].backgrounds.release(activity.app, 1);
            }
        }
    }

    /// `print`: to the virtual serial port, a line at a time.
    pub fn print(&mut self, caller: Caller, text: &[u8], _: Charged) {
        let staging = self.staging.as_deref_mut().filter(|_| caller.app == UNPLACED);
        let Some(app) = staging.or(self.apps.get_mut(caller.app as usize).and_then(Option::as_mut)) else {
            return;
        };
        let mut partial = app.partial_lines.remove(&caller.spu).unwrap_or_default();
        let mut end_line = |partial: &mut Vec<u8>| {
            app.push_line(format!("{}: {}", caller.spu, String::from_utf8_lossy(partial)));
            partial.clear();
        };
        for (number, piece) in text.split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                end_line(&mut partial);
            }
            let room = abi::PRINT_BYTES_MAX as usize - partial.len();
            let (fits, rest) = piece.split_at(piece.len().min(room));
            partial.extend_from_slice(fits);
            if !rest.is_empty() {
                end_line(&mut partial);
                partial.extend_from_slice(rest);
            }
        }
        app.partial_lines.insert(caller.spu, partial);
    }

    /// `count`: adds to one of the app's own counters.
    pub fn count(&mut self, caller: Caller, counter: u32, delta: i64) {
        let counters = self.app(caller.app).map(|app| &mut app.user_counters);
        if let Some(value) = counters.and_then(|counters| counters.get_mut(counter as usize)) {
            *value = value.wrapping_add(delta);
        }
    }

    /// Number of a running app.
    pub fn find_app(&self, name: &[u8]) -> Option<AppNumber> {
        let matching = |app: &Option<AppState>| app.as_ref().is_some_and(|app| app.name.as_bytes() == name);
        self.apps.iter().position(matching).map(|number| number as AppNumber)
    }
}

// SPU-OS, with the apps' instances and the store, may move to another thread between two calls.
const _: () = {
    const fn moves_between_threads<T: Send>() {}
    moves_between_threads::<Machine>();
};
