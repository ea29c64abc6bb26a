//! A message weighed against the tables of its text: whether the memory that it blames was short, and what else was.

use oomph_trace::Bytes;
use oomph_trace::text::{Bound, Card, Hardware, Memory, MessageKind, OomMessage};

use super::next::{NextStep, advice, step};

/// What stopped a program whose memory was not short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// A limit that the text states, in bytes or a number.
    At(Bound, u64),
    /// Most likely the number of mappings, of which PyTorch counts so many of its own in the name of a file.
    Mapping(Option<u64>),
    /// Some limit that the text does not state.
    Elsewhere,
}

/// Whether a message is about a part of the host's memory, or a limit that the program set itself.
fn is_of_a_part(message: &OomMessage) -> bool {
    let part = message.allocator.as_deref();
    part.is_some_and(|part| {
        ["/dev/shm", "pinned memory"].contains(&part) || super::other::is_own_limit(part)
    })
}

/// Of the host's memory what could still be had, and all, where that is at least half and twice what was asked for.
pub(super) fn plenty(message: &OomMessage) -> Option<(Bytes, Bytes)> {
    if message.memory != Memory::Host || is_of_a_part(message) || message.handled {
        return None;
    }
    let free = message.tables.available()?;
    let total = message.tables.host.total?;
    let enough = message.requested.is_none_or(|asked| free.0 / 2 >= asked.0);
    (free.0 >= total.0 / 2 && enough && message.total.is_none()).then_some((free, total))
}

/// Whether words of a message are about memory that a device reads by itself, which has to be locked.
fn locks(message: &OomMessage) -> bool {
    let words = ["ibv_", "locked", "memlock", "mlock", "RDMA", "register"];
    message.allocator.as_deref() == Some("locked memory")
        || words.iter().any(|word| message.text.contains(word))
}

/// What stopped a program although the host's memory was not short, or that is likelier by what the text states.
pub(super) fn bound(message: &OomMessage) -> Option<Stopped> {
    if message.memory != Memory::Host || message.handled || message.kind == MessageKind::Killed {
        return None;
    }
    if is_of_a_part(message) {
        return None;
    }
    let stated = |bound| Some(Stopped::At(bound, message.tables.bound(bound)?));
    if locks(message) {
        return stated(Bound::Locked);
    }
    let is_free = plenty(message).is_some();
    // Below the machine's memory it is the first to be reached.
    let low = message.tables.bound(Bound::Addresses).filter(|most| {
        message
            .tables
            .host
            .total
            .is_none_or(|total| *most < total.0)
    });
    low.map(|most| Stopped::At(Bound::Addresses, most))
        .or_else(|| stated(Bound::Mappings).filter(|_| is_free || maps_little(message)))
        .or_else(|| maps_little(message).then(|| Stopped::Mapping(mapped(message))))
        .or_else(|| is_free.then_some(Stopped::Elsewhere))
}

/// Whether a mapping of next to nothing was refused, for which no machine lacks memory.
fn maps_little(message: &OomMessage) -> bool {
    /// More may be an honest shortage.
    const LITTLE: Bytes = Bytes::mib(16);
    message.text.contains("mmap")
        && ["Cannot allocate memory", "(12)", "ENOMEM"]
            .iter()
            .any(|word| message.text.contains(word))
        && message.requested.is_some_and(|asked| asked <= LITTLE)
}

/// How many files the process had mapped, by the name that PyTorch gave the last: `/torch_PID_RANDOM_NUMBER`.
fn mapped(message: &OomMessage) -> Option<u64> {
    let (_, name) = message.text.split_once("/torch_")?;
    let name = name
        .split(|c: char| !c.is_ascii_digit() && c != '_')
        .next()?;
    let mut numbers = name.split('_');
    numbers.nth(2)?.parse().ok()
}

/// The sentence of a limit that stopped a program.
pub(super) fn sentence(message: &OomMessage, stopped: Stopped) -> String {
    let free = plenty(message).map(|(free, total)| {
        format!(" ({free} of {total} could still be had, by the text's table)")
    });
    let free = free.unwrap_or_default();
    match stopped {
        Stopped::At(Bound::Locked, most) => format!(
            "the limit on locked memory (ulimit -l), {}, and not a shortage of RAM{free}: memory that a network card or a \
             GPU reads by itself has to be locked",
            Bytes(most)
        ),
        Stopped::At(Bound::Addresses, most) => format!(
            "most likely the limit on addresses (virtual memory: ulimit -v, Grid Engine's h_vmem), {}, and not a shortage \
             of RAM{free}: CUDA and threads reserve many more addresses than they use memory",
            Bytes(most)
        ),
        Stopped::Mapping(count) => format!(
            "a mapping of only {} was refused{}: most likely the process had as many mappings as the kernel allows \
             (vm.max_map_count, 65530 unless set), and not a shortage of RAM{free}",
            message.requested.unwrap_or_default(),
            count.map_or_else(String::new, |count| format!(
                ", and the file's name is the {count}th of this process"
            ))
        ),
        Stopped::At(_, most) => format!(
            "RAM was not short{free}: most likely the process had as many mappings as the kernel allows \
             (vm.max_map_count, {most}); each large block of malloc is one"
        ),
        Stopped::Elsewhere => format!(
            "RAM was not short{free}, unless that is of another moment: a limit of the process, of its container or of the \
             kernel stopped it (addresses, mappings, locked memory, a cgroup), which the text does not name"
        ),
    }
}

/// What to do about a limit that stopped a program.
pub(super) fn steps(stopped: Stopped) -> Vec<NextStep> {
    match stopped {
        Stopped::At(Bound::Locked, _) => vec![
            step(
                "ulimit -l unlimited",
                "for good: memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity for a scheduler's daemon (slurmd), \
                 docker run --ulimit memlock=-1",
            ),
            advice(
                "an administrator has to raise the hard limit; ranks on other nodes need it, too",
            ),
        ],
        Stopped::At(Bound::Addresses, _) => vec![
            step(
                "ulimit -v unlimited",
                "in Grid Engine a larger h_vmem (it counts for each slot), or a limit on what is used (m_mem_free, h_rss) in its \
                 place",
            ),
            step(
                "OMP_NUM_THREADS=4 MALLOC_ARENA_MAX=2",
                "fewer threads: each reserves addresses for its stack and its heap",
            ),
            advice("let the job see only the GPUs that it uses: CUDA reserves addresses for each"),
        ],
        Stopped::At(..) | Stopped::Mapping(_) => vec![
            step(
                "wc -l /proc/PID/maps; sysctl vm.max_map_count",
                "how many mappings the process has just before it fails, and how many it may have",
            ),
            step(
                "sudo sysctl -w vm.max_map_count=1048576",
                "more mappings (for good: /etc/sysctl.d); more RAM does not help",
            ),
            advice(
                "fewer blocks: one large array instead of many small ones, or what is kept on disk instead of in RAM",
            ),
        ],
        Stopped::Elsewhere => vec![
            step(
                "ulimit -a",
                "limits of the process: addresses (-v), locked memory (-l), threads (-u)",
            ),
            step(
                "cat /sys/fs/cgroup/memory.max; sysctl vm.max_map_count vm.overcommit_memory",
                "the limit of its container, and those of the kernel",
            ),
            advice(
                "the size that was asked for, at the line that failed: a size that was computed wrongly is no shortage",
            ),
        ],
    }
}

/// The accelerator that a message is about, as a table shows it.
pub(super) fn own_card(message: &OomMessage) -> Option<Card> {
    let cards = &message.tables.cards;
    let shown = message.tables.card(message.device).or_else(|| {
        // Without a number most programs use the first.
        let first = cards.first()?;
        (message.device.is_none() && message.tables.visible.is_empty()).then_some(first)
    });
    let around = &message.around;
    let near = Card {
        used: around.in_use,
        total: around.total,
        ..Card::default()
    };
    shown
        .copied()
        .or_else(|| (near.used.is_some() && near.total.is_some()).then_some(near))
}

/// Whether a table of the text shows the GPU of a message full.
pub(super) fn is_full(message: &OomMessage) -> bool {
    message.memory == Memory::Device && own_card(message).is_some_and(|card| card.is_full())
}

/// What the tables say of a GPU that a program found full, as the end of a sentence.
pub(super) fn of_the_card(message: &OomMessage) -> Option<String> {
    if message.memory != Memory::Device || message.handled {
        return None;
    }
    let tables = &message.tables;
    let card = own_card(message);
    let index = card.as_ref().and_then(|card| card.index);
    let name = index.map_or_else(|| "the GPU".to_owned(), |index| format!("GPU {index}"));
    let others = tables.holders_of(index);
    if let Some(holder) = others.first().filter(|held| Some(held.pid) != message.pid) {
        let total = card.as_ref().and_then(|card| card.total);
        let much = total.is_none_or(|total| holder.used.0 >= total.0 / 4);
        if much {
            let of = total.map(|total| format!(" of {name}'s {total}"));
            return Some(format!(
                "by the text's table process {} ({}) holds the most, {}{}",
                holder.pid,
                holder.name,
                holder.used,
                of.unwrap_or_default()
            ));
        }
    }
    // A list of some cards does not tell how many there are.
    let numbers = tables.cards.iter().map(|card| card.index);
    let whole = numbers.eq((0..).map(Some).take(tables.cards.len()));
    let count = tables.cards.len() as u64;
    if let Some(ranks) = tables
        .ranks
        .filter(|ranks| *ranks > count && count > 0 && whole)
    {
        return Some(format!(
            "by the text {ranks} processes share {count} {}, so their needs and their contexts add up",
            if count == 1 { "GPU" } else { "GPUs" }
        ));
    }
    let card = card?;
    if let Some(share) = card.share.filter(|_| card.is_full()) {
        return Some(format!(
            "the text's table shows {name} full ({share} % in use)"
        ));
    }
    let (used, total) = (card.used?, card.total?);
    let asked = message.requested.unwrap_or_default();
    if card.is_empty() && asked < total - used {
        return Some(format!(
            "the text's table shows {name} nearly empty ({used} of {total} in use), so unless that is of another moment the \
             program filled it by itself, or asked for too much at once"
        ));
    }
    if card.is_full() {
        return Some(format!(
            "the text's table shows {name} full ({used} of {total} in use)"
        ));
    }
    (asked > total - used).then(|| {
        format!(
            "by the text's table {} of {name}'s {total} were free",
            total - used
        )
    })
}

/// That other ranks of the job hold what lies outside this process, as the end of a sentence.
pub(super) fn of_ranks(message: &OomMessage, outside: Bytes) -> Option<String> {
    if let Some((count, each)) = contexts(message) {
        return Some(format!(
            "by {count} other processes, about {each} each: that is a context of CUDA's and little more, as of ranks or workers that \
             belong on other GPUs and touch this one as well"
        ));
    }
    let ranks = ranks_on_one(message, outside)?;
    Some(format!(
        "outside it, as much as {ranks} more {} of this job would hold: most likely they use the same GPU",
        if ranks == 1 { "rank" } else { "ranks" }
    ))
}

/// The processes on a GPU that hold alike and little, as a context of CUDA's is, and how much each does.
fn contexts(message: &OomMessage) -> Option<(usize, Bytes)> {
    const CONTEXT: Bytes = Bytes::mib(1600);
    let held = || message.others.iter().map(|other| other.used);
    let (least, most) = (held().min()?, held().max()?);
    let alike = most <= CONTEXT && most.0 - least.0 <= most.0 / 4 && least.0 > 0;
    (alike && message.others.len() > 2).then_some((message.others.len(), most))
}

/// How many more ranks of the job hold about as much as this one of the same GPU, where the text says that there are more.
fn ranks_on_one(message: &OomMessage, outside: Bytes) -> Option<u64> {
    /// A context, and the libraries', of each.
    const CONTEXT: Bytes = Bytes::gib(1);
    let ranks = message
        .tables
        .ranks
        .or(Some(message.ranks.len() as u64))
        .filter(|ranks| *ranks > 1)?;
    let own = message.reserved.filter(|held| *held >= CONTEXT)?;
    // In a list of processes each is one.
    let largest = message.others.iter().map(|other| other.used).max();
    let each = largest.map_or(own + CONTEXT, |largest| largest.max(own));
    let more = (outside.0 as f64 / each.0 as f64).round() as u64;
    let near = outside.0.abs_diff(more * each.0) <= outside.0 / 4;
    (near && (1..ranks).contains(&more)).then_some(more)
}

/// Another's process that the text names and that holds a good part of the GPU which was full.
pub(super) fn holder(message: &OomMessage) -> Option<NextStep> {
    if message.memory != Memory::Device || message.handled || message.kind != MessageKind::Native {
        return None;
    }
    let total = message.total?;
    let named: Vec<u64> = message.others.iter().map(|other| other.pid).collect();
    let outside = message.outside_pytorch().unwrap_or_default();
    let list = message.tables.holders_of(message.device);
    // Where the message names others, those are meant; else who holds more than what is this process's own can be.
    let mut held = list.iter().filter(|held| {
        held.used.0 >= total.0 / 8
            && if named.is_empty() {
                Some(held.pid) != message.pid && held.used <= outside && outside.0 > total.0 / 2
            } else {
                named.contains(&held.pid)
            }
    });
    let most = held.next()?;
    let pids: Vec<String> = std::iter::once(most)
        .chain(held.filter(|_| named.is_empty()))
        .map(|held| held.pid.to_string())
        .collect();
    Some(step(
        format!("kill {}", pids.join(" ")),
        format!(
            "if {} yours and no longer needed: {} holds {} of the GPU, by the text's list",
            if pids.len() == 1 { "it is" } else { "they are" },
            most.name,
            most.used
        ),
    ))
}

/// A GPU that is nearly empty, where another process holds a good part of the one that was full.
pub(super) fn free_card(message: &OomMessage) -> Option<NextStep> {
    if message.memory != Memory::Device || message.handled || message.ranks.len() > 1 {
        return None;
    }
    let variable = match message.hardware {
        Hardware::Gpu => "CUDA_VISIBLE_DEVICES",
        Hardware::Amd => "HIP_VISIBLE_DEVICES",
        _ => return None,
    };
    let own = own_card(message)?;
    // A shortage of its own would move with it.
    let held = !message.tables.holders_of(own.index).is_empty() || !message.others.is_empty();
    if own.is_empty() || !(own.is_full() || held) {
        return None;
    }
    let free = message
        .tables
        .cards
        .iter()
        .find(|card| card.is_empty() && card.index != own.index)?;
    let index = free.index?;
    let use_of = match (free.used.zip(free.total), free.share) {
        (Some((used, total)), _) => format!("{used} of {total}"),
        (None, share) => format!("{} %", share?),
    };
    Some(step(
        format!("{variable}={index}"),
        format!("GPU {index} is nearly empty by the text's table ({use_of} in use)"),
    ))
}

/// What of the host's memory a line near a message has free, and all, where that is half or more.
pub(super) fn free_near(message: &OomMessage) -> Option<(Bytes, Bytes)> {
    let near = message.around.free.zip(message.around.total);
    near.filter(|(free, total)| message.memory == Memory::Host && free.0 >= total.0 / 2)
}

/// What `free` says of a machine on which a process was ended, as the end of a sentence.
pub(super) fn of_the_host(message: &OomMessage) -> Option<String> {
    let host = message.tables.available().zip(message.tables.host.total);
    if let Some((free, total)) = host.filter(|(free, total)| free.0 < total.0 / 20) {
        return Some(format!(
            "; the text's table shows it nearly used up ({free} of {total} could still be had)"
        ));
    }
    let (free, total) = plenty(message)?;
    Some(format!(
        "; the text's table shows {free} of {total} to be had, so it is of another moment, or a limit below the machine's \
         (a container, a job) was reached"
    ))
}
