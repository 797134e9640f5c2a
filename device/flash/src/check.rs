//! Refuses parameters that are absurd or contradict each other: field, value, and what was expected.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// A parameter that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, expected {expected}")]
pub struct Absurd {
    /// Which one.
    pub field: &'static str,
    /// What it was.
    pub value: String,
    /// What it should have been.
    pub expected: String,
}

impl Absurd {
    pub(crate) fn new(field: &'static str, value: impl Display, expected: &str) -> Absurd {
        Absurd { field, value: value.to_string(), expected: expected.into() }
    }
}

/// Refuses what is outside a range; what does not compare (not a number) is in no range.
pub(crate) fn within<T: PartialOrd + Display>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
    unit: &str,
) -> Result<(), Absurd> {
    if range.contains(&value) {
        return Ok(());
    }
    let expected = format!("{} to {} {unit}", range.start(), range.end());
    Err(Absurd { field, value: value.to_string(), expected })
}
