//! Lists the arms: what each needs, and the shell lines that bring its tunnel up at a gateway.
//!
//! Every arm has its defaults and the cipher that its row names; nothing is tuned. Scripts run in
//! the directory of the arm's keys with these variables: `near_ip` and `far_ip`, the gateways as
//! they reach each other. A gateway's script also has its `side` (near or far) and the `other`,
//! `me` and `them` (their addresses), `inner` and `their_inner` (addresses inside the tunnel),
//! `net` and `their_net` (the networks behind them), `dev` (the name of its device), and `daemon`,
//! which starts a program in the background. Knows no measurements.

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
    /// Brings the tunnel up at a gateway, as [`NetworkArm`] says; parts of one script.
    pub(super) up: &'static [&'static str],
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

const KERNEL: &str = "uname -sr";
const CHACHA: &str = "ChaCha20-Poly1305";
const WG: Need = need("wg", "apt-get install wireguard-tools");

/// The kernel does it all.
const NO_DAEMON: &str = "daemon sleep infinity";

const KEYPADD_KEYS: &str = "
for side in near far; do keypadd keygen $side.key >$side.pub 2>/dev/null; done";

const KEYPADD_UP: &str = r#"
case $side in
  near) role="endpoint = \"$them:4433\"" listen=;;
  far) role="permit-networks = [\"$net\"]" listen="listen = \"$me:4433\"";;
esac
(umask 077; cat >$side.toml <<END
key = "$side.key"
$listen
[peer.$other]
public-key = "$(cat $other.pub)"
$role
networks = ["$their_net"]
device = "$dev"
address = ["$inner/30"]
routes = "install"
END
)
daemon keypadd run --config $side.toml
until ip route | grep -q $their_net; do sleep 0.05; done"#;

const WIREGUARD_KEYS: &str = "
for side in near far; do wg genkey >$side.key; wg pubkey <$side.key >$side.pub; done";

const WIREGUARD_UP: &str = "
until [ -S /run/wireguard/$dev.sock ]; do sleep 0.05; done
wg set $dev listen-port 51820 private-key $side.key peer $(cat $other.pub) \
  allowed-ips $their_net endpoint $them:51820
ip address add $inner/30 dev $dev
ip link set $dev mtu 1420 up
ip route add $their_net dev $dev";

const ROUTE_WHEN_UP: &str = "
until ip route add $their_net dev $dev 2>/dev/null; do sleep 0.05; done";

const OPENVPN: &[Need] =
    &[need("openvpn", "apt-get install openvpn"), need("openssl", "apt-get install openssl")];
const OPENVPN_VERSION: &str = "openvpn --version | cut -d' ' -f1,2";

const OPENVPN_KEYS: &str = "
for side in near far; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=$side -keyout $side.key -out $side.crt 2>/dev/null
  openssl x509 -in $side.crt -noout -fingerprint -sha256 | cut -d= -f2 >$side.print
done";

const OPENVPN_UP: &str = r#"
case $side in near) role=--tls-client;; far) role="--tls-server --dh none";; esac
daemon openvpn --dev $dev --dev-type tun --proto udp4 --local $me --remote $them $role \
  --cert $side.crt --key $side.key --peer-fingerprint $(cat $other.print) \
  --ifconfig $inner $their_inner --disable-dco $ciphers"#;

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

const STRONGSWAN_UP: &str = r#"
cat >$side.strongswan.conf <<END
charon {
  load = random nonce openssl hmac kdf vici kernel-libipsec kernel-netlink socket-default
  filelog { stderr { default = 0 } }
}
swanctl { load = random openssl }
END
cat >$side.swanctl.conf <<END
connections { lab {
  version = 2
  local_addrs = $me
  remote_addrs = $them
  proposals = $ike
  local { auth = psk }
  remote { auth = psk }
  children { lab {
    local_ts = $net
    remote_ts = $their_net
    esp_proposals = $esp
  } }
} }
secrets { ike { secret = "$(cat secret)" } }
END
export STRONGSWAN_CONF=$PWD/$side.strongswan.conf
daemon /usr/lib/ipsec/charon
until [ -S /run/charon.vici ]; do sleep 0.05; done
swanctl --load-all --file $PWD/$side.swanctl.conf
case $side in
  near) until swanctl --initiate --child lab --timeout 2; do sleep 0.2; done;;
  far) until swanctl --list-sas | grep -q INSTALLED; do sleep 0.05; done;;
esac"#;

const TINC_KEYS: &str = "
for side in near far; do
  case $side in
    near) ip=$near_ip net=$near_net connect=ConnectTo=far;;
    far) ip=$far_ip net=$far_net connect=;;
  esac
  mkdir -p $side/hosts
  printf 'Name=%s\nMode=router\nInterface=tinc-%s\n%s\n' $side $side $connect >$side/tinc.conf
  printf 'Address=%s\nSubnet=%s\nCipher=aes-256-cbc\nDigest=sha256\n' $ip $net >$side/hosts/$side
  tincd -c $side -K 2048 </dev/null 2>/dev/null
done
cp near/hosts/near far/hosts/; cp far/hosts/far near/hosts/";

const TINC_UP: &str = "
daemon tincd -c $side -D --pidfile=$side/pid
until ip link show $dev >/dev/null 2>&1; do sleep 0.05; done
ip address add $inner/30 dev $dev
ip link set $dev up
ip route add $their_net dev $dev";

const QUINCY: &[Need] = &[
    need("quincy-server", "cargo install --locked quincy-server@3.1.1"),
    need("quincy-client", "cargo install --locked quincy-client@3.1.1"),
    need("quincy-identity", "cargo install --locked quincy-identity@3.1.1"),
    need("nft", "apt-get install nftables"),
];

const QUINCY_KEYS: &str = "
for side in near far; do
  quincy-identity noise genkey >$side.key
  quincy-identity noise pubkey <$side.key >$side.pub
done";

/// The server gives addresses to clients and knows no networks behind them: the near gateway
/// hides its network behind its own address.
const QUINCY_UP: &str = r#"
cat >users.toml <<END
[users.near]
authorized_keys = ["$(cat near.pub)"]
END
case $side in
far)
  cat >far.toml <<END
name = "$dev"
tunnel_network = "10.86.4.1/24"
bind_address = "$me"
bind_port = 55555
users_file = "users.toml"
[protocol]
mode = "noise"
key_exchange = "Standard"
private_key = "$(cat far.key)"
[connection]
mtu = 1400
[log]
level = "error"
END
  daemon quincy-server --config-path far.toml
  until ip address show | grep -q 10.86.4.1; do sleep 0.05; done;;
near)
  cat >near.toml <<END
connection_string = "$them:55555"
[protocol]
mode = "noise"
key_exchange = "Standard"
private_key = "$(cat near.key)"
server_public_key = "$(cat far.pub)"
[connection]
mtu = 1400
[network]
routes = ["$their_net"]
[log]
level = "error"
END
  daemon quincy-client --config-path near.toml
  until ip route | grep -q $their_net; do sleep 0.05; done
  nft add table ip lab
  nft add chain ip lab out '{ type nat hook postrouting priority 100; }'
  nft add rule ip lab out oifname != outside oifname != inside masquerade;;
esac"#;

/// All arms, in the order of tables.
pub(super) const ARMS: [NetworkArm; 12] = [
    NetworkArm {
        name: PLAIN,
        protection: "none: plain routing",
        is_clear: true,
        needs: &[],
        version: KERNEL,
        prepare: "",
        up: &["ip route add $their_net via $them", "\n", NO_DAEMON],
    },
    NetworkArm {
        name: VXLAN,
        protection: "none: a tunnel without cryptography",
        is_clear: true,
        needs: &[],
        version: KERNEL,
        prepare: "",
        up: &[
            "ip link add $dev type vxlan id 7 local $me remote $them dstport 4789 dev outside
ip address add $inner/30 dev $dev
ip link set $dev up
ip route add $their_net via $their_inner
",
            NO_DAEMON,
        ],
    },
    NetworkArm {
        name: "keypadd",
        protection: "QUIC, AES-256-GCM",
        is_clear: false,
        needs: &[need("keypadd", "cargo build --release")],
        version: "keypadd --version",
        prepare: KEYPADD_KEYS,
        up: &[KEYPADD_UP],
    },
    NetworkArm {
        name: "boringtun",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("boringtun-cli", "cargo install --locked boringtun-cli@0.7.1"), WG],
        version: "boringtun-cli --version",
        prepare: WIREGUARD_KEYS,
        // More threads reorder packets, and are slower.
        up: &[
            "export WG_SUDO=1; daemon boringtun-cli -f --disable-drop-privileges -t 1 $dev",
            WIREGUARD_UP,
        ],
    },
    NetworkArm {
        name: "gotatun",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("gotatun", "cargo install --locked gotatun-cli@0.10.2"), WG],
        version: "gotatun --version",
        prepare: WIREGUARD_KEYS,
        up: &["export WG_SUDO=1; daemon gotatun -f $dev", WIREGUARD_UP],
    },
    NetworkArm {
        name: "wireguard-go",
        protection: CHACHA,
        is_clear: false,
        needs: &[need("wireguard-go", "apt-get install wireguard-go"), WG],
        version: "wireguard-go --version",
        prepare: WIREGUARD_KEYS,
        up: &["daemon wireguard-go -f $dev", WIREGUARD_UP],
    },
    NetworkArm {
        name: "openvpn",
        protection: "AES-256-GCM",
        is_clear: false,
        needs: OPENVPN,
        version: OPENVPN_VERSION,
        prepare: OPENVPN_KEYS,
        up: &["ciphers='--data-ciphers AES-256-GCM'", OPENVPN_UP, ROUTE_WHEN_UP],
    },
    NetworkArm {
        name: "openvpn-3des",
        protection: "3DES-CBC, HMAC-SHA-1",
        is_clear: false,
        needs: OPENVPN,
        version: OPENVPN_VERSION,
        prepare: OPENVPN_KEYS,
        up: &["ciphers='--data-ciphers DES-EDE3-CBC --auth SHA1'", OPENVPN_UP, ROUTE_WHEN_UP],
    },
    NetworkArm {
        name: "strongswan",
        protection: "AES-256-GCM, in user space (kernel-libipsec)",
        is_clear: false,
        needs: STRONGSWAN,
        version: STRONGSWAN_VERSION,
        prepare: STRONGSWAN_SECRET,
        up: &["ike=aes256-sha256-x25519 esp=aes256gcm16", STRONGSWAN_UP],
    },
    NetworkArm {
        name: "strongswan-3des",
        protection: "3DES-CBC, HMAC-SHA-1, in user space (kernel-libipsec)",
        is_clear: false,
        needs: STRONGSWAN,
        version: STRONGSWAN_VERSION,
        prepare: STRONGSWAN_SECRET,
        up: &["ike=3des-sha1-modp1024 esp=3des-sha1", STRONGSWAN_UP],
    },
    NetworkArm {
        name: "tinc",
        protection: "AES-256-CBC, HMAC-SHA-256 cut to 4 bytes",
        is_clear: false,
        needs: &[need("tincd", "apt-get install tinc")],
        version: "tincd --version",
        prepare: TINC_KEYS,
        up: &[TINC_UP],
    },
    NetworkArm {
        name: "quincy",
        protection: "QUIC, Noise; the client's network behind NAT",
        is_clear: false,
        needs: QUINCY,
        version: "cargo install --list | grep quincy-server | cut -d: -f1",
        prepare: QUINCY_KEYS,
        up: &[QUINCY_UP],
    },
];
