//! An input for the YAML parser that accepts a comment without a blank before its `#`.
//!
//! Guarantees:
//! - A `#` directly after a bracket, quote or block indicator starts a comment (YAML 1.1).
//! - Everything else, such as positions, is as in the parser's own `StrInput`.
//! - Parsing is as fast as with `StrInput`.
//!
//! Not covered:
//! - The decision whether a `#` belongs to a text, which the parser makes.

use granit_parser::input::{SkipTabs, WhitespaceResult};
use granit_parser::{BorrowedInput, Input, StrInput};

pub(super) struct LenientInput<'s>(StrInput<'s>);

impl<'s> LenientInput<'s> {
    pub(super) fn new(text: &'s str) -> Self {
        Self(StrInput::new(text))
    }
}

/// Forwards methods to `StrInput`, because its methods are faster than the default methods of the
/// trait [`Input`].
macro_rules! as_beneath {
    (
        looks { $($look:ident($($a:ident: $of:ty),*) -> $seen:ty;)* }
        moves { $($step:ident($($b:ident: $by:ty),*) -> $done:ty;)* }
    ) => {
        $(#[inline] fn $look(&self, $($a: $of),*) -> $seen { self.0.$look($($a),*) })*
        $(#[inline] fn $step(&mut self, $($b: $by),*) -> $done { self.0.$step($($b),*) })*
    };
}

impl Input for LenientInput<'_> {
    /// Reports that blanks were skipped if the next character is `#`, because the parser requires a
    /// blank before a comment.
    #[inline]
    fn skip_ws_to_eol_blanks(&mut self, tabs: SkipTabs) -> (usize, WhitespaceResult) {
        let (skipped, blanks) = self.0.skip_ws_to_eol_blanks(tabs);
        let has_separator = blanks.has_valid_yaml_ws() || self.0.peek() == '#';
        (skipped, WhitespaceResult::new(blanks.found_tabs(), has_separator))
    }

    as_beneath! {
        looks {
            buflen() -> usize;
            bufmaxlen() -> usize;
            peek() -> char;
            peek_nth(n: usize) -> char;
            byte_offset() -> Option<usize>;
            slice_bytes(start: usize, end: usize) -> Option<&str>;
            may_contain_comments() -> bool;
            next_2_are(first: char, second: char) -> bool;
            next_3_are(first: char, second: char, third: char) -> bool;
            next_is_document_indicator() -> bool;
            next_is_document_start() -> bool;
            next_is_document_end() -> bool;
            next_is_blank_or_break() -> bool;
            next_is_blank_or_breakz() -> bool;
            next_is_blank() -> bool;
            next_is_break() -> bool;
            next_is_breakz() -> bool;
            next_is_z() -> bool;
            next_is_flow() -> bool;
            next_is_digit() -> bool;
            next_is_alpha() -> bool;
        }
        moves {
            lookahead(count: usize) -> ();
            raw_read_ch() -> char;
            raw_read_non_breakz_ch() -> Option<char>;
            skip() -> ();
            skip_n(count: usize) -> ();
            skip_while_non_breakz() -> usize;
            skip_while_blank() -> usize;
            fetch_while_is_alpha(out: &mut String) -> usize;
            fetch_while_is_yaml_non_space(out: &mut String) -> usize;
            fetch_block_scalar_line(out: &mut String) -> usize;
            take_quoted_scalar_ascii_chunk(single: bool) -> &str;
            take_quoted_scalar_chunk(single: bool) -> (&str, usize);
            fetch_plain_scalar_chunk(out: &mut String, count: usize, in_brackets: bool) -> (bool, usize);
            skip_plain_scalar_chunk(count: usize, in_brackets: bool) -> (bool, usize);
        }
    }
}

impl<'s> BorrowedInput<'s> for LenientInput<'s> {
    #[inline]
    fn slice_borrowed(&self, start: usize, end: usize) -> Option<&'s str> {
        self.0.slice_borrowed(start, end)
    }
}
