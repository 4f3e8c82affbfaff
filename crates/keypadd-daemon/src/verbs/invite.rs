//! `keypadd invite`: prints an invitation for `keypadd join`, waits for the host that has it, and
//! adds that host to the configuration file. Prints only the invitation on standard output,
//! everything else on standard error.

use std::io::{self, ErrorKind, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keypadd_cli::error::{Error, Exit, bind_hint, one_line, shown, system};
use keypadd_cli::results::print;
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::{NewPeer, Role, Setting, Settings, offered, values, values_of};
use keypadd_provider::{KeyExchange, PairingSecret, inviter_config};
use keypadd_tunnel::{
    BindError, DEFAULT_PORT, Forward, Host, Invitation, Inviter, InviterSettings, Joiner,
    ListenPermit, Permit, ServerAddress,
};
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use crate::command_line::{self, InviteArgs, checked};
use crate::daemon::confine::Confinement;
use crate::daemon::ready::{example_forward, host_name, outward_address};
use crate::verbs::pairing::ThisHost;
use crate::verbs::reload::{Reloaded, reload_file};

/// Name for the other host if this one has no usable name.
const NO_NAME: &str = "far";

/// How often the time is checked: the invitation must not last longer because the host slept.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What an inviting host is started with.
#[derive(Debug)]
pub(crate) struct InviteOptions {
    host: ThisHost,
    name: String,
    permit_open: Vec<Permit>,
    permit_listen: Vec<ListenPermit>,
    /// An example forward that is permitted.
    suggestion: Option<Forward>,
    /// Where to wait.
    listen: SocketAddr,
    /// Whether any port will do if that one is in use.
    any_port: bool,
    /// This host's address, as told to the other one.
    address: Host,
    /// Whether `address` is a guess.
    is_guessed: bool,
    tunnel_port: u16,
    expires: Duration,
    confinement: Confinement,
}

impl InviteOptions {
    /// Reads flags and files, restricts the calling thread to what is needed from then on, before
    /// any other starts, and checks that the files can be changed.
    ///
    /// # Errors
    /// Exit 2: a name that is taken, nothing permitted, or no fixed port. Exit 3: the file or the
    /// key cannot be used. Exit 1: the file cannot be written.
    pub(crate) fn read(args: InviteArgs) -> Result<Self, Error> {
        let name = checked("NAME", values::peer_name(&args.name))?;
        let address =
            args.host.map(|host| checked("--host", command_line::host(&host))).transpose()?;
        let listen = args.listen.map(|it| checked("--listen", values::socket(&it))).transpose()?;
        let expires = checked("--expires", command_line::expires(&args.expires))?;
        let mut flags = args.flags.settings;
        let permit_open = values_of(flags.permit_open.as_deref().unwrap_or_default());
        let permit_listen = values_of(flags.permit_listen.as_deref().unwrap_or_default());
        let host = ThisHost::find(args.config, flags.key.take().map(|key| key.value))?;
        host.refuse_name(&name, "choose another name, or remove it there to pair again")?;
        let settings = &host.config.settings;
        let or_global = permit_open.is_empty() && permit_listen.is_empty();
        let suggestion = match or_global {
            true => example_forward(
                &values_of(settings.permit_open.as_deref().unwrap_or_default()),
                &values_of(settings.permit_listen.as_deref().unwrap_or_default()),
            ),
            false => example_forward(&permit_open, &permit_listen),
        };
        if suggestion.is_none() {
            return Err(Error::new(Exit::Usage, format!("nothing is permitted to {name}"))
                .hint("add --permit-open localhost:22, or --permit-listen 8080"));
        }
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DEFAULT_PORT);
        let tunnel = settings.listen.as_ref().map_or(any, |listen| listen.value);
        if tunnel.port() == 0 {
            let file = shown(host.path.to_string_lossy());
            return Err(Error::new(Exit::Usage, format!("{file}: listen has no fixed port"))
                .hint("set one that the other host can be told, as in listen = \"[::]:4433\""));
        }
        let any_port = listen.is_none();
        let listen = listen.unwrap_or(tunnel);
        let own = Some(tunnel.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        let is_guessed = address.is_none() && own.is_none();
        let address = address
            .or_else(|| own.or_else(outward_address).map(Host::Address))
            .or_else(|| host_name().parse().ok());
        let Some(address) = address else {
            return Err(Error::new(Exit::Usage, "this host has no address to tell the other one")
                .hint("name it with --host"));
        };
        // Whether it needs a port below 1024.
        flags.listen = Some(Setting { value: listen, text: listen.to_string(), at: None });
        let confinement = host.confine(&flags)?;
        host.check_writable()?;
        Ok(Self {
            tunnel_port: tunnel.port(),
            host,
            name,
            permit_open,
            permit_listen,
            suggestion,
            listen,
            any_port,
            address,
            is_guessed,
            expires,
            confinement,
        })
    }

    /// Binds the inviting end; on another port if the tunnel's is in use and no flag names one.
    fn bind(&self, secret: &Arc<PairingSecret>) -> Result<Inviter, Error> {
        let crypto = inviter_config(&self.host.crypto())
            .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
        let bind = |listen| {
            Inviter::bind(InviterSettings {
                listen,
                crypto: Arc::clone(&crypto),
                key: self.host.public_key(),
                secret: Arc::clone(secret),
            })
        };
        let inviter = match bind(self.listen) {
            Err(BindError { source, .. })
                if self.any_port && source.kind() == ErrorKind::AddrInUse =>
            {
                bind(SocketAddr::new(self.listen.ip(), 0))
            }
            bound => bound,
        };
        inviter.map_err(|error| {
            let reason = system(&error.source);
            let cause = format!("--listen: cannot listen on {}: {reason}", error.address);
            Error::new(Exit::BindFailed, cause).hint(bind_hint(&error.source, "--listen [::]:4434"))
        })
    }

    /// This host's name for itself: the first label of its host name.
    fn own_name(&self) -> String {
        let name = match &self.address {
            Host::Name(name) => name.clone(),
            Host::Address(_) => host_name(),
        };
        let label = name.split('.').next().unwrap_or_default();
        match values::peer_name(label) {
            Ok(name) => name,
            Err(_) => NO_NAME.into(),
        }
    }
}

/// Waits until a host has joined, the invitation expires, or `shutdown`.
///
/// # Errors
/// Exit 6: the address cannot be bound. Exit 5: nobody joined in time. Exit 1: interrupted, the
/// other host did not confirm, or a file cannot be written.
pub(crate) async fn run(options: InviteOptions, shutdown: Shutdown) -> Result<(), Error> {
    let secret = PairingSecret::generate()
        .map(Arc::new)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let inviter = options.bind(&secret)?;
    options.confinement.seal()?;
    let port = inviter.local_addr().port();
    let ends = SystemTime::now() + options.expires;
    let invitation = Invitation {
        key: options.host.public_key(),
        secret: Arc::clone(&secret),
        expires: ends.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        pairing: ServerAddress { host: options.address.clone(), port },
        tunnel_port: options.tunnel_port,
        name: options.own_name(),
    };
    print_line(&waiting(&options, port));
    let mut line = invitation.line();
    line.push('\n');
    let nothing = "nothing was written on either host";
    if !print(line.as_bytes())? {
        let cause = format!("standard output is closed: nobody can read the invitation; {nothing}");
        return Err(Error::new(Exit::Runtime, cause));
    }
    drop((line, invitation));
    let joined = tokio::select! {
        joined = inviter.wait() => {
            joined.map_err(|error| Error::new(Exit::Runtime, error.to_string()))
        }
        () = sleep_boottime(options.expires) => Err(Error::new(
            Exit::Unreachable,
            format!("nobody joined in {}; {nothing}", humantime::format_duration(options.expires)),
        )
        .hint(format!("check that firewalls allow UDP port {port}, then invite again"))),
        _ = shutdown.requested() => Err(Error::new(Exit::Runtime, format!("interrupted; \
            {nothing}"))),
    };
    let paired = match joined {
        Ok(joiner) => pair(&options, joiner).await,
        Err(error) => Err(error),
    };
    inviter.close().await;
    paired
}

/// Completes a pairing with a host that has proved the secret. This takes seconds, and signals no
/// longer stop it.
async fn pair(options: &InviteOptions, mut joiner: Joiner) -> Result<(), Error> {
    let InviteOptions { host, name, permit_open, permit_listen, suggestion, .. } = options;
    let (key, remote) = (joiner.key, joiner.remote.ip().to_canonical());
    let role =
        Role::Incoming { permit_open: permit_open.clone(), permit_listen: permit_listen.clone() };
    let peer = NewPeer { name: name.clone(), key, role };
    let prepared = match host.prepare(&peer) {
        Ok(prepared) => prepared,
        Err(error) => {
            joiner.refuse(
                "the inviting host cannot list this one, and says why; nothing was written",
            );
            return Err(error);
        }
    };
    joiner.accept(suggestion.as_ref()).await.map_err(|error| {
        let cause = format!("{remote} did not confirm ({error}); nothing was written here");
        Error::new(Exit::Runtime, cause).hint("invite again; if it wrote its files, it says so")
    })?;
    if let Err(error) = prepared.commit() {
        joiner.refuse("the inviting host could not write its files");
        return Err(error);
    }
    // No other task runs on this thread by now.
    let reloaded = reload_file(&host.path);
    joiner.done().await;
    let file = shown(host.path.to_string_lossy());
    print_line(&format!(
        "keypadd: paired with {name} ({remote}), key {key}\n  {file} has [peer.{name}]"
    ));
    print_line(&next(host, &reloaded));
    for line in demands(&host.config.settings) {
        print_line(&format!("  on {name}, add to this host's peer: {line}"));
    }
    Ok(())
}

/// What to do on the other host.
fn waiting(options: &InviteOptions, port: u16) -> String {
    let InviteOptions { name, address, is_guessed, tunnel_port, expires, .. } = options;
    let expires = humantime::format_duration(*expires);
    let mut text = format!(
        "keypadd: waiting for {name} at {address}, UDP port {port}\n  \
         on {name}, run `keypadd join` and paste this invitation; it works once, within {expires}"
    );
    if *is_guessed {
        text += &format!("\n  if {name} cannot reach {address}, name this host with --host");
    }
    if port != *tunnel_port {
        text += &format!(
            "\n  firewalls must allow UDP port {port} until then, and {tunnel_port} for tunnels"
        );
    }
    text
}

/// What is left to do on this host.
fn next(host: &ThisHost, reloaded: &Reloaded) -> String {
    match reloaded {
        // The file of the package's service, which runs as another user.
        Reloaded::NoDaemon if geteuid().is_root() && host.config_flag.is_empty() => {
            "  run `systemctl reload-or-restart keypadd`, or `keypadd run` without a service".into()
        }
        Reloaded::NoDaemon => format!(
            "  run `keypadd run{}`; a daemon of another user needs a reload",
            host.config_flag
        ),
        Reloaded::Applied(restart) if restart.is_empty() => "  the daemon has reloaded it".into(),
        Reloaded::Applied(restart) => {
            format!("  run `keypadd reload --binary` to apply: {}", restart.join(", "))
        }
        Reloaded::Refused(cause) => {
            format!("  the daemon has not reloaded it: {}; restart it", one_line(cause))
        }
    }
}

/// What the other host must set if this one does not accept the defaults.
fn demands(settings: &Settings) -> Vec<String> {
    let (suites, kex) = (settings.suites(), settings.key_exchanges());
    let mut lines = Vec::new();
    if !offered(None).iter().any(|suite| suites.contains(suite)) {
        lines.extend(suites.first().map(|suite| format!("suite = \"{suite}\"")));
    }
    if !kex.contains(&KeyExchange::default()) {
        lines.extend(kex.first().map(|kex| format!("kex = \"{kex}\"")));
    }
    lines
}

/// Returns once this much time has passed, including time asleep.
async fn sleep_boottime(expires: Duration) {
    let now = || {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
    };
    let end = now() + expires;
    while let Some(left) = end.checked_sub(now()).filter(|left| !left.is_zero()) {
        sleep(left.min(CHECK_INTERVAL)).await;
    }
}

/// Prints to standard error, which may be closed.
fn print_line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
