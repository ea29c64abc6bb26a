//! Imports, and the full names of what they bind.

use std::collections::HashMap;

use ruff_python_ast::{Expr, Stmt};

use crate::names::dotted_name;
use crate::search::statements_in;

/// One name that an import binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import<'a> {
    /// The name in this file: `nn` of `import torch.nn as nn`, `torch` of `import torch.nn`.
    pub bound: &'a str,
    /// What it stands for: `torch.nn`, `torch`. Relative imports begin with their dots.
    pub full: String,
    /// The module that the statement names: `torch.nn` of `import torch.nn` and of
    /// `from torch.nn import Linear`. Without the dots of a relative import.
    pub module: &'a str,
    /// How many dots a relative import begins with; 0 for all others.
    pub level: u32,
}

/// The names that a statement imports, in order; none if it is no import.
///
/// ```
/// use oomph_python_source::{Module, imports_of};
///
/// let module = Module::parse("from torch import nn as layers, optim\n")?;
/// let imports = imports_of(&module.body()[0]);
/// assert_eq!((imports[0].bound, imports[0].full.as_str()), ("layers", "torch.nn"));
/// assert_eq!((imports[1].bound, imports[1].full.as_str()), ("optim", "torch.optim"));
/// # Ok::<(), oomph_python_source::Problem>(())
/// ```
pub fn imports_of(stmt: &Stmt) -> Vec<Import<'_>> {
    /// More dots than any package is deep.
    const MAX_DOTS: u32 = 8;
    match stmt {
        Stmt::Import(node) => node
            .names
            .iter()
            .map(|alias| {
                let module = alias.name.as_str();
                let (bound, full) = if let Some(name) = &alias.asname {
                    (name.as_str(), module)
                } else {
                    let root = module.split('.').next().unwrap_or(module);
                    (root, root)
                };
                Import {
                    bound,
                    full: full.to_owned(),
                    module,
                    level: 0,
                }
            })
            .collect(),
        Stmt::ImportFrom(node) => {
            let module = node.module.as_ref().map_or("", |name| name.as_str());
            let dots = ".".repeat(node.level.min(MAX_DOTS) as usize);
            node.names
                .iter()
                .map(|alias| Import {
                    bound: alias.asname.as_ref().unwrap_or(&alias.name).as_str(),
                    full: format!("{dots}{module}.{}", alias.name.as_str()),
                    module,
                    level: node.level,
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Every import of a file. Where two bind the same name, the later one counts.
#[derive(Clone, Debug, Default)]
pub struct Imports {
    full: HashMap<String, String>,
}

impl Imports {
    /// The imports in a block and in all blocks inside it.
    pub fn of(body: &[Stmt]) -> Self {
        let full = statements_in(body)
            .into_iter()
            .flat_map(imports_of)
            .map(|import| (import.bound.to_owned(), import.full))
            .collect();
        Self { full }
    }

    /// The full name of an expression whose first name is imported: `torch.nn.Linear` of
    /// `nn.Linear` after `from torch import nn`. `None` for all other expressions.
    pub fn full_name(&self, expr: &Expr) -> Option<String> {
        let name = dotted_name(expr)?;
        let (first, rest) = name.split_once('.').unwrap_or((&name, ""));
        let full = self.full.get(first)?;
        Some(if rest.is_empty() {
            full.clone()
        } else {
            format!("{full}.{rest}")
        })
    }
}
