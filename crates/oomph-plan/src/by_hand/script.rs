//! A Python script as logical lines: a statement's lines belong together, however many they are.

/// A statement, or the head of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Logical {
    /// Its first line, from 0.
    pub(crate) first: usize,
    /// Its last line.
    pub(crate) last: usize,
    /// Columns before it.
    pub(crate) indent: usize,
}

/// A script in lines.
#[derive(Debug)]
pub(crate) struct Script<'a> {
    /// Its lines, without their ends.
    pub(crate) lines: Vec<&'a str>,
    /// Its statements, in order.
    pub(crate) statements: Vec<Logical>,
}

/// A change: lines from `first` on, so many of them, become others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    first: usize,
    removed: usize,
    lines: Vec<String>,
}

impl Edit {
    /// New lines before line `at`.
    pub(crate) fn insert(at: usize, lines: Vec<String>) -> Self {
        Self {
            first: at,
            removed: 0,
            lines,
        }
    }

    /// Other lines for those from `first` to `last`.
    pub(crate) fn replace(first: usize, last: usize, lines: Vec<String>) -> Self {
        Self {
            first,
            removed: last + 1 - first,
            lines,
        }
    }
}

impl<'a> Script<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        let lines: Vec<&str> = source.lines().collect();
        let mut statements = Vec::new();
        let mut scanner = Scanner::default();
        let mut first = None;
        for (number, line) in lines.iter().enumerate() {
            let code = scanner.line(line);
            if first.is_none() && (code.is_empty() && !scanner.open()) {
                continue;
            }
            let start = *first.get_or_insert(number);
            if !scanner.open() {
                let head = lines.get(start).copied().unwrap_or_default();
                statements.push(Logical {
                    first: start,
                    last: number,
                    indent: head.len() - head.trim_start().len(),
                });
                first = None;
            }
        }
        Self { lines, statements }
    }

    /// A statement's text, its lines joined by a space.
    pub(crate) fn text(&self, statement: &Logical) -> String {
        let lines = self
            .lines
            .get(statement.first..=statement.last)
            .unwrap_or_default();
        let parts: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        parts.join(" ")
    }

    /// The statement that has this line.
    pub(crate) fn statement(&self, line: usize) -> Option<Logical> {
        self.statements
            .iter()
            .find(|statement| (statement.first..=statement.last).contains(&line))
            .copied()
    }

    /// The first line that has one of these words and defines nothing.
    pub(crate) fn call(&self, words: &[&str]) -> Option<usize> {
        let found = self.statements.iter().find(|one| {
            let text = self.text(one);
            words.iter().any(|word| text.contains(word)) && !text.starts_with("def ")
        });
        found.map(|one| one.first)
    }

    /// A name like `word` that the script does not use.
    pub(crate) fn free_name(&self, word: &str) -> String {
        let used = |name: &str| {
            self.lines.iter().any(|line| {
                line.split(|character: char| !(character.is_alphanumeric() || character == '_'))
                    .any(|other| other == name)
            })
        };
        let mut name = word.to_owned();
        while used(&name) {
            name.push('_');
        }
        name
    }

    /// Edits that put `new` for `old` wherever it stands.
    pub(crate) fn replace_all(&self, old: &str, new: &str) -> Vec<Edit> {
        self.lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.contains(old))
            .map(|(number, line)| Edit::replace(number, number, vec![line.replace(old, new)]))
            .collect()
    }

    /// An edit that adds an argument to the call which the statement at `line` ends with.
    pub(crate) fn add_argument(&self, line: usize, argument: &str) -> Option<Edit> {
        let statement = self.statement(line)?;
        let last = self.lines.get(statement.last)?;
        let close = last.rfind(')')?;
        if !last.get(close + 1..)?.trim().is_empty() {
            return None;
        }
        let (before, after) = last.split_at(close);
        let glue = match before.trim_end().chars().last() {
            // The bracket stands alone: the argument gets a line of its own.
            None => {
                let indent = statement.indent + 4;
                return Some(Edit::insert(
                    statement.last,
                    vec![format!("{}{argument},", " ".repeat(indent))],
                ));
            }
            Some('(') => "",
            Some(',') => " ",
            Some(_) => ", ",
        };
        let text = format!("{}{glue}{argument}{after}", before.trim_end());
        Some(Edit::replace(statement.last, statement.last, vec![text]))
    }

    /// The script with edits made; those that overlap an earlier one are left out.
    pub(crate) fn apply(&self, edits: &mut [Edit]) -> Vec<String> {
        edits.sort_by_key(|edit| (edit.first, edit.removed));
        let mut out = Vec::with_capacity(self.lines.len());
        let mut at = 0;
        for edit in edits.iter() {
            if edit.first < at {
                continue;
            }
            let kept = self.lines.get(at..edit.first).unwrap_or_default();
            out.extend(kept.iter().map(|&line| line.to_owned()));
            out.extend(edit.lines.iter().cloned());
            at = edit.first + edit.removed;
        }
        let rest = self.lines.get(at..).unwrap_or_default();
        out.extend(rest.iter().map(|&line| line.to_owned()));
        out
    }
}

/// Follows brackets and strings from line to line.
#[derive(Debug, Default)]
struct Scanner {
    depth: usize,
    /// The three quotes that the open string began with.
    string: Option<&'static str>,
    continued: bool,
}

impl Scanner {
    /// Whether the statement goes on in the next line.
    fn open(&self) -> bool {
        self.depth > 0 || self.string.is_some() || self.continued
    }

    /// Reads a line; what is left of it without comments and spaces.
    fn line(&mut self, line: &str) -> String {
        self.continued = false;
        let mut code = String::new();
        let mut rest = line;
        while !rest.is_empty() {
            if let Some(quotes) = self.string {
                code.push('"');
                match rest.find(quotes) {
                    Some(end) => {
                        rest = rest.get(end + quotes.len()..).unwrap_or_default();
                        self.string = None;
                    }
                    None => return code,
                }
                continue;
            }
            if let Some(quotes) = ["\"\"\"", "'''"].into_iter().find(|q| rest.starts_with(q)) {
                self.string = Some(quotes);
                rest = rest.get(3..).unwrap_or_default();
                continue;
            }
            let Some(character) = rest.chars().next() else {
                break;
            };
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
            match character {
                '#' => break,
                '"' | '\'' => {
                    code.push(character);
                    rest = after_string(rest, character);
                }
                '(' | '[' | '{' => self.depth += 1,
                ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                '\\' if rest.is_empty() => self.continued = true,
                _ => {}
            }
            if !character.is_whitespace() {
                code.push(character);
            }
        }
        code
    }
}

/// What follows a string of one line.
fn after_string(text: &str, quote: char) -> &str {
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if character == '\\' {
            escaped = true;
        } else if character == quote {
            return text.get(at + 1..).unwrap_or_default();
        }
    }
    ""
}
