# Makes Debian machines for the scripts that try the package. Sourced, not run.
#
# The caller sets `work`, a temporary directory, and calls `stop_machines` when it exits. Needs root,
# mmdebstrap and, to boot a machine, systemd-nspawn (systemd-container).

declare -A leader=() nspawn=() # by machine: its first process, and the systemd-nspawn around it
two_hosts=()                   # network namespaces
failed=0

# expect CLAIM COMMAND...: prints whether the command succeeds; if not, also what it printed.
expect() {
    if "${@:2}" >"$work/log" 2>&1; then
        echo "ok - $1"
    else
        echo "not ok - $1"
        sed 's/^/    /' "$work/log"
        failed=1
    fi
}

# make_debian DIRECTORY [PACKAGE,...]: installs this host's Debian release there, with systemd.
make_debian() {
    . /etc/os-release
    mmdebstrap --quiet --variant=minbase --include="adduser,systemd,systemd-sysv,dbus${2:+,$2}" \
        "$VERSION_CODENAME" "$1" || { echo "cannot make a Debian" >&2; exit 2; }
}

# boot MACHINE DIRECTORY OPTION...: starts the Debian in a directory; fails if it is not up within a minute.
boot() {
    command -v systemd-nspawn >/dev/null || return 1
    systemd-nspawn --quiet --register=no --keep-unit --boot --directory="$2" "${@:3}" \
        >"$work/$1.boot" 2>&1 </dev/null &
    nspawn[$1]=$!
    for _ in $(seq 60); do
        leader[$1]=$(pgrep --parent "${nspawn[$1]}" | head -n 1)
        [ -n "${leader[$1]}" ] && on "$1" systemctl list-units >/dev/null 2>&1 && return
        sleep 1
    done
    return 1
}

# on MACHINE COMMAND...: runs it there, in the root directory.
on() { nsenter --target "${leader[$1]}" --all --wdns=/ -- "${@:2}"; }

# boot_two_hosts PACKAGE [DEBIAN-PACKAGE,...]: boots `far` (10.99.8.1) and `near` (10.99.8.2), joined by a network,
# with an SSH server each; the package is /root/keypadd.deb.
boot_two_hosts() {
    local host last=1
    make_debian "$work/far" "openssh-server${2:+,$2}"
    cp "$1" "$work/far/root/keypadd.deb"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$work/far/etc/hosts" # As Debian's installer does.
    cp -a "$work/far" "$work/near"
    two_hosts=("keypadd-far-$$" "keypadd-near-$$")
    ip netns add "${two_hosts[0]}" && ip netns add "${two_hosts[1]}" &&
        ip -n "${two_hosts[0]}" link add veth0 type veth peer name veth0 netns "${two_hosts[1]}" ||
        { echo "cannot make network namespaces" >&2; exit 2; }
    for host in far near; do
        local net=keypadd-$host-$$
        ip -n "$net" link set lo up
        ip -n "$net" addr add "10.99.8.$last/24" dev veth0
        ip -n "$net" link set veth0 up
        ip -n "$net" route add default dev veth0
        last=$((last + 1))
        echo "$host" >"$work/$host/etc/hostname" # What they call each other.
        boot "$host" "$work/$host" --network-namespace-path="/run/netns/$net" && on "$host" systemctl start ssh ||
            { echo "$host does not boot" >&2; tail -n 20 "$work/$host.boot" >&2; exit 2; }
    done
}

stop_machines() {
    local net
    kill "${nspawn[@]}" 2>/dev/null
    wait
    for net in "${two_hosts[@]}"; do ip netns del "$net" 2>/dev/null; done
    rm -rf "$work"
}
