//! `workspace`: cuDNN or another library requested a very large workspace.

use oomph_trace::{Bytes, Category};

use std::collections::HashMap;

use super::{Basis, Cause, Evidence, Fix, fits_without, largest_line, top_stacks};
use crate::facts::{Facts, Live};
use crate::lever;
use crate::steps::step_of;

/// Workspaces below this share of what was needed are ordinary.
const DECISIVE: f64 = 0.2;
/// Convolutions usually take workspaces of up to some hundred MiB.
const USUAL: u64 = 512 << 20;
/// Workspaces of more than this share of what was needed are why memory ran out, whatever else there is.
const DOMINANT: f64 = 0.5;

/// Smaller blocks share segments with others.
const SEGMENT: u64 = 20 << 20;
/// Where requests come to lie is a matter of chance, which is worth one part in as many.
const PACKING: u64 = 50;
/// The confidence of workspaces without which every request is served.
const BY_REPLAY: f64 = 0.8;

/// What the names of operators that factor a matrix contain.
const FACTORIZATIONS: [&str; 3] = ["linalg", "svd", "cholesky"];

/// The confidence of a workspace that is there, but is not why memory ran out.
pub(super) const BESIDE: f64 = 0.42;
/// A workspace that was served in as many earlier steps is not what changed.
const STEPS_BEFORE: usize = 3;

/// Whether the job that failed as `cut` says would have fitted without its workspaces, and had not got them in steps before.
pub(super) fn is_the_difference(cut: &Facts, whole: &Facts) -> bool {
    let held = |facts: &Facts| {
        let stack = facts.failure_stack();
        facts.bytes_of(Category::Workspace) + if stack.is_workspace { facts.request } else { 0 }
    };
    // A job that ran for some steps and then failed with hardly any had them in an earlier step, and got them. If it was full of
    // them, each step had brought more, as where each works on a stream of its own.
    let came_far = cut.current_step().is_some_and(|step| step >= STEPS_BEFORE);
    if came_far && held(cut) < held(whole) / 2 && cut.share(held(cut)) <= DOMINANT {
        return false;
    }
    // If they are most of what is needed, smaller ones are the first thing to ask for, enough or not.
    if whole.share(held(whole)) > DOMINANT {
        return true;
    }
    // Neither the request that failed, nor all that would have followed.
    if [cut, whole]
        .iter()
        .any(|facts| fits_without(cut, facts, held(facts)) == Some(false))
    {
        return false;
    }
    !served_before(cut, held(whole))
}

/// Whether workspaces of at least half as much in all were served in several earlier steps.
fn served_before(facts: &Facts, held: u64) -> bool {
    let Some(current) = facts.current_step() else {
        return false;
    };
    let mut by_step: HashMap<usize, u64> = HashMap::new();
    for allocation in facts.program.allocations.iter().filter(|one| !one.failed) {
        if facts.holds(allocation, true).0 == Category::Workspace
            && let Some(step) = step_of(&facts.steps, allocation.alloc_row)
            && step < current
        {
            let most = by_step.entry(step).or_default();
            *most = allocation.requested.max(*most);
        }
    }
    by_step.values().filter(|&&most| most >= held / 2).count() >= STEPS_BEFORE
}

/// None is alive when memory runs out, or little, but cuDNN takes what it finds fastest, and what it took before has cut the memory into
/// segments: without them every request is served, also the one that failed.
pub(super) fn chosen_by_speed(cut: &Facts, whole: &Facts) -> Option<Cause> {
    let room = cut.room?.at_least;
    let is_workspace = |block: &Live| block.category == Category::Workspace;
    let largest = (whole.every().filter(is_workspace))
        .map(|block| block.bytes)
        .max()?;
    if !cut.options.seen.benchmark
        || largest < SEGMENT
        || !cut.fits_without(room, is_workspace)
        || !whole.fits_without(room + room / PACKING, is_workspace)
    {
        return None;
    }
    let short = whole.short.unwrap_or(largest);
    Some(Cause {
        id: "workspace",
        confidence: BY_REPLAY,
        verdict: format!(
            "cuDNN takes the algorithms that are fastest, with workspaces of up to {}: without them every request is served",
            Bytes(largest)
        ),
        evidence: vec![
            Evidence::of(largest, "the largest workspace"),
            Evidence::of(room, "enough for all else, by a replay without workspaces"),
        ],
        fixes: vec![without_trials(largest.max(short), Basis::Replayed)],
    })
}

/// Algorithms by heuristics, which saves so much.
fn without_trials(saves: u64, basis: Basis) -> Fix {
    Fix::lever(
        lever::CUDNN_BENCHMARK,
        "torch.backends.cudnn.benchmark = False: algorithms by heuristics, with smaller \
         workspaces",
        saves,
        basis,
        "exact to rounding",
    )
    .apply("torch.backends.cudnn.benchmark = False")
}

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let stack = facts.failure_stack();
    let held = facts.bytes_of(Category::Workspace);
    let asked = if stack.is_workspace { facts.request } else { 0 };
    let share = facts.share(held + asked);
    let of_convolution = stack.is_convolution_workspace()
        || top_stacks(facts, |block| block.category == Category::Workspace)
            .first()
            .is_some_and(|&(largest, ..)| {
                facts.live.iter().any(|block| {
                    block.category == Category::Workspace
                        && block.stack == largest
                        && facts.operator(block).contains("conv")
                })
            });
    let of_transform = facts.live.iter().any(|block| {
        block.category == Category::Workspace && facts.operator(block).contains("fft")
    });
    let failed = facts.operator_of(&failure);
    let is_of = |parts: &[&str]| {
        facts
            .live
            .iter()
            .filter(|block| block.category == Category::Workspace)
            .map(|block| facts.operator(block))
            .chain([failed])
            .any(|operator| parts.iter().any(|part| operator.contains(part)))
    };
    let of_factorization = is_of(&FACTORIZATIONS);
    let of_recurrence = is_of(&["cudnn_rnn"]);
    // Convolutions and products have some in every job; without a transform's or a factorization's it would fit, or not.
    let usual = if of_transform || of_factorization || share > DOMINANT {
        0
    } else {
        USUAL
    };
    if share < DECISIVE || held + asked < usual {
        return None;
    }
    let place = largest_line(facts, |block| block.category == Category::Workspace)
        .map_or_else(String::new, |line| format!(" at {line}"));
    let saves = facts.saves(|block| block.category == Category::Workspace);
    let whose = if of_convolution {
        "a convolution"
    } else if of_recurrence {
        "a recurrent layer"
    } else {
        "a library"
    };
    let trying = if stack.in_benchmark() {
        " while cuDNN tries its algorithms"
    } else {
        ""
    };
    Some(Cause {
        id: "workspace",
        confidence: if stack.is_workspace {
            0.85
        } else {
            (0.5 + share).min(0.85)
        },
        verdict: format!(
            "{whose} requested {} of workspace{trying}{place}",
            Bytes(held + asked)
        ),
        evidence: vec![
            Evidence::of(asked, "requested as workspace".to_owned()).at(facts, failure.stack),
            Evidence::of(held, "held as workspace".to_owned()),
        ],
        fixes: vec![if of_factorization {
            Fix::advice(
                "smaller_factorization",
                "factor a smaller matrix (the products of the fewer rows or columns, full_matrices=False, torch.pca_lowrank for a few \
                 components), or do it on the CPU: cuSOLVER's workspace grows with the matrix",
                saves,
                Basis::Estimated,
                "exact to rounding, except with fewer components",
            )
        } else if of_transform {
            Fix::advice(
                "smaller_transforms",
                "transform fewer at once: cuFFT takes as much workspace as the transform's result",
                saves / 2,
                Basis::Estimated,
                "exact",
            )
        } else if of_recurrence {
            Fix::advice(
                "smaller_recurrence",
                "a smaller batch, or the sequence in parts: cuDNN's workspace grows with both",
                saves / 2,
                Basis::Estimated,
                "exact with a smaller batch",
            )
        } else if of_convolution {
            without_trials(saves, Basis::Estimated)
        } else {
            Fix::advice(
                "blas_workspace",
                "multiply matrices on fewer streams, or give each a smaller workspace (cuBLAS takes \
                 one for each stream, 32 MiB on Hopper)",
                saves / 8 * 7,
                Basis::Estimated,
                "exact to rounding",
            )
            .apply("CUBLAS_WORKSPACE_CONFIG=:4096:1")
        }],
    })
}
