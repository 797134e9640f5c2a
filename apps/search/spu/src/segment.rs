//! Scanning one segment: bytes that follow one another in the file. Lines that are whole in it are decided here; what is before its first
//! line end and behind its last is told, for whoever joins segments.
//!
//! What always holds: nothing of a segment is told twice and nothing is left out; a segment that does not fit the room for what it gives is
//! told as a shorter one, which ends behind a line end, or not at all.
//!
//! Who may call it: the handlers, and hosts that scan what does not lie in the drive.

use memchr::{memchr, memchr_iter, memmem, memrchr};
use regex_automata::dfa::{Automaton as _, dense::DFA};
use regex_automata::{Input, MatchErrorKind};

use crate::wire::*;

/// What is searched for.
pub struct Set<'a, A = DFA<&'a [u32]>> {
    /// `OPTION_*`.
    pub options: u32,
    /// The literal that each matching line has, where there is one alone.
    pub literal: Option<memmem::Finder<'a>>,
    /// Decides whether a line matches, unless that literal does.
    pub automaton: Option<A>,
}

/// Where the next line is that may match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Some offset in a line that matches, or of its end.
    Match(usize),
    /// Some offset in a line that the automaton cannot decide.
    Undecided(usize),
}

/// Decides about lines.
pub trait Automaton {
    /// The first line of those between two offsets of a segment, the first of which begins there, that matches or cannot be decided.
    fn find(&self, segment: &[u8], from: usize, end: usize) -> Option<Found>;
}

impl Automaton for DFA<&[u32]> {
    fn find(&self, segment: &[u8], from: usize, end: usize) -> Option<Found> {
        // Nothing before the lines is looked at.
        match self.try_search_fwd(&Input::new(&segment[from..end]).earliest(true)) {
            Ok(found) => found.map(|found| Found::Match(from + found.offset())),
            Err(error) => match *error.kind() {
                MatchErrorKind::Quit { offset, .. } => Some(Found::Undecided(from + offset)),
                // It was made for no such search: nothing that it says can be relied on.
                _ => Some(Found::Undecided(from)),
            },
        }
    }
}

impl<A: Automaton> Set<'_, A> {
    fn has(&self, option: u32) -> bool {
        self.options & option != 0
    }

    /// Of the lines between two offsets, the first of which begins there.
    fn find(&self, segment: &[u8], from: usize, end: usize) -> Option<Found> {
        let Some(literal) = &self.literal else { return self.run(segment, from, end) };
        let mut at = from;
        loop {
            let hit = at + literal.find(&segment[at..end])?;
            if self.has(OPTION_LITERALS_DECIDE) {
                return Some(Found::Match(hit));
            }
            let start = memrchr(b'\n', &segment[at..hit]).map_or(at, |newline| at + newline + 1);
            let line_end = memchr(b'\n', &segment[hit..end]).map_or(end, |newline| hit + newline);
            match self.run(segment, start, line_end) {
                Some(Found::Match(_)) => return Some(Found::Match(hit)),
                Some(Found::Undecided(_)) => return Some(Found::Undecided(hit)),
                None => at = line_end,
            }
        }
    }

    fn run(&self, segment: &[u8], from: usize, end: usize) -> Option<Found> {
        self.automaton.as_ref()?.find(segment, from, end)
    }
}

/// Where what is found goes.
pub struct Output<'a> {
    bytes: &'a mut [u8],
    used: usize,
    steps: u32,
}

impl<'a> Output<'a> {
    /// Into these bytes, none used.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Output { bytes, used: 0, steps: 0 }
    }

    /// Bytes used.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Lines, matches and zero bytes that were gone through.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.used
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

/// How the scan of a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All of it, or as much as fits, was scanned: so many bytes.
    Scanned(usize),
    /// There is no room for any of it.
    NoRoom,
}

/// Why lines are not gone through to the end.
enum Stop {
    /// A line was selected, which is all that is wanted.
    Selected,
    /// There is no room for the line that begins there.
    Full(usize),
}

struct Scanner<'s, 'o, 'b, A> {
    set: &'s Set<'s, A>,
    segment: &'s [u8],
    out: &'o mut Output<'b>,
    head: SegmentHead,
    /// Where line feeds have been counted up to, and how many.
    counted: usize,
    newlines: u32,
}

/// Scans a segment.
pub fn scan<A: Automaton>(set: &Set<'_, A>, segment: &[u8], out: &mut Output<'_>) -> End {
    let nul_ends = set.has(OPTION_NUL_ENDS);
    let first = if nul_ends { memchr::memchr2(b'\n', 0, segment) } else { memchr(b'\n', segment) };
    let last = if nul_ends { memchr::memrchr2(b'\n', 0, segment) } else { memrchr(b'\n', segment) };
    let mut head = SegmentHead { bytes: segment.len() as u32, nul: NONE, ..SegmentHead::default() };
    let (start, end) = match (first, last) {
        (Some(first), Some(last)) => {
            head.head_bytes = first as u32;
            head.tail_bytes = (segment.len() - last - 1) as u32;
            (first + 1, last + 1)
        }
        _ => {
            head.head_bytes = segment.len() as u32;
            head.flags = SEGMENT_NO_END;
            (segment.len(), segment.len())
        }
    };
    let inline = |bytes: u32| if bytes as usize <= BORDER_BYTES_MAX { bytes as usize } else { 0 };
    let borders = inline(head.head_bytes) + inline(head.tail_bytes);
    if out.left() < SegmentHead::BYTES + borders + Record::BYTES {
        return End::NoRoom;
    }
    if head.head_bytes as usize <= BORDER_BYTES_MAX {
        head.flags |= SEGMENT_HEAD;
    }
    if head.tail_bytes as usize <= BORDER_BYTES_MAX {
        head.flags |= SEGMENT_TAIL;
    }
    let begin = out.used;
    out.used += SegmentHead::BYTES;
    let head_bytes = inline(head.head_bytes);
    out.push(&segment[..head_bytes]);
    let tail_bytes = inline(head.tail_bytes);
    out.push(&segment[segment.len() - tail_bytes..]);
    let mut scanner = Scanner { set, segment, out, head, counted: 0, newlines: 0 };
    match scanner.lines(start, end) {
        Ok(()) => {}
        Err(Stop::Selected) => scanner.head.flags |= SEGMENT_STOPPED,
        Err(Stop::Full(line)) => {
            let (borders, used) = (begin + SegmentHead::BYTES + head_bytes, scanner.out.used);
            // What follows begins with a line: the tail that was told is not this segment's any more.
            scanner.out.bytes.copy_within(borders + tail_bytes..used, borders);
            scanner.out.used -= tail_bytes;
            scanner.head.tail_bytes = 0;
            scanner.head.flags |= SEGMENT_TAIL;
            scanner.head.bytes = line as u32;
        }
    }
    let mut head = scanner.head;
    if set.has(OPTION_NUMBER) {
        head.newlines = scanner.count(head.bytes as usize);
    }
    if set.has(OPTION_FIND_NUL) {
        head.nul = memchr(0, &segment[..head.bytes as usize]).map_or(NONE, |at| at as u32);
    }
    out.bytes[begin..begin + SegmentHead::BYTES].copy_from_slice(&head.encode());
    End::Scanned(head.bytes as usize)
}

impl<A: Automaton> Scanner<'_, '_, '_, A> {
    /// Line feeds before an offset, which never goes back.
    fn count(&mut self, until: usize) -> u32 {
        self.newlines += memchr_iter(b'\n', &self.segment[self.counted..until]).count() as u32;
        self.counted = until;
        self.newlines
    }

    /// Goes through the whole lines of a segment.
    fn lines(&mut self, start: usize, end: usize) -> Result<(), Stop> {
        let is_simple =
            self.set.literal.is_some() && self.set.has(OPTION_LITERALS_DECIDE) && !self.set.has(OPTION_INVERT);
        if !self.set.has(OPTION_NUL_ENDS) {
            return self.block(start, end, false);
        }
        if is_simple {
            return self.literal_lines(start, end);
        }
        let mut from = start;
        while let Some(nul) = memchr(0, &self.segment[from..end]) {
            self.out.steps += 1;
            self.block(from, from + nul, true)?;
            from += nul + 1;
        }
        self.block(from, end, false)
    }

    /// Where zero bytes end lines too, and a literal decides: it has none of them.
    fn literal_lines(&mut self, start: usize, end: usize) -> Result<(), Stop> {
        let (set, segment) = (self.set, self.segment);
        let Some(literal) = &set.literal else { return Ok(()) };
        let mut from = start;
        while let Some(hit) = literal.find(&segment[from..end]) {
            let hit = from + hit;
            let line = memchr::memrchr2(b'\n', 0, &segment[from..hit]).map_or(from, |at| from + at + 1);
            let line_end = memchr::memchr2(b'\n', 0, &segment[hit..end]).map_or(end, |at| hit + at);
            self.select(line, line_end, false)?;
            from = line_end + 1;
            if from > end {
                break;
            }
        }
        Ok(())
    }

    /// Goes through lines without zero bytes that end lines. `is_ended`: the last of them ends at `end`, by one.
    fn block(&mut self, start: usize, end: usize, is_ended: bool) -> Result<(), Stop> {
        let (set, segment) = (self.set, self.segment);
        let invert = set.has(OPTION_INVERT);
        let mut from = start;
        while from < end || (from == end && is_ended) {
            self.out.steps += 1;
            let (offset, is_undecided) = match set.find(segment, from, end) {
                Some(Found::Match(offset)) => (offset, false),
                Some(Found::Undecided(offset)) => (offset, true),
                None => {
                    return if invert { self.all(from, end, is_ended) } else { Ok(()) };
                }
            };
            let line = memrchr(b'\n', &segment[from..offset]).map_or(from, |at| from + at + 1);
            if invert {
                self.all(from, line, false)?;
            }
            if line == end && !is_ended {
                // Nothing is behind the last line end.
                return Ok(());
            }
            let line_end = memchr(b'\n', &segment[offset..end]).map_or(end, |at| offset + at);
            if !invert || is_undecided {
                self.select(line, line_end, is_undecided)?;
            }
            from = line_end + 1;
        }
        Ok(())
    }

    /// Selects all lines of a range.
    fn all(&mut self, start: usize, end: usize, is_ended: bool) -> Result<(), Stop> {
        let mut from = start;
        while from < end || (from == end && is_ended) {
            let line_end = memchr(b'\n', &self.segment[from..end]).map_or(end, |at| from + at);
            self.select(from, line_end, false)?;
            from = line_end + 1;
        }
        Ok(())
    }

    /// A line is selected, or may be.
    fn select(&mut self, start: usize, end: usize, is_undecided: bool) -> Result<(), Stop> {
        let set = self.set;
        self.out.steps += 1;
        if is_undecided || set.has(OPTION_TEXT) {
            let bytes = end - start;
            // A line that no reply could hold is fetched by whoever wants it.
            let fits = bytes <= REPLY_BYTES_MIN / 2;
            if self.out.left() < Record::BYTES + if fits { bytes } else { 0 } {
                return Err(Stop::Full(start));
            }
            let undecided = if is_undecided { RECORD_UNDECIDED } else { 0 };
            let without = if fits { 0 } else { RECORD_WITHOUT_TEXT };
            let newlines = if set.has(OPTION_NUMBER) { self.count(start) } else { 0 };
            let record = Record { offset: start as u32, bytes_and_flags: bytes as u32 | undecided | without, newlines };
            self.out.push(&record.encode());
            if fits {
                self.out.push(&self.segment[start..end]);
            }
            self.head.records += 1;
        }
        if !is_undecided {
            self.head.selected += 1;
            if set.has(OPTION_FIRST) {
                return Err(Stop::Selected);
            }
        }
        Ok(())
    }
}
