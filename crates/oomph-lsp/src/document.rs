//! An open document: a script, or a notebook with its cells.

use std::ops::Range as Span;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lsp_types::{
    NotebookCell, NotebookCellKind, NotebookDocumentCellChange, Range,
    TextDocumentContentChangeEvent, TextDocumentItem, Uri,
};
use oomph_lint::{Around, FileFacts, Finding, Selection, Source, lint_in};
use serde_json::json;

use crate::text::{Columns, Text};

/// A part of a document that an editor shows by itself: a cell, or all of a script.
#[derive(Debug)]
pub struct Cell {
    /// What the editor calls it.
    pub uri: Uri,
    /// The version of the text.
    pub version: i32,
    /// The text.
    pub text: Text,
    is_code: bool,
}

impl Cell {
    fn new(item: TextDocumentItem, is_code: bool, columns: Columns) -> Self {
        Self {
            uri: item.uri,
            version: item.version,
            text: Text::new(item.text, columns),
            is_code,
        }
    }

    /// What was typed into it.
    pub fn change(&mut self, version: i32, changes: Vec<TextDocumentContentChangeEvent>) {
        self.version = version;
        for change in changes {
            self.text.change(&change);
        }
    }
}

/// A document, and what the linter last said of it.
#[derive(Debug)]
pub struct Document {
    /// Where it is kept; a name without a folder, if it is not saved yet.
    pub path: PathBuf,
    /// Its cells, in order.
    pub cells: Vec<Cell>,
    /// The rules for it.
    pub selection: Selection,
    /// The findings in the text as it is.
    pub findings: Vec<Finding>,
    /// When its file had been written before it was opened, if there is one.
    pub written: Option<SystemTime>,
    /// Whether it waits for the linter.
    pub waits: bool,
    /// Whether its syntax is wrong, as that of most scripts is while somebody types. It has no findings then; those
    /// that an editor shows stay, and move with the text.
    pub broken: bool,
    is_notebook: bool,
    columns: Columns,
    // Of the findings: in which cell of `cells` each part of the joined code is.
    joined: Vec<(usize, Span<usize>)>,
}

impl Document {
    /// A script.
    pub fn script(item: TextDocumentItem, selection: Selection, columns: Columns) -> Self {
        let path = path_of(&item.uri);
        let cells = vec![Cell::new(item, true, columns)];
        Self::new(path, cells, false, selection, columns)
    }

    /// A notebook.
    pub fn notebook(
        uri: &Uri,
        order: Vec<NotebookCell>,
        texts: Vec<TextDocumentItem>,
        selection: Selection,
        columns: Columns,
    ) -> Self {
        let mut notebook = Self::new(path_of(uri), Vec::new(), true, selection, columns);
        notebook.cells = notebook.cells_of(order, texts, Vec::new());
        notebook
    }

    fn new(
        path: PathBuf,
        cells: Vec<Cell>,
        is_notebook: bool,
        selection: Selection,
        columns: Columns,
    ) -> Self {
        Self {
            written: written(&path),
            path,
            cells,
            selection,
            findings: Vec::new(),
            waits: true,
            broken: false,
            is_notebook,
            columns,
            joined: Vec::new(),
        }
    }

    /// The cells in an order: new ones with their texts, and those that were there before.
    fn cells_of(
        &self,
        order: Vec<NotebookCell>,
        mut texts: Vec<TextDocumentItem>,
        mut before: Vec<Cell>,
    ) -> Vec<Cell> {
        let cells = order.into_iter().map(|cell| {
            let is_code = cell.kind == NotebookCellKind::Code;
            if let Some(at) = texts.iter().position(|text| text.uri == cell.document) {
                return Cell::new(texts.swap_remove(at), is_code, self.columns);
            }
            if let Some(at) = before.iter().position(|old| old.uri == cell.document) {
                return before.swap_remove(at);
            }
            // Words, which the editor keeps to itself.
            let empty = TextDocumentItem::new(cell.document, String::new(), 0, String::new());
            Cell::new(empty, false, self.columns)
        });
        cells.collect()
    }

    /// Cells of a notebook came, went or moved, or their texts were changed. Returns the names of cells that are gone.
    pub fn change_cells(&mut self, change: NotebookDocumentCellChange) -> Vec<Uri> {
        let mut gone = Vec::new();
        if let Some(structure) = change.structure {
            let array = structure.array;
            let start = (array.start as usize).min(self.cells.len());
            let end = (start + array.delete_count as usize).min(self.cells.len());
            let removed: Vec<Cell> = self.cells.drain(start..end).collect();
            let removed_names: Vec<Uri> = removed.iter().map(|cell| cell.uri.clone()).collect();
            let opened = structure.did_open.unwrap_or_default();
            let new = self.cells_of(array.cells.unwrap_or_default(), opened, removed);
            self.cells.splice(start..start, new);
            gone = removed_names;
            gone.retain(|uri| self.cell(uri).is_none());
        }
        for text in change.text_content.into_iter().flatten() {
            if let Some(index) = self.cell(&text.document.uri) {
                self.cells[index].change(text.document.version, text.changes);
            }
        }
        gone
    }

    /// The index of the cell of a name.
    pub fn cell(&self, uri: &Uri) -> Option<usize> {
        self.cells.iter().position(|cell| cell.uri == *uri)
    }

    /// A run saw the lines as they are on disk now.
    pub fn ran(&mut self) {
        self.written = written(&self.path);
        for cell in &mut self.cells {
            cell.text.count_lines();
        }
    }

    /// Whether it is a notebook: runs name other lines than those of its cells.
    pub fn is_notebook(&self) -> bool {
        self.is_notebook
    }

    fn source(&self) -> Option<Source> {
        if !self.is_notebook {
            let text = self.cells.first()?.text.as_str();
            return Source::python(text.to_owned()).ok();
        }
        let cells = self.cells.iter().map(|cell| {
            let kind = if cell.is_code { "code" } else { "markdown" };
            json!({ "cell_type": kind, "source": cell.text.as_str() })
        });
        Source::notebook(json!({ "cells": cells.collect::<Vec<_>>() }).to_string()).ok()
    }

    /// What it says about the other files of its project.
    pub fn facts(&self) -> FileFacts {
        self.source()
            .map_or_else(FileFacts::default, |source| FileFacts::of(&source))
    }

    /// Lints it.
    pub fn lint(&mut self, around: &Around) {
        self.waits = false;
        self.findings.clear();
        self.joined.clear();
        let Some(source) = self.source() else {
            return;
        };
        let linted = lint_in(&source, &self.selection, around);
        self.findings = linted.findings;
        self.broken = !self.is_notebook && !linted.problems.is_empty();
        if self.is_notebook {
            let cells = source.cells();
            self.joined
                .extend(cells.map(|(number, span)| (number - 1, span)));
        } else {
            self.joined.push((0, 0..source.code().len()));
        }
    }

    /// The cell that a part of the linted code is in, and where there.
    pub fn locate(&self, span: &Span<usize>) -> Option<(usize, Range)> {
        let (index, whole) = self
            .joined
            .iter()
            .find(|(_, whole)| whole.start <= span.start && span.end <= whole.end)?;
        let inside = span.start - whole.start..span.end - whole.start;
        Some((*index, self.cells.get(*index)?.text.range(inside)))
    }
}

fn written(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

/// The path of a name that an editor gives: of a file its place, of anything else, such as a text that is not
/// saved yet, its last part.
pub fn path_of(uri: &Uri) -> PathBuf {
    let path = decoded(uri.path().as_str());
    if uri.scheme().is_some_and(|scheme| scheme.as_str() == "file") {
        return PathBuf::from(path);
    }
    Path::new(&path)
        .file_name()
        .map_or_else(PathBuf::new, PathBuf::from)
}

/// `%20` and its like as the bytes that they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = code.and_then(|two| u8::from_str_radix(two, 16).ok());
        if let (b'%', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_their_places() {
        let path = |uri: &str| path_of(&uri.parse().unwrap());
        assert_eq!(path("file:///a%20b/%C3%BC.py"), Path::new("/a b/ü.py"));
        assert_eq!(path("file:///100%25.py"), Path::new("/100%.py"));
        assert_eq!(path("untitled:Untitled-1"), Path::new("Untitled-1"));
    }
}
