//! Base-IO's handlers against a model: a plain buffer for the namespace's share of one bank, and the requester's buffer.

use base_io_spu::wire::{self, RangeArguments, handler};
use willow_sdk::testing::{Device, Options, Pending};

const STRIPE_BYTES: u32 = 4096;
const BANK_BYTES: u64 = 256 * 1024;

fn device(seed: u64, pending: Pending) -> (Device, u64) {
    let mut device = Device::new(base_io_spu::native(), Options { seed, pending, ..Options::default() });
    // Not the first thing in the bank, so that its base is not 0.
    device.create_namespace(1, 0, 512, 65536);
    let base = device.create_namespace(2, 0, 512, BANK_BYTES).base;
    assert!(base > 0);
    (device, base)
}

/// (offset in the bank, offset in the buffer, bytes) of every piece, as wire.rs has it.
fn pieces(range: &RangeArguments) -> Vec<(u64, usize, usize)> {
    let mut out = Vec::new();
    let (mut done, mut bytes, mut piece) = (0, range.first_bytes.min(range.bytes), 0u64);
    while done < range.bytes {
        let buffer = match piece {
            0 => u64::from(range.buffer_offset),
            _ => {
                u64::from(range.buffer_offset) + u64::from(range.first_bytes) + piece * u64::from(range.stride)
                    - u64::from(range.stripe_bytes)
            }
        };
        out.push((range.nv_address + u64::from(done), buffer as usize, bytes as usize));
        done += bytes;
        bytes = (range.bytes - done).min(range.stripe_bytes);
        piece += 1;
    }
    out
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// A range as the host library makes them: the first piece up to the end of a stripe, then whole stripes, then the rest.
fn random_range(random: &mut Random, base: u64) -> RangeArguments {
    let spus = 1 + random.below(4) as u32;
    let start = random.below(BANK_BYTES - 1);
    let bytes = 1 + random.below((BANK_BYTES - start).min(40000)) as u32;
    let (start, bytes) = if random.below(3) == 0 {
        let aligned = start & !u64::from(STRIPE_BYTES - 1);
        (aligned, (bytes & !(STRIPE_BYTES - 1)).max(STRIPE_BYTES).min((BANK_BYTES - aligned) as u32))
    } else {
        (start, bytes)
    };
    RangeArguments {
        nv_address: base + start,
        bytes,
        buffer_offset: random.below(5000) as u32,
        first_bytes: bytes.min(STRIPE_BYTES - (start % u64::from(STRIPE_BYTES)) as u32),
        stripe_bytes: STRIPE_BYTES,
        stride: STRIPE_BYTES * spus,
        flags: if random.below(2) == 0 { wire::FLAG_FUA } else { 0 },
    }
}

#[test]
fn every_operation_does_what_the_model_does() {
    for (seed, pending) in [(1, Pending::Never), (2, Pending::Always), (3, Pending::Random), (4, Pending::Random)] {
        let (mut device, base) = device(seed, pending);
        let mut random = Random(seed);
        let mut model = vec![0u8; BANK_BYTES as usize];
        for round in 0..400u32 {
            let range = random_range(&mut random, base);
            let buffer_bytes = pieces(&range).iter().map(|(_, at, bytes)| at + bytes).max().expect("not empty");
            let local = |address: u64, bytes: usize| (address - base) as usize..(address - base) as usize + bytes;
            match random.below(5) {
                0 | 1 => {
                    let payload: Vec<u8> = (0..buffer_bytes).map(|byte| (byte as u32 * 7 + round) as u8).collect();
                    let outcome = device.call(0, handler::WRITE, &range.encode(), &payload, 0);
                    assert_eq!(outcome.status, 0);
                    for (address, at, bytes) in pieces(&range) {
                        model[local(address, bytes)].copy_from_slice(&payload[at..at + bytes]);
                    }
                }
                2 => {
                    let outcome = device.call(0, handler::READ, &range.encode(), &[], buffer_bytes);
                    assert_eq!(outcome.status, 0);
                    let mut expected = vec![0; buffer_bytes];
                    for (address, at, bytes) in pieces(&range) {
                        expected[at..at + bytes].copy_from_slice(&model[local(address, bytes)]);
                    }
                    assert!(outcome.reply == expected);
                }
                3 => {
                    assert_eq!(device.call(0, handler::ZERO, &range.encode(), &[], 0).status, 0);
                    assert_eq!(device.call(0, handler::VERIFY, &range.encode(), &[], 0).status, 0);
                    model[local(range.nv_address, range.bytes as usize)].fill(0);
                }
                _ => {
                    let mut payload = vec![0; buffer_bytes];
                    for (address, at, bytes) in pieces(&range) {
                        payload[at..at + bytes].copy_from_slice(&model[local(address, bytes)]);
                    }
                    assert_eq!(device.call(0, handler::COMPARE, &range.encode(), &payload, 0).status, 0);
                    let all = pieces(&range);
                    let (_, at, bytes) = all[random.below(all.len() as u64) as usize];
                    payload[at + random.below(bytes as u64) as usize] ^= 1;
                    let outcome = device.call(0, handler::COMPARE, &range.encode(), &payload, 0);
                    assert_eq!(outcome.status, wire::STATUS_COMPARE_FAILED);
                }
            }
            assert!(device.bank(0)[base as usize..][..BANK_BYTES as usize] == model);
        }
    }
}

#[test]
fn what_was_flushed_or_written_with_fua_survives_a_power_cut() {
    for seed in 0..50 {
        let (mut device, base) = device(seed, Pending::Random);
        let write = |device: &mut Device, byte: u8, at: u64, flags: u32| {
            let range = RangeArguments {
                nv_address: base + at,
                bytes: 4096,
                buffer_offset: 0,
                first_bytes: 4096,
                stripe_bytes: 4096,
                stride: 4096,
                flags,
            };
            assert_eq!(device.call(0, handler::WRITE, &range.encode(), &[byte; 4096], 0).status, 0);
        };
        write(&mut device, 1, 0, wire::FLAG_FUA);
        write(&mut device, 2, 4096, 0);
        assert_eq!(device.call(0, handler::FLUSH, &[], &[], 0).status, 0);
        write(&mut device, 3, 8192, 0);
        device.cut_power();
        let bank = &device.bank(0)[base as usize..];
        assert!(bank[..4096] == [1; 4096] && bank[4096..8192] == [2; 4096]);
        assert!(bank[8192..12288].chunks(512).all(|sector| sector == [0; 512] || sector == [3; 512]));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut device, base) = device(1, Pending::Random);
    let good = RangeArguments {
        nv_address: base,
        bytes: 8192,
        buffer_offset: 0,
        first_bytes: 4096,
        stripe_bytes: 4096,
        stride: 8192,
        flags: 0,
    };
    let status = |device: &mut Device, handler: u8, range: RangeArguments, bytes: usize| {
        device.call(0, handler, &range.encode(), &vec![0; bytes], bytes).status
    };
    for handler in [handler::READ, handler::WRITE, handler::COMPARE] {
        assert_eq!(status(&mut device, handler, good, 12288), 0);
        // The buffer is too short for the second piece.
        assert_eq!(status(&mut device, handler, good, 12287), wire::STATUS_RANGE);
        assert_eq!(
            status(&mut device, handler, RangeArguments { first_bytes: 0, ..good }, 12288),
            wire::STATUS_MALFORMED
        );
        assert_eq!(
            status(&mut device, handler, RangeArguments { stripe_bytes: 0, ..good }, 12288),
            wire::STATUS_MALFORMED
        );
        assert_eq!(status(&mut device, handler, RangeArguments { stride: 1, ..good }, 12288), wire::STATUS_MALFORMED);
        let far = RangeArguments { buffer_offset: u32::MAX - 4096, ..good };
        assert_eq!(status(&mut device, handler, far, 12288), wire::STATUS_MALFORMED);
        let wide = RangeArguments { bytes: u32::MAX, first_bytes: 1, stripe_bytes: 1, stride: u32::MAX, ..good };
        assert_eq!(status(&mut device, handler, wide, 12288), wire::STATUS_MALFORMED);
        let foreign = RangeArguments { nv_address: base + BANK_BYTES - 4096, ..good };
        assert_eq!(status(&mut device, handler, foreign, 12288), wire::STATUS_PERMISSION);
        assert_eq!(status(&mut device, handler, RangeArguments { bytes: 0, ..good }, 0), 0);
        assert_eq!(device.call(0, handler, &[0; 31], &[], 0).status, wire::STATUS_MALFORMED);
    }
    let past = RangeArguments { nv_address: 1 << 40, ..good };
    assert_eq!(status(&mut device, handler::ZERO, past, 0), wire::STATUS_PERMISSION);
    device.fail_media(0, base + 4096..base + 4097);
    assert_eq!(status(&mut device, handler::READ, good, 12288), wire::STATUS_MEDIA_ERROR);
    assert_eq!(status(&mut device, handler::VERIFY, good, 0), wire::STATUS_MEDIA_ERROR);
    device.fail_media(0, 0..0);
    assert_eq!(status(&mut device, handler::VERIFY, good, 0), 0);
}
