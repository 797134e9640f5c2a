//! A process that appends records to a file by the library, and says each as soon as it is acknowledged: `willow-appender DEVICE AGENT FILE WRITER COUNT
//! [PAUSE_MS]`, with a pause behind each. A COUNT of `400-3000` is 400, and more until the device has appended one of them.
//! Where DEVICE is `-` the agent says how the device is reached. It ends with status 3 where nobody knows whether a record was appended.

use std::io::Write;
use std::path::Path;
use std::time::Duration;
use willow_host::direct_io::{AppendFailure, Appender, Session, SessionOptions};
use willow_tests::appended::record;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, agent, file, writer, count, pause @ ..] = &arguments[..] else {
        panic!("DEVICE AGENT FILE WRITER COUNT [PAUSE_MS]")
    };
    let pause = Duration::from_millis(pause.first().map_or(0, |pause| pause.parse().expect("milliseconds")));
    let (least, most) = count.split_once('-').unwrap_or((count.as_str(), count.as_str()));
    let [writer, least, most] = [writer.as_str(), least, most].map(|number| number.parse::<u32>().expect("a number"));
    let options = if device == "-" { SessionOptions::by_agent(agent) } else { SessionOptions::new(device, agent) };
    let session = Session::open(options).expect("a session");
    let appender = Appender::open(&session, Path::new(file)).expect("it opens");
    let mut output = std::io::stdout().lock();
    let goes_on = |number: &u32| *number < least || (*number < most && session.counts().direct_appends == 0);
    for number in (0..).take_while(goes_on) {
        let at = match appender.append(&record(writer, number)) {
            Err(AppendFailure::Unknown(_)) => std::process::exit(3),
            // Nothing is waited for, as a panic waits for its backtrace: whoever kills it then would not see it.
            Err(why) => {
                eprintln!("record {number}: {why}");
                std::process::exit(1)
            }
            Ok(at) => at,
        };
        writeln!(output, "{number} {at}").expect("somebody listens");
        output.flush().expect("somebody listens");
        std::thread::sleep(pause);
    }
    let counts = session.counts();
    writeln!(output, "direct {} kernel {}", counts.direct_appends, counts.kernel_appends).expect("somebody listens");
}
