#!/usr/bin/env bash
# Build the Dockerfile with buildah and serve from the image, on a base of Debian's own Python: needs no registry of images.
# Root, on Debian; the base is kept in a cache outside the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/image-base
if ! { command -v buildah && command -v debootstrap; } >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah debootstrap >/dev/null
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$cache"
if [ ! -f "$cache/root.tar" ]; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$scratch/root" >&2
  ln -s python3 "$scratch/root/usr/bin/python"
  # The package index is reached as this machine reaches it.
  cp /etc/ssl/certs/ca-certificates.crt "$scratch/root/etc/ssl/certs/"
  tar -C "$scratch/root" -cf "$cache/root.tar.part" .
  mv "$cache/root.tar.part" "$cache/root.tar"
fi
printf 'FROM scratch\nADD root.tar /\nENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt\n' >"$cache/Dockerfile"

run() { buildah --root "$scratch/store" --runroot "$scratch/run" --storage-driver vfs "$@"; }
run build --isolation chroot --quiet --tag base "$cache"
run build --isolation chroot --quiet --build-arg PYTHON_IMAGE=localhost/base --tag image .
container=$(run from localhost/image)
run run --isolation chroot "$container" -- sh -euc '
  test "$(id -u)" = 65532
  echo "endpoints: []" >endpoints.yaml
  printf "listen: {grpc: %s, http: %s}\npool: {file: endpoints.yaml}\n" 127.0.0.1:0 127.0.0.1:0 >epp.yaml
  epp config check epp.yaml
  epp tune --help >/dev/null
  /app/epp --help >/dev/null
  epp serve --config epp.yaml --ready-file ready & picker=$!
  until [ -s ready ]; do kill -0 $picker; sleep 0.2; done
  kill $picker
  wait $picker
'
echo "the image builds, and serves as user 65532"
