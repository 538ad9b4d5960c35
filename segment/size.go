package segment

import "time"

// sizing is what the size of a refill is decided from.
type sizing struct {
	step    int64         // of the tag's row: the least
	most    int64         // segment.max_step
	last    int64         // size of the tag's last refill; 0: this is the first
	issued  int64         // IDs really handed out in the last target
	lasts   time.Duration // how long the current span lasts at its present pace; 0: unknown
	target  time.Duration
	waited  bool          // a request had to wait since the last refill
	waiting int64         // IDs that are waited for now, together
	pace    float64       // IDs a second while the tag is in use
	latency time.Duration // of a refill
}

// next is the size of the next refill: what was issued in the last target, so that a refill lasts about that long.
//
// It is no rate drawn out from a burst: 20,000 IDs in one second make refills of 20,000, not of 18 million. It at most doubles,
// so that one odd hour does not take a large hole with it; only where a request had to wait it may jump, to twice what is
// used up while a refill takes. It halves when a span lasts twice the target.
func (z sizing) next() int64 {
	least := min(z.step, z.most)
	want := max(z.issued, least)
	if z.last == 0 {
		want = max(least, z.waiting) // a cold tag: one refill serves all who wait (leaf S5)
	} else {
		limit := addCapped(z.last, z.last)
		if z.waited {
			during := int64(min(z.pace*z.latency.Seconds(), float64(z.most)))
			during = min(addCapped(during, z.waiting), z.most)
			want = max(want, 2*during)
			limit = max(limit, 2*during)
		}
		if z.lasts >= 2*z.target {
			limit = min(limit, z.last/2)
		}
		want = max(min(want, limit), least)
	}
	return min(want, z.most)
}

// demand counts the IDs issued in the last target, in eighths of it.
type demand struct {
	width  time.Duration // of one bucket
	start  time.Duration // of the bucket in use
	bucket [8]int64
	at     time.Duration // of the last note
	issued int64         // what was issued by then
	rate   float64       // IDs a second, smoothed over about 10 s

	flow       float64 // IDs a second of late, over at least flowTime
	flowAt     time.Duration
	flowIssued int64
}

// flowTime is the least time a flow is measured over: what comes within less is one burst.
const flowTime = 100 * time.Millisecond

func newDemand(target, now time.Duration) *demand {
	d := &demand{}
	d.width = max(target/time.Duration(len(d.bucket)), 1)
	d.start, d.at, d.flowAt = now, now, now
	return d
}

// note books that issued IDs had been handed out by now. What came since the last note is spread over the time between.
func (d *demand) note(now time.Duration, issued int64) {
	if t := now - d.flowAt; t >= flowTime {
		d.flow = float64(issued-d.flowIssued) / t.Seconds()
		d.flowAt, d.flowIssued = now, issued
	}
	n, took := issued-d.issued, now-d.at
	from := d.at
	d.issued, d.at = issued, now
	if took > 0 {
		w := min(took.Seconds()/10, 1)
		d.rate += (float64(n)/took.Seconds() - d.rate) * w
	}
	if span := d.width * time.Duration(len(d.bucket)); took > span {
		n = int64(float64(n) * (float64(span) / float64(took))) // the rest is too long ago
		from, took = now-span, span
	}
	for {
		end := d.start + d.width
		if now < end {
			d.bucket[0] += n
			return
		}
		if part := end - from; part > 0 && took > 0 {
			k := int64(float64(n) * (float64(part) / float64(took)))
			d.bucket[0] += k
			n, took, from = n-k, took-part, end
		}
		copy(d.bucket[1:], d.bucket[:])
		d.bucket[0] = 0
		d.start = end
		if from-d.start > 2*d.width*time.Duration(len(d.bucket)) {
			d.bucket = [8]int64{}
			d.start = from // long asleep
		}
	}
}

// lately is how many IDs were issued in the last target, the bucket in use included.
func (d *demand) lately() int64 {
	var n int64
	for _, k := range d.bucket {
		n += k
	}
	return n
}
