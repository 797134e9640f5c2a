//! key-value-spu (being written).
