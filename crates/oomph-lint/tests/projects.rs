//! Files that say something of each other: what is found in one depends on the others.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use oomph_lint::{FileFacts, FirstLook, Linted, Project, Selection, Source, lint, lint_in};

/// All rules but some that speak of trade-offs.
fn with_more() -> Selection {
    let others = [
        "OOM302", "OOM402", "OOM415", "OOM506", "OOM612", "OOM704", "OOM801", "OOM802", "OOM804",
        "OOM815",
    ]
    .map(str::to_owned);
    Selection::all().without(&others).unwrap()
}

/// The codes found in the first file.
fn found(files: &[(&str, &str)]) -> Vec<&'static str> {
    let sources: Vec<(PathBuf, Source)> = files
        .iter()
        .map(|(path, code)| {
            (
                PathBuf::from(path),
                Source::python((*code).to_string()).unwrap(),
            )
        })
        .collect();
    let selection = with_more();
    let (facts, looks): (Vec<(PathBuf, FileFacts)>, Vec<FirstLook>) = sources
        .iter()
        .map(|(path, source)| {
            let (facts, look) = FirstLook::at(source, &selection);
            ((path.clone(), facts), look)
        })
        .unzip();
    let project = Project::new(&facts, &|_| false);
    let codes = |linted: &Linted| -> Vec<&'static str> {
        let codes = linted.findings.iter().map(|finding| finding.rule.code);
        codes.collect()
    };
    // What a first look takes for granted is never taken where it does not hold.
    for (index, look) in looks.into_iter().enumerate() {
        let around = project.around(index);
        let known = lint_in(&sources[index].1, &selection, &around);
        if let Some(first) = look.settled(&around) {
            assert_eq!(codes(&first), codes(&known));
        }
    }
    codes(&lint_in(&sources[0].1, &selection, &project.around(0)))
}

#[test]
fn a_first_look_holds_if_the_project_is_as_it_was_assumed() {
    let code = "import torch
from net import Net
net = Net()
net.load_state_dict(torch.load('last.pth'))
net.cuda()
with torch.no_grad():
    net(torch.ones(1).cuda())
";
    let source = Source::python(code.to_owned()).unwrap();
    let settled = |other: &str| {
        let other = Source::python(other.to_owned()).unwrap();
        let (facts, look) = FirstLook::at(&source, &with_more());
        let facts = [
            (PathBuf::from("main.py"), facts),
            (PathBuf::from("net.py"), FileFacts::of(&other)),
        ];
        look.settled(&Project::new(&facts, &|_| false).around(0))
    };
    let net = "import torch\nclass Net(torch.nn.Linear): pass\n";
    let saves = format!("{net}torch.save(Net().cuda().state_dict(), 'last.pth')\n");
    assert!(settled(&saves).is_some());
    assert!(settled(net).is_none());
}

const TRAIN: &str = "import torch
from tools import restore, Net
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(1, 2).cuda()).sum().backward()
optimizer.step()
torch.save(net.state_dict(), 'last.pth')
";

#[test]
fn a_load_counts_where_something_calls_it() {
    let tools = "import torch
device = torch.device('cuda')
class Net(torch.nn.Linear): pass
def restore(net, path):
    net.to(device)
    net.load_state_dict(torch.load(path, map_location=device))
";
    let calls = format!("{TRAIN}restore(net, 'last.pth')\n");
    assert_eq!(
        found(&[("tools.py", tools), ("train.py", &calls)]),
        ["OOM505"]
    );
    assert_eq!(found(&[("tools.py", tools), ("train.py", TRAIN)]), [""; 0]);
}

#[test]
fn a_file_that_names_no_device_says_nothing_of_a_gpu() {
    let load = "def restore(net, path):
    net.load_state_dict(torch.load(path))
";
    let calls = format!("{TRAIN}restore(net, 'last.pth')\n");
    let none = format!("import torch\nfrom nets import Net\n{load}");
    let some = format!("import torch\nfrom nets import Net\n{load}    net.cuda()\n");
    assert_eq!(
        found(&[("tools.py", &some), ("train.py", &calls)]),
        ["OOM505"]
    );
    assert_eq!(found(&[("tools.py", &none), ("train.py", &calls)]), [""; 0]);
}

#[test]
fn a_wrapper_counts_where_something_may_train_it() {
    let made = "import torch
from tools import restore, Net
def get_model(path):
    model = torch.nn.DataParallel(Net()).cuda()
    restore(model, path)
    return model
";
    let evaluates = format!(
        "{made}
def evaluate(path):
    model = get_model(path)
    model.eval()
    return model
evaluate(1)
"
    );
    let tools = "import torch\nclass Net: pass\ndef restore(net, path): pass\n";
    let files = [("tools.py", tools), ("train.py", TRAIN)];
    let first = |code| [&[("val.py", code)][..], &files[..]].concat();
    let trains = format!("{made}get_model(1)\n");
    assert_eq!(found(&first(&trains)), ["OOM701"]);
    assert_eq!(found(&first(made)), [""; 0]);
    assert_eq!(found(&first(&evaluates)), [""; 0]);
}

/// A file that trains with a `zero_grad()` between forward and backward pass, inside of what `place` defines.
fn late(place: &str, indent: &str) -> String {
    let body = "net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    loss = criterion(net(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";
    let body = body.replace('\n', &format!("\n{indent}"));
    format!("import torch\nfrom nets import Net\n{place}{indent}{body}\n")
}

#[test]
fn what_nothing_runs_is_told_by_the_object_not_by_the_name() {
    let train = late("def train(loader, criterion):\n", "    ");
    let found_with = |others: &[(&str, &str)]| {
        let mut files = vec![("a/loop.py", train.as_str())];
        files.extend(others);
        found(&files)
    };
    let runs: &[&str] = &[
        "from loop import train\ntrain(1, 2)\n",
        "import loop\nloop.train(1, 2)\n",
        "import loop as lp\nlp.train(1, 2)\n",
        "from loop import *\ntrain(1, 2)\n",
        "from loop import train as fit\nsteps = {'train': fit}\n",
        "import loop\ngetattr(loop, name)(1, 2)\n",
        "import loop\nrun = loop.__dict__[name]\n",
        "import importlib\nimportlib.import_module(name).train(1, 2)\n",
        "from loop import train\ndef go():\n    train(1, 2)\nif __name__ == '__main__':\n    go()\n",
    ];
    for code in runs {
        let code = format!("from given import name\n{code}");
        assert_eq!(found_with(&[("a/main.py", &code)]), ["OOM416"], "{code}");
    }
    // The folder of what is imported is only named while the program runs.
    let code = "import sys\nsys.path.append('../a')\nfrom loop import train\ntrain(1, 2)\n";
    assert_eq!(found_with(&[("tools/main.py", code)]), ["OOM416"]);
    let does_not: &[&str] = &[
        // A function of its own, a method of another object, a word.
        "from loop import other\ndef train(): pass\ntrain()\n",
        "import loop\nmodel.train()\n",
        "from loop import train\ndef go(train):\n    train(1, 2)\ngo(print)\n",
        "import loop\nprint('train')\n",
        // Who calls it runs nowhere.
        "from loop import train\ndef go():\n    train(1, 2)\n",
        "from loop import train\nclass Job:\n    def go(self):\n        train(1, 2)\nprint(Job)\n",
        "",
    ];
    for code in does_not {
        assert_eq!(found_with(&[("a/main.py", code)]), [""; 0], "{code}");
    }
}

#[test]
fn a_star_brings_names_of_the_module_that_it_follows() {
    let train = late("def train(loader, criterion):\n", "    ");
    let files = [
        ("utils/loop.py", train.as_str()),
        ("utils/utils.py", "import torch\n"),
        ("utils/all.py", "from utils.loop import *\ntrain(1, 2)\n"),
    ];
    assert_eq!(found(&files), ["OOM416"]);
}

#[test]
fn methods_belong_to_the_classes_that_something_makes() {
    let trainer = late(
        "class Trainer(Base):\n    def fit(self, loader, criterion):\n",
        "        ",
    )
    .replace(
        "from nets import Net\n",
        "from nets import Net\nfrom base import Base\n",
    );
    let base = "class Base:\n    def run(self):\n        self.fit(1, 2)\n    def fit(self): pass\n";
    let found_with = |code: &str| {
        found(&[
            ("a/trainer.py", &trainer),
            ("a/base.py", base),
            ("a/main.py", code),
        ])
    };
    let runs: &[&str] = &[
        "from trainer import Trainer\nTrainer().fit(1, 2)\n",
        "from trainer import Trainer\nt = Trainer()\nt.fit(1, 2)\n",
        // The class that it is made from calls it.
        "from trainer import Trainer\nTrainer().run()\n",
        "import trainer\nkinds = [trainer.Trainer]\nfor kind in kinds:\n    kind().fit(1, 2)\n",
        "from trainer import Trainer\nclass Job:\n    def __init__(self):\n        self.t = Trainer()\n    def go(self):\n        self.t.fit(1, 2)\nJob().go()\n",
        "from trainer import Trainer\nclass Other(Trainer):\n    def go(self):\n        super().fit(1, 2)\nOther().go()\n",
        "from trainer import Trainer\ngetattr(Trainer(), name)(1, 2)\n",
        "from trainer import Trainer\nt = Trainer() if x else None\nt.fit(1, 2)\n",
    ];
    for code in runs {
        let code = format!("from given import name, x\n{code}");
        assert_eq!(found_with(&code), ["OOM416"], "{code}");
    }
    let does_not: &[&str] = &[
        "from trainer import Trainer\nt = Trainer()\nt.other()\n",
        "import trainer\nclass Job:\n    def fit(self): pass\njob = Job()\njob.fit()\n",
        "from trainer import Trainer\nx.fit(1, 2)\n",
        "from trainer import Trainer\ndef go():\n    Trainer().fit(1, 2)\n",
    ];
    for code in does_not {
        assert_eq!(found_with(code), [""; 0], "{code}");
    }
}

#[test]
fn what_others_may_run_is_kept() {
    let registered = late(
        "from given import registry\n@registry.register\ndef train(loader, criterion):\n",
        "    ",
    );
    assert_eq!(found(&[("loop.py", &registered)]), ["OOM416"]);
    let main = late("def main(loader, criterion):\n", "    ");
    assert_eq!(found(&[("loop.py", &main)]), ["OOM416"]);
    let train = late("def train(loader, criterion):\n", "    ");
    assert_eq!(found(&[("job/loop.py", &train)]), [""; 0]);
    // A package that others install.
    let package = [
        ("job/loop.py", train.as_str()),
        ("job/__init__.py", ""),
        ("setup.py", ""),
    ];
    assert_eq!(found(&package), ["OOM416"]);
    let lightning = late(
        "import pl\nclass Job(pl.Trainer):\n    def fit(self, loader, criterion):\n",
        "        ",
    );
    assert_eq!(
        found(&[("loop.py", &format!("{lightning}Job()\n"))]),
        ["OOM416"]
    );
    // A function of the file that has the name of a builtin makes up no names.
    let own = format!("{train}def eval(x): pass\neval(1)\n");
    assert_eq!(found(&[("loop.py", &own)]), [""; 0]);
    let by_text = format!("{train}eval(input())(1, 2)\n");
    assert_eq!(found(&[("loop.py", &by_text)]), ["OOM416"]);
}

#[test]
fn a_checkpoint_is_kept_where_training_follows_it() {
    let train = "import torch
from given import Net, loader, criterion
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def main(device, path):
    LOAD
    for x, y in loader:
        optimizer.zero_grad()
        criterion(net(x.cuda()), y.cuda()).backward()
        optimizer.step()
    state = {'model': net.state_dict()}
main(torch.device('cuda'), 'last.pth')
";
    let kept = |load: &str| {
        let code = train.replace("LOAD", &load.replace('\n', "\n    "));
        found(&[("train.py", &code)]).contains(&"OOM503")
    };
    let to_device = "state = torch.load(path, map_location=device)\n";
    let into = "net.load_state_dict(state['model'])";
    assert!(kept(&format!("{to_device}{into}")));
    assert!(kept(
        "try:\n    state = torch.load(path)\nexcept OSError:\n    state = None\nif state is not None:\n    net.load_state_dict(state)"
    ));
    assert!(!kept(&format!("{to_device}{into}\nstate = None")));
    assert!(!kept(&format!("{to_device}{into}\ndel state")));
    assert!(!kept(&format!(
        "if test:\n    {to_device}    {into}\n    return"
    )));
    // The model itself came out of the file.
    assert!(!kept(
        "state = torch.load(path)\nnet.load_state_dict(state.state_dict())"
    ));
    let either = "import torch
net = Net().cuda()
def main(path):
    if path:
        state = torch.load(path)
        net.load_state_dict(state)
    else:
        for x, y in loader:
            criterion(net(x.cuda()), y.cuda()).backward()
            optimizer.step()
main('last.pth')
";
    assert!(!found(&[("train.py", either)]).contains(&"OOM503"));
}

const LOADS: &str = "net = torch.nn.Linear(2, 2).cuda()
state = torch.load('last.pth')
net.load_state_dict(state)
with torch.no_grad():
    net(torch.ones(1, 2).cuda())
torch.save(net.state_dict(), 'last.pth')
";

#[test]
fn a_file_that_stops_at_its_top_says_nothing() {
    let script = |stop: &str| format!("import sys\nimport torch\n{stop}\n{LOADS}");
    assert_eq!(found(&[("a.py", &script(""))]), ["OOM501"]);
    for stop in ["assert False", "raise SystemExit", "sys.exit(0)", "exit()"] {
        assert_eq!(found(&[("a.py", &script(stop))]), [""; 0], "{stop}");
    }
    // A condition may not hold.
    let asks = script("assert torch.cuda.is_available()\nif len(sys.argv) > 9:\n    exit()");
    assert_eq!(found(&[("a.py", &asks)]), ["OOM501"]);
}

#[test]
fn who_imports_what_the_project_does_not_have_says_nothing() {
    let script = |import: &str| format!("import torch\n{import}\n{LOADS}");
    let package = [
        ("nets/__init__.py", "from .net import Net\n"),
        ("nets/net.py", "class Net: pass\n"),
        (
            "nets/stops.py",
            "import torch\nassert False\nclass Old: pass\n",
        ),
        ("nets/broken.py", "def old(:\n"),
        ("tools.py", "from nets.net import *\ndef helps(): pass\n"),
        ("other.py", "from tools import helps\n"),
    ];
    let found = |import: &str| {
        let script = script(import);
        let mut files = vec![("a.py", script.as_str())];
        files.extend(package);
        found(&files)
    };
    for import in [
        "from nets.other import Net",
        "import nets.other",
        "from nets import Other",
        "from nets.net import Other",
        "from tools import Other",
        "from nets.stops import Old",
        "from nets.broken import old",
    ] {
        assert_eq!(found(import), [""; 0], "{import}");
    }
    for import in [
        "from nets import Net, net",
        "from nets.net import Net",
        "from tools import Net, helps",
        // A library, or what is caught.
        "import timm.models",
        "from statistics import mean",
        "try:\n    from nets.other import Net\nexcept ImportError:\n    pass",
        "if torch.cuda.is_available():\n    from nets.other import Net",
    ] {
        assert_eq!(found(import), ["OOM501"], "{import}");
    }
}

#[test]
fn a_package_of_a_librarys_name_is_not_what_its_own_files_import() {
    let script = format!("import torch\nfrom torch.nn import functional\n{LOADS}");
    let files = [
        ("jobs/torch/net.py", script.as_str()),
        ("jobs/torch/__init__.py", ""),
        ("jobs/torch/utils.py", ""),
        ("jobs/__init__.py", ""),
        ("main.py", "from jobs.torch import net\n"),
    ];
    assert_eq!(found(&files), ["OOM501"]);
}

#[test]
fn a_module_that_was_not_read_may_be_there_all_the_same() {
    let script = format!("import torch\nfrom nets.compiled import fast\n{LOADS}");
    let sources = [("a.py", script.as_str()), ("nets/__init__.py", "")].map(|(path, code)| {
        let source = Source::python(code.to_string()).unwrap();
        (PathBuf::from(path), source)
    });
    let facts: Vec<(PathBuf, FileFacts)> = sources
        .iter()
        .map(|(path, source)| (path.clone(), FileFacts::of(source)))
        .collect();
    let count = |is_there: &dyn Fn(&std::path::Path) -> bool| {
        let around = Project::new(&facts, is_there).around(0);
        lint_in(&sources[0].1, &with_more(), &around).findings.len()
    };
    assert_eq!(count(&|_| false), 0);
    assert_eq!(count(&|path| path.ends_with("nets/compiled")), 1);
}

#[test]
fn what_a_constant_switches_off_says_nothing() {
    let script = |before: &str, test: &str| {
        let body = LOADS.replace('\n', "\n    ");
        format!(
            "import torch\nimport settings\nfrom settings import RESUME, KEEP\n{before}\nif {test}:\n    {body}\n"
        )
    };
    let settings = "RESUME = None\nKEEP = 'last'\nSET = 0\n";
    let found = |before: &str, test: &str| {
        found(&[
            ("a.py", &script(before, test)),
            ("settings.py", settings),
            ("b.py", "import settings\nsettings.SET = 2\n"),
        ])
    };
    for (before, test) in [
        ("LOAD = False", "LOAD"),
        ("LOAD = True", "not LOAD"),
        ("LOAD = None", "LOAD is not None"),
        ("MODE = 'train'", "MODE == 'test'"),
        ("LOAD = 0", "LOAD and torch.cuda.is_available()"),
        ("", "RESUME"),
        ("", "settings.RESUME is not None"),
        ("", "KEEP == 'first'"),
    ] {
        assert_eq!(found(before, test), [""; 0], "{before} {test}");
    }
    for (before, test) in [
        ("LOAD = True", "LOAD"),
        ("LOAD = False\nLOAD = input()", "LOAD"),
        (
            "LOAD = False\ndef f():\n    global LOAD\n    LOAD = True",
            "LOAD",
        ),
        ("LOAD = False", "LOAD or torch.cuda.is_available()"),
        ("", "settings.SET"),
        ("", "KEEP"),
    ] {
        assert_eq!(found(before, test), ["OOM501"], "{before} {test}");
    }
}

#[test]
fn a_function_of_the_same_name_in_another_file_is_another_one() {
    let file = "import torch
from nets import batches
def validate(net, loader):
    net.eval()
    for x in loader:
        print(net(x.cuda()))
";
    let quiet = "import torch
import nets
def validate(loader): print(nets)
with torch.no_grad():
    validate(1)
";
    let calls = format!("{file}validate(torch.nn.Linear(2, 2).cuda(), batches)\n");
    let nets = "import torch\nbatches = []\n";
    assert_eq!(
        found(&[("a.py", &calls), ("b.py", quiet), ("nets.py", nets)]),
        ["OOM201"]
    );
    let imports = "import torch
from a import validate
with torch.no_grad():
    validate(1, 2)
";
    assert_eq!(
        found(&[("a.py", file), ("b.py", imports), ("nets.py", nets)]),
        [""; 0]
    );
}

#[test]
fn what_a_dictionary_of_a_package_may_give_is_kept() {
    let learner = format!(
        "import torch\nclass Learner:\n    def __init__(self):\n        {}",
        LOADS.replace('\n', "\n        ")
    );
    let init = "from . import default\n";
    let main = "import learners\nlearners.__dict__[input()].__dict__[input()]()\n";
    assert_eq!(
        found(&[
            ("learners/default.py", &learner),
            ("learners/__init__.py", init),
            ("main.py", main),
        ]),
        ["OOM501"]
    );
}

#[test]
fn a_call_that_a_constant_switches_off_is_none() {
    let script = |before: &str| {
        let body = LOADS.replace('\n', "\n    ");
        format!(
            "import torch\n{before}\ndef restore():\n    {body}\ndef main():\n    if RESUME is not None:\n        restore()\nmain()\n"
        )
    };
    assert_eq!(found(&[("a.py", &script("RESUME = None"))]), [""; 0]);
    assert_eq!(
        found(&[("a.py", &script("RESUME = 'last.pth'"))]),
        ["OOM501"]
    );
    let set = "RESUME = None\ndef ask():\n    global RESUME\n    RESUME = input()\nask()";
    assert_eq!(found(&[("a.py", &script(set))]), ["OOM501"]);
}

#[test]
fn what_runs_backward_itself_needs_its_graph() {
    let main = "import torch
from nets import Net
class Loop:
    def __init__(self):
        self.model = Net().cuda()

    def epoch(self, loader):
        for x in loader:
            losses = self.model(x.cuda(), 'train')
            print(losses.item())
Loop().epoch([])
";
    let net = |after: &str| {
        format!(
            "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.net = torch.nn.Linear(1, 5000)\n    def forward(self, x, mode):\n        loss = self.net(x).sum()\n{after}        return loss\n"
        )
    };
    let steps = net(
        "        if mode == 'train':\n            loss.backward()\n            self.optimizer.step()\n",
    );
    assert_eq!(
        found(&[("main.py", main), ("nets.py", &net(""))]),
        ["OOM207"]
    );
    assert!(found(&[("main.py", main), ("nets.py", &steps)]).is_empty());

    // Meta-learning: under `no_grad()` its own step on the support set fails.
    let main = "import torch
from nets import Net
def test(loader):
    net = Net().cuda()
    net.eval()
    for x in loader:
        print(net(x.cuda(), 'test').item())
test([])
";
    let adapting = |step: &str| {
        let layer =
            net("        loss = loss - self.adapt(loss)\n").replace("1, 5000", "5000, 5000");
        format!("{layer}    def adapt(self, loss):\n        return {step}\n")
    };
    assert_eq!(
        found(&[("main.py", main), ("nets.py", &adapting("loss"))]),
        ["OOM201"]
    );
    let adapts = adapting("torch.autograd.grad(loss, self.parameters())[0].sum()");
    assert!(found(&[("main.py", main), ("nets.py", &adapts)]).is_empty());

    let main = "import torch
from agents import Agent
def work(env):
    agent = Agent(torch.device('cuda'))
    for state in env:
        loss = agent.train_model(state.cuda())
        print(loss.item())
work([])
";
    let agent = |after: &str| {
        format!(
            "import torch\nclass Agent:\n    def train_model(self, x):\n        loss = self.fit(x)\n        return loss\n    def fit(self, x):\n        loss = self.net(x).sum()\n{after}        return loss\n"
        )
    };
    let trains = agent("        loss.backward()\n");
    assert_eq!(
        found(&[("main.py", main), ("agents.py", &agent(""))]),
        ["OOM201"]
    );
    assert!(found(&[("main.py", main), ("agents.py", &trains)]).is_empty());
}

#[test]
fn what_another_network_leaves_over_is_not_kept_by_the_first() {
    let main = "import torch
def label(loader):
    annotator = torch.nn.Linear(4096, 4096).cuda()
    network = torch.nn.Linear(4096, 4096).cuda()
    for x in loader:
        out = annotator(x.cuda())
        _, shift = network(x.cuda(), out)
        out = out.detach().cpu().numpy()
        shift = shift.detach().cpu().numpy()
        print(out + shift)
label([])
";
    assert_eq!(found(&[("main.py", main)]), ["OOM201"]);
}

#[test]
fn anomaly_detection_in_a_function_that_only_evaluates_says_nothing() {
    let script = |name: &str, calls: &str| {
        format!(
            "import torch\nfrom steps import *\ndef {name}(model, loader):\n    torch.autograd.set_detect_anomaly(True)\n    return {calls}(model, loader)\n{name}(1, 2)\n"
        )
    };
    let steps = "import torch\ndef train_epoch(model, loader):\n    model(loader).backward()\ndef test_epoch(model, loader):\n    return model(loader)\n";
    let found = |name, calls| found(&[("a.py", &script(name, calls)), ("steps.py", steps)]);
    assert!(found("test", "test_epoch").is_empty());
    assert_eq!(found("test", "train_epoch"), ["OOM111"]);
    assert_eq!(found("run", "test_epoch"), ["OOM111"]);
}

#[test]
fn weights_that_were_moved_to_the_cpu_before_the_save_are_read_there() {
    let load = "import torch
from train import save
class Net(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.load_state_dict(torch.load(path))
def work(path):
    net = Net(path).cuda()
    with torch.no_grad():
        return net(torch.ones(1, 1).cuda())
work('last.pth')
";
    let train = |moved: &str, also: &str| {
        format!(
            "import torch\nfrom tools import to\ndef save(model, paths):\n    model.cuda()\n    state = model.state_dict()\n{moved}    torch.save(state, 'last.pth')\n    names = list(paths)\n    torch.save(names, 'names.pth')\n{also}"
        )
    };
    let found =
        |moved: &str, also: &str| found(&[("main.py", load), ("train.py", &train(moved, also))]);
    assert_eq!(found("", ""), ["OOM505"]);
    assert!(found("    state = to(state, 'cpu')\n", "").is_empty());
    assert!(found("    state = {k: v.cpu() for k, v in state.items()}\n", "").is_empty());
    // One of two saves is from the GPU.
    let also = "    torch.save(model.state_dict(), 'best.pth')\n";
    assert_eq!(found("    state = to(state, 'cpu')\n", also), ["OOM505"]);
}

#[test]
fn an_optimizer_that_was_just_made_has_no_state() {
    let script = |between: &str| {
        format!(
            "import copy\nimport torch\ndef work(sets, model):\n    model.cuda()\n    for each in sets:\n        optimizer = torch.optim.AdamW(model.parameters())\n{between}        state = copy.deepcopy(optimizer.state_dict())\n        for x in each:\n            optimizer.zero_grad()\n            model(x.cuda()).sum().backward()\n            optimizer.step()\nwork(1, 2)\n"
        )
    };
    assert!(found(&[("a.py", &script(""))]).is_empty());
    let steps = "        model(each[0].cuda()).sum().backward()\n        optimizer.step()\n";
    assert_eq!(found(&[("a.py", &script(steps))]), ["OOM504"]);
}

#[test]
fn a_copy_of_weights_that_is_on_the_cpu_or_dropped_at_once_takes_nothing_of_the_gpu() {
    let script = |line: &str, copy: &str| {
        format!(
            "import torch\nfrom copy import deepcopy\ndef work(model, other, workers):\n    model.cuda()\n    model(torch.ones(1).cuda())\n{line}    kept = []\n    for worker in workers:\n        {copy}\nwork(1, 2, 3)\n"
        )
    };
    let kept = "kept.append(worker(deepcopy(model.state_dict())))";
    let found = |line: &str, copy: &str| found(&[("a.py", &script(line, copy))]);
    assert_eq!(found("", kept), ["OOM504"]);
    assert!(found("    model.to('cpu')\n", kept).is_empty());
    assert!(found("", "other.load_state_dict(deepcopy(model.state_dict()))").is_empty());
}

#[test]
fn a_project_that_pins_an_older_pytorch_gets_no_advice_for_a_newer_one() {
    let code = "import torch
from torch.utils.checkpoint import checkpoint
scaler = torch.cuda.amp.GradScaler()
def train(model, block, loader, optimizer):
    for x in loader:
        with torch.cuda.amp.autocast():
            loss = checkpoint(block, model(x.cuda())).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
train(*make())
";
    let source = Source::python(code.to_owned()).unwrap();
    let codes = |torch| {
        let (facts, look) = FirstLook::at(&source, &with_more());
        let project = Project::new(&[(PathBuf::from("a.py"), facts)], &|_| false);
        let around = project.around(0).for_torch(torch);
        let linted = lint_in(&source, &with_more(), &around);
        let codes = |linted: &Linted| -> Vec<&str> {
            linted
                .findings
                .iter()
                .map(|finding| finding.rule.code)
                .collect()
        };
        if let Some(first) = look.settled(&around) {
            assert_eq!(codes(&first), codes(&linted));
        }
        codes(&linted).join(" ")
    };
    let all = "OOM811 OOM811 OOM511 OOM416";
    assert_eq!(codes(None), all);
    assert_eq!(codes(Some((2, 4))), all);
    assert_eq!(codes(Some((2, 3))), "OOM511 OOM416");
    assert_eq!(codes(Some((1, u32::MAX))), "OOM511");
    assert_eq!(codes(Some((1, 10))), "");
}

#[test]
fn nothing_follows_a_line_at_which_python_stops() {
    let rest = "net = Net().cuda()
state = torch.load('last.pth')
net.load_state_dict(state)
with torch.no_grad():
    net(torch.ones(1, 2).cuda())
";
    let nets = "import torch
class Net(torch.nn.Linear): pass
class Wide(torch.nn.Module):
    def __init__(self, width, *, depth=2):
        super().__init__()
        self.inner = Deep()
class Deep(torch.nn.Module):
    def __init__(self, size=1):
        super().__init__()
def halves(x):
    if x is None:
        return 0, 0
    return x, x
torch.save(Net(1, 1).cuda().state_dict(), 'last.pth')
";
    let found_after = |line: &str| {
        let main =
            format!("import torch\nfrom nets import *\nfrom tools import any\n{line}\n{rest}");
        let found = found(&[
            ("main.py", &main),
            ("nets.py", nets),
            ("tools.py", "def any(*args): pass\n"),
        ]);
        !found.is_empty()
    };
    for goes_on in [
        "Wide(1)",
        "Wide(width=1, depth=3)",
        "Wide(*[])",
        "Wide(**{})",
        "a, b = halves(1)",
        "a, *b = halves(1)",
        "any(1, 2)",
        "Wide if Wide is None else Wide(1)",
        "None and Wide()",
        "try:\n    Wide()\nexcept TypeError:\n    pass",
        "if any():\n    Wide()",
        "def build():\n    Wide()",
        "def build():\n    if any():\n        return 1\n    Wide()\nbuild()",
        "from contextlib import suppress\nwith suppress(TypeError):\n    Wide()",
        "from given import Wide\nWide()",
        "Wide = any\nWide()",
    ] {
        assert!(found_after(goes_on), "{goes_on}");
    }
    for stops in [
        "Wide()",
        "Wide(1, 2)",
        "Wide(1, height=2)",
        "Wide(1, width=2)",
        "a, b, c = halves(1)",
        "missing(1)",
        "for x in [1]:\n    Wide()",
        "def build():\n    Wide()\nbuild()",
        "class Job:\n    def __init__(self):\n        self.net = Wide()\njob = Job()",
    ] {
        assert!(!found_after(stops), "{stops}");
    }
}

#[test]
fn what_has_no_object_runs_no_method() {
    let head = "import torch
class Mine(torch.nn.Module):
    def __init__(self, width, depth):
        super().__init__()
class Base:
    def __init__(self):
        self.mine = Mine(width=3)
    def fit(self, net, optimizer, loader, criterion):
        for x, y in loader:
            loss = criterion(net(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
class Derived(Base):
    def __init__(self, path):
        self.path = path
        INIT
";
    let is_run = |init: &str, main: &str| {
        let trainer = head.replace("INIT", init);
        let main = format!("from trainer import Base, Derived\n{main}\n");
        !found(&[("trainer.py", &trainer), ("main.py", &main)]).is_empty()
    };
    let fits = "fit(1, 2, 3, 4)";
    // Of the base there is no object, but of what is made from it.
    assert!(is_run("self.other = 1", &format!("Derived('a').{fits}")));
    assert!(!is_run(
        "self.mine = Mine(1)",
        &format!("if 'a' in 'ab':\n    kind = Base\nelse:\n    kind = Derived\nkind('a').{fits}")
    ));
}

#[test]
fn what_no_caller_hands_over_switches_a_branch_off() {
    let job = late(
        "class Job(Base):
    def __init__(self, width, load=False, **rest):
        super(Job, self).__init__()
        self.load = load
    def fit(self, loader, criterion):
        if self.load:
",
        "            ",
    )
    .replace(
        "from nets import Net",
        "from nets import Net\nclass Base: pass",
    );
    let job = format!("{job}\ndef make(width, **rest):\n    return Job(width, **rest)\n");
    let is_on = |main: &str| {
        let main =
            format!("from job import *\nfrom given import option\n{main}\nmake(1).fit(1, 2)\n");
        !found(&[("job.py", &job), ("main.py", &main)]).is_empty()
    };
    for on in [
        "Job(1, True)",
        "Job(1, load=option)",
        "make(1, load=True)",
        "make(1, **option)",
        "kinds = [Job]",
        "class Other(Job):\n    def __init__(self):\n        super().__init__(1, load=True)\nOther()",
        "job = Job(1)\njob.load = True",
        "setattr(Job(1), option, True)",
    ] {
        assert!(is_on(on), "{on}");
    }
    for off in [
        "",
        "Job(1)",
        "Job(1, load=False)",
        "make(1)",
        "OFF = False\nJob(1, OFF)",
    ] {
        assert!(!is_on(off), "{off}");
    }
}

#[test]
fn names_that_are_made_up_from_parts_reach_what_fits() {
    let train = late("def train(loader, criterion):\n", "    ");
    let with = |line: &str| found(&[("loop.py", &format!("{train}{line}\n"))]);
    assert_eq!(with("eval('tra{}'.format(input()))(1, 2)"), ["OOM416"]);
    assert_eq!(with("eval(f'{input()}rain')(1, 2)"), ["OOM416"]);
    assert_eq!(with("eval('{}_classes'.format(input()))"), [""; 0]);
    // A test is looked for where tests are.
    let test = late("def test_step(loader=1, criterion=2):\n", "    ");
    assert_eq!(found(&[("steps.py", &test)]), [""; 0]);
    assert_eq!(found(&[("test_steps.py", &test)]), ["OOM416"]);
}

#[test]
fn a_class_of_data_of_another_file_decodes_what_it_reads() {
    let train = "import glob
import torch
from torch.utils.data import DataLoader
from data import Photos
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Photos(glob.glob('*.png')), batch_size=8, shuffle=True)
for x in loader:
    optimizer.zero_grad()
    model(x.cuda()).mean().backward()
    optimizer.step()
";
    let data = |read: &str, item: &str| {
        format!(
            "import torch
from PIL import Image
class Photos(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.items = {read}
    def __getitem__(self, index):
        return {item}
"
        )
    };
    let each_time = data("paths", "Image.open(self.items[index])");
    assert!(found(&[("train.py", train), ("data.py", &each_time)]).contains(&"OOM606"));
    // A function of the other file makes it.
    let by_function = train.replace("Photos", "photos");
    let makes =
        format!("{each_time}def photos(paths):\n    data = Photos(paths)\n    return data\n");
    assert!(found(&[("train.py", &by_function), ("data.py", &makes)]).contains(&"OOM606"));
    let at_once = data("[Image.open(path) for path in paths]", "self.items[index]");
    assert!(!found(&[("train.py", train), ("data.py", &at_once)]).contains(&"OOM606"));
}

#[test]
fn a_star_may_mean_any_file_of_its_name() {
    let main = "import torch
from tools.all import *
net = torch.nn.Linear(1, 1).cuda()
net.load_state_dict(load('last.pth'))
state = torch.load('last.pth')
net.load_state_dict(state)
with torch.no_grad():
    net(torch.ones(1, 1).cuda())
torch.save(net.state_dict(), 'last.pth')
";
    let with = |config: &str| {
        let files = [
            ("main.py", main),
            ("tools/all.py", "from config import *\n"),
            ("tools/config.py", ""),
            ("config.py", config),
        ];
        !found(&files).is_empty()
    };
    assert!(with("from torch import load\n"));
    assert!(!with(""));
}

/// A project that loads to where the weights were saved from, as long as another file saves them from the GPU.
#[test]
fn weights_that_another_file_saves_from_the_cpu_load_to_the_cpu() {
    let with = |saves: &str| {
        let train = format!(
            "import torch\nfrom nets import Net\nnet = Net().cuda()\nnet(torch.ones(1, 2).cuda()).sum().backward()\n{saves}"
        );
        let test = "import torch\nfrom nets import Net\nnet = Net().cuda()\nnet.load_state_dict(torch.load('last.pth'))\n";
        let nets = "import torch\nclass Net(torch.nn.Linear): pass\n";
        found(&[
            ("evaluate.py", test),
            ("nets.py", nets),
            ("train.py", &train),
        ])
    };
    assert_eq!(
        with("torch.save(net.state_dict(), 'last.pth')\n"),
        ["OOM505"]
    );
    let moved = "state = net.state_dict()
for key, value in state.items():
    state[key] = value.cpu()
torch.save(state, 'last.pth')
torch.save(optimizer.state_dict(), 'optimizer.pth')
";
    assert_eq!(with(moved), [""; 0]);
    // What it is told to save of its settings is none of the weights.
    let of_class = "class Saver:
    def save_configuration(self, config):
        torch.save(config, 'config.pth')
    def save_model(self, net):
        state = net.state_dict()
        for key, value in state.items():
            state[key] = value.cpu()
        torch.save(state, 'last.pth')
Saver().save_configuration(1)
Saver().save_model(net)
";
    assert_eq!(with(of_class), [""; 0]);
    let own = "class Learner:
    def state_dict(self):
        return {name: value.cpu() for name, value in net.state_dict().items()}
    def save(self):
        torch.save(self.state_dict(), 'last.pth')
Learner().save()
";
    assert_eq!(with(own), [""; 0]);
}

#[test]
fn nothing_of_a_package_runs_whose_init_fails() {
    let loop_ = format!("{STEP}def fit(loader):\n    pass\n");
    let with = |init: &str| {
        let files = [
            ("job/steps.py", &*loop_),
            ("job/__init__.py", init),
            (
                "main.py",
                "from job.steps import step\nimport nets\nstep(nets.a, nets.b, nets.c, nets.d)\n",
            ),
        ];
        found(&files)
    };
    assert_eq!(with("from .steps import *\n"), ["OOM416"]);
    assert_eq!(
        with("from .steps import *\nfrom .missing import *\n"),
        [""; 0]
    );
}

/// What takes something of its own package is no script, whatever it does at its top.
#[test]
fn a_file_of_a_broken_package_that_takes_of_it_is_no_script() {
    let with = |init: &str, import: &str| {
        let steps = format!(
            "import loading\n{import}{STEP}class Job:\n    def run(self): step(1, 2, 3, 4)\nJob().run()\nstep(loading.a, loading.b, loading.c, loading.d)\n"
        );
        found(&[
            ("job/steps.py", &steps),
            ("job/__init__.py", init),
            ("job/other.py", "def helps(): pass\n"),
        ])
    };
    let of_package = "from .other import helps\n";
    assert_eq!(with("from .missing import *\n", of_package), [""; 0]);
    assert_eq!(with("from .missing import *\n", ""), ["OOM416"]);
    assert_eq!(with("", of_package), ["OOM416"]);
}

/// `from eval import …` means a file of the project; if it has none, it lacks it. So does a name whose file was renamed.
#[test]
fn who_imports_a_module_of_a_common_name_or_a_renamed_one_needs_it() {
    let with = |import: &str, other: &str| {
        let main = format!("import torch\n{import}\n{LOADS}");
        found(&[("a.py", &main), (other, "class Faces: pass\n")])
    };
    for (import, other) in [
        ("from eval import Faces", "dataset.py"),
        ("from env.games import Game", "dataset.py"),
        ("from celeba_dataset import Faces", "dataset.py"),
        ("from dataset_celeba import Faces", "dataset.py"),
    ] {
        assert_eq!(with(import, other), [""; 0], "{import}");
    }
    for (import, other) in [
        ("from eval import Faces", "eval.py"),
        // Somewhere in the project, for somebody who sets the path.
        ("from eval import Faces", "tools/eval.py"),
        (
            "import sys\nsys.path.append('..')\nfrom eval import Faces",
            "dataset.py",
        ),
        ("from dataset import Faces", "dataset.py"),
        ("from torch_dataset import Other", "dataset.py"),
        ("from faces import Faces", "dataset.py"),
        (
            "try:\n    from eval import Faces\nexcept ImportError:\n    pass",
            "dataset.py",
        ),
    ] {
        assert_eq!(with(import, other), ["OOM501"], "{import} {other}");
    }
}

/// Projects that lie beside each other, in a folder of no file, have no modules of each other.
#[test]
fn a_project_beside_another_lends_it_no_modules() {
    let main = format!("import torch\nfrom eval import Faces\n{LOADS}");
    let beside = |folder: &str| {
        let other = format!("{folder}eval.py");
        found(&[
            ("one/a.py", &main),
            ("one/b.py", ""),
            (&other, "class Faces: pass\n"),
            ("two/c.py", ""),
        ])
    };
    assert_eq!(beside("two/"), [""; 0]);
    assert_eq!(beside("one/sub/"), ["OOM501"]);
}

#[test]
fn modules_are_spelled_as_their_files_are() {
    let with = |name: &str| {
        let main =
            format!("from {name} import step\nimport nets\nstep(nets.a, nets.b, nets.c, nets.d)\n");
        found(&[("Steps.py", STEP), ("main.py", &main)])
    };
    assert_eq!(with("Steps"), ["OOM416"]);
    assert_eq!(with("steps"), [""; 0]);
}

const STEP: &str = "import torch
def step(model, loader, optimizer, criterion):
    model.cuda()
    for x, y in loader:
        loss = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
";

/// A pass whose graph another file's function runs backward through is no evaluation.
#[test]
fn what_another_file_differentiates_needs_its_graph() {
    let with = |body: &str| {
        let main = "import torch
from inner import adapt
from nets import Net, loader
def evaluate(model, loader):
    model.cuda()
    model.eval()
    for x, y in loader:
        loss = (model(x.cuda()) - y.cuda()).abs().mean()
        weights = adapt(model, loss)
        print(len(weights))
evaluate(Net(), loader)
";
        let inner = format!("import torch\ndef adapt(model, loss):\n    return {body}\n");
        found(&[("main.py", main), ("inner.py", &inner)])
    };
    assert_eq!(
        with("torch.autograd.grad(loss, model.parameters())"),
        [""; 0]
    );
    assert_eq!(with("loss.item()"), ["OOM201"]);
}

#[test]
fn a_load_of_the_first_process_is_none_of_all() {
    let with = |test: &str| {
        let code = format!(
            "import torch
import torch.distributed as dist
from accelerate.state import is_main_process
def main(rank, resumes):
    dist.init_process_group('nccl')
    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    if {test}:
        net.load_state_dict(torch.load('last.pth'))
    net(torch.ones(1, 4096).cuda()).sum().backward()
    torch.save(net.state_dict(), 'last.pth')
main(1, 2)
"
        );
        let found = found(&[("main.py", &code)]);
        found.contains(&"OOM501")
    };
    assert!(with("resumes"));
    assert!(with("rank == 1"));
    assert!(!with("rank == 0"));
    assert!(!with("dist.get_rank() == 0"));
    assert!(!with("is_main_process()"));
}

/// An assignment that is broken in two loses the loss that `backward()` is for.
#[test]
fn a_pass_whose_loss_is_lost_is_no_evaluation() {
    let with = |between: &str| {
        let code = format!(
            "import torch
class Net(torch.nn.Linear): pass
def fit(net, loader, optimizer, losses):
    net.cuda()
    for x, y in loader:
        output = net(x.cuda())
        loss, right,{between}count = losses(output.detach(), y)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        print(output.argmax(1), count)
fit(Net(2, 2), *make())
"
        );
        let found = found(&[("main.py", &code)]);
        found.contains(&"OOM201")
    };
    assert!(with(" "));
    assert!(!with("\n        "));
}

/// `no_grad()` is of 0.4.
#[test]
fn evaluation_in_an_older_pytorch_has_no_way_to_turn_gradients_off() {
    let code = "import torch
def evaluate(model, loader):
    model.eval()
    total = 0
    for x in loader:
        output = model(x.cuda())
        total += output.argmax(1).sum().item()
    return total
evaluate(*make())
";
    let source = Source::python(code.to_owned()).unwrap();
    let (facts, _) = FirstLook::at(&source, &with_more());
    let project = Project::new(&[(PathBuf::from("a.py"), facts)], &|_| false);
    let found = |torch| {
        let linted = lint_in(
            &source,
            &with_more(),
            &project.around(0).for_torch(Some(torch)),
        );
        linted
            .findings
            .iter()
            .any(|finding| finding.rule.code == "OOM201")
    };
    assert!(found((0, 4)));
    assert!(!found((0, 3)));
}

#[test]
fn anomaly_detection_counts_where_something_trains() {
    let nets = "import torch\nclass Net(torch.nn.Linear): pass\n";
    let train = "import torch\nfrom nets import Net\nnet = Net().cuda()\nnet(torch.ones(1, 2).cuda()).sum().backward()\n";
    let with = |last: &str| {
        let draw = format!(
            "import torch\nfrom nets import Net\nimport train\ntorch.autograd.set_detect_anomaly(True)\nnet = Net()\n{last}"
        );
        found(&[("draw.py", &draw), ("nets.py", nets), ("train.py", train)])
    };
    assert_eq!(with("train.fit(net)\n"), ["OOM111"]);
    assert_eq!(with("print(net)\n"), [""; 0]);
}

/// Who calls a function by another name says whether gradients are on.
#[test]
fn functions_that_have_another_name_are_called_by_that() {
    let with = |call: &str| {
        let text = format!(
            "import torch
def evaluate(model, loader):
    for x in loader:
        print(model(x.cuda()).argmax())
def main(model, loader):
    model.cuda()
    model.eval()
    with torch.no_grad():
        {call}
main(1, 2)
"
        );
        found(&[("main.py", &text)])
    };
    assert_eq!(
        with("score = evaluate\n        score(model, loader)"),
        [""; 0]
    );
    assert_eq!(with("pass\n    evaluate(model, loader)"), ["OOM201"]);
}

#[test]
fn a_model_that_lightning_froze_records_no_graph() {
    let with = |freeze: &str| {
        let text = format!(
            "import torch
from nets import Net, loader
def show(model, loader):
    model.cuda()
    model.eval()
    {freeze}
    for x in loader:
        print(model(x.cuda()).argmax())
show(Net(), loader)
"
        );
        found(&[("main.py", &text)])
    };
    assert_eq!(with("model.freeze()"), [""; 0]);
    assert_eq!(with("model.float()"), ["OOM201"]);
}

#[test]
fn what_others_are_given_and_run_quietly_records_no_graph() {
    let score = "import torch
def inference(model, batch):
    scores = model(batch.cuda())
    return scores.argmax(1).tolist()
";
    let main = "import torch
from engine import Engine
from score import inference
net = torch.nn.Linear(2, 2).cuda()
Engine(net, inference).test([torch.ones(1, 2)])
";
    let engine = |test: &str| {
        format!(
            "import torch
class Engine:
    def __init__(self, model, inference):
        self.model, self.inference = model, inference
    def test(self, loader):
        for batch in loader:
{test}"
        )
    };
    let quiet = engine(
        "            with torch.no_grad():
                self.inference(self.model, batch)
",
    );
    let loud = engine("            self.inference(self.model, batch)\n");
    let all = |engine: &str| {
        found(&[
            ("score.py", score),
            ("main.py", main),
            ("engine.py", engine),
        ])
    };
    assert_eq!(all(&loud), ["OOM205"]);
    assert_eq!(all(&quiet), [""; 0]);
}

#[test]
fn a_class_that_runs_its_model_quietly_records_no_graph() {
    let main = "import torch
from rewards import Reward
def score(batch):
    reward_model = Reward('cuda')
    rewards = reward_model(batch.cuda())
    return rewards.tolist()
print(score(torch.ones(1, 2)))
";
    let rewards = |body: &str| {
        format!(
            "import torch
class Reward:
    def __init__(self, device):
        self.net = torch.nn.Linear(2, 2).to(device)
    def __call__(self, batch):
{body}"
        )
    };
    let quiet = rewards("        with torch.no_grad():\n            return self.net(batch)\n");
    let loud = rewards("        return self.net(batch)\n");
    assert_eq!(
        found(&[("main.py", main), ("rewards.py", &loud)]),
        ["OOM205"]
    );
    assert_eq!(found(&[("main.py", main), ("rewards.py", &quiet)]), [""; 0]);
}

#[test]
fn a_loader_is_about_the_data_of_its_own_branch() {
    let code = "import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
class Photos(Dataset):
    def __getitem__(self, index): return Image.open(self.paths[index])
class Scans(Dataset):
    def __getitem__(self, index): return Image.open(self.paths[index])
def train(net, optimizer, kind):
    if kind == 'photos':
        train_set = Photos()
        train_loader = DataLoader(train_set, batch_size=8)
    else:
        train_set = Scans()
        train_loader = DataLoader(train_set, batch_size=8)
    for x in train_loader:
        optimizer.zero_grad()
        net(x.cuda()).mean().backward()
        optimizer.step()
";
    let linted = lint(&Source::python(code.to_owned()).unwrap(), &with_more());
    let named: Vec<bool> = (linted.findings.iter())
        .zip(["`Photos`", "`Scans`"])
        .map(|(finding, name)| finding.message.contains(name))
        .collect();
    assert_eq!(named, [true, true]);
}

/// What a `return` works out runs, and what follows it does not.
#[test]
fn what_is_returned_is_reached() {
    let step = |end: &str| {
        format!(
            "import torch\nfrom toolkit import build, make, read\ndef step(model, optimizer, x, y):\n    x, y = x.cuda(), y.cuda()\n    optimizer.zero_grad()\n    output = model(x)\n    fit = (output - y).mean()\n    size = output.abs().mean()\n    loss = fit + size\n    loss.backward()\n    optimizer.step()\n{end}\nfor x, y in read():\n    step(build(), make(), x, y)\n"
        )
    };
    let all = "fit.item(), size.item(), loss.item()";
    let returned = step(&format!("    return {all}"));
    assert_eq!(found(&[("train.py", &returned)]), ["OOM614"]);
    let after = step(&format!("    return loss\n    print({all})"));
    assert_eq!(found(&[("train.py", &after)]), [""; 0]);
}

#[test]
fn scripts_find_what_is_in_src() {
    let script = "import torch
from photos import make
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(model.parameters())
for x in DataLoader(make(), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    model(x.cuda()).mean().backward()
    optimizer.step()
";
    let data = "import torch
from PIL import Image
class Photos(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return Image.open(f'{index}.png')
def make():
    return Photos()
";
    let in_folder = |folder: &str| {
        let path = format!("{folder}/photos/__init__.py");
        found(&[("scripts/train.py", script), (&path, data)]).contains(&"OOM606")
    };
    assert!(in_folder("src"));
    assert!(!in_folder("other"));
}

#[test]
fn a_loader_that_a_function_returns_is_looped_over_by_who_trains() {
    let data = "import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
device = torch.device('cuda')
def photos(path):
    loader = DataLoader(ImageFolder(path), batch_size=8, shuffle=True)
    return loader
";
    let with = |body: &str| {
        let main = format!(
            "import torch
from data import photos
model = torch.nn.Linear(8, 8).cuda()
for x, _ in photos('images'):
    {body}
"
        );
        found(&[("data.py", data), ("main.py", &main)])
    };
    assert_eq!(with("model(x.cuda()).mean().backward()"), ["OOM606"]);
    assert_eq!(with("print(x.shape)"), [""; 0]);
}

#[test]
fn what_a_class_leaves_to_others_may_move_the_batches() {
    let base = |hook: &str| {
        format!(
            "import torch
class Trainer:
    def __init__(self, model, optimizer, loss):
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
    def scores(self, batch):
        {hook}
    def train(self, loader):
        for batch in loader:
            logits, real = self.scores(batch)
            loss = self.loss(logits, real)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
"
        )
    };
    let main = "import torch
from trainer import Trainer
class Ours(Trainer):
    def scores(self, batch):
        x, y = batch
        return self.model(x.cuda()), y.cuda()
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(net.parameters())
Ours(net, optimizer, torch.nn.CrossEntropyLoss()).train(torch.load('batches.pt'))
";
    let with = |hook: &str| found(&[("trainer.py", &base(hook)), ("main.py", main)]);
    assert_eq!(with("pass"), ["OOM416"]);
    assert_eq!(with("return self.model(batch[0]), batch[1]"), [""; 0]);
}

#[test]
fn what_becomes_an_array_without_a_copy_was_on_the_cpu() {
    let with = |shown: &str| {
        let main = format!(
            "import torch
def run(net, graphs, show):
    net.cuda()
    for features, edges in graphs:
        scores = net(features, edges)
        show({shown}, scores.argmax().item())
run(torch.nn.Linear(1, 1), [], print)
"
        );
        found(&[("main.py", &main)])
    };
    assert_eq!(with("edges[0].numpy()"), [""; 0]);
    assert_eq!(with("edges[0].cpu().numpy()"), ["OOM201"]);
}

const TRAINS_NET: &str = "def train(net, loader, criterion):
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in loader:
        loss = criterion(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
";

/// A training script that makes a network of `nets.py` and trains it.
fn trains_a_network(makes: &str, net: &str) -> Vec<&'static str> {
    let train = format!(
        "import torch\nfrom nets import Net\n{TRAINS_NET}train({makes}.cuda(), loader, criterion)\n"
    );
    let nets = format!("import torch\nfrom torch import nn\n{net}");
    found(&[("train.py", &train), ("nets.py", &nets)])
}

#[test]
fn gradients_of_a_small_network_are_not_reported() {
    let net = |layers: &str| {
        format!(
            "class Net(nn.Module):
    def __init__(self, inputs, width=64, depth=2):
        super().__init__()
        inner = width * 2
{layers}        self.act = nn.ReLU()
    def forward(self, x):
        return self.act(self.layers(x))
"
        )
    };
    let linear = net(
        "        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, inner))\n",
    );
    assert_eq!(trains_a_network("Net(113)", &linear), [""; 0]);
    // An input that nothing shows counts as 4,096 wide.
    assert_eq!(trains_a_network("Net(data.shape[1])", &linear), [""; 0]);
    assert_eq!(
        trains_a_network("Net(113, width=4000)", &linear),
        ["OOM416"]
    );
    assert_eq!(trains_a_network("Net(2000000)", &linear), ["OOM416"]);
    let convolutions = net(
        "        self.layers = nn.Conv2d(3, width, (3, 3))\n        self.norm = nn.BatchNorm2d(width)\n",
    );
    assert_eq!(trains_a_network("Net(3)", &convolutions), [""; 0]);
    assert_eq!(
        trains_a_network("Net(3, 200000)", &convolutions),
        ["OOM416"]
    );
    let recurrent =
        net("        self.layers = nn.LSTM(inputs, width, num_layers=depth, bidirectional=True)\n");
    assert_eq!(trains_a_network("Net(16)", &recurrent), [""; 0]);
    assert_eq!(trains_a_network("Net(16, 1500)", &recurrent), ["OOM416"]);
    let embedding = net("        self.layers = nn.Embedding(inputs, width)\n");
    assert_eq!(trains_a_network("Net(1000)", &embedding), [""; 0]);
    assert_eq!(
        trains_a_network("Net(len(vocabulary))", &embedding),
        ["OOM416"]
    );
    // Layers whose number or kind is not known.
    let repeated =
        net("        self.layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(depth)])\n");
    assert_eq!(trains_a_network("Net(113)", &repeated), ["OOM416"]);
    let unknown = net("        self.layers = build_layers(inputs)\n");
    assert_eq!(trains_a_network("Net(113)", &unknown), ["OOM416"]);
    let parameter = net("        self.layers = nn.Parameter(torch.ones(inputs))\n");
    assert_eq!(trains_a_network("Net(113)", &parameter), ["OOM416"]);
}

#[test]
fn activations_of_a_few_narrow_layers_are_not_reported() {
    let act = |width: usize, layer: &str| {
        let nets = format!(
            "import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = {layer}
    def forward(self, x):
        return self.layers(x)
"
        );
        let agent = format!(
            "import torch
from nets import Net
class Agent:
    def __init__(self):
        self.net = Net({width}).cuda()
    def values(self, states):
        return self.net(states.cuda()).detach()
print(Agent().values(states))
"
        );
        found(&[("agent.py", &agent), ("nets.py", &nets)])
    };
    assert_eq!(act(64, "nn.Linear(width, width)"), [""; 0]);
    assert_eq!(act(2000, "nn.Linear(width, width)"), ["OOM207"]);
    // How large images are is not known.
    assert_eq!(act(8, "nn.Conv2d(3, width, 3)"), ["OOM207"]);
}

#[test]
fn a_network_that_puts_itself_on_the_cpu_holds_nothing_on_a_gpu() {
    let nets = |device: &str| {
        format!(
            "import torch
class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.device = torch.device('{device}')
        self.to(self.device)
    def forward(self, x):
        return self.layers(x)
"
        )
    };
    let agent = "import torch
from nets import Net
class Agent:
    def __init__(self, layers):
        self.net = Net(layers)
        self.critic = torch.nn.Linear(400, 1).cuda()
    def values(self, states):
        return self.net(states.to(self.net.device)).detach()
print(Agent(layers).values(states))
";
    assert_eq!(
        found(&[("agent.py", agent), ("nets.py", &nets("cpu"))]),
        [""; 0]
    );
    assert_eq!(
        found(&[("agent.py", agent), ("nets.py", &nets("cuda"))]),
        ["OOM207"]
    );
}

#[test]
fn a_running_average_of_another_file_may_keep_the_graph() {
    let train = "import torch
from tools import RunningAverage
def train(net, loader, optimizer):
    average = RunningAverage()
    for x in loader:
        optimizer.zero_grad()
        loss = net(x.cuda()).mean()
        average.update(loss, 4)
        loss.backward()
        optimizer.step()
train(net, loader, optimizer)
";
    let tools = |update: &str| {
        format!(
            "class RunningAverage:
    def __init__(self):
        self.sum, self.all = 0, []
    def update(self, value, count=1):
{update}"
        )
    };
    let of = |update: &str| found(&[("train.py", train), ("tools.py", &tools(update))]);
    assert_eq!(of("        self.sum += value * count\n"), ["OOM107"]);
    assert_eq!(of("        self.all.append(value)\n"), ["OOM107"]);
    assert_eq!(of("        self.sum += value.item() * count\n"), [""; 0]);
    assert_eq!(
        of("        value = float(value)\n        self.sum += value\n"),
        [""; 0]
    );
    assert_eq!(of("        self.last = value\n"), [""; 0]);
}

#[test]
fn a_checkpoint_that_a_function_returns_may_be_kept() {
    let train = |binds: &str, after: &str| {
        format!(
            "import torch
from tools import load_checkpoint
def main(net, loader, path):
    device = torch.device('cuda')
    {binds} = load_checkpoint(path, net, device)
{after}    optimizer = torch.optim.Adam(net.parameters())
    for x in loader:
        optimizer.zero_grad()
        net(x.to(device)).mean().backward()
        optimizer.step()
main(net, loader, path)
"
        )
    };
    let tools = |location: &str, returns: &str| {
        format!(
            "import torch
def load_checkpoint(path, net, device):
    checkpoint = torch.load(path, map_location={location})
    net.load_state_dict(checkpoint['net'])
    return {returns}
"
        )
    };
    let of = |binds: &str, after: &str, location: &str, returns: &str| {
        let mut codes = found(&[
            ("train.py", &train(binds, after)),
            ("tools.py", &tools(location, returns)),
        ]);
        codes.retain(|code| *code == "OOM503");
        codes
    };
    assert_eq!(
        of(
            "state, step",
            "",
            "device",
            "checkpoint, checkpoint['step']"
        ),
        ["OOM503"]
    );
    assert_eq!(of("state", "", "device", "checkpoint"), ["OOM503"]);
    assert_eq!(
        of("state", "    del state\n", "device", "checkpoint"),
        [""; 0]
    );
    assert_eq!(
        of("_, step", "", "device", "checkpoint, checkpoint['step']"),
        [""; 0]
    );
    assert_eq!(of("state", "", "'cpu'", "checkpoint"), [""; 0]);
    assert_eq!(of("step", "", "device", "checkpoint['step']"), [""; 0]);
}

#[test]
fn logits_of_a_language_model_of_the_project_are_kept() {
    let train = |ends: &str| {
        format!(
            "import torch
from gpt import Gpt
def train(config, loader):
    model = Gpt(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        logits, loss = model(x.cuda(), y.cuda())
        loss.backward()
        optimizer.step()
{ends}train(config, loader)
"
        )
    };
    let gpt = |head: &str| {
        format!(
            "import torch
class Gpt(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.{head} = torch.nn.Linear(config.width, config.outputs)
    def forward(self, x, y):
        logits = self.{head}(x)
        return logits, torch.nn.functional.cross_entropy(logits, y)
"
        )
    };
    let of = |head: &str, ends: &str| found(&[("train.py", &train(ends)), ("gpt.py", &gpt(head))]);
    assert_eq!(of("lm_head", ""), ["OOM303"]);
    assert_eq!(of("lm_head", "        del logits\n"), [""; 0]);
    assert_eq!(of("classifier", ""), [""; 0]);
}

/// Its trainer would turn gradients off, and a script that calls the hook itself does not.
#[test]
fn what_lightning_loads_is_a_model() {
    let script = |quiet: &str| {
        format!(
            "import torch
from torch.utils.data import DataLoader
from net import Net
def main(path, data):
    net = Net.load_from_checkpoint(path).cuda()
    net.eval()
{quiet}
    for index, batch in enumerate(DataLoader(data)):
        print(net.predict_step(batch.cuda(), index).shape)
main('last.ckpt', [])
"
        )
    };
    let net = "import lightning
import torch
class Net(lightning.LightningModule):
    def predict_step(self, batch, index):
        return self.layers(batch)
";
    let found = |quiet: &str| found(&[("evaluate.py", &script(quiet)), ("net.py", net)]);
    assert_eq!(found(""), ["OOM205"]);
    assert_eq!(found("    torch.set_grad_enabled(False)"), [""; 0]);
}

/// The loop stops at its first batch: what it would do to memory, and what a checkpoint would stay beside, never comes.
#[test]
fn a_loop_that_unpacks_another_number_of_values_never_runs() {
    let script = |values: &str| {
        format!(
            "import torch
from torch.utils.data import DataLoader
from data import get_data
def save(net):
    torch.save(net.state_dict(), 'last.pth')
def evaluate(net, loader):
    net.eval()
    for index, ({values}) in enumerate(loader):
        print(net(x.cuda()).argmax(1))
def main(net, loader):
    evaluate(net, loader)
net = torch.nn.Linear(4096, 4096).cuda()
state = torch.load('last.pth')
net.load_state_dict(state)
loader = DataLoader(get_data('train'), batch_size=8)
main(net, loader)
"
        )
    };
    let data = |more: &str| {
        format!(
            "import torch
class Data(torch.utils.data.Dataset):
    def __getitem__(self, index):
        if index in self.bad:
            return None, 0, index
        return self.x[index], self.y[index]{more}
def get_data(split):
    return Data(split)
"
        )
    };
    let found =
        |values: &str, more: &str| found(&[("main.py", &script(values)), ("data.py", &data(more))]);
    assert_eq!(found("x, y, at", ", index"), ["OOM201", "OOM501"]);
    assert_eq!(found("x, y", ", index"), [""; 0]);
    // Some items have two values, others three.
    assert_eq!(found("x, y", ""), ["OOM201", "OOM501"]);
}

/// Nothing runs backward through what they return, so `no_grad()` costs nothing.
#[test]
fn functions_that_evaluate_batches_are_found_by_the_flow_of_their_results() {
    let of_batches = |evaluates: &str, uses: &str| {
        format!(
            "import torch
from nets import data, net
loader = torch.utils.data.DataLoader(data)
def of_batch(net, x, y):
    x, y = x.cuda(), y.cuda()
    return {evaluates}
def validate_all(net, loader):
    net.eval()
    total = 0
    for x, y in loader:
        total += of_batch(net, x, y){uses}
    return total
validate_all(net, loader)
"
        )
    };
    let right = "(net(x).argmax(1) == y).sum().item()";
    let loss = "torch.nn.functional.cross_entropy(net(x), y)";
    assert_eq!(found(&[("a.py", &of_batches(right, ""))]), ["OOM201"]);
    assert_eq!(found(&[("a.py", &of_batches(loss, ".item()"))]), ["OOM201"]);
    // Training calls it as well.
    let trains = "from torch.optim import SGD
def train(net, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        of_batch(net, x, y).backward()
        optimizer.step()
train(net, loader, SGD(net.parameters()))
";
    let both = of_batches(loss, ".item()") + trains;
    assert_eq!(found(&[("a.py", &both)]), [""; 0]);
    let tests = |more: &str| {
        format!(
            "import torch
from nets import load
def test_all(net, criterion, loader):
    total = 0
    for x, y in loader:
        total += criterion(net(x.cuda()), y.cuda()){more}
    return total.item()
def main(net, criterion, data):
    test_all(net, criterion, torch.utils.data.DataLoader(data))
main(*load())
"
        )
    };
    assert_eq!(found(&[("a.py", &tests(""))]), ["OOM201"]);
    // On the CPU, for all that this file shows.
    assert_eq!(
        found(&[("a.py", &tests("").replace(".cuda()", ""))]),
        [""; 0]
    );
}

#[test]
fn what_only_gives_gradients_a_setting_runs_no_model() {
    // `disable_grad` is of another file, and the checkpoint is gone before anything runs.
    let load = |last: &str| {
        format!(
            "import torch
from tools import disable_grad, Net
device = torch.device('cuda')
for path in ['a.pth', 'b.pth']:
    state = torch.load(path, map_location=device)
    net = Net().to(device)
    net.load_state_dict(state)
    {last}(net)
    del state
"
        )
    };
    let tools = "import torch
class Net(torch.nn.Linear): pass
def disable_grad(net): pass
";
    let of = |last: &str| found(&[("main.py", &load(last)), ("tools.py", tools)]);
    assert_eq!(of("disable_grad"), ["OOM505"]);
    // OOM502 says the same.
    assert_eq!(of("evaluate"), ["OOM501"]);
}

#[test]
fn a_graph_that_a_name_takes_into_the_next_iteration_is_evaluation() {
    let of = |start: &str, end: &str| {
        let code = format!(
            "import torch
from tools import Net, requires_grad
net = Net().cuda()
{start}
for line in open('lines.txt'):
    output = net(torch.tensor(line).cuda())
    print(output.argmax(1).tolist())
    {end}
"
        );
        found(&[("main.py", &code)])
    };
    assert_eq!(of("", ""), ["OOM201"]);
    assert_eq!(of("", "del output"), ["OOM207"]);
    assert_eq!(of("", "output = None"), ["OOM207"]);
    // Of a module that only a function asks for.
    let late = "import torch
def draw(lines):
    import Networks.late as late
    net = late.Net().cuda()
    for line in lines:
        output = net(torch.tensor(line).cuda())
        print(output.argmax(1).tolist())
draw(open('lines.txt'))
";
    assert_eq!(found(&[("main.py", late)]), ["OOM205"]);
    // Frozen by a function of another file.
    assert_eq!(of("requires_grad(net, False)", ""), [""; 0]);
}

#[test]
fn evaluations_of_small_classifiers_and_of_digits_say_nothing() {
    let of = |net: &str, data: &str| {
        let code = format!(
            "import torch, torchvision
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {net}
net = Net().cuda()
net.eval()
for x, y in torch.utils.data.DataLoader({data}):
    output = net(x.cuda())
    print((output.argmax(1) == y.cuda()).sum().item())
"
        );
        found(&[("main.py", &code)]).contains(&"OOM201")
    };
    let small = "self.conv = torch.nn.Conv2d(1, 32, 5); self.out = torch.nn.Linear(800, 10)";
    let large = "self.conv = torch.nn.Conv2d(1, 32, 5); self.out = torch.nn.Linear(80000, 10000)";
    // Nothing says how large its input is.
    let maps = "self.conv = torch.nn.Conv2d(1, 32, 5)";
    let photos = "torchvision.datasets.ImageFolder('photos')";
    assert!(!of(small, photos));
    assert!(of(large, photos));
    assert!(of(maps, photos));
    assert!(!of(large, "torchvision.datasets.MNIST('digits')"));
    assert!(of(
        large,
        "torchvision.datasets.MNIST('digits', transform=torchvision.transforms.Resize(224))"
    ));
}

#[test]
fn a_network_with_a_pass_on_the_cpu_is_there() {
    let of = |reads: &str| {
        let code = format!(
            "import torch
def run(net, graphs):
    net.cuda()
    for features, edges in graphs:
        first = net(features, edges)
        print(edges[0]{reads}.numpy(), first.argmax().item())
        others = edges
        second = net(features, others)
        print(second.argmax().item())
run(torch.nn.Linear(1, 1), [])
"
        );
        let found = found(&[("main.py", &code)]);
        found.contains(&"OOM201") || found.contains(&"OOM207")
    };
    assert!(of(".cpu()"));
    assert!(!of(""));
}

#[test]
fn the_command_line_of_lightning_trains() {
    let with = |main: &str| {
        let code = format!(
            "import torch\nfrom lightning.pytorch.cli import LightningCLI\ntorch.autograd.set_detect_anomaly(True)\n{main}\n"
        );
        found(&[("main.py", &code)])
    };
    assert_eq!(with("LightningCLI(save_config_callback=None)"), ["OOM111"]);
    assert_eq!(with("print(LightningCLI)"), [""; 0]);
}

/// One state goes through a network that plays, and its graph is small.
#[test]
fn a_network_that_plays_in_an_environment_keeps_little() {
    let plays = |step: &str| {
        let code = format!(
            "import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 512, 3), torch.nn.Conv2d(512, 512, 3))
    def forward(self, x):
        return self.layers(x)
def play(env, net):
    states = env.reset()
    done = False
    while not done:
        scores = net(states.cuda())
        actions = scores.detach().argmax(1).cpu().numpy()
        {step}
play(1, Net().cuda())
"
        );
        found(&[("main.py", &code)])
    };
    assert_eq!(plays("states, done = env.move(actions)"), ["OOM201"]);
    // OOM205, which is off, still says that it builds a graph.
    assert_eq!(
        plays("states, rewards, done, info = env.step(actions)"),
        ["OOM205"]
    );
}

#[test]
fn a_load_that_names_the_gpu_is_reported_once() {
    let code = "import torch
def evaluate(model, loader, path):
    model.cuda()
    state = torch.load(path, map_location='cuda')
    model.load_state_dict(state)
    with torch.no_grad():
        return [model(x.cuda()).cpu() for x in loader]
";
    let source = Source::python(code.to_owned()).unwrap();
    let linted = lint(&source, &Selection::all());
    let codes = linted.findings.iter().map(|each| each.rule.code);
    let codes: Vec<&str> = codes.filter(|code| code.starts_with("OOM50")).collect();
    assert_eq!(codes, ["OOM501"]);
}

const EVALUATES: &str = "import torch
from nets import Net

def evaluate(model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        output = model(x.cuda())
        right += (output.argmax(1) == y.cuda()).sum().item()
    return right
";

#[test]
fn what_is_called_by_a_name_that_is_made_up_fits_the_call() {
    let main = |call: &str| {
        format!(
            "from tools import evaluate\nfrom nets import Net\nnet = globals()['Net']{call}.cuda()\n"
        )
    };
    let nets = (
        "nets.py",
        "import torch\nclass Net(torch.nn.Conv2d): pass\n",
    );
    let runs = |call: &str| found(&[("tools.py", EVALUATES), ("main.py", &main(call)), nets]);
    // It takes two arguments, and is given none.
    assert_eq!(runs("()"), [""; 0]);
    assert_eq!(runs("(wide=1, deep=2)"), [""; 0]);
    assert_eq!(runs("(1, loader=2)"), ["OOM201"]);
    assert_eq!(runs("(*args)"), ["OOM201"]);
    assert_eq!(runs(".__init__"), ["OOM201"]);
}

#[test]
fn a_test_that_takes_something_is_for_a_library_of_tests() {
    let code = |import: &str| {
        format!(
            "{import}{}",
            EVALUATES.replace("def evaluate", "def test_all")
        )
    };
    let nets = (
        "nets.py",
        "import torch\nclass Net(torch.nn.Conv2d): pass\n",
    );
    let runs = |code: &str| found(&[("test_model.py", code), nets]);
    assert_eq!(runs(&code("")), [""; 0]);
    let called = format!("{}test_all(Net().cuda(), loader)\n", code(""));
    assert_eq!(runs(&called), ["OOM201"]);
}

#[test]
fn a_network_of_linear_layers_only_keeps_little() {
    let main = format!("{EVALUATES}\nmodel = Net(3).cuda()\nevaluate(model, loader)\n");
    let nets = |layers: &str| {
        format!(
            "import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(wide, wide))
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([{layers} for _ in range(depth)])
        self.act = nn.ReLU()
"
        )
    };
    let runs = |layers: &str| found(&[("main.py", &main), ("nets.py", &nets(layers))]);
    assert_eq!(runs("nn.Linear(512, 512)"), [""; 0]);
    assert_eq!(runs("Block(512)"), [""; 0]);
    assert_eq!(runs("nn.Conv2d(512, 512, 3)"), ["OOM201"]);
    assert_eq!(runs("Rays(512)"), ["OOM201"]);
}

#[test]
fn a_class_that_is_frozen_by_default_records_no_graph() {
    let main = format!("{EVALUATES}\nmodel = Net().cuda()\nevaluate(model, loader)\n");
    let nets = |default: &str| {
        format!(
            "import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, frozen={default}):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.conv.weight.requires_grad = not frozen
"
        )
    };
    let runs = |default: &str| found(&[("main.py", &main), ("nets.py", &nets(default))]);
    assert_eq!(runs("True"), [""; 0]);
    assert_eq!(runs("False"), ["OOM201"]);
}

#[test]
fn a_curve_of_few_points_keeps_little() {
    let draws = |points: usize| {
        let code = format!(
            "import torch
def draw(model):
    model = model.cuda()
    for i in range(4):
        points = torch.linspace(0, 1, {points}).unsqueeze(1).cuda()
        curve = model(points)
        print(i, curve.detach().cpu())
draw(model)
"
        );
        found(&[("main.py", &code)])
    };
    assert_eq!(draws(100), [""; 0]);
    assert_eq!(draws(100_000), ["OOM201"]);
}

#[test]
fn features_that_a_method_of_the_network_computes_are_a_pass() {
    let main = "import torch
from nets import Net
def get_features(model, loader):
    model.eval()
    for x in loader:
        features = model.get_features(x.cuda())
        print(features.cpu().numpy())
get_features(Net().cuda(), loader)
";
    let nets = |body: &str| {
        format!(
            "import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 64, 3)
    def get_features(self, x):
        return {body}
"
        )
    };
    let runs = |body: &str| found(&[("main.py", main), ("nets.py", &nets(body))]);
    assert_eq!(runs("self.conv(x)"), ["OOM201"]);
    assert_eq!(runs("self.known[x]"), [""; 0]);
}
