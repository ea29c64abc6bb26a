//! Levers that a framework has an argument for: it is edited where the script makes the framework's object, or its arguments'.

use oomph_python_source::ast::{Expr, ExprCall, Stmt};
use oomph_python_source::{Edit, Module, Ranged, calls_in, dotted_name, last_name};

use crate::by_hand::Work;
use crate::by_hand::script::{Script, only};
use crate::levers::Lever;

/// Hugging Face's class of a Trainer's arguments; those derived from it end like it.
const ARGUMENTS: &str = "TrainingArguments";

/// Where arguments are given.
enum Target<'m> {
    /// In a call.
    Call(&'m ExprCall),
    /// In an object of a data class, which may come from anywhere, before the statement that uses it.
    Instance(String, &'m Stmt),
}

/// What an argument becomes.
enum New {
    /// This, whatever it was.
    Value(String),
    /// A part of what it was; its default, where that is known.
    Part(u32, Option<&'static str>),
    /// So many times what it was, which is one by default.
    Times(u32),
}

/// An argument of a target, by the target's place among the framework's.
type Change = (usize, &'static str, New);

/// Edits the arguments of the framework's objects for those of `levers` that it has arguments for; which those are. None if the
/// script has no such object, or several.
pub(super) fn place(work: &mut Work<'_>, levers: &[Lever]) -> Vec<Lever> {
    let switched = work.switches;
    let mut placed = Vec::new();
    let mut replaces = false;
    let done = work.edit(|script| {
        let framework = Framework::of(script)?;
        let targets = framework.targets(script)?;
        let edits = |changes: &[Change]| {
            let made = targets.iter().enumerate().map(|(index, target)| {
                let own = changes.iter().filter(|change| change.0 == index);
                target.edits(script.module, &own.collect::<Vec<_>>())
            });
            Some(made.collect::<Option<Vec<_>>>()?.concat())
        };
        let mut all = Vec::new();
        for lever in levers {
            let shown = switched.get(lever.name());
            // Only a run tells whether the framework does the same, or whose arguments an object has.
            let is_certain = match targets.first() {
                Some(Target::Instance(..)) => shown.is_some_and(|how| how.starts_with(ARGUMENTS)),
                _ => shown.is_some() || !lever.facets().switches().needs_run,
            };
            if !is_certain {
                continue;
            }
            let changes = framework.changes(lever);
            // Half of a lever's arguments would be another step: each has its target, or none is edited.
            let are_there = changes.iter().all(|change| change.0 < targets.len());
            if !changes.is_empty() && are_there && edits(&changes).is_some() {
                all.extend(changes);
                placed.push(lever.clone());
            }
        }
        replaces = !all.is_empty() && matches!(targets.first(), Some(Target::Instance(..)));
        edits(&all)
    });
    if done.is_none() {
        placed.clear();
    } else if replaces {
        work.import("import dataclasses");
    }
    placed
}

/// A framework.
enum Framework {
    /// Hugging Face's Trainer.
    Trainer,
    Accelerate,
    Lightning,
}

impl Framework {
    /// The one of a script.
    fn of(script: &Script<'_>) -> Option<Self> {
        let has = |is_it: &dyn Fn(&str) -> bool| made(script, is_it).is_some();
        if has(&|name| name.ends_with(ARGUMENTS)) {
            Some(Self::Trainer)
        } else if has(&|name| name == "Accelerator") {
            Some(Self::Accelerate)
        } else if script.module.text().contains("lightning") {
            has(&|name| name == "Trainer").then_some(Self::Lightning)
        } else {
            has(&|name| name.ends_with("Trainer")).then_some(Self::Trainer)
        }
    }

    /// What it gets arguments by, those that accumulate first.
    fn targets<'m>(&self, script: &Script<'m>) -> Option<Vec<Target<'m>>> {
        Some(match self {
            Self::Trainer => {
                let direct = made(script, |name| name.ends_with(ARGUMENTS));
                vec![if let Some(call) = direct {
                    Target::Call(call)
                } else {
                    let trainer = made(script, |name| name.ends_with("Trainer"))?;
                    let given = trainer.arguments.find_argument_value("args", 1)?;
                    let around = script.module.statements_around(trainer.start());
                    Target::Instance(dotted_name(given)?, around.last()?)
                }]
            }
            Self::Accelerate => vec![Target::Call(made(script, |name| name == "Accelerator")?)],
            Self::Lightning => {
                let loader = made(script, |name| name == "DataLoader");
                let trainer = made(script, |name| name == "Trainer")?;
                [Some(trainer), loader]
                    .into_iter()
                    .flatten()
                    .map(Target::Call)
                    .collect()
            }
        })
    }

    /// What becomes of its arguments for a lever.
    fn changes(&self, lever: &Lever) -> Vec<Change> {
        let switches = lever.facets().switches();
        let (size, count, sized) = match self {
            Self::Trainer => (
                ("per_device_train_batch_size", Some("8")),
                "gradient_accumulation_steps",
                0,
            ),
            Self::Lightning => (("batch_size", None), "accumulate_grad_batches", 1),
            Self::Accelerate => return given(switches.accelerate),
        };
        match (lever.micro_batches(), self) {
            (Some(parts), _) => vec![
                (sized, size.0, New::Part(parts, size.1)),
                (0, count, New::Times(parts)),
            ],
            (None, Self::Trainer) => given(switches.huggingface),
            (None, _) => given(switches.lightning),
        }
    }
}

fn given(switch: Option<(&'static str, String)>) -> Vec<Change> {
    let changes = switch.map(|(name, value)| (0, name, New::Value(value)));
    changes.into_iter().collect()
}

/// The one call that ran of a class with such a name.
fn made<'m>(script: &Script<'m>, is_it: impl Fn(&str) -> bool) -> Option<&'m ExprCall> {
    let calls = calls_in(script.module.body()).into_iter();
    only(calls.filter(|call| {
        let around = script.function(call);
        last_name(&call.func).is_some_and(&is_it)
            && around.is_none_or(|function| script.ran(function))
    }))
}

impl Target<'_> {
    /// Gives it other arguments; `None` if one cannot be told from what it is.
    fn edits(&self, module: &Module<'_>, changes: &[&Change]) -> Option<Vec<Edit>> {
        if changes.is_empty() {
            return Some(Vec::new());
        }
        let (mut edits, mut added, mut over) = (Vec::new(), Vec::new(), Vec::new());
        let call = match self {
            Self::Call(call) => call,
            Self::Instance(name, stmt) => {
                for (_, key, new) in changes {
                    added.push(format!(
                        "{key}={}",
                        new.text(Some(&format!("{name}.{key}")))?
                    ));
                }
                let line = format!("{name} = dataclasses.replace({name}, {})", added.join(", "));
                return Some(vec![module.insert_before(stmt, &[line])?]);
            }
        };
        // `**config`: what it has of these is overridden, as others may read it.
        let mut mappings = call.arguments.keywords.iter();
        let mappings: Vec<&Expr> = mappings
            .by_ref()
            .filter(|keyword| keyword.arg.is_none())
            .map(|keyword| &keyword.value)
            .collect();
        for (_, key, new) in changes {
            match (call.arguments.find_keyword(key), &mappings[..]) {
                (Some(keyword), _) => {
                    let text = new.text(Some(module.slice(&keyword.value)))?;
                    edits.push(Edit::replace(&keyword.value, text));
                }
                (None, []) => added.push(format!("{key}={}", new.text(None)?)),
                (None, [mapping]) => {
                    let mapping = module.slice(*mapping);
                    let now = match new {
                        New::Value(_) => String::new(),
                        New::Part(_, Some(by_default)) => {
                            format!("{mapping}.get(\"{key}\", {by_default})")
                        }
                        New::Part(..) => format!("{mapping}[\"{key}\"]"),
                        New::Times(_) => format!("{mapping}.get(\"{key}\", 1)"),
                    };
                    over.push(format!("\"{key}\": {}", new.text(Some(&now))?));
                }
                (None, _) => return None,
            }
        }
        if let ([mapping], false) = (&mappings[..], over.is_empty()) {
            let text = format!("{{**{}, {}}}", module.slice(*mapping), over.join(", "));
            edits.push(Edit::replace(*mapping, text));
        }
        if !added.is_empty() {
            edits.push(module.add_keyword(call, &added.join(", ")));
        }
        Some(edits)
    }
}

impl New {
    /// The argument's value in place of the one that it has `now`.
    fn text(&self, now: Option<&str>) -> Option<String> {
        let is_name = |now: &str| now.chars().all(|c| c.is_alphanumeric() || "_.".contains(c));
        let operand = |now: &str| {
            if is_name(now) {
                now.to_owned()
            } else {
                format!("({now})")
            }
        };
        Some(match self {
            Self::Value(value) => value.clone(),
            Self::Part(parts, by_default) => {
                let now = now.or(*by_default)?;
                match now.parse::<u32>() {
                    Ok(size) if size % parts == 0 => (size / parts).to_string(),
                    Ok(_) => return None,
                    Err(_) => format!("{} // {parts}", operand(now)),
                }
            }
            Self::Times(by) => match now.unwrap_or("1").parse::<u32>() {
                Ok(now) => (now * by).to_string(),
                Err(_) => format!("{} * {by}", operand(now.unwrap_or("1"))),
            },
        })
    }
}
