//! A file whose length the device has: how it comes to that, and how it gets its length back.
//!
//! What always holds:
//! - the file is immutable on the disk from before the device has its length until the file has all that was appended, but for the moments in
//!   which it gets that: then it is append-only. So nobody writes it but the agent, or, where the agent was killed in such a moment, behind all
//!   that the device knows of;
//! - while an agent is there, its descriptor is the file's only one, which a write lease proves, and whoever opens the file waits: who reads it has
//!   ended the delegation before;
//! - what was appended lies in a spool until the file has it, durably; only then the device forgets it. Wherever that is interrupted it is done again
//!   by the record, and comes to the same;
//! - the length that the file gets is the one that the device tells after it has stopped appending for good.

use super::super::fault::{Fault, LATE};
use super::super::freeze::{self, Guard, guard};
use super::super::lease;
use super::super::left::open_by_handle;
use super::super::module::Services;
use super::super::pages::write;
use super::record::{Record, Records};
use super::spool::SPOOL_BYTES;
use crate::append::{AppendClient, AppendError};
use crate::block::BlockClient;
use append_host::Refusal;
use append_host::wire::{Delegation, Extent, RECORD_BYTES_MAX};
use direct_io_host::FileExtent;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// Moved at once from a spool to its file.
const PART_BYTES: u64 = 1 << 20;

/// What a tail is worked on with.
pub(super) struct Tools<'a> {
    pub services: &'a Services<'a>,
    pub records: &'a Records,
    pub client: &'a AppendClient,
}

/// A file whose length the device has, or may have.
pub(super) struct Tail {
    pub record: Record,
    /// The file's only descriptor, with a write lease; `None`: an agent before this one has left it.
    pub writer: Option<OwnedFd>,
    /// It ends: nobody is to begin.
    pub is_ending: bool,
    /// The last time that its length was looked at, and the last that there was something new.
    pub looked: Instant,
    pub grown: Instant,
}

fn said(what: &'static str) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

fn refused(error: AppendError) -> String {
    format!("the device: {error}")
}

/// What is asked of the device where it knows the file; `None`: it does not.
fn known<T>(answer: Result<T, AppendError>) -> Result<Option<T>, String> {
    match answer {
        Err(AppendError::Refused(Refusal::NotFound)) => Ok(None),
        answer => answer.map(Some).map_err(refused),
    }
}

/// Allocates blocks for what may be appended: that there is no room is found out before anything is appended, not afterwards. The file's length
/// stays. What the file system keeps for root is no user's, though the agent could have it.
fn reserve(writer: &OwnedFd, from: u64) -> std::io::Result<()> {
    let room = rustix::fs::fstatvfs(writer)?;
    if room.f_bavail.saturating_mul(room.f_frsize) < SPOOL_BYTES {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    Ok(rustix::fs::fallocate(writer, FallocateFlags::KEEP_SIZE, from, SPOOL_BYTES)?)
}

fn length(file: &OwnedFd) -> Result<u64, String> {
    rustix::fs::fstat(file).map(|stat| stat.st_size as u64).map_err(|error| format!("its length: {error}"))
}

impl Tail {
    /// One that is about to be delegated. The caller has its only descriptor, with the lease. `Err`: it is as it was.
    pub fn prepare(tools: &Tools<'_>, record: Record, writer: OwnedFd) -> Result<Tail, String> {
        let prepared =
            reserve(&writer, record.base).map_err(said("there is no room for what may be appended")).and_then(|()| {
                tools.records.write(&record).map_err(said("it cannot be put on the list of delegated files"))
            });
        if let Err(why) = prepared {
            // Blocks that were allocated ahead, all or some.
            let _ = rustix::fs::ftruncate(&writer, record.base);
            return Err(why);
        }
        tools.services.faults().step();
        let now = Instant::now();
        Ok(Tail { record, writer: Some(writer), is_ending: false, looked: now, grown: now })
    }

    /// One that an agent before this one has left.
    pub fn left(record: Record) -> Tail {
        let now = Instant::now();
        Tail { record, writer: None, is_ending: true, looked: now, grown: now }
    }

    /// True where somebody waits to open the file.
    pub fn is_awaited(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !lease::is_alone(writer.as_fd()))
    }

    /// Has the device take over the length. Where it fails the tail is to be ended.
    pub fn delegate(&self, tools: &Tools<'_>) -> Result<(), String> {
        let writer = self.writer.as_ref().ok_or("it was left by another agent")?;
        guard(writer.as_fd(), Guard::Immutable).map_err(said("it cannot be made immutable"))?;
        tools.services.faults().step();
        // The attribute, and all that the length counts.
        rustix::fs::fsync(writer).map_err(|error| format!("it cannot be synced: {error}"))?;
        tools.services.faults().step();
        // Nobody deletes it from now on.
        if rustix::fs::fstat(writer).map_err(|error| error.to_string())?.st_nlink == 0 {
            return Err("it has no name any more".to_owned());
        }
        let Record { number, base, place: (nsid, _), .. } = self.record;
        let geometry = tools.services.geometry(nsid)?;
        let delegation = Delegation {
            file: number,
            length: base,
            first: base,
            base: geometry.base,
            stripe_bytes: geometry.stripe_bytes,
            extents: 0,
        };
        let extents: Vec<Extent> =
            self.record.extents.iter().map(|(start, bytes)| Extent { start: *start, bytes: *bytes }).collect();
        tools.services.wait(tools.client.delegate(delegation, &extents)).map_err(refused)?;
        tools.services.faults().step();
        Ok(())
    }

    /// The spool, as extents of what processes may write.
    pub fn spool(&self) -> Vec<FileExtent> {
        let of = |(start, bytes): &(u64, u64)| FileExtent { file_offset: 0, namespace_offset: *start, bytes: *bytes };
        self.record.extents.iter().map(of).collect()
    }

    /// What the device says of the length now, and whether there is room for any record; `None`: it does not know the file.
    pub fn look(&self, tools: &Tools<'_>) -> Result<Option<(u64, bool)>, String> {
        let entry = known(tools.services.wait(tools.client.length(self.record.number)))?;
        let has_room = |entry: &append_host::wire::Entry| entry.capacity - entry.length >= u64::from(RECORD_BYTES_MAX);
        Ok(entry.map(|entry| (entry.length, !entry.is_suspended && has_room(&entry))))
    }

    /// Stops appending for good, gives the file what was appended, and has the device forget it. What processes were permitted in the spool may go
    /// on: they spoil what they have written themselves, until this begins.
    pub fn settle(&mut self, tools: &Tools<'_>) -> Result<(), String> {
        let faults = tools.services.faults();
        let number = self.record.number;
        let early = faults.has(Fault::LengthFirst);
        let mut told = None;
        if early {
            told = known(tools.services.wait(tools.client.length(number)))?;
            std::thread::sleep(LATE);
        }
        let last = known(tools.services.wait(tools.client.suspend(number)))?;
        faults.step();
        let Some(last) = last else { return Ok(()) };
        let length = if early { told.map_or(last.length, |told| told.length) } else { last.length };
        if length > self.record.base {
            self.place(tools, length - self.record.base)?;
        }
        faults.step();
        tools.services.wait(tools.client.end(number)).map_err(refused)?;
        faults.step();
        Ok(())
    }

    /// Gives the file so many bytes of the spool.
    fn place(&mut self, tools: &Tools<'_>, bytes: u64) -> Result<(), String> {
        let faults = tools.services.faults();
        let client = tools.services.wait(BlockClient::open(tools.services.hre(), self.record.place.0));
        let spool = Spool { tools, client: client.map_err(|error| error.to_string())?, extents: &self.record.extents };
        let writer = self.writer.as_ref().ok_or("nobody has it open")?;
        let keep = |wanted| guard(writer.as_fd(), wanted).map_err(said("its attributes cannot be changed"));
        let sync = || rustix::fs::fsync(writer).map_err(|error| format!("it cannot be synced: {error}"));
        let not_written = said("what was appended cannot be written");
        if !self.record.has_length {
            let now = length(writer)?;
            let has_length = now != self.record.at && spool.has_length(writer, (self.record.at, now), bytes)?;
            if now != self.record.at && !has_length {
                // Others have appended while no agent was there: theirs is before.
                self.record.at = now;
                tools.records.write(&self.record).map_err(said("the list of delegated files"))?;
                faults.step();
            }
            if !has_length {
                // The length grows in one step: whoever appends after this agent was killed does so behind all that is the device's.
                let last = spool.read(bytes - 1, 1)?;
                keep(Guard::AppendOnly)?;
                faults.step();
                let written = write(writer, self.record.at + bytes - 1, &last);
                faults.step();
                keep(Guard::Immutable)?;
                written.map_err(said("it cannot be given its length"))?;
            }
            sync()?;
            faults.step();
            self.record.has_length = true;
            tools.records.write(&self.record).map_err(said("the list of delegated files"))?;
            faults.step();
        }
        keep(Guard::AppendOnly)?;
        faults.step();
        let filled = (0..bytes).step_by(PART_BYTES as usize).try_for_each(|at| {
            let part = spool.read(at, PART_BYTES.min(bytes - at))?;
            write(writer, self.record.at + at, &part).map_err(|error| error.to_string())
        });
        faults.step();
        keep(Guard::Immutable)?;
        filled.map_err(|why| not_written(std::io::Error::other(why)))?;
        sync()?;
        faults.step();
        Ok(())
    }

    /// Goes on with the length that the file has by now, in the same spool. Where it fails the tail is to be ended.
    pub fn delegate_again(&mut self, tools: &Tools<'_>) -> Result<(), String> {
        let writer = self.writer.as_ref().ok_or("nobody has it open")?;
        let base = length(writer)?;
        (self.record.base, self.record.at, self.record.has_length) = (base, base, false);
        tools.records.write(&self.record).map_err(said("the list of delegated files"))?;
        tools.services.faults().step();
        // Nobody else has it open: what the file system asks of the attributes is asked of nobody.
        guard(writer.as_fd(), Guard::AppendOnly).map_err(said("its attributes cannot be changed"))?;
        let reserved = reserve(writer, base);
        guard(writer.as_fd(), Guard::Immutable).map_err(said("its attributes cannot be changed"))?;
        reserved.map_err(said("there is no room for what may be appended"))?;
        self.delegate(tools)
    }

    /// Gives the file back to the file system: the device has forgotten it.
    pub fn give_back(&mut self, tools: &Tools<'_>) -> Result<(), String> {
        let faults = tools.services.faults();
        if let Some(writer) = &self.writer {
            guard(writer.as_fd(), Guard::Nothing).map_err(said("its attributes cannot be changed"))?;
            faults.step();
            // Blocks that were allocated ahead.
            rustix::fs::ftruncate(writer, length(writer)?).map_err(|error| format!("its blocks: {error}"))?;
            faults.step();
            // A host whose power is cut would have it immutable again, and on no list.
            rustix::fs::fsync(writer).map_err(|error| format!("it cannot be synced: {error}"))?;
        }
        faults.step();
        match tools.records.remove(self.record.number) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("the list of delegated files: {error}"));
            }
            _ => {}
        }
        faults.step();
        if let Some(writer) = self.writer.take() {
            lease::give_up(writer.as_fd());
        }
        Ok(())
    }

    /// True where the device has the length of a file with this number.
    pub fn is_known(tools: &Tools<'_>, number: u64) -> Result<bool, String> {
        known(tools.services.wait(tools.client.length(number))).map(|entry| entry.is_some())
    }

    /// Opens a file that an agent before this one has left, unless that had given it back.
    pub fn take_up(&mut self) -> Result<(), String> {
        if self.writer.is_some() {
            return Ok(());
        }
        let key = (self.record.device, self.record.inode);
        let file = open_by_handle(&self.record.handle, key, OFlags::RDONLY).map_err(said("it cannot be opened"))?;
        let file = file.ok_or("its file system is not mounted")?;
        if freeze::guarded(file.as_fd()).map_err(said("its attributes"))? == Guard::Nothing {
            // That may not be durable, and it goes off the list.
            return rustix::fs::fsync(&file).map_err(|error| format!("it cannot be synced: {error}"));
        }
        // Nobody opens an immutable file for writing, this agent neither: an append-only one is opened for appending. Others may do so as well,
        // which the lease finds out.
        guard(file.as_fd(), Guard::AppendOnly).map_err(said("its attributes cannot be changed"))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        guard(file.as_fd(), Guard::Immutable).map_err(said("its attributes cannot be changed"))?;
        drop(file);
        let writer = opened.map_err(|error| format!("it cannot be opened: {error}"))?;
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).map_err(|error| error.to_string())?;
        match lease::take_alone(writer.as_fd()) {
            Ok(true) => self.writer = Some(writer),
            Ok(false) => return Err("somebody has it open, who is waited for".to_owned()),
            Err(error) => return Err(format!("the agent gets no lease of it ({error})")),
        }
        Ok(())
    }
}

/// What the device has written of a tail.
struct Spool<'a> {
    tools: &'a Tools<'a>,
    client: BlockClient,
    extents: &'a [(u64, u64)],
}

impl Spool<'_> {
    /// Bytes of it, past the file system, which knows nothing of them.
    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let block = u64::from(self.client.block_bytes());
        let (mut found, mut skip, mut left) = (Vec::with_capacity(bytes as usize), at, bytes);
        for (start, length) in self.extents {
            let here = left.min(length.saturating_sub(skip));
            if here > 0 {
                let first = (start + skip) / block * block;
                let end = (start + skip + here).next_multiple_of(block);
                let read = self.tools.services.wait(self.client.read(first, (end - first) as usize));
                let read = read.map_err(|error| format!("what was appended cannot be read: {error}"))?;
                let from = (start + skip - first) as usize;
                found.extend_from_slice(&read[from..from + here as usize]);
            }
            (left, skip) = (left - here, skip.saturating_sub(*length));
        }
        if left > 0 {
            Err("the device says that more was appended than there is room for".to_owned())
        } else {
            Ok(found)
        }
    }

    /// True where the file has its new length, by what it shows: nothing but zeroes behind its old one, and the last byte. What others have
    /// appended is not taken for that unless it is the same.
    fn has_length(&self, file: &OwnedFd, (at, now): (u64, u64), bytes: u64) -> Result<bool, String> {
        if now < at + bytes {
            return Ok(false);
        }
        let mut found = vec![0; bytes as usize];
        let mut done = 0;
        while done < found.len() {
            match rustix::io::pread(file, &mut found[done..], at + done as u64).map_err(|error| error.to_string())? {
                0 => return Ok(false),
                count => done += count,
            }
        }
        let last = self.read(bytes - 1, 1)?;
        Ok(found.split_last().is_some_and(|(end, rest)| [*end] == last[..] && rest.iter().all(|byte| *byte == 0)))
    }
}
