//! Direct access and what an administrator does to a file system: freezing it (fsfreeze, snapshots), mounting it read-only, taking it
//! away. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use willow_host::agent::extents;
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::attacker::{Talking, Writer, attacker};
use willow_tests::judge::Judge;
use willow_tests::planted::Planted;
use willow_tests::stage::{By, Stage, contents, has, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_601;
/// After how many seconds something waits for a file system that is frozen: much longer than a machine that is busy takes for it.
const HANGS_SECONDS: &str = "300";
/// Extents of the file that takes long to be opened, and files that one process has meanwhile.
const PIECES: usize = 6000;
const SMALL: usize = 100;

fn stages(test: &str) -> Vec<(&'static str, Stage)> {
    let made = [("ext4", Stage::ext4()), ("xfs", Stage::xfs())];
    made.into_iter().filter_map(|(system, made)| Some((system, or_skip(test, made)?))).collect()
}

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// Where the number that the writer writes lies on the device.
fn place_of(writer: &Writer) -> u64 {
    let file = fs::File::open(&writer.file).expect("open");
    extents::of_file(file.as_fd()).expect("its extents")[0].namespace_offset
}

/// What the device has there, past every cache.
fn on_device(stage: &Stage, place: u64) -> Vec<u8> {
    const O_DIRECT: i32 = 0o40000;
    let disk = Path::new(&stage.path("mount")).join("disk");
    let disk = fs::OpenOptions::new().read(true).custom_flags(O_DIRECT).open(disk).expect("the namespace");
    let mut buffer = vec![0; 8192];
    let skip = buffer.as_ptr().align_offset(4096);
    disk.read_exact_at(&mut buffer[skip..skip + 4096], place).expect("read");
    buffer[skip..skip + 8].to_vec()
}

fn freeze(stage: &Stage) {
    tool("timeout", &[HANGS_SECONDS, "fsfreeze", "--freeze", &stage.path("files")]).expect("frozen");
}

fn thaw(stage: &Stage) {
    tool("fsfreeze", &["--unfreeze", &stage.path("files")]).expect("thawed");
}

/// What the writer's number on the device is when the file system has just been frozen, and some time later.
fn while_frozen(stage: &Stage, writer: &Writer) -> (Vec<u8>, Vec<u8>) {
    let place = place_of(writer);
    freeze(stage);
    let first = on_device(stage, place);
    std::thread::sleep(Duration::from_millis(700));
    (first, on_device(stage, place))
}

#[test]
fn nothing_is_written_past_a_file_system_that_is_frozen() {
    let test = "nothing_is_written_past_a_file_system_that_is_frozen";
    let over_tcp = or_skip(test, Stage::remote_xfs(&["--ram", "--size", "400M"], By::Network));
    for (system, stage) in stages(test).into_iter().chain(over_tcp.map(|stage| ("xfs over TCP", stage))) {
        for round in 0..3 {
            let writer = Writer::start(&stage, ALICE);
            let (first, later) = while_frozen(&stage, &writer);
            assert_eq!(first, later, "{system}, round {round}");
            assert!(writer.last_line().contains("no such permission"), "{system}");
            // Who asks now is told, at once.
            let other = writer.file.clone();
            let mut asked = Command::new("timeout");
            asked.arg(HANGS_SECONDS).arg(stage.willow()).args(["direct", "read"]).arg(&other);
            asked.args(["--agent", &stage.path("agent")]);
            if stage.address.is_none() {
                asked.args(["--target", &stage.path("device")]);
            }
            let asked = asked.uid(ALICE).gid(ALICE).current_dir("/").output().expect("it runs");
            let said = String::from_utf8_lossy(&asked.stderr).into_owned();
            assert!(said.contains("file system is frozen"), "{system}: {said}");
            thaw(&stage);
            drop(writer);
            within_seconds("it thaws", || !is_frozen(&other));
        }
        // Nothing keeps the file system from being mounted read-only, or taken away, when nobody has a file.
        // The agent closes a file a moment after it has thawed.
        let files = stage.path("files");
        within_seconds("it is read-only", || tool("mount", &["-o", "remount,ro", &files]).is_ok());
        within_seconds("it is taken away", || tool("umount", &[&files]).is_ok());
    }
}

/// Where nobody writes directly, and one process reads, the agent is held up by a frozen file system as little.
#[test]
fn readers_of_a_file_system_that_is_frozen_are_told_and_hold_nobody_up() {
    for (system, stage) in stages("readers_of_a_file_system_that_is_frozen_are_told_and_hold_nobody_up") {
        let session = session(&stage);
        let (held, other) = (stage.on_it("held"), stage.on_it("other"));
        for path in [&held, &other] {
            fs::write(path, vec![7; 50_000]).expect("written");
        }
        let open = |path: &std::path::Path| File::new(&session, fs::File::open(path).expect("open")).expect("a file");
        let file = open(&held);
        file.take().expect("directly");
        freeze(&stage);
        assert_eq!(Judge::new(&stage).permitted(None), Default::default(), "{system}: a reader has it still");
        // Were it to wait for the file system, it would do so for ever.
        assert!(open(&other).take().is_err(), "{system}: it was taken while frozen");
        drop(file);
        let mut bytes = [0; 10];
        assert_eq!(open(&held).pread(&mut bytes, 49_995).expect("read"), 5, "{system}");
        thaw(&stage);
        within_seconds("it thaws", || !is_frozen(&held) && !is_frozen(&other));
        open(&other).take().expect("directly, after it has thawed");
    }
}

#[test]
fn a_program_goes_on_over_a_freeze_and_has_written_what_it_wrote() {
    for (system, stage) in stages("a_program_goes_on_over_a_freeze_and_has_written_what_it_wrote") {
        let session = session(&stage);
        let path = stage.on_it("file");
        fs::write(&path, vec![0; 100_000]).expect("written");
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let file = File::new(&session, file).expect("a file");
        file.take().expect("directly");
        let ends = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let writes = scope.spawn(|| {
                let mut number = 0u64;
                while !ends.load(Ordering::SeqCst) {
                    number += 1;
                    assert_eq!(file.pwrite(&number.to_le_bytes(), number % 10_000 * 8).expect("written"), 8);
                    // One that was begun before may end in it.
                    let mut read = [0; 8];
                    file.pread(&mut read, number % 10_000 * 8).expect("read");
                    assert_eq!(read, number.to_le_bytes());
                }
                number
            });
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(200));
                freeze(&stage);
                std::thread::sleep(Duration::from_millis(200));
                thaw(&stage);
            }
            let before = session.counts().direct_writes;
            within_seconds("it is written directly again", || session.counts().direct_writes > before + 100);
            ends.store(true, Ordering::SeqCst);
            writes.join().expect("it ends")
        });
        drop(file);
        let all = fs::read(&path).expect("read");
        let last = |place: u64| (0..=count).rev().take(10_000).find(|number| number % 10_000 == place).unwrap_or(0);
        for place in 0..10_000u64 {
            let found = u64::from_le_bytes(all[place as usize * 8..][..8].try_into().expect("8 bytes"));
            assert_eq!(found, last(place), "{system}: number {place} of {count}");
        }
    }
}

#[test]
fn what_an_administrator_does_leaves_the_device_with_the_files_own_blocks() {
    for (system, stage) in stages("what_an_administrator_does_leaves_the_device_with_the_files_own_blocks") {
        let writer = Writer::start(&stage, ALICE);
        let reader = fs::File::open(&writer.file).expect("open");
        let extents = || extents::of_file(reader.as_fd()).expect("its extents");
        let (before, place) = (extents(), place_of(&writer));
        let (files, block) = (stage.path("files"), stage.block().to_owned());
        let goes_on = |what: &str| {
            let number = on_device(&stage, place);
            within_seconds(&format!("{system}: {what}: it is written on"), || on_device(&stage, place) != number);
            assert_eq!(extents(), before, "{system}: {what}");
        };
        goes_on("at the beginning");
        let grow: &[&str] = if system == "ext4" { &["resize2fs", &block] } else { &["xfs_growfs", "-d", &files] };
        let defragment: &[&str] = if system == "ext4" { &["e4defrag", &files] } else { &["xfs_fsr", "-v", &files] };
        // What has to fail: somebody writes there.
        let ways: [(&str, &[&str], bool); 8] = [
            ("mounted read-only", &["mount", "-o", "remount,ro", &files], true),
            ("taken away", &["umount", &files], true),
            ("quota", &["mount", "-o", "remount,usrquota", &files], false),
            ("trimmed", &["fstrim", &files], false),
            ("resized", grow, false),
            ("defragmented", defragment, false),
            ("detached", &["losetup", "-d", &block], false),
            ("taken away lazily", &["umount", "-l", &files], false),
        ];
        for (what, command, fails) in ways {
            assert!(has(command[0]), "{} is not installed", command[0]);
            let done = tool(command[0], &command[1..]);
            println!("{system}: {what}: {done:?}");
            assert!(!(fails && done.is_ok()), "{system}: {what}: {done:?}");
            goes_on(what);
        }
        // Nobody has it any more, and so it goes.
        drop((reader, writer));
        within_seconds("the block device is free", || {
            !tool("losetup", &["-n", "-O", "BACK-FILE", &block]).is_ok_and(|file| file.contains(&stage.path("mount")))
        });
    }
}

/// The file system is made anew on a part of its device, and grows to all of it while a file is written directly.
#[test]
fn a_file_system_that_grows_leaves_direct_files_where_they_are() {
    for (system, stage) in stages("a_file_system_that_grows_leaves_direct_files_where_they_are") {
        let (files, block) = (stage.path("files"), stage.block().to_owned());
        let ext4: (&[&str], &[&str]) = (&["mkfs.ext4", "-q", "-F", &block, "64M"], &["resize2fs", &block]);
        let make = ["mkfs.xfs", "-q", "-f", "-m", "reflink=0", "-d", "size=300m", &block];
        let (make, grow) = if system == "ext4" { ext4 } else { (&make[..], &["xfs_growfs", "-d", &files][..]) };
        within_seconds("nobody has it", || tool("umount", &[&files]).is_ok());
        tool(make[0], &make[1..]).expect("made on a part of it");
        tool("mount", &["-o", "noatime", &block, &files]).expect("mounted");
        let blocks = || rustix::fs::statvfs(&files).expect("its size").f_blocks;
        let writer = Writer::start(&stage, ALICE);
        let reader = fs::File::open(&writer.file).expect("open");
        let extents = || extents::of_file(reader.as_fd()).expect("its extents");
        let (before, place, small) = (extents(), place_of(&writer), blocks());
        if let Err(why) = tool(grow[0], &grow[1..]) {
            // Root without CAP_SYS_RESOURCE, as in containers: tests/tests/guest_ways.rs grows it.
            assert!(system == "ext4" && why.contains("Permission denied"), "{system}: {why}");
            println!("{system}: {why}");
            continue;
        }
        assert!(blocks() > small + small / 5, "{system}: it has not grown");
        // Others get what is new, and none of what is the file's.
        let others = stage.on_it("others");
        let data = contents(1 << 20, 5);
        let mut file = fs::File::create(&others).expect("made");
        while file.write_all(&data).is_ok() {}
        file.sync_all().expect("synced");
        assert_eq!(extents(), before, "{system}");
        assert!(Judge::new(&stage).all_is_of(&writer.file).is_ok_and(|blocks| blocks > 0), "{system}");
        let number = on_device(&stage, place);
        within_seconds("it is written on", || on_device(&stage, place) != number);
        drop(writer);
        within_seconds("it thaws", || !is_frozen(&stage.on_it(&format!("of-{ALICE}/file"))));
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root");
        let all = fs::read(&others).expect("read");
        assert!(all.len() > data.len(), "{system}: there is no room");
        assert!(all.chunks(data.len()).all(|part| part == &data[..part.len()]), "{system}: others' bytes have changed");
    }
}

/// ext4 is cut while nobody has it mounted, which a direct file prevents: its blocks move then, and are asked for anew.
#[test]
fn a_file_system_that_shrank_has_its_files_directly_where_they_are_now() {
    let test = "a_file_system_that_shrank_has_its_files_directly_where_they_are_now";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let (files, block) = (stage.path("files"), stage.block().to_owned());
    const CUT_BYTES: u64 = 32 << 20;
    let (path, data) = (stage.on_it("moved"), contents(4 << 20, 3));
    // What lies before it goes.
    let before = stage.on_it("before");
    fs::write(&before, vec![1; 80 << 20]).expect("written");
    fs::File::open(&before).expect("open").sync_all().expect("synced");
    fs::write(&path, &data).expect("written");
    fs::File::open(&path).expect("open").sync_all().expect("synced");
    fs::remove_file(&before).expect("removed");
    let end = |path: &Path| {
        let extents = extents::of_file(fs::File::open(path).expect("open").as_fd()).expect("its extents");
        extents.iter().map(|extent| extent.namespace_offset + extent.bytes).max().expect("some")
    };
    assert!(end(&path) > CUT_BYTES, "it lies before what is cut: {}", end(&path));
    let session = session(&stage);
    let take = || {
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let file = File::new(&session, file).expect("a file");
        file.take().expect("directly");
        file
    };
    let file = take();
    let was = end(&path);
    // While it is mounted it only grows, and it stays mounted while somebody has a file.
    let cut = (CUT_BYTES >> 10).to_string() + "K";
    let refused = tool("resize2fs", &[&block, &cut]).expect_err("mounted");
    println!("{refused}");
    tool("umount", &[&files]).expect_err("a file is direct");
    assert_eq!(end(&path), was);
    assert_eq!(file.pwrite(b"written directly", 100).expect("written"), 16);
    drop(file);
    within_seconds("it thaws", || !is_frozen(&path));
    within_seconds("nobody has it", || tool("umount", &[&files]).is_ok());
    tool("e2fsck", &["-f", "-p", &block]).expect("whole");
    tool("resize2fs", &[&block, &cut]).expect("cut");
    tool("mount", &["-o", "noatime", &block, &files]).expect("mounted");
    let now = end(&path);
    assert!(now <= CUT_BYTES, "it has not moved: {now}");
    let mut model = data;
    model[100..116].copy_from_slice(b"written directly");
    let file = take();
    assert!(Judge::new(&stage).all_is_of(&path).is_ok_and(|blocks| blocks == model.len() / 4096));
    let mut got = vec![0; model.len()];
    assert_eq!(file.pread(&mut got, 0).expect("read"), got.len());
    assert!(file.is_direct() && got == model, "what is read directly is not the file's");
    assert_eq!(file.pwrite(b"in its new place", 2 << 20).expect("written"), 16);
    model[2 << 20..][..16].copy_from_slice(b"in its new place");
    drop(file);
    within_seconds("it thaws", || !is_frozen(&path));
    assert!(fs::read(&path).expect("read") == model);
}

/// xfs gives up free space at its end while it is mounted, and no block of a file.
#[test]
fn a_mounted_file_system_that_shrinks_leaves_direct_files_where_they_are() {
    let test = "a_mounted_file_system_that_shrinks_leaves_direct_files_where_they_are";
    let Some(stage) = or_skip(test, Stage::xfs()) else { return };
    let files = stage.path("files");
    let stat = || rustix::fs::statvfs(&files).expect("its size");
    let bytes = || stat().f_blocks * stat().f_frsize;
    // A folder's files begin where the folder does, and folders are spread over the file system: one of these is in its last part.
    let writers: Vec<Writer> = (0..8)
        .map(|number| {
            let folder = stage.on_it(&format!("of-{}", ALICE + number));
            fs::create_dir(&folder).expect("a folder");
            // Far enough from the beginning of that part, which stays at least in some of it.
            fs::write(folder.join("first"), vec![1; 1 << 20]).expect("written");
            fs::File::open(folder.join("first")).expect("open").sync_all().expect("synced");
            Writer::start(&stage, ALICE + number)
        })
        .collect();
    let of =
        |writer: &Writer| extents::of_file(fs::File::open(&writer.file).expect("open").as_fd()).expect("its extents");
    let last = writers.iter().max_by_key(|writer| place_of(writer)).expect("some");
    let (before, place, size) = (of(last), place_of(last), bytes());
    let goes_on = |what: &str| {
        let number = on_device(&stage, place);
        within_seconds(&format!("{what}: it is written on"), || on_device(&stage, place) != number);
        assert_eq!(of(last), before, "{what}");
    };
    // The blocks of xfs' data are as many as its log leaves: what is said is what all of it has.
    let geometry = tool("xfs_growfs", &["-n", &files]).expect("its geometry");
    let word = |line: &str, name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().ok()
    };
    let line = geometry.lines().find(|line| line.starts_with("data")).expect("its data");
    let (block, blocks) = (word(line, "bsize=").expect("bytes"), word(line, "blocks=").expect("blocks"));
    let group = geometry.lines().find_map(|line| word(line, "agsize=")).expect("blocks of a group");
    assert!(place / block >= blocks / group * group - group, "no file is in the last part: {place} of {geometry}");
    // Into the file, and then of what is free behind it.
    let into = (place / block + 4).to_string();
    let refused = tool("xfs_growfs", &["-D", &into, &files]).expect_err("a file is there");
    assert!(refused.contains("No space left"), "{refused}");
    assert_eq!(bytes(), size, "it has shrunk: {refused}");
    goes_on("cut into");
    let free = (blocks - 1024).to_string();
    match tool("xfs_growfs", &["-D", &free, &files]) {
        Ok(_) => assert!(bytes() < size, "it has not shrunk"),
        Err(why) => panic!("free space stays: {why}"),
    }
    goes_on("cut");
    drop(writers);
}

#[test]
fn a_file_system_that_is_shut_down_gives_no_block_away() {
    for (system, mut stage) in stages("a_file_system_that_is_shut_down_gives_no_block_away") {
        let writer = Writer::start(&stage, ALICE);
        let place = place_of(&writer);
        if let Err(why) = tool("xfs_io", &["-x", "-c", "shutdown", &stage.path("files")]) {
            willow_tests::stage::skip("a_file_system_that_is_shut_down_gives_no_block_away", &why);
            return;
        }
        // It allocates nothing any more, so that what is permitted stays the file's.
        assert!(fs::write(stage.on_it("other"), b"x").is_err(), "{system}");
        let number = on_device(&stage, place);
        within_seconds(&format!("{system}: it is written on"), || on_device(&stage, place) != number);
        // The attribute cannot be taken off: the agent keeps the file, and says so at its end.
        drop(writer);
        let mut agent = stage.agent.take().expect("the agent");
        tool("kill", &["-TERM", &agent.id().to_string()]).expect("told to end");
        within_seconds("the agent ends", || !Path::new(&format!("/proc/{}/fd/0", agent.id())).exists());
        assert!(agent.wait().expect("an end").success(), "{system}");
        let journal = fs::read_to_string(stage.path("agent.frozen")).expect("the list");
        assert!(journal.contains(&format!("of-{ALICE}/file")), "{system}: {journal}");
    }
}

/// While a process has a hundred files directly, and another one opens a file that takes long to be opened: whether the device permits
/// anything once the file system is frozen, in one of so many rounds.
fn is_permitted_while_frozen(stage: &Stage, rounds: u64) -> bool {
    let path = stage.on_it("in-pieces");
    if !path.exists() {
        drop(stage.in_pieces("in-pieces", PIECES));
        std::os::unix::fs::chown(&path, Some(ALICE), Some(ALICE)).expect("its owner");
    }
    let mut alice = Talking::new(&mut attacker(stage, ALICE, &path, "confirms"));
    let (session, judge) = (session(stage), Judge::new(stage));
    let open = |number: usize| {
        let path = stage.on_it(&format!("small-{number}"));
        fs::write(&path, [number as u8; 4096]).expect("written");
        let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
        File::new(&session, file).expect("a file")
    };
    let small: Vec<File<fs::File>> = (0..SMALL).map(open).collect();
    let mut is_permitted = false;
    for round in 0..rounds {
        for file in &small {
            // Some are, by what the round before left, told that they were taken back: then it is asked for once more.
            let taken = (0..100).any(|_| {
                let _ = file.take();
                file.is_direct()
            });
            assert!(taken, "it is not to be had directly");
        }
        alice.tell();
        let prepared = alice.line();
        assert!(prepared.to_lowercase().contains("prepared"), "{prepared}");
        alice.tell();
        // At another place of the other's way each time, however slow that is.
        std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 7 * round % 150 } else { 7 * round }));
        freeze(stage);
        for _ in 0..20 {
            is_permitted |= !judge.permitted(None).is_empty();
            std::thread::sleep(Duration::from_millis(50));
        }
        thaw(stage);
        if is_permitted {
            break;
        }
    }
    is_permitted
}

#[test]
fn what_is_being_opened_when_a_file_system_is_frozen_is_not_permitted_afterwards() {
    let test = "what_is_being_opened_when_a_file_system_is_frozen_is_not_permitted_afterwards";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert!(!is_permitted_while_frozen(&stage, 5));
    for fault in [AgentFault::SettledLate, AgentFault::NotUnderWay] {
        let planted = Planted::start(&mut stage, fault);
        // The moment is met by trying: as a rule within a few rounds, on a machine that does other things later.
        assert!(is_permitted_while_frozen(&stage, 100), "{fault:?} is not caught");
        drop(planted);
    }
}

#[test]
fn an_agent_that_leaves_readers_what_they_have_is_caught() {
    let test = "an_agent_that_leaves_readers_what_they_have_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let planted = Planted::start(&mut stage, AgentFault::ReadersLeft);
    let path = stage.on_it("held");
    fs::write(&path, vec![7; 50_000]).expect("written");
    let file = File::new(&session(&stage), fs::File::open(&path).expect("open")).expect("a file");
    file.take().expect("directly");
    freeze(&stage);
    let permitted = Judge::new(&stage).permitted(None);
    thaw(&stage);
    assert!(!permitted.is_empty(), "what a reader has is not seen");
    drop(file);
    drop(planted);
}

#[test]
fn an_agent_that_lets_a_file_system_freeze_too_early_is_caught() {
    let test = "an_agent_that_lets_a_file_system_freeze_too_early_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let planted = Planted::start(&mut stage, AgentFault::HolderFirst);
    let writer = Writer::start(&stage, ALICE);
    let place = place_of(&writer);
    freeze(&stage);
    let first = on_device(&stage, place);
    // It does not revoke until it is healed.
    within_seconds("what is written while it is frozen is seen", || on_device(&stage, place) != first);
    planted.agent.heal(AgentFault::HolderFirst);
    thaw(&stage);
    drop(writer);
    drop(planted);
}
