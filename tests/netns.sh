#!/usr/bin/env bash
# Tests keypadd end to end over real UDP: the shipped binary, two network namespaces, a veth pair.
#
#      namespace far                                              namespace near
#    +------------------------------+      veth, MTU 1500       +------------------------------+
#    |  keypadd serve      UDP 4433 |                           |  keypadd connect             |
#    |    |                         | 10.99.7.1       10.99.7.2 |    |                         |
#    |    v                         +---------------------------+    ^                         |
#    |  target.py      TCP 7000     | fd00:99:7::1 fd00:99:7::2 |  -L 7100 <- probe.py         |
#    |  sshd           TCP 2222     |                           |  -W      <- ssh              |
#    +------------------------------+                           +------------------------------+
#
#    tests/netns.sh target/release/keypadd              every scenario, about 8 minutes
#    tests/netns.sh target/release/keypadd CLAIM...     scenarios whose names contain a CLAIM
#    NETNS_QUICK=1 tests/netns.sh ...                   64 MiB each way per suite instead of 256, an
#                                                       outage of 15 s instead of 60, and no round
#                                                       trip comparison
#
# Needs root, iproute2, OpenSSH, PostgreSQL, python3, curl. Prints `ok - ...` or `not ok - ...` for each
# scenario; exits with 1 if one failed. Round-trip times are printed and compared, not judged.

set -u -o pipefail

# Limits the whole run: a hang anywhere ends here, and the trap cleans up.
if [ -z "${NETNS_BOUNDED-}" ]; then
    NETNS_BOUNDED=1 exec timeout --kill-after=20 1500 "${BASH_SOURCE[0]}" "$@"
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/netns/harness.sh"
source "$here/netns/day.sh"
source "$here/netns/wireguard.sh"
source "$here/netns/networks.sh"
source "$here/netns/advice.sh"

quick=${NETNS_QUICK-}
mib=$([ -n "$quick" ] && echo 64 || echo 256) # each way, per suite
outage_seconds=$([ -n "$quick" ] && echo 15 || echo 60) # in the day scenario; its peer timeout is 10 s
closed_port=7999    # permitted, no listener
forbidden_port=7998 # not permitted
forward=127.0.0.1:$forward_port
target=10.99.7.1:$target_port # not through the tunnel

# ---- bytes --------------------------------------------------------------------------------------

random_bytes_arrive_exactly_both_ways() {
    tunnel "$1"
    expect "SHA-256 is equal" probe swap "$forward" --mib "$mib"
}

two_hundred_connections_at_once_are_exact() {
    tunnel aes-256-gcm
    expect "every connection is exact" probe crowd "$forward" --connections 200
}

ipv6_carries_the_tunnel_and_the_forward() {
    expect "the server starts" serve '[fd00:99:7::1]'
    expect "the client connects" connect '[fd00:99:7::1]' -L "$forward_port:[::1]:$target_port"
    expect "SHA-256 is equal" probe swap "[::1]:$forward_port" --mib 16
}

# set_mtu BYTES: sets the path's MTU at both ends.
set_mtu() {
    local end
    for end in "$far" "$near"; do
        ip -n "$end" link set veth0 mtu "$1" || die "cannot set the MTU"
    done
}

# packets_have BYTES: waits until both ends send packets of up to this size.
packets_have() {
    expect "near sends packets of $1 bytes" soon shows near "packets up to $1 bytes"
    expect "far sends packets of $1 bytes" soon shows far "packets up to $1 bytes"
}

# packets_are_at_most END BYTES: its packets may be up to this size, and not larger.
packets_are_at_most() {
    local largest
    largest=$(in_end "$1" timeout 10 "$keypadd" status |
        sed -n 's/.*packets up to \([0-9]*\) bytes.*/\1/p' | sort -n | tail -n 1)
    [ -n "$largest" ] && [ "$largest" -ge 1200 ] && [ "$largest" -le "$2" ]
}

packets_are_as_long_as_the_path_carries() {
    set_mtu "$2"
    tunnel "$1"
    expect "SHA-256 is equal" probe swap "$forward" --mib 16
    packets_have "$3"
    set_mtu 1500
}

a_path_that_shrinks_costs_no_connection() {
    set_mtu "$1"
    tunnel aes-256-gcm
    expect "SHA-256 is equal" probe swap "$forward" --mib 16
    packets_have "$2"
    set_mtu 1400
    local began=$SECONDS
    expect "SHA-256 is equal" probe swap "$forward" --mib 16
    expect "it is found out at once" [ $((SECONDS - began)) -le 4 ]
    # 1200 at once; a little later a search begins anew, and finds nearly all that the path carries.
    expect "near sends packets that fit" soon packets_are_at_most near 1372
    expect "far sends packets that fit" soon packets_are_at_most far 1372
    expect "the client has not reconnected" silent grep 'lost: ' "$scratch/near.0.log"
    set_mtu 1500
}

# ---- ends and resets ----------------------------------------------------------------------------

half_close_is_exact_both_ways() {
    tunnel aes-256-gcm
    expect "near half-closes first" probe near-half-close "$forward"
    expect "far half-closes first" probe far-half-close "$forward" --target "$target"
}

resets_pass_as_resets_both_ways() {
    tunnel aes-256-gcm
    expect "far to near" probe far-reset "$forward"
    expect "near to far" probe near-reset "$forward" --target "$target"
}

refused_and_unpermitted_targets_end_as_resets() {
    expect "the server starts" serve 10.99.7.1
    expect "the client connects" connect 10.99.7.1 \
        -L "7201:127.0.0.1:$closed_port" -L "7202:127.0.0.1:$forbidden_port"
    expect "a refused target" probe refused 127.0.0.1:7201
    expect "an unpermitted target" probe refused 127.0.0.1:7202
}

a_target_that_uses_all_local_ports_is_refused_with_the_remedy() {
    local range=/proc/sys/net/ipv4/ip_local_port_range before
    tunnel aes-256-gcm
    before=$(in_end far cat "$range")
    tell far "sysctl net.ipv4.ip_local_port_range='50000 50001'"
    in_end far sh -c "echo 50000 50001 >$range"
    tell near "three connections to $forward"
    expect "the third ends as a reset" in_end near timeout 20 python3 -c '
import socket, sys
host, port = sys.argv[1].split(":")
kept = [socket.create_connection((host, int(port))) for _ in range(3)]
ended = 0
for one in kept:
    one.settimeout(2)
    try:
        one.recv(1)
    except ConnectionResetError:
        ended += 1
    except TimeoutError:
        pass
sys.exit(ended != 1)' "$forward"
    expect "the far log names the remedy" await_count 1 \
        'no local port is left.*net.ipv4.ip_local_port_range.*target="127.0.0.1:7000"' "$scratch/far.0.log"
    expect "the near log names the cause" await_count 1 \
        'no free local port at the other end' "$scratch/near.0.log"
    in_end far sh -c "echo $before >$range"
}

quick_connections_of_a_peer_leave_local_ports_to_another() {
    local kernel=/proc/sys/net/ipv4 before reuse other_key
    before=$(in_end far cat "$kernel/ip_local_port_range") reuse=$(in_end far cat "$kernel/tcp_tw_reuse")
    tell far "sysctl net.ipv4.ip_local_port_range='50000 50059' net.ipv4.tcp_tw_reuse=0"
    in_end far sh -c "echo 50000 50059 >$kernel/ip_local_port_range; echo 0 >$kernel/tcp_tw_reuse"
    other_key=$("$keypadd" keygen "$scratch/other.key" 2>/dev/null)
    expect "the server starts" serve 10.99.7.1 --allow "other=$other_key"
    expect "the client connects" connect 10.99.7.1 -L "$forward_port:127.0.0.1:$target_port"
    tell near "keypadd connect 10.99.7.1 ... -L 7300:127.0.0.1:$target_port --key other.key"
    start near "$scratch/other.log" "$keypadd" connect "10.99.7.1:$udp_port" --peer "$far_key" \
        --key "$scratch/other.key" -L "7300:127.0.0.1:$target_port"
    local other=$started
    expect "another client connects" await_line "$scratch/other.log" '^keypadd: ready, connected'
    expect "half are left" probe quick "$forward" --connections 100 --exact 30
    expect "the other's pass" probe quick 127.0.0.1:7300 --connections 10 --exact 10
    expect "the far log names the remedy" await_count 1 'no local port is left for another connection' \
        "$scratch/far.0.log"
    kill -TERM "$other"
    await_end "$other" 10
    in_end far sh -c "echo $before >$kernel/ip_local_port_range; echo $reuse >$kernel/tcp_tw_reuse"
}

stdio_to_an_unreachable_target_says_why_and_ends() {
    local port code status
    mkfifo "$scratch/open-input"
    expect "the server starts" serve 10.99.7.1
    while read -r port code; do
        tell near "keypadd connect 10.99.7.1 ... -W 127.0.0.1:$port"
        # Standard input stays open, as an ssh client's does.
        in_end near timeout --foreground 20 "$keypadd" connect 10.99.7.1 --peer "$far_key" \
            --key "$scratch/near.key" -W "127.0.0.1:$port" \
            <>"$scratch/open-input" >"$scratch/out" 2>"$scratch/err"
        status=$?
        sed 's/^/    /' "$scratch/err"
        expect "exit $code" equal "$code" "$status"
        expect "a cause and a hint" equal 2 "$(wc -l <"$scratch/err")"
        expect "nothing on standard output" equal 0 "$(wc -c <"$scratch/out")"
        expect "its control socket is gone" silent find "$scratch/near.run" -name '*.sock'
    done <<<"$closed_port 1
$forbidden_port 4"
    rm "$scratch/open-input"
}

# await_count COUNT PATTERN FILE: waits until this many lines match.
await_count() {
    local turn
    for ((turn = 0; turn < 60; turn++)); do
        [ "$(grep -c -- "$2" "$3")" = "$1" ] && return 0
        sleep 0.05
    done
    equal "$1 lines" "$(grep -c -- "$2" "$3") lines"
}

# ---- ssh ----------------------------------------------------------------------------------------

ssh_runs_through_its_proxy_command() {
    local dir=$scratch/ssh
    mkdir -m 700 "$dir"
    expect "sshd starts" start_sshd "$dir"
    local sshd=$started
    # Every address of the host, as without --listen.
    expect "the server starts" serve '[::]'

    local proxy="'$keypadd' connect 10.99.7.1 --peer $far_key --key '$scratch/near.key' -W %h:%p"
    local ssh=(timeout --foreground 60 ssh -F none -p 2222 -i "$dir/user" -o BatchMode=yes
        -o "UserKnownHostsFile=$dir/known_hosts" -o StrictHostKeyChecking=yes
        -o "ProxyCommand=$proxy" root@localhost)
    tell near "ssh -o ProxyCommand='keypadd connect ... -W %h:%p' root@localhost"
    expect "a command runs" equal "here: $far" \
        "$(in_end near "${ssh[@]}" 'echo here: $(ip netns identify $$)' 2>"$dir/ssh.err")"
    head -c 10485760 /dev/urandom >"$dir/file"
    in_end near "${ssh[@]}" "cat >'$dir/there'" <"$dir/file" 2>>"$dir/ssh.err"
    expect "10 MiB arrive there" cmp "$dir/file" "$dir/there"
    in_end near "${ssh[@]}" "cat '$dir/there'" >"$dir/back" 2>>"$dir/ssh.err"
    expect "10 MiB come back" cmp "$dir/file" "$dir/back"
    sed 's/^/    /' "$dir/ssh.err"
    # ssh hangs up its proxy (SIGHUP); the server must not have to wait for the idle timeout.
    expect "each session was closed" await_count 3 'session ended.*the client is done' "$log"
    # ssh does not wait for its proxy, which may still be exiting.
    expect "no control socket is left" soon silent find "$scratch/near.run" -name '*.sock'

    kill -TERM "$sshd"
    await_end "$sshd" 10
    rm -rf "$dir"
}

a_hundred_ssh_sessions_share_the_tunnel_of_a_daemon() {
    local dir=$scratch/ssh session sessions=() whole=0
    mkdir -m 700 "$dir"
    expect "sshd starts" start_sshd "$dir"
    local sshd=$started
    expect "the server starts" serve '[::]'
    local server_log=$log
    printf '[peer.far]\npublic-key = "%s"\nendpoint = "10.99.7.1"\n' "$far_key" >"$dir/near.toml"
    expect "a daemon connects" daemon near '^keypadd: ready, connected' connect @far \
        --config "$dir/near.toml" -L "$forward_port:127.0.0.1:$target_port"

    head -c 262144 /dev/urandom >"$dir/file"
    local proxy="'$keypadd' connect @far --config '$dir/near.toml' --key '$scratch/near.key' -W %h:%p"
    tell near "100 times: ssh -o ProxyCommand='keypadd connect @far ... -W %h:%p' root@localhost"
    for ((session = 0; session < 100; session++)); do
        in_end near timeout --foreground 120 ssh -F none -p 2222 -i "$dir/user" -o BatchMode=yes \
            -o "UserKnownHostsFile=$dir/known_hosts" -o "ProxyCommand=$proxy" root@localhost \
            "cat '$dir/file'" </dev/null >"$dir/back.$session" 2>>"$dir/ssh.err" &&
            : >"$dir/done.$session" &
        sessions+=($!)
    done
    for ((session = 0; session < 100; session++)); do
        # On a busy host its process ID may be reused by now; bash then no longer has its status.
        wait "${sessions[session]}" 2>/dev/null || true
        [ -e "$dir/done.$session" ] && cmp -s "$dir/file" "$dir/back.$session" && whole=$((whole + 1))
    done
    sed 's/^/    /' "$dir/ssh.err"
    expect "all have the whole file" equal 100 "$whole"
    expect "they made no session of their own" await_count 1 'session established' "$server_log"
    kill -TERM "$sshd"
    await_end "$sshd" 10
    rm -rf "$dir"
}

# ---- UDP ----------------------------------------------------------------------------------------

# datagrams SUBCOMMAND...: runs the near end of a claim.
datagrams() {
    tell near "datagrams.py $*"
    in_end near timeout --foreground 120 python3 -B "$here/netns/datagrams.py" "$@" | sed 's/^/    /'
}

udp_forwards_carry_dns_a_game_and_datagrams_of_any_size() {
    tell far "datagrams.py serve 5300 5301"
    start far "$scratch/datagrams.log" python3 -B "$here/netns/datagrams.py" serve 5300 5301
    local service=$started process game
    expect "the service starts" await_line "$scratch/datagrams.log" listening
    expect "the server starts" serve 10.99.7.1 \
        --permit-open udp:127.0.0.1:5300,udp:127.0.0.1:5301 --permit-listen udp:5400
    expect "the client connects" connect 10.99.7.1 -L "$forward_port:127.0.0.1:$target_port" \
        -L 5353:udp:127.0.0.1:5300 -L 5354:udp:127.0.0.1:5301 -R 5400:udp:127.0.0.1:5354
    expect "names resolve" datagrams dns 127.0.0.1:5353
    expect "sizes" datagrams sizes 127.0.0.1:5354
    tell far "datagrams.py sizes 127.0.0.1:5400"
    # Through the tunnel twice: out and back.
    expect "sizes, from far" in_end far python3 -B "$here/netns/datagrams.py" sizes 127.0.0.1:5400
    expect "a game" datagrams game 127.0.0.1:5354 10
    datagrams game 127.0.0.1:5354 10 &
    game=$!
    expect "bulk beside it" probe swap "$forward" --mib "$mib"
    expect "the game beside bulk" wait "$game"
    for process in "$server" "$client"; do
        expect "a filter of system calls is on" equal " 2" "$(of_all_threads "$process" Seccomp)"
    done
    kill -TERM "$service"
    await_end "$service" 10
}

# ---- DNS ----------------------------------------------------------------------------------------

a_service_of_dns_is_reached_at_the_target_that_answers() {
    # The preferred record comes last.
    local targets=(20:alive.example:10.99.7.1 10:dead.example:10.99.7.9)
    tell near "names.py $udp_port ${targets[*]}"
    start near "$scratch/names.log" \
        python3 -B "$here/netns/names.py" "$udp_port" "${targets[@]}"
    local service=$started
    expect "the DNS server starts" await_line "$scratch/names.log" listening
    echo 'nameserver 127.0.0.1' >"$scratch/resolv.conf"
    expect "the server starts" serve 10.99.7.1
    # `ip netns exec` runs in its own mount namespace.
    local within=(sh -c 'mount --bind "$0" /etc/resolv.conf && exec "$@"' "$scratch/resolv.conf")
    expect "the client connects" daemon near '^keypadd: ready, connected' connect \
        _keypadd._udp.example --peer "$far_key" -L "$forward_port:127.0.0.1:$target_port"
    local client=$started
    within=()
    expect "the preferred target was looked up" grep -q '^udp dead.example' "$scratch/names.log"
    expect "the answer was fetched by TCP" grep -q '^tcp _keypadd._udp.example' "$scratch/names.log"
    expect "the status names the target" shows near "(alive.example:$udp_port)"
    expect "bytes pass" probe swap "$forward" --mib 1
    expect "a filter of system calls is on" equal " 2" "$(of_all_threads "$client" Seccomp)"
    kill -TERM "$service"
    await_end "$service" 10
}

# ---- outages ------------------------------------------------------------------------------------

an_outage_and_another_address_cost_neither_a_download_nor_ssh_a_byte() {
    local dir=$scratch/ssh client_log=$scratch/near.0.log swapping session
    mkdir -m 700 "$dir"
    expect "sshd starts" start_sshd "$dir"
    local sshd=$started
    # Both ends time the connection out after 10 s, instead of 30.
    export KEYPADD_PEER_TIMEOUT=10s
    tunnel aes-256-gcm
    local proxy="'$keypadd' connect 10.99.7.1 --peer $far_key --key '$scratch/near.key' -W %h:%p"
    tell near "ssh -o ProxyCommand='keypadd connect ... -W %h:%p' root@localhost 'a line a second'"
    in_end near timeout --foreground 120 ssh -F none -p 2222 -i "$dir/user" -o BatchMode=yes \
        -o "UserKnownHostsFile=$dir/known_hosts" -o "ProxyCommand=$proxy" root@localhost \
        'for line in $(seq 20); do echo $line; sleep 1; done; cat' \
        < <(sleep 12 && seq 1000) >"$dir/lines" 2>"$dir/ssh.err" &
    session=$!
    probe swap "$forward" --mib 1024 &
    swapping=$!
    sleep 2
    tell near "ip link set veth0 down"
    ip -n "$near" link set veth0 down
    expect "the client holds the download" soon grep -q 'is away.*1 connection held' "$client_log"
    expect "ssh's client holds its connection" soon grep -q '1 connection held' "$dir/ssh.err"
    expect "status shows it" shows far '1 connection held'
    move_near 10.99.7.2 10.99.7.3
    ip -n "$near" link set veth0 up
    expect "the download is back" soon grep -q 'back; held connections resumed: 1 of 1' "$client_log"
    expect "SHA-256 is equal" wait "$swapping"
    expect "ssh ends well" wait "$session"
    expect "not a character is missing" cmp "$dir/lines" <(seq 20; seq 1000)
    expect "each change was one line" equal 2 "$(grep -cE 'is away|back; ' "$client_log")"
    unset KEYPADD_PEER_TIMEOUT
    ip -n "$near" link set veth0 down
    move_near 10.99.7.3 10.99.7.2
    ip -n "$near" link set veth0 up
    ip -n "$near" addr add fd00:99:7::2/64 dev veth0 nodad
    kill -TERM "$sshd"
    await_end "$sshd" 10
    rm -rf "$dir"
}

# ---- the pool -----------------------------------------------------------------------------------

# Lists a process's threads with name and scheduling policy (proc(5): fields 2 and 41 of stat).
threads() {
    sed -E 's/^[0-9]+ \((.*)\) (.*)$/\1 \2/' "/proc/$1"/task/*/stat | awk '{ print $1, $40 }'
}

the_pool_serves_quiet_traffic_and_inline_the_burst() {
    # With bitslicing a filler may keep up with the burst; one block at a time, none does.
    tunnel 3des-ctr-hmac-sha1 --cipher-backend des-crate
    local process end
    for process in "$server" "$client"; do
        expect "the filler is SCHED_IDLE (policy 5)" \
            equal "keypadd-fill 5" "$(threads "$process" | grep '^keypadd-fill')"
        expect "and no other thread is" equal 1 "$(threads "$process" | grep -c ' 5$')"
    done
    local -A pool inline
    for end in far near; do
        pool[$end]=$(metric $end 'keypadd_keystream_bytes_total{source="pool"}')
    done
    expect "quiet traffic passes" probe trips quiet="$forward" --bytes 256 --rate 100 --seconds 5
    for end in far near; do
        # 500 messages each way, 256 bytes each; on a busy machine seven in eight may miss.
        expect "the pool served it, $end" grown "${pool[$end]}" \
            "$(metric $end 'keypadd_keystream_bytes_total{source="pool"}')" 32000
        inline[$end]=$(metric $end 'keypadd_keystream_bytes_total{source="inline"}')
    done
    # More than the whole budget, 64 MiB, each way.
    expect "a burst passes" probe swap "$forward" --mib 96
    for end in far near; do
        expect "inline served the burst, $end" grown "${inline[$end]}" \
            "$(metric $end 'keypadd_keystream_bytes_total{source="inline"}')" 16000000
        metric $end 'keypadd_keystream_bytes_total{source="pool"}' | sed "s/^/    $end pool /"
        metric $end 'keypadd_keystream_bytes_total{source="inline"}' | sed "s/^/    $end inline /"
    done
}

# Timing decides no test: prints the comparison and fails only on wrong bytes.
round_trips_of_1024_bytes_at_100_a_second_are_compared() {
    nth=0 tunnel 3des-ctr-hmac-sha1
    nth=1 tunnel aes-256-gcm
    nth=2 tunnel 3des-ctr-hmac-sha1 --pool off --cipher-backend des-crate
    nth=0 expect "the pools of 3DES fill up" pools_fill_up
    nth=1 expect "the pools of AES fill up" pools_fill_up
    expect "round trips" probe trips beside-the-tunnel="$target" \
        3des-pooled="127.0.0.1:$forward_port" \
        aes-256-gcm="127.0.0.1:$((forward_port + 1))" \
        des-crate-inline="127.0.0.1:$((forward_port + 2))" \
        --rule 3des-pooled,aes-256-gcm,at-most,1.1 --rule des-crate-inline,aes-256-gcm,at-least,2.5 \
        --bytes 1024 --rate 100 --seconds 6 --rounds 5
}

# ---- sandbox ------------------------------------------------------------------------------------

# of_all_threads PROCESS WORD: prints the distinct values of a field in the status of all threads.
of_all_threads() {
    awk -v word="$2:" '$1 == word { $1 = ""; print }' "/proc/$1"/task/*/status | sort -u
}

daemons_become_another_user_and_carry_bytes() {
    tunnel aes-256-gcm --user nobody
    local id process
    id=$(id -u nobody)
    for process in "$server" "$client"; do
        expect "all threads are nobody" equal " $id $id $id $id" "$(of_all_threads "$process" Uid)"
        expect "without capabilities" equal " 0000000000000000" \
            "$(of_all_threads "$process" CapPrm)"
        expect "without groups of root" equal " $(id -G nobody)" \
            "$(of_all_threads "$process" Groups)"
    done
    expect "SHA-256 is equal" probe swap "$forward" --mib 16
}

# ---- memory -------------------------------------------------------------------------------------

# The transport windows of keypadd-tunnel (receive 64 MiB, send 16 MiB) plus 8 MiB, in KiB.
memory_limit_kib=$(((64 + 16 + 8) * 1024))

kib() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$1/status"; }

# grows_within_limit COMMAND...: bounds both daemons' memory growth while it runs.
grows_within_limit() {
    local server_before client_before result=0
    # 5 resets the peak to the current value (proc(5), clear_refs).
    echo 5 >"/proc/$server/clear_refs"
    echo 5 >"/proc/$client/clear_refs"
    server_before=$(kib "$server" VmRSS)
    client_before=$(kib "$client" VmRSS)
    "$@" || result=1
    local server_grown=$(($(kib "$server" VmHWM) - server_before))
    local client_grown=$(($(kib "$client" VmHWM) - client_before))
    printf '    KiB more at most: far %d, near %d; limit %d\n' \
        "$server_grown" "$client_grown" "$memory_limit_kib"
    [ "$server_grown" -le "$memory_limit_kib" ] && [ "$client_grown" -le "$memory_limit_kib" ] &&
        return $result
    return 1
}

a_gibibyte_at_readers_that_stop_costs_no_more_than_the_windows() {
    # 32 readers, since a stream of 2 MiB alone cannot fill the connection's window.
    tunnel aes-256-gcm
    expect "the pools fill up" pools_fill_up
    expect "near to far" \
        grows_within_limit probe push "$forward" --connections 32 --mib 1024
    end_daemons
    tunnel aes-256-gcm
    expect "the pools fill up" pools_fill_up
    expect "far to near" \
        grows_within_limit probe stop "$forward" --connections 32 --mib 1024 --target "$target"
}

# ---- the end ------------------------------------------------------------------------------------

a_signal_ends_both_cleanly() {
    local held
    # SIGTERM would drain open connections; tests/cli tests that.
    tunnel aes-256-gcm --drain-timeout 0s
    start near "$scratch/held.log" timeout 60 python3 -B "$here/netns/probe.py" hold "$forward"
    held=$started
    expect "a connection is open" await_line "$scratch/held.log" held
    expect "each has a control socket" equal 2 \
        "$(find "$scratch/far.run" "$scratch/near.run" -name '*.sock' | wc -l)"

    tell near "kill -$1 the client"
    kill "-$1" "$client"
    await_end "$client" 10
    expect "the client's exit status" equal 0 "$status"
    expect "its ports are free" silent in_end near ss -H -lntu
    expect "its control socket is gone" silent find "$scratch/near.run" -name '*.sock'
    await_end "$held" 10
    expect "the open connection ends with it" equal 0 "$status"

    tell far "kill -$1 the server"
    kill "-$1" "$server"
    await_end "$server" 10
    expect "the server's exit status" equal 0 "$status"
    expect "its ports are free" silent in_end far ss -H -lntu \
        "sport = :$udp_port or sport = :$metrics_port"
    expect "its control socket is gone" silent find "$scratch/far.run" -name '*.sock'

    tunnel aes-256-gcm # at once, on the same ports
    expect "and all works again" probe swap "$forward" --mib 1
}

a_client_whose_server_was_killed_finds_it_when_it_is_back() {
    local began=$SECONDS client_log=$scratch/near.0.log
    # The default, 30 s, is longer than await_line waits.
    KEYPADD_PEER_TIMEOUT=10s tunnel aes-256-gcm
    tell far "kill -KILL the server"
    kill -KILL "$server"
    wait "$server" 2>/dev/null
    expect "the client notices" await_line "$client_log" 'connection lost (timeout); reconnecting'
    printf '    after %d s\n' $((SECONDS - began))
    rm -f "$scratch/far.run"/*.sock # the killed server's
    expect "the server starts again" serve 10.99.7.1 --suite aes-256-gcm
    expect "the client comes back" await_line "$client_log" 'reconnected after'
    expect "and all works again" probe swap "$forward" --mib 1
    expect "each change was one line" equal 2 \
        "$(grep -cE 'connection lost|reconnected after' "$client_log")"
}

# reset_token far|near: what the server there answers for a connection that it does not know.
reset_token() {
    in_end "$1" timeout 20 python3 -c '
import socket, sys
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(0.5)
while True:
    asking.sendto(b"\x40\xff" + bytes(60), ("127.0.0.1", int(sys.argv[1])))
    try:
        print(asking.recv(2048)[-16:].hex())
        break
    except TimeoutError:
        pass' "$((udp_port + nth))"
}

hosts_with_one_key_on_one_address_have_reset_tokens_of_their_own() {
    local of_far of_near
    expect "the server starts" serve '[::]'
    of_far=$(reset_token far)
    start near "$scratch/twin.log" "$keypadd" serve --key "$scratch/far.key" \
        --listen "[::]:$((udp_port + nth))" --allow "near=$near_key" --permit-open localhost:22
    local twin=$started
    expect "another with its key starts" await_line "$scratch/twin.log" '^keypadd: ready on udp'
    of_near=$(reset_token near)
    expect "both answer" [ "${#of_far}-${#of_near}" = 32-32 ]
    expect "they answer differently" [ "$of_far" != "$of_near" ]
    kill -TERM "$twin" "$server"
    await_end "$twin" 10
    await_end "$server" 10
    expect "the server starts again" serve '[::]'
    expect "and answers as before" equal "$of_far" "$(reset_token far)"
}

# ---- memory -------------------------------------------------------------------------------------

a_server_in_a_small_container_outlives_readers_that_stop() {
    local status
    tell host "memory.py keypadd --mib $1"
    timeout 60 python3 -B "$here/netns/memory.py" "$keypadd" --mib "$1"
    status=$?
    # 77: it has said why it was left out.
    expect "the server lives, and another peer's bytes are right" [ "$status" = 0 -o "$status" = 77 ]
}

# -------------------------------------------------------------------------------------------------

suites=(
    aes-256-gcm aes-128-gcm chacha20-poly1305
    aes-256-ctr-hmac-sha256 aes-256-ctr-hmac-sha1 aes-128-ctr-hmac-sha256 aes-128-ctr-hmac-sha1
    3des-ctr-hmac-sha256 3des-ctr-hmac-sha1 des-ctr-hmac-sha256 des-ctr-hmac-sha1
)

[ $# -ge 1 ] || die "usage: tests/netns.sh BINARY [CLAIM...]"
keypadd=$(realpath -- "$1")
[ -x "$keypadd" ] || die "no program: $1 (cargo build --release)"
shift
check_needs
# Only the command line may set a daemon's options.
unset "${!KEYPADD_@}"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/keypadd-netns.XXXXXX") || die "no scratch directory"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_topology
make_keys
tell far "target.py $target_port"
start far "$scratch/target" python3 -B "$here/netns/target.py" "$target_port"
await_line "$scratch/target" listening || die "target.py: $(cat "$scratch/target")"

wanted=("$@")
# claim NAME ARGUMENT...: runs the scenario if it was selected.
claim() {
    local want
    for want in "${wanted[@]:-}"; do
        case "$*" in *"$want"*) scenario "$@" && return ;; esac
    done
}

claim half_close_is_exact_both_ways
claim daemons_become_another_user_and_carry_bytes
claim resets_pass_as_resets_both_ways
claim refused_and_unpermitted_targets_end_as_resets
claim a_target_that_uses_all_local_ports_is_refused_with_the_remedy
claim quick_connections_of_a_peer_leave_local_ports_to_another
claim stdio_to_an_unreachable_target_says_why_and_ends
claim two_hundred_connections_at_once_are_exact
claim ipv6_carries_the_tunnel_and_the_forward
claim packets_are_as_long_as_the_path_carries aes-256-gcm 1500 1452
claim packets_are_as_long_as_the_path_carries aes-256-gcm 9000 8972
claim packets_are_as_long_as_the_path_carries 3des-ctr-hmac-sha1 9000 1452
claim a_path_that_shrinks_costs_no_connection 1500 1452
claim a_path_that_shrinks_costs_no_connection 9000 8972
claim ssh_runs_through_its_proxy_command
claim a_hundred_ssh_sessions_share_the_tunnel_of_a_daemon
claim udp_forwards_carry_dns_a_game_and_datagrams_of_any_size
if command -v wireguard-go >/dev/null && command -v wg >/dev/null && command -v ping >/dev/null; then
    claim wireguard_runs_through_a_udp_forward
else
    echo "left out: WireGuard through a UDP forward (apt-get install wireguard-go wireguard-tools iputils-ping)"
fi
claim networks_of_two_sites_pass_what_they_may_at_any_mtu
claim a_gateway_that_is_not_ready_is_told_what_it_lacks
claim a_packet_that_two_gateways_route_at_each_other_ends
claim a_network_goes_on_at_another_endpoint_over_its_device
claim a_route_into_the_tunnel_does_not_carry_the_tunnel
claim a_service_of_dns_is_reached_at_the_target_that_answers
claim an_outage_and_another_address_cost_neither_a_download_nor_ssh_a_byte
claim hosts_with_one_key_on_one_address_have_reset_tokens_of_their_own
claim a_signal_ends_both_cleanly TERM
claim a_signal_ends_both_cleanly INT
claim a_client_whose_server_was_killed_finds_it_when_it_is_back
claim a_persons_day_ends_with_nothing_left_behind
claim a_gibibyte_at_readers_that_stop_costs_no_more_than_the_windows
claim a_server_in_a_small_container_outlives_readers_that_stop 128
claim the_pool_serves_quiet_traffic_and_inline_the_burst
[ -n "$quick" ] || claim round_trips_of_1024_bytes_at_100_a_second_are_compared
for suite in "${suites[@]}"; do
    claim random_bytes_arrive_exactly_both_ways "$suite"
done

[ "$verdict" = 0 ] && echo "all claims hold" || echo "not all claims hold"
exit "$verdict"
