//! Variables of the source, where a module's DWARF says how they lie: in a local, a global or an operand of WebAssembly, or in memory beside a frame.
//!
//! What always holds: a variable of which the compiler kept nothing at an instruction says so, and is not guessed.

use super::source::Bytes;
use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Operation, UnitRef};

/// Entries of DWARF that are gone through for the variables at one instruction.
const ENTRIES_MAX: usize = 1 << 20;
/// Variables that are shown.
const VARIABLES_MAX: usize = 256;
/// How far types are followed to what they are called.
const TYPES_MAX: usize = 16;

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a local.
    Local(u32),
    /// In a global.
    Global(u32),
    /// Among the operands.
    Operand(u32),
    /// In memory, so far from what a local has.
    Beside {
        /// The local.
        local: u32,
        /// Bytes.
        offset: i64,
    },
    /// The compiler has not kept it.
    Nowhere,
}

/// How the bits of a value are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A number with a sign.
    Signed,
    /// One without.
    Unsigned,
    /// A floating-point number.
    Float,
    /// True or false.
    Boolean,
    /// An address.
    Pointer,
    /// Anything else: bytes.
    Bytes,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What its type is called.
    pub type_name: String,
    /// Its size.
    pub bytes: u64,
    /// How its bits are read.
    pub reading: Reading,
    /// Where it is.
    pub place: Place,
}

type Unit<'d, 'a> = UnitRef<'d, Bytes<'a>>;
type Entry<'a> = DebuggingInformationEntry<Bytes<'a>>;

fn text<'a>(unit: Unit<'_, 'a>, entry: &Entry<'a>, name: gimli::DwAt) -> Option<String> {
    let value = entry.attr_value(name)?;
    unit.attr_string(value).ok().map(|text| text.to_string_lossy().into_owned())
}

/// Whether an entry's code has the address.
fn has<'a>(unit: Unit<'_, 'a>, entry: &Entry<'a>, address: u64) -> Option<bool> {
    let mut ranges = unit.die_ranges(entry).ok()?;
    let mut any = None;
    while let Ok(Some(range)) = ranges.next() {
        let within = range.begin != 0 && (range.begin..range.end).contains(&address);
        any = Some(any.unwrap_or(false) || within);
    }
    any
}

/// What a type is called, its size, and how it is read.
fn type_of<'a>(unit: Unit<'_, 'a>, entry: &Entry<'a>) -> (String, u64, Reading) {
    let (mut next, mut pointers) = (entry.attr_value(gimli::DW_AT_type), 0);
    for _ in 0..TYPES_MAX {
        let Some(AttributeValue::UnitRef(offset)) = next else { break };
        let Ok(found) = unit.entry(offset) else { break };
        let size = found.attr_value(gimli::DW_AT_byte_size).and_then(|size| size.udata_value()).unwrap_or(0);
        let name = text(unit, &found, gimli::DW_AT_name);
        let stars = "*".repeat(pointers);
        match found.tag() {
            gimli::DW_TAG_base_type => {
                let reading = match found.attr_value(gimli::DW_AT_encoding) {
                    Some(AttributeValue::Encoding(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char)) => Reading::Signed,
                    Some(AttributeValue::Encoding(gimli::DW_ATE_float)) => Reading::Float,
                    Some(AttributeValue::Encoding(gimli::DW_ATE_boolean)) => Reading::Boolean,
                    _ => Reading::Unsigned,
                };
                let name = name.unwrap_or_else(|| "?".to_owned());
                return match pointers {
                    0 => (name, size, reading),
                    _ => (format!("{stars}{name}"), 4, Reading::Pointer),
                };
            }
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type => {
                if let Some(name) = name {
                    return (format!("{stars}{name}"), 4, Reading::Pointer);
                }
                pointers += 1;
            }
            gimli::DW_TAG_typedef | gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type => {}
            _ => {
                let name = name.unwrap_or_else(|| "?".to_owned());
                return match pointers {
                    0 => (name, size, Reading::Bytes),
                    _ => (format!("{stars}{name}"), 4, Reading::Pointer),
                };
            }
        }
        next = found.attr_value(gimli::DW_AT_type);
    }
    match pointers {
        0 => ("?".to_owned(), 0, Reading::Bytes),
        _ => (format!("{}void", "*".repeat(pointers)), 4, Reading::Pointer),
    }
}

/// The first operations of an expression.
fn operations<'a>(unit: Unit<'_, 'a>, expression: gimli::Expression<Bytes<'a>>) -> Vec<Operation<Bytes<'a>>> {
    let mut all = expression.operations(unit.encoding());
    let mut found = Vec::new();
    while let (Ok(Some(operation)), true) = (all.next(), found.len() < 4) {
        found.push(operation);
    }
    found
}

/// The local that holds the frame's address.
fn frame_base<'a>(unit: Unit<'_, 'a>, function: &Entry<'a>) -> Option<u32> {
    let AttributeValue::Exprloc(expression) = function.attr_value(gimli::DW_AT_frame_base)? else { return None };
    match operations(unit, expression).first()? {
        Operation::WasmLocal { index } => Some(*index),
        _ => None,
    }
}

fn place_of<'a>(unit: Unit<'_, 'a>, entry: &Entry<'a>, base: Option<u32>, address: u64) -> Place {
    let expression = match entry.attr_value(gimli::DW_AT_location) {
        Some(AttributeValue::Exprloc(expression)) => Some(expression),
        Some(value) => {
            let mut found = None;
            if let Ok(Some(mut lists)) = unit.attr_locations(value) {
                while let Ok(Some(entry)) = lists.next() {
                    if (entry.range.begin..entry.range.end).contains(&address) {
                        found = Some(entry.data);
                        break;
                    }
                }
            }
            found
        }
        None => None,
    };
    let Some(expression) = expression else { return Place::Nowhere };
    match (operations(unit, expression).as_slice(), base) {
        ([Operation::WasmLocal { index }] | [Operation::WasmLocal { index }, Operation::StackValue], _) => {
            Place::Local(*index)
        }
        ([Operation::WasmGlobal { index }] | [Operation::WasmGlobal { index }, Operation::StackValue], _) => {
            Place::Global(*index)
        }
        ([Operation::WasmStack { index }] | [Operation::WasmStack { index }, Operation::StackValue], _) => {
            Place::Operand(*index)
        }
        ([Operation::FrameOffset { offset }], Some(local)) => Place::Beside { local, offset: *offset },
        _ => Place::Nowhere,
    }
}

/// The variables at an address of the code section, of the function that it is in and of the blocks around it.
pub fn at(dwarf: &Dwarf<Bytes<'_>>, address: u64) -> Vec<Variable> {
    let mut left = ENTRIES_MAX;
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let found = in_unit(unit.unit_ref(dwarf), address, &mut left);
        if !found.is_empty() || left == 0 {
            return found;
        }
    }
    Vec::new()
}

fn in_unit(unit: Unit<'_, '_>, address: u64, left: &mut usize) -> Vec<Variable> {
    let mut variables = Vec::new();
    let mut entries = unit.entries();
    // The depth of what the address is in, and that of what it is not in.
    let (mut function, mut outside): (Option<(isize, Option<u32>)>, Option<isize>) = (None, None);
    while let Ok(Some(entry)) = entries.next_dfs() {
        if *left == 0 {
            break;
        }
        *left -= 1;
        let depth = entry.depth();
        if function.is_some_and(|(of, _)| depth <= of) {
            // It was the one.
            break;
        }
        if outside.is_some_and(|of| depth > of) {
            continue;
        }
        outside = None;
        match (entry.tag(), function) {
            // Others may lie within a declaration, of a namespace or a type.
            (gimli::DW_TAG_subprogram, None) if has(unit, entry, address) == Some(true) => {
                function = Some((depth, frame_base(unit, entry)));
            }
            (gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine, Some(_))
                if has(unit, entry, address) != Some(true) =>
            {
                outside = Some(depth);
            }
            (gimli::DW_TAG_subprogram, Some(_)) => outside = Some(depth),
            (gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable, Some((_, base))) => {
                let origin = match entry.attr_value(gimli::DW_AT_abstract_origin) {
                    Some(AttributeValue::UnitRef(offset)) => unit.entry(offset).ok(),
                    _ => None,
                };
                let name = text(unit, entry, gimli::DW_AT_name)
                    .or_else(|| text(unit, origin.as_ref()?, gimli::DW_AT_name))
                    .filter(|_| variables.len() < VARIABLES_MAX);
                let Some(name) = name else { continue };
                let typed = if entry.attr_value(gimli::DW_AT_type).is_some() { Some(entry) } else { origin.as_ref() };
                let (type_name, bytes, reading) =
                    typed.map_or_else(|| ("?".to_owned(), 0, Reading::Bytes), |typed| type_of(unit, typed));
                let place = place_of(unit, entry, base, address);
                variables.push(Variable { name, type_name, bytes, reading, place });
            }
            _ => {}
        }
    }
    variables
}
