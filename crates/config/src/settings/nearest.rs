//! Finds the known word that resembles a misspelled one, for suggested fixes.
//!
//! Guarantees:
//! - The number of edits to a suggested word is at most a third of its length.
//! - The cost of comparing two words is at most proportional to the product of their lengths.

/// Returns the known word with the fewest edits from `word`, or `None` if all differ too much.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, known) = fewest_edits(word, known)?;
    (edits <= (known.len() / 3).max(1)).then_some(known)
}

/// Returns the known word with the fewest edits from `word`, or `None` if these are more than
/// `most_edits`.
#[must_use]
pub fn nearest_within<'a>(
    word: &str,
    most_edits: usize,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    fewest_edits(word, known).filter(|(edits, _)| *edits <= most_edits).map(|(_, known)| known)
}

fn fewest_edits<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    let candidates = known.into_iter().map(|known| (edit_distance(word, known), known));
    candidates.min_by_key(|(edits, _)| *edits)
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbors that turn `a`
/// into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let mut cost = (last[j] + usize::from(from != to)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                cost = cost.min(before_last[j - 1] + 1);
            }
            row.push(cost);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{edit_distance, nearest};

    #[test]
    fn insertion_deletion_replacement_and_swap_cost_one_edit() {
        assert_eq!(edit_distance("port", "port"), 0);
        assert_eq!(edit_distance("prt", "port"), 1);
        assert_eq!(edit_distance("poort", "port"), 1);
        assert_eq!(edit_distance("pert", "port"), 1);
        assert_eq!(edit_distance("prot", "port"), 1);
        assert_eq!(edit_distance("", "port"), 4);
    }

    #[test]
    fn an_unfamiliar_name_gets_no_suggestion() {
        assert_eq!(nearest("grpc_prot", ["http_port", "grpc_port"]), Some("grpc_port"));
        assert_eq!(nearest("colour", ["http_port", "grpc_port"]), None);
    }
}
