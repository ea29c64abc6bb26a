//! What is known once everything has been walked.

use super::{Learned, Walker};
use crate::semantic::{FuncId, Grad, Model};

impl<'a> Walker<'a, '_> {
    pub(super) fn finish_learning(mut self) -> Learned {
        // A function is covered if it is called, and every call is made without gradients; calls
        // from covered functions count. From "none is covered", this only grows.
        let mut covered = vec![false; self.sites.len()];
        loop {
            let mut changed = false;
            for index in 0..covered.len() {
                let id = FuncId(index as u32);
                if covered[index] || self.escaped.contains(&id) || self.sites[index].is_empty() {
                    continue;
                }
                let all = self.sites[index].iter().all(|site| match site.grad {
                    Grad::Off | Grad::CallerOff => true,
                    Grad::On => site.caller.is_some_and(|caller| covered[caller.index()]),
                    Grad::Maybe => false,
                });
                if all {
                    covered[index] = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        Learned {
            params: std::mem::take(&mut self.next_params),
            returns: std::mem::take(&mut self.next_returns),
            covered,
            class_attrs: self.learned.class_attrs,
            graph_defs: self.next_graph_defs,
        }
    }

    pub(super) fn finish(mut self) -> Model<'a> {
        let model = &mut self.model;
        for (func, sites) in model.funcs.iter_mut().zip(&self.sites) {
            func.called = !sites.is_empty();
        }
        for backward in &model.backwards {
            if let Some(func) = model.ctxs[backward.ctx.index()].func {
                model.funcs[func.index()].has_backward = true;
            }
        }
        for call in &model.calls {
            let Some(func) = model.ctxs[call.ctx.index()].func else {
                continue;
            };
            if call.is_step() {
                model.funcs[func.index()].has_step = true;
            }
            if call.is_zero_grad() {
                model.funcs[func.index()].has_zero_grad = true;
            }
            if call.callee.is_model() && call.grad == Grad::On {
                model.funcs[func.index()].has_forward = true;
            }
        }
        // Through calls inside the file, until nothing changes.
        loop {
            let mut changed = false;
            for call in &model.calls {
                let (Some(caller), Some(target)) = (model.ctxs[call.ctx.index()].func, call.target)
                else {
                    continue;
                };
                let inner = &model.funcs[target.index()];
                let facts = inner.does();
                let func = &mut model.funcs[caller.index()];
                let before = func.does();
                func.has_backward |= facts[0];
                func.has_step |= facts[1];
                func.has_zero_grad |= facts[2];
                func.has_forward |= facts[3] && call.grad == Grad::On;
                changed |= before != func.does();
            }
            if !changed {
                break;
            }
        }
        self.mark_loops();
        self.model
    }
}
