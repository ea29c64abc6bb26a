//! What is alive at the peak as a table: one row per line of code, module, operator and category.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::html::history::Digest;
use crate::html::redact::Redactor;

pub(super) fn export(digest: &Digest, redact: &mut Redactor) -> String {
    let trace = digest.history.trace;
    let (peak, _) = digest.peak;
    let mut rows: BTreeMap<[String; 5], (u64, u64)> = BTreeMap::new();
    for block in &digest.blocks {
        if block.start > peak || block.end <= peak {
            continue;
        }
        let stack = digest.facts.stacks.get(digest.stack(block.kind));
        let (module, operator) = digest.names(block.kind);
        let (line, function) = stack.user.map_or_else(Default::default, |frame| {
            let (file, function) = redact.frame(
                trace.strings.get(frame.file),
                trace.strings.get(frame.name),
                true,
            );
            (format!("{file}:{}", frame.line), function)
        });
        let key = [
            digest.category(block.kind).id().to_owned(),
            redact.module(module),
            redact.operator(operator),
            line,
            function,
        ];
        let entry = rows.entry(key).or_default();
        entry.0 += block.bytes;
        entry.1 += 1;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let mut out = String::from("bytes,blocks,category,module,operator,line,function\r\n");
    for (key, (bytes, blocks)) in rows {
        let cells: Vec<String> = key.iter().map(|cell| quoted(cell)).collect();
        let _ = write!(out, "{bytes},{blocks},{}\r\n", cells.join(","));
    }
    out
}

/// A cell by RFC 4180. Spreadsheets run what begins like a formula, so that gets a quote before it.
fn quoted(cell: &str) -> String {
    let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let cell = if formula {
        format!("'{cell}")
    } else {
        cell.to_owned()
    };
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn cells_are_no_formulas_and_no_columns() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!(quoted("@SUM(A1,A2)"), "\"'@SUM(A1,A2)\"");
    }
}
