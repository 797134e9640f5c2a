//! The server in front of a real device: what clients see, by both ways to the device, and what bounds hold.

mod common;

use common::{Client, PATIENCE, Way, config, connect, device, serve};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use willow_device::media::fault::Random;
use willow_memcached::{Clock, ServerConfig};

/// The commands in their usual course, and what they say where something is not there, is there already, or is no number.
#[test]
fn commands_do_what_memcached_does() {
    let device = device();
    let clock = Clock::default();
    let config = || ServerConfig { clock: clock.clone(), ..config() };
    for way in [Way::Memory, Way::Network] {
        let serving = serve(&device, way, config());
        let mut tcp = connect(&serving);
        conversation(&mut tcp, &clock);
        let mut unix = Client::new(UnixStream::connect(&serving.unix).unwrap());
        conversation(&mut unix, &clock);
        binary(&mut connect(&serving));
    }
}

/// Times are far longer than the test lasts, and the clock is put forward.
fn conversation<S: std::io::Read + Write>(client: &mut Client<S>, clock: &Clock) {
    assert_eq!(client.ask("flush_all"), "OK");
    assert_eq!(client.get("a"), None);
    assert_eq!(client.store("set", "a", "7 0", b"one"), "STORED");
    client.send(b"get a b a\r\n");
    assert_eq!(client.value(), Some(("VALUE a 7 3".into(), b"one".to_vec())));
    assert_eq!(client.value(), Some(("VALUE a 7 3".into(), b"one".to_vec())));
    assert_eq!(client.value(), None);
    assert_eq!(client.store("add", "a", "0 0", b"x"), "NOT_STORED");
    assert_eq!(client.store("replace", "b", "0 0", b"x"), "NOT_STORED");
    assert_eq!(client.store("append", "b", "0 0", b"x"), "NOT_STORED");
    assert_eq!(client.store("add", "b", "0 0", b"middle"), "STORED");
    assert_eq!(client.store("append", "b", "9 9", b"-end"), "STORED");
    assert_eq!(client.store("prepend", "b", "9 9", b"begin-"), "STORED");
    client.send(b"gets b\r\n");
    let (line, data) = client.value().unwrap();
    assert_eq!(data, b"begin-middle-end");
    assert_eq!(client.value(), None);
    let version = line.split(' ').next_back().unwrap().to_owned();
    assert_eq!(client.ask("cas b 1 0 1"), "ERROR", "no version");
    let cas = |client: &mut Client<S>, key: &str, version: &str| {
        client.send(format!("cas {key} 1 0 3 {version}\r\nnew\r\n").as_bytes());
        client.line()
    };
    assert_eq!(cas(client, "none", &version), "NOT_FOUND");
    assert_eq!(cas(client, "b", "12345"), "EXISTS");
    assert_eq!(cas(client, "b", &version), "STORED");
    assert_eq!(cas(client, "b", &version), "EXISTS");
    assert_eq!(client.ask("incr a 1"), "CLIENT_ERROR cannot increment or decrement non-numeric value");
    assert_eq!(client.ask("incr none 1"), "NOT_FOUND");
    assert_eq!(client.set("n", b"18446744073709551615"), "STORED");
    assert_eq!(client.ask("incr n 2"), "1");
    assert_eq!(client.ask("decr n 5"), "0");
    assert_eq!(client.ask("incr n 41"), "41");
    assert_eq!(client.get("n"), Some(b"41".to_vec()));
    assert_eq!(client.ask("delete b"), "DELETED");
    assert_eq!(client.ask("delete b"), "NOT_FOUND");
    assert_eq!(client.ask("touch none 5"), "NOT_FOUND");
    assert_eq!(client.ask("touch a -1"), "TOUCHED");
    assert_eq!(client.get("a"), None, "it has ended");
    assert_eq!(client.store("set", "a", "0 -1", b"x"), "STORED");
    assert_eq!(client.get("a"), None, "it has ended before");
    assert_eq!(client.store("add", "a", "0 1000", b"short"), "STORED", "what has ended is not there");
    client.send(b"gat 100000 a none\r\n");
    assert_eq!(client.value(), Some(("VALUE a 0 5".into(), b"short".to_vec())));
    assert_eq!(client.value(), None);
    clock.advance(1001);
    assert_eq!(client.get("a"), Some(b"short".to_vec()), "it was given longer");
    assert_eq!(client.store("set", "e", "0 1000", b"gone"), "STORED");
    assert_eq!(client.get("e"), Some(b"gone".to_vec()));
    clock.advance(1001);
    assert_eq!(client.get("e"), None);
    // Quiet ones say nothing, and are done.
    client.send(
        b"set q 0 0 1 noreply\r\n1\r\nincr q 1 noreply\r\nadd q 0 0 1 noreply\r\nx\r\ndelete none noreply\r\nget q\r\n",
    );
    assert_eq!(client.value(), Some(("VALUE q 0 1".into(), b"2".to_vec())));
    assert_eq!(client.value(), None);
    // Lengths at which something changes: what is read at once, read again, or by its own grant.
    for bytes in [0, 1, 4000, 4096, 10_000, 65_000, 65_536, 70_000, 300_000, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|at: usize| ((at * 31) >> 3) as u8).collect();
        assert_eq!(client.set("long", &data), "STORED", "{bytes}");
        assert!(client.get("long") == Some(data), "{bytes}");
    }
    let long = vec![b'x'; (1 << 20) + 1];
    assert_eq!(client.set("long", &long), "SERVER_ERROR object too large for cache");
    assert_eq!(client.store("append", "long", "0 0", b"x"), "SERVER_ERROR object too large for cache");
    let key = "k".repeat(250);
    assert_eq!(client.set(&key, b"1"), "STORED");
    assert_eq!(client.get(&key), Some(b"1".to_vec()));
    assert_eq!(client.set(&"k".repeat(251), b"set x 0 0 1"), "CLIENT_ERROR bad command line format");
    assert_eq!(client.ask("verbosity 1"), "OK");
    assert!(client.ask("version").starts_with("VERSION 1.6."));
    assert_eq!(client.ask("nonsense"), "ERROR");
    let lines = statistics(client);
    assert!(lines.iter().any(|line| line.starts_with("STAT cmd_get ")), "{lines:?}");
    assert_eq!(client.ask("stats reset"), "RESET");
    assert_eq!(client.ask("flush_all 1000"), "OK");
    assert!(client.get("n").is_some(), "not yet");
    clock.advance(1001);
    // It is looked at by the second, and beside the requests that come meanwhile.
    let started = Instant::now();
    while client.get("n").is_some() {
        assert!(started.elapsed() < PATIENCE, "it is not removed");
    }
    client.send(b"quit\r\n");
    assert!(client.is_ended());
}

fn statistics<S: std::io::Read + Write>(client: &mut Client<S>) -> Vec<String> {
    let mut lines = Vec::new();
    client.send(b"stats\r\n");
    while lines.last().map(String::as_str) != Some("END") {
        lines.push(client.line());
    }
    lines
}

/// Meta commands.
#[test]
fn meta_commands() {
    let device = device();
    let serving = serve(&device, Way::Memory, config());
    let mut client = connect(&serving);
    assert_eq!(client.ask("mn"), "MN");
    assert_eq!(client.ask("mg foo v"), "EN");
    client.send(b"ms foo 3 T0 F5 c\r\nbar\r\n");
    let stored = client.line();
    let version = stored.strip_prefix("HD c").expect("the version").to_owned();
    assert_eq!(client.ask("mg foo v t f c k s Oabc"), format!("VA 3 t-1 f5 c{version} kfoo s3 Oabc"));
    assert_eq!(client.line(), "bar");
    assert_eq!(client.ask("mg foo"), "HD");
    client.send(b"ms foo 1 ME\r\nx\r\n");
    assert_eq!(client.line(), "NS");
    client.send(b"ms foo 3 MA\r\nbaz\r\n");
    assert_eq!(client.line(), "HD");
    client.send(b"ms foo 1 C1\r\nx\r\n");
    assert_eq!(client.line(), "EX");
    assert_eq!(client.ask("mg foo s T1000 t"), "HD s6 t1000");
    assert_eq!(client.ask("ma count N0 J10 v"), "VA 2");
    assert_eq!(client.line(), "10");
    assert_eq!(client.ask("ma count D5 v t"), "VA 2 t-1");
    assert_eq!(client.line(), "15");
    assert_eq!(client.ask("ma count MD D20 v"), "VA 1");
    assert_eq!(client.line(), "0");
    assert_eq!(client.ask("ma none"), "NF");
    assert_eq!(client.ask("md foo C1"), "EX");
    assert_eq!(client.ask("md foo"), "HD");
    assert_eq!(client.ask("md foo"), "NF");
    // A pipeline of quiet ones, and the end of it.
    client.send(b"ms a 1 q\r\n1\r\nms b 1 q\r\n2\r\nmg a v q\r\nmg none v q\r\nmg b v q k\r\nmn\r\n");
    let lines: Vec<String> = (0..5).map(|_| client.line()).collect();
    assert_eq!(lines, ["VA 1", "1", "VA 1 kb", "2", "MN"]);
    assert_eq!(client.ask("mg Zm9v b k v"), "EN");
    client.send(b"ms Zm9v 2 b k\r\nhi\r\n");
    assert_eq!(client.line(), "HD kZm9v b");
    assert_eq!(client.get("foo"), Some(b"hi".to_vec()));
}

fn binary<S: std::io::Read + Write>(client: &mut Client<S>) {
    let request = |opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64| {
        let mut head = [0_u8; 24];
        (head[0], head[1], head[4]) = (0x80, opcode, extras.len() as u8);
        head[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
        head[8..12].copy_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        head[12..16].copy_from_slice(&0xabcd_u32.to_be_bytes());
        head[16..24].copy_from_slice(&cas.to_be_bytes());
        [&head[..], extras, key, value].concat()
    };
    // (opcode, status, cas, body)
    let answer = |client: &mut Client<S>| {
        let head = client.take(24);
        assert_eq!((head[0], &head[12..16]), (0x81, &[0, 0, 0xab, 0xcd][..]));
        let body = client.take(u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize);
        (head[1], u16::from_be_bytes([head[6], head[7]]), u64::from_be_bytes(head[16..24].try_into().unwrap()), body)
    };
    client.send(&request(1, &[0, 0, 0, 9, 0, 0, 0, 0], b"bin", b"value", 0));
    let (_, status, cas, _) = answer(client);
    assert_eq!(status, 0);
    client.send(&request(0, b"", b"bin", b"", 0));
    assert_eq!(answer(client), (0, 0, cas, b"\0\0\0\x09value".to_vec()));
    client.send(&request(1, &[0; 8], b"bin", b"other", cas + 1));
    assert_eq!(answer(client).1, 2, "another version");
    client.send(&request(4, b"", b"bin", b"", cas));
    assert_eq!(answer(client).1, 0);
    // Quiet gets: misses say nothing, and a noop ends them.
    let quiet = [request(9, b"", b"bin", b"", 0), request(0x0d, b"", b"none", b"", 0), request(10, b"", b"", b"", 0)];
    client.send(&quiet.concat());
    assert_eq!(answer(client).0, 10);
    client.send(&request(0x77, b"", b"k", b"", 0));
    assert_eq!(answer(client).1, 0x81);
    client.send(&[0; 24]);
    assert!(client.is_ended());
}

/// Bytes as they come: one at a time, and all at once.
#[test]
fn commands_may_come_in_any_pieces() {
    let device = device();
    let serving = serve(&device, Way::Memory, config());
    let mut client = connect(&serving);
    for byte in b"set piece 1 0 4\r\n\r\n\r\n\r\nget piece\r\n" {
        client.send(&[*byte]);
    }
    assert_eq!(client.line(), "STORED");
    assert_eq!(client.value(), Some(("VALUE piece 1 4".into(), b"\r\n\r\n".to_vec())));
    assert_eq!(client.value(), None);
    // A half-closed connection is answered.
    let mut many = Vec::new();
    for number in 0..500 {
        many.extend_from_slice(format!("set m{number} 0 0 3\r\n{number:03}\r\n").as_bytes());
    }
    let keys: Vec<String> = (0..500).map(|number| format!("m{number}")).collect();
    many.extend_from_slice(format!("get {}\r\n", keys.join(" ")).as_bytes());
    client.send(&many);
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..500 {
        assert_eq!(client.line(), "STORED");
    }
    for number in 0..500 {
        assert_eq!(client.value(), Some((format!("VALUE m{number} 0 3"), format!("{number:03}").into_bytes())));
    }
    assert_eq!(client.value(), None);
    assert!(client.is_ended());
}

/// Clients that pipeline whatever comes, each on keys of its own and all on some shared counters: as in a model of memcached.
#[test]
fn pipelined_clients_are_as_in_the_model() {
    let device = device();
    for way in [Way::Memory, Way::Network] {
        let serving = serve(&device, way, config());
        connect(&serving).ask("flush_all");
        let increments: u64 = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..6_u64)
                .map(|number| {
                    scope.spawn({
                        let serving = &serving;
                        move || one_client(serving, number)
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        let counted =
            connect(&serving).get("shared").map(|text| String::from_utf8(text).unwrap().parse::<u64>().unwrap());
        assert_eq!(counted, Some(increments), "{way:?}: no step of the shared counter is lost");
    }
}

fn one_client(serving: &common::Serving, number: u64) -> u64 {
    let mut random = Random::new(number);
    let mut client = connect(serving);
    let mut model: std::collections::HashMap<String, (u32, Vec<u8>)> = std::collections::HashMap::new();
    let mut increments = 0;
    for _ in 0..60 {
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..1 + random.below(40) {
            let key = format!("c{number}-{}", random.below(5));
            let largest = if random.below(12) == 0 { 90_000 } else { 400 };
            let length = random.below(largest) as usize;
            let data = random.bytes(length);
            let flags = random.below(1 << 32) as u32;
            let there = model.get(&key).cloned();
            let mut store = |command: &str, data: &[u8]| {
                sent.extend_from_slice(format!("{command} {key} {flags} 0 {}\r\n", data.len()).as_bytes());
                sent.extend_from_slice(data);
                sent.extend_from_slice(b"\r\n");
            };
            match random.below(12) {
                0..=2 => {
                    store("set", &data);
                    model.insert(key, (flags, data));
                    expected.extend_from_slice(b"STORED\r\n");
                }
                3 => {
                    store("add", &data);
                    expected.extend_from_slice(if there.is_some() { b"NOT_STORED\r\n" } else { b"STORED\r\n" });
                    model.entry(key).or_insert((flags, data));
                }
                4 => {
                    store("replace", &data);
                    expected.extend_from_slice(if there.is_some() { b"STORED\r\n" } else { b"NOT_STORED\r\n" });
                    if there.is_some() {
                        model.insert(key, (flags, data));
                    }
                }
                5 | 6 => {
                    let front = random.below(2) == 0;
                    store(if front { "prepend" } else { "append" }, &data);
                    expected.extend_from_slice(if there.is_some() { b"STORED\r\n" } else { b"NOT_STORED\r\n" });
                    if let Some((_, old)) = model.get_mut(&key) {
                        *old = if front { [&data[..], old].concat() } else { [&old[..], &data].concat() };
                    }
                }
                7 => {
                    sent.extend_from_slice(format!("delete {key}\r\n").as_bytes());
                    expected.extend_from_slice(if there.is_some() { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
                    model.remove(&key);
                }
                8 => {
                    // Nobody knows what the others did: its answer is left out.
                    sent.extend_from_slice(b"add shared 0 0 1 noreply\r\n0\r\nincr shared 1 noreply\r\n");
                    increments += 1;
                }
                _ => {
                    let keys: Vec<String> =
                        (0..1 + random.below(6)).map(|_| format!("c{number}-{}", random.below(6))).collect();
                    sent.extend_from_slice(format!("get {}\r\n", keys.join(" ")).as_bytes());
                    for key in keys {
                        if let Some((flags, data)) = model.get(&key) {
                            expected.extend_from_slice(format!("VALUE {key} {flags} {}\r\n", data.len()).as_bytes());
                            expected.extend_from_slice(data);
                            expected.extend_from_slice(b"\r\n");
                        }
                    }
                    expected.extend_from_slice(b"END\r\n");
                }
            }
        }
        // Sent from another thread: whoever writes all before it reads would wait for itself.
        let mut writer = client.0.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let came = client.take(expected.len());
        assert!(came == expected, "client {number}: other answers than the model's");
        writing.join().unwrap();
    }
    client.ask("version");
    increments
}

/// Who sends and never reads is not read from, and others go on meanwhile; it gets all answers once it reads.
#[test]
fn one_that_does_not_read_stops_itself_alone() {
    let device = device();
    let serving = serve(&device, Way::Memory, config());
    let mut greedy = connect(&serving);
    assert_eq!(greedy.set("big", &vec![b'x'; 500_000]), "STORED");
    greedy.0.set_nonblocking(true).unwrap();
    let line = b"get big\r\n".repeat(1000);
    let (mut sent, started) = (0, Instant::now());
    // Until its commands are not taken any more for some time.
    let mut refused_since = None;
    while started.elapsed() < PATIENCE {
        match greedy.0.write(&line[sent % 9..]) {
            Ok(bytes) => {
                sent += bytes;
                refused_since = None;
            }
            Err(_) => {
                let since = *refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(500) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    assert!(refused_since.is_some(), "{sent} bytes of commands were taken");
    let mut other = connect(&serving);
    for number in 0..200 {
        assert_eq!(other.set("k", number.to_string().as_bytes()), "STORED");
        assert_eq!(other.get("k"), Some(number.to_string().into_bytes()));
    }
    greedy.0.set_nonblocking(false).unwrap();
    for _ in 0..20 {
        assert_eq!(greedy.value().map(|(_, data)| data.len()), Some(500_000));
        assert_eq!(greedy.value(), None);
    }
}

/// More connections than there are places wait until one leaves; those that are there go on.
#[test]
fn connections_past_the_limit_wait() {
    let device = device();
    let serving = serve(&device, Way::Memory, ServerConfig { connections_max: 3, ..config() });
    let mut clients: Vec<_> = (0..3).map(|_| connect(&serving)).collect();
    for client in &mut clients {
        assert_eq!(client.ask("mn"), "MN");
    }
    let mut fourth = connect(&serving);
    fourth.send(b"mn\r\n");
    fourth.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(std::io::Read::read(&mut fourth.0, &mut [0; 16]).is_err(), "it is served beside three others");
    assert_eq!(clients[1].ask("mn"), "MN");
    clients.remove(0);
    fourth.0.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(fourth.line(), "MN");
}

/// Long items share what memory there is for them: more of them than it holds wait for each other, and all are stored.
#[test]
fn long_items_wait_for_memory() {
    let device = device();
    let serving = serve(&device, Way::Memory, ServerConfig { memory_bytes: 1, ..config() });
    let data = vec![b'y'; 900_000];
    // Two fit: these hold what there is, and do not finish.
    let mut holders: Vec<_> = (0..2).map(|_| connect(&serving)).collect();
    for holder in &mut holders {
        holder.send(format!("set held 0 0 {}\r\n", data.len()).as_bytes());
        holder.send(&data[..1000]);
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut third = connect(&serving);
    third.send(&[format!("set third 0 0 {}\r\n", data.len()).as_bytes(), &data[..], b"\r\n"].concat()[..100_000]);
    third.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(std::io::Read::read(&mut third.0, &mut [0; 16]).is_err());
    // Small ones go on.
    assert_eq!(connect(&serving).set("small", b"1"), "STORED");
    drop(holders.pop());
    third.0.set_read_timeout(Some(PATIENCE)).unwrap();
    third.send(&[format!("set third 0 0 {}\r\n", data.len()).as_bytes(), &data[..], b"\r\n"].concat()[100_000..]);
    assert_eq!(third.line(), "STORED");
    holders[0].send(&[&data[1000..], b"\r\n"].concat());
    assert_eq!(holders[0].line(), "STORED");
    assert!(connect(&serving).get("third") == Some(data));
}

/// Who holds memory for a long item and does not send the rest is disconnected; who sends one long item after the other is not.
#[test]
fn memory_for_long_items_is_not_held_for_ever() {
    let device = device();
    let config = ServerConfig { memory_bytes: 1, ..config() };
    let clock = config.clock.clone();
    let serving = serve(&device, Way::Memory, config);
    let data = vec![b'z'; 900_000];
    let head = |key: &str| format!("set {key} 0 0 {}\r\n", data.len()).into_bytes();
    // Each of these begins with the end of the one before, 40 s after that one began.
    let mut steady = connect(&serving);
    steady.send(&[&head("steady"), &data[..1000]].concat());
    for _ in 0..4 {
        clock.advance(40);
        steady.send(&[&data[1000..], b"\r\n", &head("steady"), &data[..1000]].concat());
        assert_eq!(steady.line(), "STORED");
    }
    steady.send(&[&data[1000..], b"\r\n"].concat());
    assert_eq!(steady.line(), "STORED");
    // These hold all that there is, and send no more.
    let mut silent = [connect(&serving), connect(&serving)];
    for client in &mut silent {
        client.send(&[&head("silent"), &data[..1000]].concat());
    }
    let mut asks = connect(&serving);
    let started = Instant::now();
    while !statistics(&mut asks).iter().any(|line| line == "STAT curr_connections 2") {
        assert!(started.elapsed() < PATIENCE, "they hold their memory");
        clock.advance(61);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(silent.iter_mut().all(Client::is_ended));
    // Both places are there again.
    let others = || {
        let mut other = connect(&serving);
        other.send(&[&head("other"), &data[..1000]].concat());
        other
    };
    let mut others = [others(), others()];
    for other in &mut others {
        other.send(&[&data[1000..], b"\r\n"].concat());
        assert_eq!(other.line(), "STORED");
    }
}

/// Bytes that are no commands end in errors, or with the connection; the server goes on.
#[test]
fn nonsense_harms_nobody() {
    let device = device();
    let serving = serve(&device, Way::Memory, config());
    let mut random = Random::new(5);
    let words: [&[u8]; 14] = [
        b"set",
        b"get",
        b" ",
        b" ",
        b"0",
        b"9999999999999999999999",
        b"\r\n",
        b"\n",
        b"key",
        b"ms",
        b"mg",
        b"-1",
        b"\x80",
        b"noreply",
    ];
    for _ in 0..150 {
        let mut client = connect(&serving);
        let mut nonsense = Vec::new();
        for _ in 0..random.below(60) {
            match random.below(4) {
                0 => {
                    let length = random.below(30) as usize;
                    nonsense.extend(random.bytes(length));
                }
                _ => nonsense.extend_from_slice(words[random.below(words.len() as u64) as usize]),
            }
        }
        // It may have ended the connection before all was sent.
        let _ = client.0.write_all(&nonsense);
        let _ = client.0.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client.0, &mut said);
    }
    assert_eq!(connect(&serving).set("k", b"fine"), "STORED");
}
