//! Direct access where the device does not revoke what it permits: the file stays frozen, listed and in the journal, whoever writes it goes
//! on in its own blocks, and the next try settles it. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use willow_host::agent::{REVOKE_MAX, extents};
use willow_host::direct_io::{AgentClient, DirectError, DirectFile, File, Place, Session, SessionOptions, Waits};
use willow_host::testing::AgentFault;
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::attacker::Writer;
use willow_tests::judge::Judge;
use willow_tests::mapped::Mapped;
use willow_tests::planted::Planted;
use willow_tests::stage::{By, Stage, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_901;
/// How long it is looked that nothing happens.
const WHILE: Duration = Duration::from_millis(700);
const BYTES: usize = 64 << 10;

fn stage(test: &str) -> Option<Stage> {
    or_skip(test, Stage::ext4())
}

fn writable(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).expect("open")
}

/// An endpoint of this process.
fn endpoint(stage: &Stage) -> ShmHre {
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint")
}

/// What the journal says is frozen now: the inodes.
fn journaled(stage: &Stage, path: &Path) -> bool {
    journaled_in(&stage.path("agent.frozen"), path)
}

fn journaled_in(journal: &str, path: &Path) -> bool {
    let text = fs::read_to_string(journal).expect("the journal");
    let inode = format!("\"inode\":{}", std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("there")));
    let of_it = |line: &&str| line.contains(&format!("{inode},")) || line.contains(&format!("{inode}}}"));
    text.lines().rfind(of_it).is_some_and(|line| line.contains("freeze"))
}

/// A thread of this process that writes a file past the kernel without end.
struct Victim {
    path: PathBuf,
    count: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    /// Its connection, which stays when the file is closed.
    _agent: Arc<AgentClient>,
    thread: Option<std::thread::JoinHandle<Option<DirectError>>>,
}

impl Victim {
    fn start(stage: &Stage, name: &str) -> Victim {
        let path = stage.on_it(name);
        fs::write(&path, contents(BYTES, 1)).expect("written");
        let hre: Arc<dyn Hre> = Arc::new(endpoint(stage));
        let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
        let direct = DirectFile::open(&agent, hre, writable(&path)).expect("directly");
        let (count, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, told) = (count.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            while !told.load(Ordering::SeqCst) {
                let number = counted.load(Ordering::SeqCst) + 1;
                if let Err(error) = runtime.block_on(direct.write_at(&number.to_le_bytes(), 0)) {
                    // It goes by this alone: the agent is not asked.
                    std::mem::forget(direct);
                    return Some(error);
                }
                counted.store(number, Ordering::SeqCst);
            }
            direct.close().err()
        });
        let victim = Victim { path, count, ends, _agent: agent, thread: Some(thread) };
        victim.goes_on("at the beginning");
        victim
    }

    /// It writes, and what it writes is the file's own.
    fn goes_on(&self, when: &str) {
        let before = self.count.load(Ordering::SeqCst);
        within_seconds(&format!("{when}: it writes on"), || self.count.load(Ordering::SeqCst) > before + 10);
    }

    /// Why it was told to stop.
    fn told(&mut self) -> Option<DirectError> {
        self.thread.take().and_then(|thread| thread.join().expect("it does not panic"))
    }

    /// Ends it by closing the file; what came of that.
    fn close(&mut self) -> Option<DirectError> {
        self.ends.store(true, Ordering::SeqCst);
        self.told()
    }

    fn extents(&self) -> Vec<direct_io_host::FileExtent> {
        extents::of_file(fs::File::open(&self.path).expect("open").as_fd()).expect("its extents")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// For a time: nothing has changed, though somebody wants the file.
fn stays_frozen(stage: &Stage, path: &Path, what: &str) {
    let begun = Instant::now();
    while begun.elapsed() < WHILE {
        assert!(is_frozen(path), "{what}: it has thawed, and the device permits it still");
        assert!(journaled(stage, path), "{what}: the journal says nothing of it");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// It is the file system's own again, and nothing is left.
fn settles(stage: &Stage, planted: &Planted, path: &Path, what: &str) {
    within_seconds(&format!("{what}: it thaws"), || !is_frozen(path) && planted.agent.frozen() == 0);
    within_seconds(&format!("{what}: it is off the journal"), || !journaled(stage, path));
    writable(path).set_len(10).expect("the file system's own");
}

#[test]
fn a_file_that_is_closed_and_not_revoked_stays_frozen_until_it_is() {
    let Some(mut stage) = stage("a_file_that_is_closed_and_not_revoked_stays_frozen_until_it_is") else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeFails);
    let mut victim = Victim::start(&stage, "closed");
    let path = victim.path.clone();
    let refused = victim.close().expect("it is told").to_string();
    assert!(refused.contains("could not be revoked") && refused.contains("stays immutable"), "{refused}");
    stays_frozen(&stage, &path, "closed");
    // Its process is there still, and asks for nothing.
    planted.agent.heal(AgentFault::RevokeFails);
    settles(&stage, &planted, &path, "closed");
}

#[test]
fn a_file_that_is_taken_back_and_not_revoked_is_written_on_in_its_own_blocks_until_it_is() {
    let test = "a_file_that_is_taken_back_and_not_revoked_is_written_on_in_its_own_blocks_until_it_is";
    let Some(mut stage) = stage(test) else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeFails);
    let mut victim = Victim::start(&stage, "taken-back");
    let (path, before) = (victim.path.clone(), victim.extents());
    // Another process wants to cut it.
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let cuts = File::new(&session, fs::File::open(&path).expect("open")).expect("a file");
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
            session.change(&[Place::new(&name)], Waits::Interruptible, || {
                rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).map(fs::File::from)
            })
        });
        stays_frozen(&stage, &path, "taken back");
        victim.goes_on("while it is not revoked");
        assert!(!cut.is_finished(), "it was opened for writing while the device permits it");
        assert_eq!(victim.extents(), before);
        planted.agent.heal(AgentFault::RevokeFails);
        let opened = cut.join().expect("it does not panic").expect("open for writing");
        opened.set_len(0).expect("cut");
    });
    drop(cuts);
    assert!(matches!(victim.told(), Some(DirectError::Permission)), "it was told");
    settles(&stage, &planted, &path, "taken back");
    // And where that takes too long, who asks is told why.
    planted.agent.plant(AgentFault::RevokeFails);
    let mut victim = Victim::start(&stage, "taken-back-in-vain");
    let other = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let released = other.release(fs::File::open(&victim.path).expect("open"));
    let why = released.expect_err("the device does not revoke").to_string();
    // An agent that had ended by then would not have said so, nor would its device permit anything.
    assert!(why.contains("could not be revoked"), "{why}");
    victim.goes_on("when it was tried in vain");
    planted.agent.heal(AgentFault::RevokeFails);
    assert!(matches!(victim.told(), Some(DirectError::Permission)), "it was told");
    other.resume().expect("resumed");
    settles(&stage, &planted, &victim.path, "taken back in vain");
}

#[test]
fn what_is_revoked_and_unheard_is_not_installed_again() {
    let Some(mut stage) = stage("what_is_revoked_and_unheard_is_not_installed_again") else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeUnheard);
    let path = stage.on_it("unheard");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let hre: Arc<dyn Hre> = Arc::new(endpoint(&stage));
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let direct = DirectFile::open(&agent, hre, writable(&path)).expect("directly");
    let judge = Judge::new(&stage);
    assert!(judge.permitted(None).len() == BYTES / 4096);
    let other = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let asked = fs::File::open(&path).expect("open");
    std::thread::scope(|scope| {
        let released = scope.spawn(|| other.release(asked));
        within_seconds("the device revokes", || judge.permitted(None).is_empty());
        // Whatever it tries from now on, anywhere in the file, is missed, and the agent is asked: again and again it installs nothing.
        let begun = Instant::now();
        let mut tries = 0;
        while begun.elapsed() < WHILE {
            for at in (0..BYTES as u64).step_by(8192) {
                let wrote = runtime.block_on(direct.write_at(b"once more", at));
                let read = runtime.block_on(direct.read_at(&mut [0; 100], at));
                assert!(matches!(wrote, Err(DirectError::Permission)), "{wrote:?} at {at}");
                assert!(matches!(read, Err(DirectError::Permission)), "{read:?} at {at}");
            }
            assert_eq!(judge.permitted(None), Default::default());
            tries += 1;
        }
        assert!(tries > 0 && !released.is_finished(), "it is released while nobody knows that it is revoked");
        stays_frozen(&stage, &path, "unheard");
        planted.agent.heal(AgentFault::RevokeUnheard);
        released.join().expect("it does not panic").expect("released");
    });
    assert!(direct.close().is_err() || !is_frozen(&path));
    other.resume().expect("resumed");
    settles(&stage, &planted, &path, "unheard");
    assert!(fs::read(&path).expect("read") == contents(BYTES, 1)[..10], "what was refused was written");
}

#[test]
fn who_waits_for_the_lease_waits_until_it_is_revoked() {
    let Some(mut stage) = stage("who_waits_for_the_lease_waits_until_it_is_revoked") else { return };
    // Without the attribute whoever opens it for writing comes as far as to the lease, as one who was under way before.
    let planted = Planted::start(&mut stage, AgentFault::NoFlag);
    let mut victim = Victim::start(&stage, "leased");
    let before = victim.extents();
    planted.agent.plant(AgentFault::RevokeFails);
    let path = victim.path.clone();
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| {
            let opened = writable(&path);
            opened.set_len(0).expect("cut");
            Instant::now()
        });
        std::thread::sleep(WHILE);
        victim.goes_on("while somebody waits for the lease");
        assert!(!opens.is_finished(), "it was opened for writing while the device permits it");
        assert_eq!((victim.extents(), journaled(&stage, &path)), (before, true));
        let healed = Instant::now();
        planted.agent.heal(AgentFault::RevokeFails);
        let opened = opens.join().expect("it does not panic");
        assert!(opened >= healed);
    });
    assert!(matches!(victim.told(), Some(DirectError::Permission)), "it was told");
    settles(&stage, &planted, &path, "leased");
}

#[test]
fn a_grant_that_fails_and_is_not_revoked_leaves_the_file_frozen_until_it_is() {
    let test = "a_grant_that_fails_and_is_not_revoked_leaves_the_file_frozen_until_it_is";
    let Some(mut stage) = stage(test) else { return };
    // Permissions are there before the proof fails: as where somebody opens the file just then.
    let planted = Planted::start(&mut stage, AgentFault::GrantFirst);
    planted.agent.plant(AgentFault::RevokeFails);
    let path = stage.on_it("refused");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let kept = writable(&path);
    let _endpoint = endpoint(&stage);
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let refused = agent.open(writable(&path)).err().expect("it is open for writing").to_string();
    assert!(refused.contains("could not be revoked"), "{refused}");
    stays_frozen(&stage, &path, "refused");
    planted.agent.heal(AgentFault::RevokeFails);
    settles(&stage, &planted, &path, "refused");
    drop(kept);
}

#[test]
fn the_file_of_a_process_that_died_stays_frozen_until_it_is_revoked() {
    let Some(mut stage) = stage("the_file_of_a_process_that_died_stays_frozen_until_it_is_revoked") else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeFails);
    let writer = Writer::start(&stage, ALICE);
    let file = writer.file.clone();
    drop(writer);
    stays_frozen(&stage, &file, "died");
    planted.agent.heal(AgentFault::RevokeFails);
    settles(&stage, &planted, &file, "died");
}

#[test]
fn a_freeze_of_the_file_system_waits_until_it_is_revoked() {
    let Some(mut stage) = stage("a_freeze_of_the_file_system_waits_until_it_is_revoked") else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeFails);
    let mut victim = Victim::start(&stage, "written");
    let (path, files) = (victim.path.clone(), stage.path("files"));
    std::thread::scope(|scope| {
        let freezes = scope.spawn(|| tool("timeout", &["300", "fsfreeze", "--freeze", &files]));
        std::thread::sleep(WHILE);
        victim.goes_on("while somebody freezes");
        assert!(!freezes.is_finished(), "it was frozen while the device permits writes");
        planted.agent.heal(AgentFault::RevokeFails);
        freezes.join().expect("it does not panic").expect("frozen");
    });
    let written = victim.count.load(Ordering::SeqCst);
    assert!(matches!(victim.told(), Some(DirectError::Permission)), "it was told");
    // One may have been answered between the two.
    assert!(victim.count.load(Ordering::SeqCst) <= written + 1, "it was written while frozen");
    tool("fsfreeze", &["--unfreeze", &files]).expect("thawed");
    let other = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    other.release(fs::File::open(&path).expect("open")).expect("released");
    other.resume().expect("resumed");
    settles(&stage, &planted, &path, "written");
}

#[test]
fn a_device_that_never_revokes_loses_its_agent_and_permits_nothing_then() {
    let test = "a_device_that_never_revokes_loses_its_agent_and_permits_nothing_then";
    let Some(mut stage) = stage(test) else { return };
    let planted = Planted::start(&mut stage, AgentFault::RevokeFails);
    let writer = Writer::start(&stage, ALICE);
    let file = writer.file.clone();
    let other = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let asked = fs::File::open(&file).expect("open");
    let begun = Instant::now();
    let _ = other.release(asked);
    let ended = planted.ended().expect("it ends by itself").to_string();
    assert!(ended.contains("could not be revoked") || ended.contains("the device refuses"), "{ended}");
    assert!(begun.elapsed() >= REVOKE_MAX, "{:?}", begun.elapsed());
    let last = writer.last_line();
    assert!(last.contains("no such permission"), "{last}");
    assert!(is_frozen(&file) && journaled(&stage, &file), "it is half frozen");
    // The next one thaws it.
    stage.start_agent();
    within_seconds("it thaws", || !is_frozen(&file) && !journaled(&stage, &file));
    fs::write(&file, b"the file system's own").expect("written");
    let mut read = [0; 3];
    fs::File::open(&file).expect("open").read_exact_at(&mut read, 0).expect("read");
    assert_eq!(&read, b"the");
}

/// Not immutable, open for writing to whoever may, and nothing of it is permitted.
fn is_thawed_and_free(stage: &Stage, path: &Path, what: &str) {
    within_seconds(&format!("{what}: it thaws"), || !is_frozen(path));
    let own = fs::File::open(path).expect("open");
    let own = extents::of_file(own.as_fd()).expect("its extents");
    let permitted = Judge::new(stage).permitted_of(&own);
    assert_eq!(permitted, 0, "{what}: it is permitted");
    writable(path).set_len(BYTES as u64).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// What nobody has directly: the same, and not on the list.
fn is_as_it_was(stage: &Stage, journal: &str, path: &Path, what: &str) {
    is_thawed_and_free(stage, path, what);
    within_seconds(&format!("{what}: it is off the list"), || !journaled_in(journal, path));
}

#[test]
fn a_file_that_the_file_system_does_not_freeze_is_as_it_was_or_stays_frozen_until_it_thaws() {
    let test = "a_file_that_the_file_system_does_not_freeze_is_as_it_was_or_stays_frozen_until_it_thaws";
    let Some(mut stage) = stage(test) else { return };
    let planted = Planted::start(&mut stage, AgentFault::FreezeFails);
    let (path, journal) = (stage.on_it("refused"), stage.path("agent.frozen"));
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let _endpoint = endpoint(&stage);
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let refused = || agent.open(writable(&path)).err().expect("it cannot be frozen").to_string();
    let why = refused();
    assert!(why.contains("cannot be kept as it is") && why.contains("as was planted"), "{why}");
    is_as_it_was(&stage, &journal, &path, "not frozen");
    // Where it can neither be frozen nor made writable again it is one of those that are.
    planted.agent.plant(AgentFault::ThawFails);
    let why = refused();
    assert!(why.contains("cannot be kept as it is"), "{why}");
    stays_frozen(&stage, &path, "neither");
    assert_eq!(Judge::new(&stage).permitted(None), Default::default());
    // An agent that is killed then leaves it to the next one.
    planted.agent.heal(AgentFault::FreezeFails);
    planted.agent.heal(AgentFault::ThawFails);
    settles(&stage, &planted, &path, "neither");
    is_as_it_was(&stage, &journal, &path, "healed");
}

#[test]
fn a_file_that_the_file_system_does_not_thaw_stays_frozen_until_it_does() {
    let Some(mut stage) = stage("a_file_that_the_file_system_does_not_thaw_stays_frozen_until_it_does") else { return };
    let planted = Planted::start(&mut stage, AgentFault::ThawFails);
    let mut victim = Victim::start(&stage, "closed");
    let path = victim.path.clone();
    assert!(victim.close().is_none(), "the device has revoked");
    stays_frozen(&stage, &path, "not thawed");
    assert_eq!(Judge::new(&stage).permitted(None), Default::default());
    let denied = fs::OpenOptions::new().write(true).open(&path).expect_err("it is immutable");
    assert_eq!(denied.raw_os_error(), Some(libc::EPERM));
    // Meanwhile it can be taken again: it is frozen, and its lease stands.
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let _endpoint = endpoint(&stage);
    agent.open(fs::File::open(&path).expect("open")).expect("directly").close().expect("closed");
    stays_frozen(&stage, &path, "taken again");
    planted.agent.heal(AgentFault::ThawFails);
    settles(&stage, &planted, &path, "not thawed");
}

#[test]
fn a_file_whose_lease_was_given_up_and_that_does_not_thaw_is_no_file_that_somebody_waits_for() {
    let test = "a_file_whose_lease_was_given_up_and_that_does_not_thaw_is_no_file_that_somebody_waits_for";
    let Some(mut stage) = stage(test) else { return };
    let planted = Planted::start(&mut stage, AgentFault::ThawFails);
    let mut victim = Victim::start(&stage, "mapped");
    let path = victim.path.clone();
    // Pages that the kernel keeps are written anew, for which the lease is given up.
    let mapped = Mapped::new(&fs::File::open(&path).expect("open"), BYTES);
    assert!(victim.close().is_none(), "the device has revoked");
    within_seconds("it could not be thawed", || planted.agent.left() == 1);
    for _ in 0..50 {
        assert_eq!(planted.agent.waited_for(), 0, "nobody waits for it");
        std::thread::sleep(Duration::from_millis(5));
    }
    stays_frozen(&stage, &path, "without a lease");
    planted.agent.heal(AgentFault::ThawFails);
    settles(&stage, &planted, &path, "without a lease");
    drop(mapped);
}

/// A folder of a file system of its own, which is small.
struct Small(PathBuf);

impl Small {
    fn mount(stage: &Stage) -> Result<Small, String> {
        let folder = stage.folder.join("small");
        fs::create_dir(&folder).expect("a folder");
        tool("mount", &["-t", "tmpfs", "-o", "size=64k", "none", &folder.display().to_string()])?;
        Ok(Small(folder))
    }

    /// Takes all of the room that there is.
    fn fill(&self) {
        let mut filler = fs::File::create(self.0.join("filler")).expect("made");
        while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    }

    fn clear(&self) {
        fs::remove_file(self.0.join("filler")).expect("removed");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = tool("umount", &["-l", &self.0.display().to_string()]);
    }
}

#[test]
fn an_agent_whose_journal_has_no_room_freezes_nothing_and_loses_no_line() {
    let test = "an_agent_whose_journal_has_no_room_freezes_nothing_and_loses_no_line";
    let Some(mut stage) = stage(test) else { return };
    let small = match Small::mount(&stage) {
        Ok(small) => small,
        Err(why) => return willow_tests::stage::skip(test, &why),
    };
    let planted = Planted::listing_in(&mut stage, "small");
    let journal = small.0.join("agent.frozen").display().to_string();
    let [first, second, path] = ["first", "second", "file"].map(|name| stage.on_it(name));
    for path in [&first, &second, &path] {
        fs::write(path, contents(BYTES, 1)).expect("written");
    }
    let _endpoint = endpoint(&stage);
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let open = |path: &Path| agent.open(writable(path));
    let (held_first, held_second) = (open(&first).expect("directly"), open(&second).expect("directly"));
    // Until the last of the journal's pages is full as well.
    let fill = || {
        small.fill();
        let refused = (0..200).find_map(|_| open(&path).map(|opened| opened.close().expect("closed")).err());
        refused.expect("there is no room for ever more lines").to_string()
    };
    let refused = fill();
    assert!(refused.contains("cannot be put on the list of frozen files"), "{refused}");
    assert!(open(&path).is_err(), "a file is frozen, and no journal knows it");
    // What it said of this one may be gone, or the word that it thawed: neither has a file immutable.
    within_seconds("it is not frozen", || !is_frozen(&path));
    assert!(is_frozen(&first) && journaled_in(&journal, &first));
    writable(&path).set_len(BYTES as u64).expect("open for writing, and nobody waits for a lease");
    // With room again all lines are whole.
    small.clear();
    let opened = open(&path).expect("directly");
    let is_listed = [&first, &second, &path].map(|path| is_frozen(path) && journaled_in(&journal, path));
    assert_eq!(is_listed, [true; 3]);
    for line in fs::read_to_string(&journal).expect("the journal").lines() {
        let (sum, text) = line.split_once(' ').expect("a checksum");
        assert_eq!(u32::from_str_radix(sum, 16), Ok(crc32c::crc32c(text.as_bytes())), "{line}");
    }
    opened.close().expect("closed");
    is_as_it_was(&stage, &journal, &path, "with room");
    // A file thaws without a line, which is made up for by the next.
    fill();
    held_first.close().expect("closed");
    is_thawed_and_free(&stage, &first, "without a line");
    small.clear();
    held_second.close().expect("closed");
    is_as_it_was(&stage, &journal, &first, "without a line");
    is_as_it_was(&stage, &journal, &second, "with the next");
    within_seconds("nobody has any", || planted.agent.frozen() == 0);
    drop(agent);
    drop(planted);
    // And the next agent can read it.
    drop(Planted::listing_in(&mut stage, "small"));
}

#[test]
fn a_file_whose_device_is_gone_stays_frozen_and_listed_until_it_is_back() {
    let test = "a_file_whose_device_is_gone_stays_frozen_and_listed_until_it_is_back";
    let made = Stage::remote(&["--media", "MEDIA", "--size", "128M"], By::Network);
    let Some(mut stage) = or_skip(test, made) else { return };
    let path = stage.on_it("file");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    fs::File::open(&path).expect("open").sync_all().expect("synced");
    let session = Session::open(SessionOptions::by_agent(stage.path("agent"))).expect("a session");
    let file = File::new(&session, writable(&path)).expect("a file");
    file.take().expect("directly");
    assert_eq!(file.pwrite(b"before", 0).expect("written"), 6);
    file.sync(true).expect("durable");
    stage.kill_device();
    // Nobody can say what the device permits: nothing is undone.
    stays_frozen(&stage, &path, "the device is gone");
    stage.start_device();
    within_seconds("the agent begins anew", || !is_frozen(&path) || file.is_direct());
    within_seconds("it is direct again", || file.take().is_ok());
    assert_eq!(file.pwrite(b"afterwards", 6).expect("written"), 10);
    file.close();
    drop(session);
    within_seconds("it thaws", || !is_frozen(&path) && !journaled(&stage, &path));
    assert!(fs::read(&path).expect("read").starts_with(b"beforeafterwards"));
}

#[test]
fn an_agent_of_which_a_thread_panics_ends_with_an_error_and_nothing_is_permitted_then() {
    let test = "an_agent_of_which_a_thread_panics_ends_with_an_error_and_nothing_is_permitted_then";
    let Some(mut stage) = stage(test) else { return };
    let planted = Planted::named(&mut stage, "");
    let writer = Writer::start(&stage, ALICE);
    let (file, judge) = (writer.file.clone(), Judge::new(&stage));
    assert!(!judge.permitted(Some(ALICE)).is_empty());
    planted.agent.plant(AgentFault::Panics);
    let (agent, asked) = (stage.path("agent"), fs::File::open(&file).expect("open"));
    let asks = std::thread::spawn(move || {
        let other = AgentClient::connect(Path::new(&agent)).map_err(|error| error.to_string())?;
        other.release(asked).map_err(|error| error.to_string())
    });
    let ended = planted.ended().expect("it ends by itself, with an error").to_string();
    asks.join().expect("it does not panic").expect_err("nobody answers");
    assert!(ended.contains("willow-agent panicked"), "{ended}");
    within_seconds("nothing is permitted", || judge.permitted(None).is_empty());
    let last = writer.last_line();
    assert!(last.contains("no such permission"), "{last}");
    stage.start_agent();
    within_seconds("it thaws", || !is_frozen(&file) && !journaled(&stage, &file));
}
