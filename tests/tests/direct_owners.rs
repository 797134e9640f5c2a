//! What a user does with files of his own keeps nobody else from theirs, and gives him nothing of theirs. Skipped, with a line that says why, as
//! the stage says.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::attacker::{Talking, Writer, attacker};
use willow_tests::idmapped::Idmapped;
use willow_tests::planted::Planted;
use willow_tests::stage::{Frozen, Stage, contents, is_append_only, is_frozen, or_skip, tool, within_seconds};

const F_SETLEASE: libc::c_int = 1024;
const ALICE: u32 = 54_881;
const MALLORY: u32 = 54_882;
const BYTES: usize = 50_000;

/// What the agent says to Mallory, who has asked for a file of hers and confirms it when root has given it to Alice.
fn confirmed_when_it_is_another_user_s(stage: &Stage, name: &str) -> String {
    let path = stage.owned(name, MALLORY, &contents(BYTES, 1));
    let mut mallory = Talking::new(&mut attacker(stage, MALLORY, &path, "confirms once"));
    mallory.tell();
    let prepared = mallory.line();
    assert!(prepared.contains("prepared"), "{prepared}");
    chown(&path, Some(ALICE), Some(ALICE)).expect("its owner");
    fs::write(&path, contents(BYTES, 2)).expect("written");
    mallory.tell();
    let said = mallory.line();
    drop(mallory);
    within_seconds("it is Alice's own", || !is_frozen(&path));
    assert!(fs::read(&path).expect("read") == contents(BYTES, 2));
    said
}

#[test]
fn a_file_that_was_given_to_another_user_since_it_was_asked_for_is_not_granted() {
    let test = "a_file_that_was_given_to_another_user_since_it_was_asked_for_is_not_granted";
    or_skip(test, Stage::ext4()).into_iter().for_each(given_away);
}

#[test]
fn a_file_that_was_given_to_another_user_since_it_was_asked_for_is_not_granted_on_xfs() {
    let test = "a_file_that_was_given_to_another_user_since_it_was_asked_for_is_not_granted_on_xfs";
    or_skip(test, Stage::xfs()).into_iter().for_each(given_away);
}

fn given_away(mut stage: Stage) {
    let said = confirmed_when_it_is_another_user_s(&stage, "given");
    assert!(said.contains("belongs to another user"), "{said}");
    let planted = Planted::start(&mut stage, AgentFault::OwnerForgotten);
    let said = confirmed_when_it_is_another_user_s(&stage, "given-by-the-planted");
    assert!(said.contains("opened"), "the planted agent is not seen: {said}");
    drop(planted);
}

/// Somebody who keeps the kernel from changing Mallory's file. As root, since a test cannot rely on what users may mount; Mallory does it by
/// a file system in user space, in a user namespace.
fn locked(stage: &Stage, writer: &Writer) -> Talking {
    let mut locks = Talking::new(&mut attacker(stage, 0, &writer.file, "locks"));
    let said = locks.line();
    assert!(said.starts_with("locked"), "{said}");
    locks
}

#[test]
fn a_file_that_a_killed_agent_left_thaws_whatever_another_user_does_with_his() {
    let test = "a_file_that_a_killed_agent_left_thaws_whatever_another_user_does_with_his";
    or_skip(test, Stage::ext4()).into_iter().for_each(killed);
}

#[test]
fn a_file_that_a_killed_agent_left_thaws_whatever_another_user_does_with_his_on_xfs() {
    let test = "a_file_that_a_killed_agent_left_thaws_whatever_another_user_does_with_his_on_xfs";
    or_skip(test, Stage::xfs()).into_iter().for_each(killed);
}

fn killed(mut stage: Stage) {
    // The list is gone through by number: Mallory's is first.
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let number = |writer: &Writer| fs::metadata(&writer.file).expect("there").ino();
    assert!(number(&mallory) < number(&alice));
    let mut locks = locked(&stage, &mallory);
    stage.kill_agent();
    stage.start_agent();
    within_seconds("Alice's thaws", || !is_frozen(&alice.file));
    assert!(is_frozen(&mallory.file), "nothing keeps Mallory's");
    // Files that no agent has left are served.
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let path = stage.on_it("another");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session, file).expect("a file");
    file.take().expect("directly");
    drop(file);
    locks.go_on();
    within_seconds("Mallory's thaws", || !is_frozen(&mallory.file));
    assert!(locks.has_succeeded());
}

#[test]
fn a_file_that_had_to_wait_thaws_whatever_another_user_does_with_his() {
    let test = "a_file_that_had_to_wait_thaws_whatever_another_user_does_with_his";
    or_skip(test, Stage::ext4()).into_iter().for_each(had_to_wait);
}

#[test]
fn a_file_that_had_to_wait_thaws_whatever_another_user_does_with_his_on_xfs() {
    let test = "a_file_that_had_to_wait_thaws_whatever_another_user_does_with_his_on_xfs";
    or_skip(test, Stage::xfs()).into_iter().for_each(had_to_wait);
}

fn had_to_wait(stage: Stage) {
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let mut locks = locked(&stage, &mallory);
    let (hers, alices) = (mallory.file.clone(), alice.file.clone());
    let frozen = Frozen::new(&stage);
    // They end while nothing can thaw, Mallory first.
    for writer in [mallory, alice] {
        drop(writer);
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(frozen);
    within_seconds("Alice's thaws", || !is_frozen(&alices));
    assert!(is_frozen(&hers), "nothing keeps Mallory's");
    locks.go_on();
    within_seconds("Mallory's thaws", || !is_frozen(&hers));
    assert!(locks.has_succeeded());
}

/// Whoever may read one of Alice's files can have the kernel wait with that one. With the others of hers it does not: those of one process that ends,
/// those that wait for a file system, and those that a killed agent left.
#[test]
fn a_file_that_a_reader_keeps_busy_keeps_no_other_of_its_owners() {
    let test = "a_file_that_a_reader_keeps_busy_keeps_no_other_of_its_owners";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let take = |name: &str| {
        let path = stage.on_it(name);
        fs::write(&path, contents(BYTES, 1)).expect("written");
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let file = File::new(&session, file).expect("a file");
        file.take().expect("directly");
        (path, file)
    };
    let keeps_busy = |path: &Path| {
        let mut locks = Talking::new(&mut attacker(&stage, 0, path, "locks"));
        assert!(locks.line().starts_with("locked"));
        locks
    };
    // What the agent tries again when the file system has thawed, the busy one first.
    let (mended, first) = take("mended");
    let (waits, second) = take("waits");
    let mut locks = vec![keeps_busy(&mended)];
    let frozen = Frozen::new(&stage);
    let closes = std::thread::spawn(move || drop((first, second)));
    std::thread::sleep(Duration::from_millis(500));
    drop(frozen);
    within_seconds("what had to wait thaws", || !is_frozen(&waits));
    assert!(is_frozen(&mended), "nothing keeps it");
    closes.join().expect("no panic");
    // Of one process that closes them.
    let (busy, third) = take("busy");
    let (other, fourth) = take("other");
    locks.push(keeps_busy(&busy));
    let closes = std::thread::spawn(move || drop((third, fourth)));
    within_seconds("the other thaws", || !is_frozen(&other));
    assert!(is_frozen(&busy), "nothing keeps it");
    within_seconds("closing waits for a moment alone", || closes.is_finished());
    closes.join().expect("no panic");
    // What a killed agent left: files go by number, the busy one's is the lowest.
    let (left, fifth) = take("left");
    assert!(is_frozen(&left) && is_frozen(&busy));
    let mut agent = stage.leave_agent();
    drop(fifth);
    stage.start_agent();
    within_seconds("what was left thaws", || !is_frozen(&left));
    assert!(is_frozen(&busy) && is_frozen(&mended), "nothing keeps them");
    locks.iter_mut().for_each(Talking::go_on);
    within_seconds("they thaw in the end", || !is_frozen(&busy) && !is_frozen(&mended));
    agent.wait().expect("an end");
    assert!(locks.into_iter().all(|locks| locks.has_succeeded()));
}

#[test]
fn what_a_killed_agent_left_is_given_back_by_hand_whatever_another_user_does_with_his() {
    let test = "what_a_killed_agent_left_is_given_back_by_hand_whatever_another_user_does_with_his";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let mut locks = locked(&stage, &mallory);
    stage.kill_agent();
    let output = fs::File::create(stage.folder.join("thaw")).expect("made");
    // No pipe: the thread that waits for Mallory's keeps its descriptors.
    let mut thaw = std::process::Command::new(stage.willow());
    thaw.args(["agent", "--thaw", "--socket", "/nonexistent", "--state", &stage.path("agent.frozen")]);
    thaw.stdout(output.try_clone().expect("a descriptor")).stderr(output);
    let mut thaw = thaw.spawn().expect("it runs");
    within_seconds("Alice's thaws", || !is_frozen(&alice.file));
    assert!(is_frozen(&mallory.file), "nothing keeps Mallory's");
    // It says which one is left, and does no more.
    let said = || fs::read_to_string(stage.folder.join("thaw")).expect("text");
    within_seconds("it says what is left", || said().contains(&mallory.file.display().to_string()));
    // Nothing of it keeps an agent from starting.
    stage.start_agent();
    let again = Writer::start(&stage, ALICE);
    within_seconds("Alice has a file directly", || is_frozen(&again.file));
    locks.go_on();
    within_seconds("Mallory's thaws", || !is_frozen(&mallory.file));
    assert!(locks.has_succeeded());
    assert!(!thaw.wait().expect("an end").success());
}

#[test]
fn an_agent_starts_whatever_has_become_of_the_path_of_a_file_that_was_left() {
    let test = "an_agent_starts_whatever_has_become_of_the_path_of_a_file_that_was_left";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    stage.kill_agent();
    let (hers, alices) = (mallory.file.clone(), alice.file.clone());
    drop((mallory, alice));
    // Nobody opens it by a lease of hers; and where its path led there is a folder in which nobody finds anything.
    let leased = fs::File::open(&hers).expect("it opens");
    // SAFETY: the kernel's word that a lease is to be given up is ignored; a call without memory.
    let lease = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(leased.as_raw_fd(), F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(lease, 0, "{}", std::io::Error::last_os_error());
    let folder = hers.parent().expect("a folder").to_path_buf();
    let moved = folder.with_file_name("moved");
    fs::rename(&folder, &moved).expect("renamed");
    fs::create_dir(&folder).expect("another folder");
    let mut locks = Talking::new(&mut attacker(&stage, 0, &folder, "locks"));
    let said = locks.line();
    assert!(said.starts_with("locked"), "{said}");
    let inside = folder.join("inside");
    let waits = std::thread::spawn(move || fs::create_dir(inside));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waits.is_finished(), "the folder is not busy: nothing is tested");
    stage.start_agent();
    within_seconds("Alice's thaws", || !is_frozen(&alices));
    let again = Writer::start(&stage, ALICE);
    within_seconds("Alice has a file directly", || is_frozen(&again.file));
    locks.go_on();
    assert!(locks.has_succeeded());
    waits.join().expect("no panic").expect("made");
    drop(leased);
}

/// Its thread waits for an inode that Mallory keeps busy, and so its descriptors stay: the lock of its list, its socket, its connection with the
/// device.
#[test]
fn an_agent_that_was_killed_and_cannot_end_keeps_no_other_from_starting() {
    let test = "an_agent_that_was_killed_and_cannot_end_keeps_no_other_from_starting";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let mut locks = locked(&stage, &mallory);
    stage.kill_agent();
    // This one waits for Mallory's.
    stage.start_agent();
    within_seconds("Alice's thaws", || !is_frozen(&alice.file));
    let again = Writer::start(&stage, ALICE);
    within_seconds("Alice has a file directly", || is_frozen(&again.file));
    let mut left = stage.leave_agent();
    stage.start_agent();
    assert!(left.try_wait().expect("its state").is_none(), "the agent before has ended: nothing is tested");
    within_seconds("Alice's thaws", || !is_frozen(&again.file));
    assert!(is_frozen(&mallory.file), "nothing keeps Mallory's");
    // The one that lives has the list to itself.
    let arguments = ["agent", "--thaw", "--socket", "/nonexistent", "--state", &stage.path("agent.frozen")];
    let refused = tool(&stage.willow().display().to_string(), &arguments).expect_err("refused");
    assert!(refused.contains("is in use"), "{refused}");
    locks.go_on();
    within_seconds("Mallory's thaws", || !is_frozen(&mallory.file));
    assert!(locks.has_succeeded());
    left.wait().expect("an end");
}

/// Blocks of a file system that are a part of the device's: two users' files have one.
#[test]
fn a_file_that_has_blocks_of_the_device_in_part_is_refused() {
    let test = "a_file_that_has_blocks_of_the_device_in_part_is_refused";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let opens = |stage: &Stage| {
        let options = SessionOptions::new(stage.path("device"), stage.path("agent"));
        let session = Session::open(options).expect("a session");
        let path = stage.on_it("file");
        fs::write(&path, contents(BYTES, 1)).expect("written");
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        File::new(&session, file).expect("a file").take().map_err(|error| error.to_string())
    };
    for (blocks, is_served) in [("1024", false), ("4096", true)] {
        stage.kill_agent();
        stage.make_anew(&["mkfs.ext4", "-q", "-F", "-b", blocks], "512");
        stage.start_agent();
        match opens(&stage) {
            Ok(()) => assert!(is_served, "blocks of {blocks} bytes"),
            Err(why) => assert!(!is_served && why.contains("its blocks are not the device's"), "{why}"),
        }
    }
}

/// A process of hers keeps the file mapped, so that its pages have to be written anew, and has a lease of it that it takes again whenever it is broken.
#[test]
fn a_lease_of_its_users_own_keeps_a_file_no_longer_than_the_kernel_waits_for_leases() {
    let test = "a_lease_of_its_users_own_keeps_a_file_no_longer_than_the_kernel_waits_for_leases";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let (hers, alices) = (mallory.file.clone(), alice.file.clone());
    let mut leases = Talking::new(&mut attacker(&stage, MALLORY, &hers, "leases"));
    let said = leases.line();
    assert!(said.starts_with("leased"), "{said}");
    let begun = Instant::now();
    drop(mallory);
    let is_kept = || is_frozen(&hers) || is_append_only(&hers);
    // Others do not wait for it.
    drop(alice);
    within_seconds("Alice's thaws", || !is_frozen(&alices));
    let again = Writer::start(&stage, ALICE);
    let wait = fs::read_to_string("/proc/sys/fs/lease-break-time").expect("how long the kernel waits");
    let wait = Duration::from_secs(wait.trim().parse().expect("seconds"));
    assert!(is_kept() || begun.elapsed() < wait, "others waited for it");
    let begun = Instant::now();
    while is_kept() {
        assert!(
            begun.elapsed() < wait + Duration::from_secs(30),
            "it is kept longer than the kernel waits for a lease"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    // While she goes on it is anybody's who may change it.
    fs::remove_file(&hers).expect("removed");
    leases.go_on();
    assert!(leases.has_succeeded());
    drop(again);
}

/// The kernel decides by the mount whose a file is; what lies on the disk is another's.
#[test]
fn on_an_idmapped_mount_of_roots_a_file_is_released_as_the_kernel_would_change_it_and_is_not_given_directly() {
    let test =
        "on_an_idmapped_mount_of_roots_a_file_is_released_as_the_kernel_would_change_it_and_is_not_given_directly";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let alice = Writer::start(&stage, ALICE);
    let folder = alice.file.parent().expect("its folder");
    // Mallory gets nowhere by the mount that everybody has.
    let mut mallory = Talking::new(&mut attacker(&stage, MALLORY, &alice.file, "asks"));
    assert_eq!(mallory.line(), "", "she opens what is Alice's alone");
    // Nor can she make one of her own: in a user namespace of hers she is not the file system's root.
    let own = tool_as(&stage, MALLORY, &alice.file, "idmaps");
    assert!(own.starts_with("refused") || own.starts_with("unavailable"), "{own}");
    let place = stage.folder.join("idmapped");
    let Some(_mount) = or_none(test, Idmapped::new(folder, &place, (ALICE, MALLORY))) else { return };
    let seen = place.join("file");
    let owner = fs::metadata(&seen).expect("there").uid();
    assert_eq!(owner, MALLORY, "the mount shows it as hers");
    let mut mallory = Talking::new(&mut attacker(&stage, MALLORY, &seen, "asks"));
    let taken = mallory.line();
    assert!(taken.contains("belongs to another user"), "{taken}");
    let released = mallory.line();
    assert_eq!(released, "released\tdone\n");
    within_seconds("it is taken back from Alice", || !is_frozen(&alice.file));
    // Which is no more than the kernel lets her do there.
    let written = tool_as(&stage, MALLORY, &seen, "writes");
    assert!(written.starts_with("written"), "{written}");
    mallory.go_on();
    drop(alice);
}

/// The first line that the attacker says.
fn tool_as(stage: &Stage, user: u32, file: &std::path::Path, what: &str) -> String {
    Talking::new(&mut attacker(stage, user, file, what)).line()
}

/// What a kernel without such mounts does not have is not tested.
fn or_none<T>(test: &str, made: std::io::Result<T>) -> Option<T> {
    made.inspect_err(|error| willow_tests::stage::skip(test, &format!("there is no idmapped mount here: {error}"))).ok()
}
