//! A process that has a file directly, and all that could move the file's blocks, on ext4 and on xfs: what the device permits is the
//! file's own, whatever is tried. Agents that forget a part of the proof are caught by the same.
//! Skipped, with a line that says why, as the stage says.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::attacker::{Found, Talking, attacker};
use willow_tests::calls;
use willow_tests::judge::Judge;
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, WAIT_MAX, is_frozen, is_on_flash, or_skip, tool, within_seconds};
use willow_tests::ways::{Ways, kernel};

const ALICE: u32 = 54_501;
const BOB: u32 = 54_502;
/// Bob's files.
const BOBS_FILES: usize = 900;
const SECRET: &[u8] = b"what Bob alone may read ";

fn ext4(test: &str) -> Option<Stage> {
    or_skip(test, Stage::ext4())
}

fn xfs(test: &str) -> Option<Stage> {
    or_skip(test, Stage::xfs())
}

/// A folder of a user's own on the file system.
fn folder(stage: &Stage, name: &str, user: u32) -> PathBuf {
    let folder = stage.on_it(name);
    fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(user), Some(user)).expect("its owner");
    folder
}

/// What came of each way for a user. After each one the device's own tables are held against the file system; the error is the first
/// thing that must not be.
fn attacks(stage: &Stage, user: u32, what: &str, found: &mut Found) -> Result<(), String> {
    let file = folder(stage, &format!("of-{user}"), user).join("file");
    let judge = Judge::new(stage);
    let mut attacks = Talking::new(&mut attacker(stage, user, &file, what));
    loop {
        let line = attacks.line();
        if line.is_empty() {
            assert!(attacks.has_succeeded(), "the attacker ended early");
            return Ok(());
        }
        // Before anything that the attacker says itself: what it gave away is another's by now, whether it has seen that or not.
        let is_direct = line.starts_with("direct");
        let permitted = is_direct.then(|| judge.all_is_of(&file).map_err(|why| format!("{}: {why}", line.trim_end())));
        let permitted = permitted.transpose()?;
        found.note(&line, user == 0)?;
        if let Some(permitted) = permitted {
            // Where the device permits nothing there is nothing to be compared.
            let is_granted = line.trim_end().ends_with("same") || line.trim_end().ends_with("shared");
            assert_eq!(is_granted, permitted > 0, "{line}: {permitted} blocks are permitted");
            attacks.tell();
        }
    }
}

/// Every way has to come to what docs/direct-ways.md says, alone and when the file is direct, for a user and for root.
fn all_hold(stage: &Stage, system: &str, what: &str) {
    let mut found = Found::default();
    for user in [ALICE, 0] {
        attacks(stage, user, what, &mut found).unwrap_or_else(|why| panic!("{system}, user {user}: {why}"));
    }
    let (ways, cells) = (Ways::read(), found.cells());
    println!("kernel {}, {system}: {} ways", kernel(), cells.len());
    if !ways.kernels.contains(&kernel()) {
        println!("docs/direct-ways.md says nothing of Linux {}: what differs below may be that kernel's way", kernel());
    }
    let wrong = ways.wrong(system, &kernel(), &cells);
    assert!(wrong.is_empty(), "{system}, {what}:\n{}", wrong.join("\n"));
}

#[test]
fn each_call_of_the_kernels_is_a_way_or_said_to_be_none() {
    let known: BTreeSet<&str> = calls::all().collect();
    assert_eq!(known.len(), calls::all().count(), "a call is known twice");
    let wrong = Ways::read().wrong_calls(&known);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_way_to_move_extents_leaves_the_device_with_anothers_blocks_on_ext4() {
    let test = "no_way_to_move_extents_leaves_the_device_with_anothers_blocks_on_ext4";
    let Some(stage) = ext4(test) else { return };
    all_hold(&stage, "ext4", "attacks");
    if is_on_flash() {
        // The rest is the agent's part, which is long and the same on any medium: so are the tests below that say so.
        return;
    }
    all_hold(&stage, "ext4", "attacks of a reader");
    all_hold(&stage, "ext4 by block map", "attacks by block map");
}

#[test]
fn no_way_to_move_extents_leaves_the_device_with_anothers_blocks_on_xfs() {
    if is_on_flash() {
        // The agent's part.
        return;
    }
    let test = "no_way_to_move_extents_leaves_the_device_with_anothers_blocks_on_xfs";
    let Some(stage) = xfs(test) else { return };
    all_hold(&stage, "xfs", "attacks");
}

/// Alice gives her file's blocks away while she has it directly, Bob writes private files into all that is free: what Alice says when she
/// takes the file, what she reads past the kernel, and whether all of Bob's bytes are there still.
fn blocks_given_away(stage: &Stage, bytes: usize) -> (String, Option<String>, bool) {
    // One folder, so that the file system puts their files beside each other.
    let shared = stage.on_it("shared");
    fs::create_dir_all(&shared).expect("a folder");
    tool("chmod", &["1777", &shared.display().to_string()]).expect("its mode");
    // Their names are there before, so that the folder itself takes nothing of what becomes free.
    let private = |number: usize| {
        let path = shared.join(format!("bobs-{number}"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).open(&path).expect("a file");
        std::os::unix::fs::chown(&path, Some(BOB), Some(BOB)).expect("its owner");
        path
    };
    let private: Vec<PathBuf> = (0..BOBS_FILES).map(private).collect();
    let data: Vec<u8> = SECRET.iter().copied().cycle().take(bytes).collect();
    let secret = stage.owned("shared/secret", BOB, &data);
    tool("sync", &["--file-system", &stage.path("files")]).expect("synced");
    let mut alice = Talking::new(&mut attacker(stage, ALICE, &shared.join("alices"), "victim"));
    let first = alice.line();
    if first.starts_with("refused") {
        return (first, None, true);
    }
    // Deletions are done, and what they freed can be had, when the journal has been written.
    tool("sync", &["--file-system", &stage.path("files")]).expect("synced");
    // Bob writes as the user that he is.
    let mut bob = Talking::new(&mut attacker(stage, BOB, &secret, "fills"));
    let filled = bob.line();
    let filled = filled.strip_prefix("filled\t").and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    assert!(filled > 0, "Bob wrote nothing");
    let files = &private[..filled];
    tool("sync", &["--file-system", &stage.path("files")]).expect("synced");
    alice.go_on();
    let read = alice.line();
    alice.line();
    drop(alice);
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root");
    let intact = files.iter().all(|file| fs::read(file).is_ok_and(|found| found == data));
    (first, Some(read), intact)
}

/// On xfs a truncation that has passed the check by way of overlayfs goes on in spite of attribute and lease: so it is refused.
#[test]
fn files_on_xfs_are_refused_unless_the_agent_is_told_to_allow_them() {
    let Some(mut stage) = xfs("files_on_xfs_are_refused_unless_the_agent_is_told_to_allow_them") else { return };
    let _agent = Planted::strict(&mut stage);
    let path = stage.on_it("file");
    fs::write(&path, vec![1; 8192]).expect("written");
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    for file in [fs::File::open(&path), fs::OpenOptions::new().read(true).write(true).open(&path)] {
        let why = File::new(&session, file.expect("open")).expect("a file").take().expect_err("on xfs").to_string();
        assert!(why.contains("--allow-xfs"), "{why}");
    }
}

#[test]
fn no_way_to_move_extents_gives_a_reader_anothers_blocks_on_xfs_with_reflink() {
    if is_on_flash() {
        // The agent's part.
        return;
    }
    let test = "no_way_to_move_extents_gives_a_reader_anothers_blocks_on_xfs_with_reflink";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "400M");
    let Some(stage) = or_skip(test, made) else { return };
    all_hold(&stage, "xfs with reflink", "attacks of a reader");
}

#[test]
fn blocks_that_a_user_gives_away_are_read_and_changed_by_nobody_but_who_has_them_then() {
    let test = "blocks_that_a_user_gives_away_are_read_and_changed_by_nobody_but_who_has_them_then";
    // So long are Bob's files that the file system puts one where the blocks are.
    for (system, stage, bytes) in [("ext4", ext4(test), 160 << 10), ("xfs", xfs(test), 64 << 10)] {
        let Some(mut stage) = stage else { return };
        let (said, read, intact) = blocks_given_away(&stage, bytes);
        assert!(said.contains("open for writing somewhere"), "{system}: {said}");
        assert!(read.is_none() && intact, "{system}: {read:?}");
        // As it is without the proof: Alice reads Bob's private bytes, and changes them.
        let planted = Planted::start(&mut stage, AgentFault::NoLease);
        let (said, read, intact) = blocks_given_away(&stage, bytes);
        let has_read = read.as_ref().is_some_and(|read| read.contains("Bob alone may read"));
        assert!(has_read && !intact, "{system}: the attack is none: {} {read:?} {intact}", said.trim());
        drop(planted);
    }
}

#[test]
fn a_file_whose_mode_has_changed_is_written_on_by_who_has_it_open() {
    let test = "a_file_whose_mode_has_changed_is_written_on_by_who_has_it_open";
    let Some(stage) = ext4(test) else { return };
    let file = folder(&stage, "alices", ALICE).join("file");
    let output = attacker(&stage, ALICE, &file, "goes on").stderr(Stdio::inherit()).output().expect("it runs");
    assert!(output.status.success() && output.stdout.starts_with(b"went on"));
    within_seconds("it thaws", || !is_frozen(&file));
    let all = fs::read(&file).expect("read");
    assert!(all.len() == 4 * (64 << 10) && all[..8] == *b"directly" && all[64 << 10..].iter().all(|byte| *byte == 2));
}

/// Whether the device permits anything at any moment while a process asks in vain.
fn is_ever_permitted(stage: &Stage) -> bool {
    let file = folder(stage, "alices", ALICE).join("file");
    let mut asks = attacker(stage, ALICE, &file, "insistent").spawn().expect("it runs");
    let (judge, mut permitted) = (Judge::new(stage), false);
    while matches!(asks.try_wait(), Ok(None)) {
        permitted |= !judge.permitted(Some(ALICE)).is_empty();
    }
    let output = asks.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.lines().count() == 40 && said.lines().all(|line| line.starts_with("refused")), "{said}");
    permitted
}

#[test]
fn nothing_is_permitted_before_the_proof() {
    let Some(mut stage) = ext4("nothing_is_permitted_before_the_proof") else { return };
    assert!(!is_ever_permitted(&stage));
    let planted = Planted::start(&mut stage, AgentFault::GrantFirst);
    // Whoever looks has to look in time: as a rule it is seen at once.
    assert!((0..30).any(|_| is_ever_permitted(&stage)), "what an agent permits before the proof is not seen");
    drop(planted);
}

/// Whether the device permits anything of a file that has thawed: in one of so many times that it is opened and closed.
fn is_permitted_when_thawed(stage: &Stage, times: usize) -> bool {
    let path = stage.on_it("closed");
    fs::write(&path, vec![1; 64 << 10]).expect("written");
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
    let (judge, reader) = (Judge::new(stage), fs::File::open(&path).expect("open"));
    (0..times).any(|_| {
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let file = File::new(&session, file).expect("a file");
        file.take().expect("directly");
        let is_frozen = || willow_host::agent::freeze::is_immutable(reader.as_fd());
        assert!(is_frozen() && !judge.permitted(None).is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(file));
            let begun = std::time::Instant::now();
            while is_frozen() {
                assert!(begun.elapsed() < WAIT_MAX, "it does not thaw");
            }
            !judge.permitted(None).is_empty()
        })
    })
}

#[test]
fn nothing_is_permitted_of_a_file_that_has_thawed() {
    let Some(mut stage) = ext4("nothing_is_permitted_of_a_file_that_has_thawed") else { return };
    assert!(!is_permitted_when_thawed(&stage, 10));
    let planted = Planted::start(&mut stage, AgentFault::ThawFirst);
    assert!(is_permitted_when_thawed(&stage, 300), "what an agent revokes too late is not seen");
    drop(planted);
}

#[test]
fn an_agent_that_does_not_look_at_the_file_system_is_caught() {
    let test = "an_agent_that_does_not_look_at_the_file_system_is_caught";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "400M");
    let Some(mut stage) = or_skip(test, made) else { return };
    // Where blocks can be shared nobody gets to write.
    let refused = attacks(&stage, ALICE, "attacks", &mut Found::default());
    assert!(refused.as_ref().is_err_and(|why| why.contains("refused otherwise")), "{refused:?}");
    let planted = Planted::start(&mut stage, AgentFault::NoJudge);
    let caught = attacks(&stage, ALICE, "attacks", &mut Found::default());
    assert!(caught.as_ref().is_err_and(|why| why.contains("FICLONE from") && why.contains("share")), "{caught:?}");
    drop(planted);
}

/// The ways by which the device is left with blocks that are not the file's, under an agent that forgets this.
fn caught(stage: &Stage, user: u32) -> BTreeSet<String> {
    let file = folder(stage, &format!("of-{user}"), user).join("file");
    let (judge, mut found) = (Judge::new(stage), BTreeSet::new());
    let mut attacks = Talking::new(&mut attacker(stage, user, &file, "unguarded"));
    let mut last = String::new();
    loop {
        let line = attacks.line();
        let [_, way, _, verdict] = line.trim_end().split('\t').collect::<Vec<_>>()[..] else {
            assert!(line.is_empty() && attacks.has_succeeded(), "the attacker ended after {last:?}: {line}");
            return found;
        };
        last = format!("{way}: {verdict}");
        if verdict == "VIOLATION" || judge.all_is_of(&file).is_err() {
            found.insert(way.to_owned());
        }
        attacks.tell();
    }
}

/// Both guards together, and each alone: whatever moves blocks is caught where both are forgotten, and each stops what the other does not.
fn each_way_is_caught(stage: &mut Stage, system: &str, lease_alone: &str) {
    let ways = Ways::read();
    let planted = Planted::forgets(stage, &[AgentFault::NoLease, AgentFault::NoFlag]);
    let mut unguarded = BTreeSet::new();
    for user in [ALICE, 0] {
        let found = caught(stage, user);
        let moves = ways.that_move(system, &kernel(), user == 0);
        // They need a file in pieces.
        let moves = moves.into_iter().filter(|way| !["e4defrag", "xfs_fsr"].contains(way));
        let missed: Vec<&str> = moves.filter(|way| !found.contains(*way)).collect();
        assert!(missed.is_empty(), "{system}, user {user}: not caught without lease and attribute: {missed:?}");
        unguarded.extend(found);
    }
    drop(planted);
    for (what, fault) in [("a lease", AgentFault::NoLease), ("the attribute", AgentFault::NoFlag)] {
        let planted = Planted::start(stage, fault);
        let found: BTreeSet<String> = [ALICE, 0].into_iter().flat_map(|user| caught(stage, user)).collect();
        println!("{system}: without {what} alone {} of {} ways are caught: {found:?}", found.len(), unguarded.len());
        assert!(found.is_subset(&unguarded), "{system}, without {what}: {found:?}");
        // With the lease alone a file is refused to whoever keeps a descriptor that writes.
        assert_eq!(found.contains(lease_alone), fault == AgentFault::NoLease, "{system}, without {what}: {found:?}");
        drop(planted);
    }
}

#[test]
fn each_way_to_move_extents_is_caught_under_an_agent_without_guards_on_ext4() {
    if is_on_flash() {
        // The agent's part.
        return;
    }
    let Some(mut stage) = ext4("each_way_to_move_extents_is_caught_under_an_agent_without_guards_on_ext4") else {
        return;
    };
    each_way_is_caught(&mut stage, "ext4", "MOVE_EXT as original");
}

#[test]
fn each_way_to_move_extents_is_caught_under_an_agent_without_guards_on_xfs() {
    if is_on_flash() {
        // The agent's part.
        return;
    }
    let Some(mut stage) = xfs("each_way_to_move_extents_is_caught_under_an_agent_without_guards_on_xfs") else {
        return;
    };
    each_way_is_caught(&mut stage, "xfs", "ftruncate to less");
}

/// What only the attribute stops: deduplication, which asks for no descriptor that writes.
#[test]
fn an_agent_without_the_attribute_is_caught_where_a_reader_moves_blocks() {
    let test = "an_agent_without_the_attribute_is_caught_where_a_reader_moves_blocks";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "400M");
    let Some(mut stage) = or_skip(test, made) else { return };
    let planted = Planted::start(&mut stage, AgentFault::NoFlag);
    let caught = attacks(&stage, ALICE, "attacks of a reader", &mut Found::default());
    assert!(caught.as_ref().is_err_and(|why| why.contains("dedupe into, opened before")), "{caught:?}");
    drop(planted);
}

#[test]
fn an_agent_that_forgets_a_part_of_the_proof_is_caught() {
    let test = "an_agent_that_forgets_a_part_of_the_proof_is_caught";
    let Some(mut stage) = ext4(test) else { return };
    let planted = Planted::start(&mut stage, AgentFault::NoLease);
    let caught = attacks(&stage, ALICE, "attacks", &mut Found::default());
    assert!(caught.as_ref().is_err_and(|why| why.contains("which is not the file's")), "without a lease: {caught:?}");
    drop(planted);
    let planted = Planted::start(&mut stage, AgentFault::NoFlag);
    let file = folder(&stage, "alices", ALICE).join("file");
    let mut writer = Talking::new(&mut attacker(&stage, ALICE, &file, "writer"));
    assert!(writer.line().starts_with("written"));
    assert!(!is_frozen(&file), "without the attribute a file is not immutable");
    // Who opens it for writing gets it, when the agent has taken it back.
    let opened = fs::OpenOptions::new().write(true).open(&file);
    assert!(opened.is_ok(), "{opened:?}");
    within_seconds("it is taken back", || planted.agent.frozen() == 0);
    drop(opened);
    drop(writer);
    drop(planted);
    // With all of it the same is refused, and nothing is taken back.
    stage.start_agent();
    let mut writer = Talking::new(&mut attacker(&stage, ALICE, &file, "writer"));
    assert!(writer.line().starts_with("written") && is_frozen(&file));
    let refused = fs::OpenOptions::new().write(true).open(&file).expect_err("it is immutable");
    assert_eq!(refused.raw_os_error(), Some(1));
    assert!(writer.line().starts_with("written"));
}
