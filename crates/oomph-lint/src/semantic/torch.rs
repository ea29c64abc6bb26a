//! What the linter knows about PyTorch by name: constructors, functions, methods, and the names
//! that people give to models, optimizers and loaders.

use oomph_python_source::last_part;

use super::value::{Kind, ModelKind};

/// How sure the last part of a dotted name is to mean one thing, when nothing else is known.
///
/// Public training code is remarkably uniform here. Names that mean two things in the wild
/// (`opt` is as often `argparse`'s result as an optimizer) are left out.
pub(crate) fn hint(name: &str) -> Option<Kind> {
    let lower = name.trim_start_matches('_').to_ascii_lowercase();
    let name = lower.as_str();
    if name.contains("loader") && !name.ends_with("loaders") && !name.contains("loader_") {
        return Some(Kind::Loader);
    }
    if let Some((phase, what)) = name.rsplit_once('_')
        && matches!(what, "dl" | "iter" | "iterator" | "queue" | "batches")
        && matches!(
            phase,
            "train"
                | "training"
                | "val"
                | "valid"
                | "validation"
                | "test"
                | "dev"
                | "eval"
                | "data"
        )
    {
        return Some(Kind::Loader);
    }
    if matches!(name, "optimizer" | "optim" | "optimiser")
        || name.starts_with("optimizer_")
        || name.ends_with("optimizer")
        || name.ends_with("optimiser")
        || name.ends_with("_optim")
    {
        return Some(Kind::Optimizer);
    }
    if matches!(
        name,
        "criterion" | "crit" | "loss_fn" | "loss_func" | "loss_function" | "lossfn" | "loss_fct"
    ) || name.starts_with("criterion_")
        || name.ends_with("_criterion")
        || name.ends_with("_loss_fn")
    {
        return Some(Kind::Criterion {
            cross_entropy: false,
        });
    }
    if matches!(name, "scaler" | "grad_scaler" | "gradscaler" | "amp_scaler") {
        return Some(Kind::Scaler);
    }
    if begins_with_a_verb(name) {
        return None;
    }
    if matches!(
        name,
        "model"
            | "net"
            | "network"
            | "generator"
            | "discriminator"
            | "encoder"
            | "decoder"
            | "backbone"
            | "classifier"
            | "unet"
            | "teacher"
            | "student"
            | "policy_net"
            | "target_net"
    )
        // `netG`, `netE`
        || name
            .strip_prefix("net")
            .is_some_and(|rest| rest.len() == 1 && rest.starts_with(|c: char| c.is_ascii_alphabetic() && c != 's'))
        || name.ends_with("_model")
        || name.ends_with("_net")
        || name.ends_with("_network")
        || (name.starts_with("model_")
            && name.len() <= 8
            && !matches!(name, "model_fn" | "model_cls"))
        || name.ends_with("_teacher")
        || name.ends_with("_student")
    {
        return Some(Kind::Model(ModelKind::Plain));
    }
    None
}

/// Whether a name is that of a function that makes a model, or does something with one: `build_model`, `ratios` of
/// `compute_ratios_from_policy`.
pub(crate) fn begins_with_a_verb(name: &str) -> bool {
    [
        "get_",
        "compute_",
        "calculate_",
        "build_",
        "make_",
        "create_",
        "load_",
        "init_",
        "define_",
        "setup_",
        "save_",
        "evaluate_",
        "run_",
        "fit_",
        "predict_",
        "validate_",
        "compile_",
        "print_",
        "export_",
        "convert_",
        "call_",
        "apply_",
        "update_",
        "reset_",
        "freeze_",
        "check_",
        "unwrap_",
        "wrap_",
        "strip_",
        "compare_",
        "select_",
        "forecast_",
        "profile_",
        "benchmark_",
    ]
    .iter()
    .any(|verb| name.starts_with(verb))
}

/// Roots whose attributes are settings, never models: `args.model` is a string.
pub(crate) fn is_settings_root(name: &str) -> bool {
    matches!(
        name,
        "args"
            | "opt"
            | "opts"
            | "cfg"
            | "config"
            | "conf"
            | "hparams"
            | "params"
            | "FLAGS"
            | "flags"
            | "hp"
            | "options"
            | "cli_args"
            | "training_args"
            | "model_args"
            | "data_args"
    )
}

/// The kind of object that calling `qual` makes, if that is known from its full name.
pub(crate) fn constructed(qual: &str) -> Option<Kind> {
    let last = last_part(qual);
    if let Some(name) = strip_any(qual, &["torch.nn.modules.loss.", "torch.nn."]) {
        if name.starts_with("functional.")
            || name.starts_with("init.")
            || name.starts_with("utils.")
        {
            return None;
        }
        if last.ends_with("Loss") {
            return Some(Kind::Criterion {
                cross_entropy: last == "CrossEntropyLoss",
            });
        }
        return match last {
            "MultiheadAttention" => Some(Kind::Model(ModelKind::MultiheadAttention)),
            "LSTM" | "GRU" | "RNN" | "LSTMCell" | "GRUCell" | "RNNCell" => {
                Some(Kind::Model(ModelKind::Recurrent))
            }
            "Softmax" | "LogSoftmax" => Some(Kind::Model(ModelKind::Softmax)),
            "Parameter" | "Buffer" => Some(Kind::Tensor),
            "ParameterList" | "ParameterDict" | "ModuleList" | "ModuleDict" => {
                Some(Kind::Collection)
            }
            _ if last.starts_with(|c: char| c.is_ascii_uppercase()) => {
                Some(Kind::Model(ModelKind::Plain))
            }
            _ => None,
        };
    }
    if let Some(name) = qual.strip_prefix("torch.optim.") {
        if name.starts_with("lr_scheduler.") || name.starts_with("swa_utils.") {
            return None;
        }
        return last
            .starts_with(|c: char| c.is_ascii_uppercase())
            .then_some(Kind::Optimizer);
    }
    match qual {
        "torch.utils.data.DataLoader"
        | "torch.utils.data.dataloader.DataLoader"
        | "torch_geometric.loader.DataLoader"
        | "torch_geometric.data.DataLoader" => return Some(Kind::Loader),
        "torch.GradScaler"
        | "torch.cuda.amp.GradScaler"
        | "torch.amp.GradScaler"
        | "torch.cuda.amp.grad_scaler.GradScaler" => return Some(Kind::Scaler),
        "torch.device" => return Some(Kind::Device),
        "torch.load" => return Some(Kind::Checkpoint),
        // It turns gradients off itself.
        "transformers.pipeline" => return Some(Kind::Instance),
        "timm.create_model" | "torch.hub.load" | "torch.jit.load" | "torch.compile" => {
            return Some(Kind::Model(ModelKind::Plain));
        }
        _ => {}
    }
    if qual.starts_with("torchvision.models.") && !qual.ends_with("_Weights") {
        return Some(Kind::Model(ModelKind::Plain));
    }
    if let Some(rest) = qual.strip_prefix("transformers.")
        && let Some(class) = rest.strip_suffix(".from_pretrained")
    {
        let class = last_part(class);
        if class.contains("Model") || class.contains("For") {
            return Some(Kind::Model(ModelKind::Plain));
        }
        return None;
    }
    // Lightning's, of any class: `Net.load_from_checkpoint(path)`.
    if let Some(class) = qual.strip_suffix(".load_from_checkpoint")
        && last_part(class).starts_with(|c: char| c.is_ascii_uppercase())
    {
        return Some(Kind::Model(ModelKind::Plain));
    }
    if last == "AverageMeter" {
        return Some(Kind::Meter);
    }
    None
}

/// A base class that makes its subclasses modules.
pub(crate) fn is_module_base(qual: &str) -> bool {
    constructed(qual).is_some_and(|kind| matches!(kind, Kind::Model(_) | Kind::Criterion { .. }))
        || qual.ends_with("LightningModule")
        || qual == "torch.jit.ScriptModule"
}

/// A base class whose evaluation hooks the trainer runs without a graph.
pub(crate) fn is_lightning_base(name: &str) -> bool {
    name.ends_with("LightningModule") || name.ends_with("LightningDataModule")
}

/// A base class that makes its subclasses datasets.
pub(crate) fn is_dataset_base(qual: &str) -> bool {
    matches!(
        qual,
        "torch.utils.data.Dataset"
            | "torch.utils.data.IterableDataset"
            | "torch.utils.data.dataset.Dataset"
            | "torch.utils.data.dataset.IterableDataset"
    ) || (qual.starts_with("torchvision.datasets.") && !qual.contains("utils"))
}

/// Functions whose results hold no graph, whatever goes in: integers, masks, fresh tensors.
pub(crate) fn makes_no_graph(last: &str) -> bool {
    matches!(
        last,
        "argmax"
            | "argmin"
            | "argsort"
            | "eq"
            | "ne"
            | "gt"
            | "ge"
            | "lt"
            | "le"
            | "isnan"
            | "isinf"
            | "isfinite"
            | "nonzero"
            | "long"
            | "int"
            | "bool"
            | "byte"
            | "short"
            | "size"
            | "dim"
            | "numel"
            | "element_size"
            | "zeros_like"
            | "ones_like"
            | "rand_like"
            | "randn_like"
            | "empty_like"
            | "full_like"
            | "new_zeros"
            | "new_ones"
            | "new_tensor"
            | "new_full"
            | "new_empty"
            | "multinomial"
            | "bincount"
            | "logical_and"
            | "logical_or"
            | "logical_not"
            | "is_floating_point"
            | "data_ptr"
            | "get_device"
            | "randint_like"
            | "one_hot"
            | "unique"
            | "histc"
            | "bernoulli"
    )
}

/// Methods that return a plain Python or NumPy value.
pub(crate) fn leaves_torch(last: &str) -> bool {
    matches!(
        last,
        "item"
            | "tolist"
            | "numpy"
            | "size"
            | "dim"
            | "numel"
            | "ndimension"
            | "type"
            | "is_contiguous"
            | "data_ptr"
            | "get_device"
            | "element_size"
            | "stride"
            | "storage_offset"
    )
}

/// Operations whose result is as large as what goes in.
pub(crate) fn keeps_size(last: &str) -> bool {
    matches!(
        last,
        "float"
            | "half"
            | "double"
            | "bfloat16"
            | "softmax"
            | "log_softmax"
            | "sigmoid"
            | "tanh"
            | "exp"
            | "contiguous"
            | "clone"
            | "permute"
            | "transpose"
    )
}

/// Functions of `torch` that create tensors without a graph.
pub(crate) fn is_factory(qual: &str) -> bool {
    matches!(
        qual,
        "torch.zeros"
            | "torch.ones"
            | "torch.rand"
            | "torch.randn"
            | "torch.empty"
            | "torch.full"
            | "torch.arange"
            | "torch.linspace"
            | "torch.tensor"
            | "torch.as_tensor"
            | "torch.from_numpy"
            | "torch.randint"
            | "torch.randperm"
            | "torch.eye"
            | "torch.Tensor"
            | "torch.FloatTensor"
            | "torch.LongTensor"
            | "torch.tril"
            | "torch.triu"
            | "torch.normal"
    )
}

/// Whether the tensor functions of this module pass graphs through.
pub(crate) fn is_tensor_function(qual: &str) -> bool {
    if let Some(name) = qual.strip_prefix("torch.nn.functional.") {
        return !name.contains('.');
    }
    if let Some(name) = qual.strip_prefix("torch.") {
        return !name.contains('.')
            && !name.starts_with(|c: char| c.is_ascii_uppercase())
            && !matches!(
                name,
                "no_grad"
                    | "inference_mode"
                    | "enable_grad"
                    | "set_grad_enabled"
                    | "save"
                    | "load"
                    | "manual_seed"
                    | "device"
                    | "compile"
                    | "autocast"
                    | "typename"
                    | "is_tensor"
                    | "use_deterministic_algorithms"
                    | "set_default_dtype"
                    | "set_default_tensor_type"
                    | "set_num_threads"
                    | "numel"
                    | "allclose"
                    | "equal"
            );
    }
    false
}

/// Entering this context turns gradients off.
pub(crate) fn is_no_grad(qual: &str) -> bool {
    matches!(
        qual,
        "torch.no_grad"
            | "torch.inference_mode"
            | "torch.autograd.no_grad"
            | "torch.autograd.grad_mode.no_grad"
            | "torch.autograd.inference_mode"
            | "torch.autograd.grad_mode.inference_mode"
    )
}

/// Constructors and contexts of autocast.
pub(crate) fn is_autocast(qual: &str) -> bool {
    matches!(
        qual,
        "torch.autocast"
            | "torch.amp.autocast"
            | "torch.cuda.amp.autocast"
            | "torch.amp.autocast_mode.autocast"
            | "torch.cuda.amp.autocast_mode.autocast"
    )
}

/// `DataParallel`, which wraps a model and is called like one.
pub(crate) fn is_data_parallel(qual: &str) -> bool {
    matches!(
        qual,
        "torch.nn.DataParallel"
            | "torch.nn.parallel.DataParallel"
            | "torch.nn.parallel.data_parallel.DataParallel"
    )
}

/// `DistributedDataParallel`.
pub(crate) fn is_ddp(qual: &str) -> bool {
    matches!(
        qual,
        "torch.nn.parallel.DistributedDataParallel"
            | "torch.nn.parallel.distributed.DistributedDataParallel"
    )
}

/// `torch.utils.checkpoint.checkpoint` and its sequential form.
pub(crate) fn is_checkpoint(qual: &str) -> bool {
    matches!(
        qual,
        "torch.utils.checkpoint.checkpoint" | "torch.utils.checkpoint.checkpoint_sequential"
    )
}

fn strip_any<'a>(text: &'a str, prefixes: &[&str]) -> Option<&'a str> {
    prefixes.iter().find_map(|prefix| text.strip_prefix(prefix))
}
