//! What `oomph doctor` found, as JSON and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use crate::terminal::{BAD, BOLD, DIM, GOOD, WARN, columns, pad, paint, wrap};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.doctor/1";

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Good,
    /// To know; nothing is wrong.
    Note,
    /// Something does not work.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What it came to.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do, where there is something to do.
    pub advice: Option<String>,
}

/// Commands that need the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ability {
    /// The commands.
    pub what: &'static str,
    /// Whether they work here.
    pub works: bool,
    /// Why they do not.
    pub why: Option<String>,
}

/// Everything that `oomph doctor` writes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Doctor {
    /// `oomph.doctor/1`.
    pub format: &'static str,
    /// Of oomph, Python, the system, the driver, and the packages that decide what a job needs.
    pub versions: BTreeMap<String, String>,
    /// Variables that change what a job does. Of most it is only said that they are set.
    pub environment: BTreeMap<String, String>,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// What works here.
    pub works: Vec<Ability>,
}

impl Doctor {
    /// Whether nothing is wrong.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Wrong)
    }

    /// The same with `change` made in everything that was found.
    #[must_use]
    pub fn map(self, change: impl Fn(&str) -> String) -> Self {
        let each = |table: BTreeMap<String, String>| {
            table
                .into_iter()
                .map(|(name, value)| (name, change(&value)))
                .collect()
        };
        let maybe = |text: Option<String>| text.map(|text| change(&text));
        Self {
            format: self.format,
            versions: each(self.versions),
            environment: each(self.environment),
            checks: self
                .checks
                .into_iter()
                .map(|check| Check {
                    found: change(&check.found),
                    advice: maybe(check.advice),
                    ..check
                })
                .collect(),
            works: self
                .works
                .into_iter()
                .map(|ability| Ability {
                    why: maybe(ability.why),
                    ..ability
                })
                .collect(),
        }
    }
}

/// A line for each check, what works, and the versions.
pub fn doctor_report(doctor: &Doctor, width: usize) -> String {
    const INDENT: usize = 2;
    let mut out = String::new();
    let names = doctor.checks.iter().map(|check| columns(check.name));
    let name_width = names.max().unwrap_or(0).max("variables".len()) + 2;
    let begin = INDENT + name_width;
    let room = width.saturating_sub(begin);
    for check in &doctor.checks {
        let (style, sign) = match check.state {
            State::Good => (GOOD, "✓"),
            State::Note => (WARN, "·"),
            State::Wrong => (BAD, "✗"),
        };
        let name = pad(check.name, name_width);
        let found = wrap(&check.found, room, begin);
        let _ = writeln!(out, "{} {name}{found}", paint(style, sign));
        if let Some(advice) = &check.advice {
            let arrow = paint(BOLD, "→");
            let advice = wrap(advice, room.saturating_sub(2), begin + 2);
            let _ = writeln!(out, "{}{arrow} {advice}", " ".repeat(begin));
        }
    }
    out.push('\n');
    let mut row = |title: &str, text: &str| {
        let title = paint(DIM, pad(title, name_width));
        let _ = writeln!(out, "  {title}{}", wrap(text, room, begin));
    };
    let mut title = "works";
    for ability in doctor.works.iter().filter(|ability| ability.works) {
        row(title, ability.what);
        title = "";
    }
    title = "does not";
    for ability in doctor.works.iter().filter(|ability| !ability.works) {
        let why = ability.why.as_deref().unwrap_or("unknown");
        row(title, &format!("{}: {why}", ability.what));
        title = "";
    }
    let list = |table: &BTreeMap<String, String>, between: &str| {
        let pairs = table
            .iter()
            .map(|(name, value)| format!("{name}{between}{value}"));
        pairs.collect::<Vec<_>>().join(", ")
    };
    row("versions", &list(&doctor.versions, " "));
    if !doctor.environment.is_empty() {
        row("variables", &list(&doctor.environment, "="));
    }
    out
}
