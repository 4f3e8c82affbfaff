//! Checks what peers' networks need of this host: TUN devices, routes, forwarding, and that no peer
//! has a network that this host is in.

mod device;

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use keypadd_cli::error::{Error, system};
use keypadd_config::values::RouteMode;
use keypadd_config::{Config, Networks, Outgoing};
use keypadd_network::Prefix;
use keypadd_tunnel::{Host, ServerEntry};

use crate::daemon::networks::{OVERLAP_HINT, overlaps, peer_routes};

use super::finding::{Finding, Findings};
use super::host::output;

use device::{Device, Rights};

/// What is checked for all peers.
const CHECK: &str = "networks";

/// # Errors
/// Exit 1: standard output fails.
pub(super) fn check(config: &Config, findings: &mut Findings) -> Result<(), Error> {
    let all: Vec<_> = config.peers.iter().filter_map(|peer| peer.networks.as_ref()).collect();
    if all.is_empty() {
        return Ok(());
    }
    let routes = peer_routes(config);
    let devices: Vec<_> = all.iter().map(|networks| networks.device.as_str()).collect();
    let rights = Rights::of_this_user();
    findings.add([tun()])?;
    for peer in &config.peers {
        let Some(networks) = &peer.networks else { continue };
        let check = format!("networks of {}", peer.name);
        let device = Device::read(networks);
        let exists = device.is_some();
        findings.add(device::findings(&check, networks, device, rights))?;
        if exists {
            let is_its = |address| routes.peer_of(address).is_some_and(|its| **its == *peer.name);
            findings.add(routed(&check, networks, is_its, Way::to))?;
        }
        for address in peer.outgoing.as_ref().map_or_else(Vec::new, endpoints) {
            findings.add(endpoint(&check, address, &devices, Way::to(address)))?;
        }
    }
    for is_v4 in [true, false] {
        let mut prefixes = all.iter().flat_map(|networks| &networks.prefixes);
        let is_used = prefixes.any(|prefix| prefix.first().is_ipv4() == is_v4);
        findings.add(is_used.then(|| forwarding(is_v4)))?;
    }
    let overlaps = overlaps(config);
    findings.add(overlaps.into_iter().map(|line| Finding::warn(CHECK, line, OVERLAP_HINT)))
}

/// Whether devices can be opened here at all. Opening this file makes none yet.
fn tun() -> Finding {
    const FILE: &str = "/dev/net/tun";
    match File::options().read(true).write(true).open(FILE) {
        Ok(_) => Finding::ok(CHECK, format!("{FILE} can be opened")),
        Err(error) => Finding::fail(
            CHECK,
            format!("{FILE}: {}", system(&error)),
            "load the module `tun`; a container needs --device /dev/net/tun, a service the lines \
             of examples/systemd/keypadd-networks.conf",
        ),
    }
}

/// How packets to an address leave this host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Device(String),
    /// There is no route.
    None,
    /// There is no ip(8) to ask.
    Unknown,
}

impl Way {
    /// Asks the kernel, whose answer includes rules and tables of their own.
    fn to(address: IpAddr) -> Self {
        match output("ip", &["route", "get", &address.to_string()]) {
            Some(answer) => Self::read(&answer),
            None => Self::Unknown,
        }
    }

    /// Reads the answer of ip(8): `10.2.0.1 via 10.1.0.1 dev eth0 src 10.1.0.5`.
    fn read(answer: &str) -> Self {
        let mut words = answer.split_whitespace().skip_while(|word| *word != "dev").skip(1);
        words.next().map_or(Self::None, |device| Self::Device(device.to_owned()))
    }
}

/// Whether packets to a peer's networks go to its device. `is_its`: whether an address is behind
/// this peer, and not in a smaller network of another one.
fn routed(
    check: &str,
    networks: &Networks,
    is_its: impl Fn(IpAddr) -> bool,
    way_to: impl Fn(IpAddr) -> Way,
) -> Vec<Finding> {
    let Networks { prefixes, device, routes, .. } = networks;
    let (mut right, mut findings) = (Vec::new(), Vec::new());
    for prefix in prefixes {
        let address = sample(prefix);
        if !is_its(address) {
            continue;
        }
        let found = match way_to(address) {
            Way::Device(way) if way == *device => {
                right.push(prefix.to_string());
                continue;
            }
            Way::Device(way) => format!("packets to {prefix} leave by {way}, not by {device}"),
            Way::None => format!("there is no route to {prefix}"),
            Way::Unknown => {
                return vec![Finding::ok(check, "routes not checked: `ip` does not run")];
            }
        };
        let fix = match routes {
            RouteMode::Install => "restart the daemon, which installs routes at startup".into(),
            RouteMode::None => format!("ip route add {prefix} dev {device}"),
        };
        findings.push(Finding::warn(check, found, fix));
    }
    if !right.is_empty() {
        let found = format!("packets to {} go to {device}", right.join(", "));
        findings.push(Finding::ok(check, found));
    }
    findings
}

/// An address that stands for all of a network: the first of a host in it. For all of a family, an
/// address of documentation (RFC 5737, RFC 3849), which only a default route leads to.
fn sample(prefix: &Prefix) -> IpAddr {
    let is_all = prefix.bits() == 0;
    let next: IpAddr = match prefix.first() {
        IpAddr::V4(_) if is_all => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) if is_all => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() | 1).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | 1).into(),
    };
    if next < prefix.last() { next } else { prefix.first() }
}

/// The addresses of a peer that can be found quickly.
fn endpoints(outgoing: &Outgoing) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for entry in outgoing.endpoint.all() {
        let ServerEntry::Address(address) = entry else { continue };
        match &address.host {
            Host::Address(address) => addresses.push(*address),
            Host::Name(name) => {
                let answer = output("getent", &["ahosts", name]).unwrap_or_default();
                let words = answer.lines().filter_map(|line| line.split_whitespace().next());
                addresses.extend(words.filter_map(|word| word.parse::<IpAddr>().ok()));
            }
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Whether the tunnel's own packets go to an endpoint without the tunnel.
fn endpoint(check: &str, address: IpAddr, devices: &[&str], way: Way) -> Option<Finding> {
    match way {
        Way::Device(way) if devices.contains(&way.as_str()) => Some(Finding::fail(
            check,
            format!("the route to the endpoint {address} leads into {way}, which is the tunnel"),
            format!("ip route add {address} via GATEWAY, where GATEWAY is this host's router"),
        )),
        Way::Device(way) => {
            Some(Finding::ok(check, format!("the endpoint {address} is reached by {way}")))
        }
        // What the check of the path says.
        Way::None | Way::Unknown => None,
    }
}

/// Whether this host passes packets on for hosts behind it.
fn forwarding(is_v4: bool) -> Finding {
    let (family, setting) = match is_v4 {
        true => ("IPv4", "net.ipv4.ip_forward"),
        false => ("IPv6", "net.ipv6.conf.all.forwarding"),
    };
    let file = Path::new("/proc/sys").join(setting.replace('.', "/"));
    match fs::read_to_string(file).as_deref().map(str::trim) {
        Ok("0") => Finding::warn(
            CHECK,
            format!("this host does not forward {family}: hosts behind it cannot use the tunnel"),
            format!("sysctl -w {setting}=1, unless no hosts are behind this one"),
        ),
        Ok(_) => Finding::ok(CHECK, format!("this host forwards {family}")),
        Err(_) => Finding::ok(CHECK, format!("forwarding not checked: {setting} cannot be read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(keys: &str) -> Networks {
        let file = format!(
            "[peer.b]\npublic-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\n\
             endpoint = \"b.example\"\nnetworks = [\"10.2.0.0/16\", \"10.3.0.0/16\"]\n{keys}"
        );
        Config::read(&file, u64::MAX).unwrap().peers.remove(0).networks.unwrap()
    }

    /// The verdict and text of each finding.
    fn told(findings: impl IntoIterator<Item = Finding>) -> Vec<String> {
        let told = |finding| {
            let value = serde_json::to_value::<Finding>(finding).unwrap();
            let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} | {}", text("verdict"), text("found"), text("fix"))
        };
        findings.into_iter().map(told).collect()
    }

    #[test]
    fn a_route_that_misses_the_device_is_told_with_the_command_that_makes_it() {
        let to = |device: &str| Way::Device(device.into());
        let half = |address: IpAddr| match address.to_string().as_str() {
            "10.2.0.1" => to("kp-b"),
            _ => to("eth0"),
        };
        assert_eq!(
            told(routed("b", &networks(""), |_| true, half)),
            [
                "warn packets to 10.3.0.0/16 leave by eth0, not by kp-b | ip route add 10.3.0.0/16 \
                 dev kp-b",
                "ok packets to 10.2.0.0/16 go to kp-b | ",
            ]
        );
        let none = told(routed("b", &networks("routes = \"install\""), |_| true, |_| Way::None));
        assert_eq!(none.len(), 2);
        assert!(none[0].starts_with("warn there is no route to 10.2.0.0/16 | restart"), "{none:?}");
        // An address in a smaller network of another peer says nothing about this one's.
        assert!(routed("b", &networks(""), |_| false, |_| Way::None).is_empty());
    }

    #[test]
    fn a_route_to_the_endpoint_through_a_device_of_a_peer_fails() {
        let told = |way: &str| {
            let way = Way::Device(way.into());
            let found = endpoint("b", "192.0.2.7".parse().unwrap(), &["kp-b", "kp-c"], way);
            told(found).remove(0)
        };
        for device in ["kp-b", "kp-c"] {
            let said = told(device);
            assert!(said.starts_with("fail the route to the endpoint 192.0.2.7 leads"), "{said}");
            assert!(said.contains("| ip route add 192.0.2.7 via GATEWAY"), "{said}");
        }
        assert_eq!(told("eth0"), "ok the endpoint 192.0.2.7 is reached by eth0 | ");
    }

    #[test]
    fn the_device_is_read_from_the_answer_of_ip() {
        for (answer, device) in [
            ("10.2.0.1 dev kp-b src 10.255.0.1 uid 0 \n    cache ", Some("kp-b")),
            ("192.0.2.7 via 10.1.0.1 dev eth0 src 10.1.0.5 uid 0 \n", Some("eth0")),
            ("local 10.1.0.5 dev lo table local src 10.1.0.5 uid 0", Some("lo")),
            ("", None),
        ] {
            let way = device.map_or(Way::None, |device| Way::Device(device.into()));
            assert_eq!(Way::read(answer), way, "{answer}");
        }
    }

    #[test]
    fn a_network_is_represented_by_an_address_of_a_host_in_it() {
        for (prefix, address) in [
            ("10.2.0.0/16", "10.2.0.1"),
            ("10.2.0.4/30", "10.2.0.5"),
            ("10.2.0.6/31", "10.2.0.6"),
            ("10.2.0.7/32", "10.2.0.7"),
            ("0.0.0.0/0", "192.0.2.1"),
            ("fd02::/48", "fd02::1"),
            ("fd02::2/128", "fd02::2"),
            ("::/0", "2001:db8::1"),
        ] {
            let prefix: Prefix = prefix.parse().unwrap();
            assert_eq!(sample(&prefix), address.parse::<IpAddr>().unwrap(), "{prefix}");
        }
    }
}
