//! What `keypadd connect` makes of flags of ssh.

use keypadd_cli::error::{Error, Exit, shown};
use keypadd_config::values::servers;
use keypadd_tunnel::{DEFAULT_PORT, Family, ServerAddresses};

use crate::command_line::{Server, SshFlags, checked};

/// # Errors
/// Exit 2: a flag has no such meaning here, or with this server.
pub(super) fn check(flags: &SshFlags, server: &Server) -> Result<(), Error> {
    if flags.background {
        return Err(Error::new(Exit::Usage, "-f: keypadd stays in the foreground").hint(
            "start it with `&`, or run it as a service, as examples/systemd and \
             docs/operations.md show",
        ));
    }
    match server {
        Server::Named(name) if flags.port.is_some() => {
            let cause = format!("-p: @{name} has its port in the configuration file");
            Err(Error::new(Exit::Usage, cause).hint("leave out -p, or name a host"))
        }
        Server::Named(_) | Server::At(_) => Ok(()),
    }
}

/// The addresses of a server; -p is the port of those without one.
///
/// # Errors
/// Exit 2: they all have one.
pub(super) fn addresses(typed: &str, flags: &SshFlags) -> Result<ServerAddresses, Error> {
    let at = |port| checked("HOST[:PORT]|@NAME", servers(typed, port));
    let Some(port) = flags.port else { return at(DEFAULT_PORT) };
    let addresses = at(port)?;
    match addresses == at(port ^ 1)? {
        true => Err(Error::new(Exit::Usage, format!("-p: {} has its port already", shown(typed)))
            .hint("leave out one of the two")),
        false => Ok(addresses),
    }
}

/// Whether only some of the server's addresses will do.
pub(super) fn narrows(flags: &SshFlags) -> bool {
    flags.ipv4 || flags.ipv6
}

/// The server's addresses, as the flags narrow them.
pub(super) fn narrowed(server: ServerAddresses, flags: &SshFlags) -> ServerAddresses {
    match (flags.ipv4, flags.ipv6) {
        (true, _) => server.only(Family::V4),
        (_, true) => server.only(Family::V6),
        (false, false) => server,
    }
}
