//! Standard output: what commands print for people and programs. A closed pipe is a quiet end, not a panic.

use crate::failure::{Outcome, fail};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints as it is.
pub fn bytes(bytes: &[u8]) -> Outcome<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => fail!("cannot write to standard output: {error}"),
        Ok(()) => Ok(()),
    }
}

/// Prints text, line ends included in it.
pub fn text(text: &str) -> Outcome<()> {
    bytes(text.as_bytes())
}

/// Prints a line.
pub fn line(line: &str) -> Outcome<()> {
    bytes(format!("{line}\n").as_bytes())
}

/// Prints one JSON object.
pub fn json(value: &impl Serialize) -> Outcome<()> {
    match serde_json::to_string_pretty(value) {
        Ok(object) => line(&object),
        Err(error) => fail!("cannot write JSON: {error}"),
    }
}
