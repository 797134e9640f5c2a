//! One SPU: what its handlers work on, and the places that apps and hosts have in its tables. It shares nothing with the others.
//!
//! Invariants: a key of one SPU's tables finds nothing in another's; what an instance of an app is made of is out of its place while the
//! instance runs.

use super::Instance;
use super::accelerator::fft::Transforms;
use super::accelerator::literals::Sets;
use super::activity::Activity;
use super::counters::SpuCounters;
use super::group::Group;
use super::meter::Meter;
use super::permission::PermissionTable;
use super::rpc::Message;
use super::send::{MESSAGES_PER_SPU_MAX, users_inbox};
use super::slice::Suspended;
use super::turns::OPERATIONS_PER_BANK_MAX;
use crate::bridge::accounts::KERNEL;
use crate::config::{DeviceConfig, HOST_RPCS_MAX, MESSAGES_MAX, SPUS_MAX};
use crate::interconnect::Key;
use crate::interconnect::event::EVENTS_MAX;
use crate::places::Places;
use crate::request::AppNumber;
use crate::slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Most requests at an SPU.
pub const ACTIVITIES_MAX: usize = 1 << 16;
/// Of them kept for what SPU-OS itself asks of apps.
pub const EVENT_ACTIVITIES: usize = 1 << 13;
/// Most operations that handlers wait for, on all SPUs of a device that has up to 16.
pub const WAITS_MAX: usize = 1 << 16;
/// Most activities in the background, of all apps, on all SPUs of a device that has up to 16.
pub const BACKGROUND_MAX: usize = 1 << 12;

/// An SPU's part of places that SPUs divide among themselves: beyond 16 of them each has as many as of 16.
const fn part(places: usize, spus: usize) -> usize {
    places / if spus < 16 { spus } else { 16 }
}

// Whatever hosts, other SPUs, banks and the background have of an SPU, what SPU-OS asks of apps finds a place.
const _: () = {
    let others = MESSAGES_PER_SPU_MAX as usize + OPERATIONS_PER_BANK_MAX + BACKGROUND_MAX;
    assert!(HOST_RPCS_MAX + others + EVENT_ACTIVITIES <= ACTIVITIES_MAX);
};
// Under a model of time what users' apps wait for has an event for the data, one for the end and one for what is streamed, beside requests.
const _: () = assert!(part(WAITS_MAX, SPUS_MAX as usize) / 2 * SPUS_MAX as usize * 3 + EVENTS_MAX / 2 < EVENTS_MAX);

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
    /// A run of its instance that made way.
    pub suspended: Option<Box<Suspended>>,
    /// Messages that it puts together, and RPCs and upcalls of its that are not answered.
    pub messages: u32,
    /// Of the upcalls, how many are at the endpoints of each process.
    pub upcalls_at: BTreeMap<u32, u32>,
}

impl Resident {
    /// From now on completions go to another instance; what an earlier one has asked others has none of this one's places.
    pub fn is_now(&mut self, incarnation: u32) {
        (self.incarnation, self.messages) = (incarnation, 0);
    }
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
    /// What the FFT accelerator works with.
    pub(super) transforms: Transforms,
    /// A piece of NV memory on its way through an accelerator.
    pub(super) piece: Vec<u8>,
    /// Messages of other SPUs that are here: all, and the places of users' apps.
    inbox: (u32, Places),
    /// Places of users' apps among what is waited for, by app: from the import that promises a `complete` to that.
    pub(super) waits: Places,
    /// Places of users' apps among messages that are put together, by app.
    pub(super) drafts: Places,
    /// Places of activities in the background, by app.
    pub(super) backgrounds: Places,
    /// Whose work runs now.
    pub(super) running: u16,
}

// An SPU may move to another thread between two calls.
const _: () = {
    const fn moves_between_threads<T: Send>() {}
    moves_between_threads::<Spu>();
};

impl Spu {
    pub(super) fn new(config: &DeviceConfig) -> Self {
        let [waits, messages, background] =
            [WAITS_MAX, MESSAGES_MAX, BACKGROUND_MAX].map(|places| part(places, config.spus.into()));
        let of_apps = |places: usize| Places::new(places as u64, config.apps_max);
        Spu {
            activities: Slab::new(ACTIVITIES_MAX),
            groups: Slab::new(waits),
            messages: Slab::new(messages),
            permissions: PermissionTable::new(config.permission_entries),
            residents: (0..config.apps_max).map(|_| Resident::default()).collect(),
            counters: SpuCounters::default(),
            meter: Meter::default(),
            transforms: Transforms::default(),
            piece: Vec::new(),
            inbox: (0, users_inbox(config.apps_max)),
            waits: of_apps(waits / 2),
            drafts: of_apps(messages / 2),
            backgrounds: of_apps(background),
            running: KERNEL,
        }
    }

    /// Takes a request in, to be delivered; its key on this SPU, or `None` where it holds as many as it can.
    #[inline(always)]
    pub(super) fn take_activity(&mut self, spu: u16, activity: impl FnOnce() -> Activity) -> Option<Key> {
        self.activities.has_room().then(|| Key { spu, key: self.activities.put(activity) })
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
