//! Flush, and limbo: the way of a slot from the record that it held to the next. At a power cut any of the writes since the
//! last flush may be lost, each by itself, so a slot must wait until what depends on it is durable:
//!
//! ```text
//! replaced record ----------------> replaced --flush, wipe tag--> wiped --flush--> free
//! deleted record = tombstone --> tombstones --flush--^
//! ```
//!
//! - A replaced record is wiped only after a flush that began when its successor's header was complete.
//! - A tombstone is wiped only after a flush that began when all older records of its key had been wiped: those were in
//!   `replaced` before the tombstone came, are wiped after the next flush, and only then does the tombstone follow them there.
//! - A slot is used again only after a flush that began when it had been wiped.
//!
//! The lists go through the records' own `next` pointers in NV memory, so they have no bound but the heap's. Nobody reads a record
//! there: it left its chain under its bucket's stripe. Replaced records are noted in local memory, and listed in [`pages`] some
//! at a time, so that a put seldom has to write for them; where no slot is free for a page, they are linked as the others.
//!
//! What always holds: `cooling` lists are what a flush covers; they move on only after it is done (`cooled`).

mod pages;

use crate::bank::{Bank, Failure, Planted, WORDS_MAX, Word, planted};
use crate::format::{HEADER_BYTES, MARK_BYTES, NEXT_OFFSET, encode_mark};
use crate::lock::Busy;
use crate::store::Store;
use core::cell::Cell;
use pages::Pages;

/// Sequence numbers between two durability marks: recovery reads at most about so many values. In tests of short histories, few.
const MARK_EVERY: u64 = if cfg!(feature = "planted") { 4 } else { 1024 };
/// Limbo slots that a flush moves on before it is answered; mutations do the rest.
const DRAIN_PER_FLUSH: u32 = 4096;

/// Flushes by which limbo is emptied while nobody changes anything: a deleted pair's slot takes four.
const REST_FLUSHES_MAX: u32 = 8;

/// A list of slots in NV memory; first in, first out.
#[derive(Clone, Copy, Default)]
struct Queue {
    head: u32,
    tail: u32,
    count: u32,
}

impl Queue {
    const EMPTY: Queue = Queue { head: 0, tail: 0, count: 0 };
}

/// Replaced records that are noted in local memory, at most. In tests of short histories, few.
const NOTES_MAX: usize = if cfg!(feature = "planted") { 3 } else { WORDS_MAX };

/// Replaced records, noted in local memory.
struct Notes {
    pointers: [Cell<u32>; NOTES_MAX],
    count: Cell<usize>,
}

impl Notes {
    const fn new() -> Self {
        Notes { pointers: [const { Cell::new(0) }; NOTES_MAX], count: Cell::new(0) }
    }

    /// False where there is no room.
    #[inline]
    fn push(&self, pointer: u32) -> bool {
        let count = self.count.get();
        let Some(place) = self.pointers.get(count) else { return false };
        place.set(pointer);
        self.count.set(count + 1);
        true
    }

    fn last(&self) -> Option<u32> {
        self.count.get().checked_sub(1).map(|last| self.pointers[last].get())
    }

    fn pop(&self) -> Option<u32> {
        let last = self.last()?;
        self.count.set(self.count.get() - 1);
        Some(last)
    }

    fn take_from(&self, other: &Notes) {
        while let Some(pointer) = other.pop() {
            self.push(pointer);
        }
    }
}

/// The slots that wait.
pub struct Limbo {
    tombstones: Cell<Queue>,
    replaced: Cell<Queue>,
    /// More replaced records: the latest, and those in pages.
    noted: Notes,
    pages: Cell<Pages>,
    wiped: Cell<Queue>,
    /// Tombstones that go to `replaced` as soon as the replaced records before them are wiped.
    cooling_tombstones: Cell<Queue>,
    cooling_replaced: Cell<Queue>,
    cooling_noted: Notes,
    cooling_pages: Cell<Pages>,
    cooling_wiped: Cell<Queue>,
    /// The flush that the cooling lists wait for is done.
    cooled: Cell<bool>,
    pub(crate) draining: Busy,
    /// Pushes whose link is not yet written.
    links_pending: Cell<u32>,
    flushing: Busy,
    flushes_started: Cell<u64>,
    flushes_done: Cell<u64>,
}

impl Limbo {
    /// Empty.
    pub const fn new() -> Self {
        Limbo {
            tombstones: Cell::new(Queue::EMPTY),
            replaced: Cell::new(Queue::EMPTY),
            noted: Notes::new(),
            pages: Cell::new(Pages::EMPTY),
            wiped: Cell::new(Queue::EMPTY),
            cooling_tombstones: Cell::new(Queue::EMPTY),
            cooling_replaced: Cell::new(Queue::EMPTY),
            cooling_noted: Notes::new(),
            cooling_pages: Cell::new(Pages::EMPTY),
            cooling_wiped: Cell::new(Queue::EMPTY),
            cooled: Cell::new(false),
            draining: Busy::new(),
            links_pending: Cell::new(0),
            flushing: Busy::new(),
            flushes_started: Cell::new(0),
            flushes_done: Cell::new(0),
        }
    }

    /// Slots that wait.
    pub fn slots(&self) -> u32 {
        let linked = self.tombstones.get().count + self.replaced.get().count + self.wiped.get().count;
        linked + self.noted.count.get() as u32 + self.pages.get().slots() + self.cooling()
    }

    fn cooling(&self) -> u32 {
        let linked =
            self.cooling_tombstones.get().count + self.cooling_replaced.get().count + self.cooling_wiped.get().count;
        linked + self.cooling_noted.count.get() as u32 + self.cooling_pages.get().slots()
    }

    /// Whether slots can be moved on.
    #[inline]
    pub fn has_cooled(&self) -> bool {
        self.cooled.get()
    }

    /// A record that another one has replaced, after that one's header is written. False where that cannot be noted without a
    /// write ([`Store::push_replaced`]).
    #[inline]
    pub fn note_replaced(&self, pointer: u32) -> bool {
        self.noted.push(pointer)
    }

    /// Forgets all: the lists are gone with the index that recovery throws away.
    pub fn reset(&self) {
        for queue in [
            &self.tombstones,
            &self.replaced,
            &self.wiped,
            &self.cooling_tombstones,
            &self.cooling_replaced,
            &self.cooling_wiped,
        ] {
            queue.set(Queue::EMPTY);
        }
        self.noted.count.set(0);
        self.cooling_noted.count.set(0);
        self.pages.set(Pages::EMPTY);
        self.cooling_pages.set(Pages::EMPTY);
        self.cooled.set(false);
        self.links_pending.set(0);
    }
}

impl Default for Limbo {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// A record that another one has replaced, after that one's header is written.
    pub(crate) async fn push_replaced<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        if planted(bank, Planted::ReuseTooEarly) {
            bank.write(self.geometry.get().address(pointer), &[0; 8]).await?;
            return self.release(bank, pointer).await.map(|_| ());
        }
        while !self.limbo.note_replaced(pointer) {
            if !self.list_noted(bank).await? {
                self.link_noted(bank).await?;
            }
        }
        Ok(())
    }

    /// Puts the noted records into their list, with all links written at once.
    async fn link_noted<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let (limbo, geometry) = (&self.limbo, self.geometry.get());
        let old = limbo.replaced.get();
        let mut new = old;
        let mut words = [Word::default(); NOTES_MAX];
        let mut written = 0;
        while let Some(pointer) = limbo.noted.pop() {
            if new.count == 0 {
                new.head = pointer;
            } else {
                words[written] =
                    Word { address: geometry.address(new.tail) + NEXT_OFFSET, bytes: pointer.to_le_bytes() };
                written += 1;
            }
            new = Queue { tail: pointer, count: new.count + 1, ..new };
        }
        limbo.replaced.set(new);
        self.write_links(bank, &words[..written]).await
    }

    async fn write_links<B: Bank>(&self, bank: &B, words: &[Word]) -> Result<(), Failure> {
        let pending = &self.limbo.links_pending;
        pending.set(pending.get() + 1);
        let written = bank.write_words(words).await;
        pending.set(pending.get() - 1);
        self.sound(written)
    }

    /// A record that has become a tombstone.
    pub(crate) async fn push_tombstone<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        let early = planted(bank, Planted::TombstoneTooShort);
        let list = if early { &self.limbo.replaced } else { &self.limbo.tombstones };
        self.append(bank, list, Queue { head: pointer, tail: pointer, count: 1 }).await
    }

    async fn append<B: Bank>(&self, bank: &B, list: &Cell<Queue>, more: Queue) -> Result<(), Failure> {
        let old = list.get();
        if old.count == 0 {
            list.set(more);
            return Ok(());
        }
        list.set(Queue { head: old.head, tail: more.tail, count: old.count + more.count });
        let address = self.geometry.get().address(old.tail) + NEXT_OFFSET;
        self.write_links(bank, &[Word { address, bytes: more.head.to_le_bytes() }]).await
    }

    /// All that was answered before is durable afterwards. Handlers that come while a flush runs share the next one.
    pub async fn flush<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        if self.clean.get() {
            return Ok(());
        }
        let limbo = &self.limbo;
        let wanted = limbo.flushes_started.get() + 1;
        let held = self
            .waiters
            .until(|| {
                if limbo.flushes_done.get() >= wanted {
                    return Some(None);
                }
                limbo.flushing.try_hold(&self.waiters).map(Some)
            })
            .await;
        let Some(held) = held else { return Ok(()) };
        let number = limbo.flushes_started.get() + 1;
        limbo.flushes_started.set(number);
        let covered = self.settled_sequence(bank);
        if limbo.cooling() == 0
            && limbo.links_pending.get() == 0
            && let Some(_held) = limbo.draining.try_hold(&self.waiters)
        {
            limbo.cooled.set(false);
            limbo.cooling_tombstones.set(limbo.tombstones.replace(Queue::EMPTY));
            limbo.cooling_replaced.set(limbo.replaced.replace(Queue::EMPTY));
            limbo.cooling_noted.take_from(&limbo.noted);
            limbo.cooling_pages.set(limbo.pages.replace(Pages::EMPTY));
            limbo.cooling_wiped.set(limbo.wiped.replace(Queue::EMPTY));
        }
        bank.flush().await?;
        limbo.flushes_done.set(number);
        limbo.cooled.set(true);
        if covered >= self.marked.get() + MARK_EVERY {
            // Only a hint: without it recovery reads more.
            let _ = self.write_mark(bank, covered).await;
        }
        drop(held);
        self.drain(bank, DRAIN_PER_FLUSH).await
    }

    pub(crate) async fn write_mark<B: Bank>(&self, bank: &B, covered: u64) -> Result<(), Failure> {
        let mark: [u8; MARK_BYTES] = encode_mark(&self.nonce.get(), covered);
        bank.write(self.geometry.get().base + crate::format::Geometry::MARK, &mark).await?;
        self.marked.set(covered);
        Ok(())
    }

    /// Moves up to `limit` slots on, unless another handler is at it.
    pub(crate) async fn drain<B: Bank>(&self, bank: &B, limit: u32) -> Result<(), Failure> {
        if !self.limbo.cooled.get() {
            return Ok(());
        }
        match self.limbo.draining.try_hold(&self.waiters) {
            Some(_held) => self.drain_held(bank, limit).await,
            None => Ok(()),
        }
    }

    /// Has limbo become empty, as long as `is_quiet`; false where it has not.
    pub(crate) async fn empty_limbo<B: Bank>(&self, bank: &B, is_quiet: impl Fn() -> bool) -> Result<bool, Failure> {
        for _ in 0..REST_FLUSHES_MAX {
            if self.limbo.slots() == 0 {
                break;
            }
            self.flush(bank).await?;
            while self.limbo.has_cooled() && is_quiet() {
                let _held = self.limbo.draining.hold(&self.waiters).await;
                self.drain_held(bank, DRAIN_PER_FLUSH).await?;
            }
            if !is_quiet() {
                break;
            }
        }
        Ok(self.limbo.slots() == 0)
    }

    /// Moves all on that can be.
    pub(crate) async fn drain_all<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let _held = self.limbo.draining.hold(&self.waiters).await;
        self.drain_held(bank, u32::MAX).await
    }

    async fn drain_held<B: Bank>(&self, bank: &B, limit: u32) -> Result<(), Failure> {
        let limbo = &self.limbo;
        for _ in 0..limit {
            if !limbo.cooled.get() || self.damaged.get() {
                return Ok(());
            }
            let wiped = limbo.cooling_wiped.get();
            let replaced = limbo.cooling_replaced.get();
            if wiped.count > 0 {
                let next = self.release(bank, wiped.head).await?;
                limbo.cooling_wiped.set(Queue { head: next, count: wiped.count - 1, ..wiped });
            } else if replaced.count > 0 {
                let address = self.geometry.get().address(replaced.head);
                let next = self.read_word(bank, address + NEXT_OFFSET).await?;
                self.wipe_replaced(bank, replaced.head).await?;
                limbo.cooling_replaced.set(Queue { head: next, count: replaced.count - 1, ..replaced });
                self.push_wiped(bank, replaced.head).await?;
            } else if let Some(pointer) = limbo.cooling_noted.last() {
                self.wipe_replaced(bank, pointer).await?;
                limbo.cooling_noted.pop();
                self.push_wiped(bank, pointer).await?;
            } else if limbo.cooling_pages.get().slots() > 0 {
                self.note_listed(bank).await?;
            } else {
                let tombstones = limbo.cooling_tombstones.replace(Queue::EMPTY);
                limbo.cooled.set(false);
                if tombstones.count > 0 {
                    self.append(bank, &limbo.replaced, tombstones).await?;
                }
                return Ok(());
            }
            bank.pause().await;
        }
        Ok(())
    }

    async fn wipe_replaced<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        let wiped = self.wipe(bank, pointer).await;
        self.sound(wiped)
    }

    async fn push_wiped<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        self.append(bank, &self.limbo.wiped, Queue { head: pointer, tail: pointer, count: 1 }).await
    }

    /// Frees a wiped record's slot and chunks; returns the record behind it in its list.
    async fn release<B: Bank>(&self, bank: &B, pointer: u32) -> Result<u32, Failure> {
        let address = self.geometry.get().address(pointer);
        let mut header = [0; HEADER_BYTES as usize];
        let read = bank.read(address, &mut header).await;
        self.sound(read)?;
        let next = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let chunks = u16::from_le_bytes([header[58], header[59]]);
        if chunks > 0 {
            self.free_chunks(bank, address + HEADER_BYTES, u32::from(chunks)).await?;
        }
        self.free_slot(bank, pointer).await?;
        Ok(next)
    }
}
