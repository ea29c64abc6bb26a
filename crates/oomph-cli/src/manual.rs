//! The manual pages, one for each command, from the same definitions as `--help`.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

/// Each page's file name and text.
pub fn pages() -> io::Result<Vec<(String, String)>> {
    // Pages do not say which terminal they were made on, nor which version: Cargo.toml does.
    let mut oomph = crate::help::laid_out(crate::Cli::command(), 100).version(None::<&'static str>);
    oomph.build();
    let commands = oomph
        .get_subcommands()
        .filter(|command| command.get_name() != "help");
    std::iter::once(page("oomph".to_owned(), &oomph))
        .chain(commands.map(|command| page(format!("oomph-{}", command.get_name()), command)))
        .collect()
}

fn page(name: String, command: &Command) -> io::Result<(String, String)> {
    let mut text = Vec::new();
    // clap knows names as static only.
    let name: &'static str = name.leak();
    let command = command.clone().name(name).disable_help_subcommand(true);
    Man::new(command).title(name).render(&mut text)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    Ok((format!("{name}.1"), text))
}
