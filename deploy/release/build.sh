#!/usr/bin/env bash
# Build the release of HEAD into build/release: wheels and sdists, chart, bill of materials, checksums. What can be is built
# twice, in folders of different names, and has to be the same bytes; the Dockerfile is linted. Wants Helm (`make helm`); publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} PIP_DISABLE_PIP_VERSION_CHECK=1
out=$PWD/build/release
tools=$PWD/build/release-tools
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

[ -x "$tools/bin/python" ] || ${PYTHON:-python3} -m venv "$tools"
"$tools/bin/pip" install --quiet --only-binary :all: --requirement deploy/release/requirements.txt
"$tools/bin/hadolint" Dockerfile
helm=$(deploy/k8s/install_helm.sh)/helm

# Folder to build in.
build() {
  mkdir -p "$1/source" "$1/made"
  git archive HEAD | tar -x -C "$1/source"
  for each in "$1/source" "$1/source/lab"; do
    "$tools/bin/python" -m build --no-isolation --outdir "$1/made" "$each" >"$1/log" 2>&1 || { cat "$1/log" >&2; return 1; }
  done
  "$helm" package "$1/source/deploy/k8s/chart" --destination "$1/chart" >>"$1/log" 2>&1 || { cat "$1/log" >&2; return 1; }
  # Helm writes the time of day into its archive.
  tar -x -z -C "$1/chart" -f "$1"/chart/*.tgz
  tar -c -C "$1/chart" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=r,a+X gorgo-epp |
    gzip -n -9 >"$1/made/$(basename "$1"/chart/*.tgz)"
}
build "$scratch/first"
build "$scratch/in-another-folder"
diff -r "$scratch/first/made" "$scratch/in-another-folder/made"
"$tools/bin/twine" check --strict "$scratch"/first/made/gorgo_epp*

rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$scratch/first/made" "$out"
wheel=$(echo "$out"/gorgo_epp-*.whl)
version=$(basename "$wheel" | cut -d- -f2)

# The packages of the image: what it installs, at its versions.
${PYTHON:-python3} -m venv "$scratch/image"
"$scratch/image/bin/pip" install --quiet --only-binary :all: --no-binary nkeys --constraint deploy/image/constraints.txt \
  "$wheel[$(sed -n 's/^ARG EXTRAS=//p' Dockerfile)]" "$out"/gorgo_epp_lab-*.whl
"$scratch/image/bin/epp" --version
"$scratch/image/bin/pip" uninstall --quiet --yes pip setuptools
sed "s/^dynamic = .*/version = \"$version\"/" pyproject.toml >"$scratch/pyproject.toml"
"$tools/bin/cyclonedx-py" environment --output-reproducible --pyproject "$scratch/pyproject.toml" --mc-type application \
  --output-file "$out/gorgo-epp-$version.cdx.json" "$scratch/image/bin/python"

(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
