//! Host RPC endpoints as the device sees them: an id, stamped by the bridge on all that comes in on its queue
//! (Willow, section 2.6). Nothing outside the bridge makes one from bytes that a sender chose.

use std::fmt;

/// Id of a host RPC endpoint. The high-order 20 bits name the process, the low 12 the endpoint within it; a zero
/// in the highest bit means that it belongs to the host kernel (Willow, section 2.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HreId(pub u32);

impl HreId {
    /// SPU-OS itself, for events that no host asked for.
    pub const DEVICE: HreId = HreId(0);
    const ENDPOINT_BITS: u32 = 12;

    /// True where the endpoint belongs to the host kernel, which is trusted.
    pub fn is_kernel(self) -> bool {
        self.0 >> 31 == 0
    }

    /// The process that the endpoint belongs to: its id's high-order bits.
    pub fn process(self) -> u32 {
        self.0 >> Self::ENDPOINT_BITS
    }
}

impl fmt::Debug for HreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hre:{:08x}", self.0)
    }
}
