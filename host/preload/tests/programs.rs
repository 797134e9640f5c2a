//! Programs that know nothing of Willow, with the library before them, on a real ext4 on the device: fio, sqlite3, cp and a program with
//! every call. Skipped, with a line that says why, where a program is missing, or as the stage says.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::stage::{By, PRELOAD, Stage, contents, has, is_frozen, library, or_skip, skip, tool, within_seconds};

const ALICE: u32 = 54_941;
const BOB: u32 = 54_942;
const GROUP: u32 = 54_943;

/// A stage whose agent reaches the device in this way.
fn stage(test: &str, by: By) -> Option<Stage> {
    or_skip(test, Stage::ext4_by(by))
}

/// A program with the library, for the files of the stage. Where the device is on a network the agent says so.
fn with(stage: &Stage, program: &str) -> Command {
    let mut command = Command::new(program);
    if stage.address.is_none() {
        command.env("WILLOW_DEVICE", stage.path("device"));
    }
    command
        .env("LD_PRELOAD", library(PRELOAD))
        .env("WILLOW_AGENT", stage.path("agent"))
        .env("WILLOW_DIRECT", stage.path("files"))
        .env("WILLOW_DIRECT_REPORT", stage.path("report"))
        .current_dir(stage.path("files"));
    command
}

fn succeeded(what: &str, output: &Output) -> String {
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}: {said}{error}", output.status);
    said.into_owned()
}

/// One figure of what all programs since the last look have done, and forgets them.
fn counted(stage: &Stage, names: &[&str]) -> Vec<u64> {
    let path = stage.path("report");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(&path);
    let one = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":")).expect("the figure");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().expect("a number")
    };
    names.iter().map(|name| text.lines().map(|line| one(line, name)).sum()).collect()
}

#[test]
fn cp_copies_from_and_to_direct_files() {
    copies("cp_copies_from_and_to_direct_files", By::Memory);
}

#[test]
fn cp_copies_over_the_network() {
    copies("cp_copies_over_the_network", By::Network);
}

fn copies(test: &str, by: By) {
    let Some(stage) = stage(test, by) else { return };
    let data = contents(3_000_001, 1);
    fs::write(stage.on_it("from"), &data).expect("written");
    succeeded("cp", &with(&stage, "cp").args(["from", "to"]).output().expect("it runs"));
    // The kernel copied, or cp itself.
    assert!(fs::read(stage.on_it("to")).expect("read") == data);
    within_seconds("the files thaw", || !is_frozen(&stage.on_it("to")) && !is_frozen(&stage.on_it("from")));
    let dd = ["if=from", "of=third", "bs=50001"];
    succeeded("dd", &with(&stage, "dd").args(dd).output().expect("it runs"));
    assert!(fs::read(stage.on_it("third")).expect("read") == data);
    let counts = counted(&stage, &["direct_reads", "kernel_writes"]);
    assert!(counts[0] > 10 && counts[1] > 10, "{counts:?}");
    // Over a file that is there, without truncating it first: its blocks are written directly.
    let other = contents(3_000_001, 2);
    let elsewhere = stage.folder.join("elsewhere");
    fs::write(&elsewhere, &other).expect("written");
    let from = elsewhere.display().to_string();
    let dd = ["if=".to_owned() + &from, "of=to".to_owned(), "bs=70001".to_owned(), "conv=notrunc,fsync".to_owned()];
    succeeded("dd", &with(&stage, "dd").args(dd).output().expect("it runs"));
    assert!(fs::read(stage.on_it("to")).expect("read") == other);
    within_seconds("the files thaw", || !is_frozen(&stage.on_it("to")) && !is_frozen(&stage.on_it("from")));
    let counts = counted(&stage, &["direct_writes", "direct_syncs"]);
    assert!(counts[0] > 10 && counts[1] > 0, "{counts:?}");
    // Removed, renamed and replaced as ever.
    succeeded("cp -p", &with(&stage, "cp").args(["-p", "to", "third"]).output().expect("it runs"));
    succeeded("mv", &with(&stage, "mv").args(["third", "to"]).output().expect("it runs"));
    succeeded("rm", &with(&stage, "rm").args(["to", "from"]).output().expect("it runs"));
    assert!(!stage.on_it("to").exists());
}

#[test]
fn fio_verifies_what_it_wrote_directly() {
    fio("fio_verifies_what_it_wrote_directly", By::Memory);
}

#[test]
fn fio_verifies_what_it_wrote_by_tls() {
    fio("fio_verifies_what_it_wrote_by_tls", By::Tls);
}

fn fio(test: &str, by: By) {
    if !has("fio") {
        return skip(test, "fio is not installed");
    }
    let Some(stage) = stage(test, by) else { return };
    let run = |more: &[&str]| {
        let common = ["--name=job", "--filename=file", "--size=8M", "--verify_fatal=1", "--randseed=7"];
        let output = with(&stage, "fio").args(common).args(more).output().expect("it runs");
        succeeded(&format!("fio {more:?}"), &output)
    };
    // Laid out through the kernel; then read and written directly.
    fs::write(stage.on_it("file"), contents(8 << 20, 3)).expect("written");
    for engine in ["psync", "sync", "vsync", "pvsync", "pvsync2"] {
        let engine = format!("--ioengine={engine}");
        run(&[&engine, "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--fsync=64", "--overwrite=1"]);
        let counts = counted(&stage, &["direct_writes", "direct_reads", "direct_syncs"]);
        // Of 2048 of each, but for those that went by the kernel while the file could not be had.
        assert!(counts[0] >= 1000 && counts[1] >= 500 && counts[2] > 5, "{engine}: {counts:?}");
    }
    // Blocks that are no blocks, several jobs as threads and as processes, each with a part of the file.
    for kind in ["--thread=1", "--thread=0"] {
        let jobs = ["--numjobs=3", "--offset_increment=2M", "--size=2M", "--bsrange=512-9k", "--bs_unaligned=1"];
        run(&[&jobs[..], &["--rw=randrw", "--verify=md5", "--ioengine=psync", "--overwrite=1", kind]].concat());
        let counts = counted(&stage, &["direct_writes", "direct_reads"]);
        // Processes come one after the other, and whoever has not asked yet has the others go through the kernel meanwhile: on a machine
        // that is busy each may have ended by then.
        assert!(kind == "--thread=0" || counts[0] > 300 && counts[1] > 300, "{kind}: {counts:?}");
    }
    // Engines that go past the C library, or map the file, are the kernel's, and right.
    for engine in ["mmap", "libaio", "io_uring"] {
        let engine = format!("--ioengine={engine}");
        run(&[&engine, "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--overwrite=1"]);
    }
    within_seconds("it thaws", || !is_frozen(&stage.on_it("file")));
}

fn sqlite(stage: &Stage, locks: &str, sql: &str) -> String {
    let output = with(stage, "sqlite3").args(["-batch", "-vfs", locks, "base.db", sql]).output().expect("it runs");
    succeeded("sqlite3", &output)
}

#[test]
fn sqlite_keeps_its_promises() {
    let test = "sqlite_keeps_its_promises";
    if !has("sqlite3") {
        return skip(test, "sqlite3 is not installed");
    }
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    // With locks the kernel has the base, since it drops them with descriptors that are exchanged; without them it is direct.
    let modes = ["delete", "wal", "truncate", "persist"].map(|mode| (mode, "unix"));
    for (mode, locks) in modes.into_iter().chain([("delete", "unix-none"), ("persist", "unix-none")]) {
        let _ = fs::remove_file(stage.on_it("base.db"));
        let sqlite = |stage: &Stage, sql: &str| sqlite(stage, locks, sql);
        sqlite(&stage, &format!("pragma journal_mode={mode}; create table t(k integer primary key, v text);"));
        let fill = "with recursive n(i) as (select 1 union all select i+1 from n where i<4000)
            insert into t select i, hex(i*7919)||'-'||i from n;";
        sqlite(&stage, fill);
        // Written over in place, many times, within one process.
        let mut many = String::from("pragma cache_size=20;");
        for round in 0..60 {
            many.push_str(&format!("update t set v=v||'+' where k%60={round};"));
        }
        sqlite(&stage, &many);
        let said = sqlite(&stage, "pragma integrity_check; select count(*), sum(length(v)), max(v) from t;");
        // What another program without the library says of the same file.
        let plain = tool(
            "sqlite3",
            &[
                &stage.on_it("base.db").display().to_string(),
                "pragma integrity_check; select count(*), sum(length(v)), max(v) from t;",
            ],
        );
        assert_eq!(said.trim(), plain.expect("sqlite3"), "{mode}");
        assert!(said.starts_with("ok\n4000|"), "{mode}: {said}");
        let counts = counted(&stage, &["direct_reads", "direct_writes"]);
        if locks == "unix-none" {
            assert!(counts[0] > 100 && counts[1] > 100, "{mode}: {counts:?}");
        }
    }
    let sqlite = |stage: &Stage, sql: &str| sqlite(stage, "unix", sql);
    // Several processes on one base, which grows under them.
    sqlite(&stage, "pragma journal_mode=delete; create table s(who, what);");
    let writer = |who: u32| {
        let mut sql = String::from(".timeout 60000\n");
        for what in 0..40 {
            sql.push_str(&format!("insert into s values({who}, printf('%.2000c', 'x')||{what});\n"));
        }
        let script = stage.path(&format!("script-{who}"));
        fs::write(&script, sql).expect("written");
        let input = fs::File::open(&script).expect("the script");
        let mut command = with(&stage, "sqlite3");
        command.args(["-batch", "-bail", "base.db"]).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it runs")
    };
    let writers: Vec<_> = (0..3).map(writer).collect();
    for writer in writers {
        succeeded("a writer", &writer.wait_with_output().expect("an end"));
    }
    let said = sqlite(&stage, "pragma integrity_check; select count(*), count(distinct who||what) from s;");
    assert_eq!(said.trim(), "ok\n120|120");
}

#[test]
fn every_call_does_what_it_does_without() {
    calls("every_call_does_what_it_does_without", By::Memory);
}

#[test]
fn every_call_does_so_over_the_network() {
    calls("every_call_does_so_over_the_network", By::Network);
}

#[test]
fn a_program_that_closes_what_it_does_not_know_goes_on() {
    calls_of(
        "a_program_that_closes_what_it_does_not_know_goes_on",
        By::Memory,
        "closing.c",
        &["direct_reads", "direct_writes"],
    );
}

#[test]
fn a_program_that_closes_what_it_does_not_know_goes_on_over_the_network() {
    let test = "a_program_that_closes_what_it_does_not_know_goes_on_over_the_network";
    calls_of(test, By::Network, "closing.c", &["direct_reads", "direct_writes"]);
}

#[test]
fn calls_by_number_and_by_paths_do_what_they_do_without() {
    let test = "calls_by_number_and_by_paths_do_what_they_do_without";
    calls_of(test, By::Memory, "numbers.c", &["direct_reads", "direct_writes", "given_back"]);
}

#[test]
fn questions_prints_and_requests_do_what_they_do_without() {
    let test = "questions_prints_and_requests_do_what_they_do_without";
    calls_of(test, By::Memory, "lesser.c", &["direct_reads", "direct_writes", "given_back"]);
}

#[test]
fn logs_that_the_device_appends_to_are_as_without() {
    let test = "logs_that_the_device_appends_to_are_as_without";
    calls_of(test, By::Memory, "appending.c", &["direct_appends", "direct_syncs", "given_back"]);
}

#[test]
fn who_looks_at_a_log_finds_all_that_a_program_has_appended_by_the_device() {
    let test = "who_looks_at_a_log_finds_all_that_a_program_has_appended_by_the_device";
    let Some((stage, compiler)) = with_compiler(test, By::Memory) else { return };
    let program = compiled(&stage, compiler, "appending.c", ("appending", &[]));
    let log = stage.on_it("log");
    fs::write(&log, "first\n").expect("written");
    let begin = || {
        let mut command = with(&stage, &program);
        command.args(["log", "follow"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        (child.stdin.take().expect("its input"), output, child)
    };
    let mut expected = b"first\n".to_vec();
    let mut old = 0;
    let mut programs = vec![begin()];
    for round in 0..40_usize {
        if round == 20 {
            // Another one, of which each has the other's records between its own.
            programs.push(begin());
        }
        let count = programs.len();
        let (input, output, _) = &mut programs[round % count];
        let record = contents(50 + round * 7, round as u32);
        input.write_all(&record).expect("it reads");
        assert_eq!(output.next().expect("a line").expect("text"), "ok");
        expected.extend_from_slice(&record);
        // The file system alone may not know it yet; who has the library does.
        old += u32::from(fs::metadata(&log).expect("there").len() < expected.len() as u64);
        let said = with(&stage, "stat").args(["-c", "%s", "log"]).output().expect("it runs");
        assert_eq!(succeeded("stat", &said).trim(), expected.len().to_string(), "round {round}");
        if round % 5 == 0 {
            assert!(fs::read(&log).expect("read") == expected, "round {round}");
        }
        assert!(round != 19 || old > 0, "the device has had the length");
    }
    let (killed, ended) = (programs.pop().expect("two"), programs.pop().expect("two"));
    let ((input, _, mut ended), (_other, _, mut killed)) = (ended, killed);
    drop(input);
    assert!(ended.wait().expect("an end").success());
    killed.kill().expect("killed");
    killed.wait().expect("an end");
    assert!(fs::read(&log).expect("read") == expected);
    within_seconds("it is the file system's own", || !is_frozen(&log));
    let counts = counted(&stage, &["direct_appends"]);
    assert!(counts[0] > 5, "{counts:?}");
}

#[test]
fn what_the_kernel_refuses_it_refuses_with_the_library() {
    let test = "what_the_kernel_refuses_it_refuses_with_the_library";
    calls_of(test, By::Memory, "refusals.c", &["direct_reads", "direct_writes", "given_back"]);
}

fn calls(test: &str, by: By) {
    calls_of(test, by, "calls.c", &["direct_reads", "direct_writes", "direct_syncs", "given_back"]);
}

/// A stage, and a C compiler.
fn with_compiler(test: &str, by: By) -> Option<(Stage, &'static str)> {
    match ["gcc", "clang"].into_iter().find(|it| has(it)) {
        Some(compiler) => stage(test, by).map(|stage| (stage, compiler)),
        None => {
            skip(test, "there is no C compiler");
            None
        }
    }
}

/// The program of a source of these tests, under this name beside the stage's file system.
fn compiled(stage: &Stage, compiler: &str, source: &str, (name, flags): (&str, &[&str])) -> String {
    let source = &format!("{}/tests/{source}", env!("CARGO_MANIFEST_DIR"));
    let out = stage.folder.join(name).display().to_string();
    let common = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", &out, source, "-lpthread"];
    tool(compiler, &[flags, &common].concat()).expect("it compiles");
    out
}

fn calls_of(test: &str, by: By, source: &str, counts: &[&str]) {
    let Some((stage, compiler)) = with_compiler(test, by) else { return };
    for (name, flags) in [("plain", &["-O0"][..]), ("checked", &["-O2", "-D_FORTIFY_SOURCE=2"][..])] {
        let out = compiled(&stage, compiler, source, (name, flags));
        let run = |file: &Path, command: &mut Command| {
            let output = command.arg(file).output().expect("it runs");
            succeeded(name, &output)
        };
        let file = stage.on_it("file");
        let elsewhere = stage.folder.join("elsewhere");
        let direct = run(&file, &mut with(&stage, &out));
        let plain = run(&elsewhere, &mut Command::new(&out));
        assert_eq!(direct, plain, "{name}");
        assert!(fs::read(&file).expect("read") == fs::read(&elsewhere).expect("read"), "{name}");
        within_seconds("it thaws", || !is_frozen(&file));
        let counts = counted(&stage, counts);
        assert!(counts.iter().all(|count| *count > 0), "{name}: {counts:?}");
        let (_, _) = (fs::remove_file(&file), fs::remove_file(&elsewhere));
    }
}

#[test]
fn without_an_agent_programs_run_as_ever() {
    let Some(mut stage) = or_skip("without_an_agent_programs_run_as_ever", Stage::ext4()) else { return };
    let data = contents(100_000, 1);
    fs::write(stage.on_it("from"), &data).expect("written");
    stage.kill_agent();
    let output = with(&stage, "cp").args(["from", "to"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no direct access"));
    succeeded("cp", &output);
    assert!(fs::read(stage.on_it("to")).expect("read") == data);
    let mut plain = Command::new("cp");
    plain.env("LD_PRELOAD", library(PRELOAD)).args([stage.on_it("from"), stage.on_it("third")]);
    succeeded("cp with nothing chosen", &plain.output().expect("it runs"));
    assert_eq!(fs::File::open(stage.on_it("third")).expect("it is there").read_at(&mut [0; 10], 5).expect("read"), 10);
}

#[test]
fn who_may_write_anothers_file_writes_it_while_that_one_has_it_directly() {
    let test = "who_may_write_anothers_file_writes_it_while_that_one_has_it_directly";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.owned("file", ALICE, &contents(20_000, 1));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("its mode");
    std::os::unix::fs::chown(&path, None, Some(GROUP)).expect("its group");
    fs::set_permissions(stage.on_it("."), fs::Permissions::from_mode(0o755)).expect("nobody takes names away");
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let holder = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let holder = File::new(&session, holder).expect("a file");
    holder.take().expect("directly");
    let library = stage.public(&library(PRELOAD));
    let writes = |group: u32| {
        let mut command = with(&stage, "dd");
        command.args(["if=/dev/zero", "of=file", "bs=100", "count=1", "conv=notrunc"]);
        command.env("LD_PRELOAD", &library).env_remove("WILLOW_DIRECT_REPORT").uid(BOB).gid(group);
        command.output().expect("it runs")
    };
    let output = writes(BOB);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Operation not permitted"), "{said}");
    assert!(is_frozen(&path), "who may not write it had it released");
    // Not by a folder of his own either, over which he has mounted its folder where nobody else sees that.
    let own = stage.path("own");
    fs::create_dir_all(format!("{own}/place")).expect("a folder");
    for folder in [own.clone(), format!("{own}/place")] {
        std::os::unix::fs::chown(folder, Some(BOB), Some(BOB)).expect("its owner");
    }
    let mut command = Command::new("unshare");
    let script = r#"mount --bind "$0" "$1" && LD_PRELOAD=$2 dd if=/dev/zero of="$1/file" bs=100 count=1 conv=notrunc"#;
    command.args(["--user", "--mount", "--map-root-user", "sh", "-c", script, &stage.path("files")]);
    command.arg(format!("{own}/place")).arg(&library).env("WILLOW_AGENT", stage.path("agent"));
    command.env("WILLOW_DEVICE", stage.path("device")).env("WILLOW_DIRECT", &own).uid(BOB).gid(BOB);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Operation not permitted") && said.contains("dd:"), "{said}");
    assert!(is_frozen(&path), "who has mounted its folder elsewhere had it released");
    let mut bytes = [0; 4];
    assert_eq!(holder.pread(&mut bytes, 0).expect("read"), 4);
    assert_eq!(bytes, contents(4, 1)[..]);
    succeeded("a writer of the group", &writes(GROUP));
    assert_eq!(holder.pread(&mut bytes, 0).expect("read"), 4);
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn a_file_thaws_whatever_its_user_does_to_a_mount_of_his_own() {
    let test = "a_file_thaws_whatever_its_user_does_to_a_mount_of_his_own";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.owned("file", BOB, &contents(20_000, 1));
    let own = stage.path("own");
    fs::create_dir_all(format!("{own}/place")).expect("a folder");
    for folder in [own.clone(), format!("{own}/place")] {
        std::os::unix::fs::chown(folder, Some(BOB), Some(BOB)).expect("its owner");
    }
    // dd has the file directly when its mount becomes read-only, and ends then.
    let script = r#"set -e; mount --bind "$0" "$1"; mkfifo "$1.pipe"
        LD_PRELOAD=$2 dd if="$1.pipe" of="$1/file" bs=4096 conv=notrunc & exec 4>"$1.pipe"
        head -c 4096 /dev/zero >&4; until lsattr "$1/file" | cut -d " " -f 1 | grep -q i; do sleep 0.05; done
        mount -o remount,bind,ro "$1"; exec 4>&-; wait $!; if touch "$1/file"; then exit 9; fi"#;
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "--user", "--mount", "--map-root-user", "sh", "-c", script, &stage.path("files")]);
    command.arg(format!("{own}/place")).arg(stage.public(&library(PRELOAD))).env("WILLOW_AGENT", stage.path("agent"));
    command.env("WILLOW_DEVICE", stage.path("device")).env("WILLOW_DIRECT", &own).env("WILLOW_PRELOAD_EAGER", "1");
    succeeded("dd on a mount of his own", &command.uid(BOB).gid(BOB).output().expect("it runs"));
    within_seconds("it thaws", || !is_frozen(&path));
    assert_eq!(fs::read(&path).expect("read")[..4096], [0; 4096]);
    fs::remove_file(&path).expect("root removes it");
}

/// A mapping that writes is made when the agent has taken the file back from the other process that has it directly.
#[test]
fn a_mapping_of_a_file_that_another_process_has_directly_is_made_and_is_the_files() {
    let test = "a_mapping_of_a_file_that_another_process_has_directly_is_made_and_is_the_files";
    let Some((stage, compiler)) = with_compiler(test, By::Memory) else { return };
    let out = compiled(&stage, compiler, "mapping.c", ("mapping", &["-O2"]));
    let path = stage.on_it("file");
    let mut child =
        with(&stage, &out).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let (mut input, mut output) =
        (child.stdin.take().expect("a pipe"), BufReader::new(child.stdout.take().expect("one")));
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        line
    };
    assert_eq!(line(), "ready\n");
    assert!(is_frozen(&path), "the program does not have it directly");
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let other = fs::OpenOptions::new().read(true).open(&path).expect("open");
    let other = File::new(&session, other).expect("a file");
    other.take().expect("directly");
    input.write_all(b"\n").expect("it listens");
    assert_eq!(line(), "mapped 0 direct\n");
    within_seconds("it thaws where it is mapped", || !is_frozen(&path));
    let is_there = || {
        let mut read = [0; 9];
        other.pread(&mut read, 0).is_ok_and(|count| count == 9) && &read == b"by memory"
    };
    within_seconds("what was written by the mapping is read", is_there);
    fs::OpenOptions::new().write(true).open(&path).expect("open").write_at(b"by write", 100).expect("written");
    input.write_all(b"\n").expect("it listens");
    assert_eq!(line(), "by write\n");
    assert!(child.wait().expect("an end").success());
}

/// What a program said, and what its file holds.
fn said_and_held(output: &Output, file: &Path) -> (String, Vec<u8>) {
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), output.status);
    within_seconds(&format!("{said}: it thaws"), || !is_frozen(file));
    (said, fs::read(file).expect("read"))
}

/// Ways in which `identity.c` changes who it is, where it is or what it may do, and whether it does so by a call's number too.
const CHANGES: [(&str, bool); 27] = [
    ("setuid", true),
    ("setgid", true),
    ("setreuid", true),
    ("setregid", true),
    ("setfsuid", true),
    ("setfsgid", true),
    ("setgroups", true),
    ("initgroups", false),
    ("seteuid", false),
    ("setegid", false),
    ("daemon", true),
    ("capset", true),
    ("chroot", true),
    ("userns", true),
    ("mountns", true),
    ("setns", true),
    ("pivot_root", true),
    ("landlock", false),
    ("sandbox", true),
    ("no descriptors", true),
    ("no more descriptors", true),
    ("limit by another", false),
    ("covered", false),
    ("imitated", false),
    ("unshare", true),
    ("close_range", true),
    ("clone", false),
];

/// Runs `identity.c` to the end: what came of it, and whether its file was direct when it changed.
fn changed(stage: &Stage, program: &str, how: (&str, bool), planted: Option<&str>) -> ((String, Vec<u8>), bool) {
    let file = stage.on_it("file");
    let mut command = match planted {
        Some(_) => with(stage, "unshare"),
        None => Command::new("unshare"),
    };
    // Mounts of its own, whatever it does to them.
    command.args(["--mount", program]).arg(&file).arg(how.0).args(how.1.then_some("number"));
    let output = command.env("WILLOW_PRELOAD_PLANTED", planted.unwrap_or_default()).output().expect("it runs");
    if planted.is_some_and(|error| !error.is_empty()) {
        // It may have been killed, which the agent notices.
        within_seconds("it thaws", || !is_frozen(&file));
    }
    let outcome = said_and_held(&output, &file);
    fs::remove_file(&file).expect("removed");
    fs::remove_dir(stage.on_it("file.root")).expect("removed");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(["direct\n", "not direct\n"].contains(&&*error), "{how:?}: {}: {error}", outcome.0);
    (outcome, error == "direct\n")
}

#[test]
fn who_changes_who_and_where_it_is_has_its_files_given_back_first() {
    let test = "who_changes_who_and_where_it_is_has_its_files_given_back_first";
    let Some((stage, compiler)) = with_compiler(test, By::Memory) else { return };
    let program = compiled(&stage, compiler, "identity.c", ("identity", &["-O2", "-D_FORTIFY_SOURCE=2"]));
    for (how, has_number) in CHANGES {
        for by_number in [false, true].into_iter().take(1 + usize::from(has_number)) {
            let (plain, was_direct) = changed(&stage, &program, (how, by_number), None);
            assert!(!was_direct);
            let (outcome, was_direct) = changed(&stage, &program, (how, by_number), Some(""));
            assert!(was_direct, "{how}: it is not direct");
            assert_eq!(outcome.0, plain.0, "{how}, by number: {by_number}");
            assert!(outcome.1 == plain.1, "{how}, by number: {by_number}: the file holds something else");
        }
    }
    // One that goes on directly is caught. Where it only has no /proc any more, the agent opens its files anew.
    for how in ["daemon", "sandbox", "no descriptors", "no more descriptors", "unshare", "clone"] {
        let outcomes = [None, Some("identity")].map(|planted| changed(&stage, &program, (how, false), planted).0);
        assert!(outcomes[0] != outcomes[1], "{how}: nobody sees the planted error");
    }
}

/// Runs in which somebody has to see a planted error that threads meet.
const PLANTED_RUNS_MAX: u32 = 20;

/// Runs `replacing.c`, with a planted error perhaps, or without the library.
fn replaced(stage: &Stage, program: &str, planted: Option<&str>) -> String {
    let file = stage.on_it("file");
    let mut command = match planted {
        Some(_) => with(stage, program),
        None => Command::new(program),
    };
    let output = command.env("WILLOW_PRELOAD_PLANTED", planted.unwrap_or_default()).arg(&file).output();
    let (said, _) = said_and_held(&output.expect("it runs"), &file);
    fs::remove_file(&file).expect("removed");
    said
}

#[test]
fn threads_that_write_while_a_descriptor_is_replaced_lose_nothing() {
    let test = "threads_that_write_while_a_descriptor_is_replaced_lose_nothing";
    let Some((stage, compiler)) = with_compiler(test, By::Memory) else { return };
    let program = compiled(&stage, compiler, "replacing.c", ("replacing", &["-O2"]));
    let plain = replaced(&stage, &program, None);
    for _ in 0..3 {
        assert_eq!(replaced(&stage, &program, Some("")), plain);
    }
    let counts = counted(&stage, &["direct_writes", "given_back"]);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // Whether a thread writes just then is chance.
    let is_seen = |_| replaced(&stage, &program, Some("dup2")) != plain;
    assert!((0..PLANTED_RUNS_MAX).any(is_seen), "nobody sees the planted error");
}
