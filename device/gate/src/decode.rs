//! What each import of [`crate::table`] asks SPU-OS for: its arguments become an operation, or an error where there can be no such operation.
//! What needs nothing of SPU-OS but a number that it has is answered here.
//!
//! Invariant: the sandbox and the native shims call these and nothing else, so that an app does the same in both, and in a unit test.
#![allow(missing_docs, reason = "[`crate::table`] describes the imports")]

use crate::decompress::{Decompress, SNAPPY};
use crate::hre::HreId;
use crate::keys::Layout;
use crate::literals::{FOUND_MAX, SEARCH_BYTES_MAX, SET_BYTES_MAX};
use crate::numbers::{MultiplyAdd, Number, Transform};
use crate::{
    Append, Checksum, Compare, Dma, Draft, End, Fault, FlashOperation, FlashRead, KeySearch, LiteralSearch,
    LocalMemory, Operation, Port, Receive, Receiver, RemoteDma, SpuOs, abi,
};

/// An import that is being carried out: who calls, the caller's memory, SPU-OS.
pub struct Call<'a, Os: SpuOs, M> {
    pub caller: Os::Caller,
    pub memory: &'a mut M,
    pub os: &'a mut Os,
}

/// A DMA's port without what an app adds to its number, and whether it parks where it misses a permission.
#[inline(always)]
fn port(number: u32) -> (Option<Port>, bool) {
    (Port::of(number & !abi::PORT_PARK), number & abi::PORT_PARK != 0)
}

/// The SPU whose NV memory a port is by its number, where it is.
fn spu_of_port(number: u32) -> Option<u16> {
    let spus = number.checked_sub(abi::PORT_NV)?;
    (spus > 0 && spus.is_multiple_of(abi::PORT_SPU)).then(|| u16::try_from(spus / abi::PORT_SPU - 1).ok())?
}

/// An accelerator's port: where bytes are. They do not park.
#[inline]
fn operand(number: u32) -> Option<Port> {
    port(number).0.filter(|port| !matches!(port, Port::Zero | Port::Nothing))
}

/// The number of a handler, or of a kind of upcalls: 1 to 255.
#[inline]
fn handler(number: u32) -> Option<u8> {
    u8::try_from(number).ok().filter(|number| *number > 0)
}

impl<Os: SpuOs, M: LocalMemory> Call<'_, Os, M> {
    /// Asks for what requests are made of.
    #[inline(always)]
    fn ask(self, operation: Operation) -> Result<i32, Fault> {
        crate::ask(self.os, self.caller, self.memory, operation).map(|answer| answer as i32)
    }

    /// Asks for anything else.
    #[inline]
    fn ask_seldom(self, operation: Operation) -> Result<i32, Fault> {
        crate::ask_seldom(self.os, self.caller, self.memory, operation).map(|answer| answer as i32)
    }

    #[inline]
    pub fn request_info(self, token: u32, to: u64) -> Result<(), Fault> {
        self.ask_seldom(Operation::Info { token, to }).map(|_| ())
    }

    #[inline]
    pub fn receive_bytes(self, token: u32, to: u64, bytes: u32) -> Result<i32, Fault> {
        self.ask(Operation::Receive(Receive { token, offset: None, to, bytes }))
    }

    #[inline]
    pub fn receive_bytes_at(self, token: u32, offset: u32, to: u64, bytes: u32) -> Result<i32, Fault> {
        self.ask(Operation::Receive(Receive { token, offset: Some(offset), to, bytes }))
    }

    #[inline]
    pub fn respond(self, token: u32, status: u32, result: u32) -> Result<(), Fault> {
        self.ask(Operation::Respond { token, status, result }).map(|_| ())
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn dma(
        self,
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let (now, number) = (source_port & abi::PORT_NOW != 0, source_port & !abi::PORT_NOW);
        let ((source, source_parks), (destination, destination_parks)) = (port(number), port(destination_port));
        let (Some(source), Some(destination)) = (source, destination) else {
            let ends = ((source_port, source_address), (destination_port, destination_address));
            return self.remote_dma(token, ends, bytes, wait);
        };
        let source = End { port: source, address: source_address, stride: 0 };
        let destination = End { port: destination, address: destination_address, stride: 0 };
        let parks = source_parks || destination_parks;
        let dma = Dma { token, source, destination, segment_bytes: bytes, segments: 1, parks, wait };
        match dma.is_sound() {
            true if !now => self.ask(Operation::Dma(dma)),
            true if dma.is_read() && !parks => self.ask(Operation::DmaNow(dma)),
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    /// `dma` where one port is another SPU's NV memory. The own SPU's by that number is the own bank.
    #[cold]
    fn remote_dma(
        self,
        token: u32,
        (source, destination): ((u32, u64), (u32, u64)),
        bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let end = |(number, address): (u32, u64)| match spu_of_port(number) {
            Some(spu) => Some((End { port: Port::Nv, address, stride: 0 }, Some(spu))),
            None => Port::of(number).map(|port| (End { port, address, stride: 0 }, None)),
        };
        let (Some((source, of_source)), Some((destination, of_destination))) = (end(source), end(destination)) else {
            return Ok(abi::ERROR_ARGUMENT);
        };
        let dma = Dma { token, source, destination, segment_bytes: bytes, segments: 1, parks: false, wait };
        match (of_source, of_destination) {
            (Some(spu), None) | (None, Some(spu)) if spu == Os::spu_of(self.caller) && dma.is_sound() => {
                self.ask_seldom(Operation::Dma(dma))
            }
            (Some(spu), None) | (None, Some(spu)) => {
                let remote = RemoteDma { spu, dma };
                match remote.is_sound(self.os.spus()) {
                    true => self.ask_seldom(Operation::RemoteDma(remote)),
                    false => Ok(abi::ERROR_ARGUMENT),
                }
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn dma_strided(
        self,
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
    ) -> Result<i32, Fault> {
        let ((source, source_parks), (destination, destination_parks)) = (port(source_port), port(destination_port));
        let (Some(source), Some(destination)) = (source, destination) else { return Ok(abi::ERROR_ARGUMENT) };
        let source = End { port: source, address: source_address, stride: source_stride };
        let destination = End { port: destination, address: destination_address, stride: destination_stride };
        // Segments without bytes are all the same nothing.
        let segments = if segment_bytes == 0 { segments.min(1) } else { segments };
        let parks = source_parks || destination_parks;
        let dma = Dma { token, source, destination, segment_bytes, segments, parks, wait };
        if dma.is_sound() { self.ask(Operation::Dma(dma)) } else { Ok(abi::ERROR_ARGUMENT) }
    }

    pub fn compare(self, token: u32, address: u64, body_offset: u64, bytes: u32, wait: u32) -> Result<i32, Fault> {
        if bytes as usize > abi::BOUNCE_BYTES_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        self.ask_seldom(Operation::Compare(Compare { token, address, body_offset, bytes, wait }))
    }

    pub fn checksum(self, token: u32, from: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> Result<i32, Fault> {
        match operand(from) {
            Some(port) if bytes as usize <= abi::BOUNCE_BYTES_MAX => {
                self.ask_seldom(Operation::Checksum(Checksum { token, port, address, bytes, seed, wait }))
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    pub fn checksum_value(self) -> Result<u32, Fault> {
        Ok(self.os.checksum_value(self.caller))
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn rpc_start(
        self,
        token: u32,
        destination: i32,
        app: i32,
        number: u32,
        body_bytes: u32,
        reply_pointer: u64,
        reply_bytes: u32,
    ) -> Result<i32, Fault> {
        if body_bytes > abi::MESSAGE_BYTES_MAX || reply_bytes > abi::MESSAGE_BYTES_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let Some(handler) = handler(number) else { return Ok(abi::ERROR_ARGUMENT) };
        let app = if app == -1 { Os::app_of(self.caller) } else { app as u16 };
        let to = match u16::try_from(destination) {
            Ok(spu) => Receiver::Spu(spu, app),
            Err(_) if destination == -1 => Receiver::Originating,
            Err(_) => return Ok(abi::ERROR_REFUSED),
        };
        self.memory.slice(reply_pointer, reply_bytes as usize)?;
        self.ask_seldom(Operation::Draft(Draft { token, to, handler, body_bytes, reply_pointer, reply_bytes }))
    }

    pub fn rpc_append(self, handle: i32, port: u32, address: u64, bytes: u32) -> Result<i32, Fault> {
        // From where nothing can be appended is refused with the message.
        let port = Port::of(port).unwrap_or(Port::Zero);
        self.ask_seldom(Operation::Append(Append { handle, port, address, bytes }))
    }

    pub fn rpc_finish(self, handle: i32, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Post { handle, wait })
    }

    pub fn subscribers(self, kind: u32, after: u32, to: u64, most: u32) -> Result<i32, Fault> {
        let Some(kind) = handler(kind) else { return Ok(abi::ERROR_ARGUMENT) };
        self.ask_seldom(Operation::Subscribers { kind, after: HreId(after), to, most })
    }

    pub fn upcall_start(self, token: u32, hre: u32, kind: u32, body_bytes: u32) -> Result<i32, Fault> {
        let Some(kind) = handler(kind).filter(|_| body_bytes <= abi::MESSAGE_BYTES_MAX) else {
            return Ok(abi::ERROR_ARGUMENT);
        };
        let to = Receiver::Subscriber(HreId(hre));
        let draft = Draft { token, to, handler: kind, body_bytes, reply_pointer: 0, reply_bytes: 0 };
        self.ask_seldom(Operation::Draft(draft))
    }

    pub fn app_number(self, name: u64, bytes: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::AppNumber { name, bytes })
    }

    pub fn region(self, id: u32, bytes: u64, wait: u32) -> Result<i64, Fault> {
        crate::ask_seldom(self.os, self.caller, self.memory, Operation::Region { id, bytes, wait })
    }

    pub fn region_bytes(self, id: u32) -> Result<i64, Fault> {
        crate::ask_seldom(self.os, self.caller, self.memory, Operation::RegionBytes { id })
    }

    pub fn region_free(self, id: u32, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::FreeRegion { id, wait })
    }

    pub fn namespace(self, nsid: u32, to: u64) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Namespace { nsid, to })
    }

    pub fn flush(self, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flush { wait })
    }

    pub fn literals_load(self, literals: u64, bytes: u32, flags: u32) -> Result<i32, Fault> {
        if bytes > SET_BYTES_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        self.ask_seldom(Operation::LoadLiterals { literals, bytes, flags })
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn literals_find(
        self,
        token: u32,
        set: i32,
        from: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: u64,
        most: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        // Searches go no further than one may.
        let (port, bytes) = (operand(from), bytes.min(SEARCH_BYTES_MAX));
        match port {
            Some(port) if most <= FOUND_MAX && state <= 1 => {
                let search = LiteralSearch { token, set, port, address, bytes, state, to, most, wait };
                self.ask_seldom(Operation::FindLiterals(search))
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn keys_find(
        self,
        token: u32,
        from: u32,
        address: u64,
        key_bytes: u32,
        stride_bytes: u32,
        count: u32,
        order: u32,
        key: u64,
        wait: u32,
    ) -> Result<i32, Fault> {
        match (operand(from), Layout::new(key_bytes, stride_bytes, count, order)) {
            (Some(port), Some(layout)) => {
                self.ask_seldom(Operation::FindKey(KeySearch { token, port, address, layout, key, wait }))
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn multiply_add(
        self,
        token: u32,
        number_bytes: u32,
        alpha: u64,
        x: u64,
        y: u64,
        count: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let Some(number) = Number::of_bytes(number_bytes) else { return Ok(abi::ERROR_ARGUMENT) };
        let asked = MultiplyAdd { token, number, alpha, x, y, count, wait };
        if asked.is_sound() { self.ask_seldom(Operation::MultiplyAdd(asked)) } else { Ok(abi::ERROR_ARGUMENT) }
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn fft(
        self,
        token: u32,
        number_bytes: u32,
        inverse: u32,
        data: u64,
        count: u32,
        rows: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let Some(number) = Number::of_bytes(number_bytes) else { return Ok(abi::ERROR_ARGUMENT) };
        let transform = Transform { token, number, inverse: inverse == 1, data, count, rows, wait };
        match transform.is_sound() && inverse <= 1 {
            true => self.ask_seldom(Operation::Transform(transform)),
            false => Ok(abi::ERROR_ARGUMENT),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn decompress(
        self,
        token: u32,
        codec: u32,
        from: u64,
        bytes: u32,
        to: u64,
        to_bytes: u32,
        state: u64,
        wait: u32,
    ) -> Result<i32, Fault> {
        let asked = Decompress { token, from, bytes, to, to_bytes, state, wait };
        match codec == SNAPPY && asked.is_sound() {
            true => self.ask_seldom(Operation::Decompress(asked)),
            false => Ok(abi::ERROR_ARGUMENT),
        }
    }

    pub fn literals_free(self, set: i32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::FreeLiterals { set })
    }

    pub fn sleep(self, duration_ns: u64, wait: u32) -> Result<i32, Fault> {
        if duration_ns > abi::SLEEP_NS_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        self.ask_seldom(Operation::Sleep { duration_ns, wait })
    }

    pub fn cancel(self, token: u32, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Cancel { token, wait })
    }

    pub fn background(self, number: u32, argument: u64) -> Result<i32, Fault> {
        let Some(handler) = handler(number) else { return Ok(abi::ERROR_ARGUMENT) };
        self.ask_seldom(Operation::Background { handler, argument })
    }

    pub fn spu_id(self) -> Result<u32, Fault> {
        Ok(Os::spu_of(self.caller).into())
    }

    pub fn spu_count(self) -> Result<u32, Fault> {
        Ok(self.os.spus())
    }

    pub fn time_ns(self) -> Result<u64, Fault> {
        Ok(self.os.now_ns())
    }

    pub fn print(self, text: u64, bytes: u32) -> Result<(), Fault> {
        let bytes = bytes.min(abi::PRINT_BYTES_MAX);
        self.ask_seldom(Operation::Print { text, bytes }).map(|_| ())
    }

    pub fn count(self, counter: u32, delta: i64) -> Result<(), Fault> {
        self.ask(Operation::Count { counter, delta }).map(|_| ())
    }

    pub fn flash_geometry(self, to: u64) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::Geometry { to }))
    }

    pub fn flash_bad_blocks(self, die: u32, to: u64, most: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::BadBlocks { die, to, most }))
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn flash_read(
        self,
        die: u32,
        block: u32,
        page: u32,
        offset: u32,
        bytes: u32,
        peer: u32,
        to: u64,
        spare: u64,
        spare_bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let read = FlashRead { die, block, page, offset, bytes, peer, to, spare, spare_bytes, wait };
        self.ask(Operation::Flash(FlashOperation::Read(read)))
    }

    pub fn flash_program(self, die: u32, pages: u64, count: u32, wait: u32) -> Result<i32, Fault> {
        self.ask(Operation::Flash(FlashOperation::Program { die, pages, count, wait }))
    }

    pub fn flash_erase(self, die: u32, blocks: u64, count: u32, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::Erase { die, blocks, count, wait }))
    }

    pub fn flash_zero_peer(self, peer: u32, offset: u64, bytes: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::ZeroPeer { peer, offset, bytes }))
    }

    pub fn flash_minimum(self, numbers: u64, count: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::Minimum { numbers, count }))
    }

    pub fn flash_health(self, spare_percent: u32, media_errors: u64, read_only: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::Health { spare_percent, media_errors, read_only }))
    }

    pub fn flash_read_map(self, lanes: u64, count: u32, corrected_bits_max: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::ReadMap { lanes, count, corrected_bits_max }))
    }

    pub fn flash_pause(self, wait: u32) -> Result<i32, Fault> {
        self.ask_seldom(Operation::Flash(FlashOperation::Pause { wait }))
    }
}
