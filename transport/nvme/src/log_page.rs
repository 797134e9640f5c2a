//! Log pages (NVMe Base 5.16): their contents. Pure functions from counters and tables to bytes; the admin commands cut out
//! what a host asked for.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use willow_device::CommandSet;
use willow_device::media::delegate::FlashHealth;

use crate::bytes::Put;
use crate::config::*;
use willow_wire::spec::{Status, log, opcode, tunnel};

/// LID 00h, Supported Log Pages: 256 descriptors, bit 0 where a page is supported.
pub fn supported(discovery: bool) -> Vec<u8> {
    let mut out = vec![0; 1024];
    let pages: &[u8] = if discovery {
        &[log::SUPPORTED_PAGES, log::ERROR, log::DISCOVERY]
    } else {
        &[
            log::SUPPORTED_PAGES,
            log::ERROR,
            log::SMART,
            log::FIRMWARE_SLOT,
            log::CHANGED_NAMESPACES,
            log::RESERVATION,
            log::COMMAND_EFFECTS,
            log::ANA,
            log::FEATURE_EFFECTS,
            log::MANAGEMENT_EFFECTS,
        ]
    };
    for page in pages {
        out.put32(usize::from(*page) * 4, 1);
    }
    out
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug)]
pub struct ErrorEntry {
    /// Queue of the command.
    pub sqid: u16,
    /// Its identifier.
    pub cid: u16,
    /// Status that it was answered with.
    pub status: Status,
    /// Byte of the command that is wrong, or FFFFh.
    pub byte: u16,
    /// First block, where there is one.
    pub lba: u64,
    /// Namespace.
    pub nsid: u32,
    /// Command set.
    pub csi: u8,
    /// Opcode.
    pub opcode: u8,
}

/// LID 01h, Error Information: the newest [`ERROR_LOG_ENTRIES`] failures of a controller.
#[derive(Default)]
pub struct ErrorLog {
    entries: VecDeque<(u64, ErrorEntry)>,
    count: u64,
}

impl ErrorLog {
    /// Adds a failure.
    pub fn push(&mut self, entry: ErrorEntry) {
        self.count += 1;
        if self.entries.len() == ERROR_LOG_ENTRIES {
            self.entries.pop_back();
        }
        self.entries.push_front((self.count, entry));
    }

    /// Failures over the controller's life.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The page, newest first.
    pub fn page(&self) -> Vec<u8> {
        let mut out = vec![0; ERROR_LOG_ENTRIES * 64];
        for (slot, (number, entry)) in out.chunks_exact_mut(64).zip(&self.entries) {
            slot.put64(0, *number);
            slot.put16(8, entry.sqid);
            slot.put16(10, entry.cid);
            // Bit 0 is the phase tag, which queues over fabrics do not have.
            slot.put16(12, entry.status.with_more().to_field());
            slot.put16(14, entry.byte);
            slot.put64(16, entry.lba);
            slot.put32(24, entry.nsid);
            // TRTYPE: TCP.
            slot[29] = 3;
            slot[30] = entry.csi;
            slot[31] = entry.opcode;
            // Log page version 1: CSI and opcode are valid.
            slot[63] = 1;
        }
        out
    }
}

/// Available spare below which SMART warns, in percent.
const SPARE_THRESHOLD_PERCENT: u8 = 10;

/// What SMART counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmartView {
    /// Operations on a bank fail.
    pub bank_failed: bool,
    /// How far through its life the flash is; media of other kinds do not wear out.
    pub flash: FlashHealth,
    /// Bytes read and written by hosts.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Commands that read.
    pub read_commands: u64,
    /// Commands that wrote.
    pub write_commands: u64,
    /// Of the machine; 0: it tells none.
    pub temperature_kelvin: u16,
    /// Time with commands under way.
    pub busy_ns: u64,
    /// Time since the start.
    pub up_ns: u64,
    /// Commands that failed for the media's sake; of flash as a whole what its FTL says, which outlives restarts.
    pub media_errors: u64,
    /// Entries that all error logs ever got.
    pub error_entries: u64,
    /// (used, total) bytes of the media.
    pub capacity: (u64, Option<u64>),
}

/// LID 02h, SMART / Health Information (NVMe Base 5.16.1.3). The temperature is that of the machine, where it tells one, else 0. Counts
/// are since the start; so there is one power cycle and no shutdown that was unsafe.
pub fn smart(view: &SmartView) -> Vec<u8> {
    let mut out = vec![0; 512];
    let warnings = [
        (view.flash.spare_percent < SPARE_THRESHOLD_PERCENT, log::SMART_WARNING_SPARE),
        (view.bank_failed, log::SMART_WARNING_RELIABILITY),
        (view.flash.is_read_only, log::SMART_WARNING_READ_ONLY),
    ];
    out[0] = warnings.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, warning)| all | warning);
    out.put16(1, view.temperature_kelvin);
    out[3] = view.flash.spare_percent;
    out[4] = SPARE_THRESHOLD_PERCENT;
    // Percentage used: 255 stands for more.
    out[5] = view.flash.used_percent.min(255) as u8;
    // Data units are thousands of 512 bytes, rounded up.
    let units = |bytes: u64| u128::from(bytes.div_ceil(512_000));
    out.put128(32, units(view.read_bytes));
    out.put128(48, units(view.write_bytes));
    out.put128(64, u128::from(view.read_commands));
    out.put128(80, u128::from(view.write_commands));
    out.put128(96, u128::from(view.busy_ns / 60_000_000_000));
    out.put128(112, 1);
    out.put128(128, u128::from(view.up_ns / 3_600_000_000_000));
    out.put128(160, u128::from(view.media_errors));
    out.put128(176, u128::from(view.error_entries));
    out
}

/// Commands of reservations, which every command set has.
const RESERVATIONS: [u8; 4] = [
    opcode::nvm::RESERVATION_REGISTER,
    opcode::nvm::RESERVATION_REPORT,
    opcode::nvm::RESERVATION_ACQUIRE,
    opcode::nvm::RESERVATION_RELEASE,
];

/// LID 03h, Firmware Slot: slot 1 is active.
pub fn firmware() -> Vec<u8> {
    let mut out = vec![0; 512];
    out[0] = 1;
    out.put_text(8, 8, env!("CARGO_PKG_VERSION"));
    out
}

/// LID 04h, Changed Attached Namespace List, in order; "too many" is a single FFFFFFFFh.
pub fn changed_namespaces(changed: &[u32]) -> Vec<u8> {
    let mut out = vec![0; CHANGED_NAMESPACES_MAX * 4];
    if changed.len() > CHANGED_NAMESPACES_MAX {
        out.put32(0, u32::MAX);
        return out;
    }
    for (place, nsid) in changed.iter().enumerate() {
        out.put32(place * 4, *nsid);
    }
    out
}

/// Effects of a command (NVMe Base, figure "Commands Supported and Effects Data Structure").
mod effect {
    /// Supported.
    pub const SUPPORTED: u32 = 1;
    /// May change what logical blocks (or pairs) hold.
    pub const CONTENT: u32 = 1 << 1;
    /// May change what a namespace can do: its format.
    pub const CAPABILITY: u32 = 1 << 2;
    /// May change how many namespaces there are.
    pub const INVENTORY: u32 = 1 << 3;
    /// Scope of a feature: a namespace, a controller (NVMe Base, figure "Feature Identifiers Effects").
    pub const NAMESPACE: u32 = 1 << 20;
    pub const CONTROLLER: u32 = 1 << 21;
}

/// LID 12h, Feature Identifiers Supported and Effects: `is_supported` says which there are.
pub fn feature_effects(is_supported: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = vec![0; 1024];
    for feature in (0..=u8::MAX).filter(|feature| is_supported(*feature)) {
        let scope =
            if feature == willow_wire::spec::feature::ERROR_RECOVERY { effect::NAMESPACE } else { effect::CONTROLLER };
        out.put32(usize::from(feature) * 4, effect::SUPPORTED | scope);
    }
    out
}

/// LID 13h, NVMe-MI Commands Supported and Effects: there are none.
pub fn management_effects() -> Vec<u8> {
    vec![0; 4096]
}

/// LID 05h, Commands Supported and Effects, for one command set; `None`: one that is not supported, so that its commands are not.
pub fn effects(set: Option<CommandSet>) -> Vec<u8> {
    use effect::*;
    use opcode::{admin, kv, nvm};
    let mut out = vec![0; 4096];
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
        willow_wire::spec::ticket::ISSUE,
        willow_wire::spec::ticket::WITHDRAW,
    ] {
        out.put32(usize::from(opcode) * 4, SUPPORTED);
    }
    out.put32(usize::from(admin::FORMAT_NVM) * 4, SUPPORTED | CONTENT | CAPABILITY);
    for opcode in [admin::NAMESPACE_MANAGEMENT, admin::NAMESPACE_ATTACHMENT] {
        out.put32(usize::from(opcode) * 4, SUPPORTED | INVENTORY);
    }
    let mut io = |opcode: u8, effects: u32| out.put32(1024 + usize::from(opcode) * 4, SUPPORTED | effects);
    match set {
        None => return out,
        Some(CommandSet::Nvm) => {
            for opcode in [nvm::FLUSH, nvm::READ, nvm::COMPARE, nvm::VERIFY] {
                io(opcode, 0);
            }
            for opcode in RESERVATIONS {
                io(opcode, 0);
            }
            for opcode in [nvm::WRITE, nvm::WRITE_UNCORRECTABLE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT, nvm::COPY]
            {
                io(opcode, CONTENT);
            }
        }
        Some(CommandSet::Kv) => {
            for opcode in [nvm::FLUSH, kv::RETRIEVE, kv::LIST, kv::EXIST, kv::RETRIEVE_ITEM] {
                io(opcode, 0);
            }
            for opcode in RESERVATIONS {
                io(opcode, 0);
            }
            for opcode in [kv::STORE, kv::DELETE, kv::STORE_ITEM, kv::DELETE_ITEM, kv::TOUCH, kv::SWEEP, kv::CLEAR] {
                io(opcode, CONTENT);
            }
        }
    }
    // What an app does with an RPC is its own affair: it may change content. A namespace made by the control service is
    // announced by an event.
    io(tunnel::SEND, CONTENT);
    io(tunnel::CALL, CONTENT);
    io(tunnel::RECEIVE, 0);
    out
}

/// What an entry of the discovery log is of (SUBTYPE, NVMe Base 5.16.1.23).
mod entry_of {
    pub const REFERRAL: u8 = 1;
    pub const SUBSYSTEM: u8 = 2;
    pub const CURRENT_DISCOVERY: u8 = 3;
}

/// An entry of the discovery log. `port` is its PORTID; `secured`: whether a secure channel is required, where that is known.
fn discovery_entry(subtype: u8, name: &str, at: SocketAddr, port: u16, secured: Option<bool>) -> Vec<u8> {
    let mut entry = vec![0; 1024];
    entry[0] = 3;
    entry[1] = if at.is_ipv4() { 1 } else { 2 };
    entry[2] = subtype;
    // TREQ: whether a secure channel is required, 0 where nothing is known of it; SQ flow control can be disabled.
    entry[3] = 1 << 2 | secured.map_or(0, |tls| if tls { 1 } else { 2 });
    // TSAS, SECTYPE: TLS 1.3 (NVMe/TCP 3.6.1.6).
    entry[768] = if secured == Some(true) { 2 } else { 0 };
    entry.put16(4, port);
    entry.put16(6, 0xffff);
    entry.put16(8, 128);
    let service = at.port().to_string();
    entry[32..32 + service.len()].copy_from_slice(service.as_bytes());
    let name = &name.as_bytes()[..name.len().min(NQN_BYTES_MAX)];
    entry[256..256 + name.len()].copy_from_slice(name);
    let ip = at.ip().to_string();
    entry[512..512 + ip.len()].copy_from_slice(ip.as_bytes());
    entry
}

/// LID 70h, Discovery (NVMe Base 5.16.1.23): an entry for the subsystem at each address that is listened on, the discovery subsystem
/// itself, and the other discovery subsystems that hosts are referred to. `local` stands in for an address that means "any".
pub fn discovery(config: &SubsystemConfig, local: Option<IpAddr>, tls: bool, generation: u64) -> Vec<u8> {
    let mut entries = Vec::new();
    for (subtype, name) in [(entry_of::SUBSYSTEM, config.nqn.as_str()), (entry_of::CURRENT_DISCOVERY, NQN_DISCOVERY)] {
        for (port, ListenAddress { address, tls_required, .. }) in (1..).zip(&config.addresses) {
            let ip = if address.ip().is_unspecified() { local.unwrap_or(address.ip()) } else { address.ip() };
            let at = SocketAddr::new(ip, address.port());
            entries.push(discovery_entry(subtype, name, at, port, Some(tls || *tls_required)));
        }
    }
    // A referral is no port of this subsystem.
    let referred = config.referrals.iter().map(|at| discovery_entry(entry_of::REFERRAL, NQN_DISCOVERY, *at, 0, None));
    entries.extend(referred);
    let mut out = vec![0; 1024];
    out.put64(0, generation);
    out.put64(8, entries.len() as u64);
    entries.into_iter().for_each(|entry| out.extend(entry));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_log_keeps_the_newest() {
        let mut log = ErrorLog::default();
        let entry = ErrorEntry {
            sqid: 1,
            cid: 2,
            status: Status::LBA_OUT_OF_RANGE.with_do_not_retry(),
            byte: 40,
            lba: 3,
            nsid: 4,
            csi: 0,
            opcode: 2,
        };
        (0..100).for_each(|_| log.push(entry));
        let page = log.page();
        assert_eq!((page.len(), page[0], page[63 * 64], log.count()), (4096, 100, 37, 100));
        assert_eq!(&page[8..16], &[1, 0, 2, 0, 0x00, 0xc1, 40, 0]);
    }

    #[test]
    fn discovery_names_what_a_host_can_reach() {
        let plain_address = ListenAddress::from("0.0.0.0:4420".parse::<std::net::SocketAddr>().unwrap());
        let tls_address =
            ListenAddress { address: "[::1]:9".parse().unwrap(), tls_required: true, access: Default::default() };
        let config = SubsystemConfig {
            nqn: "nqn.x".to_owned(),
            addresses: vec![plain_address, tls_address],
            referrals: vec!["10.0.3.4:8009".parse().unwrap()],
            ..SubsystemConfig::default()
        };
        let page = discovery(&config, Some("10.0.2.2".parse().unwrap()), true, 3);
        assert_eq!((page.len(), page[0], page[8]), (6 * 1024, 3, 5));
        assert_eq!((&page[1024..1027], &page[1024 + 32..1024 + 37]), (&[3, 1, 2][..], &b"4420\0"[..]));
        assert_eq!(&page[1024 + 512..1024 + 521], b"10.0.2.2\0");
        assert_eq!((page[1024 + 3], page[1024 + 768]), (5, 2));
        let referral = &page[5 * 1024..];
        assert_eq!((referral[2], referral[3], referral[4], referral[768]), (1, 4, 0, 0));
        assert!(referral[32..].starts_with(b"8009\0") && referral[512..].starts_with(b"10.0.3.4\0"));
        assert!(referral[256..].starts_with(NQN_DISCOVERY.as_bytes()));
        let plain = discovery(&config, None, false, 3);
        assert_eq!((plain[1024 + 3], plain[1024 + 768]), (6, 0));
        assert_eq!((plain[2048 + 3], plain[2048 + 768]), (5, 2), "where all have to come by TLS");
        assert_eq!(&page[2048 + 512..2048 + 516], b"::1\0");
        assert_eq!(page[3 * 1024 + 2], 3);
    }

    #[test]
    fn effects_differ_by_command_set() {
        let (nvm, kv) = (effects(Some(CommandSet::Nvm)), effects(Some(CommandSet::Kv)));
        // No scope: Linux warns of it, and LPA bit 5 does not claim it.
        assert!(nvm.chunks_exact(4).chain(kv.chunks_exact(4)).all(|word| word[2] & 0xf0 == 0 && word[3] == 0));
        let other = effects(None);
        assert!(other[1024..].iter().all(|byte| *byte == 0) && other[..1024] == nvm[..1024]);
        let features = feature_effects(|feature| feature == 7);
        assert_eq!((features.len(), &features[28..32], features[32]), (1024, &[1, 0, 0x20, 0][..], 0));
        assert_eq!((nvm[1024 + 8] & 1, nvm[1024 + 0x10 * 4] & 1), (1, 0));
        assert_eq!((kv[1024 + 0x10 * 4] & 3, kv[1024 + 0x14 * 4] & 3), (3, 1));
        assert_eq!(changed_namespaces(&[7; 1025])[..4], [255; 4]);
    }
}
