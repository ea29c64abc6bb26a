//! Which device a file, a loop or a call works on.

use crate::queries::model_calls::is_model_call;
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, Loop, Model};

/// Whether the file mentions a GPU.
pub(crate) fn mentions_gpu(model: &Model<'_>) -> bool {
    model.module.text().contains("cuda") || model.module.text().contains("device")
}

/// Whether the file is a program that never leaves the CPU: it names the CPU as its device, or it
/// is a script that mentions no other device.
pub(crate) fn on_cpu_only(model: &Model<'_>) -> bool {
    const ELSEWHERE: &[&str] = &[
        "cuda",
        "\"mps",
        "'mps",
        "xpu",
        "\"npu",
        "'npu",
        "\"hpu",
        "accelerat",
        "fabric",
        "trainer",
    ];
    let source = model.module.text().to_ascii_lowercase();
    if ELSEWHERE.iter().any(|word| source.contains(word)) {
        return false;
    }
    let says_so = model
        .assigns
        .iter()
        .any(|assign| assign.value.kind == Kind::Device && assign.value.device == Device::Cpu);
    let is_program = || {
        model.calls.iter().any(|call| {
            model.func_of(call.ctx).is_none() && (call.target.is_some() || is_model_call(call))
        })
    };
    says_so || (!source.contains("device") && !source.contains("gpu") && is_program())
}

/// Whether a loop of a script or notebook leaves its batches on the CPU while another loop of the
/// file moves its batches. `DataParallel` moves batches itself.
pub(crate) fn leaves_batches_on_cpu(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let moves = |each: &Loop<'_>| {
        model.calls.iter().any(|call| {
            matches!(call.method, Some("to" | "cuda")) && model.is_inside(call.ctx, each.ctx)
        })
    };
    model.func_of(looped.ctx).is_none()
        && looped.data
        && !model.module.text().contains("DataParallel")
        && !moves(looped)
        && model.loops.iter().any(|each| each.data && moves(each))
}

/// Whether a call runs a model that is known to be on the CPU.
pub(crate) fn runs_on_cpu(call: &Call<'_>) -> bool {
    let device = if call.callee.is_model() {
        call.callee.device
    } else {
        call.recv.device
    };
    device == Device::Cpu
        || (device == Device::Unknown
            && call
                .args
                .first()
                .is_some_and(|arg| arg.is_tensor() && arg.device == Device::Cpu))
}

/// A call that puts something on a GPU: `.cuda()`, `.to("cuda")`.
pub(crate) fn moves_to_gpu(call: &Call<'_>) -> bool {
    match call.method {
        Some("cuda") => true,
        Some("to") => {
            call.args
                .first()
                .is_some_and(|arg| arg.device == Device::Gpu)
                && !call.recv.is_model()
        }
        _ => false,
    }
}
