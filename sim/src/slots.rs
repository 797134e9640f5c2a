//! The way of a generator's operation through its stages ([`Stage`]): what a task would do, without a task.
//!
//! What always holds: a slot is in one stage, and something will move it on: a time, a lock, the device, or the end of another operation.

use crate::direct::Ended;
use crate::generator::{Next, Stage};
use crate::operation::{self, Operation};
use crate::simulation::{Owner, Simulation, SimulationError};
use crate::thread::BlockTarget;
use crate::world::{Then, World};
use willow_device::{HostCompletion, HreId};

impl Simulation {
    /// A generator's slot goes on by one stage, or more where they take no time: from the device's answer to the next operation that is
    /// sent, the stages are tried in the order in which they follow one another.
    pub(crate) fn advance(&mut self, world: &mut World, number: u32, index: u32) {
        let generator = &mut self.generators[number as usize];
        let path = generator.path;
        let slot = &mut generator.slots[index as usize];
        let then = Then::Slot(number, index);
        if matches!(slot.stage, Stage::Device | Stage::Port) {
            slot.stage = Stage::Interrupt;
            let ns = self.parameters.interrupt_ns(path);
            if ns > 0 {
                let thread = world.interrupt_thread();
                return world.work(thread, ns, "interrupt", then);
            }
        }
        if slot.stage == Stage::Interrupt {
            slot.stage = Stage::Completing;
            let write = slot.operation.is_write();
            let ns = self.parameters.complete_ns(path, write, slot.operation.bytes().into());
            if ns > 0 {
                let what = if write { "complete write" } else { "complete read" };
                return world.work(slot.thread, ns, what, then);
            }
        }
        if slot.stage == Stage::Completing {
            if slot.holds_lock {
                slot.holds_lock = false;
                world.release(slot.file_lock, slot.thread);
            }
            slot.stage = Stage::Idle;
            let (operation, due_ns) = (slot.operation, slot.due_ns);
            generator.count(&operation, due_ns, world.now_ns - self.run_began_ns);
        }
        let slot = &mut generator.slots[index as usize];
        if slot.stage == Stage::Idle {
            let now_ns = world.now_ns - self.run_began_ns;
            let next = match now_ns >= generator.duration_ns {
                true => Next::End,
                false => generator.source.next(now_ns, slot.thread_index as usize),
            };
            match next {
                Next::Now(operation) => (slot.operation, slot.due_ns, slot.stage) = (operation, now_ns, Stage::Early),
                Next::At(at_ns, operation) => {
                    (slot.operation, slot.due_ns, slot.stage) = (operation, at_ns, Stage::Early);
                    if at_ns > now_ns {
                        return world.at(self.run_began_ns.saturating_add(at_ns), then);
                    }
                }
                Next::End | Next::Broken(_) => {
                    if let Next::Broken(what) = next {
                        let workload = generator.name.clone();
                        self.broken.get_or_insert(SimulationError::Workload { workload, what });
                    }
                    slot.stage = Stage::Over;
                    generator.active -= 1;
                    self.generators_left -= usize::from(generator.active == 0);
                    return;
                }
            }
        }
        let (write, bytes) = (slot.operation.is_write(), u64::from(slot.operation.bytes()));
        if slot.stage == Stage::Early {
            if let Some(what) = check(&slot.operation, self.block.as_ref(), self.kv.is_some()) {
                let workload = generator.name.clone();
                self.broken.get_or_insert(SimulationError::Workload { workload, what });
                return;
            }
            slot.stage = Stage::Locking;
            if let Operation::Write { offset, .. } = slot.operation
                && self.parameters.is_exclusive(path, true, offset, bytes)
            {
                slot.holds_lock = true;
                return world.acquire(slot.file_lock, slot.thread, then);
            }
        }
        if slot.stage == Stage::Locking {
            slot.stage = Stage::Submitting;
            let ns = self.parameters.submit_ns(path, write, bytes);
            if ns > 0 {
                return world.work(slot.thread, ns, if write { "submit write" } else { "submit read" }, then);
            }
        }
        if matches!(slot.stage, Stage::Submitting | Stage::Refused) {
            if slot.direct.is_none() && self.port.is_some() && path.is_of_the_kernel() && slot.operation.is_of_blocks()
            {
                return self.to_port(world, (number, index));
            }
            let mut buffer = std::mem::take(&mut slot.buffer);
            if write {
                buffer.resize(bytes as usize, 0x5a);
            }
            slot.sent_ns = world.now_ns;
            let (hre, operation) = (slot.hre, slot.operation);
            match (slot.direct.as_mut(), operation) {
                (Some(direct), Operation::Read { .. } | Operation::Write { .. }) => {
                    direct.begin(slot.stage == Stage::Submitting, buffer);
                    self.send_direct(world.now_ns, (number, index));
                }
                _ => self.send(world.now_ns, (number, index), hre, operation, buffer),
            }
        }
    }

    #[inline(always)]
    fn send(&mut self, now_ns: u64, (number, index): (u32, u32), hre: HreId, operation: Operation, buffer: Vec<u8>) {
        let request = match (operation, &self.block, &self.kv) {
            (Operation::Read { offset, .. } | Operation::Write { offset, .. }, Some(block), _) => {
                let request =
                    operation::block_request(block, operation.is_write(), (offset, operation.bytes()), buffer);
                return match self.submit(now_ns, hre, request, Owner::Slot(number, index)) {
                    Ok(()) => self.generators[number as usize].slots[index as usize].stage = Stage::Device,
                    Err(request) => {
                        self.generators[number as usize].slots[index as usize].buffer = request.buffer;
                        self.refused(number, index);
                    }
                };
            }
            (Operation::Flush | Operation::Deallocate { .. }, Some(block), _) => {
                Ok(operation::plain_request(block, operation, buffer))
            }
            (_, _, Some(kv)) => operation::kv_request(kv, operation, buffer),
            _ => Err("the device has no such namespace".to_owned()),
        };
        let sent = request.map(|request| self.submit(now_ns, hre, request, Owner::Slot(number, index)));
        let generator = &mut self.generators[number as usize];
        let slot = &mut generator.slots[index as usize];
        match sent {
            Ok(Ok(())) => slot.stage = Stage::Device,
            Ok(Err(request)) => {
                slot.buffer = request.buffer;
                self.refused(number, index);
            }
            Err(what) => {
                let workload = generator.name.clone();
                self.broken.get_or_insert(SimulationError::Workload { workload, what });
            }
        }
    }

    /// The device takes no more: tried again when a request of this generator has ended. Where none is under way, there is no room at
    /// all.
    pub(crate) fn refused(&mut self, number: u32, index: u32) {
        let generator = &mut self.generators[number as usize];
        generator.slots[index as usize].stage = Stage::Refused;
        generator.refused += 1;
        if !generator.slots.iter().any(|slot| slot.stage == Stage::Device) {
            let what = "the device takes none of its requests".to_owned();
            let workload = generator.name.clone();
            self.broken.get_or_insert(SimulationError::Workload { workload, what });
        }
    }

    #[inline(always)]
    pub(crate) fn completed(&mut self, world: &mut World, number: u32, index: u32, mut completion: HostCompletion) {
        let generator = &mut self.generators[number as usize];
        let slot = &mut generator.slots[index as usize];
        if let Some(what) = operation::failure(&slot.operation, &completion) {
            let workload = generator.name.clone();
            self.broken.get_or_insert(SimulationError::Workload { workload, what });
            return;
        }
        let buffer = std::mem::take(&mut completion.buffer);
        match slot.direct.as_mut().filter(|direct| direct.is_under_way()) {
            None => slot.buffer = buffer,
            Some(direct) => match direct.ended(buffer) {
                Ended::All(buffer) => slot.buffer = buffer,
                Ended::MoreToSend => return self.send_direct(world.now_ns, (number, index)),
                Ended::MoreToEnd => return,
            },
        }
        if self.parameters.polls(generator.path) {
            world.polled_ns += world.now_ns - slot.sent_ns;
        }
        world.fired.push_back(Then::Slot(number, index));
        if generator.refused > 0 {
            let refused = generator.slots.iter().position(|slot| slot.stage == Stage::Refused);
            if let Some(refused) = refused {
                generator.refused -= 1;
                world.fired.push_back(Then::Slot(number, refused as u32));
            }
        }
    }
}

/// Why an operation cannot be sent.
#[inline]
fn check(operation: &Operation, block: Option<&BlockTarget>, kv: bool) -> Option<String> {
    match (*operation, block) {
        (Operation::Flush, Some(_)) => None,
        (
            Operation::Read { offset, bytes }
            | Operation::Write { offset, bytes }
            | Operation::Deallocate { offset, bytes },
            Some(block),
        ) => {
            let unit = u64::from(block.block_bytes) - 1;
            if bytes == 0 || (offset | u64::from(bytes)) & unit != 0 {
                return Some(format!("{operation:?} is not made of whole blocks of {} bytes", block.block_bytes));
            }
            let past = offset.checked_add(bytes.into()).is_none_or(|end| end > block.bytes);
            past.then(|| format!("{operation:?} goes past the end of the namespace, which has {} bytes", block.bytes))
        }
        (Operation::Get { .. } | Operation::Put { .. }, _) => {
            (!kv).then(|| "the device has no key-value namespace".to_owned())
        }
        (_, None) => Some("the device has no block namespace".to_owned()),
    }
}
