//! A file is made writable again: what keeps it as it is goes, and its pages in the page cache are what the device holds.
//!
//! What always holds:
//! - an attribute that is the file's own (append-only, by its owner or by root) stays;
//! - pages that the kernel has kept, and that are old, are written anew before anybody can write the file. For that it has to be append-only for
//!   a moment ([`pages::renew`]). Whoever may append then, to a file whose agent has ended, has the kernel write the last page, with its old
//!   bytes: what the device held there before is in the journal by then, and the next agent writes it first;
//! - the journal's word about the last page is taken back, durably, before the file thaws: it is never written over what came later;
//! - that it has thawed is durable before it goes off the journal;
//! - where that fails the file is immutable, and is tried again from where it was.

use super::fault::{Fault, Faults};
use super::freeze::{self, Guard, guard};
use super::journal::{Journal, Key, Last, Renewal};
use super::pages;
use std::io::Result;
use std::os::fd::BorrowedFd;

/// A file that is given back, and what that needs. Nothing of it is permitted any more.
pub struct Thaw<'a> {
    pub journal: &'a Journal,
    pub faults: &'a Faults,
    pub key: Key,
    pub file: BorrowedFd<'a>,
    /// It waits for leases of the file's user, as long as the kernel does: in a thread for what is that user's alone.
    pub waits: bool,
}

/// Has the file system not forget that a file has thawed: it goes off the journal then, and would be immutable, on no list, after the host's power was
/// cut.
pub fn durable(file: BorrowedFd<'_>) -> Result<()> {
    Ok(rustix::fs::fsync(file)?)
}

impl Thaw<'_> {
    /// Gives it back. `is_stale`: the page cache has pages of it that may be older than what the device holds. `give_lease_up` is called before
    /// the file is opened for writing, which a lease prevents.
    pub fn run(&self, is_stale: bool, give_lease_up: impl FnOnce()) -> Result<()> {
        let renewal = match self.journal.renewal(self.key) {
            Some(listed) => listed,
            None if is_stale => self.begin()?,
            None => return self.finish(|| freeze::set_immutable(self.file, false)),
        };
        if renewal.last.is_some() {
            give_lease_up();
        }
        self.renew(renewal).inspect_err(|_| {
            let _ = guard(self.file, Guard::Immutable);
        })
    }

    /// Has the journal know the last page of a file that is to be append-only, and whether it is so by itself.
    fn begin(&self) -> Result<Renewal> {
        let append_only = freeze::is_append_only(self.file)?;
        let last = pages::last(self.file)?;
        let listed =
            if self.faults.has(Fault::LastForgotten) { Last { bytes: Vec::new(), ..last } } else { last.clone() };
        self.journal.renew(self.key, Renewal { append_only, last: Some(listed) })?;
        self.faults.step();
        Ok(Renewal { append_only, last: Some(last) })
    }

    fn renew(&self, renewal: Renewal) -> Result<()> {
        let append_only = renewal.append_only;
        if let Some(last) = &renewal.last {
            pages::renew(self.file, last, self.waits, &|| self.faults.step())?;
            self.journal.renew(self.key, Renewal { append_only, last: None })?;
            self.faults.step();
        }
        let own = if append_only { Guard::AppendOnly } else { Guard::Nothing };
        self.finish(|| guard(self.file, own))
    }

    /// As the file system does it, durably, or a planted fault.
    fn finish(&self, thaws: impl FnOnce() -> Result<()>) -> Result<()> {
        match self.faults.has(Fault::ThawFails) {
            true => Err(super::fault::refused()),
            false => thaws().and_then(|()| durable(self.file)),
        }
    }
}
