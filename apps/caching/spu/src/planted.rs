//! Bugs that the tests plant, to see that they are caught. No handler ever has one unless a test of this crate asks for it.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A dirty chunk makes way for another, as if it were clean.
    DirtyDropped,
    /// The map names a chunk before its bytes are durable.
    MapBeforeData,
    /// A clean chunk is changed before the map says durably that it is dirty.
    DataBeforeDirty,
    /// A slot has another chunk's bytes while the map on the media still names the one before.
    EvictsInMemoryOnly,
    /// A chunk that was written after it was read for the backing file counts as clean.
    CleansWhatChanged,
    /// The map says that a chunk is clean whose last bytes are not durable here.
    CleanBeforeData,
    /// A sync is answered before the bank is durable.
    SyncsNothing,
    /// The start takes dirty chunks for clean ones.
    RecoversAsClean,
    /// A revocation does not wait for what is under way.
    RevokesAtOnce,
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
