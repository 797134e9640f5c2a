//! What is written directly and what the page cache keeps: whoever may read a file can keep its pages there, by a mapping or in a pipe. When
//! the file thaws every read sees what was written, and a write of a part of a page puts no old byte back. Skipped, with a line that says why,
//! as the stage says.

use std::fs;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_tests::mapped::Mapped;
use willow_tests::planted::Planted;
use willow_tests::stage::{Stage, contents, is_append_only, is_frozen, or_skip, tool, within_seconds};

/// Not whole pages.
const BYTES: usize = (3 << 20) + 1234;
const PIPE_BYTES: usize = 1 << 20;

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// What keeps pages of a file, with no right but to read it.
enum Keeper {
    Map(Mapped),
    Pipe(#[expect(dead_code, reason = "it holds the pages")] (PipeReader, PipeWriter)),
    /// Reads all of it again and again.
    Reader(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>),
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Keeper::Reader(ends, thread) = self {
            ends.store(true, Ordering::SeqCst);
            let ended = thread.take().map(std::thread::JoinHandle::join);
            assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()), "the reader has ended before");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Map,
    Pipe,
    Reader,
}

fn keep(kind: Kind, path: &Path) -> Keeper {
    let file = fs::File::open(path).expect("open for reading");
    match kind {
        Kind::Map => Keeper::Map(Mapped::new(&file, BYTES)),
        Kind::Pipe => {
            let (end, begin) = std::io::pipe().expect("a pipe");
            // The end of the file: the page in it that is not whole as well.
            let at = (BYTES - BYTES % 4096 - PIPE_BYTES / 2) as i64;
            // SAFETY: calls without memory but one integer, which the kernel reads and writes.
            let count = unsafe {
                assert!(libc::fcntl(begin.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES as libc::c_int) > 0);
                let (from, to) = (file.as_raw_fd(), begin.as_raw_fd());
                libc::splice(from, &mut { at }, to, std::ptr::null_mut(), PIPE_BYTES, 0)
            };
            assert_eq!(count, BYTES as isize - at as isize, "into the pipe");
            Keeper::Pipe((end, begin))
        }
        Kind::Reader => {
            let ends = Arc::<AtomicBool>::default();
            let told = ends.clone();
            let thread = std::thread::spawn(move || {
                let mut all = vec![0; BYTES];
                while !told.load(Ordering::SeqCst) {
                    file.read_exact_at(&mut all, 0).expect("read");
                }
            });
            Keeper::Reader(ends, Some(thread))
        }
    }
}

/// What the device holds of a file.
fn on_the_device(path: &Path) -> Vec<u8> {
    let copy = path.with_extension("copy");
    let (from, to) = (format!("if={}", path.display()), format!("of={}", copy.display()));
    tool("dd", &[&from, &to, "bs=1M", "iflag=direct"]).expect("read past the page cache");
    let data = fs::read(&copy).expect("read");
    fs::remove_file(copy).expect("removed");
    data
}

/// Writes a file directly while its pages are kept, and then a byte into each page through the kernel; what was wrong.
fn write_and_look(stage: &Stage, kind: Kind, seed: u32) -> Result<(), String> {
    let path = stage.on_it("file");
    fs::write(&path, contents(BYTES, seed)).expect("written");
    fs::File::open(&path).expect("open").sync_all().expect("synced");
    let keeper = keep(kind, &path);
    let mut expected = contents(BYTES, seed + 1);
    let session = session(stage);
    let both = || fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session, both()).expect("a file");
    file.take().expect("directly");
    for (part, at) in expected.chunks(100_000).zip((0..).step_by(100_000)) {
        assert_eq!(file.pwrite(part, at).expect("written"), part.len());
    }
    assert!(file.is_direct());
    drop(file);
    drop(session);
    within_seconds(&format!("{kind:?}: it thaws"), || !is_frozen(&path) && !is_append_only(&path));
    let mut found = Ok(());
    if fs::read(&path).expect("read") != expected {
        found = Err(format!("{kind:?}: a read after it does not see what was written"));
    }
    if let Keeper::Map(mapped) = &keeper
        && mapped.bytes() != expected
    {
        found = Err(format!("{kind:?}: the mapping does not show what was written"));
    }
    if !is_written_by_the_kernel(&path, &mut expected) {
        found = Err(format!("{kind:?}: writes through the kernel have put old bytes back"));
    }
    drop(keeper);
    found
}

/// Writes a byte into each page through the kernel, and some behind the end; whether the device holds that, and all else as it was.
fn is_written_by_the_kernel(path: &Path, expected: &mut Vec<u8>) -> bool {
    let kernel = fs::OpenOptions::new().write(true).open(path).expect("open");
    for at in (7..BYTES).step_by(4096) {
        kernel.write_all_at(b"X", at as u64).expect("written");
        expected[at] = b'X';
    }
    fs::OpenOptions::new().append(true).open(path).expect("open").write_all(b"behind").expect("appended");
    expected.extend(b"behind");
    kernel.sync_all().expect("synced");
    on_the_device(path) == *expected
}

fn no_old_byte_comes_back(stage: &Stage) {
    for (kind, seed) in [Kind::Map, Kind::Pipe, Kind::Reader].into_iter().zip((0..).step_by(2)) {
        write_and_look(stage, kind, seed).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn who_reads_a_file_makes_nothing_of_it_old_on_ext4() {
    let test = "who_reads_a_file_makes_nothing_of_it_old_on_ext4";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    no_old_byte_comes_back(&stage);
}

#[test]
fn who_reads_a_file_makes_nothing_of_it_old_on_xfs() {
    let test = "who_reads_a_file_makes_nothing_of_it_old_on_xfs";
    let Some(stage) = or_skip(test, Stage::xfs()) else { return };
    no_old_byte_comes_back(&stage);
}

#[test]
fn an_agent_that_leaves_pages_which_the_kernel_keeps_is_caught() {
    let test = "an_agent_that_leaves_pages_which_the_kernel_keeps_is_caught";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let _planted = Planted::start(&mut stage, AgentFault::KeepsPages);
    for kind in [Kind::Map, Kind::Pipe] {
        assert!(write_and_look(&stage, kind, 0).is_err(), "{kind:?}");
    }
}

#[test]
fn what_an_agent_that_was_killed_leaves_is_not_old_either() {
    let test = "what_an_agent_that_was_killed_leaves_is_not_old_either";
    for (system, stage) in [("ext4", Stage::ext4()), ("xfs", Stage::xfs())] {
        let Some(mut stage) = or_skip(test, stage) else { return };
        for kind in [Kind::Map, Kind::Pipe] {
            let path = stage.on_it("file");
            fs::write(&path, contents(BYTES, 1)).expect("written");
            fs::File::open(&path).expect("open").sync_all().expect("synced");
            let keeper = keep(kind, &path);
            let session = session(&stage);
            let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
            let file = File::new(&session, file).expect("a file");
            file.take().expect("directly");
            let mut expected = contents(BYTES, 2);
            assert_eq!(file.pwrite(&expected, 0).expect("written"), BYTES);
            stage.kill_agent();
            assert!(is_frozen(&path));
            stage.start_agent();
            within_seconds("it thaws", || !is_frozen(&path) && !is_append_only(&path));
            drop(file);
            assert!(fs::read(&path).expect("read") == expected, "{system}, {kind:?}");
            if let Keeper::Map(mapped) = &keeper {
                assert!(mapped.bytes() == expected, "{system}, {kind:?}: the mapping");
            }
            assert!(is_written_by_the_kernel(&path, &mut expected), "{system}, {kind:?}: old bytes are back");
        }
    }
}
