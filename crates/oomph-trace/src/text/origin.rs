//! Where a line comes from, as launchers and servers say before its words: which rank, process or host.

use super::program::Program;
use super::words::{after, index, integer};

/// What the beginning of a line says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) rank: Option<u32>,
    pub(super) pid: Option<u64>,
    pub(super) host: Option<String>,
    pub(super) inside: Option<Program>,
}

/// Takes the beginnings of launchers and servers off a line: `[rank0]: `, `(VllmWorker rank=1 pid=7) `, colours.
pub(super) fn of_line(line: &str) -> (Origin, &str) {
    /// Launchers within launchers; more is no log.
    const MOST: usize = 4;
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
    // What starts vLLM may put its own words before vLLM's.
    if origin.pid.is_none()
        && let Some((_, rest)) = head.split_once(") (")
        && let Some(from) = head.get(head.len() - rest.len() - 1..)
    {
        process(from, &mut origin);
    }
    (origin, text)
}

fn strip<'a>(line: &'a str, origin: &mut Origin) -> Option<&'a str> {
    let text = line.trim_start();
    if let Some(rest) = text.strip_prefix('\u{1b}') {
        return rest.split_once('m').map(|(_, rest)| rest);
    }
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

/// The program that a file of a traceback or a line of a log belongs to.
pub(super) fn inside(text: &str) -> Option<Program> {
    [
        ("sglang", Program::Sglang),
        ("Capture cuda graph failed", Program::Sglang),
        ("vllm", Program::Vllm),
        ("onnxruntime", Program::OnnxRuntime),
        ("numba", Program::Numba),
        ("cupy", Program::Cupy),
        ("ggml", Program::LlamaCpp),
        ("llama.cpp", Program::LlamaCpp),
        ("llama_cpp", Program::LlamaCpp),
        ("external/xla/", Program::Jax),
        ("jaxlib", Program::Jax),
        ("external/org_tensorflow/", Program::Jax),
        ("tensorflow/", Program::Tensorflow),
        ("tensorflow\\", Program::Tensorflow),
        ("Could not create cudnn handle", Program::Tensorflow),
        ("THCudaCheck", Program::Pytorch),
        ("/THC/", Program::Pytorch),
        ("torch/csrc/", Program::Pytorch),
    ]
    .into_iter()
    .find(|(word, _)| text.contains(word))
    .map(|(_, program)| program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_launchers_and_servers() {
        for (line, rank, pid, host, text) in [
            ("[rank3]: words", Some(3), None, None, "words"),
            ("[default1]:words", Some(1), None, None, "words"),
            ("\u{1b}[31m[rank2]: words", Some(2), None, None, "words"),
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
                "(most recent call last)",
                None,
                None,
                None,
                "(most recent call last)",
            ),
            (
                "[2025-03-29 18:18:34] words",
                None,
                None,
                None,
                "[2025-03-29 18:18:34] words",
            ),
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
