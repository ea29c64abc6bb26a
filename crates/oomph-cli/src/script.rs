//! The script or module to run with its arguments, the same for every command that runs one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::bail;
use oomph_fit::cache::digest;
use oomph_job::check_script;
use oomph_plan::PlanJob;

#[derive(Debug, clap::Args)]
pub(crate) struct Script {
    /// Run a module, as `python -m` does
    #[arg(short = 'm', value_name = "MODULE", num_args = 1.., allow_hyphen_values = true, conflicts_with = "script")]
    module: Vec<OsString>,

    /// The script and its arguments
    #[arg(value_name = "SCRIPT", trailing_var_arg = true)]
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
            Some(_) if !self.module.is_empty() => Ok(argv),
            Some(first) => {
                let path = Path::new(first);
                if !path.is_file() {
                    bail!(
                        "{}: {}. Give a Python script, or a module with -m",
                        path.display(),
                        if path.is_dir() {
                            "this is a directory"
                        } else {
                            "no such file"
                        }
                    );
                }
                check_script(path)?;
                Ok(argv)
            }
        }
    }

    /// Warns of options of oomph's that stand behind the script, which gets them.
    pub(crate) fn warn_of_strays(&self) {
        let [script, words @ ..] = &self.script[..] else {
            return;
        };
        let text = fs::read(script).unwrap_or_default();
        for option in strays(&String::from_utf8_lossy(&text), words, &own_options()) {
            let script = Path::new(script).display();
            eprintln!(
                "warning: {option} stands after the script and goes to it; put it before {script}"
            );
        }
    }
}

/// The options that `oomph run` and `oomph fit` know and that mean something of their own.
fn own_options() -> BTreeSet<String> {
    let command = crate::command();
    ["run", "fit"]
        .into_iter()
        .filter_map(|name| command.find_subcommand(name))
        .flat_map(clap::Command::get_arguments)
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect()
}

/// Those of `words` that are options of oomph's and that the script with this text does not know.
fn strays(text: &str, words: &[OsString], own: &BTreeSet<String>) -> Vec<String> {
    /// What makes options out of names in the script, or takes any.
    const MADE_OF_NAMES: [&str; 10] = [
        "HfArgumentParser",
        "LightningCLI",
        "fire",
        "hydra",
        "jsonargparse",
        "parse_known_args",
        "pydantic",
        "simple_parsing",
        "tyro",
        "typer",
    ];
    if MADE_OF_NAMES.iter().any(|maker| text.contains(maker)) {
        return Vec::new();
    }
    let mut found: Vec<String> = words
        .iter()
        .filter_map(|word| word.to_str()?.split('=').next())
        .filter(|word| own.contains(*word) && !text.contains(*word))
        .map(str::to_owned)
        .collect();
    found.dedup();
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_behind_the_script_are_noticed_unless_it_knows_them() {
        let own = own_options();
        let noticed = |text: &str, words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            strays(text, &words, &own)
        };
        assert_eq!(noticed("import torch", "--gpu t4 --epochs 3"), ["--gpu"]);
        assert_eq!(
            noticed("", "--memory=10G --max-batch"),
            ["--memory", "--max-batch"]
        );
        let parser = "parser.add_argument('--steps', type=int)";
        assert_eq!(noticed(parser, "--steps 3 --gpu t4"), ["--gpu"]);
        let fire = "import fire\n\ndef main(gpu, steps): ...\n\nfire.Fire(main)";
        assert!(noticed(fire, "--steps 3 --gpu 0").is_empty());
        assert!(noticed("import torch", "--lr 3 -v gpu").is_empty());
    }
}
