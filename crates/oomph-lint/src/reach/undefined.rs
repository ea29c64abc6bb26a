//! Names that a file reads and nowhere binds: Python stops at them.

use oomph_python_source::TextSize;
use oomph_python_source::ast::{Pattern, StmtFunctionDef};
use rustc_hash::FxHashSet;

use super::collect::{Bound, End};

/// Names that a file has without binding them, those of Python 2 and of notebooks among them, in order.
const BUILTINS: &[&str] = &[
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BaseException",
    "BaseExceptionGroup",
    "BlockingIOError",
    "BrokenPipeError",
    "BufferError",
    "BytesWarning",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "DeprecationWarning",
    "EOFError",
    "Ellipsis",
    "EncodingWarning",
    "EnvironmentError",
    "Exception",
    "ExceptionGroup",
    "False",
    "FileExistsError",
    "FileNotFoundError",
    "FloatingPointError",
    "FutureWarning",
    "GeneratorExit",
    "IOError",
    "ImportError",
    "ImportWarning",
    "In",
    "IndentationError",
    "IndexError",
    "InterruptedError",
    "IsADirectoryError",
    "KeyError",
    "KeyboardInterrupt",
    "LookupError",
    "MemoryError",
    "ModuleNotFoundError",
    "NameError",
    "None",
    "NotADirectoryError",
    "NotImplemented",
    "NotImplementedError",
    "OSError",
    "Out",
    "OverflowError",
    "PendingDeprecationWarning",
    "PermissionError",
    "ProcessLookupError",
    "PythonFinalizationError",
    "RecursionError",
    "ReferenceError",
    "ResourceWarning",
    "RuntimeError",
    "RuntimeWarning",
    "StandardError",
    "StopAsyncIteration",
    "StopIteration",
    "SyntaxError",
    "SyntaxWarning",
    "SystemError",
    "SystemExit",
    "TabError",
    "TimeoutError",
    "True",
    "TypeError",
    "UnboundLocalError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "UnicodeError",
    "UnicodeTranslateError",
    "UnicodeWarning",
    "UserWarning",
    "ValueError",
    "Warning",
    "WindowsError",
    "ZeroDivisionError",
    "abs",
    "aiter",
    "all",
    "anext",
    "any",
    "apply",
    "ascii",
    "basestring",
    "bin",
    "bool",
    "breakpoint",
    "buffer",
    "bytearray",
    "bytes",
    "callable",
    "chr",
    "classmethod",
    "cmp",
    "coerce",
    "compile",
    "complex",
    "copyright",
    "credits",
    "dbutils",
    "delattr",
    "dict",
    "dir",
    "display",
    "divmod",
    "dreload",
    "enumerate",
    "eval",
    "exec",
    "execfile",
    "exit",
    "file",
    "filter",
    "float",
    "format",
    "frozenset",
    "get_ipython",
    "getattr",
    "globals",
    "hasattr",
    "hash",
    "help",
    "hex",
    "id",
    "input",
    "int",
    "intern",
    "isinstance",
    "issubclass",
    "iter",
    "len",
    "license",
    "list",
    "locals",
    "long",
    "map",
    "max",
    "memoryview",
    "min",
    "next",
    "object",
    "oct",
    "open",
    "ord",
    "pow",
    "print",
    "profile",
    "property",
    "quit",
    "range",
    "raw_input",
    "reduce",
    "reload",
    "repr",
    "reversed",
    "round",
    "set",
    "setattr",
    "slice",
    "sorted",
    "spark",
    "staticmethod",
    "str",
    "sum",
    "super",
    "tuple",
    "type",
    "unichr",
    "unicode",
    "vars",
    "xrange",
    "zip",
];

/// A file with one of these may have names that nothing in it binds.
const BINDS_BY_TEXT: &[&str] = &[
    "exec(",
    "execfile(",
    "%run",
    "%pylab",
    "%load",
    "%store",
    "%%",
    "run_line_magic",
    "globals()",
    "locals()",
    "vars()",
    "builtins",
    "__dict__",
    "setattr(sys",
    "import_ipynb",
];

/// The names of a file.
#[derive(Default)]
pub(super) struct Names {
    bound: FxHashSet<String>,
    /// Names that were not bound when they were read: where.
    read: Vec<(String, usize, End)>,
}

impl Names {
    pub(super) fn bind(&mut self, name: &str) {
        if !self.bound.contains(name) {
            self.bound.insert(name.to_owned());
        }
    }

    pub(super) fn bind_parameters(&mut self, def: &StmtFunctionDef) {
        for each in &*def.parameters {
            self.bind(each.name().as_str());
        }
    }

    pub(super) fn bind_pattern(&mut self, pattern: &Pattern) {
        let name = match pattern {
            Pattern::MatchAs(node) => node.name.as_ref(),
            Pattern::MatchStar(node) => node.name.as_ref(),
            Pattern::MatchMapping(node) => node.rest.as_ref(),
            _ => None,
        };
        if let Some(name) = name {
            self.bind(name.as_str());
        }
    }

    /// A name that is read in a block, if it is read whenever the block is run.
    pub(super) fn read(&mut self, name: &str, block: Option<usize>, at: TextSize, after: TextSize) {
        let Some(block) = block else { return };
        if self.bound.contains(name)
            || name.starts_with('_')
            || BUILTINS.binary_search(&name).is_ok()
        {
            return;
        }
        let end = End {
            at,
            after,
            fails: true,
        };
        self.read.push((name.to_owned(), block, end));
    }

    /// What was read and is bound nowhere in the file.
    pub(super) fn unbound(mut self, text: &str, imports: &[Bound]) -> Vec<(String, usize, End)> {
        for import in imports {
            let first = import.name.split('.').next();
            self.bind(first.unwrap_or(&import.name));
        }
        self.read.retain(|(name, ..)| !self.bound.contains(name));
        if !self.read.is_empty() && BINDS_BY_TEXT.iter().any(|word| text.contains(word)) {
            self.read.clear();
        }
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtins_are_in_order() {
        assert!(BUILTINS.is_sorted());
    }
}
