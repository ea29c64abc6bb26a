//! `graph_retained`: activations of old steps stay alive because something refers to their graph
//! (`total += loss`, hidden state that is not detached, `retain_graph=True`).

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, largest_line, stack_evidence};
use crate::facts::{Facts, Growth, Live};
use crate::repeats;

/// Growth below this share of what was needed is not why memory ran out.
pub(super) const DECISIVE: f64 = 0.15;
/// A graph keeps at least this share of what forward made; a few kept results are less.
const GRAPH_SHARE: f64 = 0.25;
/// A loop's graphs below this share of what was needed are not why memory ran out.
const DOMINANT: f64 = 0.5;
/// Or it keeps what as many lines made where a graph is built: a part of the model, such as a branch.
const GRAPH_LINES: usize = 6;
/// A graph keeps at least this share of what was saved while it was built; hooks that collect outputs keep less.
const GRAPH_OF_SAVED: f64 = 0.3;
/// Python has tensors of less than this share of a graph: of its end, and of what the script gave names to.
const HELD: f64 = 0.5;
/// A graph has at least this many blocks.
const GRAPH_BLOCKS: f64 = 3.0;

/// Whether the blocks of old steps are whole graphs, not single results.
pub(super) fn is_graph(growth: &Growth) -> bool {
    // What a recorder saw decides.
    if let Some(held) = growth.held {
        return held < HELD;
    }
    growth.in_modules
        && growth.blocks_per_step >= GRAPH_BLOCKS
        && growth.kept_of_saved >= GRAPH_OF_SAVED
        && (growth.kept_share >= GRAPH_SHARE || growth.lines_with_graph >= GRAPH_LINES)
}

/// Evidence for blocks that grow from step to step.
pub(super) fn growth_evidence(facts: &Facts) -> Vec<Evidence> {
    let growth = &facts.growth;
    let mut evidence = vec![Evidence::of(
        growth.bytes,
        format!(
            "made in {} earlier {} and still alive: about {:.0} blocks and {} more in every {}",
            growth.steps,
            growth.units(),
            growth.blocks_per_step,
            Bytes(growth.per_step),
            growth.unit(),
        ),
    )];
    evidence.extend(stack_evidence(facts, |block| facts.grows(block)));
    evidence
}

/// How sure growth makes a cause.
pub(super) fn confidence(facts: &Facts) -> Option<f64> {
    let share = facts.share(facts.growth.bytes);
    if facts.growth.steps == 0 || share < DECISIVE {
        return None;
    }
    Some((0.75 + share / 4.0).min(0.97))
}

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    over_steps(facts).or_else(|| within_step(facts))
}

/// A loop within one step whose iterations are all alive: a state that is carried on with its graph, losses
/// that are summed.
fn within_step(facts: &Facts) -> Option<Cause> {
    let in_step = |block: &Live| repeats::is_graph_of_this_step(facts, block);
    let mut pile = repeats::pile_of_sums(facts, in_step)?;
    repeats::add_derivatives(facts, &mut pile);
    let share = facts.share(pile.bytes);
    // Activation checkpointing piles up inputs, and has a cause of its own.
    let checkpointed = |block: &Live| facts.stacks.get(block.stack).in_checkpoint();
    if share < DOMINANT || facts.live.iter().any(checkpointed) {
        return None;
    }
    let in_pile = |block: &Live| pile.blocks.contains(&block.id);
    let place =
        largest_line(facts, in_pile).map_or_else(String::new, |line| format!(" through {line}"));
    let each = pile.bytes / pile.iterations as u64;
    let mut evidence = vec![Evidence::of(
        pile.bytes,
        format!(
            "kept by {} iterations of a loop within one step, about {} each",
            pile.iterations,
            Bytes(each)
        ),
    )];
    evidence.extend(stack_evidence(facts, in_pile));
    Some(Cause {
        id: "graph_retained",
        // Below what is special about a step that is large by design, above its size alone.
        confidence: 0.76 + share / 30.0,
        verdict: format!(
            "the graphs of {} iterations of a loop{place} are alive at once within one step: {} \
             that grow by {} an iteration",
            pile.iterations,
            Bytes(pile.bytes),
            Bytes(each)
        ),
        evidence,
        fixes: vec![
            Fix::advice(
                "detach",
                "run backward within the loop and detach the state that is carried on, at least \
                 every few iterations; keep numbers, not tensors with a graph",
                pile.bytes.saturating_sub(each),
                Basis::Counted,
                "other gradients, if they should reach back through the whole loop",
            )
            .apply("state = state.detach()"),
        ],
    })
}

/// Whether passes of models in training mode leave their graphs behind before the first backward pass that the script calls for: what
/// is collected for an update, such as rewards. An evaluation sets the model to evaluate.
pub(super) fn is_before_training(facts: &Facts) -> bool {
    let seen = &facts.options.seen;
    let evaluates = |block: &Live| seen.evaluating.contains(&facts.row_of(block));
    let left = |block: &&Live| facts.is_left_behind(block);
    seen.goes_backward
        && !facts.trains()
        && is_graph(&facts.growth)
        && !facts.live.iter().filter(left).any(evaluates)
}

fn over_steps(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    if !is_graph(growth) || !growth.with_backward && !is_before_training(facts) {
        return None;
    }
    Some(Cause {
        id: "graph_retained",
        confidence,
        verdict: format!(
            "the graphs of {} earlier {} are still alive: {} that grow by {} a {}",
            growth.steps,
            growth.units(),
            Bytes(growth.bytes),
            Bytes(growth.per_step),
            growth.unit(),
        ),
        evidence: growth_evidence(facts),
        fixes: vec![fix(growth.bytes)],
    })
}

pub(super) fn fix(bytes: u64) -> Fix {
    Fix::advice(
        "detach",
        "keep numbers, not tensors with a graph: `total += loss.item()`, `hidden = hidden.detach()`; \
         drop `retain_graph=True`",
        bytes,
        Basis::Counted,
        "exact",
    )
    .apply("loss.item()  # or loss.detach()")
}
