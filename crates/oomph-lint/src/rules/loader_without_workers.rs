use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{dotted_name, last_name, last_part};

use crate::project::decodes_files;
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, FuncId, Model};

declare_rule! {
    /// The process that trains decodes the files as well.
    ///
    /// ## What it does
    ///
    /// Looks for a `DataLoader` for training without `num_workers`, over a data set that opens and decodes a file for
    /// each item: `ImageFolder` and its like, or a class of the project whose `__getitem__` reads images, sound or
    /// volumes. Loaders that are given other settings by `**`, tests, and jobs on the CPU are left out.
    ///
    /// ## Why it costs memory
    ///
    /// It costs time: the default is no worker, so the loop opens, decodes and transforms one file after another before
    /// each step, and the GPU waits with all that it holds. Workers do that while it computes.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.utils.data import DataLoader
    /// from torchvision.datasets import ImageFolder
    ///
    /// def train(model, criterion, optimizer, transform):
    ///     train_loader = DataLoader(ImageFolder("train", transform), batch_size=64, shuffle=True)
    ///     for x, y in train_loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x.cuda()), y.cuda()).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch.utils.data import DataLoader
    /// from torchvision.datasets import ImageFolder
    ///
    /// def train(model, criterion, optimizer, transform):
    ///     train_loader = DataLoader(ImageFolder("train", transform), batch_size=64, shuffle=True, num_workers=4, pin_memory=True)
    ///     for x, y in train_loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x.cuda()), y.cuda()).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// Where processes cannot be started, or there are a few small files that stay in memory.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know how many cores there are.
    OOM606 "loader-without-workers" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let is_loader = |call: &Call<'_>| {
        call.is("torch.utils.data.DataLoader") || call.is("torch.utils.data.dataloader.DataLoader")
    };
    // Most files make no loader, and need not ask what the others do.
    if !model.calls.iter().any(is_loader) || !mentions_gpu(model) || on_cpu_only(model) {
        return;
    }
    for call in model.calls.iter().filter(|call| is_loader(call)) {
        let is_bare = call.arg("num_workers", 5).is_none()
            && call.keyword("batch_sampler").is_none()
            && !call.has_star_args()
            && !call.has_star_kwargs();
        let Some(data) = call.arg("dataset", 0) else { continue };
        if !is_bare || !is_for_training(model, call, data) || in_unit_test(model, call.ctx) {
            continue;
        }
        let func = model.func_of(call.ctx);
        let Some(made) = made(model, func, data, 0) else { continue };
        // Here, or in a function of another file: `trainer.fit(loader)`.
        let hands_over = || {
            model.calls.iter().any(|call| {
                last_name(&call.node.func).is_some_and(|name| {
                    let name = name.to_ascii_lowercase();
                    (name.contains("train") && name != "train" || name == "fit" || name == "train" && !call.node.arguments.is_empty())
                        && !name.contains("pretrain")
                })
            })
        };
        let trains = || !model.backwards.is_empty() || hands_over() && model.around.trains();
        if decodes(model, made) && trains() {
            let name = last_name(&made.func).unwrap_or_default();
            out.push(
                Report::new(
                    call.node,
                    format!("no workers: the loop decodes every file of `{name}` itself, and the GPU waits for it"),
                )
                .help("pass `num_workers=4`, say, and `pin_memory=True`"),
            );
        }
    }
}

/// Whether a loader is there for training: it shuffles, or its name or that of its data says so.
fn is_for_training(model: &Model<'_>, call: &Call<'_>, data: &Expr) -> bool {
    let says_so = |name: &str| {
        let name = last_part(name).to_ascii_lowercase();
        name.contains("train") && !name.contains("val") && !name.contains("test")
    };
    let shuffles = matches!(call.arg("shuffle", 2), Some(Expr::BooleanLiteral(flag)) if flag.value);
    shuffles
        || dotted_name(data).is_some_and(|name| says_so(&name))
        || model
            .assigns
            .iter()
            .any(|assign| assign.stmt == call.stmt && says_so(&assign.place))
}

/// The call that made a data set: behind its name, a split, or a part of it.
fn made<'a>(model: &Model<'a>, func: Option<FuncId>, data: &'a Expr, depth: usize) -> Option<&'a ExprCall> {
    const MAX_DEPTH: usize = 4;
    if depth > MAX_DEPTH {
        return None;
    }
    if let Expr::Call(call) = data {
        return match last_name(&call.func) {
            Some("random_split" | "Subset" | "train_test_split") => {
                made(model, func, call.arguments.find_positional(0)?, depth + 1)
            }
            _ => Some(call),
        };
    }
    let name = dotted_name(data)?;
    let of_self = name.starts_with("self.");
    let mut bound = model
        .assigns
        .iter()
        .filter(|assign| {
            assign.place == name
                && (of_self || model.func_of(assign.ctx) == func || model.func_of(assign.ctx).is_none())
        })
        .filter_map(|assign| assign.expr)
        .filter(|expr| !std::ptr::eq(*expr, data))
        .peekable();
    bound.peek()?;
    let made: Vec<Option<&ExprCall>> = bound.map(|expr| made(model, func, expr, depth + 1)).collect();
    // In one branch a folder of images, in another an array.
    made.iter().all(|each| each.is_some_and(|each| decodes(model, each))).then(|| made[0])?
}

/// Whether what a call makes decodes a file for each item.
fn decodes(model: &Model<'_>, made: &ExprCall) -> bool {
    const FOLDERS: &[&str] = &[
        "ImageFolder", "DatasetFolder", "CelebA", "StanfordCars", "Flowers102", "OxfordIIITPet", "Food101", "VOCDetection",
        "VOCSegmentation", "CocoDetection", "CocoCaptions", "Cityscapes", "SBDataset", "ImageNet", "Places365", "LSUN",
        "INaturalist", "GTSRB", "DTD", "Country211", "FGVCAircraft", "SUN397", "Caltech101", "Caltech256",
    ];
    let Some(name) = last_name(&made.func) else { return false };
    let own = model.classes.iter().find(|class| class.node.name.as_str() == name);
    match own {
        Some(class) => {
            decodes_files(model.module, class.node)
                // Read once, and kept.
                && !model.text(class.node).contains("cache")
        }
        None => FOLDERS.contains(&name) || model.around.decodes_files(name),
    }
}
