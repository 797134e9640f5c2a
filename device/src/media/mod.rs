//! The media: stores (where bytes live) and the media controller over them.

pub mod store;
