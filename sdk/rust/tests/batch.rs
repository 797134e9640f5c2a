//! Batches of DMAs and of RPCs on the mock device: ended at once, later, and in any order; alone, several in one handler, and beside other waits.

use willow_sdk::testing::{Device, Options, Pending};
use willow_sdk::{App, Batch, Body, Destination, DeviceEvent, Error, Local, Nv, Reply, Request, Response, join};

struct State;

const REGION_BYTES: u64 = 65536;
const PIECES: usize = 16;

async fn base() -> Result<u64, Error> {
    willow_sdk::region(7, REGION_BYTES).await
}

/// Begins to read pieces that lie 64 bytes apart.
fn read<'a>(request: &'a Request, pieces: &'a mut [[u8; 4]], from: u64) -> Batch<'a> {
    let mut batch = request.batch();
    for (piece, address) in pieces.iter_mut().zip((from..).step_by(64)) {
        batch.dma(Nv(address), Local(piece), 4);
    }
    batch
}

/// Writes the body's pieces, reads them back by two batches beside another DMA, and adds them up.
async fn sum(request: Request, _: &State) -> Result<u32, Error> {
    let base = base().await?;
    let mut writes = request.batch();
    for piece in 0..PIECES as u32 {
        writes.dma(Body(4 * piece), Nv(base + u64::from(64 * piece)), 4);
    }
    writes.await?;
    let mut bytes = [[0; 4]; PIECES - 1];
    let (first, second) = bytes.split_at_mut(5);
    let mut last = [0; 4];
    let batches = join(read(&request, first, base), read(&request, second, base + 5 * 64));
    let ((one, two), three) = join(batches, request.read(base + 15 * 64, &mut last)).await;
    (one.and(two).and(three))?;
    Ok(bytes.iter().chain([&last]).map(|piece| u32::from_le_bytes(*piece)).sum())
}

/// One of three cannot be: the others are done, and the error is told.
async fn one_fails(request: Request, _: &State) -> Result<(), Error> {
    let base = base().await?;
    let mut batch = request.batch();
    batch.dma(Local(b"left"), Nv(base), 4);
    batch.dma(Local(b"none"), Nv(u64::MAX - 8), 4);
    batch.dma(Local(b"right"), Nv(base + 4), 5);
    let outcome = batch.await;
    request.dma(Nv(base), Reply(0), 9).await?;
    outcome
}

/// More than a local buffer has, and nothing at all.
async fn too_much(request: Request, _: &State) -> Result<(), Error> {
    request.batch().await?;
    let base = base().await?;
    let mut batch = request.batch();
    batch.dma(Local(b"some"), Nv(base), 5);
    batch.await
}

async fn given_up(request: Request, _: &State) -> Result<(), Error> {
    let base = base().await?;
    let mut batch = request.batch();
    batch.dma(Local(b"some"), Nv(base), 4);
    drop(batch);
    willow_sdk::flush().await
}

async fn given_up_without_local_memory(request: Request, _: &State) -> Result<u32, Error> {
    let base = base().await?;
    for _ in 0..5 {
        let mut batch = request.batch();
        batch.dma(Body(0), Nv(base), 4);
        batch.dma(Body(4), Nv(base + 4), 4);
        drop(batch);
    }
    willow_sdk::flush().await?;
    Ok(7)
}

/// Asks this SPU's handler 7 as often as the body has bytes, each with one of them; twice, the second time beside a DMA.
async fn ask_all(request: Request, _: &State) -> Result<Response, Error> {
    let mut bytes = [0; 8];
    let count = request.receive(&mut bytes);
    let ask = || {
        let mut asked = request.rpc_batch();
        for byte in bytes[..count].chunks_exact(1) {
            asked.send(request.rpc(Destination::Spu(0), App::Own, 7).append(byte));
        }
        asked
    };
    let first = ask().await?;
    let base = base().await?;
    let (second, written) = join(ask(), request.write(base, &bytes)).await;
    written?;
    if second? == first { Ok(first) } else { Err(Error::Media) }
}

/// Answers with its byte: 0 is success without a result.
async fn echo(request: Request, _: &State) -> Result<Response, Error> {
    let [byte] = request.receive_array()?;
    base().await?;
    Ok(Response { status: 0, result: byte.into() })
}

/// One that goes nowhere.
async fn ask_nobody(request: Request, _: &State) -> Result<Response, Error> {
    let mut asked = request.rpc_batch();
    asked.send(request.rpc(Destination::Spu(0), App::Own, 7).append(&[0]));
    asked.send(request.rpc(Destination::Spu(9), App::Own, 7).append(&[0]));
    asked.await
}

async fn on_event(_: Request, _: DeviceEvent, _: &State) -> Result<(), Error> {
    base().await.map(drop)
}

willow_sdk::app! {
    name: "batches",
    version: "1.0.0",
    state: State = State,
    threads: 4,
    handlers: {
        1 => sum, 2 => one_fails, 3 => too_much, 4 => given_up, 5 => given_up_without_local_memory, 6 => ask_all, 7 => echo,
        8 => ask_nobody,
    },
    events: on_event,
}

fn each_device(mut test: impl FnMut(&mut Device)) {
    for pending in [Pending::Never, Pending::Always, Pending::Random] {
        for seed in 0..40 {
            test(&mut Device::new(
                native(),
                Options { spus: 1, seed, pending, bank_bytes: 1 << 18, ..Options::default() },
            ));
        }
    }
}

#[test]
fn all_of_a_batch_is_done_when_it_ends() {
    each_device(|device| {
        let payload: Vec<u8> = (1..=PIECES as u32).flat_map(|value| value.to_le_bytes()).collect();
        let requests: Vec<_> = (0..6).map(|_| device.submit(0, 1, &[], &payload, 0)).collect();
        device.run();
        for id in requests {
            let outcome = device.outcome(id).expect("answered");
            assert_eq!((outcome.status, outcome.result), (0, 136));
        }
    });
}

#[test]
fn an_error_is_told_when_all_has_ended() {
    each_device(|device| {
        let outcome = device.call(0, 2, &[], &[], 9);
        assert_eq!(
            (outcome.status, outcome.reply.as_slice()),
            (Error::Permission.code() as u32, b"leftright".as_slice())
        );
        assert_eq!(device.call(0, 3, &[], &[], 0).status, Error::Range.code() as u32);
    });
}

#[test]
fn rpcs_of_a_batch_have_all_answered_when_it_ends() {
    each_device(|device| {
        let outcome = device.call(0, 6, &[], &[0; 3], 0);
        assert_eq!((outcome.status, outcome.result), (0, 0));
        let outcome = device.call(0, 6, &[], &[0, 9, 0], 0);
        assert_eq!((outcome.status, outcome.result), (0, 9), "the one that is not 0 is told");
        assert_eq!(device.call(0, 8, &[], &[], 0).status, Error::Refused.code() as u32);
    });
}

#[test]
fn without_local_memory_it_may_be_given_up() {
    each_device(|device| assert_eq!(device.call(0, 5, &[], b"12345678", 0).result, 7));
}

#[test]
#[should_panic(expected = "dropped while pending")]
fn with_local_memory_it_must_not_be_given_up() {
    let mut device = Device::new(
        native(),
        Options { spus: 1, seed: 1, pending: Pending::Always, bank_bytes: 1 << 18, ..Options::default() },
    );
    device.call(0, 4, &[], &[], 0);
}
