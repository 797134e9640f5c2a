//! Which blocks of the device a file lies on is the kernel's word about the disk that its file system is on: the same name may be another
//! disk's by then, a partition's, or nobody's. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_851;
const BOB: u32 = 54_852;
const SECRET: &[u8] = b"what Bob alone may read ";
/// How often a loop device may be somebody else's by the time that it is attached again, a moment after it was detached.
const TRIES: usize = 10;
/// Longest time until a loop device is detached that others have open.
const DETACHED_MAX: Duration = Duration::from_secs(120);

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// `willow direct read` as a user.
fn read(stage: &Stage, user: u32, file: &Path) -> Output {
    let mut command = Command::new(stage.willow());
    command.args(["direct", "read"]).arg(file);
    command.args(["--target", &stage.path("device"), "--agent", &stage.path("agent")]);
    command.uid(user).gid(user).current_dir("/").output().expect("it runs")
}

/// Detaches what the stage's loop device has, and attaches this; false where somebody else took the loop device meanwhile.
fn attach(stage: &Stage, disk: &str) -> bool {
    const LOOP_SET_FD: libc::c_ulong = 0x4c00;
    const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
    const LOOP_SET_BLOCK_SIZE: libc::c_ulong = 0x4c09;
    // The agent closes a file a moment after it said that it is not given, or has thawed.
    let files = stage.path("files");
    let is_away = || tool("umount", &[&files]).is_ok() || tool("mountpoint", &["-q", &files]).is_err();
    within_seconds("the file system can be taken away", is_away);
    let open = |path: &str| fs::OpenOptions::new().read(true).write(true).open(path);
    let (disk, mut status) = (open(disk).expect("open"), [0u64; 32]);
    let call = |device: &fs::File, number: libc::c_ulong, argument: libc::c_ulong| {
        // SAFETY: the argument is a number, or a place of 256 bytes, of which the kernel writes 232.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), number as _, argument) };
        (done == 0).then_some(()).ok_or_else(std::io::Error::last_os_error)
    };
    call(&open(stage.block()).expect("open"), LOOP_CLR_FD, 0).expect("detached");
    // It is free when it was closed by all, and taken again at once: there is no time for a program between.
    let begun = Instant::now();
    let device = loop {
        // While it is being detached nobody can open it.
        if let Ok(device) = open(stage.block())
            && call(&device, LOOP_GET_STATUS64, status.as_mut_ptr() as libc::c_ulong).is_err()
        {
            break device;
        }
        assert!(begun.elapsed() < DETACHED_MAX, "somebody keeps the loop device open");
    };
    let attached = call(&device, LOOP_SET_FD, disk.as_raw_fd() as libc::c_ulong);
    attached.and_then(|()| call(&device, LOOP_SET_BLOCK_SIZE, 4096)).is_ok()
}

/// A user may have the kernel attach disks of his own (udisks), and gets the number that is free: the blocks that his file has there are
/// others' on the device.
#[test]
fn a_disk_that_has_another_ones_name_by_now_is_not_the_devices() {
    let test = "a_disk_that_has_another_ones_name_by_now_is_not_the_devices";
    for _ in 0..TRIES {
        let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
        let secret: Vec<u8> = SECRET.iter().copied().cycle().take(1 << 20).collect();
        let bobs = stage.owned("bobs", BOB, &secret);
        fs::File::open(&bobs).expect("open").sync_all().expect("synced");
        assert!(read(&stage, BOB, &bobs).stdout == secret);
        within_seconds("it thaws", || !is_frozen(&bobs));
        let image = stage.path("image");
        fs::File::create(&image).and_then(|file| file.set_len(128 << 20)).expect("an image");
        tool("mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal", &image]).expect("a file system");
        if !attach(&stage, &image) {
            continue;
        }
        tool("mount", &[stage.block(), &stage.path("files")]).expect("mounted");
        // As long as that has room: so it lies where Bob's lies there.
        let alices = stage.owned("alices", ALICE, b"");
        let mut file = fs::OpenOptions::new().write(true).open(&alices).expect("open");
        while file.write_all(&[0; 1 << 20]).is_ok() {}
        file.sync_all().expect("synced");
        drop(file);
        let got = read(&stage, ALICE, &alices);
        let found = got.stdout.windows(SECRET.len()).any(|part| part == SECRET);
        assert!(!found, "Alice reads what Bob alone may read");
        let said = String::from_utf8_lossy(&got.stderr).into_owned();
        assert!(!got.status.success() && said.contains("another disk"), "{said}");
        assert!(!is_frozen(&alices));
        // Its own disk again: nobody can tell, and so the agent has to be started again.
        if !attach(&stage, &format!("{}/disk", stage.path("mount"))) {
            continue;
        }
        tool("mount", &[stage.block(), &stage.path("files")]).expect("mounted");
        let got = read(&stage, BOB, &bobs);
        let said = String::from_utf8_lossy(&got.stderr).into_owned();
        assert!(!got.status.success() && said.contains("start the agent again"), "{said}");
        stage.kill_agent();
        stage.start_agent();
        assert!(read(&stage, BOB, &bobs).stdout == secret);
        return;
    }
    panic!("others take each loop device");
}

#[test]
fn a_partition_that_is_named_is_where_it_begins() {
    let Some(mut stage) = or_skip("a_partition_that_is_named_is_where_it_begins", Stage::partition()) else { return };
    let path = stage.on_it("file");
    fs::write(&path, contents(300_000, 1)).expect("written");
    let planted = Planted::named(&mut stage, "p1");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session(&stage), file).expect("a file");
    file.take().expect("directly");
    let mut got = vec![0; 300_000];
    assert_eq!(file.pread(&mut got, 0).expect("read"), got.len());
    assert!(file.is_direct() && got == contents(300_000, 1));
    assert_eq!(file.pwrite(b"here", 200_000).expect("written"), 4);
    drop(file);
    within_seconds("it thaws", || !is_frozen(&path));
    assert_eq!(fs::read(&path).expect("read")[200_000..200_004], *b"here");
    drop(planted);
}

/// Nothing but who has it open keeps such a file: when the agent is killed its blocks are free at once, and the device may not know yet.
#[test]
fn a_file_without_a_name_is_not_given_directly() {
    let test = "a_file_without_a_name_is_not_given_directly";
    for (system, stage) in [("ext4", Stage::ext4()), ("xfs", Stage::xfs())] {
        let Some(stage) = or_skip(test, stage) else { return };
        let session = session(&stage);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true);
        let nameless = options.clone().custom_flags(0o20_200_000).open(stage.on_it("")).expect("O_TMPFILE");
        let deleted = options.create_new(true).open(stage.on_it("deleted")).expect("made");
        fs::remove_file(stage.on_it("deleted")).expect("deleted");
        for (what, mut file) in [("nameless", nameless), ("deleted", deleted)] {
            file.write_all(&contents(50_000, 1)).expect("written");
            let file = File::new(&session, file).expect("a file");
            let why = file.take().expect_err("it has no name").to_string();
            assert!(why.contains("has no name"), "{system}, {what}: {why}");
            // By the kernel, as ever.
            let mut got = vec![0; 50_000];
            assert_eq!(file.pread(&mut got, 0).expect("read"), 50_000, "{system}, {what}");
            assert!(got == contents(50_000, 1), "{system}, {what}");
        }
    }
}

/// What the kernel has open for writing in a file's name: a loop device, the swapper.
#[test]
fn a_file_that_a_loop_device_or_the_swapper_has_is_not_given_directly() {
    let test = "a_file_that_a_loop_device_or_the_swapper_has_is_not_given_directly";
    for (system, stage) in [("ext4", Stage::ext4()), ("xfs", Stage::xfs())] {
        let Some(stage) = or_skip(test, stage) else { return };
        let session = session(&stage);
        let path = stage.on_it("image");
        fs::write(&path, contents(1 << 20, 1)).expect("written");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
        fs::File::open(&path).expect("open").sync_all().expect("synced");
        let name = path.display().to_string();
        let take = || File::new(&session, fs::File::open(&path).expect("open")).expect("a file").take();
        let block = tool("losetup", &["-f", "--show", &name]).expect("a loop device");
        let taken = take();
        tool("losetup", &["-d", &block]).expect("detached");
        let why = taken.expect_err("a loop device has it").to_string();
        assert!(why.contains("open for writing somewhere"), "{system}: {why}");
        within_seconds("it is given when it was detached", || take().is_ok());
        within_seconds("it thaws", || !is_frozen(&path));
        tool("mkswap", &[&name]).expect("made");
        if let Err(why) = tool("swapon", &["--priority", "0", &name]) {
            println!("{system}: the swapper is not tried: {why}");
            continue;
        }
        let taken = take();
        tool("swapoff", &[&name]).expect("the swapper's no longer");
        let why = taken.expect_err("the swapper has it").to_string();
        assert!(why.contains("open for writing somewhere"), "{system}: {why}");
        within_seconds("it is given when the swapper has it no longer", || take().is_ok());
    }
}
