//! base-io-host (being written).
