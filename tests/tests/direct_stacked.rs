//! Direct files, and what lets a call on them wait past its check: a file system on top of theirs (overlayfs in a user's own namespace),
//! memory that is not there yet. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::PathBuf;
use std::time::Instant;
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::attacker::{Talking, attacker};
use willow_tests::judge::Judge;
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, is_frozen, or_skip, skip, within_seconds};

const ALICE: u32 = 54_901;

/// Alice's folder, and the file that is below her overlay.
fn below(stage: &Stage, name: &str) -> PathBuf {
    let folder = stage.on_it(name);
    for folder in [&folder, &folder.join("upper")] {
        fs::DirBuilder::new().mode(0o755).create(folder).expect("a folder");
        chown(folder, Some(ALICE), Some(ALICE)).expect("its owner");
    }
    let file = stage.owned(&format!("{name}/upper/file"), ALICE, &[5; 64 << 10]);
    fs::File::open(&file).expect("open").sync_all().expect("synced");
    file
}

/// What comes of the attack: what the truncation by way of the overlay said, and the verdict; with what the device permits then that it must
/// not. The error says why no user can mount one.
fn attack(stage: &Stage, name: &str, what: &str) -> Result<(String, Result<usize, String>), String> {
    let file = below(stage, name);
    let mut alice = Talking::new(&mut attacker(stage, ALICE, &file, what));
    let line = alice.line();
    if let Some(why) = line.strip_prefix("unavailable\t") {
        return Err(why.trim_end().to_owned());
    }
    let judged = Judge::new(stage).all_is_of(&file);
    drop(alice);
    within_seconds("it thaws", || !is_frozen(&file));
    Ok((line.trim_end().to_owned(), judged))
}

#[test]
fn a_truncation_that_waits_in_an_overlay_frees_no_block_of_a_direct_file() {
    let test = "a_truncation_that_waits_in_an_overlay_frees_no_block_of_a_direct_file";
    let Some(ext4) = or_skip(test, Stage::ext4()) else { return };
    // Alone it is a truncation.
    let (alone, _) = match attack(&ext4, "alone", "overlay, alone") {
        Ok(found) => found,
        Err(why) => return skip(test, &why),
    };
    assert_eq!(alone, "done\tmoves");
    let (said, judged) = attack(&ext4, "direct", "overlay").expect("it mounts");
    assert_eq!(said, "EPERM\tsame");
    assert!(judged.as_ref().is_ok_and(|blocks| *blocks > 0), "{judged:?}");
    drop(ext4);
    // On xfs it goes through: which is why files there are refused.
    let Some(mut xfs) = or_skip(test, Stage::xfs()) else { return };
    let (said, judged) = attack(&xfs, "allowed", "overlay").expect("it mounts");
    assert_eq!(said, "done\tVIOLATION", "xfs looks at the attribute by now: --allow-xfs is not needed any more");
    assert!(judged.is_err_and(|why| why.contains("not the file's")));
    let planted = Planted::strict(&mut xfs);
    let (said, judged) = attack(&xfs, "refused", "overlay").expect("it mounts");
    assert!(said.starts_with("refused\t") && said.contains("--allow-xfs"), "{said}");
    assert_eq!(judged, Ok(0));
    drop(planted);
}

#[test]
fn a_write_that_waits_for_memory_keeps_its_file_and_holds_up_nobody_else() {
    let test = "a_write_that_waits_for_memory_keeps_its_file_and_holds_up_nobody_else";
    for (system, stage) in [("ext4", Stage::ext4()), ("xfs", Stage::xfs())] {
        let Some(stage) = or_skip(test, stage) else { return };
        let file = stage.on_it("stalled");
        let mut stalls = Talking::new(&mut attacker(&stage, 0, &file, "stalls"));
        assert_eq!(stalls.line(), "stalled\t\n", "{system}");
        // The agent asks the file system about that file, and waits there for the write. Others do not notice.
        let begun = Instant::now();
        for number in 0..20 {
            let other = stage.on_it(&format!("other-{number}"));
            fs::write(&other, vec![number; 8192]).expect("written");
            let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent")));
            let direct = File::new(&session.expect("a session"), fs::File::open(&other).expect("open"));
            direct.expect("a file").take().expect("directly");
        }
        println!("{system}: 20 files of others in {:?}", begun.elapsed());
        stalls.go_on();
        let line = stalls.line();
        // By then it was written, or is refused since it is being written.
        assert!(
            line.starts_with("taken\t[7, 0, 0, 0, 0, 0, 0, 0]") || line.starts_with("refused\t"),
            "{system}: {line}"
        );
        assert!(stalls.has_succeeded(), "{system}");
        within_seconds("it thaws", || !is_frozen(&file));
        assert_eq!(fs::read(&file).expect("read")[..9], [7, 0, 0, 0, 0, 0, 0, 0, 7], "{system}");
    }
}
