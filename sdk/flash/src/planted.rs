//! Bugs that the tests plant, to see that the tests would catch them.

/// A mistake that an FTL could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Recovery takes the header of a page without looking at the block sequence.
    HeaderUnchecked,
    /// The root of a checkpoint is written before its data.
    RootBeforeData,
    /// A collected block is erased before what replaced its pages is durable.
    EraseBeforeDurable,
    /// Recovery takes the version with the lower sequence.
    WrongSequence,
    /// A trim leaves no record.
    TrimForgotten,
    /// A copy takes effect without looking whether the page was written meanwhile.
    CopyUnconditional,
    /// Recovery gives the old checkpoint's blocks away before the new one is durable.
    RecoveryReleasesEarly,
    /// A flush does not settle lower pages.
    UnsettledFlush,
    /// A collected block is forgotten.
    BlockLeaked,
}

impl Planted {
    /// All of them, each with its name.
    pub const ALL: [(&'static str, Planted); 9] = [
        ("header-unchecked", Planted::HeaderUnchecked),
        ("root-before-data", Planted::RootBeforeData),
        ("erase-before-durable", Planted::EraseBeforeDurable),
        ("wrong-sequence", Planted::WrongSequence),
        ("trim-forgotten", Planted::TrimForgotten),
        ("copy-unconditional", Planted::CopyUnconditional),
        ("recovery-releases-early", Planted::RecoveryReleasesEarly),
        ("unsettled-flush", Planted::UnsettledFlush),
        ("block-leaked", Planted::BlockLeaked),
    ];
}

/// Whether a bug is planted: never, outside of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plants {
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<Planted>,
}

impl Plants {
    #[cfg(feature = "planted")]
    pub(crate) fn has(self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    #[cfg(not(feature = "planted"))]
    pub(crate) fn has(self, _: Planted) -> bool {
        false
    }
}
