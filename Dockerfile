# syntax=docker/dockerfile:1
# The service on glibc, without a shell and without root. The root file system may be read-only.
#
#   docker build -t sluicegate .
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=true -t … --push .
#   docker build --target sbom --output sbom .        (this build's crates, as CycloneDX)
#   docker build --target envoy-module -t sluicegate-envoy-module .        (the module for Envoy)

FROM docker.io/library/rust:1.89-bookworm AS source
WORKDIR /build
# Enables huge pages in the allocator's build.
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
# Cargo.toml requires these files.
COPY benches benches
COPY tests/all.rs tests/all.rs
COPY crates crates
COPY proto proto
COPY src src

FROM source AS build
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    # On arm64, Linux has pages of 4, 16 or 64 KiB. jemalloc runs on pages up to the size that it is built for.
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --profile dist --locked --bin sluicegate --features jemalloc --config 'profile.dist.strip="debuginfo"' \
    && mkdir -p /out/bin \
    && cp target/dist/sluicegate /out/bin/sluicegate \
    # The program's name in the image of envoyproxy/ratelimit.
    && ln -s sluicegate /out/bin/ratelimit

# The module needs glibc 2.35. Envoy's images have 2.35 (Ubuntu 22.04) and 2.36 (distroless Debian 12).
FROM source AS build-module
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    cargo build --profile dist --locked --package sluicegate-envoy --config 'profile.dist.strip="debuginfo"' \
    && mkdir -p /out \
    && cp target/dist/libsluicegate_envoy.so /out/libsluicegate_envoy.so

# An init container of Envoy's pods, which copies the module into a volume.
FROM docker.io/library/busybox:1.37-musl AS envoy-module
LABEL org.opencontainers.image.title="sluicegate-envoy-module" \
    org.opencontainers.image.description="Rate limits inside Envoy: the dynamic module libsluicegate_envoy.so" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-module /out/ /
USER 65532:65532
CMD ["cp", "/libsluicegate_envoy.so", "/modules/"]

FROM source AS list
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    cargo install --locked cargo-cyclonedx --version 0.5.9 \
    && cargo cyclonedx --format json --features jemalloc --override-filename sluicegate

FROM scratch AS sbom
COPY --from=list /build/sluicegate.json /

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="sluicegate" \
    org.opencontainers.image.description="Rate limits and ceilings on requests in flight for Envoy and NGINX" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /
USER 65532:65532
# gRPC, HTTP, metrics; admin listens on loopback.
EXPOSE 8081 8080 9090
ENTRYPOINT ["/bin/sluicegate"]
CMD ["--help"]
