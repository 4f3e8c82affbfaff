# Asks `keypadd` about a gateway that is not ready, for tests/netns.sh. Sourced, never run.

# says TEXT ARGUMENT...: `keypadd ARGUMENT...` says this at near.
says() {
    tell near "keypadd ${*:2}"
    in_end near timeout 60 "$keypadd" "${@:2}" >"$scratch/said" 2>&1
    grep -qF -- "$1" "$scratch/said" || { sed 's/^/    /' "$scratch/said" && return 1; }
}

a_gateway_that_is_not_ready_is_told_what_it_lacks() {
    local overlap="peer far: 10.99.7.64/26 of its networks overlaps 10.99.7.0/24 (veth0)" text
    expect "near starts" gateway near '^keypadd: ready' "[peer.far]
public-key = \"$far_key\"
endpoint = \"10.99.7.1:$((udp_port + nth))\"
networks = [\"10.86.3.0/24\", \"10.99.7.64/26\"]"
    expect "the log tells of the overlap once" equal 1 "$(grep -cF "$overlap" "$log")"
    expect "so does check" says "$overlap" check --config "$scratch/near.toml"
    # The trap of a default route.
    ip -n "$near" route add 10.99.7.1 dev kp-far
    expect "doctor tells of the overlap" says "warn  networks: $overlap" \
        doctor --config "$scratch/near.toml"
    for text in 'ok    networks: /dev/net/tun can be opened' \
        'ok    networks of far: the device kp-far is up, MTU 1400' \
        'warn  networks of far: there is no route to 10.86.3.0/24' \
        'fix: ip route add 10.86.3.0/24 dev kp-far' \
        'warn  networks of far: packets to 10.99.7.64/26 leave by veth0, not by kp-far' \
        'FAIL  networks of far: the route to the endpoint 10.99.7.1 leads into kp-far'; do
        expect "doctor says: $text" grep -qF -- "$text" "$scratch/said"
    done
}
