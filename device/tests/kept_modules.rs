//! Compiled code that is kept from one start to the next: what is found is run, what cannot be believed is compiled anew, and nobody else may have
//! put it there.

mod common;
use common::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use willow_device::{Arguments, BuiltInApp, Device, DeviceConfig, KeptModules, KeptModulesError, Rpc, RpcOutcome};

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("willow-kept-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.kept()).expect("a folder").map(|entry| entry.expect("there").path()).collect();
        files.sort();
        files
    }

    fn kept(&self) -> PathBuf {
        self.0.join("kept")
    }

    fn rig(&self) -> Rig {
        Rig::with(DeviceConfig { kept_modules: Some(self.kept()), ..config(1) }, None)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An app whose handler answers this.
fn answers(name: &str, result: u32) -> Vec<u8> {
    let body = format!("(call $respond (local.get 0) (i32.const 0) (i32.const {result})) (return (i32.const 0))");
    well_behaved(name, &body)
}

fn answer(rig: &mut Rig, app: u16) -> u32 {
    let done = rig.call(app, 2, 0, &[], &[], 0);
    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    done.result
}

/// What appears in the folder while an app is installed, and what the app answers.
fn install(folder: &Folder, module: &[u8]) -> (Vec<PathBuf>, u32) {
    let mut rig = folder.rig();
    let before = folder.files();
    let app = rig.install(module).expect("it is installed");
    let new = folder.files().into_iter().filter(|file| !before.contains(file)).collect();
    (new, answer(&mut rig, app))
}

fn one(files: &[PathBuf]) -> &Path {
    let [file] = files else { panic!("one file for one module: {files:?}") };
    file
}

#[test]
fn code_that_an_earlier_start_has_compiled_is_run() {
    let folder = Folder::new("run");
    let (first, second) = (answers("app", 11), answers("app", 22));
    let (of_first, said) = install(&folder, &first);
    assert_eq!(said, 11);
    let (of_second, said) = install(&folder, &second);
    assert_eq!(said, 22);
    let (of_first, of_second) = (one(&of_first), one(&of_second));
    // Where nothing is compiled, what is kept is what runs: another module's code, put in the place of this one's, shows it.
    fs::copy(of_second, of_first).expect("copied");
    assert_eq!(install(&folder, &first), (vec![], 22));
    // An app of the device itself, at its start.
    let built_in: &'static [u8] = Vec::leak(first.clone());
    let config = DeviceConfig { kept_modules: Some(folder.kept()), ..config(1) };
    let (store, mut apps) = banks(1, 1 << 30);
    apps.push(BuiltInApp::Wasm(built_in));
    let mut rig = Rig::opened(config, store, None, apps);
    let number = rig.device.statistics().apps.iter().find(|app| app.name == "app").expect("it is there").number;
    assert_eq!(answer(&mut rig, number), 22);
    // And without the folder it is compiled.
    let mut rig = Rig::new(1);
    let app = rig.install(&first).expect("it is installed");
    assert_eq!(answer(&mut rig, app), 11);
}

#[test]
fn what_is_damaged_or_not_of_this_runtime_is_compiled_anew() {
    let folder = Folder::new("damaged");
    let module = answers("app", 11);
    let (files, _) = install(&folder, &module);
    let file = one(&files).to_owned();
    let whole = fs::read(&file).expect("read");
    let mut wrong_bytes: Vec<Vec<u8>> =
        [0, 1, 19, 20, 21, whole.len() / 2, whole.len() - 1].map(|bytes| whole[..bytes].to_vec()).into();
    for at in [0, 8, 16, 20, 2000, whole.len() - 1] {
        let mut one_bit = whole.clone();
        one_bit[at] ^= 4;
        wrong_bytes.push(one_bit);
    }
    wrong_bytes.push(whole.iter().copied().chain([0]).collect());
    // Whole, but no code of this runtime.
    for code in [&b"no code at all"[..], &[]] {
        let mut of_nothing = whole[..8].to_vec();
        of_nothing.extend((code.len() as u64).to_le_bytes());
        of_nothing.extend(crc32c::crc32c(code).to_le_bytes());
        of_nothing.extend(code);
        wrong_bytes.push(of_nothing);
    }
    for wrong in wrong_bytes {
        fs::write(&file, &wrong).expect("written");
        let (new, said) = install(&folder, &module);
        assert_eq!((new, said), (vec![], 11), "{} bytes", wrong.len());
        let there = fs::read(&file).expect("read");
        assert!(there != wrong && there.len() == whole.len(), "what is compiled anew takes its place");
    }
}

#[test]
fn apps_that_are_metered_in_another_way_have_code_of_their_own() {
    let folder = Folder::new("metered");
    let module = answers("app", 11);
    let mut rig = folder.rig();
    rig.install(&module).expect("it is installed");
    let of_kernel = folder.files();
    let process = rig.device.open_process(1000, 1).expect("a process");
    let hre = rig.device.open_hre(Some(process)).expect("an endpoint");
    rig.hre = hre;
    rig.install(&module).expect("it is installed");
    assert_eq!(folder.files().len(), of_kernel.len() + 1, "the same bytes, metered in another way");
}

#[test]
fn a_folder_that_others_can_change_is_refused() {
    let folder = Folder::new("others");
    let refused = |path: &Path| match KeptModules::open(path) {
        Err(KeptModulesError::OpenToOthers { path }) => path,
        other => panic!("{}: {other:?}", path.display()),
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is mine");
    let above = folder.0.canonicalize().expect("there");
    let within = above.join("within");
    KeptModules::open(&within).expect("nobody else can change it");
    fs::set_permissions(&within, fs::Permissions::from_mode(0o777)).expect("it is mine");
    let (store, apps) = banks(1, 1 << 30);
    let opened = Device::open(DeviceConfig { kept_modules: Some(within.clone()), ..config(1) }, store, None, apps);
    assert!(opened.is_err_and(|why| why.to_string().contains("other users")), "a device does not start there");
    fs::set_permissions(&within, fs::Permissions::from_mode(0o700)).expect("it is mine");
    assert_eq!(fs::metadata(&within).expect("there").permissions().mode() & 0o777, 0o700);
    for open in [0o770, 0o707, 0o777, 0o1777] {
        mode(&within, open);
        assert_eq!(refused(&within), within, "{open:o}");
    }
    mode(&within, 0o700);
    for open in [0o775, 0o777] {
        mode(&above, open);
        assert_eq!(refused(&within), above, "{open:o}");
    }
    mode(&above, 0o1777);
    KeptModules::open(&within).expect("nobody replaces what is another's in a sticky folder");
    mode(&above, 0o755);
    // By a link of somebody else's as well: what counts is where it leads.
    let link = std::env::temp_dir().join(format!("willow-kept-link-{}", std::process::id()));
    std::os::unix::fs::symlink(&within, &link).expect("a link");
    mode(&within, 0o777);
    assert_eq!(refused(&link), within);
    fs::remove_file(&link).expect("there");
    mode(&within, 0o700);
    // Nothing is made where it would not be used.
    let deeper = above.join("open").join("deeper");
    fs::create_dir(above.join("open")).expect("made");
    mode(&above.join("open"), 0o777);
    assert_eq!(refused(&deeper), above.join("open"));
    assert!(!deeper.exists());
    let file = above.join("file");
    fs::write(&file, "").expect("written");
    assert!(matches!(KeptModules::open(&file), Err(KeptModulesError::Unreachable { .. })));
    // Another user's folder: only root can make one.
    if chown(&within, Some(1000), None).is_ok() {
        assert_eq!(refused(&within), within);
        chown(&within, Some(0), None).expect("root");
        chown(&above, Some(1000), None).expect("root");
        assert_eq!(refused(&within), above);
        chown(&above, Some(0), None).expect("root");
    }
}

#[test]
fn the_oldest_make_room() {
    let folder = Folder::new("room");
    let (files, _) = install(&folder, &answers("app", 11));
    let first = one(&files).to_owned();
    let old_time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open(&first).and_then(|file| file.set_modified(old_time)).expect("it is mine");
    // As many as there may be, younger than the first.
    let old = |number: u32| folder.kept().join(format!("{number:064x}"));
    for number in 0..300 {
        fs::write(old(number), "other").expect("written");
    }
    // Not this one's: a file and a folder that are there for something else stay, however many and long they are.
    let others = folder.kept().join("media-0");
    fs::File::create(&others).and_then(|file| file.set_len(1 << 40)).expect("made");
    fs::create_dir(folder.kept().join("folder")).expect("made");
    let (second, _) = install(&folder, &answers("app", 22));
    assert!(!first.exists() && one(&second).exists());
    assert_eq!(folder.files().len(), 256 + 2);
    // And as many bytes as there may be: files with holes take none of the disk.
    for number in 0..9 {
        let big = fs::File::create(old(1000 + number)).expect("made");
        big.set_len(60 << 20).expect("long");
    }
    install(&folder, &answers("app", 33));
    assert!(others.exists() && folder.kept().join("folder").exists());
    fs::remove_file(&others).expect("there");
    let bytes: u64 = folder.files().iter().map(|file| fs::metadata(file).expect("there").len()).sum();
    assert!((440 << 20..=512 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn a_folder_that_takes_nothing_is_no_hindrance() {
    let folder = Folder::new("nothing");
    let mut rig = folder.rig();
    fs::remove_dir_all(folder.kept()).expect("removed");
    let app = rig.install(&answers("app", 11)).expect("it is installed");
    assert_eq!(answer(&mut rig, app), 11);
    let rpc = Rpc { app, handler: 2, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(rpc, &[], 0);
    rig.device.submit(rig.hre, request).expect("it goes on");
    rig.settle();
    assert_eq!(rig.device.completion().expect("an end").result, 11);
}
