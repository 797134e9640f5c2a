//! Put: from a pair's bucket to its new record, by few waits: the bucket's head, the headers of its chain, then all writes of the new
//! record at once.
//!
//! What always holds:
//! - The header's check covers the value's CRC, which is computed first; so value, header and link may reach the media in any order.
//! - A sequence number is noted as being written until its record is whole, or is durably nothing as soon as what comes next is
//!   durable; the durability mark stays below all that are noted.

use super::{Condition, Position, Store};
use crate::bank::{Bank, Failure, Fault, Planted, Record, Word, planted};
use crate::format::{HEADER_BYTES, Header, HeaderView, Kind, Layout, NEXT_OFFSET, PairId, SLAB_BYTES, class_for};
use crate::heap::Slot;
use crate::lock::WAITERS_MAX;
use core::cell::Cell;

/// Sequence numbers of records that are being written.
pub(crate) struct Writing {
    sequences: [Cell<u64>; WAITERS_MAX],
    taken: Cell<u32>,
}

const _: () = assert!(WAITERS_MAX <= u32::BITS as usize);

impl Writing {
    pub const fn new() -> Self {
        Writing { sequences: [const { Cell::new(0) }; WAITERS_MAX], taken: Cell::new(0) }
    }

    /// Nobody writes: the store was opened anew.
    pub fn reset(&self) {
        self.taken.set(0);
    }

    /// Notes a sequence number; returns its place.
    #[inline]
    fn begin(&self, sequence: u64) -> usize {
        let taken = self.taken.get();
        let place = taken.trailing_ones() as usize;
        self.sequences[place].set(sequence);
        self.taken.set(taken | 1 << place);
        place
    }

    #[inline]
    fn end(&self, place: usize) {
        self.taken.set(self.taken.get() & !(1 << place));
    }

    /// The lowest that is noted.
    fn lowest(&self) -> Option<u64> {
        let taken = self.taken.get();
        let noted = self.sequences.iter().enumerate().filter(|(place, _)| taken >> place & 1 != 0);
        noted.map(|(_, sequence)| sequence.get()).min()
    }
}

/// What a put stores.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Length of the value: the request's first bytes of payload.
    pub value_bytes: u32,
    /// When it stores.
    pub condition: Condition,
    /// When the pair ends to exist, in seconds of the hosts' clock; 0: never.
    pub expiry: u32,
}

impl Put {
    /// A value that stays.
    #[inline]
    pub fn new(value_bytes: u32, condition: Condition) -> Self {
        Put { value_bytes, condition, expiry: 0 }
    }
}

impl Store {
    /// The sequence number up to which every record has been written.
    pub(crate) fn settled_sequence<B: Bank>(&self, bank: &B) -> u64 {
        let lowest = self.writing.lowest().filter(|_| !planted(bank, Planted::MarkTooHigh));
        lowest.map_or(self.sequence.get(), |lowest| lowest - 1)
    }

    /// Stores a value; returns the pair's new version. What most puts are is compiled by itself (not `ITEM`): without expiry and
    /// condition of a version.
    #[inline]
    pub async fn put<B: Bank, const ITEM: bool>(&self, bank: &B, id: &PairId, put: Put) -> Result<u64, Failure> {
        let Put { value_bytes, condition, expiry } = put;
        let expiry = if ITEM { expiry } else { 0 };
        if self.clean.get() || self.damaged.get() {
            self.begin_mutation(bank).await?;
        }
        let bucket = self.bucket(id);
        let alone = match self.stripes.try_write(bucket, &self.waiters) {
            Some(alone) => alone,
            None => self.stripes.write(bucket, &self.waiters).await,
        };
        // The header of the record there, then the new one.
        let mut header = [0; HEADER_BYTES as usize];
        let position = walk!(self, bank.read_in_place, bucket, id, &mut header);
        if condition != Condition::Always {
            let exists = position.found && self.value_of(&HeaderView(&header)).is_some();
            match condition {
                Condition::IfExists | Condition::IfVersion(_) if !exists => return Err(Failure::NotFound),
                Condition::IfVersion(version)
                    if ITEM
                        && HeaderView(&header).sequence() != version
                        && !planted(bank, Planted::VersionUnchecked) =>
                {
                    return Err(Failure::Changed);
                }
                Condition::IfAbsent if exists => return Err(Failure::Exists),
                _ => {}
            }
        }
        let value_check = match value_bytes {
            0 => 0,
            _ => bank.checksum_payload(value_bytes).await?,
        };
        let layout = Layout::of(value_bytes);
        let class = class_for(layout.record_bytes());
        let slot = match self.take_claimed(class) {
            Some(slot) => slot,
            None => self.allocate(bank, class).await?,
        };
        let chunks_check = match layout.chunks {
            0 => 0,
            _ => self.write_chunks(bank, &slot, layout, value_bytes).await?,
        };
        let old =
            if position.found { (HeaderView(&header).sequence(), HeaderView(&header).value_bytes()) } else { (0, 0) };
        let link = Word { address: position.link, bytes: slot.pointer.to_le_bytes() };
        // What only begins the writes is named inside: what is named here is kept at the wait.
        let (place, sequence, writes) = {
            let checks = [value_bytes, value_check, chunks_check];
            let (place, sequence) = self.write_header(id, &position, layout, checks, expiry, &slot, &mut header);
            let address = self.geometry.get().address(slot.pointer);
            let record = Record {
                address,
                header: &header,
                rest_address: address + HEADER_BYTES + 4 * u64::from(layout.chunks),
                rest_offset: value_bytes - layout.rest,
                rest_bytes: layout.rest,
                link: &link,
            };
            (place, sequence, bank.store(record))
        };
        if let Err(fault) = writes.await {
            self.take_back(bank, &slot, layout.chunks, &position).await?;
            self.writing.end(place);
            return Err(fault.into());
        }
        self.writing.end(place);
        self.count(old, (sequence, value_bytes));
        if position.found && (planted(bank, Planted::ReuseTooEarly) || !self.limbo.note_replaced(position.pointer)) {
            self.push_replaced(bank, position.pointer).await?;
        }
        drop(alone);
        if self.limbo.has_cooled() {
            self.drain(bank, super::DRAIN_PER_MUTATION).await?;
        }
        Ok(sequence)
    }

    /// Counts a pair, (sequence number, length of the value), in the place of another (0 where there was none).
    #[inline(always)]
    pub(crate) fn count(&self, old: (u64, u32), new: (u64, u32)) {
        let from = self.counted_from.get();
        let mut bytes = self.value_bytes.get();
        if old.0 > from {
            bytes = bytes.wrapping_sub(old.1.into());
        }
        if new.0 > from {
            bytes = bytes.wrapping_add(new.1.into());
        }
        self.value_bytes.set(bytes);
        if (old.0 > from) != (new.0 > from) {
            self.pairs.set(if old.0 > from { self.pairs.get().wrapping_sub(1) } else { self.pairs.get() + 1 });
        }
    }

    /// Gives a record a sequence number, notes that it is being written, and turns the header of the record that it replaces into its
    /// own. Returns the note's place, and the number.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn write_header(
        &self,
        id: &PairId,
        at: &Position,
        layout: Layout,
        [value_bytes, value_check, chunks_check]: [u32; 3],
        expiry: u32,
        slot: &Slot,
        header: &mut [u8; HEADER_BYTES as usize],
    ) -> (usize, u64) {
        let next = if at.found { HeaderView(header).next() } else { at.pointer };
        let sequence = self.next_sequence();
        let (kind, chunks) = (Kind::Pair, layout.chunks as u16);
        let new = Header { expiry, next, id: *id, sequence, value_bytes, value_check, kind, chunks, chunks_check };
        new.encode(&self.nonce.get(), Self::offset(slot.pointer), slot.generation, header);
        (self.writing.begin(sequence), sequence)
    }

    /// Undoes what was done of a record's writes, one of which failed. Where that fails, too, the index is to be rebuilt, and the
    /// record's sequence number stays noted until then.
    async fn take_back<B: Bank>(&self, bank: &B, slot: &Slot, chunks: u32, at: &Position) -> Result<(), Failure> {
        if self.sound(self.read_word(bank, at.link).await)? == slot.pointer {
            let unlinked = bank.write(at.link, &at.pointer.to_le_bytes()).await;
            self.sound(unlinked)?;
        }
        let address = self.geometry.get().address(slot.pointer);
        let mut tag = [0; 8];
        let read = bank.read(address, &mut tag).await;
        self.sound(read)?;
        if tag == [0; 8] {
            // The header did not get there: the slot is as free as before.
            self.free_chunks(bank, address + HEADER_BYTES, chunks).await?;
            return self.free_unused(bank, slot.pointer).await;
        }
        // It may be on the media, and was never answered as stored: wiped, it goes the way of replaced records, so that it never
        // overtakes what comes later.
        let wiped = bank.write(address, &[0; 8]).await;
        self.sound(wiped)?;
        self.push_replaced(bank, slot.pointer).await
    }

    /// Moves the first part of a long value to chunks of its own; returns the CRC of their pointers. Where it fails, slot and chunks
    /// are free again.
    async fn write_chunks<B: Bank>(
        &self,
        bank: &B,
        slot: &Slot,
        layout: Layout,
        value_bytes: u32,
    ) -> Result<u32, Failure> {
        let pointers = self.geometry.get().address(slot.pointer) + HEADER_BYTES;
        let mut taken = 0;
        let written = self.fill_chunks(bank, pointers, layout, value_bytes, &mut taken).await;
        if written.is_err() {
            self.free_chunks(bank, pointers, taken).await?;
            self.free_unused(bank, slot.pointer).await?;
        }
        written
    }

    async fn fill_chunks<B: Bank>(
        &self,
        bank: &B,
        pointers: u64,
        layout: Layout,
        value_bytes: u32,
        taken: &mut u32,
    ) -> Result<u32, Failure> {
        for chunk in 0..layout.chunks {
            let slab = self.allocate_chunk(bank).await?;
            if let Err(fault) = bank.write(pointers + 4 * u64::from(chunk), &slab.to_le_bytes()).await {
                self.free_chunk(bank, slab).await?;
                return Err(Failure::from(fault));
            }
            *taken = chunk + 1;
            let bytes = layout.chunk_bytes(chunk, value_bytes);
            bank.receive(chunk * SLAB_BYTES as u32, self.geometry.get().slab_address(slab), bytes).await?;
        }
        let checked: Result<u32, Fault> = bank.checksum(pointers, 4 * layout.chunks, 0).await;
        Ok(checked?)
    }
}
