//! A process that appends records to a file by the library, and says each as soon as it is acknowledged: `willow-appender DEVICE AGENT FILE WRITER COUNT`.

use std::io::Write;
use std::path::Path;
use willow_host::direct_io::{Appender, Session, SessionOptions};
use willow_tests::appended::record;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, agent, file, writer, count] = &arguments[..] else { panic!("DEVICE AGENT FILE WRITER COUNT") };
    let (writer, count): (u32, u32) = (writer.parse().expect("a number"), count.parse().expect("a number"));
    let session = Session::open(SessionOptions::new(device, agent)).expect("a session");
    let appender = Appender::open(&session, Path::new(file)).expect("it opens");
    let mut output = std::io::stdout().lock();
    for number in 0..count {
        let at = appender.append(&record(writer, number)).expect("appended");
        writeln!(output, "{number} {at}").expect("somebody listens");
        output.flush().expect("somebody listens");
    }
    let counts = session.counts();
    writeln!(output, "direct {} kernel {}", counts.direct_appends, counts.kernel_appends).expect("somebody listens");
}
