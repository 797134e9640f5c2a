//! An app that uses all of the SDK, on the mock device, with operations that complete at once, later, and in any order.

use std::cell::{Cell, RefCell};

use willow_sdk::sync::{Event, Mutex};
use willow_sdk::testing::{Device, Options, Pending};
use willow_sdk::{
    App, Body, Decompression, Destination, DeviceEvent, Error, Found, KeyPlace, Keys, LiteralOptions, Literals, Local,
    Match, Number, Nv, Reply, Request, Response, SpuNv, Strides, Zeroes, join, join_all, write_literal,
};

struct State {
    events: RefCell<Vec<DeviceEvent>>,
    base: Cell<u64>,
    lock: Mutex<u32>,
    order: RefCell<Vec<u32>>,
    gate: Event,
    open: Cell<bool>,
}

const REGION_BYTES: u64 = 65536;

async fn on_event(_: Request, event: DeviceEvent, state: &State) -> Result<(), Error> {
    state.events.borrow_mut().push(event);
    if event == DeviceEvent::Started {
        state.base.set(willow_sdk::region(7, REGION_BYTES).await?);
    }
    Ok(())
}

fn word(request: &Request) -> Result<u64, Error> {
    Ok(u64::from_le_bytes(request.receive_array()?))
}

/// Writes the payload at an offset of the region, by way of local memory, and makes it durable.
async fn put(request: Request, state: &State) -> Result<u32, Error> {
    let address = state.base.get() + word(&request)?;
    let mut buffer = [0; 100];
    let bytes = request.receive(&mut buffer);
    request.write(address, &buffer[..bytes]).await?;
    willow_sdk::flush().await?;
    Ok(bytes as u32)
}

async fn get(request: Request, state: &State) -> Result<(), Error> {
    let address = state.base.get() + word(&request)?;
    request.dma(Nv(address), Reply(0), request.info().reply_bytes).await
}

/// Sixteen reads at the same time, and their sum.
async fn sum(request: Request, state: &State) -> Result<u32, Error> {
    let base = state.base.get();
    let mut bytes = [[0u8; 4]; 16];
    let mut index = 0;
    let reads = bytes.each_mut().map(|piece| {
        index += 1;
        request.dma(Nv(base + 4 * (index - 1)), Local(piece), 4)
    });
    for result in join_all(reads).await {
        result?;
    }
    Ok(bytes.iter().map(|piece| u32::from_le_bytes(*piece)).sum())
}

async fn ports(request: Request, state: &State) -> Result<u32, Error> {
    let base = state.base.get();
    let bytes = request.info().body_bytes;
    request.dma(Body(0), Nv(base), bytes).await?;
    let (same, sum) = join(request.compare(Nv(base), Body(0), bytes), request.checksum(Nv(base), bytes, 0)).await;
    assert!(same?);
    let strides = Strides { segment_bytes: 2, segments: bytes / 4, source_stride: 4, destination_stride: 2 };
    request.dma_strided(Nv(base), Reply(0), strides).await?;
    request.dma(Zeroes, Nv(base), 1).await?;
    assert!(!request.compare(Nv(base), Body(0), bytes).await?);
    let mut literals = [0; 40];
    let at = write_literal(&mut literals, 0, b"needle").expect("room");
    let end = write_literal(&mut literals, at, b"needles").expect("room");
    let set = Literals::load(&literals[..end], LiteralOptions { ignore_case: true, lines: None })?;
    let text = b"hay NEEDLE hay needles";
    request.write(base + 64, text).await?;
    let mut found = Found::<2>::new();
    set.find(&request, Nv(base + 64), 22, &mut found).await?;
    let matches = [Match { begin: 4, end: 10, literal: 0 }, Match { begin: 15, end: 22, literal: 1 }];
    assert_eq!((found.matches(), found.looked_at(), found.in_matched_line()), (&matches[..], 22, false));
    let mut counted = Found::<0>::new();
    set.find(&request, Local(text), 22, &mut counted).await?;
    assert_eq!((counted.count(), counted.matches()), (2, &[][..]));
    assert_eq!(set.find(&request, Local(text), 23, &mut counted).await, Err(Error::Range));
    assert_eq!(set.find(&request, Nv(u64::MAX), 23, &mut counted).await, Err(Error::Permission));
    drop(set);
    request.write(base + 128, b"ab-cd-ef-gh-").await?;
    let keys = Keys { stride_bytes: 3, count: 4, ascending: true };
    for (key, index, equal) in [(b"cd", 1, true), (b"aa", 0, false), (b"zz", 4, false), (b"ee", 2, false)] {
        assert_eq!(request.find_key(Nv(base + 128), keys, key).await?, KeyPlace { index, equal });
    }
    let mut numbers = [[1.5f32, -2.0], [0.25, 8.0]].map(|row| row.map(f32::to_le_bytes).concat());
    let [x, y] = &mut numbers;
    request.multiply_add(Number::Single, 2.0, x, y).await?;
    assert_eq!(**y, [3.25f32, 4.0].map(f32::to_le_bytes).concat());
    assert_eq!(request.multiply_add(Number::Double, 2.0, &x[..4], &mut y[..4]).await, Err(Error::Argument));
    let mut wave = [1.0f64, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0].map(f64::to_le_bytes).concat();
    request.fft(Number::Double, false, 4, &mut wave).await?;
    assert_eq!(wave, [1.0f64, 0.0].repeat(4).into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>());
    request.fft(Number::Double, false, 3, &mut wave[..48]).await?;
    let parts: Vec<f64> = wave[..48].chunks(8).map(|part| f64::from_le_bytes(part.try_into().unwrap())).collect();
    assert!(
        parts.iter().zip([3.0, 0.0, 0.0, 0.0, 0.0, 0.0]).all(|(part, wanted)| (part - wanted).abs() < 1e-12),
        "{parts:?}"
    );
    assert_eq!(request.fft(Number::Double, false, 3, &mut wave[..47]).await, Err(Error::Argument));
    // A literal, and three bytes of it once more, then all of it twice.
    let block = [19, 4 << 2, b'a', b'b', b'c', b'd', b'e', 2 << 2 | 2, 5, 0, 10 << 2 | 2, 5, 0];
    let (mut plain, mut state) = ([0; 100], Decompression::new(Some(19)));
    request.decompress(&block[..4], &mut plain, &mut state).await?;
    assert_eq!((state.used(), state.kept(), state.is_over()), (4, 2, false));
    request.decompress(&block[4..], &mut plain, &mut state).await?;
    assert_eq!((&plain[..19], state.kept(), state.is_over()), (&b"abcdeabcdeabcdeabcd"[..], 19, true));
    let mut state = Decompression::new(None);
    request.decompress(&[7, 0, b'a', 4 << 2 | 2, 3, 0], &mut plain, &mut state).await?;
    assert!(state.is_too_far());
    assert_eq!(request.decompress(&block, &mut plain, &mut state).await, Err(Error::Argument));
    let unordered = Keys { ascending: false, ..keys };
    assert_eq!(request.find_key(Local(b"gh-ef-cd-ab"), unordered, b"ab").await?, KeyPlace { index: 3, equal: true });
    assert_eq!(request.find_key(Local(b"gh-ef-cd-a"), unordered, b"ab").await, Err(Error::Range));
    assert_eq!(request.find_key(Nv(base), keys, &[0; 257]).await, Err(Error::Argument));
    let mut small = [0; 4];
    assert_eq!(request.dma(Nv(base), Local(&mut small), 5).await, Err(Error::Range));
    let strides = Strides { segment_bytes: 2, segments: 2, source_stride: 0, destination_stride: 3 };
    assert_eq!(request.dma_strided(Nv(base), Local(&mut small), strides).await, Err(Error::Range));
    assert_eq!(request.dma(Nv(base + REGION_BYTES), Reply(0), 1).await, Err(Error::Permission));
    assert_eq!(request.dma(Nv(u64::MAX), Reply(0), 1).await, Err(Error::Permission));
    sum
}

/// Asks the SPU of the argument for the sum of its body, through `echo`.
async fn relay(request: Request, state: &State) -> Result<Response, Error> {
    let spu = word(&request)? as u32;
    let mut reply = [0; 6];
    request.write(state.base.get(), b"NV").await?;
    let rpc = request.rpc(Destination::Spu(spu), App::Own, 6).append(b"abcd").append_nv(Nv(state.base.get()), 2);
    let response = rpc.reply(&mut reply).send().await?;
    request.dma(Local(&reply), Reply(0), 6).await?;
    // The own bank is there by its SPU's number as well (those of others: remote.rs); past the last SPU there is none.
    let own = SpuNv { spu: willow_sdk::spu_id(), address: state.base.get() };
    let mut back = [0; 2];
    request.read_spu(own, Local(&mut back), 2).await?;
    assert_eq!(&back, b"NV");
    for other in [willow_sdk::spu_count(), u32::MAX] {
        let other = SpuNv { spu: other, ..own };
        assert_eq!(request.read_spu(other, Reply(0), 1).await, Err(Error::Argument));
        assert_eq!(request.write_spu(Zeroes, other, 1).await, Err(Error::Argument));
    }
    Ok(response)
}

async fn echo(request: Request, _: &State) -> Result<Response, Error> {
    let info = request.info();
    request.dma(Body(0), Local(&mut [0u8; 64]), info.body_bytes).await?;
    let mut body = [0; 6];
    request.receive(&mut body);
    request.dma(Local(&body), Reply(0), 6).await?;
    Ok(Response { status: 17, result: info.source })
}

/// Holds the lock across waits; nobody may come between.
async fn locked(request: Request, state: &State) -> Result<u32, Error> {
    let mut held = state.lock.lock().await;
    let before = *held;
    *held += 1;
    for _ in 0..3 {
        request.write(state.base.get(), &[1]).await?;
    }
    assert_eq!(*held, before + 1);
    state.order.borrow_mut().push(before);
    Ok(before)
}

async fn wait_for_gate(_: Request, state: &State) {
    while !state.open.get() {
        state.gate.wait().await;
    }
}

async fn open_gate(_: Request, state: &State) {
    state.open.set(true);
    state.gate.notify_all();
}

/// Answers first, then works on.
async fn early(request: Request, state: &State) -> Result<u32, Error> {
    request.write(state.base.get() + 8, b"later").await?;
    request.respond(5);
    willow_sdk::flush().await?;
    Err(Error::Media)
}

async fn upcall(request: Request, _: &State) -> Result<Response, Error> {
    request.rpc(Destination::Host, App::Own, 3).append(b"up").send().await
}

async fn fault(_: Request, _: &State) {
    panic!("planted");
}

/// An operation without local memory may be given up while it is pending; one with must not.
async fn give_up(request: Request, state: &State) -> Result<(), Error> {
    let mut buffer = [0; 4];
    let local = word(&request)? != 0;
    let base = state.base.get();
    let once = |future: std::pin::Pin<&mut dyn Future<Output = Result<(), Error>>>| {
        let _ = future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    };
    if local {
        let mut future = Box::pin(request.dma(Nv(base), Local(&mut buffer), 4));
        once(future.as_mut());
    } else {
        for _ in 0..5 {
            let mut future = Box::pin(willow_sdk::flush());
            once(future.as_mut());
        }
    }
    willow_sdk::flush().await
}

async fn talk(_: Request, _: &State) -> Result<u32, Error> {
    willow_sdk::println!("spu {} of {}", willow_sdk::spu_id(), willow_sdk::spu_count());
    willow_sdk::count(3, 2);
    assert_eq!(willow_sdk::app_number("all-of-it"), Ok(App::Number(0)));
    assert_eq!(willow_sdk::app_number("nobody"), Err(Error::NotFound));
    assert_eq!(willow_sdk::namespace(9), Err(Error::NotFound));
    assert_eq!(willow_sdk::region_bytes(7)?, REGION_BYTES);
    assert_eq!(willow_sdk::region_bytes(8), Err(Error::NotFound));
    assert_eq!(willow_sdk::region(9, 1 << 40).await, Err(Error::Full));
    let other = willow_sdk::region(8, 1).await?;
    willow_sdk::region_free(8).await?;
    assert_eq!(willow_sdk::region(8, 0).await, Err(Error::NotFound));
    Ok(other as u32)
}

willow_sdk::app! {
    name: "all-of-it",
    version: "1.2.3",
    state: State = State {
        events: RefCell::new(Vec::new()),
        base: Cell::new(0),
        lock: Mutex::new(0),
        order: RefCell::new(Vec::new()),
        gate: Event::new(),
        open: Cell::new(false),
    },
    threads: 4,
    handlers: {
        1 => put, 2 => get, 3 => sum, 4 => ports, 5 => relay, 6 => echo, 7 => locked, 8 => wait_for_gate,
        9 => open_gate, 10 => early, 11 => upcall, 12 => fault, 13 => give_up, 14 => talk,
    },
    events: on_event,
}

/// A device for each way that operations can complete in.
fn each_device(spus: u32, mut test: impl FnMut(&mut Device)) {
    for pending in [Pending::Never, Pending::Always, Pending::Random] {
        for seed in 0..20 {
            test(&mut Device::new(
                native(),
                Options { spus, seed, pending, bank_bytes: 1 << 18, ..Options::default() },
            ));
        }
    }
}

fn at(offset: u64) -> [u8; 8] {
    offset.to_le_bytes()
}

#[test]
fn data_moves_and_survives() {
    each_device(1, |device| {
        let outcome = device.call(0, 1, &at(100), b"some bytes", 0);
        assert_eq!((outcome.status, outcome.result), (0, 10));
        assert_eq!(device.call(0, 2, &at(100), &[], 10).reply, b"some bytes");
        device.cut_power();
        assert_eq!(device.call(0, 2, &at(100), &[], 10).reply, b"some bytes");
        device.restart();
        assert_eq!(device.call(0, 2, &at(100), &[], 10).reply, b"some bytes");
    });
}

#[test]
fn many_operations_at_the_same_time() {
    each_device(1, |device| {
        let payload: Vec<u8> = (0..16u32).flat_map(|value| value.to_le_bytes()).collect();
        device.call(0, 1, &at(0), &payload, 0);
        assert_eq!(device.call(0, 3, &[], &[], 0).result, 120);
    });
}

#[test]
fn all_ports() {
    each_device(1, |device| {
        let outcome = device.call(0, 4, &[], b"123456789", 4);
        assert_eq!((outcome.status, outcome.result), (0, 0xe306_9283));
        assert_eq!(outcome.reply, b"1256");
    });
}

#[test]
fn rpcs_between_spus_and_upcalls() {
    each_device(3, |device| {
        for (from, to) in [(0, 1), (2, 0), (1, 1)] {
            let outcome = device.call(from, 5, &at(to), &[], 6);
            assert_eq!((outcome.status, outcome.result, outcome.reply.as_slice()), (17, from, b"abcdNV".as_slice()));
        }
        assert_eq!(device.call(0, 5, &at(3), &[], 6).status, Error::Refused.code() as u32);
        assert_eq!(device.call(0, 11, &[], &[], 0).status, Error::Refused.code() as u32);
        device.on_upcall(|upcall| {
            assert_eq!((upcall.handler, upcall.body.as_slice()), (3, b"up".as_slice()));
            Response { status: 1, result: 2 }
        });
        let outcome = device.call(0, 11, &[], &[], 0);
        assert_eq!((outcome.status, outcome.result), (1, 2));
    });
}

#[test]
fn a_lock_is_held_across_waits_and_nobody_is_lost() {
    each_device(1, |device| {
        // More requests than threads: some wait outside.
        let requests: Vec<_> = (0..40).map(|_| device.submit(0, 7, &[], &[], 0)).collect();
        device.run();
        let mut seen: Vec<_> = requests.iter().map(|id| device.outcome(*id).expect("answered").result).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
    });
}

#[test]
fn handlers_wait_for_each_other() {
    each_device(1, |device| {
        let waiting: Vec<_> = (0..3).map(|_| device.submit(0, 8, &[], &[], 0)).collect();
        device.run();
        assert!(waiting.iter().all(|id| device.outcome(*id).is_none()));
        device.call(0, 9, &[], &[], 0);
        assert!(waiting.iter().all(|id| device.outcome(*id).is_some_and(|outcome| outcome.status == 0)));
    });
}

#[test]
fn an_answer_before_the_end() {
    each_device(1, |device| {
        let outcome = device.call(0, 10, &[], &[], 0);
        assert_eq!((outcome.status, outcome.result), (0, 5));
        device.cut_power();
        assert_eq!(device.call(0, 2, &at(8), &[], 5).reply, b"later");
    });
}

#[test]
fn short_arguments_unknown_handlers_and_events() {
    each_device(2, |device| {
        assert_eq!(device.call(0, 1, &[1], &[], 0).status, Error::Range.code() as u32);
        assert_eq!(device.call(0, 99, &[], &[], 0).status, Error::Refused.code() as u32);
        device.create_namespace(5, 0, 512, 65536);
        device.delete_namespace(5);
        let outcome = device.call(1, 14, &[], &[], 0);
        assert_eq!(outcome.status, 0);
        assert_eq!((device.serial(1), device.serial(0)), ("spu 1 of 2\n", ""));
        assert_eq!((device.counter(1, 3), device.counter(0, 3)), (2, 0));
    });
}

#[test]
#[should_panic = "than its budget covers"]
fn a_run_past_its_budget_of_work_ends_the_app() {
    let options = Options { pending: Pending::Never, work_budget: 10_000, ..Options::default() };
    Device::new(native(), options).call(0, 1, &[], b"some bytes", 64);
}

#[test]
#[should_panic = "the app ended on SPU 0: planted"]
fn a_panic_ends_the_app() {
    Device::new(native(), Options::default()).call(0, 12, &[], &[], 0);
}

#[test]
fn operations_without_local_memory_may_be_given_up() {
    each_device(1, |device| {
        for _ in 0..20 {
            assert_eq!(device.call(0, 13, &at(0), &[], 0).status, 0);
        }
    });
}

#[test]
#[should_panic = "dropped while pending"]
fn operations_with_local_memory_must_not_be_given_up() {
    let options = Options { pending: Pending::Always, ..Options::default() };
    Device::new(native(), options).call(0, 13, &at(1), &[], 0);
}

#[test]
fn power_cuts_in_the_midst() {
    for seed in 0..200 {
        let options = Options { seed, pending: Pending::Always, ..Options::default() };
        let mut device = Device::new(native(), options);
        device.call(0, 1, &at(0), &[1; 64], 0);
        let request = device.submit(0, 1, &at(0), &[2; 64], 0);
        for _ in 0..seed % 6 {
            device.step();
        }
        let answered = device.outcome(request).is_some();
        device.cut_power();
        let reply = device.call(0, 2, &at(0), &[], 64).reply;
        assert!(reply == [2; 64] || !answered && reply == [1; 64], "one sector is old or new");
    }
}

#[test]
fn the_manifest_names_all_handlers() {
    let manifest = std::str::from_utf8(native().manifest()).expect("text");
    assert!(manifest.starts_with("abi=2\nname=all-of-it\nversion=1.2.3\nhandler=1:put\nhandler=2:get\n"));
    assert!(manifest.ends_with("handler=14:talk\n"));
}
