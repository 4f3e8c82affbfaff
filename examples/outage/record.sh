#!/usr/bin/env bash
# Records a download through a tunnel that outlives a cut of the link and an upgrade of both daemons.
#
#     sudo examples/outage/record.sh target/release/keypadd >examples/outage/recording.txt
#
# Two network namespaces, a web server in one and curl in the other; about a minute. Prints a line a second with the
# bytes that have arrived, and what the client's daemon says. Needs root, iproute2, python3 and curl.

set -eu -o pipefail
installed=$(realpath -- "${1:?names no keypadd}")
scratch=$(mktemp -d)
far=kp-far-$$ near=kp-near-$$
started=()
clean_up() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    sleep 1
    ip netns del "$far"; ip netns del "$near"
    rm -rf "$scratch"
}
trap clean_up EXIT

ip netns add "$far"; ip netns add "$near"
ip link add kp0 netns "$far" type veth peer name kp0 netns "$near"
for end in "$far:1" "$near:2"; do
    ip -n "${end%:*}" addr add "10.99.8.${end#*:}/24" dev kp0
    ip -n "${end%:*}" link set kp0 up; ip -n "${end%:*}" link set lo up
done
# in NAMESPACE NAME COMMAND...: each end has its own control socket.
in_end() { RUNTIME_DIRECTORY=$scratch/$2 ip netns exec "$1" "${@:3}"; }
mkdir -m 700 "$scratch/far" "$scratch/near"
cp "$installed" "$scratch/keypadd"
keypadd=$scratch/keypadd

far_key=$("$keypadd" keygen "$scratch/far.key" 2>/dev/null)
near_key=$("$keypadd" keygen "$scratch/near.key" 2>/dev/null)
head -c 600000000 /dev/urandom >"$scratch/file"
(cd "$scratch" && exec ip netns exec "$far" python3 -m http.server --bind 127.0.0.1 80 >"$scratch/web.log" 2>&1) &
started+=($!)
in_end "$far" far "$keypadd" serve --key "$scratch/far.key" --allow "laptop=$near_key" --permit-open localhost:80 \
    --peer-timeout 10s >"$scratch/far.log" 2>&1 &
started+=($!)
sleep 1
in_end "$near" near "$keypadd" connect 10.99.8.1 --key "$scratch/near.key" --peer "$far_key" -L 8080:localhost:80 \
    --peer-timeout 10s >"$scratch/near.log" 2>&1 &
started+=($!)
sleep 1

began=$SECONDS said=0
tell() { printf '%3d s  %s\n' $((SECONDS - began)) "$*"; }
# watch SECONDS: what has arrived, and what the client's daemon has said since.
watch() {
    for _ in $(seq "$1"); do
        tell "$(($(stat -c %s "$scratch/copy" 2>/dev/null || echo 0) / 1000000)) MB of 600"
        tail -n +$((said + 1)) "$scratch/near.log" | sed -n 's/^[^ ]* *\(WARN\|INFO\) \(.*\)/       \1 \2/p'
        said=$(wc -l <"$scratch/near.log")
        sleep 1
    done
}
said=$(wc -l <"$scratch/near.log")
tell "curl http://localhost:8080/file"
in_end "$near" near curl -sS --limit-rate 12M -o "$scratch/copy" http://localhost:8080/file &
download=$!
watch 5
tell "the link is cut"
ip -n "$near" link set kp0 down
watch 20
tell "the link is back"
ip -n "$near" link set kp0 up
watch 4
# An upgrade puts another file in the program's place.
cp "$installed" "$scratch/newer"; mv "$scratch/newer" "$keypadd"
for end in "$far far" "$near near"; do
    read -r namespace name <<<"$end"
    tell "keypadd reload --binary, $name"
    replaced=$(in_end "$namespace" "$name" "$keypadd" reload --binary)
    echo "       $replaced"
    started+=("$(grep -o 'process [0-9]*' <<<"$replaced" | tail -n 1 | cut -d' ' -f2)")
    watch 3
done
while kill -0 "$download" 2>/dev/null; do watch 1; done
wait "$download" && tell "curl is done"
cmp "$scratch/file" "$scratch/copy" && tell "the copy is equal to the original"
