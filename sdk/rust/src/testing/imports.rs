//! The imports as handlers call them, over one SPU of the mock device.

use std::string::String;
use std::vec;
use std::vec::Vec;

use super::host::{LiteralSet, Move, Pending, Rpc, SpuHost, Work, code};
use super::{Action, PendingRequest, Region, Requester};
use crate::native::Host;
use crate::sys::{DIFFERENT, DONE, GOES_ON, PENDING, REGION_PENDING, port};
use crate::{
    Error, KEY_BYTES_MAX, LITERAL_BYTES_MAX, LITERAL_SET_BYTES_MAX, LITERALS_MAX, MATCHES_MAX, RPC_BODY_BYTES_MAX,
    Response, SEARCH_BYTES_MAX,
};

/// Most sets of literals of an app on an SPU.
const LITERAL_SETS_MAX: i32 = 16;

/// Writes to a handler's memory.
///
/// # Safety
/// `to` has room for `bytes`.
unsafe fn give(to: *mut u8, bytes: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Reads a handler's memory.
///
/// # Safety
/// `from` has that many bytes.
unsafe fn taken(from: *const u8, bytes: u32) -> String {
    // SAFETY: as the caller promises.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(from, bytes as usize) }).into_owned()
}

impl Host for SpuHost {
    unsafe fn request_info(&mut self, token: u32, to: *mut u8) {
        let shared = self.shared.borrow();
        let request = shared.requests.get(&token).expect("a request that the handler serves");
        let words = [
            request.originating_hre,
            request.source,
            request.body.len() as u32,
            request.reply.len() as u32,
            request.handler,
            request.argument_bytes,
            0,
            0,
        ];
        // SAFETY: there is room for 32 bytes.
        unsafe { give(to, words.map(u32::to_le_bytes).as_flattened()) };
    }

    unsafe fn receive_bytes(&mut self, token: u32, to: *mut u8, bytes: u32) -> i32 {
        let from = {
            let mut shared = self.shared.borrow_mut();
            let request = shared.requests.get_mut(&token).expect("a request that the handler serves");
            let from = request.received;
            request.received += bytes.min((request.body.len() as u32).saturating_sub(from));
            from
        };
        // SAFETY: as the caller promises.
        unsafe { self.receive_bytes_at(token, from, to, bytes) }
    }

    unsafe fn receive_bytes_at(&mut self, token: u32, offset: u32, to: *mut u8, bytes: u32) -> i32 {
        let shared = self.shared.borrow();
        let request = shared.requests.get(&token).expect("a request that the handler serves");
        let left = request.body.get(offset as usize..).unwrap_or_default();
        let count = left.len().min(bytes as usize);
        // SAFETY: there is room for `bytes`, which are no fewer.
        unsafe { give(to, &left[..count]) };
        count as i32
    }

    fn respond(&mut self, token: u32, status: u32, result: u32) {
        let mut shared = self.shared.borrow_mut();
        let request = shared.requests.get_mut(&token).expect("a request that the handler serves");
        assert!(request.response.is_none(), "a request was answered twice");
        request.response = Some(Response { status, result });
        if request.operations == 0 {
            shared.actions.push(Action::Respond { token });
        }
    }

    unsafe fn dma(
        &mut self,
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32 {
        let piece = Move {
            source: (source_port & !(port::PARK | port::NOW), source_address),
            destination: (destination_port & !port::PARK, destination_address),
            bytes: bytes as usize,
        };
        if source_port & port::NOW != 0 {
            return self.move_now(token, piece);
        }
        self.move_all(token, wait, vec![piece])
    }

    unsafe fn dma_strided(
        &mut self,
        token: u32,
        source_port: u32,
        source_address: u64,
        source_stride: i64,
        destination_port: u32,
        destination_address: u64,
        destination_stride: i64,
        segment_bytes: u32,
        segments: u32,
        wait: u32,
    ) -> i32 {
        let moved = |address: u64, stride: i64, segment: u32| {
            stride.checked_mul(segment.into()).and_then(|moved| address.checked_add_signed(moved))
        };
        let mut moves = Vec::new();
        for segment in 0..segments {
            let source = moved(source_address, source_stride, segment);
            let destination = moved(destination_address, destination_stride, segment);
            let (Some(source), Some(destination)) = (source, destination) else { return Error::Range.code() };
            moves.push(Move {
                source: (source_port & !port::PARK, source),
                destination: (destination_port & !port::PARK, destination),
                bytes: segment_bytes as usize,
            });
        }
        self.move_all(token, wait, moves)
    }

    fn compare(&mut self, token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32 {
        let bytes = bytes as usize;
        let checked = self
            .check(token, port::NV, nv_address, bytes, false)
            .and_then(|()| self.check(token, port::NETWORK, body_offset, bytes, false));
        if let Err(error) = checked {
            return error.code();
        }
        match self.issue(Some(token), wait, Work::Compare { nv: nv_address, body: body_offset, bytes }) {
            Some(0) => DONE,
            Some(_) => DIFFERENT,
            None => PENDING,
        }
    }

    unsafe fn checksum(&mut self, token: u32, from: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32 {
        let bytes = bytes as usize;
        if let Err(error) = self.check(token, from, address, bytes, false) {
            return error.code();
        }
        match self.issue(Some(token), wait, Work::Checksum { source: (from, address), bytes, seed }) {
            Some(value) => {
                self.checksum = value as u32;
                DONE
            }
            None => PENDING,
        }
    }

    fn checksum_value(&mut self) -> u32 {
        self.checksum
    }

    unsafe fn literals_load(&mut self, literals: *const u8, bytes: u32, flags: u32) -> i32 {
        if bytes as usize > LITERAL_SET_BYTES_MAX || flags & !0xff03 != 0 || (flags & 2 == 0 && flags >> 8 != 0) {
            return Error::Argument.code();
        }
        // SAFETY: as the caller promises.
        let mut left = unsafe { std::slice::from_raw_parts(literals, bytes as usize) };
        let mut literals = Vec::new();
        while let Some((length, rest)) = left.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            let Some((literal, rest)) = rest.split_at_checked(length) else { return Error::Argument.code() };
            if length == 0 || length > LITERAL_BYTES_MAX || literals.len() == LITERALS_MAX {
                return Error::Argument.code();
            }
            literals.push(literal.to_vec());
            left = rest;
        }
        if !left.is_empty() || literals.is_empty() {
            return Error::Argument.code();
        }
        let Some(handle) = (1..=LITERAL_SETS_MAX).find(|handle| !self.literals.contains_key(handle)) else {
            return Error::Full.code();
        };
        let lines = (flags & 2 != 0).then_some((flags >> 8) as u8);
        self.literals.insert(handle, LiteralSet { literals, ignore_case: flags & 1 != 0, lines });
        handle
    }

    unsafe fn literals_find(
        &mut self,
        token: u32,
        set: i32,
        from: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: *mut u8,
        most: u32,
        wait: u32,
    ) -> i32 {
        let Some(set) = self.literals.get(&set).cloned() else { return Error::Argument.code() };
        if most as usize > MATCHES_MAX || state > 1 {
            return Error::Argument.code();
        }
        let (from, bytes) = (from & !port::PARK, bytes.min(SEARCH_BYTES_MAX) as usize);
        if from == port::ZEROES {
            return Error::Argument.code();
        }
        if let Err(error) = self.check(token, from, address, bytes, false) {
            return error.code();
        }
        let work = Work::Literals { source: (from, address), bytes, set, state, to, most };
        if self.issue(Some(token), wait, work).is_some() { DONE } else { PENDING }
    }

    unsafe fn keys_find(
        &mut self,
        token: u32,
        from: u32,
        address: u64,
        key_bytes: u32,
        stride: u32,
        count: u32,
        order: u32,
        key: *const u8,
        wait: u32,
    ) -> i32 {
        let span = if count == 0 { 0 } else { u64::from(count - 1) * u64::from(stride) + u64::from(key_bytes) };
        let from = from & !port::PARK;
        if !(1..=KEY_BYTES_MAX as u32).contains(&key_bytes) || stride < key_bytes || order > 1 || span > 65536 {
            return Error::Argument.code();
        }
        if from == port::ZEROES {
            return Error::Argument.code();
        }
        if let Err(error) = self.check(token, from, address, span as usize, false) {
            return error.code();
        }
        // SAFETY: as the caller promises.
        let key = unsafe { std::slice::from_raw_parts(key, key_bytes as usize) }.to_vec();
        let keys = (key_bytes as usize, stride as usize, count as usize, order);
        let work = Work::Keys { source: (from, address), keys, key };
        self.issue(Some(token), wait, work).map_or(PENDING, |place| place as i32)
    }

    fn literals_free(&mut self, set: i32) -> i32 {
        if self.literals.remove(&set).is_some() { DONE } else { Error::Argument.code() }
    }

    unsafe fn rpc_start(
        &mut self,
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32 {
        let spus = self.shared.borrow().options.spus as i32;
        if !self.shared.borrow().requests.contains_key(&token) || body_bytes > RPC_BODY_BYTES_MAX {
            return Error::Argument.code();
        }
        // The app under test is number 0, and there is no other.
        if !(-1..spus).contains(&destination) || !(-1..=0).contains(&app) {
            return Error::Refused.code();
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let rpc = Rpc { hre: None, token, destination, handler, body_bytes, segments: Vec::new(), reply, reply_bytes };
        self.rpcs.insert(handle, rpc);
        handle
    }

    unsafe fn rpc_append(&mut self, handle: i32, port_number: u32, address: u64, bytes: u32) -> i32 {
        match self.rpcs.get_mut(&handle) {
            Some(rpc) => {
                rpc.segments.push((port_number, address, bytes));
                0
            }
            None => Error::Argument.code(),
        }
    }

    unsafe fn rpc_finish(&mut self, handle: i32, wait: u32) -> i32 {
        let Some(rpc) = self.rpcs.remove(&handle) else { return Error::Argument.code() };
        let body = match self.gather(&rpc) {
            Ok(body) => body,
            Err(error) => return error.code(),
        };
        let Some(hre) = self.shared.borrow().requests.get(&rpc.token).map(|request| request.originating_hre) else {
            return Error::Argument.code();
        };
        if rpc.destination < 0 {
            return self.upcall(&rpc, rpc.hre.unwrap_or(hre), body, wait);
        }
        self.shared.borrow_mut().request(PendingRequest {
            spu: rpc.destination as u32,
            handler: rpc.handler,
            source: self.spu,
            originating_hre: hre,
            argument_bytes: 0,
            body,
            reply: vec![0; rpc.reply_bytes as usize],
            requester: Requester::Handler { spu: self.spu, wait, reply: rpc.reply },
            received: 0,
            operations: 0,
            response: None,
        });
        PENDING
    }

    fn upcall_start(&mut self, token: u32, hre: u32, kind: u32, body_bytes: u32) -> i32 {
        if !self.shared.borrow().requests.contains_key(&token) || body_bytes > RPC_BODY_BYTES_MAX {
            return Error::Argument.code();
        }
        if !self.shared.borrow().subscribers.contains(&(hre, kind)) {
            return Error::Permission.code();
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let (destination, reply) = (-1, std::ptr::null_mut());
        let (hre, segments) = (Some(hre), Vec::new());
        let rpc = Rpc { hre, token, destination, handler: kind, body_bytes, segments, reply, reply_bytes: 0 };
        self.rpcs.insert(handle, rpc);
        handle
    }

    unsafe fn subscribers(&mut self, kind: u32, after: u32, to: *mut u8, most: u32) -> i32 {
        let shared = self.shared.borrow();
        let behind = shared.subscribers.iter().filter(|(hre, of)| *of == kind && *hre > after);
        let ids: Vec<u8> = behind.take(most as usize).flat_map(|(hre, _)| hre.to_le_bytes()).collect();
        // SAFETY: there is room for `most` ids.
        unsafe { give(to, &ids) };
        (ids.len() / 4) as i32
    }

    unsafe fn app_number(&mut self, name: *const u8, bytes: u32) -> i32 {
        // SAFETY: as the caller promises.
        let name = unsafe { taken(name, bytes) };
        if self.shared.borrow().app_name == name { 0 } else { Error::NotFound.code() }
    }

    fn region(&mut self, id: u32, bytes: u64, wait: u32) -> i64 {
        let value = {
            let mut shared = self.shared.borrow_mut();
            match shared.regions.iter().find(|region| region.id == Some(id)) {
                Some(region) => region.base as i64,
                None if bytes == 0 => code(Error::NotFound),
                None => match shared.place(bytes) {
                    Some(base) => {
                        let bytes = bytes.next_multiple_of(crate::REGION_ALIGNMENT_BYTES);
                        shared.regions.push(Region { id: Some(id), base, bytes });
                        base as i64
                    }
                    None => code(Error::Full),
                },
            }
        };
        self.issue(None, wait, Work::Value(value)).unwrap_or(REGION_PENDING)
    }

    fn region_bytes(&mut self, id: u32) -> i64 {
        let shared = self.shared.borrow();
        shared
            .regions
            .iter()
            .find(|region| region.id == Some(id))
            .map_or(code(Error::NotFound), |region| region.bytes as i64)
    }

    fn region_free(&mut self, id: u32, wait: u32) -> i32 {
        {
            // Its place is free for others once all banks are zeroed, before the next thing happens.
            let mut shared = self.shared.borrow_mut();
            let found = shared.regions.iter_mut().find(|region| region.id == Some(id));
            match found {
                Some(region) => region.id = None,
                None => return Error::NotFound.code(),
            }
        }
        match self.issue(None, wait, Work::Value(0)) {
            Some(_) => DONE,
            None => PENDING,
        }
    }

    unsafe fn namespace(&mut self, nsid: u32, to: *mut u8) -> i32 {
        let Some(found) = self.shared.borrow().namespaces.get(&nsid).copied() else { return Error::NotFound.code() };
        let kinds = u64::from(found.block_bytes) << 32 | u64::from(found.command_set);
        let words = [found.base, found.bank_bytes, kinds, found.blocks];
        // SAFETY: there is room for 32 bytes.
        unsafe { give(to, words.map(u64::to_le_bytes).as_flattened()) };
        DONE
    }

    fn flush(&mut self, wait: u32) -> i32 {
        let until = self.bank.written;
        match self.issue(None, wait, Work::Flush { until }) {
            Some(_) => DONE,
            None => PENDING,
        }
    }

    fn sleep(&mut self, duration_ns: u64, wait: u32) -> i32 {
        let mut shared = self.shared.borrow_mut();
        let until_ns = shared.time_ns.saturating_add(duration_ns);
        shared.sleeps_begun += 1;
        let order = shared.sleeps_begun;
        if duration_ns == 0 {
            shared.actions.push(Action::Complete { spu: self.spu, operation: Pending::value(wait, 0) });
        } else {
            shared.sleeps.insert((until_ns, order), (self.spu, wait));
        }
        PENDING
    }

    fn cancel(&mut self, token: u32, wait: u32) -> i32 {
        let spu = self.spu;
        let mut shared = self.shared.borrow_mut();
        if !shared.requests.contains_key(&token) {
            return Error::Argument.code();
        }
        let sleeps = shared.sleeps.iter().find(|(_, of)| **of == (spu, wait)).map(|(key, _)| *key);
        let sleeps = sleeps.and_then(|key| shared.sleeps.remove(&key)).is_some();
        // A request of its own goes on, and its answer is nobody's.
        let of_it = |request: &&mut PendingRequest| matches!(request.requester, Requester::Handler { spu: of, wait: number, .. } if (of, number) == (spu, wait));
        let asked = shared.requests.values_mut().find(of_it).map(|request| request.requester = Requester::Nobody);
        if !sleeps && asked.is_none() {
            return GOES_ON;
        }
        let operation = Pending::value(wait, code(Error::Cancelled));
        shared.actions.push(Action::Complete { spu, operation });
        DONE
    }

    fn background(&mut self, handler: u32, argument: u64) -> i32 {
        if !(1..=255).contains(&handler) {
            return Error::Argument.code();
        }
        self.shared.borrow_mut().request(PendingRequest {
            spu: self.spu,
            handler,
            source: self.spu,
            originating_hre: 0,
            argument_bytes: 8,
            body: argument.to_le_bytes().to_vec(),
            reply: Vec::new(),
            requester: Requester::Nobody,
            received: 0,
            operations: 0,
            response: None,
        });
        DONE
    }

    fn spu_id(&mut self) -> u32 {
        self.spu
    }

    fn spu_count(&mut self) -> u32 {
        self.shared.borrow().options.spus
    }

    fn time_ns(&mut self) -> u64 {
        self.shared.borrow().time_ns
    }

    unsafe fn print(&mut self, text: *const u8, bytes: u32) {
        // SAFETY: as the caller promises.
        self.serial.push_str(&unsafe { taken(text, bytes) });
    }

    fn count(&mut self, counter: u32, delta: i64) {
        let counter = self.counters.get_mut(counter as usize).expect("counters are 0 to 15");
        *counter = counter.wrapping_add(delta);
    }

    // The app under test serves no banks: the flash port is not for it.
    unsafe fn flash_geometry(&mut self, _: *mut u8) -> i32 {
        Error::Permission.code()
    }
    unsafe fn flash_bad_blocks(&mut self, _: u32, _: *mut u8, _: u32) -> i32 {
        Error::Permission.code()
    }
    unsafe fn flash_read(
        &mut self,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: u64,
        _: *mut u8,
        _: u32,
        _: u32,
    ) -> i32 {
        Error::Permission.code()
    }
    unsafe fn flash_program(&mut self, _: u32, _: *const u8, _: u32, _: u32) -> i32 {
        Error::Permission.code()
    }
    unsafe fn flash_erase(&mut self, _: u32, _: *const u8, _: u32, _: u32) -> i32 {
        Error::Permission.code()
    }
    fn flash_zero_peer(&mut self, _: u32, _: u64, _: u32) -> i32 {
        Error::Permission.code()
    }
    fn flash_pause(&mut self, _: u32) -> i32 {
        Error::Permission.code()
    }
    unsafe fn flash_minimum(&mut self, _: *const u8, _: u32) -> i32 {
        Error::Permission.code()
    }
}
