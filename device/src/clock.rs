//! The seam for the clocks: what each step costs in modelled time. The free clock has no model (`None`): every step is due
//! at once and is done in place. With a model, each step's end becomes an event; the driver of the clock advances time to
//! the wake-up that [`crate::Device::run`] returns (virtual clock), or waits for it (real clock).

/// One end of a message on the interconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The bridge, for all hosts.
    Bridge,
    /// An SPU.
    Spu(u16),
}

/// What a DMA moves between, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaKind {
    /// From NV memory.
    NvRead,
    /// To NV memory.
    NvWrite,
    /// Between network and local memory.
    Local,
}

/// A model of time. All functions are handed the time at which the step begins and return when it ends, in nanoseconds of the
/// device's clock, never before its beginning.
pub trait Timing {
    /// A message of `bytes` (header included) from one end of the interconnect to another.
    fn message(&mut self, now_ns: u64, from: Endpoint, to: Endpoint, bytes: u64) -> u64;
    /// A DMA at an SPU.
    fn dma(&mut self, now_ns: u64, spu: u16, kind: DmaKind, address: u64, bytes: u64) -> u64;
    /// A handler's run of `instructions` on an SPU's processor.
    fn processor(&mut self, now_ns: u64, spu: u16, instructions: u64) -> u64;
}
