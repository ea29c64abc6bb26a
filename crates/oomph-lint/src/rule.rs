//! What a rule is: a code, a page, and a check over the semantic model.

use std::fmt::Write as _;

use oomph_python_source::{Ranged, TextRange};

use crate::fix::Fix;
use crate::pins::Newest;
use crate::semantic::Model;

/// Whether a rule comes with a fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixAvailability {
    /// Findings are fixed by hand.
    None,
    /// Some findings carry a fix.
    Sometimes,
}

/// A rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The code, `OOM` and three digits. The first digit is the family.
    pub code: &'static str,
    /// A short name in kebab case.
    pub name: &'static str,
    /// The page: Markdown, the first line says what the rule finds.
    pub docs: &'static str,
    /// Whether findings carry fixes.
    pub fix: FixAvailability,
    /// How it was judged: see [`Fresh`].
    pub fresh: Fresh,
    pub(crate) check: fn(&Model<'_>, &mut Vec<Report>),
}

/// Findings in repositories that a rule had not seen, each as its reader judged it first: those of the sets forty and newer that the
/// rule of today still reports, and, if these are fewer than ten, all of older sets. `bench/lint/fresh.py` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// True, and worth the change.
    pub right: u32,
    /// All: also wrong ones, and what is true and matters little.
    pub judged: u32,
}

impl Fresh {
    /// Whether they suffice to report a rule's findings to somebody who did not ask for it: nine of ten, of at least ten.
    pub const fn suffice(self) -> bool {
        self.judged >= 10 && self.right * 10 >= self.judged * 9
    }
}

impl Rule {
    /// Whether it is on without being selected.
    pub const fn is_default(&self) -> bool {
        self.fresh.suffice()
    }

    /// The first line of the page.
    pub fn summary(&self) -> &'static str {
        self.docs.lines().next().unwrap_or_default().trim()
    }

    /// The family that the code belongs to.
    pub fn family(&self) -> &'static str {
        match self.code.as_bytes().get(3) {
            Some(b'1') => "Graphs kept alive",
            Some(b'2') => "Evaluation",
            Some(b'3') => "Tensors collected",
            Some(b'4') => "Accumulation, optimizer and gradients",
            Some(b'5') => "Checkpoints and activation checkpointing",
            Some(b'6') => "Data loading, caches and waits",
            Some(b'7') => "Parallelism and settings",
            Some(b'8') => "Attention, losses and precision",
            _ => "Recovery",
        }
    }

    /// Whether findings are about memory of the GPU. Data loading and caches may be host memory, and settings,
    /// precision and recovery are judged by what the code says.
    pub(crate) fn is_about_gpu_memory(&self) -> bool {
        matches!(self.code.as_bytes().get(3), Some(b'1'..=b'5'))
            || matches!(self.code, "OOM701" | "OOM703")
    }

    /// Whether the rule reports a whole evaluation: one `no_grad()` around it covers every pass in it.
    pub(crate) fn is_about_evaluation(&self) -> bool {
        matches!(self.code, "OOM201" | "OOM202" | "OOM205")
    }

    /// Whether the rule says nothing of code for a PyTorch before 0.5: it stops at the first loss, and what it loads
    /// before that is all that memory today depends on.
    pub(crate) fn is_about_newer_torch(&self) -> bool {
        matches!(self.code.as_bytes().get(3), Some(b'1'..=b'4'))
    }

    /// Where the page is published.
    pub fn url(&self) -> String {
        format!(
            "{}/blob/main/docs/rules/{}.md",
            env!("CARGO_PKG_REPOSITORY"),
            self.code
        )
    }

    /// The page as plain Markdown, with its heading: the text of `oomph lint --explain CODE` and
    /// of `docs/rules/CODE.md`.
    pub fn page(&self) -> String {
        let mut page = format!("# {} `{}`\n\n", self.code, self.name);
        let _ = write!(page, "*{}.*", self.family());
        page.push_str(if self.is_default() {
            " On by default:"
        } else {
            " Off by default, `--extend-select` it:"
        });
        let Fresh { right, judged } = self.fresh;
        let _ = match judged {
            0 => write!(page, " no finding in unseen code was judged yet."),
            _ => write!(
                page,
                " right in {right} of {judged} findings in unseen code."
            ),
        };
        if self.fix == FixAvailability::Sometimes {
            page.push_str(" Some findings carry a fix.");
        }
        page.push_str("\n\n");
        for line in self.docs.lines() {
            page.push_str(line.strip_prefix(' ').unwrap_or(line));
            page.push('\n');
        }
        page
    }
}

/// What a check reports.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) range: TextRange,
    pub(crate) message: String,
    pub(crate) help: Option<&'static str>,
    pub(crate) fix: Option<Fix>,
    /// The PyTorch from which on it is true: a project that pins an older one gets nothing said.
    pub(crate) since: Newest,
}

impl Report {
    pub(crate) fn new(node: impl Ranged, message: impl Into<String>) -> Self {
        Self {
            range: node.range(),
            message: message.into(),
            help: None,
            fix: None,
            since: (0, 0),
        }
    }

    pub(crate) fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }

    pub(crate) fn since(mut self, major: u32, minor: u32) -> Self {
        self.since = (major, minor);
        self
    }

    pub(crate) fn fix(mut self, fix: impl Into<Option<Fix>>) -> Self {
        self.fix = fix.into();
        self
    }
}

/// Declares the rule of a file. The doc comment is the rule's page.
macro_rules! declare_rule {
    (
        $(#[doc = $doc:literal])+
        $code:ident $name:literal { fix: $fix:ident, fresh: [$right:literal, $judged:literal] }
    ) => {
        $(#[doc = $doc])+
        pub(crate) static RULE: $crate::rule::Rule = $crate::rule::Rule {
            code: stringify!($code),
            name: $name,
            docs: concat!($($doc, "\n"),+),
            fix: $crate::rule::FixAvailability::$fix,
            fresh: $crate::rule::Fresh { right: $right, judged: $judged },
            check,
        };
    };
}
pub(crate) use declare_rule;
