//! `keypadd reload --binary`: starts this program in place of a running daemon.
//!
//! The new process gets the daemon's command line, directory and environment from the record of the
//! daemon's start: what the daemon says now may be the will of strangers. Until the new process
//! serves, its messages appear here; then it takes over the daemon's standard streams. The daemon
//! cannot start it itself: its sandbox cannot execute programs.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, one_line, shown, system};
use keypadd_cli::keyfile;
use keypadd_cli::shutdown::block_on;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::set_socket_passcred;
use rustix::process::{Pid, Uid, geteuid};
use serde::de::IgnoredAny;
use tokio::time::timeout;

use crate::control::{self, REPLACE_REQUEST, STATUS_REQUEST, runtime_directory};
use crate::replacement::channel::{Channel, Received, unexpected};
use crate::replacement::give::Program;
use crate::replacement::record::StartRecord;
use crate::replacement::take::{RESET, TakeoverReport};
use crate::replacement::{Message, Offer, VARIABLE, VERSION};
use crate::verbs::status::why_closed;

use super::PATIENCE;

/// A daemon that is reloading answers afterwards.
const TIMEOUT: Duration = Duration::from_secs(65);

/// Why there is no offer of a daemon to hand over, or the new process does not start.
#[derive(Debug)]
enum NotReplaced {
    /// Root must not replace it.
    NotRoots,
    /// Other processes wait to replace it.
    Busy,
    /// Its [`VERSION`] is a higher one.
    Newer,
    /// Its [`VERSION`] is a lower one.
    Older,
    /// How it was started is not known for certain.
    Unrecorded(io::Error),
    /// An error of the system, or an answer of another kind.
    System(io::Error),
}

impl From<io::Error> for NotReplaced {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for NotReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRoots => "it runs as another user, who must replace it (systemctl reload)",
            Self::Busy => "other processes are waiting to replace it",
            Self::Newer => "it is newer than this program, and cannot hand over to it",
            Self::Older => "it is older than this program, and cannot hand over to it",
            Self::Unrecorded(error) if error.kind() == io::ErrorKind::NotFound => {
                "how it was started is not recorded beside its socket"
            }
            Self::Unrecorded(error) => {
                let cause = system(error);
                return write!(f, "the record of how it was started cannot be used: {cause}");
            }
            Self::System(error) => return f.write_str(&system(error)),
        })
    }
}

/// What happened to a daemon.
#[derive(Debug)]
pub(super) enum Replaced {
    /// The daemon runs this program already.
    Same,
    /// A new process has replaced the daemon; prints this.
    Started(String),
    /// The daemon is another version or busy, or forwards standard input and output.
    Failed(Error),
}

/// What a daemon answers.
struct ReplaceOffer {
    offer: Offer,
    /// The process that listens; none if it is in a namespace that this one does not see.
    process: Option<Pid>,
    channel: OwnedFd,
    /// None if the daemon has none.
    key_file: Option<OwnedFd>,
}

/// Replaces the daemon of a socket; unless `forced`, only if it runs another program.
///
/// # Errors
/// Exit 1: it has exited or was replaced, or the new process fails and has printed why; then it
/// continues.
pub(super) fn replace(socket: &Path, forced: bool) -> Result<Replaced, Error> {
    let program = own_file()?;
    let mut replaced = Replaced::Same;
    block_on(async {
        let asked = async { ask(control::connect(socket)?, forced, geteuid()).await };
        let offer = timeout(TIMEOUT, asked).await;
        let offer = offer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        replaced = match offer {
            Ok(ReplaceOffer { offer: Offer { same: true, .. }, .. }) => Replaced::Same,
            Ok(asked) => match record_of(socket, asked.process) {
                Ok(record) => Replaced::Started(start(socket, &program, &record, asked)?),
                Err(error) => {
                    Replaced::Failed(replace_error(socket, &NotReplaced::Unrecorded(error)))
                }
            },
            Err(NotReplaced::System(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(replace_error(socket, &error.into()));
            }
            Err(error) => Replaced::Failed(replace_error(socket, &error)),
        };
        Ok(())
    })?;
    Ok(replaced)
}

/// The file of this program, for the new process.
fn own_file() -> Result<PathBuf, Error> {
    let file = env::current_exe();
    let file = file.and_then(|file| fs::metadata(&file).map(|_| file));
    file.map_err(|error| {
        let cause = format!("cannot start this program's own file again: {}", system(&error));
        Error::new(Exit::Runtime, cause).hint("run `keypadd` from where it is installed now")
    })
}

/// Asks for an offer that this user may start.
async fn ask(mut stream: UnixStream, forced: bool, own: Uid) -> Result<ReplaceOffer, NotReplaced> {
    let unless = Program::own().filter(|_| !forced);
    let identity = unless.map(|program| program.to_string()).unwrap_or_default();
    // Before the request: the kernel notes the sender of an answer when that is sent.
    set_socket_passcred(&stream, true).map_err(io::Error::from)?;
    stream.write_all(format!("{REPLACE_REQUEST} {identity}\n").as_bytes())?;
    let channel = OwnedFd::from(stream.try_clone()?);
    let answering = Channel::new(stream)?;
    let process = answering.listener()?;
    let Received { frame, descriptors, sender, .. } = answering.receive().await?;
    if !may_start(own, sender) {
        return Err(NotReplaced::NotRoots);
    }
    match frame {
        Message::Offer(offer) if offer.version == VERSION => {
            Ok(ReplaceOffer { offer, process, channel, key_file: descriptors.take_optional()? })
        }
        Message::Offer(offer) if offer.version > VERSION => Err(NotReplaced::Newer),
        Message::Offer(_) => Err(NotReplaced::Older),
        Message::Continues => Err(NotReplaced::Busy),
        frame => Err(unexpected(&frame).into()),
    }
}

/// Whether this user may start what this sender offers: root only what a process of root's does.
/// Whoever listens on a socket may have got it from a process of root's, or been one.
fn may_start(own: Uid, sender: Option<Uid>) -> bool {
    !own.is_root() || sender.is_some_and(Uid::is_root)
}

/// How a daemon was started, by the record beside its socket.
fn record_of(socket: &Path, process: Option<Pid>) -> io::Result<StartRecord> {
    let process = process.ok_or(io::ErrorKind::NotFound)?;
    let socket = socket.canonicalize()?;
    let directory = socket.parent().ok_or(io::ErrorKind::NotFound)?;
    runtime_directory::check(directory)?;
    StartRecord::read(directory, process)
}

/// Starts the new process; returns what to print.
fn start(
    socket: &Path,
    program: &Path,
    record: &StartRecord,
    ReplaceOffer { offer, channel, key_file, .. }: ReplaceOffer,
) -> Result<String, Error> {
    let started = || {
        let key_file = key_file.as_ref().map(|file| {
            // Inherited: not closed when the program starts.
            fcntl_setfd(file, FdFlags::empty()).map(|()| file.as_raw_fd().to_string())
        });
        // Not a pipe, which a service's system call filter may refuse.
        let (mut result, stdout) = UnixStream::pair()?;
        let mut child = Command::new(program)
            .args(&record.arguments)
            .current_dir(&record.directory)
            .env_clear()
            .envs(record.environment())
            .env(VARIABLE, serde_json::to_string(&record.privileges)?)
            .envs(key_file.transpose()?.map(|number| (keyfile::INHERITED, number)))
            // Ctrl-C here must not reach the daemon.
            .process_group(0)
            .stdin(Stdio::from(channel))
            .stdout(Stdio::from(OwnedFd::from(stdout)))
            .spawn()?;
        let mut said = String::new();
        result.read_to_string(&mut said)?;
        match serde_json::from_str::<TakeoverReport>(&said) {
            Ok(outcome) => Ok(Ok(outcome)),
            Err(_) => child.wait().map(Err),
        }
    };
    match started().map_err(|error: io::Error| replace_error(socket, &error.into()))? {
        Ok(TakeoverReport { pid, release, held, reset }) => {
            let before = format!("{} (process {})", one_line(&offer.release), offer.pid);
            let noun = if held == 1 { "connection" } else { "connections" };
            let lost = match reset {
                0 => String::new(),
                reset => format!(", {reset} reset: {RESET}"),
            };
            Ok(format!(
                "replaced {before} with {release} (process {pid}); {held} {noun} kept{lost}\n"
            ))
        }
        Err(status) => {
            // If the new one had everything, the old one answers nothing any more, and is about to
            // exit.
            let old = match control::ask::<IgnoredAny>(socket, STATUS_REQUEST, PATIENCE) {
                Err(_) if !control::is_listening(socket) => "has exited",
                _ => "continues",
            };
            let cause = format!("the new process failed ({status}); process {} {old}", offer.pid);
            Err(Error::new(Exit::Runtime, cause))
        }
    }
}

fn replace_error(socket: &Path, error: &NotReplaced) -> Error {
    let name = shown(socket.to_string_lossy());
    let cause = match error {
        NotReplaced::System(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let cause = format!("the daemon at {name}: {}", why_closed(socket));
            return Error::new(Exit::Runtime, cause).hint("`keypadd status` shows what runs now");
        }
        // An older daemon answers in JSON, whose first bytes are not the length of any frame; so
        // does one that forwards standard input and output.
        NotReplaced::System(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            "it cannot be replaced while it runs".into()
        }
        error => error.to_string(),
    };
    let hint = match error {
        NotReplaced::Busy => "try again later",
        NotReplaced::Newer => "upgrade this program",
        NotReplaced::NotRoots
        | NotReplaced::Older
        | NotReplaced::Unrecorded(_)
        | NotReplaced::System(_) => "restart it; its connections will close",
    };
    Error::new(Exit::Runtime, format!("the daemon at {name}: {cause}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::process::getuid;

    use super::*;

    #[test]
    fn root_starts_only_what_a_process_of_roots_has_offered() {
        let user = Uid::from_raw(7);
        assert!(may_start(Uid::ROOT, Some(Uid::ROOT)));
        assert!(!may_start(Uid::ROOT, Some(user)));
        assert!(!may_start(Uid::ROOT, None));
        assert!(may_start(user, Some(user)) && may_start(user, None));
    }

    #[test]
    fn an_error_of_the_system_is_not_taken_for_an_answer() {
        for error in [Errno::BUSY, Errno::NOSYS, Errno::OPNOTSUPP] {
            let error = replace_error(Path::new("1.sock"), &io::Error::from(error).into());
            let (_, hint) = error.parts().next().unwrap();
            assert_eq!(hint, Some("restart it; its connections will close"), "{error}");
        }
    }

    #[tokio::test]
    async fn root_refuses_an_offer_whose_sender_the_kernel_does_not_name() {
        let user = Uid::from_raw(7);
        for (own, in_advance, may) in [
            (user, false, true),
            (user, true, true),
            (Uid::ROOT, false, getuid().is_root()),
            // Sent before the kernel was asked to note who sends.
            (Uid::ROOT, true, false),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            let mut there = Channel::new(there).unwrap();
            let offer = Message::Offer(Offer { version: VERSION, ..Offer::default() });
            let asking = async { ask(here, true, own).await };
            let asked = if in_advance {
                there.tell(&offer).await.unwrap();
                asking.await
            } else {
                let answering = async {
                    // Polled second: the request is there.
                    there.tell(&offer).await.unwrap();
                };
                tokio::join!(asking, answering).0
            };
            let refused = asked.map(drop).map_err(|error| error.to_string());
            let expected = if may { Ok(()) } else { Err(NotReplaced::NotRoots.to_string()) };
            assert_eq!(refused, expected, "{own:?} {in_advance}");
        }
    }
}
