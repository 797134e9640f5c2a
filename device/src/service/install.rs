//! Installations: a module becomes an app, or takes the place of an app's version that runs.
//!
//! What always holds:
//! - A new version is checked, compiled and made ready on all SPUs beside the old one, an SPU in each turn of the device. Until it starts, nothing of the old one has
//!   changed; where it does not start, or cannot be saved, the old one is started again, as after a start of the device, an SPU in each turn as well.
//! - While the old one ends what it has begun, messages on behalf of that still reach it; new requests of hosts wait, and are
//!   delivered to whichever version is there in the end. What does not end in time refuses the installation, not the requests.
//! - An installation that is refused leaves nothing: no app, no number, no module.

use super::change::{Change, Made, Refusal};
use super::core::{Compiled, Core, Job};
use super::transaction::{Asker, Transaction, Work};
use super::versions::{Making, Version};
use super::{DRAIN_NS_MAX, START_NS_MAX};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::media::store::StoreError;
use crate::request::AppNumber;
use crate::service::control::ControlStatus;
use crate::service::metadata::{InstalledApp, module_name};
use crate::spu::abi;
use crate::spu::continuation::Continuation;
use crate::spu::os::{Admission, error_of, planted};
use crate::spu::protection::USER_NOBODY;

/// How far an installation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstallState {
    /// The module is being checked and compiled, on another thread.
    Compiling,
    /// The version is made ready, an SPU in each turn of the device.
    Staging,
    /// The version is ready on all SPUs; its module is being stored.
    Storing,
    /// The old version ends what it has begun.
    Draining,
    /// The old version leaves its persistent state clean.
    ShuttingDown,
    /// The new version is on all SPUs and starts.
    Starting,
    /// The metadata that name it are being saved.
    Committing,
    /// The old version comes back, since the new one has not come up or could not be saved: an SPU in each turn of the device.
    Returning,
}

/// An installation.
pub(super) struct Install {
    pub owner: Option<u32>,
    pub state: InstallState,
    /// From when the module is compiled on.
    pub name: Option<String>,
    pub number: Option<AppNumber>,
    /// Blob of its module.
    pub module: Option<String>,
    /// The version whose instances are made: the new one, or the one that comes back.
    pub(super) making: Option<Making>,
    /// What who asked is told when that one is there.
    refusal: Option<Refusal>,
    /// The content of the new one's module.
    bytes: Vec<u8>,
    /// The new version, until it is in its place.
    pub(super) staged: Option<Version>,
    /// What was in its place, from then on.
    old: Option<Version>,
}

fn refused(status: ControlStatus, text: impl Into<String>) -> Refusal {
    Refusal { status, text: text.into(), error: abi::ERROR_REFUSED }
}

fn unfit(why: &str) -> Refusal {
    refused(ControlStatus::ModuleRefused, format!("the module is refused: {why}"))
}

impl Core {
    /// Begins to install a module.
    pub(super) fn install(&mut self, token: Key, hre: HreId, module: Vec<u8>) {
        let owner = self.machine.protection.user(hre);
        let of_owner = |transaction: &Transaction| match &transaction.work {
            Work::Install(install) => install.owner == owner,
            _ => false,
        };
        if owner == Some(USER_NOBODY) || owner.is_some() && self.service.transactions.values().any(of_owner) {
            let text = "apps are installed by users that the agent vouches for, one at a time";
            return self.answer(token, hre, super::refuse(ControlStatus::Busy, text));
        }
        let install = Install {
            owner,
            state: InstallState::Compiling,
            name: None,
            number: None,
            module: None,
            making: None,
            refusal: None,
            bytes: Vec::new(),
            staged: None,
            old: None,
        };
        let asker = Asker::Request { token, hre };
        let Some(key) = self.transact(asker, Change::Nothing, Work::Install(Box::new(install))) else { return };
        let limits = self.module_limits(owner);
        let compiler = self.runtime.compiler(owner);
        let panics = planted!(self.machine, CompilerPanics);
        #[cfg(feature = "testing")]
        let waits = planted!(self.machine, CompilerWaits);
        let compile = move || {
            assert!(!panics || !module.ends_with(b"panics"), "a planted panic of the compiler");
            #[cfg(feature = "testing")]
            if waits && module.ends_with(b"waits") {
                crate::spu::hole::wait_for_release();
            }
            let module = compiler?.compile(module, limits)?;
            let name = module_name(&module.bytes);
            Ok(Compiled { module, name })
        };
        self.jobs.push(owner, Job { transaction: key, compile: Box::new(compile) });
    }

    /// The device ends: nobody waits for a compiler any more.
    pub(super) fn give_up_compiling(&mut self) {
        let compiling = |transaction: &Transaction| match &transaction.work {
            Work::Install(install) => install.state == InstallState::Compiling,
            Work::Debug { .. } => true,
            _ => false,
        };
        let keys = self.service.transactions.iter().filter(|(_, transaction)| compiling(transaction));
        let keys: Vec<u32> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            self.finish(key, Err(refused(ControlStatus::Busy, "the device is shutting down")));
        }
    }

    fn install_of(&mut self, key: u32) -> Option<&mut Install> {
        match self.service.transactions.get_mut(&key) {
            Some(Transaction { work: Work::Install(install), .. }) => Some(install),
            _ => None,
        }
    }

    /// The compiler is done.
    pub(super) fn compiled(&mut self, key: u32, compiled: Result<Compiled, String>) {
        let Some(install) = self.install_of(key) else {
            return self.compiled_for_debug(key, compiled.map(|compiled| compiled.module));
        };
        let owner = install.owner;
        match compiled {
            Ok(compiled) => {
                if let Err(refusal) = self.stage(key, owner, compiled) {
                    self.finish(key, Err(refusal));
                }
            }
            Err(why) => self.finish(key, Err(unfit(&why))),
        }
    }

    /// Begins to make the new version ready beside what there is.
    fn stage(&mut self, key: u32, owner: Option<u32>, compiled: Compiled) -> Result<(), Refusal> {
        let Compiled { module: mut compiled, name: module } = compiled;
        let named = self.app_name_for(owner, &compiled.manifest.name);
        let name = named.map_err(|(status, text)| refused(status, text))?;
        if self.is_changing(&name) {
            let text = format!("app {name} is being installed, replaced or removed at this moment: try again");
            return Err(refused(ControlStatus::Busy, text));
        }
        let old = self.machine.find_app(name.as_bytes());
        if let Some(user) = owner {
            let share = self.check_share(&name, user, compiled.manifest.footprint);
            share.map_err(|text| refused(ControlStatus::NoRoom, text))?;
        }
        let number = match old {
            Some(number) => number,
            None => self.free_number().map_err(|text| refused(ControlStatus::NoRoom, text))?,
        };
        let bytes = std::mem::take(&mut compiled.bytes);
        let making = self.begin_version(compiled, name.clone(), owner);
        let making = making.map_err(|why| unfit(&why))?;
        let change = InstalledApp { number, name: name.clone(), built_in: false, module: Some(module.clone()), owner };
        if let Some(transaction) = self.service.transactions.get_mut(&key) {
            transaction.change = Change::Install(change);
        }
        let Some(install) = self.install_of(key) else { return Ok(()) };
        // From now on its name, its number and its room are nobody else's.
        (install.name, install.number, install.module) = (Some(name), Some(number), Some(module));
        (install.making, install.bytes) = (Some(making), bytes);
        self.set_install_state(key, InstallState::Staging);
        self.wait_for_app(key, None, 0);
        Ok(())
    }

    /// True for what is making instances.
    pub(super) fn makes_instances(&self, key: u32) -> bool {
        self.service.transactions.get(&key).is_some_and(|transaction| match &transaction.work {
            Work::Install(install) => matches!(install.state, InstallState::Staging | InstallState::Returning),
            Work::Revival(revival) => revival.makes_instances(),
            _ => false,
        })
    }

    /// Makes one more instance of the new version. When there are all, has its module stored.
    fn stage_one(&mut self, key: u32) {
        let Some(making) = self.install_of(key).and_then(|install| install.making.take()) else { return };
        self.charge_for_instances(key, 1);
        let making = match self.make_one(making) {
            Ok(making) => making,
            Err(why) => return self.end_install(key, Err(unfit(&why))),
        };
        if !self.is_made(&making) {
            if let Some(install) = self.install_of(key) {
                install.making = Some(making);
            }
            return;
        }
        let staged = self.made(making);
        let Some(install) = self.install_of(key) else { return };
        install.staged = Some(staged);
        let (module, bytes) = (install.module.clone().unwrap_or_default(), std::mem::take(&mut install.bytes));
        self.set_install_state(key, InstallState::Storing);
        self.service.polled.remove(&key);
        self.service.blobs.insert(module.clone());
        self.store_step(Continuation::Transaction(key), |store, ticket| store.save_blob(ticket, &module, bytes));
    }

    /// The module is stored, or could not be.
    pub(super) fn module_stored(&mut self, key: u32, result: Result<(), StoreError>) {
        let Some(install) = self.install_of(key) else { return };
        let Some(number) = install.number else { return };
        if let Err(error) = result {
            let text = format!("the module could not be stored: {error}");
            let refusal = Refusal { status: ControlStatus::MediaFailed, text, error: error_of(error) };
            return self.end_install(key, Err(refusal));
        }
        let is_new = self.machine.app_at(number).is_none();
        if is_new {
            self.set_install_state(key, InstallState::Committing);
            return self.commit(key);
        }
        self.set_install_state(key, InstallState::Draining);
        self.begin_drain(key, number);
    }

    fn set_install_state(&mut self, key: u32, state: InstallState) {
        if let Some(install) = self.install_of(key) {
            tracing::debug!("app {}: {:?}, then {state:?}", install.name.as_deref().unwrap_or(""), install.state);
            install.state = state;
        }
    }

    /// Looks at an installation that waits for an app; true where it went on.
    pub(super) fn poll_install(
        &mut self,
        key: u32,
        state: InstallState,
        number: Option<AppNumber>,
        (is_told, is_late, refusal): (bool, bool, Option<u32>),
    ) -> bool {
        let Some(number) = number else { return false };
        if state == InstallState::Staging {
            self.stage_one(key);
            return true;
        }
        if state == InstallState::Returning {
            self.return_one(key, number);
            return true;
        }
        let is_alive = self.machine.is_running(number);
        match state {
            InstallState::Draining if !is_alive => self.begin_start(key, number),
            InstallState::Draining if !self.machine.is_at_work(number) => {
                self.set_install_state(key, InstallState::ShuttingDown);
                self.send_shutdown(key, number);
            }
            InstallState::Draining if is_late => {
                self.machine.release_requests(number);
                let seconds = DRAIN_NS_MAX / 1_000_000_000;
                let text = format!(
                    "the app has requests at work that have not ended within {seconds} s: nothing has changed, try again"
                );
                self.end_install(key, Err(refused(ControlStatus::Busy, text)));
            }
            InstallState::ShuttingDown if is_told || is_late => self.begin_start(key, number),
            InstallState::Starting if !is_alive => {
                let ended = self.machine.app_at(number).and_then(|app| app.ended.clone());
                let why = ended.unwrap_or_default();
                let text = format!("the module is refused: it did not start: {why}");
                self.come_back(key, number, &why, refused(ControlStatus::ModuleRefused, text));
            }
            InstallState::Starting if is_told && refusal.is_some() => {
                let why = match refusal {
                    Some(status) if status != abi::EVENT_UNDELIVERED => {
                        format!("it answered STARTED with status {status}")
                    }
                    _ => "STARTED found no place in its inbox".to_owned(),
                };
                let text = format!("the module is refused: {why}");
                self.come_back(key, number, &why, refused(ControlStatus::ModuleRefused, text));
            }
            InstallState::Starting if is_told => {
                self.set_install_state(key, InstallState::Committing);
                self.service.polled.remove(&key);
                self.commit(key);
            }
            InstallState::Starting if is_late => {
                let why = format!("it has not answered STARTED within {} s", START_NS_MAX / 1_000_000_000);
                let text = format!("the module is refused: {why}");
                self.come_back(key, number, &why, refused(ControlStatus::ModuleRefused, text));
            }
            _ => return false,
        }
        true
    }

    /// The new version takes the old one's place, and starts.
    fn begin_start(&mut self, key: u32, number: AppNumber) {
        let Some(staged) = self.install_of(key).and_then(|install| install.staged.take()) else { return };
        let old = self.enter_version(number, staged, Admission::Own);
        if let Some(install) = self.install_of(key) {
            install.old = old;
        }
        self.set_install_state(key, InstallState::Starting);
        self.tell_app(key, number, &[abi::EVENT_STARTED], START_NS_MAX);
    }

    /// The version before, where there was one, is there again soon; then who asked is told.
    fn come_back(&mut self, key: u32, number: AppNumber, why: &str, refusal: Refusal) {
        let Some(old) = self.install_of(key).and_then(|install| install.old.take()) else {
            return self.end_install(key, Err(refusal));
        };
        let making = match self.begin_return(number, old, why) {
            Ok(making) if self.machine.ftl() == Some(number) => {
                let ready = self.make_all(making);
                self.return_version(number, ready);
                return self.end_install(key, Err(refusal));
            }
            Ok(making) => making,
            Err(version) => {
                self.return_version(number, Ok(*version));
                return self.end_install(key, Err(refusal));
            }
        };
        let Some(install) = self.install_of(key) else { return };
        (install.making, install.refusal) = (Some(making), Some(refusal));
        self.set_install_state(key, InstallState::Returning);
        self.wait_for_app(key, None, 0);
    }

    /// Makes one more instance of the version that comes back. When there are all, it goes on.
    fn return_one(&mut self, key: u32, number: AppNumber) {
        let Some(making) = self.install_of(key).and_then(|install| install.making.take()) else { return };
        self.charge_for_instances(key, 1);
        let ready = match self.make_one(making) {
            Ok(making) if !self.is_made(&making) => {
                if let Some(install) = self.install_of(key) {
                    install.making = Some(making);
                }
                return;
            }
            made => made.map(|making| self.made(making)),
        };
        self.return_version(number, ready);
        let refusal = self.install_of(key).and_then(|install| install.refusal.take());
        let unknown = || refused(ControlStatus::ModuleRefused, "the module is refused");
        self.end_install(key, Err(refusal.unwrap_or_else(unknown)));
    }

    /// The metadata name the new version, or could not be saved.
    pub(super) fn install_committed(&mut self, key: u32, result: Result<Made, Refusal>) {
        let Some(install) = self.install_of(key) else { return };
        let Some(number) = install.number else { return };
        let staged = install.staged.take();
        self.service.starting.forget(number);
        let result = match (result, staged) {
            (Ok(_), Some(new)) => {
                self.enter_version(number, new, Admission::Open);
                self.announce_start(number, None);
                Ok(u64::from(number))
            }
            (Ok(_), None) => {
                if self.machine.ftl() == Some(number) {
                    self.ftl_started();
                }
                self.machine.release_requests(number);
                Ok(u64::from(number))
            }
            (Err(refusal), None) => {
                let why = refusal.text.clone();
                return self.come_back(key, number, &why, refusal);
            }
            (Err(refusal), Some(_)) => Err(refusal),
        };
        self.end_install(key, result);
    }

    /// An installation has ended: what nobody names of it goes.
    fn end_install(&mut self, key: u32, result: Result<u64, Refusal>) {
        self.finish(key, result);
        self.collect_garbage();
    }
}
