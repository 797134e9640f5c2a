//! fio's iolog, versions 2 and 3: a first line that names the version, then a line for each action.
//!
//! Version 2: `FILE ACTION [OFFSET LENGTH]`, with `wait` in microseconds; version 3 has the time in microseconds since the job began
//! before them. All files of a trace share the namespace.

use super::{Action, LineParser, Meaning, Wrong, number, short};

#[derive(Default)]
pub struct Fio {
    version: u8,
    clock_ns: u64,
    first_ns: Option<u64>,
}

const MICROSECONDS: &str = "a number of microseconds";
const BYTES: &str = "a number of bytes";

impl LineParser for Fio {
    fn line(&mut self, line: &str) -> Result<Meaning, Wrong> {
        if self.version == 0 {
            self.version = match line {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                other => {
                    let problem = format!(
                        "\"{}\" found, expected \"fio version 2 iolog\" or \"fio version 3 iolog\"",
                        short(other)
                    );
                    return Err(Wrong("version", problem));
                }
            };
            return Ok(Meaning::Nothing);
        }
        if line.is_empty() {
            return Ok(Meaning::Nothing);
        }
        let mut fields = line.split_ascii_whitespace();
        if self.version == 3 {
            let at_us = number("timestamp", fields.next(), MICROSECONDS)?;
            self.clock_ns = at_us.saturating_mul(1000);
        }
        let _file = fields.next();
        let action = match fields.next() {
            None => return Err(Wrong("action", "it is missing, expected a file's name and an action".to_owned())),
            Some("add" | "open" | "close") => return Ok(Meaning::Nothing),
            Some("wait") if self.version == 2 => {
                let wait_us = number("wait", fields.next(), MICROSECONDS)?;
                self.clock_ns = self.clock_ns.saturating_add(wait_us.saturating_mul(1000));
                return Ok(Meaning::Nothing);
            }
            Some("read") => Action::Read,
            Some("write") => Action::Write,
            Some("trim") => Action::Deallocate,
            Some("sync" | "datasync" | "sync_file_range") => Action::Flush,
            Some(other) => {
                let problem = format!(
                    "\"{}\" found, expected add, open, close, read, write, trim, sync or datasync, or wait in version 2",
                    short(other)
                );
                return Err(Wrong("action", problem));
            }
        };
        let (mut offset, mut bytes) = (0, 0);
        if action != Action::Flush {
            offset = number("offset", fields.next(), BYTES)?;
            bytes = number("length", fields.next(), BYTES)?;
            if let Some(more) = fields.next() {
                return Err(Wrong("line", format!("\"{}\" found behind the length, expected its end", short(more))));
            }
        }
        let first_ns = *self.first_ns.get_or_insert(self.clock_ns);
        Ok(Meaning::Request(self.clock_ns.saturating_sub(first_ns), action, offset, bytes))
    }

    fn end(&self) -> Result<(), Wrong> {
        match self.version {
            0 => Err(Wrong("version", "the file is empty, expected \"fio version 2 iolog\" or 3".to_owned())),
            _ => Ok(()),
        }
    }
}
