//! Debuggers: an app is compiled anew for one and started anew ([`super::revive`]), its instances stop where they are told to, and go on.
//!
//! What always holds:
//! - A debugger is an endpoint of the app's owner, or of the host's kernel. There are [`DEBUGGERS_MAX`] at most, a user has one, and an app has one.
//! - With its endpoint, its app's version, or the device's shutdown the debugger is gone, and what was stopped goes on.
//! - A stopped instance goes on by itself after the time that its debugger gave, if it gave any: its requests wait so long at most.
//! - Apps that are waited for (`settles=1`, and the FTL), and native ones, are not debugged: others would wait for what is stopped.

use super::change::{Change, Refusal};
use super::core::{Compiled, Core, Job};
use super::inspect::bytes_cost;
use super::protection::word;
use super::transaction::{Asker, Transaction, Work};
use super::versions::{Program, check_name};
use super::{Answer, Shutdown, refuse};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::request::AppNumber;
use crate::service::control::{ControlStatus, DebugState};
use crate::spu::abi;
use crate::spu::debug::{self, Mode, Query};
use crate::spu::debugger::{self, Told};
use crate::spu::wasm::CompiledModule;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most apps that are debugged at once.
pub const DEBUGGERS_MAX: usize = 16;
/// Most breakpoints of an app.
pub const BREAKPOINTS_MAX: usize = 1024;
/// How often stops are looked at that end by themselves.
const LOOK_NS: u64 = 20_000_000;
/// Most bytes that the compiled code of a debugged app takes, of all SPUs: each instance has a copy.
const IMAGES_BYTES_MAX: u64 = 256 << 20;
/// What a breakpoint costs on an SPU, in instructions: it is kept, and put into the code.
const BREAKPOINT_COST: u64 = 2_000;
/// Bytes of a module in one reply.
const PIECE_BYTES_MAX: usize = 256 << 10;

/// An app on its way to a debugger: what its transaction has besides.
pub(super) struct Beginning {
    hre: HreId,
    stop_ns_max: u64,
}

/// A debugger.
pub(super) struct Session {
    app: AppNumber,
    hre: HreId,
    user: Option<u32>,
    module: Arc<Vec<u8>>,
    /// 0: stops do not end by themselves.
    stop_ns_max: u64,
    /// By SPU: which stop was seen, and until when it lasts.
    stops: Vec<(u32, u64)>,
    look_ns: u64,
}

/// An app that is to be debugged: its number, its name, the blob that its module is, and how long it may be stopped, in nanoseconds.
type Prepared = (AppNumber, String, String, u64);

impl Session {
    /// When it wants to be looked at.
    pub fn deadline_ns(&self) -> u64 {
        self.look_ns
    }
}

impl Core {
    /// Payload: u32 app, u32 milliseconds that a stop lasts at most (0: without an end).
    pub(super) fn begin_debug(&mut self, token: Key, hre: HreId, body: &[u8]) {
        match self.prepare_debug(hre, body) {
            Ok((number, name, blob, stop_ns_max)) => {
                let beginning = Beginning { hre, stop_ns_max };
                let asker = Asker::Request { token, hre };
                let Some(key) = self.transact(asker, Change::Nothing, Work::Debug { number, name, beginning }) else {
                    return;
                };
                let owner = self.machine.app_at(number).and_then(|app| app.owner);
                let limits = self.module_limits(owner);
                let compiler = self.runtime.debug_compiler(owner);
                // It is read where it is compiled: the device does not wait for the disk.
                let reader = self.machine.media.store.blob_reader(&blob);
                let compile = move || {
                    let bytes = reader().map_err(|error| format!("its module cannot be read: {error}"))?;
                    let bytes = bytes.ok_or("its module is gone from the media")?;
                    check_name(&blob, &bytes)?;
                    Ok(Compiled { module: compiler?.compile(bytes, limits)?, name: blob })
                };
                let user = self.machine.protection.user(hre);
                self.jobs.push(user, Job { transaction: key, compile: Box::new(compile) });
            }
            Err(refusal) => self.answer(token, hre, Err(refusal)),
        }
    }

    /// Which app it is, and its module; or why not.
    fn prepare_debug(&mut self, hre: HreId, body: &[u8]) -> Result<Prepared, (ControlStatus, String)> {
        let (Some(number), Some(stop_ms_max)) = (word(body, 0), word(body, 4)) else {
            return Err((
                ControlStatus::Malformed,
                "a debugger begins with 8 bytes: u32 app, u32 milliseconds".to_owned(),
            ));
        };
        let user = self.machine.protection.user(hre);
        let app = self.own_app(user, number)?;
        let busy = |text: String| Err((ControlStatus::Busy, text));
        let Some(state) = self.machine.app_at(app) else { return busy("it is gone".to_owned()) };
        let name = state.name.clone();
        if state.settles || self.machine.ftl() == Some(app) {
            return busy(format!("app {name} is waited for by others: it cannot be stopped"));
        }
        if self.is_changing(&name) || self.service.shutdown != Shutdown::No {
            return busy(format!(
                "app {name} is being installed, replaced, removed or started at this moment: try again"
            ));
        }
        self.drop_lost_debuggers();
        let sessions = &self.service.debuggers;
        if sessions.iter().any(|session| session.app == app) {
            return busy(format!("app {name} has a debugger"));
        }
        // Those that are about to begin count as well.
        let begins = |transaction: &Transaction| match &transaction.work {
            Work::Debug { beginning, .. } => Some(self.machine.protection.user(beginning.hre)),
            _ => None,
        };
        let begun = self.service.transactions.values().filter_map(begins);
        let users: Vec<Option<u32>> = sessions.iter().map(|session| session.user).chain(begun).collect();
        if user.is_some() && users.contains(&user) || users.len() >= DEBUGGERS_MAX {
            return busy(format!("a user has one debugger, and a device {DEBUGGERS_MAX}"));
        }
        let installed = self.service.commits.durable.apps.iter().find(|installed| installed.number == app);
        let Some(blob) = installed.and_then(|installed| installed.module.clone()) else {
            return busy(format!("app {name} comes with the device: install its module to debug it"));
        };
        Ok((app, name, blob, u64::from(stop_ms_max) * 1_000_000))
    }

    /// The module is compiled for a debugger: the app is started anew with it.
    pub(super) fn compiled_for_debug(&mut self, key: u32, compiled: Result<CompiledModule, String>) {
        let Some(Work::Debug { number, name, beginning }) = self.take_debug(key) else { return };
        let refusal = |text: String| Refusal { status: ControlStatus::Busy, text, error: abi::ERROR_REFUSED };
        let linked = compiled.and_then(|compiled| {
            let linked = self.runtime.prepare_debug(&compiled)?;
            Ok((Program::Debug(linked), compiled.bytes))
        });
        let (program, module) = match linked {
            Ok(linked) => linked,
            Err(why) => {
                let text = format!("app {name} is not debugged: {why}");
                let (status, error) = (ControlStatus::ModuleRefused, abi::ERROR_REFUSED);
                return self.finish(key, Err(Refusal { status, text, error }));
            }
        };
        if let Program::Debug(linked) = &program {
            let image = linked.module().image_range();
            let bytes = (image.end as usize - image.start as usize) as u64 * u64::from(self.spus());
            if bytes > IMAGES_BYTES_MAX {
                let text = format!("app {name} is not debugged: its code for that has {bytes} bytes on all SPUs");
                return self.finish(key, Err(refusal(text)));
            }
        }
        // It may have been given up meanwhile.
        if self.machine.app_at(number).is_none() || !self.machine.bridge.is_open(beginning.hre) {
            return self.finish(key, Err(refusal(format!("app {name} is not debugged: who asked is gone"))));
        }
        let user = self.machine.protection.user(beginning.hre);
        let spus = usize::from(self.spus());
        let look_ns = if beginning.stop_ns_max > 0 { self.machine.now_ns + LOOK_NS } else { u64::MAX };
        self.service.debuggers.push(Session {
            app: number,
            hre: beginning.hre,
            user,
            module: Arc::new(module),
            stop_ns_max: beginning.stop_ns_max,
            stops: vec![(0, 0); spus],
            look_ns,
        });
        self.reset_with(key, number, name, Some(program));
    }

    fn debugger_of(&mut self, hre: HreId, number: u32) -> Result<&mut Session, (ControlStatus, String)> {
        self.drop_lost_debuggers();
        let mut sessions = self.service.debuggers.iter_mut();
        let found = sessions.find(|session| session.hre == hre && u32::from(session.app) == number);
        let gone = || "this endpoint does not debug that app: it has ended, or was replaced or reset".to_owned();
        found.ok_or_else(|| (ControlStatus::NotFound, gone()))
    }

    /// Debuggers of apps that have been replaced, reset or removed, or have ended, are gone.
    fn drop_lost_debuggers(&mut self) {
        let machine = &mut *self.machine;
        let transactions = &self.service.transactions;
        self.service.debuggers.retain(|session| {
            let starts = transactions.values().any(|transaction| transaction.app_number() == Some(session.app));
            starts || machine.is_debugged(session.app)
        });
    }

    /// Inline arguments: u32 0, u32 app. Reply: JSON array of [`DebugState`].
    pub(super) fn debug_state(&mut self, token: Key, hre: HreId, arguments: &[u8]) -> Answer {
        let app = self.debugger_of(hre, word(arguments, 4).unwrap_or(0))?.app;
        let states: Vec<DebugState> = self.machine.stops(app).map(|(spu, stop)| DebugState { spu, stop }).collect();
        self.reply(token, arguments, &serde_json::to_vec(&states).unwrap_or_default())
    }

    /// Inline arguments: u32 offset, u32 app, u32 SPU, u32 kind, two words of it.
    pub(super) fn debug_query(&mut self, token: Key, hre: HreId, arguments: &[u8]) -> Answer {
        let word_at = |at: usize| word(arguments, at).unwrap_or(0);
        let (spu, kind, first, second) = (word_at(8), word_at(12), word_at(16), word_at(20));
        let session = self.debugger_of(hre, word_at(4))?;
        let app = session.app;
        if kind == debugger::MODULE {
            let module = session.module.clone();
            let from = (word_at(0) as usize).min(module.len());
            let piece = &module[from..module.len().min(from + PIECE_BYTES_MAX)];
            self.machine.write_reply(token, piece);
            self.did_for(token, bytes_cost(piece.len()));
            return Ok(module.len() as u32);
        }
        let query = match kind {
            debugger::STACK => Query::Stack,
            debugger::VALUES => Query::Values { frame: first },
            debugger::MEMORY => Query::Memory { from: first.into(), bytes: second },
            _ => return refuse(ControlStatus::Malformed, format!("there is no question {kind}")),
        };
        let answer = u16::try_from(spu).ok().and_then(|spu| self.machine.ask_stopped(app, spu, query));
        self.did_for(token, answer.as_ref().map_or(0, debug::Answer::cost));
        match answer {
            Some(debug::Answer::Stack(frames)) => {
                self.reply(token, arguments, &serde_json::to_vec(&frames).unwrap_or_default())
            }
            Some(debug::Answer::Values(values)) => {
                self.reply(token, arguments, &serde_json::to_vec(&values).unwrap_or_default())
            }
            Some(debug::Answer::Memory(bytes)) => self.reply(token, arguments, &bytes),
            None => refuse(ControlStatus::Busy, format!("SPU {spu} has not stopped")),
        }
    }

    /// Payload: u32 app, u32 SPU (FFFFFFFFh: all), u32 what; then of breakpoints u32 each, of a step the number of frames.
    pub(super) fn debug_tell(&mut self, token: Key, hre: HreId, body: &[u8]) -> Answer {
        let word_at = |at: usize| word(body, at).unwrap_or(0);
        let (spu, what) = (word_at(4), word_at(8));
        let app = self.debugger_of(hre, word_at(0))?.app;
        let payer = self.machine.bridge.account_of(hre);
        let rest = body.get(12..).unwrap_or_default();
        let told = match what {
            debugger::SET_BREAKPOINTS => {
                if rest.len() > 4 * BREAKPOINTS_MAX {
                    return refuse(ControlStatus::NoRoom, format!("an app has {BREAKPOINTS_MAX} breakpoints at most"));
                }
                let breakpoints: BTreeSet<u32> =
                    rest.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
                Told::Breakpoints(breakpoints)
            }
            debugger::GO_ON => Told::GoOn(Mode::Run),
            debugger::STEP => Told::GoOn(Mode::Step { depth_max: word_at(12) }),
            debugger::PAUSE => Told::Pause,
            _ => return refuse(ControlStatus::Malformed, format!("a debugger cannot say {what}")),
        };
        let spus = match u16::try_from(spu) {
            Ok(spu) if spu < self.spus() => spu..spu + 1,
            _ if spu == u32::MAX => 0..self.spus(),
            _ => return refuse(ControlStatus::Malformed, format!("there is no SPU {spu}")),
        };
        if let Told::Breakpoints(breakpoints) = &told {
            self.did_for(token, breakpoints.len() as u64 * spus.len() as u64 * BREAKPOINT_COST);
        }
        for spu in spus {
            self.machine.debugger_is_of(app, spu, payer);
            self.machine.tell_debugged(app, spu, &told);
        }
        self.look_soon(app);
        Ok(0)
    }

    /// A stop that ends by itself may begin.
    fn look_soon(&mut self, app: AppNumber) {
        let now_ns = self.machine.now_ns;
        let session = self.service.debuggers.iter_mut().find(|session| session.app == app && session.stop_ns_max > 0);
        if let Some(session) = session {
            session.look_ns = now_ns + LOOK_NS;
        }
    }

    /// Payload: u32 app.
    pub(super) fn end_debug(&mut self, hre: HreId, body: &[u8]) -> Answer {
        let app = self.debugger_of(hre, word(body, 0).unwrap_or(0))?.app;
        self.end_debuggers(|session| session.app == app);
        Ok(0)
    }

    /// Instances for a debugger have their places: where it has gone meanwhile they run as ever.
    pub(super) fn leave_if_lost(&mut self, app: AppNumber) {
        if !self.service.debuggers.iter().any(|session| session.app == app) {
            for spu in 0..self.spus() {
                self.machine.tell_debugged(app, spu, &Told::Leave);
            }
        }
    }

    /// The endpoint is gone, and its debuggers with it.
    pub(super) fn forget_debuggers(&mut self, hre: HreId) {
        if !self.service.debuggers.is_empty() {
            self.end_debuggers(|session| session.hre == hre);
        }
    }

    /// The device ends: what is stopped goes on.
    pub(super) fn end_all_debuggers(&mut self) {
        self.end_debuggers(|_| true);
    }

    fn end_debuggers(&mut self, which: impl Fn(&Session) -> bool) {
        let (ended, left) = std::mem::take(&mut self.service.debuggers).into_iter().partition::<Vec<Session>, _>(which);
        self.service.debuggers = left;
        for session in ended {
            for spu in 0..self.spus() {
                self.machine.tell_debugged(session.app, spu, &Told::Leave);
            }
        }
    }

    /// Goes on with stops that have lasted long enough.
    #[inline]
    pub(super) fn serve_debuggers(&mut self, now_ns: u64) {
        if self.service.debuggers.iter().any(|session| now_ns >= session.look_ns) {
            self.look_at_debuggers(now_ns);
        }
    }

    #[cold]
    fn look_at_debuggers(&mut self, now_ns: u64) {
        let mut over = Vec::new();
        for session in self.service.debuggers.iter_mut().filter(|session| session.stop_ns_max > 0) {
            session.look_ns = now_ns + LOOK_NS;
            for (spu, stop) in self.machine.stops(session.app) {
                let Some(stop) = stop else { continue };
                let seen = &mut session.stops[usize::from(spu)];
                if seen.0 != stop.count {
                    *seen = (stop.count, now_ns + session.stop_ns_max);
                } else if now_ns >= seen.1 {
                    over.push((session.app, spu));
                }
            }
        }
        for (app, spu) in over {
            self.machine.tell_debugged(app, spu, &Told::GoOn(Mode::Run));
        }
    }
}
