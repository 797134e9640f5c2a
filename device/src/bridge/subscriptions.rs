//! Endpoints that have subscribed to upcalls of an app, and which kinds: an app tells them of what no request of theirs asked for.
//!
//! What always holds:
//! - an endpoint gets upcalls of an app only for a request of its own, or of the kinds that it has subscribed to; who may subscribe is the control
//!   service's to say;
//! - a subscription goes with its endpoint, and with its app; it stays when the app is replaced;
//! - a user has as many places at most as he leaves free, so that nobody can take them all.

use super::accounts::PARTIES;
use crate::hre::HreId;
use crate::places::Places;
use crate::request::AppNumber;
use std::collections::BTreeMap;

/// Most subscriptions: endpoints, of each app.
pub const SUBSCRIPTIONS_MAX: u64 = 1 << 12;

/// What an endpoint has subscribed to of an app.
struct Subscription {
    /// A bit for each kind.
    kinds: [u64; 4],
    /// Who has its place.
    party: u16,
}

/// All subscriptions.
pub(crate) struct Subscriptions {
    of: BTreeMap<(AppNumber, HreId), Subscription>,
    places: Places,
}

impl Default for Subscriptions {
    fn default() -> Self {
        Subscriptions { of: BTreeMap::new(), places: Places::new(SUBSCRIPTIONS_MAX, PARTIES) }
    }
}

impl Subscriptions {
    /// Adds a kind, or all where it is 0; false where there is no place.
    pub fn add(&mut self, app: AppNumber, hre: HreId, kind: u8, party: u16) -> bool {
        if !self.of.contains_key(&(app, hre)) && !self.places.take(party, 1) {
            return false;
        }
        let entry = self.of.entry((app, hre)).or_insert(Subscription { kinds: [0; 4], party });
        match kind {
            0 => entry.kinds = [u64::MAX; 4],
            kind => entry.kinds[usize::from(kind) / 64] |= 1 << (kind % 64),
        }
        true
    }

    /// Takes a kind away, or all where it is 0; false where the endpoint had not subscribed.
    pub fn remove(&mut self, app: AppNumber, hre: HreId, kind: u8) -> bool {
        let Some(entry) = self.of.get_mut(&(app, hre)) else { return false };
        match kind {
            0 => entry.kinds = [0; 4],
            kind => entry.kinds[usize::from(kind) / 64] &= !(1 << (kind % 64)),
        }
        if entry.kinds == [0; 4] {
            self.places.release(entry.party, 1);
            self.of.remove(&(app, hre));
        }
        true
    }

    /// Forgets those that `gone` says.
    pub fn forget(&mut self, gone: impl Fn(AppNumber, HreId) -> bool) {
        let places = &mut self.places;
        self.of.retain(|(app, hre), entry| {
            let goes = gone(*app, *hre);
            places.release(entry.party, u64::from(goes));
            !goes
        });
    }

    /// Whether an endpoint has subscribed to a kind.
    pub fn has(&self, app: AppNumber, hre: HreId, kind: u8) -> bool {
        self.of.get(&(app, hre)).is_some_and(|entry| entry.kinds[usize::from(kind) / 64] >> (kind % 64) & 1 != 0)
    }

    /// Endpoints of a kind behind one, in the order of their ids.
    pub fn after(&self, app: AppNumber, after: HreId, kind: u8) -> impl Iterator<Item = HreId> {
        let behind = self.of.range((app, HreId(after.0.saturating_add(1)))..=(app, HreId(u32::MAX)));
        behind
            .filter(move |(_, entry)| entry.kinds[usize::from(kind) / 64] >> (kind % 64) & 1 != 0)
            .map(|(key, _)| key.1)
    }

    /// Subscriptions of an app.
    pub fn of_app(&self, app: AppNumber) -> usize {
        self.of.range((app, HreId(0))..=(app, HreId(u32::MAX))).count()
    }

    /// All of them.
    #[cfg(feature = "testing")]
    pub fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_and_go_and_leave_no_place_taken() {
        let mut subscriptions = Subscriptions::default();
        let (a, b) = (HreId(5), HreId(0x8000_1001));
        assert!(subscriptions.add(3, a, 64, 1) && subscriptions.add(3, a, 255, 1) && subscriptions.add(3, b, 0, 2));
        assert!(subscriptions.has(3, a, 64) && subscriptions.has(3, b, 1) && !subscriptions.has(3, a, 63));
        assert!(!subscriptions.has(4, a, 64));
        assert_eq!(subscriptions.after(3, HreId(0), 255).collect::<Vec<_>>(), [a, b]);
        assert_eq!(subscriptions.after(3, a, 64).collect::<Vec<_>>(), [b]);
        assert_eq!(subscriptions.places.taken(), 2);
        assert!(subscriptions.remove(3, a, 64) && subscriptions.has(3, a, 255) && subscriptions.remove(3, a, 0));
        assert!(!subscriptions.remove(3, a, 0));
        subscriptions.forget(|app, _| app == 3);
        assert_eq!((subscriptions.places.taken(), subscriptions.of.len()), (0, 0));
    }
}
