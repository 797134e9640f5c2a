//! A host that is a bad neighbour, on a thread of its own until it is told to stop.
//!
//! Invariants: what the target ends, the flood begins anew; it sleeps where it can do no more, so that it takes no more of the processor
//! than its flood needs; it ends within moments of being told.

use crate::child::Ready;
use crate::failure::{Context, Failure, Outcome, fail};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use willow_host::Options;
use willow_host::nvme_tcp::Transfer;
use willow_host::nvme_tcp::polled::{PolledController, PolledQueue};
use willow_wire::pdu::{Data, Decoded, Decoder, Encoder, InitializeRequest, Pdu, Role};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::nvm;
use willow_wire::spec::{Sgl, SubmissionEntry, property};

/// Largest transfer of the target (MDTS).
const TRANSFER_BYTES: u32 = 4 << 20;
/// Commands of a flood by one queue.
const COMMANDS: u16 = 128;
/// Queues, and commands under way on each, of the flood of small reads: 48,000 in all.
const QUEUES: u16 = 48;
const DEPTH: u16 = 1000;
/// Connections that are kept idle.
const IDLE_MAX: usize = 1000;
/// Bytes that trickle at a time, and how often.
const TRICKLE_BYTES: u32 = 16;
const TRICKLE_INTERVAL: Duration = Duration::from_millis(1);
/// How long it sleeps where there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    LogPages,
    UnreadLogPages,
    SilentWrites,
    TrickledWrites,
    IdleConnections,
    Commands,
    Resets,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::LogPages,
        Kind::UnreadLogPages,
        Kind::SilentWrites,
        Kind::TrickledWrites,
        Kind::IdleConnections,
        Kind::Commands,
        Kind::Resets,
    ];

    /// As a figure's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::LogPages => "log_pages",
            Kind::UnreadLogPages => "unread_log_pages",
            Kind::SilentWrites => "silent_writes",
            Kind::TrickledWrites => "trickled_writes",
            Kind::IdleConnections => "idle_connections",
            Kind::Commands => "commands",
            Kind::Resets => "resets",
        }
    }

    /// As a person says it.
    pub fn description(self) -> &'static str {
        match self {
            Kind::LogPages => "log pages of 4 MiB, which it reads",
            Kind::UnreadLogPages => "log pages of 4 MiB, which it does not read",
            Kind::SilentWrites => "128 writes of 4 MiB without data",
            Kind::TrickledWrites => "writes of 4 MiB, 16 bytes a millisecond",
            Kind::IdleConnections => "connections that come and stay idle",
            Kind::Commands => "48,000 reads under way",
            Kind::Resets => "controllers that come and go",
        }
    }
}

/// A flood that goes on.
pub struct Flood {
    state: Arc<State>,
    thread: Option<JoinHandle<Outcome<()>>>,
}

struct State {
    stop: AtomicBool,
    done: AtomicU64,
}

impl State {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }
}

impl Flood {
    /// Begins one against a device whose namespace 1 has so many bytes.
    pub fn begin(kind: Kind, device: &Ready, range: u64) -> Outcome<Self> {
        let address: SocketAddr = device.listen.parse().context(|| format!("the address {}", device.listen))?;
        let state = Arc::new(State { stop: AtomicBool::new(false), done: AtomicU64::new(0) });
        let (shared, nqn) = (state.clone(), device.nqn.clone());
        let work = move || match kind {
            Kind::LogPages => log_pages(address, &nqn, &shared, true),
            Kind::UnreadLogPages => log_pages(address, &nqn, &shared, false),
            Kind::SilentWrites => writes(address, &nqn, &shared, false),
            Kind::TrickledWrites => writes(address, &nqn, &shared, true),
            Kind::IdleConnections => idle(address, &shared),
            Kind::Commands => commands(address, &nqn, &shared, range),
            Kind::Resets => resets(address, &nqn, &shared),
        };
        let thread = std::thread::Builder::new().name("flood".to_owned()).spawn(work);
        let thread = thread.context(|| "cannot start the flood's thread".to_owned())?;
        Ok(Flood { state, thread: Some(thread) })
    }

    /// What it has got done: answers, bytes that trickled, connections.
    pub fn done(&self) -> u64 {
        self.state.done.load(Ordering::Relaxed)
    }

    /// Ends it; an error is why it was no flood.
    pub fn end(mut self) -> Outcome<()> {
        self.state.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            _ => fail!("the flood's thread failed: please report this"),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection that sends what it is told, byte by byte where need be.
struct Raw {
    stream: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    received: Vec<u8>,
}

impl Raw {
    fn connect(address: SocketAddr, nqn: &str, queue_id: u16, controller_id: u16) -> Outcome<(Self, u16)> {
        let stream = TcpStream::connect(address).context(|| format!("cannot connect to {address}"))?;
        let made = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(ANSWER_TIME_MAX)));
        made.context(|| "cannot set up a socket".to_owned())?;
        let (encoder, decoder) = (Encoder::default(), Decoder::new(Role::Host));
        let mut raw = Raw { stream, encoder, decoder, received: Vec::new() };
        let mut bytes = Vec::new();
        Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
        raw.send(&bytes)?;
        raw.next()?;
        raw.decoder.initialize(false, false, 0);
        let command =
            ConnectCommand { record_format: 0, queue_id, queue_size: COMMANDS, attributes: 0, keep_alive_ms: 0 };
        let data = ConnectData {
            host_id: [9; 16],
            controller_id,
            subsystem_nqn: nqn.to_owned(),
            host_nqn: "nqn.2025-01.org.example:neighbour".to_owned(),
        };
        let entry = command.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
        let controller = raw.ask(&entry, &data.to_bytes()[..])? as u16;
        if queue_id == 0 {
            for value in [0x46_0000, 0x46_0001] {
                raw.ask(&fabrics::property_set(property::CC, value, false).with_cid(2), &[])?;
            }
        }
        Ok((raw, controller))
    }

    fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.stream.write_all(bytes).context(|| "the flood cannot send".to_owned())
    }

    fn ask(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Outcome<u64> {
        let mut bytes = Vec::new();
        self.encoder.command_with_data(&mut bytes, entry, data);
        self.send(&bytes)?;
        match self.next()? {
            Pdu::Response(completion) if completion.status.is_success() => Ok(completion.result),
            other => fail!("the flood was answered {other:?}"),
        }
    }

    /// The next PDU; its data are dropped.
    fn next(&mut self) -> Outcome<Pdu> {
        loop {
            if let Ok(Decoded::Head(head)) = self.decoder.decode(&self.received)
                && self.received.len() >= head.pdu_bytes
            {
                self.received.drain(..head.pdu_bytes);
                return Ok(head.pdu);
            }
            let mut chunk = vec![0; 1 << 16];
            match self.stream.read(&mut chunk) {
                Ok(0) => fail!("the target closed the flood's connection"),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::new(format!("the flood was not answered: {error}"))),
            }
        }
    }
}

/// Get Log Page of the longest length, again and again; read as fast as can be, or not at all.
fn log_pages(address: SocketAddr, nqn: &str, state: &State, reads: bool) -> Outcome<()> {
    let page = GetLogPage {
        page: log::ERROR,
        specific: 0,
        retain_event: true,
        bytes: TRANSFER_BYTES.into(),
        offset: 0,
        csi: 0,
    };
    let entry = page.to_entry(0).with_sgl(Sgl::transport(TRANSFER_BYTES));
    let (mut raw, _) = Raw::connect(address, nqn, 0, CONTROLLER_DYNAMIC)?;
    let mut bytes = Vec::new();
    for cid in 0..COMMANDS - 1 {
        raw.encoder.command(&mut bytes, &entry.with_cid(cid), 0);
    }
    raw.stream.set_nonblocking(true).context(|| "a socket".to_owned())?;
    let mut sink = vec![0; 1 << 18];
    let (mut sent, mut received) = (0, 0u64);
    while state.goes_on() {
        if sent < bytes.len() {
            sent += raw.stream.write(&bytes[sent..]).unwrap_or(0);
        }
        match if reads { raw.stream.read(&mut sink) } else { Err(ErrorKind::WouldBlock.into()) } {
            Ok(0) => fail!("the target closed the flood's connection"),
            Ok(count) => {
                received += count as u64;
                // As many commands again as were answered.
                while received > u64::from(TRANSFER_BYTES) {
                    received -= u64::from(TRANSFER_BYTES);
                    state.count(1);
                    raw.encoder.command(
                        &mut bytes,
                        &entry.with_cid(((state.done.load(Ordering::Relaxed) - 1) % 127) as u16),
                        0,
                    );
                }
                if sent == bytes.len() {
                    (bytes, sent) = (Vec::new(), 0);
                }
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(())
}

/// Writes of the longest length, as many as a queue takes, whose data never come, or come by and by.
fn writes(address: SocketAddr, nqn: &str, state: &State, trickles: bool) -> Outcome<()> {
    while state.goes_on() {
        let (_admin, controller) = Raw::connect(address, nqn, 0, CONTROLLER_DYNAMIC)?;
        let (mut raw, _) = Raw::connect(address, nqn, 1, controller)?;
        let mut bytes = Vec::new();
        for cid in 0..COMMANDS {
            let entry =
                SubmissionEntry::new(nvm::WRITE).with_cid(cid).with_nsid(1).with_cdw(12, TRANSFER_BYTES / 4096 - 1);
            raw.encoder.command(&mut bytes, &entry.with_sgl(Sgl::transport(TRANSFER_BYTES)), 0);
        }
        raw.send(&bytes)?;
        let Pdu::ReadyToTransfer(ready) = raw.next()? else { fail!("the flood's writes were not asked for") };
        // The head of one PDU with as much as may be, then its data, drop by drop.
        let most = 1 << 20;
        let data = Data {
            cid: ready.cid,
            transfer_tag: ready.transfer_tag,
            offset: 0,
            bytes: most,
            last: false,
            success: false,
        };
        let mut head = Vec::new();
        raw.encoder.host_data(&mut head, &data);
        if trickles {
            raw.send(&head)?;
        }
        let mut left = most;
        while state.goes_on() && left > TRICKLE_BYTES {
            std::thread::sleep(TRICKLE_INTERVAL);
            if trickles {
                if raw.stream.write_all(&[7; TRICKLE_BYTES as usize]).is_err() {
                    // Ended for being slow: again.
                    break;
                }
                left -= TRICKLE_BYTES;
                state.count(1);
            }
        }
    }
    Ok(())
}

/// Connections that say nothing, ever more of them; the oldest go where the target has not ended them itself.
fn idle(address: SocketAddr, state: &State) -> Outcome<()> {
    let mut open = std::collections::VecDeque::new();
    while state.goes_on() {
        match TcpStream::connect(address) {
            Ok(stream) => {
                open.push_back(stream);
                state.count(1);
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        if open.len() > IDLE_MAX {
            open.pop_front();
        }
    }
    Ok(())
}

fn options(address: SocketAddr, nqn: &str) -> Options {
    let mut options = Options::new(address, nqn);
    options.keep_alive = Duration::ZERO;
    options
}

/// Small reads, tens of thousands of them under way at any time.
fn commands(address: SocketAddr, nqn: &str, state: &State, range: u64) -> Outcome<()> {
    let mut options = options(address, nqn);
    (options.queues, options.depth) = (QUEUES, DEPTH);
    let circumstance = || "the flood cannot attach".to_owned();
    let mut controller = PolledController::connect(&options).context(circumstance)?;
    let mut queues: Vec<PolledQueue> =
        (0..QUEUES).map(|_| controller.open_queue()).collect::<Result<_, _>>().context(circumstance)?;
    let blocks = range / 4096;
    let (mut number, mut ended) = (0u64, Vec::new());
    let mut spare: Vec<Vec<u8>> = Vec::new();
    while state.goes_on() {
        let mut moved = 0;
        for queue in &mut queues {
            while queue.has_room() && state.goes_on() {
                number = number.wrapping_add(1);
                let entry = SubmissionEntry::new(nvm::READ).with_nsid(1).with_lba(number.wrapping_mul(0x9e37) % blocks);
                let buffer = spare.pop().unwrap_or_else(|| vec![0; 4096]);
                if queue.submit(number, entry, Transfer::FromController(buffer)).is_err() {
                    break;
                }
            }
            moved += queue.poll(&mut ended).context(|| "the flood's connection broke".to_owned())?;
            spare.extend(ended.drain(..).map(|completed| completed.buffer));
        }
        state.count(moved as u64);
        if moved == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Controllers that come, get a queue, and go without a word.
fn resets(address: SocketAddr, nqn: &str, state: &State) -> Outcome<()> {
    let options = options(address, nqn);
    while state.goes_on() {
        let circumstance = || "the flood cannot attach".to_owned();
        let mut controller = PolledController::connect(&options).context(circumstance)?;
        drop(controller.open_queue().context(circumstance)?);
        state.count(1);
    }
    Ok(())
}
