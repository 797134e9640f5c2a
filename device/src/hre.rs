//! Host RPC endpoints as the device sees them: an id, stamped by the bridge on all that comes in on its queue.

pub use willow_gate::hre::HreId;
