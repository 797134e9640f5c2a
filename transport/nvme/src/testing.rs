//! Generator and oracle of a host that sends anything at all, for property tests and fuzz targets. Behind the feature
//! `testing`.
//!
//! What [`check_commands`] holds the subsystem to, whatever the bytes say:
//! - nothing panics, and all work comes to rest within [`STEPS_MAX`] steps;
//! - every command is answered exactly once, unless its queue goes; an event request is answered at most once;
//! - blocks of namespace 1 that a command does not address keep their bytes; a write, Write Zeroes or deallocation that
//!   succeeded alone left what it says, and a Read gives what is there;
//! - when the host has gone no controller, request or data buffer is left.

mod generate;

use std::collections::BTreeMap;

use generate::{Effect, FUSE_FIRST, Input, effect_of, generate, second_of};

use willow_device::Device;
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{CompletionEntry, Sgl, SubmissionEntry, property};

use crate::buffer::HEADROOM_BYTES;
use crate::config::{RECEIVE_PARKED_MS_MAX, SubsystemConfig};
use crate::{ConnectionId, Next, Subsystem};

/// Most commands that are made of one input.
pub const COMMANDS_MAX: usize = 64;
/// Most calls of [`Subsystem::run`] until all work must be at rest.
pub const STEPS_MAX: usize = 100_000;
/// Entries of the host's queues.
const QUEUE_ENTRIES: u16 = 32;
/// Namespace whose bytes are watched.
const WATCHED_NSID: u32 = 1;
/// Longest capsule data that are generated.
const CAPSULE_BYTES_MAX: usize = 8192;
/// CC: I/O command sets all, entry sizes 64 and 16, then EN (NVMe Base 3.1.4.5).
const CC_DISABLED: u64 = 0x46_0060;
const CC_ENABLED: u64 = 0x46_0061;

/// What a run came across; a test asserts by it that the paths it means to test were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Commands handed in.
    pub commands: u32,
    /// Completions with success.
    pub succeeded: u32,
    /// Completions with another status.
    pub failed: u32,
    /// Changes of blocks whose outcome was compared byte by byte.
    pub changes_compared: u32,
    /// Reads whose data were compared.
    pub reads_compared: u32,
    /// Times that the whole namespace was compared.
    pub namespace_compared: u32,
    /// Connections that were ended under the host, by a reset, a violation or a timeout.
    pub connections_ended: u32,
}

/// A connection of the host and what it is owed.
struct Link {
    connection: ConnectionId,
    /// Completions owed, by command identifier.
    owed: BTreeMap<u16, u32>,
    /// Event requests, which may go without an answer.
    events: BTreeMap<u16, u32>,
}

impl Link {
    fn outstanding(&self) -> u32 {
        self.owed.values().sum()
    }
}

const ADMIN: usize = 0;
const IO: usize = 1;
const WATCHER_ADMIN: usize = 2;
const WATCHER_IO: usize = 3;
const LINKS: usize = 4;

struct Host {
    subsystem: Subsystem<Device>,
    now_ns: u64,
    links: [Option<Link>; LINKS],
    /// Completions of the round, with their data.
    ended: Vec<(usize, CompletionEntry, Vec<u8>)>,
    summary: Summary,
    /// What namespace 1 holds; `None` since the host was free to delete it.
    shadow: Option<Vec<u8>>,
    blocks: u64,
    block_bytes: u32,
    /// Effects of the commands of this round.
    round: Vec<Effect>,
    round_commands: u32,
    /// What the data are filled with that are fetched later.
    filling: u8,
}

/// Runs what `bytes` say against the device, which has a block namespace 1 of at most 4 MiB in front of Base-IO, and checks
/// what this module's header lists. Panics where it does not hold.
pub fn check_commands(device: Device, bytes: &[u8]) -> Summary {
    let namespace = device.namespaces().iter().find(|one| one.nsid == WATCHED_NSID).cloned();
    let namespace = namespace.expect("the device has a namespace 1");
    let subsystem = Subsystem::new(SubsystemConfig::default(), device, 0).expect("the default configuration is valid");
    let mut host = Host {
        subsystem,
        now_ns: 0,
        links: [const { None }; LINKS],
        ended: Vec::new(),
        summary: Summary::default(),
        shadow: None,
        blocks: namespace.size_bytes / u64::from(namespace.block_bytes),
        block_bytes: namespace.block_bytes,
        round: Vec::new(),
        round_commands: 0,
        filling: 0,
    };
    host.connect(WATCHER_ADMIN, WATCHER_IO);
    host.connect(ADMIN, IO);
    // Bytes that differ from block to block.
    let mut filled = vec![0; namespace.size_bytes as usize];
    filled.chunks_mut(512).enumerate().for_each(|(at, block)| block.fill((at * 7 + (at >> 8)) as u8 | 1));
    let entry = host.transfer(nvm::WRITE);
    let written = host.ask(WATCHER_IO, &entry, &[], Some(&filled)).0;
    assert!(written.status.is_success(), "the namespace cannot be filled: {written:?}");
    host.shadow = Some(filled);
    host.compare();

    let mut input = Input(bytes);
    for _ in 0..COMMANDS_MAX {
        if input.0.is_empty() {
            break;
        }
        host.step(&mut input);
    }
    host.finish_round();
    host.leave()
}

impl Host {
    /// A transfer of the whole namespace.
    fn transfer(&self, opcode: u8) -> SubmissionEntry {
        SubmissionEntry::new(opcode)
            .with_nsid(WATCHED_NSID)
            .with_cdw(12, self.blocks as u32 - 1)
            .with_sgl(Sgl::transport(self.blocks as u32 * self.block_bytes))
    }

    fn open(&mut self, place: usize) {
        let connection = self.subsystem.open_connection(None).expect("there is room for a connection");
        self.links[place] = Some(Link { connection, owed: BTreeMap::new(), events: BTreeMap::new() });
    }

    fn close(&mut self, place: usize) {
        if let Some(link) = self.links[place].take() {
            self.subsystem.close_connection(link.connection);
        }
    }

    /// Connects an admin and an I/O queue and makes the controller ready.
    fn connect(&mut self, admin: usize, io: usize) {
        self.close(io);
        self.close(admin);
        self.settle();
        self.open(admin);
        let (entry, data) = connect_command(0, CONTROLLER_DYNAMIC);
        let connected = self.ask(admin, &entry, &data[..], None).0;
        assert!(connected.status.is_success(), "no controller: {connected:?}");
        for value in [CC_DISABLED, CC_ENABLED] {
            let set = self.ask(admin, &fabrics::property_set(property::CC, value, false), &[], None).0;
            assert!(set.status.is_success(), "CC {value:#x}: {set:?}");
        }
        self.open(io);
        let (entry, data) = connect_command(1, connected.result as u16);
        let connected = self.ask(io, &entry, &data[..], None).0;
        assert!(connected.status.is_success(), "no I/O queue: {connected:?}");
    }

    /// Sends a command that must be answered, alone on its queue.
    fn ask(
        &mut self,
        place: usize,
        entry: &SubmissionEntry,
        capsule: &[u8],
        fetched: Option<&[u8]>,
    ) -> (CompletionEntry, Vec<u8>) {
        let put = |into: &mut [u8]| {
            if let Some(fetched) = fetched {
                into.copy_from_slice(fetched);
            }
            true
        };
        let taken = self.submit(place, entry, capsule, put);
        assert!(taken, "a connection was ended over {entry:?}");
        self.settle();
        let found = self.ended.iter().rposition(|(at, completion, _)| *at == place && completion.cid == entry.cid());
        let (_, completion, data) = self.ended.remove(found.expect("the command has ended"));
        (completion, data)
    }

    /// Hands a command in; `put` fills what is fetched and says whether the fetch succeeds. False where the subsystem
    /// wants the connection ended.
    fn submit(
        &mut self,
        place: usize,
        entry: &SubmissionEntry,
        capsule: &[u8],
        put: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let link = self.links[place].as_mut().expect("the connection is open");
        let connection = link.connection;
        let is_event = entry.opcode() == admin::ASYNC_EVENT_REQUEST && (place == ADMIN);
        let in_flight = link.outstanding() + link.events.values().sum::<u32>();
        *if is_event { &mut link.events } else { &mut link.owed }.entry(entry.cid()).or_default() += 1;
        let mut next = self.subsystem.command(connection, entry, capsule);
        if matches!(next, Next::Wait) {
            // As many long answers as there may be in one turn: the next one goes on with it.
            self.subsystem.run(self.now_ns);
            next = self.subsystem.command(connection, entry, capsule);
        }
        match next {
            Next::Taken => true,
            Next::Fetch(mut fetch) => {
                assert_eq!(fetch.cid, entry.cid());
                let end = fetch.start + fetch.bytes as usize;
                if put(&mut fetch.buffer[fetch.start..end]) {
                    self.subsystem.data(connection, fetch.slot, fetch.buffer);
                } else {
                    self.subsystem.data_failed(connection, fetch.slot, fetch.buffer);
                }
                true
            }
            Next::Wait => panic!("no buffer is free with {in_flight} commands in flight"),
            Next::Violation(reason) => {
                assert!(
                    in_flight >= u32::from(QUEUE_ENTRIES),
                    "{reason}, with {in_flight} commands in flight: {entry:?}"
                );
                false
            }
        }
    }

    /// Takes completions and connections to close; true where there were any.
    fn collect(&mut self) -> bool {
        let mut came = false;
        // Data of fused operations, and of commands that waited for a buffer.
        while let Some((connection, mut fetch)) = self.subsystem.fetch() {
            came = true;
            if self.filling & 0x38 == 0x38 {
                self.subsystem.data_failed(connection, fetch.slot, fetch.buffer);
            } else {
                fetch.buffer[fetch.start..fetch.start + fetch.bytes as usize].fill(self.filling);
                self.subsystem.data(connection, fetch.slot, fetch.buffer);
            }
        }
        while let Some(completion) = self.subsystem.completion() {
            came = true;
            let mut data = Vec::new();
            if let Some(payload) = completion.payload {
                assert!(payload.start == 0 || payload.start == HEADROOM_BYTES);
                data.extend_from_slice(&payload.buffer[payload.start..payload.start + payload.bytes]);
                self.subsystem.give_buffer(completion.connection, payload.buffer);
            }
            let of = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.connection == completion.connection);
            let Some(place) = self.links.iter().position(of) else { continue };
            let link = self.links[place].as_mut().expect("found above");
            let cid = completion.entry.cid;
            let owed =
                [&mut link.owed, &mut link.events].into_iter().find_map(|owed| owed.get_mut(&cid).filter(|n| **n > 0));
            *owed.unwrap_or_else(|| panic!("a completion that nobody is owed: {:?}", completion.entry)) -= 1;
            if completion.entry.status.is_success() {
                self.summary.succeeded += 1;
            } else {
                self.summary.failed += 1;
            }
            self.ended.push((place, completion.entry, data));
        }
        while let Some(connection) = self.subsystem.closing() {
            came = true;
            let of = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.connection == connection);
            if let Some(place) = self.links.iter().position(of) {
                assert!(place < WATCHER_ADMIN, "the watching host was thrown out");
                self.summary.connections_ended += 1;
                self.close(place);
            }
        }
        came
    }

    /// Lets the device work and time pass until no command is owed an answer.
    fn settle(&mut self) {
        // A Receive is answered when its time is over at the latest.
        let patience_ns = self.now_ns + (u64::from(RECEIVE_PARKED_MS_MAX) + 1000) * 1_000_000;
        for _ in 0..STEPS_MAX {
            let wake_ns = self.subsystem.run(self.now_ns);
            let mut worked = self.collect();
            while let Some(job) = self.subsystem.backend_mut().job() {
                let done = job.run();
                self.subsystem.backend_mut().job_done(done);
                worked = true;
            }
            if worked {
                continue;
            }
            let owed: Vec<_> = self.links.iter().flatten().map(|link| &link.owed).collect();
            if owed.iter().all(|owed| owed.values().all(|count| *count == 0)) {
                return;
            }
            match wake_ns {
                Some(at_ns) if at_ns <= patience_ns => self.now_ns = self.now_ns.max(at_ns),
                _ => panic!("commands without an end: {owed:?}, next wake-up {wake_ns:?} at {}", self.now_ns),
            }
        }
        panic!("the subsystem does not come to rest");
    }

    /// One command of the input.
    fn step(&mut self, input: &mut Input<'_>) {
        // A command that is held may have ended a queue already.
        self.collect();
        if self.links[ADMIN].is_none() || self.links[IO].is_none() {
            self.finish_round();
            self.connect(ADMIN, IO);
            self.ended.clear();
        }
        let command = generate(input, self.blocks, self.block_bytes);
        let place = if command.on_admin_queue { ADMIN } else { IO };
        let mut fetched = None;
        let put = |into: &mut [u8]| {
            into.iter_mut().enumerate().for_each(|(at, byte)| *byte = command.filling.wrapping_add((at / 16) as u8));
            if command.entry.opcode() == nvm::DATASET_MANAGEMENT {
                // Ranges that may well be inside: context attributes, blocks, first block.
                for (at, range) in into.chunks_exact_mut(nvm::DSM_RANGE_BYTES).enumerate() {
                    range.fill(0);
                    range[4] = command.filling % 4;
                    range[8] = (at as u8).wrapping_mul(11).wrapping_add(command.filling);
                }
            }
            fetched = Some(into.to_vec());
            !command.damaged
        };
        self.summary.commands += 1;
        let taken = self.submit(place, &command.entry, &command.capsule, put);
        let sgl = command.entry.sgl();
        let in_capsule = command.capsule.get(sgl.address as usize..).unwrap_or_default();
        let data = fetched.as_deref().unwrap_or(&in_capsule[..in_capsule.len().min(sgl.length as usize)]);
        let effect = effect_of(&command, data, self.block_bytes);
        self.round.push(effect);
        self.round_commands += 1;
        let mut taken = taken;
        if taken && place == IO && command.entry.flags() & 3 == FUSE_FIRST && self.links[IO].is_some() {
            let second = second_of(&command);
            self.filling = second.filling;
            self.round.push(effect_of(
                &second,
                &vec![0; second.entry.sgl().length.min(crate::config::TRANSFER_BYTES_MAX) as usize],
                self.block_bytes,
            ));
            self.round_commands += 1;
            self.summary.commands += 1;
            taken = self.submit(IO, &second.entry, &[], |into| {
                into.fill(second.filling);
                true
            });
        }
        if !taken {
            self.close(IO);
            self.close(ADMIN);
            self.summary.connections_ended += 1;
        }
        if command.hold && taken {
            return;
        }
        let alone = self.round_commands == 1;
        let before = self.ended.len();
        self.settle_round();
        if alone
            && command.entry.opcode() == nvm::READ
            && place == IO
            && command.entry.nsid() == WATCHED_NSID
            && let Some((_, completion, data)) = self.ended.get(before)
            && completion.status.is_success()
            && let Some(shadow) = &self.shadow
        {
            let at = (command.entry.lba() * u64::from(self.block_bytes)) as usize;
            let bytes = (command.entry.blocks() * self.block_bytes) as usize;
            assert!(data[..] == shadow[at..at + bytes], "a Read gave other bytes: {:?}", command.entry);
            self.summary.reads_compared += 1;
        }
        self.ended.clear();
    }

    fn finish_round(&mut self) {
        self.settle_round();
        self.ended.clear();
    }

    /// Ends the commands under way and compares the namespace with what they may have done.
    fn settle_round(&mut self) {
        self.settle();
        let alone = std::mem::take(&mut self.round_commands) == 1;
        let success = alone && self.ended.first().is_some_and(|(_, completion, _)| completion.status.is_success());
        let effects = std::mem::take(&mut self.round);
        if effects.iter().all(|effect| matches!(effect, Effect::None)) {
            return;
        }
        let Some(actual) = self.read_all() else {
            let free = effects.iter().any(|effect| matches!(effect, Effect::Any));
            assert!(free || self.shadow.is_none(), "namespace 1 cannot be read any more");
            self.shadow = None;
            return;
        };
        let Some(shadow) = &mut self.shadow else { return };
        for effect in effects {
            let ranges: Vec<(u64, u64, Option<Vec<u8>>)> = match effect {
                Effect::None => continue,
                Effect::Any => {
                    shadow.copy_from_slice(&actual);
                    continue;
                }
                Effect::Range(at, data) => vec![(at, data.len() as u64, success.then_some(data))],
                Effect::Zeroes(ranges) => {
                    let zeroes = |bytes: u64| success.then(|| vec![0; bytes as usize]);
                    ranges.into_iter().map(|(at, bytes)| (at, bytes, zeroes(bytes))).collect()
                }
            };
            for (at, bytes, content) in ranges {
                let end = at.saturating_add(bytes).min(shadow.len() as u64) as usize;
                let start = (at as usize).min(end);
                match content {
                    Some(content) => {
                        assert_eq!(content.len(), end - start, "a command past the end succeeded");
                        shadow[start..end].copy_from_slice(&content);
                        self.summary.changes_compared += 1;
                    }
                    None => shadow[start..end].copy_from_slice(&actual[start..end]),
                }
            }
        }
        self.check_against(&actual);
    }

    fn check_against(&mut self, actual: &[u8]) {
        let Some(shadow) = &self.shadow else { return };
        self.summary.namespace_compared += 1;
        if shadow[..] != *actual {
            let at = (0..shadow.len()).find(|at| shadow[*at] != actual[*at]).expect("they differ");
            panic!("byte {at} of namespace 1 is {:#x}, must be {:#x}", actual[at], shadow[at]);
        }
    }

    fn compare(&mut self) {
        let actual = self.read_all().expect("namespace 1 can be read");
        self.check_against(&actual);
    }

    /// The namespace as the watching host reads it; `None` where it cannot be read.
    fn read_all(&mut self) -> Option<Vec<u8>> {
        let held = std::mem::take(&mut self.ended);
        let entry = self.transfer(nvm::READ);
        let (completion, data) = self.ask(WATCHER_IO, &entry, &[], None);
        self.ended = held;
        let bytes = self.blocks * u64::from(self.block_bytes);
        (completion.status.is_success() && data.len() as u64 == bytes).then_some(data)
    }

    /// Goes, and checks that nothing is left behind.
    fn leave(mut self) -> Summary {
        (0..LINKS).rev().for_each(|place| self.close(place));
        self.settle();
        let statistics = self.subsystem.statistics();
        assert_eq!(statistics.controllers, 0, "controllers are left");
        assert_eq!(statistics.buffer_bytes, 0, "data buffers are left");
        assert_eq!(self.subsystem.in_device(), 0, "requests are left");
        self.summary
    }
}

fn connect_command(queue_id: u16, controller_id: u16) -> (SubmissionEntry, Box<[u8; fabrics::CONNECT_DATA_BYTES]>) {
    let fields =
        ConnectCommand { record_format: 0, queue_id, queue_size: QUEUE_ENTRIES - 1, attributes: 0, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: [7; 16],
        controller_id,
        subsystem_nqn: SubsystemConfig::default().nqn,
        host_nqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".to_owned(),
    };
    let entry = fields.to_entry().with_sgl(Sgl::in_capsule(0, fabrics::CONNECT_DATA_BYTES as u32));
    (entry, data.to_bytes())
}
