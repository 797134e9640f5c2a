//! CSV of the MSR Cambridge traces: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, times in units of 100 ns.
//! All disks of a file share the namespace; the response times are not used.

use super::{Action, LineParser, Meaning, Wrong, number, short};

#[derive(Default)]
pub struct Msr {
    first: Option<u64>,
    begun: bool,
}

impl LineParser for Msr {
    fn line(&mut self, line: &str) -> Result<Meaning, Wrong> {
        let first_line = !std::mem::replace(&mut self.begun, true);
        if line.is_empty() || (first_line && line.starts_with("Timestamp,")) {
            return Ok(Meaning::Nothing);
        }
        let mut fields = line.split(',').map(str::trim);
        let timestamp = number("Timestamp", fields.next(), "a number of units of 100 ns")?;
        if fields.next().is_none() {
            return Err(Wrong("Hostname", "it is missing, expected a name".to_owned()));
        }
        number("DiskNumber", fields.next(), "a number")?;
        let action = match fields.next() {
            Some(kind) if kind.eq_ignore_ascii_case("read") => Action::Read,
            Some(kind) if kind.eq_ignore_ascii_case("write") => Action::Write,
            other => {
                let found = short(other.unwrap_or("nothing"));
                return Err(Wrong("Type", format!("\"{found}\" found, expected Read or Write")));
            }
        };
        let offset = number("Offset", fields.next(), "a number of bytes")?;
        let bytes = number("Size", fields.next(), "a number of bytes")?;
        number("ResponseTime", fields.next(), "a number of units of 100 ns")?;
        if let Some(more) = fields.next() {
            return Err(Wrong(
                "line",
                format!("\"{}\" found behind the response time, expected 7 fields", short(more)),
            ));
        }
        let first = *self.first.get_or_insert(timestamp);
        Ok(Meaning::Request(timestamp.saturating_sub(first).saturating_mul(100), action, offset, bytes))
    }
}
