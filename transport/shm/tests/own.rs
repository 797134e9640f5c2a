//! The library's own descriptor numbers. Alone in its process: where numbers begin is the process', and every socket takes one.

use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::AsRawFd;
use willow_shm::Channel;
use willow_shm::own::{from, is_own, raised, without_own};

#[test]
fn own_numbers_are_high_known_and_left_out_of_ranges() {
    let socket = || Channel::pair().unwrap();
    assert_eq!(without_own(3, 9), [(3, 9)]);
    from(700);
    let (one, _other) = socket();
    let one = raised(one.into());
    let (two, _other) = socket();
    let two = raised(two.into());
    let (first, second) = (one.as_raw_fd() as u32, two.as_raw_fd() as u32);
    assert!(first >= 700 && second > first && is_own(first as i32) && !is_own(3));
    assert_eq!(without_own(3, u32::MAX), [(3, first - 1), (second + 1, u32::MAX)]);
    assert_eq!(without_own(first, second), []);
    assert_eq!(without_own(second, second + 5), [(second + 1, second + 5)]);
    // What is under the number afterwards is not the library's.
    drop(one);
    assert!(!is_own(first as i32));
    let file = std::fs::File::open("/dev/null").unwrap();
    let other = fcntl_dupfd_cloexec(&file, first as i32).unwrap();
    assert!(other.as_raw_fd() == first as i32 && !is_own(first as i32));
    from(0);
}
