//! Tests two processes together: ready lines, control socket, metrics, `-W`, and a clean exit on
//! SIGTERM.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, kill_process};

use crate::daemons::{Daemon, Desk, NEAR_PUBLIC_KEY, PUBLIC_KEY, desk, text};
use crate::ends::{echo, exchange, free_port, get, get_as, rest};

#[test]
fn a_server_prints_its_address_and_exits_cleanly_on_sigterm() {
    let desk = desk();
    let server = Daemon::serve(&desk, &["--permit-open", "localhost:80"]);
    let address = server.address();
    assert_eq!(
        server.ready["connect"],
        format!("keypadd connect {address} --peer {PUBLIC_KEY} -L 8080:localhost:80")
    );
    let mut files: Vec<_> =
        fs::read_dir(desk.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let [socket, record] = &files[..] else { panic!("{files:?}") };
    for file in [socket, record] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }

    let status = desk.keypadd(&["status", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(document["daemons"][0]["place"], address);
    assert_eq!(document["daemons"][0]["pool"]["mode"], "on");

    let output = server.stop();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!socket.exists() && !record.exists());
    assert_eq!(desk.keypadd(&["status"]).output().unwrap().status.code(), Some(5));
}

#[test]
fn the_ready_line_has_time_and_level_as_other_lines_of_json_have() {
    let desk = desk();
    let server = Daemon::serve(&desk, &[]);
    let target = format!("{}:localhost:22", free_port());
    let client = Daemon::start(server.connect(&desk, &["-L", &target, "--log-format", "json"]));
    for daemon in [&server, &client] {
        assert_eq!(daemon.ready["level"], "INFO");
        let time = daemon.ready["timestamp"].as_str().unwrap();
        assert!(time.len() == "2026-11-30T01:02:03.456789Z".len() && time.ends_with('Z'), "{time}");
    }
}

#[test]
fn flags_of_ssh_that_mean_the_same_are_taken() {
    let (desk, target) = (desk(), echo("127.0.0.1").to_string());
    let server = Daemon::serve(&desk, &["--permit-open", &target]);
    let address = server.address();
    let (_, port) = address.rsplit_once(':').unwrap();
    let forward = format!("127.0.0.1:0:{target}");
    let args = ["connect", "-N4", "-p", port, "-i", "connect.key", "localhost", "-L", &forward];
    let mut command = desk.keypadd(&args);
    command.args(["--peer", PUBLIC_KEY, "--log-format", "json"]).env_remove("KEYPADD_KEY");
    let client = Daemon::start(command);
    let entrance = client.ready["forwards"][0]["listen"][0].as_str().unwrap();
    assert_eq!(exchange(entrance, b"as with ssh").unwrap(), b"as with ssh");

    let refused = server.connect(&desk, &["-6", "-W", "a:1"]).output().unwrap();
    let expected = format!(
        "keypadd: cannot reach {address}: no address of the requested family\n  \
         hint: leave out -4 or -6, or use an address of that family\n"
    );
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(5), expected));
}

#[test]
fn a_dead_daemons_socket_is_removed() {
    let desk = desk();
    fs::create_dir(desk.path("run")).unwrap();
    // Above the kernel's largest process ID, so that no process has it.
    let stale = desk.path("run").join("4194999.sock");
    drop(UnixListener::bind(&stale).unwrap());
    let _server = Daemon::serve(&desk, &[]);
    assert!(!stale.exists());
}

#[test]
fn the_metrics_listener_serves_metrics_and_health() {
    let desk = desk();
    let port = free_port();
    let _server =
        Daemon::serve(&desk, &["--metrics", &format!("127.0.0.1:{port}"), "--pool", "off"]);
    let get = |path| get(port, path);
    // The Accept header that Prometheus sends.
    let asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let answer = get_as(port, "/metrics", asked);
    assert!(answer.contains("openmetrics-text"), "{answer}");
    assert!(answer.contains("\n# TYPE keypadd_pad_reuse counter\nkeypadd_pad_reuse_total 0\n"));
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    let answer = get("/metrics");
    assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
    assert!(
        answer.contains("\n# TYPE keypadd_pad_reuse_total counter\nkeypadd_pad_reuse_total 0\n")
    );
    assert!(answer.contains("keypadd_keystream_bytes_total{source=\"pool\"} 0"), "{answer}");
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(get("/readyz").starts_with("HTTP/1.1 200"), "a server without peers is ready at once");
    assert!(get("/").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_page_whose_name_was_made_to_lead_here_reads_no_metrics() {
    let desk = desk();
    let port = free_port();
    let _server =
        Daemon::serve(&desk, &["--metrics", &format!("127.0.0.1:{port}"), "--pool", "off"]);
    let answer = |request: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        text(&rest(&mut stream).unwrap())
    };
    for path in ["/metrics", "/healthz", "/readyz", "/"] {
        let refused = answer(&format!("GET {path} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n"));
        assert!(refused.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{refused}");
        let (_, body) = refused.split_once("\r\n\r\n").unwrap();
        let line = "this server answers requests for an IP address, localhost or ";
        assert!(body.starts_with(line) && body.lines().count() == 1, "{refused}");
    }
    assert!(answer("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 Bad Request\r\n"));
    for request in [
        "GET /metrics HTTP/1.0\r\n\r\n".to_owned(),
        format!("GET /metrics HTTP/1.1\r\nHost: [::1]:{port}\r\n\r\n"),
        format!("GET http://localhost:{port}/metrics HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"),
    ] {
        let answer = answer(&request);
        assert!(answer.contains(" 200 OK\r\n") && answer.contains("keypadd_"), "{answer}");
    }
}

#[test]
fn standard_input_and_output_carry_a_connection_and_nothing_else() {
    let desk = desk();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = target.accept().unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        stream.write_all(heard.to_uppercase().as_bytes()).unwrap();
    });
    let server = Daemon::serve(&desk, &["--permit-open", &address]);
    let mut client = server
        .connect(&desk, &["-W", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(b"half-closed").unwrap();
    let output = client.wait_with_output().unwrap();
    echo.join().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "HALF-CLOSED");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_interrupted_stdio_forward_prints_one_line_and_exits_1() {
    let desk = desk();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap().to_string();
    let server = Daemon::serve(&desk, &["--permit-open", &address]);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (client, _target) = carried(&server, &desk, &address, &target);
        kill_process(Pid::from_child(&client), signal).unwrap();
        let output = client.wait_with_output().unwrap();
        let expected = format!("keypadd: interrupted before {address} finished\n");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    }
    // ssh closes its ends of the pipes, then hangs up: its user wants no message about that.
    let (mut client, _target) = carried(&server, &desk, &address, &target);
    drop(client.stdout.take());
    kill_process(Pid::from_child(&client), Signal::HUP).unwrap();
    let output = client.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// Starts a `-W` client and waits until its target has accepted.
fn carried(
    server: &Daemon,
    desk: &Desk,
    address: &str,
    target: &TcpListener,
) -> (Child, TcpStream) {
    let mut command = server.connect(desk, &["-W", address]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    (child, target.accept().unwrap().0)
}

#[test]
fn a_failing_standard_error_stops_nothing() {
    let desk = desk();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    // Without --permit-open it logs a warning, then its ready line.
    let mut serve = desk.keypadd(&["serve", "--allow", NEAR_PUBLIC_KEY, "--listen", "127.0.0.1:0"]);
    let mut server = serve.stderr(full()).spawn().unwrap();
    let answers = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        desk.keypadd(&["status"]).output().unwrap().status.success()
    });
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(answers);
    let usage = desk.keypadd(&["serve", "--nonsense"]).stderr(full()).status().unwrap();
    assert_eq!(usage.code(), Some(2));
}

#[test]
fn keygen_writes_the_key_even_if_its_output_fails() {
    let desk = desk();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = desk.keypadd(&["keygen", "new.key"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "keypadd: cannot write to standard output: no space left on device\n  hint: the key file was created; \
         run `keypadd pubkey new.key` to print its public key\n"
    );
    assert!(desk.keypadd(&["pubkey", "new.key"]).output().unwrap().status.success());
}

#[test]
fn status_tolerates_daemons_with_unexpected_answers() {
    let desk = desk();
    let _server = Daemon::serve(&desk, &[]);
    let foreign = UnixListener::bind(desk.path("run").join("1.sock")).unwrap();
    // Nobody accepts here and the backlog is full, as with a stopped daemon.
    let stopped = desk.path("run").join("2.sock");
    let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrUnix::new(&stopped).unwrap()).unwrap();
    net::listen(&socket, 0).unwrap();
    let _first = UnixStream::connect(&stopped).unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = foreign.accept().unwrap();
        client.write_all(b"{\"pid\": \"none\"}").unwrap();
        // Read the request: closing with it unread would reset the connection.
        let _ = client.read(&mut [0; 64]);
    });
    let output = desk.keypadd(&["status"]).output().unwrap();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(shown.contains("invalid answer from the daemon at `"), "{shown}");
    assert!(shown.contains("1.sock`: invalid type: "), "{shown}");
    assert!(shown.contains("2.sock`: it is stopped or too busy\n"), "{shown}");
    assert!(shown.contains("\nserve 127.0.0.1:"), "{shown}");
}

#[test]
fn a_server_warns_of_no_permits_and_once_of_a_key_with_the_line_that_lets_it_in() {
    let desk = desk();
    let server = Daemon::serve(&desk, &[]);
    let other = text(&desk.keypadd(&["keygen", "other.key"]).output().unwrap().stdout);
    for _ in 0..3 {
        let refused = server.connect(&desk, &["-W", "a:1", "--key", "other.key"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(4));
    }
    // It suggests no command either, because none would work.
    assert_eq!(server.ready["connect"], serde_json::Value::Null);
    let said = text(&server.stop().stderr);
    for line in [
        "peers may connect but have no permits; for example --permit-open localhost:22",
        &format!("key not allowed; to allow it: --allow {}, or that", other.trim()),
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
}

#[test]
fn a_legacy_suite_is_called_insecure_wherever_it_is_shown() {
    let desk = desk();
    let legacy = ["--suite", "3des-ctr-hmac-sha1", "--allow-legacy"];
    let server = Daemon::serve(&desk, &[&legacy[..], &["--permit-open", "a:1"]].concat());
    assert_eq!(server.ready["suites"][0], "3des-ctr-hmac-sha1 insecure (legacy)");
    let line = server.ready["connect"].as_str().unwrap().to_owned();
    assert!(line.contains("--suite 3des-ctr-hmac-sha1 --allow-legacy"), "{line}");
    let mut command = server.connect(&desk, &["-L", "0:a:1", "--log-format", "json"]);
    command.args(legacy);
    let client = Daemon::start(command);
    assert_eq!(client.ready["suite"], "3des-ctr-hmac-sha1 insecure (legacy)");
    let status = desk.keypadd(&["status"]).output().unwrap();
    let shown = text(&status.stdout).matches("3des-ctr-hmac-sha1 insecure (legacy)").count();
    assert_eq!(shown, 2, "{}", text(&status.stdout));
    assert_eq!(client.stop().status.code(), Some(0));
    assert_eq!(server.stop().status.code(), Some(0));
}
