//! Requests to the control service, one function each (see [`crate::service::control`]).

use super::change::Change;
use super::core::Core;
use super::inspect::bytes_cost;
use super::protection::{is_for_users, long, word};
use super::transaction::{Asker, Work};
use super::{Answer, ERROR_TEXTS_MAX, refuse};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::request::{AppNumber, RpcOutcome};
use crate::service::control::{self, AppInfo, ControlStatus};
use crate::spu::activity::State;
use crate::spu::protection::{is_seen, user_app_name};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Requests to the control service.
impl Core {
    /// Carries out a control request, as far as it can be now.
    pub(crate) fn handle_control(&mut self, token: Key) {
        self.begin_control(token);
        self.proceed_ready();
    }

    fn begin_control(&mut self, token: Key) {
        let (hre, handler, arguments, payload) = {
            let machine = &*self.machine;
            let Some(activity) = machine.activity_at(token) else { return };
            let arguments = activity.arguments.as_slice().to_vec();
            let mut body = vec![0; machine.body_bytes(activity) as usize];
            if machine.copy_body(token, 0, &mut body).is_none() {
                body.clear();
            }
            let payload = body.split_off(arguments.len().min(body.len()));
            (activity.originating, activity.handler, arguments, payload)
        };
        if let Some(activity) = self.machine.activity_at_mut(token) {
            activity.state = State::Served;
        }
        let user = self.machine.protection.user(hre);
        if user.is_some() && !is_for_users(handler) {
            return self.machine.end_activity(token, RpcOutcome::NotPermitted, 0);
        }
        let answer = match handler {
            control::INSTALL => return self.install(token, hre, payload),
            control::REMOVE => return self.remove(token, hre, &body_of(arguments, payload)),
            control::CREATE_NAMESPACE => {
                let body = body_of(arguments, payload);
                return self.change_by(token, hre, &body, "the request for a namespace", Change::MakeNamespace);
            }
            control::DELETE_NAMESPACE => return self.delete_namespace(token, hre, &body_of(arguments, payload)),
            control::RESIZE_NAMESPACE => return self.resize_namespace(token, hre, &body_of(arguments, payload)),
            control::FORMAT_NAMESPACE => {
                let body = body_of(arguments, payload);
                let (nsid, block_bytes) = (word(&body, 0).unwrap_or(0), word(&body, 4).unwrap_or(0));
                return self.change_namespace(token, hre, nsid, Change::FormatNamespace { nsid, block_bytes });
            }
            control::MARK_UNCORRECTABLE => {
                return self.mark_uncorrectable(token, hre, &body_of(arguments, payload));
            }
            control::LIST_APPS => {
                self.reply(token, &arguments, &serde_json::to_vec(&self.list_apps(user)).unwrap_or_default())
            }
            control::LIST_NAMESPACES => {
                let namespaces = self.namespaces();
                self.reply(token, &arguments, &serde_json::to_vec(&*namespaces).unwrap_or_default())
            }
            control::STATISTICS => {
                let mut value = serde_json::to_value(self.statistics()).unwrap_or_default();
                if let (Some(front), Some(object)) = (&self.service.front, value.as_object_mut()) {
                    object.insert("transport".to_owned(), front());
                }
                self.reply(token, &arguments, &serde_json::to_vec(&value).unwrap_or_default())
            }
            control::FLASH_MAP => self.flash_map(token, &arguments),
            control::STRIPES => Ok(u32::from(self.spus()) | crate::STRIPE_BYTES.trailing_zeros() << 16),
            control::LOG => self.log(token, user, &arguments),
            control::READ_LOG => self.read_log(token, user, &arguments),
            control::READ_CORE => self.read_core(token, user, &arguments),
            control::BEGIN_PROFILE => self.begin_profile(hre, &body_of(arguments, payload)),
            control::READ_PROFILE => self.read_profile(token, hre, &arguments),
            control::END_PROFILE => self.stop_profile(hre),
            control::BEGIN_DEBUG => return self.begin_debug(token, hre, &body_of(arguments, payload)),
            control::END_DEBUG => self.end_debug(hre, &body_of(arguments, payload)),
            control::DEBUG_STATE => self.debug_state(token, hre, &arguments),
            control::DEBUG_QUERY => self.debug_query(token, hre, &arguments),
            control::DEBUG_TELL => self.debug_tell(token, hre, &body_of(arguments, payload)),
            control::RESET_APP => return self.reset_app(token, hre, &body_of(arguments, payload)),
            control::ERROR_TEXT => {
                let text = self.service.errors.get(&hre).cloned().unwrap_or_default();
                self.reply(token, &arguments, text.as_bytes())
            }
            control::FIND_APP => {
                let name = body_of(arguments, payload);
                match self.machine.find_app_for(user, &name) {
                    Some(number) => Ok(u32::from(number)),
                    None => refuse(ControlStatus::NotFound, format!("no app {} is installed", name.escape_ascii())),
                }
            }
            control::SUBSCRIBE | control::UNSUBSCRIBE => {
                let body = body_of(arguments, payload);
                self.subscribe(token, hre, handler == control::SUBSCRIBE, &body)
            }
            control::ANSWER_UPCALL => {
                let body = body_of(arguments, payload);
                let word = |at: usize| {
                    let bytes = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                    bytes.map(u32::from_le_bytes)
                };
                match (word(0), word(4), word(8), word(12)) {
                    (Some(low), Some(high), Some(status), Some(result)) => {
                        let id = u64::from(low) | u64::from(high) << 32;
                        match self.machine.answer_upcall(hre, id, status, result) {
                            true => Ok(0),
                            false => refuse(ControlStatus::NotFound, format!("no upcall {id} waits for this endpoint")),
                        }
                    }
                    _ => refuse(ControlStatus::Malformed, "an answer has 16 bytes: u64 id, u32 status, u32 result"),
                }
            }
            _ => {
                let body = body_of(arguments, payload);
                if self.protection_request(token, hre, handler, &body).is_none() {
                    self.machine.end_activity(token, RpcOutcome::NoHandler, 0);
                }
                return;
            }
        };
        self.answer(token, hre, answer);
    }

    pub(super) fn answer(&mut self, token: Key, hre: HreId, answer: Answer) {
        let (status, result) = match answer {
            Ok(result) => (ControlStatus::Success, result),
            Err((status, text)) => {
                tracing::info!("control request of {hre:?} failed: {text}");
                if self.service.errors.len() >= ERROR_TEXTS_MAX && !self.service.errors.contains_key(&hre) {
                    self.forget_a_sentence();
                }
                self.service.errors.insert(hre, text);
                (status, 0)
            }
        };
        self.machine.end_activity(token, RpcOutcome::Answered { status: status as u32 }, result);
    }

    /// There are as many sentences of failures as there may be: the user who has most of them loses one.
    #[cold]
    fn forget_a_sentence(&mut self) {
        let user = |hre: &HreId| self.machine.protection.user(*hre);
        let mut of = BTreeMap::<Option<u32>, usize>::new();
        self.service.errors.keys().for_each(|hre| *of.entry(user(hre)).or_default() += 1);
        let most = of.iter().max_by_key(|(_, count)| **count).map(|(user, _)| *user);
        let one = self.service.errors.keys().find(|hre| Some(user(hre)) == most).copied();
        if let Some(hre) = one {
            self.service.errors.remove(&hre);
        }
    }

    /// Writes a reply from the offset in the arguments on; the result is its whole length.
    pub(super) fn reply(&mut self, token: Key, arguments: &[u8], whole: &[u8]) -> Answer {
        let offset = arguments.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
        let rest = whole.get(offset..).unwrap_or_default();
        self.machine.write_reply(token, rest);
        // All of it was made for this piece.
        self.did_for(token, bytes_cost(whole.len()));
        Ok(whole.len() as u32)
    }

    /// The wear of a die of flash.
    fn flash_map(&mut self, token: Key, arguments: &[u8]) -> Answer {
        let (spu, die) = (word(arguments, 4).unwrap_or(0), word(arguments, 8).unwrap_or(0));
        let Some(store) = self.machine.media.store.delegating() else {
            return refuse(ControlStatus::NotFound, "this device has no flash");
        };
        match store.wear_of(spu as usize, die) {
            Some(wear) => {
                let whole: Vec<u8> = wear.into_iter().flat_map(u32::to_le_bytes).collect();
                self.reply(token, arguments, &whole)
            }
            None => refuse(ControlStatus::NotFound, format!("SPU {spu} has no die {die} of flash")),
        }
    }

    /// An endpoint wants an app's upcalls of a kind, or wants them no longer.
    fn subscribe(&mut self, token: Key, hre: HreId, wants: bool, body: &[u8]) -> Answer {
        let [app, kind] = match <[u8; 8]>::try_from(body) {
            Ok([a, b, c, d, e, f, g, h]) => [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])],
            Err(_) => return refuse(ControlStatus::Malformed, "a subscription has 8 bytes: u32 app, u32 kind"),
        };
        let Ok(kind) = u8::try_from(kind) else {
            return refuse(
                ControlStatus::Malformed,
                format!("the kind {kind} is none: they are 1 to 255, or 0 for all"),
            );
        };
        let machine = &mut *self.machine;
        let user = machine.protection.user(hre);
        let number = AppNumber::try_from(app).unwrap_or(AppNumber::MAX);
        let seen = machine.app(number).is_some_and(|app| is_seen(app, user));
        if !seen {
            return refuse(ControlStatus::NotFound, format!("no app has the number {app}, or not for this endpoint"));
        }
        let Some(account) = machine.activity_at(token).map(|activity| activity.account) else { return Ok(0) };
        let party = machine.bridge.accounts.party(account);
        match wants {
            true if !machine.bridge.subscriptions.add(number, hre, kind, party) => {
                refuse(ControlStatus::NoRoom, "there is no room for one more subscription: take others back first")
            }
            false if !machine.bridge.subscriptions.remove(number, hre, kind) => {
                refuse(ControlStatus::NotFound, format!("this endpoint has not subscribed to app {app}"))
            }
            _ => Ok(0),
        }
    }

    fn log(&mut self, token: Key, user: Option<u32>, arguments: &[u8]) -> Answer {
        let name = arguments.get(4..).unwrap_or_default();
        // Transports with arguments of a fixed length (opcode 82h) pad them with zeroes, which no name has.
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
        let text = {
            let machine = &*self.machine;
            let app = machine.find_app_for(user, name).and_then(|number| machine.app_at(number));
            // What an app prints is for its owner.
            let app = app.filter(|app| user.is_none() || app.owner == user);
            app.map(|app| {
                let mut text = String::new();
                for line in &app.log {
                    text.push_str(line);
                    text.push('\n');
                }
                text
            })
        };
        match text {
            Some(text) => self.reply(token, arguments, text.as_bytes()),
            None => refuse(ControlStatus::NotFound, format!("no app {} is installed", name.escape_ascii())),
        }
    }

    fn list_apps(&self, user: Option<u32>) -> Vec<AppInfo> {
        let machine = &*self.machine;
        let apps = machine.apps().filter(|(_, app)| is_seen(app, user)).map(|(number, app)| AppInfo {
            number,
            name: app.name.clone(),
            version: app.version.clone(),
            module_bytes: app.module_bytes,
            memory_bytes: machine.memory_bytes(number.into()).next().unwrap_or(0),
            handlers: app.handlers.clone(),
            state: match &app.ended {
                None => "running".to_owned(),
                Some(why) if app.failed => format!("failed: {why}"),
                Some(why) => format!("ended: {why}"),
            },
        });
        apps.collect()
    }

    fn remove(&mut self, token: Key, hre: HreId, name: &[u8]) {
        let user = self.machine.protection.user(hre);
        let name = String::from_utf8_lossy(name).into_owned();
        // A user's own, never another's or the kernel's.
        let name = user.map_or(name.clone(), |user| user_app_name(user, &name));
        let number = self.machine.find_app(name.as_bytes());
        let Some(number) = number else {
            return self.answer(token, hre, refuse(ControlStatus::NotFound, format!("no app {name} is installed")));
        };
        if self.machine.ftl() == Some(number) {
            let text = format!("app {name} serves the device's banks: it can be replaced, and not removed");
            return self.answer(token, hre, refuse(ControlStatus::Busy, text));
        }
        let serves = self.namespaces().iter().any(|namespace| namespace.app == name);
        if serves || self.is_changing(&name) {
            let text = format!("app {name} serves namespaces, or is being replaced: delete them first");
            return self.answer(token, hre, refuse(ControlStatus::Busy, text));
        }
        self.begin_removal(Asker::Request { token, hre }, number, name);
    }

    /// Begins the change of the metadata that a request's JSON asks for; `what` it is called where it cannot be read.
    pub(super) fn change_by<T: DeserializeOwned>(
        &mut self,
        token: Key,
        hre: HreId,
        body: &[u8],
        what: &str,
        change: impl FnOnce(T) -> Change,
    ) {
        match serde_json::from_slice(body) {
            Ok(request) => drop(self.transact(Asker::Request { token, hre }, change(request), Work::Change)),
            Err(error) => {
                let text = format!("{what} cannot be read: {error}");
                self.answer(token, hre, refuse(ControlStatus::Malformed, text));
            }
        }
    }

    fn delete_namespace(&mut self, token: Key, hre: HreId, body: &[u8]) {
        let nsid = body.try_into().map(u32::from_le_bytes).unwrap_or(0);
        self.change_namespace(token, hre, nsid, Change::DeleteNamespace { nsid });
    }

    fn resize_namespace(&mut self, token: Key, hre: HreId, body: &[u8]) {
        let (Some(nsid), Some(size_bytes)) = (word(body, 0), long(body, 4)) else {
            let text = "a request to resize a namespace has its number and its size: 12 bytes";
            return self.answer(token, hre, refuse(ControlStatus::Malformed, text));
        };
        self.change_namespace(token, hre, nsid, Change::ResizeNamespace { nsid, size_bytes });
    }

    /// Begins a change of which the namespace's app is told.
    pub(super) fn change_namespace(&mut self, token: Key, hre: HreId, nsid: u32, change: Change) {
        let found =
            self.namespaces().iter().find(|namespace| namespace.nsid == nsid).map(|namespace| namespace.app.clone());
        match found {
            Some(app) => {
                let work = Work::Deletion { app, range: None, traps: 0 };
                self.transact(Asker::Request { token, hre }, change, work);
            }
            None => self.answer(token, hre, refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}"))),
        }
    }
}

/// A request's whole body: small ones come as inline arguments, larger ones as payload.
fn body_of(mut arguments: Vec<u8>, payload: Vec<u8>) -> Vec<u8> {
    arguments.extend_from_slice(&payload);
    arguments
}
