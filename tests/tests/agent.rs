//! The agent under load and under attack: several users at once, floods of files, want of descriptors, files in many pieces, clients that
//! die in the middle. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use willow_host::agent::FILES_MAX;
use willow_host::direct_io::{AgentClient, File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::attacker::{Talking, attacker};
use willow_tests::midst::killed_with_commands_under_way;
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, WAIT_MAX, contents, is_frozen, or_skip, tool, within_seconds};

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// `willow direct` as a user.
fn direct(stage: &Stage, user: u32, verb: &str, file: &Path) -> Command {
    let mut command = Command::new(stage.willow());
    let file = file.display().to_string();
    command.args(["direct", verb, &file, "--target", &stage.path("device"), "--agent", &stage.path("agent")]);
    command.uid(user).gid(user).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn thawed(path: &Path) {
    within_seconds(&format!("{} thaws", path.display()), || !is_frozen(path));
}

/// The first line of a child.
fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    line
}

/// An agent that may have so many descriptors, in the place of the stage's.
fn agent_with(stage: &mut Stage, descriptors: usize) -> Child {
    stage.kill_agent();
    let block = format!("{}=1", stage.block());
    let mut agent = Command::new(env!("CARGO_BIN_EXE_willow-crasher"));
    agent.args([&stage.path("device"), &stage.path("agent"), &block, &stage.path("agent.frozen"), "0"]);
    let agent = agent.arg(format!("descriptors={descriptors}")).stdout(Stdio::piped()).spawn();
    let mut agent = agent.expect("it runs");
    assert_eq!(line(&mut agent), "ready\n");
    agent
}

/// A hoarder, how many files it got, and what it said, when it gets no more.
fn hoards(stage: &Stage, user: u32, file: &Path, what: &str) -> (Child, usize, String) {
    let mut hoarder = attacker(stage, user, file, what).spawn().expect("it runs");
    let said = line(&mut hoarder);
    let count = said.split('\t').nth(1).and_then(|count| count.parse().ok());
    let count = count.unwrap_or_else(|| panic!("{user}: {said}"));
    (hoarder, count, said)
}

/// A folder of a user's own.
fn own_folder(stage: &Stage, user: u32) -> PathBuf {
    let folder = stage.on_it(&format!("of-{user}"));
    fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(user), Some(user)).expect("its owner");
    folder
}

#[test]
fn several_users_at_once_have_their_own_files_and_no_others() {
    const USERS: u32 = 6;
    let Some(stage) = or_skip("several_users_at_once_have_their_own_files_and_no_others", Stage::ext4()) else {
        return;
    };
    let user = |number: u32| 54_100 + number;
    let files: Vec<PathBuf> =
        (0..USERS).map(|it| stage.owned(&format!("file-{it}"), user(it), &contents(900_001, it))).collect();
    // Everybody may open all of them: what keeps others from them is the agent.
    files.iter().for_each(|file| fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("its mode"));
    let refused = |it: u32, others: Child| {
        let others = others.wait_with_output().expect("an end");
        let said = String::from_utf8_lossy(&others.stderr).into_owned();
        assert!(!others.status.success() && others.stdout.is_empty(), "user {it} has another's: {said}");
        assert!(said.contains("belongs to another user"), "user {it}: {said}");
    };
    for round in 0..3 {
        let started: Vec<(u32, Child, Child)> = (0..USERS)
            .map(|it| {
                let own = direct(&stage, user(it), "read", &files[it as usize]).spawn().expect("it runs");
                let others = &files[((it + 1 + round) % USERS) as usize];
                (it, own, direct(&stage, user(it), "read", others).spawn().expect("it runs"))
            })
            .collect();
        for (it, own, others) in started {
            let own = own.wait_with_output().expect("an end");
            assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stderr));
            assert!(own.stdout == contents(900_001, it), "user {it}");
            refused(it, others);
        }
    }
    for (it, file) in (1..=USERS).zip(&files) {
        thawed(file);
        let mut others = direct(&stage, user(it % USERS), "write", file).spawn().expect("it runs");
        // It may have been refused before it reads this.
        let _ = others.stdin.take().expect("its input").write_all(&[0; 5000]);
        refused(it, others);
        assert!(fs::read(file).expect("read") == contents(900_001, it - 1), "somebody has written it");
    }
}

#[test]
fn a_flood_of_files_has_an_end_and_harms_nobody_else() {
    let Some(stage) = or_skip("a_flood_of_files_has_an_end_and_harms_nobody_else", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("flooded");
    fs::write(&path, contents(20_000, 1)).expect("written");
    let file = || fs::File::open(&path).expect("open");
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let mut held = Vec::new();
    let refusal = loop {
        match agent.open(file()) {
            Ok(mapped) => held.push(mapped),
            Err(error) => break error.to_string(),
        }
        assert!(held.len() <= FILES_MAX);
    };
    assert!(held.len() == FILES_MAX && refusal.contains("which is the most"), "{}: {refusal}", held.len());
    // Somebody else is served as ever, and so is this process when it has closed one.
    let bobs = stage.owned("bobs", 54_201, &contents(50_000, 2));
    let output = direct(&stage, 54_201, "read", &bobs).output().expect("it runs");
    assert!(output.status.success() && output.stdout == contents(50_000, 2));
    held.pop().expect("one").close().expect("closed");
    held.push(agent.open(file()).expect("once more"));
    drop(held);
    thawed(&path);
    // Opened and closed by many threads at once: what is left is nothing.
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (session, path) = (&session, &path);
            scope.spawn(move || {
                for round in 0..30 {
                    let file = File::new(session, fs::File::open(path).expect("open")).expect("a file");
                    file.take().expect("directly");
                    let mut got = [0; 100];
                    assert_eq!(file.pread(&mut got, thread * 100 + round).expect("read"), 100);
                    assert!(got == contents(20_000, 1)[(thread * 100 + round) as usize..][..100]);
                }
            });
        }
    });
    thawed(&path);
}

#[test]
fn a_users_idle_connections_keep_nobody_else_out() {
    let Some(stage) = or_skip("a_users_idle_connections_keep_nobody_else_out", Stage::ext4()) else { return };
    let bobs = stage.owned("bobs", 54_702, &contents(50_000, 2));
    // Each takes what it gets, and more users come than halves of halves leave places for.
    let mut crowds: Vec<Child> = (0..14)
        .map(|user| {
            let mut crowd = attacker(&stage, 54_710 + user, &bobs, "crowd").spawn().expect("it runs");
            let said = line(&mut crowd);
            assert!(said.starts_with("there"), "{said}");
            crowd
        })
        .collect();
    for round in 0..5 {
        let output = direct(&stage, 54_702, "read", &bobs).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && output.stdout == contents(50_000, 2), "round {round}: {said}");
    }
    // Who asks for nothing does not stay.
    let pid = stage.agent.as_ref().expect("the agent").id();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").count();
    within_seconds("the idle ones go", || threads() < 40);
    for crowd in &mut crowds {
        crowd.kill().expect("killed");
        crowd.wait().expect("an end");
    }
}

#[test]
fn a_users_open_files_keep_nobody_else_out() {
    let Some(mut stage) = or_skip("a_users_open_files_keep_nobody_else_out", Stage::ext4()) else { return };
    let agent = agent_with(&mut stage, 256);
    let mut hoarders: Vec<Child> = Vec::new();
    for user in 54_720..54_732 {
        let (hoarder, count, said) = hoards(&stage, user, &own_folder(&stage, user).join("file"), "hoard");
        println!("{user}: {said}");
        // Half of 256 descriptors are the files'; each file of a process counts twice, since it may be opened again; and so many as one user
        // has stay free.
        let fair = 128 / 2 / (user as usize - 54_720 + 2);
        assert!(count + 1 >= fair && said.contains("room for other users"), "{user}: {said}");
        assert!(count <= 128 / 2 / 2, "{user}: {said}: as many have to stay free");
        hoarders.push(hoarder);
    }
    // One more, who has none, finds a place.
    let bobs = stage.owned("bobs", 54_733, &contents(50_000, 2));
    let output = direct(&stage, 54_733, "read", &bobs).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for mut child in hoarders.into_iter().chain([agent]) {
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
}

/// The file that one user is to give up for another cannot be thawed, for as long as that one likes.
#[test]
fn a_file_that_is_given_up_and_kept_busy_keeps_nobody_else_waiting() {
    let test = "a_file_that_is_given_up_and_kept_busy_keeps_nobody_else_waiting";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let agent = agent_with(&mut stage, 256);
    let folder = own_folder(&stage, 54_735);
    let (mallory, count, said) = hoards(&stage, 54_735, &folder.join("file"), "hoard");
    assert!(count >= 16, "{said}");
    // The one that was opened first is given up first.
    let first = folder.join(format!("file.{}.0", mallory.id()));
    assert!(is_frozen(&first));
    let mut locks = Talking::new(&mut attacker(&stage, 0, &first, "locks"));
    assert!(locks.line().starts_with("locked"));
    // Alice needs more than are left: she is told that there is no place, and finds one later.
    let (alice, few, said) = hoards(&stage, 54_736, &own_folder(&stage, 54_736).join("file"), "hoard");
    assert!(few > 0 && said.contains("room for other users"), "{said}");
    assert!(is_frozen(&first), "it was not given up, or nothing keeps it");
    let (more, count, said) = hoards(&stage, 54_736, &own_folder(&stage, 54_736).join("file"), "hoard");
    assert!(said.contains("room for other users"), "{count}: {said}");
    let bobs = stage.owned("bobs", 54_737, &contents(50_000, 2));
    let output = direct(&stage, 54_737, "read", &bobs).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    locks.go_on();
    thawed(&first);
    assert!(locks.has_succeeded());
    for mut child in [mallory, alice, more, agent] {
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
}

#[test]
fn a_user_with_many_connections_and_files_keeps_nobody_else_out() {
    const CONNECTIONS: usize = 64;
    const DESCRIPTORS: usize = 4096;
    let test = "a_user_with_many_connections_and_files_keeps_nobody_else_out";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let agent = agent_with(&mut stage, DESCRIPTORS);
    let folder = own_folder(&stage, 54_740);
    let mut hoarders = Vec::new();
    let mut held = 0;
    for _ in 0..CONNECTIONS {
        let (hoarder, count, _) = hoards(&stage, 54_740, &folder.join("file"), "hoard");
        hoarders.push(hoarder);
        held += count;
    }
    // Half of its descriptors are for files, each counts twice, and as many as one user has stay free.
    let fair = DESCRIPTORS / 2 / 2 / 2;
    assert!(held <= fair && held >= fair - 1, "{held} files over {CONNECTIONS} connections");
    let open = fs::read_dir(format!("/proc/{}/fd", agent.id())).expect("its descriptors").count();
    assert!(open < DESCRIPTORS / 2, "{open} descriptors are taken");
    let bobs = stage.owned("bobs", 54_741, &contents(50_000, 2));
    let output = direct(&stage, 54_741, "read", &bobs).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stdout == contents(50_000, 2), "{said}");
    for mut child in hoarders.into_iter().chain([agent]) {
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
}

/// The agent keeps the extents of open files: a user's file in many pieces, open again and again, is bounded by what others may need.
#[test]
fn a_users_files_in_many_pieces_keep_nobody_else_out() {
    const PIECES: usize = 500;
    let Some(mut stage) = or_skip("a_users_files_in_many_pieces_keep_nobody_else_out", Stage::ext4()) else { return };
    let planted = Planted::named(&mut stage, "");
    // Of eight such files at once.
    planted.agent.limit_extents(8 * PIECES);
    let owned = |user: u32| {
        let name = format!("of-{user}.pieces");
        drop(stage.in_pieces(&name, PIECES));
        std::os::unix::fs::chown(stage.on_it(&name), Some(user), Some(user)).expect("its owner");
        fs::File::open(stage.on_it(&name)).expect("open").sync_all().expect("synced");
        stage.on_it(&name)
    };
    let users = [54_750, 54_751, 54_752, 54_753, 54_754];
    let files = users.map(owned);
    let (mut hoarders, mut counts) = (Vec::new(), Vec::new());
    for (user, file) in users.into_iter().zip(&files) {
        let (hoarder, count, said) = hoards(&stage, user, file, "hoard one");
        assert!(said.contains("as many extents as leave room for other users"), "{user}: {said}");
        hoarders.push(hoarder);
        counts.push(count);
    }
    // Each leaves as much free as it has. The first gives up what the later ones need.
    assert_eq!(counts[..2], [4, 2], "{counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // A small file needs little, and whoever had most is told that it gave something up: it goes on by asking again.
    let bobs = stage.owned("bobs", 54_755, &contents(50_000, 2));
    let output = direct(&stage, 54_755, "read", &bobs).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for mut child in hoarders {
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
    // What they had is free again: one user gets half of it.
    within_seconds("all is given back", || planted.agent.frozen() == 0);
    let (mut hoarder, count, _) = hoards(&stage, users[4], &files[4], "hoard one");
    assert_eq!(count, 4);
    hoarder.kill().expect("killed");
    hoarder.wait().expect("an end");
    drop(planted);
}

/// Files that cannot be thawed are their user's until they can be: with processes that end and others that come a user has no more of them than with
/// one, and others find a place.
#[test]
fn files_that_cannot_be_thawed_are_their_users_and_keep_nobody_else_out() {
    const DESCRIPTORS: usize = 64;
    let test = "files_that_cannot_be_thawed_are_their_users_and_keep_nobody_else_out";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let planted = Planted::start(&mut stage, AgentFault::ThawFails);
    planted.agent.limit_descriptors(DESCRIPTORS);
    let folder = own_folder(&stage, 54_760);
    let (mut rounds, mut all) = (0, 0);
    loop {
        let (mut hoarder, count, said) = hoards(&stage, 54_760, &folder.join("file"), "hoard");
        all += count;
        assert_eq!(planted.agent.frozen(), all, "{said}");
        // As many as one user has stay free.
        assert!(all <= DESCRIPTORS / 2, "round {rounds}: {all} files");
        hoarder.kill().expect("killed");
        hoarder.wait().expect("an end");
        within_seconds("they are tried again", || planted.agent.left() == all);
        if count == 0 {
            assert!(said.contains("room for other users"), "{said}");
            break;
        }
        rounds += 1;
    }
    assert!(rounds > 1 && all == DESCRIPTORS / 2, "{rounds} rounds, {all} files");
    // Others find places, also past those that one user leaves, and none of them is asked to give up what it cannot.
    let others = [54_761, 54_762, 54_763].map(|user| {
        let (hoarder, count, said) = hoards(&stage, user, &own_folder(&stage, user).join("file"), "hoard");
        assert!(count > 0 && said.contains("room for other users"), "{user}: {said}");
        hoarder
    });
    planted.agent.heal(AgentFault::ThawFails);
    for mut child in others {
        child.kill().expect("killed");
        child.wait().expect("an end");
    }
    within_seconds("all thaw", || planted.agent.frozen() == 0 && planted.agent.left() == 0);
    let (mut hoarder, count, _) = hoards(&stage, 54_760, &folder.join("file"), "hoard");
    assert_eq!(count, DESCRIPTORS / 4, "each counts twice while it may be opened again");
    // So are those that wait for a file system which somebody has frozen.
    tool("timeout", &["300", "fsfreeze", "--freeze", &stage.path("files")]).expect("frozen");
    hoarder.kill().expect("killed");
    hoarder.wait().expect("an end");
    let wait = || within_seconds("they wait for the file system", || planted.agent.left() == count);
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
    tool("fsfreeze", &["--unfreeze", &stage.path("files")]).expect("thawed");
    waited.expect("they wait");
    within_seconds("all thaw with it", || planted.agent.frozen() == 0 && planted.agent.left() == 0);
    drop(planted);
}

#[test]
fn who_asks_all_the_time_keeps_nothing_that_was_prepared() {
    let Some(stage) = or_skip("who_asks_all_the_time_keeps_nothing_that_was_prepared", Stage::ext4()) else { return };
    let _session = session(&stage);
    let path = stage.on_it("prepared");
    fs::write(&path, contents(20_000, 1)).expect("written");
    let channel = willow_shm::socket::Channel::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let file = fs::OpenOptions::new().write(true).read(true).open(&path).expect("open");
    let ask = |text: &[u8], files: &[std::os::fd::BorrowedFd<'_>]| {
        channel.send(text, files).expect("asked");
        let answer = channel.receive_within(WAIT_MAX).expect("an answer");
        String::from_utf8_lossy(&answer.bytes).into_owned()
    };
    let prepared = ask(br#"{"open":{"version":2}}"#, &[std::os::fd::AsFd::as_fd(&file)]);
    let agent = stage.agent.as_ref().expect("the agent").id();
    let is_kept = || {
        let all = fs::read_dir(format!("/proc/{agent}/fd")).expect("its descriptors").flatten();
        all.filter_map(|one| fs::read_link(one.path()).ok()).any(|target| target == path)
    };
    assert!(prepared.contains("prepared") && is_kept(), "{prepared}");
    // It never confirms, and asks for something else again and again.
    within_seconds("it is kept for longer", || {
        ask(br#""resume""#, &[]);
        ask(br#""forget""#, &[std::os::fd::AsFd::as_fd(&file)]);
        !is_kept()
    });
}

#[test]
fn a_process_that_has_nothing_open_for_long_gives_its_place_up_and_opens_again() {
    let test = "a_process_that_has_nothing_open_for_long_gives_its_place_up_and_opens_again";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("now-and-then");
    fs::write(&path, contents(20_000, 1)).expect("written");
    let session = session(&stage);
    let pid = stage.agent.as_ref().expect("the agent").id();
    let connections = || {
        let names = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        names.map(name).filter(|name| name.trim() == "willow-agent").count()
    };
    let take = || {
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let file = File::new(&session, file).expect("a file");
        file.take().expect("directly");
        file
    };
    let file = take();
    assert_eq!(file.pwrite(b"once", 0).expect("written"), 4);
    let before = connections();
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert_eq!(file.pwrite(b"more", 4).expect("written"), 4);
    assert!(file.is_direct(), "who has a file open stays");
    drop(file);
    within_seconds("its place is free", || connections() < before);
    // As is the file system's own path to it, whoever has the file.
    let file = take();
    assert_eq!(file.pwrite(&[7; 20], 19_990).expect("grown"), 20);
    drop(file);
    let text = fs::read(&path).expect("read");
    assert!(text.starts_with(b"oncemore") && text.len() == 20_010 && text.ends_with(&[7; 20]));
}

#[test]
fn a_process_that_changes_its_user_is_asked_to_connect_again() {
    let test = "a_process_that_changes_its_user_is_asked_to_connect_again";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let roots = stage.owned("roots", 0, &contents(50_000, 2));
    let output = attacker(&stage, 0, &roots, "turncoat").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("refused") && said.contains("is user 54802's now"), "{said}");
}

#[test]
fn an_agent_without_descriptors_goes_on_when_it_has_some() {
    let Some(stage) = or_skip("an_agent_without_descriptors_goes_on_when_it_has_some", Stage::ext4()) else { return };
    let alices = stage.owned("alices", 54_301, &contents(50_000, 1));
    let _session = session(&stage);
    let pid = stage.agent.as_ref().expect("the agent").id();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    tool("prlimit", &["--pid", &pid.to_string(), &format!("--nofile={}:4096", open + 6)]).expect("a limit");
    let files: Vec<PathBuf> = (0..50).map(|it| stage.on_it(&format!("many-{it}"))).collect();
    files.iter().for_each(|path| fs::write(path, contents(20_000, 1)).expect("written"));
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let mut held = Vec::new();
    while let Ok(mapped) = agent.open(fs::File::open(&files[held.len()]).expect("open")) {
        held.push(mapped);
        assert!(held.len() < files.len(), "the limit is none");
    }
    // Whatever it could not do, nothing is left of it.
    drop(held);
    drop(agent);
    tool("prlimit", &["--pid", &pid.to_string(), "--nofile=4096:4096"]).expect("a limit");
    files.iter().for_each(|path| thawed(path));
    let read = || direct(&stage, 54_301, "read", &alices).output().expect("it runs");
    let good = |output: &Output| output.status.success() && output.stdout == contents(50_000, 1);
    within_seconds("the agent serves again", || good(&read()));
    thawed(&alices);
}

#[test]
fn a_file_in_many_pieces_is_read_and_written_whole() {
    const PIECES: usize = 3000;
    let Some(stage) = or_skip("a_file_in_many_pieces_is_read_and_written_whole", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("pieces");
    let (file, mut model) = stage.in_pieces("pieces", PIECES);
    file.sync_all().expect("synced");
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    drop(file);
    let open = || fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let mapped = agent.open(open()).expect("directly");
    assert_eq!(mapped.extents().len(), PIECES);
    assert!(mapped.can_write(8192, 4096) && !mapped.can_write(8192, 4097));
    mapped.close().expect("closed");
    let direct = File::new(&session, open()).expect("a file");
    direct.take().expect("directly");
    let mut got = vec![1; model.len() + 10];
    assert_eq!(direct.pread(&mut got, 0).expect("read"), model.len());
    assert!(got[..model.len()] == model);
    for piece in (0..PIECES).rev().step_by(7) {
        let at = piece * 8192 + 50;
        assert_eq!(direct.pwrite(&contents(4000, 9), at as u64).expect("written"), 4000);
        model[at..][..4000].copy_from_slice(&contents(4000, 9));
    }
    assert!(direct.is_direct() && session.counts().kernel_writes == 0, "{:?}", session.counts());
    direct.close();
    assert!(fs::read(&path).expect("read") == model);
}

#[test]
fn clients_that_die_in_the_middle_leave_nothing_behind() {
    let Some(stage) = or_skip("clients_that_die_in_the_middle_leave_nothing_behind", Stage::ext4()) else { return };
    let data = contents(4_000_000, 1);
    let files: Vec<PathBuf> = (0..4).map(|it| stage.owned(&format!("file-{it}"), 54_400 + it, &data)).collect();
    let start = || -> Vec<Child> {
        let start = |it: u32| direct(&stage, 54_400 + it, "read", &files[it as usize]).spawn().expect("it runs");
        (0..4).map(start).collect()
    };
    for _ in 0..3 {
        killed_with_commands_under_way(stage.device_pid(), start(), data.len());
    }
    for round in 0..12u64 {
        let mut clients = start();
        // At another moment each time: connecting, opening, reading.
        std::thread::sleep(std::time::Duration::from_millis(round * 4));
        for client in &mut clients {
            client.kill().expect("killed");
            client.wait().expect("an end");
        }
    }
    files.iter().for_each(|file| thawed(file));
    for (it, file) in (0..4u32).zip(&files) {
        let output = direct(&stage, 54_400 + it, "read", file).output().expect("it runs");
        assert!(output.status.success() && output.stdout == data, "{}", String::from_utf8_lossy(&output.stderr));
        thawed(file);
        tool("truncate", &["-s", "0", &file.display().to_string()]).expect("the file system's own again");
    }
}
