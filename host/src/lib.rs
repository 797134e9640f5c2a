//! willow-host (being written).
