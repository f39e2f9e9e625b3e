// An HTTP handler that holds a permit for each request. It rejects a request without a permit, with the status of the limit.
// Run `scripts/examples.sh` and `sluicegate serve --limits-paths config/concurrency`, then `go run ./handler` in the
// folder above.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	api "budgets/sluicegatev1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const timeout = 2 * time.Second

// Remembers the status, which an adaptive limit learns from.
type recorder struct {
	http.ResponseWriter
	status uint32
}

func (r *recorder) WriteHeader(status int) {
	r.status = uint32(status)
	r.ResponseWriter.WriteHeader(status)
}

// Limited serves a request while it holds a permit of the limits that match its API key.
func Limited(permits api.PermitsClient, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := rand.Text() // Hard to guess: a client that knows the id can release the permit.
		entries := []*api.Entry{{Key: "api_key", Value: r.Header.Get("X-Api-Key")}}
		acquire := &api.AcquireRequest{Id: id, Domain: "edge", Descriptors: []*api.Descriptor{{Entries: entries}}}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		reply, err := permits.Acquire(ctx, acquire)
		answer := &recorder{w, http.StatusOK}
		// Also without a reply to the acquire, which may have got a permit.
		defer func() {
			release := &api.ReleaseRequest{Id: id, Owner: reply.GetOwner(), Answer: &api.Answer{HttpStatus: &answer.status}}
			// The context of a request ends with it.
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			if _, err := permits.Release(ctx, release); err != nil {
				log.Print("not released before `max_duration`: ", err)
			}
		}()
		switch {
		case err != nil:
			log.Print("not limited: ", err)
		case reply.Verdict != api.AcquireResponse_ALLOW:
			if reply.RetryAfterUs != nil {
				w.Header().Set("Retry-After", strconv.FormatUint((*reply.RetryAfterUs+999_999)/1_000_000, 10))
			}
			http.Error(answer, reply.Body, int(reply.Status))
			return
		}
		next.ServeHTTP(answer, r)
	})
}

func main() {
	arguments := []string{"127.0.0.1:8081", "127.0.0.1:8088"}
	copy(arguments, os.Args[1:])
	channel, err := grpc.NewClient(arguments[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", arguments[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())
	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, "read", size, "bytes")
	})
	log.Fatal(http.Serve(listener, Limited(api.NewPermitsClient(channel), work)))
}
