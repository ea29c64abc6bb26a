//! `mitigation_inert`: checkpointing is switched on but does not keep memory down.
//!
//! Where it works, forward keeps the inputs of the checkpointed blocks only, and backward has one
//! block's activations at a time. Repeated blocks run the same lines, so a line inside of them that
//! holds memory many times over shows that many blocks are alive at once.

use std::collections::{HashMap, HashSet};

use oomph_allocator::program::NO_ROW;
use oomph_trace::{Bytes, Category, Phase, StackId, StringId};

use super::{Basis, Cause, Evidence, Fix, stack_evidence, top_stacks};
use crate::facts::{Facts, Live};
use crate::repeats;

/// Memory below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.5;
/// Memory below this share of what was needed says nothing.
const FEW: f64 = 0.1;
/// A line that one block runs holds a few tensors at a time: q, k, v, or the heads of a loop.
const REPEATED: usize = 8;
/// Modules that run a line, from which on they belong to several blocks.
const MODULES: usize = 5;
/// A mitigation that covers less than one part in as many, of what it leaves, covers little.
const LITTLE: u64 = 4;

/// The confidence that a mitigation which covers little or nothing is why: other causes of what is kept come first, sizes alone do not.
const MEANT: f64 = 0.78;
/// A line that makes the inputs of as many checkpointed calls keeps one for each.
const INPUTS: usize = 8;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    facts.failure?;
    piled_up(facts)
        .or_else(|| offloaded_in_vain(facts))
        .or_else(|| switched_off(facts))
        .or_else(|| frozen_in_name(facts))
        .or_else(|| autocast_elsewhere(facts))
        .or_else(|| precision_in_vain(facts))
        .or_else(|| covers_little(facts))
}

/// Whether what a row allocates was made where the script offloads what autograd saves.
fn is_offloaded(facts: &Facts, row: u32) -> bool {
    row != NO_ROW && {
        let time = facts.trace.events.time(row as usize).0;
        let spans = &facts.options.seen.offloads;
        spans
            .iter()
            .any(|&(begin, end)| begin <= time && time <= end)
    }
}

/// What autograd saves is offloaded, or packed in another way, and stays on the GPU all the same.
fn offloaded_in_vain(facts: &Facts) -> Option<Cause> {
    let stays = |block: &Live| {
        block.category == Category::Activation
            && block.phase == Phase::Forward
            && !facts.stacks.get(block.stack).in_checkpoint()
            && is_offloaded(facts, facts.row_of(block))
    };
    let kept = repeats::bytes(facts, stays);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        kept,
        "activations made under these hooks and alive",
    )];
    evidence.extend(stack_evidence(facts, stays));
    Some(cause(
        format!(
            "hooks are set on what autograd saves (save_on_cpu, saved_tensors_hooks), but {} of activations made under them \
             stay on the GPU",
            Bytes(kept)
        ),
        evidence,
        Fix::advice(
            "pack_elsewhere",
            "let the hook that packs return a copy in host memory, and nothing that refers to the tensor; keep nothing else made \
             there (outputs, hidden states) unless detached",
            kept / 10 * 8,
            Basis::Estimated,
            "exact",
        )
        .apply("with torch.autograd.graph.save_on_cpu(pin_memory=True):"),
    ))
}

/// The script checkpoints or offloads what a part of its forward pass makes, but what is kept was made outside of that part.
fn covers_little(facts: &Facts) -> Option<Cause> {
    let spans = &facts.options.seen.offloads;
    let inside = |stack: StackId, row: u32| {
        facts.stacks.get(stack).in_checkpoint() || is_offloaded(facts, row)
    };
    let outside = |block: &Live| {
        block.category == Category::Activation
            && block.phase == Phase::Forward
            && !inside(block.stack, facts.row_of(block))
    };
    let kept = repeats::bytes(facts, outside);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    let first = facts
        .live
        .iter()
        .filter(|block| outside(block))
        .map(|block| facts.row_of(block))
        .min()?;
    // What the same forward pass made inside, most of which is gone again.
    let step = facts.current_step().and_then(|step| facts.steps.get(step));
    let last = step.map_or(u32::MAX, |step| step.end as u32);
    let mut covered = 0_u64;
    let mut uses = !spans.is_empty();
    for allocation in &facts.program.allocations {
        let row = allocation.alloc_row;
        if !allocation.failed
            && inside(allocation.stack, row)
            && facts.holds(allocation, true).1 == Phase::Forward
        {
            uses = true;
            if (first..=last).contains(&row) {
                covered += allocation.requested;
            }
        }
    }
    let frees_little = covered.saturating_mul(LITTLE) <= kept
        || covered <= kept.saturating_mul(LITTLE) && makes_inputs(facts, outside);
    if !uses || !frees_little {
        return None;
    }
    let what = if spans.is_empty() {
        "activation checkpointing"
    } else {
        "offloading what autograd saves"
    };
    let mut evidence = vec![
        Evidence::of(kept, "activations kept that were made outside of it"),
        Evidence::of(covered, "made inside of it in the same pass"),
    ];
    evidence.extend(stack_evidence(facts, outside));
    let mut cause = cause(
        format!(
            "{what} is on, but covers little of the forward pass: {} of activations are made outside of it and kept",
            Bytes(kept)
        ),
        evidence,
        Fix::advice(
            "cover_the_model",
            "put the blocks that hold the activations inside: each repeated block in its own checkpoint, or the whole \
             forward pass under save_on_cpu",
            kept / 10 * 8,
            Basis::Estimated,
            "exact",
        ),
    );
    cause.confidence = MEANT;
    Some(cause)
}

/// Whether one line makes most of what is `outside`: once before each of many checkpointed calls, which keep what they are given.
fn makes_inputs(facts: &Facts, outside: impl Fn(&Live) -> bool) -> bool {
    let Some(&(line, bytes, count)) = top_stacks(facts, &outside).first() else {
        return false;
    };
    if count < INPUTS || bytes * 2 < repeats::bytes(facts, &outside) {
        return false;
    }
    let of_line = |block: &&Live| block.stack == line && outside(block);
    let mut rows: Vec<u32> = (facts.live.iter().filter(of_line))
        .map(|block| facts.row_of(block))
        .collect();
    rows.sort_unstable();
    let between: HashSet<usize> = facts
        .program
        .allocations
        .iter()
        .filter(|one| facts.stacks.get(one.stack).in_checkpoint())
        .map(|one| rows.partition_point(|&row| row < one.alloc_row))
        .collect();
    between.len() + 1 >= count
}

/// Mixed precision is switched on, but for the CPU: the model on the GPU computes in fp32.
fn autocast_elsewhere(facts: &Facts) -> Option<Cause> {
    if !facts.options.seen.autocast_elsewhere {
        return None;
    }
    let kept = facts.bytes_of(Category::Activation);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    Some(cause(
        format!(
            "mixed precision is switched on for the CPU, but the model is on the GPU: its {} of activations stay as they are",
            Bytes(kept)
        ),
        vec![Evidence::of(kept, "activations")],
        Fix::advice(
            "autocast_device",
            "switch autocast on for the device that the model is on",
            kept / 2,
            Basis::Estimated,
            "numerics change, as the script intends",
        )
        .apply("with torch.autocast(\"cuda\", dtype=torch.bfloat16):"),
    ))
}

/// A gradient scaler, or autocast around something else than the model, and no model that runs in 16 bits.
fn precision_in_vain(facts: &Facts) -> Option<Cause> {
    if !facts.options.seen.precision_in_vain {
        return None;
    }
    let kept = facts.bytes_of(Category::Activation);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    let mut cause = cause(
        format!(
            "mixed precision is meant, but the model never runs in it: its {} of activations are in single precision",
            Bytes(kept)
        ),
        vec![Evidence::of(kept, "activations")],
        Fix::advice(
            "autocast_around_model",
            "put the model's call and the loss under autocast, and switch it on",
            kept / 2,
            Basis::Estimated,
            "numerics change, as the script intends",
        )
        .apply("with torch.autocast(\"cuda\", dtype=torch.bfloat16):"),
    );
    cause.confidence = MEANT;
    Some(cause)
}

/// A module's `requires_grad` was set to False, as one does with a tensor's: its parameters train on, and forward keeps what their
/// gradients need.
fn frozen_in_name(facts: &Facts) -> Option<Cause> {
    if !facts.options.seen.wants_freezing {
        return None;
    }
    let kept = facts.bytes_of(Category::Activation)
        + facts.bytes_of(Category::Gradient)
        + facts.bytes_of(Category::OptimizerState);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    Some(cause(
        format!(
            "a part of the model is meant to be frozen, but setting requires_grad of a module freezes nothing: {} of \
             activations, gradients and optimizer state are kept",
            Bytes(kept)
        ),
        vec![Evidence::of(
            kept,
            "activations, gradients and optimizer state",
        )],
        Fix::advice(
            "requires_grad_",
            "call requires_grad_(False), which freezes the module's parameters",
            kept / 10 * 8,
            Basis::Estimated,
            "as the script intends: the frozen part does not train",
        )
        .apply("module.requires_grad_(False)"),
    ))
}

/// Nothing is checkpointed at the peak, although the script asks for it: the modules that hold the memory were
/// checkpointed in earlier passes, or the model is in evaluation mode, in which most libraries' switch does
/// nothing, or nothing heeds the switch.
fn switched_off(facts: &Facts) -> Option<Cause> {
    let checkpointed = |stack: StackId| facts.stacks.get(stack).in_checkpoint();
    // A workspace or a random state that was first needed in there may stay.
    let inside = repeats::bytes(facts, |block| checkpointed(block.stack));
    if facts.share(inside) > FEW {
        return None;
    }
    let labels = facts.trace.labels.as_ref()?;
    let seen = &facts.options.seen;
    let never = || {
        let mut all = facts.program.allocations.iter();
        !all.any(|allocation| checkpointed(allocation.stack))
    };
    let ignored = seen.wants_checkpointing && never();
    // Its source has checkpoints, and no pass ever came to one.
    let unused = seen.uses_checkpointing && never();
    let idle = seen.idle_checkpointing || ignored || unused;
    let module_of = |row: u32| {
        (row != NO_ROW)
            .then(|| labels.get(row as usize).module)
            .filter(|&module| module != StringId::EMPTY)
    };
    // What is checkpointed in this pass, too, has not been switched off.
    let since = facts
        .current_step()
        .and_then(|step| facts.steps.get(step))
        .map_or(0, |step| step.start as u32);
    let (mut before, mut now): (HashSet<StringId>, HashSet<StringId>) = Default::default();
    for allocation in &facts.program.allocations {
        if checkpointed(allocation.stack)
            && let Some(module) = module_of(allocation.alloc_row)
        {
            let of_pass = if allocation.alloc_row < since {
                &mut before
            } else {
                &mut now
            };
            of_pass.insert(module);
        }
    }
    before.retain(|module| !now.contains(module));
    if !idle && before.is_empty() {
        return None;
    }
    let has_graph = |block: &Live| {
        block.category == Category::Activation
            && block.phase == Phase::Forward
            && (idle
                || module_of(facts.row_of(block)).is_some_and(|module| before.contains(&module)))
    };
    let kept = repeats::bytes(facts, has_graph);
    if facts.share(kept) < DECISIVE {
        return None;
    }
    let nothing = (ignored || unused) && !seen.idle_checkpointing;
    let why = if nothing && ignored {
        "its switch is on, but nothing is ever checkpointed"
    } else if nothing {
        "the script has code for it, but nothing is ever checkpointed, as where no module has the class that is asked for"
    } else if idle {
        "the model is in evaluation mode, in which its checkpointing is off"
    } else {
        "earlier passes checkpointed these modules and this one does not, as after model.eval() without \
         model.train()"
    };
    let mut evidence = vec![Evidence::of(
        kept,
        "activations of modules that checkpointing should have covered".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, has_graph));
    let mut cause = cause(
        format!(
            "activation checkpointing is {}, but {} of activations are kept all the same: {why}",
            if nothing && !ignored { "meant" } else { "on" },
            Bytes(kept)
        ),
        evidence,
        if nothing {
            Fix::advice(
                "checkpoint_each_block",
                "call torch.utils.checkpoint on each repeated block, or the library's function that switches it on \
                 (gradient_checkpointing_enable())",
                kept / 10 * 8,
                Basis::Estimated,
                "exact",
            )
        } else {
            Fix::advice(
            "train_mode",
            "call model.train() before the training step: checkpointing in the model is off in evaluation mode",
            kept / 10 * 8,
            Basis::Estimated,
            "as the script intends: dropout and batch norm train again",
        )
        .apply("model.train()")
        },
    );
    if nothing && !ignored {
        cause.confidence = MEANT;
    }
    Some(cause)
}

/// What checkpointed blocks made is alive many times over.
fn piled_up(facts: &Facts) -> Option<Cause> {
    // A Function of the script's own that calls modules of the model is there to run them again in backward.
    let by_hand = |block: &Live| {
        facts.stacks.get(block.stack).in_function()
            && facts.stacks.get(block.stack).in_module()
            && facts.module(block) != StringId::EMPTY
    };
    let mut by_stack: HashMap<StackId, (usize, HashSet<StringId>)> = HashMap::new();
    for block in &facts.live {
        if facts.stacks.get(block.stack).in_checkpoint() || by_hand(block) {
            let (count, modules) = by_stack.entry(block.stack).or_default();
            *count += 1;
            modules.insert(facts.module(block));
        }
    }
    let piles = |stack: StackId| {
        // Modules are not known where forward runs again.
        let repeated = if facts.stacks.get(stack).recomputes() {
            MODULES
        } else {
            REPEATED
        };
        by_stack
            .get(&stack)
            .is_some_and(|(count, modules)| *count >= repeated || modules.len() >= MODULES)
    };
    let mut kept = 0_u64;
    let mut recomputed = 0_u64;
    let mut count = 0_usize;
    for block in facts.live.iter().filter(|block| piles(block.stack)) {
        // Functions of the user's own run without a graph of PyTorch's.
        if matches!(block.phase, Phase::Forward | Phase::Inference) {
            kept += block.bytes;
        } else if facts.stacks.get(block.stack).recomputes() {
            recomputed += block.bytes;
        } else {
            continue;
        }
        count += 1;
    }
    // Gradients with a graph keep what is recomputed for them, beside what they are made of.
    let derived = repeats::bytes(facts, repeats::is_derivative);
    let differentiates = recomputed > kept && derived > 0;
    if differentiates {
        recomputed += repeats::bytes(facts, |block| {
            repeats::is_derivative(block) && !piles(block.stack)
        });
    }
    if !facts.is_decisive(kept + recomputed, DECISIVE) {
        return None;
    }
    let (what, verdict) = if differentiates {
        (
            "recomputed activations, and gradients, are alive at once",
            format!(
                "activation checkpointing is on, but gradients with a graph (create_graph=True) keep all that it recomputes: {}",
                Bytes(recomputed)
            ),
        )
    } else if kept > recomputed
        && facts
            .live
            .iter()
            .any(|block| piles(block.stack) && by_hand(block))
    {
        (
            "activations made inside of them are alive",
            format!(
                "autograd Functions of the script's own call the model's blocks, as checkpointing does, but {} made \
                 inside of them are kept all the same",
                Bytes(kept)
            ),
        )
    } else if kept > recomputed {
        (
            "activations made inside checkpointed blocks are alive",
            format!(
                "activation checkpointing is on, but {} made inside its blocks are kept all the \
                 same",
                Bytes(kept)
            ),
        )
    } else {
        (
            "recomputed activations of many blocks are alive at once",
            format!(
                "activation checkpointing is on, but {} that it recomputed are alive at once: one \
                 checkpoint covers many blocks, or something inside keeps them",
                Bytes(recomputed)
            ),
        )
    };
    let mut evidence = vec![Evidence::of(kept + recomputed, format!("{count} {what}"))];
    evidence.extend(stack_evidence(facts, |block| piles(block.stack)));
    Some(cause(
        verdict,
        evidence,
        Fix::advice(
            "checkpoint_each_block",
            "checkpoint each repeated block by itself, and keep nothing made inside (outputs stored \
             on the module, hooks, hidden states) unless detached",
            (kept + recomputed) / 10 * 8,
            Basis::Estimated,
            "exact",
        ),
    ))
}

fn cause(verdict: String, evidence: Vec<Evidence>, fix: Fix) -> Cause {
    Cause {
        id: "mitigation_inert",
        confidence: 0.85,
        verdict,
        evidence,
        fixes: vec![fix],
    }
}
