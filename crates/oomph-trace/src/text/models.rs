//! The models that a text names, by what it says of their size: the parameters in a name (`Llama-2-70b-chat`, `8x7B`), or
//! as a program counts them, and the bits of each weight.

/// Models of a text that are kept.
const MOST: usize = 16;
/// A longer line is data.
const LONGEST: usize = 8 << 10;
/// Of a mixture of experts what is not shared, about: eight times 7B have 46.7B.
const SHARED: f64 = 5.0 / 6.0;

/// A model whose size a text tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The line.
    pub line: usize,
    /// The word that names it, or the words that count it.
    pub name: String,
    /// Its parameters.
    pub parameters: u64,
    /// The bits of each weight, where its name says so.
    pub bits: Option<u32>,
    /// How sure it is that the program ran this one.
    rank: Rank,
}

/// What a model's size was read from, the surest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Named,
    /// The line sets which model is to be run.
    Set,
    Counted,
}

/// Words of a line that sets a model.
const SETS: [&str; 15] = [
    "model=",
    "model =",
    "--model",
    "model_id",
    "model_name",
    "model_path",
    "model-path",
    "base_model",
    "from_pretrained",
    "vllm serve",
    "ollama run",
    " -m ",
    "llm(",
    "general.name",
    "\"model\"",
];

/// Words of a line about another model than the one that is run.
const OTHERS: [&str; 3] = ["draft", "speculative", "reward_model"];

/// How many bits the words of a name mean; of GGUF what its scales add is counted.
const BITS: [(u32, &[&str]); 8] = [
    (
        4,
        &[
            "awq", "gptq", "int4", "4bit", "4-bit", "w4a16", "nf4", "fp4", "mxfp4",
        ],
    ),
    (8, &["fp8", "int8", "8bit", "8-bit", "w8a8"]),
    (9, &["q8_0", "q8."]),
    (7, &["q6_k", "q6."]),
    (6, &["q5_", "q5."]),
    (5, &["q4_", "q4.", "iq4"]),
    (4, &["q3_", "iq3"]),
    (3, &["q2_", "iq2"]),
];

/// Words before which, or behind which, a program counts the parameters of a model.
const COUNTS: [&str; 9] = [
    "all params:",
    "total params:",
    "total parameters:",
    "model params",
    "number of parameters",
    "num_parameters",
    "parameters:",
    "total params",
    "total parameters",
];

/// Families whose size may stand apart: `Llama 3 70B`.
const FAMILIES: [&str; 14] = [
    "llama", "qwen", "mistral", "mixtral", "gemma", "falcon", "deepseek", "vicuna", "alpaca",
    "baichuan", "pythia", "internlm", "yi", "phi",
];

/// Adds the models of a line.
pub(super) fn read(line: &str, number: usize, found: &mut Vec<Model>) {
    if line.len() > LONGEST || found.len() >= MOST || !line.contains(['b', 'B', 'm', 'M']) {
        return;
    }
    let lower = line.to_ascii_lowercase();
    if OTHERS.iter().any(|word| lower.contains(word)) {
        return;
    }
    let mut add = |name: &str, parameters: u64, rank| {
        let bits = bits(&name.to_ascii_lowercase());
        let known = |model: &&mut Model| model.parameters == parameters && model.bits == bits;
        if let Some(model) = found.iter_mut().find(known) {
            model.rank = model.rank.max(rank);
        } else if found.len() < MOST {
            let name = super::cut(name, super::MAX_RECENT / 4);
            found.push(Model {
                line: number,
                name,
                parameters,
                bits,
                rank,
            });
        }
    };
    if let Some(parameters) = counted(&lower) {
        add(line.trim(), parameters, Rank::Counted);
        return;
    }
    let sets = SETS.iter().any(|word| lower.contains(word));
    let rank = if sets { Rank::Set } else { Rank::Named };
    let ends = |c: char| c.is_whitespace() || "\"'`()[]{},;=<>|*".contains(c);
    let words: Vec<&str> = lower.split(ends).filter(|word| !word.is_empty()).collect();
    for (at, word) in words.iter().enumerate() {
        let before = &words[at.saturating_sub(2)..at];
        let next = words.get(at + 1).copied().unwrap_or_default();
        let spoken = before
            .iter()
            .any(|word| FAMILIES.iter().any(|name| word.starts_with(name)))
            || ["model", "param", "llm"]
                .iter()
                .any(|name| next.starts_with(name));
        if let Some(parameters) = of_name(word, spoken) {
            add(word, parameters, rank);
        }
    }
}

/// The one that the program ran, where the text leaves no doubt about its size.
pub(super) fn chosen(found: &[Model]) -> Option<&Model> {
    let best = found.iter().map(|model| model.rank).max()?;
    let mut models = found.iter().filter(|model| model.rank == best);
    let first = models.next()?;
    if best == Rank::Counted {
        // Of the trained parameters and all, all.
        return found
            .iter()
            .filter(|model| model.rank == best)
            .max_by_key(|model| model.parameters);
    }
    models
        .all(|model| model.parameters == first.parameters)
        .then_some(first)
}

fn bits(name: &str) -> Option<u32> {
    let mut known = BITS.iter();
    known.find_map(|(bits, words)| {
        words
            .iter()
            .any(|word| name.contains(word))
            .then_some(*bits)
    })
}

/// `llama-2-70b-chat`, `mixtral-8x7b`, `opt-125m`, or `70b` alone where the words around it speak of a model.
fn of_name(word: &str, spoken: bool) -> Option<u64> {
    let bytes = word.as_bytes();
    let boundary = |byte: Option<&u8>| byte.is_none_or(|byte| b"-_/.:\\".contains(byte));
    let named = word.bytes().filter(u8::is_ascii_alphabetic).count() > 2;
    word.match_indices(['b', 'm']).find_map(|(at, unit)| {
        let head = &word[..at];
        let rest = head.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == 'x');
        let number = head[rest.len()..].trim_start_matches('.');
        let start = at - number.len();
        let before = start.checked_sub(1).and_then(|before| bytes.get(before));
        let whole = boundary(bytes.get(at + 1)) && boundary(before);
        let apart = start == 0 && at + 1 == word.trim_end_matches(['.', ':']).len();
        if number.is_empty() || !whole || !(spoken || (named && !apart)) {
            return None;
        }
        let (times, size) = number.split_once('x').unwrap_or(("1", number));
        let times: f64 = times
            .parse()
            .ok()
            .filter(|times| (1.0..=512.0).contains(times))?;
        let size: f64 = size.parse().ok()?;
        let (unit, range) = if unit == "b" {
            (1e9, 0.05..=2000.0)
        } else {
            (1e6, 10.0..=999.0)
        };
        let shared = if times > 1.0 { SHARED } else { 1.0 };
        range
            .contains(&size)
            .then_some((times * size * unit * shared) as u64)
    })
}

/// `all params: 11851970560`, `model params = 235.094 B`, `12.4 M    Total params`.
fn counted(line: &str) -> Option<u64> {
    let (at, words) = COUNTS
        .iter()
        .find_map(|words| Some((line.find(words)?, words)))?;
    let (head, rest) = (&line[..at], &line[at + words.len()..]);
    if head.ends_with("trainable ") || head.ends_with("non-trainable ") {
        return None;
    }
    let rest = rest.trim_start_matches([' ', ':', '=', '\t']);
    let end = rest
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',' || c == '_'))
        .unwrap_or(rest.len());
    let (number, unit) = if end > 0 {
        (&rest[..end], rest[end..].trim_start())
    } else {
        let mut words = head.split_whitespace();
        (words.next()?, words.next().unwrap_or_default())
    };
    let unit = match unit.split(|c: char| !c.is_ascii_alphabetic()).next()? {
        "b" => 1e9,
        "m" => 1e6,
        "k" => 1e3,
        _ => 1.0,
    };
    let number: f64 = number
        .trim_end_matches(['.', ','])
        .replace([',', '_'], "")
        .parse()
        .ok()?;
    (1e6..=2e12)
        .contains(&(number * unit))
        .then_some((number * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Option<(u64, Option<u32>)> {
        let mut found = Vec::new();
        for (number, line) in text.lines().enumerate() {
            read(line, number + 1, &mut found);
        }
        chosen(&found).map(|model| (model.parameters, model.bits))
    }

    #[test]
    fn sizes_of_models() {
        let billions = |count: f64| (count * 1e9) as u64;
        for (text, expected) in [
            (
                "model_id: \"meta-llama/Meta-Llama-3-70B-Instruct\"",
                Some((billions(70.0), None)),
            ),
            (
                "LLM(model='TheBloke/Llama-2-70B-AWQ')",
                Some((billions(70.0), Some(4))),
            ),
            (
                "vllm serve mistralai/Mixtral-8x22B-v0.1",
                Some((billions(146.0) + 666_666_666, None)),
            ),
            (
                "ollama run llama3.1:8b-instruct-q4_0",
                Some((billions(8.0), Some(5))),
            ),
            (
                "Qwen3-235B-A22B-mix-IQ3_K-00001-of-00003.gguf",
                Some((billions(235.0), Some(4))),
            ),
            (
                "llm_load_print_meta: model params = 235.094 B",
                Some((235_094_000_000, None)),
            ),
            (
                "trainable params: 5898240 || all params: 11851970560 || trainable%: 0.05",
                Some((11_851_970_560, None)),
            ),
            (
                "Model: GPT-2 large, Parameters: 774,030,080",
                Some((774_030_080, None)),
            ),
            ("12.4 M    Total params", Some((12_400_000, None))),
            ("I load Llama 3 70B in one go", Some((billions(70.0), None))),
            (
                "model='/models/facebook_opt-125m'",
                Some((125_000_000, None)),
            ),
            (
                "--model big-13b\ncompared with other-7b",
                Some((billions(13.0), None)),
            ),
            // Two, and nothing says which one was run.
            ("big-13b or small-7b", None),
            ("optim=\"adamw_8bit\", 24B each, 0x7b, 4b-2c", None),
            ("took 70B from device", None),
            ("use the draft model small-1b", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }
}
