//! Finds a GPU by the name that the user typed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::data::catalogue;
use crate::gpu::Gpu;

/// The most GPUs of one kind in a [`parse_spec`]: more than one host holds, few enough that a
/// slip of the finger is caught.
pub const MAX_GPUS: u32 = 64;

/// How many names a message suggests.
const SUGGESTIONS: usize = 4;

/// Finds a GPU by name. Forgiving: case, spaces, dashes, vendor words (`NVIDIA`, `GeForce`,
/// `Tesla`), memory sizes and form factors in any order; `4090`, `a100`, `A100-SXM4-80GB`,
/// `H100 80GB HBM3` and the driver's own name are all found.
///
/// A family name that several GPUs share means the one with the least memory, so that "it fits"
/// holds on every one of them; [`resolve`] tells which others it could have been.
pub fn find(name: &str) -> Result<&'static Gpu, UnknownGpu> {
    resolve(name).map(|found| found.gpu)
}

/// A GPU and the others that the same name could have meant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Found {
    /// The GPU that the name means.
    pub gpu: &'static Gpu,
    /// More specific names that the given one could also have meant; empty when it was exact.
    pub others: Vec<&'static Gpu>,
}

impl Found {
    /// A sentence to show when the name was ambiguous.
    pub fn note(&self, name: &str) -> Option<String> {
        if self.others.is_empty() {
            return None;
        }
        let others: Vec<&str> = self.others.iter().map(|gpu| gpu.id.as_str()).collect();
        Some(format!(
            "`{name}` means {}, which has no more memory than the others of that name: {}",
            self.gpu.id,
            others.join(", ")
        ))
    }
}

/// [`find`], which also tells what else the name could have meant.
pub fn resolve(name: &str) -> Result<Found, UnknownGpu> {
    let words = words(name);
    if words.is_empty() {
        return Err(unknown(name, None));
    }
    let index = index();
    if let Some(gpu) = index.get(&key(&words)) {
        return Ok(Found {
            gpu,
            others: others(gpu, &words),
        });
    }
    // A memory size that is not part of any name: check it instead of matching it.
    let sizes: Vec<u32> = words.iter().filter_map(|word| gigabytes(word)).collect();
    if let [size] = sizes[..] {
        let rest: Vec<String> = words
            .into_iter()
            .filter(|word| gigabytes(word).is_none())
            .collect();
        if let Some(gpu) = index.get(&key(&rest)) {
            let with_size = others(gpu, &rest)
                .into_iter()
                .find(|other| other.memory.nominal_gib == size);
            if gpu.memory.nominal_gib == size {
                return Ok(Found {
                    gpu,
                    others: Vec::new(),
                });
            }
            if let Some(gpu) = with_size {
                return Ok(Found {
                    gpu,
                    others: Vec::new(),
                });
            }
            return Err(unknown(name, Some((gpu, size))));
        }
    }
    Err(unknown(name, None))
}

/// GPUs that were asked for in words.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Selection {
    /// Which.
    pub gpus: Vec<&'static Gpu>,
    /// A sentence to show when a name could have meant several.
    pub note: Option<String>,
    /// Whether one was named exactly.
    pub exact: bool,
}

/// The GPU of a name, the family of an ambiguous one, or every GPU whose id, name, architecture
/// (`ada`, `sm_89`) or class contains all of the words; all GPUs for no words.
pub fn select(asked: &str) -> Result<Selection, UnknownGpu> {
    let among = |gpus: Vec<&'static Gpu>| Selection {
        gpus,
        note: None,
        exact: false,
    };
    if asked.trim().is_empty() {
        return Ok(among(catalogue().iter().collect()));
    }
    let named = resolve(asked);
    if let Ok(found) = &named {
        let mut family = vec![found.gpu];
        family.extend(&found.others);
        return Ok(Selection {
            exact: found.others.is_empty(),
            note: found.note(asked),
            gpus: family,
        });
    }
    let words: Vec<String> = asked.split_whitespace().map(str::to_lowercase).collect();
    let matching: Vec<&Gpu> = catalogue()
        .iter()
        .filter(|gpu| {
            let text = format!(
                "{} {} {} {} {}",
                gpu.id,
                gpu.name,
                gpu.architecture,
                gpu.sm_name(),
                gpu.class.as_str()
            )
            .to_lowercase();
            words.iter().all(|word| text.contains(word.as_str()))
        })
        .collect();
    match named {
        Err(unknown) if matching.is_empty() => Err(unknown),
        _ => Ok(among(matching)),
    }
}

/// A GPU and how many of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GpuSpec {
    /// The name as it was given, without the count.
    pub name: String,
    /// The GPU, and what else its name could have meant.
    pub found: Found,
    /// How many.
    pub count: u32,
}

impl GpuSpec {
    /// A sentence to show when the name was ambiguous.
    pub fn note(&self) -> Option<String> {
        self.found.note(&self.name)
    }
}

/// Reads `NAME` or `NAME:COUNT`, as `--gpu` takes it: `a100-80gb:8`.
pub fn parse_spec(text: &str) -> Result<GpuSpec, ParseSpecError> {
    let (name, count) = match text.rsplit_once(':') {
        None => (text, 1),
        Some((name, count)) => match count.trim().parse::<u32>() {
            Ok(parsed @ 1..=MAX_GPUS) => (name, parsed),
            _ => {
                return Err(ParseSpecError::Count {
                    text: text.to_owned(),
                    count: count.to_owned(),
                });
            }
        },
    };
    Ok(GpuSpec {
        found: resolve(name)?,
        name: name.trim().to_owned(),
        count,
    })
}

/// A text that is not of the form `NAME[:COUNT]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSpecError {
    /// The name is not in the catalogue.
    #[error(transparent)]
    Unknown(#[from] UnknownGpu),
    /// The text after the colon is not a count.
    #[error(
        "`{text}`: the number of GPUs is `{count}`; expected 1 to {MAX_GPUS} after the colon, as in a100-80gb:8"
    )]
    Count {
        /// The whole text.
        text: String,
        /// What stood after the colon.
        count: String,
    },
}

/// A name that is not in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct UnknownGpu {
    /// What was asked for.
    pub name: String,
    /// Ids of GPUs with a similar name, most similar first; may be empty.
    pub suggestions: Vec<String>,
    message: String,
}

fn unknown(name: &str, wrong_size: Option<(&Gpu, u32)>) -> UnknownGpu {
    if let Some((gpu, size)) = wrong_size {
        return UnknownGpu {
            name: name.to_owned(),
            suggestions: vec![gpu.id.clone()],
            message: format!(
                "`{name}`: {} has {} GB, not {size}; drop the size, or set the capacity with --memory {size}GiB",
                gpu.name, gpu.memory.nominal_gib
            ),
        };
    }
    if name.contains(',') {
        return UnknownGpu {
            name: name.to_owned(),
            suggestions: Vec::new(),
            message: format!(
                "`{name}`: expected one kind of GPU, and for several of it NAME:COUNT, such as a100-80gb:8"
            ),
        };
    }
    let suggestions = suggestions(name);
    let hint = if suggestions.is_empty() {
        String::new()
    } else {
        format!("did you mean {}? ", suggestions.join(", "))
    };
    UnknownGpu {
        name: name.to_owned(),
        suggestions,
        message: format!(
            "unknown GPU `{name}`: {hint}`oomph gpus` lists the {} that are known",
            catalogue().len()
        ),
    }
}

/// The words of a name that tell GPUs apart, in a common spelling.
fn words(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let mut words: Vec<String> = Vec::new();
    for token in lower.split(|c: char| !c.is_ascii_alphanumeric()) {
        split_token(token, &mut words);
    }
    // "80 GB" and "80GB" are one word.
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        if matches!(word.as_str(), "gb" | "gib" | "g")
            && let Some(last) = joined.last_mut()
            && last.bytes().all(|byte| byte.is_ascii_digit())
        {
            last.push_str("gb");
        } else {
            joined.push(word);
        }
    }
    joined.retain(|word| !is_noise(word));
    joined
}

/// `rtx4090` is `rtx` and `4090`; `4070tisuper` is `4070`, `ti` and `super`.
fn split_token(token: &str, words: &mut Vec<String>) {
    let mut rest = token;
    for prefix in ["nvidia", "geforce", "quadro", "tesla", "rtx", "gtx"] {
        if let Some(tail) = rest.strip_prefix(prefix) {
            words.push(prefix.to_owned());
            rest = tail;
        }
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, mut suffix) = rest.split_at(digits);
    let mut suffixes = Vec::new();
    if !number.is_empty() && !suffix.is_empty() {
        for known in [
            "ti", "super", "laptop", "mobile", "ada", "gib", "gb", "g", "s", "m", "d",
        ] {
            if let Some(tail) = suffix.strip_prefix(known) {
                suffixes.push(known);
                suffix = tail;
            }
        }
    }
    if suffix.is_empty() && !suffixes.is_empty() {
        words.push(number.to_owned());
        words.extend(suffixes.into_iter().map(|known| spelling(known).to_owned()));
    } else if !rest.is_empty() {
        words.push(spelling(rest).to_owned());
    }
}

fn spelling(word: &str) -> &str {
    match word {
        "mobile" | "notebook" | "m" | "maxq" | "max" => "laptop",
        "s" => "super",
        "sxm2" | "sxm3" | "sxm4" | "sxm5" | "sxm6" => "sxm",
        "gib" => "gb",
        "pci" => "pcie",
        _ => word,
    }
}

/// Words that tell nothing apart. The memory's kind goes too, since its size says the same.
fn is_noise(word: &str) -> bool {
    matches!(
        word,
        "" | "nvidia"
            | "geforce"
            | "tesla"
            | "gpu"
            | "graphics"
            | "card"
            | "generation"
            | "hbm2"
            | "hbm2e"
            | "hbm3"
            | "hbm3e"
            | "edition"
            | "with"
            | "q"
            | "design"
    )
}

/// Words in any order are the same name.
fn key(words: &[String]) -> String {
    let mut sorted: Vec<&str> = words.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.join(" ")
}

fn gigabytes(word: &str) -> Option<u32> {
    word.strip_suffix("gb")?.parse().ok()
}

fn index() -> &'static BTreeMap<String, &'static Gpu> {
    static INDEX: OnceLock<BTreeMap<String, &'static Gpu>> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index = BTreeMap::new();
        // Names that someone wrote down come before those that are derived.
        for gpu in catalogue() {
            for name in written_names(gpu) {
                index.entry(key(&words(name))).or_insert(gpu);
            }
        }
        for gpu in catalogue() {
            for name in written_names(gpu) {
                let mut words = words(name);
                words.retain(|word| word != "quadro");
                index.entry(key(&words)).or_insert(gpu);
                words.retain(|word| word != "rtx" && word != "gtx");
                if !words.is_empty() {
                    index.entry(key(&words)).or_insert(gpu);
                }
            }
        }
        index
    })
}

fn written_names(gpu: &Gpu) -> impl Iterator<Item = &str> {
    [gpu.id.as_str(), gpu.name.as_str()]
        .into_iter()
        .chain(gpu.aliases.iter().map(String::as_str))
}

/// GPUs of the family that `words` names without saying which: their ids hold all the words.
fn others(gpu: &'static Gpu, asked: &[String]) -> Vec<&'static Gpu> {
    if key(&words(&gpu.id)) == key(asked) || key(&words(&gpu.name)) == key(asked) {
        return Vec::new();
    }
    // `4090` for `rtx-4090` is short, not ambiguous.
    let id: Vec<String> = words(&gpu.id);
    let missing = id.iter().filter(|word| !asked.contains(word));
    if missing
        .clone()
        .all(|word| matches!(word.as_str(), "rtx" | "gtx"))
    {
        return Vec::new();
    }
    catalogue()
        .iter()
        .filter(|other| other.id != gpu.id)
        .filter(|other| {
            let id = words(&other.id);
            asked.iter().all(|word| id.contains(word))
        })
        .collect()
}

fn suggestions(name: &str) -> Vec<String> {
    let asked = words(name).concat();
    if asked.is_empty() {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &str)> = catalogue()
        .iter()
        .filter_map(|gpu| {
            let best = written_names(gpu)
                .flat_map(|name| {
                    let words = words(name);
                    let full = words.concat();
                    let short: String = words
                        .iter()
                        .filter(|word| *word != "rtx" && *word != "gtx")
                        .map(String::as_str)
                        .collect();
                    [full, short]
                })
                .map(|candidate| {
                    let distance = distance(&asked, &candidate);
                    // A part of a name is closer than a misspelt one.
                    if asked.len() >= 3 && candidate.contains(&asked) {
                        distance.min(1)
                    } else {
                        distance
                    }
                })
                .min()?;
            let limit = (asked.chars().count() / 3).max(1);
            (best <= limit).then_some((best, gpu.id.as_str()))
        })
        .collect();
    // Stable: equally similar ones stay in the catalogue's order.
    scored.sort_by_key(|(distance, _)| *distance);
    scored
        .into_iter()
        .take(SUGGESTIONS)
        .map(|(_, id)| id.to_owned())
        .collect()
}

/// Insertions, deletions, substitutions and swaps of neighbours between two words.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(ca != cb))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_people_write_them() {
        for (name, id) in [
            ("rtx-4090", "rtx-4090"),
            ("RTX 4090", "rtx-4090"),
            ("rtx4090", "rtx-4090"),
            ("4090", "rtx-4090"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("geforce_rtx_4090", "rtx-4090"),
            ("GeForce RTX 4090 24GB", "rtx-4090"),
            ("4090 24 GB", "rtx-4090"),
            ("4090-24g", "rtx-4090"),
            ("4070 laptop", "rtx-4070-laptop"),
            ("4070m", "rtx-4070-laptop"),
            ("RTX 4070 Mobile", "rtx-4070-laptop"),
            ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx-4070-laptop"),
            ("4070ti", "rtx-4070-ti"),
            ("4070 Ti SUPER", "rtx-4070-ti-super"),
            ("4070tis", "rtx-4070-ti-super"),
            ("4070s", "rtx-4070-super"),
            ("4060 ti 16gb", "rtx-4060-ti-16gb"),
            ("4060 ti 8gb", "rtx-4060-ti"),
            ("3080 12GiB", "rtx-3080-12gb"),
            ("3080 10GB", "rtx-3080"),
            ("1080ti", "gtx-1080-ti"),
            ("gtx 1650 max-q", "gtx-1650-laptop"),
            ("a100", "a100-40gb-sxm"),
            ("A100-SXM4-80GB", "a100-80gb-sxm"),
            ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
            ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
            ("a100-80gb", "a100-80gb-sxm"),
            ("80GB A100", "a100-80gb-sxm"),
            ("H100", "h100-sxm"),
            ("H100 80GB HBM3", "h100-sxm"),
            ("H100-SXM5-80GB", "h100-sxm"),
            ("h100 pcie", "h100-pcie"),
            ("H100 NVL", "h100-nvl"),
            ("h200", "h200"),
            ("H200 SXM 141GB", "h200"),
            ("T4", "t4"),
            ("Tesla T4", "t4"),
            ("NVIDIA T4", "t4"),
            ("v100", "v100-16gb-sxm"),
            ("V100-SXM2-32GB", "v100-32gb-sxm"),
            ("Tesla P100-PCIE-16GB", "p100"),
            ("a10g", "a10g"),
            ("a10", "a10"),
            ("a6000", "rtx-a6000"),
            ("rtx 6000", "quadro-rtx-6000"),
            ("6000 ada", "rtx-6000-ada"),
            ("RTX PRO 6000", "rtx-pro-6000"),
            ("gh200", "gh200"),
            ("NVIDIA GH200 480GB", "gh200"),
        ] {
            match find(name) {
                Ok(gpu) => assert_eq!(gpu.id, id, "{name}"),
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }

    #[test]
    fn every_written_name_finds_its_gpu() {
        for gpu in catalogue() {
            assert_eq!(find(&gpu.id).expect(&gpu.id).id, gpu.id);
            // The driver gives the same name to several memory sizes.
            assert_eq!(find(&gpu.name).expect(&gpu.name).name, gpu.name);
            for alias in &gpu.aliases {
                assert_eq!(find(alias).expect(alias).id, gpu.id, "alias {alias}");
            }
        }
    }

    #[test]
    fn typos_get_suggestions() {
        for (name, first) in [
            ("rtx-4900", "rtx-4090"),
            ("rtx 4009", "rtx-4090"),
            ("40900", "rtx-4090"),
            ("h1000", "h100-sxm"),
            ("a1000-80gb", "a100-80gb-sxm"),
            ("4070 lpatop", "rtx-4070-laptop"),
            ("L4S", "l40s"),
        ] {
            let error = find(name).expect_err(name);
            assert!(
                error.suggestions.iter().any(|id| id == first),
                "{name}: {error}"
            );
            assert!(error.to_string().contains("did you mean"), "{error}");
        }
    }

    #[test]
    fn a_name_like_nothing_gets_no_suggestion() {
        for name in ["", " ", "nvidia", "radeon rx 7900 xtx", "tpu-v5e", "日本"] {
            let error = find(name).expect_err(name);
            assert!(error.suggestions.is_empty(), "{name}: {error}");
            assert!(error.to_string().contains("oomph gpus"), "{error}");
        }
    }

    #[test]
    fn a_wrong_memory_size_is_not_ignored() {
        let error = find("rtx 4090 48GB").expect_err("48 GB");
        assert!(error.to_string().contains("24 GB, not 48"), "{error}");
        assert!(error.to_string().contains("--memory 48GiB"), "{error}");
    }

    #[test]
    fn family_names_are_the_smallest_and_say_so() {
        let found = resolve("a100").expect("a100");
        let note = found.note("a100").expect("ambiguous");
        assert!(note.contains("a100-40gb-sxm"), "{note}");
        assert!(note.contains("a100-80gb-sxm"), "{note}");
        for family in ["a100", "v100", "h100"] {
            let found = resolve(family).expect(family);
            for other in &found.others {
                assert!(
                    other.memory.nominal_gib >= found.gpu.memory.nominal_gib,
                    "{family}: {}",
                    other.id
                );
            }
        }
        for exact in ["4090", "rtx-4070", "h200", "t4", "NVIDIA A100 80GB PCIe"] {
            assert!(resolve(exact).expect(exact).others.is_empty(), "{exact}");
        }
    }

    #[test]
    fn specs_have_a_count() {
        let spec = parse_spec("a100-80gb:8").expect("spec");
        assert_eq!(
            (spec.found.gpu.id.as_str(), spec.count),
            ("a100-80gb-sxm", 8)
        );
        assert_eq!(parse_spec("h200").expect("spec").count, 1);
        for bad in [
            "h200:0", "h200:", "h200:x", "h200:-1", "h200:65", "h200:1e1",
        ] {
            let error = parse_spec(bad).expect_err(bad);
            assert!(error.to_string().contains("1 to 64"), "{bad}: {error}");
        }
        assert!(parse_spec("h20000:2").is_err());
    }

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("4090", "4090", 0),
            ("4900", "4090", 1),
            ("h100", "h200", 1),
            ("h1000", "h100", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn words_select_gpus() {
        let ids = |asked: &str| -> Vec<&str> {
            let found = select(asked).expect(asked);
            found.gpus.iter().map(|gpu| gpu.id.as_str()).collect()
        };
        assert_eq!(ids("4090"), ["rtx-4090"]);
        assert_eq!(ids("a100").len(), 4);
        assert_eq!(ids("sm_90").len(), 7);
        assert!(ids("ada laptop").iter().all(|id| id.ends_with("-laptop")));
        assert!(
            select("4900")
                .expect_err("typo")
                .to_string()
                .contains("rtx-4090")
        );
    }
}
