//! Puts apps on the SPUs: those of the metadata at the start, and one that is installed or replaced later.

use super::*;
use crate::protection::user_app_name;

impl Device {
    pub(super) fn load_apps(&mut self, built_in: Vec<BuiltInApp>, installed: &[InstalledApp]) -> Result<(), OpenError> {
        let limits = self.module_limits();
        for app in built_in {
            match app {
                BuiltInApp::Wasm(bytes) => {
                    let compiled = compile(&self.runtime.engine(), bytes.to_vec(), limits)
                        .map_err(|why| OpenError(format!("a built-in app is refused: {why}")))?;
                    let name = compiled.manifest.name.clone();
                    let known = installed.iter().find(|app| app.name == name);
                    if known.is_some_and(|app| !app.built_in) {
                        continue;
                    }
                    let number = known.map(|app| app.number).or_else(|| self.unclaimed_number(installed));
                    self.add_app(compiled, number, true, None)
                        .map_err(|why| OpenError(format!("app {name}: {why}")))?;
                }
                BuiltInApp::Native(native) => {
                    let manifest = crate::spu::module::parse_manifest(native.manifest()).map_err(OpenError)?;
                    let known = installed.iter().find(|app| app.name == manifest.name);
                    let number = known.map(|app| app.number).or_else(|| self.unclaimed_number(installed));
                    self.add_native(native, manifest, number).map_err(OpenError)?;
                }
            }
        }
        for app in installed.iter().filter(|app| !app.built_in) {
            self.check_number(app)?;
            let blob = self.machine.borrow_mut().media.store.load_blob(&app.name);
            let bytes = blob.map_err(|error| OpenError(format!("app {} cannot be read: {error}", app.name)))?;
            let bytes =
                bytes.ok_or_else(|| OpenError(format!("the module of app {} is gone from the media", app.name)))?;
            let added = compile(&self.runtime.engine(), bytes, limits)
                .and_then(|compiled| self.add_app(compiled, Some(app.number), false, app.owner));
            if let Err(why) = added {
                // The device serves without it; its regions stay. The statistics and the log say so.
                tracing::error!("app {} does not run: {why}", app.name);
                let mut machine = self.machine.borrow_mut();
                let spus = machine.config.spus;
                let mut state = AppState::new(&app.name, "?", vec![], 0, 0, spus);
                state.ended = Some(why);
                state.owner = app.owner;
                machine.apps[app.number as usize] = Some(state);
                drop(machine);
                self.service.built_in.remove(&app.number);
            }
        }
        Ok(())
    }

    /// A number for a new built-in app that no installed app has.
    fn unclaimed_number(&self, installed: &[InstalledApp]) -> Option<AppNumber> {
        let machine = self.machine.borrow();
        let claimed = |place: usize| installed.iter().any(|app| usize::from(app.number) == place);
        let place = (1..machine.apps.len()).find(|place| machine.apps[*place].is_none() && !claimed(*place));
        place.map(|place| place as AppNumber)
    }

    /// Checks the number that the metadata give an app.
    fn check_number(&self, app: &InstalledApp) -> Result<(), OpenError> {
        let machine = self.machine.borrow();
        let (name, number, apps_max) = (&app.name, app.number, machine.apps.len());
        let wrong = match machine.apps.get(usize::from(number)) {
            _ if number == 0 => "is the control service's".to_owned(),
            None => format!("is past apps_max, {apps_max}: start the device with more"),
            Some(Some(other)) if other.name != *name => format!("is also that of app {}", other.name),
            Some(_) => return Ok(()),
        };
        Err(OpenError(format!("the device's metadata give app {name} the number {number}, which {wrong}")))
    }

    pub(crate) fn module_limits(&self) -> ModuleLimits {
        let machine = self.machine.borrow();
        ModuleLimits {
            data_bytes_max: machine.config.app_data_bytes_max,
            code_bytes_max: machine.config.app_code_bytes_max,
        }
    }

    /// A free app number, or the one asked for.
    fn place_for_app(&self, number: Option<AppNumber>) -> Result<AppNumber, String> {
        let machine = self.machine.borrow();
        let place = match number {
            Some(number) if (number as usize) < machine.apps.len() => Some(number as usize),
            Some(number) => return Err(format!("its number {number} is past apps_max, {}", machine.apps.len())),
            None => (1..machine.apps.len()).find(|place| machine.apps[*place].is_none()),
        };
        place
            .map(|place| place as AppNumber)
            .ok_or_else(|| format!("there is room for {} apps", machine.apps.len() - 1))
    }

    /// Puts a compiled app on all SPUs, in place of an earlier incarnation where there is one.
    pub(crate) fn add_app(
        &mut self,
        compiled: CompiledModule,
        number: Option<AppNumber>,
        built_in: bool,
        owner: Option<u32>,
    ) -> Result<AppNumber, String> {
        let number = self.place_for_app(number)?;
        let pre = self.runtime.prepare(&compiled)?;
        let manifest = &compiled.manifest;
        let name = owner.map_or_else(|| manifest.name.clone(), |user| user_app_name(user, &manifest.name));
        let handlers = manifest.handlers.clone();
        let mut state = AppState::new(&name, &manifest.version, handlers, compiled.bytes.len() as u64, 1, self.spus());
        (state.owner, state.calls) = (owner, manifest.calls);
        let (spus, data_bytes_max, budget, incarnation) = self.replace_state(number, state);
        let mut instances: Vec<Option<Box<dyn Instance>>> = Vec::new();
        for spu in 0..spus {
            let caller = Caller { app: number, spu, incarnation };
            let machine = self.machine.clone();
            let made = WasmInstance::new(&self.runtime.engine(), &pre, machine, caller, data_bytes_max, budget);
            match made {
                Ok(instance) => instances.push(Some(Box::new(instance))),
                Err(why) => {
                    self.machine.borrow_mut().end_app(number, &why, RpcOutcome::AppEnded);
                    return Err(why);
                }
            }
        }
        self.instances[number as usize] = instances;
        self.after_adding(number, built_in);
        Ok(number)
    }

    fn add_native(
        &mut self,
        native: &'static dyn willow_sdk::native::NativeApp,
        manifest: crate::spu::module::Manifest,
        number: Option<AppNumber>,
    ) -> Result<(), String> {
        let number = self.place_for_app(number)?;
        let mut state = AppState::new(&manifest.name, &manifest.version, manifest.handlers, 0, 1, self.spus());
        state.calls = manifest.calls;
        let (spus, .., incarnation) = self.replace_state(number, state);
        self.instances[number as usize] = (0..spus)
            .map(|spu| {
                let caller = Caller { app: number, spu, incarnation };
                let instance = crate::spu::native::NativeInstance::new(native, self.machine.clone(), caller);
                Some(Box::new(instance) as Box<dyn Instance>)
            })
            .collect();
        self.after_adding(number, true);
        Ok(())
    }

    /// Enters an app's new state; returns (SPUs, data limit, budget, incarnation).
    fn replace_state(&mut self, number: AppNumber, mut state: AppState) -> (u16, u64, u64, u32) {
        let mut machine = self.machine.borrow_mut();
        if let Some(old) = machine.apps[number as usize].take() {
            state.incarnation = old.incarnation.wrapping_add(1);
            state.log = old.log;
            state.log_bytes = old.log_bytes;
            state.waiting = old.waiting;
        }
        let incarnation = state.incarnation;
        let users = state.owner.is_some();
        let config = &machine.config;
        state.dma_budget_bytes = if users { config.user_dma_budget_bytes } else { config.dma_budget_bytes };
        machine.apps[number as usize] = Some(state);
        let config = &machine.config;
        let budget = if users { config.user_instruction_budget } else { config.instruction_budget };
        (config.spus, config.app_data_bytes_max, budget, incarnation)
    }

    fn after_adding(&mut self, number: AppNumber, built_in: bool) {
        if built_in {
            self.service.built_in.insert(number);
        } else {
            self.service.built_in.remove(&number);
        }
        self.send_event(number, &[abi::EVENT_STARTED], None);
        let mut machine = self.machine.borrow_mut();
        let Some(app) = machine.app(number) else { return };
        let waiting: Vec<u32> = app.waiting.iter_mut().flat_map(|queue| queue.drain(..)).collect();
        for token in waiting {
            let Some(account) = machine.activities.get(token).map(|activity| activity.account) else { continue };
            let account = machine.ready_account(account);
            machine.events.push(account, Event::Deliver { token });
        }
    }
}
