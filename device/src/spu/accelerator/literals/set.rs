//! A set of literals, and the search for them. Where a literal may stand is told by its fingerprint ([`super::fingerprint`]); what stands there,
//! by an automaton. Where there are too many candidates the automaton reads every byte.
//!
//! What always holds:
//! - the matches are those that begin first and of these the longest, one behind the other, whichever of the two ways found them;
//! - a search costs at most [`SEARCH_WORK_MAX`] and what its last step does: what is left is another search's. What it costs
//!   depends on set and text alone;
//! - time grows with the bytes of the text, whatever the literals and the text are: where candidates cost more than reading each byte, each
//!   byte is read.

use super::fingerprint::{Block, Fingerprint};
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, Input, MatchKind, StartKind, dfa::DFA};
use willow_gate::literals::Written;

/// Most work of one search.
pub const SEARCH_WORK_MAX: u64 = 100_000;
/// Bytes in which a fingerprint is looked for, for a unit (16 GB/s).
pub const SEARCHED_BYTES_A_WORK: u64 = 4;
/// A candidate, or a match: the automaton is started (15 ns), beside what it reads.
const CANDIDATE_WORK: u64 = 60;
/// A byte that a table of states takes (1 to 2 ns).
const DENSE_BYTE_WORK: u64 = 8;
/// A byte that a compact automaton takes (4 to 14 ns).
const COMPACT_BYTE_WORK: u64 = 48;
/// Most memory of a table of states.
const DENSE_BYTES_MAX: usize = 1 << 20;
/// So many bytes are looked at before the two ways are weighed again.
const WINDOW_BYTES: usize = 4096;
/// Bytes that candidates may cost as much as before the two ways are weighed for the first time.
const WEIGHED_BYTES_MIN: usize = 256;
/// Windows in which the automaton reads every byte, once that was found to be better.
const LINEAR_WINDOWS: usize = 4;

/// Why there is no such set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSet {
    /// The literals or the flags cannot be.
    Malformed,
    /// The automaton would be too large.
    TooLarge,
}

/// A match: offsets in the text, and which literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    pub begin: u32,
    pub end: u32,
    pub literal: u32,
}

/// What a search has found, and may still do.
#[derive(Debug)]
pub struct Search {
    /// The first of them; empty where they are only counted.
    pub matches: Vec<Match>,
    /// How many there were.
    pub found: u32,
    /// It ends with so many; 0: they are only counted.
    most: u32,
    /// The line that goes on has a match: it is passed over.
    pub passes_line: bool,
    /// Work that it may do, and what is left of that.
    allowed: u64,
    left: u64,
}

impl Search {
    /// `allowed`: work that it may do, if that is less than any search may.
    pub fn new(most: u32, passes_line: bool, allowed: u64) -> Search {
        let allowed = allowed.min(SEARCH_WORK_MAX);
        Search { matches: Vec::new(), found: 0, most, passes_line, allowed, left: allowed }
    }

    /// What it has cost.
    pub fn work(&self) -> u64 {
        self.allowed - self.left
    }

    fn spend(&mut self, units: u64) {
        self.left = self.left.saturating_sub(units);
    }

    /// True where it does not go on.
    pub fn is_over(&self) -> bool {
        self.left == 0 || (self.most > 0 && self.found >= self.most)
    }
}

/// The automaton: a table where that is small enough.
#[derive(Debug)]
enum States {
    Dense(DFA),
    Compact(NFA),
}

impl States {
    fn new(literals: &[&[u8]], ignores_case: bool) -> Option<States> {
        let bytes: usize = literals.iter().map(|literal| literal.len()).sum();
        let mut is_used = [false; 256];
        for byte in literals.iter().copied().flatten() {
            is_used[usize::from(byte.to_ascii_lowercase())] = true;
            is_used[usize::from(byte.to_ascii_uppercase())] |= ignores_case;
        }
        let classes = is_used.iter().filter(|used| **used).count() + 1;
        // A state for each byte, to start anywhere and to start here, with a word for each class. Leaping ahead of its own is none of what is
        // charged.
        if (bytes + 2) * 2 * classes.next_power_of_two() * size_of::<u32>() <= DENSE_BYTES_MAX {
            let mut builder = DFA::builder();
            builder.match_kind(MatchKind::LeftmostLongest).start_kind(StartKind::Both);
            return builder
                .ascii_case_insensitive(ignores_case)
                .prefilter(false)
                .build(literals)
                .ok()
                .map(States::Dense);
        }
        let mut builder = NFA::builder();
        builder.match_kind(MatchKind::LeftmostLongest).ascii_case_insensitive(ignores_case).prefilter(false);
        builder.build(literals).ok().map(States::Compact)
    }

    fn memory_bytes(&self) -> usize {
        match self {
            States::Dense(automaton) => automaton.memory_usage(),
            States::Compact(automaton) => automaton.memory_usage(),
        }
    }
}

/// The longest literal that stands at the begin of `text`, its length and number, and how many bytes were read.
#[inline]
fn literal_at<A: Automaton>(automaton: &A, text: &[u8]) -> (Option<(usize, u32)>, usize) {
    let mut longest = None;
    // Both ways to start are there.
    let Ok(mut state) = automaton.start_state(Anchored::Yes) else { return (None, 0) };
    for (index, byte) in text.iter().enumerate() {
        state = automaton.next_state(Anchored::Yes, state, *byte);
        if automaton.is_special(state) {
            if automaton.is_dead(state) {
                return (longest, index + 1);
            }
            if automaton.is_match(state) {
                // A state also has the literals that begin later and end here: the longest comes first.
                let literal = automaton.match_pattern(state, 0);
                if automaton.pattern_len(literal) == index + 1 {
                    longest = Some((index + 1, literal.as_u32()));
                }
            }
        }
    }
    (longest, text.len())
}

/// The first match from `from` on.
fn first_match<A: Automaton>(automaton: &A, text: &[u8], from: usize) -> Option<Match> {
    let found = automaton.try_find(&Input::new(text).span(from..text.len())).ok().flatten()?;
    Some(Match { begin: found.start() as u32, end: found.end() as u32, literal: found.pattern().as_u32() })
}

/// A set that is ready.
#[derive(Debug)]
pub struct LiteralSet {
    fingerprint: Fingerprint,
    states: States,
    longest: usize,
    byte_work: u64,
    separator: Option<u8>,
}

impl LiteralSet {
    /// A set of the literals in `bytes`, whose automaton takes no more than `memory_bytes_max`.
    pub fn new(bytes: &[u8], flags: u32, memory_bytes_max: usize) -> Result<LiteralSet, NoSet> {
        let Written { literals, ignores_case, separator } = Written::read(bytes, flags).ok_or(NoSet::Malformed)?;
        let states = States::new(&literals, ignores_case).ok_or(NoSet::TooLarge)?;
        if states.memory_bytes() > memory_bytes_max {
            return Err(NoSet::TooLarge);
        }
        let longest = literals.iter().map(|literal| literal.len()).max().unwrap_or(1);
        let byte_work = if let States::Dense(_) = states { DENSE_BYTE_WORK } else { COMPACT_BYTE_WORK };
        let fingerprint = Fingerprint::new(&literals, ignores_case);
        Ok(LiteralSet { fingerprint, states, longest, byte_work, separator })
    }

    /// Bytes of its longest literal.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<LiteralSet>() + self.states.memory_bytes()) as u64
    }

    /// Looks for matches in a whole text: how far it got.
    pub fn find_in(&self, text: &[u8], search: &mut Search) -> usize {
        self.find(text, text.len(), 0, search)
    }

    /// Looks for matches in `text` that begin before `limit`; `base` is what offsets in the text are raised by. How far it got: where another
    /// search goes on, or the limit at least.
    pub fn find(&self, text: &[u8], limit: usize, base: u32, search: &mut Search) -> usize {
        let mut at = if search.passes_line { self.pass_line(text, 0, search) } else { 0 };
        let mut block = Block::NONE;
        let (mut window_begin, mut window_work) = (at, 0);
        while at < limit && !search.is_over() {
            if at >= window_begin + WINDOW_BYTES {
                (window_begin, window_work) = (at, 0);
            }
            let begin = self.fingerprint.candidate(text, at, &mut block).filter(|begin| *begin < limit);
            search.spend((begin.unwrap_or(limit) - at) as u64 / SEARCHED_BYTES_A_WORK);
            let Some(begin) = begin else { return limit };
            let (found, read) = match &self.states {
                States::Dense(automaton) => literal_at(automaton, &text[begin..]),
                States::Compact(automaton) => literal_at(automaton, &text[begin..]),
            };
            let work = CANDIDATE_WORK + read as u64 * self.byte_work;
            search.spend(work);
            window_work += work;
            at = match found {
                Some((length, literal)) => {
                    let found = Match { begin: begin as u32, end: (begin + length) as u32, literal };
                    self.accept(text, found, base, search)
                }
                None => begin + 1,
            };
            if window_work > (at.saturating_sub(window_begin) + WEIGHED_BYTES_MIN) as u64 * self.byte_work {
                at = self.find_all(text, (at, limit), base, search);
                (window_begin, window_work) = (at, 0);
            }
        }
        at
    }

    /// The same for a few windows, where each byte is read.
    fn find_all(&self, text: &[u8], (from, limit): (usize, usize), base: u32, search: &mut Search) -> usize {
        let mut at = from;
        for _ in 0..LINEAR_WINDOWS {
            let window_end = limit.min(at + WINDOW_BYTES);
            while at < window_end && !search.is_over() {
                let end = text.len().min(window_end + self.longest - 1);
                // One that begins behind the window may be cut off.
                let found = match &self.states {
                    States::Dense(automaton) => first_match(automaton, &text[..end], at),
                    States::Compact(automaton) => first_match(automaton, &text[..end], at),
                };
                let found = found.filter(|found| (found.begin as usize) < window_end);
                let read = found.map_or(window_end, |found| found.end as usize) - at;
                search.spend(read as u64 * self.byte_work);
                at = match found {
                    Some(found) => {
                        search.spend(CANDIDATE_WORK);
                        self.accept(text, found, base, search)
                    }
                    None => window_end,
                };
            }
        }
        at
    }

    /// A match is one more; where the next one may begin.
    fn accept(&self, text: &[u8], found: Match, base: u32, search: &mut Search) -> usize {
        search.found += 1;
        if search.most > 0 {
            let Match { begin, end, literal } = found;
            search.matches.push(Match { begin: base + begin, end: base + end, literal });
        }
        let end = found.end as usize;
        // The match may have the line's end for its last byte.
        if self.separator.is_some() { self.pass_line(text, end - 1, search) } else { end }
    }

    /// Where the next line begins: behind the first separator from `from` on.
    fn pass_line(&self, text: &[u8], from: usize, search: &mut Search) -> usize {
        let found = self.separator.and_then(|separator| memchr::memchr(separator, &text[from..]));
        search.passes_line = found.is_none();
        let next = found.map_or(text.len(), |at| from + at + 1);
        search.spend((next - from) as u64 / SEARCHED_BYTES_A_WORK);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use willow_gate::literals::{IGNORE_CASE, LINES, LITERAL_BYTES_MAX, LITERALS_MAX};

    pub fn written(literals: &[&[u8]]) -> Vec<u8> {
        literals.iter().flat_map(|literal| [&(literal.len() as u32).to_le_bytes(), *literal].concat()).collect()
    }

    /// What the definition says.
    fn slowly(literals: &[&[u8]], flags: u32, text: &[u8]) -> Vec<(u32, u32)> {
        let is_at = |literal: &[u8], at: usize| {
            text.get(at..at + literal.len()).is_some_and(|there| match flags & IGNORE_CASE {
                0 => there == literal,
                _ => there.eq_ignore_ascii_case(literal),
            })
        };
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let longest = literals.iter().filter(|literal| is_at(literal, at)).map(|literal| literal.len()).max();
            let Some(longest) = longest else {
                at += 1;
                continue;
            };
            found.push((at as u32, (at + longest) as u32));
            at += longest;
            if flags & LINES != 0 {
                let line = text[at - 1..].iter().position(|byte| u32::from(*byte) == flags >> 8);
                at = line.map_or(text.len(), |line| at + line);
            }
        }
        found
    }

    #[test]
    fn matches_are_those_of_the_definition_however_a_search_is_cut() {
        let mut state = 7u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut linear, mut several) = (0, 0);
        for round in 0..150 {
            let letters = [2, 3, 20][round % 3];
            let bytes = [300, 3000, 60_000][next(3) as usize];
            let mut text: Vec<u8> = (0..bytes).map(|_| (b'A' as u64 + next(letters)) as u8).collect();
            for _ in 0..bytes / 80 {
                let at = next(bytes) as usize;
                text[at] = b'\n';
            }
            let literals: Vec<Vec<u8>> = (0..1 + next(40))
                .map(|_| (0..1 + next(12)).map(|_| (b'A' as u64 + next(letters)) as u8).collect())
                .collect();
            let literals: Vec<&[u8]> = literals.iter().map(Vec::as_slice).collect();
            let flags = [0, IGNORE_CASE, LINES | 0x0a00, IGNORE_CASE | LINES | 0x0a00][next(4) as usize];
            let set = LiteralSet::new(&written(&literals), flags, 16 << 20).expect("a set");
            let (mut found, mut at, mut searches, mut passes_line) = (Vec::new(), 0, 0, false);
            while at < text.len() {
                let mut search = Search::new(1 + next(300) as u32, passes_line, u64::MAX);
                // At times only a piece of the text is there, which has what begins in it.
                let end =
                    if next(2) == 0 { text.len() } else { text.len().min(at + set.longest() + next(9000) as usize) };
                let limit = if end == text.len() { end - at } else { end - at - (set.longest() - 1) };
                let until = at + set.find(&text[at..end], limit, at as u32, &mut search);
                assert!(until > at && search.work() <= SEARCH_WORK_MAX);
                assert!(until >= at + limit || search.is_over());
                passes_line = search.passes_line;
                for found in &search.matches {
                    let literal = literals[found.literal as usize];
                    assert!(
                        slowly(&[literal], flags & IGNORE_CASE, &text[found.begin as usize..found.end as usize]).len()
                            == 1
                    );
                }
                found.extend(search.matches.iter().map(|found| (found.begin, found.end)));
                (at, searches) = (until, searches + 1);
            }
            assert_eq!(found, slowly(&literals, flags, &text));
            linear += u32::from(letters == 2 && bytes == 60_000);
            several += u32::from(searches > 1);
        }
        assert!(linear > 5 && several > 5, "{linear} {several}");
    }

    #[test]
    fn what_cannot_be_a_set_is_refused() {
        let long = vec![b'x'; LITERAL_BYTES_MAX + 1];
        let many: Vec<&[u8]> = vec![b"ab"; LITERALS_MAX + 1];
        for (bytes, flags) in [
            (Vec::new(), 0),
            (vec![1, 0, 0], 0),
            (vec![2, 0, 0, 0, b'a'], 0),
            (vec![0xff; 8], 0),
            (written(&[b""]), 0),
            (written(&[&long]), 0),
            (written(&many), 0),
            (written(&[b"a"]), 4),
            (written(&[b"a"]), 0x0a00),
        ] {
            assert_eq!(LiteralSet::new(&bytes, flags, 1 << 20).err(), Some(NoSet::Malformed), "{bytes:?} {flags}");
        }
        assert_eq!(LiteralSet::new(&written(&[&long[1..]]), 0, 1000).err(), Some(NoSet::TooLarge));
    }
}
