//! Opening and closing a namespace. A region that was closed in order carries its counters and lists in the superblock; any
//! other is rebuilt from its records, which alone are authoritative.
//!
//! What always holds:
//! - Before the first write of an opening the superblock says, durably, that the region is in use and which epoch it is.
//! - Recovery reads only what is durable: it begins with a flush. It wipes an older record only beside a newer one, flushes,
//!   and only then wipes tombstones; so it may be cut anywhere and begun again.
//! - A slab is used only below the ceiling that the superblock tells, durably: recovery looks at no slab from there on.
//!
//! Who may call it: the namespace table, when no request uses the namespace.

use crate::bank::{Bank, Failure, Planted, Region, Word, planted};
use crate::format::{
    CLASS_CHUNK, CLASSES, Entry, FORMAT_VERSION, Found, Geometry, HEADER_BYTES, Header, Kind, Layout, MARK_BYTES,
    NEXT_OFFSET, NO_SLAB, Nonce, SLAB_BYTES, SUPERBLOCK_BYTES, Superblock, decode_mark, slot_bytes, slots_per_slab,
};
use crate::heap::Claim;
use crate::store::Store;

/// Bits of a sequence number below the epoch.
const EPOCH_SHIFT: u32 = 40;
/// Most openings in a region's life.
const EPOCH_MAX: u32 = (1 << (64 - EPOCH_SHIFT)) - 1;
/// Flushes that a close makes before it leaves the region to be recovered.
const CLOSE_ROUNDS_MAX: u32 = 8;
/// Slabs that the ceiling rises by: one flush for so many that are used for the first time. In tests of small regions, few.
const CEILING_STEP: u32 = if cfg!(feature = "planted") { 2 } else { 1024 };
/// Headers that recovery reads at a time.
const HEADERS_AT_ONCE: u32 = 32;
/// Bytes of the hash table that recovery empties at a time.
const EMPTIED_AT_ONCE_BYTES: u64 = 256 << 10;

const _: () = assert!(FORMAT_VERSION == 2, "what is to be done for regions of older versions was thought of");

/// Headers of slots that lie behind each other, some at a time.
pub(crate) type Headers = [[u8; HEADER_BYTES as usize]; HEADERS_AT_ONCE as usize];

/// None.
pub(crate) const NO_HEADERS: Headers = [[0; HEADER_BYTES as usize]; HEADERS_AT_ONCE as usize];

impl Store {
    /// Makes the store ready to serve a region.
    pub async fn open<B: Bank>(&self, bank: &B, region: Region) -> Result<(), Failure> {
        let geometry = Geometry::new(region.base, region.bytes).ok_or(Failure::TooSmall)?;
        let place = bank.place();
        self.geometry.set(geometry);
        self.place.set(place);
        self.damaged.set(false);
        self.forget();
        let mut newest: Option<Superblock> = None;
        let mut foreign = false;
        for offset in Geometry::SUPERBLOCKS {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            bank.read(region.base + offset, &mut bytes).await?;
            match Superblock::decode(&bytes) {
                Found::Nothing => {}
                Found::Foreign => foreign = true,
                Found::Superblock(found) if newest.is_none_or(|known| known.revision < found.revision) => {
                    newest = Some(found);
                }
                Found::Superblock(_) => {}
            }
        }
        let Some(superblock) = newest else {
            if foreign {
                return Err(Failure::Format);
            }
            let seed = bank.entropy();
            self.nonce.set(Nonce([seed, Nonce([seed, !seed]).check(region.base, region.bytes, &[u64::from(place.0)])]));
            return Ok(());
        };
        if superblock.region_bytes != region.bytes || (superblock.spu, superblock.spus) != place {
            return Err(Failure::Format);
        }
        self.nonce.set(superblock.nonce);
        self.horizon.set(superblock.horizon);
        self.counted_from.set(superblock.horizon);
        // Where a copy is unreadable, the other may be the older one: its epoch may have been followed by one more.
        self.epoch.set(superblock.epoch + u32::from(foreign));
        self.revision.set(superblock.revision + u64::from(foreign));
        // And the ceiling may have risen.
        let known = superblock.ceiling > 0 && !foreign;
        self.ceiling.set(if known { superblock.ceiling.min(geometry.slabs) } else { geometry.slabs });
        if !superblock.clean || foreign {
            return self.recover(bank).await;
        }
        self.sequence.set(superblock.sequence);
        self.marked.set(superblock.sequence);
        self.pairs.set(superblock.pairs);
        self.value_bytes.set(superblock.value_bytes);
        self.used_bytes.set(superblock.used_bytes);
        self.free_head.set(superblock.free_head);
        self.fresh.set(superblock.fresh);
        for (cell, head) in self.partial.iter().zip(superblock.partial) {
            cell.set(head);
        }
        Ok(())
    }

    /// Local memory as for an empty region.
    fn forget(&self) {
        self.clean.set(true);
        for number in [&self.revision, &self.sequence, &self.marked, &self.horizon, &self.counted_from] {
            number.set(0);
        }
        self.now_s.set(0);
        self.epoch.set(0);
        self.ceiling.set(0);
        self.forget_index();
    }

    fn forget_index(&self) {
        self.pairs.set(0);
        self.value_bytes.set(0);
        self.used_bytes.set(0);
        self.free_head.set(NO_SLAB);
        self.fresh.set(0);
        self.partial.iter().for_each(|head| head.set(NO_SLAB));
        self.claims.iter().for_each(|claim| claim.set(Claim::NONE));
        self.limbo.reset();
        self.writing.reset();
    }

    async fn write_superblock<B: Bank>(&self, bank: &B, clean: bool) -> Result<(), Failure> {
        self.write_superblock_with(bank, clean, self.horizon.get()).await
    }

    /// The same with another horizon.
    pub(crate) async fn write_superblock_with<B: Bank>(
        &self,
        bank: &B,
        clean: bool,
        horizon: u64,
    ) -> Result<(), Failure> {
        let revision = self.revision.get() + 1;
        let (spu, spus) = self.place.get();
        let geometry = self.geometry.get();
        let mut partial = [NO_SLAB; CLASSES];
        for (head, cell) in partial.iter_mut().zip(&self.partial) {
            *head = cell.get();
        }
        let superblock = Superblock {
            clean,
            revision,
            nonce: self.nonce.get(),
            region_bytes: geometry.bytes,
            spu,
            spus,
            epoch: self.epoch.get(),
            sequence: self.sequence.get(),
            pairs: self.pairs.get(),
            value_bytes: self.value_bytes.get(),
            used_bytes: self.used_bytes.get(),
            free_head: self.free_head.get(),
            fresh: self.fresh.get(),
            partial,
            horizon,
            ceiling: self.ceiling.get(),
        };
        let copy = Geometry::SUPERBLOCKS[(revision % 2) as usize];
        bank.write(geometry.base + copy, &superblock.encode()).await?;
        self.revision.set(revision);
        Ok(())
    }

    /// Before each mutation: the first of an opening says so in the superblock, durably.
    #[inline]
    pub(crate) async fn begin_mutation<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        if self.damaged.get() {
            return Err(Failure::Media);
        }
        if self.clean.get() { self.begin_epoch(bank).await } else { Ok(()) }
    }

    #[cold]
    async fn begin_epoch<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let _held = self.opening.hold(&self.waiters).await;
        if !self.clean.get() {
            return Ok(());
        }
        if self.epoch.get() >= EPOCH_MAX {
            return Err(Failure::Format);
        }
        self.epoch.set(self.epoch.get() + 1);
        let ceiling = self.ceiling.replace(self.next_ceiling());
        let mut begun = Ok(());
        if !planted(bank, Planted::CleanTooLong) {
            begun = self.write_superblock(bank, false).await;
        }
        if begun.is_ok() {
            begun = bank.flush().await.map_err(Failure::from);
        }
        if begun.is_err() {
            self.ceiling.set(ceiling);
            return begun;
        }
        self.sequence.set(u64::from(self.epoch.get()) << EPOCH_SHIFT);
        self.marked.set(self.sequence.get());
        self.clean.set(false);
        bank.unclean();
        Ok(())
    }

    fn next_ceiling(&self) -> u32 {
        self.fresh.get().saturating_add(CEILING_STEP).min(self.geometry.get().slabs)
    }

    /// Has recovery look further, durably, before a slab from the ceiling on is used. Called while the heap is held.
    #[cold]
    pub(crate) async fn raise_ceiling<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        // Whoever has this waits for nobody who wants the heap.
        let _held = self.opening.hold(&self.waiters).await;
        let before = self.ceiling.replace(self.next_ceiling());
        let mut risen = self.write_superblock(bank, false).await;
        if risen.is_ok() {
            risen = bank.flush().await.map_err(Failure::from);
        }
        if risen.is_err() {
            self.ceiling.set(before);
        }
        risen
    }

    /// Leaves the region so that it opens without recovery. No request may use the namespace meanwhile; afterwards it may go on to be used.
    /// Where it fails, what the superblock says is unknown: the store must be opened anew before its next use.
    pub async fn close<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        if self.clean.get() {
            return Ok(());
        }
        for _ in 0..CLOSE_ROUNDS_MAX {
            if self.limbo.slots() == 0 {
                break;
            }
            self.flush(bank).await?;
            self.drain_all(bank).await?;
        }
        if self.limbo.slots() > 0 || self.damaged.get() {
            return Err(Failure::Media);
        }
        self.return_claims(bank).await?;
        if !planted(bank, Planted::CleanTooEarly) {
            bank.flush().await?;
        }
        self.write_superblock(bank, true).await?;
        bank.flush().await?;
        self.clean.set(true);
        Ok(())
    }

    /// Rebuilds the index, the bitmaps and the counters from the records.
    async fn recover<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let geometry = self.geometry.get();
        if self.epoch.get() >= EPOCH_MAX {
            return Err(Failure::Format);
        }
        let mut mark = [0; MARK_BYTES];
        bank.read(geometry.base + Geometry::MARK, &mut mark).await?;
        let durable = decode_mark(&mark, &self.nonce.get());
        self.forget_index();
        self.epoch.set(self.epoch.get() + 1);
        self.write_superblock(bank, false).await?;
        bank.flush().await?;
        self.clean.set(false);
        self.sequence.set(u64::from(self.epoch.get()) << EPOCH_SHIFT);
        self.clear_buckets(bank).await?;
        if self.link_records(bank, durable).await? {
            bank.flush().await?;
            self.settle_tombstones(bank).await?;
        }
        self.settle_slabs(bank).await?;
        bank.flush().await?;
        // All that is left is durable.
        self.write_mark(bank, self.sequence.get()).await?;
        bank.unclean();
        Ok(())
    }

    /// Empties the hash table, which takes no room on the media then.
    async fn clear_buckets<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let geometry = self.geometry.get();
        let mut at = Geometry::BUCKETS;
        while at < geometry.entries {
            let bytes = (geometry.entries - at).min(EMPTIED_AT_ONCE_BYTES);
            bank.zero(geometry.base + at, bytes as u32).await?;
            at += bytes;
            bank.pause().await;
        }
        Ok(())
    }

    /// The headers of some slots of a slab, from that one on, to `into`.
    async fn read_headers<B: Bank>(
        &self,
        bank: &B,
        slab: u32,
        class: usize,
        slot: u32,
        into: &mut Headers,
    ) -> Result<(), Failure> {
        let geometry = self.geometry.get();
        let count = (slots_per_slab(class) - slot).min(HEADERS_AT_ONCE);
        let address = geometry.address(geometry.pointer(slab, class, slot));
        bank.read_headers(address, slot_bytes(class), into[..count as usize].as_flattened_mut()).await?;
        Ok(())
    }

    pub(crate) async fn wipe<B: Bank>(&self, bank: &B, pointer: u32) -> Result<(), Failure> {
        bank.write(self.geometry.get().address(pointer), &[0; 8]).await?;
        Ok(())
    }

    /// First pass: links the newest record of each key, tombstones too, wipes all others, counts pairs, marks their chunks and rebuilds
    /// bitmaps. True where there are tombstones; their slabs are marked.
    // Nobody else has the store, and its headers, while it is recovered.
    #[allow(clippy::await_holding_refcell_ref)]
    async fn link_records<B: Bank>(&self, bank: &B, durable: u64) -> Result<bool, Failure> {
        let geometry = self.geometry.get();
        let mut headers = self.headers.borrow_mut();
        let mut tombstones = false;
        for slab in 0..self.ceiling.get() {
            bank.pause().await;
            let mut entry = self.read_entry(bank, slab).await?;
            let class = usize::from(entry.class);
            if entry.generation == 0 || class >= CLASSES {
                continue;
            }
            entry = Entry { mark: 0, ..Entry::assigned(entry.generation, entry.class) };
            for slot in 0..slots_per_slab(class) {
                bank.pause().await;
                let place = slot % HEADERS_AT_ONCE;
                if place == 0 {
                    self.read_headers(bank, slab, class, slot, &mut headers).await?;
                }
                let pointer = geometry.pointer(slab, class, slot);
                let found = &headers[place as usize];
                let (nonce, offset) = (self.nonce.get(), Self::offset(pointer));
                let Some(header) = Header::verify(found, &nonce, offset, entry.generation, slot_bytes(class)) else {
                    continue;
                };
                let whole = header.sequence <= durable
                    || planted(bank, Planted::TornValues)
                    || self.is_whole(bank, pointer, &header).await?;
                if !whole {
                    self.wipe(bank, pointer).await?;
                } else if self.link_recovered(bank, pointer, &header, (slab, &mut entry)).await? {
                    if header.is_pair() {
                        entry.take(slot);
                        self.count_recovered(bank, pointer, class, &header).await?;
                    } else {
                        (entry.mark, tombstones) = (self.epoch.get(), true);
                    }
                }
            }
            // Meanwhile one of its records may have marked another slab, never this one: a chunk has no live slots.
            self.write_entry(bank, slab, &entry).await?;
        }
        Ok(tombstones)
    }

    /// True where a record's chunk pointers and value are what its header says.
    async fn is_whole<B: Bank>(&self, bank: &B, pointer: u32, header: &Header) -> Result<bool, Failure> {
        if !header.is_pair() {
            return Ok(true);
        }
        let geometry = self.geometry.get();
        let layout = Layout::of(header.value_bytes);
        let pointers = geometry.address(pointer) + HEADER_BYTES;
        let mut value_check = 0;
        if layout.chunks > 0 {
            if bank.checksum(pointers, 4 * layout.chunks, 0).await? != header.chunks_check {
                return Ok(false);
            }
            for chunk in 0..layout.chunks {
                let slab = self.read_word(bank, pointers + 4 * u64::from(chunk)).await?;
                if slab >= geometry.slabs {
                    return Ok(false);
                }
                let bytes = layout.chunk_bytes(chunk, header.value_bytes);
                value_check = bank.checksum(geometry.slab_address(slab), bytes, value_check).await?;
                bank.pause().await;
            }
        }
        if layout.rest > 0 {
            let rest = pointers + 4 * u64::from(layout.chunks);
            value_check = bank.checksum(rest, layout.rest, value_check).await?;
        }
        Ok(value_check == header.value_check)
    }

    /// Links a record, unless there is a newer one of its key, and wipes the older of the two. True where it is linked now. `at` is the slab
    /// that is looked at, with its entry.
    async fn link_recovered<B: Bank>(
        &self,
        bank: &B,
        pointer: u32,
        header: &Header,
        at: (u32, &mut Entry),
    ) -> Result<bool, Failure> {
        let geometry = self.geometry.get();
        let bucket = geometry.bucket(crate::wire::place_on_spu(header.id.hash, self.place.get().1));
        let mut other = [0; HEADER_BYTES as usize];
        let position = self.find(bank, bucket, &header.id, &mut other).await?;
        let other = if position.found { Some(self.decoded(&other)?) } else { None };
        let next = match &other {
            Some(other) if other.sequence > header.sequence => {
                self.wipe(bank, pointer).await?;
                return Ok(false);
            }
            Some(other) => other.next,
            None => position.pointer,
        };
        let link = Word { address: position.link, bytes: pointer.to_le_bytes() };
        if header.next == next {
            bank.write_words(&[link]).await?;
        } else {
            let next = Word { address: geometry.address(pointer) + NEXT_OFFSET, bytes: next.to_le_bytes() };
            bank.write_words(&[next, link]).await?;
        }
        if let Some(other) = other {
            self.wipe(bank, position.pointer).await?;
            if !planted(bank, Planted::OlderStillCounted) {
                self.displaced(bank, position.pointer, &other, at).await?;
            }
        }
        Ok(true)
    }

    /// An older record that was linked before: its slot and its chunks are free, and it does not count any more.
    async fn displaced<B: Bank>(
        &self,
        bank: &B,
        pointer: u32,
        header: &Header,
        (slab, entry): (u32, &mut Entry),
    ) -> Result<(), Failure> {
        if !header.is_pair() {
            // A tombstone's slot is taken for free from the beginning.
            return Ok(());
        }
        let geometry = self.geometry.get();
        let Some((its, offset)) = geometry.slab_of(pointer) else { return Err(Failure::Media) };
        let class = if its == slab {
            let class = usize::from(entry.class);
            entry.give_back((offset / slot_bytes(class)) as u32);
            class
        } else {
            let mut entry = self.read_entry(bank, its).await?;
            let class = usize::from(entry.class);
            if class >= CLASSES {
                return Err(Failure::Media);
            }
            entry.give_back((offset / slot_bytes(class)) as u32);
            self.write_entry(bank, its, &entry).await?;
            class
        };
        if header.sequence > self.counted_from.get() {
            self.pairs.set(self.pairs.get() - 1);
            self.value_bytes.set(self.value_bytes.get() - u64::from(header.value_bytes));
        }
        let chunks = u64::from(header.chunks);
        self.used_bytes.set(self.used_bytes.get() - slot_bytes(class) - chunks * SLAB_BYTES);
        self.mark_chunks(bank, pointer, header, 0).await
    }

    async fn count_recovered<B: Bank>(
        &self,
        bank: &B,
        pointer: u32,
        class: usize,
        header: &Header,
    ) -> Result<(), Failure> {
        if header.sequence > self.counted_from.get() {
            self.pairs.set(self.pairs.get() + 1);
            self.value_bytes.set(self.value_bytes.get() + u64::from(header.value_bytes));
        }
        let chunks = u64::from(header.chunks);
        self.used_bytes.set(self.used_bytes.get() + slot_bytes(class) + chunks * SLAB_BYTES);
        self.mark_chunks(bank, pointer, header, self.epoch.get()).await
    }

    /// Marks a pair's chunks: with the epoch as in use.
    async fn mark_chunks<B: Bank>(&self, bank: &B, pointer: u32, header: &Header, mark: u32) -> Result<(), Failure> {
        let geometry = self.geometry.get();
        for chunk in 0..u32::from(header.chunks) {
            let pointers = geometry.address(pointer) + HEADER_BYTES;
            let slab = self.read_word(bank, pointers + 4 * u64::from(chunk)).await?;
            if slab >= geometry.slabs {
                return Err(Failure::Media);
            }
            let mut entry = self.read_entry(bank, slab).await?;
            if entry.class != CLASS_CHUNK || entry.generation == 0 {
                // Its assignment was lost, the record that points to it was not.
                entry = Entry::assigned(self.next_sequence(), CLASS_CHUNK);
            }
            entry.mark = mark;
            self.write_entry(bank, slab, &entry).await?;
            bank.pause().await;
        }
        Ok(())
    }

    /// Second pass, when older records are durably gone: unlinks and wipes tombstones, in the slabs that are marked for it.
    #[allow(clippy::await_holding_refcell_ref)]
    async fn settle_tombstones<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let geometry = self.geometry.get();
        let mut headers = self.headers.borrow_mut();
        for slab in 0..self.ceiling.get() {
            bank.pause().await;
            let entry = self.read_entry(bank, slab).await?;
            let class = usize::from(entry.class);
            if entry.generation == 0 || class >= CLASSES || entry.mark != self.epoch.get() {
                continue;
            }
            for slot in 0..slots_per_slab(class) {
                bank.pause().await;
                let place = slot % HEADERS_AT_ONCE;
                if place == 0 {
                    self.read_headers(bank, slab, class, slot, &mut headers).await?;
                }
                let pointer = geometry.pointer(slab, class, slot);
                let found = &headers[place as usize];
                let (nonce, offset) = (self.nonce.get(), Self::offset(pointer));
                let found = Header::verify(found, &nonce, offset, entry.generation, slot_bytes(class));
                if let Some(tombstone) = found.filter(|header| !header.is_pair()) {
                    self.unlink_tombstone(bank, pointer, &tombstone).await?;
                }
            }
        }
        Ok(())
    }

    async fn unlink_tombstone<B: Bank>(&self, bank: &B, pointer: u32, tombstone: &Header) -> Result<(), Failure> {
        debug_assert_eq!(tombstone.kind, Kind::Tombstone);
        let bucket = self.geometry.get().bucket(crate::wire::place_on_spu(tombstone.id.hash, self.place.get().1));
        let mut found = [0; HEADER_BYTES as usize];
        let position = self.find(bank, bucket, &tombstone.id, &mut found).await?;
        if position.found && position.pointer == pointer {
            bank.write(position.link, &self.decoded(&found)?.next.to_le_bytes()).await?;
        }
        self.wipe(bank, pointer).await
    }

    /// Third pass: puts each slab into its list.
    async fn settle_slabs<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let mut fresh = self.ceiling.get();
        while fresh > 0 && self.read_entry(bank, fresh - 1).await?.generation == 0 {
            fresh -= 1;
            bank.pause().await;
        }
        self.fresh.set(fresh);
        for slab in (0..fresh).rev() {
            bank.pause().await;
            let mut entry = self.read_entry(bank, slab).await?;
            let live_chunk = entry.class == CLASS_CHUNK && entry.mark == self.epoch.get() && entry.generation != 0;
            if live_chunk {
                continue;
            }
            if entry.generation == 0 {
                // It was never assigned, or its assignment was lost: an entry that says nothing cannot be in a list.
                entry = Entry::assigned(self.next_sequence(), CLASS_CHUNK);
                self.write_entry(bank, slab, &entry).await?;
            }
            entry.next = NO_SLAB;
            entry.previous = NO_SLAB;
            self.enlist(bank, slab, entry).await?;
        }
        Ok(())
    }
}
