//! Lists the arms: keypadd and kernel TCP with each congestion controller, and stunnel over kernel
//! TCP.

use std::path::Path;

use testbed::TwoHosts;
use testbed::path::DEVICE;
use testbed::tunnel::{Arm, Kind};

/// keypadd with its defaults: the arm that the goals are about.
pub(super) const DEFAULT: &str = "keypadd";

/// keypadd with 3DES and a pool, if it was asked for.
pub(super) const TRIPLE_DES: &str = "keypadd-3des";

/// Flags of that arm: the bitsliced backend is the default.
const TRIPLE_DES_FLAGS: &str =
    "--suite 3des-ctr-hmac-sha1 --allow-legacy --pool on --pool-budget 64MiB";

/// Kernel TCP's congestion control for a keypadd arm, which sends no TCP on the path.
const LOCAL: &str = "cubic";

/// Least, first and largest buffer of kernel TCP: the last holds several times 300 Mbit/s x 150 ms.
const BUFFERS: &str = "4096 131072 67108864";

/// One arm.
#[derive(Clone, Debug)]
pub struct PathArm {
    /// Its programs.
    pub(super) tunnel: Arm,
    /// The congestion control that kernel TCP uses on the path.
    kernel: &'static str,
    /// Whether it is a peer of keypadd's.
    pub(super) is_peer: bool,
}

/// Arms by name.
#[derive(Clone, Debug)]
pub struct PathArms {
    /// Names; see [`PathArms::NAMES`].
    pub names: Vec<String>,
    /// More keypadd arms: a name and flags for both ends.
    pub extra: Vec<(String, String)>,
}

impl PathArms {
    /// All named arms, the default ones first.
    pub const NAMES: [&'static str; 7] = [
        DEFAULT,
        "keypadd-cubic",
        "tcp-cubic",
        "tcp-bbr",
        "stunnel-cubic",
        "stunnel-bbr",
        TRIPLE_DES,
    ];

    /// How many of them run if none are named: 3DES is optional.
    pub const DEFAULTS: usize = 6;

    /// The arms, with this keypadd.
    ///
    /// # Errors
    /// One line: an unknown or repeated name.
    pub fn read(&self, keypadd: &Path) -> Result<Vec<PathArm>, String> {
        let mut arms: Vec<PathArm> = Vec::new();
        let extra = self.extra.iter().map(|(name, flags)| (name, Some(flags)));
        for (name, flags) in self.names.iter().map(|name| (name, None)).chain(extra) {
            if arms.iter().any(|arm| arm.tunnel.name == *name) {
                return Err(format!("arm {name} is given twice"));
            }
            let ours = |flags| (Kind::keypadd(keypadd, flags), LOCAL);
            let (kind, kernel) = match (flags, name.as_str()) {
                (Some(flags), _) => ours(flags.as_str()),
                (None, DEFAULT) => ours(""),
                (None, "keypadd-cubic") => ours("--congestion cubic"),
                (None, TRIPLE_DES) => ours(TRIPLE_DES_FLAGS),
                (None, "tcp-cubic") => (Kind::Direct, "cubic"),
                (None, "tcp-bbr") => (Kind::Direct, "bbr"),
                (None, "stunnel-cubic") => (Kind::Stunnel, "cubic"),
                (None, "stunnel-bbr") => (Kind::Stunnel, "bbr"),
                (None, _) => {
                    let known = Self::NAMES.join(", ");
                    return Err(format!("{name} is not an arm: expected {known}"));
                }
            };
            let is_peer = !matches!(kind, Kind::Keypadd { .. });
            let tunnel = Arm { name: name.clone(), kind };
            arms.push(PathArm { tunnel, kernel, is_peer });
        }
        Ok(arms)
    }
}

impl PathArm {
    /// Its name in tables.
    pub fn name(&self) -> &str {
        &self.tunnel.name
    }

    /// What it is, in words.
    pub(super) fn words(&self) -> String {
        let name = self.name();
        match &self.tunnel.kind {
            Kind::Keypadd { flags, .. } if flags.is_empty() => format!("{name}: defaults"),
            Kind::Keypadd { flags, .. } => format!("{name}: {}", flags.join(" ")),
            Kind::Direct => format!("{name}: kernel TCP, {}", self.kernel),
            Kind::Stunnel => format!("{name}: stunnel over kernel TCP, {}", self.kernel),
            Kind::Socat | Kind::Ssh => format!("{name}: over kernel TCP, {}", self.kernel),
        }
    }

    /// Makes both hosts' TCP use the arm's congestion control on the path. Set on the route,
    /// because a namespace may choose as its default only what the initial one allows everyone.
    pub(super) fn tune(&self, hosts: &TwoHosts) -> Result<(), String> {
        let network = TwoHosts::NETWORK;
        for (host, address) in [(&hosts.near, TwoHosts::NEAR), (&hosts.far, TwoHosts::FAR)] {
            host.ip(&format!(
                "route replace {network} dev {DEVICE} scope link src {address} congctl {}\n",
                self.kernel
            ))?;
        }
        Ok(())
    }
}

/// Gives both hosts' TCP room for the longest line, no memory of earlier connections, and on
/// loopback a congestion control that never holds back without loss.
pub(super) fn tune(hosts: &TwoHosts) -> Result<(), String> {
    let settings = [
        ("tcp_rmem", BUFFERS),
        ("tcp_wmem", BUFFERS),
        ("tcp_no_metrics_save", "1"),
        ("tcp_congestion_control", "reno"),
    ];
    for host in [&hosts.near, &hosts.far] {
        host.inside(|| {
            settings.iter().try_for_each(|(name, value)| {
                std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
                    .map_err(|error| format!("{name}: {error}"))
            })
        })?;
    }
    Ok(())
}

/// The arms whose congestion control this kernel has; reports the others.
pub(super) fn available(
    arms: &[PathArm],
    hosts: &TwoHosts,
    left_out: &mut Vec<String>,
) -> Result<Vec<usize>, String> {
    let known = hosts.near.inside(|| {
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .map_err(|error| error.to_string())
    })?;
    let mut kept = Vec::new();
    for (index, arm) in arms.iter().enumerate() {
        if known.split_whitespace().any(|it| it == arm.kernel) {
            kept.push(index);
        } else {
            left_out.push(format!("{} is left out: this kernel has no {}", arm.name(), arm.kernel));
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(names: &[&str], extra: &[(&str, &str)]) -> Result<Vec<PathArm>, String> {
        let names = names.iter().map(|it| (*it).to_owned()).collect();
        let extra = extra.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        PathArms { names, extra }.read(Path::new("/k"))
    }

    #[test]
    fn every_name_is_an_arm_and_the_kernels_alone_are_peers() {
        let arms = read(&PathArms::NAMES, &[("x", "--spin 0")]).unwrap();
        let peers: Vec<&str> = arms.iter().filter(|arm| arm.is_peer).map(PathArm::name).collect();
        assert_eq!(peers, ["tcp-cubic", "tcp-bbr", "stunnel-cubic", "stunnel-bbr"]);
        assert_eq!(arms[7].words(), "x: --spin 0");
        assert_eq!(arms[4].words(), "stunnel-cubic: stunnel over kernel TCP, cubic");
    }

    #[test]
    fn unknown_and_repeated_names_are_refused() {
        assert!(read(&["tcp"], &[]).unwrap_err().contains("expected keypadd, keypadd-cubic"));
        assert!(read(&["tcp-bbr", "tcp-bbr"], &[]).unwrap_err().contains("twice"));
        assert!(read(&["keypadd"], &[("keypadd", "-v")]).unwrap_err().contains("twice"));
    }
}
