//! The Python extension `oomph._oomph`: the only crate that knows PyO3.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use oomph_pack::{Budget, Order};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Runs the command line `args` (without the program name) and returns its exit status. `python`
/// is the interpreter for scripts, `package` the directory of this package.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<OsString>, python: PathBuf, package: PathBuf) -> i32 {
    oomph_cli::host::set(oomph_cli::host::Host { python, package });
    py.detach(|| oomph_cli::main(args)).into()
}

/// Packs samples into batches: see `oomph_pack`. `lengths` are native 32-bit unsigned integers, as
/// are both results: the samples of all batches, and where each batch ends.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "a plain function is the whole interface to Python"
)]
fn pack<'py>(
    py: Python<'py>,
    lengths: &[u8],
    linear: f64,
    quadratic: f64,
    budget: f64,
    max_samples: usize,
    window: usize,
    shuffle: bool,
    largest_first: bool,
    ranks: usize,
    seed: u64,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (lengths, rest) = lengths.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err("lengths: expected 4 bytes each"));
    }
    let lengths: Vec<u32> = lengths
        .iter()
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .collect();
    let budget = Budget {
        linear,
        quadratic,
        limit: budget,
        max_samples,
    };
    let order = Order {
        shuffle,
        window,
        largest_first,
        ranks,
        seed,
    };
    let batches = py
        .detach(|| oomph_pack::pack(&lengths, budget, order))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((bytes(py, &batches.samples), bytes(py, &batches.ends)))
}

fn bytes<'py>(py: Python<'py>, numbers: &[u32]) -> Bound<'py, PyBytes> {
    let flat: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    PyBytes::new(py, &flat)
}

/// What a training loop that is out of memory may do next: see `oomph_fit::rungs::next`. `applied` is
/// a JSON array of levers as in plan files; the result is an object in JSON, or None.
#[pyfunction]
fn next_levers(
    py: Python<'_>,
    directory: PathBuf,
    applied: &str,
    missing: u64,
    samples: u64,
    forbid: Vec<String>,
) -> PyResult<Option<String>> {
    let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    let applied: Vec<oomph_plan::Lever> =
        serde_json::from_str(applied).map_err(|error| invalid(&error))?;
    let next = py
        .detach(move || oomph_fit::rungs::next(&directory, &applied, missing, samples, forbid))
        .map_err(|error| invalid(&format!("{error:#}")))?;
    next.map(|next| serde_json::to_string(&next).map_err(|error| invalid(&error)))
        .transpose()
}

/// A script's `source` under levers (a JSON array, as in plan files), by hand: see
/// `oomph_plan::by_hand`. The text of a patch of the file at `path`, of which the lines `ran` ran.
#[pyfunction]
#[pyo3(signature = (path, source, levers, ran = Vec::new()))]
fn by_hand(path: &str, source: &str, levers: &str, ran: Vec<usize>) -> PyResult<String> {
    let levers: Vec<oomph_plan::Lever> =
        serde_json::from_str(levers).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(oomph_plan::by_hand::by_hand(path, source, &levers, &ran.into_iter().collect()).text())
}

/// The levers of a plan file with this text (a JSON array), what they are in a few words, and how the plan's job
/// differs from `script` with `arguments`; what is empty is not known.
#[pyfunction]
fn read_plan(
    text: &str,
    script: &str,
    arguments: Vec<String>,
) -> PyResult<(String, String, Vec<String>)> {
    let invalid = |error: String| PyValueError::new_err(error.trim_end().to_owned());
    let plan = oomph_plan::PlanFile::parse(text).map_err(|error| invalid(error.to_string()))?;
    let levers = serde_json::to_string(&plan.levers).map_err(|error| invalid(error.to_string()))?;
    let what: Vec<String> = plan.levers.iter().map(ToString::to_string).collect();
    let job = oomph_plan::PlanJob {
        script: script.to_owned(),
        arguments,
        ..oomph_plan::PlanJob::default()
    };
    let unknown = (
        oomph_plan::PlanGpu::default(),
        oomph_plan::Versions::default(),
    );
    let differs = plan.mismatches(&job, &unknown.0, &unknown.1);
    Ok((levers, what.join(", "), differs))
}

/// Texts with the numbers of their cells.
type Numbered = Vec<(usize, String)>;

/// The code cells of a notebook with this text as Python runs them, by their numbers, and what is left out
/// of them: see `oomph_python_source::Cells`.
#[pyfunction]
fn notebook_cells(text: &str) -> PyResult<(Numbered, Numbered)> {
    let cells = oomph_python_source::Cells::read(text)
        .map_err(|problem| PyValueError::new_err(problem.to_string()))?;
    Ok((cells.code, cells.left_out))
}

/// Names of all levers in the order in which they step in.
#[pyfunction]
fn lever_order() -> Vec<&'static str> {
    oomph_plan::levers::application_order()
}

/// Variables that must be in the environment before torch is imported, for `levers` (a JSON array, as
/// in plan files); `environment` is what there is.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "as PyO3 hands it over")]
fn lever_environment(
    levers: &str,
    environment: HashMap<String, String>,
) -> PyResult<Vec<(&'static str, String)>> {
    let levers: Vec<oomph_plan::Lever> =
        serde_json::from_str(levers).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let get = |name: &str| environment.get(name).cloned();
    Ok(oomph_plan::levers::environment(&levers, &get))
}

/// The modules in a few words: `GPT.blocks[0:6]` for consecutive numbers, else the first name and how
/// many more.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "a Python list is converted")]
fn describe_modules(modules: Vec<String>) -> String {
    oomph_plan::places(&modules)
}

#[pymodule]
fn _oomph(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(next_levers, module)?)?;
    module.add_function(wrap_pyfunction!(read_plan, module)?)?;
    module.add_function(wrap_pyfunction!(lever_order, module)?)?;
    module.add_function(wrap_pyfunction!(lever_environment, module)?)?;
    module.add_function(wrap_pyfunction!(notebook_cells, module)?)?;
    module.add_function(wrap_pyfunction!(by_hand, module)?)?;
    module.add_function(wrap_pyfunction!(describe_modules, module)?)
}
