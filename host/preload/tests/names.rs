//! The calls that the library stands in front of, name by name: no other name leads past it, and the generated programs draw each.
//! Skipped, with a line that says why, where nm is not installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use willow_tests::stage::{PRELOAD, has, library, skip, tool};

/// What generated programs do not call, and where it is tried instead: a source of these tests, or otherwise.
const NOT_DRAWN: [(&[&str], &str); 7] = [
    (
        &[
            "stat",
            "lstat",
            "fstatat",
            "ppoll",
            "select",
            "pselect",
            "epoll_ctl",
            "posix_fadvise64",
            "fgetxattr",
            "flistxattr",
            "syncfs",
        ],
        "appending.c",
    ),
    (
        &[
            "__fstat64",
            "__fxstat",
            "__fxstat64",
            "__xstat",
            "__xstat64",
            "__lxstat",
            "__lxstat64",
            "__fxstatat",
            "__fxstatat64",
            "__poll",
            "__poll_chk",
            "__ppoll_chk",
            "__select",
            "fstatat64",
            "lstat64",
        ],
        "as another name of what appending.c tries",
    ),
    (&["vdprintf", "vfork", "clone", "shmdt"], "lesser.c"),
    (&["capset", "pivot_root", "setns"], "identity.c"),
    (&["io_submit"], "fio, by libaio"),
    (
        &["io_uring_setup", "io_uring_queue_init", "io_uring_queue_init_params", "io_uring_queue_init_mem"],
        "nowhere: liburing's; fio makes a ring by the call's number, which does the same",
    ),
    (&["__vdprintf_chk", "__vfork", "__clone", "_IO_popen"], "as another name of what is tried"),
];

/// The functions of a library or program: those that it defines for others (`--defined-only`), or has from others, with their addresses.
fn functions(of: &Path, which: &str) -> Vec<(String, String)> {
    let listed = tool("nm", &["-D", which, &of.display().to_string()]).expect("its functions");
    let one = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let (name, _kind, address) = (words.next()?, words.next()?, words.next().unwrap_or_default());
        // Of the versions of a function, the one that programs are linked to now; those of the C library's own use are nobody's.
        let (name, version) = name.split_once('@').unwrap_or((name, "@"));
        (version.starts_with('@') && version != "@GLIBC_PRIVATE" || which == "--undefined-only")
            .then(|| (name.to_owned(), address.to_owned()))
    };
    listed.lines().filter_map(one).collect()
}

#[test]
fn every_name_of_a_call_is_the_librarys() {
    if !has("nm") {
        return skip("every_name_of_a_call_is_the_librarys", "nm is not installed");
    }
    let maps = fs::read_to_string("/proc/self/maps").expect("what is mapped");
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).expect("the C library");
    let (own, theirs) = (functions(&library(PRELOAD), "--defined-only"), functions(Path::new(libc), "--defined-only"));
    let own: BTreeSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    assert!(own.len() > 150 && theirs.len() > 2000, "{} and {} functions", own.len(), theirs.len());
    let addresses: BTreeSet<&str> =
        theirs.iter().filter(|(name, _)| own.contains(name.as_str())).map(|(_, address)| address.as_str()).collect();
    let missed: Vec<&str> = theirs
        .iter()
        .filter(|(name, address)| addresses.contains(address.as_str()) && !own.contains(name.as_str()))
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(missed.is_empty(), "other names of calls that the library stands in front of: {missed:?}");
}

#[test]
fn every_call_of_the_librarys_is_drawn_or_said_to_be_tried_elsewhere() {
    if !has("nm") {
        return skip("every_call_of_the_librarys_is_drawn_or_said_to_be_tried_elsewhere", "nm is not installed");
    }
    let names = |of: &Path, which| functions(of, which).into_iter().map(|(name, _)| name).collect::<BTreeSet<String>>();
    let own = names(&library(PRELOAD), "--defined-only");
    let drawn = names(Path::new(env!("CARGO_BIN_EXE_willow-same")), "--undefined-only");
    let said: BTreeSet<String> =
        NOT_DRAWN.iter().flat_map(|(names, _)| *names).map(|name| (*name).to_owned()).collect();
    let not_drawn: BTreeSet<String> = own.difference(&drawn).cloned().collect();
    let missed: Vec<&String> = not_drawn.difference(&said).collect();
    let more: Vec<&String> = said.difference(&not_drawn).collect();
    assert!(
        missed.is_empty() && more.is_empty(),
        "not drawn, and not said: {missed:?}; said, and drawn or gone: {more:?}"
    );
    for (names, place) in NOT_DRAWN.iter().filter(|(_, place)| place.ends_with(".c")) {
        let source = format!("{}/tests/{place}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(source).expect("the source");
        let absent: Vec<_> = names.iter().filter(|name| !text.contains(*name)).collect();
        assert!(absent.is_empty(), "{place} does not call {absent:?}");
    }
}
