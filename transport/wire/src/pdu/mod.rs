//! NVMe/TCP PDUs (NVMe/TCP Transport Specification, revision 1.x): layout, digests, decoding, encoding.
//!
//! ```text
//!  byte 0      1       2      3     4..8
//! +--------+-------+------+------+--------+ - - - - - - - - - - +---------+-----+------+---------+
//! |  type  | flags | HLEN | PDO  |  PLEN  | type-specific       | [HDGST] | pad | data | [DDGST] |
//! +--------+-------+------+------+--------+ - - - - - - - - - - +---------+-----+------+---------+
//! 0                                                             HLEN            PDO          PLEN
//! ```
//!
//! A [`Decoder`] is asked again and again with the bytes received so far; a [`Encoder`] writes heads, after which the
//! caller puts payload and data digest.

mod decode;
mod digest;
mod encode;

pub use decode::{Decoded, Decoder, Head, Role};
pub use digest::{Digest, digest};
pub use encode::Encoder;

use crate::spec::{CompletionEntry, SubmissionEntry};
use std::fmt;

/// Bytes of the common header.
pub const COMMON_HEADER_BYTES: usize = 8;
/// Bytes of a header or data digest.
pub const DIGEST_BYTES: usize = 4;
/// HLEN and PLEN of ICReq and ICResp.
pub const INITIALIZE_BYTES: usize = 128;
/// HLEN of a command capsule.
pub const COMMAND_HEADER_BYTES: usize = 72;
/// HLEN of all others.
pub const SHORT_HEADER_BYTES: usize = 24;
/// Most bytes of the offending PDU's header that a termination request carries.
pub const TERMINATION_DATA_BYTES_MAX: usize = 128;
/// Largest PLEN of a termination request.
pub const TERMINATION_BYTES_MAX: usize = SHORT_HEADER_BYTES + TERMINATION_DATA_BYTES_MAX;
/// Largest PDU data alignment field (HPDA, CPDA), zero based dwords: 128 bytes.
pub const ALIGNMENT_MAX: u8 = 31;
/// Longest head of any PDU: a command with header digest, padded to 72 bytes (alignment 17), the worst of the 32 units.
pub const HEAD_BYTES_MAX: usize = 144;
/// Smallest MAXH2CDATA that a controller may announce (3.6.2.3).
pub const MAXH2CDATA_MIN: u32 = 4096;
/// PDU format version (PFV) that exists.
pub const PDU_FORMAT_VERSION: u16 = 0;
/// Most data that a PDU is believed to carry unless a decoder is told less: keeps lengths far from overflow.
pub const DATA_BYTES_MAX: u32 = 1 << 30;

/// Flag: header digest present.
pub const FLAG_HEADER_DIGEST: u8 = 1;
/// Flag: data digest present.
pub const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// Flag of H2CData and C2HData: last PDU of the transfer.
pub const FLAG_LAST: u8 = 1 << 2;
/// Flag of C2HData: the command succeeded, no response capsule follows.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// PDU types (3.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// ICReq: initialize connection request, host to controller.
    InitializeRequest = 0x00,
    /// ICResp: its response.
    InitializeResponse = 0x01,
    /// H2CTermReq: the host ends the connection.
    HostTermination = 0x02,
    /// C2HTermReq: the controller ends it.
    ControllerTermination = 0x03,
    /// CapsuleCmd: a command, with or without data.
    Command = 0x04,
    /// CapsuleResp: its completion.
    Response = 0x05,
    /// H2CData: data that an R2T asked for.
    HostData = 0x06,
    /// C2HData: data to the host.
    ControllerData = 0x07,
    /// R2T: ready to transfer.
    ReadyToTransfer = 0x09,
}

impl PduType {
    /// From its byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => PduType::InitializeRequest,
            0x01 => PduType::InitializeResponse,
            0x02 => PduType::HostTermination,
            0x03 => PduType::ControllerTermination,
            0x04 => PduType::Command,
            0x05 => PduType::Response,
            0x06 => PduType::HostData,
            0x07 => PduType::ControllerData,
            0x09 => PduType::ReadyToTransfer,
            _ => return None,
        })
    }
    /// HLEN.
    #[inline]
    pub const fn header_bytes(self) -> usize {
        match self {
            PduType::InitializeRequest | PduType::InitializeResponse => INITIALIZE_BYTES,
            PduType::Command => COMMAND_HEADER_BYTES,
            _ => SHORT_HEADER_BYTES,
        }
    }
    /// True where a host sends it.
    #[inline]
    pub const fn from_host(self) -> bool {
        matches!(self, PduType::InitializeRequest | PduType::HostTermination | PduType::Command | PduType::HostData)
    }
    /// True where it may carry a header digest (3.3.1: not the initialization and termination PDUs).
    #[inline]
    pub const fn may_have_header_digest(self) -> bool {
        !matches!(
            self,
            PduType::InitializeRequest
                | PduType::InitializeResponse
                | PduType::HostTermination
                | PduType::ControllerTermination
        )
    }
}

/// Type-specific fields of ICReq (3.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InitializeRequest {
    /// PDU format version.
    pub version: u16,
    /// Host PDU data alignment: data that the controller sends starts at multiples of (this + 1) dwords.
    pub alignment: u8,
    /// Header digest wanted.
    pub header_digest: bool,
    /// Data digest wanted.
    pub data_digest: bool,
    /// Most outstanding R2Ts for a command, zero based.
    pub ready_to_transfer_max: u32,
}

/// Type-specific fields of ICResp (3.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InitializeResponse {
    /// PDU format version.
    pub version: u16,
    /// Controller PDU data alignment: the same for data that the host sends.
    pub alignment: u8,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Most data in one H2CData PDU.
    pub host_data_bytes_max: u32,
}

/// Fields of a data PDU (3.6.2.8, 3.6.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Command (CCCID).
    pub cid: u16,
    /// Tag of the R2T that asked for it (H2CData; zero in C2HData).
    pub transfer_tag: u16,
    /// Where in the command's data it belongs (DATAO).
    pub offset: u32,
    /// Bytes (DATAL).
    pub bytes: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS (C2HData only).
    pub success: bool,
}

/// Fields of R2T (3.6.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// Command.
    pub cid: u16,
    /// Tag that the H2CData PDUs repeat.
    pub transfer_tag: u16,
    /// Where in the command's data to begin (R2TO).
    pub offset: u32,
    /// Bytes asked for (R2TL).
    pub bytes: u32,
}

/// Fields of a termination request (3.6.2.4, 3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Fatal error status.
    pub status: u16,
    /// Fatal error information: a field's offset, or the digest that was received.
    pub information: u32,
}

/// A decoded PDU header. What follows it, data or an offending header, is located by [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // The command is the common one, and it is copied once.
pub enum Pdu {
    /// ICReq.
    InitializeRequest(InitializeRequest),
    /// ICResp.
    InitializeResponse(InitializeResponse),
    /// H2CTermReq.
    HostTermination(Termination),
    /// C2HTermReq.
    ControllerTermination(Termination),
    /// CapsuleCmd.
    Command(SubmissionEntry),
    /// CapsuleResp.
    Response(CompletionEntry),
    /// H2CData.
    HostData(Data),
    /// C2HData.
    ControllerData(Data),
    /// R2T.
    ReadyToTransfer(ReadyToTransfer),
}

impl Pdu {
    /// Its type.
    pub fn pdu_type(&self) -> PduType {
        match self {
            Pdu::InitializeRequest(_) => PduType::InitializeRequest,
            Pdu::InitializeResponse(_) => PduType::InitializeResponse,
            Pdu::HostTermination(_) => PduType::HostTermination,
            Pdu::ControllerTermination(_) => PduType::ControllerTermination,
            Pdu::Command(_) => PduType::Command,
            Pdu::Response(_) => PduType::Response,
            Pdu::HostData(_) => PduType::HostData,
            Pdu::ControllerData(_) => PduType::ControllerData,
            Pdu::ReadyToTransfer(_) => PduType::ReadyToTransfer,
        }
    }
}

/// Fatal error status of a termination request (3.6.2.4 and 3.6.2.5, FES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    /// Invalid PDU header field; the information is its offset.
    InvalidHeaderField = 1,
    /// PDU sequence error.
    SequenceError = 2,
    /// Header digest error; the information is the digest received.
    HeaderDigestError = 3,
    /// Data transfer out of range; the information is the offending field's offset.
    DataOutOfRange = 4,
    /// From a controller: data transfer limit exceeded. From a host: R2T limit exceeded.
    LimitExceeded = 5,
    /// Unsupported parameter; the information is its offset.
    UnsupportedParameter = 6,
}

/// Why the connection must end, and what the termination request says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduError {
    /// FES.
    pub status: FatalStatus,
    /// FEI: offset of the bad field, or the digest received.
    pub information: u32,
    /// The type byte of the bad PDU.
    pub type_byte: u8,
    /// The sentence for the log.
    pub reason: &'static str,
}

impl PduError {
    /// A bad field at `offset` of the header.
    pub const fn field(type_byte: u8, offset: u32, reason: &'static str) -> Self {
        PduError { status: FatalStatus::InvalidHeaderField, information: offset, type_byte, reason }
    }
    /// A PDU that does not come here.
    pub const fn sequence(type_byte: u8, reason: &'static str) -> Self {
        PduError { status: FatalStatus::SequenceError, information: 0, type_byte, reason }
    }
    /// What the termination request carries.
    pub const fn termination(&self) -> Termination {
        Termination { status: self.status as u16, information: self.information }
    }
}

impl fmt::Display for PduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PduType::from_byte(self.type_byte) {
            Some(pdu_type) => write!(f, "{pdu_type:?} PDU: ")?,
            None => write!(f, "PDU type {:02x}h: ", self.type_byte)?,
        }
        write!(f, "{} (fatal error status {:?}, information {:x}h)", self.reason, self.status, self.information)
    }
}

impl std::error::Error for PduError {}

/// Offsets of header fields, for fatal error information.
pub mod field {
    /// PDU type.
    pub const TYPE: u32 = 0;
    /// Flags.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA or CPDA.
    pub const ALIGNMENT: u32 = 10;
    /// DGST of ICReq and ICResp.
    pub const DIGESTS: u32 = 11;
    /// MAXH2CDATA of ICResp.
    pub const MAXH2CDATA: u32 = 12;
    /// CCCID of data PDUs and R2T.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAO or R2TO.
    pub const OFFSET: u32 = 12;
    /// DATAL or R2TL.
    pub const LENGTH: u32 = 16;
}
