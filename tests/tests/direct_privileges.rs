//! What the kernel does to a file when it is written, and what it keeps from being written, holds where a process writes past the kernel:
//! such files are not written directly. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_861;
/// A group that Alice is not in.
const STAFF: u32 = 54_862;
const BYTES: usize = 50_000;
/// `struct vfs_cap_data` of version 2: CAP_NET_RAW is permitted, and effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn stages(test: &str) -> Vec<(&'static str, Stage)> {
    let made = [("ext4", Stage::ext4()), ("xfs", Stage::xfs())];
    made.into_iter().filter_map(|(system, made)| Some((system, or_skip(test, made)?))).collect()
}

/// `willow direct` as Alice.
fn direct(stage: &Stage, verb: &str, file: &Path, input: &[u8]) -> Output {
    let mut command = Command::new(stage.willow());
    command.args(["direct", verb]).arg(file);
    command.args(["--target", &stage.path("device"), "--agent", &stage.path("agent")]);
    command.uid(ALICE).gid(ALICE).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let _ = child.stdin.take().expect("its input").write_all(input);
    child.wait_with_output().expect("an end")
}

/// Whether whoever runs a file gets more than his own by it.
fn has_privileges(path: &Path) -> bool {
    let mode = fs::metadata(path).expect("there").permissions().mode();
    mode & 0o6000 != 0 || rustix::fs::getxattr(path, "security.capability", &mut [0; 64][..]).is_ok()
}

/// How root gives a file a privilege.
type Give<'a> = &'a dyn Fn(&Path);

/// Root gives a user's program rights that the user has not. The kernel takes them away when the user writes it.
#[test]
fn a_file_that_gives_privileges_is_not_written_directly() {
    for (system, stage) in stages("a_file_that_gives_privileges_is_not_written_directly") {
        let set_mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
        let give: [(&str, Give<'_>); 3] = [
            ("set-user-id", &|path| set_mode(path, 0o4755)),
            ("set-group-id", &|path| {
                chown(path, Some(ALICE), Some(STAFF)).expect("its group");
                set_mode(path, 0o2755);
            }),
            ("capabilities", &|path| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(path, "security.capability", &CAPABILITY, flags).expect("its capabilities");
            }),
        ];
        for (what, give) in give {
            let path = stage.owned(what, ALICE, &contents(BYTES, 1));
            assert!(direct(&stage, "write", &path, b"a program of her own").status.success(), "{system}, {what}");
            within_seconds("it thaws", || !is_frozen(&path));
            give(&path);
            assert!(has_privileges(&path), "{system}, {what}");
            let refused = direct(&stage, "write", &path, b"something else");
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            let now = fs::read(&path).expect("read");
            assert!(
                now.starts_with(b"a program of her own"),
                "{system}, {what}: Alice wrote a program that has rights"
            );
            assert!(!refused.status.success() && said.contains(what), "{system}, {what}: {said}");
            // Reading is nothing.
            assert!(direct(&stage, "read", &path, b"").stdout == now, "{system}, {what}");
            within_seconds("it thaws", || !is_frozen(&path));
            // By the kernel she may, and it gives nothing any more.
            let mut dd = Command::new("dd");
            dd.args(["if=/dev/zero", "bs=1", "count=1", "conv=notrunc", "status=none"]);
            let written = dd.arg(format!("of={}", path.display())).uid(ALICE).gid(ALICE).current_dir("/").status();
            assert!(written.is_ok_and(|status| status.success()) && !has_privileges(&path), "{system}, {what}");
            if fs::metadata(&path).expect("there").permissions().mode() & 0o111 != 0 {
                // Nor does anybody run it while it is written.
                let refused = direct(&stage, "write", &path, b"something else");
                let said = String::from_utf8_lossy(&refused.stderr).into_owned();
                assert!(!refused.status.success() && said.contains("may be executed"), "{system}, {what}: {said}");
                set_mode(&path, 0o644);
            }
            assert!(direct(&stage, "write", &path, b"her own again").status.success(), "{system}, {what}");
            within_seconds("it thaws", || !is_frozen(&path));
        }
    }
}

/// Root may forbid that a file be changed, or changed but at its end, while somebody has it open for writing.
#[test]
fn a_file_that_is_not_to_be_changed_is_not_written_directly_by_who_had_it_open() {
    let test = "a_file_that_is_not_to_be_changed_is_not_written_directly_by_who_had_it_open";
    for (system, stage) in stages(test) {
        let session: Arc<Session> =
            Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session");
        for (attribute, what) in [("i", "immutable"), ("a", "append-only")] {
            let path = stage.on_it(what);
            fs::write(&path, contents(BYTES, 1)).expect("written");
            let writer = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
            let name = path.display().to_string();
            tool("chattr", &[&format!("+{attribute}"), &name]).expect("its attribute");
            let file = File::new(&session, writer).expect("a file");
            let why = file.take().expect_err("it is not to be changed").to_string();
            assert!(why.contains(what), "{system}, {what}: {why}");
            drop(file);
            let reader = File::new(&session, fs::File::open(&path).expect("open")).expect("a file");
            reader.take().expect("directly, to be read");
            let mut got = vec![0; BYTES];
            assert_eq!(reader.pread(&mut got, 0).expect("read"), BYTES);
            assert!(reader.is_direct() && got == contents(BYTES, 1), "{system}, {what}");
            // Who has it directly to be read does not open the way for others.
            let other = fs::OpenOptions::new().write(true).open(&path).expect_err("it is not to be changed");
            assert_eq!(other.raw_os_error(), Some(1));
            drop(reader);
            std::thread::sleep(std::time::Duration::from_millis(300));
            let said = tool("lsattr", &[&name]).expect("attributes");
            assert!(said.split(' ').next().is_some_and(|now| now.contains(attribute)), "{system}, {what}: {said}");
            tool("chattr", &[&format!("-{attribute}"), &name]).expect("its attribute");
        }
    }
}
