//! Flash under a model of time: an operation begins when the run of the FTL that asked for it has ended, takes the time of dies and buses, and
//! takes effect on the medium, and is told, when the model says that it is done.
//!
//! Invariants:
//! - reads of the same page number on distinct planes of a die that one run asks for are one multi-plane read;
//! - a program begins when all that it is made of is there: the pages that it copies from have been read, hosts' data have come;
//! - a program one of whose sources cannot be read does not begin, and changes nothing.

use super::abi::{self, PENDING};
use super::activity::Caller;
use super::continuation::Pending;
use super::flash::told;
use super::flash_job::{Job, MadePage, MadePages, MovedPage, NO_JOB, Task, To};
use super::os::Machine;
use crate::interconnect::Key;
use crate::media::delegate::{BankPort, DelegatingStore};
use crate::model::flash::FlashStep;
use std::collections::BTreeSet;
use willow_flash_media::timing::{Submission, Work};
use willow_flash_media::{Array, Geometry, PLANES_MAX, Read, Status};

/// A part of a page that a program copies from flash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    /// Of the page that is programmed.
    pub page: usize,
    /// First byte there.
    pub at: usize,
    pub die: u32,
    pub read: Read,
}

/// Asking.
impl Machine {
    /// Asks for an operation; the caller's wait ends when it is done.
    pub(super) fn ask_flash(&mut self, caller: Caller, wait: u32, die: u32, task: Task) -> i32 {
        self.ask_flash_for(caller, wait, die, (task, 0)).map_or(abi::ERROR_REFUSED, |_| PENDING)
    }

    /// The same; the job and its group.
    fn ask_flash_for(
        &mut self,
        caller: Caller,
        wait: u32,
        die: u32,
        (task, bytes): (Task, usize),
    ) -> Option<(u32, Key)> {
        if !self.flash.has_room(caller.spu, 1, bytes) {
            return None;
        }
        let group = self.group(caller, None, wait)?;
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        let job = self.flash.put(Job { group, bank: caller.spu, die, task, bytes, awaits: 0, next: NO_JOB });
        if !matches!(self.flash.job(job).task, Task::Program { .. }) {
            self.flash_then(job);
        }
        Some((job, group))
    }

    /// Asks for a program of pages that copies those parts, and takes data of those peers.
    pub(super) fn ask_program(
        &mut self,
        (caller, wait, die): (Caller, u32, u32),
        pages: MadePages,
        copied: &[Copied],
        peers: &[u32],
    ) -> i32 {
        let page_bytes = self.geometry_of(caller.spu).map_or(0, |geometry| geometry.page_bytes as usize);
        let bytes = pages.len() * page_bytes;
        if !self.flash.has_room(caller.spu, 1 + copied.len(), bytes) {
            return abi::ERROR_REFUSED;
        }
        let task = Task::Program { pages, failed: None };
        let Some((program, group)) = self.ask_flash_for(caller, wait, die, (task, bytes)) else {
            return abi::ERROR_REFUSED;
        };
        let mut awaits = 0;
        for &Copied { page, at, die, read } in copied {
            let task = Task::Source { program, page, at, read };
            let job = self.flash.put(Job { group, bank: caller.spu, die, task, bytes: 0, awaits: 0, next: NO_JOB });
            self.flash_then(job);
            awaits += 1;
        }
        let mut writes: Vec<Key> = peers.iter().filter_map(|peer| self.landing_of(*peer)).collect();
        writes.sort_unstable();
        writes.dedup();
        for write in writes {
            self.flash.landings.entry(write).or_default().push(program);
            awaits += 1;
        }
        self.flash.job(program).awaits = awaits;
        self.flash_then(program);
        PENDING
    }

    /// The write that a peer is of, where its data have not come yet.
    fn landing_of(&mut self, peer: u32) -> Option<Key> {
        let ticket = self.media.store.delegating()?.ticket(peer)?;
        match self.media.waiting(ticket) {
            Some(&Pending::Group { group }) => self.group_at(group).is_some_and(|group| group.landing).then_some(group),
            _ => None,
        }
    }

    /// The data of a write have come: programs that wait for them go on.
    pub(super) fn landed(&mut self, group: Key) {
        if let Some(group) = self.group_at_mut(group) {
            group.landing = false;
        }
        for program in self.flash.landings.remove(&group).unwrap_or_default() {
            // It may have been dropped with its FTL.
            if self.flash.get(program).is_some() {
                self.one_has_come(program);
            }
        }
        self.note_flash_time();
        self.end_one(group, 0, None);
    }

    /// A source of a program, or data of a host, has come.
    fn one_has_come(&mut self, program: u32) {
        let job = self.flash.job(program);
        job.awaits -= 1;
        if job.awaits > 0 {
            return;
        }
        let (bank, die) = (job.bank, job.die);
        self.submit_waiting(bank, die);
    }
}

/// Beginning.
impl Machine {
    /// The jobs of a run begin.
    pub(super) fn begin_flash(&mut self, first: u32) {
        let mut key = first;
        while key != NO_JOB {
            let next = self.join_planes(key);
            match self.is_of_the_dead(key) {
                true => self.drop_jobs(key),
                false => self.submit_or_wait(key),
            }
            key = next;
        }
        self.note_flash_time();
    }

    /// Whether the FTL's instance that asked has ended in the same run.
    fn is_of_the_dead(&mut self, key: u32) -> bool {
        let group = self.flash.job(key).group;
        self.group_at(group).is_none_or(|group| {
            let at = &self.spus[usize::from(group.caller.spu)];
            at.residents[usize::from(group.caller.app)].incarnation != group.caller.incarnation
        })
    }

    /// Joins the reads that follow a read and are of the same page on other planes to it; what comes next.
    fn join_planes(&mut self, key: u32) -> u32 {
        let job = self.flash.job(key);
        let mut next = std::mem::replace(&mut job.next, NO_JOB);
        let (bank, die, Some(&read)) = (job.bank, job.die, job.reads()) else { return next };
        let Some(planes) = self.geometry_of(bank).map(|geometry| geometry.planes_per_die) else { return next };
        let mut taken = 1u32 << (read.at.block % planes);
        let mut last = key;
        while next != NO_JOB {
            let follower = self.flash.job(next);
            let Some(other) = follower.reads() else { break };
            let plane = 1u32 << (other.at.block % planes);
            let same = follower.bank == bank && follower.die == die && other.at.page == read.at.page;
            if !same || taken & plane != 0 {
                break;
            }
            taken |= plane;
            let after = std::mem::replace(&mut follower.next, NO_JOB);
            self.flash.job(last).next = next;
            (last, next) = (next, after);
        }
        next
    }

    fn submit_or_wait(&mut self, key: u32) {
        let job = self.flash.job(key);
        let (bank, die, ready) = (job.bank, job.die, job.awaits == 0);
        let alone = !self.flash.waits_before(bank, die);
        if ready && alone && !self.flash.banks[usize::from(bank)].1 && self.submit_flash(key) {
            return;
        }
        self.flash.wait_before(bank, die, key);
        if !alone {
            self.submit_waiting(bank, die);
        }
    }

    /// Submits what waits before a die and can begin.
    fn submit_waiting(&mut self, bank: u16, die: u32) {
        if self.flash.banks[usize::from(bank)].1 {
            return;
        }
        let Some(mut waiting) = self.flash.take_waiting(bank, die) else { return };
        let mut at = 0;
        // What is held back holds back what shares a block with it.
        let mut held = BTreeSet::new();
        while let Some(&key) = waiting.get(at) {
            let held_back = self.flash.job(key).awaits > 0 || self.flash.blocks(key).any(|block| held.contains(&block));
            if held_back {
                at += 1;
                if at < waiting.len() {
                    held.extend(self.flash.blocks(key));
                }
                continue;
            }
            if let Task::Program { failed: Some(status), .. } = self.flash.job(key).task {
                waiting.remove(at);
                self.flash_ended(key, status);
                continue;
            }
            if !self.submit_flash(key) {
                break;
            }
            waiting.remove(at);
        }
        self.flash.put_back(bank, die, waiting);
    }

    /// Submits what waits before all dies of a bank.
    fn submit_all_waiting(&mut self, bank: u16) {
        for die in self.flash.dies_waited_before(bank) {
            self.submit_waiting(bank, die);
        }
    }

    /// The FTL of a bank has ended. What the flash has not begun for it is not begun any more; what the next FTL asks for waits until all that has
    /// been begun is done, so that nothing changes under its eyes.
    pub(super) fn cut_flash(&mut self, bank: u16) {
        if let Some(store) = self.media.store.delegating() {
            store.forget_erases(bank.into());
        }
        let dies = self.flash.dies_waited_before(bank);
        let mut cut = Vec::new();
        for die in dies {
            cut.extend(self.flash.take_waiting(bank, die).unwrap_or_default());
            self.flash.put_back(bank, die, Default::default());
        }
        for key in cut {
            self.drop_jobs(key);
        }
        let (under_way, is_cut) = &mut self.flash.banks[usize::from(bank)];
        *is_cut = *under_way > 0;
    }

    /// Ends a job, and those that are joined to it, without doing them.
    fn drop_jobs(&mut self, first: u32) {
        let mut key = first;
        while key != NO_JOB {
            let job = self.flash.job(key);
            let (next, is_source) = (job.next, matches!(job.task, Task::Source { .. }));
            match is_source {
                // It has no wait of its own.
                true => self.flash.discard(key),
                false => self.flash_ended(key, abi::ERROR_ENDED),
            }
            key = next;
        }
    }

    fn geometry_of(&mut self, bank: u16) -> Option<Geometry> {
        Some(*self.array_of(bank)?.geometry())
    }

    pub(super) fn array_of(&mut self, bank: u16) -> Option<&mut Array> {
        Some(self.media.store.delegating()?.bank_port(usize::from(bank))?.flash)
    }

    /// Hands a job, and the other planes of a multi-plane read, to the flash; false where its die has as many as it takes.
    fn submit_flash(&mut self, key: u32) -> bool {
        let job = self.flash.job(key);
        let (bank, die) = (job.bank, job.die);
        let mut blocks = [0; PLANES_MAX as usize];
        let mut count = 0;
        let mut name = |block: u32| {
            if let Some(place) = blocks.get_mut(count) {
                *place = block;
            }
            count += 1;
        };
        let (mut bytes, mut retries) = (0, 0);
        let Some(BankPort { flash: array, .. }) =
            self.media.store.delegating().and_then(|store| store.bank_port(usize::from(bank)))
        else {
            // The device ends: the flash is closed.
            self.jobs_done(key);
            return true;
        };
        let shape = *array.geometry();
        let job = self.flash.job(key);
        let work = match &job.task {
            Task::Read { read, .. } | Task::Source { read, .. } => {
                let page = shape.page_kind(read.at.page);
                let mut part = key;
                while part != NO_JOB {
                    let job = self.flash.job(part);
                    let Some(read) = job.reads() else { break };
                    name(read.at.block);
                    retries = retries.max(array.retries_of(die, read));
                    bytes += read.length_bytes + if read.spare { shape.spare_bytes } else { 0 };
                    part = job.next;
                }
                Work::Read { page, retries }
            }
            Task::Program { pages, .. } => {
                pages.iter().for_each(|page| name(page.at.block));
                let spare_bytes = if shape.spare_accessible { shape.spare_bytes } else { 0 };
                bytes = pages.len() as u32 * (shape.page_bytes + spare_bytes);
                Work::Program { page: shape.page_kind(pages.first().map_or(0, |page| page.at.page)) }
            }
            Task::Copyback { pages } => {
                job.blocks().for_each(&mut name);
                bytes = pages.iter().map(|page| page.spare.len() as u32).sum();
                let kind = |at: Option<u32>| shape.page_kind(at.unwrap_or(0));
                let first = pages.first();
                let (from, to) = (kind(first.map(|page| page.from.page)), kind(first.map(|page| page.to.page)));
                Work::Copyback { from, to }
            }
            Task::Erase { blocks } => {
                blocks.iter().for_each(|block| name(*block));
                Work::Erase
            }
        };
        let submission = Submission { token: key.into(), die, work, blocks: &blocks[..count.min(blocks.len())], bytes };
        let exists = die < shape.dies();
        let step = if exists { self.time_flash(bank, &submission) } else { FlashStep::Done };
        match step {
            FlashStep::UnderWay => {
                self.flash.banks[usize::from(bank)].0 += 1;
                true
            }
            FlashStep::Full => false,
            FlashStep::Done => {
                self.jobs_done(key);
                true
            }
        }
    }

    /// Notes when the flash goes on by itself.
    fn note_flash_time(&mut self) {
        self.flash.next_ns = self.flash_goes_on_ns();
    }
}

/// Ending.
impl Machine {
    /// When the flash goes on by itself; [`u64::MAX`]: it does not.
    #[inline(always)]
    pub fn flash_next_ns(&self) -> u64 {
        self.flash.next_ns
    }

    /// When something is due next that is not due yet.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        let flash_ns = Some(self.flash.next_ns).filter(|at_ns| *at_ns < u64::MAX);
        [self.events.next_ns(), flash_ns].into_iter().flatten().min()
    }

    /// Whether an FTL serves the banks.
    #[inline(always)]
    pub fn delegates(&self) -> bool {
        self.flash.delegates
    }

    /// It is time for the flash to go on.
    pub fn flash_due(&mut self) {
        let now_ns = self.flash.next_ns.max(self.now_ns);
        (self.now_ns, self.bridge.now_ns) = (now_ns, now_ns);
        let mut completions = std::mem::take(&mut self.flash.completions);
        self.advance_flash(now_ns, &mut completions);
        for completion in completions.drain(..) {
            let key = completion.token as u32;
            let job = self.flash.job(key);
            let (bank, die) = (job.bank, job.die);
            self.jobs_done(key);
            let (under_way, is_cut) = &mut self.flash.banks[usize::from(bank)];
            *under_way -= 1;
            if *under_way == 0 && *is_cut {
                *is_cut = false;
                self.submit_all_waiting(bank);
            } else {
                self.submit_waiting(bank, die);
            }
        }
        self.flash.completions = completions;
        self.note_flash_time();
    }

    /// A job is done, with the other planes of a multi-plane read: each takes effect.
    fn jobs_done(&mut self, first: u32) {
        let mut key = first;
        while key != NO_JOB {
            let next = self.flash.job(key).next;
            self.take_effect(key);
            key = next;
        }
    }

    fn take_effect(&mut self, key: u32) {
        let job = self.flash.job(key);
        let (bank, die) = (job.bank, job.die);
        match &mut job.task {
            &mut Task::Read { read, to, spare } => self.read_done(key, (bank, die), &read, to, spare),
            &mut Task::Source { program, page, at, read } => {
                self.flash.discard(key);
                if self.flash.get(program).is_some() {
                    self.source_done((bank, die), &read, program, (page, at));
                    self.one_has_come(program);
                }
            }
            Task::Program { pages, .. } => {
                let made = std::mem::take(pages);
                let programmed = self
                    .array_of(bank)
                    .and_then(|array| MadePage::with_all(&made, |pages| array.program(die, pages)).ok());
                self.flash.give_pages(made);
                self.flash_ended_as(key, programmed);
            }
            Task::Copyback { pages } => {
                let pages = std::mem::take(pages);
                let moved = self.array_of(bank).and_then(|array| MovedPage::carry_out(array, die, &pages));
                self.flash_ended_as(key, moved);
            }
            Task::Erase { blocks } => {
                let blocks = std::mem::take(blocks);
                let group = job.group;
                if self.is_of_the_dead(key) {
                    // It might have to wait for the disk, and take effect under the next FTL's eyes: the block stays as it was.
                    return self.flash_ended(key, abi::ERROR_ENDED);
                }
                self.flash.discard(key);
                self.take_erase((bank, die), &blocks, group);
            }
        }
    }

    /// A read brings its bytes to the FTL's memory or to a peer.
    fn read_done(&mut self, key: u32, (bank, die): (u16, u32), read: &Read, to: To, spare: Option<(u64, u32)>) {
        let group = self.flash.job(key).group;
        self.flash.discard(key);
        let mut spare_bytes = vec![0; spare.map_or(0, |(_, bytes)| bytes as usize)];
        let port = self.media.store.delegating().and_then(|store| store.bank_port(bank.into()));
        let (status, local) = port.map_or((None, None), |port| bring(port, die, read, to, &mut spare_bytes));
        if let Some((pointer, _)) = spare {
            if let Some(group) = self.group_at_mut(group) {
                group.remaining += 1;
            }
            self.end_one(group, 0, Some(Box::new((pointer, spare_bytes))));
        }
        let status = match status {
            Some(Brought::Read(status)) => self.told_to(group, status),
            Some(Brought::PeerEnded) => abi::ERROR_ENDED,
            None => abi::ERROR_MEDIA,
        };
        self.end_one(group, status.into(), local);
    }

    /// A page that a program copies from has been read.
    fn source_done(&mut self, (bank, die): (u16, u32), read: &Read, program: u32, (page, at): (usize, usize)) {
        let Machine { media, flash, .. } = self;
        let port = media.store.delegating().and_then(|store: &mut DelegatingStore| store.bank_port(bank.into()));
        let Some(BankPort { flash: array, .. }) = port else { return };
        let keeps = array.keeps_payload() || array.keeps(die, read.at);
        let Some(Job { task: Task::Program { pages, failed }, .. }) = flash.get_mut(program) else { return };
        let status = match (keeps, pages.get_mut(page)) {
            (true, Some(made)) => {
                let end = at + read.length_bytes as usize;
                if made.data.len() < end {
                    made.data.resize(end, 0);
                }
                made.own |= !array.keeps_payload();
                array.read(die, read, &mut made.data[at..end], &mut [])
            }
            _ => array.read_unseen(die, read, &mut []),
        };
        if !matches!(status, Ok(Status::Done { .. } | Status::Latched)) && failed.is_none() {
            *failed = Some(status.map_or(abi::ERROR_MEDIA, told));
        }
    }

    /// A status as it is told to whoever waits.
    fn told_to(&mut self, group: Key, status: Status) -> i32 {
        match self.group_at(group).map(|group| group.caller) {
            Some(caller) => self.told(caller, status),
            None => told(status),
        }
    }

    /// A job has ended; `None`: what keeps the contents failed.
    fn flash_ended_as(&mut self, key: u32, status: Option<Status>) {
        let group = self.flash.job(key).group;
        let status = status.map_or(abi::ERROR_MEDIA, |status| self.told_to(group, status));
        self.flash_ended(key, status);
    }

    /// A job has ended: whoever waits for it is told.
    fn flash_ended(&mut self, key: u32, status: i32) {
        let group = self.flash.job(key).group;
        self.flash.discard(key);
        self.end_one(group, status.into(), None);
    }
}

/// Bytes for the FTL's memory, and where they go.
type ForMemory = Option<Box<(u64, Vec<u8>)>>;

/// How a read ended.
enum Brought {
    Read(Status),
    PeerEnded,
}

/// Carries a read out: how it ended (`None`: what keeps the contents failed), and the bytes for the FTL's memory.
fn bring(
    BankPort { flash, mut peers }: BankPort<'_>,
    die: u32,
    read: &Read,
    to: To,
    spare: &mut [u8],
) -> (Option<Brought>, ForMemory) {
    let length = read.length_bytes as usize;
    match to {
        To::Local { pointer } => {
            let mut data = vec![0; length];
            let status = flash.read(die, read, &mut data, spare);
            (status.ok().map(Brought::Read), (!data.is_empty()).then(|| Box::new((pointer, data))))
        }
        To::Peer { peer, offset } => {
            let Some(into) = peers.sink(peer, offset, length) else { return (Some(Brought::PeerEnded), None) };
            // What nobody keeps is what the peer's bytes are already: zeroes.
            let status = match flash.keeps_payload() || flash.keeps(die, read.at) {
                true => flash.read(die, read, into, spare),
                false => flash.read_unseen(die, read, spare),
            };
            (status.ok().map(Brought::Read), None)
        }
    }
}
