//! Against GNU grep: the same output and status for generated patterns and corpora, cut into segments as a drive's stripes cut them.

use proptest::prelude::*;
use search_host::join::{self, Joiner, Segment};
use search_host::segment::{self, End, Output};
use search_host::wire::{OPTION_IGNORE_CASE, Prepare, REPLY_BYTES_MIN, REPLY_HEAD_BYTES};
use search_host::{Grep, GrepOptions, Pattern, PatternOptions, Syntax};

use search_spu::sets::Kept;
use std::process::{Command, Stdio};
use willow_sdk::Match;

/// What came of it: output, exit status.
#[derive(Debug, PartialEq, Eq)]
struct Outcome(Vec<u8>, i32);

#[derive(Debug)]
struct Run {
    pattern: Vec<u8>,
    pattern_options: PatternOptions,
    options: GrepOptions,
    /// Where the file is cut.
    cuts: Vec<usize>,
    reply_bytes: usize,
}

fn scan(scan: impl Fn(&[u8], &mut Output<'_>) -> End, run: &Run, file: &[u8]) -> Outcome {
    let pattern = Pattern::new(std::slice::from_ref(&run.pattern), run.pattern_options).expect("checked before");
    let mut output = Vec::new();
    let mut grep = Grep::new(&pattern, run.options, b"FILE", &mut output);
    let mut joiner = Joiner::new(!run.options.text);
    let mut at = 0;
    let mut cuts = run.cuts.iter().copied().chain([file.len()]);
    while at < file.len() && !grep.is_done() {
        let Some(cut) = cuts.by_ref().find(|cut| *cut > at) else { break };
        let cut = cut.min(file.len());
        while at < cut {
            let mut reply = vec![0; run.reply_bytes];
            let mut out = Output::new(&mut reply[REPLY_HEAD_BYTES..]);
            let End::Scanned(bytes) = scan(&file[at..cut], &mut out) else { panic!("no room at all") };
            assert!(bytes > 0 && bytes <= cut - at, "it goes on");
            at += bytes;
            let used = out.used() + REPLY_HEAD_BYTES;
            reply[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
            reply[4..8].copy_from_slice(&(used as u32).to_le_bytes());
            let (_, mut rest) = join::open(&reply).expect("a reply");
            let mut lines = Vec::new();
            while !rest.is_empty() {
                let segment = Segment::take(&mut rest).expect("a segment");
                joiner.segment(&segment, run.options.text_wanted(), &mut |line| lines.push(line));
            }
            deliver(&mut grep, &joiner, lines, file);
        }
    }
    let mut lines = Vec::new();
    joiner.finish(&mut |line| lines.push(line));
    deliver(&mut grep, &joiner, lines, file);
    let found = grep.finish(&joiner).expect("written");
    Outcome(output, i32::from(found.lines == 0))
}

fn deliver(grep: &mut Grep<'_>, joiner: &Joiner, lines: Vec<join::Line>, file: &[u8]) {
    for mut line in lines {
        let text = &file[line.offset as usize..(line.offset + line.bytes) as usize];
        match &line.text {
            Some(told) => assert_eq!(told, text, "the text of a line is the file's"),
            None => line.text = Some(text.to_vec()),
        }
        grep.line(line).expect("written");
    }
    grep.advance(joiner, false).expect("written");
}

fn gnu(run: &Run, file: &[u8]) -> (Outcome, String) {
    let path =
        std::env::temp_dir().join(format!("willow-gnu-grep-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&path, file).expect("a file");
    let mut command = Command::new("grep");
    command.env("LC_ALL", if run.pattern_options.unicode { "C.UTF-8" } else { "C" });
    let PatternOptions { syntax, ignore_case, word, line, .. } = run.pattern_options;
    command.arg(match syntax {
        Syntax::Fixed => "-F",
        Syntax::Basic => "-G",
        Syntax::Extended => "-E",
    });
    let GrepOptions { invert, count, number, only_matching, list, list_without, quiet, text, lines_max, .. } =
        run.options;
    for (wanted, flag) in [
        (ignore_case, "-i"),
        (word, "-w"),
        (line, "-x"),
        (invert, "-v"),
        (count, "-c"),
        (number, "-n"),
        (only_matching, "-o"),
        (list, "-l"),
        (list_without, "-L"),
        (quiet, "-q"),
        (text, "-a"),
    ] {
        if wanted {
            command.arg(flag);
        }
    }
    if let Some(most) = lines_max {
        command.arg(format!("-m{most}"));
    }
    use std::os::unix::ffi::OsStringExt;
    command.arg("-e").arg(std::ffi::OsString::from_vec(run.pattern.clone()));
    // By its name, since grep reads files otherwise than pipes.
    command.arg(&path).stdin(Stdio::null());
    let output = command.output().expect("GNU grep");
    let _ = std::fs::remove_file(&path);
    let name = [path.into_os_string().into_vec(), b"\n".to_vec()].concat();
    let stdout = if output.stdout == name { b"FILE\n".to_vec() } else { output.stdout };
    (Outcome(stdout, output.status.code().unwrap_or(99)), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn compare(run: &Run, file: &[u8]) {
    let (wanted, message) = gnu(run, file);
    if message.contains("at start of expression") {
        // It warns, and its two engines do not agree on what that means.
        return;
    }
    let pattern = Pattern::new(std::slice::from_ref(&run.pattern), run.pattern_options);
    let what = format!(
        "{:?} {:?} {:?} reply {} cuts {:?} in {:?}\n{message}",
        String::from_utf8_lossy(&run.pattern),
        run.pattern_options,
        run.options,
        run.reply_bytes,
        run.cuts,
        String::from_utf8_lossy(file)
    );
    if run.options.selects_nothing(std::slice::from_ref(&run.pattern), &run.pattern_options) {
        return assert_eq!(Outcome(Vec::new(), 1), wanted, "{what}");
    }
    let pattern = match pattern {
        Ok(pattern) => pattern,
        Err(error) => return assert_eq!(wanted.1, 2, "{error}: {what}"),
    };
    assert_ne!(wanted.1, 2, "{what}");
    let options = run.options.for_scan();
    let set = pattern.for_host(options);
    let by_host = |segment: &[u8], out: &mut Output<'_>| segment::scan(&set, segment, out);
    assert_eq!(scan(by_host, run, file), wanted, "on the host: {what}");
    let body = pattern.for_drive(options).expect("it fits the drive");
    let (head, body) = body.split_first_chunk().expect("a head");
    let head = Prepare::decode(head).expect("a head");
    let kept = Kept::of_body(head, body).expect("a set");
    let literals = matches_of(body, &head);
    let by_drive = |segment: &[u8], out: &mut Output<'_>| {
        let matches = if kept.needs_accelerator() { literals(segment) } else { Vec::new() };
        segment::scan(&kept.set(&matches), segment, out)
    };
    assert_eq!(scan(by_drive, run, file), wanted, "in the drive: {what}");
}

/// What the accelerator finds: matches that begin first, and of these the longest.
fn matches_of(body: &[u8], head: &Prepare) -> impl Fn(&[u8]) -> Vec<Match> {
    let fold =
        |bytes: &[u8]| if head.options & OPTION_IGNORE_CASE != 0 { bytes.to_ascii_lowercase() } else { bytes.to_vec() };
    let mut literals = Vec::new();
    let mut rest = &body[..head.literals_bytes as usize];
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (literal, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        literals.push(fold(literal));
        rest = behind;
    }
    move |segment| {
        let segment = fold(segment);
        let mut matches = Vec::new();
        let mut at = 0;
        while at < segment.len() {
            let here = literals.iter().enumerate().filter(|(_, literal)| segment[at..].starts_with(literal));
            match here.max_by_key(|(_, literal)| literal.len()) {
                Some((number, literal)) => {
                    let end = at + literal.len();
                    matches.push(Match { begin: at as u32, end: end as u32, literal: number as u32 });
                    at = end;
                }
                None => at += 1,
            }
        }
        matches
    }
}

fn syntax() -> impl Strategy<Value = Syntax> {
    prop_oneof![Just(Syntax::Fixed), Just(Syntax::Basic), Just(Syntax::Extended)]
}

fn options() -> impl Strategy<Value = GrepOptions> {
    (prop::bits::u16::ANY, prop::option::weighted(0.1, 0u64..4)).prop_map(|(bits, lines_max)| {
        let bit = |at: u32| bits >> at & 1 == 1;
        // One of the ways to print, most often lines.
        let way = bits >> 8 & 15;
        GrepOptions {
            invert: bit(0) && bit(1),
            number: bit(2),
            only_matching: bit(3) && bit(4),
            text: bit(5),
            count: way == 1 || way == 2,
            list: way == 3,
            list_without: way == 4,
            quiet: way == 5,
            with_name: false,
            unicode: true,
            lines_max,
        }
    })
}

/// Pieces of patterns: what is special in one syntax or another, and letters that the corpora have.
fn pattern() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "ab", "foo", "é", "x", " ", "_", "A", "1", "ß"]),
        3 => prop::sample::select(vec![".", "*", "[ab]", "[^a]", "[a-f]", "[[:alpha:]]", "[[:space:]_]", "[]x]", "[^]b]", "[éü]", "\\w", "\\W", "\\s", "\\S", "[[:digit:]]", "[[.a.]b]", "[[=b=]]", "[[:upper:]]", "[[:punct:]]"]),
        2 => prop::sample::select(vec!["^", "$", "\\<", "\\>", "\\b", "\\B", "\\.", "\\*", "\\[", "\\`", "\\'"]),
        2 => prop::sample::select(vec!["\\(", "\\)", "(", ")", "|", "\\|", "+", "\\+", "?", "\\?", "{1}", "{2,}", "{,1}", "{1,2}", "\\{1,2\\}", "\\{2\\}", "\\{0,\\}", "{", "}", "\\{1", "{x", "\n"]),
    ];
    prop::collection::vec(piece, 0..7).prop_map(|pieces| pieces.concat().into_bytes())
}

fn corpus() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => prop::sample::select(vec!["a", "b", "ab", "foo", "é", "x", " ", "_", "A", "1", "aab", "foobar", ".", "*", "(a)", "a|b", "{1}", "Ü", "ß", "É", "-", "FOO", "\t"]).prop_map(|text| text.as_bytes().to_vec()),
        5 => Just(b"\n".to_vec()),
        1 => prop::sample::select(vec![&b"\xff"[..], b"\xc3", b"\x80a", b"\r\n", b"\0"]).prop_map(<[u8]>::to_vec),
        1 => (1usize..3000).prop_map(|count| vec![b'a'; count]),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// What a run is drawn from: pattern, syntax, (ignore case, words, lines), options, (cuts, room for a reply), Unicode.
type Drawn = (Vec<u8>, Syntax, (bool, bool, bool), GrepOptions, (Vec<usize>, usize), bool);

fn run_of((pattern, syntax, (ignore_case, word, line), options, (cuts, reply_bytes), unicode): Drawn) -> Run {
    let mut cuts = cuts;
    cuts.sort_unstable();
    Run {
        pattern,
        pattern_options: PatternOptions { syntax, ignore_case, word, line, unicode },
        options: GrepOptions { unicode, ..options },
        cuts,
        reply_bytes,
    }
}

fn flags() -> impl Strategy<Value = (bool, bool, bool)> {
    (prop::bool::weighted(0.25), prop::bool::weighted(0.15), prop::bool::weighted(0.1))
}

fn cutting() -> impl Strategy<Value = (Vec<usize>, usize)> {
    (prop::collection::vec(0usize..400, 0..30), prop_oneof![Just(REPLY_BYTES_MIN), Just(64usize << 10)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_global_rejects: 1 << 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generated_patterns_give_what_gnu_grep_gives(
        run in (pattern(), syntax(), flags(), options(), cutting(), prop::bool::weighted(0.7)).prop_map(run_of),
        file in corpus(),
    ) {
        // The engine sees no border of a word beside a byte that is no character (docs/grep.md).
        let has_borders = [&b"\\b"[..], b"\\B", b"\\<", b"\\>"].iter().any(|border| memchr::memmem::find(&run.pattern, border).is_some());
        let has_borders = run.pattern_options.word || has_borders;
        prop_assume!(!(run.pattern_options.unicode && has_borders && std::str::from_utf8(&file).is_err()));
        // What a repetition of an assertion means, the two engines of GNU grep do not agree on.
        let is_repeated = ["^", "$", "\\<", "\\>", "\\b", "\\B", "\\`", "\\'"].iter().any(|assertion| {
            let repetitions = ["*", "+", "?", "{", "\\+", "\\?", "\\{"];
            let has = |repetition: &&str| memchr::memmem::find(&run.pattern, format!("{assertion}{repetition}").as_bytes()).is_some();
            repetitions.iter().any(has)
        });
        prop_assume!(!is_repeated);
        // GNU grep prints empty matches of an empty pattern with -Fowx, and of no other.
        // With -w and -x it puts extended expressions between parentheses, whatever they are.
        prop_assume!(!(run.pattern_options.syntax == Syntax::Extended && is_odd(&run.pattern)));
        let has_empty = run.pattern.split(|byte| *byte == b'\n').any(<[u8]>::is_empty);
        let PatternOptions { word, line, .. } = run.pattern_options;
        prop_assume!(!(run.options.only_matching && (has_empty || (word && line))));
        compare(&run, &file);
    }
}

/// Larger files: words, bytes at random, lines of any length, zero bytes somewhere.
fn large(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % bound
    };
    let words = ["willow", "storage", "drive", "Zürich", "ab", "e", "12345", "the", "foo", "bar", "a_b"];
    let bytes = [100, 9_000, 70_000, 300_000][below(4) as usize];
    let (is_random, line, zero) = (below(4) == 0, [1, 8, 60, 3000, 40_000][below(5) as usize], below(3) == 0);
    let mut file = Vec::new();
    while file.len() < bytes {
        match is_random {
            true => file.push(1 + below(255) as u8),
            false => file.extend_from_slice(words[below(words.len() as u64) as usize].as_bytes()),
        }
        file.push(if below(line) == 0 { b'\n' } else { b' ' });
        // How much GNU grep reads at a time depends on where its buffer lies, where a line goes over a block's end: the first block is whole in
        // any case.
        if zero && file.len() < 90_000 && below(bytes as u64 / 4) == 0 {
            file.push(0);
        }
    }
    if below(2) == 0 {
        file.pop();
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases() / 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn large_files_give_what_gnu_grep_gives(
        pattern in prop::sample::select(vec!["willow", "Zürich", "z[üu]rich", "e", "st.*dr", "^the ", "bar$", "[0-9]{3}", "willow.*storage.*drive", "willow\nfoo\nab", "foo\nfoo b\nZürich", "the\nWILLOW", "\\w_", "12345 12345", "zzz", "", "foo|bar"]),
        syntax in syntax(),
        ignore_case in prop::bool::weighted(0.3),
        options in options(),
        unicode in prop::bool::weighted(0.5),
        shift in 12u32..18,
        seed in any::<u64>(),
    ) {
        let file = large(seed);
        let pattern_options = PatternOptions { syntax, ignore_case, word: false, line: false, unicode };
        let cuts = (1..=file.len() >> shift).map(|at| at << shift).collect();
        let options = GrepOptions { unicode, ..options };
        compare(&Run { pattern: pattern.as_bytes().to_vec(), pattern_options, options, cuts, reply_bytes: 32 << 10 }, &file);
    }
}

#[test]
fn lines_before_the_block_with_a_zero_byte_are_printed() {
    // Lines that end with each block, so that GNU grep reads blocks of one length.
    let line = |number: usize| format!("{number:<58}line\n").into_bytes();
    for zero in [0, 98_303, 98_304, 200_000, 393_215] {
        let mut file: Vec<u8> = (0..400_000 / 63).flat_map(line).collect();
        file.truncate(393_216);
        for block_end in (98_304..=file.len()).step_by(98_304) {
            file[block_end - 1] = b'\n';
        }
        file[zero] = 0;
        for (pattern, options) in [
            ("7", GrepOptions::default()),
            ("77", GrepOptions { number: true, ..GrepOptions::default() }),
            ("nowhere", GrepOptions::default()),
            ("6", GrepOptions { invert: true, only_matching: true, ..GrepOptions::default() }),
            ("line", GrepOptions { only_matching: true, lines_max: Some(1700), ..GrepOptions::default() }),
        ] {
            let cuts = (1..=file.len() >> 13).map(|at| at << 13).collect();
            let pattern = pattern.as_bytes().to_vec();
            let (pattern_options, options) = (PatternOptions::default(), GrepOptions { unicode: true, ..options });
            compare(&Run { pattern, pattern_options, options, cuts, reply_bytes: 32 << 10 }, &file);
        }
    }
}

/// A brace where an expression begins, or a parenthesis that closes nothing.
fn is_odd(pattern: &[u8]) -> bool {
    let mut open = 0;
    let mut before = b'(';
    for byte in pattern {
        match byte {
            b'{' if b"(|\n".contains(&before) => return true,
            b'(' => open += 1,
            b')' => open -= 1,
            _ => {}
        }
        if open < 0 {
            return true;
        }
        before = *byte;
    }
    false
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}
