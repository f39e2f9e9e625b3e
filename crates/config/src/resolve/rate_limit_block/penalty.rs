//! The block `penalty` of a rate limit.

use super::RateLimitReader;
use crate::diagnostic::{Code, Spanned};
use crate::kernel::units::Nanos;
use crate::penalty::{DEFAULT_BAN_STATUS, PENALTY_TIMES, Penalty, STRIKES};
use crate::resolve::duration;
use crate::resolve::keyword_reader::InvalidSetting;
use crate::resolve::status::read_status;

const FIX: &str = "write for example `penalty: {after: 100, within: 1m, for: 10m}`";

impl RateLimitReader<'_, '_, '_> {
    pub(super) fn penalty(&mut self) -> Result<Option<Box<Penalty>>, InvalidSetting> {
        let Some(raw) = &self.raw.penalty else { return Ok(None) };
        let (Some(after), Some(within), Some(length)) = (&raw.after, &raw.within, &raw.length)
        else {
            if !raw.is_incomplete {
                let message = "`penalty` needs `after`, `within` and `for`".to_owned();
                self.error(Code::OutOfRange, raw.span, message, FIX);
            }
            return Err(InvalidSetting);
        };
        let after = self.strikes(after);
        let (within, length) =
            (self.penalty_time("within", within), self.penalty_time("for", length));
        let status = match &raw.status {
            None => Some(DEFAULT_BAN_STATUS),
            Some(status) => read_status(status, self.file, self.findings),
        };
        let (after, within) = (after.ok_or(InvalidSetting)?, within.ok_or(InvalidSetting)?);
        let (length, status) = (length.ok_or(InvalidSetting)?, status.ok_or(InvalidSetting)?);
        match Penalty::new((after, within), length, status) {
            Ok(penalty) if !raw.is_incomplete => Ok(Some(Box::new(penalty))),
            _ => Err(InvalidSetting),
        }
    }

    fn strikes(&mut self, after: &Spanned<u32>) -> Option<u32> {
        let is_valid = STRIKES.contains(&after.value);
        if !is_valid {
            let message = format!("`after: {}` is out of range", after.value);
            let fix = format!("use {} to {}", STRIKES.start(), STRIKES.end());
            self.error(Code::OutOfRange, after.span, message, &fix);
        }
        is_valid.then_some(after.value)
    }

    fn penalty_time(&mut self, word: &str, text: &Spanned<String>) -> Option<Nanos> {
        let found = match duration::parse(&text.value) {
            Ok(found) if PENALTY_TIMES.contains(&found) => return Some(found),
            Ok(_) => (format!("`{word}: {}` is out of range", text.value), "use 1s to 30d"),
            Err(wrong) => wrong.message_and_fix(word, &text.value, FIX),
        };
        self.error(Code::BadDuration, text.span, found.0, found.1);
        None
    }
}
