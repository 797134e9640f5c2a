//! Handlers for several pairs at once, and for ranges of keys.
//!
//! What always holds: a batch is worked off in its order; what its parts say of themselves is checked against what came.

use super::items::put_with_room;
use super::{Ports, State, condition, counter, fault, response};
use crate::bank::{Bank, Failure};
use crate::format::PairId;
use crate::store::{Found, KeyRange, Put};
use crate::wire::{
    self, BATCH_ALIGNMENT, BATCH_MAX, BatchArguments, Bound, GetEntry, ItemHead, ManyHead, PairArguments, Progress,
    PutEntry, ScanArguments, ScanHead, Unmet,
};
use willow_sdk::{Body, Local, Request, Response};

/// Where the payload begins in the body.
const PAYLOAD: u32 = BatchArguments::BYTES as u32;

fn arguments(request: &Request) -> Option<BatchArguments> {
    let arguments = BatchArguments::decode(&request.receive_array().ok()?);
    (1..=BATCH_MAX).contains(&arguments.count).then_some(arguments)
}

fn id(entry: &GetEntry) -> Option<PairId> {
    let (hash, key, key_bytes) = (entry.hash, entry.key, entry.key_bytes);
    PairId::new(&PairArguments { hash, key, key_bytes, ..PairArguments::default() })
}

/// Why a part of a batch failed: the engine's reason, or a part that makes no sense.
enum Refusal {
    Failure(Failure),
    Status(u32),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Refusal::Failure(failure)
    }
}

impl Refusal {
    fn status(self) -> u32 {
        match self {
            Refusal::Failure(failure) => failure.status(),
            Refusal::Status(status) => status,
        }
    }
}

/// How far a batch came, and what ended it.
fn ended(progress: Progress, refusal: Option<Refusal>) -> Response {
    Response { status: refusal.map_or(0, Refusal::status), result: progress.encode() }
}

/// Tells of a pair whose condition is not met, where the host wants that and there is room for it; else it ends the batch.
async fn tell_unmet(
    request: &Request,
    arguments: &BatchArguments,
    progress: Progress,
    failure: Failure,
) -> Result<(), Refusal> {
    let is_unmet = matches!(failure, Failure::NotFound | Failure::Exists | Failure::Changed);
    let at = arguments.reply_offset.checked_add(progress.unmet * Unmet::BYTES as u32);
    let end = at.and_then(|at| at.checked_add(Unmet::BYTES as u32));
    let has_room = end.is_some_and(|end| end <= request.info().reply_bytes);
    match at {
        Some(at) if is_unmet && has_room && arguments.flags & wire::FLAG_PAST_UNMET != 0 => {
            let unmet = Unmet { index: progress.done, status: failure.status() };
            Ok(Ports::new(request).reply(&unmet.encode(), at).await.map_err(Failure::from)?)
        }
        _ => Err(failure.into()),
    }
}

pub(super) async fn put_many(request: Request, state: &State) -> Response {
    let Some(arguments) = arguments(&request) else { return Response::failure(wire::STATUS_MALFORMED) };
    let ports = Ports::new(&request);
    let store = match state.table.enter(&ports, arguments.nsid).await {
        Ok(store) => store,
        Err(failure) => return response(Err(failure)),
    };
    store.tell_time(arguments.now_s);
    let body_bytes = u64::from(request.info().body_bytes);
    let mut at = u64::from(PAYLOAD);
    let mut progress = Progress::default();
    let mut refusal = None;
    while progress.done < arguments.count && refusal.is_none() {
        let part = async {
            let begin = at + PutEntry::BYTES as u64;
            if begin > body_bytes {
                return Err(Refusal::Status(wire::STATUS_MALFORMED));
            }
            let mut bytes = [0; PutEntry::BYTES];
            let fetched = request.dma(Body(at as u32), Local(&mut bytes[..]), PutEntry::BYTES as u32).await;
            fetched.map_err(|error| Failure::from(fault(error)))?;
            let entry = PutEntry::decode(&bytes);
            let id = id(&entry.pair).ok_or(Refusal::Status(wire::STATUS_KEY_SIZE))?;
            if entry.value_bytes > wire::VALUE_BYTES_MAX {
                return Err(Refusal::Status(wire::STATUS_VALUE_SIZE));
            }
            let end = begin + u64::from(entry.value_bytes);
            let condition = condition(entry.flags, entry.version).filter(|_| end <= body_bytes);
            let condition = condition.ok_or(Refusal::Status(wire::STATUS_MALFORMED))?;
            willow_sdk::count(counter::PUTS, 1);
            let ports = Ports::at(&request, begin as u32);
            let put = Put { value_bytes: entry.value_bytes, condition, expiry: entry.expiry };
            let unmet = match put_with_room(&store, &ports, &id, put).await {
                Ok(_) => 0,
                Err(failure) => {
                    tell_unmet(&request, &arguments, progress, failure).await?;
                    1
                }
            };
            Ok((end.next_multiple_of(BATCH_ALIGNMENT.into()), unmet))
        };
        match part.await {
            Ok((next, unmet)) => {
                at = next;
                progress = Progress { done: progress.done + 1, unmet: progress.unmet + unmet };
            }
            Err(why) => refusal = Some(why),
        }
    }
    if arguments.flags & wire::FLAG_FUA != 0
        && progress.done > progress.unmet
        && let Err(failure) = store.flush(&ports).await
    {
        // Nothing is known to be durable.
        return ended(Progress::default(), Some(failure.into()));
    }
    ended(progress, refusal)
}

pub(super) async fn get_many(request: Request, state: &State) -> Response {
    let Some(arguments) = arguments(&request) else { return Response::failure(wire::STATUS_MALFORMED) };
    let info = request.info();
    if info.body_bytes - PAYLOAD.min(info.body_bytes) < arguments.count * GetEntry::BYTES as u32 {
        return Response::failure(wire::STATUS_MALFORMED);
    }
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.nsid).await?;
        store.tell_time(arguments.now_s);
        let (mut at, mut done) = (arguments.reply_offset, 0);
        while done < arguments.count {
            let Some(begin) = at.checked_add(ManyHead::BYTES as u32) else { break };
            let Some(room) = info.reply_bytes.checked_sub(begin) else { break };
            let mut bytes = [0; GetEntry::BYTES];
            let from = Body(PAYLOAD + done * GetEntry::BYTES as u32);
            let fetched = request.dma(from, Local(&mut bytes[..]), GetEntry::BYTES as u32).await;
            fetched.map_err(fault)?;
            let Some(id) = id(&GetEntry::decode(&bytes)) else {
                let head = ManyHead { status: wire::STATUS_KEY_SIZE, ..ManyHead::default() };
                ports.reply(&head.encode(), at).await?;
                (at, done) = (begin, done + 1);
                continue;
            };
            willow_sdk::count(counter::GETS, 1);
            let value_ports = Ports { reply_offset: begin, ..Ports::new(&request) };
            let mut head = ManyHead::default();
            let mut next = begin;
            match store.get::<_, Found>(&value_ports, &id, 0, room).await {
                Ok(found) => {
                    let (version, expiry, value_bytes) = (found.version, found.expiry, found.value_bytes);
                    head.head = ItemHead { version, expiry, value_bytes };
                    let end = u64::from(begin) + u64::from(value_bytes);
                    let end = end.next_multiple_of(BATCH_ALIGNMENT.into());
                    if value_bytes > room {
                        // The next request begins with it; one that begins with it says how much room it takes.
                        if done > 0 {
                            break;
                        }
                        head.status = wire::STATUS_ROOM;
                    } else {
                        next = end.min(info.reply_bytes.into()) as u32;
                    }
                }
                Err(failure @ (Failure::NotFound | Failure::Media)) => head.status = failure.status(),
                Err(failure) => return Err(failure),
            }
            ports.reply(&head.encode(), at).await?;
            (at, done) = (next, done + 1);
            ports.pause().await;
        }
        Ok(done)
    };
    response(outcome.await)
}

pub(super) async fn scan(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::SCANS, 1);
    let received = request.receive_array::<{ ScanArguments::BYTES }>().ok();
    let Some(arguments) = received.and_then(|bytes| ScanArguments::decode(&bytes)) else {
        return Response::failure(wire::STATUS_MALFORMED);
    };
    let room = request.info().reply_bytes;
    if (room as usize) < ScanHead::BYTES + wire::LIST_ENTRY_BYTES_MAX {
        return Response::failure(wire::STATUS_ROOM);
    }
    let bound = |bound: &Bound| (bound.key, bound.key_bytes);
    let range = KeyRange { from: bound(&arguments.from), to: bound(&arguments.to) };
    let from = PairId { hash: arguments.hash, key: arguments.at.key, key_bytes: arguments.at.key_bytes };
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.nsid).await?;
        let scanned = store.scan(&ports, &range, from, ScanHead::BYTES as u32, room).await?;
        let head = match scanned.next {
            None => ScanHead::default(),
            Some(next) => {
                ScanHead { more: true, hash: next.hash, at: Bound { key: next.key, key_bytes: next.key_bytes } }
            }
        };
        ports.reply(&head.encode(), 0).await?;
        Ok(ScanHead::BYTES as u32 + scanned.bytes)
    };
    response(outcome.await)
}
