//! `jax_settings`: how JAX takes memory, and how XLA plans with it.
//!
//! Offered to scripts that use JAX, for which nothing is predicted: runs tell what it does. Results: exact, or to rounding
//! where XLA may choose other kernels.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;

/// Variables that JAX reads.
const SHARE: &str = "XLA_PYTHON_CLIENT_MEM_FRACTION";
const ALLOCATOR: &str = "XLA_PYTHON_CLIENT_ALLOCATOR";
const FLAGS: &str = "XLA_FLAGS";

/// Settings of JAX, made in its environment.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct JaxSettings {
    /// The part of the GPU's memory that JAX may take, in thousandths (`XLA_PYTHON_CLIENT_MEM_FRACTION`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thousandths: Option<u32>,
    /// `default`, `cuda_async` or `platform` (`XLA_PYTHON_CLIENT_ALLOCATOR`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// What is added to `XLA_FLAGS`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

/// What XLA is told of the memory that it plans for, in percent: it recomputes what then has no room.
const TIGHTER: &str = "--xla_gpu_memory_limit_slop_factor=60";
/// Graphs of kernels lie outside of JAX's pool.
const NO_GRAPHS: &str = "--xla_gpu_enable_command_buffer=";
/// Kernels are not tried, which needs memory for their results.
const UNTRIED: &str = "--xla_gpu_autotune_level=0";

/// What is worth a run, the cheapest first, where JAX may take so many thousandths of the GPU.
pub fn for_jax(thousandths: u32) -> impl Iterator<Item = Lever> {
    let with = move |allocator: Option<&str>, flags: &[&str]| JaxSettings {
        // `platform` takes what each array needs.
        thousandths: (allocator != Some("platform")).then_some(thousandths),
        allocator: allocator.map(str::to_owned),
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    let all = [
        with(None, &[]),
        with(Some("cuda_async"), &[]),
        with(None, &[TIGHTER]),
        with(Some("cuda_async"), &[TIGHTER, NO_GRAPHS]),
        with(Some("platform"), &[TIGHTER, NO_GRAPHS, UNTRIED]),
    ];
    all.into_iter().map(Into::into)
}

impl JaxSettings {
    /// Names and values. The flags are those that are added.
    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let share = (self.thousandths).map(|part| (SHARE, format!("{}", f64::from(part) / 1000.0)));
        let allocator = self.allocator.clone().map(|name| (ALLOCATOR, name));
        let flags = (!self.flags.is_empty()).then(|| (FLAGS, self.flags.join(" ")));
        share.into_iter().chain(allocator).chain(flags)
    }
}

impl Facets for JaxSettings {
    fn results(&self) -> Results {
        if self.flags.is_empty() {
            Results::Exact
        } else {
            Results::Rounding
        }
    }

    fn label(&self) -> String {
        let share = (self.thousandths)
            .map(|part| format!("{} % of the GPU for JAX", f64::from(part) / 10.0));
        let allocator = (self.allocator.as_ref()).map(|name| format!("allocator {name}"));
        let flags = self.flags.iter().map(|flag| match flag.as_str() {
            NO_GRAPHS => "no command buffers".to_owned(),
            flag => flag.trim_start_matches("--xla_gpu_").replace('=', " "),
        });
        let words: Vec<String> = share.into_iter().chain(allocator).chain(flags).collect();
        words.join(", ")
    }

    fn environment(&self, get: &dyn Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
        let added = |(name, value): (&'static str, String)| match get(name) {
            Some(before) if name == FLAGS && !before.is_empty() => {
                (name, format!("{before} {value}"))
            }
            _ => (name, value),
        };
        self.variables().map(added).collect()
    }

    fn command(&self) -> Option<String> {
        // The shell has the flags of its own environment.
        let word = |(name, value): (&str, String)| match name {
            FLAGS => format!("{name}=\"${name} {value}\""),
            _ => format!("{name}={value}"),
        };
        let words: Vec<String> = self.variables().map(word).collect();
        Some(format!("env {}", words.join(" ")))
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn stage() -> Stage {
        Stage::Asked
    }

    fn snippet(&self) -> String {
        format!(
            "start the script with {}",
            self.command().unwrap_or_default()
        )
    }

    fn line(&self, _script: &Script<'_>) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_added_to_those_of_the_user() {
        let lever = JaxSettings {
            thousandths: Some(930),
            allocator: None,
            flags: vec!["--a=1".to_owned()],
        };
        let got = lever.environment(&|name| (name == FLAGS).then(|| "--b=2".to_owned()));
        let share = (SHARE, "0.93".to_owned());
        assert_eq!(got, [share.clone(), (FLAGS, "--b=2 --a=1".to_owned())]);
        assert_eq!(
            lever.environment(&|_| None),
            [share, (FLAGS, "--a=1".to_owned())]
        );
        assert_eq!(
            lever.command().unwrap(),
            "env XLA_PYTHON_CLIENT_MEM_FRACTION=0.93 XLA_FLAGS=\"$XLA_FLAGS --a=1\""
        );
    }
}
