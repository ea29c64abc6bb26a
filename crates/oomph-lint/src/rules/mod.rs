//! The rules. One file each, named after the rule; the doc comment of `RULE` is the rule's page.

use crate::rule::Rule;

macro_rules! rules {
    ($($module:ident),+ $(,)?) => {
        $(mod $module;)+

        /// Every rule, by code.
        pub static ALL: &[&Rule] = &[$(&$module::RULE),+];

        #[cfg(test)]
        const FILES: &[&str] = &[$(stringify!($module)),+];
    };
}

rules! {
    loss_summed_with_graph,
    loss_collected_with_graph,
    output_collected_with_graph,
    graph_retained,
    meter_keeps_graph,
    fake_not_detached,
    anomaly_detection_left_on,
    weight_gradients_unused,
    discriminator_not_frozen,
    evaluation_builds_graph,
    evaluation_function_builds_graph,
    no_grad_without_effect,
    volatile_has_no_effect,
    inference_builds_graph,
    teacher_builds_graph,
    graph_without_use,
    outputs_collected_on_gpu,
    cat_in_loop,
    logits_kept_through_next_forward,
    accumulation_not_scaled,
    last_accumulation_dropped,
    zero_grad_keeps_memory,
    gradients_cleared_before_step,
    gradients_never_cleared,
    foreach_peak,
    optimizer_made_in_loop,
    zero_grad_after_forward,
    parameter_moved_at_once,
    load_to_saved_device,
    load_to_gpu,
    checkpoint_kept_while_training,
    best_weights_copied_on_gpu,
    load_through_gpu,
    model_made_in_loop,
    checkpoint_reentrant_unset,
    cycle_keeps_batches,
    async_argument,
    loader_without_workers,
    empty_cache_in_loop,
    empty_cache_before_collect,
    several_waits_in_a_step,
    elements_read_one_by_one,
    fitted_for_each_item,
    data_parallel,
    ddp_copies_gradients,
    environment_set_too_late,
    ddp_bypassed,
    accumulation_communicates,
    attention_keeps_scores,
    softmax_before_cross_entropy,
    attention_weights_unused,
    deprecated_amp,
    clip_before_unscale,
    backward_under_autocast,
    retry_inside_except,
    disguised_oom_missed,
}

/// The rule with this code, in any case.
pub fn by_code(code: &str) -> Option<&'static Rule> {
    ALL.iter()
        .copied()
        .find(|rule| rule.code.eq_ignore_ascii_case(code) || crate::config::is_name(code, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_their_rules() {
        let names: Vec<String> = ALL.iter().map(|rule| rule.name.replace('-', "_")).collect();
        assert_eq!(names, FILES);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut expected: Vec<String> = FILES.iter().map(|file| format!("{file}.rs")).collect();
        expected.push("mod.rs".to_owned());
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}
