//! Numbers of the interface between SPU-OS and an app: docs/abi.md says what they mean.

/// Version of the interface.
pub const ABI_VERSION: u32 = 2;

/// DMA port: the app's memory.
pub const PORT_LOCAL: u32 = 0;
/// DMA port: NV memory of this SPU.
pub const PORT_NV: u32 = 1;
/// DMA port: body (source) or reply (destination) of the request.
pub const PORT_NETWORK: u32 = 2;
/// DMA port: zeroes.
pub const PORT_ZERO: u32 = 3;
/// DMA port: nothing (source only, NV memory as destination): no byte is moved, the permission to write there is looked up.
pub const PORT_NOTHING: u32 = 4;
/// Added to a port number of `dma` or `dma_strided`: a permission miss parks the DMA instead of failing it.
pub const PORT_PARK: u32 = 0x100;

/// Added to the source's port number of `dma`: a read of NV memory is done at once or not at all.
pub const PORT_NOW: u32 = 0x200;

/// Added to [`PORT_NV`] of `dma`, for each SPU as often as its number says, and once more: that SPU's NV memory.
pub const PORT_SPU: u32 = 0x1_0000;

/// Done at once.
pub const DONE: i32 = 0;
/// `complete` will come.
pub const PENDING: i32 = 1;
/// `compare` at once: differs.
pub const DIFFERS: i32 = 2;
/// A DMA with [`PORT_NOW`] would have had to wait: nothing was moved.
pub const NOT_NOW: i32 = 3;
/// `cancel`: it cannot be cancelled, and goes on or has ended.
pub const GOES_ON: i32 = 1;
/// `region`: `complete` will come.
pub const REGION_PENDING: i64 = -1;

/// A port, length, stride or handle that cannot be.
pub const ERROR_ARGUMENT: i32 = -2;
/// Address past the body or the reply; past the bank nobody has a permission.
pub const ERROR_RANGE: i32 = -3;
/// The originating HRE may not.
pub const ERROR_PERMISSION: i32 = -4;
/// The media failed.
pub const ERROR_MEDIA: i32 = -5;
/// No room.
pub const ERROR_FULL: i32 = -6;
/// The receiver had no room or does not exist.
pub const ERROR_REFUSED: i32 = -7;
/// The other side ended before it answered.
pub const ERROR_ENDED: i32 = -8;
/// No such region or namespace.
pub const ERROR_NOT_FOUND: i32 = -9;
/// The app has cancelled it.
pub const ERROR_CANCELLED: i32 = -10;

/// Handler number of events from SPU-OS.
pub const EVENT_HANDLER: u8 = 0;
/// Handler of an FTL: bring a range of the bank to the peer. Its arguments, and those of the three below: u32 peer, u32 zero, u64 address,
/// u64 bytes. SPU-OS alone sends them.
pub const NV_READ_HANDLER: u8 = 250;
/// Handler of an FTL: make a range of the bank what the peer has.
pub const NV_WRITE_HANDLER: u8 = 251;
/// Handler of an FTL: make a range of the bank read as zeroes.
pub const NV_ZERO_HANDLER: u8 = 252;
/// Handler of an FTL: make durable what was answered before.
pub const NV_FLUSH_HANDLER: u8 = 253;
/// An FTL's answer: done.
pub const NV_DONE: u32 = 0;
/// An FTL's answer: the flash cannot be read, or written.
pub const NV_FAILED: u32 = 1;
/// An FTL's answer: there is no room, since too much of the flash has worn out.
pub const NV_FULL: u32 = 2;

/// Event: a namespace was made; u32 NSID follows.
pub const EVENT_NAMESPACE_CREATED: u32 = 1;
/// Event: a namespace is being deleted; u32 NSID follows.
pub const EVENT_NAMESPACE_DELETED: u32 = 2;
/// Event: leave persistent state clean.
pub const EVENT_SHUTDOWN: u32 = 3;
/// Event: the instance is up.
pub const EVENT_STARTED: u32 = 4;
/// Event, for apps with `settles=1` in their manifest: rights of a process were taken back; u32 process as it is in endpoints' ids (0: of all),
/// u32 1 where the process has ended. Answered when the app writes nothing any more that those rights allowed.
pub const EVENT_REVOKED: u32 = 5;
/// Event: a namespace has another size; u32 NSID follows.
pub const EVENT_NAMESPACE_RESIZED: u32 = 6;
/// Stands for the status of an event that found no place in the app's inbox.
pub const EVENT_UNDELIVERED: u32 = u32::MAX;

/// Most bytes of one DMA, all segments together.
pub const DMA_BYTES_MAX: u64 = 1 << 28;
/// Most bytes that one DMA moves through a buffer of SPU-OS (NV to NV, compare, checksum).
pub const BOUNCE_BYTES_MAX: usize = 1 << 23;
/// Most bytes of an RPC's body from an SPU.
pub const MESSAGE_BYTES_MAX: u32 = 65536;
/// Longest sleep: a day.
pub const SLEEP_NS_MAX: u64 = 86_400_000_000_000;
/// Most bytes of a line on the virtual serial port.
pub const PRINT_BYTES_MAX: u32 = 4096;
/// Counters that an app has.
pub const COUNTERS: usize = 16;

/// How an operation of the flash port ended (in the low byte of its result): done. The other bits are how many bits the ECC corrected.
pub const FLASH_DONE: i32 = 0;
/// The page was not programmed since its block was erased: all ones.
pub const FLASH_ERASED: i32 = 2;
/// A page that was to be read cannot be.
pub const FLASH_UNCORRECTABLE: i32 = 3;
/// The program failed; the other bits: a bit for each page of the operation that is not there.
pub const FLASH_PROGRAM_FAILED: i32 = 4;
/// The erase failed; the other bits: a bit for each block of the operation that must not be used any more.
pub const FLASH_ERASE_FAILED: i32 = 5;
/// The page is in the die's latches until the last page of its word line comes.
pub const FLASH_LATCHED: i32 = 6;
/// The operation breaks a rule of the flash; nothing changed.
pub const FLASH_MISUSE: i32 = 7;
/// Where a part of a page comes from: the FTL's memory.
pub const FLASH_FROM_LOCAL: u32 = 0;
/// Where a part of a page comes from: a peer.
pub const FLASH_FROM_PEER: u32 = 1;
/// Where a part of a page comes from: another page.
pub const FLASH_FROM_FLASH: u32 = 2;
/// Where a part of a page comes from: zeroes.
pub const FLASH_FROM_ZEROES: u32 = 3;
/// Where a page comes from: a page of its plane, by copyback.
pub const FLASH_BY_COPYBACK: u32 = 4;
/// Bits of the last word of `flash_geometry`: the FTL is to search for the block to collect by `flash_minimum`, and to move pages by copyback.
pub const FLASH_VICTIM_SEARCH: u32 = 1;
/// See [`FLASH_VICTIM_SEARCH`].
pub const FLASH_COPYBACK: u32 = 2;
/// Most parts that a page is gathered from.
pub const FLASH_SEGMENTS_MAX: u32 = 64;
