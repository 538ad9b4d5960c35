package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"redleaf/engine"
)

// Leaf's paths. Those that issue are matched on the raw path, not by a mux, so that a key with dots, slashes or dot segments in it
// is the exact tag (case leaf S28).
const (
	leafSegment   = "/api/segment/get/"
	leafSnowflake = "/api/snowflake/get/"
	leafDecode    = "/decodeSnowflakeId"
)

// leafCounts counts requests to Leaf's API by outcome: who moves away from it sees when nobody uses it any more.
type leafCounts struct{ issued, failed, refused [2]atomic.Uint64 }

// leafAPI answers as Leaf's server does: the bare decimal on success, Spring's error object otherwise. It issues IDs on GET,
// which browsers send from any page, so every request must come from a peer and an origin that may.
func (a *Admin) leafAPI(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.EscapedPath()
	i := 0
	raw, ok := strings.CutPrefix(path, leafSegment)
	if !ok {
		i = 1
		if raw, ok = strings.CutPrefix(path, leafSnowflake); !ok {
			return false
		}
	}
	segment := i == 0
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case !a.o.LeafAPI:
		http.Error(w, "Leaf's HTTP API is off: set admin.leaf_api = true", http.StatusNotFound)
	case r.Method == http.MethodHead || r.Method == http.MethodOptions || r.Method == http.MethodTrace:
		// Leaf burns an ID for each of these.
		w.Header().Set("Allow", "GET, POST, PUT, PATCH, DELETE")
		http.Error(w, "an ID would be lost: use GET", http.StatusMethodNotAllowed)
	case raw == "": // Leaf's routes need a key, also where it is ignored
		springError(w, r, http.StatusNotFound, "", "No message available")
	default:
		key, err := url.PathUnescape(raw)
		if err == nil && !a.mayIssue(w, r, []byte(key), segment) {
			a.served.refused[i].Add(1)
			return true
		}
		if err != nil {
			err = &engine.Error{Word: engine.PlainError, Text: "the key is not a valid path: write % as %25"}
		} else {
			var id int64
			if id, err = a.leafID(segment, []byte(key)); err == nil {
				a.served.issued[i].Add(1)
				w.Header().Set("Content-Type", leafType(r.Header.Get("Accept")))
				w.Write(strconv.AppendInt(nil, id, 10))
				return true
			}
		}
		a.served.failed[i].Add(1)
		leafError(w, r, err, segment)
	}
	return true
}

// leafID takes one ID. A segment ID comes from a tag that is there: Leaf's API makes none, whatever INCR may do, and a mistyped
// path must not begin a counter at 1.
func (a *Admin) leafID(segment bool, key []byte) (int64, error) {
	e := a.o.Engine
	var wait engine.Wait
	defer wait.Reset()
	if !segment {
		if id, ok := e.TrySnowflake(); ok {
			return id, nil
		}
		return e.Snowflake(&wait)
	}
	if id, ok := e.TryIncr(key, 1); ok {
		return id, nil
	}
	if !e.IsSnowflakeKey(key) {
		if _, err := e.Info(&wait, key); err != nil {
			return 0, err
		}
	}
	return e.Incr(&wait, key, 1)
}

// leafType is the content type that Spring gives a string for an Accept header. Clients depend on it: one that asks for JSON
// refuses to read a number from text.
func leafType(accept string) string {
	first, _, _ := strings.Cut(accept, ",")
	first, _, _ = strings.Cut(first, ";")
	switch first = strings.ToLower(strings.TrimSpace(first)); first {
	case "application/json", "text/html", "application/xml":
		return first + ";charset=UTF-8"
	}
	return "text/plain;charset=UTF-8"
}

// mayIssue lets through: with users, whoever gives a name and password with the right; without, programs on this machine alone. A
// page of another origin in somebody's browser is neither.
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
	if why := notFromHere(r); why != "" {
		http.Error(w, "without users only clients on this machine may draw IDs here: "+why+". Set auth.password or [[auth.user]] and give name and password by HTTP basic auth", http.StatusForbidden)
		return false
	}
	return true
}

// userMayIssue checks HTTP basic auth against the users of the Redis side, with the same rights and the same IDs per second.
func (a *Admin) userMayIssue(w http.ResponseWriter, r *http.Request, key []byte, segment bool) bool {
	if name, password, given := r.BasicAuth(); given {
		if account, ok := a.o.Server.Login(name, password); ok {
			tag := ""
			if segment {
				tag = string(key)
			}
			err := account.Issue(tag, 1)
			if err == nil {
				return true
			}
			code := http.StatusForbidden
			var no *engine.Error
			if errors.As(err, &no) && no.Word == engine.Limit {
				code = http.StatusTooManyRequests
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, err.Error(), code)
			return false
		}
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="redleaf", charset="UTF-8"`)
	http.Error(w, "name and password of a user are needed (auth.password or [[auth.user]])", http.StatusUnauthorized)
	return false
}

// leafCode is Leaf's number for a refusal: they mean different things per engine.
func leafCode(word engine.Word, segment bool) int {
	if segment {
		switch word {
		case engine.Loading, engine.Disabled:
			return -1 // not initialised
		case engine.NoTag, engine.PlainError:
			return -2 // no such key: one that no tag may have is none
		}
		return -3 // no segment ready
	}
	if word == engine.ClockBack {
		return -3 // the clock is behind by more than is waited for
	}
	return -1
}

const leafException = "com.sankuai.inf.leaf.server.exception.LeafServerException"

// leafError answers a refusal as Leaf does. Its body has no room for the reason, which stands in a header of ours.
func leafError(w http.ResponseWriter, r *http.Request, err error, segment bool) {
	word, text := engine.Explain(err)
	ascii := strconv.QuoteToASCII(text) // a header is one line of ASCII
	w.Header().Set("Redleaf-Error", string(word)+" "+ascii[1:len(ascii)-1])
	springError(w, r, http.StatusInternalServerError, leafException, fmt.Sprintf("Result{id=%d, status=EXCEPTION}", leafCode(word, segment)))
}

// springError is the body that Spring Boot 1.5 gives a client, field by field in its order.
func springError(w http.ResponseWriter, r *http.Request, status int, exception, message string) {
	writeJSON(w, status, struct {
		Timestamp int64  `json:"timestamp"`
		Status    int    `json:"status"`
		Error     string `json:"error"`
		Exception string `json:"exception,omitempty"`
		Message   string `json:"message"`
		Path      string `json:"path"`
	}{time.Now().UnixMilli(), status, http.StatusText(status), exception, message, r.URL.EscapedPath()})
}

// writeJSON writes v as Leaf's server would: nothing escaped for HTML, no newline at the end.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings and numbers alone: it can't fail
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(bytes.TrimRight(b.Bytes(), "\n")) // the client is gone if this fails
}

// decode answers /decodeSnowflakeId?snowflakeId=N. The time is UTC: Leaf's is in whatever zone its server stands (case leaf F19).
func (a *Admin) decode(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	q := r.URL.Query()
	if !q.Has("snowflakeId") {
		springError(w, r, http.StatusBadRequest, "org.springframework.web.bind.MissingServletRequestParameterException", "Required String parameter 'snowflakeId' is not present")
		return
	}
	id, err := strconv.ParseInt(q.Get("snowflakeId"), 10, 64)
	if err == nil {
		var p engine.Parts
		if p, err = a.o.Engine.Parse(id); err == nil {
			writeJSON(w, http.StatusOK, struct { // in the order of Java's hash map
				Worker    string `json:"workerId"`
				Sequence  string `json:"sequenceId"`
				Timestamp string `json:"timestamp"`
			}{n64(p.Worker), n64(p.Sequence), fmt.Sprintf("%d(%s)", p.Ms, time.UnixMilli(p.Ms).UTC().Format("2006-01-02 15:04:05.000"))})
			return
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Error string `json:"errorMsg"`
	}{"snowflake Id反解析发生异常!"})
}

func n64(n int64) string { return strconv.FormatInt(n, 10) }
