//! All of willow.h: the same C source natively on the mock device, and as a module in a device, where threads wait by being
//! unwound and rewound.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Folder, Rig};
use willow_app_tool::{ToolError, build, test};
use willow_device::{HostCompletion, RpcOutcome};

fn project(folder: &Folder) -> PathBuf {
    project_of(folder, "all-of-c", "all", "stack_bytes = 2048")
}

fn project_of(folder: &Folder, name: &str, source: &str, more: &str) -> PathBuf {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c").canonicalize().expect("the C SDK");
    let text = format!(
        "name = \"{name}\"\nsources = [{:?}]\ntests = [{:?}]\nsdk = {:?}\n{more}\n",
        sdk.join(format!("tests/{source}.c")),
        sdk.join(format!("tests/{source}_test.c")),
        sdk
    );
    fs::write(folder.0.join("willow.toml"), text).expect("written");
    folder.0.clone()
}

#[test]
fn natively() {
    let folder = Folder::new("all-natively");
    match test(&project(&folder)) {
        Ok(()) => {}
        Err(error @ ToolError::Missing { .. }) => common::skip(&error),
        Err(error) => panic!("{error}"),
    }
}

/// An FTL in C over the mock's flash: thousands of requests beside each other, and what breaks a rule is told.
#[test]
fn an_ftl_natively() {
    let folder = Folder::new("ftl-natively");
    match test(&project_of(&folder, "tiny", "ftl", "threads = 8")) {
        Ok(()) => {}
        Err(error @ ToolError::Missing { .. }) => common::skip(&error),
        Err(error) => panic!("{error}"),
    }
}

/// The names of the thesis' table 3.1, natively and in a device, where threads are unwound, also without any optimisation.
#[test]
fn the_names_of_the_thesis() {
    let folder = Folder::new("xssd");
    let project = project_of(&folder, "xssd", "xssd", "threads = 4");
    let modules = test(&project).and_then(|()| {
        let fast = build(&project, false)?;
        let kept = folder.0.join("fast.wasm");
        fs::copy(fast, &kept).expect("copied");
        Ok([kept, build(&project, true)?])
    });
    let modules = match modules {
        Ok(modules) => modules,
        Err(error @ ToolError::Missing { .. }) => return common::skip(&error),
        Err(error) => panic!("{error}"),
    };
    for module in modules {
        let mut rig = Rig::new(2);
        let app = rig.install(&module, "xssd");
        let words: Vec<u8> = (0..512u64).flat_map(|index| (index % 7).to_le_bytes()).collect();
        let wanted = (8..512).filter(|index| index % 7 == 3).count() as u32;
        let cmd: Vec<u8> = [64u64, 512 * 8 - 64, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
        let answered = |status| RpcOutcome::Answered { status };
        for spu in 0..2 {
            assert_eq!(rig.call((app, 3, spu), &[], &words, 0).outcome, answered(0));
            for handler in [1, 2] {
                let done = rig.call((app, handler, spu), &cmd, &[], 0);
                assert_eq!((done.outcome, done.result), (answered(0), wanted));
            }
            let done = rig.call((app, 4, spu), &[], &[], 0);
            assert_eq!((done.outcome, done.result), (answered(-6i32 as u32), 0));
        }
    }
}

#[test]
fn in_a_device() {
    let folder = Folder::new("all-in-a-device");
    let module = match build(&project(&folder), false) {
        Ok(module) => module,
        Err(error @ ToolError::Missing { .. }) => return common::skip(&error),
        Err(error) => panic!("{error}"),
    };
    let mut rig = Rig::new(3);
    let app = rig.install(&module, "all-of-c");
    let status = |done: &HostCompletion| match done.outcome {
        RpcOutcome::Answered { status } => status,
        ref other => panic!("{other:?}"),
    };
    let offset = 100u64.to_le_bytes();
    for round in 0..3 {
        let spu = round;
        let done = rig.call((app, 1, spu), &offset, b"some bytes", 0);
        assert_eq!((status(&done), done.result), (0, 10));
        let done = rig.call((app, 2, spu), &offset, &[], 10);
        assert_eq!((status(&done), &done.buffer[..10]), (0, b"some bytes".as_slice()));
        assert_eq!(status(&rig.call((app, 1, spu), &offset[..7], &[], 0)), 0xffff_fffd);
        let done = rig.call((app, 3, spu), &[], b"123456789", 4);
        assert_eq!((status(&done), done.result, &done.buffer[..4]), (0, 0xe306_9283, b"1256".as_slice()));
        for to in 0..3u32 {
            let done = rig.call((app, 4, spu), &to.to_le_bytes(), &[], 6);
            assert_eq!((status(&done), done.result, &done.buffer[..6]), (17, spu.into(), b"abcdNV".as_slice()));
        }
        let done = rig.call((app, 6, spu), &10u32.to_le_bytes(), &[], 0);
        assert_eq!((status(&done), done.result), (0, 1000 + 4 * 55));
        // As many at the same time as threads, less one for what they send.
        for number in 0..7u32 {
            rig.submit((app, 7, spu), &number.to_le_bytes(), &[], 0);
        }
        let most = (0..7).map(|_| {
            let done = rig.completion();
            assert_eq!(status(&done), 0);
            done.result
        });
        assert_eq!(most.max(), Some(7));
        assert_eq!(status(&rig.call((app, 11, spu), &[], &[], 0)), 0xffff_fff8);
        let done = rig.call((app, 9, spu), &[], &[], 0);
        assert_eq!(status(&done), 0);
        assert_ne!(done.result & 1 << 4, 0, "it was told that it has started");
    }
    // Two nap on SPU 1, one for long: that is woken by another handler; work in the background goes on meanwhile.
    let ms = |count: u64| (count * 1_000_000).to_le_bytes();
    let done = rig.call((app, 12, 1), &ms(3), &[], 0);
    assert_eq!((status(&done), done.result), (0, 3));
    assert_eq!(rig.call((app, 14, 1), &5u64.to_le_bytes(), &[], 0).outcome, RpcOutcome::Answered { status: 0 });
    rig.submit((app, 12, 1), &ms(60_000), &[], 0);
    rig.submit((app, 13, 1), &[], &[], 0);
    let (woken, napped) = (rig.completion(), rig.completion());
    assert_eq!((status(&woken), woken.result), (0, 0), "it was cancelled");
    assert_eq!((status(&napped), napped.result), (0xffff_fff6, 0));
    assert_eq!(status(&rig.call((app, 12, 1), &ms(1), &[], 0)), 0);
    assert_eq!(rig.call((app, 16, 1), &[], &[], 0).result, 5);
    // A stack overflow ends the app, and nothing else.
    let done = rig.call((app, 10, 0), &[], &[], 0);
    assert!(!matches!(done.outcome, RpcOutcome::Answered { status: 0 }), "{:?}", done.outcome);
    let nsid = rig.device.namespaces().first().map(|namespace| namespace.nsid);
    assert!(nsid.is_some());
}
