//! A scripted NVMe/TCP target, for tests of hosts: a small memory of blocks behind the real PDU codec, that misbehaves on
//! request. It shows what a host does about stalls, disconnects, corrupt digests, wrong identifiers and split transfers; it
//! is no device. Behind the feature `testing`.

pub mod items;
mod peer;

pub use crate::agent::fault::{CRASHED as AGENT_CRASHED, Fault as AgentFault, crash_next_at as crash_next_agent_at};

use peer::Peer;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use willow_wire::pdu::Termination;
use willow_wire::spec::Status;

/// NQN of the scripted subsystem.
pub const SUBSYSTEM_NQN: &str = "nqn.2026-01.org.example:scripted";
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 512;
/// Blocks of namespace 1.
pub const BLOCKS: u64 = 16384;

/// How it misbehaves on I/O queues. A fault takes effect once, at the next I/O command (not Connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command is never answered; an Abort of it is.
    Stall,
    /// The command is never answered, and neither is its Abort.
    StallForGood,
    /// The connection is closed instead of an answer.
    Disconnect,
    /// The connection is closed in the middle of an answer's header.
    DisconnectInHeader,
    /// The data digest of its data is wrong (where digests are on).
    CorruptDataDigest,
    /// The header digest of its answer is wrong (where digests are on).
    CorruptHeaderDigest,
    /// The answer names a command that is not in flight.
    WrongCid,
    /// The answer comes twice.
    Twice,
    /// Data past the end of the host's buffer.
    DataPastEnd,
    /// An R2T for more than the command's data.
    TransferPastEnd,
    /// A PDU type that does not exist.
    BadType,
    /// The controller terminates the connection.
    Terminate,
    /// The command fails with this status.
    Status(Status),
}

/// How it behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// IOCCSZ in bytes of data.
    pub capsule_data_bytes: u32,
    /// MDTS.
    pub mdts: u8,
    /// MAXH2CDATA.
    pub host_data_bytes_max: u32,
    /// Most bytes of one R2T.
    pub transfer_bytes_max: u32,
    /// Most bytes of one C2HData.
    pub data_bytes_max: u32,
    /// CPDA.
    pub alignment: u8,
    /// Reads end with the SUCCESS flag instead of a response.
    pub success_flag: bool,
    /// Answers go out in writes of at most this many bytes.
    pub write_bytes_max: usize,
    /// Most entries of a queue (MQES + 1).
    pub queue_entries_max: u16,
    /// I/O queues that it gives.
    pub queues: u16,
    /// The next fault.
    pub fault: Option<Fault>,
    /// New connections are refused while this is true.
    pub refuse: bool,
    /// It is one of Willow's that forgets with its process, at this start; 0: another.
    pub start: u64,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            capsule_data_bytes: 4096,
            mdts: 5,
            host_data_bytes_max: 131_072,
            transfer_bytes_max: 131_072,
            data_bytes_max: 131_072,
            alignment: 0,
            success_flag: true,
            write_bytes_max: usize::MAX,
            queue_entries_max: 128,
            queues: 4,
            fault: None,
            refuse: false,
            start: 0,
        }
    }
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    memory: Mutex<Vec<u8>>,
    stop: AtomicBool,
    connections: AtomicU64,
    commands: AtomicU64,
    aborts: AtomicU64,
    terminations: Mutex<Vec<Termination>>,
    /// Grows with each namespace event.
    events: AtomicU64,
    /// Stalled commands, and whether an Abort finds them: (queue, cid, for good), and the writer of that queue.
    stalled: Mutex<Vec<(u16, u16, bool, TcpStream)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The target; it ends when it is dropped.
pub struct ScriptedTarget {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl ScriptedTarget {
    /// Listens on a free port of this machine.
    pub fn start(behaviour: Behaviour) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(behaviour),
            memory: Mutex::new(vec![0; BLOCKS as usize * BLOCK_BYTES as usize]),
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            aborts: AtomicU64::new(0),
            terminations: Mutex::new(Vec::new()),
            events: AtomicU64::new(0),
            stalled: Mutex::new(Vec::new()),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if lock(&accepting.behaviour).refuse {
                    continue;
                }
                accepting.connections.fetch_add(1, Ordering::Relaxed);
                let shared = accepting.clone();
                std::thread::spawn(move || {
                    let mut peer = Peer::new(shared, stream);
                    // An error is the end of the connection, which the host sees.
                    let _ = peer.run();
                });
            }
        });
        Ok(ScriptedTarget { shared, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// Changes its behaviour; what depends on the initialization counts for new connections.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.shared.behaviour));
    }
    /// Plants a fault.
    pub fn fault(&self, fault: Fault) {
        self.behave(|behaviour| behaviour.fault = Some(fault));
    }
    /// True where the planted fault has not happened yet.
    pub fn fault_is_pending(&self) -> bool {
        lock(&self.shared.behaviour).fault.is_some()
    }
    /// Tells all hosts that a namespace has changed.
    pub fn namespace_event(&self) {
        self.shared.events.fetch_add(1, Ordering::Relaxed);
    }
    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
    /// I/O commands received so far.
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }
    /// Aborts received so far.
    pub fn aborts(&self) -> u64 {
        self.shared.aborts.load(Ordering::Relaxed)
    }
    /// Termination requests received so far.
    pub fn terminations(&self) -> Vec<Termination> {
        lock(&self.shared.terminations).clone()
    }
}

impl Drop for ScriptedTarget {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}
