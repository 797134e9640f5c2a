//! One SPU: what its handlers work on. It shares nothing with the others.
//!
//! Invariants: a key of one SPU's tables finds nothing in another's; what an instance of an app is made of is out of its place while the
//! instance runs.

use super::Instance;
use super::accelerator::literals::Sets;
use super::activity::Activity;
use super::counters::SpuCounters;
use super::group::Group;
use super::meter::Meter;
use super::os::{ACTIVITIES_MAX, WAITS_MAX};
use super::permission::PermissionTable;
use super::rpc::Message;
use super::send::{MESSAGES_PER_SPU_MAX, users_inbox};
use crate::config::{DeviceConfig, MESSAGES_MAX};
use crate::places::Places;
use crate::request::AppNumber;
use crate::slab::Slab;
use std::collections::VecDeque;

/// An app on this SPU.
#[derive(Default)]
pub(super) struct Resident {
    /// Its instance; out of its place while it runs.
    pub instance: Option<Box<dyn Instance>>,
    /// Which of the app's instances here it is: completions for others go nowhere.
    pub incarnation: u32,
    /// Requests that found no free thread.
    pub waiting: VecDeque<u32>,
    /// Waits that may be cancelled.
    pub cancellable: Vec<u32>,
    /// A range that was found to be permitted to kernel endpoints, and whether to all. Of a user's app: to all, always.
    pub permitted: (u64, u64, bool),
    /// What it has loaded into the literals accelerator.
    pub literals: Sets,
    /// What `checksum_value` gives.
    pub checksum_value: u32,
}

/// An SPU.
pub(crate) struct Spu {
    /// Requests here.
    pub(super) activities: Slab<Activity>,
    /// What handlers wait for.
    pub(super) groups: Slab<Group>,
    /// Messages that handlers put together.
    pub(super) messages: Slab<Message>,
    /// What users' processes may do with the bank.
    pub(super) permissions: PermissionTable,
    /// By app number.
    pub(super) residents: Vec<Resident>,
    pub(super) counters: SpuCounters,
    /// What SPU-OS did for the app that runs.
    pub(super) meter: Meter,
    /// A piece of NV memory on its way through an accelerator.
    pub(super) piece: Vec<u8>,
    /// Messages of other SPUs that are here: all, and the places of users' apps.
    inbox: (u32, Places),
}

// An SPU may move to another thread between two calls.
const _: () = {
    const fn moves_between_threads<T: Send>() {}
    moves_between_threads::<Spu>();
};

impl Spu {
    pub(super) fn new(config: &DeviceConfig) -> Self {
        Spu {
            activities: Slab::new(ACTIVITIES_MAX),
            groups: Slab::new(WAITS_MAX),
            messages: Slab::new(MESSAGES_MAX),
            permissions: PermissionTable::new(config.permission_entries),
            residents: (0..config.apps_max).map(|_| Resident::default()).collect(),
            counters: SpuCounters::default(),
            meter: Meter::default(),
            piece: Vec::new(),
            inbox: (0, users_inbox(config.apps_max)),
        }
    }

    /// Takes a place in the inbox for a message of an app, a user's or not; false where there is none for it.
    pub(super) fn reserve_inbox(&mut self, (app, users): (AppNumber, bool)) -> bool {
        let (all, of_users) = &mut self.inbox;
        if *all >= MESSAGES_PER_SPU_MAX || (users && !of_users.take(app, 1)) {
            return false;
        }
        *all += 1;
        true
    }

    /// Gives a place back.
    pub(super) fn release_inbox(&mut self, (app, users): (AppNumber, bool)) {
        let (all, of_users) = &mut self.inbox;
        *all -= 1;
        if users {
            of_users.release(app, 1);
        }
    }

    /// The instance of an app, for a call: it goes back by [`Spu::put_back`].
    #[inline(always)]
    pub(super) fn take_instance(&mut self, number: AppNumber) -> Option<Box<dyn Instance>> {
        self.residents.get_mut(number as usize)?.instance.take()
    }

    #[inline(always)]
    pub(super) fn put_back(&mut self, number: AppNumber, instance: Box<dyn Instance>) {
        // The place is empty, since the instance was taken out of it: nothing to drop.
        std::mem::forget(self.residents[number as usize].instance.replace(instance));
    }

    /// Bytes of an app's memory here, with what it has loaded into accelerators; `None` where it has no instance.
    pub fn memory_bytes(&self, number: usize) -> Option<u64> {
        let resident = self.residents.get(number)?;
        Some(resident.instance.as_ref()?.memory_bytes() + resident.literals.bytes())
    }
}
