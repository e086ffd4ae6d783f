package main

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// Outstanding messages of a stream whose client sets no limit.
	unlimited = 1 << 40

	chunkBits = 1 << 20

	// How often timed messages come to be.
	tick = 5 * time.Millisecond
)

// Fields that hold ack ids: acknowledge, and change the deadline.
const (
	ackIDsOfAcknowledge       = 2
	ackIDsOfStreamingPull     = 2
	ackIDsOfModifyAckDeadline = 4
	secondsOfModifyDeadline   = 3
)

// receiver is one stream, or everything that is pulled.
type receiver struct {
	index       int
	most        int
	outstanding int
	closed      bool
}

// deliveries counts what was handed out and what came back.
type deliveries struct {
	mutex     sync.Mutex
	room      *sync.Cond
	limit     uint64
	next      uint64
	receivers []*receiver
	pulls     *receiver
	acked     [][]uint64
	began     time.Time
	counts    counts
	timed     bool
	made      uint64
	runs      []timedRun
}

// timedRun is messages that come to be evenly, from the first one on.
type timedRun struct {
	first uint64
	begin int64
	rate  float64
}

// generated is what came of a command "generate".
type generated struct {
	Messages uint64  `json:"messages"`
	Begin    int64   `json:"begin"`
	LateP99  float64 `json:"late_p99_ms"`
	LateMost float64 `json:"late_max_ms"`
	ToSend   uint64  `json:"not_sent"`
}

type counts struct {
	Sent           uint64            `json:"sent"`
	Acked          uint64            `json:"acked"`
	AckIDs         uint64            `json:"ack_ids"`
	UnknownAckIDs  uint64            `json:"unknown_ack_ids"`
	DeadlineAckIDs uint64            `json:"deadline_ack_ids"`
	NackIDs        uint64            `json:"nack_ids"`
	AckRequests    uint64            `json:"ack_requests"`
	DeadlineCalls  uint64            `json:"deadline_requests"`
	Responses      uint64            `json:"responses"`
	Streams        uint64            `json:"streams"`
	Published      uint64            `json:"published"`
	PublishedBytes uint64            `json:"published_bytes"`
	Publishes      uint64            `json:"publish_requests"`
	Calls          map[string]uint64 `json:"calls"`
	Seconds        float64           `json:"seconds"`
	CPUSeconds     float64           `json:"cpu_seconds"`
}

func newDeliveries(limit uint64, timed bool) *deliveries {
	d := &deliveries{limit: limit, timed: timed, began: time.Now()}
	d.counts.Calls = map[string]uint64{}
	d.room = sync.NewCond(&d.mutex)
	d.pulls = d.open(0, 0, 1)
	d.counts.Streams = 0
	return d
}

// called counts a call of a method, or a request on a stream.
func (d *deliveries) called(what string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.counts.Calls[what]++
}

// open begins a stream; limits that are not positive do not limit.
func (d *deliveries) open(mostMessages, mostBytes int64, messageBytes int) *receiver {
	most := int64(unlimited)
	if mostMessages > 0 {
		most = min(most, mostMessages)
	}
	if mostBytes > 0 {
		most = min(most, max(1, mostBytes/int64(messageBytes)))
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	r := &receiver{index: len(d.receivers), most: int(most)}
	d.receivers = append(d.receivers, r)
	d.counts.Streams++
	return r
}

func (d *deliveries) close(r *receiver) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	r.closed = true
	d.room.Broadcast()
}

// take waits until a stream may get a decent number of messages, at most `most`, and returns their run; none means
// that the stream was closed, and for a pull that the limit is reached.
func (d *deliveries) take(r *receiver, most int) (first uint64, count int) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	enough := max(1, min(most, r.most/4))
	for !r.closed {
		count = min(most, r.most-r.outstanding)
		if d.timed {
			enough = 1
			count = int(min(uint64(max(count, 0)), d.made-d.next))
		} else if d.limit > 0 {
			left := d.limit - d.next
			if left < uint64(enough) {
				enough = max(1, int(left))
			}
			count = int(min(uint64(max(count, 0)), left))
		}
		if count >= enough {
			first = d.next
			d.next += uint64(count)
			r.outstanding += count
			d.counts.Sent += uint64(count)
			d.counts.Responses++
			return first, count
		}
		if r == d.pulls {
			return 0, 0
		}
		d.room.Wait()
	}
	return 0, 0
}

// generate lets messages come to be at a steady rate, whatever the clients do, and returns how late it was itself.
func (d *deliveries) generate(rate, seconds float64) generated {
	total, begin := uint64(rate*seconds), time.Now()
	d.mutex.Lock()
	first := d.made
	d.runs = append(d.runs, timedRun{first, begin.UnixNano(), rate})
	d.mutex.Unlock()
	var late []time.Duration
	for made := uint64(0); made < total; {
		due := begin.Add(time.Duration(len(late)+1) * tick)
		time.Sleep(time.Until(due))
		late = append(late, time.Since(due))
		made = min(total, uint64(time.Since(begin).Seconds()*rate))
		d.mutex.Lock()
		d.made = first + made
		d.mutex.Unlock()
		d.room.Broadcast()
	}
	slices.Sort(late)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return generated{
		total, begin.UnixNano(), milliseconds(late[len(late)*99/100]), milliseconds(late[len(late)-1]), d.made - d.next,
	}
}

func milliseconds(each time.Duration) float64 { return float64(each) / float64(time.Millisecond) }

// due returns when a delivery came to be, in ns since 1970.
func (d *deliveries) due(delivery uint64) int64 {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for i := len(d.runs) - 1; i >= 0; i-- {
		if run := d.runs[i]; run.first <= delivery {
			return run.begin + int64(float64(delivery-run.first)*1e9/run.rate)
		}
	}
	return 0
}

func (d *deliveries) acknowledge(request []byte, field int) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	found := false
	fields(request, func(each int, _ uint64, value []byte) {
		if each == field {
			found = true
			d.acknowledgeOne(value)
		}
	})
	if found {
		d.counts.AckRequests++
		d.room.Broadcast()
	}
}

func (d *deliveries) acknowledgeOne(ackID []byte) {
	d.counts.AckIDs++
	r, delivery, ok := d.parse(ackID)
	if !ok {
		d.counts.UnknownAckIDs++
		return
	}
	chunk, bit := delivery/chunkBits, delivery%chunkBits
	for uint64(len(d.acked)) <= chunk {
		d.acked = append(d.acked, make([]uint64, chunkBits/64))
	}
	word, mask := &d.acked[chunk][bit/64], uint64(1)<<(bit%64)
	if *word&mask == 0 {
		*word |= mask
		d.counts.Acked++
		r.outstanding--
	}
}

func (d *deliveries) modifyDeadline(request []byte) {
	nack := number(request, secondsOfModifyDeadline) == 0
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.counts.DeadlineCalls++
	fields(request, func(each int, _ uint64, value []byte) {
		if each != ackIDsOfModifyAckDeadline {
			return
		}
		d.counts.DeadlineAckIDs++
		if r, _, ok := d.parse(value); ok && nack {
			d.counts.NackIDs++
			r.outstanding--
		}
	})
	if nack {
		d.room.Broadcast()
	}
}

// publish counts messages that were published, and returns how many there were before.
func (d *deliveries) publish(count, size int) uint64 {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	before := d.counts.Published
	d.counts.Published += uint64(count)
	d.counts.PublishedBytes += uint64(size)
	d.counts.Publishes++
	return before
}

// parse reads the stream and the delivery from an ack id.
func (d *deliveries) parse(ackID []byte) (*receiver, uint64, bool) {
	if len(ackID) != ackIDBytes {
		return nil, 0, false
	}
	stream, delivery := 0, uint64(0)
	for _, c := range ackID[:ackIDStream] {
		switch {
		case '0' <= c && c <= '9':
			stream = stream<<4 | int(c-'0')
		case 'a' <= c && c <= 'f':
			stream = stream<<4 | int(c-'a'+10)
		default:
			return nil, 0, false
		}
	}
	for _, c := range ackID[ackIDStream:ackIDNumber] {
		if c < '0' || '9' < c {
			return nil, 0, false
		}
		delivery = delivery*10 + uint64(c-'0')
	}
	if stream >= len(d.receivers) || delivery >= d.next {
		return nil, 0, false
	}
	return d.receivers[stream], delivery, true
}

func (d *deliveries) stats() counts {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	now := d.counts
	now.Calls = maps.Clone(now.Calls)
	now.Seconds = time.Since(d.began).Seconds()
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		now.CPUSeconds = time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	}
	return now
}
