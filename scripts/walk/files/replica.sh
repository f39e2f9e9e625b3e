#!/usr/bin/env bash
# A second replica, on other ports.
#
#   replica.sh STORE_URL
exec sluicegate serve --settings config/start.yaml --store-url "$1" --fleet-replica-name second \
    --listen-grpc-port 18081 --listen-http-port 18080 --listen-metrics-port 19090 --listen-admin-port 16070 \
    --listen-peer-port 18082
