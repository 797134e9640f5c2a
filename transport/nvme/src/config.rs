//! What a subsystem is made of, and the bounds of everything in it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::access::Access;
use crate::authentication::HostAuthentication;

/// Name of the subsystem where none is given.
pub const NQN_DEFAULT: &str = "nqn.2025-01.org.willow-ssd:willow";
/// The discovery subsystem's well-known name (NVMe Base 4.5.1).
pub const NQN_DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN (NVMe Base 4.5: 223 bytes).
pub const NQN_BYTES_MAX: usize = 223;

/// Most hosts that can be known by their keys.
pub const HOST_KEYS_MAX: usize = 4096;
/// Time between Connect, or the beginning of another authentication, and its end.
pub const AUTHENTICATION_LIMIT: Duration = Duration::from_secs(30);
/// Time that a host whose authentication failed has to close its connection itself.
pub const AUTHENTICATION_FAILED_LINGER: Duration = Duration::from_millis(500);

/// Time that a key for TLS which an authentication generated waits for its host to come by it.
pub const GENERATED_KEY_LIMIT: Duration = Duration::from_secs(60);
/// Most such keys of one host that wait; the oldest makes way.
pub const GENERATED_KEYS_MAX: usize = 16;

/// Most tickets at once, those in use included. A host has as many at most as it leaves free.
pub const TICKETS_MAX: usize = 2048;
/// What the names of hosts that come by a ticket begin with.
pub const TICKET_NQN_PREFIX: &str = "nqn.2025-01.org.willow-ssd:ticket:";
/// Highest number of a process.
pub const PROCESS_MAX: u32 = (1 << 19) - 1;

/// Most entries of a queue (CAP.MQES + 1, MAXCMD).
pub const QUEUE_ENTRIES_MAX: u16 = 1024;
/// Most I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 64;
/// Most controllers, discovery controllers included.
pub const CONTROLLERS_MAX: usize = 1536;
/// Of them discovery controllers, and those whose host has not proved itself yet: past it, the one that was idle longest makes way.
pub const UNPROVED_CONTROLLERS_MAX: usize = 512;
/// Most transport connections with a queue or about to have one.
pub const CONNECTIONS_MAX: usize = 4096;
/// Of them at most that have proved nothing, or are discovery controllers': past it, the one that was idle longest makes way.
pub const UNPROVED_CONNECTIONS_MAX: usize = 1024;
/// Most bytes that the target holds for a connection that has proved nothing: received, answered and not yet sent.
pub const UNPROVED_CONNECTION_BYTES_MAX: usize = 192 << 10;
/// Most bytes that it holds for all of these; one that holds nothing gets a small buffer beyond it.
pub const UNPROVED_BYTES_MAX: usize = 32 << 20;
/// Completions of a queue that has proved nothing, made and not yet taken by the transport.
pub const UNPROVED_COMPLETIONS_MAX: u32 = 32;
/// A buffer up to here, framing included, is small: who holds nothing gets it at once.
pub const SMALL_BUFFER_BYTES: usize = 17 << 10;
/// Answers of admin commands that are made between two looks at the device: past it, those that would bring more wait for the next.
pub const ANSWERS_A_TURN_BYTES_MAX: usize = 1 << 20;
/// Bytes of a host, data of transfers left out, that are taken between two looks at the device while other hosts have connections.
pub const SENT_A_TURN_BYTES_MAX: usize = 64 << 10;
/// Requests of a host in the device at most while other hosts have connections: the device serves all hosts in order of arrival, so that
/// this is how many may lie in front of another host's.
pub const DEVICE_PLACES_BESIDE_OTHERS: u32 = 512;
/// Data in capsules of a connection that are taken whatever its host holds: they move on without anything else from it.
pub const CAPSULES_BYTES_MIN: usize = 64 << 10;
/// Requests of all hosts in the device at once.
pub const DEVICE_PLACES: u32 = 8192;
/// Requests of one host that go into the device whatever others have there.
pub const DEVICE_PLACES_MIN: u32 = 16;
/// The same for who came by a ticket; these are not counted among the places of all hosts.
pub const TICKET_PLACES_MIN: u32 = 4;
/// How soon a request that the device refused is tried again where nothing else of the host's ends meanwhile.
pub const DEVICE_RETRY: Duration = Duration::from_millis(1);
/// Longest wait of a request for a place in the device, below the 30 s after which hosts lose patience; past it, it is given back.
pub const DEVICE_WAIT_MAX: Duration = Duration::from_secs(20);
/// Time without a command after which a discovery controller without keep alive ends (NVMe Base 3.1.3.3: two minutes).
pub const DISCOVERY_IDLE_LIMIT: Duration = Duration::from_secs(120);
/// Largest transfer of a command: MDTS 10 in units of 4 KiB (CAP.MPSMIN).
pub const TRANSFER_BYTES_MAX: u32 = 4 << 20;
/// MDTS.
pub const MDTS: u8 = 10;
/// MDTS of a discovery controller, whose longest answer is its log: 64 KiB.
pub const DISCOVERY_MDTS: u8 = 4;
/// Largest Verify: VSL, same unit.
pub const VSL: u8 = 10;
/// Largest Write Zeroes: WZSL, same unit; 32 MiB.
pub const WZSL: u8 = 13;
/// Largest Write Uncorrectable: WUSL, same unit; as many blocks of 512 bytes as may be marked in a namespace.
pub const WUSL: u8 = 9;
const _: () = assert!(4096 << WUSL == willow_device::MARKED_BLOCKS_MAX * 512);
/// Most data in a command capsule (IOCCSZ): a stripe, and the arguments of the RPC that writes it.
pub const IN_CAPSULE_BYTES_MAX: u32 = 8192 + 64;
/// Most data in a command capsule of the admin queue and of fabrics commands (NVMe/TCP 3.3.2.2).
pub const ADMIN_IN_CAPSULE_BYTES_MAX: u32 = 8192;
/// Bytes of a submission queue entry, which lies in front of data that are fetched for an admin command.
pub const ADMIN_ENTRY_BYTES: usize = 64;
/// Async Event Requests that a controller keeps (AERL + 1).
pub const EVENT_REQUESTS_MAX: usize = 4;
/// Aborts under way at once (ACL + 1). One ends at once, so that this is never reached; but for each the device looks through all its requests, and so
/// many, and one, are done between two looks at the device, of all hosts together.
pub const ABORTS_MAX: u8 = 4;
/// Entries of a controller's error log (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 64;
/// Receive commands (86h) parked on one queue.
pub const RECEIVES_PARKED_MAX: usize = 64;
/// Longest time that a Receive is parked: less than the 30 s after which hosts lose patience.
pub const RECEIVE_PARKED_MS_MAX: u32 = 20_000;
/// Highest NSID that there can be (NN).
pub const NSID_MAX: u32 = 4096;
/// Namespaces named in the changed namespace list before it says "too many" (NVMe Base 5.16.1.5).
pub const CHANGED_NAMESPACES_MAX: usize = 1024;
/// Granularity of keep alive timeouts: KAS, in 100 ms.
pub const KEEP_ALIVE_GRANULARITY_100MS: u16 = 1;
/// Bytes of data buffers in use at a time, all connections together; past it, connections wait.
pub const BUFFER_BUDGET_BYTES: usize = 512 << 20;
/// RPCs of one step of a command that is done in steps (Dataset Management).
pub const STEP_RPCS_MAX: usize = 64;
/// Bytes of one SPU's bank that such a step covers.
pub const STEP_BANK_BYTES: u64 = 8 << 20;

/// Bytes that one Copy moves: the host's share of buffers has room for the data, which are read before any is written.
pub const COPY_BYTES_MAX: u32 = 1 << 20;
/// Source ranges of a Copy (MSRC + 1).
pub const COPY_RANGES_MAX: u16 = 16;

/// Ranges that fused operations of one host have taken at most; its others wait.
pub const FUSED_RANGES_MAX: usize = 8;
/// Queues and commands that are looked at in one turn of the device for what fused operations have to wait for; the rest in the next.
pub const FUSED_LOOKS_A_TURN_MAX: usize = 2048;

/// Most referrals of the discovery log.
pub const REFERRALS_MAX: usize = 16;

/// An address that is listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// Address and port.
    pub address: SocketAddr,
    /// Connections there have to be TLS, whoever comes.
    pub tls_required: bool,
    /// State of the namespaces for hosts that come there (ANA).
    pub access: Access,
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        ListenAddress { address, tls_required: false, access: Access::Optimized }
    }
}

/// A weakness that somebody planted, which tests of the whole must notice.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hole {
    /// Nobody has to prove what the name says that he connects by.
    AsksForNoProof,
    /// A ticket is as good as new when it has been used.
    TicketsStayGood,
    /// A command may have the identifier of one that is under way.
    ReusesIdentifiers,
    /// A fused operation keeps nobody from writing in between.
    FusedTakesNothing,
}

/// Whether a weakness is planted; never but in builds for tests.
#[cfg(feature = "testing")]
macro_rules! planted {
    ($subsystem:expr, $hole:ident) => {
        $subsystem.config.hole == Some(crate::config::Hole::$hole)
    };
}
#[cfg(not(feature = "testing"))]
macro_rules! planted {
    ($subsystem:expr, $hole:ident) => {
        false
    };
}
pub(crate) use planted;

/// What is told to hosts about the subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Name; see [`SubsystemConfig::validate`].
    pub nqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Which start of a device it is that loses with its process what it answered and did not flush: another number each time; 0: it loses nothing by that.
    pub start: u64,
    /// Addresses that the discovery log tells: filled in by the transport when it listens.
    pub addresses: Vec<ListenAddress>,
    /// Addresses of other discovery controllers that the discovery log names (referrals).
    pub referrals: Vec<SocketAddr>,
    /// Bytes of data buffers in use at a time.
    pub buffer_budget_bytes: usize,
    /// Hosts that may connect, and how they prove themselves; `None`: any may, unproven.
    pub authentication: Option<HostAuthentication>,
    /// What tests plant.
    #[cfg(feature = "testing")]
    pub hole: Option<Hole>,
}

impl Default for SubsystemConfig {
    fn default() -> Self {
        SubsystemConfig {
            nqn: NQN_DEFAULT.to_owned(),
            serial: "WILLOW0001".to_owned(),
            start: 0,
            addresses: Vec::new(),
            referrals: Vec::new(),
            buffer_budget_bytes: BUFFER_BUDGET_BYTES,
            authentication: None,
            #[cfg(feature = "testing")]
            hole: None,
        }
    }
}

impl SubsystemConfig {
    /// Checks the values; the error names the field and what it may be.
    pub fn validate(&self) -> Result<(), String> {
        if !is_nqn(self.nqn.as_bytes()) || self.nqn == NQN_DISCOVERY {
            return Err(format!("nqn is {:?}, must be \"nqn.YYYY-MM.DOMAIN:NAME\" of at most 223 bytes", self.nqn));
        }
        if self.serial.is_empty() || self.serial.len() > 20 || !self.serial.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return Err(format!("serial is {:?}, must be 1 to 20 printable ASCII characters", self.serial));
        }
        if self.buffer_budget_bytes < 16 << 20 {
            return Err(format!("buffer_budget_bytes is {}, must be at least 16 MiB", self.buffer_budget_bytes));
        }
        if self.referrals.len() > REFERRALS_MAX {
            return Err(format!("there are {} referrals, at most {REFERRALS_MAX} are possible", self.referrals.len()));
        }
        if let Some(nowhere) = self.referrals.iter().find(|at| at.ip().is_unspecified() || at.port() == 0) {
            return Err(format!("no host can reach the referral {nowhere}: write an address and a port"));
        }
        match &self.authentication {
            Some(authentication) => authentication.validate(),
            None => Ok(()),
        }
    }
}

/// True for a name that can be an NQN: `nqn.`, four digits, `-`, two digits, `.`, more; printable, at most 223 bytes.
pub fn is_nqn(name: &[u8]) -> bool {
    if name.len() < 13 || name.len() > NQN_BYTES_MAX || !name.starts_with(b"nqn.") {
        return false;
    }
    let digit = |at: usize| name[at].is_ascii_digit();
    (4..8).all(digit)
        && name[8] == b'-'
        && digit(9)
        && digit(10)
        && name[11] == b'.'
        && name.iter().all(|byte| *byte > 0x20 && *byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(is_nqn(NQN_DISCOVERY.as_bytes()) && is_nqn(NQN_DEFAULT.as_bytes()));
        assert!(is_nqn(b"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"));
        for bad in [&b"nqn"[..], b"", b"iqn.2014-08.org.x:y", b"nqn.14-08.org.x:y", &[b'n'; 300]] {
            assert!(!is_nqn(bad));
        }
        assert!(SubsystemConfig::default().validate().is_ok());
        assert!(SubsystemConfig { nqn: NQN_DISCOVERY.into(), ..Default::default() }.validate().is_err());
        assert!(SubsystemConfig { serial: "x".repeat(21), ..Default::default() }.validate().is_err());
    }
}
