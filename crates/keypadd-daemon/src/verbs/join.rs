//! `keypadd join`: takes the invitation of `keypadd invite`, proves it to the host that printed it,
//! and adds that host to the configuration file.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keypadd_cli::error::{Error, Exit, shown, system};
use keypadd_cli::refusal::explain;
use keypadd_cli::results::print;
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::{NewPeer, Role, values::BadValue, values::peer_name};
use keypadd_provider::{Refusal, joiner_config};
use keypadd_tunnel::{
    AuthError, Client, ClientError, ClientSettings, Forward, Invitation, Joined, NotConfirmed,
};
use zeroize::Zeroizing;

use crate::command_line::{InvitationFrom, JoinArgs, checked, invitation};
use crate::daemon::confine::Confinement;
use crate::daemon::generate_instance;
use crate::verbs::pairing::{Prepared, ThisHost};

/// Longest line read from standard input; a longer one is something else.
const LINE_BYTES_MAX: usize = 2048;

/// What a joining host is started with.
#[derive(Debug)]
pub(crate) struct JoinOptions {
    host: ThisHost,
    invitation: Arc<Invitation>,
    name: String,
    connect_timeout: Duration,
    prepared: Prepared,
    confinement: Confinement,
}

impl JoinOptions {
    /// Reads flags, the invitation and files, restricts the calling thread to what is needed from
    /// then on, before any other starts, and prepares the files.
    ///
    /// # Errors
    /// Exit 2: no valid invitation, or a name that is taken. Exit 3: the file or the key cannot be
    /// used. Exit 1: a file cannot be written.
    pub(crate) fn read(args: JoinArgs) -> Result<Self, Error> {
        let JoinArgs { invitation: from, name, config, flags } = args;
        let name = name.map(|name| checked("--name", peer_name(&name))).transpose()?;
        let mut flags = flags.settings;
        let (key, connect_timeout) = (flags.key.take(), flags.connect_timeout.value);
        let invitation = match from {
            Some(InvitationFrom::Given(invitation)) => invitation,
            Some(InvitationFrom::Stdin) | None => Arc::new(read_line()?),
        };
        let host = ThisHost::find(config, key.map(|key| key.value))?;
        if host.public_key() == invitation.key {
            return Err(Error::new(Exit::Usage, "this host made the invitation")
                .hint("run `keypadd join` on the other one"));
        }
        let name = match name {
            Some(name) => name,
            None => peer_name(&invitation.name).map_err(|BadValue { cause, hint }| {
                Error::new(Exit::Usage, cause).hint(format!("choose one with --name: {hint}"))
            })?,
        };
        host.refuse_name(&name, "choose another name with --name")?;
        let confinement = host.confine(&flags)?;
        let endpoint = invitation.tunnel();
        let role = Role::Outgoing { endpoint };
        let prepared = host.prepare(&NewPeer { name: name.clone(), key: invitation.key, role })?;
        Ok(Self { host, invitation, name, connect_timeout, prepared, confinement })
    }

    /// The command that connects to the new peer.
    fn command(&self, suggestion: Option<&Forward>) -> String {
        let forward = suggestion.map_or_else(|| "-L ...".into(), Forward::to_string);
        format!("keypadd connect @{}{} {forward}", self.name, self.host.config_flag)
    }
}

/// Joins; if interrupted before the other host has accepted, nothing changes.
///
/// # Errors
/// Exit 4: the other host has another key or refuses. Exit 5: it does not answer. Exit 1:
/// interrupted, a file cannot be written, or the other host has not confirmed that it wrote its
/// own.
pub(crate) async fn run(options: JoinOptions, shutdown: Shutdown) -> Result<(), Error> {
    let own = options.host.public_key();
    let crypto = joiner_config(&options.host.crypto(), options.invitation.key)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let timeout = options.connect_timeout;
    let settings =
        ClientSettings::joining(&options.invitation, crypto, timeout, generate_instance()?);
    let client = Client::bind(settings).await.map_err(|error| refused(error.into(), &options))?;
    options.confinement.seal()?;
    let joined = tokio::select! {
        joined = client.join(&options.invitation, own) => {
            joined.map_err(|error| refused(error, &options))
        }
        _ = shutdown.requested() => {
            let cause = "interrupted; nothing was written on either host";
            Err(Error::new(Exit::Runtime, cause))
        }
    };
    let paired = match joined {
        Ok(joined) => finish(options, joined).await,
        Err(error) => Err(error),
    };
    client.close().await;
    paired
}

/// Writes the files and tells the other host.
async fn finish(options: JoinOptions, joined: Joined) -> Result<(), Error> {
    let command = options.command(joined.suggestion.as_ref());
    let JoinOptions { host, invitation, name, prepared, .. } = options;
    let written = match prepared.commit() {
        Ok(written) => written,
        Err(error) => {
            joined.abandon("the joining host could not write its files");
            return Err(error);
        }
    };
    let file = shown(host.path.to_string_lossy());
    match joined.confirm().await {
        Ok(()) => {
            let key = invitation.key;
            let text =
                format!("paired with {name}, key {key}\n  {file} has [peer.{name}]\n  {command}\n");
            print(text.as_bytes()).map(drop)
        }
        Err(NotConfirmed::Refused(cause)) => {
            let error = Error::new(Exit::Authentication, format!("{name}: {cause}"));
            match written.undo() {
                Ok(()) => Err(error.hint(format!("{file} is unchanged; invite again there"))),
                Err(undone) => {
                    Err(error.hint(format!("remove [peer.{name}] from {file}")).and(undone))
                }
            }
        }
        Err(NotConfirmed::Unknown(cause)) => {
            let cause = format!(
                "{name} may not have written its files ({cause}); {file} has [peer.{name}]"
            );
            Err(Error::new(Exit::Runtime, cause).hint(format!(
                "if `{command}` is refused, remove [peer.{name}] from {file}, and pair again"
            )))
        }
    }
}

/// Reads the line from standard input.
fn read_line() -> Result<Invitation, Error> {
    let mut bytes = Zeroizing::new([0; LINE_BYTES_MAX]);
    let mut length = 0;
    let mut stdin = io::stdin().lock();
    if io::stdin().is_terminal() {
        let _ = write!(io::stderr().lock(), "paste the invitation: ");
    }
    while length < bytes.len() && !bytes[..length].contains(&b'\n') {
        match stdin.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let cause = format!("cannot read standard input: {}", system(&error));
                return Err(Error::new(Exit::Runtime, cause));
            }
        }
    }
    let line = bytes[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    checked("standard input", invitation(&String::from_utf8_lossy(line)))
}

/// Explains why there was no pairing.
fn refused(error: ClientError, options: &JoinOptions) -> Error {
    let again = "run `keypadd invite` there again";
    let cause = error.to_string();
    match error {
        ClientError::NotPaired { .. } => Error::new(Exit::Authentication, cause)
            .hint(format!("{again}, and use the new invitation")),
        ClientError::Auth { server, cause }
            if !matches!(cause, AuthError::Refused(Refusal::NotPinned(_))) =>
        {
            Error::new(Exit::Authentication, format!("{server}: no invitation is waiting there"))
                .hint(format!("it was used, has expired or was interrupted: {again}"))
        }
        ClientError::Unreachable { .. } => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |time| time.as_secs());
            let hint = match now.checked_sub(options.invitation.expires) {
                Some(seconds) => {
                    let ago = humantime::format_duration(Duration::from_secs(seconds));
                    format!("by this host's clock it expired {ago} ago: {again}")
                }
                None => format!(
                    "it was used or has expired, or its UDP port {} is blocked, or that is not its \
                     address (--host there): {again}",
                    options.invitation.pairing.port
                ),
            };
            Error::new(Exit::Unreachable, cause).hint(hint)
        }
        error => explain(error, options.host.public_key(), &[options.invitation.key]),
    }
}
