//! A script run once under the recorder: what `oomph run`, `fit` and `drift` have in common.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{IsTerminal as _, Read as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oomph_allocator::{Config, Program as Replay, TorchVersion};
use oomph_plan::{Lever, Stop};
use oomph_run::processes::{Cards, Processes};
use oomph_run::ranks::Culprit;
use oomph_run::record::Device;
use oomph_run::{Record, attribute};
use oomph_trace::{Bytes, Trace};

use crate::card;
use crate::files::{self, create_private};
use crate::forks::Forks;
use crate::host::Host;
use crate::live::{self, Inherits};
use crate::overlay::{Overlay, Written};
use crate::program::Program;
use crate::rendezvous::Rendezvous;
use crate::run_directory::{RunDirectory, RunFile};
use crate::settings::{FORMAT, Recording, Settings, variables};
use crate::signals;
use crate::status_line;
use crate::virtual_gpu::{VirtualGpu, preload_first};
use crate::watchdog::Watchdog;

/// What is run, on which GPU, how it is recorded and how it is watched.
#[derive(Debug, Clone)]
pub struct Job {
    /// The Python that runs it.
    pub host: &'static Host,
    /// What is run.
    pub program: Program,
    /// The rank to run, if the other ranks of its job are absent.
    pub rehearsed: Option<Rehearsed>,
    /// The virtual GPU; `None` runs on the real one.
    pub gpu: Option<VirtualGpu>,
    /// Whether the job goes on in host memory when the GPU's is used up.
    pub net: bool,
    /// What is recorded, and what is changed in the script.
    pub recording: Recording,
    /// Who sees the script's output, and how long it may take.
    pub watch: Watch,
    /// Forks the script, if it is one of many runs.
    pub forks: Option<Arc<Forks>>,
    /// More variables of its environment.
    pub variables: Vec<(&'static str, &'static str)>,
}

/// Who sees a script's output, and how long it may take.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Whether to show the script's progress on the terminal.
    pub live: bool,
    /// Whether the script's output goes to standard error.
    pub to_stderr: bool,
    /// How long the script may run before it is killed; `None` for no limit.
    pub timeout: Option<Duration>,
    /// When to give up the run: it is killed, and the attempt fails with [`Stopped`](oomph_plan::Stopped).
    /// `None` leaves Ctrl-C to the script.
    pub stop: Option<Stop>,
    /// How long it may go on after SIGTERM or SIGHUP to this process.
    pub grace: Duration,
    /// After how long without a pass to say that it hangs: `None` leaves that to what steps usually take. It is said only
    /// where there is a black box.
    pub stall: Option<Duration>,
    /// Ends the program as SIGTERM does once its log has this line: a server has no end of its own.
    pub until: Option<&'static str>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            live: false,
            to_stderr: false,
            timeout: None,
            stop: None,
            grace: signals::GRACE,
            stall: None,
            until: None,
        }
    }
}

/// One rank of a job whose other ranks are absent.
#[derive(Debug, Clone, Copy)]
pub struct Rehearsed {
    /// Its rank.
    pub rank: u32,
    /// Ranks of the whole job.
    pub world_size: u32,
    /// Ranks of one host.
    pub per_host: u32,
}

/// One run of the script.
#[derive(Debug)]
pub struct Attempt {
    /// How the script's process, or its launcher's, ended.
    pub status: ExitStatus,
    /// The recorder's account, if it was written.
    pub record: Option<Record>,
    /// The memory history, if there is one.
    pub trace: Option<Trace>,
    /// Why ranks could not go on together.
    pub failure: Option<Culprit>,
    /// What the script wrote on a virtual GPU that is gone now.
    pub written: Written,
    /// What the processes held of a virtual GPU.
    pub processes: Processes,
}

const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

impl Job {
    /// An unmodified program on the real GPU, with the default settings.
    pub fn new(host: &'static Host, program: Program) -> Self {
        Self {
            host,
            program,
            rehearsed: None,
            gpu: None,
            net: false,
            recording: Recording::default(),
            watch: Watch::default(),
            forks: None,
            variables: Vec::new(),
        }
    }

    /// The capacity of a virtual GPU, in bytes.
    pub fn total_bytes(&self) -> Option<u64> {
        self.gpu.as_ref().map(|gpu| gpu.total_bytes)
    }

    /// Whether each rank is a separate process.
    pub(crate) fn is_several(&self) -> bool {
        let has_gpus = self.gpu.as_ref().is_some_and(|gpu| gpu.spec.count > 1);
        self.program.launches() || self.rehearsed.is_none() && has_gpus && !self.program.serves()
    }

    /// Whether it is an engine whose processes share several GPUs.
    fn serves_on_several(&self) -> bool {
        self.program.serves() && self.gpu.as_ref().is_some_and(|gpu| gpu.spec.count > 1)
    }

    /// Runs the program once; `limit` is the capacity in bytes that is enforced, `log` takes its output,
    /// `doing` is what the status line says.
    pub fn attempt(
        &self,
        directory: &RunDirectory,
        limit: Option<u64>,
        log: Option<&Path>,
        doing: &str,
    ) -> anyhow::Result<Attempt> {
        if let Some(signal) = signals::received() {
            bail!("ended by {signal}");
        }
        let directory = directory.canonical()?;
        directory.begin_attempt();
        // Held until the script is over, or this process is dead: the script ends with it. Where a file
        // system has no locks, it lives on.
        let lock = directory.lock();
        let several = self.is_several();
        let has_ranks = several || self.serves_on_several();
        let mut rendezvous = self.gpu.as_ref().map(|_| Rendezvous::open()).transpose()?;
        let settings = directory.write_settings(&Settings {
            format: FORMAT,
            r#virtual: self.gpu.is_some(),
            several,
            rehearsal: self.rehearsed.is_some(),
            locked: lock.is_some(),
            recording: self.recording.clone(),
        })?;
        let mut command = self.program.command(self.host);
        command.envs(self.variables.iter().copied());
        self.set_environment(&mut command, &settings, several);
        if let (Some(gpu), Some(rendezvous)) = (&self.gpu, &rendezvous) {
            gpu.preload(
                &mut command,
                self.host,
                &directory,
                limit,
                rendezvous,
                has_ranks,
            )?;
        }
        let overlay = (self.gpu.as_ref().filter(|gpu| !gpu.keeps_files))
            .map(|_| Overlay::open(&mut command, directory.path(), &self.host.python))
            .transpose()?;
        if self.has_net() {
            preload_first(&mut command, &self.host.net()?);
            // A process that forks scripts has not preloaded it.
            command.env(variables::FORKS, "");
            if std::env::var_os(variables::NET).is_none() {
                command.env(variables::NET, "on");
            }
        }
        if let Some(forks) = &self.forks
            && !several
            && self.rehearsed.is_none()
        {
            forks.serve(&mut command);
        }
        let inherits = self.direct_output(&mut command, log)?;
        if let Some(rendezvous) = rendezvous.as_mut().filter(|_| has_ranks) {
            rendezvous.watch();
        }
        let watchdog = (self.recording.black_box && self.watch.stall != Some(Duration::ZERO))
            .then(|| Watchdog::start(&directory, self.watch.stall))
            .flatten();
        let status = if self.watch.live && status_line::wanted() {
            let first = if self.program.launches() {
                directory.rank(0)
            } else {
                directory.clone()
            };
            let status = first.file(RunFile::Status);
            let watchdog = watchdog.as_ref();
            live::run(
                &mut command,
                self.watch.grace,
                doing,
                &status,
                inherits,
                watchdog,
            )
        } else {
            status_within(&mut command, &self.watch, watchdog.as_ref(), log)
        }
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        drop(lock);
        directory.remove_unfinished();
        if let Some(stop) = &self.watch.stop {
            stop.check()?;
        }
        let record = directory.record()?;
        let cards = rendezvous
            .as_ref()
            .map_or_else(Cards::default, |rendezvous| card::read(&rendezvous.card()));
        let trace = match &record {
            Some(record) => label_trace(&directory, record, &cards)?,
            None => None,
        };
        let script = record.as_ref().filter(|_| !several);
        let script = script.map_or(0, |record| record.process);
        Ok(Attempt {
            status,
            record,
            trace,
            failure: rendezvous.as_ref().and_then(Rendezvous::failure),
            written: overlay.as_ref().map(Overlay::written).unwrap_or_default(),
            processes: Processes {
                cards,
                script,
                summarized: script,
                ..Processes::default()
            },
        })
    }

    /// Whether the net is there: it was asked for, or a plan has it.
    fn has_net(&self) -> bool {
        let mut levers = self.recording.levers.iter();
        self.net || levers.any(Lever::needs_launcher)
    }

    /// Leads the recorder to its settings.
    fn set_environment(&self, command: &mut Command, settings: &Path, several: bool) {
        if !self.program.launches() {
            command.env(variables::RUN, settings);
        }
        // The Python processes below it are recorded: ranks, and on a virtual GPU whatever a script starts.
        let is_whole = self.rehearsed.is_none() && self.recording.drift.is_none();
        if several || self.gpu.is_some() && is_whole {
            command
                .env(variables::RANKS, settings)
                .env("PYTHONPATH", with_hook(self.host));
            if self.program.launches() && command.get_program() == self.host.python {
                command.env(variables::LAUNCHER, "1");
            }
        }
        if let Some(rehearsed) = &self.rehearsed {
            rehearsed.set_environment(command);
        }
        if self.gpu.is_some() {
            // A value from outside speaks of the real machine's GPUs; what the script sets counts.
            command.env_remove(DEVICES);
        }
        if self.recording.drift.is_some_and(|drift| drift.on_cpu) {
            command.env(DEVICES, "");
        }
    }

    /// Where the program's streams go; those that it inherits.
    fn direct_output(&self, command: &mut Command, log: Option<&Path>) -> anyhow::Result<Inherits> {
        if let Some(path) = log {
            let out =
                create_private(path).with_context(|| format!("cannot write {}", path.display()))?;
            let errors = out.try_clone().context("cannot write the log")?;
            command.stdin(Stdio::null()).stdout(out).stderr(errors);
            return Ok(Inherits::Nothing);
        }
        if self.watch.to_stderr {
            command.stdout(std::io::stderr());
        }
        Ok(if self.watch.to_stderr || std::io::stdout().is_terminal() {
            Inherits::Both
        } else {
            Inherits::Stderr
        })
    }
}

impl Rehearsed {
    /// Tells the script in its environment which rank it is, as torchrun does.
    fn set_environment(&self, command: &mut Command) {
        let per_host = self.per_host.max(1);
        for (name, value) in [
            ("RANK", self.rank),
            ("WORLD_SIZE", self.world_size),
            ("LOCAL_RANK", self.rank % per_host),
            ("LOCAL_WORLD_SIZE", per_host.min(self.world_size)),
            ("GROUP_RANK", self.rank / per_host),
            ("NODE_RANK", self.rank / per_host),
        ] {
            command.env(name, value.to_string());
        }
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500");
    }
}

/// `PYTHONPATH` with the module first that Python imports when it starts.
pub(crate) fn with_hook(host: &Host) -> OsString {
    let mut path = host.package.join("_hook").into_os_string();
    if let Some(others) = std::env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// A text that a program will write to its log, which is read once.
struct Awaited<'a> {
    text: &'a [u8],
    log: File,
    /// What was read last: the text may come in two parts.
    read: Vec<u8>,
}

impl<'a> Awaited<'a> {
    fn new(text: &'a str, log: &Path) -> std::io::Result<Self> {
        Ok(Self {
            text: text.as_bytes(),
            log: File::open(log)?,
            read: Vec::new(),
        })
    }

    fn is_there(&mut self) -> bool {
        let old = self.read.len().saturating_sub(self.text.len());
        self.read.drain(..old);
        // What cannot be read now can be read later.
        let _ = self.log.read_to_end(&mut self.read);
        (self.read.windows(self.text.len())).any(|part| part == self.text)
    }
}

/// Runs a command, and ends it when it takes too long or is given up, or when its `log` has the line to wait for.
fn status_within(
    command: &mut Command,
    watch: &Watch,
    watchdog: Option<&Watchdog>,
    log: Option<&Path>,
) -> std::io::Result<ExitStatus> {
    const LOOK: Duration = Duration::from_millis(50);
    let mut awaited = (watch.until.zip(log))
        .map(|(line, log)| Awaited::new(line, log))
        .transpose()?;
    let mut child = signals::spawn(command, watch.grace)?;
    if watch.timeout.is_none() && watch.stop.is_none() && watchdog.is_none() && awaited.is_none() {
        return child.wait();
    }
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if awaited.as_mut().is_some_and(Awaited::is_there) {
            awaited = None;
            child.terminate()?;
        }
        if let Some(line) = watchdog.and_then(Watchdog::line)
            && watch.live
        {
            eprintln!("{line}");
        }
        let late = watch.timeout.is_some_and(|most| started.elapsed() > most);
        if late
            || watch
                .stop
                .as_ref()
                .is_some_and(|stop| stop.check().is_err())
        {
            signals::kill_below(child.id());
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(LOOK);
    }
}

/// What the process held outside the allocator. If a virtual GPU had no other process, all memory that is
/// neither free nor PyTorch's belongs to this one. A real GPU's driver does not distinguish processes.
fn outside(trace: &Trace, record: &Record, device: &Device, cards: &Cards) -> Option<Bytes> {
    if !record.r#virtual {
        return None;
    }
    if cards.processes.len() > 1 {
        return Some(Bytes(device.outside_bytes));
    }
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    let program = Replay::new(trace, device.index, &config);
    let at_failure = program.failure().map(|failure| {
        // An event of a failure carries the device's free memory as its address.
        device
            .total_bytes
            .saturating_sub(failure.addr)
            .saturating_sub(program.reserved_at(failure.alloc_row))
    });
    Some(Bytes(at_failure.unwrap_or(device.outside_bytes)))
}

/// Reads PyTorch's history of a run, labels it, and keeps it in oomph's own compact form. `None` if the
/// run left none.
pub fn label_trace(
    directory: &RunDirectory,
    record: &Record,
    cards: &Cards,
) -> anyhow::Result<Option<Trace>> {
    let Some(device) = record.busiest() else {
        return Ok(None);
    };
    if !directory.has(RunFile::Snapshot) {
        return Ok(None);
    }
    let snapshot = directory.file(RunFile::Snapshot);
    let (mut trace, _problems) = files::read_snapshot(&snapshot)?;
    attribute(&mut trace, record, device.index);
    trace.context.device_total = Some(Bytes(device.total_bytes));
    trace.context.device_name = Some(device.name.clone());
    trace.context.outside = outside(&trace, record, device, cards);
    trace.context.torch_version = Some(record.torch.clone());
    directory.write_trace(&trace)?;
    // The compact form holds all of it.
    let _ = fs::remove_file(&snapshot);
    Ok(Some(trace))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_log_is_read_once_and_its_line_may_come_in_parts() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let mut awaited = Awaited::new("it waits", log.path()).unwrap();
        assert!(!awaited.is_there());
        log.write_all(&[b'.'; 10_000]).unwrap();
        log.write_all(b"it w").unwrap();
        assert!(!awaited.is_there());
        assert!(!awaited.is_there());
        assert_eq!(
            awaited.read.len(),
            8,
            "nothing but the end is read or kept again"
        );
        log.write_all(b"aits now").unwrap();
        assert!(awaited.is_there());
    }

    #[test]
    fn a_server_is_ended_when_its_log_says_that_it_waits() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "trap 'exit 7' TERM; echo waits; while :; do sleep 0.01; done",
            ])
            .stdout(log.reopen().unwrap());
        let watch = Watch {
            until: Some("waits"),
            ..Watch::default()
        };
        let status = status_within(&mut command, &watch, None, Some(log.path())).unwrap();
        assert_eq!(status.code(), Some(7));
    }
}
