//! One file per subcommand. Each has its clap arguments and `run(self) -> Result<exit status>`;
//! an `Err` is wrong usage or unreadable input and becomes exit status 2.

use crate::ExitStatus;

pub(crate) mod calibrate;
pub(crate) mod check;
mod clean;
mod completions;
mod diff;
mod doctor;
mod drift;
mod estimate;
pub(crate) mod explain;
pub(crate) mod fit;
mod gpus;
mod lint;
mod lsp;
mod replay;
mod report;
pub(crate) mod run;
mod serve_fit;

/// The subcommands, in the order that `--help` lists them.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a script on a virtual or a real GPU: does it fit, and where does the memory go?
    Run(Box<run::Args>),
    /// Find the cheapest change that makes a script fit into a GPU, and verify it
    Fit(Box<fit::Args>),
    /// Find flags of vLLM with which a model's context and requests fit GPUs, by starting it on virtual ones
    ServeFit(serve_fit::Args),
    /// Run the jobs of oomph.toml against their limits, and against another revision: for CI
    Check(check::Args),
    /// Measure how far a plan changes a script's results
    Drift(drift::Args),
    /// Say how much memory a model file needs and which GPUs hold it, from its headers
    Estimate(estimate::Args),
    /// Say why memory ran out: from a snapshot, a log or a message
    Explain(explain::Args),
    /// Say what changed between two snapshots or runs
    Diff(diff::Args),
    /// Write the report of a run or a snapshot again, or export it
    Report(report::Args),
    /// Find the lines of training code that waste or leak GPU memory
    Lint(lint::Args),
    /// Serve editors with the findings of lint and the bytes of the last run (language server)
    Lsp(lsp::Args),
    /// List the known GPUs and their memory
    Gpus(gpus::Args),
    /// Replay a snapshot under other allocator settings or another capacity
    Replay(replay::Args),
    /// Measure how quick this machine's host is, for the times that run and gpus say
    Calibrate(calibrate::Args),
    /// Say what works here, and what to do about what does not
    Doctor(doctor::Args),
    /// Remove what earlier runs left in oomph-report
    Clean(clean::Args),
    /// Print the completions of a shell
    Completions(completions::Args),
}

impl Command {
    /// Whether it runs scripts, and has something to say when Ctrl-C ends one.
    pub fn reports_after_scripts(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Fit(_)
                | Self::ServeFit(_)
                | Self::Check(_)
                | Self::Drift(_)
                | Self::Doctor(_)
        )
    }

    /// Runs the subcommand and returns its exit status.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        match self {
            Self::Run(args) => args.run(),
            Self::Fit(args) => args.run(),
            Self::ServeFit(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::Drift(args) => args.run(),
            Self::Estimate(args) => args.run(),
            Self::Explain(args) => args.run(),
            Self::Diff(args) => args.run(),
            Self::Report(args) => args.run(),
            Self::Lint(args) => args.run(),
            Self::Lsp(args) => args.run(),
            Self::Gpus(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Calibrate(args) => args.run(),
            Self::Doctor(args) => args.run(),
            Self::Clean(args) => args.run(),
            Self::Completions(args) => args.run(),
        }
    }
}
