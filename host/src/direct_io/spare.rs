//! Descriptors in reserve: the library opens files for a moment by itself, where the program calls nothing that needs a descriptor. A program
//! that has used up all of its own is not to find its writes failing by that (EMFILE).
//!
//! What always holds: numbers are given up only where none is left, for one thing at a time, and taken again when that is done; another thread
//! of the program that opens something in between may get one, as if the limit were higher. Where another process has lowered the limit below the
//! numbers in use, no number that is given up is one to be had: then the limit is higher for that moment, as far as this process may raise it.

use super::session::lock;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use willow_shm::own::raised;

/// Most that are open at once for one thing: a rename has two files, each of which is opened by a descriptor of its path.
const SPARE_MAX: usize = 4;
/// Above all numbers that the library knows of.
const RAISED_TO: u64 = 4096;

/// The reserve of a session.
pub(crate) struct Spare(Mutex<Vec<OwnedFd>>);

impl Spare {
    /// As many as there are numbers left for.
    pub fn new() -> Spare {
        let mut all = Vec::new();
        fill(&mut all);
        Spare(Mutex::new(all))
    }

    /// Does something that may need descriptors; once more without the reserve where there are none. It has changed nothing when it fails
    /// so, and what it has opened for a moment is closed when it returns.
    pub fn with<T>(&self, mut what: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        let lacks = |done: &Result<T, Errno>| matches!(done, Err(Errno::MFILE | Errno::BADF));
        let mut done = what();
        if lacks(&done) {
            let mut all = lock(&self.0);
            all.clear();
            done = what();
            let raised = if lacks(&done) { Raised::new() } else { None };
            if raised.is_some() {
                done = what();
            }
            fill(&mut all);
        }
        done
    }
}

/// A higher limit of descriptors, while this lives.
struct Raised(Rlimit);

impl Raised {
    /// As high as may be needed; `None` where this process may not raise it.
    fn new() -> Option<Raised> {
        let before = getrlimit(Resource::Nofile);
        let enough = |limit: Option<u64>| limit.map(|limit| limit.max(RAISED_TO));
        // Past the hard limit where it has that privilege.
        let wanted = Rlimit { current: enough(before.current), maximum: enough(before.maximum) };
        let allowed = Rlimit { current: before.maximum, maximum: before.maximum };
        let is_set = |limit: &Rlimit| setrlimit(Resource::Nofile, *limit).is_ok();
        [wanted, allowed].iter().any(is_set).then_some(Raised(before))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // To lower it is always granted.
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

fn fill(all: &mut Vec<OwnedFd>) {
    while all.len() < SPARE_MAX {
        // A socket that is connected with nothing: it costs least, and is told from others by its inode.
        match socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None) {
            Ok(socket) => all.push(raised(socket)),
            Err(_) => return,
        }
    }
}
