package admin

import (
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"redleaf/engine"
)

// Leaf's two pages for people, with its columns.
const (
	leafCache = "/cache"
	leafDB    = "/db"
)

const (
	shownRows = 1000        // of /db, a page
	rowsFor   = time.Second // how long /db shows what it read: the page is open to all, the database is not
)

var leafTable = template.Must(template.New("leaf").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{{.Title}} – Redleaf</title></head><body>
<table border="1"><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</tbody></table>
{{if .More}}<p><a href="{{.More}}">more</a></p>
{{end}}</body></html>
`))

type leafTableData struct {
	Title string
	Head  []string
	Rows  [][]string
	More  string // address of the next page
}

// cachePage is Leaf's /cache: what this instance holds. Redleaf has any number of spans where Leaf has two slots: the first is the
// one in use, the second all the others.
func (a *Admin) cachePage(w http.ResponseWriter, r *http.Request) {
	if !a.leafPagesOn(w, r) {
		return
	}
	p := leafTableData{Title: "cache", Head: []string{"name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"}}
	for _, t := range a.o.Engine.Tags(metricTags) {
		current := min(t.Remaining, t.Span)
		next := t.Last + 1
		p.Rows = append(p.Rows, []string{t.Tag, "true", strconv.FormatBool(t.Remaining > current), "0",
			n64(next), n64(next + current), n64(t.Span), n64(next + current), n64(next + t.Remaining), n64(t.Step)})
	}
	leafPage(w, p)
}

// rowCache keeps the last page of rows that was read, whoever asks how often.
type rowCache struct {
	mu    sync.Mutex
	after string
	at    time.Time
	rows  []engine.Row
	next  string
	err   error
}

func (c *rowCache) list(e *engine.Engine, after string) ([]engine.Row, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock() // held while the store is asked: it answers, or the wait ends, within segment.wait
	if c.at.IsZero() || c.after != after || time.Since(c.at) > rowsFor {
		var wait engine.Wait
		c.rows, c.next, c.err = e.List(&wait, "", after, shownRows)
		wait.Reset()
		c.after, c.at = after, time.Now()
	}
	return c.rows, c.next, c.err
}

// dbPage is Leaf's /db: the rows of the store.
func (a *Admin) dbPage(w http.ResponseWriter, r *http.Request) {
	if !a.leafPagesOn(w, r) {
		return
	}
	rows, next, err := a.rows.list(a.o.Engine, r.URL.Query().Get("after"))
	if err != nil {
		word, text := engine.Explain(err)
		http.Error(w, string(word)+" "+text, http.StatusServiceUnavailable)
		return
	}
	p := leafTableData{Title: "db", Head: []string{"tag", "max", "step", "update"}}
	for _, row := range rows {
		updated := ""
		if !row.Updated.IsZero() {
			updated = row.Updated.UTC().Format("2006-01-02 15:04:05")
		}
		p.Rows = append(p.Rows, []string{row.Tag, n64(row.Max), n64(row.Step), updated})
	}
	if next != "" {
		p.More = leafDB + "?after=" + url.QueryEscape(next)
	}
	leafPage(w, p)
}

// leafPagesOn refuses as Leaf does where there are no segments.
func (a *Admin) leafPagesOn(w http.ResponseWriter, r *http.Request) bool {
	if a.o.Engine.SegmentOn() {
		return true
	}
	w.Header().Set("Redleaf-Error", errSegmentOff.Error())
	springError(w, r, http.StatusInternalServerError, "java.lang.IllegalArgumentException", "You should config leaf.segment.enable=true first")
	return false
}

var errSegmentOff = errors.New("DISABLED the segment engine is off: set segment.store to local or mysql")

func leafPage(w http.ResponseWriter, p leafTableData) {
	w.Header().Set("Content-Type", "text/html;charset=UTF-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = leafTable.Execute(w, p) // the reader is gone if this fails
}
