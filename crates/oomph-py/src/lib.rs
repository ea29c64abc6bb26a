//! The Python extension `oomph._oomph`: the only crate that knows PyO3.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs the command line `args` (without the program name) and returns its exit status. `python`
/// is the interpreter for scripts, `package` the directory of this package.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<OsString>, python: PathBuf, package: PathBuf) -> i32 {
    oomph_cli::host::set(oomph_cli::host::Host { python, package });
    py.detach(|| oomph_cli::main(args))
}

#[pymodule]
fn _oomph(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
