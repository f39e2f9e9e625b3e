// A program without a proxy: reserves tokens before a request, and settles what it used.
// Run `scripts/examples.sh` and `sluicegate serve --limits-paths config/budgets`, then `go run .` in this folder.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"time"

	api "budgets/sluicegatev1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const attempts, domain = 3, "llm"

var descriptors = []*api.Descriptor{{Entries: []*api.Entry{{Key: "org", Value: "acme"}, {Key: "model", Value: "large"}}}}

func within(seconds time.Duration) context.Context {
	limited, end := context.WithTimeout(context.Background(), seconds*time.Second)
	time.AfterFunc(seconds*time.Second, end)
	return limited
}

// Returns the id of a new hold.
func reserve(budgets api.BudgetsClient, tokens uint64) string {
	for range attempts {
		// Hard to guess: a client that knows the id can settle the request.
		id := rand.Text()
		request := &api.ReserveRequest{Id: id, Domain: domain, Descriptors: descriptors, Tokens: &tokens}
		reply, err := budgets.Reserve(within(2), request)
		if err == nil && reply.Verdict != api.ReserveResponse_ALLOW {
			log.Fatal("denied: ", reply.Reason)
		} else if err == nil {
			return id
		}
		fmt.Println("no reply to the reserve: canceling its id")
		// After the cancel, the id has ended: a hold is gone, and a reserve that arrives later is denied. So the next
		// attempt has another id. If the cancel fails, a hold ends after `time_limit`.
		cancel(budgets, id, 30)
	}
	panic("no reply to any reserve")
}

func cancel(budgets api.BudgetsClient, id string, seconds time.Duration) {
	_, err := budgets.Cancel(within(seconds), &api.CancelRequest{Id: id, Domain: domain, Descriptors: descriptors})
	must(err)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	channel, err := grpc.NewClient(append(os.Args, "127.0.0.1:8081")[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	budgets := api.NewBudgetsClient(channel)
	id := reserve(budgets, 500)
	// Here the program calls the provider.
	request := &api.SettleRequest{Id: id, Domain: domain, Descriptors: descriptors}
	request.Usage = &api.TokenUsage{Input: 100, Output: 20} // Without it, the held tokens are charged.
	reply, err := budgets.Settle(within(2), request)
	// A repeated settle changes nothing, so a lost reply is no problem.
	for i := 1; err != nil && i < attempts; i++ {
		reply, err = budgets.Settle(within(2), request)
	}
	must(err)
	for _, it := range reply.Budgets {
		fmt.Printf("%s: %d of %d %s settled, %d held\n", it.Path, it.Settled, it.Amount, it.Unit, it.Held)
	}
	// If the provider never got a request, it costs nothing.
	cancel(budgets, reserve(budgets, 500), 2)
	fmt.Println("canceled")
}
