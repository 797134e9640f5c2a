//! Random hostile programs: an app of a user runs scripts of imports with arguments that somebody made up, a hundred thousand of
//! them, and the oracle holds the device to this after each:
//! - a DMA, comparison, sum or append over NV memory that the process was not granted has failed;
//! - what reaches the user (replies, local memory, upcalls) holds no byte of what others keep in NV memory;
//! - no byte outside of what the user may write has changed;
//! - the device answers, and a neighbour's app does as ever.
//!
//! Planted weaknesses (a permission that the oracle does not know of) must be caught by the same oracle.
//!
//! The app is one module, an interpreter: a script's calls are as random as a generated module's, and need no compiler each.

mod common;
use common::users::*;
use common::*;
use willow_device::{RpcOutcome, control};

/// Programs of the test; `WILLOW_PROGRAMS` asks for another number.
const PROGRAMS: u64 = 100_000;
const CALLS_MAX: usize = 24;
const RECORD_BYTES: usize = 88;
/// Stands for the request's own token, and for the message begun last.
const SELF: i64 = 0x7fff_ffff;
const LAST: i64 = 0x7fff_fffe;
/// Result of a script that ran to its end: none answers so itself.
const ENDED: u32 = 0x5afe;
/// Local memory that scripts may use: behind the script and its results.
const LOCAL_FIRST: u64 = 0x4000;
const LOCAL_END: u64 = 0x10000;
/// A DMA's result that was to be done at once or not at all, and was not.
const NOT_NOW: i64 = 3;
/// What others' bytes are: a run of these in the user's hands is a leak. Scripts hold none.
const SECRET: u8 = 0xe7;
const LEAK_BYTES: usize = 8;

/// Imports as the interpreter calls them: name, parameters (`i`, `I`), result.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("dma", "iiIiIii", "i"),
    ("dma_strided", "iiIIiIIiii", "i"),
    ("compare", "iIIii", "i"),
    ("checksum", "iiIiii", "i"),
    ("checksum_value", "", "i"),
    ("rpc_start", "iiiiiii", "i"),
    ("rpc_append", "iiIi", "i"),
    ("rpc_finish", "ii", "i"),
    ("region", "iIi", "I"),
    ("region_bytes", "i", "I"),
    ("region_free", "ii", "i"),
    ("namespace", "ii", "i"),
    ("flush", "i", "i"),
    ("request_info", "ii", ""),
    ("receive_bytes", "iii", "i"),
    ("count", "iI", ""),
    ("app_number", "ii", "i"),
    ("respond", "iii", ""),
    ("store", "iI", ""),
    ("literals_find", "iiiIiiiii", "i"),
    ("literals_load", "iii", "i"),
    ("literals_free", "i", "i"),
    ("keys_find", "iiIiiiiii", "i"),
];
const DMA: usize = 0;
const STRIDED: usize = 1;
const COMPARE: usize = 2;
const CHECKSUM: usize = 3;
const START: usize = 5;
const APPEND: usize = 6;
const FINISH: usize = 7;
const STORE: usize = 18;
const FIND: usize = 19;
const LOAD: usize = 20;
const KEY: usize = 22;
/// Those that move bytes, and which of their arguments is the number to wait under.
const MOVES: &[(usize, usize)] = &[(DMA, 6), (STRIDED, 9), (COMPARE, 4), (CHECKSUM, 5), (FIND, 8), (KEY, 8)];
/// Where the results of a script's calls are: 8 bytes each. What is pending waits under the number that is the address of its result.
const RESULTS: i64 = 0x3000;
/// The call has begun, and `complete` brings its result.
const PENDING: i64 = 1;

fn interpreter() -> Vec<u8> {
    let mut cases = String::new();
    for (index, (name, parameters, result)) in OPERATIONS.iter().enumerate() {
        let arguments: String = parameters
            .chars()
            .enumerate()
            .map(|(at, kind)| match kind {
                'I' => format!("(i64.load offset={} (local.get $at))", 8 + at * 8),
                _ => format!("(call $value (i64.load offset={} (local.get $at)))", 8 + at * 8),
            })
            .collect();
        let call =
            if *name == "store" { format!("(i64.store {arguments})") } else { format!("(call ${name} {arguments})") };
        let call = match *result {
            "i" => format!("(local.set $result (i64.extend_i32_s {call}))"),
            "I" => format!("(local.set $result {call})"),
            _ => call,
        };
        let keep = if *name == "rpc_start" { "(global.set $last (i32.wrap_i64 (local.get $result)))" } else { "" };
        let wait = match MOVES.iter().any(|(operation, _)| *operation == index) {
            true => format!(
                "(global.set $pending (i32.add (global.get $pending) (i64.eq (local.get $result) (i64.const {PENDING}))))"
            ),
            false => String::new(),
        };
        cases += &format!("(if (i32.eq (i32.load (local.get $at)) (i32.const {index})) (then {call} {keep} {wait}))\n");
    }
    let body = format!(
        r#"(global $token (mut i32) (i32.const 0)) (global $last (mut i32) (i32.const 0)) (global $bytes (mut i32) (i32.const 0))
        (global $pending (mut i32) (i32.const 0))
        (func $value (param i64) (result i32)
            (if (i64.eq (local.get 0) (i64.const {SELF})) (then (return (global.get $token))))
            (if (i64.eq (local.get 0) (i64.const {LAST})) (then (return (global.get $last))))
            (i32.wrap_i64 (local.get 0)))
        (func $start (param i32 i32) (result i32) (local $at i32) (local $left i32) (local $out i32) (local $result i64)
            (if (i32.ne (local.get 1) (i32.const 1)) (then
                (if (i32.eq (local.get 1) (i32.const 3)) (then
                    (drop (call $dma (local.get 0) (i32.const 0) (i64.const 0) (i32.const 2) (i64.const 0) (i32.const {LOCAL_END}) (i32.const 0)))))
                (call $respond (local.get 0) (i32.const 0) (i32.const 5)) (return (i32.const 0))))
            (global.set $token (local.get 0))
            (drop (call $receive_bytes (local.get 0) (i32.const 0x1000) (i32.const 8)))
            (local.set $left (i32.load (i32.const 0x1000)))
            (drop (call $receive_bytes (local.get 0) (i32.const 0x1008) (i32.mul (local.get $left) (i32.const {RECORD_BYTES}))))
            (local.set $at (i32.const 0x1008)) (local.set $out (i32.const {RESULTS}))
            (block $end (loop $next
                (br_if $end (i32.eqz (local.get $left)))
                (local.set $result (i64.const -77))
                {cases}
                (i64.store (local.get $out) (local.get $result))
                (local.set $out (i32.add (local.get $out) (i32.const 8)))
                (local.set $at (i32.add (local.get $at) (i32.const {RECORD_BYTES})))
                (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                (br $next)))
            (global.set $bytes (i32.sub (local.get $out) (i32.const {RESULTS})))
            (if (i32.eqz (global.get $pending)) (then (call $end)))
            (i32.const 0))
        (func $end
            (drop (call $dma (global.get $token) (i32.const 0) (i64.const {RESULTS}) (i32.const 2) (i64.const 0) (global.get $bytes) (i32.const 0)))
            (call $respond (global.get $token) (i32.const 0) (i32.const {ENDED})))
        (func $complete (param i32 i64)
            (if (i32.lt_s (local.get 0) (i32.const {RESULTS})) (then (return)))
            (i64.store (local.get 0) (local.get 1))
            (global.set $pending (i32.sub (global.get $pending) (i32.const 1)))
            (if (i32.eqz (global.get $pending)) (then (call $end))))"#
    );
    app("program", &body, "")
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 31
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What the user was granted on an SPU: rights, first byte and bytes, counted from the namespace's first byte.
const GRANTED: &[(u16, u32, u64, u64)] = &[
    (0, READ | WRITE, 8192, 4096),
    (0, READ, 16384, 4096),
    (0, WRITE, 20480, 512),
    (1, READ | WRITE, 40960, 100),
    (1, READ, 41060, 3000),
];

struct Call {
    operation: usize,
    arguments: Vec<i64>,
}

struct World {
    users: Users,
    mallory: User,
    program: u16,
    vault_base: u64,
    random: Random,
    /// The namespace's bytes on each SPU as they must stay where the user may not write.
    shadow: Vec<Vec<u8>>,
    tag: u64,
    /// Calls over NV memory that were to succeed and did, and that were to fail and did.
    reached: (u64, u64),
}

impl World {
    fn new(seed: u64) -> World {
        let mut users = Users::with_namespace(config(2), 1 << 20);
        let (kernel, mover) = (users.rig.hre, users.mover);
        let mut shadow = Vec::new();
        for spu in 0..2 {
            let mut bytes = vec![SECRET; users.bank_bytes as usize];
            for (_, _, start, count) in GRANTED.iter().filter(|(of, ..)| *of == spu) {
                bytes[*start as usize..(start + count) as usize].fill(0x11);
            }
            let arguments = users.arguments(0, bytes.len() as u32, NV);
            let done = users.rig.call_on(kernel, (mover, 2, spu), &arguments, &bytes, 0);
            assert_eq!(done.result, 0);
            shadow.push(bytes);
        }
        // Another app with a region of its own.
        let vault = r#"(func $start (param i32 i32) (result i32)
                (if (i32.eq (local.get 1) (i32.const 2)) (then (drop (call $region (i32.const 1) (i64.const 65536) (i32.const 0)))))
                (if (i32.eq (local.get 1) (i32.const 3)) (then
                    (memory.fill (i32.const 0) (i32.const 0xe7) (i32.const 60000))
                    (drop (call $dma (local.get 0) (i32.const 0) (i64.const 0) (i32.const 1) (call $region (i32.const 1) (i64.const 0) (i32.const 0)) (i32.const 60000) (i32.const 0)))))
                (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (call $region (i32.const 1) (i64.const 0) (i32.const 0))))
                (i32.const 0))"#;
        let vault = users.rig.install(&app("vault", vault, "")).expect("an app");
        users.rig.call(vault, 2, 0, &[], &[], 0);
        let vault_base = u64::from(users.rig.call(vault, 3, 0, &[], &[], 0).result);
        let mallory = users.user(6666);
        for (spu, rights, start, bytes) in GRANTED {
            let body = Users::extents(mallory.process, &[(u32::from(*spu), *rights, users.base + start, *bytes)]);
            assert_eq!(users.control(control::GRANT, &body), (0, 1));
        }
        let program = users.install_for(mallory.hre, &interpreter()).expect("an app");
        World { users, mallory, program, vault_base, random: Random(seed), shadow, tag: 0, reached: (0, 0) }
    }

    fn permitted(&self, spu: u16, address: u64, bytes: u64, rights: u32) -> bool {
        let holds = |at: u64| {
            let of = GRANTED.iter().filter(|(of, held, ..)| *of == spu && held & rights == rights);
            of.map(|(_, _, start, count)| (self.users.base + start, self.users.base + start + count))
                .filter(|(start, end)| *start <= at && at < *end)
                .map(|(_, end)| end)
                .max()
        };
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            match holds(at) {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    fn nv_address(&mut self) -> i64 {
        let (_, _, start, count) = self.random.of(GRANTED);
        let base = self.users.base;
        let near = self.random.below(9) as i64 - 4;
        match self.random.below(10) {
            0 => self.random.next() as i64,
            1 => self.random.of(&[0, -1, i64::MAX, i64::MIN, 1 << 32, -4096]),
            2 => self.vault_base as i64 + self.random.below(70_000) as i64,
            3 => (base + self.users.bank_bytes) as i64 + near,
            4 | 5 => (base + start + count) as i64 + near,
            6 => (base + start) as i64 + near,
            7 => (base + self.random.below(self.users.bank_bytes)) as i64,
            _ => (base + start + self.random.below(count)) as i64,
        }
    }

    fn local(&mut self) -> i64 {
        // A wild one ends the app, and it must be installed again: seldom.
        match self.random.below(4000) {
            0 => self.random.of(&[-1, 0xffff, 0x10000, i64::MAX, 1 << 40]),
            _ => (LOCAL_FIRST + self.random.below(LOCAL_END - LOCAL_FIRST - 9000)) as i64,
        }
    }

    fn length(&mut self) -> i64 {
        match self.random.below(12) {
            0 => 0,
            1 => self.random.below(4096) as i64,
            2 => 4096,
            3 => 8192,
            _ => 1 + self.random.below(64) as i64,
        }
    }

    /// A port, and an address there.
    fn end(&mut self, nv: u64) -> (i64, i64) {
        match self.random.below(10) {
            port if port < nv => {
                let port = self.random.of(&[1, 1, 1, 0x101]);
                (port, self.nv_address())
            }
            0..7 => (0, self.local()),
            7 => (2, self.random.below(3000) as i64),
            8 => (3, 0),
            _ => (self.random.of(&[4, 7, -1, 0x100, 0x102, 0x201, 256 + 3]), self.local()),
        }
    }

    fn token(&mut self) -> i64 {
        if self.random.below(20) > 0 { SELF } else { self.random.of(&[0, -1, 0x10000, 0x10001, 0x20000, 5]) }
    }

    fn call(&mut self) -> Call {
        let operation = match self.random.below(20) {
            0..7 => DMA,
            7..9 => STRIDED,
            9 => COMPARE,
            10 | 11 => CHECKSUM,
            12 => START,
            13 | 14 => APPEND,
            15 => FINISH,
            16 => STORE,
            17 => self.random.of(&[FIND, FIND, LOAD, KEY]),
            _ => self.random.below(OPERATIONS.len() as u64) as usize,
        };
        let token = self.token();
        let wait = self.random.below(1000) as i64;
        let arguments = match operation {
            DMA => {
                let ((from, at), (to, into)) = (self.end(5), self.end(4));
                vec![token, from, at, to, into, self.length(), wait]
            }
            STRIDED => {
                let ((from, at), (to, into)) = (self.end(5), self.end(4));
                let stride = |random: &mut Random| random.of(&[0, 1, 64, 512, 4096, 8192, -64, -8192, i64::MAX]);
                let strides = (stride(&mut self.random), stride(&mut self.random));
                let segments = self.random.of(&[0, 1, 2, 3, 7]);
                // Strides of local memory stay inside, mostly: see `local`.
                let bound = |port: i64, stride: i64| if port & !0x100 == 0 { stride.clamp(0, 512) } else { stride };
                let bytes = self.random.of(&[1, 8, 64, 512]);
                vec![token, from, at, bound(from, strides.0), to, into, bound(to, strides.1), bytes, segments, wait]
            }
            COMPARE => vec![token, self.nv_address(), self.random.below(200) as i64, self.length(), wait],
            CHECKSUM => {
                let (port, address) = self.end(8);
                vec![token, port, address, self.length(), 0, wait]
            }
            FIND => {
                let (port, address) = self.end(8);
                let set = self.random.of(&[1, 1, 1, 2, 16, 0, -1]);
                let (state, most) = (self.random.of(&[0, 0, 1, 2]), self.random.of(&[0, 1, 100, 4097]));
                vec![token, set, port, address, self.length(), state, self.local(), most, wait]
            }
            // What the script's own words are as literals: the length of one is often that of another.
            KEY => {
                let (port, address) = self.end(8);
                let (key_bytes, stride) = (self.random.of(&[1, 8, 8, 0, 257]), self.random.of(&[8, 8, 64, 257]));
                let (count, order) = (self.random.of(&[0, 1, 3, 100]), self.random.of(&[0, 1, 2]));
                vec![token, port, address, key_bytes, stride, count, order, self.local(), wait]
            }
            LOAD => {
                let literals = self.local();
                let literals = self.random.of(&[0x1000, 0x1008, literals]);
                vec![literals, self.random.of(&[5, 8, 12, 40]), self.random.of(&[0, 1, 0x0a02])]
            }
            START => {
                let destination = self.random.of(&[-2, -1, 0, 1, 1, 2, 99]);
                let app = self.random.of(&[-1, 0, 1, 2, 3, 4, 65536, 65537]);
                let handler = self.random.of(&[0, 1, 2, 3, 4, 255, 256, -1]);
                // The own app's handler 1 would take random bytes for a script.
                let handler = if handler == 1 && (app == -1 || app as u16 == self.program) { 2 } else { handler };
                let (body, reply) = (self.random.of(&[0, 8, 16, 64, 65536, 65537, -1]), self.local());
                vec![token, destination, app, handler, body, reply, self.random.of(&[0, 8, 64, 4096])]
            }
            APPEND => {
                let handle = if self.random.below(10) > 0 { LAST } else { self.random.of(&[0, -1, 0x10000, 0x10001]) };
                let (port, address) = self.end(6);
                vec![handle, port, address, self.random.of(&[0, 8, 16, 64])]
            }
            FINISH => vec![if self.random.below(10) > 0 { LAST } else { 0x10000 }, wait],
            STORE => {
                // Something like the arguments of the app that serves the namespace.
                let value = if self.random.below(2) == 0 { self.nv_address() } else { 16 | 1 << 32 };
                vec![self.local() & !7, value]
            }
            _ => {
                let (_, parameters, _) = OPERATIONS[operation];
                let name = OPERATIONS[operation].0;
                parameters
                    .chars()
                    .enumerate()
                    .map(|(at, kind)| match (name, at, kind) {
                        ("request_info" | "receive_bytes" | "respond", 0, _) if name != "respond" => token,
                        ("respond", 0, _) => {
                            if self.random.below(8) == 0 {
                                SELF
                            } else {
                                self.random.of(&[0, 0x10000, -1])
                            }
                        }
                        ("request_info" | "namespace" | "receive_bytes", 1, _) | ("app_number", 0, _) => self.local(),
                        ("receive_bytes", 2, _) => self.random.below(3000) as i64,
                        ("app_number", 1, _) => self.random.below(40) as i64,
                        ("region", 1, _) => self.random.of(&[0, 1, 65536, 1 << 20, 1 << 40, -1]),
                        _ => self.random.of(&[0, 1, 2, 3, -1, 77]),
                    })
                    .collect()
            }
        };
        // No script holds what it would be wrong to find.
        let clean =
            |value: i64| i64::from_le_bytes(value.to_le_bytes().map(|byte| if byte == SECRET { 0 } else { byte }));
        Call { operation, arguments: arguments.into_iter().map(clean).collect() }
    }

    /// The NV ranges that a call would touch: (first byte, bytes, rights).
    fn ranges(call: &Call) -> Vec<(u64, u64, u32)> {
        let argument = |at: usize| call.arguments[at];
        let word = |at: usize| u64::from(argument(at) as u32);
        let is_nv = |port: i64| port as u32 & !0x100 == 1;
        let mut ranges = Vec::new();
        match call.operation {
            DMA => {
                for (port, address, rights) in [(1, 2, READ), (3, 4, WRITE)] {
                    if is_nv(argument(port)) {
                        ranges.push((argument(address) as u64, word(5), rights));
                    }
                }
            }
            STRIDED => {
                for (port, address, stride, rights) in [(1, 2, 3, READ), (4, 5, 6, WRITE)] {
                    for segment in 0..argument(8) {
                        if is_nv(argument(port)) {
                            let moved = argument(stride).wrapping_mul(segment);
                            ranges.push((argument(address).wrapping_add(moved) as u64, word(7), rights));
                        }
                    }
                }
            }
            COMPARE => ranges.push((argument(1) as u64, word(3), READ)),
            KEY if is_nv(argument(1)) && argument(5) > 0 => {
                ranges.push((argument(2) as u64, word(4) * (word(5) - 1) + word(3), READ));
            }
            FIND if is_nv(argument(2)) => ranges.push((argument(3) as u64, word(4), READ)),
            CHECKSUM if is_nv(argument(1)) => ranges.push((argument(2) as u64, word(3), READ)),
            APPEND if argument(1) == 1 => ranges.push((argument(2) as u64, word(3), READ)),
            _ => {}
        }
        ranges
    }

    /// The app's own regions come and go: their bytes are the user's.
    fn own_regions(&self) -> Vec<(u64, u64)> {
        let regions = self.users.rig.device.statistics().regions;
        let own = regions.iter().filter(|region| region.app == "u6666-program");
        own.map(|region| (region.base, region.end())).collect()
    }

    fn run_one(&mut self) -> Result<(), String> {
        let count = 1 + self.random.below(CALLS_MAX as u64) as usize;
        let mut calls: Vec<Call> = (0..count).map(|_| self.call()).collect();
        let mut script = (count as u64).to_le_bytes().to_vec();
        for (number, call) in calls.iter_mut().enumerate() {
            if let Some((_, wait)) = MOVES.iter().find(|(operation, _)| *operation == call.operation) {
                call.arguments[*wait] = RESULTS + 8 * number as i64;
            }
            let begin = script.len();
            script.extend((call.operation as u64).to_le_bytes());
            call.arguments.iter().for_each(|argument| script.extend(argument.to_le_bytes()));
            script.resize(begin + RECORD_BYTES, 0);
        }
        let spu = self.random.below(2) as u16;
        self.tag += 1;
        let mut own = self.own_regions();
        let done = self.users.rig.call_on(self.mallory.hre, (self.program, 1, spu), &[], &script, 4096);
        while self.users.rig.device.upcall(self.mallory.hre).is_some_and(|it| !holds_secret(&it.body)) {}
        let reply = &done.buffer[..done.reply_bytes as usize];
        if holds_secret(reply) {
            return Err(format!("program {}: others' bytes in a reply", self.tag));
        }
        match done.outcome {
            RpcOutcome::Answered { .. } => {}
            RpcOutcome::AppEnded => {
                let again = self.users.install_for(self.mallory.hre, &interpreter());
                self.program =
                    again.map_err(|outcome| format!("the program cannot be installed again: {outcome:?}"))?;
                return Ok(());
            }
            other => return Err(format!("program {}: {other:?}", self.tag)),
        }
        if done.result != ENDED || reply.len() < 8 * count {
            return Ok(());
        }
        own.extend(self.own_regions());
        let is_own = |address: u64, bytes: u64| {
            own.iter().any(|(start, end)| *start <= address && address.saturating_add(bytes) <= *end)
        };
        for (call, result) in calls.iter().zip(reply.chunks_exact(8)) {
            let result = i64::from_le_bytes(result.try_into().expect("8 bytes"));
            for (address, bytes, rights) in Self::ranges(call) {
                let allowed = bytes == 0 || self.permitted(spu, address, bytes, rights);
                self.reached.0 += u64::from(allowed && bytes > 0 && result >= 0);
                self.reached.1 += u64::from(!allowed && result < 0);
                // "Not now": nothing was moved.
                let is_later = matches!(call.operation, DMA | STRIDED) && result == NOT_NOW;
                if result >= 0 && !is_later && !allowed && !is_own(address, bytes) {
                    let name = OPERATIONS[call.operation].0;
                    return Err(format!("program {}: {name}{:?} on SPU {spu} gave {result}", self.tag, call.arguments));
                }
            }
        }
        Ok(())
    }

    /// What must be as it was: others' bytes, the neighbour, and what the user's memory may hold.
    fn check(&mut self) -> Result<(), String> {
        let (kernel, mover) = (self.users.rig.hre, self.users.mover);
        for spu in 0..2u16 {
            let bytes = self.shadow[spu as usize].len() as u32;
            let arguments = self.users.arguments(0, bytes, NV);
            let done = self.users.rig.call_on(kernel, (mover, 1, spu), &arguments, &[], bytes);
            if done.outcome != (RpcOutcome::Answered { status: 0 }) || done.result != 0 {
                return Err(format!("the neighbour answers {:?}", done.outcome));
            }
            for (at, (now, was)) in done.buffer.iter().zip(&self.shadow[spu as usize]).enumerate() {
                let mine = |(of, rights, start, count): &(u16, u32, u64, u64)| {
                    *of == spu && rights & WRITE != 0 && (*start..start + count).contains(&(at as u64))
                };
                if now != was && !GRANTED.iter().any(mine) {
                    return Err(format!("byte {at} of SPU {spu} has changed from {was:02x} to {now:02x}"));
                }
            }
            let dump = self.users.rig.call_on(self.mallory.hre, (self.program, 3, spu), &[], &[], LOCAL_END as u32);
            if holds_secret(&dump.buffer[..dump.reply_bytes as usize]) {
                return Err(format!("others' bytes in the user's memory on SPU {spu}"));
            }
        }
        Ok(())
    }

    fn run(&mut self, programs: u64) -> Result<(), String> {
        for number in 1..=programs {
            self.run_one()?;
            if number % 250 == 0 {
                self.check()?;
            }
        }
        // The rare paths are reached.
        if programs >= 10_000 && (self.reached.0 < programs / 10 || self.reached.1 < programs / 10) {
            return Err(format!("only {:?} calls of {programs} programs did what they are for", self.reached));
        }
        self.check()
    }
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.windows(LEAK_BYTES).any(|window| window.iter().all(|byte| *byte == SECRET))
}

#[test]
fn no_program_reaches_what_is_not_its_users() {
    // On flash a program takes ten times as long.
    let programs = if is_on_flash() { PROGRAMS / 10 } else { PROGRAMS };
    let programs = std::env::var("WILLOW_PROGRAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(programs);
    // Two worlds, one a thread.
    let halves = [11, 12].map(|seed| std::thread::spawn(move || World::new(seed).run(programs / 2)));
    for half in halves {
        assert_eq!(half.join().expect("no panic"), Ok(()));
    }
}

#[test]
fn planted_weaknesses_are_caught() {
    // A permission too many, as a wrong check would give it.
    for (what, spu, rights, start, bytes) in [
        ("a byte too much at the end", 0, READ, 8192 + 4096, 1),
        ("reading others' bytes", 0, READ, 12288, 4096),
        ("writing others' bytes", 0, WRITE, 12288, 4096),
        ("writing what is for reading", 0, WRITE, 16384, 4096),
        ("all of an SPU", 1, READ | WRITE, 0, 400_000),
    ] {
        let mut world = World::new(7);
        let body = Users::extents(world.mallory.process, &[(spu, rights, world.users.base + start, bytes)]);
        assert_eq!(world.users.control(control::GRANT, &body), (0, 1));
        assert!(world.run(20_000).is_err(), "{what} was not caught");
    }
}
