//! `record.json`: what the recorder in the user's process wrote.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The version of the record that this crate reads.
pub const FORMAT: &str = "oomph.record/1";

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a record.
    #[error("{path} is not a record of a run ({FORMAT}): {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The record is of another version.
    #[error("{path} has the format {found:?}; this oomph reads {FORMAT}. Run the script again")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that it states.
        found: String,
    },
}

/// The whole record.
#[derive(Debug, Clone, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a run")]
pub struct Record {
    /// [`FORMAT`].
    pub format: String,
    /// The version of torch; empty if the script did not import it.
    pub torch: String,
    /// What JAX says of itself, if the record is about its memory.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// What a serving engine made of its memory, if the process is its.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// The version of CUDA that torch was built for.
    pub cuda: Option<String>,
    /// The version of Python.
    pub python: String,
    /// The script and its arguments.
    pub argv: Vec<String>,
    /// The id of its process.
    #[serde(default)]
    pub process: u32,
    /// Whether the GPU was a virtual one.
    pub r#virtual: bool,
    /// When it ran, year first.
    #[serde(default)]
    pub date: String,
    /// How long the script ran, from the import of torch on.
    pub seconds: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether it used CUDA at all.
    pub used_cuda: bool,
    /// Steps of the first optimizer that stepped.
    pub steps: u32,
    /// Forward passes without a graph, where there was no optimizer.
    pub inferences: u32,
    /// Whether it was ended after the steps that were asked for.
    #[serde(default)]
    pub stopped: bool,
    /// Steps that the script's own loop would make at least, where that is known.
    #[serde(default)]
    pub planned_steps: Option<u64>,
    /// The first and the last step of each part of the run that was recorded in full; none if all of it was.
    #[serde(default)]
    pub windows: Vec<(u32, u32)>,
    /// Each GPU that torch saw.
    pub devices: Vec<Device>,
    /// Its rank, in a distributed job.
    #[serde(default)]
    pub rank: Option<Place>,
    /// The last failed allocation.
    pub oom: Option<Oom>,
    /// How many allocations failed.
    pub oom_count: u32,
    /// The bytes of cuBLAS's workspace, if the environment says so.
    #[serde(default)]
    pub cublas_workspace: u64,
    /// The most bytes that the net had in host memory at a time, because the GPU's was used up.
    #[serde(default)]
    pub net_bytes: u64,
    /// Where the memory of all tensors began that Python held when the script failed for want of memory.
    #[serde(default)]
    pub held: Vec<u64>,
    /// When operators read each piece of memory, on a virtual GPU: where it begins, then the times in µs at which spans of reads
    /// begin and end, in turn.
    #[serde(default)]
    pub reads: Vec<Vec<i64>>,
    /// Where a column met a row of as many elements, on a virtual GPU: how many, and the line.
    #[serde(default)]
    pub broadcasts: Vec<(u64, String)>,
    /// What an allocation's metadata means: phase, module, operator, step.
    pub scopes: Vec<(String, String, String, u32)>,
    /// Which memory holds what: kind, time in µs, address, owner.
    pub marks: Vec<(String, i64, u64, String)>,
    /// When steps ended and phases began: time in µs, what, number.
    pub boundaries: Vec<(i64, String, u32)>,
    /// Whether allocations carry scopes as metadata (torch 2.10 and later); if not, a frame does, until
    /// [`crate::attribute`] has been at it.
    pub has_scopes: bool,
    /// How many events the history could hold.
    pub max_events: usize,
    /// Assumptions about values in the run.
    pub assumptions: Vec<Assumption>,
    /// What the script's models became in a smaller variant of the job.
    #[serde(default)]
    pub became: Vec<String>,
    /// What the levers of a plan did.
    #[serde(default)]
    pub levers: Vec<LeverReport>,
    /// What the virtual GPU's library reports.
    #[serde(default)]
    pub library: Library,
    /// For each scope the call of a module that it was in: an index of `calls`.
    #[serde(default)]
    pub scope_calls: Vec<u32>,
    /// Scopes of backward passes that make a graph themselves (`create_graph=True`).
    #[serde(default)]
    pub differentiable: Vec<usize>,
    /// Scopes of operators outside of modules that have no node in the graph, although gradients were enabled.
    #[serde(default)]
    pub graphless: Vec<usize>,
    /// For each scope, on a virtual GPU: nanoseconds of work, the same in 16 bits, launches.
    #[serde(default)]
    pub scope_times: Vec<[u64; 3]>,
    /// Calls of modules in the first steps; the first is no call.
    #[serde(default)]
    pub calls: Vec<Call>,
    /// The outermost models that were called.
    #[serde(default)]
    pub outermost_models: Vec<OutermostModel>,
    /// Calls of outermost models that recorded a graph of inputs without one: for gradients of their own parameters alone.
    #[serde(default)]
    pub own_graphs: Vec<u32>,
    /// Calls of outermost models in evaluation mode that recorded a graph, of inputs without one.
    #[serde(default)]
    pub idle_graphs: Vec<u32>,
    /// Calls that recorded a graph for the gradients of a model that no optimizer holds.
    #[serde(default)]
    pub discarded_graphs: Vec<u32>,
    /// Whether a model that is alive has checkpointing switched on and evaluates, so that it does nothing.
    #[serde(default)]
    pub idle_checkpointing: bool,
    /// Whether a model that is alive, or its configuration, has a switch for checkpointing that is on.
    #[serde(default)]
    pub wants_checkpointing: bool,
    /// Where memory begins that operators wrote part by part, and when they last did.
    #[serde(default)]
    pub filled: Vec<(u64, i64)>,
    /// Whether the user's own modules import or name activation checkpointing.
    #[serde(default)]
    pub uses_checkpointing: bool,
    /// Whether the user's own modules call for a backward pass, whether or not one came.
    #[serde(default)]
    pub goes_backward: bool,
    /// Whether `requires_grad` of a module was set to False, which freezes no parameter.
    #[serde(default)]
    pub wants_freezing: bool,
    /// The virtual clock at the end of each step: step, nanoseconds, launches so far.
    #[serde(default)]
    pub clock: Vec<(u32, u64, u64)>,
    /// Modules called so far at each entry of `clock`.
    #[serde(default)]
    pub clock_calls: Vec<u64>,
    /// What some steps took on a real GPU, between waits for it, in seconds: all of it, and until all of it was issued.
    #[serde(default)]
    pub paced: Vec<(f64, f64)>,
    /// What the newest steps did, on a virtual GPU.
    #[serde(default)]
    pub work: oomph_clock::Steps,
    /// Facts about the script.
    #[serde(default)]
    pub facts: Facts,
    /// When the newest steps, or passes of a job that infers, ended: time in µs. Not those of a part that was
    /// recorded in full, if others followed it.
    #[serde(default)]
    pub step_ends: Vec<i64>,
    /// The user's own files that the script imported, and configuration that it read.
    #[serde(default)]
    pub sources: Vec<PathBuf>,
}

/// A call of a module, or of one of the user's functions outside of modules: its name, the call that it was made in, and the
/// addresses of the memory that its positional arguments and its result lay in.
#[derive(Debug, Clone, Deserialize)]
pub struct Call(pub String, pub u32, pub Vec<u64>, pub Vec<u64>);

/// Whether a name among those of modules is a function's.
pub fn is_function(name: &str) -> bool {
    name.ends_with("()")
}

/// A model that the script itself called.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct OutermostModel {
    /// Its class.
    pub name: String,
    /// When it was first called, in µs.
    pub first_us: i64,
    /// When it was last called, in µs.
    pub last_us: i64,
    /// Elements of its parameters.
    pub elements: u64,
    /// Whether an optimizer that was alive at the end has parameters of it.
    pub optimized: bool,
}

/// Facts about a script.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of a script"
)]
pub struct Facts {
    /// Data loaders that were iterated over.
    pub loaders: Vec<Loader>,
    /// Length of the sequences of integers that data loaders yield; 0 without any.
    pub length: u64,
    /// Batches that training took from the data loader that gave the most.
    #[serde(default)]
    pub batches: u64,
    /// Median nanoseconds that the script's own thread spends on one batch of a data loader, or, where that is more, that a step
    /// takes for operators on tensors of the CPU.
    pub loading_ns: u64,
    /// The type of autocast around the model, empty without.
    pub autocast: String,
    /// Whether autocast was on for the CPU alone around a model that is on the GPU.
    #[serde(default)]
    pub autocast_elsewhere: bool,
    /// Whether a gradient scaler was used.
    pub scaled: bool,
    /// Whether mixed precision is meant (a scaler, autocast around something else), and no model computed in 16 bits.
    pub precision_in_vain: bool,
    /// Whether gradients were clipped by PyTorch's functions.
    pub clipped: bool,
    /// Calls of `Tensor.backward`.
    pub backwards: u32,
    /// The most entries that an outermost `torch.func.vmap` went over with gradients on; 0 without one.
    #[serde(default)]
    pub mapped: u64,
    /// Whether an optimizer's step was given a closure that is not Lightning's.
    pub closure: bool,
    /// Whether `torch.compile` was used.
    pub compiled: bool,
    /// How often the script asked for it: for each of its blocks, say.
    #[serde(default)]
    pub compilations: u32,
    /// Whether gradients were cleared to zero rather than to none.
    pub kept_gradients: bool,
    /// `torch.backends.cudnn.benchmark`.
    pub benchmark: bool,
    /// Whether products of fp32 matrices may use TF32.
    pub tf32: bool,
    /// Whether a model in evaluation mode was called with gradients on.
    pub graph_in_evaluation: bool,
    /// Passes with a graph before the first backward pass.
    pub graph: u32,
    /// Whether a cache of keys and values was filled (Hugging Face's growing one).
    pub cache: bool,
    /// The 16-bit type that a model in fp32 was cast to while it was on the GPU; empty without.
    pub cast_on_gpu: String,
    /// Bytes of a state dictionary that was on the GPU in addition to the model that it was loaded into; 1
    /// if a model was loaded straight to the GPU.
    pub loaded_on_gpu: u64,
    /// Sizes in the arguments of the first model call.
    pub input: Input,
    /// The modules of all models.
    pub modules: Vec<Module>,
    /// The optimizers that stepped.
    pub optimizers: Vec<Optimizer>,
    /// When autograd's saved tensors were offloaded to the host (`save_on_cpu`): from and to, in µs; 0 without an end.
    pub offloads: Vec<(i64, i64)>,
}

/// Sizes of a model's arguments; 0 where there is none.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Input {
    /// Samples.
    pub batch: u64,
    /// Tokens of a sequence of integers.
    pub length: u64,
    /// Rows of an image.
    pub height: u64,
}

/// A data loader.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Loader {
    /// Samples in a batch; 0 if unknown.
    pub batch_size: u64,
    /// How often it was iterated over.
    pub count: u64,
    /// Whether gradients were recorded meanwhile.
    pub trains: bool,
}

/// A module of a model.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Module {
    /// As plans name it: `GPT.blocks.0`.
    pub name: String,
    /// Its class.
    pub kind: String,
    /// Whether it only holds others: `ModuleList`, `ModuleDict`, `Sequential`.
    pub container: bool,
    /// Whether its result for a sample depends on the rest of the batch.
    pub coupled: bool,
    /// Its `inplace`, if it has one.
    pub inplace: Option<bool>,
    /// Elements of its own parameters.
    pub parameters: u64,
    /// Elements of those that are trained.
    pub trained: u64,
}

/// An optimizer.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Optimizer {
    /// Its class.
    pub kind: String,
    /// Whether it steps in one kernel.
    pub fused: bool,
    /// Whether it steps over lists of tensors; `None` leaves it to PyTorch.
    pub foreach: Option<bool>,
    /// Whether a gradient of it was sparse, at its first step.
    #[serde(default)]
    pub sparse: bool,
    /// `element` or `parameter`: what it updates by itself; `None` if it may look at all of them.
    #[serde(default)]
    pub updates: Option<String>,
}

/// How the script ended.
#[derive(Debug, Clone, Deserialize)]
pub struct Outcome {
    /// `finished`, `exit`, `exception`, `interrupted`, `terminated` (by SIGTERM or
    /// SIGHUP), `killed` (the script left no other word),
    /// `replaced` (by another program, `exec`), or
    /// `refused`: a lever of the plan cannot be applied, and the message says why.
    pub kind: String,
    /// The exit status.
    pub status: i32,
    /// The exception's type.
    #[serde(default)]
    pub r#type: Option<String>,
    /// The exception's message.
    #[serde(default)]
    pub message: Option<String>,
    /// The lever of the plan that it ended by, if it knows.
    #[serde(default)]
    pub blame: Option<Blame>,
}

/// The lever that a script ended by: it cannot be applied, or failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Blame {
    /// Its name, as in plan files.
    pub lever: String,
    /// The modules of the plan that it is about; none if it is about all of them, or about the script.
    pub modules: Vec<String>,
    /// Why, without the lever's name.
    pub why: String,
    /// Whether a user can make the same change by hand.
    pub manually: bool,
    /// What else to do.
    pub instead: Option<String>,
    /// Another lever, without which it could be applied.
    pub beside: Option<String>,
}

/// A GPU's figures at the end, in bytes.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "PyTorch's own names of its statistics")]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub total_bytes: u64,
    pub peak_allocated_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub used: bool,
    #[serde(default)]
    pub limit_bytes: u64,
    #[serde(default)]
    pub outside_bytes: u64,
    #[serde(default)]
    pub peak_used_bytes: u64,
    /// How often the cache had to be emptied to continue.
    #[serde(default)]
    pub retries: u64,
}

/// JAX, CuPy or TensorFlow in the script's process. Its allocator's figures are those of the [`Device`]s.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize, schemars::JsonSchema,
)]
pub struct Framework {
    /// `jax`, `cupy`, `numba`, `onnxruntime` or `tensorflow`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its allocator: `default` (JAX's pool), `platform` (the driver at each request), `cuda_async` (the driver's pool), `pool` (CuPy's), `driver` (Numba, which asks for each array), `arena` (ONNX Runtime's, and all that its libraries take).
    pub allocator: String,
    /// Whether the pool was taken as a whole when the script first used the GPU.
    pub preallocates: bool,
    /// The most that the allocator may take, in bytes; 0 where it has no limit of its own.
    pub limit_bytes: u64,
    /// The bytes that JAX's program with the most memory reads and writes, as XLA counts them; 0 where that is not known.
    #[serde(default)]
    pub moved_bytes: u64,
    /// What changes of the script would save there, the most first.
    #[serde(default)]
    pub advice: Vec<Advice>,
}

/// A change of the script that would save memory.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize, schemars::JsonSchema,
)]
pub struct Advice {
    /// What to do.
    pub what: String,
    /// The user's own line, `file:line`, or nothing.
    pub location: String,
    /// The bytes that it saves at most.
    pub bytes: u64,
}

impl Framework {
    /// Whether it is JAX.
    pub fn is_jax(&self) -> bool {
        self.name == "jax"
    }

    /// Its name among versions.
    pub fn key(&self) -> &'static str {
        match self.name.as_str() {
            "cupy" => "cupy",
            "numba" => "numba",
            "onnxruntime" => "onnxruntime",
            "tensorflow" => "tensorflow",
            _ => "jax",
        }
    }

    /// What people call it.
    pub fn title(&self) -> &'static str {
        match self.name.as_str() {
            "cupy" => "CuPy",
            "numba" => "Numba",
            "onnxruntime" => "ONNX Runtime",
            "tensorflow" => "TensorFlow",
            _ => "JAX",
        }
    }
}

/// What a serving engine (vLLM) made of the memory that it may use, on each of its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Engine {
    /// `vLLM`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The bytes that it may use: a share of the GPU.
    pub allowed_bytes: u64,
    /// The bytes of the weights.
    pub weights_bytes: u64,
    /// The bytes that its profile run needed beside them.
    pub activation_bytes: u64,
    /// The bytes that came up outside of PyTorch's allocator meanwhile.
    pub outside_bytes: u64,
    /// The bytes of its CUDA graphs; before they are captured, its estimate.
    pub graph_bytes: u64,
    /// The bytes left for its KV cache.
    pub kv_cache_bytes: u64,
    /// The cache's blocks; 0 if there is none.
    pub kv_cache_blocks: u64,
    /// How many tokens it holds.
    pub kv_cache_tokens: u64,
    /// How many requests of the greatest length it holds.
    pub requests: f64,
    /// The greatest length of a request, in tokens.
    pub max_model_len: u64,
    /// The bytes of KV cache that one such request needs, where that is more than there are; 0 otherwise.
    pub needed_bytes: u64,
}

impl Engine {
    /// The version of vLLM whose caches were compared with those of GPUs.
    const COMPARED: &str = "0.26.0";

    /// What a start of this version assumes on a virtual GPU; `None` of the one that was compared.
    pub fn not_compared(&self) -> Option<String> {
        // After a plus is what it was built for.
        let version = self.version.split('+').next().unwrap_or_default();
        (!version.is_empty() && version != Self::COMPARED).then(|| {
            format!(
                "{} {version} was never compared with a GPU ({} was): versions set other amounts of memory apart, so its KV cache may be \
                 larger or smaller there",
                self.name,
                Self::COMPARED
            )
        })
    }

    /// Whether it has its KV cache, and waits for requests or answers them.
    pub fn has_started(&self) -> bool {
        self.kv_cache_blocks > 0
    }
}

/// A rank's place in its job.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Place {
    /// Its rank.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// Its number on its host; -1 if the launcher did not say.
    pub local_rank: i32,
}

/// Where an allocation failed.
#[derive(Debug, Clone, Deserialize)]
pub struct Oom {
    /// The GPU.
    pub device: u32,
    /// What it requested from the driver.
    pub requested_bytes: u64,
    /// What the driver had.
    pub free_bytes: u64,
    /// When, in µs.
    #[serde(default)]
    pub time: i64,
    /// Whether fused kernels for attention were allowed.
    #[serde(default)]
    pub fused_attention: bool,
    /// Steps completed before.
    pub step: u32,
    /// The phase.
    pub phase: String,
    /// The module, empty if unknown.
    pub module: String,
    /// The user's own line, `file:line`, empty if unknown.
    pub location: String,
    /// Whether it ended the script.
    #[serde(default)]
    pub raised: bool,
}

/// Something that was assumed.
#[derive(Debug, Clone, Deserialize)]
pub struct Assumption {
    /// `value`, `shape` or `attribution`.
    pub kind: String,
    /// What was assumed.
    pub what: String,
    /// Where, `file:line`, empty if unknown.
    pub location: String,
    /// How often.
    pub count: u64,
}

/// What a lever did.
#[derive(Debug, Clone, Deserialize, serde::Serialize, schemars::JsonSchema)]
pub struct LeverReport {
    /// Its name, as in the plan file.
    pub name: String,
    /// How often it took effect; 0 means that it was inert.
    pub applied: u64,
    /// Why it was inert, or what the user should know.
    pub note: Option<String>,
    /// Modules of the plan that it skipped.
    #[serde(default, skip_serializing)]
    pub left: Vec<String>,
    /// The framework's own switch that does the same, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
}

/// What the virtual GPU counted.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Library {
    /// Functions whose answer was assumed.
    #[serde(default)]
    pub assumptions: Vec<LibraryAssumption>,
    /// Functions that the script asked for in vain.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// A function of the CUDA libraries whose answer was assumed.
#[derive(Debug, Clone, Deserialize)]
pub struct LibraryAssumption {
    /// The function.
    pub function: String,
    /// What was assumed.
    pub what: String,
    /// How often.
    pub count: u64,
}

impl Facts {
    /// Whether an optimizer may call backward several times in one step; others call a closure once, at
    /// the start.
    pub fn evaluates_closures(&self) -> bool {
        let mut optimizers = self.optimizers.iter();
        self.closure && optimizers.any(|optimizer| optimizer.kind.contains("LBFGS"))
    }
}

impl Record {
    /// Reads the text of a `record.json`; `path` is for messages only.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let mut record: Self = serde_json::from_str(text).map_err(|source| Error::Json {
            path: path.to_owned(),
            source,
        })?;
        if record.format != FORMAT {
            return Err(Error::Format {
                path: path.to_owned(),
                found: record.format,
            });
        }
        record.make_room();
        Ok(record)
    }

    /// Under the net, what the context and the libraries take when the GPU is full pushes as much of the script's memory out to
    /// the host. A virtual GPU only counts it.
    fn make_room(&mut self) {
        if self.net_bytes == 0 || !self.r#virtual {
            return;
        }
        for device in &mut self.devices {
            let above = device.peak_used_bytes.saturating_sub(device.total_bytes);
            device.peak_used_bytes -= above;
            self.net_bytes += above;
        }
    }

    /// The GPU that the job used most.
    pub fn busiest(&self) -> Option<&Device> {
        self.devices
            .iter()
            .filter(|device| device.used)
            .max_by_key(|device| device.peak_reserved_bytes)
    }

    /// The median time of the newest steps, in seconds.
    pub fn step_seconds(&self) -> Option<f64> {
        let mut gaps: Vec<i64> = self
            .step_ends
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0]))
            .collect();
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).map(|gap| *gap as f64 / 1e6)
    }

    /// Whether the script ended by running out of memory.
    pub fn out_of_memory(&self) -> bool {
        self.oom.as_ref().is_some_and(|oom| oom.raised)
    }
}
