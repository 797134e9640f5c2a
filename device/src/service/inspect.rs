//! What an app's author asks the control service for: what the app printed, the core of an instance that trapped, a reset.
//!
//! What always holds: an app is shown and reset for its owner and for the host's kernel alone, whoever else may call it; to others it is not
//! there. A reply copies [`PIECE_BYTES_MAX`] at most, whatever there is.

use super::core::Core;
use super::protection::{long, word};
use super::transaction::Asker;
use super::{Answer, refuse};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::request::AppNumber;
use crate::service::control::{ControlStatus, CoreInfo};
use crate::spu::protection::{USER_NOBODY, user_app_name};

/// Most bytes that one reply copies.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Most bytes of a log in one reply.
const LOG_PIECE_BYTES_MAX: usize = 32 << 10;

/// What it costs to make so many bytes of a reply and to copy them, in instructions.
pub(super) fn bytes_cost(bytes: usize) -> u64 {
    bytes as u64 / 2
}

impl Core {
    /// A request had so much done for it besides what each costs.
    pub(super) fn did_for(&mut self, token: Key, cost: u64) {
        if let Some(account) = self.machine.activity_at(token).map(|activity| activity.account) {
            self.machine.did_for(account, cost);
        }
    }

    /// The app with a number, for its owner or the host's kernel.
    pub(super) fn own_app(&self, user: Option<u32>, number: u32) -> Result<AppNumber, (ControlStatus, String)> {
        let found = AppNumber::try_from(number).ok();
        let own = found.filter(|number| self.machine.app_at(*number).is_some_and(|app| is_own(app.owner, user)));
        let text = || format!("no app has the number {number}, or not for this endpoint");
        own.ok_or_else(|| (ControlStatus::NotFound, text()))
    }

    /// Reply: u64 place in the log of the first byte that follows, then text from the asked place on.
    pub(super) fn read_log(&mut self, token: Key, user: Option<u32>, arguments: &[u8]) -> Answer {
        let (Some(number), Some(position)) = (word(arguments, 4), long(arguments, 8)) else {
            return refuse(ControlStatus::Malformed, "the arguments are u32 0, u32 app, u64 place in its log");
        };
        let number = self.own_app(user, number)?;
        let Some(app) = self.machine.app_at(number) else { return Ok(0) };
        let (from, text) = app.log_from(position, LOG_PIECE_BYTES_MAX);
        let mut reply = from.to_le_bytes().to_vec();
        reply.extend(text);
        self.machine.write_reply(token, &reply);
        self.did_for(token, bytes_cost(reply.len()));
        Ok(reply.len() as u32)
    }

    /// Reply, from an offset on: u32 bytes of the JSON that follows, [`CoreInfo`]; then the instance's memory.
    pub(super) fn read_core(&mut self, token: Key, user: Option<u32>, arguments: &[u8]) -> Answer {
        let (Some(offset), Some(number), Some(trap)) = (word(arguments, 0), word(arguments, 4), word(arguments, 8))
        else {
            return refuse(ControlStatus::Malformed, "the arguments are u32 offset, u32 app, u32 trap");
        };
        let number = self.own_app(user, number)?;
        let Some(app) = self.machine.app(number) else { return Ok(0) };
        let name = app.name.clone();
        let Some(dead) = app.dead.as_deref_mut() else {
            return refuse(ControlStatus::NotFound, format!("app {name} has not trapped: there is no core of it"));
        };
        if trap != 0 && trap != dead.trap {
            return refuse(
                ControlStatus::Busy,
                format!("app {name} has trapped once more, and its core is another: read that"),
            );
        }
        let info = CoreInfo {
            app: name,
            version: dead.version.clone(),
            spu: dead.spu,
            trap: dead.trap,
            why: dead.why.clone(),
            memory_bytes: dead.memory_bytes(),
            frames: dead.autopsy.frames.clone(),
            globals: dead.autopsy.globals.clone(),
        };
        let json = serde_json::to_vec(&info).unwrap_or_default();
        let mut reply = (json.len() as u32).to_le_bytes().to_vec();
        reply.extend(json);
        let whole = reply.len() as u64 + info.memory_bytes;
        let (from, header) = (offset as usize, reply.len());
        reply.drain(..from.min(header));
        reply.extend(dead.peek(from.saturating_sub(header) as u64, PIECE_BYTES_MAX));
        self.machine.write_reply(token, &reply);
        // Frames and globals are told anew with each piece.
        self.did_for(token, bytes_cost(header + reply.len()));
        u32::try_from(whole).map_err(|_| (ControlStatus::NoRoom, format!("the core has {whole} bytes")))
    }

    /// An app is started anew: what it had begun ends, its data stay.
    pub(super) fn reset_app(&mut self, token: Key, hre: HreId, name: &[u8]) {
        let user = self.machine.protection.user(hre);
        let name = String::from_utf8_lossy(name).into_owned();
        // A user's own, never another's or the kernel's.
        let name = user.map_or(name.clone(), |user| user_app_name(user, &name));
        let found = self.machine.find_app(name.as_bytes());
        let found = found.filter(|number| self.machine.app_at(*number).is_some_and(|app| is_own(app.owner, user)));
        let Some(number) = found else {
            return self.answer(token, hre, refuse(ControlStatus::NotFound, format!("no app {name} is installed")));
        };
        if self.machine.ftl() == Some(number) {
            let text = format!("app {name} serves the device's banks: it can be replaced, and not reset");
            return self.answer(token, hre, refuse(ControlStatus::Busy, text));
        }
        if self.is_changing(&name) {
            let text = format!("app {name} is being installed, replaced, removed or started at this moment: try again");
            return self.answer(token, hre, refuse(ControlStatus::Busy, text));
        }
        if self.programs[usize::from(number)].is_none() {
            let text = format!("app {name} did not come up with the device: install it again");
            return self.answer(token, hre, refuse(ControlStatus::Busy, text));
        }
        self.reset(Asker::Request { token, hre }, number, name);
    }
}

/// True for the host's kernel and for the app's owner.
fn is_own(owner: Option<u32>, user: Option<u32>) -> bool {
    user.is_none() || owner == user && user != Some(USER_NOBODY)
}
