//! willow-wire (being written).
