//! What may be asked of a search for a plan, the same for every command that searches.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, bail};
use oomph_allocator::Config;
use oomph_bytes::parse_bytes;
use oomph_fit::{Clock, Goal, Wanted};
use oomph_gpus::GpuSpec;
use oomph_job::signals;
use oomph_plan::{NAMES, Stop};

use crate::commands::calibrate;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Search {
    /// Memory to leave free, such as 500MiB, or a part of the GPU's
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "2%")]
    margin: String,

    /// Only levers that keep results: exactly, or to rounding
    #[arg(long)]
    keep_results: bool,

    /// Which plan to choose: the fastest with the same results (or to the bit), the fastest overall, …
    #[arg(long, value_name = "PLAN", value_enum, default_value_t = Choice::SameResults)]
    choose: Choice,

    /// Use only these levers; repeat or separate with commas
    #[arg(long, value_name = "LEVER", value_delimiter = ',')]
    allow: Vec<String>,

    /// Leave these levers out; repeat or separate with commas
    #[arg(long, value_name = "LEVER", value_delimiter = ',')]
    forbid: Vec<String>,

    /// End the search after this long, such as 30s, 5m or 1h, with the best plan so far
    #[arg(long, value_name = "DURATION", value_parser = crate::values::duration)]
    pub(crate) max_time: Option<Duration>,

    /// Treat the script as inference only, although it makes an optimizer
    #[arg(long)]
    pub(crate) inference: bool,
}

/// Which of the plans that fit is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    // The fastest that keeps results, exactly or to rounding; without one, the fastest
    SameResults,
    // The fastest that keeps results to the bit
    Exact,
    // The fastest at all
    Fastest,
    // The one that needs the least memory
    LeastMemory,
}

impl From<Choice> for Goal {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::SameResults => Self::SameResults,
            Choice::Exact => Self::Exact,
            Choice::Fastest => Self::Fastest,
            Choice::LeastMemory => Self::LeastMemory,
        }
    }
}

impl Search {
    /// Checks the names of levers.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for name in self.allow.iter().chain(&self.forbid) {
            if !NAMES.contains(&name.as_str()) {
                bail!(
                    "there is no lever {name}. The levers are {}",
                    NAMES.join(", ")
                );
            }
        }
        Ok(())
    }

    /// The margin in bytes: an amount, or a part of the memory.
    pub(crate) fn margin_of(&self, total: u64) -> anyhow::Result<u64> {
        parse_margin(&self.margin, total)
    }

    /// Ends the search on Ctrl-C, or when its time is up.
    pub(crate) fn stop(&self) -> Stop {
        Stop {
            interrupted: signals::interrupts(),
            ..Stop::after(self.max_time)
        }
    }

    /// What is wanted of a search for one plan, and for nothing else.
    pub(crate) fn wanted(
        &self,
        script: &[OsString],
        gpu: GpuSpec,
        total_bytes: u64,
        steps: u32,
        stop: Stop,
    ) -> anyhow::Result<Wanted> {
        let here = calibrate::Here::read();
        let clock = here.figures(gpu.found.gpu).ok().map(|gpu| Clock {
            gpu,
            host: here.host(),
        });
        Ok(Wanted {
            clock,
            script: words(script),
            gpu,
            total_bytes,
            margin_bytes: self.margin_of(total_bytes)?,
            steps,
            goal: self.choose.into(),
            keep_results: self.keep_results,
            allow: (!self.allow.is_empty()).then(|| self.allow.clone()),
            forbid: self.forbid.clone(),
            inference: self.inference,
            compile: false,
            sizes: Vec::new(),
            variants: false,
            watch: true,
            allocator: allocator_config(),
            stop,
        })
    }

    /// What of it decides about the plan, by name. The time that it may take does not.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        };
        vec![
            ("margin", self.margin.clone()),
            ("keep-results", self.keep_results.to_string()),
            ("choose", format!("{:?}", self.choose)),
            ("allow", sorted(&self.allow)),
            ("forbid", sorted(&self.forbid)),
            ("inference", self.inference.to_string()),
        ]
    }
}

/// Words as texts.
pub(crate) fn words(words: &[OsString]) -> Vec<String> {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    words.iter().map(text).collect()
}

/// The margin in bytes: an amount, or a part of the GPU's memory.
fn parse_margin(text: &str, total: u64) -> anyhow::Result<u64> {
    let bytes = match text.strip_suffix('%') {
        Some(number) => {
            let share: f64 = number.trim().parse().ok().with_context(|| {
                format!("--margin {text}: expected an amount such as 500MiB, or a part such as 2%")
            })?;
            if !(0.0..100.0).contains(&share) {
                bail!("--margin {text}: expected a part from 0% to below 100%");
            }
            (total as f64 * share / 100.0) as u64
        }
        None => parse_bytes(text).with_context(|| format!("--margin {text}"))?,
    };
    if bytes >= total {
        bail!("--margin {text} leaves nothing of the GPU's memory");
    }
    Ok(bytes)
}

/// The allocator as the environment sets it.
fn allocator_config() -> Config {
    let conf = oomph_allocator::VARIABLES
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .unwrap_or_default();
    Config::parse(&conf, oomph_allocator::TorchVersion::ASSUMED).unwrap_or_default()
}
