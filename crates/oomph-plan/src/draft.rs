//! A plan in the making: the job's template and its times as the levers so far have changed them.

use oomph_trace::{Category, Phase};

use crate::lever::Lever;
use crate::levers;
use crate::model::{Model, Template};

/// What the planner knows of the GPU's and its host's pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Bytes a second over the link to the host, each way.
    pub link_bytes_per_s: f64,
    /// Bytes a second of device memory.
    pub memory_bytes_per_s: f64,
    /// Nanoseconds that Python and PyTorch take to launch one kernel.
    pub host_ns_per_launch: f64,
    /// Nanoseconds from one launch to the next on the GPU.
    pub launch_ns: f64,
}

impl Pace {
    /// The part of the published bandwidths that long copies reach.
    const REACHED: f64 = 0.9;

    /// The pace of a GPU of the catalogue. The host's is a usual server's.
    pub fn new(gpu: &oomph_gpus::Gpu) -> Self {
        Self {
            link_bytes_per_s: (gpu.link.host_bytes_per_s * Self::REACHED).max(1e9),
            memory_bytes_per_s: (gpu.bandwidth_bytes_per_s * Self::REACHED).max(1e9),
            ..Self::default()
        }
    }
}

impl Default for Pace {
    /// A GPU of the middle: 16 lanes of PCI Express 4, 900 GB/s.
    fn default() -> Self {
        Self {
            link_bytes_per_s: 25e9,
            memory_bytes_per_s: 900e9,
            host_ns_per_launch: 12_000.0,
            launch_ns: 2_200.0,
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
}

impl Load {
    /// Adds other work.
    pub fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.launches += other.launches;
    }

    /// Nanoseconds until it is done: the GPU and the host work side by side, and the slower one
    /// decides.
    pub fn time(&self, pace: &Pace) -> f64 {
        self.busy.max(self.launches * pace.host_ns_per_launch)
    }
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
    /// Whether 32-bit values have become 16-bit ones.
    pub halved: bool,
    /// Nanoseconds that the GPU waits for the link to the host.
    pub waits: f64,
    /// How often models run in place of once: parts of a batch.
    pub repeats: f64,
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
            halved: false,
            waits: 0.0,
            repeats: 1.0,
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
                busy: if self.halved && is_body {
                    work.halved
                } else {
                    work.busy
                },
                launches: work.launches,
            };
            if is_body {
                body.add(load);
            } else {
                tail.add(load);
            }
        }
        (body, tail)
    }

    /// The forward work inside a call.
    pub fn forward_load(&self, call: u32) -> Load {
        let [busy, halved, launches] = self
            .model
            .forward
            .get(call as usize)
            .copied()
            .unwrap_or_default();
        Load {
            busy: if self.halved { halved } else { busy },
            launches,
        }
    }

    /// Applies a lever.
    pub fn apply(&mut self, lever: &Lever) {
        levers::apply(self, lever);
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
        };
        if parts > 1.0 {
            load.add(self.accumulation(parts));
        }
        load.add(self.tail);
        load.time(&self.pace) + self.waits
    }

    /// Adding each micro-batch's gradients to those that are there: read both, write one.
    fn accumulation(&self, parts: f64) -> Load {
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
                * (3.0 * bytes / self.pace.memory_bytes_per_s * 1e9 + count * self.pace.launch_ns),
            launches: (parts - 1.0) * count,
        }
    }

    /// The pace of the GPU.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}
