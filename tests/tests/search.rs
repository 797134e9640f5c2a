//! `willow grep` on real file systems on the device, against GNU grep on the same files: as ordinary users, by shared memory and over NVMe/TCP.
//! Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use willow_host::RpcCall;
use willow_host::direct_io::{AgentClient, endpoint};
use willow_tests::stage::{By, Stage, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_601;
const BOB: u32 = 54_602;

fn willow_grep(stage: &Stage, user: u32, arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::new(stage.willow());
    command.args(["grep", "--agent", &stage.path("agent"), "--report"]).args(arguments).args(files);
    command.uid(user).gid(user).current_dir("/").env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A figure of the report.
fn figure(output: &Output, name: &str) -> u64 {
    let said = said(output);
    let value = said.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}="))).expect("the report");
    value.parse().expect("a number")
}

/// The same by GNU grep and by the drive: what was printed, and the status. Hands back what willow said.
fn same(stage: &Stage, user: u32, arguments: &[&str], files: &[&Path]) -> Output {
    let mut gnu = Command::new("grep");
    gnu.args(arguments).args(files).uid(user).gid(user).current_dir("/").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    let wanted = gnu.output().expect("GNU grep");
    let got = willow_grep(stage, user, arguments, files).output().expect("it runs");
    assert_eq!(got.status.code(), wanted.status.code(), "{arguments:?} {files:?}: {}{}", said(&got), said(&wanted));
    assert!(
        got.stdout == wanted.stdout,
        "{arguments:?} {files:?}: {} bytes of output, GNU grep has {}: {}",
        got.stdout.len(),
        wanted.stdout.len(),
        said(&got)
    );
    got
}

/// A text of so many bytes: lines of 0 to some 200 bytes, now and then one of 30,000, without an end of the last.
fn text(bytes: usize, seed: u64) -> Vec<u8> {
    let words =
        ["willow", "storage", "drive", "Zürich", "grep", "e", "12345", "the", "foo", "bar", "a_b", "permission"];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % bound
    };
    let mut text = Vec::with_capacity(bytes + 40_000);
    while text.len() < bytes {
        let length = if below(300) == 0 { 30_000 } else { below(200) as usize };
        let begin = text.len();
        while text.len() - begin < length {
            text.extend_from_slice(words[below(words.len() as u64) as usize].as_bytes());
            text.push(b' ');
        }
        text.push(b'\n');
    }
    text.truncate(bytes);
    text
}

const SEARCHES: &[&[&str]] = &[
    &["willow"],
    &["-c", "willow"],
    &["-n", "permission Z"],
    &["-o", "st[a-z]* d[a-z]*"],
    &["-on", "-E", "(foo|bar) [0-9]+"],
    &["-F", "-i", "WILLOW STORAGE"],
    &["-v", "-c", "e"],
    &["-E", "^(the|foo) .*bar $"],
    &["-l", "grep"],
    &["-L", "grep"],
    &["-q", "Zürich a_b"],
    &["-c", "nowhere"],
    &["-H", "-c", "-w", "a_b willow"],
    &["-h", "-x", ""],
    &["-m", "3", "-n", "drive drive"],
    &["-i", "-c", "zÜRICH"],
    &["-c", "\\w\\w\\w\\w\\w\\w\\w\\w\\w\\w "],
];

/// All searches, on a file that the drive has.
fn all_searches(stage: &Stage, file: &Path) {
    let bytes = fs::metadata(file).expect("a file").len();
    for arguments in SEARCHES {
        let got = same(stage, ALICE, arguments, &[file]);
        assert_eq!(figure(&got, "drive_files"), 1, "{arguments:?}: {}", said(&got));
        assert_eq!(figure(&got, "host_files"), 0, "{arguments:?}: {}", said(&got));
        if arguments.contains(&"nowhere") {
            assert_eq!(figure(&got, "drive_bytes"), bytes);
            // Of lines that match nowhere their parts at borders of stripes leave the drive.
            assert!(figure(&got, "reply_bytes") < bytes / 20, "{}", said(&got));
        }
    }
    within_seconds("the file thaws", || !is_frozen(file));
}

fn on(test: &str, stage: Result<Stage, String>) {
    let Some(stage) = or_skip(test, stage) else { return };
    let file = stage.owned("alices", ALICE, &text(3_000_001, 1));
    all_searches(&stage, &file);
    let small = stage.owned("small", ALICE, b"one\ntwo willow");
    let (empty, bytes) = (stage.owned("empty", ALICE, b""), stage.owned("bytes", ALICE, &contents(1_500_000, 7)));
    same(&stage, ALICE, &["-n", "willow s"], &[&file, &small, &empty, &bytes]);
    same(&stage, ALICE, &["-c", ""], &[&small, &empty, &bytes]);
    same(&stage, ALICE, &["-a", "-c", "ab"], &[&bytes]);
    same(&stage, ALICE, &["-a", "-o", "[A-Z][a-z]*\u{fc}*"], &[&bytes]);
    // Where the user may not read: the file system's word.
    let bobs = stage.owned("bobs", BOB, b"willow\n");
    let refused = same(&stage, ALICE, &["willow"], &[&bobs, &small]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("Permission denied"), "{}", said(&refused));
}

#[test]
fn users_search_their_files_in_the_drive_on_ext4() {
    on("users_search_their_files_in_the_drive_on_ext4", Stage::ext4());
}

#[test]
fn users_search_their_files_in_the_drive_on_xfs() {
    on("users_search_their_files_in_the_drive_on_xfs", Stage::xfs());
}

#[test]
fn users_search_their_files_in_the_drive_over_the_network() {
    let stage = Stage::ext4_by(By::Network);
    on("users_search_their_files_in_the_drive_over_the_network", stage);
}

#[test]
fn a_search_of_what_another_user_has_is_refused_by_the_device() {
    use search_host::wire::{self, REPLY_BYTES_MAX, STATUS_PERMISSION, Scan, handler};
    let test = "a_search_of_what_another_user_has_is_refused_by_the_device";
    let Some(stage) = or_skip(test, Stage::ext4_by(By::Network)) else { return };
    let path = stage.owned("bobs", BOB, &text(200_000, 2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let agent = || AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
        let (bob, alice) = (agent(), agent());
        let (bobs, alices) = (endpoint(&bob).await.expect("an endpoint"), endpoint(&alice).await.expect("another"));
        let mapped = bob.open(fs::File::open(&path).expect("open")).expect("directly");
        let app = willow_host::ControlClient::new(bobs.clone()).find_app("search").await.expect("the app");
        let pattern = search_host::Pattern::new(&[b"willow".to_vec()], Default::default()).expect("a pattern");
        let body = pattern.for_drive(wire::OPTION_TEXT).expect("it fits");
        let mut plan = search_host::plan::Plan::new(mapped.geometry(), mapped.bytes());
        let Some(search_host::plan::Round::Scans { scans, .. }) = plan.next(mapped.extents()) else {
            panic!("extents")
        };
        let mut found = 0;
        for scan in &scans {
            for (hre, is_bob) in [(&bobs, true), (&alices, false)] {
                let (app, spu) = (app, Some(scan.spu));
                let payload = body.clone();
                let prepared = RpcCall { app, handler: handler::PREPARE, spu, payload, ..RpcCall::default() };
                let prepared = hre.rpc(prepared).await.expect("answered");
                assert_eq!(prepared.status, 0);
                let (stripe_bytes, first_bytes) = (plan.stripe_bytes(), plan.to_border(scan.nv_address));
                let mut asked = Scan {
                    set: prepared.result,
                    bytes: scan.bytes as u32,
                    nv_address: scan.nv_address,
                    stripe_bytes,
                    first_bytes,
                };
                for bytes in [scan.bytes as u32, 1] {
                    asked.bytes = bytes;
                    let call = RpcCall {
                        app,
                        handler: handler::SCAN,
                        spu,
                        arguments: asked.encode().to_vec(),
                        payload: Vec::new(),
                        reply_bytes_max: REPLY_BYTES_MAX as u32,
                    };
                    let reply = hre.rpc(call).await.expect("answered");
                    assert_eq!(reply.status, if is_bob { 0 } else { STATUS_PERMISSION });
                    assert!(is_bob || reply.data.iter().all(|byte| *byte == 0), "nothing of Bob's comes along");
                    found += u64::from(is_bob && bytes > 1 && reply.result > 0);
                }
                // What Bob has prepared is Bob's.
                if !is_bob {
                    let asked = Scan { set: 1, ..asked };
                    let arguments = asked.encode().to_vec();
                    let reply_bytes_max = REPLY_BYTES_MAX as u32;
                    let payload = Vec::new();
                    let call = RpcCall { app, handler: handler::SCAN, spu, arguments, payload, reply_bytes_max };
                    let status = hre.rpc(call).await.expect("answered").status;
                    assert_eq!(status, wire::STATUS_NO_SET);
                }
            }
        }
        assert_eq!(found, scans.len() as u64);
    });
}

#[test]
fn what_lies_otherwise_gives_the_same_answers() {
    let Some(stage) = or_skip("what_lies_otherwise_gives_the_same_answers", Stage::ext4()) else { return };
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(ALICE), Some(ALICE)).expect("its owner");
    // Many pieces with holes between them, and text in the pieces.
    let (pieces, model) = stage.in_pieces("pieces", 40);
    for at in 0..40 {
        pieces.write_all_at(&text(3000 + at * 20, at as u64), (at * 8192 + at) as u64).expect("written");
    }
    drop((pieces, model));
    let pieces = stage.on_it("pieces");
    own(&pieces);
    // A hole of everything, one at the end, and a part of a block.
    let sparse = stage.on_it("sparse");
    let file = fs::File::create(&sparse).expect("made");
    file.write_all_at(b"willow first\nlast willow", 300_000).expect("written");
    file.set_len(700_003).expect("its length");
    drop(file);
    own(&sparse);
    let hole = stage.on_it("hole");
    fs::File::create(&hole).expect("made").set_len(200_000).expect("its length");
    own(&hole);
    // Allocated and never written, behind text.
    let unwritten = stage.owned("unwritten", ALICE, &text(10_000, 3));
    tool("fallocate", &["-l", "400000", &unwritten.display().to_string()]).expect("allocated");
    // Text whose end lies in the middle of a block, where something else was before.
    let cut = stage.owned("cut", ALICE, &[b'w'; 50_000]);
    fs::OpenOptions::new().write(true).open(&cut).expect("open").set_len(5).expect("cut");
    let mut more = fs::OpenOptions::new().append(true).open(&cut).expect("open");
    more.write_all(b"\nwillow").expect("written");
    drop(more);
    // Open for writing, so that the agent refuses it.
    let written = stage.owned("written", ALICE, &text(50_000, 4));
    let writer = fs::OpenOptions::new().append(true).open(&written).expect("open");
    let files: Vec<&Path> = vec![&pieces, &sparse, &hole, &unwritten, &cut, &written];
    for arguments in [
        &["-c", "willow"][..],
        &["-a", "-c", "willow"],
        &["-a", "-n", "-o", "willow"],
        &["willow"],
        &["-n", "e w"],
        &["-c", ""],
        &["-c", "-v", "w"],
        &["-a", "-c", "-v", "w"],
        &["-a", "-c", "."],
        &["-L", "willow"],
        &["-l", "w$"],
        &["-o", "w*"],
    ] {
        for file in &files {
            same(&stage, ALICE, arguments, &[file]);
        }
        same(&stage, ALICE, arguments, &files);
    }
    let drive = willow_grep(&stage, ALICE, &["-c", "willow"], &[&pieces, &sparse, &cut]).output().expect("it runs");
    assert_eq!((figure(&drive, "drive_files"), figure(&drive, "host_files")), (3, 0), "{}", said(&drive));
    // What the agent refuses is searched by the host, unless that is not wanted.
    let host = willow_grep(&stage, ALICE, &["-c", "willow"], &[&written]).output().expect("it runs");
    assert_eq!((figure(&host, "drive_files"), figure(&host, "host_files")), (0, 1), "{}", said(&host));
    let refused = willow_grep(&stage, ALICE, &["--drive-only", "-c", "willow"], &[&written]).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("open for writing"), "{}", said(&refused));
    drop(writer);
    // Inline data: small files in their inodes.
    let make = ["mkfs.ext4", "-q", "-F", "-O", "inline_data", "-I", "256"];
    let Some(stage) = or_skip("what_lies_otherwise_gives_the_same_answers", Stage::new(&make, "64M")) else { return };
    let inline = stage.owned("inline", ALICE, b"a willow\nno\n");
    let got = same(&stage, ALICE, &["-n", "willow"], &[&inline]);
    assert_eq!(figure(&got, "host_files"), 1, "{}", said(&got));
}

/// A search whose output nobody reads for a while, what happens to the file meanwhile, and what came out.
fn meanwhile(stage: &Stage, file: &Path, change: impl FnOnce()) -> (Output, Vec<u8>) {
    let mut child = willow_grep(stage, ALICE, &["-a", ""], &[file]).spawn().expect("it runs");
    let mut output = child.stdout.take().expect("output");
    let mut read = vec![0; 1 << 16];
    output.read_exact(&mut read).expect("it has begun");
    assert!(is_frozen(file), "it is being searched");
    change();
    output.read_to_end(&mut read).expect("its end");
    (child.wait_with_output().expect("an end"), read)
}

#[test]
fn a_file_that_changes_in_the_middle_ends_the_search_with_an_error() {
    let test = "a_file_that_changes_in_the_middle_ends_the_search_with_an_error";
    for by in [By::Memory, By::Network] {
        let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
        let secret = vec![b'S'; 60 << 20];
        for way in ["cut and filled by another", "written", "deleted"] {
            let before = text(60 << 20, 5);
            let file = stage.owned("alices", ALICE, &before);
            // The kernel refuses to change what is searched; who has the agent take it back first may.
            let change = || {
                take_back(&stage, &file);
                let open = || fs::OpenOptions::new().write(true).open(&file).expect("it has thawed");
                match way {
                    "cut and filled by another" => {
                        open().set_len(0).expect("cut");
                        fs::write(stage.on_it("bobs"), &secret).expect("written");
                        tool("sync", &["-f", &stage.path("files")]).expect("synced");
                    }
                    "written" => {
                        let writer = open();
                        writer.write_all_at(&secret, 0).expect("written");
                        writer.sync_all().expect("synced");
                    }
                    _ => fs::remove_file(&file).expect("deleted"),
                }
            };
            let (output, read) = meanwhile(&stage, &file, change);
            assert_eq!(output.status.code(), Some(2), "{way}: {}", said(&output));
            assert!(said(&output).contains("taken back in the middle of the search"), "{way}: {}", said(&output));
            // What was printed is what was there, and nothing else.
            assert!(read.len() < before.len(), "{way}: all of it was printed");
            assert!(read == before[..read.len()], "{way}: what was printed was in the file");
            let _ = fs::remove_file(&file);
            let _ = fs::remove_file(stage.on_it("bobs"));
        }
    }
}

/// Has the agent take a file back from all that have it directly, as a program that writes it through the library does.
fn take_back(stage: &Stage, file: &Path) {
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _endpoint = endpoint(&agent).await.expect("an endpoint");
        agent.release(fs::File::open(file).expect("open")).expect("taken back");
        agent.resume().expect("it may be taken again");
    });
}
