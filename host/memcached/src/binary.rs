//! memcached's binary protocol (its doc/protocol-binary): from bytes to requests, and answers' headers. Numbers are big-endian.
//!
//! ```text
//! 0 u8 magic   1 u8 opcode   2 u16 key bytes   4 u8 bytes of extras   5 u8 0   6 u16 vbucket or status
//! 8 u32 bytes of the body (extras, key, value)   12 u32 opaque   16 u64 cas
//! ```

use crate::command::{Limits, Mode, Parse, Request, Style, Verb};
use crate::item::{KEY_BYTES_MAX, Name, expiry};

/// Magic byte of requests.
pub const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const HEADER_BYTES: usize = 24;
/// "Do not store where there is none", in the place of an expiry.
const NO_INITIAL: u32 = u32::MAX;

/// Statuses of answers.
#[allow(missing_docs)]
pub mod status {
    pub const OK: u16 = 0;
    pub const NOT_FOUND: u16 = 1;
    pub const EXISTS: u16 = 2;
    pub const TOO_LARGE: u16 = 3;
    pub const INVALID: u16 = 4;
    pub const NOT_STORED: u16 = 5;
    pub const NON_NUMERIC: u16 = 6;
    pub const UNKNOWN: u16 = 0x81;
    pub const OUT_OF_MEMORY: u16 = 0x82;
    pub const INTERNAL: u16 = 0x84;
}

/// Opcodes.
#[allow(missing_docs)]
pub mod opcode {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const ADDQ: u8 = 0x12;
    pub const REPLACEQ: u8 = 0x13;
    pub const DELETEQ: u8 = 0x14;
    pub const INCREMENTQ: u8 = 0x15;
    pub const DECREMENTQ: u8 = 0x16;
    pub const QUITQ: u8 = 0x17;
    pub const FLUSHQ: u8 = 0x18;
    pub const APPENDQ: u8 = 0x19;
    pub const PREPENDQ: u8 = 0x1a;
    pub const VERBOSITY: u8 = 0x1b;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;
}
use opcode as op;

/// Whether the usual outcome of a request is not told: a miss of a get, the success of all others.
pub fn is_quiet(opcode: u8) -> bool {
    matches!(opcode, op::GETQ | op::GETKQ | op::GATQ | op::GATKQ | op::SETQ..=op::PREPENDQ)
}

/// Whether a get's answer has the key.
pub fn tells_key(opcode: u8) -> bool {
    matches!(opcode, op::GETK | op::GETKQ | op::GATK | op::GATKQ)
}

/// An answer's header.
pub fn header(opcode: u8, status: u16, key: usize, extras: usize, value: usize, opaque: u32, cas: u64) -> [u8; 24] {
    let mut out = [0; HEADER_BYTES];
    out[0] = RESPONSE;
    out[1] = opcode;
    out[2..4].copy_from_slice(&(key as u16).to_be_bytes());
    out[4] = extras as u8;
    out[6..8].copy_from_slice(&status.to_be_bytes());
    out[8..12].copy_from_slice(&((extras + key + value) as u32).to_be_bytes());
    out[12..16].copy_from_slice(&opaque.to_be_bytes());
    out[16..24].copy_from_slice(&cas.to_be_bytes());
    out
}

/// An answer that is a status with its text.
pub fn say(opcode: u8, opaque: u32, status: u16) -> Vec<u8> {
    let text: &[u8] = match status {
        status::OK => b"",
        status::NOT_FOUND => b"Not found",
        status::EXISTS => b"Data exists for key.",
        status::TOO_LARGE => b"Too large.",
        status::INVALID => b"Invalid arguments",
        status::NOT_STORED => b"Not stored.",
        status::NON_NUMERIC => b"Non-numeric server-side value for incr or decr",
        status::UNKNOWN => b"Unknown command",
        status::OUT_OF_MEMORY => b"Out of memory",
        _ => b"Internal error",
    };
    let mut out = header(opcode, status, 0, 0, text.len(), opaque, 0).to_vec();
    out.extend_from_slice(text);
    out
}

fn be16(from: &[u8]) -> u16 {
    u16::from_be_bytes([from[0], from[1]])
}

fn be32(from: &[u8]) -> u32 {
    u32::from_be_bytes([from[0], from[1], from[2], from[3]])
}

fn be64(from: &[u8]) -> u64 {
    u64::from(be32(from)) << 32 | u64::from(be32(&from[4..]))
}

/// What the parts of a request must be: bytes of extras, and whether there are a key and a value.
struct Shape {
    extras: usize,
    key: bool,
    value: bool,
}

fn shape(opcode: u8, extras: usize, key_bytes: usize) -> Option<Shape> {
    let shape = |extras, key, value| Some(Shape { extras, key, value });
    match opcode {
        op::GET | op::GETQ | op::GETK | op::GETKQ | op::DELETE | op::DELETEQ => shape(0, true, false),
        op::SET | op::ADD | op::REPLACE | op::SETQ | op::ADDQ | op::REPLACEQ => shape(8, true, true),
        op::INCREMENT | op::DECREMENT | op::INCREMENTQ | op::DECREMENTQ => shape(20, true, false),
        op::APPEND | op::PREPEND | op::APPENDQ | op::PREPENDQ => shape(0, true, true),
        op::TOUCH | op::GAT | op::GATQ | op::GATK | op::GATKQ => shape(4, true, false),
        op::FLUSH | op::FLUSHQ => shape(if extras == 0 { 0 } else { 4 }, false, false),
        op::STAT => shape(0, key_bytes > 0, false),
        op::VERBOSITY => shape(4, false, false),
        op::QUIT | op::QUITQ | op::NOOP | op::VERSION => shape(0, false, false),
        _ => None,
    }
}

/// Parses the start of a connection's input.
pub fn parse<'a>(input: &'a [u8], limits: &Limits, now_s: u32) -> Parse<'a> {
    if input.len() < HEADER_BYTES {
        return Parse::Incomplete(HEADER_BYTES);
    }
    if input[0] != REQUEST {
        return Parse::fatal(b"");
    }
    let (opcode, opaque, cas) = (input[1], be32(&input[12..]), be64(&input[16..]));
    let (key_bytes, extras_bytes) = (usize::from(be16(&input[2..])), usize::from(input[4]));
    let body_bytes = be32(&input[8..]) as usize;
    let refuse = |status| Parse::Bad {
        answer: say(opcode, opaque, status),
        bytes: HEADER_BYTES,
        skip: body_bytes as u64,
        fatal: false,
    };
    let Some(shape) = shape(opcode, extras_bytes, key_bytes) else { return refuse(status::UNKNOWN) };
    let value_bytes = body_bytes.checked_sub(key_bytes + extras_bytes);
    let as_it_must = extras_bytes == shape.extras
        && (key_bytes > 0) == shape.key
        && key_bytes <= KEY_BYTES_MAX
        && value_bytes.is_some_and(|bytes| shape.value || bytes == 0);
    let Some(value_bytes) = value_bytes.filter(|_| as_it_must) else {
        // As memcached has it: who counts wrong is not followed.
        return Parse::Bad { answer: say(opcode, opaque, status::INVALID), bytes: 0, skip: 0, fatal: true };
    };
    if value_bytes > limits.data_bytes_max {
        return refuse(status::TOO_LARGE);
    }
    let whole = HEADER_BYTES + body_bytes;
    if input.len() < whole {
        return Parse::Incomplete(whole);
    }
    let (extras, rest) = input[HEADER_BYTES..whole].split_at(extras_bytes);
    let (key, data) = rest.split_at(key_bytes);
    let style = Style::Binary { opcode, opaque };
    let request = |request| Parse::Request(request, whole);
    match opcode {
        op::NOOP | op::VERBOSITY => return request(Request::Say(say(opcode, opaque, status::OK))),
        op::VERSION => {
            let text = crate::text::VERSION.as_bytes();
            let mut out = header(opcode, status::OK, 0, 0, text.len(), opaque, 0).to_vec();
            out.extend_from_slice(text);
            return request(Request::Say(out));
        }
        op::QUIT => return request(Request::Quit(say(opcode, opaque, status::OK))),
        op::QUITQ => return request(Request::Quit(Vec::new())),
        op::FLUSH | op::FLUSHQ => {
            let delay = if extras.is_empty() { 0 } else { i64::from(be32(extras)) };
            return request(Request::FlushAll { delay, style });
        }
        op::STAT => return request(Request::Statistics { what: key, style }),
        _ => {}
    }
    let Some(name) = Name::new(key) else { return refuse(status::INVALID) };
    let at = |time: u32| expiry(i64::from(time), now_s);
    let store = |mode, flags, time| Verb::Store { mode, flags, expiry: at(time), version: cas };
    let verb = match opcode {
        op::SET | op::SETQ => store(Mode::Set, be32(extras), be32(&extras[4..])),
        op::ADD | op::ADDQ => store(Mode::Add, be32(extras), be32(&extras[4..])),
        op::REPLACE | op::REPLACEQ => store(Mode::Replace, be32(extras), be32(&extras[4..])),
        op::APPEND | op::APPENDQ => store(Mode::Append, 0, 0),
        op::PREPEND | op::PREPENDQ => store(Mode::Prepend, 0, 0),
        op::DELETE | op::DELETEQ => Verb::Delete { version: cas },
        op::INCREMENT | op::INCREMENTQ | op::DECREMENT | op::DECREMENTQ => {
            let time = be32(&extras[16..]);
            let initial = (time != NO_INITIAL).then(|| (be64(&extras[8..]), at(time)));
            let down = matches!(opcode, op::DECREMENT | op::DECREMENTQ);
            Verb::Count { delta: be64(extras), down, initial, touch: None, version: cas }
        }
        op::TOUCH => Verb::Touch { expiry: at(be32(extras)) },
        op::GAT | op::GATQ | op::GATK | op::GATKQ => Verb::Get { touch: Some(at(be32(extras))) },
        _ => Verb::Get { touch: None },
    };
    request(Request::One { name: Box::new(name), verb, style, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { data_bytes_max: 100 };

    fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
        let mut out = header(opcode, 0, key.len(), extras.len(), value.len(), 0x0102_0304, cas).to_vec();
        out[0] = REQUEST;
        [&out[..], extras, key, value].concat()
    }

    #[test]
    fn requests_are_taken_as_a_whole() {
        let set = request(op::SETQ, &[0, 0, 0, 7, 0, 0, 0, 60], b"key", b"value", 9);
        for cut in 0..set.len() {
            assert!(matches!(parse(&set[..cut], &LIMITS, 100), Parse::Incomplete(need) if need > cut));
        }
        let Parse::Request(Request::One { name, verb, style, data }, whole) = parse(&set, &LIMITS, 100) else {
            panic!("a request")
        };
        assert_eq!((name.as_bytes(), data, whole), (&b"key"[..], &b"value"[..], set.len()));
        let expected = Verb::Store { mode: Mode::Set, flags: 7, expiry: 160, version: 9 };
        assert_eq!((verb, style), (expected, Style::Binary { opcode: op::SETQ, opaque: 0x0102_0304 }));
        let mut extras = [0; 20];
        extras[7] = 3;
        extras[16..].fill(0xff);
        let Parse::Request(Request::One { verb, .. }, _) =
            parse(&request(op::DECREMENT, &extras, b"n", b"", 0), &LIMITS, 1)
        else {
            panic!("a request")
        };
        assert_eq!(verb, Verb::Count { delta: 3, down: true, initial: None, touch: None, version: 0 });
    }

    #[test]
    fn what_is_wrong_is_said_or_ends_the_connection() {
        let said = |input: &[u8]| match parse(input, &LIMITS, 1) {
            Parse::Bad { answer, skip, fatal, .. } => (answer.get(6..8).map(be16), skip, fatal),
            other => panic!("{other:?}"),
        };
        assert_eq!(said(&request(0x77, b"", b"key", b"v", 0)), (Some(status::UNKNOWN), 4, false));
        assert_eq!(said(&request(op::SET, &[0; 8], b"k", &[0; 101], 0)), (Some(status::TOO_LARGE), 110, false));
        assert_eq!(said(&request(op::SET, &[0; 4], b"k", b"", 0)), (Some(status::INVALID), 0, true));
        assert_eq!(said(&request(op::GET, b"", b"", b"", 0)), (Some(status::INVALID), 0, true));
        assert_eq!(said(&request(op::GET, b"", b"k", b"v", 0)), (Some(status::INVALID), 0, true));
        assert_eq!(said(&request(op::GET, b"", &[b'k'; 251], b"", 0)), (Some(status::INVALID), 0, true));
        assert_eq!(said(&[0; 24]), (None, 0, true));
        let mut short = request(op::GET, b"", b"key", b"", 0);
        short[11] = 2;
        assert_eq!(said(&short), (Some(status::INVALID), 0, true));
    }
}
