//! What the app keeps in an SPU's local memory, and the log in NV memory as it is opened.

use crate::format::{Found, LOG_BYTES, LOG_BYTES_MIN, REGION, Superblock, chunks};
use crate::table::{Part, Stage, Table};
use crate::wire;
use core::cell::Cell;
use willow_sdk::{Error, Request, sync::Event};

/// How long a transaction must have been idle to make way for another where there is no room.
pub const IDLE_NS_MIN: u64 = 10_000_000_000;
/// How often who finds the log full looks again, and after what time.
pub const FULL_LOOKS: u32 = 50;
/// See above.
pub const FULL_LOOK_NS: u64 = 1_000_000;

/// Bits of a commit's number that count commits; those above are the epoch.
const COMMIT_BITS: u32 = 40;

/// Where the log lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte of the region.
    pub base: u64,
    /// Number of its chunks.
    pub chunks: u32,
}

/// How far the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Recovery has not read it yet.
    Unread,
    /// Recovery has read it; what it found is being settled.
    Settling(Place),
    /// There is none yet.
    Absent,
    /// It is being made.
    Opening,
    /// It is there.
    Ready(Place),
    /// It cannot be used: with this status.
    Failed(u32),
}

/// All that there is.
pub struct State {
    /// Transactions and chunks.
    pub table: Table,
    /// How far the log is.
    pub log: Cell<Log>,
    /// A part or the log has changed.
    pub changed: Event,
    /// The last commit's number: this start, then how many there were.
    pub number: Cell<u64>,
    /// Commits that this SPU coordinates now.
    pub coordinating: Cell<u32>,
    /// There is something for the caretaker.
    pub work: Event,
    /// It has something to do at once.
    pub urgent: Cell<bool>,
    /// It is there.
    pub caretaker: Cell<bool>,
}

impl State {
    /// As an instance begins.
    pub const fn new() -> State {
        State {
            table: Table::new(),
            log: Cell::new(Log::Unread),
            changed: Event::new(),
            number: Cell::new(0),
            coordinating: Cell::new(0),
            work: Event::new(),
            urgent: Cell::new(false),
            caretaker: Cell::new(false),
        }
    }

    /// A part is at another stage.
    pub fn set_stage(&self, part: &Part, stage: Stage) {
        part.stage.set(stage);
        self.changed.notify_all();
    }

    /// A part is gone.
    pub fn free(&self, index: usize) {
        self.table.free(index);
        self.changed.notify_all();
    }

    /// The log, which is made where there is none.
    pub async fn open(&self, request: &Request) -> Result<Place, u32> {
        loop {
            match self.log.get() {
                Log::Ready(place) => return Ok(place),
                Log::Failed(status) => return Err(status),
                Log::Unread | Log::Settling(_) => return Err(wire::STATUS_BUSY),
                Log::Opening => self.changed.wait().await,
                Log::Absent => {
                    self.log.set(Log::Opening);
                    let made = self.make(request).await;
                    self.log.set(match made {
                        Ok(place) => Log::Ready(place),
                        // Another try may find room.
                        Err(_) => Log::Absent,
                    });
                    self.changed.notify_all();
                    made?;
                }
            }
        }
    }

    /// Makes the region, smaller where there is no room for all of it.
    async fn make(&self, request: &Request) -> Result<Place, u32> {
        let mut bytes = LOG_BYTES;
        let base = loop {
            match willow_sdk::region(REGION, bytes).await {
                Ok(base) => break base,
                Err(Error::Full) if bytes > LOG_BYTES_MIN => bytes = (bytes / 4).max(LOG_BYTES_MIN),
                Err(Error::Full) => return Err(wire::STATUS_NO_LOG),
                Err(_) => return Err(wire::STATUS_MEDIA_ERROR),
            }
        };
        let bytes = willow_sdk::region_bytes(REGION).map_err(|_| wire::STATUS_NO_LOG)?;
        let place = Place { base, chunks: chunks(bytes) };
        let superblock = self.superblock(request, base).await?;
        self.begin(request, place, superblock).await?;
        Ok(place)
    }

    /// What the media have of an earlier start.
    pub async fn superblock(&self, request: &Request, base: u64) -> Result<Option<Superblock>, u32> {
        let mut bytes = [0; Superblock::BYTES];
        request.read(base, &mut bytes).await.map_err(status)?;
        let (spu, spus) = (willow_sdk::spu_id() as u16, willow_sdk::spu_count() as u16);
        match Superblock::decode(&bytes) {
            Found::Fresh => Ok(None),
            Found::Log(superblock) if (superblock.spu, superblock.spus) == (spu, spus) => Ok(Some(superblock)),
            Found::Log(_) | Found::Foreign => Err(wire::STATUS_MEDIA_ERROR),
        }
    }

    /// The log is used from now on: its numbers of commits are new ones.
    pub async fn begin(&self, request: &Request, place: Place, before: Option<Superblock>) -> Result<(), u32> {
        let epoch = before.map_or(1, |superblock| superblock.epoch.wrapping_add(1));
        let (spu, spus) = (willow_sdk::spu_id() as u16, willow_sdk::spu_count() as u16);
        request.write(place.base, &Superblock { epoch, spu, spus }.encode()).await.map_err(status)?;
        willow_sdk::flush().await.map_err(status)?;
        self.number.set(u64::from(epoch) << COMMIT_BITS);
        self.table.set_chunks(place.chunks);
        if !self.caretaker.replace(true) && willow_sdk::background(wire::handler::CARETAKER, 0).is_err() {
            self.caretaker.set(false);
            return Err(wire::STATUS_BUSY);
        }
        Ok(())
    }

    /// The number of the next commit.
    pub fn next_number(&self) -> u64 {
        let number = self.number.get() + 1;
        self.number.set(number);
        number
    }

    /// The caretaker is to look at once.
    pub fn wake_caretaker(&self) {
        self.urgent.set(true);
        self.work.notify_all();
    }

    /// Ends the transaction that was idle longest, where nobody has asked for it for long.
    fn end_idle(&self) -> bool {
        let before_ns = willow_sdk::time_ns().saturating_sub(IDLE_NS_MIN);
        let Some(index) = self.table.idle_longest(before_ns) else { return false };
        self.free(index);
        true
    }

    /// Takes something of the table, and waits for a while where it has none; then the log is full.
    pub async fn take<T>(&self, mut take: impl FnMut(&Table) -> Option<T>) -> Result<T, u32> {
        for _ in 0..FULL_LOOKS {
            if let Some(taken) = take(&self.table) {
                return Ok(taken);
            }
            if self.end_idle() {
                continue;
            }
            self.wake_caretaker();
            willow_sdk::sleep_ns(FULL_LOOK_NS).await.map_err(status)?;
        }
        Err(wire::STATUS_FULL)
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// An operation's failure as a status.
#[cold]
#[inline(never)]
pub fn status(error: Error) -> u32 {
    match error {
        Error::Permission => wire::STATUS_PERMISSION,
        Error::Full => wire::STATUS_FULL,
        Error::Range | Error::Argument => wire::STATUS_MALFORMED,
        Error::Refused => wire::STATUS_BUSY,
        _ => wire::STATUS_MEDIA_ERROR,
    }
}
