#!/usr/bin/env bash
# Runs a command in a network and a view of the files of its own (root): Envoy Gateway has fixed ports, reads its
# certificates in /certs, and API servers refuse endpoints on loopback. All of 198.18.0.0/24 is this machine there.
set -euo pipefail

mkdir -p /certs
trap 'rmdir --ignore-fail-on-non-empty /certs' EXIT
unshare --net --mount bash -c '
  mount -t tmpfs certs /certs
  { cat /etc/hosts
    echo 127.0.0.1 envoy-gateway.envoy-gateway-system.svc.cluster.local
    echo 198.18.0.1 gorgo-epp.inference.svc.cluster.local; } > /certs/hosts
  mount --bind /certs/hosts /etc/hosts
  ip link set lo up
  ip route add local 198.18.0.0/24 dev lo
  exec "$@"' in-namespaces "$@"
