//! Several operations on files at once, by an endpoint of their own: submitted, then polled or waited for (as `io_submit` and
//! `io_getevents`).
//!
//! What always holds:
//! - each operation that was taken ends once, in any order; there are never more than the queue's depth;
//! - what cannot go directly is done through the kernel before submitting it returns;
//! - a sync covers the writes that had ended when it was submitted;
//! - buffers are the queue's until their operation is handed back; those of a queue that is dropped are dropped with it.

use super::agent_client::DirectError;
use super::file::{File, Way};
use super::lane::{Action, Lane, Operation, Segments};
use super::session::{Session, lock};
use super::unsynced::Covered;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most operations of a queue.
pub const DEPTH_MAX: u32 = 1024;

/// What to do.
#[derive(Debug)]
pub enum Request {
    /// Fill the buffer from this byte of the file on.
    Read {
        /// First byte.
        offset: u64,
        /// To be filled, as long as it is.
        buffer: Vec<u8>,
    },
    /// Write the buffer.
    Write {
        /// First byte.
        offset: u64,
        /// All of it.
        buffer: Vec<u8>,
    },
    /// Make what was written durable.
    Sync,
}

/// What came of an operation.
#[derive(Debug)]
pub struct Done {
    /// The number that it was submitted with.
    pub tag: u64,
    /// Bytes moved (a sync: 0), as for `pread` and `pwrite`.
    pub result: Result<usize, DirectError>,
    /// The buffer; empty where the endpoint failed.
    pub buffer: Vec<u8>,
}

struct Entry<F: AsFd> {
    file: Arc<File<F>>,
    tag: u64,
    bytes: usize,
    /// Of a sync.
    covered: Option<Covered>,
}

/// A queue.
pub struct Queue<F: AsFd = OwnedFd> {
    lane: Arc<Mutex<Lane>>,
    slots: u32,
    depth: usize,
    next: u64,
    entries: HashMap<u64, Entry<F>>,
    ended: VecDeque<Done>,
    /// The lane's way to the device is gone.
    lost: bool,
    broken: bool,
}

impl<F: AsFd> Queue<F> {
    /// A queue for at most `depth` operations.
    pub fn new(session: &Session, depth: u32) -> Result<Self, DirectError> {
        if depth == 0 || depth > DEPTH_MAX {
            return Err(Errno::INVAL.into());
        }
        let slots = (depth * 2).clamp(64, 1024);
        let lane = session.queue_lane(slots)?;
        let (entries, ended) = (HashMap::new(), VecDeque::new());
        Ok(Queue { lane, slots, depth: depth as usize, next: 0, entries, ended, lost: false, broken: false })
    }

    /// Operations that were submitted and not handed back.
    pub fn under_way(&self) -> usize {
        self.entries.len() + self.ended.len()
    }

    /// Submits an operation; EAGAIN where as many are under way as may be.
    pub fn submit(&mut self, file: &Arc<File<F>>, tag: u64, request: Request) -> Result<(), DirectError> {
        match request {
            Request::Read { offset, buffer } => self.begin(file, tag, Action::Read, offset, Segments::Owned(buffer)),
            Request::Write { offset, buffer } => self.begin(file, tag, file.writing(), offset, Segments::Owned(buffer)),
            Request::Sync => self.begin(file, tag, Action::Sync, 0, Segments::Owned(Vec::new())),
        }
    }

    /// Reads into, or writes from, memory of the caller.
    ///
    /// # Safety
    /// The ranges stay valid, and nobody else's, until the operation is handed back or the queue is dropped.
    pub unsafe fn submit_raw(
        &mut self,
        file: &Arc<File<F>>,
        tag: u64,
        writes: bool,
        offset: u64,
        ranges: Vec<(*mut u8, usize)>,
    ) -> Result<(), DirectError> {
        let action = if writes { file.writing() } else { Action::Read };
        self.begin(file, tag, action, offset, Segments::Several(ranges))
    }

    fn begin(
        &mut self,
        file: &Arc<File<F>>,
        tag: u64,
        action: Action,
        offset: u64,
        memory: Segments,
    ) -> Result<(), DirectError> {
        if self.broken {
            return Err(Errno::IO.into());
        }
        self.mend(file.session());
        if self.under_way() >= self.depth {
            return Err(Errno::AGAIN.into());
        }
        file.session().check()?;
        let bytes = memory.len();
        if !self.lost && file.allows(action, offset, bytes) {
            // The file cannot be given back between the look and the sending.
            let (_state, mapped, bytes) = match action {
                Action::Sync => {
                    let (state, mapped) = file.sync_way();
                    (state, mapped, 0)
                }
                _ => match file.way(action, offset, bytes) {
                    (state, Way::Direct(mapped, bytes)) => (state, Some(mapped), bytes),
                    (state, _) => (state, None, 0),
                },
            };
            if let Some(mapped) = mapped {
                file.note(&mapped, action);
                let covered = if action == Action::Sync { file.unsynced().begin() } else { None };
                let number = self.next;
                self.next += 1;
                let mut lane = lock(&self.lane);
                lane.begin(Operation::new(mapped, action, offset, memory, bytes, number));
                lane.send();
                self.entries.insert(number, Entry { file: file.clone(), tag, bytes, covered });
                return Ok(());
            }
        }
        let (result, memory) = otherwise(file, action, offset, memory);
        self.ended.push_back(Done { tag, result, buffer: owned(memory) });
        Ok(())
    }

    /// Hands back what has ended, without waiting; how many that were.
    pub fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        self.look();
        let count = self.ended.len();
        done.extend(self.ended.drain(..));
        count
    }

    /// Hands back what has ended, once there are `wanted`, or all, or this time is over; how many that were.
    pub fn wait(&mut self, done: &mut Vec<Done>, wanted: usize, most: Duration) -> usize {
        let begun = Instant::now();
        loop {
            self.look();
            let left = most.saturating_sub(begun.elapsed());
            if self.ended.len() >= wanted.min(self.under_way()) || left.is_zero() {
                break;
            }
            // Short, since another thread may have to drain the lane.
            let waited = lock(&self.lane).wait(left.min(Duration::from_millis(20)));
            self.judge(waited);
        }
        self.poll(done)
    }

    fn look(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let mut over = Vec::new();
        let polled = {
            let mut lane = lock(&self.lane);
            let polled = lane.poll();
            while let Some(operation) = lane.take_ended() {
                over.push(operation);
            }
            polled
        };
        for mut operation in over {
            let Some(Entry { file, tag, bytes, covered }) = self.entries.remove(&operation.tag) else { continue };
            let (result, memory) = match operation.outcome() {
                Ok(()) if operation.action == Action::Sync => {
                    (file.unsynced().synced(operation.start, covered).map(|()| bytes), operation.memory)
                }
                Ok(()) => {
                    file.done(operation.action, operation.start);
                    (Ok(bytes), operation.memory)
                }
                // The file was given back meanwhile: once more, whichever way it goes now.
                Err(DirectError::Permission) => otherwise(&file, operation.action, operation.offset, operation.memory),
                Err(error) => (Err(error), operation.memory),
            };
            self.ended.push_back(Done { tag, result, buffer: owned(memory) });
        }
        self.judge(polled);
    }

    /// What a lane's failure means.
    fn judge(&mut self, done: Result<(), DirectError>) {
        match done {
            Err(DirectError::Lost(_)) => self.lose(),
            Err(_) => self.fail(),
            Ok(()) => {}
        }
    }

    /// The way to the device is gone, over a network: what was under way is done here and now, whichever way it goes.
    fn lose(&mut self) {
        let (left, way): (Vec<Operation>, u64) = {
            let mut lane = lock(&self.lane);
            (lane.abandon().collect(), lane.way())
        };
        self.lost = true;
        for operation in left {
            let Some(Entry { file, tag, .. }) = self.entries.remove(&operation.tag) else { continue };
            file.session().lose(way);
            let (result, memory) = otherwise(&file, operation.action, operation.offset, operation.memory);
            self.ended.push_back(Done { tag, result, buffer: owned(memory) });
        }
    }

    /// A lane for one that is gone; without, operations are done as they are submitted.
    fn mend(&mut self, session: &Session) {
        if self.lost
            && let Ok(lane) = session.queue_lane(self.slots)
        {
            (self.lane, self.lost) = (lane, false);
        }
    }

    /// The endpoint has ended, and all that was under way by it.
    fn fail(&mut self) {
        self.broken = true;
        let mut left: Vec<_> = self.entries.drain().collect();
        left.sort_by_key(|(number, _)| *number);
        for (_, entry) in left {
            self.ended.push_back(Done { tag: entry.tag, result: Err(Errno::IO.into()), buffer: Vec::new() });
        }
    }
}

/// Does an operation here and now, whichever way it goes.
fn otherwise<F: AsFd>(
    file: &File<F>,
    action: Action,
    offset: u64,
    memory: Segments,
) -> (Result<usize, DirectError>, Segments) {
    match action {
        Action::Sync => (file.sync(false).map(|()| 0), memory),
        _ => file.transfer(action, offset, memory),
    }
}

fn owned(memory: Segments) -> Vec<u8> {
    match memory {
        Segments::Owned(buffer) => buffer,
        _ => Vec::new(),
    }
}
