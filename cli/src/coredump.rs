//! Core dumps of apps, in the form that WebAssembly's tools read (Coredump.md of the tool conventions): a module without code that has the
//! memory and the globals of the instance, and custom sections with its stack.
//!
//! What always holds: the file is a valid module. Locals and operands, which compiled code does not keep, are marked as missing by leaving them
//! out, as the conventions allow.

use crate::failure::{Outcome, fail};
use std::fmt::Write;
use wasm_encoder::{
    ConstExpr, CoreDumpInstancesSection, CoreDumpModulesSection, CoreDumpSection, CoreDumpStackSection, DataSection,
    GlobalSection, GlobalType, HeapType, MemorySection, MemoryType, Module, ValType,
};
use willow_host::control::{CoreInfo, GlobalValue};

/// A page of memory.
const PAGE_BYTES: usize = 65536;
/// Memory is written in segments of this size at most; what is zero in front of one and behind it is left out.
const SEGMENT_BYTES: usize = 4096;

/// The file.
pub fn encode(info: &CoreInfo, memory: &[u8]) -> Outcome<Vec<u8>> {
    if !memory.len().is_multiple_of(PAGE_BYTES) {
        fail!("the core of app {} has {} bytes of memory, which are no whole pages", info.app, memory.len());
    }
    let mut module = Module::new();
    module.section(&CoreDumpSection::new(format!("{} {} on SPU {}", info.app, info.version, info.spu)));
    let mut memories = MemorySection::new();
    let pages = (memory.len() / PAGE_BYTES) as u64;
    memories.memory(MemoryType { minimum: pages, maximum: None, memory64: false, shared: false, page_size_log2: None });
    module.section(&memories);
    let mut globals = GlobalSection::new();
    for global in &info.globals {
        let (val_type, value) = global_of(global)?;
        globals.global(GlobalType { val_type, mutable: global.mutable, shared: false }, &value);
    }
    module.section(&globals);
    let mut data = DataSection::new();
    for (number, segment) in memory.chunks(SEGMENT_BYTES).enumerate() {
        let used = |byte: &u8| *byte != 0;
        let (Some(first), Some(last)) = (segment.iter().position(used), segment.iter().rposition(used)) else {
            continue;
        };
        let address = (number * SEGMENT_BYTES + first) as u32;
        data.active(0, &ConstExpr::i32_const(address as i32), segment[first..=last].iter().copied());
    }
    module.section(&data);
    let mut modules = CoreDumpModulesSection::new();
    modules.module(&info.app);
    module.section(&modules);
    let mut instances = CoreDumpInstancesSection::new();
    instances.instance(0, [0], 0..info.globals.len() as u32);
    module.section(&instances);
    let mut stack = CoreDumpStackSection::new("main");
    for frame in &info.frames {
        stack.frame(0, frame.function, frame.function_offset, [], []);
    }
    module.section(&stack);
    Ok(module.finish())
}

fn global_of(global: &GlobalValue) -> Outcome<(ValType, ConstExpr)> {
    let bits = match global.kind.as_str() {
        "ref" => 0,
        _ => match u128::from_str_radix(&global.bits, 16) {
            Ok(bits) => bits,
            Err(_) => fail!("the device sent a global of {:?}", global.bits),
        },
    };
    Ok(match global.kind.as_str() {
        "i32" => (ValType::I32, ConstExpr::i32_const(bits as u32 as i32)),
        "i64" => (ValType::I64, ConstExpr::i64_const(bits as u64 as i64)),
        "f32" => (ValType::F32, ConstExpr::f32_const(f32::from_bits(bits as u32).into())),
        "f64" => (ValType::F64, ConstExpr::f64_const(f64::from_bits(bits as u64).into())),
        "v128" => (ValType::V128, ConstExpr::v128_const(bits as i128)),
        "ref" => (ValType::FUNCREF, ConstExpr::ref_null(HeapType::FUNC)),
        other => fail!("the device sent a global of type {other:?}"),
    })
}

/// In words: why the app ended, and its stack.
pub fn describe(info: &CoreInfo) -> String {
    let mut text = format!("app {} {} ended on SPU {}: {}\n", info.app, info.version, info.spu, info.why);
    for (depth, frame) in info.frames.iter().enumerate() {
        let name = frame.name.clone().unwrap_or_else(|| format!("function {}", frame.function));
        // Writing to a string does not fail.
        let _ = writeln!(text, "  #{depth} {name} +{:#x} (module {:#x})", frame.function_offset, frame.module_offset);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use willow_host::control::Frame;

    #[test]
    fn globals_of_all_types_and_memory_with_holes_are_a_valid_module() {
        let global = |kind: &str, bits: &str| GlobalValue { kind: kind.into(), mutable: true, bits: bits.into() };
        let mut info = CoreInfo {
            app: "ant".into(),
            version: "1".into(),
            spu: 3,
            trap: 1,
            why: "it trapped".into(),
            memory_bytes: 2 * PAGE_BYTES as u64,
            frames: vec![Frame { function: 7, name: None, function_offset: 12, module_offset: 99 }],
            globals: vec![
                global("i32", "fffffff0"),
                global("i64", "ffffffffffffffff"),
                global("f32", "7fc00000"),
                global("f64", "3ff0000000000000"),
                global("v128", "ffffffffffffffffffffffffffffffff"),
                global("ref", ""),
            ],
        };
        let mut memory = vec![0; 2 * PAGE_BYTES];
        (memory[0], memory[70_000], memory[2 * PAGE_BYTES - 1]) = (1, 2, 3);
        let file = encode(&info, &memory).unwrap_or_else(|failure| panic!("{failure}"));
        wasmparser::validate(&file).unwrap();
        assert!(file.len() < 1024, "zeroes are left out: {} bytes", file.len());
        assert!(describe(&info).contains("#0 function 7 +0xc"));
        info.globals.push(global("i33", "0"));
        assert!(encode(&info, &memory).is_err());
        info.globals.pop();
        assert!(encode(&info, &memory[1..]).is_err());
    }
}
