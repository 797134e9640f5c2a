//! Generators and oracles for property tests and fuzz targets. Behind the feature `testing`.

use crate::pdu::*;
use crate::spec::{CompletionEntry, Status, SubmissionEntry};
use proptest::prelude::*;

/// Most payload that a generated PDU carries.
pub const GENERATED_DATA_BYTES_MAX: usize = 2048;

/// A PDU with its payload and the connection's agreement.
#[derive(Clone, Debug)]
pub struct GeneratedPdu {
    /// Header; the lengths in it fit `payload`.
    pub pdu: Pdu,
    /// Data, or for terminations the offending header.
    pub payload: Vec<u8>,
    /// Header digests on.
    pub header_digest: bool,
    /// Data digests on.
    pub data_digest: bool,
    /// Alignment of data, zero based dwords.
    pub alignment: u8,
}

impl GeneratedPdu {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let encoder = Encoder::new(self.header_digest, self.data_digest, self.alignment);
        let mut to = Vec::new();
        match &self.pdu {
            Pdu::InitializeRequest(request) => Encoder::initialize_request(&mut to, request),
            Pdu::InitializeResponse(response) => Encoder::initialize_response(&mut to, response),
            Pdu::HostTermination(termination) => {
                Encoder::termination(&mut to, Role::Host, termination, &self.payload);
            }
            Pdu::ControllerTermination(termination) => {
                Encoder::termination(&mut to, Role::Controller, termination, &self.payload);
            }
            Pdu::Command(entry) => encoder.command_with_data(&mut to, entry, &self.payload),
            Pdu::Response(entry) => encoder.response(&mut to, entry),
            Pdu::HostData(data) => {
                encoder.host_data(&mut to, data);
                encoder.payload(&mut to, &self.payload);
            }
            Pdu::ControllerData(data) => {
                encoder.controller_data(&mut to, data);
                encoder.payload(&mut to, &self.payload);
            }
            Pdu::ReadyToTransfer(ready) => encoder.ready_to_transfer(&mut to, ready),
        }
        to
    }

    /// A decoder at the state where this PDU may come.
    pub fn decoder(&self) -> Decoder {
        let pdu_type = self.pdu.pdu_type();
        let mut decoder = Decoder::new(if pdu_type.from_host() { Role::Controller } else { Role::Host });
        if !matches!(pdu_type, PduType::InitializeRequest | PduType::InitializeResponse) {
            decoder.initialize(self.header_digest, self.data_digest, self.alignment);
        }
        decoder
    }
}

/// Any submission entry.
pub fn submission_entry() -> impl Strategy<Value = SubmissionEntry> {
    any::<[[u8; 32]; 2]>().prop_map(|halves| {
        let mut entry = SubmissionEntry([0; 64]);
        entry.0[..32].copy_from_slice(&halves[0]);
        entry.0[32..].copy_from_slice(&halves[1]);
        entry
    })
}

/// Any completion entry.
pub fn completion_entry() -> impl Strategy<Value = CompletionEntry> {
    any::<(u64, u16, u16, u16, u16)>().prop_map(|(result, sqhd, sqid, cid, status)| CompletionEntry {
        result,
        sqhd,
        sqid,
        cid,
        status: Status::from_field(status),
    })
}

/// Any valid PDU.
pub fn pdu() -> impl Strategy<Value = GeneratedPdu> {
    let payload = proptest::collection::vec(any::<u8>(), 1..GENERATED_DATA_BYTES_MAX);
    let offending = proptest::collection::vec(any::<u8>(), 0..=TERMINATION_DATA_BYTES_MAX);
    let initialize = (0..=ALIGNMENT_MAX, any::<bool>(), any::<bool>(), any::<u32>());
    let data = (any::<(u16, u16)>(), 0..u32::MAX / 4, any::<bool>(), any::<bool>());
    let termination = any::<(u16, u32)>().prop_map(|(status, information)| Termination { status, information });
    let kinds = prop_oneof![
        (initialize.clone()).prop_map(|(alignment, header_digest, data_digest, ready_to_transfer_max)| (
            Pdu::InitializeRequest(InitializeRequest {
                version: 0,
                alignment,
                header_digest,
                data_digest,
                ready_to_transfer_max,
            }),
            vec![]
        )),
        initialize.prop_map(|(alignment, header_digest, data_digest, bytes)| (
            Pdu::InitializeResponse(InitializeResponse {
                version: 0,
                alignment,
                header_digest,
                data_digest,
                host_data_bytes_max: (bytes & !3).max(MAXH2CDATA_MIN),
            }),
            vec![]
        )),
        (termination.clone(), offending.clone()).prop_map(|(fields, bytes)| (Pdu::HostTermination(fields), bytes)),
        (termination, offending).prop_map(|(fields, bytes)| (Pdu::ControllerTermination(fields), bytes)),
        submission_entry().prop_map(|entry| (Pdu::Command(entry), vec![])),
        (submission_entry(), payload.clone()).prop_map(|(entry, bytes)| (Pdu::Command(entry), bytes)),
        completion_entry().prop_map(|entry| (Pdu::Response(entry), vec![])),
        (data.clone(), payload.clone()).prop_map(|(((cid, transfer_tag), offset, last, _), bytes)| (
            Pdu::HostData(Data {
                cid,
                transfer_tag,
                offset: offset * 4,
                bytes: bytes.len() as u32,
                last,
                success: false
            }),
            bytes
        )),
        (data.clone(), payload).prop_map(|(((cid, _), offset, last, success), bytes)| (
            Pdu::ControllerData(Data {
                cid,
                transfer_tag: 0,
                offset: offset * 4,
                bytes: bytes.len() as u32,
                last,
                success: success && last
            }),
            bytes
        )),
        (data, 1..=u32::MAX).prop_map(|(((cid, transfer_tag), offset, ..), bytes)| (
            Pdu::ReadyToTransfer(ReadyToTransfer { cid, transfer_tag, offset: offset * 4, bytes }),
            vec![]
        )),
    ];
    (kinds, any::<bool>(), any::<bool>(), 0..=ALIGNMENT_MAX).prop_map(
        |((pdu, payload), header_digest, data_digest, alignment)| GeneratedPdu {
            pdu,
            payload,
            header_digest,
            data_digest,
            alignment,
        },
    )
}

/// Oracle for fuzzing: decodes `bytes` as a stream, in a decoder set up from `setup`, and checks that what the decoder
/// says is consistent and stays within bounds. Panics where it is not.
pub fn check_stream(setup: u8, mut bytes: &[u8]) {
    let mut decoder = Decoder::new(if setup & 1 != 0 { Role::Controller } else { Role::Host });
    if setup & 2 != 0 {
        decoder.initialize(setup & 4 != 0, setup & 8 != 0, if setup & 16 != 0 { setup >> 5 } else { 0 });
        decoder.set_data_bytes_max(4096);
        decoder.set_capsule_data_bytes_max(8192);
    }
    while !bytes.is_empty() {
        match decoder.decode(bytes) {
            Ok(Decoded::NeedMore(needed)) => {
                assert!(needed > bytes.len(), "asked for {needed} of {} bytes", bytes.len());
                assert!(needed <= INITIALIZE_BYTES + DIGEST_BYTES);
                return;
            }
            Ok(Decoded::Head(head)) => {
                let digest_bytes = if head.has_data_digest { DIGEST_BYTES } else { 0 };
                assert!(head.data_start <= HEAD_BYTES_MAX);
                assert_eq!(head.pdu_bytes, head.data_start + head.data_bytes + digest_bytes);
                // The same from a prefix that ends with the header, and nothing from one that ends before it.
                let shortest =
                    (0..=bytes.len()).find(|end| !matches!(decoder.decode(&bytes[..*end]), Ok(Decoded::NeedMore(_))));
                let shortest = shortest.expect("the whole decodes");
                assert_eq!(decoder.decode(&bytes[..shortest]), Ok(Decoded::Head(head)));
                if matches!(head.pdu, Pdu::InitializeRequest(_) | Pdu::InitializeResponse(_)) {
                    decoder.initialize(false, false, 0);
                }
                if bytes.len() <= head.pdu_bytes {
                    return;
                }
                bytes = &bytes[head.pdu_bytes..];
            }
            Err(error) => {
                assert!((1..=6).contains(&error.termination().status), "{error}");
                return;
            }
        }
    }
}
