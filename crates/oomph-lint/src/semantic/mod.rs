//! The semantic model of one file: what its names mean, where gradients are recorded, which loops
//! train, and what every call and assignment does.
//!
//! [`build`] walks the file twice. The first walk learns what the functions of the file take and
//! return, which assignments end up in a `backward()`, and which functions are only ever called
//! without gradients; the second walk uses all of that and records the events that rules query.
//! Rules never walk the tree for meaning, only for shape.

pub(crate) mod torch;
pub(crate) mod value;
mod walk;

use std::cell::OnceCell;
use std::rc::Rc;

use oomph_python_source::ast::{Expr, ExprCall, Stmt, StmtClassDef, StmtFunctionDef, StmtWith};
use oomph_python_source::{Module, Ranged, TextRange, TextSize, dotted_name, last_name};

use crate::project::Around;
use crate::queries::devices::Evidence;
use value::{Kind, Value};
pub(crate) use walk::{build, may_use_torch};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) struct $name(u32);

        impl $name {
            pub(crate) fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A function or method of the file.
    FuncId
);
id!(
    /// A class of the file.
    ClassId
);
id!(
    /// A lexical context: module, function, loop, `with` block, branch, handler.
    CtxId
);
id!(
    /// A statement.
    StmtId
);

/// Whether operations record a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grad {
    /// As far as the file shows.
    On,
    /// Under `no_grad`, `inference_mode` or `set_grad_enabled(False)` in this function.
    Off,
    /// Every call of this function in the file is made without gradients.
    CallerOff,
    /// Decided when the program runs.
    Maybe,
}

/// What a context is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CtxKind<'a> {
    Module,
    Function,
    Class,
    Lambda,
    Comprehension,
    For,
    While,
    With(&'a StmtWith),
    /// A branch, with the test that guards it (none for `else`).
    Branch(Option<&'a Expr>),
    Try,
    Handler,
}

/// A lexical context.
#[derive(Debug)]
pub(crate) struct Ctx<'a> {
    pub(crate) parent: Option<CtxId>,
    pub(crate) kind: CtxKind<'a>,
    pub(crate) range: TextRange,
    pub(crate) func: Option<FuncId>,
    pub(crate) class: Option<ClassId>,
}

/// A statement and its place in the block that holds it.
#[derive(Debug)]
pub(crate) struct StmtInfo<'a> {
    pub(crate) node: &'a Stmt,
    pub(crate) ctx: CtxId,
    pub(crate) block: &'a [Stmt],
    pub(crate) index: usize,
}

/// A call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) node: &'a ExprCall,
    pub(crate) ctx: CtxId,
    pub(crate) stmt: StmtId,
    /// The full name of what is called, when it is imported.
    pub(crate) qual: Option<Rc<str>>,
    /// The attribute that is called: `step` of `optimizer.step()`.
    pub(crate) method: Option<&'a str>,
    /// The value before the attribute.
    pub(crate) recv: Value,
    /// The value that is called.
    pub(crate) callee: Value,
    pub(crate) args: Vec<Value>,
    /// The function of this file that is called.
    pub(crate) target: Option<FuncId>,
    pub(crate) grad: Grad,
    pub(crate) result: Value,
}

impl<'a> Call<'a> {
    pub(crate) fn is(&self, qual: &str) -> bool {
        self.qual.as_deref() == Some(qual)
    }

    pub(crate) fn is_method(&self, name: &str) -> bool {
        self.method == Some(name)
    }

    /// Whether it steps an optimizer: `optimizer.step()`, `scaler.step(optimizer)`, or a scaler that
    /// is called.
    pub(crate) fn is_step(&self) -> bool {
        (self.is_method("step") && matches!(self.recv.kind, Kind::Optimizer | Kind::Scaler))
            || (self.recv.is_model() && self.is_method("step"))
            || last_name(&self.node.func).is_some_and(|name| name.ends_with("loss_scaler"))
    }

    /// Whether it clears gradients.
    pub(crate) fn is_zero_grad(&self) -> bool {
        self.is_method("zero_grad") || self.is_method("clear_grad")
    }

    /// The expression before the attribute.
    pub(crate) fn recv_expr(&self) -> Option<&'a Expr> {
        match &*self.node.func {
            Expr::Attribute(attribute) => Some(&attribute.value),
            _ => None,
        }
    }

    /// The place before the attribute, such as `self.optimizer`.
    pub(crate) fn recv_place(&self) -> Option<String> {
        self.recv_expr().and_then(dotted_name)
    }

    pub(crate) fn keyword(&self, name: &str) -> Option<&'a Expr> {
        self.node
            .arguments
            .find_keyword(name)
            .map(|keyword| &keyword.value)
    }

    pub(crate) fn arg(&self, name: &str, position: usize) -> Option<&'a Expr> {
        self.node.arguments.find_argument_value(name, position)
    }

    /// Whether `*args` may pass any positional argument.
    pub(crate) fn has_star_args(&self) -> bool {
        self.node.arguments.args.iter().any(Expr::is_starred_expr)
    }

    /// Whether `**kwargs` may pass any keyword.
    pub(crate) fn has_star_kwargs(&self) -> bool {
        self.node
            .arguments
            .keywords
            .iter()
            .any(|keyword| keyword.arg.is_none())
    }
}

/// How an assignment binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// `x = value`
    Set,
    /// `x += value`
    Add,
    /// Another augmented assignment.
    Augment,
    /// One of several targets of an unpacked value.
    Unpack,
    /// A loop target, `with … as`, or `import`.
    Other,
}

/// An assignment.
#[derive(Debug)]
pub(crate) struct Assign<'a> {
    /// The bound place: `x`, `self.x`; `x[]` for an item of `x`.
    pub(crate) place: String,
    pub(crate) target: &'a Expr,
    /// The expression on the right. For [`Bind::Unpack`] this is the whole right side.
    pub(crate) expr: Option<&'a Expr>,
    pub(crate) value: Value,
    pub(crate) bind: Bind,
    pub(crate) ctx: CtxId,
    pub(crate) stmt: StmtId,
    pub(crate) grad: Grad,
}

/// A `backward()`, in any of its forms.
#[derive(Debug)]
pub(crate) struct Backward<'a> {
    pub(crate) call: usize,
    pub(crate) ctx: CtxId,
    pub(crate) target: &'a Expr,
    /// The loss went through `scaler.scale`.
    pub(crate) scaled: bool,
}

/// A function or method.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(crate) struct Func<'a> {
    pub(crate) node: &'a StmtFunctionDef,
    pub(crate) class: Option<ClassId>,
    /// The context of the body.
    pub(crate) body: Option<CtxId>,
    /// Calls `backward()`, itself or through functions of this file.
    pub(crate) has_backward: bool,
    /// Steps an optimizer, itself or through functions of this file.
    pub(crate) has_step: bool,
    /// Clears gradients, itself or through functions of this file.
    pub(crate) has_zero_grad: bool,
    /// Runs a model with gradients on, itself or through functions of this file.
    pub(crate) has_forward: bool,
    /// Something in this file calls it, or a method of its name.
    pub(crate) called: bool,
}

impl Func<'_> {
    /// What it does for a training step: backward, step, clearing gradients, forward.
    fn does(&self) -> [bool; 4] {
        [
            self.has_backward,
            self.has_step,
            self.has_zero_grad,
            self.has_forward,
        ]
    }

    /// Whether all that it does for a training step is the forward pass.
    pub(crate) fn only_runs_forward(&self) -> bool {
        self.does() == [false, false, false, true]
    }
}

/// A class.
#[derive(Debug)]
pub(crate) struct Class<'a> {
    pub(crate) node: &'a StmtClassDef,
    pub(crate) is_module: bool,
    pub(crate) is_dataset: bool,
    pub(crate) is_lightning: bool,
    /// Bases of this file.
    pub(crate) bases: Vec<ClassId>,
    pub(crate) methods: Vec<FuncId>,
}

/// A `for` or `while` loop.
#[derive(Debug)]
pub(crate) struct Loop<'a> {
    pub(crate) ctx: CtxId,
    pub(crate) range: TextRange,
    pub(crate) body: &'a [Stmt],
    /// Iterates over batches.
    pub(crate) data: bool,
    /// A `backward()` belongs to this loop and to no loop inside it: one iteration, one step.
    pub(crate) trains: bool,
    /// A `backward()` happens somewhere inside, also in inner loops and called functions.
    pub(crate) contains_backward: bool,
    pub(crate) grad: Grad,
}

/// The semantic model of one file.
#[derive(Debug)]
pub(crate) struct Model<'a> {
    pub(crate) module: &'a Module<'a>,
    /// The file imports PyTorch or a library on top of it.
    pub(crate) uses_torch: bool,
    pub(crate) ctxs: Vec<Ctx<'a>>,
    pub(crate) stmts: Vec<StmtInfo<'a>>,
    /// Where each statement starts, how far those up to it reach, and its place in `stmts`; by start.
    pub(super) starts: OnceCell<Vec<(TextSize, TextSize, usize)>>,
    pub(crate) calls: Vec<Call<'a>>,
    pub(crate) assigns: Vec<Assign<'a>>,
    pub(crate) backwards: Vec<Backward<'a>>,
    pub(crate) funcs: Vec<Func<'a>>,
    pub(crate) classes: Vec<Class<'a>>,
    pub(crate) loops: Vec<Loop<'a>>,
    /// Whether the file computes on the CPU, once a rule has asked.
    pub(crate) cpu_only: OnceCell<bool>,
    /// What the file says about where it computes, once a rule has asked.
    pub(crate) evidence: OnceCell<Evidence>,
    /// Whether the file imports a library for unit tests, once a rule has asked.
    pub(crate) tests: OnceCell<bool>,
    /// Which calls, assignments and backward passes each function has, once a rule has asked.
    pub(crate) by_function: OnceCell<ByFunction>,
    /// Passes whose graph lives into the next iteration of their loop, and what each calls, once a rule has asked.
    pub(crate) kept_into_next: OnceCell<Vec<(TextRange, String)>>,
    /// What the other files of the project say.
    pub(crate) around: Around,
}

/// The indices of the calls, the assignments and the backward passes of each function, those outside of any at the end. Rules ask for a
/// function's once for each call in it: a scan of the whole file each time would cost the square of its length.
#[derive(Debug)]
pub(crate) struct ByFunction {
    calls: Vec<Vec<usize>>,
    assigns: Vec<Vec<usize>>,
    backwards: Vec<Vec<usize>>,
}

impl<'a> Model<'a> {
    /// The statements that a place is in, the innermost first. Looks at those before it in the same top-level statement only.
    pub(crate) fn stmts_around(&self, range: TextRange) -> impl Iterator<Item = &StmtInfo<'a>> {
        let starts = self.starts.get_or_init(|| {
            let mut starts: Vec<_> = (self.stmts.iter().enumerate())
                .map(|(place, info)| (info.node.range().start(), info.node.range().end(), place))
                .collect();
            starts.sort_unstable();
            let mut reach = TextSize::default();
            for (_, end, _) in &mut starts {
                reach = reach.max(*end);
                *end = reach;
            }
            starts
        });
        let before = starts.partition_point(|(start, _, _)| *start <= range.start());
        (starts[..before].iter().rev())
            .take_while(move |(_, reach, _)| *reach >= range.end())
            .map(|(_, _, place)| &self.stmts[*place])
            .filter(move |info| info.node.range().contains_range(range))
    }

    pub(crate) fn ctx(&self, id: CtxId) -> &Ctx<'a> {
        &self.ctxs[id.index()]
    }

    pub(crate) fn stmt(&self, id: StmtId) -> &StmtInfo<'a> {
        &self.stmts[id.index()]
    }

    pub(crate) fn func(&self, id: FuncId) -> &Func<'a> {
        &self.funcs[id.index()]
    }

    pub(crate) fn class(&self, id: ClassId) -> &Class<'a> {
        &self.classes[id.index()]
    }

    pub(crate) fn text(&self, node: impl Ranged) -> &'a str {
        self.module.slice(node)
    }

    /// The context and everything around it, innermost first.
    pub(crate) fn ancestors(&self, ctx: CtxId) -> impl Iterator<Item = CtxId> + '_ {
        std::iter::successors(Some(ctx), |id| self.ctx(*id).parent)
    }

    /// The contexts of the same function, innermost first, without the function itself.
    pub(crate) fn within_function(&self, ctx: CtxId) -> impl Iterator<Item = CtxId> + '_ {
        self.ancestors(ctx).take_while(|id| {
            !matches!(
                self.ctx(*id).kind,
                CtxKind::Function | CtxKind::Module | CtxKind::Class | CtxKind::Lambda
            )
        })
    }

    /// Whether `inner` lies in `outer` (or is it).
    pub(crate) fn is_inside(&self, inner: CtxId, outer: CtxId) -> bool {
        self.ancestors(inner).any(|id| id == outer)
    }

    /// The loops around a context in its function, innermost first.
    pub(crate) fn loops_around(&self, ctx: CtxId) -> impl Iterator<Item = &Loop<'a>> + '_ {
        self.within_function(ctx)
            .filter_map(|id| self.loops.iter().find(|each| each.ctx == id))
    }

    /// The innermost loop around a context whose iterations are training steps.
    pub(crate) fn training_loop(&self, ctx: CtxId) -> Option<&Loop<'a>> {
        self.loops_around(ctx).find(|each| each.trains)
    }

    /// Whether a context is under a condition, inside `outer`.
    pub(crate) fn is_conditional_in(&self, ctx: CtxId, outer: CtxId) -> bool {
        self.ancestors(ctx)
            .take_while(|id| *id != outer)
            .any(|id| matches!(self.ctx(id).kind, CtxKind::Branch(_) | CtxKind::Handler))
    }

    /// The calls made in the same function as `ctx` (or at module level, if it is there).
    pub(crate) fn calls_in_function(
        &self,
        func: Option<FuncId>,
    ) -> impl Iterator<Item = &Call<'a>> {
        let indices = &self.by_function().calls[self.place_of(func)];
        indices.iter().map(|&index| &self.calls[index])
    }

    /// The assignments made in the function (or at module level).
    pub(crate) fn assigns_in_function(
        &self,
        func: Option<FuncId>,
    ) -> impl Iterator<Item = &Assign<'a>> {
        let indices = &self.by_function().assigns[self.place_of(func)];
        indices.iter().map(|&index| &self.assigns[index])
    }

    /// The backward passes in the function (or at module level).
    pub(crate) fn backwards_in_function(
        &self,
        func: Option<FuncId>,
    ) -> impl Iterator<Item = &Backward<'a>> {
        let indices = &self.by_function().backwards[self.place_of(func)];
        indices.iter().map(|&index| &self.backwards[index])
    }

    fn place_of(&self, func: Option<FuncId>) -> usize {
        func.map_or(self.funcs.len(), FuncId::index)
    }

    fn by_function(&self) -> &ByFunction {
        self.by_function.get_or_init(|| {
            let group = |ctxs: &mut dyn Iterator<Item = CtxId>| {
                let mut groups = vec![Vec::new(); self.funcs.len() + 1];
                for (index, ctx) in ctxs.enumerate() {
                    groups[self.place_of(self.func_of(ctx))].push(index);
                }
                groups
            };
            ByFunction {
                calls: group(&mut self.calls.iter().map(|call| call.ctx)),
                assigns: group(&mut self.assigns.iter().map(|assign| assign.ctx)),
                backwards: group(&mut self.backwards.iter().map(|backward| backward.ctx)),
            }
        })
    }

    /// The assignments to `place` in the function.
    pub(crate) fn assigns_to<'s>(
        &'s self,
        func: Option<FuncId>,
        place: &'s str,
    ) -> impl Iterator<Item = &'s Assign<'a>> {
        self.assigns_in_function(func)
            .filter(move |assign| assign.place == place)
    }

    pub(crate) fn func_of(&self, ctx: CtxId) -> Option<FuncId> {
        self.ctx(ctx).func
    }

    /// The name of the function around a context.
    pub(crate) fn func_name(&self, ctx: CtxId) -> Option<&'a str> {
        self.func_of(ctx).map(|id| self.func(id).node.name.as_str())
    }

    /// The function's body is walked under a class that Lightning drives.
    pub(crate) fn in_lightning(&self, ctx: CtxId) -> bool {
        self.ctx(ctx)
            .class
            .is_some_and(|id| self.class(id).is_lightning)
    }
}
