//! Which rules run: `--select`, `--ignore`, and `[tool.oomph.lint]` of `pyproject.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use crate::{ALL, Rule};

/// A configuration that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is no TOML, or `[tool.oomph.lint]` has keys or values that are not known.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A selector matches no rule.
    #[error("no rule or family is called `{0}`; `oomph lint --list-rules` shows them all")]
    UnknownCode(String),
}

/// `[tool.oomph.lint]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// Codes or prefixes to run, instead of the default rules.
    pub select: Option<Vec<String>>,
    /// Codes or prefixes to run on top of them.
    pub extend_select: Vec<String>,
    /// Codes or prefixes to leave out.
    pub ignore: Vec<String>,
    /// Files and folders to leave out, as gitignore patterns.
    pub exclude: Vec<String>,
    /// Codes or prefixes to leave out in files that match a gitignore pattern.
    pub per_file_ignores: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct PyProject {
    tool: Option<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    oomph: Option<Oomph>,
}

#[derive(Deserialize)]
struct Oomph {
    lint: Option<Config>,
}

impl Config {
    /// Reads the text of a `pyproject.toml`; `None` if it has no `[tool.oomph.lint]`.
    pub fn from_pyproject(text: &str) -> Result<Option<Self>, ConfigError> {
        let parsed: PyProject = toml::from_str(text)?;
        Ok(parsed
            .tool
            .and_then(|tool| tool.oomph)
            .and_then(|oomph| oomph.lint))
    }
}

/// A set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// One flag per rule of [`ALL`].
    on: Vec<bool>,
}

impl Default for Selection {
    /// The rules that are on by default.
    fn default() -> Self {
        Self {
            on: ALL.iter().map(|rule| rule.is_default()).collect(),
        }
    }
}

impl Selection {
    /// Every rule.
    pub fn all() -> Self {
        Self {
            on: vec![true; ALL.len()],
        }
    }

    /// `select` (or the default rules), plus `extend`, minus `ignore`. A selector is a code, a name or a
    /// prefix of codes; `ALL` is every rule. A longer selector wins over a shorter one, and
    /// `ignore` wins a tie.
    pub fn new(
        select: Option<&[String]>,
        extend: &[String],
        ignore: &[String],
    ) -> Result<Self, ConfigError> {
        let mut selection = Self {
            on: Vec::with_capacity(ALL.len()),
        };
        for selector in select
            .unwrap_or_default()
            .iter()
            .chain(extend)
            .chain(ignore)
        {
            if !ALL.iter().any(|rule| matches(selector, rule).is_some()) {
                return Err(ConfigError::UnknownCode(selector.clone()));
            }
        }
        let longest = |selectors: &[String], rule: &Rule| {
            selectors
                .iter()
                .filter_map(|each| matches(each, rule))
                .max()
        };
        for rule in ALL {
            let base = match select {
                Some(select) => longest(select, rule),
                None => rule.is_default().then_some(0),
            };
            let wanted = base.max(longest(extend, rule));
            selection.on.push(match (wanted, longest(ignore, rule)) {
                (Some(wanted), Some(unwanted)) => wanted > unwanted,
                (wanted, None) => wanted.is_some(),
                (None, Some(_)) => false,
            });
        }
        Ok(selection)
    }

    /// The selection without the rules that `ignore` names.
    pub fn without(&self, ignore: &[String]) -> Result<Self, ConfigError> {
        let removed = Self::new(Some(ignore), &[], &[])?;
        Ok(Self {
            on: self
                .on
                .iter()
                .zip(&removed.on)
                .map(|(on, removed)| *on && !removed)
                .collect(),
        })
    }

    /// Whether a rule runs.
    pub fn contains(&self, rule: &Rule) -> bool {
        ALL.iter()
            .position(|each| each.code == rule.code)
            .and_then(|index| self.on.get(index))
            .is_some_and(|on| *on)
    }
}

/// Whether a rule is called so, with dashes or underscores.
pub(crate) fn is_name(text: &str, rule: &Rule) -> bool {
    text.replace('_', "-").eq_ignore_ascii_case(rule.name)
}

/// How specifically a selector names a rule, if it does.
fn matches(selector: &str, rule: &Rule) -> Option<usize> {
    let selector = selector.trim();
    if is_name(selector, rule) {
        return Some(rule.code.len());
    }
    let selector = selector.to_ascii_uppercase();
    if selector == "ALL" {
        return Some(0);
    }
    (selector.len() >= 3 && rule.code.starts_with(&selector)).then_some(selector.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(items: &[&str]) -> Vec<String> {
        items.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_longer_selector_wins() {
        let selection = Selection::new(
            Some(&strings(&["OOM1"])),
            &strings(&["OOM201"]),
            &strings(&["OOM10", "OOM2"]),
        )
        .unwrap();
        let on = |code: &str| selection.contains(crate::by_code(code).unwrap());
        assert!(!on("OOM101"));
        assert!(on("OOM201"));
        assert!(!on("OOM202"));
        assert!(!on("OOM801"));
    }

    #[test]
    fn a_name_is_as_good_as_its_code() {
        for rule in ALL {
            for name in [rule.name.to_owned(), rule.name.replace('-', "_")] {
                let selection = Selection::new(Some(&strings(&[&name])), &[], &[]).unwrap();
                let on: Vec<_> = ALL.iter().filter(|each| selection.contains(each)).collect();
                assert_eq!(on.len(), 1, "{name}");
                assert_eq!(on[0].code, rule.code);
                let family = strings(&[&rule.code[..4]]);
                let without = Selection::new(Some(&family), &[], &strings(&[&name])).unwrap();
                assert!(!without.contains(rule), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_code_is_an_error() {
        let error = Selection::new(Some(&strings(&["E501"])), &[], &[]).unwrap_err();
        assert!(error.to_string().contains("`E501`"));
    }

    #[test]
    fn pyproject_without_the_table_is_none_and_with_a_typo_is_an_error() {
        assert_eq!(Config::from_pyproject("[tool.ruff]\n").unwrap(), None);
        let error = Config::from_pyproject("[tool.oomph.lint]\nselekt = []\n").unwrap_err();
        assert!(error.to_string().contains("selekt"));
        let config = Config::from_pyproject("[tool.oomph.lint]\nignore = [\"OOM3\"]\n")
            .unwrap()
            .unwrap();
        assert_eq!(config.ignore, ["OOM3"]);
    }
}
