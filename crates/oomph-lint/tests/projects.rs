//! Files that say something of each other: what is found in one depends on the others.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use oomph_lint::{FileFacts, Project, Selection, Source, lint_in};

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
    let facts: Vec<(PathBuf, FileFacts)> = sources
        .iter()
        .map(|(path, source)| (path.clone(), FileFacts::of(source)))
        .collect();
    let project = Project::new(&facts);
    lint_in(&sources[0].1, &Selection::default(), &project.around(0))
        .findings
        .iter()
        .map(|finding| finding.rule.code)
        .collect()
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
        ["OOM502"]
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
"
    );
    let tools = "import torch\ndef restore(net, path): pass\n";
    let files = [("tools.py", tools), ("train.py", TRAIN)];
    let first = |code| [&[("val.py", code)][..], &files[..]].concat();
    assert_eq!(found(&first(made)), ["OOM701"]);
    assert_eq!(found(&first(&evaluates)), [""; 0]);
}
