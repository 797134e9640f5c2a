//! `willow debug` as a client of the Debug Adapter Protocol drives it, on an app with DWARF.

mod support;

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::{Folder, Served, willow};

/// Handler 1 answers with 7 * 7 + 1, by `square`; 2 answers at once; 3 traps.
const SOURCE: &str = r#"#![no_std]
#![crate_type = "cdylib"]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
#[link(wasm_import_module = "willow")]
unsafe extern "C" {
    fn respond(token: u32, status: u32, result: u32);
}
#[used]
#[unsafe(link_section = "willow.app")]
static MANIFEST: [u8; 66] = *b"abi=2\nname=ant\nversion=1\nhandler=1:work\nhandler=2:other\nhandler=3:f";
#[inline(never)]
fn square(side: u32) -> u32 {
    let area = side.wrapping_mul(side); // multiplies
    let more = area.wrapping_add(1); // adds
    more
}
#[unsafe(no_mangle)]
pub extern "C" fn start(token: u32, handler: u32) -> u32 {
    let mut result = 5;
    if handler == 1 {
        result = square(7); // calls
    }
    if handler == 3 {
        core::arch::wasm32::unreachable();
    }
    // SAFETY: the token is this request's, and it is answered once.
    unsafe { respond(token, 0, result) }; // responds
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn complete(_: u32, _: i64) {}
"#;

/// The line that ends with a comment.
fn line(comment: &str) -> u64 {
    1 + SOURCE.lines().position(|line| line.ends_with(&format!("// {comment}"))).unwrap() as u64
}

fn device_with_app(folder: &Folder) -> Served {
    let manifest = "abi=2\\nname=ant\\nversion=1\\nhandler=1:work\\nhandler=2:other\\nhandler=3:f";
    let bytes = manifest.replace("\\n", "\n").len();
    let source = folder.file("ant.rs", SOURCE.replace("[u8; 66]", &format!("[u8; {bytes}]")).as_bytes());
    let module = folder.path("ant.wasm");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "--target", "wasm32-unknown-unknown", "-g", "-Copt-level=0", "-Cpanic=abort"])
        .args(["-Clink-arg=--stack-first", "-Clink-arg=-zstack-size=16384", "-o", &module, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let device = Served::start(&["--ram", "--size", "16M", "--kv-size", "16M", "--spus", "2"]);
    device.ok(&["app", "install", &module]);
    device
}

/// A client of the debugger.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    sent: u64,
    events: VecDeque<Value>,
}

impl Client {
    fn start(device: &Served, arguments: &[&str]) -> Client {
        let mut command = willow();
        command.args(["debug", "ant", "--target", &device.address]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut client = Client { child, input, output, sent: 0, events: VecDeque::new() };
        client.ask("initialize", json!({ "adapterID": "willow" }));
        client.event("initialized");
        client.ask("attach", json!({}));
        client
    }

    fn send(&mut self, command: &str, arguments: Value) -> u64 {
        self.sent += 1;
        let message = json!({ "seq": self.sent, "type": "request", "command": command, "arguments": arguments });
        let body = message.to_string();
        write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        self.sent
    }

    /// The next message, if there is one.
    fn next(&mut self) -> Option<Value> {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                header => length = header.strip_prefix("Content-Length: ").unwrap().parse().unwrap(),
            }
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).unwrap();
        Some(serde_json::from_slice(&body).unwrap())
    }

    fn response(&mut self, command: &str, arguments: Value) -> Value {
        let sent = self.send(command, arguments);
        loop {
            let message = self.next().expect("the debugger answers");
            if message["type"] == "event" {
                self.events.push_back(message);
            } else {
                assert_eq!((&message["request_seq"], &message["command"]), (&sent.into(), &command.into()));
                return message;
            }
        }
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let response = self.response(command, arguments);
        assert_eq!(response["success"], true, "{response}");
        response["body"].clone()
    }

    fn event(&mut self, name: &str) -> Value {
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => self.next().expect("the debugger goes on"),
            };
            if event["event"] == name {
                return event["body"].clone();
            }
        }
    }

    fn stopped(&mut self, reason: &str, spu: u64) {
        let body = self.event("stopped");
        assert_eq!(
            (&body["reason"], &body["threadId"], &body["allThreadsStopped"]),
            (&reason.into(), &(spu + 1).into(), &false.into())
        );
    }

    fn break_at(&mut self, comment: &str) {
        let asked =
            json!({ "source": { "path": "/somewhere/else/ant.rs" }, "breakpoints": [{ "line": line(comment) }] });
        let answer = self.ask("setBreakpoints", asked);
        assert_eq!(answer["breakpoints"], json!([{ "verified": true, "line": line(comment) }]));
    }

    fn stack(&mut self, spu: u64) -> Vec<(String, u64)> {
        let body = self.ask("stackTrace", json!({ "threadId": spu + 1 }));
        let frames = body["stackFrames"].as_array().unwrap();
        let of = |frame: &Value| (frame["name"].as_str().unwrap().to_owned(), frame["line"].as_u64().unwrap());
        frames.iter().map(of).collect()
    }

    /// A variable of the innermost frame: its value, and where it is in memory.
    fn variable(&mut self, spu: u64, scope: usize, name: &str) -> (String, Value) {
        let frame = self.ask("stackTrace", json!({ "threadId": spu + 1 }))["stackFrames"][0]["id"].clone();
        let scopes = self.ask("scopes", json!({ "frameId": frame }));
        let reference = scopes["scopes"][scope]["variablesReference"].clone();
        let variables = self.ask("variables", json!({ "variablesReference": reference }));
        let all = variables["variables"].as_array().unwrap();
        let found =
            all.iter().find(|variable| variable["name"] == name).unwrap_or_else(|| panic!("no {name} in {variables}"));
        (found["value"].as_str().unwrap().to_owned(), found["memoryReference"].clone())
    }

    fn end(mut self) {
        self.ask("disconnect", json!({}));
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

fn call(device: &Served, handler: &str, spu: &str) -> Child {
    let call = ["rpc", "ant", handler, "--spu", spu, "--target", &device.address];
    willow().args(call).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn result(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    String::from_utf8(if output.status.success() { output.stdout } else { output.stderr }).unwrap()
}

#[test]
fn an_app_stops_at_lines_is_stepped_through_and_shows_its_variables_while_others_go_on() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    let mut client = Client::start(&device, &[]);
    client.break_at("multiplies");
    client.ask("configurationDone", json!({}));
    assert_eq!(client.ask("threads", json!({}))["threads"][1], json!({ "id": 2, "name": "SPU 1" }));
    let work = call(&device, "work", "1");
    client.stopped("breakpoint", 1);
    let stack = client.stack(1);
    assert!(stack[0].0.ends_with("square") && stack[1].0 == "start", "{stack:?}");
    assert_eq!((stack[0].1, stack[1].1), (line("multiplies"), line("calls")));
    assert_eq!(client.variable(1, 0, "side").0, "7");
    // Its other SPU, and other apps, go on; a request to the stopped one waits.
    assert_eq!(device.ok(&["rpc", "ant", "other", "--spu", "0"]), "result 5\n");
    assert!(device.run_with(&["kv", "put", "key", "-"], b"value").status.success());
    let mut waits = call(&device, "other", "1");
    client.ask("next", json!({ "threadId": 2 }));
    client.stopped("step", 1);
    assert_eq!(client.stack(1)[0].1, line("adds"));
    let (value, place) = client.variable(1, 0, "area");
    assert_eq!(value, "49");
    // The same in memory: 49 in four bytes.
    let read = client.ask("readMemory", json!({ "memoryReference": place, "count": 4 }));
    assert_eq!(read["data"], "MQAAAA==");
    let far = client.ask("readMemory", json!({ "memoryReference": "0xfffffff0", "count": 64 }));
    assert_eq!((&far["data"], &far["unreadableBytes"]), (&"".into(), &64.into()));
    // What WebAssembly has is there too: the caller's first parameter is the token, its second the handler.
    assert!(!client.variable(1, 1, "local 0").0.is_empty());
    assert!(waits.try_wait().unwrap().is_none(), "it waits");
    client.ask("stepOut", json!({ "threadId": 2 }));
    client.stopped("step", 1);
    assert_eq!(client.stack(1)[0].0, "start");
    client.ask("next", json!({ "threadId": 2 }));
    client.stopped("step", 1);
    client.ask("continue", json!({ "threadId": 2 }));
    assert_eq!(result(work), "result 50\n");
    assert_eq!(result(waits), "result 5\n");
    // Requests that make no sense are answered.
    for (command, arguments) in [
        ("continue", json!({ "threadId": 9 })),
        ("next", json!({ "threadId": 1 })),
        ("stackTrace", json!({})),
        ("variables", json!({ "variablesReference": 0 })),
        ("fly", json!({})),
    ] {
        assert_eq!(client.response(command, arguments)["success"], false, "{command}");
    }
    // By the name of a function; and at a trap, before the app ends.
    client.ask("setBreakpoints", json!({ "source": { "path": "/somewhere/else/ant.rs" }, "breakpoints": [] }));
    client.ask("setFunctionBreakpoints", json!({ "breakpoints": [{ "name": "square" }] }));
    let work = call(&device, "work", "0");
    client.stopped("breakpoint", 0);
    client.ask("continue", json!({ "threadId": 1 }));
    assert_eq!(result(work), "result 50\n");
    client.ask("pause", json!({ "threadId": 1 }));
    let other = call(&device, "other", "0");
    client.stopped("pause", 0);
    client.ask("stepIn", json!({ "threadId": 1, "granularity": "instruction" }));
    client.stopped("step", 0);
    client.ask("continue", json!({ "threadId": 1 }));
    assert_eq!(result(other), "result 5\n");
    let traps = call(&device, "f", "1");
    client.stopped("exception", 1);
    let stack = client.stack(1);
    assert!(stack[0].0.ends_with("unreachable") && stack[1].0 == "start", "{stack:?}");
    client.ask("continue", json!({ "threadId": 2 }));
    assert!(result(traps).contains("ended"));
    // Its app has ended: so does the debugger, and says why.
    client.event("terminated");
    assert_eq!(client.child.wait().unwrap().code(), Some(1));
    assert!(device.ok(&["app", "core", "ant"]).contains("#1 start +"));
    device.end();
}

#[test]
fn what_is_stopped_goes_on_when_its_debugger_is_gone_or_its_time_is_over() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    let mut client = Client::start(&device, &[]);
    client.break_at("multiplies");
    let work = call(&device, "work", "1");
    client.stopped("breakpoint", 1);
    // One at a time.
    let busy = device.fails(&["debug", "ant"]);
    assert!(busy.contains("has a debugger"), "{busy}");
    client.child.kill().unwrap();
    client.child.wait().unwrap();
    assert_eq!(result(work), "result 50\n");
    assert_eq!(device.ok(&["rpc", "ant", "work", "--spu", "0"]), "result 50\n", "its breakpoints are gone");
    // Where a stop has a time, its requests wait no longer.
    let mut client = Client::start(&device, &["--longest-stop", "0.3", "--spu", "1"]);
    client.break_at("multiplies");
    assert_eq!(client.ask("threads", json!({}))["threads"], json!([{ "id": 2, "name": "SPU 1" }]));
    assert_eq!(device.ok(&["rpc", "ant", "work", "--spu", "0"]), "result 50\n", "only SPU 1 stops");
    let work = call(&device, "work", "1");
    client.stopped("breakpoint", 1);
    assert_eq!(result(work), "result 50\n");
    client.event("continued");
    client.end();
    // A reset ends the debugging, and brings the app back as it is without.
    let mut client = Client::start(&device, &[]);
    client.break_at("multiplies");
    let work = call(&device, "work", "1");
    client.stopped("breakpoint", 1);
    device.ok(&["app", "reset", "ant"]);
    assert!(result(work).contains("ended"));
    client.event("terminated");
    assert_eq!(device.ok(&["rpc", "ant", "work", "--spu", "1"]), "result 50\n");
    // The device ends cleanly while an app is stopped.
    let mut client = Client::start(&device, &[]);
    client.break_at("multiplies");
    let work = call(&device, "work", "1");
    client.stopped("breakpoint", 1);
    for (arguments, wanted) in [
        (vec!["debug", "nobody"], "nobody"),
        (vec!["debug", "key-value"], "comes with the device"),
        (vec!["debug", "base-io"], "base-io"),
        (vec!["debug", "ant", "--longest-stop", "0"], "--longest-stop"),
    ] {
        assert!(device.fails(&arguments).contains(wanted), "{arguments:?}");
    }
    device.end();
    drop(work);
}

/// Handler 1 sleeps, and then answers with its own sum.
const C_SOURCE: &str = r#"#include "willow.h"
#define HANDLERS(HANDLER) HANDLER(1, work)
WILLOW_APP("ant", "1", HANDLERS)
static uint32_t sum_of(const uint8_t *bytes, uint32_t count) {
    uint32_t sum = 0;
    for (uint32_t index = 0; index < count; index++) {
        sum += bytes[index]; // adds
    }
    return sum; // returns
}
static void work(RPCHdr_t *request) {
    uint8_t values[4] = {3, 4, 5, 30};
    uint32_t first = values[0];
    SleepNs(1000); // sleeps
    uint32_t whole = sum_of(values, 4) + first; // sums
    RPCResp_t response;
    RPCCreateResponse(request, &response, 0); // responds
    response.result = whole;
    RPCSendResponse(response);
}
"#;

#[test]
fn an_app_in_c_stops_at_lines_and_shows_its_variables() {
    let folder = Folder::new();
    let made = willow().args(["app", "new", "ant", "--lang", "c"]).current_dir(folder.path("")).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::write(folder.path("ant/src/app.c"), C_SOURCE).unwrap();
    let built = willow().args(["app", "build", "--debug"]).current_dir(folder.path("ant")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let module = String::from_utf8(built.stdout).unwrap().trim_end().to_owned();
    let device = Served::start(&["--ram", "--size", "16M", "--kv-size", "16M", "--spus", "1"]);
    device.ok(&["app", "install", &module]);
    let at = |comment: &str| 1 + C_SOURCE.lines().position(|line| line.ends_with(&format!("// {comment}"))).unwrap();
    let mut client = Client::start(&device, &[]);
    for comment in ["adds", "responds"] {
        let asked = json!({ "source": { "path": "/elsewhere/app.c" }, "breakpoints": [{ "line": at(comment) }] });
        let answer = client.ask("setBreakpoints", asked);
        assert_eq!(answer["breakpoints"], json!([{ "verified": true, "line": at(comment) }]));
        if comment == "adds" {
            client.ask("configurationDone", json!({}));
            let work = call(&device, "work", "0");
            client.stopped("breakpoint", 0);
            let stack = client.stack(0);
            assert_eq!(stack[..2], [("sum_of".to_owned(), at("adds") as u64), ("work".to_owned(), at("sums") as u64)]);
            assert_eq!((client.variable(0, 0, "index").0, client.variable(0, 0, "count").0), ("0".into(), "4".into()));
            // Once more through the loop.
            client.ask("continue", json!({ "threadId": 1 }));
            client.stopped("breakpoint", 0);
            assert_eq!((client.variable(0, 0, "index").0, client.variable(0, 0, "sum").0), ("1".into(), "3".into()));
            client.ask("setBreakpoints", json!({ "source": { "path": "/elsewhere/app.c" }, "breakpoints": [] }));
            client.ask("stepOut", json!({ "threadId": 1 }));
            client.stopped("step", 0);
            assert_eq!(client.stack(0)[0], ("work".to_owned(), at("sums") as u64));
            // What it had before it slept is as it was.
            assert_eq!(client.variable(0, 0, "first").0, "3");
            client.ask("continue", json!({ "threadId": 1 }));
            assert_eq!(result(work), "result 45\n");
        }
    }
    let work = call(&device, "work", "0");
    client.stopped("breakpoint", 0);
    assert_eq!(client.variable(0, 0, "whole").0, "45");
    client.ask("continue", json!({ "threadId": 1 }));
    assert_eq!(result(work), "result 45\n");
    client.end();
    device.end();
}
