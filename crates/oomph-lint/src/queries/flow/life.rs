//! How long a graph lives that an iteration of a loop builds.

use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, dotted_name, names_in};
use rustc_hash::FxHashSet;

use super::{Flow, Sink, reaches};
use crate::queries::model_calls::is_model_call;
use crate::semantic::{Bind, Call, Loop};

/// How long the graph lives of what a call in a loop returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is surely gone when the next iteration calls again.
    Iteration,
    /// A name still has it while the next iteration builds another.
    Next,
    Unknown,
}

impl<'a> Flow<'_, 'a> {
    /// How long the graph lives that a call in a loop builds, by the names that get it.
    pub(crate) fn life(&mut self, call: &Call<'a>, looped: &Loop<'a>) -> Life {
        let model = self.model;
        let func = model.func_of(call.ctx);
        let uses = self.uses(func);
        let starts = model.stmt(call.stmt).node.start();
        let mut open = vec![self.sink_of(func, call.node)];
        let mut seen = FxHashSet::default();
        let mut life = Life::Iteration;
        while let Some((sink, at)) = open.pop() {
            let names = match sink {
                Sink::Cut | Sink::Dropped => continue,
                Sink::Anything | Sink::Returned => {
                    life = Life::Unknown;
                    continue;
                }
                Sink::Passed(_, _, result) => {
                    open.push(((*result).clone(), at));
                    continue;
                }
                Sink::Bound(names) => names,
            };
            for name in names.iter() {
                if !seen.insert((name.clone(), at)) {
                    continue;
                }
                // By the end of the iteration, or at the start of the next one.
                let lets_go = |range: TextRange| {
                    (range.start() >= at || range.end() <= starts)
                        && looped.range.contains_range(range)
                };
                let rebound = model.assigns_to(func, name).any(|other| {
                    !matches!(other.bind, Bind::Add | Bind::Augment)
                        && lets_go(other.target.range())
                        && model.is_inside(call.ctx, other.ctx)
                });
                let deleted = model.stmts.iter().any(|info| match info.node {
                    Stmt::Delete(delete) => {
                        lets_go(delete.range())
                            && model.is_inside(call.ctx, info.ctx)
                            && (delete.targets.iter())
                                .any(|each| dotted_name(each).as_ref() == Some(name))
                    }
                    _ => false,
                });
                if !rebound && !deleted {
                    let only_left_over = name == "_"
                        && model.assigns_to(func, name).any(|other| {
                            model.stmt(other.stmt).node.end() == at
                                && other
                                    .expr
                                    .is_some_and(|expr| self.is_another_pass(call, expr))
                        });
                    if only_left_over {
                        continue;
                    }
                    return Life::Next;
                }
                let read = uses.names.iter().filter(|each| {
                    each.name == *name
                        && each.at >= at
                        && looped.range.contains(each.at)
                        && reaches(model, func, name, at, each)
                });
                open.extend(read.map(|each| (each.sink.clone(), each.after)));
            }
        }
        if life == Life::Iteration
            && self.keeps_values(
                call,
                looped,
                &seen.into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
        {
            return Life::Next;
        }
        life
    }

    /// `_, best = torch.max(output, 1)`: `_` has the values, with their graph.
    fn keeps_values(&self, call: &Call<'a>, looped: &Loop<'a>, names: &[String]) -> bool {
        let model = self.model;
        model.assigns_to(model.func_of(call.ctx), "_").any(|other| {
            other.bind == Bind::Unpack
                && looped.range.contains_range(other.target.range())
                && other.expr.is_some_and(|expr| {
                    if self.is_another_pass(call, expr) {
                        return false;
                    }
                    let text = model.text(expr);
                    let holds = expr.range().contains_range(call.node.range())
                        || names_in(expr).iter().any(|name| names.contains(name));
                    holds && !text.contains(".data") && !text.contains("detach()")
                })
        })
    }

    /// `_, shift = other(x, output)`: nothing shows that the first of what another network returns has the graph of `output`.
    fn is_another_pass(&self, call: &Call<'a>, expr: &Expr) -> bool {
        let Expr::Call(made) = expr else { return false };
        let other = self.calls.get(&std::ptr::from_ref(made));
        other.is_some_and(|other| is_model_call(other) && !std::ptr::eq(other.node, call.node))
    }
}
