//! `oomph completions`: what a shell needs to complete oomph's commands and options.

use clap_complete::Shell;

use crate::{ExitStatus, stdout_as_is};

/// Arguments of `oomph completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The wheel installs completions for bash, zsh and fish where these look for them. For an environment that your shell does not look into:\n\n  bash  eval \"$(oomph completions bash)\"          in ~/.bashrc\n  zsh   eval \"$(oomph completions zsh)\"           in ~/.zshrc, after compinit\n  fish  oomph completions fish | source           in ~/.config/fish/config.fish"
)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Prints the shell's code.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let mut code = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command(), "oomph", &mut code);
        stdout_as_is(&String::from_utf8(code)?)?;
        Ok(ExitStatus::Success)
    }
}
