//! `willow cache`: a file with its cache in front of it, for programs as they are; mounts and devices that are killed. Skipped with a line that says why
//! where FUSE mounts are not possible.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use support::{Folder, Served, fails, willow};
use willow_skip::{missing_for_fuse_mounts, skip};

/// A mount, gone at the end whatever happens.
struct Mount {
    child: Child,
    folder: String,
}

impl Mount {
    fn start(device: &Served, folder: &str, backing: &str, more: &[&str]) -> Mount {
        std::fs::create_dir_all(folder).expect("a folder");
        let mut command = willow();
        command.args(["cache", "mount", folder, "--backing", backing, "--target", &device.address]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("mounted ") && line.contains("/disk bytes="), "{line:?}");
        Mount { child, folder: folder.to_owned() }
    }

    fn disk(&self) -> String {
        format!("{}/disk", self.folder)
    }

    /// As Ctrl-C does.
    fn end(mut self) {
        let signalled = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().expect("kill");
        assert!(signalled.success() && self.child.wait().expect("an end").success(), "a clean end has status 0");
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("an end");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").args(["-l", &self.folder]).stderr(Stdio::null()).status();
    }
}

fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 13) as u8).collect()
}

fn cache_of(device: &Served) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_str(&device.ok(&["cache", "list", "--json"])).expect("JSON");
    all["caches"][0].clone()
}

#[test]
fn a_cached_file_is_read_and_written_by_programs_as_they_are_and_outlasts_kills() {
    let test = "a_cached_file_is_read_and_written_by_programs_as_they_are_and_outlasts_kills";
    if let Some(why) = missing_for_fuse_mounts() {
        return skip(test, &why);
    }
    let folder = Folder::new();
    let mut model = contents(1 << 20, 1);
    let backing = folder.file("slow", &model);
    let (media, at) = (folder.path("media"), folder.path("mnt"));
    let device = Served::start(&["--media", &media]);
    // Through: what is written is in the file.
    let mount = Mount::start(&device, &at, &backing, &["--mode", "write-through", "--size", "256K"]);
    assert!(std::fs::read(mount.disk()).expect("reads") == model);
    let file = File::options().read(true).write(true).open(mount.disk()).expect("it is there");
    file.write_all_at(&[7; 5000], 12_345).expect("writes");
    model[12_345..17_345].fill(7);
    assert!(std::fs::read(&backing).expect("reads") == model, "the file has it");
    drop(file);
    mount.end();
    // Back: what is synced is there after the mount and the device are killed.
    let mount = Mount::start(&device, &at, &backing, &["--mode", "write-back"]);
    let file = File::options().read(true).write(true).open(mount.disk()).expect("it is there");
    for (index, offset) in [0usize, 100_000, 400_000, 1_000_000].into_iter().enumerate() {
        let data = contents(9000, 50 + index as u64);
        file.write_all_at(&data, offset as u64).expect("writes");
        model[offset..offset + 9000].copy_from_slice(&data);
    }
    file.sync_all().expect("synced");
    let told = cache_of(&device);
    assert_eq!((told["mode"].as_str(), told["is_open"].as_bool()), (Some("write-back"), Some(true)), "{told}");
    assert!(told["hits"].as_u64() > Some(0) && told["misses"].as_u64() > Some(0), "{told}");
    mount.kill();
    drop(file);
    let _ = Command::new("umount").args(["-l", &at]).status();
    device.signal("-KILL");
    drop(device);
    let device = Served::start(&["--media", &media]);
    let mount = Mount::start(&device, &at, &backing, &[]);
    assert!(std::fs::read(mount.disk()).expect("reads") == model, "what was synced is there");
    mount.end();
    assert!(std::fs::read(&backing).expect("reads") == model, "and in the file, since the mount has ended");
    assert_eq!(cache_of(&device)["dirty_bytes"], 0);
    device.ok(&["cache", "remove", "0"]);
    assert!(cache_of(&device).is_null());
    device.end();
}

#[test]
fn what_cannot_be_mounted_as_a_cache_is_said() {
    let folder = Folder::new();
    let device = Served::start(&["--ram"]);
    let odd = folder.file("odd", &[1; 1000]);
    std::fs::create_dir_all(folder.path("mnt")).expect("a folder");
    let mount = |backing: &str, more: &[&str]| {
        let at = folder.path("mnt");
        device.fails(&[&["cache", "mount", &at, "--backing", backing], more].concat())
    };
    assert!(mount(&odd, &[]).contains("whole blocks of 512"), "a length that is no multiple of a block");
    assert!(mount(&folder.path("none"), &[]).contains("cannot open"));
    let sound = folder.file("sound", &[1; 4096]);
    assert!(mount(&sound, &["--size", "0"]).contains("--size is 0"));
    assert!(mount(&sound, &["--chunk", "5000"]).contains("a power of two"));
    assert!(device.fails(&["cache", "remove", "9"]).contains("cache 9"));
    assert!(
        fails(&["cache", "mount", "x", "--backing", &sound, "--mode", "write-around"])
            .contains("write-through or write-back")
    );
    device.end();
}
