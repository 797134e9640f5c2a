//! Space: slabs of 64 KiB, each with slots of one class or a chunk of a long value. A slab that has become empty can get
//! another class.
//!
//! What always holds:
//! - A slab is in exactly one state: never used (number >= `fresh`), free (in the list from `free_head`), current (its class
//!   has a claim on it), partial (in its class' list, with at least one free slot and one that is not), full, or a chunk.
//! - A bit is set for a slot in the slab's bitmap or in its class' claim, never in both, exactly where the slot is free: its
//!   tag is durably invalid.
//! - All but [`Store::take_claimed`] happens under `heap_busy`.

use crate::bank::{Bank, Failure, Fault, Planted, planted};
use crate::format::{
    CLASS_CHUNK, CLASSES, ENTRY_BYTES, ENTRY_NEXT_OFFSET, ENTRY_PREVIOUS_OFFSET, Entry, NO_SLAB, SLAB_BYTES,
    slot_bytes, slots_per_slab,
};
use crate::store::{POINTERS_AT_ONCE, Store};

/// Up to 64 free slots of a class' current slab, taken from its bitmap at once: most allocations touch no NV memory.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The slab's generation.
    pub generation: u64,
    /// Its free slots.
    pub bits: u64,
    /// The current slab, or [`NO_SLAB`].
    pub slab: u32,
    /// Which word of its bitmap.
    pub word: u32,
}

impl Claim {
    /// No current slab.
    pub const NONE: Claim = Claim { generation: 0, bits: 0, slab: NO_SLAB, word: 0 };
}

/// A slot that was allocated.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Pointer to it.
    pub pointer: u32,
    /// Generation of its slab.
    pub generation: u64,
}

/// What an allocation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Slot(usize),
    Chunk,
}

/// Flushes that one allocation makes before it gives up: a tombstone needs three to become free, one more to join in.
const SPACE_ROUNDS_MAX: u32 = 8;

impl Store {
    pub(crate) async fn read_entry<B: Bank>(&self, bank: &B, slab: u32) -> Result<Entry, Failure> {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bank.read(self.geometry.get().entry_address(slab), &mut bytes).await?;
        Ok(Entry::decode(&bytes, &self.nonce.get(), slab))
    }

    pub(crate) async fn write_entry<B: Bank>(&self, bank: &B, slab: u32, entry: &Entry) -> Result<(), Fault> {
        bank.write(self.geometry.get().entry_address(slab), &entry.encode(&self.nonce.get(), slab)).await
    }

    async fn write_entry_word<B: Bank>(&self, bank: &B, slab: u32, offset: u64, word: u32) -> Result<(), Failure> {
        let written = bank.write(self.geometry.get().entry_address(slab) + offset, &word.to_le_bytes()).await;
        self.sound(written)
    }

    fn used(&self, bytes: u64) {
        self.used_bytes.set(self.used_bytes.get() + bytes);
    }

    fn unused(&self, bytes: u64) {
        self.used_bytes.set(self.used_bytes.get().wrapping_sub(bytes));
    }

    /// A slot of that class or, where those have run out, of a larger one. Where there is none, flushes until limbo gives
    /// some back or is empty.
    pub(crate) async fn allocate<B: Bank>(&self, bank: &B, class: usize) -> Result<Slot, Failure> {
        if let Some(slot) = self.take_claimed(class) {
            return Ok(slot);
        }
        self.allocate_slowly(bank, Need::Slot(class)).await
    }

    /// A slot of that class, or a larger one, where there is one without a flush.
    pub(crate) async fn allocate_now<B: Bank>(&self, bank: &B, class: usize) -> Result<Option<Slot>, Failure> {
        if let Some(slot) = self.take_claimed(class) {
            return Ok(Some(slot));
        }
        let _held = self.heap_busy.hold(&self.waiters).await;
        self.search(bank, class).await
    }

    /// A slab for a chunk; returns its number.
    pub(crate) async fn allocate_chunk<B: Bank>(&self, bank: &B) -> Result<u32, Failure> {
        Ok(self.allocate_slowly(bank, Need::Chunk).await?.pointer)
    }

    /// One at a time: what a flush gives back is first for who flushed. Otherwise others took it, each time anew, until the rounds were over
    /// and a put was told that there is no room.
    async fn allocate_slowly<B: Bank>(&self, bank: &B, need: Need) -> Result<Slot, Failure> {
        let _first = self.room_busy.hold(&self.waiters).await;
        if let Need::Slot(class) = need
            && let Some(slot) = self.take_claimed(class)
        {
            return Ok(slot);
        }
        let mut looked_again = false;
        for _ in 0..SPACE_ROUNDS_MAX {
            if self.damaged.get() {
                return Err(Failure::Media);
            }
            let waiting = self.limbo.slots();
            {
                let _held = self.heap_busy.hold(&self.waiters).await;
                let found = match need {
                    Need::Slot(class) => self.search(bank, class).await?,
                    Need::Chunk => {
                        let mut taken = self.take_slab(bank, CLASS_CHUNK).await?;
                        if taken.is_none() && self.retire_idle(bank).await? {
                            taken = self.take_slab(bank, CLASS_CHUNK).await?;
                        }
                        if taken.is_some() {
                            self.used(SLAB_BYTES);
                        }
                        taken.map(|(slab, entry)| Slot { pointer: slab, generation: entry.generation })
                    }
                };
                if let Some(slot) = found {
                    return Ok(slot);
                }
            }
            if waiting == 0 && self.limbo.slots() == 0 {
                // What was on its way from one list to the next was in none: once more, when whoever moved it is done.
                if looked_again {
                    break;
                }
                looked_again = true;
                drop(self.limbo.draining.hold(&self.waiters).await);
                continue;
            }
            self.flush(bank).await?;
            self.drain_all(bank).await?;
        }
        Err(Failure::Capacity)
    }

    /// Takes a slot of the class' claim, where it has one; never waits.
    #[inline]
    pub(crate) fn take_claimed(&self, class: usize) -> Option<Slot> {
        let mut claim = self.claims[class].get();
        if claim.bits == 0 {
            return None;
        }
        let bit = claim.bits.trailing_zeros();
        claim.bits &= claim.bits - 1;
        self.claims[class].set(claim);
        self.used(slot_bytes(class));
        let pointer = self.geometry.get().pointer(claim.slab, class, 64 * claim.word + bit);
        Some(Slot { pointer, generation: claim.generation })
    }

    async fn search<B: Bank>(&self, bank: &B, class: usize) -> Result<Option<Slot>, Failure> {
        if self.refill(bank, class).await? || self.claim_new(bank, class).await? {
            return Ok(self.take_claimed(class));
        }
        if self.retire_idle(bank).await? && self.claim_new(bank, class).await? {
            return Ok(self.take_claimed(class));
        }
        for larger in class + 1..CLASSES {
            if self.refill(bank, larger).await? {
                return Ok(self.take_claimed(larger));
            }
        }
        Ok(None)
    }

    /// Claims free slots of the class' current slab or of a partial one. True where the claim now has some.
    async fn refill<B: Bank>(&self, bank: &B, class: usize) -> Result<bool, Failure> {
        let claim = self.claims[class].get();
        if claim.bits != 0 {
            return Ok(true);
        }
        if claim.slab != NO_SLAB {
            let entry = self.read_entry(bank, claim.slab).await?;
            if entry.free > 0 {
                return self.claim_from(bank, class, claim.slab, entry).await;
            }
            self.claims[class].set(Claim::NONE);
        }
        let slab = self.partial[class].get();
        if slab == NO_SLAB {
            return Ok(false);
        }
        let mut entry = self.read_entry(bank, slab).await?;
        if usize::from(entry.class) != class || entry.free == 0 {
            return self.sound(Err(Failure::Media));
        }
        let next = core::mem::replace(&mut entry.next, NO_SLAB);
        if next != NO_SLAB {
            self.write_entry_word(bank, next, ENTRY_PREVIOUS_OFFSET, NO_SLAB).await?;
        }
        self.partial[class].set(next);
        self.claim_from(bank, class, slab, entry).await
    }

    /// Moves one word of a slab's bitmap to the class' claim.
    async fn claim_from<B: Bank>(&self, bank: &B, class: usize, slab: u32, mut entry: Entry) -> Result<bool, Failure> {
        let Some(word) = entry.bitmap.iter().position(|bits| *bits != 0) else {
            return self.sound(Err(Failure::Media));
        };
        let bits = core::mem::take(&mut entry.bitmap[word]);
        entry.free = entry.free.saturating_sub(bits.count_ones());
        let written = self.write_entry(bank, slab, &entry).await;
        self.sound(written)?;
        self.claims[class].set(Claim { generation: entry.generation, bits, slab, word: word as u32 });
        Ok(true)
    }

    /// Makes a free slab the class' current one.
    async fn claim_new<B: Bank>(&self, bank: &B, class: usize) -> Result<bool, Failure> {
        match self.take_slab(bank, class as u8).await? {
            Some((slab, entry)) => self.claim_from(bank, class, slab, entry).await,
            None => Ok(false),
        }
    }

    /// Assigns a free slab. Its old slots are durably invalid, and the new generation tells their records from the new
    /// ones, whichever of the writes to come survive.
    async fn take_slab<B: Bank>(&self, bank: &B, class: u8) -> Result<Option<(u32, Entry)>, Failure> {
        let entry = Entry::assigned(self.next_sequence(), class);
        let slab = self.free_head.get();
        if slab != NO_SLAB {
            let next = self.read_entry(bank, slab).await?.next;
            let written = self.write_entry(bank, slab, &entry).await;
            self.sound(written)?;
            self.free_head.set(next);
            return Ok(Some((slab, entry)));
        }
        let slab = self.fresh.get();
        if slab >= self.geometry.get().slabs {
            return Ok(None);
        }
        if slab >= self.ceiling.get() && !planted(bank, Planted::CeilingTooLate) {
            self.raise_ceiling(bank).await?;
        }
        self.write_entry(bank, slab, &entry).await?;
        self.fresh.set(slab + 1);
        Ok(Some((slab, entry)))
    }

    /// Frees current slabs that are empty: each class may sit on one. True where one was freed.
    async fn retire_idle<B: Bank>(&self, bank: &B) -> Result<bool, Failure> {
        let mut freed = false;
        for class in 0..CLASSES {
            let claim = self.claims[class].get();
            if claim.slab == NO_SLAB {
                continue;
            }
            // Withdrawn while it is looked at: others take from claims without asking.
            self.claims[class].set(Claim::NONE);
            let entry = self.sound(self.read_entry(bank, claim.slab).await)?;
            if entry.free + claim.bits.count_ones() == slots_per_slab(class) {
                self.free_slab(bank, claim.slab).await?;
                freed = true;
            } else {
                self.claims[class].set(claim);
            }
        }
        Ok(freed)
    }

    async fn free_slab<B: Bank>(&self, bank: &B, slab: u32) -> Result<(), Failure> {
        self.write_entry_word(bank, slab, ENTRY_NEXT_OFFSET, self.free_head.get()).await?;
        self.free_head.set(slab);
        Ok(())
    }

    /// Frees a chunk that no record on the media points to.
    pub(crate) async fn free_chunk<B: Bank>(&self, bank: &B, slab: u32) -> Result<(), Failure> {
        let _held = self.heap_busy.hold(&self.waiters).await;
        self.unused(SLAB_BYTES);
        self.free_slab(bank, slab).await
    }

    /// Frees the first `count` chunks of a record.
    pub(crate) async fn free_chunks<B: Bank>(&self, bank: &B, pointers: u64, count: u32) -> Result<(), Failure> {
        let mut at = 0;
        while at < count {
            let mut bytes = [0; 4 * POINTERS_AT_ONCE as usize];
            let some = (count - at).min(POINTERS_AT_ONCE);
            let read = bank.read(pointers + 4 * u64::from(at), &mut bytes[..4 * some as usize]).await;
            self.sound(read)?;
            for pointer in bytes[..4 * some as usize].chunks_exact(4) {
                let slab = u32::from_le_bytes([pointer[0], pointer[1], pointer[2], pointer[3]]);
                if slab >= self.geometry.get().slabs {
                    return self.sound(Err(Failure::Media));
                }
                self.free_chunk(bank, slab).await?;
            }
            at += some;
        }
        Ok(())
    }

    /// Gives back a slot that was allocated and got no header.
    pub(crate) async fn free_unused<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        self.free_slot(bank, pointer).await
    }

    /// Frees a slot whose tag is durably invalid.
    pub(crate) async fn free_slot<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        let _held = self.heap_busy.hold(&self.waiters).await;
        let Some((slab, offset)) = self.geometry.get().slab_of(pointer) else {
            return self.sound(Err(Failure::Media));
        };
        let mut entry = self.read_entry(bank, slab).await?;
        let class = usize::from(entry.class);
        if entry.generation == 0 || class >= CLASSES {
            return self.sound(Err(Failure::Media));
        }
        let slot = (offset / slot_bytes(class)) as u32;
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let mut claim = self.claims[class].get();
        if claim.slab == slab && claim.word == word {
            claim.bits |= bit;
            self.claims[class].set(claim);
            self.unused(slot_bytes(class));
            return Ok(());
        }
        if entry.bitmap[word as usize] & bit != 0 {
            return self.sound(Err(Failure::Media));
        }
        entry.bitmap[word as usize] |= bit;
        entry.free += 1;
        self.unused(slot_bytes(class));
        if claim.slab != slab {
            self.relist(bank, slab, class, &mut entry).await?;
        }
        let written = self.write_entry(bank, slab, &entry).await;
        self.sound(written)
    }

    /// Moves a slab that has one free slot more to the list where it belongs.
    async fn relist<B: Bank>(&self, bank: &B, slab: u32, class: usize, entry: &mut Entry) -> Result<(), Failure> {
        let slots = slots_per_slab(class);
        if entry.free == slots {
            if slots > 1 {
                self.unlink_partial(bank, class, entry).await?;
            }
            entry.next = self.free_head.get();
            entry.previous = NO_SLAB;
            self.free_head.set(slab);
        } else if entry.free == 1 {
            self.link_partial(bank, slab, class, entry).await?;
        }
        Ok(())
    }

    async fn link_partial<B: Bank>(&self, bank: &B, slab: u32, class: usize, entry: &mut Entry) -> Result<(), Failure> {
        let head = self.partial[class].get();
        if head != NO_SLAB {
            self.write_entry_word(bank, head, ENTRY_PREVIOUS_OFFSET, slab).await?;
        }
        entry.next = head;
        entry.previous = NO_SLAB;
        self.partial[class].set(slab);
        Ok(())
    }

    async fn unlink_partial<B: Bank>(&self, bank: &B, class: usize, entry: &Entry) -> Result<(), Failure> {
        if entry.next != NO_SLAB {
            self.write_entry_word(bank, entry.next, ENTRY_PREVIOUS_OFFSET, entry.previous).await?;
        }
        if entry.previous != NO_SLAB {
            self.write_entry_word(bank, entry.previous, ENTRY_NEXT_OFFSET, entry.next).await
        } else {
            self.partial[class].set(entry.next);
            Ok(())
        }
    }

    /// Puts a slab with a right bitmap into the list where it belongs, when none has it yet.
    pub(crate) async fn enlist<B: Bank>(&self, bank: &B, slab: u32, mut entry: Entry) -> Result<(), Failure> {
        let class = usize::from(entry.class);
        if class >= CLASSES || entry.free == slots_per_slab(class) {
            return self.free_slab(bank, slab).await;
        }
        if entry.free > 0 {
            self.link_partial(bank, slab, class, &mut entry).await?;
        }
        let written = self.write_entry(bank, slab, &entry).await;
        self.sound(written)
    }

    /// Gives all claims back to the bitmaps, to close.
    pub(crate) async fn return_claims<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let _held = self.heap_busy.hold(&self.waiters).await;
        for cell in &self.claims {
            let claim = cell.replace(Claim::NONE);
            if claim.slab == NO_SLAB {
                continue;
            }
            let mut entry = self.read_entry(bank, claim.slab).await?;
            entry.bitmap[claim.word as usize] |= claim.bits;
            entry.free += claim.bits.count_ones();
            self.enlist(bank, claim.slab, entry).await?;
        }
        Ok(())
    }
}
