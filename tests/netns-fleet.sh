#!/usr/bin/env bash
# Tests a fleet end to end: three servers with one address, behind the nftables rules that
# examples/fleet/balancer prints, and their clients.
#
#     near                 balancer                      one, two, three
#   +-----------+   veth +-----------------+  veth each +-----------------------------+
#   | clients   |--------| 10.97.0.100:4433|------------| keypadd run   10.97.N.2     |
#   +-----------+        +-----------------+            | target.py     127.0.0.1:7000|
#    10.97.0.2            10.97.0.1, 10.97.N.1          +-----------------------------+
#
#    tests/netns-fleet.sh target/release/keypadd              every scenario, about 6 minutes
#    tests/netns-fleet.sh target/release/keypadd CLAIM...     scenarios whose names contain a CLAIM
#    FLEET_SESSIONS=10 tests/netns-fleet.sh ...               10 sessions with bulk, not 60
#
# Needs root, iproute2, nftables, curl and python3. Prints `ok - ...` or `not ok - ...` for each scenario;
# exits with 1 if one failed.

set -u -o pipefail

if [ -z "${NETNS_BOUNDED-}" ]; then
    NETNS_BOUNDED=1 exec timeout --kill-after=20 1200 "${BASH_SOURCE[0]}" "$@"
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/netns/harness.sh"

service=10.97.0.100
sessions=${FLEET_SESSIONS-60}
clients=20
forward_first=7100
balancer=fleet-balancer-$$ one=fleet-one-$$ two=fleet-two-$$ three=fleet-three-$$
near=fleet-near-$$
namespaces=("$balancer" "$one" "$two" "$three")
servers=(one two three)
ids=(0x0101010101010101 0x0202020202020202 0xd303030303030303)

# link NTH NAMESPACE: joins it to the balancer as 10.97.NTH.2.
link() {
    ip -n "$balancer" link add "veth$1" type veth peer name veth0 netns "${!2}" &&
        ip -n "$balancer" addr add "10.97.$1.1/24" dev "veth$1" &&
        ip -n "$balancer" link set "veth$1" up &&
        ip -n "${!2}" link set lo up &&
        ip -n "${!2}" addr add "10.97.$1.2/24" dev veth0 &&
        ip -n "${!2}" link set veth0 up &&
        ip -n "${!2}" route add default via "10.97.$1.1" || die "cannot join $2 to the balancer"
}

make_fleet() {
    local nth end
    for end in "$near" "${namespaces[@]}"; do
        ip netns add "$end" || die "cannot make network namespaces"
    done
    for end in near balancer "${servers[@]}"; do
        mkdir -m 700 "$scratch/$end.run"
    done
    link 0 near
    ip -n "$balancer" addr add "$service/24" dev veth0
    in_end balancer sysctl -qw net.ipv4.ip_forward=1
    # A second address stays when the first one goes.
    in_end near sysctl -qw net.ipv4.conf.all.promote_secondaries=1
    near_key=$("$keypadd" keygen "$scratch/near.key" 2>/dev/null)
    keys=()
    for nth in 1 2 3; do
        end=${servers[nth - 1]}
        link "$nth" "$end"
        keys+=("\"$("$keypadd" keygen "$scratch/$end.key" 2>/dev/null)\"")
        mkdir -p "$scratch/$end/peers.d"
        cat >"$scratch/$end/keypadd.toml" <<-END
			key = "$scratch/$end.key"
			listen = "10.97.$nth.2:4433"
			server-id = "${ids[nth - 1]}"
			pool = "off"
			metrics = "10.97.$nth.2:9464"
			permit-open = ["127.0.0.1:$target_port"]
			[peer.near]
			public-key = "$near_key"
		END
    done
    for nth in 1 2 3; do
        printf '%s 10.97.%d.2\n' "${ids[nth - 1]}" "$nth"
    done >"$scratch/servers"
}

# run END NAME READY: starts a daemon of a file; its log is $log.
run() {
    log=$scratch/$2.log
    start "$1" "$log" "${within[@]}" "$keypadd" run --config "$scratch/$2/keypadd.toml"
    daemon_of[$2]=$started
    await_line "$log" "$3"
}

declare -A daemon_of=()

# start_servers [NO-BALANCER]
start_servers() {
    local end
    for end in "${servers[@]}"; do
        start "$end" "$scratch/$end.target.log" python3 -B "$here/netns/target.py" "$target_port"
        target_of[$end]=$started
        expect "server $end starts" run "$end" "$end" 'ready'
    done
    following=
    [ $# = 0 ] || return 0
    start balancer "$scratch/follow.log" "$here/../examples/fleet/follow" "$service" "$scratch/servers"
    following=$started
    expect "the rules are there" soon in_end balancer nft list table ip keypadd_fleet
}

declare -A target_of=()

# start_client NTH [KEY]: starts a client with a forward at port 7100 + NTH.
start_client() {
    local nth=$1 list
    list=$(IFS=,; echo "${keys[*]}")
    mkdir -p "$scratch/client$nth"
    printf '%s\n' "key = \"$scratch/${2-near}.key\"" 'pool = "off"' \
        'log = "info,keypadd_tunnel=debug"' '[peer.fleet]' "public-key = [$list]" \
        "endpoint = \"${endpoint-$service}\"" \
        "local = [\"$((forward_first + nth)):127.0.0.1:$target_port\"]" >"$scratch/client$nth/keypadd.toml"
    run near "client$nth" 'connected'
}

stop() {
    kill -TERM "${daemon_of[$1]}" 2>/dev/null
    await_end "${daemon_of[$1]}" 15
    unset "daemon_of[$1]"
}

# Ends what a scenario has started, clients first.
end_fleet() {
    local name end
    for name in $(printf '%s\n' "${!daemon_of[@]}" | sort); do
        case $name in client*) stop "$name" ;; esac
    done
    for name in "${!daemon_of[@]}"; do stop "$name"; done
    # Nobody follows without a balancer.
    kill -KILL "${target_of[@]}" ${following:+"$following"}
    wait "${target_of[@]}" ${following:+"$following"} 2>/dev/null
    target_of=()
    in_end balancer nft flush ruleset
    expect "no daemon panics" silent grep -hs panicked "$scratch"/*.log
}


# ---- scenarios ----------------------------------------------------------------------------------

# bulk_attaches COUNT: in each of so many sessions that follow each other.
bulk_attaches() {
    local nth attached=0
    for ((nth = 0; nth < $1; nth++)); do
        start_client 0 || { expect "client $nth connects" false; break; }
        probe swap "127.0.0.1:$forward_first" --mib 4 >"$scratch/probe" ||
            { cat "$scratch/probe"; expect "session $nth carries its bytes" false; }
        grep -qs 'bulk connection attached' "$log" && attached=$((attached + 1))
        expect "no bulk connection of session $nth fails" silent grep -hs 'bulk connection failed' "$log"
        stop client0
    done
    printf '    bulk attached in %d of %d sessions\n' "$attached" "$1"
    expect "bulk attaches in all" equal "$1" "$attached"
}

bulk_attaches_in_every_session() {
    start_servers
    local at end
    bulk_attaches "$sessions"
    for end in "${servers[@]}"; do
        at=$(grep -c 'session established' "$scratch/$end.log")
        # Not all are logged: a peer causes only so many lines a minute.
        printf '    %s logged %d sessions\n' "$end" "$at"
        expect "server $end has a share" [ "$at" -gt 0 ]
    done
    end_fleet
}

a_transfer_survives_another_source_address_and_port() {
    start_servers
    expect "the client connects" start_client 0
    probe swap "127.0.0.1:$forward_first" --mib 512 >"$scratch/probe" 2>&1 &
    local transfer=$!
    sleep 1
    in_end near nft -f - <<-END
		table ip shift {
		    chain out {
		        type filter hook output priority raw
		        udp dport 4433 udp sport set udp sport ^ 0x0200
		    }
		    chain in {
		        type filter hook prerouting priority raw
		        udp sport 4433 udp dport set udp dport ^ 0x0200
		    }
		}
	END
    sleep 0.5
    ip -n "$near" addr add 10.97.0.3/24 dev veth0
    ip -n "$near" addr del 10.97.0.2/24 dev veth0
    ip -n "$near" route replace default via 10.97.0.1
    expect "the transfer is under way" kill -0 "$transfer"
    wait "$transfer"
    expect "the transfer is exact" equal 0 $?
    cat "$scratch/probe"
    expect "the session was never lost" silent grep -hsE 'away|lost|moved' "$log"
    in_end near nft delete table ip shift
    ip -n "$near" addr add 10.97.0.2/24 dev veth0
    ip -n "$near" addr del 10.97.0.3/24 dev veth0
    ip -n "$near" route replace default via 10.97.0.1
    end_fleet
}

start_clients() {
    local nth
    for ((nth = 0; nth < clients; nth++)); do
        expect "client $nth connects" start_client "$nth"
    done
}

# use_forwards SECONDS: uses a connection of each client all the time; its process is $echoes.
use_forwards() {
    in_end near python3 -B "$here/netns/echoes.py" "$1" "$forward_first" "$clients" >"$scratch/echoes" &
    echoes=$!
}

# no_client_is_reset WHAT: waits for their end; $worst is the longest time without an answer.
no_client_is_reset() {
    local port resets longest
    worst=0
    wait "$echoes"
    expect "every client has answers in the end" equal 0 $?
    while read -r port resets longest; do
        expect "client $((port - forward_first)) $1" equal 0 "$resets"
        worst=$(printf '%s\n%s\n' "$worst" "$longest" | sort -g | tail -n 1)
    done <"$scratch/echoes"
    printf '    the slowest of %d was without an answer for %s s\n' "$clients" "$worst"
}

# Waits for their end: none of them was reset, or waited for long.
forwards_lose_nothing() {
    local worst
    no_client_is_reset "loses nothing"
    expect "nobody waits for more than 2 s" awk -v longest="$worst" 'BEGIN { exit longest > 2 }'
}

# Kills the first server; its clients are elsewhere in time, and the others notice nothing.
kill_one() {
    local nth port resets longest moved=0 at worst=0
    at=$(sessions_at one)
    use_forwards 20
    sleep 5
    kill -KILL "${daemon_of[one]}" "${target_of[one]}"
    wait "${daemon_of[one]}" "${target_of[one]}" 2>/dev/null
    wait "$echoes"
    expect "every client has answers in the end" equal 0 $?
    while read -r port resets longest; do
        nth=$((port - forward_first))
        if grep -qs 'server is silent; moved to another' "$scratch/client$nth.log"; then
            moved=$((moved + 1))
            worst=$(printf '%s\n%s\n' "$worst" "$longest" | sort -g | tail -n 1)
            expect "client $nth is elsewhere within 5 s, not $longest" \
                awk -v longest="$longest" 'BEGIN { exit longest > 5 }'
            expect "client $nth says what was reset" grep -qs \
                "open connections reset: 1 (1 of .*:$target_port)" "$scratch/client$nth.log"
        else
            expect "client $nth loses nothing" equal 0 "$resets"
            expect "client $nth waits for nothing, not $longest s" \
                awk -v longest="$longest" 'BEGIN { exit longest > 1 }'
        fi
    done <"$scratch/echoes"
    printf '    %d of %d clients moved; the slowest was without an answer for %s s\n' \
        "$moved" "$clients" "$worst"
    expect "those that moved are the dead server's" equal "$at" "$moved"
    unset 'daemon_of[one]' 'target_of[one]'
}

one_server_killed_its_clients_are_elsewhere_within_5_s_and_the_others_lose_nothing() {
    start_servers
    start_clients
    kill_one
    end_fleet
}

# sessions_at SERVER: how many it has.
sessions_at() {
    in_end "$1" "$keypadd" status --json | grep -c '"role": "server"'
}

# ready_at SERVER: whether it says that it accepts new sessions.
ready_at() {
    in_end "$1" curl -fsm 1 -o /dev/null "http://$(address_of "$1"):9464/readyz"
}

address_of() {
    case $1 in one) echo 10.97.1.2 ;; two) echo 10.97.2.2 ;; three) echo 10.97.3.2 ;; esac
}

has_left() {
    [ "$(grep -ls 'server is draining: new connections go to another' "$scratch"/client*.log | wc -l)" -ge "$1" ]
}

has_none() {
    [ "$(sessions_at "$1")" = 0 ]
}

# drain_under_load SERVER: no connection is lost, and its clients make theirs elsewhere.
drain_under_load() {
    local at began
    at=$(sessions_at "$1")
    expect "$1 has clients" [ "$at" -gt 0 ]
    use_forwards 15
    sleep 3
    began=$(date +%s%N)
    expect "$1 is draining" grep -q draining <(in_end "$1" "$keypadd" drain)
    expect "$1 is not ready" refuse ready_at "$1"
    expect "its clients make their connections elsewhere" soon has_left "$at"
    printf '    %d of %d clients make new connections elsewhere after %d ms\n' \
        "$at" "$clients" $((($(date +%s%N) - began) / 1000000))
    expect "they do so within 5 s" [ $((($(date +%s%N) - began) / 1000000)) -le 5000 ]
    expect "their open connections are still there" equal "$at" "$(sessions_at "$1")"
    forwards_lose_nothing
    expect "$1 has no session left" soon has_none "$1"
    in_end "$1" "$keypadd" drain --off >/dev/null
    expect "$1 is ready again" ready_at "$1"
}

# refuse COMMAND...: it fails.
refuse() {
    ! "$@"
}

one_server_drained_under_load_loses_no_connection_and_gets_no_new_one() {
    start_servers
    start_clients
    drain_under_load two
    end_fleet
}

one_server_upgraded_under_load_loses_no_connection() {
    start_servers
    start_clients
    local new
    use_forwards 12
    sleep 3
    cp "$keypadd" "$scratch/upgraded"
    in_end two "$scratch/upgraded" reload --binary >"$scratch/said" 2>&1
    expect "the new program takes over" equal 0 $?
    new=$(sed -n 's/.*(process \([0-9]*\)).*/\1/p' "$scratch/said")
    sed 's/^/    /' "$scratch/said"
    expect "it says which process it is" [ -n "$new" ]
    daemon_of[two]=$new
    children+=("$new")
    forwards_lose_nothing
    expect "no client went elsewhere" silent grep -hs 'moved to another' "$scratch"/client*.log
    end_fleet
}

# ticks PROCESS: CPU time in hundredths of a second.
ticks() {
    awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"
}

# received SERVER: datagrams.
received() {
    in_end "$1" awk '$1 == "Udp:" && $2 ~ /[0-9]/ { print $2 + $4 }' /proc/net/snmp
}

a_forged_server_id_reaches_one_server_and_costs_it_what_a_stranger_costs() {
    start_servers
    local count=40000 end got=() before=() cpu per_forged per_stranger
    for end in "${servers[@]}"; do before+=("$(received "$end")"); done
    cpu=$(ticks "${daemon_of[two]}")
    in_end near python3 -B "$here/netns/forge.py" "$service" 4433 "${ids[1]}" "$count"
    sleep 1
    cpu=$(($(ticks "${daemon_of[two]}") - cpu))
    for end in 0 1 2; do got+=($(($(received "${servers[end]}") - before[end]))); done
    printf '    forged IDs of two: %d, %d and %d datagrams arrive\n' "${got[@]}"
    expect "all reach the server of that ID" [ "${got[1]}" -ge $((count * 95 / 100)) ]
    expect "none reaches another" equal "0 0" "${got[0]} ${got[2]}"
    per_forged=$((cpu * 10000 / got[1]))
    before=("$(received two)")
    cpu=$(ticks "${daemon_of[two]}")
    in_end near python3 -B "$here/netns/forge.py" 10.97.2.2 4433 - "$count"
    sleep 1
    cpu=$(($(ticks "${daemon_of[two]}") - cpu))
    per_stranger=$((cpu * 10000 / ($(received two) - before[0])))
    printf '    CPU time: %d us a forged one, %d us a stranger'"'"'s\n' "$per_forged" "$per_stranger"
    expect "it costs no more" [ "$per_forged" -le $((per_stranger * 3 / 2 + 5)) ]
    expect "clients still connect" start_client 0
    end_fleet
}

# Servers of an SRV record, with no balancer in the path.
with_srv_records_alone_bulk_attaches_a_dead_server_is_left_and_a_drain_loses_nothing() {
    local end names within=() endpoint=_keypadd._udp.example targets=(10:one.example:10.97.1.2)
    targets+=(10:two.example:10.97.2.2 10:three.example:10.97.3.2)
    start near "$scratch/names.log" python3 -B "$here/netns/names.py" 4433 "${targets[@]}"
    names=$started
    expect "the DNS server starts" await_line "$scratch/names.log" listening
    for end in "${servers[@]}"; do
        sed -i.with-id '/^server-id/d' "$scratch/$end/keypadd.toml"
    done
    start_servers no-balancer
    echo 'nameserver 127.0.0.1' >"$scratch/resolv.conf"
    # `ip netns exec` runs in its own mount namespace.
    within=(sh -c 'mount --bind "$0" /etc/resolv.conf && exec "$@"' "$scratch/resolv.conf")
    bulk_attaches 10
    start_clients
    drain_under_load two
    kill_one
    within=()
    end_fleet
    for end in "${servers[@]}"; do
        mv "$scratch/$end/keypadd.toml.with-id" "$scratch/$end/keypadd.toml"
    done
    kill -KILL "$names"
    wait "$names" 2>/dev/null
}

a_link_that_is_down_for_20_s_costs_no_connection() {
    start_servers
    local worst
    start_clients
    use_forwards 35
    sleep 5
    in_end balancer nft -f - <<-END
		table ip outage {
		    chain everything {
		        type filter hook prerouting priority -500
		        drop
		    }
		}
	END
    sleep 20
    in_end balancer nft delete table ip outage
    no_client_is_reset "keeps its connection"
    end_fleet
}

# reload_all: has all servers read their files; prints nothing unless one refuses.
reload_all() {
    local end
    for end in "${servers[@]}"; do
        in_end "$end" "$keypadd" reload >/dev/null
    done
}

a_peer_in_a_file_of_all_servers_is_in_force_within_2_s_and_gone_as_soon() {
    start_servers
    expect "a client connects" start_client 0
    in_end near python3 -B "$here/netns/echoes.py" 15 "$forward_first" 1 >"$scratch/echoes" &
    local echoes=$! end began other port resets longest
    other=$("$keypadd" keygen "$scratch/other.key" 2>/dev/null)
    sleep 1
    began=$(date +%s%N)
    for end in "${servers[@]}"; do
        printf '[peer.other]\npublic-key = "%s"\npermit-open = ["127.0.0.1:%d"]\n' "$other" "$target_port" \
            >"$scratch/$end/peers.d/other.toml"
    done
    expect "all servers read it" silent reload_all
    expect "the new peer connects" start_client 1 other
    within_2_s "from the files to the connected peer" "$began"
    began=$(date +%s%N)
    rm "$scratch"/*/peers.d/other.toml
    expect "all servers read that" silent reload_all
    expect "the session of the peer that is gone ends" await_line "$log" 'removed from the list\|not listed'
    within_2_s "from the removal to the end of the session" "$began"
    wait "$echoes"
    expect "the others have answers in the end" equal 0 $?
    read -r port resets longest <"$scratch/echoes"
    printf '    port %s: %s resets, %s s at most between answers\n' "$port" "$resets" "$longest"
    expect "the others lose nothing" equal 0 "$resets"
    end_fleet
}

# within_2_s WHAT BEGAN: at most 2 s have passed since then.
within_2_s() {
    local took=$((($(date +%s%N) - $2) / 1000000))
    printf '    %s: %d ms\n' "$1" "$took"
    expect "$1 takes at most 2 s" [ "$took" -le 2000 ]
}

# ---- main ---------------------------------------------------------------------------------------

[ $# -ge 1 ] || die "usage: netns-fleet.sh KEYPADD [CLAIM...]"
[ "$(id -u)" = 0 ] || die "needs root, for network namespaces"
PATH=$PATH:/usr/sbin:/sbin
for tool in ip nft curl python3 setpriv; do
    command -v "$tool" >/dev/null || die "missing: $tool"
done
keypadd=$(realpath "$1") || die "no $1"
shift
scratch=$(mktemp -d)
trap clean_up EXIT
trap 'exit 1' INT TERM
make_fleet
for claim in bulk_attaches_in_every_session \
    a_transfer_survives_another_source_address_and_port \
    a_link_that_is_down_for_20_s_costs_no_connection \
    one_server_killed_its_clients_are_elsewhere_within_5_s_and_the_others_lose_nothing \
    one_server_drained_under_load_loses_no_connection_and_gets_no_new_one \
    one_server_upgraded_under_load_loses_no_connection \
    a_forged_server_id_reaches_one_server_and_costs_it_what_a_stranger_costs \
    with_srv_records_alone_bulk_attaches_a_dead_server_is_left_and_a_drain_loses_nothing \
    a_peer_in_a_file_of_all_servers_is_in_force_within_2_s_and_gone_as_soon; do
    for wanted in "${@:-}"; do
        case $claim in *"$wanted"*) scenario "$claim"; break ;; esac
    done
done
exit "$verdict"
