//! Segments in the file's order, joined: a line that lies in several of them is one line again.
//!
//! What always holds: each line of the file is told once at most, in order; lines that lie across segments are undecided, since no segment has
//! seen them; memory is bounded by the borders that a reply carries and by one line of them.

use search_spu::wire::*;

/// A reply that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a scan's reply makes no sense: {0}")]
pub struct ReplyError(&'static str);

/// A segment of a reply, with what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// What is told of it.
    pub head: SegmentHead,
    before: Option<&'a [u8]>,
    behind: Option<&'a [u8]>,
    records: &'a [u8],
}

fn take<'a>(from: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], ReplyError> {
    let (taken, rest) = from.split_at_checked(bytes).ok_or(ReplyError("it ends too early"))?;
    *from = rest;
    Ok(taken)
}

fn take_array<const BYTES: usize>(from: &mut &[u8]) -> Result<[u8; BYTES], ReplyError> {
    take(from, BYTES)?.try_into().map_err(|_| ReplyError("it ends too early"))
}

/// The bytes that a reply says it has scanned, and its segments.
pub fn open(reply: &[u8]) -> Result<(u32, &[u8]), ReplyError> {
    let mut rest = reply;
    let head: [u8; REPLY_HEAD_BYTES] = take_array(&mut rest)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let used = (word(4) as usize).checked_sub(REPLY_HEAD_BYTES).ok_or(ReplyError("it is shorter than its head"))?;
    Ok((word(0), take(&mut rest, used)?))
}

impl<'a> Segment<'a> {
    /// The next one of a reply.
    pub fn take(from: &mut &'a [u8]) -> Result<Segment<'a>, ReplyError> {
        let head = SegmentHead::decode(&take_array(from)?);
        let has_end = head.flags & SEGMENT_NO_END == 0;
        let told = u64::from(head.head_bytes) + u64::from(head.tail_bytes) + u64::from(has_end);
        if head.bytes == 0 || told > u64::from(head.bytes) || (!has_end && head.head_bytes != head.bytes) {
            return Err(ReplyError("a segment is shorter than its borders"));
        }
        let mut border = |flag, bytes: u32| match head.flags & flag != 0 && bytes as usize <= BORDER_BYTES_MAX {
            true => take(from, bytes as usize).map(Some),
            false => Ok(None),
        };
        let before = border(SEGMENT_HEAD, head.head_bytes)?;
        let behind = border(SEGMENT_TAIL, head.tail_bytes)?;
        let begin = *from;
        for _ in 0..head.records {
            let record = Record::decode(&take_array(from)?);
            if u64::from(record.offset) + u64::from(record.bytes()) > u64::from(head.bytes) {
                return Err(ReplyError("a line is longer than its segment"));
            }
            if record.bytes_and_flags & RECORD_WITHOUT_TEXT == 0 {
                take(from, record.bytes() as usize)?;
            }
        }
        let records = &begin[..begin.len() - from.len()];
        Ok(Segment { head, before, behind, records })
    }
}

/// What is known of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is selected.
    Selected,
    /// That is to be found out.
    Undecided,
}

/// A line, or several empty ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// First byte in the file.
    pub offset: u64,
    /// Length without its end.
    pub bytes: u64,
    /// Its bytes, where they came along.
    pub text: Option<Vec<u8>>,
    /// Line feeds before it in the file, where they are counted.
    pub newlines: u64,
    /// Whether it is selected.
    pub verdict: Verdict,
    /// So many lines like it (empty ones, of a hole).
    pub times: u64,
}

/// A line of which the end has not been seen.
#[derive(Default)]
struct Pending {
    offset: u64,
    bytes: u64,
    text: Option<Vec<u8>>,
}

/// Joins.
pub struct Joiner {
    nul_ends: bool,
    position: u64,
    newlines: u64,
    selected: u64,
    nul: Option<u64>,
    pending: Pending,
}

impl Joiner {
    /// At the start of a file. `nul_ends`: a zero byte ends a line.
    pub fn new(nul_ends: bool) -> Joiner {
        let pending = Pending { offset: 0, bytes: 0, text: Some(Vec::new()) };
        Joiner { nul_ends, position: 0, newlines: 0, selected: 0, nul: None, pending }
    }

    /// Where in the file the next segment begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Lines that were selected without being told, since nobody wanted them.
    pub fn selected(&self) -> u64 {
        self.selected
    }

    /// The first zero byte of the file that was seen.
    pub fn nul(&self) -> Option<u64> {
        self.nul
    }

    fn see_nul(&mut self, at: u64) {
        self.nul.get_or_insert(at);
    }

    /// The pending line has more bytes.
    fn extend(&mut self, bytes: u64, text: Option<&[u8]>) {
        self.pending.bytes += bytes;
        match (&mut self.pending.text, text) {
            // What is longer than a few borders is read when somebody wants it.
            (Some(has), Some(text)) if has.len() + text.len() <= 4 * BORDER_BYTES_MAX => has.extend_from_slice(text),
            (has, _) if bytes > 0 => *has = None,
            _ => {}
        }
    }

    /// The pending line has ended; another begins at `next`.
    fn end(&mut self, next: u64, each: &mut impl FnMut(Line)) {
        let fresh = Pending { offset: next, bytes: 0, text: Some(Vec::new()) };
        let Pending { offset, bytes, text } = std::mem::replace(&mut self.pending, fresh);
        each(Line { offset, bytes, text, newlines: self.newlines, verdict: Verdict::Undecided, times: 1 });
    }

    /// The next segment of the file; `each` gets its lines, `text_wanted`: those that are selected too.
    pub fn segment(&mut self, segment: &Segment<'_>, text_wanted: bool, each: &mut impl FnMut(Line)) {
        let Segment { head, before, behind, records } = *segment;
        let begin = self.position;
        self.position += u64::from(head.bytes);
        if head.nul != NONE {
            self.see_nul(begin + u64::from(head.nul));
        }
        self.extend(head.head_bytes.into(), before);
        if head.flags & SEGMENT_NO_END != 0 {
            self.newlines += u64::from(head.newlines);
            return;
        }
        let next = self.position - u64::from(head.tail_bytes);
        self.end(next, each);
        if !text_wanted {
            self.selected += u64::from(head.selected);
        }
        let mut rest = records;
        for _ in 0..head.records {
            // They have been checked by `Segment::take`.
            let Ok(record) = take_array(&mut rest).map(|bytes| Record::decode(&bytes)) else { return };
            let text = match record.bytes_and_flags & RECORD_WITHOUT_TEXT == 0 {
                true => take(&mut rest, record.bytes() as usize).ok().map(<[u8]>::to_vec),
                false => None,
            };
            let is_undecided = record.bytes_and_flags & RECORD_UNDECIDED != 0;
            each(Line {
                offset: begin + u64::from(record.offset),
                bytes: record.bytes().into(),
                text,
                newlines: self.newlines + u64::from(record.newlines),
                verdict: if is_undecided { Verdict::Undecided } else { Verdict::Selected },
                times: 1,
            });
        }
        self.newlines += u64::from(head.newlines);
        self.extend(head.tail_bytes.into(), behind);
    }

    /// Zeroes that no extent has.
    pub fn hole(&mut self, bytes: u64, each: &mut impl FnMut(Line)) {
        let begin = self.position;
        self.position += bytes;
        self.see_nul(begin);
        if !self.nul_ends {
            self.extend(bytes, None);
            return;
        }
        self.end(self.position, each);
        if bytes > 1 {
            each(Line {
                offset: begin + 1,
                bytes: 0,
                text: Some(Vec::new()),
                newlines: self.newlines,
                verdict: Verdict::Undecided,
                times: bytes - 1,
            });
        }
    }

    /// The end of the file: its last line may have no end.
    pub fn finish(&mut self, each: &mut impl FnMut(Line)) {
        if self.pending.bytes > 0 {
            self.end(self.position, each);
        }
    }
}
