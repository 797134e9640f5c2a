//! Literals of an expression: what each match must have, so that lines without any of them need no automaton.
//!
//! What always holds: a line that matches has one of the literals; where [`Literals::decides`], a line that has one matches.

use regex_syntax::hir::{Class, Hir, HirKind};
use search_spu::wire::{LITERAL_BYTES_MAX, LITERALS_BYTES_MAX, LITERALS_MAX};

/// Shortest literal that is worth looking for before the automaton runs.
const BYTES_MIN: usize = 2;

/// The literals of an expression; none where it has none that each match needs, or too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Literals {
    /// Any of these; in lower case where case is ignored.
    pub list: Vec<Vec<u8>>,
    /// ASCII letters match in either case.
    pub ignore_case: bool,
    /// They are all that the expression asks for.
    pub decides: bool,
}

/// Bytes in a row.
#[derive(Clone, Debug, Default)]
struct Run {
    bytes: Vec<u8>,
    /// Some letters stand for either case.
    has_pairs: bool,
    /// Some letters stand for themselves alone.
    has_letters: bool,
}

/// What each match of a part of an expression has.
struct Needed {
    runs: Vec<Run>,
    is_all: bool,
}

impl Run {
    fn push(&mut self, bytes: &[u8]) {
        self.has_letters |= bytes.iter().any(u8::is_ascii_alphabetic);
        self.bytes.extend_from_slice(bytes);
    }
}

/// The letter that a set of two stands for, its two cases.
fn pair(class: &Class) -> Option<u8> {
    let ends: Vec<(u32, u32)> = match class {
        Class::Unicode(class) => {
            class.ranges().iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        Class::Bytes(class) => class.ranges().iter().map(|range| (range.start().into(), range.end().into())).collect(),
    };
    let [(upper, upper_end), (lower, lower_end)] = ends[..] else { return None };
    let letter = u8::try_from(lower).ok().filter(u8::is_ascii_lowercase)?;
    (upper == upper_end && lower == lower_end && upper == u32::from(letter.to_ascii_uppercase())).then_some(letter)
}

/// Appends an expression to a run, where it is one itself.
fn append(hir: &Hir, run: &mut Run) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => run.push(&literal.0),
        HirKind::Class(class) => match pair(class) {
            Some(letter) => {
                run.bytes.push(letter);
                run.has_pairs = true;
            }
            None => return false,
        },
        HirKind::Capture(capture) => return append(&capture.sub, run),
        HirKind::Concat(parts) => {
            let begin = run.clone();
            if !parts.iter().all(|part| append(part, run)) {
                *run = begin;
                return false;
            }
        }
        _ => return false,
    }
    true
}

/// How good literals are: the shortest of them says it.
fn value(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.bytes.len()).min().unwrap_or(0)
}

fn needed(hir: &Hir) -> Option<Needed> {
    let mut run = Run::default();
    if append(hir, &mut run) {
        return (!run.bytes.is_empty()).then(|| Needed { runs: vec![run], is_all: true });
    }
    match hir.kind() {
        HirKind::Capture(capture) => needed(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            needed(&repetition.sub).map(|inner| Needed { is_all: false, ..inner })
        }
        HirKind::Alternation(parts) => {
            let mut all = Needed { runs: Vec::new(), is_all: true };
            for part in parts {
                let part = needed(part)?;
                all.runs.extend(part.runs);
                all.is_all &= part.is_all;
            }
            Some(all)
        }
        HirKind::Concat(parts) => {
            // The longest run, or a part that is no run but has good literals of its own.
            let mut best: Vec<Run> = Vec::new();
            let mut better = |runs: Vec<Run>| {
                if value(&runs) > value(&best) {
                    best = runs;
                }
            };
            let mut run = Run::default();
            for part in parts {
                if !append(part, &mut run) {
                    better(vec![std::mem::take(&mut run)]);
                    if let Some(inner) = needed(part) {
                        better(inner.runs);
                    }
                }
            }
            better(vec![run]);
            (!best.is_empty()).then_some(Needed { runs: best, is_all: false })
        }
        _ => None,
    }
}

impl Literals {
    /// Of an expression.
    pub fn of(hir: &Hir) -> Literals {
        Self::find(hir).unwrap_or_default()
    }

    fn find(hir: &Hir) -> Option<Literals> {
        let Needed { mut runs, is_all } = needed(hir)?;
        let ignore_case = runs.iter().any(|run| run.has_pairs);
        // In one set all ignore case or none.
        let decides = is_all && !(ignore_case && runs.iter().any(|run| run.has_letters));
        if ignore_case {
            runs.iter_mut().for_each(|run| run.bytes.make_ascii_lowercase());
        }
        let mut list: Vec<Vec<u8>> = runs.into_iter().map(|run| run.bytes).collect();
        list.sort();
        list.dedup();
        let bytes: usize = list.iter().map(|literal| literal.len() + 4).sum();
        // Zero bytes may end lines.
        let too_long = list.iter().any(|literal| literal.len() > LITERAL_BYTES_MAX || literal.contains(&0));
        if bytes > LITERALS_BYTES_MAX || list.len() > LITERALS_MAX || too_long {
            return None;
        }
        let too_short = list.iter().any(|literal| literal.len() < BYTES_MIN);
        (decides || !too_short).then_some(Literals { list, ignore_case, decides })
    }

    /// As the app's set has them.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for literal in &self.list {
            bytes.extend_from_slice(&(literal.len() as u32).to_le_bytes());
            bytes.extend_from_slice(literal);
        }
        bytes
    }

    /// The literal, where there is one, which is as it is written.
    pub fn single(&self) -> Option<&[u8]> {
        match &self.list[..] {
            [literal] if !self.ignore_case => Some(literal),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str) -> (Vec<String>, bool, bool) {
        let mut parser = regex_syntax::ParserBuilder::new().utf8(false).build();
        let literals = Literals::of(&parser.parse(pattern).expect("an expression"));
        let list = literals.list.iter().map(|literal| String::from_utf8_lossy(literal).into_owned()).collect();
        (list, literals.ignore_case, literals.decides)
    }

    fn some(list: &[&str], ignore_case: bool, decides: bool) -> (Vec<String>, bool, bool) {
        (list.iter().map(|literal| (*literal).to_owned()).collect(), ignore_case, decides)
    }

    #[test]
    fn each_match_has_one_of_the_literals() {
        assert_eq!(of("willow"), some(&["willow"], false, true));
        assert_eq!(of("foo|bar|foobar"), some(&["bar", "foo", "foobar"], false, true));
        assert_eq!(of("foo.*barbar"), some(&["barbar"], false, false));
        assert_eq!(of("(?m:^)(foo|quux)[0-9]"), some(&["foo", "quux"], false, false));
        assert_eq!(of("(?i)hello"), some(&["hello"], true, true));
        // k and s have a third form beyond ASCII.
        assert_eq!(of("(?i)willow book"), some(&["willow boo"], true, false));
        assert_eq!(of("[Ww]illow"), some(&["willow"], true, false));
        assert_eq!(of("(abc)+d?"), some(&["abc"], false, false));
        for none in ["", "a*", "[a-z]+", "foo|.", "a.b", "(foo)?x"] {
            assert_eq!(of(none), some(&[], false, false), "{none}");
        }
        // What is too much for an SPU.
        let many: Vec<String> = (0..3000).map(|word| format!("word{word}")).collect();
        assert_eq!(of(&many.join("|")), some(&[], false, false));
    }
}
