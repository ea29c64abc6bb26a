//! The script or module to run with its arguments, the same for every command that runs one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::bail;
use oomph_plan::PlanJob;
use sha2::{Digest as _, Sha256};

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

    /// The same for a command that accepts no launcher: the script must be a file.
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

/// The script and its arguments as plan files state them, with the script's digest.
pub(crate) fn plan_job(argv: &[OsString]) -> PlanJob {
    let mut argv = argv.iter().map(|word| word.to_string_lossy());
    let mut script = argv.next().unwrap_or_default().into_owned();
    if script == "-m"
        && let Some(module) = argv.next()
    {
        script = format!("-m {module}");
    }
    PlanJob {
        // A module's file is not known before Python finds it.
        sha256: fs::read(&script).map_or_else(|_| String::new(), |text| digest(&text)),
        script,
        arguments: argv.map(Cow::into_owned).collect(),
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
