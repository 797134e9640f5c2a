//! From one moment at which something happens to the next, and all that is due at each: the host's events, the tasks, the device.
//!
//! What always holds: time goes forward only when nothing more is due; a moment that never ends is an error.

use super::*;
use std::sync::MutexGuard;

impl Simulation {
    /// Goes through time until all is done (`settling`: until nothing happens any more), or up to `stop_ns`.
    pub(super) fn go_on(&mut self, settling: bool, stop_ns: u64) -> Result<(), SimulationError> {
        let shared = self.world.clone();
        let mut world = shared.lock();
        loop {
            world = self.moment(&shared, world)?;
            if !settling && self.tasks_left == 0 && self.generators_left == 0 && self.port_is_idle() {
                return Ok(());
            }
            let mut until_ns = world.next_ns();
            if stop_ns < u64::MAX {
                match until_ns.into_iter().chain(self.device_ns).min() {
                    Some(next_ns) if next_ns > stop_ns => {
                        let now_ns = world.now_ns;
                        world.advance(stop_ns.max(now_ns));
                        return Ok(());
                    }
                    Some(_) => until_ns = Some(until_ns.map_or(stop_ns, |until_ns| until_ns.min(stop_ns))),
                    None => {}
                }
            }
            if self.timed && self.device_ns.is_some_and(|at_ns| until_ns.is_none_or(|until_ns| at_ns <= until_ns)) {
                self.run_device_until(&mut world, until_ns);
            } else {
                let next = if self.timed { until_ns } else { until_ns.into_iter().chain(self.device_ns).min() };
                match next {
                    Some(next) => world.advance(next),
                    None if settling => return Ok(()),
                    None => return Err(self.deadlock(&world)),
                }
            }
        }
    }

    /// Does all that is due at this moment. The world is given to the tasks while there are any to poll, and comes back.
    #[inline]
    pub(super) fn moment<'a>(
        &mut self,
        shared: &'a Shared,
        mut world: MutexGuard<'a, World>,
    ) -> Result<MutexGuard<'a, World>, SimulationError> {
        let mut rounds = 0;
        loop {
            let mut worked = self.host_events(&mut world);
            if self.tasks_left > 0 || !world.mail.is_empty() {
                drop(world);
                worked |= self.poll_tasks(&mut rounds)?;
                worked |= self.carry_mail(shared);
                world = shared.lock();
            } else if self.timed {
                // Nothing but the device can bring about more.
                worked = false;
            }
            if !self.timed {
                worked |= self.run_device_now(&mut world);
            }
            if let Some(error) = self.broken.take() {
                return Err(error);
            }
            if !worked {
                return Ok(world);
            }
            rounds += 1;
            if rounds > ROUNDS_AT_ONCE_MAX {
                return Err(SimulationError::Livelock { now_ns: world.now_ns, who: "the device".to_owned() });
            }
        }
    }

    /// Polls the tasks that were woken; true where there were any.
    fn poll_tasks(&mut self, rounds: &mut u64) -> Result<bool, SimulationError> {
        let mut worked = false;
        while self.tasks_left > 0
            && let Some(task) = self.ready.pop()
        {
            self.poll(task);
            worked = true;
            *rounds += 1;
            if *rounds > ROUNDS_AT_ONCE_MAX {
                let who = self.tasks[task as usize].as_ref().map_or("a task", |task| &task.name).to_owned();
                return Err(SimulationError::Livelock { now_ns: self.now_ns(), who });
            }
        }
        Ok(worked)
    }

    /// All that is due at the host.
    #[inline]
    pub(super) fn host_events(&mut self, world: &mut World) -> bool {
        let mut worked = false;
        while let Some(then) = world.fired.pop_front() {
            worked = true;
            self.fire(world, then);
        }
        worked
    }

    #[inline]
    pub(super) fn fire(&mut self, world: &mut World, then: Then) {
        match then {
            Then::Slot(generator, slot) => self.advance(world, generator, slot),
            Then::Work(thread) => {
                if let Some(then) = world.work_done(thread) {
                    self.fire(world, then);
                }
            }
            Then::Buffered(command, serial) => self.buffered(world, command, serial),
            Then::Port => self.pump(world),
            Then::Wait(key) => {
                world.end_wait(key, Brought::Nothing);
            }
            Then::NoUpcall(key) => {
                if world.is_waiting(key) {
                    self.upcalls.retain(|(_, other)| *other != key);
                    world.end_wait(key, Brought::Upcall(None));
                }
            }
        }
    }

    pub(super) fn poll(&mut self, number: u32) {
        let Some(task) = self.tasks[number as usize].as_mut() else { return };
        self.world.lock().task = number;
        let waker = task.waker.clone();
        let done = task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        self.world.lock().task = u32::MAX;
        if done {
            self.tasks[number as usize] = None;
            self.tasks_left -= 1;
        }
    }

    #[inline(always)]
    pub(super) fn own(&mut self, owner: Owner) -> u64 {
        match self.free_owner {
            NO_OWNER => {
                self.owners.push(owner);
                self.owners.len() as u64 - 1
            }
            free => {
                if let Owner::Free(next) = self.owners[free as usize] {
                    self.free_owner = next;
                }
                self.owners[free as usize] = owner;
                u64::from(free)
            }
        }
    }

    #[inline(always)]
    pub(super) fn disown(&mut self, tag: u64) -> Option<Owner> {
        let place = self.owners.get_mut(tag as usize)?;
        let owner = std::mem::replace(place, Owner::Free(self.free_owner));
        self.free_owner = tag as u32;
        Some(owner)
    }

    #[inline(always)]
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        hre: HreId,
        mut request: HostRequest,
        owner: Owner,
    ) -> Result<(), HostRequest> {
        self.device.set_time(now_ns);
        request.tag = self.own(owner);
        let tag = request.tag;
        // A generator's operations are looked at for their times alone.
        let sent = match owner {
            Owner::Slot(..) | Owner::Command(_) => self.device.submit_unread(hre, request),
            _ => self.device.submit(hre, request),
        };
        match sent {
            Ok(()) => {
                // It has something to do at once.
                self.device_ns = Some(0);
                Ok(())
            }
            Err(request) => {
                self.disown(tag);
                Err(request)
            }
        }
    }

    /// A device that takes no time does what is due.
    pub(super) fn run_device_now(&mut self, world: &mut World) -> bool {
        let woken = self.woken.swap(false, Ordering::Relaxed);
        if !woken && self.device_ns.is_none_or(|at_ns| at_ns > world.now_ns) {
            return false;
        }
        self.device_ns = self.device.run(world.now_ns);
        self.run_jobs();
        self.take_news(world);
        true
    }

    /// The device goes on in time until it has something for the host, at most until the host's next event.
    #[inline]
    pub(super) fn run_device_until(&mut self, world: &mut World, until_ns: Option<u64>) {
        if !self.upcalls.is_empty() && self.take_news(world) {
            // An upcall that had come before somebody waited for it.
            return;
        }
        let before_ns = self.device_ns;
        self.device_ns = self.device.run_to_completion(until_ns.unwrap_or(u64::MAX));
        self.run_jobs();
        if self.take_news(world) {
            return;
        }
        match self.device_ns {
            // Neither news nor an event at the time that it asked for: a deadline of its own.
            Some(at_ns) if Some(at_ns) == before_ns && until_ns.is_none_or(|until_ns| at_ns <= until_ns) => {
                world.advance(at_ns.max(world.now_ns));
                self.device_ns = self.device.run_through(world.now_ns);
                self.take_news(world);
            }
            Some(at_ns) if until_ns.is_none_or(|until_ns| at_ns <= until_ns) => {}
            _ => {
                if let Some(until_ns) = until_ns {
                    world.advance(until_ns);
                }
            }
        }
    }

    /// Does what the device wants done outside of it; true where there was something.
    pub(super) fn run_jobs(&mut self) -> bool {
        let mut worked = false;
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
            self.device_ns = Some(0);
            worked = true;
        }
        worked
    }

    /// Hands out what the device has for the host; true where there was something.
    #[inline(always)]
    pub(super) fn take_news(&mut self, world: &mut World) -> bool {
        let mut news = false;
        while let Some(completion) = self.device.completion() {
            news = true;
            if self.timed && completion.at_ns > world.now_ns {
                world.advance(completion.at_ns);
            }
            match self.disown(completion.tag) {
                Some(Owner::Wait(key)) => {
                    world.end_wait(key, Brought::Completion(Box::new(completion)));
                }
                Some(Owner::Slot(generator, slot)) => self.completed(world, generator, slot, completion),
                Some(Owner::Command(command)) => self.command_ended(world, command, completion),
                _ => debug_assert!(false, "a completion of nobody"),
            }
        }
        let mut index = 0;
        while index < self.upcalls.len() {
            let (hre, key) = self.upcalls[index];
            if !world.is_waiting(key) {
                self.upcalls.swap_remove(index);
            } else if let Some(upcall) = self.device.upcall(hre) {
                news = true;
                self.upcalls.swap_remove(index);
                world.end_wait(key, Brought::Upcall(Some(upcall_of(upcall))));
            } else {
                index += 1;
            }
        }
        news
    }
}
