//! What the agent has to bear of a user who has the kernel wait with the agent's questions about a file of his: that somebody waits to open the file
//! meanwhile, for which the kernel waits no longer than for a lease, so that nothing may be permitted by then, and nothing be permitted anew; that
//! file systems are frozen.
//! Skipped, with a line that says why, as the stage says.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use willow_host::direct_io::{AgentClient, DirectError, DirectFile};
use willow_host::testing::AgentFault;
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::attacker::{Talking, Writer, attacker};
use willow_tests::judge::Judge;
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, contents, or_skip, tool, within_seconds};

const ALICE: u32 = 54_941;
/// Few enough that the agent does not ask how many extents there are, before it asks for them.
const BYTES: usize = 64 << 10;
/// Connections that ask for the file and wait. With each the agent once waited for 10 s.
const BUSY: usize = 4;

/// Agents of these tests have their threads in this process, which are looked at.
static ALONE: Mutex<()> = Mutex::new(());

/// Threads of this process by this name with which the kernel waits.
fn waiting(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
    let waits = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) D"))
    };
    tasks.filter(waits).count()
}

/// A process at the agent, which has an endpoint.
struct Asks {
    agent: Arc<AgentClient>,
    hre: Arc<dyn Hre>,
}

impl Asks {
    fn new(stage: &Stage) -> Asks {
        let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
        let hre = ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint");
        Asks { agent: AgentClient::connect(Path::new(&stage.path("agent"))).expect("an agent"), hre: Arc::new(hre) }
    }

    fn take(&self, path: &Path) -> Result<DirectFile, DirectError> {
        DirectFile::open(&self.agent, self.hre.clone(), fs::File::open(path).expect("open"))
    }
}

/// The kernel waits with whatever asks for the inode of this file, until this is told to go on: somebody reads it past the page cache, and somebody
/// waits to change its mode, behind whom everybody waits.
fn busy<'scope>(
    stage: &Stage,
    path: &'scope Path,
    scope: &'scope Scope<'scope, '_>,
) -> (Talking, ScopedJoinHandle<'scope, ()>) {
    let mut reads = Talking::new(&mut attacker(stage, 0, path, "locks"));
    assert!(reads.line().starts_with("locked"));
    let (begins, begun) = mpsc::channel();
    let changes = scope.spawn(move || {
        // SAFETY: a call without arguments.
        begins.send(unsafe { libc::gettid() }).expect("somebody waits");
        let _ = rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    });
    let thread = begun.recv().expect("it begins");
    within_seconds("its mode is being changed", || {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
    });
    (reads, changes)
}

/// A file that has all of its bytes on the device.
fn written(stage: &Stage, name: &str) -> std::path::PathBuf {
    let path = stage.on_it(name);
    fs::write(&path, contents(BYTES, 1)).expect("written");
    fs::File::open(&path).expect("open").sync_all().expect("synced");
    path
}

/// Whoever opens the file for writing meanwhile, which the attribute would prevent.
fn opens<'scope>(path: &'scope Path, scope: &'scope Scope<'scope, '_>) -> ScopedJoinHandle<'scope, ()> {
    scope.spawn(move || drop(fs::OpenOptions::new().write(true).open(path).expect("when the lease is given up")))
}

#[test]
fn who_keeps_a_file_busy_keeps_no_other_holder_of_it_from_being_revoked() {
    let test = "who_keeps_a_file_busy_keeps_no_other_holder_of_it_from_being_revoked";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let planted = Planted::start(&mut stage, AgentFault::NoFlag);
    let (path, judge) = (written(&stage, "file"), Judge::new(&stage));
    // Those that are going to be busy are on the agent's list first.
    let asking: Vec<Asks> = (0..BUSY).map(|_| Asks::new(&stage)).collect();
    for asks in &asking {
        asks.take(&path).expect("directly").close().expect("closed");
    }
    let holds = Asks::new(&stage);
    let held = holds.take(&path).expect("directly");
    std::thread::scope(|scope| {
        let (mut reads, changes) = busy(&stage, &path, scope);
        let asked: Vec<_> = asking.iter().map(|asks| scope.spawn(|| asks.take(&path).map(drop))).collect();
        within_seconds("all are asking", || waiting("willow-agent") == BUSY);
        assert!(!judge.permitted(None).is_empty(), "the holder has nothing");
        let opened = opens(&path, scope);
        within_seconds("the holder's is revoked", || judge.permitted(None).is_empty());
        assert!(waiting("willow-agent") >= BUSY, "nobody kept the file busy");
        reads.go_on();
        for asked in asked {
            let refused = asked.join().expect("it does not panic");
            assert!(refused.is_err(), "somebody waits to write it");
        }
        opened.join().expect("it opens");
        changes.join().expect("it ends");
        assert!(reads.has_succeeded());
    });
    drop((held, planted));
}

/// Whether the device permits anything of a file that somebody waits to open for writing since before the agent knows where it lies.
fn is_ever_permitted(stage: &Stage, planted: &Planted, name: &str) -> bool {
    let (path, judge, asks) = (written(stage, name), Judge::new(stage), Asks::new(stage));
    let (is_over, mut is_permitted) = (AtomicBool::new(false), false);
    std::thread::scope(|scope| {
        let (mut reads, changes) = busy(stage, &path, scope);
        let asked = scope.spawn(|| {
            let refused = asks.take(&path).map(drop);
            is_over.store(true, Ordering::SeqCst);
            refused
        });
        within_seconds("it is asked where the file lies", || waiting("willow-agent") == 1);
        let opened = opens(&path, scope);
        within_seconds("somebody waits for it", || planted.agent.waited_for() > 0);
        reads.go_on();
        while !is_over.load(Ordering::SeqCst) {
            is_permitted |= !judge.permitted(None).is_empty();
        }
        assert!(asked.join().expect("it does not panic").is_err(), "somebody waits to write it");
        opened.join().expect("it opens");
        changes.join().expect("it ends");
        assert!(reads.has_succeeded());
    });
    is_permitted
}

#[test]
fn nothing_is_permitted_of_a_file_that_somebody_waits_for_since_before_its_place_is_known() {
    let test = "nothing_is_permitted_of_a_file_that_somebody_waits_for_since_before_its_place_is_known";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    // What waits here opens the file, which the attribute would prevent: in earnest, it had passed that just before.
    let planted = Planted::start(&mut stage, AgentFault::NoFlag);
    assert!(!is_ever_permitted(&stage, &planted, "file"));
    drop(planted);
    let planted = Planted::forgets(&mut stage, &[AgentFault::NoFlag, AgentFault::LookedLate]);
    // Whoever looks has to look in time: as a rule it is seen at once.
    let is_seen = (0..30).any(|turn| is_ever_permitted(&stage, &planted, &format!("file-of-the-planted-{turn}")));
    assert!(is_seen, "the planted agent is not seen");
    drop(planted);
}

/// A second file system on the stage's device, mounted beside the first; it goes with this.
struct Beside {
    block: String,
    files: String,
}

impl Beside {
    /// The stage's own is made anew on the first half of its device.
    fn new(stage: &mut Stage) -> Beside {
        stage.kill_agent();
        let (files, block) = (stage.path("files"), stage.block().to_owned());
        within_seconds("it is unmounted", || tool("umount", &[&files]).is_ok());
        tool("mkfs.ext4", &["-q", "-F", &block, "60M"]).expect("a file system");
        tool("mount", &["-o", "noatime", &block, &files]).expect("mounted");
        let disk = format!("{}/disk", stage.path("mount"));
        let half = ["--direct-io=on", "--sector-size", "4096", "--offset", "67108864", "-f", "--show", &disk];
        let beside = Beside { block: tool("losetup", &half).expect("a loop device"), files: stage.path("beside") };
        fs::create_dir(&beside.files).expect("a folder");
        tool("mkfs.ext4", &["-q", "-F", &beside.block]).expect("a file system");
        tool("mount", &["-o", "noatime", &beside.block, &beside.files]).expect("mounted");
        beside
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = tool("fsfreeze", &["--unfreeze", &self.files]);
        let _ = tool("umount", &["-l", &self.files]);
        let _ = tool("losetup", &["-d", &self.block]);
    }
}

#[test]
fn who_holds_up_the_freeze_of_a_file_system_holds_up_that_of_no_other() {
    let test = "who_holds_up_the_freeze_of_a_file_system_holds_up_that_of_no_other";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let beside = Beside::new(&mut stage);
    let block = stage.block().to_owned();
    // The kernel waits with what comes after the attribute.
    let planted = Planted::of_blocks(&mut stage, &[&block, &beside.block], AgentFault::NoFlag);
    let (path, other) = (written(&stage, "file"), written(&stage, "other"));
    let elsewhere = Path::new(&beside.files).join("file");
    fs::write(&elsewhere, contents(BYTES, 1)).expect("written");
    let (asks, holds) = (Asks::new(&stage), Asks::new(&stage));
    let held = holds.take(&elsewhere).expect("directly");
    let (files, judge) = (stage.path("files"), Judge::new(&stage));
    std::thread::scope(|scope| {
        let (mut reads, changes) = busy(&stage, &path, scope);
        let asked = scope.spawn(|| asks.take(&path).map(drop));
        within_seconds("it is asked where the file lies", || waiting("willow-agent") == 1);
        let frozen = scope.spawn(|| tool("timeout", &["300", "fsfreeze", "--freeze", &files]));
        within_seconds("the agent has seen that", || holds.take(&other).is_err());
        assert!(!judge.permitted(None).is_empty(), "the other file system's is revoked");
        let beside_is_frozen = scope.spawn(|| tool("timeout", &["300", "fsfreeze", "--freeze", &beside.files]));
        within_seconds("the other file system is frozen", || beside_is_frozen.is_finished());
        beside_is_frozen.join().expect("it ends").expect("frozen");
        assert!(judge.permitted(None).is_empty() && !frozen.is_finished(), "nobody held the first one up");
        reads.go_on();
        frozen.join().expect("it ends").expect("frozen");
        // What was asked for is given, and revoked before the file system is frozen, or refused.
        assert!(judge.permitted(None).is_empty(), "it is written past the freeze");
        tool("fsfreeze", &["--unfreeze", &files]).expect("thawed");
        let _ = asked.join().expect("it does not panic");
        changes.join().expect("it ends");
        assert!(reads.has_succeeded());
    });
    drop(held);
    tool("fsfreeze", &["--unfreeze", &beside.files]).expect("thawed");
    within_seconds("all is given back", || planted.agent.frozen() == 0);
    drop((planted, beside));
}

#[test]
fn a_file_that_loses_its_last_name_is_taken_back() {
    let test = "a_file_that_loses_its_last_name_is_taken_back";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let writer = Writer::start(&stage, ALICE);
    let judge = Judge::new(&stage);
    assert!(!judge.permitted(Some(ALICE)).is_empty());
    // As one whose removal had passed the check of the attribute before that was set.
    let path = writer.file.display().to_string();
    tool("chattr", &["-i", &path]).expect("the attribute is gone");
    fs::remove_file(&writer.file).expect("removed");
    within_seconds("nothing of it is permitted", || judge.permitted(None).is_empty());
    assert!(writer.last_line().contains("no such permission"));
    within_seconds("it is on the list no more", || {
        !tool("cat", &[&stage.path("agent.frozen")]).expect("the list").lines().last().unwrap_or("").contains("freeze")
    });
}
