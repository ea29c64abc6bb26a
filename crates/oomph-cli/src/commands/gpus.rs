//! `oomph gpus`: the catalogue.

/// Arguments of `oomph gpus`.
#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Prints the catalogue.
    pub fn run(self) -> anyhow::Result<i32> {
        Ok(crate::EXIT_OK)
    }
}
