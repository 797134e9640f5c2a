//! Both ends of the rings of shared memory, `willow_shm::rings` as it is shipped, over a memory of loom's.
//!
//! ```text
//! memory  the words of one endpoint: loom's atomics where an end waits for the other, plain cells for all else
//! plant   mistakes in orderings, fences and orders of steps, each at one place of one end
//! play    a host and a device that submit, answer and sleep as the real ones do
//! ```
//!
//! What always holds: a run that ends well has taken every command and every completion once, whole and in order, and no
//! thread was left asleep. All else panics: loom reports a cell that two threads reach without order between them ("Causality
//! violation"), and threads that all wait ("deadlock").

pub mod memory;
pub mod plant;
pub mod play;

pub use plant::Plant;
pub use play::{Shape, explore};
