//! RPCs that handlers send, to SPUs and to hosts (upcalls).
//!
//! Invariants: a message is delivered whole or not at all; a receiver with no room refuses it and the sender is told; the
//! originating HRE of a message is that of the request on whose behalf it is sent.

use super::abi::{self, PENDING};
use super::activity::{Ending, State};
use super::continuation::Pending;
use super::dma::Port;
use super::gate::{Behalf, Charged};
use super::group::Under;
use super::os::{Activity, Admission, Caller, LocalMemory, Machine, Origin, SpuOrigin, WildPointer, error_of, planted};
use crate::bridge::UPCALLS_PER_HRE_MAX;
use crate::hre::HreId;
use crate::interconnect::event::{Event, PostedUpcall};
use crate::interconnect::{Endpoint, Key};
use crate::media::store::Progress;
use crate::request::{Arguments, Upcall};
pub(crate) use willow_gate::{Append, Draft, Receiver};

/// A message being put together.
pub(crate) struct Message {
    pub caller: Caller,
    /// The request on whose behalf it is.
    token: u32,
    /// Of a user's app: it has one of that app's places.
    pub users: bool,
    pub originating: HreId,
    to: Receiver,
    account: u16,
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
    /// `rpc_start`, `upcall_start`: begins a message that is put together; its handle, or an error.
    pub fn draft(&mut self, caller: Caller, (draft, behalf): (Draft, Behalf), _: Charged) -> i32 {
        let Draft { token, to, handler, body_bytes, reply_pointer, reply_bytes } = draft;
        let Behalf::Of(mut originating) = behalf else { return abi::ERROR_ARGUMENT };
        if planted!(self, MixesOrigins) {
            let activities = &self.spus[caller.spu as usize].activities;
            let keys = activities.keys().into_iter();
            let mut others = keys.filter_map(|key| activities.get(key)).filter(|other| other.app == caller.app);
            let other = others.find(|other| other.originating != originating);
            originating = other.map_or(originating, |other| other.originating);
        }
        match to {
            Receiver::Subscriber(hre)
                if !self.bridge.subscriptions.has(caller.app, hre, handler) && !planted!(self, TellsAnybody) =>
            {
                return abi::ERROR_PERMISSION;
            }
            Receiver::Spu(spu, _) if usize::from(spu) >= self.spus.len() => return abi::ERROR_REFUSED,
            // The FTL waits for flash and peers alone: what it asked another app for might wait for the FTL.
            Receiver::Spu(..) if self.ftl() == Some(caller.app) => return abi::ERROR_REFUSED,
            _ => {}
        }
        let Some(users) = self.place_for_message(caller) else { return abi::ERROR_REFUSED };
        let at = &mut self.spus[caller.spu as usize];
        let account = at.running;
        let message = || Message {
            caller,
            token,
            users,
            originating,
            to,
            account,
            handler,
            body: Vec::with_capacity(body_bytes as usize),
            body_bytes: body_bytes as usize,
            reply_pointer,
            reply_bytes,
            pending: 0,
            error: 0,
            finished: None,
        };
        at.messages.put(message) as i32
    }

    /// A message that the caller puts together.
    pub fn message(&mut self, caller: Caller, handle: i32) -> Option<&mut Message> {
        let message = self.spus[caller.spu as usize].messages.get_mut(u32::try_from(handle).ok()?)?;
        (message.caller == caller && message.finished.is_none()).then_some(message)
    }

    /// `rpc_append`; an error gives the handle back.
    pub fn append<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (append, behalf): (Append, Behalf),
        _: Charged,
    ) -> Result<i32, WildPointer> {
        let appended = self.append_piece(caller, memory, &append, behalf)?;
        if appended < 0 {
            self.remove_message(caller.at(append.handle as u32));
        }
        Ok(appended)
    }

    fn append_piece<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        append: &Append,
        behalf: Behalf,
    ) -> Result<i32, WildPointer> {
        let &Append { handle, port, address, bytes } = append;
        let key = caller.at(handle as u32);
        let Some(message) = self.message_at_mut(key) else { return Ok(abi::ERROR_ARGUMENT) };
        if message.body.len() + bytes as usize > message.body_bytes {
            return Ok(abi::ERROR_ARGUMENT);
        }
        match port {
            Port::Local => {
                message.body.extend_from_slice(memory.slice(address, bytes as usize)?);
                return Ok(abi::DONE);
            }
            Port::Nv => {}
            Port::Network | Port::Zero | Port::Nothing => return Ok(abi::ERROR_ARGUMENT),
        }
        let (offset, account) = (message.body.len(), message.account);
        if !self.may_promise(caller) {
            return Ok(abi::ERROR_REFUSED);
        }
        let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
            return Ok(abi::ERROR_PERMISSION);
        };
        self.spus[usize::from(caller.spu)].counters.nv_read_bytes += u64::from(bytes);
        let mut read = vec![0; bytes as usize];
        let progress = permit.read(&mut self.media, &mut read);
        self.message_takes(caller, key, address, bytes);
        let Some(message) = self.message_at_mut(key) else { return Ok(abi::ERROR_ARGUMENT) };
        message.body.extend_from_slice(&read);
        match progress {
            Ok(Progress::Done) => return Ok(abi::DONE),
            Ok(Progress::WouldBlock) => message.pending += 1,
            Err(error) => return Ok(error_of(error)),
        }
        if !self.place_for_single(caller, account) {
            // The message goes with the error.
            return Ok(abi::ERROR_REFUSED);
        }
        let begun = permit.begin(&mut self.media, Pending::ToMessage { handle: key, offset, account });
        if begun.is_err() {
            self.operation_ended(account);
        }
        Ok(begun.map_or_else(error_of, |()| abi::DONE))
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
    pub fn finish(&mut self, caller: Caller, handle: i32, wait: u32, _: Charged) -> i32 {
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
        let (spu, number) = match message.to {
            Receiver::Spu(spu, number) => (spu, number),
            Receiver::Originating | Receiver::Subscriber(_) => return self.post_upcall(message, group),
        };
        let running = self.apps.get(number as usize).and_then(Option::as_ref);
        let takes = running.is_some_and(|app| {
            // What reaches an app that is being replaced is seen when it is delivered.
            let is_changing = app.admission != Admission::Open;
            is_changing || app.ended.is_none() && app.has_handler[message.handler as usize]
        });
        if takes && !self.may_call(message.caller.app, number, message.handler, message.originating) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_PERMISSION), None);
        }
        let users = message.users;
        if !takes || !self.spus[spu as usize].reserve_inbox((sender.app, users)) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
        let activity = Activity {
            app: number,
            spu,
            handler: message.handler,
            state: State::Arrived,
            originating: if planted!(self, ForgetsOrigin) { HreId::DEVICE } else { message.originating },
            account: message.account,
            arguments: Arguments::EMPTY,
            cursor: 0,
            ending: Ending::default(),
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
        let sender = message.caller;
        let (hre, subscribed) = match message.to {
            Receiver::Subscriber(hre) => (hre, self.bridge.subscriptions.has(sender.app, hre, message.handler)),
            _ => (message.originating, true),
        };
        if !subscribed {
            // It has subscribed no longer.
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_ENDED), None);
        }
        if !self.place_for_upcall(sender, hre) {
            self.message_gone(sender);
            return self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
        let id = self.bridge.upcalls.number();
        let upcall = Upcall {
            id,
            app: message.caller.app,
            handler: message.handler,
            spu: message.caller.spu,
            body: message.body,
        };
        let posted = PostedUpcall { hre, upcall, group };
        self.bridge.upcalls.ask(id, hre, group);
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
        let wanted = self.bridge.upcalls.of(id).is_some_and(|(_, of)| of == group);
        if wanted && !self.bridge.push_upcall(hre, upcall, UPCALLS_PER_HRE_MAX) && self.take_upcall(id).is_some() {
            self.end_one(group, i64::from(abi::ERROR_REFUSED), None);
        }
    }

    /// Answers an upcall. False where there is no such upcall waiting for this endpoint.
    pub fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        if self.answer_miss(hre, id, status == 0) {
            return true;
        }
        match self.bridge.upcalls.of(id) {
            Some((of, _)) if of == hre || planted!(self, BelievesAnswers) => {
                let Some(group) = self.take_upcall(id) else { return false };
                let result = (u64::from(status & 0x7fff_ffff) << 32 | u64::from(result)) as i64;
                let ends = (Endpoint::Host, Endpoint::Spu(group.spu));
                self.transmit(|| Event::End { group, result, memory: None }, ends, |_| (0, 0));
                true
            }
            _ => false,
        }
    }
}
