//! What is run: a script or a module with its arguments, as every command takes it that runs one.

use std::ffi::OsString;
use std::path::Path;

use anyhow::bail;

#[derive(Debug, clap::Args)]
pub(crate) struct Script {
    /// Run a module, as `python -m` does
    #[arg(short = 'm', value_name = "MODULE", num_args = 1.., allow_hyphen_values = true, conflicts_with = "script")]
    module: Vec<OsString>,

    /// The script and its arguments
    #[arg(
        value_name = "SCRIPT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    script: Vec<OsString>,
}

impl Script {
    /// `script args…` or `-m module args…`, as `sys.argv` has them; nothing if neither was given.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        if self.module.is_empty() {
            return self.script.clone();
        }
        std::iter::once(OsString::from("-m"))
            .chain(self.module.iter().cloned())
            .collect()
    }

    /// The same for a command that takes nothing but what Python runs: its script must be a file.
    pub(crate) fn of_python(&self, usage: &str) -> anyhow::Result<Vec<OsString>> {
        let argv = self.argv();
        match argv.first() {
            None => bail!("no script was given. Usage: {usage}"),
            Some(first) if self.module.is_empty() && !Path::new(first).is_file() => bail!(
                "{}: no such file. Give a Python script, or a module with -m",
                first.to_string_lossy()
            ),
            Some(_) => Ok(argv),
        }
    }
}
