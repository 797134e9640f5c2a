//! Lines of which the bytes did not come along: read again, whole or, where they are too long for that, in parts.

use super::SearchError;
use crate::direct_io::DirectFile;
use search_host::Grep;
use search_host::grep::LINE_BYTES_MAX;
use search_host::join::{Joiner, Line, Verdict};
use search_host::{GrepOptions, Pattern};
use std::os::unix::fs::FileExt;

/// Bytes of a long line at a time.
const PART_BYTES: usize = 1 << 20;

/// What lines are read from.
pub enum Source<'a> {
    /// A file that this process has directly.
    Direct(&'a DirectFile),
    /// A file as this host has it.
    Host(&'a std::fs::File),
}

impl Source<'_> {
    /// All of the buffer.
    async fn read(&self, into: &mut [u8], offset: u64) -> Result<(), SearchError> {
        match self {
            Source::Direct(file) => match file.read_at(into, offset).await? {
                count if count == into.len() => Ok(()),
                _ => Err(SearchError::Shorter),
            },
            Source::Host(file) => match file.read_exact_at(into, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(SearchError::Shorter),
                done => done.map_err(SearchError::Read),
            },
        }
    }
}

/// Hands lines to grep, with their bytes where it needs them.
pub async fn deliver(
    (grep, pattern, options): (&mut Grep<'_>, &Pattern, &GrepOptions),
    joiner: &Joiner,
    lines: &mut Vec<Line>,
    source: &Source<'_>,
) -> Result<(), SearchError> {
    for mut line in lines.drain(..) {
        if grep.is_done() {
            continue;
        }
        let is_wanted = line.verdict == Verdict::Undecided || options.prints();
        if line.text.is_none() && is_wanted {
            if line.bytes > LINE_BYTES_MAX {
                long((&mut *grep, pattern, options), joiner, &line, source).await?;
                continue;
            }
            let mut text = vec![0; line.bytes as usize];
            source.read(&mut text, line.offset).await?;
            line.text = Some(text);
        }
        grep.line(line).map_err(SearchError::Write)?;
    }
    grep.advance(joiner, false).map_err(SearchError::Write)
}

/// Calls `each` with the parts of a line until it wants no more.
async fn parts(
    line: &Line,
    source: &Source<'_>,
    mut each: impl FnMut(&[u8]) -> Result<bool, SearchError>,
) -> Result<(), SearchError> {
    let mut buffer = vec![0; PART_BYTES];
    let mut done = 0;
    while done < line.bytes {
        let bytes = PART_BYTES.min((line.bytes - done) as usize);
        source.read(&mut buffer[..bytes], line.offset + done).await?;
        if !each(&buffer[..bytes])? {
            break;
        }
        done += bytes as u64;
    }
    Ok(())
}

async fn long(
    (grep, pattern, options): (&mut Grep<'_>, &Pattern, &GrepOptions),
    joiner: &Joiner,
    line: &Line,
    source: &Source<'_>,
) -> Result<(), SearchError> {
    let too_long = |what| SearchError::LongLine { offset: line.offset, what };
    if line.verdict == Verdict::Undecided {
        let mut judge = pattern.judge().parts().ok_or_else(|| too_long("this pattern"))?;
        parts(line, source, |part| Ok(judge.part(part))).await?;
        if judge.end().map_err(|_| too_long("this pattern"))? == options.invert {
            return Ok(());
        }
    }
    if options.prints() && options.only_matching {
        return Err(too_long("-o"));
    }
    let mut is_utf8 = true;
    if options.prints() && options.unicode && !options.text {
        // A character may lie in two parts.
        let mut rest = Vec::new();
        parts(line, source, |part| {
            rest.extend_from_slice(part);
            let valid = match std::str::from_utf8(&rest) {
                Ok(_) => rest.len(),
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Err(_) => {
                    is_utf8 = false;
                    return Ok(false);
                }
            };
            rest.drain(..valid);
            Ok(true)
        })
        .await?;
        is_utf8 &= rest.is_empty();
    }
    if grep.begin_long(line, is_utf8, joiner).map_err(SearchError::Write)? {
        parts(line, source, |part| grep.long_part(part).map(|()| true).map_err(SearchError::Write)).await?;
        grep.end_long().map_err(SearchError::Write)?;
    }
    Ok(())
}
