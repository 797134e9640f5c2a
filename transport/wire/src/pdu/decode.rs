//! Decoding of PDU headers out of a receive buffer.

use super::*;
use crate::bytes::{u16_at, u32_at};

/// Which end decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A host: takes what controllers send.
    Host,
    /// A controller: takes what hosts send.
    Controller,
}

/// Decodes the PDUs of one connection. It checks all that a header alone can say: type and its place in the sequence,
/// flags, lengths, alignment, header digest. What needs the state of commands (tags, offsets) is its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    role: Role,
    initialized: bool,
    header_digest: bool,
    data_digest: bool,
    alignment: u8,
    data_bytes_max: u32,
    capsule_data_bytes_max: u32,
}

/// What [`Decoder::decode`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Returned by value once per PDU; a box would be an allocation per PDU.
pub enum Decoded {
    /// Too few bytes: at least this many, counted from the PDU's first, are needed to go on.
    NeedMore(usize),
    /// A header; its data need not be there yet.
    Head(Head),
}

/// A header and where its data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The header.
    pub pdu: Pdu,
    /// Where the data start, from the PDU's first byte.
    pub data_start: usize,
    /// Bytes of data.
    pub data_bytes: usize,
    /// True where a data digest of [`DIGEST_BYTES`] follows the data.
    pub has_data_digest: bool,
    /// The whole PDU (PLEN).
    pub pdu_bytes: usize,
}

impl Decoder {
    /// For a connection on which nothing has come yet: it takes the initialization PDU of the other side alone.
    pub const fn new(role: Role) -> Self {
        Decoder {
            role,
            initialized: false,
            header_digest: false,
            data_digest: false,
            alignment: 0,
            data_bytes_max: DATA_BYTES_MAX,
            capsule_data_bytes_max: DATA_BYTES_MAX,
        }
    }
    /// After ICReq and ICResp: what was agreed on. `alignment` is that of data towards this side (a host: its HPDA, a
    /// controller: its CPDA).
    pub const fn initialize(&mut self, header_digest: bool, data_digest: bool, alignment: u8) {
        self.initialized = true;
        self.header_digest = header_digest;
        self.data_digest = data_digest;
        self.alignment = if alignment > ALIGNMENT_MAX { ALIGNMENT_MAX } else { alignment };
    }
    /// Bounds DATAL of data PDUs (a controller: its MAXH2CDATA).
    pub const fn set_data_bytes_max(&mut self, bytes: u32) {
        self.data_bytes_max = if bytes < DATA_BYTES_MAX { bytes } else { DATA_BYTES_MAX };
    }
    /// Bounds the data in a command capsule (a controller: IOCCSZ * 16 - 64, on the admin queue 8 KiB).
    pub const fn set_capsule_data_bytes_max(&mut self, bytes: u32) {
        self.capsule_data_bytes_max = if bytes < DATA_BYTES_MAX { bytes } else { DATA_BYTES_MAX };
    }
    /// True after [`Decoder::initialize`].
    pub const fn is_initialized(&self) -> bool {
        self.initialized
    }
    /// True where header digests were agreed on.
    pub const fn header_digest(&self) -> bool {
        self.header_digest
    }
    /// True where data digests were agreed on.
    pub const fn data_digest(&self) -> bool {
        self.data_digest
    }

    /// Decodes the PDU that starts at `from[0]`. An error is fatal to the connection: its termination request carries
    /// [`PduError::termination`] and the header's bytes.
    #[inline]
    pub fn decode(&self, from: &[u8]) -> Result<Decoded, PduError> {
        let Some(common) = from.first_chunk::<COMMON_HEADER_BYTES>() else {
            // The type is known from the first byte on: a wrong one need not be waited for.
            if let Some(byte) = from.first() {
                self.check_type(*byte)?;
            }
            return Ok(Decoded::NeedMore(COMMON_HEADER_BYTES));
        };
        let type_byte = common[0];
        let pdu_type = self.check_type(type_byte)?;
        let flags = common[1];
        let header_bytes = pdu_type.header_bytes();
        if usize::from(common[2]) != header_bytes {
            return Err(PduError::field(type_byte, field::HLEN, "HLEN is not that of its type"));
        }
        let pdu_bytes = u32_at(common, 4);
        let head_digest = if self.check_flags(pdu_type, flags)? { DIGEST_BYTES } else { 0 };
        let head_bytes = header_bytes + head_digest;
        let (data_start, data_bytes, has_data_digest) = self.locate(pdu_type, common, head_bytes, pdu_bytes)?;
        let Some(header) = from.get(..head_bytes) else { return Ok(Decoded::NeedMore(head_bytes)) };
        if head_digest != 0 {
            let received = u32_at(header, header_bytes);
            if digest(&header[..header_bytes]) != received {
                return Err(PduError {
                    status: FatalStatus::HeaderDigestError,
                    information: received,
                    type_byte,
                    reason: "header digest does not match",
                });
            }
        }
        let pdu = self.parse(pdu_type, flags, header, data_bytes as u32)?;
        Ok(Decoded::Head(Head { pdu, data_start, data_bytes, has_data_digest, pdu_bytes: pdu_bytes as usize }))
    }

    fn check_type(&self, type_byte: u8) -> Result<PduType, PduError> {
        let Some(pdu_type) = PduType::from_byte(type_byte) else {
            return Err(PduError::field(type_byte, field::TYPE, "no such PDU type"));
        };
        if pdu_type.from_host() != (self.role == Role::Controller) {
            return Err(PduError::field(type_byte, field::TYPE, "PDU of the wrong direction"));
        }
        let initialization = matches!(pdu_type, PduType::InitializeRequest | PduType::InitializeResponse);
        let termination = matches!(pdu_type, PduType::HostTermination | PduType::ControllerTermination);
        if initialization == self.initialized && !termination {
            return Err(PduError::sequence(
                type_byte,
                if self.initialized { "second initialization" } else { "PDU before the initialization" },
            ));
        }
        Ok(pdu_type)
    }

    /// True where a header digest is present.
    fn check_flags(&self, pdu_type: PduType, flags: u8) -> Result<bool, PduError> {
        let bad = |reason| Err(PduError::field(pdu_type as u8, field::FLAGS, reason));
        if !pdu_type.may_have_header_digest() {
            return if flags == 0 { Ok(false) } else { bad("flags on a PDU that has none") };
        }
        let header_digest = flags & FLAG_HEADER_DIGEST != 0;
        if header_digest != self.header_digest {
            return bad("header digest flag differs from what was agreed on");
        }
        let data_digest = flags & FLAG_DATA_DIGEST != 0;
        if data_digest && !self.data_digest {
            return bad("data digest flag without an agreement on data digests");
        }
        let allowed = match pdu_type {
            PduType::Command => FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST,
            PduType::HostData => FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST | FLAG_LAST,
            PduType::ControllerData => FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST | FLAG_LAST | FLAG_SUCCESS,
            _ => FLAG_HEADER_DIGEST,
        };
        if flags & !allowed != 0 {
            return bad("flags that its type does not have");
        }
        Ok(header_digest)
    }

    /// (start, length, digest follows) of the data.
    fn locate(
        &self,
        pdu_type: PduType,
        common: &[u8; COMMON_HEADER_BYTES],
        head_bytes: usize,
        pdu_bytes: u32,
    ) -> Result<(usize, usize, bool), PduError> {
        let type_byte = pdu_type as u8;
        let bad_length = |reason| Err(PduError::field(type_byte, field::PLEN, reason));
        if (pdu_bytes as usize) < head_bytes {
            return bad_length("PLEN is less than its header");
        }
        let after_head = pdu_bytes as usize - head_bytes;
        let data_max = match pdu_type {
            PduType::HostTermination | PduType::ControllerTermination => {
                if pdu_bytes as usize > TERMINATION_BYTES_MAX {
                    return bad_length("PLEN of a termination request is more than 152");
                }
                return Ok((head_bytes, after_head, false));
            }
            PduType::Command => self.capsule_data_bytes_max,
            PduType::HostData | PduType::ControllerData => self.data_bytes_max,
            _ if after_head != 0 => return bad_length("PLEN is not that of a PDU without data"),
            _ => 0,
        };
        if after_head == 0 {
            return Ok((head_bytes, 0, false));
        }
        let has_data_digest = common[1] & FLAG_DATA_DIGEST != 0;
        if has_data_digest != self.data_digest {
            return Err(PduError::field(type_byte, field::FLAGS, "data without the data digest agreed on"));
        }
        let data_start = usize::from(common[3]);
        let unit = (usize::from(self.alignment) + 1) * 4;
        if data_start < head_bytes || data_start > HEAD_BYTES_MAX {
            return Err(PduError::field(type_byte, field::PDO, "PDO does not lie behind the header"));
        }
        if self.alignment != 0 && !data_start.is_multiple_of(unit) {
            return Err(PduError::field(type_byte, field::PDO, "PDO is not aligned as agreed on"));
        }
        let tail = if has_data_digest { DIGEST_BYTES } else { 0 };
        let Some(data_bytes) = (pdu_bytes as usize).checked_sub(data_start + tail).filter(|bytes| *bytes > 0) else {
            return bad_length("PLEN leaves no room for data");
        };
        if data_bytes > data_max as usize {
            return match pdu_type {
                PduType::HostData | PduType::ControllerData => Err(PduError {
                    status: FatalStatus::LimitExceeded,
                    information: 0,
                    type_byte,
                    reason: "more data in one PDU than agreed on",
                }),
                _ => bad_length("more data in a capsule than the queue's capsules hold"),
            };
        }
        Ok((data_start, data_bytes, has_data_digest))
    }

    fn parse(&self, pdu_type: PduType, flags: u8, header: &[u8], data_bytes: u32) -> Result<Pdu, PduError> {
        let type_byte = pdu_type as u8;
        let digests = |byte: u8| (byte & 1 != 0, byte & 2 != 0);
        Ok(match pdu_type {
            PduType::InitializeRequest | PduType::InitializeResponse => {
                let version = u16_at(header, 8);
                if version != PDU_FORMAT_VERSION {
                    return Err(PduError {
                        status: FatalStatus::UnsupportedParameter,
                        information: field::PFV,
                        type_byte,
                        reason: "PDU format version is not 0",
                    });
                }
                let alignment = header[10];
                if alignment > ALIGNMENT_MAX {
                    return Err(PduError::field(type_byte, field::ALIGNMENT, "data alignment is more than 31"));
                }
                if header[11] & !3 != 0 {
                    return Err(PduError::field(type_byte, field::DIGESTS, "reserved digest bits"));
                }
                let (header_digest, data_digest) = digests(header[11]);
                let last = u32_at(header, 12);
                if pdu_type == PduType::InitializeRequest {
                    Pdu::InitializeRequest(InitializeRequest {
                        version,
                        alignment,
                        header_digest,
                        data_digest,
                        ready_to_transfer_max: last,
                    })
                } else {
                    if last < MAXH2CDATA_MIN || !last.is_multiple_of(4) {
                        return Err(PduError::field(
                            type_byte,
                            field::MAXH2CDATA,
                            "MAXH2CDATA is below 4096 or no multiple of 4",
                        ));
                    }
                    Pdu::InitializeResponse(InitializeResponse {
                        version,
                        alignment,
                        header_digest,
                        data_digest,
                        host_data_bytes_max: last,
                    })
                }
            }
            PduType::HostTermination => Pdu::HostTermination(termination(header)),
            PduType::ControllerTermination => Pdu::ControllerTermination(termination(header)),
            PduType::Command => {
                let mut entry = SubmissionEntry([0; 64]);
                entry.0.copy_from_slice(&header[8..72]);
                Pdu::Command(entry)
            }
            PduType::Response => {
                let mut entry = [0; 16];
                entry.copy_from_slice(&header[8..24]);
                Pdu::Response(CompletionEntry::from_bytes(&entry))
            }
            PduType::HostData | PduType::ControllerData => {
                let data = Data {
                    cid: u16_at(header, 8),
                    transfer_tag: u16_at(header, 10),
                    offset: u32_at(header, 12),
                    bytes: u32_at(header, 16),
                    last: flags & FLAG_LAST != 0,
                    success: flags & FLAG_SUCCESS != 0,
                };
                if data.bytes != data_bytes || data_bytes == 0 {
                    return Err(PduError::field(type_byte, field::LENGTH, "DATAL is not the length of its data"));
                }
                if !data.offset.is_multiple_of(4) {
                    return Err(PduError::field(type_byte, field::OFFSET, "DATAO is no multiple of 4"));
                }
                if data.success && !data.last {
                    return Err(PduError::field(type_byte, field::FLAGS, "SUCCESS without LAST_PDU"));
                }
                if pdu_type == PduType::HostData { Pdu::HostData(data) } else { Pdu::ControllerData(data) }
            }
            PduType::ReadyToTransfer => {
                let ready = ReadyToTransfer {
                    cid: u16_at(header, 8),
                    transfer_tag: u16_at(header, 10),
                    offset: u32_at(header, 12),
                    bytes: u32_at(header, 16),
                };
                if ready.bytes == 0 {
                    return Err(PduError::field(type_byte, field::LENGTH, "R2TL is 0"));
                }
                if !ready.offset.is_multiple_of(4) {
                    return Err(PduError::field(type_byte, field::OFFSET, "R2TO is no multiple of 4"));
                }
                Pdu::ReadyToTransfer(ready)
            }
        })
    }
}

fn termination(header: &[u8]) -> Termination {
    Termination { status: u16_at(header, 8), information: u32_at(header, 10) }
}
