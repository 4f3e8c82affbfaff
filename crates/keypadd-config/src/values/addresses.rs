//! Values that say where: servers, targets, forwards, permits, sockets, and the key of who is
//! there.

use std::net::SocketAddr;
use std::str::FromStr;

use keypadd_network::{PermitError as NetworkPermitError, PrefixError};
use keypadd_provider::{KeyTextError, PublicKey};
use keypadd_tunnel::{
    AddressError, DynamicForward, ForwardError, ListenPermit, LocalForward, Permit, PermitError,
    RemoteForward, ServerAddress, ServerAddresses, ServerEntry, Target,
};

use super::ranges::{Ranged, ranged};
use super::{BadValue, bad};
use crate::quote::{is_private, shown};

/// Parses an address, a forward or a permit. A text that contains a private key is refused first:
/// as a host name, it would be sent to DNS.
pub(super) fn parsed<T: FromStr<Err: Cause>>(text: &str, hint: &str) -> Result<T, BadValue> {
    parsed_by(str::parse, text, hint)
}

fn parsed_by<T, E: Cause>(
    parse: impl FnOnce(&str) -> Result<T, E>,
    text: &str,
    hint: &str,
) -> Result<T, BadValue> {
    if is_private(text) {
        return Err(bad(format!("{} is not allowed here", shown(text)), hint));
    }
    parse(text).map_err(|error| {
        let message = error.cause();
        match error.quoted() == Some(text) {
            true => bad(message, hint),
            false => bad(format!("{}: {message}", shown(text)), hint),
        }
    })
}

/// What a parse error says.
pub(super) trait Cause {
    /// The message alone, without the text that was parsed.
    fn cause(&self) -> String;

    /// The text that the message quotes, if any, which may be the whole.
    fn quoted(&self) -> Option<&str>;
}

impl Cause for AddressError {
    fn cause(&self) -> String {
        self.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        Some(self.quoted())
    }
}

impl Cause for ForwardError {
    fn cause(&self) -> String {
        self.cause.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        self.cause.quoted()
    }
}

impl Cause for PrefixError {
    fn cause(&self) -> String {
        self.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        Some(self.quoted())
    }
}

impl Cause for NetworkPermitError {
    fn cause(&self) -> String {
        self.cause.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        Some(self.cause.quoted())
    }
}

impl Cause for PermitError {
    fn cause(&self) -> String {
        self.cause.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        self.cause.quoted()
    }
}

/// The forms of a server's address.
const SERVER_FORMS: &str = "HOST or HOST:PORT, as in host.example:4433 or [2001:db8::1]:4433";

/// A server, with port 4433 unless given.
pub fn server(text: &str) -> Result<ServerAddress, BadValue> {
    parsed(text, SERVER_FORMS)
}

/// Where a server is: an address, with port 4433 unless given, or the name of a service.
pub fn server_entry(text: &str) -> Result<ServerEntry, BadValue> {
    parsed(text, SERVER_FORMS)
}

/// Several addresses of servers, with this port unless given, or names of services, separated by
/// commas.
pub fn servers(text: &str, port: u16) -> Result<ServerAddresses, BadValue> {
    parsed_by(|text| ServerAddresses::at_port(text, port), text, SERVER_FORMS)
}

/// A host and a port.
pub fn target(text: &str) -> Result<Target, BadValue> {
    parsed(text, "HOST:PORT, as in localhost:22 or [::1]:22")
}

/// A local forward in ssh's syntax.
pub fn local_forward(text: &str) -> Result<LocalForward, BadValue> {
    parsed(text, "as in 2222:localhost:22, 127.0.0.1:8080:web.example:80 or 5353:udp:resolver:53")
}

/// A local forward, or one for each port of a range.
pub fn local_forwards(text: &str) -> Result<Ranged<LocalForward>, BadValue> {
    ranged(text, local_forward)
}

/// A remote forward in ssh's syntax.
pub fn remote_forward(text: &str) -> Result<RemoteForward, BadValue> {
    parsed(text, "as in 8080:localhost:80, *:8080:/run/web.sock or 5353:udp:resolver:53")
}

/// A remote forward, or one for each port of a range.
pub fn remote_forwards(text: &str) -> Result<Ranged<RemoteForward>, BadValue> {
    ranged(text, remote_forward)
}

/// A dynamic forward: a port for SOCKS.
pub fn dynamic_forward(text: &str) -> Result<DynamicForward, BadValue> {
    parsed(text, "as in 1080 or 127.0.0.1:1080")
}

/// Where a peer may listen.
pub fn listen_permit(text: &str) -> Result<ListenPermit, BadValue> {
    parsed(text, "as in 8080, 8000-8010, 0.0.0.0:*, *:8080, *:*, udp:5353 or /run/web.sock")
}

/// Targets that a peer may connect to.
pub fn permit(text: &str) -> Result<Permit, BadValue> {
    parsed(text, "as in localhost:22, db:8000-8010, *:443, 10.0.0.0/8:5432, udp:resolver:53 or *:*")
}

/// A public key: 44 characters of base64.
pub fn public_key(text: &str) -> Result<PublicKey, BadValue> {
    // The text may be a secret pasted in the wrong place: the message describes it and does not
    // quote it.
    text.parse().map_err(|error: KeyTextError| {
        bad(error.to_string(), "run `keypadd pubkey` on the other host to print its public key")
    })
}

/// An address and a port.
pub fn socket(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_| {
        bad(
            format!("{} is not ADDR:PORT", shown(text)),
            "an IP address and a port, as in 127.0.0.1:4433 or [::]:4433",
        )
    })
}
