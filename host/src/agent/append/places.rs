//! Which files have a place among those whose lengths the device has.
//!
//! What always holds:
//! - there are at most [`FILES_MAX`], and at most [`COORDINATOR_FILES_MAX`] of one coordinator; of either a user has at most as many as that leaves free;
//! - a place is one file's, which is told by device and inode: whoever asks for another file with the same number in the device, that of another
//!   partition, waits for nothing that is done with this one.

use super::tail::Tail;
use super::{Refusal, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Most files whose lengths the device has; a user has at most as many as that leaves free.
const FILES_MAX: usize = 64;
/// Most of them that have one coordinator, since the app has no more slots (`append_spu::format::SLOTS`). Users choose their files' inodes, and so
/// the coordinators.
const COORDINATOR_FILES_MAX: usize = 32;

pub(super) type Slot = Arc<Mutex<Option<Tail>>>;

/// A file's place.
struct Place {
    /// Who began with it; `None`: an agent before this one.
    user: Option<u32>,
    /// Device and inode.
    file: (u64, u64),
    slot: Slot,
}

/// The places, by the files' numbers in the device.
#[derive(Default)]
pub(super) struct Places(Mutex<BTreeMap<u64, Place>>);

impl Places {
    /// A file that an agent before this one has left.
    pub fn add_left(&self, tail: Tail) {
        let (number, file) = (tail.record.number, (tail.record.device, tail.record.inode));
        lock(&self.0).insert(number, Place { user: None, file, slot: Arc::new(Mutex::new(Some(tail))) });
    }

    /// A file's place: the one that it has, or a new one of this user's, on a device with so many SPUs.
    pub fn take(&self, number: u64, file: (u64, u64), user: u32, spus: u16) -> Result<Slot, Refusal> {
        let mut all = lock(&self.0);
        // Those that nobody has. One that nobody but this list knows is locked by nobody.
        all.retain(|_, place| Arc::strong_count(&place.slot) > 1 || lock(&place.slot).is_some());
        if let Some(place) = all.get(&number) {
            return match place.file == file {
                true => Ok(place.slot.clone()),
                false => Err("another file has its number in the device: one of another partition".into()),
            };
        }
        let coordinator = |number: u64| number % u64::from(spus.max(1));
        let there = |(other, _): &(&u64, &Place)| coordinator(**other) == coordinator(number);
        let is_own = |(_, place): &(&u64, &Place)| place.user == Some(user);
        let taken = (all.len(), all.iter().filter(there).count());
        let own = (all.iter().filter(is_own).count(), all.iter().filter(there).filter(is_own).count());
        if taken.0 >= FILES_MAX || taken.1 >= COORDINATOR_FILES_MAX {
            return Err("the device appends to as many files as it can".into());
        }
        if user != 0 && (taken.0 + own.0 >= FILES_MAX || taken.1 + own.1 >= COORDINATOR_FILES_MAX) {
            return Err("the device appends to as many of this user's files as leave room for other users'".into());
        }
        Ok(all.entry(number).or_insert(Place { user: Some(user), file, slot: Slot::default() }).slot.clone())
    }

    /// The place that has this number.
    pub fn find(&self, number: u64) -> Option<Slot> {
        lock(&self.0).get(&number).map(|place| place.slot.clone())
    }

    /// The place with this number, if it is this file's.
    pub fn find_file(&self, number: u64, file: (u64, u64)) -> Option<Slot> {
        lock(&self.0).get(&number).filter(|place| place.file == file).map(|place| place.slot.clone())
    }

    /// All of them.
    pub fn all(&self) -> Vec<(u64, Slot)> {
        lock(&self.0).iter().map(|(number, place)| (*number, place.slot.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPUS: u16 = 8;

    #[test]
    fn a_user_has_as_many_files_as_leave_others_room() {
        let places = Places::default();
        // Somebody has each, so that none goes.
        let all = |from: u64, user: u32| {
            let take = |number: u64| places.take(number, (7, number), user, SPUS).ok();
            (from..).map_while(take).collect::<Vec<_>>()
        };
        let mallorys = all(0, 1000);
        assert_eq!(mallorys.len(), FILES_MAX / 2);
        let alices = all(1000, 1001);
        assert_eq!(alices.len(), FILES_MAX / 4);
        assert!(places.take(3, (7, 3), 1001, SPUS).is_ok(), "who has a place keeps it, whoever asks");
        // The kernel's own user has what is left.
        let roots = all(2000, 0);
        assert_eq!(mallorys.len() + alices.len() + roots.len(), FILES_MAX);
        drop(mallorys);
        assert!(places.take(3000, (7, 3000), 1001, SPUS).is_ok(), "those that nobody has are free");
    }

    #[test]
    fn a_user_has_as_many_files_of_a_coordinator_as_leave_others_room() {
        let places = Places::default();
        let all = |from: u64, user: u32| {
            let take = |number: u64| places.take(number, (7, number), user, SPUS).ok();
            (from..).step_by(usize::from(SPUS)).map_while(take).collect::<Vec<_>>()
        };
        let mallorys = all(3, 1000);
        assert_eq!(mallorys.len(), COORDINATOR_FILES_MAX / 2);
        let alices = all(8003, 1001);
        assert_eq!(alices.len(), COORDINATOR_FILES_MAX / 4);
        assert!(places.take(4, (7, 4), 1000, SPUS).is_ok(), "another coordinator has room");
    }

    #[test]
    fn a_file_of_another_partition_waits_for_nobody() {
        let places = Places::default();
        let mallorys = places.take(12, (7, 12), 1000, SPUS).expect("a place");
        // She keeps it busy.
        let _busy = lock(&mallorys);
        assert!(places.take(12, (8, 12), 1001, SPUS).is_err());
        assert!(places.find_file(12, (8, 12)).is_none() && places.find_file(12, (7, 12)).is_some());
    }
}
