use super::*;
use crate::lever::Dtype;
use crate::parameters::{
    ActivationMemoryBudget, Allocator, Attention, Backend, Checkpoint, CudnnBenchmark, MicroBatch,
    MixedPrecision, NoGradEval, Optimizer8bit, OptimizerStep, SetToNone, Step,
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

fn by_hand(source: &str, levers: &[Lever]) -> ByHand {
    super::by_hand(
        "train.py",
        source,
        levers,
        &BTreeSet::new(),
        &BTreeMap::new(),
    )
}

fn patched(levers: &[Lever]) -> String {
    patch(SCRIPT, &by_hand(SCRIPT, levers).diff)
}

/// What `patch` does; the result is Python.
fn patch(source: &str, diff: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
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
    let text = out.join("\n");
    assert!(Module::parse(&text).is_ok(), "{text}");
    text
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
        text.contains("        lr=1e-3, fused=True\n    )"),
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
            # the loss
            with torch.autocast("cuda", dtype=torch.bfloat16):
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
        let hand = by_hand(&source, &[Lever::from(MicroBatch { parts: 2 })]);
        let text = patch(&source, &hand.diff);
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
    assert!(hand.diff.is_empty() && hand.text().contains("# by hand: "));
    assert!(hand.head[0].contains("Nothing of it is in a diff"));
    assert_eq!(
        hand.head[1..],
        [
            "  in words only: micro_batch (micro-batches: 2 a batch)",
            "  in words only: attention (flash attention)"
        ]
    );
}

#[test]
fn a_framework_that_does_it_itself_gets_arguments() {
    let source = "from transformers import Trainer, TrainingArguments\narguments = TrainingArguments(\"out\")\nTrainer(model, arguments).train()\n";
    let levers = [
        Lever::from(MixedPrecision { dtype: Dtype::Fp16 }),
        Lever::from(MicroBatch { parts: 4 }),
        Lever::from(Optimizer8bit {}),
    ];
    assert_eq!(
        switched(source, &levers).lines().nth(1),
        Some(
            "arguments = TrainingArguments(\"out\", fp16=True, per_device_train_batch_size=2, gradient_accumulation_steps=4, optim=\"adamw_torch_8bit\")"
        )
    );
}

#[test]
fn what_is_added_takes_no_name_of_the_script() {
    let source = "import torch\n\ndef main():\n    name = \"run\"\n    model = Net().cuda()\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n    checkpoint = torch.load(name)\n";
    let lever = Lever::from(Checkpoint {
        modules: vec!["Net.blocks.0".to_owned()],
    });
    let text = patch(source, &by_hand(source, &[lever]).diff);
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
    let hand = by_hand(source, &levers);
    let text = patch(source, &hand.diff);
    assert!(text.contains("block = model.get_submodule(name)"), "{text}");
    // Its arguments are the model's own.
    assert!(text.contains("configure_optimizers(0.1, 1e-3)"), "{text}");
    assert_eq!(hand.snippets.len(), 1);
}

#[test]
fn a_setting_that_the_script_makes_is_changed_where_it_makes_it() {
    let source = "import torch\nimport torch.backends.cudnn as cudnn\n\nif gpu:\n    cudnn.benchmark = True\n";
    let lever = Lever::from(CudnnBenchmark { enabled: false });
    let hand = by_hand(source, std::slice::from_ref(&lever));
    let text = patch(source, &hand.diff);
    assert!(
        text.ends_with("if gpu:\n    cudnn.benchmark = False"),
        "{text}"
    );
    assert!(!text.contains("torch.backends.cudnn.benchmark"), "{text}");
    let hand = by_hand("import torch\nrun()\n", &[lever]);
    assert!(
        hand.diff
            .contains("+torch.backends.cudnn.benchmark = False"),
        "{}",
        hand.diff
    );
}

#[test]
fn a_setting_brings_the_module_that_has_it() {
    let lever = Lever::from(ActivationMemoryBudget { percent: 30 });
    let source = "import torch\nmodel = torch.compile(N())\n";
    let hand = by_hand(source, std::slice::from_ref(&lever));
    let text = patch(source, &hand.diff);
    let set = "torch._functorch.config.activation_memory_budget = 0.3";
    let lines = format!("import torch\nimport torch._functorch.config\n{set}\nmodel = ");
    assert!(text.contains(&lines), "{text}");
    // One that the script has takes the value.
    let source = text.replace("0.3", "0.8") + "\n";
    let hand = by_hand(&source, &[lever]);
    assert_eq!(patch(&source, &hand.diff), text);
}

#[test]
fn checkpoints_go_where_the_model_is_known() {
    let lever = Lever::from(Checkpoint {
        modules: vec!["Net.blocks.0".to_owned()],
    });
    let placed = |source: &str| by_hand(source, std::slice::from_ref(&lever)).changed > 0;
    // A function is given the model.
    assert!(placed(
        "import torch\ndef train(model):\n    optimizer = torch.optim.Adam(model.parameters())\n"
    ));
    // Of two models it may be either.
    assert!(!placed(
        "import torch\na = torch.optim.Adam(netD.parameters())\nb = torch.optim.Adam(netG.parameters())\n"
    ));
}

/// Lines of a script that hold one of these texts, from 1.
fn lines_with(source: &str, texts: &[&str]) -> BTreeSet<usize> {
    let lines = source.lines().zip(1..);
    let found = lines.filter(|(line, _)| texts.iter().any(|text| line.contains(text)));
    found.map(|(_, number)| number).collect()
}

fn checkpoint(module: &str) -> Lever {
    Lever::from(Checkpoint {
        modules: vec![module.to_owned()],
    })
}

const GAN: &str = "import torch, torch.nn as nn
G = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).cuda()
D = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
og = torch.optim.Adam(G.parameters()); od = torch.optim.Adam(D.parameters())
for real in data:
    ld = f(D(real), D(G(noise).detach()))
    od.zero_grad(); ld.backward(); od.step()
    lg = g(D(G(noise)))
    og.zero_grad(); lg.backward(); og.step()
";

#[test]
fn two_models_of_one_class_are_not_mixed() {
    let levers = [
        checkpoint("Sequential.1"),
        Lever::from(OptimizerStep { kind: Step::Fused }),
        Lever::from(MicroBatch { parts: 2 }),
    ];
    // Both optimizers step as the lever makes them; the rest has no one place, also where each is made on a line of its own.
    for source in [GAN.to_owned(), GAN.replace("; od = ", "\nod = ")] {
        let hand = by_hand(&source, &levers);
        assert_eq!((hand.missing.len(), hand.snippets.len()), (2, 2));
        assert_eq!(
            hand.script.matches("fused=True").count(),
            2,
            "{}",
            hand.script
        );
        assert!(!hand.script.contains("get_submodule"));
    }
    // Classes of their own tell them apart; the place is that model's.
    let source = "import torch\nclass G(torch.nn.Module):\n    pass\nclass D(torch.nn.Module):\n    pass\ng = G().cuda()\nd = D().cuda()\nog = torch.optim.Adam(g.parameters())\nod = torch.optim.Adam(d.parameters())\n";
    let text = patch(source, &by_hand(source, &[checkpoint("D.net.0")]).diff);
    assert!(text.contains("d.get_submodule(name)"), "{text}");
    // A plan for both has no one place.
    let both = [checkpoint("D.net.0"), checkpoint("G.net.0")];
    assert_eq!(by_hand(source, &both).changed, 0);
}

#[test]
fn a_teacher_is_no_part_of_the_student() {
    let source = "import torch
from torchvision.models import resnet50
class Teacher(torch.nn.Module):
    pass
class Student(torch.nn.Module):
    pass
def main():
    teacher = Teacher().cuda().eval()
    student = Student().cuda()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for images, labels in loader:
        target = teacher(images)
        loss = f(student(images), labels, target)
        loss.backward()
        optimizer.step()
";
    assert!(by_hand(source, &[checkpoint("Student.net.0")]).changed > 0);
    assert_eq!(by_hand(source, &[checkpoint("Teacher.net.0")]).changed, 0);
    // Of what a function makes no class is told: with two such models it may be either.
    let made = source
        .replace("Teacher().", "resnet50().")
        .replace("Student().", "resnet50().");
    assert_eq!(by_hand(&made, &[checkpoint("ResNet.layer1.0")]).changed, 0);
    // The line of the words is the one that evaluates.
    let hand = by_hand(source, &[Lever::from(NoGradEval {})]);
    assert!(
        hand.snippets[0].starts_with("train.py:12: "),
        "{}",
        hand.text()
    );
}

const SEVERAL: &str = "import torch
class A(torch.nn.Module):
    pass
class B(torch.nn.Module):
    pass
def pretrain(data):
    model = A().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in data:
        optimizer.zero_grad()  # first
        loss = f(model(x), y)
        loss.backward()
        optimizer.step()
def finetune(data):
    model = B().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in data:
        optimizer.zero_grad()  # second
        loss = g(model(x), y)
        loss.backward()
        optimizer.step()
";

#[test]
fn of_several_functions_the_one_that_ran_is_changed() {
    let levers = [
        Lever::from(MicroBatch { parts: 2 }),
        Lever::from(OptimizerStep { kind: Step::Fused }),
    ];
    let hand = by_hand(SEVERAL, &levers);
    assert_eq!(
        (hand.changed, hand.snippets.len()),
        (0, 2),
        "it is not told which"
    );
    for (ran, other, begin) in [
        ("g(model", "f(model", "def finetune"),
        ("f(model", "g(model", "def pretrain"),
    ] {
        let lines = lines_with(SEVERAL, &[ran]);
        let hand = super::by_hand("train.py", SEVERAL, &levers, &lines, &BTreeMap::new());
        let text = patch(SEVERAL, &hand.diff);
        assert!(
            hand.snippets.is_empty() && text.contains(&format!("        loss = {other}")),
            "{text}"
        );
        let function = text.split(begin).nth(1).unwrap();
        for change in ["fused=True", "for x, y in zip(", "# for a loss"] {
            assert!(
                function.contains(change) && text.matches(change).count() == 1,
                "{text}"
            );
        }
        assert!(
            text.contains(&format!("            loss = {ran}")),
            "{text}"
        );
    }
    // Without a run it is the function whose model the plan is about.
    let mut levers = levers.to_vec();
    levers.insert(0, checkpoint("B.net.0"));
    let text = patch(SEVERAL, &by_hand(SEVERAL, &levers).diff);
    let (first, second) = text.split_once("def finetune").unwrap();
    assert!(
        SEVERAL.contains(first.split_once("class A").unwrap().1),
        "{text}"
    );
    assert!(
        second.contains("get_submodule(name)") && second.contains("fused=True"),
        "{text}"
    );
    assert!(second.contains("for x, y in zip("), "{text}");
}

#[test]
fn a_script_elsewhere_is_patched_from_the_root() {
    let levers = [Lever::from(CudnnBenchmark { enabled: false })];
    let (ran, switches) = (BTreeSet::new(), BTreeMap::new());
    let hand = super::by_hand("/data/my/train.py", SCRIPT, &levers, &ran, &switches);
    let text = hand.text();
    let head = "# The plan for /data/my/train.py, as a diff: patch -p1 -d / < FILE.\n";
    assert!(text.starts_with(head), "{text}");
    assert!(text.contains("\n--- a/data/my/train.py\n+++ b/data/my/train.py\n"));
    let (line, _) = applying("/data/my/train.py", SCRIPT, "plan.toml").unwrap();
    assert!(
        line.starts_with("# patch -p1 -d / < FILE\n--- a/data/my/"),
        "{line}"
    );
    let instruction = hand.instruction("/data/my/train.py", "why", Some("a.patch"));
    assert!(
        instruction.contains("`patch -p1 -d / < a.patch` applies"),
        "{instruction}"
    );
}

#[test]
fn the_head_says_what_is_in_the_diff() {
    // A batch that goes back under a condition is not split.
    let source = "import torch\nmodel = resnet50()\nopt = torch.optim.SGD(model.parameters(), 0.1)\nfor i, (x, y) in enumerate(data):\n    if i:\n        loss = f(model(x), y)\n        loss.backward()\n        opt.step()\n";
    let levers = [
        Lever::from(CudnnBenchmark { enabled: false }),
        Lever::from(MicroBatch { parts: 2 }),
    ];
    let hand = by_hand(source, &levers);
    assert!(hand.changed > 0);
    let text = hand.text();
    for line in [
        "# The plan for train.py, as a diff: git apply FILE, or patch -p1 < FILE.\n",
        "#   in the diff: cudnn_benchmark (",
        "#   in words only: micro_batch (micro-batches: 2 a batch)\n",
        "# by hand: train.py:7: ",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(
        by_hand(source, &[])
            .text()
            .contains("Nothing of it is in a diff")
    );
}

#[test]
fn a_statement_between_the_call_and_the_loss_stays_in_the_block() {
    let source = "import torch\nopt = torch.optim.SGD(net.parameters(), 0.1)\nfor x, y in data:\n    out = net(x)\n    opt.zero_grad()  # gone\n    loss = f(out, y)\n    loss.backward()\n    opt.step()\n";
    let precision = Lever::from(MixedPrecision { dtype: Dtype::Bf16 });
    let text = patch(
        source,
        &by_hand(source, std::slice::from_ref(&precision)).diff,
    );
    let expected = "):\n        out = net(x)\n        opt.zero_grad()  # gone\n        loss = f(out, y)\n    loss.backward()";
    assert!(text.contains(expected), "{text}");
    let both = [precision, Lever::from(MicroBatch { parts: 2 })];
    let text = patch(source, &by_hand(source, &both).diff);
    let expected =
        "):\n            out = net(x)\n            loss = f(out, y)\n        # for a loss";
    assert!(text.contains(expected), "{text}");
    assert_eq!(
        text.matches("opt.zero_grad()  # gone\n    for x, y in")
            .count(),
        1,
        "{text}"
    );
}

#[test]
fn what_cannot_be_read_is_described() {
    let deep = format!(
        "import torch\nx = {}1{}\n",
        "(".repeat(150),
        ")".repeat(150)
    );
    for source in ["print 'Python 2'\n", deep.as_str(), ""] {
        let hand = by_hand(source, &[Lever::from(CudnnBenchmark { enabled: false })]);
        assert_eq!((hand.changed, hand.snippets.len()), (0, 1));
    }
}

#[test]
fn two_backward_passes_in_a_loop_are_left_alone() {
    let source = "import torch\nopt = torch.optim.SGD(net.parameters(), 0.1)\nfor x, y in data:\n    loss = f(net(x), y)\n    loss.backward()\n    more = g(net(x))\n    more.backward()\n    opt.step()\n";
    assert_eq!(
        by_hand(source, &[Lever::from(MicroBatch { parts: 2 })]).changed,
        0
    );
}

#[test]
fn objects_train_too() {
    let source = r"import torch

class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def run(self):
        while True:
            x = self.batch()
            self.loss = self.model(x).pow(2).mean()
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
";
    let levers = [
        Lever::from(OptimizerStep { kind: Step::Fused }),
        Lever::from(MixedPrecision { dtype: Dtype::Bf16 }),
        Lever::from(Checkpoint {
            modules: vec!["GPT.h.0".to_owned()],
        }),
    ];
    let hand = by_hand(source, &levers);
    assert!(hand.is_whole(), "{:?}", hand.missing);
    let text = patch(source, &hand.diff);
    assert_eq!(text.trim_end(), hand.script.trim_end());
    for line in [
        "        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)",
        "            block = self.model.get_submodule(name)",
        "            with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n                self.loss = self.model(x)",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let placed = text.find("get_submodule").unwrap();
    assert!(placed < text.find("self.optimizer = ").unwrap());
}

#[test]
fn what_a_function_returns_is_an_optimizer() {
    let source = r"import torch
from torch import optim

def build(net, lr):
    return optim.SGD(net.parameters(), lr=lr)

def epoch(m, optimizer, batches):
    for x, y in batches:
        loss = (m(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def main():
    network = make().cuda()
    optimizer = build(network, 0.1)
    epoch(network, optimizer, data)
";
    let levers = [
        Lever::from(OptimizerStep { kind: Step::Fused }),
        Lever::from(MicroBatch { parts: 2 }),
        Lever::from(crate::parameters::StepInBackward {}),
    ];
    let text = patch(source, &by_hand(source, &levers).diff);
    assert!(text.contains("lr=lr, fused=True)"), "{text}");
    assert!(
        text.contains("(loss * (len(x) / samples)).backward()"),
        "{text}"
    );
    let hand = by_hand(source, &levers[2..]);
    let text = patch(source, &hand.diff);
    assert!(
        text.contains("    optimizer_ = optim.SGD(") && text.contains("    return optimizer_\n"),
        "{text}"
    );
}

/// The script with the levers, each of which a run has shown a framework to have a switch for.
fn switched(source: &str, levers: &[Lever]) -> String {
    let all = levers
        .iter()
        .map(|lever| (lever.name().to_owned(), "TrainingArguments: …".to_owned()));
    let all: BTreeMap<String, String> = all.collect();
    let hand = super::by_hand("train.py", source, levers, &BTreeSet::new(), &all);
    assert!(hand.is_whole(), "{:?}", hand.missing);
    patch(source, &hand.diff)
}

#[test]
fn arguments_are_edited_where_they_come_from() {
    let levers = [
        Lever::from(MixedPrecision { dtype: Dtype::Bf16 }),
        Lever::from(MicroBatch { parts: 4 }),
        Lever::from(Checkpoint {
            modules: vec!["GPT.h.0".to_owned()],
        }),
    ];
    let start =
        "import torch\nfrom transformers import HfArgumentParser, Trainer, TrainingArguments\n";
    let parsed = format!(
        "{start}def main():\n    ours, targs = HfArgumentParser((Ours, TrainingArguments)).parse_args_into_dataclasses()\n    trainer = Trainer(net, targs)\n    trainer.train()\n"
    );
    let text = switched(&parsed, &levers);
    assert!(
        text.contains("    targs = dataclasses.replace(targs, bf16=True, per_device_train_batch_size=targs.per_device_train_batch_size // 4, gradient_accumulation_steps=targs.gradient_accumulation_steps * 4, gradient_checkpointing=True)\n    trainer = Trainer("),
        "{text}"
    );
    assert!(text.contains("import dataclasses\n"), "{text}");
    let mapping = format!(
        "{start}args = TrainingArguments(\"out\", **config[\"train\"])\nTrainer(model=net, args=args).train()\n"
    );
    let text = switched(&mapping, &levers[..2]);
    assert!(
        text.contains("TrainingArguments(\"out\", **{**config[\"train\"], \"bf16\": True, \"per_device_train_batch_size\": (config[\"train\"].get(\"per_device_train_batch_size\", 8)) // 4, \"gradient_accumulation_steps\": (config[\"train\"].get(\"gradient_accumulation_steps\", 1)) * 4})"),
        "{text}"
    );
    // What is given by name is no entry of the mapping.
    let both = mapping.replace("**config", "bf16=False, **config");
    let text = switched(&both, &levers[..1]);
    assert!(text.contains("(\"out\", bf16=True, **config"), "{text}");
    let lightning =
        "import lightning.pytorch as pl\nimport torch\ntrainer = pl.Trainer(**TRAINER)\n";
    let text = switched(lightning, &levers[..1]);
    assert!(
        text.contains("pl.Trainer(**{**TRAINER, \"precision\": \"bf16-mixed\"})"),
        "{text}"
    );
}

#[test]
fn frameworks_have_switches_of_their_own() {
    let levers = [
        Lever::from(MixedPrecision { dtype: Dtype::Bf16 }),
        Lever::from(MicroBatch { parts: 4 }),
    ];
    let huggingface = "import torch\nfrom transformers import Trainer, TrainingArguments\nargs = TrainingArguments(output_dir=\"x\", per_device_train_batch_size=32, bf16=False)\ntrainer = Trainer(model=model, args=args)\ntrainer.train()\n";
    // Whether a framework's accumulation is the same, a run has to tell.
    assert_eq!(by_hand(huggingface, &levers).missing.len(), 1);
    let text = switched(huggingface, &levers);
    assert!(
        text.contains("per_device_train_batch_size=8, bf16=True, gradient_accumulation_steps=4)"),
        "{text}"
    );
    let lightning = "import lightning as L\nimport torch\nloader = torch.utils.data.DataLoader(data, batch_size=BATCH)\ntrainer = L.Trainer(max_epochs=1)\n";
    let text = switched(lightning, &levers);
    assert!(text.contains("batch_size=BATCH // 4"), "{text}");
    assert!(
        text.contains(
            "L.Trainer(max_epochs=1, precision=\"bf16-mixed\", accumulate_grad_batches=4)"
        ),
        "{text}"
    );
    // Without the one place of the batch's size, accumulation alone would be a larger batch.
    for loaders in [
        "",
        "one = DataLoader(a, batch_size=8)\nother = DataLoader(b, batch_size=8)\n",
    ] {
        let source = format!(
            "import lightning as L\nfrom torch.utils.data import DataLoader\n{loaders}trainer = L.Trainer(max_epochs=1)\n"
        );
        let shown = BTreeMap::from([("micro_batch".to_owned(), "Trainer: …".to_owned())]);
        let hand = super::by_hand("train.py", &source, &levers[1..], &BTreeSet::new(), &shown);
        assert!(
            hand.changed == 0 && hand.missing.len() == 1,
            "{}",
            hand.diff
        );
    }
    let accelerate = "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor x, y in data:\n    loss = f(model(x), y)\n    accelerator.backward(loss)\n    optimizer.step()\n    optimizer.zero_grad()\n";
    let text = patch(accelerate, &by_hand(accelerate, &levers).diff);
    assert!(
        text.contains("Accelerator(mixed_precision=\"bf16\")"),
        "{text}"
    );
    assert!(!text.contains("autocast"), "{text}");
    assert!(
        text.contains("        accelerator.backward((loss * (len(x) / samples)))\n"),
        "{text}"
    );
    // A batch that does not divide is left to words.
    let odd = huggingface.replace("32", "6");
    let hand = by_hand(&odd, &levers[1..]);
    assert!(hand.changed == 0 && hand.missing.len() == 1);
}

#[test]
fn modules_of_a_trainer_and_of_an_attribute() {
    let wrapped = |source: &str, module: &str| {
        let lever = Lever::from(Checkpoint {
            modules: vec![module.to_owned()],
        });
        patch(source, &by_hand(source, &[lever]).diff)
    };
    let trainer = "import torch\nfrom transformers import Trainer\nnet = make()\ntrainer = Trainer(model=net, args=args)\n";
    let text = wrapped(trainer, "Bert.layer.0");
    assert!(text.contains("net.get_submodule(name)"), "{text}");
    let lightning = r"import torch
from torchvision.models import VisionTransformer
class Lit(LightningModule):
    def __init__(self):
        self.net = VisionTransformer(8)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)
";
    let text = wrapped(lightning, "VisionTransformer.encoder.0");
    assert!(text.contains("self.net.get_submodule(name)"), "{text}");
    let text = wrapped(lightning, "Lit.net.encoder.0");
    assert!(text.contains("block = self.get_submodule(name)"), "{text}");
}

#[test]
fn one_line_applies_a_plan() {
    let source = "\"\"\"What it does.\"\"\"\nfrom __future__ import annotations\nimport torch\n";
    let (diff, text) = applying("train.py", source, "oomph-plan.toml").unwrap();
    assert_eq!(patch(source, &diff), text.trim_end());
    let line = "import annotations\nimport oomph; oomph.apply(\"oomph-plan.toml\")";
    assert!(text.contains(line), "{text}");
    assert_eq!(applying("train.py", &text, "oomph-plan.toml"), None);
}

#[test]
fn an_instruction_says_why_there_is_no_patch() {
    let hand = by_hand(
        "import torch\n",
        &[Lever::from(OptimizerStep { kind: Step::Fused })],
    );
    let text = hand.instruction("train.py", "it has no clear place", Some("x.apply.patch"));
    assert!(
        text.contains("There is no patch of it: it has no clear place."),
        "{text}"
    );
    assert!(
        text.contains("git apply x.apply.patch") && text.contains("fused=True"),
        "{text}"
    );
}

#[test]
fn what_saves_less_by_hand_has_a_coarser_form() {
    let levers = [
        Lever::from(Checkpoint {
            modules: vec!["Net.h.0".to_owned()],
        }),
        Lever::from(crate::parameters::Recompute {
            modules: ["Net.h.0.norm", "Net.h.1.norm", "Net.h.1.act", "Net.head"]
                .map(str::to_owned)
                .to_vec(),
        }),
    ];
    let coarse = coarser(&levers).unwrap();
    assert_eq!(coarse[0], levers[0]);
    let Lever::Checkpoint(found) = &coarse[1] else {
        panic!("{coarse:?}");
    };
    assert_eq!(found.modules, ["Net.h.1"]);
    assert_eq!(coarser(&coarse), None);
}

#[test]
fn modules_are_found_through_the_variable_where_optimizers_are_in_a_dictionary() {
    let source = "import torch\n\nclass Net(torch.nn.Module):\n    pass\n\ndef main():\n    model = Net().cuda()\n    dense = [p for p in model.parameters()]\n    optimizers = {\"dense\": torch.optim.AdamW(dense), \"sparse\": torch.optim.SparseAdam([model.items.weight])}\n";
    let hand = by_hand(
        source,
        &[Lever::from(Checkpoint {
            modules: vec!["Net.blocks.0".to_owned()],
        })],
    );
    let text = patch(source, &hand.diff);
    let expected = "    model = Net().cuda()\n    for name in [\n        \"blocks.0\",\n    ]:\n";
    assert!(hand.is_whole() && text.contains(expected), "{text}");
}

#[test]
fn a_function_is_checkpointed_after_its_definition() {
    let source = "import torch\n\ndef force(x):\n    return x.exp()\n\noptimizer = torch.optim.SGD([x], 0.1)\nforce(x).sum().backward()\n";
    let lever = |name: &str| {
        Lever::from(Checkpoint {
            modules: vec![name.to_owned()],
        })
    };
    let hand = by_hand(source, &[lever("force()")]);
    let text = patch(source, &hand.diff);
    let expected = "    return x.exp()\nforce = functools.partial(torch.utils.checkpoint.checkpoint, force, use_reentrant=False)\n";
    assert!(hand.is_whole() && text.contains(expected), "{text}");
    // A method is no variable of the script's.
    let hand = by_hand(source, &[lever("Scene.force()")]);
    assert!(!hand.is_whole() && hand.snippets[0].contains("# Scene.force()"));
}
