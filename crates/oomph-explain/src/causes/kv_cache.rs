//! `kv_cache`: generation keeps keys and values of every token.

use oomph_trace::{Bytes, Category, Phase, StackId, StringId};

use std::collections::{HashMap, HashSet};

use super::{Basis, Cause, Evidence, Fix, enough_parts, stack_evidence};
use crate::facts::{Facts, Live};
use crate::lever;
use crate::repeats::{self, Join};

/// Buffers of one size and line are those of as many layers at least.
const LAYERS: usize = 4;
/// Operators that allocate something to be filled later.
const BLANK: [&str; 4] = ["::zeros", "::empty", "::new_zeros", "::new_empty"];
/// A cache below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.3;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let of_library = |block: &Live| facts.stacks.get(block.stack).in_kv_cache();
    let mut by_hand = by_hand(facts);
    by_hand.extend(read_on(facts));
    let ahead = allocated_ahead(facts);
    let in_cache = |block: &Live| {
        of_library(block) || by_hand.contains(&block.id) || ahead.contains(&block.id)
    };
    let cached = repeats::bytes(facts, in_cache);
    let share = facts.share(cached);
    if share < DECISIVE {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        cached,
        "keys and values of the tokens so far, and the copies that are made as they grow"
            .to_owned(),
    )];
    evidence.extend(stack_evidence(facts, in_cache));
    let split = facts.split(in_cache);
    let parts = enough_parts(facts, &split);
    let mut fixes = vec![Fix::advice(
        "smaller_batch",
        match parts {
            2 => "generate for half as many sequences at once".to_owned(),
            _ => format!("generate for one part in {parts} of the sequences at once"),
        },
        split.saves(1.0 / parts as f64),
        Basis::Estimated,
        "exact",
    )];
    if facts.live.iter().any(of_library) {
        fixes.insert(
            0,
            Fix::lever(
                lever::KV_CACHE,
                "store the cache in 8 bits (cache_implementation=\"quantized\")",
                split.saves(0.5),
                Basis::Estimated,
                "numerics change",
            ),
        );
    } else {
        fixes.push(if ahead.is_empty() {
            Fix::advice(
                "allocate_once",
                "allocate the cache once at its full length and write into it: joining needs the old \
                 and the new one at a time",
                cached / 4,
                Basis::Estimated,
                "exact",
            )
        } else {
            Fix::advice(
                "shorter_cache",
                "allocate the cache for as many tokens as the longest text has",
                cached / 2,
                Basis::Estimated,
                "exact",
            )
        });
    }
    Some(Cause {
        id: "kv_cache",
        // Activations beside it are the same job's.
        confidence: (0.76 + share / 5.0).min(0.95),
        verdict: if ahead.is_empty() {
            format!(
                "the KV cache holds {} and grows with every token",
                Bytes(cached)
            )
        } else {
            format!(
                "the KV cache holds {}, allocated before the first token",
                Bytes(cached)
            )
        },
        evidence,
        fixes,
    })
}

/// Blocks of a cache that is allocated at its full length before the first token, as a recorder saw it.
fn allocated_ahead(facts: &Facts) -> HashSet<u32> {
    let seen = &facts.options.seen;
    if facts.trains() {
        return HashSet::new();
    }
    // Outside of models, attention tells them from results that are written into one tensor each.
    let attends = facts.attends();
    let is_blank = |block: &Live| {
        let operator = facts.operator(block);
        block.phase == Phase::Setup
            && facts.module(block) == StringId::EMPTY
            && BLANK.iter().any(|name| operator.ends_with(name))
    };
    let mut blank: HashMap<u64, usize> = HashMap::new();
    for block in facts.live.iter().filter(|block| attends && is_blank(block)) {
        *blank.entry(block.bytes).or_default() += 1;
    }
    let in_cache = facts.live.iter().filter(|block| {
        let row = facts.row_of(block);
        let filled = seen.filled.contains(&row) && block.category != Category::Activation;
        let of_layers = || is_blank(block) && blank.get(&block.bytes).is_some_and(|&n| n >= LAYERS);
        seen.caches.contains(&row) || attends && (filled || of_layers())
    });
    in_cache.map(|block| block.id).collect()
}

/// Blocks of a cache in pages, or in a list: what an inference that attends makes again and again, and reads for each token after it.
fn read_on(facts: &Facts) -> HashSet<u32> {
    if facts.trains() || !facts.attends() {
        return HashSet::new();
    }
    let read_on = &facts.options.seen.read_on;
    let is_read_on = |block: &&Live| read_on.contains(&facts.row_of(block));
    let blocks = facts.live.iter().filter(is_read_on);
    blocks.map(|block| block.id).collect()
}

/// Blocks of a cache that is written by hand: in inference, modules join it again and again, each time into a
/// longer one, or a function does so for keys and values alike. Lists that are joined for every use count, too.
fn by_hand(facts: &Facts) -> HashSet<u32> {
    let mut joins = repeats::joins(facts);
    joins.retain(|_, join| join.inference);
    let by_modules =
        |block: &Live| block.phase == Phase::Inference && facts.stacks.get(block.stack).in_module();
    // What one pass made and the next one gets: keys and values, or the whole that they are views of.
    let mut blocks: HashSet<u32> = facts
        .live
        .iter()
        .filter(|block| by_modules(block) && block.category == Category::Input)
        .map(|block| block.id)
        .collect();
    let in_modules = joins.values().any(|join| {
        join.in_module && (join.is_steady() || !blocks.is_empty() && join.adds_little())
    });
    if in_modules {
        let pile = repeats::pile(facts, by_modules);
        blocks.extend(pile.into_iter().flat_map(|pile| pile.blocks));
    } else {
        blocks.clear();
        joins.retain(|_, join| join.is_steady());
    }
    let mut alike: HashMap<&[u64], usize> = HashMap::new();
    for join in joins.values() {
        *alike.entry(&join.sizes).or_default() += 1;
    }
    // One line may join keys and values of all layers, which attention reads.
    let mut by_size: HashMap<(StackId, u64), usize> = HashMap::new();
    for block in &facts.live {
        *by_size.entry((block.stack, block.bytes)).or_default() += 1;
    }
    let attends = facts.attends();
    let of_layers = |stack: StackId| {
        attends
            && by_size
                .iter()
                .any(|(key, &n)| key.0 == stack && n >= LAYERS)
    };
    let is_cache = |stack: StackId, join: &Join| {
        join.in_module && in_modules
            || alike.get(join.sizes.as_slice()).is_some_and(|&n| n > 1)
            || of_layers(stack)
    };
    let stacks: HashSet<StackId> = joins
        .iter()
        .filter(|&(&stack, join)| is_cache(stack, join))
        .map(|(&stack, _)| stack)
        .collect();
    // Also those of other moments, which may be as high.
    let joined = facts.every().filter(|block| stacks.contains(&block.stack));
    blocks.extend(joined.map(|block| block.id));
    blocks
}
