//! DMA: moves bytes between the ports of an SPU, piece by piece, and accounts for it.
//!
//! Invariants: bytes move only within the request's own body and reply, the caller's own memory, and NV memory that the
//! originating HRE or the app may access; a refused DMA moves nothing of the refused segment; payload between host
//! and NV memory is copied once, never through the app's memory.

use super::abi::{self, DONE};
use super::continuation::Pending;
use super::gate::{Behalf, Charged, MayRead, MayWrite};
use super::group::Waiter;
use super::meter::Fault;
use super::os::{Caller, LocalMemory, Machine, Origin, WildPointer, error_of};
use crate::interconnect::{DmaKind, Key, Transfer};
use crate::media::store::Progress;
use crate::shared::ReplySpan;
pub(crate) use willow_gate::{Dma, End, Port};

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
    pub fn dma<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (dma, behalf): (&Dma, Behalf),
        _: Charged,
    ) -> Result<i32, Fault> {
        let joined;
        let dma = match dma.segments > 1 && self.delegates() {
            true => {
                joined = self.join_segments(caller, *dma, behalf);
                &joined
            }
            false => dma,
        };
        let cut = self.cut_at_units(caller, dma, behalf);
        let parts = cut.as_ref().map_or(std::slice::from_ref(dma), |(parts, count)| &parts[..*count]);
        let mut group = None;
        let mut error = 0;
        let (mut from, mut to) = (dma.source.address, dma.destination.address);
        let segments = parts.iter().flat_map(|part| (0..part.segments).map(move |segment| (part, segment)));
        for (part, segment) in segments {
            let moved = self.segment(caller, memory, (part, behalf), (from, to), &mut group)?;
            // What is left where it stops here: of a DMA that was cut, all of it as one.
            let rest = || {
                if cut.is_none() {
                    return (*dma, (from, to, dma.segments - segment));
                }
                let done = (to - dma.destination.address) as u32;
                (Dma { segment_bytes: dma.segment_bytes - done, ..*dma }, (from, to, 1))
            };
            match moved {
                Moved::Done => {}
                Moved::Pending => {
                    if let Some(group) = group.and_then(|key| self.group_at_mut(key)) {
                        group.remaining += 1;
                    }
                }
                Moved::Error(abi::ERROR_PERMISSION) => {
                    let (dma, left) = rest();
                    error = self.permission_missed(caller, memory, &dma, left, &mut group)?;
                    break;
                }
                Moved::Full => {
                    let (dma, left) = rest();
                    error = self.wait_in_line(caller, memory, &dma, left, &mut group)?;
                    break;
                }
                Moved::Error(number) => {
                    error = number;
                    break;
                }
            }
            (from, to) = match cut.is_some() {
                true => (from + u64::from(part.segment_bytes), to + u64::from(part.segment_bytes)),
                false => dma.after((from, to)),
            };
        }
        if dma.source.port == Port::Nothing {
            // A look-up takes no time of the DMA controller.
            return Ok(group.map_or(error, |key| self.settle_group(key, error)));
        }
        self.spus[caller.spu as usize].counters.dmas += 1;
        if let Some(key) = group {
            self.spus[caller.spu as usize].counters.store_waits += 1;
            if error == 0 {
                self.group_takes(key, |machine| machine.transfer(caller, dma));
            }
            return Ok(self.settle_group(key, error));
        }
        if error != 0 {
            return Ok(error);
        }
        let waiter = Waiter { token: dma.token, wait: dma.wait };
        Ok(self.tell_end((caller, waiter), 0, |machine| Some(machine.transfer(caller, dma)), |_| DONE))
    }

    /// A read of NV memory that is done at once or not at all.
    pub fn dma_now<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (dma, behalf): (&Dma, Behalf),
        _: Charged,
    ) -> Result<i32, Fault> {
        if !self.answers_now() {
            return Ok(abi::NOT_NOW);
        }
        let (from, bytes) = (dma.source.address, dma.segment_bytes);
        let Some(permit) = self.may_read(caller, behalf, from, bytes as usize) else {
            return Ok(abi::ERROR_PERMISSION);
        };
        if !self.in_slice(caller, bytes.into()) {
            return Ok(abi::NOT_NOW);
        }
        match self.read_at_once(caller, memory, dma, &permit, dma.destination.address)? {
            Ok(Progress::Done) => {
                self.spus[caller.spu as usize].meter.moves(bytes.into());
                let spu = &mut self.spus[caller.spu as usize].counters;
                spu.dmas += 1;
                spu.nv_read_bytes += u64::from(bytes);
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
        permit: &MayRead,
        to: u64,
    ) -> Result<Result<Progress, i32>, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        let located = permit.located(self);
        let media = &mut self.media;
        let read = if dma.destination.port == Port::Network {
            let Some(activity) = self.spus[caller.spu as usize].activities.get_mut(dma.token) else {
                return Ok(Err(abi::ERROR_ARGUMENT));
            };
            match Self::reply_range(&mut self.bridge, activity, to, bytes) {
                Some(ReplySpan::Private(into)) => permit.read_at(media, located.as_ref(), into),
                Some(ReplySpan::Shared(mut into)) => permit.read_shared_at(media, located.as_ref(), &mut into),
                Some(ReplySpan::Nowhere(_)) => permit.skip_at(media, located.as_ref()),
                None => return Ok(Err(abi::ERROR_RANGE)),
            }
        } else {
            let into = memory.slice_mut(to, bytes)?;
            if HEADER_BYTES.contains(&bytes) {
                permit.prefetch(media, FETCH_AHEAD_BYTES);
            }
            permit.read_at(media, located.as_ref(), into)
        };
        Ok(read.map_err(error_of))
    }

    /// A DMA as the model of time sees it, and whether its data go to a host as they move: what it streams, the response
    /// need not bring.
    #[inline(always)]
    fn transfer(&mut self, caller: Caller, dma: &Dma) -> (Transfer, bool) {
        let kind = match (dma.source.port, dma.destination.port) {
            (Port::Nv, Port::Nv) => DmaKind::NvCopy { to: dma.destination.address },
            (Port::Nv, _) => DmaKind::NvRead,
            (_, Port::Nv) => DmaKind::NvWrite,
            _ => DmaKind::Local,
        };
        let nv = if dma.source.port == Port::Nv { &dma.source } else { &dma.destination };
        let transfer = Transfer {
            spu: caller.spu,
            kind,
            address: nv.address,
            segment_bytes: dma.segment_bytes.into(),
            segments: dma.segments,
            stride: nv.stride,
            id: dma.token,
        };
        let from_nv_to_network = kind == DmaKind::NvRead && dma.destination.port == Port::Network;
        let activity = self.spus[caller.spu as usize]
            .activities
            .get_mut(dma.token)
            .filter(|activity| matches!(activity.origin, Origin::Host { .. }));
        let streamed = match activity {
            Some(activity) if from_nv_to_network => {
                activity.replied_bytes = activity.replied_bytes.saturating_sub(dma.bytes());
                true
            }
            _ => false,
        };
        (transfer, streamed)
    }

    /// Moves a segment, or begins to.
    #[inline(always)]
    pub fn segment<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (dma, behalf): (&Dma, Behalf),
        (from, to): (u64, u64),
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        match (dma.source.port, dma.destination.port) {
            (Port::Nv, _) => {
                let Some(permit) = self.may_read(caller, behalf, from, bytes) else {
                    return Ok(Moved::Error(abi::ERROR_PERMISSION));
                };
                let moved = match dma.destination.port {
                    Port::Nv => {
                        let Some(onto) = self.may_write(caller, behalf, to, bytes) else {
                            return Ok(Moved::Error(abi::ERROR_PERMISSION));
                        };
                        self.copy_nv(caller, dma, (permit, onto), group)
                    }
                    _ => self.move_from_nv(caller, memory, dma, (permit, to), group)?,
                };
                if !matches!(moved, Moved::Full) {
                    self.spus[caller.spu as usize].counters.nv_read_bytes += bytes as u64;
                }
                Ok(moved)
            }
            (_, Port::Nv) => {
                let Some(permit) = self.may_write(caller, behalf, to, bytes) else {
                    return Ok(Moved::Error(abi::ERROR_PERMISSION));
                };
                if dma.source.port == Port::Nothing {
                    return Ok(Moved::Done);
                }
                let moved = self.move_to_nv(caller, memory, dma, (from, permit), group)?;
                if !matches!(moved, Moved::Full) {
                    self.spus[caller.spu as usize].counters.nv_write_bytes += bytes as u64;
                }
                Ok(moved)
            }
            (Port::Network, _) => {
                let into = memory.slice_mut(to, bytes)?;
                Ok(self
                    .copy_body(caller.at(dma.token), from, into)
                    .map_or(Moved::Error(abi::ERROR_RANGE), |()| Moved::Done))
            }
            (port, Port::Network) => {
                let bytes_from = if port == Port::Zero { None } else { Some(memory.slice(from, bytes)?) };
                let Some(activity) = self.spus[caller.spu as usize].activities.get_mut(dma.token) else {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                };
                match (Self::reply_range(&mut self.bridge, activity, to, bytes), bytes_from) {
                    (Some(mut into), Some(from)) => into.copy_from(from),
                    (Some(mut into), None) => into.clear(),
                    (None, _) => return Ok(Moved::Error(abi::ERROR_RANGE)),
                }
                Ok(Moved::Done)
            }
            (Port::Zero, _) => {
                memory.slice_mut(to, bytes)?.fill(0);
                Ok(Moved::Done)
            }
            (Port::Local | Port::Nothing, _) => {
                let copy = memory.slice(from, bytes)?.to_vec();
                memory.slice_mut(to, bytes)?.copy_from_slice(&copy);
                Ok(Moved::Done)
            }
        }
    }

    /// From NV memory to the reply or to local memory.
    #[inline(always)]
    pub(super) fn move_from_nv<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        (permit, to): (MayRead, u64),
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        match self.read_at_once(caller, memory, dma, &permit, to)? {
            Ok(Progress::WouldBlock) => {}
            Ok(Progress::Done) => return Ok(Moved::Done),
            Err(error) => return Ok(Moved::Error(error)),
        }
        let Some(group) = self.group_for(caller, dma, group) else { return Ok(Moved::Error(abi::ERROR_REFUSED)) };
        if !self.place_for_operation(group) {
            return Ok(Moved::Full);
        }
        let pending = match dma.destination.port {
            Port::Network => Pending::ToReply { group, token: dma.token, offset: to },
            _ => Pending::ToLocal { group, pointer: to },
        };
        Ok(self.begin_read(permit, pending, group))
    }

    /// From NV memory to NV memory.
    fn copy_nv(
        &mut self,
        caller: Caller,
        dma: &Dma,
        (from, onto): (MayRead, MayWrite),
        group: &mut Option<Key>,
    ) -> Moved {
        let bytes = dma.segment_bytes as usize;
        if bytes > abi::BOUNCE_BYTES_MAX {
            return Moved::Error(abi::ERROR_ARGUMENT);
        }
        let mut bounce = vec![0; bytes];
        let moved = match from.read(&mut self.media, &mut bounce) {
            Ok(Progress::Done) => self.write_nv(caller, dma, onto, &bounce, group),
            Ok(Progress::WouldBlock) => {
                let Some(group) = self.group_for(caller, dma, group) else {
                    return Moved::Error(abi::ERROR_REFUSED);
                };
                match self.place_for_operation(group) {
                    true => self.begin_read(from, Pending::ToNv { group, onto }, group),
                    false => Moved::Full,
                }
            }
            Err(error) => Moved::Error(error_of(error)),
        };
        if !matches!(moved, Moved::Full) {
            self.spus[caller.spu as usize].counters.nv_write_bytes += bytes as u64;
        }
        moved
    }

    /// Begins a read that has a place among the store's operations.
    pub fn begin_read(&mut self, permit: MayRead, pending: Pending, group: Key) -> Moved {
        let begun = permit.begin(&mut self.media, pending);
        self.begun(begun, group)
    }

    /// An operation of a group was begun, or its place is free again.
    fn begun(&mut self, begun: Result<(), crate::StoreError>, group: Key) -> Moved {
        match begun {
            Ok(()) => Moved::Pending,
            Err(error) => {
                let account = self.account_of(group);
                self.operation_ended(account);
                Moved::Error(error_of(error))
            }
        }
    }

    /// Writes local bytes, now or in the store's time.
    fn write_nv(&mut self, caller: Caller, dma: &Dma, permit: MayWrite, from: &[u8], group: &mut Option<Key>) -> Moved {
        match permit.write(&mut self.media, from) {
            Ok(Progress::WouldBlock) => self.begin_write(caller, dma, permit, from.to_vec(), group),
            done => done.into(),
        }
    }

    fn begin_write(
        &mut self,
        caller: Caller,
        dma: &Dma,
        permit: MayWrite,
        from: Vec<u8>,
        group: &mut Option<Key>,
    ) -> Moved {
        let Some(group) = self.group_for(caller, dma, group) else { return Moved::Error(abi::ERROR_REFUSED) };
        if !self.place_for_operation(group) {
            return Moved::Full;
        }
        let begun = permit.begin_write(&mut self.media, from, Pending::Group { group });
        self.begun(begun, group)
    }

    #[inline(always)]
    pub(super) fn move_to_nv<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        dma: &Dma,
        (from, permit): (u64, MayWrite),
        group: &mut Option<Key>,
    ) -> Result<Moved, WildPointer> {
        let bytes = dma.segment_bytes as usize;
        match dma.source.port {
            Port::Network => {
                let Some(activity) = self.spus[caller.spu as usize].activities.get(dma.token) else {
                    return Ok(Moved::Error(abi::ERROR_ARGUMENT));
                };
                if let Some(payload) = Self::payload_range(&self.bridge, activity, from, bytes) {
                    return Ok(match permit.write(&mut self.media, payload) {
                        Ok(Progress::WouldBlock) => {
                            let copy = payload.to_vec();
                            self.begin_write(caller, dma, permit, copy, group)
                        }
                        done => done.into(),
                    });
                }
                // A range that begins in the inline arguments.
                let mut copy = vec![0; bytes];
                if self.copy_body(caller.at(dma.token), from, &mut copy).is_none() {
                    return Ok(Moved::Error(abi::ERROR_RANGE));
                }
                Ok(self.write_nv(caller, dma, permit, &copy, group))
            }
            Port::Zero => {
                match permit.zero(&mut self.media) {
                    Ok(Progress::WouldBlock) => {}
                    done => return Ok(done.into()),
                }
                let Some(group) = self.group_for(caller, dma, group) else {
                    return Ok(Moved::Error(abi::ERROR_REFUSED));
                };
                if !self.place_for_operation(group) {
                    return Ok(Moved::Full);
                }
                let begun = permit.begin_zero(&mut self.media, Pending::Group { group });
                Ok(self.begun(begun, group))
            }
            Port::Local | Port::Nv | Port::Nothing => {
                let source = memory.slice(from, bytes)?;
                Ok(self.write_nv(caller, dma, permit, source, group))
            }
        }
    }
}
