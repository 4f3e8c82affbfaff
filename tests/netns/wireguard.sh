# Runs WireGuard through a UDP forward, for tests/netns.sh: two wireguard-go interfaces (TUN; no
# kernel module needed) whose packets take the forward. Sourced, never run. At WireGuard's own MTU
# of 1,420 bytes its datagrams have 1,452: more than a tunnel packet carries.
#
#    wgN 10.99.9.2 -> -L 51821:udp:127.0.0.1:51820 -> keypadd -> wgF 10.99.9.1

# wireguard far|near INTERFACE ADDRESS PORT: starts one end; its process is $started, its key
# `$scratch/wg-END`.
wireguard() {
    tell "$1" "wireguard-go $2"
    start "$1" "$scratch/wireguard-$1.log" env LOG_LEVEL=error wireguard-go --foreground "$2"
    soon test -S "/run/wireguard/$2.sock" &&
        in_end "$1" wg set "$2" private-key "$scratch/wg-$1" listen-port "$4" &&
        in_end "$1" ip addr add "$3/24" dev "$2" &&
        in_end "$1" ip link set "$2" mtu 1420 up
}

# pings BYTES: one echo of this size returns through WireGuard.
pings() {
    tell near "ping -s $1 10.99.9.1"
    in_end near ping -n -c 1 -w 20 -M do -s "$1" 10.99.9.1 | sed -n 's/.*bytes from/    &/p'
}

wireguard_runs_through_a_udp_forward() {
    local end wgf=wgf$$ wgn=wgn$$
    # wireguard-go's sockets; it leaves the directory behind.
    [ -d /run/wireguard ] || made_directories+=(/run/wireguard)
    for end in far near; do
        (umask 077 && wg genkey >"$scratch/wg-$end")
    done
    expect "WireGuard starts, far" wireguard far "$wgf" 10.99.9.1 51820
    local service=$started
    expect "WireGuard starts, near" wireguard near "$wgn" 10.99.9.2 51822
    local other=$started
    in_end far wg set "$wgf" peer "$(wg pubkey <"$scratch/wg-near")" allowed-ips 10.99.9.2/32
    in_end near wg set "$wgn" peer "$(wg pubkey <"$scratch/wg-far")" allowed-ips 10.99.9.1/32 \
        endpoint 127.0.0.1:51821

    expect "the server starts" serve 10.99.7.1 --permit-open udp:127.0.0.1:51820
    expect "the client connects" connect 10.99.7.1 -L 51821:udp:127.0.0.1:51820
    expect "a short ping returns" pings 56
    expect "one of WireGuard's MTU returns" pings 1392
    expect "SHA-256 is equal" probe swap "10.99.9.1:$target_port" --mib 16
    expect "the tunnel carried it" \
        grown 33000000 "$(in_end near wg show "$wgn" transfer | awk '{ print $2 + $3 }')" 1
    for end in "$service" "$other"; do
        kill -TERM "$end"
        await_end "$end" 10
    done
}
