//! Who gets a connection: places for each user, so that nobody is kept out by another's.
//!
//! What always holds: there are at most [`CONNECTIONS_MAX`] connections; a user gets one more while that leaves at least as many places
//! free as the user has, so that whoever comes with none finds one; the last ones are root's.

use super::{CONNECTIONS_MAX, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use willow_shm::socket::Peer;

/// Places that only root gets.
const ROOT_PLACES: usize = 16;

/// The places that are taken, by user.
#[derive(Default)]
pub(super) struct Admission {
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// A place; it is free again when this is dropped.
pub(super) struct Place {
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
    user: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(own) = taken.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

impl Admission {
    /// A place for a user. The error is a sentence.
    pub fn admit(&self, user: u32) -> Result<Place, String> {
        let mut taken = lock(&self.taken);
        let free = CONNECTIONS_MAX - taken.values().sum::<usize>();
        let own = taken.get(&user).copied().unwrap_or(0);
        let is_full = if user == 0 { free == 0 } else { own + ROOT_PLACES >= free };
        if is_full {
            return Err(format!("the agent has no place for another connection of user {user}, who has {own}"));
        }
        *taken.entry(user).or_default() += 1;
        Ok(Place { taken: self.taken.clone(), user })
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

    #[test]
    fn whoever_comes_first_leaves_places_for_others() {
        let admission = Admission::default();
        let mut places: Vec<Place> = Vec::new();
        let mut fill = |user: u32| {
            let before = places.len();
            while let Ok(place) = admission.admit(user) {
                places.push(place);
            }
            places.len() - before
        };
        let counts: Vec<usize> = (1000..1008).map(&mut fill).collect();
        assert_eq!(counts[0], (CONNECTIONS_MAX - ROOT_PLACES) / 2);
        assert!(counts.is_sorted_by(|one, next| next * 2 >= one - 1 && next < one), "{counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        assert!(fill(0) >= ROOT_PLACES && fill(0) == 0 && fill(2000) == 0);
        assert_eq!(places.len(), CONNECTIONS_MAX);
        // A place that is given back is there again, for root as for others.
        places.drain(..200);
        assert!(admission.admit(2000).is_ok() && admission.admit(0).is_ok());
        drop(places);
        assert!(lock(&admission.taken).is_empty());
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
