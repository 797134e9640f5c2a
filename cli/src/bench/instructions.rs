//! `willow bench instructions`: what each kind of WebAssembly instruction takes this machine for each unit that it is charged. A run of a user's
//! app is bounded in units, so that the kind that takes longest for one says how long others may have to wait for a run.
//!
//! Invariant: instructions are measured in chains, each from what the one before gave, since that is how an app that is out for it would have
//! them, within runs of about the budget that a user's app has.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::table::Table;
use std::time::{Duration, Instant};
use willow_device::media::ram::RamStore;
use willow_device::{
    Arguments, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

/// How often an instruction, or a chain of [`NESTED`], stands in a round of the loop.
const COPIES: usize = 32;
/// Instructions of a chain within one expression.
const NESTED: usize = 8;
/// Cache lines that a chain of loads goes through: within the nearest cache, half of the memory, nearly all of it.
const CHASES: [(&str, u32); 3] = [("near", 256), ("half", 8192), ("all", 15 * 1024)];
const LINE_BYTES: u32 = 64;
/// Functions that are called in no order.
const FUNCTIONS: u32 = 2048;
/// Pages of the app's memory.
const PAGES: u32 = 16;
/// Kinds of a module: a handler's number is a byte.
const KINDS_MAX: usize = 120;
/// Handler that makes the memory ready.
const PREPARE: u8 = 255;
/// Whose the apps are.
const USER: u32 = 1000;
/// Units of a measured run: what a user's app has.
const UNITS: u64 = 400_000;

/// Flags of `willow bench instructions`.
#[derive(Clone, Debug, clap::Args)]
pub struct InstructionOptions {
    /// Measurements of each kind, of which the shortest counts
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Measure those alone whose name has this in it
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A kind of instruction: what a round of a handler's loop does.
struct Kind {
    name: String,
    round: String,
}

/// What was measured of one.
struct Measured {
    name: String,
    /// Nanoseconds of the time that a unit takes.
    ns_a_unit: f64,
    /// Of a run with the whole budget.
    run: Duration,
}

/// Collects kinds.
#[derive(Default)]
struct Kinds(Vec<Kind>);

/// The local of a type, and its second one.
fn locals(of: &str) -> (&'static str, &'static str) {
    match of {
        "i32" => ("$i", "$i2"),
        "i64" => ("$l", "$l2"),
        "f32" => ("$f", "$f2"),
        "f64" => ("$d", "$d2"),
        _ => ("$v", "$v2"),
    }
}

impl Kinds {
    /// A statement.
    fn statement(&mut self, name: &str, statement: &str) {
        self.0.push(Kind { name: name.to_owned(), round: statement.repeat(COPIES) });
    }

    /// A chain of `step`, whose `@` is what the step before gave, on the local of a type.
    fn chain(&mut self, name: &str, of: &str, step: &str) {
        let (local, second) = locals(of);
        let step = step.replace('#', &format!("(local.get {second})"));
        let chain = (0..NESTED).fold(format!("(local.get {local})"), |chain, _| step.replace('@', &chain));
        self.statement(name, &format!("(local.set {local} {chain})\n"));
    }

    fn unary(&mut self, of: &str, names: &str) {
        for name in names.split_whitespace() {
            self.chain(name, of, &format!("({name} @)"));
        }
    }

    fn binary(&mut self, of: &str, names: &str) {
        for name in names.split_whitespace() {
            self.chain(name, of, &format!("({name} @ #)"));
        }
    }

    /// Instructions that lead from one type to another, each with one that leads back.
    fn there_and_back(&mut self, of: &str, pairs: &str) {
        for pair in pairs.split_whitespace() {
            let (there, back) = pair.split_once('/').unwrap_or((pair, ""));
            self.chain(pair, of, &format!("({back} ({there} @))"));
        }
    }

    fn all() -> Vec<Kind> {
        let mut kinds = Kinds::default();
        for (of, wide) in [("i32", ""), ("i64", "i64.extend32_s")] {
            let names = "clz ctz popcnt extend8_s extend16_s";
            kinds.unary(of, &format!("{} {wide}", prefixed(of, names)));
            let names = "add sub mul and or xor shl shr_u shr_s rotl rotr div_u div_s rem_u rem_s";
            kinds.binary(of, &prefixed(of, names));
        }
        for (float, int) in [("f32", "i32"), ("f64", "i64")] {
            kinds.unary(float, &prefixed(float, "abs neg ceil floor trunc nearest sqrt"));
            kinds.binary(float, &prefixed(float, "add sub mul div min max copysign"));
            for compare in ["eq", "lt"] {
                let name = format!("{float}.{compare} and convert_i32_s");
                kinds.chain(&name, float, &format!("({float}.convert_i32_s ({float}.{compare} @ #))"));
            }
            for wide in ["i32", "i64"] {
                for sign in ["s", "u"] {
                    for trunc in ["trunc", "trunc_sat"] {
                        let pair = format!("{wide}.{trunc}_{float}_{sign}/{float}.convert_{wide}_{sign}");
                        kinds.there_and_back(float, &pair);
                    }
                }
            }
            let name = format!("{float}.reinterpret there and back");
            let step = format!("({float}.reinterpret_{int} ({int}.add ({int}.reinterpret_{float} @) ({int}.const 1)))");
            kinds.chain(&name, float, &step);
            // Numbers too small for the usual form take some processors many times as long.
            let tiny = if float == "f32" { "1e-40" } else { "1e-310" };
            for name in ["add", "mul", "div"] {
                let (local, _) = locals(float);
                let other = if name == "add" { tiny } else { "1" };
                let step = (0..NESTED).fold(format!("({float}.const {tiny})"), |chain, _| {
                    format!(
                        "({float}.{name} {chain} (select ({float}.const {other}) (local.get {local}) (local.get $one)))"
                    )
                });
                kinds.statement(
                    &format!("{float}.{name} of denormal numbers"),
                    &format!("(local.set {local} {step})\n"),
                );
            }
        }
        kinds.there_and_back("f64", "f32.demote_f64/f64.promote_f32");
        kinds.there_and_back("i64", "i32.wrap_i64/i64.extend_i32_s");
        kinds.vectors();
        kinds.control();
        kinds.memory();
        kinds.0
    }

    fn vectors(&mut self) {
        for shape in ["i8x16", "i16x8", "i32x4", "i64x2"] {
            self.unary("v128", &prefixed(shape, "abs neg"));
            self.binary("v128", &prefixed(shape, "add sub eq ne lt_s gt_s ge_s"));
            for shift in ["shl", "shr_s", "shr_u"] {
                self.chain(&format!("{shape}.{shift}"), "v128", &format!("({shape}.{shift} @ (local.get $i2))"));
            }
            for test in ["all_true", "bitmask"] {
                self.chain(&format!("{shape}.{test} and splat"), "v128", &format!("(i32x4.splat ({shape}.{test} @))"));
            }
        }
        self.unary("v128", "v128.not i8x16.popcnt");
        self.binary("v128", "v128.and v128.or v128.xor v128.andnot i8x16.swizzle i16x8.mul i32x4.mul i64x2.mul i8x16.lt_u i16x8.lt_u i32x4.lt_u");
        for (shape, wide, names) in [
            ("i8x16", "i16x8", "add_sat_s add_sat_u sub_sat_s sub_sat_u min_s min_u max_s max_u avgr_u"),
            ("i16x8", "i32x4", "add_sat_s add_sat_u sub_sat_s sub_sat_u min_s min_u max_s max_u avgr_u q15mulr_sat_s"),
            ("i32x4", "i64x2", "min_s min_u max_s max_u dot_i16x8_s"),
        ] {
            self.binary("v128", &prefixed(shape, names));
            for half in ["low", "high"] {
                for sign in ["s", "u"] {
                    self.unary("v128", &format!("{wide}.extend_{half}_{shape}_{sign}"));
                    self.binary("v128", &format!("{wide}.extmul_{half}_{shape}_{sign}"));
                }
            }
        }
        self.unary("v128", "i16x8.extadd_pairwise_i8x16_s i16x8.extadd_pairwise_i8x16_u i32x4.extadd_pairwise_i16x8_s i32x4.extadd_pairwise_i16x8_u");
        self.binary("v128", "i8x16.narrow_i16x8_s i8x16.narrow_i16x8_u i16x8.narrow_i32x4_s i16x8.narrow_i32x4_u");
        for shape in ["f32x4", "f64x2"] {
            self.unary("v128", &prefixed(shape, "abs neg sqrt ceil floor trunc nearest"));
            self.binary("v128", &prefixed(shape, "add sub mul div min max pmin pmax eq lt ge"));
        }
        self.there_and_back(
            "v128",
            "i32x4.trunc_sat_f32x4_s/f32x4.convert_i32x4_s i32x4.trunc_sat_f32x4_u/f32x4.convert_i32x4_u",
        );
        self.there_and_back("v128", "i32x4.trunc_sat_f64x2_s_zero/f64x2.convert_low_i32x4_s i32x4.trunc_sat_f64x2_u_zero/f64x2.convert_low_i32x4_u");
        self.there_and_back("v128", "f32x4.demote_f64x2_zero/f64x2.promote_low_f32x4");
        self.there_and_back("v128", "v128.any_true/i32x4.splat");
        for (shape, of) in [("i32x4", "i32"), ("i64x2", "i64"), ("f32x4", "f32"), ("f64x2", "f64")] {
            let name = format!("{shape}.extract_lane and splat");
            self.chain(&name, of, &format!("({shape}.extract_lane 1 ({shape}.splat @))"));
        }
        self.chain("i8x16.extract_lane_u and splat", "i32", "(i8x16.extract_lane_u 3 (i8x16.splat @))");
        self.chain("i16x8.extract_lane_s and splat", "i32", "(i16x8.extract_lane_s 3 (i16x8.splat @))");
        self.chain(
            "i32x4.replace_lane and extract",
            "i32",
            "(i32x4.extract_lane 2 (i32x4.replace_lane 2 (local.get $v) @))",
        );
        self.chain("i8x16.shuffle", "v128", "(i8x16.shuffle 3 17 8 2 1 30 9 4 5 6 7 19 22 11 0 13 @ #)");
        self.chain("v128.bitselect", "v128", "(v128.bitselect @ # (local.get $v2))");
    }

    fn control(&mut self) {
        self.chain("select", "i32", "(select @ # (local.get $one))");
        self.statement("global.set", "(global.set $g (i32.add (global.get $g) (i32.const 1)))\n");
        self.chain("call", "i32", "(call $double @)");
        // The next one is known when the one before has returned; a processor cannot tell.
        let next = |bits: u32| format!("(i32.and (i32.shr_u (local.get $i) (i32.const 8)) (i32.const {bits}))");
        self.statement(
            "call_indirect in no order",
            &format!(
                "(local.set $i (call_indirect $functions (type $unary) (local.get $i) {}))\n",
                next(FUNCTIONS - 1)
            ),
        );
        let step = "(local.set $i (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345)))\n";
        let arms = (0..16)
            .rev()
            .fold(format!("(br_table 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 {})", next(15)), |inner, arm| {
                format!("(block {inner} (local.set $l (i64.add (local.get $l) (i64.const {arm}))))")
            });
        self.statement("br_table in no order", &format!("{step}{arms}\n"));
        let bit = |bit: u32| format!("(i32.and (local.get $i) (i32.const {}))", 1u32 << bit);
        let mut branches = step.to_owned();
        for at in 10..30 {
            branches +=
                &format!("(block (br_if 0 {}) (local.set $l (i64.add (local.get $l) (i64.const 3))))\n", bit(at));
        }
        self.0.push(Kind { name: "br_if in no order".to_owned(), round: branches });
        let mut branches = step.to_owned();
        for at in 10..30 {
            branches += &format!("(if {} (then (local.set $l (i64.add (local.get $l) (i64.const 3)))))\n", bit(at));
        }
        self.0.push(Kind { name: "if in no order".to_owned(), round: branches });
    }

    fn memory(&mut self) {
        for (name, lines) in CHASES {
            // The words of a line are of one chain each.
            let offset = chase_offset(lines);
            let chain =
                (0..NESTED).fold("(local.get $p)".to_owned(), |chain, _| format!("(i32.load offset={offset} {chain})"));
            self.statement(&format!("i32.load, {name}"), &format!("(local.set $p {chain})\n"));
            // As far as a vector goes: its first word.
            let load = format!("(i32x4.extract_lane 0 (v128.load offset={offset} (local.get $p)))");
            self.statement(&format!("v128.load, {name}"), &format!("(local.set $p {load})\n"));
        }
        let step = "(local.set $i (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345)))\n";
        let place = "(i32.and (i32.shr_u (local.get $i) (i32.const 8)) (i32.const 0xf7fc0))";
        self.statement("i32.store in no order", &format!("{step}(i32.store offset=60 {place} (local.get $i))\n"));
        self.statement("i32.load in no order", &format!("(local.set $i (i32.add (i32.load offset=60 {place}) (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345))))\n"));
        self.statement(
            "i32.store and load",
            "(i32.store offset=56 (i32.const 0) (local.get $i)) (local.set $i (i32.load offset=56 (i32.const 0)))\n",
        );
        self.statement(
            "i32.store8 and load",
            "(i32.store8 offset=57 (i32.const 0) (local.get $i)) (local.set $i (i32.load offset=56 (i32.const 0)))\n",
        );
        for bytes in [1, 64] {
            self.statement(&format!("memory.copy of {bytes}, in no order"), &format!(
                "(memory.copy (i32.const 1048000) (i32.add {place} (i32.const 48)) (i32.const {bytes}))
                (local.set $i (i32.add (i32.load8_u (i32.const 1048000)) (i32.add (i32.mul (local.get $i) (i32.const 1103515245)) (i32.const 12345))))\n"));
            self.statement(
                &format!("memory.fill of {bytes}, in no order"),
                &format!(
                    "{step}(memory.fill (i32.add {place} (i32.const 1020000)) (i32.const 7) (i32.const {bytes}))\n"
                )
                .replace("0xf7fc0", "0x3fc0"),
            );
        }
        self.statement("memory.copy of 4096", "(memory.copy (i32.const 524352) (i32.const 65600) (i32.const 4096))\n");
        self.statement("memory.init of 1", "(memory.init $data (i32.const 1048000) (i32.const 0) (i32.const 1))\n");
        self.statement("memory.size", "(local.set $i (memory.size))\n");
        self.statement("memory.grow of 0", "(drop (memory.grow (i32.const 0)))\n");
        self.statement("table.grow of 0", "(drop (table.grow $functions (ref.null func) (i32.const 0)))\n");
        self.statement("table.size", "(local.set $i (table.size $functions))\n");
        self.statement("table.get, set", "(table.set $functions (i32.const 1) (table.get $functions (i32.const 1)))\n");
        self.statement("table.fill of 1", "(table.fill $functions (i32.const 1) (ref.null func) (i32.const 0))\n");
        self.statement(
            "table.copy of 1",
            "(table.copy $functions $functions (i32.const 1) (i32.const 1) (i32.const 1))\n",
        );
        self.statement("ref.func", "(table.set $functions (i32.const 1) (ref.func $f1))\n");
        self.statement("ref.is_null", "(local.set $i (ref.is_null (table.get $functions (i32.const 2))))\n");
    }
}

fn prefixed(shape: &str, names: &str) -> String {
    names.split_whitespace().map(|name| format!("{shape}.{name} ")).collect()
}

/// The offset within a line of the words that a chain goes through.
fn chase_offset(lines: u32) -> u32 {
    CHASES.iter().position(|(_, of)| *of == lines).unwrap_or(0) as u32 * 16
}

/// A module with a handler for each kind, whose argument says how many rounds.
fn module(kinds: &[Kind], name: &str) -> Outcome<Vec<u8>> {
    let mut handlers = String::new();
    for (kind, number) in kinds.iter().zip(1..) {
        handlers += &format!(
            "(func $h{number} (param $left i32) (local $i i32) (local $i2 i32) (local $l i64) (local $l2 i64) (local $f f32) (local $f2 f32)
                (local $d f64) (local $d2 f64) (local $v v128) (local $v2 v128) (local $p i32) (local $one i32)
                (local.set $i (local.get $left)) (local.set $i2 (i32.load offset=52 (i32.const 0)))
                (local.set $one (i32.const 1))
                (local.set $l (i64.const 0x7234567891234567)) (local.set $l2 (i64.extend_i32_u (local.get $i2)))
                (local.set $f (f32.const 1.37)) (local.set $f2 (f32.convert_i32_u (local.get $i2)))
                (local.set $d (f64.const 1.37)) (local.set $d2 (f64.convert_i32_u (local.get $i2)))
                (local.set $v (f32x4.splat (f32.const 1.37))) (local.set $v2 (f32x4.splat (local.get $f2)))
                (loop $again
                    {}
                    (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (i32.store (i32.const 1048100) (i32.add (local.get $i) (local.get $p)))
                (i64.store (i32.const 1048104) (local.get $l))
                (f32.store (i32.const 1048112) (local.get $f)) (f64.store (i32.const 1048120) (local.get $d))
                (v128.store (i32.const 1048128) (local.get $v)))\n",
            kind.round
        );
    }
    let dispatch: String = (1..=kinds.len())
        .map(|number| {
            format!("(if (i32.eq (local.get 1) (i32.const {number})) (then (call $h{number} (local.get $left))))\n")
        })
        .collect();
    let chases: String = CHASES
        .iter()
        .map(|(_, lines)| {
            // Each line leads to the one that this multiplier says, once round all of them: their number is a power of two, or the step is prime to it.
            let step = if lines.is_power_of_two() { lines / 2 + lines / 8 + 1 } else { 7_919 };
            format!(
                "(local.set $left (i32.const 0))
                (loop $again
                    (i32.store offset={} (i32.mul (local.get $left) (i32.const {LINE_BYTES}))
                        (i32.mul (i32.rem_u (i32.add (local.get $left) (i32.const {step})) (i32.const {lines})) (i32.const {LINE_BYTES})))
                    (br_if $again (i32.lt_u (local.tee $left (i32.add (local.get $left) (i32.const 1))) (i32.const {lines}))))\n",
                chase_offset(*lines)
            )
        })
        .collect();
    let functions: String = (0..FUNCTIONS)
        .map(|number| {
            format!(
                "(func $f{number} (type $unary) (i32.add (i32.mul (local.get 0) (i32.const 1103515245)) (i32.const {})))\n",
                number * 2 + 1
            )
        })
        .collect();
    let elements: String = (0..FUNCTIONS).map(|number| format!("$f{number} ")).collect();
    let text = format!(
        r#"(module
        (import "willow" "receive_bytes_at" (func $receive_bytes_at (param i32 i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (type $unary (func (param i32) (result i32)))
        (memory (export "memory") {PAGES}) (data $data "x") (global $g (mut i32) (i32.const 0))
        (table $functions {FUNCTIONS} funcref) (elem (table $functions) (i32.const 0) func {elements})
        (func $double (param i32) (result i32) (i32.add (local.get 0) (local.get 0)))
        {functions} {handlers}
        (func (export "start") (param i32 i32) (result i32) (local $left i32)
            (drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 1048200) (i32.const 4)))
            (local.set $left (i32.load (i32.const 1048200)))
            (i32.store (i32.const 1048200) (i32.const 0))
            (if (local.get $left) (then (if (i32.ne (local.get 1) (i32.const {PREPARE})) (then {dispatch}))))
            (if (i32.eq (local.get 1) (i32.const {PREPARE})) (then {chases}
                (i32.store offset=52 (i32.const 0) (i32.const 3))))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0))
            (i32.const 0))
        (func (export "complete") (param i32 i64))
        (@custom "willow.app" "abi=2\nname={name}\nversion=1\nhandler={PREPARE}:prepare\n{}"))"#,
        (1..=kinds.len()).map(|number| format!("handler={number}:h{number}\\n")).collect::<String>()
    );
    wat::parse_str(text).context(|| "a module that measures".to_owned())
}

/// A device in this process, with nothing but what is measured.
struct Measuring {
    device: Device,
    hre: HreId,
    begun: Instant,
}

impl Measuring {
    fn new() -> Outcome<Self> {
        let config = DeviceConfig {
            spus: 1,
            namespace_bytes: 0,
            kv_namespace_bytes: 0,
            app_data_bytes_max: 2 << 20,
            // A round more or less is not to end it.
            user_instruction_budget: 2 * UNITS,
            ..DeviceConfig::default()
        };
        let store = RamStore::new(1, 64 << 20).context(|| "no memory for a device".to_owned())?;
        let mut device =
            Device::open(config, Box::new(store), None, Vec::new()).context(|| "cannot open a device".to_owned())?;
        // A user's apps are metered by time.
        let process = device.open_process(USER, 0).ok_or_else(|| Failure::new("the device has no process free"))?;
        let hre = device.open_hre(Some(process)).ok_or_else(|| Failure::new("the device has no endpoint free"))?;
        Ok(Measuring { device, hre, begun: Instant::now() })
    }

    /// A call, and how long it took the device.
    fn call(
        &mut self,
        (app, handler): (u16, u8),
        arguments: &[u8],
        payload: Vec<u8>,
    ) -> Outcome<(HostCompletion, Duration)> {
        let Some(arguments) = Arguments::new(arguments) else { fail!("arguments of more than 64 bytes") };
        let rpc = Rpc { app, handler, spu: 0, arguments };
        let (payload_bytes, buffer) = (payload.len() as u32, payload);
        let request = HostRequest { tag: 1, rpcs: RpcList::One(rpc), buffer, payload_bytes, reply_bytes: 0 };
        if self.device.submit(self.hre, request).is_err() {
            fail!("the device takes no request");
        }
        loop {
            let began = Instant::now();
            self.device.run(self.begun.elapsed().as_nanos() as u64);
            let took = began.elapsed();
            if let Some(done) = self.device.completion() {
                return Ok((done, took));
            }
            while let Some(job) = self.device.job() {
                let done = job.run();
                self.device.job_done(done);
            }
        }
    }

    fn install(&mut self, module: Vec<u8>) -> Outcome<u16> {
        let (done, _) = self.call((control::CONTROL_APP, control::INSTALL), &[], module)?;
        match done.outcome {
            RpcOutcome::Answered { status: 0 } => Ok(done.result as u16),
            other => fail!("an app that measures was refused: {other:?}, {}", done.result),
        }
    }

    /// Units that the SPU has executed.
    fn units(&self) -> u64 {
        self.device.statistics().spus.iter().map(|spu| spu.instructions).sum()
    }

    /// Runs a handler so many rounds: its units, and the time of the run.
    fn run(&mut self, app: u16, handler: u8, rounds: u32) -> Outcome<(u64, Duration)> {
        let before = self.units();
        let (done, took) = self.call((app, handler), &rounds.to_le_bytes(), Vec::new())?;
        if done.outcome != (RpcOutcome::Answered { status: 0 }) {
            fail!("handler {handler} ended with {:?}", done.outcome);
        }
        Ok((self.units() - before, took))
    }

    fn measure(&mut self, app: u16, handler: u8, kind: &Kind, turns: u32) -> Outcome<Measured> {
        let one = self.run(app, handler, 1)?.0;
        let round = (self.run(app, handler, 3)?.0 - one) / 2;
        let rounds = (UNITS / round.max(1)).max(1) as u32;
        let (mut units, mut least) = (0, Duration::MAX);
        for _ in 0..turns {
            let (of_run, took) = self.run(app, handler, rounds)?;
            (units, least) = (of_run, least.min(took));
        }
        let ns_a_unit = least.as_nanos() as f64 / units as f64;
        let run = Duration::from_nanos((ns_a_unit * UNITS as f64) as u64);
        Ok(Measured { name: kind.name.clone(), ns_a_unit, run })
    }
}

/// Runs it and shows what it found, what takes longest first.
pub fn run(options: &InstructionOptions) -> Outcome<()> {
    if !(1..=1000).contains(&options.turns) {
        fail!("--turns is {}, must be 1 to 1000", options.turns);
    }
    let mut kinds = Kinds::all();
    kinds.retain(|kind| options.only.as_ref().is_none_or(|only| kind.name.contains(only)));
    if kinds.is_empty() {
        fail!("--only names no kind of instruction");
    }
    let mut measuring = Measuring::new()?;
    let mut measured = Vec::new();
    for (some, number) in kinds.chunks(KINDS_MAX).zip(1..) {
        let app = measuring.install(module(some, &format!("measuring-{number}"))?)?;
        measuring.run(app, PREPARE, 1)?;
        for (kind, handler) in some.iter().zip(1..) {
            measured.push(measuring.measure(app, handler, kind, options.turns)?);
        }
    }
    measured.sort_by(|one, other| other.ns_a_unit.total_cmp(&one.ns_a_unit));
    if options.json {
        let rows: Vec<_> = (measured.iter())
            .map(|of| serde_json::json!({ "name": of.name, "ns_a_unit": of.ns_a_unit, "run_us": of.run.as_nanos() as f64 / 1000.0 }))
            .collect();
        return output::json(&serde_json::json!({ "bench": "instructions", "units": UNITS, "rows": rows }));
    }
    let mut table = Table::new(&["instruction", "ns a unit", "a run of a user's app, us"]);
    for of in measured {
        table.row([of.name, format!("{:.3}", of.ns_a_unit), format!("{:.0}", of.run.as_nanos() as f64 / 1000.0)]);
    }
    output::text(&table.render())
}
