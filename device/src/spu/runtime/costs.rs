//! What each WebAssembly instruction costs on the meter: one, or by class where a model of time asks for that. Without a model, those that take the
//! machine many times as long as an addition cost that many, so that a budget is about the same time whatever a run is made of. (What a load takes
//! depends on where the bytes are: it is charged as one from within a processor's own caches.)
//!
//! Invariant: structure without work stays free, and every class that a loop needs costs at least one, so that the budget still ends
//! every loop.

use crate::model::parameters::OperatorCosts;
use wasmtime::OperatorCost;

/// Gives the named instructions a cost.
macro_rules! set {
    ($table:ident, $cost:expr, $($operator:ident)*) => { $($table.$operator = $cost;)* };
}

/// What instructions of apps that come from no user cost where no model of time says: what they execute, but for what takes a machine many times as
/// long as an addition whatever is before it.
pub(crate) fn by_work() -> OperatorCost {
    let mut table = OperatorCost::new();
    set!(table, 8, I64DivS I64DivU I64RemS I64RemU);
    set!(table, 4,
        I32DivS I32DivU I32RemS I32RemU F32Add F32Sub F32Mul F64Add F64Sub F64Mul F32x4Add F32x4Sub F32x4Mul F64x2Add F64x2Sub F64x2Mul);
    set!(table, 24,
        F32Div F32Sqrt F64Div F64Sqrt F32x4Div F32x4Sqrt F64x2Div F64x2Sqrt
        F32x4Min F32x4Max F64x2Min F64x2Max I32x4TruncSatF32x4U I32x4TruncSatF64x2UZero);
    set!(table, 12,
        F32Min F32Max F64Min F64Max
        I32TruncF32S I32TruncF32U I32TruncF64S I32TruncF64U I64TruncF32S I64TruncF32U I64TruncF64S I64TruncF64U
        I32TruncSatF32S I32TruncSatF32U I32TruncSatF64S I32TruncSatF64U
        I64TruncSatF32S I64TruncSatF32U I64TruncSatF64S I64TruncSatF64U
        F32ConvertI64U F64ConvertI64U I32x4TruncSatF32x4S I32x4TruncSatF64x2SZero
        I8x16Shl I8x16ShrS I8x16ShrU);
    set!(table, 8,
        F32Ceil F32Floor F32Trunc F32Nearest F64Ceil F64Floor F64Trunc F64Nearest
        F32x4Ceil F32x4Floor F32x4Trunc F32x4Nearest F64x2Ceil F64x2Floor F64x2Trunc F64x2Nearest
        I8x16Popcnt I64x2Mul MemoryFill MemoryCopy MemoryInit);
    // The runtime is called.
    set!(table, 200, MemoryGrow TableGrow RefFunc);
    set!(table, 40, ElemDrop DataDrop TableInit TableCopy TableFill);
    table.variable.table_copy_per_element = 4;
    table.variable.table_init_per_element = 4;
    table.variable.table_fill_per_element = 4;
    table
}

/// What instructions of users' apps cost where no model of time says: measured times over 0.25 ns, rounded (`willow bench instructions`). Instructions are taken to
/// wait for one another, and loads for a cache that is not the nearest, as an app would have it that is out for it.
pub(crate) fn by_time() -> OperatorCost {
    let mut table = OperatorCost::new();
    set!(table, 20,
        I32Load I64Load F32Load F64Load I32Load8S I32Load8U I32Load16S I32Load16U
        I64Load8S I64Load8U I64Load16S I64Load16U I64Load32S I64Load32U
        V128Load V128Load8x8S V128Load8x8U V128Load16x4S V128Load16x4U V128Load32x2S V128Load32x2U
        V128Load8Splat V128Load16Splat V128Load32Splat V128Load64Splat V128Load32Zero V128Load64Zero
        V128Load8Lane V128Load16Lane V128Load32Lane V128Load64Lane TableGet);
    set!(table, 4,
        I32Store I64Store F32Store F64Store I32Store8 I32Store16 I64Store8 I64Store16 I64Store32
        V128Store V128Store8Lane V128Store16Lane V128Store32Lane V128Store64Lane);
    // Where to is often guessed wrongly, and what is called is not in the nearest cache.
    set!(table, 3, BrIf If);
    set!(table, 12, Call);
    set!(table, 8, TableSet);
    set!(table, 2, F32Abs F64Abs F32x4Abs F64x2Abs);
    set!(table, 12, BrTable);
    set!(table, 48, CallIndirect);
    set!(table, 10, I64DivS I64DivU I64RemS I64RemU);
    set!(table, 4,
        I32DivS I32DivU I32RemS I32RemU F32Add F32Sub F32Mul F64Add F64Sub F64Mul F32x4Add F32x4Sub F32x4Mul F64x2Add F64x2Sub F64x2Mul
        I32ReinterpretF32 I64ReinterpretF64 F32ReinterpretI32 F64ReinterpretI64
        I8x16Splat I16x8Splat I32x4Splat I64x2Splat F32x4Splat F64x2Splat
        I8x16ExtractLaneS I8x16ExtractLaneU I16x8ExtractLaneS I16x8ExtractLaneU I32x4ExtractLane I64x2ExtractLane F32x4ExtractLane F64x2ExtractLane
        I8x16ReplaceLane I16x8ReplaceLane I32x4ReplaceLane I64x2ReplaceLane F32x4ReplaceLane F64x2ReplaceLane
        I16x8Shl I16x8ShrS I16x8ShrU I32x4Shl I32x4ShrS I32x4ShrU I64x2Shl I64x2ShrU
        I16x8Mul I32x4Mul I16x8Q15MulrSatS I32x4DotI16x8S
        F32x4Eq F32x4Ne F32x4Lt F32x4Gt F32x4Le F32x4Ge F64x2Eq F64x2Ne F64x2Lt F64x2Gt F64x2Le F64x2Ge
        I16x8ExtendLowI8x16S I16x8ExtendHighI8x16S I16x8ExtendLowI8x16U I16x8ExtendHighI8x16U
        I32x4ExtendLowI16x8S I32x4ExtendHighI16x8S I32x4ExtendLowI16x8U I32x4ExtendHighI16x8U
        I64x2ExtendLowI32x4S I64x2ExtendHighI32x4S I64x2ExtendLowI32x4U I64x2ExtendHighI32x4U
        I16x8ExtMulLowI8x16S I16x8ExtMulHighI8x16S I16x8ExtMulLowI8x16U I16x8ExtMulHighI8x16U
        I32x4ExtMulLowI16x8S I32x4ExtMulHighI16x8S I32x4ExtMulLowI16x8U I32x4ExtMulHighI16x8U
        I64x2ExtMulLowI32x4S I64x2ExtMulHighI32x4S I64x2ExtMulLowI32x4U I64x2ExtMulHighI32x4U
        F32x4PMin F32x4PMax F64x2PMin F64x2PMax F32x4ConvertI32x4S F64x2ConvertLowI32x4S);
    set!(table, 48, F32Sqrt F64Sqrt F32x4Sqrt F64x2Sqrt);
    set!(table, 24,
        F32Div F64Div F32x4Div F64x2Div
        F32x4Min F32x4Max F64x2Min F64x2Max I32x4TruncSatF32x4U I32x4TruncSatF64x2UZero MemoryFill MemoryCopy MemoryInit);
    set!(table, 12,
        F32Min F32Max F64Min F64Max
        I32TruncF32S I32TruncF32U I32TruncF64S I32TruncF64U I64TruncF32S I64TruncF32U I64TruncF64S I64TruncF64U
        I32TruncSatF32S I32TruncSatF32U I32TruncSatF64S I32TruncSatF64U
        I64TruncSatF32S I64TruncSatF32U I64TruncSatF64S I64TruncSatF64U
        F32ConvertI64U F64ConvertI64U F32x4ConvertI32x4U I32x4TruncSatF32x4S I32x4TruncSatF64x2SZero
        I8x16Shl I8x16ShrS I8x16ShrU);
    set!(table, 8,
        F32Ceil F32Floor F32Trunc F32Nearest F64Ceil F64Floor F64Trunc F64Nearest
        F32Eq F32Ne F32Lt F32Gt F32Le F32Ge F64Eq F64Ne F64Lt F64Gt F64Le F64Ge
        F32ConvertI32S F32ConvertI32U F32ConvertI64S F64ConvertI32S F64ConvertI32U F64ConvertI64S F32DemoteF64 F64PromoteF32
        F32x4Ceil F32x4Floor F32x4Trunc F32x4Nearest F64x2Ceil F64x2Floor F64x2Trunc F64x2Nearest
        F64x2ConvertLowI32x4U F32x4DemoteF64x2Zero F64x2PromoteLowF32x4
        V128AnyTrue I8x16AllTrue I16x8AllTrue I32x4AllTrue I64x2AllTrue I8x16Bitmask I16x8Bitmask I32x4Bitmask I64x2Bitmask
        I16x8ExtAddPairwiseI8x16S I16x8ExtAddPairwiseI8x16U I32x4ExtAddPairwiseI16x8S I32x4ExtAddPairwiseI16x8U
        I8x16Popcnt I64x2Mul I64x2ShrS);
    // The runtime is called.
    set!(table, 250, MemoryGrow TableGrow);
    set!(table, 200, RefFunc);
    set!(table, 40, ElemDrop DataDrop TableInit TableCopy TableFill);
    table.variable.table_copy_per_element = 4;
    table.variable.table_init_per_element = 4;
    table.variable.table_fill_per_element = 4;
    table
}

/// The runtime's table: classes as [`OperatorCosts`] has them.
pub(crate) fn table(costs: OperatorCosts) -> OperatorCost {
    let OperatorCosts { simple, load, store, multiply, divide, branch, call, float, vector } = costs;
    let mut table = OperatorCost::new();
    set!(table, simple,
        I32Const I64Const F32Const F64Const LocalGet LocalSet LocalTee GlobalGet GlobalSet Select TypedSelect
        I32Eqz I32Eq I32Ne I32LtS I32LtU I32GtS I32GtU I32LeS I32LeU I32GeS I32GeU
        I64Eqz I64Eq I64Ne I64LtS I64LtU I64GtS I64GtU I64LeS I64LeU I64GeS I64GeU
        I32Clz I32Ctz I32Popcnt I32Add I32Sub I32And I32Or I32Xor I32Shl I32ShrS I32ShrU I32Rotl I32Rotr
        I64Clz I64Ctz I64Popcnt I64Add I64Sub I64And I64Or I64Xor I64Shl I64ShrS I64ShrU I64Rotl I64Rotr
        I32WrapI64 I64ExtendI32S I64ExtendI32U I32Extend8S I32Extend16S I64Extend8S I64Extend16S I64Extend32S
        MemorySize RefNull RefIsNull RefFunc);
    set!(table, load,
        I32Load I64Load F32Load F64Load I32Load8S I32Load8U I32Load16S I32Load16U
        I64Load8S I64Load8U I64Load16S I64Load16U I64Load32S I64Load32U);
    set!(table, store, I32Store I64Store F32Store F64Store I32Store8 I32Store16 I64Store8 I64Store16 I64Store32);
    set!(table, multiply, I32Mul I64Mul);
    set!(table, divide, I32DivS I32DivU I32RemS I32RemU I64DivS I64DivU I64RemS I64RemU);
    set!(table, branch, If Br BrIf BrTable);
    set!(table, call, Call CallIndirect);
    set!(table, float,
        F32Eq F32Ne F32Lt F32Gt F32Le F32Ge F64Eq F64Ne F64Lt F64Gt F64Le F64Ge
        F32Abs F32Neg F32Ceil F32Floor F32Trunc F32Nearest F32Sqrt F32Add F32Sub F32Mul F32Div F32Min F32Max F32Copysign
        F64Abs F64Neg F64Ceil F64Floor F64Trunc F64Nearest F64Sqrt F64Add F64Sub F64Mul F64Div F64Min F64Max F64Copysign
        I32TruncF32S I32TruncF32U I32TruncF64S I32TruncF64U I64TruncF32S I64TruncF32U I64TruncF64S I64TruncF64U
        F32ConvertI32S F32ConvertI32U F32ConvertI64S F32ConvertI64U F32DemoteF64
        F64ConvertI32S F64ConvertI32U F64ConvertI64S F64ConvertI64U F64PromoteF32
        I32ReinterpretF32 I64ReinterpretF64 F32ReinterpretI32 F64ReinterpretI64);
    set!(table, vector,
        V128Load V128Load8x8S V128Load8x8U V128Load16x4S V128Load16x4U V128Load32x2S V128Load32x2U
        V128Load8Splat V128Load16Splat V128Load32Splat V128Load64Splat V128Load32Zero V128Load64Zero V128Store V128Const
        I8x16Shuffle I8x16Swizzle I8x16Splat I16x8Splat I32x4Splat I64x2Splat F32x4Splat F64x2Splat
        I8x16ExtractLaneS I8x16ExtractLaneU I16x8ExtractLaneS I16x8ExtractLaneU I32x4ExtractLane I64x2ExtractLane
        F32x4ExtractLane F64x2ExtractLane I8x16ReplaceLane I16x8ReplaceLane I32x4ReplaceLane I64x2ReplaceLane
        F32x4ReplaceLane F64x2ReplaceLane
        I8x16Eq I8x16Ne I16x8Eq I16x8Ne I32x4Eq I32x4Ne I64x2Eq I64x2Ne
        V128Not V128And V128AndNot V128Or V128Xor V128Bitselect V128AnyTrue
        I8x16AllTrue I8x16Bitmask I8x16Add I8x16Sub I16x8Add I16x8Sub I16x8Mul I32x4Add I32x4Sub I32x4Mul
        I64x2Add I64x2Sub I64x2Mul F32x4Add F32x4Sub F32x4Mul F32x4Div F64x2Add F64x2Sub F64x2Mul F64x2Div);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_their_cost_and_structure_none() {
        let costs = OperatorCosts {
            simple: 1,
            load: 2,
            store: 3,
            multiply: 4,
            divide: 35,
            branch: 5,
            call: 6,
            float: 7,
            vector: 8,
        };
        let table = table(costs);
        assert_eq!((table.I32Add, table.I64Load8U, table.I64Store, table.I32Mul), (1, 2, 3, 4));
        assert_eq!((table.I64RemU, table.BrIf, table.CallIndirect, table.F64Sqrt), (35, 5, 6, 7));
        assert_eq!((table.V128Load, table.Block, table.End, table.Drop), (8, 0, 0, 0));
    }
}
