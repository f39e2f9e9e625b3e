#!/usr/bin/env bash
# Prepares the examples in Python and Go: their libraries in .tools, and the code of the proto files beside them.
#
#   scripts/examples.sh     needs python3 with venv, and go
set -Eeuo pipefail
cd "$(dirname "$0")/.."

python=.tools/examples/bin/python
version=1.84.0
if ! "$python" -c "import grpc, grpc_tools; assert grpc.__version__ == '$version'" 2>/dev/null; then
    rm -rf .tools/examples
    python3 -m venv .tools/examples
    "$python" -m pip install --quiet "grpcio==$version" "grpcio-tools==$version"
fi

# go.mod and go.sum choose the versions of the Go libraries and generators.
export GOMODCACHE=$PWD/.tools/go/mod GOCACHE=$PWD/.tools/go/build GOBIN=$PWD/.tools/go/bin
(cd examples/go && go install tool)

protos=(sluicegate/v1/budgets.proto sluicegate/v1/permits.proto)
go=(--plugin="$GOBIN/protoc-gen-go" --plugin="$GOBIN/protoc-gen-go-grpc")
for kind in go go-grpc; do
    go+=("--${kind}_out=examples/go" "--${kind}_opt=module=budgets")
    for proto in "${protos[@]}"; do go+=("--${kind}_opt=M$proto=budgets/sluicegatev1"); done
done
"$python" -m grpc_tools.protoc -I proto --python_out=examples/python --grpc_python_out=examples/python "${go[@]}" "${protos[@]}"
