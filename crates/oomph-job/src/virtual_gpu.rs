//! The virtual GPU of a run: `virtual-gpu.conf`, which its library reads, and the script's environment.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oomph_gpus::GpuSpec;

use crate::caches::cache_directory;
use crate::host::Host;
use crate::job::with_hook;
use crate::rendezvous::Rendezvous;
use crate::run_directory::{RunDirectory, RunFile};
use crate::settings::{FORMAT, Recording, Settings, variables};

/// How long a rank may do nothing while others wait for it, unless the user says otherwise.
pub const RANK_TIMEOUT_SECONDS: u64 = 12;

/// A virtual GPU, or several of one kind.
#[derive(Debug, Clone)]
pub struct VirtualGpu {
    /// Which GPU, and how many.
    pub spec: GpuSpec,
    /// The capacity of each in bytes, as the driver reports it.
    pub total_bytes: u64,
    /// How long a rank may do nothing while others wait for it.
    pub rank_timeout: Duration,
    /// How many times as long its kernels take as its own clock says.
    pub slower: f64,
    /// Whether the files that the script writes stay, also where they take the place of others.
    pub keeps_files: bool,
}

impl VirtualGpu {
    /// GPUs with the memory that they are sold with.
    pub fn new(spec: GpuSpec) -> Self {
        Self {
            total_bytes: spec.found.gpu.memory.total_bytes,
            spec,
            rank_timeout: Duration::from_secs(RANK_TIMEOUT_SECONDS),
            slower: 1.0,
            keeps_files: false,
        }
    }

    /// The text of `virtual-gpu.conf`. `limit` is the capacity that is enforced, in bytes. The recorder
    /// adds torch's version of CUDA.
    fn config(&self, limit: Option<u64>, rendezvous: &Rendezvous, several: bool) -> String {
        let mut text = self
            .spec
            .found
            .gpu
            .to_key_values_with_memory(self.total_bytes);
        let _ = writeln!(text, "count={}", self.spec.count);
        let slower = (self.slower * 1e3).round() as u64;
        let _ = writeln!(text, "clock.kernels_per_mille={slower}");
        let _ = writeln!(text, "memory.limit_bytes={}", limit.unwrap_or(u64::MAX));
        let _ = writeln!(text, "card.file={}", rendezvous.card().display());
        if several {
            let _ = writeln!(text, "ranks.directory={}", rendezvous.directory().display());
            let timeout = self.rank_timeout.as_millis();
            let _ = writeln!(text, "ranks.patience_ms={timeout}");
        }
        text
    }

    /// Writes what the library reads, and lets `command` load the library.
    pub(crate) fn preload(
        &self,
        command: &mut Command,
        host: &Host,
        directory: &RunDirectory,
        limit: Option<u64>,
        rendezvous: &Rendezvous,
        several: bool,
    ) -> anyhow::Result<()> {
        let library = host.virtual_gpu()?;
        directory.write(
            RunFile::VirtualGpu,
            self.config(limit, rendezvous, several).as_bytes(),
        )?;
        preload_first(command, &library);
        command
            .env(variables::VIRTUAL_GPU, directory.file(RunFile::VirtualGpu))
            .envs(self.places(&library));
        Ok(())
    }

    /// The variables that a program needs that is to start with the library preloaded; which GPU it is, is said later
    /// ([`VirtualGpu::lend`]).
    pub fn environment(&self, host: &Host) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        let library = host.virtual_gpu()?;
        let mut variables = self.places(&library);
        variables.push((PRELOAD, before_others(&library, std::env::var_os(PRELOAD))));
        Ok(variables)
    }

    /// Gives a virtual GPU to a process that runs already, with the library preloaded, and has not looked at its GPUs yet.
    /// What it and the processes that it starts leave goes into `directory`, which must be new or empty.
    pub fn lend(
        &self,
        host: &Host,
        directory: &Path,
        recording: &Recording,
    ) -> anyhow::Result<Lent> {
        let directory = RunDirectory::prepare(directory)?.canonical()?;
        let several = self.spec.count > 1;
        let rendezvous = Rendezvous::open()?;
        let config = self.config(Some(self.total_bytes), &rendezvous, several);
        directory.write(RunFile::VirtualGpu, config.as_bytes())?;
        let settings = directory.write_settings(&Settings {
            format: FORMAT,
            r#virtual: true,
            several,
            rehearsal: false,
            locked: false,
            recording: recording.clone(),
        })?;
        Ok(Lent {
            environment: vec![
                (
                    variables::VIRTUAL_GPU,
                    directory.file(RunFile::VirtualGpu).into(),
                ),
                (variables::RANKS, settings.into()),
                ("PYTHONPATH", with_hook(host)),
            ],
            _rendezvous: rendezvous,
        })
    }

    /// Where programs find what belongs to the virtual GPU.
    fn places(&self, library: &Path) -> Vec<(&'static str, OsString)> {
        let driver = Host::virtual_gpu_directory(library);
        let mut variables = vec![("TRITON_LIBCUDA_PATH", driver.as_os_str().to_owned())];
        if let Some(path) = with_nvidia_smi(library) {
            variables.push(("PATH", path));
        }
        // For programs that lose LD_PRELOAD, or that look for the file before they open it.
        let mut nvml = driver.join("nvml").into_os_string();
        if let Some(others) = std::env::var_os(LIBRARIES).filter(|others| !others.is_empty()) {
            nvml.push(":");
            nvml.push(others);
        }
        variables.push((LIBRARIES, nvml));
        variables.extend(NO_CACHES.map(|(name, value)| (name, value.into())));
        // What torch.compile decides by timing a virtual GPU must not reach a real one's cache, nor the
        // other way round; nor must what an older virtual GPU timed.
        if let Some(cache) = cache_directory() {
            for (variable, of) in [(INDUCTOR_CACHE, "inductor"), (VLLM_CACHE, "vllm")] {
                if std::env::var_os(variable).is_none() {
                    let gpu = &self.spec.found.gpu.id;
                    let name = format!("{of}-{gpu}-{}", env!("CARGO_PKG_VERSION"));
                    variables.push((variable, cache.join(name).into()));
                }
            }
        }
        // A pool of processes that compile imports torch once more in each run. Two processors are quicker without.
        let few = std::thread::available_parallelism().is_ok_and(|count| count.get() <= 2);
        if few && std::env::var_os(INDUCTOR_THREADS).is_none() {
            variables.push((INDUCTOR_THREADS, "1".into()));
        }
        variables
    }
}

/// A virtual GPU that another process uses for as long as this lives.
#[derive(Debug)]
pub struct Lent {
    /// What that process sets in its environment, for itself and for those that it starts.
    pub environment: Vec<(&'static str, OsString)>,
    _rendezvous: Rendezvous,
}

const PRELOAD: &str = "LD_PRELOAD";
const LIBRARIES: &str = "LD_LIBRARY_PATH";
/// Programs keep what NVRTC and XLA compile in files, under the name of the GPU. What a virtual GPU compiles is no code,
/// and a run on the real GPU would load it: they keep none.
const NO_CACHES: [(&str, &str); 3] = [
    ("USE_PYTORCH_KERNEL_CACHE", "0"),
    ("CUPY_CACHE_IN_MEMORY", "1"),
    ("JAX_ENABLE_COMPILATION_CACHE", "false"),
];
const INDUCTOR_CACHE: &str = "TORCHINDUCTOR_CACHE_DIR";
const INDUCTOR_THREADS: &str = "TORCHINDUCTOR_COMPILE_THREADS";
const VLLM_CACHE: &str = "VLLM_CACHE_ROOT";

/// Lets `command` load `library`, before what is preloaded anyway.
pub(crate) fn preload_first(command: &mut Command, library: &Path) {
    let set = command.get_envs().find(|(name, _)| *name == PRELOAD);
    let others = match set {
        Some((_, value)) => value.map(OsString::from),
        None => std::env::var_os(PRELOAD),
    };
    command.env(PRELOAD, before_others(library, others));
}

fn before_others(library: &Path, others: Option<OsString>) -> OsString {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// `PATH` with the virtual GPU's `nvidia-smi` first.
fn with_nvidia_smi(library: &Path) -> Option<OsString> {
    let package = Host::virtual_gpu_directory(library).parent()?;
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(package.join("_virtual_gpu").join("bin"));
    std::env::join_paths(all.chain(std::env::split_paths(&others))).ok()
}
