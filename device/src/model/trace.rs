//! The trace of what the modelled hardware does: one span for each time that a resource works for somebody.
//!
//! Invariants: a span is told when its begin and end are known, which is before its end has come; those of one lane do not overlap
//! and are told in order of time. Without a sink the model takes one branch a step and nothing else.

use super::accelerator::Accelerator;

/// Where a span is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Host link, host to device.
    LinkIn,
    /// Host link, device to host.
    LinkOut,
    /// Bridge, host to ring.
    BridgeIn,
    /// Bridge, ring to host.
    BridgeOut,
    /// The ring.
    Ring,
    /// Processor of an SPU.
    Processor(u16),
    /// DMA controller of an SPU.
    Dma(u16),
    /// An accelerator of an SPU.
    Accelerator {
        /// The SPU.
        spu: u16,
        /// Which one.
        accelerator: Accelerator,
    },
    /// A bank (or unit) of the media of an SPU.
    Media {
        /// The SPU.
        spu: u16,
        /// The bank behind its controller.
        bank: u16,
    },
    /// Bus of a channel of an SPU's flash.
    Bus {
        /// The SPU.
        spu: u16,
        /// The channel.
        channel: u16,
    },
    /// Array of a die of an SPU's flash.
    Die {
        /// The SPU.
        spu: u16,
        /// The die.
        die: u16,
    },
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lane::LinkIn => f.write_str("link, host to device"),
            Lane::LinkOut => f.write_str("link, device to host"),
            Lane::BridgeIn => f.write_str("bridge, host to device"),
            Lane::BridgeOut => f.write_str("bridge, device to host"),
            Lane::Ring => f.write_str("ring"),
            Lane::Processor(spu) => write!(f, "SPU {spu} processor"),
            Lane::Dma(spu) => write!(f, "SPU {spu} DMA"),
            Lane::Accelerator { spu, accelerator } => write!(f, "SPU {spu} accelerator {}", accelerator.name()),
            Lane::Media { spu, bank } => write!(f, "SPU {spu} media bank {bank}"),
            Lane::Bus { spu, channel } => write!(f, "SPU {spu} flash channel {channel}"),
            Lane::Die { spu, die } => write!(f, "SPU {spu} flash die {die}"),
        }
    }
}

/// A time in which a resource works for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin, nanoseconds of the device's clock.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Whose time.
    pub lane: Lane,
    /// What it does.
    pub name: &'static str,
    /// For whom: the activity (see docs) or the message; 0 where it is nobody's.
    pub id: u64,
    /// Bytes that it moves.
    pub bytes: u64,
}

/// Takes spans.
pub trait TraceSink: Send {
    /// One more.
    fn span(&mut self, span: &Span);
}

/// A sink or none; to the model both are one branch.
#[derive(Default)]
pub(crate) struct Tracer(pub Option<Box<dyn TraceSink>>);

impl Tracer {
    #[inline]
    pub fn span(&mut self, lane: Lane, name: &'static str, (begin_ns, end_ns): (u64, u64), id: u64, bytes: u64) {
        if let Some(sink) = &mut self.0 {
            sink.span(&Span { begin_ns, end_ns, lane, name, id, bytes });
        }
    }
}
