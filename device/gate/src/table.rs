//! The table of imports: name, parameters, result, meaning, what it costs, how it fails, who may use it, and since which version.
//!
//! An entry reads as the import's declaration. `[unsafe]` marks those that use the app's memory, by a pointer or by an address at the
//! port of local memory. Parameters are `u32`, `i32`, `u64` and `i64`, and
//! - `read`, `written`: a pointer to bytes that SPU-OS reads or writes before the import returns, or, of a message's reply, later;
//! - `address`: an address at the port that is named before it.
//!
//! Invariants: an import has the same name and order of parameters everywhere; an entry that has been there in a released version changes
//! neither signature nor meaning.

/// The type of a parameter or a result in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits without sign.
    U32,
    /// 32 bits with sign.
    I32,
    /// 64 bits without sign.
    U64,
    /// 64 bits with sign.
    I64,
    /// A pointer to bytes that SPU-OS reads.
    Read,
    /// A pointer to bytes that SPU-OS writes.
    Written,
    /// An address at a port: 64 bits.
    Address,
}

impl Kind {
    /// Its letter in a signature: `i` for i32, `I` for i64.
    pub const fn letter(self) -> char {
        match self {
            Kind::U32 | Kind::I32 | Kind::Read | Kind::Written => 'i',
            Kind::U64 | Kind::I64 | Kind::Address => 'I',
        }
    }
}

/// Whose apps may import it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Every app.
    Any,
    /// Apps that the host's kernel installed, and those that come with the device.
    Trusted,
}

/// When it may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once the app has started.
    Started,
    /// Also in `_initialize`.
    Always,
}

/// What it is charged, on top of the charge for any import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Call,
    /// The bytes that it copies.
    Bytes,
    /// Its segments, and bytes that it copies.
    Segments,
    /// A message, with the bytes of its body and the room for its reply.
    Message,
    /// As a message, and entries of tables that it searches.
    Search,
    /// Bytes and lines on the virtual serial port.
    Print,
    /// Entries of a table that it searches.
    Entries,
    /// A flush, or a change of the region table.
    Store,
    /// What it searches, or gets ready to search.
    Literals,
    /// What it compares, and bytes that it copies.
    Keys,
    /// Its butterflies.
    Butterflies,
    /// The elements that it decompresses, and bytes that it copies.
    Elements,
}

/// An import.
#[derive(Debug)]
pub struct Import {
    /// The name, in the module of its section.
    pub name: &'static str,
    /// Names and types of its parameters.
    pub parameters: &'static [(&'static str, Kind)],
    /// The type of its result.
    pub result: Option<Kind>,
    /// What it does: lines of Markdown.
    pub meaning: &'static [&'static str],
    /// The section of docs/abi.md that it is in.
    pub section: Section,
    /// The version of the interface that it came with.
    pub since: u32,
    /// Whose apps may import it.
    pub who: Who,
    /// When it may be called.
    pub when: When,
    /// What it is charged.
    pub work: Work,
    /// Its errors that are told by its result, or by that of the wait: names as in [`crate::abi`], without `ERROR_`.
    pub errors: &'static [&'static str],
    /// True where it uses the app's memory.
    pub local: bool,
}

/// A section of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Requests and DMA.
    Requests,
    /// Messages to SPUs and hosts.
    Messages,
    /// Regions, namespaces, durability.
    NvMemory,
    /// Accelerators with imports of their own.
    Accelerators,
    /// Sleeping, cancelling, work in the background.
    Time,
    /// All else.
    Rest,
    /// The flash port.
    Flash,
}

impl Section {
    /// The import module that its imports are in.
    pub const fn module(self) -> &'static str {
        match self {
            Section::Flash => "willow_flash",
            Section::Requests
            | Section::Messages
            | Section::NvMemory
            | Section::Accelerators
            | Section::Time
            | Section::Rest => "willow",
        }
    }
}

impl Import {
    /// The letters of its parameters.
    pub fn parameter_letters(&self) -> String {
        self.parameters.iter().map(|(_, kind)| kind.letter()).collect()
    }

    /// The letter of its result; none where it has none.
    pub fn result_letters(&self) -> String {
        self.result.iter().map(|kind| kind.letter()).collect()
    }
}

/// Hands the table to a macro.
#[macro_export]
macro_rules! imports {
    ($with:ident) => {
        $with! {
            /// writes 32 bytes at `to`: u32 originating HRE, u32 source (SPU number, or FFFFFFFFh: the host), u32 body bytes, u32 reply
            /// capacity in bytes, u32 handler, u32 inline argument bytes, u32 x 2 zero
            [unsafe] fn request_info(token: u32, to: written);
            { Requests, since 1, Any, Started, Call, errors [] }

            /// copies the next `bytes` of the body to local memory; returns how many there were
            [unsafe] fn receive_bytes(token: u32, to: written, bytes: u32) -> i32;
            { Requests, since 1, Any, Started, Bytes, errors [ARGUMENT] }

            /// the same from byte `offset` of the body on; `receive_bytes` goes on where it was
            [unsafe] fn receive_bytes_at(token: u32, offset: u32, to: written, bytes: u32) -> i32;
            { Requests, since 1, Any, Started, Bytes, errors [ARGUMENT] }

            /// ends the request; each token exactly once. DMAs still pending for it are drained first
            [] fn respond(token: u32, status: u32, result: u32);
            { Requests, since 1, Any, Started, Call, errors [] }

            /// moves bytes between two ports for this request
            [unsafe] fn dma(token: u32, source_port: u32, source_address: address, destination_port: u32, destination_address: address,
                bytes: u32, wait: u32) -> i32;
            { Requests, since 1, Any, Started, Segments, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, FULL, REFUSED] }

            /// the same, `segments` times, each side moved on by its stride
            [unsafe] fn dma_strided(token: u32, source_port: u32, source_address: address, source_stride: i64, destination_port: u32,
                destination_address: address, destination_stride: i64, segment_bytes: u32, segments: u32, wait: u32) -> i32;
            { Requests, since 1, Any, Started, Segments, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, FULL, REFUSED] }

            /// result 0: NV memory equals the body there; 1: differs. Where it is done at once it returns 0 for equal and 2 for different
            [] fn compare(token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32;
            { Requests, since 1, Any, Started, Segments, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, REFUSED] }

            /// CRC-32C (Castagnoli) of bytes at a port (accelerator), continued from `seed` (0 for a fresh one); the result is in
            /// `complete`'s low 32 bits. When it returns 0 (done at once) the value is got by `checksum_value`
            [unsafe] fn checksum(token: u32, port: u32, address: address, bytes: u32, seed: u32, wait: u32) -> i32;
            { Requests, since 1, Any, Started, Segments, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, REFUSED] }

            /// the checksum that was done at once last
            [] fn checksum_value() -> u32;
            { Requests, since 1, Any, Started, Call, errors [] }

            /// begins a request to SPU `destination`, or -1: upcall to the originating HRE, on behalf of `token`'s request; `app` -1 is
            /// the own one, else an installed app's number. Returns a handle or an error. The body is at most 64 KiB, the reply lands
            /// at `reply`
            [unsafe] fn rpc_start(token: u32, destination: i32, app: i32, handler: u32, body_bytes: u32, reply: written,
                reply_bytes: u32) -> i32;
            { Messages, since 1, Any, Started, Message, errors [ARGUMENT, REFUSED] }

            /// appends to the body from local memory, or from NV memory (waits are not needed: the DMA is done when the message is
            /// sent). An error gives the handle back: there is no `rpc_finish` for it then
            [unsafe] fn rpc_append(handle: i32, port: u32, address: address, bytes: u32) -> i32;
            { Messages, since 1, Any, Started, Segments, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, REFUSED] }

            /// sends it; 1: pending. `complete`'s result is `status << 32 \| result` of the response, or a negative error (-10 to
            /// -2, which is how status FFFFFFFFh is told apart: apps do not use it). The handle is given back in any case
            [unsafe] fn rpc_finish(handle: i32, wait: u32) -> i32;
            { Messages, since 1, Any, Started, Message, errors [ARGUMENT, PERMISSION, MEDIA, REFUSED, ENDED] }

            /// begins an upcall to an endpoint that has subscribed to the app's upcalls of that kind (1 to 255), on behalf of `token`'s
            /// request. Returns a handle or an error; `rpc_append` and `rpc_finish` do the rest
            [] fn upcall_start(token: u32, hre: u32, kind: u32, body_bytes: u32) -> i32;
            { Messages, since 2, Any, Started, Message, errors [ARGUMENT, PERMISSION, REFUSED] }

            /// writes the ids of endpoints that have subscribed to a kind, u32 each in rising order, from behind the id `after` on (0: all), at
            /// most `most`; returns how many
            [unsafe] fn subscribers(kind: u32, after: u32, to: written, most: u32) -> i32;
            { Messages, since 2, Any, Started, Entries, errors [ARGUMENT] }

            /// number of an installed app; a user's app finds its user's own apps first, then those of the kernel with a public handler
            [unsafe] fn app_number(name: read, bytes: u32) -> i32;
            { Messages, since 1, Any, Started, Entries, errors [NOT_FOUND] }

            /// the app's persistent region `id`: its base address, the same in every bank; created with `bytes` a bank (rounded up to
            /// 64 KiB, zeroed) where it is new; opened where it exists (`bytes` 0: only open). >= 0 base; -1 pending (`complete` brings
            /// base or error); else an error
            [] fn region(id: u32, bytes: u64, wait: u32) -> i64;
            { NvMemory, since 1, Any, Started, Store, errors [ARGUMENT, FULL, REFUSED, NOT_FOUND] }

            /// its size a bank, or an error
            [] fn region_bytes(id: u32) -> i64;
            { NvMemory, since 1, Any, Started, Entries, errors [NOT_FOUND] }

            /// deletes it
            [] fn region_free(id: u32, wait: u32) -> i32;
            { NvMemory, since 1, Any, Started, Store, errors [PERMISSION, REFUSED, NOT_FOUND] }

            /// writes 32 bytes: u64 base, u64 bytes a bank, u32 CSI, u32 logical block bytes, u64 logical blocks; base and bytes are
            /// the same in every bank
            [unsafe] fn namespace(nsid: u32, to: written) -> i32;
            { NvMemory, since 1, Any, Started, Entries, errors [NOT_FOUND] }

            /// all that was written to this SPU's bank before is durable when it completes
            [] fn flush(wait: u32) -> i32;
            { NvMemory, since 1, Any, Started, Store, errors [MEDIA, REFUSED] }

            /// loads a set of literals into the accelerator of this SPU: `bytes` bytes, of each literal its length (u32, 1 to 1024) and its bytes.
            /// `flags`: 1: ASCII letters match in either case; 2: one match a line, bits 8 to 15 are the byte that ends a line. Returns
            /// a handle, above 0, or an error
            [unsafe] fn literals_load(literals: read, bytes: u32, flags: u32) -> i32;
            { Accelerators, since 2, Any, Started, Literals, errors [ARGUMENT, FULL] }

            /// looks for the literals of `set` in bytes at a port. At `to` it writes u32 found, u32 looked at, u32 state, then 12 bytes for each
            /// match: u32 begin, u32 end (offsets in the range), u32 number of the literal. It ends with `most` matches (at most 4096; 0: it
            /// counts them and writes none), or before, where it has done as much as one search may: the next one begins where `looked at`
            /// says, with `state` as it was left
            [unsafe] fn literals_find(token: u32, set: i32, port: u32, address: address, bytes: u32, state: u32, to: written, most: u32,
                wait: u32) -> i32;
            { Accelerators, since 2, Any, Started, Literals, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, REFUSED] }

            /// finds a key among `count` keys of `key_bytes` bytes (1 to 256) that lie `stride` bytes apart at a port, 64 KiB in all at most. With an
            /// `order` of 0 the keys ascend, as bytes, and its place is how many are less; with 1 they are in no order, and it is how many come
            /// before the first that equals it. Returns 1: pending; else 2 + 2 * place, and 1 more where the key at that place equals it, as
            /// `complete` brings it
            [unsafe] fn keys_find(token: u32, port: u32, address: address, key_bytes: u32, stride: u32, count: u32, order: u32, key: read,
                wait: u32) -> i32;
            { Accelerators, since 2, Any, Started, Keys, errors [ARGUMENT, RANGE, PERMISSION, MEDIA, REFUSED] }

            /// y = `alpha` * x + y (accelerator), `count` numbers of `number_bytes` bytes each (4 or 8, little-endian), 512 KiB at most, in local
            /// memory. `alpha`: the bits of a number of 8 bytes, which is rounded to 4 for those. Rounds after the multiplication and
            /// after the addition. x and y have no byte in common; y is the app's again when it has ended
            [unsafe] fn multiply_add(token: u32, number_bytes: u32, alpha: u64, x: read, y: written, count: u32, wait: u32) -> i32;
            { Accelerators, since 2, Any, Started, Segments, errors [ARGUMENT, REFUSED] }

            /// discrete Fourier transforms (accelerator) of `rows` rows one behind the other in local memory, each in its place, of `count` complex
            /// numbers, real part first, each part of `number_bytes` bytes (4 or 8, little-endian); 512 KiB at most
            /// in all. `inverse`: 0, or 1 for the inverse, which divides by `count`. The bytes are the app's again when it has ended
            [unsafe] fn fft(token: u32, number_bytes: u32, inverse: u32, data: written, count: u32, rows: u32, wait: u32) -> i32;
            { Accelerators, since 2, Any, Started, Butterflies, errors [ARGUMENT, REFUSED] }

            /// decompresses (accelerator) a piece of a block of `codec` (1: Snappy's raw format), all in local memory: the next `bytes` bytes of the block
            /// at `from`, 64 KiB at most, to behind what came before at `to`, where `to_bytes` bytes are, 512 KiB at most. Where it is, it keeps in 32
            /// bytes at `state` (see "Decompressing"). It ends where the input, the room or what one call may do does. The bytes are the
            /// app's again when it has ended
            [unsafe] fn decompress(token: u32, codec: u32, from: read, bytes: u32, to: written, to_bytes: u32, state: written, wait: u32) -> i32;
            { Accelerators, since 2, Any, Started, Elements, errors [ARGUMENT, REFUSED] }

            /// gives a set up
            [] fn literals_free(set: i32) -> i32;
            { Accelerators, since 2, Any, Started, Call, errors [ARGUMENT] }

            /// ends after so many ns of the device's clock, from the end of the run on; 0: when others have had their turn. Pending, unless
            /// it is an error; at most a day
            [] fn sleep(duration_ns: u64, wait: u32) -> i32;
            { Time, since 2, Any, Started, Message, errors [ARGUMENT, REFUSED, CANCELLED] }

            /// cancels what the app waits for under the number `wait` on this SPU, on behalf of the process whose request `token` is. 0:
            /// `complete` brings `CANCELLED` soon; 1: that cannot be cancelled any more, or there is no such wait, and what was promised stands
            [] fn cancel(token: u32, wait: u32) -> i32;
            { Time, since 2, Any, Started, Search, errors [ARGUMENT] }

            /// begins the app's handler `handler` on this SPU, with `argument` as its 8 inline argument bytes, for nobody: the request's
            /// originating HRE is 0, its source this SPU, and its response goes nowhere
            [] fn background(handler: u32, argument: u64) -> i32;
            { Time, since 2, Any, Started, Message, errors [ARGUMENT, REFUSED] }

            /// number of this SPU
            [] fn spu_id() -> u32;
            { Rest, since 1, Any, Started, Call, errors [] }

            /// how many SPUs the device has
            [] fn spu_count() -> u32;
            { Rest, since 1, Any, Started, Call, errors [] }

            /// the device's clock
            [] fn time_ns() -> u64;
            { Rest, since 1, Any, Started, Call, errors [] }

            /// virtual serial port, line-buffered; `willow app log NAME` shows it
            [unsafe] fn print(text: read, bytes: u32);
            { Rest, since 1, Any, Always, Print, errors [] }

            /// adds to the app's counter 0..=15, shown by `willow stat`
            [] fn count(counter: u32, delta: i64);
            { Rest, since 1, Any, Started, Call, errors [] }

            /// writes 64 bytes: u32 channels, packages a channel, dies a package, planes a die, blocks a plane, pages a block, bytes a
            /// page, spare bytes a page, bits of a cell, 1 where the spare area can be reached, bytes of a unit that the FTL is to map as
            /// one, distance from a lower page to its upper one (0: a cut harms no other page); u64 bytes of the bank that it is to
            /// offer; u32 free blocks of a lane below which it is to collect (0: as it thinks best); a word of bits: 1 where it is to search for
            /// the block to collect by `flash_minimum`, 2 where it is to move pages by copyback (`flash_program`)
            [unsafe] fn flash_geometry(to: written) -> i32;
            { Flash, since 1, Trusted, Started, Call, errors [PERMISSION] }

            /// writes the numbers (u32) of the first `most` blocks of a die that are bad from the factory; returns how many there are
            [unsafe] fn flash_bad_blocks(die: u32, to: written, most: u32) -> i32;
            { Flash, since 1, Trusted, Started, Store, errors [PERMISSION, RANGE] }

            /// reads `bytes` of a page from `offset` on: to local memory at `to` where `peer` is 0, else to the peer at offset `to`; and
            /// the first `spare_bytes` of its spare area to `spare`
            [unsafe] fn flash_read(die: u32, block: u32, page: u32, offset: u32, bytes: u32, peer: u32, to: address, spare: written,
                spare_bytes: u32, wait: u32) -> i32;
            { Flash, since 1, Trusted, Started, Segments, errors [PERMISSION, RANGE, MEDIA, ENDED, REFUSED] }

            /// programs `count` pages of the same number on distinct planes of a die. `pages` are 32 bytes each: u32 block, u32 page, u64
            /// pointer to its parts, u32 parts (at most 64), u32 spare bytes, u64 pointer to those. A part is 24 bytes: u32 kind, u32
            /// bytes; then of kind 0 u64 pointer, u64 zero (local memory); 1: u32 peer, u32 zero, u64 offset; 2: u32 die, u32 block, u32
            /// page, u32 offset (another page); 3: zeroes; 4: as 2, the whole of a page of the same plane by copyback, which takes neither the
            /// bus nor the controller's ECC: then each page of the program is one such part, and their sources have one number. What the chip
            /// cannot correct without that ECC ends as uncorrectable, and may be programmed by 2
            [unsafe] fn flash_program(die: u32, pages: read, count: u32, wait: u32) -> i32;
            { Flash, since 1, Trusted, Started, Segments, errors [ARGUMENT, PERMISSION, RANGE, MEDIA, ENDED, REFUSED] }

            /// erases `count` blocks (u32 each) of distinct planes of a die
            [unsafe] fn flash_erase(die: u32, blocks: read, count: u32, wait: u32) -> i32;
            { Flash, since 1, Trusted, Started, Store, errors [ARGUMENT, PERMISSION, MEDIA, REFUSED] }

            /// makes part of a peer of a read zeroes
            [] fn flash_zero_peer(peer: u32, offset: u64, bytes: u32) -> i32;
            { Flash, since 1, Trusted, Started, Bytes, errors [PERMISSION, ENDED] }

            /// makes way for others: `complete` comes behind what they have to do
            [] fn flash_pause(wait: u32) -> i32;
            { Flash, since 1, Trusted, Started, Call, errors [PERMISSION, REFUSED] }

            /// the accelerator for minima: the place (from 0) of the first of the least of `count` numbers (u32; at most 1048576)
            [unsafe] fn flash_minimum(numbers: read, count: u32) -> i32;
            { Flash, since 2, Trusted, Started, Bytes, errors [ARGUMENT, PERMISSION] }

            /// tells hosts (SMART) how the bank does: what is left of its spare blocks in percent of those of a new one, pages that the media lost and
            /// reads that failed over its life, 1 where nothing is written any more
            [] fn flash_health(spare_percent: u32, media_errors: u64, read_only: u32) -> i32;
            { Flash, since 2, Trusted, Started, Store, errors [ARGUMENT, PERMISSION] }

            /// publishes where units lie, in the app's memory, for as long as this instance runs (see "The read map"). `lanes` are 32 bytes each: u64 pointer to
            /// an entry (u32) a unit, u64 pointer to a byte a row, u32 units, u32 rows, u64 zero; `count` of them (at most 4096; 0: nothing is
            /// published any more). Reads that correct more than `corrected_bits_max` bits are asked for
            [unsafe] fn flash_read_map(lanes: read, count: u32, corrected_bits_max: u32) -> i32;
            { Flash, since 2, Trusted, Started, Bytes, errors [ARGUMENT, PERMISSION] }
        }
    };
}

macro_rules! kind {
    (u32) => {
        Kind::U32
    };
    (i32) => {
        Kind::I32
    };
    (u64) => {
        Kind::U64
    };
    (i64) => {
        Kind::I64
    };
    (read) => {
        Kind::Read
    };
    (written) => {
        Kind::Written
    };
    (address) => {
        Kind::Address
    };
}

macro_rules! entries {
    ($(
        $(#[doc = $meaning:literal])*
        [$($safety:tt)?] fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $result:ident)?;
        { $section:ident, since $since:literal, $who:ident, $when:ident, $work:ident, errors [$($error:ident),*] }
    )*) => {
        /// All imports.
        pub static IMPORTS: &[Import] = &[$(
            Import {
                name: stringify!($name),
                parameters: &[$((stringify!($parameter), kind!($kind))),*],
                result: { #[allow(unused_mut, unused_assignments)] { let mut result = None; $(result = Some(kind!($result));)? result } },
                meaning: &[$($meaning),*],
                section: Section::$section,
                since: $since,
                who: Who::$who,
                when: When::$when,
                work: Work::$work,
                errors: &[$(stringify!($error)),*],
                local: !stringify!($($safety)?).is_empty(),
            },
        )*];
    };
}
imports!(entries);

/// The import of a name in an import module.
pub fn find(module: &str, name: &str) -> Option<&'static Import> {
    IMPORTS.iter().find(|import| import.section.module() == module && import.name == name)
}
