//! Literals that switch code off.

use oomph_python_source::ast::{CmpOp, Expr, Number};

/// A value that is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    None,
    Bool(bool),
    Int(u64),
    Text(String),
    /// A list of this many numbers.
    Numbers(usize),
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
            Expr::List(list)
                if !list.elts.is_empty() && list.elts.iter().all(Expr::is_number_literal_expr) =>
            {
                Self::Numbers(list.elts.len())
            }
            _ => return None,
        })
    }

    /// What `len()` gives.
    pub(crate) fn len(&self) -> Option<Self> {
        match self {
            Self::Text(text) => Some(Self::Int(text.chars().count() as u64)),
            Self::Numbers(count) => Some(Self::Int(*count as u64)),
            _ => None,
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(int) => *int != 0,
            Self::Text(text) => !text.is_empty(),
            Self::Numbers(count) => *count > 0,
        }
    }

    /// Whether a comparison of two values holds.
    pub(crate) fn compare(&self, op: CmpOp, other: &Self) -> Option<bool> {
        if let (Self::Int(one), Self::Int(other)) = (self, other) {
            match op {
                CmpOp::Gt => return Some(one > other),
                CmpOp::GtE => return Some(one >= other),
                CmpOp::Lt => return Some(one < other),
                CmpOp::LtE => return Some(one <= other),
                _ => {}
            }
        }
        if matches!((self, other), (Self::Numbers(_), Self::Numbers(_))) {
            return None;
        }
        match op {
            CmpOp::Is | CmpOp::Eq => Some(self == other),
            CmpOp::IsNot | CmpOp::NotEq => Some(self != other),
            _ => None,
        }
    }
}
