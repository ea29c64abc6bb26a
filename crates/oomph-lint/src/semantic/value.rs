//! What the linter knows about the value of an expression.
//!
//! A [`Value`] never claims more than the source shows: a fact is `Yes` or `No` only where every
//! path that the walker followed agrees, and `Unknown` otherwise. Rules report on `Yes`.

use std::rc::Rc;

use super::{ClassId, FuncId};

/// A fact that may not be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tri {
    Yes,
    No,
    #[default]
    Unknown,
}

impl Tri {
    /// The fact where two paths meet.
    fn join(self, other: Self) -> Self {
        if self == other { self } else { Self::Unknown }
    }

    /// Whether an operation on both operands carries the fact: one `Yes` is enough.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::No, Self::No) => Self::No,
            _ => Self::Unknown,
        }
    }
}

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Device {
    Gpu,
    Cpu,
    #[default]
    Unknown,
}

/// What kind of module a model is, as far as rules care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelKind {
    Plain,
    MultiheadAttention,
    Recurrent,
    /// `nn.Softmax` and `nn.LogSoftmax`.
    Softmax,
}

/// The kind of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Kind {
    #[default]
    Unknown,
    /// An imported module, class or function, by its full dotted name.
    Qual(Rc<str>),
    Func(FuncId),
    Class(ClassId),
    /// An object of a class of this file that is no module, optimizer or loader.
    Instance,
    Model(ModelKind),
    Optimizer,
    Scaler,
    Criterion {
        cross_entropy: bool,
    },
    Loader,
    Dataset,
    /// An `AverageMeter`: keeps `sum += value * n`.
    Meter,
    /// A tensor, or a structure of tensors such as the output of a model.
    Tensor,
    /// A number, a string, a boolean, a NumPy array: nothing that can hold a graph.
    Plain,
    NoneLiteral,
    /// A `torch.device` or the name of one.
    Device,
    /// A list, set, dictionary or comprehension.
    Collection,
    Tuple(Rc<[Value]>),
    /// What `torch.load` returned.
    Checkpoint,
}

/// Identifies one assignment: its offset, and the name it binds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DefId(pub(crate) u64);

/// What is known about a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Value {
    pub(crate) kind: Kind,
    /// Whether the value holds an autograd graph.
    pub(crate) graph: Tri,
    pub(crate) device: Device,
    /// The class of this file that a model or instance is made from.
    pub(crate) class: Option<ClassId>,
    /// The value went through a softmax last.
    pub(crate) softmax: bool,
    /// The value comes straight from a model: nothing has made it smaller since.
    pub(crate) model_output: bool,
    /// The kind rests on a name only.
    pub(crate) weak: bool,
    /// The assignment that bound the value.
    pub(crate) def: DefId,
}

impl Value {
    pub(crate) fn unknown() -> Self {
        Self::default()
    }

    pub(crate) fn of(kind: Kind) -> Self {
        let graph = match kind {
            Kind::Plain | Kind::NoneLiteral | Kind::Device => Tri::No,
            _ => Tri::Unknown,
        };
        Self {
            kind,
            graph,
            ..Self::default()
        }
    }

    pub(crate) fn plain() -> Self {
        Self::of(Kind::Plain)
    }

    pub(crate) fn tensor(graph: Tri, device: Device) -> Self {
        Self {
            kind: Kind::Tensor,
            graph,
            device,
            ..Self::default()
        }
    }

    pub(crate) fn is_model(&self) -> bool {
        matches!(self.kind, Kind::Model(_))
    }

    pub(crate) fn is_tensor(&self) -> bool {
        self.kind == Kind::Tensor
    }

    /// A tensor that certainly holds a graph.
    pub(crate) fn has_graph(&self) -> bool {
        self.graph == Tri::Yes
    }

    /// The value where two paths meet.
    pub(crate) fn join(&self, other: &Self, meet: DefId) -> Self {
        if self == other {
            return self.clone();
        }
        let kind = if self.kind == other.kind {
            self.kind.clone()
        } else {
            match (&self.kind, &other.kind) {
                // `x = None` before the branch that fills it says nothing about `x`.
                (Kind::NoneLiteral, kind) | (kind, Kind::NoneLiteral) => kind.clone(),
                (Kind::Model(_), Kind::Model(_)) => Kind::Model(ModelKind::Plain),
                (Kind::Tuple(a), Kind::Tuple(b)) if a.len() == b.len() => Kind::Tuple(
                    a.iter()
                        .zip(b.iter())
                        .map(|(a, b)| a.join(b, meet))
                        .collect(),
                ),
                _ => Kind::Unknown,
            }
        };
        let one_is_none = self.kind == Kind::NoneLiteral || other.kind == Kind::NoneLiteral;
        Self {
            kind,
            graph: if one_is_none {
                self.graph.or(other.graph)
            } else {
                self.graph.join(other.graph)
            },
            device: if self.device == other.device {
                self.device
            } else {
                Device::Unknown
            },
            class: if self.class == other.class {
                self.class
            } else {
                None
            },
            softmax: self.softmax && other.softmax,
            model_output: self.model_output && other.model_output,
            weak: self.weak || other.weak,
            def: if self.def == other.def {
                self.def
            } else {
                meet
            },
        }
    }
}
