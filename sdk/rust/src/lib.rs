//! willow-sdk (being written).
