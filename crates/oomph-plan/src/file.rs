//! `oomph-plan.toml`: a plan with the job that it was made for.
//!
//! ```toml
//! format = "oomph.plan/1"
//!
//! [job]
//! script = "train.py"
//! arguments = ["--batch", "16"]
//! sha256 = "9f86d081…"
//!
//! [gpu]
//! id = "rtx-4090"
//! memory_bytes = 25282281472
//!
//! [versions]
//! oomph = "0.1.0"
//! torch = "2.11.0+cu130"
//!
//! [planned]
//! allocated_bytes = 20401094656
//! reserved_bytes = 21177040896
//! used_bytes = 21722300416
//! time_ratio = 1.09
//! same_results = "exact"
//! verified = true
//! assumptions = []
//!
//! [[lever]]
//! name = "checkpoint"
//! modules = ["GPT.blocks.0", "GPT.blocks.1"]
//! ```

use std::collections::BTreeMap;

use oomph_bytes::format_gib;
use serde::{Deserialize, Serialize};

use crate::lever::Results;
use crate::levers::Lever;

/// The version of the file. Fields may be added; a change of meaning is a new number.
pub const FORMAT: &str = "oomph.plan/1";

/// Why a plan could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Not TOML, or not the fields of a plan.
    #[error(
        "this is no plan ({FORMAT}): {0}. Expected a file that oomph fit wrote, or one like docs/levers.md shows"
    )]
    Toml(String),
    /// Another version.
    #[error("the plan has the format {found:?}; this oomph reads {FORMAT}. Run oomph fit again")]
    Format {
        /// The format that it states.
        found: String,
    },
}

/// The whole file. A table that it does not have would be a lever that is not applied: `[[levers]]`, say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// [`FORMAT`].
    pub format: String,
    /// What it was made for.
    #[serde(default)]
    pub job: PlanJob,
    /// On which GPU.
    #[serde(default)]
    pub gpu: PlanGpu,
    /// With which software.
    #[serde(default)]
    pub versions: Versions,
    /// What was planned, if `oomph fit` made it.
    pub planned: Option<Figures>,
    /// What `oomph fit --write` has made of the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// What is changed, in the order in which it is applied.
    #[serde(rename = "lever", default)]
    pub levers: Vec<Lever>,
}

/// A script and its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct PlanJob {
    /// The script's path, or `-m module`.
    pub script: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The script's digest, in hexadecimal; empty if unknown.
    pub sha256: String,
}

/// A script that a plan was written into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Written {
    /// The digest of the script with the change, in hexadecimal.
    pub sha256: String,
    /// Whether the change is one line that applies this file; else it does all of the plan by itself.
    pub applies: bool,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct PlanGpu {
    /// Its name in the catalogue.
    pub id: String,
    /// Its capacity.
    pub memory_bytes: u64,
}

/// Versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Versions {
    /// Of oomph.
    pub oomph: String,
    /// Of torch.
    pub torch: String,
}

/// What a plan comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Figures {
    /// Peak in tensors.
    pub allocated_bytes: u64,
    /// Peak held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Peak held by the process.
    pub used_bytes: u64,
    /// Time of a step against the plain job's, by the cost model.
    pub time_ratio: f64,
    /// The weakest promise among the levers.
    pub same_results: Results,
    /// Whether a run at the real capacity confirmed that it fits.
    pub verified: bool,
    /// What the figures rest on.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// The levers that a framework has a switch of its own for, and the switch; for who reads the plan.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub switches: BTreeMap<String, String>,
}

impl PlanFile {
    /// Reads the text of a plan file.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        #[derive(Deserialize)]
        struct Stated {
            format: String,
        }
        let no_plan = |error: toml::de::Error| PlanError::Toml(in_a_line(&error, text));
        let stated: Stated = toml::from_str(text).map_err(no_plan)?;
        if stated.format != FORMAT {
            return Err(PlanError::Format {
                found: stated.format,
            });
        }
        toml::from_str(text).map_err(no_plan)
    }

    /// Where `job`, `gpu` and `versions` are others than the plan was made for, each in a sentence.
    /// What is empty is not known and not compared.
    pub fn mismatches(&self, job: &PlanJob, gpu: &PlanGpu, versions: &Versions) -> Vec<String> {
        let mut found = Vec::new();
        let differ = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
        let file = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        if differ(&file(&self.job.script), &file(&job.script)) {
            found.push(format!(
                "the plan was made for {}, not for {}",
                self.job.script, job.script
            ));
        } else if differ(&self.job.sha256, &job.sha256)
            && (self.written.as_ref()).is_none_or(|written| written.sha256 != job.sha256)
        {
            found.push(format!(
                "{} has changed since the plan was made",
                job.script
            ));
        }
        if !self.job.script.is_empty()
            && !job.script.is_empty()
            && self.job.arguments != job.arguments
        {
            found.push(format!(
                "the plan was made for the arguments {:?}, not {:?}",
                self.job.arguments.join(" "),
                job.arguments.join(" ")
            ));
        }
        if differ(&self.gpu.id, &gpu.id) {
            found.push(format!(
                "the plan was made for {}, not for {}",
                self.gpu.id, gpu.id
            ));
        }
        if self.gpu.memory_bytes > gpu.memory_bytes && gpu.memory_bytes > 0 {
            found.push(format!(
                "the plan was made for {}; this GPU has {}",
                format_gib(self.gpu.memory_bytes),
                format_gib(gpu.memory_bytes)
            ));
        }
        if differ(&self.versions.torch, &versions.torch) {
            found.push(format!(
                "the plan was made with torch {}, this is {}",
                self.versions.torch, versions.torch
            ));
        }
        found
    }

    /// How many GPUs the job is shared among, if it is.
    pub fn gpus(&self) -> Option<u32> {
        crate::sharding::gpus(&self.levers)
    }

    /// The text of a plan file.
    pub fn to_toml(&self) -> String {
        // Serializing plain structs of strings and numbers has nothing to fail on.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

/// Where a text is wrong, and how, in one line.
fn in_a_line(error: &toml::de::Error, text: &str) -> String {
    let what = error.message().replace('\n', ", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {what}", before.matches('\n').count() + 1),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lever::Dtype;
    use crate::parameters::{MicroBatch, MixedPrecision, Optimizer8bit, SetToNone};

    #[test]
    fn a_plan_comes_back() -> Result<(), PlanError> {
        let plan = PlanFile {
            format: FORMAT.to_owned(),
            job: PlanJob {
                script: "train.py".to_owned(),
                arguments: vec!["--batch".to_owned(), "16".to_owned()],
                sha256: String::new(),
            },
            gpu: PlanGpu::default(),
            versions: Versions::default(),
            planned: Some(Figures {
                allocated_bytes: 1,
                reserved_bytes: 2,
                used_bytes: 3,
                time_ratio: 1.5,
                same_results: Results::Numerics,
                verified: true,
                assumptions: vec!["x".to_owned()],
                switches: BTreeMap::from([("micro_batch".to_owned(), "Trainer: a=1".to_owned())]),
            }),
            written: Some(Written {
                sha256: "9f".to_owned(),
                applies: true,
            }),
            levers: vec![
                SetToNone {}.into(),
                MicroBatch { parts: 4 }.into(),
                MixedPrecision { dtype: Dtype::Bf16 }.into(),
                Optimizer8bit {}.into(),
            ],
        };
        assert_eq!(PlanFile::parse(&plan.to_toml())?, plan);
        Ok(())
    }

    #[test]
    fn another_job_gpu_or_version_is_noticed() -> Result<(), PlanError> {
        let plan = PlanFile::parse(
            "format = \"oomph.plan/1\"\n[job]\nscript = \"a/train.py\"\nsha256 = \"1\"\n[gpu]\nid = \"t4\"\nmemory_bytes = 9663676416\n[versions]\ntorch = \"2.11.0\"\n",
        )?;
        let job = |script: &str, sha256: &str| PlanJob {
            script: script.to_owned(),
            arguments: Vec::new(),
            sha256: sha256.to_owned(),
        };
        let gpu = |id: &str, memory_bytes| PlanGpu {
            id: id.to_owned(),
            memory_bytes,
        };
        let torch = |torch: &str| Versions {
            torch: torch.to_owned(),
            ..Versions::default()
        };
        let none = plan.mismatches(
            &job("b/train.py", "1"),
            &gpu("t4", 9 << 30),
            &torch("2.11.0"),
        );
        assert_eq!(none, Vec::<String>::new());
        assert_eq!(
            plan.mismatches(
                &PlanJob::default(),
                &PlanGpu::default(),
                &Versions::default()
            ),
            none
        );
        let all = plan.mismatches(
            &job("other.py", "1"),
            &gpu("a100", 8 << 30),
            &torch("2.12.0"),
        );
        for (words, expected) in all.iter().zip(["other.py", "a100", "8.00 GiB", "2.12.0"]) {
            assert!(words.contains(expected), "{words}");
        }
        assert_eq!(all.len(), 4);
        let changed = plan.mismatches(&job("train.py", "2"), &gpu("t4", 9 << 30), &torch(""));
        assert!(changed[0].contains("changed"), "{changed:?}");
        Ok(())
    }

    #[test]
    fn wrong_files_say_why() {
        let error = |text: &str| PlanFile::parse(text).unwrap_err().to_string();
        assert!(error("format = \"oomph.plan/9\"").contains("oomph.plan/9"));
        let other_table =
            error("format = \"oomph.plan/1\"\n[[levers]]\nname = \"allocator\"\nconf = \"\"\n");
        assert!(
            other_table.contains("unknown field `levers`") && other_table.contains("`lever`"),
            "{other_table}"
        );
        let unknown = error("format = \"oomph.plan/1\"\n[[lever]]\nname = \"magic\"\n");
        assert!(
            unknown.contains("magic") && unknown.contains("micro_batch"),
            "{unknown}"
        );
        for (lever, expected) in [
            (
                "name = \"micro_batch\"\nparts = -1",
                "invalid value: integer `-1`",
            ),
            (
                "name = \"micro_batch\"\nparts = nan",
                "invalid type: floating point `NaN`",
            ),
            (
                "name = \"micro_batch\"\nparts = 99999999999",
                "invalid value",
            ),
            (
                "name = \"micro_batch\"\nparts = 99999999999999999999",
                "line ",
            ),
            (
                "name = \"micro_batch\"\nparts = \"2\"",
                "invalid type: string",
            ),
            (
                "name = \"micro_batch\"\nnumber = 2",
                "unknown field `number`",
            ),
            ("name = 5", "invalid type: integer `5`"),
            (
                "name = \"checkpoint\"\nmodules = \"GPT\"",
                "invalid type: string \"GPT\"",
            ),
            ("parts = 2", "missing field `name`"),
            ("\0", "line "),
        ] {
            let said = error(&format!("format = \"oomph.plan/1\"\n[[lever]]\n{lever}\n"));
            assert!(said.contains(expected) && !said.contains('\n'), "{said}");
        }
        assert!(error("lever = 3").contains("missing field `format`"));
    }
}
