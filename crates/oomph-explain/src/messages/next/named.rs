//! What to do next in a program that is known by name only: what its own settings are, or what it is used for.

use oomph_trace::text::{Memory, Named, OomMessage, Uses};

use super::host::{more_than, needs_less};
use super::{NextStep, advice, look_at_the_host, others_on_the_gpu, step};
use crate::messages::ways::{Change, ways};

/// What to set, or nothing, and what that is for.
type Ways = &'static [(&'static str, &'static str)];

/// The steps of a table.
fn listed(ways: Ways) -> Vec<NextStep> {
    ways.iter()
        .map(|(command, what)| match *command {
            "" => advice(*what),
            command => step(command, *what),
        })
        .collect()
}

/// How a notebook needs less.
pub(super) const NOTEBOOK: &str = "read the data in parts, in smaller types (float32, categories); `del` what is no longer needed; a \
                                   session with more RAM";

/// The part of a GPU's memory, above all of it, that holds what the text says is needed; a letter where it does not say.
pub(super) fn fraction_of_the_gpu(message: &OomMessage) -> String {
    let needed = message.requested.zip(message.total);
    needed.filter(|(asked, total)| asked > total).map_or_else(
        || "F".to_owned(),
        |(asked, total)| format!("{:.1}", asked.0 as f64 / total.0.max(1) as f64 + 0.2),
    )
}

/// The steps for a program that is known by name only.
pub(super) fn uses(named: &Named, message: &OomMessage) -> Vec<NextStep> {
    let on_the_gpu = message.memory == Memory::Device;
    if let Some(own) = own_settings(OWN, named, message) {
        let mut steps = listed(own);
        steps.push(if message.memory == Memory::Host {
            look_at_the_host()
        } else {
            others_on_the_gpu(message)
        });
        return steps;
    }
    if named.uses == Uses::Spark && message.text.contains("memoryOverhead") {
        let steps = [
            step(
                "--conf spark.executor.memoryOverhead=4g",
                "more beside the heap: the container's limit is the heap and this (a tenth by default), and Python's workers, pandas and direct \
                 buffers lie there",
            ),
            step(
                "--executor-cores 4",
                "fewer tasks at once in an executor, each of which has a worker of its own",
            ),
            advice("more partitions, so that each is smaller"),
        ];
        return steps.into();
    }
    let mut steps = if let Some(own) = own_settings(BESIDE_ITS_USE, named, message) {
        listed(own)
    } else {
        by_use(named, message)
    };
    // Without a figure, whether the GPU was free at all comes first.
    let figures = [
        message.requested,
        message.total,
        message.free,
        message.used(),
    ];
    if on_the_gpu && named.uses == Uses::Models && figures.iter().all(Option::is_none) {
        steps.insert(0, others_on_the_gpu(message));
        return steps;
    }
    steps.push(if message.memory == Memory::Host {
        look_at_the_host()
    } else {
        others_on_the_gpu(message)
    });
    steps
}

/// The steps by what a program is used for.
fn by_use(named: &Named, message: &OomMessage) -> Vec<NextStep> {
    match named.uses {
        Uses::Watches => vec![advice(needs_less(message))],
        Uses::Schedules => vec![
            step(
                format!("request_memory = {}", more_than(message.total)),
                "a larger request: it is the job's limit, and the last use that was measured may be older than the peak",
            ),
            step(
                "condor_qedit JOB RequestMemory 32768; condor_release JOB",
                "the same for a job that is held, in MiB",
            ),
            advice(needs_less(message)),
        ],
        Uses::Chats => vec![
            ways(
                "",
                &[(
                    Change::Inputs,
                    "a shorter context, and a smaller cache of keys and values",
                )],
            ),
            advice("a smaller model or quantisation, or fewer of its layers on the GPU"),
        ],
        Uses::Folds => folds(message),
        // Its pool, which is full, is a setting.
        Uses::Models if message.text.contains("CNMEM_STATUS_OUT_OF_MEMORY") => vec![
            step(
                "tritonserver --cuda-memory-pool-byte-size=0:536870912",
                "a larger pool on GPU 0 for inputs and outputs (the default is 64 MiB); without room there they go through \
                 the host's memory",
            ),
            ways(
                "",
                &[
                    (Change::Batch, "a smaller batch, fewer requests at once"),
                    (Change::Other, "fewer instances of a model"),
                ],
            ),
        ],
        Uses::Models if named.id == "triton-server" => triton_server(false),
        Uses::Models => vec![ways(
            "",
            &[
                (
                    Change::Batch,
                    "a smaller batch (or fewer instances of a model)",
                ),
                (Change::Inputs, "smaller inputs"),
                (Change::Bits, "a smaller model, or one in fewer bits"),
            ],
        )],
        Uses::Notebook if message.memory == Memory::Device => vec![
            ways(
                "",
                &[
                    (Change::Batch, "a smaller batch"),
                    (Change::Inputs, "smaller inputs or a smaller model"),
                    (Change::Halves, "16 bits"),
                ],
            ),
            advice("start the session again: earlier cells may still hold the GPU's memory"),
        ],
        uses => listed(usual(uses, message.memory == Memory::Device)),
    }
}

/// The steps for a use that nothing else in a text changes.
fn usual(uses: Uses, on_the_gpu: bool) -> Ways {
    match uses {
        Uses::Drives => &[
            (
                "",
                "end what holds the host's memory, or give the machine more: the driver needs it in large pieces to start a GPU",
            ),
            (
                "echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee /proc/sys/vm/compact_memory",
                "free what the kernel caches, and make large pieces of what is free; then load the driver again, or restart",
            ),
            (
                "sudo systemctl enable --now nvidia-persistenced",
                "keep the GPU started, so that the driver does not ask again at each program",
            ),
        ],
        Uses::Renders => &[
            (
                "",
                "a smaller scene: smaller textures, fewer subdivisions, particles and instances, no motion blur",
            ),
            (
                "",
                "let the CPU render it, with the host's memory, or a GPU with more; a smaller picture or tiles help only where its buffers \
                 are the most",
            ),
        ],
        Uses::Plays => &[
            (
                "",
                "lower settings: textures first, then resolution and shadows",
            ),
            (
                "",
                "close other programs that use the GPU (browsers, recorders)",
            ),
        ],
        Uses::Paints => &[
            ("", "a smaller image, fewer images or frames at once, tiles"),
            (
                "",
                "a model in fewer bits, or the program's setting for little memory",
            ),
        ],
        Uses::Simulates => &[
            ("", "a smaller system or a coarser grid, lower precision"),
            (
                "",
                "fewer tasks on each GPU or node, or more of them to share the work",
            ),
        ],
        Uses::Converts => &[(
            "",
            "smaller images or pieces of a recording, fewer at once (a batch, threads, workers); a smaller model, if it has one",
        )],
        Uses::Spark => &[
            (
                "--executor-memory 16g --conf spark.executor.memoryOverhead=4g",
                "more for each executor (--driver-memory for the driver): the heap where Java ran out, the overhead where \
                 YARN or a container's limit did",
            ),
            (
                "",
                "fewer tasks at once in an executor, or more partitions, so that each is smaller",
            ),
        ],
        Uses::Dask => &[
            (
                "LocalCluster(n_workers=2, memory_limit=\"8GB\")",
                "fewer workers with more memory each (dask worker --memory-limit)",
            ),
            (
                "",
                "smaller partitions or chunks; nothing large in one task's result",
            ),
        ],
        Uses::Notebook => &[("", NOTEBOOK)],
        Uses::Java => &[(
            "java -Xmx8g",
            "a larger heap, if the machine has it; a smaller one where the machine itself ran out",
        )],
        Uses::Node => &[(
            "NODE_OPTIONS=--max-old-space-size=8192",
            "a larger heap for Node.js, in MiB",
        )],
        Uses::Php => &[("memory_limit = 512M", "more for a script, in php.ini")],
        Uses::Builds => &[
            (
                "make -j1",
                "fewer jobs at once (ninja -j 1, MAX_JOBS=1 for PyTorch's extensions)",
            ),
            ("", "more swap while it builds"),
        ],
        Uses::Stores => &[(
            "",
            "its own limits of memory, smaller queries, fewer clients at once",
        )],
        Uses::Computes if on_the_gpu => {
            &[("", "smaller arrays, single precision, or work in parts")]
        }
        _ => &[(
            "",
            "smaller data or types, in parts; what is not needed freed first",
        )],
    }
}

/// Whether the largest buffers of a list are of all pairs of tokens: `f32[256,6321,6321]`, or both sides as one.
fn of_pairs(message: &OomMessage) -> bool {
    let mut shapes = message.tables.shapes.iter();
    shapes.any(|(shape, _)| {
        let sides = shape.split(['[', ']']).nth(1).unwrap_or_default();
        let mut sides: Vec<u64> = sides.split(',').flat_map(str::parse).collect();
        sides.sort_unstable();
        let whole = sides.last().map_or(0, |most| most.isqrt());
        sides.windows(2).any(|two| two[0] == two[1] && two[0] > 512) || whole > 2048
    })
}

/// Of proteins: the pairs of all tokens decide.
fn folds(message: &OomMessage) -> Vec<NextStep> {
    let third = |text: &str| {
        ["alphafold3", "AlphaFold3", "AlphaFold 3", "af3"]
            .iter()
            .any(|name| text.contains(name))
    };
    let of_three = third(&message.text)
        || message.traceback.iter().any(|frame| third(&frame.file))
        || message.tables.commands.iter().any(|command| third(command));
    vec![
        advice(if of_three {
            "fewer tokens: shorter chains, or the complex in parts (inputs are padded to the next of --buckets)"
        } else if of_pairs(message) {
            "fewer tokens: shorter chains, or the complex in parts. The largest buffers are of all pairs of them, so half as many need a \
             quarter, and fewer rows of the alignment change little"
        } else {
            "fewer tokens: shorter chains, or the complex in parts; fewer rows of the alignment (max_msa_clusters, max_extra_msa; \
             colabfold_batch --max-msa 256:512), which multiply them"
        }),
        step(
            format!(
                "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_UNIFIED_MEMORY=true XLA_CLIENT_MEM_FRACTION={}",
                match fraction_of_the_gpu(message).as_str() {
                    // As its own documentation has it for a GPU of 40 GB.
                    "F" if of_three => "3.2",
                    fraction => fraction,
                }
            ),
            "let the GPU use the host's memory as well, which is slow: the fraction times the GPU's memory has to be more than \
             what is needed (XLA_PYTHON_CLIENT_MEM_FRACTION in older versions)",
        ),
        advice("a GPU with more memory; fewer samples do not help, as they run one after another"),
    ]
}

/// Programs, words of their messages, and their settings, where the rest of the advice for their use fits as well.
const BESIDE_ITS_USE: &[(&str, &str, Ways)] = &[
    (
        "lmdeploy",
        "",
        &[
            (
                "--cache-max-entry-count 0.5",
                "a smaller share of the free memory for keys and values",
            ),
            ("--tp 2", "split the model over more GPUs"),
            (
                "--session-len 8192 --max-batch-size 32",
                "shorter and fewer requests",
            ),
            (
                "",
                "a smaller model, or weights in fewer bits (AWQ: lmdeploy lite auto_awq)",
            ),
        ],
    ),
    (
        "ffmpeg",
        "OpenEncodeSessionEx",
        &[
            (
                "nvidia-smi --query-gpu=encoder.stats.sessionCount --format=csv",
                "how many encodings run at once: the driver allows only a few on GPUs for consumers, and says out of memory \
                 for one more",
            ),
            (
                "",
                "fewer encodings at once, a newer driver, which allows more, or the CPU (libx264) for some",
            ),
        ],
    ),
    (
        "colmap",
        "",
        &[
            (
                "--PatchMatchStereo.max_image_size 2000",
                "dense reconstruction on smaller images (-1: their full size); its cache_size is of the host's memory",
            ),
            (
                "--SiftExtraction.max_image_size 2000 --SiftMatching.max_num_matches 16384",
                "features and matches: smaller images, fewer of them at once (--FeatureExtraction, --FeatureMatching since 3.12)",
            ),
        ],
    ),
    (
        "hashcat",
        "",
        &[
            ("-w 2", "a lighter workload: fewer candidates at once"),
            (
                "--scrypt-tmto 1",
                "of scrypt: less memory for each candidate, and more work (-n 16: fewer candidates)",
            ),
            (
                "",
                "a card with more memory, for hashes whose parameters (N, r, p; m of Argon2) need it",
            ),
        ],
    ),
];

/// The same, where they are what decides.
const OWN: &[(&str, &str, Ways)] = &[
    (
        "faiss",
        "TemporaryMemory",
        &[
            (
                "res.setTempMemory(64 << 20)",
                "a smaller scratch buffer: each StandardGpuResources reserves one, whatever the index holds",
            ),
            (
                "",
                "one StandardGpuResources for all indices, and no index kept on the GPU that is no longer searched",
            ),
        ],
    ),
    (
        "faiss",
        "",
        &[
            (
                "options.useFloat16 = True",
                "of GpuClonerOptions or an index's config: vectors in 16 bits, half of what they take",
            ),
            (
                "faiss.index_cpu_to_all_gpus(index, co=options)",
                "with options.shard = True: a part of the index on each GPU",
            ),
            (
                "",
                "an index that keeps less of each vector (IVFPQ, SQ8), or the index on the CPU",
            ),
        ],
    ),
    (
        "catboost",
        "emory_pool",
        &[
            (
                "gpu_ram_part=0.7",
                "a smaller share: it takes its pool in one piece at the start, 0.95 of the whole GPU, whatever the data",
            ),
            (
                "gpu_cat_features_storage=\"CpuPinnedMemory\"",
                "then less in it: also a smaller depth and border_count",
            ),
        ],
    ),
    (
        "exllama",
        "split",
        &[
            (
                "max_seq_len: 16384",
                "a shorter context has a smaller cache",
            ),
            ("cache_mode: Q4", "keys and values in fewer bits"),
            (
                "",
                "a smaller quantisation, less that is reserved (autosplit_reserve), or one more GPU",
            ),
        ],
    ),
    (
        "qiskit",
        "",
        &[
            ("", "fewer qubits: a state vector doubles with each"),
            (
                "AerSimulator(method=\"matrix_product_state\")",
                "a method that needs less, where the circuit suits it (also stabilizer)",
            ),
            (
                "",
                "single precision halves it; blocks over several GPUs or nodes (blocking_enable)",
            ),
        ],
    ),
    (
        "warp",
        "",
        &[
            (
                "",
                "fewer and coarser cells: count what is allocated at that line (elements, tiles or voxels times bytes)",
            ),
            (
                "wp.set_mempool_release_threshold(\"cuda:0\", 0)",
                "give back what the pool keeps but no array uses",
            ),
        ],
    ),
    (
        "cusolver",
        "STATUS_INTERNAL_ERROR",
        &[
            (
                "torch.cuda.mem_get_info()",
                "just before that call, for each GPU: whether memory is short at all",
            ),
            (
                "",
                "the same with one thread and one GPU: whether calls at the same time get in each other's way",
            ),
            (
                "torch.backends.cuda.preferred_linalg_library(\"magma\")",
                "in PyTorch: another library",
            ),
        ],
    ),
    (
        "cusolver",
        "",
        &[
            (
                "",
                "smaller inputs or fewer at once, or room left beside the framework's cache",
            ),
            (
                "torch.backends.cuda.preferred_linalg_library(\"magma\")",
                "in PyTorch: another library; calling it once before memory fills up also helps",
            ),
        ],
    ),
    (
        "text-generation-webui",
        "",
        &[
            (
                "",
                "a part of the layers on the CPU, by the loader's own setting: --pre_layer 20 (GPTQ), --n-gpu-layers 20 (GGUF, llama.cpp), \
                 --gpu-memory 5 (transformers, in GiB)",
            ),
            (
                "",
                "a model of fewer parameters or fewer bits; its weights and the cache of a context have to fit together",
            ),
        ],
    ),
    (
        "whisper",
        "",
        &[
            (
                "",
                "a smaller model (medium, small, or a distilled one), by the setting that names it: weights decide, and they stay on the GPU \
                 whatever the length of a recording",
            ),
            (
                "",
                "weights in 8 bits, where the program has a number type or quantisation to choose (int8), or the CPU; the host's memory is \
                 not used for what does not fit",
            ),
        ],
    ),
    (
        "lightgbm",
        "Memory Object Allocation Failure",
        &[
            (
                "clinfo | grep -i 'max memory allocation'",
                "the largest single buffer that OpenCL's driver allows, often a quarter or half of the memory: one that holds the whole binned \
                 table (rows times features, a byte each) fails above it, however much is free",
            ),
            (
                "",
                "a smaller table: fewer rows or features, or several models on parts of it; device_type=\"cuda\" has no such limit",
            ),
        ],
    ),
    (
        "lightgbm",
        "bad allocation",
        &[
            (
                "",
                "fewer bytes on the host: float32 in place of float64, fewer rows or columns at once, the data set made once \
                 (save_binary), the original freed (free_raw_data=True)",
            ),
            (
                "max_bin=63",
                "fewer bins: smaller histograms, of which each leaf has a set (also a smaller num_leaves, histogram_pool_size=1024)",
            ),
        ],
    ),
    (
        "lightgbm",
        "",
        &[
            (
                "max_bin=63",
                "fewer bins: smaller histograms (also a smaller num_leaves)",
            ),
            ("", "fewer rows or features at once, or device_type=\"cpu\""),
        ],
    ),
    (
        "lm-studio",
        "guardrail",
        &[
            (
                "",
                "Settings, Model loading guardrails: relaxed, off or a limit of your own, if the machine has the memory",
            ),
            (
                "--context-length 4096",
                "a shorter context, or a smaller model or quantisation",
            ),
        ],
    ),
];

/// What a table has for this program and these words.
fn own_settings(table: &[(&str, &str, Ways)], named: &Named, message: &OomMessage) -> Option<Ways> {
    let mut rows = table.iter();
    rows.find(|(id, word, _)| *id == named.id && message.text.contains(word))
        .map(|(_, _, own)| *own)
}

/// Of Triton Inference Server, whose settings stand in a model's `config.pbtxt`.
pub(super) fn triton_server(onnx: bool) -> Vec<NextStep> {
    let mut steps = vec![
        step(
            "instance_group [{ count: 1, kind: KIND_GPU }]",
            "in config.pbtxt: fewer instances of each model, each of which has its own memory",
        ),
        step(
            "max_batch_size: 8",
            "in config.pbtxt: fewer requests in one batch, or shorter inputs",
        ),
    ];
    if onnx {
        steps.insert(
            1,
            step(
                "parameters { key: \"gpu_mem_limit\" value: { string_value: \"8589934592\" } }",
                "in config.pbtxt: a limit for the model's arena (arena_extend_strategy \"1\": it grows by what is asked for)",
            ),
        );
    }
    steps
}
