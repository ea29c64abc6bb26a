//! `oomph doctor`: versions, driver and libraries, what works here, and what to do about what does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use oomph_bytes::format_bytes;
use oomph_fit::machine::{self, MachineError};
use oomph_job::{Host, Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, host, packages};
use oomph_report::doctor::{Ability, Check, Doctor, FORMAT, State, doctor_report};
use oomph_report::terminal::width;
use oomph_run::Record;
use serde::Deserialize;

use crate::private::Private;
use crate::{ExitStatus, json, stdout};

/// Arguments of `oomph doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph doctor            what works here, and what to do about what does not\n  oomph doctor --json -   the same for programs\n\nA small script is run on a virtual GPU to find out. What is printed names no directories, users or hosts."
)]
pub struct Args {
    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Looks, and prints what was found.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let private = Private::here();
        let doctor = examine().map(|text| private.out_of(text));
        let status = if doctor.is_well() {
            ExitStatus::Success
        } else {
            ExitStatus::Failed
        };
        if let Some(target) = &self.json {
            json::write(target, &doctor)?;
            if json::is_stdout(target) {
                return Ok(status);
            }
        }
        stdout(&doctor_report(&doctor, width()))?;
        Ok(status)
    }
}

/// The GPU of the script.
const TRIED_ON: &str = "t4";
/// What it allocates at least: parameters, gradients and two moments of 1024 × 1024 numbers.
const SCRIPT_BYTES: u64 = 16 << 20;
const SCRIPT: &str = r#"
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"#;
/// So long it may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Variables that are shown with their values; of all others only that they are set.
const SHOWN: [&str; 6] = [
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
];
const NAMED: [&str; 7] = [
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
    "PYTHONPATH",
    "TORCHINDUCTOR_CACHE_DIR",
];

/// Looks at everything; of the result nothing is private yet.
fn examine() -> Doctor {
    let mut doctor = Doctor {
        format: FORMAT,
        versions: [
            ("oomph", env!("CARGO_PKG_VERSION").to_owned()),
            ("system", system()),
        ]
        .map(|(name, version)| (name.to_owned(), version))
        .into(),
        environment: std::env::vars_os()
            .filter_map(|(name, value)| {
                let (name, value) = (name.into_string().ok()?, value.to_string_lossy());
                let value = if SHOWN.contains(&name.as_str()) {
                    value.into_owned()
                } else if NAMED.contains(&name.as_str()) || name.starts_with("OOMPH_") {
                    "(set)".to_owned()
                } else {
                    return None;
                };
                Some((name, value))
            })
            .collect(),
        checks: Vec::new(),
        works: Vec::new(),
    };
    let host = host::get().ok();
    let tried = match host {
        Some(host) => try_python(host, &mut doctor),
        None => Err(doctor.say(note(
            "Python",
            "this is the command alone, which reads files and runs no script",
            Some("pip install oomph into the environment that has torch, for all the rest"),
        ))),
    };
    look_at_machine(&mut doctor);
    let gpu = look_at_gpu(&mut doctor, tried.as_ref().ok());
    let compiled = host.map(|host| look_at_compiler(&mut doctor, host));
    let mut works = |what, result: Result<(), String>| {
        doctor.works.push(Ability {
            what,
            works: result.is_ok(),
            why: result.err(),
        });
    };
    let tried = tried.map(|_| ());
    works(
        "explain, diff, report, replay, lint, estimate, gpus",
        Ok(()),
    );
    works(
        "run --gpu, fit, check, drift --cpu, gpus --for, pytest --oomph-gpu",
        tried.clone(),
    );
    works(
        "run, run --fit, run --net, drift on a GPU of this machine",
        gpu.and_then(|()| tried.clone()),
    );
    works(
        "scripts that call torch.compile",
        tried.and_then(|()| compiled.unwrap_or(Ok(()))),
    );
    doctor
}

/// The system's name and version, and the machine's kind.
fn system() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kind = std::env::consts::ARCH;
    format!("{} {} {kind}", std::env::consts::OS, release.trim())
}

fn note(name: &'static str, found: impl Into<String>, advice: Option<&str>) -> Check {
    Check {
        name,
        state: State::Note,
        found: found.into(),
        advice: advice.map(str::to_owned),
    }
}

fn good(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        state: State::Good,
        ..note(name, found, None)
    }
}

fn wrong(name: &'static str, found: impl Into<String>, advice: &str) -> Check {
    Check {
        state: State::Wrong,
        ..note(name, found, Some(advice))
    }
}

/// Takes up a check and returns what it found.
trait Say {
    fn say(&mut self, check: Check) -> String;
}

impl Say for Doctor {
    fn say(&mut self, check: Check) -> String {
        let found = check.found.clone();
        self.checks.push(check);
        found
    }
}

/// What the interpreter says of itself.
#[derive(Deserialize)]
struct Python {
    version: String,
    kind: String,
    libc: String,
}

const ASK_PYTHON: &str = r#"
import json, os, platform, sys
kind = "the system's"
if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
    kind = "conda's"
elif sys.prefix != sys.base_prefix:
    kind = "in a virtual environment"
version = platform.python_implementation() + " " + platform.python_version()
print(json.dumps(dict(version=version, kind=kind, libc=" ".join(platform.libc_ver()).strip())))
"#;

/// Looks at the environment around the command, and runs a script there on a virtual GPU. The script's record, or
/// why scripts cannot run.
fn try_python(host: &'static Host, doctor: &mut Doctor) -> Result<Record, String> {
    let asked = Command::new(&host.python)
        .args(["-I", "-c", ASK_PYTHON])
        .output();
    let python = asked.map_err(|error| error.to_string()).and_then(|said| {
        serde_json::from_slice::<Python>(&said.stdout)
            .map_err(|_| String::from_utf8_lossy(&said.stderr).trim().to_owned())
    });
    match python {
        Ok(python) => {
            doctor.say(good(
                "Python",
                format!("{}, {}", python.version, python.kind),
            ));
            for (name, version) in [("python", python.version), ("libc", python.libc)] {
                if !version.is_empty() {
                    doctor.versions.insert(name.to_owned(), version);
                }
            }
        }
        Err(error) => {
            return Err(doctor.say(wrong(
                "Python",
                format!("it does not start: {error}"),
                "Install oomph again, into an environment whose Python works",
            )));
        }
    }
    doctor.versions.extend(packages::packages(host));
    for library in [host.virtual_gpu(), host.net()] {
        if let Err(error) = library {
            return Err(doctor.say(wrong(
                "files",
                error.to_string(),
                "pip install --force-reinstall oomph",
            )));
        }
    }
    match rehearse(host) {
        Ok(record) => {
            let version = format!(
                "{} with CUDA {}",
                record.torch,
                record.cuda.as_deref().unwrap_or("unknown")
            );
            let unproved = record.assumptions.iter().any(|one| one.kind == "version");
            doctor.say(if unproved {
                note(
                    "torch",
                    format!("{version}: oomph was not tested with it; a short probe of it passed"),
                    None,
                )
            } else {
                good("torch", format!("{version}: oomph was tested with it"))
            });
            doctor
                .versions
                .insert("torch".to_owned(), record.torch.clone());
            doctor.say(good(
                "virtual GPU",
                format!("two steps of a small model, in {:.1} s", record.seconds),
            ));
            Ok(record)
        }
        Err(Failure::Refused(text)) => {
            // The second sentence says what to do.
            let (found, advice) = text.split_once(". ").unwrap_or((&text, ""));
            Err(doctor.say(wrong("torch", found, advice)))
        }
        Err(Failure::Other(text)) => Err(doctor.say(wrong(
            "virtual GPU",
            format!("a small script failed on it: {text}"),
            "If nothing else below explains it, report it with this output",
        ))),
    }
}

/// Why a script did not run.
enum Failure {
    /// The recorder says so, and what to do.
    Refused(String),
    Other(String),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(format!("{error:#}"))
    }
}

/// Runs a small script on a virtual GPU.
fn rehearse(host: &'static Host) -> Result<Record, Failure> {
    let place = tempfile::tempdir().context("cannot make a temporary directory")?;
    let script = place.path().join("script.py");
    fs::write(&script, SCRIPT).context("cannot write into the temporary directory")?;
    let directory = RunDirectory::prepare(place.path().join("run"))?;
    let log = directory.file(RunFile::Log);
    let gpu = oomph_gpus::parse_spec(TRIED_ON).context("the catalogue")?;
    let job = Job {
        gpu: Some(VirtualGpu::new(gpu)),
        watch: Watch {
            timeout: Some(PATIENCE),
            ..Watch::default()
        },
        ..Job::new(host, Program::Script(vec![script.into_os_string()]))
    };
    let attempt = job.attempt(&directory, None, Some(&log), "")?;
    if let Some(refusal) = directory.refusal() {
        return Err(Failure::Refused(refusal.trim().to_owned()));
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let record = attempt.record.filter(|record| record.outcome.status == 0);
    let Some(record) = record else {
        let last = last.map_or_else(|| attempt.status.to_string(), str::to_owned);
        return Err(Failure::Other(last));
    };
    let held = record
        .busiest()
        .map_or(0, |device| device.peak_allocated_bytes);
    if held < SCRIPT_BYTES {
        return Err(Failure::Other(format!(
            "it held {}, and should have held {} at least",
            format_bytes(held),
            format_bytes(SCRIPT_BYTES)
        )));
    }
    Ok(record)
}

/// What would stand in the way of any job.
fn look_at_machine(doctor: &mut Doctor) {
    /// What a run may leave.
    const LEAST_ROOM: u64 = 1 << 30;
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    if let Some(limit) = limit {
        doctor.say(wrong(
            "address space",
            format!(
                "limited to {}; a virtual GPU needs as much as the GPU has",
                format_bytes(limit)
            ),
            "ulimit -v unlimited",
        ));
    }
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if overcommit.trim() == "2" {
        doctor.say(wrong(
            "address space",
            "the kernel counts it as used memory (vm.overcommit_memory is 2), and a virtual GPU needs as much as the GPU has",
            "sysctl vm.overcommit_memory=0, or ask the administrator of this machine",
        ));
    }
    let room = |place: &Path| {
        rustix::fs::statvfs(place)
            .map(|found| found.f_bavail * found.f_frsize)
            .ok()
    };
    match room(Path::new("/dev/shm")) {
        Some(bytes) if bytes >= LEAST_ROOM => {}
        found => {
            let bytes = found.map_or_else(
                || "absent".to_owned(),
                |bytes| format!("{} free", format_bytes(bytes)),
            );
            doctor.say(note(
                "/dev/shm",
                format!("{bytes}; several processes of a job meet in TMPDIR instead, and data loaders with workers may fail"),
                Some("in a container: --shm-size=8g, or --ipc=host"),
            ));
        }
    }
    let here = tempfile::tempfile_in(".");
    let free = room(Path::new("."));
    match (here, free) {
        (Err(error), _) => {
            doctor.say(wrong(
                "this directory",
                format!("nothing can be written here: {error}"),
                "Change to a directory of yours, or name one with --out",
            ));
        }
        (Ok(_), Some(bytes)) if bytes < LEAST_ROOM => {
            doctor.say(note(
                "this directory",
                format!(
                    "{} free; the record of a long run needs some hundred MiB",
                    format_bytes(bytes)
                ),
                Some("oomph clean, or name another directory with --out"),
            ));
        }
        (Ok(_), _) => {}
    }
}

/// Looks at the GPU and its driver. `Err` says why scripts cannot use it.
fn look_at_gpu(doctor: &mut Doctor, tried: Option<&Record>) -> Result<(), String> {
    const NAME: &str = "GPU";
    let driver = match machine::driver() {
        Ok(driver) => driver,
        Err(_) if !super::run::has_driver() => {
            doctor.say(note(
                NAME,
                "none on this machine; oomph run --gpu NAME needs none",
                None,
            ));
            return Err("there is no GPU".to_owned());
        }
        Err(error) => {
            return Err(doctor.say(wrong(
                NAME,
                format!("there is a driver, but it cannot be asked: {}", reason(&error)),
                "If nvidia-smi fails too, restart after the driver's last update; in a container, pass the GPU and its utilities on (--gpus all, NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
            )));
        }
    };
    doctor
        .versions
        .insert("driver".to_owned(), driver.version.clone());
    let gpus = match machine::gpus(&machine::Visibility::of_environment()) {
        Ok(gpus) => gpus,
        Err(error) => {
            return Err(doctor.say(wrong(
                NAME,
                reason(&error),
                "See docs/run.md, On a real GPU",
            )));
        }
    };
    for gpu in &gpus {
        let (total, free) = (gpu.reported.total_bytes, gpu.free_bytes);
        let known = if oomph_gpus::find(&gpu.reported.name).is_ok() {
            ""
        } else {
            "; the catalogue lacks it, and its like stands for it"
        };
        let found = format!(
            "{}, {}, {} free{known}",
            gpu.reported.name,
            format_bytes(total),
            format_bytes(free)
        );
        doctor.say(good(NAME, found));
    }
    let built_for = tried
        .and_then(|record| record.cuda.as_deref())
        .and_then(|cuda| cuda.split('.').next()?.parse::<i32>().ok());
    match built_for {
        Some(needed) if needed > driver.cuda.0 => Err(doctor.say(wrong(
            "driver",
            format!(
                "{} is for CUDA {}.{}, and torch is built for CUDA {needed}",
                driver.version, driver.cuda.0, driver.cuda.1
            ),
            "Update the driver, or install a torch that is built for its CUDA",
        ))),
        _ => Ok(()),
    }
}

/// What is wrong with the GPU, without what only `oomph run --fit` would do about it.
fn reason(error: &MachineError) -> String {
    match error {
        MachineError::Driver(why) => why.clone(),
        error => error.to_string(),
    }
}

/// Looks for what `torch.compile` needs. `Err` says what is missing.
fn look_at_compiler(doctor: &mut Doctor, host: &Host) -> Result<(), String> {
    const NAME: &str = "torch.compile";
    let has_compiler = ["CC", "CXX"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
        || ["gcc", "clang", "cc"].iter().any(|name| is_on_path(name));
    let has_triton = packages::packages(host).contains_key("triton");
    let missing = match (has_compiler, has_triton) {
        (true, true) => return Ok(()),
        (false, _) => "there is no C compiler",
        (true, false) => "Triton is not installed",
    };
    Err(doctor.say(note(
        NAME,
        missing,
        Some("Only scripts that call it need it, as on any GPU"),
    )))
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join(name).is_file())
}
