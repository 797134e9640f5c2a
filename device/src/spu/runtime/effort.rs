//! What a module asks of the compiler, and of each of its instances, beyond its bytes: looked at before anything of it is compiled.
//!
//! A module of a few hundred kilobytes can keep a compiler busy for minutes, or have it take all memory of the machine: the compiler notes for each
//! local in which basic blocks it is defined, and for each value in which blocks it lives, so that what it needs grows with their product. And an
//! instance has an entry for each global and function, which no limit of the data segment counts, and is filled in on the device's thread.
//!
//! What always holds of a module that passes: the compiler's memory and time, and what an instance has beside its memory and tables, are bounded;
//! no function has more instructions than [`OPERATORS_MAX`], so that a run, whose instructions are counted at loops and calls, is seen to be past its
//! budget soon.

use wasmparser::{
    BlockType, CompositeInnerType, ConstExpr, ElementItems, ElementKind, FuncToValidate, FuncValidator,
    FuncValidatorAllocations, FunctionBody, Operator, Payload, TableInit, ValidPayload, Validator, ValidatorResources,
    WasmFeatures, WasmModuleResources,
};

/// Most types of a module.
pub const TYPES_MAX: usize = 4096;
/// Most functions, imports among them: an instance has two entries for each.
pub const FUNCTIONS_MAX: usize = 8192;
/// Most globals: an instance has an entry for each.
pub const GLOBALS_MAX: usize = 1024;
/// Most tables.
pub const TABLES_MAX: usize = 16;
/// Most exports.
pub const EXPORTS_MAX: usize = 4096;
/// Most segments of data, and of elements: each is copied when an instance is made.
pub const SEGMENTS_MAX: usize = 4096;
/// Most elements of all its segments.
pub const ELEMENTS_MAX: u64 = 65536;
/// Most bytes of an expression that is evaluated when an instance is made.
pub const EXPRESSION_BYTES_MAX: usize = 64;
/// Most instructions of a function, each with what it takes and leaves beyond two operands: arguments and results of a call, of a branch for each
/// of its targets.
pub const OPERATORS_MAX: u64 = 1 << 16;
/// Most locals of a function, arguments among them.
pub const LOCALS_MAX: u64 = 4096;
/// Most locals and operands of a function, times its basic blocks (a loop counts as several: the compiler has a value for each local in each loop around
/// its use). Measured: 1 s for 1,000 locals within 250 loops, 12 s and 160 MiB for 2,000 within 1,000, which is too much.
pub const SPREAD_MAX: u64 = 1 << 21;
/// The same of all functions of a module together.
pub const MODULE_SPREAD_MAX: u64 = 1 << 24;

/// What was seen of a module so far.
pub(super) struct Effort {
    validator: Validator,
    allocations: FuncValidatorAllocations,
    segments: usize,
    elements: u64,
    spread: u64,
}

fn broken(error: wasmparser::BinaryReaderError) -> String {
    format!("it is not a WebAssembly module: {error}")
}

/// More of something than a module may have.
fn too_many(what: &str, count: impl std::fmt::Display, most: impl std::fmt::Display) -> String {
    format!("it has {count} {what}, at most {most} are allowed")
}

pub(super) fn check_count(what: &str, count: usize, most: usize) -> Result<(), String> {
    if count > most { Err(too_many(what, count, most)) } else { Ok(()) }
}

fn check_expression(expression: &ConstExpr<'_>) -> Result<(), String> {
    match expression.get_binary_reader().bytes_remaining() {
        bytes if bytes > EXPRESSION_BYTES_MAX => {
            Err(too_many("bytes in a constant expression", bytes, EXPRESSION_BYTES_MAX))
        }
        _ => Ok(()),
    }
}

impl Effort {
    pub fn new() -> Self {
        Effort {
            // What the runtime knows is less: it refuses the rest by itself.
            validator: Validator::new_with_features(WasmFeatures::all()),
            allocations: FuncValidatorAllocations::default(),
            segments: 0,
            elements: 0,
            spread: 0,
        }
    }

    /// The next part of the module; the error is a sentence that begins with what the module does wrong.
    pub fn see(&mut self, payload: &Payload<'_>) -> Result<(), String> {
        self.check_section(payload)?;
        match self.validator.payload(payload).map_err(broken)? {
            ValidPayload::Func(function, body) => self.check_function(function, &body),
            _ => Ok(()),
        }
    }

    fn check_section(&mut self, payload: &Payload<'_>) -> Result<(), String> {
        match payload {
            Payload::ExportSection(reader) => check_count("exports", reader.count() as usize, EXPORTS_MAX),
            Payload::GlobalSection(reader) => {
                check_count("globals", reader.count() as usize, GLOBALS_MAX)?;
                reader.clone().into_iter().try_for_each(|global| check_expression(&global.map_err(broken)?.init_expr))
            }
            Payload::TableSection(reader) => {
                check_count("tables", reader.count() as usize, TABLES_MAX)?;
                for table in reader.clone() {
                    if let TableInit::Expr(expression) = table.map_err(broken)?.init {
                        check_expression(&expression)?;
                    }
                }
                Ok(())
            }
            Payload::DataSection(reader) => {
                self.check_segments(reader.count() as usize)?;
                for segment in reader.clone() {
                    if let wasmparser::DataKind::Active { offset_expr, .. } = segment.map_err(broken)?.kind {
                        check_expression(&offset_expr)?;
                    }
                }
                Ok(())
            }
            Payload::ElementSection(reader) => {
                self.check_segments(reader.count() as usize)?;
                for segment in reader.clone() {
                    self.check_elements(&segment.map_err(broken)?)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_segments(&mut self, count: usize) -> Result<(), String> {
        self.segments += count;
        check_count("segments of data and elements", self.segments, SEGMENTS_MAX)
    }

    fn check_elements(&mut self, segment: &wasmparser::Element<'_>) -> Result<(), String> {
        if let ElementKind::Active { offset_expr, .. } = &segment.kind {
            check_expression(offset_expr)?;
        }
        self.elements += match &segment.items {
            ElementItems::Functions(items) => u64::from(items.count()),
            ElementItems::Expressions(_, items) => {
                items.clone().into_iter().try_for_each(|item| check_expression(&item.map_err(broken)?))?;
                u64::from(items.count())
            }
        };
        if self.elements > ELEMENTS_MAX {
            return Err(too_many("elements in its segments", self.elements, ELEMENTS_MAX));
        }
        Ok(())
    }

    fn check_function(
        &mut self,
        function: FuncToValidate<ValidatorResources>,
        body: &FunctionBody<'_>,
    ) -> Result<(), String> {
        let (number, own_type) = (function.index, function.ty);
        let mut validator = function.into_validator(std::mem::take(&mut self.allocations));
        validator.read_locals(&mut body.get_binary_reader()).map_err(broken)?;
        let locals = u64::from(validator.len_locals());
        if locals > LOCALS_MAX {
            return Err(format!("its function {number} has {locals} locals, at most {LOCALS_MAX} are allowed"));
        }
        let mut operators = body.get_operators_reader().map_err(broken)?;
        let (mut steps, mut blocks, mut height) = (0u64, 1u64, 0u64);
        // What a branch takes along, at most.
        let mut widest = arity(&validator, own_type).max(1);
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset().map_err(broken)?;
            validator.op(offset, &operator).map_err(broken)?;
            height = height.max(validator.operand_stack_height().into());
            let of_type = |index: u32| arity(&validator, index);
            let of_function = |index: u32| validator.resources().type_index_of_function(index).map_or(0, of_type);
            steps += 1 + match &operator {
                Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                    of_function(*function_index)
                }
                Operator::CallIndirect { type_index, .. }
                | Operator::ReturnCallIndirect { type_index, .. }
                | Operator::CallRef { type_index }
                | Operator::ReturnCallRef { type_index } => of_type(*type_index),
                Operator::Block { blockty: BlockType::FuncType(index) }
                | Operator::Loop { blockty: BlockType::FuncType(index) }
                | Operator::If { blockty: BlockType::FuncType(index) } => {
                    widest = widest.max(of_type(*index));
                    of_type(*index)
                }
                Operator::BrTable { targets } => u64::from(targets.len()) * widest,
                Operator::End
                | Operator::Else
                | Operator::Return
                | Operator::Br { .. }
                | Operator::BrIf { .. }
                | Operator::BrOnNull { .. }
                | Operator::BrOnNonNull { .. } => widest,
                _ => 0,
            };
            blocks += new_blocks(&operator);
            if steps > OPERATORS_MAX {
                return Err(format!(
                    "its function {number} is too long: at most {OPERATORS_MAX} instructions, with their arguments, are allowed"
                ));
            }
            let spread = self.spread;
            let product = (locals + height).saturating_mul(blocks);
            if product > SPREAD_MAX || spread + product > MODULE_SPREAD_MAX {
                return Err(format!(
                    "its function {number} would take the compiler too long: it has {locals} locals, up to {height} operands and \
                     {blocks} basic blocks or more (the product may be {SPREAD_MAX}, and {MODULE_SPREAD_MAX} in all functions)"
                ));
            }
        }
        self.spread += (locals + height).saturating_mul(blocks);
        self.allocations = validator.into_allocations();
        Ok(())
    }
}

/// Parameters and results of a type.
fn arity(validator: &FuncValidator<ValidatorResources>, index: u32) -> u64 {
    match validator.resources().sub_type_at(index).map(|ty| &ty.composite_type.inner) {
        Some(CompositeInnerType::Func(ty)) => (ty.params().len() + ty.results().len()) as u64,
        _ => 0,
    }
}

/// Basic blocks that an instruction makes, those for counting instructions and for the slow way of what is done by a call of the runtime among them.
fn new_blocks(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::Loop { .. } => 16,
        Operator::If { .. } => 4,
        Operator::BrTable { targets } => 2 * u64::from(targets.len()) + 2,
        Operator::BrIf { .. } | Operator::BrOnNull { .. } | Operator::BrOnNonNull { .. } => 2,
        Operator::Block { .. }
        | Operator::Else
        | Operator::Br { .. }
        | Operator::Return
        | Operator::Unreachable
        | Operator::Call { .. }
        | Operator::ReturnCall { .. } => 1,
        Operator::CallIndirect { .. }
        | Operator::ReturnCallIndirect { .. }
        | Operator::CallRef { .. }
        | Operator::ReturnCallRef { .. }
        | Operator::MemoryGrow { .. }
        | Operator::MemoryFill { .. }
        | Operator::MemoryCopy { .. }
        | Operator::MemoryInit { .. }
        | Operator::TableGet { .. }
        | Operator::TableSet { .. }
        | Operator::TableGrow { .. }
        | Operator::TableFill { .. }
        | Operator::TableCopy { .. }
        | Operator::TableInit { .. } => 6,
        _ => 0,
    }
}
