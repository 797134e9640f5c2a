//! What is searched for, compiled: for the SPUs a literal and an automaton, for the host the same expression, which decides what they cannot.
//!
//! What always holds: memory and time of compiling are bounded, whatever the pattern.

use crate::literals::Literals;
use crate::posix::{PatternError, Syntax, translate};
use memchr::memmem;
use regex_automata::dfa::{StartKind, dense};
use regex_automata::hybrid::{self, LazyStateID};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind, meta};
use regex_syntax::hir::Hir;
use search_spu::segment::{Automaton, Found, Set};
use search_spu::wire::{OPTION_IGNORE_CASE, OPTION_LITERALS_DECIDE, Prepare, SET_BYTES_MAX};
use std::cell::{OnceCell, RefCell};
use std::ops::Range;

/// Most bytes of all patterns together.
pub const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Most memory of an expression's compiled forms.
const NFA_BYTES_MAX: usize = 32 << 20;
/// Most memory for making an automaton.
const DETERMINIZE_BYTES_MAX: usize = 2 << 20;
/// Most memory of the host's own automaton.
const LAZY_BYTES_MAX: usize = 8 << 20;
/// Most bytes of an automaton for what literals decide.
const SMALL_BYTES_MAX: usize = 32 << 10;

/// What patterns mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternOptions {
    /// How they are written.
    pub syntax: Syntax,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Only whole words match.
    pub word: bool,
    /// Only whole lines match.
    pub line: bool,
    /// Patterns and lines are UTF-8, else bytes.
    pub unicode: bool,
}

impl Default for PatternOptions {
    fn default() -> Self {
        PatternOptions { syntax: Syntax::Basic, ignore_case: false, word: false, line: false, unicode: true }
    }
}

/// What is searched for.
pub struct Pattern {
    literals: Literals,
    judge: Judge,
}

fn engine(error: impl std::fmt::Display) -> PatternError {
    // Of several lines the last one says what is wrong.
    let text = error.to_string();
    PatternError::Engine(text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned())
}

impl Pattern {
    /// Compiles patterns: lines that match any of them are wanted. In each, a line feed begins another.
    pub fn new(patterns: &[Vec<u8>], options: PatternOptions) -> Result<Pattern, PatternError> {
        if patterns.iter().map(Vec::len).sum::<usize>() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooBig);
        }
        let mut expression = String::new();
        for pattern in patterns.iter().flat_map(|text| text.split(|byte| *byte == b'\n')) {
            let one = translate(pattern, options.syntax, options.unicode)?;
            expression.push_str(if expression.is_empty() { "" } else { "|" });
            // An alternative of its own, whatever it has inside.
            expression.push_str(&format!("(?:{one})"));
        }
        if patterns.is_empty() {
            expression = "[a&&b]".to_owned();
        }
        let word = if options.unicode { "" } else { "-u" };
        if options.line {
            expression = format!("(?m:^)(?:{expression})(?m:$)");
        } else if options.word {
            expression = format!("(?{word}:\\b{{start-half}})(?:{expression})(?{word}:\\b{{end-half}})");
        }
        let mut parser = regex_syntax::ParserBuilder::new();
        parser.utf8(false).unicode(options.unicode).case_insensitive(options.ignore_case);
        let hir = parser.build().parse(&expression).map_err(engine)?;
        Self::of(&hir)
    }

    fn of(hir: &Hir) -> Result<Pattern, PatternError> {
        Ok(Pattern { literals: Literals::of(hir), judge: Judge::new(hir)? })
    }

    /// What an SPU is told to prepare (the body of the request), with `OPTION_*`; [`PatternError::TooBig`] where no automaton of the pattern
    /// fits an SPU's memory: then the host has to search.
    pub fn for_drive(&self, options: u32) -> Result<Vec<u8>, PatternError> {
        let literals = self.literals.encode();
        let room = SET_BYTES_MAX - literals.len().next_multiple_of(4);
        let automaton = match self.literals.decides {
            // Without the accelerator, or where its matches are too many, an SPU looks for one literal by itself.
            true if self.literals.single().is_some() => Vec::new(),
            true => self.judge.dense(SMALL_BYTES_MAX, false).unwrap_or_default(),
            // Where it does not fit, one that leaves lines with anything but ASCII to the host.
            false => {
                self.judge.dense(room, false).or_else(|| self.judge.dense(room, true)).ok_or(PatternError::TooBig)?
            }
        };
        let decides = if self.literals.decides { OPTION_LITERALS_DECIDE } else { 0 };
        let ignore_case = if self.literals.ignore_case { OPTION_IGNORE_CASE } else { 0 };
        let head = Prepare {
            options: options | decides | ignore_case,
            literals_bytes: literals.len() as u32,
            automaton_bytes: automaton.len() as u32,
        };
        if head.automaton_offset() + automaton.len() > SET_BYTES_MAX {
            return Err(PatternError::TooBig);
        }
        let mut body = head.encode().to_vec();
        body.extend_from_slice(&literals);
        body.resize(Prepare::BYTES + head.automaton_offset(), 0);
        body.extend_from_slice(&automaton);
        Ok(body)
    }

    /// The same for searching on the host.
    pub fn for_host(&self, options: u32) -> Set<'_, &Judge> {
        let single = self.literals.single().filter(|_| self.literals.decides);
        Set {
            options: options | if single.is_some() { OPTION_LITERALS_DECIDE } else { 0 },
            literal: single.map(memmem::Finder::new),
            automaton: single.is_none().then_some(&self.judge),
        }
    }

    /// What decides about a line.
    pub fn judge(&self) -> &Judge {
        &self.judge
    }
}

/// The host's own judge of lines.
pub struct Judge {
    nfa: NFA,
    regex: meta::Regex,
    lazy: OnceCell<Option<LazyJudge>>,
    longest: OnceCell<Option<Longest>>,
}

/// For lines that are too long to be had at once.
struct LazyJudge {
    automaton: hybrid::dfa::DFA,
    cache: RefCell<hybrid::dfa::Cache>,
}

/// For the longest match from a place on, as POSIX wants it.
struct Longest {
    automaton: hybrid::dfa::DFA,
    cache: RefCell<hybrid::dfa::Cache>,
    slow: PikeVM,
}

impl Automaton for &Judge {
    fn find(&self, segment: &[u8], from: usize, end: usize) -> Option<Found> {
        let found = self.regex.search_half(&Input::new(&segment[from..end]).earliest(true))?;
        Some(Found::Match(from + found.offset()))
    }
}

impl Judge {
    fn new(hir: &Hir) -> Result<Judge, PatternError> {
        let config = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(NFA_BYTES_MAX))
            .which_captures(WhichCaptures::Implicit);
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(hir).map_err(|_| PatternError::TooBig)?;
        let config = meta::Config::new()
            .utf8_empty(false)
            .nfa_size_limit(Some(NFA_BYTES_MAX))
            .hybrid_cache_capacity(LAZY_BYTES_MAX)
            .which_captures(WhichCaptures::Implicit);
        let regex = meta::Builder::new().configure(config).build_from_hir(hir).map_err(|_| PatternError::TooBig)?;
        Ok(Judge { nfa, regex, lazy: OnceCell::new(), longest: OnceCell::new() })
    }

    /// Whether a line matches.
    pub fn matches(&self, line: &[u8]) -> bool {
        self.regex.is_match(line)
    }

    /// The automaton that finds the end of a match, of so many bytes at most; `ascii`: it gives up at any byte that is not ASCII.
    fn dense(&self, bytes_max: usize, ascii: bool) -> Option<Vec<u8>> {
        let mut config = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .unicode_word_boundary(true)
            .dfa_size_limit(Some(bytes_max))
            .determinize_size_limit(Some(DETERMINIZE_BYTES_MAX));
        if ascii {
            for byte in 0x80..=0xff {
                config = config.quit(byte, true);
            }
        }
        let dense = dense::Builder::new().configure(config).build_from_nfa(&self.nfa).ok()?;
        let (bytes, padding) = dense.to_bytes_little_endian();
        let bytes = &bytes[padding..];
        (bytes.len() <= bytes_max).then(|| bytes.to_vec())
    }

    fn hybrid(&self, kind: MatchKind) -> Option<hybrid::dfa::DFA> {
        let config = hybrid::dfa::Config::new()
            .match_kind(kind)
            .unicode_word_boundary(true)
            .cache_capacity(LAZY_BYTES_MAX)
            .skip_cache_capacity_check(true);
        hybrid::dfa::Builder::new().configure(config).build_from_nfa(self.nfa.clone()).ok()
    }

    /// The matches in a line, each the longest from its start on, none of them empty.
    pub fn each_match(&self, line: &[u8], mut each: impl FnMut(&[u8])) {
        let mut at = 0;
        while at < line.len() {
            let Some(found) = self.regex.find(Input::new(line).span(at..line.len())) else { return };
            let end = self.longest(line, found.range()).max(found.end());
            if end > found.start() {
                each(&line[found.start()..end]);
                at = end;
            } else {
                at = end + 1;
            }
        }
    }

    /// Where the longest match ends that begins where this one does.
    fn longest(&self, line: &[u8], found: Range<usize>) -> usize {
        let longest = self.longest.get_or_init(|| {
            let automaton = self.hybrid(MatchKind::All)?;
            let config = PikeVM::config().match_kind(MatchKind::All);
            let slow = PikeVM::builder().configure(config).build_from_nfa(self.nfa.clone()).ok()?;
            let cache = RefCell::new(automaton.create_cache());
            Some(Longest { automaton, cache, slow })
        });
        let Some(longest) = longest else { return found.end };
        let input = Input::new(line).anchored(Anchored::Yes).span(found.start..line.len());
        match longest.automaton.try_search_fwd(&mut longest.cache.borrow_mut(), &input) {
            Ok(found) => found.map_or(0, |found| found.offset()),
            // A word border beside what is not ASCII.
            Err(_) => {
                let mut cache = longest.slow.create_cache();
                longest.slow.find_iter(&mut cache, input).next().map_or(0, |found| found.end())
            }
        }
    }

    /// Begins to judge a line that comes in parts; `None` where that cannot be done for this pattern.
    pub fn parts(&self) -> Option<Parts<'_>> {
        let lazy = self.lazy.get_or_init(|| {
            let automaton = self.hybrid(MatchKind::LeftmostFirst)?;
            let cache = RefCell::new(automaton.create_cache());
            Some(LazyJudge { automaton, cache })
        });
        let lazy = lazy.as_ref()?;
        let input = Input::new(b"");
        let state = lazy.automaton.start_state_forward(&mut lazy.cache.borrow_mut(), &input).ok()?;
        Some(Parts { lazy, state, verdict: None })
    }
}

/// A line that is judged in parts.
pub struct Parts<'a> {
    lazy: &'a LazyJudge,
    state: LazyStateID,
    verdict: Option<Result<bool, Undecidable>>,
}

/// A word border beside what is not ASCII, in a line that is too long to be had at once; or the automaton has grown too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecidable;

impl Parts<'_> {
    /// The next part; false where no more is needed.
    pub fn part(&mut self, bytes: &[u8]) -> bool {
        let mut cache = self.lazy.cache.borrow_mut();
        for byte in bytes {
            if self.verdict.is_some() {
                break;
            }
            match self.lazy.automaton.next_state(&mut cache, self.state, *byte) {
                Ok(state) if state.is_match() => self.verdict = Some(Ok(true)),
                Ok(state) if state.is_dead() => self.verdict = Some(Ok(false)),
                Ok(state) if state.is_quit() => self.verdict = Some(Err(Undecidable)),
                Ok(state) => self.state = state,
                Err(_) => self.verdict = Some(Err(Undecidable)),
            }
        }
        self.verdict.is_none()
    }

    /// Whether the line matches, at its end.
    pub fn end(self) -> Result<bool, Undecidable> {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        let end = self.lazy.automaton.next_eoi_state(&mut self.lazy.cache.borrow_mut(), self.state);
        end.map(|state| state.is_match()).map_err(|_| Undecidable)
    }
}
