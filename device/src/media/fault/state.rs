//! The state of fault-injecting media; the model is described in the parent module.
//!
//! What always holds:
//! - `unflushed` names exactly the units that have versions besides the durable one.
//! - `used_units` counts the units whose newest version holds data.
//! - Versions of a unit are in the order in which they were written.

use super::{CUT_ERROR, Choices, FaultOptions, FaultStatistics, Random, UNIT_BYTES};
use crate::media::ordering::{Ordering, Span};
use crate::media::store::{MEDIA_FAILED, Progress, StoreCompletion, StoreError, Ticket};
use crate::media::{BLOBS_MAX, blob_name_is_valid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Contents of a unit; `None` where nothing is stored, which reads as zeroes.
type Bytes = Option<Box<[u8; UNIT_BYTES as usize]>>;

struct Version {
    /// When it completed; `None` while it is under way.
    sequence: Option<u64>,
    bytes: Bytes,
}

#[derive(Default)]
struct Unit {
    durable: Bytes,
    versions: Vec<Version>,
}

impl Unit {
    fn newest(&self) -> &Bytes {
        self.versions.last().map_or(&self.durable, |version| &version.bytes)
    }
}

/// Which saves fail.
#[derive(Clone, Copy, Default)]
pub struct FailingSaves {
    /// Good ones before.
    pub skipped: u64,
    /// Bad ones then.
    pub count: u64,
    /// The first of these have happened all the same.
    pub happening: u64,
}

/// Metadata and blobs.
#[derive(Clone, Default)]
pub struct Records {
    pub metadata: Option<Vec<u8>>,
    pub blobs: BTreeMap<String, Vec<u8>>,
}

/// A change of metadata or blobs.
pub enum Change {
    Metadata(Vec<u8>),
    SaveBlob(String, Vec<u8>),
    DeleteBlob(String),
}

impl Records {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Metadata(bytes) => self.metadata = Some(bytes.clone()),
            Change::SaveBlob(name, bytes) => {
                self.blobs.insert(name.clone(), bytes.clone());
            }
            Change::DeleteBlob(name) => {
                self.blobs.remove(name);
            }
        }
    }
}

/// What a begun operation does.
pub enum Task {
    Read,
    Write(Vec<u8>),
    Zero,
}

enum UnderWayKind {
    Read {
        id: u64,
        span: Span,
    },
    /// A write or zeroing; its versions are there already.
    Change {
        id: u64,
        span: Span,
        result: Result<(), StoreError>,
    },
    Flush {
        banks: Range<usize>,
        sequence: u64,
    },
}

struct UnderWay {
    ticket: Ticket,
    due_poll: u64,
    kind: UnderWayKind,
}

/// The media.
pub struct State {
    pub options: FaultOptions,
    banks: Vec<BTreeMap<u64, Unit>>,
    unflushed: BTreeSet<(usize, u64)>,
    pub used_units: u64,
    sequence: u64,
    pub records: Records,
    /// Changes of the records under way, in order, with the poll at which each ends.
    saves: VecDeque<(Ticket, u64, Change)>,
    /// Changes that the cut has caught: they may have happened.
    caught_saves: Vec<Change>,
    /// By whole units: the versions of a unit come and complete one after the other.
    order: Ordering<(Ticket, Task, Span)>,
    under_way: Vec<UnderWay>,
    ended: VecDeque<StoreCompletion>,
    random: Random,
    poll: u64,
    pub waker: Option<Arc<dyn Fn() + Send + Sync>>,
    pub operations: u64,
    pub cut_after: Option<u64>,
    pub is_cut: bool,
    pub statistics: FaultStatistics,
    pub bad_reads: Vec<(usize, Range<u64>)>,
    pub bad_writes: Vec<(usize, Range<u64>)>,
    /// Flushes that go well before those fail.
    pub skipped_flushes: u64,
    pub failing_flushes: u64,
    pub failing_saves: FailingSaves,
}

impl State {
    pub fn new(options: FaultOptions) -> State {
        State {
            banks: (0..options.banks).map(|_| BTreeMap::new()).collect(),
            unflushed: BTreeSet::new(),
            used_units: 0,
            sequence: 0,
            records: Records::default(),
            saves: VecDeque::new(),
            caught_saves: Vec::new(),
            order: Ordering::new(),
            under_way: Vec::new(),
            ended: VecDeque::new(),
            random: Random::new(options.seed),
            poll: 0,
            waker: None,
            operations: 0,
            cut_after: None,
            is_cut: false,
            statistics: FaultStatistics::default(),
            bad_reads: Vec::new(),
            bad_writes: Vec::new(),
            skipped_flushes: 0,
            failing_flushes: 0,
            failing_saves: FailingSaves::default(),
            options,
        }
    }

    /// The process that used the media is gone.
    pub fn restart(&mut self) {
        for running in std::mem::take(&mut self.under_way) {
            if let UnderWayKind::Change { span, .. } = running.kind {
                self.leave_old_or_new(&span);
            }
        }
        let happened = self.random.below(self.saves.len() as u64 + 1) as usize;
        for (_, _, change) in std::mem::take(&mut self.saves).into_iter().take(happened) {
            self.records.apply(&change);
        }
        self.order = Ordering::new();
        self.ended.clear();
        self.waker = None;
    }

    pub fn span(&self, bank: usize, address: u64, bytes: u64, reads: bool) -> Result<Span, StoreError> {
        let end = address.checked_add(bytes).ok_or(StoreError::Range)?;
        if bank >= self.options.banks || end > self.options.bank_bytes {
            return Err(StoreError::Range);
        }
        Ok(Span { bank, start: address, end, reads })
    }

    pub fn would_block(&mut self, span: &Span) -> bool {
        let blocks = self.order.conflicts(&whole_units(span)) || self.is_delayed();
        self.statistics.blocked += u64::from(blocks);
        blocks
    }

    fn is_delayed(&mut self) -> bool {
        self.options.delayed_percent > 0 && self.random.chance(u64::from(self.options.delayed_percent), 100)
    }

    pub fn refuse_if_cut(&self) -> Result<(), StoreError> {
        if self.is_cut { Err(StoreError::Failed(CUT_ERROR)) } else { Ok(()) }
    }

    /// Counts an operation that is about to change the media, or cuts the power.
    fn count(&mut self) -> Result<(), StoreError> {
        if self.cut_after.is_some_and(|limit| self.operations >= limit) {
            self.is_cut = true;
        }
        self.refuse_if_cut()?;
        if !self.options.volatile_write_cache {
            self.harden(0..self.options.banks, self.sequence);
        }
        self.operations += 1;
        Ok(())
    }

    pub fn read(&mut self, span: &Span, into: &mut [u8]) -> Result<(), StoreError> {
        self.refuse_if_cut()?;
        if touches(&self.bad_reads, span) {
            return Err(MEDIA_FAILED);
        }
        self.statistics.reads += 1;
        into.fill(0);
        for index in units(span) {
            let Some(bytes) = self.banks[span.bank].get(&index).and_then(|unit| unit.newest().as_ref()) else {
                continue;
            };
            let (within, of_span) = parts(span, index);
            into[of_span].copy_from_slice(&bytes[within]);
        }
        Ok(())
    }

    /// Adds a version to each unit of a write (`from`) or a zeroing; they are under way until `complete_versions`. After
    /// an error by a bad sector each unit is old or new, and completed.
    pub fn change(&mut self, span: &Span, from: Option<&[u8]>) -> Result<(), StoreError> {
        self.refuse_if_cut()?;
        if span.start == span.end {
            return Ok(());
        }
        if from.is_some() {
            let bank = &self.banks[span.bank];
            let new = units(span).filter(|index| bank.get(index).is_none_or(|unit| unit.newest().is_none())).count();
            let needed = (self.used_units + new as u64) * UNIT_BYTES;
            if new > 0 && self.options.capacity_bytes.is_some_and(|capacity| needed > capacity) {
                return Err(StoreError::Full);
            }
        }
        self.count()?;
        match from {
            Some(_) => self.statistics.writes += 1,
            None => self.statistics.zeroes += 1,
        }
        for index in units(span) {
            let (within, of_span) = parts(span, index);
            let bank = &mut self.banks[span.bank];
            let covers = within.len() as u64 == UNIT_BYTES;
            if from.is_none() && bank.get(&index).is_none_or(|unit| unit.newest().is_none()) {
                continue;
            }
            let unit = bank.entry(index).or_default();
            let was_used = unit.newest().is_some();
            let bytes = match from {
                None if covers => None,
                _ => {
                    let mut bytes = unit.newest().clone().unwrap_or_else(|| Box::new([0; UNIT_BYTES as usize]));
                    match from {
                        Some(from) => bytes[within].copy_from_slice(&from[of_span]),
                        None => bytes[within].fill(0),
                    }
                    Some(bytes)
                }
            };
            self.used_units += u64::from(bytes.is_some());
            self.used_units -= u64::from(was_used);
            unit.versions.push(Version { sequence: None, bytes });
            self.unflushed.insert((span.bank, index));
        }
        if touches(&self.bad_writes, span) {
            self.leave_old_or_new(span);
            return Err(MEDIA_FAILED);
        }
        Ok(())
    }

    /// Drops about half of the versions that are under way in a span, and completes the others.
    fn leave_old_or_new(&mut self, span: &Span) {
        for index in units(span) {
            let Some(unit) = self.banks[span.bank].get_mut(&index) else { continue };
            let was_used = unit.newest().is_some();
            if unit.versions.last().is_some_and(|version| version.sequence.is_none()) && self.random.chance(1, 2) {
                unit.versions.pop();
            }
            self.used_units += u64::from(unit.newest().is_some());
            self.used_units -= u64::from(was_used);
            if unit.versions.is_empty() {
                self.unflushed.remove(&(span.bank, index));
            }
        }
        self.complete_versions(span);
    }

    /// The write or zeroing of a span has completed.
    pub fn complete_versions(&mut self, span: &Span) {
        self.sequence += 1;
        for index in units(span) {
            let Some(unit) = self.banks[span.bank].get_mut(&index) else { continue };
            if let Some(version) = unit.versions.last_mut().filter(|version| version.sequence.is_none()) {
                version.sequence = Some(self.sequence);
            }
        }
    }

    /// Makes durable what had completed at `sequence`.
    fn harden(&mut self, banks: Range<usize>, sequence: u64) {
        let units: Vec<_> = self.unflushed.range((banks.start, 0)..(banks.end, 0)).copied().collect();
        for (bank, index) in units {
            let unit = self.banks[bank].get_mut(&index).expect("unflushed units exist");
            let durable = unit.versions.iter().take_while(|version| version.sequence.is_some_and(|at| at <= sequence));
            let count = durable.count();
            if let Some(last) = unit.versions.drain(..count).next_back() {
                unit.durable = last.bytes;
            }
            if unit.versions.is_empty() {
                self.unflushed.remove(&(bank, index));
                if unit.durable.is_none() {
                    self.banks[bank].remove(&index);
                }
            }
        }
    }

    fn has_unflushed(&self, banks: &Range<usize>) -> bool {
        self.unflushed.range((banks.start, 0)..(banks.end, 0)).next().is_some()
    }

    pub fn begin(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64, reads: bool, task: Task) {
        match self.span(bank, address, bytes, reads) {
            Ok(span) => {
                self.order.push(whole_units(&span), (ticket, task, span));
                self.start_ready();
            }
            Err(error) => self.ended.push_back(StoreCompletion { ticket, result: Err(error) }),
        }
    }

    fn start_ready(&mut self) {
        while let Some((id, _, (ticket, task, span))) = self.order.take_ready() {
            let kind = match task {
                Task::Read => UnderWayKind::Read { id, span },
                Task::Write(from) => UnderWayKind::Change { id, span, result: self.change(&span, Some(&from)) },
                Task::Zero => UnderWayKind::Change { id, span, result: self.change(&span, None) },
            };
            self.run(ticket, kind);
        }
    }

    fn due_poll(&mut self) -> u64 {
        self.poll + 1 + self.random.below(u64::from(self.options.delay_polls_max) + 1)
    }

    fn run(&mut self, ticket: Ticket, kind: UnderWayKind) {
        let due_poll = self.due_poll();
        self.under_way.push(UnderWay { ticket, due_poll, kind });
    }

    pub fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        let banks = match bank {
            Some(bank) if bank >= self.options.banks => return Err(StoreError::Range),
            Some(bank) => bank..bank + 1,
            None => 0..self.options.banks,
        };
        self.refuse_if_cut()?;
        if !self.options.volatile_write_cache || !self.has_unflushed(&banks) {
            return Ok(Progress::Done);
        }
        let sequence = self.sequence;
        if self.is_delayed() {
            self.statistics.blocked += 1;
            self.run(ticket, UnderWayKind::Flush { banks, sequence });
            return Ok(Progress::WouldBlock);
        }
        self.finish_flush(banks, sequence)?;
        Ok(Progress::Done)
    }

    fn finish_flush(&mut self, banks: Range<usize>, sequence: u64) -> Result<(), StoreError> {
        self.count()?;
        if self.failing_flushes > 0 && self.skipped_flushes > 0 {
            self.skipped_flushes -= 1;
        } else if self.failing_flushes > 0 {
            self.failing_flushes -= 1;
            return Err(MEDIA_FAILED);
        }
        self.statistics.flushes += 1;
        self.harden(banks, sequence);
        Ok(())
    }

    pub fn blobs_are_full(&self, name: &str) -> bool {
        !self.records.blobs.contains_key(name) && self.records.blobs.len() + self.saves.len() >= BLOBS_MAX
    }

    pub fn save(&mut self, ticket: Ticket, change: Change) -> Result<Progress, StoreError> {
        self.refuse_if_cut()?;
        debug_assert!(match &change {
            Change::SaveBlob(name, _) => blob_name_is_valid(name),
            _ => true,
        });
        if !self.saves.is_empty() || self.is_delayed() {
            let due_poll = self.due_poll();
            self.saves.push_back((ticket, due_poll, change));
            return Ok(Progress::WouldBlock);
        }
        self.finish_change(&change)?;
        Ok(Progress::Done)
    }

    /// A change of the records takes effect, unless it is to fail.
    fn finish_change(&mut self, change: &Change) -> Result<(), StoreError> {
        self.count()?;
        self.statistics.saves += 1;
        let failing = &mut self.failing_saves;
        let fails = failing.skipped == 0 && failing.count > 0;
        let happens = !fails || failing.happening > 0;
        failing.count -= u64::from(fails);
        failing.happening = failing.happening.saturating_sub(u64::from(fails));
        failing.skipped = failing.skipped.saturating_sub(1);
        if happens {
            self.records.apply(change);
        }
        if fails { Err(MEDIA_FAILED) } else { Ok(()) }
    }

    /// True while something is under way.
    pub fn is_busy(&self) -> bool {
        !self.order.is_empty() || !self.under_way.is_empty() || !self.saves.is_empty() || !self.ended.is_empty()
    }

    pub fn completed(&mut self) -> Option<StoreCompletion> {
        if let Some(completion) = self.ended.pop_front() {
            return Some(completion);
        }
        let mut due: Vec<usize> =
            (0..self.under_way.len()).filter(|index| self.under_way[*index].due_poll <= self.poll).collect();
        if self.saves.front().is_some_and(|(_, due_poll, _)| *due_poll <= self.poll) {
            due.push(usize::MAX);
        }
        if due.is_empty() {
            self.poll += 1;
            return None;
        }
        let index = due[self.random.below(due.len() as u64) as usize];
        if index == usize::MAX {
            return self.finish_save();
        }
        let running = self.under_way.swap_remove(index);
        let result = self.finish(running.kind);
        self.start_ready();
        Some(StoreCompletion { ticket: running.ticket, result })
    }

    fn finish_save(&mut self) -> Option<StoreCompletion> {
        let (ticket, _, change) = self.saves.pop_front()?;
        let result = self.finish_change(&change);
        if self.is_cut {
            self.caught_saves.push(change);
        }
        Some(StoreCompletion { ticket, result: result.map(|()| Vec::new()) })
    }

    fn finish(&mut self, kind: UnderWayKind) -> Result<Vec<u8>, StoreError> {
        match kind {
            UnderWayKind::Read { id, span } => {
                let mut bytes = vec![0; (span.end - span.start) as usize];
                let result = self.read(&span, &mut bytes);
                self.order.finish(id);
                result.map(|()| bytes)
            }
            UnderWayKind::Change { id, span, result } => {
                // Under a cut its versions stay as they are: they may survive or not.
                let result = self.refuse_if_cut().and(result);
                if result.is_ok() {
                    self.complete_versions(&span);
                }
                self.order.finish(id);
                result.map(|()| Vec::new())
            }
            UnderWayKind::Flush { banks, sequence } => self.finish_flush(banks, sequence).map(|()| Vec::new()),
        }
    }

    /// Versions that each unflushed unit can become.
    pub fn outcomes(&self) -> u128 {
        let of_units = self.unflushed.iter().fold(1_u128, |product, (bank, index)| {
            product.saturating_mul(self.banks[*bank][index].versions.len() as u128 + 1)
        });
        of_units.saturating_mul((self.caught_saves.len() + self.saves.len()) as u128 + 1)
    }

    pub fn power_cut(&self, choices: &mut Choices) -> State {
        let mut options = self.options.clone();
        options.seed = options.seed.wrapping_add(1);
        let mut after = State::new(options);
        after.bad_reads.clone_from(&self.bad_reads);
        after.bad_writes.clone_from(&self.bad_writes);
        for (bank, units) in self.banks.iter().enumerate() {
            for (index, unit) in units {
                let survivor = if unit.versions.is_empty() { 0 } else { choices.choose(unit.versions.len() + 1) };
                let bytes = if survivor == 0 { &unit.durable } else { &unit.versions[survivor - 1].bytes };
                if bytes.is_some() {
                    after.banks[bank].insert(*index, Unit { durable: bytes.clone(), versions: Vec::new() });
                    after.used_units += 1;
                }
            }
        }
        after.records = self.records.clone();
        let saves = self.caught_saves.iter().chain(self.saves.iter().map(|(_, _, change)| change));
        let happened = choices.choose(self.caught_saves.len() + self.saves.len() + 1);
        for change in saves.take(happened) {
            after.records.apply(change);
        }
        after
    }
}

fn touches(ranges: &[(usize, Range<u64>)], span: &Span) -> bool {
    ranges.iter().any(|(bank, range)| *bank == span.bank && range.start < span.end && span.start < range.end)
}

/// The span widened to the units that it touches. An empty one touches nothing.
fn whole_units(span: &Span) -> Span {
    if span.start == span.end {
        return *span;
    }
    let start = span.start / UNIT_BYTES * UNIT_BYTES;
    Span { start, end: span.end.next_multiple_of(UNIT_BYTES), ..*span }
}

/// Units that a span touches.
fn units(span: &Span) -> Range<u64> {
    if span.start == span.end { 0..0 } else { span.start / UNIT_BYTES..span.end.div_ceil(UNIT_BYTES) }
}

/// Which bytes of a unit a span touches, and which bytes of the span they are.
fn parts(span: &Span, index: u64) -> (Range<usize>, Range<usize>) {
    let unit_start = index * UNIT_BYTES;
    let start = span.start.max(unit_start);
    let end = span.end.min(unit_start + UNIT_BYTES);
    let within = (start - unit_start) as usize..(end - unit_start) as usize;
    (within, (start - span.start) as usize..(end - span.start) as usize)
}
