//! What somebody who watched the job knows about each event: `oomph run` records it, a plain
//! snapshot lacks it. Every column is optional per row.

use crate::string_table::StringId;

/// What an allocation holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Category {
    /// Nobody knows.
    #[default]
    Unknown,
    /// Weights and buffers of the model.
    Parameter,
    /// Gradients of parameters.
    Gradient,
    /// What the optimizer keeps between steps.
    OptimizerState,
    /// What forward keeps for backward.
    Activation,
    /// Scratch memory of a library (cuBLAS, cuDNN).
    Workspace,
    /// Lives and dies within one phase.
    Temporary,
    /// A batch from the data loader.
    Input,
}

impl Category {
    /// All categories, most persistent first.
    pub const ALL: [Self; 8] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Workspace,
        Self::Temporary,
        Self::Unknown,
    ];

    /// The category behind a number of the oomph file.
    pub(crate) fn from_code(code: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|&category| category as u64 == code)
            .unwrap_or_default()
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activations",
            Self::Input => "inputs",
            Self::Workspace => "workspace",
            Self::Temporary => "temporary",
            Self::Unknown => "unknown",
        }
    }

    /// The name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer_state",
            other => other.name(),
        }
    }
}

/// What the job was doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Phase {
    /// Nobody knows.
    #[default]
    Unknown,
    /// Building the model.
    Setup,
    /// Forward with a graph.
    Forward,
    /// Backward.
    Backward,
    /// The optimizer's step.
    Optimizer,
    /// Forward without a graph, or evaluation.
    Inference,
    /// Weights are read from a file, moved to the GPU, or cast there.
    Load,
}

impl Phase {
    /// All phases, in the order of a step.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Setup,
        Self::Load,
        Self::Forward,
        Self::Backward,
        Self::Optimizer,
        Self::Inference,
    ];

    /// The phase behind a number of the oomph file.
    pub(crate) fn from_code(code: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|&phase| phase as u64 == code)
            .unwrap_or_default()
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Setup => "setup",
            Self::Load => "load",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer step",
            Self::Inference => "inference",
        }
    }
}

/// The labels of one event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Label {
    /// What the allocation holds.
    pub category: Category,
    /// The module path, such as `transformer.h.3.mlp`.
    pub module: StringId,
    /// The operator, such as `aten::addmm`.
    pub op: StringId,
    /// What the job was doing.
    pub phase: Phase,
    /// The step, counted from 1; 0 is before the first or unknown.
    pub step: u32,
}

/// One label per event of a [`crate::Trace`]: a table of distinct labels and a column of rows.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    table: Vec<Label>,
    rows: Vec<u32>,
}

impl Labels {
    /// Adds a distinct label, to be given to any number of events with [`Labels::set`].
    pub fn add(&mut self, label: Label) -> u32 {
        // Row value 0 is "no label".
        self.table.push(label);
        self.table.len() as u32
    }

    /// Gives the label that [`Labels::add`] returned as `handle` to an event.
    pub fn set(&mut self, row: usize, handle: u32) {
        if row >= self.rows.len() {
            self.rows.resize(row + 1, 0);
        }
        if let Some(slot) = self.rows.get_mut(row) {
            *slot = handle;
        }
    }

    /// The distinct labels.
    pub(crate) fn table(&self) -> &[Label] {
        &self.table
    }

    /// The handle of an event's label, 0 where it has none.
    pub(crate) fn handle(&self, row: usize) -> u32 {
        self.rows.get(row).copied().unwrap_or(0)
    }

    /// The label of an event; the default where it has none.
    pub fn get(&self, row: usize) -> Label {
        self.rows
            .get(row)
            .and_then(|&handle| (handle as usize).checked_sub(1))
            .and_then(|index| self.table.get(index))
            .copied()
            .unwrap_or_default()
    }
}
