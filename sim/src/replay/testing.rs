//! Oracle of the parsers, for tests and fuzz targets: whatever the bytes, no panic, and what comes out is within bounds.

use super::{Format, LINE_BYTES_MAX, Records, Replay, ReplayOptions};
use crate::generator::{Next, Source};
use crate::operation::Operation;

/// Reads `bytes` as a trace of each format, and replays it on a small namespace.
pub fn check_trace(bytes: &[u8]) {
    for format in [Format::Fio, Format::Blktrace, Format::Msr] {
        let lines = bytes.split(|byte| *byte == b'\n').count() as u64 + 1;
        let (mut last_ns, mut last_line) = (0, 0);
        for record in Records::new(bytes, format) {
            match record {
                Ok(record) => {
                    assert!(record.at_ns >= last_ns && record.line > last_line && record.line <= lines);
                    (last_ns, last_line) = (record.at_ns, record.line);
                }
                Err(error) => {
                    assert!(error.line > last_line && error.line <= lines, "{error}");
                    assert!(error.to_string().len() < 1000 + LINE_BYTES_MAX && !error.to_string().contains('\n'));
                }
            }
        }
        for wrap in [false, true] {
            let options = ReplayOptions { namespace_bytes: 1 << 20, block_bytes: 512, wrap, timed: true };
            let mut replay = Replay::new(Records::new(std::io::Cursor::new(bytes.to_vec()), format), options);
            loop {
                match replay.next(0, 0) {
                    Next::At(_, Operation::Read { offset, bytes } | Operation::Write { offset, bytes })
                    | Next::At(_, Operation::Deallocate { offset, bytes }) => {
                        let whole = offset.is_multiple_of(512) && bytes.is_multiple_of(512) && bytes > 0;
                        assert!(whole && offset + u64::from(bytes) <= 1 << 20);
                    }
                    Next::At(_, Operation::Flush) => {}
                    Next::End | Next::Broken(_) => break,
                    other => unreachable!("a replay has no {other:?}"),
                }
            }
        }
    }
}
