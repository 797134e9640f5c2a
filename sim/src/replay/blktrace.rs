//! blkparse's text in its default format: `DEVICE CPU SEQUENCE SECONDS.NANOSECONDS PID ACTION RWBS SECTOR + SECTORS [PROCESS]`.
//!
//! Requests are replayed where they were queued (action Q); the other actions tell what became of them and are passed over. The
//! statistics at the end of the text end the trace.

use super::{Action, LineParser, Meaning, Wrong, number, short};

const SECTOR_BYTES: u64 = 512;

#[derive(Default)]
pub struct Blktrace {
    first_ns: Option<u64>,
}

fn time(text: &str) -> Result<u64, Wrong> {
    let wrong = || Wrong("time", format!("\"{}\" found, expected seconds with nine decimals", short(text)));
    let (seconds, decimals) = text.split_once('.').ok_or_else(wrong)?;
    if decimals.is_empty() || decimals.len() > 9 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let scale = 10_u64.pow(9 - decimals.len() as u32);
    let nanoseconds: u64 = decimals.parse().map_err(|_| wrong())?;
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanoseconds * scale)).ok_or_else(wrong)
}

impl LineParser for Blktrace {
    fn line(&mut self, line: &str) -> Result<Meaning, Wrong> {
        if line.is_empty() {
            return Ok(Meaning::Nothing);
        }
        let mut fields = line.split_ascii_whitespace();
        let device = fields.next().unwrap_or_default();
        // "CPU0 (8,0):", "Total (8,0):", "Events (8,0): ..." begin the statistics.
        if device.starts_with("CPU") || matches!(device, "Total" | "Events" | "Throughput") {
            return Ok(Meaning::End);
        }
        let is_device = device
            .split_once(',')
            .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok());
        if !is_device {
            return Err(Wrong("device", format!("\"{}\" found, expected MAJOR,MINOR", short(device))));
        }
        number("cpu", fields.next(), "a processor's number")?;
        number("sequence", fields.next(), "a sequence number")?;
        let at_ns = time(fields.next().unwrap_or_default())?;
        number("pid", fields.next(), "a process' number")?;
        match fields.next() {
            Some("Q") => {}
            Some(_) => return Ok(Meaning::Nothing),
            None => return Err(Wrong("action", "it is missing, expected a letter such as Q".to_owned())),
        }
        let Some(rwbs) = fields.next() else {
            return Err(Wrong("rwbs", "it is missing, expected letters such as R, W or WS".to_owned()));
        };
        let first_ns = *self.first_ns.get_or_insert(at_ns);
        let at_ns = at_ns.saturating_sub(first_ns);
        let action = if rwbs.contains('D') {
            Action::Deallocate
        } else if rwbs.contains('R') {
            Action::Read
        } else if rwbs.contains('W') {
            Action::Write
        } else if rwbs.contains('F') {
            return Ok(Meaning::Request(at_ns, Action::Flush, 0, 0));
        } else if rwbs.contains('N') {
            // Neither data nor flush (a driver's own request).
            return Ok(Meaning::Nothing);
        } else {
            return Err(Wrong("rwbs", format!("\"{}\" found, expected letters with R, W, D, F or N", short(rwbs))));
        };
        let sector = fields.next();
        // A flush that carries no data has no range ("FWS [process]").
        if rwbs.contains('F') && sector.is_none_or(|text| text.starts_with('[')) {
            return Ok(Meaning::Request(at_ns, Action::Flush, 0, 0));
        }
        let sector = number("sector", sector, "a sector's number")?;
        match fields.next() {
            Some("+") => {}
            other => {
                let found = short(other.unwrap_or("nothing"));
                return Err(Wrong("sectors", format!("\"{found}\" found behind the sector, expected +")));
            }
        }
        let sectors = number("sectors", fields.next(), "a number of sectors")?;
        let in_bytes = |field, sectors: u64| {
            sectors
                .checked_mul(SECTOR_BYTES)
                .ok_or_else(|| Wrong(field, format!("{sectors} sectors are past 2^64 bytes")))
        };
        Ok(Meaning::Request(at_ns, action, in_bytes("sector", sector)?, in_bytes("sectors", sectors)?))
    }
}
