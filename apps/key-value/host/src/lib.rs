//! key-value-host (being written).
