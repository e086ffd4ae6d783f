// Google's own client and test server of Pub/Sub, told by lines with tabs between their fields; bytes are in base64.
//
// "publish PROJECT TOPIC COMPRESSION", where COMPRESSION is true or false, reads "KEY DATA [NAME VALUE]..." and writes
// the id of each message, in that order; then "payload BYTES SENT_BYTES": of all requests, and as they went out.
//
// "receive PROJECT SUBSCRIPTION COUNT" writes "ID KEY DATA [NAME VALUE]..." for each message that it is given, and acks
// it; it ends when there were COUNT, and no more came for a while.
//
// For both, the variable PUBSUB_EMULATOR_HOST says where the server is.
//
// "serve PORT [exit-with-parent]" runs pstest on 127.0.0.1, and writes "listening on HOST:PORT" and what a shell can
// evaluate. With exit-with-parent it ends when its standard input does, or its parent is another one.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

const (
	patience = 2 * time.Minute
	quiet    = 2 * time.Second
	longest  = 64 << 20

	parentLook = 500 * time.Millisecond
)

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2], len(os.Args) > 3)
		return
	}
	ctx := context.Background()
	sizes := &sizes{}
	client, err := pubsub.NewClient(ctx, os.Args[2], option.WithGRPCDialOption(grpc.WithStatsHandler(sizes)))
	check(err)
	out := bufio.NewWriter(os.Stdout)
	if os.Args[1] == "publish" {
		publish(ctx, client, out)
		fmt.Fprintf(out, "payload\t%d\t%d\n", sizes.length.Load(), sizes.sent.Load())
	} else {
		receive(ctx, client, out)
	}
	check(out.Flush())
	check(client.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func publish(ctx context.Context, client *pubsub.Client, out *bufio.Writer) {
	publisher := client.Publisher(os.Args[3])
	publisher.EnableMessageOrdering = true
	publisher.PublishSettings.EnableCompression = os.Args[4] == "true"
	var results []*pubsub.PublishResult
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		message := &pubsub.Message{OrderingKey: text(fields[0]), Data: []byte(text(fields[1])), Attributes: map[string]string{}}
		for place := 2; place < len(fields); place += 2 {
			message.Attributes[text(fields[place])] = text(fields[place+1])
		}
		results = append(results, publisher.Publish(ctx, message))
	}
	check(lines.Err())
	for _, result := range results {
		id, err := result.Get(ctx)
		check(err)
		fmt.Fprintln(out, id)
	}
}

func receive(ctx context.Context, client *pubsub.Client, out *bufio.Writer) {
	count, err := strconv.ParseInt(os.Args[4], 10, 64)
	check(err)
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var mutex sync.Mutex
	var taken atomic.Int64
	go func() {
		for before := int64(-1); taken.Load() < count || taken.Load() > before; time.Sleep(quiet) {
			before = taken.Load()
		}
		stop()
	}()
	check(client.Subscriber(os.Args[3]).Receive(ctx, func(_ context.Context, message *pubsub.Message) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Fprintf(out, "%s\t%s\t%s", message.ID, field(message.OrderingKey), field(string(message.Data)))
		for name, value := range message.Attributes {
			fmt.Fprintf(out, "\t%s\t%s", field(name), field(value))
		}
		fmt.Fprintln(out)
		message.Ack()
		taken.Add(1)
	}))
}

func serve(port string, withParent bool) {
	server := pstest.NewServerWithAddress("127.0.0.1:" + port)
	fmt.Printf("listening on %[1]s\n# endpoint: %[1]s\nexport PUBSUB_EMULATOR_HOST=%[1]s\n", server.Addr)
	if !withParent {
		select {}
	}
	go func() {
		for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(parentLook) {
		}
		os.Exit(0)
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	check(err)
}

func text(field string) string {
	bytes, err := base64.StdEncoding.DecodeString(field)
	check(err)
	return string(bytes)
}

func field(text string) string {
	return base64.StdEncoding.EncodeToString([]byte(text))
}

// sizes adds up the bytes of all requests, before and after compression.
type sizes struct {
	length, sent atomic.Int64
}

func (s *sizes) HandleRPC(_ context.Context, event stats.RPCStats) {
	if payload, ok := event.(*stats.OutPayload); ok {
		s.length.Add(int64(payload.Length))
		s.sent.Add(int64(payload.CompressedLength))
	}
}

func (s *sizes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (s *sizes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (s *sizes) HandleConn(context.Context, stats.ConnStats) {}
