//! What GNU grep prints of a file, made of its lines as they come from [`crate::join`].
//!
//! What always holds: output, order and counts are GNU grep's (3.8). A file with a zero byte is binary, unless it is taken for text: lines before
//! the [`BLOCK_BYTES`] with that byte are printed, of the others only that there is one; in
//! UTF-8, lines that are none are left out.

use crate::join::{Joiner, Line, Verdict};
use crate::pattern::{Pattern, PatternOptions};
use search_spu::wire::*;
use std::collections::VecDeque;
use std::io::{self, Write};

/// What grep reads at a time, which decides which lines are printed before a binary file is taken for one.
pub const BLOCK_BYTES: u64 = 96 << 10;
/// Longest line that is had at once; longer ones are judged and printed in parts.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// grep's options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrepOptions {
    /// Lines that do not match (-v).
    pub invert: bool,
    /// Their number alone (-c).
    pub count: bool,
    /// With line numbers (-n).
    pub number: bool,
    /// Only what matches of them (-o).
    pub only_matching: bool,
    /// Names of files with such lines (-l).
    pub list: bool,
    /// Names of files without (-L).
    pub list_without: bool,
    /// Nothing (-q).
    pub quiet: bool,
    /// Binary files too (-a).
    pub text: bool,
    /// With the file's name (-H).
    pub with_name: bool,
    /// Lines are UTF-8.
    pub unicode: bool,
    /// At most so many selected lines (-m).
    pub lines_max: Option<u64>,
}

impl GrepOptions {
    /// True where lines are printed.
    pub fn prints(&self) -> bool {
        !(self.count || self.list || self.list_without || self.quiet)
    }

    /// True where the first selected line says all.
    pub fn first_is_enough(&self) -> bool {
        self.list || self.list_without || self.quiet
    }

    /// True where nothing can be selected, so that GNU grep reads and prints nothing: no line at all is wanted, or none but those without an empty
    /// pattern.
    pub fn selects_nothing(&self, patterns: &[Vec<u8>], of: &PatternOptions) -> bool {
        let is_empty = patterns.len() == 1 && patterns[0].is_empty();
        let none = self.lines_max == Some(0) || (is_empty && self.invert && !of.line && !of.word);
        none && !self.list_without
    }

    /// What the SPUs are to do.
    pub fn for_scan(&self) -> u32 {
        let option = |wanted: bool, option| if wanted { option } else { 0 };
        let text = self.prints() || self.lines_max.is_some();
        option(!self.text, OPTION_NUL_ENDS)
            | option(self.invert, OPTION_INVERT)
            | option(self.number && self.prints(), OPTION_NUMBER)
            | option(text, OPTION_TEXT)
            | option(self.first_is_enough(), OPTION_FIRST)
            | option(self.prints() && !self.text, OPTION_FIND_NUL)
    }

    /// True where lines are wanted, not only their number.
    pub fn text_wanted(&self) -> bool {
        self.for_scan() & OPTION_TEXT != 0
    }
}

/// What was found in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Selected lines.
    pub lines: u64,
    /// Some of them were not printed, since the file is binary.
    pub is_binary: bool,
}

/// grep on one file.
pub struct Grep<'a> {
    pattern: &'a Pattern,
    options: GrepOptions,
    name: &'a [u8],
    out: &'a mut dyn Write,
    found: Found,
    /// Selected lines of which it is not known yet whether they are printed.
    held: VecDeque<Line>,
    /// Somewhere behind what was read there is a zero byte.
    has_holes: bool,
    /// No more lines are wanted.
    is_done: bool,
}

impl<'a> Grep<'a> {
    /// On the file of that name.
    pub fn new(pattern: &'a Pattern, options: GrepOptions, name: &'a [u8], out: &'a mut dyn Write) -> Self {
        let is_done = options.lines_max == Some(0);
        Grep { pattern, options, name, out, found: Found::default(), held: VecDeque::new(), has_holes: false, is_done }
    }

    /// The file has holes behind its first [`BLOCK_BYTES`], which makes it binary from the start.
    pub fn has_holes(&mut self) {
        self.has_holes = true;
    }

    /// True where no more lines are wanted.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The next line, with its text where that is wanted or the line is undecided.
    pub fn line(&mut self, line: Line) -> io::Result<()> {
        if self.is_done {
            return Ok(());
        }
        if line.verdict == Verdict::Undecided {
            let matches = self.pattern.judge().matches(line.text.as_deref().unwrap_or_default());
            if matches == self.options.invert {
                return Ok(());
            }
        }
        if self.options.prints() {
            self.held.push_back(line);
            return Ok(());
        }
        let left = self.options.lines_max.map_or(u64::MAX, |most| most - self.found.lines);
        self.found.lines += line.times.min(left);
        self.is_done = self.options.first_is_enough() || line.times >= left;
        Ok(())
    }

    /// Goes on as far as it is known what the file is: `joiner` has got so far.
    pub fn advance(&mut self, joiner: &Joiner, is_end: bool) -> io::Result<()> {
        if !self.options.text_wanted() && !self.is_done && joiner.selected() > 0 && self.options.first_is_enough() {
            self.is_done = true;
        }
        let nul = if self.has_holes { Some(0) } else { joiner.nul() };
        while let Some(line) = self.held.front() {
            let block = (line.offset + line.bytes) / BLOCK_BYTES;
            if !is_end && !self.options.text && (block + 1) * BLOCK_BYTES > joiner.position() {
                break;
            }
            let is_binary = !self.options.text && nul.is_some_and(|nul| nul / BLOCK_BYTES <= block);
            let Some(line) = self.held.pop_front() else { break };
            if self.is_done {
                continue;
            }
            self.found.lines += line.times;
            if is_binary {
                self.binary();
                continue;
            }
            self.print(&line)?;
            if self.options.lines_max.is_some_and(|most| self.found.lines >= most) {
                self.is_done = true;
            }
        }
        Ok(())
    }

    fn binary(&mut self) {
        self.found.is_binary = true;
        self.is_done = true;
    }

    fn is_printable(&self, text: &[u8]) -> bool {
        self.options.text || !self.options.unicode || std::str::from_utf8(text).is_ok()
    }

    fn head(&mut self, newlines: u64) -> io::Result<()> {
        if self.options.with_name {
            self.out.write_all(self.name)?;
            self.out.write_all(b":")?;
        }
        if self.options.number {
            write!(self.out, "{}:", newlines + 1)?;
        }
        Ok(())
    }

    fn print(&mut self, line: &Line) -> io::Result<()> {
        let text = line.text.as_deref().unwrap_or_default();
        if !self.options.only_matching {
            if !self.is_printable(text) {
                self.found.is_binary = true;
                return Ok(());
            }
            self.head(line.newlines)?;
            self.out.write_all(text)?;
            return self.out.write_all(b"\n");
        }
        if self.options.invert {
            return Ok(());
        }
        let mut result = Ok(());
        let mut goes_on = true;
        let pattern = self.pattern;
        pattern.judge().each_match(text, |part| {
            if result.is_err() || !goes_on {
                return;
            }
            if !self.is_printable(part) {
                self.found.is_binary = true;
                goes_on = false;
                return;
            }
            result = self
                .head(line.newlines)
                .and_then(|()| self.out.write_all(part))
                .and_then(|()| self.out.write_all(b"\n"));
        });
        result
    }

    /// A selected line that is longer than [`LINE_BYTES_MAX`] begins; false where it is not printed. `is_utf8`: all of it is.
    pub fn begin_long(&mut self, line: &Line, is_utf8: bool, joiner: &Joiner) -> io::Result<bool> {
        self.advance(joiner, true)?;
        if self.is_done {
            return Ok(false);
        }
        self.found.lines += 1;
        if self.options.lines_max.is_some_and(|most| self.found.lines >= most) || self.options.first_is_enough() {
            self.is_done = true;
        }
        if !self.options.prints() {
            return Ok(false);
        }
        let block = (line.offset + line.bytes) / BLOCK_BYTES;
        let nul = if self.has_holes { Some(0) } else { joiner.nul() };
        if !self.options.text && nul.is_some_and(|nul| nul / BLOCK_BYTES <= block) {
            self.binary();
            return Ok(false);
        }
        if !self.options.text && self.options.unicode && !is_utf8 {
            self.found.is_binary = true;
            return Ok(false);
        }
        self.head(line.newlines)?;
        Ok(true)
    }

    /// Bytes of a long line that is printed.
    pub fn long_part(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Its end.
    pub fn end_long(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")
    }

    /// The end of the file: prints what is left, the count or the name.
    pub fn finish(mut self, joiner: &Joiner) -> io::Result<Found> {
        self.advance(joiner, true)?;
        if !self.options.text_wanted() {
            self.found.lines += joiner.selected();
        }
        let selected = self.found.lines > 0;
        if self.options.quiet {
            return Ok(self.found);
        }
        if self.options.count {
            if self.options.with_name {
                self.out.write_all(self.name)?;
                self.out.write_all(b":")?;
            }
            writeln!(self.out, "{}", self.found.lines)?;
        }
        if (self.options.list && selected) || (self.options.list_without && !selected) {
            self.out.write_all(self.name)?;
            self.out.write_all(b"\n")?;
        }
        Ok(self.found)
    }
}
