//! What a handler does with the table, as tests call it: each with a request of its own.

use super::*;

pub async fn put(
    world: &Rc<World>,
    table: &Table,
    id: &PairId,
    value: &[u8],
    condition: Condition,
) -> Result<(), Failure> {
    put_until(world, table, id, value, condition, 0).await.map(drop)
}

/// A put with an expiry; the new version.
pub async fn put_until(
    world: &Rc<World>,
    table: &Table,
    id: &PairId,
    value: &[u8],
    condition: Condition,
    expiry: u32,
) -> Result<u64, Failure> {
    let request = world.request(value, 0);
    let put = Put { value_bytes: value.len() as u32, condition, expiry };
    let store = table.enter(&request, NSID).await?;
    match (expiry, condition) {
        (0, Condition::Always | Condition::IfExists | Condition::IfAbsent) => {
            store.put::<_, false>(&request, id, put).await
        }
        _ => store.put::<_, true>(&request, id, put).await,
    }
}

/// The value with what is known of it.
pub async fn get_item(world: &Rc<World>, table: &Table, id: &PairId) -> Result<(Vec<u8>, Found), Failure> {
    find_part(world, table, id, 0, 5 << 20).await
}

pub async fn touch(world: &Rc<World>, table: &Table, id: &PairId, expiry: u32) -> Result<Found, Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.touch(&request, id, expiry).await
}

pub async fn tell(world: &Rc<World>, table: &Table, now_s: u32) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.tell_time(now_s);
    Ok(())
}

/// Sweeps all.
pub async fn sweep(world: &Rc<World>, table: &Table) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    let mut from = 0;
    loop {
        from = table.enter(&request, NSID).await?.sweep(&request, from).await?;
        if from == 0 {
            return Ok(());
        }
    }
}

pub async fn clear(world: &Rc<World>, table: &Table) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.clear(&request).await
}

/// Keys of a range, in calls with so much room each, and how many calls that were.
pub async fn scan(
    world: &Rc<World>,
    table: &Table,
    range: &KeyRange,
    reply_bytes: usize,
) -> Result<(Vec<Vec<u8>>, u32), Failure> {
    let mut from = PairId { hash: 0, key: [0; KEY_BYTES_MAX], key_bytes: 0 };
    let (mut keys, mut calls) = (Vec::new(), 0);
    loop {
        let request = world.request(&[], reply_bytes);
        let scanned = table.enter(&request, NSID).await?.scan(&request, range, from, 4, reply_bytes as u32).await?;
        calls += 1;
        keys.extend(entries(&request.reply.borrow()[4..], scanned.bytes as usize));
        match scanned.next {
            Some(next) => from = next,
            None => return Ok((keys, calls)),
        }
    }
}

fn entries(reply: &[u8], bytes: usize) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut at = 0;
    while at < bytes {
        let length = usize::from(u16::from_le_bytes([reply[at], reply[at + 1]]));
        keys.push(reply[at + 2..at + 2 + length].to_vec());
        at += wire::list_entry_bytes(length);
    }
    assert_eq!(at, bytes);
    keys
}

pub async fn get(world: &Rc<World>, table: &Table, id: &PairId) -> Result<Vec<u8>, Failure> {
    get_part(world, table, id, 0, 5 << 20).await.map(|(bytes, _)| bytes)
}

pub async fn get_part(
    world: &Rc<World>,
    table: &Table,
    id: &PairId,
    offset: u32,
    room: u32,
) -> Result<(Vec<u8>, u32), Failure> {
    find_part(world, table, id, offset, room).await.map(|(bytes, found)| (bytes, found.value_bytes))
}

async fn find_part(
    world: &Rc<World>,
    table: &Table,
    id: &PairId,
    offset: u32,
    room: u32,
) -> Result<(Vec<u8>, Found), Failure> {
    let request = world.request(&[], 0);
    let length = table.enter(&request, NSID).await?.exists(&request, id).await?;
    // Another value may come between the two: as long as the room was made for the first it is cut off, and asked again.
    let mut room_now = room.min(length.saturating_sub(offset));
    loop {
        let request = world.request(&[], room_now as usize);
        // As the handler does it: at once where that can be, else with waits.
        let at_once = table.at_once(NSID).and_then(|store| store.get_now(&request, id, offset, room_now));
        let found: Found = match at_once {
            Some(outcome) => outcome?,
            None => table.enter(&request, NSID).await?.get(&request, id, offset, room_now).await?,
        };
        let wanted = room.min(found.value_bytes.saturating_sub(offset));
        if wanted <= room_now {
            let mut bytes = request.reply.into_inner();
            bytes.truncate(wanted as usize);
            return Ok((bytes, found));
        }
        room_now = wanted;
    }
}

pub async fn delete(world: &Rc<World>, table: &Table, id: &PairId) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.delete(&request, id, None).await
}

pub async fn flush(world: &Rc<World>, table: &Table) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.flush(&request).await
}

/// Has the namespace opened, and closed in order while nobody changes it; false where somebody did.
pub async fn rest(world: &Rc<World>, table: &Table) -> Result<bool, Failure> {
    let request = world.request(&[], 0);
    drop(table.enter(&request, NSID).await?);
    // What has not changed since the first time is closed.
    table.rest(&request).await;
    Ok(!table.rest(&request).await)
}

pub async fn statistics(world: &Rc<World>, table: &Table) -> Result<wire::Statistics, Failure> {
    let request = world.request(&[], 0);
    Ok(table.enter(&request, NSID).await?.statistics())
}

/// Keys from there on, and whether there are more.
pub async fn list(
    world: &Rc<World>,
    table: &Table,
    from: ListFrom,
    reply_bytes: usize,
) -> Result<(Vec<Vec<u8>>, bool), Failure> {
    let request = world.request(&[], reply_bytes);
    let result = table.enter(&request, NSID).await?.list(&request, from, 0, reply_bytes as u32).await?;
    let bytes = (result & !wire::LIST_MORE) as usize;
    let keys = entries(&request.reply.borrow(), bytes);
    Ok((keys, result & wire::LIST_MORE != 0))
}

/// All keys, listed in pieces.
pub async fn list_all(
    world: &Rc<World>,
    table: &Table,
    spread: bool,
    reply_bytes: usize,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut from = ListFrom::Start;
    loop {
        let (keys, more) = list(world, table, from, reply_bytes).await?;
        all.extend(keys);
        match all.last() {
            Some(last) if more => from = ListFrom::After(id(last, spread)),
            _ => return Ok(all),
        }
    }
}
