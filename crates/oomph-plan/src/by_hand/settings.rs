//! Settings of PyTorch, and where gradients are recorded.

use crate::by_hand::Work;
use crate::by_hand::script::{Edit, Logical, Script};

/// A setting of torch: where the script sets it itself, or else after its imports.
pub(crate) fn flag(work: &mut Work<'_>, name: &str, enabled: bool) -> Option<()> {
    let value = if enabled { "True" } else { "False" };
    // `cudnn.benchmark`, however `cudnn` was imported.
    let parts: Vec<&str> = name.rsplitn(3, '.').take(2).collect();
    let short = format!("{}.{}", parts.get(1)?, parts.first()?);
    let sets: Vec<Edit> = work
        .script()
        .lines
        .iter()
        .enumerate()
        .filter_map(|(number, line)| {
            let (target, rest) = line.split_once('=')?;
            let target = target.trim_end();
            if rest.starts_with('=')
                || !(target.trim() == short || target.ends_with(&format!(".{short}")))
            {
                return None;
            }
            let line = format!("{target} = {value}");
            Some(Edit::replace(number, number, vec![line]))
        })
        .collect();
    if sets.is_empty() {
        let at = work.places().after_imports.filter(|_| work.has_torch())?;
        work.apply(vec![Edit::insert(at, vec![format!("{name} = {value}")])]);
    } else {
        work.apply(sets);
    }
    Some(())
}

/// TF32 in products and in convolutions.
pub(crate) fn tf32(work: &mut Work<'_>, enabled: bool) -> Option<()> {
    let script = work.script();
    // PyTorch refuses to answer for the older setting where the newer one was made.
    if script
        .lines
        .iter()
        .any(|line| line.contains("fp32_precision"))
    {
        return None;
    }
    let call = "set_float32_matmul_precision(";
    let precision = if enabled { "high" } else { "highest" };
    let sets: Vec<Edit> = script
        .statements
        .iter()
        .filter(|one| one.first == one.last)
        .filter_map(|one| {
            let line = script.lines.get(one.first)?;
            let (before, after) = line.split_once(call)?;
            let (_, after) = after.split_once(')')?;
            let line = format!("{before}{call}\"{precision}\"){after}");
            Some(Edit::replace(one.first, one.last, vec![line]))
        })
        .collect();
    work.places().after_imports.filter(|_| work.has_torch())?;
    if sets.is_empty() {
        flag(work, "torch.backends.cuda.matmul.allow_tf32", enabled)?;
    } else {
        work.apply(sets);
    }
    flag(work, "torch.backends.cudnn.allow_tf32", enabled)
}

/// No graph while a model evaluates: a decorator for a function that trains nothing, else from
/// `eval()` to `train()`.
pub(crate) fn evaluation_without_graph(work: &mut Work<'_>) -> Option<()> {
    let script = work.script();
    if !work.has_torch() {
        return None;
    }
    let texts: Vec<String> = script
        .statements
        .iter()
        .map(|statement| script.text(statement))
        .collect();
    let scopes = Scopes::find(&script, &texts);
    let mut edits = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        let Some(model) = text.strip_suffix(".eval()") else {
            continue;
        };
        let next = texts.get(at + 1).map_or("", String::as_str);
        if model.contains([' ', '(', '='])
            || ["no_grad", "inference_mode"]
                .iter()
                .any(|word| next.contains(word))
        {
            continue;
        }
        let scope = scopes.around(&script.statements, at);
        let head = scope.and_then(|scope| script.statements.get(scope.head));
        let indent = |statement: &Logical| " ".repeat(statement.indent);
        if let (Some(scope), Some(head)) = (scope, head)
            && !scope.trains
        {
            let before = head
                .first
                .checked_sub(1)
                .and_then(|line| script.lines.get(line));
            if scope.yields {
                return None;
            }
            if !before
                .is_some_and(|line| line.contains("no_grad") || line.contains("inference_mode"))
            {
                let line = format!("{}@torch.no_grad()", indent(head));
                edits.push(Edit::insert(head.first, vec![line]));
            }
            continue;
        }
        let body = scope.map_or(0..texts.len(), |scope| scope.head + 1..scope.end);
        let again = format!("{model}.train()");
        let trains: Vec<&Logical> = body
            .clone()
            .filter(|&other| texts.get(other).is_some_and(|text| *text == again))
            .filter_map(|other| script.statements.get(other))
            .collect();
        let statement = script.statements.get(at)?;
        let outermost = script
            .statements
            .get(body.start)
            .map_or(0, |first| first.indent);
        let later = body.clone().any(|other| {
            other > at
                && texts
                    .get(other)
                    .is_some_and(|text| text.contains(".backward("))
        });
        if trains.is_empty() && (later || statement.indent != outermost) {
            return None;
        }
        let off = format!("{}torch.set_grad_enabled(False)", indent(statement));
        edits.push(Edit::insert(statement.last + 1, vec![off]));
        edits.extend(trains.into_iter().map(|train| {
            let on = format!("{}torch.set_grad_enabled(True)", indent(train));
            Edit::insert(train.first, vec![on])
        }));
    }
    if edits.is_empty() {
        return None;
    }
    let mut once: Vec<Edit> = Vec::new();
    for edit in edits {
        if !once.contains(&edit) {
            once.push(edit);
        }
    }
    work.apply(once);
    Some(())
}

/// Checkpoints to the CPU, where the script says to which device.
pub(crate) fn read_to_cpu(work: &mut Work<'_>) -> Option<()> {
    let places = ["\"cuda\"", "'cuda'", "\"cuda:0\"", "'cuda:0'", "device"];
    let script = work.script();
    let edits: Vec<Edit> = places
        .iter()
        .flat_map(|place| {
            script.replace_all(&format!("map_location={place}"), "map_location=\"cpu\"")
        })
        .collect();
    if edits.is_empty() {
        return None;
    }
    work.apply(edits);
    Some(())
}

/// A function of the script.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// Its head's number among the statements.
    head: usize,
    /// The number after its last statement's.
    end: usize,
    /// Whether it calls `backward`, or a function that does.
    trains: bool,
    yields: bool,
}

struct Scopes(Vec<Scope>);

impl Scopes {
    fn find(script: &Script<'_>, texts: &[String]) -> Self {
        let mut scopes: Vec<(String, Scope)> = Vec::new();
        for (head, text) in texts.iter().enumerate() {
            let Some(rest) = text.strip_prefix("def ") else {
                continue;
            };
            let indent = script.statements.get(head).map_or(0, |one| one.indent);
            let end = (head + 1..texts.len())
                .find(|&at| {
                    script
                        .statements
                        .get(at)
                        .is_some_and(|one| one.indent <= indent)
                })
                .unwrap_or(texts.len());
            let body = texts.get(head + 1..end).unwrap_or_default();
            let name = rest.split('(').next().unwrap_or_default().trim().to_owned();
            let scope = Scope {
                head,
                end,
                trains: body.iter().any(|text| text.contains(".backward(")),
                yields: body.iter().any(|text| text.contains("yield")),
            };
            scopes.push((name, scope));
        }
        // Who calls one that trains, trains.
        loop {
            let training: Vec<String> = scopes
                .iter()
                .filter(|(_, scope)| scope.trains)
                .map(|(name, _)| format!("{name}("))
                .collect();
            let mut changed = false;
            for (_, scope) in scopes.iter_mut().filter(|(_, scope)| !scope.trains) {
                let body = texts.get(scope.head + 1..scope.end).unwrap_or_default();
                scope.trains = body
                    .iter()
                    .any(|text| training.iter().any(|call| text.contains(call)));
                changed |= scope.trains;
            }
            if !changed {
                break;
            }
        }
        Self(scopes.into_iter().map(|(_, scope)| scope).collect())
    }

    /// The innermost function around a statement.
    fn around(&self, statements: &[Logical], at: usize) -> Option<Scope> {
        self.0
            .iter()
            .filter(|scope| scope.head < at && at < scope.end)
            .max_by_key(|scope| statements.get(scope.head).map_or(0, |head| head.indent))
            .copied()
    }
}
