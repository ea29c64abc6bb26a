//! The Python environment of the command: which interpreter runs scripts, and where the virtual GPU
//! is installed.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::bail;

/// The Python around the command.
#[derive(Debug, Clone)]
pub struct Host {
    /// The interpreter (`sys.executable`).
    pub python: PathBuf,
    /// The directory of the `oomph` package.
    pub package: PathBuf,
    /// Where that Python looks for packages (`sys.path`): its environment, and those that this one adds to.
    pub paths: Vec<PathBuf>,
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Tells the command its environment; called once, before [`crate::main`].
pub fn set(host: Host) {
    // A second call can only come from the same interpreter.
    let _ = HOST.set(host);
}

/// The Python around the command.
pub fn get() -> anyhow::Result<&'static Host> {
    match HOST.get() {
        Some(host) => Ok(host),
        None => bail!(
            "this build of oomph was not started from Python and cannot run scripts; install the wheel"
        ),
    }
}

impl Host {
    /// The library that stands in for CUDA.
    pub fn virtual_gpu(&self) -> anyhow::Result<PathBuf> {
        let library = self.package.join("_vgpu/libcuda.so.1");
        if !library.is_file() {
            bail!(
                "the virtual GPU is missing: expected {}. Reinstall oomph",
                library.display()
            );
        }
        Ok(library)
    }

    /// The library that lets a job go on in host memory.
    pub fn net(&self) -> anyhow::Result<PathBuf> {
        let library = self.package.join("_net/liboomph_net.so");
        if !library.is_file() {
            bail!(
                "the net is missing: expected {}. Reinstall oomph",
                library.display()
            );
        }
        Ok(library)
    }

    /// The directory of the virtual GPU, for programs that look for a driver by directory.
    pub fn virtual_gpu_directory(library: &Path) -> &Path {
        library.parent().unwrap_or(library)
    }
}
