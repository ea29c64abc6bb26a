//! One file per subcommand. Each has its clap arguments and `run(self) -> Result<exit status>`;
//! an `Err` is wrong usage or unreadable input and becomes exit status 2.

mod gpus;
mod lint;

/// The subcommands, in the order that `--help` lists them.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Find the lines of training code that waste or leak GPU memory
    Lint(lint::Args),
    /// List the known GPUs and what they hold
    Gpus(gpus::Args),
}

impl Command {
    /// Runs the subcommand and returns its exit status.
    pub fn run(self) -> anyhow::Result<i32> {
        match self {
            Self::Lint(args) => args.run(),
            Self::Gpus(args) => args.run(),
        }
    }
}
