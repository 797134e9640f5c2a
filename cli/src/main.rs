//! The `willow` command.
fn main() {}
