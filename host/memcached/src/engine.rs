//! The tasks under way, and the flushes that they wait for.
//!
//! What always holds:
//! - a task's operation is under way, waits for room in `ready`, waits for a flush, waits for its turn, or has ended: nothing else;
//! - whoever waits for a flush waits for one that began when its own operation had ended; there is one flush of a group at a time, and
//!   all that wait share the next;
//! - a value that was read is given back before its task goes on.

use crate::command::{Style, Verb};
use crate::item::Name;
use crate::outcome::Outcome;
use crate::port::{Completion, End, Operation, Port, PortError, SPUS_UNKNOWN};
use crate::statistics::Statistics;
use crate::task::{State, Step, Task, View};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Least room for a value that is read.
pub const ROOM_BYTES_MIN: u32 = 4096 - 16;
/// Most room for one whose length is not known.
const ROOM_BYTES_MAX: u32 = crate::task::LONG_BYTES;
/// Reads after which the guess at their length is made smaller.
const READS_PER_GUESS: u32 = 4096;
/// Tasks at a time.
pub const TASKS_MAX: usize = 16 << 10;
/// Tags of operations that are no task's.
const TAG_FLUSH: u32 = 1 << 31;
const TAG_SWEEP: u32 = TAG_FLUSH | 1 << 30;
/// Between two sweeps of all that is stored.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Between two steps of a sweep.
const SWEEP_STEP: Duration = Duration::from_millis(20);

const NOT_DURABLE: &str = "SERVER_ERROR the device could not make it durable\r\n";
const GONE: &str = "SERVER_ERROR the device is gone\r\n";

/// Flushes of a group.
#[derive(Default)]
struct Group {
    /// Those that the flush under way covers.
    covered: Vec<u32>,
    /// Those that wait for the next.
    waiting: Vec<u32>,
    running: bool,
}

struct Sweep {
    spu: u16,
    from: u32,
    running: bool,
    next: Instant,
    /// The time of the last look at it.
    now: Instant,
}

/// The tasks.
pub struct Engine<P> {
    port: P,
    tasks: Vec<Option<Box<Task>>>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    groups: Vec<Group>,
    /// Connections some of whose tasks have ended.
    touched: Vec<u32>,
    completions: Vec<Completion>,
    /// Operations under way but flushes and sweeps, which take long.
    running: u32,
    durable: bool,
    data_bytes_max: usize,
    room: u32,
    reads: u32,
    sweep: Sweep,
    now_s: u32,
    /// When all is to be removed.
    clear_at: Option<u32>,
    /// What the server counts.
    pub statistics: Statistics,
}

impl<P: Port> Engine<P> {
    /// Over that port; with `durable` an answer waits for a flush.
    pub fn new(port: P, durable: bool, item_bytes_max: usize) -> Self {
        let groups = (0..port.groups()).map(|_| Group::default()).collect();
        let overhead = crate::item::HEAD_BYTES + crate::item::KEY_BYTES_MAX;
        let now = Instant::now();
        let data_bytes_max = item_bytes_max.min(port.value_bytes_max() - overhead);
        Engine {
            port,
            tasks: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            groups,
            touched: Vec::new(),
            completions: Vec::new(),
            running: 0,
            durable,
            data_bytes_max,
            room: ROOM_BYTES_MIN,
            reads: 0,
            sweep: Sweep { spu: 0, from: 0, running: false, next: now, now },
            now_s: 1,
            clear_at: None,
            statistics: Statistics::new(),
        }
    }

    /// The port.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Longest data of an item.
    pub fn data_bytes_max(&self) -> usize {
        self.data_bytes_max
    }

    /// Seconds since 1970.
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// Operations under way that end soon: worth to be waited for without sleeping.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// A task.
    pub fn task(&self, number: u32) -> &Task {
        match &self.tasks[number as usize] {
            Some(task) => task,
            None => unreachable!("task {number} has gone"),
        }
    }

    fn task_mut(&mut self, number: u32) -> &mut Task {
        match &mut self.tasks[number as usize] {
            Some(task) => task,
            None => unreachable!("task {number} has gone"),
        }
    }

    /// Begins something for a connection; `None`: there is no room for it now. `data` are what is stored.
    pub fn begin(&mut self, owner: u32, name: &Name, verb: Verb, style: Style, data: &[u8]) -> Option<u32> {
        // What was begun before goes first.
        if !self.ready.is_empty() || self.tasks.len() - self.free.len() >= TASKS_MAX {
            return None;
        }
        let mut task = Box::new(Task::new(owner, *name, verb, style, self.room));
        let State::Ready(step) = task.state else { unreachable!("a new task is ready") };
        if let (Step::Count(_), false) = (step, self.port.counts()) {
            task.state = State::Ended(Outcome::Counted(None));
            let number = self.keep(task);
            self.touched.push(owner);
            return Some(number);
        }
        let number = self.free.last().copied().unwrap_or(self.tasks.len() as u32);
        match (step, verb) {
            // Kept until it is stored: the device may have no room for the request, and be asked again.
            (Step::Write(_), Verb::Store { flags, .. }) => task.image_of(flags, data),
            (Step::Read(_), Verb::Store { .. }) => task.data.extend_from_slice(data),
            _ => {}
        }
        if !self.port.submit(number, &task.operation(step), self.now_s, &[&task.image]) {
            return None;
        }
        task.state = State::Running(step);
        self.running += 1;
        self.statistics.begun(&verb);
        let kept = self.keep(task);
        debug_assert_eq!(kept, number);
        Some(number)
    }

    /// Removes all, without anybody who waits for it; false where there is no room for it now.
    pub fn clear(&mut self) -> bool {
        let Some(name) = Name::new(b"-") else { return true };
        let style = Style::Text { quiet: true, versions: false };
        let Some(number) = self.begin(u32::MAX, &name, Verb::Clear, style, &[]) else { return false };
        self.task_mut(number).owner = None;
        true
    }

    fn keep(&mut self, task: Box<Task>) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.tasks[number as usize] = Some(task);
                number
            }
            None => {
                self.tasks.push(Some(task));
                self.tasks.len() as u32 - 1
            }
        }
    }

    /// What became of a task, once it has ended.
    pub fn outcome(&self, number: u32) -> Option<Outcome> {
        match self.task(number).state {
            State::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Appends the data of an item that was found; false where they are not there.
    pub fn append_data(&self, number: u32, bytes: usize, into: &mut Vec<u8>) -> bool {
        let task = self.task(number);
        task.value.is_some_and(|value| self.port.value(value, task.name.overhead_bytes(), bytes, into))
    }

    /// It is this task's turn in its connection: a long value may be read. True where it now is.
    pub fn turn(&mut self, number: u32) -> bool {
        let State::Turn(room) = self.task(number).state else { return false };
        self.give_back(number);
        self.task_mut(number).state = State::Ready(Step::Read(room));
        self.ready.push_back(number);
        true
    }

    fn give_back(&mut self, number: u32) {
        if let Some(value) = self.task_mut(number).value.take() {
            self.port.give_back(value);
        }
    }

    /// Forgets a task that has ended.
    pub fn forget(&mut self, number: u32) {
        debug_assert!(matches!(self.task(number).state, State::Ended(_)), "it goes on");
        self.give_back(number);
        self.tasks[number as usize] = None;
        self.free.push(number);
    }

    /// Nobody waits for a task any more; it goes when it has ended.
    pub fn abandon(&mut self, number: u32) {
        match self.task(number).state {
            State::Ended(_) | State::Turn(_) => {
                self.task_mut(number).state = State::Ended(Outcome::NotFound);
                self.forget(number);
            }
            _ => self.task_mut(number).owner = None,
        }
    }

    /// Connections some of whose tasks have ended, each perhaps more than once.
    pub fn take_touched(&mut self, into: &mut Vec<u32>) {
        into.append(&mut self.touched);
    }

    /// Whether something can be begun.
    pub fn has_room(&self) -> bool {
        self.ready.is_empty() && self.tasks.len() - self.free.len() < TASKS_MAX
    }

    /// Removes all in so many seconds.
    pub fn clear_later(&mut self, at_s: u32) {
        self.clear_at = Some(at_s);
    }

    /// Whether the time has come to remove all; asked once.
    pub fn take_clear(&mut self) -> bool {
        self.clear_at.take_if(|at| *at <= self.now_s).is_some()
    }

    /// What is under way at the device goes on; what waits is sent; what has ended is taken. The number of ends.
    pub fn pump(&mut self, now_s: u32) -> Result<usize, PortError> {
        self.now_s = now_s;
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let polled = self.port.poll(&mut completions);
        for completion in &completions {
            self.completed(completion);
        }
        let ended = completions.len();
        self.completions = completions;
        polled?;
        self.send();
        Ok(ended)
    }

    /// Sends what waits to be sent, and tells the device of it.
    pub fn send(&mut self) {
        self.send_ready();
        self.send_flushes();
        self.port.send();
    }

    fn completed(&mut self, completion: &Completion) {
        if completion.tag & TAG_SWEEP == TAG_SWEEP {
            return self.swept(completion);
        }
        if completion.tag & TAG_FLUSH != 0 {
            return self.flushed((completion.tag & !TAG_FLUSH) as usize, completion.end);
        }
        let number = completion.tag;
        self.running -= 1;
        // Of two reads of a task the first one's value is not needed any more.
        self.give_back(number);
        let Some(task) = &mut self.tasks[number as usize] else { return };
        if let State::Running(Step::Read(room)) = task.state {
            self.reads += 1;
            if completion.result > room && completion.result <= ROOM_BYTES_MAX {
                self.room = self.room.max(completion.result.next_multiple_of(4096) - 16).min(ROOM_BYTES_MAX);
            } else if self.reads >= READS_PER_GUESS {
                (self.reads, self.room) = (0, ROOM_BYTES_MIN.max(self.room / 2));
            }
        }
        let port = &self.port;
        let view = View {
            value: &|value, at, bytes, into| port.value(value, at, bytes, into),
            data_bytes_max: self.data_bytes_max,
            groups: port.groups(),
            spus: port.spus(),
        };
        task.ended(completion, &view);
        self.settle(number);
    }

    /// A task has got somewhere: on from there.
    fn settle(&mut self, number: u32) {
        let task = self.task(number);
        let (state, owner, key) = (task.state, task.owner, task.name.pair());
        let is_found = matches!(state, State::Ended(Outcome::Found(_)) | State::Flush(Outcome::Found(_)));
        if !is_found && !matches!(state, State::Turn(_)) {
            self.give_back(number);
        }
        match state {
            State::Ready(_) => self.ready.push_back(number),
            State::Flush(_) if self.durable => {
                let group = usize::from(self.port.group_of(&key));
                self.groups[group].waiting.push(number);
            }
            State::Flush(outcome) => self.end(number, outcome),
            State::Ended(outcome) => self.end(number, outcome),
            State::Turn(_) => match owner {
                Some(owner) => self.touched.push(owner),
                None => self.abandon(number),
            },
            State::Running(_) => debug_assert!(false, "it has ended its step"),
        }
    }

    fn end(&mut self, number: u32, outcome: Outcome) {
        let task = self.task_mut(number);
        task.state = State::Ended(outcome);
        let (owner, verb) = (task.owner, task.verb);
        self.statistics.ended(&verb, &outcome);
        match owner {
            Some(owner) => self.touched.push(owner),
            None => self.forget(number),
        }
    }

    fn send_ready(&mut self) {
        while let Some(&number) = self.ready.front() {
            let Some(task) = &mut self.tasks[number as usize] else { unreachable!("task {number} has gone") };
            let State::Ready(step) = task.state else { unreachable!("it waits to be sent") };
            let image: &[u8] = if matches!(step, Step::Write(_)) { &task.image } else { &[] };
            if !self.port.submit(number, &task.operation(step), self.now_s, &[image]) {
                return;
            }
            task.state = State::Running(step);
            self.running += 1;
            self.ready.pop_front();
        }
    }

    fn send_flushes(&mut self) {
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            if group.running || group.waiting.is_empty() {
                continue;
            }
            let operation = Operation::Flush { group: index as u16 };
            if !self.port.submit(TAG_FLUSH | index as u32, &operation, self.now_s, &[]) {
                return;
            }
            group.running = true;
            std::mem::swap(&mut group.covered, &mut group.waiting);
            self.statistics.flushes += 1;
        }
    }

    fn flushed(&mut self, index: usize, end: End) {
        let group = &mut self.groups[index];
        group.running = false;
        let mut covered = std::mem::take(&mut group.covered);
        for number in covered.drain(..) {
            let State::Flush(outcome) = self.task(number).state else { unreachable!("it waits for a flush") };
            match end {
                End::Done => self.end(number, outcome),
                // There was no room for it: with the next.
                End::Busy => self.groups[index].waiting.push(number),
                _ => {
                    self.give_back(number);
                    self.end(number, Outcome::Failed(NOT_DURABLE));
                }
            }
        }
        self.groups[index].covered = covered;
    }

    fn swept(&mut self, completion: &Completion) {
        let spus = self.port.spus();
        let sweep = &mut self.sweep;
        sweep.running = false;
        let wait = match completion.end {
            End::Done if completion.result > 0 => {
                sweep.from = completion.result;
                SWEEP_STEP
            }
            // The device had no room for it: the same again.
            End::Busy => SWEEP_STEP,
            // All of this processor, or it failed: the next. A port that is not told how many there are learns it by a failure.
            end if sweep.spu + 1 < spus && (end == End::Done || spus != SPUS_UNKNOWN) => {
                (sweep.spu, sweep.from) = (sweep.spu + 1, 0);
                SWEEP_STEP
            }
            _ => {
                (sweep.spu, sweep.from) = (0, 0);
                SWEEP_EVERY
            }
        };
        sweep.next = sweep.now + wait;
    }

    /// Goes on removing what has expired, where it is time. When it is to be called again.
    pub fn sweep(&mut self, now: Instant) -> Instant {
        self.sweep.now = now;
        if self.sweep.running || now < self.sweep.next {
            return self.sweep.next.max(now);
        }
        let operation = Operation::Sweep { spu: self.sweep.spu, from: self.sweep.from };
        self.sweep.running = self.port.submit(TAG_SWEEP, &operation, self.now_s, &[]);
        self.port.send();
        // Its end sets the next time; where there was no room, it is tried again.
        self.sweep.next = now + SWEEP_STEP;
        self.sweep.next
    }

    /// The device is gone: all ends, and another port takes its place.
    pub fn replace(&mut self, port: P) {
        self.port = port;
        self.ready.clear();
        self.running = 0;
        self.groups = (0..self.port.groups()).map(|_| Group::default()).collect();
        self.sweep.running = false;
    }

    /// The device is gone: all that is under way has failed, and may be done or not.
    pub fn fail_all(&mut self) {
        self.ready.clear();
        self.running = 0;
        self.groups.iter_mut().for_each(|group| *group = Group::default());
        self.sweep.running = false;
        for number in 0..self.tasks.len() as u32 {
            let Some(task) = &mut self.tasks[number as usize] else { continue };
            // Values went with the port.
            task.value = None;
            match task.state {
                State::Ended(Outcome::Found(_)) => task.state = State::Ended(Outcome::Failed(GONE)),
                State::Ended(_) => {}
                _ => self.end(number, Outcome::Failed(GONE)),
            }
        }
    }
}
