//! The server as a client meets it, over a connection in memory. `tests/editors` has a real client and the command.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use lsp_server::{Connection, Message, Notification, Request, Response};
use oomph_lint::{FileFacts, HeldBytes, Selection};
use oomph_lsp::{Host, RunAt, RunMemory, serve};
use serde_json::{Value, json};

const SCRIPT: &str = "file:///project/train.py";

const TRAIN: &str = "\
import torch

def train(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss  # 𝛼
    return total
";

/// A host with a run that ends when the test says so.
#[derive(Clone, Default)]
struct Fake {
    run: Arc<Mutex<Option<RunAt>>>,
    wrong_settings: bool,
}

impl Host for Fake {
    fn selection(&self, _: &Path) -> Result<Selection, String> {
        if self.wrong_settings {
            return Err("in pyproject.toml: unknown field".to_owned());
        }
        Ok(Selection::new(Some(&["OOM101".to_owned()]), &[], &[]).unwrap())
    }

    fn project(&self, _: &Path, _: usize) -> Vec<(PathBuf, FileFacts)> {
        Vec::new()
    }

    fn newest_run(&self, folders: &[PathBuf]) -> Option<RunAt> {
        assert!(folders.contains(&PathBuf::from("/project")));
        self.run.lock().unwrap().clone()
    }

    fn memory(&self, run: &RunAt) -> Result<RunMemory, String> {
        let mut held = HeldBytes::new();
        held.add([("/project/train.py", 7)], 3 << 30);
        held.add(
            [("/project/model.py", 2), ("/project/train.py", 7)],
            1 << 30,
        );
        Ok(RunMemory {
            name: "oomph-report/train-1".to_owned(),
            verdict: "the graphs of 16 earlier steps are still alive".to_owned(),
            out_of_memory: true,
            bytes: 8 << 30,
            held,
            modified: run.modified,
        })
    }
}

/// A client.
struct Client {
    connection: Connection,
    server: thread::JoinHandle<()>,
    asked: i32,
}

impl Client {
    fn new(host: Fake) -> Self {
        let (server, connection) = Connection::memory();
        let server = thread::spawn(move || serve(&server, host).unwrap());
        let mut client = Self {
            connection,
            server,
            asked: 0,
        };
        let root = json!({ "uri": "file:///project", "name": "project" });
        let answer = client.ask(
            "initialize",
            json!({ "capabilities": {}, "workspaceFolders": [root] }),
        );
        assert_eq!(answer["capabilities"]["positionEncoding"], "utf-16");
        client.say("initialized", json!({}));
        client
    }

    fn say(&self, method: &str, params: Value) {
        let message = Notification::new(method.to_owned(), params);
        self.connection.sender.send(message.into()).unwrap();
    }

    fn receive(&self) -> Message {
        let patience = Duration::from_mins(2);
        self.connection.receiver.recv_timeout(patience).unwrap()
    }

    fn ask_for(&mut self, method: &str, params: Value) -> Response {
        self.asked += 1;
        let request = Request::new(self.asked.into(), method.to_owned(), params);
        self.connection.sender.send(request.into()).unwrap();
        loop {
            if let Message::Response(answer) = self.receive() {
                return answer;
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask_for(method, params);
        answer.response_result.unwrap()
    }

    /// What is shown next of a version of a text: its diagnostics.
    fn shown(&self, uri: &str, version: i32) -> Vec<Value> {
        loop {
            let Message::Notification(note) = self.receive() else {
                continue;
            };
            if note.params["uri"] == uri && note.params["version"] == version {
                return note.params["diagnostics"].as_array().unwrap().clone();
            }
        }
    }

    fn open(&self, uri: &str, text: &str) {
        self.say(
            "textDocument/didOpen",
            json!({ "textDocument": { "uri": uri, "languageId": "python", "version": 1, "text": text } }),
        );
    }

    fn change(&self, version: i32, changes: &Value) {
        self.say(
            "textDocument/didChange",
            json!({ "textDocument": { "uri": SCRIPT, "version": version }, "contentChanges": changes }),
        );
    }

    fn actions(&mut self, range: &Value, context: &Value) -> Vec<Value> {
        let params =
            json!({ "textDocument": { "uri": SCRIPT }, "range": range, "context": context });
        let actions = self.ask("textDocument/codeAction", params);
        actions.as_array().unwrap().clone()
    }

    fn hover(&mut self, line: u32, character: u32) -> Value {
        self.ask(
            "textDocument/hover",
            json!({ "textDocument": { "uri": SCRIPT }, "position": { "line": line, "character": character } }),
        )
    }

    fn end(mut self) {
        self.ask("shutdown", Value::Null);
        self.say("exit", Value::Null);
        self.server.join().unwrap();
    }
}

fn codes(shown: &[Value]) -> Vec<&str> {
    shown
        .iter()
        .map(|each| each["code"].as_str().unwrap())
        .collect()
}

fn range(line: u32, from: u32, to: u32) -> Value {
    json!({ "start": { "line": line, "character": from }, "end": { "line": line, "character": to } })
}

#[test]
fn findings_follow_what_is_typed() {
    let client = Client::new(Fake::default());
    client.open(
        SCRIPT,
        &TRAIN.replace("total += loss", "total += loss.item()"),
    );
    assert!(client.shown(SCRIPT, 1).is_empty());
    client.change(2, &json!([{ "range": range(9, 21, 28), "text": "" }]));
    let shown = client.shown(SCRIPT, 2);
    assert_eq!(codes(&shown), ["OOM101"]);
    assert_eq!(shown[0]["range"], range(9, 17, 21));
    assert_eq!(shown[0]["source"], "oomph");
    assert!(
        shown[0]["message"]
            .as_str()
            .unwrap()
            .contains("loss.item()")
    );
    // Two changes that come together; columns of UTF-16 behind a character of two units.
    client.change(
        3,
        &json!([
            { "range": range(9, 27, 27), "text": " (why)" },
            { "range": range(9, 23, 27), "text": "# noqa" },
        ]),
    );
    assert!(client.shown(SCRIPT, 3).is_empty());
    // While the syntax is wrong, what is shown stays: nothing is published.
    client.change(4, &json!([{ "text": TRAIN }]));
    client.shown(SCRIPT, 4);
    client.change(5, &json!([{ "range": range(0, 0, 0), "text": "def (" }]));
    client.change(6, &json!([{ "range": range(0, 0, 5), "text": "" }]));
    assert_eq!(codes(&client.shown(SCRIPT, 6)), ["OOM101"]);
    client.say(
        "textDocument/didClose",
        json!({ "textDocument": { "uri": SCRIPT } }),
    );
    client.end();
}

#[test]
fn a_finding_is_fixed_or_silenced() {
    let mut client = Client::new(Fake::default());
    client.open(SCRIPT, TRAIN);
    client.shown(SCRIPT, 1);
    let actions = client.actions(&range(9, 17, 17), &json!({ "diagnostics": [] }));
    let titles: Vec<_> = actions
        .iter()
        .map(|each| each["title"].as_str().unwrap())
        .collect();
    assert_eq!(
        titles,
        [
            "Fix OOM101: detach the loss",
            "Say nothing of OOM101 on this line",
            "Apply all safe fixes of oomph"
        ]
    );
    assert_eq!(actions[0]["isPreferred"], true);
    for (version, action) in (2..).zip(&actions) {
        let edits = &action["edit"]["changes"][SCRIPT];
        assert_eq!(edits.as_array().unwrap().len(), 1, "{action}");
        let text = json!({ "range": edits[0]["range"], "text": edits[0]["newText"] });
        client.change(version * 2, &json!([{ "text": TRAIN }, text]));
        assert!(client.shown(SCRIPT, version * 2).is_empty(), "{action}");
    }
    // `total += loss  # noqa: E501`: one comment for both.
    client.change(10, &json!([{ "text": TRAIN.replace("𝛼", "noqa: E501") }]));
    let only = json!({ "diagnostics": [], "only": ["quickfix"] });
    let silence = client.actions(&range(9, 17, 17), &only).remove(1);
    let edit = &silence["edit"]["changes"][SCRIPT][0];
    assert_eq!(edit["newText"], " OOM101,");
    assert_eq!(edit["range"], range(9, 30, 30));
    assert!(client.actions(&range(0, 0, 0), &only).is_empty());
    let all = json!({ "diagnostics": [], "only": ["source"] });
    assert_eq!(client.actions(&range(0, 0, 0), &all).len(), 1);
    client.end();
}

#[test]
fn a_run_that_ends_brings_its_bytes() {
    let host = Fake::default();
    let run = host.run.clone();
    let mut client = Client::new(host);
    client.open(SCRIPT, TRAIN);
    let shown = client.shown(SCRIPT, 1);
    assert!(!shown[0]["message"].as_str().unwrap().contains("GiB"));
    assert_eq!(client.hover(6, 0), Value::Null);
    *run.lock().unwrap() = Some(RunAt {
        path: PathBuf::from("/project/oomph-report/train-1"),
        modified: SystemTime::now(),
    });
    // The same version is shown once more where the project was read meanwhile.
    let message = std::iter::repeat_with(|| client.shown(SCRIPT, 1)[0]["message"].clone())
        .find(|message| message.as_str().unwrap().contains("GiB"))
        .unwrap();
    assert!(
        message
            .as_str()
            .unwrap()
            .ends_with("this loop held 4.0 GiB when memory ran out (oomph-report/train-1)"),
        "{message}"
    );
    let said = |hover: &Value| hover["contents"]["value"].as_str().unwrap().to_owned();
    let hover = said(&client.hover(6, 0));
    assert!(hover.starts_with("**4.0 GiB** of the 8.0 GiB"), "{hover}");
    assert!(hover.contains("the graphs of 16 earlier steps"));
    // Of a line without memory of its own, why its finding costs some.
    let hover = said(&client.hover(9, 18));
    assert!(
        hover.contains("The sum refers to the graph of every loss"),
        "{hover}"
    );
    // A line is followed where it goes.
    client.change(2, &json!([{ "range": range(0, 0, 0), "text": "\n" }]));
    assert_eq!(client.hover(6, 0), Value::Null);
    assert!(said(&client.hover(7, 0)).starts_with("**4.0 GiB**"));
    client.end();
}

#[test]
fn cells_of_a_notebook_are_one_program() {
    let mut client = Client::new(Fake::default());
    let cell = |name: &str| format!("vscode-notebook-cell:/project/a.ipynb#{name}");
    let text = |name: &str, version: i32, text: &str| json!({ "uri": cell(name), "languageId": "python", "version": version, "text": text });
    let place = |name: &str| json!({ "kind": 2, "document": cell(name) });
    let (first, second) = TRAIN.split_at(TRAIN.find("def").unwrap());
    client.say(
        "notebookDocument/didOpen",
        json!({
            "notebookDocument": {
                "uri": "file:///project/a.ipynb", "notebookType": "jupyter-notebook", "version": 1,
                "cells": [{ "kind": 1, "document": cell("words") }, place("a"), place("b")],
            },
            "cellTextDocuments": [text("a", 1, first), text("b", 1, second)],
        }),
    );
    let shown = client.shown(&cell("b"), 1);
    assert_eq!(codes(&shown), ["OOM101"]);
    assert_eq!(shown[0]["range"], range(7, 17, 21));
    let change = |version: i32, cells: Value| {
        json!({
            "notebookDocument": { "uri": "file:///project/a.ipynb", "version": version },
            "change": { "cells": cells },
        })
    };
    // Another cell comes between them, and a line into the last one.
    client.say(
        "notebookDocument/didChange",
        change(
            2,
            json!({
                "structure": {
                    "array": { "start": 2, "deleteCount": 1, "cells": [place("new"), place("b")] },
                    "didOpen": [text("new", 1, "x = 1")],
                },
                "textContent": [{
                    "document": { "uri": cell("b"), "version": 2 },
                    "changes": [{ "range": range(0, 0, 0), "text": "\n" }],
                }],
            }),
        ),
    );
    assert_eq!(client.shown(&cell("b"), 2)[0]["range"], range(8, 17, 21));
    let actions = client.ask(
        "textDocument/codeAction",
        json!({ "textDocument": { "uri": cell("b") }, "range": range(8, 17, 17), "context": { "diagnostics": [] } }),
    );
    let edit = &actions[0]["edit"]["changes"][cell("b")][0];
    assert_eq!(edit["range"], range(8, 21, 21));
    // A cell that goes takes its findings along. What was read of the project meanwhile may show them once more before.
    client.say(
        "notebookDocument/didChange",
        change(
            3,
            json!({ "structure": { "array": { "start": 3, "deleteCount": 1 } } }),
        ),
    );
    loop {
        if let Message::Notification(note) = client.receive()
            && note.params["uri"] == cell("b")
            && note.params["version"].is_null()
        {
            assert_eq!(note.params["diagnostics"], json!([]));
            break;
        }
    }
    client.end();
}

#[test]
fn what_is_wrong_is_said_and_the_server_goes_on() {
    let mut client = Client::new(Fake {
        wrong_settings: true,
        ..Fake::default()
    });
    client.open(SCRIPT, TRAIN);
    let told = loop {
        if let Message::Notification(note) = client.receive()
            && note.method == "window/showMessage"
        {
            break note.params["message"].clone();
        }
    };
    assert_eq!(told, "oomph: in pyproject.toml: unknown field");
    let unknown = client.ask_for("textDocument/definition", json!({}));
    assert!(unknown.response_result.is_err());
    let malformed = client.ask_for("textDocument/hover", json!({ "position": 1 }));
    assert!(malformed.response_result.is_err());
    client.say("textDocument/didChange", json!([]));
    assert_eq!(client.hover(0, 0), Value::Null);
    client.end();
}

/// `cargo test --release -p oomph-lsp --test server -- --ignored --nocapture` prints what bench/lint/README.md says.
#[test]
#[ignore = "a measurement"]
fn two_thousand_lines_answer_in_milliseconds() {
    let body = TRAIN.strip_prefix("import torch\n").unwrap();
    let functions: String = (0..200)
        .map(|number| body.replace("def train", &format!("def train{number}")))
        .collect();
    let text = format!("import torch\n{functions}");
    let client = Client::new(Fake::default());
    client.open(SCRIPT, &text);
    let findings = client.shown(SCRIPT, 1).len();
    let mut seconds = Vec::new();
    for version in 2..102 {
        let began = std::time::Instant::now();
        let typed = json!([{ "range": range(500, 0, 0), "text": " " }, { "range": range(500, 0, 1), "text": "" }]);
        client.change(version, &typed);
        assert_eq!(client.shown(SCRIPT, version).len(), findings);
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    println!(
        "{} lines, {findings} findings: {:.1} ms from a change to the findings in the median, {:.1} ms at most of 100",
        text.lines().count(),
        seconds[50] * 1e3,
        seconds[99] * 1e3,
    );
    assert!(seconds[50] < 0.05);
    client.end();
}
