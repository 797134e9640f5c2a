//! What a user tries against others whose files the device appends to. Skipped, with a line that says why, as the stage says.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use willow_host::direct_io::{Appender, Session, SessionOptions};
use willow_tests::appended::{check, record};
use willow_tests::attacker::{Talking, attacker};
use willow_tests::stage::{By, Stage, contents, is_frozen, or_skip, within_seconds};

const MALLORY: u32 = 54_892;
const FIRST: usize = 5000;
/// How long an answer may take: what it waits for otherwise ends with the test alone.
const PATIENCE: Duration = Duration::from_secs(120);
/// SPUs of the stage's device.
const SPUS: u64 = 8;
/// Room for the spools of all files that a user may have appended to.
const LARGE: &[&str] = &["--ram", "--size", "1300M"];

fn session(stage: &Stage) -> std::sync::Arc<Session> {
    // Each record asks the agent: none goes by the kernel because one before it did.
    let options = SessionOptions::new(stage.path("device"), stage.path("agent"));
    Session::open(SessionOptions { kernel_operations_max: 0, ..options }).expect("a session")
}

/// A folder of Mallory's own on the stage.
fn mallorys(stage: &Stage) -> std::path::PathBuf {
    let folder = stage.on_it("mallorys");
    fs::create_dir_all(&folder).expect("a folder");
    chown(&folder, Some(MALLORY), Some(MALLORY)).expect("its owner");
    folder
}

/// How many files a user's process has the device append to, with a number behind.
fn held(process: &mut Talking) -> usize {
    let line = process.line();
    line.strip_prefix("holds\t").and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn who_has_shown_nothing_of_a_file_ends_nothing_of_it() {
    let test = "who_has_shown_nothing_of_a_file_ends_nothing_of_it";
    const TURNS: u32 = 20;
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("log");
    fs::write(&path, contents(FIRST, 1)).expect("written");
    let number = 1 << 32 | fs::metadata(&path).expect("there").ino();
    let mut mallory = Talking::new(&mut attacker(&stage, MALLORY, &path, &format!("ends {number}")));
    assert_eq!(mallory.line(), "ends\t\n");
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    let begun = Instant::now();
    for turn in 0..TURNS {
        for part in 0..2 {
            appender.append(&record(1, 2 * turn + part)).expect("appended");
        }
        appender.give_back().expect("given back");
    }
    let counts = session.counts();
    assert_eq!(counts.direct_appends, u64::from(2 * TURNS));
    // Now and then once more, where the file gets its length between two records: each second.
    let more = u64::from(TURNS / 4) + begun.elapsed().as_secs();
    assert!(counts.opened <= u64::from(TURNS) + more, "begun {} times in {TURNS} turns", counts.opened);
    assert_eq!(check(&fs::read(&path).expect("read"), FIRST).expect("whole")[&1].len(), 2 * TURNS as usize);
    mallory.go_on();
    assert!(mallory.has_succeeded());
}

#[test]
fn a_user_leaves_others_places_of_each_coordinator_and_the_room_of_his_spools() {
    let test = "a_user_leaves_others_places_of_each_coordinator_and_the_room_of_his_spools";
    let Some(stage) = or_skip(test, Stage::remote(LARGE, By::Memory)) else { return };
    let ask =
        |user: u32, name: &str| attacker(&stage, user, &mallorys(&stage).join(name), &format!("appends {SPUS} 3 40"));
    let mut mallory = Talking::new(&mut ask(MALLORY, "file"));
    let hers = held(&mut mallory);
    // Root's own are as anybody's who comes later, but that root may have all that is left.
    let mut other = Talking::new(&mut ask(0, "other"));
    let others = held(&mut other);
    assert!(hers > 0 && others >= hers, "Mallory has {hers} files, and leaves {others}");
    let spools = || fs::read_dir(stage.on_it(".willow-append")).map_or(0, |all| all.count());
    assert!(spools() >= hers + others);
    for mut process in [mallory, other] {
        process.go_on();
        assert!(process.has_succeeded());
    }
    within_seconds("no more than a few spools stay", || spools() <= 4);
}

#[test]
fn who_keeps_the_folder_of_the_mount_busy_keeps_nobody_from_appending() {
    let test = "who_keeps_the_folder_of_the_mount_busy_keeps_nobody_from_appending";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    for name in ["first", "second"] {
        fs::write(stage.on_it(name), contents(FIRST, 1)).expect("written");
    }
    let session = session(&stage);
    let appended = |name: &str, number: u32| {
        let (session, path) = (session.clone(), stage.on_it(name));
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let appender = Appender::open(&session, &path).expect("it opens");
            let _ = tell.send(appender.append(&record(1, number)).map(drop).map_err(|error| error.to_string()));
        });
        told.recv_timeout(PATIENCE).expect("the record waits for who reads the folder").expect("appended");
    };
    for (turn, kernel) in [1u32, 1].into_iter().enumerate() {
        // A user does the same by a file system of his own.
        let mut locks = Talking::new(&mut attacker(&stage, 0, &stage.on_it(""), "locks"));
        assert_eq!(locks.line(), "locked\t\n");
        // The first time there is no folder of spools, and nobody makes one: the kernel appends.
        appended("first", turn as u32);
        assert_eq!(session.counts().kernel_appends, u64::from(kernel), "turn {turn}");
        locks.go_on();
        assert!(locks.has_succeeded());
        within_seconds("there is a folder", || stage.on_it(".willow-append").exists());
        appended("second", turn as u32);
    }
    assert_eq!(session.counts().direct_appends, 3);
    for name in ["first", "second"] {
        let found = fs::read(stage.on_it(name)).expect("read");
        assert_eq!(check(&found, FIRST).expect("whole")[&1].len(), 2, "{name}");
    }
}

#[test]
fn who_takes_the_name_of_the_spools_folder_keeps_nobody_from_appending() {
    let test = "who_takes_the_name_of_the_spools_folder_keeps_nobody_from_appending";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    // As on a file system where all may make files.
    let hers = stage.on_it(".willow-append");
    fs::create_dir(&hers).expect("a folder");
    chown(&hers, Some(MALLORY), Some(MALLORY)).expect("its owner");
    let path = stage.on_it("log");
    fs::write(&path, contents(FIRST, 1)).expect("written");
    for turn in 0..2 {
        let session = session(&stage);
        let appender = Appender::open(&session, &path).expect("it opens");
        appender.append(&record(1, turn)).expect("appended");
        assert_eq!(session.counts().direct_appends, 1, "turn {turn}");
        drop((appender, session));
        stage.end_agent();
        let names = fs::read_dir(stage.on_it("")).expect("a folder").flatten().map(|it| it.file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(".willow")).collect();
        assert_eq!(left, [".willow-append"], "nothing of the agent's stays");
        stage.start_agent();
    }
    assert_eq!(check(&fs::read(&path).expect("read"), FIRST).expect("whole")[&1].len(), 2);
}

#[test]
fn a_name_that_is_no_text_leaves_nothing_behind() {
    let test = "a_name_that_is_no_text_leaves_nothing_behind";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("").join(OsStr::from_bytes(b"\xff\xfelog"));
    fs::write(&path, contents(FIRST, 1)).expect("written");
    let before = fs::metadata(&path).expect("there").blocks();
    let session = session(&stage);
    let appender = Appender::open(&session, &path).expect("it opens");
    appender.append(&record(1, 0)).expect("appended");
    assert_eq!((session.counts().direct_appends, is_frozen(&path)), (1, true));
    appender.give_back().expect("given back");
    let after = fs::metadata(&path).expect("there");
    assert_eq!(after.len(), (FIRST + record(1, 0).len()) as u64);
    assert!(after.blocks() <= before + 16, "{} blocks, {before} before", after.blocks());
    let records = || fs::read_dir(stage.path("agent.frozen.append")).map_or(0, |all| all.count());
    assert_eq!(records(), 0);
}

#[test]
fn an_agent_starts_where_the_file_system_has_just_been_written() {
    let test = "an_agent_starts_where_the_file_system_has_just_been_written";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let log = stage.on_it("log");
    fs::write(&log, contents(FIRST, 1)).expect("written");
    for turn in 0..5 {
        let session = session(&stage);
        let appender = Appender::open(&session, &log).expect("it opens");
        appender.append(&record(1, turn)).expect("appended");
        // Not so for a moment whenever it gets its length.
        within_seconds("the device appends", || is_frozen(&log));
        stage.kill_agent();
        // What the journal has is written to its place later: the superblock, and what is told of groups of blocks.
        // At the first attempt, or the stage says that it did not.
        stage.start_agent();
        within_seconds("it is given back", || !is_frozen(&log));
        drop((appender, session));
    }
    assert_eq!(check(&fs::read(&log).expect("read"), FIRST).expect("whole")[&1].len(), 5);
}
