// A Pub/Sub server that answers from a can, for benchmarks: it makes messages as fast as the machine can send them, so
// that what is measured is the client.
//
// It speaks StreamingPull, Pull, Acknowledge, ModifyAckDeadline and Publish of google.pubsub.v1, and as much of the rest
// as a client needs to start. What is published gets ids, is counted, and is gone. A response is a template whose ids and times are overwritten in place. Every message has an id
// of its own (17 digits, as the service's), an ack id of its own (184 characters), the same random payload, and the
// time of its response. A stream gets no more messages than its first request allows to be outstanding.
//
// It is no emulator: nothing is redelivered, deadlines never pass, and what a closed stream did not ack is gone.
//
// With -timed there are no messages but those of a command "generate RATE SECONDS": so many a second come to be evenly,
// whether clients take them or not. The payload of such a message begins with the time at which it was due (ns since
// 1970) and its number, each in 8 bytes, little-endian.
//
// It prints "listening on 127.0.0.1:PORT", then reads lines from standard input: each line "stats" is answered by one
// line of JSON, and so is "generate" when all its messages are there. It ends, with a last such line, when standard input is closed, at SIGTERM, or after -max-seconds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Responses that may be on their way to the socket at a time, for each stream.
const buffersPerStream = 4

// What a codec must know of itself; the content type of gRPC stays the usual one.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	return mem.BufferSlice{value.(mem.Buffer)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	*value.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

type server struct {
	delay      time.Duration
	can        *can
	deliveries *deliveries
}

func (s *server) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	method = method[strings.LastIndexByte(method, '/')+1:]
	s.deliveries.called(method)
	if method == "StreamingPull" {
		return s.streamingPull(stream)
	}
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	response, err := s.unary(method, request)
	if err != nil {
		return err
	}
	return stream.SendMsg(mem.SliceBuffer(response))
}

func (s *server) unary(method string, request []byte) ([]byte, error) {
	switch method {
	case "Acknowledge":
		s.deliveries.acknowledge(request, ackIDsOfAcknowledge)
		return nil, nil
	case "ModifyAckDeadline":
		s.deliveries.modifyDeadline(request)
		return nil, nil
	case "Pull":
		return s.pull(request)
	case "Publish":
		return s.publish(request)
	case "GetSubscription":
		return subscription(text(request, 1), "projects/canned/topics/canned"), nil
	case "CreateSubscription":
		return subscription(text(request, 1), text(request, 2)), nil
	case "GetTopic", "CreateTopic":
		return topic(text(request, 1)), nil
	case "DeleteSubscription", "DeleteTopic":
		return nil, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "the canned server has no %s", method)
}

func (s *server) pull(request []byte) ([]byte, error) {
	most := int(number(request, 3))
	if most <= 0 {
		return nil, status.Error(codes.InvalidArgument, "max_messages must be positive")
	}
	buffer := s.can.fresh()
	first, count := s.deliveries.take(s.deliveries.pulls, min(most, s.can.batch))
	return s.can.fill(buffer, s.deliveries.pulls.index, first, count), nil
}

// Limits of a PublishRequest: https://cloud.google.com/pubsub/quotas#resource_limits
const (
	mostPublished      = 1000
	mostPublishedBytes = 10_000_000
)

// publish gives every message of a request an id, and keeps nothing.
func (s *server) publish(request []byte) ([]byte, error) {
	count := 0
	fields(request, func(field int, _ uint64, _ []byte) {
		if field == 2 {
			count++
		}
	})
	if count == 0 || count > mostPublished || len(request) > mostPublishedBytes || text(request, 1) == "" {
		return nil, status.Error(codes.InvalidArgument, "a request has a topic, 1 to 1,000 messages and at most 10 MB")
	}
	first := s.deliveries.publish(count, len(request))
	response := make([]byte, 0, count*(idDigits+2))
	var id [idDigits]byte
	for i := range count {
		putDigits(id[:], firstID+first+uint64(i))
		response = appendBytes(response, 1, id[:])
	}
	return response, nil
}

func (s *server) streamingPull(stream grpc.ServerStream) error {
	var first []byte
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	receiver := s.deliveries.open(number(first, 7), number(first, 8), s.can.messageBytes())
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	context.AfterFunc(ctx, func() { s.deliveries.close(receiver) })
	go func() {
		defer cancel()
		for {
			var request []byte
			if stream.RecvMsg(&request) != nil {
				return
			}
			s.deliveries.called("request on a stream")
			s.deliveries.acknowledge(request, ackIDsOfStreamingPull)
		}
	}()
	// As the service does, a response with nothing but subscription_properties comes first.
	if err := stream.SendMsg(mem.SliceBuffer([]byte{0x22, 0x00})); err != nil {
		return err
	}
	free := newBufferPool(s.can, buffersPerStream, ctx.Done())
	for {
		first, count := s.deliveries.take(receiver, s.can.batch)
		if count == 0 {
			return nil
		}
		if s.delay > 0 {
			time.Sleep(s.delay)
		}
		if err := stream.SendMsg(free.response(receiver.index, first, count)); err != nil {
			return err
		}
	}
}

// bufferPool lends the buffers of one stream; gRPC hands each back when it has written it.
type bufferPool struct {
	can    *can
	free   chan *[]byte
	closed <-chan struct{}
}

func newBufferPool(can *can, size int, closed <-chan struct{}) *bufferPool {
	pool := &bufferPool{can: can, free: make(chan *[]byte, size), closed: closed}
	for range size {
		buffer := can.fresh()
		pool.free <- &buffer
	}
	return pool
}

func (p *bufferPool) Get(int) *[]byte {
	select {
	case buffer := <-p.free:
		return buffer
	case <-p.closed:
		buffer := p.can.fresh()
		return &buffer
	}
}

func (p *bufferPool) Put(buffer *[]byte) {
	select {
	case p.free <- buffer:
	default:
	}
}

func (p *bufferPool) response(stream int, first uint64, count int) mem.Buffer {
	buffer := p.Get(0)
	filled := p.can.fill((*buffer)[:cap(*buffer)], stream, first, count)
	if mem.IsBelowBufferPoolingThreshold(cap(filled)) {
		// gRPC would never hand such a small one back.
		small := append([]byte(nil), filled...)
		p.Put(buffer)
		return mem.SliceBuffer(small)
	}
	*buffer = filled
	return mem.NewBuffer(buffer, p)
}

func run() error {
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 picks a free one")
	size := flag.Int("size", 100, "bytes of a payload")
	batch := flag.Int("batch", 1000, "messages in a response")
	attributes := flag.Int("attributes", 0, "attributes of a message")
	delay := flag.Duration("delay", 0, "time that each stream waits before each of its responses")
	timed := flag.Bool("timed", false, "no messages but those of the command generate")
	limit := flag.Uint64("limit", 0, "messages in all; 0 means no end")
	maxSeconds := flag.Float64("max-seconds", 600, "end after so many seconds")
	flag.Parse()
	if *size < 0 || *batch < 1 || *attributes < 0 {
		return fmt.Errorf("-size, -batch or -attributes is out of range")
	}
	if *timed && *size < timedBytes {
		return fmt.Errorf("with -timed a payload has at least %d bytes", timedBytes)
	}

	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return err
	}
	s := &server{can: newCan(*size, *batch, *attributes), deliveries: newDeliveries(*limit, *timed), delay: *delay}
	if *timed {
		s.can.due = s.deliveries.due
	}
	grpcServer := grpc.NewServer(
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.UnknownServiceHandler(s.handle),
		grpc.WriteBufferSize(1<<20),
		grpc.MaxRecvMsgSize(64<<20),
	)

	var printing sync.Mutex
	show := func(what any) {
		printing.Lock()
		defer printing.Unlock()
		line, _ := json.Marshal(what)
		fmt.Println(string(line))
	}
	ended := make(chan os.Signal, 2)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		answer(os.Stdin, s.deliveries, show)
		ended <- syscall.SIGTERM
	}()
	time.AfterFunc(time.Duration(*maxSeconds*float64(time.Second)), func() { ended <- syscall.SIGTERM })
	go func() {
		<-ended
		grpcServer.Stop()
	}()

	fmt.Printf("listening on %s\n", listener.Addr())
	err = grpcServer.Serve(listener)
	show(s.deliveries.stats())
	return err
}

func answer(input io.Reader, deliveries *deliveries, show func(any)) {
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		var rate, seconds float64
		if lines.Text() == "stats" {
			show(deliveries.stats())
		} else if _, err := fmt.Sscanf(lines.Text(), "generate %g %g", &rate, &seconds); err == nil {
			show(deliveries.generate(rate, seconds))
		}
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
