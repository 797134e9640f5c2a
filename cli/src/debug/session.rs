//! A conversation in the Debug Adapter Protocol: requests become what the device is asked, its stops become events.
//!
//! What always holds: a request gets one response, also where it fails; a stop is told once. Steps by source line are single instructions of the device, so many at most
//! ([`STEPS_MAX`]) that a line which never ends is left to the next breakpoint.

use super::source::Sources;
use super::{values, wire};
use crate::client::Client;
use crate::failure::Outcome;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use willow_wire::control::{DebugState, Stop, StoppedFrame};

/// Most single steps for one of a line.
const STEPS_MAX: u32 = 20_000;
/// How long the end of a single step is waited for: the run may have ended, and the next one is somebody's affair.
const STEP_WAIT_MAX: Duration = Duration::from_millis(500);
/// Most bytes that a client reads of memory at once.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Frames that an SPU's numbers of frames have room for.
const FRAMES: u64 = 256;
/// Kinds of variables of a frame.
const KINDS: u64 = 4;

/// What the device's debugger may be told ([`willow_wire::control::DEBUG_TELL`]).
const SET_BREAKPOINTS: u32 = 1;
const GO_ON: u32 = 2;
const STEP: u32 = 3;
const PAUSE: u32 = 4;

/// How far a step goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To another line of the same function, or where it returns to.
    Over,
    /// Also into what it calls.
    Into,
    /// To where the function returns to.
    Out,
    /// One instruction.
    Instruction,
}

/// The conversation.
pub struct Session<'a> {
    client: Client,
    app: u16,
    spus: u16,
    /// The only one that stops.
    only: Option<u16>,
    sources: &'a Sources<'a>,
    sent: u64,
    /// By what set them: a path, or the kind.
    breakpoints: BTreeMap<String, Vec<u32>>,
    /// Stops that were told, by SPU.
    told: BTreeMap<u16, u32>,
}

/// A failed request's reason.
type Answer = Result<Value, String>;

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name)?.as_u64()
}

impl<'a> Session<'a> {
    /// Over a device that debugs the app for this client.
    pub fn new(mut client: Client, app: u16, only: Option<u16>, sources: &'a Sources<'a>) -> Outcome<Self> {
        let spus = client.debug_state(app)?.len() as u16;
        if let Some(spu) = only.filter(|spu| *spu >= spus) {
            crate::failure::fail!("there is no SPU {spu}: the device has {spus}");
        }
        let (breakpoints, told) = (BTreeMap::new(), BTreeMap::new());
        Ok(Session { client, app, spus, only, sources, sent: 0, breakpoints, told })
    }

    fn send(&mut self, mut message: Value) -> Outcome<()> {
        self.sent += 1;
        message["seq"] = self.sent.into();
        wire::write(&mut std::io::stdout().lock(), &message)
    }

    fn event(&mut self, name: &str, body: &Value) -> Outcome<()> {
        self.send(json!({ "type": "event", "event": name, "body": body }))
    }

    /// A message of the client.
    pub fn handle(&mut self, message: &Value) -> Outcome<ControlFlow<()>> {
        if message["type"] != "request" {
            return Ok(ControlFlow::Continue(()));
        }
        let command = message["command"].as_str().unwrap_or_default().to_owned();
        let arguments = message.get("arguments").cloned().unwrap_or_else(|| json!({}));
        let answer = self.answer(&command, &arguments);
        let mut response = json!({
            "type": "response", "request_seq": message["seq"], "command": command, "success": answer.is_ok(),
        });
        match answer {
            Ok(body) => response["body"] = body,
            Err(why) => response["message"] = why.into(),
        }
        let succeeded = response["success"] == true;
        self.send(response)?;
        if succeeded && command == "initialize" {
            self.event("initialized", &json!({}))?;
        }
        if ["next", "stepIn", "stepOut"].contains(&command.as_str()) && succeeded {
            self.step(&command, &arguments)?;
        }
        if ["disconnect", "terminate"].contains(&command.as_str()) {
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn answer(&mut self, command: &str, arguments: &Value) -> Answer {
        match command {
            "initialize" => Ok(json!({
                "supportsConfigurationDoneRequest": true,
                "supportsFunctionBreakpoints": true,
                "supportsInstructionBreakpoints": true,
                "supportsReadMemoryRequest": true,
                "supportsSteppingGranularity": true,
                "supportsTerminateRequest": true,
            })),
            "attach" | "launch" | "configurationDone" | "disconnect" | "terminate" | "setExceptionBreakpoints" => {
                Ok(json!({}))
            }
            "threads" => {
                let threads: Vec<Value> =
                    self.shown().map(|spu| json!({ "id": spu + 1, "name": format!("SPU {spu}") })).collect();
                Ok(json!({ "threads": threads }))
            }
            "setBreakpoints" => self.set_breakpoints(arguments),
            "setFunctionBreakpoints" => self.set_function_breakpoints(arguments),
            "setInstructionBreakpoints" => self.set_instruction_breakpoints(arguments),
            "stackTrace" => self.stack_trace(arguments),
            "scopes" => Self::scopes(arguments),
            "variables" => self.variables(arguments),
            "readMemory" => self.read_memory(arguments),
            "continue" => {
                let spu = self.spu(arguments)?;
                self.tell(Some(spu), &[GO_ON])?;
                Ok(json!({ "allThreadsContinued": false }))
            }
            "pause" => {
                let spu = self.spu(arguments)?;
                self.tell(Some(spu), &[PAUSE])?;
                Ok(json!({}))
            }
            // What they do begins when they are answered.
            "next" | "stepIn" | "stepOut" => {
                let spu = self.spu(arguments)?;
                self.stop_of(spu)?.map(|_| json!({})).ok_or_else(|| format!("SPU {spu} has not stopped"))
            }
            _ => Err(format!("{command} is nothing that this debugger knows")),
        }
    }

    /// SPUs that may stop.
    fn shown(&self) -> impl Iterator<Item = u16> + use<> {
        let only = self.only;
        (0..self.spus).filter(move |spu| only.is_none_or(|only| only == *spu))
    }

    fn spu(&self, arguments: &Value) -> Result<u16, String> {
        let spu = number(arguments, "threadId").and_then(|thread| u16::try_from(thread.checked_sub(1)?).ok());
        spu.filter(|spu| self.shown().any(|shown| shown == *spu)).ok_or_else(|| "there is no such thread".to_owned())
    }

    fn tell(&mut self, spu: Option<u16>, words: &[u32]) -> Result<(), String> {
        self.client.debug_tell(self.app, spu, words).map_err(|failure| failure.to_string())
    }

    fn states(&mut self) -> Result<Vec<DebugState>, String> {
        self.client.debug_state(self.app).map_err(|failure| failure.to_string())
    }

    fn stop_of(&mut self, spu: u16) -> Result<Option<Stop>, String> {
        Ok(self.states()?.into_iter().find(|state| state.spu == spu).and_then(|state| state.stop))
    }

    /// Puts all breakpoints into the device.
    fn put_breakpoints(&mut self) -> Result<(), String> {
        let mut all: Vec<u32> = self.breakpoints.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        let words: Vec<u32> = std::iter::once(SET_BREAKPOINTS).chain(all).collect();
        self.tell(self.only, &words)
    }

    fn set_breakpoints(&mut self, arguments: &Value) -> Answer {
        let path = arguments["source"]["path"]
            .as_str()
            .or(arguments["source"]["name"].as_str())
            .unwrap_or_default()
            .to_owned();
        let asked = arguments["breakpoints"].as_array().cloned().unwrap_or_default();
        let (mut places, mut answers) = (Vec::new(), Vec::new());
        for breakpoint in asked {
            let line = number(&breakpoint, "line").and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
            match self.sources.places(&path, line) {
                Some((line, found)) => {
                    places.extend(found);
                    answers.push(json!({ "verified": true, "line": line }));
                }
                None => {
                    let why = match self.sources.has_lines() {
                        true => "the module has no code for this line or below it",
                        false => "the module has no DWARF: build it with willow app build --debug",
                    };
                    answers.push(json!({ "verified": false, "message": why }));
                }
            }
        }
        self.breakpoints.insert(format!("file {path}"), places);
        self.put_breakpoints()?;
        Ok(json!({ "breakpoints": answers }))
    }

    fn set_function_breakpoints(&mut self, arguments: &Value) -> Answer {
        let asked = arguments["breakpoints"].as_array().cloned().unwrap_or_default();
        let (mut places, mut answers) = (Vec::new(), Vec::new());
        for breakpoint in asked {
            let found = self.sources.entries(breakpoint["name"].as_str().unwrap_or_default());
            answers.push(json!({ "verified": !found.is_empty() }));
            places.extend(found);
        }
        self.breakpoints.insert("functions".to_owned(), places);
        self.put_breakpoints()?;
        Ok(json!({ "breakpoints": answers }))
    }

    fn set_instruction_breakpoints(&mut self, arguments: &Value) -> Answer {
        let asked = arguments["breakpoints"].as_array().cloned().unwrap_or_default();
        let (mut places, mut answers) = (Vec::new(), Vec::new());
        for breakpoint in asked {
            let place = address(breakpoint["instructionReference"].as_str().unwrap_or_default());
            let place = place.map(|place| place.saturating_add_signed(breakpoint["offset"].as_i64().unwrap_or(0)));
            let place = place.and_then(|place| u32::try_from(place).ok());
            answers.push(json!({ "verified": place.is_some() }));
            places.extend(place);
        }
        self.breakpoints.insert("instructions".to_owned(), places);
        self.put_breakpoints()?;
        Ok(json!({ "breakpoints": answers }))
    }

    fn frames(&mut self, spu: u16) -> Result<Vec<StoppedFrame>, String> {
        self.client.debug_stack(self.app, spu).map_err(|failure| failure.to_string())
    }

    fn stack_trace(&mut self, arguments: &Value) -> Answer {
        let spu = self.spu(arguments)?;
        let frames = self.frames(spu)?;
        let total = frames.len();
        let first = number(arguments, "startFrame").unwrap_or(0) as usize;
        let most = number(arguments, "levels").filter(|levels| *levels > 0).unwrap_or(FRAMES) as usize;
        let shown = frames.into_iter().enumerate().skip(first).take(most).take(FRAMES as usize);
        let frame = |(index, frame): (usize, StoppedFrame)| {
            let mut shown = json!({
                "id": u64::from(spu) * FRAMES + index as u64,
                "name": self.sources.function(frame.defined_function),
                "line": 0,
                "column": 0,
                "instructionPointerReference": format!("0x{:x}", frame.pc),
            });
            // A caller is in its call, and what the device tells is what follows that.
            let within = if index == 0 { frame.pc } else { frame.pc.saturating_sub(1) };
            if let Some(row) = self.sources.row(within) {
                let path = &self.sources.files[row.file];
                let name = path.rsplit('/').next().unwrap_or(path);
                shown["line"] = row.line.into();
                shown["source"] = json!({ "name": name, "path": path });
            }
            shown
        };
        Ok(json!({ "stackFrames": shown.map(frame).collect::<Vec<Value>>(), "totalFrames": total }))
    }

    fn scopes(arguments: &Value) -> Answer {
        let frame = number(arguments, "frameId").ok_or("there is no such frame")?;
        let scope = |(kind, name): (usize, &str)| json!({ "name": name, "variablesReference": frame * KINDS + kind as u64 + 1, "expensive": kind == 3 });
        let names = ["Variables", "Locals of WebAssembly", "Operands", "Globals"];
        Ok(json!({ "scopes": names.into_iter().enumerate().map(scope).collect::<Vec<Value>>() }))
    }

    fn variables(&mut self, arguments: &Value) -> Answer {
        let reference = number(arguments, "variablesReference").and_then(|reference| reference.checked_sub(1));
        let reference = reference.ok_or("there are no such variables")?;
        let (frame, kind) = (reference / KINDS, reference % KINDS);
        let spu = u16::try_from(frame / FRAMES).map_err(|_| "there is no such frame".to_owned())?;
        let index = (frame % FRAMES) as u32;
        let values = self.client.debug_values(self.app, spu, index).map_err(|failure| failure.to_string())?;
        let list = |name: &str, list: &[willow_host::control::GlobalValue]| {
            let shown = list.iter().enumerate().map(|(index, value)| {
                json!({
                    "name": format!("{name}{index}"), "value": values::of_wasm(value), "type": value.kind,
                    "variablesReference": 0, "memoryReference": (value.kind == "i32").then(|| format!("0x{}", value.bits)),
                })
            });
            shown.collect::<Vec<Value>>()
        };
        let shown = match kind {
            1 => list("local ", &values.locals),
            2 => list("operand ", &values.operands),
            3 => list("global ", &values.globals),
            _ => {
                let frames = self.frames(spu)?;
                let Some(found) = frames.get(index as usize) else { return Err("there is no such frame".to_owned()) };
                let (client, app) = (&mut self.client, self.app);
                let mut memory = |from, bytes| client.debug_memory(app, spu, (from, bytes)).ok();
                let mut shown = Vec::new();
                for variable in self.sources.variables(found.pc) {
                    let (text, place) = values::of_source(&variable, &values, &mut memory);
                    let mut entry = json!({
                        "name": variable.name, "value": text, "type": variable.type_name, "variablesReference": 0,
                    });
                    if let Some(place) = place {
                        entry["memoryReference"] = format!("0x{place:x}").into();
                    }
                    shown.push(entry);
                }
                shown
            }
        };
        Ok(json!({ "variables": shown }))
    }

    /// Memory of the SPU that has stopped; of several the first.
    fn read_memory(&mut self, arguments: &Value) -> Answer {
        let stopped = self.states()?.into_iter().find(|state| state.stop.is_some());
        let Some(spu) = stopped.map(|state| state.spu) else { return Err("nothing has stopped".to_owned()) };
        let base = address(arguments["memoryReference"].as_str().unwrap_or_default()).ok_or("that is no address")?;
        let from = base.saturating_add_signed(arguments["offset"].as_i64().unwrap_or(0));
        let count = number(arguments, "count").unwrap_or(0).min(READ_BYTES_MAX);
        let mut bytes: Vec<u8> = Vec::new();
        while (bytes.len() as u64) < count {
            let Ok(at) = u32::try_from(from + bytes.len() as u64) else { break };
            let left = (count - bytes.len() as u64).min(16 << 10) as u32;
            let piece = self.client.debug_memory(self.app, spu, (at, left)).map_err(|failure| failure.to_string())?;
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
        }
        let unreadable = count - bytes.len() as u64;
        Ok(json!({ "address": format!("0x{from:x}"), "data": base64(&bytes), "unreadableBytes": unreadable }))
    }

    /// Goes on to another line.
    fn step(&mut self, command: &str, arguments: &Value) -> Outcome<()> {
        let step = match command {
            _ if arguments["granularity"] == "instruction" && command != "stepOut" => Step::Instruction,
            "next" => Step::Over,
            "stepIn" => Step::Into,
            _ => Step::Out,
        };
        let Ok(spu) = self.spu(arguments) else { return Ok(()) };
        let Some(begin) = self.stop_of(spu).ok().flatten() else { return Ok(()) };
        let begin_line = self.line_of(begin.pc);
        let mut last = begin.clone();
        for _ in 0..STEPS_MAX {
            let depth_max = match step {
                Step::Into | Step::Instruction => u32::MAX,
                Step::Over => begin.depth,
                Step::Out => begin.depth.saturating_sub(1),
            };
            if self.tell(Some(spu), &[STEP, depth_max]).is_err() {
                return Ok(());
            }
            let Some(stop) = self.wait_for_stop(spu, last.count) else { return Ok(()) };
            last = stop;
            let line = self.line_of(last.pc);
            let is_there = match step {
                Step::Instruction | Step::Out => true,
                _ if last.reason != "step" => true,
                // Without lines each instruction is one.
                _ if begin_line.is_none() => line.is_some() || !self.sources.has_lines(),
                _ if last.depth < begin.depth => true,
                // What another file's function left here, inlined, is part of the line that calls it.
                _ => line.zip(begin_line).is_some_and(|((line, is_first), (begun, _))| {
                    is_first && line != begun && (step == Step::Into || line.0 == begun.0)
                }),
            };
            if is_there {
                break;
            }
        }
        self.told.insert(spu, last.count);
        self.tell_stop(spu, &last)
    }

    /// The line of an instruction, and whether it is the first of a row that is a good place to stop.
    fn line_of(&self, pc: u32) -> Option<((usize, u32), bool)> {
        let row = self.sources.row(pc)?;
        Some(((row.file, row.line), row.begin == pc && row.is_statement))
    }

    /// The stop after one that is known; `None` where the run has ended meanwhile, or goes on for long.
    fn wait_for_stop(&mut self, spu: u16, known: u32) -> Option<Stop> {
        let end = Instant::now() + STEP_WAIT_MAX;
        loop {
            let stop = self.stop_of(spu).ok()?.filter(|stop| stop.count != known);
            if stop.is_some() || Instant::now() >= end {
                return stop;
            }
        }
    }

    fn tell_stop(&mut self, spu: u16, stop: &Stop) -> Outcome<()> {
        let (reason, text) = match stop.reason.as_str() {
            "breakpoint" | "step" | "pause" => (stop.reason.as_str(), None),
            other => ("exception", Some(other)),
        };
        let mut body = json!({ "reason": reason, "threadId": spu + 1, "allThreadsStopped": false });
        if let Some(text) = text {
            body["text"] = text.into();
            body["description"] = text.into();
        }
        self.event("stopped", &body)
    }

    /// Tells the client of what has stopped; ends where the app is debugged no longer.
    pub fn look(&mut self) -> Outcome<()> {
        let states = match self.states() {
            Ok(states) => states,
            Err(why) => {
                self.event("output", &json!({ "category": "important", "output": format!("{why}\n") }))?;
                self.event("terminated", &json!({}))?;
                crate::failure::fail!("{why}");
            }
        };
        for DebugState { spu, stop } in states {
            match stop {
                Some(stop) if self.told.get(&spu) != Some(&stop.count) => {
                    self.told.insert(spu, stop.count);
                    self.tell_stop(spu, &stop)?;
                }
                // It went on by itself.
                None if self.told.remove(&spu).is_some() => {
                    self.event("continued", &json!({ "threadId": spu + 1, "allThreadsContinued": false }))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What was stopped goes on.
    pub fn end(mut self) {
        // Where the app is gone there is nothing to end.
        let _ = self.client.end_debug(self.app);
    }
}

/// A number in hexadecimal or decimal.
fn address(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { DIGITS[value as usize] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_digits_of_base_64() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xff\xfe", "///+")]
        {
            assert_eq!(super::base64(bytes), text);
        }
        assert_eq!((super::address("0x1f"), super::address("12"), super::address("x")), (Some(31), Some(12), None));
    }
}
