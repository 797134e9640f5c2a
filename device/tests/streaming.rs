//! Accelerators that stream: what they do to local memory, that the processor goes on beside them under a model, what that costs in energy, and what they
//! refuse.

mod common;
use common::hardware::parameters;
use common::*;
use willow_device::media::ram::RamStore;
use willow_device::model::parameters::{ModelParameters, Watts};
use willow_device::model::{HardwareModel, ModelStatistics};
use willow_device::{Device, RpcOutcome};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const ARGUMENT: u32 = -2i32 as u32;

/// Handler 1 takes two words, x and y (rows of singles, each of half the payload) and answers with y = 2 * x + y; its arguments are u32 bytes of a
/// number, count, address of y. 2 answers at once. 3 transforms the payload: u32 bytes of a number, inverse, count, rows. 4 looks for a key that is not there
/// among 4096 of a region, or, where its argument is 0, of local memory; where it is 2 it sums 32 KiB of local memory. 5 decompresses the payload: u32 codec, kept,
/// left, bytes of the memory; it answers with the record and that memory, which begins with `z`s.
const KERNELS: &str = r#"(global $token (mut i32) (i32.const 0)) (global $at (mut i32) (i32.const 0)) (global $bytes (mut i32) (i32.const 0))
    (global $base (mut i64) (i64.const 0))
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then
            (global.set $base (call $region (i32.const 1) (i64.const 65536) (i32.const 9)))))
        (if (i32.or (i32.eqz (local.get 1)) (i32.eq (local.get 1) (i32.const 2))) (then
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (global.set $token (local.get 0))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 16)))
        (global.set $bytes (call $receive_bytes (local.get 0) (i32.const 0x10000) (i32.const 0x80000)))
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (global.set $bytes (i32.shr_u (global.get $bytes) (i32.const 1)))
            (global.set $at (i32.load (i32.const 8)))
            (local.set $code (call $multiply_add (local.get 0) (i32.load (i32.const 0)) (i64.const 0x4000000000000000)
                (i32.const 0x10000) (global.get $at) (i32.load (i32.const 4)) (i32.const 5)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then
            (global.set $at (i32.const 0x10000))
            (local.set $code (call $fft (local.get 0) (i32.load (i32.const 0)) (i32.load (i32.const 4)) (i32.const 0x10000)
                (i32.load (i32.const 8)) (i32.load (i32.const 12)) (i32.const 5)))))
        (if (i32.eq (local.get 1) (i32.const 5)) (then
            (global.set $at (i32.const 0x3ffe0))
            (memory.fill (i32.const 0x3ffe0) (i32.const 0) (i32.const 32))
            (memory.fill (i32.const 0x40000) (i32.const 122) (i32.const 0x20000))
            (i64.store (i32.const 0x3ffe0) (i64.load (i32.const 4)))
            (local.set $code (call $decompress (local.get 0) (i32.load (i32.const 0)) (i32.const 0x10000) (global.get $bytes) (i32.const 0x40000)
                (i32.load (i32.const 12)) (i32.const 0x3ffe0) (i32.const 5)))
            (global.set $bytes (i32.add (i32.and (i32.load (i32.const 12)) (i32.const 0x7ffff)) (i32.const 32)))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (i64.store (i32.const 32) (i64.const -1))
            (if (i32.eq (i32.load (i32.const 0)) (i32.const 2))
                (then (local.set $code (call $checksum (local.get 0) (i32.const 0) (i64.const 0x10000) (i32.const 0x8000) (i32.const 0) (i32.const 7))))
                (else (local.set $code (call $keys_find (local.get 0) (i32.load (i32.const 0))
                    (select (global.get $base) (i64.const 0x10000) (i32.load (i32.const 0)))
                    (i32.const 8) (i32.const 8) (i32.const 4096) (i32.const 1) (i32.const 32) (i32.const 7)))))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (i32.const 7) (i64.extend_i32_s (local.get $code)))))
            (return (i32.const 0))))
        (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (i32.const 5) (i64.extend_i32_s (local.get $code)))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (if (i32.eq (local.get 0) (i32.const 9)) (then (global.set $base (local.get 1)) (return)))
        (if (i32.eq (local.get 0) (i32.const 7)) (then
            (call $respond (global.get $token) (i32.const 0) (i32.wrap_i64 (local.get 1))) (return)))
        (if (i32.ne (local.get 0) (i32.const 5)) (then (return)))
        (drop (call $dma (global.get $token) (i32.const 0) (i64.extend_i32_u (global.get $at)) (i32.const 2) (i64.const 0)
            (global.get $bytes) (i32.const 6)))
        (call $respond (global.get $token) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

fn kernels() -> Vec<u8> {
    module_with_manifest("kernels", r#"(memory (export "memory") 12)"#, KERNELS, "handler=5:five\\n")
}

fn modelled(parameters: &ModelParameters) -> Rig {
    let store = RamStore::new(1, 1 << 26).expect("memory");
    let model = HardwareModel::new(parameters, 1, 1 << 26).expect("a model");
    let mut device = Device::open(config(1), Box::new(store), Some(Box::new(model)), Vec::new()).expect("a device");
    let hre = device.open_hre(None).expect("an endpoint");
    let mut rig = Rig::around(device, hre);
    rig.settle();
    rig
}

fn model(rig: &Rig) -> ModelStatistics {
    rig.device.statistics().model.expect("a model")
}

fn busy_ns(statistics: &ModelStatistics, name: &str) -> u64 {
    statistics.resources.iter().find(|resource| resource.name == name).expect("a resource").busy_ns
}

fn accelerators_j(statistics: &ModelStatistics) -> f64 {
    statistics.energy.iter().find(|part| part.name == "accelerators").expect("a part").joules
}

fn words(values: [u32; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn singles(count: usize, of: impl Fn(usize) -> f32) -> Vec<u8> {
    (0..count).flat_map(|place| of(place).to_le_bytes()).collect()
}

#[test]
fn an_accelerator_streams_beside_the_processor_and_takes_its_energy() {
    const COUNT: usize = 30_000;
    let own = Watts { idle_w: 1.0, active_w: 3.0 };
    let with_power = |power| {
        let mut parameters = parameters();
        parameters.accelerator.multiply_add.power = power;
        parameters
    };
    let mut joules = Vec::new();
    for power in [None, Some(own)] {
        let mut rig = modelled(&with_power(power));
        let app = rig.install(&kernels()).expect("an app");
        // What no app has used takes no power of its own.
        let before = model(&rig);
        let idle_j = accelerators_j(&before);
        assert!((idle_j - 0.013 * before.now_ns as f64 / 1e9).abs() < 1e-9, "{idle_j}");
        let (x, y) = (singles(COUNT, |place| place as f32), singles(COUNT, |place| -(place as f32) / 3.0));
        let hre = rig.hre;
        let at = 0x10000 + 4 * COUNT as u32;
        rig.device.set_time(rig.now_ns);
        rig.begin(hre, (app, 1, 0), &words([4, COUNT as u32, at, 0]), &[x, y].concat(), 4 * COUNT as u32);
        // Another request meanwhile: the processor is free for it.
        rig.begin(hre, (app, 2, 0), &[], &[], 0);
        rig.settle();
        let (first, second) = (rig.device.completion().expect("one"), rig.device.completion().expect("the other"));
        let (quick, streamed) = if first.reply_bytes == 0 { (first, second) } else { (second, first) };
        assert_eq!((quick.outcome, streamed.outcome, streamed.result), (ANSWERED, ANSWERED, 0));
        let wanted = singles(COUNT, |place| 2.0 * place as f32 + -(place as f32) / 3.0);
        assert!(streamed.buffer[..wanted.len()] == wanted[..]);
        let after = model(&rig);
        // Both rows at 16 bytes a nanosecond, and the set-up.
        let taken_ns = busy_ns(&after, "SPU 0 accelerators") - busy_ns(&before, "SPU 0 accelerators");
        assert_eq!(taken_ns, 8 * COUNT as u64 / 16 + 10);
        assert!(quick.at_ns + taken_ns / 2 < streamed.at_ns, "{} {}", quick.at_ns, streamed.at_ns);
        let counted = rig.device.statistics().spus[0].accelerators.multiply_add;
        assert_eq!((counted.operations, counted.bytes), (1, 8 * COUNT as u64));
        let (now_s, busy_s) = (after.now_ns as f64 / 1e9, taken_ns as f64 / 1e9);
        let expected = match power {
            None => 0.013 * (now_s - busy_s) + 0.12 * busy_s,
            Some(Watts { idle_w, active_w }) => 0.013 * now_s + idle_w * (now_s - busy_s) + active_w * busy_s,
        };
        assert!((accelerators_j(&after) - expected).abs() < 1e-9, "{} {expected}", accelerators_j(&after));
        joules.push(accelerators_j(&after));
    }
    assert!(joules[1] > joules[0]);
}

/// How long an operation takes, and how long it keeps the processor; with keys and checksums at this clock.
fn taken(clock_hz: u64, argument: u32, result: u32) -> (u64, u64) {
    let mut parameters = parameters();
    for accelerator in [&mut parameters.accelerator.keys, &mut parameters.accelerator.checksum] {
        accelerator.clock_hz = clock_hz;
    }
    let mut rig = modelled(&parameters);
    let app = rig.install(&kernels()).expect("an app");
    let before = model(&rig);
    let (hre, begin_ns) = (rig.hre, rig.now_ns);
    rig.device.set_time(begin_ns);
    rig.begin(hre, (app, 4, 0), &argument.to_le_bytes(), &[], 0);
    rig.settle();
    let done = rig.device.completion().expect("it has ended");
    assert_eq!((done.outcome, done.result), (ANSWERED, result), "{argument}");
    (done.at_ns - begin_ns, busy_ns(&model(&rig), "SPU 0 processor") - busy_ns(&before, "SPU 0 processor"))
}

#[test]
fn what_takes_longer_than_to_be_told_streams_also_behind_a_dma_and_the_processor_rests() {
    let absent = 2 + 2 * 4096;
    // 32 KiB take 2048 cycles of 16 bytes, from the region behind the DMA.
    for (argument, result) in [(1, absent), (0, absent), (2, crc32c::crc32c(&[0; 0x8000]))] {
        let fast = taken(1_000_000_000, argument, result);
        let slow = taken(500_000_000, argument, result);
        assert_eq!(slow.0 - fast.0, 2048, "{argument}: the accelerator's time is the operation's");
        assert_eq!(slow.1, fast.1, "{argument}: and none of the processor's");
    }
}

#[test]
fn what_an_accelerator_cannot_take_changes_nothing() {
    for timed in [false, true] {
        let mut rig = if timed { modelled(&parameters()) } else { Rig::new(1) };
        let app = rig.install(&kernels()).expect("an app");
        let hre = rig.hre;
        let row = singles(64, |place| place as f32);
        let both = [&row[..], &row].concat();
        let y = 0x10000 + 256;
        for (number, count, at) in
            [(3, 64, y), (0, 64, y), (4, 65, y), (4, 64, y - 1), (4, 1 << 20, y), (8, u32::MAX, y)]
        {
            let done = rig.call_on(hre, (app, 1, 0), &words([number, count, at, 0]), &both, 256);
            assert_eq!((done.outcome, done.result), (ANSWERED, ARGUMENT), "{number} {count} {at:x}");
            let untouched = if at == y { &row[..] } else { &both[255..511] };
            assert!(done.buffer[..256] == *untouched, "{number} {count} {at:x}");
        }
        for (number, inverse, count, rows) in
            [(5, 0, 8, 1), (4, 2, 8, 1), (4, 0, 0, 1), (4, 0, 1 << 16, 2), (8, 0, 2, u32::MAX)]
        {
            let done = rig.call_on(hre, (app, 3, 0), &words([number, inverse, count, rows]), &row, 256);
            assert_eq!((done.outcome, done.result), (ANSWERED, ARGUMENT), "{number} {inverse} {count} {rows}");
            assert!(done.buffer[..256] == row[..]);
        }
        // There and back again, two rows of 16.
        let there = rig.call_on(hre, (app, 3, 0), &words([4, 0, 16, 2]), &row, 256);
        assert_eq!((there.outcome, there.result), (ANSWERED, 0));
        assert!(there.buffer[..256] != row[..]);
        let spectrum = there.buffer[..256].to_vec();
        let back = rig.call_on(hre, (app, 3, 0), &words([4, 1, 16, 2]), &spectrum, 256);
        for (found, wanted) in back.buffer[..256].chunks(4).zip(row.chunks(4)) {
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four"));
            assert!((number(found) - number(wanted)).abs() < 1e-4);
        }
        // Rows outside of the memory end the app.
        let wild = rig.call_on(hre, (app, 1, 0), &words([4, 64, 0xffff_ff00, 0]), &both, 256);
        assert_ne!(wild.outcome, ANSWERED);
    }
}

/// A block that a piece of `count` zeroes makes: a byte, and copies of 64 from 60 before.
fn zeroes(copies: usize) -> Vec<u8> {
    let count = 60 + 64 * copies;
    let mut block = vec![count as u8 | 128, (count >> 7) as u8 | 128, (count >> 14) as u8, 59 << 2];
    block.extend([0; 60]);
    (0..copies).for_each(|_| block.extend([63 << 2 | 2, 60, 0]));
    block
}

#[test]
fn what_is_decompressed_comes_piece_by_piece_is_charged_and_streams() {
    const COPIES: usize = 1000;
    for timed in [false, true] {
        let mut rig = if timed { modelled(&parameters()) } else { Rig::new(1) };
        let app = rig.install(&kernels()).expect("an app");
        let (hre, block) = (rig.hre, zeroes(COPIES));
        let before = timed.then(|| model(&rig));
        let done = rig.call_on(hre, (app, 5, 0), &words([1, 0, u32::MAX, 0x18000]), &block, 0x18020);
        assert_eq!((done.outcome, done.result), (ANSWERED, 0));
        let word =
            |number: usize| u32::from_le_bytes(done.buffer[4 * number..][..4].try_into().expect("four")) as usize;
        let (kept, left, phase, used) = (word(0), word(1), word(2), word(5));
        assert_eq!((kept, left, phase, used), (60 + 64 * COPIES, 0, 1, block.len()), "all of it came");
        assert!(done.buffer[32..32 + kept].iter().all(|byte| *byte == 0));
        // What is copied at once may be more than there is of it: never past the memory that was given.
        assert!(done.buffer[32 + kept + 80..].iter().all(|byte| *byte == b'z'));
        let counted = rig.device.statistics().spus[0].accelerators.decompress;
        assert_eq!((counted.operations, counted.bytes), (1, kept as u64));
        if let Some(before) = before {
            let taken_ns = busy_ns(&model(&rig), "SPU 0 accelerators") - busy_ns(&before, "SPU 0 accelerators");
            assert_eq!(taken_ns, (kept as u64).div_ceil(16) + 10);
        }
        // A call does a bounded piece of a longer one.
        let long = zeroes(4000);
        let done = rig.call_on(hre, (app, 5, 0), &words([1, 0, u32::MAX, 0x60000]), &long, 0x60020);
        let came = u32::from_le_bytes(done.buffer[..4].try_into().expect("four"));
        assert!((60_000..4000 * 64).contains(&came), "{came}");
        // What cannot be, and what is none, changes nothing but the record.
        for (what, code, phase) in [
            ([2, 0, u32::MAX, 0x1000], ARGUMENT, 0),
            ([1, 0x1001, u32::MAX, 0x1000], ARGUMENT, 0),
            ([1, 0, u32::MAX, 0x80001], ARGUMENT, 0),
            ([1, 0, 5, 0x1000], 0, 2),
        ] {
            let done = rig.call_on(hre, (app, 5, 0), &words(what), &block, 0x1020);
            assert_eq!((done.outcome, done.result, done.buffer[8]), (ANSWERED, code, phase), "{what:?}");
            assert!(done.buffer[32..done.reply_bytes as usize].iter().all(|byte| *byte == b'z'), "{what:?}");
        }
    }
}
