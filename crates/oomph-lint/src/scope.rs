//! What a finding is about beyond its own line.
//!
//! A line such as `total += loss` makes almost nothing; it keeps alive what other lines of the same
//! loop made. For such rules a trace is asked about the whole loop.

use oomph_python_source::ast::Stmt;
use oomph_python_source::ast::visitor::{Visitor, walk_stmt};
use oomph_python_source::{Module, Ranged, TextRange, TextSize};

use crate::Rule;

/// The lines whose memory a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the finding.
    Line,
    /// Those of the loop around it: first and last line.
    Loop(usize, usize),
    /// Those of the function around it, where there is no loop.
    Function(usize, usize),
}

impl Scope {
    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Loop(..) => "loop",
            Self::Function(..) => "function",
        }
    }
}

/// Whether a rule is about memory that other lines made: graphs and tensors that are kept, and
/// evaluation that builds graphs.
fn reaches_further(rule: &Rule) -> bool {
    matches!(rule.code.as_bytes().get(3), Some(b'1'..=b'3'))
}

/// The loops and functions of a file.
#[derive(Default)]
pub(crate) struct Scopes {
    loops: Vec<TextRange>,
    functions: Vec<TextRange>,
}

impl<'a> Visitor<'a> for Scopes {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::For(_) | Stmt::While(_) => self.loops.push(stmt.range()),
            Stmt::FunctionDef(_) => self.functions.push(stmt.range()),
            _ => {}
        }
        walk_stmt(self, stmt);
    }
}

impl Scopes {
    pub(crate) fn new(module: &Module<'_>) -> Self {
        let mut scopes = Self::default();
        for stmt in module.body() {
            scopes.visit_stmt(stmt);
        }
        scopes
    }

    /// The scope of a finding that begins at `start`.
    pub(crate) fn of(&self, rule: &Rule, start: TextSize, module: &Module<'_>) -> Scope {
        if !reaches_further(rule) {
            return Scope::Line;
        }
        let innermost = |ranges: &[TextRange]| {
            ranges
                .iter()
                .filter(|range| range.contains(start))
                .min_by_key(|range| range.len())
                .copied()
        };
        let lines = |range: TextRange| (module.line_of(range.start()), module.line_of(range.end()));
        let function = innermost(&self.functions);
        // A loop around the whole function belongs to its caller.
        let around = innermost(&self.loops)
            .filter(|around| function.is_none_or(|function| function.contains_range(*around)));
        match (around, function) {
            (Some(range), _) => {
                let (first, last) = lines(range);
                Scope::Loop(first, last)
            }
            (None, Some(range)) => {
                let (first, last) = lines(range);
                Scope::Function(first, last)
            }
            (None, None) => Scope::Line,
        }
    }
}
