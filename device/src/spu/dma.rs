//! DMA: moves bytes between the ports of an SPU, checks every address and every permission, and accounts for it.
//!
//! Invariants: bytes move only within the request's own body and reply, the caller's own memory, and NV memory that the
//! originating HRE or the app may access; a refused DMA moves nothing of the refused segment; payload between host
//! and NV memory is copied once, never through the app's memory.

use super::abi::{self, DONE};
use super::continuation::Pending;
use super::group::Waiter;
use super::meter::{Fault, SEGMENT_WORK};
use super::os::{Caller, LocalMemory, Machine, Origin, WildPointer, error_of};
use super::permission::Rights;
use crate::interconnect::{DmaKind, Key, Transfer};
use crate::media::store::Progress;
use crate::shared::ReplySpan;

/// One end of a DMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub port: u32,
    pub address: u64,
    pub stride: i64,
}

/// A DMA as the app asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dma {
    pub token: u32,
    pub source: End,
    pub destination: End,
    pub segment_bytes: u32,
    pub segments: u32,
    pub wait: u32,
}

/// Reads into local memory of these lengths are mostly of headers, and what they head is read next.
const HEADER_BYTES: std::ops::RangeInclusive<usize> = 9..=64;
/// How far beyond a header the processor is told to fetch.
const FETCH_AHEAD_BYTES: u64 = 1024;

/// How far a segment got.
pub(crate) enum Moved {
    Done,
    Pending,
    /// Nothing has happened: there is no place for it among the operations of the store.
    Full,
    Error(i32),
}

impl From<Result<Progress, crate::StoreError>> for Moved {
    fn from(progress: Result<Progress, crate::StoreError>) -> Self {
        match progress {
            Ok(Progress::Done) => Moved::Done,
            Ok(Progress::WouldBlock) => Moved::Pending,
            Err(error) => Moved::Error(error_of(error)),
        }
    }
}

impl Machine {
    /// Carries a DMA out, or as much of it as the store can do now.
    #[inline(always)]
    pub fn dma<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, mut dma: Dma) -> Result<i32, Fault> {
        if dma.source.port & abi::PORT_NOW != 0 {
            dma.source.port &= !abi::PORT_NOW;
            return self.dma_now(caller, memory, &dma);
        }
        let park = (dma.source.port | dma.destination.port) & abi::PORT_PARK != 0;
        dma.source.port &= !abi::PORT_PARK;
        dma.destination.port &= !abi::PORT_PARK;
        if dma.segment_bytes == 0 {
            // Segments without bytes are all the same nothing.
            dma.segments = dma.segments.min(1);
        }
        let total = u64::from(dma.segment_bytes) * u64::from(dma.segments);
        if self.activity(caller, dma.token).is_none() {
            return Ok(abi::ERROR_ARGUMENT);
        }
        if let Some(error) = self.too_much(caller, total, abi::DMA_BYTES_MAX)? {
            return Ok(error);
        }
        if dma.segments > 1 && self.delegates() {
            self.join_segments(caller, &mut dma);
        }
        self.meter.charge(u64::from(dma.segments) * SEGMENT_WORK)?;
        if !self.may_begin(caller) {
            return Ok(abi::ERROR_REFUSED);
        }
        let mut group = None;
        let mut error = 0;
        let (mut from, mut to) = (dma.source.address, dma.destination.address);
        for segment in 0..dma.segments {
            match self.segment(caller, memory, &dma, from, to, &mut group)? {
                Moved::Done => {}
                Moved::Pending => {
                    if let Some(group) = group.and_then(|key| self.group_at_mut(key)) {
                        group.remaining += 1;
                    }
                }
                Moved::Error(abi::ERROR_PERMISSION) => {
                    let left = (from, to, dma.segments - segment);
                    error = self.permission_missed(caller, memory, (&dma, park), left, &mut group)?;
                    break;
                }
                Moved::Full => {
                    let left = (from, to, dma.segments - segment);
                    error = self.wait_in_line(caller, memory, (&dma, park), left, &mut group)?;
                    break;
                }
                Moved::Error(number) => {
                    error = number;
                    break;
                }
            }
            from = from.wrapping_add_signed(dma.source.stride);
            to = to.wrapping_add_signed(dma.destination.stride);
        }
        if dma.source.port == abi::PORT_NOTHING {
            // A look-up takes no time of the DMA controller.
            return Ok(group.map_or(error, |key| self.settle_group(key, error)));
        }
        self.spus[caller.spu as usize].counters.dmas += 1;
        if let Some(key) = group {
            self.spus[caller.spu as usize].counters.store_waits += 1;
            if error == 0 {
                self.group_takes(key, |machine| machine.transfer(caller, &dma));
            }
            return Ok(self.settle_group(key, error));
        }
        if error != 0 {
            return Ok(error);
        }
        let waiter = Waiter { token: dma.token, wait: dma.wait };
        Ok(self.tell_end(
            (caller, waiter),
            0,
            |machine| machine.transfer(caller, &dma),
            |machine| machine.done_or_yields(caller, dma.token, dma.wait),
        ))
    }

    /// A read of NV memory that is done at once or not at all.
    fn dma_now<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, dma: &Dma) -> Result<i32, Fault> {
        self.meter.charge(SEGMENT_WORK)?;
        let (from, bytes) = (dma.source.address, u64::from(dma.segment_bytes));
        let Some(activity) = self.activity(caller, dma.token) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        if dma.source.port != abi::PORT_NV || dma.segments != 1 || bytes > abi::DMA_BYTES_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        if !self.answers_now() {
            return Ok(abi::NOT_NOW);
        }
        if !self.permitted(caller, originating, from, bytes, Rights::READ) {
            return Ok(abi::ERROR_PERMISSION);
        }
        if !self.in_slice(bytes) {
            return Ok(abi::NOT_NOW);
        }
        match self.read_at_once(caller, memory, dma, from, dma.destination.address)? {
            Ok(Progress::Done) => {
                self.run_dma_bytes += bytes;
                let spu = &mut self.spus[caller.spu as usize].counters;
                spu.dmas += 1;
                spu.nv_read_bytes += bytes;
                Ok(DONE)
            }
            Ok(Progress::WouldBlock) => Ok(abi::NOT_NOW),
            Err(error) => Ok(error),
        }
    }

    /// Reads NV memory into the reply or local memory, where the store has it at once; else an error of the ABI.
    #[inline(always)]
    fn read_at_once<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        from: u64,
        to: u64,
    ) -> Result<Result<Progress, i32>, WildPointer> {
        let (bank, bytes) = (caller.spu as usize, dma.segment_bytes as usize);
        let read = match dma.destination.port {
            abi::PORT_NETWORK => {
                let Some(activity) = self.spus[caller.spu as usize].activities.get_mut(dma.token) else {
                    return Ok(Err(abi::ERROR_ARGUMENT));
                };
                match Self::reply_range(&mut self.bridge, activity, to, bytes) {
                    Some(ReplySpan::Private(into)) => self.media.store.read(bank, from, into),
                    Some(ReplySpan::Shared(mut into)) => self.media.store.read_shared(bank, from, &mut into),
                    Some(ReplySpan::Nowhere(bytes)) => self.media.store.skip(bank, from, bytes),
                    None => return Ok(Err(abi::ERROR_RANGE)),
                }
            }
            abi::PORT_LOCAL => {
                let into = memory.slice_mut(to, bytes)?;
                if HEADER_BYTES.contains(&bytes) {
                    self.media.store.prefetch(bank, from, bytes as u64 + FETCH_AHEAD_BYTES);
                }
                self.media.store.read(bank, from, into)
            }
            _ => return Ok(Err(abi::ERROR_ARGUMENT)),
        };
        Ok(read.map_err(error_of))
    }

    /// A DMA as the model of time sees it, and whether its data go to a host as they move: what it streams, the response
    /// need not bring.
    #[inline(always)]
    fn transfer(&mut self, caller: Caller, dma: &Dma) -> (Transfer, bool) {
        let kind = match (dma.source.port, dma.destination.port) {
            (abi::PORT_NV, abi::PORT_NV) => DmaKind::NvCopy { to: dma.destination.address },
            (abi::PORT_NV, _) => DmaKind::NvRead,
            (_, abi::PORT_NV) => DmaKind::NvWrite,
            _ => DmaKind::Local,
        };
        let nv = if dma.source.port == abi::PORT_NV { &dma.source } else { &dma.destination };
        let transfer = Transfer {
            spu: caller.spu,
            kind,
            address: nv.address,
            segment_bytes: dma.segment_bytes.into(),
            segments: dma.segments,
            stride: nv.stride,
            id: dma.token,
        };
        let from_nv_to_network = kind == DmaKind::NvRead && dma.destination.port == abi::PORT_NETWORK;
        let activity = self.spus[caller.spu as usize]
            .activities
            .get_mut(dma.token)
            .filter(|activity| matches!(activity.origin, Origin::Host { .. }));
        let streamed = match activity {
            Some(activity) if from_nv_to_network => {
                let bytes = u64::from(dma.segment_bytes) * u64::from(dma.segments);
                activity.replied_bytes = activity.replied_bytes.saturating_sub(bytes);
                true
            }
            _ => false,
        };
        (transfer, streamed)
    }

    #[inline(always)]
    pub fn segment<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        from: u64,
        to: u64,
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        match (dma.source.port, dma.destination.port) {
            (abi::PORT_NOTHING, abi::PORT_NV) => Ok(self.look_up_write(caller, dma, to)),
            (abi::PORT_NV, _) => self.segment_from_nv(caller, memory, dma, from, to, group),
            (_, abi::PORT_NV) => self.segment_to_nv(caller, memory, dma, from, to, group),
            (abi::PORT_NETWORK, abi::PORT_LOCAL) => {
                let into = memory.slice_mut(to, bytes)?;
                Ok(self
                    .copy_body(caller.at(dma.token), from, into)
                    .map_or(Moved::Error(abi::ERROR_RANGE), |()| Moved::Done))
            }
            (abi::PORT_LOCAL, abi::PORT_NETWORK) => {
                let bytes_from = memory.slice(from, bytes)?;
                let Some(activity) = self.spus[caller.spu as usize].activities.get_mut(dma.token) else {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                };
                match Self::reply_range(&mut self.bridge, activity, to, bytes) {
                    Some(mut into) => into.copy_from(bytes_from),
                    None => return Ok(Moved::Error(abi::ERROR_RANGE)),
                }
                Ok(Moved::Done)
            }
            (abi::PORT_ZERO, abi::PORT_LOCAL) => {
                memory.slice_mut(to, bytes)?.fill(0);
                Ok(Moved::Done)
            }
            (abi::PORT_ZERO, abi::PORT_NETWORK) => {
                let Some(activity) = self.spus[caller.spu as usize].activities.get_mut(dma.token) else {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                };
                match Self::reply_range(&mut self.bridge, activity, to, bytes) {
                    Some(mut into) => into.clear(),
                    None => return Ok(Moved::Error(abi::ERROR_RANGE)),
                }
                Ok(Moved::Done)
            }
            (abi::PORT_LOCAL, abi::PORT_LOCAL) => {
                let copy = memory.slice(from, bytes)?.to_vec();
                memory.slice_mut(to, bytes)?.copy_from_slice(&copy);
                Ok(Moved::Done)
            }
            _ => Ok(Moved::Error(abi::ERROR_ARGUMENT)),
        }
    }

    /// Whether a segment might be written there; nothing is moved.
    #[cold]
    fn look_up_write(&mut self, caller: Caller, dma: &Dma, to: u64) -> Moved {
        let Some(activity) = self.activity(caller, dma.token) else { return Moved::Error(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        match self.permitted(caller, originating, to, dma.segment_bytes.into(), Rights::WRITE) {
            true => Moved::Done,
            false => Moved::Error(abi::ERROR_PERMISSION),
        }
    }

    #[inline(always)]
    fn segment_from_nv<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        from: u64,
        to: u64,
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        let bank = caller.spu as usize;
        let Some(activity) = self.spus[caller.spu as usize].activities.get(dma.token) else {
            return Ok(Moved::Error(abi::ERROR_ARGUMENT));
        };
        let originating = activity.originating;
        if !self.permitted(caller, originating, from, bytes as u64, Rights::READ) {
            return Ok(Moved::Error(abi::ERROR_PERMISSION));
        }
        self.spus[bank].counters.nv_read_bytes += bytes as u64;
        match dma.destination.port {
            port @ (abi::PORT_NETWORK | abi::PORT_LOCAL) => {
                match self.read_at_once(caller, memory, dma, from, to)? {
                    Ok(Progress::WouldBlock) => {}
                    Ok(Progress::Done) => return Ok(Moved::Done),
                    Err(error) => return Ok(Moved::Error(error)),
                }
                let token = dma.token;
                let Some(group) = self.group_for(caller, dma, group) else {
                    return Ok(Moved::Error(abi::ERROR_REFUSED));
                };
                if !self.place_for_operation(Some(group)) {
                    self.spus[bank].counters.nv_read_bytes -= bytes as u64;
                    return Ok(Moved::Full);
                }
                let pending = match port {
                    abi::PORT_NETWORK => Pending::ToReply { group, token, offset: to },
                    _ => Pending::ToLocal { group, pointer: to },
                };
                Ok(self.begin_read(bank, from, bytes, pending, group))
            }
            abi::PORT_NV => {
                if bytes > abi::BOUNCE_BYTES_MAX {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                }
                if !self.permitted(caller, originating, to, bytes as u64, Rights::WRITE) {
                    return Ok(Moved::Error(abi::ERROR_PERMISSION));
                }
                let mut bounce = vec![0; bytes];
                let moved = match self.media.store.read(bank, from, &mut bounce) {
                    Ok(Progress::Done) => self.write_nv(caller, dma, to, &bounce, group),
                    Ok(Progress::WouldBlock) => {
                        let Some(group) = self.group_for(caller, dma, group) else {
                            return Ok(Moved::Error(abi::ERROR_REFUSED));
                        };
                        match self.place_for_operation(Some(group)) {
                            true => {
                                self.begin_read(bank, from, bytes, Pending::ToNv { group, bank, address: to }, group)
                            }
                            false => Moved::Full,
                        }
                    }
                    Err(error) => Moved::Error(error_of(error)),
                };
                match moved {
                    Moved::Full => self.spus[bank].counters.nv_read_bytes -= bytes as u64,
                    _ => self.spus[bank].counters.nv_write_bytes += bytes as u64,
                }
                Ok(moved)
            }
            _ => Ok(Moved::Error(abi::ERROR_ARGUMENT)),
        }
    }

    /// Begins a read that has a place among the store's operations.
    pub fn begin_read(&mut self, bank: usize, address: u64, bytes: usize, pending: Pending, group: Key) -> Moved {
        let begun = self.media.begin_read(bank, address, bytes, pending);
        self.begun(begun, group)
    }

    /// An operation of a group was begun, or its place is free again.
    fn begun(&mut self, begun: Result<(), crate::StoreError>, group: Key) -> Moved {
        match begun {
            Ok(()) => Moved::Pending,
            Err(error) => {
                let account = self.account_of(Some(group));
                self.operation_ended(account);
                Moved::Error(error_of(error))
            }
        }
    }

    /// Writes local bytes, now or in the store's time.
    fn write_nv(&mut self, caller: Caller, dma: &Dma, to: u64, from: &[u8], group: &mut Option<Key>) -> Moved {
        match self.media.store.write(caller.spu as usize, to, from) {
            Ok(Progress::WouldBlock) => self.begin_write(caller, dma, to, from.to_vec(), group),
            done => done.into(),
        }
    }

    fn begin_write(&mut self, caller: Caller, dma: &Dma, to: u64, from: Vec<u8>, group: &mut Option<Key>) -> Moved {
        let Some(group) = self.group_for(caller, dma, group) else { return Moved::Error(abi::ERROR_REFUSED) };
        if !self.place_for_operation(Some(group)) {
            return Moved::Full;
        }
        let begun = self.media.begin_write(caller.spu as usize, to, from, Pending::Group { group });
        self.begun(begun, group)
    }

    #[inline]
    fn segment_to_nv<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        from: u64,
        to: u64,
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let moved = self.move_to_nv(caller, memory, dma, (from, to), group)?;
        if !matches!(moved, Moved::Full | Moved::Error(abi::ERROR_PERMISSION)) {
            self.spus[caller.spu as usize].counters.nv_write_bytes += u64::from(dma.segment_bytes);
        }
        Ok(moved)
    }

    #[inline(always)]
    fn move_to_nv<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        (from, to): (u64, u64),
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        let bank = caller.spu as usize;
        let Some(activity) = self.spus[caller.spu as usize].activities.get(dma.token) else {
            return Ok(Moved::Error(abi::ERROR_ARGUMENT));
        };
        let originating = activity.originating;
        if !self.permitted(caller, originating, to, bytes as u64, Rights::WRITE) {
            return Ok(Moved::Error(abi::ERROR_PERMISSION));
        }
        match dma.source.port {
            abi::PORT_NETWORK => {
                let Some(activity) = self.spus[caller.spu as usize].activities.get(dma.token) else {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                };
                if let Some(payload) = Self::payload_range(&self.bridge, activity, from, bytes) {
                    return Ok(match self.media.store.write(bank, to, payload) {
                        Ok(Progress::WouldBlock) => {
                            let copy = payload.to_vec();
                            self.begin_write(caller, dma, to, copy, group)
                        }
                        done => done.into(),
                    });
                }
                // A range that begins in the inline arguments.
                let mut copy = vec![0; bytes];
                if self.copy_body(caller.at(dma.token), from, &mut copy).is_none() {
                    return Ok(Moved::Error(abi::ERROR_RANGE));
                }
                Ok(self.write_nv(caller, dma, to, &copy, group))
            }
            abi::PORT_LOCAL => {
                let source = memory.slice(from, bytes)?;
                Ok(self.write_nv(caller, dma, to, source, group))
            }
            abi::PORT_ZERO => {
                match self.media.store.zero(bank, to, bytes as u64) {
                    Ok(Progress::WouldBlock) => {}
                    done => return Ok(done.into()),
                }
                let Some(group) = self.group_for(caller, dma, group) else {
                    return Ok(Moved::Error(abi::ERROR_REFUSED));
                };
                if !self.place_for_operation(Some(group)) {
                    return Ok(Moved::Full);
                }
                let begun = self.media.begin_zero(bank, to, bytes as u64, Pending::Group { group });
                Ok(self.begun(begun, group))
            }
            _ => Ok(Moved::Error(abi::ERROR_ARGUMENT)),
        }
    }
}
