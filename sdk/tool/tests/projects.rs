//! Makes an app in each language from the template, runs its own test natively, builds the module, and installs it in a device
//! whose SPUs then count bytes. Where a compiler is missing it says what was left out.

mod common;

use std::fs;
use std::path::Path;

use common::{Folder, Rig};
use willow_app_tool::{Language, ToolError, build, create, test};
use willow_device::RpcOutcome;

/// What `count` of the templates does, in a device.
fn counts(module: &Path, name: &str) {
    let mut rig = Rig::new(3);
    let app = rig.install(module, name);
    let nsid = rig.device.namespaces().first().expect("a block namespace").nsid;
    // No byte is 1 yet; then the zeroes of all banks are counted, more than one range of each.
    let mut arguments = nsid.to_le_bytes().to_vec();
    arguments.push(1);
    let none = rig.call((app, 1, 1), &arguments, &[], 8);
    assert!(matches!(none.outcome, RpcOutcome::Answered { status: 0 }), "{:?}", none.outcome);
    assert_eq!((none.result, &none.buffer[..8]), (0, [0; 8].as_slice()));
    arguments[4] = 0;
    for spu in 0..3 {
        let all = rig.call((app, 1, spu), &arguments, &[], 8);
        assert!(matches!(all.outcome, RpcOutcome::Answered { status: 0 }), "{:?}", all.outcome);
        let total = u64::from_le_bytes(all.buffer[..8].try_into().expect("8 bytes"));
        assert!(total >= 1 << 20 && total.is_multiple_of(3 * 65536), "{total}");
        assert_eq!(u64::from(all.result), total);
    }
    // No such namespace; arguments too short.
    let missing = rig.call((app, 1, 0), &[99, 0, 0, 0, 0], &[], 8);
    assert!(matches!(missing.outcome, RpcOutcome::Answered { status: 0xffff_fff7 }), "{:?}", missing.outcome);
    let short = rig.call((app, 1, 0), &[1, 0], &[], 8);
    assert!(matches!(short.outcome, RpcOutcome::Answered { status: 0xffff_fffd }), "{:?}", short.outcome);
}

fn works(language: Language, name: &str) {
    let folder = Folder::new(name);
    let project = create(name, language, &folder.0).expect("a project");
    assert!(matches!(create(name, language, &folder.0), Err(ToolError::Exists(_))));
    for step in [test(&project), build(&project, false).map(|module| counts(&module, name))] {
        match step {
            Ok(()) => {}
            Err(error @ ToolError::Missing { .. }) => common::skip(&error),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_rust_template_works() {
    works(Language::Rust, "count-rust");
}

#[test]
fn the_c_template_works() {
    works(Language::C, "count-c");
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new("errors");
    let error = build(&folder.0, false).expect_err("no app here");
    assert!(error.to_string().contains("willow app new"), "{error}");
    let project = create("broken", Language::C, &folder.0).expect("a project");
    for (text, wanted) in [
        ("name = 3", "invalid type"),
        ("name = \"a\"\nsources = []", "sources is empty"),
        ("name = \"../a\"\nsources = [\"a.c\"]", "cannot be an app's name"),
        ("name = \"a\"\nsources = [\"a.c\"]\nthreads = 0", "threads is 1 to 255"),
        ("name = \"a\"\nsources = [\"a.c\"]\nstack_bytes = 100", "stack_bytes is a multiple of 16"),
        ("name = \"a\"\nsources = [\"a.c\"]\nspeed = 1", "unknown field"),
    ] {
        fs::write(project.join("willow.toml"), text).expect("written");
        let error = build(&project, false).expect_err("refused").to_string();
        assert!(error.contains(wanted) && error.contains("willow.toml"), "{error}");
    }
}
