# Simulates a person's day: both ends run from configuration files through the ordinary events of a
# day. Sourced by netns.sh; uses harness.sh.
#
#    near: laptop, keypadd run                            far: office, keypadd run
#      -L 2222 -> sshd       -L 15432 -> PostgreSQL         sshd 2222, PostgreSQL 5432, web 8080
#      -D 1080 -> the web of far                            127.0.0.1:9191 -> web 9090 of near (-R)

day=          # the scenario's directory
postgres_dir= # PostgreSQL's own: its user cannot enter root's directories

# ---- services -----------------------------------------------------------------------------------

# start_postgres: starts a fresh cluster at far as the postgres user; TCP access without a password.
start_postgres() {
    local bin
    bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -n 1)
    postgres_dir=$(mktemp -d "${TMPDIR:-/tmp}/keypadd-postgres.XXXXXX") || return 1
    chown postgres "$postgres_dir"
    runuser -u postgres -- "$bin/initdb" -D "$postgres_dir/data" -A trust -U postgres --no-sync \
        >"$day/initdb.log" 2>&1 || return 1
    tell far "postgres -D data -h 127.0.0.1 -p 5432"
    start far "$day/postgres.log" runuser -u postgres -- "$bin/postgres" -D "$postgres_dir/data" \
        -h 127.0.0.1 -p 5432 -k "$postgres_dir" -F
    await_line "$day/postgres.log" 'ready to accept connections'
}

# start_web far|near PORT: serves files of random bytes and logs each request.
start_web() {
    local root=$day/web.$1 nth
    mkdir "$root"
    for ((nth = 0; nth < 24; nth++)); do head -c $((nth * 20000)) /dev/urandom >"$root/$nth"; done
    tell "$1" "python3 -m http.server $2"
    start "$1" "$day/web.$1.log" python3 -u -m http.server "$2" --bind 127.0.0.1 --directory "$root"
    await_line "$day/web.$1.log" 'Serving HTTP'
}

# ---- configuration ------------------------------------------------------------------------------

write_configurations() {
    cat >"$day/far.toml" <<-END
		peer-timeout = "10s" # shorter than the waits of this scenario
		listen = "[::]:$udp_port"
		key = "$scratch/far.key"
		metrics = "127.0.0.1:$metrics_port"

		[peer.laptop]
		public-key = "$near_key"
		permit-open = ["localhost:2222", "localhost:5432", "localhost:8080"]
		permit-listen = ["9191"]
	END
    cat >"$day/near.toml" <<-END
		key = "$scratch/near.key"
		metrics = "127.0.0.1:$metrics_port"

		[peer.office]
		public-key = "$far_key"
		endpoint = "10.99.7.1:$udp_port"
		local = ["2222:localhost:2222", "15432:localhost:5432"]
		remote = ["9191:localhost:9090"]
		dynamic = ["1080"]
	END
}

# run_daemon far|near: runs it from its file; its process is $server or $client.
run_daemon() {
    log=$scratch/day.$1.log
    tell "$1" "keypadd run --config $1.toml"
    start "$1" "$log" "$keypadd" run --config "$day/$1.toml"
    daemons+=("$1 0 $started")
    case $1 in far) server=$started ;; near) client=$started ;; esac
    await_line "$log" '^keypadd: ready'
}

# ---- what a person does -------------------------------------------------------------------------

# ssh_near COMMAND: runs it at far, through -L.
ssh_near() {
    in_end near timeout --foreground 60 ssh -F none -p 2222 -i "$day/user" -o BatchMode=yes \
        -o "UserKnownHostsFile=$day/known_hosts" -o StrictHostKeyChecking=yes \
        -o ConnectTimeout=15 root@localhost "$@"
}

ssh_works() { [ "$(ssh_near 'echo here' 2>>"$day/ssh.log")" = here ]; }

# Fetches a page with all its resources: many requests at once, names resolved at far, bytes
# compared.
browse() {
    local nth urls=()
    rm -rf "$day/browsed" && mkdir "$day/browsed"
    for ((nth = 0; nth < 24; nth++)); do
        urls+=("http://localhost:8080/$nth" -o "$day/browsed/$nth")
    done
    in_end near timeout --foreground 60 curl -sS --no-progress-meter --fail --parallel \
        --parallel-max 8 --proxy socks5h://127.0.0.1:1080 --noproxy '' "${urls[@]}" &&
        diff -r "$day/web.far" "$day/browsed"
}

published_service_answers() {
    in_end far timeout --foreground 20 curl -sS --fail --noproxy '*' http://127.0.0.1:9191/7 |
        cmp - "$day/web.near/7"
}

sql() {
    in_end near timeout --foreground 120 psql -X -q -A -t -v ON_ERROR_STOP=1 \
        'host=127.0.0.1 port=15432 user=postgres connect_timeout=15' "$@"
}

# Writes and reads a table: what comes through the tunnel must match the database.
database_works() {
    local here there
    sql -c 'set client_min_messages = warning' -c 'create table if not exists day (n int, t text)' \
        -c "insert into day select n, md5(n::text) from generate_series(1, 100000) n" &&
        here=$(sql -c 'select n, t from day order by n, t' | md5sum) &&
        there=$(in_end far psql -X -q -A -t -h "$postgres_dir" -U postgres \
            -c 'select n, t from day order by n, t' | md5sum) &&
        equal "$there" "$here"
}

sql_is_refused() { ! sql -c 'select 1'; }

# shows far|near TEXT: the end's status contains the text.
shows() { in_end "$1" timeout 10 "$keypadd" status | grep -q -- "$2"; }

# start_session: starts an ssh session that prints a line every 200 ms; its process is $session.
start_session() {
    start near "$day/session.log" timeout 300 ssh -F none -p 2222 -i "$day/user" -o BatchMode=yes \
        -o "UserKnownHostsFile=$day/known_hosts" root@localhost \
        'for ((nth = 0; nth < 1200; nth++)); do echo "alive $nth"; sleep 0.2; done'
    session=$started
    await_line "$day/session.log" 'alive 1'
}

# Waits until the session prints more.
session_lives() {
    local before turn
    before=$(wc -l <"$day/session.log")
    for ((turn = 0; turn < 100; turn++)); do
        [ "$(wc -l <"$day/session.log")" -gt $((before + 2)) ] && return 0
        sleep 0.1
    done
    return 1
}

# Checks that the session's output has no line lost or repeated so far.
session_is_exact() {
    grep -o '^alive.*' "$day/session.log" | diff - <(seq -f 'alive %g' 0 1200 |
        head -n "$(grep -c '^alive' "$day/session.log")")
}

# move_near FROM TO: changes near's address, as on another network; briefly there is none.
move_near() {
    tell near "ip addr: $1 becomes $2"
    ip -n "$near" addr del "$1/24" dev veth0 && ip -n "$near" addr add "$2/24" dev veth0
}

# ---- what is left behind ------------------------------------------------------------------------

# belongings far|near PROCESS: lists what an idle daemon holds.
belongings() {
    printf 'sockets %d\n' "$(find "/proc/$2/fd" -lname 'socket:*' | wc -l)"
    printf 'files %d\n' "$(find "/proc/$2/fd" -mindepth 1 | wc -l)"
    # A client's UDP port differs after each start.
    in_end "$1" ss -H -lntu | awk -v udp=":$udp_port\$" \
        '$1 == "udp" && $5 !~ udp { sub(/[0-9]+$/, "any", $5) } { print $1, $5 }' | sort
}

kib_resident() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$1/status"; }

remember_morning() {
    belongings near "$client" >"$day/near.morning"
    belongings far "$server" >"$day/far.morning"
    near_kib=$(kib_resident "$client") far_kib=$(kib_resident "$server")
}

# holds_what_it_held far|near PROCESS: waits until it holds no more than before.
holds_what_it_held() {
    local turn
    for ((turn = 0; turn < 100; turn++)); do
        belongings "$1" "$2" >"$day/$1.now"
        cmp -s "$day/$1.morning" "$day/$1.now" && return 0
        sleep 0.2
    done
    diff "$day/$1.morning" "$day/$1.now"
}

nothing_has_leaked() {
    expect "near holds what it held in the morning" holds_what_it_held near "$client"
    expect "far holds what it held in the morning" holds_what_it_held far "$server"
    local near_grown=$(($(kib_resident "$client") - near_kib))
    local far_grown=$(($(kib_resident "$server") - far_kib))
    printf '    KiB resident more than in the morning: near %d, far %d; limit %d\n' \
        "$near_grown" "$far_grown" "$day_limit_kib"
    expect "neither has grown" [ "$near_grown" -le "$day_limit_kib" -a \
        "$far_grown" -le "$day_limit_kib" ]
}

# Buffers that the allocator may keep after use, in KiB.
day_limit_kib=$((32 * 1024))

# ---- the day ------------------------------------------------------------------------------------

a_persons_day_ends_with_nothing_left_behind() {
    local session near_kib far_kib end
    day=$scratch/day
    mkdir -m 700 "$day"
    expect "sshd starts" start_sshd "$day"
    local sshd=$started postgres web_far web_near
    expect "PostgreSQL starts" start_postgres
    postgres=$started
    expect "the web at far starts" start_web far 8080
    web_far=$started
    expect "the web at near starts" start_web near 9090
    web_near=$started
    write_configurations
    for end in far near; do
        tell $end "keypadd check --config $end.toml"
        expect "the configuration of $end is good" check_configuration $end
    done

    echo "    - the laptop is up before the office, and keeps trying"
    expect "near starts" run_daemon near
    expect "far starts" run_daemon far
    expect "ssh works" soon ssh_works
    expect "the published service answers" soon published_service_answers
    expect "a browser works" browse
    expect "the database works" database_works
    expect "status shows the peer" shows far laptop
    expect "status shows the forward" shows near 9191
    remember_morning

    echo "    - a reload, with a session open"
    expect "a session is open" start_session
    sed -i 's/^local = \[/&"8081:localhost:8080", /' "$day/near.toml"
    sed -i 's/"localhost:5432", //' "$day/far.toml"
    expect "near reloads" reload near
    tell far "kill -HUP the daemon"
    kill -HUP "$server"
    expect "the new forward works" soon in_end near curl -sS --fail --noproxy '*' --max-time 20 \
        -o "$day/8081" http://127.0.0.1:8081/5
    expect "its bytes are exact" cmp "$day/web.far/5" "$day/8081"
    expect "what is no longer permitted is refused" soon sql_is_refused
    sed -i 's/^permit-open = \[/&"localhost:5432", /' "$day/far.toml"
    expect "far reloads" reload far
    expect "permitted again, it works" soon sql -c 'select 1'
    sed -i 's/"8081:localhost:8080", //' "$day/near.toml"
    expect "near reloads" reload near
    expect "the session lived through it" session_lives

    echo "    - another address"
    move_near 10.99.7.2 10.99.7.3
    expect "the session lives" session_lives
    expect "far knows the new address" soon shows far 10.99.7.3
    expect "a browser works" browse
    move_near 10.99.7.3 10.99.7.2
    expect "the session lives" session_lives

    echo "    - $outage_seconds s without a network"
    ip -n "$far" link set veth0 down
    sleep "$outage_seconds"
    ip -n "$far" link set veth0 up
    expect "ssh works again" soon ssh_works
    expect "the published service answers again" soon published_service_answers
    expect "the database works again" database_works
    expect "what the session said is exact" session_is_exact
    kill "$session" 2>/dev/null
    await_end "$session" 20
    nothing_has_leaked

    echo "    - the server is started again"
    tell far "kill -TERM the daemon"
    kill -TERM "$server"
    expect "it ends" await_end "$server" 30
    expect "with exit 0" equal 0 "$status"
    expect "it is back" run_daemon far
    expect "ssh works again" soon ssh_works
    expect "the published service answers again" soon published_service_answers

    echo "    - the client is killed and started again"
    tell near "kill -KILL the daemon"
    kill -KILL "$client"
    await_end "$client" 10 2>/dev/null # bash reports the kill
    expect "it is back" run_daemon near
    expect "ssh works again" soon ssh_works
    expect "the published service answers again" soon published_service_answers
    expect "a browser works" browse
    expect "the database works" database_works
    nothing_has_leaked

    echo "    - the evening"
    end_daemons
    expect "no control socket of a living daemon is left" equal 0 \
        "$(in_end near "$keypadd" status 2>/dev/null | wc -l)"
    for process in "$sshd" "$postgres" "$web_far" "$web_near"; do
        kill -TERM "$process"
        await_end "$process" 20
    done
    expect "no port is left at near" silent in_end near ss -H -lntu
    expect "no port of the day is left at far" silent in_end far ss -H -lntu \
        "sport != :$target_port"
    expect "no process is left" silent ip netns pids "$near"
    rm -rf "$postgres_dir"
}

check_configuration() {
    in_end "$1" "$keypadd" check --config "$day/$1.toml" >"$day/check.$1" 2>&1 && return 0
    sed 's/^/    /' "$day/check.$1"
    return 1
}

reload() {
    tell "$1" "keypadd reload"
    in_end "$1" timeout 20 "$keypadd" reload 2>&1 | sed 's/^/    /'
    return "${PIPESTATUS[0]}"
}
