//! `oomph.toml`: the jobs that `oomph check` runs, and what they may hold.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use oomph_bytes::parse_capacity;
use serde::Deserialize;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    gpu: Option<String>,
    #[serde(default)]
    job: BTreeMap<String, WrittenJob>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenJob {
    script: Option<String>,
    module: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    gpu: Option<String>,
    memory: Option<String>,
    steps: Option<u32>,
    max_peak: Option<String>,
    max_growth: Option<String>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedJob {
    /// Its name.
    pub name: String,
    /// What is run, as `oomph run` takes it.
    pub program: Vec<OsString>,
    /// The virtual GPU.
    pub gpu: String,
    /// Its capacity in bytes, if it is another one.
    pub memory: Option<u64>,
    /// Optimizer steps, or passes.
    pub steps: Option<u32>,
    /// The most that it may hold, in bytes.
    pub max_peak: Option<u64>,
    /// The most that it may hold more than before.
    pub max_growth: Option<Growth>,
}

/// How much more a job may hold than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// In bytes.
    Bytes(u64),
    /// In thousandths of what it held.
    PerMille(u64),
}

impl Growth {
    /// The same in bytes, for a job that held `before`.
    pub fn bytes(self, before: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::PerMille(part) => before / 1000 * part,
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return Ok(Self::Bytes(parse_capacity(text)?));
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if (0.0..=1000.0).contains(&percent) => {
                Ok(Self::PerMille((percent * 10.0).round() as u64))
            }
            _ => bail!("expected a size such as 100MiB or a part such as 5%, found `{text}`"),
        }
    }
}

/// The jobs of a file.
pub fn read(path: &Path) -> anyhow::Result<Vec<CheckedJob>> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "cannot read {}: expected a file with jobs, such as [job.train] with script = \"train.py\" and gpu = \"rtx-4090\"",
            path.display()
        )
    })?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<CheckedJob>> {
    let written: Written = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            text[..span.start.min(text.len())].matches('\n').count() + 1
        });
        anyhow::anyhow!("line {line}: {}", error.message())
    })?;
    if written.job.is_empty() {
        bail!("there is no job: expected a table such as [job.train]");
    }
    let gpu = written.gpu.as_deref();
    let jobs = written.job.into_iter();
    jobs.map(|(name, job)| {
        let at = format!("job.{name}");
        checked(name, job, gpu).with_context(|| at)
    })
    .collect()
}

fn checked(name: String, job: WrittenJob, gpu: Option<&str>) -> anyhow::Result<CheckedJob> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        bail!("a job's name has letters, digits, `-`, `_` and `.` only: its run is kept under it");
    }
    let mut program: Vec<OsString> = match (job.script, job.module) {
        (Some(script), None) => vec![script.into()],
        (None, Some(module)) => vec!["-m".into(), module.into()],
        _ => bail!("expected either script or module"),
    };
    program.extend(job.args.into_iter().map(OsString::from));
    let Some(gpu) = job.gpu.or_else(|| gpu.map(str::to_owned)) else {
        bail!("no GPU is named: add gpu = \"rtx-4090\", here or above all jobs");
    };
    oomph_gpus::parse_spec(&gpu)?;
    if job.steps == Some(0) {
        bail!("steps: expected 1 or more");
    }
    let size = |name: &str, text: Option<String>| {
        text.map(|text| parse_capacity(&text).with_context(|| name.to_owned()))
            .transpose()
    };
    Ok(CheckedJob {
        program,
        gpu,
        memory: size("memory", job.memory)?,
        steps: job.steps,
        max_peak: size("max_peak", job.max_peak)?,
        max_growth: job
            .max_growth
            .map(|text| Growth::parse(&text).context("max_growth"))
            .transpose()?,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_read_with_what_holds_for_all() {
        let jobs = parse(
            "gpu = \"rtx-4090\"\n[job.train]\nscript = \"train.py\"\nargs = [\"--batch\", \"8\"]\nsteps = 3\nmax_peak = \"10 GiB\"\nmax_growth = \"2.5%\"\n[job.serve]\nmodule = \"app.serve\"\ngpu = \"t4\"\nmax_growth = \"1 MiB\"\n",
        )
        .unwrap();
        let [serve, train] = &jobs[..] else {
            panic!("two jobs")
        };
        assert_eq!(serve.program, ["-m", "app.serve"].map(OsString::from));
        assert_eq!(
            (serve.gpu.as_str(), serve.max_growth),
            ("t4", Some(Growth::Bytes(1 << 20)))
        );
        assert_eq!(
            train.program,
            ["train.py", "--batch", "8"].map(OsString::from)
        );
        assert_eq!(
            (train.gpu.as_str(), train.steps, train.max_peak),
            ("rtx-4090", Some(3), Some(10 << 30))
        );
        assert_eq!(train.max_growth.unwrap().bytes(1_000_000), 25_000);
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_job() {
        for (text, expected) in [
            ("", "there is no job"),
            ("[job.a]\n", "job.a: expected either script or module"),
            ("[job.a]\nscript = \"x.py\"\n", "job.a: no GPU is named"),
            (
                "[job.a]\nscript = \"x.py\"\ngpu = \"rtx-409\"\n",
                "did you mean rtx-4090",
            ),
            (
                "[job.a]\nscript = \"x.py\"\nmemroy = \"1G\"\n",
                "line 3: unknown field `memroy`",
            ),
            ("[job.\"../a\"]\nscript = \"x.py\"\n", "a job's name"),
            (
                "gpu = \"t4\"\n[job.a]\nscript = \"x.py\"\nmax_peak = \"lots\"\n",
                "job.a: max_peak: `lots` is not a size",
            ),
            (
                "gpu = \"t4\"\n[job.a]\nscript = \"x.py\"\nmax_growth = \"x%\"\n",
                "expected a size such as 100MiB or a part",
            ),
            (
                "gpu = \"t4\"\n[job.a]\nscript = \"x.py\"\nsteps = 0\n",
                "steps: expected 1 or more",
            ),
            ("[job", "line 1: "),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
