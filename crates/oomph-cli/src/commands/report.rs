//! `oomph report`: writes the page again, redacts it, opens it, or exports other formats.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use oomph_explain::Options;
use oomph_report::export::{self, Format};
use oomph_report::html::Page;

use oomph_job::{RunDirectory, files};

use crate::ExitStatus;
use crate::page::{self, RecordedRun};
use crate::{stdout, stdout_exact};

/// Arguments of `oomph report`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph report oomph-report/train-1 --open          the page of a run, in the browser\n  oomph report snapshot.pickle                      the page of a snapshot\n  oomph report oomph-report/train-1 --redact --out for-the-ticket.html\n  oomph report oomph-report/train-1 --export perfetto\n\nFormats: perfetto (ui.perfetto.dev), firefox (profiler.firefox.com), svg, png (timeline and peak), csv (blocks at the peak by line, module and category), json (all figures of the page)."
)]
pub struct Args {
    /// The directory of a run, or a snapshot or trace
    #[arg(value_name = "RUN|SNAPSHOT")]
    input: PathBuf,

    /// Where to write [default: index.html in the run's directory, or oomph-report/NAME/index.html; `-` is stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Open the page in the browser
    #[arg(long, conflicts_with = "export")]
    open: bool,

    /// Replace names and paths, and omit the script's own messages and arguments
    #[arg(long)]
    redact: bool,

    /// Write another format instead of the page
    #[arg(long, value_name = "FORMAT")]
    export: Option<Format>,
}

impl Args {
    /// Makes the page, or exports.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        if !self.input.exists() {
            bail!(
                "{}: no such file or directory. Expected the directory of a run \
                 (oomph-report/NAME-1), a snapshot or a trace",
                self.input.display()
            );
        }
        if RecordedRun::is(&self.input) {
            let directory = RunDirectory::of_run(&self.input);
            let run = RecordedRun::read(&directory)?;
            let page = run.page(self.redact);
            self.write(&page, &directory.path().join(page::NAME))?;
        } else {
            let trace = page::read_trace(&self.input)?;
            let options = Options::default();
            let found = oomph_explain::explain(&trace, &options);
            let page = page::of_explanations(
                [(self.input.as_path(), &trace, &found)],
                &options,
                self.redact,
            )?;
            self.write(&page, &page::place_of(&self.input))?;
        }
        Ok(ExitStatus::Success)
    }

    fn write(&self, page: &Page, place: &Path) -> anyhow::Result<()> {
        let (bytes, place) = match self.export {
            None => (page.render().into_bytes(), place.to_owned()),
            Some(format) => {
                let bytes = export::export(format, page).with_context(|| {
                    format!("{} has no history to export", self.input.display())
                })?;
                (bytes, place.with_file_name(format.file_name()))
            }
        };
        let target = self.out.clone().unwrap_or(place);
        if target == Path::new("-") {
            if self.open {
                bail!("--open needs a file, but --out - writes to stdout");
            }
            return stdout_exact(&bytes);
        }
        page::make_place(&target)?;
        files::write(&target, &bytes)?;
        stdout(&format!("{}\n", target.display()))?;
        if self.open {
            open(&target)?;
        }
        Ok(())
    }
}

/// Opens a file with whatever the desktop uses for HTML.
fn open(path: &Path) -> anyhow::Result<()> {
    let (program, arguments): (&str, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(target_os = "windows") {
        ("cmd", &["/C", "start", ""])
    } else {
        ("xdg-open", &[])
    };
    let path =
        std::fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
    let status = Command::new(program)
        .args(arguments)
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => bail!(
            "could not start a browser with {program}; open {} yourself",
            path.display()
        ),
    }
}
