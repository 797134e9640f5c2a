//! Columns and their types, and what a schema string says of them.
//!
//! What always holds: each type's values are of one kind, which the SPUs know.

use columns_spu::value::Kind;
use columns_spu::wire::Storage;

/// Units of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Milliseconds.
    Milli,
    /// Microseconds.
    Micro,
    /// Nanoseconds.
    Nano,
}

impl TimeUnit {
    /// How many are in a second.
    pub fn per_second(self) -> i64 {
        match self {
            TimeUnit::Milli => 1000,
            TimeUnit::Micro => 1_000_000,
            TimeUnit::Nano => 1_000_000_000,
        }
    }
}

/// A type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// True and false.
    Bool,
    /// Signed integers of so many bits.
    Int(u32),
    /// Unsigned integers of so many bits.
    Unsigned(u32),
    /// Floating point numbers of so many bits.
    Float(u32),
    /// Text.
    Utf8,
    /// Bytes.
    Binary,
    /// So many bytes.
    Fixed(u32),
    /// Days since 1970.
    Date,
    /// Time since 1970; true: in UTC, else as clocks show it.
    Timestamp(TimeUnit, bool),
}

impl DataType {
    /// What its values are for the SPUs.
    pub fn kind(self) -> Kind {
        match self {
            DataType::Bool => Kind::Bool,
            DataType::Int(_) | DataType::Date | DataType::Timestamp(..) => Kind::Int,
            DataType::Unsigned(_) => Kind::Unsigned,
            DataType::Float(_) => Kind::Float,
            DataType::Utf8 | DataType::Binary | DataType::Fixed(_) => Kind::Bytes,
        }
    }

    /// Bits of an integer.
    pub fn bits(self) -> u32 {
        match self {
            DataType::Int(bits) | DataType::Unsigned(bits) | DataType::Float(bits) => bits,
            DataType::Date => 32,
            DataType::Timestamp(..) => 64,
            DataType::Bool | DataType::Utf8 | DataType::Binary | DataType::Fixed(_) => 8,
        }
    }

    /// How a binary file or CSV stores it.
    pub fn storage(self) -> (Storage, u32) {
        match self {
            DataType::Bool => (Storage::Bool, 1),
            DataType::Fixed(bytes) => (Storage::Fixed, bytes),
            DataType::Utf8 | DataType::Binary => (Storage::Variable, 0),
            other => (Storage::Number, other.bits() / 8),
        }
    }

    /// Of its name in a schema string.
    pub fn parse(name: &str) -> Option<DataType> {
        Some(match name {
            "bool" => DataType::Bool,
            "int8" | "int16" | "int32" | "int64" => DataType::Int(name[3..].parse().ok()?),
            "uint8" | "uint16" | "uint32" | "uint64" => DataType::Unsigned(name[4..].parse().ok()?),
            "float32" => DataType::Float(32),
            "float64" => DataType::Float(64),
            "string" => DataType::Utf8,
            "binary" => DataType::Binary,
            "date" => DataType::Date,
            "timestamp[ms]" => DataType::Timestamp(TimeUnit::Milli, true),
            "timestamp[us]" => DataType::Timestamp(TimeUnit::Micro, true),
            "timestamp[ns]" => DataType::Timestamp(TimeUnit::Nano, true),
            _ => {
                let bytes = name.strip_prefix("bytes[")?.strip_suffix(']')?.parse().ok()?;
                (1..=columns_spu::wire::RECORD_BYTES_MAX).contains(&bytes).then_some(DataType::Fixed(bytes))?
            }
        })
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DataType::Bool => out.write_str("bool"),
            DataType::Int(bits) => write!(out, "int{bits}"),
            DataType::Unsigned(bits) => write!(out, "uint{bits}"),
            DataType::Float(bits) => write!(out, "float{bits}"),
            DataType::Utf8 => out.write_str("string"),
            DataType::Binary => out.write_str("binary"),
            DataType::Fixed(bytes) => write!(out, "bytes[{bytes}]"),
            DataType::Date => out.write_str("date"),
            DataType::Timestamp(TimeUnit::Milli, _) => out.write_str("timestamp[ms]"),
            DataType::Timestamp(TimeUnit::Micro, _) => out.write_str("timestamp[us]"),
            DataType::Timestamp(TimeUnit::Nano, _) => out.write_str("timestamp[ns]"),
        }
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Type, or why it is not supported.
    pub of: Result<DataType, String>,
    /// Binary: bytes of it are the other way round.
    pub big_endian: bool,
    /// It may be null.
    pub is_optional: bool,
}

/// A schema string: `name:type` with commas between; `_:bytes[N]` is skipped, `>` before a type: most significant byte first.
pub fn parse_schema(text: &str) -> Result<Vec<Field>, String> {
    let mut fields: Vec<Field> = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (name, of) = part.rsplit_once(':').ok_or_else(|| format!("the schema's {part:?} is not NAME:TYPE"))?;
        let (name, of) = (name.trim(), of.trim());
        let big_endian = of.starts_with('>');
        let of = DataType::parse(of.strip_prefix('>').unwrap_or(of)).ok_or_else(|| {
            format!(
                "the schema's type {of:?} is none: bool, int8 to int64, uint8 to uint64, float32, float64, date, timestamp[ms], timestamp[us], \
                 timestamp[ns], bytes[N], string or binary"
            )
        })?;
        if name.is_empty() || (name != "_" && fields.iter().any(|field| field.name == name)) {
            return Err(format!("the schema names the column {name:?} twice, or not at all"));
        }
        fields.push(Field { name: name.to_owned(), of: Ok(of), big_endian, is_optional: false });
    }
    Ok(fields)
}

/// Days from 1970-01-01 to a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March, so that the leap day comes last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date of a number of days since 1970.
pub fn date_text(days: i64) -> String {
    let from = days + 719_468;
    let (era, of_era) = (from.div_euclid(146_097), from.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A timestamp as text.
pub fn time_text(value: i64, unit: TimeUnit, is_utc: bool) -> String {
    let per_second = unit.per_second();
    let (seconds, part) = (value.div_euclid(per_second), value.rem_euclid(per_second));
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let digits = per_second.ilog10() as usize;
    let mut text = format!("{}T{:02}:{:02}:{:02}", date_text(day), second / 3600, second / 60 % 60, second % 60);
    if part != 0 {
        text += &format!(".{part:0digits$}");
    }
    if is_utc {
        text.push('Z');
    }
    text
}

/// The number of days of a date `YYYY-MM-DD`.
pub fn parse_date(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut number = |digits: usize| {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        part.parse::<i64>().ok()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let days = ((1..=12).contains(&month) && day >= 1).then(|| days(year, month, day))?;
    // A day that the month does not have comes back as another.
    (date_text(days) == text).then_some(days)
}

/// A timestamp `YYYY-MM-DD[(T| )HH:MM:SS[.fraction]][Z]` in units; `None` also where a unit is too coarse for it.
pub fn parse_time(text: &str, unit: TimeUnit) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.find(['T', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mut seconds = parse_date(date)?.checked_mul(86_400)?;
    let mut part = 0;
    if let Some(time) = time {
        let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
        let numbers: Vec<i64> = clock
            .split(':')
            .map(|number| number.parse().ok().filter(|_| number.len() == 2 && !number.starts_with(['+', '-'])))
            .collect::<Option<_>>()?;
        let [hour @ 0..24, minute @ 0..60, second @ 0..60] = numbers[..] else { return None };
        seconds = seconds.checked_add(hour * 3600 + minute * 60 + second)?;
        let digits = unit.per_second().ilog10() as usize;
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > digits {
            return None;
        }
        if !fraction.is_empty() {
            part = fraction.parse::<i64>().ok()? * 10i64.pow((digits - fraction.len()) as u32);
        }
    }
    seconds.checked_mul(unit.per_second())?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_there_and_back() {
        for (text, day) in [("1970-01-01", 0), ("1969-12-31", -1), ("2000-02-29", 11_016), ("2024-03-01", 19_783)] {
            assert_eq!(parse_date(text), Some(day), "{text}");
            assert_eq!(date_text(day), text);
        }
        for wrong in ["2023-02-29", "2023-13-01", "2023-1-01", "23-01-01", "+023-01-01", "2023-01-00", "", "2023"] {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
        // Years 0000 to 9999.
        for day in (-719_000..2_932_000).step_by(997) {
            assert_eq!(parse_date(&date_text(day)), Some(day));
        }
        assert_eq!(parse_time("1970-01-02T00:00:01.5Z", TimeUnit::Milli), Some(86_401_500));
        assert_eq!(parse_time("1970-01-01 00:00:00.000001", TimeUnit::Micro), Some(1));
        assert_eq!(parse_time("1970-01-01 00:00:00.000001", TimeUnit::Milli), None);
        assert_eq!(parse_time("1970-01-01 24:00:00", TimeUnit::Milli), None);
        assert_eq!(time_text(86_401_500, TimeUnit::Milli, true), "1970-01-02T00:00:01.500Z");
        assert_eq!(time_text(-1, TimeUnit::Nano, false), "1969-12-31T23:59:59.999999999");
    }

    #[test]
    fn a_schema_string_says_what_is_wrong_with_it() {
        let fields = parse_schema("id:uint32, price:>float64,_:bytes[4]").expect("a schema");
        assert_eq!(fields[1].of, Ok(DataType::Float(64)));
        assert!(fields[1].big_endian && !fields[0].big_endian);
        for wrong in ["id", "id:int65", "id:int32,id:int32", ":int32", "a:bytes[0]", "a:bytes[99999999]", ""] {
            assert!(parse_schema(wrong).is_err(), "{wrong}");
        }
    }
}
