//! Parsing, searching and editing, on small sources.

use oomph_python_source::{
    Edit, Imports, Module, Ranged, Source, TextSize, apply, apply_groups, assignments_in, calls_in,
    classes_in, dotted_name, functions_in, imports_of, statements_in, with_stack,
};

const SCRIPT: &str = "\
from __future__ import annotations
import torch.nn as nn, torch
from torch.optim import AdamW as Optimizer

class Net(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        try:
            return x
        except ValueError:
            raise
        finally:
            done()

model = Net()
optimizer = Optimizer(
    model.parameters(),
    lr=1e-3,  # as published
)
for x in data:
    loss = model(x); loss.backward()
    optimizer.step()  # once
";

#[test]
fn statements_and_definitions_come_in_source_order() {
    let module = Module::parse(SCRIPT).unwrap();
    let starts: Vec<TextSize> = statements_in(module.body())
        .iter()
        .map(Ranged::start)
        .collect();
    assert!(starts.is_sorted());
    assert_eq!(starts.len(), 15);
    assert_eq!(classes_in(module.body())[0].name.as_str(), "Net");
    assert_eq!(functions_in(module.body())[0].name.as_str(), "forward");
    let targets: Vec<_> = assignments_in(module.body())
        .iter()
        .filter_map(|each| dotted_name(each.target))
        .collect();
    assert_eq!(targets, ["model", "optimizer", "loss"]);
}

#[test]
fn names_are_followed_to_what_was_imported() {
    let module = Module::parse(SCRIPT).unwrap();
    let imports = Imports::of(module.body());
    let names: Vec<_> = calls_in(module.body())
        .iter()
        .filter_map(|call| imports.full_name(&call.func))
        .collect();
    assert_eq!(names, ["torch.no_grad", "torch.optim.AdamW"]);
    let relative = Module::parse("from ..data import load\n").unwrap();
    let import = &imports_of(&relative.body()[0])[0];
    assert_eq!((import.full.as_str(), import.level), ("..data.load", 2));
}

#[test]
fn lines_and_blocks_of_a_statement() {
    let module = Module::parse(SCRIPT).unwrap();
    let all = statements_in(module.body());
    let step = *all.last().unwrap();
    assert_eq!(module.line_of(step.start()), 22);
    assert_eq!(module.line(22), Some("    optimizer.step()  # once"));
    assert_eq!(module.line(24), None);
    assert_eq!(module.indentation(step.start()), Some("    "));
    assert_eq!(module.block_of(step).unwrap().len(), 3);
    assert!(module.statements_around(step.start())[0].is_for_stmt());
    // The comment and the other statement are not part of it.
    assert_eq!(module.whole_lines(step), None);
    assert_eq!(module.indentation(all[13].start()), None);
    // A decorator belongs to its function.
    let forward = functions_in(module.body())[0];
    assert!(module.slice(forward).starts_with("@torch.no_grad()"));
}

#[test]
fn edits_keep_the_layout() {
    let module = Module::parse(SCRIPT).unwrap();
    let calls = calls_in(module.body());
    let optimizer = calls
        .iter()
        .find(|call| dotted_name(&call.func).as_deref() == Some("Optimizer"))
        .unwrap();
    let added = apply(SCRIPT, &[module.add_keyword(optimizer, "fused=True")]);
    assert!(
        added.contains("    lr=1e-3, fused=True,  # as published\n"),
        "{added}"
    );
    let removed = apply(SCRIPT, &[module.remove_keyword(optimizer, "lr").unwrap()]);
    assert!(
        removed.contains("model.parameters(),  # as published\n"),
        "{removed}"
    );
    assert_eq!(module.remove_keyword(optimizer, "eps"), None);

    let all = statements_in(module.body());
    let step = *all.last().unwrap();
    let text = apply(
        SCRIPT,
        &[
            module.insert_after(step, &["a()", "b()"]).unwrap(),
            module.insert_before(step, &["clip()"]).unwrap(),
        ],
    );
    assert!(
        text.ends_with("    clip()\n    optimizer.step()  # once\n    a()\n    b()\n"),
        "{text}"
    );
    // `loss.backward()` shares its line.
    assert_eq!(module.insert_before(all[13], &["x()"]), None);
    assert_eq!(module.insert_after(all[12], &["x()"]), None);
}

#[test]
fn what_is_deleted_leaves_a_block_behind() {
    let module = Module::parse("if x:\n    del x\ndel y\n").unwrap();
    let all = statements_in(module.body());
    let edits = [
        module.delete(all[1]).unwrap(),
        module.delete(all[2]).unwrap(),
    ];
    assert_eq!(apply(module.text(), &edits), "if x:\n    pass\n");
}

#[test]
fn strings_keep_their_lines_when_code_moves() {
    let text = "if x:\n    a = f'''\n{y}\n'''\n\n    b = 1\n";
    let module = Module::parse(text).unwrap();
    let moved = apply(text, &module.indent(&module.body()[0], "  "));
    assert_eq!(moved, "  if x:\n      a = f'''\n{y}\n'''\n\n      b = 1\n");
}

#[test]
fn edits_that_overlap_are_left_out_and_groups_go_in_whole() {
    let at = TextSize::new;
    let range = |from, to| oomph_python_source::TextRange::new(at(from), at(to));
    let edits = [
        Edit::replace(range(1, 3), "X"),
        Edit::replace(range(2, 4), "Y"),
        Edit::insert(at(4), "1"),
        Edit::insert(at(4), "2"),
    ];
    assert_eq!(apply("abcdef", &edits), "aXd12ef");
    let second = [Edit::insert(at(0), "Z"), Edit::insert(at(4), "W")];
    let (text, applied) = apply_groups("abcdef", [&edits[..1], &edits[1..2], &second[..]]);
    assert_eq!((text.as_str(), applied), ("ZaXdWef", 2));
    let stale = [Edit::insert(at(9), "?")];
    assert_eq!(apply("abcdef", &stale), "abcdef");
}

#[test]
fn deep_nesting_is_refused_or_gets_its_own_stack() {
    let deep = format!("x = {}1{}\n", "(".repeat(1000), ")".repeat(1000));
    assert!(Module::parse(&deep).is_err());
    let source = Source::python(deep.clone()).unwrap();
    let count = with_stack(&deep, false, || {
        source.parse().0.map(|module| module.body().len())
    });
    assert_eq!(count, Ok(Some(1)));
    let deeper = format!("x = {}1{}\n", "(".repeat(20_000), ")".repeat(20_000));
    assert!(with_stack(&deeper, false, || ()).is_err());
}

#[test]
fn a_free_name_is_no_name_of_the_file() {
    let module = Module::parse("f'{piece}'\ndef part_(): ...\nx = a.part\n").unwrap();
    assert_eq!(module.free_name("piece"), "piece_");
    assert_eq!(module.free_name("part"), "part__");
    assert_eq!(module.free_name("other"), "other");
}
