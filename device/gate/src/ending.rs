//! How a request ends: its app answers it once, and whoever asked is told when what is pending for it has ended.
//!
//! Invariant: an answer is handed out once, and with no operation pending.

/// What there is of a request's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    /// Operations of the request that are pending.
    operations: u32,
    /// Status and result, from when the app gave them.
    answer: Option<(u32, u32)>,
}

impl Ending {
    /// True where the app has answered.
    #[inline(always)]
    pub fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    /// An operation is pending for the request from now on.
    #[inline(always)]
    pub fn begins(&mut self) {
        self.operations += 1;
    }

    /// One has ended: the answer, where it was the last that this waited for.
    #[inline(always)]
    pub fn ended(&mut self) -> Option<(u32, u32)> {
        self.operations = self.operations.saturating_sub(1);
        self.answer.filter(|_| self.operations == 0)
    }

    /// The app has answered: the answer, where nothing is pending. One that came before stands.
    #[inline(always)]
    pub fn answer(&mut self, status: u32, result: u32) -> Option<(u32, u32)> {
        if self.answer.is_some() {
            return None;
        }
        self.answer = Some((status, result));
        self.answer.filter(|_| self.operations == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_what_is_pending_and_the_first_stands() {
        let mut ending = Ending::default();
        assert_eq!((ending.answer(3, 4), ending.answer(3, 4)), (Some((3, 4)), None));
        let mut ending = Ending::default();
        (ending.begins(), ending.begins());
        assert_eq!((ending.answer(1, 2), ending.answer(5, 6), ending.is_answered()), (None, None, true));
        assert_eq!((ending.ended(), ending.ended()), (None, Some((1, 2))));
    }
}
