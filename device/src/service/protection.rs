//! The control service's part of protection: processes, permissions, the agent, the intercall table; and what users' endpoints
//! may ask of the service (see [`crate::service::control`]).
//!
//! Invariant: a revocation is answered when nothing that the permission allowed is under way any more.

use super::change::Change;
use super::core::Core;
use super::settle::ALL_PROCESSES;
use super::transaction::{Asker, Work};
use super::{Answer, refuse};
use crate::config::WEIGHT_MAX;
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::namespace::CommandSet;
use crate::service::control::{self, ControlStatus, PermissionInfo, ProcessRequest};
use crate::spu::miss::{AGENTS_MAX, Agent};
use crate::spu::permission::{Extent, Rights};
use crate::spu::protection::{in_ids, user_app_name};

/// Bytes of an extent in a grant or revocation.
pub const EXTENT_BYTES: usize = 24;

/// A grant or revocation as it came.
struct Extents {
    process: u32,
    /// Whose the process has to be.
    user: Option<u32>,
    extents: Vec<(u16, Extent)>,
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
}

pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
}

/// Reads u32 process, u32 user and 1 (0: whosever it is), then extents of u32 SPU, u32 rights, u64 first byte, u64 bytes.
fn decode(body: &[u8]) -> Option<Extents> {
    let (process, user) = (word(body, 0)?, word(body, 4)?.checked_sub(1));
    let list = &body[8..];
    if !list.len().is_multiple_of(EXTENT_BYTES) {
        return None;
    }
    let one = |bytes: &[u8]| {
        let (spu, rights) = (word(bytes, 0)?, Rights::from_bits(word(bytes, 4)?)?);
        let (start, count) = (long(bytes, 8)?, long(bytes, 16)?);
        let end = start.checked_add(count).filter(|end| *end > start)?;
        Some((u16::try_from(spu).ok()?, Extent { start, end, rights }))
    };
    Some(Extents { process, user, extents: list.chunks_exact(EXTENT_BYTES).map(one).collect::<Option<_>>()? })
}

/// True for the requests that a user's endpoint may make; each is answered within what is the user's.
pub(super) fn is_for_users(handler: u8) -> bool {
    matches!(
        handler,
        control::INSTALL
            | control::REMOVE
            | control::LIST_APPS
            | control::LOG
            | control::READ_LOG
            | control::READ_CORE
            | control::RESET_APP
            | control::BEGIN_PROFILE
            | control::READ_PROFILE
            | control::END_PROFILE
            | control::BEGIN_DEBUG
            | control::END_DEBUG
            | control::DEBUG_STATE
            | control::DEBUG_QUERY
            | control::DEBUG_TELL
            | control::ANSWER_UPCALL
            | control::ERROR_TEXT
            | control::FIND_APP
            | control::SUBSCRIBE
            | control::UNSUBSCRIBE
    )
}

impl Core {
    /// Lets a process read, and write where `write` says so, bytes of an SPU's bank from `start` on. For who drives the device itself;
    /// the host's agent asks the control service.
    pub fn permit(&mut self, process: u32, spu: u16, (start, bytes): (u64, u64), write: bool) {
        let rights = if write { Rights::READ_WRITE } else { Rights::READ };
        let extent = Extent { start, end: start.saturating_add(bytes), rights };
        self.machine.grant(process, spu, extent);
    }

    /// Says whose a process is that has endpoints: its user, and what tells it from others on its host. For transports that
    /// take it from the host's kernel, never from the process.
    pub fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64)) {
        let machine = &mut *self.machine;
        if let Some(account) = machine.protection.vouch(process, user, identity) {
            machine.bridge.accounts.set_user(account, user);
        }
    }

    /// Ends a process: its endpoints are closed and its permissions are gone. What it has under way is drained.
    pub fn close_process(&mut self, process: u32) {
        let hres = self.machine.bridge.of_process(in_ids(process));
        for hre in hres {
            self.close_hre(hre);
        }
        let machine = &mut *self.machine;
        machine.close_process(process);
        machine.fail_parked(process, None);
        self.tell_revoked(in_ids(process), true);
    }

    /// Requests of protection; `None` where the handler is none of them.
    pub(super) fn protection_request(&mut self, token: Key, hre: HreId, handler: u8, body: &[u8]) -> Option<()> {
        let answer = match handler {
            control::GRANT => self.grant(body),
            control::REVOKE => match self.revoke(body) {
                Ok(process) => {
                    self.answer_settled(token, hre, (process, false));
                    return Some(());
                }
                refused => refused,
            },
            control::OPEN_PROCESS => self.open_process_request(hre, body),
            control::CLOSE_PROCESS => match word(body, 0) {
                Some(process) if self.machine.protection.knows(process) => {
                    self.close_process(process);
                    self.answer_settled(token, hre, (in_ids(process), true));
                    return Some(());
                }
                Some(process) => refuse(ControlStatus::NotFound, format!("there is no process {process}")),
                None => refuse(ControlStatus::Malformed, "a process is named by 4 bytes"),
            },
            control::REGISTER_AGENT => self.register_agent(hre, body),
            control::SET_WEIGHT if body.len() == 8 => return self.set_weight(token, hre, body),
            control::SET_WEIGHT => self.set_process_weight(body),
            control::CHANGE_INTERCALLS => {
                self.change_by(token, hre, body, "the change of the intercall table", Change::Intercalls);
                return Some(());
            }
            // Which hosts a namespace is attached to, which lasts.
            control::ATTACH => {
                self.change_by(token, hre, body, "the request for attachments", Change::Attach);
                return Some(());
            }
            control::RESERVE => {
                self.change_by(token, hre, body, "the request for a reservation", Change::Reserve);
                return Some(());
            }
            control::LIST_PERMISSIONS
            | control::LIST_PROCESSES
            | control::LIST_INTERCALLS
            | control::LIST_WEIGHTS
            | control::LIST_ATTACHMENTS => {
                let list = self.protection_list(handler, body);
                self.reply(token, body, &list)
            }
            _ => return None,
        };
        self.answer(token, hre, answer);
        Some(())
    }

    fn protection_list(&self, handler: u8, arguments: &[u8]) -> Vec<u8> {
        let machine = &*self.machine;
        let list = match handler {
            control::LIST_PROCESSES => serde_json::to_vec(&machine.protection.processes(&machine.bridge.accounts)),
            control::LIST_INTERCALLS => serde_json::to_vec(&machine.published().intercalls),
            control::LIST_WEIGHTS => serde_json::to_vec(&machine.bridge.accounts.weights()),
            control::LIST_ATTACHMENTS => serde_json::to_vec(&self.host_tables.attachments),
            _ => {
                let process = word(arguments, 4).unwrap_or(0);
                let info = |(spu, extent): (u16, Extent)| PermissionInfo {
                    spu,
                    start: extent.start,
                    bytes: extent.end - extent.start,
                    rights: extent.rights.bits(),
                };
                let of = machine.extents_of(process).map(info);
                serde_json::to_vec(&of.collect::<Vec<_>>())
            }
        };
        list.unwrap_or_default()
    }

    fn extents(&self, body: &[u8]) -> Result<Extents, (ControlStatus, String)> {
        let Some(request) = decode(body) else {
            let text = "permissions are u32 process, u32 user and 1, or 0, then u32 SPU, u32 rights, u64 first byte, u64 bytes each";
            return Err((ControlStatus::Malformed, text.to_owned()));
        };
        let machine = &*self.machine;
        for (spu, extent) in &request.extents {
            let region = machine.published().regions.holding(extent.start, extent.end - extent.start);
            let grantable = region.is_some_and(|(_, region)| region.shared && !region.deleting);
            if *spu >= machine.config.spus || !grantable {
                let text = format!(
                    "bytes {:#x} to {:#x} of SPU {spu} are in no block namespace: permissions are for these alone",
                    extent.start, extent.end
                );
                return Err((ControlStatus::Malformed, text));
            }
        }
        Ok(request)
    }

    fn grant(&mut self, body: &[u8]) -> Answer {
        let request = self.extents(body)?;
        let machine = &mut *self.machine;
        if !machine.protection.knows(request.process) {
            return refuse(ControlStatus::NotFound, format!("there is no process {}", request.process));
        }
        if request.user.is_some_and(|user| machine.protection.user_of(request.process) != Some(user)) {
            return refuse(ControlStatus::NotFound, format!("process {} is another user's by now", request.process));
        }
        for (spu, extent) in &request.extents {
            machine.grant(request.process, *spu, *extent);
        }
        Ok(request.extents.len() as u32)
    }

    /// Of a process that has ended, too: it has nothing, but what it had under way is to be waited for. The process as apps are told of it:
    /// one of the number 0, which none has, stands for all.
    fn revoke(&mut self, body: &[u8]) -> Answer {
        let request = self.extents(body)?;
        let machine = &mut *self.machine;
        if request.extents.is_empty() {
            machine.revoke_all(request.process);
            machine.fail_parked(request.process, None);
        }
        for (spu, extent) in &request.extents {
            machine.revoke(request.process, *spu, *extent);
            machine.fail_parked(request.process, Some((*spu, *extent)));
        }
        Ok(if request.process == 0 { ALL_PROCESSES } else { in_ids(request.process) })
    }

    /// The process ends with the endpoint that asks.
    fn open_process_request(&mut self, hre: HreId, body: &[u8]) -> Answer {
        let request: ProcessRequest = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(error) => {
                return refuse(ControlStatus::Malformed, format!("the request for a process cannot be read: {error}"));
            }
        };
        match self.machine.open_process(request.user, request.weight, Some(hre)) {
            Some(process) => Ok(process),
            None => refuse(
                ControlStatus::NoRoom,
                "the device knows as many processes as it can, of this endpoint or of all",
            ),
        }
    }

    /// A user's weight, which lasts.
    fn set_weight(&mut self, token: Key, hre: HreId, body: &[u8]) -> Option<()> {
        match (word(body, 0), word(body, 4).and_then(|weight| u16::try_from(weight).ok())) {
            (Some(user), Some(weight @ 0..=WEIGHT_MAX)) => {
                let weight = (weight > 0).then_some(weight);
                self.transact(Asker::Request { token, hre }, Change::Weight { user, weight }, Work::Change);
            }
            _ => {
                let text = format!("a weight is u32 user, u32 weight, 0 (none) to {WEIGHT_MAX}");
                self.answer(token, hre, refuse(ControlStatus::Malformed, text));
            }
        }
        Some(())
    }

    /// A process' own weight.
    fn set_process_weight(&mut self, body: &[u8]) -> Answer {
        match (word(body, 4).and_then(|weight| u16::try_from(weight).ok()), word(body, 8)) {
            (Some(weight @ 1..=WEIGHT_MAX), Some(process)) if body.len() == 12 => {
                let machine = &mut *self.machine;
                match machine.protection.account(process) {
                    Some(account) => {
                        machine.bridge.accounts.set_process_weight(account, weight);
                        Ok(0)
                    }
                    None => refuse(ControlStatus::NotFound, format!("there is no process {process}")),
                }
            }
            _ => refuse(
                ControlStatus::Malformed,
                format!("a process' weight is u32 user, u32 weight, 1 to {WEIGHT_MAX}, u32 process"),
            ),
        }
    }

    /// The endpoint is an agent's from now on: of the block namespaces that the body numbers (u32 each), or of all that have none. It
    /// takes the place of what the same endpoint registered before.
    fn register_agent(&mut self, hre: HreId, body: &[u8]) -> Answer {
        if !body.len().is_multiple_of(4) {
            return refuse(ControlStatus::Malformed, "an agent's namespaces are numbered by 4 bytes each");
        }
        let namespaces = self.namespaces();
        let base = |nsid: u32| {
            let found = namespaces.iter().find(|it| it.nsid == nsid && it.csi == CommandSet::Nvm);
            let region = found.map(|it| (it.base, it.base + it.bank_bytes));
            region.ok_or((ControlStatus::NotFound, format!("there is no block namespace {nsid}")))
        };
        let numbers = body.chunks_exact(4).filter_map(|bytes| word(bytes, 0));
        let regions = numbers.map(base).collect::<Result<Vec<(u64, u64)>, _>>()?;
        let bases = (!regions.is_empty()).then(|| regions.iter().map(|(base, _)| *base).collect::<Vec<u64>>());
        let agents = &mut self.machine.protection.misses.agents;
        let mut others = agents.iter().filter(|agent| agent.hre != hre);
        if others.clone().any(|agent| agent.overlaps(bases.as_deref())) {
            return refuse(ControlStatus::Busy, "another endpoint is the agent's: end it first");
        }
        if others.nth(AGENTS_MAX - 1).is_some() {
            return refuse(ControlStatus::NoRoom, format!("the device has {AGENTS_MAX} agents, which is the most"));
        }
        agents.retain(|agent| agent.hre != hre);
        agents.push(Agent { hre, bases, regions });
        Ok(0)
    }

    /// A namespace has gone: nobody has rights in its range any more.
    pub(super) fn revoke_region(&mut self, base: u64, bank_bytes: u64) {
        let machine = &mut *self.machine;
        for agent in &mut machine.protection.misses.agents {
            agent.bases.iter_mut().for_each(|bases| bases.retain(|other| *other != base));
        }
        let processes: Vec<u32> = machine.protection.numbers();
        let extent = Extent { start: base, end: base + bank_bytes, rights: Rights::READ_WRITE };
        for spu in 0..machine.config.spus {
            for process in &processes {
                machine.revoke(*process, spu, extent);
                machine.fail_parked(*process, Some((spu, extent)));
            }
        }
    }

    /// Checks that a user may install an app of this name; the name under which it goes.
    pub(super) fn app_name_for(&self, owner: Option<u32>, name: &str) -> Result<String, (ControlStatus, String)> {
        let machine = &*self.machine;
        let Some(user) = owner else {
            if crate::spu::protection::is_user_app_name(name) {
                let text = format!("app names like {name} are those of users' apps: choose another");
                return Err((ControlStatus::ModuleRefused, text));
            }
            return Ok(name.to_owned());
        };
        let full = user_app_name(user, name);
        let apps = machine.apps().map(|(_, app)| app);
        let (own, replaces) = apps
            .filter(|app| app.owner == owner)
            .fold((0, false), |(count, replaces), app| (count + 1, replaces || app.name == full));
        let most = machine.config.apps_per_user_max;
        if !replaces && own >= u32::from(most) {
            let text = format!("this user has {own} apps, at most {most} are allowed: remove one");
            return Err((ControlStatus::NoRoom, text));
        }
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_whole_or_not_at_all() {
        let mut body = vec![7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&body).map(|it| (it.process, it.extents.len())), Some((7, 0)));
        body.extend([3, 0, 0, 0, 2, 0, 0, 0]);
        body.extend(4096u64.to_le_bytes());
        assert!(decode(&body).is_none());
        body.extend(8192u64.to_le_bytes());
        let request = decode(&body).unwrap();
        assert_eq!(request.extents, [(3, Extent { start: 4096, end: 12288, rights: Rights::WRITE })]);
        assert_eq!(request.user, None, "whosever it is");
        body[4] = 8;
        assert_eq!(decode(&body).unwrap().user, Some(7));
        for (at, value) in [(10, 1), (12, 4), (12, 0), (31, 0xff)] {
            let mut wrong = body.clone();
            wrong[at] = value;
            if at == 31 {
                wrong[16..32].fill(0xff);
            }
            assert!(decode(&wrong).is_none(), "{at}");
        }
        assert!(decode(&[1, 2, 3]).is_none());
    }
}
