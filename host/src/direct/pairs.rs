//! Commands of key-value namespaces as RPCs to the app that serves them.

use super::{Direct, Sent, Way, find, part};
use crate::hre::many::{of_the_way, together};
use crate::hre::{
    BoxFuture, Each, HreError, ITEM_HEAD_BYTES, Item, ItemTerms, KeyRange, KvCommand, KvReply, ScanCursor, ScanPage,
    ScanPlace, StoreCondition, StoreMany,
};
use key_value_host::wire::{ItemHead, VALUE_BYTES_MAX};
use key_value_host::{
    Call, GetBatch, Gotten, ItemCall, ItemPut, Key as PairKey, KeyScan, KeyValueError, ListScan, ListStep, Placement,
    PutBatch, PutCondition, ScanStep,
};
use std::collections::VecDeque;
use std::sync::Arc;
use willow_shm::message::View;
use willow_wire::spec::kv::Key;

/// A version in a reply.
const VERSION_BYTES: usize = 8;
/// Payload of a batch of pairs, at most, where no single pair is longer.
const BATCH_BYTES: usize = 1 << 20;
/// Room for the reply to a batch of keys at first.
const BATCH_ROOM_BYTES: usize = 256 << 10;
/// Batches of keys that are read at the same time.
const TOGETHER_MAX: usize = 16;
/// Reply of a scan.
const SCAN_BYTES: usize = 64 << 10;

fn kv_error(error: KeyValueError) -> HreError {
    match error {
        KeyValueError::NotFound => HreError::KeyNotFound,
        KeyValueError::Exists => HreError::KeyExists,
        KeyValueError::Changed => HreError::Changed,
        KeyValueError::Capacity => HreError::Full,
        KeyValueError::Media => HreError::Media,
        KeyValueError::KeySize => HreError::KeySize,
        KeyValueError::Permission => HreError::NotPermitted,
        other => HreError::Answer(other.to_string()),
    }
}

fn value_size(bytes: usize) -> HreError {
    HreError::ValueSize { bytes: bytes as u64, bytes_max: u64::from(VALUE_BYTES_MAX) }
}

fn pair_key(key: Key) -> Result<PairKey, HreError> {
    PairKey::new(key.as_slice()).map_err(kv_error)
}

/// Where pairs of a namespace are.
struct Place {
    view: Arc<View>,
    app: u16,
    placement: Placement,
}

impl Place {
    async fn of(device: &impl Direct, nsid: u32) -> Result<Place, HreError> {
        let view = device.view().await?;
        let namespace = find(&view, nsid, true, "no key-value namespace")?;
        let app = namespace.serving_app().map_err(HreError::Argument)?;
        let placement = Placement::new(namespace.nguid, view.spus);
        Ok(Place { view, app, placement })
    }

    /// One RPC, whatever its status.
    async fn send<const BYTES: usize>(
        &self,
        device: &impl Direct,
        call: Call<BYTES>,
        buffer: Vec<u8>,
        way: Way,
    ) -> Result<Sent, HreError> {
        let rpc = part(self.app, call.handler, call.spu, &call.arguments)?;
        device.send((self.app, call.handler, Some(call.spu)), vec![rpc], buffer, way).await
    }

    /// One RPC that must end well.
    async fn call<const BYTES: usize>(
        &self,
        device: &impl Direct,
        call: Call<BYTES>,
        buffer: Vec<u8>,
        way: Way,
    ) -> Result<Sent, HreError> {
        let sent = self.send(device, call, buffer, way).await?;
        KeyValueError::from_status(sent.status).map_err(kv_error)?;
        Ok(sent)
    }

    /// The same to each SPU.
    async fn call_all<const BYTES: usize>(
        &self,
        device: &impl Direct,
        call: impl Fn(u16) -> Call<BYTES>,
    ) -> Result<Sent, HreError> {
        let mut rpcs = Vec::new();
        for spu in 0..self.view.spus {
            let call = call(spu);
            rpcs.push(part(self.app, call.handler, spu, &call.arguments)?);
        }
        let target = (self.app, call(0).handler, None);
        let sent = device.send(target, rpcs, Vec::new(), Way::out(&[])).await?;
        KeyValueError::from_status(sent.status).map_err(kv_error)?;
        Ok(sent)
    }
}

/// See [`crate::Hre::kv`].
pub(crate) async fn kv(
    device: &impl Direct,
    nsid: u32,
    command: KvCommand,
    buffer: Vec<u8>,
) -> Result<KvReply, HreError> {
    let place = Place::of(device, nsid).await?;
    let placement = &place.placement;
    let bytes = buffer.len();
    let (out, back) = (Way::out(&buffer), Way::back(&buffer));
    let reply = |answer: Sent| KvReply { result: answer.result, ..KvReply::default() };
    match command {
        KvCommand::Store(key, condition) => {
            let condition = match condition {
                StoreCondition::Always => PutCondition::Always,
                StoreCondition::MustExist => PutCondition::IfExists,
                StoreCondition::MustNotExist => PutCondition::IfAbsent,
            };
            let call = Call::put(placement, nsid, &pair_key(key)?, bytes as u32, condition, false);
            place.call(device, call.map_err(|_| value_size(bytes))?, buffer, out).await.map(reply)
        }
        KvCommand::Retrieve(key) => {
            let call = Call::get(placement, nsid, &pair_key(key)?, 0);
            let answer = place.call(device, call, buffer, back).await?;
            let mut data = answer.buffer;
            data.truncate((answer.result as usize).min(answer.written as usize));
            Ok(KvReply { result: answer.result, data, ..KvReply::default() })
        }
        KvCommand::Delete(key) => {
            let call = Call::delete(placement, nsid, &pair_key(key)?, false);
            place.call(device, call, buffer, out).await.map(reply)
        }
        KvCommand::Exist(key) => {
            let call = Call::exists(placement, nsid, &pair_key(key)?);
            place.call(device, call, buffer, out).await.map(reply)
        }
        KvCommand::List(key) => {
            let from = if key == Key::EMPTY { None } else { Some(pair_key(key)?) };
            let (mut scan, mut step) = ListScan::start(*placement, nsid, from.as_ref(), false, bytes);
            let mut data = buffer;
            while let ListStep::Call(call) = step {
                let answer = place.call(device, call, data, back).await?;
                data = answer.buffer;
                step = scan.answered(answer.result);
            }
            let written = scan.finish(&mut data);
            data.truncate(written);
            Ok(KvReply { data, ..KvReply::default() })
        }
        KvCommand::Flush => place.call_all(device, |spu| Call::flush(nsid, spu)).await.map(reply),
        KvCommand::StoreItem(key, store) => {
            let value_bytes = bytes.saturating_sub(ITEM_HEAD_BYTES);
            let (offset, terms) = (ITEM_HEAD_BYTES as u32, store.terms);
            let put = ItemPut {
                value_bytes: value_bytes as u32,
                offset,
                condition: store.condition,
                expiry: terms.expiry,
                now_s: terms.now_s,
                durable: terms.durable,
            };
            let call = ItemCall::put_item(placement, nsid, &pair_key(key)?, &put);
            let way = Way { reply_bytes: VERSION_BYTES, ..out };
            let answer = place.call(device, call.map_err(|_| value_size(value_bytes))?, buffer, way).await?;
            let version = answer.buffer.first_chunk().filter(|_| answer.written as usize >= VERSION_BYTES);
            let version = version.map(|bytes| u64::from_le_bytes(*bytes));
            let version = version.ok_or_else(|| HreError::Answer("an item was stored without a version".to_owned()))?;
            Ok(KvReply { version, ..KvReply::default() })
        }
        KvCommand::RetrieveItem(key, now_s) => {
            let call = ItemCall::get_item(placement, nsid, &pair_key(key)?, now_s, 0, ITEM_HEAD_BYTES as u32);
            let answer = place.call(device, call, buffer, back).await?;
            let mut data = answer.buffer;
            data.truncate((answer.result as usize + ITEM_HEAD_BYTES).min(answer.written as usize));
            let Some(head) = data.first_chunk().map(ItemHead::decode) else {
                return Err(HreError::Answer("an item without a head".to_owned()));
            };
            data.drain(..ItemHead::BYTES);
            Ok(KvReply { result: answer.result, data, version: head.version, expiry: head.expiry })
        }
        KvCommand::DeleteItem(key, version, ItemTerms { now_s, durable, .. }) => {
            let call = ItemCall::delete_item(placement, nsid, &pair_key(key)?, version, now_s, durable);
            place.call(device, call, buffer, out).await.map(reply)
        }
        KvCommand::Touch(key, ItemTerms { expiry, now_s, durable }) => {
            let call = ItemCall::touch(placement, nsid, &pair_key(key)?, expiry, now_s, durable);
            place.call(device, call, buffer, out).await.map(reply)
        }
        KvCommand::Sweep { spu, from, now_s } => {
            place.call(device, ItemCall::sweep(nsid, spu, from, now_s), buffer, out).await.map(reply)
        }
        KvCommand::Clear => place.call_all(device, |spu| ItemCall::clear(nsid, spu)).await.map(reply),
    }
}

/// See [`crate::Hre::kv_store_many`]: in each round a batch for each SPU, all together. What did not fit, or is behind a pair that failed,
/// goes with the next round, so that the pairs of an SPU, and so those of a key, are stored in their order.
pub(crate) async fn kv_store_many(
    device: &impl Direct,
    transfer_bytes_max: u64,
    nsid: u32,
    items: Vec<StoreMany>,
    terms: ItemTerms,
) -> Result<Each<()>, HreError> {
    let place = Place::of(device, nsid).await?;
    let longest = items.iter().map(|item| item.value.len()).max().unwrap_or(0);
    let bytes_max = (longest + BATCH_BYTES).min(transfer_bytes_max as usize);
    let mut outcomes: Each<()> = items.iter().map(|_| Ok(())).collect();
    let mut waiting: Vec<VecDeque<(usize, PairKey)>> = vec![VecDeque::new(); place.view.spus.into()];
    for (index, item) in items.iter().enumerate() {
        match pair_key(item.key) {
            Ok(key) => waiting[usize::from(place.placement.spu(place.placement.hash(&key)))].push_back((index, key)),
            Err(error) => outcomes[index] = Err(error),
        }
    }
    loop {
        let (mut batches, mut futures) = (Vec::new(), Vec::new());
        for (spu, waiting) in (0..).zip(&mut waiting).filter(|(_, waiting)| !waiting.is_empty()) {
            let mut batch = PutBatch::new(spu);
            let mut members = Vec::new();
            while let Some((index, key)) = waiting.front() {
                let item = &items[*index];
                match batch.add(&place.placement, key, &item.value, (item.condition, item.expiry), bytes_max) {
                    Ok(false) => break,
                    Ok(true) => members.extend(waiting.pop_front()),
                    Err(_) => {
                        outcomes[*index] = Err(value_size(item.value.len()));
                        waiting.pop_front();
                    }
                }
            }
            if members.is_empty() {
                continue;
            }
            // What is told lies behind the payload.
            let payload_bytes = batch.payload.len();
            let reply_bytes = (payload_bytes + batch.unmet_bytes()).min(transfer_bytes_max as usize);
            let call = batch.call_past_unmet(nsid, terms.now_s, terms.durable, payload_bytes as u32);
            let payload = std::mem::take(&mut batch.payload);
            let (place, way) = (&place, Way { payload_bytes, reply_bytes });
            futures.push(Box::pin(async move { place.send(device, call, payload, way).await })
                as BoxFuture<'_, Result<Sent, HreError>>);
            batches.push((usize::from(spu), batch, members, payload_bytes));
        }
        if batches.is_empty() {
            return Ok(outcomes);
        }
        for ((spu, batch, members, payload_bytes), sent) in batches.into_iter().zip(together(futures).await) {
            let sent = sent?;
            let reply = sent.buffer.get(payload_bytes..).unwrap_or_default();
            let senseless = || HreError::Answer(format!("a batch of {} pairs made no sense", members.len()));
            let (done, unmet) = batch.unmet(reply, sent.result).ok_or_else(senseless)?;
            for (at, error) in unmet {
                outcomes[members[at].0] = Err(kv_error(error));
            }
            let left = match KeyValueError::from_status(sent.status).map_err(kv_error) {
                Ok(()) if done < members.len() => return Err(senseless()),
                Ok(()) => &[],
                Err(error) if of_the_way(&error) || done == members.len() => return Err(error),
                Err(error) => {
                    outcomes[members[done].0] = Err(error);
                    &members[done + 1..]
                }
            };
            left.iter().rev().for_each(|member| waiting[spu].push_front(*member));
        }
    }
}

/// See [`crate::Hre::kv_retrieve_many`]: a batch for each SPU, and again for what its reply had no room for.
pub(crate) async fn kv_retrieve_many(
    device: &impl Direct,
    transfer_bytes_max: u64,
    nsid: u32,
    keys: Vec<Key>,
    now_s: u32,
) -> Result<Each<Option<Item>>, HreError> {
    let place = Place::of(device, nsid).await?;
    let most = transfer_bytes_max as usize;
    let keys = keys.into_iter().map(pair_key).collect::<Result<Vec<PairKey>, _>>()?;
    let mut outcomes: Each<Option<Item>> = keys.iter().map(|_| Ok(None)).collect();
    let mut waiting: Vec<usize> = (0..keys.len()).collect();
    let mut room = BATCH_ROOM_BYTES;
    while !waiting.is_empty() {
        let mut longest = 0;
        let mut batches = GetBatch::sort(&place.placement, &keys, std::mem::take(&mut waiting));
        let mut futures = Vec::new();
        for batch in batches.iter_mut().take(TOGETHER_MAX) {
            // The reply lies behind the payload, since the one is still read when the other is written.
            let payload_bytes = batch.payload.len();
            let reply_bytes = (payload_bytes + room).min(most);
            let call = batch.call(nsid, now_s, payload_bytes as u32);
            let payload = std::mem::take(&mut batch.payload);
            let (place, way) = (&place, Way { payload_bytes, reply_bytes });
            let called = async move { (way, place.call(device, call, payload, way).await) };
            futures.push(Box::pin(called) as BoxFuture<'_, (Way, Result<Sent, HreError>)>);
        }
        let sent = together(futures).await;
        waiting.extend(batches[sent.len()..].iter().flat_map(|batch| &batch.members));
        for (batch, (Way { payload_bytes, reply_bytes }, sent)) in batches.iter().zip(sent) {
            let sent = sent?;
            let reply = &sent.buffer[payload_bytes.min(sent.buffer.len())..];
            let count = (sent.result as usize).min(batch.members.len());
            let answers = batch.answers(reply, count as u32).filter(|answers| !answers.is_empty());
            let answers = answers.ok_or_else(|| HreError::Answer("a batch that brought nothing".to_owned()))?;
            for (member, gotten) in answers {
                match gotten {
                    Gotten::Found(ItemHead { version, expiry, .. }, value) => {
                        outcomes[member] = Ok(Some(Item { value, version, expiry }));
                    }
                    Gotten::Failed(KeyValueError::NotFound) => {}
                    Gotten::Failed(error) => outcomes[member] = Err(kv_error(error)),
                    Gotten::TooLong(head) if reply_bytes < most => {
                        longest = longest.max(head.value_bytes as usize);
                        waiting.push(member);
                    }
                    Gotten::TooLong(head) => outcomes[member] = Err(value_size(head.value_bytes as usize)),
                }
            }
            waiting.extend(&batch.members[count..]);
        }
        room = room.max(2 * longest + BATCH_ROOM_BYTES);
    }
    Ok(outcomes)
}

/// See [`crate::Hre::kv_scan`].
pub(crate) async fn kv_scan(
    device: &impl Direct,
    nsid: u32,
    range: KeyRange,
    at: Option<ScanCursor>,
) -> Result<ScanPage, HreError> {
    let place = Place::of(device, nsid).await?;
    let bound = |key: Key| if key == Key::EMPTY { Ok(None) } else { pair_key(key).map(Some) };
    let (mut scan, call) = match at {
        Some(ScanCursor(ScanPlace::InApp(place))) => *place,
        Some(ScanCursor(ScanPlace::Listed(_))) => {
            return Err(HreError::Argument("a scan goes on at the endpoint where it began".to_owned()));
        }
        None => {
            let (from, to) = (bound(range.from)?, bound(range.to)?);
            match KeyScan::start(place.placement, nsid, from.as_ref(), to.as_ref()) {
                (scan, ScanStep::Call(call)) => (scan, call),
                (_, ScanStep::Done) => return Ok(ScanPage::default()),
            }
        }
    };
    let sent = place.call(device, call, Vec::new(), Way { payload_bytes: 0, reply_bytes: SCAN_BYTES }).await?;
    let reply = &sent.buffer[..(sent.result as usize).min(sent.written as usize).min(sent.buffer.len())];
    let senseless = || HreError::Answer("a scan that makes no sense".to_owned());
    let (keys, step) = scan.answered(reply).ok_or_else(senseless)?;
    let next = match step {
        ScanStep::Call(call) => Some(ScanCursor(ScanPlace::InApp(Box::new((scan, call))))),
        ScanStep::Done => None,
    };
    Ok(ScanPage { keys: keys.iter().map(|key| key.as_bytes().to_vec()).collect(), next })
}
