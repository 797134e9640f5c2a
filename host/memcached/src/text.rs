//! memcached's text protocol (its doc/protocol.txt): from bytes to requests. Meta commands are in [`crate::meta`].
//!
//! What always holds: nothing is kept between two calls; a command is taken as a whole or not at all.

use crate::command::{KEYS_LINE_BYTES_MAX, LINE_BYTES_MAX, Limits, Mode, Parse, Request, Style, Verb};
use crate::item::{KEY_BYTES_MAX, Name, expiry};
use crate::meta;

/// The protocol's version that is spoken, and ours. Clients want three numbers.
pub const VERSION: &str = concat!("1.6.0-willow-", env!("CARGO_PKG_VERSION"));

/// Something else than a command.
pub const ERROR: &[u8] = b"ERROR\r\n";
/// A command that is written wrongly.
pub const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
/// Data of another length than was said.
pub const BAD_DATA: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
/// Longer than an item may be.
pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
/// Words of a command that are looked at.
const WORDS_MAX: usize = 8;

/// A number in decimal digits.
pub fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// The line at the start of the input, without its end, and its length with it.
fn line(input: &[u8]) -> Result<(&[u8], usize), Parse<'static>> {
    let many = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|command| input.starts_with(command));
    let most = if many { KEYS_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
    match input.iter().take(most).position(|byte| *byte == b'\n') {
        Some(end) => Ok((input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]), end + 1)),
        None if input.len() >= most => Err(Parse::fatal(LINE_TOO_LONG)),
        None => Err(Parse::Incomplete(input.len() + 1)),
    }
}

/// Parses the start of a connection's input.
pub fn parse<'a>(input: &'a [u8], limits: &Limits, now_s: u32) -> Parse<'a> {
    let (line, line_bytes) = match line(input) {
        Ok(found) => found,
        Err(parse) => return parse,
    };
    let mut words: [&[u8]; WORDS_MAX] = [&[]; WORDS_MAX];
    let mut count = 0;
    for word in line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).take(WORDS_MAX) {
        words[count] = word;
        count += 1;
    }
    let words = &words[..count];
    let Some((&command, rest)) = words.split_first() else { return Parse::bad(ERROR, line_bytes) };
    let say = |text: &[u8]| Parse::Request(Request::Say(text.to_vec()), line_bytes);
    match command {
        b"get" => many(line, 1, None, false, line_bytes),
        b"gets" => many(line, 1, None, true, line_bytes),
        b"gat" | b"gats" => match rest.first().map(|word| number::<i64>(word)) {
            None => Parse::bad(ERROR, line_bytes),
            Some(None) => Parse::bad(BAD_EXPTIME, line_bytes),
            Some(Some(time)) => many(line, 2, Some(expiry(time, now_s)), command == b"gats", line_bytes),
        },
        b"set" => store(input, rest, Mode::Set, false, line_bytes, limits, now_s),
        b"add" => store(input, rest, Mode::Add, false, line_bytes, limits, now_s),
        b"replace" => store(input, rest, Mode::Replace, false, line_bytes, limits, now_s),
        b"append" => store(input, rest, Mode::Append, false, line_bytes, limits, now_s),
        b"prepend" => store(input, rest, Mode::Prepend, false, line_bytes, limits, now_s),
        b"cas" => store(input, rest, Mode::Set, true, line_bytes, limits, now_s),
        b"delete" => delete(rest, line_bytes),
        b"incr" | b"decr" => count_by(rest, command == b"decr", line_bytes),
        b"touch" => touch(rest, line_bytes, now_s),
        b"flush_all" => flush_all(rest, line_bytes),
        b"version" => say(format!("VERSION {VERSION}\r\n").as_bytes()),
        // There is neither a log of that kind nor a cache whose memory could be limited.
        b"verbosity" | b"cache_memlimit" => match rest {
            [] => Parse::bad(ERROR, line_bytes),
            [.., b"noreply"] => Parse::Request(Request::Nothing, line_bytes),
            [level] if number::<u32>(level).is_some() => say(b"OK\r\n"),
            _ => Parse::bad(BAD_LINE, line_bytes),
        },
        b"stats" => {
            let style = Style::Text { quiet: false, versions: false };
            let what = rest.first().copied().unwrap_or_default();
            Parse::Request(Request::Statistics { what, style }, line_bytes)
        }
        b"quit" => Parse::Request(Request::Quit(Vec::new()), line_bytes),
        b"shutdown" => Parse::bad(b"ERROR: shutdown not enabled\r\n", line_bytes),
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::parse(input, line, line_bytes, limits, now_s),
        _ => Parse::bad(ERROR, line_bytes),
    }
}

/// The words of a line behind the first `skip`, where there are some.
fn many(line: &[u8], skip: usize, touch: Option<u32>, versions: bool, line_bytes: usize) -> Parse<'_> {
    let mut keys = line;
    for _ in 0..skip {
        keys = keys.trim_ascii_start();
        keys = &keys[keys.iter().position(|byte| *byte == b' ').unwrap_or(keys.len())..];
    }
    let mut words = keys.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).peekable();
    if words.peek().is_none() {
        return Parse::bad(ERROR, line_bytes);
    }
    if words.any(|word| word.len() > KEY_BYTES_MAX) {
        return Parse::bad(BAD_LINE, line_bytes);
    }
    Parse::Request(Request::Many { keys, touch, versions }, line_bytes)
}

/// Whether the last word says that nothing is to be answered; the words before.
fn quiet<'a, 'b>(words: &'b [&'a [u8]]) -> (bool, &'b [&'a [u8]]) {
    match words {
        [before @ .., b"noreply"] => (true, before),
        _ => (false, words),
    }
}

/// Data behind a line: they, and the length of line, data and end; or what to do instead.
pub fn data<'a>(
    input: &'a [u8],
    line_bytes: usize,
    bytes: usize,
    limits: &Limits,
    refused: Option<&[u8]>,
) -> Result<(&'a [u8], usize), Parse<'a>> {
    let whole = line_bytes as u64 + bytes as u64 + 2;
    let refused = refused.or((bytes > limits.data_bytes_max).then_some(TOO_LARGE));
    if let Some(answer) = refused {
        return Err(Parse::Bad {
            answer: answer.to_vec(),
            bytes: line_bytes,
            skip: whole - line_bytes as u64,
            fatal: false,
        });
    }
    let whole = whole as usize;
    if input.len() < whole {
        return Err(Parse::Incomplete(whole));
    }
    if &input[whole - 2..whole] != b"\r\n" {
        return Err(Parse::bad(BAD_DATA, whole));
    }
    Ok((&input[line_bytes..whole - 2], whole))
}

fn store<'a>(
    input: &'a [u8],
    words: &[&'a [u8]],
    mode: Mode,
    cas: bool,
    line_bytes: usize,
    limits: &Limits,
    now_s: u32,
) -> Parse<'a> {
    let (quiet, words) = quiet(words);
    let (words, version) = match (cas, words) {
        (true, [before @ .., version]) => (before, number::<u64>(version)),
        (true, []) => return Parse::bad(ERROR, line_bytes),
        (false, words) => (words, Some(0)),
    };
    let [key, flags, time, bytes] = words else { return Parse::bad(ERROR, line_bytes) };
    let Some(bytes) = number::<i64>(bytes) else { return Parse::bad(BAD_LINE, line_bytes) };
    let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= i32::MAX as usize) else {
        return Parse::bad(BAD_DATA, line_bytes);
    };
    // The length is known: what else is wrong, the data do not become commands.
    let name = Name::new(key);
    let (flags, time) = (number::<u32>(flags), number::<i64>(time));
    // A version of 0 is nobody's.
    let version = if cas { version.map(|version| if version == 0 { u64::MAX } else { version }) } else { version };
    let parts = name.zip(flags).zip(time).zip(version);
    let refused = if parts.is_none() { Some(BAD_LINE) } else { None };
    let (data, whole) = match data(input, line_bytes, bytes, limits, refused) {
        Ok(found) => found,
        Err(parse) => return parse,
    };
    let Some((((name, flags), time), version)) = parts else { return Parse::bad(BAD_LINE, whole) };
    let verb = Verb::Store { mode, flags, expiry: expiry(time, now_s), version };
    let style = Style::Text { quiet, versions: false };
    Parse::Request(Request::One { name: Box::new(name), verb, style, data }, whole)
}

fn one<'a>(key: &[u8], verb: Verb, quiet: bool, line_bytes: usize) -> Parse<'a> {
    match Name::new(key) {
        Some(name) => {
            let style = Style::Text { quiet, versions: false };
            Parse::Request(Request::One { name: Box::new(name), verb, style, data: &[] }, line_bytes)
        }
        None => Parse::bad(BAD_LINE, line_bytes),
    }
}

fn delete<'a>(words: &[&[u8]], line_bytes: usize) -> Parse<'a> {
    let (quiet, words) = quiet(words);
    match words {
        // A time of 0 is what old clients send.
        [key] | [key, b"0"] => one(key, Verb::Delete { version: 0 }, quiet, line_bytes),
        [] => Parse::bad(ERROR, line_bytes),
        _ => Parse::bad(BAD_DELETE, line_bytes),
    }
}

fn count_by<'a>(words: &[&[u8]], down: bool, line_bytes: usize) -> Parse<'a> {
    let (quiet, words) = quiet(words);
    let [key, delta] = words else { return Parse::bad(ERROR, line_bytes) };
    match number(delta) {
        Some(delta) => {
            let verb = Verb::Count { delta, down, initial: None, touch: None, version: 0 };
            one(key, verb, quiet, line_bytes)
        }
        None => Parse::bad(BAD_DELTA, line_bytes),
    }
}

fn touch<'a>(words: &[&[u8]], line_bytes: usize, now_s: u32) -> Parse<'a> {
    let (quiet, words) = quiet(words);
    let [key, time] = words else { return Parse::bad(ERROR, line_bytes) };
    match number(time) {
        Some(time) => one(key, Verb::Touch { expiry: expiry(time, now_s) }, quiet, line_bytes),
        None => Parse::bad(BAD_EXPTIME, line_bytes),
    }
}

fn flush_all<'a>(words: &[&[u8]], line_bytes: usize) -> Parse<'a> {
    let (quiet, words) = quiet(words);
    let style = Style::Text { quiet, versions: false };
    match words {
        [] => Parse::Request(Request::FlushAll { delay: 0, style }, line_bytes),
        [delay] => match number(delay) {
            Some(delay) => Parse::Request(Request::FlushAll { delay, style }, line_bytes),
            None => Parse::bad(BAD_LINE, line_bytes),
        },
        _ => Parse::bad(ERROR, line_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { data_bytes_max: 1000 };

    fn answer(input: &[u8]) -> (String, usize, u64) {
        match parse(input, &LIMITS, 100) {
            Parse::Bad { answer, bytes, skip, .. } => (String::from_utf8(answer).unwrap(), bytes, skip),
            other => panic!("{:?}: {other:?}", input.escape_ascii().to_string()),
        }
    }

    #[test]
    fn commands_with_data() {
        let Parse::Request(Request::One { name, verb, style, data }, whole) =
            parse(b"cas key 7 60 4 99 noreply\r\nd\r\na\r\nget x\r\n", &LIMITS, 100)
        else {
            panic!("a request")
        };
        assert_eq!((name.as_bytes(), data, whole), (&b"key"[..], &b"d\r\na"[..], 33));
        let expected = Verb::Store { mode: Mode::Set, flags: 7, expiry: 160, version: 99 };
        assert_eq!((verb, style), (expected, Style::Text { quiet: true, versions: false }));
        for cut in 0..33 {
            let whole = b"cas key 7 60 4 99 noreply\r\nd\r\na\r\n";
            assert!(matches!(parse(&whole[..cut], &LIMITS, 100), Parse::Incomplete(need) if need > cut), "{cut}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_its_data_are_no_commands() {
        assert_eq!(answer(b"set k 0 0 3\r\nabcd\r\n").0, "CLIENT_ERROR bad data chunk\r\n");
        assert_eq!(answer(b"set k x 0 3\r\nabc\r\n"), ("CLIENT_ERROR bad command line format\r\n".into(), 13, 5));
        assert_eq!(answer(b"set k 0 0 1001\r\n"), ("SERVER_ERROR object too large for cache\r\n".into(), 16, 1003));
        assert_eq!(answer(b"set k 0 0 -1\r\n").0, "CLIENT_ERROR bad data chunk\r\n");
        assert_eq!(answer(b"set k 0 0\r\n").0, "ERROR\r\n");
        assert_eq!(answer(b"incr k x\r\n").0, "CLIENT_ERROR invalid numeric delta argument\r\n");
        assert_eq!(answer(b"incr k +1\r\n").0, "CLIENT_ERROR invalid numeric delta argument\r\n");
        assert_eq!(answer(b"touch k x\r\n").0, "CLIENT_ERROR invalid exptime argument\r\n");
        assert_eq!(answer(b"get\r\n").0, "ERROR\r\n");
        assert_eq!(answer(b"\r\n").0, "ERROR\r\n");
        assert_eq!(answer(b"nonsense\n").0, "ERROR\r\n");
        let long = [b"get ".to_vec(), vec![b'x'; 251], b"\r\n".to_vec()].concat();
        assert_eq!(answer(&long).0, "CLIENT_ERROR bad command line format\r\n");
        assert!(matches!(parse(&[b'x'; LINE_BYTES_MAX], &LIMITS, 1), Parse::Bad { fatal: true, .. }));
        let keys = [b"get ".to_vec(), vec![b'x'; LINE_BYTES_MAX]].concat();
        assert!(matches!(parse(&keys, &LIMITS, 1), Parse::Incomplete(_)));
    }

    #[test]
    fn many_keys() {
        let Parse::Request(Request::Many { keys, touch, versions }, 22) =
            parse(b"gats  5  one two  one\n", &LIMITS, 100)
        else {
            panic!("a request")
        };
        assert_eq!((keys, touch, versions), (&b"  one two  one"[..], Some(105), true));
    }
}
