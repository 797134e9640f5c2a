//! A program of calls that a seed generates. It knows nothing of Willow: a test runs it with and without the library and compares what
//! it prints, which is what each call returned, and what the files hold in the end.
//!
//! What always holds: a step depends on the seed, its number and what the steps before it did, and on nothing else; so leaving steps out
//! leaves a program again. What is printed is the same in every run: where order is left to chance, what does not depend on it.
//!
//! `willow-same FOLDER SEED FIRST LAST [LEFT_OUT,...]`, or, executed by itself, `willow-same child DESCRIPTOR SEED`.

mod calls;
mod identity;
mod others;
mod spelled;
mod world;

use std::ffi::c_int;
use world::World;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize| arguments[index].parse::<i64>().expect("a number") as u64;
    if arguments[1] == "child" {
        let mut world = World::new("", number(3));
        world.say_as = "executed";
        others::in_child(&mut world, number(2) as c_int);
        return;
    }
    world::count_signals();
    let (seed, first, last) = (number(2), number(3), number(4));
    let left_out: Vec<u64> =
        arguments.get(5).map_or_else(Vec::new, |list| list.split(',').filter_map(|it| it.parse().ok()).collect());
    let mut world = World::new(&arguments[1], seed);
    world::reserve();
    world.open(0, "f0", libc::O_RDWR);
    world.open(1, "f1", libc::O_RDWR);
    for index in (first..last).filter(|index| !left_out.contains(index)) {
        world.begin(index);
        step(&mut world);
        // Of a difference that shows late: where it comes from.
        if std::env::var_os("WILLOW_SAME_LOOK").is_some() {
            world.say_files();
        }
    }
    world.end();
}

/// One step. Those that leave a file with the kernel are rare, so that most calls go directly.
fn step(world: &mut World) {
    match world.below(110) {
        0..=6 => calls::open(world),
        7..=9 => calls::close(world),
        10..=13 => calls::duplicate(world),
        14..=27 => calls::moves(world),
        28..=47 => calls::at_offsets(world),
        48..=52 => calls::flagged(world),
        53..=58 => calls::seek(world),
        59..=62 => calls::lengths(world),
        63..=65 => calls::durable(world),
        66..=69 => calls::flags(world),
        70..=72 => calls::odd(world),
        73..=76 => calls::limited(world),
        77..=79 => calls::names(world),
        80..=83 => calls::by_number(world),
        84..=86 => others::forked(world),
        87 => others::forked_at_once(world),
        88..=89 => others::executed(world),
        90 => others::sent(world),
        91..=92 => others::between(world),
        93 => others::mapped(world),
        94 => others::locked(world),
        95..=96 => others::stream(world),
        97 if world.chance(2) => identity::replaced(world),
        97 => others::threads(world),
        98 => others::queued(world),
        99..=101 => calls::attributes(world),
        102..=104 => calls::by_others(world),
        105..=106 => calls::durable(world),
        107..=108 => identity::changed(world),
        _ => others::started(world),
    }
}
