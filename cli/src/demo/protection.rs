//! `willow demo protection`: two users with their own files on a real ext4 on the device. Each reads and writes them by an endpoint of
//! his own, installs an app and runs it on them; what is not theirs is refused, by the device.
//!
//! Invariant: whatever is not refused, or not as it should be, ends it with status 1; mounts, loop device and processes go in any case.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::stage::{PATIENCE, Stage, tool};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The two users: numbers that no account has.
const ALICE: u32 = 54001;
const BOB: u32 = 54002;
const FILE_BYTES: usize = 1 << 20;
/// More files of that size than there is room for.
const FILES_MAX: usize = 200;

impl Stage {
    fn say(&mut self, text: &str) -> Outcome<()> {
        self.step += 1;
        output::line(&format!("{}. {text}", self.step))
    }

    /// Runs a command of this program as a user.
    fn as_user(&self, user: u32, arguments: &[&str], input: &[u8]) -> Outcome<Output> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .uid(user)
            .gid(user)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(|| "cannot start a process of another user".to_owned())?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that is refused before it reads is none of our failures.
            let _ = stdin.write_all(input);
        }
        child.wait_with_output().context(|| "cannot wait for a process".to_owned())
    }

    fn direct(&self, user: u32, verb: &str, file: &Path, more: &[&str], input: &[u8]) -> Outcome<Output> {
        let (file, target, agent) = (file.display().to_string(), self.path("device"), self.path("agent"));
        let mut arguments = vec!["direct", verb, &file, "--target", &target, "--agent", &agent];
        arguments.extend(more);
        self.as_user(user, &arguments, input)
    }

    fn file(&self, name: &str, owner: u32, contents: &[u8]) -> Outcome<PathBuf> {
        let path = self.folder.join("files").join(name);
        let made = File::create(&path).and_then(|mut file| {
            file.write_all(contents)?;
            file.sync_all()?;
            chown(&path, Some(owner), Some(owner))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        });
        made.context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

fn succeeded(what: &str, output: Output) -> Outcome<Vec<u8>> {
    if !output.status.success() {
        fail!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("willow: "));
    }
    Ok(output.stdout)
}

/// The sentence of a refusal that has to be, with this in it.
fn refused(what: &str, output: &Output, with: &str) -> Outcome<String> {
    let said = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("willow: ").to_owned();
    if output.status.success() || !said.contains(with) {
        fail!("{what} was not refused as it must be: {said}");
    }
    Ok(said)
}

fn contents(seed: u8) -> Vec<u8> {
    (0..FILE_BYTES as u32).map(|at| at.wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed).collect()
}

/// Tells the story.
pub fn run() -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        fail!("this demo makes a file system and acts as two users: run it as root");
    }
    let begin = Instant::now();
    let mut stage = Stage::new("protection", &["--size", "128M"])?;
    tell(&mut stage)?;
    drop(stage);
    output::line(&format!("\nall of it held, in {:.0} s", begin.elapsed().as_secs_f64()))
}

fn tell(stage: &mut Stage) -> Outcome<()> {
    let written = fs::write(stage.folder.join("app.wasm"), willow_apps::DIRECT_IO_WASM);
    written.context(|| format!("cannot fill {}", stage.folder.display()))?;
    let block = stage.block.clone().unwrap_or_default();
    stage.say(&format!("a device, its block namespace as {block}, ext4 on it"))?;
    let device = stage.path("device");
    let mut expected = contents(1);
    let alices = stage.file("alices", ALICE, &expected)?;
    let bobs = stage.file("bobs", BOB, &contents(2))?;
    tool("sync", &["--file-system", &stage.path("files")])?;
    stage.start_agent()?;
    stage.say("Alice and Bob have a file each, which the other may not open; the agent is ready")?;

    if succeeded("Alice reads her file", stage.direct(ALICE, "read", &alices, &[], b"")?)? != expected {
        fail!("what Alice read directly is not what she wrote");
    }
    let patch = [0xa5; 10_000];
    succeeded("Alice writes her file", stage.direct(ALICE, "write", &alices, &["--offset", "123456"], &patch)?)?;
    expected[123_456..123_456 + patch.len()].copy_from_slice(&patch);
    if fs::read(&alices).context(|| "cannot read the file".to_owned())? != expected {
        fail!("what Alice wrote directly is not what the file system reads");
    }
    stage.say("Alice reads and writes her file by her own endpoint, without the operating system between; the file system sees the same")?;

    let said =
        refused("writing", &stage.direct(ALICE, "write", &alices, &["--read-only"], b"x")?, "the device refuses")?;
    stage.say(&format!("Alice opens it for reading and writes all the same: {said}"))?;
    let said = refused("opening", &stage.direct(BOB, "read", &alices, &[], b"")?, "cannot open")?;
    stage.say(&format!("Bob opens Alice's file: {said}"))?;

    // He knows where her bytes lie, and asks the device for them.
    let opened = File::open(&alices).context(|| "cannot open the file".to_owned())?;
    let extents = willow_host::agent::extents::of_file(opened.as_fd()).map_err(Failure::new)?;
    let Some(first) = extents.first() else { fail!("the file has no extents") };
    let stripe = u64::from(willow_device::STRIPE_BYTES);
    let (number, within) = (first.namespace_offset / stripe, first.namespace_offset % stripe);
    let spus = u64::from(willow_device::DeviceConfig::default().spus);
    let request = [&(number / spus * stripe + within).to_le_bytes()[..], &512u32.to_le_bytes(), &[0; 4]].concat();
    let data = stage.path("request");
    fs::write(&data, &request).context(|| format!("cannot write {data}"))?;
    let spu = (number % spus).to_string();
    let call = |app: &'static str| {
        ["rpc", app, "1", "--spu", &spu, "--data", &data, "--reply", "512", "--target", &device].map(str::to_owned)
    };
    let asked = |stage: &Stage, app: &'static str| {
        let arguments = call(app);
        stage.as_user(BOB, &arguments.each_ref().map(String::as_str), b"")
    };
    let said = refused("Direct-IO", &asked(stage, "direct-io")?, "status 5")?;
    stage.say(&format!("Bob asks the device for the blocks of Alice's file: {said} (no permission)"))?;

    let module = stage.path("app.wasm");
    succeeded("Bob installs an app", stage.as_user(BOB, &["app", "install", &module, "--target", &device], b"")?)?;
    let read = stage.direct(BOB, "read", &bobs, &["--app", "direct-io"], b"")?;
    if succeeded("Bob's app reads his file", read)? != contents(2) {
        fail!("what Bob's app read is not what is in his file");
    }
    stage.say("Bob installs an app of his own, without asking anybody, and runs it on his own file")?;
    let said = refused("Bob's app", &asked(stage, "u54002-direct-io")?, "status 5")?;
    stage.say(&format!("Bob's app goes for Alice's blocks: {said}"))?;
    let create = stage.as_user(BOB, &["ns", "create", "--csi", "nvm", "--size", "1M", "--target", &device], b"")?;
    let said = refused("a namespace", &create, "not permitted")?;
    stage.say(&format!("Bob makes a namespace: {said}"))?;
    gives_away(stage, &alices)?;
    goes_for_bobs(stage, &alices)?;
    frozen(stage, &alices)
}

/// Who keeps a descriptor that writes could move the file's blocks to another file by it, free them, and read what others write there.
fn gives_away(stage: &mut Stage, file: &Path) -> Outcome<()> {
    let kept = fs::OpenOptions::new().write(true).open(file).context(|| "cannot open the file".to_owned())?;
    let (path, target, agent) = (file.display().to_string(), stage.path("device"), stage.path("agent"));
    let output = Command::new(&stage.program)
        .args(["direct", "read", &path, "--target", &target, "--agent", &agent])
        .uid(ALICE)
        .gid(ALICE)
        .current_dir("/")
        // The process has it as its standard output.
        .stdout(Stdio::from(kept))
        .output()
        .context(|| "cannot start a process of another user".to_owned())?;
    let said = refused("a file that can still be moved", &output, "open for writing somewhere")?;
    stage.say(&format!(
        "Alice keeps a descriptor, to move her blocks to another file and free them while she has them: {said}"
    ))
}

/// The attack itself: Alice has her file directly, cuts it by every name that she has, Bob writes private files into all that is free, and
/// Alice writes past the kernel to where her file was. It lands in her own file, and nothing of Bob's has changed.
fn goes_for_bobs(stage: &mut Stage, file: &Path) -> Outcome<()> {
    let (path, target, agent) = (file.display().to_string(), stage.path("device"), stage.path("agent"));
    let before = fs::read(file).context(|| "cannot read the file".to_owned())?;
    let mut open = Command::new(&stage.program)
        .args(["direct", "write", &path, "--target", &target, "--agent", &agent])
        .uid(ALICE)
        .gid(ALICE)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context(|| "cannot start a process of another user".to_owned())?;
    let attacked = (|| {
        becomes_immutable(&path, true)?;
        let attacks: [&[&str]; 4] = [
            &["truncate", "-s", "0", &path],
            &["rm", "-f", &path],
            &["dd", "if=/dev/zero", &format!("of={path}"), "count=1", "status=none"],
            &["fallocate", "-p", "-o", "0", "-l", "1048576", &path],
        ];
        for attack in attacks {
            let tried = Command::new(attack[0]).args(&attack[1..]).uid(ALICE).gid(ALICE).stderr(Stdio::null()).status();
            // One that is not installed is none.
            if tried.is_ok_and(|status| status.success()) {
                fail!("{} went through on a file that is open directly", attack[0]);
            }
        }
        // Bob's: as many as there is room for, so that whatever had become free is his.
        let private: Vec<PathBuf> =
            (0..FILES_MAX).map_while(|number| stage.file(&format!("bobs-{number}"), BOB, &contents(2)).ok()).collect();
        let stolen = [0x66; 100_000];
        let written = open.stdin.take().map(|mut stdin| stdin.write_all(&stolen));
        let ended = open.wait().context(|| "cannot wait for a process".to_owned())?;
        if written.is_none_or(|written| written.is_err()) || !ended.success() {
            fail!("Alice cannot write her own file");
        }
        becomes_immutable(&path, false)?;
        for bobs in &private {
            if fs::read(bobs).context(|| "cannot read the file".to_owned())? != contents(2) {
                fail!("what Alice wrote directly is in {}", bobs.display());
            }
        }
        let found = fs::read(file).context(|| "cannot read the file".to_owned())?;
        if found[..stolen.len()] != stolen || found[stolen.len()..] != before[stolen.len()..] {
            fail!("what Alice wrote directly is not in her file");
        }
        for bobs in &private {
            fs::remove_file(bobs).context(|| "cannot remove a file".to_owned())?;
        }
        Ok(private.len())
    })();
    if attacked.is_err() {
        let _ = open.kill();
        let _ = open.wait();
    }
    let count = attacked?;
    stage.say(&format!(
        "Alice has it directly, and cuts, deletes, overwrites and punches it at the same time: all fail. Bob fills the file system with {count} \
         private files, Alice writes past the kernel: it lands in her own file, and nothing of Bob's has changed"
    ))
}

/// Waits until a file has the attribute, or has it no more.
fn becomes_immutable(path: &str, set: bool) -> Outcome<()> {
    let since = Instant::now();
    while tool("lsattr", &["-d", path])?.split(' ').next().is_some_and(|flags| flags.contains('i')) != set {
        if since.elapsed() > PATIENCE {
            fail!("{path} is {} immutable after {} s", if set { "not" } else { "still" }, PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// While a file is open directly its blocks stay where they are; then they are the file system's again.
fn frozen(stage: &mut Stage, file: &Path) -> Outcome<()> {
    let path = file.display().to_string();
    let (target, agent) = (stage.path("device"), stage.path("agent"));
    let mut open = Command::new(&stage.program)
        .args(["direct", "write", &path, "--target", &target, "--agent", &agent])
        .uid(ALICE)
        .gid(ALICE)
        .current_dir("/")
        .stdin(Stdio::piped())
        .spawn()
        .context(|| "cannot start a process of another user".to_owned())?;
    let held = becomes_immutable(&path, true).and_then(|()| match tool("truncate", &["-s", "0", &path]) {
        Ok(_) => Err(Failure::new("a file that is open directly was truncated")),
        Err(_) => Ok(()),
    });
    let _ = open.kill();
    let _ = open.wait();
    held?;
    becomes_immutable(&path, false)?;
    tool("truncate", &["-s", "0", &path])?;
    stage.say("while Alice has it open directly her file cannot be truncated; her process is killed, and it can")
}
