//! Reads how many local ports this host has for connections to one address, and when it uses one
//! again whose connection it has closed (tcp(7), ip(7)).

use std::{fs, net::SocketAddr, str::FromStr, time::Duration};

/// How long the end that closes a connection first keeps its port (Linux's `TCP_TIMEWAIT_LEN`).
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(60);

/// How long it does if the kernel may use the port again: until the next second after the last
/// packet (`tcp_twsk_unique`), by a clock of seconds.
pub(crate) const REUSE_TIME: Duration = Duration::from_secs(2);

/// What Linux has unless somebody changes it.
const RANGE: (usize, usize) = (32_768, 60_999);

/// For which connections the kernel uses a port again before TIME-WAIT is over
/// (`net.ipv4.tcp_tw_reuse`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortReuse {
    /// 0.
    Never,
    /// 2, the default: those to this host.
    Loopback,
    /// 1: all whose other end sends timestamps (RFC 7323), as nearly every system does.
    Always,
}

/// The local ports of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPorts {
    /// Ports for connections to one address and port.
    pub count: usize,
    /// When one is used again.
    pub reuse: PortReuse,
}

impl HostPorts {
    /// No limit.
    pub const UNLIMITED: Self = Self { count: usize::MAX, reuse: PortReuse::Always };

    /// The ports of this host, now: a later change of the kernel's settings is not noticed. What
    /// cannot be read is what Linux has by default.
    pub fn of_this_host() -> Self {
        Self::read(|name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok())
    }

    fn read(setting: impl Fn(&str) -> Option<String>) -> Self {
        let numbers = |name| -> Option<Vec<usize>> {
            setting(name)?.split_whitespace().map(FromStr::from_str).collect::<Result<_, _>>().ok()
        };
        let (low, high) = match numbers("ip_local_port_range").as_deref() {
            Some(&[low, high]) => (low, high),
            _ => RANGE,
        };
        let has_timestamps = numbers("tcp_timestamps").is_none_or(|it| it != [0]);
        let reuse = match numbers("tcp_tw_reuse").as_deref() {
            _ if !has_timestamps => PortReuse::Never,
            Some([0]) => PortReuse::Never,
            Some([1]) => PortReuse::Always,
            _ => PortReuse::Loopback,
        };
        Self { count: (high + 1).saturating_sub(low), reuse }
    }

    /// How long a connection to this target keeps its port after this end has closed it first.
    pub(crate) fn kept_for(&self, target: SocketAddr) -> Duration {
        let is_reused = match self.reuse {
            PortReuse::Never => false,
            PortReuse::Loopback => target.ip().to_canonical().is_loopback(),
            PortReuse::Always => true,
        };
        if is_reused { REUSE_TIME } else { TIME_WAIT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_settings_say_how_many_ports_there_are_and_when_one_is_used_again() {
        let read = |range: &str, timestamps: &str, reuse: &str| {
            HostPorts::read(|name| {
                let text = match name {
                    "ip_local_port_range" => range,
                    "tcp_timestamps" => timestamps,
                    _ => reuse,
                };
                (!text.is_empty()).then(|| format!("{text}\n"))
            })
        };
        for (range, timestamps, reuse, count, expected) in [
            ("32768\t60999", "1", "2", 28_232, PortReuse::Loopback),
            ("50000\t50001", "1", "1", 2, PortReuse::Always),
            ("50000\t50000", "1", "0", 1, PortReuse::Never),
            ("32768\t60999", "0", "1", 28_232, PortReuse::Never),
            ("", "", "", 28_232, PortReuse::Loopback),
            ("60999\t32768", "1", "2", 0, PortReuse::Loopback),
        ] {
            let expected = HostPorts { count, reuse: expected };
            assert_eq!(read(range, timestamps, reuse), expected, "{range} {timestamps} {reuse}");
        }
    }

    #[test]
    fn a_port_is_kept_for_a_minute_unless_the_kernel_uses_it_again() {
        let [local, mapped, remote] = ["127.0.0.1:1", "[::ffff:127.0.0.1]:1", "192.0.2.1:1"]
            .map(|target| target.parse().unwrap());
        for (reuse, kept) in [
            (PortReuse::Never, [TIME_WAIT; 3]),
            (PortReuse::Loopback, [REUSE_TIME, REUSE_TIME, TIME_WAIT]),
            (PortReuse::Always, [REUSE_TIME; 3]),
        ] {
            let ports = HostPorts { count: 1, reuse };
            assert_eq!([local, mapped, remote].map(|target| ports.kept_for(target)), kept);
        }
    }
}
