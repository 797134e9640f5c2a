//! Calls of libwillow that meet a lease: the agent's, which an open that does not wait is not to fail by, and another's, for which a write
//! waits whatever signals come. Skipped, with a line that says why, as the stage says.

use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use willow_host::direct_io::{AgentClient, DirectFile, File, Session, SessionOptions};
use willow_host::testing::AgentFault;
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_tests::planted::Planted;
use willow_tests::signals::signalled;
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, within_seconds};

const F_SETLEASE: libc::c_int = 1024;
/// Longer than the agent waits for a file that others are closing, before it says that it is to be asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(12);

fn writable(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).expect("open")
}

fn written(stage: &Stage) -> PathBuf {
    let path = stage.on_it("file");
    fs::write(&path, contents(20_000, 1)).expect("written");
    path
}

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::new(stage.path("device"), stage.path("agent"))).expect("a session")
}

/// A file that the agent is giving back is no longer immutable, and its lease is there for a moment. Who opens it then and does not wait
/// would be told to come again (EAGAIN), where nobody but the agent is in the way.
#[test]
fn an_open_that_does_not_wait_is_done_when_the_agent_has_given_its_lease_up() {
    let test = "an_open_that_does_not_wait_is_done_when_the_agent_has_given_its_lease_up";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let planted = Planted::start(&mut stage, AgentFault::LeaseKept);
    let (path, session) = (written(&stage), session(&stage));
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    let hre: Arc<dyn Hre> = Arc::new(ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint"));
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let direct = DirectFile::open(&agent, hre, writable(&path)).expect("directly");
    assert!(is_frozen(&path));
    let closes = std::thread::spawn(move || direct.close());
    within_seconds("it is immutable no longer", || !is_frozen(&path));
    let plain = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
    assert_eq!(plain.err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN), "there is no lease");
    let (name, other) = (CString::new(path.as_os_str().as_encoded_bytes()).expect("a name"), session.clone());
    let opens = std::thread::spawn(move || {
        let file = File::open(&other, &name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())?;
        file.pwrite(b"opened", 5).map(|count| (count, file))
    });
    // It is told to ask again, and does.
    std::thread::sleep(ASKED_AGAIN);
    assert!(!opens.is_finished(), "it does not wait for the agent: {:?}", opens.join().map(|done| done.map(|_| ())));
    planted.agent.heal(AgentFault::LeaseKept);
    let (count, file) = opens.join().expect("it does not panic").expect("opened");
    assert_eq!(count, 6);
    closes.join().expect("it does not panic").expect("closed");
    drop(file);
    within_seconds("it thaws", || !is_frozen(&path));
    let mut read = [0; 6];
    fs::File::open(&path).expect("open").read_exact_at(&mut read, 5).expect("read");
    assert_eq!(&read, b"opened");
    drop(planted);
}

/// While a file is direct its descriptors only read, so that another process gets a lease of it. A write that the kernel has to do waits
/// for the lease, and is no call that a signal ends.
#[test]
fn a_signal_ends_no_write_that_waits_for_anothers_lease() {
    let Some(stage) = or_skip("a_signal_ends_no_write_that_waits_for_anothers_lease", Stage::ext4()) else { return };
    let (path, session) = (written(&stage), session(&stage));
    let file = File::new(&session, writable(&path)).expect("a file");
    file.take().expect("directly");
    let holder = fs::File::open(&path).expect("open");
    // SAFETY: the kernel's word that a lease is to be given up is ignored; a call without memory.
    let taken = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(holder.as_raw_fd(), F_SETLEASE, libc::F_RDLCK)
    };
    assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
    let file = Arc::new(file);
    let grows = file.clone();
    let writes = signalled(0, Box::new(move || grows.pwrite(b"grown", 30_000)));
    assert!(!writes.is_finished(), "it does not wait for the lease: {:?}", writes.join());
    // SAFETY: a call without memory.
    assert_eq!(unsafe { libc::fcntl(holder.as_raw_fd(), F_SETLEASE, libc::F_UNLCK) }, 0);
    assert_eq!(writes.join().expect("it does not panic").expect("written"), 5);
    let mut read = [0; 5];
    holder.read_exact_at(&mut read, 30_000).expect("read");
    assert_eq!(&read, b"grown");
}
