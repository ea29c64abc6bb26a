//! Fixes: edits of the source, and how far they can be trusted.

use oomph_python_source::ast::Expr;
use oomph_python_source::{Edit, Ranged};
use serde::Serialize;

/// How far a fix can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Applicability {
    /// May change what the program computes, or needs a newer PyTorch.
    Unsafe,
    /// Keeps what the program computes.
    Safe,
}

/// A fix of one finding: edits that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fix {
    /// How far the fix can be trusted.
    pub applicability: Applicability,
    /// What the fix does, in a few words.
    pub message: &'static str,
    /// The edits, in source order, without overlaps.
    pub edits: Vec<Edit>,
}

impl Fix {
    pub(crate) fn new(
        applicability: Applicability,
        message: &'static str,
        mut edits: Vec<Edit>,
    ) -> Self {
        edits.sort_by_key(Edit::start);
        Self {
            applicability,
            message,
            edits,
        }
    }

    pub(crate) fn unsafe_(message: &'static str, edit: Edit) -> Self {
        Self::new(Applicability::Unsafe, message, vec![edit])
    }

    /// Appends a method call to an expression: `x.detach()`, `(a + b).detach()`.
    pub(crate) fn append(
        expr: &Expr,
        suffix: &str,
        applicability: Applicability,
        message: &'static str,
    ) -> Self {
        let atom = matches!(
            expr,
            Expr::Name(_) | Expr::Attribute(_) | Expr::Call(_) | Expr::Subscript(_)
        );
        let edits = if atom {
            vec![Edit::insert(expr.end(), suffix)]
        } else {
            vec![
                Edit::insert(expr.start(), "("),
                Edit::insert(expr.end(), format!("){suffix}")),
            ]
        };
        Self::new(applicability, message, edits)
    }
}
