//! What became of a request for one key, and how each protocol says it.

use crate::binary::{self, status};
use crate::command::{Style, Verb};
use crate::item::{Name, seconds_left};
use crate::meta::{Kind, MetaStyle};
use base64ct::{Base64, Encoding};

/// An item that was found, but for its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The client's flags.
    pub flags: u32,
    /// Its version.
    pub version: u64,
    /// When it ends.
    pub expiry: u32,
    /// Length of its data.
    pub bytes: usize,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its data follow.
    Found(Found),
    /// Stored, with this version.
    Stored(u64),
    /// A condition was not met.
    NotStored,
    /// It has another version.
    Changed,
    /// There is none.
    NotFound,
    /// Removed.
    Deleted,
    /// Has another expiry.
    Touched,
    /// All is gone.
    Cleared,
    /// Pairs, and bytes of their values, where the device tells.
    Counted(Option<(u64, u64)>),
    /// The number that it is now, its version and expiry.
    Number(u64, u64, u32),
    /// It is no number.
    NonNumeric,
    /// Longer than an item may be.
    TooLarge,
    /// No room.
    Full,
    /// The device failed; what was asked for may be done or not.
    Failed(&'static str),
}

/// Appends a number in decimal digits.
pub fn digits(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends an answer; `data` appends those of an item that was found.
pub fn write(
    out: &mut Vec<u8>,
    (name, verb, style): (&Name, &Verb, &Style),
    outcome: &Outcome,
    now_s: u32,
    data: impl FnOnce(&mut Vec<u8>),
) {
    match style {
        Style::Text { quiet, versions } => text(out, name, verb, outcome, (*quiet, *versions), data),
        Style::Meta(style) => meta(out, name, verb, outcome, style, now_s, data),
        Style::Binary { opcode, opaque } => in_binary(out, name, verb, outcome, (*opcode, *opaque), data),
    }
}

/// The failures that all commands share.
fn failure(outcome: &Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Full => "SERVER_ERROR out of memory storing object\r\n",
        Outcome::TooLarge => "SERVER_ERROR object too large for cache\r\n",
        Outcome::NonNumeric => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        Outcome::Failed(text) => text,
        _ => return None,
    })
}

fn text(
    out: &mut Vec<u8>,
    name: &Name,
    verb: &Verb,
    outcome: &Outcome,
    (quiet, versions): (bool, bool),
    data: impl FnOnce(&mut Vec<u8>),
) {
    if let Verb::Get { .. } = verb {
        // A miss says nothing. Nor can a failure be said for one key of several: the whole is answered with it.
        let Outcome::Found(found) = outcome else { return };
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(name.as_bytes());
        out.push(b' ');
        digits(out, found.flags);
        out.push(b' ');
        digits(out, found.bytes);
        if versions {
            out.push(b' ');
            digits(out, found.version);
        }
        out.extend_from_slice(b"\r\n");
        data(out);
        out.extend_from_slice(b"\r\n");
        return;
    }
    if quiet {
        return;
    }
    let said = match outcome {
        Outcome::Number(number, ..) => {
            digits(out, *number);
            "\r\n"
        }
        Outcome::Stored(_) => "STORED\r\n",
        Outcome::NotStored => "NOT_STORED\r\n",
        Outcome::Changed => "EXISTS\r\n",
        Outcome::NotFound if is_condition_of_store(verb) => "NOT_STORED\r\n",
        Outcome::NotFound => "NOT_FOUND\r\n",
        Outcome::Deleted => "DELETED\r\n",
        Outcome::Touched => "TOUCHED\r\n",
        Outcome::Cleared => "OK\r\n",
        other => failure(other).unwrap_or("SERVER_ERROR\r\n"),
    };
    out.extend_from_slice(said.as_bytes());
}

/// Whether there being none means that it was not stored, rather than that it was not found: without a version.
fn is_condition_of_store(verb: &Verb) -> bool {
    matches!(verb, Verb::Store { version: 0, .. })
}

fn meta(
    out: &mut Vec<u8>,
    name: &Name,
    verb: &Verb,
    outcome: &Outcome,
    style: &MetaStyle,
    now_s: u32,
    data: impl FnOnce(&mut Vec<u8>),
) {
    if let Some(failed) = failure(outcome) {
        out.extend_from_slice(failed.as_bytes());
        return;
    }
    let mut returned = Found::default();
    let mut value: Option<Vec<u8>> = None;
    let code: &[u8] = match outcome {
        Outcome::Found(found) => {
            returned = *found;
            if style.value { b"VA" } else { b"HD" }
        }
        Outcome::Number(number, version, expiry) => {
            let mut number_text = Vec::new();
            digits(&mut number_text, *number);
            returned = Found { version: *version, expiry: *expiry, bytes: number_text.len(), flags: 0 };
            value = Some(number_text);
            if style.value { b"VA" } else { b"HD" }
        }
        Outcome::Stored(version) => {
            returned.version = *version;
            b"HD"
        }
        Outcome::Deleted | Outcome::Touched | Outcome::Cleared => b"HD",
        Outcome::NotStored => b"NS",
        Outcome::Changed => b"EX",
        Outcome::NotFound if style.kind == Kind::Get => b"EN",
        Outcome::NotFound if is_condition_of_store(verb) => b"NS",
        _ => b"NF",
    };
    let usual: &[&[u8]] = match style.kind {
        Kind::Get => &[b"EN"],
        Kind::Set => &[b"HD"],
        Kind::Delete => &[b"HD", b"NF"],
        Kind::Count => &[b"NF", b"HD"],
    };
    if style.quiet && usual.contains(&code) {
        return;
    }
    out.extend_from_slice(code);
    if code == b"EN" {
        // A miss has no flags.
        out.extend_from_slice(b"\r\n");
        return;
    }
    if code == b"VA" {
        out.push(b' ');
        digits(out, returned.bytes);
    }
    let there = matches!(code, b"VA" | b"HD");
    for flag in style.wanted.split(|byte| *byte == b' ').filter(|flag| !flag.is_empty()) {
        let start = out.len();
        out.extend_from_slice(b" ");
        out.extend_from_slice(&flag[..1]);
        match flag[0] {
            b'O' => out.extend_from_slice(&flag[1..]),
            b'k' => match style.base64 {
                true => out.extend_from_slice(Base64::encode_string(name.as_bytes()).as_bytes()),
                false => out.extend_from_slice(name.as_bytes()),
            },
            b'c' if there => digits(out, returned.version),
            b'f' if there => digits(out, returned.flags),
            b's' if there => match verb {
                Verb::Store { .. } => out.truncate(start),
                _ => digits(out, returned.bytes),
            },
            b't' if there => digits(out, seconds_left(returned.expiry, now_s)),
            _ => out.truncate(start),
        }
    }
    if style.base64 && style.wanted.windows(2).any(|flag| flag == b" k") {
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
    if code == b"VA" {
        match value {
            Some(text) => out.extend_from_slice(&text),
            None => data(out),
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn in_binary(
    out: &mut Vec<u8>,
    name: &Name,
    verb: &Verb,
    outcome: &Outcome,
    (opcode, opaque): (u8, u32),
    data: impl FnOnce(&mut Vec<u8>),
) {
    let quiet = binary::is_quiet(opcode);
    let failed = match outcome {
        Outcome::Found(found) => {
            let key: &[u8] = if binary::tells_key(opcode) { name.as_bytes() } else { &[] };
            let head = binary::header(opcode, status::OK, key.len(), 4, found.bytes, opaque, found.version);
            out.extend_from_slice(&head);
            out.extend_from_slice(&found.flags.to_be_bytes());
            out.extend_from_slice(key);
            data(out);
            return;
        }
        Outcome::Number(number, version, _) => {
            if !quiet {
                out.extend_from_slice(&binary::header(opcode, status::OK, 0, 0, 8, opaque, *version));
                out.extend_from_slice(&number.to_be_bytes());
            }
            return;
        }
        Outcome::Stored(version) => {
            if !quiet {
                out.extend_from_slice(&binary::header(opcode, status::OK, 0, 0, 0, opaque, *version));
            }
            return;
        }
        Outcome::Deleted | Outcome::Touched | Outcome::Cleared | Outcome::Counted(_) => {
            if !quiet {
                out.extend_from_slice(&binary::header(opcode, status::OK, 0, 0, 0, opaque, 0));
            }
            return;
        }
        Outcome::NotFound => match verb {
            Verb::Get { .. } if quiet => return,
            Verb::Store { mode: crate::command::Mode::Append | crate::command::Mode::Prepend, .. } => {
                status::NOT_STORED
            }
            _ => status::NOT_FOUND,
        },
        Outcome::NotStored => match verb {
            Verb::Store { mode: crate::command::Mode::Add, .. } => status::EXISTS,
            Verb::Store { mode: crate::command::Mode::Replace, .. } => status::NOT_FOUND,
            _ => status::NOT_STORED,
        },
        Outcome::Changed => status::EXISTS,
        Outcome::NonNumeric => status::NON_NUMERIC,
        Outcome::TooLarge => status::TOO_LARGE,
        Outcome::Full => status::OUT_OF_MEMORY,
        Outcome::Failed(_) => status::INTERNAL,
    };
    if failed == status::NOT_FOUND && binary::tells_key(opcode) {
        // As memcached: who asked for the key is told it with a miss as well.
        let key = name.as_bytes();
        out.extend_from_slice(&binary::header(opcode, failed, key.len(), 0, 0, opaque, 0));
        out.extend_from_slice(key);
        return;
    }
    out.extend_from_slice(&binary::say(opcode, opaque, failed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Limits, Parse, Request};

    /// The answer to a request that ends so.
    fn said(input: &[u8], outcome: Outcome) -> String {
        let Parse::Request(Request::One { name, verb, style, .. }, _) =
            crate::text::parse(input, &Limits { data_bytes_max: 100 }, 100)
        else {
            panic!("a request")
        };
        let mut out = Vec::new();
        write(&mut out, (&name, &verb, &style), &outcome, 100, |out| out.extend_from_slice(b"data"));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn in_the_words_of_each_protocol() {
        let found = Outcome::Found(Found { flags: 5, version: 77, expiry: 160, bytes: 4 });
        assert_eq!(said(b"mg foo v k t f c s Oabc\r\n", found), "VA 4 kfoo t60 f5 c77 s4 Oabc\r\ndata\r\n");
        assert_eq!(said(b"mg foo t\r\n", found), "HD t60\r\n");
        assert_eq!(said(b"mg Zm9v b k\r\n", found), "HD kZm9v b\r\n");
        assert_eq!(said(b"mg foo k v\r\n", Outcome::NotFound), "EN\r\n");
        assert_eq!(said(b"mg foo q v\r\n", Outcome::NotFound), "");
        assert_eq!(said(b"ms foo 1 c k\r\nx\r\n", Outcome::Stored(9)), "HD c9 kfoo\r\n");
        assert_eq!(said(b"ms foo 1 ME\r\nx\r\n", Outcome::NotStored), "NS\r\n");
        assert_eq!(said(b"ms foo 1 C5 O1\r\nx\r\n", Outcome::Changed), "EX O1\r\n");
        assert_eq!(said(b"ms foo 1 C5\r\nx\r\n", Outcome::NotFound), "NF\r\n");
        assert_eq!(said(b"ms foo 1 q\r\nx\r\n", Outcome::Stored(9)), "");
        assert_eq!(said(b"md foo q\r\n", Outcome::NotFound), "");
        assert_eq!(said(b"ma foo v t\r\n", Outcome::Number(12, 3, 0)), "VA 2 t-1\r\n12\r\n");
        assert_eq!(said(b"set foo 0 0 1\r\nx\r\n", Outcome::Stored(9)), "STORED\r\n");
        assert_eq!(said(b"set foo 0 0 1 noreply\r\nx\r\n", Outcome::Stored(9)), "");
        assert_eq!(said(b"append foo 0 0 1\r\nx\r\n", Outcome::NotFound), "NOT_STORED\r\n");
        assert_eq!(said(b"cas foo 0 0 1 5\r\nx\r\n", Outcome::NotFound), "NOT_FOUND\r\n");
        assert_eq!(said(b"cas foo 0 0 1 5\r\nx\r\n", Outcome::Changed), "EXISTS\r\n");
        assert_eq!(said(b"incr foo 1\r\n", Outcome::Number(18, 1, 0)), "18\r\n");
        assert_eq!(said(b"touch foo 1\r\n", Outcome::Touched), "TOUCHED\r\n");
        assert_eq!(said(b"delete foo\r\n", Outcome::Deleted), "DELETED\r\n");
    }
}
