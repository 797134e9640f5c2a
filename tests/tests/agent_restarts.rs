//! An agent that is killed and started again under programs that use files directly: no call of theirs fails. Skipped, with a line that
//! says why, as the stage says.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::signals::{interrupted, signalled};
use willow_tests::stage::{Stage, WAIT_MAX, contents, is_frozen, or_skip, within_seconds};

const WRITERS: u64 = 3;
/// Numbers that a writer writes round and round, and how far its file grows and is cut back.
const NUMBERS: u64 = 4000;
const GROWN_MAX: u64 = 20_000;

fn options(stage: &Stage) -> SessionOptions {
    SessionOptions::new(stage.path("device"), stage.path("agent"))
}

fn writable(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).expect("open")
}

/// Writes numbers, now and then what the kernel has to do (growing, cutting, opening it once more); the last number.
fn write(session: &Arc<Session>, path: &Path, ends: &AtomicBool, count: &AtomicU64) -> u64 {
    let file = File::new(session, writable(path)).expect("a file");
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
    let mut number = 0u64;
    while !ends.load(Ordering::SeqCst) {
        number += 1;
        let written = file.pwrite(&number.to_le_bytes(), number % NUMBERS * 8);
        assert_eq!(written.expect("written"), 8, "number {number}");
        let mut read = [0; 8];
        file.pread(&mut read, number % NUMBERS * 8).expect("read");
        assert_eq!(u64::from_le_bytes(read), number);
        match number % 500 {
            100 => assert_eq!(file.pwrite(b"grown", GROWN_MAX * 8 + number % 97).expect("grown"), 5),
            300 => file.set_bytes(NUMBERS * 8).expect("cut"),
            400 => drop(File::open(session, &name, OFlags::RDWR, rustix::fs::Mode::empty()).expect("opened")),
            _ => {}
        }
        count.store(number, Ordering::SeqCst);
    }
    number
}

#[test]
fn no_call_fails_while_the_agent_is_killed_and_started_again() {
    let test = "no_call_fails_while_the_agent_is_killed_and_started_again";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let session = Session::open(SessionOptions { kernel_operations_max: 50, ..options(&stage) }).expect("a session");
    let paths: Vec<_> = (0..WRITERS).map(|it| stage.on_it(&format!("file-{it}"))).collect();
    paths.iter().for_each(|path| fs::write(path, vec![0; NUMBERS as usize * 8]).expect("written"));
    let (ends, counts) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; WRITERS as usize]);
    let last: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = paths
            .iter()
            .zip(&counts)
            .map(|(path, count)| scope.spawn(|| write(&session, path, &ends, count)))
            .collect();
        for round in 0..4u64 {
            let direct = session.counts().direct_writes;
            within_seconds("it is written directly", || session.counts().direct_writes > direct + 1000);
            stage.kill_agent();
            std::thread::sleep(Duration::from_millis(200 + 300 * round));
            stage.start_agent();
            let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            let goes_on = |(count, before): (&AtomicU64, &u64)| count.load(Ordering::SeqCst) > before + 1000;
            within_seconds("all of them go on", || {
                writers.iter().any(std::thread::ScopedJoinHandle::is_finished)
                    || counts.iter().zip(&before).all(goes_on)
            });
        }
        ends.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().expect("no call fails")).collect()
    });
    drop(session);
    for (path, last) in paths.iter().zip(last) {
        within_seconds("it thaws", || !is_frozen(path));
        let all = fs::read(path).expect("read");
        for place in 0..NUMBERS {
            let found = u64::from_le_bytes(all[place as usize * 8..][..8].try_into().expect("8 bytes"));
            let wanted = (0..=last).rev().take(NUMBERS as usize).find(|it| it % NUMBERS == place).unwrap_or(0);
            assert_eq!(found, wanted, "{}: number {place}", path.display());
        }
    }
}

/// A file that an agent which is gone has left immutable.
fn left_immutable(stage: &mut Stage) -> std::path::PathBuf {
    let session = Session::open(options(stage)).expect("a session");
    let path = stage.on_it("left");
    fs::write(&path, contents(20_000, 1)).expect("written");
    let file = File::new(&session, writable(&path)).expect("a file");
    file.take().expect("directly");
    stage.kill_agent();
    drop(file);
    assert!(is_frozen(&path));
    path
}

#[test]
fn an_agent_that_does_not_come_back_is_waited_for_once() {
    let Some(mut stage) = or_skip("an_agent_that_does_not_come_back_is_waited_for_once", Stage::ext4()) else { return };
    // Much longer than an open takes that does not wait.
    let patience = Duration::from_secs(8);
    let session = Session::open(SessionOptions { patience, ..options(&stage) }).expect("a session");
    let path = left_immutable(&mut stage);
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
    let open = || {
        let begun = Instant::now();
        let opened = File::open(&session, &name, OFlags::RDWR, rustix::fs::Mode::empty());
        (opened.err().map(|error| error.errno()), begun.elapsed() >= patience)
    };
    // Several at once wait as long as one.
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic").0).collect()
    });
    assert_eq!(all, [Some(libc::EPERM); 4]);
    assert_eq!(open(), (Some(libc::EPERM), false));
    // One that comes back is found, and its end is waited for again.
    stage.start_agent();
    assert_eq!(open().0, None);
    let left = left_immutable(&mut stage);
    assert_eq!(left, path);
    assert_eq!(open(), (Some(libc::EPERM), true));
    stage.start_agent();
    within_seconds("it thaws", || !is_frozen(&path));
}

#[test]
fn a_signal_ends_the_wait_of_an_open_and_no_other() {
    let Some(mut stage) = or_skip("a_signal_ends_the_wait_of_an_open_and_no_other", Stage::ext4()) else { return };
    let session = Session::open(SessionOptions { patience: WAIT_MAX, ..options(&stage) }).expect("one");
    let other = stage.on_it("other");
    fs::write(&other, contents(20_000, 1)).expect("written");
    let writes = Arc::new(File::new(&session, writable(&other)).expect("a file"));
    writes.take().expect("directly");
    let path = left_immutable(&mut stage);
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a name");
    let open = || -> Box<dyn FnOnce() -> Option<i32> + Send> {
        let (session, name) = (session.clone(), name.clone());
        Box::new(move || {
            let opened = File::open(&session, &name, OFlags::RDWR, rustix::fs::Mode::empty());
            opened.err().map(|error| error.errno())
        })
    };
    assert_eq!(interrupted(open()), Some(Errno::INTR.raw_os_error()));
    let restarted = signalled(libc::SA_RESTART, open());
    let grows = writes.clone();
    let written = signalled(0, Box::new(move || grows.pwrite(b"grown", 30_000).err().map(|error| error.errno())));
    assert!(!restarted.is_finished() && !written.is_finished(), "they wait for the agent");
    stage.start_agent();
    assert_eq!(restarted.join().expect("it does not panic"), None);
    assert_eq!(written.join().expect("it does not panic"), None);
    let mut read = [0; 5];
    fs::File::open(&other).expect("open").read_exact_at(&mut read, 30_000).expect("read");
    assert_eq!(&read, b"grown");
}
