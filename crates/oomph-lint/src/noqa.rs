//! `# noqa` comments.
//!
//! `# noqa` silences a line, `# noqa: OOM101, OOM2` the named rules or families on it,
//! `# oomph: noqa` (with or without codes) the whole file.

use oomph_python_source::{Module, TextRange};

/// What a comment silences.
#[derive(Debug)]
enum Codes {
    All,
    Some(Vec<String>),
}

impl Codes {
    fn cover(&self, code: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(codes) => codes.iter().any(|each| code.starts_with(each.as_str())),
        }
    }
}

/// The `noqa` comments of a file.
#[derive(Debug, Default)]
pub(crate) struct Noqa {
    file: Vec<Codes>,
    lines: Vec<(usize, Codes)>,
}

impl Noqa {
    pub(crate) fn read(module: &Module<'_>) -> Self {
        let mut noqa = Self::default();
        // Few files have any: the tokens are not looked at for the others.
        if !module.text().to_ascii_lowercase().contains("noqa") {
            return noqa;
        }
        for (range, text) in module.comments() {
            if let Some((whole_file, codes)) = parse(text) {
                if whole_file {
                    noqa.file.push(codes);
                } else {
                    noqa.lines.push((module.line_of(range.start()), codes));
                }
            }
        }
        noqa
    }

    /// Whether a finding is silenced: by a comment on its first or its last line.
    pub(crate) fn silences(&self, rule: &str, range: TextRange, module: &Module<'_>) -> bool {
        if self.file.is_empty() && self.lines.is_empty() {
            return false;
        }
        let first = module.line_of(range.start());
        let last = module.line_of(range.end());
        self.file.iter().any(|codes| codes.cover(rule))
            || self
                .lines
                .iter()
                .any(|(line, codes)| (*line == first || *line == last) && codes.cover(rule))
    }
}

/// Reads one comment: whether it is for the whole file, and which codes it names.
fn parse(comment: &str) -> Option<(bool, Codes)> {
    // Several pragmas share a comment: `# type: ignore  # noqa: OOM101`.
    comment.split('#').find_map(|part| {
        let part = part.trim();
        let lower = part.to_ascii_lowercase();
        let (whole_file, rest) = match lower.strip_prefix("oomph:") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, lower.as_str()),
        };
        let rest = rest.strip_prefix("noqa")?;
        let rest = rest.trim_start();
        let Some(codes) = rest.strip_prefix(':') else {
            // `noqa-something` is another word.
            return rest
                .chars()
                .next()
                .is_none_or(|next| !next.is_alphanumeric() && next != '-' && next != '_')
                .then_some((whole_file, Codes::All));
        };
        let codes = codes
            .split([',', ' ', '\t'])
            .map(str::trim)
            .take_while(|code| code.is_empty() || code.chars().all(|c| c.is_ascii_alphanumeric()))
            .filter(|code| !code.is_empty())
            .map(str::to_ascii_uppercase)
            .collect();
        Some((whole_file, Codes::Some(codes)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_name_codes_families_or_nothing() {
        let covers =
            |comment: &str, code: &str| parse(comment).is_some_and(|(_, codes)| codes.cover(code));
        assert!(covers("# noqa", "OOM101"));
        assert!(covers("# NOQA: oom101", "OOM101"));
        assert!(covers("# noqa: E501, OOM1 because", "OOM101"));
        assert!(!covers("# noqa: E501", "OOM101"));
        assert!(covers("# type: ignore # noqa:OOM201", "OOM201"));
        assert!(!covers("# noqa-ish", "OOM101"));
        assert!(parse("# oomph: noqa: OOM301").is_some_and(|(file, _)| file));
    }
}
