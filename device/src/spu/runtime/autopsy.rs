//! What an instance that trapped leaves: where it was, and its globals. Its memory stays in the instance, which is kept beside it
//! ([`crate::spu::dead`]).
//!
//! What always holds: it is made once, when the trap is caught, and costs nothing before that. How much it holds is bounded.

use super::wasm::Guest;
use wasmtime::{Store, Val, WasmBacktrace, WasmCoreDump};

/// Most frames of a stack that are kept, the innermost.
pub(super) const FRAMES_MAX: usize = 64;
/// Most globals that are kept; more than compilers make.
const GLOBALS_MAX: usize = 4096;
/// Most bytes of a function's name.
const SYMBOL_BYTES_MAX: usize = 128;
/// Functions that the sentence about a trap names.
const NAMED_MAX: usize = 6;

/// A frame of the stack, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Frame {
    /// Index of the function in the module.
    pub function: u32,
    /// Its name, where the module has one for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes from the function's beginning.
    pub function_offset: u32,
    /// Bytes from the module's beginning.
    pub module_offset: u32,
}

/// A global: its type as in WebAssembly's text, and its bits (of a reference: none).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GlobalValue {
    /// `i32`, `i64`, `f32`, `f64`, `v128` or `ref`.
    pub kind: String,
    /// The module may change it.
    pub mutable: bool,
    /// Its bits, in hexadecimal.
    pub bits: String,
}

/// What is left of an instance besides its memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Autopsy {
    pub frames: Vec<Frame>,
    pub globals: Vec<GlobalValue>,
}

impl Autopsy {
    /// Of the instance whose call has ended with that error.
    #[cold]
    pub fn new(error: &wasmtime::Error, store: &mut Store<Guest>) -> Self {
        let frames = match error.downcast_ref::<WasmCoreDump>() {
            Some(dump) => frames_of(dump.frames()),
            None => error.downcast_ref::<WasmBacktrace>().map_or_else(Vec::new, |trace| frames_of(trace.frames())),
        };
        let globals = error.downcast_ref::<WasmCoreDump>().map_or(&[][..], WasmCoreDump::globals);
        let globals = globals.iter().take(GLOBALS_MAX).map(|global| {
            let mutable = global.ty(&*store).mutability() == wasmtime::Mutability::Var;
            let (kind, bits) = match global.get(&mut *store) {
                Val::I32(value) => ("i32", format!("{value:x}")),
                Val::I64(value) => ("i64", format!("{value:x}")),
                Val::F32(bits) => ("f32", format!("{bits:x}")),
                Val::F64(bits) => ("f64", format!("{bits:x}")),
                Val::V128(value) => ("v128", format!("{:x}", value.as_u128())),
                _ => ("ref", String::new()),
            };
            GlobalValue { kind: kind.to_owned(), mutable, bits }
        });
        Autopsy { frames, globals: globals.collect() }
    }

    /// The innermost functions in words, where the module names any: `, in f, called by g`.
    pub fn place(&self) -> String {
        let named = self.frames.iter().take(NAMED_MAX);
        if !named.clone().any(|frame| frame.name.is_some()) {
            return String::new();
        }
        let names: Vec<String> =
            named.map(|frame| frame.name.clone().unwrap_or_else(|| format!("function {}", frame.function))).collect();
        let more = if self.frames.len() > NAMED_MAX { ", and so on" } else { "" };
        format!(", in {}{more}", names.join(", called by "))
    }
}

fn frames_of(frames: &[wasmtime::FrameInfo]) -> Vec<Frame> {
    let offset = |offset: Option<usize>| offset.and_then(|offset| u32::try_from(offset).ok()).unwrap_or(0);
    let frame = |frame: &wasmtime::FrameInfo| Frame {
        function: frame.func_index(),
        name: frame.func_name().map(readable),
        function_offset: offset(frame.func_offset()),
        module_offset: offset(frame.module_offset()),
    };
    frames.iter().take(FRAMES_MAX).map(frame).collect()
}

/// A function's name as its author wrote it, on one line and within bounds.
pub(crate) fn readable(symbol: &str) -> String {
    let cut =
        (0..=symbol.len().min(SYMBOL_READ_BYTES_MAX)).rev().find(|end| symbol.is_char_boundary(*end)).unwrap_or(0);
    let mut name = Bounded(String::new());
    // It fails where the name is longer than what is kept: then whoever writes it has stopped.
    let _ = std::fmt::Write::write_fmt(&mut name, format_args!("{:#}", rustc_demangle::demangle(&symbol[..cut])));
    name.0
}

/// Bytes of a symbol that are looked at: a module's author chooses them, and a short symbol can stand for much.
const SYMBOL_READ_BYTES_MAX: usize = 256;

/// Takes [`SYMBOL_BYTES_MAX`], and fails then: a symbol of a few bytes can stand for megabytes.
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            let letter = if letter.is_control() { '?' } else { letter };
            if self.0.len() + letter.len_utf8() > SYMBOL_BYTES_MAX {
                return Err(std::fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}
