# Provides namespaces, daemons, claims and cleanup for tests/netns.sh. Sourced, never run. Processes
# started here die with the script (--pdeathsig); the script runs under `timeout`, and so does every
# command that could block. Knows no scenario.

# The two ends; netns.sh draws their addresses.
far=keypadd-far-$$
near=keypadd-near-$$

# Ports. The nth tunnel adds n to all but the target's, which is shared.
target_port=7000
forward_port=7100
udp_port=4433
metrics_port=9464

children=()         # every process started
made_directories=() # system directories to remove at the end
daemons=()          # "far|near NTH PROCESS" per daemon of the scenario
nth=0               # the current tunnel, in scenarios with several
failures=0          # in the scenario
verdict=0           # exit status of the script

die() {
    printf 'netns.sh: %s\n' "$*" >&2
    exit 2
}

# Prints a command that runs in a namespace, with placeholders for what differs between runs.
tell() {
    local line=${*:2}
    line=${line//"${scratch:-/}"\//} line=${line//"${near_key:-/}"/NEAR-KEY}
    printf '    %-4s $ %s\n' "$1" "${line//"${far_key:-/}"/FAR-KEY}"
}

# ---- what is needed -----------------------------------------------------------------------------

check_needs() {
    [ "$(id -u)" = 0 ] || die "needs root, for network namespaces"
    PATH=$PATH:/usr/sbin:/sbin
    local missing=() tool
    for tool in ip ss ssh ssh-keygen sshd psql python3 curl setpriv; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}; try" \
        "apt-get install iproute2 openssh-client openssh-server postgresql python3 curl util-linux"
}

# ---- topology, processes ------------------------------------------------------------------------

make_topology() {
    local end last=1
    { ip netns add "$far" && ip netns add "$near"; } || die "cannot make network namespaces"
    ip -n "$far" link add veth0 mtu 1500 type veth peer name veth0 mtu 1500 netns "$near" ||
        die "cannot make a veth pair"
    for end in "$far" "$near"; do
        ip -n "$end" link set lo up &&
            ip -n "$end" addr add "10.99.7.$last/24" dev veth0 &&
            ip -n "$end" addr add "fd00:99:7::$last/64" dev veth0 nodad &&
            ip -n "$end" link set veth0 up || die "cannot set up veth0"
        last=$((last + 1))
    done
}

# in_end far|near COMMAND...: runs it there. Each end has its own directory for control sockets.
in_end() {
    ip netns exec "${!1}" env RUNTIME_DIRECTORY="$scratch/$1.run" "${@:2}"
}

# start far|near LOG COMMAND...: runs it there in the background; its process is $started.
start() {
    # ip, setpriv and env become the command, so that $! is the command's own process.
    ip netns exec "${!1}" setpriv --pdeathsig KILL \
        env RUNTIME_DIRECTORY="$scratch/$1.run" "${@:3}" </dev/null >"$2" 2>&1 &
    started=$!
    children+=("$started")
}

# Waits until the log of $started contains a line, or the process exits.
await_line() {
    local turn
    for ((turn = 0; turn < 400; turn++)); do
        grep -qs -- "$2" "$1" && return 0
        kill -0 "$started" 2>/dev/null || break
        sleep 0.05
    done
    grep -qs -- "$2" "$1"
}

# await_end PROCESS SECONDS: waits for it to exit; its exit status is $status.
await_end() {
    local turn
    for ((turn = 0; turn < $2 * 20; turn++)); do
        if ! kill -0 "$1" 2>/dev/null; then
            wait "$1" 2>/dev/null
            status=$?
            return 0
        fi
        sleep 0.05
    done
    status="none after $2 s"
    return 1
}

namespaces=() # besides the two

clean_up() {
    local name
    trap - EXIT INT TERM
    kill -KILL "${children[@]}" 2>/dev/null
    wait 2>/dev/null
    for name in "$near" "$far" "${namespaces[@]}"; do
        ip netns del "$name" 2>/dev/null
    done
    rm -rf "$scratch" "${postgres_dir:-$scratch}"
    [ ${#made_directories[@]} = 0 ] || rmdir "${made_directories[@]}"
}

# ---- sshd ---------------------------------------------------------------------------------------

# start_sshd DIRECTORY: starts a real sshd at far, on loopback port 2222; keys in the directory.
start_sshd() {
    local dir=$1
    ssh-keygen -q -t ed25519 -N '' -f "$dir/host"
    ssh-keygen -q -t ed25519 -N '' -f "$dir/user"
    cp "$dir/user.pub" "$dir/authorized_keys"
    printf '[localhost]:2222 %s\n' "$(cut -d' ' -f1,2 "$dir/host.pub")" >"$dir/known_hosts"
    cat >"$dir/sshd_config" <<-END
		ListenAddress 127.0.0.1:2222
		ListenAddress [::1]:2222
		HostKey $dir/host
		AuthorizedKeysFile $dir/authorized_keys
		PidFile none
		PasswordAuthentication no
		PermitRootLogin prohibit-password
		StrictModes no
		UsePAM no
		MaxStartups 200
	END
    # sshd's privilege separation directory; normally the system's own service creates it.
    [ -d /run/sshd ] || { mkdir -m 755 /run/sshd && made_directories+=(/run/sshd); }
    tell far "sshd -D -e -f sshd_config"
    start far "$dir/sshd.log" "$(command -v sshd)" -D -e -f "$dir/sshd_config"
    await_line "$dir/sshd.log" 'Server listening on 127.0.0.1'
}

# ---- daemons ------------------------------------------------------------------------------------

make_keys() {
    mkdir -m 700 "$scratch/far.run" "$scratch/near.run"
    far_key=$("$keypadd" keygen "$scratch/far.key" 2>/dev/null) || die "keypadd keygen failed"
    near_key=$("$keypadd" keygen "$scratch/near.key" 2>/dev/null) || die "keypadd keygen failed"
}

within=() # a command that runs a daemon as its last arguments

# daemon far|near READY-LINE FLAG...: starts one and waits for its ready line; its log is $log.
daemon() {
    local end=$1 ready=$2
    shift 2
    log=$scratch/$end.$nth.log
    set -- "$@" --key "$scratch/$end.key" --metrics "127.0.0.1:$((metrics_port + nth))"
    tell "$end" "keypadd $*"
    start "$end" "$log" "${within[@]}" "$keypadd" "$@"
    daemons+=("$end $nth $started")
    await_line "$log" "$ready"
}

# The pool is under test here, whether or not it pays on this machine.
export KEYPADD_POOL=on

# serve ADDRESS FLAG...: starts the far end on the nth UDP port; its process is $server.
serve() {
    daemon far '^keypadd: ready on udp' serve --listen "$1:$((udp_port + nth))" \
        --allow "near=$near_key" \
        --permit-open "127.0.0.1:$target_port,[::1]:$target_port,127.0.0.1:$closed_port" \
        --permit-open localhost:2222 "${@:2}"
    local ready=$?
    server=$started
    return $ready
}

# connect ADDRESS FLAG...: starts the near end; its process is $client.
connect() {
    daemon near '^keypadd: ready, connected' connect "$1:$((udp_port + nth))" --peer "$far_key" \
        "${@:2}"
    local ready=$?
    client=$started
    return $ready
}

# tunnel SUITE FLAG...: starts both ends, with one forward to the target; both get the flags.
tunnel() {
    local flags=(--suite "$@")
    case $1 in des-* | 3des-*) flags+=(--allow-legacy) ;; esac
    expect "the server starts" serve 10.99.7.1 "${flags[@]}"
    expect "the client connects" connect 10.99.7.1 "${flags[@]}" \
        -L "$((forward_port + nth)):127.0.0.1:$target_port"
}

# metric far|near NAME: prints one value of the nth daemon there, as Prometheus gets it.
metric() {
    in_end "$1" curl -sS --max-time 5 "http://127.0.0.1:$((metrics_port + nth))/metrics" |
        awk -v name="$2" '$1 == name { print $2 }'
}

# Waits until the fillers of the nth tunnel sleep, that is, use no more CPU time.
pools_fill_up() {
    local before='' now turn
    for ((turn = 0; turn < 60; turn++)); do
        now=$(metric far keypadd_fill_cpu_seconds_total)/$(metric near keypadd_fill_cpu_seconds_total)
        [ "$now" = "$before" ] && return 0
        before=$now
        sleep 1
    done
    return 1
}

# Checks what must never happen, then stops the scenario's remaining daemons, clients first.
end_daemons() {
    local daemon end process status
    for daemon in "${daemons[@]}"; do
        read -r end nth process <<<"$daemon"
        kill -0 "$process" 2>/dev/null || continue
        expect "no pad is used twice" equal 0 "$(metric "$end" keypadd_pad_reuse_total)"
    done
    for process in $(printf '%s\n' "${daemons[@]}" | sort -r | cut -s -d' ' -f3); do
        kill -TERM "$process" 2>/dev/null || continue
        await_end "$process" 10
        expect "SIGTERM ends a daemon with exit 0" equal 0 "$status"
    done
    expect "no daemon panics" silent grep -hs panicked "$scratch"/*.log
    daemons=() nth=0
}

# ---- claims -------------------------------------------------------------------------------------

# probe SUBCOMMAND...: runs the near end of a claim.
probe() {
    tell near "probe.py $*"
    in_end near timeout --foreground 300 python3 -B "$here/netns/probe.py" "$@" | sed 's/^/    /'
}

# expect WHAT COMMAND...: reports a failure of the command and continues.
expect() {
    "${@:2}" && return 0
    printf '    FAILED: %s\n' "$1"
    failures=$((failures + 1))
    return 1
}

# equal EXPECTED GOT
equal() {
    [ "$1" = "$2" ] && return 0
    printf '    expected %s, got %s\n' "$1" "${2:-nothing}"
    return 1
}

# grown BEFORE AFTER BY: AFTER exceeds BEFORE by at least BY.
grown() {
    awk -v before="$1" -v after="$2" -v by="$3" \
        'BEGIN { exit !(before != "" && after != "" && after - before >= by) }' && return 0
    printf '    %s after %s has not grown by %s\n' "${2:-nothing}" "${1:-nothing}" "$3"
    return 1
}

# soon COMMAND...: succeeds within 60 s.
soon() {
    local until=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.2
    done
}

# silent COMMAND...: prints nothing.
silent() {
    local out
    out=$("$@")
    [ -z "$out" ] && return 0
    sed 's/^/    | /' <<<"$out"
    return 1
}

# scenario CLAIM ARGUMENT...: runs the function, stops its daemons, prints the verdict.
scenario() {
    local words="${1//_/ }${2:+: ${*:2}}" began=$SECONDS log
    printf '# %s\n' "$words"
    failures=0
    rm -f "$scratch"/*.log
    "$@"
    end_daemons
    if [ "$failures" = 0 ]; then
        printf 'ok - %s (%d s)\n' "$words" $((SECONDS - began))
        return
    fi
    verdict=1
    for log in "$scratch"/*.log; do
        tail -n 8 "$log" | sed "s/^/    ${log##*/}: /"
    done
    printf 'not ok - %s (%d s)\n' "$words" $((SECONDS - began))
}
