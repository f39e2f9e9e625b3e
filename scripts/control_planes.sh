#!/usr/bin/env bash
# Runs the service and the chart with real control planes: a Kubernetes API server, Envoy Gateway and Istio.
#
#   scripts/control_planes.sh                    all of them
#   scripts/control_planes.sh kubernetes …       some of: kubernetes gateway istio
#
# Run scripts/test.sh first; it installs Envoy. Not part of scripts/verify.sh: Go compiles the control planes for some
# 25 minutes, once, into .tools/bin.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

kubernetes=v1.36.3
gateway=github.com/envoyproxy/gateway/cmd/envoy-gateway@v1.9.1
istio=istio.io/istio@v0.0.0-20260827124520-eed52ebb66ad
pyyaml=6.0.3

bin=$PWD/.tools/bin
[ $# -gt 0 ] || set -- kubernetes gateway istio
mkdir -p "$bin"

# has PROGRAM VERSION: whether the program was built from this version.
has() { [ -x "$bin/$1" ] && [ "$(cat "$bin/$1.version" 2>/dev/null)" = "$2" ]; }

install_module() {
    has "$1" "$2" && return
    GOBIN=$bin GOFLAGS=-trimpath go install "$2"
    echo "$2" > "$bin/$1.version"
}

# Kubernetes and etcd replace modules in their go.mod, so they need a go.mod here.
install_kubernetes() {
    has kube-apiserver "$kubernetes" && return
    (
        cd tests/control_planes
        go build -trimpath -o "$bin/etcd" go.etcd.io/etcd/server/v3
        go build -trimpath -ldflags "-X k8s.io/component-base/version.gitVersion=$kubernetes" -o "$bin/kube-apiserver" \
            k8s.io/kubernetes/cmd/kube-apiserver
    )
    echo "$kubernetes" > "$bin/kube-apiserver.version"
}

scripts/chart.sh
cargo build --locked --workspace --bin sluicegate
for which in "$@"; do
    case $which in
        kubernetes) install_kubernetes ;;
        gateway)
            install_kubernetes
            install_module envoy-gateway "$gateway"
            # The chart of Envoy Gateway.
            GATEWAY_SOURCE=$(go mod download -json "${gateway/\/cmd\/envoy-gateway/}" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
            export GATEWAY_SOURCE
            ;;
        istio)
            install_kubernetes
            for program in pilot-discovery pilot-agent; do
                install_module "$program" "${istio/@//pilot/cmd/$program@}"
            done
            # The charts of Istio, and the bootstrap of its images.
            ISTIO_SOURCE=$(go mod download -json "$istio" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
            export ISTIO_SOURCE
            # The module.
            cargo build --locked --workspace --lib
            ;;
        *) echo "no such control plane: $which; use kubernetes, gateway or istio" >&2; exit 2 ;;
    esac
done

python=python3
if ! python3 -c 'import yaml' 2>/dev/null; then
    python=.tools/control_planes/bin/python
    python3 -m venv .tools/control_planes
    "$python" -m pip install --quiet "pyyaml==$pyyaml"
fi

rm -rf target/control_planes
for which in "$@"; do
    echo "==> $which"
    "$python" "tests/control_planes/$which.py"
done
