//! Encoding of PDUs. Heads are built on the stack and appended; payload and data digest follow from the caller, so
//! that payload need not be copied where it can be sent from its place.

use super::*;
use crate::bytes::{put_u16, put_u32};

/// Encodes the PDUs of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Encoder {
    header_digest: bool,
    data_digest: bool,
    alignment: u8,
}

impl Encoder {
    /// For what was agreed on. `alignment` is that of data away from this side (a host: the CPDA of the controller, a
    /// controller: the HPDA of the host).
    pub const fn new(header_digest: bool, data_digest: bool, alignment: u8) -> Self {
        let alignment = if alignment > ALIGNMENT_MAX { ALIGNMENT_MAX } else { alignment };
        Encoder { header_digest, data_digest, alignment }
    }
    /// True where [`Encoder::data_digest_of`] must follow data.
    pub const fn data_digest(&self) -> bool {
        self.data_digest
    }
    /// Bytes of a head in front of data.
    pub const fn head_bytes(&self, pdu_type: PduType, has_data: bool) -> usize {
        let digest = if self.header_digest && pdu_type.may_have_header_digest() { DIGEST_BYTES } else { 0 };
        let bytes = pdu_type.header_bytes() + digest;
        if has_data && self.alignment != 0 { bytes.next_multiple_of((self.alignment as usize + 1) * 4) } else { bytes }
    }
    /// The data digest's bytes for the end of a PDU with these data; `None` where digests are off.
    #[inline]
    pub fn data_digest_of(&self, data: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
        self.data_digest.then(|| digest(data).to_le_bytes())
    }

    #[inline]
    fn head<const N: usize>(
        &self,
        to: &mut Vec<u8>,
        pdu_type: PduType,
        flags: u8,
        data_bytes: usize,
        fill: impl FnOnce(&mut [u8; N]),
    ) {
        const {
            assert!(N <= HEAD_BYTES_MAX);
        }
        let mut header = [0u8; N];
        debug_assert_eq!(N, pdu_type.header_bytes());
        let start = self.head_bytes(pdu_type, data_bytes != 0);
        let header_digest = self.header_digest && pdu_type.may_have_header_digest();
        let data_digest = data_bytes != 0 && self.data_digest;
        header[0] = pdu_type as u8;
        header[1] =
            flags | if header_digest { FLAG_HEADER_DIGEST } else { 0 } | if data_digest { FLAG_DATA_DIGEST } else { 0 };
        header[2] = N as u8;
        header[3] = if data_bytes != 0 { start as u8 } else { 0 };
        let tail = if data_digest { DIGEST_BYTES } else { 0 };
        put_u32(&mut header, 4, (start + data_bytes + tail) as u32);
        fill(&mut header);
        to.extend_from_slice(&header);
        let mut written = N;
        if header_digest {
            to.extend_from_slice(&digest(&header).to_le_bytes());
            written += DIGEST_BYTES;
        }
        if start > written {
            to.extend_from_slice(&[0; HEAD_BYTES_MAX][..start - written]);
        }
    }

    /// ICReq.
    pub fn initialize_request(to: &mut Vec<u8>, request: &InitializeRequest) {
        Encoder::default().head::<INITIALIZE_BYTES>(to, PduType::InitializeRequest, 0, 0, |header| {
            put_u16(header, 8, request.version);
            header[10] = request.alignment;
            header[11] = u8::from(request.header_digest) | u8::from(request.data_digest) << 1;
            put_u32(header, 12, request.ready_to_transfer_max);
        });
    }
    /// ICResp.
    pub fn initialize_response(to: &mut Vec<u8>, response: &InitializeResponse) {
        Encoder::default().head::<INITIALIZE_BYTES>(to, PduType::InitializeResponse, 0, 0, |header| {
            put_u16(header, 8, response.version);
            header[10] = response.alignment;
            header[11] = u8::from(response.header_digest) | u8::from(response.data_digest) << 1;
            put_u32(header, 12, response.host_data_bytes_max);
        });
    }
    /// H2CTermReq or C2HTermReq, whole: `offending` is the header of the PDU that caused it, cut at
    /// [`TERMINATION_DATA_BYTES_MAX`].
    pub fn termination(to: &mut Vec<u8>, from: Role, termination: &Termination, offending: &[u8]) {
        let pdu_type = if from == Role::Host { PduType::HostTermination } else { PduType::ControllerTermination };
        let offending = &offending[..offending.len().min(TERMINATION_DATA_BYTES_MAX)];
        let start = to.len();
        Encoder::default().head::<SHORT_HEADER_BYTES>(to, pdu_type, 0, 0, |header| {
            put_u16(header, 8, termination.status);
            put_u32(header, 10, termination.information);
            put_u32(header, 4, (SHORT_HEADER_BYTES + offending.len()) as u32);
        });
        debug_assert_eq!(to.len(), start + SHORT_HEADER_BYTES);
        to.extend_from_slice(offending);
    }
    /// Head of a command capsule with `data_bytes` of data to follow.
    #[inline]
    pub fn command(&self, to: &mut Vec<u8>, entry: &SubmissionEntry, data_bytes: usize) {
        self.head::<COMMAND_HEADER_BYTES>(to, PduType::Command, 0, data_bytes, |header| {
            header[8..72].copy_from_slice(&entry.0);
        });
    }
    /// A command capsule with its data, whole.
    pub fn command_with_data(&self, to: &mut Vec<u8>, entry: &SubmissionEntry, data: &[u8]) {
        self.command(to, entry, data.len());
        self.payload(to, data);
    }
    /// A response capsule, whole.
    #[inline]
    pub fn response(&self, to: &mut Vec<u8>, entry: &CompletionEntry) {
        self.head::<SHORT_HEADER_BYTES>(to, PduType::Response, 0, 0, |header| {
            header[8..24].copy_from_slice(&entry.to_bytes());
        });
    }
    /// Head of H2CData with `data.bytes` to follow; `data.success` is ignored.
    #[inline]
    pub fn host_data(&self, to: &mut Vec<u8>, data: &Data) {
        let flags = if data.last { FLAG_LAST } else { 0 };
        self.data(to, PduType::HostData, flags, data, data.transfer_tag);
    }
    /// Head of C2HData with `data.bytes` to follow.
    #[inline]
    pub fn controller_data(&self, to: &mut Vec<u8>, data: &Data) {
        let flags = if data.last { FLAG_LAST } else { 0 } | if data.success { FLAG_SUCCESS } else { 0 };
        self.data(to, PduType::ControllerData, flags, data, 0);
    }
    #[inline]
    fn data(&self, to: &mut Vec<u8>, pdu_type: PduType, flags: u8, data: &Data, tag: u16) {
        self.head::<SHORT_HEADER_BYTES>(to, pdu_type, flags, data.bytes as usize, |header| {
            put_u16(header, 8, data.cid);
            put_u16(header, 10, tag);
            put_u32(header, 12, data.offset);
            put_u32(header, 16, data.bytes);
        });
    }
    /// R2T, whole.
    #[inline]
    pub fn ready_to_transfer(&self, to: &mut Vec<u8>, ready: &ReadyToTransfer) {
        self.head::<SHORT_HEADER_BYTES>(to, PduType::ReadyToTransfer, 0, 0, |header| {
            put_u16(header, 8, ready.cid);
            put_u16(header, 10, ready.transfer_tag);
            put_u32(header, 12, ready.offset);
            put_u32(header, 16, ready.bytes);
        });
    }
    /// Data and, where agreed on, their digest.
    #[inline]
    pub fn payload(&self, to: &mut Vec<u8>, data: &[u8]) {
        to.extend_from_slice(data);
        if !data.is_empty()
            && let Some(digest) = self.data_digest_of(data)
        {
            to.extend_from_slice(&digest);
        }
    }
}
