#!/usr/bin/env bash
# h2spec, the conformance tests of HTTP/2, from its Go module into a cache outside the tree. Prints the folder.
set -euo pipefail

version=v2.2.1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/h2spec-$version
mkdir -p "$cache"
if [ ! -x "$cache/h2spec" ]; then
  # Its module names no versions of what it uses: a module of ours does.
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
  go mod init build >&2
  go get "github.com/summerwind/h2spec@$version+incompatible" \
    github.com/fatih/color@v1.18.0 github.com/spf13/cobra@v1.8.1 golang.org/x/net@v0.30.0 >&2
  CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o "$cache/h2spec" github.com/summerwind/h2spec/cmd/h2spec >&2
fi
echo "$cache"
