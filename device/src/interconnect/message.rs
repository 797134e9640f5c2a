//! What the interconnect and the SPUs' DMA controllers are asked to carry, as far as its cost goes: messages and transfers, by value.

/// Bytes of a message's header on the wire: RPC id, source, originating HRE, length.
pub const HEADER_BYTES: u64 = 16;

/// Names an entry of one of an SPU's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub spu: u16,
    pub key: u32,
}

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host: over its link, the bridge and the interconnect.
    Host,
    /// The bridge itself, for what the device sends of its own accord.
    Bridge,
    /// An SPU.
    Spu(u16),
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// To name it in [`Agenda::arrive`]; below the number of events that the device holds, and taken again once it has arrived.
    pub id: u32,
    /// Sender.
    pub from: Endpoint,
    /// Receiver.
    pub to: Endpoint,
    /// Bytes of header and arguments.
    pub header_bytes: u32,
    /// Bytes of data that go with it.
    pub payload_bytes: u64,
}

/// What a DMA moves between, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaKind {
    /// From NV memory.
    NvRead,
    /// To NV memory.
    NvWrite,
    /// From NV memory to NV memory: `address` is where it is read.
    NvCopy {
        /// Where it is written.
        to: u64,
    },
    /// Between network and local memory.
    Local,
    /// Through an accelerator, from local memory and back: no DMA, but as one of the things that a processor starts and does not wait for.
    Accelerated {
        /// Its place in the registry of accelerators.
        accelerator: u8,
    },
}

/// A DMA: `segments` pieces of `segment_bytes`, `stride` bytes apart in NV memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Whose controller.
    pub spu: u16,
    /// Between what.
    pub kind: DmaKind,
    /// First byte in NV memory.
    pub address: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u32,
    /// From the begin of a segment to the begin of the next.
    pub stride: i64,
    /// Activity, for the trace.
    pub id: u32,
}

impl Transfer {
    /// Of bytes that an accelerator takes.
    pub(crate) fn accelerated(spu: u16, accelerator: u8, bytes: u64, id: u32) -> Self {
        let kind = DmaKind::Accelerated { accelerator };
        Transfer { spu, kind, address: 0, segment_bytes: bytes, segments: 1, stride: 0, id }
    }

    /// Of a range of NV memory, to be read in one piece.
    pub(crate) fn read(spu: u16, address: u64, bytes: u32, id: u32) -> Self {
        let segment_bytes = bytes.into();
        Transfer { spu, kind: DmaKind::NvRead, address, segment_bytes, segments: 1, stride: 0, id }
    }
}
