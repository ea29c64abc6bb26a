//! Literals that switch code off.

use oomph_python_source::ast::{CmpOp, Expr, Number};

/// A value that is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    None,
    Bool(bool),
    Int(u64),
    Text(String),
}

impl Constant {
    /// The value of a literal.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        Some(match expr {
            Expr::NoneLiteral(_) => Self::None,
            Expr::BooleanLiteral(flag) => Self::Bool(flag.value),
            Expr::StringLiteral(text) => Self::Text(text.value.to_str().to_owned()),
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(int) => Self::Int(int.as_u64()?),
                _ => return None,
            },
            _ => return None,
        })
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(int) => *int != 0,
            Self::Text(text) => !text.is_empty(),
        }
    }

    /// Whether a comparison of two values holds.
    pub(crate) fn compare(&self, op: CmpOp, other: &Self) -> Option<bool> {
        match op {
            CmpOp::Is | CmpOp::Eq => Some(self == other),
            CmpOp::IsNot | CmpOp::NotEq => Some(self != other),
            _ => None,
        }
    }
}
