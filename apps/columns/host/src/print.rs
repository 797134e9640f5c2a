//! Values as text: CSV, and JSON by lines.
//!
//! What always holds: text that is no UTF-8 is hexadecimal digits in JSON, and as it is in CSV; numbers are written so that they are read as they were.

use std::io::{self, Write};

use columns_spu::value::Scalar;

use crate::outcome::Row;
use crate::schema::{DataType, Field, date_text, time_text};

/// A value as text; `None`: null.
pub fn text(of: DataType, value: Option<&Scalar>) -> Option<Vec<u8>> {
    Some(match (of, value?) {
        (DataType::Date, Scalar::Int(days)) => date_text(*days).into_bytes(),
        (DataType::Timestamp(unit, is_utc), Scalar::Int(value)) => time_text(*value, unit, is_utc).into_bytes(),
        (_, Scalar::Bool(value)) => value.to_string().into_bytes(),
        (_, Scalar::Int(value)) => value.to_string().into_bytes(),
        (_, Scalar::Unsigned(value)) => value.to_string().into_bytes(),
        (DataType::Float(32), Scalar::Float(value)) => (*value as f32).to_string().into_bytes(),
        (_, Scalar::Float(value)) => value.to_string().into_bytes(),
        (_, Scalar::Bytes(value)) => value.clone(),
    })
}

/// A value in JSON.
pub fn json(of: DataType, value: Option<&Scalar>) -> String {
    match (of, value) {
        (_, None) => "null".to_owned(),
        // JSON has no such numbers.
        (_, Some(Scalar::Float(value))) if !value.is_finite() => json_text(&value.to_string()),
        (DataType::Date | DataType::Timestamp(..), _) | (_, Some(Scalar::Bytes(_))) => {
            let bytes = text(of, value).unwrap_or_default();
            match String::from_utf8(bytes) {
                Ok(text) => json_text(&text),
                Err(error) => {
                    let digits: String = error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                    json_text(&digits)
                }
            }
        }
        _ => String::from_utf8_lossy(&text(of, value).unwrap_or_default()).into_owned(),
    }
}

/// Text in JSON.
pub fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for part in text.chars() {
        match part {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            part if part < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(part))),
            part => out.push(part),
        }
    }
    out.push('"');
    out
}

fn put_csv(out: &mut dyn Write, text: &[u8]) -> io::Result<()> {
    if !text.iter().any(|byte| matches!(byte, b'"' | b',' | b'\n' | b'\r')) {
        return out.write_all(text);
    }
    out.write_all(b"\"")?;
    for byte in text {
        out.write_all(if *byte == b'"' { b"\"\"" } else { std::slice::from_ref(byte) })?;
    }
    out.write_all(b"\"")
}

/// A CSV file's header.
pub fn csv_header(out: &mut dyn Write, fields: &[&Field]) -> io::Result<()> {
    for (number, field) in fields.iter().enumerate() {
        if number > 0 {
            out.write_all(b",")?;
        }
        put_csv(out, field.name.as_bytes())?;
    }
    out.write_all(b"\n")
}

/// A row of CSV.
pub fn csv_row(out: &mut dyn Write, fields: &[&Field], row: &Row) -> io::Result<()> {
    for (number, (field, value)) in fields.iter().zip(row).enumerate() {
        if number > 0 {
            out.write_all(b",")?;
        }
        let of = field.of.clone().unwrap_or(DataType::Binary);
        match text(of, value.as_ref()) {
            // Text that is empty is not null.
            Some(text) if text.is_empty() => out.write_all(b"\"\"")?,
            Some(text) => put_csv(out, &text)?,
            None => {}
        }
    }
    out.write_all(b"\n")
}

/// A row of JSON, an object on a line.
pub fn json_row(out: &mut dyn Write, fields: &[&Field], row: &Row) -> io::Result<()> {
    out.write_all(b"{")?;
    for (number, (field, value)) in fields.iter().zip(row).enumerate() {
        if number > 0 {
            out.write_all(b",")?;
        }
        let of = field.of.clone().unwrap_or(DataType::Binary);
        write!(out, "{}:{}", json_text(&field.name), json(of, value.as_ref()))?;
    }
    out.write_all(b"}\n")
}
