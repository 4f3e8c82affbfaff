#!/usr/bin/env bash
# Times how long a new user needs from the Debian package to the first byte through a tunnel, on two fresh hosts.
#
#     packaging/first-byte.sh target/dist/keypadd_*.deb
#
#    host far                                  host near
#    +--------------------------+    veth     +------------------------------+
#    |  sshd           TCP 22   |             |                              |
#    |  keypadd.service UDP 4433| 10.99.8.1   |  keypadd connect             |
#    |                          +-------------+  -L 2222:localhost:22        |
#    +--------------------------+   10.99.8.2 +------------------------------+
#
# Types the commands of README.md, prints each with its time, then `package to first forwarded byte: N commands, S s`.
# The first byte is that of far's SSH server. Counts only the time of the commands: not reading and
# typing, nor downloads and the start of the hosts. Exits with 1 if a command fails or the byte does
# not arrive.
#
# Needs root, mmdebstrap, systemd-nspawn (systemd-container) and iproute2. Installs this host's
# Debian release in a temporary directory; changes nothing outside of it.

set -u -o pipefail

# Limits the whole run: a hang anywhere ends here, and the trap cleans up.
if [ -z "${FIRST_BYTE_BOUNDED-}" ]; then
    FIRST_BYTE_BOUNDED=1 exec timeout --foreground --kill-after=20 600 "${BASH_SOURCE[0]}" "$@"
fi

. "$(dirname "${BASH_SOURCE[0]}")/machines.sh"
package=$(realpath -- "${1:?names no package}")
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 2; }
work=$(mktemp -d)
trap stop_machines EXIT
trap 'exit 1' INT TERM
commands=0

give_up() {
    echo "first-byte.sh: $*" >&2
    tail -n 20 "$work"/*.log >&2
    exit 1
}

# types HOST COMMAND: prints what the user types there and counts it.
types() {
    commands=$((commands + 1))
    printf '%7.2f s  %4s# %s\n' "$(elapsed)" "$1" "$2"
}

# runs HOST COMMAND: types it and waits for it to finish.
runs() {
    types "$1" "$2"
    on "$1" sh -c "$2" >>"$work/$1.log" 2>&1 || give_up "this failed on $1: $2"
}

elapsed() { awk -v from="$began" -v to="$EPOCHREALTIME" 'BEGIN { print to - from }'; }

boot_two_hosts "$package"

# ---- what a new user does -----------------------------------------------------------------------

began=$EPOCHREALTIME
runs far 'apt-get install -y /root/keypadd.deb'
runs near 'apt-get install -y /root/keypadd.deb'

invite='keypadd invite laptop --permit-open localhost:22'
types far "$invite"
exec {invitation}< <(on far sh -c "$invite" 2>>"$work/far.log")
read -r -t 60 line <&"$invitation" || give_up "no invitation from keypadd invite"
types near 'keypadd join'
on near keypadd join <<<"$line" >>"$work/near.log" 2>&1 || give_up "this failed on near: keypadd join"
cat <&"$invitation" >>"$work/far.log" # Until `invite` ends.

runs far 'systemctl enable --now keypadd'

connect='keypadd connect @far -L 2222:localhost:22'
types near "$connect"
exec {connected}< <(on near sh -c "$connect" 2>&1)
until read -r -t 60 line <&"$connected" || give_up "no tunnel: see above" && [[ $line == "keypadd: ready"* ]]; do
    echo "$line" >>"$work/near.log"
done

types near 'ssh -p 2222 localhost'
byte=$(on near timeout 60 bash -c 'head -c 1 <>/dev/tcp/localhost/2222')
[ "$byte" = S ] || give_up "no byte of the SSH server came through the tunnel"
printf 'package to first forwarded byte: %d commands, %.1f s\n' "$commands" "$(elapsed)"
