//! Tables that fit the terminal: columns by priority, as many as fit.

use std::fmt::Write as _;

use anstyle::Style;

/// Between columns.
const GAP: usize = 2;

/// How a column's cells are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A column of a [`Table`].
#[derive(Debug)]
pub struct Column {
    header: &'static str,
    align: Align,
    /// Columns with a lower number are dropped later.
    priority: u8,
    cells: Vec<String>,
}

/// A table under construction, column by column.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
}

impl Table {
    /// Adds a column. Columns keep the order in which they are added; those with the highest
    /// `priority` number are dropped first when the table is wider than the terminal.
    #[must_use]
    pub fn column(
        mut self,
        header: &'static str,
        align: Align,
        priority: u8,
        cells: impl IntoIterator<Item = String>,
    ) -> Self {
        self.columns.push(Column {
            header,
            align,
            priority,
            cells: cells.into_iter().collect(),
        });
        self
    }

    /// The lines of the table in at most `width` columns where that is possible, with a bold
    /// header. Each line ends with a newline; none has spaces at its end.
    pub fn render(&self, width: usize) -> String {
        let mut kept: Vec<&Column> = self.columns.iter().collect();
        while kept.len() > 1 && total_width(&kept) > width {
            let last = kept
                .iter()
                .enumerate()
                .max_by_key(|(index, column)| (column.priority, *index))
                .map(|(index, _)| index);
            match last {
                Some(index) => kept.remove(index),
                None => break,
            };
        }
        let bold = Style::new().bold();
        let mut out = String::new();
        let headers: Vec<&str> = kept.iter().map(|column| column.header).collect();
        let header = line(&kept, &headers);
        let _ = writeln!(out, "{bold}{header}{bold:#}");
        let rows = kept
            .iter()
            .map(|column| column.cells.len())
            .max()
            .unwrap_or(0);
        for row in 0..rows {
            let cells: Vec<&str> = kept
                .iter()
                .map(|column| column.cells.get(row).map_or("", String::as_str))
                .collect();
            out.push_str(&line(&kept, &cells));
            out.push('\n');
        }
        out
    }
}

impl Column {
    fn width(&self) -> usize {
        self.cells
            .iter()
            .map(|cell| cell.chars().count())
            .chain([self.header.chars().count()])
            .max()
            .unwrap_or(0)
    }
}

fn total_width(columns: &[&Column]) -> usize {
    columns.iter().map(|column| column.width()).sum::<usize>() + GAP * (columns.len() - 1)
}

fn line(columns: &[&Column], cells: &[&str]) -> String {
    let mut line = String::new();
    for (index, (column, cell)) in columns.iter().zip(cells).enumerate() {
        if index > 0 {
            line.push_str(&" ".repeat(GAP));
        }
        let fill = " ".repeat(column.width().saturating_sub(cell.chars().count()));
        match column.align {
            Align::Left => {
                line.push_str(cell);
                line.push_str(&fill);
            }
            Align::Right => {
                line.push_str(&fill);
                line.push_str(cell);
            }
        }
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let cells = |cells: &[&str]| {
            cells
                .iter()
                .map(|&cell| cell.to_owned())
                .collect::<Vec<_>>()
        };
        Table::default()
            .column("name", Align::Left, 0, cells(&["a", "bbbbbb"]))
            .column("middle", Align::Left, 2, cells(&["x", "y"]))
            .column("size", Align::Right, 1, cells(&["1", "10000"]))
    }

    #[test]
    fn numbers_stand_at_the_right() {
        assert_eq!(
            anstream::adapter::strip_str(&table().render(80)).to_string(),
            "name    middle   size\na       x           1\nbbbbbb  y       10000\n"
        );
    }

    #[test]
    fn what_matters_least_goes_first() {
        let narrow = table().render(14);
        assert!(
            !narrow.contains("middle") && narrow.contains("size"),
            "{narrow}"
        );
        let narrower = table().render(6);
        assert!(
            !narrower.contains("size") && narrower.contains("bbbbbb"),
            "{narrower}"
        );
    }
}
