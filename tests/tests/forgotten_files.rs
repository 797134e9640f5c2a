//! Files that a program writes directly, by libwillow, on a device of flash that is killed: what nobody had synced may be gone, and the next sync of the file says so, once. What was synced
//! is there, and no sync after that is refused.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_tests::stage::{By, Stage, is_frozen, or_skip, within_seconds};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 64;
const EIO: i32 = 5;
/// Longest wait for the device, and for its agent after it.
const RESTART_MAX: Duration = Duration::from_secs(180);

/// The device is killed and there again, and so is the agent, which thaws what it had frozen before it begins anew.
fn restart(stage: &mut Stage, path: &Path, file: &File<fs::File>) {
    stage.restart_device();
    // Its flash is recovered first, and the agent looks for it now and then.
    let begun = Instant::now();
    let is_there = || file.pread(&mut [0; BLOCK_BYTES], 0).is_ok() && (!is_frozen(path) || file.is_direct());
    while !is_there() {
        assert!(begun.elapsed() < RESTART_MAX, "device and agent are not there again");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn synced_file_of_the_kernel(stage: &Stage, path: &Path) {
    fs::write(path, vec![1; BLOCKS * BLOCK_BYTES]).expect("written");
    fs::File::open(path).expect("open").sync_all().expect("synced");
    // Nothing of the file system's own is on its way when the device is killed.
    let files = fs::File::open(stage.path("files")).expect("open");
    rustix::fs::syncfs(&files).expect("synced");
}

#[test]
fn a_sync_says_once_that_flash_may_have_forgotten_what_was_written_directly() {
    let test = "a_sync_says_once_that_flash_may_have_forgotten_what_was_written_directly";
    let flags = ["--media", "MEDIA", "--size", "128M", "--preset", "jasmine", "--kv-size", "0"];
    let Some(mut stage) = or_skip(test, Stage::remote(&flags, By::Network)) else { return };
    let path = stage.on_it("file");
    synced_file_of_the_kernel(&stage, &path);
    let session = Session::open(SessionOptions::by_agent(stage.path("agent"))).expect("a session");
    let open = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session, open).expect("a file");
    file.take().expect("directly");
    let write = |byte: u8| {
        for block in 0..BLOCKS {
            let written = file.pwrite(&[byte; BLOCK_BYTES], (block * BLOCK_BYTES) as u64).expect("written");
            assert_eq!(written, BLOCK_BYTES);
        }
    };
    // What was synced is there, and no sync says otherwise.
    write(2);
    file.sync(true).expect("durable");
    restart(&mut stage, &path, &file);
    within_seconds("it is direct again", || file.take().is_ok());
    file.sync(true).expect("nothing is lost");
    let mut found = vec![0; BLOCKS * BLOCK_BYTES];
    assert_eq!(file.pread(&mut found, 0).expect("read"), found.len());
    assert!(found.iter().all(|byte| *byte == 2), "what was synced is there");
    // What was not may be gone.
    write(3);
    restart(&mut stage, &path, &file);
    within_seconds("it is direct again", || file.take().is_ok());
    let told = file.sync(true).expect_err("no sync says that it is durable");
    assert_eq!(told.errno(), EIO, "{told}");
    assert!(told.to_string().contains("begun anew"), "{told}");
    assert_eq!(file.pread(&mut found, 0).expect("read"), found.len());
    assert!(found.chunks(BLOCK_BYTES).all(|block| block == [2; BLOCK_BYTES] || block == [3; BLOCK_BYTES]));
    // It is told once: what is written again is durable when the next sync says so.
    write(4);
    file.sync(true).expect("durable");
    file.sync(true).expect("durable");
    // Also where the file has gone back to the kernel meanwhile, which knows nothing of what was written past it.
    write(5);
    restart(&mut stage, &path, &file);
    file.pin(|_| Ok(())).expect("it is the kernel's");
    assert!(!file.is_direct());
    assert_eq!(file.sync(true).expect_err("no sync says that it is durable").errno(), EIO);
    file.sync(true).expect("it is told once");
    file.close();
    drop(session);
    within_seconds("it thaws", || !is_frozen(&path));
    let kernel = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    kernel.write_all_at(&[6; BLOCK_BYTES], 0).expect("written");
    kernel.sync_all().expect("synced");
}
