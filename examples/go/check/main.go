// A rate limit check by the protocol of Envoy's `rate_limit` filter, with Envoy's generated client.
// Run `scripts/examples.sh` and `sluicegate serve --limits-paths config/limits`, then
// `go run ./check 127.0.0.1:8081 shop api_key=demo` in the folder above.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	api "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: check ADDRESS DOMAIN KEY=VALUE...")
	}
	channel, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	descriptor := &api.RateLimitDescriptor{}
	for _, entry := range os.Args[3:] {
		key, value, _ := strings.Cut(entry, "=")
		descriptor.Entries = append(descriptor.Entries, &api.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	request := &rls.RateLimitRequest{Domain: os.Args[2], Descriptors: []*api.RateLimitDescriptor{descriptor}}
	reply, err := rls.NewRateLimitServiceClient(channel).ShouldRateLimit(ctx, request)
	if err != nil {
		log.Fatal("not checked: ", err)
	}
	status := reply.Statuses[0]
	fmt.Println(reply.OverallCode, status.LimitRemaining, "of", status.GetCurrentLimit().GetRequestsPerUnit(), "left")
}
