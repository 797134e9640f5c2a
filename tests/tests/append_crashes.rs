//! An agent that ends at each step of delegating a file's length and of giving it back, alone or with its host: the next one gives the file its length, with
//! all that was acknowledged. Skipped, with a line that says why, as the stage says.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use willow_host::direct_io::{Appender, Session, SessionOptions};
use willow_host::testing::AGENT_CRASHED;
use willow_tests::appended::{FIRST, check, record};
use willow_tests::host_cut;
use willow_tests::stage::{Stage, contents, is_append_only, is_frozen, or_skip, skip, within_seconds};

/// Steps, at least: an agent that has fewer has lost some.
const STEPS_MIN: u32 = 25;
/// Records before each time that the file gets its length.
const RECORDS: u32 = 4;
/// Longest wait for an agent's end after what was done with it, and how often a step is tried again.
const END_MAX: Duration = Duration::from_secs(10);
const AGAIN_MAX: u32 = 20;

/// What is done with an agent while it lives: appends until the file has got its length twice, once while it goes on and once for good. `told` counts
/// the records that were acknowledged; true where the device appended them all and the agent has given the file back: it does not end then.
fn used(stage: &Stage, agent: &mut Child, path: &Path, told: &mut u32) -> bool {
    // Nobody waits for an agent that has ended.
    let options =
        SessionOptions { patience: Duration::ZERO, ..SessionOptions::new(stage.path("device"), stage.path("agent")) };
    let Ok(session) = Session::open(options) else { return false };
    let Ok(appender) = Appender::open(&session, path) else { return false };
    let mut append = || {
        let done = (0..RECORDS).all(|_| appender.append(&record(1, *told)).map(|at| (at, *told += 1)).is_ok());
        done.then(|| appender.length().ok()).flatten()
    };
    let Some(length) = append() else { return false };
    // The agent gives the file its length, and the device goes on.
    while fs::metadata(path).expect("there").len() != length {
        if agent.try_wait().expect("its state").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    append().is_some() && appender.give_back().is_ok() && session.counts().direct_appends == u64::from(2 * RECORDS)
}

#[test]
fn an_agent_that_ends_at_any_step_of_delegating_a_length_loses_no_record() {
    let test = "an_agent_that_ends_at_any_step_of_delegating_a_length_loses_no_record";
    end_at_every_step(test, |_| ());
}

/// The agent ends with its host, which had written nothing that nobody asked it to write.
#[test]
fn a_host_whose_power_is_cut_at_any_step_of_delegating_a_length_loses_no_record() {
    let test = "a_host_whose_power_is_cut_at_any_step_of_delegating_a_length_loses_no_record";
    if let Err(why) = host_cut::possible() {
        return skip(test, &why);
    }
    end_at_every_step(test, host_cut::cut);
}

/// Ends an agent at each step; something happens besides before there is another one.
fn end_at_every_step(test: &str, besides: fn(&Stage)) {
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    stage.kill_agent();
    let (mut by_others, mut in_the_midst) = (0, 0);
    let (mut step, mut again) = (1, 0);
    loop {
        let path = stage.on_it(&format!("log-{step}-{again}"));
        fs::write(&path, contents(FIRST, 1)).expect("written");
        fs::File::open(&path).and_then(|file| file.sync_all()).expect("synced");
        let mut agent = stage.crasher(step, None).expect("it answers");
        let mut told = 0;
        let is_over = used(&stage, &mut agent, &path, &mut told);
        // Where the kernel had to append a record, as while the file was given its length, the agent may have gone other ways than the ones
        // before it, and have come to no end: that step is tried again.
        let begun = Instant::now();
        while !is_over && agent.try_wait().expect("its state").is_none() && begun.elapsed() < END_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended_itself = agent.try_wait().expect("its state").is_some();
        if !ended_itself {
            agent.kill().expect("killed");
        }
        let status = agent.wait().expect("an end");
        assert!(is_over || !ended_itself || status.code() == Some(AGENT_CRASHED), "step {step}: {status}");
        let is_missed = !is_over && !ended_itself;
        again = if is_missed { again + 1 } else { 0 };
        assert!(again < AGAIN_MAX, "step {step}: {status}");
        in_the_midst += u32::from(is_frozen(&path));
        let others = is_append_only(&path);
        if others {
            // Whoever may append does so, before there is another agent.
            let mut file = fs::OpenOptions::new().append(true).open(&path).expect("it opens");
            file.write_all(&record(2, 0)).and_then(|()| file.sync_all()).expect("appended");
            by_others += 1;
        }
        besides(&stage);
        stage.start_agent();
        within_seconds("the next agent gives it its length", || !is_frozen(&path) && !is_append_only(&path));
        let found = fs::read(&path).expect("read");
        assert!(found[..FIRST] == contents(FIRST, 1), "step {step}: what was there before");
        let records: BTreeMap<u32, usize> = check(&found, FIRST)
            .unwrap_or_else(|why| panic!("step {step}: {why}"))
            .into_iter()
            .map(|(writer, offsets)| (writer, offsets.len()))
            .collect();
        // The one that was under way may be there.
        let there = records.get(&1).copied().unwrap_or_default();
        assert!((told as usize..=told as usize + 1).contains(&there), "step {step}: {there} records, {told} told");
        assert_eq!(records.contains_key(&2), others, "step {step}");
        // It is the file system's own.
        fs::OpenOptions::new().write(true).open(&path).expect("it opens for writing");
        let has_no_record =
            || fs::read_dir(stage.path("agent.frozen.append")).map_or(true, |mut all| all.next().is_none());
        within_seconds("it is off the list", has_no_record);
        stage.kill_agent();
        // What is off the list is the file system's own for good.
        besides(&stage);
        assert!(!is_frozen(&path) && !is_append_only(&path), "step {step}: it is immutable, and on no list");
        assert!(fs::read(&path).expect("read") == found, "step {step}: it holds something else");
        if is_over {
            assert!(step > STEPS_MIN && told == 2 * RECORDS, "there were only {step} steps, {told} records");
            println!(
                "{} steps, {in_the_midst} with an immutable file, {by_others} with one that others append to",
                step - 1
            );
            assert!(in_the_midst > 0 && by_others > 0);
            return;
        }
        step += u32::from(!is_missed);
    }
}
