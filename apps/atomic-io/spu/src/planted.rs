//! Bugs that the tests plant, to see that they are caught. No handler ever has one unless a test of this crate asks for it.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Writes go to their places past the log.
    NoLog,
    /// A write goes to its place before it is durable in the log.
    PutsBeforeFlush,
    /// Recovery believes a header without a look at its data.
    TornData,
    /// A write of one unit goes past the log also where the log has something of the same place.
    UnitsPassBy,
    /// Zeroes are written while the log has something of the same place.
    ZeroesPassBy,
    /// Slots are used again before the media say that what they had is done.
    RetiresBeforeFlush,
    /// Two writes of the same place go beside each other.
    ClaimsNothing,
    /// Recovery puts the later of two writes in its place first.
    LaterFirst,
    /// A namespace that is deleted leaves its writes in the log.
    KeepsDeleted,
}

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: core::cell::Cell<Option<Planted>> = const { core::cell::Cell::new(None) };
}

/// Has all instances of this thread of the operating system have that bug from now on.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}

/// True where that bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Planted) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.get() == Some(bug);
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}
