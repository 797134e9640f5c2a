//! An FTL in C (sdk/c/tests/ftl.c, over willow_flash.h) serves the banks of a device, in the sandbox.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use support::{ANSWERED, BLOCK, Drive, Ftl, rpc, tiny};
use willow_app_tool::{ToolError, build};

/// What the port says of an operation that breaks a rule of the flash.
const MISUSE: u32 = 7;

/// A folder below the system's, gone when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The module; `None`: it cannot be built here.
fn module() -> Option<Vec<u8>> {
    let folder = Folder(std::env::temp_dir().join(format!("willow-ftl-in-c-{}", std::process::id())));
    fs::create_dir_all(&folder.0).expect("a temporary folder");
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/c").canonicalize().expect("the C SDK");
    let text = format!(
        "name = \"{}\"\nsources = [{:?}]\ntests = []\nsdk = {:?}\nthreads = 32\n",
        tiny::NAME,
        sdk.join("tests/ftl.c"),
        sdk
    );
    fs::write(folder.0.join("willow.toml"), text).expect("written");
    match build(&folder.0, false) {
        Ok(module) => Some(fs::read(module).expect("a module")),
        Err(error @ ToolError::Missing { .. }) => {
            willow_skip::skip("building an FTL in C", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// More is written than the flash holds, so that it collects; what is read is what was written, also after another instance has recovered it; a rule of
/// the flash that it breaks is told to it.
#[test]
fn an_ftl_in_c_serves_the_banks_and_recovers() {
    let Some(module) = module() else { return };
    let mut drive = Drive::new(Ftl::Tiny(module.clone()));
    let mut model = vec![0_u8; drive.blocks];
    let mut state = 1_u64;
    let mut collected = false;
    for round in 0..1600_u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = 1 + (state >> 56) as usize % 16;
        let first = (state >> 33) as usize % (drive.blocks - count);
        let byte = round as u8 | 1;
        match (state >> 20) % 8 {
            0 => {
                drive.zero(first, count);
                model[first..first + count].fill(0);
            }
            1 => {
                let expected: Vec<u8> = model[first..first + count].iter().flat_map(|byte| [*byte; BLOCK]).collect();
                assert!(drive.read(first, count) == expected, "round {round}, blocks from {first}");
            }
            _ => {
                drive.write(first, &vec![byte; count * BLOCK]);
                model[first..first + count].fill(byte);
            }
        }
        if round == 1500 {
            collected = drive.device.flash_statistics().expect("there is flash").erases > 0;
            drive.flush();
            drive.install(&module).expect("the same takes its own place");
        }
    }
    assert!(collected, "it had to collect");
    let expected: Vec<u8> = model.iter().flat_map(|byte| [*byte; BLOCK]).collect();
    assert!(drive.read(0, drive.blocks) == expected);
    let number = drive.device.app_number(tiny::NAME).expect("the FTL");
    let done = drive.call(rpc((number, 1, 0), &[]), &[], 0);
    assert_eq!(done.outcome, willow_device::RpcOutcome::Answered { status: MISUSE });
    assert!(drive.log(tiny::NAME).contains("misuse of the flash"), "{}", drive.log(tiny::NAME));
    let health = drive.device.flash_health().expect("there is flash");
    assert_eq!((health.spare_percent, health.is_read_only), (100, false), "it has told");
    assert_eq!(drive.range(base_io_host::wire::handler::READ, 0, 1, &[]).outcome, ANSWERED);
}
