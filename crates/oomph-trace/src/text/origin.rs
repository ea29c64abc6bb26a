//! Where a line comes from, as launchers and servers say before its words: which rank, process or host.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::program::Program;
use super::words::{Vocabulary, after, index, integer};

/// What the beginning of a line says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) rank: Option<u32>,
    pub(super) pid: Option<u64>,
    pub(super) host: Option<String>,
    pub(super) inside: Option<Program>,
}

impl Origin {
    /// Takes over what only the other one says.
    pub(super) fn complete(&mut self, other: &Self) {
        self.rank = self.rank.or(other.rank);
        self.pid = self.pid.or(other.pid);
        self.host = self.host.take().or_else(|| other.host.clone());
        self.inside = self.inside.or(other.inside);
    }
}

/// What the fields of a record say: `{"rank": 3, "hostname": "n7", "message": …}`.
pub(super) fn of_record(record: &serde_json::Value) -> Origin {
    let number = |names: &[&str]| {
        names.iter().find_map(|name| {
            let value = record.get(name)?;
            value.as_u64().or_else(|| value.as_str()?.parse().ok())
        })
    };
    let text = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| record.get(name)?.as_str())
            .filter(|text| !text.is_empty())
            .map(|text| text.chars().take(200).collect())
    };
    Origin {
        rank: number(&["rank", "global_rank", "RANK", "local_rank"])
            .and_then(|rank| u32::try_from(rank).ok()),
        pid: number(&["pid", "process_id"]),
        host: text(&["hostname", "host", "node", "node_name"]),
        inside: None,
    }
}

/// A line without what only a terminal or a page of text needs: colours, frames of boxes, marks of quotation.
pub(super) fn plain(line: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(line);
    if line.contains('\u{1b}')
        || line.contains("[0m")
        || line.contains(";0m")
        || line.contains("[1;")
    {
        text = Cow::Owned(without_colours(line));
    }
    let trimmed = text.trim();
    let boxed = trimmed.starts_with(['│', '┃', '║']);
    let quoted = trimmed.starts_with("> ");
    if boxed || quoted {
        let inner = trimmed
            .trim_matches(['│', '┃', '║'])
            .trim_start_matches("> ")
            .trim_end();
        return Cow::Owned(inner.to_owned());
    }
    text
}

/// `\x1b[1;36m`, also where the first character was lost on the way.
fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['\u{1b}', '[']) {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let escape = tail.strip_prefix('\u{1b}');
        let code = escape.unwrap_or(tail).strip_prefix('[');
        let length = code.map_or(0, |code| {
            code.bytes()
                .take_while(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b'?'))
                .count()
        });
        let end = code.and_then(|code| code.as_bytes().get(length));
        rest = match (escape, code, end) {
            (Some(_), Some(code), Some(end)) if end.is_ascii_alphabetic() => &code[length + 1..],
            (None, Some(code), Some(b'm'))
                if length > 0 && !code[length + 1..].starts_with(']') =>
            {
                &code[length + 1..]
            }
            (Some(escape), _, _) => escape,
            _ => {
                out.push('[');
                &tail[1..]
            }
        };
    }
    out.push_str(rest);
    out
}

/// Takes the beginnings of launchers and servers off a line: `[rank0]: `, `(VllmWorker rank=1 pid=7) `, colours.
pub(super) fn of_line(line: &str) -> (Origin, &str) {
    /// Launchers within launchers; more is no log.
    const MOST: usize = 6;
    let mut origin = Origin::default();
    let mut text = line.trim_start_matches(|c: char| c.is_whitespace() && c != ' ');
    for _ in 0..MOST {
        let Some(rest) = strip(text, &mut origin) else {
            break;
        };
        text = rest.strip_prefix(' ').unwrap_or(rest);
    }
    // TensorRT-LLM names the rank behind the time.
    let head = text.get(..text.floor_char_boundary(80)).unwrap_or_default();
    origin.rank = after(head, "] [RANK ").and_then(index).or(origin.rank);
    if origin.inside.is_none() && is_vllms(head) {
        origin.inside = Some(Program::Vllm);
    }
    // What starts vLLM may put its own words before vLLM's.
    if origin.pid.is_none()
        && let Some((_, rest)) = head.split_once(") (")
        && let Some(from) = head.get(head.len() - rest.len() - 1..)
    {
        process(from, &mut origin);
    }
    (origin, text)
}

/// Whether a line begins as vLLM's logger does: `ERROR 04-27 16:28:02 [engine.py:448] `, with or without the bracket.
fn is_vllms(head: &str) -> bool {
    let mut words = head.split_whitespace();
    let level = words
        .next()
        .is_some_and(|word| ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"].contains(&word));
    let mut numbers = |between: char, count: usize| {
        words.next().is_some_and(|word| {
            let digits = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
            word.split(between).count() == count && word.split(between).all(digits)
        })
    };
    level
        && numbers('-', 2)
        && numbers(':', 3)
        && words
            .next()
            .is_some_and(|word| word.contains(".py:") && word.ends_with(']'))
}

fn strip<'a>(line: &'a str, origin: &mut Origin) -> Option<&'a str> {
    let text = line.trim_start();
    // A launcher's column of output.
    if let Some(rest) = text.strip_prefix("| ")
        && rest.trim_start().starts_with(['(', '['])
    {
        return Some(rest);
    }
    for marker in ["[rank", "[default"] {
        if let Some(rest) = text.strip_prefix(marker)
            && let Some((digits, rest)) = rest.split_once("]:")
            && let Ok(rank) = digits.parse()
        {
            origin.rank = Some(rank);
            return Some(rest);
        }
    }
    // mpirun --tag-output: `[1,3]<stderr>:`.
    if let Some(rest) = text.strip_prefix("[1,")
        && let Some((rank, rest)) = rest.split_once("]<std")
        && let Ok(rank) = rank.parse()
    {
        origin.rank = Some(rank);
        return rest.split_once(':').map(|(_, rest)| rest);
    }
    let head = text.get(..text.floor_char_boundary(80))?;
    if let Some(length) = process(head, origin) {
        return text.get(length..);
    }
    if let Some(rest) = time(text) {
        return Some(rest);
    }
    // Docker Compose and its like have a column of names.
    if let Some((name, rest)) = head.split_once(" | ")
        && let name = name.trim_end()
        && name.len() > 1
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    {
        return text.get(head.len() - rest.len()..);
    }
    // `kubectl logs --prefix`: `[pod/trainer-0/main] `.
    if let Some(rest) = head.strip_prefix("[pod/")
        && let Some((name, rest)) = rest.split_once("] ")
    {
        origin.host = name.split('/').next().map(str::to_owned);
        return text.get(head.len() - rest.len()..);
    }
    // Containers' own logs: `stderr F `.
    for stream in ["stderr F ", "stdout F ", "stderr P ", "stdout P "] {
        if let Some(rest) = text.strip_prefix(stream) {
            return Some(rest);
        }
    }
    // SGLang: `[2025-03-29 18:18:34 DP0 TP1] `.
    if let Some(words) = head.strip_prefix("[20")
        && let Some((words, _)) = words.split_once(']')
        && let Some(rank) = after(words, " TP").and_then(index)
    {
        origin.rank = Some(rank);
        origin.inside = Some(Program::Sglang);
        return text.get(words.len() + "[20".len() + 1..);
    }
    // pdsh, DeepSpeed and SLURM name the host, `node-13: `, `slurmstepd-n7: `; srun --label the task, `3: `.
    let (name, _) = head.split_once(": ")?;
    let rest = text.get(name.len() + 2..)?;
    if !name.is_empty() && name.len() <= 4 && name.bytes().all(|byte| byte.is_ascii_digit()) {
        origin.rank = index(name);
        return Some(rest);
    }
    let host = name.contains('-')
        && name.bytes().next()?.is_ascii_lowercase()
        && name.bytes().last()?.is_ascii_digit()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if host {
        let host = name.strip_prefix("slurmstepd-").unwrap_or(name);
        origin.host = Some(host.to_owned());
        return Some(rest);
    }
    None
}

/// What follows a time in the form of ISO 8601, in brackets or not.
fn time(text: &str) -> Option<&str> {
    let open = text.strip_prefix('[');
    let rest = open.unwrap_or(text);
    let digits = |text: &str, at: std::ops::Range<usize>| {
        text.get(at)
            .is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let date = digits(rest, 0..4)
        && digits(rest, 5..7)
        && digits(rest, 8..10)
        && matches!(rest.as_bytes().get(4), Some(b'-' | b'/'))
        && matches!(rest.as_bytes().get(10), Some(b'T' | b' '));
    let clock = if date { rest.get(11..)? } else { open? };
    if !(digits(clock, 0..2) && digits(clock, 3..5) && clock.as_bytes().get(2) == Some(&b':')) {
        return None;
    }
    let length = clock
        .bytes()
        .take_while(|byte| {
            byte.is_ascii_digit() || matches!(byte, b':' | b'.' | b',' | b'+' | b'-' | b'Z')
        })
        .count();
    let rest = clock.get(length..)?;
    if open.is_some() {
        // Others put the level or the rank into the same brackets.
        return rest.trim_start_matches(" UTC").strip_prefix(']');
    }
    rest.starts_with(' ').then_some(rest)
}

/// `(VllmWorker rank=7 pid=10948) `: the process that a server or Ray names first; how long that is.
fn process(head: &str, origin: &mut Origin) -> Option<usize> {
    let (words, _) = head.strip_prefix('(')?.split_once(')')?;
    let pid = after(words, "pid=").and_then(integer)?;
    if !words.starts_with(char::is_alphabetic) {
        return None;
    }
    origin.pid = Some(pid);
    if [
        "VllmWorker",
        "EngineCore",
        "Worker",
        "ApiServer",
        "APIServer",
    ]
    .iter()
    .any(|name| words.starts_with(name))
    {
        origin.inside = Some(Program::Vllm);
    }
    origin.rank = after(words, "rank=")
        .or_else(|| after(words, "TP"))
        .and_then(index)
        .or(origin.rank);
    Some(words.len() + 2)
}

/// The worker that Ray names in an error which its driver relays, and its address.
pub(super) fn of_ray(line: &str) -> Option<(u64, Option<String>)> {
    let rest = after(line, "ray::").and_then(|rest| after(rest, "(pid="))?;
    let address = after(rest, "ip=").and_then(|rest| rest.split([',', ')']).next());
    Some((integer(rest)?, address.map(str::to_owned)))
}

/// Words of files and of lines that name a program, the more special ones first.
const PROGRAMS: &[(Program, &[&str])] = &[
    (
        Program::ComfyUi,
        &[
            "ComfyUI",
            "comfy/model",
            "comfy\\model",
            "KSampler",
            "Got an OOM, unloading all",
            "Prompt executed in",
        ],
    ),
    (
        Program::StableDiffusion,
        &[
            "stable-diffusion-webui",
            "stable_diffusion_webui",
            "webui",
            "sdnext",
            "modules/processing",
            "modules\\processing",
            "Easy Diffusion",
            "modules_forge",
            "ERROR lora ",
            "Patching LoRAs",
            "[GPU Setting]",
            "modules/txt2img",
            "modules/img2img",
            "txt2img(",
            "img2img(",
            "in txt2img",
            "in img2img",
            "hires.fix",
            "hires fix",
            "high res fix",
            "instant id",
            "instantid",
        ],
    ),
    (
        Program::TextGenerationInference,
        &[
            "text_generation_server",
            "text_generation_client",
            "text_generation_launcher",
        ],
    ),
    (Program::Sglang, &["sglang", "Capture cuda graph failed"]),
    (
        Program::Vllm,
        &[
            "cumem_allocator",
            "vllm",
            "gpu_memory_utilization",
            "gpu-memory-utilization",
            "multiproc_worker_utils",
            "determine_num_available_blocks",
            "enginecore",
        ],
    ),
    (
        Program::Relion,
        &[
            "relion",
            "RELION",
            "cuda_mem_utils.h",
            "cudaCustomAllocator",
        ],
    ),
    (
        Program::Paddle,
        &["paddlepaddle", "paddle/", "paddle::", "paddleocr"],
    ),
    (Program::Xgboost, &["xgboost"]),
    (
        Program::CTranslate2,
        &["ctranslate2", "faster_whisper", "faster-whisper"],
    ),
    (Program::TensorRt, &["[TensorRT]", "[TRT]", "trtexec"]),
    (Program::OnnxRuntime, &["onnxruntime"]),
    (Program::Nccl, &["NCCL Init failed"]),
    (Program::TensorRt, &["nvinfer", "rtSafe", "tactic 0x"]),
    (Program::Numba, &["numba"]),
    (Program::Cupy, &["cupy"]),
    (
        Program::Ollama,
        &[
            "ollama",
            "llama runner",
            "source=server.go",
            "source=sched.go",
            "source=memory.go",
            "source=gpu.go",
            "source=runner.go",
        ],
    ),
    (Program::LlamaCpp, &["ggml", "llama.cpp", "llama_cpp"]),
    (
        Program::Jax,
        &[
            "external/xla/",
            "jaxlib",
            "jax.errors",
            "pjrt_stream_executor",
            "external/org_tensorflow/",
            // A kernel of XLA's.
            "INTERNAL: Failed to launch CUDA kernel: ",
        ],
    ),
    (
        Program::Tensorflow,
        &[
            "tensorflow/",
            "tensorflow\\",
            "Could not create cudnn handle",
        ],
    ),
    // The same allocator in JAX, where no file of TensorFlow's is named.
    (Program::Jax, &["gpu_cudamallocasync_allocator"]),
    (
        Program::Pytorch,
        &[
            "torch.OutOfMemoryError",
            "torch.cuda.OutOfMemoryError",
            "THCudaCheck",
            "/THC/",
            "torch/csrc/",
        ],
    ),
];

/// The program that a file of a traceback or a line of a log belongs to.
pub(super) fn inside(text: &str) -> Option<Program> {
    static WORDS: LazyLock<Vocabulary<Program>> =
        LazyLock::new(|| Vocabulary::new(PROGRAMS.iter().copied(), true));
    // Torch for Lua has the same library below it.
    let found = WORDS
        .first(text)
        .filter(|program| *program != Program::Pytorch || !text.contains(".lua:"))?;
    // One for language models has a name that is alike.
    let chats = ["text-generation-webui", "oobabooga"];
    if found == Program::StableDiffusion && chats.iter().any(|name| text.contains(name)) {
        return super::named::of(text);
    }
    Some(found)
}

/// A file's path within the library that it belongs to: the names of an environment and of the folders around it are
/// the user's own.
pub(super) fn within_library(file: &str) -> &str {
    let file = ["-packages/", "-packages\\"]
        .iter()
        .find_map(|folder| file.rsplit_once(folder))
        .map_or(file, |(_, rest)| rest);
    let standard = |marker: &str| file.rsplit_once(marker).map(|(_, rest)| rest);
    standard("/lib/python3")
        .or_else(|| standard("\\lib\\python3"))
        .unwrap_or(file)
}

/// The program whose files most frames of a traceback are in; of several the one that called the others.
pub(super) fn of_frames<'a>(frames: impl DoubleEndedIterator<Item = &'a str>) -> Option<Program> {
    let mut votes: Vec<(Program, usize)> = Vec::new();
    for program in frames.rev().filter_map(|file| inside(within_library(file))) {
        match votes.iter_mut().find(|(known, _)| *known == program) {
            Some((_, count)) => *count += 1,
            None => votes.push((program, 1)),
        }
    }
    votes
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(program, _)| program)
}

/// What runs containers, by its words.
pub(super) fn container(text: &str) -> Option<Program> {
    const WORDS: [(Program, &[&str]); 2] = [
        (
            Program::Kubernetes,
            &[
                "kubectl",
                "kubernetes",
                "kubelet",
                "laststate",
                "crashloopbackoff",
                "k8s",
                " pod ",
                "pods ",
                "possible container oom",
            ],
        ),
        (
            Program::Docker,
            &["docker", "podman", "gitlab-runner", "container "],
        ),
    ];
    let lower = text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let found = WORDS.iter().find(|(_, words)| says(words))?;
    Some(found.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_boxes_and_quotes_are_no_words() {
        for (line, text) in [
            ("\u{1b}[1;36m(W pid=1)\u{1b}[0;0m words", "(W pid=1) words"),
            ("[1;36m(W pid=1)[0;0m words", "(W pid=1) words"),
            ("│ words   │", " words"),
            ("> words", "words"),
            ("[5m] [0m", "[5m] "),
            ("a[1;] = 2", "a[1;] = 2"),
        ] {
            assert_eq!(plain(line), text);
        }
    }

    #[test]
    fn most_frames_decide_the_program_and_no_folder_of_an_environment() {
        for (files, program) in [
            (
                &[
                    "/env/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py",
                    "/env/lib/python3.12/site-packages/torch/cuda/__init__.py",
                    "/env/lib/python3.12/site-packages/vllm/utils.py",
                ][..],
                Some(Program::Sglang),
            ),
            (
                &[
                    "/conda/envs/vllm/lib/python3.10/site-packages/transformers/trainer.py",
                    "/conda/envs/vllm/lib/python3.10/threading.py",
                ],
                None,
            ),
            (
                &[
                    "/home/me/stable-diffusion-webui/venv/lib/python3.8/site-packages/accelerate/accelerator.py",
                ],
                None,
            ),
            (&["/home/me/ComfyUI/execution.py"], Some(Program::ComfyUi)),
        ] {
            assert_eq!(of_frames(files.iter().copied()), program, "{files:?}");
        }
    }

    #[test]
    fn lines_of_vllms_logger_are_vllms() {
        for (line, program) in [
            (
                "ERROR 04-27 16:28:02 [engine.py:448] words",
                Some(Program::Vllm),
            ),
            (
                "INFO 06-21 21:40:12 llm_engine.py:128] # GPU blocks: 3",
                Some(Program::Vllm),
            ),
            ("ERROR 2024-04-27 16:28:02 [engine.py:448] words", None),
            ("INFO 06-21 21:40:12 words", None),
        ] {
            assert_eq!(of_line(line).0.inside, program, "{line}");
        }
    }

    #[test]
    fn beginnings_of_launchers_and_servers() {
        for (line, rank, pid, host, text) in [
            ("[rank3]: words", Some(3), None, None, "words"),
            ("[default1]:words", Some(1), None, None, "words"),
            ("[1,5]<stderr>:words", Some(5), None, None, "words"),
            (
                "(VllmWorker rank=7 pid=10948) words",
                Some(7),
                Some(10948),
                None,
                "words",
            ),
            (
                "(Worker_TP1 pid=226322) words",
                Some(1),
                Some(226_322),
                None,
                "words",
            ),
            (
                "(EngineCore_DP0 pid=223840) words",
                None,
                Some(223_840),
                None,
                "words",
            ),
            (
                "[2025-03-29 18:18:34 TP0] words",
                Some(0),
                None,
                None,
                "words",
            ),
            (
                "[2025-03-29 18:18:34 DP1 TP5] words",
                Some(5),
                None,
                None,
                "words",
            ),
            ("gpu-q-13: words", None, None, Some("gpu-q-13"), "words"),
            ("slurmstepd-n7: words", None, None, Some("n7"), "words"),
            ("12: words", Some(12), None, None, "words"),
            (
                "[07/08/2025-19:47:15] [TRT-LLM] [RANK 3] [E] words",
                Some(3),
                None,
                None,
                "[07/08/2025-19:47:15] [TRT-LLM] [RANK 3] [E] words",
            ),
            (
                "RuntimeError: words",
                None,
                None,
                None,
                "RuntimeError: words",
            ),
            ("2025-03-29: words", None, None, None, "2025-03-29: words"),
            (
                "2024-05-01T12:00:00.5Z stderr F [rank3]: words",
                Some(3),
                None,
                None,
                "words",
            ),
            ("worker-1  | [rank1]: words", Some(1), None, None, "words"),
            (
                "[pod/trainer-0/main] words",
                None,
                None,
                Some("trainer-0"),
                "words",
            ),
            (
                "(most recent call last)",
                None,
                None,
                None,
                "(most recent call last)",
            ),
            ("[2025-03-29 18:18:34] words", None, None, None, "words"),
        ] {
            let (origin, rest) = of_line(line);
            assert_eq!(
                (origin.rank, origin.pid, origin.host.as_deref(), rest),
                (rank, pid, host, text),
                "{line}"
            );
        }
    }
}
