//! The names of graphics cards in a text: `RTX3090`, `a 3080 ti`, `Tesla K80`, `T4 GPU`, `A100-SXM4-80GB`.

/// Cards of a text that are kept.
pub(super) const MOST: usize = 16;
/// A longer line is data.
const LONGEST: usize = 1 << 10;
const FAMILIES: [&str; 5] = ["rtx", "gtx", "tesla", "quadro", "geforce"];
/// Words of a name that follow its number.
const SUFFIXES: [&str; 10] = [
    "ti", "super", "laptop", "ada", "sxm2", "sxm4", "sxm5", "pcie", "nvl", "hbm3",
];
/// Names that stand alone; the short ones only beside a word for a card.
const ALONE: [&str; 19] = [
    "a100", "h100", "h200", "b200", "v100", "p100", "a6000", "a5000", "l40", "l40s", "gh200",
    "a10", "a10g", "a30", "a40", "l4", "t4", "p40", "k80",
];
const BESIDE: [&str; 6] = ["gpu", "nvidia", "graphics", "card", "vram", "cuda"];

/// The first name of a card in a line.
pub(super) fn named(line: &str) -> Option<String> {
    if line.len() > LONGEST || !line.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // `2xA100` counts them.
    let counted = |word: &str| {
        let rest = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let rest = rest
            .strip_prefix(['x', 'X'])
            .filter(|_| rest.len() < word.len());
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    };
    let words: Vec<&str> = line
        .split(|c: char| !c.is_ascii_alphanumeric())
        .map(|word| {
            if counted(word) {
                word.split_once(['x', 'X']).map_or(word, |(_, name)| name)
            } else {
                word
            }
        })
        .filter(|word| !word.is_empty())
        .collect();
    let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let beside = || {
        lower.iter().any(|word| {
            BESIDE
                .iter()
                .any(|name| word.trim_end_matches('s') == *name)
        })
    };
    let digit = |word: &String| word.bytes().any(|byte| byte.is_ascii_digit());
    let suffix = |word: &String| SUFFIXES.contains(&word.as_str());
    let at = (0..lower.len()).find(|at| {
        let word = &lower[*at];
        let next = lower.get(at + 1);
        let family = FAMILIES.contains(&word.as_str()) && next.is_some_and(digit);
        let joined = ["rtx", "gtx"].iter().any(|name| {
            word.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let alone = ALONE.contains(&word.as_str())
            && words[*at].starts_with(|c: char| c.is_ascii_uppercase())
            && (word.len() > 3 || beside());
        // `3080 ti`, `4090 GPU`.
        let model = word.len() == 4
            && word.bytes().all(|byte| byte.is_ascii_digit())
            && word.ends_with('0')
            && ["1", "2", "3", "4", "5"]
                .iter()
                .any(|first| word.starts_with(first))
            && matches!(word.get(2..3), Some("5" | "6" | "7" | "8" | "9"))
            && word.get(1..2) == Some("0")
            && next.is_some_and(|next| suffix(next) || BESIDE.contains(&next.as_str()));
        family || joined || alone || model
    })?;
    let mut end = at + 1 + usize::from(FAMILIES.contains(&lower[at].as_str()));
    // The size is a part of the name of some.
    let goes_on = |word: &String| {
        suffix(word)
            || word
                .strip_suffix("gb")
                .or_else(|| word.strip_suffix('g'))
                .is_some_and(|size| size.parse::<u32>().is_ok())
    };
    while lower.get(end).is_some_and(goes_on) {
        end += 1;
    }
    Some(words[at..end].join(" "))
}

/// How many GPUs a line counts: `found 2 CUDA devices`, `with 8 GPUs`; 0 if none.
pub(super) fn count(line: &str) -> u64 {
    /// No machine has more.
    const MOST: u64 = 64;
    let words: Vec<&str> = line.split_whitespace().collect();
    let are = |word: &str| {
        let name = word.trim_matches(|c: char| !c.is_ascii_alphabetic());
        name.eq_ignore_ascii_case("GPUs") || (name == "CUDA" && line.contains("devices"))
    };
    // A card's name may stand between.
    let named = |word: &str| word.contains(|c: char| c.is_ascii_uppercase());
    let counted = words.iter().enumerate().filter_map(|(at, word)| {
        let next = words.get(at + 1)?;
        let of = are(next) || (named(next) && words.get(at + 2).is_some_and(|next| are(next)));
        word.parse().ok().filter(|count| of && *count <= MOST)
    });
    // `CUDA_VISIBLE_DEVICES=0,1`
    let visible = line.split_once("_VISIBLE_DEVICES=").map_or(0, |(_, list)| {
        let list = list.trim_start_matches(['"', '\'']);
        let ends = |c: char| !c.is_ascii_digit() && c != ',';
        let list = list.split(ends).next().unwrap_or_default();
        list.split(',').filter(|number| !number.is_empty()).count() as u64
    });
    counted.chain([visible]).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{count, named};

    #[test]
    fn counts_of_cards() {
        for (line, number) in [
            ("ggml_cuda_init: found 2 CUDA devices:", 2),
            ("on a machine with 8 GPUs (80 GB)", 8),
            ("all GPUs, GPU 3", 0),
            ("on a machine with 2 H100 GPUs (80 GB VRAM each)", 2),
            ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch", 2),
            ("took 4096 GPUs", 0),
        ] {
            assert_eq!(count(line), number, "{line}");
        }
    }

    #[test]
    fn names_of_cards() {
        for (line, name) in [
            ("RTX3090", Some("RTX3090")),
            ("I run a 3080 ti GPU.", Some("3080 ti")),
            ("GPU 0: Tesla K80", Some("Tesla K80")),
            ("on T4 GPU with 15.1GB VRAM", Some("T4")),
            ("NVIDIA A100-SXM4-80GB", Some("A100 SXM4 80GB")),
            ("run it on 2xA100 80G", Some("A100 80G")),
            (
                "an NVIDIA GeForce RTX 4070 Ti SUPER",
                Some("RTX 4070 Ti SUPER"),
            ),
            ("pool-t4-4-runner failed", None),
            ("took 3080 ms", None),
            ("line 1070 of a file", None),
        ] {
            assert_eq!(named(line).as_deref(), name, "{line}");
        }
    }
}
