//! The sqlite3 program as it is, with the library loaded, on a real ext4 on the device: without a journal, whole through kills, and apart from
//! other users. Skipped, with a line that says why, where a program is missing, or as the stage says.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use willow_tests::stage::{By, Stage, has, is_frozen, library, or_skip, skip, within_seconds};

const LIBRARY: &str = "libwillow_sqlite.so";

fn stage(test: &str, by: By) -> Option<Stage> {
    if !has("sqlite3") {
        skip(test, "sqlite3 is not installed");
        return None;
    }
    or_skip(test, Stage::ext4_by(by))
}

/// sqlite3 with the library, on a base of the stage.
fn sqlite(stage: &Stage, base: &str) -> Command {
    let mut command = Command::new("sqlite3");
    command
        .args(["-batch", "-bail", "-cmd", &format!(".load {}", stage.public(&library(LIBRARY)).display())])
        .args(["-cmd", &format!(".open file:{}?vfs=willow", stage.on_it(base).display()), "-cmd", ".timeout 60000"])
        .env("WILLOW_AGENT", stage.path("agent"));
    command
}

/// What it says to some SQL; the program's error where it fails.
fn asked(mut sqlite: Command, sql: &str) -> Result<String, String> {
    let output = sqlite.arg(":memory:").arg(sql).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    // Where `.open` fails the program goes on with a base in memory, and says so here alone.
    let went = output.status.success() && output.stderr.is_empty();
    if went { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn said(stage: &Stage, base: &str, sql: &str) -> String {
    asked(sqlite(stage, base), sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The same by sqlite3 as it is, without the library: the base is one as any.
fn plainly(stage: &Stage, base: &str, sql: &str) -> String {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(stage.on_it(base)).arg(sql);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Commits by Atomic-Write, and transactions with a journal, of the report.
fn counts(report: &str) -> (u64, u64) {
    let after = |what: &str| {
        let (_, rest) = report.split_once(what).unwrap_or_else(|| panic!("{report}"));
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    };
    (after("atomic commits "), after("with a journal "))
}

fn last(said: &str) -> &str {
    said.lines().last().unwrap_or_default()
}

#[test]
fn commits_need_no_journal() {
    runs("commits_need_no_journal", By::Memory);
}

#[test]
fn commits_need_no_journal_over_the_network() {
    runs("commits_need_no_journal_over_the_network", By::Network);
}

fn runs(test: &str, by: By) {
    let Some(stage) = stage(test, by) else { return };
    let mut sql = "create table t(k integer primary key, v text);".to_owned();
    for row in 1..=40 {
        sql += &format!("insert into t values({row}, '{}');", "x".repeat(row * 37));
    }
    let report = said(&stage, "base", &format!("{sql} pragma willow;"));
    assert!(report.starts_with("direct true"), "{report}");
    assert_eq!(counts(&report), (41, 0), "{report}");
    assert!(!stage.on_it("base-journal").exists());
    // What was rolled back is not there, also where the cache had to spill.
    let spill = "pragma cache_size=5; begin; update t set v=v||v; delete from t where k>20; rollback; \
                 select count(*), sum(length(v)) from t; pragma willow;";
    let there = said(&stage, "base", spill);
    assert_eq!(there.lines().next(), Some("40|30340"), "{there}");
    assert_eq!(counts(last(&there)), (0, 0), "{there}");
    // All modes of journals; savepoints; a transaction that is spilled and committed.
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        let sql = format!(
            "pragma journal_mode={mode}; pragma cache_size=5; begin; insert into t select k+1000, v from t where k<=40; savepoint s; \
             delete from t; rollback to s; commit; select count(*) from t; delete from t where k>1000; pragma willow;"
        );
        let there = said(&stage, "base", &sql);
        let lines: Vec<&str> = there.lines().collect();
        let rolls_back = mode != "off";
        assert_eq!(lines[0], mode);
        if rolls_back {
            assert_eq!((lines[1], counts(last(&there))), ("80", (2, 0)), "{there}");
        } else {
            said(&stage, "base", "delete from t; insert into t select value, 'y' from generate_series(1, 40);");
        }
    }
    assert_eq!(said(&stage, "base", "pragma integrity_check; select count(*) from t;"), "ok\n40");
    // A base that shrinks, and one of another page size.
    said(&stage, "base", "pragma page_size=8192; vacuum; insert into t values(100, zeroblob(20000));");
    assert_eq!(
        said(&stage, "base", "pragma page_size; pragma integrity_check; select count(*) from t;"),
        "8192\nok\n41"
    );
    // It is a base as any.
    assert_eq!(plainly(&stage, "base", "pragma integrity_check; select count(*) from t;"), "ok\n41");
}

#[test]
fn large_transactions_go_by_a_journal() {
    let test = "large_transactions_go_by_a_journal";
    let Some(stage) = stage(test, By::Memory) else { return };
    said(&stage, "base", "create table t(k integer primary key, v blob);");
    let many = "with recursive n(k) as (select 1 union all select k+1 from n where k<6000) insert into t select k, randomblob(1500) from n;";
    let report = said(&stage, "base", &format!("{many} pragma willow;"));
    assert_eq!(counts(&report), (0, 1), "{report}");
    assert!(!stage.on_it("base-journal").exists());
    assert_eq!(said(&stage, "base", "pragma integrity_check; select count(*) from t;"), "ok\n6000");
    let there = said(
        &stage,
        "base",
        "pragma cache_size=10; begin; update t set v=randomblob(1600); rollback; pragma integrity_check; select max(length(v)) from t;",
    );
    assert_eq!(there, "ok\n1500");
    said(&stage, "base", "delete from t where k>10; vacuum;");
    assert_eq!(plainly(&stage, "base", "pragma integrity_check; select count(*) from t;"), "ok\n10");
}

#[test]
fn several_bases_are_committed_together() {
    let test = "several_bases_are_committed_together";
    let Some(stage) = stage(test, By::Memory) else { return };
    let attach = format!("attach 'file:{}?vfs=willow' as other;", stage.on_it("other").display());
    let sql = format!(
        "{attach} create table main.t(k); create table other.u(k); begin; insert into t values(1); insert into u values(2); commit; pragma main.willow; pragma other.willow;"
    );
    let report = said(&stage, "base", &sql);
    for line in report.lines() {
        assert_eq!(counts(line), (2, 0), "{report}");
    }
    let there: Vec<_> =
        fs::read_dir(stage.path("files")).expect("a folder").flatten().map(|it| it.file_name()).collect();
    assert!(
        !there.iter().any(|name| name.to_string_lossy().contains("journal") || name.to_string_lossy().contains("-mj")),
        "{there:?}"
    );
    assert_eq!(said(&stage, "base", &format!("{attach} select t.k, u.k from t, u;")), "1|2");
}

/// A client that counts up in a table, and tells each number when its commit is done.
struct Client {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// The last number that it told.
    told: u64,
}

impl Client {
    fn begin(stage: &Stage, who: usize) -> Client {
        let mut command = sqlite(stage, "base");
        command.arg(":memory:").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it runs");
        let mut input = child.stdin.take().expect("its input");
        std::thread::spawn(move || {
            for number in 1..100_000 {
                // Some forty pages each: accounts, and the history. Most of its time a client commits.
                let sql = format!(
                    "begin immediate; update account set balance=balance+1 where k between {0} and {0}+41; \
                     insert into history values({who},{number},zeroblob(700)); commit; select 'done', {number};\n",
                    number % 23 * 42
                );
                if input.write_all(sql.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Client { child, lines, told: 0 }
    }

    /// Waits for so many numbers, or for its end.
    fn wait(&mut self, most: usize) {
        let lines = self.lines.by_ref().map_while(Result::ok);
        for number in lines.filter_map(|line| line.strip_prefix("done|")?.parse().ok()).take(most) {
            self.told = number;
        }
    }

    /// Kills it; the last number that it told.
    fn kill(mut self) -> u64 {
        self.child.kill().expect("killed");
        self.child.wait().expect("an end");
        self.wait(usize::MAX);
        self.told
    }
}

/// Each transaction is there as a whole: as many changes of accounts as the history says.
fn check(stage: &Stage, told: &[u64], round: usize) {
    let sql = format!(
        "pragma integrity_check; select {WHOLE}; select count(*) - count(distinct who*1000000+number) from history;"
    );
    let there = said(stage, "base", &sql);
    assert_eq!(there, "ok\n0\n0", "round {round}");
    for (who, told) in told.iter().enumerate() {
        let there =
            said(stage, "base", &format!("select coalesce(max(number),0), count(*) from history where who={who};"));
        let (most, count) = there.split_once('|').expect("two");
        let (most, count): (u64, u64) = (most.parse().expect("a number"), count.parse().expect("a number"));
        assert!(most >= *told && most <= told + 1 && most == count, "round {round}: {there}, told {told}");
    }
}

const FILL: &str = "create table account(k integer primary key, balance integer, filler text); \
    create table history(who integer, number integer, data blob); \
    with recursive n(k) as (select 0 union all select k+1 from n where k<969) insert into account select k, 0, printf('%03000d', k) from n;";

#[test]
fn nothing_is_lost_or_torn_when_programs_are_killed() {
    let test = "nothing_is_lost_or_torn_when_programs_are_killed";
    let Some(stage) = stage(test, By::Memory) else { return };
    said(&stage, "base", FILL);
    for round in 0..rounds(24) {
        said(&stage, "base", "delete from history; update account set balance=0;");
        let mut reader = reader(&stage);
        let mut client = Client::begin(&stage, 0);
        client.wait(3 + round % 40);
        somewhat_later(round);
        let told = client.kill();
        assert!(told >= 3, "round {round}: {told}");
        check(&stage, &[told], round);
        reader.kill().expect("killed");
        let seen = reader.wait_with_output().expect("an end").stdout;
        let seen = String::from_utf8_lossy(&seen);
        // The last line may have been cut.
        let wrong = seen.split_inclusive('\n').find(|line| line.ends_with('\n') && *line != "seen|0\n");
        assert_eq!(wrong, None, "round {round}: a reader saw half a transaction");
    }
}

/// Another program that looks at the same time whether what it sees is whole.
fn reader(stage: &Stage) -> Child {
    let mut command = sqlite(stage, "base");
    command.arg(":memory:").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let mut input = child.stdin.take().expect("its input");
    std::thread::spawn(move || {
        let sql = format!("select 'seen', {WHOLE};\n");
        while input.write_all(sql.as_bytes()).is_ok() {
            // The writer's turn: its commits are to be met, not its waiting.
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    child
}

/// 0 where as many accounts were changed as the history says.
const WHOLE: &str = "(select sum(balance) from account)-(select 42*count(*) from history)";

#[test]
fn nothing_is_lost_or_torn_when_the_device_is_killed() {
    let test = "nothing_is_lost_or_torn_when_the_device_is_killed";
    if !has("sqlite3") {
        return skip(test, "sqlite3 is not installed");
    }
    let stage = Stage::remote(&["--media", "MEDIA", "--size", "128M"], By::Network);
    let Some(mut stage) = or_skip(test, stage) else { return };
    said(&stage, "base", FILL);
    for round in 0..rounds(6) {
        said(&stage, "base", "delete from history; update account set balance=0;");
        let mut client = Client::begin(&stage, 0);
        client.wait(3 + round % 40);
        somewhat_later(round);
        stage.restart_device();
        let told = client.kill();
        let base = stage.on_it("base");
        // It thaws files before it answers: who asks between is refused, as where there is no agent.
        let begins = || !is_frozen(&base) && asked(sqlite(&stage, "base"), "select count(*) from account;").is_ok();
        within_seconds("the agent begins anew", begins);
        check(&stage, &[told], round);
    }
}

/// Any moment of a transaction: a client that has just told a number has only begun the next one.
fn somewhat_later(round: usize) {
    let microseconds = (round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    std::thread::sleep(Duration::from_micros(microseconds % 40_000));
}

/// How often something is killed: `WILLOW_KILL_ROUNDS`, or so often.
fn rounds(usual: usize) -> usize {
    std::env::var("WILLOW_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

/// A sqlite3 that is told lines of SQL, and goes on where one fails: what it says, and its errors.
fn told(mut command: Command, lines: &str) -> (String, String) {
    command.args(["-cmd", ".bail off", ":memory:"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child.stdin.take().expect("its input").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The drive's log is not to be had, and no journal can be made: SQLite, which has ended its own by then, forgets what it has in its cache.
#[test]
fn what_could_not_be_committed_is_not_there_afterwards() {
    let test = "what_could_not_be_committed_is_not_there_afterwards";
    let Some(stage) = stage(test, By::Memory) else { return };
    let base = stage.owned("base", 1000, b"");
    stage.owned("base-willow", 1000, b"");
    let alice = || {
        let mut command = sqlite(&stage, "base");
        command.uid(1000).gid(1000).env("HOME", "/nonexistent");
        command
    };
    asked(alice(), "create table t(k); insert into t values(1);").expect("it needs no journal");
    // Whoever has it open for writing keeps it from being direct.
    let writer = fs::OpenOptions::new().write(true).open(&base).expect("open");
    for (mode, found) in [("normal", ["before|1", "after|1", "then|1"].as_slice()), ("exclusive", &["before|1"])] {
        let lines = format!(
            "pragma locking_mode={mode};\nselect 'before', count(*) from t;\ninsert into t values(2);\n\
             select 'after', count(*) from t;\ninsert into t values(3);\nselect 'then', count(*) from t;\n"
        );
        let (output, errors) = told(alice(), &lines);
        assert!(errors.contains("disk I/O error"), "{errors}");
        let counted: Vec<&str> = output.lines().filter(|line| line.contains('|')).collect();
        assert_eq!(counted, found, "{mode}: {errors}");
    }
    drop(writer);
    let there = asked(alice(), "pragma integrity_check; insert into t values(4); select group_concat(k) from t;");
    assert_eq!(there.as_deref(), Ok("ok\n1,4"));
}

/// A SQLite without the library is in the midst of a transaction: its journal is no hot one, and nobody writes meanwhile.
#[test]
fn the_journal_of_one_without_the_library_is_left_alone() {
    let test = "the_journal_of_one_without_the_library_is_left_alone";
    let Some(stage) = stage(test, By::Memory) else { return };
    said(&stage, "base", "create table t(k); insert into t values(1);");
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(stage.on_it("base")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = command.spawn().expect("it runs");
    let (mut input, output) = (other.stdin.take().expect("its input"), other.stdout.take().expect("its output"));
    let mut lines = BufReader::new(output).lines();
    input.write_all(b"begin immediate;\nupdate t set k=2;\nselect 'begun';\n").expect("it reads");
    assert_eq!(lines.next().expect("a line").expect("a line"), "begun");
    let journal = stage.on_it("base-journal");
    assert!(journal.exists());
    assert_eq!(said(&stage, "base", "select k from t;"), "1");
    let refused = asked(sqlite(&stage, "base"), "pragma busy_timeout=1; insert into t values(3);");
    assert!(refused.expect_err("another one is about to write").contains("locked"));
    assert!(journal.exists(), "its journal was taken for one that somebody left");
    input.write_all(b"commit;\nselect 'done';\n").expect("it reads");
    assert_eq!(lines.next().expect("a line").expect("a line"), "done");
    drop(input);
    assert!(other.wait().expect("its end").success());
    assert_eq!(said(&stage, "base", "pragma integrity_check; select k from t;"), "ok\n2");
}

#[test]
fn other_users_are_refused() {
    let test = "other_users_are_refused";
    let Some(stage) = stage(test, By::Memory) else { return };
    let base = stage.owned("base", 1000, b"");
    let lock = stage.owned("base-willow", 1000, b"");
    let by = |user: u32, sql: &str| {
        let mut command = sqlite(&stage, "base");
        command.uid(user).gid(user).env("HOME", "/nonexistent");
        asked(command, sql)
    };
    // Alice may not make journals beside it, and needs none.
    by(1000, "create table t(k); insert into t values(1);").expect("her base");
    let said = by(1001, "select * from t;").expect_err("another's base");
    assert!(said.contains("unable to open"), "{said}");
    // One that may read it changes nothing, by any of it.
    for path in [&base, &lock] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("its mode");
    }
    assert_eq!(by(1001, "select * from t;").as_deref(), Ok("1"));
    let said = by(1001, "insert into t values(2);").expect_err("not hers");
    assert!(said.contains("readonly"), "{said}");
    assert_eq!(by(1000, "insert into t values(3); select count(*) from t;").as_deref(), Ok("2"));
}

#[test]
fn without_an_agent_nothing_is_opened() {
    if !has("sqlite3") {
        return skip("without_an_agent_nothing_is_opened", "sqlite3 is not installed");
    }
    let mut command = Command::new("sqlite3");
    let base = std::env::temp_dir().join(format!("willow-no-agent-{}", std::process::id()));
    let run = |command: &mut Command| {
        let output = command
            .args(["-batch", "-cmd", ".log stderr", "-cmd", &format!(".load {}", library(LIBRARY).display())])
            .args(["-cmd", &format!(".open file:{}?vfs=willow", base.display()), ":memory:", "create table t(k);"])
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run(command.env_remove("WILLOW_AGENT"));
    assert!(said.contains("WILLOW_AGENT"), "{said}");
    let said = run(Command::new("sqlite3").env("WILLOW_AGENT", "/nonexistent/agent"));
    assert!(said.contains("/nonexistent/agent"), "{said}");
    assert!(!Path::new(&base).exists());
}
