//! Patterns as POSIX and GNU grep have them, basic and extended, as patterns of the engine.
//!
//! What always holds: what comes out never matches a line feed; a pattern that GNU grep refuses is refused, with its reason, and so is one
//! whose language is not regular (a back-reference).

use std::fmt::Write;

/// Most repetitions that an interval can ask for (RE_DUP_MAX).
const REPETITIONS_MAX: u32 = 32767;

/// How a pattern is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Plain text.
    Fixed,
    /// Basic regular expressions: `\(`, `\{`, `\|`, `\+`, `\?`.
    Basic,
    /// Extended regular expressions.
    Extended,
}

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A backslash with nothing behind it.
    #[error("Trailing backslash")]
    TrailingBackslash,
    /// A group that does not end.
    #[error("Unmatched ( or \\(")]
    UnmatchedOpening,
    /// A group that does not begin.
    #[error("Unmatched ) or \\)")]
    UnmatchedClosing,
    /// A set that does not end.
    #[error("Unmatched [, [^, [:, [., or [=")]
    UnmatchedBracket,
    /// An interval that does not end.
    #[error("Unmatched \\{{")]
    UnmatchedBrace,
    /// An interval that makes no sense.
    #[error("Invalid content of \\{{\\}}")]
    Interval,
    /// An interval of too many, or an automaton past its bound.
    #[error("Regular expression too big")]
    TooBig,
    /// A range whose end lies before its start.
    #[error("Invalid range end")]
    RangeEnd,
    /// `[:name:]` of no class.
    #[error("Invalid character class name")]
    ClassName,
    /// `[.name.]` or `[=name=]` of no character.
    #[error("Invalid collation character")]
    Collation,
    /// `[:space:]` where `[[:space:]]` is meant.
    #[error("character class syntax is [[:space:]], not [:space:]")]
    ClassOutside,
    /// `\1` to `\9`: what it matches depends on what a group matched, which no automaton of the drive can tell.
    #[error("back-references such as \\{0} cannot be searched for in the drive")]
    BackReference(char),
    /// What the engine says.
    #[error("{0}")]
    Engine(String),
}

/// Translates one pattern. `unicode`: patterns and lines are UTF-8, else bytes.
pub fn translate(pattern: &[u8], syntax: Syntax, unicode: bool) -> Result<String, PatternError> {
    let mut translator =
        Translator { pattern, at: 0, unicode, extended: syntax == Syntax::Extended, out: String::new(), atom: None };
    if syntax == Syntax::Fixed {
        while let Some(character) = translator.take() {
            translator.literal(character);
        }
        return Ok(translator.out);
    }
    // How [:space:] as a whole is nearly always a mistake.
    if pattern.len() >= 4 && pattern.starts_with(b"[:") && pattern.ends_with(b":]") && !pattern[2..].contains(&b'[') {
        return Err(PatternError::ClassOutside);
    }
    translator.all()?;
    Ok(translator.out)
}

/// A character of a pattern, or a byte that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Character {
    Char(char),
    Byte(u8),
}

impl Character {
    /// For comparing the ends of ranges.
    fn value(self) -> u32 {
        match self {
            Character::Char(char) => u32::from(char),
            Character::Byte(byte) => u32::from(byte),
        }
    }
}

struct Translator<'a> {
    pattern: &'a [u8],
    at: usize,
    unicode: bool,
    extended: bool,
    out: String,
    /// Where the atom begins that a repetition would take.
    atom: Option<usize>,
}

impl<'p> Translator<'p> {
    fn rest(&self) -> &'p [u8] {
        &self.pattern[self.at..]
    }

    /// The next character, taken.
    fn take(&mut self) -> Option<Character> {
        let rest = &self.pattern[self.at..];
        let first = *rest.first()?;
        if first < 0x80 {
            self.at += 1;
            return Some(Character::Char(char::from(first)));
        }
        if self.unicode
            && let Some(chunk) = rest[..rest.len().min(4)].utf8_chunks().next()
            && let Some(char) = chunk.valid().chars().next()
        {
            self.at += char.len_utf8();
            return Some(Character::Char(char));
        }
        self.at += 1;
        Some(Character::Byte(first))
    }

    fn eat(&mut self, text: &[u8]) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    fn write_character(&mut self, character: Character) {
        let written = match character {
            Character::Char(char) if char.is_ascii_alphanumeric() => write!(self.out, "{char}"),
            Character::Char(char) => write!(self.out, "\\x{{{:x}}}", u32::from(char)),
            Character::Byte(byte) => write!(self.out, "(?-u:\\x{byte:02x})"),
        };
        // A string takes anything.
        debug_assert!(written.is_ok());
    }

    fn literal(&mut self, character: Character) {
        self.atom = Some(self.out.len());
        self.write_character(character);
    }

    /// An atom in the engine's own syntax.
    fn atom(&mut self, text: &str) {
        self.atom = Some(self.out.len());
        self.out.push_str(text);
    }

    /// Something that takes no bytes, and cannot be repeated: a `*` behind it is a character where it can be one.
    fn assertion(&mut self, text: &str) {
        self.out.push_str(text);
        self.atom = None;
    }

    /// True where a basic expression begins here: `*` is a character, and `^` an anchor.
    fn begins(&self) -> bool {
        self.out.is_empty() || self.out.ends_with("(?:") || self.out.ends_with('|')
    }

    fn all(&mut self) -> Result<(), PatternError> {
        // Where each open group's atom begins.
        let mut groups = Vec::new();
        while let Some(character) = self.take() {
            let Character::Char(char) = character else {
                self.literal(character);
                continue;
            };
            match char {
                '\\' => self.escaped(&mut groups)?,
                '[' => self.bracket()?,
                '.' => self.atom(if self.unicode { "." } else { "(?-u:.)" }),
                '*' if self.extended || self.atom.is_some() => self.repeat("*"),
                '+' | '?' if self.extended => self.repeat(char.encode_utf8(&mut [0; 4])),
                '{' if self.extended => {
                    if self.atom.is_some() && self.rest().starts_with(b"}") {
                        return Err(PatternError::Interval);
                    }
                    let begin = self.at;
                    match self.interval(b"}")? {
                        Some(text) => self.repeat(&text),
                        None => {
                            self.at = begin;
                            self.literal(character);
                        }
                    }
                }
                '|' if self.extended => self.alternative(),
                '(' if self.extended => self.open(&mut groups),
                ')' if self.extended && !groups.is_empty() => self.close(&mut groups)?,
                '^' if self.extended => self.atom("(?m:^)"),
                '$' if self.extended => self.atom("(?m:$)"),
                '^' if self.begins() => self.assertion("(?m:^)"),
                '$' if self.rest().is_empty() || self.rest().starts_with(b"\\)") || self.rest().starts_with(b"\\|") => {
                    self.atom("(?m:$)");
                }
                _ => self.literal(character),
            }
        }
        if groups.is_empty() { Ok(()) } else { Err(PatternError::UnmatchedOpening) }
    }

    fn escaped(&mut self, groups: &mut Vec<usize>) -> Result<(), PatternError> {
        let character = self.take().ok_or(PatternError::TrailingBackslash)?;
        let Character::Char(char) = character else {
            self.literal(character);
            return Ok(());
        };
        let word = if self.unicode { "" } else { "-u" };
        match char {
            '(' if !self.extended => self.open(groups),
            ')' if !self.extended && groups.is_empty() => return Err(PatternError::UnmatchedClosing),
            ')' if !self.extended => self.close(groups)?,
            '|' if !self.extended => self.alternative(),
            '+' | '?' if !self.extended && self.atom.is_some() => self.repeat(char.encode_utf8(&mut [0; 4])),
            '{' if !self.extended && self.atom.is_some() => {
                let text = self.interval(b"\\}")?.ok_or(PatternError::Interval)?;
                self.repeat(&text);
            }
            'w' => self.atom(&format!("(?{word}:\\w)")),
            'W' if self.unicode => self.atom("[^\\w\\n]"),
            'W' => self.atom("(?-u:[^\\w\\n])"),
            's' if self.unicode => self.atom("[\\s--\\n\\x{85}\\x{a0}\\x{2007}\\x{202f}]"),
            's' => self.atom("(?-u:[\\t\\x0b\\x0c\\r ])"),
            'S' if self.unicode => self.atom("[\\S\\x{85}\\x{a0}\\x{2007}\\x{202f}]"),
            'S' => self.atom("(?-u:[^\\s\\x0b])"),
            'b' => self.assertion(&format!("(?{word}:\\b)")),
            'B' => self.assertion(&format!("(?{word}:\\B)")),
            '<' => self.assertion(&format!("(?{word}:\\b{{start}})")),
            '>' => self.assertion(&format!("(?{word}:\\b{{end}})")),
            '`' => self.assertion("(?m:^)"),
            '\'' => self.assertion("(?m:$)"),
            '1'..='9' => return Err(PatternError::BackReference(char)),
            _ => self.literal(character),
        }
        Ok(())
    }

    fn open(&mut self, groups: &mut Vec<usize>) {
        groups.push(self.out.len());
        self.out.push_str("(?:");
        self.atom = None;
    }

    fn close(&mut self, groups: &mut Vec<usize>) -> Result<(), PatternError> {
        let begin = groups.pop().ok_or(PatternError::UnmatchedClosing)?;
        self.out.push(')');
        self.atom = Some(begin);
        Ok(())
    }

    fn alternative(&mut self) {
        self.out.push('|');
        self.atom = None;
    }

    /// Repeats the last atom; without one there is nothing to repeat.
    fn repeat(&mut self, operator: &str) {
        let Some(begin) = self.atom else { return };
        self.out.insert_str(begin, "(?:");
        self.out.push(')');
        self.out.push_str(operator);
        // Of what is repeated again, too.
        self.out.insert_str(begin, "(?:");
        self.out.push(')');
    }

    fn number(&mut self) -> Result<Option<u32>, PatternError> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut number: u32 = 0;
        for digit in &self.pattern[self.at..self.at + digits] {
            number = number.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
        }
        self.at += digits;
        if number > REPETITIONS_MAX {
            return Err(PatternError::TooBig);
        }
        Ok((digits > 0).then_some(number))
    }

    /// What is behind the opening brace; `None` where that is no interval, which makes the brace of an extended expression a character.
    fn interval(&mut self, end: &[u8]) -> Result<Option<String>, PatternError> {
        let begin = self.at;
        let is_none = |translator: &Self| match translator.extended {
            true => Ok(None),
            false if !translator.pattern[begin..].windows(2).any(|pair| pair == b"\\}") => {
                Err(PatternError::UnmatchedBrace)
            }
            false => Err(PatternError::Interval),
        };
        let least = self.number()?;
        let has_comma = self.eat(b",");
        let most = if has_comma { self.number()? } else { least };
        if !self.eat(end) || (least.is_none() && !has_comma) {
            return is_none(self);
        }
        let least = least.unwrap_or(0);
        if most.is_some_and(|most| most < least) {
            return Err(PatternError::Interval);
        }
        Ok(Some(match most {
            Some(most) => format!("{{{least},{most}}}"),
            None => format!("{{{least},}}"),
        }))
    }

    /// `[...]`, behind the opening bracket.
    fn bracket(&mut self) -> Result<(), PatternError> {
        let is_negated = self.eat(b"^");
        let mut inner = String::new();
        let mut bytes = String::new();
        let mut is_first = true;
        loop {
            if !is_first && self.eat(b"]") {
                break;
            }
            is_first = false;
            if self.eat(b"[:") {
                let name = self.name(b":]")?;
                inner.push_str(self.class(name)?);
                continue;
            }
            let start = self.member()?;
            let is_range = self.rest().starts_with(b"-") && !self.rest().starts_with(b"-]");
            let end = if is_range {
                self.at += 1;
                self.member()?
            } else {
                start
            };
            if end.value() < start.value() {
                return Err(PatternError::RangeEnd);
            }
            // A byte that is no character stands for itself alone, beside the set of characters.
            let written = match (start, end) {
                (Character::Char(start), Character::Char(end)) => {
                    write!(inner, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(start), u32::from(end))
                }
                (start, end) if !self.unicode => write!(inner, "\\x{:02x}-\\x{:02x}", start.value(), end.value()),
                (Character::Byte(byte), _) if start == end => write!(bytes, "|(?-u:\\x{byte:02x})"),
                _ => return Err(PatternError::RangeEnd),
            };
            debug_assert!(written.is_ok());
        }
        let flags = if self.unicode { "" } else { "(?-u)" };
        let set = match is_negated {
            true => format!("{flags}[^\\n{inner}]"),
            // Nothing of it but a line feed matches nothing.
            false if inner.is_empty() => "[a&&b]".to_owned(),
            false => format!("{flags}[[{inner}]--\\n]"),
        };
        self.atom(&format!("(?:{set}{})", if is_negated { "" } else { &bytes }));
        Ok(())
    }

    /// What is before `end`, which is taken too.
    fn name(&mut self, end: &[u8]) -> Result<&'p [u8], PatternError> {
        let begin = self.at;
        let bytes = self.rest().windows(2).position(|pair| pair == end).ok_or(PatternError::UnmatchedBracket)?;
        self.at += bytes + 2;
        Ok(&self.pattern[begin..begin + bytes])
    }

    /// One character of a set.
    fn member(&mut self) -> Result<Character, PatternError> {
        for (begin, end) in [(b"[.", b".]"), (b"[=", b"=]")] {
            if self.eat(begin) {
                let unicode = self.unicode;
                let name = self.name(end)?;
                let mut inner =
                    Translator { pattern: name, at: 0, unicode, extended: true, out: String::new(), atom: None };
                let character = inner.take().ok_or(PatternError::Collation)?;
                return if inner.rest().is_empty() { Ok(character) } else { Err(PatternError::Collation) };
            }
        }
        self.take().ok_or(PatternError::UnmatchedBracket)
    }

    /// A class as members of one of the engine's.
    fn class(&self, name: &[u8]) -> Result<&'static str, PatternError> {
        let (ascii, unicode) = match name {
            b"alpha" => ("[:alpha:]", "\\p{Alphabetic}"),
            b"digit" => ("[:digit:]", "0-9"),
            b"alnum" => ("[:alnum:]", "\\p{Alphabetic}\\p{Nd}"),
            b"upper" => ("[:upper:]", "\\p{Uppercase}"),
            b"lower" => ("[:lower:]", "\\p{Lowercase}"),
            b"space" => ("[:space:]", "[\\s--\\x{85}\\x{a0}\\x{2007}\\x{202f}]"),
            b"blank" => ("[:blank:]", "[\\t\\p{Zs}--\\x{a0}\\x{2007}\\x{202f}]"),
            b"punct" => ("[:punct:]", "[\\p{P}\\p{S}--\\p{Alphabetic}]"),
            b"print" => ("[:print:]", "[^\\p{Cc}\\p{Cn}\\p{Cs}\\p{Zl}\\p{Zp}]"),
            b"graph" => ("[:graph:]", "[^\\p{Cc}\\p{Cn}\\p{Cs}\\p{Z}]"),
            b"cntrl" => ("[:cntrl:]", "\\p{Cc}\\p{Zl}\\p{Zp}"),
            b"xdigit" => ("[:xdigit:]", "[:xdigit:]"),
            _ => return Err(PatternError::ClassName),
        };
        // In a set of its own in each case: [[:alpha:]].
        Ok(match (self.unicode, name) {
            (true, _) => unicode,
            (false, _) => ascii,
        })
    }
}
