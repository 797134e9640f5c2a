//! Plain tables for people: columns as wide as their widest cell, numbers to the right.

use std::fmt::Write;

/// A table being filled.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With a line of headings.
    pub fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// One more line.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// The text, each line with its end; cells that begin with a digit stand to the right, the first column to the left.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let numeric: Vec<bool> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().skip(1).filter_map(|row| row.get(column));
                column > 0 && cells.clone().next().is_some() && cells.clone().all(|cell| is_number(cell))
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let width = widths[column];
                // Writing to a string cannot fail.
                let _ = if numeric[column] {
                    write!(line, "{gap}{cell:>width$}")
                } else {
                    write!(line, "{gap}{cell:<width$}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// True for a number, with or without a unit behind it, and for "-" (none).
fn is_number(cell: &str) -> bool {
    let mut words = cell.split(' ');
    let number = words.next().is_some_and(|word| word == "-" || word.replace(',', "").parse::<f64>().is_ok());
    let unit = words.next().is_none_or(|word| word.chars().all(char::is_alphabetic));
    number && unit && words.next().is_none()
}

/// A number with thin groups: 1234567 becomes `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nanoseconds as microseconds with one decimal.
pub fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1}", nanoseconds as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let mut table = Table::new(&["name", "count"]);
        table.row(["a".into(), "7".into()]);
        table.row(["long".into(), "1,200".into()]);
        assert_eq!(table.render(), "name  count\na         7\nlong  1,200\n");
    }

    #[test]
    fn groups_of_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
