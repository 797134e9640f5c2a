//! One client's connection: what came and was not yet understood, the requests in their order, and what is to be sent.
//!
//! What always holds:
//! - answers go out in the order of the requests;
//! - of two requests for one key of which one changes something, the second begins when the first has ended; others go on together;
//! - who does not read its answers is not read from, and nothing more is begun for it;
//! - input and output have bounds; more than that is granted for one long item at a time, out of what all share ([`Grants`]).

use crate::binary;
use crate::command::{Limits, Parse, Request, Style, Verb};
use crate::engine::Engine;
use crate::item::Name;
use crate::outcome::{self, Outcome};
use crate::port::Port;
use std::collections::VecDeque;

/// Requests of a connection that are under way.
pub const PIPELINE_MAX: usize = 64;
/// Input that is kept without a grant; the longest line with many keys fits.
const INPUT_BYTES: usize = 80 << 10;
/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// With that much to be sent nothing more is begun.
const OUTPUT_BYTES: usize = 256 << 10;
/// Buffers longer than this are given back when they are empty.
const KEPT_BYTES: usize = 64 << 10;

/// Bytes that all connections share, for items that are longer than what each has.
#[derive(Debug)]
pub struct Grants {
    left: usize,
}

impl Grants {
    /// So many bytes.
    pub fn new(bytes: usize) -> Self {
        Grants { left: bytes }
    }

    fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn give(&mut self, bytes: usize) {
        self.left += bytes;
    }
}

enum Entry {
    /// A task's answer.
    Task(u32),
    /// This.
    Say(Vec<u8>),
    /// The end of a retrieval: what is said where all went well.
    End,
}

/// Keys of a retrieval that are not begun yet.
struct Many {
    keys: Vec<u8>,
    at: usize,
    touch: Option<u32>,
    versions: bool,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing more is there to be understood.
    Input,
    /// Something under way has to end, or an answer to be sent.
    Own,
    /// The engine has no room.
    Engine,
    /// All grants are taken.
    Grants,
}

/// A connection but for its socket.
pub struct Connection {
    number: u32,
    input: Vec<u8>,
    taken: usize,
    /// Bytes to come that belong to what was refused.
    skip: u64,
    /// Bytes that are needed before the input is looked at again.
    need: usize,
    granted: usize,
    output: Vec<u8>,
    sent: usize,
    entries: VecDeque<Entry>,
    many: Option<Many>,
    is_binary: Option<bool>,
    /// A retrieval failed: what is said at its end.
    failed: Option<&'static str>,
    /// No more input comes.
    is_half_closed: bool,
    /// Ends when all is sent.
    closing: bool,
}

impl Connection {
    /// A new one.
    pub fn new(number: u32) -> Self {
        Connection {
            number,
            input: Vec::new(),
            taken: 0,
            skip: 0,
            need: 1,
            granted: 0,
            output: Vec::new(),
            sent: 0,
            entries: VecDeque::new(),
            many: None,
            is_binary: None,
            failed: None,
            is_half_closed: false,
            closing: false,
        }
    }

    /// Where more input goes; empty where none is wanted now. To be followed by [`Connection::received`].
    pub fn space(&mut self) -> &mut [u8] {
        let waiting = self.input.len() - self.taken;
        let most = INPUT_BYTES.max(self.granted);
        if self.closing
            || self.is_half_closed
            || (waiting >= self.need && self.skip == 0)
            || waiting >= most
            || self.is_backed_up()
        {
            return &mut [];
        }
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        let length = self.input.len();
        // What is known to come is read with as few calls as can be.
        let wanted = READ_BYTES.max(self.need.saturating_sub(length)).min(most - length);
        self.input.resize(length + wanted, 0);
        &mut self.input[length..]
    }

    /// So many bytes of the space were filled, which had that length.
    pub fn received(&mut self, bytes: usize, space: usize) {
        self.input.truncate(self.input.len() - space + bytes);
    }

    /// Whether input is wanted.
    pub fn wants_input(&self) -> bool {
        let waiting = self.input.len() - self.taken;
        let goes_on = !self.closing && !self.is_half_closed && !self.is_backed_up();
        goes_on && (waiting < self.need || self.skip > 0) && waiting < INPUT_BYTES.max(self.granted)
    }

    fn is_backed_up(&self) -> bool {
        self.output.len() - self.sent >= OUTPUT_BYTES
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// So much of it was.
    pub fn wrote(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output.clear();
            if self.output.capacity() > KEPT_BYTES {
                self.output = Vec::new();
            }
        }
    }

    /// Whether it is over: all was answered and sent.
    pub fn is_over(&self) -> bool {
        self.closing && self.entries.is_empty() && self.many.is_none() && self.output().is_empty()
    }

    /// No more input comes: what did is still done.
    pub fn end_of_input(&mut self) {
        self.is_half_closed = true;
    }

    /// Whether it was stopped by that much to be sent.
    pub fn was_backed_up(&self, bytes: usize) -> bool {
        bytes >= OUTPUT_BYTES
    }

    /// Nothing is under way, and nothing is to be sent.
    pub fn is_settled(&self) -> bool {
        self.entries.is_empty() && self.many.is_none() && self.output().is_empty()
    }

    /// Whether it holds a grant for a long item.
    pub fn holds_grant(&self) -> bool {
        self.granted > 0
    }

    /// Whether it is for the client to send, or to take its answers.
    pub fn waits_for_its_client(&self) -> bool {
        self.wants_input() || self.is_backed_up()
    }

    /// It is gone.
    pub fn drop_all<P: Port>(&mut self, engine: &mut Engine<P>, grants: &mut Grants) {
        for entry in self.entries.drain(..) {
            if let Entry::Task(number) = entry {
                engine.abandon(number);
            }
        }
        grants.give(std::mem::take(&mut self.granted));
    }

    /// Takes what has ended, and begins what can be begun.
    pub fn advance<P: Port>(&mut self, engine: &mut Engine<P>, grants: &mut Grants) -> Stop {
        let stop = self.go_on(engine, grants);
        if stop == Stop::Input && self.is_half_closed {
            self.closing = true;
            grants.give(std::mem::take(&mut self.granted));
        }
        stop
    }

    fn go_on<P: Port>(&mut self, engine: &mut Engine<P>, grants: &mut Grants) -> Stop {
        loop {
            self.take_ended(engine);
            if self.entries.len() >= PIPELINE_MAX || self.is_backed_up() {
                return Stop::Own;
            }
            if self.many.is_some() {
                match self.next_key(engine) {
                    Ok(()) => continue,
                    Err(stop) => return stop,
                }
            }
            if self.closing {
                return Stop::Own;
            }
            if self.skip > 0 {
                let here = (self.skip).min((self.input.len() - self.taken) as u64);
                self.taken += here as usize;
                self.skip -= here;
                if self.skip > 0 {
                    self.need = 1;
                    return Stop::Input;
                }
            }
            if self.taken == self.input.len() {
                self.input.clear();
                self.taken = 0;
                self.need = 1;
                if self.input.capacity() > KEPT_BYTES {
                    self.input = Vec::new();
                }
                return Stop::Input;
            }
            if let Err(stop) = self.next_request(engine, grants) {
                return stop;
            }
        }
    }

    /// Appends the answers of those in front that have ended.
    pub fn take_ended<P: Port>(&mut self, engine: &mut Engine<P>) {
        while let Some(entry) = self.entries.front() {
            match entry {
                Entry::Task(number) => {
                    let number = *number;
                    let Some(outcome) = engine.outcome(number) else {
                        engine.turn(number);
                        return;
                    };
                    self.answer(engine, number, &outcome);
                    engine.forget(number);
                }
                Entry::Say(text) => self.output.extend_from_slice(text),
                Entry::End => {
                    let said = self.failed.take().unwrap_or("END\r\n");
                    self.output.extend_from_slice(said.as_bytes());
                }
            }
            self.entries.pop_front();
        }
    }

    fn answer<P: Port>(&mut self, engine: &Engine<P>, number: u32, outcome: &Outcome) {
        let task = engine.task(number);
        if let Outcome::Counted(counted) = outcome {
            return self.tell_statistics(engine, *counted, &task.style);
        }
        if let (Outcome::Failed(text), Style::Text { .. }, Verb::Get { .. }) = (outcome, &task.style, &task.verb) {
            self.failed = Some(text);
            return;
        }
        let start = self.output.len();
        let mut is_there = true;
        let bytes = match outcome {
            Outcome::Found(found) => found.bytes,
            _ => 0,
        };
        let as_asked = (&task.name, &task.verb, &task.style);
        outcome::write(&mut self.output, as_asked, outcome, engine.now_s(), |out| {
            is_there = engine.append_data(number, bytes, out);
        });
        if !is_there {
            // A device that says one length and brings another: nobody must take the rest for an answer.
            debug_assert!(false, "the value that was read is not there");
            self.output.truncate(start);
            self.closing = true;
        }
    }

    fn tell_statistics<P: Port>(&mut self, engine: &Engine<P>, counted: Option<(u64, u64)>, style: &Style) {
        let settings = [
            ("item_size_max", engine.data_bytes_max().to_string()),
            ("cas_enabled", "yes".to_owned()),
            ("flush_enabled", "yes".to_owned()),
        ];
        let (now_s, output) = (engine.now_s(), &mut self.output);
        match style {
            Style::Binary { opcode, opaque } => {
                engine.statistics.tell(b"", now_s, counted, &settings, |name, value| {
                    let head = binary::header(*opcode, 0, name.len(), 0, value.len(), *opaque, 0);
                    output.extend_from_slice(&head);
                    output.extend_from_slice(name.as_bytes());
                    output.extend_from_slice(value.as_bytes());
                });
                output.extend_from_slice(&binary::header(*opcode, 0, 0, 0, 0, *opaque, 0));
            }
            _ => {
                engine.statistics.tell(b"", now_s, counted, &settings, |name, value| {
                    output.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
                });
                output.extend_from_slice(b"END\r\n");
            }
        }
    }

    /// Whether a request can begin beside those under way: not where one of two for a key changes something.
    fn conflicts<P: Port>(&self, engine: &Engine<P>, name: &Name, verb: &Verb) -> bool {
        let alone = |verb: &Verb| matches!(verb, Verb::Clear | Verb::Census);
        self.entries.iter().any(|entry| match entry {
            Entry::Task(number) => {
                let task = engine.task(*number);
                let same = task.name.pair() == name.pair() && (task.verb.writes() || verb.writes());
                same || alone(&task.verb) || alone(verb)
            }
            _ => false,
        })
    }

    fn begin<P: Port>(
        &mut self,
        engine: &mut Engine<P>,
        name: &Name,
        verb: Verb,
        style: Style,
        data: &[u8],
    ) -> Result<(), Stop> {
        if self.conflicts(engine, name, &verb) {
            return Err(Stop::Own);
        }
        let number = engine.begin(self.number, name, verb, style, data).ok_or(Stop::Engine)?;
        self.entries.push_back(Entry::Task(number));
        Ok(())
    }

    /// Begins the next key of a retrieval.
    fn next_key<P: Port>(&mut self, engine: &mut Engine<P>) -> Result<(), Stop> {
        let Some(many) = &self.many else { return Ok(()) };
        let rest = &many.keys[many.at..];
        let begin = rest.iter().position(|byte| *byte != b' ');
        let Some(begin) = begin else {
            self.many = None;
            self.entries.push_back(Entry::End);
            return Ok(());
        };
        let key = rest[begin..].split(|byte| *byte == b' ').next().unwrap_or_default();
        let (at, verb) = (many.at + begin + key.len(), Verb::Get { touch: many.touch });
        let style = Style::Text { quiet: false, versions: many.versions };
        // The parser looked at the lengths.
        let Some(name) = Name::new(key) else { unreachable!("a key of {} bytes", key.len()) };
        self.begin(engine, &name, verb, style, &[])?;
        if let Some(many) = &mut self.many {
            many.at = at;
        }
        Ok(())
    }

    fn say(&mut self, text: Vec<u8>) {
        if !text.is_empty() {
            self.entries.push_back(Entry::Say(text));
        }
    }

    /// Understands the next request, and begins it.
    fn next_request<P: Port>(&mut self, engine: &mut Engine<P>, grants: &mut Grants) -> Result<(), Stop> {
        let input = std::mem::take(&mut self.input);
        let limits = Limits { data_bytes_max: engine.data_bytes_max() };
        let here = &input[self.taken..];
        let is_binary = *self.is_binary.get_or_insert(here[0] == binary::REQUEST);
        let parsed = match is_binary {
            true => binary::parse(here, &limits, engine.now_s()),
            false => crate::text::parse(here, &limits, engine.now_s()),
        };
        let outcome = self.take(parsed, engine, grants);
        self.input = input;
        let taken = outcome?;
        self.taken += taken;
        if self.granted > 0 && taken > 0 {
            grants.give(std::mem::take(&mut self.granted));
        }
        Ok(())
    }

    /// Does what was understood; the bytes that it took.
    fn take<P: Port>(&mut self, parsed: Parse<'_>, engine: &mut Engine<P>, grants: &mut Grants) -> Result<usize, Stop> {
        match parsed {
            Parse::Incomplete(need) => {
                if need > INPUT_BYTES && self.granted < need {
                    if !grants.take(need) {
                        return Err(Stop::Grants);
                    }
                    grants.give(std::mem::replace(&mut self.granted, need));
                }
                self.need = need;
                Err(Stop::Input)
            }
            Parse::Bad { answer, bytes, skip, fatal } => {
                self.say(answer);
                self.skip = skip;
                self.closing = fatal;
                Ok(bytes)
            }
            Parse::Request(request, bytes) => {
                match request {
                    Request::One { name, verb, style, data } => self.begin(engine, &name, verb, style, data)?,
                    Request::Many { keys, touch, versions } => {
                        self.many = Some(Many { keys: keys.to_vec(), at: 0, touch, versions });
                    }
                    Request::FlushAll { delay, style } => self.flush_all(engine, delay, style)?,
                    Request::Statistics { what, style } => self.statistics(engine, what, style)?,
                    Request::Say(text) => self.say(text),
                    Request::Nothing => {}
                    Request::Quit(text) => {
                        self.say(text);
                        self.closing = true;
                    }
                }
                Ok(bytes)
            }
        }
    }

    fn flush_all<P: Port>(&mut self, engine: &mut Engine<P>, delay: i64, style: Style) -> Result<(), Stop> {
        let at_s = crate::item::expiry(delay, engine.now_s());
        if at_s > engine.now_s() {
            engine.clear_later(at_s);
            return match style {
                Style::Text { quiet: true, .. } => Ok(()),
                Style::Binary { opcode, .. } if binary::is_quiet(opcode) => Ok(()),
                Style::Binary { opcode, opaque } => {
                    self.say(binary::say(opcode, opaque, 0));
                    Ok(())
                }
                _ => {
                    self.say(b"OK\r\n".to_vec());
                    Ok(())
                }
            };
        }
        self.begin(engine, &nobody(), Verb::Clear, style, &[])
    }

    fn statistics<P: Port>(&mut self, engine: &mut Engine<P>, what: &[u8], style: Style) -> Result<(), Stop> {
        if what.is_empty() {
            return self.begin(engine, &nobody(), Verb::Census, style, &[]);
        }
        let reset = what == b"reset";
        if reset {
            engine.statistics.reset();
        }
        let settings = [("maxconns", "bounded".to_owned()), ("item_size_max", engine.data_bytes_max().to_string())];
        let mut said = Vec::new();
        match style {
            Style::Binary { opcode, opaque } => {
                let known = reset
                    || engine.statistics.tell(what, engine.now_s(), None, &settings, |name, value| {
                        let head = binary::header(opcode, 0, name.len(), 0, value.len(), opaque, 0);
                        said.extend_from_slice(&head);
                        said.extend_from_slice(name.as_bytes());
                        said.extend_from_slice(value.as_bytes());
                    });
                match known {
                    true => said.extend_from_slice(&binary::header(opcode, 0, 0, 0, 0, opaque, 0)),
                    false => said = binary::say(opcode, opaque, binary::status::NOT_FOUND),
                }
            }
            _ if reset => said.extend_from_slice(b"RESET\r\n"),
            _ => {
                let known = engine.statistics.tell(what, engine.now_s(), None, &settings, |name, value| {
                    said.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
                });
                said.extend_from_slice(if known { b"END\r\n" } else { b"ERROR\r\n" });
            }
        }
        self.say(said);
        Ok(())
    }
}

/// A name for what has no key.
fn nobody() -> Name {
    match Name::new(b"-") {
        Some(name) => name,
        None => unreachable!("a key of one byte"),
    }
}
