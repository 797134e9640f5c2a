//! The state machine's outside: operations in, events, completions out. How a die is shared is `schedule.rs`.

use super::operation::{Operation, Slab, Submission, Work};
use super::parameters::TimingParameters;
use super::state::{Bus, DataIn, Die, Phase, Request, Transfer};
use super::units::{NEVER, Units};
use super::{BusUse, Completion, DieUse, Lane, OPERATIONS_PER_DIE_MAX, Refused, Span};
use crate::geometry::{Geometry, PLANES_MAX};

/// Dies and buses of one medium.
#[derive(Debug)]
pub struct Timing {
    pub(super) parameters: TimingParameters,
    channels: u32,
    pub(super) slab: Slab,
    pub(super) dies: Vec<Die>,
    pub(super) buses: Vec<Bus>,
    /// Dies first, then buses.
    pub(super) units: Units,
    pub(super) now_ns: u64,
    next_sequence: u64,
    done: Vec<Completion>,
    pub(super) die_use: Vec<DieUse>,
    bus_use: Vec<BusUse>,
    energy_pj: u64,
    spans: Option<Vec<Span>>,
}

impl Timing {
    /// All at rest at time 0; geometry and parameters are validated.
    pub fn new(geometry: &Geometry, parameters: &TimingParameters) -> Timing {
        let (dies, channels) = (geometry.dies() as usize, geometry.channels as usize);
        Timing {
            parameters: *parameters,
            channels: geometry.channels,
            slab: Slab::default(),
            dies: (0..dies).map(|_| Die::new()).collect(),
            buses: (0..channels).map(|_| Bus::default()).collect(),
            units: Units::new(dies + channels),
            now_ns: 0,
            next_sequence: 0,
            done: Vec::new(),
            die_use: vec![DieUse::default(); dies],
            bus_use: vec![BusUse::default(); channels],
            energy_pj: 0,
            spans: None,
        }
    }

    /// Takes an operation at a time that is not before any event that was handled. Events before it are handled first; what they complete
    /// comes with the next [`Timing::advance`].
    pub fn submit(&mut self, now_ns: u64, submission: &Submission<'_>) -> Result<(), Refused> {
        let blocks = submission.blocks.len();
        let Some(die) = self.dies.get(submission.die as usize) else {
            return Err(Refused::NoSuch { die: submission.die, blocks: blocks as u32 });
        };
        if blocks == 0 || blocks > PLANES_MAX as usize {
            return Err(Refused::NoSuch { die: submission.die, blocks: blocks as u32 });
        }
        if die.reads.len() + die.writes.len() >= OPERATIONS_PER_DIE_MAX {
            return Err(Refused::Full(submission.die));
        }
        self.run_to(now_ns);
        let place = self.slab.insert(Operation::new(submission, self.next_sequence, self.now_ns));
        self.next_sequence += 1;
        let die = &mut self.dies[submission.die as usize];
        if submission.work.is_read() {
            die.reads.push_back(place);
        } else {
            die.writes.push_back(place);
        }
        self.schedule(submission.die);
        Ok(())
    }

    /// When something happens next; nothing does before somebody submits, where it is `None`.
    #[inline]
    pub fn next_event_ns(&self) -> Option<u64> {
        if !self.done.is_empty() {
            return Some(self.now_ns);
        }
        let first = self.units.first_ns();
        (first != NEVER).then_some(first)
    }

    /// Handles all events up to a time, and hands out what they completed, in order of time.
    pub fn advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        self.run_to(now_ns);
        completions.append(&mut self.done);
    }

    /// The power goes: operations that were changing an array, or suspended in that, by die. Nothing is under way any more.
    pub fn cut(&mut self, now_ns: u64) -> Vec<(u32, u64)> {
        self.run_to(now_ns);
        let mut changing = Vec::new();
        for (number, die) in self.dies.iter_mut().enumerate() {
            let in_array = match die.phase {
                Phase::Changing(operation) if die.begin_ns < now_ns => Some(operation),
                Phase::Suspending(operation) => Some(operation),
                _ => die.suspended.map(|suspended| suspended.operation),
            };
            changing.extend(in_array.map(|operation| (number as u32, self.slab[operation].token)));
            *die = Die::new();
            self.units.set(number, NEVER);
        }
        for (number, bus) in self.buses.iter_mut().enumerate() {
            *bus = Bus::default();
            self.units.set(self.dies.len() + number, NEVER);
        }
        self.slab.clear();
        changing
    }

    /// Operations that wait or are under way.
    pub fn under_way(&self) -> usize {
        self.slab.under_way()
    }

    /// What each die has done.
    pub fn dies(&self) -> &[DieUse] {
        &self.die_use
    }

    /// What each bus has done.
    pub fn buses(&self) -> &[BusUse] {
        &self.bus_use
    }

    /// Energy of all that was begun, picojoules.
    pub fn energy_pj(&self) -> u64 {
        self.energy_pj
    }

    /// From now on spans are kept for [`Timing::take_spans`], or not.
    pub fn set_trace(&mut self, on: bool) {
        self.spans = on.then(Vec::new);
    }

    /// The spans that ended since they were last taken; take them often, since they take memory.
    pub fn take_spans(&mut self) -> Vec<Span> {
        self.spans.as_mut().map(std::mem::take).unwrap_or_default()
    }

    #[inline]
    pub(super) fn span(&mut self, lane: Lane, operation: u32, (begin_ns, end_ns): (u64, u64), bytes: u64) {
        if let Some(spans) = &mut self.spans {
            let operation = &self.slab[operation];
            spans.push(Span { lane, name: operation.work.name(), begin_ns, end_ns, token: operation.token, bytes });
        }
    }

    fn run_to(&mut self, now_ns: u64) {
        while self.units.first_ns() <= now_ns {
            let Some(unit) = self.units.first() else { break };
            self.now_ns = self.units.first_ns();
            self.units.set(unit, NEVER);
            if unit < self.dies.len() {
                self.die_event(unit as u32);
            } else {
                self.bus_event((unit - self.dies.len()) as u32);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The array of a die has come to the end of what it was doing, or to its beginning where somebody waits for that.
    fn die_event(&mut self, number: u32) {
        let die = &mut self.dies[number as usize];
        if self.now_ns < die.end_ns {
            self.units.set(number as usize, die.end_ns);
            self.schedule(number);
            return;
        }
        let (begin_ns, end_ns) = (die.begin_ns, die.end_ns);
        let bus = number % self.channels;
        // What is requested now is chosen from together: the next command before the page that was just sensed.
        self.buses[bus as usize].in_event = true;
        match die.phase {
            Phase::Sensing(operation) => {
                self.array_was_busy(number, operation, begin_ns, end_ns);
                if self.dies[number as usize].data_out.is_none() {
                    self.send(number, operation);
                } else {
                    self.dies[number as usize].phase = Phase::Holding(operation);
                }
            }
            Phase::Changing(operation) => {
                die.phase = Phase::Idle;
                self.array_was_busy(number, operation, begin_ns, end_ns);
                self.complete(operation);
            }
            Phase::Suspending(operation) => {
                die.phase = Phase::Idle;
                if let Some(suspended) = &mut die.suspended {
                    suspended.since_ns = self.now_ns;
                }
                self.array_was_busy(number, operation, begin_ns, end_ns);
            }
            Phase::Idle | Phase::Command(_) | Phase::Holding(_) => unreachable!("an array at rest has no event"),
        }
        self.schedule(number);
        self.buses[bus as usize].in_event = false;
        if self.buses[bus as usize].has_waiting() {
            self.grant_or_wait(bus);
        }
    }

    pub(super) fn array_was_busy(&mut self, number: u32, operation: u32, begin_ns: u64, end_ns: u64) {
        self.die_use[number as usize].busy_ns += end_ns - begin_ns;
        self.span(Lane::Die(number), operation, (begin_ns, end_ns), 0);
    }

    /// A sensed page goes to the register that is sent.
    pub(super) fn send(&mut self, number: u32, operation: u32) {
        let die = &mut self.dies[number as usize];
        die.phase = Phase::Idle;
        die.data_out = Some(operation);
        let duration_ns = self.bus_ns(self.slab[operation].bytes);
        self.request(operation, Transfer::Out, duration_ns);
    }

    fn complete(&mut self, place: u32) {
        let operation = self.slab.remove(place);
        let kind = match operation.work {
            Work::Read { .. } => 0,
            Work::Program { .. } => 1,
            Work::Erase => 2,
            Work::Copyback { .. } => 3,
        };
        self.die_use[operation.die as usize].operations[kind] += 1;
        let completion =
            Completion { token: operation.token, at_ns: self.now_ns, submitted_ns: operation.submitted_ns };
        self.done.push(completion);
    }

    /// Time of bytes on a bus, rounded up.
    #[inline]
    pub(super) fn bus_ns(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * 1_000_000_000).div_ceil(self.parameters.bus_bytes_per_s)
    }

    #[inline]
    pub(super) fn command_ns(&self, operation: u32) -> u64 {
        self.parameters.command_ns * self.slab[operation].blocks().len() as u64
    }

    #[inline]
    fn bus_of(&self, operation: u32) -> u32 {
        self.slab[operation].die % self.channels
    }

    /// A transfer waits for its bus, or begins.
    pub(super) fn request(&mut self, operation: u32, transfer: Transfer, duration_ns: u64) {
        let number = self.bus_of(operation);
        let bus = &mut self.buses[number as usize];
        let sequence = bus.requests;
        bus.requests += 1;
        let request = Request { operation, transfer, duration_ns, requested_ns: self.now_ns, sequence };
        match (self.slab[operation].work.is_read(), transfer) {
            (true, Transfer::Command) => bus.commands.push_back(request),
            (true, _) => bus.for_reads.push_back(request),
            (false, _) => bus.for_writes.push_back(request),
        }
        if !bus.in_event {
            self.grant_or_wait(number);
        }
    }

    /// Somebody waits for a bus: the transfer begins, or an event is set for when the bus is free.
    fn grant_or_wait(&mut self, number: u32) {
        let bus = &self.buses[number as usize];
        if bus.current.is_none() && bus.busy_until_ns <= self.now_ns {
            self.grant(number);
        } else {
            self.units.set(self.dies.len() + number as usize, bus.busy_until_ns);
        }
    }

    /// A write that waits for the bus goes back to its die's queue.
    pub(super) fn withdraw(&mut self, operation: u32) {
        let number = self.bus_of(operation);
        self.buses[number as usize].for_writes.retain(|request| request.operation != operation);
    }

    /// The bus is free: the next transfer begins.
    fn grant(&mut self, number: u32) {
        let priority = self.parameters.read_priority;
        let most = self.parameters.overtaking_reads_max;
        loop {
            let bus = &mut self.buses[number as usize];
            let reads = if bus.commands.is_empty() { &mut bus.for_reads } else { &mut bus.commands };
            let read_first = match (reads.front(), bus.for_writes.front()) {
                (None, None) => return,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(_), Some(_)) if priority => bus.overtaken < most,
                (Some(read), Some(write)) => read.sequence < write.sequence,
            };
            let queue = if read_first { reads } else { &mut bus.for_writes };
            let Some(request) = queue.pop_front() else { return };
            bus.overtaken = if read_first && !bus.for_writes.is_empty() { bus.overtaken + 1 } else { 0 };
            let end_ns = self.now_ns + request.duration_ns;
            bus.busy_until_ns = end_ns;
            self.begin_transfer(number, &request, end_ns);
            let bus = &mut self.buses[number as usize];
            if request.transfer != Transfer::Command {
                bus.current = Some(request);
            } else if end_ns <= self.now_ns {
                // Commands that take no time.
                continue;
            }
            if bus.current.is_some() || bus.has_waiting() {
                self.units.set(self.dies.len() + number as usize, end_ns);
            }
            return;
        }
    }

    fn begin_transfer(&mut self, number: u32, request: &Request, end_ns: u64) {
        let operation = request.operation;
        let is_copyback = matches!(self.slab[operation].work, Work::Copyback { .. });
        let bytes = if request.transfer == Transfer::Command && !is_copyback { 0 } else { self.slab[operation].bytes };
        let bus_use = &mut self.bus_use[number as usize];
        bus_use.busy_ns += request.duration_ns;
        bus_use.transfers += 1;
        bus_use.bytes += u64::from(bytes);
        bus_use.waited_ns += self.now_ns - request.requested_ns;
        self.energy_pj += u64::from(bytes) * self.parameters.bus_pj_per_byte;
        self.span(Lane::Bus(number), operation, (self.now_ns, end_ns), bytes.into());
        if request.transfer != Transfer::Out {
            self.count_begin(operation);
        }
        let die = self.slab[operation].die;
        match request.transfer {
            Transfer::Command => self.array_begins(die, operation, end_ns),
            Transfer::In => self.dies[die as usize].data_in = DataIn::OnBus(operation),
            Transfer::Out => {}
        }
    }

    /// The first step of an operation.
    fn count_begin(&mut self, operation: u32) {
        let p = &self.parameters;
        let operation = &self.slab[operation];
        let pages = operation.blocks().len() as u64;
        self.energy_pj += match operation.work {
            Work::Read { retries, .. } => p.read_pj * pages * (1 + u64::from(retries)),
            Work::Program { .. } => p.program_pj * pages,
            Work::Erase => p.erase_pj * pages,
            // Its blocks are those that it reads and those that it programs.
            Work::Copyback { .. } => (p.read_pj + p.program_pj) * (pages / 2),
        };
        self.die_use[operation.die as usize].waited_ns += self.now_ns - operation.submitted_ns;
    }

    /// A transfer has ended, or commands that others waited for.
    fn bus_event(&mut self, number: u32) {
        let bus = &mut self.buses[number as usize];
        bus.in_event = true;
        if let Some(request) = bus.current.take() {
            let operation = request.operation;
            let die = self.slab[operation].die;
            if request.transfer == Transfer::Out {
                self.dies[die as usize].data_out = None;
                self.complete(operation);
                if let Phase::Holding(next) = self.dies[die as usize].phase {
                    self.send(die, next);
                }
            } else {
                self.dies[die as usize].data_in = DataIn::Loaded(operation);
            }
            self.schedule(die);
        }
        self.buses[number as usize].in_event = false;
        self.grant(number);
    }
}
