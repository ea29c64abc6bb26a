use oomph_python_source::ast::Expr;

use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// An allocator setting does not exist or has a wrong value.
    ///
    /// ## What it does
    ///
    /// Reads the text that is assigned to `os.environ["PYTORCH_CUDA_ALLOC_CONF"]` and looks for keys
    /// that PyTorch's allocator does not know, and for values that it does not accept.
    ///
    /// ## Why it costs memory
    ///
    /// A wrong setting ends the job with an error at the first allocation, or leaves the allocator
    /// as it was.
    ///
    /// ## Example
    ///
    /// ```python
    /// import os
    /// import torch
    ///
    /// os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size:128"
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import os
    /// import torch
    ///
    /// os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128"
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When a newer PyTorch has keys that this version of oomph does not know.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know what was meant.
    OOM705 "allocator-setting-unknown" { fix: None, default: true }
}

/// Keys of any PyTorch up to 2.15.
const KEYS: &[&str] = &[
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "roundup_bypass_threshold_mb",
    "garbage_collection_threshold",
    "expandable_segments",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "large_segment_size_mb",
    "throw_on_cudamalloc_oom",
];

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        if assign.place != "os.environ[]" {
            continue;
        }
        let (Expr::Subscript(target), Some(Expr::StringLiteral(value))) = (assign.target, assign.expr)
        else {
            continue;
        };
        let Expr::StringLiteral(key) = &*target.slice else {
            continue;
        };
        if !matches!(key.value.to_str(), "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF") {
            continue;
        }
        for problem in problems(value.value.to_str()) {
            out.push(Report::new(value, problem).help(
                "see https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
            ));
        }
    }
}

fn problems(text: &str) -> Vec<String> {
    // Lists in brackets have commas and colons of their own.
    if text.contains('[') {
        return Vec::new();
    }
    let mut found = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let Some((key, value)) = pair.split_once(':') else {
            found.push(format!("`{}` is not a `key:value` setting of the allocator", pair.trim()));
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if !KEYS.contains(&key) {
            found.push(format!("the allocator has no setting `{key}`"));
        } else if key == "expandable_segments" && !matches!(value, "True" | "False") {
            found.push(format!("`expandable_segments` takes `True` or `False`, not `{value}`"));
        } else if key == "max_split_size_mb" && value.parse::<u64>().is_ok_and(|mb| mb < 20) {
            found.push(format!("`max_split_size_mb` must be at least 20, not {value}"));
        }
    }
    found
}
