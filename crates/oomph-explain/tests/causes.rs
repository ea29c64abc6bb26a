//! The planted causes, recorded on a real GPU, and healthy jobs that were given too little memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::fs::File;
use std::path::Path;

use oomph_allocator::{AddressModel, Config, Driver, Op, Program, Simulator, TorchVersion};
use oomph_explain::{Options, Remedy, Seen, WithoutLimit, explain, explain_messages, explain_run};
use oomph_trace::{Action, Event, Trace, text};
use proptest::prelude::*;

fn fixture(name: &str) -> File {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    File::open(root.join(name)).unwrap()
}

fn trace(name: &str) -> Trace {
    oomph_trace::snapshot::read(fixture(name), Path::new(name))
        .unwrap()
        .0
}

const PLANTED: [(&str, &str); 9] = [
    ("batch_too_big", "batch_too_large"),
    ("loss_accumulate", "graph_retained"),
    ("eval_grad", "missing_no_grad"),
    ("preds_on_gpu", "tensors_kept"),
    ("adam_first_step", "optimizer_state"),
    ("fragmentation", "fragmentation"),
    ("vocab_logits", "logits"),
    ("long_tail", "input_spike"),
    ("other_process", "other_process"),
];

#[test]
fn every_planted_cause_is_named_first_from_the_snapshot_alone() {
    for (name, cause) in PLANTED {
        let found = explain(
            &trace(&format!("oom/{name}.pickle.xz")),
            &Options::default(),
        );
        assert!(found.out_of_memory);
        assert_eq!(found.cause.as_ref().map(|c| c.id), Some(cause), "{name}");
        assert!(!found.holders.is_empty());
        assert!(found.fixes.iter().all(|fix| fix.saves_bytes > 0), "{name}");
    }
}

/// Other models, sizes and code shapes, run on the virtual GPU; see `fixtures/variants`.
const VARIANTS: [(&str, &str); 20] = [
    ("vgg_batch", "batch_too_large"),
    ("gpt2_long", "batch_too_large"),
    ("mlp_healthy", "batch_too_large"),
    ("rnn_hidden_kept", "graph_retained"),
    ("gpt2_eval_losses", "missing_no_grad"),
    ("features_kept", "tensors_kept"),
    ("train_outputs_kept", "tensors_kept"),
    ("gpt2_adamw", "optimizer_state"),
    ("growing_buffer", "fragmentation"),
    ("wide_vocabulary", "logits"),
    ("large_images", "input_spike"),
    ("gpu_taken", "other_process"),
    ("two_models", "stale_model"),
    ("eager_attention", "attention_scores"),
    ("checkpoint_kept", "checkpoint_on_gpu"),
    ("model_alone", "model_too_large"),
    ("generation_cache", "kv_cache"),
    ("stream_workspaces", "workspace"),
    ("attention_maps_kept", "mitigation_inert"),
    ("one_checkpoint", "mitigation_inert"),
];

#[test]
fn every_variant_is_named_first_from_the_snapshot_alone() {
    for (name, cause) in VARIANTS {
        let trace = trace(&format!("variants/{name}.pickle.xz"));
        let found = explain(&trace, &Options::default());
        assert_eq!(
            found.cause.as_ref().map(|c| c.id),
            Some(cause),
            "{name}: {:?}",
            found.causes
        );
    }
}

/// A snapshot does not tell other processes from other libraries of this one. With what the process
/// holds outside of the allocator, as `oomph run` or the message measures it, it is decided.
#[test]
fn memory_of_another_library_is_told_from_another_process() {
    let mut trace = trace("variants/pool_beside_torch.pickle.xz");
    let alone = explain(&trace, &Options::default());
    assert_eq!(alone.cause.as_ref().map(|c| c.id), Some("other_process"));
    assert!(alone.causes.iter().any(|c| c.id == "outside_allocator"));
    // The GPU had 139.8 GiB; all but 2 GiB were taken by the job's own process.
    let total = 150_109_880_320_u64;
    trace.context.device_total = Some(oomph_trace::Bytes(total));
    trace.context.outside = Some(oomph_trace::Bytes(total - (2 << 30)));
    let measured = explain(&trace, &Options::default());
    let cause = measured.cause.unwrap();
    assert_eq!(cause.id, "outside_allocator", "{:?}", measured.causes);
    assert!(cause.confidence > 0.8);
}

/// Nothing is recomputed where there is no backward.
#[test]
fn inference_is_not_told_to_recompute() {
    let found = explain(
        &trace("variants/generation_cache.pickle.xz"),
        &Options::default(),
    );
    assert!(
        found
            .fixes
            .iter()
            .any(|fix| fix.remedy == Remedy::Advice("smaller_batch"))
    );
    for lever in ["checkpoint", "micro_batch"] {
        assert!(
            found
                .fixes
                .iter()
                .all(|fix| !matches!(fix.remedy, Remedy::Lever(one) if one.name() == lever)),
            "{lever}"
        );
    }
}

/// A job that runs under autocast already cannot save anything by it.
#[test]
fn autocast_is_no_fix_for_a_job_under_autocast() {
    let trace = trace("variants/generation_cache.pickle.xz");
    let offers = |autocast: bool| {
        let mut options = Options::default();
        options.seen.autocast = autocast;
        let fixes = explain(&trace, &options).fixes;
        fixes
            .iter()
            .any(|fix| matches!(fix.remedy, Remedy::Lever(one) if one.name() == "mixed_precision"))
    };
    assert!(offers(false) && !offers(true));
}

/// The message alone decides where memory is held elsewhere, in pieces, or where the traceback
/// names the place; for the others it must say that it does not decide, or that a limit of the process was reached.
#[test]
fn the_message_alone_is_enough_or_says_so() {
    for (name, cause) in PLANTED {
        let (messages, _) =
            text::read(fixture(&format!("oom/{name}.json")), Path::new(name)).unwrap();
        let found = explain_messages(&messages).unwrap();
        let expected = match cause {
            "optimizer_state" | "fragmentation" | "logits" | "other_process" => cause,
            _ if messages.iter().any(|message| message.allowed.is_some()) => "memory_budget",
            _ => "not_enough_evidence",
        };
        assert_eq!(found.cause.map(|c| c.id), Some(expected), "{name}");
    }
}

#[test]
fn both_together_agree() {
    for (name, cause) in PLANTED {
        let (messages, _) =
            text::read(fixture(&format!("oom/{name}.json")), Path::new(name)).unwrap();
        let options = Options {
            messages,
            ..Options::default()
        };
        let found = explain(&trace(&format!("oom/{name}.pickle.xz")), &options);
        assert_eq!(found.cause.map(|c| c.id), Some(cause), "{name}");
    }
}

#[test]
fn without_cpp_frames_the_causes_are_the_same() {
    for (name, cause) in PLANTED {
        let trace = python_only(&trace(&format!("oom/{name}.pickle.xz")));
        let found = explain(&trace, &Options::default());
        assert_eq!(
            found.cause.as_ref().map(|c| c.id),
            Some(cause),
            "{name}: {:?}",
            found.causes
        );
    }
}

/// The same history as `stacks="python"` records it.
fn python_only(trace: &Trace) -> Trace {
    let mut copy = trace.clone();
    let mut events = oomph_trace::Events::default();
    let mut cut = |stack| {
        let frames: Vec<_> = trace
            .stacks
            .stack(stack)
            .iter()
            .copied()
            .filter(|&frame| trace.stacks.frame(frame).is_python(&trace.strings))
            .collect();
        copy.stacks.intern(&frames)
    };
    for event in trace.events.iter() {
        events.push(Event {
            stack: cut(event.stack),
            ..event
        });
    }
    for block in &mut copy.blocks {
        let stack = block.stack;
        let frames: Vec<_> = trace
            .stacks
            .stack(stack)
            .iter()
            .copied()
            .filter(|&frame| trace.stacks.frame(frame).is_python(&trace.strings))
            .collect();
        block.stack = copy.stacks.intern(&frames);
    }
    copy.events = events;
    copy
}

/// A driver that writes down what it does.
struct Recorder {
    model: AddressModel,
    events: std::rc::Rc<std::cell::RefCell<Vec<(Action, u64, u64)>>>,
}

impl Driver for Recorder {
    fn malloc(&mut self, size: u64) -> Option<u64> {
        let addr = self.model.malloc(size)?;
        self.events
            .borrow_mut()
            .push((Action::SegmentAlloc, addr, size));
        Some(addr)
    }
    fn free(&mut self, addr: u64, size: u64) {
        self.model.free(addr, size);
        self.events
            .borrow_mut()
            .push((Action::SegmentFree, addr, size));
    }
    fn reserve(&mut self, size: u64) -> Option<u64> {
        self.model.reserve(size)
    }
    fn map(&mut self, addr: u64, size: u64) -> bool {
        self.model.map(addr, size)
    }
    fn unmap(&mut self, addr: u64, size: u64) {
        self.model.unmap(addr, size);
    }
    fn device_total(&self) -> u64 {
        self.model.device_total()
    }
    fn limit(&self) -> Option<u64> {
        self.model.limit()
    }
}

/// A healthy history as it would have been recorded with less memory, up to the request that
/// fails; `None` if none does.
fn starved(trace: &Trace, share: f64) -> Option<Trace> {
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    let program = Program::new(trace, 0, &config);
    let limit = (program.recorded_peak_reserved as f64 * share) as u64;
    let driver_events = std::rc::Rc::default();
    let recorder = Recorder {
        model: AddressModel::new(1 << 45).with_limit(Some(limit)),
        events: std::rc::Rc::clone(&driver_events),
    };
    let mut simulator = Simulator::new(config, recorder);
    let mut blocks = std::collections::HashMap::new();
    let mut events = oomph_trace::Events::default();
    let mut failed = false;
    for step in &program.ops {
        let (row, id) = match *step {
            Op::Alloc(id) => (program.allocations[id as usize].alloc_row, id),
            Op::Free(id) => (program.allocations[id as usize].free_row, id),
            _ => continue,
        };
        let original = trace.events.get(row as usize);
        let flush = |events: &mut oomph_trace::Events| {
            for (action, addr, size) in driver_events.borrow_mut().drain(..) {
                events.push(Event {
                    action,
                    addr: oomph_trace::DeviceAddr(addr),
                    size: oomph_trace::Bytes(size),
                    ..original
                });
            }
        };
        if original.action == Action::Alloc {
            let result = simulator.malloc(
                original.size.0,
                original.stream.0,
                oomph_trace::PoolId::DEFAULT,
            );
            flush(&mut events);
            let Ok(block) = result else {
                events.push(Event {
                    action: Action::Oom,
                    addr: oomph_trace::DeviceAddr(100 << 30),
                    ..original
                });
                failed = true;
                break;
            };
            let addr = oomph_trace::DeviceAddr(simulator.addr(block));
            blocks.insert(id, block);
            events.push(Event { addr, ..original });
        } else if let Some(block) = blocks.remove(&id) {
            let addr = oomph_trace::DeviceAddr(simulator.addr(block));
            simulator.free(block);
            events.push(Event { addr, ..original });
        }
    }
    if !failed {
        return None;
    }
    let mut copy = trace.clone();
    copy.devices[0].rows = 0..events.len();
    copy.events = events;
    copy.segments.clear();
    copy.blocks.clear();
    Some(copy)
}

#[test]
fn healthy_jobs_that_were_starved_show_the_true_shortage() {
    const TRUE_SHORTAGES: [&str; 4] = [
        "batch_too_large",
        "model_too_large",
        "optimizer_state",
        "logits",
    ];
    let mut tried = 0;
    let mut wrong = Vec::new();
    for name in ["gpt2_b8", "lstm_lm", "resnet50_b32"] {
        let whole = trace(&format!("snapshots/{name}.pickle.xz"));
        for percent in (3..=98).step_by(5) {
            let Some(cut) = starved(&whole, f64::from(percent) / 100.0) else {
                continue;
            };
            let found = explain(&cut, &Options::default());
            let cause = found.cause.unwrap();
            if !TRUE_SHORTAGES.contains(&cause.id) {
                wrong.push(format!(
                    "{name} with {percent} %: {} ({})",
                    cause.id, cause.verdict
                ));
            }
            tried += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried > 40, "{tried}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever a damaged file says, the analysis ends with an answer.
    #[test]
    fn damaged_snapshots_never_break_the_analysis(
        which in 0_usize..4,
        changes in proptest::collection::vec((0_usize..1 << 20, any::<u8>()), 1..60),
    ) {
        const NAMES: [&str; 4] = ["adam_first_step", "fragmentation", "vocab_logits", "batch_too_big"];
        use std::sync::OnceLock;
        static WHOLE: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let whole = WHOLE.get_or_init(|| {
            NAMES
                .iter()
                .map(|name| {
                    let file =
                        fixture(&format!("oom/{name}.pickle.xz"));
                    let mut bytes = Vec::new();
                    let mut reader = lzma_rust2::XzReader::new(file, true);
                    std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
                    bytes
                })
                .collect()
        });
        let mut bytes = whole[which].clone();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok((trace, _)) =
            oomph_trace::snapshot::read_from(bytes.as_slice(), Path::new("damaged"))
        {
            let found = explain(&trace, &Options::default());
            prop_assert!(!found.verdict.is_empty());
            let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
            let program = Program::new(&trace, 0, &config);
            let _ = oomph_allocator::replay::recorded(&program, &config);
            let _ = oomph_allocator::plan::bounds(&program, &config);
        }
    }
}

#[test]
fn a_job_that_did_not_fail_has_no_cause() {
    for name in ["gpt2_b8", "lstm_lm", "resnet50_b32"] {
        let found = explain(
            &trace(&format!("snapshots/{name}.pickle.xz")),
            &Options::default(),
        );
        assert!(!found.out_of_memory);
        assert!(found.cause.is_none());
        assert!(found.growth.is_none(), "{name}: {:?}", found.growth);
    }
}

#[test]
fn an_empty_snapshot_asks_for_a_history() {
    let mut empty = trace("oom/fragmentation.pickle.xz");
    empty.events = oomph_trace::Events::default();
    empty.devices.clear();
    let found = explain(&empty, &Options::default());
    assert!(!found.out_of_memory);
    assert_eq!(found.peak.live_bytes, (259 * 12) << 20);
}

/// What a file does not hold is not denied.
#[test]
fn a_file_that_ends_early_is_not_taken_for_a_job_that_fitted() {
    let mut found = explain(&trace("snapshots/lstm_lm.pickle.xz"), &Options::default());
    let problem = oomph_trace::Problem::new(oomph_trace::ProblemKind::Truncated, "cut");
    assert!(!found.unclear);
    found.add_problems([&problem]);
    assert!(found.unclear && found.verdict.starts_with("the file is truncated"));
    let mut empty = trace("oom/fragmentation.pickle.xz");
    empty.events = oomph_trace::Events::default();
    empty.devices.clear();
    let found = explain(&empty, &Options::default());
    assert!(found.verdict.contains("no history"), "{}", found.verdict);
}

/// A broadcast that nobody meant: x (n, 1) against y (n) is n × n.
#[test]
fn a_request_beyond_the_gpu_is_called_what_it_is() {
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1048576.00 GiB. \
                   GPU 0 has a total capacity of 23.51 GiB of which 23.05 GiB is free. Of the \
                   allocated memory 16.00 MiB is allocated by PyTorch, and 0 bytes is reserved by \
                   PyTorch but unallocated.";
    let messages = text::find(message);
    let found = explain_messages(&messages).unwrap();
    assert_eq!(found.cause.map(|c| c.id), Some("huge_request"));

    let (mut trace, asked) = (trace("variants/vgg_batch.pickle.xz"), 1 << 50);
    let mut events = oomph_trace::Events::default();
    for mut event in trace.events.iter() {
        if event.action == Action::Oom {
            event.size = oomph_trace::Bytes(asked);
        }
        events.push(event);
    }
    trace.events = events;
    let found = explain(&trace, &Options::default());
    assert_eq!(found.cause.as_ref().map(|c| c.id), Some("huge_request"));
    assert_eq!(found.peak.request_bytes, asked);
}

/// A recorded run of `bench/causes`, of a job that failed, with its labels.
fn recorded(name: &str) -> Trace {
    let name = format!("run/causes/{name}.oomph.xz");
    oomph_trace::oomph_file::read(fixture(&name), Path::new(&name))
        .unwrap()
        .0
}

/// The causes of a recorded run, from the run without a limit.
fn causes_of(name: &str) -> Vec<(&'static str, f64)> {
    let (cut, whole) = (recorded(name), recorded(&format!("{name}.without_limit")));
    let whole = WithoutLimit {
        trace: &whole,
        // One step beyond the failure was enough.
        seen: Seen {
            stopped: true,
            ..Seen::default()
        },
        short_bytes: None,
    };
    let found = explain_run(&cut, Some(&whole), &Options::default());
    found.causes.iter().map(|c| (c.id, c.confidence)).collect()
}

#[test]
fn a_cache_that_a_module_joins_is_a_cache() {
    // The prompt's keys and values are views of a larger result, which the next pass gets.
    let causes = causes_of("own_cache");
    assert_eq!(causes[0].0, "kv_cache", "{causes:?}");
}

#[test]
fn what_is_collected_is_the_cause_where_the_same_request_was_served_before() {
    let causes = causes_of("features_collected");
    assert_eq!(causes[0].0, "tensors_kept", "{causes:?}");
    assert!(causes.iter().any(|&(id, _)| id == "fragmentation"));
}

#[test]
fn a_job_that_uses_all_but_everything_is_too_large_whatever_the_holes() {
    let causes = causes_of("video_batch");
    assert_eq!(causes[0].0, "batch_too_large", "{causes:?}");
}

#[test]
fn a_small_spike_beside_a_kept_checkpoint_is_not_the_cause() {
    let causes = causes_of("resume_on_gpu");
    assert_eq!(causes[0].0, "checkpoint_on_gpu", "{causes:?}");
    assert!(causes.iter().all(|&(id, _)| id != "input_spike"));
}

#[test]
fn a_loop_without_an_optimizers_steps_retains_graphs() {
    let found = explain(&recorded("recurrent_state"), &Options::default());
    let cause = found.cause.unwrap();
    assert_eq!(cause.id, "graph_retained");
    // The optimizer never stepped: backward passes count the steps.
    assert!(
        cause.verdict.contains("35 earlier steps"),
        "{}",
        cause.verdict
    );
    assert!(cause.fixes[0].saves_bytes > 1 << 30);
}

/// Attention that is written out, in a history without labels: the linter's finding is the cause, with a fix.
#[test]
fn a_finding_that_is_a_cause_has_a_fix_with_bytes() {
    let mut found = explain(&trace("oom/batch_too_big.pickle.xz"), &Options::default());
    let text = "train.py:3: attention keeps its scores".to_owned();
    found.add_findings([("attention_scores", 4 << 30, text)]);
    let cause = found.cause.unwrap();
    assert_eq!(cause.id, "attention_scores");
    assert!(cause.verdict.contains("train.py:3"));
    let fix = &cause.fixes[0];
    assert!(matches!(fix.remedy, Remedy::Lever(lever) if lever.name() == "attention"));
    assert!(fix.what.contains("scaled_dot_product_attention"));
    assert!(fix.saves_bytes > 3 << 30);
}

/// What the allocator has cached and what the device has free would have been enough together.
#[test]
fn a_message_is_of_fragmentation_if_cached_and_free_memory_were_enough_together() {
    let message = |free: &str| {
        format!(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 11.77 GiB total \
             capacity; 8.21 GiB already allocated; {free} GiB free; 9.30 GiB reserved in total by \
             PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to \
             avoid fragmentation.  See documentation for Memory Management and \
             PYTORCH_CUDA_ALLOC_CONF"
        )
    };
    let explained = |free| explain_messages(&text::find(&message(free))).unwrap();
    let hint = "the hint about fragmentation; it does not apply";
    let corrected = |found: &oomph_explain::Explanation| {
        let message = found.message.as_ref().unwrap();
        message.corrections.iter().any(|text| text.contains(hint))
    };

    let enough = explained("1.02");
    assert_eq!(enough.cause.as_ref().map(|c| c.id), Some("fragmentation"));
    assert!(
        enough.verdict.contains("1.0 GiB on the device"),
        "{}",
        enough.verdict
    );
    assert!(!corrected(&enough));

    let too_little = explained("0.52");
    assert_ne!(
        too_little.cause.as_ref().map(|c| c.id),
        Some("fragmentation")
    );
    assert!(corrected(&too_little));
}

#[test]
fn what_a_closure_does_is_not_the_optimizers() {
    let causes = causes_of("lightning_batch");
    assert_eq!(causes[0].0, "batch_too_large", "{causes:?}");
}

#[test]
fn a_branch_that_is_kept_with_its_graph_is_no_result() {
    let causes = causes_of("lightning_monitor");
    assert_eq!(causes[0].0, "graph_retained", "{causes:?}");
}

#[test]
fn holes_are_not_the_cause_of_what_grows_on_after_the_run_was_ended() {
    let causes = causes_of("trainer_predictions");
    assert_eq!(causes[0].0, "tensors_kept", "{causes:?}");
}
