//! willow-tests (being written).
