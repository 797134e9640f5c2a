//! The handlers: from a request's bytes to the engine and back, and SPU-OS as the engine's [`Bank`].

use crate::bank::{Bank, Failure, Fault, Record, Region, Word};
use crate::format::{HEADER_BYTES, PairId};
use crate::lock::WAITERS_MAX;
use crate::store::{Condition, ListFrom, Put};
use crate::table::Table;
use crate::wire::{self, PairArguments, Statistics};
mod batches;
mod caretaker;
mod items;

use batches::{get_many, put_many, scan};
use caretaker::caretaker;
use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use items::{clear, delete_item, get_item, put_item, sweep, touch};
use willow_sdk::{App, Body, Destination, DeviceEvent, Error, Local, Nv, Reply, Request, Response, Strides, Zeroes};

/// Requests that are handled on an SPU at a time, and the caretaker.
const THREADS: usize = 16 + 1;
const _: () = assert!(THREADS <= WAITERS_MAX);

/// Turns of long loops between two real waits: each turn takes well below 10,000 instructions, so that a handler stays
/// within its budget of millions.
const TURNS_PER_PAUSE: u32 = 1024;
/// A handler number that no app has. An RPC to it takes no thread of the receiver: SPU-OS refuses it, in its own time, and
/// has gone on with other work meanwhile.
const NO_HANDLER: u8 = 255;

/// What the app counts (`willow stat`).
mod counter {
    pub const GETS: u32 = 0;
    pub const PUTS: u32 = 1;
    pub const DELETES: u32 = 2;
    pub const EXISTS: u32 = 3;
    pub const LISTS: u32 = 4;
    pub const FLUSHES: u32 = 5;
    pub const PAUSES: u32 = 6;
    pub const TOUCHES: u32 = 7;
    pub const SWEEPS: u32 = 8;
    pub const CLEARS: u32 = 9;
    pub const SCANS: u32 = 10;
}

/// What the app keeps in an SPU's local memory.
pub struct State {
    table: Table,
    /// The caretaker is at work.
    caring: Cell<bool>,
}

willow_sdk::app! {
    name: "key-value",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State { table: Table::new(), caring: Cell::new(false) },
    threads: THREADS,
    handlers: {
        wire::handler::PUT => put,
        wire::handler::GET => get,
        wire::handler::DELETE => delete,
        wire::handler::EXISTS => exists,
        wire::handler::LIST => list,
        wire::handler::FLUSH => flush,
        wire::handler::STAT => stat,
        wire::handler::PUT_ITEM => put_item,
        wire::handler::GET_ITEM => get_item,
        wire::handler::DELETE_ITEM => delete_item,
        wire::handler::TOUCH => touch,
        wire::handler::SWEEP => sweep,
        wire::handler::CLEAR => clear,
        wire::handler::PUT_MANY => put_many,
        wire::handler::GET_MANY => get_many,
        wire::handler::SCAN => scan,
        wire::handler::CARETAKER => caretaker,
    },
    events: on_event,
}

#[cold]
#[inline(never)]
fn fault(error: Error) -> Fault {
    match error {
        Error::Full => Fault::Full,
        Error::Permission => Fault::Permission,
        Error::Refused => Fault::Busy,
        _ => Fault::Media,
    }
}

/// A DMA whose errors are the engine's; without a state of its own, unlike an `async fn` around it. Compiled in place, for what most
/// requests go through.
struct InPlace<F>(F);

impl<F: Future<Output = Result<(), Error>>> Future for InPlace<F> {
    type Output = Result<(), Fault>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the operation is pinned with the whole.
        unsafe { self.map_unchecked_mut(|faults| &mut faults.0) }.poll(context).map(|ended| ended.map_err(fault))
    }
}

/// The same, compiled once.
struct Faults<F>(F);

impl<F: Future<Output = Result<(), Error>>> Future for Faults<F> {
    type Output = Result<(), Fault>;

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: as above.
        unsafe { self.map_unchecked_mut(|faults| &mut faults.0) }.poll(context).map(|ended| ended.map_err(fault))
    }
}

/// Where a value begins in the body.
trait Begin {
    fn begin(&self) -> u32;
}

/// Behind the arguments of a plain put, which the compiler knows.
struct BehindArguments;

impl Begin for BehindArguments {
    #[inline]
    fn begin(&self) -> u32 {
        PairArguments::BYTES as u32
    }
}

/// At that byte.
struct At(u32);

impl Begin for At {
    #[inline]
    fn begin(&self) -> u32 {
        self.0
    }
}

/// A request's view of SPU-OS.
struct Ports<'a, P = BehindArguments> {
    request: &'a Request,
    value: P,
    /// Where values begin in the reply.
    reply_offset: u32,
    turns: Cell<u32>,
}

impl<'a> Ports<'a> {
    fn new(request: &'a Request) -> Self {
        Ports { request, value: BehindArguments, reply_offset: 0, turns: Cell::new(0) }
    }
}

impl<'a> Ports<'a, At> {
    /// For a value that begins at that byte of the body.
    fn at(request: &'a Request, begin: u32) -> Self {
        Ports { request, value: At(begin), reply_offset: 0, turns: Cell::new(0) }
    }
}

/// The payload begins behind the arguments.
const PAYLOAD: u32 = PairArguments::BYTES as u32;

impl<P: Begin> Bank for Ports<'_, P> {
    #[inline]
    fn read(&self, address: u64, into: &mut [u8]) -> impl Future<Output = Result<(), Fault>> {
        Faults(self.request.read(address, into))
    }

    #[inline]
    fn read_in_place(&self, address: u64, into: &mut [u8]) -> impl Future<Output = Result<(), Fault>> {
        InPlace(self.request.read(address, into))
    }

    #[inline]
    fn read_now(&self, address: u64, into: &mut [u8]) -> Option<Result<(), Fault>> {
        let bytes = into.len() as u32;
        Some(self.request.dma_now(Nv(address), Local(into), bytes)?.map_err(fault))
    }

    #[inline]
    fn send_now(&self, address: u64, offset: u32, bytes: u32) -> Option<Result<(), Fault>> {
        Some(self.request.dma_now(Nv(address), Reply(self.reply_offset + offset), bytes)?.map_err(fault))
    }

    fn read_headers(&self, address: u64, stride: u64, into: &mut [u8]) -> impl Future<Output = Result<(), Fault>> {
        let segment_bytes = HEADER_BYTES as u32;
        let strides = Strides {
            segment_bytes,
            segments: into.len() as u32 / segment_bytes,
            source_stride: stride as i64,
            destination_stride: segment_bytes.into(),
        };
        Faults(self.request.dma_strided(Nv(address), Local(into), strides))
    }

    fn zero(&self, address: u64, bytes: u32) -> impl Future<Output = Result<(), Fault>> {
        Faults(self.request.dma(Zeroes, Nv(address), bytes))
    }

    #[inline]
    fn write(&self, address: u64, from: &[u8]) -> impl Future<Output = Result<(), Fault>> {
        Faults(self.request.write(address, from))
    }

    #[inline]
    fn receive(&self, offset: u32, address: u64, bytes: u32) -> impl Future<Output = Result<(), Fault>> {
        Faults(self.request.dma(Body(self.value.begin() + offset), Nv(address), bytes))
    }

    #[inline]
    fn store<'a>(&'a self, record: Record<'a>) -> impl Future<Output = Result<(), Fault>> {
        let mut writes = self.request.batch();
        if record.rest_bytes > 0 {
            writes.dma(Body(self.value.begin() + record.rest_offset), Nv(record.rest_address), record.rest_bytes);
        }
        writes.dma(Local(record.header), Nv(record.address), record.header.len() as u32);
        writes.dma(Local(&record.link.bytes), Nv(record.link.address), record.link.bytes.len() as u32);
        InPlace(writes)
    }

    fn write_words<'a>(&'a self, words: &'a [Word]) -> impl Future<Output = Result<(), Fault>> {
        let mut writes = self.request.batch();
        for word in words {
            writes.dma(Local(&word.bytes), Nv(word.address), word.bytes.len() as u32);
        }
        Faults(writes)
    }

    #[inline]
    fn send(&self, address: u64, offset: u32, bytes: u32) -> impl Future<Output = Result<(), Fault>> {
        InPlace(self.request.dma(Nv(address), Reply(self.reply_offset + offset), bytes))
    }

    async fn reply(&self, from: &[u8], offset: u32) -> Result<(), Fault> {
        self.request.dma(Local(from), Reply(offset), from.len() as u32).await.map_err(fault)
    }

    async fn checksum(&self, address: u64, bytes: u32, seed: u32) -> Result<u32, Fault> {
        self.request.checksum(Nv(address), bytes, seed).await.map_err(fault)
    }

    #[inline]
    async fn checksum_payload(&self, bytes: u32) -> Result<u32, Fault> {
        self.request.checksum(Body(self.value.begin()), bytes, 0).await.map_err(fault)
    }

    async fn flush(&self) -> Result<(), Fault> {
        willow_sdk::flush().await.map_err(fault)
    }

    #[inline]
    async fn pause(&self) {
        let turns = self.turns.get() + 1;
        self.turns.set(turns);
        if turns >= TURNS_PER_PAUSE {
            self.turns.set(0);
            willow_sdk::count(counter::PAUSES, 1);
            // It fails: that it has come back is all that was wanted.
            let _ = self.request.rpc(Destination::Spu(willow_sdk::spu_id()), App::Own, NO_HANDLER).send().await;
        }
    }

    async fn region(&self, nsid: u32) -> Result<Region, Failure> {
        let found = async {
            let base = willow_sdk::region(nsid, 0).await?;
            Ok(Region { base, bytes: willow_sdk::region_bytes(nsid)? })
        };
        found.await.map_err(|error| match error {
            Error::NotFound => Failure::NoNamespace,
            other => fault(other).into(),
        })
    }

    fn entropy(&self) -> u64 {
        willow_sdk::time_ns()
    }

    fn unclean(&self) {
        // Where there is no place for it, a crash finds more to do: no more than that.
        let _ = willow_sdk::background(wire::handler::CARETAKER, 0);
    }

    #[inline]
    fn place(&self) -> (u16, u16) {
        (willow_sdk::spu_id() as u16, willow_sdk::spu_count() as u16)
    }
}

#[inline]
fn arguments(request: &Request) -> Result<PairArguments, Response> {
    match request.receive_array::<{ PairArguments::BYTES }>() {
        Ok(bytes) => Ok(PairArguments::decode(&bytes)),
        Err(_) => Err(Response::failure(wire::STATUS_MALFORMED)),
    }
}

#[inline]
fn pair(request: &Request) -> Result<(PairArguments, PairId), Response> {
    let arguments = arguments(request)?;
    let id = PairId::new(&arguments).ok_or(Response::failure(wire::STATUS_KEY_SIZE))?;
    Ok((arguments, id))
}

fn response(outcome: Result<u32, Failure>) -> Response {
    match outcome {
        Ok(result) => Response::success(result),
        Err(failure) => Response::failure(failure.status()),
    }
}

/// When a put stores; `None` for conditions that exclude each other.
#[inline]
fn condition(flags: u32, version: u64) -> Option<Condition> {
    Some(match flags & (wire::FLAG_ONLY_IF_EXISTS | wire::FLAG_ONLY_IF_ABSENT | wire::FLAG_IF_VERSION) {
        0 => Condition::Always,
        wire::FLAG_ONLY_IF_EXISTS => Condition::IfExists,
        wire::FLAG_ONLY_IF_ABSENT => Condition::IfAbsent,
        wire::FLAG_IF_VERSION => Condition::IfVersion(version),
        _ => return None,
    })
}

/// A put that makes sense.
struct PutRequest {
    nsid: u32,
    flags: u32,
    put: Put,
    id: PairId,
}

impl PutRequest {
    #[inline]
    fn of(request: &Request) -> Result<Self, Response> {
        let (arguments, id) = pair(request)?;
        if arguments.word > wire::VALUE_BYTES_MAX {
            return Err(Response::failure(wire::STATUS_VALUE_SIZE));
        }
        let condition = condition(arguments.flags & !wire::FLAG_IF_VERSION, 0);
        let Some(condition) = condition.filter(|_| request.info().body_bytes >= PAYLOAD + arguments.word) else {
            return Err(Response::failure(wire::STATUS_MALFORMED));
        };
        Ok(PutRequest { nsid: arguments.nsid, flags: arguments.flags, put: Put::new(arguments.word, condition), id })
    }
}

// What a request says is looked at before its future is made, which then has it where it stays: an `async fn` would copy it there when it is
// first polled.
fn put(request: Request, state: &State) -> impl Future<Output = Response> {
    willow_sdk::count(counter::PUTS, 1);
    let parsed = PutRequest::of(&request);
    async move {
        let parsed = match &parsed {
            Ok(parsed) => parsed,
            Err(response) => return *response,
        };
        let ports = Ports::new(&request);
        let store = match state.table.try_enter(parsed.nsid) {
            Some(store) => store,
            None => match state.table.enter(&ports, parsed.nsid).await {
                Ok(store) => store,
                Err(failure) => return response(Err(failure)),
            },
        };
        let mut sweeps = 0;
        while let Err(failure) = store.put::<_, false>(&ports, &parsed.id, parsed.put).await {
            if failure != Failure::Capacity {
                return response(Err(failure));
            }
            match store.finds_room(&ports, &mut sweeps).await {
                Ok(true) => {}
                Ok(false) => return response(Err(failure)),
                Err(failure) => return response(Err(failure)),
            }
        }
        if parsed.flags & wire::FLAG_FUA != 0
            && let Err(failure) = store.flush(&ports).await
        {
            return response(Err(failure));
        }
        Response::default()
    }
}

/// A get that makes sense.
struct GetRequest {
    nsid: u32,
    /// Where it begins in the value.
    offset: u32,
    reply_offset: u32,
    room: u32,
    id: PairId,
}

impl GetRequest {
    #[inline]
    fn of(request: &Request) -> Result<Self, Response> {
        let (arguments, id) = pair(request)?;
        let (offset, reply_offset) = (arguments.word, arguments.reply_offset);
        match request.info().reply_bytes.checked_sub(reply_offset) {
            Some(room) => Ok(GetRequest { nsid: arguments.nsid, offset, reply_offset, room, id }),
            None => Err(Response::failure(wire::STATUS_MALFORMED)),
        }
    }
}

async fn get(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::GETS, 1);
    // What is done at once writes nothing to the thread's memory: only what is named outside of this block is kept at waits.
    let parsed = {
        let parsed = match GetRequest::of(&request) {
            Ok(parsed) => parsed,
            Err(response) => return response,
        };
        if let Some(answer) = get_now(&request, state, &parsed) {
            return answer;
        }
        parsed
    };
    let ports = Ports { reply_offset: parsed.reply_offset, ..Ports::new(&request) };
    let store = match state.table.try_enter(parsed.nsid) {
        Some(store) => store,
        None => match state.table.enter(&ports, parsed.nsid).await {
            Ok(store) => store,
            Err(failure) => return response(Err(failure)),
        },
    };
    response(store.get(&ports, &parsed.id, parsed.offset, parsed.room).await)
}

#[inline]
fn get_now(request: &Request, state: &State, parsed: &GetRequest) -> Option<Response> {
    let store = state.table.at_once(parsed.nsid)?;
    let ports = Ports { reply_offset: parsed.reply_offset, ..Ports::new(request) };
    store.get_now(&ports, &parsed.id, parsed.offset, parsed.room).map(response)
}

async fn delete(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::DELETES, 1);
    let (arguments, id) = match pair(&request) {
        Ok(pair) => pair,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.nsid).await?;
        store.delete(&ports, &id, None).await?;
        if arguments.flags & wire::FLAG_FUA != 0 {
            store.flush(&ports).await?;
        }
        Ok(0)
    };
    response(outcome.await)
}

async fn exists(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::EXISTS, 1);
    let (arguments, id) = match pair(&request) {
        Ok(pair) => pair,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.nsid).await?;
        store.exists(&ports, &id).await
    };
    response(outcome.await)
}

async fn list(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::LISTS, 1);
    let arguments = match arguments(&request) {
        Ok(arguments) => arguments,
        Err(response) => return response,
    };
    let from = if arguments.flags & wire::FLAG_FROM_START != 0 {
        ListFrom::Start
    } else {
        match (PairId::new(&arguments), arguments.flags & wire::FLAG_AFTER != 0) {
            (Some(id), false) => ListFrom::At(id),
            (Some(id), true) => ListFrom::After(id),
            (None, _) => return Response::failure(wire::STATUS_KEY_SIZE),
        }
    };
    let room = request.info().reply_bytes;
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.nsid).await?;
        store.list(&ports, from, arguments.word, room).await
    };
    response(outcome.await)
}

async fn flush(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::FLUSHES, 1);
    let arguments = match arguments(&request) {
        Ok(arguments) => arguments,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        state.table.enter(&ports, arguments.nsid).await?.flush(&ports).await?;
        Ok(0)
    };
    response(outcome.await)
}

async fn stat(request: Request, state: &State) -> Response {
    let arguments = match arguments(&request) {
        Ok(arguments) => arguments,
        Err(response) => return response,
    };
    let at = arguments.reply_offset;
    if request.info().reply_bytes.checked_sub(at).is_none_or(|room| room < Statistics::BYTES as u32) {
        return Response::failure(wire::STATUS_MALFORMED);
    }
    let ports = Ports::new(&request);
    let outcome = async {
        let statistics = state.table.enter(&ports, arguments.nsid).await?.statistics();
        ports.reply(&statistics.encode(), at).await?;
        Ok(Statistics::BYTES as u32)
    };
    response(outcome.await)
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    let ports = Ports::new(&request);
    match event {
        // A namespace's region is zeroed when it is created, which is what an empty store looks like.
        DeviceEvent::NamespaceCreated(_)
        | DeviceEvent::Started
        | DeviceEvent::NamespaceResized(_)
        | DeviceEvent::Revoked { .. }
        | DeviceEvent::Other(_) => {}
        DeviceEvent::NamespaceDeleted(nsid) => state.table.forget(nsid).await,
        DeviceEvent::Shutdown => state.table.close_all(&ports).await,
    }
    Response::default()
}
