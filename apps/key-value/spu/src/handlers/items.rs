//! Handlers for items: pairs with their version and expiry.

use super::{At, Ports, State, condition, counter, response};
use crate::bank::{Bank, Failure};
use crate::format::PairId;
use crate::store::{Found, Put, Store};
use crate::wire::{self, ItemArguments, ItemHead};
use willow_sdk::{Request, Response};

/// Where the payload begins in the body.
const PAYLOAD: u32 = ItemArguments::BYTES as u32;
/// A version in the reply.
const VERSION_BYTES: u32 = 8;

fn arguments(request: &Request) -> Result<ItemArguments, Response> {
    match request.receive_array::<{ ItemArguments::BYTES }>() {
        Ok(bytes) => Ok(ItemArguments::decode(&bytes)),
        Err(_) => Err(Response::failure(wire::STATUS_MALFORMED)),
    }
}

fn item(request: &Request) -> Result<(ItemArguments, PairId), Response> {
    let arguments = arguments(request)?;
    let id = PairId::new(&arguments.pair).ok_or(Response::failure(wire::STATUS_KEY_SIZE))?;
    Ok((arguments, id))
}

fn head(found: &Found) -> ItemHead {
    ItemHead { version: found.version, expiry: found.expiry, value_bytes: found.value_bytes }
}

/// Stores, and makes room by removing what has expired where there is none.
pub(super) async fn put_with_room(store: &Store, ports: &Ports<'_, At>, id: &PairId, put: Put) -> Result<u64, Failure> {
    let mut sweeps = 0;
    loop {
        match store.put::<_, true>(ports, id, put).await {
            Err(Failure::Capacity) if store.finds_room(ports, &mut sweeps).await? => {}
            outcome => return outcome,
        }
    }
}

pub(super) async fn put_item(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::PUTS, 1);
    let (arguments, id) = match item(&request) {
        Ok(item) => item,
        Err(response) => return response,
    };
    let value_bytes = arguments.pair.word;
    if value_bytes > wire::VALUE_BYTES_MAX {
        return Response::failure(wire::STATUS_VALUE_SIZE);
    }
    let Some(condition) = condition(arguments.pair.flags, arguments.version) else {
        return Response::failure(wire::STATUS_MALFORMED);
    };
    let info = request.info();
    let begin = u64::from(PAYLOAD) + u64::from(arguments.pair.reply_offset);
    if u64::from(info.body_bytes) < begin + u64::from(value_bytes) {
        return Response::failure(wire::STATUS_MALFORMED);
    }
    let ports = Ports::at(&request, begin as u32);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.pair.nsid).await?;
        store.tell_time(arguments.now_s);
        let put = Put { value_bytes, condition, expiry: arguments.expiry };
        let version = put_with_room(&store, &ports, &id, put).await?;
        if arguments.pair.flags & wire::FLAG_FUA != 0 {
            store.flush(&ports).await?;
        }
        if info.reply_bytes >= VERSION_BYTES {
            ports.reply(&version.to_le_bytes(), 0).await?;
        }
        Ok(0)
    };
    response(outcome.await)
}

pub(super) async fn get_item(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::GETS, 1);
    let (arguments, id) = match item(&request) {
        Ok(item) => item,
        Err(response) => return response,
    };
    let begin = arguments.pair.reply_offset;
    let (Some(room), Some(head_at)) =
        (request.info().reply_bytes.checked_sub(begin), begin.checked_sub(ItemHead::BYTES as u32))
    else {
        return Response::failure(wire::STATUS_MALFORMED);
    };
    let ports = Ports { reply_offset: begin, ..Ports::new(&request) };
    let outcome = async {
        let at_once = state.table.at_once(arguments.pair.nsid).and_then(|store| {
            store.tell_time(arguments.now_s);
            store.get_now(&ports, &id, arguments.pair.word, room)
        });
        let found: Found = match at_once {
            Some(outcome) => outcome?,
            None => {
                let store = state.table.enter(&ports, arguments.pair.nsid).await?;
                store.tell_time(arguments.now_s);
                store.get(&ports, &id, arguments.pair.word, room).await?
            }
        };
        ports.reply(&head(&found).encode(), head_at).await?;
        Ok(found.value_bytes)
    };
    response(outcome.await)
}

pub(super) async fn delete_item(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::DELETES, 1);
    let (arguments, id) = match item(&request) {
        Ok(item) => item,
        Err(response) => return response,
    };
    let version = (arguments.pair.flags & wire::FLAG_IF_VERSION != 0).then_some(arguments.version);
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.pair.nsid).await?;
        store.tell_time(arguments.now_s);
        store.delete(&ports, &id, version).await?;
        if arguments.pair.flags & wire::FLAG_FUA != 0 {
            store.flush(&ports).await?;
        }
        Ok(0)
    };
    response(outcome.await)
}

pub(super) async fn touch(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::TOUCHES, 1);
    let (arguments, id) = match item(&request) {
        Ok(item) => item,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.pair.nsid).await?;
        store.tell_time(arguments.now_s);
        let found = store.touch(&ports, &id, arguments.expiry).await?;
        if arguments.pair.flags & wire::FLAG_FUA != 0 {
            store.flush(&ports).await?;
        }
        if request.info().reply_bytes >= ItemHead::BYTES as u32 {
            ports.reply(&head(&found).encode(), 0).await?;
        }
        Ok(found.value_bytes)
    };
    response(outcome.await)
}

pub(super) async fn sweep(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::SWEEPS, 1);
    let arguments = match arguments(&request) {
        Ok(arguments) => arguments,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        let store = state.table.enter(&ports, arguments.pair.nsid).await?;
        store.tell_time(arguments.now_s);
        store.sweep(&ports, arguments.pair.word).await
    };
    response(outcome.await)
}

pub(super) async fn clear(request: Request, state: &State) -> Response {
    willow_sdk::count(counter::CLEARS, 1);
    let arguments = match arguments(&request) {
        Ok(arguments) => arguments,
        Err(response) => return response,
    };
    let ports = Ports::new(&request);
    let outcome = async {
        state.table.enter(&ports, arguments.pair.nsid).await?.clear(&ports).await?;
        Ok(0)
    };
    response(outcome.await)
}
