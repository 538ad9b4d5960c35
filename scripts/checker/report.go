package checker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is the verdict over one history.
type Report struct {
	File        string
	Span        time.Duration // from the first request to the last reply
	Recorders   int
	Connections int64
	Keys        int
	Events      int64            // requests
	IDs         int64            // acknowledged
	Lost        int64            // requests that never had a reply
	Errors      map[string]int64 // refused requests, by the first word

	// What was promised not to be.
	Duplicates         int64 // IDs acknowledged more than once, each time beyond the first
	ConnectionDisorder int64 // replies that do not increase on their connection
	TimeDisorder       int64 // requests begun after a larger ID had come from the same instance
	Invalid            int64 // IDs below 1
	Ungranted          int64 // IDs outside every range that the store granted
	AboveHighWater     int64 // IDs at or above what the store stands at
	WorkerOverlaps     int64 // times a worker number was in two hands
	Unexpected         int64 // errors of a word that was not expected
	Truncated          bool  // the history has no end: the test was killed

	// What is only told.
	Regranted     int64 // IDs that the store granted while they were granted already: it went back
	WorkerChanges int64 // times a connection saw another worker number
	Faults        []FaultReport

	// Findings shows some of each kind, with the events behind them.
	Findings []string
}

// FaultReport is one fault and what it took to get over it.
type FaultReport struct {
	Name         string
	Begin, Cured time.Duration // Cured is 0 when it never was
	Recovery     time.Duration // from the cure until every client that was at work had an ID
	Stuck        int           // clients that went on asking and never had one
}

// Disorder is the number of IDs out of order, by connection or by time.
func (r Report) Disorder() int64 { return r.ConnectionDisorder + r.TimeDisorder }

// Clean tells whether nothing is to be said against the history.
func (r Report) Clean() bool {
	return r.Duplicates == 0 && r.Disorder() == 0 && r.Invalid == 0 && r.Ungranted == 0 && r.AboveHighWater == 0 &&
		r.WorkerOverlaps == 0 && r.Unexpected == 0 && !r.Truncated
}

// WorstRecovery is the longest of the recoveries.
func (r Report) WorstRecovery() (worst time.Duration) {
	for _, f := range r.Faults {
		worst = max(worst, f.Recovery)
	}
	return worst
}

// MedianRecovery is the median of the recoveries.
func (r Report) MedianRecovery() time.Duration {
	var d []time.Duration
	for _, f := range r.Faults {
		if f.Cured != 0 {
			d = append(d, f.Recovery)
		}
	}
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)/2]
}

// Line is the verdict in one line: "ids=N duplicates=0 disorder=0", with the faults if there were any.
func (r Report) Line() string {
	s := fmt.Sprintf("ids=%d duplicates=%d disorder=%d", r.IDs, r.Duplicates, r.Disorder())
	if len(r.Faults) > 0 {
		s += fmt.Sprintf(" faults=%d worst_recovery=%.1fs", len(r.Faults), r.WorstRecovery().Seconds())
	}
	return s
}

// String is the whole verdict, Line among its lines.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "history %s: %d requests in %.1fs by %d recorders over %d connections on %d keys\n",
		r.File, r.Events, r.Span.Seconds(), r.Recorders, r.Connections, r.Keys)
	fmt.Fprintln(&b, r.Line())
	fmt.Fprintf(&b, "invalid=%d ungranted=%d above_high_water=%d worker_overlaps=%d unexpected_errors=%d\n",
		r.Invalid, r.Ungranted, r.AboveHighWater, r.WorkerOverlaps, r.Unexpected)
	fmt.Fprintf(&b, "lost_replies=%d regranted=%d worker_changes=%d errors:", r.Lost, r.Regranted, r.WorkerChanges)
	if len(r.Errors) == 0 {
		b.WriteString(" none")
	}
	for _, w := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(&b, " %s=%d", w, r.Errors[w])
	}
	b.WriteByte('\n')
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "fault %s: from %.3fs", f.Name, f.Begin.Seconds())
		switch {
		case f.Cured == 0:
			b.WriteString(", not cured")
		case f.Stuck > 0:
			fmt.Fprintf(&b, ", cured at %.3fs, %d clients had no ID again", f.Cured.Seconds(), f.Stuck)
		default:
			fmt.Fprintf(&b, ", cured at %.3fs, recovered %.3fs later", f.Cured.Seconds(), f.Recovery.Seconds())
		}
		b.WriteByte('\n')
	}
	for _, f := range r.Findings {
		fmt.Fprintln(&b, f)
	}
	if r.Truncated {
		b.WriteString("the history is cut short: this is the verdict over what was written\n")
	}
	if r.Clean() {
		b.WriteString("verdict: clean\n")
	} else {
		b.WriteString("verdict: NOT CLEAN\n")
	}
	return b.String()
}
