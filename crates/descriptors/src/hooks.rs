//! Parses the setting `hooks`.
//!
//! Guarantees:
//! - Each hook has a unique name, a domain, and at least one action for each descriptor.
//! - Every error names the field and the fix.

use std::collections::HashSet;

use super::filter_config::FilterConfigError as HookError;
use super::filter_config::error;
use super::{Hook, Hooks};

impl Hooks {
    /// Parses the hooks as JSON.
    ///
    /// # Errors
    /// The first unknown, missing or invalid field.
    pub fn parse(json: &str) -> Result<Self, HookError> {
        let hooks: Self = error::parse_json(json)?;
        let mut names = HashSet::new();
        hooks.0.iter().enumerate().try_for_each(|(at, hook)| check_hook(at, hook, &mut names))?;
        Ok(hooks)
    }
}

fn check_hook<'h>(
    at: usize,
    hook: &'h Hook,
    names: &mut HashSet<&'h str>,
) -> Result<(), HookError> {
    let invalid = |problem: String, fix| Err(HookError::new(format!("[{at}]"), problem, fix));
    if hook.name.is_empty() {
        return invalid("has no `name`".to_owned(), "name the hook");
    }
    if !names.insert(&hook.name) {
        let problem = format!("has the name `{}` of another hook", hook.name);
        return invalid(problem, "give each hook its own name");
    }
    if hook.domain.is_empty() {
        return invalid("has no `domain`".to_owned(), "write the domain of your limits");
    }
    if hook.descriptors.is_empty() || hook.descriptors.iter().any(Vec::is_empty) {
        let problem = "has no `descriptors`, or a descriptor without an action".to_owned();
        return invalid(problem, "add a list of actions for each descriptor");
    }
    Ok(())
}
