//! memcached's meta commands: mg, ms, md, ma, mn (doc/protocol.txt, "Meta Commands").
//!
//! What always holds: a flag that is not understood is refused, never ignored. Not supported, and refused with the reason, are
//! those that need what the device does not keep: last accesses and hits (h, l, and the win and stale flags N, R, I), and versions
//! of the client's choice (E).

use crate::command::{Limits, Mode, Parse, Request, Style, Verb};
use crate::item::{Name, expiry};
use crate::text::{BAD_DATA, BAD_LINE, data, number};
use base64ct::{Base64, Encoding};

/// Longest opaque token.
const OPAQUE_BYTES_MAX: usize = 32;
/// Longest key in base64.
const KEY_TEXT_BYTES_MAX: usize = 336;
const UNSUPPORTED: &[u8] = b"CLIENT_ERROR unsupported flag\r\n";
const INVALID: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
const DUPLICATE: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";

/// Which of the meta commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// mg.
    Get,
    /// ms.
    Set,
    /// md.
    Delete,
    /// ma.
    Count,
}

/// How the answer to a meta command looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaStyle {
    /// Which command.
    pub kind: Kind,
    /// What is wanted back, in the order asked: flags, the opaque token behind its O.
    pub wanted: Vec<u8>,
    /// The value is wanted (v).
    pub value: bool,
    /// The usual outcome is not told (q).
    pub quiet: bool,
    /// The key was in base64, and is wanted back like that (b).
    pub base64: bool,
}

#[derive(Default)]
struct Flags<'a> {
    wanted: Vec<u8>,
    value: bool,
    quiet: bool,
    base64: bool,
    version: Option<u64>,
    client_flags: u32,
    time: Option<i64>,
    vivify: Option<i64>,
    mode: Option<&'a [u8]>,
    initial: Option<u64>,
    delta: Option<u64>,
}

impl<'a> Flags<'a> {
    fn of(kind: Kind, words: impl Iterator<Item = &'a [u8]>) -> Result<Self, &'static [u8]> {
        let mut flags = Flags::default();
        let mut seen = 0_u128;
        for word in words {
            let Some((&letter, token)) = word.split_first() else { continue };
            if !letter.is_ascii_alphabetic() {
                return Err(INVALID);
            }
            if seen >> letter & 1 != 0 {
                return Err(DUPLICATE);
            }
            seen |= 1 << letter;
            let long = || number::<u64>(token).ok_or(INVALID);
            let time = || number::<i64>(token).ok_or(INVALID);
            let none = || if token.is_empty() { Ok(()) } else { Err(INVALID) };
            match (kind, letter) {
                (_, b'O') => {
                    if token.len() > OPAQUE_BYTES_MAX {
                        return Err(b"CLIENT_ERROR opaque token too long\r\n");
                    }
                    flags.wanted.extend_from_slice(b" O");
                    flags.wanted.extend_from_slice(token);
                }
                (_, b'b') => flags.base64 = none().map(|()| true)?,
                (_, b'q') => flags.quiet = none().map(|()| true)?,
                (_, b'k') | (Kind::Get | Kind::Count | Kind::Set, b'c') => {
                    none()?;
                    flags.wanted.extend_from_slice(&[b' ', letter]);
                }
                (Kind::Get, b'f' | b's' | b't') | (Kind::Count, b't') | (Kind::Set, b's') => {
                    none()?;
                    flags.wanted.extend_from_slice(&[b' ', letter]);
                }
                (Kind::Get | Kind::Count, b'v') => flags.value = none().map(|()| true)?,
                (Kind::Get | Kind::Set | Kind::Count, b'T') => flags.time = Some(time()?),
                (Kind::Set | Kind::Delete | Kind::Count, b'C') => flags.version = Some(long()?),
                (Kind::Set, b'F') => flags.client_flags = number(token).ok_or(INVALID)?,
                (Kind::Count, b'N') => flags.vivify = Some(time()?),
                (Kind::Set | Kind::Count, b'M') => flags.mode = Some(token),
                (Kind::Count, b'J') => flags.initial = Some(long()?),
                (Kind::Count, b'D') => flags.delta = Some(long()?),
                _ => return Err(UNSUPPORTED),
            }
        }
        Ok(flags)
    }

    fn style(&mut self, kind: Kind) -> Style {
        let wanted = std::mem::take(&mut self.wanted);
        let (value, quiet, base64) = (self.value, self.quiet, self.base64);
        Style::Meta(Box::new(MetaStyle { kind, wanted, value, quiet, base64 }))
    }

    fn name(&self, word: &[u8]) -> Option<Name> {
        if !self.base64 {
            return Name::new(word);
        }
        let mut decoded = [0; KEY_TEXT_BYTES_MAX];
        let text = std::str::from_utf8(word).ok().filter(|text| text.len() <= KEY_TEXT_BYTES_MAX)?;
        Name::new(Base64::decode(text, &mut decoded).ok()?)
    }

    /// A version of 0 is nobody's.
    fn version(&self) -> u64 {
        match self.version {
            None => 0,
            Some(0) => u64::MAX,
            Some(version) => version,
        }
    }
}

/// Parses a meta command, whose line is at the start of the input.
pub fn parse<'a>(input: &'a [u8], line: &'a [u8], line_bytes: usize, limits: &Limits, now_s: u32) -> Parse<'a> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let kind = match words.next() {
        Some(b"mn") => return Parse::Request(Request::Say(b"MN\r\n".to_vec()), line_bytes),
        Some(b"mg") => Kind::Get,
        Some(b"ms") => Kind::Set,
        Some(b"md") => Kind::Delete,
        Some(b"ma") => Kind::Count,
        _ => return Parse::bad(b"CLIENT_ERROR unsupported command\r\n", line_bytes),
    };
    let Some(key) = words.next() else { return Parse::bad(BAD_LINE, line_bytes) };
    if kind == Kind::Set {
        return set(input, key, words, line_bytes, limits, now_s);
    }
    let mut flags = match Flags::of(kind, words) {
        Ok(flags) => flags,
        Err(answer) => return Parse::bad(answer, line_bytes),
    };
    let Some(name) = flags.name(key) else { return Parse::bad(BAD_LINE, line_bytes) };
    let at = |time: i64| expiry(time, now_s);
    let verb = match kind {
        Kind::Delete => Verb::Delete { version: flags.version() },
        Kind::Count => {
            let down = match flags.mode {
                None | Some(b"I" | b"i" | b"+" | b"incr") => false,
                Some(b"D" | b"d" | b"-" | b"decr") => true,
                Some(_) => return Parse::bad(b"CLIENT_ERROR invalid mode for arithmetic\r\n", line_bytes),
            };
            let initial = flags.vivify.map(|time| (flags.initial.unwrap_or(0), at(time)));
            let delta = flags.delta.unwrap_or(1);
            Verb::Count { delta, down, initial, touch: flags.time.map(at), version: flags.version() }
        }
        _ => Verb::Get { touch: flags.time.map(at) },
    };
    let style = flags.style(kind);
    Parse::Request(Request::One { name: Box::new(name), verb, style, data: &[] }, line_bytes)
}

fn set<'a>(
    input: &'a [u8],
    key: &[u8],
    mut words: impl Iterator<Item = &'a [u8]>,
    line_bytes: usize,
    limits: &Limits,
    now_s: u32,
) -> Parse<'a> {
    let bytes = words.next().and_then(number::<usize>).filter(|bytes| *bytes <= i32::MAX as usize);
    let Some(bytes) = bytes else { return Parse::bad(BAD_DATA, line_bytes) };
    let flags = Flags::of(Kind::Set, words);
    let mode = |flags: &Flags<'_>| {
        Ok(match flags.mode {
            None | Some(b"S" | b"s" | b"set") => Mode::Set,
            Some(b"E" | b"e" | b"add") => Mode::Add,
            Some(b"R" | b"r" | b"replace") => Mode::Replace,
            Some(b"A" | b"a" | b"append") => Mode::Append,
            Some(b"P" | b"p" | b"prepend") => Mode::Prepend,
            Some(_) => return Err(&b"CLIENT_ERROR invalid mode for ms\r\n"[..]),
        })
    };
    let parts = flags.and_then(|flags| {
        let name = flags.name(key).ok_or(BAD_LINE)?;
        Ok((mode(&flags)?, name, flags))
    });
    let refused = parts.as_ref().err().copied();
    let (data, whole) = match data(input, line_bytes, bytes, limits, refused) {
        Ok(found) => found,
        Err(parse) => return parse,
    };
    let Ok((mode, name, mut flags)) = parts else { return Parse::bad(BAD_LINE, whole) };
    let verb = Verb::Store {
        mode,
        flags: flags.client_flags,
        expiry: expiry(flags.time.unwrap_or(0), now_s),
        version: flags.version(),
    };
    let style = flags.style(Kind::Set);
    Parse::Request(Request::One { name: Box::new(name), verb, style, data }, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { data_bytes_max: 1000 };

    fn one(input: &[u8]) -> (String, Verb, MetaStyle) {
        match crate::text::parse(input, &LIMITS, 100) {
            Parse::Request(Request::One { name, verb, style: Style::Meta(style), .. }, bytes) => {
                assert_eq!(bytes, input.len());
                (String::from_utf8(name.as_bytes().to_vec()).unwrap(), verb, *style)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_are_kept_in_their_order() {
        let (name, verb, style) = one(b"mg Zm9v b t k v Oabc f q\r\n");
        assert_eq!((name.as_str(), verb), ("foo", Verb::Get { touch: None }));
        assert_eq!(style.wanted, b" t k Oabc f");
        assert!(style.value && style.quiet && style.base64);
        let (_, verb, _) = one(b"ms foo 3 T60 F5 MR C9\r\nbar\r\n");
        let expected = Verb::Store { mode: Mode::Replace, flags: 5, expiry: 160, version: 9 };
        assert_eq!(verb, expected);
        let (_, verb, _) = one(b"ma foo N0 J13 D5 M-\r\n");
        assert_eq!(verb, Verb::Count { delta: 5, down: true, initial: Some((13, 0)), touch: None, version: 0 });
        assert_eq!(one(b"md foo C0\r\n").1, Verb::Delete { version: u64::MAX });
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let answer = |input: &[u8]| match crate::text::parse(input, &LIMITS, 100) {
            Parse::Bad { answer, .. } => String::from_utf8(answer).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(answer(b"mg foo l\r\n"), "CLIENT_ERROR unsupported flag\r\n");
        assert_eq!(answer(b"mg foo v v\r\n"), "CLIENT_ERROR duplicate flag\r\n");
        assert_eq!(answer(b"mg foo v1\r\n"), "CLIENT_ERROR invalid flag\r\n");
        assert_eq!(answer(b"mg foo !\r\n"), "CLIENT_ERROR invalid flag\r\n");
        assert_eq!(answer(b"mg\r\n"), "CLIENT_ERROR bad command line format\r\n");
        assert_eq!(answer(b"mg %%% b\r\n"), "CLIENT_ERROR bad command line format\r\n");
        assert_eq!(answer(b"ms foo x\r\n"), "CLIENT_ERROR bad data chunk\r\n");
        assert_eq!(answer(b"ms foo 2 Mx\r\nab\r\n"), "CLIENT_ERROR invalid mode for ms\r\n");
        assert_eq!(answer(b"ma foo Mx\r\n"), "CLIENT_ERROR invalid mode for arithmetic\r\n");
        assert_eq!(answer(b"mz foo\r\n"), "ERROR\r\n");
    }
}
