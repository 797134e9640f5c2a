//! The namespaces that are open on this SPU. Each takes some 4 KiB of local memory, so only [`OPEN_MAX`] are open at a time:
//! the one that was not used for the longest time is closed in order to open another.
//!
//! What always holds: a store is opened, closed and recovered only while no request uses it; requests wait meanwhile.

use crate::bank::{Bank, Failure};
use crate::lock::Waiters;
use crate::store::Store;
use core::cell::Cell;

/// Namespaces that are open at a time.
pub const OPEN_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Unused.
    Empty,
    /// Serves requests.
    Open,
    /// Being opened, closed or dropped: requests wait.
    Changing,
}

struct Seat {
    nsid: Cell<u32>,
    phase: Cell<Phase>,
    users: Cell<u32>,
    used_last: Cell<u64>,
    /// The store's sequence number when [`Table::rest`] looked at it last.
    rested_at: Cell<u64>,
    store: Store,
}

impl Seat {
    const fn new() -> Self {
        Seat {
            nsid: Cell::new(0),
            phase: Cell::new(Phase::Empty),
            users: Cell::new(0),
            used_last: Cell::new(0),
            rested_at: Cell::new(0),
            store: Store::new(),
        }
    }
}

/// The open namespaces.
pub struct Table {
    seats: [Seat; OPEN_MAX],
    /// The seat that was used last.
    latest: Cell<usize>,
    turn: Cell<u64>,
    waiters: Waiters,
}

/// A namespace in use by a request.
pub struct Use<'a> {
    seat: &'a Seat,
    waiters: &'a Waiters,
}

impl core::ops::Deref for Use<'_> {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.seat.store
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.seat.users.set(self.seat.users.get() - 1);
        self.waiters.changed();
    }
}

/// Has a seat alone; leaves it in the phase that was set last.
struct Change<'a> {
    seat: &'a Seat,
    after: Phase,
    waiters: &'a Waiters,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.seat.phase.set(self.after);
        self.waiters.changed();
    }
}

enum Step<'a> {
    Use(Use<'a>),
    Open(Change<'a>),
    Evict(Change<'a>),
}

impl Table {
    /// None open.
    pub const fn new() -> Self {
        Table {
            seats: [const { Seat::new() }; OPEN_MAX],
            latest: Cell::new(0),
            turn: Cell::new(0),
            waiters: Waiters::new(),
        }
    }

    fn change<'a>(&'a self, seat: &'a Seat) -> Change<'a> {
        seat.phase.set(Phase::Changing);
        Change { seat, after: Phase::Empty, waiters: &self.waiters }
    }

    /// Lets a request use a namespace; opens it where it is not open.
    pub async fn enter<B: Bank>(&self, bank: &B, nsid: u32) -> Result<Use<'_>, Failure> {
        if nsid == 0 {
            return Err(Failure::NoNamespace);
        }
        loop {
            let step = match self.step(nsid) {
                Some(step) => step,
                None => self.waiters.until(|| self.step(nsid)).await,
            };
            match step {
                Step::Use(used) => return Ok(used),
                Step::Open(mut change) => {
                    let region = bank.region(nsid).await?;
                    change.seat.store.open(bank, region).await?;
                    change.after = Phase::Open;
                }
                Step::Evict(change) => {
                    // What cannot be closed in order is recovered when it is next opened.
                    let _ = change.seat.store.close(bank).await;
                }
            }
        }
    }

    /// The namespace that was used last, where it is that one and open.
    #[inline]
    fn latest(&self, nsid: u32) -> Option<&Seat> {
        let seat = &self.seats[self.latest.get() % OPEN_MAX];
        let usable = seat.nsid.get() == nsid && seat.phase.get() == Phase::Open && !seat.store.damaged.get();
        usable.then_some(seat)
    }

    /// Lets a request use the namespace that was used last, where it is that one and open.
    #[inline]
    pub fn try_enter(&self, nsid: u32) -> Option<Use<'_>> {
        Some(self.used(self.latest(nsid)?))
    }

    /// The same for what will be through before anything else runs: nothing keeps the namespace open.
    #[inline]
    pub fn at_once(&self, nsid: u32) -> Option<&Store> {
        let seat = self.latest(nsid)?;
        seat.used_last.set(self.turn.get());
        Some(&seat.store)
    }

    #[inline]
    fn used<'a>(&'a self, seat: &'a Seat) -> Use<'a> {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        seat.users.set(seat.users.get() + 1);
        seat.used_last.set(turn);
        Use { seat, waiters: &self.waiters }
    }

    fn step(&self, nsid: u32) -> Option<Step<'_>> {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        let taken = |seat: &&Seat| seat.phase.get() != Phase::Empty;
        let place = self.seats.iter().position(|seat| seat.nsid.get() == nsid && taken(&seat));
        if let Some(place) = place {
            let seat = &self.seats[place];
            if seat.phase.get() != Phase::Open {
                return None;
            }
            if seat.store.damaged.get() {
                return (seat.users.get() == 0).then(|| Step::Open(self.change(seat)));
            }
            self.latest.set(place);
            return Some(Step::Use(self.used(seat)));
        }
        if let Some(seat) = self.seats.iter().find(|seat| !taken(seat)) {
            seat.nsid.set(nsid);
            seat.used_last.set(turn);
            return Some(Step::Open(self.change(seat)));
        }
        let idle = |seat: &&Seat| seat.phase.get() == Phase::Open && seat.users.get() == 0;
        let oldest = self.seats.iter().filter(idle).min_by_key(|seat| seat.used_last.get())?;
        Some(Step::Evict(self.change(oldest)))
    }

    /// Takes an open seat alone, once its requests are through.
    async fn alone<'a>(&'a self, seat: &'a Seat, nsid: u32) -> Option<Change<'a>> {
        self.waiters
            .until(|| match seat.phase.get() {
                Phase::Empty => Some(None),
                _ if seat.nsid.get() != nsid => Some(None),
                Phase::Open if seat.users.get() == 0 => Some(Some(self.change(seat))),
                _ => None,
            })
            .await
    }

    /// Forgets a namespace that was deleted.
    pub async fn forget(&self, nsid: u32) {
        for seat in &self.seats {
            if seat.nsid.get() == nsid {
                drop(self.alone(seat, nsid).await);
            }
        }
    }

    /// Closes in order each namespace in which nothing was stored or deleted since this was called last, and leaves it open for requests: a
    /// crash finds it as it is then, with nothing to recover. True where there is one that is not closed in order: it is to be called again.
    pub async fn rest<B: Bank>(&self, bank: &B) -> bool {
        for seat in &self.seats {
            self.rest_one(bank, seat).await;
        }
        // One that is damaged is opened anew before its next use, and told of then.
        let unclean = |seat: &Seat| !seat.store.clean.get() && !seat.store.damaged.get();
        self.seats.iter().any(|seat| seat.phase.get() != Phase::Empty && unclean(seat))
    }

    async fn rest_one<B: Bank>(&self, bank: &B, seat: &Seat) {
        let store = &seat.store;
        let sequence = store.sequence.get();
        let known = seat.rested_at.replace(sequence);
        let is_quiet = || store.sequence.get() == sequence && !store.damaged.get();
        if seat.phase.get() != Phase::Open || store.clean.get() || known != sequence || !is_quiet() {
            return;
        }
        {
            // As a request, beside others: it may take as long as there is to do.
            seat.users.set(seat.users.get() + 1);
            let used = Use { seat, waiters: &self.waiters };
            if !matches!(used.empty_limbo(bank, is_quiet).await, Ok(true)) {
                return;
            }
        }
        if seat.phase.get() == Phase::Open && seat.users.get() == 0 && is_quiet() {
            let mut change = self.change(seat);
            change.after = Phase::Open;
            if store.close(bank).await.is_err() {
                store.damaged.set(true);
            }
        }
    }

    /// Closes all that is open.
    pub async fn close_all<B: Bank>(&self, bank: &B) {
        for seat in &self.seats {
            let nsid = seat.nsid.get();
            if let Some(change) = self.alone(seat, nsid).await {
                let _ = change.seat.store.close(bank).await;
            }
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}
