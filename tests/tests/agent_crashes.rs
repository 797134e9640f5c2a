//! An agent that ends at each step of freezing and thawing a file: what is immutable is in its journal, and the next agent thaws it.
//! Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::direct_io::{AgentClient, DirectError, DirectFile};
use willow_host::testing::AGENT_CRASHED;
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::host_cut;
use willow_tests::mapped::Mapped;
use willow_tests::midst::is_asleep;
use willow_tests::stage::{Frozen, Stage, contents, is_append_only, is_frozen, or_skip, skip, tool, within_seconds};

/// Steps, at least: an agent that has fewer has lost some.
const STEPS_MIN: u32 = 16;
/// Not whole pages.
const BYTES: usize = (64 << 10) + 1000;
/// Where in the file is written: the second is in its last page.
const PLACES: [u64; 2] = [5000, (64 << 10) + 100];
/// How long an agent may need to come to its last step when the file is thawed and off the journal; longer while a thread of it does anything.
const END_MAX: Duration = Duration::from_secs(2);
/// How long it may need until then, on any machine.
const THAW_MAX: Duration = Duration::from_secs(120);

fn is_journaled(stage: &Stage, path: &Path) -> bool {
    let text = fs::read_to_string(stage.path("agent.frozen")).expect("the journal");
    let inode = format!("\"inode\":{}", fs::metadata(path).expect("there").ino());
    let of_it = |line: &&str| line.contains(&format!("{inode},")) || line.contains(&format!("{inode}}}"));
    text.lines().rfind(of_it).is_some_and(|line| line.contains("freeze"))
}

/// What is done with an agent, as far as it lives: its process, the file, and bytes to be written there. True where they were acknowledged.
type Use = fn(&Stage, &mut Child, &Path, &[u8]) -> bool;

/// An endpoint of a user's process.
fn endpoint(stage: &Stage) -> Arc<dyn Hre> {
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    Arc::new(ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint"))
}

/// Connects with the agent, has the file directly, and writes it.
fn written_directly(stage: &Stage, path: &Path, mark: &[u8]) -> Result<(Arc<AgentClient>, DirectFile), DirectError> {
    let agent = AgentClient::connect(Path::new(&stage.path("agent")))?;
    let direct = DirectFile::open(&agent, endpoint(stage), writable(path).expect("open"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for at in PLACES {
        runtime.block_on(direct.write_at(mark, at))?;
    }
    Ok((agent, direct))
}

/// Connects with the agent, and has the file directly, to be read.
fn read_directly(stage: &Stage, path: &Path) -> (Arc<AgentClient>, DirectFile) {
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let direct = DirectFile::open(&agent, endpoint(stage), fs::File::open(path).expect("open")).expect("directly");
    (agent, direct)
}

/// Both marks are in the file.
fn has(text: &[u8], mark: &[u8]) -> bool {
    PLACES.iter().all(|at| text.get(*at as usize..).is_some_and(|from| from.starts_with(mark)))
}

fn writable(path: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// The process closes it.
fn close(stage: &Stage, _: &mut Child, path: &Path, mark: &[u8]) -> bool {
    let direct = written_directly(stage, path, mark).map(|(_, direct)| direct.close());
    direct.is_ok()
}

/// Another process has it released.
fn release(stage: &Stage, _: &mut Child, path: &Path, mark: &[u8]) -> bool {
    let Ok(_used) = written_directly(stage, path, mark) else { return false };
    let other = AgentClient::connect(Path::new(&stage.path("agent")));
    let _ = other.and_then(|other| other.release(fs::File::open(path).expect("open")));
    true
}

/// Somebody waits for the lease, who had passed the check of the attribute before that was set: here root takes it off for that.
fn wait_for_lease(stage: &Stage, agent: &mut Child, path: &Path, mark: &[u8]) -> bool {
    let Ok(_used) = written_directly(stage, path, mark) else { return false };
    let name = path.display().to_string();
    let signal = |what: &str| tool("kill", &[what, &agent.id().to_string()]).expect("it is there");
    // It does not look meanwhile.
    signal("-STOP");
    tool("chattr", &["-i", &name]).expect("root");
    let (begun, has_begun) = std::sync::mpsc::channel();
    let opens = {
        let path = path.to_owned();
        std::thread::spawn(move || {
            begun.send(fs::read_link("/proc/thread-self").expect("its number")).expect("somebody listens");
            writable(&path)
        })
    };
    let thread = has_begun.recv().expect("it begins");
    within_seconds("it waits for the lease", || waits_in_open(&thread));
    tool("chattr", &["+i", &name]).expect("root");
    signal("-CONT");
    // It goes on when the agent has given the lease up, or is gone.
    let opened = opens.join().expect("it does not panic").expect("opened");
    // Whoever writes by it now is refused until the file thaws, and is not afterwards.
    drop(opened);
    true
}

/// True where a thread, by its folder in /proc, sleeps in the kernel's `openat`.
fn waits_in_open(thread: &Path) -> bool {
    let of = |what: &str| fs::read_to_string(Path::new("/proc").join(thread).join(what)).unwrap_or_default();
    let sleeps = of("stat").rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'));
    sleeps && of("syscall").split(' ').next() == Some(&libc::SYS_openat.to_string())
}

/// Its file system is frozen, and thaws.
fn freeze(stage: &Stage, _: &mut Child, path: &Path, mark: &[u8]) -> bool {
    let Ok((_agent, direct)) = written_directly(stage, path, mark) else { return false };
    drop(Frozen::new(stage));
    let _ = direct.close();
    true
}

/// Ends an agent at each step; where a file was immutable and no journal knew it, or what was acknowledged was lost. A program appends to the
/// file as soon as an agent that has ended has left it append-only. The host may end with the agent.
fn crash_at_every_step(stage: &mut Stage, fault: Option<&str>, used: Use, with_host: bool) -> Vec<u32> {
    let path = stage.on_it("file");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    let mapping = || Mapped::new(&fs::File::open(&path).expect("open"), BYTES);
    // A reader's pages, which the kernel keeps.
    let mut mapped = mapping();
    stage.kill_agent();
    let (mut lost, mut appended) = (Vec::new(), 0);
    for step in 1.. {
        let mut agent = stage.crasher(step, fault).expect("it answers");
        let mark = format!("written at step {step:3}");
        let is_written = used(stage, &mut agent, &path, mark.as_bytes());
        // The last steps come after the answer.
        let (begun, mut given_back) = (Instant::now(), None);
        let ended = loop {
            if let Some(status) = agent.try_wait().expect("its state") {
                break Some(status);
            }
            if given_back.is_none() && !is_frozen(&path) && !is_journaled(stage, &path) {
                given_back = Some(Instant::now());
            }
            let is_at_rest = |since: Instant| since.elapsed() > END_MAX && is_asleep(agent.id());
            if begun.elapsed() > THAW_MAX || given_back.is_some_and(is_at_rest) {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let is_over = ended.is_none();
        if let Some(status) = ended {
            assert_eq!(status.code(), Some(AGENT_CRASHED), "step {step}: {status}");
        } else {
            agent.kill().expect("killed");
            agent.wait().expect("an end");
        }
        if is_frozen(&path) && !is_journaled(stage, &path) {
            lost.push(step);
            tool("chattr", &["-i", &path.display().to_string()]).expect("thawed");
        }
        if is_append_only(&path) {
            let mut file = fs::OpenOptions::new().append(true).open(&path).expect("open for appending");
            file.write_all(b"+").and_then(|()| file.sync_all()).expect("appended");
            appended += 1;
        }
        if with_host {
            drop(mapped);
            host_cut::cut(stage);
            mapped = mapping();
            if is_frozen(&path) && !is_journaled(stage, &path) {
                lost.push(step);
                tool("chattr", &["-i", &path.display().to_string()]).expect("thawed");
            }
        }
        stage.start_agent();
        within_seconds(&format!("step {step}: the next agent thaws it"), || !is_frozen(&path));
        within_seconds("it is off the journal", || !is_journaled(stage, &path));
        let text = fs::read(&path).expect("read");
        assert_eq!(text.len(), BYTES + appended, "step {step}");
        assert!(text[BYTES..].iter().all(|byte| *byte == b'+'), "step {step}: what was appended");
        if is_written && !has(&text, mark.as_bytes()) {
            lost.push(step);
        }
        assert!(!is_written || mapped.bytes() == text[..BYTES], "step {step}: a mapping shows what was there before");
        assert!(!is_append_only(&path), "step {step}");
        stage.kill_agent();
        if with_host {
            drop(mapped);
            host_cut::cut(stage);
            mapped = mapping();
            assert!(!is_frozen(&path), "step {step}: the next agent has thawed it, and it is immutable again");
            assert!(fs::read(&path).expect("read") == text, "step {step}: it holds something else");
        }
        // It is the file system's own.
        fs::OpenOptions::new().write(true).open(&path).expect("open for writing");
        if is_over {
            assert!(step > STEPS_MIN && is_written, "there were only {step} steps");
            assert!(appended > 0, "no agent ended while the file was append-only");
            println!("{} steps, {appended} of them while it is append-only", step - 1);
            return lost;
        }
    }
    unreachable!("there is a last step")
}

#[test]
fn an_agent_that_ends_at_any_step_leaves_no_immutable_file_that_its_journal_does_not_know() {
    let test = "an_agent_that_ends_at_any_step_leaves_no_immutable_file_that_its_journal_does_not_know";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert_eq!(crash_at_every_step(&mut stage, None, close, false), Vec::<u32>::new());
}

#[test]
fn a_host_whose_power_is_cut_at_any_step_leaves_no_immutable_file_that_the_agents_journal_does_not_know() {
    let test = "a_host_whose_power_is_cut_at_any_step_leaves_no_immutable_file_that_the_agents_journal_does_not_know";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    if let Err(why) = host_cut::possible() {
        return skip(test, &why);
    }
    assert_eq!(crash_at_every_step(&mut stage, None, close, true), Vec::<u32>::new());
}

#[test]
fn an_agent_that_ends_while_it_takes_a_file_back_leaves_none_that_the_next_one_does_not_thaw() {
    let test = "an_agent_that_ends_while_it_takes_a_file_back_leaves_none_that_the_next_one_does_not_thaw";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    for used in [release as Use, wait_for_lease, freeze] {
        assert_eq!(crash_at_every_step(&mut stage, None, used, false), Vec::<u32>::new());
        stage.start_agent();
    }
}

/// Files that an agent which was killed has left immutable.
fn left_immutable(stage: &mut Stage, names: &[&str]) -> Vec<PathBuf> {
    let kept: Vec<_> = names
        .iter()
        .map(|name| {
            let path = stage.on_it(name);
            fs::write(&path, contents(BYTES, 1)).expect("written");
            (written_directly(stage, &path, b"by itself").expect("directly"), path)
        })
        .collect();
    stage.kill_agent();
    kept.into_iter().map(|(_, path)| path).inspect(|path| assert!(is_frozen(path))).collect()
}

#[test]
fn an_agent_that_ends_at_any_step_of_its_start_leaves_the_rest_to_the_next_one() {
    let test = "an_agent_that_ends_at_any_step_of_its_start_leaves_the_rest_to_the_next_one";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    for step in 1.. {
        let paths = left_immutable(&mut stage, &["one", "two", "three"]);
        let answered = stage.crasher(step, Some("at-start"));
        let is_over = answered.is_some();
        if let Some(mut agent) = answered {
            agent.kill().expect("killed");
            agent.wait().expect("an end");
        }
        for path in &paths {
            assert!(!is_frozen(path) || is_journaled(&stage, path), "step {step}: {} is lost", path.display());
        }
        stage.start_agent();
        for path in &paths {
            within_seconds("the next agent thaws it", || !is_frozen(path) && !is_journaled(&stage, path));
        }
        if is_over {
            // Three for each file.
            assert_eq!(step, 10);
            return;
        }
    }
}

/// The next agent comes to the files only when their file system thaws. It answers all the same.
#[test]
fn what_an_agent_left_on_a_frozen_file_system_is_thawed_when_that_thaws() {
    let test = "what_an_agent_left_on_a_frozen_file_system_is_thawed_when_that_thaws";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let other = stage.on_it("other");
    fs::write(&other, contents(BYTES, 1)).expect("written");
    let paths = left_immutable(&mut stage, &["one", "two"]);
    let frozen = Frozen::new(&stage);
    stage.start_agent();
    assert!(paths.iter().all(|path| is_frozen(path) && is_journaled(&stage, path)));
    let refused = written_directly(&stage, &other, b"not yet").map(|_| ()).expect_err("its file system is frozen");
    println!("{refused}");
    drop(frozen);
    for path in &paths {
        within_seconds("it is thawed", || !is_frozen(path) && !is_journaled(&stage, path));
        // Who had the agent look whether the file system is frozen is told so until that look is over.
        let used = std::cell::OnceCell::new();
        let open = || written_directly(&stage, path, b"directly again");
        within_seconds("it is open directly", || open().is_ok_and(|opened| used.set(opened).is_ok()));
    }
}

/// `willow agent --thaw`: whether it did, and what it said.
fn thaw(stage: &Stage) -> (bool, String) {
    let output = Command::new(stage.willow()).args(["agent", "--thaw", "--socket", &stage.path("agent")]).output();
    let output = output.expect("it runs");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), said)
}

#[test]
fn what_an_agent_left_is_given_back_by_hand_where_none_is_started_again() {
    let test = "what_an_agent_left_is_given_back_by_hand_where_none_is_started_again";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("one");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let used = written_directly(&stage, &path, b"by itself").expect("directly");
    // Never under an agent that lives.
    let (done, said) = thaw(&stage);
    assert!(!done && said.contains("an agent answers"), "{said}");
    assert!(is_frozen(&path));
    drop(used);
    let paths = left_immutable(&mut stage, &["one", "two", "three"]);
    // One that cannot be reached is named, and is given back when it can be.
    within_seconds("nobody has it", || tool("umount", &[&stage.path("files")]).is_ok());
    let (done, said) = thaw(&stage);
    assert!(
        !done && said.contains("thawed 0") && paths.iter().all(|path| said.contains(&path.display().to_string())),
        "{said}"
    );
    tool("mount", &["-o", "noatime", stage.block(), &stage.path("files")]).expect("mounted");
    assert_eq!(thaw(&stage), (true, "thawed 3\n".to_owned()));
    for path in &paths {
        assert!(!is_frozen(path) && !is_journaled(&stage, path));
        assert!(has(&fs::read(path).expect("read"), b"by itself"));
        writable(path).expect("it is the file system's own");
    }
    assert_eq!(thaw(&stage), (true, "thawed 0\n".to_owned()));
    let _ = fs::remove_file(stage.path("agent.frozen"));
    let (done, said) = thaw(&stage);
    assert!(!done && said.contains("is not there"), "{said}");
}

/// Has the journal say of a file what agents said that knew nothing of who writes it.
fn make_old(stage: &Stage, path: &Path) {
    let journal = stage.path("agent.frozen");
    let text = fs::read_to_string(&journal).expect("the journal");
    let inode = format!("\"inode\":{},", fs::metadata(path).expect("there").ino());
    let old = |line: &str| match line.split_once(' ') {
        Some((_, said)) if line.contains(&inode) => {
            let said = said.replace(",\"writes\":false", "").replace(",\"writes\":true", "");
            assert!(said.ends_with("}}}"), "{said}");
            format!("{:08x} {said}\n", crc32c::crc32c(said.as_bytes()))
        }
        _ => format!("{line}\n"),
    };
    fs::write(journal, text.lines().map(old).collect::<String>()).expect("written");
}

#[test]
fn a_file_that_is_append_only_by_itself_stays_so_whoever_gives_it_back() {
    let test = "a_file_that_is_append_only_by_itself_stays_so_whoever_gives_it_back";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    // Before it is read directly, or by root, while it is written.
    for (name, by_root, is_killed) in
        [("read", false, false), ("old", false, true), ("closed", true, false), ("killed", true, true)]
    {
        let path = stage.on_it(name);
        fs::write(&path, contents(BYTES, 1)).expect("written");
        let file = path.display().to_string();
        // An immutable file's other attributes stay as they are.
        let append_only = || ["-i", "+a"].map(|what| tool("chattr", &[what, &file]).expect("root"));
        // With pages that the kernel keeps, and are written anew, and without.
        let mapped = by_root.then(|| Mapped::new(&fs::File::open(&path).expect("open"), BYTES));
        let (agent, direct) = if by_root {
            let used = written_directly(&stage, &path, b"by itself").expect("directly");
            append_only();
            used
        } else {
            append_only();
            read_directly(&stage, &path)
        };
        assert!(is_journaled(&stage, &path) && is_append_only(&path), "{name}");
        if is_killed {
            stage.kill_agent();
            if !by_root {
                make_old(&stage, &path);
            }
            stage.start_agent();
        } else {
            direct.close().expect("closed");
        }
        within_seconds("it thaws", || !is_frozen(&path) && !is_journaled(&stage, &path));
        assert!(is_append_only(&path), "{name}: its own attribute is gone");
        assert!(!by_root || has(&fs::read(&path).expect("read"), b"by itself"), "{name}");
        drop((agent, mapped));
    }
}

/// Its file system is not mounted when the next agent starts.
#[test]
fn what_could_not_be_given_back_when_an_agent_began_is_before_it_is_direct_again() {
    let test = "what_could_not_be_given_back_when_an_agent_began_is_before_it_is_direct_again";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("file");
    let (mut steps, mut frozen, mut append_only) = (0, 0, 0);
    // One of them ends while the file is append-only.
    for step in 1..STEPS_MIN {
        let _ = fs::remove_file(&path);
        fs::write(&path, contents(BYTES, 1)).expect("written");
        let mapped = Mapped::new(&fs::File::open(&path).expect("open"), BYTES);
        stage.kill_agent();
        let mut agent = stage.crasher(step, None).expect("it answers");
        let is_written = close(&stage, &mut agent, &path, b"by itself");
        agent.wait().expect("an end");
        let is_left = is_frozen(&path) || is_append_only(&path);
        if is_append_only(&path) {
            append_only += 1;
            let mut file = fs::OpenOptions::new().append(true).open(&path).expect("open for appending");
            file.write_all(b"+").and_then(|()| file.sync_all()).expect("appended");
        }
        drop(mapped);
        within_seconds("nobody has it", || tool("umount", &[&stage.path("files")]).is_ok());
        stage.start_agent();
        tool("mount", &["-o", "noatime", stage.block(), &stage.path("files")]).expect("mounted");
        assert_eq!(is_frozen(&path) || is_append_only(&path), is_left, "step {step}: nobody has given it back");
        assert!(is_journaled(&stage, &path) || !is_left, "step {step}");
        let (agent, direct) = read_directly(&stage, &path);
        assert!(is_frozen(&path) && is_journaled(&stage, &path), "step {step}");
        direct.close().expect("closed");
        within_seconds("it thaws", || !is_frozen(&path) && !is_append_only(&path) && !is_journaled(&stage, &path));
        let text = fs::read(&path).expect("read");
        assert!(!is_written || has(&text, b"by itself"), "step {step}: what was acknowledged is lost");
        writable(&path).expect("it is the file system's own");
        drop(agent);
        (steps, frozen) = (step, frozen + u32::from(is_left));
    }
    assert!(frozen > 3 && append_only > 0, "{frozen} of {steps} steps left it, {append_only} append-only");
}

/// A cleaner of temporary files removes its socket, say.
#[test]
fn nothing_is_given_back_by_hand_under_an_agent_that_lives_and_cannot_be_reached() {
    let test = "nothing_is_given_back_by_hand_under_an_agent_that_lives_and_cannot_be_reached";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let [one, two] = ["one", "two"].map(|name| stage.on_it(name));
    for path in [&one, &two] {
        fs::write(path, contents(BYTES, 1)).expect("written");
    }
    let (agent, used) = written_directly(&stage, &one, b"by itself").expect("directly");
    fs::remove_file(stage.path("agent")).expect("it was there");
    let (done, said) = thaw(&stage);
    assert!(!done && said.contains("agent.frozen.lock") && said.contains("is in use"), "{said}");
    assert!(is_frozen(&one) && is_journaled(&stage, &one));
    // What it freezes from then on is on its list as well.
    let other = DirectFile::open(&agent, endpoint(&stage), writable(&two).expect("open")).expect("directly");
    assert!(is_frozen(&two) && is_journaled(&stage, &two));
    stage.kill_agent();
    drop((other, used, agent));
    assert_eq!(thaw(&stage), (true, "thawed 2\n".to_owned()));
    assert!(!is_frozen(&one) && !is_frozen(&two));
}

#[test]
fn an_agent_that_makes_files_immutable_before_its_journal_knows_them_is_caught() {
    let test = "an_agent_that_makes_files_immutable_before_its_journal_knows_them_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert_ne!(crash_at_every_step(&mut stage, Some("flag-first"), close, false), Vec::<u32>::new());
}

#[test]
fn an_agent_whose_journal_has_no_last_page_of_a_file_that_is_append_only_is_caught() {
    let test = "an_agent_whose_journal_has_no_last_page_of_a_file_that_is_append_only_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert_ne!(crash_at_every_step(&mut stage, Some("last-forgotten"), close, false), Vec::<u32>::new());
}

#[test]
fn a_file_whose_folder_was_renamed_meanwhile_is_thawed_by_the_next_agent() {
    let test = "a_file_whose_folder_was_renamed_meanwhile_is_thawed_by_the_next_agent";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let (before, after) = (stage.on_it("before"), stage.on_it("after"));
    fs::create_dir(&before).expect("a folder");
    let path = before.join("file");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    let _endpoint = ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint");
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let held = agent.open(fs::File::open(&path).expect("open")).expect("directly");
    stage.kill_agent();
    fs::rename(&before, &after).expect("renamed");
    // Another file is where it was.
    fs::create_dir(&before).expect("a folder");
    fs::write(&path, b"another").expect("written");
    tool("chattr", &["+i", &path.display().to_string()]).expect("immutable, by who owns it");
    let own = after.join("file");
    assert!(is_frozen(&own) && is_journaled(&stage, &own));
    stage.start_agent();
    within_seconds("it is thawed, and off the journal", || !is_frozen(&own) && !is_journaled(&stage, &own));
    assert!(is_frozen(&path));
    tool("chattr", &["-i", &path.display().to_string()]).expect("thawed");
    drop(held);
}

/// As after a start of the machine, which numbers its disks anew.
#[test]
fn what_an_agent_left_is_given_back_whatever_number_its_disk_has() {
    let test = "what_an_agent_left_is_given_back_whatever_number_its_disk_has";
    for stage in [Stage::ext4(), Stage::xfs()] {
        let Some(mut stage) = or_skip(test, stage) else { return };
        let paths = left_immutable(&mut stage, &["one", "two"]);
        stage.renumber();
        assert!(paths.iter().all(|path| is_frozen(path)));
        stage.start_agent();
        for path in &paths {
            within_seconds("the next agent thaws it", || !is_frozen(path));
            let text = fs::read(path).expect("read");
            assert!(has(&text, b"by itself"), "what was written directly");
        }
        // Not of their numbers now: of those that are listed.
        within_seconds("they are off the journal", || paths.iter().all(|path| !is_journaled(&stage, path)));
        let (agent, direct) = read_directly(&stage, &paths[0]);
        direct.close().expect("closed");
        drop(agent);
    }
}

/// The disk with the number of one that had a file that was left has a file with that one's number and name.
#[test]
fn a_file_that_has_the_number_of_one_that_was_left_is_not_taken_for_it() {
    let test = "a_file_that_has_the_number_of_one_that_was_left_is_not_taken_for_it";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let path = left_immutable(&mut stage, &["one"]).remove(0);
    let number = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino())).expect("its numbers");
    let before = number(&path);
    let files = stage.path("files");
    within_seconds("it is unmounted", || tool("umount", &[&files]).is_ok());
    tool("mkfs.ext4", &["-q", "-F", stage.block()]).expect("another file system");
    tool("mount", &["-o", "noatime", stage.block(), &files]).expect("mounted");
    fs::write(&path, b"another").expect("written");
    assert_eq!(before, number(&path));
    tool("chattr", &["+i", &path.display().to_string()]).expect("immutable, by who owns it");
    stage.start_agent();
    assert!(is_frozen(&path) && is_journaled(&stage, &path));
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let file = fs::File::open(&path).expect("open");
    let refused = DirectFile::open(&agent, endpoint(&stage), file).err().expect("refused");
    assert!(refused.to_string().contains("with its number on a disk with its disk's number"), "{refused}");
    assert!(is_frozen(&path) && is_journaled(&stage, &path));
    assert_eq!(fs::read(&path).expect("read"), b"another");
    tool("chattr", &["-i", &path.display().to_string()]).expect("writable");
}
