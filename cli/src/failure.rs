//! How a command fails: with one sentence that says what was wrong and what to do. `main` prints it on standard error, as
//! one line, and ends with status 1.

use std::fmt;

/// One sentence; line ends in it are flattened, so that scripts can rely on one line.
#[derive(Debug)]
pub struct Failure(String);

/// What commands return.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// From a sentence.
    pub fn new(sentence: impl fmt::Display) -> Self {
        let text = sentence.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Failure(lines.join("; "))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts the circumstances in front of an error.
pub trait Context<T> {
    /// `circumstance: error`.
    fn context(self, circumstance: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, circumstance: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure::new(format_args!("{}: {error}", circumstance())))
    }
}

/// Ends the function with a [`Failure`].
macro_rules! fail {
    ($($argument:tt)*) => { return Err($crate::failure::Failure::new(format_args!($($argument)*))) };
}
pub(crate) use fail;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::new("first\n  second\n\nthird\n").to_string(), "first; second; third");
        let error: Result<(), _> = Err("no such file").context(|| "cannot read x".to_owned());
        assert_eq!(error.unwrap_err().to_string(), "cannot read x: no such file");
    }
}
