use super::*;
use crate::lever::Dtype;
use crate::parameters::{
    Allocator, Attention, Backend, Checkpoint, CudnnBenchmark, MicroBatch, MixedPrecision,
    Optimizer8bit, OptimizerStep, SetToNone, Step,
};

const SCRIPT: &str = r"import torch
from torch.utils.data import DataLoader

def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
    )
    for step, (x, y) in enumerate(data):
        x, y = x.cuda(), y.cuda()
        # the loss
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
";

fn patched(levers: &[Lever]) -> String {
    let script = Script::new(SCRIPT);
    let hand = by_hand("train.py", SCRIPT, levers);
    apply(&script.lines, &hand.diff)
}

/// What `patch` does.
fn apply(lines: &[&str], diff: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut at = 0;
    for line in diff.lines().skip(2) {
        if let Some(hunk) = line.strip_prefix("@@ -") {
            let start: usize = hunk.split(',').next().unwrap().parse().unwrap();
            out.extend(&lines[at..start - 1]);
            at = start - 1;
        } else if let Some(added) = line.strip_prefix('+') {
            out.push(added);
        } else {
            assert_eq!(&line[1..], lines[at]);
            if line.starts_with(' ') {
                out.push(lines[at]);
            }
            at += 1;
        }
    }
    out.extend(&lines[at..]);
    out.join("\n")
}

#[test]
fn each_change_has_its_place() {
    let text = patched(&[
        Lever::from(Allocator {
            conf: "expandable_segments:True".to_owned(),
        }),
        Lever::from(SetToNone {}),
        Lever::from(OptimizerStep { kind: Step::Fused }),
        Lever::from(Checkpoint {
            modules: vec!["Net.blocks.0".to_owned()],
        }),
    ]);
    assert!(text.starts_with("import functools\nimport os\nos.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\"\nimport torch\n"), "{text}");
    assert!(
        text.contains("DataLoader\nimport torch.utils.checkpoint\n"),
        "{text}"
    );
    assert!(text.contains("zero_grad(set_to_none=True)"), "{text}");
    assert!(
        text.contains("        lr=1e-3,\n        fused=True,\n    )"),
        "{text}"
    );
    assert!(
        text.contains("        \"blocks.0\",\n    ]:\n        # A BatchNorm inside"),
        "{text}"
    );
}

#[test]
fn the_loop_is_split_and_cast() {
    let text = patched(&[
        Lever::from(MixedPrecision { dtype: Dtype::Bf16 }),
        Lever::from(MicroBatch { parts: 4 }),
    ]);
    let expected = r#"    for step, (x, y) in enumerate(data):
        samples = len(x)
        optimizer.zero_grad(set_to_none=False)
        for x, y in zip(x.split(-(-samples // 4)), y.split(-(-samples // 4))):
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                # the loss
                out = model(x)
                loss = criterion(out, y)
            # for a loss that is a mean over samples
            (loss * (len(x) / samples)).backward()
        optimizer.step()"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_batch_in_one_name_is_split_by_what_it_is() {
    let split = |head: &str, call: &str| {
        let source = format!(
            "import torch\nsamples = 0\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n{head}\n    {call}\n    loss.backward()\n    optimizer.step()\n"
        );
        let hand = by_hand("train.py", &source, &[Lever::from(MicroBatch { parts: 2 })]);
        let text = apply(&Script::new(&source).lines, &hand.diff);
        assert_eq!(hand.snippets.len(), usize::from(hand.changed == 0));
        (hand.changed > 0).then_some(text)
    };
    let expected = r"for batch in data:
    samples_ = len(batch[0])
    for batch in zip(*(piece.split(-(-samples_ // 2)) for piece in batch)):
        loss = f(net(batch[0]), batch[1])
        # for a loss that is a mean over samples
        (loss * (len(batch[0]) / samples_)).backward()
    optimizer.step()";
    let text = split("for batch in data:", "loss = f(net(batch[0]), batch[1])");
    assert!(text.as_ref().is_some_and(|text| text.ends_with(expected)));
    let text = split(
        "for i, batch in enumerate(data):",
        "x, y = batch\n    loss = f(net(x), y)",
    );
    assert!(text.is_some_and(|text| text.contains("for piece in batch)")));
    let text = split("for batch in data:", "loss = net(batch.cuda())");
    assert!(text.is_some_and(|text| text.contains("for batch in batch.split(-(-samples_ // 2)):")));
    // Of a mapping it is not told what its entries are.
    assert_eq!(
        split("for batch in data:", "loss = net(**batch).loss"),
        None
    );
    assert_eq!(
        split("for batch in data:", "loss = net(batch[\"x\"])"),
        None
    );
}

#[test]
fn what_has_no_place_is_said_in_words() {
    let hand = by_hand(
        "train.py",
        "trainer.train()\n",
        &[
            Lever::from(MicroBatch { parts: 2 }),
            Lever::from(Attention {
                backend: Backend::Flash,
            }),
        ],
    );
    assert_eq!(hand.changed, 0);
    assert_eq!(hand.snippets.len(), 2);
    assert!(hand.text().starts_with("# by hand: "));
}

#[test]
fn a_framework_that_does_it_itself_is_told_of() {
    let source = "from transformers import Trainer, TrainingArguments\narguments = TrainingArguments(\"out\")\nTrainer(model, arguments).train()\n";
    let levers = [
        Lever::from(MixedPrecision { dtype: Dtype::Fp16 }),
        Lever::from(MicroBatch { parts: 4 }),
        Lever::from(Optimizer8bit {}),
    ];
    let hand = by_hand("train.py", source, &levers);
    assert_eq!(hand.changed, 0);
    for (snippet, words) in hand.snippets.iter().zip([
        "in TrainingArguments: fp16=True",
        "gradient_accumulation_steps multiplied by 4",
        "optim=\"adamw_torch_8bit\"",
    ]) {
        assert!(snippet.starts_with("train.py:"), "{snippet}");
        assert!(snippet.contains(words), "{snippet}");
    }
}

#[test]
fn what_is_added_takes_no_name_of_the_script() {
    let source = "import torch\n\ndef main():\n    name = \"run\"\n    model = Net().cuda()\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n    checkpoint = torch.load(name)\n";
    let lever = Lever::from(Checkpoint {
        modules: vec!["Net.blocks.0".to_owned()],
    });
    let script = Script::new(source);
    let text = apply(&script.lines, &by_hand("train.py", source, &[lever]).diff);
    assert!(text.contains("    for name_ in ["), "{text}");
    assert!(
        text.contains("block = model.get_submodule(name_)"),
        "{text}"
    );
    assert!(
        text.contains("partial(torch.utils.checkpoint.checkpoint, block.forward"),
        "{text}"
    );
    assert!(!text.contains("import checkpoint"), "{text}");
}

#[test]
fn a_model_that_makes_its_optimizer_is_found() {
    let source = "import torch\nmodel = GPT(config)\nmodel.to(device)\noptimizer = model.configure_optimizers(0.1, 1e-3)\n";
    let levers = [
        Lever::from(Checkpoint {
            modules: vec!["GPT.transformer.h.0".to_owned()],
        }),
        Lever::from(OptimizerStep { kind: Step::Fused }),
    ];
    let hand = by_hand("train.py", source, &levers);
    let text = apply(&Script::new(source).lines, &hand.diff);
    assert!(text.contains("block = model.get_submodule(name)"), "{text}");
    // Its arguments are the model's own.
    assert!(text.contains("configure_optimizers(0.1, 1e-3)"), "{text}");
    assert_eq!(hand.snippets.len(), 1);
}

#[test]
fn a_setting_that_the_script_makes_is_changed_where_it_makes_it() {
    let source = "import torch\nimport torch.backends.cudnn as cudnn\n\nif gpu:\n    cudnn.benchmark = True\n";
    let lever = Lever::from(CudnnBenchmark { enabled: false });
    let hand = by_hand("train.py", source, std::slice::from_ref(&lever));
    let text = apply(&Script::new(source).lines, &hand.diff);
    assert!(
        text.ends_with("if gpu:\n    cudnn.benchmark = False"),
        "{text}"
    );
    assert!(!text.contains("torch.backends.cudnn.benchmark"), "{text}");
    let hand = by_hand("train.py", "import torch\nrun()\n", &[lever]);
    assert!(
        hand.diff
            .contains("+torch.backends.cudnn.benchmark = False"),
        "{}",
        hand.diff
    );
}

#[test]
fn checkpoints_go_where_the_model_is_known() {
    let lever = Lever::from(Checkpoint {
        modules: vec!["Net.blocks.0".to_owned()],
    });
    let placed =
        |source: &str| by_hand("train.py", source, std::slice::from_ref(&lever)).changed > 0;
    // A function is given the model.
    assert!(placed(
        "import torch\ndef train(model):\n    optimizer = torch.optim.Adam(model.parameters())\n"
    ));
    // An attribute may be a part of it, and of two models it may be either.
    assert!(!placed(
        "import torch\noptimizer = torch.optim.Adam(self.model.parameters())\n"
    ));
    assert!(!placed(
        "import torch\na = torch.optim.Adam(netD.parameters())\nb = torch.optim.Adam(netG.parameters())\n"
    ));
}
