//! Every key that the file may hold: its form, its default, whether a reload applies it. The one definition
//! behind reading, suggestions, `keypadd check` and the table in docs/configuration.md.

use Reload::{Applies, Restart};

/// Where a key may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Before the first table.
    Global,
    /// In a `[peer.NAME]`.
    Peer,
}

/// When a change of the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// With `keypadd reload` or SIGHUP.
    Applies,
    /// With a restart.
    Restart,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key, which is also the flag's name.
    pub name: &'static str,
    /// Where it stands.
    pub scope: Scope,
    /// A line of the file that is right.
    pub example: &'static str,
    /// What it holds, in words.
    pub form: &'static str,
    /// What holds without it, in words.
    pub default: &'static str,
    /// When a change takes effect.
    pub reload: Reload,
    /// What it is for.
    pub meaning: &'static str,
}

const fn global(
    name: &'static str,
    example: &'static str,
    form: &'static str,
    default: &'static str,
    reload: Reload,
    meaning: &'static str,
) -> Key {
    Key { name, scope: Scope::Global, example, form, default, reload, meaning }
}

const fn peer(
    name: &'static str,
    example: &'static str,
    form: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, scope: Scope::Peer, example, form, default, reload: Reload::Applies, meaning }
}

/// All of them, in the order in which the documentation lists them.
pub const KEYS: [Key; 32] = [
    global(
        "key",
        "key = \"/etc/keypadd/key\"",
        "path",
        "`$CREDENTIALS_DIRECTORY/key`, else `/etc/keypadd/key` for root, else `~/.config/keypadd/key`",
        Applies,
        "this host's private key; a reload reads the file again, for new handshakes",
    ),
    global(
        "listen",
        "listen = \"[::]:4433\"",
        "`ADDR:PORT`",
        "none: nobody comes in",
        Restart,
        "UDP address for peers that come in; `[::]` takes IPv4 as well",
    ),
    global(
        "permit-open",
        "permit-open = [\"localhost:22\"]",
        "list of patterns",
        "none",
        Applies,
        "what a peer without a `permit-open` of its own may reach",
    ),
    global(
        "permit-listen",
        "permit-listen = [\"8080\"]",
        "list of patterns",
        "none",
        Applies,
        "where a peer without a `permit-listen` of its own may listen on this host",
    ),
    global(
        "permit-bench",
        "permit-bench = true",
        "`true` or `false`",
        "`false`",
        Restart,
        "whether peers that come in may measure: `keypadd bench` is answered, and what only that offers is accepted",
    ),
    global(
        "suite",
        "suite = [\"aes-256-gcm\"]",
        "list of names",
        "every standard suite",
        Applies,
        "suites to accept; the first is offered to dialled peers, without the key `aes-256-gcm`",
    ),
    global(
        "kex",
        "kex = [\"x25519mlkem768\"]",
        "list of names",
        "all three",
        Applies,
        "key exchanges to accept; the first is offered, without the key `x25519mlkem768`",
    ),
    global(
        "allow-legacy",
        "allow-legacy = true",
        "`true` or `false`",
        "`false`",
        Applies,
        "accept suites that are no longer secure: DES and 3DES",
    ),
    global(
        "pool",
        "pool = \"off\"",
        "`\"auto\"`, `\"on\"` or `\"off\"`",
        "`\"auto\"`",
        Applies,
        "whether keystream is made ahead of need by idle CPU; `auto`: for suites for which it pays on this machine",
    ),
    global(
        "pool-budget",
        "pool-budget = \"64MiB\"",
        "size",
        "`\"64MiB\"`",
        Applies,
        "memory for that keystream, at least `1MiB`",
    ),
    global(
        "max-fill-cpu",
        "max-fill-cpu = \"20%\"",
        "percentage",
        "`\"100%\"`",
        Applies,
        "how much of one core may go into making it",
    ),
    global(
        "require-locked",
        "require-locked = true",
        "`true` or `false`",
        "`false`",
        Restart,
        "end rather than keep it in memory that may be swapped out",
    ),
    global(
        "cipher-backend",
        "cipher-backend = \"des-crate\"",
        "name",
        "`\"auto\"`",
        Restart,
        "how DES and 3DES are computed, for measurements: `auto`, `bitslice-{64,128,256,512}`, `des-crate`",
    ),
    global(
        "congestion",
        "congestion = \"bbr\"",
        "`\"cubic\"` or `\"bbr\"`",
        "`\"cubic\"`",
        Restart,
        "congestion control: cubic yields as TCP does, bbr keeps its speed where packets get lost",
    ),
    global(
        "spin",
        "spin = \"5%\"",
        "percentage",
        "`\"2%\"`",
        Restart,
        "share of one core that each event loop may spend on polling before it sleeps; `\"0%\"`: it sleeps at once",
    ),
    global(
        "loops",
        "loops = 4",
        "number",
        "one for each core, from 2 to 8",
        Restart,
        "event loops of a server, a thread each, at most 64; a client has two at most",
    ),
    global(
        "max-forwards",
        "max-forwards = 10000",
        "number",
        "1024",
        Restart,
        "forwarded connections that one session carries at once, each way, at most 32768; both ends have to allow them",
    ),
    global(
        "connect-timeout",
        "connect-timeout = \"10s\"",
        "duration",
        "`\"10s\"`",
        Restart,
        "how long one attempt to reach a dialled peer may take",
    ),
    global(
        "drain-timeout",
        "drain-timeout = \"1m\"",
        "duration",
        "`\"10s\"`",
        Restart,
        "how long open connections may take to finish on SIGTERM; `\"0s\"` cuts them off",
    ),
    global(
        "metrics",
        "metrics = \"127.0.0.1:9464\"",
        "`ADDR:PORT`",
        "none",
        Restart,
        "serve Prometheus metrics at `http://ADDR:PORT/metrics`",
    ),
    global(
        "log",
        "log = \"info,keypadd_tunnel=debug\"",
        "filter",
        "`info` of keypadd, errors of the rest",
        Restart,
        "what is logged: a level, or levels by part; the flag `--log` goes before it",
    ),
    global(
        "log-format",
        "log-format = \"json\"",
        "`\"text\"` or `\"json\"`",
        "`\"text\"`",
        Restart,
        "how logs are written; the flag `--log-format` goes before it",
    ),
    peer(
        "public-key",
        "public-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"",
        "44 characters",
        "needed",
        "the peer's public key",
    ),
    peer(
        "endpoint",
        "endpoint = \"lab.example:4433\"",
        "`HOST[:PORT]`",
        "none: the peer comes in",
        "where the peer is dialled; the port is 4433 unless given",
    ),
    peer(
        "permit-open",
        "permit-open = [\"localhost:22\"]",
        "list of patterns",
        "the global one",
        "what the peer may reach when it comes in; on a peer with an `endpoint`, that it may come in too",
    ),
    peer(
        "permit-listen",
        "permit-listen = [\"8080\"]",
        "list of patterns",
        "the global one",
        "where the peer may listen on this host when it comes in; on a peer with an `endpoint`, as above",
    ),
    peer(
        "pool-budget",
        "pool-budget = \"8MiB\"",
        "size",
        "no limit of its own",
        "memory for keystream that its connections may hold together, of the global `pool-budget`",
    ),
    peer(
        "local",
        "local = [\"2222:localhost:22\"]",
        "list of forwards",
        "none",
        "listen here, connect from there (`-L`); needs an `endpoint`",
    ),
    peer(
        "remote",
        "remote = [\"8080:localhost:80\"]",
        "list of forwards",
        "none",
        "listen there, connect from here (`-R`); needs an `endpoint`",
    ),
    peer(
        "dynamic",
        "dynamic = [\"1080\"]",
        "list of ports",
        "none",
        "a SOCKS5 proxy here, whose targets are connected to from there (`-D`); needs an `endpoint`",
    ),
    peer(
        "suite",
        "suite = \"aes-256-gcm\"",
        "name",
        "the first of the global `suite`",
        "the suite to offer; needs an `endpoint`",
    ),
    peer(
        "kex",
        "kex = \"x25519mlkem768\"",
        "name",
        "the first of the global `kex`",
        "the key exchange to offer; needs an `endpoint`",
    ),
];

/// The key of this name.
pub fn find(scope: Scope, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.scope == scope && key.name == name)
}

/// All keys as the rows of the table in docs/configuration.md.
pub fn table(scope: Scope) -> String {
    let mut text =
        String::from("| key | holds | default | reload | |\n| --- | --- | --- | --- | --- |\n");
    for key in KEYS.iter().filter(|key| key.scope == scope) {
        let Key { name, form, default, meaning, .. } = key;
        let reload = match key.reload {
            Applies => "yes",
            Restart => "restart",
        };
        text += &format!("| `{name}` | {form} | {default} | {reload} | {meaning} |\n");
    }
    text
}
