//! Random and damaged bytes against the target: whatever comes, it neither panics nor hangs, and serves the next host. A
//! bounded run; the seeds of a failure are printed by proptest and kept.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use common::*;
use proptest::prelude::*;
use willow_nvme::config::NQN_DEFAULT;
use willow_wire::pdu::{Data, Encoder, InitializeRequest};
use willow_wire::spec::{Sgl, SubmissionEntry, fabrics, opcode, property};

/// A step of a host that has lost its mind.
#[derive(Clone, Debug)]
enum Step {
    /// Bytes of no meaning.
    Noise(Vec<u8>),
    /// A whole capsule with an entry of random dwords around a real opcode.
    Command { opcode: u8, nsid: u32, dwords: [u32; 8], sgl: u8, length: u32, address: u64, flags: u8, data: Vec<u8> },
    /// H2CData that may or may not have been asked for.
    HostData { cid: u16, tag: u16, offset: u32, payload: Vec<u8>, last: bool },
    /// One byte of the next PDU changed.
    Damage { at: usize, by: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let small = prop_oneof![Just(0u32), Just(1), Just(2), Just(u32::MAX), any::<u32>(), 0u32..5000];
    let opcode = prop_oneof![
        Just(0u8),
        Just(1),
        Just(2),
        Just(5),
        Just(6),
        Just(8),
        Just(9),
        Just(0x0a),
        Just(0x0c),
        Just(0x0d),
        Just(0x10),
        Just(0x14),
        Just(0x15),
        Just(0x18),
        Just(0x7f),
        Just(0x81),
        Just(0x82),
        Just(0x86),
        any::<u8>()
    ];
    let sgl = prop_oneof![4 => Just(0x5au8), 4 => Just(1u8), 1 => any::<u8>()];
    let length = prop_oneof![Just(0u32), Just(512), Just(4096), Just(8192), Just(16384), Just(1 << 20), any::<u32>()];
    let flags = prop_oneof![8 => Just(0x40u8), 1 => any::<u8>()];
    let data =
        prop_oneof![Just(vec![]), Just(vec![7; 512]), Just(vec![0; 4096]), prop::collection::vec(any::<u8>(), 0..1200)];
    let dwords = prop::array::uniform8(small.clone());
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 1..200).prop_map(Step::Noise),
        12 => (opcode, small, dwords, sgl, length, prop_oneof![3 => Just(0u64), 1 => any::<u64>()], flags, data).prop_map(
            |(opcode, nsid, dwords, sgl, length, address, flags, data)| Step::Command {
                opcode, nsid, dwords, sgl, length, address, flags, data
            }
        ),
        2 => (0u16..40, 0u16..40, prop_oneof![Just(0u32), any::<u32>()], prop::collection::vec(any::<u8>(), 1..600), any::<bool>())
            .prop_map(|(cid, tag, offset, payload, last)| Step::HostData { cid, tag, offset, payload, last }),
        1 => (0usize..100, 1u8..).prop_map(|(at, by)| Step::Damage { at, by }),
    ]
}

/// The bytes of all steps. `harmless`: leaves out what would end the association on purpose (a write to CC).
fn encode(steps: &[Step], digests: bool) -> Vec<u8> {
    let encoder = Encoder::new(digests, digests, 0);
    let mut out = Vec::new();
    let mut damage: Option<(usize, u8)> = None;
    for (number, step) in steps.iter().enumerate() {
        let start = out.len();
        match step {
            Step::Noise(noise) => out.extend_from_slice(noise),
            Step::Command { opcode, nsid, dwords, sgl, length, address, flags, data } => {
                let mut entry = SubmissionEntry::new(*opcode).with_nsid(*nsid).with_cid(number as u16 % 24);
                for (index, dword) in [2, 3, 10, 11, 12, 13, 14, 15].into_iter().zip(dwords) {
                    entry.set_cdw(index, *dword);
                }
                entry.set_sgl(Sgl { address: *address, length: *length, identifier: *sgl });
                entry.0[1] = *flags;
                if *opcode == 0x81 && entry.cdw10() >> 16 == 0 {
                    // The control service may be told to delete what later checks need.
                    entry.set_cdw(10, 0x0001_0001);
                }
                if *opcode == 0x0d {
                    entry.set_cdw(10, 7);
                }
                encoder.command_with_data(&mut out, &entry, data);
            }
            Step::HostData { cid, tag, offset, payload, last } => {
                let data = Data {
                    cid: *cid,
                    transfer_tag: *tag,
                    offset: *offset,
                    bytes: payload.len() as u32,
                    last: *last,
                    success: false,
                };
                encoder.host_data(&mut out, &data);
                encoder.payload(&mut out, payload);
            }
            Step::Damage { at, by } => {
                damage = Some((*at, *by));
                continue;
            }
        }
        if let Some((at, by)) = damage.take() {
            let at = start + at % (out.len() - start);
            out[at] ^= by;
        }
    }
    out
}

/// Sends bytes in pieces and reads whatever comes until the end or until nothing more comes.
fn throw(mut stream: TcpStream, bytes: &[u8], piece: usize) {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut scrap = vec![0; 1 << 20];
    for part in bytes.chunks(piece.max(1)) {
        if stream.write_all(part).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    while let Ok(1..) = stream.read(&mut scrap) {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 64, ..ProptestConfig::default() })]
    #[test]
    fn nothing_that_a_host_sends_breaks_the_target(
        plans in prop::collection::vec((prop::collection::vec(step(), 1..24), 0u8..4, any::<bool>(), 1usize..4000), 6)
    ) {
        let server = serve();
        for (steps, place, digests, piece) in &plans {
            let bytes = encode(steps, *digests);
            match place {
                // On a fresh connection; behind the initialization; on an admin queue; on an I/O queue.
                0 => throw(TcpStream::connect(server.address).unwrap(), &bytes, *piece),
                1 => throw(Peer::initialized(server.address, *digests).stream, &bytes, *piece),
                2 => throw(Peer::admin(server.address, *digests).0.stream, &bytes, *piece),
                _ => {
                    let (_admin, io, _) = Peer::with_queue(server.address, *digests);
                    throw(io.stream, &bytes, *piece);
                }
            }
        }
        serves(server.address);
        server.stop();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_damaged_session_breaks_nothing(damages in prop::collection::vec((any::<usize>(), 1u8..), 1..6), cut in any::<usize>()) {
        let server = serve();
        // A session as hosts have it, up to a command, with bytes changed and the rest cut off anywhere.
        let mut bytes = Vec::new();
        Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
        let encoder = Encoder::default();
        let (entry, data) = connect_command(0, 0xffff, NQN_DEFAULT);
        encoder.command_with_data(&mut bytes, &entry, &data[..]);
        encoder.command(&mut bytes, &fabrics::property_set(property::CC, 0x46_0061, false).with_cid(1), 0);
        encoder.command(&mut bytes, &SubmissionEntry::new(6).with_cid(2).with_cdw(10, 1).with_sgl(Sgl::transport(4096)), 0);
        for (at, by) in damages {
            let at = at % bytes.len();
            bytes[at] ^= by;
        }
        bytes.truncate(1 + cut % bytes.len());
        throw(TcpStream::connect(server.address).unwrap(), &bytes, 333);
        serves(server.address);
        server.stop();
    }
}

/// What a host may ask for is no damage: blocks of another size are served as well.
#[test]
fn a_namespace_that_was_formatted_is_served() {
    let server = serve();
    let (mut admin, _) = Peer::admin(server.address, false);
    let format = SubmissionEntry::new(opcode::admin::FORMAT_NVM).with_cid(1).with_nsid(1);
    let (completion, _) = admin.ask_data(&format, &[]);
    assert!(completion.status.is_success(), "{completion:?}");
    serves(server.address);
    server.stop();
}
