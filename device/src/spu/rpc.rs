//! RPCs that handlers send, to SPUs and to the originating HRE (upcalls), and the calls about regions, namespaces and durability.
//!
//! Invariants: a message is delivered whole or not at all; a receiver with no room refuses it and the sender is told; the
//! originating HRE of a message is that of the request on whose behalf it is sent.

use super::abi::{self, DONE, PENDING};
use super::activity::State;
use super::continuation::Pending;
use super::group::Under;
use super::meter::{ENTRY_WORK, Fault, MESSAGE_WORK, OverBudget, SEGMENT_WORK, STORE_WORK};
use super::os::{Activity, Admission, Caller, LocalMemory, Machine, Origin, RegionCall, SpuOrigin, error_of};
use super::permission::Rights;
use crate::bridge::UPCALLS_PER_HRE_MAX;
use crate::config::MESSAGES_MAX;
use crate::hre::HreId;
use crate::interconnect::event::{Event, PostedUpcall};
use crate::interconnect::{Endpoint, Key};
use crate::media::store::Progress;
use crate::request::{AppNumber, Arguments, Upcall};

/// Of the messages that are put together those of users' apps, which share these places.
pub const USERS_MESSAGES_MAX: usize = MESSAGES_MAX / 2;
/// Most calls for regions that wait.
pub const REGION_CALLS_MAX: usize = 256;
/// Of one user's app; of all users' apps half.
pub const REGION_CALLS_PER_USER_APP_MAX: usize = 8;

/// A message being put together.
pub(crate) struct Message {
    pub caller: Caller,
    /// The request on whose behalf it is.
    token: u32,
    /// Of a user's app: it has one of that app's places.
    pub users: bool,
    originating: HreId,
    /// Of an upcall: who has subscribed to it.
    to: Option<HreId>,
    account: u16,
    destination: i32,
    app: u16,
    handler: u8,
    body: Vec<u8>,
    body_bytes: usize,
    reply_pointer: u64,
    reply_bytes: u32,
    /// Reads from NV memory that have not ended.
    pub pending: u32,
    error: i32,
    /// `rpc_finish` was called; the group to wake.
    pub finished: Option<Key>,
}

impl Machine {
    /// `rpc_start`.
    pub fn rpc_start<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        token: u32,
        (destination, app, handler, body_bytes): (i32, i32, u32, u32),
        (reply_pointer, reply_bytes): (u64, u32),
    ) -> Result<i32, Fault> {
        if self.activity(caller, token).is_none() {
            return Ok(abi::ERROR_ARGUMENT);
        }
        if body_bytes > abi::MESSAGE_BYTES_MAX || reply_bytes > abi::MESSAGE_BYTES_MAX || !(1..=255).contains(&handler)
        {
            return Ok(abi::ERROR_ARGUMENT);
        }
        // The FTL waits for flash and peers alone: what it asked another app for might wait for the FTL.
        let circle = destination >= 0 && self.ftl() == Some(caller.app);
        if circle || destination < -1 || destination >= self.spus.len() as i32 {
            return Ok(abi::ERROR_REFUSED);
        }
        memory.slice(reply_pointer, reply_bytes as usize)?;
        let app = if app == -1 { caller.app } else { app as u16 };
        let message = (destination, app, handler as u8, body_bytes);
        Ok(self.draft(caller, token, message, (reply_pointer, reply_bytes), None)?)
    }

    /// Begins a message that is put together; its handle, or an error.
    pub(super) fn draft(
        &mut self,
        caller: Caller,
        token: u32,
        (destination, app, handler, body_bytes): (i32, u16, u8, u32),
        (reply_pointer, reply_bytes): (u64, u32),
        to: Option<HreId>,
    ) -> Result<i32, OverBudget> {
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        if body_bytes > abi::MESSAGE_BYTES_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        self.meter.charge(MESSAGE_WORK)?;
        self.meter.charge_bytes(u64::from(body_bytes) + u64::from(reply_bytes))?;
        let Some(users) = self.place_for_message(caller.app) else { return Ok(abi::ERROR_REFUSED) };
        let account = self.running;
        let message = || Message {
            caller,
            token,
            users,
            originating,
            to,
            account,
            destination,
            app,
            handler,
            body: Vec::with_capacity(body_bytes as usize),
            body_bytes: body_bytes as usize,
            reply_pointer,
            reply_bytes,
            pending: 0,
            error: 0,
            finished: None,
        };
        self.held.messages += 1;
        Ok(self.spus[caller.spu as usize].messages.put(message) as i32)
    }

    fn message(&mut self, caller: Caller, handle: i32) -> Option<&mut Message> {
        let message = self.spus[caller.spu as usize].messages.get_mut(u32::try_from(handle).ok()?)?;
        (message.caller == caller && message.finished.is_none()).then_some(message)
    }

    /// `rpc_append`; an error gives the handle back.
    pub fn rpc_append<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        handle: i32,
        port: u32,
        address: u64,
        bytes: u32,
    ) -> Result<i32, Fault> {
        let appended = self.append(caller, memory, handle, port, address, bytes)?;
        if appended < 0 && self.message(caller, handle).is_some() {
            self.remove_message(caller.at(handle as u32));
        }
        Ok(appended)
    }

    fn append<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        handle: i32,
        port: u32,
        address: u64,
        bytes: u32,
    ) -> Result<i32, Fault> {
        let Some(message) = self.message(caller, handle) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = message.originating;
        if message.body.len() + bytes as usize > message.body_bytes {
            return Ok(abi::ERROR_ARGUMENT);
        }
        self.meter.charge(SEGMENT_WORK)?;
        self.meter.charge_bytes(bytes.into())?;
        let Some(message) = self.message_at_mut(caller.at(handle as u32)) else { return Ok(abi::ERROR_ARGUMENT) };
        match port {
            abi::PORT_LOCAL => {
                message.body.extend_from_slice(memory.slice(address, bytes as usize)?);
                Ok(abi::DONE)
            }
            abi::PORT_NV if !self.may_begin(caller) => Ok(abi::ERROR_REFUSED),
            abi::PORT_NV => {
                if !self.permitted(caller, originating, address, u64::from(bytes), Rights::READ) {
                    return Ok(abi::ERROR_PERMISSION);
                }
                let bank = caller.spu as usize;
                self.spus[bank].counters.nv_read_bytes += u64::from(bytes);
                let mut read = vec![0; bytes as usize];
                let progress = self.media.store.read(bank, address, &mut read);
                let Some(message) = self.message_at_mut(caller.at(handle as u32)) else {
                    return Ok(abi::ERROR_ARGUMENT);
                };
                let offset = message.body.len();
                message.body.extend_from_slice(&read);
                self.message_takes(caller, caller.at(handle as u32), address, bytes);
                let Some(message) = self.message_at_mut(caller.at(handle as u32)) else {
                    return Ok(abi::ERROR_ARGUMENT);
                };
                match progress {
                    Ok(Progress::Done) => Ok(abi::DONE),
                    Ok(Progress::WouldBlock) => {
                        message.pending += 1;
                        let account = message.account;
                        let pending = Pending::ToMessage { handle: caller.at(handle as u32), offset, account };
                        if !self.place_for_single(caller, account) {
                            // The message goes with the error.
                            return Ok(abi::ERROR_REFUSED);
                        }
                        match self.media.begin_read(bank, address, bytes as usize, pending) {
                            Ok(()) => Ok(abi::DONE),
                            Err(error) => {
                                self.operation_ended(account);
                                if let Some(message) = self.message_at_mut(caller.at(handle as u32)) {
                                    message.pending -= 1;
                                }
                                Ok(error_of(error))
                            }
                        }
                    }
                    Err(error) => Ok(error_of(error)),
                }
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    /// A read for a message's body has ended.
    pub fn message_read(&mut self, handle: Key, offset: usize, result: Result<&[u8], i32>) {
        let Some(message) = self.message_at_mut(handle) else { return };
        message.pending -= 1;
        match result {
            Ok(bytes) => message.body[offset..offset + bytes.len()].copy_from_slice(bytes),
            Err(error) => message.error = error,
        }
        if message.pending == 0
            && let Some(group) = message.finished
        {
            self.post(handle, group);
        }
    }

    /// `rpc_finish`.
    pub fn rpc_finish(&mut self, caller: Caller, handle: i32, wait: u32) -> Result<i32, OverBudget> {
        self.meter.charge(MESSAGE_WORK)?;
        Ok(self.finish(caller, handle, wait))
    }

    fn finish(&mut self, caller: Caller, handle: i32, wait: u32) -> i32 {
        let Some(message) = self.message(caller, handle) else { return abi::ERROR_ARGUMENT };
        if message.body.len() != message.body_bytes {
            self.remove_message(caller.at(handle as u32));
            return abi::ERROR_ARGUMENT;
        }
        let Some(group) = self.group(caller, None, wait) else {
            self.remove_message(caller.at(handle as u32));
            return abi::ERROR_REFUSED;
        };
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        if let Some(app) = self.app(caller.app) {
            app.counters.rpcs += 1;
        }
        let Some(message) = self.message(caller, handle) else { return abi::ERROR_ARGUMENT };
        message.finished = Some(group);
        if message.pending == 0 {
            self.post(caller.at(handle as u32), group);
        }
        PENDING
    }

    /// Sends a message that is complete.
    fn post(&mut self, handle: Key, group: Key) {
        // Its place among the app's messages goes with its answer.
        let Some(message) = self.take_message(handle) else { return };
        let sender = message.caller;
        if message.error != 0 {
            self.message_gone(sender);
            return self.end_one(group, i64::from(message.error), None);
        }
        if message.destination == -1 {
            return self.post_upcall(message, group);
        }
        let spu = message.destination as u16;
        let running = self.apps.get(message.app as usize).and_then(Option::as_ref);
        let takes = running.is_some_and(|app| {
            // What reaches an app that is being replaced is seen when it is delivered.
            let is_changing = app.admission != Admission::Open;
            is_changing || app.ended.is_none() && app.has_handler[message.handler as usize]
        });
        if takes && !self.may_call(message.caller.app, message.app, message.handler, message.originating) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_PERMISSION), None);
        }
        let users = message.users;
        if !takes || !self.spus[spu as usize].reserve_inbox((sender.app, users)) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
        let activity = Activity {
            app: message.app,
            spu,
            handler: message.handler,
            state: State::Arrived,
            originating: message.originating,
            account: message.account,
            arguments: Arguments::EMPTY,
            cursor: 0,
            pending_dmas: 0,
            replied_bytes: 0,
            origin: Origin::Spu(Box::new(SpuOrigin {
                group,
                asked_by: sender.at(message.token),
                sender,
                users,
                body: message.body,
                reply: vec![0; message.reply_bytes as usize],
                reply_pointer: message.reply_pointer,
            })),
        };
        if let Some(token) = self.send(activity.account, spu, || activity, Endpoint::Spu(message.caller.spu)) {
            self.list(group, Under::Request { token });
        } else {
            self.spus[spu as usize].release_inbox((sender.app, users));
            self.message_gone(sender);
            self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
    }

    fn post_upcall(&mut self, message: Message, group: Key) {
        let (sender, hre) = (message.caller, message.to.unwrap_or(message.originating));
        if message.to.is_some() && !self.subscriptions.has(sender.app, hre, message.handler) {
            // It has subscribed no longer.
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_ENDED), None);
        }
        if !self.place_for_upcall(sender, hre) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
        let id = self.next_upcall;
        self.next_upcall += 1;
        let upcall = Upcall {
            id,
            app: message.caller.app,
            handler: message.handler,
            spu: message.caller.spu,
            body: message.body,
        };
        let posted = PostedUpcall { hre, upcall, group };
        self.upcalls.insert(id, (hre, group));
        self.list(group, Under::Upcall { id });
        let ends = (Endpoint::Spu(sender.spu), Endpoint::Host);
        let bytes = posted.upcall.body.len() as u64;
        self.transmit(|| Event::Upcall(posted), ends, |_| (0, bytes));
    }

    /// An upcall is at the bridge.
    pub fn upcall_arrived(&mut self, posted: PostedUpcall) {
        let PostedUpcall { hre, upcall, group } = posted;
        let id = upcall.id;
        // Where its sender has ended meanwhile nobody waits for an answer.
        let wanted = self.upcalls.get(&id).is_some_and(|(_, of)| *of == group);
        if wanted && !self.bridge.push_upcall(hre, upcall, UPCALLS_PER_HRE_MAX) && self.take_upcall(id).is_some() {
            self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
    }

    /// Answers an upcall. False where there is no such upcall waiting for this endpoint.
    pub fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        if self.answer_miss(hre, id, status == 0) {
            return true;
        }
        match self.upcalls.get(&id) {
            Some((of, _)) if *of == hre => {
                let Some(group) = self.take_upcall(id) else { return false };
                let result = (u64::from(status & 0x7fff_ffff) << 32 | u64::from(result)) as i64;
                let ends = (Endpoint::Host, Endpoint::Spu(group.spu));
                self.transmit(|| Event::End { group, result, memory: None }, ends, |_| (0, 0));
                true
            }
            _ => false,
        }
    }

    /// `flush`: this SPU's bank becomes durable.
    pub fn flush_bank(&mut self, caller: Caller, wait: u32) -> i32 {
        // What the FTL flushed would wait for the FTL.
        if self.app(caller.app).is_none() || self.ftl() == Some(caller.app) {
            return abi::ERROR_REFUSED;
        }
        let Some(group) = self.group(caller, None, wait) else { return abi::ERROR_REFUSED };
        let account = self.running;
        if !self.place_for_single(caller, account) {
            return self.settle_group(group, abi::ERROR_REFUSED);
        }
        let flushed = self.media.flush(Some(caller.spu as usize), Pending::Group { group });
        if let Ok(Progress::WouldBlock) = flushed {
            if let Some(group) = self.group_at_mut(group) {
                group.remaining = 1;
            }
            return PENDING;
        }
        self.operation_ended(account);
        self.settle_group(group, flushed.map_or_else(error_of, |_| DONE))
    }

    /// `region`, for one that exists: its base, or `None` where the control service has to make it.
    pub fn region(&mut self, caller: Caller, id: u32, bytes: u64, wait: u32) -> Result<i64, OverBudget> {
        self.charge_region_search()?;
        let Some(name) = self.app(caller.app).map(|app| app.name.clone()) else {
            return Ok(i64::from(abi::ERROR_NOT_FOUND));
        };
        if self.ftl() == Some(caller.app) {
            return Ok(i64::from(abi::ERROR_REFUSED));
        }
        if let Some(region) = self.published.regions.find(&name, id) {
            return Ok(region.base as i64);
        }
        if bytes == 0 {
            return Ok(i64::from(abi::ERROR_NOT_FOUND));
        }
        Ok(match self.region_call(caller, id, Some(bytes), wait)? {
            PENDING => abi::REGION_PENDING,
            error => i64::from(error),
        })
    }

    /// Charges the search for a region of the calling app.
    pub fn charge_region_search(&mut self) -> Result<(), OverBudget> {
        self.meter.charge(self.published.regions.all().len() as u64 * ENTRY_WORK)
    }

    /// `region_free`.
    pub fn region_free(&mut self, caller: Caller, id: u32, wait: u32) -> Result<i32, OverBudget> {
        self.charge_region_search()?;
        let name = self.app(caller.app).map(|app| app.name.clone()).unwrap_or_default();
        match self.published.regions.find(&name, id) {
            None => Ok(abi::ERROR_NOT_FOUND),
            Some(region) if self.published.namespaces.iter().any(|namespace| namespace.base == region.base) => {
                Ok(abi::ERROR_PERMISSION)
            }
            Some(_) => self.region_call(caller, id, None, wait),
        }
    }

    /// True where a user's app may have one more call for regions: the service carries them out between runs.
    fn takes_region_call(&self, app: AppNumber) -> bool {
        let own = self.region_calls.iter().filter(|call| call.app == app).count();
        let of_users = self.region_calls.iter().filter(|call| self.is_users_app(call.app)).count();
        of_users < REGION_CALLS_MAX / 2 && own < REGION_CALLS_PER_USER_APP_MAX
    }

    fn region_call(&mut self, caller: Caller, id: u32, bank_bytes: Option<u64>, wait: u32) -> Result<i32, OverBudget> {
        self.meter.charge(STORE_WORK)?;
        if self.region_calls.len() >= REGION_CALLS_MAX
            || self.is_users_app(caller.app) && !self.takes_region_call(caller.app)
        {
            return Ok(abi::ERROR_REFUSED);
        }
        let Some(group) = self.group(caller, None, wait) else { return Ok(abi::ERROR_REFUSED) };
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        self.region_calls.push_back(RegionCall { group, app: caller.app, id, bank_bytes });
        Ok(PENDING)
    }
}
