#!/usr/bin/env bash
# A load generator with all that it needs, pinned, into a cache outside the tree: guidellm (6 GB) or aiperf (1.2 GB).
# Prints the folder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
name=$1 list=$here/$1-requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/$name-$(sed -n "s/^$name==//p" "$list")
if ! cmp -s "$list" "$cache/installed"; then
  rm -rf "$cache"
  "${PYTHON:-python3}" -m venv "$cache"
  "$cache/bin/pip" install --quiet --only-binary :all: --no-deps -r "$list" >&2
  cp "$list" "$cache/installed"
fi
echo "$cache"
