//! Lists the arms: what each needs, and the shell lines that bring its tunnel up at a gateway.
//!
//! Every arm has its defaults and the cipher that its row names; nothing is tuned. Scripts run in
//! the directory of the arm's keys with these variables: `near_ip` and `far_ip`, the gateways as
//! they reach each other. A gateway's script also has its `side` (near or far) and the `other`,
//! `me` and `them` (their addresses), `inner` and `their_inner` (addresses inside the tunnel),
//! `net` and `their_net` (the networks behind them), `dev` (the name of its device), and `daemon`,
//! which starts a program in the background. Knows no measurements.

use keypadd_keystream::{CipherEngine, MeasureSuite, Protection, Suite};
use keypadd_traffic::TunnelArm;

use self::Up::{Here, Scripts};

/// One way from gateway to gateway.
#[derive(Clone, Debug)]
pub struct NetworkArm {
    /// Its name in tables, and of its directory.
    pub name: &'static str,
    /// What protects a packet.
    pub(super) protection: &'static str,
    /// Whether inner packets are to be seen between the gateways.
    pub(super) is_clear: bool,
    /// Its programs.
    pub(super) needs: &'static [Need],
    /// Prints its version.
    pub(super) version: &'static str,
    /// Makes what all rounds share: keys, certificates.
    pub(super) prepare: &'static str,
    /// What brings the tunnel up.
    pub(super) up: Up,
}

/// What brings a tunnel up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Up {
    /// A script at each gateway, as the head of this file says, in parts.
    Scripts(&'static [&'static str]),
    /// This process, which has both gateways.
    Here(fn() -> TunnelArm),
}

fn here(suite: Protection, pool: bool) -> TunnelArm {
    TunnelArm { suite, pool, engine: CipherEngine::default() }
}

/// A program and what installs it.
#[derive(Debug)]
pub(super) struct Need {
    pub(super) program: &'static str,
    pub(super) install: &'static str,
}

const fn need(program: &'static str, install: &'static str) -> Need {
    Need { program, install }
}

pub(super) const PLAIN: &str = "plain";
pub(super) const VXLAN: &str = "vxlan";
pub(super) const KEYPADD: &str = "keypadd";
pub(super) const KEYPADD_3DES: &str = "keypadd-3des";
/// These differ in packet protection alone.
pub(super) const KEYPADD_POOLED: &str = "keypadd-pooled";
pub(super) const KEYPADD_NULL: &str = "keypadd-null";

const KERNEL: &str = "uname -sr";
const CHACHA: &str = "ChaCha20-Poly1305";
const WG: Need = need("wg", "apt-get install wireguard-tools");

/// The kernel does it all.
const NO_DAEMON: &str = "daemon sleep infinity";

const KEYPADD_ITSELF: &[Need] = &[need("keypadd", "cargo build --release")];
const NO_PROGRAM: &str = "echo the program that measures";
const KEYPADD_VERSION: &str = "keypadd --version";
const KEYPADD_KEYS: &str = include_str!("arms/keypadd.keys.sh");
const KEYPADD_UP: &str = include_str!("arms/keypadd.sh");
const WIREGUARD_KEYS: &str = include_str!("arms/wireguard.keys.sh");
const WIREGUARD_UP: &str = include_str!("arms/wireguard.sh");

const ROUTE_WHEN_UP: &str =
    "until ip route add $their_net dev $dev 2>/dev/null; do sleep 0.05; done";

const OPENVPN: &[Need] =
    &[need("openvpn", "apt-get install openvpn"), need("openssl", "apt-get install openssl")];
const OPENVPN_VERSION: &str = "openvpn --version | cut -d' ' -f1,2";
const OPENVPN_KEYS: &str = include_str!("arms/openvpn.keys.sh");
const OPENVPN_UP: &str = include_str!("arms/openvpn.sh");

const STRONGSWAN: &[Need] = &[
    need(
        "/usr/lib/ipsec/plugins/libstrongswan-openssl.so",
        "apt-get install libstrongswan-standard-plugins",
    ),
    need("/usr/lib/ipsec/charon", "apt-get install strongswan"),
    need(
        "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so",
        "apt-get install libcharon-extra-plugins",
    ),
    need("swanctl", "apt-get install strongswan-swanctl"),
];
const STRONGSWAN_VERSION: &str = "/usr/lib/ipsec/charon --version";
const STRONGSWAN_SECRET: &str = "head -c 24 /dev/urandom | base64 >secret";
const STRONGSWAN_UP: &str = include_str!("arms/strongswan.sh");
const TINC_KEYS: &str = include_str!("arms/tinc.keys.sh");
const TINC_UP: &str = include_str!("arms/tinc.sh");

const QUINCY: &[Need] = &[
    need("quincy-server", "cargo install --locked quincy-server@3.1.1"),
    need("quincy-client", "cargo install --locked quincy-client@3.1.1"),
    need("quincy-identity", "cargo install --locked quincy-identity@3.1.1"),
    need("nft", "apt-get install nftables"),
];

const QUINCY_KEYS: &str = include_str!("arms/quincy.keys.sh");
const QUINCY_UP: &str = include_str!("arms/quincy.sh");

/// All arms, in the order of tables.
pub(super) const ARMS: [NetworkArm; 15] = [
    NetworkArm {
        name: PLAIN,
        protection: "none: plain routing",
        is_clear: true,
        needs: &[],
        version: KERNEL,
        prepare: "",
        up: Scripts(&["ip route add $their_net via $them", NO_DAEMON]),
    },
    NetworkArm {
        name: VXLAN,
        protection: "none: a tunnel without cryptography",
        is_clear: true,
        needs: &[],
        version: KERNEL,
        prepare: "",
        up: Scripts(&[include_str!("arms/vxlan.sh"), NO_DAEMON]),
    },
    NetworkArm {
        name: KEYPADD,
        protection: "QUIC, AES-256-GCM",
        is_clear: false,
        needs: KEYPADD_ITSELF,
        version: KEYPADD_VERSION,
        prepare: KEYPADD_KEYS,
        up: Scripts(&["suite=", KEYPADD_UP]),
    },
    NetworkArm {
        name: KEYPADD_3DES,
        protection: "QUIC, 3DES-CTR, HMAC-SHA-1",
        is_clear: false,
        needs: KEYPADD_ITSELF,
        version: KEYPADD_VERSION,
        prepare: KEYPADD_KEYS,
        up: Scripts(&["suite='suite = \"3des-ctr-hmac-sha1\"'", KEYPADD_UP]),
    },
    NetworkArm {
        name: KEYPADD_POOLED,
        protection: "QUIC, AES-256-GCM with a pool; gateways in the program that measures",
        is_clear: false,
        needs: &[],
        version: NO_PROGRAM,
        prepare: "",
        up: Here(|| here(Suite::AES_256_GCM.protection(), true)),
    },
    NetworkArm {
        name: KEYPADD_NULL,
        protection: "none: QUIC's framing alone; gateways in the program that measures",
        is_clear: true,
        needs: &[],
        version: NO_PROGRAM,
        prepare: "",
        up: Here(|| here(MeasureSuite::NULL.protection(), false)),
    },
    NetworkArm {
        name: "boringtun",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("boringtun-cli", "cargo install --locked boringtun-cli@0.7.1"), WG],
        version: "boringtun-cli --version",
        prepare: WIREGUARD_KEYS,
        // More threads reorder packets, and are slower.
        up: Scripts(&[
            "export WG_SUDO=1; daemon boringtun-cli -f --disable-drop-privileges -t 1 $dev",
            WIREGUARD_UP,
        ]),
    },
    NetworkArm {
        name: "gotatun",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("gotatun", "cargo install --locked gotatun-cli@0.10.2"), WG],
        version: "gotatun --version",
        prepare: WIREGUARD_KEYS,
        up: Scripts(&["export WG_SUDO=1; daemon gotatun -f $dev", WIREGUARD_UP]),
    },
    NetworkArm {
        name: "wireguard-go",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("wireguard-go", "apt-get install wireguard-go"), WG],
        version: "wireguard-go --version",
        prepare: WIREGUARD_KEYS,
        up: Scripts(&["daemon wireguard-go -f $dev", WIREGUARD_UP]),
    },
    NetworkArm {
        name: "openvpn",
        protection: "AES-256-GCM",
        is_clear: false,
        needs: OPENVPN,
        version: OPENVPN_VERSION,
        prepare: OPENVPN_KEYS,
        up: Scripts(&["ciphers='--data-ciphers AES-256-GCM'", OPENVPN_UP, ROUTE_WHEN_UP]),
    },
    NetworkArm {
        name: "openvpn-3des",
        protection: "3DES-CBC, HMAC-SHA-1",
        is_clear: false,
        needs: OPENVPN,
        version: OPENVPN_VERSION,
        prepare: OPENVPN_KEYS,
        up: Scripts(&[
            "ciphers='--data-ciphers DES-EDE3-CBC --auth SHA1'",
            OPENVPN_UP,
            ROUTE_WHEN_UP,
        ]),
    },
    NetworkArm {
        name: "strongswan",
        protection: "AES-256-GCM, in user space (kernel-libipsec)",
        is_clear: false,
        needs: STRONGSWAN,
        version: STRONGSWAN_VERSION,
        prepare: STRONGSWAN_SECRET,
        up: Scripts(&["ike=aes256-sha256-x25519 esp=aes256gcm16", STRONGSWAN_UP]),
    },
    NetworkArm {
        name: "strongswan-3des",
        protection: "3DES-CBC, HMAC-SHA-1, in user space (kernel-libipsec)",
        is_clear: false,
        needs: STRONGSWAN,
        version: STRONGSWAN_VERSION,
        prepare: STRONGSWAN_SECRET,
        up: Scripts(&["ike=3des-sha1-modp1024 esp=3des-sha1", STRONGSWAN_UP]),
    },
    NetworkArm {
        name: "tinc",
        protection: "AES-256-CBC, HMAC-SHA-256 cut to 4 bytes",
        is_clear: false,
        needs: &[need("tincd", "apt-get install tinc")],
        version: "tincd --version",
        prepare: TINC_KEYS,
        up: Scripts(&[TINC_UP]),
    },
    NetworkArm {
        name: "quincy",
        protection: "QUIC, Noise; the client's network behind NAT",
        is_clear: false,
        needs: QUINCY,
        version: "cargo install --list | grep quincy-server | cut -d: -f1",
        prepare: QUINCY_KEYS,
        up: Scripts(&[QUINCY_UP]),
    },
];
