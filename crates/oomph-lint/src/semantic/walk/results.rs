//! What calls return.

use std::rc::Rc;

use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{last_name, last_part};

use super::Walker;
use super::expressions::collection;
use super::loops::element_of;
use crate::semantic::value::{DefId, Device, Kind, ModelKind, Tri, Value};
use crate::semantic::{FuncId, Grad, torch};

impl<'a> Walker<'a, '_> {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one call, used once"
    )]
    pub(super) fn result_of(
        &mut self,
        call: &'a ExprCall,
        callee: &Value,
        recv: &Value,
        method: Option<&'a str>,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
        target: Option<FuncId>,
    ) -> Value {
        let any_graph = args
            .iter()
            .chain(kwargs.iter().map(|(_, value)| value))
            .any(Value::has_graph);
        let recording = matches!(self.grad, Grad::On);
        match &callee.kind {
            Kind::Qual(qual) => {
                let qual = Rc::clone(qual);
                return self.result_of_qual(&qual, call, args, kwargs, any_graph);
            }
            Kind::Class(class) => {
                let info = &self.model.classes[class.index()];
                let kind = if info.is_module {
                    Kind::Model(ModelKind::Plain)
                } else if info.is_dataset {
                    Kind::Dataset
                } else if info.node.name.as_str() == "AverageMeter" {
                    Kind::Meter
                } else {
                    Kind::Instance
                };
                let mut value = Value::of(kind);
                value.class = Some(*class);
                return value;
            }
            Kind::Func(func) => {
                let mut value = self.learned.returns[func.index()]
                    .clone()
                    .unwrap_or_default();
                value.def = DefId::default();
                if !recording {
                    cut_graphs(&mut value);
                }
                return value;
            }
            Kind::Model(kind) => {
                let graph = match self.grad {
                    Grad::On => Tri::Yes,
                    Grad::Off | Grad::CallerOff => Tri::No,
                    Grad::Maybe => Tri::Unknown,
                };
                if let (Some(func), Kind::Model(ModelKind::Plain)) = (target, &callee.kind) {
                    // What `forward` of this file returns, if it says more than "a tensor".
                    if let Some(returned) = &self.learned.returns[func.index()]
                        && matches!(returned.kind, Kind::Tensor | Kind::Tuple(_))
                    {
                        let mut value = returned.clone();
                        value.def = DefId::default();
                        value.model_output = true;
                        value.graph = graph;
                        value.device = callee.device;
                        return value;
                    }
                }
                let mut value = Value::tensor(graph, callee.device);
                match kind {
                    ModelKind::Softmax => {
                        value.softmax = true;
                        value.graph = args.first().map_or(Tri::Unknown, |arg| arg.graph);
                    }
                    _ => value.model_output = true,
                }
                return value;
            }
            Kind::Criterion { .. } => {
                let graph = if any_graph && recording {
                    Tri::Yes
                } else if !recording && self.grad != Grad::Maybe {
                    Tri::No
                } else {
                    Tri::Unknown
                };
                // The target is where the prediction is, or the call fails.
                let device = args.first().map_or(Device::Unknown, |arg| arg.device);
                return Value::tensor(graph, device);
            }
            _ => {}
        }
        match method {
            Some(name) => self.result_of_method(name, call, recv, args, any_graph),
            None => match &*call.func {
                Expr::Name(name) => result_of_builtin(name.id.as_str(), args),
                // `transforms.ToTensor()(image)`
                Expr::Call(made)
                    if self
                        .qual_of(&made.func)
                        .is_some_and(|qual| is_to_tensor(&qual)) =>
                {
                    Value::tensor(Tri::No, Device::Cpu)
                }
                _ => Value::unknown(),
            },
        }
    }

    pub(super) fn result_of_qual(
        &mut self,
        qual: &str,
        call: &'a ExprCall,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
        any_graph: bool,
    ) -> Value {
        let last = last_part(qual);
        // A metric is a module without weights.
        if qual.starts_with("torchmetrics.") {
            return Value::of(Kind::Instance);
        }
        if torch::is_data_parallel(qual) || torch::is_ddp(qual) || qual == "torch.compile" {
            let mut value = args.first().cloned().unwrap_or_default();
            if !value.is_model() {
                value.kind = Kind::Model(ModelKind::Plain);
            }
            value.def = DefId::default();
            return value;
        }
        if qual == "torch.device" {
            let mut value = Value::of(Kind::Device);
            value.device = args.first().map_or(Device::Unknown, |arg| arg.device);
            return value;
        }
        if matches!(qual, "copy.deepcopy" | "copy.copy") {
            return args.first().cloned().unwrap_or_default();
        }
        if matches!(last, "tqdm" | "track") && !qual.starts_with("torch.") {
            return args.first().cloned().unwrap_or_default();
        }
        if qual.starts_with("torch.optim.")
            && let Some(kind) = torch::constructed(qual)
        {
            return Value::of(kind);
        }
        if let Some(kind) = torch::constructed(qual) {
            let mut value = Value::of(kind);
            if value.kind == Kind::Checkpoint {
                value.graph = Tri::No;
            }
            return value;
        }
        if torch::is_factory(qual) {
            let device = kwargs
                .iter()
                .find(|(name, _)| *name == Some("device"))
                .map_or(Device::Cpu, |(_, value)| value.device);
            return Value::tensor(Tri::No, device);
        }
        if is_to_tensor(qual) && last == "to_tensor" {
            return Value::tensor(Tri::No, Device::Cpu);
        }
        if torch::is_tensor_function(qual) {
            let device = args
                .iter()
                .map(|arg| arg.device)
                .find(|device| *device != Device::Unknown);
            let recording = matches!(self.grad, Grad::On);
            let graph = if torch::makes_no_graph(last) || (!recording && self.grad != Grad::Maybe) {
                Tri::No
            } else if any_graph && recording {
                Tri::Yes
            } else if !args.is_empty() && args.iter().all(|arg| arg.graph == Tri::No) {
                Tri::No
            } else {
                Tri::Unknown
            };
            let mut value = Value::tensor(graph, device.unwrap_or_default());
            value.softmax = matches!(last, "softmax" | "log_softmax");
            value.model_output =
                args.first().is_some_and(|arg| arg.model_output) && torch::keeps_size(last);
            return with_indices(value, last, call.arguments.len() >= 2);
        }
        if qual.ends_with(".Variable") && qual.starts_with("torch.autograd") {
            return args.first().cloned().unwrap_or_default();
        }
        if qual.starts_with("numpy.") || qual.starts_with("math.") || qual.starts_with("os.") {
            return Value::plain();
        }
        Value::unknown()
    }

    pub(super) fn result_of_method(
        &mut self,
        name: &'a str,
        call: &'a ExprCall,
        recv: &Value,
        args: &[Value],
        any_graph: bool,
    ) -> Value {
        let unbound = |mut value: Value| {
            value.def = DefId::default();
            value
        };
        match (&recv.kind, name) {
            (Kind::Model(_), "cuda") => {
                let mut value = recv.clone();
                value.device = Device::Gpu;
                unbound(value)
            }
            (Kind::Model(_), "to") => {
                let mut value = recv.clone();
                value.device = args.first().map_or(Device::Unknown, |arg| arg.device);
                unbound(value)
            }
            (Kind::Model(_), "cpu") => {
                let mut value = recv.clone();
                value.device = Device::Cpu;
                unbound(value)
            }
            (
                Kind::Model(_),
                "eval" | "train" | "half" | "float" | "double" | "bfloat16" | "requires_grad_"
                | "apply" | "share_memory",
            ) => unbound(recv.clone()),
            (Kind::Model(_), _)
                if name == "forward"
                    || name.starts_with("forward_")
                    || name.starts_with("encode_") =>
            {
                let graph = match self.grad {
                    Grad::On => Tri::Yes,
                    Grad::Off | Grad::CallerOff => Tri::No,
                    Grad::Maybe => Tri::Unknown,
                };
                let mut value = Value::tensor(graph, recv.device);
                value.model_output = true;
                value
            }
            (Kind::Scaler, "scale") => {
                let mut value = args.first().cloned().unwrap_or_default();
                value.kind = Kind::Tensor;
                unbound(value)
            }
            (Kind::Collection | Kind::Plain, "items" | "values" | "keys" | "copy") => {
                unbound(recv.clone())
            }
            _ if torch::leaves_torch(name) => Value::plain(),
            _ if matches!(name, "detach" | "detach_") => {
                let mut value = recv.clone();
                value.kind = Kind::Tensor;
                value.graph = Tri::No;
                unbound(value)
            }
            _ if matches!(
                name,
                "cuda" | "to" | "cpu" | "clone" | "contiguous" | "float" | "half"
            ) =>
            {
                let mut value = recv.clone();
                match name {
                    "cuda" => value.device = Device::Gpu,
                    "cpu" => value.device = Device::Cpu,
                    // `x.to(device=self.device)`
                    "to" if call.arguments.find_keyword("device").is_some() => {
                        value.device = call
                            .arguments
                            .find_keyword("device")
                            .map_or(Device::Unknown, |named| {
                                self.peek_hinted(&named.value).device
                            });
                    }
                    "to" => {
                        if let Some(arg) = args.first() {
                            if arg.device != Device::Unknown {
                                value.device = arg.device;
                            } else if arg.kind == Kind::Device || arg.kind == Kind::Unknown {
                                value.device = Device::Unknown;
                            }
                        }
                    }
                    _ => {}
                }
                // `Net(…).to(device)` of an imported class is as likely a model: its name decides.
                if value.device == Device::Gpu && value.kind == Kind::Unknown && !is_of_class(call)
                {
                    value.kind = Kind::Tensor;
                }
                unbound(value)
            }
            (Kind::Tensor, _) => {
                let graph = if torch::makes_no_graph(name) {
                    Tri::No
                } else if recv.has_graph() || (any_graph && self.grad == Grad::On) {
                    Tri::Yes
                } else {
                    recv.graph
                };
                let mut value = Value::tensor(graph, recv.device);
                value.softmax = matches!(name, "softmax" | "log_softmax");
                value.model_output = recv.model_output && torch::keeps_size(name);
                with_indices(value, name, !call.arguments.is_empty())
            }
            (Kind::Unknown, "softmax" | "log_softmax") => {
                let mut value = Value::tensor(Tri::Unknown, Device::Unknown);
                value.softmax = true;
                value
            }
            _ => Value::unknown(),
        }
    }
}

/// What makes a tensor of an image, in main memory.
fn is_to_tensor(qual: &str) -> bool {
    qual.starts_with("torchvision.transforms.")
        && matches!(last_part(qual), "ToTensor" | "to_tensor")
}

/// What a value is where gradients are off: neither it nor a part of it holds a graph that it held for sure.
fn cut_graphs(value: &mut Value) {
    if value.graph == Tri::Yes {
        value.graph = Tri::No;
    }
    if let Kind::Tuple(parts) = &value.kind {
        let mut parts = parts.to_vec();
        parts.iter_mut().for_each(cut_graphs);
        value.kind = Kind::Tuple(Rc::from(parts));
    }
}

/// Whether a method is called on what a function or a class of another file makes: `Net(…).to(device)`,
/// `build_model(args).cuda()`, `networks[name]().to(device)`. That may be a model as well as a tensor.
fn is_of_class(call: &ExprCall) -> bool {
    let Expr::Attribute(method) = &*call.func else {
        return false;
    };
    let Expr::Call(made) = &*method.value else {
        return false;
    };
    // `Net(…).to(device).float()`
    if let Expr::Attribute(inner) = &*made.func
        && matches!(
            inner.attr.as_str(),
            "to" | "cuda" | "cpu" | "float" | "half" | "double" | "eval" | "train"
        )
    {
        return is_of_class(made);
    }
    match &*made.func {
        Expr::Subscript(_) => true,
        func => last_name(func).is_some_and(|name| {
            let lower = name.to_ascii_lowercase();
            let is_class = name.starts_with(|c: char| c.is_ascii_uppercase())
                && !["Tensor", "Variable", "Batch", "Data"]
                    .iter()
                    .any(|end| name.ends_with(end));
            is_class || lower.contains("model") || lower.contains("net")
        }),
    }
}

/// Functions of the language itself.
pub(super) fn result_of_builtin(name: &str, args: &[Value]) -> Value {
    match name {
        "float" | "int" | "len" | "bool" | "str" | "round" | "isinstance" | "range" | "open"
        | "format" | "print" | "repr" | "id" | "hash" => Value::plain(),
        "enumerate" => {
            let element = args.first().map_or_else(Value::unknown, element_of);
            let is_loader = args.first().is_some_and(|arg| arg.kind == Kind::Loader);
            if is_loader {
                // Kept as a tensor pair for the loop target: (index, batch).
                return Value {
                    kind: Kind::Tensor,
                    graph: Tri::No,
                    ..element
                };
            }
            Value::unknown()
        }
        "tqdm" | "iter" | "trange" | "reversed" => args.first().cloned().unwrap_or_default(),
        "next" => args.first().map_or_else(Value::unknown, element_of),
        "sum" | "max" | "min" => {
            let graph = args.iter().fold(Tri::No, |graph, arg| graph.or(arg.graph));
            if graph == Tri::Yes {
                Value::tensor(Tri::Yes, Device::Unknown)
            } else {
                Value::unknown()
            }
        }
        "list" | "dict" | "tuple" | "set" | "sorted" | "zip" | "map" | "filter" => {
            collection(args.iter().fold(Tri::No, |graph, arg| graph.or(arg.graph)))
        }
        _ => Value::unknown(),
    }
}

/// `max`, `min`, `topk` and `sort` along a dimension return values and indices.
pub(super) fn with_indices(value: Value, name: &str, has_dim: bool) -> Value {
    if has_dim
        && matches!(
            name,
            "max" | "min" | "topk" | "sort" | "median" | "mode" | "kthvalue"
        )
    {
        let indices = Value::tensor(Tri::No, value.device);
        return Value::of(Kind::Tuple(Rc::from([value, indices])));
    }
    value
}
