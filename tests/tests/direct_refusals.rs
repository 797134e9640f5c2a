//! What programs are refused since others use a file directly: nothing, where the library stands before them, and nothing where they have
//! the file open already. Skipped, with a line that says why, as the stage says.

use rustix::io::Errno;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use willow_host::direct_io::{File, Place, Session, SessionOptions, Waits};
use willow_shm::socket::Channel;
use willow_tests::stage::{Stage, contents, is_frozen, or_skip};

const BYTES: usize = 64 << 10;

fn session(stage: &Stage) -> Arc<Session> {
    // It asks for files again at once.
    let options = SessionOptions::new(stage.path("device"), stage.path("agent"));
    Session::open(SessionOptions { kernel_operations_max: 0, ..options }).expect("a session")
}

fn writable(path: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// A file that a session has directly.
fn taken(session: &Arc<Session>, path: &Path) -> File<fs::File> {
    let file = File::new(session, writable(path).expect("open")).expect("a file");
    file.take().expect("directly");
    file
}

fn refused(done: std::io::Result<fs::File>) -> Errno {
    Errno::from_io_error(&done.expect_err("refused")).expect("an error of the kernel")
}

#[test]
fn a_refusal_that_is_over_when_it_is_looked_at_is_no_ones() {
    let test = "a_refusal_that_is_over_when_it_is_looked_at_is_no_ones";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("given-back");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let (one, other) = (session(&stage), session(&stage));
    // By a descriptor, and by its name.
    for by_name in [false, true] {
        let mut has = Some(taken(&one, &path));
        let mut asked = 0;
        let open = || {
            asked += 1;
            let opened = writable(&path);
            // The kernel has refused, and the file thaws before anybody asks why.
            if has.take().is_some() {
                let error = refused(opened);
                assert!(!is_frozen(&path));
                return Err(error);
            }
            opened.map_err(|error| Errno::from_io_error(&error).expect("an error of the kernel"))
        };
        let opened = if by_name {
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
            other.change(&[Place::new(&name)], Waits::ToTheEnd, open)
        } else {
            File::new(&other, fs::File::open(&path).expect("open")).expect("a file").insist(open)
        };
        assert_eq!(opened.map(|_| ()), Ok(()), "by its name: {by_name}");
        assert_eq!(asked, 2);
    }
}

#[test]
fn files_that_one_call_changes_are_all_kept_from_being_frozen_until_it_is_done() {
    let test = "files_that_one_call_changes_are_all_kept_from_being_frozen_until_it_is_done";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let paths = ["one", "over"].map(|name| stage.on_it(name));
    for (seed, path) in paths.iter().enumerate() {
        fs::write(path, contents(BYTES, seed as u32)).expect("written");
    }
    let (one, other) = (session(&stage), session(&stage));
    let files = paths.each_ref().map(|path| taken(&one, path));
    let names =
        paths.each_ref().map(|path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a name"));
    let places = names.each_ref().map(|name| Place { follows: false, ..Place::new(name) });
    let done = other.change(&places, Waits::ToTheEnd, || {
        // Whoever had them asks for them again as soon as they are taken back.
        files.iter().for_each(|file| assert_eq!(file.pread(&mut [0; 8], 0).expect("read"), 8));
        fs::rename(&paths[0], &paths[1]).map_err(|error| Errno::from_io_error(&error).expect("an error of the kernel"))
    });
    assert_eq!(done, Ok(()));
    drop(files);
    assert!(fs::read(&paths[1]).expect("read") == contents(BYTES, 0));
}

/// Says something to the agent; its answer.
fn ask(channel: &Channel, text: &str, files: &[BorrowedFd<'_>]) -> String {
    channel.send(text.as_bytes(), files).expect("asked");
    let answer = channel.receive_within(Duration::from_secs(120)).expect("an answer");
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

#[test]
fn who_has_a_file_open_for_writing_is_never_refused_since_another_asks_for_it() {
    let test = "who_has_a_file_open_for_writing_is_never_refused_since_another_asks_for_it";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let path = stage.on_it("written");
    fs::write(&path, contents(BYTES, 1)).expect("written");
    let _session = session(&stage);
    // A program that knows nothing of the library; and its mapping, a touch of which would be its end (SIGBUS).
    let program = writable(&path).expect("open");
    // SAFETY: a new mapping of a file of this length.
    let mapped = unsafe {
        let flags = rustix::mm::MapFlags::SHARED;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), BYTES, protection, flags, &program, 0).expect("mapped")
    };
    let changed = || {
        let of_it = fs::metadata(&path).expect("there");
        (of_it.ctime(), of_it.ctime_nsec())
    };
    let channel = Channel::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let before = changed();
    for number in 1..4 {
        let file = writable(&path).expect("open");
        let prepared = ask(&channel, r#"{"open":{"version":2}}"#, &[file.as_fd()]);
        assert!(prepared.contains("prepared"), "{prepared}");
        drop(file);
        assert!(!is_frozen(&path), "it is immutable while the program has it open");
        let contended = ask(&channel, &format!(r#"{{"confirm":{{"file":{number}}}}}"#), &[]);
        assert!(contended.contains("contended"), "{contended}");
    }
    // To set the attribute and to take it off again shows there.
    assert_eq!(changed(), before, "it was immutable meanwhile");
    program.write_all_at(b"goes on", 0).expect("written");
    // SAFETY: within the mapping, which nobody else uses.
    unsafe {
        mapped.cast::<u8>().add(4096).write_volatile(7);
        rustix::mm::munmap(mapped, BYTES).expect("unmapped");
    }
    // When the program has closed it, it is to be had.
    assert!(program.as_raw_fd() >= 0);
    drop(program);
    let file = writable(&path).expect("open");
    ask(&channel, r#"{"open":{"version":2}}"#, &[file.as_fd()]);
    drop(file);
    let opened = ask(&channel, r#"{"confirm":{"file":4}}"#, &[]);
    assert!(opened.contains("opened") && is_frozen(&path), "{opened}");
}
