//! The Python extension `oomph._oomph`: the only crate that knows PyO3.

use pyo3::prelude::*;

/// Runs the command line `args` (without the program name) and returns its exit status.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<std::ffi::OsString>) -> i32 {
    py.detach(|| oomph_cli::main(args))
}

#[pymodule]
fn _oomph(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
