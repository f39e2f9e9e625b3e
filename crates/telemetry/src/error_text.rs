//! The text of an error with its causes.

/// Returns the error and all its causes as one text: `a: b: c`.
#[must_use]
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        // Some errors already end with the text of their cause.
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
