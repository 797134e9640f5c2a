//! A file searched by this host: what does not lie in a drive, what the agent does not grant, and patterns that fit no SPU.

use super::resolve::{Source, deliver};
use super::{SearchError, Work};
use search_host::grep::{BLOCK_BYTES, Found};
use search_host::join::{Joiner, Segment};
use search_host::segment::{self, End, Output};
use search_host::{Grep, GrepOptions, Pattern};
use std::fs::File;
use std::io::{ErrorKind, Read};

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 << 10;
/// Room for what is found in them.
const REPLY_BYTES: usize = 256 << 10;

/// Searches a file from its start on.
pub async fn search_on_host(
    file: &File,
    pattern: &Pattern,
    options: &GrepOptions,
    mut grep: Grep<'_>,
) -> Result<(Found, Work), SearchError> {
    let mut joiner = Joiner::new(!options.text);
    match run(file, pattern, options, &mut grep, &mut joiner).await {
        Ok(work) => Ok((grep.finish(&joiner).map_err(SearchError::Write)?, work)),
        Err(error) => {
            grep.advance(&joiner, true).map_err(SearchError::Write)?;
            Err(error)
        }
    }
}

async fn run(
    mut file: &File,
    pattern: &Pattern,
    options: &GrepOptions,
    grep: &mut Grep<'_>,
    joiner: &mut Joiner,
) -> Result<Work, SearchError> {
    let set = pattern.for_host(options.for_scan());
    let mut work = Work::default();
    let mut lines = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut reply = vec![0; REPLY_BYTES];
    if has_holes(file) {
        grep.has_holes();
    }
    while !grep.is_done() {
        let bytes = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(SearchError::Read(error)),
        };
        work.host_bytes += bytes as u64;
        let mut done = 0;
        while done < bytes && !grep.is_done() {
            let mut out = Output::new(&mut reply);
            // There is always room in an empty reply.
            let End::Scanned(scanned) = segment::scan(&set, &buffer[done..bytes], &mut out) else { break };
            done += scanned;
            let used = out.used();
            let mut rest = &reply[..used];
            while !rest.is_empty() {
                let segment = Segment::take(&mut rest)?;
                joiner.segment(&segment, options.text_wanted(), &mut |line| lines.push(line));
            }
            deliver((&mut *grep, pattern, options), joiner, &mut lines, &Source::Host(file)).await?;
        }
    }
    joiner.finish(&mut |line| lines.push(line));
    deliver((&mut *grep, pattern, options), joiner, &mut lines, &Source::Host(file)).await?;
    Ok(work)
}

/// True where a file has holes behind its first block.
fn has_holes(file: &File) -> bool {
    let Ok(length) = file.metadata().map(|metadata| metadata.len()) else { return false };
    if length <= BLOCK_BYTES {
        return false;
    }
    let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(BLOCK_BYTES));
    // The descriptor's own place is where reading begins.
    let is_back = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0)).is_ok();
    is_back && hole.is_ok_and(|hole| hole < length)
}
