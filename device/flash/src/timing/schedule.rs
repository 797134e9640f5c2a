//! How a die is shared: what it does next, and when a read suspends a change.

use super::engine::Timing;
use super::operation::Work;
use super::state::{DataIn, Phase, Suspended, Transfer};

/// Most waiting reads of a die that are looked at for one that no change of its block holds back.
const READS_LOOKED_AT_MAX: usize = 32;

impl Timing {
    /// Begins whatever the die can begin now.
    pub(super) fn schedule(&mut self, number: u32) {
        while self.begin_one(number) {}
    }

    /// The waiting read that goes next, by its place in the queue.
    fn next_read(&self, number: u32) -> Option<usize> {
        let die = &self.dies[number as usize];
        let looked_at = die.reads.iter().take(READS_LOOKED_AT_MAX);
        looked_at.enumerate().find(|(_, read)| !die.read_is_blocked(**read, &self.slab)).map(|(place, _)| place)
    }

    /// Whether the change at the head of the queue, or in the register, may begin as far as reads of its blocks go.
    fn next_write(&self, number: u32) -> Option<u32> {
        let die = &self.dies[number as usize];
        let write = match die.data_in {
            DataIn::Loaded(operation) => operation,
            DataIn::None => *die.writes.front()?,
            DataIn::Waiting(_) | DataIn::OnBus(_) => return None,
        };
        (!die.write_is_blocked(write, &self.slab)).then_some(write)
    }

    /// Which of both goes first.
    fn read_goes_first(&self, number: u32, read: usize, write: u32) -> bool {
        let die = &self.dies[number as usize];
        if self.parameters.read_priority {
            return die.overtaken < self.parameters.overtaking_reads_max;
        }
        self.slab[die.reads[read]].sequence < self.slab[write].sequence
    }

    /// Begins one thing; false where there is nothing.
    fn begin_one(&mut self, number: u32) -> bool {
        let cached = self.parameters.cache_operations;
        let die = &self.dies[number as usize];
        match die.phase {
            Phase::Idle => {}
            Phase::Changing(operation) => return self.suspend(number, operation) || self.load_ahead(number),
            Phase::Command(_) | Phase::Sensing(_) | Phase::Holding(_) | Phase::Suspending(_) => {
                return self.load_ahead(number);
            }
        }
        // Without a second register nothing begins while the first is in use.
        if !cached && die.data_out.is_some() {
            return false;
        }
        if let Some(suspended) = die.suspended {
            return self.read_or_resume(number, suspended);
        }
        let read = self.next_read(number);
        if !cached && matches!(die.data_in, DataIn::Waiting(_) | DataIn::OnBus(_)) {
            return self.overtake_on_bus(number, read);
        }
        match (read, self.next_write(number)) {
            (Some(read), Some(write)) if !self.read_goes_first(number, read, write) => self.begin_write(number, write),
            (Some(read), write) => {
                let overtakes = write.is_some() || self.dies[number as usize].data_in != DataIn::None;
                self.begin_read(number, read, overtakes);
                true
            }
            (None, Some(write)) => self.begin_write(number, write),
            (None, None) => false,
        }
    }

    /// A read goes before a write whose data have not begun to come.
    fn overtake_on_bus(&mut self, number: u32, read: Option<usize>) -> bool {
        let die = &self.dies[number as usize];
        let (DataIn::Waiting(write), Some(read)) = (die.data_in, read) else { return false };
        if !self.parameters.read_priority || die.overtaken >= self.parameters.overtaking_reads_max {
            return false;
        }
        self.withdraw(write);
        let die = &mut self.dies[number as usize];
        die.data_in = DataIn::None;
        die.writes.push_front(write);
        self.begin_read(number, read, true);
        true
    }

    fn begin_read(&mut self, number: u32, place: usize, overtakes: bool) {
        let die = &mut self.dies[number as usize];
        let Some(read) = die.reads.remove(place) else { return };
        die.overtaken = if overtakes { die.overtaken + 1 } else { 0 };
        die.phase = Phase::Command(read);
        let duration_ns = self.command_ns(read);
        self.request(read, Transfer::Command, duration_ns);
    }

    /// Begins the change at the head of the queue or in the register; false where it has to wait.
    fn begin_write(&mut self, number: u32, write: u32) -> bool {
        let die = &mut self.dies[number as usize];
        die.overtaken = 0;
        if die.data_in == DataIn::Loaded(write) {
            die.data_in = DataIn::None;
            self.array_begins(number, write, self.now_ns);
            return true;
        }
        if let Work::Program { .. } = self.slab[write].work {
            self.load(number, write);
            // With a cache register reads go on while the data come.
            return self.parameters.cache_operations;
        }
        die.writes.pop_front();
        die.phase = Phase::Command(write);
        // A copyback's new spare areas come with its command.
        let duration_ns = self.command_ns(write) + self.bus_ns(self.slab[write].bytes);
        self.request(write, Transfer::Command, duration_ns);
        true
    }

    /// A program's data come over the bus.
    fn load(&mut self, number: u32, write: u32) {
        let die = &mut self.dies[number as usize];
        die.writes.pop_front();
        die.data_in = DataIn::Waiting(write);
        let duration_ns = self.command_ns(write) + self.bus_ns(self.slab[write].bytes);
        self.request(write, Transfer::In, duration_ns);
    }

    /// With a cache register the next program's data come while the array is busy.
    fn load_ahead(&mut self, number: u32) -> bool {
        let die = &self.dies[number as usize];
        if !self.parameters.cache_operations || die.data_in != DataIn::None {
            return false;
        }
        let Some(&write) = die.writes.front() else { return false };
        let is_program = matches!(self.slab[write].work, Work::Program { .. });
        if !is_program || die.write_is_blocked(write, &self.slab) {
            return false;
        }
        self.load(number, write);
        true
    }

    /// The array begins an operation then.
    pub(super) fn array_begins(&mut self, number: u32, operation: u32, begin_ns: u64) {
        let p = &self.parameters;
        let cache_ns = if p.cache_operations { p.cache_busy_ns } else { 0 };
        let (phase, duration_ns) = match self.slab[operation].work {
            Work::Read { page, retries } => {
                (Phase::Sensing(operation), p.read.of(page) + u64::from(retries) * p.retry_ns + cache_ns)
            }
            Work::Program { page } => (Phase::Changing(operation), p.program.of(page) + cache_ns),
            Work::Erase => (Phase::Changing(operation), p.erase_ns),
            Work::Copyback { from, to } => (Phase::Changing(operation), p.read.of(from) + p.program.of(to)),
        };
        let die = &mut self.dies[number as usize];
        die.phase = phase;
        (die.begin_ns, die.end_ns) = (begin_ns, begin_ns + duration_ns);
        self.units.set(number as usize, die.end_ns);
    }

    /// Suspends a change for a read that waits; false where it goes on.
    fn suspend(&mut self, number: u32, operation: u32) -> bool {
        let p = &self.parameters;
        let allowed = match self.slab[operation].work {
            Work::Erase => p.suspend_erase,
            Work::Program { .. } | Work::Copyback { .. } => p.suspend_program,
            Work::Read { .. } => false,
        };
        let die = &self.dies[number as usize];
        if !allowed || die.reads.is_empty() || self.slab[operation].suspensions >= p.suspensions_max {
            return false;
        }
        if die.data_out.is_some() && !p.cache_operations {
            return false;
        }
        let left_ns = die.end_ns - self.now_ns.max(die.begin_ns);
        if left_ns < p.suspend_left_min_ns.max(1) || self.next_read(number).is_none() {
            return false;
        }
        if self.now_ns < die.begin_ns {
            // The bus still gives its command: it is suspended once it has begun.
            self.units.set(number as usize, die.begin_ns);
            return false;
        }
        let (begin_ns, end_ns) = (die.begin_ns, self.now_ns + p.suspend_ns);
        self.array_was_busy(number, operation, begin_ns, self.now_ns);
        self.slab[operation].suspensions += 1;
        self.die_use[number as usize].suspensions += 1;
        let die = &mut self.dies[number as usize];
        die.phase = Phase::Suspending(operation);
        die.suspended = Some(Suspended { operation, left_ns, since_ns: self.now_ns });
        (die.begin_ns, die.end_ns) = (self.now_ns, end_ns);
        self.units.set(number as usize, end_ns);
        true
    }

    /// A die whose change is suspended: a read, or the change goes on.
    fn read_or_resume(&mut self, number: u32, suspended: Suspended) -> bool {
        let until_ns = suspended.since_ns + self.parameters.suspended_max_ns;
        if self.now_ns < until_ns
            && let Some(read) = self.next_read(number)
        {
            self.begin_read(number, read, true);
            return true;
        }
        let resume_ns = self.parameters.resume_ns;
        let die = &mut self.dies[number as usize];
        die.suspended = None;
        die.phase = Phase::Changing(suspended.operation);
        (die.begin_ns, die.end_ns) = (self.now_ns, self.now_ns + resume_ns + suspended.left_ns);
        self.units.set(number as usize, die.end_ns);
        // Whether it is suspended again is decided when another read comes.
        false
    }
}
