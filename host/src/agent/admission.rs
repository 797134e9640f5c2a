//! Who gets a connection: places for each user, so that nobody is kept out by another's.
//!
//! What always holds:
//! - there are at most [`CONNECTIONS_MAX`] connections, and [`LEAVING_MAX`] more that are about to end;
//! - a user gets one more while that leaves at least as many places free as the user has; the last ones are root's;
//! - past that, the user who has most gives one up, where that is at least two more than the newcomer has: first one that holds nothing. So
//!   while there are places for all users, whoever comes with none finds one.

use super::{CONNECTIONS_MAX, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use willow_shm::socket::Peer;

/// Places that only root gets.
const ROOT_PLACES: usize = 16;
/// Connections that were told to end and have not yet: each ends when what it is at is done.
const LEAVING_MAX: usize = 64;

struct Seat {
    user: u32,
    /// What would be lost with it: files, endpoints.
    holds: usize,
    used_at: Instant,
    leaves: bool,
}

#[derive(Default)]
struct Seats {
    next: u64,
    all: BTreeMap<u64, Seat>,
}

/// The places that are taken.
#[derive(Default)]
pub(super) struct Admission {
    seats: Arc<Mutex<Seats>>,
}

/// A place; it is free again when this is dropped.
pub(super) struct Place {
    seats: Arc<Mutex<Seats>>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.seats).all.remove(&self.number);
    }
}

impl Place {
    /// It was used just now, and holds so much.
    pub fn note(&self, holds: usize) {
        if let Some(seat) = lock(&self.seats).all.get_mut(&self.number) {
            (seat.holds, seat.used_at) = (holds, Instant::now());
        }
    }

    /// True where another user needs it.
    pub fn must_leave(&self) -> bool {
        lock(&self.seats).all.get(&self.number).is_some_and(|seat| seat.leaves)
    }
}

/// The user other than root who has most, of these counts, if that is at least two more than another has: that one gives something up.
pub(super) fn who_gives_up(counts: &BTreeMap<u32, usize>, user: u32) -> Option<u32> {
    let own = counts.get(&user).copied().unwrap_or(0);
    let others = counts.iter().filter(|(other, _)| **other != user && **other != 0);
    let most = others.max_by_key(|(_, count)| **count);
    most.filter(|(_, count)| **count > own + 1).map(|(other, _)| *other)
}

impl Admission {
    /// A place for a user. The error is a sentence.
    pub fn admit(&self, user: u32) -> Result<Place, String> {
        let mut seats = lock(&self.seats);
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for seat in seats.all.values().filter(|seat| !seat.leaves) {
            *counts.entry(seat.user).or_default() += 1;
        }
        let taken: usize = counts.values().sum();
        let leaving = seats.all.len() - taken;
        let free = CONNECTIONS_MAX - taken;
        let own = counts.get(&user).copied().unwrap_or(0);
        let is_full = if user == 0 { free == 0 } else { own + ROOT_PLACES >= free };
        if is_full {
            let who = who_gives_up(&counts, user).filter(|_| leaving < LEAVING_MAX);
            let of_it = seats.all.values_mut().filter(|seat| Some(seat.user) == who && !seat.leaves);
            match of_it.min_by_key(|seat| (seat.holds, seat.used_at)) {
                Some(seat) => seat.leaves = true,
                None => {
                    return Err(format!("the agent has no place for another connection of user {user}, who has {own}"));
                }
            }
        }
        seats.next += 1;
        let number = seats.next;
        seats.all.insert(number, Seat { user, holds: 0, used_at: Instant::now(), leaves: false });
        Ok(Place { seats: self.seats.clone(), number })
    }
}

/// Checks that a process acts for the user that connected: not after it has changed its user, or runs a program that changes it.
pub(super) fn check_user(peer: &Peer) -> Result<(), String> {
    if peer.pid <= 0 {
        // It is in a namespace where the agent cannot look; what it may do was said when it connected.
        return Ok(());
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid));
    let users = status.ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.to_owned();
        line.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    });
    // Then the number may be another process'.
    if peer.has_ended() {
        return Err("the process has ended".to_owned());
    }
    match users {
        Some(user) if user == peer.uid => Ok(()),
        Some(user) => {
            Err(format!("the process connected as user {} and is user {user}'s now: connect again", peer.uid))
        }
        None => Err("the process' user cannot be found out".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many places as a user gets; who must leave does.
    fn fill(admission: &Admission, places: &mut Vec<(u32, Place)>, user: u32, wanted: usize) -> usize {
        let count = |places: &[(u32, Place)]| places.iter().filter(|(other, _)| *other == user).count();
        while count(places) < wanted
            && let Ok(place) = admission.admit(user)
        {
            places.push((user, place));
            places.retain(|(_, place)| !place.must_leave());
            assert!(places.len() <= CONNECTIONS_MAX, "{} places", places.len());
        }
        count(places)
    }

    #[test]
    fn whoever_comes_first_leaves_places_for_others() {
        let admission = Admission::default();
        let mut places = Vec::new();
        assert_eq!(fill(&admission, &mut places, 1000, usize::MAX), (CONNECTIONS_MAX - ROOT_PLACES) / 2);
        // However many users there are, each finds as many places as any other, or one less.
        for users in 2..40 {
            let last = 1000 + users - 1;
            let own = fill(&admission, &mut places, last, usize::MAX);
            let most = (1000..last).map(|user| places.iter().filter(|(other, _)| *other == user).count()).max();
            assert!(own > 0 && most.is_some_and(|most| most <= own + 1), "{users} users: {own} and {most:?}");
        }
        assert!(fill(&admission, &mut places, 0, usize::MAX) >= ROOT_PLACES);
        assert_eq!(fill(&admission, &mut places, 2000, 1), 1);
        // Where each has one, there are no more: none is taken from who has as little.
        for user in 3000..6000 {
            fill(&admission, &mut places, user, 1);
        }
        assert!(fill(&admission, &mut places, 7000, 1) == 0 && places.len() <= CONNECTIONS_MAX);
        places.drain(..200);
        assert_eq!(fill(&admission, &mut places, 7000, 1), 1);
        drop(places);
        assert!(lock(&admission.seats).all.is_empty());
    }

    #[test]
    fn who_leaves_is_one_that_holds_nothing_and_only_so_many_leave_at_a_time() {
        let admission = Admission::default();
        let all_of = |user| -> Vec<Place> { std::iter::from_fn(|| admission.admit(user).ok()).collect() };
        let mut places = all_of(1000);
        places.iter().filter(|place| place.number % 2 == 0).for_each(|place| place.note(1));
        // Nobody who must leave does: then a bounded number gets in.
        let others = all_of(1001);
        let newcomers = all_of(1002);
        let leaving: Vec<u64> = places.iter().filter(|it| it.must_leave()).map(|it| it.number).collect();
        assert_eq!(leaving.len(), LEAVING_MAX);
        assert!(leaving.iter().all(|number| number % 2 == 1), "{leaving:?}");
        assert!(others.len() > newcomers.len());
        assert!(places.len() + others.len() + newcomers.len() <= CONNECTIONS_MAX + LEAVING_MAX);
        let before = newcomers.len();
        places.retain(|place| !place.must_leave());
        // They have gone: others make way again.
        assert!(before + all_of(1002).len() > before);
    }

    #[test]
    fn a_process_is_its_users_while_it_says_so() {
        let (one, _other) = willow_shm::socket::Channel::pair().expect("a connection");
        let peer = one.peer().expect("this process");
        assert_eq!(check_user(&peer), Ok(()));
        let other = Peer { uid: peer.uid + 1, ..peer };
        assert!(check_user(&other).expect_err("another user").contains("connect again"));
    }
}
