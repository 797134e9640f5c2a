//! Files whose lengths the app has: where their tails lie, and what is said of them on the media.
//!
//! What always holds:
//! - a file's length in [`File::length`] is durable, with all that is before it;
//! - what changes a file holds its lock, from before it looks at the length until the next length is durable: records are one after another;
//! - a length that could not be written may be on the media or not: nothing is written where it could name it before a length is durable again.

use crate::format::{
    LENGTH_BYTES, Length, REGION, REGION_BYTES, SLOTS, SUM_BYTES, UNIT_BYTES, decode_delegation, delegation_offset,
    encode_delegation, length_offset,
};
use crate::planted::{Planted, planted};
use crate::wire::{self, Delegation, EXTENTS_MAX, Entry, Extent};
use base_io_ranges::Failure;
use core::cell::Cell;
use willow_sdk::sync::{Event, Mutex};
use willow_sdk::{Error, Local, Request};

/// Processes that may append to a file at a time.
pub const ADMITTED_MAX: usize = 16;
/// Appends on an SPU at a time.
pub const APPENDS_MAX: usize = 24;
/// Requests of the host's kernel on an SPU at a time.
pub const CONTROLS_MAX: usize = 8;
/// No offset in a file or a bank is beyond.
const OFFSET_MAX: u64 = 1 << 56;

/// Where a file's tail lies.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// Differs from that of whatever was in the slot before.
    pub generation: u64,
    /// As the kernel gave it.
    pub delegation: Delegation,
    /// Its extents, as many as there are.
    pub extents: [Extent; EXTENTS_MAX],
    /// Nothing is appended any more.
    pub is_suspended: bool,
    /// The media may have another length.
    pub is_in_doubt: bool,
}

impl Tail {
    const NONE: Tail = Tail {
        generation: 0,
        delegation: Delegation { file: 0, length: 0, first: 0, base: 0, stripe_bytes: 0, extents: 0 },
        extents: [Extent { start: 0, bytes: 0 }; EXTENTS_MAX],
        is_suspended: false,
        is_in_doubt: false,
    };

    /// The extents that there are.
    pub fn extents(&self) -> &[Extent] {
        &self.extents[..self.delegation.extents as usize]
    }

    /// The length that the file can have.
    pub fn capacity(&self) -> u64 {
        self.delegation.first + self.extents().iter().map(|extent| extent.bytes).sum::<u64>()
    }

    /// Where a byte of the file lies, on which SPU, and how many after it do in one piece.
    pub fn find(&self, offset: u64, spus: u64) -> Option<(u32, u64, u64)> {
        let mut skip = offset.checked_sub(self.delegation.first)?;
        for extent in self.extents() {
            if skip < extent.bytes {
                let (byte, stripe) = (extent.start + skip, u64::from(self.delegation.stripe_bytes));
                let (row, within) = (byte / stripe, byte % stripe);
                let address = self.delegation.base + row / spus * stripe + within;
                return Some(((row % spus) as u32, address, (stripe - within).min(extent.bytes - skip)));
            }
            skip -= extent.bytes;
        }
        None
    }

    /// Whether it makes sense.
    pub fn is_sound(&self) -> bool {
        let delegation = &self.delegation;
        let fits = |offset: u64| offset <= OFFSET_MAX;
        let are_sound =
            self.extents().iter().all(|extent| extent.bytes > 0 && fits(extent.start) && fits(extent.bytes));
        are_sound
            && delegation.file != 0
            && delegation.stripe_bytes > 0
            && [delegation.first, delegation.base].into_iter().all(fits)
            && (delegation.first..=self.capacity()).contains(&delegation.length)
    }
}

/// A slot in local memory.
pub struct File {
    /// Its number; 0: there is none.
    pub number: Cell<u64>,
    /// Its length.
    pub length: Cell<u64>,
    /// Its tail.
    pub tail: Mutex<Tail>,
    /// Processes that may append; 0: none.
    pub admitted: [Cell<u32>; ADMITTED_MAX],
}

/// What is known of the region.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// It has not been looked for: requests wait.
    Unread,
    /// There is none: the first delegation makes it.
    Absent,
    /// Here it is, in this bank.
    Ready(u64),
    /// It cannot be read: requests are refused.
    Failed,
}

/// All that an instance knows.
pub struct State {
    /// The region.
    pub place: Cell<Place>,
    /// The files.
    pub files: [File; SLOTS],
    /// The next delegation's.
    pub next_generation: Cell<u64>,
    /// One delegation is changed at a time, by this buffer.
    pub control: Mutex<[u8; UNIT_BYTES]>,
    /// Who appends; 0: nobody.
    appending: [Cell<u32>; APPENDS_MAX],
    /// Requests of the host's kernel; 0: none.
    controlling: [Cell<u32>; CONTROLS_MAX],
    /// The region has been looked for.
    pub known: Event,
}

/// A place to append, or for a request of the host's kernel, until dropped.
pub struct Permit<'a>(&'a Cell<u32>);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

impl State {
    /// As an instance begins.
    pub const fn new() -> State {
        State {
            place: Cell::new(Place::Unread),
            files: [const {
                File {
                    number: Cell::new(0),
                    length: Cell::new(0),
                    tail: Mutex::new(Tail::NONE),
                    admitted: [const { Cell::new(0) }; ADMITTED_MAX],
                }
            }; SLOTS],
            next_generation: Cell::new(1),
            control: Mutex::new([0; UNIT_BYTES]),
            appending: [const { Cell::new(0) }; APPENDS_MAX],
            controlling: [const { Cell::new(0) }; CONTROLS_MAX],
            known: Event::new(),
        }
    }

    /// A place to append, of which a process has at most as many as it leaves free.
    pub fn permit(&self, process: u32) -> Result<Permit<'_>, Failure> {
        let own = self.appending.iter().filter(|place| place.get() == process + 1).count();
        let mut free = self.appending.iter().filter(|place| place.get() == 0);
        match (free.next(), free.count()) {
            (Some(place), left) if own <= left => {
                place.set(process + 1);
                Ok(Permit(place))
            }
            _ => Err(Failure(wire::STATUS_BUSY)),
        }
    }

    /// A place for a request of the host's kernel.
    pub fn permit_control(&self) -> Result<Permit<'_>, Failure> {
        let free = self.controlling.iter().find(|place| place.get() == 0);
        let place = free.ok_or(Failure(wire::STATUS_BUSY))?;
        place.set(1);
        Ok(Permit(place))
    }

    /// Where the region lies; `None` where there is none and nothing is delegated.
    pub async fn open(&self) -> Result<Option<u64>, Failure> {
        loop {
            match self.place.get() {
                Place::Unread => self.known.wait().await,
                Place::Absent => return Ok(None),
                Place::Ready(base) => return Ok(Some(base)),
                Place::Failed => return Err(Failure(wire::STATUS_MEDIA_ERROR)),
            }
        }
    }

    /// The same, and makes it where there is none; by who holds the control.
    pub async fn make(&self) -> Result<u64, Failure> {
        if let Some(base) = self.open().await? {
            return Ok(base);
        }
        let base = willow_sdk::region(REGION, REGION_BYTES).await?;
        self.place.set(Place::Ready(base));
        Ok(base)
    }

    /// The slot of a file.
    pub fn find(&self, number: u64) -> Option<usize> {
        (number != 0).then(|| self.files.iter().position(|file| file.number.get() == number))?
    }

    /// What hosts are told of a file.
    pub fn entry(&self, slot: usize, tail: &Tail) -> Entry {
        Entry {
            file: tail.delegation.file,
            length: self.files[slot].length.get(),
            capacity: tail.capacity(),
            slot: slot as u32,
            is_suspended: tail.is_suspended,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// Puts the checksum of all before it at the end.
async fn seal(request: &Request, bytes: &mut [u8]) -> Result<(), Error> {
    let checked = bytes.len() - SUM_BYTES;
    let sum = request.checksum(Local(&bytes[..checked]), checked as u32, 0).await?;
    bytes[checked..].copy_from_slice(&u64::from(sum).to_le_bytes());
    Ok(())
}

/// Reads bytes that have their checksum at the end; false: it is wrong.
async fn read_sealed(request: &Request, address: u64, into: &mut [u8]) -> Result<bool, Error> {
    request.read(address, into).await?;
    let checked = into.len() - SUM_BYTES;
    let sum = request.checksum(Local(&into[..checked]), checked as u32, 0).await?;
    Ok(into[checked..] == u64::from(sum).to_le_bytes())
}

/// Writes a file's length, durably. Where it fails the media may have it or not.
pub async fn settle(
    request: &Request,
    base: u64,
    slot: usize,
    tail: &mut Tail,
    length: u64,
    is_suspended: bool,
) -> Result<(), Failure> {
    let unit = Length { generation: tail.generation, length, is_suspended };
    let mut bytes = unit.encode(willow_sdk::spu_id(), slot);
    seal(request, &mut bytes).await?;
    tail.is_in_doubt = !planted(Planted::ForgetsDoubt);
    request.write(base + length_offset(slot), &bytes).await?;
    if !planted(Planted::AnswersTooEarly) {
        willow_sdk::flush().await?;
    }
    tail.is_in_doubt = false;
    Ok(())
}

/// Writes where a file's tail lies, durably; by the buffer of who holds the control.
pub async fn describe(
    request: &Request,
    base: u64,
    slot: usize,
    tail: &Tail,
    unit: &mut [u8; UNIT_BYTES],
) -> Result<(), Failure> {
    let at = (willow_sdk::spu_id(), slot);
    encode_delegation(unit, at, tail.generation, &tail.delegation, tail.extents());
    seal(request, unit).await?;
    request.write(base + delegation_offset(slot), unit).await?;
    Ok(willow_sdk::flush().await?)
}

/// Has the media forget what is in a slot, durably.
pub async fn forget(request: &Request, base: u64, slot: usize, unit: &mut [u8; UNIT_BYTES]) -> Result<(), Failure> {
    unit.fill(0);
    request.write(base + delegation_offset(slot), unit).await?;
    Ok(willow_sdk::flush().await?)
}

/// The start: finds what is delegated, before any request is served.
pub async fn recover(state: &State, request: &Request) {
    let place = match read(state, request).await {
        Ok(place) => place,
        Err(Failure(status)) => {
            willow_sdk::print!("the delegated files cannot be read: status {status}");
            Place::Failed
        }
    };
    state.place.set(place);
    state.known.notify_all();
}

async fn read(state: &State, request: &Request) -> Result<Place, Failure> {
    let base = match willow_sdk::region(REGION, 0).await {
        Ok(base) => base,
        Err(Error::NotFound) => return Ok(Place::Absent),
        Err(error) => return Err(error.into()),
    };
    let spu = willow_sdk::spu_id();
    let mut unit = state.control.lock().await;
    for (slot, file) in state.files.iter().enumerate() {
        let mut bytes = [0; LENGTH_BYTES];
        let is_sealed = read_sealed(request, base + length_offset(slot), &mut bytes).await?;
        let length = is_sealed.then(|| Length::decode(&bytes, spu, slot)).flatten();
        let is_sealed = read_sealed(request, base + delegation_offset(slot), &mut unit[..]).await?;
        let found = is_sealed.then(|| decode_delegation(&unit, (spu, slot))).flatten();
        let generations = [length.map(|length| length.generation), found.map(|(generation, ..)| generation)];
        for generation in generations.into_iter().flatten() {
            state.next_generation.set(state.next_generation.get().max(generation + 1));
        }
        let (Some(length), Some((generation, delegation, extents))) = (length, found) else { continue };
        if generation != length.generation {
            continue;
        }
        let mut tail = file.tail.lock().await;
        *tail = Tail { generation, delegation, extents, is_suspended: length.is_suspended, is_in_doubt: false };
        file.length.set(length.length);
        file.number.set(delegation.file);
    }
    Ok(Place::Ready(base))
}
