//! Fabrics structures: Connect (NVMe Base 6.3) and the discovery log page (5.1.12.3.1).

use crate::bytes::{c_string, put_c_string, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::spec::SubmissionEntry;

/// NQN of the discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN in bytes, without its terminator (NVMe Base 4.5).
pub const NQN_BYTES_MAX: usize = 223;
/// Bytes of Connect's data.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// CNTLID in Connect: any controller (the dynamic model).
pub const CONTROLLER_DYNAMIC: u16 = 0xffff;
/// CNTLID in Connect: any available static controller.
pub const CONTROLLER_STATIC: u16 = 0xfffe;
/// Result of a failed Connect (DW0): bit 16 says that the offset is into the data, not the entry (IATTR), bits 15:0
/// are the offset of the bad field (IPO).
pub const CONNECT_ERROR_IN_DATA: u32 = 1 << 16;
/// Record format of Connect that exists.
pub const CONNECT_RECORD_FORMAT: u16 = 0;
/// CATTR: disable SQ flow control.
pub const CONNECT_NO_FLOW_CONTROL: u8 = 1 << 2;
/// CATTR: individual I/O queue deletion is supported by the host.
pub const CONNECT_QUEUE_DELETION: u8 = 1 << 3;

/// Offsets in Connect's submission entry and data, for the offset in a failure's result.
pub mod connect_offset {
    /// RECFMT in the entry.
    pub const RECFMT: u16 = 40;
    /// QID in the entry.
    pub const QID: u16 = 42;
    /// SQSIZE in the entry.
    pub const SQSIZE: u16 = 44;
    /// CATTR in the entry.
    pub const CATTR: u16 = 46;
    /// KATO in the entry.
    pub const KATO: u16 = 48;
    /// HOSTID in the data.
    pub const HOSTID: u16 = 0;
    /// CNTLID in the data.
    pub const CNTLID: u16 = 16;
    /// SUBNQN in the data.
    pub const SUBNQN: u16 = 256;
    /// HOSTNQN in the data.
    pub const HOSTNQN: u16 = 512;
}

/// Fields of Connect's submission entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectCommand {
    /// Record format.
    pub record_format: u16,
    /// Queue: 0 admin.
    pub queue_id: u16,
    /// Queue size, zero based.
    pub queue_size: u16,
    /// Attributes.
    pub attributes: u8,
    /// Keep alive timeout in ms (admin queue).
    pub keep_alive_ms: u32,
}

impl ConnectCommand {
    /// From a command.
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        ConnectCommand {
            record_format: u16_at(&entry.0, 40),
            queue_id: u16_at(&entry.0, 42),
            queue_size: u16_at(&entry.0, 44),
            attributes: entry.0[46],
            keep_alive_ms: u32_at(&entry.0, 48),
        }
    }
    /// As a command.
    pub fn to_entry(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::fabrics(super::opcode::fabrics::CONNECT);
        put_u16(&mut entry.0, 40, self.record_format);
        put_u16(&mut entry.0, 42, self.queue_id);
        put_u16(&mut entry.0, 44, self.queue_size);
        entry.0[46] = self.attributes;
        put_u32(&mut entry.0, 48, self.keep_alive_ms);
        entry
    }
}

/// Connect's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Controller.
    pub controller_id: u16,
    /// Subsystem.
    pub subsystem_nqn: String,
    /// Host.
    pub host_nqn: String,
}

/// What is wrong with Connect's data: the offset of the field, for the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connect data: bad field at byte {offset}")]
pub struct ConnectDataError {
    /// Offset of the field.
    pub offset: u16,
}

impl ConnectData {
    /// From its bytes.
    pub fn from_bytes(bytes: &[u8; CONNECT_DATA_BYTES]) -> Result<Self, ConnectDataError> {
        let nqn = |offset: u16| {
            c_string(&bytes[offset as usize..offset as usize + 256])
                .filter(|text| text.len() <= NQN_BYTES_MAX && text.starts_with("nqn."))
                .map(str::to_owned)
                .ok_or(ConnectDataError { offset })
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[..16]);
        Ok(ConnectData {
            host_id,
            controller_id: u16_at(bytes, 16),
            subsystem_nqn: nqn(connect_offset::SUBNQN)?,
            host_nqn: nqn(connect_offset::HOSTNQN)?,
        })
    }
    /// As bytes.
    pub fn to_bytes(&self) -> Box<[u8; CONNECT_DATA_BYTES]> {
        let mut bytes = Box::new([0; CONNECT_DATA_BYTES]);
        bytes[..16].copy_from_slice(&self.host_id);
        put_u16(&mut bytes[..], 16, self.controller_id);
        put_c_string(&mut bytes[..], connect_offset::SUBNQN as usize, 256, &self.subsystem_nqn);
        put_c_string(&mut bytes[..], connect_offset::HOSTNQN as usize, 256, &self.host_nqn);
        bytes
    }
}

/// Property Get as a command; `eight` for a property of 8 bytes.
pub fn property_get(offset: u32, eight: bool) -> SubmissionEntry {
    SubmissionEntry::fabrics(super::opcode::fabrics::PROPERTY_GET).with_cdw(10, u32::from(eight)).with_cdw(11, offset)
}

/// Property Set as a command.
pub fn property_set(offset: u32, value: u64, eight: bool) -> SubmissionEntry {
    SubmissionEntry::fabrics(super::opcode::fabrics::PROPERTY_SET)
        .with_cdw(10, u32::from(eight))
        .with_cdw(11, offset)
        .with_cdw(12, value as u32)
        .with_cdw(13, (value >> 32) as u32)
}

/// Bytes of the discovery log's header, and of each entry.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;
/// Transport type: TCP.
pub const TRTYPE_TCP: u8 = 3;
/// Address family: IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// Address family: IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// Subsystem type: referral to another discovery service.
pub const SUBTYPE_REFERRAL: u8 = 1;
/// Subsystem type: NVM subsystem.
pub const SUBTYPE_NVM: u8 = 2;
/// Subsystem type: this discovery subsystem.
pub const SUBTYPE_DISCOVERY: u8 = 3;

/// Header of the discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHeader {
    /// Changes with each change of the log.
    pub generation: u64,
    /// Entries that follow.
    pub records: u64,
    /// Record format: 0.
    pub record_format: u16,
}

impl DiscoveryHeader {
    /// From its first 18 bytes; `None` where there are fewer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..18)?;
        Some(DiscoveryHeader {
            generation: u64_at(bytes, 0),
            records: u64_at(bytes, 8),
            record_format: u16_at(bytes, 16),
        })
    }
    /// As bytes.
    pub fn to_bytes(self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
        put_u64(&mut bytes, 0, self.generation);
        put_u64(&mut bytes, 8, self.records);
        put_u16(&mut bytes, 16, self.record_format);
        bytes
    }
}

/// An entry of the discovery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Transport type.
    pub transport: u8,
    /// Address family.
    pub family: u8,
    /// Subsystem type.
    pub subsystem_type: u8,
    /// Transport requirements (TREQ).
    pub requirements: u8,
    /// Port id.
    pub port_id: u16,
    /// Controller id: [`CONTROLLER_DYNAMIC`].
    pub controller_id: u16,
    /// Size of the largest admin queue.
    pub admin_queue_max: u16,
    /// Flags (EFLAGS).
    pub flags: u16,
    /// Service id: the TCP port as text.
    pub service: String,
    /// Subsystem.
    pub subsystem_nqn: String,
    /// Address as text.
    pub address: String,
    /// Security type of TCP (TSAS): 0 none.
    pub security: u8,
}

impl DiscoveryEntry {
    /// From its bytes; `None` where they are too few or the NQN is no text.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..DISCOVERY_ENTRY_BYTES)?;
        Some(DiscoveryEntry {
            transport: bytes[0],
            family: bytes[1],
            subsystem_type: bytes[2],
            requirements: bytes[3],
            port_id: u16_at(bytes, 4),
            controller_id: u16_at(bytes, 6),
            admin_queue_max: u16_at(bytes, 8),
            flags: u16_at(bytes, 10),
            service: crate::bytes::ascii(&bytes[32..64]),
            subsystem_nqn: c_string(&bytes[256..512])?.to_owned(),
            address: crate::bytes::ascii(&bytes[512..768]),
            security: bytes[768],
        })
    }
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        let mut bytes = [0; DISCOVERY_ENTRY_BYTES];
        bytes[0] = self.transport;
        bytes[1] = self.family;
        bytes[2] = self.subsystem_type;
        bytes[3] = self.requirements;
        put_u16(&mut bytes, 4, self.port_id);
        put_u16(&mut bytes, 6, self.controller_id);
        put_u16(&mut bytes, 8, self.admin_queue_max);
        put_u16(&mut bytes, 10, self.flags);
        crate::bytes::put_ascii(&mut bytes, 32, 32, &self.service);
        put_c_string(&mut bytes, 256, 256, &self.subsystem_nqn);
        crate::bytes::put_ascii(&mut bytes, 512, 256, &self.address);
        bytes[768] = self.security;
        bytes
    }
}
