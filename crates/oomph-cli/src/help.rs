//! The help of all commands, laid out for a terminal.

use clap::Command;

/// The widest help: longer lines are hard to follow.
const MOST: usize = 110;

/// `command` with its help and that of its subcommands in `width` columns.
pub(crate) fn laid_out(command: Command, width: usize) -> Command {
    let width = width.min(MOST);
    command
        .term_width(width)
        .mut_subcommands(|subcommand| match subcommand.get_after_help() {
            Some(text) => {
                let text = examples(&text.to_string(), width);
                subcommand.after_help(text)
            }
            None => subcommand,
        })
}

/// `text` with its examples (the lines that begin with spaces) in `width` columns: where a command and what
/// it means do not fit side by side, the meaning stands below, in all examples alike.
fn examples(text: &str, width: usize) -> String {
    const INDENT: &str = "  ";
    let is_example = |line: &&str| line.starts_with(INDENT);
    if text
        .lines()
        .filter(is_example)
        .all(|line| line.chars().count() <= width)
    {
        return text.to_owned();
    }
    let lines = text.lines().map(|line| {
        let Some(words) = line.strip_prefix(INDENT) else {
            return line.to_owned();
        };
        match words.split_once(INDENT) {
            // The line above was too long for its meaning to begin with.
            Some(("", meaning)) => format!("      {}", meaning.trim_start()),
            Some((command, meaning)) => {
                format!("{INDENT}{command}\n      {}", meaning.trim_start())
            }
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The help of every command. Commands to copy may be longer than a narrow terminal.
    #[test]
    fn help_fits_the_terminal_and_no_sentence_is_torn() {
        use clap::CommandFactory as _;
        for width in [60, 100, 200] {
            let mut all = laid_out(crate::Cli::command(), width);
            all.build();
            for command in all.get_subcommands_mut() {
                let text = command.render_help().to_string();
                let most = text.lines().map(|line| line.chars().count()).max();
                assert!(
                    most <= Some(width.min(MOST)),
                    "{most:?} of {width}:\n{text}"
                );
            }
        }
        for command in crate::Cli::command().get_subcommands() {
            let text = command.get_after_help().map(ToString::to_string);
            for (line, next) in text
                .iter()
                .flat_map(|text| text.lines().zip(text.lines().skip(1)))
            {
                let torn = !line.is_empty()
                    && !line.starts_with(' ')
                    && !line.ends_with(':')
                    && !next.is_empty();
                assert!(!torn, "the terminal breaks lines, not the text: {line}");
            }
        }
    }

    #[test]
    fn meanings_stand_below_where_there_is_no_room() {
        let text = "Examples:\n  oomph clean              all of it\n  oomph clean --dry-run    only say so\n\nA sentence.";
        assert_eq!(examples(text, 60), text);
        assert_eq!(
            examples(text, 30),
            "Examples:\n  oomph clean\n      all of it\n  oomph clean --dry-run\n      only say so\n\nA sentence."
        );
        let long = "  oomph run -- torchrun train.py\n                 ranks";
        assert_eq!(
            examples(long, 20),
            "  oomph run -- torchrun train.py\n      ranks"
        );
    }
}
