//! Declares every global key once, as `settings/peer.rs` does for every key of a peer: its type,
//! default, help, reload class and check. Everything else that knows keys reads these tables. To
//! add a key, add an entry, use the field where the setting applies, and run `KEYPADD_WRITE_PAGE=1
//! cargo test -p keypadd-config`.

mod declare;
mod peer;
mod setting;
mod source;
mod suites;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keypadd_keystream::{CipherEngine, Suite, has_aes_gcm};
use keypadd_provider::KeyExchange;
use keypadd_tunnel::{Congestion, KeyLifetime, ListenPermit, Permit, ServerId, SpinShare};

use self::declare::settings;
pub use self::peer::PeerSettings;
pub use self::setting::{Setting, Shown, values_of};
pub use self::source::Source;
use self::suites::SUITES;
pub use self::suites::offered;
use crate::key::{Flag, Kind, Reload};
use crate::values::{LogFormat, PoolMode};

settings! {
    /// The global keys, which `keypadd serve` and `keypadd connect` take as flags.
    Settings in Global;

    "key" => key: maybe PathBuf = file {
        form: "FILE",
        example: "/etc/keypadd/key",
        unset: "`$CREDENTIALS_DIRECTORY/key` if set, else `/etc/keypadd/key` for root, else \
            `~/.config/keypadd/key`",
        flag: Flag::Daemons,
        short: Some('i'),
        help: "This host's private key",
    }
    "listen" => listen: maybe SocketAddr = socket {
        form: "ADDR:PORT",
        example: "[::]:4433",
        unset: "none: no peer can connect to this host",
        flag_default: "[::]:4433",
        reload: Reload::Restart,
        flag: Flag::Serve,
        help: "UDP address to listen on; port 0 picks a free one",
        detail: "[::] includes IPv4.",
    }
    "server-id" => server_id: maybe ServerId = server_id {
        form: "ID",
        example: "0x0123456789abcdef",
        unset: "`$AWS_LBC_QUIC_SERVER_ID` if set",
        reload: Reload::Restart,
        flag: Flag::Serve,
        help: "ID by which a load balancer routes packets to this server: eight bytes, unique \
            among its servers",
        detail: "Connection IDs then contain it, in the plaintext format of QUIC-LB. Each packet \
            to this host then has 5 bytes less room.",
    }
    "permit-open" => permit_open: many Permit = permit {
        kind: Kind::List,
        form: "PATTERN",
        example: "localhost:22",
        flag: Flag::Serve,
        help: "Targets that peers may connect to: HOST:PORT, `HOST:*`, `*:PORT`, CIDR:PORT, `*:*` \
            or /PATH",
        detail: "PORT may be a range such as 8000-8010; /PATH is a unix socket. Names are resolved \
            here; the address checked is the one connected to. `localhost` is 127.0.0.1 and ::1. \
            Names and `*` never match this host's own, loopback, link-local or multicast \
            addresses, nor a cloud's metadata services; CIDRs do, even `0.0.0.0/0`. Only patterns \
            such as `udp:resolver:53` permit UDP.",
    }
    "permit-listen" => permit_listen: many ListenPermit = listen_permit {
        kind: Kind::List,
        form: "PATTERN",
        example: "8080",
        flag: Flag::Serve,
        help: "Where peers may listen on this host (-R): PORT, HOST:PORT, `HOST:*`, `*:PORT`, \
            `*:*` or /PATH",
        detail: "PORT may be a range such as 8000-8010. Without a host it is loopback only; `*` is \
            every address. Only patterns such as `udp:5353` permit UDP.",
    }
    "permit-bench" => permit_bench: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        reload: Reload::Restart,
        flag: Flag::Serve,
        help: "Answer `keypadd bench` from peers, and accept the suites and key exchanges that \
            only it offers",
        detail: "Those protect little or nothing, and reach the bench service only. The daemon is \
            then the program keypadd-bench, found next to keypadd or on PATH.",
    }
    "suite" => suite: many Suite = suite {
        kind: Kind::List,
        form: "NAME",
        example: "aes-256-gcm",
        unset: "aes-256-gcm, aes-128-gcm and chacha20-poly1305",
        is_needed: true,
        flag: Flag::Serve,
        help: "Suites to accept",
        detail: SUITES,
    }
    "kex" => kex: many KeyExchange = kex {
        kind: Kind::List,
        form: "NAME",
        example: "x25519mlkem768",
        unset: "all three",
        is_needed: true,
        flag: Flag::Serve,
        help: "Key exchanges to accept: x25519, x25519mlkem768, secp384r1",
    }
    "pool" => pool: one PoolMode = pool_mode {
        form: "MODE",
        choices: &["auto", "on", "off"],
        example: "off",
        default: "auto",
        flag: Flag::Daemons,
        help: "Whether idle CPU precomputes keystream",
        detail: "`auto` uses it for suites that measure at least 10 % faster with it.",
    }
    "pool-budget" => pool_budget: one usize = pool_budget_of_host within memory {
        form: "SIZE",
        example: "64MiB",
        default: "64MiB",
        flag: Flag::Daemons,
        help: "Memory for precomputed keystream, at least 1MiB",
        detail: "Limited to an eighth of the memory that the process may use, and by default to a \
            sixteenth.",
    }
    "max-fill-cpu" => max_fill_cpu: one u8 = cpu_percent {
        form: "PERCENT",
        example: "20%",
        default: "100%",
        flag: Flag::Daemons,
        help: "CPU limit for the pool filler, in percent of one core",
    }
    "require-locked" => require_locked: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Exit if pool memory cannot be locked",
    }
    "allow-legacy" => allow_legacy: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        flag: Flag::Daemons,
        help: "Allow suites that are no longer secure: DES and 3DES",
    }
    "cipher-backend" => cipher_backend: one CipherEngine = cipher_backend {
        form: "NAME",
        example: "des-crate",
        default: "auto",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Implementation of DES and 3DES: auto, bitslice-{64,128,256,512}, des-crate",
        detail: "`auto` is the fastest that this CPU supports; the others are for measurements. \
            des-crate is slow and not constant-time.",
    }
    "congestion" => congestion: one Congestion = congestion {
        form: "NAME",
        choices: &Congestion::NAMES,
        example: "cubic",
        default: "rate",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Congestion control: rate keeps queues short and tolerates loss, cubic is TCP's",
    }
    "peer-timeout" => peer_timeout: one Duration = peer_timeout {
        form: "DURATION",
        example: "2m",
        default: "30s",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Time without an answer before a connection is lost, 10s to 1h; the lower of the \
            two ends applies",
    }
    "spin" => spin: one SpinShare = spin {
        form: "PERCENT",
        example: "5%",
        default: "2%",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Share of one core that each event loop may spend on polls that find nothing; 0 \
            turns polling off",
        detail: "A loop polls for 80 to 300 us after its last work, to avoid a wake-up; never \
            while it carries bulk data.",
    }
    "loops" => loops: maybe usize = loops {
        kind: Kind::Number,
        form: "NUMBER",
        example: "4",
        unset: "the cores, rounded down to even, from 2 to 8",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Event loops of a server, one thread each, at most 32",
        detail: "A client has at most two.",
    }
    "max-forwards" => max_forwards: one u32 = max_forwards {
        kind: Kind::Number,
        form: "NUMBER",
        example: "10000",
        default: "1024",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Forwarded connections and UDP flows that one session carries at once, each way, at \
            most 32768",
        detail: "The lower limit of the two ends applies. Further connections wait; a new flow \
            displaces the one idle longest.",
    }
    "sandbox" => sandbox: one bool = on_off {
        form: "MODE",
        choices: &["on", "off"],
        example: "off",
        default: "on",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Give up capabilities, files and system calls that the daemon does not need",
        detail: "See docs/security.md.",
    }
    "user" => user: maybe String = user_name {
        form: "NAME",
        example: "keypadd",
        unset: "the user who starts it",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "User to switch to once all sockets are bound; only root can",
    }
    "core-dumps" => core_dumps: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Allow core dumps and debuggers, which expose keys",
    }
    "max-sessions-per-key" => max_sessions_per_key: one u32 = max_sessions {
        kind: Kind::Number,
        form: "NUMBER",
        example: "64",
        default: "16",
        reload: Reload::Restart,
        flag: Flag::Serve,
        help: "Sessions that one key may have at once, at most 1024",
        detail: "A client has one.",
    }
    "connect-timeout" => connect_timeout: one Duration = duration {
        form: "DURATION",
        example: "30s",
        default: "10s",
        reload: Reload::Restart,
        flag: Flag::Connect,
        help: "How long one attempt to connect may take, such as 10s or 1m",
    }
    "hold" => hold: one Duration = duration_or_zero {
        form: "DURATION",
        example: "1h",
        default: "10m",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "How long connections wait for a peer that is away; 0 resets them at once",
        detail: "The lower of the two ends applies.",
    }
    "key-lifetime" => key_lifetime: one Duration = key_lifetime {
        form: "DURATION",
        example: "2m",
        default: "1h",
        flag: Flag::Daemons,
        help: "Time after which a session agrees on fresh keys by a new handshake; 0 is no limit",
        detail: "The first limit reached at either end counts. Needs `hold`.",
    }
    "key-lifetime-bytes" => key_lifetime_bytes: one u64 = size_or_zero {
        form: "SIZE",
        example: "1GiB",
        default: "64GiB",
        flag: Flag::Daemons,
        help: "Bytes sent and received after which a session agrees on fresh keys; 0 is no limit",
    }
    "drain-timeout" => drain_timeout: one Duration = duration_or_zero {
        form: "DURATION",
        example: "1m",
        default: "10s",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "How long open connections may take to finish on SIGTERM; 0s closes them at once",
        detail: "Ctrl-C or a second signal closes them at once.",
    }
    "metrics" => metrics: maybe SocketAddr = socket {
        form: "ADDR:PORT",
        example: "127.0.0.1:9464",
        reload: Reload::Restart,
        flag: Flag::Daemons,
        help: "Serve Prometheus metrics at http://ADDR:PORT/metrics",
    }
    "log-connections" => log_connections: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        flag: Flag::Daemons,
        help: "Log each forwarded connection when it ends: peer, target, bytes, duration, how it \
            ended",
        detail: "These lines have no rate limit.",
    }
    "log" => log: maybe String = log_filter {
        form: "FILTER",
        example: "info,keypadd_tunnel=debug",
        unset: "`info` for keypadd, errors for libraries",
        reload: Reload::Restart,
        flag: Flag::All,
        help: "Log level, or levels by module such as info,keypadd_tunnel=debug",
    }
    "log-format" => log_format: one LogFormat = log_format {
        form: "FORMAT",
        choices: &["text", "json"],
        example: "json",
        default: "text",
        reload: Reload::Restart,
        flag: Flag::All,
        help: "Log format on standard error",
    }
}

impl Settings {
    /// Limits on how long session keys are used.
    pub fn key_lifetime(&self) -> KeyLifetime {
        KeyLifetime::new(self.key_lifetime.value, self.key_lifetime_bytes.value)
    }

    /// The suites that a server accepts, in order of preference; never empty.
    pub fn suites(&self) -> Vec<Suite> {
        match &self.suite {
            Some(suites) => values_of(suites),
            None => Suite::accepted(has_aes_gcm()).to_vec(),
        }
    }

    /// The key exchanges that a server accepts; never empty.
    pub fn key_exchanges(&self) -> Vec<KeyExchange> {
        self.kex.as_deref().map_or_else(|| KeyExchange::ALL.to_vec(), values_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::values::BadValue;

    /// Sets nothing.
    struct Empty;

    impl Source for Empty {
        fn texts(&mut self, _: &'static Key) -> Option<Vec<(String, Option<usize>)>> {
            None
        }

        fn refuse(&mut self, _: &'static Key, _: Option<usize>, _: BadValue) {}

        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn defaults_are_those_of_the_libraries() {
        let settings = Settings::take(&mut Empty);
        let transport = keypadd_tunnel::TransportSettings::default();
        assert_eq!(settings.congestion.value, transport.congestion);
        assert_eq!(settings.peer_timeout.value, transport.peer_timeout);
        assert_eq!(settings.spin.value, transport.spin);
        assert_eq!(settings.key_lifetime(), KeyLifetime::default());
        assert_eq!(settings.max_forwards.value, transport.forwards_max);
        let key = |name| PeerSettings::KEYS.iter().find(|key| key.name == name).unwrap();
        for suite in offered(None) {
            assert!(key("suite").unset.contains(suite.name()));
        }
        assert_eq!(key("kex").flag_default, KeyExchange::default().to_string());
    }
}
