//! A generator of modules that aim at imports: valid and absurd arguments, in loops, without waiting, nested, across SPUs. What comes out is
//! decided by a number alone.
//!
//! Unlike random code, which seldom finds a valid token or an address that matters, these know the table of imports, what kind of thing each
//! argument is, and a few addresses that are worth trying.

use super::{IMPORTS, Import, Who};
use std::fmt::Write;

/// Bytes of such a module's memory.
const MEMORY_BYTES: u64 = 2 << 16;
/// Most statements of a block.
const STATEMENTS_MAX: u64 = 5;
/// Most blocks in one another.
const DEPTH_MAX: u32 = 3;

/// What a module is to aim at.
#[derive(Clone, Debug, Default)]
pub struct Aims {
    /// Addresses of NV memory: what it may access, and what it may not.
    pub addresses: Vec<u64>,
    /// Numbers of apps.
    pub apps: Vec<u16>,
    /// SPUs of the device.
    pub spus: u16,
    /// Whether some are to ask for long runs.
    pub long: bool,
}

/// What the parameters of imports are, in the order of [`IMPORTS`]: T token, P pointer, p port, A address (of the port before it), S stride,
/// B bytes, N segments, W wait, L duration, O offset, D destination, a app, H handler, h handle, I region or namespace, V any.
const KINDS: &[(&str, &str)] = &[
    ("request_info", "TP"),
    ("receive_bytes", "TPB"),
    ("receive_bytes_at", "TOPB"),
    ("respond", "TVV"),
    ("dma", "TpApABW"),
    ("dma_strided", "TpASpASBNW"),
    ("compare", "TAOBW"),
    ("checksum", "TpABVW"),
    ("checksum_value", ""),
    ("rpc_start", "TDaHBPB"),
    ("rpc_append", "hpAB"),
    ("rpc_finish", "hW"),
    ("upcall_start", "TVHB"),
    ("subscribers", "HVPV"),
    ("app_number", "PB"),
    ("region", "IBW"),
    ("region_bytes", "I"),
    ("region_free", "IW"),
    ("namespace", "IP"),
    ("flush", "W"),
    ("literals_load", "PBV"),
    ("literals_find", "TVpABVPVW"),
    ("keys_find", "TpABBNVPW"),
    ("multiply_add", "TBVPPVW"),
    ("fft", "TBIPBIW"),
    ("decompress", "TIPBPBPW"),
    ("literals_free", "V"),
    ("sleep", "LW"),
    ("cancel", "TW"),
    ("background", "HV"),
    ("spu_id", ""),
    ("spu_count", ""),
    ("time_ns", ""),
    ("print", "PB"),
    ("count", "VV"),
];

struct Generator<'a> {
    state: u64,
    aims: &'a Aims,
    /// Of the module: how often it is careless with pointers, which ends it, in 1024.
    wild: u64,
    /// Most bytes and segments it asks for.
    bytes_max: u64,
    /// One that leaves its answers to others: it responds seldom.
    keeps: bool,
    /// What stands for a token, while tokens of others are guessed.
    guesses: Option<String>,
}

impl Generator<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn absurd(&mut self) -> i64 {
        self.of(&[0, 1, -1, 2, 255, 256, 65535, 65536, 1 << 31, i64::MAX, i64::MIN, -4096, 1 << 32, (1 << 28) + 1])
    }

    /// An argument of a kind; `before`: the port that was chosen last.
    fn value(&mut self, kind: char, before: &mut i64) -> String {
        if self.below(40) == 0 && kind != 'P' {
            return self.absurd().to_string();
        }
        let value = match kind {
            'T' if self.guesses.is_some() => return self.guesses.clone().unwrap_or_default(),
            'T' => return self.of(&["T", "T", "T", "T", "K", "K", "0"]).to_owned(),
            'h' => return self.of(&["h", "h", "h", "h", "0"]).to_owned(),
            'P' if self.below(1024) < self.wild => self.of(&[MEMORY_BYTES as i64 - 4, -1, i64::from(i32::MAX)]),
            'P' => self.below(4096) as i64,
            'p' => {
                *before = self.of(&[0, 0, 1, 1, 1, 0x101, 2, 2, 3, 0x201, 4, 0x103, 0x1_0001, 0x2_0001, 0x3_0001]);
                *before
            }
            'A' if *before & 0xff == 1 && !self.aims.addresses.is_empty() => {
                let near = self.of(&[0, 0, 0, 8, 511, 512, -1, 4096]);
                let aims = self.aims;
                (aims.addresses[self.below(aims.addresses.len() as u64) as usize] as i64).wrapping_add(near)
            }
            'A' if *before & 0xff == 0 && self.below(1024) < self.wild => MEMORY_BYTES as i64,
            'A' => self.below(4096) as i64,
            'S' => self.of(&[0, 0, 1, 8, 512, 4096, -8]),
            'B' if self.below(3) == 0 => self.below(self.bytes_max) as i64,
            'B' => self.of(&[0, 1, 8, 8, 64, 512, 4096]),
            'N' if self.below(4) == 0 => self.of(&[1000, 30_000, 1 << 20, i64::from(u32::MAX)]),
            'N' => self.below(16) as i64,
            'O' => self.below(128) as i64,
            'L' => self.of(&[0, 0, 1, 1000, 100_000, 10_000_000, 86_400_000_000_000, i64::MAX]),
            'D' => self.below(u64::from(self.aims.spus) + 1) as i64 - 1,
            'a' if self.below(4) == 0 && !self.aims.apps.is_empty() => {
                let aims = self.aims;
                i64::from(aims.apps[self.below(aims.apps.len() as u64) as usize])
            }
            'a' => -1,
            'H' => 1 + self.below(4) as i64,
            'I' => self.below(5) as i64,
            _ => self.below(1000) as i64,
        };
        value.to_string()
    }

    /// A call of an import with arguments, its result kept where it is a handle, else dropped.
    fn call(&mut self, out: &mut String, name: &str) {
        let import = IMPORTS.iter().find(|import| import.name == name).expect("an import");
        let (parameters, result) = (import.parameter_letters(), import.result_letters());
        let kinds = KINDS.iter().find(|(of, _)| *of == name).expect("its kinds").1;
        assert_eq!(kinds.len(), parameters.len(), "{name}");
        let mut port = 1;
        let mut call = format!("(call ${name}");
        for (kind, of) in kinds.chars().zip(parameters.chars()) {
            let text = self.value(kind, &mut port);
            let wide = of == 'I';
            let _ = match text.as_str() {
                "T" => write!(call, " (local.get $token)"),
                "K" => write!(call, " (i32.load (i32.const 8192))"),
                text if text.starts_with('(') => write!(call, " {text}"),
                text if wide => write!(call, " (i64.const {text})"),
                text => write!(call, " (i32.const {})", text.parse::<i64>().unwrap_or(0) as i32),
            };
        }
        call.push(')');
        let _ = match (name, result.as_str()) {
            ("rpc_start", _) => writeln!(out, "(global.set $handle {call})"),
            ("region", _) => writeln!(out, "(call $promise (i64.eq {call} (i64.const -1)))"),
            // What it is told of later it counts.
            _ if kinds.contains('W') && name != "cancel" => {
                writeln!(out, "(call $promise (i32.eq {call} (i32.const 1)))")
            }
            (_, "") => writeln!(out, "{call}"),
            _ => writeln!(out, "(drop {call})"),
        };
    }

    fn statement(&mut self, out: &mut String, depth: u32) {
        match self.below(24) {
            0..3 if depth < DEPTH_MAX => {
                // A loop: often short, at times as long as the budget lets it be.
                let rounds = self.of(&[2, 3, 10, 100, 1000, 1 << 20]);
                let _ = writeln!(out, "(local.set $n{depth} (i32.const {rounds})) (loop $l{depth}");
                self.block(out, depth + 1);
                let _ = writeln!(out, "{})", again(depth));
            }
            3 => {
                let (at, value) = (self.below(4096) & !7, self.absurd());
                let _ = writeln!(out, "(i64.store (i32.const {at}) (i64.const {value}))");
            }
            4 if depth < DEPTH_MAX && self.below(2) == 0 => {
                // Tokens of others look like its own: another place of the table, taken more or less often. It goes through many.
                let (rounds, place) = (self.of(&[8, 64, 200]), self.of(&[-3, -2, -1, -1, 1, 1, 2, 3]));
                let first = place - (rounds / 2) * 65536;
                self.guesses = Some(format!(
                    "(i32.add (local.get $token) (i32.add (i32.const {first}) (i32.mul (local.get $n{depth}) (i32.const 65536))))"
                ));
                let _ = writeln!(out, "(local.set $n{depth} (i32.const {rounds})) (loop $l{depth}");
                let name = self.of(&["respond", "respond", "dma", "receive_bytes", "checksum", "rpc_start", "cancel"]);
                self.call(out, name);
                let _ = writeln!(out, "{})", again(depth));
                self.guesses = None;
            }
            4 => {
                let grows =
                    self.of(&["(memory.grow (i32.const 1))", "(table.grow $t (ref.null func) (i32.const 999))"]);
                let _ = writeln!(out, "(drop {grows})");
            }
            5..9 => {
                // A whole message, or one that is not finished.
                self.call(out, "rpc_start");
                if self.below(2) == 0 {
                    self.call(out, "rpc_append");
                }
                if self.below(8) > 0 {
                    self.call(out, "rpc_finish");
                }
            }
            9..15 => {
                let name = self.of(&["dma", "dma", "dma_strided", "dma_strided", "compare", "checksum"]);
                self.call(out, name);
            }
            15 if !self.keeps => self.call(out, "respond"),
            16 if self.below(20) == 0 => out.push_str("(unreachable)\n"),
            _ => {
                let any: Vec<&str> = of_any_app().map(|import| import.name).collect();
                let name = any[self.below(any.len() as u64) as usize];
                if name != "respond" || !self.keeps {
                    self.call(out, name);
                }
            }
        }
    }

    fn block(&mut self, out: &mut String, depth: u32) {
        for _ in 0..=self.below(STATEMENTS_MAX) {
            self.statement(out, depth);
        }
    }
}

/// The end of a loop's round.
fn again(depth: u32) -> String {
    format!("(br_if $l{depth} (local.tee $n{depth} (i32.sub (local.get $n{depth}) (i32.const 1))))")
}

/// The imports that users' apps may have.
fn of_any_app() -> impl Iterator<Item = &'static Import> {
    IMPORTS.iter().filter(|import| import.who == Who::Any)
}

/// How an instance ends that was told more ends than it was promised: nothing else of these modules ends so.
pub const TOLD_TOO_OFTEN: &str = "integer divide by zero";

/// The module of a number.
pub fn hostile_module(name: &str, seed: u64, aims: &Aims) -> Vec<u8> {
    let mut generator = Generator { state: seed, aims, wild: 0, bytes_max: 0, keeps: false, guesses: None };
    (generator.wild, generator.keeps) = (generator.of(&[0, 0, 0, 2]), generator.below(4) == 0);
    generator.bytes_max = generator.of(&[64, 4096, 60_000, 1 << 20, 1 << 26]);
    let (mut start, mut complete) = (String::new(), String::new());
    generator.block(&mut start, 0);
    generator.block(&mut complete, 1);
    let mut text = String::from("(module\n");
    for import in of_any_app() {
        let types =
            |letters: &str| letters.chars().map(|of| if of == 'I' { " i64" } else { " i32" }).collect::<String>();
        let (name, parameters) = (import.name, types(&import.parameter_letters()));
        let result = import.result.map_or(String::new(), |_| format!("(result{})", types(&import.result_letters())));
        let _ = writeln!(text, r#"(import "willow" "{name}" (func ${name} (param{parameters}) {result}))"#);
    }
    let answer = if generator.keeps {
        ""
    } else {
        "(if (i32.eqz (global.get $going)) (then (call $respond (local.get $token) (i32.const 0) (i32.const 1))))"
    };
    let long = if aims.long && seed % 5 < 2 { "long=1\\n" } else { "" };
    let counters = "(local $n0 i32) (local $n1 i32) (local $n2 i32)";
    // Completions go on with the request that came last, so often and no more.
    let _ = writeln!(
        text,
        r#"(memory (export "memory") 2) (table $t 10 funcref)
        (global $promised (mut i32) (i32.const 0)) (global $told (mut i32) (i32.const 0))
        (func $promise (param $pends i32) (global.set $promised (i32.add (global.get $promised) (local.get $pends))))
        (global $handle (mut i32) (i32.const 0)) (global $going (mut i32) (i32.const 0)) (global $left (mut i32) (i32.const 200))
        (func (export "start") (param $token i32) (param $handler i32) (result i32) {counters}
            (if (i32.eqz (local.get $handler)) (then
                (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (i32.store (i32.const 8192) (local.get $token))
            {start} {answer} (i32.const 0))
        (func (export "complete") (param $wait i32) (param $result i64) (local $token i32) {counters}
            (global.set $told (i32.add (global.get $told) (i32.const 1)))
            (if (i32.gt_u (global.get $told) (global.get $promised)) (then (drop (i32.div_u (i32.const 1) (i32.const 0)))))
            (if (i32.eqz (global.get $left)) (then (return)))
            (global.set $left (i32.sub (global.get $left) (i32.const 1)))
            (local.set $token (i32.load (i32.const 8192)))
            {complete})
        (@custom "willow.app" "abi=2\nname={name}\nversion={seed}\nhandler=1:one\nhandler=2:two\nhandler=3:three\nhandler=4:four\npublic=*\n{long}"))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("the module of {seed} is well formed: {error}\n{text}"))
}
