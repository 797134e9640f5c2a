//! The interconnect: carries messages between the bridge and the SPUs (Willow, section 3: a ring).
//!
//! Invariants: a message arrives once, whole; messages between the same two ends arrive in the order in which they were sent;
//! an SPU's inbox for messages of other SPUs is bounded, users' apps share a part of it ([`crate::places`]), and what does not fit is
//! refused.

use crate::accounts::KERNEL;
use crate::clock::Endpoint;
use crate::event::Event;
use crate::places::Places;
use crate::request::AppNumber;
use crate::spu::os::{ACTIVITIES_MAX, Activity, EVENT_ACTIVITIES, Machine, Origin};

/// Bytes of a message's header on the wire: RPC id, source, originating HRE, length.
pub const HEADER_BYTES: u64 = 16;
/// Most messages from SPUs that one SPU holds.
pub const MESSAGES_PER_SPU_MAX: u32 = 512;
/// Of them from users' apps, which share these places.
pub const USERS_MESSAGES_PER_SPU_MAX: u32 = 256;

/// Places of users' apps in an SPU's inbox.
pub(crate) fn users_inbox(apps_max: u16) -> Places {
    Places::new(USERS_MESSAGES_PER_SPU_MAX.into(), apps_max)
}

impl Machine {
    /// Puts a request on the interconnect, as work of its account; false where the device holds as many as it can.
    #[inline(always)]
    pub fn send(&mut self, account: u16, activity: impl FnOnce() -> Activity, from: Endpoint) -> bool {
        if !self.activities.has_room() {
            return false;
        }
        let token = self.activities.put(activity);
        if self.timing.is_none() {
            self.events.push(account, Event::Deliver { token });
            return true;
        }
        self.send_timed(token, from);
        true
    }

    #[inline(never)]
    fn send_timed(&mut self, token: u32, from: Endpoint) {
        let Some(activity) = self.activities.get(token) else { return };
        let to = Endpoint::Spu(activity.spu);
        let arguments_bytes = activity.arguments.as_slice().len() as u64;
        let payload_bytes = match &activity.origin {
            // Each of a request's RPCs brings its share of the payload.
            Origin::Host { transfer } => {
                let share = |bytes: u32, rpcs: u32| if rpcs > 1 { bytes / rpcs } else { bytes };
                let transfer = self.bridge.transfers.get(*transfer);
                transfer.map_or(0, |transfer| share(transfer.payload_bytes, transfer.outstanding).into())
            }
            Origin::Spu(origin) => origin.body.len() as u64,
            Origin::Event { .. } => 0,
        };
        self.carry(|| Event::Deliver { token }, (from, to), arguments_bytes, payload_bytes);
    }

    /// Takes a place in an SPU's inbox for a message of an app, a user's or not; false where there is none for it.
    pub fn reserve_inbox(&mut self, spu: u16, (app, users): (AppNumber, bool)) -> bool {
        let (all, of_users) = &mut self.inboxes[spu as usize];
        if *all >= MESSAGES_PER_SPU_MAX || (users && !of_users.take(app, 1)) {
            return false;
        }
        *all += 1;
        true
    }

    /// Gives a place back.
    pub fn release_inbox(&mut self, spu: u16, (app, users): (AppNumber, bool)) {
        let (all, of_users) = &mut self.inboxes[spu as usize];
        *all -= 1;
        if users {
            of_users.release(app, 1);
        }
    }

    /// Most activities while a host's request may be taken in, on that account: the rest is kept for messages of SPUs and for events, and
    /// of a user's requests for those of others.
    pub fn host_activities_max(&self, account: u16) -> usize {
        let inboxes = self.spus.len() * MESSAGES_PER_SPU_MAX as usize;
        let of_hosts = ACTIVITIES_MAX - EVENT_ACTIVITIES - inboxes;
        if account == KERNEL { of_hosts } else { of_hosts / 4 * 3 }
    }
}
