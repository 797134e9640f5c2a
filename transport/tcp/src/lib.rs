//! willow-tcp (being written).
