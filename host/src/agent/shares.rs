//! What each user may have of the agent: descriptors for open files, and memory for their extents.
//!
//! What always holds:
//! - the files of all users take at most `descriptors_max` descriptors, and have at most [`EXTENTS_OPEN_MAX`] extents;
//! - a user gets more of either while that leaves as much free as the user has; past that, the user who has most gives up files, while that
//!   is more than the newcomer is to have;
//! - what a file has is the user's until the file is off the list of its connection, whatever becomes of it meanwhile; one that cannot be thawed then
//!   is the user's until it is, with its descriptor;
//! - nobody waits for what another user does with a file of his own, but [`THAW_MAX`].

use super::admission::who_gives_up;
use super::files::{ASKED, Closes};
use super::revoking::Patience;
use super::{Agent, Connected, FILES_MAX, OpenFile, Refusal, Stage, State};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most extents of all users' open files. The agent keeps each of them for as long as its file is open: some 24 bytes for each SPU that has a
/// part of it.
pub const EXTENTS_OPEN_MAX: usize = 2 << 20;

/// How long who needs a place waits for another user's file to thaw.
const THAW_MAX: Duration = Duration::from_secs(1);
/// Wait between two looks at it.
const THAW_LOOK: Duration = Duration::from_millis(5);

/// Said to who finds no place for a file.
pub(super) const NO_PLACE: &str = "as many files are open directly as leave room for other users'";
/// The same of its extents.
const NO_ROOM: &str =
    "files that are open directly have as many extents as leave room for other users': copy it to where it has fewer";

impl Agent {
    /// Finds a place for another file of a user: there is one while that leaves as many free as the user has; else the user who has most
    /// gives one up, where that is at least two more.
    pub(super) async fn make_place(&self, user: u32) -> Result<(), Refusal> {
        let taken = {
            let mut state = self.state();
            let mut counts = state.by_user(Connected::open_files);
            let left = self.holds.left();
            let own = [&counts, &left].into_iter().filter_map(|counts| counts.get(&user)).sum::<usize>();
            if user == 0 || self.taken(&state).saturating_add(own) < self.descriptors_max() {
                return Ok(());
            }
            // Nobody gives up what he cannot: who has most of the rest does.
            counts.insert(user, own);
            let who = who_gives_up(&counts, user).ok_or(NO_PLACE)?;
            let of_it = state.connected.iter_mut().filter(|(_, connected)| connected.user == who);
            let Some((key, connected)) = of_it.max_by_key(|(_, connected)| connected.open_files()) else {
                return Err(NO_PLACE.into());
            };
            if connected.forget_oldest() {
                return Ok(());
            }
            let oldest = connected.files.iter().find(|(_, file)| matches!(file.stage, Stage::Granted));
            let oldest = oldest.map(|(number, _)| *number).ok_or(NO_PLACE)?;
            connected.is_stale = true;
            (who, *key, oldest)
        };
        let (who, key, file) = taken;
        if self.close_for_another(who, key, file).await? { Ok(()) } else { Err(NO_PLACE.into()) }
    }

    /// Has a user give up a file for another user, who does not wait long for it to thaw; true where it has thawed by then.
    async fn close_for_another(&self, user: u32, key: u64, file: u32) -> Result<bool, Refusal> {
        let left = || self.holds.left().get(&user).copied().unwrap_or(0);
        let (before, begun) = (left(), Instant::now());
        let closes = Closes { by_owner: true, patience: Patience::UpTo(THAW_MAX), ..ASKED };
        self.close_by(key, file, (false, true), closes).await?;
        while left() > before {
            if begun.elapsed() >= THAW_MAX {
                return Ok(false);
            }
            tokio::time::sleep(THAW_LOOK).await;
        }
        Ok(true)
    }

    /// Descriptors that files take, or may take again.
    pub(super) fn taken(&self, state: &State) -> usize {
        state.open_files() + self.holds.left().values().sum::<usize>()
    }

    /// Most that they may.
    pub(super) fn descriptors_max(&self) -> usize {
        self.descriptors_max.load(Ordering::Relaxed)
    }

    /// Has files take so many descriptors at most, for tests.
    #[cfg(feature = "testing")]
    pub fn limit_descriptors(&self, descriptors: usize) {
        self.descriptors_max.store(descriptors, Ordering::Relaxed);
    }

    /// Notes that a file which is being opened is going to have so many extents at most, when there is room for them.
    pub(super) async fn make_room(&self, (key, file): (u64, u32), extents: usize) -> Result<(), Refusal> {
        // Each time a file goes.
        for _ in 0..=FILES_MAX {
            let taken = {
                let mut state = self.state();
                let mut counts = state.by_user(|connected| connected.extents);
                let taken: usize = counts.values().sum();
                let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
                let user = connected.user;
                let own = counts.get(&user).copied().unwrap_or(0) + extents;
                if user == 0 || taken + extents + own <= self.extents_open_max.load(Ordering::Relaxed) {
                    connected.extents += extents;
                    let found = connected.files.get_mut(&file).ok_or("it was taken back meanwhile")?;
                    found.extents = extents;
                    return Ok(());
                }
                counts.insert(user, own);
                let who = who_gives_up(&counts, user).ok_or(NO_ROOM)?;
                let (key, file) = state.largest(who).ok_or(NO_ROOM)?;
                (who, key, file)
            };
            let (who, key, file) = taken;
            // Its extents are forgotten, whether it has thawed or not.
            self.close_for_another(who, key, file).await?;
        }
        Err(NO_ROOM.into())
    }

    /// Has users' files have so many extents at most, for tests.
    #[cfg(feature = "testing")]
    pub fn limit_extents(&self, extents: usize) {
        self.extents_open_max.store(extents, Ordering::Relaxed);
    }
}

impl State {
    /// Files that are open, or that could be opened again, of all users.
    pub(super) fn open_files(&self) -> usize {
        self.connected.values().map(Connected::open_files).sum()
    }

    /// What all connections of each user have.
    fn by_user(&self, of: impl Fn(&Connected) -> usize) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for connected in self.connected.values() {
            *counts.entry(connected.user).or_default() += of(connected);
        }
        counts
    }

    /// The open file of a user that has most extents; its process is told that files were taken back.
    fn largest(&mut self, user: u32) -> Option<(u64, u32)> {
        let of_it = self.connected.iter_mut().filter(|(_, connected)| connected.user == user);
        let (key, connected) = of_it.max_by_key(|(_, connected)| connected.extents)?;
        let granted = connected.files.iter().filter(|(_, file)| matches!(file.stage, Stage::Granted));
        let (number, _) = granted.max_by_key(|(_, file)| file.extents)?;
        connected.is_stale = true;
        Some((*key, *number))
    }
}

impl Connected {
    /// Files that are open, or that could be opened again.
    pub(super) fn open_files(&self) -> usize {
        self.files.len() + self.known.len()
    }

    /// A file is open no longer.
    pub(super) fn remove(&mut self, file: u32) {
        let gone = self.files.remove(&file);
        self.extents -= gone.map_or(0, |gone: OpenFile| gone.extents);
    }
}
