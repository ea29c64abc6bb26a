//! A plan in the making: the job's template and its times as the levers so far have changed them.

use oomph_trace::{Category, Phase};

use crate::levers::Lever;
use crate::model::{Event, Inside, Model, Template};

/// What the planner knows of the GPU's and its host's pace, and what threads take there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Bytes a second over the link to the host, each way.
    pub link_bytes_per_s: f64,
    /// Bytes a second of device memory.
    pub memory_bytes_per_s: f64,
    /// Nanoseconds that PyTorch takes to launch one kernel, in the forward as in the backward pass.
    pub host_ns_per_launch: f64,
    /// Nanoseconds that Python takes for one call of a module beside its launches.
    pub host_ns_per_call: f64,
    /// How many times as long the host takes for what levers do as that Xeon's.
    pub host_factor: f64,
    /// Nanoseconds from one launch to the next on the GPU.
    pub launch_ns: f64,
    /// Bytes outside the allocator for each thread that multiplies matrices: a handle of cuBLAS.
    pub thread_bytes: u64,
}

impl Pace {
    /// The part of the published bandwidths that long copies reach.
    const REACHED: f64 = 0.9;

    /// The pace of a GPU of the catalogue. The host's is a usual server's.
    pub fn new(gpu: &oomph_gpus::Gpu) -> Self {
        Self {
            link_bytes_per_s: (gpu.link.host_bytes_per_s * Self::REACHED).max(1e9),
            memory_bytes_per_s: (gpu.bandwidth_bytes_per_s * Self::REACHED).max(1e9),
            thread_bytes: gpu.context.cublas_handle_bytes,
            ..Self::default()
        }
    }
}

impl Default for Pace {
    /// A GPU of the middle: 16 lanes of PCI Express 4, 900 GB/s. The host's is a Xeon's beside an
    /// H200, from steps that leave the GPU little to do (`bench/gpu/results/h200_host.jsonl`).
    fn default() -> Self {
        Self {
            link_bytes_per_s: 25e9,
            memory_bytes_per_s: 900e9,
            host_ns_per_launch: 19_000.0,
            host_ns_per_call: 40_000.0,
            host_factor: 1.0,
            launch_ns: 2_200.0,
            thread_bytes: 0,
        }
    }
}

/// Work: the GPU's nanoseconds, and launches, which take the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Nanoseconds of the GPU.
    pub busy: f64,
    /// Launches.
    pub launches: f64,
    /// Calls of modules.
    pub calls: f64,
    /// Nanoseconds of the host for what levers do.
    pub lever: f64,
}

impl Load {
    /// Adds other work.
    pub fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.launches += other.launches;
        self.calls += other.calls;
        self.lever += other.lever;
    }

    /// Nanoseconds of the host.
    pub fn host(&self, pace: &Pace) -> f64 {
        self.launches * pace.host_ns_per_launch
            + self.calls * pace.host_ns_per_call
            + self.lever * pace.host_factor
    }

    /// Nanoseconds until it is done: the GPU and the host work side by side, and the slower one
    /// decides.
    pub fn time(&self, pace: &Pace) -> f64 {
        self.busy.max(self.host(pace))
    }
}

/// What products are computed in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// In what the script has.
    #[default]
    AsRecorded,
    /// TF32 where the script has fp32.
    Tf32,
    /// 16 bits where the script has 32.
    Half,
}

/// A plan in the making.
#[derive(Debug, Clone)]
pub struct Draft<'a> {
    /// The job as it was recorded.
    pub model: &'a Model,
    /// Its memory as it would be.
    pub template: Template,
    /// The forward and backward work of a whole batch.
    pub body: Load,
    /// The rest of the step.
    pub tail: Load,
    /// What products are computed in.
    pub precision: Precision,
    /// Nanoseconds that the GPU waits for the link to the host.
    pub waits: f64,
    /// Nanoseconds that adding to all gradients waits for that link, where these are on the host.
    pub(crate) adding_ns: f64,
    /// How often models run in place of once: parts of a batch.
    pub repeats: f64,
    /// Whether the optimizer steps in one kernel for many tensors.
    pub fused: bool,
    /// Parts in which the optimizer steps with its state on the host, if it does, and those in which it steps within the backward
    /// pass.
    pub(crate) steps_on_host: usize,
    pub(crate) early_steps: usize,
    /// Tensors of that state, and the nanoseconds that it takes over the link.
    pub(crate) states_on_host: usize,
    pub(crate) states_link: f64,
    /// Memory outside the allocator.
    pub outside: u64,
    /// What the figures rest on.
    pub assumptions: Vec<String>,
    pace: Pace,
}

impl<'a> Draft<'a> {
    /// The job as it is.
    pub fn new(model: &'a Model, pace: Pace) -> Self {
        let mut draft = Self {
            model,
            template: model.template.clone(),
            body: Load::default(),
            tail: Load::default(),
            precision: Precision::AsRecorded,
            waits: 0.0,
            adding_ns: 0.0,
            repeats: 1.0,
            fused: false,
            steps_on_host: 0,
            early_steps: 0,
            states_on_host: 0,
            states_link: 0.0,
            outside: model.outside,
            assumptions: Vec::new(),
            pace,
        };
        (draft.body, draft.tail) = draft.loads();
        draft
    }

    /// The work of the body and of the tail as recorded, in the draft's precision.
    pub fn loads(&self) -> (Load, Load) {
        let (mut body, mut tail) = (Load::default(), Load::default());
        for work in &self.model.work {
            let is_body = match work.phase {
                Phase::Optimizer => false,
                // Clipping and logging run without gradients, outside of every module.
                Phase::Inference => work.call != 0,
                _ => true,
            };
            let load = Load {
                busy: match self.precision {
                    Precision::Tf32 => work.tf32,
                    Precision::Half if is_body => work.halved,
                    _ => work.busy,
                },
                launches: work.launches,
                ..Load::default()
            };
            if is_body {
                body.add(load);
            } else {
                tail.add(load);
            }
        }
        body.calls = self.model.calls_of_step;
        (body, tail)
    }

    /// The forward work inside a call.
    pub fn forward_load(&self, call: u32) -> Load {
        let work = self.model.forward.get(call as usize);
        let work = work.copied().unwrap_or_default();
        Load {
            busy: self.busy(&work),
            launches: work.launches,
            calls: work.calls,
            lever: 0.0,
        }
    }

    /// Nanoseconds of forward work in the draft's precision.
    pub fn busy(&self, work: &Inside) -> f64 {
        match self.precision {
            Precision::AsRecorded => work.busy,
            Precision::Tf32 => work.tf32,
            Precision::Half => work.halved,
        }
    }

    /// Changes the precision, and the body's work by what that makes quicker.
    pub fn set_precision(&mut self, precision: Precision) {
        let before = self.loads().0;
        self.precision = precision;
        self.body.busy += self.loads().0.busy - before.busy;
    }

    /// Applies a lever.
    pub fn apply(&mut self, lever: &Lever) {
        lever.facets().apply(self);
    }

    /// The optimizer's step without temporaries, or with each of them gone before the next one.
    pub(crate) fn without_step_temporaries(&mut self, one_at_a_time: bool) {
        let template = &mut self.template;
        let temporary: Vec<bool> = template
            .tensors
            .iter()
            .map(|tensor| {
                tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary
            })
            .collect();
        let is = |number: &u32| temporary.get(*number as usize).copied().unwrap_or(false);
        for events in [&mut template.first_tail, &mut template.tail] {
            let mut changed = Vec::with_capacity(events.len());
            for &event in events.iter() {
                match event {
                    Event::Alloc(number) if is(&number) => {
                        if one_at_a_time {
                            changed.extend([event, Event::Free(number)]);
                        }
                    }
                    Event::Free(number) | Event::FreePrevious(number) if is(&number) => {}
                    _ => changed.push(event),
                }
            }
            *events = changed;
        }
    }

    /// The optimizer's step in so many parts, one after the other.
    pub(crate) fn step_in_parts(&mut self, parts: usize) {
        /// Kernels that a step of some parameters launches, and that a fused one does: its own, and one that counts the step.
        const EACH: [f64; 2] = [12.0, 2.0];
        self.without_step_temporaries(true);
        let launches = parts as f64 * EACH[usize::from(self.fused)];
        self.tail.launches += launches;
        self.tail.busy += launches * self.pace.launch_ns;
    }

    /// So many parameters step within the backward pass, in so many parts.
    pub(crate) fn step_early(&mut self, parts: usize, parameters: usize) {
        /// Python of the optimizer's own step, but for its launches, and of a parameter's hook with its gradient, which no record of such a
        /// step counts: 2.5 and 4.0 ms for 9 and 192, 2.8 and 4.2 ms for 64 and 192 (`bench/gpu/results/h200_levers_host.jsonl`).
        const PART_NS: f64 = 30_000.0;
        const PARAMETER_NS: f64 = 15_000.0;
        self.early_steps = parts;
        self.tail.lever += PART_NS * parts as f64 + PARAMETER_NS * parameters as f64;
    }

    /// Nanoseconds that levers take of the host in a step.
    pub fn lever_time(&self) -> f64 {
        self.body.lever * f64::from(self.template.parts.max(1)) + self.tail.lever + self.stepping()
    }

    /// Nanoseconds of the host for state that is fetched, waited for and sent, part by part.
    fn stepping(&self) -> f64 {
        /// For each part, and for each tensor in it: 8.8 ms for 12 and 384, 2.3 ms for 2 and 192
        /// (`bench/gpu/results/h200_levers_host_state.jsonl`, by its host's 1.75).
        const PART_NS: f64 = 450_000.0;
        const TENSOR_NS: f64 = 7_000.0;
        let parts = match self.steps_on_host {
            0 => 0,
            parts => parts.max(self.early_steps),
        };
        PART_NS * parts as f64 + TENSOR_NS * self.states_on_host as f64
    }

    /// Nanoseconds of a step.
    pub fn time(&self) -> f64 {
        let parts = f64::from(self.template.parts.max(1));
        let (part, whole) = self.template.share();
        let share = part as f64 / whole.max(1) as f64;
        let launching = self.body.launches * self.pace.launch_ns;
        let mut load = Load {
            busy: parts * ((self.body.busy - launching).max(0.0) * share + launching),
            launches: self.body.launches * parts,
            calls: self.body.calls * parts,
            lever: self.body.lever * parts,
        };
        if parts > 1.0 {
            load.add(self.accumulation(parts));
        }
        load.add(self.tail);
        // The GPU and the host work side by side, and the slower one decides. What goes over the link does so while the host prepares
        // the next part.
        let stepping = (self.stepping() * self.pace.host_factor).max(self.states_link);
        let step = (load.busy + self.states_link).max(load.host(&self.pace) + stepping);
        step + self.waits + self.model.facts.loading_ns as f64
    }

    /// Adding each micro-batch's gradients to those that are there: read both, write one.
    pub(crate) fn accumulation(&self, parts: f64) -> Load {
        let gradients = self
            .template
            .tensors
            .iter()
            .filter(|tensor| tensor.category == Category::Gradient);
        let (mut bytes, mut count) = (0.0, 0.0);
        for gradient in gradients {
            bytes += gradient.bytes as f64;
            count += 1.0;
        }
        Load {
            busy: (parts - 1.0)
                * (3.0 * bytes / self.pace.memory_bytes_per_s * 1e9
                    + count * self.pace.launch_ns
                    + self.adding_ns),
            launches: (parts - 1.0) * count,
            ..Load::default()
        }
    }

    /// The pace of the GPU.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}
