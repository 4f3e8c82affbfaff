//! Tests the parsing and display of forwards.

use proptest::prelude::*;

use super::*;

fn tcp(bind: Bind, port: u16) -> Listen {
    Listen::Tcp { bind, port }
}

fn to(target: &str) -> Destination {
    Destination::Tcp(target.parse().unwrap())
}

fn path(path: &str) -> SocketPath {
    path.parse().unwrap()
}

#[test]
fn forwards_parse_as_in_ssh() {
    let address = |text: &str| Bind::Host(Host::Address(text.parse().unwrap()));
    let name = Bind::Host(Host::Name("host.lan".into()));
    for (text, listen, destination) in [
        ("8080:web:80", tcp(Bind::Loopback, 8080), to("web:80")),
        ("localhost:8080:web:80", tcp(Bind::Loopback, 8080), to("web:80")),
        ("[localhost]:8080:web:80", tcp(Bind::Loopback, 8080), to("web:80")),
        (":8080:web:80", tcp(Bind::All, 8080), to("web:80")),
        ("*:8080:web:80", tcp(Bind::All, 8080), to("web:80")),
        ("10.0.0.1:8080:web:80", tcp(address("10.0.0.1"), 8080), to("web:80")),
        ("[::1]:8080:[fd00::1]:80", tcp(address("::1"), 8080), to("[fd00::1]:80")),
        ("8080:[fd00::1]:80", tcp(Bind::Loopback, 8080), to("[fd00::1]:80")),
        ("0:web:80", tcp(Bind::Loopback, 0), to("web:80")),
        ("host.lan:1:web:80", tcp(name, 1), to("web:80")),
        ("8080:/run/x.sock", tcp(Bind::Loopback, 8080), Destination::Unix(path("/run/x.sock"))),
        ("*:8080:/run/x.sock", tcp(Bind::All, 8080), Destination::Unix(path("/run/x.sock"))),
        ("[::1]:8080:/x", tcp(address("::1"), 8080), Destination::Unix(path("/x"))),
        ("/tmp/y:web:80", Listen::Unix(path("/tmp/y")), to("web:80")),
        ("/tmp/y:[fd00::1]:80", Listen::Unix(path("/tmp/y")), to("[fd00::1]:80")),
        ("/tmp/y:/x", Listen::Unix(path("/tmp/y")), Destination::Unix(path("/x"))),
    ] {
        let (same, also) = (listen.clone(), destination.clone());
        assert_eq!(text.parse(), Ok(LocalForward { listen, destination }), "{text}");
        assert_eq!(text.parse(), Ok(RemoteForward { listen: same, destination: also }), "{text}");
    }
}

#[test]
fn udp_is_written_before_the_target() {
    let all = |port| Listen::Udp { bind: Bind::All, port };
    let v6 = Bind::Host(Host::Address("::1".parse().unwrap()));
    for (text, listen, target) in [
        ("5353:udp:resolver:53", Listen::Udp { bind: Bind::Loopback, port: 5353 }, "resolver:53"),
        ("*:5353:udp:10.0.0.1:53", all(5353), "10.0.0.1:53"),
        ("[::1]:0:udp:[fd00::1]:53", Listen::Udp { bind: v6, port: 0 }, "[fd00::1]:53"),
        ("0:udp:udp:53", Listen::Udp { bind: Bind::Loopback, port: 0 }, "udp:53"),
    ] {
        let destination = Destination::Udp(target.parse().unwrap());
        let local = LocalForward { listen: listen.clone(), destination: destination.clone() };
        assert_eq!((local.to_string().as_str(), text.parse()), (text, Ok(local)));
        let remote = RemoteForward { listen, destination };
        assert_eq!((remote.to_string().as_str(), text.parse()), (text, Ok(remote)));
    }
    // By another name the host is not the protocol.
    assert_eq!("53:udp.:53".parse::<LocalForward>().unwrap().destination, to("udp.:53"));
    let hint = "a UDP forward is [BIND:]PORT:udp:HOST:HOSTPORT, as in 5353:udp:resolver:53";
    for text in [
        "udp:5353:resolver:53",
        "5353:resolver:53:udp",
        "5353:udp:53",
        "5353:udp:/run/dns.sock",
        "/run/dns.sock:udp:resolver:53",
        "a:b:c:udp:d:53",
    ] {
        let error = text.parse::<LocalForward>().unwrap_err().to_string();
        assert_eq!(error, format!("forward `{text}`: {hint}"));
    }
    let error = "x:udp:resolver:53".parse::<LocalForward>().unwrap_err().to_string();
    assert!(error.ends_with("`x` is not a port (1 to 65535)"), "{error}");
}

#[test]
fn dynamic_forwards_are_a_port_with_an_optional_address() {
    let address = Bind::Host(Host::Address("::1".parse().unwrap()));
    for (text, bind, port) in [
        ("1080", Bind::Loopback, 1080),
        ("0", Bind::Loopback, 0),
        ("localhost:1080", Bind::Loopback, 1080),
        ("*:1080", Bind::All, 1080),
        (":1080", Bind::All, 1080),
        ("[::1]:1080", address, 1080),
    ] {
        assert_eq!(text.parse(), Ok(DynamicForward { bind, port }), "{text}");
    }
}

#[test]
fn errors_name_the_bad_forward() {
    let shape = "expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in brackets, or a /PATH \
                 in place of either end";
    let characters = "a unix socket path has only letters, digits and `/.-_@+=%`";
    for (text, cause) in [
        ("", shape),
        ("8080", shape),
        ("8080:web", shape),
        ("/tmp/y", shape),
        ("/tmp/y:web", shape),
        ("a:8080:web:80:1", shape),
        (
            "/tmp/y:1:web:80",
            "`/tmp/y` is not an address or a host name (letters, digits, `.`, `-`, `_`)",
        ),
        ("8080:::1:80", shape),
        ("8080:[::1:80", shape),
        ("8080:[::1]x:80", shape),
        ("8080::80", "``: the host is missing"),
        ("x:web:80", "`x` is not a port (1 to 65535)"),
        ("8080:web:0", "`0` is not a port (1 to 65535)"),
        ("70000:web:1", "`70000` is not a port (1 to 65535)"),
        ("x:/tmp/y", "`x` is not a port (1 to 65535)"),
        ("1:/tmp/", "`/tmp/` is not a unix socket path (2 to 107 bytes, naming a file)"),
        ("1:/a b", &format!("`/a b`: {characters}")),
        ("/a;b:web:1", &format!("`/a;b`: {characters}")),
    ] {
        let error = text.parse::<LocalForward>().unwrap_err().to_string();
        assert_eq!(error, format!("forward `{text}`: {cause}"));
        assert_eq!(text.parse::<RemoteForward>().unwrap_err().to_string(), error);
    }
    let shape = "expected [BIND:]PORT, with IPv6 addresses in brackets";
    for (text, cause) in [
        ("", "`` is not a port (1 to 65535)"),
        ("x", "`x` is not a port (1 to 65535)"),
        ("a:b:1", shape),
        ("::1:1080", shape),
        ("[::1:1080", shape),
        ("a b:1080", "`a b` is not an address or a host name (letters, digits, `.`, `-`, `_`)"),
        ("/tmp/y", "`/tmp/y` is not a port (1 to 65535)"),
    ] {
        let error = text.parse::<DynamicForward>().unwrap_err().to_string();
        assert_eq!(error, format!("forward `{text}`: {cause}"));
    }
}

#[test]
fn each_kind_displays_with_its_flag() {
    let local = Forward::Local("localhost:8080:web:80".parse().unwrap());
    let remote = Forward::Remote("*:8080:/run/x.sock".parse().unwrap());
    let dynamic = Forward::Dynamic("[::1]:1080".parse().unwrap());
    assert_eq!(local.to_string(), "-L 8080:web:80");
    assert_eq!(remote.to_string(), "-R *:8080:/run/x.sock");
    assert_eq!(dynamic.to_string(), "-D [::1]:1080");
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "\\PC{0,40}") {
        let _ = text.parse::<LocalForward>();
        let _ = text.parse::<RemoteForward>();
        let _ = text.parse::<DynamicForward>();
    }

    #[test]
    fn displayed_forwards_parse_to_the_same(
        listen in "(|\\*:|:|10\\.0\\.0\\.1:|\\[::1\\]:|lan:|\\[a\\]:)[1-9][0-9]{0,3}|0|/[a-z/]{0,9}x",
        destination in
            "(udp:)?([a-c]{1,5}|\\[fd00::1\\]|10\\.0\\.0\\.1):[1-9][0-9]{0,3}|/[a-z/.]{0,9}x",
    ) {
        let text = format!("{listen}:{destination}");
        prop_assume!(!(listen.starts_with('/') && destination.starts_with("udp:")));
        let local: LocalForward = text.parse().unwrap();
        prop_assert_eq!(local.to_string().parse(), Ok(local));
        let remote: RemoteForward = text.parse().unwrap();
        prop_assert_eq!(remote.to_string().parse(), Ok(remote));
        if let Ok(dynamic) = listen.parse::<DynamicForward>() {
            prop_assert_eq!(dynamic.to_string().parse(), Ok(dynamic));
        }
    }
}
