//! The custom section `willow.app` (docs/abi.md), put together when the app is compiled.

use crate::imports::ABI_VERSION;

// It is written as one digit.
const _: () = assert!(ABI_VERSION < 10);

/// A handler's number and name.
pub type Entry = (u8, &'static str);

const fn put<const BYTES: usize>(mut out: [u8; BYTES], mut at: usize, text: &[u8]) -> ([u8; BYTES], usize) {
    let mut index = 0;
    while index < text.len() {
        if at < BYTES {
            out[at] = text[index];
        }
        at += 1;
        index += 1;
    }
    (out, at)
}

const fn build<const BYTES: usize>(
    name: &str,
    version: &str,
    handlers: &[Entry],
    (public, kernel): (&str, &str),
    (settles, long): (bool, bool),
) -> ([u8; BYTES], usize) {
    let (mut out, mut at) = put([0; BYTES], 0, b"abi=");
    (out, at) = put(out, at, &[b'0' + ABI_VERSION as u8]);
    (out, at) = put(out, at, b"\nname=");
    (out, at) = put(out, at, name.as_bytes());
    (out, at) = put(out, at, b"\nversion=");
    (out, at) = put(out, at, version.as_bytes());
    (out, at) = put(out, at, b"\n");
    let mut index = 0;
    while index < handlers.len() {
        let (number, name) = handlers[index];
        let digits = [b'0' + number / 100, b'0' + number / 10 % 10, b'0' + number % 10];
        let skipped = if number >= 100 {
            0
        } else if number >= 10 {
            1
        } else {
            2
        };
        (out, at) = put(out, at, b"handler=");
        (out, at) = put(out, at, digits.split_at(skipped).1);
        (out, at) = put(out, at, b":");
        (out, at) = put(out, at, name.as_bytes());
        (out, at) = put(out, at, b"\n");
        index += 1;
    }
    if !public.is_empty() {
        (out, at) = put(out, at, b"public=");
        (out, at) = put(out, at, public.as_bytes());
        (out, at) = put(out, at, b"\n");
    }
    if !kernel.is_empty() {
        (out, at) = put(out, at, b"kernel=");
        (out, at) = put(out, at, kernel.as_bytes());
        (out, at) = put(out, at, b"\n");
    }
    if settles {
        (out, at) = put(out, at, b"settles=1\n");
    }
    if long {
        (out, at) = put(out, at, b"long=1\n");
    }
    (out, at)
}

/// Checks what [`crate::app!`] was given, and returns the manifest's length. `callers`: the values of the lines `public` and
/// `kernel`, which SPU-OS checks; empty for none. `settles`, `long`: whether there are lines `settles=1` and `long=1`.
pub const fn manifest_bytes(
    name: &str,
    version: &str,
    handlers: &[Entry],
    callers: (&str, &str),
    (settles, long): (bool, bool),
) -> usize {
    let letters = name.as_bytes();
    assert!(!letters.is_empty() && letters.len() <= 31, "an app's name has 1 to 31 characters");
    assert!(letters[0].is_ascii_lowercase(), "an app's name begins with a-z");
    let mut index = 0;
    while index < letters.len() {
        let letter = letters[index];
        assert!(
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-',
            "an app's name is made of a-z, 0-9 and -"
        );
        index += 1;
    }
    index = 0;
    while index < handlers.len() {
        assert!(handlers[index].0 != 0, "handler numbers are 1 to 255: 0 is for events");
        let mut other = index + 1;
        while other < handlers.len() {
            assert!(handlers[index].0 != handlers[other].0, "two handlers have the same number");
            other += 1;
        }
        index += 1;
    }
    build::<0>(name, version, handlers, callers, (settles, long)).1
}

/// The manifest.
pub const fn manifest<const BYTES: usize>(
    name: &str,
    version: &str,
    handlers: &[Entry],
    callers: (&str, &str),
    (settles, long): (bool, bool),
) -> [u8; BYTES] {
    build::<BYTES>(name, version, handlers, callers, (settles, long)).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        const HANDLERS: &[Entry] = &[(1, "get"), (17, "put"), (255, "scan")];
        const CALLERS: (&str, &str) = ("1,17", "255");
        const BYTES: usize = manifest_bytes("key-value", "0.1.0", HANDLERS, CALLERS, (true, true));
        let text = manifest::<BYTES>("key-value", "0.1.0", HANDLERS, CALLERS, (true, true));
        assert_eq!(
            std::str::from_utf8(&text),
            Ok(
                "abi=2\nname=key-value\nversion=0.1.0\nhandler=1:get\nhandler=17:put\nhandler=255:scan\npublic=1,17\nkernel=255\nsettles=1\nlong=1\n"
            )
        );
    }
}
