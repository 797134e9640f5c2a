//! The engine that the SPUs and hosts share, over files in memory, read a little at a time.
#![allow(dead_code, reason = "each test program uses its own part")]

use base_io_host::Geometry;
use columns_host::engine::{Stop, run};
use columns_host::outcome::{self, Counted, Outcome, Row};
pub use columns_host::testing::{Memory, now};
use columns_host::value::Kind;
use columns_host::wire::*;
use columns_host::{Query, Table, Wanted};
use std::sync::Mutex;

#[derive(Clone, Copy)]
pub struct How {
    pub input_bytes: usize,
    pub batch_rows: u32,
    pub reply_bytes: usize,
}

pub const HOWS: [How; 3] = [
    How { input_bytes: 32 << 10, batch_rows: 1024, reply_bytes: 512 << 10 },
    How { input_bytes: 100, batch_rows: 7, reply_bytes: 16 << 10 },
    How { input_bytes: 3000, batch_rows: 64, reply_bytes: 16 << 10 },
];

/// Runs a plan over ranges; the plan goes over the wire.
pub fn ranges(
    file: &[u8],
    (table, query): (&Table, &Query),
    units: &[(columns_host::Unit, u32)],
    how: How,
) -> Result<(Outcome, Counted, Vec<Row>), Stop> {
    let kinds: Vec<Kind> = query.selected(table).iter().map(|it| it.of.as_ref().expect("a type").kind()).collect();
    let (mut outcome, mut counted, mut rows) = (Outcome::new(query, table), Counted::default(), Vec::new());
    for (unit, flags) in units {
        let geometry = Geometry { spus: 1, stripe_bytes: 8192, base: 0 };
        let mut plan = query.plan(table, unit, geometry, &[]).expect("a plan");
        plan.batch_rows = how.batch_rows;
        let plan = Plan::decode(&plan.encode()).expect("it is sound");
        let mut asked = Run { plan: 1, flags: *flags, begin: unit.begin, end: unit.end };
        loop {
            let asked_now = Run::decode(&asked.encode()).expect("it is sound");
            let memory = Memory { file, input_bytes: how.input_bytes, reply: Mutex::new(Vec::new()) };
            let head = now(run(&memory, &plan, &asked_now, how.reply_bytes))?;
            let reply = memory.reply.into_inner().expect("alone");
            assert!(reply.len() <= how.reply_bytes);
            let (told, body) = outcome::open(&reply).expect("a reply");
            assert_eq!(told, head);
            counted.rows += head.rows;
            counted.selected += head.selected;
            outcome
                .add(query, &kinds, body, |row| {
                    rows.push(row);
                    Ok::<(), outcome::ReplyError>(())
                })
                .expect("a body");
            if head.is_done {
                break;
            }
            assert!(head.next >= asked.begin && head.rows > 0, "it goes on");
            (asked.begin, asked.flags) = (head.next, 0);
        }
    }
    let last = outcome.rows(&kinds, |row| {
        rows.push(row);
        Ok::<(), outcome::ReplyError>(())
    });
    last.expect("rows");
    Ok((outcome, counted, rows))
}

pub fn whole(file: &[u8], table: &Table, query: &Query, how: How) -> Result<(Outcome, Counted, Vec<Row>), Stop> {
    let units: Vec<_> = query.units(table).into_iter().map(|unit| (unit.clone(), unit.flags)).collect();
    ranges(file, (table, query), &units, how)
}

pub fn all_rows(table: &Table) -> Query {
    Query::new(table, None, &Wanted::Rows(Vec::new())).expect("a query")
}

/// Numbers that are the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
