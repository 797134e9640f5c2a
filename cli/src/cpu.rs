//! Processor time of this process and of others on this machine, from /proc.

use std::sync::OnceLock;
use std::time::Duration;

/// Ticks a second where the kernel does not tell: all of Linux' common machines have 100.
const TICKS_PER_SECOND_DEFAULT: u64 = 100;
/// Entry of the auxiliary vector with the ticks a second (getauxval(3), AT_CLKTCK).
const AT_CLKTCK: u64 = 17;

/// Processor time that this process has taken, all threads.
pub fn of_self() -> Duration {
    of_process(std::process::id()).unwrap_or_default()
}

/// Processor time that process `pid` has taken, user and system, all threads; `None` where there is no such process here
/// (proc(5), /proc/PID/stat, fields 14 and 15, in clock ticks).
pub fn of_process(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks_of(&text)?;
    Some(Duration::from_nanos((u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_second())) as u64))
}

fn ticks_of(stat: &str) -> Option<u64> {
    // The second field is the command's name in parentheses and may hold anything, parentheses too.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn ticks_per_second() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let vector = std::fs::read("/proc/self/auxv").unwrap_or_default();
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        let entry = vector.chunks_exact(16).find(|entry| word(&entry[..8]) == AT_CLKTCK);
        entry.map(|entry| word(&entry[8..])).filter(|ticks| *ticks > 0).unwrap_or(TICKS_PER_SECOND_DEFAULT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_right_fields() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 17 25 0 0 20 0 1 0 100 0 0";
        assert_eq!(ticks_of(stat), Some(42));
        assert_eq!(ticks_of("nonsense"), None);
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX), None);
        assert!(ticks_per_second() >= 1);
    }
}
