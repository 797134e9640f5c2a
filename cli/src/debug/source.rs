//! What a module says about its source: lines and variables by its DWARF, functions by its names. DWARF for WebAssembly counts addresses from the
//! beginning of the code section; here they are counted from the module's beginning, as the device does.
//!
//! What always holds: a module is somebody's file. What cannot be read of it is left out, and what is missing is no failure.

use super::variables::{self, Variable};
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use std::collections::{BTreeMap, BTreeSet};
use wasmparser::{KnownCustom, Parser, Payload};

/// Bytes of a section.
pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;
/// Most lines that are kept of a module.
const ROWS_MAX: usize = 1 << 20;

/// Instructions of a line.
#[derive(Clone, Debug)]
pub struct Row {
    /// From the module's beginning.
    pub begin: u32,
    /// Past its last.
    pub end: u32,
    /// Index of the file.
    pub file: usize,
    /// The line, from 1.
    pub line: u32,
    /// A good place to stop.
    pub is_statement: bool,
}

/// A function that the module defines.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, for people.
    pub name: String,
    /// Its first instruction, from the module's beginning.
    pub first: u32,
    /// Past its last.
    pub end: u32,
}

/// All of it.
pub struct Sources<'a> {
    dwarf: Dwarf<Bytes<'a>>,
    /// Where the code section begins.
    code: u32,
    /// By their addresses.
    rows: Vec<Row>,
    /// Paths.
    pub files: Vec<String>,
    /// In the module's order.
    pub functions: Vec<Function>,
}

impl<'a> Sources<'a> {
    /// Of a module.
    pub fn new(module: &'a [u8]) -> Self {
        let mut sections = BTreeMap::<&str, &[u8]>::new();
        let (mut names, mut code, mut imports, mut bodies) = (BTreeMap::<u32, String>::new(), 0, 0, Vec::new());
        for payload in Parser::new(0).parse_all(module) {
            let Ok(payload) = payload else { break };
            match payload {
                Payload::ImportSection(section) => {
                    imports += section.into_imports().filter_map(Result::ok).count() as u32
                }
                Payload::CodeSectionStart { range, .. } => code = range.start as u32,
                Payload::CodeSectionEntry(body) => {
                    let first = body.get_operators_reader().map(|reader| reader.original_position());
                    bodies.push((first.unwrap_or(body.range().start) as u32, body.range().end as u32));
                }
                Payload::CustomSection(section) => {
                    sections.insert(section.name(), section.data());
                    let KnownCustom::Name(reader) = section.as_known() else { continue };
                    for subsection in reader.into_iter().filter_map(Result::ok) {
                        let wasmparser::Name::Function(map) = subsection else { continue };
                        for naming in map.into_iter().filter_map(Result::ok) {
                            names.insert(naming.index, format!("{:#}", rustc_demangle::demangle(naming.name)));
                        }
                    }
                }
                _ => {}
            }
        }
        let function = |(number, (first, end)): (usize, (u32, u32))| {
            let index = imports + number as u32;
            let name = names.get(&index).cloned().unwrap_or_else(|| format!("function {index}"));
            Function { name, first, end }
        };
        let functions = bodies.into_iter().enumerate().map(function).collect();
        let section = |id: SectionId| sections.get(id.name()).copied().unwrap_or_default();
        let dwarf = Dwarf::load(|id| Ok::<_, gimli::Error>(EndianSlice::new(section(id), LittleEndian)));
        let dwarf = dwarf.unwrap_or_default();
        let mut sources = Sources { dwarf, code, rows: Vec::new(), files: Vec::new(), functions };
        sources.read_lines();
        sources
    }

    fn read_lines(&mut self) {
        let (mut rows, mut files) = (Vec::new(), Vec::new());
        let mut known = BTreeMap::<String, usize>::new();
        let mut units = self.dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Ok(unit) = self.dwarf.unit(header) else { continue };
            let unit = unit.unit_ref(&self.dwarf);
            let Some(program) = unit.line_program.clone() else { continue };
            let folder = unit.comp_dir.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
            let mut lines = program.rows();
            // The row that has begun: its address, file, line, and whether it is a statement.
            let mut begun: Option<(u64, usize, u32, bool)> = None;
            // A function that the linker has dropped lies at 0.
            let mut is_dropped = false;
            let mut is_first = true;
            while let Ok(Some((header, row))) = lines.next_row() {
                if is_first {
                    is_dropped = row.address() == 0 || row.address() >= u64::from(u32::MAX) - 1;
                }
                if let Some((begin, file, line, is_statement)) = begun.take().filter(|_| !is_dropped)
                    && row.address() > begin
                    && rows.len() < ROWS_MAX
                {
                    let address = |address: u64| self.code.saturating_add(address as u32);
                    let (begin, end) = (address(begin), address(row.address()));
                    rows.push(Row { begin, end, file, line, is_statement });
                }
                is_first = row.end_sequence();
                if row.end_sequence() {
                    continue;
                }
                let Some(line) = row.line() else { continue };
                let Some(entry) = row.file(header) else { continue };
                let text =
                    |value| unit.attr_string(value).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
                let within = entry.directory(header).map(&text).unwrap_or_default();
                let path = joined(&folder, &within, &text(entry.path_name()));
                let file = *known.entry(path).or_insert_with_key(|path| {
                    files.push(path.clone());
                    files.len() - 1
                });
                begun = Some((row.address(), file, line.get() as u32, row.is_stmt()));
            }
        }
        rows.sort_by_key(|row| (row.begin, row.end));
        (self.rows, self.files) = (rows, files);
    }

    /// True where it has lines.
    pub fn has_lines(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The line of an instruction.
    pub fn row(&self, pc: u32) -> Option<&Row> {
        let behind = self.rows.partition_point(|row| row.begin <= pc);
        self.rows[..behind].iter().rev().take(8).find(|row| pc < row.end)
    }

    /// The name of a function that the module defines.
    pub fn function(&self, defined: u32) -> String {
        self.functions
            .get(defined as usize)
            .map_or_else(|| format!("defined function {defined}"), |found| found.name.clone())
    }

    /// Files that somebody's path may mean: those that agree with it in most of its last parts, and in its name at least.
    fn files_like(&self, path: &str) -> BTreeSet<usize> {
        let parts = |path: &str| path.split(['/', '\\']).rev().map(str::to_owned).collect::<Vec<String>>();
        let wanted = parts(path);
        let agree = |file: &String| parts(file).iter().zip(&wanted).take_while(|(one, other)| one == other).count();
        let most = self.files.iter().map(agree).max().unwrap_or(0);
        let files = self.files.iter().enumerate();
        files.filter(|(_, file)| most > 0 && agree(file) == most).map(|(index, _)| index).collect()
    }

    /// Where to stop for a line of a file: the line itself, or the next that has instructions; in each function the first of them.
    pub fn places(&self, path: &str, line: u32) -> Option<(u32, Vec<u32>)> {
        let files = self.files_like(path);
        let of_files =
            || self.rows.iter().filter(|row| files.contains(&row.file) && row.is_statement && row.line >= line);
        let line = of_files().map(|row| row.line).min()?;
        let mut places = BTreeMap::<u32, u32>::new();
        for row in of_files().filter(|row| row.line == line) {
            let function = self.functions.partition_point(|function| function.end <= row.begin) as u32;
            let place = places.entry(function).or_insert(row.begin);
            *place = (*place).min(row.begin);
        }
        Some((line, places.into_values().collect()))
    }

    /// The first instruction of each function of a name, as a whole or its last part.
    pub fn entries(&self, name: &str) -> Vec<u32> {
        let suffix = format!("::{name}");
        let of = self.functions.iter().filter(|function| function.name == name || function.name.ends_with(&suffix));
        of.map(|function| function.first).collect()
    }

    /// The variables that the source has at an instruction.
    pub fn variables(&self, pc: u32) -> Vec<Variable> {
        variables::at(&self.dwarf, u64::from(pc.saturating_sub(self.code)))
    }
}

/// A path from its folder on, as far as it is no whole path already.
fn joined(folder: &str, within: &str, name: &str) -> String {
    let mut path = std::path::PathBuf::from(folder);
    path.push(within);
    path.push(name);
    path.display().to_string()
}

/// The bytes of a module's code section.
pub fn code_of(module: &[u8]) -> Option<&[u8]> {
    Parser::new(0).parse_all(module).filter_map(Result::ok).find_map(|payload| match payload {
        Payload::CodeSectionStart { range, .. } => module.get(range),
        _ => None,
    })
}
