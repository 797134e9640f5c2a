//! Messages of the Debug Adapter Protocol: JSON behind a header with its length.
//!
//! What always holds: a message that is no such thing ends the conversation with a sentence; nothing that somebody sends takes more memory than
//! [`MESSAGE_BYTES_MAX`].

use crate::failure::{Context, Outcome, fail};
use serde_json::Value;
use std::io::{BufRead, Read, Write};

/// Longest message.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longest line of a header, and most lines.
const LINE_BYTES_MAX: u64 = 1024;
const LINES_MAX: usize = 16;

/// The next message; `None` at the end.
pub fn read(input: &mut impl BufRead) -> Outcome<Option<Value>> {
    let mut length = None;
    for number in 0..=LINES_MAX {
        let mut line = Vec::new();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let read = read.context(|| "the client cannot be read".to_owned())?;
        if read == 0 && number == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !line.ends_with(b"\n") || number == LINES_MAX {
            fail!("the client sent no header of the Debug Adapter Protocol");
        }
        if text.is_empty() {
            break;
        }
        if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        }
    }
    let Some(length) = length else { fail!("the client sent no Content-Length up to {MESSAGE_BYTES_MAX}") };
    let mut body = vec![0; length];
    input.read_exact(&mut body).context(|| "the client's message ends too early".to_owned())?;
    serde_json::from_slice(&body).map(Some).context(|| "the client's message is no JSON".to_owned())
}

/// Sends one.
pub fn write(output: &mut impl Write, message: &Value) -> Outcome<()> {
    let body = message.to_string();
    let written = write!(output, "Content-Length: {}\r\n\r\n{body}", body.len()).and_then(|()| output.flush());
    written.context(|| "the client cannot be written to".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_round_and_what_is_none_is_refused() {
        let mut sent = Vec::new();
        write(&mut sent, &serde_json::json!({ "seq": 1, "text": "\u{fc}" }))
            .unwrap_or_else(|failure| panic!("{failure}"));
        let mut input = &sent[..];
        let message = read(&mut input).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(message.unwrap()["text"], "\u{fc}");
        assert!(read(&mut input).is_ok_and(|end| end.is_none()));
        for bad in [
            "Content-Length: 5\r\n\r\n{}",
            "Content-Length: 99999999999\r\n\r\n",
            "Content-Length: -1\r\n\r\n{}",
            "X: 1\r\n\r\n{}",
            "Content-Length: 2\r\n\r\nno",
            "Content-Length: 2",
            &"X: 1\n".repeat(40),
            &"x".repeat(5000),
        ] {
            assert!(read(&mut bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
