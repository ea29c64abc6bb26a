//! How large the networks of a project are, where the code shows it.
//!
//! A [`Layout`] is what a class's `__init__` builds. Its widths are literals, parameters of `__init__`, and arithmetic with both.
//! Once the project is known, [`Layout::size`] puts in what every caller hands over. A width that the code does not show counts as
//! [`UNKNOWN_WIDTH`], so that a size is an upper bound for all but very wide inputs. A class that builds anything else has no layout.

use std::collections::hash_map::Entry;

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{
    Expr, ExprCall, Number, Operator, Stmt, StmtClassDef, StmtFunctionDef,
};
use oomph_python_source::{Module, Ranged, dotted_name, last_name};
use rustc_hash::FxHashMap;

use crate::reach::Constant;

/// What a width counts as that the code does not show.
const UNKNOWN_WIDTH: u64 = 4096;
/// What the rows of an embedding count as that the code does not show: more than most vocabularies have.
const UNKNOWN_ROWS: u64 = 65_536;
/// What a number of layers, or the edge of a kernel, counts as that the code does not show.
const UNKNOWN_COUNT: u64 = 8;
/// Bytes of a parameter or of an activation.
const BYTES: u64 = 4;
/// Activations that a linear layer keeps for its backward pass, with those of what follows it.
const KEPT: u64 = 3;
/// A batch of rows counts as this many.
const ROWS: u64 = 4096;

/// Findings about less than this are not reported.
const SMALL: u64 = 16 << 20;
/// A million parameters.
const TINY: u64 = 4 << 20;

/// How large a network is at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes of its parameters.
    pub(crate) parameters: u64,
    /// Bytes that a batch of rows keeps for the backward pass, if it has linear layers only.
    pub(crate) activations: Option<u64>,
    /// Whether it ends in linear layers and has none that go over a sequence: what it is given is small.
    pub(crate) ends_flat: bool,
    /// Whether it has linear layers only, of widths that the code does not show, and none that goes over pixels, a sequence or points
    /// along rays.
    pub(crate) of_rows: bool,
}

impl Size {
    /// The larger of both, in each respect.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            parameters: self.parameters.max(other.parameters),
            activations: self
                .activations
                .zip(other.activations)
                .map(|(a, b)| a.max(b)),
            ends_flat: self.ends_flat && other.ends_flat,
            of_rows: self.of_rows && other.of_rows,
        }
    }

    pub(crate) fn has_small_parameters(self) -> bool {
        self.parameters < SMALL
    }

    /// A classifier of small images or of rows, with a million parameters at most.
    pub(crate) fn is_tiny(self) -> bool {
        self.parameters < TINY && self.ends_flat
    }

    pub(crate) fn has_small_activations(self) -> bool {
        self.activations.is_some_and(|bytes| bytes < SMALL)
    }
}

/// A width, as the code says it.
#[derive(Clone, Debug, PartialEq)]
enum Width {
    Known(u64),
    /// A parameter of `__init__`.
    Given(String),
    Computed(Box<(Width, Operator, Width)>),
    Unknown,
}

impl Width {
    fn value(&self, given: &impl Fn(&str) -> Option<u64>) -> Option<u64> {
        match self {
            Self::Known(width) => Some(*width),
            Self::Given(name) => given(name),
            Self::Computed(parts) => {
                let (left, right) = (parts.0.value(given)?, parts.2.value(given)?);
                match parts.1 {
                    Operator::Add => left.checked_add(right),
                    Operator::Sub => left.checked_sub(right),
                    Operator::Mult => left.checked_mul(right),
                    Operator::FloorDiv => left.checked_div(right),
                    _ => None,
                }
            }
            Self::Unknown => None,
        }
    }
}

/// A layer with parameters.
#[derive(Clone, Debug)]
enum Layer {
    Linear([Width; 2]),
    /// Channels in and out, the edges of the kernel, and its dimensions.
    Conv([Width; 2], Vec<Width>, u32),
    /// Gates, widths in and out, and layers; twice as many if it runs in both directions.
    Recurrent(u64, [Width; 2], Width, bool),
    Embedding([Width; 2]),
    Norm(Width),
}

/// What a class builds.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    class: String,
    /// None if it builds what is not known.
    layers: Option<Vec<Layer>>,
    /// Whether it builds linear layers only, how many and how wide they may be.
    of_rows: bool,
}

impl Layout {
    /// Of a class that may be a module.
    pub(crate) fn of(module: &Module<'_>, class: &StmtClassDef) -> Option<Self> {
        let [base] = class.bases() else { return None };
        let text = module.slice(class.range());
        let of_rows = Rows::are_all(module, class, 0);
        let layers = if last_name(base) != Some("Module") {
            // What is made from another class builds what that one builds.
            None
        } else if puts_itself_on_the_cpu(text) {
            Some(Vec::new())
        } else {
            Builds::of(class, text)
        };
        Some(Self {
            class: class.name.to_string(),
            layers,
            of_rows,
        })
    }

    /// How large its objects are at most, with what all callers hand over: `Class.__init__(name)`.
    fn size(&self, constants: &FxHashMap<String, Constant>) -> Option<Size> {
        let given = |name: &str| match constants.get(&format!("{}.__init__({name})", self.class)) {
            Some(Constant::Int(width)) => Some(*width),
            _ => None,
        };
        let mut parameters: u64 = 0;
        let mut row = Some(0_u64);
        let Some(layers) = &self.layers else {
            return self.of_rows.then_some(Size {
                parameters: u64::MAX,
                of_rows: true,
                ..Size::default()
            });
        };
        for layer in layers {
            let width = |width: &Width| width.value(&given).unwrap_or(UNKNOWN_WIDTH);
            let count = |width: &Width| width.value(&given).unwrap_or(UNKNOWN_COUNT);
            let held = match layer {
                Layer::Linear([from, to]) => {
                    row = row.map(|row| row.saturating_add(width(to)));
                    width(from).saturating_add(1).saturating_mul(width(to))
                }
                Layer::Conv([from, to], kernel, dimensions) => {
                    row = None;
                    let edges = kernel.iter().map(count).fold(1, u64::saturating_mul);
                    let edges = if kernel.len() == 1 {
                        edges.saturating_pow(*dimensions)
                    } else {
                        edges
                    };
                    width(from)
                        .saturating_mul(edges)
                        .saturating_add(1)
                        .saturating_mul(width(to))
                }
                Layer::Recurrent(gates, [from, to], layers, both) => {
                    row = None;
                    let ways = 1 + u64::from(*both);
                    let (from, to, layers) = (width(from), width(to), count(layers));
                    let inner = from.max(to.saturating_mul(ways));
                    let each = inner
                        .saturating_add(to)
                        .saturating_add(2)
                        .saturating_mul(to);
                    each.saturating_mul(gates * ways).saturating_mul(layers)
                }
                Layer::Embedding([rows, to]) => {
                    row = None;
                    rows.value(&given)
                        .unwrap_or(UNKNOWN_ROWS)
                        .saturating_mul(width(to))
                }
                Layer::Norm(of) => width(of).saturating_mul(2),
            };
            parameters = parameters.saturating_add(held);
        }
        Some(Size {
            parameters: parameters.saturating_mul(BYTES),
            activations: row.map(|row| row.saturating_mul(KEPT * ROWS * BYTES)),
            ends_flat: layers.iter().any(|each| matches!(each, Layer::Linear(_)))
                && !layers
                    .iter()
                    .any(|each| matches!(each, Layer::Recurrent(..) | Layer::Embedding(_))),
            of_rows: false,
        })
    }
}

/// Adds the sizes of a file's classes to those of its part of the project. Of classes with one name, the largest counts, and one that
/// is not known makes all unknown.
pub(crate) fn add(
    sizes: &mut FxHashMap<String, Option<Size>>,
    layouts: &[Layout],
    constants: &FxHashMap<String, Constant>,
) {
    for layout in layouts {
        let size = layout.size(constants);
        match sizes.entry(layout.class.clone()) {
            Entry::Vacant(free) => {
                free.insert(size);
            }
            Entry::Occupied(mut known) => {
                let both = known.get().zip(size).map(|(a, b)| a.max(b));
                known.insert(both);
            }
        }
    }
}

/// Whether a class names the CPU as its device, moves itself there and names no other: nothing of it is on a GPU.
fn puts_itself_on_the_cpu(class: &str) -> bool {
    class.contains("self.to(")
        && ["device('cpu')", "device(\"cpu\")"]
            .iter()
            .any(|cpu| class.contains(cpu))
        && !class.contains("cuda")
}

/// Reads whether a class has linear layers only.
struct Rows<'m, 'a> {
    module: &'m Module<'a>,
    depth: usize,
    all: bool,
    any: bool,
}

impl Rows<'_, '_> {
    fn are_all(module: &Module<'_>, class: &StmtClassDef, depth: usize) -> bool {
        /// Words of networks that are asked for many points of each pixel.
        const POINTS: &[&str] = &["rays", "nerf", "NeRF", "xyz", "coord", "pts"];
        let text = module.slice(class.range());
        let is_module = |base: &Expr| last_name(base) == Some("Module");
        let mut rows = Rows {
            module,
            depth,
            any: false,
            all: class.bases().iter().all(is_module)
                && !POINTS.iter().any(|word| text.contains(word)),
        };
        for stmt in &class.body {
            rows.visit_stmt(stmt);
        }
        // What it is given and calls may be any network.
        let mut methods = class.body.iter().filter_map(Stmt::as_function_def_stmt);
        let init = methods.find(|def| def.name.as_str() == "__init__");
        let given = init.map(|def| def.parameters.iter_non_variadic_params());
        let calls_given = given
            .into_iter()
            .flatten()
            .any(|each| text.contains(&format!("self.{}(", each.parameter.name.as_str())));
        rows.all && rows.any && !calls_given
    }

    fn call(&mut self, name: &str) {
        const MAX_CLASSES: usize = 4;
        /// What keeps no more than its input does.
        const OTHERS: &[&str] = &[
            "Sequential",
            "ModuleList",
            "ModuleDict",
            "OrderedDict",
            "Identity",
            "LayerNorm",
            "BatchNorm1d",
            "Dropout",
            "Softplus",
            "Softmax",
            "LogSoftmax",
            "Swish",
            "Hardswish",
            "Tensor",
            "FloatTensor",
            "Normal",
            "Categorical",
            "Adam",
            "Flatten",
        ];
        const LARGE: &[&str] = &[
            "conv",
            "attention",
            "pool",
            "interpolate",
            "fold",
            "pretrained",
            "resnet",
            "model",
            "make_",
            "build",
            "lstm",
            "gru",
            "embed",
            "sparse",
            "fft",
            "render",
        ];
        let lower = name.to_ascii_lowercase();
        if name == "Linear" || name == "Parameter" || lower.contains("mlp") {
            self.any = true;
        } else if !name.starts_with(char::is_uppercase) {
            self.all &= !LARGE.iter().any(|word| lower.contains(word));
        } else if !OTHERS.contains(&name)
            && !["LU", "Mish", "Tanh", "Sigmoid", "Error"]
                .iter()
                .any(|end| name.ends_with(end))
        {
            let mut classes = self
                .module
                .body()
                .iter()
                .filter_map(Stmt::as_class_def_stmt);
            let made = classes.find(|class| class.name.as_str() == name);
            let of_rows = self.depth < MAX_CLASSES
                && made.is_some_and(|class| Self::are_all(self.module, class, self.depth + 1));
            self.all &= of_rows;
            self.any |= of_rows;
        }
    }
}

impl<'a> Visitor<'a> for Rows<'_, '_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && let Some(name) = last_name(&call.func)
        {
            self.call(name);
        }
        if self.all {
            walk_expr(self, expr);
        }
    }
}

/// Reads what a class builds.
struct Builds {
    layers: Option<Vec<Layer>>,
    /// What names of `__init__` stand for.
    names: FxHashMap<String, Width>,
    in_init: bool,
    /// Inside a loop or a function, which may run several times.
    again: bool,
}

impl Builds {
    /// The layers of a class; none if they are not all known.
    fn of(class: &StmtClassDef, text: &str) -> Option<Vec<Layer>> {
        let mut builds = Self {
            layers: Some(Vec::new()),
            names: FxHashMap::default(),
            in_init: false,
            again: false,
        };
        let is_init = |def: &&StmtFunctionDef| def.name.as_str() == "__init__";
        let init = class
            .body
            .iter()
            .filter_map(Stmt::as_function_def_stmt)
            .find(is_init)?;
        builds.init(init);
        if builds.layers.as_ref().is_none_or(Vec::is_empty) {
            return None;
        }
        for stmt in &class.body {
            if !stmt.as_function_def_stmt().is_some_and(|def| is_init(&def)) {
                builds.visit_stmt(stmt);
            }
        }
        // What it is given and calls may be any network.
        let calls_given = |place: &str| {
            [
                format!("{place}("),
                format!("in {place}"),
                format!("Sequential({place}"),
            ]
            .iter()
            .any(|used| text.contains(used))
        };
        let mut given = builds
            .names
            .iter()
            .filter(|(_, width)| matches!(width, Width::Given(_)));
        let calls = given.any(|(place, _)| place.starts_with("self.") && calls_given(place));
        builds.layers.filter(|_| !calls)
    }

    fn init(&mut self, def: &StmtFunctionDef) {
        for each in def.parameters.iter_non_variadic_params() {
            let name = each.parameter.name.to_string();
            self.names.insert(name.clone(), Width::Given(name));
        }
        self.in_init = true;
        for stmt in &def.body {
            self.visit_stmt(stmt);
        }
        self.in_init = false;
    }

    fn width(&self, expr: Option<&Expr>) -> Width {
        let Some(expr) = expr else {
            return Width::Unknown;
        };
        match expr {
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(int) => int.as_u64().map_or(Width::Unknown, Width::Known),
                _ => Width::Unknown,
            },
            Expr::BinOp(node) => {
                let parts = (
                    self.width(Some(&node.left)),
                    node.op,
                    self.width(Some(&node.right)),
                );
                Width::Computed(Box::new(parts))
            }
            _ => dotted_name(expr)
                .and_then(|name| self.names.get(&name).cloned())
                .unwrap_or(Width::Unknown),
        }
    }

    fn layer(&self, call: &ExprCall, name: &str) -> Option<Layer> {
        let arg = |name: &str, at: usize| call.arguments.find_argument_value(name, at);
        let pair = |from: &str, to: &str| [self.width(arg(from, 0)), self.width(arg(to, 1))];
        let gates = match name.trim_end_matches("Cell") {
            "LSTM" => 4,
            "GRU" => 3,
            "RNN" => 1,
            _ => 0,
        };
        if gates > 0 {
            let layers = match arg("num_layers", 2) {
                Some(layers) if !name.ends_with("Cell") => self.width(Some(layers)),
                _ => Width::Known(1),
            };
            let both = arg("bidirectional", 6)
                .is_some_and(|flag| !matches!(flag, Expr::BooleanLiteral(flag) if !flag.value));
            return Some(Layer::Recurrent(
                gates,
                pair("input_size", "hidden_size"),
                layers,
                both,
            ));
        }
        if let Some(dimensions) = name.strip_prefix("Conv").and_then(|rest| {
            let digit = rest.trim_start_matches("Transpose").strip_suffix('d')?;
            digit.parse::<u32>().ok()
        }) {
            let kernel = match arg("kernel_size", 2) {
                Some(Expr::Tuple(edges)) => edges
                    .elts
                    .iter()
                    .map(|edge| self.width(Some(edge)))
                    .collect(),
                edge => vec![self.width(edge)],
            };
            return Some(Layer::Conv(
                pair("in_channels", "out_channels"),
                kernel,
                dimensions,
            ));
        }
        match name {
            "Linear" => Some(Layer::Linear(pair("in_features", "out_features"))),
            "Embedding" => Some(Layer::Embedding(pair("num_embeddings", "embedding_dim"))),
            "GroupNorm" => Some(Layer::Norm(self.width(arg("num_channels", 1)))),
            _ if name.starts_with("BatchNorm")
                || name.starts_with("InstanceNorm")
                || name == "LayerNorm" =>
            {
                Some(Layer::Norm(self.width(call.arguments.args.first())))
            }
            _ => None,
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let Some(name) = last_name(&call.func) else {
            self.layers = None;
            return;
        };
        match self.layer(call, name) {
            Some(_) if !self.in_init || self.again => self.layers = None,
            Some(layer) => {
                if let Some(layers) = &mut self.layers {
                    layers.push(layer);
                }
            }
            None if !self.in_init => {
                if matches!(
                    name,
                    "Parameter" | "add_module" | "register_parameter" | "Module"
                ) {
                    self.layers = None;
                }
            }
            None if !has_no_weights(name, call) => self.layers = None,
            None => {}
        }
    }
}

impl<'a> Visitor<'a> for Builds {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if self.layers.is_none() {
            return;
        }
        let outer = self.again;
        self.again |= matches!(stmt, Stmt::For(_) | Stmt::While(_) | Stmt::FunctionDef(_));
        walk_stmt(self, stmt);
        self.again = outer;
        if let (true, Stmt::Assign(assign)) = (self.in_init, stmt)
            && let [target] = &*assign.targets
            && let Some(place) = dotted_name(target)
        {
            let again = self.again || self.names.contains_key(&place);
            let width = if again {
                Width::Unknown
            } else {
                self.width(Some(&assign.value))
            };
            self.names.insert(place, width);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if self.layers.is_none() {
            return;
        }
        let outer = self.again;
        self.again |= matches!(
            expr,
            Expr::ListComp(_) | Expr::Generator(_) | Expr::DictComp(_) | Expr::Lambda(_)
        );
        if let Expr::Call(call) = expr {
            self.call(call);
        }
        walk_expr(self, expr);
        self.again = outer;
    }
}

/// Whether what is called in `__init__` adds no parameters, by its name.
fn has_no_weights(name: &str, call: &ExprCall) -> bool {
    const NONE: &[&str] = &[
        "super",
        "__init__",
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "OrderedDict",
        "int",
        "float",
        "str",
        "bool",
        "len",
        "print",
        "range",
        "max",
        "min",
        "sum",
        "list",
        "tuple",
        "isinstance",
        "device",
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "parameters",
        "is_available",
        "manual_seed",
        "apply",
        "Identity",
        "Flatten",
        "Unflatten",
        "Upsample",
        "PixelShuffle",
        "sqrt",
        "prod",
        "log",
        "Adam",
        "AdamW",
        "SGD",
        "RMSprop",
        "Adagrad",
        "append",
        "format",
        "join",
        "save_hyperparameters",
    ];
    const ENDS: &[&str] = &[
        "Pool1d", "Pool2d", "Pool3d", "Loss", "Pad1d", "Pad2d", "Pad3d", "Softmax", "Sigmoid",
        "Tanh", "sigmoid", "Softplus",
    ];
    let of_init = || dotted_name(&call.func).is_some_and(|path| path.contains("init."));
    NONE.contains(&name)
        || ENDS.iter().any(|end| name.ends_with(end))
        || name.starts_with("Dropout")
        || name.contains("init_")
        || name.contains("reset_param")
        || of_init()
        || matches!(
            name,
            "ReLU"
                | "LeakyReLU"
                | "ReLU6"
                | "ELU"
                | "SELU"
                | "GELU"
                | "SiLU"
                | "Mish"
                | "Hardswish"
        )
}
