//! Waiting for the disk under flash that is in files: on threads of their own, so that the device goes on.
//!
//! What always holds:
//! - At most one sync of a bank is under way. Who waits is told by one that was begun after it came.
//! - What waits was under way before, so its number is bounded by that of operations and of what FTLs may wait for.
//! - Flash is touched by the device's thread alone, when it takes the news.

use crate::media::file::workers::Lane;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use willow_flash_media::{Array, FileError, Status};

/// Most syncs under way, of different banks.
const SYNC_THREADS_MAX: usize = 4;

/// An erase that waits until what it rests on is on the disk.
pub(super) struct Erase {
    die: u32,
    blocks: Vec<u32>,
    /// Who waits for it.
    tag: u64,
}

/// Who waits for a sync.
pub(super) enum Waiter {
    /// A flush: the FTL has answered it.
    Flush(u32),
    Erase(Erase),
}

/// How an erase ended that had to wait; `None`: it was not done.
pub(super) type Erased = (u64, Option<Status>);

/// What a sync has brought about.
#[derive(Default)]
pub(super) struct Ended {
    /// Flushes, and whether they are durable.
    pub flushes: Vec<(u32, bool)>,
    pub erases: Vec<Erased>,
}

impl Ended {
    fn flush_of(&mut self, bank: usize, flush: u32, result: &Result<(), FileError>) {
        if let Err(error) = result {
            tracing::error!("the flash of bank {bank}: {error}");
        }
        self.flushes.push((flush, result.is_ok()));
    }
}

#[derive(Default)]
struct Bank {
    is_running: bool,
    /// For the sync that is under way.
    now: Vec<Waiter>,
    /// For the one after it.
    next: Vec<Waiter>,
}

type Waker = Arc<dyn Fn() + Send + Sync>;

/// Where syncs leave how they ended.
#[derive(Default)]
struct Mailbox {
    ended: Mutex<Vec<(usize, io::Result<()>)>>,
    waiting: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

/// All banks' syncs.
pub(super) struct Syncs {
    banks: Vec<Bank>,
    mailbox: Arc<Mailbox>,
    lane: Lane,
}

impl Syncs {
    pub fn new(banks: usize) -> Self {
        let mut places = Vec::new();
        places.resize_with(banks, Bank::default);
        Syncs { banks: places, mailbox: Arc::default(), lane: Lane::new("flash-sync", SYNC_THREADS_MAX) }
    }

    pub fn set_waker(&self, waker: Waker) {
        *self.mailbox.waker.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(waker);
    }

    /// Erases now, or, where it has to wait for the disk, says so: `None`.
    pub fn erase(
        &mut self,
        (bank, flash): (usize, &mut Array),
        (die, blocks): (u32, &[u32]),
        tag: u64,
        ended: &mut Ended,
    ) -> Option<Result<Status, FileError>> {
        if !flash.must_sync_before_erase(die, blocks) {
            return Some(flash.erase(die, blocks));
        }
        let erase = Erase { die, blocks: blocks.to_vec(), tag };
        self.wait((bank, flash), Waiter::Erase(erase), ended);
        None
    }

    /// Has somebody wait for a sync that begins from now on.
    pub fn wait(&mut self, (bank, flash): (usize, &mut Array), waiter: Waiter, ended: &mut Ended) {
        let place = &mut self.banks[bank];
        if place.is_running {
            return place.next.push(waiter);
        }
        place.now.push(waiter);
        self.begin((bank, flash), ended);
    }

    fn begin(&mut self, (bank, flash): (usize, &mut Array), ended: &mut Ended) {
        match flash.begin_sync() {
            Ok(Some(sync)) => {
                self.banks[bank].is_running = true;
                let mailbox = self.mailbox.clone();
                self.lane.give(Box::new(move |panics| {
                    let result = panics.failed(Err(io::ErrorKind::Other.into()), || sync.run());
                    let mut ended = mailbox.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    ended.push((bank, result));
                    mailbox.waiting.store(ended.len(), Ordering::Release);
                    drop(ended);
                    let waker = mailbox.waker.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
                    if let Some(waker) = waker {
                        waker();
                    }
                }));
            }
            Ok(None) => self.tell((bank, flash), Ok(()), ended),
            Err(error) => self.tell((bank, flash), Err(error), ended),
        }
    }

    /// Tells all that waited for the sync that has ended, and begins the next where others wait.
    fn tell(&mut self, (bank, flash): (usize, &mut Array), result: Result<(), FileError>, ended: &mut Ended) {
        for waiter in std::mem::take(&mut self.banks[bank].now) {
            match waiter {
                Waiter::Flush(peer) => ended.flush_of(bank, peer, &result),
                Waiter::Erase(Erase { die, blocks, tag }) => {
                    let status = if result.is_ok() { flash.erase_covered(die, &blocks).ok() } else { None };
                    ended.erases.push((tag, status));
                }
            }
        }
    }

    /// True where an erase waits for the disk.
    pub fn holds_erase(&self, bank: usize) -> bool {
        let mut waiters = self.banks[bank].now.iter().chain(&self.banks[bank].next);
        waiters.any(|waiter| matches!(waiter, Waiter::Erase(_)))
    }

    /// True where a sync has ended whose end was not taken yet.
    pub fn has_news(&self) -> bool {
        self.mailbox.waiting.load(Ordering::Acquire) > 0
    }

    /// Takes the ends of syncs.
    #[cold]
    pub fn take_news(&mut self, flash: &mut [Array], ended: &mut Ended) {
        let news = {
            let mut news = self.mailbox.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.mailbox.waiting.store(0, Ordering::Release);
            std::mem::take(&mut *news)
        };
        for (bank, result) in news {
            let Some(flash) = flash.get_mut(bank) else { continue };
            let result = flash.end_sync(result);
            self.banks[bank].is_running = false;
            self.tell((bank, flash), result, ended);
            let place = &mut self.banks[bank];
            if !place.next.is_empty() {
                place.now = std::mem::take(&mut place.next);
                self.begin((bank, flash), ended);
            }
        }
    }

    /// Erases that wait are not done: who asked for them has ended.
    pub fn forget_erases(&mut self, bank: usize, ended: &mut Ended) {
        let place = &mut self.banks[bank];
        for waiters in [&mut place.now, &mut place.next] {
            waiters.retain(|waiter| match waiter {
                Waiter::Erase(erase) => {
                    ended.erases.push((erase.tag, None));
                    false
                }
                Waiter::Flush(_) => true,
            });
        }
    }

    /// Waits for all that is under way: the device ends.
    pub fn finish(&mut self) {
        self.lane = Lane::new("flash-sync", SYNC_THREADS_MAX);
    }
}
