//! Which flags let a serving engine hold what is asked of it: decided by the starts so far.

use serde::Serialize;

use crate::record::Engine;

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.serve-fit/1";

/// A cache holds whole blocks of so many tokens.
const BLOCK: u64 = 16;
/// The share of the GPU that vLLM takes by itself, and the largest that is tried: processes of the driver hold the rest.
const SHARES: [f64; 2] = [0.92, 0.95];
/// So often a shorter length is tried when none that was asked for fits.
const SHORTER: usize = 3;

/// What is asked of the engine.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Asked {
    /// The model's directory.
    pub model: String,
    /// The GPU.
    pub gpu: String,
    /// How many of them there are.
    pub gpus: u32,
    /// The memory of each, in bytes.
    pub memory_bytes: u64,
    /// Tokens of the longest request.
    pub max_model_len: u64,
    /// How many such requests are to have room at once.
    pub requests: u32,
    /// Whether the KV cache must keep its type.
    pub keep_results: bool,
    /// The model's attention heads, which GPUs share evenly; 0 if that is not known.
    pub heads: u64,
    /// Flags that every start has.
    pub given: Vec<String>,
}

impl Asked {
    /// Whether each start has the flag, such as `--enforce-eager`, by the user's will.
    pub fn gives(&self, flag: &str) -> bool {
        self.value_of(flag).is_some()
    }

    /// What the user gave with a flag; "" if that is the last word.
    fn value_of(&self, flag: &str) -> Option<&str> {
        let at = (self.given.iter()).position(|word| word.split('=').next() == Some(flag))?;
        let inline = self.given[at].split_once('=').map(|(_, value)| value);
        inline.or_else(|| Some(self.given.get(at + 1).map_or("", String::as_str)))
    }

    /// The largest share of a GPU that the engine may be given.
    pub fn share(&self) -> f64 {
        let given = self.value_of("--gpu-memory-utilization");
        given.map_or(SHARES[1], |value| value.parse().unwrap_or(SHARES[0]))
    }

    /// Whether so many GPUs can share the model: its attention heads are shared evenly.
    pub fn can_share(&self, gpus: u32) -> bool {
        self.heads.is_multiple_of(u64::from(gpus))
    }
}

/// A flag that makes room, in the order in which they are tried: what changes least comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// A larger share of the GPU.
    Share,
    /// No more requests at once than were asked for.
    Requests,
    /// No CUDA graphs, and nothing compiled.
    Eager,
    /// A KV cache of 8 bits, which changes results.
    Cache,
}

const RUNGS: [Rung; 4] = [Rung::Share, Rung::Requests, Rung::Eager, Rung::Cache];

impl Rung {
    /// The flag as `vllm serve` takes it.
    pub fn words(self, asked: &Asked) -> Vec<String> {
        match self {
            Self::Share => vec!["--gpu-memory-utilization".to_owned(), SHARES[1].to_string()],
            Self::Requests => vec!["--max-num-seqs".to_owned(), asked.requests.to_string()],
            Self::Eager => vec!["--enforce-eager".to_owned()],
            Self::Cache => vec!["--kv-cache-dtype".to_owned(), "fp8".to_owned()],
        }
    }

    /// Whether it may be tried: what the user gave is not touched.
    fn is_allowed(self, asked: &Asked) -> bool {
        let words = self.words(asked);
        let changes = self == Self::Cache && asked.keep_results;
        !changes && !words.first().is_some_and(|flag| asked.gives(flag))
    }
}

/// How the engine is started.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Flags {
    /// How many GPUs share the model (tensor parallel).
    pub gpus: u32,
    /// Tokens of the longest request.
    pub max_model_len: u64,
    /// What makes room.
    pub rungs: Vec<Rung>,
}

impl Flags {
    /// The flags as `vllm serve` takes them, those last that every start has.
    pub fn words(&self, asked: &Asked) -> Vec<String> {
        let mut words = vec!["--max-model-len".to_owned(), self.max_model_len.to_string()];
        if self.gpus > 1 {
            words.extend(["--tensor-parallel-size".to_owned(), self.gpus.to_string()]);
        }
        words.extend(self.rungs.iter().flat_map(|rung| rung.words(asked)));
        words.extend(asked.given.iter().cloned());
        words
    }
}

/// How a start came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The engine waits for requests.
    Ready,
    /// Memory ran out, or nothing was left for its KV cache, or not enough for one request.
    OutOfMemory,
    /// It ended for another reason.
    Failed,
}

/// One start of the engine.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Start {
    /// How it was started.
    pub flags: Flags,
    /// How it came out.
    pub outcome: Outcome,
    /// What the engine made of its memory, as far as it got.
    pub engine: Engine,
    /// Why it ended, if it did.
    pub why: Option<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Start {
    /// The bytes of KV cache that one of the longest requests takes; 0 if that is not known.
    fn each(&self) -> f64 {
        let engine = &self.engine;
        if engine.needed_bytes > 0 {
            engine.needed_bytes as f64
        } else if engine.requests > 0.0 {
            engine.kv_cache_bytes as f64 / engine.requests
        } else {
            0.0
        }
    }

    /// How many of the longest requests have room at once.
    pub fn requests(&self) -> f64 {
        match self.outcome {
            Outcome::Ready => self.engine.requests,
            Outcome::OutOfMemory if self.each() > 0.0 => {
                self.engine.kv_cache_bytes as f64 / self.each()
            }
            _ => 0.0,
        }
    }

    /// Whether it holds the requests that were asked for, of its own length.
    pub fn holds(&self, asked: &Asked) -> bool {
        self.outcome == Outcome::Ready && self.engine.requests >= f64::from(asked.requests)
    }

    /// Whether the flags that make room could be enough, were each to give all that it may.
    fn may_be_enough(&self, asked: &Asked) -> bool {
        if self.engine.weights_bytes == 0 {
            // The weights themselves found no room.
            return false;
        }
        let engine = &self.engine;
        let share = (SHARES[1] - SHARES[0]) * asked.memory_bytes as f64;
        let most = engine.kv_cache_bytes as f64
            + share
            + engine.activation_bytes as f64
            + engine.graph_bytes as f64;
        let halves = if Rung::Cache.is_allowed(asked) {
            2.0
        } else {
            1.0
        };
        self.each() == 0.0 || most * halves >= self.each() * f64::from(asked.requests)
    }
}

/// The start that is chosen: the first one that holds what was asked for; otherwise that of the greatest length, with the most
/// requests.
pub fn chosen(asked: &Asked, starts: &[Start]) -> Option<usize> {
    let enough = (starts.iter())
        .position(|start| start.holds(asked) && start.flags.max_model_len == asked.max_model_len);
    let order = |&at: &usize| {
        let start = &starts[at];
        (
            start.holds(asked),
            start.flags.max_model_len,
            start.engine.requests.to_bits(),
        )
    };
    let ready = (0..starts.len()).filter(|&at| starts[at].outcome == Outcome::Ready);
    enough.or_else(|| ready.max_by_key(order))
}

/// How to start next; `None` if nothing is left to try, or what was asked for is found. The fewest GPUs come first, with all that
/// makes room on them; then, on all GPUs, a shorter length.
pub fn next(asked: &Asked, starts: &[Start]) -> Option<Flags> {
    let is_whole = |start: &&Start| start.flags.max_model_len == asked.max_model_len;
    let mut last = None;
    for gpus in (0..)
        .map(|power| 1 << power)
        .take_while(|&gpus| gpus <= asked.gpus)
        .filter(|&gpus| asked.can_share(gpus))
    {
        let flags = |rungs: Vec<Rung>| Flags {
            gpus,
            max_model_len: asked.max_model_len,
            rungs,
        };
        let tried: Vec<&Start> = (starts.iter().filter(is_whole))
            .filter(|start| start.flags.gpus == gpus)
            .collect();
        let Some(plain) = tried.first() else {
            return Some(flags(Vec::new()));
        };
        if tried.iter().any(|start| start.holds(asked)) {
            return None;
        }
        let mut rungs: Vec<Rung> = Vec::new();
        if plain.outcome != Outcome::Failed && plain.may_be_enough(asked) {
            for rung in RUNGS.into_iter().filter(|rung| rung.is_allowed(asked)) {
                rungs.push(rung);
                match tried.iter().find(|start| start.flags.rungs == rungs) {
                    None => return Some(flags(rungs)),
                    // This GPU, or this model, cannot do it.
                    Some(start) if start.outcome == Outcome::Failed => drop(rungs.pop()),
                    Some(_) => {}
                }
            }
        }
        let best = tried
            .into_iter()
            .max_by(|a, b| a.requests().total_cmp(&b.requests()));
        last = best.or(last);
    }
    let best = last.filter(|start| start.requests() > 0.0)?;
    let shorter: Vec<&Start> = starts.iter().filter(|start| !is_whole(start)).collect();
    if shorter.iter().any(|start| start.holds(asked)) || shorter.len() == SHORTER {
        return None;
    }
    let from = shorter.last().copied().unwrap_or(best);
    // What does not fit the second time does not grow with the length alone.
    let share = (from.requests() / f64::from(asked.requests)).min(if shorter.is_empty() {
        1.0
    } else {
        0.9
    });
    let length = (from.flags.max_model_len as f64 * share) as u64 / BLOCK * BLOCK;
    (length >= BLOCK).then(|| Flags {
        gpus: best.flags.gpus,
        max_model_len: length,
        rungs: best.flags.rungs.clone(),
    })
}

/// What the requests that were asked for take of each GPU, by the figures of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Needs {
    /// How many GPUs share the model.
    pub gpus: u32,
    /// The bytes of the weights on each.
    pub weights_bytes: u64,
    /// The bytes of KV cache on each, of all requests together.
    pub kv_cache_bytes: u64,
    /// The bytes of the profile run, of CUDA graphs and of what is not PyTorch's, on each.
    pub other_bytes: u64,
}

impl Needs {
    fn of(asked: &Asked, start: &Start) -> Option<Self> {
        let (engine, flags) = (&start.engine, &start.flags);
        let is_known = engine.weights_bytes > 0 && start.each() > 0.0;
        (is_known && flags.max_model_len == asked.max_model_len).then(|| Self {
            gpus: flags.gpus,
            weights_bytes: engine.weights_bytes,
            kv_cache_bytes: (start.each() * f64::from(asked.requests)) as u64,
            other_bytes: engine.activation_bytes + engine.graph_bytes + engine.outside_bytes,
        })
    }

    /// All of it, on each GPU.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_cache_bytes + self.other_bytes
    }

    /// The same on another number of GPUs: they share weights and cache evenly, and the rest is each one's own.
    #[must_use]
    pub fn on(self, gpus: u32) -> Self {
        let share = |bytes: u64| bytes * u64::from(self.gpus) / u64::from(gpus);
        Self {
            gpus,
            weights_bytes: share(self.weights_bytes),
            kv_cache_bytes: share(self.kv_cache_bytes),
            other_bytes: self.other_bytes,
        }
    }

    /// The same with weights of 8 bits instead of 16.
    #[must_use]
    pub fn in_8_bits(self) -> Self {
        Self {
            weights_bytes: self.weights_bytes / 2,
            ..self
        }
    }
}

/// The least that is needed with flags that keep results, on the most GPUs of which a start shows it; `None` if none does.
pub fn needs(asked: &Asked, starts: &[Start]) -> Option<Needs> {
    let keeps = |start: &&Start| !start.flags.rungs.contains(&Rung::Cache);
    let all = (starts.iter().filter(keeps)).filter_map(|start| Needs::of(asked, start));
    all.min_by_key(|needs| (std::cmp::Reverse(needs.gpus), needs.total_bytes()))
}

/// GPUs and flags that would be enough, by the figures of starts on other ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Alternative {
    /// The GPU.
    pub gpu: String,
    /// How many of them.
    pub gpus: u32,
    /// More flags of `vllm serve`; they change results.
    pub flags: Vec<String>,
    /// The bytes that are needed on each.
    pub needed_bytes: u64,
}

/// All of a search.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Search {
    /// [`FORMAT`].
    pub format: &'static str,
    /// What was asked for.
    pub asked: Asked,
    /// The starts, in their order.
    pub starts: Vec<Start>,
    /// Which of them is chosen, counted from 0.
    pub chosen: Option<usize>,
    /// Whether the chosen one holds what was asked for.
    pub enough: bool,
    /// Its command.
    pub command: Option<String>,
    /// A start on GPUs of many times the memory, where no other showed what is needed: the weights had no room.
    pub measured: Option<Start>,
    /// What is needed, where what was asked for does not fit and a start shows it.
    pub needs: Option<Needs>,
    /// What would be enough then: calculated, and not started.
    pub would_fit: Vec<Alternative>,
    /// Why the search ended early, if it did.
    pub stopped: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    const GIB: u64 = 1 << 30;

    /// What an engine makes of GPUs of 48 GiB, as its starts show it: weights are shared, the rest is each GPU's own.
    struct Model {
        weights: u64,
        token: u64,
        /// Whether the GPU has 8-bit caches.
        has_fp8: bool,
    }

    impl Model {
        fn start(&self, asked: &Asked, flags: Flags) -> Start {
            let has = |rung| flags.rungs.contains(&rung);
            let gpus = u64::from(flags.gpus);
            let allowed =
                (asked.memory_bytes as f64 * SHARES[usize::from(has(Rung::Share))]) as u64;
            let weights = self.weights / gpus;
            let mut engine = Engine {
                allowed_bytes: allowed,
                weights_bytes: weights,
                activation_bytes: if has(Rung::Requests) { GIB / 2 } else { GIB },
                graph_bytes: if has(Rung::Eager) { 0 } else { GIB },
                max_model_len: flags.max_model_len,
                ..Engine::default()
            };
            let token = self.token / gpus / if has(Rung::Cache) { 2 } else { 1 };
            let each = flags.max_model_len * token;
            let (mut outcome, mut why) = (Outcome::Ready, None);
            if has(Rung::Cache) && !self.has_fp8 {
                (outcome, why) = (Outcome::Failed, Some("ValueError: fp8 KV cache".to_owned()));
                engine = Engine::default();
            } else if weights > allowed {
                outcome = Outcome::OutOfMemory;
                engine.weights_bytes = 0;
            } else {
                let others = weights + engine.activation_bytes + engine.graph_bytes;
                engine.kv_cache_bytes = allowed.saturating_sub(others);
                if engine.kv_cache_bytes < each {
                    outcome = Outcome::OutOfMemory;
                    engine.needed_bytes = each;
                } else {
                    engine.requests = engine.kv_cache_bytes as f64 / each as f64;
                    engine.kv_cache_tokens = engine.kv_cache_bytes / token;
                }
            }
            Start {
                flags,
                outcome,
                engine,
                why,
                seconds: 1.0,
            }
        }
    }

    fn asked(gpus: u32, max_model_len: u64, requests: u32) -> Asked {
        Asked {
            model: "model".to_owned(),
            gpu: "l40s".to_owned(),
            gpus,
            memory_bytes: 48 * GIB,
            max_model_len,
            requests,
            keep_results: false,
            heads: 32,
            given: Vec::new(),
        }
    }

    fn search(model: &Model, asked: &Asked) -> Vec<Start> {
        let mut starts = Vec::new();
        while let Some(flags) = next(asked, &starts) {
            assert!(
                !starts.iter().any(|start: &Start| start.flags == flags),
                "tried twice: {flags:?}"
            );
            starts.push(model.start(asked, flags));
            assert!(starts.len() < 30);
        }
        starts
    }

    fn flags(asked: &Asked, starts: &[Start]) -> String {
        let best = &starts[chosen(asked, starts).unwrap()];
        best.flags.words(asked).join(" ")
    }

    #[test]
    fn what_fits_as_it_is_takes_one_start() {
        let model = Model {
            weights: 16 * GIB,
            token: 128 << 10,
            has_fp8: true,
        };
        let asked = asked(4, 131_072, 1);
        let starts = search(&model, &asked);
        assert_eq!(starts.len(), 1);
        assert_eq!(flags(&asked, &starts), "--max-model-len 131072");
    }

    #[test]
    fn flags_that_keep_results_come_first_and_fewer_gpus_before_more() {
        let model = Model {
            weights: 26 * GIB,
            token: 128 << 10,
            has_fp8: true,
        };
        // 16.2 GiB are left, 17.6 with a larger share, 18.1 for so few requests, 19.1 without graphs.
        let mut asked = asked(2, 155_000, 1);
        let starts = search(&model, &asked);
        assert_eq!(
            flags(&asked, &starts),
            "--max-model-len 155000 --gpu-memory-utilization 0.95 --max-num-seqs 1 --enforce-eager"
        );
        assert!(starts.iter().all(|start| start.flags.gpus == 1));
        asked.max_model_len = 200_000;
        let starts = search(&model, &asked);
        assert!(flags(&asked, &starts).ends_with("--enforce-eager --kv-cache-dtype fp8"));
        // Where results must stay, and one GPU cannot do it: two, and nothing else.
        asked.keep_results = true;
        let starts = search(&model, &asked);
        assert_eq!(
            flags(&asked, &starts),
            "--max-model-len 200000 --tensor-parallel-size 2"
        );
        assert_eq!(starts.len(), 2, "what cannot be enough is not started");
    }

    #[test]
    fn weights_without_room_and_caches_that_the_gpu_has_not() {
        let model = Model {
            weights: 61 * GIB,
            token: 256 << 10,
            has_fp8: false,
        };
        let asked = asked(2, 131_072, 1);
        let starts = search(&model, &asked);
        // One start finds out that one GPU is not enough; on two, no start of an 8-bit cache is followed by another.
        assert_eq!(
            starts.iter().filter(|start| start.flags.gpus == 1).count(),
            1
        );
        let failed = starts
            .iter()
            .filter(|start| start.outcome == Outcome::Failed)
            .count();
        assert_eq!(failed, 1);
        // No flag is enough: a shorter length is.
        let best = &starts[chosen(&asked, &starts).unwrap()];
        assert!(best.holds(&asked) && best.flags.max_model_len < asked.max_model_len);
        assert_eq!(best.flags.max_model_len % BLOCK, 0);
        assert_eq!(best.flags.rungs, [Rung::Share, Rung::Requests, Rung::Eager]);
        let longer = Flags {
            max_model_len: best.flags.max_model_len + 2 * BLOCK,
            ..best.flags.clone()
        };
        assert!(
            !model.start(&asked, longer).holds(&asked),
            "it is the longest"
        );
    }

    #[test]
    fn heads_are_shared_evenly_and_flags_of_the_user_stay() {
        let model = Model {
            weights: 200 * GIB,
            token: 128 << 10,
            has_fp8: true,
        };
        let mut asked = asked(8, 4096, 1);
        asked.heads = 12;
        let gpus: Vec<u32> = search(&model, &asked)
            .iter()
            .map(|start| start.flags.gpus)
            .collect();
        assert_eq!(gpus, [1, 2, 4]);
        asked.given = ["--gpu-memory-utilization=0.5", "--enforce-eager"]
            .map(str::to_owned)
            .to_vec();
        assert!(!Rung::Share.is_allowed(&asked) && !Rung::Eager.is_allowed(&asked));
        near(asked.share(), 0.5);
        asked.given = ["--gpu-memory-utilization", "0.8"]
            .map(str::to_owned)
            .to_vec();
        near(asked.share(), 0.8);
    }

    #[test]
    fn what_is_needed_follows_from_a_start_that_shows_it() {
        let model = Model {
            weights: 61 * GIB,
            token: 256 << 10,
            has_fp8: true,
        };
        let mut asked = asked(1, 131_072, 2);
        let starts = search(&model, &asked);
        assert_eq!(needs(&asked, &starts), None, "the weights had no room");
        // With room, as a start on a larger GPU shows it.
        let flags = starts[0].flags.clone();
        asked.memory_bytes *= 16;
        let measured = model.start(&asked, flags);
        let found = needs(&asked, &[measured]).unwrap();
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        // 61 of weights, two requests of 32, 1 of activations and 1 of graphs.
        near(gib(found.total_bytes()), 61.0 + 64.0 + 2.0);
        near(gib(found.on(4).total_bytes()), 125.0 / 4.0 + 2.0);
        near(gib(found.in_8_bits().total_bytes()), 30.5 + 64.0 + 2.0);
    }
}
