//! Programs that know nothing of Willow, with the library before them, on a real ext4 on the device: fio, sqlite3, cp and a program with
//! every call. Skipped, with a line that says why, where a program is missing, or as the stage says.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::stage::{By, PRELOAD, Stage, contents, has, is_frozen, library, or_skip, skip, tool};

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
    assert!(!is_frozen(&stage.on_it("to")) && !is_frozen(&stage.on_it("from")));
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
    assert!(!is_frozen(&stage.on_it("to")) && !is_frozen(&stage.on_it("from")));
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
        assert!(counts[0] >= 2000 && counts[1] >= 500 && counts[2] > 10, "{engine}: {counts:?}");
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
    for engine in ["mmap", "libaio"] {
        let engine = format!("--ioengine={engine}");
        run(&[&engine, "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--overwrite=1"]);
    }
    assert!(!is_frozen(&stage.on_it("file")));
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

fn calls(test: &str, by: By) {
    calls_of(test, by, "calls.c", &["direct_reads", "direct_writes", "direct_syncs", "given_back"]);
}

fn calls_of(test: &str, by: By, source: &str, counts: &[&str]) {
    let Some(compiler) = ["gcc", "clang"].into_iter().find(|it| has(it)) else {
        return skip(test, "there is no C compiler");
    };
    let Some(stage) = stage(test, by) else { return };
    let source = &format!("{}/tests/{source}", env!("CARGO_MANIFEST_DIR"));
    for (name, flags) in [("plain", &["-O0"][..]), ("checked", &["-O2", "-D_FORTIFY_SOURCE=2"][..])] {
        let program = stage.folder.join(name);
        let out = program.display().to_string();
        let common = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", &out, source, "-lpthread"];
        tool(compiler, &[flags, &common].concat()).expect("it compiles");
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
        assert!(!is_frozen(&file));
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
    let mut bytes = [0; 4];
    assert_eq!(holder.pread(&mut bytes, 0).expect("read"), 4);
    assert_eq!(bytes, contents(4, 1)[..]);
    succeeded("a writer of the group", &writes(GROUP));
    assert_eq!(holder.pread(&mut bytes, 0).expect("read"), 4);
    assert_eq!(bytes, [0; 4]);
}
