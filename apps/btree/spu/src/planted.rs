//! Bugs that the tests plant, to see that they are caught. No handler ever has one unless a test of this crate asks for it.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The superblock is written before what it leads to is durable.
    RootTooEarly,
    /// A change is answered before its superblock is durable.
    AnswersTooEarly,
    /// Nodes are changed where they lie.
    ChangesInPlace,
    /// What a change gives up is used again by the same change.
    ReusesAtOnce,
    /// Other SPUs' banks are not made durable.
    ForgetsOthers,
    /// A superblock that may not be durable is trusted after a failure.
    TrustsDoubt,
    /// Nodes stay as they are until their last entry goes.
    NeverMerges,
    /// Searches do not look whether the tree has changed meanwhile.
    NeverLooksBack,
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
