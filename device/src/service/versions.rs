//! Puts versions of apps on the SPUs: those of the metadata at the start, and those that are installed later.
//!
//! What always holds:
//! - A version is made ready (instances on all SPUs, initialised) before it has a place; until it has one, its imports find nothing.
//! - Of a version that is installed, that comes back, or that is started anew, an instance is made at a time, and others have their turn in between. (But of
//!   the FTL, for which everybody waits in any case, and of what comes up with the device, when nobody is served yet.)
//! - An app of the media that does not come up is listed as failed, with the reason, and keeps its number, regions and owner; the
//!   device starts.

use super::OpenError;
use super::core::Core;
use crate::request::AppNumber;
use crate::service::metadata::{InstalledApp, MODULE_NAME_BYTES, module_name};
use crate::spu::Instance;
use crate::spu::limits::InstanceLimits;
use crate::spu::long::LongInstance;
use crate::spu::module::{Manifest, ModuleLimits, check, parse_manifest};
use crate::spu::native::NativeInstance;
use crate::spu::os::{Admission, AppState, Caller, UNPLACED};
use crate::spu::paced::PacedInstance;
use crate::spu::protection::user_app_name;
use crate::spu::wasm::{CompiledModule, Guest, WasmInstance};
use wasmtime::InstancePre;
use willow_sdk::native::NativeApp;

/// An app that comes with the program.
pub enum BuiltInApp {
    /// A module for the sandbox.
    Wasm(&'static [u8]),
    /// The same handlers built natively, trusted: to measure what the sandbox costs.
    Native(&'static dyn NativeApp),
}

/// Most bytes of an FTL's memory on an SPU: a map of 4 bytes for each 4 KiB of a terabyte.
const FTL_DATA_BYTES_MAX: u64 = 1 << 30;

/// What an app's instances are made from.
#[derive(Clone)]
pub(crate) enum Program {
    /// A compiled module, its imports resolved.
    Wasm(InstancePre<Guest>),
    /// The same, a user's: its runs make way where they take the machine long.
    Users(InstancePre<Guest>),
    /// The same for runs that make way after each slice.
    Long(InstancePre<Guest>),
    /// A module that is compiled for a debugger.
    Debug(InstancePre<Guest>),
    /// A native build, trusted.
    Native(&'static dyn NativeApp),
}

/// Instances of an app, by SPU.
type Instances = Vec<Box<dyn Instance>>;

/// A version of an app that has no place: ready to get one, or what was there before.
pub(crate) struct Version {
    state: AppState,
    program: Option<Program>,
    instances: Instances,
}

impl Version {
    /// The app as it will be.
    pub(crate) fn state(&self) -> &AppState {
        &self.state
    }
}

/// A version that is being made ready, an instance at a time.
pub(crate) struct Making {
    state: AppState,
    program: Program,
    /// Where these instances are for a debugger: what those that follow are made from.
    then: Option<Program>,
    limits: InstanceLimits,
    instances: Instances,
}

impl Making {
    /// The app as it will be.
    pub(crate) fn state(&self) -> &AppState {
        &self.state
    }
}

/// The name under which a module is installed for that owner.
fn installed_name(manifest: &Manifest, owner: Option<u32>) -> String {
    owner.map_or_else(|| manifest.name.clone(), |user| user_app_name(user, &manifest.name))
}

/// What a blob is named after its content must have it.
pub(super) fn check_name(blob: &str, module: &[u8]) -> Result<(), String> {
    if blob.len() == MODULE_NAME_BYTES && module_name(module) != *blob {
        return Err("its module is damaged: it is not the one that was installed".to_owned());
    }
    Ok(())
}

impl Core {
    pub(super) fn load_apps(&mut self, built_in: Vec<BuiltInApp>) -> Result<(), OpenError> {
        let limits = self.module_limits(None);
        let ftl_limits = ModuleLimits { data_bytes_max: FTL_DATA_BYTES_MAX, ..limits };
        for app in built_in {
            let refused = |why| OpenError(format!("a built-in app is refused: {why}"));
            let (manifest, compiled, native) = match app {
                BuiltInApp::Wasm(bytes) => {
                    // The FTL comes with the program, and its memory is the flash's.
                    let name = check(bytes, ftl_limits).map_err(refused)?.name;
                    let serves = self.machine.media.store.served_by() == Some(&name);
                    let limits = if serves { ftl_limits } else { limits };
                    let compiled = self
                        .runtime
                        .compiler(None)
                        .and_then(|compiler| compiler.compile(bytes.to_vec(), limits))
                        .map_err(refused)?;
                    (compiled.manifest.clone(), Some(compiled), None)
                }
                BuiltInApp::Native(native) => (parse_manifest(native.manifest()).map_err(refused)?, None, Some(native)),
            };
            let name = manifest.name.clone();
            let Some(number) = self.built_in_number(&name)? else { continue };
            let version = match (compiled, native) {
                (Some(compiled), _) => self.make_version(compiled, name.clone(), None),
                (None, Some(native)) => self.make_native(native, manifest),
                (None, None) => continue,
            };
            let version = version.map_err(|why| OpenError(format!("app {name}: {why}")))?;
            self.enter_version(number, version, Admission::Open);
            self.tell_started(number);
        }
        // What came with another program and not with this one has no place.
        let machine = &self.machine;
        let is_there = |app: &InstalledApp| machine.app_at(app.number).is_some();
        self.service.commits.durable.apps.retain(|app| !app.built_in || is_there(app));
        let installed: Vec<InstalledApp> =
            self.service.commits.durable.apps.iter().filter(|app| !app.built_in).cloned().collect();
        for app in &installed {
            self.check_number(app)?;
            match self.load_app(app) {
                Ok(version) => {
                    self.enter_version(app.number, version, Admission::Open);
                    self.tell_started(app.number);
                }
                Err(why) => {
                    tracing::error!("app {} does not come up: {why}", app.name);
                    let machine = &mut *self.machine;
                    let mut state = AppState::new(&app.name, "?", vec![], 0, 0);
                    (state.ended, state.failed, state.owner) = (Some(why), true, app.owner);
                    machine.set_app(app.number, Some(state));
                }
            }
        }
        self.hold_until_settled();
        if self.machine.media.store.served_by().is_some() && self.service.ftl.is_none() {
            let failed = self.machine.ftl().and_then(|number| self.machine.app_at(number)?.ended.clone());
            self.ftl_missing(&failed.unwrap_or_else(|| "it is not installed".to_owned()));
        }
        Ok(())
    }

    /// Number of a built-in app, which it has from now on; `None` where another version of it was installed.
    fn built_in_number(&mut self, name: &str) -> Result<Option<AppNumber>, OpenError> {
        let known = self.service.commits.durable.apps.iter().find(|app| app.name == name).cloned();
        if let Some(app) = known {
            self.check_number(&app)?;
            return Ok(app.built_in.then_some(app.number));
        }
        let number = self.free_number().map_err(|why| OpenError(format!("app {name}: {why}")))?;
        let app = InstalledApp { number, name: name.to_owned(), built_in: true, module: None, owner: None };
        self.service.commits.durable.apps.push(app);
        Ok(Some(number))
    }

    /// An app of the media, made ready; the error says what is wrong with it.
    fn load_app(&mut self, app: &InstalledApp) -> Result<Version, String> {
        let blob = app.module.as_ref().ok_or("the metadata name no module of it")?;
        let loaded = self.machine.media.store.load_blob(blob);
        let bytes = loaded.map_err(|error| format!("its module cannot be read: {error}"))?;
        let bytes = bytes.ok_or("its module is gone from the media")?;
        check_name(blob, &bytes)?;
        let compiled = self.runtime.compiler(app.owner)?.compile(bytes, self.module_limits(app.owner))?;
        if installed_name(&compiled.manifest, app.owner) != app.name {
            return Err(format!("its module is that of app {}", compiled.manifest.name));
        }
        self.make_version(compiled, app.name.clone(), app.owner)
    }

    /// Checks the number that the metadata give an app.
    fn check_number(&self, app: &InstalledApp) -> Result<(), OpenError> {
        let machine = &*self.machine;
        let (name, number, apps_max) = (&app.name, app.number, machine.config.apps_max);
        let wrong = match machine.app_at(number) {
            _ if number == 0 => "is the control service's".to_owned(),
            _ if number >= apps_max => format!("is past apps_max, {apps_max}: start the device with more"),
            Some(other) => format!("is also that of app {}", other.name),
            None => return Ok(()),
        };
        Err(OpenError(format!("the device's metadata give app {name} the number {number}, which {wrong}")))
    }

    /// What a module of that owner may be.
    pub(crate) fn module_limits(&self, owner: Option<u32>) -> ModuleLimits {
        let machine = &*self.machine;
        ModuleLimits {
            data_bytes_max: machine.config.app_data_bytes_max,
            code_bytes_max: machine.config.app_code_bytes_max,
            trusted: owner.is_none(),
        }
    }

    /// Makes a version of an app ready on all SPUs.
    fn make_version(&mut self, compiled: CompiledModule, name: String, owner: Option<u32>) -> Result<Version, String> {
        let making = self.begin_version(compiled, name, owner)?;
        self.make_all(making)
    }

    /// Begins to make a version of an app ready: it has no instances yet.
    pub(super) fn begin_version(
        &mut self,
        compiled: CompiledModule,
        name: String,
        owner: Option<u32>,
    ) -> Result<Making, String> {
        self.check_room(&name, compiled.manifest.footprint)?;
        let is_long = compiled.manifest.long;
        let prepared = self.runtime.prepare(&compiled, owner, is_long)?;
        let program = match owner {
            _ if is_long => Program::Long(prepared),
            // Under a model of time nobody looks at what the machine takes.
            Some(_) if self.machine.answers_now() => Program::Users(prepared),
            _ => Program::Wasm(prepared),
        };
        let CompiledModule { manifest, module_bytes, .. } = compiled;
        debug_assert_eq!(name, installed_name(&manifest, owner));
        let mut state = AppState::new(&name, &manifest.version, manifest.handlers, module_bytes, 0);
        (state.owner, state.calls, state.footprint) = (owner, manifest.calls, manifest.footprint);
        (state.settles, state.long) = (manifest.settles, manifest.long);
        Ok(self.begin_making(program, state))
    }

    fn make_native(&mut self, native: &'static dyn NativeApp, manifest: Manifest) -> Result<Version, String> {
        let mut state = AppState::new(&manifest.name, &manifest.version, manifest.handlers, 0, 0);
        (state.calls, state.settles) = (manifest.calls, manifest.settles);
        self.make_ready(Program::Native(native), state)
    }

    /// What an instance of an app may take of memory, and do between two waits.
    pub(super) fn instance_limits(&self, app: &AppState) -> InstanceLimits {
        let config = &self.machine.config;
        let is_small = app.owner.is_some() && !app.long;
        let of_users = |users: bool| if users { config.user_instruction_budget } else { config.instruction_budget };
        let (budget, initialize_budget) = (of_users(is_small), of_users(app.owner.is_some()));
        // The FTL's tables grow with the flash, which is the preset's.
        let serves = self.machine.media.store.served_by() == Some(&app.name);
        let data_bytes_max = if serves { FTL_DATA_BYTES_MAX } else { config.app_data_bytes_max };
        InstanceLimits { data_bytes_max, budget, initialize_budget }
    }

    /// An instance of an app for an SPU, initialised. What it prints goes to the app that is being staged.
    pub(super) fn make_instance(
        &mut self,
        program: &Program,
        spu: u16,
        limits: InstanceLimits,
    ) -> Result<Box<dyn Instance>, String> {
        let caller = Caller { app: UNPLACED, spu, incarnation: 0 };
        let instance: Result<Box<dyn Instance>, String> = match program {
            Program::Wasm(pre) => WasmInstance::new(pre, &mut self.machine, caller, limits)
                .map(|instance| Box::new(instance) as Box<dyn Instance>),
            Program::Users(pre) => PacedInstance::new(pre, &mut self.machine, caller, limits)
                .map(|instance| Box::new(instance) as Box<dyn Instance>),
            Program::Long(pre) => LongInstance::new(pre, &mut self.machine, caller, limits)
                .map(|instance| Box::new(instance) as Box<dyn Instance>),
            Program::Debug(pre) => LongInstance::debugged(pre, &mut self.machine, caller, limits)
                .map(|instance| Box::new(instance) as Box<dyn Instance>),
            Program::Native(native) => Ok(Box::new(NativeInstance::new(*native, caller))),
        };
        // What it did in `_initialize` was within a budget of its own, and is nobody's run.
        self.machine.staged_one(spu);
        instance
    }

    fn make_ready(&mut self, program: Program, state: AppState) -> Result<Version, String> {
        let making = self.begin_making(program, state);
        self.make_all(making)
    }

    /// The same as [`Core::begin_making`] with instances for a debugger: those that follow are made of the program as it is.
    pub(super) fn begin_making_for_debugger(&self, (debugged, program): (Program, Program), state: AppState) -> Making {
        Making { then: Some(program), ..self.begin_making(debugged, state) }
    }

    /// Begins to make instances of a program.
    pub(super) fn begin_making(&self, program: Program, mut state: AppState) -> Making {
        let config = &self.machine.config;
        let users = state.owner.is_some();
        state.dma_budget_bytes = if users { config.user_dma_budget_bytes } else { config.dma_budget_bytes };
        let limits = self.instance_limits(&state);
        Making { state, program, then: None, limits, instances: Vec::new() }
    }

    /// Makes the instances that a version lacks, one after the other.
    pub(super) fn make_all(&mut self, mut making: Making) -> Result<Version, String> {
        while !self.is_made(&making) {
            making = self.make_one(making)?;
        }
        Ok(self.made(making))
    }

    /// Whether a version has an instance on each SPU.
    pub(super) fn is_made(&self, making: &Making) -> bool {
        making.instances.len() >= usize::from(self.spus())
    }

    /// Makes a version's instance for the next SPU.
    pub(super) fn make_one(&mut self, making: Making) -> Result<Making, String> {
        let Making { state, program, then, limits, mut instances } = making;
        self.machine.begin_staging(state);
        let instance = self.make_instance(&program, instances.len() as u16, limits);
        let state = self.machine.end_staging();
        let state = state.ok_or("the version that was being made is gone")?;
        instances.push(instance?);
        Ok(Making { state, program, then, limits, instances })
    }

    /// The version, which has all its instances.
    pub(super) fn made(&self, making: Making) -> Version {
        debug_assert!(self.is_made(&making), "an instance for each SPU");
        let Making { state, program, then, instances, .. } = making;
        Version { state, program: Some(then.unwrap_or(program)), instances }
    }

    /// Puts a version in its place. What was there before comes back, without its instances; what waits for the app waits on, as
    /// `admission` says.
    pub(crate) fn enter_version(
        &mut self,
        number: AppNumber,
        version: Version,
        admission: Admission,
    ) -> Option<Version> {
        let Version { mut state, program, instances } = version;
        let old = {
            let machine = &mut *self.machine;
            machine.end_version(number);
            if let Some(old) = machine.app(number) {
                state.incarnation = old.incarnation.wrapping_add(1);
                state.held = std::mem::take(&mut old.held);
                state.log_bytes += std::mem::take(&mut old.log_bytes);
                state.log_end += std::mem::take(&mut old.log_end);
                (state.dead, state.dead_count) = (old.dead.take(), old.dead_count);
                let fresh = std::mem::replace(&mut state.log, std::mem::take(&mut old.log));
                state.log.extend(fresh);
                state.trim_log();
            } else {
                state.incarnation = state.incarnation.wrapping_add(1);
            }
            state.admission = admission;
            machine.set_app(number, Some(state))
        };
        self.machine.place_instances(number, instances);
        let program = std::mem::replace(&mut self.programs[number as usize], program);
        old.map(|state| Version { state, program, instances: Vec::new() })
    }

    /// The version before is to come back, since the one that took its place has not come up, which ends: its instances are to be made anew, unless it had
    /// ended before.
    pub(super) fn begin_return(&mut self, number: AppNumber, old: Version, why: &str) -> Result<Making, Box<Version>> {
        let machine = &mut *self.machine;
        machine.drop_instances(number);
        machine.end_version(number);
        if let Some(app) = machine.app(number) {
            app.ended.get_or_insert_with(|| why.to_owned());
        }
        let Version { mut state, program, .. } = old;
        state.push_line(format!(
            "0: [SPU-OS] the version that was to follow did not come up ({why}): version {} goes on",
            state.version
        ));
        match program {
            Some(program) if state.ended.is_none() => Ok(self.begin_making(program, state)),
            program => Err(Box::new(Version { state, program, instances: Vec::new() })),
        }
    }

    /// Puts the version before back, where its instances could be made.
    pub(super) fn return_version(&mut self, number: AppNumber, ready: Result<Version, String>) {
        match ready {
            Ok(version) => {
                let runs = version.state.ended.is_none();
                self.enter_version(number, version, Admission::Open);
                if runs {
                    self.announce_start(number, None);
                }
            }
            Err(why) => {
                tracing::error!("the version before of app {number} does not start again: {why}");
                self.machine.trapped(number, 0, &why);
            }
        }
        self.machine.release_requests(number);
    }
}
