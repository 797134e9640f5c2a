//! One key-value namespace on one SPU: find, put, get, delete, list (Willow 4.5, XSSD 4.4.2). The hash table's chains are
//! walked by short DMAs; a value never passes through local memory.
//!
//! What always holds:
//! - A chain ascends strictly by (hash, key) and holds at most one record of a key.
//! - Who walks a bucket's chain shares its stripe, who changes it has the stripe alone. A record leaves its chain only under
//!   its own bucket's stripe; so no slot is freed under a reader.
//! - A sequence number is given before anything of its record's header is written; all of one record's writes go on together.
//!
//! Who may call it: handlers that the namespace table let in ([`crate::table`]).

/// The walk of [`Store::find`], in place: what a get and a put go through has no state of its own to be gone through at each wait.
macro_rules! walk {
    ($store:expr, $bank:ident.$read:ident, $bucket:expr, $id:expr, $bytes:expr) => {{
        let mut link = $store.geometry.get().bucket_address($bucket);
        let mut pointer = [0; 4];
        $bank.$read(link, &mut pointer).await?;
        let mut pointer = u32::from_le_bytes(pointer);
        let mut before: Option<PairId> = None;
        loop {
            if pointer == 0 {
                break Position { link, pointer, found: false };
            }
            // What is named here and borrowed would be kept at the wait: nothing is.
            let Some(address) = $store.record_address(pointer) else {
                return $store.sound(Err(Failure::Media));
            };
            $bank.$read(address, $bytes).await?;
            let header = HeaderView($bytes);
            if !header.is_sound() {
                return $store.sound(Err(Failure::Media));
            }
            if header.is_of($id) {
                break Position { link, pointer, found: true };
            }
            // Not the first of its chain: from here on with all checks.
            let Some(next) = $store.step($bytes, $id, &mut before)? else {
                break Position { link, pointer, found: false };
            };
            link = $store.geometry.get().address(pointer) + NEXT_OFFSET;
            pointer = next;
            $bank.pause().await;
        }
    }};
}

mod chain;
mod dead;
mod get;
mod put;
mod scan;
mod touch;

use crate::bank::{Bank, Failure};
use crate::format::{
    CLASSES, Geometry, HEADER_BYTES, Header, HeaderView, NEXT_OFFSET, NO_SLAB, Nonce, PairId, SLAB_BYTES,
};
use crate::heap::Claim;
use crate::limbo::Limbo;
use crate::lock::{Busy, Stripes, Waiters};
use crate::recovery::{Headers, NO_HEADERS};
use crate::wire::{self, LIST_MORE};
use core::cell::{Cell, RefCell};
use core::cmp::Ordering;
use dead::Vain;
use put::Writing;

/// Chunk pointers that are read at a time.
pub(crate) const POINTERS_AT_ONCE: u32 = 16;
/// Bucket heads that a listing reads at a time.
const HEADS_AT_ONCE: u32 = 128;
/// Limbo slots that a mutation moves on.
pub(crate) const DRAIN_PER_MUTATION: u32 = 4;

pub use get::Found;
pub use put::Put;
pub use scan::{KeyRange, SCAN_BUCKETS};

/// When a put stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// Only where the key exists.
    IfExists,
    /// Only where it does not.
    IfAbsent,
    /// Only over the pair of that version.
    IfVersion(u64),
}

/// Where a listing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFrom {
    /// At the first pair.
    Start,
    /// At this pair, or the first behind it.
    At(PairId),
    /// Behind this pair.
    After(PairId),
}

/// A namespace on this SPU.
pub struct Store {
    pub(crate) waiters: Waiters,
    pub(crate) stripes: Stripes,
    pub(crate) geometry: Cell<Geometry>,
    pub(crate) nonce: Cell<Nonce>,
    pub(crate) place: Cell<(u16, u16)>,
    pub(crate) epoch: Cell<u32>,
    pub(crate) revision: Cell<u64>,
    pub(crate) sequence: Cell<u64>,
    pub(crate) writing: Writing,
    pub(crate) marked: Cell<u64>,
    /// Pairs of this sequence number or a lower one do not exist.
    pub(crate) horizon: Cell<u64>,
    /// Pairs of higher sequence numbers are counted: the horizon, also of a clear that is under way.
    pub(crate) counted_from: Cell<u64>,
    /// The hosts' time as it was told last, in seconds; 0: never told.
    pub(crate) now_s: Cell<u32>,
    /// Where a put that finds no room goes on to look for pairs that do not exist any more.
    pub(crate) sweep_at: Cell<u32>,
    /// What such puts have looked at in vain.
    pub(crate) vain: Cell<Vain>,
    /// Nothing was written since it was closed in order.
    pub(crate) clean: Cell<bool>,
    /// An operation failed half-way: the index must be rebuilt before the next use.
    pub(crate) damaged: Cell<bool>,
    /// Gets that are not tried at once any more, since one had to wait.
    pub(crate) patience: Cell<u32>,
    pub(crate) opening: Busy,
    pub(crate) pairs: Cell<u64>,
    pub(crate) value_bytes: Cell<u64>,
    pub(crate) used_bytes: Cell<u64>,
    pub(crate) heap_busy: Busy,
    /// Held by the one who waits for room.
    pub(crate) room_busy: Busy,
    pub(crate) free_head: Cell<u32>,
    pub(crate) fresh: Cell<u32>,
    pub(crate) partial: [Cell<u32>; CLASSES],
    pub(crate) claims: [Cell<Claim>; CLASSES],
    pub(crate) limbo: Limbo,
    /// Slabs from here on are not used until the superblock says, durably, that recovery has to look further.
    pub(crate) ceiling: Cell<u32>,
    /// What recovery looks at: it has the store alone. A handler's own memory has no room for so much.
    pub(crate) headers: RefCell<Headers>,
}

/// Where the walk of a chain ended.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    /// Bank address of the pointer that leads here.
    pub link: u64,
    /// The record there, or the one behind the place where it would be; 0: the chain's end.
    pub pointer: u32,
    /// Whether it is the one looked for.
    pub found: bool,
}

impl Store {
    /// Not open yet.
    pub const fn new() -> Self {
        Store {
            waiters: Waiters::new(),
            stripes: Stripes::new(),
            geometry: Cell::new(Geometry { base: 0, bytes: 0, buckets: 0, entries: 0, heap: 0, slabs: 0 }),
            nonce: Cell::new(Nonce([0; 2])),
            place: Cell::new((0, 1)),
            epoch: Cell::new(0),
            revision: Cell::new(0),
            sequence: Cell::new(0),
            writing: Writing::new(),
            marked: Cell::new(0),
            horizon: Cell::new(0),
            counted_from: Cell::new(0),
            now_s: Cell::new(0),
            sweep_at: Cell::new(0),
            vain: Cell::new(Vain::NONE),
            clean: Cell::new(true),
            damaged: Cell::new(false),
            patience: Cell::new(0),
            opening: Busy::new(),
            pairs: Cell::new(0),
            value_bytes: Cell::new(0),
            used_bytes: Cell::new(0),
            heap_busy: Busy::new(),
            room_busy: Busy::new(),
            free_head: Cell::new(NO_SLAB),
            fresh: Cell::new(0),
            partial: [const { Cell::new(NO_SLAB) }; CLASSES],
            claims: [const { Cell::new(Claim::NONE) }; CLASSES],
            limbo: Limbo::new(),
            ceiling: Cell::new(0),
            headers: RefCell::new(NO_HEADERS),
        }
    }

    /// Passes a result on; a failure leaves the index to be rebuilt.
    pub(crate) fn sound<T, E: Into<Failure>>(&self, result: Result<T, E>) -> Result<T, Failure> {
        result.map_err(|failure| {
            self.damaged.set(true);
            failure.into()
        })
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        sequence
    }

    pub(crate) async fn read_word<B: Bank>(&self, bank: &B, address: u64) -> Result<u32, Failure> {
        let mut bytes = [0; 4];
        bank.read(address, &mut bytes).await?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Offset of a pointer's record in the region.
    pub(crate) fn offset(pointer: u32) -> u64 {
        crate::format::UNIT_BYTES * u64::from(pointer)
    }

    #[inline]
    fn bucket(&self, id: &PairId) -> u32 {
        self.geometry.get().bucket(wire::place_on_spu(id.hash, self.place.get().1))
    }

    /// Bank address of a record that a link points to; `None` outside the heap.
    #[inline]
    fn record_address(&self, pointer: u32) -> Option<u64> {
        let geometry = self.geometry.get();
        geometry.holds(pointer).then(|| geometry.address(pointer))
    }

    async fn read_header<B: Bank>(&self, bank: &B, pointer: u32) -> Result<Header, Failure> {
        let geometry = self.geometry.get();
        if geometry.slab_of(pointer).is_none() {
            return self.sound(Err(Failure::Media));
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        bank.read(geometry.address(pointer), &mut bytes).await?;
        match Header::decode(&bytes) {
            Some(header) => Ok(header),
            None => self.sound(Err(Failure::Media)),
        }
    }

    /// Walks a bucket's chain to a pair, whose header is then in `bytes`. Called with a share of the bucket's stripe.
    pub(crate) async fn find<B: Bank>(
        &self,
        bank: &B,
        bucket: u32,
        id: &PairId,
        bytes: &mut [u8; HEADER_BYTES as usize],
    ) -> Result<Position, Failure> {
        Ok(walk!(self, bank.read, bucket, id, bytes))
    }

    /// The pointer behind a record that is not the one looked for; `None` where that would have come before it.
    #[inline(never)]
    fn step(
        &self,
        bytes: &[u8; HEADER_BYTES as usize],
        id: &PairId,
        before: &mut Option<PairId>,
    ) -> Result<Option<u32>, Failure> {
        let Some(header) = Header::decode(bytes) else { return self.sound(Err(Failure::Media)) };
        if header.id.order(id) == Ordering::Greater {
            return Ok(None);
        }
        // A chain that does not ascend is no chain: without this a damaged one could go round for ever.
        if before.is_some_and(|before| before.order(&header.id) != Ordering::Less) {
            return self.sound(Err(Failure::Media));
        }
        *before = Some(header.id);
        Ok(Some(header.next))
    }

    /// The header that [`Self::find`] has found.
    pub(crate) fn decoded(&self, bytes: &[u8; HEADER_BYTES as usize]) -> Result<Header, Failure> {
        self.sound(Header::decode(bytes).ok_or(Failure::Media))
    }

    /// Bank address of a record's chunk.
    pub(crate) async fn chunk_address<B: Bank>(&self, bank: &B, pointers: u64, chunk: u32) -> Result<u64, Failure> {
        let slab = self.read_word(bank, pointers + 4 * u64::from(chunk)).await?;
        let geometry = self.geometry.get();
        if slab >= geometry.slabs {
            return self.sound(Err(Failure::Media));
        }
        Ok(geometry.slab_address(slab))
    }

    /// Length of a pair's value.
    pub async fn exists<B: Bank>(&self, bank: &B, id: &PairId) -> Result<u32, Failure> {
        let bucket = self.bucket(id);
        let _share = self.stripes.read(bucket, &self.waiters).await;
        let mut bytes = [0; HEADER_BYTES as usize];
        if !self.find(bank, bucket, id, &mut bytes).await?.found {
            return Err(Failure::NotFound);
        }
        self.value_of(&HeaderView(&bytes)).map(|(length, _)| length).ok_or(Failure::NotFound)
    }

    /// Writes list entries into the reply from byte `at` on, as far as `capacity` goes. Returns the bytes written, with
    /// [`LIST_MORE`] where pairs are left.
    pub async fn list<B: Bank>(&self, bank: &B, from: ListFrom, at: u32, capacity: u32) -> Result<u32, Failure> {
        let geometry = self.geometry.get();
        if self.has_no_pairs() {
            return Ok(0);
        }
        let mut cursor = from;
        let mut bucket = match from {
            ListFrom::Start => 0,
            ListFrom::At(id) | ListFrom::After(id) => self.bucket(&id),
        };
        let mut written = 0;
        while bucket < geometry.buckets {
            let mut heads = [0; 4 * HEADS_AT_ONCE as usize];
            let count = (HEADS_AT_ONCE - bucket % HEADS_AT_ONCE).min(geometry.buckets - bucket);
            bank.read(geometry.bucket_address(bucket), &mut heads[..4 * count as usize]).await?;
            for (index, head) in (0..count).zip(heads.chunks_exact(4)) {
                if head == [0; 4] {
                    continue;
                }
                if !self.list_bucket(bank, bucket + index, &mut cursor, at, capacity, &mut written).await? {
                    return Ok(written | LIST_MORE);
                }
            }
            bucket += count;
            bank.pause().await;
        }
        Ok(written)
    }

    /// Lists one chain from `cursor` on; false where the reply is full.
    async fn list_bucket<B: Bank>(
        &self,
        bank: &B,
        bucket: u32,
        cursor: &mut ListFrom,
        at: u32,
        capacity: u32,
        written: &mut u32,
    ) -> Result<bool, Failure> {
        let _share = self.stripes.read(bucket, &self.waiters).await;
        let mut chain = self.chain(bank, bucket).await?;
        while let Some(header) = self.next_of(bank, &mut chain).await? {
            let wanted = match cursor {
                ListFrom::Start => true,
                ListFrom::At(id) => header.id.order(id) != Ordering::Less,
                ListFrom::After(id) => header.id.order(id) == Ordering::Greater,
            };
            if wanted && self.exists_now(&header) {
                if !self.reply_entry(bank, &header.id, (at, capacity), written).await? {
                    return Ok(false);
                }
                *cursor = ListFrom::After(header.id);
            }
        }
        Ok(true)
    }

    /// True where no pair is there, not even one whose time is over: then there is nothing to be looked for. (While a clear is under way the
    /// count is that of what comes behind it.)
    pub(crate) fn has_no_pairs(&self) -> bool {
        self.pairs.get() == 0 && self.counted_from.get() == self.horizon.get()
    }

    /// What STAT tells.
    pub fn statistics(&self) -> wire::Statistics {
        let geometry = self.geometry.get();
        wire::Statistics {
            pairs: self.pairs.get(),
            value_bytes: self.value_bytes.get(),
            used_bytes: self.used_bytes.get(),
            heap_bytes: u64::from(geometry.slabs) * SLAB_BYTES,
            limbo_slots: u64::from(self.limbo.slots()),
            buckets: u64::from(geometry.buckets),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}
