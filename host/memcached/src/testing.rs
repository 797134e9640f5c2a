//! An oracle for parsers, for tests and fuzzing: whatever the bytes are, nothing panics, and it makes no difference in which pieces they come.

use crate::binary;
use crate::command::{KEYS_LINE_BYTES_MAX, Limits, Parse};

const LIMITS: Limits = Limits { data_bytes_max: 4096 };

/// What a connection makes of input that comes in these pieces: each request or refusal as text.
fn understood(pieces: &[&[u8]]) -> Vec<String> {
    let (mut input, mut all, mut skip, mut need) = (Vec::new(), Vec::new(), 0_u64, 1);
    let mut is_binary = None;
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let here = skip.min(input.len() as u64);
            input.drain(..here as usize);
            skip -= here;
            if input.is_empty() || input.len() < need {
                break;
            }
            let parse = match *is_binary.get_or_insert(input[0] == binary::REQUEST) {
                true => binary::parse(&input, &LIMITS, 1000),
                false => crate::text::parse(&input, &LIMITS, 1000),
            };
            let taken = match parse {
                Parse::Incomplete(more) => {
                    assert!(more > input.len(), "{more} bytes are needed, {} are there", input.len());
                    assert!(more <= KEYS_LINE_BYTES_MAX + LIMITS.data_bytes_max, "{more} bytes are needed");
                    need = more;
                    break;
                }
                Parse::Request(request, bytes) => {
                    all.push(format!("{request:?}"));
                    bytes
                }
                Parse::Bad { answer, bytes, skip: more, fatal } => {
                    all.push(format!("{:?} {fatal}", answer.escape_ascii().to_string()));
                    if fatal {
                        return all;
                    }
                    skip = more;
                    bytes
                }
            };
            assert!(taken > 0 && taken <= input.len(), "{taken} of {} bytes", input.len());
            input.drain(..taken);
            need = 1;
        }
    }
    all
}

/// Checks what a client may send: the first byte says where it is cut in two.
pub fn check_stream(bytes: &[u8]) {
    let Some((cut, stream)) = bytes.split_first() else { return };
    let whole = understood(&[stream]);
    let (first, second) = stream.split_at(stream.len() * usize::from(*cut) / 256);
    assert_eq!(understood(&[first, second]), whole, "cut at {}", first.len());
    let single: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(understood(&single), whole, "byte by byte");
}
