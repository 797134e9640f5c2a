//! Bugs that the tests plant, to see that they are caught. No handler ever has one unless a test of this crate asks for it.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The length is settled before the record is durable.
    LengthTooEarly,
    /// An append is answered before its length is durable.
    AnswersTooEarly,
    /// A record goes to where the file ended before those that wait had their turn.
    StartsBeforeItsTurn,
    /// A file is suspended without waiting for the append under way.
    SuspendsAtOnce,
    /// Delegations that follow each other in one slot are not told apart.
    OneGeneration,
    /// Other SPUs' banks are not made durable.
    ForgetsOthers,
    /// Appends go on as if nothing were wrong after a length could not be written.
    ForgetsDoubt,
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
