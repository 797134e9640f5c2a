//! What apps ask SPU-OS for, as values.
//!
//! Invariant: an operation that there is, [`crate::decode`] has checked: what needs nothing but its own arguments to be refused is refused there.
#![allow(missing_docs, reason = "fields are the parameters of imports, which [`crate::table`] describes")]

use crate::abi;
use crate::decompress::Decompress;
use crate::hre::HreId;
use crate::keys::Layout;
use crate::meter::{BYTES_A_WORK, SEGMENT_WORK};
use crate::numbers::{MultiplyAdd, Transform};

/// Number of an app: 0 is the control service.
pub type AppNumber = u16;

/// A comparison of two keys, beside their bytes (5 ns).
const COMPARISON_WORK: u64 = 20;

/// What an app asks SPU-OS for. Pointers are addresses in its memory.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// `request_info`.
    Info { token: u32, to: u64 },
    /// `receive_bytes`, `receive_bytes_at`.
    Receive(Receive),
    /// `respond`.
    Respond { token: u32, status: u32, result: u32 },
    /// `dma`, `dma_strided`.
    Dma(Dma),
    /// `dma` of what is there at once, or not at all.
    DmaNow(Dma),
    /// `dma` to or from another SPU's NV memory.
    RemoteDma(RemoteDma),
    /// `compare`.
    Compare(Compare),
    /// `checksum`.
    Checksum(Checksum),
    /// `literals_load`.
    LoadLiterals { literals: u64, bytes: u32, flags: u32 },
    /// `literals_find`.
    FindLiterals(LiteralSearch),
    /// `literals_free`.
    FreeLiterals { set: i32 },
    /// `keys_find`.
    FindKey(KeySearch),
    /// `multiply_add`.
    MultiplyAdd(MultiplyAdd),
    /// `fft`.
    Transform(Transform),
    /// `decompress`.
    Decompress(Decompress),
    /// `rpc_start`, `upcall_start`.
    Draft(Draft),
    /// `rpc_append`.
    Append(Append),
    /// `rpc_finish`.
    Post { handle: i32, wait: u32 },
    /// `subscribers`.
    Subscribers { kind: u8, after: HreId, to: u64, most: u32 },
    /// `app_number`.
    AppNumber { name: u64, bytes: u32 },
    /// `region`.
    Region { id: u32, bytes: u64, wait: u32 },
    /// `region_bytes`.
    RegionBytes { id: u32 },
    /// `region_free`.
    FreeRegion { id: u32, wait: u32 },
    /// `namespace`.
    Namespace { nsid: u32, to: u64 },
    /// `flush`.
    Flush { wait: u32 },
    /// `sleep`.
    Sleep { duration_ns: u64, wait: u32 },
    /// `cancel`.
    Cancel { token: u32, wait: u32 },
    /// `background`.
    Background { handler: u8, argument: u64 },
    /// `print`.
    Print { text: u64, bytes: u32 },
    /// `count`.
    Count { counter: u32, delta: i64 },
    /// An import of the flash port.
    Flash(FlashOperation),
}

/// What an FTL asks its SPU's flash for.
#[derive(Clone, Copy, Debug)]
pub enum FlashOperation {
    Geometry { to: u64 },
    BadBlocks { die: u32, to: u64, most: u32 },
    Read(FlashRead),
    Program { die: u32, pages: u64, count: u32, wait: u32 },
    Erase { die: u32, blocks: u64, count: u32, wait: u32 },
    ZeroPeer { peer: u32, offset: u64, bytes: u32 },
    Pause { wait: u32 },
    Minimum { numbers: u64, count: u32 },
    Health { spare_percent: u32, media_errors: u64, read_only: u32 },
    ReadMap { lanes: u64, count: u32, corrected_bits_max: u32 },
}

/// A port of an SPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The app's memory.
    Local,
    /// The SPU's bank.
    Nv,
    /// The body of the request as a source, its reply as a destination.
    Network,
    /// Zeroes.
    Zero,
    /// No bytes: asks whether a write would be permitted.
    Nothing,
}

impl Port {
    /// The port of a number.
    #[inline(always)]
    pub fn of(number: u32) -> Option<Port> {
        match number {
            abi::PORT_LOCAL => Some(Port::Local),
            abi::PORT_NV => Some(Port::Nv),
            abi::PORT_NETWORK => Some(Port::Network),
            abi::PORT_ZERO => Some(Port::Zero),
            abi::PORT_NOTHING => Some(Port::Nothing),
            _ => None,
        }
    }
}

/// One end of a DMA.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub port: Port,
    pub address: u64,
    pub stride: i64,
}

/// A DMA as the app asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Dma {
    pub token: u32,
    pub source: End,
    pub destination: End,
    pub segment_bytes: u32,
    pub segments: u32,
    /// It waits where a permission is missing, instead of failing.
    pub parks: bool,
    pub wait: u32,
}

impl Dma {
    /// All that it is to move.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        u64::from(self.segment_bytes) * u64::from(self.segments)
    }

    /// Where the segment behind one lies, at both ends.
    #[inline(always)]
    pub fn after(&self, (from, to): (u64, u64)) -> (u64, u64) {
        (from.wrapping_add_signed(self.source.stride), to.wrapping_add_signed(self.destination.stride))
    }

    /// True where it brings NV memory to the app or to its request's reply.
    pub fn is_read(&self) -> bool {
        self.source.port == Port::Nv && self.destination.port != Port::Nv
    }

    /// True where there is such a thing: between ports that are connected, and no more than one may move.
    #[inline(always)]
    pub fn is_sound(&self) -> bool {
        let connected = match (self.source.port, self.destination.port) {
            (_, Port::Zero | Port::Nothing) => false,
            (Port::Nv, _) | (_, Port::Nv) => true,
            (Port::Nothing, _) | (Port::Network, Port::Network) => false,
            (Port::Local | Port::Network | Port::Zero, Port::Local | Port::Network) => true,
        };
        connected && self.bytes() <= abi::DMA_BYTES_MAX
    }
}

/// A DMA with one end in the bank of another SPU.
#[derive(Clone, Copy, Debug)]
pub struct RemoteDma {
    /// That SPU.
    pub spu: u16,
    /// The DMA, whose end there is [`Port::Nv`]; one segment.
    pub dma: Dma,
}

impl RemoteDma {
    /// True where there is such a thing: NV memory there, and the request or local memory here, or zeroes.
    pub fn is_sound(&self, spus: u32) -> bool {
        let (source, destination) = (self.dma.source.port, self.dma.destination.port);
        let has_one_end_there = (source == Port::Nv) != (destination == Port::Nv);
        u32::from(self.spu) < spus && has_one_end_there && source != Port::Nothing && self.dma.is_sound()
    }
}

/// Bytes of a request's body that its app wants.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub token: u32,
    /// From where on; `None`: from where the last one ended.
    pub offset: Option<u32>,
    pub to: u64,
    pub bytes: u32,
}

/// A comparison of NV memory with a range of the body.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    pub token: u32,
    pub address: u64,
    pub body_offset: u64,
    pub bytes: u32,
    pub wait: u32,
}

/// A CRC-32C of bytes at a port.
#[derive(Clone, Copy, Debug)]
pub struct Checksum {
    pub token: u32,
    pub port: Port,
    pub address: u64,
    pub bytes: u32,
    pub seed: u32,
    pub wait: u32,
}

/// A search as the app asks for it.
#[derive(Clone, Copy, Debug)]
pub struct LiteralSearch {
    pub token: u32,
    pub set: i32,
    pub port: Port,
    pub address: u64,
    pub bytes: u32,
    /// What the search before left: 1: in a line that has a match.
    pub state: u32,
    /// Where matches go.
    pub to: u64,
    pub most: u32,
    pub wait: u32,
}

/// A search as the app asks for it.
#[derive(Clone, Copy, Debug)]
pub struct KeySearch {
    pub token: u32,
    pub port: Port,
    pub address: u64,
    pub layout: Layout,
    /// The key's pointer.
    pub key: u64,
    pub wait: u32,
}

impl KeySearch {
    /// What it is charged, at most as it lies.
    pub fn work(&self) -> u64 {
        let layout = &self.layout;
        let copied_bytes = if self.port == Port::Local { 0 } else { u64::from(layout.span_bytes) };
        let most = if layout.order == 1 { layout.count } else { u32::BITS - layout.count.leading_zeros() };
        let comparison = COMPARISON_WORK + u64::from(layout.key_bytes) / BYTES_A_WORK;
        SEGMENT_WORK + copied_bytes / BYTES_A_WORK + u64::from(most) * comparison
    }
}

/// A message that an app begins.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    pub token: u32,
    pub to: Receiver,
    /// Of an upcall to a subscriber, the kind.
    pub handler: u8,
    pub body_bytes: u32,
    pub reply_pointer: u64,
    pub reply_bytes: u32,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// An SPU, and an app there.
    Spu(u16, AppNumber),
    /// The originating endpoint of the request.
    Originating,
    /// An endpoint that has subscribed.
    Subscriber(HreId),
}

/// What an app appends to a message.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    pub handle: i32,
    pub port: Port,
    pub address: u64,
    pub bytes: u32,
}

/// Where a read of a page goes.
#[derive(Clone, Copy, Debug)]
pub struct FlashRead {
    pub die: u32,
    pub block: u32,
    pub page: u32,
    pub offset: u32,
    pub bytes: u32,
    /// 0: `to` is a pointer; else a peer, and `to` an offset in it.
    pub peer: u32,
    pub to: u64,
    pub spare: u64,
    pub spare_bytes: u32,
    pub wait: u32,
}
