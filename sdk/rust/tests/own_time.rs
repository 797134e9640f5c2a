//! Sleeping, cancelling and work in the background, on the mock device.

use std::cell::Cell;

use willow_sdk::testing::{Device, Options, Pending};
use willow_sdk::{
    App, Destination, Error, Request, Response, background, cancel_after, join, join_all, sleep_ns, subscribers,
    time_ns, yield_now,
};

const MS: u64 = 1_000_000;

struct State {
    rounds: Cell<u32>,
}

/// Sleeps as long as its argument says; how long that took, in ms.
async fn nap(request: Request, _: &State) -> Result<u32, Error> {
    let before_ns = time_ns();
    sleep_ns(u64::from_le_bytes(request.receive_array()?)).await?;
    Ok(((time_ns() - before_ns) / MS) as u32)
}

/// Has another SPU nap for as long as its first argument says, and waits as long as its second one.
async fn patient(request: Request, _: &State) -> Result<Response, Error> {
    let naps: [u8; 8] = request.receive_array()?;
    let waits_ns = u64::from_le_bytes(request.receive_array()?);
    let asked = request.rpc(Destination::Spu(1), App::Own, 1).append(&naps).send();
    cancel_after(waits_ns, asked).await
}

/// Of three sleeps two are cancelled, each once; what is not under the clock goes on.
async fn several(_: Request, _: &State) -> Result<u32, Error> {
    let both = async { (sleep_ns(MS).await, sleep_ns(100 * MS).await, sleep_ns(100 * MS).await) };
    let ((first, second, third), other) = join(cancel_after(10 * MS, both), sleep_ns(50 * MS)).await;
    assert_eq!((first, second, third, other), (Ok(()), Err(Error::Cancelled), Err(Error::Cancelled), Ok(())));
    let all = cancel_after(10 * MS, join_all([sleep_ns(20 * MS), sleep_ns(5 * MS), sleep_ns(30 * MS)])).await;
    assert_eq!(all, [Err(Error::Cancelled), Ok(()), Err(Error::Cancelled)]);
    yield_now().await?;
    // One that is in time leaves nothing behind.
    for _ in 0..40 {
        cancel_after(1000 * MS, sleep_ns(1)).await?;
    }
    Ok((time_ns() / MS) as u32)
}

async fn begin(request: Request, _: &State) -> Result<(), Error> {
    background(5, u64::from_le_bytes(request.receive_array()?))
}

async fn work(request: Request, state: &State) -> Result<(), Error> {
    assert_eq!((request.info().originating_hre, request.info().source), (0, willow_sdk::spu_id()));
    for _ in 0..u64::from_le_bytes(request.receive_array()?) {
        sleep_ns(MS).await?;
        state.rounds.set(state.rounds.get() + 1);
    }
    Ok(())
}

async fn rounds(_: Request, state: &State) -> u32 {
    state.rounds.get()
}

/// Tells all that have subscribed to kind 3; the sum of their results.
async fn tell(request: Request, _: &State) -> Result<u32, Error> {
    let (mut after, mut sum) = (0, 0);
    let mut found = [0; 2];
    loop {
        let count = subscribers(3, after, &mut found)?;
        for hre in &found[..count] {
            sum += request.rpc(Destination::Subscriber(*hre), App::Own, 3).append(b"news").send().await?.result;
            after = *hre;
        }
        if count < found.len() {
            let nobody = request.rpc(Destination::Subscriber(after + 1), App::Own, 3).send().await;
            assert_eq!(nobody, Err(Error::Permission));
            return Ok(sum);
        }
    }
}

willow_sdk::app! {
    name: "own-time",
    version: "1",
    state: State = State { rounds: Cell::new(0) },
    threads: 4,
    handlers: { 1 => nap, 2 => patient, 3 => several, 4 => begin, 5 => work, 6 => rounds, 7 => tell },
}

fn each_device(mut test: impl FnMut(&mut Device)) {
    for pending in [Pending::Never, Pending::Always, Pending::Random] {
        for seed in 0..10 {
            test(&mut Device::new(native(), Options { spus: 2, pending, seed, ..Options::default() }));
        }
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn sleeps_take_their_time() {
    each_device(|device| {
        assert!((5..7).contains(&device.call(0, 1, &words(&[5 * MS]), &[], 0).result));
        let (long, short) =
            (device.submit(0, 1, &words(&[9 * MS]), &[], 0), device.submit(0, 1, &words(&[MS]), &[], 0));
        while device.outcome(short).is_none() {
            assert!(device.step() && device.outcome(long).is_none());
        }
        device.run();
        assert!(device.outcome(long).is_some());
    });
}

#[test]
fn what_takes_too_long_is_cancelled_and_what_is_in_time_is_not() {
    each_device(|device| {
        let late = device.call(0, 2, &words(&[100 * MS, 5 * MS]), &[], 0);
        assert_eq!(late.status, Error::Cancelled.code() as u32);
        let in_time = device.call(0, 2, &words(&[5 * MS, 100 * MS]), &[], 0);
        assert_eq!(in_time.status, 0);
        assert_eq!(device.call(0, 3, &[], &[], 0).status, 0);
        // What was cancelled is not waited for; threads are free again.
        for _ in 0..8 {
            assert_eq!(device.call(0, 2, &words(&[100 * MS, 5 * MS]), &[], 0).status, Error::Cancelled.code() as u32);
        }
    });
}

#[test]
fn work_in_the_background_is_nobodys() {
    each_device(|device| {
        assert_eq!(device.call(0, 4, &words(&[u64::MAX]), &[], 0).status, 0);
        assert_eq!(device.call(0, 6, &[], &[], 0).result, 0, "no time has passed for it");
        device.pass_ns(10 * MS);
        let rounds = device.call(0, 6, &[], &[], 0).result;
        assert!((8..=10).contains(&rounds), "{rounds}");
        device.restart();
        device.pass_ns(10 * MS);
        assert_eq!(device.call(0, 6, &[], &[], 0).result, 0, "it went with its instance");
    });
}

#[test]
fn those_that_have_subscribed_are_told() {
    each_device(|device| {
        assert_eq!(device.call(0, 7, &[], &[], 0).result, 0);
        for hre in [7, 0x8000_0001, 0x8000_0002, 12, 13] {
            device.subscribe(hre, 3);
        }
        device.subscribe(99, 4);
        device.on_upcall(|upcall| {
            assert_eq!((upcall.handler, &upcall.body[..]), (3, &b"news"[..]));
            Response::success(upcall.hre & 0xff)
        });
        let told = device.call(1, 7, &[], &[], 0);
        assert_eq!((told.status, told.result), (0, 7 + 1 + 2 + 12 + 13));
    });
}
