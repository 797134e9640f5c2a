//! An agent that ends at each step of freezing and thawing a file: what is immutable is in its journal, and the next agent thaws it.
//! Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::direct_io::{AgentClient, DirectError, DirectFile};
use willow_host::testing::AGENT_CRASHED;
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::mapped::Mapped;
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, tool, within_seconds};

/// Steps, at least: an agent that has fewer has lost some.
const STEPS_MIN: u32 = 16;
const BYTES: usize = 64 << 10;

/// Starts an agent that ends at a step, in the place of the stage's.
fn crasher(stage: &Stage, step: u32, fault: Option<&str>) -> Child {
    let block = format!("{}=1", stage.block());
    // The file system may write its superblock while the agent looks at it.
    for _ in 0..10 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_willow-crasher"));
        command.args([&stage.path("device"), &stage.path("agent"), &block, &stage.path("agent.frozen")]);
        command.arg(step.to_string()).args(fault).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        if line == "ready\n" {
            return child;
        }
        child.wait().expect("an end");
    }
    panic!("no agent");
}

fn is_journaled(stage: &Stage, path: &Path) -> bool {
    let text = fs::read_to_string(stage.path("agent.frozen")).expect("the journal");
    let inode = format!("\"inode\":{}", fs::metadata(path).expect("there").ino());
    let of_it = |line: &&str| line.contains(&format!("{inode},")) || line.contains(&format!("{inode}}}"));
    text.lines().rfind(of_it).is_some_and(|line| line.contains("freeze"))
}

/// Opens the file directly, writes it and closes it, as far as the agent lives; true where the write was acknowledged.
fn use_it(stage: &Stage, path: &Path, mark: &[u8]) -> bool {
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    let hre: Arc<dyn Hre> = Arc::new(ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tried = || -> Result<bool, DirectError> {
        let agent = AgentClient::connect(Path::new(&stage.path("agent")))?;
        let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
        let direct = DirectFile::open(&agent, hre, file)?;
        let is_written = runtime.block_on(direct.write_at(mark, 5000)).is_ok();
        let _ = direct.close();
        Ok(is_written)
    };
    tried().unwrap_or(false)
}

/// Ends an agent at each step; where a file was immutable and no journal knew it.
fn crash_at_every_step(stage: &mut Stage, fault: Option<&str>) -> Vec<u32> {
    let path = stage.on_it("file");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    // A reader's pages, which the kernel keeps.
    let mapped = Mapped::new(&fs::File::open(&path).expect("open"), BYTES);
    stage.kill_agent();
    let mut lost = Vec::new();
    for step in 1.. {
        let mut agent = crasher(stage, step, fault);
        let mark = format!("written at step {step:3}");
        let is_written = use_it(stage, &path, mark.as_bytes());
        // The last steps come after the answer.
        let begun = Instant::now();
        let ended = loop {
            match agent.try_wait().expect("its state") {
                Some(status) => break Some(status),
                None if begun.elapsed() > Duration::from_millis(500) => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
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
        stage.start_agent();
        assert!(!is_frozen(&path), "step {step}: the next agent does not thaw it");
        within_seconds("it is off the journal", || !is_journaled(stage, &path));
        let text = fs::read(&path).expect("read");
        assert_eq!(text.len(), BYTES, "step {step}");
        if is_written {
            assert!(text[5000..].starts_with(mark.as_bytes()), "step {step}: what was acknowledged is not there");
            assert!(mapped.bytes() == text, "step {step}: a mapping shows what was there before");
        }
        let attributes = tool("lsattr", &[&path.display().to_string()]).expect("attributes");
        assert!(!attributes.split(' ').next().is_some_and(|them| them.contains('a')), "step {step}: {attributes}");
        // It is the file system's own.
        fs::OpenOptions::new().write(true).open(&path).expect("open for writing");
        stage.kill_agent();
        if is_over {
            assert!(step > STEPS_MIN && is_written, "there were only {step} steps");
            println!("{} steps", step - 1);
            return lost;
        }
    }
    unreachable!("there is a last step")
}

#[test]
fn an_agent_that_ends_at_any_step_leaves_no_immutable_file_that_its_journal_does_not_know() {
    let test = "an_agent_that_ends_at_any_step_leaves_no_immutable_file_that_its_journal_does_not_know";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert_eq!(crash_at_every_step(&mut stage, None), Vec::<u32>::new());
}

#[test]
fn an_agent_that_makes_files_immutable_before_its_journal_knows_them_is_caught() {
    let test = "an_agent_that_makes_files_immutable_before_its_journal_knows_them_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    assert_ne!(crash_at_every_step(&mut stage, Some("flag-first")), Vec::<u32>::new());
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
    assert!(!is_frozen(&own) && is_frozen(&path));
    within_seconds("it is off the journal", || !is_journaled(&stage, &own));
    tool("chattr", &["-i", &path.display().to_string()]).expect("thawed");
    drop(held);
}
