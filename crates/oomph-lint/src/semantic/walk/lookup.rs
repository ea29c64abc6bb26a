//! What names and attributes stand for.

use std::rc::Rc;

use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_part};

use super::Walker;
use crate::semantic::value::{Kind, Value};
use crate::semantic::{ClassId, FuncId, torch};

impl Walker<'_, '_> {
    pub(super) fn lookup(&self, place: &str) -> Option<Value> {
        if let Some(value) = self.vars.get(place) {
            return Some(value.clone());
        }
        if let Some(attr) = place.strip_prefix("self.")
            && let Some(class) = self.class
        {
            return self.class_attr(class, attr, 0);
        }
        let mut frame = self.frame.as_ref();
        while let Some(scope) = frame {
            if let Some(value) = scope.vars.get(place) {
                return Some(value.clone());
            }
            frame = scope.parent.as_ref();
        }
        None
    }

    pub(super) fn class_attr(&self, class: ClassId, attr: &str, depth: usize) -> Option<Value> {
        /// Inheritance deeper than this within one file is a cycle.
        const MAX_BASES: usize = 16;
        if let Some(value) = self.learned.class_attrs[class.index()].get(attr) {
            return Some(value.clone());
        }
        if let Some(method) = self.method_of(class, attr, 0) {
            return Some(Value::of(Kind::Func(method)));
        }
        if depth == MAX_BASES {
            return None;
        }
        self.model.classes[class.index()]
            .bases
            .iter()
            .find_map(|base| self.class_attr(*base, attr, depth + 1))
    }

    pub(super) fn method_of(&self, class: ClassId, name: &str, depth: usize) -> Option<FuncId> {
        const MAX_BASES: usize = 16;
        let info = &self.model.classes[class.index()];
        let own = info
            .methods
            .iter()
            .copied()
            .find(|id| self.defs.funcs[id.index()].name.as_str() == name);
        if own.is_some() || depth == MAX_BASES {
            return own;
        }
        info.bases
            .iter()
            .find_map(|base| self.method_of(*base, name, depth + 1))
    }

    /// The full dotted name of an expression that is rooted in an import.
    pub(super) fn qual_of(&self, expr: &Expr) -> Option<Rc<str>> {
        match expr {
            Expr::Name(name) => match self.lookup(name.id.as_str())?.kind {
                Kind::Qual(qual) => Some(qual),
                _ => None,
            },
            Expr::Attribute(_) => {
                let mut parts = Vec::new();
                let mut base = expr;
                while let Expr::Attribute(inner) = base {
                    parts.push(inner.attr.as_str());
                    base = &inner.value;
                }
                let Expr::Name(root) = base else {
                    return None;
                };
                let Kind::Qual(root) = self.lookup(root.id.as_str())?.kind else {
                    return None;
                };
                parts.push(&root);
                parts.reverse();
                Some(Rc::from(parts.join(".").as_str()))
            }
            _ => None,
        }
    }

    /// The value of an expression that has been evaluated already: records nothing.
    pub(super) fn peek(&self, expr: &Expr) -> Value {
        dotted_name(expr)
            .and_then(|place| self.lookup(&place))
            .unwrap_or_default()
    }

    pub(super) fn peek_hinted(&self, expr: &Expr) -> Value {
        match dotted_name(expr) {
            Some(place) => self.with_hint(self.lookup(&place).unwrap_or_default(), &place),
            None => Value::unknown(),
        }
    }

    /// Lets the methods that are called on the name decide, and then the name itself, where nothing
    /// else is known.
    pub(super) fn with_hint(&self, mut value: Value, place: &str) -> Value {
        // `model = torch.load("model.pth")`: the model itself was saved.
        if value.kind == Kind::Checkpoint
            && let Some(kind @ Kind::Model(_)) = self.usage.kind(place)
        {
            value.kind = kind;
            return value;
        }
        if value.kind != Kind::Unknown {
            return value;
        }
        let last = last_part(place);
        let root = place.split('.').next().unwrap_or(place);
        let is_setting = torch::is_settings_root(root) || place.starts_with("self.args.");
        // `Net` and `Generator` are classes, and what they return is no output.
        let is_class = !place.contains('.')
            && place.starts_with(|c: char| c.is_ascii_uppercase())
            && place.contains(|c: char| c.is_ascii_lowercase());
        let by_name = || {
            (!is_setting && !is_class)
                .then(|| torch::hint(last))
                .flatten()
        };
        if let Some(kind) = self.usage.kind(place).or_else(by_name) {
            value.kind = kind;
            value.weak = true;
        }
        value
    }
}
