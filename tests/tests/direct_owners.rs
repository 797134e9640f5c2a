//! What a user does with files of his own keeps nobody else from theirs, and gives him nothing of theirs. Skipped, with a line that says why, as
//! the stage says.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::attacker::{Talking, Writer, attacker};
use willow_tests::planted::Planted;
use willow_tests::stage::{Frozen, Stage, contents, is_frozen, or_skip, tool, within_seconds};

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
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
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
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    // The list is gone through by number: Mallory's is first.
    let (mallory, alice) = (Writer::start(&stage, MALLORY), Writer::start(&stage, ALICE));
    let number = |writer: &Writer| std::os::unix::fs::MetadataExt::ino(&fs::metadata(&writer.file).expect("there"));
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
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
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
