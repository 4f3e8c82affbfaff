//! What `keypadd connect` makes of flags of ssh.

use keypadd_cli::error::{Error, Exit};
use keypadd_tunnel::{Family, ServerAddresses};

use crate::command_line::{Server, SshFlags};

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

/// Whether only some of the server's addresses will do.
pub(super) fn narrows(flags: &SshFlags) -> bool {
    flags.ipv4 || flags.ipv6
}

/// The server's addresses, as the flags narrow them.
pub(super) fn narrowed(server: ServerAddresses, flags: &SshFlags) -> ServerAddresses {
    let server = match flags.port {
        Some(port) => server.with_default_port(port),
        None => server,
    };
    match (flags.ipv4, flags.ipv6) {
        (true, _) => server.only(Family::V4),
        (_, true) => server.only(Family::V6),
        (false, false) => server,
    }
}
