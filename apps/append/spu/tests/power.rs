//! Append on media that lose power: at every operation of the media of small workloads, with every outcome or a choice of them, and at random
//! moments of random ones. After each a file is made of whole records, in the order in which they were answered, all that were answered are
//! there, and no length that was told is taken back. The last tests plant bugs: what cannot catch those tests nothing.

mod world;

use append_spu::planted::{Planted, plant};
use append_spu::wire::{STATUS_INSUFFICIENT, STATUS_MEDIA_ERROR, handler};
use willow_device::media::fault::{FaultMedia, Random};
use world::drive::{each_cut, each_outcome};
use world::{FILES, FIRST, Model, Rig, SPUS, Step, options, record, run, start, status};

/// Opens what a cut has left, and goes on from there.
fn check(media: &FaultMedia, model: &Model, what: &str) -> Result<(), String> {
    let mut rig = Rig::open(media).map_err(|why| format!("{what}: {why}"))?;
    let mut model = model.clone();
    for more in [false, true] {
        let listed = rig.list().map_err(|why| format!("{what}: {why}"))?;
        for file in FILES {
            let entry = listed.get(&file).ok_or_else(|| format!("{what}: file {file} is not delegated any more"))?;
            let found = rig.read(file, entry.length);
            model.check(file, entry.length, &found).map_err(|why| format!("{what}, {more}: {why}"))?;
            if entry.is_suspended != model.last.contains_key(&file) && !more && !entry.is_suspended {
                return Err(format!("{what}: file {file} was suspended, and is not"));
            }
        }
        // What is appended now comes after what is there.
        for file in FILES.into_iter().filter(|file| !more && !listed[file].is_suspended) {
            let number = model.records.len() as u32;
            model.records.push((file, 700, None));
            let hre = rig.drive.hre;
            match rig.append(hre, file, &record(number, 700)) {
                (0, at) => model.records[number as usize].2 = Some(at),
                (STATUS_INSUFFICIENT, _) => {}
                (status, _) => return Err(format!("{what}: an append after the cut ends with status {status}")),
            }
        }
    }
    Ok(())
}

fn check_outcomes(media: &FaultMedia, model: &Model, most: usize, seed: u64, what: &str) -> Result<u64, String> {
    each_outcome(media, most, seed, |left, number| check(left, model, &format!("{what}, outcome {number}")))
}

/// The power goes at each operation of the media in turn.
fn cut_everywhere(clients: &[Vec<Step>], seed: u64, most: usize) -> Result<u64, String> {
    each_cut(|cut| {
        let what = format!("seed {seed}, cut {cut}");
        let (media, mut rig) = start(seed);
        media.cut_after(media.operations() + cut);
        let mut model = Model::default();
        run(&mut rig, &media, clients, &mut model).map_err(|why| format!("{what}: {why}"))?;
        Ok((check_outcomes(&media, &model, most, seed ^ cut, &what)?, media.is_cut()))
    })
}

fn small_workloads() -> Vec<Vec<Vec<Step>>> {
    use Step::{Append, Length, Suspend};
    vec![
        vec![vec![Append(3, 100)]],
        vec![vec![Append(3, 3000), Append(3, 9), Append(3, 2000)]],
        // Beside each other, to one file and to others.
        vec![vec![Append(3, 1500), Length(3)], vec![Append(3, 700), Append(3, 90)]],
        vec![vec![Append(3, 600)], vec![Append(6, 600)], vec![Append(10, 1300)]],
        vec![vec![Append(3, 2500), Append(3, 40)], vec![Append(3, 300)], vec![Length(3), Suspend(3), Append(3, 50)]],
    ]
}

fn cut_small_workloads(seeds: std::ops::Range<u64>, most: usize) -> Result<u64, String> {
    let workloads = small_workloads();
    let of_seed = |seed| workloads.iter().try_fold(0, |sum, clients| Ok(sum + cut_everywhere(clients, seed, most)?));
    seeds.map(of_seed).sum::<Result<u64, String>>()
}

fn random_clients(random: &mut Random) -> Vec<Vec<Step>> {
    let step = |random: &mut Random| {
        let file = FILES[random.below(FILES.len() as u64) as usize];
        match random.below(40) {
            0 => Step::Suspend(file),
            1..4 => Step::Length(file),
            4..8 => Step::Append(file, 8 + random.below(9000) as u32),
            _ => Step::Append(file, 8 + random.below(1200) as u32),
        }
    };
    let count = 1 + random.below(6);
    (0..count).map(|_| (0..4 + random.below(20)).map(|_| step(random)).collect()).collect()
}

fn cut_at_random(seed: u64, most: usize) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let (media, mut rig) = start(seed);
    media.cut_after(media.operations() + 1 + random.below(200));
    let mut model = Model::default();
    let what = format!("seed {seed}");
    run(&mut rig, &media, &random_clients(&mut random), &mut model).map_err(|why| format!("{what}: {why}"))?;
    check_outcomes(&media, &model, most, seed, &what)
}

#[test]
fn records_are_whole_and_lengths_right_after_every_cut_of_small_workloads() {
    let looked_at = cut_small_workloads(0..2, 4).unwrap();
    assert!(looked_at > 300, "only {looked_at} outcomes");
}

#[test]
fn records_of_many_appenders_are_whole_after_cuts() {
    let looked_at: u64 = (0..100).map(|seed| cut_at_random(seed, 3).unwrap()).sum();
    assert!(looked_at > 100, "only {looked_at} outcomes");
}

/// A file is appended to, ended, and another delegated in its place, with a cut at each operation of the last: it has its own length or is not
/// there, never the length of the one before, under which bytes would show that are somebody else's.
fn slots_are_told_apart(seed: u64) -> Result<u64, String> {
    each_cut(|cut| {
        let media = FaultMedia::new(options(seed));
        let mut rig = Rig::open(&media)?;
        rig.delegate(3);
        let hre = rig.drive.hre;
        assert_eq!(rig.append(hre, 3, &record(0, 5000)), (0, FIRST as u32));
        assert_eq!(rig.entry(3, handler::SUSPEND).map(|entry| entry.length), Ok(FIRST + 5000));
        assert_eq!(rig.ask(3, handler::END, &3u64.to_le_bytes()), 0);
        media.cut_after(media.operations() + cut);
        let body = rig.delegation_body(6, FIRST + 10, 2);
        let to = rig.to(6, handler::DELEGATE);
        let tag = rig.drive.submit(to, &[], &body, 0);
        rig.drive.settle_or_cut(&media);
        let is_answered = rig.drive.done.remove(&tag).is_some_and(|done| status(&done) == 0);
        let looked_at = each_outcome(&media, 64, seed, |left, number| {
            let found: Vec<_> = Rig::open(left)?.list()?.values().map(|entry| (entry.file, entry.length)).collect();
            match found[..] {
                [] if !is_answered => Ok(()),
                [(6, length)] if length == FIRST + 10 => Ok(()),
                _ => Err(format!("seed {seed}, cut {cut}, outcome {number}: {found:?}")),
            }
        })?;
        Ok((looked_at, media.is_cut()))
    })
}

#[test]
fn a_file_that_takes_anothers_place_has_its_own_length_after_every_cut() {
    assert!((0..3).map(|seed| slots_are_told_apart(seed).unwrap()).sum::<u64>() > 10);
}

/// A length cannot be written; what is appended then is another record, of another length, whose power goes.
fn doubt_is_settled(seed: u64) -> Result<u64, String> {
    each_cut(|cut| {
        let (media, mut rig) = start(seed);
        let hre = rig.drive.hre;
        let mut model = Model { records: vec![(3, 4000, None), (3, 300, None)], ..Model::default() };
        // The record goes to the three banks, whose flushes go well; that of its length does not.
        media.fail_flushes_after(SPUS.into(), 1);
        let (refusal, _) = rig.append(hre, 3, &record(0, 4000));
        if refusal != STATUS_MEDIA_ERROR {
            return Err(format!("a length that is not durable is answered with status {refusal}"));
        }
        media.heal();
        media.cut_after(media.operations() + cut);
        let tag = rig.begin_append(hre, 3, &record(1, 300));
        rig.drive.settle_or_cut(&media);
        if let Some(done) = rig.drive.done.remove(&tag).filter(|done| status(done) == 0) {
            model.records[1].2 = Some(done.result);
        }
        let looked_at = check_outcomes(&media, &model, 64, seed, &format!("seed {seed}, cut {cut}"))?;
        Ok((looked_at, media.is_cut()))
    })
}

#[test]
fn what_a_failed_length_may_have_left_is_settled_before_the_next_record() {
    assert!((0..4).map(|seed| doubt_is_settled(seed).unwrap()).sum::<u64>() > 10);
}

/// What the tests say where that bug is planted.
fn said(bug: Planted, run: impl Fn() -> Result<u64, String>) -> Option<String> {
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    plant(None);
    outcome.expect("no panic: what is wrong is said").err()
}

/// The bug is caught, and for its own reason.
fn is_caught_anywhere(bug: Planted, why: &str) {
    let at_random = || (0..100).map(|seed| cut_at_random(seed, 4)).sum::<Result<u64, String>>();
    let said = said(bug, || cut_small_workloads(0..3, 8)).or_else(|| said(bug, at_random));
    let said = said.expect("it is caught");
    assert!(said.contains(why), "{said}");
}

#[test]
fn planted_length_that_is_settled_too_early_is_caught() {
    is_caught_anywhere(Planted::LengthTooEarly, "is torn");
}

#[test]
fn planted_answer_before_the_length_is_durable_is_caught() {
    is_caught_anywhere(Planted::AnswersTooEarly, "was said to have");
}

#[test]
fn planted_records_over_each_other_are_caught() {
    is_caught_anywhere(Planted::StartsBeforeItsTurn, "is torn");
}

#[test]
fn planted_suspension_beside_an_append_is_caught() {
    is_caught_anywhere(Planted::SuspendsAtOnce, "and ended with");
}

#[test]
fn planted_banks_that_are_not_flushed_are_caught() {
    is_caught_anywhere(Planted::ForgetsOthers, "is torn");
}

#[test]
fn planted_slots_that_are_not_told_apart_are_caught() {
    let said = (0..3).find_map(|seed| said(Planted::OneGeneration, || slots_are_told_apart(seed)));
    assert!(said.as_ref().is_some_and(|said| said.contains("(6, 10000)")), "{said:?}");
}

#[test]
fn planted_doubt_that_is_forgotten_is_caught() {
    let said = (0..4).find_map(|seed| said(Planted::ForgetsDoubt, || doubt_is_settled(seed)));
    assert!(said.as_ref().is_some_and(|said| said.contains("is torn")), "{said:?}");
}
