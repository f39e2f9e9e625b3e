//! One flag for each setting.
//!
//! Guarantees:
//! - `--help` shows the default and the description of each setting.

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::config::settings::{Setting, Settings, Shape, table};

/// The settings given as flags.
#[derive(Clone, Default)]
pub struct SettingFlags {
    /// Each flag on the command line, without leading dashes, and its values.
    pub given: Vec<(String, Vec<String>)>,
}

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Settings::default();
        let flags = table().iter().map(|row| flag_arg(row, &defaults));
        command.args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn flag_arg(row: &'static Setting, defaults: &Settings) -> Arg {
    let help = format!("{} [default: {}]", row.doc, row.show(defaults));
    // The placeholder is a short list of the allowed words, or else the unit. A longer one would
    // indent the whole help text.
    let value_name = if row.unit == "word" { row.accepts.as_str() } else { row.unit };
    let heading = if row.block().is_empty() { "Settings" } else { row.block() };
    let arg = Arg::new(row.name).long(row.flag.as_str()).help(help).value_name(value_name);
    let arg = arg.help_heading(heading);
    // Collects every value of a repeated flag, so that it is reported with the other problems.
    let arg = arg.action(ArgAction::Append).allow_negative_numbers(true);
    match row.shape {
        Shape::Switch => arg.num_args(0..=1).default_missing_value("true"),
        Shape::One | Shape::Many | Shape::Block => arg.num_args(1),
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(table().iter().filter_map(|row| {
            let texts = matches.get_many::<String>(row.name)?.cloned().collect();
            Some((row.flag.clone(), texts))
        }));
        Ok(())
    }
}
