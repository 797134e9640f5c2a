//! The simulated host: its time, its processors, threads and locks, and all that waits for something. The driver
//! ([`crate::simulation`]) advances the time; tasks ([`crate::thread`]) and generators ([`crate::generator`]) begin waits here and are
//! told when they are over.
//!
//! What always holds:
//! - what is due at the same time happens in the order in which it was scheduled; nothing reads the machine's clock;
//! - a thread runs on one processor at a time, and does its work in the order in which it came; processors are given to threads in
//!   the order in which they asked (round robin, a piece of work at a time);
//! - every wait names who waits for what, so that a deadlock can be told.

use crate::trace::Trace;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use willow_device::{HostCompletion, HostRequest, HreId};
use willow_host::Upcall;
use willow_host::device_queue::View;

/// Most host threads of a simulation.
pub const THREADS_MAX: usize = 4096;
/// Most waits at once, all tasks together.
pub const WAITS_MAX: usize = 1 << 20;

/// What happens when something is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Then {
    /// A task's wait ends.
    Wait(u32),
    /// A generator's slot goes on: (generator, slot).
    Slot(u32, u32),
    /// A thread's piece of work is done.
    Work(u32),
    /// The data of a write are in the SATA buffer: (command, its serial).
    Buffered(u32, u32),
    /// The SATA port may have commands for the drive.
    Port,
    /// The wait of an upcall is over.
    NoUpcall(u32),
}

/// What a wait brings.
#[derive(Debug)]
pub(crate) enum Brought {
    Nothing,
    Completion(Box<HostCompletion>),
    View(Arc<View>),
    Upcall(Option<Upcall>),
    Flag(bool),
    Refused,
}

/// What somebody waits for, to be told where nothing can happen any more.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Time(u64),
    Processor(&'static str),
    Request { hre: HreId, what: &'static str },
    Upcall(HreId),
    Lock(u32),
    Device,
}

struct Wait {
    /// Task that waits.
    task: u32,
    what: What,
    waker: Option<Waker>,
    brought: Option<Brought>,
    /// The future was dropped: what comes goes nowhere.
    abandoned: bool,
}

/// A piece of work of a thread.
#[derive(Clone, Copy)]
struct Work {
    ns: u64,
    what: &'static str,
    then: Then,
}

struct Thread {
    name: String,
    queue: VecDeque<Work>,
    running: Option<Then>,
    /// It waits for a processor.
    queued: bool,
    busy_ns: u64,
}

/// A lock, or several of a kind (a semaphore).
struct Lock {
    name: String,
    free: u32,
    holders: Vec<u32>,
    queue: VecDeque<(Then, u32)>,
}

/// What tasks ask of the device; the driver carries it out.
pub(crate) enum Mail {
    Close(HreId),
    Request(HreId, HostRequest, u32),
    Upcall(HreId, u64, u32),
    Answer(HreId, u64, u32, u32, u32),
    Look(u32),
}

/// The simulated host.
pub(crate) struct World {
    pub now_ns: u64,
    sequence: u64,
    timers: BinaryHeap<Reverse<(u64, u64, Then)>>,
    /// What is due now, in order.
    pub fired: VecDeque<Then>,
    pub mail: VecDeque<Mail>,
    waits: Vec<Option<Wait>>,
    free_waits: Vec<u32>,
    threads: Vec<Thread>,
    idle_processors: u32,
    processors: u32,
    runnable: VecDeque<u32>,
    locks: Vec<Lock>,
    /// The task that is being polled.
    pub task: u32,
    pub trace: Option<Trace>,
    /// Interrupts are taken by these threads in turn, one a processor.
    interrupts: Vec<u32>,
    next_interrupt: usize,
    /// Time that threads spent polling for completions, while they could have slept.
    pub polled_ns: u64,
}

impl World {
    pub fn new(processors: u32, trace: Option<Trace>) -> Self {
        let mut world = World {
            now_ns: 0,
            sequence: 0,
            timers: BinaryHeap::new(),
            fired: VecDeque::new(),
            mail: VecDeque::new(),
            waits: Vec::new(),
            free_waits: Vec::new(),
            threads: Vec::new(),
            idle_processors: processors,
            processors,
            runnable: VecDeque::new(),
            locks: Vec::new(),
            task: u32::MAX,
            trace,
            interrupts: Vec::new(),
            next_interrupt: 0,
            polled_ns: 0,
        };
        for processor in 0..processors {
            let thread = world.thread(format!("interrupts {processor}"));
            world.interrupts.push(thread);
        }
        world
    }

    /// A new thread of the host.
    pub fn thread(&mut self, name: String) -> u32 {
        assert!(self.threads.len() < THREADS_MAX, "more than {THREADS_MAX} host threads");
        if let Some(trace) = &mut self.trace {
            trace.host_lane(self.threads.len() as u32, &name);
        }
        self.threads.push(Thread { name, queue: VecDeque::new(), running: None, queued: false, busy_ns: 0 });
        self.threads.len() as u32 - 1
    }

    pub fn thread_name(&self, thread: u32) -> &str {
        self.threads.get(thread as usize).map_or("nobody", |thread| &thread.name)
    }

    /// The thread that takes the next interrupt.
    #[inline]
    pub fn interrupt_thread(&mut self) -> u32 {
        self.next_interrupt =
            if self.next_interrupt + 1 >= self.interrupts.len() { 0 } else { self.next_interrupt + 1 };
        self.interrupts[self.next_interrupt]
    }

    /// Schedules.
    #[inline]
    pub fn at(&mut self, at_ns: u64, then: Then) {
        if at_ns <= self.now_ns {
            return self.fired.push_back(then);
        }
        self.sequence += 1;
        self.timers.push(Reverse((at_ns, self.sequence, then)));
    }

    /// When the next thing is due that is not due yet.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Goes forward in time; what is due then is in `fired`.
    #[inline(always)]
    pub fn advance(&mut self, to_ns: u64) {
        debug_assert!(to_ns >= self.now_ns);
        self.now_ns = to_ns;
        while let Some(&Reverse((at_ns, _, then))) = self.timers.peek()
            && at_ns <= to_ns
        {
            self.timers.pop();
            self.fired.push_back(then);
        }
    }

    /// Work of a thread: `then` when it is done.
    #[inline]
    pub fn work(&mut self, thread: u32, ns: u64, what: &'static str, then: Then) {
        let of = &mut self.threads[thread as usize];
        of.queue.push_back(Work { ns, what, then });
        if of.running.is_none() && !of.queued {
            of.queued = true;
            self.runnable.push_back(thread);
            self.dispatch();
        }
    }

    /// Gives idle processors to threads that wait for one.
    fn dispatch(&mut self) {
        while self.idle_processors > 0
            && let Some(thread) = self.runnable.pop_front()
        {
            let of = &mut self.threads[thread as usize];
            of.queued = false;
            let Some(work) = of.queue.pop_front() else { continue };
            of.running = Some(work.then);
            of.busy_ns += work.ns;
            self.idle_processors -= 1;
            if work.ns > 0
                && let Some(trace) = &mut self.trace
            {
                trace.host(thread, work.what, self.now_ns, self.now_ns + work.ns);
            }
            self.at(self.now_ns + work.ns, Then::Work(thread));
        }
    }

    /// A thread's piece of work is done.
    #[inline]
    pub fn work_done(&mut self, thread: u32) -> Option<Then> {
        let of = &mut self.threads[thread as usize];
        let then = of.running.take();
        self.idle_processors += 1;
        if !of.queue.is_empty() {
            of.queued = true;
            self.runnable.push_back(thread);
        }
        self.dispatch();
        then
    }

    /// A new lock with `permits` holders at once.
    pub fn lock(&mut self, name: String, permits: u32) -> u32 {
        self.locks.push(Lock { name, free: permits, holders: Vec::new(), queue: VecDeque::new() });
        self.locks.len() as u32 - 1
    }

    /// Takes a lock: `then`, now or when it is free, in the order of asking. `who` is the thread that will hold it.
    pub fn acquire(&mut self, lock: u32, who: u32, then: Then) {
        let of = &mut self.locks[lock as usize];
        if of.free > 0 {
            of.free -= 1;
            of.holders.push(who);
            self.fired.push_back(then);
        } else {
            of.queue.push_back((then, who));
        }
    }

    /// Gives it back; it goes to the next in line.
    pub fn release(&mut self, lock: u32, who: u32) {
        let of = &mut self.locks[lock as usize];
        if let Some(place) = of.holders.iter().position(|holder| *holder == who) {
            of.holders.remove(place);
        }
        match of.queue.pop_front() {
            Some((then, who)) => {
                of.holders.push(who);
                self.fired.push_back(then);
            }
            None => of.free += 1,
        }
    }

    /// A new wait of the task that is being polled.
    pub fn begin_wait(&mut self, what: What) -> u32 {
        let wait = Wait { task: self.task, what, waker: None, brought: None, abandoned: false };
        match self.free_waits.pop() {
            Some(key) => {
                self.waits[key as usize] = Some(wait);
                key
            }
            None => {
                assert!(self.waits.len() < WAITS_MAX, "more than {WAITS_MAX} waits of tasks at once");
                self.waits.push(Some(wait));
                self.waits.len() as u32 - 1
            }
        }
    }

    /// What a wait has brought, or the waker is kept.
    pub fn poll_wait(&mut self, key: u32, waker: &Waker) -> Option<Brought> {
        let wait = self.waits[key as usize].as_mut()?;
        match wait.brought.take() {
            Some(brought) => {
                self.waits[key as usize] = None;
                self.free_waits.push(key);
                Some(brought)
            }
            None => {
                if !wait.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
                    wait.waker = Some(waker.clone());
                }
                None
            }
        }
    }

    /// Nobody waits any more.
    pub fn abandon_wait(&mut self, key: u32) {
        let Some(wait) = self.waits[key as usize].as_mut() else { return };
        if wait.brought.is_some() {
            self.waits[key as usize] = None;
            self.free_waits.push(key);
        } else {
            wait.abandoned = true;
            wait.waker = None;
        }
    }

    /// True while the wait lasts.
    pub fn is_waiting(&self, key: u32) -> bool {
        self.waits[key as usize].as_ref().is_some_and(|wait| wait.brought.is_none() && !wait.abandoned)
    }

    /// A wait is over. Returns what it would have brought where nobody waits any more.
    pub fn end_wait(&mut self, key: u32, brought: Brought) -> Option<Brought> {
        let wait = self.waits[key as usize].as_mut()?;
        if wait.abandoned {
            self.waits[key as usize] = None;
            self.free_waits.push(key);
            return Some(brought);
        }
        wait.brought = Some(brought);
        if let Some(waker) = wait.waker.take() {
            waker.wake();
        }
        None
    }

    /// For each unfinished task: what it waits for, as text.
    pub fn waits_of(&self, task: u32) -> Vec<String> {
        let pending = self.waits.iter().flatten().filter(|wait| wait.task == task && wait.brought.is_none());
        pending.filter(|wait| !wait.abandoned).map(|wait| self.tell(&wait.what)).collect()
    }

    fn tell(&self, what: &What) -> String {
        match what {
            What::Time(at_ns) => format!("the time {at_ns} ns"),
            What::Processor(what) => format!("a processor to do \"{what}\""),
            What::Request { hre, what } => format!("the device to answer \"{what}\" on endpoint {:#x}", hre.0),
            What::Upcall(hre) => format!("an upcall on endpoint {:#x}", hre.0),
            What::Device => "the device".to_owned(),
            What::Lock(lock) => self.tell_lock(*lock),
        }
    }

    /// A lock and who holds it.
    pub fn tell_lock(&self, lock: u32) -> String {
        let of = &self.locks[lock as usize];
        let holders: Vec<&str> = of.holders.iter().map(|thread| self.thread_name(*thread)).collect();
        match holders.as_slice() {
            [] => format!("lock \"{}\", which nobody holds", of.name),
            _ => format!("lock \"{}\", held by {}", of.name, holders.join(", ")),
        }
    }

    /// Processors and the time that all of them worked, without polling.
    pub fn processor_time(&self) -> (u32, u64) {
        (self.processors, self.threads.iter().map(|thread| thread.busy_ns).sum())
    }
}
