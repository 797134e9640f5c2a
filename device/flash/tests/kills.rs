//! Flash files under kills of the process and a full disk. Apart from other tests: a child that was forked and has not begun its program yet
//! holds the locks of this process' files.

mod common;

use common::{Random, Scratch, create, open, page_bytes, program, read, small};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use willow_flash_media::{Cell, FileError, PageAddress, ProgramPage, Status};

/// One test with children at a time.
static CHILDREN: Mutex<()> = Mutex::new(());

/// The child of the test below: programs and erases until it is killed, and says what was answered.
#[test]
#[ignore = "run by the test that kills it"]
fn child_that_is_killed() {
    let path = std::env::var("FLASH_FILE").expect("run by its parent");
    let mut array = open(Path::new(&path), &small(Cell::Mlc)).unwrap();
    let mut next = [[0u32; 6]; 2];
    for (die, blocks) in next.iter_mut().enumerate() {
        for (block, next) in blocks.iter_mut().enumerate() {
            while *next < 8 && read(&mut array, die as u32, block as u32, *next).0 != Status::Erased {
                *next += 1;
            }
        }
    }
    let mut random = Random(std::process::id().into());
    loop {
        let (die, block) = (random.below(2), random.below(6));
        let page = &mut next[die as usize][block as usize];
        if *page == 8 {
            println!("erasing {die} {block}");
            assert_eq!(array.erase(die, &[block]).unwrap(), Status::DONE);
            println!("erased {die} {block}");
            *page = 0;
        } else {
            assert_eq!(program(&mut array, die, block, *page), Status::DONE);
            println!("programmed {die} {block} {page}");
            *page += 1;
        }
    }
}

#[test]
fn a_kill_loses_nothing_that_was_answered() {
    let _alone = CHILDREN.lock().unwrap();
    let geometry = small(Cell::Mlc);
    let scratch = Scratch::new();
    drop(create(&scratch.file(), &geometry));
    let (mut next, mut erases) = ([[0u32; 6]; 2], [[0u32; 6]; 2]);
    let mut random = Random(11);
    for _ in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_that_is_killed", "--nocapture", "--test-threads=1"])
            .env("FLASH_FILE", scratch.file())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = 1 + random.below(200);
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut erasing = None;
        let mut seen = 0;
        let mut take = |line: String| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |place: usize| words[place].parse::<usize>().unwrap();
            match words[0] {
                "programmed" => next[number(1)][number(2)] = words[3].parse::<u32>().unwrap() + 1,
                "erasing" => erasing = Some((number(1), number(2))),
                "erased" => {
                    erasing = None;
                    next[number(1)][number(2)] = 0;
                    erases[number(1)][number(2)] += 1;
                }
                _ => return,
            }
            seen += 1;
        };
        for line in output.by_ref().map_while(Result::ok).take(lines as usize) {
            take(line);
        }
        child.kill().unwrap();
        // What it had said when it died.
        output.map_while(Result::ok).for_each(take);
        child.wait().unwrap();
        assert!(seen > 0, "the child has worked");
        let mut array = open(&scratch.file(), &geometry).unwrap();
        for die in 0..2 {
            for block in 0..6 {
                let (count, pages) = (&mut erases[die][block], &mut next[die][block]);
                if erasing == Some((die, block)) && array.erase_count(die as u32, block as u32) == Some(*count + 1) {
                    (*count, *pages) = (*count + 1, 0);
                }
                assert_eq!(array.erase_count(die as u32, block as u32), Some(*count), "die {die}, block {block}");
                for page in 0..8 {
                    let (status, bytes) = read(&mut array, die as u32, block as u32, page);
                    if page < *pages {
                        assert_eq!(status, Status::DONE, "die {die}, block {block}, page {page}");
                        assert_eq!(bytes, page_bytes(die as u32, block as u32, page, *count));
                    } else if page == *pages && status == Status::DONE {
                        // It was done, and the child killed before it said so.
                        assert_eq!(bytes, page_bytes(die as u32, block as u32, page, *count));
                        *pages += 1;
                    } else {
                        assert_eq!(status, Status::Erased, "die {die}, block {block}, page {page}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_full_disk_is_an_error_that_changes_nothing_and_passes() {
    let _alone = CHILDREN.lock().unwrap();
    // A limit on the length of files is met as a full disk is. It is the process': this test has one of its own.
    let geometry = small(Cell::Slc);
    let scratch = Scratch::new();
    drop(create(&scratch.file(), &geometry));
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 40; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_with_a_full_disk", "--nocapture"])
        .env("FLASH_FILE", scratch.file())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut array = open(&scratch.file(), &geometry).unwrap();
    assert_eq!(read(&mut array, 1, 3, 0).0, Status::Erased);
    assert_eq!(program(&mut array, 1, 3, 0), Status::DONE);
    assert_eq!(read(&mut array, 0, 0, 0), (Status::DONE, page_bytes(0, 0, 0, 0)));
}

/// The child of the test above.
#[test]
#[ignore = "run by the test that limits it"]
fn child_with_a_full_disk() {
    let path = std::env::var("FLASH_FILE").expect("run by its parent");
    let mut array = open(Path::new(&path), &small(Cell::Slc)).unwrap();
    assert_eq!(program(&mut array, 0, 0, 0), Status::DONE);
    let bytes = [1; 1024];
    let at = PageAddress { block: 3, page: 0 };
    let page = ProgramPage { at, data: &[&bytes], spare: &[], metadata: false };
    for _ in 0..2 {
        let error = array.program(1, &[page]).expect_err("beyond the limit");
        assert!(matches!(error, FileError::NoRoom(_)), "{error}");
        assert_eq!(read(&mut array, 1, 3, 0).0, Status::Erased);
    }
    assert_eq!(program(&mut array, 0, 0, 1), Status::DONE, "others are as before");
}
