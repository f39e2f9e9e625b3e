//! The fields `from` and `by`: the column of a table with the number of a limit.
//!
//! Guarantees:
//! - The entry with the id has the value of the request, not a shared text.
//!
//! Not covered:
//! - Whether the service has the table (see `serve`).

use super::domain::DomainReader;
use super::findings::{FileFindings, FileSpan};
use super::overshoot::{self, OvershootAmount};
use crate::diagnostic::{Code, Spanned};
use crate::raw;
use crate::table_column::TableColumn;
use crate::tree::NodeId;

/// The two fields of a block.
pub(super) struct FromFields<'r> {
    pub(super) from: Option<&'r Spanned<String>>,
    pub(super) by: Option<&'r Spanned<String>>,
}

impl DomainReader<'_, '_, '_> {
    /// Returns the column that a rate limit reads.
    pub(super) fn rate_column(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &raw::RateLimit,
    ) -> Option<Box<TableColumn>> {
        let fields = FromFields { from: raw.from.as_ref(), by: raw.by.as_ref() };
        let own = raw.max_overshoot.as_ref().and_then(|word| overshoot::parse(&word.value));
        let amount = own.or_else(|| self.defaults.overshoot.ok().flatten());
        let overshoot_part = match amount {
            Some(OvershootAmount::BasisPoints(part)) => Some(part),
            Some(OvershootAmount::Hits(_)) | None => None,
        };
        let column = self.table_column(file, node, &fields)?;
        Some(Box::new(TableColumn { overshoot_part, ..*column }))
    }

    /// Returns the column that a limit at `node` reads; `None` if it reads none, or if the fields are
    /// invalid.
    pub(super) fn table_column(
        &mut self,
        file: usize,
        node: NodeId,
        fields: &FromFields<'_>,
    ) -> Option<Box<TableColumn>> {
        let at = |word: &Spanned<String>| FileSpan { file, span: word.span };
        let Some(from) = fields.from else {
            let by = fields.by?;
            let fix = "add `from: TABLE.COLUMN`, or remove `by`";
            self.findings.add(Code::Contradiction, at(by), "`by` needs `from`".to_owned(), fix);
            return None;
        };
        let column = parse_column("from", from, at(from), self.findings)?;
        let levels = self.builder.levels(node);
        let entry = match fields.by {
            None => levels.len().checked_sub(1),
            Some(by) => levels.iter().position(|level| *level.key == *by.value),
        };
        let word = fields.by.unwrap_or(from);
        let Some((entry, level)) = entry.and_then(|entry| Some((entry, levels.get(entry)?))) else {
            let keys: Vec<_> = levels.iter().map(|level| &*level.key).collect();
            let message = format!("`by: {}` is not a key of this rule", word.value);
            let fix = format!("use one of: {}", keys.join(", "));
            self.findings.add(Code::BadTableColumn, at(word), message, fix);
            return None;
        };
        if level.has_shared_values {
            let message =
                format!("the values of `{}` share counters, so they are no ids", level.key);
            let fix = "name another key in `by`, or remove `share_threshold` or `network` there";
            self.findings.add(Code::BadTableColumn, at(word), message, fix);
            return None;
        }
        Some(Box::new(TableColumn { entry, ..column }))
    }
}

/// Returns the column that the field `name` names.
pub(super) fn parse_column(
    name: &str,
    word: &Spanned<String>,
    at: FileSpan,
    findings: &mut FileFindings<'_>,
) -> Option<TableColumn> {
    let Some((table, column)) = TableColumn::parse_names(&word.value) else {
        let message = format!("`{name}: {}` is not a table and its column", word.value);
        let fix = format!("write `{name}: TABLE.COLUMN`, such as `{name}: customers.api`");
        findings.add(Code::BadTableColumn, at, message, fix);
        return None;
    };
    let (table, column) = (table.into(), column.into());
    Some(TableColumn { table, column, entry: 0, overshoot_part: None, slot: 0 })
}
