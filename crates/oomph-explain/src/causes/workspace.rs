//! `workspace`: cuDNN or another library requested a very large workspace.

use oomph_trace::{Bytes, Category};

use super::{Basis, Cause, Evidence, Fix};
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
    let whose = if stack.is_convolution_workspace() {
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
        confidence: if stack.is_workspace { 0.85 } else { 0.5 },
        verdict: format!(
            "{whose} requested {} of workspace{trying}",
            Bytes(held + asked)
        ),
        evidence: vec![
            Evidence::of(asked, "requested as workspace".to_owned()).at(facts, failure.stack),
            Evidence::of(held, "held as workspace".to_owned()),
        ],
        fixes: vec![if stack.is_convolution_workspace() {
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
