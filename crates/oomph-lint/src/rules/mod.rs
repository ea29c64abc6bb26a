//! The rules. One file each; the doc comment of `RULE` is the rule's page.

mod util;

use crate::rule::Rule;

macro_rules! rules {
    ($($module:ident),+ $(,)?) => {
        $(mod $module;)+

        /// Every rule, by code.
        pub static ALL: &[&Rule] = &[$(&$module::RULE),+];
    };
}

rules! {
    loss_summed,
    loss_listed,
    output_listed,
    hidden_not_detached,
    retain_graph,
    create_graph,
    meter_with_graph,
    hook_keeps_output,
    eval_builds_graph,
    eval_name_builds_graph,
    no_grad_without_effect,
    volatile,
    inference_builds_graph,
    teacher_builds_graph,
    outputs_kept_on_gpu,
    cat_in_loop,
    zero_grad_drops_accumulation,
    accumulation_not_scaled,
    last_group_dropped,
    step_bypasses_scaler,
    scaler_not_updated,
    zero_grad_keeps,
    zero_grad_before_step,
    gradients_never_cleared,
    foreach_peak,
    optimizer_in_loop,
    load_to_saved_device,
    load_to_gpu,
    checkpoint_kept,
    deepcopy_in_loop,
    checkpoint_reentrant_unset,
    checkpoint_without_grad,
    checkpoint_reentrant,
    getitem_on_gpu,
    dataset_on_gpu,
    loader_on_gpu,
    cycle_loader,
    empty_cache_in_loop,
    empty_cache_before_gc,
    delete_without_effect,
    data_parallel,
    ranks_on_one_gpu,
    ddp_bucket_view,
    env_too_late,
    alloc_conf_unknown,
    cudnn_benchmark,
    eager_attention,
    softmax_before_loss,
    one_hot_targets,
    need_weights,
    logits_upcast,
    deprecated_amp,
    half_with_autocast,
    clip_before_unscale,
    backward_under_autocast,
    retry_in_handler,
    swallows_errors,
    misses_disguised,
    exception_kept,
}

/// The rule with this code, in any case.
pub fn by_code(code: &str) -> Option<&'static Rule> {
    ALL.iter()
        .copied()
        .find(|rule| rule.code.eq_ignore_ascii_case(code))
}
