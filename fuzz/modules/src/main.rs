//! `willow-module-generator FIRST COUNT`: WebAssembly modules number FIRST to FIRST + COUNT - 1 on standard output, each as its
//! length (u32, little-endian) and its bytes. They import what SPU-OS offers and nothing else, export what it calls, and hold a
//! manifest; what their functions do is random (wasm-smith). Around the random `start` lies one that calls some imports with arguments of
//! every kind, which random code seldom has the operands for, and answers what was left unanswered, so that a module goes on to its
//! next request.
//!
//! Invariants: a module's number alone decides what it is, whichever were asked for with it; what is written is a valid module.

use arbitrary::Unstructured;
use std::convert::Infallible;
use std::io::{BufWriter, Write};
use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{BlockType, ExportKind, Function, Instruction};
use wasm_smith::{Config, Module};

/// Bytes of randomness for a module: about as many as it uses.
const SEED_BYTES_MAX: u64 = 2000;
/// Seeds of a module, as a power of two: the first that makes one counts.
const SEED_BITS: u32 = 16;
const MANIFEST: &str = "abi=2\nname=generated\nversion=1\nhandler=1:one\nhandler=2:two\npublic=1\n";

/// The imports of docs/abi.md.
const IMPORTS: &str = r#"(module
    (import "willow" "request_info" (func (param i32 i32)))
    (import "willow" "receive_bytes" (func (param i32 i32 i32) (result i32)))
    (import "willow" "receive_bytes_at" (func (param i32 i32 i32 i32) (result i32)))
    (import "willow" "respond" (func (param i32 i32 i32)))
    (import "willow" "dma" (func (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
    (import "willow" "dma_strided" (func (param i32 i32 i64 i64 i32 i64 i64 i32 i32 i32) (result i32)))
    (import "willow" "compare" (func (param i32 i64 i64 i32 i32) (result i32)))
    (import "willow" "checksum" (func (param i32 i32 i64 i32 i32 i32) (result i32)))
    (import "willow" "checksum_value" (func (result i32)))
    (import "willow" "rpc_start" (func (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "willow" "rpc_append" (func (param i32 i32 i64 i32) (result i32)))
    (import "willow" "rpc_finish" (func (param i32 i32) (result i32)))
    (import "willow" "app_number" (func (param i32 i32) (result i32)))
    (import "willow" "region" (func (param i32 i64 i32) (result i64)))
    (import "willow" "region_bytes" (func (param i32) (result i64)))
    (import "willow" "region_free" (func (param i32 i32) (result i32)))
    (import "willow" "namespace" (func (param i32 i32) (result i32)))
    (import "willow" "flush" (func (param i32) (result i32)))
    (import "willow" "spu_id" (func (result i32)))
    (import "willow" "spu_count" (func (result i32)))
    (import "willow" "time_ns" (func (result i64)))
    (import "willow" "print" (func (param i32 i32)))
    (import "willow" "count" (func (param i32 i64))))"#;
const EXPORTS: &str = r#"(module
    (memory (export "memory") 1 2)
    (func (export "start") (param i32 i32) (result i32) unreachable)
    (func (export "complete") (param i32 i64) unreachable))"#;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn config(random: &mut Random, imports: &[u8], exports: &[u8]) -> Config {
    Config {
        available_imports: Some(imports.to_vec()),
        exports: Some(exports.to_vec()),
        // Nearly always all of them: with few a function rarely has the operands for any.
        min_imports: 23,
        max_imports: 23,
        max_funcs: 3,
        max_instructions: 10 + (random.next() % 100) as usize,
        max_data_segments: 2,
        max_element_segments: 1,
        max_elements: 4,
        // The one that is exported.
        max_memories: 0,
        max_globals: 4,
        max_types: 30,
        max_tags: 0,
        max_nesting_depth: 4,
        max_memory32_bytes: 4 << 16,
        memory_max_size_required: true,
        table_max_size_required: true,
        max_table_elements: 16,
        allow_start_export: random.next().is_multiple_of(100),
        // What traps ends the app at once: mostly not by the code itself, imports have their own ways.
        disallow_traps: !random.next().is_multiple_of(8),
        allow_floats: random.next().is_multiple_of(4),
        simd_enabled: random.next().is_multiple_of(8),
        gc_enabled: false,
        exceptions_enabled: false,
        threads_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        reference_types_enabled: false,
        tail_call_enabled: random.next().is_multiple_of(8),
        generate_custom_sections: false,
        ..Config::default()
    }
}

/// A number as WebAssembly writes lengths.
fn leb(mut number: usize, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Puts a `start` around the random one, and leaves out imports and types that nothing uses: the compiler would make a way out
/// of the sandbox for each, which took most of a module's time.
struct Wrap {
    /// Place of `respond`, where it is imported; parameters of what is imported, and whether it has a result; all functions.
    respond: Option<u32>,
    imports: Vec<(Vec<wasmparser::ValType>, bool)>,
    functions: u32,
    /// The type of each function.
    shapes: Vec<u32>,
    /// The random `start`.
    start: u32,
    /// Imports to call, with their arguments: before the random `start`, and after it.
    calls: [Vec<(usize, Vec<Instruction<'static>>)>; 2],
    used: Used,
}

/// Functions and types by their number: whether something uses them.
#[derive(Default)]
struct Used {
    functions: Vec<bool>,
    types: Vec<bool>,
}

/// Where number `at` is once those are gone that nothing uses.
fn place(used: &[bool], at: u32) -> u32 {
    used.iter().take(at as usize).filter(|used| **used).count() as u32
}

fn mark(used: &mut Vec<bool>, at: u32) {
    let at = at as usize;
    if used.len() <= at {
        used.resize(at + 1, false);
    }
    used[at] = true;
}

impl Used {
    fn operator(&mut self, operator: &wasmparser::Operator<'_>) {
        use wasmparser::Operator::*;
        match operator {
            Call { function_index } | ReturnCall { function_index } | RefFunc { function_index } => {
                mark(&mut self.functions, *function_index);
            }
            CallIndirect { type_index, .. } | ReturnCallIndirect { type_index, .. } => {
                mark(&mut self.types, *type_index);
            }
            Block { blockty: wasmparser::BlockType::FuncType(of) }
            | Loop { blockty: wasmparser::BlockType::FuncType(of) }
            | If { blockty: wasmparser::BlockType::FuncType(of) } => mark(&mut self.types, *of),
            _ => {}
        }
    }

    fn expression(&mut self, expression: &wasmparser::ConstExpr<'_>) -> Result<(), wasmparser::BinaryReaderError> {
        for operator in expression.get_operators_reader() {
            self.operator(&operator?);
        }
        Ok(())
    }

    /// Notes what this part of a module uses.
    fn payload(&mut self, payload: &wasmparser::Payload<'_>) -> Result<(), wasmparser::BinaryReaderError> {
        match payload {
            wasmparser::Payload::FunctionSection(functions) => {
                for of in functions.clone() {
                    mark(&mut self.types, of?);
                }
            }
            wasmparser::Payload::GlobalSection(globals) => {
                for global in globals.clone() {
                    self.expression(&global?.init_expr)?;
                }
            }
            wasmparser::Payload::ExportSection(exports) => {
                for export in exports.clone() {
                    let export = export?;
                    if export.kind == wasmparser::ExternalKind::Func {
                        mark(&mut self.functions, export.index);
                    }
                }
            }
            wasmparser::Payload::StartSection { func, .. } => mark(&mut self.functions, *func),
            wasmparser::Payload::ElementSection(elements) => {
                for element in elements.clone() {
                    match element?.items {
                        wasmparser::ElementItems::Functions(functions) => {
                            for function in functions {
                                mark(&mut self.functions, function?);
                            }
                        }
                        wasmparser::ElementItems::Expressions(_, expressions) => {
                            for expression in expressions {
                                self.expression(&expression?)?;
                            }
                        }
                    }
                }
            }
            wasmparser::Payload::CodeSectionEntry(body) => {
                for operator in body.get_operators_reader()? {
                    self.operator(&operator?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// An argument: what imports take, what they must not take, and anything.
fn argument(random: &mut Random, of: wasmparser::ValType) -> Instruction<'static> {
    const SMALL: [i32; 16] = [0, 1, 2, 3, 0x101, 8, 64, 100, 512, 4096, 65536, -1, 4, i32::MAX, i32::MIN, 0x10000];
    const LARGE: [i64; 16] =
        [0, 8, 4095, 4096, 4097, 8192, 8704, 12288, 16384, 65536, 1 << 19, 1 << 20, 1 << 32, -1, i64::MAX, i64::MIN];
    let place = (random.next() % 16) as usize;
    match (of, random.next() % 16) {
        (wasmparser::ValType::I64, 0) => Instruction::I64Const(random.next() as i64),
        (wasmparser::ValType::I64, 1..4) => Instruction::I64Const((random.next() % (1 << 20)) as i64),
        (wasmparser::ValType::I64, _) => Instruction::I64Const(LARGE[place]),
        (_, 0) => Instruction::I32Const(random.next() as i32),
        (_, 1..4) => Instruction::I32Const((random.next() % 5000) as i32),
        _ => Instruction::I32Const(SMALL[place]),
    }
}

impl Wrap {
    fn new(module: &[u8], random: &mut Random) -> Result<Wrap, wasmparser::BinaryReaderError> {
        let calls = [Vec::new(), Vec::new()];
        let mut wrap = Wrap {
            respond: None,
            imports: Vec::new(),
            functions: 0,
            shapes: Vec::new(),
            start: 0,
            calls,
            used: Used::default(),
        };
        let mut shapes = Vec::new();
        for payload in wasmparser::Parser::new(0).parse_all(module) {
            let payload = payload?;
            wrap.used.payload(&payload)?;
            match payload {
                wasmparser::Payload::TypeSection(types) => {
                    for group in types {
                        for of in group?.into_types() {
                            shapes.push(match of.composite_type.inner {
                                wasmparser::CompositeInnerType::Func(of) => {
                                    (of.params().to_vec(), !of.results().is_empty())
                                }
                                _ => (Vec::new(), false),
                            });
                        }
                    }
                }
                wasmparser::Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import?;
                        if let wasmparser::TypeRef::Func(shape) = import.ty {
                            if import.name == "respond" {
                                wrap.respond = Some(wrap.imports.len() as u32);
                            }
                            wrap.shapes.push(shape);
                            wrap.imports.push(shapes.get(shape as usize).cloned().unwrap_or_default());
                        }
                    }
                }
                wasmparser::Payload::FunctionSection(functions) => {
                    wrap.functions = wrap.imports.len() as u32 + functions.count();
                    for shape in functions {
                        wrap.shapes.push(shape?);
                    }
                }
                wasmparser::Payload::ExportSection(exports) => {
                    for export in exports {
                        let export = export?;
                        if export.name == "start" {
                            wrap.start = export.index;
                        }
                    }
                }
                _ => {}
            }
        }
        for calls in &mut wrap.calls {
            for _ in 0..random.next() % 6 {
                let Some(import) = (random.next() as usize).checked_rem(wrap.imports.len()) else { break };
                let mut arguments: Vec<_> = wrap.imports[import].0.iter().map(|of| argument(random, *of)).collect();
                // Mostly the request's own token.
                if let (Some(first @ Instruction::I32Const(_)), 0..13) = (arguments.first_mut(), random.next() % 16) {
                    *first = Instruction::LocalGet(0);
                }
                mark(&mut wrap.used.functions, import as u32);
                calls.push((import, arguments));
            }
        }
        if let Some(respond) = wrap.respond {
            mark(&mut wrap.used.functions, respond);
        }
        // What is not imported stays.
        wrap.used.functions.resize(wrap.functions as usize, false);
        wrap.used.functions[wrap.imports.len()..].fill(true);
        let used = wrap.shapes.iter().zip(&wrap.used.functions).filter(|(_, used)| **used);
        used.for_each(|(shape, _)| mark(&mut wrap.used.types, *shape));
        Ok(wrap)
    }

    fn call(&self, body: &mut Function, when: usize) {
        for (import, arguments) in &self.calls[when] {
            for argument in arguments {
                body.instruction(argument);
            }
            body.instruction(&Instruction::Call(place(&self.used.functions, *import as u32)));
            if self.imports[*import].1 {
                body.instruction(&Instruction::Drop);
            }
        }
    }

    /// Events are answered; any other request is the random one's, and is answered afterwards where it was not.
    fn body(&self) -> Function {
        let mut body = Function::new([]);
        body.instruction(&Instruction::LocalGet(1));
        body.instruction(&Instruction::If(BlockType::Empty));
        self.call(&mut body, 0);
        body.instruction(&Instruction::LocalGet(0));
        body.instruction(&Instruction::LocalGet(1));
        body.instruction(&Instruction::Call(place(&self.used.functions, self.start)));
        body.instruction(&Instruction::Drop);
        self.call(&mut body, 1);
        body.instruction(&Instruction::End);
        if let Some(respond) = self.respond {
            body.instruction(&Instruction::LocalGet(0));
            body.instruction(&Instruction::I32Const(0));
            body.instruction(&Instruction::I32Const(5));
            body.instruction(&Instruction::Call(place(&self.used.functions, respond)));
        }
        body.instruction(&Instruction::I32Const(0));
        body.instruction(&Instruction::End);
        body
    }
}

impl Reencode for Wrap {
    type Error = Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, reencode::Error> {
        Ok(place(&self.used.functions, function))
    }

    fn type_index(&mut self, of: u32) -> Result<u32, reencode::Error> {
        Ok(place(&self.used.types, of))
    }

    fn parse_type_section(
        &mut self,
        types: &mut wasm_encoder::TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Result<(), reencode::Error> {
        for (group, at) in section.into_iter().zip(0..) {
            // Without garbage collection a group is one type.
            if self.used.types.get(at) == Some(&true) {
                self.parse_recursive_type_group(types.ty(), group?)?;
            }
        }
        Ok(())
    }

    fn parse_import_section(
        &mut self,
        imports: &mut wasm_encoder::ImportSection,
        section: wasmparser::ImportSectionReader<'_>,
    ) -> Result<(), reencode::Error> {
        for (import, at) in section.into_imports().zip(0..) {
            // Functions are all that there is to import.
            if self.used.functions.get(at) == Some(&true) {
                self.parse_import(imports, import?)?;
            }
        }
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut wasm_encoder::FunctionSection,
        section: wasmparser::FunctionSectionReader<'_>,
    ) -> Result<(), reencode::Error> {
        reencode::utils::parse_function_section(self, functions, section)?;
        // Of the random one's type.
        functions.function(place(&self.used.types, self.shapes[self.start as usize]));
        Ok(())
    }

    fn parse_export(
        &mut self,
        exports: &mut wasm_encoder::ExportSection,
        export: wasmparser::Export<'_>,
    ) -> Result<(), reencode::Error> {
        if export.name == "start" {
            exports.export("start", ExportKind::Func, place(&self.used.functions, self.functions));
            return Ok(());
        }
        reencode::utils::parse_export(self, exports, export)
    }

    fn parse_code_section(
        &mut self,
        code: &mut wasm_encoder::CodeSection,
        section: wasmparser::CodeSectionReader<'_>,
    ) -> Result<(), reencode::Error> {
        reencode::utils::parse_code_section(self, code, section)?;
        code.function(&self.body());
        Ok(())
    }
}

fn module(seed: u64, imports: &[u8], exports: &[u8]) -> Option<Vec<u8>> {
    let mut random = Random(seed);
    let config = config(&mut random, imports, exports);
    let count = 200 + random.next() % (SEED_BYTES_MAX - 200);
    let bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    let mut made = Module::new(config, &mut Unstructured::new(&bytes)).ok()?;
    // Loops that end give the rest of a function its turn.
    if !random.next().is_multiple_of(8) {
        made.ensure_termination(200).ok()?;
    }
    let bytes = made.to_bytes();
    let mut wrap = Wrap::new(&bytes, &mut random).ok()?;
    let mut wrapped = wasm_encoder::Module::new();
    wrap.parse_core_module(&mut wrapped, wasmparser::Parser::new(0), &bytes).ok()?;
    let mut bytes = wrapped.finish();
    let mut section = Vec::new();
    leb("willow.app".len(), &mut section);
    section.extend_from_slice(b"willow.app");
    section.extend_from_slice(MANIFEST.as_bytes());
    bytes.push(0);
    leb(section.len(), &mut bytes);
    bytes.extend_from_slice(&section);
    Some(bytes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (arguments.next(), arguments.next()) else {
        return Err("usage: willow-module-generator FIRST COUNT".into());
    };
    let (imports, exports) = (wat::parse_str(IMPORTS)?, wat::parse_str(EXPORTS)?);
    let mut out = BufWriter::new(std::io::stdout().lock());
    for number in first..first.saturating_add(count) {
        // Not all randomness makes a module.
        let seeds = (0..1 << SEED_BITS).map(|attempt| number << SEED_BITS | attempt);
        let bytes = seeds.into_iter().find_map(|seed| module(seed, &imports, &exports));
        let bytes = bytes.ok_or_else(|| format!("no seed of number {number} makes a module"))?;
        // Whoever reads has had enough where this fails.
        if out.write_all(&(bytes.len() as u32).to_le_bytes()).and_then(|()| out.write_all(&bytes)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
