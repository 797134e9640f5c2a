//! Text from the table of imports: bindings for the SDKs, and the reference in docs/abi.md. What is generated is
//! checked in: the SDKs do not depend on the device.

use super::gate::abi::ABI_VERSION;
use super::gate::table::{IMPORTS, Import, Kind, Section, Who, Work};
use std::fmt::Write;

/// Columns of a line.
const COLUMNS: usize = 120;

/// The note at the head of a generated file.
const NOTE: &str = "Generated from the table in device/gate/src/table.rs: see device/tests/interface.rs.";

fn rust_type(kind: Kind) -> &'static str {
    match kind {
        Kind::U32 => "u32",
        Kind::I32 => "i32",
        Kind::U64 | Kind::Address => "u64",
        Kind::I64 => "i64",
        Kind::Read => "*const u8",
        Kind::Written => "*mut u8",
    }
}

fn c_type(kind: Kind) -> &'static str {
    match kind {
        Kind::U32 => "uint32_t ",
        Kind::I32 => "int32_t ",
        Kind::U64 | Kind::Address => "uint64_t ",
        Kind::I64 => "int64_t ",
        Kind::Read => "const void *",
        Kind::Written => "void *",
    }
}

/// A function's head as it is formatted: on one line where it fits, else with a line for each parameter.
fn rust_head(indent: usize, prefix: &str, import: &Import, first: Option<&str>, end: &str) -> String {
    let of_import = import.parameters.iter().map(|(name, kind)| format!("{name}: {}", rust_type(*kind)));
    let parameters: Vec<String> = first.map(str::to_owned).into_iter().chain(of_import).collect();
    let result = import.result.map_or(String::new(), |kind| format!(" -> {}", rust_type(kind)));
    let margin = " ".repeat(indent);
    let line = format!("{margin}{prefix}fn {}({}){result}{end}", import.name, parameters.join(", "));
    if line.len() <= COLUMNS {
        return line;
    }
    let lines: String = parameters.iter().fold(String::new(), |mut lines, parameter| {
        let _ = writeln!(lines, "{margin}    {parameter},");
        lines
    });
    format!("{margin}{prefix}fn {}(\n{lines}{margin}){result}{end}", import.name)
}

fn rust_meaning(indent: usize, import: &Import) -> String {
    let mut text = String::new();
    for line in import.meaning {
        let _ = writeln!(text, "{}///{}", " ".repeat(indent), line.replace("\\|", "|"));
    }
    text
}

/// What a caller of an import that uses the app's memory vouches for.
const SAFETY: &str =
    "Local memory that it is handed is valid, and nobody else uses what is written, until it and its wait have ended.";

/// `sdk/rust/src/imports.rs`.
pub fn rust() -> String {
    let mut text = format!(
        "//! The imports of docs/abi.md as they are. {NOTE}\n//!\n\
         //! Who may call it: `sys`. In a module they are WebAssembly imports; natively they go to the [`Host`] that runs the handler.\n\n\
         /// The version of the interface.\npub const ABI_VERSION: u32 = {ABI_VERSION};\n\n\
         #[cfg(target_arch = \"wasm32\")]\nmod linked;\n"
    );
    text.push_str(
        "#[cfg(target_arch = \"wasm32\")]\npub use linked::*;\n\n\
         /// What carries out the imports natively. A local address is a pointer whose provenance was exposed.\n///\n\
         /// # Safety\n/// Of unsafe functions: ",
    );
    let _ = writeln!(text, "{SAFETY}");
    text.push_str(
        "#[cfg(not(target_arch = \"wasm32\"))]\n#[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]\npub trait Host {\n",
    );
    for import in IMPORTS {
        let prefix = if import.local { "unsafe " } else { "" };
        text.push_str(&rust_meaning(4, import));
        let _ = writeln!(text, "{}", rust_head(4, prefix, import, Some("&mut self"), ";"));
    }
    text.push_str(
        "}\n\n#[cfg(not(target_arch = \"wasm32\"))]\n#[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]\nmod hosted {\n    \
         use crate::native::with_host;\n\n",
    );
    for import in IMPORTS {
        let prefix = if import.local { "pub unsafe " } else { "pub " };
        let arguments: Vec<&str> = import.parameters.iter().map(|(name, _)| *name).collect();
        let call = format!("host.{}({})", import.name, arguments.join(", "));
        let _ = writeln!(text, "    #[inline]\n{}", rust_head(4, prefix, import, None, " {"));
        let end = if import.result.is_none() { ";" } else { "" };
        let _ = match import.local {
            true => writeln!(
                text,
                "        // SAFETY: the caller vouches for local memory.\n        with_host(|host| unsafe {{ {call} }}){end}"
            ),
            false => writeln!(text, "        with_host(|host| {call}){end}"),
        };
        text.push_str("    }\n");
    }
    text.push_str("}\n#[cfg(not(target_arch = \"wasm32\"))]\npub use hosted::*;\n");
    text
}

/// `sdk/rust/src/imports/linked.rs`.
pub fn linked() -> String {
    let mut text = format!(
        "//! The imports of docs/abi.md as a module links them. {NOTE}\n//!\n//! Who may call it: `imports`, whose names they are.\n"
    );
    for module in ["willow", "willow_flash"] {
        let _ = writeln!(text, "\n#[link(wasm_import_module = \"{module}\")]\nunsafe extern \"C\" {{");
        for import in IMPORTS.iter().filter(|import| import.section.module() == module) {
            let prefix = if import.local { "pub " } else { "pub safe " };
            let _ = writeln!(text, "{}", rust_head(4, prefix, import, None, ";"));
        }
        text.push_str("}\n");
    }
    text
}

/// `sdk/c/willow_imports.h`.
pub fn c() -> String {
    let mut text = format!(
        "/* The imports of docs/abi.md, for willow.c alone; natively willow_test.c carries them out.\n   {NOTE} */\n\
         #ifndef WILLOW_IMPORTS_H\n#define WILLOW_IMPORTS_H\n\n#include <stdint.h>\n\n#define WILLOW_ABI_VERSION {ABI_VERSION}\n\n\
         #ifdef __wasm__\n#define WILLOW_IMPORT(name) __attribute__((import_module(\"willow\"), import_name(#name)))\n\
         #define WILLOW_FLASH_IMPORT(name) __attribute__((import_module(\"willow_flash\"), import_name(#name)))\n\
         #else\n#define WILLOW_IMPORT(name)\n#define WILLOW_FLASH_IMPORT(name)\n#endif\n\n"
    );
    for import in IMPORTS {
        let attribute = if import.section.module() == "willow" { "WILLOW_IMPORT" } else { "WILLOW_FLASH_IMPORT" };
        let name = import.name;
        let result = import.result.map_or("void ", c_type);
        let parameters: Vec<String> =
            import.parameters.iter().map(|(name, kind)| format!("{}{name}", c_type(*kind))).collect();
        let parameters = if parameters.is_empty() { vec!["void".to_owned()] } else { parameters };
        let head = format!("{result}willow_import_{name}(");
        let mut line = format!("{attribute}({name})\n{head}");
        let mut column = head.len();
        for (number, parameter) in parameters.iter().enumerate() {
            let last = number + 1 == parameters.len();
            if number > 0 && column + parameter.len() + 3 > COLUMNS {
                let _ = write!(line, "\n{}", " ".repeat(head.len()));
                column = head.len();
            } else if number > 0 {
                line.push(' ');
                column += 1;
            }
            let _ = write!(line, "{parameter}{}", if last { ");" } else { "," });
            column += parameter.len() + 1;
        }
        let _ = writeln!(text, "{line}");
    }
    text.push_str(
        "\n/* The exports of the app. */\nint32_t willow_start(uint32_t token, uint32_t handler);\n\
         void willow_complete(uint32_t wait, int64_t result);\n\n#endif\n",
    );
    text
}

/// The sections of the reference, with the names that docs/abi.md has for them.
pub const SECTIONS: &[(Section, &str)] = &[
    (Section::Requests, "requests"),
    (Section::Messages, "messages"),
    (Section::NvMemory, "nv-memory"),
    (Section::Accelerators, "accelerators"),
    (Section::Time, "time"),
    (Section::Rest, "rest"),
    (Section::Flash, "flash"),
];

fn work(work: Work) -> &'static str {
    match work {
        Work::Call => "call",
        Work::Bytes => "bytes",
        Work::Segments => "segments",
        Work::Message => "message",
        Work::Search => "message, entries",
        Work::Print => "print",
        Work::Entries => "entries",
        Work::Store => "store",
        Work::Literals => "literals",
        Work::Keys => "keys",
        Work::Butterflies => "butterflies",
        Work::Elements => "elements",
    }
}

fn document_type(kind: Kind) -> &'static str {
    match kind {
        Kind::U32 | Kind::I32 => "",
        Kind::U64 | Kind::I64 | Kind::Address => ": i64",
        Kind::Read | Kind::Written => ": pointer",
    }
}

/// The table of a section of docs/abi.md.
pub fn reference(section: Section) -> String {
    let mut text = String::from("| import | meaning | errors | work |\n|---|---|---|---|\n");
    for import in IMPORTS.iter().filter(|import| import.section == section) {
        let parameters: Vec<String> =
            import.parameters.iter().map(|(name, kind)| format!("{name}{}", document_type(*kind))).collect();
        let result = import.result.map_or(String::new(), |kind| match kind.letter() {
            'I' => " -> i64".to_owned(),
            _ => " -> i32".to_owned(),
        });
        let lines: Vec<&str> = import.meaning.iter().map(|line| line.trim()).collect();
        let mut meaning = lines.join(" ");
        if import.since > 1 {
            let _ = write!(meaning, " (since version {})", import.since);
        }
        if import.who == Who::Trusted {
            meaning.push_str(" (trusted apps alone)");
        }
        let errors: Vec<String> = import.errors.iter().map(|error| format!("`{error}`")).collect();
        let _ = writeln!(
            text,
            "| `{}({}){result}` | {meaning} | {} | {} |",
            import.name,
            parameters.join(", "),
            errors.join(", "),
            work(import.work)
        );
    }
    text
}
