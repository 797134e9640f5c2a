//! What Identify says about a controller and its namespaces, parsed once.

use willow_wire::bytes::{ascii, c_string, u16_at, u32_at, u64_at};
use willow_wire::spec::identify::{self, controller as at, descriptor, kv_namespace, namespace};
use willow_wire::spec::property::Capabilities;

/// Most data of one command where the controller names no limit.
const TRANSFER_BYTES_DEFAULT: u64 = 1 << 20;
/// Most data of one command that this host sends, whatever a controller offers.
pub const TRANSFER_BYTES_MAX: u64 = 64 << 20;

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerIdentity {
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Subsystem NQN.
    pub subsystem_nqn: String,
    /// Controller id.
    pub controller_id: u16,
    /// Version (VER).
    pub version: u32,
    /// Most data of one command, from MDTS, never 0.
    pub transfer_bytes_max: u64,
    /// Data that an I/O command may carry in its capsule, from IOCCSZ and ICDOFF.
    pub capsule_data_bytes: u32,
    /// Largest NSID.
    pub namespaces_max: u32,
    /// Optional NVM commands (ONCS).
    pub optional_commands: u16,
    /// Volatile write cache present.
    pub volatile_write_cache: bool,
    /// Optional asynchronous events (OAES).
    pub events: u32,
    /// Granularity of the keep alive timer in ms.
    pub keep_alive_granularity_ms: u32,
    /// Controller type (CNTRLTYPE).
    pub controller_type: u8,
    /// Of Willow's: which start of a device it is that loses with its process what it answered and did not flush; 0: it loses nothing by that.
    pub start: u64,
}

impl ControllerIdentity {
    /// From the data of CNS 01h and the controller's capabilities; the error says what makes no sense.
    pub fn parse(data: &[u8], capabilities: Capabilities) -> Result<Self, String> {
        if data.len() < identify::BYTES {
            return Err(format!("Identify returned {} bytes", data.len()));
        }
        let mdts = u32::from(data[at::MDTS]);
        let shift = capabilities.page_size_min_shift() + mdts;
        let transfer_bytes_max = if mdts == 0 {
            TRANSFER_BYTES_DEFAULT
        } else {
            1u64.checked_shl(shift).unwrap_or(u64::MAX).min(TRANSFER_BYTES_MAX)
        };
        let controller_type = data[at::CNTRLTYPE];
        let ioccsz = u32_at(data, at::IOCCSZ);
        let io = controller_type != at::TYPE_DISCOVERY;
        if io && (ioccsz != 0 && ioccsz < 4) {
            return Err(format!("IOCCSZ is {ioccsz}, less than a command"));
        }
        let in_capsule = u16_at(data, at::ICDOFF) == 0;
        let capsule = ioccsz.saturating_mul(16).saturating_sub(64).min(1 << 20);
        let model = ascii(&data[at::MN..at::MN + 40]);
        Ok(ControllerIdentity {
            start: if model.starts_with(at::WILLOW) { u64_at(data, at::START) } else { 0 },
            serial: ascii(&data[at::SN..at::SN + 20]),
            model,
            firmware: ascii(&data[at::FR..at::FR + 8]),
            subsystem_nqn: c_string(&data[at::SUBNQN..at::SUBNQN + 256]).unwrap_or_default().to_owned(),
            controller_id: u16_at(data, at::CNTLID),
            version: u32_at(data, at::VER),
            transfer_bytes_max,
            capsule_data_bytes: if in_capsule { capsule } else { 0 },
            namespaces_max: u32_at(data, at::NN),
            optional_commands: u16_at(data, at::ONCS),
            volatile_write_cache: data[at::VWC] & 1 != 0,
            events: u32_at(data, at::OAES),
            keep_alive_granularity_ms: u32::from(u16_at(data, at::KAS)) * 100,
            controller_type,
        })
    }
}

/// What kind of namespace, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Blocks (CSI 0).
    Block {
        /// Bytes of a logical block, without metadata.
        block_bytes: u32,
        /// Logical blocks.
        blocks: u64,
    },
    /// Keys and values (CSI 1).
    Kv {
        /// Size in bytes.
        bytes: u64,
        /// Longest key.
        key_bytes_max: u16,
        /// Longest value.
        value_bytes_max: u32,
    },
    /// Another command set.
    Other(
        /// CSI.
        u8,
    ),
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// NSID.
    pub nsid: u32,
    /// Globally unique id, zero where there is none.
    pub nguid: [u8; 16],
    /// Kind and shape.
    pub kind: NamespaceKind,
}

/// CSI in the descriptors of CNS 03h; 0 where they have none.
pub fn command_set(descriptors: &[u8]) -> u8 {
    let mut rest = descriptors;
    while let [kind, length, _, _, tail @ ..] = rest {
        let length = usize::from(*length);
        if length == 0 || tail.len() < length {
            break;
        }
        if *kind == descriptor::CSI {
            return tail[0];
        }
        rest = &tail[length..];
    }
    0
}

impl NamespaceIdentity {
    /// From the data of CNS 00h; the error says what makes no sense. `None`: no such namespace (all zero).
    pub fn parse_block(nsid: u32, data: &[u8]) -> Result<Option<Self>, String> {
        if data.len() < identify::BYTES {
            return Err(format!("Identify of namespace {nsid} returned {} bytes", data.len()));
        }
        let blocks = u64_at(data, namespace::NSZE);
        if blocks == 0 {
            return Ok(None);
        }
        let flbas = data[namespace::FLBAS];
        let format = usize::from(flbas & 0xf) | usize::from(flbas >> 5 & 3) << 4;
        let format = namespace::LBAF0 + format * 4;
        let shift = data[format + 2];
        if !(9..=16).contains(&shift) {
            return Err(format!("namespace {nsid} has logical blocks of 2^{shift} bytes"));
        }
        if u16_at(data, format) != 0 && flbas & 0x10 != 0 {
            return Err(format!("namespace {nsid} has metadata in its blocks, which is not supported"));
        }
        let mut nguid = [0; 16];
        nguid.copy_from_slice(&data[namespace::NGUID..namespace::NGUID + 16]);
        Ok(Some(NamespaceIdentity { nsid, nguid, kind: NamespaceKind::Block { block_bytes: 1 << shift, blocks } }))
    }

    /// From the data of CNS 05h with CSI 1.
    pub fn parse_kv(nsid: u32, data: &[u8]) -> Result<Self, String> {
        if data.len() < identify::BYTES {
            return Err(format!("Identify of namespace {nsid} returned {} bytes", data.len()));
        }
        let format = &data[kv_namespace::KVF0..];
        let mut nguid = [0; 16];
        nguid.copy_from_slice(&data[kv_namespace::NGUID..kv_namespace::NGUID + 16]);
        Ok(NamespaceIdentity {
            nsid,
            nguid,
            kind: NamespaceKind::Kv {
                bytes: u64_at(data, kv_namespace::NSZE),
                key_bytes_max: u16_at(format, kv_namespace::KVF_KEY_BYTES_MAX),
                value_bytes_max: u32_at(format, kv_namespace::KVF_VALUE_BYTES_MAX),
            },
        })
    }
}
