//! What to do next in a job of PyTorch: by hand, and by oomph where the text shows a script.

use oomph_trace::text::{
    Framework, Hardware, Memory, MessageKind, OomMessage, Phase, Program, Sign,
};
use oomph_trace::{Bytes, is_users_own};

use super::named::uses;
use super::servers::{inside_sglang, inside_tgi, inside_vllm, rollouts, trial_run};
use super::{NextStep, advice, others_on_the_gpu, shell_word, step};
use crate::messages::ways::{Change, ways};
use crate::messages::{self, Limit};

/// The script that the text shows: in a traceback or a command.
pub(in crate::messages) fn script(message: &OomMessage) -> Option<String> {
    if message.tables.shows(Sign::Tests) {
        return None;
    }
    if in_notebook(message) {
        return Some("notebook.ipynb".to_owned());
    }
    message
        .traceback
        .iter()
        .find(|frame| frame.function == "<module>" && is_users_own(&frame.file))
        .and_then(|frame| frame.file.rsplit(['/', '\\']).next())
        .filter(|name| {
            // It becomes a word of a shell command.
            std::path::Path::new(name)
                .extension()
                .is_some_and(|end| end == "py")
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
                && !name.starts_with('-')
        })
        .or_else(|| called(message))
        .map(str::to_owned)
}

/// The script that a command of the text runs.
fn called(message: &OomMessage) -> Option<&str> {
    let mut commands = message.tables.commands.iter();
    commands.find_map(|command| {
        let runs = ["python", "torchrun", "accelerate", "deepspeed"]
            .iter()
            .any(|name| command.contains(name));
        let mut words = command.split_whitespace().filter(|_| runs);
        let path = words.find(|word| {
            let end = std::path::Path::new(word).extension();
            end.is_some_and(|end| end == "py")
        })?;
        path.rsplit('/')
            .next()
            .filter(|name| shell_word(Some(name)).is_some())
    })
}

/// Whether the traceback is one of a notebook's cells.
fn in_notebook(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    frames.any(|frame| {
        ["Cell In", "Input In", "<ipython-input-"]
            .iter()
            .any(|name| frame.file.starts_with(name))
            || frame.file.contains("/ipykernel_")
    })
}

/// The steps for PyTorch's own message, and for one that it may have raised.
pub(super) fn pytorch(message: &OomMessage) -> Vec<NextStep> {
    // Far more was free: no setting for less memory is a cure.
    let far = messages::free_all_the_same(message).is_some_and(|(_, far)| far);
    let elsewhere = inside(message).filter(|_| !far);
    if let Some(steps) = elsewhere.or_else(|| by_hardware(message)) {
        return steps;
    }
    if message.setting == Some("no report") {
        return vec![others_on_the_gpu(message), by_hand(message)];
    }
    let mut steps = run_it(message);
    if let Some(training) = messages::weights::training(message) {
        let run = steps
            .into_iter()
            .filter(|step| step.command.is_some())
            .take(1);
        return training.steps().into_iter().chain(run).collect();
    }
    match Limit::of(message) {
        Limit::Misreported { size, .. } => return wrong_capacity(message, size),
        Limit::OwnCap(allowed) => {
            steps.splice(0..0, lift_the_limit(message, allowed));
        }
        Limit::Device => {}
    }
    if message.tables.shows(Sign::DataParallel) {
        return of_buckets();
    }
    steps = beside_others(message, steps);
    steps = by_what_it_shows(message, steps);
    if let Some((_, far)) = messages::free_all_the_same(message) {
        // Where far more was free, a smaller job is no cure.
        if far {
            steps.clear();
        }
        steps.splice(0..0, of_a_refusal(message, far));
    }
    if messages::asks_for_most(message)
        && !messages::is_second_copy(message)
        && !messages::is_transducers(message)
        && (message.during.is_none() || message.requested > message.total)
    {
        steps.insert(
            0,
            ways(
                "{}",
                &[(
                    Change::Attention,
                    "attention in blocks, if it is the scores of all pairs of tokens or pixels: scaled_dot_product_attention, xFormers \
                     (web interfaces of Stable Diffusion: --xformers, --opt-sdp-attention); then a smaller picture or shorter sequence",
                )],
            ),
        );
    }
    if message.kind == MessageKind::Workspace {
        let less = step(
            "torch.backends.cudnn.benchmark = False",
            "convolutions that need less workspace",
        );
        steps.insert(steps.len().min(1), less);
    }
    steps
}

/// The steps of the program in which PyTorch ran, if it has settings of its own.
fn inside(message: &OomMessage) -> Option<Vec<NextStep>> {
    Some(match message.inside? {
        Program::Vllm | Program::Sglang if message.tables.shows(Sign::Rollouts) => {
            rollouts(message)
        }
        Program::Vllm if message.during == Some(Phase::Profiling) => trial_run(message),
        Program::Vllm => inside_vllm(message),
        Program::Sglang => inside_sglang(message),
        Program::TextGenerationInference => inside_tgi(message),
        Program::ComfyUi => comfy(message),
        Program::StableDiffusion => web_interface(message),
        Program::Named(named) => uses(named, message),
        _ => return None,
    })
}

/// The steps for a web interface of Stable Diffusion.
fn web_interface(message: &OomMessage) -> Vec<NextStep> {
    let medium = messages::figures::setting(message, "medvram").is_some();
    let mut steps = vec![
        if medium {
            step(
                "--lowvram",
                "keep even less of the model on the GPU at a time than with --medvram",
            )
        } else {
            step(
                "--medvram",
                "keep only a part of the model on the GPU at a time (--lowvram: even less)",
            )
        },
        step(
            "--opt-sdp-attention",
            "attention in blocks (or --xformers), which keeps no matrix of all pairs of pixels",
        )
        .changing(Change::Attention),
        ways(
            "",
            &[
                (
                    Change::Tiles,
                    "Tiled VAE (an extension; in Forge built in) where a picture is upscaled or decoded: in pieces, not at once",
                ),
                (Change::Inputs, "a smaller image, fewer images at once"),
                (
                    Change::Bits,
                    "a model in fewer bits (fp8, GGUF, NF4), in Forge also less under \"GPU Weights\"",
                ),
            ],
        ),
        others_on_the_gpu(message),
    ];
    // Whatever else leaves the GPU, one tensor stays as large.
    if messages::ways::is_one_tensor(message) {
        steps.remove(0);
    }
    steps
}

/// The steps where the hardware, or a model that is spread over devices, decides.
fn by_hardware(message: &OomMessage) -> Option<Vec<NextStep>> {
    if message.hardware == Hardware::Apple {
        return Some(on_a_mac(message));
    }
    if message.setting == Some("device_map") {
        return Some(vec![
            advice("a smaller model, or weights in fewer bits (load_in_4bit=True)"),
            others_on_the_gpu(message),
            step(
                "device_map=\"auto\", max_memory={0: \"22GiB\", \"cpu\": \"48GiB\"}",
                "what each device may take, if accelerate left more free than it has to",
            ),
            step(
                "BitsAndBytesConfig(load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=True)",
                "the rest on the CPU in 32 bits, which is slow",
            ),
        ]);
    }
    if !matches!(
        message.hardware,
        Hardware::Intel | Hardware::Gaudi | Hardware::Neuron | Hardware::Ascend
    ) {
        return None;
    }
    let mut steps = vec![one_piece(message), others_on_the_gpu(message)];
    // Where PyTorch held nothing, no smaller job is a cure.
    if message.reserved != Some(Bytes::ZERO) {
        steps.insert(0, by_hand(message));
    }
    Some(steps)
}

/// The steps, with what to do about memory that PyTorch does not hold.
fn beside_others(message: &OomMessage, mut steps: Vec<NextStep>) -> Vec<NextStep> {
    if messages::holds_next_to_nothing(message) && message.allowed.is_none() {
        // What the job itself needs is not known yet.
        steps = vec![
            others_on_the_gpu(message),
            if message.others.len() > 1 {
                own_gpu_for_each_rank()
            } else {
                step(
                    "CUDA_VISIBLE_DEVICES=1",
                    "use a GPU that is free, by its number",
                )
            },
        ];
        steps.extend(load_on_the_cpu(message));
    } else if messages::is_full_of_others(message) && message.allowed.is_none() {
        // Where others hold most of it, another GPU is the next thing to try.
        let most = message
            .outside_pytorch()
            .zip(message.total)
            .is_some_and(|(outside, total)| outside.0 > total.0 / 2);
        if most && message.ranks.len() < 2 && !messages::may_be_libraries(message) {
            steps.insert(
                0,
                step(
                    "CUDA_VISIBLE_DEVICES=1",
                    "use a GPU that is free, by its number",
                ),
            );
        }
        // What may be this process's own libraries comes after what its tensors need.
        let place = usize::from(messages::may_be_libraries(message)).min(steps.len());
        steps.insert(place, others_on_the_gpu(message));
        steps.splice(0..0, who_holds_most(message));
        let outside = message.outside_pytorch().unwrap_or_default();
        if messages::evidence::of_ranks(message, outside).is_some() {
            // What the job needs by itself is not known before each rank has its own.
            steps.truncate(1);
            steps.insert(0, own_gpu_for_each_rank());
            if message.tables.shows(Sign::SpreadsOut) {
                steps.insert(0, one_copy_for_each_rank());
            }
        }
    } else if messages::others_are_enough(message).is_some() {
        steps.insert(0, own_gpu_for_each_rank());
        steps.insert(1, others_on_the_gpu(message));
    }
    if message
        .outside_pytorch()
        .is_some_and(|outside| outside >= Bytes::gib(1))
        && !messages::is_only_context(message)
        && message.memory == Memory::Device
    {
        let others = others_on_the_gpu(message);
        if !steps.contains(&others) {
            steps.push(others);
        }
    }
    steps
}

/// The steps, with what a notebook, growth, a checkpoint or scores of all pairs ask for.
fn by_what_it_shows(message: &OomMessage, mut steps: Vec<NextStep>) -> Vec<NextStep> {
    if in_notebook(message) {
        let again = advice(
            "earlier cells, `_`, `Out` and the last traceback hold tensors: start the kernel again, or `oomph.free()`",
        );
        steps.insert(steps.len().min(1), again);
    }
    let grows = message.tables.shows(Sign::Grows) || message.tables.shows(Sign::RanEpochs);
    if grows && !of_a_phase(message) {
        steps.insert(0, of_growth());
    }
    if messages::in_pieces(message).is_some() && message.tables.told.in_vain(&["expandable"]) {
        let took_effect = step(
            "torch.cuda.memory._snapshot()[\"segments\"]",
            "whether each has \"is_expandable\": True, so that the setting took effect (it has to be there before PyTorch uses the GPU); then sizes \
             that vary less from step to step",
        );
        steps.insert(0, took_effect);
    }
    if message.tables.shows(Sign::NoInputGradients) {
        steps.insert(0, checkpointing_of_adapters());
    }
    if message.during == Some(Phase::Loading) && !messages::holds_next_to_nothing(message) {
        steps.splice(0..0, load_on_the_cpu(message));
    }
    let logits = message.traceback.last();
    if logits.is_some_and(|frame| frame.code.contains("logits"))
        && !message.tables.shows(Sign::Infers)
    {
        let fused = step(
            "use_liger_kernel=True",
            "of the Trainer, or another fused or chunked cross-entropy: a loss that never holds all logits; otherwise fewer tokens at once",
        );
        steps.insert(0, fused);
    }
    if message.tables.shows(Sign::KeepsScores) || message.during == Some(Phase::Attending) {
        let blocks = step(
            "attn_implementation=\"sdpa\"",
            "attention in blocks (without a mask of all pairs): it keeps no matrix of all scores",
        );
        steps.insert(0, blocks.changing(Change::Attention));
    }
    steps
}

/// The driver refused what it reports as free.
fn of_a_refusal(message: &OomMessage, far: bool) -> Vec<NextStep> {
    let again = advice(
        "start the process again, then the machine: the driver refuses what it reports as free",
    );
    let version = advice("another version of the driver, or of PyTorch's build");
    if message.tables.shows(Sign::Windows) {
        vec![step("free -h", ""), again, version]
    } else if far {
        let limits = step(
            "sysctl vm.max_map_count",
            "the mappings that a process may have: a limit of the system that says out of memory, too",
        );
        vec![limits, again, version, others_on_the_gpu(message)]
    } else {
        vec![others_on_the_gpu(message), again, version]
    }
}

fn comfy(message: &OomMessage) -> Vec<NextStep> {
    // Its settings for little memory are of cards of their own.
    if message.hardware == Hardware::Apple {
        let mut steps = on_a_mac(message);
        steps.insert(
            0,
            ways(
                "",
                &[(
                    Change::Inputs,
                    "a smaller picture, or fewer frames at once; where a picture or a film is decoded, the node VAE Decode (Tiled)",
                )],
            ),
        );
        return steps;
    }
    let set = |name: &str| messages::figures::setting(message, name).is_some();
    let frees = message.tables.shows(Sign::FreesModels);
    // No memory that is freed makes room for more than the whole GPU.
    if message
        .requested
        .zip(message.total)
        .is_some_and(|(asked, total)| asked > total)
    {
        return vec![
            ways(
                "",
                &[
                    (
                        Change::Inputs,
                        "a smaller image, fewer images or frames at once",
                    ),
                    (
                        Change::Tiles,
                        "where a VAE asks, the nodes VAE Decode (Tiled) and VAE Encode (Tiled)",
                    ),
                ],
            ),
            step(
                "python main.py --use-split-cross-attention",
                "where attention asks: in pieces (or --use-quad-cross-attention)",
            )
            .changing(Change::Attention),
        ];
    }
    let mut steps = vec![if set("lowvram") {
        step(
            "python main.py --novram",
            "keep next to nothing of the model on the GPU (now: --lowvram)",
        )
    } else {
        step(
            "python main.py --lowvram",
            "keep only a part of the model on the GPU at a time",
        )
    }];
    // What is loaded is not there yet: no picture matters, but the models that are.
    if message.during.is_some_and(Phase::is_of_weights) {
        return vec![
            step(
                "python main.py --disable-smart-memory",
                "models of earlier steps and prompts moved to RAM as soon as they are not needed, not kept on the GPU beside the one that \
                 is loaded (or a node that unloads models, or POST /free)",
            ),
            advice(
                "a text encoder and a model in fewer bits (fp8, GGUF), or the text encoder on the CPU",
            ),
            step(
                "python main.py --reserve-vram 2",
                "leave so many GiB free beside the weights",
            ),
        ];
    }
    if message.during == Some(Phase::Decoding) {
        steps.push(ways(
            "{}",
            &[
                (
                    Change::Tiles,
                    "the node VAE Decode (Tiled) in place of VAE Decode",
                ),
                (
                    Change::SmallerTiles,
                    "smaller tiles (tile_size of VAE Decode (Tiled))",
                ),
                (
                    Change::Other,
                    "python main.py --cpu-vae: decode on the CPU, which is slow",
                ),
            ],
        ));
    } else if let Some((used, total)) = message.allocated.zip(message.total)
        && used.0 > total.0 / 4 * 3
    {
        steps.push(step(
            "curl -X POST -d '{\"unload_models\": true, \"free_memory\": true}' http://127.0.0.1:8188/free",
            if frees {
                "what earlier prompts left on the GPU"
            } else {
                "what earlier prompts left on the GPU (or --disable-smart-memory, which keeps nothing there)"
            },
        ));
    } else {
        steps.push(step(
            "python main.py --reserve-vram 2",
            "leave so many GiB free beside the weights, for what sampling makes",
        ));
    }
    steps.push(ways(
        "",
        &[
            (
                Change::Inputs,
                "a smaller image, fewer images or frames at once",
            ),
            (Change::Bits, "a model in fewer bits (fp8, GGUF)"),
        ],
    ));
    if message.requested.is_none() {
        steps.push(advice(
            "the console's log has the figures that a report lacks",
        ));
    }
    steps
}

/// The process that a message names as the holder of a good part of the GPU.
pub(in crate::messages) fn who_holds_most(message: &OomMessage) -> Option<NextStep> {
    let most = message.others.iter().max_by_key(|other| other.used)?;
    // A table of the text says more.
    let known = message
        .tables
        .holders
        .iter()
        .any(|held| held.pid == most.pid);
    (most.used.0 >= message.total?.0 / 8 && !known).then(|| {
        step(
            format!("ps -fp {}", most.pid),
            format!(
                "what process {} is, which holds {}: end it, wait for it, or use another GPU (CUDA_VISIBLE_DEVICES); in a container the \
                 number may be one of the host",
                most.pid, most.used
            ),
        )
    })
}

/// Several processes on one GPU are mostly the ranks of one job.
pub(in crate::messages) fn own_gpu_for_each_rank() -> NextStep {
    step(
        "torch.cuda.set_device(local_rank)",
        "before anything else uses CUDA, or CUDA_VISIBLE_DEVICES for each rank: the other processes on this GPU may be \
         ranks that belong on others",
    )
}

/// A copy of the model that each rank spreads over all GPUs.
fn one_copy_for_each_rank() -> NextStep {
    step(
        "device_map={\"\": local_rank}",
        "in place of device_map=\"auto\", which spreads each rank's copy over all GPUs: one copy on the rank's own (in 16 or fewer bits, \
         if it has to be smaller), or one process alone with device_map=\"auto\"",
    )
}

/// What people who see use grow have to look for.
fn of_growth() -> NextStep {
    step(
        "torch.cuda.memory_allocated()",
        "printed after each step: if it grows, keep numbers in place of tensors (loss.item(), .detach().cpu()) and empty lists of \
         results; if it jumps, limit the largest samples",
    )
}

/// Activation checkpointing above weights that are not trained.
fn checkpointing_of_adapters() -> NextStep {
    step(
        "gradient_checkpointing_kwargs={\"use_reentrant\": False}",
        "with gradient_checkpointing=True and use_cache=False: what the text says of gradients is its other form, which needs inputs with \
         a gradient (or model.enable_input_require_grads()); it saves the most here",
    )
    .changing(Change::Other)
}

/// A checkpoint that is read to the GPU which it was saved from.
pub(super) fn load_on_the_cpu(message: &OomMessage) -> Option<NextStep> {
    let mut frames = message.traceback.iter();
    let reads = frames.any(|frame| {
        frame.code.contains("torch.load(") || frame.function == "default_restore_location"
    });
    reads.then(|| {
        step(
            "torch.load(path, map_location=\"cpu\")",
            "read the checkpoint into the host's memory: without it, it goes to the GPU that it was saved from, beside the model",
        )
    })
}

/// Whether what a program was doing decides what helps, and not what its steps hold.
pub(in crate::messages) fn of_a_phase(message: &OomMessage) -> bool {
    matches!(
        message.during,
        Some(
            Phase::Loading
                | Phase::Moving
                | Phase::Wrapping
                | Phase::SettingUp
                | Phase::Gathering
                | Phase::Saving
                | Phase::Collecting
        )
    )
}

/// Whether a loop of transformers' Trainer evaluates: it has `no_grad` itself, and keeps what the model returns.
fn evaluates_in_trainer(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    frames.any(|frame| {
        let file = frame.file.replace('\\', "/");
        file.contains("transformers/trainer")
            && ["evaluation_loop", "prediction_loop", "prediction_step"]
                .contains(&frame.function.as_str())
    })
}

/// To run the job on the virtual GPU where the text shows its script; what to change by hand in any case.
fn run_it(message: &OomMessage) -> Vec<NextStep> {
    // The virtual GPU stands in for CUDA's runtime, and ROCm has its own.
    if message.hardware == Hardware::Amd {
        return vec![by_hand(message)];
    }
    // What the process may use, where it limited itself.
    let memory = message
        .allowed
        .or(message.total)
        .map(|most| format!(" --memory {}MiB", most.0 >> 20))
        .unwrap_or_default();
    let what = "what held the memory, by line and by kind; needs no GPU";
    let Some(script) = script(message) else {
        let mut steps = vec![by_hand(message)];
        let held = message.reserved != Some(Bytes::ZERO);
        if held && !message.tables.shows(Sign::Tests) && !is_packaged(message) {
            steps.push(step(
                format!("oomph run{memory} YOUR_SCRIPT.py"),
                format!("with the script that failed: {what}"),
            ));
        }
        return steps;
    };
    let by_hand = by_hand(message);
    let run = step(format!("oomph run{memory} {script}"), what);
    let shows = |sign| message.tables.shows(sign);
    let infers = shows(Sign::Infers) && !shows(Sign::Trains);
    let decides = matches!(
        message.during,
        Some(Phase::Optimizing | Phase::Decoding | Phase::Evaluating | Phase::Collecting)
    );
    if of_a_phase(message) || infers || decides {
        return vec![by_hand, run];
    }
    vec![
        run,
        step(
            format!("oomph fit{memory} {script}"),
            "the fewest changes that make it fit",
        ),
        NextStep {
            what: "or by hand: {}".to_owned(),
            ..by_hand
        },
    ]
}

/// Whether the text shows that a program ran which is installed, and no script of the reader's.
fn is_packaged(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    let mut commands = message.tables.commands.iter();
    message.inside.is_some()
        || frames.any(|frame| {
            // A command that was installed has no ending.
            let ending = std::path::Path::new(&frame.file).extension();
            let installed =
                !is_users_own(&frame.file) || (ending.is_none() && frame.file.contains("/bin/"));
            frame.function == "<module>" && installed
        })
        || commands.any(|command| {
            let mut words = command.split_whitespace();
            !command.contains("python") && words.any(|word| matches!(word, "train" | "serve"))
        })
}

/// The process reached a limit that it set itself.
fn lift_the_limit(message: &OomMessage, allowed: Bytes) -> Vec<NextStep> {
    let mut steps = vec![step(
        "grep -rnE 'set_per_process_memory_fraction|per_process_memory_fraction' .",
        format!(
            "who sets the limit of {allowed}: raise it or take it out; the GPU itself has more"
        ),
    )];
    if message.tables.shows(Sign::Tests) {
        steps.push(advice(
            "run the failing test alone: an earlier test of the same process may have set the limit and not reset it, or left \
             memory behind",
        ));
        steps.push(step(
            "torch.cuda.memory_summary()",
            "at its start: what is held already",
        ));
    }
    steps
}

/// `DistributedDataParallel` makes its buckets of gradients before any batch.
fn of_buckets() -> Vec<NextStep> {
    vec![
        advice(
            "shard the model over the ranks (FSDP, or DeepSpeed's ZeRO-2 or 3): with DDP each GPU holds all weights, gradients \
             and buckets",
        ),
        step(
            "DistributedDataParallel(model, gradient_as_bucket_view=True)",
            "gradients are then views of the buckets, not a second copy",
        ),
        advice(
            "fewer parameters that are trained (LoRA, frozen parts), or weights in 16 bits: a bucket has the size of their gradients",
        ),
        advice("the batch size changes nothing here: no batch has run yet"),
    ]
}

/// The runtime reports less memory than another line of the text.
fn wrong_capacity(message: &OomMessage, size: Bytes) -> Vec<NextStep> {
    let most = message.total.unwrap_or_default();
    if message.hardware != Hardware::Amd {
        return vec![
            step(
                "nvidia-smi -L; nvidia-smi",
                "which GPUs and MIG instances there are, and what each has",
            ),
            advice(format!(
                "why the program sees {most} and not {size}: another GPU, a MIG instance, a share of a virtual GPU"
            )),
        ];
    }
    vec![
        step(
            "grep . /sys/class/drm/card*/device/mem_info_vram_total /sys/class/drm/card*/device/mem_info_gtt_total",
            format!("which of the two the runtime counts: {most} or {size}"),
        ),
        advice(
            "a newer kernel (amdgpu) and ROCm: older ones give an APU the part of the host's memory (GTT), not its VRAM",
        ),
        advice(
            "the least VRAM in the BIOS and a larger GTT (ttm.pages_limit, amdgpu.gttsize) in its place",
        ),
        advice(format!("until then, requests below {most}")),
    ]
}

/// PyTorch's own limit on a Mac.
fn on_a_mac(message: &OomMessage) -> Vec<NextStep> {
    let smaller = ways(
        "",
        &[
            (Change::Batch, "a smaller batch"),
            (Change::Inputs, "smaller inputs"),
            (Change::Bits, "weights in 16 or fewer bits"),
            (
                Change::Other,
                "fewer results for each input (candidates, samples); of a list, one input in a process of its own, if use grows over it",
            ),
        ],
    );
    let ratio = step(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        "only as the last resort, set in the shell before Python starts: no limit at all, so the Mac may swap, stall or end the program",
    );
    let others = others_on_the_gpu(message);
    let outside = message.this_process.zip(message.allocated);
    if outside.is_some_and(|(all, own)| all.saturating_sub(own) > own) {
        let again = advice(
            "start the program again: the larger part lies outside its tensors (Metal's buffers of this process), which grow; a \
             newer PyTorch may hold less",
        );
        return vec![again, smaller, ratio];
    }
    // The limit is this process's own, so what others hold does not count.
    if message.allowed.is_some() {
        vec![smaller, ratio]
    } else {
        vec![smaller, others, ratio]
    }
}

/// A request that may be too large by itself, whatever is free.
fn one_piece(message: &OomMessage) -> NextStep {
    if message.hardware == Hardware::Intel
        && message
            .requested
            .is_some_and(|asked| asked >= Bytes::gib(4))
    {
        advice(
            "tensors below 4 GiB each: Intel's driver gives no larger single buffer unless it is told to",
        )
    } else {
        advice("look at the shapes at the line that asked: one tensor may be too large by itself")
    }
}

/// How the program that runs needs less, where it is known and does what its ways are for.
fn framework_ways(message: &OomMessage) -> &'static [(Change, &'static str)] {
    let shows = |sign| message.tables.shows(sign);
    let trains = shows(Sign::Trains) || !shows(Sign::Infers);
    match message.tables.framework {
        Some(Framework::Ultralytics) if !trains => super::frameworks::PREDICT,
        Some(framework) if framework.infers() && !shows(Sign::TrainingRun) => {
            super::frameworks::ways_of(framework)
        }
        Some(framework) if trains && !framework.infers() => super::frameworks::ways_of(framework),
        _ => &[],
    }
}

/// What is wrapped for the ranks of a job lies whole on each GPU.
const DATA_PARALLEL: &[(Change, &str)] = &[
    (
        Change::Other,
        "the model sharded over the GPUs in place of a whole copy on each (FSDP, DeepSpeed's ZeRO-3)",
    ),
    (
        Change::Other,
        "parts that are not trained (a VAE, text encoders) in 16 bits, or on the CPU until they are needed",
    ),
    (
        Change::Trained,
        "fewer parameters that are trained (LoRA): gradients and the optimizer's state are still to come",
    ),
];

/// What makes a second copy of all weights needless.
const SECOND_COPY: &[(Change, &str)] = &[
    (
        Change::Other,
        "look for the copy at that line (.to(dtype), .float(), torch.cat, a state dict that is joined): convert on the CPU, or layer by \
         layer, and free each part before the next",
    ),
    (
        Change::Other,
        "split the weights over the GPUs, so that none holds them whole (FSDP, tensor parallelism, device_map=\"auto\")",
    ),
    (Change::Bits, "weights in fewer bits"),
];

/// What to change in a script of PyTorch's: the first of what helps then.
fn by_hand(message: &OomMessage) -> NextStep {
    use Change::{
        Batch, Bits, EvaluationBatch, Graph, Halves, Inputs, OptimizerBits, Other, Recomputing,
        SmallerTiles, Temporaries, Tiles, Trained,
    };
    const STATE: (Change, &str) = (OptimizerBits, "the optimizer's state in 8 bits");
    const ADAPTERS: (Change, &str) = (Trained, "fewer parameters that are trained (LoRA)");
    const OFFLOADED: (Change, &str) = (
        Other,
        "the optimizer's state on the CPU (\"offload_optimizer\" of DeepSpeed, CPUOffload of FSDP)",
    );
    let shows = |sign| message.tables.shows(sign);
    let of_framework = framework_ways(message);
    let copies = messages::is_second_copy(message) && !shows(Sign::Fsdp);
    let list: &[(Change, &str)] = match message.during {
        None if copies => SECOND_COPY,
        Some(phase) if phase.is_of_weights() && shows(Sign::Diffusers) => &[
            (
                Other,
                "pipe.enable_model_cpu_offload() in place of .to(\"cuda\"): one part of the pipeline on the GPU at a time",
            ),
            (Halves, "weights in 16 bits (torch_dtype)"),
            (Bits, "weights in 8 or 4 bits (quantization_config)"),
            (Other, "a smaller model"),
        ],
        Some(Phase::Wrapping) if shows(Sign::Fsdp) => &[
            (
                Other,
                "the model kept on the CPU, or on the device \"meta\", until FSDP has sharded it (no .to(\"cuda\") before; device_id, \
                 sync_module_states=True)",
            ),
            (
                Other,
                "one unit for each layer (auto_wrap_policy): without it the whole model is one unit, which is copied whole",
            ),
            (Bits, "weights in fewer bits (torch_dtype)"),
            (Other, "sharded weights on the CPU (CPUOffload)"),
        ],
        Some(phase) if phase.is_of_weights() && (shows(Sign::DeepSpeed) || shows(Sign::Fsdp)) => &[
            (
                Other,
                "load the weights on the CPU or in shards, so that no GPU holds them whole (ZeRO-3 with zero.Init or \
                     low_cpu_mem_usage; FSDP: sync_module_states, device \"meta\" on other ranks)",
            ),
            (Bits, "weights in fewer bits (load_in_4bit, torch_dtype)"),
            (
                Other,
                "more GPUs to shard over, or parameters on the CPU (offload_param)",
            ),
        ],
        Some(Phase::Wrapping) => DATA_PARALLEL,
        Some(phase) if phase.is_of_weights() => &[
            (Halves, "weights in 16 bits (torch_dtype)"),
            (Bits, "weights in 8 or 4 bits (load_in_4bit)"),
            (
                Other,
                "a part of them on the CPU, or split over more GPUs (device_map=\"auto\")",
            ),
            (Other, "a smaller model"),
        ],
        Some(Phase::Gathering) if message.tables.shows(Sign::DeepSpeed) => &[
            (Other, "parameters on the CPU (\"offload_param\" of ZeRO-3)"),
            (
                Other,
                "less gathered at once: smaller stage3_max_live_parameters and stage3_prefetch_bucket_size",
            ),
            (Bits, "base weights in 4 bits (QLoRA)"),
            (Other, "more GPUs to shard over"),
        ],
        Some(Phase::Gathering) => &[
            (
                Other,
                "sharded weights on the CPU (CPUOffload, CPUOffloadPolicy; torchtune: fsdp_cpu_offload)",
            ),
            (
                Other,
                "finer units: each layer, the embedding and the output wrapped by themselves, and given back after their forward pass \
                 (reshard_after_forward, FULL_SHARD)",
            ),
            (Bits, "base weights in 4 bits (QLoRA)"),
            (Other, "more GPUs to shard over"),
        ],
        Some(Phase::SettingUp) => &[
            OFFLOADED,
            (
                Other,
                "a higher stage of ZeRO, or more ranks, each of which holds less",
            ),
            STATE,
            ADAPTERS,
        ],
        Some(Phase::Saving) if message.tables.shows(Sign::Fsdp) => &[
            (
                Other,
                "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, \
                 rank0_only=True)): gather the state in the host's memory of rank 0",
            ),
            (Other, "SHARDED_STATE_DICT: each rank writes its own part"),
        ],
        Some(Phase::Saving) if message.tables.shows(Sign::DeepSpeed) => &[(
            Other,
            "save ZeRO's shards as they are and merge them afterwards on the CPU (zero_to_fp32.py); \
                 stage3_gather_16bit_weights_on_model_save=false",
        )],
        Some(Phase::Saving) => &[
            (
                Other,
                "copy each tensor to the CPU as it is saved: {name: tensor.cpu() for name, tensor in model.state_dict().items()}",
            ),
            (
                Other,
                "delete what else is alive before: gradients (optimizer.zero_grad(set_to_none=True)), batches, a second model",
            ),
        ],
        Some(Phase::Collecting) => &[
            (
                Other,
                "move predictions to the CPU as they come: eval_accumulation_steps=1 of the Trainer",
            ),
            (
                Other,
                "keep less of each: preprocess_logits_for_metrics (argmax), prediction_loss_only=True, fewer samples",
            ),
        ],
        // Neither the batch nor the graph: what is kept of each batch.
        Some(Phase::Evaluating)
            if message.tables.told.no_batch_helps || evaluates_in_trainer(message) =>
        {
            &[
                (
                    Other,
                    "what is kept of each batch moved to the CPU (.cpu(); eval_accumulation_steps=1 of the Trainer)",
                ),
                (
                    Other,
                    "less kept of each: preprocess_logits_for_metrics (argmax), prediction_loss_only=True, no hidden states",
                ),
                (
                    EvaluationBatch,
                    "a smaller batch in evaluation (per_device_eval_batch_size)",
                ),
                (Graph, "torch.no_grad() around it, so that no graph is kept"),
            ]
        }
        Some(Phase::Evaluating) => &[
            (Graph, "torch.no_grad() around it, so that no graph is kept"),
            (
                EvaluationBatch,
                "a smaller batch in evaluation, or smaller images and sequences",
            ),
            (
                Other,
                "results moved to the CPU after each batch (.cpu(), .item())",
            ),
        ],
        Some(Phase::Decoding) => &[
            (
                Tiles,
                "pipe.vae.enable_tiling() and pipe.vae.enable_slicing(): decode in pieces",
            ),
            (
                SmallerTiles,
                "smaller tiles of the VAE (tile_sample_min_height, tile_sample_min_width)",
            ),
            (
                Other,
                "pipe.enable_model_cpu_offload() in place of .to(\"cuda\"): nothing but the VAE on the GPU then",
            ),
            (Inputs, "fewer frames, or a smaller picture"),
        ],
        Some(Phase::Generating) => &[
            (Batch, "fewer prompts or beams at once"),
            (
                Inputs,
                "a shorter prompt, and fewer new tokens (max_new_tokens): keys and values grow with each",
            ),
            (Bits, "weights in fewer bits (load_in_4bit)"),
            (
                Other,
                "keys and values on the CPU (cache_implementation=\"offloaded\")",
            ),
        ],
        Some(Phase::Optimizing) => &[
            (
                Temporaries,
                "foreach=False in the optimizer, or a fused one (fused=True, DeepSpeed's FusedAdam): no temporaries as large as all its \
                 parameters",
            ),
            STATE,
            OFFLOADED,
            (Other, "it sharded over more ranks (ZeRO, FSDP)"),
            ADAPTERS,
        ],
        None | Some(Phase::Backward | Phase::Attending) if !of_framework.is_empty() => of_framework,
        Some(Phase::Backward) => &[
            (Batch, "a smaller batch with accumulated gradients"),
            (Halves, "16 bits (bf16)"),
            (Recomputing, "activation checkpointing"),
            (Inputs, "a shorter sequence or smaller image"),
            ADAPTERS,
            STATE,
            (
                Other,
                "weights or the optimizer's state on the CPU, or sharded over more GPUs",
            ),
        ],
        _ if message.tables.shows(Sign::Trains) => &[
            (Batch, "a smaller batch with accumulated gradients"),
            (Inputs, "a smaller image or shorter sequence"),
            (Halves, "16 bits"),
            (Recomputing, "activation checkpointing"),
            ADAPTERS,
            STATE,
        ],
        // Below no code of the reader's, it is hardly his to put there.
        _ if shows(Sign::Infers)
            && !message
                .traceback
                .iter()
                .any(|frame| is_users_own(&frame.file)) =>
        {
            &[
                (Inputs, "a smaller image or shorter sequence"),
                (Batch, "a smaller batch"),
                (Halves, "weights in 16 or fewer bits"),
                (
                    Graph,
                    "torch.no_grad() around the forward pass, if the code is yours and has none",
                ),
            ]
        }
        _ if shows(Sign::Infers) => &[
            (
                Graph,
                "torch.no_grad() around the forward pass, if it is not there yet, so that no graph is kept",
            ),
            (Inputs, "a smaller image or shorter sequence"),
            (Batch, "a smaller batch"),
            (Halves, "weights in 16 or fewer bits"),
        ],
        _ => &[
            (Batch, "a smaller batch"),
            (Inputs, "a smaller image or shorter sequence"),
            (Halves, "16 bits"),
            (
                Recomputing,
                "activation checkpointing where something is trained",
            ),
            (Graph, "torch.no_grad() where nothing is"),
        ],
    };
    ways("", list)
}

/// CUDA's bare words below a script: what the phase needs comes first where it is known, and otherwise who holds the GPU.
pub(super) fn cuda_in_pytorch(message: &OomMessage) -> Vec<NextStep> {
    let shows = |sign| message.tables.shows(sign);
    let phase = matches!(
        message.during,
        Some(
            Phase::Evaluating
                | Phase::Collecting
                | Phase::Backward
                | Phase::Optimizing
                | Phase::Attending
                | Phase::Decoding
                | Phase::Generating
        )
    );
    // Below a forward pass the job itself was at work.
    let mut frames = message.traceback.iter();
    let forward = frames.any(|frame| {
        frame.file.ends_with("nn/modules/module.py")
            && matches!(frame.function.as_str(), "__call__" | "_call_impl")
    });
    if meets(message) {
        return vec![
            others_on_the_gpu(message),
            step(
                "torch.cuda.set_device(local_rank)",
                "before the first collective operation: without it all ranks of a node make their context on GPU 0",
            ),
            advice(
                "which rank and which node it was, by each rank's own log: a node whose GPU is full or broken before the job begins is left out \
                 (sbatch --exclude=NODE)",
            ),
        ];
    }
    let known = phase || (message.during.is_none() && (forward || shows(Sign::Trains)));
    let mut steps: Vec<NextStep> = load_on_the_cpu(message).into_iter().collect();
    if !steps.is_empty() {
        steps.push(others_on_the_gpu(message));
    } else if known && !message.traceback.is_empty() {
        steps.extend([by_hand(message), others_on_the_gpu(message)]);
    } else {
        steps.extend([others_on_the_gpu(message), by_hand(message)]);
    }
    steps.extend(script(message).map(|script| {
        step(
            format!("oomph run {script}"),
            "if it is a job of PyTorch: what fills the GPU, by line; needs no GPU",
        )
    }));
    steps
}

/// Whether ranks meet there for the first time, before there is a model.
pub(in crate::messages) fn meets(message: &OomMessage) -> bool {
    let meeting = ["barrier", "init_process_group", "new_group"];
    let beginning = ["init", "setup", "compile"];
    let mut frames = message.traceback.iter();
    let last = message.traceback.last();
    message.kind == MessageKind::Cuda
        && last.is_some_and(|frame| meeting.contains(&frame.function.as_str()))
        && frames.any(|frame| {
            is_users_own(&frame.file) && beginning.iter().any(|word| frame.function.contains(word))
        })
}

/// Whether PyTorch may have raised it: it has a traceback of Python's, or the name of an error of Python's.
pub(in crate::messages) fn is_perhaps_pytorch(message: &OomMessage) -> bool {
    !message.text.contains(".lua:")
        && (message.tables.shows(Sign::Torch)
            || message.inside == Some(Program::Pytorch)
            || [
                "cuDNN error: ",
                "RuntimeError",
                "AcceleratorError",
                "CUDA error: ",
            ]
            .iter()
            .any(|word| message.text.contains(word)))
}
