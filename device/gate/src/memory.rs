//! The calling app's memory, as operations use it.

/// A pointer outside of the app's memory: the call traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WildPointer {
    /// Where it points.
    pub pointer: u64,
    /// How many bytes are meant there.
    pub bytes: u64,
}

/// The calling app's memory.
pub trait LocalMemory {
    /// A range of it.
    ///
    /// # Errors
    /// Part of the range lies outside.
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer>;
    /// A range of it, to be written.
    ///
    /// # Errors
    /// Part of the range lies outside.
    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer>;
}
