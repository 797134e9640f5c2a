//! Files that are read and written directly by the library, against plain files with the same operations: on a real ext4 on the device.
//! Skipped, with a line that says why, where this is not root, or FUSE, loop devices or a tool are missing.

use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use willow_host::direct_io::{DirectError, File, Queue, Request, Session, SessionOptions};
use willow_tests::stage::{Stage, WAIT_MAX, is_frozen, or_skip, tool, within_seconds};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut all: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        all.truncate(count);
        all
    }
    /// Lengths that are small, of blocks, of stripes and of several of them, and a little beside.
    fn length(&mut self) -> usize {
        let near = [0, 1, 511, 512, 4095, 4096, 8192, 16384, 100_000, 300_000][self.below(10) as usize];
        near + self.below(3) as usize * self.below(700) as usize
    }
}

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

fn open(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("it opens")
}

fn direct(session: &Arc<Session>, path: &Path) -> Arc<File> {
    Arc::new(File::new(session, open(path).into()).expect("a regular file"))
}

/// Splits a buffer into a few parts.
fn parts(random: &mut Random, bytes: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut left = bytes;
    for _ in 0..random.below(5) {
        let part = random.below(left as u64 + 1) as usize;
        lengths.push(part);
        left -= part;
    }
    lengths.push(left);
    lengths
}

fn one_way(seed: u64, session: &Arc<Session>, on_it: &Path, plain: &Path, steps: u32) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (_, _) = (fs::remove_file(on_it), fs::remove_file(plain));
    let first = random.bytes(700_000);
    fs::write(on_it, &first).expect("written");
    fs::write(plain, &first).expect("written");
    let (mut file, model) = (direct(session, on_it), open(plain));
    let mut queue = Queue::new(session, 8).expect("a queue");
    for step in 0..steps {
        let what = format!("seed {seed}, step {step}");
        let bytes = model.metadata().expect("its length").len();
        assert_eq!(file.bytes().expect("a length"), bytes, "{what}");
        let length = random.length();
        // Mostly inside, where direct access goes.
        let offset = match random.below(12) {
            0 => random.below(bytes + 50_000),
            1 => bytes.saturating_sub(random.below(5000)),
            _ => random.below(bytes.saturating_sub(length as u64) + 1),
        };
        match random.below(20) {
            0..6 => {
                let (mut got, mut wanted) = (vec![7; length], vec![7; length]);
                let count = file.pread(&mut got, offset).expect(&what);
                assert_eq!(count, model.read_at(&mut wanted, offset).expect("read"), "{what}");
                assert!(got == wanted, "{what}: {length} bytes read at {offset}");
            }
            6..12 => {
                let data = random.bytes(length);
                assert_eq!(file.pwrite(&data, offset).expect(&what), length, "{what}");
                model.write_all_at(&data, offset).expect("written");
            }
            12 => {
                let lengths = parts(&mut random, length);
                let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|length| vec![9; *length]).collect();
                let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let count = file.preadv(&mut slices, offset).expect(&what);
                let mut wanted = vec![9; length];
                assert_eq!(count, model.read_at(&mut wanted, offset).expect("read"), "{what}");
                assert!(buffers.concat() == wanted, "{what}: parts {lengths:?} read at {offset}");
            }
            13 => {
                let data = random.bytes(length);
                let mut rest = &data[..];
                let mut slices = Vec::new();
                for length in parts(&mut random, length) {
                    let (head, tail) = rest.split_at(length);
                    slices.push(IoSlice::new(head));
                    rest = tail;
                }
                assert_eq!(file.pwritev(&slices, offset).expect(&what), length, "{what}");
                model.write_all_at(&data, offset).expect("written");
            }
            14..17 => several(&mut random, &mut queue, &file, &model, &what),
            17 => file.sync(random.below(2) == 0).expect(&what),
            18 => {
                let length = if random.below(2) == 0 { offset } else { bytes + random.below(20_000) };
                file.set_bytes(length).expect(&what);
                model.set_len(length).expect("its length");
                if length < 100_000 {
                    let more = random.bytes(400_000);
                    assert_eq!(file.pwrite(&more, length).expect(&what), more.len(), "{what}");
                    model.write_all_at(&more, length).expect("written");
                }
            }
            _ => {
                // Closed, it is the file system's own and the same there.
                drop(file);
                assert!(fs::read(on_it).expect("read") == fs::read(plain).expect("read"), "{what}: the whole file");
                file = direct(session, on_it);
            }
        }
    }
    file.close_shared();
    assert!(fs::read(on_it).expect("read") == fs::read(plain).expect("read"), "seed {seed}: the whole file at the end");
    within_seconds("it thaws", || !is_frozen(on_it));
}

trait CloseShared {
    fn close_shared(self);
}

impl CloseShared for Arc<File> {
    fn close_shared(self) {
        Arc::into_inner(self).expect("nobody else has it").close();
    }
}

/// Some operations at once, on ranges that do not overlap.
fn several(random: &mut Random, queue: &mut Queue, file: &Arc<File>, model: &fs::File, what: &str) {
    let bytes = model.metadata().expect("its length").len();
    let count = 1 + random.below(8);
    let room = bytes / count;
    let mut reads = Vec::new();
    for number in 0..count {
        let length = random.length().min(room as usize);
        let offset = number * room + random.below(room - length as u64 + 1);
        let request = match random.below(5) {
            0 => Request::Sync,
            1..3 => {
                let buffer = random.bytes(length);
                model.write_all_at(&buffer, offset).expect("written");
                Request::Write { offset, buffer }
            }
            _ => {
                let mut wanted = vec![3; length];
                model.read_exact_at(&mut wanted, offset).expect("read");
                reads.push((number, wanted));
                Request::Read { offset, buffer: vec![3; length] }
            }
        };
        queue.submit(file, number, request).expect(what);
    }
    let mut done = Vec::new();
    queue.wait(&mut done, count as usize, WAIT_MAX);
    assert_eq!((done.len() as u64, queue.under_way()), (count, 0), "{what}");
    for one in done {
        let moved = one.result.as_ref().copied().unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some((_, wanted)) = reads.iter().find(|(number, _)| *number == one.tag) {
            assert!(moved == wanted.len() && one.buffer == *wanted, "{what}: operation {}", one.tag);
        }
    }
}

#[test]
fn a_direct_file_is_a_file() {
    let Some(stage) = or_skip("a_direct_file_is_a_file", Stage::ext4()) else { return };
    let session = session(&stage);
    for seed in 1..=12 {
        one_way(seed, &session, &stage.on_it("file"), &stage.folder.join("plain"), 120);
    }
    let counts = session.counts();
    // All the ways were gone.
    assert!(counts.direct_reads > 200 && counts.direct_writes > 200 && counts.direct_syncs > 10, "{counts:?}");
    assert!(counts.kernel_reads > 10 && counts.kernel_writes > 10 && counts.given_back > 10, "{counts:?}");
}

#[test]
fn threads_share_a_file_and_see_each_others_writes() {
    const THREADS: u64 = 6;
    const REGION: u64 = 64 << 10;
    let Some(stage) = or_skip("threads_share_a_file_and_see_each_others_writes", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("shared");
    fs::write(&path, vec![0; (THREADS * REGION) as usize]).expect("written");
    let file = direct(&session, &path);
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || {
                    let mut random = Random(thread + 77);
                    let mut model = vec![0u8; REGION as usize];
                    for round in 0..300 {
                        let length = random.length().min(REGION as usize);
                        let at = random.below(REGION - length as u64 + 1) as usize;
                        if random.below(2) == 0 {
                            let data = random.bytes(length);
                            let offset = thread * REGION + at as u64;
                            assert_eq!(file.pwrite(&data, offset).expect("written"), length);
                            model[at..at + length].copy_from_slice(&data);
                        } else {
                            let mut got = vec![1; length];
                            file.pread(&mut got, thread * REGION + at as u64).expect("read");
                            assert!(got == model[at..at + length], "thread {thread}, round {round}");
                        }
                        if thread == 0 && round % 50 == 49 {
                            // Under the others' feet: it goes back to the file system, grows, and is taken again.
                            file.set_bytes(THREADS * REGION + round).expect("longer");
                            file.take().expect("directly again");
                        }
                    }
                    model
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    file.close_shared();
    let all = fs::read(&path).expect("read");
    assert!(all[..(THREADS * REGION) as usize] == models.concat());
    assert!(session.counts().direct_writes > 300 && session.counts().given_back >= 6, "{:?}", session.counts());
}

#[test]
fn what_posix_says_of_errors_holds() {
    let Some(stage) = or_skip("what_posix_says_of_errors_holds", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("file");
    fs::write(&path, vec![5; 10_000]).expect("written");
    let errno = |error: DirectError| error.errno();
    let reader = File::new(&session, fs::File::open(&path).expect("open")).expect("a file");
    reader.take().expect("directly");
    let mut buffer = [0; 100];
    assert_eq!(reader.pread(&mut buffer, 9_950).expect("the rest"), 50);
    assert_eq!(reader.pread(&mut buffer, 10_000).expect("the end"), 0);
    assert_eq!(reader.pread(&mut buffer, 1 << 40).expect("past the end"), 0);
    assert_eq!(reader.pread(&mut [], 5).expect("nothing"), 0);
    assert_eq!(errno(reader.pread(&mut buffer, u64::MAX).expect_err("no offset")), libc_errno::EINVAL);
    assert_eq!(errno(reader.pwrite(b"x", 0).expect_err("for reading")), libc_errno::EBADF);
    // The kernel alone would refuse it while it is open directly.
    assert_eq!(fs::OpenOptions::new().write(true).open(&path).expect_err("frozen").raw_os_error(), Some(1));
    let named = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let writer = File::open(&session, &named, OFlags::WRONLY, Mode::empty()).expect("a file");
    assert_eq!(writer.pwrite(b"abc", 1).expect("written"), 3);
    assert_eq!(errno(writer.pread(&mut buffer, 0).expect_err("for writing")), libc_errno::EBADF);
    writer.take().expect("directly");
    assert_eq!(writer.pwrite(b"abc", 1).expect("written"), 3);
    // One descriptor's writes are another's reads.
    reader.pread(&mut buffer[..5], 0).expect("read");
    assert_eq!(&buffer[..5], &[5, b'a', b'b', b'c', 5]);
    // The rights end with the descriptor that had them.
    writer.close();
    reader.take().expect("directly");
    assert!(is_frozen(&path));
    reader.close();
    within_seconds("it thaws", || !is_frozen(&path));
    let appender = fs::OpenOptions::new().append(true).open(&path).expect("open");
    let appender = File::new(&session, appender).expect("a file");
    assert_eq!(appender.pwrite(b"end", 0).expect("appended"), 3);
    assert!(appender.take().is_err());
    assert!(fs::read(&path).expect("read").ends_with(b"end"));
    let folder = fs::File::open(stage.on_it(".")).expect("a folder");
    assert_eq!(errno(File::new(&session, folder).err().expect("a folder")), libc_errno::EINVAL);
    // Where the file system is another, it is a file all the same, and says why it is not direct.
    let elsewhere = stage.folder.join("elsewhere");
    fs::write(&elsewhere, b"0123456789").expect("written");
    let other = File::new(&session, open(&elsewhere)).expect("a file");
    assert_eq!(other.pread(&mut buffer, 2).expect("read"), 8);
    assert!(!other.is_direct() && other.refusal().is_some());
}

/// Numbers of Linux on every machine that this runs on.
mod libc_errno {
    pub const EBADF: i32 = 9;
    pub const EINVAL: i32 = 22;
}

#[test]
fn a_modification_time_is_that_of_a_modification() {
    let Some(stage) = or_skip("a_modification_time_is_that_of_a_modification", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("file");
    fs::write(&path, vec![5; 10_000]).expect("written");
    tool("touch", &["-d", "2001-02-03", &path.display().to_string()]).expect("an old file");
    let before = fs::metadata(&path).expect("its time").modified().expect("its time");
    let file = direct(&session, &path);
    file.pread(&mut [0; 100], 0).expect("read");
    assert!(file.is_direct());
    file.close_shared();
    within_seconds("it thaws", || !is_frozen(&path));
    assert_eq!(fs::metadata(&path).expect("its time").modified().expect("its time"), before);
    let file = direct(&session, &path);
    file.pwrite(&[1], 0).expect("written");
    assert!(file.is_direct());
    file.close_shared();
    within_seconds("it thaws", || !is_frozen(&path));
    assert!(fs::metadata(&path).expect("its time").modified().expect("its time") > before);
}

#[test]
fn an_agent_that_was_started_again_is_found_again() {
    let Some(mut stage) = or_skip("an_agent_that_was_started_again_is_found_again", Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("file");
    fs::write(&path, vec![5; 100_000]).expect("written");
    let file = direct(&session, &path);
    assert_eq!(file.pwrite(&[6; 50_000], 7).expect("written"), 50_000);
    assert!(is_frozen(&path) && file.is_direct());
    stage.kill_agent();
    stage.start_agent();
    within_seconds("the next agent thaws it", || !is_frozen(&path));
    // Whichever way it goes, it is what was written, and what is written is there.
    let mut buffer = vec![0; 100_000];
    assert_eq!(file.pread(&mut buffer, 0).expect("read"), 100_000);
    assert!(buffer[7..50_007] == [6; 50_000] && buffer[50_007..] == [5; 49_993]);
    assert_eq!(file.pwrite(&[7; 1000], 99_500).expect("written, and longer"), 1000);
    file.take().expect("directly again");
    assert_eq!(file.pwrite(&[8; 10], 0).expect("written"), 10);
    file.close_shared();
    let all = fs::read(&path).expect("read");
    assert!(all.len() == 100_500 && all[..10] == [8; 10] && all[99_500..] == [7; 1000]);
}

#[test]
fn processes_share_a_file_and_change_it_under_each_other() {
    let Some(stage) = or_skip("processes_share_a_file_and_change_it_under_each_other", Stage::ext4()) else { return };
    // Two sessions are to the agent what two processes are, but for the process' number.
    let (one, other) = (session(&stage), session(&stage));
    let path = stage.on_it("file");
    fs::write(&path, vec![1; 50_000]).expect("written");
    let (first, second) = (direct(&one, &path), direct(&other, &path));
    // Each could move the other's blocks by its own descriptor, until it has none while nothing is done by it.
    assert!(matches!(first.take(), Err(DirectError::Contended { shared: false })));
    assert!(matches!(second.take(), Err(DirectError::Contended { shared: true })));
    first.take().expect("directly");
    second.take().expect("directly as well");
    first.pwrite(&[2; 1000], 100).expect("written");
    let mut buffer = vec![0; 1200];
    second.pread(&mut buffer, 0).expect("read");
    assert!(buffer[100..1100] == [2; 1000] && buffer[..100] == [1; 100]);
    // One grows it, by taking it back from the other, who sees that and goes on.
    for round in 0..20u8 {
        let (grows, reads) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let bytes = grows.bytes().expect("its length");
        assert_eq!(grows.pwrite(&[round; 3000], bytes).expect("longer"), 3000);
        let mut tail = vec![99; 3000];
        assert_eq!(reads.pread(&mut tail, bytes).expect("read"), 3000);
        assert!(tail == [round; 3000], "round {round}");
        assert_eq!(reads.pwrite(&[round; 10], 5).expect("written"), 10);
        let mut head = [0; 10];
        grows.pread(&mut head, 5).expect("read");
        assert_eq!(head, [round; 10]);
    }
    first.close_shared();
    second.close_shared();
    within_seconds("it thaws", || !is_frozen(&path));
    assert_eq!(fs::metadata(&path).expect("its length").len(), 110_000);
}

#[test]
fn a_file_that_was_closed_keeps_no_file_system_from_being_taken_away() {
    let test = "a_file_that_was_closed_keeps_no_file_system_from_being_taken_away";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let session = session(&stage);
    let path = stage.on_it("file");
    fs::write(&path, vec![5; 10_000]).expect("written");
    for ends_directly in [true, false] {
        let file = direct(&session, &path);
        file.take().expect("directly");
        file.pwrite(&[1; 100], 0).expect("written");
        if !ends_directly {
            file.set_bytes(20_000).expect("longer");
        }
        file.close_shared();
    }
    // The session is there still; what watches the file system goes in the background.
    within_seconds("it is taken away", || tool("umount", &[&stage.path("files")]).is_ok());
    drop(session);
}

#[test]
fn a_direct_file_is_a_file_on_xfs_as_well() {
    let test = "a_direct_file_is_a_file_on_xfs_as_well";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=0"], "400M");
    let Some(stage) = or_skip(test, made) else { return };
    let session = session(&stage);
    for seed in 21..=24 {
        one_way(seed, &session, &stage.on_it("file"), &stage.folder.join("plain"), 120);
    }
    let counts = session.counts();
    assert!(counts.direct_reads > 50 && counts.direct_writes > 50 && counts.given_back > 3, "{counts:?}");
}

#[test]
fn files_on_a_partition_are_reached_where_they_lie() {
    let test = "files_on_a_partition_are_reached_where_they_lie";
    let Some(stage) = or_skip(test, Stage::partition()) else { return };
    let session = session(&stage);
    for seed in 41..=42 {
        one_way(seed, &session, &stage.on_it("file"), &stage.folder.join("plain"), 120);
    }
    let counts = session.counts();
    assert!(counts.direct_reads > 20 && counts.direct_writes > 20, "{counts:?}");
}

#[test]
fn where_blocks_can_be_shared_files_are_read_directly_and_written_by_the_kernel() {
    let test = "where_blocks_can_be_shared_files_are_read_directly_and_written_by_the_kernel";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "400M");
    let Some(stage) = or_skip(test, made) else { return };
    let session = session(&stage);
    let path = stage.on_it("file");
    let data = Random(5).bytes(300_000);
    fs::write(&path, &data).expect("written");
    let reader = File::new(&session, fs::File::open(&path).expect("open")).expect("a file");
    reader.take().expect("directly, for reading");
    let mut got = vec![0; 300_000];
    assert_eq!(reader.pread(&mut got, 0).expect("read"), 300_000);
    assert!(got == data && reader.is_direct());
    reader.close();
    let writer = direct(&session, &path);
    assert!(writer.take().expect_err("for writing").to_string().contains("reflink=0"));
    assert_eq!(writer.pwrite(&[1; 5000], 100).expect("through the kernel"), 5000);
    assert!(!writer.is_direct());
    writer.close_shared();
    // A file that shares its blocks is not even read directly: they may be another's by the time that they are.
    let clone = stage.on_it("clone");
    tool("cp", &["--reflink=always", &path.display().to_string(), &clone.display().to_string()]).expect("a clone");
    let reader = File::new(&session, fs::File::open(&clone).expect("open")).expect("a file");
    assert!(reader.take().expect_err("shared").to_string().contains("shares blocks"));
    assert_eq!(reader.pread(&mut got, 0).expect("through the kernel"), 300_000);
    assert!(got[100..5100] == [1; 5000] && got[5100..] == data[5100..]);
}

#[test]
fn on_btrfs_files_go_through_the_kernel() {
    let test = "on_btrfs_files_go_through_the_kernel";
    let Some(stage) = or_skip(test, Stage::new(&["mkfs.btrfs", "-q", "-f"], "400M")) else { return };
    let session = session(&stage);
    for seed in 31..=32 {
        one_way(seed, &session, &stage.on_it("file"), &stage.folder.join("plain"), 60);
    }
    let file = direct(&session, &stage.on_it("file"));
    let why = file.take().expect_err("not on btrfs").to_string();
    assert!(why.contains("neither ext4 nor xfs"), "{why}");
    assert_eq!((session.counts().direct_reads, session.counts().direct_writes), (0, 0));
    // The reason: a balance moves the data of a file that is immutable, which is what keeps extents in place elsewhere.
    let path = stage.on_it("frozen");
    fs::write(&path, Random(9).bytes(3_000_000)).expect("written");
    let (named, files) = (path.display().to_string(), stage.path("files"));
    tool("chattr", &["+i", &named]).expect("immutable");
    let frozen = fs::File::open(&path).expect("open");
    let before = willow_host::agent::extents::of_file(frozen.as_fd()).expect("its extents");
    tool("btrfs", &["balance", "start", "-d", &files]).expect("balanced");
    let after = willow_host::agent::extents::of_file(frozen.as_fd()).expect("its extents");
    tool("chattr", &["-i", &named]).expect("the attribute is gone");
    assert_ne!(before, after, "a balance leaves the extents of an immutable file in place: it could be taken directly");
}
