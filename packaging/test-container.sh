#!/usr/bin/env bash
# Builds the container image with a static program, starts it as Kubernetes does, and asks whether it is ready.
#
#     packaging/test-container.sh target/dist/keypadd-x86_64      prints `ok` or `not ok` for each claim; 1 if one failed
#
# Needs root, for a key that is root's and of the container's group, and podman or docker; CONTAINER_ENGINE may name
# another command, with options, and CONTAINER_OPTIONS has more options for `run`. Leaves neither image nor container.

set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/machines.sh"
program=$(realpath -- "${1:?names no program}")
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 2; }
read -ra engine <<<"${CONTAINER_ENGINE:-$(command -v podman || command -v docker)}"
read -ra options <<<"${CONTAINER_OPTIONS:-}"
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
work=$(mktemp -d)
container=
trap '[ -z "$container" ] || "${engine[@]}" rm -f "$container" >/dev/null
    "${engine[@]}" rmi -f keypadd-test >/dev/null 2>&1
    rm -rf "$work"' EXIT

mkdir "$work/image" "$work/config" "$work/key"
cp "$program" "$work/image/keypadd"
"${engine[@]}" build -q -f "$repository/packaging/Containerfile" --build-arg PROGRAM=keypadd -t keypadd-test "$work/image"

"$program" keygen "$work/key/key" >/dev/null
# As Kubernetes mounts a Secret with fsGroup: root's, for a group.
chown 0:65532 "$work/key/key"
chmod 0440 "$work/key/key"
cat >"$work/config/keypadd.toml" <<'TOML'
listen = "0.0.0.0:4433"
metrics = "0.0.0.0:9464"
permit-open = ["db.example:5432"]

[peer.laptop]
public-key = "D0XbYHn9sJqlis8CDNgJkkZJ9mE6rbU+xBMj9RFj4R0="
TOML
# As it mounts a ConfigMap: anyone may write to the directory, and nobody can.
chmod 0777 "$work/config"
container=$("${engine[@]}" run -d --read-only --cap-drop all "${options[@]}" --tmpfs /run/keypadd:mode=0777 -p 127.0.0.1::9464 \
    -e RUNTIME_DIRECTORY=/run/keypadd/control \
    -v "$work/config:/etc/keypadd:ro" -v "$work/key:/run/secrets:ro" keypadd-test)
metrics=$("${engine[@]}" port "$container" 9464/tcp | head -n 1)
ready() { curl -fsS --retry 10 --retry-connrefused --retry-delay 1 --retry-all-errors "http://$metrics/readyz"; }
expect "it is ready" ready
expect "status answers" "${engine[@]}" exec "$container" /keypadd status
expect "a reload succeeds" "${engine[@]}" exec "$container" /keypadd reload
expect "it ends when asked" "${engine[@]}" stop -t 20 "$container"
expect "it exits with 0" test "$("${engine[@]}" inspect -f '{{.State.ExitCode}}' "$container")" = 0
exit "$failed"
