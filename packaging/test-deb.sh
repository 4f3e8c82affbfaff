#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian package in a fresh Debian, and starts its service there.
#
#     packaging/test-deb.sh target/dist/keypadd_*.deb          prints `ok` or `not ok` for each claim; 1 if one failed
#
# Needs root, mmdebstrap and, for the service, systemd-nspawn (systemd-container). Installs this
# host's Debian release in a temporary directory; changes nothing outside of it.

set -u -o pipefail

. "$(dirname "${BASH_SOURCE[0]}")/machines.sh"
package=$(realpath -- "${1:?names no package}")
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 2; }
work=$(mktemp -d)
root=$work/root
trap stop_machines EXIT

inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
absent() { [ ! -e "$root$1" ]; }
mode_is() { [ "$(stat -c '%a %U' "$root$1")" = "$2" ]; }
holds() { grep -q -- "$2" "$root$1"; }

make_debian "$root"
cp "$package" "$root/tmp/keypadd.deb"

expect "it installs" inside apt-get -q -y install /tmp/keypadd.deb
expect "the program runs" inside keypadd --version
expect "the key is root's alone" mode_is /etc/keypadd/key "600 root"
expect "the service can read its directory" mode_is /etc/keypadd "755 root"
expect "the user exists" inside id keypadd
expect "the manual page is there" test -e "$root/usr/share/man/man1/keypadd-run.1.gz"
expect "completions are there" test -e "$root/usr/share/bash-completion/completions/keypadd"
expect "the service waits to be enabled" absent /etc/systemd/system/multi-user.target.wants/keypadd.service
expect "systemd accepts the unit" inside systemd-analyze verify --man=no keypadd.service

key=$(inside keypadd pubkey /etc/keypadd/key)
cat >>"$root/etc/keypadd/keypadd.toml" <<EOF
listen = "127.0.0.1:4433"
[peer.other]
public-key = "D0XbYHn9sJqlis8CDNgJkkZJ9mE6rbU+xBMj9RFj4R0="
permit-open = ["localhost:22"]
EOF
expect "the file is valid" inside keypadd check --config /etc/keypadd/keypadd.toml

# A newer version of the same package.
inside sh -c 'cd /tmp && dpkg-deb -R keypadd.deb newer && sed -i "s/^Version: .*/Version: 99/" newer/DEBIAN/control &&
    dpkg-deb -b newer keypadd-99.deb' >/dev/null
expect "it upgrades" inside apt-get -q -y install /tmp/keypadd-99.deb
expect "an upgrade keeps the configuration" holds /etc/keypadd/keypadd.toml 127.0.0.1:4433
expect "an upgrade keeps the key" test "$key" = "$(inside keypadd pubkey /etc/keypadd/key)"

# The service, run by a systemd of its own.
in_machine() { on machine "$@"; }
if boot machine "$root" --private-network; then
    expect "the service starts" in_machine systemctl start keypadd
    expect "it is ready" in_machine systemctl is-active keypadd
    expect "status answers" in_machine keypadd status
    expect "it restricts itself" in_machine sh -c 'keypadd status | grep -i sandbox'
    expect "a reload succeeds" in_machine systemctl reload keypadd
    main_pid() { in_machine systemctl show -P MainPID keypadd; }
    main_pid_is_another() { [ "$(main_pid)" != "$before" ] && [ -n "$before" ]; }
    never_restarted() { [ "$(in_machine systemctl show -P ActiveEnterTimestampMonotonic keypadd)" = "$since" ]; }
    before=$(main_pid) since=$(in_machine systemctl show -P ActiveEnterTimestampMonotonic keypadd)
    # The container has its own /tmp.
    inside sh -c 'cd /tmp && sed -i "s/^Version: .*/Version: 100/" newer/DEBIAN/control &&
        dpkg-deb -b newer /opt/keypadd-100.deb' >/dev/null
    expect "a running service is upgraded" in_machine dpkg -i /opt/keypadd-100.deb
    expect "it goes on in a new process" main_pid_is_another
    expect "it was not restarted" never_restarted
    expect "it is active" in_machine systemctl is-active keypadd
    expect "status answers again" in_machine keypadd status
    before=$(main_pid)
    in_machine systemctl kill --kill-who=main --signal=KILL keypadd
    sleep 7
    expect "systemd starts it again when it dies" main_pid_is_another
    echo "nonsense = 1" >>"$root/etc/keypadd/keypadd.toml"
    expect "a reload of a wrong file fails" in_machine sh -c '! systemctl reload keypadd'
    expect "and the service goes on" in_machine systemctl is-active keypadd
    in_machine systemd-analyze security --no-pager keypadd | tail -n 1
    sed -i '$d' "$root/etc/keypadd/keypadd.toml"
    in_machine systemctl poweroff 2>/dev/null
    wait "${nspawn[machine]}"
else
    echo "left out: the service (no systemd-nspawn, or it cannot boot here)"
fi

expect "it is removed" inside apt-get -q -y remove keypadd
expect "a removal keeps the configuration" holds /etc/keypadd/keypadd.toml 127.0.0.1:4433
expect "a removal keeps the key" test -e "$root/etc/keypadd/key"
expect "it is purged" inside apt-get -q -y purge keypadd
expect "a purge leaves nothing" absent /etc/keypadd
exit "$failed"
