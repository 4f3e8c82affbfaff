//! Flags that people know from ssh.

use clap::Args;

use super::values;

/// Flags of ssh that mean the same here, and one that does not.
#[derive(Debug, Args)]
pub(crate) struct SshFlags {
    /// Use the server's IPv4 addresses only
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Use the server's IPv6 addresses only
    #[arg(short = '6')]
    pub(crate) ipv6: bool,
    /// The server's port, if HOST names none
    #[arg(short = 'p', value_name = "PORT", value_parser = values::port)]
    pub(crate) port: Option<u16>,
    /// Run no command on the server, which keypadd never does
    #[arg(short = 'N', hide = true)]
    pub(crate) no_command: bool,
    /// Go to the background
    #[arg(short = 'f', hide = true)]
    pub(crate) background: bool,
}
