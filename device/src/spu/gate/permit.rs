//! Permits: that a range of an SPU's bank may be read, or written, on behalf of a request. What SPU-OS does with a bank it does by one.
//!
//! Invariants: a permit is made where the rule of protection was asked, for the range and the right that it was asked for, and nowhere else;
//! it is used within the run that it was made in, but for a copy within NV memory, which is asked for again where something was revoked
//! meanwhile ([`Machine::may_still_write`]).

use super::Behalf;
use crate::interconnect::Key;
use crate::media::controller::MediaController;
use crate::media::delegate::Located;
use crate::media::store::{MEDIA_FAILED, Progress, StoreError};
use crate::shared::SharedSpan;
use crate::spu::activity::Caller;
use crate::spu::continuation::{Continuation, Pending};
use crate::spu::os::{Machine, planted};
use crate::spu::permission::Rights;
use crate::spu::protection::Access;

/// The media controller as SPU-OS uses it.
type Media = MediaController<Pending, Continuation>;

/// A range of a bank.
struct Range {
    bank: usize,
    address: u64,
    bytes: usize,
}

/// That a range may be read.
pub(crate) struct MayRead(Range);

/// That a range may be written.
pub(crate) struct MayWrite(Range);

impl Range {
    /// A read of a marked range fails as one of media that failed would.
    #[inline(always)]
    fn check_marks(&self, media: &Media) -> Result<(), StoreError> {
        if media.is_marked(self.bank, self.address, self.bytes as u64) { Err(MEDIA_FAILED) } else { Ok(()) }
    }

    /// A write over marks takes the store's time, whatever the store: it ends when the marks are gone, durably.
    #[inline(always)]
    fn is_marked(&self, media: &Media) -> bool {
        media.is_marked(self.bank, self.address, self.bytes as u64)
    }
}

impl MayRead {
    /// Reads it, now or not at all.
    #[inline(always)]
    pub fn read(&self, media: &mut Media, into: &mut [u8]) -> Result<Progress, StoreError> {
        if into.len() != self.0.bytes {
            return Err(StoreError::Range);
        }
        self.0.check_marks(media)?;
        media.store.read(self.0.bank, self.0.address, into)
    }

    /// The same into memory that another process may change meanwhile.
    #[inline(always)]
    pub fn read_shared(&self, media: &mut Media, into: &mut SharedSpan<'_>) -> Result<Progress, StoreError> {
        if into.len() != self.0.bytes {
            return Err(StoreError::Range);
        }
        self.0.check_marks(media)?;
        media.store.read_shared(self.0.bank, self.0.address, into)
    }

    /// The same for bytes that nobody looks at.
    #[inline(always)]
    pub fn skip(&self, media: &mut Media) -> Result<Progress, StoreError> {
        self.0.check_marks(media)?;
        media.store.skip(self.0.bank, self.0.address, self.0.bytes)
    }

    /// Where it lies, where its bank's FTL has published that.
    #[inline(always)]
    pub fn located(&self, machine: &Machine) -> Option<Located> {
        if !machine.has_read_maps() {
            return None;
        }
        machine.located(self.0.bank, self.0.address, self.0.bytes)
    }

    /// Reads it, now or not at all, from where it lies, where that is known.
    #[inline(always)]
    pub fn read_at(&self, media: &mut Media, at: Option<&Located>, into: &mut [u8]) -> Result<Progress, StoreError> {
        match at {
            Some(at) if into.len() == self.0.bytes && self.read_located(media, at, Some(&mut *into)) => {
                Ok(Progress::Done)
            }
            _ => self.read(media, into),
        }
    }

    /// The same into memory that another process may change meanwhile.
    #[inline(always)]
    pub fn read_shared_at(
        &self,
        media: &mut Media,
        at: Option<&Located>,
        into: &mut SharedSpan<'_>,
    ) -> Result<Progress, StoreError> {
        self.0.check_marks(media)?;
        let Range { bank, address, bytes } = self.0;
        let is_read = match (at, at.and_then(|_| media.store.delegating())) {
            (Some(at), Some(store)) if into.len() == bytes => store.read_located_shared((bank, address), at, into),
            _ => false,
        };
        if is_read { Ok(Progress::Done) } else { self.read_shared(media, into) }
    }

    /// The same for bytes that nobody looks at.
    #[inline(always)]
    pub fn skip_at(&self, media: &mut Media, at: Option<&Located>) -> Result<Progress, StoreError> {
        match at {
            Some(at) if self.read_located(media, at, None) => Ok(Progress::Done),
            _ => self.skip(media),
        }
    }

    fn read_located(&self, media: &mut Media, at: &Located, into: Option<&mut [u8]>) -> bool {
        if self.0.is_marked(media) {
            return false;
        }
        let Range { bank, address, bytes } = self.0;
        media.store.delegating().is_some_and(|store| store.read_located((bank, address, bytes), at, into))
    }

    /// Reads a part of it, from an offset on.
    #[inline]
    pub fn read_part(&self, media: &mut Media, offset: usize, into: &mut [u8]) -> Result<Progress, StoreError> {
        match offset.checked_add(into.len()) {
            Some(end) if end <= self.0.bytes => {
                self.0.check_marks(media)?;
                media.store.read(self.0.bank, self.0.address + offset as u64, into)
            }
            _ => Err(StoreError::Range),
        }
    }

    /// Has the processor fetch it into its caches, and what follows it.
    #[inline(always)]
    pub fn prefetch(&self, media: &Media, ahead_bytes: u64) {
        media.store.prefetch(self.0.bank, self.0.address, self.0.bytes as u64 + ahead_bytes);
    }

    /// Begins a read that would have blocked.
    pub fn begin(self, media: &mut Media, pending: Pending) -> Result<(), StoreError> {
        self.0.check_marks(media)?;
        media.begin_read(self.0.bank, self.0.address, self.0.bytes, pending)
    }
}

impl MayWrite {
    /// Writes it, now or not at all.
    #[inline(always)]
    pub fn write(&self, media: &mut Media, from: &[u8]) -> Result<Progress, StoreError> {
        if from.len() != self.0.bytes {
            return Err(StoreError::Range);
        }
        if self.0.is_marked(media) {
            return Ok(Progress::WouldBlock);
        }
        media.store.write(self.0.bank, self.0.address, from)
    }

    /// Makes it read as zeroes, now or not at all.
    #[inline]
    pub fn zero(&self, media: &mut Media) -> Result<Progress, StoreError> {
        if self.0.is_marked(media) {
            return Ok(Progress::WouldBlock);
        }
        media.store.zero(self.0.bank, self.0.address, self.0.bytes as u64)
    }

    /// Begins a write that would have blocked.
    pub fn begin_write(self, media: &mut Media, from: Vec<u8>, pending: Pending) -> Result<(), StoreError> {
        if from.len() != self.0.bytes {
            return Err(StoreError::Range);
        }
        media.begin_write(self.0.bank, self.0.address, from, pending)
    }

    /// Begins a zeroing that would have blocked.
    pub fn begin_zero(self, media: &mut Media, pending: Pending) -> Result<(), StoreError> {
        media.begin_zero(self.0.bank, self.0.address, self.0.bytes as u64, pending)
    }
}

impl Machine {
    /// Whether an app may read a range of its SPU's bank on somebody's behalf.
    #[inline(always)]
    pub fn may_read(&mut self, caller: Caller, behalf: Behalf, address: u64, bytes: usize) -> Option<MayRead> {
        let permitted = self.permitted(caller, behalf, (address, bytes as u64), Rights::READ);
        permitted.then_some(MayRead(Range { bank: caller.spu.into(), address, bytes }))
    }

    /// Whether it may write there.
    #[inline(always)]
    pub fn may_write(&mut self, caller: Caller, behalf: Behalf, address: u64, bytes: usize) -> Option<MayWrite> {
        let permitted = self.permitted(caller, behalf, (address, bytes as u64), Rights::WRITE);
        permitted.then_some(MayWrite(Range { bank: caller.spu.into(), address, bytes }))
    }

    /// Whether the copy that a wait is for may still write there. Not where the request has ended with its app.
    pub fn may_still_write(&mut self, group: Key, permit: &MayWrite) -> bool {
        let Some(group) = self.group_at(group) else { return false };
        let caller = group.caller;
        let Some(activity) = group.token.and_then(|token| self.activity_at(caller.at(token))) else { return false };
        let behalf = Behalf::Of(activity.originating);
        self.permitted(caller, behalf, (permit.0.address, permit.0.bytes as u64), Rights::WRITE)
    }

    #[inline(always)]
    fn permitted(&mut self, caller: Caller, behalf: Behalf, (address, bytes): (u64, u64), rights: Rights) -> bool {
        let Behalf::Of(originating) = behalf else { return false };
        let Some(end) = address.checked_add(bytes) else { return false };
        if planted!(self, SkipsPermission) {
            return true;
        }
        let Some(resident) = self.spus[caller.spu as usize].residents.get(caller.app as usize) else { return false };
        let (base, limit, all) = resident.permitted;
        if address >= base && end <= limit && (all || originating.is_kernel()) {
            return true;
        }
        self.access(caller, originating, address, bytes, rights) == Access::Permitted
    }
}
