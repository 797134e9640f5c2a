//! The core under the model of hardware: what a request costs is the sum of what its steps cost, contention comes from queues, energy
//! is conserved, the trace shows every lane doing one thing at a time, and nothing depends on the driver.

mod common;
use common::hardware::parameters;
use common::shared::Shared;
use common::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use willow_device::media::ram::RamStore;
use willow_device::model::parameters::*;
use willow_device::model::{HardwareModel, Lane, ModelParameters, ModelStatistics, Span, TraceSink};
use willow_device::{Arguments, BuiltInApp, Device, DeviceConfig, HostRequest, Rpc, RpcList, RpcOutcome};

const SPUS: u16 = 4;
const BANK_BYTES: u64 = 1 << 30;

fn device_config() -> DeviceConfig {
    DeviceConfig { namespace_bytes: 64 << 20, ..config(SPUS) }
}

/// A device with Base-IO, natively or (with `sandbox`) as the given module.
fn rig(parameters: &ModelParameters) -> Rig {
    let store = RamStore::new(SPUS.into(), BANK_BYTES).unwrap();
    let model = HardwareModel::new(parameters, SPUS, BANK_BYTES).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native())];
    let mut device = Device::open(device_config(), Box::new(store), Some(Box::new(model)), apps).unwrap();
    let hre = device.open_hre(None).unwrap();
    let mut rig = Rig::around(device, hre);
    rig.settle();
    rig.now_ns = 1_000_000;
    rig.device.set_time(rig.now_ns);
    rig
}

/// A block request by Base-IO's wire format.
fn block(rig: &mut Rig, write: bool, offset: u64, bytes: u64) -> HostRequest {
    let app = rig.device.app_number("base-io").unwrap();
    let base = rig.device.namespaces()[0].base;
    let geometry = base_io_host::Geometry { spus: SPUS, stripe_bytes: 8192, base };
    let handler = if write { base_io_host::wire::handler::WRITE } else { base_io_host::wire::handler::READ };
    let mut rpcs = Vec::new();
    geometry.range(handler, offset, bytes, 0, 0, &mut |request: base_io_host::SpuRequest| {
        let arguments = Arguments::new(&request.arguments.encode()).unwrap();
        rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
    });
    let mut request = rig.request(rpcs[0], &vec![7; if write { bytes as usize } else { 0 }], bytes as u32);
    if write {
        request.reply_bytes = 0;
    }
    request.rpcs = if rpcs.len() == 1 { RpcList::One(rpcs[0]) } else { RpcList::Many(rpcs) };
    request
}

/// Submits now and runs to the end: how long it took.
fn latency(rig: &mut Rig, write: bool, offset: u64, bytes: u64) -> u64 {
    let request = block(rig, write, offset, bytes);
    let begun_ns = rig.now_ns;
    rig.device.set_time(begun_ns);
    rig.device.submit(rig.hre, request).unwrap();
    rig.settle();
    let done = rig.device.completion().unwrap();
    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    rig.now_ns = rig.now_ns.max(done.at_ns) + 1_000_000;
    done.at_ns - begun_ns
}

#[test]
fn a_dma_of_a_user_process_takes_a_look_up_and_a_kernels_takes_none() {
    let mut rig = rig(&parameters());
    let process = rig.device.open_process(1000, 1).unwrap();
    let user = rig.device.open_hre(Some(process)).unwrap();
    let base = rig.device.namespaces()[0].base;
    (0..SPUS).for_each(|spu| rig.device.permit(process, spu, (base, 8192), false));
    // The first access opens the row.
    latency(&mut rig, false, 0, 4096);
    let as_kernel = latency(&mut rig, false, 0, 4096);
    rig.hre = user;
    // 70 cycles of 10 ns.
    assert_eq!(latency(&mut rig, false, 0, 4096), as_kernel + 700);
    let request = block(&mut rig, true, 0, 4096);
    rig.device.submit(user, request).unwrap();
    rig.settle();
    let refused = rig.device.completion().unwrap().outcome;
    assert_eq!(refused, RpcOutcome::Answered { status: base_io_host::wire::STATUS_PERMISSION });
}

/// Nanoseconds of the steps of a request that meets nobody.
struct Steps {
    way_in: u64,
    ring_in: u64,
    start: u64,
    dma: u64,
    resume: u64,
    ring_out: u64,
    data_out: u64,
    way_out: u64,
}

fn wire(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(128) * 20
}

fn steps(read_bytes: u64, written_bytes: u64, media_ns: u64) -> Steps {
    let arguments = base_io_host::wire::RangeArguments::BYTES as u64;
    let header = 16 + arguments;
    Steps {
        way_in: wire(64) + wire(written_bytes) + 100 + if written_bytes > 0 { 400 } else { 50 },
        ring_in: (header + written_bytes).div_ceil(16) * 4,
        start: (100 + 10 + 30) * 10,
        dma: 200 + media_ns + (read_bytes + written_bytes) / 2,
        resume: (50 + 20 + 30) * 10,
        // Data that are read go ahead of the answer, and reach the bridge with the DMA's end.
        ring_out: 4,
        data_out: if read_bytes > 0 { 60 + wire(read_bytes) } else { 0 },
        way_out: 60,
    }
}

impl Steps {
    fn sum(&self) -> u64 {
        // The answer's completion follows the data on the link.
        let answer = self.resume + self.ring_out + self.way_out;
        self.way_in + self.ring_in + self.start + self.dma + answer.max(self.data_out) + wire(16) + 150
    }
}

#[test]
fn a_request_that_meets_nobody_takes_the_sum_of_its_steps() {
    let mut rig = rig(&parameters());
    // The row is closed at first, open the second time.
    assert_eq!(latency(&mut rig, false, 0, 4096), steps(4096, 0, 48).sum());
    assert_eq!(latency(&mut rig, false, 0, 4096), steps(4096, 0, 0).sum());
    // On another SPU the same.
    assert_eq!(latency(&mut rig, false, 8192, 4096), steps(4096, 0, 48).sum());
    assert_eq!(latency(&mut rig, true, 0, 4096), steps(0, 4096, 0).sum());
}

#[test]
fn each_resource_is_as_busy_as_its_work_and_energy_is_the_sum_of_its_parts() {
    let parameters = parameters();
    let mut rig = rig(&parameters);
    let before = rig.device.model_statistics(rig.now_ns).unwrap();
    for _ in 0..10 {
        latency(&mut rig, false, 0, 4096);
    }
    let after = rig.device.model_statistics(rig.now_ns).unwrap();
    let busy = |name: &str| after.resource(name).unwrap().busy_ns - before.resource(name).unwrap().busy_ns;
    let Steps { start, resume, ring_in, ring_out, .. } = steps(4096, 0, 0);
    let ring_data = (16 + 4096) / 16 * 4;
    assert_eq!(busy("SPU 0 processor"), 10 * (start + resume));
    assert_eq!(busy("SPU 1 processor"), 0);
    assert_eq!(busy("ring"), 10 * (ring_in + ring_out + ring_data));
    assert_eq!(busy("SPU 0 DMA"), 10 * (200 + 2048) + 48);
    assert_eq!(busy("link, host to device"), 10 * wire(64));
    assert_eq!(busy("link, device to host"), 10 * (wire(16) + wire(4096)));
    assert_eq!(after.media[0].read_bytes - before.media[0].read_bytes, 40960);
    assert!(after.resources.iter().all(|resource| resource.busy_ns <= after.now_ns));
    assert_energy(&parameters, &before, &after);
    let parts: f64 = after.energy.iter().map(|part| part.joules).sum();
    assert_eq!(parts, after.joules());
}

/// Energy by hand, from the busy times: idle everywhere, the difference while at work, and the bits.
fn assert_energy(parameters: &ModelParameters, before: &ModelStatistics, after: &ModelStatistics) {
    let busy = |name: &str| after.resource(name).unwrap().busy_ns - before.resource(name).unwrap().busy_ns;
    let seconds = (after.now_ns - before.now_ns) as f64 * 1e-9;
    let power = &parameters.power;
    let idle_w = power.link.idle_w
        + power.bridge.idle_w
        + power.ring.idle_w
        + f64::from(SPUS)
            * (power.spu_processor.idle_w
                + power.dma_controller.idle_w
                + power.accelerator.idle_w
                + power.media_controller.idle_w
                + 32.0 * 264e-6);
    let more = |watts: Watts, busy_ns: u64| (watts.active_w - watts.idle_w) * busy_ns as f64 * 1e-9;
    let of_spus = |watts: Watts, part: &str| more(watts, (0..SPUS).map(|spu| busy(&format!("SPU {spu} {part}"))).sum());
    let link = busy("link, host to device") + busy("link, device to host");
    let bridge = busy("bridge, host to device") + busy("bridge, device to host");
    let read_bytes = |of: &ModelStatistics| of.media.iter().map(|media| media.read_bytes).sum::<u64>();
    let written_bytes = |of: &ModelStatistics| of.media.iter().map(|media| media.written_bytes).sum::<u64>();
    let expected = idle_w * seconds
        + more(power.link, link) / 2.0
        + more(power.bridge, bridge) / 2.0
        + more(power.ring, busy("ring"))
        + of_spus(power.spu_processor, "processor")
        + of_spus(power.dma_controller, "DMA")
        + of_spus(power.media_controller, "media")
        + (read_bytes(after) - read_bytes(before)) as f64 * 8.0 * 2.47e-12
        + (written_bytes(after) - written_bytes(before)) as f64 * 8.0 * 16.82e-12;
    let measured = after.joules() - before.joules();
    assert!((measured / expected - 1.0).abs() < 1e-9, "{measured} J, expected {expected}");
}

/// Installs the sandboxed app that moves what it is asked to.
fn mover(rig: &mut Rig) -> u16 {
    let mover = rig.install(&users::app("mover", users::MOVER, "")).expect("an app");
    // What the installation brings about has ended.
    rig.settle();
    rig.now_ns += 1_000_000;
    rig.device.set_time(rig.now_ns);
    mover
}

/// Its arguments for an SPU's part of the namespace, by the port of that SPU's NV memory.
fn there(rig: &Rig, spu: u32, offset: u64, bytes: u32) -> Vec<u8> {
    let port = users::NV + ((spu + 1) << 16);
    let address = rig.device.namespaces()[0].base + offset;
    [&address.to_le_bytes()[..], &bytes.to_le_bytes(), &port.to_le_bytes()].concat()
}

/// What a DMA to or from another SPU's NV memory takes: the ring, that SPU's controller and media, and no processor but the caller's.
#[test]
fn another_spus_nv_memory_takes_its_controller_and_media_and_no_processor_there() {
    let parameters = parameters();
    let mut rig = rig(&parameters);
    let mover = mover(&mut rig);
    let arguments = there(&rig, 1, 0, 4096);
    // (handler, its payload, the reply) and what goes over the ring: the request, to that SPU, back, and the answer.
    let message = |payload: u64| (16 + payload).div_ceil(16) * 4;
    let write = (2, vec![7; 4096], 0, [message(16 + 4096), message(4096), message(0), message(0)]);
    let read = (1, vec![], 4096, [message(16), message(0), message(4096), message(4096)]);
    for (handler, payload, reply, ring) in [write, read] {
        let before = rig.device.model_statistics(rig.now_ns).unwrap();
        rig.device.set_time(rig.now_ns);
        let done = rig.call(mover, handler, 0, &arguments, &payload, reply);
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
        assert!(done.buffer.iter().all(|byte| *byte == 7));
        rig.now_ns += 1_000_000;
        let after = rig.device.model_statistics(rig.now_ns).unwrap();
        let busy = |name: &str| after.resource(name).unwrap().busy_ns - before.resource(name).unwrap().busy_ns;
        assert_eq!(busy("ring"), ring.iter().sum::<u64>(), "handler {handler}");
        assert!(busy("SPU 0 processor") > 0);
        assert_eq!((busy("SPU 0 DMA"), busy("SPU 1 processor")), (0, 0));
        // The write opens the row.
        assert_eq!(busy("SPU 1 DMA"), 200 + 2048 + if handler == 2 { 48 } else { 0 });
        let media = |spu: usize| {
            let (before, after) = (&before.media[spu], &after.media[spu]);
            (after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes)
        };
        assert_eq!(media(0), (0, 0));
        assert_eq!(media(1), if handler == 2 { (0, 4096) } else { (4096, 0) });
        assert_energy(&parameters, &before, &after);
    }
}

/// Many requests at once to one SPU: throughput is that of the slowest step, and the others wait for it in its queue.
#[test]
fn the_slowest_resource_bounds_the_rate() {
    let mut rig = rig(&parameters());
    let begun_ns = rig.now_ns;
    const COUNT: u64 = 500;
    for _ in 0..COUNT {
        let request = block(&mut rig, false, 0, 4096);
        rig.device.submit(rig.hre, request).unwrap();
    }
    rig.settle();
    let mut last_ns = 0;
    let mut done = 0;
    while let Some(completion) = rig.device.completion() {
        assert!(completion.at_ns >= last_ns, "completions of one SPU come in order");
        last_ns = completion.at_ns;
        done += 1;
    }
    assert_eq!(done, COUNT);
    // The processor takes 2.4 us a request, the DMA controller 2.25, the link 4.77: the link it is.
    let per_request = wire(16) + wire(4096);
    let total = last_ns - begun_ns;
    // Before the first answer, the processor starts as many handlers as the app has threads: fewer than 100.
    assert!(total >= COUNT * per_request && total < COUNT * per_request + 100 * 1400, "{total} ns");
    let statistics = rig.device.model_statistics(last_ns).unwrap();
    let link = statistics.resource("link, device to host").unwrap();
    assert!(link.waited_ns > COUNT * per_request, "the others waited for the link");
}

/// Collects spans.
#[derive(Clone, Default)]
struct Spans(Shared<Vec<Span>>);

impl TraceSink for Spans {
    fn span(&mut self, span: &Span) {
        self.0.lock().push(*span);
    }
}

/// What a driver of the device may do without any effect on modelled time.
#[derive(Clone, Copy, PartialEq)]
enum Driver {
    /// Goes to each wake-up exactly.
    Exact,
    /// Comes late, by up to so many nanoseconds.
    Late(u64),
    /// Goes to each completion.
    ToCompletion,
}

/// A seeded workload of reads and writes over all SPUs; all is submitted at fixed times. Returns completions and spans as text.
fn trace(seed: u64, driver: Driver, parameters: &ModelParameters) -> String {
    let mut rig = rig(parameters);
    let mover = mover(&mut rig);
    let spans = Spans::default();
    rig.device.set_trace(Some(Box::new(spans.clone())));
    let mut state = seed;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let (mut at_ns, mut requests) = (rig.now_ns, Vec::new());
    for _ in 0..300 {
        at_ns += draw(8000);
        let bytes = 512 << draw(8);
        requests.push((at_ns, draw(2) == 0, draw((32 << 20) / 512) * 512, bytes));
    }
    let mut late = seed;
    let mut lateness = |bound: u64| {
        late = late.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493);
        (late >> 33) % bound
    };
    let mut completions = BTreeMap::new();
    let mut take = |rig: &mut Rig| {
        while let Some(done) = rig.device.completion() {
            assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
            completions.insert((done.at_ns, done.tag), done.reply_bytes);
        }
    };
    for (number, (at_ns, write, offset, bytes)) in requests.into_iter().enumerate() {
        // Some by the sandboxed app, and to NV memory of whichever SPU.
        let request = if number % 4 == 0 {
            let here = offset / 512 % u64::from(SPUS);
            let arguments = there(&rig, number as u32 / 4 % u32::from(SPUS), offset / 8, bytes as u32);
            let arguments = Arguments::new(&arguments).unwrap();
            let rpc = Rpc { app: mover, handler: 1 + u8::from(write), spu: here as u16, arguments };
            let payload = vec![7; if write { bytes as usize } else { 0 }];
            rig.request(rpc, &payload, if write { 0 } else { bytes as u32 })
        } else {
            block(&mut rig, write, offset, bytes)
        };
        // Runs up to the submission in the driver's own steps.
        loop {
            let wake_ns = match driver {
                Driver::ToCompletion => rig.device.run_to_completion(at_ns),
                _ => rig.device.run(rig.now_ns),
            };
            take(&mut rig);
            match (driver, wake_ns) {
                (Driver::Exact, Some(wake_ns)) if wake_ns <= at_ns => rig.now_ns = wake_ns,
                (Driver::Late(bound), Some(wake_ns)) if wake_ns <= at_ns => {
                    rig.now_ns = rig.now_ns.max((wake_ns + lateness(bound)).min(at_ns));
                }
                (Driver::ToCompletion, Some(wake_ns)) if wake_ns <= at_ns => {}
                _ => break,
            }
        }
        rig.now_ns = at_ns;
        rig.device.set_time(at_ns);
        rig.device.submit(rig.hre, request).unwrap();
    }
    rig.settle();
    take(&mut rig);
    assert_eq!(completions.len(), 300);
    let mut text = String::new();
    for ((at_ns, tag), bytes) in completions {
        writeln!(text, "{at_ns} {tag} {bytes}").unwrap();
    }
    for span in spans.0.lock().iter() {
        writeln!(text, "{span:?}").unwrap();
    }
    check_lanes(&spans.0.lock());
    text
}

/// Every lane does one thing at a time, in order; all kinds of lanes occur.
fn check_lanes(spans: &[Span]) {
    let mut ends: BTreeMap<Lane, u64> = BTreeMap::new();
    for span in spans {
        assert!(span.begin_ns <= span.end_ns, "{span:?}");
        let end_ns = ends.entry(span.lane).or_default();
        assert!(*end_ns <= span.begin_ns, "{span:?} begins before {end_ns}");
        *end_ns = span.end_ns;
    }
    for lane in [Lane::LinkIn, Lane::LinkOut, Lane::BridgeIn, Lane::BridgeOut, Lane::Ring] {
        assert!(ends.contains_key(&lane), "{lane}");
    }
    for spu in 0..SPUS {
        assert!(ends.contains_key(&Lane::Processor(spu)) && ends.contains_key(&Lane::Dma(spu)), "SPU {spu}");
        assert!(ends.keys().any(|lane| matches!(lane, Lane::Media { spu: of, .. } if *of == spu)));
    }
}

fn with_round_trip() -> ModelParameters {
    let mut parameters = parameters();
    parameters.ring.round_trip_ns = 88;
    parameters.bridge.cut_through = true;
    parameters
}

fn with_fixed_media() -> ModelParameters {
    let mut parameters = with_round_trip();
    parameters.media = MediaParameters::FixedLatency(FixedLatencyParameters {
        read_ns: 10_000,
        write_ns: 20_000,
        units: 4,
        interleave_bytes: 4096,
        channel_bytes_per_s: 1_000_000_000,
    });
    parameters
}

#[test]
fn same_seed_same_trace_whatever_the_driver_does() {
    for parameters in [with_round_trip(), with_fixed_media()] {
        for seed in 0..3 {
            let exact = trace(seed, Driver::Exact, &parameters);
            assert!(exact == trace(seed, Driver::Exact, &parameters), "seed {seed}: two runs differ");
            assert!(exact == trace(seed, Driver::Late(50_000), &parameters), "seed {seed}: a late driver is felt");
            assert!(exact == trace(seed, Driver::ToCompletion, &parameters), "seed {seed}: stopping early is felt");
        }
    }
    let parameters = with_round_trip();
    assert!(trace(1, Driver::Exact, &parameters) != trace(2, Driver::Exact, &parameters));
}

/// Media of fixed latency: many reads at once are as fast as units and links allow, not one after the other.
#[test]
fn units_of_fixed_latency_work_at_the_same_time() {
    let mut rig = rig(&with_fixed_media());
    let one_ns = latency(&mut rig, false, 0, 4096);
    assert!(one_ns > 10_000);
    let begun_ns = rig.now_ns;
    rig.device.set_time(begun_ns);
    for piece in 0..8u64 {
        // Two pages on each of four SPUs, in different units.
        let request = block(&mut rig, false, piece * 4096, 4096);
        rig.device.submit(rig.hre, request).unwrap();
    }
    rig.settle();
    let last_ns = std::iter::from_fn(|| rig.device.completion()).map(|done| done.at_ns).max().unwrap();
    assert!(last_ns - begun_ns < one_ns + 8 * 5_500, "{} ns for eight, {one_ns} for one", last_ns - begun_ns);
}

/// An absurd or contradictory value is refused with its field.
#[test]
fn bad_parameters_are_refused_with_field_value_and_what_was_expected() {
    type Change = fn(&mut ModelParameters);
    let changes: [(Change, &str); 9] = [
        (|p| p.link.in_bytes_per_s = 0, "link.in_bytes_per_s is 0, expected 1000 to"),
        (|p| p.ring.width_bits = 100, "ring.width_bits is 100, expected a multiple of 8"),
        (|p| p.spu.clock_hz = 1, "spu.clock_hz is 1, expected 1000 to"),
        (|p| p.spu.cycles_per_instruction = f64::NAN, "spu.cycles_per_instruction is NaN"),
        (|p| p.spu.cycles_per_instruction = -1.0, "spu.cycles_per_instruction is -1, expected 0 to 1000"),
        (|p| p.spu.operator_cost.branch = 0, "spu.operator_cost.branch is 0, expected 1 to"),
        (|p| p.power.ring.active_w = 0.0, "power.ring.active_w is 0, expected at least power.ring.idle_w"),
        (|p| p.dma.bytes_per_s = u64::MAX, "dma.bytes_per_s is 18446744073709551615"),
        (
            |p| {
                if let MediaParameters::Pcm(pcm) = &mut p.media {
                    pcm.line_bytes = 16384;
                }
            },
            "media.line_bytes is 16384, expected at most media.row_bytes, which is 8192",
        ),
    ];
    for (change, expected) in changes {
        let mut parameters = parameters();
        change(&mut parameters);
        let error = HardwareModel::new(&parameters, SPUS, BANK_BYTES).err().expect(expected);
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of the kernel's");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// 4 TiB of PCM with wear leveling cost the memory of what is touched. Other tests run beside this one: they touch some megabytes.
#[test]
fn memory_grows_with_what_is_touched_not_with_capacity() {
    const BANK: u64 = (4 << 40) / SPUS as u64;
    let before = resident_bytes();
    let store = RamStore::new(SPUS.into(), BANK).unwrap();
    let model = HardwareModel::new(&parameters(), SPUS, BANK).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native())];
    let config = DeviceConfig { namespace_bytes: (4 << 40) - (1 << 30), ..config(SPUS) };
    let mut device = Device::open(config, Box::new(store), Some(Box::new(model)), apps).unwrap();
    let hre = device.open_hre(None).unwrap();
    let mut rig = Rig::around(device, hre);
    rig.settle();
    for piece in 0..200u64 {
        latency(&mut rig, true, piece * (19 << 30), 4096);
    }
    let statistics = rig.device.model_statistics(rig.now_ns).unwrap();
    assert_eq!(statistics.media.iter().map(|media| media.wear.lines_written).sum::<u64>(), 200 * 16 + 32);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes");
}
