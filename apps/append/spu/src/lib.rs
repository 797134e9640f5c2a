//! Append's handlers (Willow, section 4.6): programs append to files whose length the file system has delegated to the drive. The coordinator of
//! a file, the SPU of its number modulo the SPUs, gives each record its place, has it written to the banks, and settles the length.
//!
//! What always holds:
//! - records are whole and one after another, in one order for all who look;
//! - a length that anybody is told is durable, with all bytes before it: a record is durable before a length says that it is there, and that
//!   before its append is answered;
//! - a record is written with the rights of who appends: to write, where the file's tail lies. Only processes that the host's kernel admitted to
//!   the file reach it, so that others delay nobody.
//!
//! Who may call it: any user's process [`wire::handler::APPEND`]; the host's kernel the rest.
#![cfg_attr(target_arch = "wasm32", no_std)]

pub mod format;
pub mod planted;
mod tail;
pub mod wire;

use base_io_ranges::{Failure, MALFORMED};
use planted::{Planted, planted};
use tail::{APPENDS_MAX, CONTROLS_MAX, File, Permit, State, Tail, describe, forget, settle};
use willow_sdk::sync::MutexGuard;
use willow_sdk::{
    App, Body, Destination, DeviceEvent, Error, Local, Nv, Reply, Request, Response, SOURCE_HOST, SpuNv, join, join_all,
};
use wire::{AppendArguments, Delegation, EXTENTS_MAX, Entry, Extent, RECORD_BYTES_MAX};

/// Syncs on an SPU at a time. They wait for the media alone, and there is always room for some: appends of two SPUs that ask each other go on.
const SYNCS: usize = 16;
/// Requests that are handled on an SPU at a time.
const THREADS: usize = APPENDS_MAX + CONTROLS_MAX + SYNCS;

willow_sdk::app! {
    name: "append",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State::new(),
    threads: THREADS,
    handlers: {
        wire::handler::APPEND => append,
        wire::handler::DELEGATE => delegate,
        wire::handler::EXTEND => extend,
        wire::handler::ADMIT => admit,
        wire::handler::LENGTH => length,
        wire::handler::SUSPEND => suspend,
        wire::handler::END => end,
        wire::handler::LIST => list,
        wire::handler::SYNC => sync,
    },
    public: "1",
    settles: true,
    events: on_event,
}

const NOT_FOUND: Failure = Failure(wire::STATUS_NOT_FOUND);

fn arguments<const BYTES: usize>(request: &Request) -> Result<[u8; BYTES], Failure> {
    request.receive_array().map_err(|_| MALFORMED)
}

/// Whose request it is: a process, or 0 for all endpoints of the host's kernel.
fn owner(request: &Request) -> u32 {
    let endpoint = request.info().originating_hre;
    if endpoint >> 31 == 0 { 0 } else { endpoint >> 12 }
}

/// Requests of the host's kernel come from there, and from no process or app; a place for one.
fn from_kernel<'a>(request: &Request, state: &'a State) -> Result<Permit<'a>, Failure> {
    if request.info().source != SOURCE_HOST || owner(request) != 0 {
        return Err(Failure(wire::STATUS_PERMISSION));
    }
    state.permit_control()
}

/// Locks a file; it may be gone by the time.
async fn locked(state: &State, number: u64) -> Result<(usize, &File, MutexGuard<'_, Tail>), Failure> {
    state.open().await?;
    let slot = state.find(number).ok_or(NOT_FOUND)?;
    let file = &state.files[slot];
    let tail = file.tail.lock().await;
    if file.number.get() == number { Ok((slot, file, tail)) } else { Err(NOT_FOUND) }
}

async fn append(request: Request, state: &State) -> Result<u32, Failure> {
    let AppendArguments { file: number, bytes } = AppendArguments::decode(&arguments(&request)?);
    let has_record = request.info().body_bytes as usize >= AppendArguments::BYTES + bytes as usize;
    if !(1..=RECORD_BYTES_MAX).contains(&bytes) || !has_record {
        return Err(MALFORMED);
    }
    let base = state.open().await?.ok_or(NOT_FOUND)?;
    let process = owner(&request);
    let slot = state.find(number).ok_or(NOT_FOUND)?;
    let is_admitted = || process == 0 || state.files[slot].admitted.iter().any(|it| it.get() == process);
    if !is_admitted() {
        return Err(Failure(wire::STATUS_PERMISSION));
    }
    let _permit = state.permit(process)?;
    let before = state.files[slot].length.get();
    let (slot, file, mut tail) = locked(state, number).await?;
    if !is_admitted() {
        return Err(Failure(wire::STATUS_PERMISSION));
    }
    if tail.is_suspended {
        return Err(Failure(wire::STATUS_SUSPENDED));
    }
    let start = if planted(Planted::StartsBeforeItsTurn) { before } else { file.length.get() };
    if tail.is_in_doubt {
        settle(&request, base, slot, &mut tail, start, false).await?;
    }
    let end = start + u64::from(bytes);
    if end > tail.capacity() {
        return Err(Failure(wire::STATUS_INSUFFICIENT));
    }
    if planted(Planted::LengthTooEarly) {
        settle(&request, base, slot, &mut tail, end, false).await?;
    }
    write(&request, &tail, start, bytes).await?;
    settle(&request, base, slot, &mut tail, end, false).await?;
    file.length.set(end);
    Ok(start as u32)
}

/// A part of a record that lies in one piece.
#[derive(Clone, Copy, Default)]
struct Piece {
    spu: u32,
    address: u64,
    /// Where it begins in the record.
    from: u32,
    bytes: u32,
}

/// Pieces of a record that are moved at the same time.
const PIECES_MAX: usize = 4;

/// Moves a piece; one of no bytes is none.
async fn put(request: &Request, piece: Piece) -> Result<(), Error> {
    let Piece { spu, address, from, bytes } = piece;
    let from = Body(AppendArguments::BYTES as u32 + from);
    match bytes {
        0 => Ok(()),
        _ if spu == willow_sdk::spu_id() => request.dma(from, Nv(address), bytes).await,
        _ => request.write_spu(from, SpuNv { spu, address }, bytes).await,
    }
}

/// Writes a record to where it belongs, durably.
async fn write(request: &Request, tail: &Tail, start: u64, bytes: u32) -> Result<(), Failure> {
    let (own, spus) = (willow_sdk::spu_id(), u64::from(willow_sdk::spu_count()));
    // A device has at most 64 SPUs.
    let (mut done, mut touched) = (0, 0u64);
    while done < bytes {
        let mut pieces = [Piece::default(); PIECES_MAX];
        for piece in &mut pieces {
            if done == bytes {
                break;
            }
            let Some((spu, address, there)) = tail.find(start + u64::from(done), spus) else {
                return Err(Failure(wire::STATUS_INSUFFICIENT));
            };
            *piece = Piece { spu, address, from: done, bytes: there.min(u64::from(bytes - done)) as u32 };
            touched |= 1 << spu;
            done += piece.bytes;
        }
        for moved in join_all(pieces.map(|piece| put(request, piece))).await {
            moved?;
        }
    }
    let own_flush = async { if touched >> own & 1 != 0 { willow_sdk::flush().await } else { Ok(()) } };
    let others = async {
        let mut left = touched & !(1 << own);
        while left != 0 && !planted(Planted::ForgetsOthers) {
            let mut asked = request.rpc_batch();
            for _ in 0..ASKED_MAX.min(left.count_ones()) {
                asked.send(request.rpc(Destination::Spu(left.trailing_zeros()), App::Own, wire::handler::SYNC));
                left &= left - 1;
            }
            match asked.await? {
                Response { status: 0, .. } => {}
                Response { status, .. } => return Ok(Err(Failure(status))),
            }
        }
        Ok::<_, Error>(Ok(()))
    };
    let (own_flush, others) = join(own_flush, others).await;
    own_flush?;
    others?
}

/// SPUs that are asked at the same time.
const ASKED_MAX: u32 = 8;

async fn sync(request: Request, _: &State) -> Result<(), Failure> {
    if request.info().source == SOURCE_HOST {
        return Err(MALFORMED);
    }
    Ok(willow_sdk::flush().await?)
}

/// The extents that follow a delegation in the body, added to those that a tail has.
fn add_extents(request: &Request, tail: &mut Tail, count: u32) -> Result<(), Failure> {
    let mut bytes = [0; EXTENTS_MAX * Extent::BYTES];
    let received = request.receive(&mut bytes);
    let old = tail.delegation.extents as usize;
    let is_sound = count > 0 && old + count as usize <= EXTENTS_MAX && received >= count as usize * Extent::BYTES;
    if !is_sound {
        return Err(MALFORMED);
    }
    let added = bytes.chunks_exact(Extent::BYTES).take(count as usize);
    added.zip(&mut tail.extents[old..]).for_each(|(from, to)| *to = Extent::decode(from));
    tail.delegation.extents += count;
    if tail.is_sound() { Ok(()) } else { Err(MALFORMED) }
}

async fn delegate(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let delegation = Delegation::decode(&arguments::<{ Delegation::BYTES }>(&request)?);
    if delegation.file % u64::from(willow_sdk::spu_count()) != u64::from(willow_sdk::spu_id()) {
        return Err(MALFORMED);
    }
    let mut unit = state.control.lock().await;
    let base = state.make().await?;
    if state.find(delegation.file).is_some() {
        return Err(Failure(wire::STATUS_EXISTS));
    }
    let free = state.files.iter().position(|file| file.number.get() == 0);
    let slot = free.ok_or(Failure(wire::STATUS_FULL))?;
    let file = &state.files[slot];
    let mut tail = file.tail.lock().await;
    let mut new = Tail { delegation: Delegation { extents: 0, ..delegation }, ..*tail };
    add_extents(&request, &mut new, delegation.extents)?;
    new.generation = state.next_generation.replace(state.next_generation.get() + 1);
    if planted(Planted::OneGeneration) {
        new.generation = 1;
    }
    // It is there when anything of it may be on the media: where this fails it is to be ended first.
    (new.is_suspended, new.is_in_doubt) = (true, false);
    *tail = new;
    file.length.set(delegation.length);
    file.number.set(delegation.file);
    file.admitted.iter().for_each(|process| process.set(0));
    if planted(Planted::OneGeneration) {
        describe(&request, base, slot, &tail, &mut unit).await?;
    }
    settle(&request, base, slot, &mut tail, delegation.length, false).await?;
    describe(&request, base, slot, &tail, &mut unit).await?;
    tail.is_suspended = false;
    Ok(())
}

async fn extend(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let delegation = Delegation::decode(&arguments::<{ Delegation::BYTES }>(&request)?);
    let base = state.open().await?.ok_or(NOT_FOUND)?;
    let mut unit = state.control.lock().await;
    let (slot, _, mut tail) = locked(state, delegation.file).await?;
    let mut new = *tail;
    add_extents(&request, &mut new, delegation.extents)?;
    describe(&request, base, slot, &new, &mut unit).await?;
    *tail = new;
    Ok(())
}

async fn admit(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let bytes = arguments::<16>(&request)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
    let (process, admits) = (word(8) as u32, word(8) >> 32 != 0);
    let (_, file, _tail) = locked(state, word(0)).await?;
    let place = |of: u32| file.admitted.iter().find(|admitted| admitted.get() == of);
    match (place(process), admits) {
        _ if process == 0 => return Err(MALFORMED),
        (Some(_), true) | (None, false) => {}
        (Some(admitted), false) => admitted.set(0),
        (None, true) => place(0).ok_or(Failure(wire::STATUS_FULL))?.set(process),
    }
    Ok(())
}

async fn tell(request: &Request, entry: Entry) -> Result<(), Failure> {
    Ok(request.dma(Local(&entry.encode()), Reply(0), Entry::BYTES as u32).await?)
}

async fn length(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let (slot, _, tail) = locked(state, u64::from_le_bytes(arguments(&request)?)).await?;
    tell(&request, state.entry(slot, &tail)).await
}

async fn suspend(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let number = u64::from_le_bytes(arguments(&request)?);
    let base = state.open().await?.ok_or(NOT_FOUND)?;
    if planted(Planted::SuspendsAtOnce) {
        let slot = state.find(number).ok_or(NOT_FOUND)?;
        let length = state.files[slot].length.get();
        let entry = Entry { file: number, length, capacity: length, slot: slot as u32, is_suspended: true };
        return tell(&request, entry).await;
    }
    let (slot, file, mut tail) = locked(state, number).await?;
    if !tail.is_suspended || tail.is_in_doubt {
        // Nobody appends from now on, also where this fails.
        tail.is_suspended = true;
        tail.is_in_doubt = true;
    }
    if tail.is_in_doubt {
        settle(&request, base, slot, &mut tail, file.length.get(), true).await?;
    }
    tell(&request, state.entry(slot, &tail)).await
}

async fn end(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let number = u64::from_le_bytes(arguments(&request)?);
    let base = state.open().await?.ok_or(NOT_FOUND)?;
    let mut unit = state.control.lock().await;
    let (slot, file, tail) = locked(state, number).await?;
    if !tail.is_suspended {
        return Err(Failure(wire::STATUS_APPENDING));
    }
    forget(&request, base, slot, &mut unit).await?;
    file.number.set(0);
    Ok(())
}

async fn list(request: Request, state: &State) -> Result<(), Failure> {
    let _permit = from_kernel(&request, state)?;
    let from = u64::from_le_bytes(arguments(&request)?);
    state.open().await?;
    let is_there = |slot: &usize| *slot as u64 >= from && state.files[*slot].number.get() != 0;
    let slot = (0..format::SLOTS).find(is_there).ok_or(NOT_FOUND)?;
    let tail = state.files[slot].tail.lock().await;
    tell(&request, state.entry(slot, &tail)).await
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    match event {
        DeviceEvent::Started => tail::recover(state, &request).await,
        // Another process may have its number later.
        DeviceEvent::Revoked { process, has_ended: true } => {
            let all = state.files.iter().flat_map(|file| &file.admitted);
            all.filter(|admitted| admitted.get() == process).for_each(|admitted| admitted.set(0));
        }
        _ => {}
    }
    Response::default()
}
