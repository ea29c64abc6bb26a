//! The loop: messages of the client, and what threads of the server found.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use lsp_server::{Connection, ErrorCode, Message, Notification, ProtocolError, Request, Response};
use lsp_types::notification as note;
use lsp_types::notification::Notification as _;
use lsp_types::request::{CodeActionRequest, HoverRequest, Request as _};
use lsp_types::{
    CodeActionOptions, CodeActionParams, CodeActionProviderCapability, HoverParams,
    HoverProviderCapability, InitializeParams, InitializeResult, MessageType, Notebook,
    NotebookCellSelector, NotebookDocumentSyncOptions, NotebookSelector, OneOf,
    PublishDiagnosticsParams, SaveOptions, ServerCapabilities, ServerInfo, ShowMessageParams,
    TextDocumentSyncCapability, TextDocumentSyncKind, TextDocumentSyncOptions,
    TextDocumentSyncSaveOptions, Uri,
};
use oomph_lint::{Around, FileFacts, Project, Selection};
use serde::de::DeserializeOwned;

use crate::answers::{self, Lines};
use crate::document::{Document, path_of};
use crate::memory::RunMemory;
use crate::text::Columns;
use crate::{Host, RunAt};

/// The language of the documents.
const PYTHON: &str = "python";

/// How often the server looks whether a run has ended.
const LOOK_FOR_RUNS: Duration = Duration::from_secs(1);

/// A folder with more Python files is no project: its files are linted by themselves.
const MOST_FILES: usize = 5_000;

/// What a thread of the server found.
enum Found {
    Project(Vec<(PathBuf, FileFacts)>),
    Memory(Result<RunMemory, String>),
}

struct Server<'c, H> {
    connection: &'c Connection,
    host: Arc<H>,
    columns: Columns,
    roots: Vec<PathBuf>,
    /// By the name of the script or notebook.
    documents: HashMap<String, Document>,
    facts: Vec<(PathBuf, FileFacts)>,
    project: Project,
    run: Option<RunAt>,
    memory: Option<RunMemory>,
    /// What people were told: once is enough.
    told: Vec<String>,
    found: (Sender<Found>, Receiver<Found>),
}

pub fn serve<H: Host>(connection: &Connection, host: H) -> Result<(), ProtocolError> {
    let (id, params) = connection.initialize_start()?;
    let params: InitializeParams = match serde_json::from_value(params) {
        Ok(params) => params,
        Err(error) => {
            let code = ErrorCode::InvalidParams as i32;
            let answer = Response::new_err(id, code, format!("initialize: {error}"));
            // Its own thread writes it.
            let _ = connection.sender.send(answer.into());
            return Ok(());
        }
    };
    let general = params.capabilities.general.as_ref();
    let columns = Columns::chosen(general.and_then(|each| each.position_encodings.as_deref()));
    let result = InitializeResult {
        capabilities: capabilities(columns),
        server_info: Some(ServerInfo {
            name: "oomph".to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        }),
    };
    let result = serde_json::to_value(result).unwrap_or_default();
    connection.initialize_finish(id, result)?;
    let mut server = Server {
        connection,
        host: Arc::new(host),
        columns,
        roots: roots(&params),
        documents: HashMap::new(),
        facts: Vec::new(),
        project: Project::default(),
        run: None,
        memory: None,
        told: Vec::new(),
        found: unbounded(),
    };
    server.read_project();
    server.serve()
}

fn capabilities(columns: Columns) -> ServerCapabilities {
    ServerCapabilities {
        position_encoding: Some(columns.kind()),
        text_document_sync: Some(TextDocumentSyncCapability::Options(
            TextDocumentSyncOptions {
                open_close: Some(true),
                change: Some(TextDocumentSyncKind::INCREMENTAL),
                save: Some(TextDocumentSyncSaveOptions::SaveOptions(SaveOptions {
                    include_text: Some(false),
                })),
                ..TextDocumentSyncOptions::default()
            },
        )),
        notebook_document_sync: Some(OneOf::Left(NotebookDocumentSyncOptions {
            notebook_selector: vec![NotebookSelector::ByNotebook {
                notebook: Notebook::String("jupyter-notebook".to_owned()),
                cells: Some(vec![NotebookCellSelector {
                    language: PYTHON.to_owned(),
                }]),
            }],
            save: Some(true),
        })),
        hover_provider: Some(HoverProviderCapability::Simple(true)),
        code_action_provider: Some(CodeActionProviderCapability::Options(CodeActionOptions {
            code_action_kinds: Some(answers::kinds()),
            ..CodeActionOptions::default()
        })),
        ..ServerCapabilities::default()
    }
}

fn roots(params: &InitializeParams) -> Vec<PathBuf> {
    let folders = params.workspace_folders.iter().flatten();
    let roots: Vec<PathBuf> = folders.map(|folder| path_of(&folder.uri)).collect();
    if !roots.is_empty() {
        return roots;
    }
    // What clients sent before there were folders.
    #[expect(deprecated, reason = "some clients send nothing else")]
    params.root_uri.iter().map(path_of).collect()
}

impl<H: Host> Server<'_, H> {
    fn serve(&mut self) -> Result<(), ProtocolError> {
        let messages = self.connection.receiver.clone();
        let found = self.found.1.clone();
        loop {
            // What came together is linted once.
            if let Ok(message) = messages.try_recv() {
                if self.received(message)? {
                    return Ok(());
                }
                continue;
            }
            self.lint_all();
            select! {
                recv(messages) -> message => match message {
                    Ok(message) => if self.received(message)? {
                        return Ok(());
                    },
                    // The client is gone.
                    Err(_) => return Ok(()),
                },
                recv(found) -> found => match found {
                    Ok(Found::Project(facts)) => {
                        self.facts = facts;
                        self.connect();
                    }
                    Ok(Found::Memory(Ok(memory))) => {
                        // The first one may be older than what is open; a later one has just ended.
                        if self.memory.replace(memory).is_some() {
                            self.documents.values_mut().for_each(Document::ran);
                        }
                        self.show_all();
                    }
                    Ok(Found::Memory(Err(problem))) => self.tell(problem),
                    Err(_) => {}
                },
                default(LOOK_FOR_RUNS) => self.look_for_runs(),
            }
        }
    }

    /// Whether the client ends the server.
    fn received(&mut self, message: Message) -> Result<bool, ProtocolError> {
        match message {
            Message::Request(request) => {
                if self.connection.handle_shutdown(&request)? {
                    return Ok(true);
                }
                let answer = self.answer(request);
                self.send(answer);
            }
            Message::Notification(notification) => self.note(notification),
            Message::Response(_) => {}
        }
        Ok(false)
    }

    fn send(&self, message: impl Into<Message>) {
        // A client that is gone is noticed where its messages end.
        let _ = self.connection.sender.send(message.into());
    }

    /// Shows a line to people, once.
    fn tell(&mut self, message: String) {
        if self.told.contains(&message) {
            return;
        }
        let params = ShowMessageParams {
            typ: MessageType::WARNING,
            message: format!("oomph: {message}"),
        };
        self.send(Notification::new(
            note::ShowMessage::METHOD.to_owned(),
            params,
        ));
        self.told.push(message);
    }

    // ---- what the client asks ----

    fn answer(&mut self, request: Request) -> Response {
        let id = request.id.clone();
        let answered = match request.method.as_str() {
            HoverRequest::METHOD => read(request.params).map(|params| {
                let hover = self.hover(params);
                serde_json::to_value(hover)
            }),
            CodeActionRequest::METHOD => read(request.params).map(|params| {
                let actions = self.actions(&params);
                serde_json::to_value(actions)
            }),
            other => {
                let code = ErrorCode::MethodNotFound as i32;
                return Response::new_err(id, code, format!("{other} is not offered"));
            }
        };
        match answered {
            Ok(Ok(result)) => Response::new_ok(id, result),
            Ok(Err(error)) | Err(error) => {
                let code = ErrorCode::InvalidParams as i32;
                Response::new_err(id, code, format!("{}: {error}", request.method))
            }
        }
    }

    fn hover(&mut self, params: HoverParams) -> Option<lsp_types::Hover> {
        let at = params.text_document_position_params;
        let (name, cell) = self.find(&at.text_document.uri)?;
        self.lint(&name);
        let document = self.documents.get(&name)?;
        let lines = Lines::of(self.memory.as_ref(), document);
        answers::hover(document, cell, at.position, lines)
    }

    fn actions(&mut self, params: &CodeActionParams) -> Vec<lsp_types::CodeActionOrCommand> {
        let Some((name, cell)) = self.find(&params.text_document.uri) else {
            return Vec::new();
        };
        self.lint(&name);
        let only = params.context.only.as_deref();
        self.documents.get(&name).map_or_else(Vec::new, |document| {
            answers::actions(document, cell, params.range, only)
        })
    }

    /// The document that a text belongs to, and which of its cells it is.
    fn find(&self, uri: &Uri) -> Option<(String, usize)> {
        if let Some(document) = self.documents.get(uri.as_str()) {
            return Some((uri.as_str().to_owned(), document.cell(uri)?));
        }
        let documents = &mut self.documents.iter();
        documents.find_map(|(name, document)| Some((name.clone(), document.cell(uri)?)))
    }

    // ---- what the client says ----

    fn note(&mut self, notification: Notification) {
        let method = notification.method.clone();
        if let Err(error) = self.noted(notification) {
            self.tell(format!("{method}: {error}"));
        }
    }

    fn noted(&mut self, notification: Notification) -> serde_json::Result<()> {
        let params = notification.params;
        match notification.method.as_str() {
            note::DidOpenTextDocument::METHOD => {
                let item = read::<lsp_types::DidOpenTextDocumentParams>(params)?.text_document;
                if item.language_id == PYTHON {
                    let name = item.uri.as_str().to_owned();
                    let selection = self.selection(&item.uri);
                    let script = Document::script(item, selection, self.columns);
                    self.documents.insert(name, script);
                    self.look_for_runs();
                }
            }
            note::DidChangeTextDocument::METHOD => {
                let params: lsp_types::DidChangeTextDocumentParams = read(params)?;
                let item = params.text_document;
                if let Some(document) = self.documents.get_mut(item.uri.as_str())
                    && let Some(cell) = document.cells.first_mut()
                {
                    cell.change(item.version, params.content_changes);
                    document.waits = true;
                }
            }
            note::DidSaveTextDocument::METHOD => {
                let params: lsp_types::DidSaveTextDocumentParams = read(params)?;
                self.saved(&params.text_document.uri);
            }
            note::DidCloseTextDocument::METHOD => {
                let params: lsp_types::DidCloseTextDocumentParams = read(params)?;
                self.close(&params.text_document.uri);
            }
            note::DidOpenNotebookDocument::METHOD => {
                let params: lsp_types::DidOpenNotebookDocumentParams = read(params)?;
                let notebook = params.notebook_document;
                let selection = self.selection(&notebook.uri);
                let (name, columns) = (notebook.uri.as_str().to_owned(), self.columns);
                let texts = params.cell_text_documents;
                let cells = notebook.cells;
                let document = Document::notebook(&notebook.uri, cells, texts, selection, columns);
                self.documents.insert(name, document);
            }
            note::DidChangeNotebookDocument::METHOD => {
                let params: lsp_types::DidChangeNotebookDocumentParams = read(params)?;
                let name = params.notebook_document.uri;
                if let Some(document) = self.documents.get_mut(name.as_str())
                    && let Some(change) = params.change.cells
                {
                    document.waits = true;
                    for uri in document.change_cells(change) {
                        self.publish(uri, None, Vec::new());
                    }
                }
            }
            note::DidSaveNotebookDocument::METHOD => {
                let params: lsp_types::DidSaveNotebookDocumentParams = read(params)?;
                self.saved(&params.notebook_document.uri);
            }
            note::DidCloseNotebookDocument::METHOD => {
                let params: lsp_types::DidCloseNotebookDocumentParams = read(params)?;
                self.close(&params.notebook_document.uri);
            }
            // A file that is not open has changed: settings, or a part of the project.
            note::DidChangeWatchedFiles::METHOD => {
                self.read_settings();
                self.read_project();
            }
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, uri: &Uri) {
        if let Some(document) = self.documents.remove(uri.as_str()) {
            for cell in document.cells {
                self.publish(cell.uri, None, Vec::new());
            }
        }
    }

    /// What a file says about the others has changed, or settings have.
    fn saved(&mut self, uri: &Uri) {
        if let Some(document) = self.documents.get(uri.as_str()) {
            let of_file = self.facts.iter_mut();
            if let Some((_, facts)) = of_file.into_iter().find(|(path, _)| *path == document.path) {
                *facts = document.facts();
            }
        }
        self.read_settings();
        self.connect();
    }

    // ---- the project ----

    fn selection(&mut self, uri: &Uri) -> Selection {
        self.host
            .selection(&path_of(uri))
            .unwrap_or_else(|problem| {
                self.tell(problem);
                Selection::default()
            })
    }

    fn read_settings(&mut self) {
        // Another mistake in a file of settings is told again.
        self.told.clear();
        for name in self.documents.keys().cloned().collect::<Vec<_>>() {
            let Ok(uri) = name.parse() else { continue };
            let selection = self.selection(&uri);
            if let Some(document) = self.documents.get_mut(&name) {
                document.selection = selection;
                document.waits = true;
            }
        }
    }

    /// Reads what the project's files say of each other, which takes its time.
    fn read_project(&self) {
        let (host, roots, found) = (self.host.clone(), self.roots.clone(), self.found.0.clone());
        thread::spawn(move || {
            let of_roots = roots.iter().map(|root| host.project(root, MOST_FILES));
            let facts = of_roots.flatten().collect();
            // Nobody waits for it any more if the server has ended.
            let _ = found.send(Found::Project(facts));
        });
    }

    /// Connects the project's files anew.
    fn connect(&mut self) {
        // A file that is not open may be written any moment.
        self.project = Project::new(&self.facts, &|_| true);
        for document in self.documents.values_mut() {
            document.waits = true;
        }
    }

    fn around(&self, document: &Document) -> Around {
        let index = (self.facts.iter()).position(|(path, _)| *path == document.path);
        index
            .map_or_else(Around::default, |index| self.project.around(index))
            .for_torch(self.host.torch_of(&document.path))
    }

    // ---- runs ----

    fn look_for_runs(&mut self) {
        if self.documents.is_empty() {
            return;
        }
        let mut folders = self.roots.clone();
        for document in self.documents.values() {
            folders.extend(document.path.parent().map(PathBuf::from));
        }
        folders.sort();
        folders.dedup();
        let Some(run) = self.host.newest_run(&folders) else {
            return;
        };
        if self.run.as_ref() == Some(&run) {
            return;
        }
        self.run = Some(run.clone());
        let (host, found) = (self.host.clone(), self.found.0.clone());
        thread::spawn(move || {
            let _ = found.send(Found::Memory(host.memory(&run)));
        });
    }

    // ---- what is shown ----

    fn lint_all(&mut self) {
        let waiting = self.documents.iter().filter(|(_, each)| each.waits);
        for name in waiting.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.lint(&name);
        }
    }

    fn lint(&mut self, name: &str) {
        let Some(document) = self.documents.get(name).filter(|each| each.waits) else {
            return;
        };
        let around = self.around(document);
        if let Some(document) = self.documents.get_mut(name) {
            document.lint(&around);
        }
        self.show(name);
    }

    fn show_all(&mut self) {
        self.lint_all();
        for name in self.documents.keys() {
            self.show(name);
        }
    }

    fn show(&self, name: &str) {
        let Some(document) = self.documents.get(name).filter(|each| !each.broken) else {
            return;
        };
        let lines = Lines::of(self.memory.as_ref(), document);
        let of_cells = answers::diagnostics(document, lines);
        for (cell, diagnostics) in document.cells.iter().zip(of_cells) {
            self.publish(cell.uri.clone(), Some(cell.version), diagnostics);
        }
    }

    fn publish(&self, uri: Uri, version: Option<i32>, diagnostics: Vec<lsp_types::Diagnostic>) {
        let params = PublishDiagnosticsParams {
            uri,
            diagnostics,
            version,
        };
        self.send(Notification::new(
            note::PublishDiagnostics::METHOD.to_owned(),
            params,
        ));
    }
}

fn read<T: DeserializeOwned>(params: serde_json::Value) -> serde_json::Result<T> {
    serde_json::from_value(params)
}
