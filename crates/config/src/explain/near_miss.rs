//! Finds the rule that is nearest to a descriptor without a rule.
//!
//! Guarantees:
//! - Finds a domain or key in another case, a similar domain or key, and a key with another value.
//! - Finds the same entries in another order, and a descriptor with one entry too many.
//!
//! Not covered:
//! - Domains with more than [`MAX_NODES`] rules, because the cost is linear in their number.

use std::collections::BTreeSet;

use crate::Config;
use crate::descriptor_text::format_entries;
use crate::settings::nearest;
use crate::tree::miss::MissReason;
use crate::tree::{DescriptorTree, NodeId};

/// The largest number of rules in a searched domain.
const MAX_NODES: usize = 100_000;

/// The largest number of entries in a descriptor whose other orders are tried.
const MAX_REORDERED: usize = 5;

/// The largest number of names in a list.
const MAX_LISTED: usize = 3;

/// Returns the rule or domain that is nearest to a descriptor without a rule, as a clause. `None`
/// if the descriptor matches a rule, or nothing is near.
#[must_use]
pub fn nearest_rule(config: &Config, domain: &str, entries: &[(&str, &str)]) -> Option<String> {
    let Some(found) = config.domains.get(domain) else { return nearest_domain(config, domain) };
    let tree = Some(&found.tree).filter(|tree| tree.nodes().count() <= MAX_NODES)?;
    let miss = tree.find_miss(entries)?;
    if matches!(miss.reason, MissReason::NoEntries | MissReason::NoRateLimit) {
        return None;
    }
    let entry = *entries.get(miss.entry)?;
    let end = miss.entry + usize::from(miss.reason == MissReason::OnlyChildren);
    let children = children_of(tree, entries.get(..end)?)?;
    find_other_order(tree, entries).or_else(|| match miss.reason {
        MissReason::NoNode => find_same_key(&children, entry)
            .or_else(|| find_without_one_entry(tree, entries))
            .or_else(|| find_similar_key(&children, entry.0)),
        MissReason::OnlyChildren => Some(format!("the next level has {}", list(&children))),
        _ => find_without_one_entry(tree, entries),
    })
}

fn nearest_domain(config: &Config, domain: &str) -> Option<String> {
    let mut names: Vec<&str> = config.domains.values().map(|domain| &*domain.name).collect();
    names.sort_unstable();
    if let Some(name) = names.iter().find(|name| name.eq_ignore_ascii_case(domain)) {
        return Some(format!("the domain `{name}` differs in case"));
    }
    if let Some(name) = nearest(domain, names.iter().copied()) {
        return Some(format!("the domain `{name}` is similar"));
    }
    let names: Vec<_> = names.into_iter().map(|name| (name, None)).collect();
    (!names.is_empty()).then(|| format!("the files have {}", list(&names)))
}

fn find_other_order(tree: &DescriptorTree, entries: &[(&str, &str)]) -> Option<String> {
    if MAX_REORDERED < entries.len() {
        return None;
    }
    let orders = orders_of(entries);
    let order = orders.iter().find(|order| tree.lookup(order.iter().copied()).is_some())?;
    Some(format!("a rule has the order `{}`", format_entries(order.iter().copied())))
}

/// Returns all orders of a list.
fn orders_of<T: Copy>(items: &[T]) -> Vec<Vec<T>> {
    let Some((first, rest)) = items.split_first() else { return vec![Vec::new()] };
    let orders = orders_of(rest).into_iter();
    let with_first_at = |order: &Vec<T>, at: usize| {
        let mut order = order.clone();
        order.insert(at, *first);
        order
    };
    orders.flat_map(|order| (0..=order.len()).map(move |at| with_first_at(&order, at))).collect()
}

fn find_without_one_entry(tree: &DescriptorTree, entries: &[(&str, &str)]) -> Option<String> {
    entries.iter().enumerate().rev().find_map(|(omitted, &entry)| {
        let others = entries.iter().enumerate().filter(|(index, _)| *index != omitted);
        let found = tree.lookup(others.map(|(_, &other)| other))?;
        Some(format!("`{}` matches without `{}`", found.rule.path, format_entries([entry])))
    })
}

/// The key of a child, and its value if it has one.
type Child<'t> = (&'t str, Option<&'t str>);

/// Returns the children of the node that the last of `entries` matches.
fn children_of<'t>(tree: &'t DescriptorTree, entries: &[(&str, &str)]) -> Option<Vec<Child<'t>>> {
    let level = entries.iter().try_fold(NodeId::ROOT, |level, &(key, value)| {
        tree.child_that_matches(level, key, value)
    })?;
    let children = tree.nodes().filter(|node| tree.node(*node).parent == level);
    Some(children.map(|node| tree.key_and_value(node)).collect())
}

fn find_same_key(children: &[Child<'_>], (key, value): (&str, &str)) -> Option<String> {
    let same_key = children_with_key(children, key);
    let in_any_case =
        |child: &&Child<'_>| child.1.is_none_or(|other| other.eq_ignore_ascii_case(value));
    if let Some(child) = same_key.iter().find(in_any_case) {
        return Some(format!("{} differs in case", child_text(child)));
    }
    (!same_key.is_empty()).then(|| format!("this level has {}", list(&same_key)))
}

fn find_similar_key(children: &[Child<'_>], key: &str) -> Option<String> {
    let keys: BTreeSet<_> = children.iter().map(|child| child.0).collect();
    if let Some(similar) = nearest(key, keys) {
        return Some(format!(
            "this level has the similar key {}",
            list(&children_with_key(children, similar))
        ));
    }
    (!children.is_empty()).then(|| format!("this level has {}", list(children)))
}

/// Returns the children with a key, in any case.
fn children_with_key<'t>(children: &[Child<'t>], key: &str) -> Vec<Child<'t>> {
    children.iter().copied().filter(|child| child.0.eq_ignore_ascii_case(key)).collect()
}

/// Formats the first names of a list: `a`, `b=1`, `c` and 4 more.
fn list(children: &[Child<'_>]) -> String {
    let shown: Vec<_> = children.iter().take(MAX_LISTED).map(child_text).collect();
    match children.len().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn child_text((key, value): &Child<'_>) -> String {
    match value {
        Some(value) => format!("`{}`", format_entries([(*key, *value)])),
        None => format!("`{key}`"),
    }
}
