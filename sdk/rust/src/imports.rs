//! The imports of docs/abi.md as they are. Generated from the table in device/gate/src/table.rs: see device/tests/interface.rs.
//!
//! Who may call it: `sys`. In a module they are WebAssembly imports; natively they go to the [`Host`] that runs the handler.

/// The version of the interface.
pub const ABI_VERSION: u32 = 2;

#[cfg(target_arch = "wasm32")]
mod linked;
#[cfg(target_arch = "wasm32")]
pub use linked::*;

/// What carries out the imports natively. A local address is a pointer whose provenance was exposed.
///
/// # Safety
/// Of unsafe functions: Local memory that it is handed is valid, and nobody else uses what is written, until it and its wait have ended.
#[cfg(not(target_arch = "wasm32"))]
#[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
pub trait Host {
    /// writes 32 bytes at `to`: u32 originating HRE, u32 source (SPU number, or FFFFFFFFh: the host), u32 body bytes, u32 reply
    /// capacity in bytes, u32 handler, u32 inline argument bytes, u32 x 2 zero
    unsafe fn request_info(&mut self, token: u32, to: *mut u8);
    /// copies the next `bytes` of the body to local memory; returns how many there were
    unsafe fn receive_bytes(&mut self, token: u32, to: *mut u8, bytes: u32) -> i32;
    /// the same from byte `offset` of the body on; `receive_bytes` goes on where it was
    unsafe fn receive_bytes_at(&mut self, token: u32, offset: u32, to: *mut u8, bytes: u32) -> i32;
    /// ends the request; each token exactly once. DMAs still pending for it are drained first
    fn respond(&mut self, token: u32, status: u32, result: u32);
    /// moves bytes between two ports for this request
    unsafe fn dma(
        &mut self,
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32;
    /// the same, `segments` times, each side moved on by its stride
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
    ) -> i32;
    /// result 0: NV memory equals the body there; 1: differs. Where it is done at once it returns 0 for equal and 2 for different
    fn compare(&mut self, token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32;
    /// CRC-32C (Castagnoli) of bytes at a port (accelerator), continued from `seed` (0 for a fresh one); the result is in
    /// `complete`'s low 32 bits. When it returns 0 (done at once) the value is got by `checksum_value`
    unsafe fn checksum(&mut self, token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32;
    /// the checksum that was done at once last
    fn checksum_value(&mut self) -> u32;
    /// begins a request to SPU `destination`, or -1: upcall to the originating HRE, on behalf of `token`'s request; `app` -1 is
    /// the own one, else an installed app's number. Returns a handle or an error. The body is at most 64 KiB, the reply lands
    /// at `reply`
    unsafe fn rpc_start(
        &mut self,
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32;
    /// appends to the body from local memory, or from NV memory (waits are not needed: the DMA is done when the message is
    /// sent). An error gives the handle back: there is no `rpc_finish` for it then
    unsafe fn rpc_append(&mut self, handle: i32, port: u32, address: u64, bytes: u32) -> i32;
    /// sends it; 1: pending. `complete`'s result is `status << 32 | result` of the response, or a negative error (-10 to
    /// -2, which is how status FFFFFFFFh is told apart: apps do not use it). The handle is given back in any case
    unsafe fn rpc_finish(&mut self, handle: i32, wait: u32) -> i32;
    /// begins an upcall to an endpoint that has subscribed to the app's upcalls of that kind (1 to 255), on behalf of `token`'s
    /// request. Returns a handle or an error; `rpc_append` and `rpc_finish` do the rest
    fn upcall_start(&mut self, token: u32, hre: u32, kind: u32, body_bytes: u32) -> i32;
    /// writes the ids of endpoints that have subscribed to a kind, u32 each in rising order, from behind the id `after` on (0: all), at
    /// most `most`; returns how many
    unsafe fn subscribers(&mut self, kind: u32, after: u32, to: *mut u8, most: u32) -> i32;
    /// number of an installed app; a user's app finds its user's own apps first, then those of the kernel with a public handler
    unsafe fn app_number(&mut self, name: *const u8, bytes: u32) -> i32;
    /// the app's persistent region `id`: its base address, the same in every bank; created with `bytes` a bank (rounded up to
    /// 64 KiB, zeroed) where it is new; opened where it exists (`bytes` 0: only open). >= 0 base; -1 pending (`complete` brings
    /// base or error); else an error
    fn region(&mut self, id: u32, bytes: u64, wait: u32) -> i64;
    /// its size a bank, or an error
    fn region_bytes(&mut self, id: u32) -> i64;
    /// deletes it
    fn region_free(&mut self, id: u32, wait: u32) -> i32;
    /// writes 32 bytes: u64 base, u64 bytes a bank, u32 CSI, u32 logical block bytes, u64 logical blocks; base and bytes are
    /// the same in every bank
    unsafe fn namespace(&mut self, nsid: u32, to: *mut u8) -> i32;
    /// all that was written to this SPU's bank before is durable when it completes
    fn flush(&mut self, wait: u32) -> i32;
    /// loads a set of literals into the accelerator of this SPU: `bytes` bytes, of each literal its length (u32, 1 to 1024) and its bytes.
    /// `flags`: 1: ASCII letters match in either case; 2: one match a line, bits 8 to 15 are the byte that ends a line. Returns
    /// a handle, above 0, or an error
    unsafe fn literals_load(&mut self, literals: *const u8, bytes: u32, flags: u32) -> i32;
    /// looks for the literals of `set` in bytes at a port. At `to` it writes u32 found, u32 looked at, u32 state, then 12 bytes for each
    /// match: u32 begin, u32 end (offsets in the range), u32 number of the literal. It ends with `most` matches (at most 4096; 0: it
    /// counts them and writes none), or before, where it has done as much as one search may: the next one begins where `looked at`
    /// says, with `state` as it was left
    unsafe fn literals_find(
        &mut self,
        token: u32,
        set: i32,
        port: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: *mut u8,
        most: u32,
        wait: u32,
    ) -> i32;
    /// finds a key among `count` keys of `key_bytes` bytes (1 to 256) that lie `stride` bytes apart at a port, 64 KiB in all at most. With an
    /// `order` of 0 the keys ascend, as bytes, and its place is how many are less; with 1 they are in no order, and it is how many come
    /// before the first that equals it. Returns 1: pending; else 2 + 2 * place, and 1 more where the key at that place equals it, as
    /// `complete` brings it
    unsafe fn keys_find(
        &mut self,
        token: u32,
        port: u32,
        address: u64,
        key_bytes: u32,
        stride: u32,
        count: u32,
        order: u32,
        key: *const u8,
        wait: u32,
    ) -> i32;
    /// y = `alpha` * x + y (accelerator), `count` numbers of `number_bytes` bytes each (4 or 8, little-endian), 512 KiB at most, in local
    /// memory. `alpha`: the bits of a number of 8 bytes, which is rounded to 4 for those. Rounds after the multiplication and
    /// after the addition. x and y have no byte in common; y is the app's again when it has ended
    unsafe fn multiply_add(
        &mut self,
        token: u32,
        number_bytes: u32,
        alpha: u64,
        x: *const u8,
        y: *mut u8,
        count: u32,
        wait: u32,
    ) -> i32;
    /// discrete Fourier transforms (accelerator) of `rows` rows one behind the other in local memory, each in its place, of `count` complex
    /// numbers, real part first, each part of `number_bytes` bytes (4 or 8, little-endian); 512 KiB at most
    /// in all. `inverse`: 0, or 1 for the inverse, which divides by `count`. The bytes are the app's again when it has ended
    unsafe fn fft(
        &mut self,
        token: u32,
        number_bytes: u32,
        inverse: u32,
        data: *mut u8,
        count: u32,
        rows: u32,
        wait: u32,
    ) -> i32;
    /// decompresses (accelerator) a piece of a block of `codec` (1: Snappy's raw format), all in local memory: the next `bytes` bytes of the block
    /// at `from`, 64 KiB at most, to behind what came before at `to`, where `to_bytes` bytes are, 512 KiB at most. Where it is, it keeps in 32
    /// bytes at `state` (see "Decompressing"). It ends where the input, the room or what one call may do does. The bytes are the
    /// app's again when it has ended
    unsafe fn decompress(
        &mut self,
        token: u32,
        codec: u32,
        from: *const u8,
        bytes: u32,
        to: *mut u8,
        to_bytes: u32,
        state: *mut u8,
        wait: u32,
    ) -> i32;
    /// gives a set up
    fn literals_free(&mut self, set: i32) -> i32;
    /// ends after so many ns of the device's clock, from the end of the run on; 0: when others have had their turn. Pending, unless
    /// it is an error; at most a day
    fn sleep(&mut self, duration_ns: u64, wait: u32) -> i32;
    /// cancels what the app waits for under the number `wait` on this SPU, on behalf of the process whose request `token` is. 0:
    /// `complete` brings `CANCELLED` soon; 1: that cannot be cancelled any more, or there is no such wait, and what was promised stands
    fn cancel(&mut self, token: u32, wait: u32) -> i32;
    /// begins the app's handler `handler` on this SPU, with `argument` as its 8 inline argument bytes, for nobody: the request's
    /// originating HRE is 0, its source this SPU, and its response goes nowhere
    fn background(&mut self, handler: u32, argument: u64) -> i32;
    /// number of this SPU
    fn spu_id(&mut self) -> u32;
    /// how many SPUs the device has
    fn spu_count(&mut self) -> u32;
    /// the device's clock
    fn time_ns(&mut self) -> u64;
    /// virtual serial port, line-buffered; `willow app log NAME` shows it
    unsafe fn print(&mut self, text: *const u8, bytes: u32);
    /// adds to the app's counter 0..=15, shown by `willow stat`
    fn count(&mut self, counter: u32, delta: i64);
    /// writes 64 bytes: u32 channels, packages a channel, dies a package, planes a die, blocks a plane, pages a block, bytes a
    /// page, spare bytes a page, bits of a cell, 1 where the spare area can be reached, bytes of a unit that the FTL is to map as
    /// one, distance from a lower page to its upper one (0: a cut harms no other page); u64 bytes of the bank that it is to
    /// offer; u32 free blocks of a lane below which it is to collect (0: as it thinks best); a word of bits: 1 where it is to search for
    /// the block to collect by `flash_minimum`, 2 where it is to move pages by copyback (`flash_program`)
    unsafe fn flash_geometry(&mut self, to: *mut u8) -> i32;
    /// writes the numbers (u32) of the first `most` blocks of a die that are bad from the factory; returns how many there are
    unsafe fn flash_bad_blocks(&mut self, die: u32, to: *mut u8, most: u32) -> i32;
    /// reads `bytes` of a page from `offset` on: to local memory at `to` where `peer` is 0, else to the peer at offset `to`; and
    /// the first `spare_bytes` of its spare area to `spare`
    unsafe fn flash_read(
        &mut self,
        die: u32,
        block: u32,
        page: u32,
        offset: u32,
        bytes: u32,
        peer: u32,
        to: u64,
        spare: *mut u8,
        spare_bytes: u32,
        wait: u32,
    ) -> i32;
    /// programs `count` pages of the same number on distinct planes of a die. `pages` are 32 bytes each: u32 block, u32 page, u64
    /// pointer to its parts, u32 parts (at most 64), u32 spare bytes, u64 pointer to those. A part is 24 bytes: u32 kind, u32
    /// bytes; then of kind 0 u64 pointer, u64 zero (local memory); 1: u32 peer, u32 zero, u64 offset; 2: u32 die, u32 block, u32
    /// page, u32 offset (another page); 3: zeroes; 4: as 2, the whole of a page of the same plane by copyback, which takes neither the
    /// bus nor the controller's ECC: then each page of the program is one such part, and their sources have one number. What the chip
    /// cannot correct without that ECC ends as uncorrectable, and may be programmed by 2
    unsafe fn flash_program(&mut self, die: u32, pages: *const u8, count: u32, wait: u32) -> i32;
    /// erases `count` blocks (u32 each) of distinct planes of a die
    unsafe fn flash_erase(&mut self, die: u32, blocks: *const u8, count: u32, wait: u32) -> i32;
    /// makes part of a peer of a read zeroes
    fn flash_zero_peer(&mut self, peer: u32, offset: u64, bytes: u32) -> i32;
    /// makes way for others: `complete` comes behind what they have to do
    fn flash_pause(&mut self, wait: u32) -> i32;
    /// the accelerator for minima: the place (from 0) of the first of the least of `count` numbers (u32; at most 1048576)
    unsafe fn flash_minimum(&mut self, numbers: *const u8, count: u32) -> i32;
    /// tells hosts (SMART) how the bank does: what is left of its spare blocks in percent of those of a new one, pages that the media lost and
    /// reads that failed over its life, 1 where nothing is written any more
    fn flash_health(&mut self, spare_percent: u32, media_errors: u64, read_only: u32) -> i32;
    /// publishes where units lie, in the app's memory, for as long as this instance runs (see "The read map"). `lanes` are 32 bytes each: u64 pointer to
    /// an entry (u32) a unit, u64 pointer to a byte a row, u32 units, u32 rows, u64 zero; `count` of them (at most 4096; 0: nothing is
    /// published any more). Reads that correct more than `corrected_bits_max` bits are asked for
    unsafe fn flash_read_map(&mut self, lanes: *const u8, count: u32, corrected_bits_max: u32) -> i32;
}

#[cfg(not(target_arch = "wasm32"))]
#[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
mod hosted {
    use crate::native::with_host;

    #[inline]
    pub unsafe fn request_info(token: u32, to: *mut u8) {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.request_info(token, to) });
    }
    #[inline]
    pub unsafe fn receive_bytes(token: u32, to: *mut u8, bytes: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.receive_bytes(token, to, bytes) })
    }
    #[inline]
    pub unsafe fn receive_bytes_at(token: u32, offset: u32, to: *mut u8, bytes: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.receive_bytes_at(token, offset, to, bytes) })
    }
    #[inline]
    pub fn respond(token: u32, status: u32, result: u32) {
        with_host(|host| host.respond(token, status, result));
    }
    #[inline]
    pub unsafe fn dma(
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.dma(token, source_port, source_address, destination_port, destination_address, bytes, wait) })
    }
    #[inline]
    pub unsafe fn dma_strided(
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
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.dma_strided(token, source_port, source_address, source_stride, destination_port, destination_address, destination_stride, segment_bytes, segments, wait) })
    }
    #[inline]
    pub fn compare(token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32 {
        with_host(|host| host.compare(token, nv_address, body_offset, bytes, wait))
    }
    #[inline]
    pub unsafe fn checksum(token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.checksum(token, port, address, bytes, seed, wait) })
    }
    #[inline]
    pub fn checksum_value() -> u32 {
        with_host(|host| host.checksum_value())
    }
    #[inline]
    pub unsafe fn rpc_start(
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.rpc_start(token, destination, app, handler, body_bytes, reply, reply_bytes) })
    }
    #[inline]
    pub unsafe fn rpc_append(handle: i32, port: u32, address: u64, bytes: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.rpc_append(handle, port, address, bytes) })
    }
    #[inline]
    pub unsafe fn rpc_finish(handle: i32, wait: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.rpc_finish(handle, wait) })
    }
    #[inline]
    pub fn upcall_start(token: u32, hre: u32, kind: u32, body_bytes: u32) -> i32 {
        with_host(|host| host.upcall_start(token, hre, kind, body_bytes))
    }
    #[inline]
    pub unsafe fn subscribers(kind: u32, after: u32, to: *mut u8, most: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.subscribers(kind, after, to, most) })
    }
    #[inline]
    pub unsafe fn app_number(name: *const u8, bytes: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.app_number(name, bytes) })
    }
    #[inline]
    pub fn region(id: u32, bytes: u64, wait: u32) -> i64 {
        with_host(|host| host.region(id, bytes, wait))
    }
    #[inline]
    pub fn region_bytes(id: u32) -> i64 {
        with_host(|host| host.region_bytes(id))
    }
    #[inline]
    pub fn region_free(id: u32, wait: u32) -> i32 {
        with_host(|host| host.region_free(id, wait))
    }
    #[inline]
    pub unsafe fn namespace(nsid: u32, to: *mut u8) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.namespace(nsid, to) })
    }
    #[inline]
    pub fn flush(wait: u32) -> i32 {
        with_host(|host| host.flush(wait))
    }
    #[inline]
    pub unsafe fn literals_load(literals: *const u8, bytes: u32, flags: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.literals_load(literals, bytes, flags) })
    }
    #[inline]
    pub unsafe fn literals_find(
        token: u32,
        set: i32,
        port: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: *mut u8,
        most: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.literals_find(token, set, port, address, bytes, state, to, most, wait) })
    }
    #[inline]
    pub unsafe fn keys_find(
        token: u32,
        port: u32,
        address: u64,
        key_bytes: u32,
        stride: u32,
        count: u32,
        order: u32,
        key: *const u8,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.keys_find(token, port, address, key_bytes, stride, count, order, key, wait) })
    }
    #[inline]
    pub unsafe fn multiply_add(
        token: u32,
        number_bytes: u32,
        alpha: u64,
        x: *const u8,
        y: *mut u8,
        count: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.multiply_add(token, number_bytes, alpha, x, y, count, wait) })
    }
    #[inline]
    pub unsafe fn fft(
        token: u32,
        number_bytes: u32,
        inverse: u32,
        data: *mut u8,
        count: u32,
        rows: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.fft(token, number_bytes, inverse, data, count, rows, wait) })
    }
    #[inline]
    pub unsafe fn decompress(
        token: u32,
        codec: u32,
        from: *const u8,
        bytes: u32,
        to: *mut u8,
        to_bytes: u32,
        state: *mut u8,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.decompress(token, codec, from, bytes, to, to_bytes, state, wait) })
    }
    #[inline]
    pub fn literals_free(set: i32) -> i32 {
        with_host(|host| host.literals_free(set))
    }
    #[inline]
    pub fn sleep(duration_ns: u64, wait: u32) -> i32 {
        with_host(|host| host.sleep(duration_ns, wait))
    }
    #[inline]
    pub fn cancel(token: u32, wait: u32) -> i32 {
        with_host(|host| host.cancel(token, wait))
    }
    #[inline]
    pub fn background(handler: u32, argument: u64) -> i32 {
        with_host(|host| host.background(handler, argument))
    }
    #[inline]
    pub fn spu_id() -> u32 {
        with_host(|host| host.spu_id())
    }
    #[inline]
    pub fn spu_count() -> u32 {
        with_host(|host| host.spu_count())
    }
    #[inline]
    pub fn time_ns() -> u64 {
        with_host(|host| host.time_ns())
    }
    #[inline]
    pub unsafe fn print(text: *const u8, bytes: u32) {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.print(text, bytes) });
    }
    #[inline]
    pub fn count(counter: u32, delta: i64) {
        with_host(|host| host.count(counter, delta));
    }
    #[inline]
    pub unsafe fn flash_geometry(to: *mut u8) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_geometry(to) })
    }
    #[inline]
    pub unsafe fn flash_bad_blocks(die: u32, to: *mut u8, most: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_bad_blocks(die, to, most) })
    }
    #[inline]
    pub unsafe fn flash_read(
        die: u32,
        block: u32,
        page: u32,
        offset: u32,
        bytes: u32,
        peer: u32,
        to: u64,
        spare: *mut u8,
        spare_bytes: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_read(die, block, page, offset, bytes, peer, to, spare, spare_bytes, wait) })
    }
    #[inline]
    pub unsafe fn flash_program(die: u32, pages: *const u8, count: u32, wait: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_program(die, pages, count, wait) })
    }
    #[inline]
    pub unsafe fn flash_erase(die: u32, blocks: *const u8, count: u32, wait: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_erase(die, blocks, count, wait) })
    }
    #[inline]
    pub fn flash_zero_peer(peer: u32, offset: u64, bytes: u32) -> i32 {
        with_host(|host| host.flash_zero_peer(peer, offset, bytes))
    }
    #[inline]
    pub fn flash_pause(wait: u32) -> i32 {
        with_host(|host| host.flash_pause(wait))
    }
    #[inline]
    pub unsafe fn flash_minimum(numbers: *const u8, count: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_minimum(numbers, count) })
    }
    #[inline]
    pub fn flash_health(spare_percent: u32, media_errors: u64, read_only: u32) -> i32 {
        with_host(|host| host.flash_health(spare_percent, media_errors, read_only))
    }
    #[inline]
    pub unsafe fn flash_read_map(lanes: *const u8, count: u32, corrected_bits_max: u32) -> i32 {
        // SAFETY: the caller vouches for local memory.
        with_host(|host| unsafe { host.flash_read_map(lanes, count, corrected_bits_max) })
    }
}
#[cfg(not(target_arch = "wasm32"))]
pub use hosted::*;
