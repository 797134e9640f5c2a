//! Flash in the place of NV memory, as `serve` has it: what the presets say of it is read where simulations read it.

pub use willow_sim::flash::{Contents, FlashChoice, ftl};
