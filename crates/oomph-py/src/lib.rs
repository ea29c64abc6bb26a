//! The Python extension `oomph._oomph`: the only crate that knows PyO3.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;

use oomph_pack::{Budget, Order};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Runs the command line `args` (without the program name) and returns its exit status. `python`
/// is the interpreter for scripts, `package` the directory of this package, `paths` where Python looks for others.
#[pyfunction]
fn main(
    py: Python<'_>,
    args: Vec<OsString>,
    python: PathBuf,
    package: PathBuf,
    paths: Vec<PathBuf>,
) -> i32 {
    oomph_cli::host::set(oomph_cli::host::Host {
        python,
        package,
        paths,
    });
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
    let ran = ran.into_iter().collect();
    let hand = oomph_plan::by_hand::by_hand(path, source, &levers, &ran, &BTreeMap::new());
    Ok(hand.text())
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

/// The bytes of a size as people write it.
#[pyfunction]
fn parse_size(text: &str) -> PyResult<u64> {
    oomph_bytes::parse_bytes(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A number of bytes as oomph prints it.
#[pyfunction]
fn format_size(bytes: u64) -> String {
    oomph_bytes::format_bytes(bytes)
}

/// What a part of a program held that the recorder left in `directory`: see `oomph_cli::part`. An object in JSON,
/// None if it did not use a GPU.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "as PyO3 hands it over")]
fn read_part(py: Python<'_>, directory: PathBuf) -> PyResult<Option<String>> {
    let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    let part = py
        .detach(|| oomph_cli::part::part(&directory))
        .map_err(|error| invalid(&format!("{error:#}")))?;
    part.map(|part| serde_json::to_string(&part).map_err(|error| invalid(&error)))
        .transpose()
}

/// A virtual GPU for a process that is not started by the command: see `oomph_job::VirtualGpu`.
#[pyclass]
struct VirtualGpu {
    gpu: oomph_job::VirtualGpu,
    host: oomph_job::Host,
    lent: Option<oomph_job::Lent>,
}

type Variables = Vec<(&'static str, OsString)>;

#[pymethods]
impl VirtualGpu {
    /// `spec` as `--gpu` takes it, `memory` its capacity in bytes if it is another one.
    #[new]
    fn new(spec: &str, memory: Option<u64>, python: PathBuf, package: PathBuf) -> PyResult<Self> {
        let spec = oomph_gpus::parse_spec(spec)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut gpu = oomph_job::VirtualGpu::new(spec);
        gpu.total_bytes = memory.unwrap_or(gpu.total_bytes);
        Ok(Self {
            gpu,
            host: oomph_job::Host {
                python,
                package,
                paths: Vec::new(),
            },
            lent: None,
        })
    }

    /// Its name as the driver has it, how many there are, and the memory of each in bytes.
    fn describe(&self) -> (String, u32, u64) {
        let spec = &self.gpu.spec;
        (
            spec.found.gpu.name.clone(),
            spec.count,
            self.gpu.total_bytes,
        )
    }

    /// Variables for a process that is to start with its library preloaded.
    fn environment(&self) -> PyResult<Variables> {
        self.gpu
            .environment(&self.host)
            .map_err(|error| PyValueError::new_err(format!("{error:#}")))
    }

    #[expect(clippy::needless_pass_by_value, reason = "as PyO3 hands it over")]
    /// Lends it to this process, which has the library preloaded, until `end`: variables to set here.
    fn lend(
        &mut self,
        directory: PathBuf,
        unknown: String,
        compute: Option<u64>,
        unsupported: bool,
    ) -> PyResult<Variables> {
        let recording = oomph_job::settings::Recording {
            unknown,
            compute,
            unsupported,
            ..oomph_job::settings::Recording::default()
        };
        let lent = self
            .gpu
            .lend(&self.host, &directory, &recording)
            .map_err(|error| PyValueError::new_err(format!("{error:#}")))?;
        let environment = lent.environment.clone();
        self.lent = Some(lent);
        Ok(environment)
    }

    /// Ends the loan: what the processes shared is removed.
    fn end(&mut self) {
        self.lent = None;
    }
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
    module.add_class::<VirtualGpu>()?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(format_size, module)?)?;
    module.add_function(wrap_pyfunction!(read_part, module)?)?;
    module.add_function(wrap_pyfunction!(describe_modules, module)?)
}
