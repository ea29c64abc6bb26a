//! What is run: a script with its arguments, or a launcher that starts ranks.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::host::Host;

/// Modules that start ranks, run by `python -m`.
const LAUNCHERS: [&str; 5] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
];

/// The module of vLLM's command.
const ENGINE: &str = "vllm.entrypoints.cli.main";

/// What is run, with its arguments as `sys.argv` has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `script args…` or `-m module args…`.
    Script(Vec<OsString>),
    /// A program that starts ranks, with its arguments.
    Launcher(Vec<OsString>),
}

impl Program {
    /// Tells a script from a launcher. `python`, `torchrun` and `accelerate` are those of oomph's own
    /// environment.
    pub fn new(mut argv: Vec<OsString>, host: &Host) -> anyhow::Result<Self> {
        let Some(first) = argv.first() else {
            bail!("no script was given. Usage: oomph run [options] script.py args…");
        };
        let path = PathBuf::from(first);
        let Some(first) = first.to_str() else {
            if path.is_file() {
                check_script(&path)?;
                return Ok(Self::Script(argv));
            }
            bail!("{}: no such file. Give a Python script", path.display());
        };
        if first == "-" {
            bail!(
                "-: a script from standard input can be read only once, and may have to run twice. Save it to a file"
            );
        }
        if first == "-m" {
            let launches = argv
                .get(1)
                .and_then(|word| word.to_str())
                .is_some_and(|module| LAUNCHERS.contains(&module));
            return Ok(if launches {
                Self::Launcher(with_python(host, &argv))
            } else {
                Self::Script(argv)
            });
        }
        let module = match first {
            "torchrun" => Some("torch.distributed.run"),
            "accelerate" => Some("accelerate.commands.accelerate_cli"),
            _ => None,
        };
        if let Some(module) = module {
            argv.splice(..1, ["-m", module].map(OsString::from));
            return Ok(Self::Launcher(with_python(host, &argv)));
        }
        // The engine's processes are the script's own, however many GPUs they share.
        if path.file_name() == Some(OsStr::new("vllm")) {
            argv.splice(..1, ["-m", ENGINE].map(OsString::from));
            return Ok(Self::Script(argv));
        }
        if first == "python" || first == "python3" {
            argv.remove(0);
            while matches!(
                argv.first().and_then(|word| word.to_str()),
                Some("-u" | "-B" | "-O")
            ) {
                argv.remove(0);
            }
            return Self::new(argv, host);
        }
        if path.is_file() {
            let is_python = has_extension(first, "py") || has_extension(first, "ipynb");
            if is_program(&path) && !is_python {
                return Ok(Self::Launcher(argv));
            }
            check_script(&path)?;
            return Ok(Self::Script(argv));
        }
        if path.is_dir() {
            bail!(
                "{first}: this is a directory. Give the Python script in it, or a module with -m"
            );
        }
        let beside = host.python.parent().map(Path::to_path_buf);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = beside
            .into_iter()
            .chain(std::env::split_paths(&path))
            .map(|directory| directory.join(first))
            .find(|candidate| is_program(candidate));
        match found {
            Some(program) => {
                argv[0] = program.into_os_string();
                Ok(Self::Launcher(argv))
            }
            None => bail!(
                "{first}: no such file, and no program of this name. Give a Python script, a module with -m, or a launcher such as torchrun"
            ),
        }
    }

    /// `script args…` as the given number of ranks on this host, started by torchrun.
    pub fn torchrun(host: &Host, ranks: u32, script: &[OsString]) -> Self {
        let ranks = ranks.to_string();
        let mut argv = with_python(
            host,
            &[
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                &ranks,
            ]
            .map(OsString::from),
        );
        argv.extend_from_slice(script);
        Self::Launcher(argv)
    }

    /// Whether it starts ranks by itself.
    pub fn launches(&self) -> bool {
        matches!(self, Self::Launcher(_))
    }

    /// Whether it is a serving engine, which starts what shares its GPUs by itself.
    pub fn serves(&self) -> bool {
        let is_engine =
            |word: &OsString| word.to_str().is_some_and(|word| word.starts_with("vllm."));
        !self.launches() && self.argv().get(1).is_some_and(is_engine)
    }

    /// All of it.
    pub fn argv(&self) -> &[OsString] {
        let (Self::Script(argv) | Self::Launcher(argv)) = self;
        argv
    }

    /// The script with its arguments: of a launcher's, all of them where no script is seen.
    pub fn script_argv(&self) -> &[OsString] {
        let argv = self.argv();
        if !self.launches() {
            return argv;
        }
        argv.iter()
            .skip(1)
            .position(|word| is_script(word))
            .and_then(|at| argv.get(at + 1..))
            .unwrap_or(argv)
    }

    /// A name for its runs: that of the script, the module or the launcher.
    pub fn name(&self) -> String {
        let argv = self.script_argv();
        if argv.get(1).is_some_and(|word| word == ENGINE) {
            return "vllm".to_owned();
        }
        argv.iter()
            .find(|word| *word != "-m")
            .and_then(|word| Path::new(word).file_stem())
            .map_or_else(
                || "run".to_owned(),
                |stem| stem.to_string_lossy().into_owned(),
            )
    }

    /// The command that runs it: a script under the recorder, a launcher unmodified.
    pub(crate) fn command(&self, host: &Host) -> Command {
        let mut command;
        match self {
            Self::Script(argv) => {
                command = Command::new(&host.python);
                command.arg("-m").arg("oomph.launch").args(argv);
            }
            Self::Launcher(argv) => {
                let (program, arguments) = argv
                    .split_first()
                    .map_or((OsStr::new(""), &argv[..]), |(program, arguments)| {
                        (program.as_os_str(), arguments)
                    });
                command = Command::new(program);
                command.args(arguments);
            }
        }
        command
    }
}

/// Says in a line what Python would say in many.
pub fn check_script(path: &Path) -> anyhow::Result<()> {
    // Python would call the first name in it undefined.
    if path.extension().is_some_and(|end| end == "toml") {
        let path = path.display();
        bail!(
            "{path}: this is no Python script. A plan stands before one: --plan {path} script.py"
        );
    }
    let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if file
        .metadata()
        .is_ok_and(|data| data.is_file() && data.len() == 0)
    {
        bail!(
            "{}: the file is empty. Give a Python script",
            path.display()
        );
    }
    Ok(())
}

/// Words as a line that a shell reads as these words.
pub fn shell_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    // No word that was an argument has a zero byte.
    let words: Vec<_> = (words.into_iter())
        .map(|word| shlex::try_quote(word).unwrap_or(Cow::Borrowed(word)))
        .collect();
    words.join(" ")
}

fn with_python(host: &Host, rest: &[OsString]) -> Vec<OsString> {
    let mut argv = vec![host.python.clone().into_os_string()];
    argv.extend_from_slice(rest);
    argv
}

fn is_script(word: &OsStr) -> bool {
    word.to_str().is_some_and(|word| has_extension(word, "py"))
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn is_program(path: &Path) -> bool {
    const EXECUTE: u32 = 0o111;
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & EXECUTE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_launcher_is_named_after_its_script() {
        for (program, script, name) in [
            (
                Program::Launcher(argv("python -m torch.distributed.run train.py --lr 1")),
                "train.py --lr 1",
                "train",
            ),
            (
                Program::Launcher(argv("mpirun a.out")),
                "mpirun a.out",
                "mpirun",
            ),
            (
                Program::Script(argv("jobs/train.py x.py")),
                "jobs/train.py x.py",
                "train",
            ),
            (Program::Script(argv("-m trainer")), "-m trainer", "trainer"),
            (
                Program::Script(argv("-m vllm.entrypoints.cli.main serve model")),
                "-m vllm.entrypoints.cli.main serve model",
                "vllm",
            ),
        ] {
            assert_eq!(program.script_argv(), argv(script));
            assert_eq!(program.name(), name);
        }
    }
}
