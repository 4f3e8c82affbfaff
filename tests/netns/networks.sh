# Joins two networks, for tests/netns.sh: near and far are the gateways of a client and a server that
# know nothing of keypadd. Sourced, never run.
#
#    client 10.86.1.2 -- 10.86.1.1 near ======= far 10.86.3.1 -- 10.86.3.2 server
#           fd86:1::2 -- fd86:1::1   |   veth0   |   fd86:3::1 -- fd86:3::2
#                                    '- kp-peer -'

# stub GATEWAY HOST SITE: makes a host behind a gateway.
stub() {
    local gateway=$1 host=$2 site=$3
    ip netns add "$host" && namespaces+=("$host") &&
        ip -n "$gateway" link add veth1 type veth peer name veth0 netns "$host" &&
        ip -n "$host" link set lo up &&
        ip -n "$host" addr add "10.86.$site.2/24" dev veth0 &&
        ip -n "$host" addr add "fd86:$site::2/64" dev veth0 nodad &&
        ip -n "$host" link set veth0 up &&
        ip -n "$gateway" addr add "10.86.$site.1/24" dev veth1 &&
        ip -n "$gateway" addr add "fd86:$site::1/64" dev veth1 nodad &&
        ip -n "$gateway" link set veth1 up &&
        ip -n "$host" route add default via "10.86.$site.1" &&
        ip -n "$host" route add default via "fd86:$site::1" &&
        ip netns exec "$gateway" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
}

# make_sites: makes the hosts behind both gateways, once.
make_sites() {
    client_host=${near}c server_host=${far}s
    ip netns exec "$client_host" true 2>/dev/null && return
    stub "$near" "$client_host" 1 && stub "$far" "$server_host" 3 || die "cannot make networks"
}

# gateway far|near READY-LINE LINES: runs a file with these lines.
gateway() {
    log=$scratch/$1.network.log
    printf 'key = "%s.key"\npool = "off"\nmetrics = "127.0.0.1:%s"\n%s\n' \
        "$1" "$((metrics_port + nth))" "$3" >"$scratch/$1.toml"
    chmod 600 "$scratch/$1.toml"
    tell "$1" "keypadd run --config $1.toml"
    start "$1" "$log" "$keypadd" run --config "$scratch/$1.toml"
    daemons+=("$1 $nth $started")
    await_line "$log" "$2"
}

# ping_from HOST ADDRESS BYTES: an echo of this size returns.
ping_from() {
    ip netns exec "$1" timeout 20 python3 -B "$here/netns/ping.py" "${@:2}" | sed 's/^/    /'
}

# dropped far|near PEER REASON: how many packets of networks it has dropped for that.
dropped() {
    metric "$1" "keypadd_network_packets_dropped_total{peer=\"$2\",reason=\"$3\"}"
}

fetches() {
    ip netns exec "$client_host" timeout 60 curl -sS --max-time 50 -o "$scratch/got" "$1" &&
        cmp -s "$scratch/got" "$scratch/web/file"
}

networks_of_two_sites_pass_what_they_may_at_any_mtu() {
    local size watcher
    make_sites
    expect "far starts" gateway far 'ready on udp' "listen = \"10.99.7.1:$((udp_port + nth))\"
[peer.near]
public-key = \"$near_key\"
networks = [\"10.86.1.0/24\", \"fd86:1::/64\"]
permit-networks = [\"10.86.3.0/24:8000\", \"10.86.3.0/24:icmp\", \"[fd86:3::/64]:icmp\", \"[fd86:3::/64]:8000\"]
routes = \"install\""
    expect "near starts" gateway near 'network up' "[peer.far]
public-key = \"$far_key\"
endpoint = \"10.99.7.1:$((udp_port + nth))\"
networks = [\"10.86.3.0/24\", \"fd86:3::/64\"]
routes = \"install\""

    tell far "ping.py --watch veth0"
    start far "$scratch/watch" python3 -B "$here/netns/ping.py" --watch veth0
    watcher=$started
    await_line "$scratch/watch" watching || die "ping.py: $(cat "$scratch/watch")"
    for size in 100 1300 3000; do
        expect "IPv4: an echo of $size bytes" ping_from "$client_host" 10.86.3.2 "$size"
        expect "IPv6: an echo of $size bytes" ping_from "$client_host" fd86:3::2 "$size"
    done
    kill -TERM "$watcher"
    await_end "$watcher" 10
    expect "the link between the gateways shows none of it" equal 0 "$status"

    ip netns exec "$server_host" timeout 5 python3 -B "$here/netns/ping.py" 10.86.1.2 100 >/dev/null &&
        expect "the server can begin nothing" false
    expect "that was counted" grown 0 "$(dropped near far destination)" 1
    ip -n "$client_host" addr add 10.99.99.9/32 dev lo
    ip netns exec "$client_host" timeout 5 \
        python3 -B "$here/netns/ping.py" 10.86.3.2 100 10.99.99.9 >/dev/null &&
        expect "another source gets no answer" false
    expect "that was counted" grown 0 "$(dropped far near source)" 1

    mkdir -p "$scratch/web" && head -c 1048576 /dev/urandom >"$scratch/web/file"
    ip netns exec "$server_host" setpriv --pdeathsig KILL \
        python3 -m http.server --bind :: --directory "$scratch/web" 8000 >/dev/null 2>&1 &
    children+=($!)
    soon ip netns exec "$server_host" curl -sS -o /dev/null http://10.86.3.2:8000/
    # Near drops what is longer, and nobody tells far, which sends each segment as a packet.
    ip -n "$far" link set veth0 mtu 9000 gso_max_segs 1
    for size in 1228 1280 1400 1500 9000; do
        ip -n "$near" link set veth0 mtu "$size"
        expect "a MiB arrives by IPv4, one way at $size" fetches http://10.86.3.2:8000/file
        expect "a MiB arrives by IPv6, one way at $size" fetches 'http://[fd86:3::2]:8000/file'
    done
    ip -n "$far" link set veth0 gso_max_segs 65535
    set_mtu 1500
    # The kernel takes it where the MTU is too small for IPv6.
    ip -n "$near" addr add fd00:99:7::2/64 dev veth0 nodad
}

# sites FAR-LISTENS NEAR-ENDPOINTS FAR-HAS NEAR-HAS: joins them; each network is a list with quotes.
sites() {
    make_sites
    expect "far starts" gateway far 'ready on udp' "listen = \"$1:$((udp_port + nth))\"
[peer.near]
public-key = \"$near_key\"
networks = [$4]
permit-networks = [\"10.86.0.0/16:icmp\"]
routes = \"${5:-install}\""
    far_gateway=$started
    expect "near starts" gateway near 'network up' "[peer.far]
public-key = \"$far_key\"
endpoint = [$2]
networks = [$3]
permit-networks = [\"10.86.0.0/16:icmp\"]
routes = \"${5:-install}\""
    near_gateway=$started
}

# cpu_ticks: CPU time of both gateways, in hundredths of a second.
cpu_ticks() {
    cat "/proc/$far_gateway/stat" "/proc/$near_gateway/stat" | awk '{ all += $14 + $15 } END { print all }'
}

a_packet_that_two_gateways_route_at_each_other_ends() {
    local before
    # 10.86.9.0/24 is behind the other one, both say.
    sites 10.99.7.1 "\"10.99.7.1:$((udp_port + nth))\"" '"10.86.3.0/24", "10.86.9.0/24"' \
        '"10.86.1.0/24", "10.86.9.0/24"'
    expect "an echo returns" ping_from "$client_host" 10.86.3.2 100
    ping_from "$client_host" 10.86.9.9 100 >/dev/null && expect "nobody is there" false
    expect "near drops and counts what comes back to it" grown 0 "$(dropped near far source)" 4
    # Each gateway takes this one from the other: its hop limit ends it.
    ip -n "$client_host" addr add 10.86.9.1/32 dev lo
    ip -n "$near" route add 10.86.9.1/32 via 10.86.1.2
    before=$(cpu_ticks)
    ping_from "$client_host" 10.86.9.9 100 10.86.9.1 >/dev/null && expect "nobody is there" false
    expect "that takes less than a second of CPU time" grown "$(cpu_ticks)" "$((before + 100))" 1
    expect "an echo returns afterwards" ping_from "$client_host" 10.86.3.2 100
    ip -n "$near" route del 10.86.9.1/32
    ip -n "$client_host" addr del 10.86.9.1/32 dev lo
}

a_network_goes_on_at_another_endpoint_over_its_device() {
    local port=$((udp_port + nth)) device
    ip -n "$far" addr add 10.99.7.3/24 dev veth0
    sites 0.0.0.0 "\"10.99.7.3:$port\", \"10.99.7.1:$port\"" '"10.86.3.0/24"' '"10.86.1.0/24"'
    expect "an echo returns" ping_from "$client_host" 10.86.3.2 100
    device=$(ip -n "$near" -o link show kp-far)
    ip -n "$far" addr del 10.99.7.3/24 dev veth0
    expect "the client moves" await_line "$log" 'moved to another address'
    expect "an echo returns" ping_from "$client_host" 10.86.3.2 100
    expect "the device is the one before" equal "$device" "$(ip -n "$near" -o link show kp-far)"
}

a_route_into_the_tunnel_does_not_carry_the_tunnel() {
    sites 10.99.7.1 "\"10.99.7.1:$((udp_port + nth))\"" '"0.0.0.0/0"' '"10.86.1.0/24"' none
    ip -n "$near" route add default dev kp-far
    ip -n "$far" route add 10.86.1.0/24 dev kp-near
    expect "an echo returns over a default route" ping_from "$client_host" 10.86.3.2 100
    ip -n "$near" route add 10.99.7.1/32 dev kp-far
    ping_from "$client_host" 10.86.3.2 100 >/dev/null && expect "the tunnel takes no packet" false
    expect "its own packets are dropped" grown 0 "$(dropped near far loop)" 1
    expect "the log says so" await_line "$log" 'packets of the network dropped.*loop'
    ip -n "$near" route del 10.99.7.1/32
    expect "an echo returns when the route is gone" soon ping_from "$client_host" 10.86.3.2 100
}
