#!/usr/bin/env bash
# Publishes the artefacts that scripts/release.sh made for both architectures. Only .github/workflows/release.yml
# calls it: it needs a tag, a registry, docker with buildx, helm, cosign, gh and jq.
#
#   scripts/publish.sh prepare DIR REGISTRY   compares tag, versions and sums; packs the chart; writes SHA256SUMS
#   scripts/publish.sh images DIR REGISTRY    pushes the images of both architectures and the chart, and signs them
#   scripts/publish.sh release DIR REGISTRY   signs SHA256SUMS, and creates the release with all files
#
# Guarantees:
# - The programs of the images are those of the archives and packages.
# - Each image has an SBOM and its provenance. The signature is of the digest, by the identity of the workflow.
#
# Not covered:
# - No test runs it. scripts/verify.sh runs all that comes before.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

[ $# = 3 ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2; }
dir=$(realpath "$2")
registry=${3,,}
architectures=(amd64 arm64)
version=$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "$*" >&2; exit 1; }

# The section of the version in the changelog.
notes() { sed -n "/^## $version\b/,/^## /{/^## /d;p}" CHANGELOG.md; }

prepare() {
    [ "${GITHUB_REF_NAME:-}" = "v$version" ] || fail "the tag ${GITHUB_REF_NAME:-} is not v$version, the version of Cargo.toml"
    [ -n "$(notes)" ] || fail "CHANGELOG.md has no section ## $version"
    for arch in "${architectures[@]}"; do
        (cd "$dir" && sha256sum --quiet --check "SHA256SUMS-$arch")
    done
    scripts/release.sh chart "$dir" "$registry"
    (cd "$dir" && sha256sum ./*.tar.gz ./*.deb ./*.json ./*.tgz | sed 's# \./# #' >SHA256SUMS)
}

# sign NAME DIGEST: signs an image or a chart, and the images of its architectures.
sign() { cosign sign --yes --recursive "$1@$2"; }

# push_image NAME STAGE: builds the Dockerfile's last stages around the released programs.
push_image() {
    local image=$registry/$1 arch digests=()
    for arch in "${architectures[@]}"; do
        mkdir -p "$work/$arch"
        tar -C "$work/$arch" -xf "$dir/image-$arch.tar"
        # A context with the name of a stage replaces the stage, so nothing is compiled again.
        docker buildx build . --platform "linux/$arch" ${2:+--target "$2"} \
            --build-context "build=$work/$arch" --build-context "build-module=$work/$arch" \
            --label "org.opencontainers.image.version=$version" --sbom=true --provenance=mode=max \
            --output "type=image,name=$image,push-by-digest=true,name-canonical=true,push=true" \
            --metadata-file "$work/pushed.json"
        digests+=("$(jq -r '."containerimage.digest"' "$work/pushed.json")")
        cosign attest --yes --type cyclonedx --predicate "$dir/sluicegate-$version-linux-$arch.cdx.json" \
            "$image@${digests[-1]}"
    done
    docker buildx imagetools create --tag "$image:$version" "${digests[@]/#/$image@}"
    sign "$image" "$(docker buildx imagetools inspect "$image:$version" --format '{{json .Manifest}}' | jq -r .digest)"
}

push_chart() {
    local digest
    digest=$(helm push "$dir/sluicegate-$version.tgz" "oci://$registry/charts" 2>&1 | tee /dev/stderr |
        sed -n 's/^Digest: //p')
    sign "$registry/charts/sluicegate" "$digest"
}

images() {
    push_image sluicegate ''
    push_image sluicegate-envoy-module envoy-module
    push_chart
}

release() {
    (cd "$dir" && cosign sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS)
    notes >"$work/notes"
    gh release create "v$version" --verify-tag --title "Sluicegate $version" --notes-file "$work/notes" \
        "$dir"/*.tar.gz "$dir"/*.deb "$dir"/*.cdx.json "$dir"/*.tgz "$dir"/SHA256SUMS "$dir"/SHA256SUMS.sigstore.json
}

case $1 in
    prepare | images | release) "$1" ;;
    *) fail "no such part: $1" ;;
esac
