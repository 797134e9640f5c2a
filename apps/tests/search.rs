//! The app `search` in a device: what it finds is what the same code finds on the host, what it is told to prepare may be anything, and none of
//! its loops is unbounded.

#[path = "support/world.rs"]
mod world;

use base_io_spu::wire::RangeArguments;
use search_host::join::{self, Joiner, Line, Segment, Verdict};
use search_host::wire::{self, Prepare, REPLY_BYTES_MAX, REPLY_HEAD_BYTES, Scan, handler};
use search_host::{Pattern, PatternOptions, Syntax};
use willow_device::{BuiltInApp, CommandSet, DeviceConfig, HostCompletion, RpcOutcome};
use willow_on_flash::{Medium, on_each_medium};
use world::World;

/// A fifth of what the app has.
const BUDGET: u64 = 10_000_000;
const BYTES: usize = 1 << 20;

/// A device with the app, and a namespace of Base-IO.
struct Searched {
    world: World,
    base: u64,
}

impl Searched {
    fn new(is_native: bool) -> Searched {
        Searched::on(Medium::NvMemory, is_native)
    }

    fn on(medium: Medium, is_native: bool) -> Searched {
        let config = DeviceConfig {
            spus: 1,
            namespace_bytes: 64 << 20,
            kv_namespace_bytes: 0,
            instruction_budget: BUDGET,
            ..DeviceConfig::default()
        };
        let (store, mut apps) = medium.banks(1, 1 << 30);
        let search = willow_apps::BUNDLED_APPS.iter().find(|app| app.name == search_host::APP_NAME).expect("the app");
        let search = if is_native { BuiltInApp::Native((search.native)()) } else { BuiltInApp::Wasm(search.wasm) };
        apps.extend([BuiltInApp::Wasm(willow_apps::BASE_IO_WASM), search]);
        let world = World::open(config, store, apps);
        let namespaces = world.device.namespaces();
        let base = namespaces.iter().find(|it| it.csi == CommandSet::Nvm).expect("the namespace").base;
        Searched { world, base }
    }

    fn call(&mut self, (app, number): (&str, u8), arguments: &[u8], payload: &[u8], reply: usize) -> HostCompletion {
        self.world.call((app, number, 0), arguments, payload, reply)
    }

    fn write(&mut self, data: &[u8]) {
        let range = RangeArguments {
            nv_address: self.base,
            bytes: data.len() as u32,
            buffer_offset: 0,
            first_bytes: 8192,
            stripe_bytes: 8192,
            stride: 8192,
            flags: 0,
        };
        let done = self.call(("base-io", base_io_spu::wire::handler::WRITE), &range.encode(), data, 0);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    }

    /// Status and set.
    fn prepare(&mut self, body: &[u8]) -> (u32, u32) {
        let done = self.call(("search", handler::PREPARE), &[], body, 0);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (status, done.result)
    }

    /// Status and reply.
    fn scan(&mut self, set: u32, at: u64, bytes: u32, stripe: u32) -> (u32, Vec<u8>) {
        let first_bytes = if stripe == 0 { 0 } else { stripe - at as u32 % stripe };
        let scan = Scan { set, bytes, nv_address: self.base + at, stripe_bytes: stripe, first_bytes };
        let done = self.call(("search", handler::SCAN), &scan.encode(), &[], REPLY_BYTES_MAX);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (status, done.buffer)
    }

    /// Scans all: where lines begin that are selected (where they are wanted), and how many there are.
    fn scan_all(&mut self, set: u32, data: &[u8], pattern: &Pattern, options: u32) -> (Vec<u64>, u64) {
        let (mut at, mut lines) = (0, Vec::new());
        let mut joiner = Joiner::new(options & wire::OPTION_NUL_ENDS != 0);
        let text_wanted = options & wire::OPTION_TEXT != 0;
        while at < data.len() as u64 {
            let (status, reply) = self.scan(set, at, (data.len() as u64 - at) as u32, 8192);
            assert_eq!(status, 0);
            let (scanned, mut rest) = join::open(&reply).expect("a reply");
            assert!(scanned > 0, "it goes on");
            at += u64::from(scanned);
            while !rest.is_empty() {
                let segment = Segment::take(&mut rest).expect("a segment");
                joiner.segment(&segment, text_wanted, &mut |line| lines.push(line));
            }
            assert_eq!(joiner.position(), at, "segments are what was scanned");
        }
        joiner.finish(&mut |line| lines.push(line));
        if options & wire::OPTION_FIND_NUL != 0 {
            assert_eq!(joiner.nul(), data.iter().position(|byte| *byte == 0).map(|at| at as u64));
        }
        let invert = options & wire::OPTION_INVERT != 0;
        let is_selected = |line: &Line| {
            let text = &data[line.offset as usize..][..line.bytes as usize];
            assert!(line.text.as_ref().is_none_or(|told| told == text), "what is told of a line is what is there");
            line.verdict == Verdict::Selected || pattern.judge().matches(text) != invert
        };
        let found: Vec<u64> = lines.iter().filter(|line| is_selected(line)).map(|line| line.offset).collect();
        let count = found.len() as u64 + joiner.selected();
        (found, count)
    }
}

/// The same, line by line.
fn by_lines(data: &[u8], pattern: &Pattern, options: u32) -> Vec<u64> {
    let is_end = |byte: &u8| *byte == b'\n' || (*byte == 0 && options & wire::OPTION_NUL_ENDS != 0);
    let mut at = 0;
    let mut found = Vec::new();
    let lines = data.split_inclusive(is_end);
    for line in lines {
        let text = line.strip_suffix(&[line[line.len() - 1]]).filter(|_| is_end(&line[line.len() - 1])).unwrap_or(line);
        if pattern.judge().matches(text) != (options & wire::OPTION_INVERT != 0) {
            found.push(at);
        }
        at += line.len() as u64;
    }
    found
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn text(bytes: usize) -> Vec<u8> {
    let words = ["willow", "storage", "Zürich", "e", "12345", "the", "foo", "bar", "a_b", "\0", "\n", "\n", "\n"];
    let mut random = Random(7);
    let mut text = Vec::new();
    while text.len() < bytes {
        text.extend_from_slice(words[random.below(words.len() as u64) as usize].as_bytes());
        text.push(b' ');
    }
    text.truncate(bytes);
    // Some that are rare, across borders of stripes too, and two that overlap there.
    for number in 0..bytes / 8192 {
        let at = match number % 4 {
            0 => number * 8192 + random.below(8000) as usize,
            1 => number * 8192 - random.below(8) as usize,
            _ => continue,
        };
        let needle = [&b"needle"[..], b"NEEdle", b"nadel", b"needneedle"][random.below(4) as usize];
        if let Some(place) = text.get_mut(at..at + needle.len()) {
            place.copy_from_slice(needle);
        }
    }
    text
}

fn pattern(text: &str, syntax: Syntax) -> Pattern {
    let (ignore_case, text) = (text.starts_with('~'), text.trim_start_matches('~'));
    Pattern::new(&[text.as_bytes().to_vec()], PatternOptions { syntax, ignore_case, ..PatternOptions::default() })
        .expect("a pattern")
}

/// Each as `grep -E` has it, the first as `grep -F`; ~: in either case.
const PATTERNS: [&str; 14] = [
    "willow",
    "st.*e",
    "(foo|bar) [0-9]+",
    "",
    "^$",
    "\\<a_b\\>",
    "Z.rich",
    "\\w{2}x|e $",
    "needle",
    "~needle",
    "needle|nadel",
    "need.e",
    "~nadel|needle|edle",
    "nowhere",
];

on_each_medium!(the_drive_finds_what_the_host_finds);

fn the_drive_finds_what_the_host_finds(medium: Medium) {
    for is_native in [false, true] {
        let mut world = Searched::on(medium, is_native);
        let mut few_zeroes = text(BYTES);
        few_zeroes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'0');
        few_zeroes[700_000] = 0;
        let texts = [few_zeroes, text(BYTES)];
        for (number, pattern_text) in PATTERNS.into_iter().enumerate() {
            let text = &texts[number % 2];
            world.write(text);
            let text_wanted = wire::OPTION_TEXT | wire::OPTION_NUMBER;
            for options in [
                0,
                text_wanted,
                wire::OPTION_NUL_ENDS | wire::OPTION_INVERT,
                text_wanted | wire::OPTION_NUL_ENDS,
                wire::OPTION_TEXT | wire::OPTION_NUL_ENDS | wire::OPTION_FIND_NUL,
            ] {
                let pattern = pattern(pattern_text, if number == 0 { Syntax::Fixed } else { Syntax::Extended });
                let (status, set) = world.prepare(&pattern.for_drive(options).expect("it fits"));
                assert_eq!(status, 0);
                let (found, count) = world.scan_all(set, text, &pattern, options);
                let wanted = by_lines(text, &pattern, options);
                assert_eq!(count, wanted.len() as u64, "{pattern_text} {options}");
                assert!(options & wire::OPTION_TEXT == 0 || found == wanted, "{pattern_text} {options}");
            }
        }
    }
}

#[test]
fn a_scan_stays_far_from_the_budget_of_a_run() {
    let contents: [Vec<u8>; 5] =
        [vec![b'\n'; BYTES], vec![0; BYTES], b"a\n".repeat(BYTES / 2), b"\n\0".repeat(BYTES / 2), text(BYTES)];
    for is_native in [false, true] {
        let mut world = Searched::new(is_native);
        for content in &contents {
            world.write(content);
            for pattern_text in PATTERNS {
                for options in [
                    0,
                    wire::OPTION_NUL_ENDS,
                    wire::OPTION_INVERT | wire::OPTION_NUL_ENDS,
                    wire::OPTION_NUMBER | wire::OPTION_TEXT,
                ] {
                    let pattern = pattern(pattern_text, Syntax::Extended);
                    let body = pattern.for_drive(options).expect("it fits");
                    let (status, set) = world.prepare(&body);
                    assert_eq!(status, 0);
                    world.scan_all(set, &content[..BYTES / 4], &pattern, options);
                }
            }
        }
        // The largest that can be prepared is checked within it, too.
        let many: Vec<String> = (0..1700).map(|word| format!("w{:05}", word * 7919 % 99_991)).collect();
        let large = pattern(&many.join("|"), Syntax::Extended).for_drive(0).expect("it fits");
        assert!(large.len() > wire::SET_BYTES_MAX / 2, "{} bytes", large.len());
        assert_eq!(world.prepare(&large).0, 0);
    }
}

#[test]
fn whatever_is_prepared_the_app_goes_on() {
    for is_native in [false, true] {
        let mut world = Searched::new(is_native);
        world.write(&text(64 << 10));
        let mut random = Random(11);
        let mut answers = std::collections::BTreeMap::new();
        for round in 0..3000 {
            let pattern = pattern(PATTERNS[round % PATTERNS.len()], Syntax::Extended);
            let mut body = pattern.for_drive(random.below(128) as u32).expect("it fits");
            for _ in 0..1 + random.below(4) {
                let length = body.len() as u64;
                // Mostly in the heads: of the request, and of the automaton.
                let at = match random.below(3) {
                    0 => random.below(length.min(160)),
                    _ => random.below(length),
                } as usize;
                match random.below(6) {
                    0 => body.truncate(at),
                    1 => body.extend(vec![random.below(256) as u8; random.below(300) as usize]),
                    2 => body[at] = random.below(256) as u8,
                    3 => body[at] ^= 1 << random.below(8),
                    4 => body[at] = 255,
                    _ => body[at] = 0,
                }
                if body.is_empty() {
                    break;
                }
            }
            let (status, set) = world.prepare(&body);
            *answers.entry(status).or_insert(0) += 1;
            if status == 0 {
                let (status, reply) =
                    world.scan(set, random.below(1000), 30_000, if random.below(2) == 0 { 0 } else { 512 });
                assert_eq!(status, 0);
                let (_, mut rest) = join::open(&reply).expect("a reply");
                while !rest.is_empty() {
                    Segment::take(&mut rest).expect("a segment");
                }
            }
        }
        assert!(answers[&0] > 200 && answers[&wire::STATUS_MALFORMED] > 200, "{answers:?}");
        // And finds what it found before.
        let willow = pattern("willow", Syntax::Fixed);
        let (status, set) = world.prepare(&willow.for_drive(0).expect("it fits"));
        assert_eq!(status, 0);
        assert!(world.scan_all(set, &text(64 << 10), &willow, 0).1 > 100);
        // Arguments that make no sense.
        for scan in [
            Scan { set, bytes: wire::SCAN_BYTES_MAX + 1, nv_address: world.base, stripe_bytes: 0, first_bytes: 0 },
            Scan { set, bytes: 1000, nv_address: u64::MAX - 10, stripe_bytes: 0, first_bytes: 0 },
            Scan { set, bytes: 1000, nv_address: world.base, stripe_bytes: 1, first_bytes: u32::MAX },
            Scan { set: set + 1, bytes: 1000, nv_address: world.base, stripe_bytes: 1, first_bytes: 0 },
        ] {
            let done = world.call(("search", handler::SCAN), &scan.encode(), &[], REPLY_BYTES_MAX);
            assert!(
                matches!(done.outcome, RpcOutcome::Answered { status } if status != 0),
                "{scan:?} {:?}",
                done.outcome
            );
        }
        let scan = Scan { set, bytes: 1000, nv_address: world.base, stripe_bytes: 1, first_bytes: 0 };
        let done = world.call(("search", handler::SCAN), &scan.encode(), &[], REPLY_BYTES_MAX);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        assert!(done.buffer.len() >= REPLY_HEAD_BYTES);
        let short = world.call(("search", handler::SCAN), &scan.encode(), &[], 100);
        assert_eq!(short.outcome, RpcOutcome::Answered { status: wire::STATUS_MALFORMED });
    }
}

#[test]
fn sets_are_bounded_and_nobody_loses_his_to_who_has_more() {
    let mut world = Searched::new(false);
    world.write(&text(64 << 10));
    let small = pattern("willow", Syntax::Fixed).for_drive(0).expect("it fits");
    let mut user = |number: u32| {
        let process = world.world.device.open_process(number, 1).expect("a process");
        world.world.device.permit(process, 0, (world.base, 64 << 10), false);
        world.world.device.open_hre(Some(process)).expect("an endpoint")
    };
    let (mine, hog) = (user(1001), user(1002));
    world.world.hre = mine;
    let (status, set) = world.prepare(&small);
    assert_eq!(status, 0);
    world.world.hre = hog;
    let mut numbers = Vec::new();
    for _ in 0..500 {
        let (status, number) = world.prepare(&small);
        assert_eq!(status, 0);
        numbers.push(number);
    }
    // Who has most has lost those that it used longest ago; what is another's it cannot use.
    assert_eq!(world.scan(numbers[0], 0, 1000, 0).0, wire::STATUS_NO_SET);
    assert_eq!(world.scan(numbers[499], 0, 1000, 0).0, 0);
    assert_eq!(world.scan(set, 0, 1000, 0).0, wire::STATUS_NO_SET);
    let done = world.call(("search", handler::RELEASE), &[], &set.to_le_bytes(), 0);
    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    world.world.hre = mine;
    assert_eq!(world.scan(set, 0, 1000, 0).0, 0);
    let done = world.call(("search", handler::RELEASE), &[], &set.to_le_bytes(), 0);
    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    assert_eq!(world.scan(set, 0, 1000, 0).0, wire::STATUS_NO_SET);
    // Too large for any SPU.
    let head = Prepare { options: 0, literals_bytes: 0, automaton_bytes: wire::SET_BYTES_MAX as u32 + 4 };
    let body = [&head.encode()[..], &vec![0; wire::SET_BYTES_MAX + 4]].concat();
    assert_eq!(world.prepare(&body), (wire::STATUS_NO_MEMORY, wire::SET_BYTES_MAX as u32));
}
