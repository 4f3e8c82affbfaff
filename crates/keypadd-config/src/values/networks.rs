//! Values that describe the networks behind a peer, and the device that leads to them.

use std::fmt;
use std::net::IpAddr;

use keypadd_network::{Permit, Prefix};

use super::addresses::parsed;
use super::{BadValue, bad};
use crate::quote::{is_private, shown};
use crate::similar::choices;

/// Longest name of a device (IFNAMSIZ in netdevice(7), without the zero byte).
pub(crate) const DEVICE_CHARS_MAX: usize = 15;

/// The smallest MTU, which IPv6 needs (RFC 8200 5), and the largest: a jumbo frame's.
const MTU_MIN: u16 = 1_280;
const MTU_MAX: u16 = 9_200;

/// An address of a device, with the length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceAddress {
    /// The address.
    pub address: IpAddr,
    /// The length.
    pub bits: u8,
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Who makes the routes to a peer's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMode {
    /// The daemon, when it starts.
    Install,
    /// Somebody else.
    None,
}

/// A network: an address and a length.
pub fn network(text: &str) -> Result<Prefix, BadValue> {
    parsed(text, "as in 10.2.0.0/16, 10.2.0.5/32 or 2001:db8:2::/48")
}

/// What a peer may begin in the networks of this host.
pub fn network_permit(text: &str) -> Result<Permit, BadValue> {
    parsed(text, "as in 10.1.0.0/16, 10.1.0.0/16:443, 10.1.0.53/32:udp:53 or 10.1.0.0/16:icmp")
}

/// The name of a network device.
pub fn device_name(text: &str) -> Result<String, BadValue> {
    // What the kernel refuses (dev_valid_name in net/core/dev.c), and `%`, which it expands.
    let is_valid = (1..=DEVICE_CHARS_MAX).contains(&text.len())
        && ![".", ".."].contains(&text)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@".contains(c));
    match is_valid && !is_private(text) {
        true => Ok(text.to_owned()),
        false => Err(bad(
            format!("{} is not a device name", shown(text)),
            format!("up to {DEVICE_CHARS_MAX} letters, digits and -_.@, as in kp-berlin"),
        )),
    }
}

/// An address of a device.
pub fn device_address(text: &str) -> Result<DeviceAddress, BadValue> {
    let parse = || {
        let (address, bits) = text.split_once('/')?;
        let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        (bits <= bits_max).then_some(DeviceAddress { address, bits })
    };
    parse().ok_or_else(|| {
        bad(
            format!("{} is not an address with a prefix length", shown(text)),
            "as in 10.255.0.1/31 or fd00::1/64",
        )
    })
}

/// The MTU of a device.
pub fn device_mtu(text: &str) -> Result<u16, BadValue> {
    match text.parse() {
        Ok(mtu @ MTU_MIN..=MTU_MAX) => Ok(mtu),
        _ => Err(bad(
            format!("{} is not an MTU for a device", shown(text)),
            format!("from {MTU_MIN} to {MTU_MAX}, as in 1400"),
        )),
    }
}

/// Who makes routes, by name.
pub fn route_mode(text: &str) -> Result<RouteMode, BadValue> {
    match text {
        "install" => Ok(RouteMode::Install),
        "none" => Ok(RouteMode::None),
        _ => {
            let hint = choices(text, &["install", "none"]);
            Err(bad(format!("{} is not a mode", shown(text)), hint))
        }
    }
}
