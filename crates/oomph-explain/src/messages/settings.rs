//! Steps beyond what a text has set already: what is on is not advised again, and what is set is taken further.

use oomph_trace::text::{OomMessage, Program, Setting, Sign, canonical};

use super::next::{NextStep, advice};

/// Settings that help by more of them; all other numbers help by less.
const RAISED: [&str; 6] = [
    "tensor_parallel_size",
    "WORKSPACE",
    "LIMIT",
    "cpu_offload_gb",
    "conservativeness",
    "THRESHOLD",
];

/// What the text sets, and the GPUs that a server's ranks in its lines show it to use.
pub(super) fn shown(message: &OomMessage) -> Vec<Setting> {
    let mut set = message.settings.clone();
    let name = canonical("tensor_parallel_size");
    let ranks = message.ranks.len();
    if message.program.serves() && ranks > 1 && !set.iter().any(|setting| setting.name == name) {
        set.push(Setting {
            written: name.clone(),
            name,
            value: Some(ranks.to_string()),
        });
    }
    set
}

/// The steps without what is on already, with values beyond those that are set; what was left out is said last.
pub(super) fn beyond(steps: Vec<NextStep>, set: &[Setting]) -> Vec<NextStep> {
    let mut left_out = Vec::new();
    let mut kept: Vec<NextStep> = steps
        .into_iter()
        .filter_map(|step| {
            let Some(command) = step
                .command
                .as_deref()
                .filter(|command| is_settings(command))
            else {
                return Some(step);
            };
            let found = further(command, step.computed, set, &mut left_out)?;
            let what = if found.now.is_empty() {
                step.what.clone()
            } else {
                format!("{} (now: {})", step.what, found.now.join(", "))
            };
            Some(NextStep {
                what,
                command: Some(found.command),
                ..step
            })
        })
        .collect();
    left_out.sort_unstable();
    left_out.dedup();
    if !left_out.is_empty() {
        kept.push(advice(format!(
            "already on, by the text: {}",
            left_out.join(", ")
        )));
    }
    kept
}

/// A command beyond what is set.
struct Further {
    command: String,
    /// What is set now.
    now: Vec<String>,
}

/// Whether a command is made of settings, and no program's call.
fn is_settings(command: &str) -> bool {
    command
        .split_whitespace()
        .next()
        .is_some_and(|word| word.starts_with('-') || is_variable(word))
}

fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.len() > 2
            && name
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

/// The command with values beyond those that are set; `None` if nothing of it is left.
fn further(
    command: &str,
    computed: bool,
    set: &[Setting],
    left_out: &mut Vec<String>,
) -> Option<Further> {
    let mut words = command.split_whitespace().peekable();
    let mut kept: Vec<String> = Vec::new();
    let mut settings = 0;
    let mut now = Vec::new();
    while let Some(word) = words.next() {
        let flag = word.starts_with('-');
        if !flag && !is_variable(word) {
            kept.push(word.to_owned());
            continue;
        }
        let (name, joined) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let value = joined.or_else(|| {
            flag.then(|| words.next_if(|next| !next.starts_with('-')))
                .flatten()
        });
        let canonical = canonical(name);
        // What `--disable-cuda-graph` switches off has no size to set.
        let off = |setting: &Setting| {
            let name = setting.name.strip_prefix("disable_");
            name.is_some_and(|name| canonical.starts_with(name))
        };
        if set.iter().any(off) {
            continue;
        }
        let found = set.iter().find(|setting| setting.name == canonical);
        // As the program that is run calls it.
        let name = found
            .map(|found| found.written.as_str())
            .filter(|written| flag && written.starts_with('-'))
            .unwrap_or(name);
        let shown = |value: Option<&str>| match value {
            Some(value) if joined.is_some() => format!("{name}={value}"),
            Some(value) => format!("{name} {value}"),
            None => name.to_owned(),
        };
        let Some(found) = found.filter(|_| !computed) else {
            settings += 1;
            kept.push(shown(value));
            continue;
        };
        if let Some(value) = beyond_value(&canonical, value, found.value.as_deref()) {
            settings += 1;
            kept.push(shown(Some(&value)));
            now.extend(found.value.clone());
        } else {
            left_out.push(shown(found.value.as_deref().filter(|_| value.is_some())));
        }
    }
    (settings > 0).then(|| Further {
        command: kept.join(" "),
        now,
    })
}

/// A value that helps beyond the one that is set; `None` if there is none.
fn beyond_value(name: &str, advised: Option<&str>, set: Option<&str>) -> Option<String> {
    /// A share from which on it is raised and not lowered.
    const RAISES: f64 = 0.89;
    /// Less of a GPU is of no use.
    const LEAST: f64 = 0.4;
    let advised = advised?;
    // One way to have fewer bits is as good as another.
    if name == "quantization" {
        return None;
    }
    let Some(set) = set else {
        return Some(advised.to_owned());
    };
    let (Ok(wanted), Ok(current)) = (advised.parse::<f64>(), set.parse::<f64>()) else {
        return (advised != set).then(|| advised.to_owned());
    };
    let raised = RAISED.iter().any(|part| name.contains(part));
    if wanted < 1.0 && current <= 1.0 {
        let better = if wanted > RAISES {
            current < wanted
        } else {
            current > wanted
        };
        if better {
            return Some(advised.to_owned());
        }
        let lower = current - 0.1;
        return (wanted <= RAISES && lower >= LEAST).then(|| format!("{lower:.2}"));
    }
    if raised {
        return Some(if current < wanted {
            advised.to_owned()
        } else {
            (current * 2.0).to_string()
        });
    }
    if current > wanted {
        return Some(advised.to_owned());
    }
    let half = (current / 2.0).floor();
    (half >= 1.0).then(|| half.to_string())
}

/// Whether vLLM is called from Python, where its settings are keywords: `LLM(model, gpu_memory_utilization=0.9)`.
pub(super) fn are_keywords(message: &OomMessage) -> bool {
    let serves = |program| program == Some(Program::Vllm);
    (serves(Some(message.program)) || serves(message.inside))
        && message.tables.shows(Sign::CallsEngine)
        && !message
            .settings
            .iter()
            .any(|setting| setting.written.starts_with("--"))
}

/// Options of a command as keywords: `--max-model-len 4096 --enforce-eager` is `max_model_len=4096, enforce_eager=True`.
pub(super) fn as_keywords(command: &str) -> String {
    if !command.starts_with("--") || command.contains('{') {
        return command.to_owned();
    }
    let options = command.split("--").filter(|option| !option.is_empty());
    let keywords: Vec<String> = options
        .map(|option| {
            let (name, value) = option
                .trim()
                .split_once([' ', '='])
                .unwrap_or((option.trim(), "True"));
            let text = value.starts_with(|c: char| c.is_ascii_lowercase());
            let quote = if text { "\"" } else { "" };
            format!("{}={quote}{value}{quote}", name.replace('-', "_"))
        })
        .collect();
    keywords.join(", ")
}

/// The words of ROCm for those of CUDA.
pub(super) fn on_amd(text: &str) -> String {
    text.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
        .replace("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
}

#[cfg(test)]
mod tests {
    use super::super::next::step;
    use super::*;

    #[test]
    fn options_are_keywords_in_python() {
        assert_eq!(
            as_keywords("--enforce-eager --max-model-len 4096"),
            "enforce_eager=True, max_model_len=4096"
        );
        assert_eq!(
            as_keywords("--kv-cache-dtype fp8"),
            "kv_cache_dtype=\"fp8\""
        );
        assert_eq!(
            as_keywords("nvidia-smi --list-gpus"),
            "nvidia-smi --list-gpus"
        );
    }

    #[test]
    fn what_is_set_is_taken_further() {
        let set: Vec<Setting> = [
            ("tensor_parallel_size", Some("2")),
            ("enforce_eager", None),
            ("gpu_memory_utilization", Some("0.8")),
            ("max_model_len", Some("32768")),
            ("n_gpu_layers", Some("12")),
            ("OLLAMA_FLASH_ATTENTION", Some("1")),
            ("disable_cuda_graph", None),
        ]
        .map(|(name, value)| Setting {
            name: name.to_owned(),
            written: name.to_owned(),
            value: value.map(str::to_owned),
        })
        .into();
        let steps = [
            "--tp 2",
            "--enforce-eager",
            "--gpu-memory-utilization 0.85",
            "--max-model-len 8192",
            "-ngl 20",
            "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
            "--cuda-graph-max-bs 16",
            "oomph run train.py",
        ]
        .map(|command| step(command, "less"));
        let found = beyond(steps.into(), &set);
        let commands: Vec<&str> = found
            .iter()
            .filter_map(|step| step.command.as_deref())
            .collect();
        assert_eq!(
            commands,
            [
                "--tp 4",
                "--gpu-memory-utilization 0.70",
                "--max-model-len 8192",
                "-ngl 6",
                "OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
                "oomph run train.py"
            ]
        );
        assert_eq!(
            found.last().map(|step| step.what.as_str()),
            Some("already on, by the text: --enforce-eager, OLLAMA_FLASH_ATTENTION=1")
        );
        assert!(found.iter().any(|step| step.what == "less (now: 32768)"));
    }
}
