//! The redo log of one SPU, and who writes where.
//!
//! What always holds:
//! - of ranges that overlap one is written at a time (a claim), so that their order in the log is the order in which they are put in their places;
//! - a write is put in its place only when the log has it durably;
//! - a slot is *live* from before its header is written until the superblock, durably, says that its number does not count. Nothing is
//!   written over the range of a live slot but by the log, with a higher number: whatever a power cut leaves, recovery ends with the last;
//! - a write that is in the log and could not be put in its place is tried again before anybody reads or writes there.

use crate::format::{
    CHECKED_BYTES, Header, REGION, SLOTS_MAX, SLOTS_MIN, Superblock, WORDS_BYTES, Words, data_offset, header_offset,
    is_sealed, region_bytes, seal, slots,
};
use crate::planted::{Planted, planted};
use crate::{THREADS, wire};
use base_io_ranges::Failure;
use core::cell::Cell;
use willow_sdk::sync::Event;
use willow_sdk::{Body, Error, Local, Nv, Request, join};

/// Where the log lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// First byte of its region, in every bank.
    pub base: u64,
    /// Slots.
    pub slots: usize,
}

/// What is known of the log.
#[derive(Clone, Copy, Debug)]
pub enum Log {
    /// It has not been looked for: requests wait.
    Unread,
    /// There is none: the first write makes it.
    Absent,
    /// It is being made.
    Opening,
    /// It is there.
    Ready(Place),
    /// It cannot be read: writes are refused, since it may have something to be put in its place.
    Failed,
}

/// How far the write in a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    Free,
    /// Its request writes it to the log, and puts it in its place.
    Writing,
    /// The log has it durably, and it could not be put in its place.
    Failed,
    /// It is put in its place once more, by whoever found it failed.
    Putting,
    /// It is in its place, or will never be; the slot is live.
    Done,
}

/// A slot in local memory.
pub struct Slot {
    /// How far it is.
    pub stage: Cell<Stage>,
    /// Number of its write.
    pub sequence: Cell<u64>,
    /// Where it goes.
    pub range: Cell<(u64, u32)>,
}

fn overlap((a, a_bytes): (u64, u32), (b, b_bytes): (u64, u32)) -> bool {
    a < b.saturating_add(b_bytes.into()) && b < a.saturating_add(a_bytes.into())
}

/// All that an instance knows.
pub struct State {
    /// The log.
    pub log: Cell<Log>,
    /// Its slots.
    pub slots: [Slot; SLOTS_MAX],
    /// Number of the next write.
    pub next: Cell<u64>,
    failed: Cell<u32>,
    retiring: Cell<bool>,
    /// Ranges that requests are to write, in the order of their tickets; those of the bits in `claimed`.
    claims: [Cell<(u64, u32)>; THREADS],
    tickets: [Cell<u64>; THREADS],
    claimed: Cell<u64>,
    next_ticket: Cell<u64>,
    /// Something has ended that others may wait for.
    pub changed: Event,
}

const _: () = assert!(THREADS <= 64);

/// A range that this request alone may write, until dropped.
pub struct Claim<'a> {
    state: &'a State,
    place: usize,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.state.claimed.set(self.state.claimed.get() & !(1 << self.place));
        self.state.changed.notify_all();
    }
}

impl State {
    /// As an instance begins.
    pub const fn new() -> State {
        State {
            log: Cell::new(Log::Unread),
            slots: [const { Slot { stage: Cell::new(Stage::Free), sequence: Cell::new(0), range: Cell::new((0, 0)) } };
                SLOTS_MAX],
            next: Cell::new(1),
            failed: Cell::new(0),
            retiring: Cell::new(false),
            claims: [const { Cell::new((0, 0)) }; THREADS],
            tickets: [const { Cell::new(0) }; THREADS],
            claimed: Cell::new(0),
            next_ticket: Cell::new(0),
            changed: Event::new(),
        }
    }

    /// Takes a range, once those that asked before for a byte of it have let go. Each thread has one claim at a time, and there are as many places as threads.
    pub async fn claim(&self, address: u64, bytes: u32) -> Claim<'_> {
        let place = (!self.claimed.get()).trailing_zeros() as usize % THREADS;
        self.claimed.set(self.claimed.get() | 1 << place);
        self.claims[place].set((address, bytes));
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        self.tickets[place].set(ticket);
        let claim = Claim { state: self, place };
        while !planted(Planted::ClaimsNothing) && self.is_taken(place, ticket) {
            self.changed.wait().await;
        }
        claim
    }

    fn is_taken(&self, own: usize, ticket: u64) -> bool {
        let (mut left, range) = (self.claimed.get() & !(1 << own), self.claims[own].get());
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.tickets[place].get() < ticket && overlap(self.claims[place].get(), range) {
                return true;
            }
        }
        false
    }

    fn live(&self, address: u64, bytes: u32) -> impl Iterator<Item = &Slot> {
        let is_live =
            move |slot: &&Slot| slot.stage.get() != Stage::Free && overlap(slot.range.get(), (address, bytes));
        self.slots.iter().filter(is_live)
    }

    /// Whether the log has something of a range.
    pub fn overlaps_live(&self, address: u64, bytes: u32) -> bool {
        !planted(Planted::UnitsPassBy) && self.live(address, bytes).next().is_some()
    }

    /// Whether a write could not be put in its place, or nobody knows.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.get() > 0 || matches!(self.log.get(), Log::Failed)
    }

    /// The write of a slot is at another stage.
    pub fn set_stage(&self, slot: &Slot, stage: Stage) {
        let is_failed = |stage| matches!(stage, Stage::Failed | Stage::Putting);
        let (was, is) = (is_failed(slot.stage.replace(stage)), is_failed(stage));
        self.failed.set(self.failed.get() + u32::from(is) - u32::from(was));
        self.changed.notify_all();
    }

    /// The log, which is made where there is none.
    pub async fn open(&self, request: &Request) -> Result<Place, Failure> {
        loop {
            match self.log.get() {
                Log::Ready(place) => return Ok(place),
                Log::Failed => return Err(Failure(wire::STATUS_MEDIA_ERROR)),
                Log::Unread | Log::Opening => self.changed.wait().await,
                Log::Absent => {
                    self.log.set(Log::Opening);
                    let made = self.make(request).await;
                    self.log.set(made.map_or(Log::Absent, Log::Ready));
                    self.changed.notify_all();
                    made?;
                }
            }
        }
    }

    /// Makes the region, smaller where there is no room for all of it. It is of zeroes, in which nothing counts.
    async fn make(&self, request: &Request) -> Result<Place, Failure> {
        let mut count = SLOTS_MAX;
        let base = loop {
            match willow_sdk::region(REGION, region_bytes(count)).await {
                Ok(base) => break base,
                Err(Error::Full) if count > SLOTS_MIN => count = (count / 2).max(SLOTS_MIN),
                Err(error) => return Err(error.into()),
            }
        };
        let place = Place { base, slots: slots(willow_sdk::region_bytes(REGION)?) };
        self.mark(request, place, self.next.get()).await?;
        Ok(place)
    }

    /// Has the media say durably that lower numbers do not count.
    pub async fn mark(&self, request: &Request, place: Place, low: u64) -> Result<(), Failure> {
        let bytes = Superblock { low }.encode(willow_sdk::spu_id(), willow_sdk::spu_count());
        let bytes = sealed(request, bytes).await?;
        request.write(place.base, &bytes).await?;
        Ok(willow_sdk::flush().await?)
    }

    /// A slot for a write; its number is the next one.
    async fn take(&self, request: &Request, place: Place, range: (u64, u32)) -> Result<&Slot, Failure> {
        loop {
            let free = self.slots[..place.slots].iter().find(|slot| slot.stage.get() == Stage::Free);
            if let Some(slot) = free {
                let sequence = self.next.get();
                self.next.set(sequence + 1);
                slot.sequence.set(sequence);
                slot.range.set(range);
                self.set_stage(slot, Stage::Writing);
                return Ok(slot);
            }
            self.make_room(request).await?;
        }
    }

    /// Retires what can be, or waits until something has changed; an error where nothing will by itself.
    async fn make_room(&self, request: &Request) -> Result<(), Failure> {
        if self.retiring.get() {
            self.changed.wait().await;
            return Ok(());
        }
        if self.retire(request).await? == 0 {
            if !self.slots.iter().any(|slot| matches!(slot.stage.get(), Stage::Writing | Stage::Putting)) {
                // Failed writes alone hold the log, and cannot be put in their places.
                return Err(Failure(wire::STATUS_MEDIA_ERROR));
            }
            self.changed.wait().await;
        }
        Ok(())
    }

    /// Writes by the log, under a claim of the range.
    pub async fn write(&self, request: &Request, range: (u64, u32), body: u32) -> Result<(), Failure> {
        let (address, bytes) = range;
        if planted(Planted::NoLog) {
            return Ok(request.dma(Body(body), Nv(address), bytes).await?);
        }
        request.may_write(Nv(address), bytes).await?;
        let place = self.open(request).await?;
        let sum = request.checksum(Body(body), bytes, 0).await?;
        let slot = self.take(request, place, range).await?;
        let index = self.slots.iter().position(|of| core::ptr::eq(of, slot)).unwrap_or(0);
        let logged = async {
            let header = Header { sequence: slot.sequence.get(), address, bytes, sum };
            let header = sealed(request, header.encode(willow_sdk::spu_id(), index)).await?;
            let data = request.dma(Body(body), Nv(place.base + data_offset(index)), bytes);
            let (data, header) = join(data, request.write(place.base + header_offset(index), &header)).await;
            data.and(header)?;
            if planted(Planted::PutsBeforeFlush) {
                return Ok(());
            }
            willow_sdk::flush().await
        };
        if let Err(error) = logged.await {
            // The media may have it or not, and nothing is in its place: later writes there have higher numbers.
            self.set_stage(slot, Stage::Done);
            return Err(error.into());
        }
        let put = request.dma(Body(body), Nv(address), bytes).await;
        self.put(slot, put)
    }

    /// A write was put in its place, or not.
    fn put(&self, slot: &Slot, outcome: Result<(), Error>) -> Result<(), Failure> {
        let is_over = match outcome {
            Ok(()) => true,
            // The range is no namespace's any more.
            Err(Error::Permission | Error::Range | Error::Argument) => true,
            Err(_) => false,
        };
        self.set_stage(slot, if is_over { Stage::Done } else { Stage::Failed });
        Ok(outcome?)
    }

    /// Puts a failed write in its place, from the log.
    pub async fn put_again(&self, request: &Request, place: Place, index: usize) -> Result<(), Failure> {
        let slot = &self.slots[index];
        self.set_stage(slot, Stage::Putting);
        let (address, bytes) = slot.range.get();
        let put = request.dma(Nv(place.base + data_offset(index)), Nv(address), bytes).await;
        self.put(slot, put)
    }

    /// The failed write that is to be put in its place before, or is, that of a slot: of those that overlap the older goes first.
    fn first_before(&self, index: usize) -> usize {
        let mut first = index;
        loop {
            let of = &self.slots[first];
            let is_before = |slot: &Slot| {
                matches!(slot.stage.get(), Stage::Failed | Stage::Putting)
                    && slot.sequence.get() < of.sequence.get()
                    && overlap(slot.range.get(), of.range.get())
            };
            match self.slots.iter().position(is_before) {
                Some(before) => first = before,
                None => return first,
            }
        }
    }

    /// Puts what is in the log of a range, and failed, in its place; an error where that fails again.
    pub async fn put_failed(&self, request: &Request, address: u64, bytes: u32) -> Result<(), Failure> {
        if matches!(self.log.get(), Log::Failed) {
            return Err(Failure(wire::STATUS_MEDIA_ERROR));
        }
        let Log::Ready(place) = self.log.get() else { return Ok(()) };
        while self.has_failed() {
            let is_it = |slot: &Slot| {
                matches!(slot.stage.get(), Stage::Failed | Stage::Putting)
                    && overlap(slot.range.get(), (address, bytes))
            };
            let Some(index) = self.slots.iter().position(is_it) else { break };
            let first = self.first_before(index);
            if self.slots[first].stage.get() == Stage::Putting {
                self.changed.wait().await;
                continue;
            }
            match self.put_again(request, place, first).await {
                Err(failure) if self.slots[first].stage.get() == Stage::Failed => return Err(failure),
                _ => {}
            }
        }
        Ok(())
    }

    /// Has what is done not count any more, durably, so that its slots are free; how many are.
    async fn retire(&self, request: &Request) -> Result<usize, Failure> {
        let Log::Ready(place) = self.log.get() else { return Ok(0) };
        self.retiring.set(true);
        let retired = async {
            for index in 0..SLOTS_MAX {
                let first = self.first_before(index);
                if [index, first].iter().all(|index| self.slots[*index].stage.get() == Stage::Failed) {
                    // It stays, where it fails.
                    let _ = self.put_again(request, place, first).await;
                }
            }
            let owed = self.slots.iter().filter(|slot| !matches!(slot.stage.get(), Stage::Free | Stage::Done));
            let low = owed.map(|slot| slot.sequence.get()).min().unwrap_or(self.next.get());
            let is_over = |slot: &&Slot| slot.stage.get() == Stage::Done && slot.sequence.get() < low;
            let mut over = 0u64;
            for (index, _) in self.slots.iter().enumerate().filter(|(_, slot)| is_over(slot)) {
                over |= 1 << index;
            }
            if over == 0 {
                return Ok(0);
            }
            if !planted(Planted::RetiresBeforeFlush) {
                willow_sdk::flush().await?;
            }
            self.mark(request, place, low).await?;
            for (index, slot) in self.slots.iter().enumerate() {
                if over >> index & 1 != 0 {
                    slot.stage.set(Stage::Free);
                }
            }
            Ok(over.count_ones() as usize)
        };
        let retired = retired.await;
        self.retiring.set(false);
        self.changed.notify_all();
        retired
    }

    /// Waits until the log has nothing of a range, under a claim of it.
    pub async fn retire_overlapping(&self, request: &Request, address: u64, bytes: u32) -> Result<(), Failure> {
        while !planted(Planted::ZeroesPassBy) && self.live(address, bytes).next().is_some() {
            self.make_room(request).await?;
        }
        Ok(())
    }

    /// Waits until the log has nothing of what is in it now; an error where nobody knows what it has.
    pub async fn retire_all(&self, request: &Request) -> Result<(), Failure> {
        while matches!(self.log.get(), Log::Unread) {
            self.changed.wait().await;
        }
        if matches!(self.log.get(), Log::Failed) {
            return Err(Failure(wire::STATUS_MEDIA_ERROR));
        }
        let next = self.next.get();
        let is_left = |slot: &Slot| slot.stage.get() != Stage::Free && slot.sequence.get() < next;
        while !planted(Planted::KeepsDeleted) && self.slots.iter().any(is_left) {
            self.make_room(request).await?;
        }
        Ok(())
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// Words with their checksum.
async fn sealed(request: &Request, mut bytes: Words) -> Result<Words, Error> {
    let sum = request.checksum(Local(&bytes[..CHECKED_BYTES]), CHECKED_BYTES as u32, 0).await?;
    seal(&mut bytes, sum);
    Ok(bytes)
}

/// Words from NV memory; `None` where their checksum is wrong.
pub async fn read_sealed(request: &Request, address: u64) -> Result<Option<Words>, Error> {
    let mut bytes = [0; WORDS_BYTES];
    request.read(address, &mut bytes).await?;
    let sum = request.checksum(Local(&bytes[..CHECKED_BYTES]), CHECKED_BYTES as u32, 0).await?;
    Ok(is_sealed(&bytes, sum).then_some(bytes))
}
