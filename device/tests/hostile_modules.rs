//! What a module asks of the compiler, of an instance and of the processor by what it is, whatever it imports: bounded, each with the reason. What a
//! compiler needs is not measured here: the modules are those for which, without these bounds, it took minutes or all memory.

mod common;
use common::users::Users;
use common::*;
use willow_device::spu::meter::IMPORT_WORK;
use willow_device::{DeviceConfig, RpcOutcome};

/// A module with more functions and whatever else, and locals of its handler.
fn with(rest: &str) -> Vec<u8> {
    let start = "(func $start (param i32 i32) (result i32)
        (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (i32.const 0))";
    module_with_memory(
        "large",
        "(memory (export \"memory\") 1) (func $complete (param i32 i64))",
        &format!("{start} {rest}"),
    )
}

fn repeated(text: &str, count: usize) -> String {
    text.repeat(count)
}

/// A function with so many locals, each of which is used at its end, behind so many blocks.
fn spread(locals: usize, branches: usize) -> String {
    let declared = repeated("i64 ", locals);
    let branches = repeated("(br_if 0 (local.get 0)) ", branches);
    let used: String = (1..=locals).map(|local| format!("(drop (local.get {local}))")).collect();
    format!("(func (param i32) (local {declared}) (block {branches} {used}))")
}

#[test]
fn what_would_keep_the_compiler_or_the_machine_busy_is_refused() {
    let nested = |depth: usize| {
        let declared = repeated("i64 ", 1000);
        let used: String = (1..=1000).map(|local| format!("(drop (local.get {local}))")).collect();
        format!("(func (param i32) (local {declared}) {} {used} {})", repeated("loop ", depth), repeated("end ", depth))
    };
    let wide = |count: usize| format!("(param {}) (result {})", repeated("i32 ", count), repeated("i32 ", count));
    let calls = format!(
        "(func $wide {0} unreachable) (func {1} {2})",
        wide(500),
        repeated("(i32.const 1) ", 500),
        repeated("(call $wide) ", 140) + &repeated("(drop) ", 500)
    );
    let table = format!(
        "(func (param i32) (block (result {0}) {1} (br_table {2} (local.get 0))) {3})",
        repeated("i32 ", 100),
        repeated("(i32.const 1) ", 100),
        repeated("0 ", 1400),
        repeated("(drop) ", 100)
    );
    let operands = format!(
        "(func (param i32) {} {} {})",
        repeated("(i32.load (local.get 0)) ", 5000),
        repeated("(block (br_if 0 (local.get 0))) ", 700),
        repeated("(drop) ", 5000)
    );
    let expression = (0..30).fold("(i32.const 1)".to_owned(), |inner, _| format!("(i32.add {inner} (i32.const 1))"));
    let cases = [
        ("many locals and many blocks", spread(2000, 2500), "would take the compiler too long"),
        ("very many locals", format!("(func (local {}))", repeated("i64 ", 4097)), "locals, at most 4096"),
        ("loops in one another", nested(2200), "would take the compiler too long"),
        ("operands that live through many blocks", operands, "would take the compiler too long"),
        ("functions that are each within the bound", repeated(&spread(900, 1000), 10), "in all functions"),
        ("calls with many arguments", calls, "is too long"),
        ("a branch of many targets with many values", table, "is too long"),
        ("a long function", format!("(func {})", repeated("(nop) ", 140_000)), "is too long"),
        ("functions", repeated("(func) ", 9000), "functions or more, with imports, at most 8192"),
        (
            "types",
            (0..5000).map(|of| format!("(type (func (param {})))", repeated("i32 ", of % 60))).collect(),
            "types or more, at most 4096",
        ),
        ("globals", repeated("(global i32 (i32.const 1)) ", 1100), "globals, at most 1024"),
        ("tables", repeated("(table 0 funcref) ", 20), "tables, at most 16"),
        ("exports", (0..4100).map(|of| format!("(export \"e{of}\" (func $start))")).collect(), "exports, at most 4096"),
        ("segments", repeated("(data \"x\") ", 4200), "segments of data and elements, at most 4096"),
        ("elements", repeated(&format!("(elem func {})", repeated("$start ", 1000)), 70), "elements in its segments"),
        ("a long expression", format!("(global i32 {expression})"), "bytes in a constant expression, at most 64"),
    ];
    let mut rig = Rig::new(1);
    for (what, rest, why) in cases {
        let refused = rig.install(&with(&rest)).expect_err(what);
        assert!(refused.contains(why), "{what}: {refused}");
    }
    // What is within all of them is compiled, and answers.
    let within = format!(
        "{} {} {} {}",
        spread(900, 1000),
        repeated("(func) ", 2000),
        repeated("(global i32 (i32.const 1)) ", 500),
        repeated("(data \"x\") ", 500)
    );
    let number = rig.install(&with(&within)).expect("it is within the bounds");
    assert_eq!(rig.call(number, 1, 0, &[], &[], 0).result, 42);
}

/// Budget of a user's run here.
const BUDGET: u64 = 100_000;
/// What a round costs beside its instruction: `count`.
const COUNT: u64 = IMPORT_WORK;

#[test]
fn instructions_that_take_the_machine_long_cost_as_much() {
    let instructions = [
        ("(drop (memory.grow (i32.const 60000)))", 250),
        ("(drop (memory.grow (i32.const 0)))", 250),
        ("(drop (table.grow $t (ref.null func) (i32.const 0)))", 250),
        ("(drop (table.grow $t (ref.null func) (i32.const 200)))", 250 + 200),
        ("(drop (ref.func $start))", 200),
        ("(elem.drop $e)", 40),
        ("(table.copy $t $t (i32.const 0) (i32.const 1) (i32.const 50))", 40 + 50 * 4),
        ("(table.fill $t (i32.const 0) (ref.null func) (i32.const 50))", 40 + 50 * 4),
        ("(memory.fill (i32.const 0) (i32.const 0) (i32.const 1000))", 1000 + 24),
        ("(drop (i32.load (i32.load (i32.load (i32.const 0)))))", 3 * 20),
        ("(drop (v128.load (i32.const 0)))", 20),
        ("(drop (call_indirect $t (type $plain) (i32.const 7)))", 48),
        ("(drop (f64.convert_i32_s (f64.lt (f64.const 1) (f64.load (i32.const 0)))))", 8 + 8 + 20),
        // With the instructions around it, which would be 7.
        ("(drop (i64.div_u (i64.load (i32.const 0)) (i64.const 3)))", 10 + 20),
        ("(drop (f64.sqrt (f64.load (i32.const 0))))", 48 + 20),
        ("(drop (f32.div (f32.load (i32.const 0)) (f32.const 3)))", 24),
        ("(drop (f64x2.sqrt (v128.load (i32.const 0))))", 48 + 20),
        ("(drop (i64.trunc_sat_f64_u (f64.load (i32.const 0))))", 12),
    ];
    for (body, cost) in instructions {
        let config = DeviceConfig { user_instruction_budget: BUDGET, ..config(1) };
        let mut users = Users::new(config);
        let mallory = users.user(6666);
        let start = format!(
            r#"(type $plain (func (result i32))) (func $seven (type $plain) (i32.const 7))
            (table $t 100 funcref) (elem $at (table $t) (i32.const 7) func $seven) (elem $e func $start) (func $start (param i32 i32) (result i32)
            (if (i32.ne (local.get 1) (i32.const 1)) (then
                (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (loop $l {body} (call $count (i32.const 0) (i64.const 1)) (br $l))
            (i32.const 0))"#
        );
        let hog = module("hog", &start);
        let hog = users.install_for(mallory.hre, &hog).expect("an app");
        let done = users.rig.call_on(mallory.hre, (hog, 1, 0), &[], &[], 0);
        assert_eq!(done.outcome, RpcOutcome::AppEnded, "{body}");
        let app = users.rig.device.statistics().apps.into_iter().find(|app| app.name == "u6666-hog").expect("it");
        let why = app.ended.expect("it ended");
        assert!(why.contains("instruction_budget"), "{body}: {why}");
        let (rounds, most) = (app.user[0] as u64, BUDGET / (COUNT + cost));
        assert!(rounds > 0 && rounds <= most, "{body}: {rounds} rounds, at most {most} are paid for");
    }
}

#[test]
fn what_a_users_app_does_before_it_starts_is_bounded_as_any_run_of_a_users() {
    let config = DeviceConfig { user_instruction_budget: BUDGET, ..config(2) };
    let mut users = Users::new(config);
    let mallory = users.user(6666);
    let loops = |rounds: u64, lines: &str| {
        let initialize = format!(
            "(func (export \"_initialize\") (local i32) (local.set 0 (i32.const {rounds}))
                (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))"
        );
        let start = "(func $start (param i32 i32) (result i32)
            (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (i32.const 0))";
        let body = format!("(func $complete (param i32 i64)){start}{initialize}");
        module_with_manifest("loops", "(memory (export \"memory\") 1)", &body, lines)
    };
    // One that asks for long runs has them once it has started.
    for lines in ["", "long=1\\n"] {
        assert!(users.install_for(mallory.hre, &loops(BUDGET, lines)).is_err(), "{lines}");
        let number = users.install_for(mallory.hre, &loops(BUDGET / 10, lines)).expect("it is within the budget");
        assert_eq!(users.rig.call_on(mallory.hre, (number, 1, 1), &[], &[], 0).result, 42);
    }
    // The kernel's apps have the large one.
    users.rig.install(&loops(BUDGET, "")).expect("the kernel's");
}
