//! `oomph drift`: how far a plan changes a script's results, measured on a real device.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use oomph_plan::{Lever, PlanFile, Results, by_hand};
use oomph_report::drift::{Drift, FORMAT, Measured, drift_report};
use oomph_report::terminal::width;

use crate::progress::Progress;
use crate::script::{Script, plan_job};
use crate::{ExitStatus, json, stdout};
use oomph_job::settings::{self, Recording};
use oomph_job::{Job, Program, RunDirectory, RunFile, host};

/// Arguments of `oomph drift`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph drift --plan oomph-plan.toml infer.py                   the first four calls of its models\n  oomph drift --plan oomph-plan.toml --max-drift 0.02 infer.py  refuse a plan above 2 %\n  oomph drift --plan oomph-plan.toml --cpu infer.py             if the plain job does not fit the GPU\n\nBoth runs draw the same random numbers. Without a GPU, a script that says \"cuda\" computes on the CPU. A virtual GPU computes nothing, so drift is not measured there.\n\nExit status: 0 measured, within --max-drift; 1 the script failed; 2 wrong usage, or the plan's levers had no effect; 3 more than --max-drift."
)]
pub struct Args {
    /// The plan whose drift to measure
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,

    /// Refuse a plan whose largest relative error exceeds this, such as 0.02
    #[arg(long, value_name = "ERROR")]
    max_drift: Option<f64>,

    /// Calls of models to compare
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,

    /// Compute on the CPU even if there is a GPU
    #[arg(long)]
    cpu: bool,

    /// A virtual GPU, on which drift is not measured
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Where to keep the output of the runs [default: oomph-report/SCRIPT-N]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print nothing
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    script: Script,
}

impl Args {
    /// Runs the script twice and compares.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        json::expect_place(self.json.as_deref())?;
        if let Some(limit) = self.max_drift
            && !(limit >= 0.0 && limit.is_finite())
        {
            bail!("--max-drift {limit}: expected a relative error of 0 or more, such as 0.02");
        }
        let text = fs::read_to_string(&self.plan)
            .with_context(|| format!("cannot read the plan {}", self.plan.display()))?;
        let plan = PlanFile::parse(&text).with_context(|| self.plan.display().to_string())?;
        let argv = self
            .script
            .of_python("oomph drift --plan FILE [options] script.py args…")?;
        for warning in plan.mismatches(
            &plan_job(&argv),
            &oomph_plan::PlanGpu::default(),
            &oomph_plan::Versions::default(),
        ) {
            eprintln!("warning: {warning}");
        }
        let mut drift = Drift {
            format: FORMAT,
            plan: self.plan.display().to_string(),
            levers: plan.levers.clone(),
            same_results: plan.levers.iter().map(Lever::results).max(),
            max_drift: self.max_drift,
            measured: None,
            exceeded: false,
            why_not: None,
        };
        if let Some(gpu) = &self.gpu {
            oomph_gpus::parse_spec(gpu)?;
            drift.why_not = Some("a virtual GPU computes nothing: leave out --gpu".to_owned());
            self.print(&drift)?;
            return Ok(if self.max_drift.is_some() {
                ExitStatus::Error
            } else {
                ExitStatus::Success
            });
        }
        let program = Program::Script(argv);
        let directory = RunDirectory::choose(self.out.as_deref(), &program)?;
        let progress = Progress::new(self.quiet);
        for (planned, what) in [
            (false, "running it plain"),
            (true, "running it with the plan"),
        ] {
            let levers = if planned { &plan.levers[..] } else { &[] };
            let measured = {
                let _shown = progress.begin(what, "");
                self.attempt(&program, &directory, levers, planned)?
            };
            match measured.outcome.kind.as_str() {
                "refused" => {
                    let outcome = &measured.outcome;
                    let message = outcome.message.as_deref().unwrap_or_default();
                    let why = by_hand::refusal(message, outcome.blame.as_ref(), levers);
                    eprintln!("error: {why}");
                    return Ok(ExitStatus::Error);
                }
                _ if measured.outcome.status != 0 => {
                    let log = directory.file(files_of(planned).1);
                    std::eprint!("{}", fs::read_to_string(log).unwrap_or_default());
                    let hint = if measured.notes.iter().any(|note| note == "out of memory") {
                        ": the plain job does not fit this GPU; --cpu computes on the CPU"
                    } else {
                        ""
                    };
                    eprintln!("oomph: the script failed, {what}{hint}");
                    return Ok(ExitStatus::Failed);
                }
                _ => {}
            }
            if planned {
                drift.measured = Some(measured);
            }
        }
        self.judge(&mut drift);
        self.print(&drift)?;
        if drift.measured.is_none() {
            return Ok(ExitStatus::Error);
        }
        Ok(if drift.exceeded {
            ExitStatus::Findings
        } else {
            ExitStatus::Success
        })
    }

    /// Whether the measurement is the plan's drift, and whether it exceeds the limit.
    fn judge(&self, drift: &mut Drift) {
        let Some(measured) = &drift.measured else {
            return;
        };
        let changes = |name: &str| {
            drift
                .levers
                .iter()
                .any(|lever| lever.name() == name && lever.results() == Results::Numerics)
        };
        let is_only_on_gpu = |name: &str| {
            let mut levers = drift.levers.iter();
            levers.any(|lever| lever.name() == name && lever.is_only_on_gpu())
        };
        let idle: Vec<&str> = measured
            .levers
            .iter()
            .filter(|lever| changes(&lever.name))
            .filter(|lever| lever.applied == 0 || !measured.on_gpu && is_only_on_gpu(&lever.name))
            .map(|lever| lever.name.as_str())
            .collect();
        if !idle.is_empty() {
            drift.why_not = Some(format!(
                "{} had no effect in this run{}",
                idle.join(", "),
                if measured.on_gpu { "" } else { " on the CPU" }
            ));
        } else if measured.outputs.is_empty() {
            drift.why_not = Some(if measured.calls == 0 {
                "no model with parameters was called".to_owned()
            } else {
                "no output of a model could be compared".to_owned()
            });
        }
        if drift.why_not.is_some() {
            drift.measured = None;
            return;
        }
        drift.exceeded = self
            .max_drift
            .is_some_and(|limit| measured.largest_error() > limit);
    }

    /// One run of the script.
    fn attempt(
        &self,
        program: &Program,
        directory: &RunDirectory,
        levers: &[Lever],
        planned: bool,
    ) -> anyhow::Result<Measured> {
        let (result, log) = files_of(planned);
        let (result, log) = (directory.file(result), directory.file(log));
        let _ = fs::remove_file(&result);
        let job = Job {
            recording: Recording {
                levers: levers.to_vec(),
                // This run computes, so any version of torch works.
                unsupported: true,
                drift: Some(settings::Drift {
                    planned,
                    calls: self.calls,
                    on_cpu: self.cpu,
                }),
                ..Recording::default()
            },
            ..Job::new(host::get()?, program.clone())
        };
        let status = job
            .attempt(directory, None, Some(&log), "comparing")?
            .status;
        let Ok(text) = fs::read_to_string(&result) else {
            if let Some(reason) = directory.refusal() {
                bail!("{reason}");
            }
            bail!(
                "the script ended ({status}) without importing torch, or was killed; see {}",
                log.display()
            );
        };
        let measured = serde_json::from_str(&text)
            .with_context(|| format!("cannot read {}", result.display()))?;
        Ok(measured)
    }

    fn print(&self, drift: &Drift) -> anyhow::Result<()> {
        if let Some(target) = &self.json {
            json::write(target, drift)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&drift_report(drift, width()))?;
        }
        Ok(())
    }
}

/// Where one of the two runs leaves what was measured, and what it printed.
fn files_of(planned: bool) -> (RunFile, RunFile) {
    if planned {
        (RunFile::Planned, RunFile::PlannedLog)
    } else {
        (RunFile::Plain, RunFile::PlainLog)
    }
}
