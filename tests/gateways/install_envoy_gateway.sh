#!/usr/bin/env bash
# Envoy Gateway from its Go module, with its CRDs, into a cache outside the tree (10 minutes on two cores). Prints the
# folder.
set -euo pipefail

version=v1.9.1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/envoy-gateway-$version
mkdir -p "$cache/crds"
if [ ! -x "$cache/envoy-gateway" ]; then
  GOBIN="$cache" CGO_ENABLED=0 timeout 2400 go install -trimpath -ldflags="-s -w" \
    "github.com/envoyproxy/gateway/cmd/envoy-gateway@$version" >&2
fi
if [ ! -f "$cache/crds/gatewayapi-crds.yaml" ]; then
  # Outside any module, so that none of ours is asked.
  folder=$(cd / && go mod download -json "github.com/envoyproxy/gateway@$version" \
    | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
  find "$folder/charts/gateway-helm/charts/crds/crds" -name '*.yaml' -exec install -m 644 -t "$cache/crds" {} +
fi
echo "$cache"
