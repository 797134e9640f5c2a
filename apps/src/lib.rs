//! willow-apps (being written).
