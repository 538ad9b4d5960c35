package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"redleaf/engine"
)

// Leaf's paths. They are matched on the raw path, not by a mux, so that a key with dots, slashes or dot segments in it is the
// exact tag (case leaf S28).
const (
	leafSegment   = "/api/segment/get/"
	leafSnowflake = "/api/snowflake/get/"
	leafDecode    = "/decodeSnowflakeId"
	leafCache     = "/cache"
	leafDB        = "/db"
)

// leafAPI answers as Leaf's server does: the bare decimal on success, Spring's error object otherwise. It issues IDs on GET,
// which browsers send from any page, so every request must come from a peer and an origin that may.
func (a *Admin) leafAPI(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.EscapedPath()
	var key string
	segment := strings.HasPrefix(path, leafSegment)
	switch {
	case segment:
		key = strings.TrimPrefix(path, leafSegment)
	case strings.HasPrefix(path, leafSnowflake):
		key = strings.TrimPrefix(path, leafSnowflake)
	default:
		return false
	}
	if !a.o.LeafAPI {
		http.Error(w, "Leaf's HTTP API is off: set admin.leaf_api = true", http.StatusNotFound)
		return true
	}
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead || r.Method == http.MethodOptions || r.Method == http.MethodTrace {
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "an ID would be lost: use GET or POST", http.StatusMethodNotAllowed)
		return true
	}
	name, err := url.PathUnescape(key)
	if err != nil {
		leafError(w, r, &engine.Error{Word: engine.PlainError, Text: "the key is not a valid path: escape % as %25"}, segment)
		return true
	}
	if !a.mayIssue(w, r, []byte(name), segment) {
		return true
	}
	id, err := a.leafID(segment, []byte(name))
	if err != nil {
		leafError(w, r, err, segment)
		return true
	}
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	w.Write(strconv.AppendInt(nil, id, 10))
	return true
}

func (a *Admin) leafID(segment bool, key []byte) (int64, error) {
	e := a.o.Engine
	if segment {
		if id, ok := e.TryIncr(key, 1); ok {
			return id, nil
		}
		var wait engine.Wait
		defer wait.Reset()
		return e.Incr(&wait, key, 1)
	}
	if len(key) == 0 { // Leaf's route asks for a key although it ignores which
		return 0, &engine.Error{Word: engine.PlainError, Text: "Key is none"}
	}
	if id, ok := e.TrySnowflake(); ok {
		return id, nil
	}
	var wait engine.Wait
	defer wait.Reset()
	return e.Snowflake(&wait)
}

// mayIssue lets through: with users, whoever gives a name and password with the right; without, loopback peers alone. A page of
// another origin in the operator's browser is neither.
func (a *Admin) mayIssue(w http.ResponseWriter, r *http.Request, key []byte, segment bool) bool {
	if o := r.Header.Get("Origin"); o != "" {
		if u, err := url.Parse(o); err != nil || u.Host != r.Host {
			http.Error(w, "a page of another origin may not draw IDs", http.StatusForbidden)
			return false
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		http.Error(w, "a page of another site may not draw IDs", http.StatusForbidden)
		return false
	}
	if a.o.Server != nil && a.o.Server.AuthRequired() {
		return a.userMayIssue(w, r, key, segment)
	}
	if !loopbackPeer(r) {
		http.Error(w, "without users only clients on this machine may draw IDs here: set auth.password or [[auth.user]]", http.StatusForbidden)
		return false
	}
	if !localHost(r.Host) {
		http.Error(w, "the Host header names another machine: a page may have been rebound to this one", http.StatusForbidden)
		return false
	}
	return true
}

// userMayIssue checks HTTP basic auth against the users of the Redis side, with the same rights and the same IDs per second.
func (a *Admin) userMayIssue(w http.ResponseWriter, r *http.Request, key []byte, segment bool) bool {
	name, password, given := r.BasicAuth()
	if given {
		if account, ok := a.o.Server.Login(name, password); ok {
			tag := string(key)
			if !segment {
				tag = ""
			}
			err := account.Issue(tag, 1)
			if err == nil {
				return true
			}
			code := http.StatusForbidden
			var no *engine.Error
			if errors.As(err, &no) && no.Word == engine.Limit {
				code = http.StatusTooManyRequests
			}
			http.Error(w, err.Error(), code)
			return false
		}
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="redleaf", charset="UTF-8"`)
	http.Error(w, "name and password of a user are needed (auth.password or [[auth.user]])", http.StatusUnauthorized)
	return false
}

func loopbackPeer(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// localHost keeps DNS rebinding out: a name that an attacker points at 127.0.0.1 arrives in Host.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// leafCode is Leaf's number for a refusal: they mean different things per engine.
func leafCode(word engine.Word, segment bool) int {
	if segment {
		switch word {
		case engine.Loading:
			return -1 // not initialised
		case engine.NoTag:
			return -2 // no such key
		}
		return -3 // no segment ready
	}
	if word == engine.ClockBack {
		return -3
	}
	return -1
}

// springError is the body that Spring Boot 1.5 gives a Leaf client. redleaf is added: the reason in our words.
type springError struct {
	Timestamp int64  `json:"timestamp"`
	Status    int    `json:"status"`
	Error     string `json:"error"`
	Exception string `json:"exception"`
	Message   string `json:"message"`
	Path      string `json:"path"`
	Redleaf   string `json:"redleaf"`
}

func leafError(w http.ResponseWriter, r *http.Request, err error, segment bool) {
	word, text := engine.Explain(err)
	body := springError{
		Timestamp: time.Now().UnixMilli(),
		Status:    http.StatusInternalServerError,
		Error:     "Internal Server Error",
		Exception: "com.sankuai.inf.leaf.server.exception.LeafServerException",
		Message:   fmt.Sprintf("Result{id=%d, status=EXCEPTION}", leafCode(word, segment)),
		Path:      r.URL.Path,
		Redleaf:   string(word) + " " + text,
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.WriteHeader(body.Status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone if this fails
}

// decode answers /decodeSnowflakeId?snowflakeId=N. The time is UTC: Leaf's is in whatever zone its server stands (case leaf F19).
func (a *Admin) decode(w http.ResponseWriter, r *http.Request) {
	out := map[string]string{}
	id, err := strconv.ParseInt(r.URL.Query().Get("snowflakeId"), 10, 64)
	if err != nil {
		out["errorMsg"] = "snowflake Id反解析发生异常!"
	} else if p, err := a.o.Engine.Parse(id); err != nil {
		out["errorMsg"] = "snowflake Id反解析发生异常!"
	} else {
		out["timestamp"] = fmt.Sprintf("%d(%s)", p.Ms, time.UnixMilli(p.Ms).UTC().Format("2006-01-02 15:04:05.000"))
		out["workerId"] = strconv.FormatInt(p.Worker, 10)
		out["sequenceId"] = strconv.FormatInt(p.Sequence, 10)
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	_ = json.NewEncoder(w).Encode(out)
}

var leafTable = template.Must(template.New("leaf").Parse(`<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title></head><body>
<table border="1"><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</tbody></table></body></html>
`))

type leafPage struct {
	Title string
	Head  []string
	Rows  [][]string
}

// cachePage is Leaf's /cache: what this instance holds. Redleaf has spans where Leaf has two slots; the columns stay.
func (a *Admin) cachePage(w http.ResponseWriter, _ *http.Request) {
	p := leafPage{Title: "cache", Head: []string{"name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"}}
	for _, t := range a.o.Engine.Tags(pageTags) {
		p.Rows = append(p.Rows, []string{t.Tag, "true", strconv.FormatBool(t.Remaining > t.Span), "0",
			n64(t.Last + 1), n64(t.Last + 1 + min(t.Remaining, t.Span)), n64(t.Span),
			n64(t.Last + 1 + min(t.Remaining, t.Span)), n64(t.Last + 1 + t.Remaining), n64(t.Step)})
	}
	a.leafPage(w, p)
}

// dbPage is Leaf's /db: the rows of the store.
func (a *Admin) dbPage(w http.ResponseWriter, _ *http.Request) {
	p := leafPage{Title: "db", Head: []string{"tag", "max", "step", "update"}}
	var wait engine.Wait
	defer wait.Reset()
	rows, _, err := a.o.Engine.List(&wait, "", "", pageTags)
	if err != nil {
		word, text := engine.Explain(err)
		http.Error(w, string(word)+" "+text, http.StatusServiceUnavailable)
		return
	}
	for _, row := range rows {
		updated := ""
		if !row.Updated.IsZero() {
			updated = row.Updated.UTC().Format("2006-01-02 15:04:05")
		}
		p.Rows = append(p.Rows, []string{row.Tag, n64(row.Max), n64(row.Step), updated})
	}
	a.leafPage(w, p)
}

func (a *Admin) leafPage(w http.ResponseWriter, p leafPage) {
	w.Header().Set("Content-Type", "text/html;charset=UTF-8")
	w.Header().Set("Cache-Control", "no-store")
	_ = leafTable.Execute(w, p)
}

func n64(n int64) string { return strconv.FormatInt(n, 10) }
