//! Records that processes append to files by the device, on a real ext4: what everybody else sees of them. Skipped, with a line that says why, where this
//! is not root, or FUSE, loop devices or a tool are missing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use willow_host::direct_io::{Appender, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::appended::{FIRST, check, check_growing, hold_against, record};
use willow_tests::planted::Planted;
use willow_tests::stage::{By, Stage, contents, is_append_only, is_frozen, or_skip, tool, within_seconds};

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// A file with its first bytes.
fn file(stage: &Stage, name: &str) -> std::path::PathBuf {
    let path = stage.on_it(name);
    fs::write(&path, contents(FIRST, 1)).expect("written");
    path
}

/// Appends records of a writer; where they are.
fn append(appender: &Appender, writer: u32, numbers: std::ops::Range<u32>) -> Vec<u64> {
    numbers.map(|number| appender.append(&record(writer, number)).expect("appended")).collect()
}

/// A process that appends, and what it says.
fn process(stage: &Stage, path: &Path, writer: u32, count: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_willow-appender"));
    command.args([&stage.path("device"), &stage.path("agent"), &path.display().to_string()]);
    command.args([writer.to_string().as_str(), count]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    (child, output)
}

/// The offsets that it tells, as many as there are until it ends; and how many of them were the device's.
fn told(output: &mut impl BufRead) -> (Vec<u64>, Option<u64>) {
    let mut offsets = Vec::new();
    for line in output.lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["direct", count, ..] => return (offsets, Some(count.parse().expect("a number"))),
            [_, at] => offsets.push(at.parse().expect("a number")),
            // Cut off where it was killed.
            _ => break,
        }
    }
    (offsets, None)
}

#[test]
fn records_that_the_device_appends_are_the_files_for_all_who_look() {
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    let path = file(&stage, "log");
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let mut offsets = append(&appender, 1, 0..20);
    assert_eq!(session.counts().direct_appends, 20, "the device appends");
    // Not so for a moment whenever it gets its length.
    within_seconds("it is immutable", || is_frozen(&path));
    // Who asks for the length alone finds it soon; who has the library, at once.
    let length = offsets[19] + record(1, 19).len() as u64;
    assert_eq!(appender.length().expect("a length"), length);
    within_seconds("the length is the file's", || fs::metadata(&path).expect("there").len() == length);
    // Who reads it waits for that.
    offsets.extend(append(&appender, 1, 20..40));
    hold_against(&path, &BTreeMap::from([(1, offsets.clone())])).expect("all are there");
    // More than a spool has, and by the kernel where the device takes no such record.
    offsets.extend(append(&appender, 1, 40..2300));
    let number = |offsets: &Vec<u64>| offsets.len() as u32;
    while session.counts().direct_appends <= 2200 && offsets.len() < 3_500 {
        offsets.extend(append(&appender, 1, number(&offsets)..number(&offsets) + 100));
    }
    let (large, at) = (contents(100_000, 9), appender.append(&contents(100_000, 9)).expect("appended"));
    let found = fs::read(&path).expect("read");
    assert_eq!(check(&found[..at as usize], FIRST).expect("whole records")[&1], offsets);
    assert!(found[at as usize..] == large);
    assert!(session.counts().direct_appends > 2200, "{:?}", session.counts());
    // When it is given back nothing of the agent's is left.
    appender.give_back().expect("given back");
    within_seconds("it is the file system's own", || !is_frozen(&path));
    fs::OpenOptions::new().append(true).open(&path).expect("it opens").write_all(b"end").expect("written");
    let blocks = tool("stat", &["-c", "%b", &path.display().to_string()]).expect("stat");
    let length = fs::metadata(&path).expect("there").len();
    assert!(blocks.parse::<u64>().expect("a number") * 512 < length + (1 << 20), "{blocks} blocks for {length} bytes");
    let is_empty = |spool: Vec<u8>| spool.iter().all(|byte| *byte == 0);
    within_seconds("its spool is empty", || fs::read(stage.on_it(".willow-append/0")).is_ok_and(is_empty));
    drop(appender);
    let mut stage = stage;
    let mut agent = stage.agent.take().expect("an agent");
    tool("kill", &["-TERM", &agent.id().to_string()]).expect("it is there");
    assert!(agent.wait().expect("an end").success());
    assert!(!stage.on_it(".willow-append").exists());
}

#[test]
fn threads_and_processes_append_beside_each_other_and_readers_see_whole_records() {
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    let path = file(&stage, "log");
    const COUNT: u32 = 400;
    /// Looks that somebody has to wait for, since the device has the length just then.
    const WAITED_MIN: u32 = 5;
    /// Threads append until there were so many looks, however fast they are; but no more than this.
    const COUNT_MAX: u32 = 3_000;
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let acknowledged: [AtomicU32; 5] = Default::default();
    let is_over = AtomicBool::new(false);
    let waited = AtomicU32::new(0);
    let all = std::thread::scope(|scope| {
        // One who looks now and then: all that was acknowledged before is there, and nothing but whole records.
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // As long as the kernel appends there is nothing to be waited for.
                let must_wait = (0..100).any(|_| {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    is_frozen(&path)
                });
                let least: Vec<u32> = acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
                let found = check_growing(&fs::read(&path).expect("read"), FIRST).expect("whole records");
                for (writer, least) in least.iter().enumerate() {
                    let there = found.get(&(writer as u32)).map_or(0, Vec::len);
                    assert!(there >= *least as usize, "{there} records of writer {writer}, told {least}");
                }
                waited.fetch_add(u32::from(must_wait), Ordering::SeqCst);
            }
        });
        let threads: Vec<_> = (0..3u32)
            .map(|writer| {
                let (appender, acknowledged, waited) = (&appender, &acknowledged, &waited);
                scope.spawn(move || {
                    let one = |number: u32| {
                        let at = appender.append(&record(writer, number)).expect("appended");
                        acknowledged[writer as usize].fetch_add(1, Ordering::SeqCst);
                        at
                    };
                    let goes_on = |number: &u32| {
                        *number < COUNT || (*number < COUNT_MAX && waited.load(Ordering::SeqCst) < WAITED_MIN)
                    };
                    (writer, (0..).take_while(goes_on).map(one).collect::<Vec<u64>>())
                })
            })
            .collect();
        let processes: Vec<_> = (3..5u32)
            .map(|writer| {
                let (mut child, mut output) = process(&stage, &path, writer, &format!("{COUNT}-{COUNT_MAX}"));
                scope.spawn(move || {
                    let (offsets, direct) = told(&mut output);
                    assert!(child.wait().expect("an end").success());
                    println!("process {writer}: {direct:?} of {} records by the device", offsets.len());
                    assert!(direct.is_some_and(|direct| direct > 0), "process {writer}: the kernel appended all");
                    (writer, offsets)
                })
            })
            .collect();
        let all: BTreeMap<u32, Vec<u64>> =
            threads.into_iter().chain(processes).map(|thread| thread.join().expect("no panic")).collect();
        is_over.store(true, Ordering::SeqCst);
        reader.join().expect("no panic");
        let waited = waited.load(Ordering::SeqCst);
        println!("{waited} looks had to wait, {:?}", session.counts());
        assert!(waited >= WAITED_MIN, "the device had the length at {waited} looks");
        all
    });
    assert!(session.counts().direct_appends > 0, "the kernel appended all: {:?}", session.counts());
    assert!(all.values().all(|offsets| offsets.len() >= COUNT as usize));
    hold_against(&path, &all).expect("all are there");
}

#[test]
fn a_process_that_is_killed_leaves_whole_records_and_a_writer_without_the_library_goes_on() {
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    for kill_after in [1, 7, 30] {
        let path = file(&stage, &format!("log-{kill_after}"));
        let (mut child, mut output) = process(&stage, &path, 1, "100000");
        let mut lines = Vec::new();
        for _ in 0..kill_after {
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            lines.push(line);
        }
        within_seconds("the device appends to it", || is_frozen(&path));
        child.kill().expect("killed");
        child.wait().expect("an end");
        let rest: String = std::io::read_to_string(output).expect("text");
        // Its last line may be cut.
        let rest = rest.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let offsets: Vec<u64> = lines
            .iter()
            .map(String::as_str)
            .chain(rest.lines())
            .map(|line| line.trim().split_once(' ').expect("two words").1.parse().expect("a number"))
            .collect();
        within_seconds("it is given back", || !is_frozen(&path));
        hold_against(&path, &BTreeMap::from([(1, offsets)])).expect("all that was told");
        // By a program as it is.
        let length = fs::metadata(&path).expect("there").len();
        fs::OpenOptions::new().append(true).open(&path).expect("it opens").write_all(&record(2, 0)).expect("written");
        let found = check(&fs::read(&path).expect("read"), FIRST).expect("whole records");
        assert_eq!(found[&2], [length]);
    }
}

#[test]
fn an_agent_or_a_device_that_is_killed_loses_nothing_that_was_acknowledged() {
    let flags = ["--media", "MEDIA", "--size", "128M"];
    let Some(mut stage) = or_skip("appending files", Stage::remote(&flags, By::Network)) else { return };
    let path = file(&stage, "log");
    let options = SessionOptions::by_agent(stage.path("agent"));
    let session = Session::open(options).expect("a session");
    let appender = Appender::open(&session, &path).expect("it opens");
    let mut offsets = append(&appender, 1, 0..30);
    assert!(session.counts().direct_appends > 0, "{:?}", session.counts());
    // The agent alone: its file stays immutable until the next one has given it its length.
    stage.kill_agent();
    assert!(is_frozen(&path) || is_append_only(&path));
    stage.start_agent();
    within_seconds("it is given back", || !is_frozen(&path) && !is_append_only(&path));
    hold_against(&path, &BTreeMap::from([(1, offsets.clone())])).expect("all that was told");
    drop(appender);
    drop(session);
    let session = Session::open(SessionOptions::by_agent(stage.path("agent"))).expect("a session");
    let appender = Appender::open(&session, &path).expect("it opens");
    let before = session.counts().direct_appends;
    offsets.extend(append(&appender, 1, 30..60));
    assert!(session.counts().direct_appends > before, "{:?}", session.counts());
    // The device, and with it what the agent had there.
    stage.restart_device();
    within_seconds("it is given back", || !is_frozen(&path));
    hold_against(&path, &BTreeMap::from([(1, offsets.clone())])).expect("all that was told");
}

#[test]
fn what_else_has_a_file_open_keeps_the_device_from_it_and_is_seen() {
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    let path = file(&stage, "log");
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let mut offsets = append(&appender, 1, 0..3);
    // Who reads on, as tail -f does, sees each record at once: the kernel appends meanwhile.
    let reader = fs::File::open(&path).expect("it opens");
    assert!(!is_frozen(&path));
    for number in 3..8 {
        offsets.extend(append(&appender, 1, number..number + 1));
        let wanted = record(1, number);
        let mut found = vec![0; wanted.len()];
        reader.read_exact_at(&mut found, offsets[number as usize]).expect("it is there");
        assert!(found == wanted);
    }
    assert_eq!(session.counts().direct_appends, 3);
    drop(reader);
    // Again by the device, some records later.
    offsets.extend(append(&appender, 1, 8..200));
    assert!(session.counts().direct_appends > 3);
    // What changes it otherwise has it given back first: by the library, or by who asks the agent.
    let agent = willow_host::direct_io::AgentClient::connect(Path::new(&stage.path("agent"))).expect("an agent");
    within_seconds("it is immutable", || is_frozen(&path));
    assert_eq!(fs::rename(&path, stage.on_it("other")).unwrap_err().raw_os_error(), Some(libc::EPERM));
    let named = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("a path");
    agent.release(named.as_fd()).expect("released");
    fs::rename(&path, stage.on_it("other")).expect("renamed");
    agent.resume().expect("resumed");
    offsets.extend(append(&appender, 1, 200..210));
    hold_against(&stage.on_it("other"), &BTreeMap::from([(1, offsets)])).expect("all are there");
}

#[test]
fn users_append_to_their_own_files_by_the_device_and_to_others_by_the_kernel_alone() {
    const OWNER: u32 = 4242;
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    let program = stage.public(Path::new(env!("CARGO_BIN_EXE_willow-appender")));
    let path = stage.owned("log", OWNER, &contents(FIRST, 1));
    // Anybody may write it: that is no right to have it frozen for its owner.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("its mode");
    let mut all = BTreeMap::new();
    for (writer, user, is_direct) in [(1, OWNER, true), (2, OWNER + 1, false), (3, OWNER, true)] {
        let mut command = Command::new(&program);
        command.args([&stage.path("device"), &stage.path("agent"), &path.display().to_string()]);
        command.args([writer.to_string(), "20".to_owned()]).uid(user).gid(user).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let (offsets, direct) = told(&mut BufReader::new(child.stdout.take().expect("its output")));
        assert!(child.wait().expect("an end").success());
        assert_eq!(direct, Some(if is_direct { 20 } else { 0 }), "user {user}");
        all.insert(writer, offsets);
    }
    hold_against(&path, &all).expect("all are there");
    // What was appended has been in a spool that is root's.
    let spools = fs::metadata(stage.on_it(".willow-append")).expect("there");
    assert_eq!((spools.uid(), spools.mode() & 0o777), (0, 0o700));
    let spool = fs::metadata(stage.on_it(".willow-append/0")).expect("there");
    assert_eq!((spool.uid(), spool.mode() & 0o777), (0, 0o600));
}

#[test]
fn a_full_file_system_is_told_before_anything_is_lost() {
    let Some(stage) = or_skip("appending files", Stage::ext4()) else { return };
    let path = file(&stage, "log");
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let mut offsets = append(&appender, 1, 0..10);
    assert_eq!(session.counts().direct_appends, 10);
    // As much as root finds but a little; the file has blocks for what the device may append still.
    let mut filler = fs::File::create(stage.on_it("filler")).expect("made");
    let piece = vec![1; 64 << 10];
    while filler.write_all(&piece).is_ok() {}
    let room = |free: u64| filler.set_len(filler.metadata().expect("there").len().saturating_sub(free)).expect("less");
    room(1 << 20);
    filler.sync_all().expect("synced");
    // The spool is full before the room that there was is used up; from then on the kernel appends, as far as that goes.
    let failure = loop {
        match appender.append(&record(1, offsets.len() as u32)) {
            Ok(at) => offsets.push(at),
            Err(failure) => break failure,
        }
        assert!(offsets.len() < 50_000, "it is never full");
    };
    assert_eq!(failure.errno(), libc::ENOSPC, "{failure}");
    assert!(session.counts().kernel_appends > 0);
    let found = fs::read(&path).expect("read");
    // A write that found room for a part of a record leaves that part, as write(2) does.
    let whole = offsets.last().map_or(0, |at| *at as usize + record(1, offsets.len() as u32 - 1).len());
    assert_eq!(check(&found[..whole], FIRST).expect("whole records")[&1], offsets);
    // With room again all goes on.
    room(64 << 20);
    let before = session.counts().direct_appends;
    for number in 0..2000 {
        appender.append(&record(2, number)).expect("appended");
    }
    assert!(session.counts().direct_appends > before);
}

/// Appends while the file is looked at by another, whose agent has this planted.
fn looked_at_in_the_midst(fault: Option<AgentFault>) -> Option<Result<(), String>> {
    let mut stage = or_skip("appending files", Stage::ext4())?;
    let planted = Planted::forgets(&mut stage, &fault.into_iter().collect::<Vec<_>>());
    let path = file(&stage, "log");
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let mut offsets = append(&appender, 1, 0..5);
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = fs::read(&path);
            is_read.store(true, Ordering::SeqCst);
        });
        // Until it is read, however fast records are appended.
        for number in 5..200_000 {
            if is_read.load(Ordering::SeqCst) {
                break;
            }
            // It may lie where another is by now.
            offsets.push(appender.append(&record(1, number)).expect("appended"));
        }
    });
    appender.give_back().expect("given back");
    let done = hold_against(&path, &BTreeMap::from([(1, offsets)]));
    drop(appender);
    drop(planted);
    Some(done)
}

#[test]
fn planted_length_that_is_taken_too_early_is_caught() {
    let Some(sound) = looked_at_in_the_midst(None) else { return };
    sound.expect("nothing was planted");
    let Some(planted) = looked_at_in_the_midst(Some(AgentFault::LengthFirst)) else { return };
    planted.expect_err("what was appended after the length was taken is lost");
}
