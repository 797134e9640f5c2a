//! Operations of the store that have ended: whoever waits for them is told.
//!
//! Invariant: an operation ends once, and its place is free before anybody is told.

use super::abi;
use super::continuation::{Continuation, Pending};
use super::os::{Machine, error_of};
use crate::interconnect::Key;
use crate::media::controller::Ended;
use crate::media::store::{Progress, StoreCompletion, StoreError};

impl Machine {
    /// Handles what has ended in the store, up to the next that the control service waits for: what goes on, and how it ended.
    pub fn store_ended(&mut self) -> Option<(Continuation, Result<(), StoreError>)> {
        self.ask_ftls();
        loop {
            if let Some(then) = self.media.passed_fence() {
                return Some((then, Ok(())));
            }
            let StoreCompletion { ticket, result } = match self.media.completed() {
                Some(Ended::Operation(completion)) => completion,
                Some(Ended::Written(ticket)) => return Some((Continuation::Mend(ticket), Ok(()))),
                None => {
                    if self.line.ready {
                        self.serve_line();
                    }
                    return None;
                }
            };
            let fenced = self.media.reaches_fence(ticket);
            let Some(pending) = self.media.take(ticket) else { continue };
            if let Some(account) = self.account_of_operation(&pending) {
                self.operation_ended(account);
            }
            let code = result.as_ref().err().map_or(0, |error| i64::from(error_of(*error)));
            match pending {
                Pending::ToReply { group, token, offset } => {
                    let mut code = code;
                    if let Ok(bytes) = &result
                        && let Some(activity) = self.spus[group.spu as usize].activities.get_mut(token)
                    {
                        match Machine::reply_range(&mut self.bridge, activity, offset, bytes.len()) {
                            Some(mut into) => {
                                into.copy_from(bytes);
                                // They were counted when they were asked for.
                                activity.replied_bytes -= bytes.len() as u64;
                            }
                            None => code = i64::from(abi::ERROR_RANGE),
                        }
                    }
                    if let (Ok(bytes), Some(store)) = (result, self.media.store.delegating()) {
                        store.recycle(bytes);
                    }
                    self.end_one(group, code, None);
                }
                Pending::ToLocal { group, pointer } => {
                    self.end_one(group, code, result.ok().map(|bytes| Box::new((pointer, bytes))));
                }
                Pending::ToMessage { handle, offset, .. } => {
                    let result = result.as_deref().map_err(|error| error_of(*error));
                    self.message_read(handle, offset, result);
                }
                // Somebody waits for what was under way when a permission or a region went: what was read is written only where
                // that is still allowed.
                Pending::ToNv { group, ref onto } if fenced && result.is_ok() && !self.may_still_write(group, onto) => {
                    self.end_one(group, abi::ERROR_PERMISSION.into(), None);
                }
                Pending::ToNv { group, onto } => match result {
                    Ok(bytes) => {
                        let written = match onto.write(&mut self.media, &bytes) {
                            Ok(Progress::WouldBlock) => {
                                // It goes on in the place of the read.
                                let account = self.account_of(group);
                                match onto.begin_write(&mut self.media, bytes, Pending::Group { group }) {
                                    Ok(()) => {
                                        self.put_operation(account);
                                        continue;
                                    }
                                    Err(error) => i64::from(error_of(error)),
                                }
                            }
                            Ok(Progress::Done) => 0,
                            Err(error) => i64::from(error_of(error)),
                        };
                        self.end_one(group, written, None);
                    }
                    Err(_) => self.end_one(group, code, None),
                },
                Pending::Compare { group, token, body_offset } => {
                    let code = result.map_or(code, |bytes| {
                        self.compare_with_body(Key { spu: group.spu, key: token }, body_offset, &bytes)
                    });
                    self.end_one(group, code, None);
                }
                Pending::Checksum { group, seed } => {
                    let code = result.map_or(code, |bytes| i64::from(crc32c::crc32c_append(seed, &bytes)));
                    self.end_one(group, code, None);
                }
                Pending::Literals { group, set, state, to, most } => {
                    let account = self.account_of(group);
                    let found = result.ok().map(|bytes| self.literals_read(account, &set, &bytes, (state, to, most)));
                    self.end_one(group, code, found);
                }
                Pending::Keys { group, layout, key } => {
                    let code = result.map_or(code, |keys| self.keys_read(group.spu, (layout, &key), &keys));
                    self.end_one(group, code, None);
                }
                Pending::Group { group } => self.end_one(group, code, None),
                Pending::Control(then) => {
                    return Some((then, result.map(|_| ())));
                }
            }
        }
    }
}
