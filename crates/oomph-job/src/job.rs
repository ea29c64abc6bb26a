//! A script run once under the recorder: what `oomph run` and `oomph fit` have in common.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oomph_allocator::{Config, Program, TorchVersion};
use oomph_gpus::GpuSpec;
use oomph_plan::Lever;
use oomph_run::record::Device;
use oomph_run::{Record, attribute};
use oomph_trace::{Bytes, Trace};
use rustix::fs::FlockOperation;

use crate::cluster::{self, Hall};
use crate::host::Host;
use crate::live::{self, Inherits};
use crate::run_directory;

/// What to run, and on what.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings of a run"
)]
pub struct Job {
    /// The Python that runs it.
    pub host: &'static Host,
    /// `script args…` or `-m module args…`; with `launches`, a launcher and its arguments.
    pub words: Vec<OsString>,
    /// Whether the words start ranks by themselves.
    pub launches: bool,
    /// The one rank that is run of a job of so many, the others being absent.
    pub rehearsed: Option<Rehearsed>,
    /// How long a rank may do nothing while others wait for it.
    pub rank_patience: Duration,
    /// Whether a launcher's ranks are forked from one process that has imported torch.
    pub fork: bool,
    /// The virtual GPU; `None` runs on the real one.
    pub gpu: Option<GpuSpec>,
    /// The capacity in bytes, as the driver reports it.
    pub total: Option<u64>,
    /// After how many optimizer steps the script ends; `None` lets it go on.
    pub steps: Option<u32>,
    /// What a plan changes in the script.
    pub levers: Vec<Lever>,
    /// Another job that is like this one: only `oomph fit` asks for it, and says so.
    pub variant: Variant,
    /// How comparisons of uncomputed values resolve.
    pub unknown: String,
    /// Whether other versions of torch are taken.
    pub unsupported: bool,
    /// Whether the script's output goes to standard error.
    pub to_stderr: bool,
    /// Whether the script only infers, whatever it builds.
    pub inference: bool,
    /// Whether a terminal shows where the script is.
    pub live: bool,
    /// How long the script may take before it is ended; `None` lets it take its time.
    pub patience: Option<Duration>,
    /// Outputs are kept or compared, and memory is not recorded.
    pub compared: Option<Compared>,
}

/// One of two runs whose outputs are compared.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    /// Whether it is the second, with a plan.
    pub planned: bool,
    /// How many calls of models.
    pub calls: u32,
    /// Whether a GPU is hidden from it.
    pub cpu: bool,
}

/// How a job is made smaller or larger, to see what that would need. Nothing is changed by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Variant {
    /// Samples in each batch of a data loader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Length of each sequence of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Rows of each image that a model is called with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u64>,
    /// The part of the repeated blocks that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<f64>,
    /// The part of each layer's width that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<f64>,
    /// Whether convolutions are of each channel for itself, then across channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separable: Option<bool>,
    /// How many steps down in the model's family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<u32>,
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
    /// Why ranks could not go on together: kind, rank, what happened.
    pub failure: Option<(String, u32, String)>,
}

impl Job {
    /// Runs the script once; `limit` is the capacity that is enforced, `log` takes its output,
    /// `doing` is what the status line says.
    pub fn attempt(
        &self,
        directory: &Path,
        limit: Option<u64>,
        log: Option<&Path>,
        doing: &str,
    ) -> anyhow::Result<Attempt> {
        let directory = fs::canonicalize(directory)
            .with_context(|| format!("cannot use {}", directory.display()))?;
        for stale in [
            "record.json",
            "trace.pickle",
            "failure.pickle",
            "refused.txt",
            "status",
        ] {
            let _ = fs::remove_file(directory.join(stale));
        }
        let mut command = self.command()?;
        let config = directory.join("virtual-gpu.conf");
        let lock = directory.join("lock");
        // Held until the script is over, or this process is dead: the script ends with it. Some file
        // systems have no locks; there it lives on.
        let held = fs::File::create(&lock)
            .ok()
            .filter(|file| rustix::fs::flock(file, FlockOperation::LockExclusive).is_ok());
        let mut settings = serde_json::json!({
            "directory": directory,
            "lock": held.is_some().then_some(&lock),
            "fork": self.fork,
            "virtual": self.gpu.is_some(),
            "unsupported": self.unsupported,
            "rule": self.unknown,
            "steps": self.steps,
            "levers": self.levers,
            "variant": self.variant,
            "config": config,
            "inference": self.inference,
        });
        let several = self.launches
            || self.rehearsed.is_none() && self.gpu.as_ref().is_some_and(|gpu| gpu.count > 1);
        settings["several"] = several.into();
        if let Some(compared) = &self.compared {
            settings["drift"] =
                serde_json::json!({ "planned": compared.planned, "calls": compared.calls });
            if compared.cpu {
                command.env("CUDA_VISIBLE_DEVICES", "");
            }
        }
        if let Some(rehearsed) = &self.rehearsed {
            settings["rehearsal"] = true.into();
            rehearsed.tell(&mut command);
        }
        let mut hall = (several && self.gpu.is_some())
            .then(Hall::open)
            .transpose()?;
        let settings_path = directory.join("settings.json");
        fs::write(&settings_path, settings.to_string())
            .context("cannot write the settings of the run")?;
        if !self.launches {
            command.env("OOMPH_RUN", &settings_path);
        }
        if several {
            cluster::hook(&mut command, self.host, &settings_path);
            if self.launches && command.get_program() == self.host.python {
                command.env("OOMPH_LAUNCHER", "1");
            }
        }
        if let Some(spec) = &self.gpu {
            let library = self.host.virtual_gpu()?;
            fs::write(&config, self.config(spec, limit, hall.as_ref()))
                .context("cannot write the settings of the virtual GPU")?;
            let mut preload = library.clone().into_os_string();
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty())
            {
                preload.push(":");
                preload.push(others);
            }
            command
                .env("LD_PRELOAD", preload)
                .env("OOMPH_VGPU", &config);
            command.env("TRITON_LIBCUDA_PATH", Host::virtual_gpu_directory(&library));
            // What torch.compile decides by timing a virtual GPU must not reach a real one's cache,
            // nor the other way round; nor must what an older virtual GPU timed.
            if std::env::var_os("TORCHINDUCTOR_CACHE_DIR").is_none()
                && let Some(cache) = cache_directory()
            {
                command.env(
                    "TORCHINDUCTOR_CACHE_DIR",
                    cache.join(format!(
                        "inductor-{}-{}",
                        spec.found.gpu.id,
                        env!("CARGO_PKG_VERSION")
                    )),
                );
            }
        }
        if let Some(path) = log {
            let file = fs::File::create(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let again = file.try_clone().context("cannot write the log")?;
            command.stdin(Stdio::null()).stdout(file).stderr(again);
        } else if self.to_stderr {
            command.stdout(std::io::stderr());
        }
        let inherits = match (log, self.to_stderr || std::io::stdout().is_terminal()) {
            (Some(_), _) => Inherits::Nothing,
            (None, true) => Inherits::Both,
            (None, false) => Inherits::Stderr,
        };
        if let Some(hall) = &mut hall {
            hall.watch();
        }
        let status = if self.live && live::wanted() {
            let first = if self.launches {
                "rank-0/status"
            } else {
                "status"
            };
            live::run(&mut command, doing, &directory.join(first), inherits)
        } else if let Some(patience) = self.patience {
            status_within(&mut command, patience)
        } else {
            command.status()
        }
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        drop(held);
        let _ = fs::remove_file(&lock);
        let record_path = directory.join("record.json");
        let record = record_path
            .exists()
            .then(|| crate::files::read_record(&record_path))
            .transpose()?;
        let trace = match &record {
            Some(record) => read_trace(&directory, record)?,
            None => None,
        };
        Ok(Attempt {
            status,
            record,
            trace,
            failure: hall.as_ref().and_then(Hall::failure),
        })
    }

    fn command(&self) -> anyhow::Result<Command> {
        if !self.launches {
            let mut command = Command::new(&self.host.python);
            command.arg("-m").arg("oomph.launch").args(&self.words);
            return Ok(command);
        }
        let (program, arguments) = self.words.split_first().context("no launcher was given")?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }

    fn config(&self, spec: &GpuSpec, limit: Option<u64>, hall: Option<&Hall>) -> String {
        let total = self.total.unwrap_or(spec.found.gpu.memory.total_bytes);
        let mut text = spec.found.gpu.to_key_values_with_memory(total);
        let _ = writeln!(text, "count={}", spec.count);
        let _ = writeln!(text, "memory.limit_bytes={}", limit.unwrap_or(u64::MAX));
        if let Some(hall) = hall {
            let _ = writeln!(text, "ranks.directory={}", hall.directory().display());
            let patience = self.rank_patience.as_millis();
            let _ = writeln!(text, "ranks.patience_ms={patience}");
        }
        text
    }
}

impl Rehearsed {
    /// Tells the script in its environment which rank it is, as torchrun does.
    fn tell(&self, command: &mut Command) {
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

/// What the process held outside of the allocator. A virtual GPU has no other process: whatever is
/// neither free nor PyTorch's is this one's. On a real GPU the driver does not tell them apart.
fn outside(trace: &Trace, record: &Record, device: &Device) -> Option<Bytes> {
    if !record.r#virtual {
        return None;
    }
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    let program = Program::new(trace, device.index, &config);
    let at_failure = program.failure().map(|failure| {
        // An event of a failure carries the device's free memory as its address.
        device
            .total_bytes
            .saturating_sub(failure.addr)
            .saturating_sub(program.reserved_at(failure.alloc_row))
    });
    Some(Bytes(at_failure.unwrap_or(device.outside_bytes)))
}

/// Runs a command, and ends it when it takes longer than `patience`.
fn status_within(command: &mut Command, patience: Duration) -> std::io::Result<ExitStatus> {
    const LOOK: Duration = Duration::from_millis(50);
    let mut child = command.spawn()?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() > patience {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads the history, labels it, and keeps it in oomph's own compact form.
pub fn read_trace(directory: &Path, record: &Record) -> anyhow::Result<Option<Trace>> {
    let path = directory.join("trace.pickle");
    let Some(device) = record.busiest() else {
        return Ok(None);
    };
    if !path.exists() {
        return Ok(None);
    }
    let (mut trace, _problems) = crate::files::read_snapshot(&path)?;
    attribute(&mut trace, record, device.index);
    trace.context.device_total = Some(Bytes(device.total_bytes));
    trace.context.device_name = Some(device.name.clone());
    trace.context.outside = outside(&trace, record, device);
    trace.context.torch_version = Some(record.torch.clone());
    let kept = directory.join("trace.oomph");
    let file =
        fs::File::create(&kept).with_context(|| format!("cannot write {}", kept.display()))?;
    let mut out = std::io::BufWriter::new(file);
    oomph_trace::oomph_file::write(&trace, &mut out)
        .and_then(|()| out.flush())
        .with_context(|| format!("cannot write {}", kept.display()))?;
    // The compact form holds all of it.
    let _ = fs::remove_file(&path);
    Ok(Some(trace))
}

/// Where caches go: `$XDG_CACHE_HOME/oomph` or `~/.cache/oomph`.
fn cache_directory() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let base =
        base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("oomph"))
}

/// The directory of a run: the one that was asked for, or else `oomph-report/NAME-N`.
/// `words` are a script's, or a launcher's if it `launches`.
pub fn run_directory(
    asked: Option<&Path>,
    words: &[OsString],
    launches: bool,
) -> anyhow::Result<PathBuf> {
    if let Some(directory) = asked {
        run_directory::prepare(directory)?;
        return Ok(directory.to_owned());
    }
    let name = if launches {
        cluster::script_of(words)
    } else {
        words.iter().find(|word| *word != "-m")
    };
    let name = name.map(PathBuf::from).unwrap_or_default();
    let name = name
        .file_stem()
        .map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned());
    run_directory::make_numbered(&name)
}
