//! Properties of the PDU codec.

use proptest::prelude::*;
use willow_wire::pdu::*;
use willow_wire::testing::{check_stream, pdu};

proptest! {
    #[test]
    fn every_pdu_round_trips(generated in pdu()) {
        let bytes = generated.encode();
        let decoder = generated.decoder();
        let head = match decoder.decode(&bytes) {
            Ok(Decoded::Head(head)) => head,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(head.pdu, generated.pdu);
        prop_assert_eq!(head.pdu_bytes, bytes.len());
        prop_assert_eq!(&bytes[head.data_start..head.data_start + head.data_bytes], &generated.payload[..]);
        if head.has_data_digest {
            let mut running = Digest::new();
            for piece in generated.payload.chunks(7) {
                running.update(piece);
            }
            prop_assert_eq!(&bytes[head.pdu_bytes - DIGEST_BYTES..], &running.value().to_le_bytes()[..]);
        } else {
            prop_assert!(!generated.data_digest || generated.payload.is_empty() || !generated.pdu.pdu_type().may_have_header_digest());
        }
        // Every prefix asks for more, and never for more than the header.
        for end in 0..bytes.len().min(head.data_start) {
            match decoder.decode(&bytes[..end]) {
                Ok(Decoded::NeedMore(needed)) => prop_assert!(needed > end && needed <= head.data_start),
                Ok(Decoded::Head(early)) => prop_assert_eq!(early, head),
                Err(error) => return Err(TestCaseError::fail(format!("prefix {end}: {error}"))),
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(setup in any::<u8>(), bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check_stream(setup, &bytes);
    }

    #[test]
    fn mutated_streams_never_panic(setup in any::<u8>(), stream in proptest::collection::vec(pdu(), 1..4),
                                   flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let mut bytes: Vec<u8> = stream.iter().flat_map(|generated| generated.encode()).collect();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        check_stream(setup, &bytes);
    }

    #[test]
    fn a_changed_header_byte_is_caught_by_its_digest(generated in pdu(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        prop_assume!(generated.header_digest && generated.pdu.pdu_type().may_have_header_digest());
        let mut bytes = generated.encode();
        // The common header's fields have checks of their own, which come first.
        let at = COMMON_HEADER_BYTES + at.index(generated.pdu.pdu_type().header_bytes() - COMMON_HEADER_BYTES);
        bytes[at] ^= 1 << bit;
        let error = generated.decoder().decode(&bytes).expect_err("digest must not match");
        prop_assert_eq!(error.status, FatalStatus::HeaderDigestError);
    }
}

fn controller() -> Decoder {
    let mut decoder = Decoder::new(Role::Controller);
    decoder.initialize(false, false, 0);
    decoder.set_data_bytes_max(4096);
    decoder.set_capsule_data_bytes_max(8192);
    decoder
}

fn command(data_bytes: usize) -> Vec<u8> {
    let mut to = Vec::new();
    let entry = willow_wire::spec::SubmissionEntry::new(1);
    Encoder::default().command_with_data(&mut to, &entry, &vec![0; data_bytes]);
    to
}

type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn bad_fields_are_named_by_their_offset() {
    let cases: &[(u32, Change)] = &[
        (field::TYPE, &|pdu| pdu[0] = 0x08),
        (field::TYPE, &|pdu| pdu[0] = 0x05),
        (field::FLAGS, &|pdu| pdu[1] = FLAG_HEADER_DIGEST),
        (field::FLAGS, &|pdu| pdu[1] = FLAG_DATA_DIGEST),
        (field::FLAGS, &|pdu| pdu[1] = FLAG_LAST),
        (field::HLEN, &|pdu| pdu[2] = 71),
        (field::PDO, &|pdu| pdu[3] = 71),
        (field::PDO, &|pdu| pdu[3] = 255),
        (field::PLEN, &|pdu| pdu[4..8].copy_from_slice(&71u32.to_le_bytes())),
        (field::PLEN, &|pdu| pdu[4..8].copy_from_slice(&(72 + 8193u32).to_le_bytes())),
        (field::PLEN, &|pdu| pdu[4..8].copy_from_slice(&u32::MAX.to_le_bytes())),
    ];
    for (index, (offset, change)) in cases.iter().enumerate() {
        let mut bytes = command(512);
        change(&mut bytes);
        let error = controller().decode(&bytes).expect_err("must be refused");
        assert_eq!(
            (error.status, error.information),
            (FatalStatus::InvalidHeaderField, *offset),
            "case {index}: {error}"
        );
    }
}

#[test]
fn sequence_and_limits() {
    let early = Decoder::new(Role::Controller).decode(&command(0)).expect_err("before ICReq");
    assert_eq!(early.status, FatalStatus::SequenceError);
    let mut request = Vec::new();
    Encoder::initialize_request(&mut request, &InitializeRequest::default());
    assert_eq!(controller().decode(&request).expect_err("second ICReq").status, FatalStatus::SequenceError);
    let data = Data { cid: 1, transfer_tag: 2, offset: 0, bytes: 4100, last: true, success: false };
    let mut bytes = Vec::new();
    Encoder::default().host_data(&mut bytes, &data);
    assert_eq!(controller().decode(&bytes).expect_err("past MAXH2CDATA").status, FatalStatus::LimitExceeded);
    let mut version = request;
    version[8] = 1;
    let error = Decoder::new(Role::Controller).decode(&version).expect_err("PFV 1");
    assert_eq!((error.status, error.information), (FatalStatus::UnsupportedParameter, field::PFV));
}

#[test]
fn known_digest() {
    // RFC 3720, B.4: 32 bytes of zeroes, and of ones.
    assert_eq!(digest(&[0; 32]), 0x8a91_36aa);
    assert_eq!(digest(&[0xff; 32]), 0x62a8_ab43);
}
