//! A process that has imported torch, from which the scripts of a command with many runs are forked.
//!
//! The Python side is `python/oomph/_forks`: it declines what could differ from a script that is started.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::caches::cache_directory;
use crate::settings::variables;

/// The fork server of a command. It starts with the first script and ends with this.
#[derive(Debug, Default)]
pub struct Forks {
    server: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotYet,
    Unavailable,
    Running(Server),
}

#[derive(Debug)]
struct Server {
    process: Child,
    /// Holds the socket, and is this user's alone.
    directory: PathBuf,
}

impl Forks {
    /// Lets `command`, which starts Python for a script, ask the server to fork it. Where there is none it
    /// runs the script itself.
    pub fn serve(&self, command: &mut Command) {
        if std::env::var_os(variables::FORKS).is_some() {
            return; // the caller has a server, or wants none
        }
        let mut state = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::NotYet) {
            *state = Server::start(command).map_or(State::Unavailable, State::Running);
        }
        if let State::Running(server) = &*state {
            command.env(variables::FORKS, server.socket());
        }
    }
}

impl Server {
    /// Starts a server for processes like `command`'s. It imports torch when the first one asks.
    fn start(command: &Command) -> std::io::Result<Self> {
        // A socket's path must be short.
        let directory = std::env::temp_dir().join(format!("oomph-forks-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let listener = UnixListener::bind(directory.join("socket"));
        let mut server = Command::new(command.get_program());
        for (name, value) in command.get_envs() {
            let is_the_runs = name.to_string_lossy().starts_with(variables::PREFIX);
            match value.filter(|_| !is_the_runs) {
                Some(value) => server.env(name, value),
                None => server.env_remove(name),
            };
        }
        let process = listener.and_then(|listener| {
            server
                .env_remove("PYTHONPATH")
                .args(["-m", "oomph._forks.server"])
                .arg(std::process::id().to_string())
                .args(cache_directory().map(|cache| cache.join("bytecode")))
                // Signals for the command's group end it only once the command is gone, so that it can tidy up.
                .process_group(0)
                .stdin(OwnedFd::from(listener))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        });
        match process {
            Ok(process) => Ok(Self { process, directory }),
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The directory goes first: a second signal may end this process now, and a killed server removes nothing.
        let _ = fs::remove_dir_all(&self.directory);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
