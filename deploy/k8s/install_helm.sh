#!/usr/bin/env bash
# Helm, the oldest Helm that the chart works with, a registry to push the chart to, and the CRDs that its objects are
# checked against, from their Go modules into a cache outside the tree. Prints the folder.
set -euo pipefail

helm_version=v3.22.0
oldest_version=v3.14.0
cache=${EPP_HELM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gorgo-epp/helm-$helm_version}
mkdir -p "$cache/crds"

# Folder, version.
install_helm() {
  [ -x "$1/helm" ] && return
  GOBIN="$1" CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@$2" >&2
}
install_helm "$cache" "$helm_version"
install_helm "$cache/$oldest_version" "$oldest_version"
[ -x "$cache/registry" ] ||
  GOBIN="$cache" CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" \
    github.com/distribution/distribution/v3/cmd/registry@v3.1.2 >&2

# module@version, and the file of it that holds a CRD.
crds() {
  cat <<'LIST'
sigs.k8s.io/gateway-api@v1.6.3 config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
sigs.k8s.io/gateway-api-inference-extension@v1.6.0 config/crd/bases/inference.networking.k8s.io_inferencepools.yaml
sigs.k8s.io/gateway-api-inference-extension@v1.5.0 config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml
github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
istio.io/api@v1.27.0 kubernetes/customresourcedefinitions.gen.yaml
LIST
}

crds | while read -r module file; do
  target=$cache/crds/$(basename "$file")
  [ "$(cat "$target.version" 2>/dev/null)" = "$module" ] && continue
  # Outside any module, so that none of ours is asked.
  folder=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
  install -m 644 "$folder/$file" "$target"
  echo "$module" > "$target.version"
done
echo "$cache"
