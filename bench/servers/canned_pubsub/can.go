package main

import (
	"encoding/binary"
	"math/rand"
	"time"
)

const (
	idDigits = 17
	firstID  = 16_312_609_047_030_287

	// An ack id: the stream in 8 hex digits, the number of the delivery in 17 digits, and filling.
	ackIDBytes     = 184
	ackIDStream    = 8
	ackIDNumber    = ackIDStream + idDigits
	timestampBytes = 12

	// A timed payload begins with the time at which it was due, and with the number of its delivery.
	dueBytes   = 8
	timedBytes = 2 * dueBytes
)

// can makes responses of messages that differ only in bytes of fixed places: all are equally long.
type can struct {
	batch    int
	stride   int
	template []byte
	// Where in a message its ack id, its payload, its message id and its publish time begin.
	ackID, payload, messageID, publishTime int
	// When a delivery was due, in ns since 1970, if payloads begin with that.
	due func(delivery uint64) int64
}

func newCan(size, batch, attributes int) *can {
	random := rand.New(rand.NewSource(1))
	payload := make([]byte, size)
	random.Read(payload)
	message := appendBytes(nil, 1, payload)
	payloadBegin := len(message) - size
	for i := range attributes {
		entry := appendBytes(nil, 1, []byte("attribute"+string(rune('a'+i%26))+string(rune('a'+i/26))))
		entry = appendBytes(entry, 2, []byte("a value of 20 bytes."))
		message = appendBytes(message, 2, entry)
	}
	message = appendBytes(message, 3, make([]byte, idDigits))
	messageID := len(message) - idDigits
	message = appendBytes(message, 4, make([]byte, timestampBytes))
	publishTime := len(message) - timestampBytes

	filling := make([]byte, ackIDBytes)
	for i := range filling {
		filling[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[random.Intn(64)]
	}
	received := appendBytes(nil, 1, filling)
	ackID := len(received) - ackIDBytes
	received = appendBytes(received, 2, message)
	inner := len(received) - len(message)

	one := appendBytes(nil, 1, received)
	outer := len(one) - len(received)
	c := &can{
		batch: batch, stride: len(one),
		ackID: outer + ackID, payload: outer + inner + payloadBegin, messageID: outer + inner + messageID, publishTime: outer + inner + publishTime,
	}
	for range batch {
		c.template = append(c.template, one...)
	}
	return c
}

// messageBytes is what a message counts for when the bytes outstanding are limited.
func (c *can) messageBytes() int { return c.stride - ackIDBytes }

func (c *can) fresh() []byte { return append([]byte(nil), c.template...) }

// fill writes the response with the deliveries first to first+count-1 over a buffer that fresh made.
func (c *can) fill(buffer []byte, stream int, first uint64, count int) []byte {
	var timestamp [timestampBytes]byte
	putTimestamp(timestamp[:], time.Now())
	var name [ackIDStream]byte
	putHex(name[:], uint64(stream))
	for i := range count {
		message := buffer[i*c.stride : (i+1)*c.stride]
		delivery := first + uint64(i)
		copy(message[c.ackID:], name[:])
		putDigits(message[c.ackID+ackIDStream:c.ackID+ackIDNumber], delivery)
		putDigits(message[c.messageID:c.messageID+idDigits], firstID+delivery)
		copy(message[c.publishTime:], timestamp[:])
		if c.due != nil {
			binary.LittleEndian.PutUint64(message[c.payload:], uint64(c.due(delivery)))
			binary.LittleEndian.PutUint64(message[c.payload+dueBytes:], delivery)
		}
	}
	return buffer[:count*c.stride]
}

const pairs = "" +
	"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657" +
	"5859606162636465666768697071727374757677787980818283848586878889909192939495969798" + "99"

func putDigits(out []byte, value uint64) {
	i := len(out)
	for ; i >= 2; i -= 2 {
		pair := value % 100 * 2
		out[i-2], out[i-1] = pairs[pair], pairs[pair+1]
		value /= 100
	}
	if i == 1 {
		out[0] = byte('0' + value%10)
	}
}

func putHex(out []byte, value uint64) {
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = "0123456789abcdef"[value&15]
		value >>= 4
	}
}

// putTimestamp writes a google.protobuf.Timestamp of fixed length: its varints are padded to five bytes, which every
// parser takes.
func putTimestamp(out []byte, now time.Time) {
	out[0], out[6] = 0x08, 0x10
	putPadded(out[1:6], uint64(now.Unix()))
	putPadded(out[7:12], uint64(now.Nanosecond()/1000*1000))
}

func putPadded(out []byte, value uint64) {
	for i := range out {
		out[i] = byte(value)&0x7f | 0x80
		value >>= 7
	}
	out[len(out)-1] &= 0x7f
}

func appendBytes(out []byte, field int, value []byte) []byte {
	out = binary.AppendUvarint(out, uint64(field)<<3|2)
	out = binary.AppendUvarint(out, uint64(len(value)))
	return append(out, value...)
}

func appendNumber(out []byte, field int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(out, uint64(field)<<3), value)
}

// fields calls each field of a message that is a number or a string; it stops at anything else.
func fields(message []byte, visit func(field int, number uint64, value []byte)) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return
		}
		number, m := binary.Uvarint(message[n:])
		if m <= 0 {
			return
		}
		message = message[n+m:]
		switch tag & 7 {
		case 0:
			visit(int(tag>>3), number, nil)
		case 2:
			if number > uint64(len(message)) {
				return
			}
			visit(int(tag>>3), 0, message[:number])
			message = message[number:]
		default:
			return
		}
	}
}

func text(message []byte, field int) string {
	found := ""
	fields(message, func(each int, _ uint64, value []byte) {
		if each == field {
			found = string(value)
		}
	})
	return found
}

func number(message []byte, field int) int64 {
	var found uint64
	fields(message, func(each int, number uint64, _ []byte) {
		if each == field {
			found = number
		}
	})
	return int64(found)
}

const weekSeconds = 7 * 24 * 3600

func subscription(name, topic string) []byte {
	out := appendBytes(nil, 1, []byte(name))
	out = appendBytes(out, 2, []byte(topic))
	out = appendNumber(out, 5, 60)                               // ack_deadline_seconds
	out = appendBytes(out, 8, appendNumber(nil, 1, weekSeconds)) // message_retention_duration
	return appendNumber(out, 19, 1)                              // state: ACTIVE
}

func topic(name string) []byte {
	return appendBytes(nil, 1, []byte(name))
}
