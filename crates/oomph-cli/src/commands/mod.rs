//! One file per subcommand. Each has its clap arguments and `run(self) -> Result<exit status>`;
//! an `Err` is wrong usage or unreadable input and becomes exit status 2.

mod estimate;
mod gpus;

/// The subcommands, in the order that `--help` lists them.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// What a model file needs and which GPUs would hold it, without any framework
    Estimate(estimate::Args),
    /// List the known GPUs and what they hold
    Gpus(gpus::Args),
}

impl Command {
    /// Runs the subcommand and returns its exit status.
    pub fn run(self) -> anyhow::Result<i32> {
        match self {
            Self::Estimate(args) => args.run(),
            Self::Gpus(args) => args.run(),
        }
    }
}
