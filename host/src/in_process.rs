//! In-process endpoint (being written).
