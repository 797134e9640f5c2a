//! The redo log of a transaction that is not committed yet: writes are added to it, changed and read.
//!
//! What always holds:
//! - one request at a time works on a transaction; others wait;
//! - an entry is there only when its data are in the log; data are in one chunk of the transaction's;
//! - all entries are in local memory but those of pages that are full: these are in NV memory.

use crate::format::{
    CHUNK_BYTES, ENTRY_BYTES, Entry, HEAD_ENTRIES, NONE, PAGE_ENTRIES, PAGE_HEADER_BYTES, UNIT_BYTES, data_offset,
    page_offset,
};
use crate::state::{Place, State, status};
use crate::table::{Part, link, named};
use crate::wire::{self, VECTOR_WRITES_MAX};
use core::cell::Cell;
use willow_sdk::{Body, Nv, Reply, Request};

/// Bytes of a page.
pub const PAGE_BYTES: usize = UNIT_BYTES as usize;

/// A write as it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Write {
    /// Where it goes.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// Where its data begin in the request's body.
    pub body: u32,
}

/// Holds a part for one request, until dropped.
pub struct Held<'a> {
    state: &'a State,
    /// Which.
    pub index: usize,
    /// Whether it is still this request's: false once it was given up.
    is_there: Cell<bool>,
}

impl<'a> Held<'a> {
    /// The part of a transaction that writes may be added to, once nobody else works on it.
    pub async fn find(state: &'a State, owner: u32, transaction: u64) -> Result<Held<'a>, u32> {
        loop {
            let index = state.table.find(owner, transaction).ok_or(wire::STATUS_NOT_FOUND)?;
            let part = state.table.part(index);
            if !part.busy.replace(true) {
                part.used_ns.set(willow_sdk::time_ns());
                return Ok(Held { state, index, is_there: Cell::new(true) });
            }
            state.changed.wait().await;
        }
    }

    /// A new transaction.
    pub async fn begin(state: &'a State, owner: u32, transaction: u64) -> Result<Held<'a>, u32> {
        let index = state
            .take(|table| match table.find(owner, transaction) {
                Some(_) => Some(None),
                None => table.begin(owner, transaction).map(Some),
            })
            .await?
            .ok_or(wire::STATUS_EXISTS)?;
        let part = state.table.part(index);
        part.busy.set(true);
        part.used_ns.set(willow_sdk::time_ns());
        Ok(Held { state, index, is_there: Cell::new(true) })
    }

    /// The part.
    pub fn part(&self) -> &'a Part {
        self.state.table.part(self.index)
    }

    /// Forgets the transaction.
    pub fn end(self) {
        self.is_there.set(false);
        self.state.free(self.index);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_there.get() {
            self.part().busy.set(false);
            self.state.changed.notify_all();
        }
    }
}

/// Adds writes to a transaction; where it fails some of them may be there.
pub async fn append(request: &Request, place: Place, held: &Held<'_>, writes: &[Write]) -> Result<(), u32> {
    let (state, part) = (held.state, held.part());
    let mut entries = [Entry::EMPTY; VECTOR_WRITES_MAX];
    for (write, entry) in writes.iter().zip(&mut entries) {
        if write.bytes == 0 || write.bytes > wire::WRITE_BYTES_MAX {
            return Err(wire::STATUS_MALFORMED);
        }
        request.may_write(Nv(write.address), write.bytes).await.map_err(status)?;
        let data = reserve(state, place, held.index, write.bytes).await?;
        let sum = request.checksum(Body(write.body), write.bytes, 0).await.map_err(status)?;
        *entry = Entry { address: write.address, bytes: write.bytes, sum, data };
    }
    let mut moves = request.batch();
    for (write, entry) in writes.iter().zip(&entries) {
        moves.dma(Body(write.body), Nv(place.base + entry.data), write.bytes);
    }
    moves.await.map_err(status)?;
    for entry in &entries[..writes.len()] {
        add(request, place, state, held.index, *entry).await?;
    }
    part.used_ns.set(willow_sdk::time_ns());
    Ok(())
}

/// Room for the data of a write: an offset in the region.
async fn reserve(state: &State, place: Place, index: usize, bytes: u32) -> Result<u64, u32> {
    let part = state.table.part(index);
    let needed = bytes.next_multiple_of(UNIT_BYTES as u32);
    let chunk = match part.last_chunk() {
        Some(chunk) if u64::from(part.taken_bytes.get() + needed) <= CHUNK_BYTES => chunk,
        _ => state.take(|table| table.take_chunk(index)).await?,
    };
    let at = part.taken_bytes.get();
    part.taken_bytes.set(at + needed);
    Ok(data_offset(chunk, place.chunks) + u64::from(at))
}

/// Adds an entry whose data are in the log.
async fn add(request: &Request, place: Place, state: &State, index: usize, entry: Entry) -> Result<(), u32> {
    let part = state.table.part(index);
    let number = part.entries.get();
    match (number as usize).checked_sub(HEAD_ENTRIES) {
        None => part.head[number as usize].set(entry),
        Some(beyond) => {
            if beyond.is_multiple_of(PAGE_ENTRIES) {
                turn_page(request, place, state, index).await?;
            }
            part.tail[beyond % PAGE_ENTRIES].set(entry);
        }
    }
    part.sum.set(part.sum.get().wrapping_add(entry.check(number)));
    part.entries.set(number + 1);
    Ok(())
}

/// Begins a page; the one before, which is full, goes to NV memory and names it.
async fn turn_page(request: &Request, place: Place, state: &State, index: usize) -> Result<(), u32> {
    let part = state.table.part(index);
    let page = match part.last_chunk() {
        Some(chunk) if !part.page_taken.get() => chunk,
        _ => state.take(|table| table.take_chunk(index)).await?,
    };
    part.page_taken.set(true);
    match named(part.last_page.get()) {
        Some(full) => {
            let bytes = tail_bytes(part, page);
            request.write(place.base + page_offset(full), &bytes).await.map_err(status)?;
        }
        None => part.first_page.set(link(page)),
    }
    part.last_page.set(link(page));
    Ok(())
}

/// The page that is in local memory, as bytes.
pub fn tail_bytes(part: &Part, next: u32) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    bytes[..4].copy_from_slice(&next.to_le_bytes());
    for (entry, place) in part.tail.iter().zip(bytes[PAGE_HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        entry.get().encode(place);
    }
    bytes
}

/// Reads a transaction's entries in their order.
pub struct Entries<'a> {
    part: &'a Part,
    next: u32,
    /// The page that is in `bytes`, which came from NV memory, or [`NONE`]; and the one after it.
    following: u32,
    bytes: [u8; PAGE_BYTES],
    is_tail: bool,
}

impl<'a> Entries<'a> {
    /// From the first one on.
    pub fn new(part: &'a Part) -> Self {
        let following = part.first_page_number();
        Entries { part, next: 0, following, bytes: [0; PAGE_BYTES], is_tail: false }
    }

    /// The next one and its number; `None` at the end.
    pub async fn next(&mut self, request: &Request, place: Place) -> Result<Option<(u32, Entry)>, u32> {
        let number = self.next;
        if number >= self.part.entries.get() {
            return Ok(None);
        }
        self.next += 1;
        let Some(beyond) = (number as usize).checked_sub(HEAD_ENTRIES) else {
            return Ok(Some((number, self.part.head[number as usize].get())));
        };
        if beyond.is_multiple_of(PAGE_ENTRIES) {
            self.is_tail = named(self.part.last_page.get()) == Some(self.following);
            if !self.is_tail {
                if self.following >= place.chunks {
                    // A page that was lost with the power named it.
                    return Err(wire::STATUS_MEDIA_ERROR);
                }
                request.read(place.base + page_offset(self.following), &mut self.bytes).await.map_err(status)?;
                self.following = u32::from_le_bytes([self.bytes[0], self.bytes[1], self.bytes[2], self.bytes[3]]);
            }
        }
        let at = beyond % PAGE_ENTRIES;
        let entry = match self.is_tail {
            true => self.part.tail[at].get(),
            false => Entry::decode(&self.bytes[PAGE_HEADER_BYTES + at * ENTRY_BYTES..]),
        };
        Ok(Some((number, entry)))
    }
}

/// Where an entry lies.
enum Lies {
    Head,
    Tail,
    /// In NV memory, at this offset in the region.
    Page(u64),
}

async fn find(request: &Request, place: Place, part: &Part, number: u32) -> Result<(Entry, Lies), u32> {
    if number >= part.entries.get() {
        return Err(wire::STATUS_NOT_FOUND);
    }
    let Some(beyond) = (number as usize).checked_sub(HEAD_ENTRIES) else {
        return Ok((part.head[number as usize].get(), Lies::Head));
    };
    let mut page = part.first_page_number();
    for _ in 0..beyond / PAGE_ENTRIES {
        let mut next = [0; 4];
        request.read(place.base + page_offset(page), &mut next).await.map_err(status)?;
        page = u32::from_le_bytes(next);
    }
    let at = beyond % PAGE_ENTRIES;
    if named(part.last_page.get()) == Some(page) || page == NONE {
        return Ok((part.tail[at].get(), Lies::Tail));
    }
    let mut bytes = [0; ENTRY_BYTES];
    let offset = page_offset(page) + (PAGE_HEADER_BYTES + at * ENTRY_BYTES) as u64;
    request.read(place.base + offset, &mut bytes).await.map_err(status)?;
    Ok((Entry::decode(&bytes), Lies::Page(offset)))
}

/// Changes the data of a write. Where it fails after data were moved, the transaction is no more.
pub async fn edit(
    request: &Request,
    place: Place,
    held: Held<'_>,
    (number, offset, bytes): (u32, u32, u32),
    body: u32,
) -> Result<(), u32> {
    let part = held.part();
    let (old, lies) = find(request, place, part, number).await?;
    if offset.checked_add(bytes).is_none_or(|end| end > old.bytes) {
        return Err(wire::STATUS_MALFORMED);
    }
    if request.info().body_bytes < body + bytes {
        return Err(wire::STATUS_MALFORMED);
    }
    let changed = async {
        let data = place.base + old.data;
        request.dma(Body(body), Nv(data + u64::from(offset)), bytes).await?;
        let sum = request.checksum(Nv(data), old.bytes, 0).await?;
        let new = Entry { sum, ..old };
        match lies {
            Lies::Head => part.head[number as usize].set(new),
            Lies::Tail => part.tail[(number as usize - HEAD_ENTRIES) % PAGE_ENTRIES].set(new),
            Lies::Page(offset) => {
                let mut bytes = [0; ENTRY_BYTES];
                new.encode(&mut bytes);
                request.write(place.base + offset, &bytes).await?;
            }
        }
        part.sum.set(part.sum.get().wrapping_sub(old.check(number)).wrapping_add(new.check(number)));
        Ok(())
    };
    let outcome = changed.await.map_err(status);
    if outcome.is_err() {
        held.end();
    }
    outcome
}

/// Reads the data of a write into the reply; how many bytes.
pub async fn read(
    request: &Request,
    place: Place,
    held: &Held<'_>,
    (number, offset, bytes): (u32, u32, u32),
) -> Result<u32, u32> {
    let (entry, _) = find(request, place, held.part(), number).await?;
    let count = bytes.min(entry.bytes.saturating_sub(offset)).min(request.info().reply_bytes);
    request.dma(Nv(place.base + entry.data + u64::from(offset)), Reply(0), count).await.map_err(status)?;
    Ok(count)
}
