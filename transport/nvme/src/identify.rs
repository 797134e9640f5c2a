//! Identify data structures (NVMe Base 5.17, NVM 4.1.5, KV 4.1.5): what the subsystem says of itself. Pure functions from
//! what is to 4096 bytes; nothing here changes anything.

use willow_device::{CommandSet, Namespace};

use crate::access;
use crate::bytes::Put;
use crate::config::*;
use willow_wire::spec::identify::{
    controller as at, independent as of_any, kv_namespace as of_pairs, namespace as of_namespace,
};

/// Length of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;
/// VS: NVMe 2.0.
pub const VERSION: u32 = 0x0002_0000;
/// Model number.
const MODEL: &str = "Willow programmable SSD";
/// Longest value of a KV namespace: a Store is one transfer.
pub const KV_VALUE_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
/// RESCAP: all types, persistent through power loss, and IEKEY as NVMe 1.3 and later have it.
const RESERVATIONS: u8 = 0xff;
/// Longest key of a KV namespace.
pub const KV_KEY_BYTES_MAX: u16 = 16;

/// A data structure.
pub type Structure = Box<[u8; IDENTIFY_BYTES]>;

fn blank() -> Structure {
    Box::new([0; IDENTIFY_BYTES])
}

/// Number of a command set (NVMe Base, figure "I/O Command Set Identifiers").
pub fn csi_number(set: CommandSet) -> u8 {
    match set {
        CommandSet::Nvm => 0,
        CommandSet::Kv => 1,
    }
}

/// What the controller structure tells beyond constants.
pub struct ControllerView<'a> {
    /// Its number.
    pub cntlid: u16,
    /// A discovery controller.
    pub discovery: bool,
    /// Serial number.
    pub serial: &'a str,
    /// Which start of the device it is, where that matters ([`crate::SubsystemConfig::start`]).
    pub start: u64,
    /// Subsystem's name (the discovery subsystem's for its controllers).
    pub nqn: &'a str,
    /// Completed writes can be lost by a power cut.
    pub volatile_write_cache: bool,
    /// (used, total) bytes of the media.
    pub capacity: (u64, Option<u64>),
}

/// CNS 01h, Identify Controller (NVMe Base 5.17.2.1).
pub fn controller(view: &ControllerView<'_>) -> Structure {
    let mut out = blank();
    let data = &mut out[..];
    data.put_text(4, 20, view.serial);
    data.put_text(24, 40, MODEL);
    data.put_text(64, 8, env!("CARGO_PKG_VERSION"));
    data[77] = if view.discovery { DISCOVERY_MDTS } else { MDTS };
    data.put16(78, view.cntlid);
    data.put32(80, VERSION);
    // CTRATT: 128-bit host identifiers, those of Connect; of I/O controllers the list of granularities as well.
    data.put32(96, if view.discovery { 1 } else { 1 << 7 | 1 });
    data[111] = if view.discovery { 2 } else { 1 };
    data[258] = ABORTS_MAX - 1;
    data[259] = EVENT_REQUESTS_MAX as u8 - 1;
    // FRMW: one slot, read-only.
    data[260] = 1 << 1 | 1;
    data[262] = ERROR_LOG_ENTRIES as u8 - 1;
    data.put16(320, KEEP_ALIVE_GRANULARITY_100MS);
    data.put16(514, QUEUE_ENTRIES_MAX);
    // SGLS: SGLs without alignment; address as an offset into the capsule; transport data block descriptors.
    data.put32(536, 1 << 21 | 1 << 20 | 1);
    let nqn = view.nqn.as_bytes();
    data[768..768 + nqn.len().min(NQN_BYTES_MAX)].copy_from_slice(&nqn[..nqn.len().min(NQN_BYTES_MAX)]);
    if view.discovery {
        data.put32(92, OAES_DISCOVERY);
        // LPA: log page offsets.
        data[261] = 1 << 2;
        return out;
    }
    // CMIC: several ports and controllers, which may be of several hosts, and tell of asymmetric access.
    data[76] = 1 << 3 | 1 << 1 | 1;
    data[at::ANATT] = access::TRANSITION_SECONDS;
    data[at::ANACAP] = access::CAPABILITIES;
    data.put32(at::ANAGRPMAX, 1);
    data.put32(at::NANAGRPID, 1);
    // OAES: namespace attribute notices, and those of asymmetric access.
    data.put32(92, OAES);
    // OACS: namespace management and attachment, Format NVM.
    data.put16(256, 1 << 3 | 1 << 1);
    // FNA: a namespace is formatted by itself, and never all at once. SANICAP stays 0: Sanitize is refused.
    data[524] = 1 << 3;
    // LPA: SMART of each namespace, effects log, offsets. Bit 5 is not claimed, though its pages are there: it stands for the scope of commands as well, which
    // Linux (6.12) takes for an unusual effect.
    data[261] = 1 << 2 | 1 << 1 | 1;
    let (used, total) = view.capacity;
    if let Some(total) = total {
        data.put128(280, u128::from(total));
        data.put128(296, u128::from(total.saturating_sub(used)));
    }
    data[512] = 0x66;
    data[513] = 0x44;
    data.put32(516, NSID_MAX);
    // ONCS: compare, write uncorrectable, dataset management, write zeroes, save and select in features, reservations, timestamp, verify, copy.
    data.put16(520, 1 << 8 | 1 << 7 | 1 << 6 | 1 << 5 | 1 << 4 | 1 << 3 | 1 << 2 | 1 << 1 | 1);
    // FUSES: Compare and Write; ACWU stays one block, and each namespace says more (NACWU).
    data.put16(at::FUSES, 1);
    // VWC: Flush of all namespaces is supported (11b); bit 0 tells the truth.
    data[525] = 0b110 | u8::from(view.volatile_write_cache);
    // AWUN, AWUPF, ACWU: one logical block whatever the format (0's based); see `namespace` for more.
    // OCFS: source ranges of format 0.
    data.put16(534, 1);
    data.put32(540, NSID_MAX);
    data.put32(1792, (64 + IN_CAPSULE_BYTES_MAX) / 16);
    data.put32(1796, 1);
    data[1803] = 1;
    data.put64(at::START, view.start);
    out
}

/// Formats of block namespaces: blocks of 512 and of 4096 bytes.
pub const FORMATS: u16 = 2;

/// CNS 16h, Namespace Granularity List (NVM 4.1.5.4): one descriptor for all formats, size and capacity in bytes. Namespaces of a multiple
/// leave nothing of what is allocated unused.
pub fn granularity(bytes: u64) -> Structure {
    let mut out = blank();
    // NUM in byte 4 is 0's based; attributes bit 0 clear: the first descriptor holds for every format.
    out.put64(32, bytes);
    out.put64(40, bytes);
    out
}

/// Media give back the space of whole units of this (memory and files).
const DEALLOCATION_BYTES: u32 = 4096;

/// OAES of I/O controllers: namespace attribute notices, asymmetric namespace access change notices.
pub const OAES: u32 = 1 << 11 | 1 << 8;

/// OAES of discovery controllers: notices of a changed discovery log.
pub const OAES_DISCOVERY: u32 = 1 << 31;

/// CNS 00h, Identify Namespace (NVM 4.1.5.1). `None`: what all namespaces have in common (NSID FFFFFFFFh).
pub fn namespace(namespace: Option<&Namespace>, private: bool) -> Structure {
    let mut out = blank();
    let data = &mut out[..];
    // Two formats: 512 and 4096 bytes, no metadata. LBADS is the power of two.
    data[25] = 1;
    data[128 + 2] = 9;
    data[132 + 2] = 12;
    // NMIC bit 0: several controllers may have it.
    data[30] = u8::from(!private);
    data[31] = RESERVATIONS;
    // DLFEAT: deallocated blocks read as zeroes, Write Zeroes may deallocate.
    data[33] = 1 << 3 | 1;
    let Some(namespace) = namespace else { return out };
    let blocks = namespace.size_bytes / u64::from(namespace.block_bytes);
    data.put64(0, blocks);
    data.put64(8, blocks);
    data.put64(16, blocks);
    // NSFEAT bit 1: the atomic fields of the namespace hold. Within a stripe a write is one DMA on one SPU, which no other
    // command sees half done: NAWUN is a stripe with a boundary (NABSN) at each. NAWUPF is one block, but where the app has a log.
    data[24] = 1 << 1;
    data[26] = u8::from(namespace.block_bytes == 4096);
    let stripe_blocks = (namespace.stripe_bytes / namespace.block_bytes).max(1) as u16 - 1;
    data.put16(34, stripe_blocks);
    // NACWU, which NABSN bounds as well.
    data.put16(38, stripe_blocks);
    data.put16(40, stripe_blocks);
    if let Some(bytes) = atomic_io_host::write_bytes(&namespace.app, namespace.stripe_bytes) {
        // NAWUPF, and its boundary NABSPF; NABO stays 0.
        data.put16(36, (bytes / namespace.block_bytes).max(1) as u16 - 1);
        data.put16(44, stripe_blocks);
    }
    if namespace.stripe_bytes != willow_device::STRIPE_BYTES {
        // It was chosen, so hosts are told (NSFEAT bit 4): NPWG, NPWA and NOWS are a stripe, what one SPU writes with one DMA. NOIOB stays 0:
        // Linux would cut every longer command there, and one that spans all SPUs is done by all at once.
        data[24] |= 1 << 4;
        [64, 66, 72].into_iter().for_each(|field| data.put16(field, stripe_blocks));
        // NPDG, NPDA: media give space back by pages.
        let page_blocks = (DEALLOCATION_BYTES / namespace.block_bytes) as u16 - 1;
        [68, 70].into_iter().for_each(|field| data.put16(field, page_blocks));
    }
    // MSSRL, MCL, MSRC (0's based): what one Copy moves at most.
    let copy_blocks = COPY_BYTES_MAX / namespace.block_bytes;
    data.put16(74, copy_blocks as u16);
    data.put32(76, copy_blocks);
    data[80] = COPY_RANGES_MAX as u8 - 1;
    data.put128(48, u128::from(namespace.size_bytes));
    data.put32(of_namespace::ANAGRPID, access::GROUP);
    data[104..120].copy_from_slice(&namespace.nguid);
    out
}

/// CNS 05h for CSI 1, Identify Namespace of the key-value command set (KV 4.1.5.1).
pub fn kv_namespace(namespace: &Namespace) -> Structure {
    let mut out = blank();
    let data = &mut out[..];
    data.put64(0, namespace.size_bytes);
    data[26] = 1;
    data[27] = RESERVATIONS;
    data.put32(of_pairs::ANAGRPID, access::GROUP);
    data[48..64].copy_from_slice(&namespace.nguid);
    // KV format 0; NKVF is 0's based.
    data.put16(72, KV_KEY_BYTES_MAX);
    data.put32(76, KV_VALUE_BYTES_MAX);
    out
}

/// CNS 06h for CSI 0: limits of the NVM command set (NVM 4.1.5.2). DMRL, DMRSL, DMSL 0: no limit.
pub fn nvm_controller() -> Structure {
    let mut out = blank();
    out[0] = VSL;
    out[1] = WZSL;
    out[2] = WUSL;
    out
}

/// CNS 08h, what is independent of the command set (NVMe Base 5.17.2.8).
pub fn independent_namespace(private: bool) -> Structure {
    let mut out = blank();
    // NMIC: shared or not. NSTAT: ready.
    out[1] = u8::from(!private);
    out[2] = RESERVATIONS;
    out.put32(of_any::ANAGRPID, access::GROUP);
    out[14] = 1;
    out
}

/// CNS 03h, Namespace Identification Descriptors (NVMe Base 5.17.2.3): NGUID, the same as UUID, and CSI.
pub fn descriptors(namespace: &Namespace) -> Structure {
    let mut out = blank();
    // NIDT 2h and 3h: identities are made as UUIDs of version 4.
    for (at, kind) in [(0, 2), (20, 3)] {
        (out[at], out[at + 1]) = (kind, 16);
        out[at + 4..at + 20].copy_from_slice(&namespace.nguid);
    }
    out[40] = 4;
    out[41] = 1;
    out[44] = csi_number(namespace.csi);
    out
}

/// CNS 02h, 07h, 10h, 1Ah: the numbers above `after`, in order, as many as fit.
pub fn namespace_list(numbers: impl Iterator<Item = u32>, after: u32) -> Structure {
    let mut out = blank();
    for (place, nsid) in numbers.filter(|nsid| *nsid > after).take(IDENTIFY_BYTES / 4).enumerate() {
        out.put32(place * 4, nsid);
    }
    out
}

/// CNS 12h, 13h: controllers from `from` on, in order.
pub fn controller_list(numbers: impl Iterator<Item = u16>, from: u16) -> Structure {
    let mut out = blank();
    let mut count = 0;
    for cntlid in numbers.filter(|cntlid| *cntlid >= from).take(IDENTIFY_BYTES / 2 - 1) {
        count += 1;
        out.put16(count * 2, cntlid);
    }
    out.put16(0, count as u16);
    out
}

/// CNS 1Ch: the one combination of command sets that there is, NVM and KV (NVMe Base 5.17.2.20).
pub fn command_sets() -> Structure {
    let mut out = blank();
    out.put64(0, 1 << 1 | 1);
    out
}

/// A structure of zeroes: an inactive namespace, or a command set without fields of its own.
pub fn zeroes() -> Structure {
    blank()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_fields_stand_where_linux_looks() {
        let view = ControllerView {
            cntlid: 7,
            discovery: false,
            serial: "S1",
            start: 0x1122_3344_5566_7788,
            nqn: NQN_DEFAULT,
            volatile_write_cache: true,
            capacity: (10, Some(100)),
        };
        let data = controller(&view);
        assert_eq!(&data[4..8], b"S1  ");
        assert_eq!((data[78], data[77], data[76]), (7, 10, 11));
        assert_eq!(u32::from_le_bytes(data[1792..1796].try_into().unwrap()), 520);
        assert_eq!(data[525], 0b111);
        assert_eq!(data[3072..3080], view.start.to_le_bytes());
        assert!(data[24..].starts_with(at::WILLOW.as_bytes()));
        assert_eq!(controller(&ControllerView { volatile_write_cache: false, ..view })[525] & 1, 0);
    }

    #[test]
    fn namespace_formats() {
        let mut ns = Namespace {
            nsid: 1,
            csi: CommandSet::Nvm,
            size_bytes: 1 << 20,
            block_bytes: 512,
            base: 0,
            bank_bytes: 1 << 20,
            nguid: [9; 16],
            app: "base-io".to_owned(),
            stripe_bytes: 8192,
        };
        let data = namespace(Some(&ns), false);
        assert_eq!((u64::from_le_bytes(data[0..8].try_into().unwrap()), data[26], data[34]), (2048, 0, 15));
        ns.block_bytes = 4096;
        let data = namespace(Some(&ns), false);
        assert_eq!((u64::from_le_bytes(data[0..8].try_into().unwrap()), data[26], data[34], data[40]), (256, 1, 1, 1));
        assert_eq!((data[24], data[64], data[66], data[72]), (2, 0, 0, 0));
        ns.stripe_bytes = 65536;
        let data = namespace(Some(&ns), false);
        assert_eq!((data[24], data[34], data[40], data[46], data[64], data[66], data[72]), (18, 15, 15, 0, 15, 15, 15));
        assert_eq!((data[68], data[70]), (0, 0));
        let small = namespace(Some(&Namespace { block_bytes: 512, ..ns.clone() }), false);
        assert_eq!((small[64], small[68], small[70]), (127, 7, 7));
        assert_eq!((small[36], small[44]), (0, 0), "without a log a block is whole, and no more");
        let whole = |stripe_bytes| {
            let of = Namespace { app: "atomic-io".to_owned(), block_bytes: 512, stripe_bytes, ..ns.clone() };
            let data = namespace(Some(&of), false);
            [34, 36, 40, 42, 44].map(|field| u16::from_le_bytes(data[field..field + 2].try_into().unwrap()))
        };
        assert_eq!((whole(65536), whole(131_072)), ([127, 127, 127, 0, 127], [255, 127, 255, 0, 255]));
        let described = descriptors(&ns);
        assert_eq!((&described[..5], &described[20..25]), (&[2, 16, 0, 0, 9][..], &[3, 16, 0, 0, 9][..]));
        assert_eq!(&described[40..46], &[4, 1, 0, 0, 0, 0]);
        assert_eq!(&namespace_list([1, 2, 5].into_iter(), 1)[..12], &[2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&controller_list([1, 2, 5].into_iter(), 2)[..6], &[2, 0, 2, 0, 5, 0]);
    }
}
