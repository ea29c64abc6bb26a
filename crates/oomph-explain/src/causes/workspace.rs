//! `workspace`: cuDNN or another library requested a very large workspace.

use oomph_trace::{Bytes, Category};

use super::{Basis, Cause, Evidence, Fix, largest_line, top_stacks};
use crate::facts::Facts;
use crate::lever;

/// Workspaces below this share of what was needed are ordinary.
const DECISIVE: f64 = 0.2;
/// Convolutions usually take workspaces of up to some hundred MiB.
const USUAL: u64 = 512 << 20;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let stack = facts.failure_stack();
    let held = facts.bytes_of(Category::Workspace);
    let asked = if stack.is_workspace { facts.request } else { 0 };
    let share = facts.share(held + asked);
    if share < DECISIVE || held + asked < USUAL {
        return None;
    }
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
    let place = largest_line(facts, |block| block.category == Category::Workspace)
        .map_or_else(String::new, |line| format!(" at {line}"));
    let whose = if of_convolution {
        "a convolution"
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
        fixes: vec![if of_transform {
            Fix::advice(
                "smaller_transforms",
                "transform fewer at once: cuFFT takes as much workspace as the transform's result",
                held.midpoint(asked),
                Basis::Estimated,
                "exact",
            )
        } else if of_convolution {
            Fix::lever(
                lever::CUDNN_BENCHMARK,
                "torch.backends.cudnn.benchmark = False: algorithms by heuristics, with smaller \
                 workspaces",
                held + asked,
                Basis::Estimated,
                "exact to rounding",
            )
            .apply("torch.backends.cudnn.benchmark = False")
        } else {
            Fix::advice(
                "blas_workspace",
                "multiply matrices on fewer streams, or give each a smaller workspace (cuBLAS takes \
                 one for each stream, 32 MiB on Hopper)",
                (held + asked) / 8 * 7,
                Basis::Estimated,
                "exact to rounding",
            )
            .apply("CUBLAS_WORKSPACE_CONFIG=:4096:1")
        }],
    })
}
