//! What a call stack says about an allocation: which code requested it, in which phase, for what.

use oomph_trace::{Frame, FrameId, Phase, StackId, Trace, is_users_own};

/// What a frame reveals, as bits.
mod flag {
    pub(super) const OPTIMIZER: u32 = 1;
    pub(super) const ENGINE: u32 = 1 << 1;
    pub(super) const ACCUMULATE: u32 = 1 << 2;
    pub(super) const MODULE_CALL: u32 = 1 << 3;
    pub(super) const SETUP: u32 = 1 << 4;
    pub(super) const LOAD: u32 = 1 << 5;
    pub(super) const LOSS: u32 = 1 << 6;
    pub(super) const ATTENTION: u32 = 1 << 7;
    pub(super) const LIBRARY_WORKSPACE: u32 = 1 << 8;
    pub(super) const CONVOLUTION_PLAN: u32 = 1 << 9;
    pub(super) const KV_CACHE: u32 = 1 << 10;
    pub(super) const CHECKPOINT: u32 = 1 << 11;
    pub(super) const PYTHON: u32 = 1 << 12;
    pub(super) const USER: u32 = 1 << 13;
    pub(super) const ALLOCATE: u32 = 1 << 14;
    pub(super) const CONCATENATE: u32 = 1 << 15;
    pub(super) const BENCHMARK: u32 = 1 << 16;
    pub(super) const INIT: u32 = 1 << 17;
    pub(super) const RECOMPUTE: u32 = 1 << 18;
    pub(super) const PLUMBING: u32 = 1 << 19;
    pub(super) const CAST: u32 = 1 << 20;
    pub(super) const COPY: u32 = 1 << 21;
    pub(super) const FUNCTION: u32 = 1 << 22;
}

/// What a stack reveals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackFacts {
    flags: u32,
    /// What the job was doing.
    pub phase: Phase,
    /// The innermost frame of the user's own code.
    pub user: Option<Frame>,
    /// The frame of the user's own code that called the outermost module; without a module, the innermost.
    pub caller: Option<Frame>,
    /// The innermost Python frame that does more than pass a call on.
    pub python: Option<Frame>,
    /// Whether the memory is a library's workspace.
    pub is_workspace: bool,
}

impl StackFacts {
    const fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Under `optimizer.step`.
    pub const fn in_optimizer(self) -> bool {
        self.has(flag::OPTIMIZER)
    }

    /// A gradient's own memory.
    pub const fn accumulates_gradient(self) -> bool {
        self.has(flag::ACCUMULATE)
    }

    /// Under `torch.load` or safetensors' `load_file`.
    pub const fn loads_file(self) -> bool {
        self.has(flag::LOAD)
    }

    /// Under `module.half()` or `module.bfloat16()`.
    pub const fn casts_module(self) -> bool {
        self.has(flag::CAST)
    }

    /// Around the loss.
    pub const fn in_loss(self) -> bool {
        self.has(flag::LOSS)
    }

    /// Inside attention that keeps its scores.
    pub const fn in_eager_attention(self) -> bool {
        self.has(flag::ATTENTION)
    }

    /// Where tensors are joined.
    pub const fn concatenates(self) -> bool {
        self.has(flag::CONCATENATE)
    }

    /// Under `copy.deepcopy` of a module's parameter.
    pub const fn copies_parameter(self) -> bool {
        self.has(flag::COPY)
    }

    /// In a cache of keys and values.
    pub const fn in_kv_cache(self) -> bool {
        self.has(flag::KV_CACHE)
    }

    /// Inside activation checkpointing.
    pub const fn in_checkpoint(self) -> bool {
        self.has(flag::CHECKPOINT)
    }

    /// Where activation checkpointing runs forward again, in the middle of backward.
    pub const fn recomputes(self) -> bool {
        self.has(flag::RECOMPUTE)
    }

    /// Inside a `torch.autograd.Function` that is written in Python.
    pub const fn in_function(self) -> bool {
        self.has(flag::FUNCTION)
    }

    /// A convolution's workspace.
    pub const fn is_convolution_workspace(self) -> bool {
        self.has(flag::CONVOLUTION_PLAN) && self.is_workspace
    }

    /// While cuDNN tries algorithms (`cudnn.benchmark`).
    pub const fn in_benchmark(self) -> bool {
        self.has(flag::BENCHMARK)
    }

    /// Within a module's forward.
    pub const fn in_module(self) -> bool {
        self.has(flag::MODULE_CALL)
    }
}

/// Facts about every stack of a trace.
#[derive(Debug)]
pub struct Stacks {
    facts: Vec<StackFacts>,
}

impl Stacks {
    /// Classifies every stack of a trace, once.
    pub fn new(trace: &Trace) -> Self {
        let strings = &trace.strings;
        let frames: Vec<u32> = (0..trace.stacks.frame_count() as u32)
            .map(|id| {
                let frame = trace.stacks.frame(FrameId(id));
                let python = frame.is_python(strings);
                classify(strings.get(frame.file), strings.get(frame.name), python)
            })
            .collect();
        let flags_of = |id: FrameId| frames.get(id.0 as usize).copied().unwrap_or(0);
        // Recorders with stacks="python" leave autograd's own threads without any frame.
        let has_python = frames.iter().any(|flags| flags & flag::PYTHON != 0);
        let facts = (0..trace.stacks.len() as u32)
            .map(|id| {
                let members = trace.stacks.stack(StackId(id));
                let mut facts = StackFacts::default();
                let mut after_allocate = false;
                for &member in members {
                    let mut flags = flags_of(member);
                    // A closure runs forward and backward inside of `optimizer.step`.
                    if facts.has(flag::MODULE_CALL | flag::LOSS | flag::ENGINE) {
                        flags &= !flag::OPTIMIZER;
                    }
                    if flags & (flag::PYTHON | flag::PLUMBING) == flag::PYTHON
                        && facts.python.is_none()
                    {
                        facts.python = Some(trace.stacks.frame(member));
                    }
                    if flags & flag::USER != 0 {
                        let frame = Some(trace.stacks.frame(member));
                        facts.user = facts.user.or(frame);
                        facts.caller = facts.caller.or(frame);
                    }
                    if flags & flag::MODULE_CALL != 0 {
                        facts.caller = None;
                    }
                    // A convolution's output is allocated by `empty`, its workspace directly.
                    if after_allocate && flags & flag::CONVOLUTION_PLAN != 0 {
                        facts.is_workspace = true;
                    }
                    after_allocate = flags & flag::ALLOCATE != 0;
                    facts.flags |= flags;
                }
                facts.caller = facts.caller.or(facts.user);
                facts.is_workspace |= facts.has(flag::LIBRARY_WORKSPACE);
                facts.phase = phase(facts, members.is_empty(), has_python);
                facts
            })
            .collect();
        Self { facts }
    }

    /// The facts of a stack.
    pub fn get(&self, stack: StackId) -> StackFacts {
        self.facts.get(stack.index()).copied().unwrap_or_default()
    }
}

fn phase(facts: StackFacts, is_empty: bool, has_python: bool) -> Phase {
    if facts.has(flag::OPTIMIZER) {
        Phase::Optimizer
    } else if facts.has(flag::RECOMPUTE) || facts.has(flag::ENGINE) && !facts.has(flag::PYTHON) {
        Phase::Backward
    } else if facts.has(flag::MODULE_CALL | flag::LOSS) {
        Phase::Forward
    } else if facts.has(flag::ENGINE) {
        Phase::Backward
    } else if facts.has(flag::SETUP | flag::LOAD | flag::INIT) {
        Phase::Setup
    } else if is_empty && has_python {
        Phase::Backward
    } else {
        Phase::Unknown
    }
}

/// Whether a frame only passes a call on: every stack is full of such frames, and they say nothing.
pub fn is_plumbing(file: &str, function: &str) -> bool {
    const FUNCTIONS: [(&str, &str); 8] = [
        ("torch/nn/modules/module.py", "_wrapped_call_impl"),
        ("torch/nn/modules/module.py", "_call_impl"),
        ("torch/nn/modules/module.py", "inner"),
        ("torch/nn/modules/module.py", "_slow_forward"),
        ("torch/_ops.py", "__call__"),
        ("torch/_jit_internal.py", "fn"),
        ("torch/utils/_contextlib.py", "decorate_context"),
        ("torch/optim/optimizer.py", "wrapper"),
    ];
    (function == "_use_grad" && file.contains("torch/optim/"))
        || file == "<frozen runpy>"
        || file.contains("-packages/oomph/")
        || FUNCTIONS
            .iter()
            .any(|&(end, name)| function == name && file.ends_with(end))
}

/// Whether a file belongs to a framework that runs the training loop: from its `fit` to the user's
/// `training_step` the frames are the same in every stack. Causes look at them; pictures fold them.
pub fn is_training_loop(file: &str) -> bool {
    const PACKAGES: [&str; 4] = [
        "-packages/lightning/",
        "-packages/pytorch_lightning/",
        "-packages/lightning_fabric/",
        "-packages/accelerate/",
    ];
    PACKAGES.iter().any(|package| file.contains(package))
        || file.ends_with("-packages/transformers/trainer.py")
}

fn classify(file: &str, name: &str, python: bool) -> u32 {
    let mut flags = 0;
    if python {
        flags |= flag::PYTHON;
        if is_users_own(file) {
            flags |= flag::USER;
        } else if is_plumbing(file, name) {
            flags |= flag::PLUMBING;
        }
        let path = file.replace('\\', "/");
        let in_optimizer_file = path.contains("/optim/") || path.contains("/optimizers/");
        if in_optimizer_file && is_step(name) {
            flags |= flag::OPTIMIZER;
        }
        if path.ends_with("torch/nn/modules/module.py") {
            match name {
                "_call_impl" | "_wrapped_call_impl" | "_slow_forward" => {
                    flags |= flag::MODULE_CALL;
                }
                "half" | "bfloat16" => flags |= flag::SETUP | flag::CAST,
                "_apply" | "to" | "cuda" | "float" | "convert" | "to_empty" => {
                    flags |= flag::SETUP;
                }
                _ => {}
            }
        }
        if path.ends_with("torch/serialization.py") || path.ends_with("safetensors/torch.py") {
            flags |= flag::LOAD;
        }
        if path.ends_with("torch/utils/checkpoint.py") {
            flags |= flag::CHECKPOINT;
            // Forward runs again, in the middle of backward.
            if matches!(name, "unpack_hook" | "recompute_fn" | "backward") {
                flags |= flag::RECOMPUTE;
            }
        }
        if path.ends_with("torch/autograd/function.py") && name == "apply" {
            flags |= flag::FUNCTION;
        }
        if path.ends_with("torch/nn/parameter.py") && name == "__deepcopy__" {
            flags |= flag::SETUP | flag::COPY;
        }
        if path.ends_with("cache_utils.py") {
            flags |= flag::KV_CACHE;
        }
        if path.ends_with("torch/autograd/graph.py") && name == "_engine_run_backward" {
            flags |= flag::ENGINE;
        }
        if path.ends_with("loss_utils.py") || path.ends_with("torch/nn/modules/loss.py") {
            flags |= flag::LOSS;
        }
        match name {
            "cross_entropy"
            | "nll_loss"
            | "log_softmax"
            | "ForCausalLMLoss"
            | "fixed_cross_entropy" => flags |= flag::LOSS,
            "eager_attention_forward" | "multi_head_attention_forward" => {
                flags |= flag::ATTENTION;
            }
            "reset_parameters"
            | "from_pretrained"
            | "load_state_dict"
            | "_load_pretrained_model" => flags |= flag::SETUP,
            "__init__" => flags |= flag::INIT,
            _ => {}
        }
        return flags;
    }
    for (part, bits) in [
        ("torch::autograd::Engine", flag::ENGINE),
        ("AccumulateGrad", flag::ACCUMULATE),
        ("cross_entropy", flag::LOSS),
        ("nll_loss", flag::LOSS),
        ("log_softmax", flag::LOSS),
        ("_scaled_dot_product_attention_math", flag::ATTENTION),
        ("setWorkspaceForHandle", flag::LIBRARY_WORKSPACE),
        ("getCUDABlasLtWorkspace", flag::LIBRARY_WORKSPACE),
        ("getNewWorkspace", flag::LIBRARY_WORKSPACE),
        ("getChosenWorkspace", flag::LIBRARY_WORKSPACE),
        ("run_conv_plan", flag::CONVOLUTION_PLAN),
        ("cudnn_convolution", flag::CONVOLUTION_PLAN),
        ("NativeCachingAllocator::allocate", flag::ALLOCATE),
        ("CUDACachingAllocator::raw_alloc", flag::ALLOCATE),
        ("at::native::cat_cuda", flag::CONCATENATE),
        ("get_plans_from_find", flag::BENCHMARK),
        ("try_plans", flag::BENCHMARK),
    ] {
        if name.contains(part) {
            flags |= bits;
        }
    }
    flags
}

fn is_step(name: &str) -> bool {
    const PREFIXES: [&str; 6] = [
        "_init_group",
        "_multi_tensor",
        "_single_tensor",
        "_fused",
        "init_state",
        "update_step",
    ];
    name == "step" || name == "_use_grad" || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A frame in readable form: `train.py:41 in main`.
pub fn frame_text(trace: &Trace, frame: Frame) -> String {
    let line = frame_line(trace, frame);
    let name = trace.strings.get(frame.name);
    if name.is_empty() || name == "<module>" {
        line
    } else {
        format!("{line} in {name}")
    }
}

/// `train.py:41`, without folders.
pub fn frame_line(trace: &Trace, frame: Frame) -> String {
    let file = trace.strings.get(frame.file);
    let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
    format!("{short}:{}", frame.line)
}
