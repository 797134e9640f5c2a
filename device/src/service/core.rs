//! The device without whoever drives it: SPU-OS with the bridge, what apps are made from, and the control service over both.
//!
//! Invariant: nothing here runs a handler or decides what comes next; that is the drive's.

use super::jobs::Jobs;
use super::metadata::{HostTables, METADATA_VERSION, Metadata, identity};
use super::versions::{BuiltInApp, Program};
use super::{OpenError, Service};
use crate::config::{DeviceConfig, STRIPE_BYTES};
use crate::media::store::{Store, StoreError};
use crate::model::Timing;
use crate::model::punctuality::Punctuality;
use crate::namespace::Namespace;
use crate::region::RegionTable;
use crate::request::AppNumber;
use crate::spu::os::Machine;
use crate::spu::profile::Sampler;
use crate::spu::published::Published;
use crate::spu::wasm::{CompiledModule, Runtime};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Work that the driver of the device does outside of it, on a thread of its own or in place: a module is compiled.
pub struct Job {
    /// The transaction that waits for it.
    pub(super) transaction: u32,
    pub(super) compile: Box<dyn FnOnce() -> Result<Compiled, String> + Send>,
}

/// A module that was compiled, and the name that it is stored under, which is made of its content.
pub(super) struct Compiled {
    pub module: CompiledModule,
    pub name: String,
}

/// What came of a [`Job`]; hand it to [`crate::Device::job_done`].
pub struct JobDone {
    pub(super) transaction: u32,
    pub(super) compiled: Result<Compiled, String>,
}

impl Job {
    /// Does it; may take tens of milliseconds, and of a module that is out for it ten seconds. Never panics: where the work does, it has failed, so that whoever waits for it is told.
    pub fn run(self) -> JobDone {
        let compiled = catch_unwind(AssertUnwindSafe(self.compile)).unwrap_or_else(|_| {
            tracing::error!("the compiler panicked; the module is refused");
            Err("the compiler panicked, which is a defect of the device: its log says where".to_owned())
        });
        JobDone { transaction: self.transaction, compiled }
    }
}

/// All but the drive.
pub(crate) struct Core {
    pub machine: Box<Machine>,
    pub(super) runtime: Runtime,
    /// By app number: what its instances are made from.
    pub(super) programs: Vec<Option<Program>>,
    pub service: Service,
    pub(super) jobs: Jobs,
    uuid: [u8; 16],
    /// Which hosts namespaces are attached to, where not to all.
    pub(super) host_tables: Arc<HostTables>,
    /// Under the real clock: how late the driver hands completions out.
    pub punctuality: Punctuality,
    /// For profiles.
    pub(super) sampler: Option<Box<dyn Sampler>>,
}

impl Core {
    /// Over a store; true where that is a fresh one, whose namespaces are to be made ([`Core::make_fresh`]). Compiles the installed apps.
    pub fn open(
        config: DeviceConfig,
        mut store: Box<dyn Store>,
        timing: Option<Box<dyn Timing>>,
        built_in: Vec<BuiltInApp>,
    ) -> Result<(Core, bool), OpenError> {
        config.validate().map_err(OpenError)?;
        if store.banks() != config.spus as usize {
            return Err(OpenError(format!(
                "the media has {} banks and the device {} SPUs: start it with --spus {}",
                store.banks(),
                config.spus,
                store.banks()
            )));
        }
        let failed = |error: StoreError| OpenError(format!("the media's metadata cannot be read: {error}"));
        let stored = store.load_metadata().map_err(failed)?;
        let metadata = match &stored {
            Some(bytes) => Metadata::decode(bytes).map_err(OpenError)?,
            None => Metadata {
                version: METADATA_VERSION,
                uuid: identity(config.seed, 0),
                spus: config.spus,
                stripe_bytes: STRIPE_BYTES,
                identities: 1,
                regions: vec![],
                namespaces: vec![],
                apps: vec![],
                intercalls: vec![],
                weights: vec![],
                attachments: vec![],
                reservations: vec![],
                uncorrectable: Default::default(),
            },
        };
        if metadata.spus != config.spus || metadata.stripe_bytes != STRIPE_BYTES {
            return Err(OpenError(format!(
                "the media was made for {} SPUs and stripes of {} bytes, this device has {} and {STRIPE_BYTES}",
                metadata.spus, metadata.stripe_bytes, config.spus
            )));
        }
        let regions = RegionTable::new(store.bank_bytes(), metadata.regions.clone()).map_err(OpenError)?;
        let costs = timing.as_ref().and_then(|timing| timing.operator_costs());
        let runtime = Runtime::new(costs, config.kept_modules.as_deref()).map_err(OpenError)?;
        let published = Published {
            regions,
            namespaces: Arc::new(metadata.namespaces.clone()),
            intercalls: metadata.intercalls.iter().cloned().collect(),
        };
        let mut machine = Machine::new(config, store, timing, published, &metadata.weights);
        machine.media.marks = metadata.uncorrectable.clone();
        let mut core = Core {
            programs: (0..machine.config.apps_max).map(|_| None).collect(),
            machine: Box::new(machine),
            runtime,
            uuid: metadata.uuid,
            host_tables: Arc::new(metadata.host_tables()),
            service: Service::new(metadata),
            jobs: Jobs::default(),
            punctuality: Punctuality::default(),
            sampler: None,
        };
        core.load_apps(built_in)?;
        core.open_blobs().map_err(|error| OpenError(format!("the media's modules cannot be listed: {error}")))?;
        core.resume_deletions();
        Ok((core, stored.is_none()))
    }

    /// Tells whoever waits of all operations of the store that have ended.
    pub fn collect_store(&mut self) {
        while let Some((then, result)) = self.machine.store_ended() {
            self.proceed(then, result);
        }
    }

    /// The namespaces, in order of NSID; a new `Arc` each time the table changes.
    pub fn namespaces(&self) -> Arc<Vec<Namespace>> {
        self.machine.published().namespaces.clone()
    }

    /// Who is shown which namespace, and has reserved it. A new `Arc` each time that changes.
    pub fn host_tables(&self) -> Arc<HostTables> {
        self.host_tables.clone()
    }

    /// Whether these are the tables of namespaces and of hosts that the device works by.
    #[inline]
    pub fn tables_are(&self, namespaces: &Arc<Vec<crate::Namespace>>, host_tables: &Arc<HostTables>) -> bool {
        Arc::ptr_eq(namespaces, &self.machine.published().namespaces) && Arc::ptr_eq(host_tables, &self.host_tables)
    }

    /// Number of an installed app.
    pub fn app_number(&self, name: &str) -> Option<AppNumber> {
        self.machine.find_app(name.as_bytes())
    }

    /// Number of SPUs.
    pub fn spus(&self) -> u16 {
        self.machine.config.spus
    }

    /// Identity of the device, made with its media.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// (used, total) bytes of the media; total is `None` where only the disk bounds it.
    pub fn capacity(&self) -> (u64, Option<u64>) {
        let machine = &*self.machine;
        let banks = machine.media.store.banks() as u64;
        (machine.published().regions.used_bank_bytes() * banks, machine.media.store.bank_bytes().checked_mul(banks))
    }

    /// The next job to run outside; `None` also while one is there.
    pub fn job(&mut self) -> Option<Job> {
        let transactions = &self.service.transactions;
        // Who has been told that the device ends waits for none.
        self.jobs.next(|job| transactions.contains_key(&job.transaction))
    }

    /// When the service or SPU-OS has something to do, whatever else happens.
    pub fn deadline_ns(&self) -> Option<u64> {
        let misses_ns = self.machine.protection.misses.deadline_ns();
        [self.service.deadline_ns(), misses_ns, self.ftl_look_ns()].into_iter().flatten().min()
    }
}
