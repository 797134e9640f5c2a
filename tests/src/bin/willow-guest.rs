//! Runs bash scripts in a Debian kernel guest: `willow-guest 'SCRIPT'...`, or one script from standard input. This
//! machine's loopback is 10.0.2.2 in the guest. Exit status: that of the last script.
#![forbid(unsafe_code)]

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use willow_tests::guest::{Guest, GuestOptions};

/// How long each script may run.
const SCRIPT_WAIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let mut scripts: Vec<String> = std::env::args().skip(1).collect();
    if scripts.is_empty() {
        let mut script = String::new();
        if let Err(error) = std::io::stdin().read_to_string(&mut script) {
            eprintln!("willow-guest: standard input: {error}");
            return ExitCode::FAILURE;
        }
        scripts.push(script);
    }
    let capture = std::env::var_os("WILLOW_GUEST_CAPTURE").map(Into::into);
    let mut guest = match Guest::boot(&GuestOptions { capture, ..GuestOptions::default() }) {
        Ok(guest) => guest,
        Err(error) => {
            eprintln!("willow-guest: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut status = 0;
    for script in scripts {
        match guest.run_for(SCRIPT_WAIT, &script) {
            Ok(output) => {
                print!("{}", output.text());
                status = output.status;
            }
            Err(error) => {
                eprintln!("willow-guest: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
