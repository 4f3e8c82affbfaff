#!/usr/bin/env bash
# Tries what the Debian package offers, as its users would, on two fresh hosts.
#
#     packaging/tour.sh target/dist/keypadd_*.deb [STATIC]    prints `ok` or `not ok` for each claim; 1 if one failed
#
#    host far                                     host near
#    +-----------------------------+    veth     +-----------------------------+
#    |  sshd, ends.py, UDP echo    |             |  curl, python3, ends.py     |
#    |  keypadd.service  UDP 4433  | 10.99.8.1   |  keypadd.service            |
#    |  keypadd serve    UDP 4434  +-------------+  keypadd connect            |
#    +-----------------------------+   10.99.8.2 +-----------------------------+
#
# STATIC is a static program, to start where nothing else is installed. Does not repeat what test-deb.sh
# (installing, upgrading, removing) and first-byte.sh (the first minute) show.
#
# Needs root, mmdebstrap, systemd-nspawn (systemd-container) and iproute2. Installs this host's Debian release in a
# temporary directory; changes nothing outside of it.

set -u -o pipefail

# Limits the whole run: a hang anywhere ends here, and the trap cleans up.
if [ -z "${TOUR_BOUNDED-}" ]; then
    TOUR_BOUNDED=1 exec timeout --foreground --kill-after=20 1200 "${BASH_SOURCE[0]}" "$@"
fi

here=$(dirname "${BASH_SOURCE[0]}")
. "$here/machines.sh"
package=$(realpath -- "${1:?names no package}")
static=${2:+$(realpath -- "$2")}
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 2; }
work=$(mktemp -d)
trap stop_machines EXIT
trap 'exit 1' INT TERM

config=/etc/keypadd/keypadd.toml
page=/usr/share/doc/keypadd/README.md # What the web servers serve.
noted=0

# far LINE, near LINE: a shell's line there.
far() { on far bash -c "$1" </dev/null; }
near() { on near bash -c "$1" </dev/null; }

# background HOST NAME COMMAND...: runs it as that host's service NAME.
background() { on "$1" systemd-run --quiet --collect --unit="$2" "${@:3}"; }
ends() { on "$1" systemctl stop "$2"; }

# within SECONDS COMMAND...: tries until it succeeds; if it never does, prints what the last try printed.
within() {
    local until=$((SECONDS + $1))
    until "${@:2}" >"$work/try" 2>&1; do
        [ "$SECONDS" -lt "$until" ] || { cat "$work/try"; return 1; }
        sleep 0.1
    done
}

# logged HOST SERVICE PATTERN: it has logged this since `note_time`.
logged() { on "$1" journalctl --quiet --output=cat --unit="$2" --since="@$noted" | grep -E -- "$3"; }
note_time() { noted=$(date +%s); }

# shows HOST PATTERN: its `keypadd status` prints this.
shows() { on "$1" keypadd status 2>&1 | grep -E -- "$2"; }

# fails CODE PATTERN LINE: the line ends with this exit code within 30 s and prints this.
fails() {
    local code=0
    on near timeout 30 bash -c "$3" >"$work/printed" 2>&1 </dev/null || code=$?
    echo "exit code $code:"
    cat "$work/printed"
    [ "$code" = "$1" ] && grep -qE -- "$2" "$work/printed"
}

# greets PORT: an SSH server answers at near's port.
greets() { near "exec 3<>/dev/tcp/127.0.0.1/$1 && timeout 15 head -c 4 <&3 | grep -q SSH-"; }

# fetches OPTION...: curl gets the page from far.
fetches() { on near curl -sS --fail --max-time 20 "$@" | cmp - "$work/near$page"; }

# origin PORT: what the target behind near's port was told of the client.
origin() { near "exec 3<>/dev/tcp/127.0.0.1/$1; ${2-:} >&3; timeout 15 head -n 1 <&3"; }
origin_is() { [ "$(origin "$1" "${3-:}")" = "$2" ]; }

boot_two_hosts "$package" python3,curl
for host in far near; do
    on "$host" apt-get install -q -y /root/keypadd.deb >"$work/install" 2>&1 || { cat "$work/install"; exit 1; }
    install -m 755 "$here/ends.py" "$here/../tests/netns/datagrams.py" "$here/../tests/netns/claims.py" \
        "$work/$host/usr/local/bin/"
    background "$host" web python3 -m http.server 8000 --bind 127.0.0.1 --directory "$(dirname $page)"
    background "$host" origin ends.py origin 8001
    background "$host" echo ends.py echo 8002
    background "$host" close ends.py close 8003
    background "$host" datagrams datagrams.py serve 8053 8054
done

# ---- pairing ------------------------------------------------------------------------------------

# invites PEER OPTION...: far prints $line.
invites() {
    local printed
    exec {printed}< <(on far keypadd invite "$@" 2>>"$work/invited")
    read -r -t 60 line <&"$printed"
}
ann() { near "runuser -l ann -c '$1'"; }
near 'useradd --create-home ann'
expect 'a user is invited' invites ann --permit-open 'localhost:*'
expect 'another invitation is refused' fails 2 'damaged or incomplete' "keypadd join <<<'$(sed 's/.....$/AAAAA/' <<<"$line")'"
expect 'she joins' ann "echo $line | keypadd join"
expect 'the invitation works once' fails 5 'no answer|cannot reach|ended' "keypadd join <<<'$line'"
expect 'her key is her own' test "$(stat -c '%a' "$work/near/home/ann/.config/keypadd/key")" = 600

# ---- both services, from files ------------------------------------------------------------------

far_key=$(far 'keypadd pubkey /etc/keypadd/key') near_key=$(near 'keypadd pubkey /etc/keypadd/key')
ann_peer=$(sed -n '/^\[peer.ann\]/,$p' "$work/far$config")
write_far() {
    cat >"$work/far$config" <<-END
		listen = "[::]:4433"
		log-connections = true
		$ann_peer
		[peer.laptop]
		public-key = "$near_key"
		permit-open = ["localhost:*", "udp:localhost:*"]
		permit-listen = ["8000", "9002", "udp:9054"]
		$1
	END
}
# write_near KEYS ENDPOINTS
write_near() {
    cat >"$work/near$config" <<-END
		metrics = "127.0.0.1:9464"
		log-connections = true
		[peer.far]
		public-key = $1
		endpoint = $2
		local = [
		    "2222:localhost:22", "7002:localhost:8002", "7003:localhost:8003", "/run/keypadd/web:localhost:8000",
		    "7053:udp:localhost:8053", "7054:udp:localhost:8054",
		]
		remote = ["9002:localhost:8002", "9054:udp:localhost:8054"]
		dynamic = ["1080"]
	END
}
write_far ''
write_near "\"$far_key\"" '"10.99.8.1"'
for host in far near; do
    expect "$host: the file is valid" on "$host" keypadd check
    expect "$host: the service starts" on "$host" systemctl enable --now keypadd
done
[ "$failed" = 0 ] || { on near journalctl --quiet --output=cat --unit=keypadd; exit 1; }
expect 'the log says that the link is up' within 15 logged near keypadd 'INFO connected'
expect '-L' within 15 greets 2222
expect '-L with a unix socket' fetches --unix-socket /run/keypadd/web http://far/README.md
expect '-D' fetches --proxy socks5h://127.0.0.1:1080 http://localhost:8000/README.md
echoed_at_far() { far 'ends.py echoed 9002 1'; }
expect '-R' within 15 echoed_at_far
expect 'a user without root takes all from her own file' ann 'keypadd connect @far -W localhost:22 </dev/null | grep -q SSH-'

many_share() {
    near 'for n in $(seq 100); do echo $n | keypadd connect @far -W localhost:8002 & done | sort -n' >"$work/echoes" &&
        diff "$work/echoes" <(seq 100) &&
        [ "$(far 'keypadd status --json' | grep -c '"peer": "laptop"')" = 1 ]
}
expect 'a hundred -W share the tunnel of the service' many_share

# ---- UDP ----------------------------------------------------------------------------------------

expect 'DNS through -L' near 'datagrams.py dns 127.0.0.1:7053'
expect 'datagrams of every size through -L' near 'datagrams.py sizes 127.0.0.1:7054'
expect '60 datagrams a second' near 'datagrams.py game 127.0.0.1:7054 3'
expect 'datagrams of every size through -R' far 'datagrams.py sizes 127.0.0.1:9054'

# ---- forwards while it runs ---------------------------------------------------------------------

expect 'a forward is added' near 'keypadd forward add @far -L 2223:localhost:22'
expect 'it works' greets 2223
expect 'it is listed' near 'keypadd forward list | grep 2223:localhost:22'
expect 'it is removed' near 'keypadd forward remove @far -L 2223:localhost:22'
expect 'it listens no more' fails 1 'refused' 'exec 3<>/dev/tcp/127.0.0.1/2223'
expect 'a peer is completed in bash' near '. /usr/share/bash-completion/completions/keypadd
    COMP_LINE="keypadd connect @f" COMP_POINT=18 COMP_WORDS=(keypadd connect @f) COMP_CWORD=2 COMP_WORDBREAKS=" "
    _keypadd_named keypadd @f connect; [ "${COMPREPLY[*]}" = @far ]'

# ---- PROXY protocol -----------------------------------------------------------------------------

background near proxied keypadd connect @far --send-proxy --accept-proxy -L 7001:localhost:8001 \
    -L 7011:localhost:8001
expect 'accept-proxy and send-proxy pass on the client that a load balancer names' within 15 \
    origin_is 7001 192.0.2.7 'printf "PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n"'
ends near proxied
background near proxied keypadd connect @far --send-proxy -L 7001:localhost:8001
expect 'send-proxy names the client' within 15 origin_is 7001 127.0.0.1
expect "root's own daemon is in status beside the service" shows near '^connect 10.99.8.1'
ends near proxied

# ---- metrics and logs ---------------------------------------------------------------------------

http() { near "curl -s --max-time 5 -o /dev/null -w '%{http_code}' http://127.0.0.1:9464/$1" | grep -x "$2"; }
has_metrics() {
    local name
    near 'curl -sS --fail --max-time 5 http://127.0.0.1:9464/metrics' >"$work/metrics"
    for name in link_up forward_bytes_total forward_connections_total refused_total path_rtt_seconds \
        path_lost_packets_total path_congestion_window_bytes reconnects_total held_connections pool_bytes \
        pool_exhaustions_total packets_total; do
        grep -q "^keypadd_$name" "$work/metrics" || { echo "no keypadd_$name"; return 1; }
    done
}
expect 'metrics' has_metrics
expect '/healthz' http healthz 200
expect '/readyz' http readyz 200
near 'ends.py echoed 7002 1'
expect 'a forwarded connection is logged at both ends' eval \
    "logged near keypadd 'connection.*-L 7002.*closed' && logged far keypadd 'connection.*localhost:8002.*closed'"
near 'exec 3<>/dev/tcp/127.0.0.1/7003; timeout 5 cat <&3'
expect 'a target that closes without a byte is logged' within 5 logged far keypadd 'without sending a byte'
near 'curl -s --max-time 5 --proxy http://127.0.0.1:1080 http://localhost:8000; curl -s --max-time 5 --proxy socks4://127.0.0.1:1080 http://127.0.0.1:8000'
expect 'an HTTP client of -D is logged' within 5 logged near keypadd 'HTTP'
expect 'a SOCKS4 client of -D is logged' within 5 logged near keypadd 'SOCKS4'
background near limited keypadd connect @far --max-forwards 1 -L 7012:localhost:8002
within 15 near 'exec 3<>/dev/tcp/127.0.0.1/7012'
near 'exec 3<>/dev/tcp/127.0.0.1/7012 4<>/dev/tcp/127.0.0.1/7012 5<>/dev/tcp/127.0.0.1/7012; sleep 1'
expect 'an exhausted limit is logged' within 5 logged near limited 'max-forwards'
ends near limited
expect 'JSON logs' near 'timeout 15 keypadd --log-format json connect @far --max-forwards 9 -W localhost:9 2>&1 </dev/null |
    python3 -c "import json, sys; [json.loads(line) for line in sys.stdin if line.startswith(\"{\")]"'

# ---- doctor and status --------------------------------------------------------------------------

near 'keypadd doctor' >"$work/doctor"
for check in 'clock: ' 'UDP buffers: ' 'UDP offload: ' 'open files: ' 'CPU: ' 'pool: aes-256-gcm' 'key' 'service' \
    'ok +peer far: .*round trip'; do
    expect "doctor: ${check%: }" grep -E "$check" "$work/doctor"
done
expect 'status exits with 0 while all is well' near 'keypadd status'
pid=$(far 'systemctl show -P MainPID keypadd')
locked=$(far "sed -n 's/^VmLck:\s*//p' /proc/$pid/status")
echo "# the server has locked $locked for a pool that gains nothing"
expect 'a server whose suites gain nothing has no pool memory' eval \
    "shows far 'pool.* off' && [ ${locked% kB} -lt 4096 ]"

# ---- outages ------------------------------------------------------------------------------------

# survives LINE: a connection through the tunnel loses no byte while the line runs on this host.
survives() {
    local client
    near 'ends.py echoed 7002 12' &
    client=$!
    sleep 1
    eval "$1" || return
    wait "$client"
}
cut() {
    ip -n "${two_hosts[1]}" link set veth0 down
    sleep 4
    ip -n "${two_hosts[1]}" link set veth0 up && ip -n "${two_hosts[1]}" route add default dev veth0
}
moves() {
    ip -n "${two_hosts[1]}" addr flush dev veth0 scope global && ip -n "${two_hosts[1]}" addr add 10.99.8.3/24 dev veth0
}
expect 'an open connection survives a cut of 4 s' survives cut
expect 'another address' survives moves
expect 'a reload of either file' survives 'far "systemctl reload keypadd" && near "systemctl reload keypadd"'

ends far keypadd
expect 'while the server is down, status exits with 5' within 15 fails 5 'not connected: `far`' 'keypadd status'
expect '/readyz then' http readyz 503
far 'systemctl start keypadd'
expect 'it is back' within 20 greets 2222
note_time
began=$EPOCHREALTIME
far 'systemctl kill --kill-whom=main --signal=KILL keypadd'
within 30 far 'systemctl is-active --quiet keypadd && keypadd status'
back=$EPOCHREALTIME
expect 'a server that was killed is back' within 20 greets 2222
awk -v began="$began" -v back="$back" -v now="$EPOCHREALTIME" 'BEGIN {
    printf "# the server was back after %.1f s, the tunnel %.1f s later\n", back - began, now - back }'
expect 'the log says lost, why, and back' eval \
    "logged near keypadd 'WARN.*(lost|forgot)' && logged near keypadd 'INFO.*reconnected'"
expect '/readyz again' within 5 http readyz 200

# ---- several endpoints, other keys, expiry ------------------------------------------------------

background far second keypadd serve --key /etc/keypadd/key --listen '[::]:4434' --allow "$near_key" \
    --permit-open 'localhost:*' --permit-listen 9002 --permit-listen udp:9054
write_near "\"$far_key\"" '["10.99.8.1", "10.99.8.1:4434"]'
expect 'an endpoint is added' near 'systemctl reload keypadd'
within 15 shows near '10.99.8.1:4433'
began=$EPOCHREALTIME
ends far keypadd
expect 'the second endpoint takes over' within 20 greets 2222
awk -v began="$began" -v now="$EPOCHREALTIME" 'BEGIN { printf "# failover took %.1f s\n", now - began }'
expect 'status names it' shows near '10.99.8.1:4434'
far 'systemctl start keypadd'
expect 'the first is returned to' within 60 shows near '10.99.8.1:4433'
ends far second

new_key=$(far 'keypadd keygen /etc/keypadd/new 2>/dev/null')
write_near "[\"$far_key\", \"$new_key\"]" '["10.99.8.1", "10.99.8.1:4434"]'
expect 'an open connection survives that another key is accepted' survives 'near "systemctl reload keypadd"'
far 'mv -f /etc/keypadd/new /etc/keypadd/key && systemctl restart keypadd'
expect 'a server with that key is connected to' within 20 shows near "key ${new_key//+/.}, one of two"
expect 'and carries connections' within 20 greets 2222

write_far 'valid-until = "2020-01-01"'
note_time
far 'systemctl reload keypadd'
expect 'a peer whose time is over is refused, and told why' within 90 logged near keypadd 'valid-until'
expect '/readyz while refused' http readyz 503
write_far ''
far 'systemctl reload keypadd'
expect 'and is accepted again' within 60 greets 2222

# ---- mistakes -----------------------------------------------------------------------------------

expect 'a suite with a typing error' fails 2 'did you mean aes-256-gcm' 'keypadd connect @far --suite aes256gcm'
expect 'a peer with a typing error' fails 2 'did you mean @far' 'keypadd connect @fra'
expect 'help VERB' fails 0 'Usage: keypadd serve' 'keypadd help serve'
expect 'a permit without a host' fails 2 'host is missing' 'keypadd serve --permit-open 22'
expect 'a forgotten bracket' fails 5 'write \[fd77::2\]:4433' \
    "keypadd connect fd77::2:4433 --peer $new_key --connect-timeout 1s -W a:1"
expect 'the own key' fails 2 'own' "keypadd serve --key /etc/keypadd/key --allow $near_key"
expect 'another server key looks dangerous' fails 4 'SERVER KEY MISMATCH: expected .*, got ' \
    "keypadd connect 10.99.8.1 --peer $near_key -W localhost:22"
expect 'a port that is not permitted' fails 4 'not permitted' 'keypadd connect @far -R 9003:localhost:1'
expect 'a port that is taken on the server' fails 6 'address in use' 'keypadd connect @far -R 8000:localhost:1'
expect 'a link-local address with a zone' fails 5 'fe80::1%veth0' \
    "keypadd connect fe80::1%veth0 --peer $new_key --connect-timeout 1s -W a:1"
expect 'the bench is not in the package' fails 1 'keypadd-bench' 'keypadd bench terminal'

# ---- the static program -------------------------------------------------------------------------

if [ -n "$static" ]; then
    mkdir "$work/empty" && cp "$static" "$work/empty/keypadd"
    expect 'the static program runs where nothing is installed' chroot "$work/empty" /keypadd --version
    cp "$static" "$work/near/usr/local/bin/keypadd-static"
    expect 'and connects' near 'keypadd-static connect @far --hold 1m -W localhost:22 </dev/null | grep -q SSH-'
fi
exit "$failed"
